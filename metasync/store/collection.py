"""What of an index is still needed: which packs go, which are packed anew, and the index without them. Pure.

`marked` is the set of all objects that are needed (`objects.reach`). The index that comes of it names these and no
others: a file or a directory that it names has all its parts in it, so that a push may rely on what it finds there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from metasync.objects.model import ID_BYTES
from metasync.store.index import OBJECT, PACK_AT, Index, IndexSegment, PackId, PackRecord, segment_sorted

UNUSED_SHARE: Final = 20  # packs are packed anew until no more than a twentieth of what is needed lies unused
MOSTLY_DEAD: Final = 2  # and in any case those of which less than half is needed


class IdsSeen(Protocol):
    """A set of ids that grows."""

    def __contains__(self, object_id: object) -> bool: ...
    def add(self, object_id: bytes) -> None: ...
    def __len__(self) -> int: ...
    def reserve(self, more: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Use:
    """A pack, with how many bytes of its objects (unpacked) are needed from it, and how many there are."""

    record: PackRecord
    needed: int
    total: int

    @property
    def unused_bytes(self) -> int:
        """About how many bytes of the pack, as it is stored, are not needed."""
        return self.record.size * (self.total - self.needed) // self.total if self.total else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the packs of an index.

    dead     nothing that is needed lies there alone: they go
    sparse   little does: it is packed anew, and they go as well
    unused   bytes in packs that stay which nothing needs
    missing  needed objects that no pack of the index has
    gone     the packs that go
    """

    dead: tuple[PackRecord, ...] = ()
    sparse: tuple[Use, ...] = ()
    unused: int = 0
    missing: int = 0
    gone: frozenset[PackId] = frozenset()


def plan(index: Index, marked: IdsSeen, placed: IdsSeen, *, repack: bool = True, purge: bool = False) -> Plan:
    """Decides over the packs of an index. `placed`: an empty set, which gets the needed objects that were found.

    `purge`: every pack that has anything that is not needed counts as sparse.
    """
    packs = index.packs()
    order = sorted(_needed(index, packs, marked, None), key=_preferred)
    placed.reserve(len(marked))
    uses = sorted(_needed(index, packs, marked, placed, [u.record.id for u in order]), key=_preferred)
    dead = tuple(u.record for u in uses if not u.needed)
    alive = [u for u in uses if u.needed]
    unused, needed = sum(u.unused_bytes for u in alive), sum(u.record.size - u.unused_bytes for u in alive)
    sparse: list[Use] = []
    for use in reversed(alive if repack else []):  # those of which the least is needed
        is_little = unused * UNUSED_SHARE <= needed and use.needed * MOSTLY_DEAD >= use.total
        if use.needed == use.total or (is_little and not purge):
            break
        sparse.append(use)
        unused -= use.unused_bytes
    gone = frozenset([*(r.id for r in dead), *(u.record.id for u in sparse)])
    return Plan(dead, tuple(sparse), unused, len(marked) - len(placed), gone)


def _preferred(use: Use) -> tuple[float, int, bytes]:
    """Packs of which most is needed come first; the same on every device."""
    return -use.needed / max(use.total, 1), -use.record.generation, use.record.name


def _needed(
    index: Index,
    packs: dict[PackId, PackRecord],
    marked: Container[bytes],
    placed: IdsSeen | None,
    order: Sequence[PackId] | None = None,
) -> list[Use]:
    """How much of each pack is needed. With `placed`, an object is needed of the first pack in `order` with it."""
    out: list[Use] = []
    for pack_id in packs if order is None else order:
        record, needed = packs[pack_id], 0
        for o in index.inside(record):
            if o.id in marked and (placed is None or o.id not in placed):
                needed += o.length
                if placed is not None:
                    placed.add(o.id)
        out.append(Use(record, needed, sum(s.raw_bytes for s in record.segments)))
    return out


def to_pack(index: Index, plan: Plan, marked: Container[bytes]) -> Iterator[list[bytes]]:
    """What is packed anew: the needed objects of packs that go and that lie in no pack that stays, pack by pack."""
    for use in plan.sparse:
        ids = dict.fromkeys(o.id for o in index.inside(use.record) if o.id in marked)
        yield [i for i in ids if all(record.id in plan.gone for record, _ in index.find(i))]


def uncovered(index: Index, stays: Container[PackId], packed: Callable[[bytes], bool], marked: Container[bytes]) -> int:
    """How many needed objects of an index neither a pack that stays has nor one that was packed anew."""
    out = 0
    for s in index.segments:
        for record, o in s:
            if o.id in marked and record.id not in stays and not packed(o.id):
                places = index.find(o.id)  # none, where the pack has a tombstone
                out += bool(places) and all(other.id not in stays for other, _ in places)
    return out


def is_whole(segment: IndexSegment, stays: Container[PackId], marked: Container[bytes]) -> bool:
    """Whether a segment may stay as it is: all its packs stay, and all objects that it names are needed."""
    objects = segment.objects
    return (
        not segment.tombstones
        and all(p.id in stays for p in segment.packs)
        and all(objects[at : at + ID_BYTES] in marked for at in range(0, len(objects), OBJECT.size))
    )


def rewritten(segment: IndexSegment, stays: Container[PackId], marked: Container[bytes]) -> IndexSegment | None:
    """The segment without packs that go, without objects that are not needed, without tombstones; None if it is empty.

    Tombstones are needed no more once no segment lists a pack that went.
    """
    into = [bytearray() if p.id in stays else None for p in segment.packs]
    objects = segment.objects
    for at in range(0, len(objects), OBJECT.size):
        packed = into[int.from_bytes(objects[at + PACK_AT : at + PACK_AT + 4], "big")]
        if packed is not None and objects[at : at + ID_BYTES] in marked:
            packed += objects[at : at + PACK_AT] + bytes(4) + objects[at + PACK_AT + 4 : at + OBJECT.size]
    if all(packed is None for packed in into):
        return None
    return segment_sorted(_given(segment.packs, into), (), segment.tags)


def _given(packs: Sequence[PackRecord], into: list[bytearray | None]) -> Iterator[tuple[PackRecord, bytes]]:
    """The packs that stay, with their objects. Each leaves `into`: there may be a million, and they are copied on."""
    for n, record in enumerate(packs):
        packed, into[n] = into[n], None
        if packed is not None:
            yield record, bytes(packed)
