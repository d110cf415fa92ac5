"""Operations from their beginning: what earlier ones left is finished, then comes what is to be done.

A push or pull begins with a cheap look whether there is anything to do. What more it takes is loaded after that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from metasync.errors import DamagedError
from metasync.events import Notice
from metasync.local import settings
from metasync.local.lock import GiveWay, PutOff, Turns
from metasync.local.state_keys import (
    AGREED_MARK,
    BASES_KEY,
    INODES_KEY,
    MENDING_KEY,
    PLAN_KEY,
    READING_KEY,
    REPLACED,
    SURPLUS_KEY,
    UNFINISHED_KEY,
    WIPE_KEY,
    Conflict,
)
from metasync.session import agreement
from metasync.session.around import heeding
from metasync.session.folder import STATE_DIR
from metasync.session.session import Operations, Session
from metasync.sync import no_change

if TYPE_CHECKING:
    from metasync.consensus import State
    from metasync.reports.sync import PullReport, PushReport
    from metasync.session.connections import Connections

SYNC_ROUNDS_MAX: Final = 10
DAY_S: Final = 86_400
WITHOUT_CLONE: Final = "clone", "check --repair"  # a repair may be what a clone waits for


class Lazy:
    """A module that is loaded when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = f"metasync.{name}"

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def lazy(room: str, *names: str) -> Iterator[Lazy]:
    """Modules of a room, each to be loaded when something of it is used."""
    return (Lazy(f"{room}.{name}") for name in names)


@contextlib.contextmanager
def changing(work: Operations, what: str, *, reopen: bool = False) -> Iterator[Session]:
    """A session that may change things: what earlier operations left is finished first.

    `reopen`: the ways to the backends are opened anew after it, for they may have other names.
    """
    try:
        with work.begun(what) as s:
            finish(s, cloning=what in WITHOUT_CLONE)
            yield s
    finally:
        if reopen:
            work.connections.close()


def sync(
    work: Operations, message: str, *, dry_run: bool, force: bool, durability: int | None
) -> tuple[PullReport, PushReport]:
    """Pulls and pushes until both sides agree."""
    pulled = pull(work, dry_run=dry_run, force=force)
    pushed = push(work, message, dry_run=dry_run, force=force, durability=durability)
    for _ in range(SYNC_ROUNDS_MAX):
        if dry_run or pushed.version is not None or pushed.pulled is None:
            break
        pushed = push(work, message, dry_run=False, force=force, durability=durability)
    return pulled, pushed


def push(work: Operations, message: str, *, dry_run: bool, force: bool, durability: int | None) -> PushReport:
    """Has what changed here agreed as a new version: see `Workspace.push`. Lets other operations go first."""
    if work.around.applying:
        return _push_beside_checkout(work, dry_run, durability)
    turns, first = Turns(), True
    while True:
        try:
            report = _push(work, turns, message, dry_run, force, durability, first=first)
            break
        except GiveWay as way:
            _let_in(work, "push", way)
            first = False
    c = work.connections
    if not dry_run and (has_upkeep(c) or is_turn_to_read(c)):
        work.upkeep()
    return report


def _push_beside_checkout(work: Operations, dry_run: bool, durability: int | None) -> PushReport:
    """What a push reports that finds nothing changed while the pull that let it in changes the folder. `PutOff`."""
    if not dry_run and durability is None:
        with work.session("push") as s:
            if (nothing := no_change.push_beside_checkout(s)) is not None:
                return nothing
    raise PutOff


def _let_in(work: Operations, what: str, way: GiveWay) -> None:
    """Lets the operations that wait go first."""
    if not way.are_served:
        _serve(work, what)
    with work.locked(what, first=False):
        way.save()
        work.connections.close()  # what they know may be old by now


def _serve(work: Operations, what: str) -> None:
    """Runs what waits in this program, while the lock is free for other programs."""
    work.tell(Notice(f"another operation in this folder goes first; this {what} goes on after it"))
    around = work.around
    before, around.pulling = around.pulling, around.pulling or what == "pull"
    try:
        around.let_in()
    finally:
        around.pulling = before


