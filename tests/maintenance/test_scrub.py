"""`scrub`: what backends list is compared with the index by digests, and what differs is asked for and mended."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
from content_kit import noise
from workspace_kit import Lab, tree_of, write

from metasync.backends.api import Inventory, Item
from metasync.backends.memory import MemoryBackend
from metasync.errors import BackendError, NotFoundError
from metasync.local.state_keys import LOOKS, TOLD
from metasync.maintenance.repair import mend
from metasync.reports.checks import ScrubReport
from metasync.transfer import inventories

NAMES = ("a", "b", "c")
DAY_NS = 86_400 * 10**9
KINDS = pytest.mark.parametrize("kind", ["file", "memory"])


def pushed(lab: Lab, kind: str = "file", packs: int = 16) -> Any:
    """So many packs at least that each backend has some, and each pair of them too. Nothing is on its way any more."""
    w = lab.init(lab.urls(*NAMES, kind=kind))
    for i in range(packs):
        write(Path(w.directory), {f"f{i}": noise(5_000, i)})
        w.push()
    return lab.reopen(w)


def hows(report: ScrubReport) -> dict[str, str]:
    return {b.backend: b.how for b in report.backends}


def later(w: Any, days: float) -> None:
    """What this device noted was noted so long ago."""
    w._db.put_records(LOOKS, [r._replace(at_ns=r.at_ns - int(days * DAY_NS)) for r in w._db.records(LOOKS)])


def packs_of(lab: Lab, name: str) -> list[str]:
    backend = lab.counts[name]
    found: list[str] = []

    def below(path: str) -> None:
        for item in backend.list(path):
            inner = f"{path}/{item.name}".removeprefix("/")
            if item.size is None:
                below(inner)
            elif "/packs/" in inner:
                found.append(inner)

    below("")
    return found


def requests(lab: Lab) -> dict[str, int]:
    return {name: lab.counts[name].take().requests.total() for name in NAMES}


@pytest.mark.few(1)
@KINDS
def test_what_is_as_agreed_is_listed_once_and_then_told_by_changes(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind)
    first = w.scrub()
    assert hows(first) == dict.fromkeys(NAMES, "listed")
    assert (first.problems, first.asked, first.repaired) == ((), 0, None)
    assert sum(b.packs for b in first.backends) == 2 * w.check().packs
    again = w.scrub()
    assert hows(again) == dict.fromkeys(NAMES, "changes" if kind == "memory" else "not due")
    assert (again.compared, again.asked) == (0, 0), "what is unchanged is not compared again"


def test_a_feed_costs_a_request_a_backend_whatever_it_holds(lab: Lab) -> None:
    w = pushed(lab, "memory")
    w.scrub()
    requests(lab)
    w.scrub()
    by_kind = {name: lab.counts[name].take().requests for name in NAMES}
    assert all(by_kind[name]["inventory"] == 1 and by_kind[name]["list"] == 0 for name in NAMES), by_kind
    assert all(by_kind[name].total() <= 2 for name in NAMES), by_kind


@pytest.mark.few(1)
@KINDS
def test_a_day_later_everything_is_listed_again(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind)
    w.scrub()
    later(w, 1.1)
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "changes" if kind == "memory" else "listed")
    later(w, -400)  # a clock that was a year ahead
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "changes" if kind == "memory" else "listed")
    assert hows(w.scrub(full=True)) == dict.fromkeys(NAMES, "listed")


@pytest.mark.few(1)
@KINDS
def test_what_is_missing_is_found_and_made_again(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind)
    w.scrub()
    gone = packs_of(lab, "b")[:3]
    for path in gone:
        lab.counts["b"].delete(path)
    later(w, 2)
    report = w.scrub()
    assert report.repaired is not None
    assert [(p.backend, p.problem) for p in report.repaired.found] == [("b", "missing")] * 3
    assert (report.asked, report.repaired.copies, report.problems, report.short) == (3, 3, (), 0)
    assert set(gone) <= set(packs_of(lab, "b"))
    later(w, 2)
    after = w.scrub()
    assert (after.asked, after.repaired) == (0, None)
    assert w.check(read_data=True).problems == ()


@pytest.mark.few(1)
@KINDS
def test_a_pack_of_another_size_is_found(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind)
    w.scrub()
    path = packs_of(lab, "a")[0]
    lab.counts["a"].put(path, lab.counts["a"].get(path, max_bytes=1 << 30)[:-1])
    later(w, 2)
    report = w.scrub()
    assert report.repaired is not None
    assert [p.backend for p in report.repaired.found] == ["a"]
    assert "bytes instead of" in report.repaired.found[0].problem
    assert report.problems or not w.check(read_data=True).problems, "what was not mended is told"


@pytest.mark.few(1)
@KINDS
def test_pushes_of_others_are_no_findings(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind, packs=4)
    w.scrub()
    other = lab.clone(lab.urls(*NAMES, kind=kind))
    write(Path(other.directory), {"theirs": noise(50_000, 99)})
    other.push()
    lab.reopen(other)
    report = w.scrub()
    assert (report.problems, report.repaired) == ((), None)
    assert report.asked == 0
    if kind == "memory":
        assert sum(b.changes for b in report.backends) >= 2


def test_a_backend_that_is_away_is_passed_over_and_looked_at_when_it_is_back(lab: Lab) -> None:
    w = pushed(lab, "memory")
    w.scrub()
    lab.hurry()
    lab.faults["b"].down = True
    away = lab.reopen(w).scrub()
    assert hows(away) == {"a": "changes", "b": "away", "c": "changes"}
    lab.faults["b"].down = False
    lab.faults["b"].inner.delete(packs_of(lab, "b")[0])
    back = lab.reopen(w).scrub()
    assert hows(back) == dict.fromkeys(NAMES, "changes")
    assert back.repaired is not None
    assert back.repaired.copies == 1


@pytest.mark.long
def test_packs_that_are_to_be_moved_are_left_to_the_move(lab: Lab) -> None:
    """Each scrub would ask for all of them, since they lie where they lay before."""
    w = pushed(lab, "memory")
    w.scrub()
    w.backend_add(lab.url("d", "memory"))
    w = lab.reopen(w)
    assert w.status().moving.packs > 0
    assert [w.scrub().asked, w.scrub().asked] == [0, 0]
    w.rebalance()
    w = lab.reopen(w)
    report = w.scrub()
    assert (report.asked, report.problems, report.repaired) == (0, (), None)
    lab.counts["d"].delete(packs_of(lab, "d")[0])
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 1
    assert w.check(read_data=True).problems == ()


def test_an_emptied_store_gets_all_its_packs_again(lab: Lab) -> None:
    w = pushed(lab, "memory")
    w.scrub()
    there = packs_of(lab, "c")
    for path in there:
        lab.counts["c"].delete(path)
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == len(there)
    assert sorted(packs_of(lab, "c")) == sorted(there)
    assert w.scrub().asked == 0


# --- stores that lie in it


class Telling(MemoryBackend):
    """Tells MD5s in its inventory, but for what a test has it say."""

    says: ClassVar[dict[str, Any]] = {}

    def inventory(self, path: str, cursor: str) -> Inventory:
        page = super().inventory(path, cursor)
        return page._replace(items=tuple(self._told(path, i) for i in page.items if self._shows(i)))

    def _shows(self, item: Item) -> bool:
        return item.name not in self.says.get("hides", ())

    def _told(self, path: str, item: Item) -> Item:
        if item.size is None:
            return item
        data = self.get(f"{path}/{item.name}", max_bytes=1 << 30)
        right = hashlib.md5(data, usedforsecurity=False).digest()
        return item._replace(digest=self.says.get("digest", right), size=item.size + self.says.get("more", 0))


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(MemoryBackend, "open", classmethod(_open_telling))
    monkeypatch.setattr(MemoryBackend, "digest_kind", "md5", raising=False)
    says: dict[str, Any] = {}
    monkeypatch.setattr(Telling, "says", says)
    return says


_OPEN = MemoryBackend.open.__func__  # type: ignore[attr-defined]


def _open_telling(cls: type, url: Any, *, create_root: bool) -> Telling:
    plain = _OPEN(MemoryBackend, url, create_root=create_root)
    return Telling(plain._store)


@pytest.mark.long
def test_digests_that_are_listed_are_compared(lab: Lab, telling: dict[str, Any]) -> None:
    w = pushed(lab, "memory")
    assert w.scrub().asked == 0
    path = packs_of(lab, "a")[0]
    data = bytearray(lab.counts["a"].get(path, max_bytes=1 << 30))
    data[100] ^= 1
    lab.counts["a"].put(path, bytes(data))
    report = w.scrub()
    assert report.asked == 1, "the size is right, and the digest is not"
    assert report.repaired is not None
    assert [(p.backend, p.problem) for p in report.repaired.found] == [("a", "altered")]


@pytest.mark.few(1)
@pytest.mark.parametrize("lie", [{"digest": bytes(16)}, {"more": 1}, {"digest": b"x"}, {"digest": bytes(1000)}])
def test_a_lie_in_an_inventory_costs_questions_and_deletes_nothing(
    lab: Lab, telling: dict[str, Any], lie: dict[str, Any]
) -> None:
    """A provider says of all its packs that they are others than agreed; each has its bytes."""
    w = pushed(lab, "memory")
    before = {name: sorted(packs_of(lab, name)) for name in NAMES}
    telling.update(lie)
    report = w.scrub()
    assert (report.problems, report.lost, report.short) == ((), (), 0)
    assert {name: sorted(packs_of(lab, name)) for name in NAMES} == before
    assert w.scrub().asked == 0, "what was asked for and found right is not asked for again"
    assert w.scrub(full=True).asked == 0, "nor when the same is listed again"
    assert w.check(read_data=True).problems == ()


def test_a_provider_that_hides_what_it_has_loses_nothing(lab: Lab, telling: dict[str, Any]) -> None:
    w = pushed(lab, "memory")
    telling["hides"] = {path.partition("/packs/")[2] for path in packs_of(lab, "a")}
    before = {name: sorted(packs_of(lab, name)) for name in NAMES}
    report = w.scrub()
    assert (report.problems, report.asked > 0) == ((), True)
    assert {name: sorted(packs_of(lab, name)) for name in NAMES} == before


@pytest.mark.parametrize(
    "page",
    [
        Inventory((), "x" * 5000, False),
        Inventory((), "two\nlines", False),
        Inventory((Item("../../up", 1), Item("0/zz/ab", 1), Item("9" * 40, 1)), "c", False),
        (),
        None,
    ],
)
def test_an_inventory_that_is_none_is_no_reason_to_do_anything(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, page: Any
) -> None:
    w = pushed(lab, "memory", packs=3)
    before = tree_of(Path(w.directory)), {name: sorted(packs_of(lab, name)) for name in NAMES}
    monkeypatch.setattr(MemoryBackend, "inventory", lambda *_: page)
    for _ in range(2):
        report = w.scrub()
        assert (report.lost, report.problems) == ((), ())
    assert (tree_of(Path(w.directory)), {name: sorted(packs_of(lab, name)) for name in NAMES}) == before


def test_a_cursor_that_the_store_has_forgotten_begins_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab, "memory", packs=3)
    w.scrub()
    plain = MemoryBackend.inventory

    def forgetful(self: MemoryBackend, path: str, cursor: str) -> Inventory:
        if cursor and ":" not in cursor:
            raise NotFoundError("too old")
        return plain(self, path, cursor)

    monkeypatch.setattr(MemoryBackend, "inventory", forgetful)
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "listed")


@pytest.mark.few(1)
@pytest.mark.parametrize("folder", ["0", "0/ab", "17/ff"])
def test_a_feed_that_tells_of_a_folder_alone_is_not_enough(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Dropbox says of a deleted folder that it is gone, and nothing of the packs in it."""
    w = pushed(lab, "memory")
    w.scrub()
    gone = packs_of(lab, "a")
    for path in gone:
        lab.counts["a"].delete(path)
    plain = MemoryBackend.inventory

    def telling(self: MemoryBackend, path: str, cursor: str) -> Inventory:
        page = plain(self, path, cursor)
        if not cursor or ":" in cursor or not page.items:
            return page
        return page._replace(items=(Item(folder, None),))

    monkeypatch.setattr(MemoryBackend, "inventory", telling)
    report = w.scrub()
    assert hows(report)["a"] == "listed"
    assert report.repaired is not None
    assert report.repaired.copies == len(gone)


