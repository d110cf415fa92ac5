"""Merging segments of the pack index, tier by tier, so that a root lists few of them (docs/design/format.md)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from metasync.store.index import (
    OBJECT,
    PACK_AT,
    IndexRoot,
    IndexSegment,
    PackRecord,
    RootItem,
    check_records,
    segment_sorted,
)

TIER_SEGMENTS_MAX = 8
MERGED_BYTES_MAX = 48 << 20  # a merge makes no segment too large for a sealed record (64 MiB), with room for growth


def merge(segments: Sequence[IndexSegment], *, final: bool) -> IndexSegment:
    """One segment in place of several. `final`: nothing older remains, so tombstones have done their work."""
    check_records(segments)
    dead = {t for s in segments for t in s.tombstones}
    keep: dict[tuple[bytes, int], tuple[PackRecord, bytearray]] = {}
    for s in segments:
        into: list[bytearray | None] = []
        for record in s.packs:
            if (record.generation, record.name) in dead:
                into.append(None)
                continue
            before = keep.get((record.name, record.generation))
            keep[record.name, record.generation] = (record, before[1] if before else bytearray())
            into.append(keep[record.name, record.generation][1])
        objects = s.raw_objects()
        for at in range(0, len(objects), OBJECT.size):
            packed = into[int.from_bytes(objects[at + PACK_AT : at + PACK_AT + 4], "big")]
            if packed is not None:
                packed += objects[at : at + PACK_AT] + bytes(4) + objects[at + PACK_AT + 4 : at + OBJECT.size]
    return segment_sorted(((record, _sorted(bytes(packed))) for record, packed in keep.values()), () if final else dead)


def _sorted(packed: bytes) -> bytes:
    """The objects of one pack that came from several segments."""
    objects = [packed[at : at + OBJECT.size] for at in range(0, len(packed), OBJECT.size)]
    return packed if all(map(lt, objects, objects[1:])) else b"".join(sorted(set(objects)))


def crowded(root: IndexRoot) -> tuple[RootItem, ...]:
    """The segments of the lowest tier that holds too many; empty when none does.

    Segments that would merge into one too large for a meta object stay as they are: they are few for their size.
    """
    tiers: dict[int, list[RootItem]] = {}
    for item in root.items:
        tiers.setdefault(item.tier, []).append(item)
    for tier in sorted(tiers):
        items = tiers[tier]
        if len(items) > TIER_SEGMENTS_MAX and sum(i.size for i in items) <= MERGED_BYTES_MAX:
            return tuple(items)
    return ()
