"""What the WebDAV backend makes of refusals, redirects, other servers, and none; a small server here gives them."""

from __future__ import annotations

import email.utils
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from contract_kit import SMALL, passes
from dav_kit import ALL_CALLS, CALLS, HTML, PAGE, PASSWORD, WHOLE, Answer, Script, Store, entry, multistatus, serving
from http_kit import gets_in_two_processes, make_certificate

from metasync.backends.registry import open_backend, parse_url
from metasync.backends.webdav import folder as _webdav_folder
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing import contract

pytestmark = pytest.mark.usefixtures("login")


SMALLER = replace(SMALL, race_names=24, race_final_reads=24, kills=2, versions=4, rounds=4)


@pytest.mark.parametrize("dav", ["1, 3", WHOLE], ids=["moved", "whole"])
@pytest.mark.parametrize("check", contract.CHECKS, ids=contract.check_id)
def test_contract(script: Script, check: contract.Check, dav: str) -> None:
    """On a server that does one request at a time, and so does not race."""
    script.answer = Store(dav=dav)
    passes(check, contract.Store.at(script.url()), SMALLER)


ANSWERS: list[tuple[int, type[BackendError], bool]] = [
    (207, BackendError, True),
    (400, BackendError, False),
    (401, RefusedError, False),
    (403, RefusedError, False),
    (405, RefusedError, False),
    (407, UnreachableError, True),
    (413, RefusedError, False),
    (423, BackendError, True),
    (429, BackendError, True),
    (500, BackendError, True),
    (501, RefusedError, False),
    (502, BackendError, True),
    (503, BackendError, True),
    (504, BackendError, True),
    (507, FullError, False),
]


@pytest.mark.few
@ALL_CALLS
@pytest.mark.parametrize(("status", "expected", "retryable"), ANSWERS)
def test_refusals(script: Script, call: Callable, status: int, expected: type[BackendError], retryable: bool) -> None:
    """Whatever the first request that is not about the server itself is answered with."""
    sound = Store()
    script.answer = lambda asked: sound(asked) if asked.method == "OPTIONS" else Answer(status, PAGE, HTML)
    with pytest.raises(BackendError) as caught:
        call(script.open())
    if status == 207 and script.methods == ["PROPFIND"]:
        expected, retryable = UnreachableError, True  # a page that calls itself a list
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert f"127.0.0.1:{script.port}/dav/x" in caught.value.message
    assert PASSWORD not in str(caught.value)
    assert status != 507 or "Free some space" in caught.value.next_step
    assert status != 413 or "client_max_body_size" in caught.value.next_step


@ALL_CALLS
def test_nothing_is_tried_twice(script: Script, call: Callable) -> None:
    script.answer = lambda asked: Answer(200) if asked.method == "OPTIONS" else Answer(500)
    with pytest.raises(BackendError):
        call(script.open())
    told = [(asked.method, asked.path.partition(".tmp")[0]) for asked in script.asked if asked.method != "DELETE"]
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(
    ("status", "told", "after_s"),
    [
        (429, "7", 7.0),
        (503, "0", 0.0),
        (503, None, 1.0),
        (503, "soon", 1.0),
        (503, "-5", 1.0),
        (429, "99999999", 3600.0),
        (423, "2", 2.0),
        (423, None, None),
        (500, None, None),
    ],
)
def test_when_to_ask_again(script: Script, status: int, told: str | None, after_s: float | None) -> None:
    script.answer = lambda _: Answer(status, headers={} if told is None else {"Retry-After": told})
    with pytest.raises(BackendError) as caught:
        script.open().get("a", max_bytes=1)
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)


def test_when_to_ask_again_as_a_date(script: Script) -> None:
    date = email.utils.formatdate(time.time() + 90, usegmt=True)
    script.answer = lambda _: Answer(503, headers={"Retry-After": date, "X-Nextcloud-Maintenance-Mode": "1"})
    with pytest.raises(BackendError, match="in maintenance") as caught:
        script.open().get("a", max_bytes=1)
    assert caught.value.retry_after_s is not None
    assert 80 <= caught.value.retry_after_s <= 90


@ALL_CALLS
@pytest.mark.parametrize("status", [200, 201, 207])
def test_a_login_page_for_everything(script: Script, call: Callable, status: int) -> None:
    """Nothing in it may pass for data, for a write, or for an absent object."""
    script.answer = lambda _: Answer(status, PAGE, HTML)
    if status == 201 and call in (CALLS["create"], CALLS["put"], CALLS["delete"]):
        return  # Apache says "created" by a page
    with pytest.raises(BackendError) as caught:
        call(script.open())
    assert not isinstance(caught.value, NotFoundError)


