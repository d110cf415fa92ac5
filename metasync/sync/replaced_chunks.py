"""Stores chunks that take the place of others as deltas, where that is smaller (format.md, 5.8).

A file's new chunks come in order. One that the agreed file has too says where in it the reading is; one that it has not
stands for the old chunk that it overlaps most. The new cut points are where the bytes put them, whatever is stored how
(architecture.md, D1). A base is a blob of the index that the push goes on from. Its bytes are at hand, or are fetched
where the lines say that this takes less time than the whole chunk (HyCloud, eq. 2). At the largest depth a link farther
up the base's chain is the base: all that came after that link is stored once more.

How hard it tries follows the file's history, as HyCloud has it (E et al., eq. 1): a file whose chunks gain nothing by
deltas gets few more trials in this push, and the chunks of a file that changed once are kept for its next change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from metasync.local.state import State
from metasync.objects import delta
from metasync.objects.model import Chunk, ObjectKind
from metasync.store.deltas import Chains, Link, depth_of
from metasync.store.index import Index
from metasync.store.pack_format import DEPTH_MAX, Delta
from metasync.sync.old_chunks import SMALL_BYTES_LEAST, known_chunks
from metasync.transfer.upload import Upload
from metasync.worktree.bases import BaseCache
from metasync.worktree.ingest import Was

MISSES_MAX: Final = 3  # chunks of a file that gained nothing, one after the other, until few are tried
MISSED_SHARE: Final = 8  # then one in so many is
GOOD_SHARE: Final = 4  # a delta of up to this part of the chunk is good enough: no other base is tried
SHARE_AT_FIRST: Final = 0.25  # HyCloud saw deltas of a tenth, as a rule
NEW_SMALL_MAX: Final = 128  # new files of one chunk that a push keeps: in the cache each is a file, which takes time
NODES_TOGETHER: Final = 64 << 10  # bytes of file objects that are put into the local state at a time


class ReplacedChunks:
    """Takes what a push reads of files, on top of one index.

    `known`: whether a chunk need not be stored. `level`: of compression. `whole_bytes`: of files up to that size only
    `NEW_SMALL_MAX` new ones are kept.
    """

    def __init__(
        self,
        index: Index,
        upload: Upload,
        known: Callable[[bytes], bool],
        bases: BaseCache,
        db: State,
        *,
        level: int,
        whole_bytes: int,
        fetch: Callable[[bytes], bytes | None] = lambda _: None,
    ) -> None:
        self.index = index
        self.upload = upload
        self.known = known
        self.bases = bases
        self.level = level
        self._whole_bytes = whole_bytes
        self._fetch = fetch
        self._small_left = NEW_SMALL_MAX
        self._db = db
        self._nodes: list[tuple[bytes, int, bytes]] = []
        self._nodes_bytes = 0
        self._chains = Chains(index.find)

    def of(self, was: Was, size: int) -> FileChunks | None:
        """What takes the chunks of one file; None where it is too small, or one of many new ones."""
        if size < SMALL_BYTES_LEAST:
            return None
        former = known_chunks(self._db, was())
        if not former and size <= self._whole_bytes:
            self._small_left -= 1
            if self._small_left < 0:
                return None
        return FileChunks(self, former)

    def keep(self, nodes: Sequence[tuple[bytes, bytes]]) -> None:
        """Keeps a file's nodes on this device: the next push asks them where its chunks were."""
        self._nodes += ((node_id, int(ObjectKind.FILE), data) for node_id, data in nodes)
        self._nodes_bytes += sum(len(data) for _, data in nodes)
        if self._nodes_bytes >= NODES_TOGETHER:
            self.end()

    def end(self) -> None:
        """All files were read."""
        if self._nodes:
            self._db.put_objects(self._nodes)
            self._nodes, self._nodes_bytes = [], 0
        self.bases.note()

    def base(self, base: bytes, data: bytes, share: float | None) -> bytes | None:
        """The bytes of a base, from the cache, or from a backend where that pays; None: they are not at hand.

        `data`: the chunk that is to be made of it. `share`: the part of it that the delta is likely to have; None:
        nothing is fetched.
        """
        found = self.bases.get(base)
        if found is not None or share is None:
            return found
        transfer = self.upload.transfer
        copies, size = transfer.placement.copies, delta.alone_bytes(data, self.level)
        fetched = next((o.length for _, o in self.index.find(base)), 0)
        whole, made = size * copies, int(size * share) * copies
        lines = [place.name for place in transfer.places.values()]
        if not transfer.estimates.pays(lines, fetched=fetched, whole=whole, delta=made):
            return None
        found = self._fetch(base)
        if found is not None:
            self.bases.keep(base, found, changes=True)
        return found

    def pass_over(self, former: bytes) -> None:
        """Another chunk stands in the place of this one. Of a whole one more is made, at the largest depth."""
        if depth_of(self.index, former) != 0:
            self.bases.pass_over(former)

    def row(self, base: bytes) -> Delta | None:
        """What a delta of this base is made of, or one of what it is made of itself; None: of none."""
        depth = depth_of(self.index, base)
        if depth is None or depth < DEPTH_MAX:
            return None if depth is None else Delta(base, depth + 1)
        chain = self._chains.of(base)
        return self._farther_up(chain) if chain is not None else None

    def _farther_up(self, chain: Sequence[Link]) -> Delta:
        """Of which link of a chain of the largest depth the next delta is made, of those at hand and the whole one.

        It has what came after the link, and so many can follow it as the link is far from the largest depth: what each
        of these has to bear of it is to be little. A chunk that grows for long is so stored about twice, not again and
        again from its beginning.
        """
        best, least, since = Delta(chain[-1].located.id, 1), math.inf, 0
        for last, link in pairwise(chain):
            since += last.located.length
            depth = link.delta.depth if link.delta is not None else 0
            share = since / (DEPTH_MAX - depth)
            if share <= least and (link.delta is None or link.located.id in self.bases):
                best, least = Delta(link.located.id, depth + 1), share
        return best


