"""`metasync forget`: takes paths out of all versions that are kept, such as a secret that slipped in.

Versions are agreed for good, so no snapshot changes. The retained list names for each one that had such a path another
tree: its own without the path. Whoever reads history reads that one, and a collection of garbage deletes what only the
former trees need. The newest version must not have the path: a command on history takes no file from anybody's folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from metasync.consensus import JOURNAL_KEY, Change, State
from metasync.errors import UsageError, WorkspaceError
from metasync.events import Phase, Progress
from metasync.history.diff import top_paths
from metasync.history.log import History, Moment
from metasync.local.spill import IdSet
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, version_of
from metasync.reports.backends import GcReport
from metasync.reports.history import ForgetReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, space
from metasync.session.folder import BASE_KEY
from metasync.session.session import Session
from metasync.store.retained import REPLACED_MAX, Replaced
from metasync.sync.old_chunks import bases_of
from metasync.transfer.upload import Upload, known_in

OP_ID_BYTES: Final = 16


class _Had(NamedTuple):
    """What had the paths. `at`: the version and the moment of each snapshot; `ids`: of the contents."""

    at: tuple[tuple[int, Moment], ...]
    ids: IdSet
    bytes: int


def forget(
    s: Session, paths: Sequence[bytes], collect: Callable[[Session], GcReport] | None = None, *, dry_run: bool = False
) -> ForgetReport:
    """Has it agreed that no version has these paths any more. `collect`: is called then, to delete what nothing needs.

    `UsageError`: the newest version has one, or no version that is kept does. `DamagedError`: a version cannot be read,
    so that it is not known whether it has them; nothing was changed. `NoQuorumError`.
    """
    tops = top_paths(paths)
    if tops == (b"",):
        raise UsageError("the whole workspace cannot be forgotten", next_step="Name a file or a directory in it.")
    agreement.settle_journal(s)
    for _ in range(LOST_ROUNDS_MAX):
        history = History(s)
        if history.problem is not None:
            raise history.problem
        s.indexes.retained(history.newest.state)  # must be readable: a list is made from it
        had = _look(history, tops)
        state = None if dry_run else _agree(history, tops, had)
        if dry_run or state is not None:
            versions = sorted({v for v, _ in had.at})
            v = state.v if state is not None else None
            report = ForgetReport(v, tops, len(versions), versions[0], versions[-1], len(had.ids), had.bytes)
            if dry_run or collect is None:
                return report
            freed = collect(s)
            return replace(report, freed=freed, stay=_staying(s, had.ids))
    raise WorkspaceError(f"others were faster {LOST_ROUNDS_MAX} times; nothing was changed", next_step="Run again.")


def _staying(s: Session, ids: IdSet) -> int:
    """How many of these contents the newest index names."""
    index = s.load(s.newest_state()).index
    kinds = (index.ids(kind) for kind in (ObjectKind.BLOB, ObjectKind.FILE))
    return sum(i in ids for some in kinds for i in some)


# ---- what has the paths


def _look(history: History, tops: Sequence[bytes]) -> _Had:
    """Finds the paths in all versions that are kept, and in what merges replaced beside them."""
    history.whole = True
    at: list[tuple[int, Moment]] = []
    ids, size, seen = IdSet(), 0, IdSet()
    missed = set(tops)
    history.s.listener(Phase("scan"))
    for moment in history.staged():
        _refuse(history, moment, tops, "what a merge replaced, which the next push brings,")
    for number, moment in enumerate(history.line()):
        if number == 0:
            _refuse(history, moment, tops, "the newest version")
        for one in (moment, *history.kept_beside(moment.snapshot)):
            if one.id in seen:
                continue
            seen.add(one.id)
            found = {p: e for p in tops if (e := history.find(one.snapshot.root, p).entry) is not None}
            if found:
                at.append((version_of(moment.snapshot), one))
                size += sum(_contents(history, one, p, e, ids) for p, e in found.items())
                missed -= found.keys()
        history.s.listener(Progress("scan", number + 1, None, "versions"))
    if missed:
        raise UsageError(
            f"no version that is kept has {os.fsdecode(min(missed))}",
            next_step="`metasync ls -r VERSION` lists what a version has. `metasync gc` deletes what none has.",
        )
    return _Had(tuple(at), ids, size)


def _refuse(history: History, moment: Moment, tops: Sequence[bytes], what: str) -> None:
    for path in tops:
        if history.find(moment.snapshot.root, path).entry is not None:
            raise UsageError(
                f"{os.fsdecode(path)} is in {what}; nothing was changed",
                next_step="Delete it or move it elsewhere, and push. Then it can be forgotten.",
            )


def _contents(history: History, moment: Moment, path: bytes, entry: Entry, ids: IdSet) -> int:
    """Adds the contents at a path, and below. -> the bytes of those that are new."""
    below = history.subtree(moment.snapshot.root, path) if entry.kind is Kind.DIR else {path: entry}
    size = 0
    for e in below.values():
        key = e.root or e.content
        if e.kind is Kind.FILE and e.size and key not in ids:
            ids.add(key)
            size += e.size
    return size


# ---- the version that says so


def _agree(history: History, tops: Sequence[bytes], had: _Had) -> State | None:
    """Stores the trees without the paths, and proposes the list that names them. -> the state; None: it lost."""
    s, base = history.s, history.newest
    state = base.state
    upload = Upload(
        s.transfer, replace(s.form, epoch=state.epoch), state.gen, runner=s.runtime, listener=s.listener,
        entropy=s.entropy, clock=s.runtime.clock, begin=lambda: space.begin_asking(s, base.index), look=s.check,
    )  # fmt: skip
    known, roots = known_in(base.index, upload), dict[bytes, bytes]()
    s.listener(Phase("pack"))
    for n, (_, moment) in enumerate(had.at, 1):
        root = moment.snapshot.root
        if root not in roots:
            roots[root], nodes = _without(history, root, tops)
            for object_id, data in nodes.items():
                if not known(object_id):
                    upload.add(ObjectKind.DIR, object_id, data)
            s.db.put_objects((i, int(ObjectKind.DIR), data) for i, data in nodes.items())
        s.listener(Progress("pack", n, len(had.at), "versions"))
    replaced = {one.snapshot: one for one in history.retained.replaced}
    replaced.update((m.id, Replaced(m.id, roots[m.snapshot.root])) for _, m in had.at)
    if len(replaced) > REPLACED_MAX:
        raise UsageError(
            f"{len(replaced):,} versions would have another tree, and at most {REPLACED_MAX:,} can",
            next_step="Drop older versions first: metasync gc --keep-last N",
        )
    upload.seal()
    with s.indexes.storing(state, base.root, base.segments, upload.index_segments()) as stored:
        upload.finish()
        refs = stored()
    retained = history.retained._replace(replaced=tuple(replaced[i] for i in sorted(replaced)), purge=True)
    change = Change(
        op_id=s.entropy(OP_ID_BYTES),
        index=refs[-1] if refs else None,
        retained=s.indexes.store_retained(state, retained),
        adding=tuple(refs[:-1]),
    )
    s.listener(Phase("agree"))
    decided = agreement.propose(s, state, change)
    if not decided.mine:
        return None
    if s.base_state().hash == state.hash and not s.db.has(UNFINISHED_KEY):
        s.db.set(BASE_KEY, decided.state)
    s.db.set(JOURNAL_KEY, None)
    bases_of(s).trim(0)  # what was forgotten is not kept for deltas either
    return decided.state


def _without(history: History, root: bytes, tops: Sequence[bytes]) -> tuple[bytes, Mapping[bytes, bytes]]:
    """A tree without these paths: its root, and the directory nodes that are new."""
    above: dict[bytes, Entry] = {}
    there = [p for p in tops if history.find(root, p).entry is not None]
    for path in there:
        while path := path.rpartition(b"/")[0]:
            entry = history.find(root, path).entry
            assert entry is not None
            above[path] = entry
    return history.contents.walk(walk.rebuild(root, above, there, history.s.ids))
