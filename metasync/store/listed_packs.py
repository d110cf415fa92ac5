"""The packs that the segments of an index list: each one by its id, all as a view that is a mapping.

A pack takes 16 bytes here, beside what its segment has of it: so all that is asked of very many packs is asked of them
one by one, and nothing keeps their values.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence, ValuesView
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from metasync.errors import FormatError
from metasync.store.pack_format import PackId, PackRecord, pack_id, unpack_id

if TYPE_CHECKING:
    from metasync.store.index import IndexSegment

SORTED_TOGETHER: Final = 1 << 16  # packs: 5 MB


class Listed:
    """Where segments, the oldest first, list each pack: hashes of their ids, sorted, and a number for each.

    Numbers count the packs of all segments. A pack that several segments list has several. `FormatError` unless its
    size, header and segments are the same in all: a pack is its bytes. Tags may differ.

    again     by id, what is known of each pack that is listed several times
    repeated  by number, whether a pack was listed before; empty if none was
    """

    def __init__(self, segments: Sequence[IndexSegment]) -> None:
        self._segments = segments
        self._begins = [0, *accumulate(len(s.packs) for s in segments)]
        hashes = array("q", (hash(i) for s in segments for i in s.packs.ids()))  # Python's, which nobody can foresee
        self._numbers = _sorted(hashes)
        self._hashes = array("q", map(hashes.__getitem__, self._numbers))
        self.again: dict[PackId, PackRecord] = {}
        self.repeated = bytearray()
        for at in range(1, len(hashes)):
            if self._hashes[at] == self._hashes[at - 1]:
                self._check(at)

    def _check(self, at: int) -> None:
        """Checks a pack that may have been listed before."""
        number = self._numbers[at]
        newer = self.record(number)
        same = [n for n in self.numbers(newer.id) if n < number]
        if not same:
            return
        known = self.record(same[0])
        if newer[2:5] != known[2:5]:
            raise FormatError(f"pack index: pack {newer.name.hex()[:16]} is listed in two ways")
        self.again[known.id] = self.again.get(known.id, known).updated(newer)
        self.repeated = self.repeated or bytearray(len(self._numbers))
        self.repeated[number] = 1

    def __len__(self) -> int:
        return len(self._numbers)

    def place(self, number: int) -> tuple[IndexSegment, int]:
        """The segment that lists a pack, and its number there."""
        at = bisect_right(self._begins, number) - 1
        return self._segments[at], number - self._begins[at]

    def record(self, number: int) -> PackRecord:
        s, ordinal = self.place(number)
        return s.packs[ordinal]

    def numbers(self, pack: PackId) -> list[int]:
        """All numbers of a pack, ascending."""
        packed = pack_id(pack)
        key, hashes, out = hash(packed), self._hashes, list[int]()
        at = bisect_left(hashes, key)
        while at < len(hashes) and hashes[at] == key:
            s, ordinal = self.place(self._numbers[at])
            if s.packs.id_at(ordinal) == packed:
                out.append(self._numbers[at])
            at += 1
        return out

    def ids(self) -> Iterator[PackId]:
        """The ids of all, by number."""
        return (unpack_id(i) for s in self._segments for i in s.packs.ids())

    def records(self) -> Iterator[PackRecord]:
        """All records, by number."""
        return (record for s in self._segments for record in s.packs)


def _sorted(hashes: array[int]) -> array[int]:
    """The numbers of these hashes by their value: in parts, for as numbers of Python's they take ten times as much."""
    out, parts = array("I"), len(hashes) // SORTED_TOGETHER + 1
    bounds = [(part << 64) // parts - (1 << 63) for part in range(parts + 1)]
    for low, high in pairwise(bounds):
        some = [n for n, one in enumerate(hashes) if low <= one < high] if parts > 1 else range(len(hashes))
        out.extend(sorted(some, key=hashes.__getitem__))
    return out


class LivePacks(Mapping[PackId, PackRecord]):
    """Every pack that is listed and has no tombstone. `dead`: those that have one."""

    def __init__(self, listed: Listed, dead: Container[PackId]) -> None:
        self._listed = listed
        self._dead = dead
        self._count: int | None = None

    def number(self, pack: object) -> int | None:
        """The first number of a pack; None if it is not there."""
        if not isinstance(pack, tuple) or pack in self._dead:
            return None
        return next(iter(self._listed.numbers(pack)), None)

    def __getitem__(self, pack: PackId) -> PackRecord:
        if (number := self.number(pack)) is None:
            raise KeyError(pack)
        return self._listed.again.get(pack) or self._listed.record(number)

    def __contains__(self, pack: object) -> bool:
        return self.number(pack) is not None

    def __iter__(self) -> Iterator[PackId]:
        repeated, dead = self._listed.repeated, self._dead
        for n, pack in enumerate(self._listed.ids()):
            if not (repeated and repeated[n]) and pack not in dead:
                yield pack

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self) if self._dead else len(self._listed) - sum(self._listed.repeated)
        return self._count

    def values(self) -> ValuesView[PackRecord]:
        return _Values(self)

    def each(self) -> Iterator[tuple[int, PackRecord]]:
        """Every pack with its number."""
        repeated, dead, again = self._listed.repeated, self._dead, self._listed.again
        for n, record in enumerate(self._listed.records()):
            if not (repeated and repeated[n]) and record.id not in dead:
                yield n, again.get(record.id, record) if again else record


class _Values(ValuesView[PackRecord]):
    """The same, one after the other: to look each one up would cost five times as much."""

    def __init__(self, packs: LivePacks) -> None:
        super().__init__(packs)
        self._each = packs.each

    def __iter__(self) -> Iterator[PackRecord]:
        return (record for _, record in self._each())
