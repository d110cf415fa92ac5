"""The calls that every object store is tried with, by name."""

from __future__ import annotations

from collections.abc import Callable

from metasync.backends._base import Backend
from metasync.backends._registry import open_backend, parse_url

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
