"""Brings the folder to an agreed state: scan, merge, checkout (architecture.md, D8).

What is here and not agreed stays: it is merged into the tree, and remains a change for the next push. `integrate` is
what a pull does with news, and what a push does when another was faster.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.checkout.held import Held, go_on, hold, parts_seen
from metasync.checkout.plan import replaceable, unfit
from metasync.codec import amount
from metasync.consensus import ZERO_HASH, State
from metasync.errors import DamagedError, ExcludedError, MetaSyncError, UpgradeError, WorkspaceError
from metasync.events import Notice, Phase
from metasync.local.lock import GiveWay, Turns
from metasync.local.memory import room_for_tree
from metasync.local.state_keys import CONFLICTS, KEPT_KEY, UNFINISHED_KEY, UNPLACED, Unplaced
from metasync.merge import guard
from metasync.merge.changes import same_bytes
from metasync.merge.copies import Origin, sides_of
from metasync.merge.trees import Merge, merge
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind
from metasync.reports.sync import Changes, PullReport
from metasync.session import agreement
from metasync.session.agreement import LEFT_KEY
from metasync.session.around import heeding
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.sync import sides
from metasync.sync.fetch import ChangedMeanwhile, Nowhere, deliver, read_here, tell_brought, whole
from metasync.sync.scanned import noted, summary
from metasync.sync.texts import MergedText, kept_snapshot, merge_texts
from metasync.transfer.contents import Contents
from metasync.worktree import case
from metasync.worktree.index import Row, files_with, load_rows, rows_at, store_rows
from metasync.worktree.merge_walk import walk_folder, walk_index, walk_nothing
from metasync.worktree.overlay import Tree, changed, note_index_of
from metasync.worktree.scan import Ingest, Scan, scan, store_scan

OnTree: TypeAlias = Callable[[Mapping[bytes, Entry]], None]
ROUNDS_MAX = 3  # a folder that changes under every one of these merges is too busy to be merged now


class _Looked(NamedTuple):
    """What a look at the folder has found. `is_settled`: the rows were the tree of the base."""

    seen: Scan
    theirs: Tree
    is_settled: bool


@dataclass
class Plan:
    """What a merge came to: the changes to the folder, and where their bytes are. `left`: what the agreed state would
    lose if the merged tree were agreed next."""

    scan: Scan
    rows: Mapping[bytes, Row]  # where a checkout may write some
    theirs: Tree
    differing: set[bytes] | None  # paths at which `theirs` may not be what the rows say; None: at any
    merge: Merge
    left: guard.Loss
    maker: Origin
    news: Mapping[bytes, walk.Change]
    texts: dict[bytes, MergedText] = field(default_factory=dict)
    told: Changes = field(default_factory=Changes)  # the changes to the folder, for people
    held: Held | None = None  # what an earlier turn has staged of it


class _Turn(NamedTuple):
    """What a turn that gave way leaves to the next: the plan, of a merge of these two states."""

    base: State
    target: State
    plan: Plan


class _News(NamedTuple):
    """What a turn has found to be new between two trees: it reads many objects."""

    base: bytes | None
    target: bytes | None
    news: Mapping[bytes, walk.Change]


def rebased(s: Session, base: Agreed, target: Agreed) -> Agreed:
    """The folder's base for a merge with `target`: another one by now, if that is of a later era."""
    if base.state.era == target.state.era:
        return base
    base = s.base()
    if s.db.has(LEFT_KEY):
        with s.db.transaction():
            with contextlib.suppress(MetaSyncError):  # then what was deleted comes back
                store_rows(s.db, _deleted(s, s.load(s.db.need(LEFT_KEY)), base))
            s.db.set(LEFT_KEY, None)
    return base


