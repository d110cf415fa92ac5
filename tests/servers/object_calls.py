"""The calls that every store is tried with, by name, and what is expected of each alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import NotFoundError, UnreachableError

CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/b", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "get nothing": lambda b: b.get("d/a", length=0, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "list root": lambda b: b.list(""),
    "delete": lambda b: b.delete("d/b"),
}


def open_url(url: str) -> Backend:
    return open_backend(parse_url(url))


def expect_prefixes_apart(url: Callable[[str], str]) -> None:
    """What is under one prefix is not under another, also where its name begins alike."""
    one, two = open_url(url("apart/one")), open_url(url("apart/on"))
    one.put("a", b"1")
    assert two.list("") == ()
    with pytest.raises(NotFoundError):
        two.get("a", max_bytes=1)
    assert one.identity()[:16] == two.identity()[:16]
    assert one.identity() != two.identity()
    assert open_url(url("apart")).get("one/a", max_bytes=1) == b"1"


def expect_gone(backend: Backend, remove: Callable[[], object], place: str) -> None:
    """A store whose bucket was removed is out of reach, and never an empty one."""
    backend.put("d/a", b"1")
    remove()
    for call in CALLS.values():
        with pytest.raises(UnreachableError, match=f"no such {place}"):
            call(backend)


def expect_outage(server: Any, backend: Backend, calls: Mapping[str, Callable[[Any], object]] = CALLS) -> None:
    """While a server is away every call ends at once; when it is back what it held is there."""
    assert backend.create("a", b"1") is True
    server.stop()
    for call in calls.values():
        began = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            call(backend)
        assert caught.value.retryable
        assert time.monotonic() - began < 3, "no retries below us"
    server.start()
    assert backend.get("a", max_bytes=1) == b"1"
    assert backend.create("a", b"2") is False


def expect_return(server: Any) -> None:
    """As `expect_outage`; and what it held is there until it is wiped."""
    backend = open_url(server.url("x"))
    expect_outage(server, backend)
    server.wipe()
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
