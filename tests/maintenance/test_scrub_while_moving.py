"""`scrub` while data move, after they moved, and which of several backends comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import PASSPHRASE, Lab, write

from metasync.errors import UnreachableError
from metasync.local.state_keys import LOOKS
from metasync.maintenance import scrub as scrub_module
from metasync.moving import surplus
from metasync.moving.rebalance import Mover, Tally
from metasync.runtime.effects import Op, each
from metasync.store.index import PackRecord
from metasync.store.placement import partition_of
from metasync.transfer.copies import pack_path

NAMES = ("a", "b", "c")
DAY_NS = 86_400 * 10**9
KINDS = pytest.mark.parametrize("kind", ["file", "memory"])


def pushed(lab: Lab, kind: str, packs: int = 16) -> Any:
    w = lab.init(lab.urls(*NAMES, kind=kind))
    for i in range(packs):
        write(Path(w.directory), {f"f{i}": noise(5_000, i)})
        w.push()
    w = lab.reopen(w)
    w.scrub()
    return w


def on_the_move(lab: Lab, kind: str) -> Any:
    """A fourth backend was added, and nothing moved yet."""
    w = pushed(lab, kind)
    w.backend_add(lab.url("d", kind))
    return lab.reopen(w)


def displaced(w: Any) -> list[PackRecord]:
    with w._session("test") as s:
        return Mover(s, Tally(), read_data=False).displaced()


def move(w: Any, packs: list[PackRecord]) -> None:
    with w._session("test") as s:
        Mover(s, Tally(), read_data=False).bring_all(packs, note=False)


def holders(w: Any, pack: PackRecord, *, now: bool) -> list[str]:
    with w._session("test") as s:
        places = Mover(s, Tally(), read_data=False).places
        return sorted(s.names[i] for i in (places.primary if now else places.had)(pack.name))


def delete(w: Any, pack: PackRecord, name: str) -> None:
    """Every copy of a pack on a backend."""
    with w._session("test") as s:
        place = next(p for p in s.transfer.places.values() if p.name == name)
        paths = [pack_path(i, pack.generation, pack.name) for i in place.storage_ids]
        s.runtime.run(each({path: Op(name, "delete", path) for path in paths}))


def a_day_later(w: Any) -> None:
    w._db.put_records(LOOKS, [r._replace(at_ns=r.at_ns - 2 * DAY_NS) for r in w._db.records(LOOKS)])


@KINDS
@pytest.mark.long
def test_what_lies_where_either_mapping_wants_it_is_nothing_to_ask_about(lab: Lab, kind: str) -> None:
    w = on_the_move(lab, kind)
    packs = displaced(w)
    assert len(packs) >= 2, "too few for a half of them"
    for done in (0, len(packs) // 2, len(packs)):
        move(w, packs[:done])
        a_day_later(w)
        report = w.scrub()
        assert (report.asked, report.problems, report.repaired) == (0, (), None)
        assert report.compared
    w.rebalance()
    a_day_later(lab.reopen(w))
    w = lab.reopen(w)
    for _ in range(2):
        report = w.scrub()
        assert (report.asked, report.problems, report.repaired) == (0, (), None)


@KINDS
@pytest.mark.long
def test_a_pack_that_lost_a_copy_before_it_moved_is_found_meanwhile(lab: Lab, kind: str) -> None:
    w = on_the_move(lab, kind)
    packs = displaced(w)
    lost = packs[0]
    delete(w, lost, holders(w, lost, now=False)[0])
    moved = packs[1]  # of this one there are three copies: it may lose the old one
    move(w, [moved])
    delete(w, moved, next(n for n in holders(w, moved, now=False) if n not in holders(w, moved, now=True)))
    a_day_later(w)
    report = w.scrub()
    assert report.asked == 1
    assert report.repaired is not None
    assert report.repaired.copies >= 1
    assert report.problems == ()
    a_day_later(w)
    assert w.scrub().asked == 0
    w.rebalance()
    assert w.check(read_data=True).problems == ()


@pytest.mark.long
def test_a_backend_that_is_away_may_have_what_moves(lab: Lab) -> None:
    w = on_the_move(lab, "memory")
    a_day_later(w)
    lab.hurry()
    lab.faults["a"].down = True
    w = lab.reopen(w)
    write(Path(w.directory), {"more": noise(5_000, 99)})
    w.push()
    report = lab.reopen(w).scrub()
    assert report.asked == 0


@pytest.mark.parametrize("how", ["listed", "read"])
@pytest.mark.long
def test_a_copy_that_a_change_of_the_backends_gave_up_is_none(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It may be deleted at any time, by a device that comes late: what is missed is the copy that counts."""
    monkeypatch.setattr(surplus, "free", lambda _: surplus.Freed())
    w = on_the_move(lab, "file")
    w.rebalance()
    w = lab.reopen(w)
    before = {p.relative_to(lab.store(n)) for n in NAMES for p in lab.objects(n, "packs")}
    w.backend_remove("d", passphrase=PASSPHRASE)
    w.rebalance()
    w = lab.reopen(w)
    twice: dict[tuple[str, str], list[Path]] = {}
    for n in NAMES:
        for path in lab.objects(n, "packs"):
            twice.setdefault((n, path.name), []).append(path)
    name, (fresh, old) = next(
        (n, sorted(paths, key=lambda p: p.relative_to(lab.store(n)) in before))
        for (n, _), paths in twice.items()
        if len(paths) == 2
    )
    if how == "listed":
        fresh.unlink()
        report = w.scrub()
    else:
        w.scrub()
        data = fresh.read_bytes()
        fresh.chmod(0o600)
        fresh.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        rows = w._db.records(LOOKS)
        w._db.put_records(LOOKS, [r._replace(read_ns=r.read_ns - 90 * DAY_NS) for r in rows])
        for n in NAMES:
            for path in lab.objects(n, "scrubbed"):
                path.unlink()
        report = w.scrub()
    assert report.repaired is not None
    assert [p.backend for p in report.repaired.found] == [name]
    assert fresh.exists()
    assert fresh.read_bytes() == old.read_bytes()