def over_skips(base: Agreed, target: Agreed) -> Agreed:
    """The base of a merge where the folder is at a version that was passed over: it has the last good tree.

    So what the folder has beyond that tree is this device's own, and stays.
    """
    if base.snapshot is None or base.state.devices == target.state.devices:  # a skip comes with a device set of its own
        return base
    skip = target.devices.policy.skip_over(base.state.v)
    if skip is None:
        return base
    snapshot = base.snapshot._replace(root=skip.tree) if skip.master != ZERO_HASH else None
    return replace(base, state=replace(base.state, master=skip.master), snapshot=snapshot)


def _bring_again(s: Session, base: Agreed) -> None:
    """Has what skipped versions deleted be brought again: this device knows nothing of it any more."""
    tree = s.flat(base)
    here = rows_at(s.db, tree)
    gone = [path for path in tree if path not in here and not sides.is_there(s, path)]
    s.db.put_records(UNPLACED, [Unplaced(path, "a version that was skipped had deleted it") for path in gone])


def _deleted(s: Session, left: Agreed, base: Agreed) -> list[tuple[bytes, Row]]:
    """Rows for what the version that the folder left lacks and `base` has: it was here once, and then deleted."""
    contents = s.contents(base)
    rows, there = load_rows(s.db), s.flat(left, contents)
    root = rows.get(b"")
    if root is None:
        return []
    modes = {Kind.FILE: stat.S_IFREG, Kind.DIR: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}
    return [
        (path, Row(entry, root.dev, 0, 0, 0, 0, modes[entry.kind] | entry.mode, trusted=False))
        for path, entry in s.flat(base, contents).items()
        if path not in there and path not in rows
    ]


def integrate(
    s: Session,
    base: Agreed,
    target: Agreed,
    *,
    dry_run: bool = False,
    force: bool = False,
    pushing: bool = False,
    on_tree: OnTree = lambda _: None,
    before: Callable[[], None] = lambda: None,
    turns: Turns | None = None,
) -> PullReport:
    """Merges an agreed state into the folder, which then is at it. `WorkspaceError` if the folder never holds still.

    `GuardError`, unless `force`: most of the files here would go, or, when `pushing` is what comes next, most of the
    agreed ones; nothing was changed. `on_tree` is shown the agreed tree. `before` is called once all is at hand and
    nothing is changed yet, and may raise. `turns`: `GiveWay` before that, where others are to go first.
    """
    left = rebased(s, base, target)
    base = over_skips(left, target)
    if base is not left and not dry_run:
        _bring_again(s, base)
    lost: MetaSyncError | None = None
    for _ in range(ROUNDS_MAX):
        try:
            return _integrate_once(
                s, base, target, on_tree, before, turns, dry_run=dry_run, force=force, pushing=pushing
            )
        except ChangedMeanwhile as e:
            lost = e.__cause__ if isinstance(e.__cause__, DamagedError) else None
        except (DamagedError, UpgradeError) as e:
            lost = e
            kept = _as_kept(s, base, target) if isinstance(e, DamagedError) else None
            if kept is None:
                break
            base = kept
    if lost is not None:
        from metasync.session import unreadable

        raise unreadable.named(s, base, target, lost) from lost
    raise WorkspaceError(
        f"files in {os.fsdecode(s.tree.root)} changed again and again while they were merged; nothing was replaced",
        next_step="Run again when the programs that write there are quiet.",
    )


def _as_kept(s: Session, base: Agreed, target: Agreed) -> Agreed | None:
    """The base with what is kept of its tree, where the tree is gone on purpose; None where it is not.

    A tree of which paths were forgotten has another in its place; that of a dropped version has none. A tree that
    cannot be read for another reason is damaged, and stays an error.
    """
    from metasync.session import unreadable

    retained = unreadable.list_or_older(s, target.state)
    is_dropped, root = retained.has_dropped(base.state.v), retained.replacing(base.state.master)
    if base.snapshot is None or not (is_dropped or root):
        return None
    try:
        s.flat(base, s.contents(target))
    except DamagedError:
        is_there = root is not None and not is_dropped and root != base.tree_root
        told = (
            f"version {base.state.v}, which this folder is at, is kept without what was forgotten, "
            "and files that are still here count as new"
            if is_there
            else f"version {base.state.v}, which this folder is at, is no longer kept: nothing counts as deleted"
        )
        s.listener(Notice(told, warning=True))
        return replace(base, snapshot=base.snapshot._replace(root=root) if is_there and root else None)
    return None


