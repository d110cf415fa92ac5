"""A long push lets other operations of its folder go first, and goes on where it was."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.checkout.checkout import Checkout
from metasync.consensus import JOURNAL_KEY
from metasync.errors import CancelledError, WorkspaceError
from metasync.events import Event, Notice, Progress
from metasync.local import lock
from metasync.local.lock import LOOK_EVERY_S, TURN_S, GiveWay, Turns, WorkspaceLock
from metasync.local.state import LocalDb
from metasync.local.state_keys import ERA_KEY, KEPT_KEY
from metasync.reports.sync import PullReport, PushReport
from metasync.session.folder import DB_FILE, STATE_DIR
from metasync.session.session import Session
from metasync.sync import no_change
from metasync.sync import pull as merging
from metasync.sync.push import _Push
from metasync.workspace import Workspace
from metasync.worktree import merge_walk

SOON_S = 60.0
SMALL = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_push_has_its_turn_before_it_gives_way() -> None:
    clock, asked, wanted = Clock(), [0], [True]

    def others() -> bool:
        asked[0] += 1
        return wanted[0]

    t = Turns().begin(others, clock)
    t.look()
    clock.now += TURN_S * 0.9
    t.look()
    assert asked == [0]
    clock.now += TURN_S * 0.2
    with pytest.raises(GiveWay):
        t.look()
    wanted[0] = False
    for _ in range(13):
        clock.now += LOOK_EVERY_S / 5
        t.look()
    assert asked == [3], "looked for now and then only"


def test_a_turn_that_took_up_what_was_done_has_its_time_after_that() -> None:
    clock = Clock()
    t = Turns().begin(lambda: True, clock)
    t.look()
    clock.now += 10 * TURN_S
    t.renew()
    t.look()
    clock.now += TURN_S * 1.1
    with pytest.raises(GiveWay):
        t.look()


class Asides:
    """What lets others go first: tells that they `changed` something, or did not."""

    def __init__(self) -> None:
        self.changed = False
        self.count = 0

    def __call__(self, _: GiveWay) -> bool:
        self.count += 1
        return not self.changed


def test_a_rest_lets_others_go_first_and_the_turn_goes_on() -> None:
    clock, asides = Clock(), Asides()
    t = Turns().begin(lambda: True, clock, asides)
    t.rest()
    assert asides.count == 0
    clock.now += TURN_S * 1.1
    t.rest()
    assert asides.count == 1
    t.rest()
    clock.now += LOOK_EVERY_S * 0.9
    t.rest()
    assert asides.count == 1, "it gets on between two of them"
    clock.now += LOOK_EVERY_S * 0.2
    asides.changed = True
    with pytest.raises(GiveWay):
        t.rest()
    assert asides.count == 2


def test_nobody_is_let_in_where_nobody_waits() -> None:
    clock, asides = Clock(), Asides()
    t = Turns().begin(lambda: False, clock, asides)
    t.rest()
    clock.now += 2 * TURN_S
    t.rest()
    assert asides.count == 0


def own_time(t: Turns, clock: Clock, *asides: Asides) -> float:
    """How long the next turn goes on by itself, in turns as they are at first."""
    t.begin(lambda: True, clock, *asides).look()
    began = clock.now
    while True:
        clock.now += TURN_S / 4
        try:
            t.rest()
        except GiveWay:
            return round((clock.now - began) / TURN_S)


def test_turns_that_come_to_nothing_grow_until_one_gets_on() -> None:
    """Else a merge of very many files would never end, where a command comes each second and changes something."""
    clock, t = Clock(), Turns()
    assert [own_time(t, clock) for _ in range(4)] == [1, 2, 4, 8]
    t.begin(lambda: True, clock)
    t.got_on()
    assert [own_time(t, clock) for _ in range(2)] == [1, 2]
    for _ in range(20):
        t.begin(lambda: True, clock).look()
        clock.now += 10_000
        with pytest.raises(GiveWay):
            t.look()
    assert own_time(t, clock) == 2**lock.DOUBLINGS_MAX


def test_a_turn_that_got_on_before_it_gave_way_was_not_in_vain() -> None:
    clock, t = Clock(), Turns()
    for _ in range(3):
        t.begin(lambda: True, clock).look()
        t.got_on()
        clock.now += 2 * TURN_S
        with pytest.raises(GiveWay):
            t.look()
    assert own_time(t, clock) == 1


def test_a_rest_that_changed_nothing_was_not_in_vain() -> None:
    clock, asides, t = Clock(), Asides(), Turns()
    t.begin(lambda: True, clock, asides).look()
    for _ in range(5):
        clock.now += 2 * TURN_S
        t.rest()
        t.look()
    assert asides.count == 5
    asides.changed = True
    assert own_time(t, clock, asides) == 1


# --- the lock


def wait_until(true: Any) -> None:
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("presses", [True, False])
def test_the_holder_sees_who_presses(tmp_path: Path, presses: bool) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    assert not held.wanted()
    other = WorkspaceLock(tmp_path)
    told: list[str] = []
    waiting = threading.Thread(target=lambda: other.acquire("pull", waiting=told.append, presses=presses))
    waiting.start()
    wait_until(lambda: told)
    if presses:
        wait_until(held.wanted)
    else:
        time.sleep(0.2)
        assert not held.wanted()
    held.release()
    waiting.join(SOON_S)
    assert other.held
    assert not held.wanted()
    other.release()


def test_who_gave_up_presses_no_more(tmp_path: Path) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    with pytest.raises(WorkspaceError):
        WorkspaceLock(tmp_path).acquire("pull", wait_s=0.1)
    assert not held.wanted()
    held.release()


def test_who_gave_way_goes_after_those_who_press(tmp_path: Path) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    order: list[str] = []

    def pull() -> None:
        with WorkspaceLock(tmp_path).acquire("pull"):
            order.append("pull")

    waiting = threading.Thread(target=pull)
    waiting.start()
    wait_until(held.wanted)
    held.release()
    with WorkspaceLock(tmp_path).acquire("push", presses=False):
        order.append("push")
    waiting.join(SOON_S)
    assert order == ["pull", "push"]


# --- whole workspaces


class Gate:
    """Holds all but the first `free` copies of large packs until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.open = threading.Event()
        self.full = threading.Event()
        self.left = free
        self.put = 0
        self.lock = threading.Lock()
        real = FolderBackend.put

        def put(backend: FolderBackend, path: str, data: bytes) -> None:
            if "/packs/" in path and len(data) > SMALL:
                with self.lock:
                    self.left -= 1
                    self.put += 1
                    held = self.left < 0
                if held:
                    self.full.set()
                    assert self.open.wait(SOON_S)
            real(backend, path, data)

        monkeypatch.setattr(FolderBackend, "put", put)