def test_a_feed_that_fails_half_way_is_read_again_from_where_it_was(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab, "memory")
    w.scrub()
    for path in packs_of(lab, "a")[:2]:
        lab.counts["a"].delete(path)
    plain, calls = MemoryBackend.inventory, []

    def failing(self: MemoryBackend, path: str, cursor: str) -> Inventory:
        calls.append(cursor)
        if len(calls) <= len(NAMES):
            raise BackendError("no", retryable=False)
        return plain(self, path, cursor)

    monkeypatch.setattr(MemoryBackend, "inventory", failing)
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "away")
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 2


def test_damaged_notes_cost_a_new_comparison(lab: Lab) -> None:
    w = pushed(lab, "memory")
    w.scrub()
    w._db.put_records(TOLD, [r._replace(told=b"\1\2\3") for r in w._db.records(TOLD)])
    lab.counts["a"].delete(packs_of(lab, "a")[0])
    assert w.scrub().problems == ()
    assert w.check(read_data=True).problems == ()


def test_status_says_when_all_was_seen(lab: Lab) -> None:
    w = pushed(lab, "memory", packs=2)
    assert all(b.looked_ns is None for b in w.status().backends)
    w.scrub()
    assert all(b.looked_ns for b in w.status().backends)


# --- one listing for all devices