def _integrate_once(
    s: Session,
    base: Agreed,
    target: Agreed,
    on_tree: OnTree,
    before: Callable[[], None],
    turns: Turns | None,
    *,
    dry_run: bool,
    force: bool,
    pushing: bool,
) -> PullReport:
    contents = s.contents(target)
    with heeding(s, turns):
        plan = _plan_again(s, base, target, turns, contents)
        if plan is None:
            news = _news(base, target, contents, turns) if base.tree_root != target.tree_root else {}
            plan = _plan(s, base, target, news, contents, turns)
    if turns is not None and not dry_run:
        _let_others_go(turns, _Turn(base.state, target.state, plan))
    seen, coming = plan.scan.tree, plan.merge.changes
    waiting = [c for c in s.db.records(CONFLICTS) if c.copy in seen]
    found = sides.in_changes(coming, {c.copy for c in waiting})
    taken = guard.loss(plan.scan.tree, plan.merge.changes, s.around.gone())
    if not dry_run:
        guard.guard("pull", taken, force=force)
        if pushing:
            guard.guard("push", plan.left, force=force)
    stop = guard.stop("pull", taken) if dry_run else None
    report = PullReport(
        before=base.state.v,
        version=target.state.v,
        changes=plan.told,
        met=plan.merge.met,
        merged=tuple(sorted(plan.texts)),
        unreadable=noted(plan.scan.unreadable),
        skipped=noted(plan.scan.skipped),
        down=dict(s.down),
        bad_copies=s.bad_copies,
        conflicts=sides.told(s, target, found),
        resolved=tuple(sorted({c.path for c in waiting if c.copy in coming and sides_of(coming[c.copy]) is None})),
        warnings=(*plan.scan.warnings, *([guard.warning(stop)] if stop is not None else [])),
    )
    if dry_run:
        return report
    applied = _check_out(s, base, target, plan, contents, before, turns)
    s.around.counts(taken.net, forced=force)
    on_tree(plan.theirs)
    return replace(
        report,
        conflicts=report.conflicts + sides.told(s, target, applied.conflicts),
        skipped=report.skipped + noted(applied.kept),
        unplaced=noted(applied.unplaced),
        warnings=(*report.warnings, *_room_warning(*applied.without_room)),
        down=dict(s.down),
        bad_copies=s.bad_copies,
    )


def _room_warning(count: int, size: int) -> list[str]:
    if not count:
        return []
    files = "1 file" if count == 1 else f"{count:,} files"
    has = "has" if count == 1 else "have"
    return [f"{files} of {amount(size)} in all {has} no room here; the next pull with room brings what waits"]


def _look(s: Session, base: Agreed, news: Mapping[bytes, walk.Change], contents: Contents, ingest: Ingest) -> _Looked:
    """Scans the folder. The rows of the scan are stored: they are true of the disk, whatever becomes of the merge."""
    s.listener(Phase("scan"))
    walked = walk_index(s.tree, s.db, base.tree_root, s.around.hints())
    if base.tree_root is None and not s.db.has(UNFINISHED_KEY):  # a clone answers nobody, and saves memory
        empty = walk_nothing(s.tree, s.db, s.around.hints())
        walked = empty if empty is not None and empty.is_quiet else None
    is_settled = walked is not None
    seen = scan(walked or walk_folder(s.tree, s.db, s.flat(base, contents)), ingest)
    sides.mark(s, seen)
    store_scan(s.db, seen)
    seen.base.hold(news)
    theirs = Tree(seen.base)
    for path, (_, entry) in news.items():
        if entry is not None:
            theirs[path] = entry
        else:
            theirs.pop(path, None)
    return _Looked(seen, theirs, is_settled)