def _step_aside(work: Operations, what: str, s: Session, way: GiveWay) -> bool:
    """Lets the operations that wait go first, in the middle of this one. False: something is not as it was before.

    Whoever writes anything down counts as that, in this program or another. Most commands beside a daemon do not.
    """
    check, on_wait, before = s.runtime.check, s.runtime.on_wait, s.db.mark()
    s.held.close()
    way.are_served = True
    try:
        _serve(work, what)
    finally:
        s.runtime.check, s.runtime.on_wait = check, on_wait
        s.held.enter_context(work.locked(what, first=False))
    s.tree.forget()
    s.check()
    return s.db.mark() == before


def _answer(work: Operations, s: Session) -> None:
    """Answers what waits in this program and needs nothing changed, while a pull changes the folder."""
    if not work.around.waits():
        return
    check, on_wait = s.runtime.check, s.runtime.on_wait
    work.around.applying = True
    try:
        work.around.let_in()
    finally:
        work.around.applying = False
        s.runtime.check, s.runtime.on_wait = check, on_wait


def has_upkeep(c: Connections) -> bool:
    """Whether data are to be moved, made good or deleted, as far as this device knows: see `moving.upkeep`."""
    return c.config.prev_config is not None or any(c.db.has(key) for key in (MENDING_KEY, SURPLUS_KEY, WIPE_KEY))


def is_turn_to_read(c: Connections) -> bool:
    """Whether a push of this device is to read copies at its end: about once a day, and not on the first day."""
    at, now_s = c.db.get(READING_KEY), c.machine.wall_ns() // 1_000_000_000
    if at is None:
        c.db.set(READING_KEY, now_s + DAY_S)
        return False
    return not 0 < at - now_s <= DAY_S  # further ahead: a clock was wrong


def _push(
    work: Operations, turns: Turns, message: str, dry_run: bool, force: bool, durability: int | None, *, first: bool
) -> PushReport:
    """One turn of a push, its `first` or a later one. `GiveWay`: another one is needed."""
    with work.begun("push", first=first) as s, contextlib.ExitStack() as stack:
        _keep_to_room(s)
        begun, is_quiet = None, no_change.may_be(s)
        is_let_in = work.around.pulling and not dry_run and durability is None
        if is_let_in and (nothing := no_change.push_let_in(s)) is not None:
            return nothing
        if is_quiet and not dry_run and durability is None:
            found = _looked(s, stack)
            if not isinstance(found, no_change.Begun):
                return found
            begun = found
        if not is_quiet:
            finish(s)
        if dry_run:
            from metasync.sync.preview import preview

            return preview(s)
        from metasync.sync.push import run

        return run(s, message, force=force, durability=durability, turns=turns, begun=begun)


def _keep_to_room(s: Session) -> None:
    """Makes the chunks that are kept for deltas as few as they are to be by now: the disk may be fuller."""
    if s.db.get(BASES_KEY):
        from metasync.sync.old_chunks import bases_of

        bases_of(s).note()


def _looked(s: Session, stack: contextlib.ExitStack) -> PushReport | no_change.Begun:
    """Walks the folder, and begins to ask for news, for as long as the stack lasts.

    A look goes on beside the walk. Where the push may begin with its proposal in place of one, it waits until the walk
    has found a small change, or has gone through so much of a folder that it would be kept up.
    """
    asks = not agreement.need_not_ask(s)
    looks: list[Callable[[], State]] = []
    looked = s.tree.looked

    def begin(*, preparing: bool = False) -> None:
        looks.append(stack.enter_context(agreement.looking(s, preparing=preparing)))

    def begin_late(names: int) -> None:
        looked(names)
        if not looks:
            begin()

    if asks and not s.around.looks:
        if agreement.may_prepare(s):
            s.connections.dial()
            s.tree.looked = begin_late
        else:
            begin()
    try:
        found = no_change.push(s, looks)
    finally:
        s.tree.looked = looked
    if isinstance(found, no_change.Begun) and asks and not looks:
        begin(preparing=agreement.may_prepare(s) and no_change.is_small(found.walk))
        found = found._replace(look=looks[0])
    return found