def listings(lab: Lab) -> dict[str, int]:
    """Backends whose packs were listed since the last time."""
    return {name: count for name in NAMES if (count := lab.counts[name].take().requests["inventory"])}


def test_one_listing_serves_all_devices(lab: Lab) -> None:
    w = pushed(lab, packs=4)
    other = lab.clone(lab.urls(*NAMES))
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "listed")
    assert listings(lab).keys() == set(NAMES)
    assert hows(other.scrub()) == dict.fromkeys(NAMES, "not due")
    assert listings(lab) == {}
    assert all(b.looked_ns for b in other.status().backends)
    for name in NAMES:
        lab.counts[name].take()
    other.scrub()
    after = {name: lab.counts[name].take().requests.total() for name in NAMES}
    assert after == dict.fromkeys(NAMES, 0), "the rest of the day costs nothing"


def test_the_record_of_a_backend_lies_on_another_one(lab: Lab) -> None:
    w = pushed(lab, packs=2)
    w.scrub()
    where = {p.name: name for name in NAMES for p in lab.objects(name, "scrubbed")}
    assert len(where) == 3
    names = {b.backend_id.hex(): b.name for b in w._connections.config.backends}
    assert all(names[i] != keeper for i, keeper in where.items())
    assert set(where.values()) == set(NAMES), "a ring: each keeps one"