class Running(threading.Thread):
    """An operation in a thread, with what came of it."""

    def __init__(self, operation: Any) -> None:
        super().__init__(daemon=True)
        self.operation = operation
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.operation()
        except BaseException as e:  # told by `end`
            self.error = e

    def end(self) -> Any:
        self.join(2 * SOON_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def two_devices(lab: Lab) -> tuple[Workspace, Workspace]:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"first": b"1"})
    w.push()
    return w, lab.clone(lab.urls("a", "b", "c"))


@pytest.mark.long
def test_a_pull_is_not_held_up_by_a_long_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    pushing = lab.keep(Workspace.open(directory, on_event=told.append))
    push = Running(pushing.push)
    assert gate.full.wait(SOON_S)
    write(other.directory, {"theirs": b"small"})
    theirs = other.push().version
    with Workspace.open(directory) as second:
        report = second.pull()
    assert report.changes.added == (b"theirs",)
    assert (directory / "theirs").read_bytes() == b"small"
    assert push.is_alive()
    assert not gate.open.is_set(), "the pull has ended while the packs of the push stand still"
    gate.open.set()
    pushed = push.end()
    assert (pushed.version, pushed.under_replicated) == ((theirs or 0) + 1, 0)
    texts = [e.text for e in told if isinstance(e, Notice)]
    assert any("goes first" in t for t in texts)
    assert any(t.startswith("going on with ") for t in texts)
    large = sum(sum(p.stat().st_size > SMALL for p in lab.objects(n, "packs")) for n in "abc")
    assert gate.put <= large + 2, "what was under way when it gave way counts"
    other.pull()
    assert tree_of(other.directory) == tree_of(directory)
    assert other.check(read_data=True).problems == ()


