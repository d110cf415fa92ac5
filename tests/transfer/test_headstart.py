"""`metasync.transfer.download`: packs on their way before they are wanted, and what a download makes of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from transfers import FAR, STORAGE, Far, Service, photos, record_of
from workspace_kit import Lab, tree_of, write

from metasync.errors import UnreachableError
from metasync.session import session
from metasync.store import pack_format
from metasync.store.index import PackRecord
from metasync.store.pack_format import Segment
from metasync.transfer import download
from metasync.transfer import download as headstart
from metasync.transfer.copies import pack_path
from metasync.workspace import Workspace

MB = 1 << 20
PACKS = photos(60_000_000, 7)
ALL = Counter(o.id for p in PACKS for o in p.footer.objects)
AHEAD_S = 0.8


def pack(name: str, *segments_mb: float, generation: int = 0) -> PackRecord:
    segments = tuple(Segment(int(mb * MB), int(mb * MB), bytes(32)) for mb in segments_mb)
    size = pack_format.offsets(segments)[-1]
    return PackRecord(name.encode().ljust(32), generation, size, bytes(pack_format.HEADER_BYTES), segments)


# --- what is chosen


def test_one_of_each_holder_the_newest_and_largest_first() -> None:
    small, old, large, new = pack("s", 0.5), pack("a", 1, 1), pack("b", 1, 1, 1), pack("c", 1, 1, generation=1)
    packs = [(p, ("one", "two")) for p in (small, old, large, new)]
    assert headstart.choose(packs) == [(new, "one", new.size), (large, "two", large.size)]
    assert headstart.choose([(small, ("one",)), (old, ())]) == [(small, "one", small.size)], "a round trip is saved too"


@pytest.mark.parametrize(
    ("segments", "expected"),
    [((0.01,), "all"), ((1, 1), "all"), ((1, 1, 1, 1.4), "all"), ((2, 2, 2), 1), ((1,) * 16, 3), ((5, 5), 0)],
)
def test_large_packs_are_begun_up_to_a_segment(segments: tuple[float, ...], expected: Any) -> None:
    record = pack("p", *segments)
    at = pack_format.offsets(record.segments)
    assert headstart.first_bytes(record) == (record.size if expected == "all" else at[expected] if expected else 0)


# --- what a download makes of it


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead_s", [0.0, AHEAD_S, 30.0])
def test_what_was_begun_is_not_asked_for_again(ahead_s: float) -> None:
    plain = Far(PACKS, FAR, 2)
    plain.fetch()
    far = Far(PACKS, FAR, 2)
    lines = far.fetch(ahead=PACKS, ahead_s=ahead_s)
    assert far.got == ALL, "everything came, and once"
    assert sum(line.carried for line in lines.lines.values()) <= sum(len(p.data) for p in PACKS)
    assert far.transfer.begun == {}
    assert far.transfer.faults == []
    if ahead_s == AHEAD_S:
        assert far.seconds - ahead_s <= plain.seconds - 0.5, "the lines were not idle meanwhile"


def test_the_first_segments_of_a_large_pack_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headstart, "HOLDER_BYTES", 2 * MB)
    monkeypatch.setattr(headstart, "UNCUT_BYTES_MAX", 2 * MB)
    far = Far(PACKS, FAR, 2)
    lines = far.fetch(ahead=PACKS, ahead_s=AHEAD_S)
    assert far.got == ALL
    assert sum(line.carried for line in lines.lines.values()) <= sum(len(p.data) for p in PACKS)


def test_what_is_not_wanted_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(PACKS, FAR, 2)
    far.fetch(PACKS[5:], ahead=PACKS[:5])
    assert far.got == Counter(o.id for p in PACKS[5:] for o in p.footer.objects)
    monkeypatch.setattr(headstart, "HOLDER_BYTES", 2 * MB)
    monkeypatch.setattr(headstart, "UNCUT_BYTES_MAX", 2 * MB)
    end = Far(PACKS, FAR, 2)
    end.fetch(PACKS[:1], ahead=PACKS[:1], only=lambda o: o.segment == len(PACKS[0].footer.segments) - 1)
    assert len(end.got) == sum(o.segment == len(PACKS[0].footer.segments) - 1 for o in PACKS[0].footer.objects)


@pytest.mark.parametrize("how", ["missing", "garbage", "cut"])
def test_what_came_too_early_and_is_bad_is_asked_elsewhere(how: str) -> None:
    far = Far(PACKS, FAR, 2)
    begun = headstart.choose([(record_of(p), far.homes(p)) for p in PACKS])
    assert len(begun) == 3
    for record, holder, _ in begun:
        path = pack_path(STORAGE, 0, record.name)
        if how == "missing":
            del far.stores[holder][path]
        elif how == "garbage":
            far.stores[holder][path] = noise(record.size, 3)
        else:
            far.stores[holder][path] = far.stores[holder][path][:-1]
    far.fetch(ahead=PACKS, ahead_s=AHEAD_S)
    assert far.got.keys() == ALL.keys()
    assert {(f.backend, f.pack) for f in far.transfer.faults} == {(holder, r.name) for r, holder, _ in begun}


@pytest.mark.parametrize("dies_at_s", [0.0, 0.5])
def test_one_that_hangs_holds_nothing_up(dies_at_s: float) -> None:
    far = Far(PACKS, [*FAR[:2], Service("three", dies_at_s=dies_at_s)], 2)
    far.fetch(ahead=PACKS, ahead_s=AHEAD_S)
    assert far.got.keys() == ALL.keys()
    assert far.seconds < 15
    assert far.transfer.silent == {"three"}


def test_nobody_is_asked_who_is_away_or_busy_or_owes_an_answer() -> None:
    asked: list[str] = []
    far = Far(PACKS, FAR, 2)
    far.transfer.down["one"] = UnreachableError("away")
    far.transfer.silent.add("two")

    def start(task: Any) -> Any:
        asked.append("somebody")
        task.close()

    records = [record_of(p) for p in PACKS]
    headstart.begin(far.transfer, records, start, lambda: 0.0, busy=["three"])
    assert asked == []
    headstart.begin(far.transfer, records, start, lambda: 0.0)
    assert [b.holder for b in far.transfer.begun.values()] == ["three"]
    headstart.begin(far.transfer, records, start, lambda: 0.0)
    assert len(asked) == 1, "one at a time"


# --- a clone


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """-> how many packs were begun, at each call."""
    begun: list[int] = []
    really = headstart.begin

    def begin(t: Any, *args: Any) -> None:
        before = len(t.begun)
        really(t, *args)
        begun.append(len(t.begun) - before)

    monkeypatch.setattr(headstart, "begin", begin)
    monkeypatch.setattr(download, "BESIDE_AFTER_S", 0.0)
    return begun


def written(lab: Lab) -> Path:
    with lab.init(lab.urls("a", "b", "c")) as w:
        write(Path(w.directory), {f"f{i}": noise(400_000, i) for i in range(40)})
        w.push()
        return Path(w.directory)


def test_a_clone_takes_over_what_was_begun(lab: Lab, eager: list[int]) -> None:
    one = written(lab)
    with lab.clone(lab.urls("a", "b", "c")) as w:
        assert sum(eager) > 0
        assert tree_of(Path(w.directory)) == tree_of(one)
        assert not w.check().problems
        before = len(eager)
        write(one, {"more": b"x"})
        with Workspace.open(one) as other:
            other.push()
        w.pull()
        assert len(eager) == before, "a pull wants little of what there is"


def test_lines_that_answer_at_once_need_no_head_start(
    lab: Lab, eager: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "BESIDE_AFTER_S", 60.0)
    one = written(lab)
    with lab.clone(lab.urls("a", "b", "c")) as w:
        assert eager == []
        assert tree_of(Path(w.directory)) == tree_of(one)


def test_a_clone_of_very_much_has_its_memory_to_save(
    lab: Lab, eager: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "AHEAD_OBJECTS_MAX", 10)
    one = written(lab)
    with lab.clone(lab.urls("a", "b", "c")) as w:
        assert eager == []
        assert tree_of(Path(w.directory)) == tree_of(one)
