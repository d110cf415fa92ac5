"""What an upkeep decides, one step after the other: when it runs, what it does with its time, and what it notes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.errors import CancelledError, UnreachableError
from metasync.local import settings
from metasync.local.state_keys import MENDING_KEY, READING_KEY, SHORT_KEY, SURPLUS_KEY, UPKEEP_KEY, WIPE_KEY
from metasync.maintenance import scrub
from metasync.moving import surplus, upkeep, wipe
from metasync.moving.rebalance import Deadline
from metasync.reports.backends import Wiped
from metasync.runtime.limits import UPKEEP
from metasync.sync.operations import DAY_S

NOW_S = 1_000_000
AGAIN = NOW_S + upkeep.AGAIN_S
WORKS = {"moving": True, "surplus": SURPLUS_KEY, "mending": MENDING_KEY, "wipe": WIPE_KEY}


class Ends:
    """A deadline that is over as soon as a test says so."""

    left_s = 7.0

    def __init__(self, is_over: bool = False) -> None:
        self.is_over = is_over


class Notes:
    """The notes of a device."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def has(self, key: Any) -> bool:
        return key in self.rows

    def get(self, key: Any) -> Any:
        return self.rows.get(key)

    def set(self, key: Any, value: Any) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def transaction(self) -> Any:
        return contextlib.nullcontext()


