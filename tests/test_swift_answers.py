"""What the Swift backend makes of the answers that a sound cluster does not give; a small server here gives them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from swift_fake import CONTAINER, KEY, META, NOT_FOUND, PAGE, TOKEN, TRANS, Answer, Fake, Request, certificate, serving

from metasync.backends import _swift_http
from metasync.backends import swift as swift_module
from metasync.backends._base import Space
from metasync.backends._registry import open_backend, parse_url
from metasync.backends.swift import SwiftBackend
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError

pytest.importorskip("swiftclient")

CALLS: dict[str, Callable[[SwiftBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "create large": lambda b: b.create("d/new", bytes(1 << 20)),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "get nothing": lambda b: b.get("d/a", length=0, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "delete": lambda b: b.delete("d/b"),
    "space": lambda b: b.space(),
}
ON_OBJECTS = {name: call for name, call in CALLS.items() if name not in ("list", "space")}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OS_", "ST_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("ST_USER", "test:tester")
    monkeypatch.setenv("ST_KEY", KEY)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as fake:
        yield fake


def opened(fake: Fake, place: str = "bucket/x") -> SwiftBackend:
    backend = open_backend(parse_url(f"swift://{place}?auth={fake.root}/auth/v1.0"))
    assert isinstance(backend, SwiftBackend)
    return backend


def stored(request: Request) -> Answer:
    """The answer of a Swift that takes everything and has nothing else."""
    if request.method == "PUT":
        return Answer(201, b"", {**TRANS, "ETag": hashlib.md5(request.body).hexdigest()})
    if request.method == "DELETE":
        return Answer(204, b"", TRANS)
    return Answer(404, NOT_FOUND, {**TRANS, "Content-Type": "text/html; charset=UTF-8"})


ANSWERS: list[tuple[int, bytes, type[BackendError], bool]] = [
    (301, PAGE, UnreachableError, True),
    (307, b"", UnreachableError, True),
    (400, PAGE, BackendError, False),
    (403, PAGE, RefusedError, False),
    (404, NOT_FOUND, UnreachableError, True),  # without the head of a Swift
    (407, PAGE, UnreachableError, True),
    (408, b"", BackendError, True),
    (409, b"", BackendError, True),
    (413, b"<html><h1>Request Entity Too Large</h1><p>Upload exceeds quota.</p></html>", FullError, False),
    (413, b"<html>Your request is too large.</html>", RefusedError, False),
    (422, b"", BackendError, True),
    (429, b"", BackendError, True),
    (498, b"Slow down", BackendError, True),
    (500, PAGE, BackendError, True),
    (502, PAGE, BackendError, True),
    (503, PAGE, BackendError, True),
    (504, PAGE, BackendError, True),
    (507, b"", FullError, False),
]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("status", "body", "expected", "retryable"), ANSWERS)
def test_refusals(
    fake: Fake, kind: str, status: int, body: bytes, expected: type[BackendError], retryable: bool
) -> None:
    if expected is FullError and status == 413 and kind in ("get nothing", "stat", "digest", "space"):
        expected = RefusedError  # the answer to a HEAD has no body to read the word in
    fake.answer = lambda request: Answer(status, body, {"Content-Type": "text/html", "Location": "/elsewhere"})
    with pytest.raises(BackendError) as caught:
        CALLS[kind](opened(fake))
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert "bucket/x" in caught.value.message
    assert "hunter2" not in str(caught.value)
    assert "sign in" not in str(caught.value)
    # Of a large create that broke off it is asked whether it is there; of space, container and account.
    assert len(fake.asked) <= 2
    assert len(fake.logins) == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    ("status", "said", "after_s"),
    [
        (429, None, 1.0),
        (498, None, 1.0),
        (429, "7", 7.0),
        (498, "0", 0.0),
        (503, "30", 30.0),
        (503, None, None),
        (503, "soon", None),
        (500, None, None),
    ],
)
def test_a_server_that_asks_for_fewer_requests(
    fake: Fake, call: Callable, status: int, said: str | None, after_s: float | None
) -> None:
    fake.answer = lambda _: Answer(status, b"", {**TRANS, **({"Retry-After": said} if said else {})})
    with pytest.raises(BackendError) as caught:
        call(opened(fake))
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)


# What is not there.


def test_not_found(fake: Fake) -> None:
    """Said when the container is there; that is looked for once, and not again for a while."""
    fake.answer = lambda request: Answer(204, b"", CONTAINER) if request.path == "/bucket" else stored(request)
    backend = opened(fake)
    for kind in ("get", "get part", "get nothing", "stat", "digest"):
        with pytest.raises(NotFoundError):
            CALLS[kind](backend)
    CALLS["delete"](backend)
    assert [r.path for r in fake.asked].count("/bucket") == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_container_that_is_not_there(fake: Fake, call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "":  # the account
            return Answer(204, b"", TRANS)
        return Answer(204, b"", TRANS) if request.method == "DELETE" and gone == [] else Answer(404, NOT_FOUND, TRANS)

    gone = [True]
    fake.answer = answer
    with pytest.raises(UnreachableError, match="no container 'bucket'"):
        call(opened(fake))
    backend = opened(fake)
    backend._seen_at = time.monotonic() - 10
    with pytest.raises(UnreachableError, match="no container 'bucket'"):
        call(backend)


@pytest.mark.parametrize("call", ON_OBJECTS.values(), ids=ON_OBJECTS.keys())
def test_a_container_that_cannot_be_looked_for(fake: Fake, call: Callable) -> None:
    fake.answer = lambda request: Answer(503, b"", TRANS) if request.path == "/bucket" else Answer(404, b"", TRANS)
    with pytest.raises(BackendError) as caught:
        call(opened(fake))
    assert not isinstance(caught.value, NotFoundError)
    assert caught.value.retryable


@pytest.mark.parametrize("kind", ["get", "get part", "get nothing", "stat", "digest", "delete"])
@pytest.mark.parametrize(
    "container", [Answer(200, PAGE, {"Content-Type": "text/html"}), Answer(200), Answer(404, PAGE)]
)
def test_a_404_that_is_not_swifts(fake: Fake, kind: str, container: Answer) -> None:
    fake.answer = lambda request: container if request.path == "/bucket" else Answer(404, PAGE)
    with pytest.raises(UnreachableError, match="not the Swift server"):
        CALLS[kind](opened(fake))
    fake.answer = lambda request: container if request.path == "/bucket" else Answer(404, PAGE, TRANS)
    with pytest.raises(UnreachableError):
        CALLS[kind](opened(fake))


# Answers that are none.


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_login_page_for_everything(fake: Fake, call: Callable) -> None:
    """Nothing in it may pass for data, for a write, or for nothing."""
    fake.answer = lambda _: Answer(200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(UnreachableError) as caught:
        call(opened(fake))
    assert "not the Swift server" in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"", META),
        Answer(201, b"", TRANS),
        Answer(201, b"", {**TRANS, "ETag": "0" * 32}),
        Answer(202, b"", {**TRANS, "ETag": hashlib.md5(b"x").hexdigest()}),
        Answer(204, b"", TRANS),
    ],
)
@pytest.mark.parametrize("kind", ["put", "create"])
def test_a_success_that_may_be_none(fake: Fake, kind: str, answer: Answer) -> None:
    fake.answer = lambda _: answer
    with pytest.raises(BackendError) as caught:
        CALLS[kind](opened(fake))
    assert caught.value.retryable
    assert ("newer" in caught.value.message) is (answer.status == 202)


def test_no_redirect_is_followed(fake: Fake) -> None:
    """requests would go there with the token in the head, and swiftclient lets it."""
    with serving() as thief:
        thief.answer = thief.log_in = lambda _: Answer(200, b"", META)
        fake.answer = lambda _: Answer(302, PAGE, {"Location": f"{thief.root}/v1/AUTH_test/bucket/x"})
        for call in CALLS.values():
            with pytest.raises(UnreachableError, match="leads elsewhere"):
                call(opened(fake))
        fake.log_in = lambda _: Answer(302, PAGE, {"Location": f"{thief.root}/auth/v1.0"})
        with pytest.raises(UnreachableError, match="cannot log in"):
            opened(fake).stat("a")
        assert thief.asked == thief.logins == []
        assert thief.connections == 0


def test_an_answer_cut_short(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"half", META, length=8)
    with pytest.raises(UnreachableError):
        opened(fake).get("d/a", max_bytes=9)


def test_an_object_too_large_is_refused_by_its_head(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"", META, length=1 << 40)
    with pytest.raises(RefusedError, match="at most 9"):
        opened(fake).get("d/a", max_bytes=9)


@pytest.mark.parametrize("claim", ["bytes 0-8/9", "bytes 0-9/1000", "bytes 5-14/1000", "bytes */9", "", "bytes 9-0/9"])
def test_a_part_that_is_another(fake: Fake, claim: str) -> None:
    fake.answer = lambda _: Answer(206, b"z" * (1 << 20), {**META, "Content-Range": claim})
    with pytest.raises(BackendError, match="another part"):
        opened(fake).get("d/a", offset=1, length=9, max_bytes=9)


def test_a_server_that_ignores_the_range(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"0123456789", META)
    with pytest.raises(BackendError, match="another part"):
        opened(fake).get("d/a", offset=1, length=3, max_bytes=9)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("status", [200, 201, 206, 302, 401, 403, 404, 412, 500])
def test_bodies_without_an_end_are_not_read(fake: Fake, call: Callable, status: int) -> None:
    """Whatever the status: some megabytes at the most are taken, and the call ends."""
    fake.answer = lambda _: Answer(status, b"[" * (1 << 16), {**META, "Location": "/elsewhere"}, endless=True)
    try:
        call(opened(fake))
    except BackendError as error:
        assert not isinstance(error, NotFoundError)
    assert fake.sent_bytes < 64 << 20


def test_a_login_without_an_end_is_not_read(fake: Fake) -> None:
    fake.log_in = lambda _: Answer(401, b"[" * (1 << 16), endless=True)
    with pytest.raises(RefusedError):
        opened(fake).stat("a")
    assert fake.sent_bytes < 64 << 20


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[1]", b'[{"name": "x/d/a"}]', b"null", b"[" * 100_000, b"\xff\xfe", b'[{"name":"x/d/a","bytes":"many"}]'],
)
def test_a_listing_that_is_none(fake: Fake, body: bytes) -> None:
    fake.answer = lambda _: Answer(200, body, {**TRANS, "Content-Type": "application/json"})
    with pytest.raises(UnreachableError, match="no listing"):
        opened(fake).list("d")


def test_a_listing_that_goes_in_a_circle(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_module, "_PAGE_NAMES", 2)
    rows = json.dumps([{"name": "x/d/a", "bytes": 1}, {"name": "x/d/b", "bytes": 2}]).encode()
    fake.answer = lambda _: Answer(200, rows, TRANS)
    assert [e.name for e in opened(fake).list("d")] == ["a", "b"]
    assert len(fake.asked) == 2


def test_names_that_are_not_ours_are_left_out(fake: Fake) -> None:
    rows = [{"name": n, "bytes": 1} for n in ("x/d/a", "x/d/B", "x/d/..", "x/d/", "y/d/c", "x/d/.tmp-1", "x/da")]
    fake.answer = lambda _: Answer(200, json.dumps([*rows, {"subdir": "x/d/e/"}]).encode(), TRANS)
    assert opened(fake).list("d") == (("a", 1), ("e", None))


# Tokens.


def test_a_token_that_ended_is_got_anew_once(fake: Fake) -> None:
    good = [fake.token(2)]
    fake.answer = lambda r: stored(r) if r.headers["X-Auth-Token"] in good else Answer(401, b"", TRANS)
    backend = opened(fake)
    backend.put("a", b"1")
    assert (len(fake.logins), fake.methods()) == (2, ["PUT", "PUT"])
    backend.put("b", b"2")
    assert len(fake.logins) == 2
    good[:] = []
    for call in CALLS.values():
        before = len(fake.asked), len(fake.logins)
        with pytest.raises(RefusedError, match="ST_USER and ST_KEY") as caught:
            call(backend)
        assert len(fake.logins) == before[1] + 1
        assert len(fake.asked) <= before[0] + 2
        assert not caught.value.retryable


def test_many_threads_get_one_token(fake: Fake) -> None:
    good = [fake.token(1)]
    refused = threading.Barrier(12)

    def answer(request: Request) -> Answer:
        if request.headers["X-Auth-Token"] in good:
            return stored(request)
        refused.wait(10)
        return Answer(401, b"", TRANS)

    fake.answer = answer
    backend = opened(fake)
    backend.put("a", b"1")
    good[:] = [fake.token(2)]
    threads = [threading.Thread(target=backend.put, args=(f"t{i}", b"1")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.logins) == 2
    assert len([r for r in fake.asked if r.headers["X-Auth-Token"] == fake.token(2)]) == 12


def test_no_secret_in_any_text(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    heard = []
    for status in (200, 301, 400, 401, 403, 404, 413, 500, 503):
        fake.answer = lambda _, status=status: Answer(status, f"{KEY} {TOKEN}".encode(), TRANS)  # type: ignore[misc]
        backend = opened(fake)
        for call in CALLS.values():
            try:
                call(backend)
            except BackendError as error:
                heard += [*traceback.format_exception(error), repr(error), repr(backend), repr(backend._tokens.login)]
        heard.append(repr(backend._tokens.current()))
    fake.log_in = lambda r: Answer(200, b"", {"X-Storage-Url": r.headers["X-Auth-Key"], "X-Auth-Token": "a\tb"})
    with pytest.raises(BackendError) as caught:
        opened(fake).stat("a")
    heard += traceback.format_exception(caught.value)
    text = "".join(heard) + caplog.text
    assert "hunter2" not in text


@pytest.mark.parametrize("value", ["hunter2\r\nX-Evil: 1", "hunter2\n", " hunter2"])
def test_secrets_that_cannot_be_sent(fake: Fake, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """requests quotes them in its error."""
    monkeypatch.setenv("ST_KEY", value)
    with pytest.raises(RefusedError, match="cannot be made") as caught:
        opened(fake).stat("a")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("OS_STORAGE_URL", f"{fake.root}/v1/AUTH_test")
    monkeypatch.setenv("OS_AUTH_TOKEN", value)
    for call in CALLS.values():
        with pytest.raises(RefusedError, match="cannot be made") as caught:
            call(open_backend(parse_url("swift://bucket")))  # type: ignore[arg-type]
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert fake.asked == []


def test_a_token_that_cannot_be_sent(fake: Fake) -> None:
    fake.log_in = lambda _: Answer(200, b"", {"X-Storage-Url": f"{fake.root}/v1/AUTH_test", "X-Auth-Token": "a b"})
    with pytest.raises(UnreachableError, match="a token that is none"):
        opened(fake).stat("a")
    assert fake.asked == []


# The network.


def test_a_slow_line_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack may take longer than a connection may take to come about: urllib3 has one time-out for both."""
    monkeypatch.setattr(_swift_http, "CONNECT_TIMEOUT_S", 0.2)
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        size, took = 8 << 20, []  # the system's own buffers take some 4 MiB at once

        def slow() -> None:
            connection, _ = server.accept()
            began, left, head = time.monotonic(), size, b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(1 << 12)
            left -= len(head.partition(b"\r\n\r\n")[2])
            while left > 0:
                left -= len(connection.recv(1 << 16))
                time.sleep(0.004)
            took.append(time.monotonic() - began)
            etag = hashlib.md5(bytes(size)).hexdigest()
            connection.sendall(f"HTTP/1.1 201 C\r\nContent-Length: 0\r\nETag: {etag}\r\n\r\n".encode())
            connection.close()

        thread = threading.Thread(target=slow)
        thread.start()
        monkeypatch.setenv("OS_STORAGE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1/a")
        monkeypatch.setenv("OS_AUTH_TOKEN", TOKEN)
        backend = open_backend(parse_url("swift://bucket"))
        backend.put("a", bytes(size))
        thread.join()
        assert took[0] > 1.0


