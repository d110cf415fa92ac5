"""How much room each backend has for packs, as one push knows it: what is free there, and what was agreed.

Free space is what the backend told, less what this push has sent there since; capacity is the agreed one, less what the
index places there. A backend that tells nothing, and has no agreed capacity, has room until it says it is full. Values
only: whoever holds a `Room` asks the backends, and uses it from one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metasync.backends.wrappers.ballast import BALLAST_BYTES
from metasync.codec import amount
from metasync.errors import FullError
from metasync.store.index import PackRecord
from metasync.store.placement import Placement, partition_of

# Left free by packs: for what is agreed, for deletions, and to put the ballast back. Free space is known roughly only
# (blocks, directories, other writers), and the ballast itself is there for when this was not enough.
MARGIN_BYTES: Final = 4 * BALLAST_BYTES
NEARLY_FULL_BYTES: Final = 1 << 30  # a backend with more than this free is not called nearly full, whatever its size
NEARLY_FULL_SHARE: Final = 20  # nor one with more than a twentieth of it free


@dataclass
class Room:
    """What may still go to which backend, by name. Names that are missing have no known limit.

    `stale`: free space that was told a while ago; it may be more by now, and is asked for before it counts as too
    little.
    """

    free: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    sending: dict[str, int] = field(default_factory=dict)

    def told(self, name: str, free_bytes: int) -> None:
        """What a backend says is free now. Packs on their way may not be counted yet, so they are taken off."""
        self.free[name] = free_bytes - self.sending.get(name, 0)
        self.stale.discard(name)

    def of(self, name: str) -> int | None:
        """Bytes of packs that still fit; None when nothing limits them."""
        limits = [self.left[name]] if name in self.left else []
        limits += [self.free[name] - MARGIN_BYTES] if name in self.free else []
        return max(0, min(limits)) if limits else None

    def lacks(self, name: str, size: int) -> FullError | None:
        """Why a pack of this size does not fit; None if it does, as far as is known."""
        if size > self.left.get(name, size):
            return FullError(
                f"{name}: its agreed capacity has {amount(max(0, self.left[name]))} left, too little for a pack of"
                f" {amount(size)}",
                next_step="Packs go to other backends, if there are any with room.",
            )
        if size + MARGIN_BYTES > self.free.get(name, size + MARGIN_BYTES):
            return FullError(
                f"{name}: {amount(max(0, self.free[name]))} are free there; a pack of {amount(size)} must leave"
                f" {amount(MARGIN_BYTES)} of it for what is agreed",
                next_step="Free space there.",
            )
        return None

    def begin(self, name: str, size: int) -> None:
        """A pack is about to be sent."""
        self.sending[name] = self.sending.get(name, 0) + size
        self._less(name, size)

    def end(self, name: str, size: int, *, stored: bool) -> None:
        """It arrived, or it did not."""
        self.sending[name] -= size
        if not stored:
            self._less(name, -size)

    def _less(self, name: str, size: int) -> None:
        for known in (self.free, self.left):
            if name in known:
                known[name] -= size


def is_nearly_full(left_bytes: int, total_bytes: int | None, *, least_bytes: int = MARGIN_BYTES) -> bool:
    """Whether a user should be warned: little in itself and of the whole, or less than `least_bytes`."""
    small = total_bytes is not None and left_bytes * NEARLY_FULL_SHARE < total_bytes
    return left_bytes < least_bytes or (small and left_bytes < NEARLY_FULL_BYTES)


def placed_bytes(packs: Iterable[PackRecord], placement: Placement) -> Mapping[bytes, int]:
    """By backend id: bytes of the packs that belong there. Exact, but for copies that had to go elsewhere.

    Packs are summed up by partition first, so that a large index costs an order per partition, not per pack.
    """
    parts: dict[int, tuple[bytes, int]] = {}
    for p in packs:
        partition = partition_of(p.name, placement.partitions)
        parts[partition] = (p.name, parts[partition][1] + p.size if partition in parts else p.size)
    out = dict.fromkeys((t.backend_id for t in placement.targets), 0)
    for name, size in parts.values():
        for backend_id in placement.primary(name):
            out[backend_id] += size
    return out
