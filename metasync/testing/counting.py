"""A backend that counts the requests and bytes that go through it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError
from metasync.runtime.effects import OpKind

_COUNTED = frozenset(get_args(OpKind))


@dataclass(frozen=True, slots=True)
class Count:
    """What went through since the start or the last `take`. `requests` and `errors` by kind of call."""

    requests: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    up_bytes: int = 0
    down_bytes: int = 0


class CountingBackend(Wrapper):
    """The same calls as `inner`, counted. A call that fails counts as a request and as an error.

    One that is refused as the caller's mistake (`ValueError`: no path, no part) asked for nothing, and does not count.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._count = Count()

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

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind not in _COUNTED:
            return do()
        value, errors, requests = None, 0, 1
        try:
            value = do()
        except BackendError:
            errors = 1
            raise
        except ValueError:
            requests = 0
            raise
        finally:
            with self._lock:
                now = self._count
                now.requests[call.kind] += requests
                now.errors[call.kind] += errors
                down = len(value) if isinstance(value, bytes) else 0
                self._count = Count(
                    now.requests, +now.errors, now.up_bytes + requests * call.up_bytes, now.down_bytes + down
                )
        return value
