"""`metasync.backends._shared.wire`: connections that are opened ahead of the requests that will want them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_kit import Answer, Handler, listening

from metasync.backends._shared import wire as wire_module
from metasync.backends._shared.wire import Wire
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.wrapper import Wrapper, dial
from metasync.errors import UnreachableError

HUNG_S = 60.0
AHEAD = 3


class Server:
    """What a server saw: how many connections, and requests on each."""

    def __init__(self) -> None:
        self.lines: dict[Any, int] = {}
        self.lock = threading.Condition()
        seen = self

        class Seeing(Handler):
            def setup(self) -> None:
                with seen.lock:
                    seen.lines[self.client_address] = 0
                    seen.lock.notify_all()
                super().setup()

            def respond(self, _: bytes) -> Answer:
                with seen.lock:
                    seen.lines[self.client_address] += 1
                return Answer(body=b"yes")

        self.handler = Seeing

    def met(self, count: int) -> bool:
        """Whether it meets so many connections: each in a thread, which may be later than who opened it."""
        with self.lock:
            return self.lock.wait_for(lambda: len(self.lines) >= count, HUNG_S)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with listening(server.handler) as port:
        yield f"http://127.0.0.1:{port}"


def ask(wire: Wire) -> bytes:
    return wire.ask("GET", "/", {}, b"", "cannot ask").body


def dialled(wire: Wire) -> None:
    """Waits until all that is opened ahead is there."""
    with wire._lock:
        assert wire._lock.wait_for(lambda: wire._dials == 0, HUNG_S)


def test_requests_take_what_was_opened_ahead(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(url, ahead=AHEAD)
    wire.dial()
    wire.dial()
    dialled(wire)
    monkeypatch.setattr(wire, "_connect", lambda: pytest.fail("another one"))
    with ThreadPoolExecutor(AHEAD) as pool:
        assert set(pool.map(lambda _: ask(wire), range(4 * AHEAD))) == {b"yes"}
    assert server.met(AHEAD)
    wire.close()
    assert len(server.lines) == AHEAD, "they were opened once"
    assert sum(server.lines.values()) == 4 * AHEAD


def test_the_first_request_opens_the_others_too(server: Server, url: str) -> None:
    wire = Wire(url, ahead=AHEAD)
    assert ask(wire) == b"yes"
    dialled(wire)
    assert len(wire._idle) == AHEAD
    assert server.met(AHEAD)
    wire.close()
    assert len(server.lines) == AHEAD


def test_one_that_is_to_open_none_ahead_opens_what_it_needs(server: Server, url: str) -> None:
    wire = Wire(url)
    wire.dial()
    assert ask(wire) == ask(wire) == b"yes"
    wire.close()
    assert list(server.lines.values()) == [2]


def test_more_requests_than_were_foreseen_open_their_own(server: Server, url: str) -> None:
    wire, together = Wire(url, ahead=1), threading.Barrier(4)

    def asking(_: int) -> bytes:
        together.wait(HUNG_S)
        with wire.exchange("GET", "/", {}, b"", "cannot ask") as reply:
            together.wait(HUNG_S)  # all are under way at once
            return reply.read(3)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(asking, range(4))) == [b"yes"] * 4
    wire.close()
    assert len(server.lines) == 4


def test_where_nobody_listens_a_request_says_so_after_one_try() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        wire = Wire(f"http://127.0.0.1:{closed.getsockname()[1]}", ahead=AHEAD)
        tries, really = [], wire._connect

        def connect() -> Any:
            tries.append(threading.current_thread().name)
            return really()

        wire._connect = connect  # type: ignore[method-assign]
        with pytest.raises(UnreachableError, match="connection refused"):
            ask(wire)
        dialled(wire)
        assert len(tries) <= AHEAD + 1
        with pytest.raises(UnreachableError, match="connection refused"):
            ask(wire)
        wire.close()


def test_who_waits_hears_why_none_came(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, gate = Wire("http://127.0.0.1:9", ahead=1), threading.Event()

    def fails() -> Any:
        assert threading.current_thread().name == "metasync-dial", "no try of its own, which would take as long"
        assert gate.wait(HUNG_S)
        raise TimeoutError("timed out")

    monkeypatch.setattr(wire, "_connect", fails)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, wire)
        with wire._lock:
            while not wire._waiting:
                wire._lock.wait(0.01)
        gate.set()
        with pytest.raises(UnreachableError, match="no answer in time"):
            asked.result(HUNG_S)


def test_who_waits_opens_its_own_where_a_server_takes_few_at_once(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed beside one that came says nothing of the server."""
    wire, gate, tries = Wire(url, ahead=2), threading.Event(), []
    really = wire._connect

    def connect() -> Any:
        if threading.current_thread().name == "metasync-dial":
            tries.append(1)
            if len(tries) > 1:
                assert gate.wait(HUNG_S)
                raise ConnectionResetError
        return really()

    monkeypatch.setattr(wire, "_connect", connect)
    with ThreadPoolExecutor(1) as pool, wire.exchange("GET", "/", {}, b"", "cannot ask") as reply:
        asked = pool.submit(ask, wire)
        with wire._lock:
            while not wire._waiting:
                wire._lock.wait(0.01)
        gate.set()
        assert asked.result(HUNG_S) == b"yes"
        assert reply.read(3) == b"yes"
    wire.close()


def test_what_comes_after_the_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, gate = Wire("http://127.0.0.1:9", ahead=1), threading.Event()
    here, there = socket.socketpair()

    def late() -> Any:
        assert gate.wait(HUNG_S)
        return here

    monkeypatch.setattr(wire, "_connect", late)
    with ThreadPoolExecutor(1) as pool, there:
        asked = pool.submit(ask, wire)
        with wire._lock:
            while not wire._waiting:
                wire._lock.wait(0.01)
        wire.close()
        with pytest.raises(UnreachableError):
            asked.result(HUNG_S)
        gate.set()
        dialled(wire)
        assert there.recv(1) == b""


def test_a_process_that_was_forked_dials_anew(server: Server, url: str) -> None:
    wire = Wire(url, ahead=AHEAD)
    ask(wire)
    dialled(wire)
    assert server.met(AHEAD)
    before = len(server.lines)
    if not (child := os.fork()):
        os._exit(ask(wire) != b"yes")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(wire) == b"yes"
    wire.close()
    assert len(server.lines) > before, "the child has its own"


def test_certificates_are_read_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made, began = [], threading.Barrier(AHEAD)

    def make(*_: Any, **__: Any) -> Any:
        made.append(1)
        threading.Event().wait(0.05)  # time for others to come
        return object()

    monkeypatch.setattr(wire_module.ssl, "create_default_context", make)
    wire_module._made_context.cache_clear()
    with ThreadPoolExecutor(AHEAD) as pool:

        def ask_for_it(_: int) -> object:
            began.wait(HUNG_S)
            return wire_module._context("/etc/hostname", "", "")

        contexts = set(pool.map(ask_for_it, range(AHEAD)))
    wire_module._made_context.cache_clear()
    assert len(contexts) == len(made) == 1


def test_a_store_is_told_through_its_wrappers(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    store = open_backend(parse_url(f"s3://bucket/p?endpoint={url}"), create_root=False)
    dial(Retrying(Wrapper(store)))
    dialled(store._wire)  # type: ignore[attr-defined]
    assert server.met(2)
    store.close()
    dial(Wrapper(MemoryBackend()))  # one that has none to open
