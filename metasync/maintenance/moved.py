"""Which partitions this device has moved under the config of today: a mover that was killed goes on from there.

A partition is noted when every copy that counts was verified. The note holds for one config alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from metasync.local.state_keys import MOVED_KEY

if TYPE_CHECKING:
    from metasync.session.session import Session

_HASH_BYTES = 32


class Partitions:
    """A set of partitions, a bit each."""

    def __init__(self, bits: bytes = b"") -> None:
        self._bits = bytearray(bits)

    def __contains__(self, partition: int) -> bool:
        at = partition >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (partition & 7) & 1)

    def add(self, partitions: Iterable[int]) -> None:
        for p in partitions:
            self._bits.extend(bytes(max(0, (p >> 3) + 1 - len(self._bits))))
            self._bits[p >> 3] |= 1 << (p & 7)

    def __bytes__(self) -> bytes:
        return bytes(self._bits)


def load(s: Session) -> Partitions:
    """The partitions that are noted for the config of today."""
    data = s.db.get(MOVED_KEY) or b""
    return Partitions(data[_HASH_BYTES:] if data[:_HASH_BYTES] == s.connections.config_hash else b"")


def note(s: Session, partitions: Iterable[int]) -> None:
    """Notes these too."""
    with s.db.transaction():
        done = load(s)
        done.add(partitions)
        s.db.set(MOVED_KEY, s.connections.config_hash + bytes(done))