def behind(backend: SwiftBackend, fake: Fake) -> bytes:
    """A read that begins behind the end of an object."""
    before, fake.answer = fake.answer, lambda _: Answer(416, NOT_FOUND, META)
    try:
        return backend.get("a", offset=9, max_bytes=9)
    finally:
        fake.answer = before


def test_connections_are_kept_and_given_back(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answer = stored
    backend = opened(fake)
    backend._seen_at = float("inf")
    for i in range(10):
        backend.put(f"a{i}", b"1")
        assert backend.create(f"b{i}", b"1") is True
        with pytest.raises(NotFoundError):
            backend.get("c", max_bytes=1)
        with pytest.raises(NotFoundError):
            backend.stat("c")
        backend.delete("c")
        assert behind(backend, fake) == b""
    assert fake.connections == 1
    monkeypatch.setattr(_swift_http, "_IDLE_S", 0.0)
    backend.put("a", b"1")
    assert fake.connections == 2, "one that was idle for long may be gone without a word"
    backend.close()
    backend.close()
    with pytest.raises(AssertionError):
        backend.put("a", b"")


def test_a_refusal_before_the_body_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would take the rest of it for the next request."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def refuse() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                connections.append(connection)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(1)
                connection.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        monkeypatch.setenv("OS_STORAGE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1/a")
        monkeypatch.setenv("OS_AUTH_TOKEN", TOKEN)
        backend = open_backend(parse_url("swift://bucket"))
        with pytest.raises(FullError):
            backend.put("a", bytes(1 << 17))
        monkeypatch.setattr(swift_module, "timeout_s", lambda _: 2)
        with pytest.raises(FullError):
            backend.get("a", max_bytes=9)
        thread.join(5)
        assert len(connections) == 2
        for connection in connections:
            connection.close()


def test_a_server_that_nobody_can_find(monkeypatch: pytest.MonkeyPatch) -> None:
    for auth, why in (("http://nobody.invalid/v1.0", "resolved"), ("http://127.0.0.1:9/v1.0", "connection refused")):
        backend = open_backend(parse_url(f"swift://bucket?auth={auth}"))
        with pytest.raises(UnreachableError, match=why) as caught:
            backend.list("")
        assert caught.value.retryable
        assert caught.value.next_step


def test_a_server_that_says_nothing(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_module, "timeout_s", lambda _: 0.3)
    over = threading.Event()
    fake.answer = lambda _: (over.wait(5), Answer())[1]
    with pytest.raises(UnreachableError, match="no answer in time"):
        opened(fake).get("a", max_bytes=9)
    over.set()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(lambda s: context.wrap_socket(s, server_side=True), scheme="https") as fake:
        fake.answer = stored
        with pytest.raises(UnreachableError, match="certificate was not accepted") as caught:
            opened(fake).put("a", b"1")
        assert "OS_CACERT" in caught.value.next_step
        assert fake.logins == []
        monkeypatch.setenv("OS_CACERT", str(file))
        opened(fake).put("a", b"1")
        fake.log_in = lambda _: Answer(200, b"", {"X-Storage-Url": "http://127.0.0.1:9/v1/a", "X-Auth-Token": "t"})
        with pytest.raises(RefusedError, match="without TLS"):
            opened(fake).put("a", b"1")
    monkeypatch.setenv("OS_CACERT", str(tmp_path / "missing.pem"))
    with pytest.raises(RefusedError, match=r"missing\.pem"):
        opened(fake)


@pytest.mark.parametrize(("first_day", "why"), [(1, "not valid yet, if this machine's clock"), (-20, "has expired")])
def test_a_clock_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_day: int, why: str) -> None:
    file = certificate(tmp_path, first_day=first_day)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    monkeypatch.setenv("OS_CACERT", str(file))
    with serving(lambda s: context.wrap_socket(s, server_side=True), scheme="https") as fake:
        with pytest.raises(UnreachableError, match=why) as caught:
            opened(fake).put("a", b"1")
        assert "clock" in caught.value.next_step