@pytest.mark.long
def test_what_was_read_in_one_turn_is_not_read_in_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    push = Running(lab.keep(Workspace.open(directory, on_event=told.append)).push)
    assert gate.full.wait(SOON_S)
    WorkspaceLock(directory / ".metasync").acquire("anything").release()
    gate.open.set()
    assert push.end().version is not None
    begun = [e.total for e in told if isinstance(e, Progress) and e.phase == "upload" and e.done == 0]
    assert begun[0] == 75_000_000
    assert 0 < (begun[1] or 0) < 60_000_000


@pytest.mark.long
def test_what_changes_while_a_push_gives_way_is_pushed_as_it_is_then(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the first turn has read are changed, removed, and replaced by the pull that went first."""
    w, other = two_devices(lab)
    contents = {f"f{i:02}": os.urandom(3_000_000) for i in range(25)}
    write(w.directory, contents)
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    pushing = lab.keep(Workspace.open(directory))
    push = Running(pushing.push)
    assert gate.full.wait(SOON_S)
    write(other.directory, {"f00": b"theirs"})
    theirs = other.push().version
    with Workspace.open(directory) as second:
        conflicts = second.pull().conflicts
    assert len(conflicts) == 1
    write(directory, {"f01": b"changed"})
    (directory / "f02").unlink()
    gate.open.set()
    assert push.end().version == (theirs or 0) + 1
    other.pull()
    tree = tree_of(other.directory)
    assert tree == tree_of(directory)
    assert (other.directory / "f01").read_bytes() == b"changed"
    assert not (other.directory / "f02").exists()
    both = {(other.directory / "f00").read_bytes(), (other.directory / os.fsdecode(conflicts[0].kept)).read_bytes()}
    assert both == {b"theirs", contents["f00"]}


@pytest.mark.long
def test_a_push_does_not_give_way_to_a_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    waits = threading.Event()
    directory = w.directory
    w.close()
    first = lab.keep(Workspace.open(directory, on_event=told.append))
    push = Running(first.push)
    assert gate.full.wait(SOON_S)
    second = lab.keep(Workspace.open(directory, on_event=lambda _: waits.set()))
    later = Running(second.push)
    assert waits.wait(SOON_S)
    time.sleep(TURN_S + 2 * LOOK_EVERY_S)
    gate.open.set()
    assert push.end().version is not None
    assert later.end().version is None, "there was nothing left to push"
    assert not any("goes first" in e.text for e in told if isinstance(e, Notice))


def test_a_push_that_proposes_gives_way_to_nobody() -> None:
    clock = Clock()
    idle = SimpleNamespace(entropy=bytes, db=SimpleNamespace(get=lambda _: None))
    attempts = _Push(cast(Session, idle), "", force=False, least=None, turns=Turns().begin(lambda: True, clock))
    attempts.look()
    clock.now += 2 * TURN_S
    attempts.proposing = True
    attempts.look()
    attempts.proposing = False
    with pytest.raises(GiveWay):
        attempts.look()


# --- pulls


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation has had its time for itself when it begins."""
    monkeypatch.setattr(lock, "TURN_S", 0.0)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)


