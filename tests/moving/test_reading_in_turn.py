"""A push reads a few copies when its own work is done: each of them within the period, on a clock that tests move."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import Lab, flip, write

from metasync.backends.api import Digest
from metasync.backends.memory import MemoryBackend
from metasync.local.state_keys import LOOKS, MENDING_KEY, READING_KEY, UPKEEP_KEY
from metasync.maintenance import scrub
from metasync.moving import upkeep
from metasync.session.connections import Machine
from metasync.transfer import verify
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
DAY_S = 86_400
PERIOD = 90


class Clock:
    """The wall's clock of every device, which a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        plain = Machine.wall_ns
        monkeypatch.setattr(Machine, "wall_ns", lambda machine: plain(machine) + int(self.passed_s * 1e9))

    def pass_days(self, days: float) -> None:
        self.passed_s += days * DAY_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def reads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The copies that pushes read at their end, as backend and pack."""
    monkeypatch.setattr(upkeep, "BUDGET_S", 600.0)
    found: list[str] = []
    plain = verify.check_copy

    def noted(t: Any, place: Any, record: Any, read_data: bool, *rest: Any) -> Any:
        state = yield from plain(t, place, record, read_data, *rest)
        if read_data:
            found.append(f"{place.name} {record.name.hex()}")
        return state

    monkeypatch.setattr(verify, "check_copy", noted)
    yield found


def pushed(lab: Lab, kind: str = "file", packs: int = 8) -> Workspace:
    w = lab.init(lab.urls(*NAMES, kind=kind))
    for i in range(packs):
        push(w, f"f{i}", i)
    return lab.reopen(w)


def push(w: Workspace, name: str, seed: int) -> None:
    write(Path(w.directory), {name: noise(5_000, seed)})
    w.push()


def copies(lab: Lab) -> set[str]:
    return {f"{name} {path.name}" for name in NAMES for path in lab.objects(name, "packs")}


def test_every_copy_is_read_within_the_period(lab: Lab, clock: Clock, reads: list[str]) -> None:
    """Every copy of the beginning, by pushes alone, and about as many each time."""
    w = pushed(lab)
    there = copies(lab)
    assert reads == [], "not on the first day"
    by_push = []
    for _ in range(11):
        clock.pass_days(PERIOD / 9)
        before = len(reads)
        w.push()
        by_push.append(len(reads) - before)
    assert there <= set(reads)
    assert max(by_push) < len(there)
    assert not w._db.has(MENDING_KEY)


def test_a_second_push_of_a_day_reads_nothing(lab: Lab, clock: Clock, reads: list[str]) -> None:
    w = pushed(lab)
    for days in (1.5, PERIOD):
        clock.pass_days(days)
        w.push()
    before = list(reads)
    assert before
    for name in NAMES:
        lab.counts[name].take()
    w.push()
    quiet = {name: lab.counts[name].take().requests.total() for name in NAMES}
    assert reads == before
    w.push()
    assert {name: lab.counts[name].take().requests.total() for name in NAMES} == quiet, "what a push costs"
    clock.pass_days(-400)  # a clock that was wrong by a year
    w.push()
    clock.pass_days(400 + PERIOD)
    w.push()
    assert len(reads) > len(before)


def test_an_altered_copy_is_found_and_made_good_by_pushes(lab: Lab, clock: Clock, reads: list[str]) -> None:
    w = pushed(lab)
    clock.pass_days(1.5)
    w.push()
    path = lab.objects("b", "packs")[0]
    was = path.read_bytes()
    flip(path, 100)
    clock.pass_days(PERIOD)
    w.push()
    assert path.read_bytes() != was
    assert w._db.get(MENDING_KEY) == bytes.fromhex(path.name)
    push(w, "next", 99)
    assert path.read_bytes() == was
    assert not w._db.has(MENDING_KEY)
    assert w.check(read_data=True).problems == ()


@pytest.mark.parametrize("how", ["upkeep", "scrub.days", "no time"])
def test_it_can_be_turned_off(lab: Lab, clock: Clock, reads: list[str], monkeypatch: Any, how: str) -> None:
    w = pushed(lab, packs=3)
    if how == "no time":
        monkeypatch.setattr(scrub.Reader, "in_time", lambda *_: [])
    else:
        w.configure(how, {"upkeep": "off", "scrub.days": "0"}[how])
    for _ in range(3):
        clock.pass_days(PERIOD)
        w.push()
    assert reads == []


def test_a_pack_is_begun_only_if_it_arrives_in_time(lab: Lab, clock: Clock, reads: list[str]) -> None:
    """Of a line that is known to be slow nothing is read by a push; a scrub does it."""
    w = pushed(lab, packs=3)
    clock.pass_days(1.5)
    w.push()
    clock.pass_days(PERIOD)
    with w._session("test") as s:
        looked = scrub._Scrub(s, full=False, read_ns=PERIOD * scrub.DAY_NS)
        looked.heard = looked._begun({})
        packs = list(s.load(s.newest_state()).index.packs().values())
        sizes = [p.size for p in packs]
        h = looked.heard[0]
        s.estimates.of = lambda *_: type("Line", (), {"bytes_per_s": 1000.0})()  # type: ignore[method-assign]
        for left_s, expected in ((math.inf, len(packs)), (sum(sizes[:2]) / 1000 + 0.1, 2), (0.1, 0), (0.0, 0)):
            looked.reader.left_s = lambda left_s=left_s: left_s  # type: ignore[misc]
            assert list(looked.reader.in_time(h, packs)) == packs[:expected]
        looked.reader.left_s = None
        assert list(looked.reader.in_time(h, packs)) == packs


def test_what_is_under_way_when_the_time_is_over_is_left(
    lab: Lab, clock: Clock, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next push goes on where it was, ten minutes later at the earliest."""
    w = pushed(lab, packs=4)
    clock.pass_days(1.5)
    w.push()
    clock.pass_days(PERIOD)
    go_on = threading.Event()
    with monkeypatch.context() as patch, w._session("test") as s:
        for name in NAMES:
            plain = lab.counts[name].get

            def late(path: str, plain: Any = plain, **how: Any) -> bytes:
                assert "/packs/" not in path or go_on.wait(60)
                return bytes(plain(path, **how))

            patch.setattr(lab.counts[name], "get", late)
        left = iter([600.0, 0.0] * len(NAMES))
        looked = scrub._Scrub(s, full=False, read_ns=PERIOD * scrub.DAY_NS)
        looked.reader.left_s = lambda: next(left)
        try:
            assert looked.read_in_turn() is False
        finally:
            go_on.set()
        assert looked.read == 0
    lab.reopen(w).push()
    assert copies(lab) <= set(reads)