def test_a_server_without_tls(fake: Fake) -> None:
    backend = open_backend(parse_url(f"swift://bucket?auth=https://127.0.0.1:{fake.port}/auth/v1.0"))
    with pytest.raises(UnreachableError, match="does not speak TLS"):
        backend.stat("a")


def test_a_proxy(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:hunter2@127.0.0.1:9")
    with pytest.raises(UnreachableError, match="proxy") as caught:
        opened(fake).stat("a")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("http_proxy", fake.root)  # it answers for everybody
    fake.log_in = lambda _: Answer(407, PAGE)
    backend = open_backend(parse_url("swift://bucket?auth=http://auth.example.org/v1.0"))
    with pytest.raises(UnreachableError, match="proxy asks for a login"):
        backend.stat("a")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fake.log_in, fake.answer = None, stored
    opened(fake).put("a", b"1")


# What is asked, and what is made of it.


def test_what_is_asked(fake: Fake) -> None:
    fake.answer = lambda r: Answer(200, b"" if r.method == "HEAD" else b"[]", {**META, **CONTAINER}, length=2)
    for kind in ("get", "stat", "digest", "list", "space"):
        CALLS[kind](opened(fake))
    assert {r.method for r in fake.asked} == {"GET", "HEAD"}
    assert all(r.headers["X-Newest"] == "true" for r in fake.asked)
    fake.answer = stored
    opened(fake).put("a", b"x")
    assert fake.asked[-1].headers["ETag"] == hashlib.md5(b"x").hexdigest()
    assert "If-None-Match" not in fake.asked[-1].headers
    assert opened(fake).create("a", b"x") is True
    assert fake.asked[-1].headers["If-None-Match"] == "*"
    assert fake.asked[-1].path == "/bucket/x/a"
    opened(fake, "my%20bucket%3F/with space").put("a", b"x")
    assert fake.asked[-1].path == "/my%20bucket%3F/with%20space/a"


def test_taken(fake: Fake) -> None:
    fake.answer = lambda _: Answer(412, b"", TRANS)
    assert opened(fake).create("a", b"x") is False
    with pytest.raises(BackendError):
        opened(fake).put("a", b"x")


def test_a_large_create_that_breaks_off(fake: Fake) -> None:
    """The server said "taken" and closed before it had read all, and nobody heard it."""
    fake.answer = lambda r: Answer(200, b"", META, length=5) if r.method == "HEAD" else Answer(302)
    assert opened(fake).create("a", bytes(1 << 20)) is False
    with pytest.raises(UnreachableError):
        opened(fake).create("a", b"small")


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555"}, "9a0364b9e99bb480dd25e1f0284c8555"),
        ({"ETag": '"9a0364b9e99bb480dd25e1f0284c8555"', "X-Static-Large-Object": "True"}, None),
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555", "X-Object-Manifest": "c/p"}, None),
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555-2"}, None),
        ({"ETag": "9A0364B9E99BB480DD25E1F0284C8555"}, None),
        ({}, None),
    ],
)
def test_digests(fake: Fake, headers: dict[str, str], value: str | None) -> None:
    fake.answer = lambda _: Answer(200, b"", {**TRANS, "X-Timestamp": "1.0", **headers}, length=7)
    found = opened(fake).digest("a")
    assert (found.size, found.value) == (7, bytes.fromhex(value) if value else None)