def pull(work: Operations, *, dry_run: bool, force: bool) -> PullReport:
    """Brings the folder up to the newest agreed version: see `Workspace.pull`. Lets other operations go first."""
    turns, first = Turns(), True
    while True:
        try:
            return _pull(work, turns, dry_run, force, first=first)
        except GiveWay as way:
            _let_in(work, "pull", way)
            first = False


def _pull(work: Operations, turns: Turns, dry_run: bool, force: bool, *, first: bool) -> PullReport:
    """One turn of a pull, its `first` or a later one. `GiveWay`: another one is needed."""
    with work.begun("pull", first=first) as s, contextlib.ExitStack() as stack:
        _keep_to_room(s)
        asked = None
        if is_quiet := no_change.may_be(s):
            asked = stack.enter_context(agreement.looking(s, on_news=partial(import_module, "metasync.sync.pull")))
            if (nothing := no_change.pull(s, asked)) is not None:
                return nothing
        from metasync.sync.pull import pull as bring_up

        if not is_quiet:
            finish(s)
        turns.begin(s.others_wait, s.runtime.clock, partial(_step_aside, work, "pull", s), partial(_answer, work, s))
        with heeding(s, turns):
            newest = agreement.newest(s) if asked is None else s.load(s.newest_state())
        agreement.settle_journal(s, newest.state)  # it may be a push of this device that never learned its end
        while True:
            try:
                return bring_up(s, s.base(), newest, dry_run=dry_run, force=force, turns=turns)
            except DamagedError:  # a pack that is gone may lie elsewhere by a newer index (consensus.md, rule 6.2)
                later = agreement.newest(s)
                if (later.state.index, later.state.config) == (newest.state.index, newest.state.config):
                    raise
                finish(s)
                newest = later


def finish(s: Session, *, cloning: bool = False) -> None:
    """Finishes a checkout that was interrupted, looks at what checkouts replaced, and brings the rest of a clone.

    `cloning`: the caller is going to bring the clone, or needs none.
    """
    if any(s.db.has(key) for key in (PLAN_KEY, INODES_KEY)) or s.tree.disk.names(s.tree.state_dir(b"tmp")):
        from metasync.checkout.checkout import Checkout

        if Checkout(s.db, s.tree).recover() is not None:
            s.listener(Notice("finished a checkout that had been interrupted"))
    for conflict in settle_replaced(s):
        s.listener(Notice(f"a late write came back as {os.fsdecode(conflict.copy)}", warning=True))
    if not cloning and s.db.has(UNFINISHED_KEY):
        from metasync.sync import first_checkout

        s.listener(Notice("finishing a clone that had been interrupted"))
        for made in first_checkout.bring(s, agreement.newest(s)).report.conflicts:
            path, kept = os.fsdecode(made.path), os.fsdecode(made.kept)
            s.listener(Notice(f"{path}: {made.whose} is kept as {kept} ({made.reason})", warning=True))


def settle_replaced(s: Session) -> list[Conflict]:
    """Drops or brings back what checkouts replaced, where that is certain now (architecture.md, D8)."""
    if not s.db.records(REPLACED):
        return []
    from metasync.checkout.trash import settle
    from metasync.runtime.limits import TRASH
    from metasync.sync import sides

    agreed = s.base()
    tree: set[bytes] = set()

    def known(content: bytes, size: int, path: bytes) -> bool:
        # The index is not asked: it may name what a push read, packed, and found gone before it was agreed.
        if size == 0 or s.db.get_object(content) == AGREED_MARK:
            return True
        if not tree:
            tree.update(e.content for e in s.flat(agreed).values())
        return content in tree

    def hash_file(fd: int) -> bytes:
        hasher = s.ids.content()
        while piece := s.tree.disk.read_next(fd, 1 << 20):
            hasher.update(piece)
        return hasher.digest()

    kept_days = settings.read(s.directory / STATE_DIR / settings.FILE).values.get(TRASH, "0")
    keep_ns = int(kept_days) * DAY_S * 10**9
    return settle(s.tree, s.db, s.tree.clock_ns(), known, hash_file, agreed.state.v, sides.origin(s), keep_ns)