@pytest.mark.long
def test_a_listing_that_left_something_wrong_serves_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab)
    other = lab.clone(lab.urls(*NAMES))
    lab.objects("a", "packs")[0].unlink()
    monkeypatch.setattr(mend, "_mend", lambda *_: mend._Made())  # it cannot be mended now
    assert w.scrub().problems
    monkeypatch.undo()
    assert hows(other.scrub())["a"] == "listed"


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["garbage", "cut", "another's", "gone"])
def test_a_record_that_is_none_costs_a_listing(lab: Lab, how: str) -> None:
    w = pushed(lab, packs=2)
    w.scrub()
    other = lab.clone(lab.urls(*NAMES))
    records = [p for name in NAMES for p in lab.objects(name, "scrubbed")]
    data = [p.read_bytes() for p in records]
    for n, path in enumerate(records):
        path.chmod(0o600)
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes({"garbage": b"x" * 900, "cut": data[n][:100], "another's": data[n - 1]}[how])
    assert hows(other.scrub()) == dict.fromkeys(NAMES, "listed")


def test_claims_of_others_are_not_relied_upon_for_ever(lab: Lab) -> None:
    """A device of the workspace says each day that it has listed all, and never does."""
    w = pushed(lab, packs=2)
    w.scrub()
    victim = lab.clone(lab.urls(*NAMES))
    assert hows(victim.scrub()) == dict.fromkeys(NAMES, "not due")
    rows = victim._db.records(LOOKS)
    assert all(r.since_ns for r in rows)
    victim._db.put_records(LOOKS, [r._replace(others_ns=1, since_ns=r.since_ns - 31 * DAY_NS) for r in rows])
    assert hows(victim.scrub()) == dict.fromkeys(NAMES, "listed")


