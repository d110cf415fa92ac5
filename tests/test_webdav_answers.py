"""What the WebDAV backend makes of answers, sound ones and others; a small server here gives them."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from contract_kit import SMALL, passes
from dav_kit import HTML, PAGE, PASSWORD, Answer, Asked, Script, Store, entry, make_certificate, multistatus, serving

from metasync.backends import _webdav_folder
from metasync.backends._base import Backend, Listed, Space
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing import contract

pytest.importorskip("requests")

WHOLE = "1,2, <http://apache.org/dav/propset/fs/1>"

CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
}
ALL_CALLS = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    for name in ("METASYNC_WEBDAV_USER", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def script() -> Iterator[Script]:
    with serving() as script:
        yield script


@pytest.fixture
def store(script: Script) -> Store:
    script.answer = store = Store()
    return store


@pytest.mark.parametrize("dav", ["1, 3", WHOLE], ids=["moved", "whole"])
@pytest.mark.parametrize("check", contract.CHECKS, ids=contract.check_id)
def test_contract(script: Script, check: contract.Check, dav: str) -> None:
    """On a server that does one request at a time, and so does not race."""
    script.answer = Store(dav=dav)
    passes(check, contract.Store.at(script.url()), SMALL)


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


@ALL_CALLS
def test_a_404_for_everything_is_no_empty_store(script: Script, call: Callable) -> None:
    script.answer = lambda _: Answer(404, PAGE, HTML)
    with pytest.raises(UnreachableError, match="no such folder"):
        call(script.open())


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


# Redirects.


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


# Writing.


def test_requests_of_each_call(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/first", b"1")
    wanted = {
        "create": (["PUT", "MOVE"], lambda: backend.create("d/c", b"1")),
        "create taken": (["PUT", "MOVE", "DELETE"], lambda: backend.create("d/c", b"2")),
        "put": (["PUT", "MOVE"], lambda: backend.put("d/p", b"1")),
        "put same": (["PUT", "MOVE", "GET", "DELETE"], lambda: backend.put("d/p", b"1")),
        "put other": (["PUT", "MOVE", "GET", "MOVE"], lambda: backend.put("d/q", b"2")),
        "get": (["GET"], lambda: backend.get("d/c", max_bytes=9)),
        "stat": (["HEAD"], lambda: backend.stat("d/c")),
        "list": (["PROPFIND"], lambda: backend.list("d")),
        "delete": (["DELETE"], lambda: backend.delete("d/c")),
        "space": (["PROPFIND"], lambda: backend.space()),
    }
    backend.put("d/q", b"1")
    for name, (methods, call) in wanted.items():
        script.asked.clear()
        call()
        assert script.methods == methods, name
    assert not [path for path in store.files if ".tmp" in path]


def test_requests_on_a_server_that_writes_whole(script: Script) -> None:
    script.answer = store = Store(dav=WHOLE)
    backend = script.open()
    assert backend.create("d/a", b"1") is True
    assert script.methods == ["OPTIONS", "PUT", "MKCOL", "PUT"]
    script.asked.clear()
    assert backend.create("d/a", b"2") is False
    backend.put("d/b", b"2")
    backend.put("d/b", b"3")
    assert script.methods == ["PUT", "PUT", "PUT"]
    assert store.files == {"/dav/x/d/a": b"1", "/dav/x/d/b": b"3"}


def test_a_large_object_is_not_sent_to_a_folder_that_is_not_there(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("new/folder/a", bytes(1 << 20))
    assert script.methods == ["OPTIONS", "MKCOL", "MKCOL", "MKCOL", "PUT", "MOVE"]
    script.asked.clear()
    backend.put("new/folder/b", bytes(1 << 20))
    backend.put("at-the-top", bytes(1 << 20))
    assert script.methods == ["PUT", "MOVE"] * 2


def test_a_folder_that_somebody_removed_is_made_again(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/a", b"1")
    store.files.clear()
    store.folders.discard("/dav/x/d")
    backend.put("d/b", b"2")
    assert store.files == {"/dav/x/d/b": b"2"}


@pytest.mark.parametrize("status", [403, 423, 500])
def test_a_folder_that_another_makes_at_the_same_moment(script: Script, store: Store, status: int) -> None:
    def overlay(asked: Asked) -> Answer | None:
        if asked.method != "MKCOL":
            return None
        store.folders.add("/dav/x/d")
        return Answer(status)

    store.overlay = overlay
    script.open().put("d/a", b"1")
    assert store.files == {"/dav/x/d/a": b"1"}


def test_a_refused_write_leaves_no_temporary_object(script: Script, store: Store) -> None:
    store.overlay = lambda asked: Answer(507) if asked.method == "MOVE" else None
    with pytest.raises(FullError):
        script.open().put("a", b"1")
    assert store.files == {}


def test_a_condition_that_nobody_set_is_no_success(script: Script) -> None:
    """412 is an answer to a create; a put that is told so has stored nothing."""
    for dav in ("1", WHOLE):
        script.answer = Store(lambda asked: Answer(412) if asked.method == "PUT" else None, dav=dav)
        with pytest.raises(BackendError):
            script.open().put("a", b"1")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 500])
def test_a_move_that_fails_is_no_success(script: Script, store: Store, status: int) -> None:
    store.overlay = lambda asked: Answer(status) if asked.method == "MOVE" else None
    for call in (CALLS["create"], CALLS["put"]):
        with pytest.raises(BackendError):
            call(script.open())


def test_a_server_that_does_not_know_its_own_name(script: Script, store: Store) -> None:
    """As behind a proxy that ends TLS: it wants a path to move to."""
    store.overlay = lambda asked: (
        Answer(502) if asked.method == "MOVE" and "://" in asked.headers["Destination"] else None
    )
    moved: list[str] = []

    def sound(asked: Asked) -> Answer:
        if asked.method == "MOVE":
            moved.append(asked.headers["Destination"])
            return Answer(201)
        return Store.sound(store, asked)

    store.sound = sound  # type: ignore[method-assign]
    script.open().put("a", b"1")
    assert moved == ["/dav/x/a"]


def test_a_create_whose_answer_was_lost_finds_its_name_taken(script: Script, store: Store) -> None:
    def overlay(asked: Asked) -> Answer | None:
        if asked.method != "MOVE":
            return None
        store.overlay = lambda _: None
        store.sound(asked)
        return Answer(201, b"", length=-1, unsized=True)  # never ends as promised; the status was heard

    store.overlay = overlay
    backend = script.open()
    assert backend.create("a", b"1") is True
    assert backend.create("a", b"1") is False


def test_delete_never_removes_a_folder(script: Script, store: Store) -> None:
    script.open().delete("d/a")
    assert script.asked[0].headers["Depth"] == "0"
    assert script.asked[0].headers["X-NC-Skip-Trashbin"] == "true"


def test_sweep(script: Script, store: Store) -> None:
    backend = script.open()
    for path in ("s/keep/a", "s/temps/b", "other/c"):
        backend.put(path, b"1")
    for path in ("s/keep/.tmp-0a", "s/temps/.tmp-1b", "s/.tmp-2c", "other/.tmp-3d"):
        store.files[f"/dav/x/{path}"] = b"half"
    backend.delete("s/temps/b")
    removed: list[str] = []

    def overlay(asked: Asked) -> Answer | None:
        if asked.method == "DELETE" and asked.path.endswith("/"):
            removed.append(asked.path)
            store.folders.discard(asked.path.rstrip("/"))
            return Answer(204)
        return None

    store.overlay = overlay
    backend.sweep("s")
    assert removed == ["/dav/x/s/temps/"]
    assert set(store.files) == {"/dav/x/s/keep/a", "/dav/x/other/c", "/dav/x/other/.tmp-3d"}
    backend.delete("s/keep/a")
    backend.sweep("s")
    assert removed[1:] == ["/dav/x/s/keep/", "/dav/x/s/"]
    backend.sweep("nothing/here")


def test_init_makes_the_folder(script: Script) -> None:
    from metasync.backends._registry import open_backend, parse_url

    script.answer = store = Store()
    store.folders = {"/dav"}
    open_backend(parse_url(script.url("/dav/x/y z/w")), create_root=True).close()
    assert {"/dav/x", "/dav/x/y%20z", "/dav/x/y%20z/w"} <= store.folders
    script.asked.clear()
    open_backend(parse_url(script.url("/dav/x/y z/w")), create_root=True).close()
    assert script.methods == ["PROPFIND"]
    script.answer = lambda _: Answer(405)
    with pytest.raises(RefusedError, match="no WebDAV folder"):
        open_backend(parse_url(script.url("/elsewhere")), create_root=True)
    script.answer = lambda _: Answer(404)
    with pytest.raises(BackendError):
        open_backend(parse_url(script.url("/elsewhere/deeper")), create_root=True)


# Reading.


def test_a_server_that_ignores_ranges(script: Script) -> None:
    data = bytes(range(200))
    for extra in ({}, {"chunked": True}):
        script.answer = lambda _, extra=extra: Answer(200, data, **extra)
        backend = script.open()
        for offset, length in ((0, None), (0, 10), (10, 20), (190, 50), (199, 1), (200, 4), (900, 9), (7, None)):
            assert backend.get("a", offset=offset, length=length, max_bytes=200) == data[offset:][:length]
        for part in ({"max_bytes": 199}, {"offset": 10, "max_bytes": 189}, {"length": 9, "max_bytes": 8}):
            with pytest.raises(RefusedError):
                backend.get("a", **part)


def test_an_endless_answer_is_cut(script: Script) -> None:
    script.answer = lambda _: Answer(200, bytes(8 << 20), chunked=True)
    backend = script.open()
    with pytest.raises(RefusedError, match="at most 9"):
        backend.get("a", max_bytes=9)
    assert backend.get("a", offset=3, length=4, max_bytes=9) == bytes(4)


def test_an_object_too_large_is_refused_by_its_head(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"", length=1 << 40)
    began = time.monotonic()
    with pytest.raises(RefusedError, match="at most 9"):
        script.open().get("a", max_bytes=9)
    assert time.monotonic() - began < 5


def test_an_answer_cut_short(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", length=8)
    with pytest.raises(UnreachableError):
        script.open().get("a", max_bytes=9)


def test_an_answer_that_does_not_say_where_it_ends(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", unsized=True)
    with pytest.raises(BackendError, match="where it ends"):
        script.open().get("a", max_bytes=9)


def test_an_answer_that_came_compressed(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", {"Content-Encoding": "gzip"})
    with pytest.raises(BackendError, match="compressed"):
        script.open().get("a", max_bytes=9)


@pytest.mark.parametrize("claim", ["bytes 0-8/9", "bytes 5-14/1000", "bytes 3-12/*", "", "bytes 3-5/5"])
def test_another_part_than_was_asked_for(script: Script, claim: str) -> None:
    script.answer = lambda _: Answer(206, b"123456789", {"Content-Range": claim})
    with pytest.raises(BackendError):
        script.open().get("a", offset=3, length=9, max_bytes=9)


def test_a_size_that_a_head_does_not_tell(script: Script, store: Store) -> None:
    """Apache leaves the length of an empty object out."""
    backend = script.open()
    backend.put("a", b"")
    store.overlay = lambda asked: Answer(200, chunked=True) if asked.method == "HEAD" else None
    assert backend.stat("a") == 0


def test_a_folder_is_no_object(script: Script, store: Store) -> None:
    store.overlay = lambda asked: Answer(200, PAGE, HTML) if asked.method in {"GET", "HEAD"} else None
    for call in (CALLS["get"], CALLS["stat"]):
        with pytest.raises(RefusedError, match="no file"):
            call(script.open())


def test_who_saw_an_object_waits_while_it_is_replaced(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("a", b"1")
    assert backend.get("a", max_bytes=1) == b"1"
    odd = [Answer(404), Answer(403), Answer(500)]
    store.overlay = lambda asked: odd.pop() if odd and asked.method in {"GET", "HEAD"} else None
    with pytest.raises(BackendError):
        script.open().get("a", max_bytes=1)  # who never saw it does not wait
    assert len(odd) == 2
    assert backend.get("a", max_bytes=1) == b"1"
    odd[:] = [Answer(404), Answer(403), Answer(500)]
    assert backend.get("a", max_bytes=1) == b"1"
    odd[:] = [Answer(404)]
    assert backend.stat("a") == 1
    del store.files["/dav/x/a"]
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
    script.asked.clear()
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
    assert script.methods == ["GET"]


def test_who_reads_again_what_has_just_changed_looks_twice(script: Script, store: Store) -> None:
    """A server that looked at the old file and opened the new one: the head of one, the beginning of the other."""
    backend = script.open()
    store.files["/dav/x/a"] = b"old"
    assert backend.get("a", max_bytes=9) == b"old"
    mixed = [Answer(200, b"new", {"ETag": '"of the old one"'})]
    store.files["/dav/x/a"] = b"newer"
    store.overlay = lambda asked: mixed.pop() if mixed and asked.method == "GET" else None
    assert backend.get("a", max_bytes=9) == b"newer"


def test_what_has_not_changed_lately_is_read_by_one_request(script: Script, store: Store) -> None:
    old = {"Last-Modified": email.utils.formatdate(time.time() - 60, usegmt=True)}
    script.answer = lambda _: Answer(200, b"1", old)
    backend = script.open()
    for _ in range(3):
        assert backend.get("a", max_bytes=9) == b"1"
    assert script.methods == ["GET"] * 3


# Lists.

NAMES = (Listed("a", 3), Listed("d", None))


@pytest.mark.parametrize(
    "shown",
    [
        "/dav/x/{}",
        "http://127.0.0.1/dav/x/{}",
        "https://elsewhere.example:8443/dav/x/{}",
        "/d%61v/%78/{}",
        "/proxied/under/another/{}",
    ],
)
def test_forms_of_addresses_in_a_list(script: Script, shown: str) -> None:
    names = [("", None), ("a", b"123"), ("d/", None), ("%62", None), ("A", b"1"), ("e%2Ff", b"1"), ("g/h", b"1")]
    names += [(".tmp-1", b"1"), ("", b""), ("%2e%2e", b"1")]
    script.answer = lambda _: multistatus(*(entry(shown.format(name), data) for name, data in names))
    assert script.open().list("") == (NAMES[0], Listed("b", None), NAMES[1])


def test_an_empty_list(script: Script) -> None:
    script.answer = lambda _: multistatus(entry("/dav/x/", None))
    assert script.open().list("") == ()
    script.answer = lambda _: multistatus()
    assert script.open().list("") == ()


def test_a_list_with_other_prefixes_and_refused_properties(script: Script) -> None:
    body = """<?xml version="1.0"?><D:multistatus xmlns:D="DAV:" xmlns:x="other:">
    <D:response><D:href>/dav/x/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop>
    <D:status>HTTP/1.1 200 OK</D:status></D:propstat>
    <D:propstat><D:prop><D:getcontentlength/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
    </D:response><D:response><D:href>
      /dav/x/a
    </D:href><D:propstat><D:prop><x:getcontentlength>9</x:getcontentlength>
    <D:getcontentlength>3</D:getcontentlength><D:resourcetype/></D:prop>
    <D:status>HTTP/1.1 200 OK</D:status></D:propstat>
    <D:propstat><D:prop><D:getcontentlength>7</D:getcontentlength></D:prop>
    <D:status>HTTP/1.1 403 No</D:status></D:propstat></D:response>
    <D:response><D:href>/dav/x/gone</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response></D:multistatus>"""
    script.answer = lambda _: Answer(207, body.encode())
    assert script.open().list("") == (Listed("a", 3),)


HOSTILE = {
    "not XML": Answer(207, b"\0\1\2 hunter2"),
    "cut off": Answer(207, b'<multistatus xmlns="DAV:"><response>'),
    "another document": Answer(207, b"<html><body>hunter2</body></html>"),
    "no namespace": Answer(207, b"<multistatus></multistatus>"),
    "entities": multistatus(
        entry("/dav/x/&b;", b""), head='<!DOCTYPE m [<!ENTITY a "hahaha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    ),
    "a file of this machine": multistatus(
        entry("/dav/x/&b;", b""), head='<!DOCTYPE m [<!ENTITY b SYSTEM "file:///etc/passwd">]>'
    ),
    "a document type": multistatus(head="<!DOCTYPE m>"),
    "an endless name": multistatus(entry("/dav/x/" + "a" * (1 << 20), b"")),
    "too deep": Answer(207, b'<multistatus xmlns="DAV:">' + b"<a>" * 10_000),
    "an encoding nobody knows": Answer(207, b'<?xml version="1.0" encoding="klingon"?><multistatus xmlns="DAV:"/>'),
    "nothing": Answer(207, b""),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_lists(script: Script, answer: Answer) -> None:
    script.answer = lambda _: answer
    for call in (CALLS["list"], CALLS["space"]):
        with pytest.raises(UnreachableError, match="not the WebDAV server") as caught:
            call(script.open())
        assert PASSWORD not in str(caught.value)


def test_an_endless_list_is_cut(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webdav_folder, "_LIST_BYTES_MAX", 1 << 16)
    script.answer = lambda _: multistatus(*(entry(f"/dav/x/{n}", b"") for n in range(2000)))
    with pytest.raises(UnreachableError):
        script.open().list("")


# Space.


@pytest.mark.parametrize(
    ("free", "used", "expected"),
    [
        ("1000", "500", Space(1000, 1500)),
        ("0", "500", Space(0, 500)),
        ("1000", None, Space(1000, None)),
        ("-3", "500", Space(None, None)),  # Nextcloud: no limit
        ("-2", "500", Space(None, None)),
        ("-1", "-1", Space(None, None)),
        (None, "500", Space(None, None)),
        ("", "", Space(None, None)),
        ("1e9", "x", Space(None, None)),
        ("9" * 40, "1", Space(None, None)),
    ],
)
def test_space(script: Script, free: str | None, used: str | None, expected: Space) -> None:
    props = "".join(
        f"<{name}>{value}</{name}>"
        for name, value in (("quota-available-bytes", free), ("quota-used-bytes", used))
        if value is not None
    )
    script.answer = lambda _: multistatus(
        f"<response><href>/dav/x/</href><propstat><prop>{props}</prop>"
        "<status>HTTP/1.1 200 OK</status></propstat></response>"
    )
    assert script.open().space() == expected


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
    from metasync.backends._registry import open_backend, parse_url

    with pytest.raises(UnreachableError, match="TLS") as caught:
        open_backend(parse_url(f"webdav://anna@127.0.0.1:{script.port}/dav")).list("")
    assert "webdav+http://" in caught.value.next_step


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies(script: Script, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    from metasync.backends._registry import open_backend, parse_url

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


def test_nobody_listens() -> None:
    from metasync.backends._registry import open_backend, parse_url

    backend = open_backend(parse_url("webdav+http://anna@127.0.0.1:9/dav"))
    for call in CALLS.values():
        with pytest.raises(UnreachableError, match="refused") as caught:
            call(backend)
        assert caught.value.retryable


def test_a_server_that_hangs(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.backends import _webdav_http

    monkeypatch.setattr(_webdav_http, "SMALL_TIMEOUT_S", 0.2)
    over = threading.Event()
    script.answer = lambda _: Answer(200 + over.wait(5))
    with pytest.raises(UnreachableError, match="in time"):
        script.open().stat("a")
    over.set()


def test_a_body_that_drips(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.backends import _webdav_http

    clock = iter(range(0, 1_000_000, 70))
    monkeypatch.setattr(_webdav_http, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    script.answer = lambda _: Answer(200, bytes(1 << 20))
    with pytest.raises(UnreachableError, match="in time"):
        script.open().get("a", max_bytes=1 << 17, length=1 << 17)


def test_closed(script: Script) -> None:
    backend = script.open()
    backend.close()
    backend.close()
    with pytest.raises(AssertionError):
        backend.put("a", b"")
