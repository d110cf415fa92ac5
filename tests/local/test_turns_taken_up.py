"""A pull that gave way goes on with the plan and the staged files of its turn before, or plans anew."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from turns_kit import SOON_S, pulling, two_devices
from workspace_kit import Lab, tree_of, write

from metasync.checkout.checkout import Checkout
from metasync.consensus import JOURNAL_KEY
from metasync.errors import CancelledError
from metasync.local import lock
from metasync.local.lock import GiveWay, Turns, WorkspaceLock
from metasync.local.state import LocalDb
from metasync.local.state_keys import ERA_KEY, KEPT_KEY
from metasync.reports.sync import PullReport, PushReport
from metasync.session.folder import DB_FILE, STATE_DIR
from metasync.sync import no_change
from metasync.sync import pull as merging
from metasync.workspace import Workspace


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
