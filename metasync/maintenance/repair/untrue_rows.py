"""Objects that do not lie where the index lists them: which packs, for what, and who listed them (`check --read-data`).

A row of an index is what the device that wrote it says, and the bytes of a pack prove no more than its name. So where a
pack is read, each object that is listed in it is compared with its id. Deltas come last: they are opened with what they
are made of, which may lie anywhere.

What is found counts as not listed (`true_index`) for all else that a check looks at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from metasync.consensus import State
from metasync.errors import CANNOT_BE_READ, MetaSyncError
from metasync.events import Progress
from metasync.local.spill import IdSet
from metasync.maintenance.repair.lost_paths import held
from metasync.objects import walk
from metasync.objects.model import Entry, Kind
from metasync.objects.walk_large import Losses, gather
from metasync.reports.checks import Untrue
from metasync.session import unreadable
from metasync.session.session import Agreed, Session
from metasync.session.states import Chain
from metasync.store.index import Index, PackId, PackRecord, TrueIndex
from metasync.store.pack_format import DELTA, has_deltas
from metasync.transfer.contents import Contents

OPENED_TOGETHER_BYTES: Final = 32 << 20  # of what deltas are made of
OPENED_TOGETHER: Final = 4096  # deltas
NAMED_MAX: Final = 10  # of the paths and objects of a pack; and packs of which is told who listed what is not in them


class UntrueRows:
    """What is listed in packs and does not lie there."""

    def __init__(self) -> None:
        self._ids: dict[PackId, IdSet] = {}
        self._first: dict[PackId, list[bytes]] = {}
        self._all = IdSet()

    def add(self, pack: PackId, ids: Iterable[bytes]) -> None:
        for object_id in ids:
            self._all.add(object_id)
            self._ids.setdefault(pack, IdSet()).add(object_id)
            first = self._first.setdefault(pack, [])
            if len(first) < NAMED_MAX:
                first.append(object_id)

    def has(self, pack: PackId, object_id: bytes) -> bool:
        """Whether an object does not lie in a pack that is said to have it."""
        return pack in self._ids and object_id in self._ids[pack]

    def __bool__(self) -> bool:
        return bool(self._ids)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._all

    def packs(self) -> list[PackId]:
        return sorted(self._ids)

    def some(self, pack: PackId) -> tuple[bytes, ...]:
        """The first objects that were found not to lie in a pack."""
        return tuple(self._first[pack])

    def count(self, pack: PackId) -> int:
        return len(self._ids[pack])

    def keep(self, is_named: Callable[[PackId], bool]) -> None:
        """Drops the packs that no index names any more."""
        for pack in [pack for pack in self._ids if not is_named(pack)]:
            del self._ids[pack], self._first[pack]


NO_ROWS: Final = UntrueRows()


def true_index(agreed: Agreed, rows: UntrueRows) -> Agreed:
    """The same, with an index that does not list what is not there."""
    return replace(agreed, index=TrueIndex(agreed.index, rows.has)) if rows else agreed


def add_deltas(s: Session, agreed: Agreed, rows: UntrueRows) -> None:
    """Adds the deltas of which something else comes than their ids say. One that cannot be opened now is none of them.

    Each is read in its own pack, and what it is made of wherever that is.
    """
    left = true_index(agreed, rows)
    contents = s.contents(left)
    some, size, done = dict[bytes, PackId](), 0, 0
    for record, object_id in _deltas(left.index):
        if object_id in some or size >= OPENED_TOGETHER_BYTES or len(some) >= OPENED_TOGETHER:
            _open(contents, some, rows)
            done += len(some)
            s.listener(Progress("check", done, None, "deltas"))
            some, size = {}, 0
        some[object_id] = record.id
        size += contents.size_of(object_id)
    _open(contents, some, rows)


def _open(contents: Contents, some: dict[bytes, PackId], rows: UntrueRows) -> None:
    if some:
        only = contents.only_in(some)
        only.fetch(some, lambda _: None, on_lost=lambda *_: None)
        for object_id, pack in some.items():
            if only.is_refuted(pack, object_id):
                rows.add(pack, [object_id])


def _deltas(index: Index) -> Iterator[tuple[PackRecord, bytes]]:
    for record in index.packs().values():
        if has_deltas(record.tags):
            yield from ((record, one.id) for one in index.inside(record) if one.encoding == DELTA)


# ---- what is said of them


def told(s: Session, agreed: Agreed, rows: UntrueRows) -> tuple[Untrue, ...]:
    """What to say of each pack: how much of it is untrue, which paths that concerns, and who listed it."""
    if not rows:
        return ()
    s.listener(Progress("check", len(rows.packs()), None, "packs that lack what is listed in them"))
    paths, out = _paths(s, agreed, rows), list[Untrue]()
    for pack in rows.packs():
        some = rows.some(pack)
        state = _first_with(s, agreed.state, partial(_lists, pack, some[0])) if len(out) < NAMED_MAX else None
        version, device = (state.v, unreadable.author(s, state)) if state is not None else (None, "")
        out.append(Untrue(pack[1], rows.count(pack), some, tuple(paths.get(pack, ())), version, device))
    return tuple(out)


def _lists(pack: PackId, object_id: bytes, index: Index) -> bool:
    return any(record.id == pack for record, _ in index.find(object_id))


def _first_with(s: Session, newest: State, is_in: Callable[[Index], bool]) -> State | None:
    """The first version of which the index has something that the newest one has; None: that cannot be told any more.

    Bisects: what an index lists stays listed, until a collection or a repair takes it out.
    """
    chain, high, low = Chain(s, newest), newest, 0
    with contextlib.suppress(MetaSyncError):
        while high.v - low > 1:
            middle = chain.at(high, (low + high.v) // 2)
            if is_in(s.indexes.of_state(middle)[1]):
                high = middle
            else:
                low = middle.v
        return high
    return None


def _paths(s: Session, agreed: Agreed, rows: UntrueRows) -> dict[PackId, list[bytes]]:
    """The first paths of the newest version that are made of what was found, by the packs that do not hold it."""
    out: dict[PackId, list[bytes]] = {}
    contents = s.contents(true_index(agreed, rows))

    def add(path: bytes, ids: Iterable[bytes]) -> None:
        for object_id in ids:
            for record, _ in agreed.index.find(object_id) if object_id in rows else ():
                if rows.has(record.id, object_id) and path not in (here := out.setdefault(record.id, [])):
                    here += [path] * (len(here) < NAMED_MAX)

    def take(entries: list[tuple[bytes, Entry]]) -> None:
        for path, entry in entries:
            if entry.kind is Kind.FILE and entry.size:
                add(path, _made_of(contents, entry))

    losses = Losses(lambda prefix, node_id: add(prefix or b"/", [node_id]), rows.__contains__)
    with contextlib.suppress(MetaSyncError):
        add(b"/", [agreed.state.master])
        contents.walk(gather(agreed.tree_root, contents.size_of, take, held, losses), on_lost=lambda *_: None)
    return out


def _made_of(contents: Contents, entry: Entry) -> Iterator[bytes]:
    """The objects of a file, as far as the list of its chunks can be read."""
    yield entry.root or entry.content
    if entry.root:
        with contextlib.suppress(*CANNOT_BE_READ):
            yield from (c.id for c in contents.walk(walk.chunks((entry.root,)))[entry.root])
