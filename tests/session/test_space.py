"""Space on the backends: what fits, and what whole workspaces do where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from content_kit import IDS
from workspace_kit import Lab, tree_of, write

from metasync.errors import FullError
from metasync.events import Event, Notice
from metasync.local.state_keys import SPACE_KEY, STORED, StoredNote
from metasync.objects.model import ObjectKind
from metasync.session import space
from metasync.store.index import PackRecord
from metasync.store.placement import Placement, Target
from metasync.testing.quota import Quota
from metasync.transfer.copies import MARGIN_BYTES, NEARLY_FULL_BYTES, Room, is_nearly_full, placed_bytes
from metasync.workspace import Workspace

MIB = 1 << 20
GIB = 1 << 30

# --- what fits


def test_room_is_what_is_free_less_the_reserve() -> None:
    room = Room()
    room.told("a", MARGIN_BYTES + 1000)
    assert room.lacks("a", 1000) is None
    error = room.lacks("a", 1001)
    assert isinstance(error, FullError)
    assert "a: 1.0 MiB are free there; a pack of 1001 B must leave 1.0 MiB of it" in error.message
    assert (room.of("a"), room.of("unknown")) == (1000, None)
    assert room.lacks("unknown", 1 << 50) is None


def test_room_ends_at_the_agreed_capacity() -> None:
    room = Room(left={"a": 1000, "b": -5})
    assert room.lacks("a", 1000) is None
    assert room.lacks("a", 1001) is not None
    assert room.lacks("b", 1) is not None
    assert (room.of("a"), room.of("b")) == (1000, 0)
    room.told("a", MARGIN_BYTES + 10)
    assert room.of("a") == 10
    assert room.lacks("a", 11) is not None


def test_what_is_on_its_way_counts_and_comes_back_if_it_fails() -> None:
    room = Room(left={"a": 100})
    room.told("a", MARGIN_BYTES + 100)
    room.begin("a", 60)
    assert room.of("a") == 40
    room.begin("a", 40)
    assert room.of("a") == 0
    room.end("a", 40, stored=False)
    assert room.of("a") == 40
    room.told("a", MARGIN_BYTES + 70)  # told while 60 were on their way
    assert room.of("a") == 10
    room.end("a", 60, stored=True)
    assert room.of("a") == 10


@pytest.mark.parametrize(
    ("left", "total", "nearly"),
    [
        (MARGIN_BYTES - 1, None, True),
        (MARGIN_BYTES, None, False),
        (MARGIN_BYTES - 1, MARGIN_BYTES, True),
        (99 * MIB, 2000 * MIB, True),  # below 5 %
        (101 * MIB, 2000 * MIB, False),
        (NEARLY_FULL_BYTES - 1, 1 << 50, True),
        (NEARLY_FULL_BYTES, 1 << 50, False),
        (-5, 100 * GIB, True),
    ],
)
def test_nearly_full(left: int, total: int | None, nearly: bool) -> None:
    assert is_nearly_full(left, total) is nearly


def test_placed_bytes_are_those_of_each_pack_s_own_places() -> None:
    placement = Placement(
        [Target(n.encode() * 16, (i + 1) << 30) for i, n in enumerate("abcd")], copies=2, partitions=8
    )
    packs = [PackRecord(IDS.of(ObjectKind.BLOB, b"%d" % i), 0, 1000 + i, b"", ()) for i in range(100)]
    slow = dict.fromkeys((n.encode() * 16 for n in "abcd"), 0)
    for p in packs:
        for backend_id in placement.primary(p.name):
            slow[backend_id] += p.size
    assert placed_bytes(packs, placement) == slow
    assert sum(slow.values()) == 2 * sum(p.size for p in packs)
    assert placed_bytes([], placement) == dict.fromkeys(slow, 0)


# --- whole workspaces


class Told(list[str]):
    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.append(event.text)


def began(lab: Lab, limits: dict[str, int], *, silent: str = "", **options: Any) -> Workspace:
    for n, limit in limits.items():
        lab.quotas[n] = Quota(limit)
        if n in silent:
            lab.silent.add(n)
    w = lab.init(lab.urls(*limits), **options)
    for count in lab.counts.values():
        count.take()
    return w


def packs_on(lab: Lab, name: str) -> int:
    return sum(p.stat().st_size for p in lab.objects(name, "packs"))


def asked(lab: Lab) -> dict[str, int]:
    return {n: count.take().requests["space"] for n, count in lab.counts.items()}


@pytest.mark.parametrize("silent", ["", "a"])
@pytest.mark.long
def test_a_backend_that_fills_up_during_a_push(lab: Lab, silent: str) -> None:
    w = began(lab, {"a": 10 * MIB, "b": GIB, "c": GIB}, silent=silent)
    write(w.directory, {f"f{i}": os.urandom(4_000_000) for i in range(10)})
    w.close()
    ran = lab.cli("push")
    assert ran.code == 0, "elsewhere, with all copies"
    assert len([line for line in ran.out.splitlines() if line.startswith("warning: a: ")]) == 1
    assert "found another place than their own, with all copies" in ran.out
    count = lab.counts["a"].take()
    assert count.errors["put"] <= (6 if silent else 0), "what was under way when it was first seen to be full"
    assert packs_on(lab, "a") <= 10 * MIB - (0 if silent else MARGIN_BYTES)
    assert packs_on(lab, "a") + packs_on(lab, "b") + packs_on(lab, "c") > 2 * 40_000_000
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


@pytest.mark.few(1)
@pytest.mark.parametrize("silent", ["", "ab"])
def test_without_another_place_copies_are_missing_and_the_user_is_told(lab: Lab, silent: str) -> None:
    w = began(lab, {"a": 9 * MIB, "b": GIB}, silent=silent)
    write(w.directory, {f"f{i}": os.urandom(4_000_000) for i in range(3)})
    w.close()
    ran = lab.cli("push", "--json")
    assert ran.code == 4
    assert 0 < ran.json["under_replicated"] < ran.json["packs"]
    assert list(ran.json["down"]) == ["a"]
    assert lab.cli("status").code == 4


def test_a_capacity_that_was_given_is_kept(lab: Lab) -> None:
    urls = [lab.url("a", capacity="9MB"), lab.url("b", capacity="1GB"), lab.url("c", capacity="1GB")]
    w = lab.init(urls, replicas=3)
    write(w.directory, {f"f{i}": os.urandom(4_000_000) for i in range(4)})
    w.close()
    r = lab.cli("push", "--json")
    on_a = len(lab.objects("a", "packs"))
    assert 0 < on_a < r.json["packs"]
    assert (r.code, r.json["under_replicated"]) == (4, r.json["packs"] - on_a), "of three copies only two found a place"
    assert "its capacity has" in r.json["down"]["a"]
    assert packs_on(lab, "a") <= 9_000_000
    short = r.json["under_replicated"]
    states = {b["name"]: b for b in lab.cli("backend", "list", "--json").json["backends"]}
    assert states["a"]["warning"].startswith("a is nearly at its capacity: ")
    assert states["b"]["warning"] == ""
    write(w.directory, {"more": os.urandom(1_000_000)})
    assert lab.cli("push", "--json").json["under_replicated"] == 1, (
        "what belongs there counts, also what found no place"
    )
    assert packs_on(lab, "a") <= 9_000_000
    assert lab.cli("status", "--json").json["under_replicated"] >= short + 1
    (w.directory / "f0").unlink()
    assert lab.cli("push", "--json").json["under_replicated"] == 0, "trees alone go there"


def test_no_place_within_capacity_at_all(lab: Lab) -> None:
    w = lab.init([lab.url("a", capacity="1MB"), lab.url("b", capacity="1MB")])
    write(w.directory, {"big": os.urandom(3_000_000)})
    with pytest.raises(FullError) as e:
        w.push()
    assert "a: its capacity has 976.6 KiB left, too little for a pack of 2.9 MiB" in e.value.message


def test_the_default_capacity_is_no_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {"big": os.urandom(3_000_000)})
    seen: list[object] = []
    monkeypatch.setattr(space, "placed_bytes", lambda *_: seen.append(1) or {})
    assert w.push().under_replicated == 0
    assert not seen, "nothing is summed up for it either"


@pytest.mark.long
def test_backends_are_asked_once_per_push_and_not_without_one(lab: Lab) -> None:
    w = began(lab, {"a": 100 * MIB, "b": 50 * GIB, "c": GIB}, silent="c")
    for i in range(3):
        w = lab.reopen(w)
        asked(lab)
        write(w.directory, {f"f{i}": os.urandom(5_000_000)})
        w.push()
        expected = {"a": 1, "b": 1 if i == 0 else 0, "c": 0}  # plenty was told a moment ago; little is asked for anew
        assert asked(lab) == expected
        w = lab.reopen(w)
        w.push()
        assert sum(asked(lab).values()) == 0, "nothing to push"
        w.pull()
        assert sum(asked(lab).values()) == 0


def test_what_was_told_grows_old_and_shrinks_by_what_was_sent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = began(lab, {"a": 3 * GIB, "b": 3 * GIB}, replicas=2)
    write(w.directory, {"f": os.urandom(5_000_000)})
    w.push()
    told = w._db.need(SPACE_KEY)
    assert {n: t[2] for n, t in told.items()} == {"a": 3 * GIB, "b": 3 * GIB}
    assert all(3 * GIB - 7_000_000 < t[1] < 3 * GIB - 5_000_000 for t in told.values())
    asked(lab)
    monkeypatch.setattr(space, "FRESH_S", 0.0)
    write(w.directory, {"f": os.urandom(5_000_000)})
    w = lab.reopen(w)
    w.push()
    assert asked(lab) == {"a": 1, "b": 1}


def test_one_that_does_not_answer_has_room_until_it_says_otherwise(lab: Lab) -> None:
    w = began(lab, {"a": 100 * MIB, "b": 100 * MIB})
    lab.faults["a"].fail_next("unreachable", kind="space")
    write(w.directory, {"f": os.urandom(100_000)})
    r = w.push()
    assert (r.version, r.under_replicated, r.down) == (1, 0, {})


# --- going on after a push that found no space


def stopped(lab: Lab) -> tuple[Workspace, int]:
    """A push of 30 MB that filled three accounts of 20 MiB, and how many bytes of packs it left there."""
    w = began(lab, {"a": 20 * MIB, "b": 20 * MIB, "c": 20 * MIB})
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(16)} | {"small": b"1"})
    with pytest.raises(FullError):
        w.push()
    w = lab.reopen(w)
    left = sum(packs_on(lab, n) for n in "abc")
    assert left > 40_000_000
    for n in "abc":
        lab.quotas[n].limit_bytes = GIB
    return w, left


@pytest.mark.long
def test_the_next_push_goes_on(lab: Lab) -> None:
    w, left = stopped(lab)
    r = w.push()
    assert (r.version, r.under_replicated) == (1, 0)
    w.close()
    total = sum(packs_on(lab, n) for n in "abc")
    assert total - left == 2 * r.bytes_stored
    assert r.bytes_stored < 36_000_000, "of 48 MB: what had all its copies was not stored again"
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    report = c.check(read_data=True)
    assert (report.short, report.lost, report.problems) == (0, (), ())


@pytest.mark.long
def test_what_is_not_wanted_any_more_is_not_named(lab: Lab) -> None:
    w, _ = stopped(lab)
    for i in range(16):
        (w.directory / f"f{i}").unlink()
    r = w.push()
    assert (r.version, r.packs) == (1, 1)
    assert w.check().packs <= 2, "the one with the small file may be among those kept"


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["cut", "other config", "other epoch", "nonsense"])
@pytest.mark.long
def test_what_was_kept_and_does_not_serve_is_stored_anew(lab: Lab, how: str) -> None:
    w, _ = stopped(lab)
    spoil: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda note: note[:-7],
        "other config": lambda note: bytes(32) + note[32:],
        "other epoch": lambda note: note[:40] + b"\0\0\0\x09" + note[44:],
        "nonsense": lambda note: note[:44] + b"\x01nonsense",
    }
    w._db.put_records(STORED, [StoredNote(n, spoil[how](note)) for n, note in notes(w)])
    r = w.push()
    assert r.bytes_stored > 48_000_000
    assert w.check().packs == r.packs
    assert not notes(w, some=False)


def notes(w: Workspace, *, some: bool = True) -> list[StoredNote]:
    """What is noted of packs that were stored: at least one note, or none."""
    found = w._db.records(STORED)
    assert (len(found) > 0) == some
    return found


@pytest.mark.long
def test_packs_that_were_agreed_meanwhile_are_not_named_again(lab: Lab) -> None:
    """A process that died right after its push was agreed leaves behind what it had kept."""
    w, _ = stopped(lab)
    kept = notes(w)
    w.push()
    w._db.put_records(STORED, kept)
    write(w.directory, {"a copy": (w.directory / "f0").read_bytes(), **{f"f{i}": b"changed" for i in range(16)}})
    w.push()
    with w._session("look") as s:
        agreed = s.base()
        assert sum(item.packs for item in agreed.root.items) == len(agreed.index.packs())


@pytest.mark.long
def test_a_pack_that_lacks_a_copy_is_not_kept(lab: Lab) -> None:
    w = began(lab, {"a": 30 * MIB, "b": 10 * MIB}, replicas=2)
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(16)})
    with pytest.raises(FullError):
        w.push()
    for n in "ab":
        lab.quotas[n].limit_bytes = GIB
    w = lab.reopen(w)
    assert w.push().under_replicated == 0
    assert w.check().short == 0


# --- what is shown


def test_used_free_and_total_are_shown(lab: Lab) -> None:
    w = began(lab, {"a": 100 * MIB, "b": 50 * GIB, "c": 40 * MIB}, silent="b")
    for i in range(5):
        write(w.directory, {f"f{i}": os.urandom(1_500_000)})
        w.push()
    lab.quotas["c"].fill(leaving_bytes=1_800_000)
    w.close()
    items = {b["name"]: b for b in lab.cli("status", "--json").json["backends"]}
    for n in "abc":
        assert items[n]["used_bytes"] == packs_on(lab, n), "exact: each copy is where it belongs"
    assert items["a"]["free_bytes"] == lab.quotas["a"].free_bytes
    assert items["a"]["total_bytes"] == 100 * MIB
    assert (items["b"]["free_bytes"], items["b"]["total_bytes"]) == (None, None)
    assert (items["a"]["warning"], items["b"]["warning"]) == ("", "")
    assert items["c"]["warning"] == "c is nearly full: 1.7 MiB of 40.0 MiB are free"
    ran = lab.cli("backend", "list")
    assert "warning: c is nearly full: 1.7 MiB of 40.0 MiB are free." in ran.out
    assert ran.out.splitlines()[2].split() == ["backend", "used", "share", "free", "state", "where"]
    assert [line.split()[3] for line in ran.out.splitlines()[3:6]] == ["67%"] * 3
    assert lab.cli("status").code == 0, "a warning, no failure"


def test_a_backend_that_is_down_is_shown_without_space(lab: Lab) -> None:
    w = began(lab, {"a": 100 * MIB, "b": 100 * MIB, "c": 100 * MIB})
    lab.faults["a"].down = True
    items = {b.name: b for b in w.backends()}
    assert items["a"].free_bytes is None and items["a"].state.startswith("unreachable")
    assert items["b"].free_bytes is not None


def test_init_warns_of_a_backend_that_is_nearly_full(lab: Lab) -> None:
    lab.quotas |= {"a": Quota(MIB), "b": Quota(GIB)}
    told = Told()
    lab.init(lab.urls("a", "b"), on_event=told)
    shares, warning = told
    assert shares.startswith("of all data each backend gets: a 100%, b 100%")
    assert warning.startswith("a is nearly full: ") and warning.endswith(" of 1.0 MiB are free")


@pytest.mark.long
def test_a_dry_run_says_where_it_may_not_fit(lab: Lab) -> None:
    w = began(lab, {"a": 20 * MIB, "b": GIB, "c": GIB}, silent="c")
    write(w.directory, {f"f{i}": os.urandom(5_000_000) for i in range(6)})
    r = w.push(dry_run=True)
    (tight,) = r.tight
    assert tight.name == "a"
    assert tight.fits_bytes == lab.quotas["a"].free_bytes - MARGIN_BYTES
    assert 20_000_000 < tight.needed_bytes < 26_000_000, "two thirds of 30 MB, and a pack"
    assert asked(lab)["c"] == 0
    w.close()
    ran = lab.cli("push", "--dry-run")
    assert ran.code == 0
    assert "warning: a: up to " in ran.out and " would go there, and " in ran.out
    lab.quotas["a"].limit_bytes = GIB
    w = lab.keep(Workspace.open(w.directory))
    assert w.push(dry_run=True).tight == ()
    w.push()
    asked(lab)
    assert w.push(dry_run=True).tight == ()
    assert sum(asked(lab).values()) == 0, "nothing to store"