@pytest.mark.parametrize("dav", ["1", WHOLE])
@pytest.mark.parametrize("kind", ["create", "put"])
def test_a_200_for_everything_is_no_write(script: Script, dav: str, kind: str) -> None:
    """By whatever stands between, and says neither that it is a page nor what it is."""
    script.answer = lambda asked: Answer(200, b"", {"DAV": dav} if asked.method == "OPTIONS" else {})
    with pytest.raises(BackendError):
        CALLS[kind](script.open())


@ALL_CALLS
def test_a_404_for_everything_is_no_empty_store(script: Script, call: Callable) -> None:
    script.answer = lambda _: Answer(404, PAGE, HTML)
    with pytest.raises(UnreachableError, match="no such folder"):
        call(script.open())


@ALL_CALLS
@pytest.mark.parametrize("told", ["nothing", "not found", "a file"])
def test_a_404_beside_what_is_no_folder_is_no_empty_store(script: Script, call: Callable, told: str) -> None:
    """The folder is asked for, and the answer is a list that does not tell of it."""
    gone = "<response><href>/dav/x/</href><status>HTTP/1.1 404 Not Found</status></response>"
    lists = {"nothing": multistatus(), "not found": multistatus(gone), "a file": multistatus(entry("/dav/x", b"1"))}
    script.answer = lambda asked: lists[told] if asked.path == "/dav/x/" and asked.method == "PROPFIND" else Answer(404)
    with pytest.raises(BackendError, match="no folder" if told == "a file" else "not the WebDAV server") as caught:
        call(script.open())
    assert not isinstance(caught.value, NotFoundError)


