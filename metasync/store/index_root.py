"""The root of a pack index: which segments there are (format.md, section 6.1).

A root may go on from another one and list only what is new. So a small push that tells its index in a log entry tells
its own segment alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metasync.codec import Reader, Tags, check_format, encode_tags, u8, u32, u64
from metasync.errors import FormatError
from metasync.keys.derive import sha256
from metasync.objects.model import ID_BYTES

FORMAT = 1
INLINE_TAG = 1  # of a root's entry: the bytes of the segment, whose SHA-256 is its name then
TIER_BYTES_BASE = 2 << 10  # nine pushes of one file, 400 bytes each, merge into more: what is merged leaves its tier
TIER_FACTOR = 8
AFTER_TAG = 1  # of a root: the root that it goes on from, whose segments stand before its own
ROOTS_MAX = 16  # that go on from one another
ROOT_SEGMENTS_MAX = 1 << 10


class Ref(NamedTuple):
    """Names a meta object: the generation it was uploaded in, and its hash."""

    generation: int
    hash: bytes


class RootItem(NamedTuple):
    """One segment as the root lists it: how large it is, and what it holds."""

    ref: Ref
    size: int
    objects: int
    packs: int
    tags: Tags = ()

    @property
    def inline(self) -> bytes | None:
        """The segment, where the root carries it and no object has it."""
        return dict(self.tags).get(INLINE_TAG)

    @property
    def tier(self) -> int:
        tier, limit = 0, TIER_BYTES_BASE
        while self.size > limit:
            tier, limit = tier + 1, limit * TIER_FACTOR
        return tier


class IndexRoot(NamedTuple):
    """The segments of an index, oldest first.

    `before`: the roots that were joined to this one (`joined`), the newest first. No part of its bytes.
    """

    items: tuple[RootItem, ...] = ()
    tags: Tags = ()
    before: tuple[Ref, ...] = ()

    @property
    def after(self) -> Ref | None:
        """The root that it goes on from, if any. `FormatError`."""
        if (data := dict(self.tags).get(AFTER_TAG)) is None:
            return None
        r = Reader(data, "index root")
        out = Ref(r.u64(), r.take(ID_BYTES))
        r.end()
        return out

    @property
    def apart(self) -> tuple[RootItem, ...]:
        """Those that are objects of their own."""
        return tuple(i for i in self.items if i.inline is None)


def encode_root(root: IndexRoot) -> bytes:
    body = b"".join(
        u64(i.ref.generation) + i.ref.hash + u64(i.size) + u64(i.objects) + u32(i.packs) + encode_tags(i.tags)
        for i in root.items
    )
    return u8(FORMAT) + u32(len(root.items)) + body + encode_tags(root.tags)


def decode_root(data: bytes) -> IndexRoot:
    r = Reader(data, "index root")
    check_format(r.u8(), "the pack index")
    count = r.u32()
    if count > ROOT_SEGMENTS_MAX:
        raise r.fail(f"{count} segments")
    items = tuple(
        RootItem(Ref(r.u64(), r.take(ID_BYTES)), r.u64(), r.u64(), r.u32(), r.tags()) for _ in range(r.count(count, 61))
    )
    out = IndexRoot(items, r.tags())
    r.end()
    _ = out.after
    if any((own := i.inline) is not None and (i.size, i.ref.hash) != (len(own), sha256(own)) for i in items):
        raise r.fail("a segment in it that is not the one it names")
    return out


def root_after(ref: Ref, items: Sequence[RootItem]) -> IndexRoot:
    """A root that goes on from another one."""
    return IndexRoot(tuple(items), ((AFTER_TAG, u64(ref.generation) + ref.hash),))


def joined(root: IndexRoot, load: Callable[[Ref], bytes]) -> IndexRoot:
    """The same root, with the segments of those that it goes on from. `load` gives the bytes of a root."""
    parts, before = [root], list[Ref]()
    while (ref := parts[-1].after) is not None:
        if len(parts) > ROOTS_MAX:
            raise FormatError(f"index root: it goes on from more than {ROOTS_MAX}")
        before.append(ref)
        parts.append(decode_root(load(ref)))
    items = tuple(item for part in reversed(parts) for item in part.items)
    if len(items) > ROOT_SEGMENTS_MAX:
        raise FormatError(f"index root: {len(items)} segments")
    if len(names := [i.ref.hash for i in items if i.inline is None]) > len(set(names)):
        raise FormatError("index root: a segment twice")
    tags = {tag: data for part in reversed(parts) for tag, data in part.tags if tag != AFTER_TAG}
    return IndexRoot(items, tuple(sorted(tags.items())), tuple(before))