# --- copies are read in turn


def later_to_read(w: Any, days: float) -> None:
    rows = w._db.records(LOOKS)
    w._db.put_records(LOOKS, [r._replace(read_ns=r.read_ns - int(days * DAY_NS)) for r in rows])


@pytest.mark.few(1)
@KINDS
def test_every_copy_is_read_within_the_period(lab: Lab, kind: str) -> None:
    w = pushed(lab, kind)
    w.scrub()
    copies = sum(len(packs_of(lab, name)) for name in NAMES)
    read = []
    for _ in range(9):
        later_to_read(w, 10)
        forget_records(lab)
        read.append(w.scrub().read)
    assert sum(read) == copies, read
    assert max(read) < copies, "spread over the period"
    assert w.scrub().read == 0


def forget_records(lab: Lab) -> None:
    """What this device says of the time it did not live through is not to speak against it."""
    for name in NAMES:
        for path in [f"{top.name}/scrubbed" for top in lab.counts[name].list("")]:
            for item in lab.counts[name].list(path):
                lab.counts[name].delete(f"{path}/{item.name}")


def test_an_altered_copy_is_found_when_it_is_its_turn(lab: Lab) -> None:
    w = pushed(lab)
    w.scrub()
    path = lab.objects("b", "packs")[0]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert w.scrub(full=True).problems == (), "a listing does not show it"
    later_to_read(w, 90)
    forget_records(lab)
    report = w.scrub()
    assert report.repaired is not None
    assert [(p.backend, p.problem) for p in report.repaired.found] == [("b", "altered")]


def test_no_copy_is_read_where_digests_are_told_or_nobody_wants_it(lab: Lab, telling: dict[str, Any]) -> None:
    w = pushed(lab, "memory", packs=4)
    w.scrub()
    later_to_read(w, 90)
    assert w.scrub().read == 0


def test_the_period_can_be_set_and_reading_turned_off(lab: Lab) -> None:
    w = pushed(lab, packs=4)
    w.configure("scrub.days", "0")
    w.scrub()
    later_to_read(w, 900)
    assert w.scrub().read == 0
    w.configure("scrub.days", "1")
    w.scrub()
    later_to_read(w, 1)
    forget_records(lab)
    assert w.scrub().read == sum(len(packs_of(lab, name)) for name in NAMES)


def test_another_device_goes_on_where_one_has_read(lab: Lab) -> None:
    w = pushed(lab, packs=4)
    other = lab.clone(lab.urls(*NAMES))
    other.scrub()
    w.scrub()
    later_to_read(w, 90)
    forget_records(lab)
    assert w.scrub().read > 0
    later_to_read(other, 90)
    later(other, 2)
    assert other.scrub().read == 0, "it was read by the first"


@pytest.mark.long
def test_what_is_read_at_once_can_be_bounded_and_later_scrubs_go_on(lab: Lab) -> None:
    w = pushed(lab)
    w.scrub()
    later_to_read(w, 90)
    forget_records(lab)
    read = []
    for _ in range(30):
        read.append(w.scrub(read_bytes_max=15_000).read)
        if not read[-1]:
            break
    later_to_read(w, 1)  # less than a day's share may be left
    forget_records(lab)
    read.append(w.scrub().read)
    assert len(read) > 3
    assert max(read) <= len(NAMES) * 4
    assert sum(read) >= sum(len(packs_of(lab, name)) for name in NAMES), read


def test_an_inventory_without_an_end_is_not_taken_for_a_whole_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab, "memory", packs=2)
    monkeypatch.setattr(inventories, "PAGES_MAX", 5)
    monkeypatch.setattr(MemoryBackend, "inventory", lambda *_: Inventory((), "more", True))
    report = w.scrub()
    assert hows(report) == dict.fromkeys(NAMES, "away")
    assert all("no end" in b.why for b in report.backends)
    assert report.asked == 0