@KINDS
@pytest.mark.long
def test_the_backends_of_a_partition_cost_a_comparison_each(lab: Lab, kind: str) -> None:
    """Two copies of each pack: two comparisons a partition, as many as round a ring, at rest and while data move."""
    w = on_the_move(lab, kind)
    with w._session("test") as s:
        packs = s.load(s.newest_state()).index.packs().values()
        places = Mover(s, Tally(), read_data=False).places
        used = {partition_of(p.name, s.transfer.placement.partitions): p.name for p in packs}
        each_one = sum(len({*places.primary(n), *places.had(n)}) for n in used.values())
    assert w.scrub(full=True).compared == each_one
    w.rebalance()
    w = lab.reopen(w)
    assert w.scrub(full=True).compared == 2 * len(used)


def test_the_backend_that_was_away_for_longest_is_mended_first(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab, "file")
    rows = w._db.records(LOOKS)
    names = {b.backend_id: b.name for b in w._connections.config.backends}
    days = {"a": 5, "b": 20, "c": 9}
    w._db.put_records(LOOKS, [r._replace(at_ns=r.at_ns - days[names[r.backend]] * DAY_NS) for r in rows])
    gone: dict[str, set[bytes]] = {}
    for n in NAMES:
        other = {name for m in gone for name in gone[m]}
        paths = [p for p in lab.objects(n, "packs") if bytes.fromhex(p.name) not in other][:2]
        gone[n] = {bytes.fromhex(p.name) for p in paths}
        for path in paths:
            path.unlink()
    order: list[bytes] = []
    plain = scrub_module.repair

    def noted(s: Any, agreed: Any, found: Any, nowhere: bool) -> Any:
        order.extend(f.record.name for f in found)
        return plain(s, agreed, found, nowhere)

    monkeypatch.setattr(scrub_module, "repair", noted)
    assert w.scrub().problems == ()
    where = [next(n for n in NAMES if name in gone[n]) for name in order]
    assert where == ["b", "b", "c", "c", "a", "a"]


def test_a_backend_that_fails_is_asked_nothing_more_in_that_scrub(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab, "memory")
    with w._session("test") as s:
        packs = s.load(s.newest_state()).index.packs().values()
    for pack in packs:
        delete(w, pack, "b")
    failing = lab.counts["a"]

    def gone(path: str, *_: Any, **__: Any) -> Any:
        asked.append(path)
        raise UnreachableError("no way there", retryable=False)

    asked: list[str] = []
    for call in ("inventory", "get", "stat", "list", "put", "delete"):
        monkeypatch.setattr(failing, call, gone)
    report = w.scrub()
    assert {b.backend: b.how for b in report.backends}["a"] == "away"
    assert report.asked
    assert len([path for path in asked if "/packs" in path]) == 1, "its feed, and then no pack"
