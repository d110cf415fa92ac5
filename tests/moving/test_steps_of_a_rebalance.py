"""What the steps of a rebalance decide, one by one: what is moved and noted, how much at once, when a trim comes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.errors import WorkspaceError
from metasync.maintenance import moved
from metasync.moving import rebalance as rebalancing
from metasync.moving import surplus
from metasync.moving.rebalance import Deadline, Mover, Tally
from metasync.session import agreement, space
from metasync.transfer import late_copies
from metasync.transfer.copies import Place
from metasync.transfer.moving import Brought

A, B, C = b"a", b"b", b"c"  # ids of backends, whose names they are too
STAYS = "s"  # begins the name of a pack that no mapping has elsewhere
DONE, LOST, FAILS = Brought({}, ("a",)), Brought({"a": "gone"}, is_lost=True), Brought({"a": "is away"})


def pack(name: str, size: int = 100) -> Any:
    return SimpleNamespace(id=(0, name.encode()), generation=0, name=name.encode(), size=size)


def named(packs: Iterable[Any]) -> list[str]:
    return [p.name.decode() for p in packs]


class Places:
    """Packs whose names do not begin with `STAYS` go from b to a. The number at the end is the partition's."""

    now = SimpleNamespace(partitions=8)

    def is_displaced(self, name: bytes) -> bool:
        return not name.startswith(STAYS.encode())

    def partition(self, name: bytes) -> int:
        return int(name[1:])

    def primary(self, name: bytes) -> tuple[bytes, ...]:
        return (A, C)

    def had(self, name: bytes) -> tuple[bytes, ...]:
        return (B, C)

    def receivers(self, name: bytes) -> list[bytes]:
        return [A] if self.is_displaced(name) and name[:1] != b"f" else []  # some copies are only to be freed

    def givers(self, name: bytes) -> list[bytes]:
        return [B]

    def ids(self, backend_id: bytes, name: bytes) -> tuple[bytes, ...]:
        return (b"new", b"old")


class Noted:
    def __init__(self, names: Iterable[str], sums: dict[int, int]) -> None:
        self.names, self.sums = {n.encode() for n in names}, sums

    def __contains__(self, name: bytes) -> bool:
        return name in self.names