def _plan(
    s: Session,
    base: Agreed,
    target: Agreed,
    news: Mapping[bytes, walk.Change],
    contents: Contents,
    turns: Turns | None = None,
) -> Plan:
    """Scans and merges. `turns`: others are let go first between its steps."""
    ingest = s.ingest()
    here = _look(s, base, news, contents, ingest)
    _rest(turns)
    seen, theirs, base_tree = here.seen, here.theirs, here.seen.base
    paths = {*changed(seen.tree), *news}
    maker = sides.origin(s)
    is_taken = case.taken(s.tree, seen.tree, theirs)
    stay: set[bytes] = set()
    while True:
        task = merge(base_tree, seen.tree, theirs, maker.label, sorted(paths), is_taken, stay)
        texts: dict[bytes, MergedText] = {}
        try:
            requests = next(task)
            loaded = partial(whole, s, contents, merges=True)
            texts = merge_texts(requests, lambda p, e: read_here(s, p, e), loaded, ingest)
            task.send({path: text.entry for path, text in texts.items()})
        except StopIteration as stop:
            result: Merge = stop.value
        unheld = _unheld(s, result)
        if not unheld:
            break
        stay |= unheld  # grows each time, so that this ends
    _rest(turns)
    sides.tag_copies(s, result, base, target, contents, maker)
    outgoing = {p: result.changes.get(p, seen.tree.get(p)) for p in paths | result.changes.keys()}
    left = guard.loss(theirs, {p: e for p, e in outgoing.items() if e != theirs.get(p)})
    touched = {*paths, *seen.put_rows, *seen.delete_rows}
    _rest(turns)
    asked = {*touched, *result.changes, *s.db.unplaced()}  # a checkout writes no other rows
    base_tree.hold(asked)
    merged = {t.path: texts[t.path] for t in result.text}
    _rest(turns)
    rows, differing = rows_at(s.db, {b"", *asked}), touched if here.is_settled else None
    told = summary(result.changes, seen.tree.get, result.changes.get)
    return Plan(seen, rows, theirs, differing, result, left, maker, news, merged, told)


def _plan_again(s: Session, base: Agreed, target: Agreed, turns: Turns | None, contents: Contents) -> Plan | None:
    """The plan of the turn before, if all that it was made from is as it was then; the folder is looked at again."""
    turn = turns.left if turns is not None else None
    if not isinstance(turn, _Turn) or (turn.base, turn.target) != (base.state, target.state):
        return None
    plan, old = turn.plan, turn.plan.scan
    here = _look(s, base, plan.news, contents, s.ingest())
    _rest(turns)
    seen = here.seen
    rows = rows_at(s.db, {b"", *plan.merge.changes, *s.db.unplaced()})
    is_same = (
        here.is_settled == (plan.differing is not None)
        and (seen.tree.put, seen.tree.gone) == (old.tree.put, old.tree.gone)
        and (seen.busy, seen.deleted, seen.missing) == (old.busy, old.deleted, old.missing)
        and (seen.unreadable, seen.skipped) == (old.unreadable, old.skipped)
        and all(rows.get(path) == plan.rows.get(path) for path in plan.merge.changes)
    )
    if not is_same:
        return None
    _rest(turns)
    differing = None if plan.differing is None else {*plan.differing, *seen.put_rows, *seen.delete_rows}
    seen.base.hold({*(differing or ()), *plan.merge.changes, *s.db.unplaced()})
    return replace(plan, scan=seen, rows=rows, theirs=here.theirs, differing=differing)


def _news(base: Agreed, target: Agreed, contents: Contents, turns: Turns | None) -> Mapping[bytes, walk.Change]:
    """What is new since the base: what an earlier turn has found, or what the trees say."""
    found = turns.found if turns is not None else None
    if isinstance(found, _News) and (found.base, found.target) == (base.tree_root, target.tree_root):
        return found.news
    news = contents.walk(walk.diff(base.tree_root, target.tree_root, room_for_tree))
    if turns is not None:
        turns.found = _News(base.tree_root, target.tree_root, news)
        turns.got_on()
        turns.rest()
    return news


