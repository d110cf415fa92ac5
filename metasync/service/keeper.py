"""Keeps one workspace in step: watches its folder, pushes what changed, hears of others, pulls.

One thread does one thing at a time, in turns: what a caller asked for, a push that is due, a look for news that is due,
and while none is, what is to be done for the data (`moving.upkeep`).
`batch` and `hearing` say when; the watcher's events make directories dirty, and wake it. A turn that fails leaves a
problem behind and is taken again after a pause that grows; nothing of it is remembered but what is dirty. So a crash, a
sleep, another network or a full disk need no code of their own: the next turn finds the world as it is.

A folder that is not there, or lies on another device than it did, is waited for and never taken for emptied. A push
that a guard stopped is tried again now and then, and done when the user has allowed it.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError as Cancelled
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar

from metasync.errors import CancelledError, MetaSyncError, PausedError, WorkspaceError
from metasync.local import settings as preferences
from metasync.local.lock import GiveWay, PutOff
from metasync.local.settings import Settings
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import CONFLICTS, MISSING, NAME_KEY
from metasync.reports.service import AWAY, COPIES, Doing, Problem, WorkspaceState
from metasync.reports.sync import PullReport, PushReport
from metasync.runtime.tasks import boottime
from metasync.service import problems as told
from metasync.service.account import Account
from metasync.service.batch import Batch, Batching, Pauses
from metasync.service.changes import Changes
from metasync.service.hearing import ANYBODY, Hearing, Sleep, Teller, interval_s
from metasync.service.last_hour import LastHour
from metasync.service.long_polls import LongPolls
from metasync.service.problems import NEEDS_A_HAND
from metasync.service.quiet import Quiet, bad_copies
from metasync.service.room_watch import RoomWatch
from metasync.service.watch import Watching, watch
from metasync.session import peek
from metasync.session.connections import Machine
from metasync.session.folder import DB_FILE, STATE_DIR
from metasync.sync import no_change
from metasync.workspace import Workspace
from metasync.worktree.disk import free_bytes

if TYPE_CHECKING:
    from metasync.backends.api import Backend

T = TypeVar("T")
log = logging.getLogger(__name__)

RESCAN_S: Final = 3600.0  # between walks of everything, for what events do not tell: a write through a memory map
RESCAN_SHORT_S: Final = 300.0  # where not all directories can be watched
FOLDER_S: Final = 5.0  # between looks for a folder that is away, and for the end of a pause
STUCK_S: Final = 3600.0  # between attempts at what needs a hand
SLEEP_S: Final = 60.0  # the longest wait: a machine that slept is awake for so long at most before all is looked at
STOP_S: Final = 30.0
PUSH_STUCK: Final = "push:damage"  # the problem of a push that could not read a newer version to merge it
GONE: Final = "{} is kept no more"


class Keeper:
    """See the head of this module. Thread-safe; `start` once, `stop` once.

    published  called from the keeper's thread after each agreed version of ours
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Settings,
        tell: Callable[[WorkspaceState], None],
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
        watching: Callable[..., Watching] = watch,
        long_polls: Callable[..., LongPolls] = LongPolls,
    ) -> None:
        """`clock` counts seconds awake, `boot` all, `wall` those since 1970. `draw`: random numbers from 0 to 1."""
        self.directory = Path(directory)
        self.published: Callable[[], None] = lambda: None
        self.workspace_id: bytes | None = None  # known once it is open
        self._machine, self._watching, self._clock, self._wall = machine or Machine(), watching, clock, wall
        now = clock()
        self._batch = Batch(Batching.of(settings.values), Pauses(draw))
        self._hearing = Hearing(now, draw, interval_s(settings.values))
        self._boot, self._sleep = boot, Sleep(now, boot())
        self._opening = Pauses(draw)
        self._account = Account(self.directory, tell, clock, wall)
        self._changes = Changes(self.directory, self._note_change)
        self._polls = long_polls(self._way, self.hint, lambda works: self.covered("watch", works))
        self._wakes = threading.Condition(threading.RLock())
        self._is_woken = False  # since the last turn began
        self._knows_sizes = False  # the last turn ended with no new change whose size is to be looked at
        self._calls: deque[tuple[Callable[[Workspace], Any], Future[Any]]] = deque()
        self._put_off: list[tuple[Callable[[Workspace], Any], Future[Any]]] = []  # until the folder is changed
        self._hour = LastHour(wall)
        self._allowed: set[str] = set()  # what the user has allowed past a guard
        self._has_pulled = False  # something, since the folder was last looked at: the watcher tells of that too
        self._sought: set[bytes] = set()  # paths that were missing here when a pull was last asked to bring them
        self._is_patient = False  # whether a push waits for the ends of files that grow
        self._stops = False
        self._workspace: Workspace | None = None
        self._place: tuple[int, int] | None = None  # device and inode of the folder
        self._walk_at = now + RESCAN_S  # when everything is to be walked again
        self._quiet = Quiet(clock, self._is_wanted)
        self._room = RoomWatch(lambda: free_bytes(self.directory), draw)
        self._thread = threading.Thread(target=self._run, name=f"keeper {self.directory.name}", daemon=True)

    # any thread

    def start(self) -> None:
        self._thread.start()

    def state(self) -> WorkspaceState:
        return self._account.state

    def sync_now(self) -> None:
        """Looks and pushes at once: the user asked."""
        with self._wakes:
            self._batch.ask()
            self._hearing.ask(self._clock())
            self._opening.passed()
            self._wake()

    def hint(self, by: str = ANYBODY) -> None:
        """Somebody, or the watch of a backend, says that something is new: a look soon."""
        with self._wakes:
            self._hearing.hint(self._clock(), by)
            self._wake()

    def covered(self, by: Teller, is_so: bool, why: str = "") -> None:
        """A broker or a watch tells of news by itself from now on, or does so no more: `why`, for the user."""
        if by == "broker":
            self._account.broker(is_so, why)
        with self._wakes:
            self._hearing.covered(self._clock(), by, is_so)
            self._wake()

    def pause(self, until_s: float | None) -> None:
        """Has transfers rest until a time by the clock on the wall; None or infinity: until `resume`."""
        left = None if until_s is None or until_s == math.inf else max(1.0, until_s - self._wall())
        preferences.pause(self._settings_path, left)
        if self._paused():
            self._account.set("paused")
        with self._wakes:
            self._wake()

    def resume(self) -> None:
        preferences.resume(self._settings_path)
        if not self._paused() and self._account.state.doing == "paused":
            self._account.set("looking")  # which the turn that comes does
        self.sync_now()

    def answer(self, key: str, allow: bool) -> None:
        """Answers a problem that asks: what the guard stopped is done once, or stays as it is."""
        problem = next((p for p in self._account.problems if p.key == key and p.asks), None)
        if problem is not None and allow:
            with self._wakes:
                self._allowed.add(problem.asks)
            self.sync_now()

    def call(self, do: Callable[[Workspace], T]) -> T:
        """Runs an operation in the keeper's thread. A push under way gives way to it. What `do` raises is raised."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a call from the keeper's own thread would wait for itself")
        future: Future[T] = Future()
        with self._wakes:
            if self._stops:
                raise self._gone()
            self._calls.append((do, future))
            self._opening.passed()
            self._wake()
        try:
            return future.result()
        except Cancelled as e:
            raise self._gone() from e

    def stop(self) -> None:
        """Ends what is under way, soon, and waits for the end. May be repeated."""
        with self._wakes:
            self._stops = True
            self._wake()
            workspace = self._workspace
        if workspace is not None:
            with suppress(MetaSyncError):
                workspace.cancel()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def _note_change(self) -> None:
        with self._wakes:
            is_first = self._batch.first is None
            self._batch.changed(self._clock())
            if is_first or (self._knows_sizes and self._changes.estimate_at < math.inf):
                self._knows_sizes = False  # the turn that comes waits until they are looked at
                self._wake()

    def _wake(self) -> None:
        """Has a turn come now, or after the one under way."""
        self._is_woken = True
        self._wakes.notify_all()

    def _gone(self) -> WorkspaceError:
        return WorkspaceError(GONE.format(self.directory), next_step="Run again.")

    # its own thread

    def _run(self) -> None:
        while not self._stops:
            wake_at = self.turn()
            with self._wakes:
                if not self._stops and not self._has_calls() and not self._is_woken:
                    self._wakes.wait(max(0.0, min(wake_at - self._clock(), SLEEP_S)))
        self._account.set("stopping")
        self._close()
        self._refuse_calls(self._gone())

    def turn(self) -> float:
        """Does what is due now. -> when there is something to do next, if nothing happens before. Raises nothing."""
        with self._wakes:
            self._is_woken = self._knows_sizes = False
        if self._sleep.was(self._clock(), self._boot()):  # what was waited for may never come, and pauses are over
            self._polls.end()
            self.sync_now()
        try:
            wake_at = self._turn()
        except Exception as e:  # crash-only: whatever it is, it is told, and everything begins anew
            log.exception("%s: an error of MetaSync's own", self.directory)
            wake_at = self._failed_to_open(e)
        self._account.update(changed=len(self._changes), changed_bytes=int(self._batch.size_bytes))
        self._account.update(look_at_s=self._wall() + max(0.0, self._hearing.due - self._clock()))
        self._account.watched(self._changes.short)
        self._account.set(*self._at())
        tell_at = self._account.tell_at
        return wake_at if tell_at is None else min(wake_at, tell_at)

    def _turn(self) -> float:
        now = self._clock()
        if not self._is_there():
            return self._away(now)
        if self._workspace is None:
            if now < self._opening.until:
                return self._opening.until
            try:
                self._open()
            except (MetaSyncError, OSError) as e:
                return self._failed_to_open(e)
        workspace = self._workspace
        assert workspace is not None
        self._serve()
        if self._paused():
            self._polls.end()
            return now + FOLDER_S
        self._polls.follow(peek.watchable(workspace._connections))
        if now >= self._walk_at:
            self._walk_at = now + (RESCAN_S if self._changes.short is None else RESCAN_SHORT_S)
            self._changes.renew()
        size = self._changes.estimate(now, workspace._db)
        if self._room.has_room(now):
            self.hint()
        with self._wakes:
            if size is not None:
                self._batch.estimated(size)
            due = self._batch.due(now)
        if due is not None and due <= now:
            self._push(workspace)
        elif self._hearing.due <= now:
            self._look(workspace)
        elif self._quiet.at <= now:
            self._quiet.keep_up(workspace)
        if self._has_pulled:
            self._settle(workspace)
        self._account.only(COPIES, bad_copies(workspace, self._wall()))
        return self._next()

    def _next(self) -> float:
        with self._wakes:
            self._hearing.away(self._clock(), self._account.away)
            due = self._batch.due(self._clock())
            self._knows_sizes = self._changes.estimate_at == math.inf
            sizes_at = max(self._changes.estimate_at, self._batch.pauses.until)
        due_at = math.inf if due is None else due
        return min(self._hearing.due, self._walk_at, sizes_at, self._quiet.at, self._room.at, due_at)

    def _is_wanted(self) -> bool:
        """Whether there is something else to do than to keep up the data."""
        now = self._clock()
        due = self._batch.due(now)
        return self._stops or self._has_calls() or self._hearing.due <= now or (due is not None and due <= now)

    def _at(self) -> tuple[Doing, str]:
        """What there is to say after a turn."""
        state, blocking = self._account.state, next((p for p in self._account.problems if p.blocks), None)
        if self._stops:
            return "stopping", ""
        if state.paused_until_s is not None:
            return "paused", ""
        if blocking is not None:
            is_passing = blocking.kind in ("quorum", "backend")
            return ("waiting", "backends that answer") if is_passing else ("stuck", "")
        if self._batch.first is not None or self._changes:
            return "waiting", "more changes"
        if self._room.is_needed:
            return "waiting", "room on this disk"
        return ("in step", "") if state.looked_s is not None else ("starting", "")

    # the folder, and the workspace in it

    def _is_there(self) -> bool:
        """Whether the folder is where it was, on the device where it was."""
        try:
            st = os.stat(self.directory)
            os.stat(self.directory / STATE_DIR / DB_FILE)
        except OSError:
            return False
        place = (st.st_dev, st.st_ino)
        has_moved = self._workspace is not None and self._workspace._db.has_moved()
        if self._changes.is_lost or has_moved or (self._place is not None and self._place != place):
            self._close()  # it, or its .metasync, went and came back: all is looked at anew
        self._place = place
        return True

    def _away(self, now: float) -> float:
        self._close()
        step = (
            "Mount its drive, or move it back. Nothing is deleted meanwhile, and it goes on by itself. If it was moved"
            f" for good: metasync daemon add NEW-FOLDER; metasync daemon remove {quote(str(self.directory))}"
        )
        text = f"{self.directory} is not there, or its .metasync is not."
        self._account.failed("open", Problem(AWAY, "folder", text, step, self._wall(), blocks=True))
        self._refuse_calls(WorkspaceError(text, next_step=step))
        return now + FOLDER_S

    def _open(self) -> None:
        self._account.set("starting")
        db = LocalDb.open(self.directory / STATE_DIR / DB_FILE)
        try:
            workspace = Workspace(self.directory, db, self._account.hear, self._machine)
        except BaseException:
            db.close()
            raise
        around = workspace._work.around
        around.hints, around.growing, around.looks = self._changes.hints, self._growing, True
        around.waits, around.let_in = self._has_calls, self._serve
        self._hour.begin(db, around)
        self.workspace_id = workspace._connections.keys.ns_id
        with self._wakes:
            self._workspace = workspace
            self._batch.ask()
            self._hearing.ask(self._clock())
        self._account.update(name=db.get(NAME_KEY) or self.directory.name)
        self._room.waits(self._clock(), db.unplaced().values())
        self._changes.begin(db, self._watching)
        self._opening.passed()
        self._account.passed("open")

    def _failed_to_open(self, error: BaseException) -> float:
        self._close()
        self._account.failed("open", replace(self._problem("open", error), asks=""))
        self._refuse_calls(error)
        return self._opening.failed(self._clock())

    def _problem(self, verb: str, error: BaseException) -> Problem:
        return told.of_error(verb, error, self._wall(), str(self.directory))

    def _way(self, to: peek.Watchable) -> Backend:
        """A way to a backend that is watched, apart from those of the workspace, which rest while nothing happens."""
        return self._machine.way(to.name, to.link, suspected=False)

    def _close(self) -> None:
        self._polls.end()
        self._changes.end()
        self._changes.is_lost = False
        with self._wakes:
            workspace, self._workspace, self._place = self._workspace, None, None
        if workspace is not None:
            with suppress(MetaSyncError, OSError):
                workspace.close()

    def _paused(self) -> bool:
        set_now = Settings()
        with suppress(MetaSyncError):
            set_now = preferences.read(self._settings_path)
        is_paused = set_now.pause_left_s(self._wall()) > 0
        self._account.update(paused_until_s=set_now.paused_until if is_paused else None)
        return is_paused

    @property
    def _settings_path(self) -> Path:
        return self.directory / STATE_DIR / preferences.FILE

    # what others ask for

    def _has_calls(self) -> bool:
        return bool(self._calls or self._put_off)

    def _serve(self) -> None:
        """Runs what callers wait for. Called between turns, and by what gives way or changes the folder."""
        if self._workspace is not None and not self._workspace._work.around.applying:
            self._take_up()
        while self._calls and not self._stops and (workspace := self._workspace) is not None:
            do, future = self._calls.popleft()
            if not _is_running(future):
                continue
            self._changes.catch_up()
            patient, self._is_patient = self._is_patient, False
            try:
                with self._hour.asked_for():
                    result = do(workspace)
            except PutOff:
                self._changes.ended(well=False)
                self._put_off.append((do, future))
                continue
            except BaseException as e:  # noqa: BLE001 - it is the caller's
                self._changes.ended(well=False)
                future.set_exception(e)
                continue
            finally:
                self._is_patient = patient
            for report in result if isinstance(result, tuple) else (result,):
                if isinstance(report, PushReport):
                    self._pushed(workspace, report)
                elif isinstance(report, PullReport):
                    self._pulled(workspace, report)
            self._changes.ended(well=False)  # what no report answers for stays dirty
            future.set_result(result)

    def _take_up(self) -> None:
        """What was put off comes first."""
        self._calls.extendleft(reversed(self._put_off))
        self._put_off.clear()

    def _refuse_calls(self, error: BaseException) -> None:
        self._take_up()
        while self._calls:
            _, future = self._calls.popleft()
            if _is_running(future):
                future.set_exception(error)

    # pushing

    def _growing(self) -> set[bytes]:
        """Files that a push which nobody asked for leaves to a later one."""
        return self._changes.growing(self._clock(), self._batch.batching.longest_s) if self._is_patient else set()

    def _push(self, workspace: Workspace) -> None:
        self._changes.catch_up()
        with self._wakes:
            self._is_patient = not self._batch.asked
            self._batch.begins()
        try:
            if self._allowed:  # what is allowed in one direction is not in the other
                self._pull(workspace)
            self._account.set("pushing")
            report = workspace.push(force="push" in self._allowed)
        except Exception as e:  # noqa: BLE001 - crash-only
            self._failed("push", e)
            return
        finally:
            self._is_patient = False
        self._allowed.discard("push")
        self._pushed(workspace, report)

    def _pushed(self, workspace: Workspace, report: PushReport) -> None:
        self._changes.pushed(report)
        with self._wakes:
            self._batch.ended(report.bytes_stored)
            if self._changes and self._batch.first is None:
                self._batch.changed(self._clock())
        self._account.passed("push")
        self._hour.passed("push")
        self._account.down(report.down)
        if report.pulled is not None:
            self._pulled(workspace, report.pulled)
        if report.version is not None:
            with self._wakes:
                self._hearing.pushed(self._clock())
            self._account.update(version=report.version, pushed_s=self._wall())
            self.published()
        self._changes.follow_rules(workspace._db)
        self._seek(workspace._db)
        self._account.conflicts(workspace._db.records(CONFLICTS))

    def _seek(self, db: State) -> None:
        """Has a pull bring what a push found missing here, though nobody deleted it: once, for it may not come."""
        missing = {path for path, why in db.unplaced().items() if why == MISSING}
        if missing - self._sought:
            self.hint()
        self._sought = missing

    def _failed(self, verb: told.Verb, error: Exception) -> None:
        now = self._clock()
        self._changes.ended(well=False)
        self._hour.failed(verb, error)
        is_stuck = isinstance(error, NEEDS_A_HAND)
        with self._wakes:
            if verb == "push":
                self._batch.failed(now)
                self._batch.pauses.until = now + STUCK_S if is_stuck else self._batch.pauses.until
            else:
                self._hearing.failed(now)  # a hint is heeded after that pause: a newer version may mend it
                self._hearing.due = max(self._hearing.due, now + STUCK_S) if is_stuck else self._hearing.due
        if isinstance(error, PausedError) or (isinstance(error, CancelledError) and self._stops):
            return
        if not isinstance(error, MetaSyncError):
            log.error("%s: %s failed", self.directory, verb, exc_info=error)
        self._account.failed(verb, self._problem(verb, error))

    # hearing of others

    def _look(self, workspace: Workspace) -> None:
        whom, has_news, missed = None, False, False
        try:
            with workspace._session("look") as s:
                with self._wakes:
                    whom = self._hearing.whom(self._clock(), peek.voters(s), self._polls.watched)
                has_news = whom is None or peek.shows_news(s, whom) is not False
                if whom is not None:
                    self._account.back(whom)
            if has_news:
                self._pull(workspace)
        except Exception as e:  # noqa: BLE001 - crash-only
            if whom is None or has_news or not isinstance(e, MetaSyncError):
                self._failed("pull", e)
                return
            has_news, missed = False, True  # another one's turn is next
        with self._wakes:
            self._hearing.looked(self._clock(), news=False, quorum=has_news, missed=missed)
        self._account.update(looked_s=self._wall())

    def _pull(self, workspace: Workspace) -> None:
        self._changes.catch_up()
        self._account.set("looking")
        report = workspace.pull(force="pull" in self._allowed)
        self._allowed.discard("pull")
        self._pulled(workspace, report)
        self._changes.ended(well=False)  # what changed here is still to be pushed

    def _pulled(self, workspace: Workspace, report: PullReport) -> None:
        self._account.passed("pull")
        self._hour.passed("pull")
        self._account.down(report.down)
        self._account.pulled(report)
        self._room.waits(self._clock(), workspace._db.unplaced().values())
        self._account.update(version=report.version)
        if report.version != report.before:
            self._has_pulled = True
            with self._wakes:
                self._hearing.happened(self._clock())
            self._account.update(pulled_s=self._wall())
            if any(p.key == PUSH_STUCK for p in self._account.problems):  # it could not read what this pull has read
                self._account.only(PUSH_STUCK, ())
                with self._wakes:
                    self._batch.pauses.passed()
        self._account.conflicts(workspace._db.records(CONFLICTS))

    def _settle(self, workspace: Workspace) -> None:
        """Looks at the folder after a pull: what that wrote itself is no change to be told and pushed.

        Where something else changed too, or is to be done first, the next push finds out.
        """
        self._has_pulled = False
        self._changes.catch_up()
        is_settled = False
        with suppress(MetaSyncError, OSError, GiveWay), workspace._session("look") as s:
            s.tree.looked = self._look_up
            is_settled = no_change.is_as_agreed(s)
        if not is_settled:
            self._changes.ended(well=False)
            return
        self._changes.settled()
        with self._wakes:
            if not self._changes:  # else something changed during the walk, and its time counts from its first event
                self._batch.settled()

    def _look_up(self, _names: int) -> None:
        """Breaks a walk off that is not needed, where there is something else to do."""
        if self._is_wanted():
            raise GiveWay


def _is_running(future: Future[Any]) -> bool:
    """Whether a call is to be answered: nobody gave it up before it began. It has begun now, if it had not."""
    return future.running() or future.set_running_or_notify_cancel()