class Tap:
    """Holds all but the first packs that are fetched until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.open, self.held = threading.Event(), threading.Event()
        self.free = free
        self.got: list[str] = []
        self.lock = threading.Lock()
        real = FolderBackend.get

        def get(backend: FolderBackend, path: str, **words: Any) -> bytes:
            if "/packs/" in path:
                with self.lock:
                    self.free -= 1
                    is_held = self.free < 0
                if is_held:
                    self.held.set()
                    assert self.open.wait(SOON_S)
                self.got.append(path)
            return real(backend, path, **words)

        monkeypatch.setattr(FolderBackend, "get", get)


def pulling(lab: Lab, *, push: bool = False) -> tuple[Workspace, Workspace, list[Event]]:
    """A device that has much to fetch, and one that has it."""
    w, other = two_devices(lab)
    write(other.directory, {f"f{i:02}": os.urandom(600_000) for i in range(8)})
    other.push()
    if push:
        write(w.directory, {"mine": b"mine"})
    directory = w.directory
    w.close()
    told: list[Event] = []
    return lab.keep(Workspace.open(directory, on_event=told.append)), other, told


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("what", "free"), [("pull", 0), ("pull", 1), ("push", 0)])
@pytest.mark.long
def test_what_fetches_much_gives_way_while_its_packs_stand_still(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str, free: int
) -> None:
    w, other, told = pulling(lab, push=what == "push")
    tap = Tap(monkeypatch, free)
    running = Running(getattr(w, what))
    assert tap.held.wait(SOON_S)
    with WorkspaceLock(w.directory / ".metasync").acquire("anything"):
        assert running.is_alive()
        assert not tap.open.is_set(), "it had the lock while the packs stood still"
    tap.open.set()
    assert running.end().version is not None
    other.pull()
    assert tree_of(w.directory) == tree_of(other.directory)
    assert any(f"this {what} goes on after it" in e.text for e in told if isinstance(e, Notice))


@pytest.mark.usefixtures("at_once")
def test_a_pull_that_another_one_has_done_meanwhile_ends_well(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other, _ = pulling(lab)
    tap = Tap(monkeypatch, free=1)
    running = Running(w.pull)
    assert tap.held.wait(SOON_S)
    second = Running(lab.keep(Workspace.open(w.directory)).pull)
    with WorkspaceLock(w.directory / ".metasync").acquire("anything"):
        tap.open.set()
    second.end()
    running.end()
    assert tree_of(w.directory) == tree_of(other.directory)


def test_a_pull_that_changes_the_folder_gives_way_to_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other, _ = pulling(lab)
    looks: list[bool] = []
    applying = [False]
    monkeypatch.setattr(Turns, "look", lambda _: looks.append(applying[0]))
    apply = Checkout.apply

    def applied(checkout: Checkout, commit: Any) -> Any:
        applying[0] = True
        return apply(checkout, commit)

    monkeypatch.setattr(Checkout, "apply", applied)
    w.pull()
    assert looks
    assert not any(looks)
    assert tree_of(w.directory) == tree_of(other.directory)


def test_a_large_folder_that_is_walked_is_left_to_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pack is sent or fetched then."""
    w, _ = two_devices(lab)
    monkeypatch.setattr(merge_walk, "LOOKED_EVERY", 1)
    write(w.directory, {f"d{n}/f": b"1" for n in range(5)})
    looks: list[None] = []
    monkeypatch.setattr(Turns, "look", lambda _: looks.append(None))
    w.push()
    assert len(looks) >= 5