def _rest(turns: Turns | None) -> None:
    if turns is not None:
        turns.rest()


def _let_others_go(turns: Turns | None, planned: _Turn) -> None:
    """`GiveWay` where others wait; the next turn goes on with what is planned."""
    try:
        _rest(turns)
    except GiveWay:
        if turns is not None:
            turns.left = planned
        raise


def _unheld(s: Session, merged: Merge) -> set[bytes]:
    """Which of the paths that edits of this device follow to cannot be held here: the edits are nowhere else yet."""
    followed = merged.followed()
    if not followed:
        return set()
    rows = rows_at(s.db, merged.changes)
    changes = tuple(Change(p, e, rows.get(p)) for p, e in sorted(merged.changes.items()))
    return followed & {changes[i].path for i in unfit(s.tree, s.db, changes)}


def _sources(s: Session, seen: Scan, wanted: Iterable[Entry]) -> dict[bytes, bytes]:
    """Where in the folder the contents of these files may be found, by their hash.

    Files that are ignored or wait have an entry that is only kept: the others come before them.
    """
    found, busy = seen.tree.put, set(seen.busy)
    here = {e.content: p for p, e in found.items() if e.kind is Kind.FILE and p not in busy}
    rest = {e.content for e in wanted} - here.keys()
    gone = seen.tree.gone
    files = [(c, p) for c, p in files_with(s.db, rest) if p not in found and p not in gone and p not in busy]
    unplaced = s.db.unplaced() if files else {}
    here.update(sorted(files, key=lambda file: file[1] not in unplaced and not seen.ignores(file[1])))
    return here


def _begin(
    s: Session, base: Agreed, target: Agreed, plan: Plan, checkout: Checkout, merged: Mapping[bytes, Entry | None],
    turns: Turns | None,
) -> list[bytes]:  # fmt: skip
    """Begins the checkout, or goes on with the one that the turn before has begun. -> paths to be delivered."""
    if plan.held is not None and plan.held.comes_to(merged) and (wanted := go_on(checkout, plan.held)) is not None:
        tell_brought(s, *plan.held.brought)
        return wanted
    gone = set(plan.scan.deleted)
    commit = dict((BASE_KEY.entry(target.state), UNFINISHED_KEY.entry(None)))
    if plan.texts:
        commit[KEPT_KEY.name] = _stage_kept(s, base, plan.texts)
    tree = plan.scan.tree
    changes = [
        Change(p, e, None if p in gone else replaceable(plan.rows.get(p), tree.get(p), e)) for p, e in merged.items()
    ]
    replaced = ((plan.scan.base.get(p), tree.get(p)) for p in merged)
    agreement.note_agreed(
        s, (a.content for a, here in replaced if a is not None and a.kind is not Kind.DIR and same_bytes(a, here))
    )
    _let_others_go(turns, _Turn(base.state, target.state, plan))
    needed = None if s.db.has(UNFINISHED_KEY) else _ours(plan, merged)
    return checkout.begin(changes, commit, version=target.state.v, needed=needed, origin=plan.maker)


def _ours(plan: Plan, merged: Mapping[bytes, Entry | None]) -> set[bytes]:
    """Paths with bytes that may be only here: they are not agreed with these at this path."""
    return {p for p, e in merged.items() if e is not None and not same_bytes(e, plan.theirs.get(p))}


