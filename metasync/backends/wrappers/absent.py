"""A backend that this device knows of and cannot use now: every call says why."""

from __future__ import annotations

from typing import ClassVar

from metasync.backends.api import Listed, LogForm
from metasync.errors import BackendError, UnreachableError


class AbsentBackend:
    """Stands in for a backend that could not be opened. Raises `why` from every call."""

    scheme: ClassVar[str] = "absent"
    form: ClassVar[LogForm] = "none"

    def __init__(self, why: BackendError) -> None:
        self.why = why
        if not isinstance(why, UnreachableError):
            self.why = UnreachableError(why.message, next_step=why.next_step, retryable=why.retryable)

    def create(self, path: str, data: bytes) -> bool:
        raise self.why

    def put(self, path: str, data: bytes) -> None:
        raise self.why

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        raise self.why

    def stat(self, path: str) -> int:
        raise self.why

    def list(self, path: str) -> tuple[Listed, ...]:
        raise self.why

    def delete(self, path: str) -> None:
        raise self.why

    def identity(self) -> bytes:
        raise self.why

    def close(self) -> None:
        """Nothing is open."""
