"""Which partitions this device has moved under the config of today: a mover that was killed goes on from there.

A partition is noted with its packs when every copy of theirs that counts was verified. The note holds for one config
alone, and as long as the partition has the same packs: who pushed one since may have had no way to where it belongs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from metasync.local.state_keys import MOVED_KEY

if TYPE_CHECKING:
    from metasync.session.session import Session
    from metasync.store.index import PackRecord
    from metasync.store.moves import Places

_HASH_BYTES: Final = 32
_SUM_BYTES: Final = 4


class Partitions:
    """What is noted: by partition, the sum of the names of its displaced packs; `bytes` is its stored form."""

    def __init__(self, sums: bytes = b"") -> None:
        self._sums = bytearray(sums)

    def sum_of(self, partition: int) -> int:
        """The sum that is noted; 0 for none."""
        return int.from_bytes(self._sums[partition * _SUM_BYTES : (partition + 1) * _SUM_BYTES], "big")

    def add(self, sums: Mapping[int, int]) -> None:
        for p, total in sums.items():
            self._sums.extend(bytes(max(0, (p + 1) * _SUM_BYTES - len(self._sums))))
            self._sums[p * _SUM_BYTES : (p + 1) * _SUM_BYTES] = total.to_bytes(_SUM_BYTES, "big")

    def __bytes__(self) -> bytes:
        return bytes(self._sums)


class Noted:
    """Which partitions of an index are noted: those that have the same displaced packs as they had then."""

    def __init__(self, places: Places, packs: Iterable[PackRecord], noted: Partitions) -> None:
        self.sums: dict[int, int] = defaultdict(int)
        self._places = places
        for p in packs:
            if places.is_displaced(p.name):
                self.sums[places.partition(p.name)] ^= int.from_bytes(p.name[:_SUM_BYTES], "big")
        self._noted = {p for p, total in self.sums.items() if total and noted.sum_of(p) == total}

    def __contains__(self, name: bytes) -> bool:
        """Whether a displaced pack is known to be where it belongs."""
        return self._places.partition(name) in self._noted


def load(s: Session) -> Partitions:
    """The partitions that are noted for the config of today."""
    data = s.db.get(MOVED_KEY) or b""
    return Partitions(data[_HASH_BYTES:] if data[:_HASH_BYTES] == s.connections.config_hash else b"")


def note(s: Session, sums: Mapping[int, int]) -> None:
    """Notes these too, by partition the sum of its displaced packs."""
    with s.db.transaction():
        done = load(s)
        done.add(sums)
        s.db.set(MOVED_KEY, s.connections.config_hash + bytes(done))