class Bench:
    """A workspace, whose steps answer as a test wants, and tell that they ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.db = Notes()
        self.ran: list[str] = []
        self.config: Any = SimpleNamespace(prev_config=None)
        connections = SimpleNamespace(
            config=self.config, db=self.db, machine=SimpleNamespace(wall_ns=lambda: NOW_S * 1_000_000_000)
        )
        self.s: Any = SimpleNamespace(db=self.db, previous=None)
        self.work: Any = SimpleNamespace(
            connections=connections, settings_path="", session=lambda _: contextlib.nullcontext(self.s)
        )

    def step(self, name: str, answer: Any, at: Any = upkeep) -> None:
        """Has a step say that it ran, and give this, or raise it."""

        def run(*_: Any, **__: Any) -> Any:
            self.ran.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer() if callable(answer) else answer

        self.patch.setattr(at, name, run)

    def wants(self, upkeep_: str | None) -> None:
        values = {} if upkeep_ is None else {UPKEEP: upkeep_}
        self.patch.setattr(settings, "read", lambda _: SimpleNamespace(values=values))

    def has_work(self, of: str) -> None:
        if of == "moving":
            self.config.prev_config = b"before"
        elif of:
            self.db.set(WORKS[of], b"x")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(monkeypatch)
    made.wants("10m")
    made.step("_keep_up", True)
    made.step("_read", True)
    made.db.set(READING_KEY, NOW_S + 100)  # not due
    return made


# ---- when


@pytest.mark.parametrize("of", ["", *WORKS])
def test_it_runs_where_there_is_something_to_do(bench: Bench, of: str) -> None:
    bench.has_work(of)
    upkeep.after_push(bench.work)
    assert bench.ran == (["_keep_up"] if of else [])


@pytest.mark.parametrize(
    ("said", "budget_s", "runs"), [(None, upkeep.BUDGET_S, True), ("off", 0.0, False), ("5m", 300.0, True)]
)
def test_it_has_the_time_that_a_setting_says(bench: Bench, said: str | None, budget_s: float, runs: bool) -> None:
    asked: list[float] = []
    bench.patch.setattr(upkeep, "Deadline", lambda seconds: asked.append(seconds) or Deadline(600.0))
    bench.wants(said)
    bench.has_work("moving")
    upkeep.after_push(bench.work)
    assert asked == [budget_s]
    assert bench.ran == (["_keep_up"] if runs else [])
    assert not bench.db.has(UPKEEP_KEY), "what is switched off has not come to nothing"


@pytest.mark.parametrize(
    ("until", "runs"),
    [(None, True), (NOW_S - 1, True), (NOW_S, False), (NOW_S + 5, False), (AGAIN, False), (AGAIN + 1, True)],
    ids=["never", "over", "now", "soon", "just begun", "further ahead, since a clock was wrong"],
)
def test_it_runs_once_its_pause_is_over(bench: Bench, until: int | None, runs: bool) -> None:
    bench.db.set(UPKEEP_KEY, until)
    bench.has_work("moving")
    upkeep.after_push(bench.work)
    assert bench.ran == (["_keep_up"] if runs else [])


@pytest.mark.parametrize(
    ("came", "until"), [(True, None), (False, AGAIN), (UnreachableError("a is away"), AGAIN)], ids=str
)
def test_it_pauses_when_nothing_came_of_it(bench: Bench, came: Any, until: int | None) -> None:
    bench.step("_keep_up", came)
    bench.has_work("moving")
    bench.db.set(UPKEEP_KEY, NOW_S - 1)
    upkeep.after_push(bench.work)
    assert bench.db.get(UPKEEP_KEY) == until


@pytest.mark.parametrize(
    ("came", "left", "is_wanted", "until", "goes_on"),
    [
        (True, True, False, None, True),
        (True, False, False, None, False),
        (False, True, False, AGAIN, False),
        (False, True, True, None, True),
        (UnreachableError("a is away"), True, False, AGAIN, False),
    ],
    ids=["more is left", "nothing is left", "nothing came of it", "broken off", "failed"],
)
def test_in_quiet_it_goes_on_where_something_came_of_it_or_it_was_broken_off(
    bench: Bench, came: Any, left: bool, is_wanted: bool, until: int | None, goes_on: bool
) -> None:
    def keep_up() -> Any:
        if not left:
            bench.config.prev_config = None
        if isinstance(came, Exception):
            raise came
        return came

    bench.wants(None)
    bench.has_work("moving")
    bench.step("_keep_up", keep_up)
    assert upkeep.in_quiet(bench.work, lambda: is_wanted) is goes_on
    assert bench.db.get(UPKEEP_KEY) == until


@pytest.mark.parametrize(("said", "budget_s"), [(None, 60.0), ("5m", 9000.0), ("off", 0.0)])
def test_in_quiet_it_has_thirty_times_as_long(bench: Bench, said: str | None, budget_s: float) -> None:
    asked: list[float] = []
    bench.patch.setattr(upkeep, "Deadline", lambda seconds, *_: asked.append(seconds) or Deadline(600.0))
    bench.wants(said)
    bench.has_work("moving")
    upkeep.in_quiet(bench.work, lambda: False)
    assert asked == [budget_s]
    assert bench.ran == (["_keep_up"] if budget_s else [])


def test_in_quiet_what_is_due_to_be_read_stays_due_where_it_was_broken_off(bench: Bench) -> None:
    bench.wants(None)
    bench.db.set(READING_KEY, NOW_S - 1)
    upkeep.in_quiet(bench.work, lambda: True)
    assert (bench.ran, bench.db.get(READING_KEY)) == ([], NOW_S - 1)
    upkeep.in_quiet(bench.work, lambda: False)
    assert (bench.ran, bench.db.get(READING_KEY)) == (["_read"], NOW_S + DAY_S)


@pytest.mark.parametrize("step", ["_keep_up", "_read"])
def test_who_stops_it_stops_the_push(bench: Bench, step: str) -> None:
    bench.step(step, CancelledError("stopped"))
    bench.has_work("moving")
    bench.db.set(READING_KEY, NOW_S - 1)
    with pytest.raises(CancelledError):
        upkeep.after_push(bench.work)


@pytest.mark.parametrize(
    ("due", "said", "is_over", "reads", "ran", "again_s"),
    [
        (False, "10m", False, True, [], 100),
        (True, "10m", False, True, ["_read"], DAY_S),
        (True, "10m", False, False, ["_read"], upkeep.AGAIN_S),
        (True, "10m", False, UnreachableError("a is away"), ["_read"], upkeep.AGAIN_S),
        (True, "10m", True, True, [], upkeep.AGAIN_S),
        (True, "off", True, True, [], DAY_S),
    ],
    ids=["not due", "all", "some", "fails", "no time left", "off"],
)
def test_copies_are_read_when_they_are_due_and_there_is_time(
    bench: Bench, due: bool, said: str, is_over: bool, reads: Any, ran: list[str], again_s: int
) -> None:
    bench.patch.setattr(upkeep, "Deadline", lambda _: Ends(is_over))
    bench.wants(said)
    bench.step("_read", reads)
    if due:
        bench.db.set(READING_KEY, NOW_S - 1)
    upkeep.after_push(bench.work)
    assert bench.ran == ran
    assert bench.db.get(READING_KEY) == NOW_S + again_s


def test_reading_is_told_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(scrub, "read_in_turn", lambda _, left_s: asked.append(left_s()))
    work: Any = object()
    upkeep._read(work, Ends())  # type: ignore[arg-type]
    assert asked == [7.0]


# ---- what


class Turn:
    """One turn of `_keep_up`."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.ends = bench, Ends()
        self.version: int | None = None
        self.done: set[Any] = set()
        self.wiped: dict[str, Any] = {}
        bench.patch.undo()
        bench.patch.setattr(upkeep, "rebalance", self._rebalance)
        bench.step("free", False)
        bench.step("mend", False)
        bench.step("go_on", lambda: self.wiped, at=wipe)

    def _rebalance(self, _: Any, *, tally: Any, ends: Any) -> Any:
        self.bench.ran.append("rebalance")
        tally.done = self.done
        if self.version is not None:
            self.bench.config.prev_config = None
        return SimpleNamespace(version=self.version)

    def keep_up(self) -> bool:
        return upkeep._keep_up(self.bench.work, self.ends)  # type: ignore[arg-type]