def _check_out(
    s: Session, base: Agreed, target: Agreed, plan: Plan, contents: Contents,
    before: Callable[[], None], turns: Turns | None,
) -> Applied:  # fmt: skip
    """Journals, stages and applies the plan; the folder is at `target` afterwards."""
    s.listener(Phase("checkout"))
    tree, merged = plan.scan.tree, dict(plan.merge.changes)
    stale = []
    for path in s.db.unplaced():  # what this disk could not take last time, it is offered again
        if path not in merged and (again := tree.get(path)) is not None:
            merged[path] = again
        elif path not in merged:
            stale.append(path)
    _let_others_go(turns, _Turn(base.state, target.state, plan))
    checkout = Checkout(s.db, s.tree)
    wanted = _begin(s, base, target, plan, checkout, merged, turns)
    paused = _Paused(checkout)
    if turns is not None:
        turns.left = None  # from here on more is staged than it knows of
        turns.before_aside = paused.note
    try:
        _rest(turns)
        for path, text in plan.texts.items():
            if path in wanted:
                checkout.stage_whole(path, text.data)
        entries = {p: e for p in wanted if p not in plan.texts and (e := merged[p]) is not None}
        nowhere = Nowhere(_ours(plan, merged))
        sources = _sources(s, plan.scan, entries.values())
        _rest(turns)
        deliver(s, checkout, entries, sources, contents, nowhere, old=tree, turns=turns)
        checkout.leave_out(nowhere.why)
        before()
    except (WorkspaceError, ExcludedError):  # the disk has no room, or nothing here is for this device
        checkout.abandon()
        raise
    except GiveWay as way:
        if turns is not None:
            turns.left = _Turn(
                base.state, target.state, replace(plan, held=hold(checkout, paused.parts if way.are_served else None))
            )
        raise
    except BaseException:
        checkout.pause()  # what came so far need not come again
        raise

    def commit_too() -> None:
        s.db.delete_records(UNPLACED, stale)
        if target.tree_root is not None:
            put, gone = checkout.rows
            touched = {*plan.differing, *put, *gone} if plan.differing is not None else None
            note_index_of(s.db, target.tree_root, plan.theirs, touched, put)

    return checkout.apply(commit_too, turns.answer if turns is not None and _is_as_agreed(plan) else None)


def _is_as_agreed(plan: Plan) -> bool:
    """Whether the scan found the folder as agreed: then what a checkout brings is all that differs from that."""
    seen = plan.scan
    found = (seen.tree.put, seen.tree.gone, seen.put_rows, seen.delete_rows, seen.busy, seen.unreadable, seen.skipped)
    return plan.differing is not None and not any(found)


class _Paused:
    """What was staged of a checkout in pieces when others were let go first: the last time, if ever."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.parts: Mapping[int, os.stat_result] | None = None

    def note(self) -> None:
        """Waits for what another process makes of it first: nothing may be made while others have the folder's lock."""
        self.checkout.settle()
        self.parts = parts_seen(self.checkout)


def _stage_kept(s: Session, base: Agreed, texts: Mapping[bytes, MergedText]) -> bytes:
    """Stages what clean merges replace, for the next push to carry; returns the snapshot's id."""

    def stage(kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        s.db.stage_object(object_id, int(kind), data)

    with s.db.transaction():
        parents: tuple[bytes, ...] = (base.state.master,) if base.snapshot is not None else ()
        kept = s.db.get(KEPT_KEY)
        if kept is not None:
            parents += (kept,)
        ingest = s.ingest(sink=stage)
        return kept_snapshot(texts, parents, s.device.device_id, s.wall_ns(), s.ids, ingest, stage)


def pull(
    s: Session,
    base: Agreed,
    target: Agreed,
    *,
    dry_run: bool = False,
    force: bool = False,
    turns: Turns | None = None,
) -> PullReport:
    """Brings the folder to `target`, or says that it is there already. `turns`, `GuardError`: see `integrate`."""
    base = rebased(s, base, target)
    if target.state.hash == base.state.hash and not s.db.unplaced():
        return PullReport(base.state.v, base.state.v, down=dict(s.down))
    if target.state.master == base.state.master and not dry_run and not s.db.unplaced():
        s.db.set(BASE_KEY, target.state)
        return PullReport(base.state.v, target.state.v, down=dict(s.down))
    return integrate(s, base, target, dry_run=dry_run, force=force, turns=turns)