def test_the_folder_vanishes(script: Script, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = script.open()
    backend.put("d/a", b"1")
    store.files.clear()
    store.folders -= {"/dav/x", "/dav/x/d"}
    monkeypatch.setattr(_webdav_folder, "ROOT_SEEN_S", 0.0)
    for call in CALLS.values():
        with pytest.raises(UnreachableError, match="no such folder"):
            call(backend)


def test_an_absent_object_costs_one_request_beside_others(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/a", b"1")
    script.asked.clear()
    for name in ("d/b", "d/c"):
        with pytest.raises(NotFoundError):
            backend.get(name, max_bytes=1)
    assert script.methods == ["GET", "GET"]


# Connections.


def test_what_is_absent_or_refused_keeps_its_connection(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/a", b"1")
    for number in range(20):
        with pytest.raises(NotFoundError):
            backend.get(f"d/b-{number}", max_bytes=1)
        backend.delete(f"d/b-{number}")
    store.overlay = lambda _: Answer(503, PAGE, HTML)
    for call in CALLS.values():
        with pytest.raises(BackendError):
            call(backend)
    assert script.connections == 1


def test_a_large_request_that_is_refused_ends_its_connection(script: Script, store: Store) -> None:
    """A server that did not read it all would take the rest for the next request."""
    backend = script.open()
    backend.put("d/a", b"1")
    store.overlay = lambda asked: Answer(423) if asked.method == "PUT" else None
    before = script.connections
    for size in (1, 1 << 20):
        with pytest.raises(BackendError, match="locked"):
            backend.put("d/a", bytes(size))
    store.overlay = lambda _: None
    backend.stat("d/a")
    assert script.connections == before + 1


@pytest.mark.parametrize("status", [b"102 Processing", b"103 Early Hints"])
def test_no_answer_is_read_as_that_to_another_request(script: Script, store: Store, status: bytes) -> None:
    """http.client takes what comes ahead of an answer for the answer, which is then the next request's."""
    backend = script.open()
    backend.put("d/a", b"1")
    store.overlay = lambda _: Answer(404, before=b"HTTP/1.1 " + status + b"\r\n\r\n")
    with pytest.raises(UnreachableError):
        backend.get("d/a", max_bytes=9)
    store.overlay = lambda _: None
    assert backend.get("d/a", max_bytes=9) == b"1"
    assert script.connections == 2


def test_a_process_that_forks_has_its_own_connections(script: Script, store: Store) -> None:
    store.files |= {"/dav/x/a": b"a", "/dav/x/b": b"b"}
    assert gets_in_two_processes(script.url()) == ""


# Redirects.


@pytest.mark.few
@ALL_CALLS
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(script: Script, call: Callable, status: int) -> None:
    with serving() as other:
        for location, expected, said in (
            ("/new/place/?token=hunter2", RefusedError, f"is now http://127.0.0.1:{script.port}/new/place/"),
            (f"http://localhost:{other.port}/dav/x/d", UnreachableError, "another host, localhost"),
            ("https://login.example/", UnreachableError, "another host, login.example"),
            ("http://[", UnreachableError, "another host"),
            ("", RefusedError, "is now"),
        ):
            script.answer = lambda _, to=location: Answer(status, PAGE, {"Location": to, **HTML})
            with pytest.raises(expected) as caught:
                call(script.open())
            assert said in caught.value.message
            assert PASSWORD not in str(caught.value)
        assert other.asked == []


# TLS and proxies.


@pytest.mark.parametrize(
    ("when", "said", "step"),
    [
        ({}, "signed by itself", "REQUESTS_CA_BUNDLE"),
        ({"days_from": 1}, "not valid yet", "clock"),
        ({"days_from": -3, "days_to": -1}, "expired", "clock"),
        ({"address": "127.0.0.2"}, "for another", "host in the URL"),
    ],
)
def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: dict, said: str, step: str) -> None:
    certificate = make_certificate(tmp_path, **when)
    if when:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate[0])
    with serving(certificate) as script:
        with pytest.raises(UnreachableError, match="certificate was not accepted") as caught:
            script.open().list("")
        assert said in caught.value.message
        assert step in caught.value.next_step
        assert script.asked == []


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv(variable, certificate[0])
    with serving(certificate) as script:
        script.answer = Store()
        backend = script.open()
        backend.put("d/a", b"1")
        assert backend.get("d/a", max_bytes=1) == b"1"
        assert script.asked[0].headers["Authorization"].startswith("Basic ")
    monkeypatch.setenv(variable, str(tmp_path / "none.pem"))
    with pytest.raises(RefusedError, match=variable):
        script.open()


def test_tls_to_a_server_without_it(script: Script) -> None:
    with pytest.raises(UnreachableError, match="TLS") as caught:
        open_backend(parse_url(f"webdav://anna@127.0.0.1:{script.port}/dav")).list("")
    assert "webdav+http://" in caught.value.next_step


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies(script: Script, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    url = parse_url(f"webdav{'+http' if scheme == 'http' else ''}://anna@nowhere.invalid/dav")
    monkeypatch.setenv(f"{scheme}_proxy", "http://me:hunter2@127.0.0.1:9")
    with pytest.raises(UnreachableError, match="proxy") as caught:
        open_backend(url).list("")
    assert PASSWORD not in str(caught.value)
    script.answer = lambda _: Answer(407, PAGE, HTML)
    monkeypatch.setenv(f"{scheme}_proxy", f"http://me:hunter2@127.0.0.1:{script.port}")
    with pytest.raises(UnreachableError, match="proxy") as caught:
        open_backend(url).list("")
    assert PASSWORD not in f"{caught.value}{caught.value!r}"
    assert caught.value.__cause__ is None
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    with pytest.raises(UnreachableError, match="resolved"):
        open_backend(url).list("")


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("socks5h://me:hunter2@127.0.0.1:9", "PySocks"),
        ("http://me:hunter2@[bad", "no address"),
        ("ftp://me:hunter2@h", "no address"),
        ("http://me:hunter2@h:99999", "no address"),
    ],
)
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str, said: str) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.setenv("all_proxy", proxy)
    monkeypatch.setenv("ST_USER", "me")
    monkeypatch.setenv("ST_KEY", "k")
    for url in ("webdav://anna@nowhere.invalid/dav", "swift://c?auth=https://nowhere.invalid/auth/v1.0"):
        with pytest.raises(RefusedError, match=said) as caught:
            open_backend(parse_url(url)).list("")
        assert "ALL_PROXY" in caught.value.next_step
        assert PASSWORD not in f"{caught.value}"


def test_nobody_listens() -> None:
    backend = open_backend(parse_url("webdav+http://anna@127.0.0.1:9/dav"))
    for call in CALLS.values():
        with pytest.raises(UnreachableError, match="refused") as caught:
            call(backend)
        assert caught.value.retryable


def test_a_server_that_hangs(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.backends._shared import http

    monkeypatch.setattr(http, "SMALL_TIMEOUT_S", 0.2)
    over = threading.Event()
    script.answer = lambda _: Answer(200 + over.wait(60))
    with pytest.raises(UnreachableError, match="in time"):
        script.open().stat("a")
    over.set()


@pytest.mark.parametrize("status", [200, 404, 503])
def test_a_body_that_drips(script: Script, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """A byte now and then is no reason to wait for the next, in what is asked for or in a refusal."""
    from metasync.backends._shared import http

    monkeypatch.setattr(http, "SMALL_TIMEOUT_S", 0.3)
    folder = multistatus(entry("/dav/x/", None))
    script.answer = lambda asked: Answer(status, bytes(60), drip_s=0.05) if asked.method == "GET" else folder
    with pytest.raises(BackendError, match="in time" if status == 200 else "not there|503"):
        script.open().get("a", max_bytes=60)
    assert script.sent_bytes < 60 + (status == 404) * len(folder.body)


def test_closed(script: Script) -> None:
    backend = script.open()
    backend.close()
    backend.close()
    with pytest.raises(AssertionError):
        backend.put("a", b"")