class FileChunks:
    """The chunks of one file. `former`: those of the agreed file at its path."""

    def __init__(self, push: ReplacedChunks, former: Sequence[Chunk]) -> None:
        self._push = push
        self._former = former
        self._ends = list(accumulate(c.size for c in former))
        self._place = {c.id: end - c.size for c, end in zip(former, self._ends, strict=True)}
        self._at = 0
        self._shift = 0  # how much farther behind the bytes are here than in the agreed file
        self._misses = 0
        self._tried = 0
        self._share: float | None = SHARE_AT_FIRST  # of a chunk that its delta has, by the last one that was tried

    def take(self, chunk_id: bytes, data: bytes) -> None:
        """Has a chunk stored, if it is not known, and kept as a base."""
        push, at = self._push, self._at
        self._at += len(data)
        if chunk_id in self._place:
            self._shift = at - self._place[chunk_id]
        if not push.known(chunk_id):
            made = self._delta(at, data) if self._former else None
            if made is None:
                push.upload.add(ObjectKind.BLOB, chunk_id, data)
            else:
                push.upload.add(ObjectKind.BLOB, chunk_id, *made)
        push.bases.keep(chunk_id, data, changes=bool(self._former))

    def end(self, nodes: Sequence[tuple[bytes, bytes]]) -> None:
        """The file has these nodes."""
        self._push.keep(nodes)

    def _delta(self, at: int, data: bytes) -> tuple[bytes, Delta] | None:
        """The smallest delta that the old chunks around give, with its row; None where none is clearly smaller."""
        self._tried += 1
        if self._misses > MISSES_MAX and self._tried % MISSED_SHARE:
            return None
        best: tuple[bytes, Delta] | None = None
        for n in self._around(at, len(data)):
            row = self._push.row(self._former[n].id)
            base = self._push.base(row.base, data, self._share) if row is not None else None
            if row is None or base is None:
                continue
            made = delta.gain(base, data, self._push.level)
            if made is not None and (best is None or len(made) < len(best[0])):
                best = made, row
                self._follow(at + len(data), len(data), n)
                self._push.pass_over(self._former[n].id)
            if made is not None and len(made) <= len(data) // GOOD_SHARE:
                break
        self._misses = 0 if best is not None else self._misses + 1
        self._share = len(best[0]) / len(data) if best is not None else None
        return best

    def _around(self, at: int, size: int) -> Iterator[int]:
        """The numbers of the two old chunks that these bytes overlap most, the more of it first."""
        start = min(max(0, at - self._shift), self._ends[-1] - 1)
        first = bisect_right(self._ends, start)
        last = bisect_right(self._ends, min(start + size, self._ends[-1]) - 1)
        overlaps = []
        for n in range(first, last + 1):
            begin = self._ends[n] - self._former[n].size
            overlaps.append((max(begin, start) - min(self._ends[n], start + size), n))
        yield from (n for _, n in sorted(overlaps)[:2])

    def _follow(self, end: int, size: int, n: int) -> None:
        """A chunk was made of an old one: they end at the same place, unless that is far off."""
        shift = end - self._ends[n]
        if abs(shift - self._shift) < size // 4:
            self._shift = shift