class Bench:
    """A mover over packs, whose session and places answer as a test wants. `noted`: packs that were noted as moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.noted: list[str] = []
        self.doubted: list[str] = []  # packs with a copy that is known to be wrong
        self.notes: list[dict[int, int]] = []
        self.named: list[Any] = []  # by the newest index
        self.config: Any = SimpleNamespace(
            prev_config=None, redundancy=1, mapping=1,
            backends=[SimpleNamespace(backend_id=i, name=i.decode()) for i in (A, C)],
        )  # fmt: skip
        places = {i: Place(i.decode(), i, (b"every",)) for i in (A, B, C)}
        self.ticks = 0.0
        self.s: Any = SimpleNamespace(
            config=self.config, previous=None, db=None, listener=lambda _: None, names={A: "a", C: "c"}, former={},
            transfer=SimpleNamespace(places=places, down={}, room=None, read_order=lambda _: [places[C], places[A]]),
            device=SimpleNamespace(device_id=b"\3"), newest_state=lambda: SimpleNamespace(fingerprint="print"),
            runtime=SimpleNamespace(clock=self._clock, run=None),
        )  # fmt: skip
        monkeypatch.setattr(rebalancing, "Places", lambda *_: Places())
        monkeypatch.setattr(rebalancing, "knows_all", lambda _: True)
        monkeypatch.setattr(Mover, "noted", lambda *_: Noted(self.noted, {n: n * 10 for n in range(9)}))
        monkeypatch.setattr(Mover, "doubted", lambda _: lambda name: name.decode() in self.doubted)
        monkeypatch.setattr(moved, "note", lambda _, sums: self.notes.append(dict(sums)))
        monkeypatch.setattr(agreement, "newest", lambda _: self._agreed())

    def _clock(self) -> float:
        self.ticks += 0.4
        return self.ticks

    def _agreed(self) -> Any:
        packs = {p.id: p for p in self.named}
        return SimpleNamespace(
            index=SimpleNamespace(packs=lambda: packs), state=SimpleNamespace(fingerprint="print"), config=self.config
        )

    def mover(self, *packs: Any, ends: Any = None, tally: Tally | None = None) -> Mover:
        self.named = [*packs]
        return Mover(self.s, tally or Tally(), read_data=False, ends=ends)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_deadline_is_over_when_no_second_is_left() -> None:
    assert [Deadline(seconds).is_over for seconds in (-1.0, 0.0, 600.0)] == [True, True, False]
    assert Deadline(600.0, lambda: True).is_over
    assert not Deadline().is_over


@pytest.mark.parametrize("changed", ["backends", "redundancy", "mapping", ""])
def test_what_was_verified_holds_as_long_as_packs_belong_where_they_did(changed: str) -> None:
    was = {"backends": 1, "redundancy": 2, "mapping": 3}
    tally = Tally()
    tally.begin(SimpleNamespace(**was))  # type: ignore[arg-type]
    tally.done, tally.waiting = {(0, b"p1")}, {"a": "is away"}
    tally.begin(SimpleNamespace(**was | ({changed: 9} if changed else {})))  # type: ignore[arg-type]
    assert (tally.done, tally.waiting) == (set() if changed else {(0, b"p1")}, {})


# ---- what is to be moved


def test_what_no_mapping_has_elsewhere_is_not_moved_and_each_device_begins_at_its_own_place(bench: Bench) -> None:
    mover = bench.mover(*map(pack, ("p1", "s2", "p3", "p7", "p0")))
    assert named(mover.displaced()) == ["p3", "p7", "p0", "p1"]


def test_what_is_verified_lost_or_noted_is_not_left(bench: Bench) -> None:
    tally = Tally(done={(0, b"p1")}, lost={b"p2"})
    packs = [pack(name) for name in ("p1", "p2", "p3", "s4", "p5")]
    mover = bench.mover(*packs, tally=tally)
    tally.done, bench.noted = {(0, b"p1")}, ["p3"]
    assert named(mover.unverified(packs)) == ["p5"]
    assert mover.remains()
    assert not bench.mover(packs[1], packs[2], packs[3], tally=tally).remains()
    bench.doubted = ["p1", "p3", "s4"]
    assert named(mover.unverified(packs)) == ["p3", "p5"], "what was noted, and is known to be wrong since"


@pytest.mark.parametrize(
    ("brought", "note", "noted"),
    [
        ([("p1", DONE), ("q1", DONE), ("p2", DONE)], True, [{1: 10}, {2: 20}]),
        ([("p1", DONE), ("p2", FAILS), ("q2", DONE)], True, [{1: 10}]),
        ([("p1", LOST), ("q1", DONE)], True, []),
        ([("q1", DONE), ("p1", LOST)], True, []),
        ([("p1", DONE), ("q1", DONE)], False, []),
        ([(f"p{n}", DONE) for n in range(7)], True, [{0: 0, 1: 10}, {2: 20, 3: 30}, {4: 40, 5: 50}, {6: 60}]),
    ],
    ids=["all", "one-fails", "first-is-lost", "last-is-lost", "not-whole-partitions", "in-parts"],
)
def test_a_partition_is_noted_once_all_its_copies_are_verified_and_seldom(
    bench: Bench, brought: list[tuple[str, Brought]], note: bool, noted: list[dict[int, int]]
) -> None:
    """The clock goes 0.4 s on each time that it is read, and a note is written at most each second."""
    packs = [pack(name) for name, _ in brought]
    mover = bench.mover(*packs)
    bench.patch.setattr(rebalancing, "NOTE_EVERY_S", 0.7)
    bench.patch.setattr(mover, "_brought", lambda packs: zip(packs, (of for _, of in brought), strict=True))
    mover.bring_all(packs, note=note)
    assert {n: total for part in bench.notes for n, total in part.items()} == {
        n: total for part in noted for n, total in part.items()
    }
    assert all(bench.notes), "a note of nothing is none"
    if len(brought) == 7:
        assert bench.notes == noted
    tally = mover.tally
    assert tally.lost == {p.name for p, (_, of) in zip(packs, brought, strict=True) if of is LOST}
    assert tally.done == {p.id for p, (_, of) in zip(packs, brought, strict=True) if of is DONE}


def test_what_was_verified_before_a_failure_is_noted(bench: Bench) -> None:
    def failing(packs: Sequence[Any]) -> Iterator[Any]:
        yield packs[0], DONE
        raise WorkspaceError("the disk is full")

    packs = [pack("p1"), pack("p2")]
    mover = bench.mover(*packs)
    bench.patch.setattr(mover, "_brought", failing)
    with pytest.raises(WorkspaceError):
        mover.bring_all(packs, note=True)
    assert bench.notes == [{1: 10}]


# ---- how much at once


class Lines:
    """Stands in for the runtime: one pack arrives each time that somebody waits."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.most_bytes = 0
        self.arrives = True
        self.asked: list[tuple[list[Place], list[Place]]] = []
        self.begun: list[str] = []
        self.read: list[str] = []
        self.sizes: dict[int, int] = {}
        monkeypatch.setattr(rebalancing, "bring", self._bring)
        bench.s.runtime = SimpleNamespace(start=self._start, wait=self._wait, clock=lambda: 0.0)

    def _bring(self, _: Any, record: Any, wanted: list[Place], sources: list[Place], **how: Any) -> Any:
        self.read += [record.name.decode()] if how["read_data"] else []
        self.begun.append(record.name.decode())
        self.asked.append((wanted, sources))
        return record

    def _start(self, record: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(DONE)
        self.sizes[id(future)] = record.size
        return future

    def _wait(self, running: Any, left_s: float | None) -> list[Any]:
        self.most = max(self.most, len(running))
        self.most_bytes = max(self.most_bytes, sum(self.sizes[id(f)] for f in running))
        return [next(iter(running))] if self.arrives else []


@pytest.fixture
def lines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Lines:
    return Lines(bench, monkeypatch)


@pytest.mark.parametrize("is_in_passing", [False, True])
def test_a_push_moves_fewer_at_once(bench: Bench, lines: Lines, is_in_passing: bool) -> None:
    bench.patch.setattr(rebalancing, "PACKS_ASKED_AT_ONCE", 5)
    bench.patch.setattr(rebalancing, "PACKS_IN_PASSING", 2)
    bench.patch.setattr(Mover, "_arrives", lambda *_: True)
    packs = [pack(f"p{n}") for n in range(8)]
    mover = bench.mover(*packs, ends=SimpleNamespace(left_s=600.0) if is_in_passing else None)
    assert sorted(named(p for p, _ in mover._brought(packs))) == named(packs)
    assert lines.most == (2 if is_in_passing else 5)


def test_no_more_bytes_are_under_way_than_there_is_memory_for_but_for_one_pack(bench: Bench, lines: Lines) -> None:
    bench.patch.setattr(rebalancing, "MOVED_AT_ONCE_BYTES", 250)
    packs = [pack("p0", 100), pack("p1", 100), pack("p2", 100), pack("p3", 900)]
    mover = bench.mover(*packs)
    for some, most in ((packs[:3], 200), (packs[3:], 900), ([packs[0], packs[3]], 900)):
        lines.most_bytes = 0
        assert len([*mover._brought(some)]) == len(some)
        assert lines.most_bytes == most


def test_what_does_not_arrive_in_time_is_not_begun_nor_waited_for(bench: Bench, lines: Lines) -> None:
    packs = [pack(f"p{n}") for n in range(4)]
    ends = SimpleNamespace(left_s=600.0)
    bench.patch.setattr(Mover, "_arrives", lambda _, record, held: record.name != b"p2")
    mover = bench.mover(*packs, ends=ends)
    assert named(p for p, _ in mover._brought(packs)) == ["p0", "p1"]
    ends.left_s, lines.arrives = 0, False
    assert [*mover._brought(packs)] == []
    assert lines.begun == ["p0", "p1"] * 2


@pytest.mark.parametrize(
    ("is_over", "left_s", "rates", "arrives"),
    [
        (False, 2.0, {"a": 150.0}, True),
        (False, 2.0, {"a": 150.0, "c": 149.0}, False),
        (False, 2.0, {"a": 1000.0, "c": 150.0}, True),
        (False, 2.0, {}, True),
        (True, 0.0, {}, False),
    ],
)
def test_a_pack_is_begun_if_the_slowest_line_has_it_there_in_time(
    bench: Bench, is_over: bool, left_s: float, rates: dict[str, float], arrives: bool
) -> None:
    """Of 100 bytes, behind 200 others."""
    of = lambda name, _: SimpleNamespace(bytes_per_s=rates.get(name))  # noqa: E731
    bench.s.estimates = SimpleNamespace(of=of)
    mover = bench.mover(ends=SimpleNamespace(is_over=is_over, left_s=left_s))
    assert mover._arrives(pack("p1"), 200) is arrives


# ---- where to, and from where


@pytest.mark.parametrize("places", [(A,), (A, C)])
def test_what_has_one_place_or_is_known_to_be_wrong_is_read(
    bench: Bench, lines: Lines, places: tuple[bytes, ...]
) -> None:
    bench.doubted = ["p1"]
    bench.patch.setattr(Places, "primary", lambda *_: places)
    packs = [pack("p1"), pack("p2")]
    assert len([*bench.mover(*packs)._brought(packs)]) == 2
    assert lines.read == (["p1"] if places == (A, C) else ["p1", "p2"])


def test_what_belongs_on_a_backend_that_is_not_linked_waits(bench: Bench, lines: Lines) -> None:
    packs = [pack("p1")]
    mover = bench.mover(*packs)
    ((_, brought),) = mover._brought(packs)
    assert brought is DONE
    ((wanted, sources),) = lines.asked
    assert [(p.name, p.storage_ids) for p in wanted] == [("a", (b"old", b"new")), ("c", (b"old", b"new"))]
    assert [p.name for p in sources] == ["c", "b", "a"], "those that had it, each pack another one first"
    assert [p.name for p in mover._sources(pack("p2"))] == ["b", "c", "a"]
    del bench.s.transfer.places[A], bench.s.transfer.places[B]
    bench.s.transfer.read_order = lambda _: [bench.s.transfer.places[C]]
    assert [*mover._brought(packs)] == [(packs[0], Brought({"a": "not linked here"}))]
    assert [p.name for p in mover._sources(pack("p1"))] == ["c"]
    bench.s.transfer.places.clear()
    bench.s.transfer.read_order = lambda _: []
    assert mover._sources(pack("p1")) == []


def test_a_move_goes_on_where_an_earlier_one_ended_and_names_what_is_still_lost(bench: Bench) -> None:
    """A collection of garbage has dropped one of the two packs that nobody has."""
    packs = [pack(name) for name in ("p1", "p2", "s3")]
    mover, told, dropped = bench.mover(*packs), dict[str, int](), list[Any]()
    bench.noted = ["p1"]
    asked: list[str] = []

    def ask(_: Any, names: Iterable[str]) -> Any:
        asked.extend(names)
        return {"a": SimpleNamespace(free_bytes=7), "c": SimpleNamespace(free_bytes=None)}

    brought: list[Any] = []
    bench.patch.setattr(mover, "bring_all", lambda some, *, note: brought.extend((*some, note)))
    bench.patch.setattr(space, "ask", ask)
    bench.patch.setattr(late_copies, "note", lambda _, __, *, drop: dropped.append(drop))
    bench.s.transfer.room = SimpleNamespace(told=told.__setitem__)
    mover.tally.lost, mover.tally.done = {b"p2", b"p9"}, {(0, b"p1")}
    rebalancing._move(mover)
    assert brought == [packs[1], True]
    assert (asked, told) == (["a", "c"], {"a": 7})
    assert (mover.tally.lost, dropped) == ({b"p2"}, [{(0, b"p1")}])
    bench.s.transfer.down, asked[:] = {"a": None}, []
    rebalancing._move(mover)
    assert asked == ["c"]
    bench.doubted, brought[:] = ["p1"], []
    rebalancing._move(mover)
    assert brought == [*packs[:2], True], "what was noted, and is known to be wrong since"


# ---- the trim


@pytest.mark.parametrize("pushed", ["p5", "s5", ""])
def test_what_was_pushed_since_all_was_verified_holds_up_the_trim(bench: Bench, pushed: str) -> None:
    """Who pushed it may have had no way to where it belongs. What no mapping has elsewhere holds nothing up."""
    mover, wanted = bench.mover(pack("p1"), tally=Tally()), []
    mover.tally.done = {(0, b"p1")}
    bench.patch.setattr(rebalancing, "change", lambda _, of: wanted.append(of) or SimpleNamespace(version=7))
    assert rebalancing._trim(bench.s, mover) == 7
    bench.named = [pack("p1"), *([pack(pushed)] if pushed else [])]
    with pytest.raises(rebalancing._ChangedError) if pushed == "p5" else contextlib.nullcontext():
        wanted[0].check(bench._agreed())


def test_a_trim_is_of_the_backends_by_which_all_was_verified(bench: Bench) -> None:
    mover, wanted = bench.mover(), list[Any]()
    bench.patch.setattr(rebalancing, "change", lambda _, of: wanted.append(of) or SimpleNamespace(version=7))
    bench.patch.setattr(rebalancing.moves, "trimmed", lambda config: ("trimmed", config))
    rebalancing._trim(bench.s, mover)
    assert wanted[0].make(bench.config) == ("trimmed", bench.config)
    with pytest.raises(rebalancing._ChangedError):
        wanted[0].make(SimpleNamespace())


@pytest.mark.parametrize(
    ("ends", "waits", "remains", "told"),
    [
        (None, False, False, ["move", "trim", "free"]),
        (None, False, True, ["move", "trim", "free"]),  # what the newest index has no more: the trim itself looks
        (None, True, False, ["move"]),
        (Deadline(600.0), False, False, ["move", "trim"]),
        (Deadline(600.0), False, True, ["move"]),
        (Deadline(600.0), True, False, ["move"]),
    ],
)
def test_a_trim_comes_when_all_is_moved_and_copies_are_freed_after_it(
    bench: Bench, ends: Deadline | None, waits: bool, remains: bool, told: list[str]
) -> None:
    steps: list[str] = []

    def move(mover: Mover) -> None:
        steps.append("move")
        mover.tally.waiting = {"a": "is away"} if waits else {}

    def trim(*_: Any) -> int:
        steps.append("trim")
        bench.s.previous = bench.config.prev_config = None
        return 7

    bench.s.previous = bench.config.prev_config = SimpleNamespace()
    bench.patch.setattr(rebalancing, "_move", move)
    bench.patch.setattr(rebalancing, "_trim", trim)
    bench.patch.setattr(Mover, "remains", lambda _: remains)
    bench.patch.setattr(surplus, "free", lambda _: (steps.append("free"), surplus.Freed())[1])
    bench.patch.setattr(rebalancing, "changing", lambda *_, **__: contextlib.nullcontext(bench.s))
    work: Any = SimpleNamespace(session=lambda _: contextlib.nullcontext(bench.s))
    report = rebalancing.rebalance(work, ends=ends)
    assert steps == told
    assert report.version == (7 if "trim" in told else None)


# ---- what is told


def test_a_plan_counts_what_is_to_be_sent_and_what_is_surplus_then(bench: Bench) -> None:
    """Of pack f2 a copy is only to be freed, p3 is noted as moved, and what had them is no backend of today."""
    mover = bench.mover(*map(pack, ("p1", "f2", "p3", "s4")))
    bench.noted = ["p3"]
    report = rebalancing._plan(mover)
    assert (report.left.packs, [(x.backend, x.copies) for x in report.sent], report.freed) == (1, [("a", 1)], ())
    mover.names[B] = "b"
    assert [(x.backend, x.copies) for x in rebalancing._plan(mover).freed] == [("b", 3)]


def test_a_report_counts_what_is_left_or_what_was_freed(bench: Bench) -> None:
    mover = bench.mover(*map(pack, ("p1", "f2", "p3", "s4", "p5")))
    bench.noted, mover.tally.done = ["p3"], {(0, b"p5")}
    report = rebalancing._report(mover, None)
    assert (report.left.packs, report.freed, report.unfreed) == (1, (), ())
    freed = surplus.Freed()
    freed.copies["b"], freed.bytes["b"], freed.failed["c"] = 2, 200, "is away"
    report = rebalancing._report(mover, 7, freed)
    assert ([(x.backend, x.copies) for x in report.freed], report.unfreed) == ([("b", 2)], (("c", "is away"),))
    assert report.left.packs == 0
