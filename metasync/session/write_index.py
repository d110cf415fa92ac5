"""Stores what a push adds to the pack index: a segment, and the tiers that are merged with it (architecture.md, D4)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from metasync.consensus import Ref
from metasync.local.spill import Spool
from metasync.session.session import Agreed, Session
from metasync.store import index as pack_index
from metasync.store import index_tiers
from metasync.store.index import IndexRoot, IndexSegment, RootItem
from metasync.transfer.upload import Upload


def store_index(s: Session, base: Agreed, upload: Upload) -> Ref | None:
    """Stores the index segment of a push's packs, merging tiers that are full; None when there are no packs."""
    with storing_index(s, base, upload) as stored:
        return next(reversed(stored()), None)


@contextlib.contextmanager
def storing_index(s: Session, base: Agreed, upload: Upload) -> Iterator[Callable[[], list[Ref]]]:
    """The same beside the last packs: all are sealed, so that their names are known. It names what is to be stored
    before anybody is told of the index: a proposal is made when both are. Segments wait in a spool: a very large push
    has several, and no two are held."""
    kept = Spool()
    new = dict(_unstored(kept, segment) for segment in upload.index_segments())
    if not new:
        yield list
        return
    items = [*base.root.items, *new]
    while crowd := index_tiers.crowded(IndexRoot(tuple(items))):
        segments = [
            pack_index.decode_segment(kept.get(new[i])) if i in new else base.segments[base.root.items.index(i)]
            for i in crowd
        ]
        item, place = _unstored(kept, index_tiers.merge(segments, final=len(crowd) == len(items)))
        items = [*(i for i in items if i not in crowd), item]
        new = {**{i: p for i, p in new.items() if i not in crowd}, item: place}

    def make_root(refs: Sequence[Ref]) -> bytes:
        stored = {item: item._replace(ref=pack_index.Ref(*ref)) for item, ref in zip(new, refs, strict=True)}
        return pack_index.encode_root(IndexRoot(tuple(stored.get(item, item) for item in items), base.root.tags))

    with s.putting_index(base.state, [partial(kept.get, place) for place in new.values()], make_root) as stored:
        yield stored


def _unstored(kept: Spool, segment: IndexSegment) -> tuple[RootItem, slice]:
    """A segment as the root will list it, its name still open: a digest of its bytes stands in. And where these are."""
    data = pack_index.encode_segment(segment)
    stand_in = pack_index.Ref(0, hashlib.sha256(data).digest())
    return RootItem(stand_in, len(data), len(segment), len(segment.packs)), kept.put(data)
