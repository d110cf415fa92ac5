"""A backend that counts the requests and bytes that go through it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from metasync.backends._base import POWERS, Backend, Listed, LogForm
from metasync.errors import BackendError


@dataclass(frozen=True, slots=True)
class Count:
    """What went through since the start or the last `take`. `requests` and `errors` by kind of call."""

    requests: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    up_bytes: int = 0
    down_bytes: int = 0


class CountingBackend:
    """The same calls as `inner`, counted. A call that fails counts as a request and as an error.

    One that is refused as the caller's mistake (`ValueError`: no path, no part) asked for nothing, and does not count.
    """

    scheme: ClassVar[str] = "memory"
    form: ClassVar[LogForm] = "log"

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._count = Count()
        vars(self).update(scheme=inner.scheme, form=inner.form)  # a wrapper is of its inner's kind
        vars(self).update({power: getattr(inner, power) for power in POWERS if hasattr(inner, power)})

    def count(self) -> Count:
        """The numbers so far."""
        with self._lock:
            now = self._count
            return Count(now.requests.copy(), now.errors.copy(), now.up_bytes, now.down_bytes)

    def take(self) -> Count:
        """The numbers so far; they start at zero again."""
        with self._lock:
            taken, self._count = self._count, Count()
        return taken

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._call("create", path, data))

    def put(self, path: str, data: bytes) -> None:
        self._call("put", path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        data: bytes = self._call("get", path, offset=offset, length=length, max_bytes=max_bytes)
        return data

    def stat(self, path: str) -> int:
        return int(self._call("stat", path))

    def list(self, path: str) -> tuple[Listed, ...]:
        found: tuple[Listed, ...] = self._call("list", path)
        return found

    def delete(self, path: str) -> None:
        self._call("delete", path)

    def identity(self) -> bytes:
        return self._inner.identity()

    def close(self) -> None:
        self._inner.close()

    def _call(self, kind: str, path: str, *data: bytes, **part: Any) -> Any:
        value, errors, requests = None, 0, 1
        try:
            value = getattr(self._inner, kind)(path, *data, **part)
        except BackendError:
            errors = 1
            raise
        except ValueError:
            requests, data = 0, ()
            raise
        finally:
            with self._lock:
                now = self._count
                now.requests[kind] += requests
                now.errors[kind] += errors
                up = sum(map(len, data))
                down = len(value) if isinstance(value, bytes) else 0
                self._count = Count(now.requests, +now.errors, now.up_bytes + up, now.down_bytes + down)
        return value