@pytest.mark.usefixtures("at_once")
def test_what_a_pull_has_fetched_is_taken_up_whoever_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pull that is stopped again and again would never end."""
    w, other, told = pulling(lab)
    tap = Tap(monkeypatch, free=1)
    tap.open.set()  # nothing is held
    looks: list[str] = []

    def look(turns: Turns) -> None:
        looks.append("")
        if any(e.phase == "download" and e.done for e in told if isinstance(e, Progress)) and turns._wanted():
            raise GiveWay

    wanted = iter([True] * 3)
    monkeypatch.setattr(Turns, "look", look)
    w._work.around.let_in = lambda: w._db.set_value("noted by a test", os.urandom(8))
    w._work.around.waits = lambda: next(wanted, False)
    w.pull()
    assert tree_of(w.directory) == tree_of(other.directory)
    texts = [e.text for e in told if isinstance(e, Notice)]
    assert any("goes first" in t for t in texts)
    assert any(t.startswith("going on with ") for t in texts)


class Turning:
    """A pull of files of one and of many pieces that gives way `left` times, each time when it has staged a piece.

    Other pieces of such a turn come too late. `between` is called after each turn; something is noted in the local
    state then, so that the next turn begins from its beginning, unless it `stays`. `staged`: how often each piece was
    staged; `planned`, `begun`: how often all of it was planned, and the checkout begun.
    """

    def __init__(
        self,
        lab: Lab,
        monkeypatch: pytest.MonkeyPatch,
        times: int,
        between: Callable[[], None],
        *,
        stays: bool = False,
    ) -> None:
        self.stays, self.asides = stays, 0
        self.w, self.other = two_devices(lab)
        self.w.pull()  # both know both devices
        write(
            self.other.directory, {f"f{i:02}": os.urandom(100_000) for i in range(5)} | {"big": os.urandom(6_000_000)}
        )
        self.other.push()
        self.staged: Counter[tuple[bytes, int]] = Counter()
        self.planned = self.begun = 0
        self.left, self.is_due, self._between = times, False, between
        self._over = threading.Event()  # the turn is
        self._puller = threading.current_thread()
        plan, begin, part, whole = merging._plan, Checkout.begin, Checkout.stage_part, Checkout.stage_whole

        def planned(*args: Any, **words: Any) -> Any:
            self.planned += 1
            return plan(*args, **words)

        def begun(checkout: Checkout, *args: Any, **words: Any) -> Any:
            self.begun += 1
            return begin(checkout, *args, **words)

        def stage_part(checkout: Checkout, path: bytes, offset: int, data: bytes) -> None:
            with self._staging(path, offset):
                part(checkout, path, offset, data)

        def stage_whole(checkout: Checkout, path: bytes, data: bytes) -> None:
            with self._staging(path, -1):
                whole(checkout, path, data)

        monkeypatch.setattr(merging, "_plan", planned)
        monkeypatch.setattr(Checkout, "begin", begun)
        monkeypatch.setattr(Checkout, "stage_part", stage_part)
        monkeypatch.setattr(Checkout, "stage_whole", stage_whole)
        monkeypatch.setattr(Turns, "look", self._look)
        self.w._work.around.let_in = self._let_in

    @contextmanager
    def _staging(self, path: bytes, offset: int) -> Iterator[None]:
        over = self._over
        if self.left and self.is_due and threading.current_thread() is not self._puller:
            assert over.wait(SOON_S)  # what came along with directories is staged by the pull itself, which looks later
        if over.is_set():
            raise RuntimeError("its turn is over")
        yield
        self.staged[path, offset] += 1
        self.is_due = True

    def _look(self) -> None:
        if self.is_due and self.left:
            self.left, self.is_due = self.left - 1, False
            over, self._over = self._over, threading.Event()
            over.set()
            raise GiveWay

    def _let_in(self) -> None:
        self.asides += 1
        self._between()
        if not self.stays:
            self.w._db.set_value("noted by a test", b"%d" % self.asides)

    def end(self) -> PullReport:
        """Runs the pull, and looks that all came."""
        report = self.w.pull()
        assert not self.left
        assert tree_of(self.w.directory).items() >= tree_of(self.other.directory).items()
        return report

    def staged_file(self) -> Path:
        """A file that is staged, whole or in part."""
        return next(p for p in sorted((self.w.directory / ".metasync" / "tmp").rglob("*")) if p.is_file())


def test_a_turn_goes_on_with_the_plan_and_the_files_of_the_one_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that comes between two turns waits for no more than a look at the folder, however much was brought."""
    pull = Turning(lab, monkeypatch, 3, lambda: None)
    assert {*pull.end().changes.added} == {b"big", *(b"f%02d" % i for i in range(5))}
    assert (pull.planned, pull.begun) == (1, 1)
    assert set(pull.staged.values()) == {1}, "nothing is brought again"
    assert len([1 for path, _ in pull.staged if path == b"big"]) > 3


