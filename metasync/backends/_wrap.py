"""Wrappers around any backend, with the backend's own interface."""

from __future__ import annotations

from typing import ClassVar

from metasync.backends._base import Backend, Listed, LogForm


class Prefixed:
    """A folder of a backend as a backend of its own: every path gets the prefix. Closing it closes nothing."""

    scheme: ClassVar[str] = "prefixed"

    def __init__(self, inner: Backend, prefix: str) -> None:
        self.inner = inner
        self._prefix = prefix.rstrip("/") + "/"

    @property
    def form(self) -> LogForm:
        return self.inner.form

    def create(self, path: str, data: bytes) -> bool:
        return self.inner.create(self._prefix + path, data)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(self._prefix + path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        return self.inner.get(self._prefix + path, offset=offset, length=length, max_bytes=max_bytes)

    def stat(self, path: str) -> int:
        return self.inner.stat(self._prefix + path)

    def list(self, path: str) -> tuple[Listed, ...]:
        return self.inner.list((self._prefix + path).rstrip("/"))

    def delete(self, path: str) -> None:
        self.inner.delete(self._prefix + path)

    def identity(self) -> bytes:
        return self.inner.identity()

    def close(self) -> None:
        """Nothing: the inner backend belongs to whoever opened it."""