def test_it_goes_on_soon_where_not_all_was_read(
    lab: Lab, clock: Clock, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab, packs=3)
    clock.pass_days(2)
    monkeypatch.setattr(scrub, "read_in_turn", lambda *_: False)
    w.push()
    now_s = w._connections.machine.wall_ns() // 10**9
    assert 0 < (w._db.get(READING_KEY) or 0) - now_s <= upkeep.AGAIN_S
    assert w._db.get(UPKEEP_KEY) is None, "data that move need not wait for it"


@pytest.fixture
def tells_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends in memory tell digests."""

    def digest(self: MemoryBackend, path: str) -> Digest:
        data = self.get(path, max_bytes=1 << 30)
        return Digest(len(data), hashlib.sha256(data).digest())

    monkeypatch.setattr(MemoryBackend, "digest", digest, raising=False)
    monkeypatch.setattr(MemoryBackend, "digest_kind", "sha256", raising=False)


@pytest.mark.usefixtures("tells_digests")
def test_where_digests_are_told_nothing_is_read(lab: Lab, clock: Clock, reads: list[str]) -> None:
    """A store that was never listed is asked for its digest."""
    w = pushed(lab, "memory")
    clock.pass_days(1.5)
    w.push()
    rows = w._db.records(LOOKS)
    clock.pass_days(PERIOD)
    w.push()
    assert reads == []
    assert all(r.read_ns > was.read_ns for r, was in zip(w._db.records(LOOKS), rows, strict=True))


def test_devices_share_the_reading(lab: Lab, clock: Clock, reads: list[str]) -> None:
    """What one has read another one need not read, on the same day."""
    w = pushed(lab)
    other = lab.clone(lab.urls(*NAMES))
    for device in (w, other):
        device.sync()
        clock.pass_days(1.5)
        device.sync()
    clock.pass_days(PERIOD)
    w.push()
    there = len(reads)
    assert there >= len(copies(lab))
    other.push()
    assert len(reads) == there


def test_what_is_read_by_a_push_takes_no_listing_back(lab: Lab, clock: Clock, reads: list[str]) -> None:
    """The record of a backend tells both: a third device need not list, and the first one's look is as it was."""
    w = pushed(lab)
    other = lab.clone(lab.urls(*NAMES))
    other.push()
    clock.pass_days(1.5)
    other.push()
    clock.pass_days(1.5)
    w.configure("scrub.days", "0")  # it lists, and leaves the reading to others
    assert {b.how for b in w.scrub().backends} == {"listed"}
    looked = {b.name: b.looked_ns for b in w.status().backends}
    push(other, "theirs", 50)
    lab.reopen(other)
    third = lab.clone(lab.urls(*NAMES), device="third")
    assert {b.how for b in third.scrub().backends} == {"not due"}
    assert {b.name: b.looked_ns for b in w.status().backends} == looked


@pytest.mark.parametrize("how", ["altered", "gone"])
def test_the_only_copy_that_is_found_bad_in_turn_is_told(lab: Lab, clock: Clock, reads: list[str], how: str) -> None:
    """Nobody else can mend it, so a note for mending alone would say nothing to anyone."""
    w = lab.init(lab.urls(*NAMES), replicas=1)
    push(w, "f", 1)
    clock.pass_days(1.5)
    w.push()
    name, path = next((n, lab.objects(n, "packs")[0]) for n in NAMES if lab.objects(n, "packs"))
    was = path.read_bytes()
    flip(path, 100) if how == "altered" else path.unlink()
    clock.pass_days(PERIOD)
    w.push()
    (bad,) = w.status().bad_copies
    assert (bad.backend, bad.packs) == (name, 1)
    path.write_bytes(was)
    assert w.check(read_data=True).problems == ()
    assert w.status().bad_copies == ()


@pytest.mark.usefixtures("tells_digests")
@pytest.mark.parametrize("is_listed", [False, True])
def test_the_only_copy_is_read_whatever_its_store_tells_of_it(
    lab: Lab, clock: Clock, reads: list[str], is_listed: bool
) -> None:
    """A digest is the word of the one store that has it."""
    w = lab.init(lab.urls(*NAMES, kind="memory"), replicas=1)
    push(w, "f", 1)
    if is_listed:
        w.scrub(full=True)
    for days in (1.5, PERIOD):
        clock.pass_days(days)
        w.push()
    with w._session("test") as s:
        packs = {p.name.hex() for p in s.base().index.packs().values()}
    assert {one.split()[1] for one in reads} == packs
