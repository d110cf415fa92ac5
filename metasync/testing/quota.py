"""A backend with so many bytes and no more: what an account with a quota does when it fills up.

quota = Quota(2 << 20)
b = QuotaBackend(MemoryBackend(store), quota)   # several views of one store share one `Quota`
quota.limit_bytes += 1 << 20                    # the user bought more
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from metasync.backends.api import Backend, Space
from metasync.backends.wrappers.wrapper import Wrapper
from metasync.errors import FullError, NotFoundError


@dataclass
class Quota:
    """How much one account may hold. `other_bytes`: what lies there that is not ours. Guarded by `lock`."""

    limit_bytes: int
    other_bytes: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    counted: bool = False

    @property
    def free_bytes(self) -> int:
        with self.lock:
            return max(0, self.limit_bytes - self.other_bytes - sum(self.sizes.values()))

    def fill(self, leaving_bytes: int = 0) -> None:
        """Somebody else's files take all that is free, but for `leaving_bytes`."""
        with self.lock:
            self.other_bytes += self.free_bytes - leaving_bytes


class QuotaBackend(Wrapper):
    """The same calls as `inner`; `create` and `put` of what does not fit fail with `FullError`, and change nothing.

    It tells its space, unless `tells` is False.
    """

    def __init__(self, inner: Backend, quota: Quota | int, *, tells: bool = True) -> None:
        super().__init__(inner)
        self.quota = Quota(quota) if isinstance(quota, int) else quota
        vars(self).pop("space", None)  # the inner backend knows of no quota
        if tells:
            vars(self)["space"] = self._told
        with self.quota.lock:
            if not self.quota.counted:
                self.quota.counted = True
                self._count("")

    def create(self, path: str, data: bytes) -> bool:
        with self.quota.lock:
            try:
                self.inner.stat(path)
            except NotFoundError:
                self._check(path, len(data))
            made = self.inner.create(path, data)
            if made:
                self.quota.sizes[path] = len(data)
            return made

    def put(self, path: str, data: bytes) -> None:
        with self.quota.lock:
            self._check(path, len(data))
            self.inner.put(path, data)
            self.quota.sizes[path] = len(data)

    def delete(self, path: str) -> None:
        with self.quota.lock:
            self.inner.delete(path)
            self.quota.sizes.pop(path, None)

    def _told(self) -> Space:
        with self.quota.lock:
            return Space(self.quota.free_bytes, self.quota.limit_bytes)

    def _check(self, path: str, size: int) -> None:
        free = self.quota.free_bytes + self.quota.sizes.get(path, 0)
        if size > free:
            raise FullError(f"cannot store {path}: {size} bytes, and {free} are free", next_step="Free some space.")

    def _count(self, folder: str) -> None:
        """What the store holds already."""
        for name, size in self.inner.list(folder):
            path = f"{folder}/{name}" if folder else name
            if size is None:
                self._count(path)
            else:
                self.quota.sizes[path] = size