def test_a_push_between_two_turns_that_has_nothing_to_push_leaves_the_news_to_the_pull(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It brought all that the pull brings, in its place: who asked for a push waited for a whole pull."""
    reports: list[PushReport] = []
    pull = Turning(lab, monkeypatch, 3, lambda: reports.append(pull.w.push()))
    pull.end()
    assert reports
    assert all((r.version, r.pulled, bool(r.changes)) == (None, None, False) for r in reports)
    assert (pull.planned, pull.begun) == (1, 1)
    assert set(pull.staged.values()) == {1}, "nothing is brought again"
    assert pull.w.push().version is None


def test_a_pull_goes_on_in_place_where_those_that_it_let_in_changed_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at nothing again. Others have the lock meanwhile, and what arrives late is taken after that."""
    reports: list[PushReport] = []

    def between() -> None:
        with WorkspaceLock(pull.w.directory / ".metasync").acquire("anything", wait_s=0):
            pass
        reports.append(pull.w.push())

    pull = Turning(lab, monkeypatch, 3, between, stays=True)
    looks: list[None] = []
    scan = merging.scan
    monkeypatch.setattr(merging, "scan", lambda *args: looks.append(None) or scan(*args))
    sessions: list[str] = []
    begun = pull.w._work.begun
    monkeypatch.setattr(pull.w._work, "begun", lambda what, **words: sessions.append(what) or begun(what, **words))
    assert {*pull.end().changes.added} == {b"big", *(b"f%02d" % i for i in range(5))}
    assert (pull.planned, pull.begun, len(looks)) == (1, 1, 1)
    assert 1 <= pull.asides <= 3, "one may come while a fetch that was broken off for another ends"
    assert sessions == ["pull", *["push"] * pull.asides]
    assert all((r.version, r.pulled, bool(r.changes)) == (None, None, False) for r in reports)
    assert pull.w.push().version is None


@pytest.mark.parametrize("who", ["this program", "another"])
def test_a_pull_does_not_go_on_in_place_where_anything_was_noted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Nobody tells what of its plan is untrue by then: all is looked at again."""

    def note() -> None:
        if who == "another":
            with LocalDb.open(pull.w.directory / STATE_DIR / DB_FILE) as db:
                db.set_value("noted by a test", b"1")
        else:
            pull.w._db.set_value("noted by a test", b"1")

    pull = Turning(lab, monkeypatch, 1, note, stays=True)
    looks: list[None] = []
    scan = merging.scan
    monkeypatch.setattr(merging, "scan", lambda *args: looks.append(None) or scan(*args))
    pull.end()
    assert len(looks) == 2


def test_what_fails_or_is_ended_while_a_pull_lets_others_in_leaves_it_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended() -> None:
        raise CancelledError("ended")

    pull = Turning(lab, monkeypatch, 1, ended, stays=True)
    with pytest.raises(CancelledError):
        pull.w.pull()
    WorkspaceLock(pull.w.directory / ".metasync").acquire("anything", wait_s=0).release()
    pull._between = lambda: None
    pull._over.clear()
    pull.end()


def test_a_push_between_two_turns_pushes_what_changed_here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[PushReport] = []

    def edit() -> None:
        write(pull.w.directory, {"mine": b"mine"})
        reports.append(pull.w.push())

    pull = Turning(lab, monkeypatch, 1, edit)
    pull.end()
    [report] = reports
    assert report.version is not None
    assert report.pulled is not None
    pull.other.pull()
    assert tree_of(pull.other.directory) == tree_of(pull.w.directory)


@pytest.mark.few(1)
@pytest.mark.parametrize("left", ["era", "epoch", "devices"])
def test_a_push_between_two_turns_takes_news_of_another_kind_itself(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Of another era, or of a skip: then what is here may count as new."""
    found: list[bool] = []

    def ask() -> None:
        with pull.w._session("push") as s:
            known = s.newest_state()
            changed: dict[str, Any] = {left: b"o" * 32 if left == "devices" else getattr(known, left) + 1}
            other = replace(known, **changed)
            found.append(no_change.push_let_in(s) is not None)
            monkeypatch.setattr(s, "newest_state", lambda: other)
            found.append(no_change.push_let_in(s) is not None)

    pull = Turning(lab, monkeypatch, 1, ask)
    pull.end()
    assert found == [True, False]


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [JOURNAL_KEY.name, KEPT_KEY.name, ERA_KEY.name])
def test_a_push_between_two_turns_goes_on_with_what_is_left(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    found: list[bool] = []

    def ask() -> None:
        with pull.w._session("push") as s:
            has = s.db.has
            with monkeypatch.context() as patch:
                patch.setattr(s.db, "has", lambda key: key.name == kept or has(key))
                found.append(no_change.push_let_in(s) is not None)

    pull = Turning(lab, monkeypatch, 1, ask)
    pull.w.pull()
    assert found == [False]


@pytest.mark.parametrize("after", ["plan", "begin"])
def test_a_pull_gives_way_before_it_fetches_and_goes_on_with_what_it_has_prepared(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    pushed: list[PushReport] = []
    pull = Turning(lab, monkeypatch, 1, lambda: pushed.append(pull.w.push()))
    at: Any = {"plan": (merging, "_plan"), "begin": (Checkout, "begin")}[after]
    real = getattr(*at)

    def prepared(*args: Any, **words: Any) -> Any:
        made = real(*args, **words)
        pull.is_due = True
        return made

    monkeypatch.setattr(*at, prepared)
    monkeypatch.setattr(merging, "deliver", delivered := Delivered(merging.deliver, pull))
    pull.end()
    assert delivered.turns_left == [0]
    assert [(r.version, r.pulled) for r in pushed] == [(None, None)]
    assert (pull.planned, pull.begun) == (1, 1)
    assert set(pull.staged.values()) == {1}


def test_a_pull_of_a_folder_that_changes_in_each_turn_ends_whoever_waits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its turns begins anew; one that broke off each time before it came to fetch would never end."""
    w, other, _ = pulling(lab)
    monkeypatch.setattr(lock, "TURN_S", 1e-3)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)
    edits = iter(range(1000))

    def edit() -> None:
        write(w.directory, {f"mine{next(edits)}": b"mine"})
        w._db.set_value("noted by a test", os.urandom(8))

    w._work.around.waits, w._work.around.let_in = lambda: True, edit
    w.pull()
    assert next(edits) > 3
    assert tree_of(w.directory).items() >= tree_of(other.directory).items()


class Delivered:
    """Notes how many turns a pull had still to give when it began to fetch."""

    def __init__(self, deliver: Callable[..., None], pull: Turning) -> None:
        self._deliver, self._pull = deliver, pull
        self.turns_left: list[int] = []

    def __call__(self, *args: Any, **words: Any) -> None:
        self.turns_left.append(self._pull.left)
        self._deliver(*args, **words)


def test_a_folder_that_changed_between_two_turns_is_merged_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit() -> None:
        write(pull.w.directory, {"mine": b"mine", "f03": b"mine too"})

    pull = Turning(lab, monkeypatch, 1, edit)
    theirs = (pull.other.directory / "f03").read_bytes()
    pull.w.pull()
    assert pull.planned == 2
    assert (pull.w.directory / "mine").read_bytes() == b"mine"
    names = [path.name for path in pull.w.directory.glob("f03*")]
    assert {(pull.w.directory / name).read_bytes() for name in names} == {b"mine too", theirs}
    assert len(names) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["written", "gone"])
def test_what_was_staged_and_is_not_as_it_was_is_looked_at_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def harm() -> None:
        path = pull.staged_file()
        st = path.stat()
        if what == "gone":
            path.unlink()
            return
        path.write_bytes(os.urandom(st.st_size))
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))

    pull = Turning(lab, monkeypatch, 1, harm)
    pull.end()
    assert pull.begun == 2


def test_a_checkout_that_another_began_between_two_turns_counts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> None:
        write(pull.other.directory, {"later": b"later"})
        pull.other.push()
        with Workspace.open(pull.w.directory) as second:
            second.pull()

    pull = Turning(lab, monkeypatch, 1, other)
    pull.end()
    assert (pull.w.directory / "later").read_bytes() == b"later"
    assert not list(pull.w.directory.glob("*conflict*"))


def test_a_version_that_came_between_two_turns_is_what_the_pull_ends_at(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later() -> None:
        write(pull.other.directory, {"later": b"later", "f03": b"newer"})
        pull.other.push()

    pull = Turning(lab, monkeypatch, 1, later)
    pull.end()
    assert pull.planned == 2
    assert not list(pull.w.directory.glob("*conflict*"))