@pytest.mark.parametrize(
    ("account", "container", "space"),
    [
        ({}, {}, Space(None, None)),
        ({"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "4"}, {}, Space(6, 10)),
        ({"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "14"}, {}, Space(0, 10)),
        (
            {"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "4"},
            {"X-Container-Meta-Quota-Bytes": "5", "X-Container-Bytes-Used": "0"},
            Space(5, 5),
        ),
        ({"X-Account-Meta-Quota-Bytes": "-1", "X-Account-Bytes-Used": "4"}, {}, Space(None, None)),
        ({"X-Account-Meta-Quota-Bytes": "many", "X-Account-Bytes-Used": "4"}, {}, Space(None, None)),
    ],
)
def test_space(fake: Fake, account: dict[str, str], container: dict[str, str], space: Space) -> None:
    fake.answer = lambda r: Answer(204, b"", {**TRANS, **(container if r.path == "/bucket" else account)})
    assert opened(fake).space() == space
    refused = Answer(403, b"", TRANS)
    fake.answer = lambda r: Answer(204, b"", {**TRANS, **container}) if r.path == "/bucket" else refused
    assert opened(fake).space() == (Space(5, 5) if container else Space(None, None))


class Store:
    """A Swift with a flaw."""

    def __init__(self, *, stale: int = 0, conditions: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self.stale = stale  # so many reads of what was written do not see it
        self.conditions = conditions
        self.lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            path = request.path
            if path == "/bucket":
                return Answer(204, b"", CONTAINER)
            if request.method == "PUT":
                if self.conditions and request.headers.get("If-None-Match") and path in self.objects:
                    return Answer(412, b"", TRANS)
                self.objects[path] = request.body
            elif request.method == "DELETE":
                self.objects.pop(path, None)
            elif path in self.objects:
                self.stale -= 1
                if self.stale < 0:
                    return Answer(200, self.objects[path], META)
            return stored(request)


def test_probe(fake: Fake) -> None:
    for store, form in (
        (Store(), "block"),
        (Store(stale=1), "none"),
        (Store(conditions=False), "none"),
    ):
        fake.answer = store.answer
        assert opened(fake).probe() == form
        assert store.objects == {}
    fake.answer = lambda _: Answer(503)
    with pytest.raises(BackendError):
        opened(fake).probe()


def test_form(fake: Fake) -> None:
    backend = opened(fake)
    assert backend.form == "block"
    assert "first" in backend.form_reason


def test_identity(fake: Fake) -> None:
    """Which account it is, only the server knows: the same container of another account is another store."""

    def of(place: str, account: str = "AUTH_test", host: str = "Store.example.org") -> bytes:
        head = {"X-Storage-Url": f"https://{host}/v1/{account}/", "X-Auth-Token": "t"}
        fake.log_in = lambda _: Answer(200, b"", head)
        return opened(fake, place).identity()

    assert of("bucket/a") == of("bucket/a/", host="store.example.org")
    others = {
        of("bucket/a"),
        of("bucket/b"),
        of("bucket"),
        of("b/a"),
        of("bucket/a", "AUTH_2"),
        of("bucket/a", host="h"),
    }
    assert len(others) == 6
    assert of("bucket/a")[:16] == of("bucket/a", "AUTH_2")[:16] != of("bucket/a", host="h")[:16]
    assert fake.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "swift:///prefix",
        "swift://c/a/../b",
        "swift://c/%00",
        "swift://c/a//b",
        f"swift://{'c' * 257}/a",
        f"swift://c/{'p' * 257}",
        "swift://../a",
        "swift://c%0aX-Evil:1/a",
        "swift://a%2Fb/c",
        "swift://c?auth=ftp://host/v3",
        "swift://c?auth=https://user:hunter2@host/v3",
        "swift://c?auth=https://host/v3%0d%0aX:1",
        "swift://c?auth=https://host/v3%3Fkey=1",
        "swift://c?auth=nonsense",
        "swift://c?region=%0a",
        "swift://c?password=hunter2",
        "swift://user:hunter2@c/p",
        "swift://c?reigon=x",
    ],
)
def test_urls_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)


def test_urls() -> None:
    url = parse_url("swift://My.Container 1/pre/fix?region=GRA&auth=https://auth.example.org/v3&user=me&capacity=5GB")
    assert parse_url(url.location) == parse_url(url.location)
    assert (url.host, url.path) == ("My.Container 1", "/pre/fix")
    assert url.capacity_bytes == 5 * 10**9


def test_what_to_install(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swiftclient", None)
    with pytest.raises(UsageError, match=r"pip install 'metasync\[swift\]'"):
        opened(fake)


def test_nothing_is_imported_before_it_is_opened() -> None:
    code = "import sys; from metasync.backends._registry import parse_url; parse_url('swift://c/p');"
    code += (
        "print([m for m in ('requests', 'urllib3', 'swiftclient', 'keystoneclient', 'keyring') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