@pytest.fixture
def turn(bench: Bench) -> Turn:
    return Turn(bench)


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("of", "ran"),
    [("", []), ("moving", ["rebalance"]), ("surplus", ["free"]), ("mending", ["mend"]), ("wipe", ["go_on"])],
)
def test_each_step_runs_where_it_has_work_and_a_later_one_only_in_time(
    bench: Bench, turn: Turn, of: str, ran: list[str], is_over: bool
) -> None:
    bench.has_work(of)
    turn.ends.is_over = is_over
    assert turn.keep_up() is False
    assert bench.ran == ([] if is_over and of != "moving" else ran)


@pytest.mark.parametrize(
    ("version", "done", "came", "tries"),
    [(None, set(), False, None), (None, {(0, b"p1")}, True, None), (7, set(), True, upkeep.FREE_TRIES)],
    ids=["nothing", "some moved", "trimmed"],
)
def test_a_trim_has_what_is_surplus_freed(
    bench: Bench, turn: Turn, version: int | None, done: set[Any], came: bool, tries: int | None
) -> None:
    bench.has_work("moving")
    turn.version, turn.done = version, done
    assert turn.keep_up() is came
    assert bench.ran == ["rebalance"] + (["free"] if version is not None else [])
    assert bench.db.get(SURPLUS_KEY) == tries


@pytest.mark.parametrize("step", ["free", "mend"])
def test_what_a_step_tells_came_of_it(bench: Bench, turn: Turn, step: str) -> None:
    for of in ("surplus", "mending"):
        bench.has_work(of)
    bench.step(step, True)
    assert turn.keep_up() is True
    assert bench.ran == ["free", "mend"]


def test_what_was_removed_is_not_emptied_while_data_move(bench: Bench, turn: Turn) -> None:
    bench.has_work("wipe")
    bench.has_work("moving")
    turn.keep_up()
    assert bench.ran == ["rebalance"]


@pytest.mark.parametrize(
    ("wiped", "came"),
    [
        ([], False),
        ([Wiped(0, 0, left=3, why="no time")], False),
        ([Wiped(2, 20, left=1)], True),
        ([Wiped(0, 0)], True),
        ([UnreachableError("a is away")], False),
        ([UnreachableError("a is away"), Wiped(0, 0, left=3), Wiped(1, 9)], True),
    ],
    ids=["none", "no object", "some objects", "empty already", "away", "one of several"],
)
def test_an_emptied_backend_came_of_it(bench: Bench, turn: Turn, wiped: list[Any], came: bool) -> None:
    bench.has_work("wipe")
    turn.wiped = {str(n): one for n, one in enumerate(wiped)}
    assert turn.keep_up() is came


# ---- surplus copies


