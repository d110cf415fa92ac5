"""The retained list: what a workspace no longer keeps, on purpose (format.md, section 6.4).

These are versions that were dropped, and paths that were forgotten: snapshots of versions that had them get other
trees. A state names the list, or nothing while all is kept and nothing is said about it. What is missing and not in
it is a loss.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from metasync.codec import Reader, Tags, check_format, encode_tags, text16, u8, u16, u32, u64
from metasync.errors import FormatError
from metasync.objects.model import Snapshot
from metasync.store import retention
from metasync.store.retention import Keep

FORMAT: Final = 1
INTERVALS_MAX: Final = 1 << 16  # ten years of a version a minute, one kept a day, have a twentieth of that
NAMES_MAX: Final = 1 << 12
POLICY_BYTES_MAX: Final = 1 << 12
REPLACED_MAX: Final = 1 << 16  # 4 MiB
NO_SNAPSHOT: Final = bytes(32)


class Dropped(NamedTuple):
    """Versions from `first` to `last` are no longer kept. `below`: id of the snapshot agreed at version `first` - 1.

    Zeros where nothing had been pushed by then.
    """

    first: int
    last: int
    below: bytes = NO_SNAPSHOT


class Named(NamedTuple):
    """A version that a person gave a name. It is kept."""

    name: str
    version: int


class Replaced(NamedTuple):
    """A snapshot whose tree is another one than it says: that tree without the paths that were forgotten."""

    snapshot: bytes
    root: bytes


class Retained(NamedTuple):
    """What is no longer kept.

    dropped   ascending, with kept versions between any two
    named     by name
    keep      the agreed policy
    replaced  by the snapshots' ids
    purge     packs may still hold what was forgotten: the next collection leaves nothing that is not needed
    """

    dropped: tuple[Dropped, ...] = ()
    named: tuple[Named, ...] = ()
    keep: Keep = Keep()
    replaced: tuple[Replaced, ...] = ()
    purge: bool = False
    tags: Tags = ()

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return self != Retained()

    def over(self, v: int) -> Dropped | None:
        """The interval that a version was dropped with; None: it is kept."""
        at = bisect_right(self.dropped, v, key=lambda d: d.first)
        return self.dropped[at - 1] if at and v <= self.dropped[at - 1].last else None

    def has_dropped(self, v: int) -> bool:
        """Whether the tree of a version may be gone without loss."""
        return self.over(v) is not None

    def replacing(self, snapshot_id: bytes) -> bytes | None:
        """The root of the tree that a snapshot has in place of its own; None: its own."""
        at = bisect_left(self.replaced, snapshot_id, key=lambda r: r.snapshot)
        found = at < len(self.replaced) and self.replaced[at].snapshot == snapshot_id
        return self.replaced[at].root if found else None

    def as_kept(self, snapshot_id: bytes, snapshot: Snapshot) -> Snapshot:
        """A snapshot with the tree that is kept of it."""
        root = self.replacing(snapshot_id)
        return snapshot if root is None else snapshot._replace(root=root)

    def without(self, pushes: Iterable[tuple[int, bytes]], kept: Iterable[int]) -> Retained:
        """The same with fewer versions. `pushes`: all that are kept now, ascending, with their snapshots' ids.

        A version that is no push is kept with the push before it, and goes with it.
        """
        stay, ascending = set(kept), list(pushes)
        gone = [(d.first, d.last) for d in self.dropped]
        gone += [(v, after - 1) for (v, _), (after, _) in pairwise(ascending) if v not in stay]
        joined: list[tuple[int, int]] = []
        for first, last in sorted(gone):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(last, joined[-1][1])
            else:
                joined.append((first, last))
        out: list[Dropped] = []
        for first, last in joined:  # the push below it stays: else it were joined with that one's
            at = bisect_right(ascending, first - 1, key=lambda push: push[0])
            out.append(Dropped(first, last, ascending[at - 1][1] if at else NO_SNAPSHOT))
        return self._replace(dropped=tuple(out))


def encode_retained(r: Retained) -> bytes:
    if _fault(r):
        raise ValueError(_fault(r))
    rows = b"".join(u64(d.first) + u64(d.last) + d.below for d in r.dropped)
    names = b"".join(text16(n.name) + u64(n.version) for n in r.named)
    policy = text16(str(r.keep))
    replaced = u32(len(r.replaced)) + b"".join(one.snapshot + one.root for one in r.replaced)
    said = u16(len(r.named)) + names + policy + replaced + u8(r.purge)
    return u8(FORMAT) + u32(len(r.dropped)) + rows + said + encode_tags(r.tags)


def decode_retained(data: bytes) -> Retained:
    """Reads what `encode_retained` wrote; `FormatError`, or `UpgradeError` if newer."""
    r = Reader(data, "retained list")
    check_format(r.u8(), "the retained list")
    dropped = tuple(Dropped(r.u64(), r.u64(), r.take(32)) for _ in range(r.count(r.u32(), 48)))
    named = tuple(Named(r.text16(), r.u64()) for _ in range(r.count(r.u16(), 10)))
    text = r.text16(POLICY_BYTES_MAX)
    try:
        keep = retention.parse(text)
    except ValueError as e:
        raise FormatError(f"retained list: {e}") from e
    replaced = tuple(Replaced(r.take(32), r.take(32)) for _ in range(r.count(r.u32(), 64)))
    purge = r.u8()
    if purge > 1:
        raise r.fail(f"a flag of {purge}")
    out = Retained(dropped, named, keep, replaced, bool(purge), r.tags())
    r.end()
    if str(keep) != text:
        raise FormatError("retained list: a policy in other words than its own")
    if fault := _fault(out):
        raise FormatError(f"retained list: {fault}")
    return out


def _fault(r: Retained) -> str:
    if not r:
        return "no intervals, and nothing else"
    if len(r.dropped) > INTERVALS_MAX or len(r.named) > NAMES_MAX or len(r.replaced) > REPLACED_MAX:
        return f"{len(r.dropped)} intervals, {len(r.named)} names and {len(r.replaced)} trees"
    before = -1
    for first, last, below in r.dropped:
        if not before + 1 < first <= last or len(below) != len(NO_SNAPSHOT):
            return "intervals out of order, or two that are one"
        before = last
    if any(a.name >= b.name for a, b in pairwise(r.named)):
        return "names out of order"
    for name, version in r.named:
        if not retention.is_name(name) or r.has_dropped(version):
            return f"{name!r} is no name, or one of a version that is dropped"
    if any(a.snapshot >= b.snapshot for a, b in pairwise(r.replaced)):
        return "trees out of order"
    if any(len(one.snapshot) != 32 or len(one.root) != 32 for one in r.replaced):
        return "a tree without its ids"
    return ""
