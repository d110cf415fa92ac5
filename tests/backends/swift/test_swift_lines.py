"""Tokens and connections of the Swift backend: what ends, breaks, is slow, or is not trusted."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import traceback
from pathlib import Path

import pytest
from http_kit import Answer, gets_in_two_processes, make_certificate
from swift_fake import CALLS, KEY, META, NOT_FOUND, PAGE, TOKEN, TRANS, Fake, Request, opened, serving, stored

from metasync.backends import swift as swift_module
from metasync.backends._shared import wire
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.swift import SwiftBackend
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

pytestmark = pytest.mark.usefixtures("environment")


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
        refused.wait(60)
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
    """No error quotes them."""
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
    """A pack may take longer than a connection may take to come about."""
    monkeypatch.setattr(wire, "CONNECT_TIMEOUT_S", 0.2)
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
    monkeypatch.setattr(wire, "_IDLE_S", 0.0)
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
        thread.join(60)
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
    fake.answer = lambda _: (over.wait(60), Answer())[1]
    with pytest.raises(UnreachableError, match="no answer in time"):
        opened(fake).get("a", max_bytes=9)
    over.set()


def test_a_process_that_forks_has_its_own_connections(fake: Fake) -> None:
    fake.answer = lambda request: Answer(200, request.path[-1:].encode(), META)
    assert gets_in_two_processes(f"swift://bucket/x?auth={fake.root}/auth/v1.0") == ""


def test_a_body_that_drips(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_module, "timeout_s", lambda _: 0.3)
    fake.answer = lambda _: Answer(200, bytes(60), META, drip_s=0.05)
    with pytest.raises(UnreachableError, match="no answer in time"):
        opened(fake).get("a", max_bytes=60)


@pytest.mark.parametrize("status", [b"102 Processing", b"103 Early Hints"])
def test_no_answer_is_read_as_that_to_another_request(fake: Fake, status: bytes) -> None:
    """http.client takes what comes ahead of an answer for the answer, which is then the next request's."""
    fake.answer = lambda _: Answer(404, NOT_FOUND, TRANS, before=b"HTTP/1.1 " + status + b"\r\n\r\n")
    backend = opened(fake)
    with pytest.raises(UnreachableError, match="the connection broke"):
        backend.get("a", max_bytes=9)
    fake.answer = lambda _: Answer(200, b"1", META)
    before = fake.connections
    assert backend.get("a", max_bytes=9) == b"1"
    assert fake.connections == before + 1


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    with serving(certificate) as fake:
        fake.answer = stored
        with pytest.raises(UnreachableError, match="certificate was not accepted") as caught:
            opened(fake).put("a", b"1")
        assert "OS_CACERT" in caught.value.next_step
        assert fake.logins == []
        monkeypatch.setenv("OS_CACERT", certificate[0])
        opened(fake).put("a", b"1")
        fake.log_in = lambda _: Answer(200, b"", {"X-Storage-Url": "http://127.0.0.1:9/v1/a", "X-Auth-Token": "t"})
        with pytest.raises(RefusedError, match="without TLS"):
            opened(fake).put("a", b"1")
    monkeypatch.setenv("OS_CACERT", str(tmp_path / "missing.pem"))
    with pytest.raises(RefusedError, match=r"missing\.pem"):
        opened(fake)


@pytest.mark.parametrize(("first_day", "why"), [(1, "not valid yet, if this machine's clock"), (-20, "has expired")])
def test_a_clock_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_day: int, why: str) -> None:
    certificate = make_certificate(tmp_path, days_from=first_day, days_to=first_day + 10)
    monkeypatch.setenv("OS_CACERT", certificate[0])
    with serving(certificate) as fake:
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