@pytest.mark.parametrize(
    ("copies", "is_all", "tries", "left", "came"),
    [
        (2, True, 3, None, True),
        (0, True, 3, None, True),
        (2, False, 3, 3, True),
        (0, False, 3, 2, False),
        (0, False, 1, None, False),
        (2, False, 1, 1, True),
        (2, False, None, None, True),
    ],
    ids=["all", "none are left", "some", "none", "the last try", "some at the last try", "gone meanwhile"],
)
def test_what_is_surplus_is_tried_again_until_nothing_went_so_often(
    bench: Bench, copies: int, is_all: bool, tries: int | None, left: int | None, came: bool
) -> None:
    freed = surplus.Freed(is_all=is_all)
    if copies:
        freed.copies["a"] = copies
    bench.patch.setattr(upkeep, "Mover", lambda *_, **__: None)
    bench.patch.setattr(surplus, "free", lambda _: freed)
    bench.db.set(SURPLUS_KEY, tries)
    assert upkeep.free(bench.work, Deadline()) is came
    assert bench.db.get(SURPLUS_KEY) == left


def test_nothing_is_freed_once_data_move_again(bench: Bench) -> None:
    bench.patch.setattr(upkeep, "Mover", lambda *_, **__: None)
    bench.patch.setattr(surplus, "free", lambda _: pytest.fail("a copy that counts may go"))
    bench.db.set(SURPLUS_KEY, 3)
    bench.s.previous = object()
    assert upkeep.free(bench.work, Deadline()) is False
    assert not bench.db.has(SURPLUS_KEY)


# ---- copies that were noticed


def name(n: int) -> bytes:
    return bytes([n]) * 32


@pytest.mark.parametrize(
    ("noted", "done", "lost", "left", "came"),
    [
        ({1, 2}, {1, 2}, set(), set(), True),
        ({1, 2}, {1}, set(), {2}, True),
        ({1, 2}, set(), {1}, {2}, True),
        ({1, 2}, set(), set(), {1, 2}, False),
        ({1, 9}, set(), set(), {1}, True),
    ],
    ids=["all", "some", "one is lost", "none", "one is named no more"],
)
def test_what_was_made_good_is_noted_no_more(
    bench: Bench, noted: set[int], done: set[int], lost: set[int], left: set[int], came: bool
) -> None:
    """The index names packs 1, 2 and 3."""
    asked = mending(bench, noted, done, lost)
    assert upkeep.mend(bench.work, Deadline()) is came
    assert asked == noted - {9}, "no other pack is looked at"
    assert (bench.db.get(MENDING_KEY) or b"") == b"".join(map(name, sorted(left)))
    assert not bench.db.has(SHORT_KEY)


@pytest.mark.parametrize(
    ("short", "done", "now"),
    [(3, {1, 2}, 1), (1, {1}, 1), (1, {1, 2, 3}, 0), (2, set(), 2), (5, {1, 2, 3}, 2)],
    ids=["fewer", "another may be one of them", "all", "none", "others are not noted"],
)
def test_packs_that_found_too_few_places_are_fewer_then(bench: Bench, short: int, done: set[int], now: int) -> None:
    mending(bench, {1, 2, 3}, done, set())
    bench.db.set(SHORT_KEY, short)
    upkeep.mend(bench.work, Deadline())
    assert bench.db.get(SHORT_KEY) == now


def mending(bench: Bench, noted: set[int], done: set[int], lost: set[int]) -> set[int]:
    """Has these made good, and tells which packs were to be."""
    asked: set[int] = set()
    packs = {n: SimpleNamespace(id=(0, name(n)), name=name(n)) for n in (1, 2, 3)}

    def mover(_: Any, tally: Any, **__: Any) -> Any:
        def bring_all(some: list[Any], *, note: bool) -> None:
            asked.update(p.name[0] for p in some)
            tally.done, tally.lost = {packs[n].id for n in done}, {name(n) for n in lost}

        index = SimpleNamespace(packs=lambda: packs)
        return SimpleNamespace(base=SimpleNamespace(index=index), bring_all=bring_all)

    made: Callable[..., Any] = mover
    bench.patch.setattr(upkeep, "Mover", made)
    bench.db.set(MENDING_KEY, b"".join(map(name, sorted(noted))))
    return asked
