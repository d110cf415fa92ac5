"""Stores that are damaged, emptied, copied, full, forged or of a newer format: told, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from bad_input_kit import FILES, poison_next, says, started
from workspace_kit import PASSPHRASE, Lab, flip, swap, tree_of, wipe, write

from metasync.consensus import Change
from metasync.consensus.records import log_replay
from metasync.errors import (
    DamagedError,
    ForkError,
    FullError,
    MetaSyncError,
    NoQuorumError,
    UpgradeError,
)
from metasync.members.key_store import open_admin_key
from metasync.workspace import Workspace

# --- objects that are damaged


def damage(lab: Lab, name: str, how: str) -> None:
    one, *rest = lab.objects(name, "packs")
    if how == "flipped":
        flip(one)
    elif how == "torn":
        one.write_bytes(one.read_bytes()[:-100])
    elif how == "empty":
        one.write_bytes(b"")
    elif how == "swapped":
        swap(one, rest[0])
    elif how == "longer":
        one.write_bytes(one.read_bytes() + b"\0")
    else:
        one.unlink()


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "swapped", "longer", "missing"])
def test_a_damaged_copy_is_named_and_another_serves(lab: Lab, how: str) -> None:
    w = started(lab, "a", "b")
    write(w.directory, {"d/photo.bin": os.urandom(20_000)})
    w.push()
    damage(lab, "a", how)
    report = w.check(read_data=True)
    assert {p.backend for p in report.problems} == {"a"}
    words = {"flipped": "altered", "missing": "missing", "swapped": ""}
    assert all(words.get(how, "bytes instead of") in p.problem for p in report.problems), report
    assert report.short
    assert not report.lost
    quick = w.check()
    assert {p.backend for p in quick.problems} <= {"a"}
    assert quick.problems or how in ("flipped", "swapped"), "sizes are compared, and pieces read"
    c = lab.clone(lab.urls("a", "b"))
    assert tree_of(c.directory) == tree_of(w.directory)
    for pack in (*lab.objects("a", "packs"), *lab.objects("b", "packs")):
        pack.unlink()
    report = w.check()
    assert report.lost
    with pytest.raises(DamagedError) as e:
        lab.clone(lab.urls("a", "b"), device="third")
    says(e.value, "check")


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["meta", "const"])
def test_meta_objects_that_are_missing_are_brought(lab: Lab, part: str) -> None:
    """As where the device that stored them ended before all backends had them: no backend is to blame."""
    w = started(lab)
    before = {path: path.read_bytes() for path in lab.objects("b", part)}
    for path in before:
        path.unlink()
    lab.faults["b"].read_only = True
    report = w.check()
    assert {p.backend for p in report.meta_problems} == {"b"}
    assert all("missing" in p.problem for p in report.meta_problems)
    (note,) = report.notes
    assert note.startswith("b refused what was last to be written there: ")
    lab.faults["b"].read_only = False
    for path in lab.objects("a", part):
        flip(path)
    report = w.check(read_data=True)
    assert {p.backend for p in report.meta_problems} == {"a"}, "an altered copy is brought nowhere"
    what = {"meta": "index", "const": "config, device set"}[part]
    assert report.notes == (f"b: brought what was missing there: {what}",)
    brought = {path: path.read_bytes() for path in lab.objects("b", part)}
    assert brought == {path: data for path, data in before.items() if path in brought}
    assert brought
    for path in lab.objects("a", part):
        flip(path)  # back
    again = w.check(read_data=True)
    assert (again.meta_problems, again.notes) == ((), ())


@pytest.mark.parametrize("part", ["meta", "const"])
def test_meta_objects_that_are_altered_are_stored_anew_by_repair(lab: Lab, part: str) -> None:
    w = started(lab)
    before = {path: path.read_bytes() for path in lab.objects("b", part)}
    for path in before:
        flip(path)
    assert {p.backend for p in w.check(read_data=True).meta_problems} == {"b"}
    report = w.check(read_data=True, repair=True)
    what = {"meta": "index", "const": "config, device set"}[part]
    assert (report.meta_problems, report.notes) == ((), (f"b: stored anew what was altered there: {what}",))
    mended = {path for path, data in before.items() if path.read_bytes() == data}
    assert mended
    again = w.check(read_data=True)
    assert (again.meta_problems, again.notes) == ((), ())
    lab.faults["b"].read_only = True
    for path in mended:
        flip(path)
    report = w.check(read_data=True, repair=True)
    assert {p.problem.split()[-1] for p in report.meta_problems if p.backend == "b"} == {"altered"}


def test_data_that_is_lost_everywhere_stays_where_it_is(lab: Lab) -> None:
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"notes.txt": b"new\n", "d/photo.bin": os.urandom(20_000)})
    w.push()
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            flip(pack, at=200)
    before = tree_of(c.directory)
    write(c.directory, {"mine": b"1"})
    with pytest.raises(DamagedError):
        c.pull()
    assert {p: n for p, n in tree_of(c.directory).items() if p != b"mine"} == before


@pytest.mark.parametrize("part", ["meta", "const"])
def test_damaged_meta_objects_are_named(lab: Lab, part: str) -> None:
    w = started(lab)
    for path in lab.objects("b", part):
        flip(path)
    report = w.check(read_data=True)
    assert {p.backend for p in report.meta_problems} == {"b"}
    assert all("altered" in p.problem for p in report.meta_problems)
    for path in lab.objects("b", part):
        path.write_bytes(path.read_bytes()[:-1])
    report = w.check()
    assert {p.backend for p in report.meta_problems} == {"b"}, "a copy of another size is looked at"
    assert all("altered" in p.problem for p in report.meta_problems)
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


# --- stores that were emptied, replaced, copied


@pytest.mark.few(4)
@pytest.mark.parametrize("how", ["root gone", "root made anew", "emptied", "a copy in its place", "another's"])
@pytest.mark.parametrize("role", ["both", "storage"])
def test_a_store_that_is_not_what_it_was_is_never_taken_for_an_empty_one(lab: Lab, how: str, role: str) -> None:
    w = lab.init([lab.url("a", role=role), *lab.urls("b", "c")], replicas=2)
    write(w.directory, FILES)
    w.push()
    root = lab.store("a")
    w.close()
    if how == "root gone":
        shutil.rmtree(root)
    elif how == "root made anew":
        root.rename(lab.store("old"))
        root.mkdir()
    elif how == "emptied":
        wipe(root)
    elif how == "a copy in its place":
        root.rename(lab.store("old"))
        shutil.copytree(lab.store("old"), root)
    else:
        root.rename(lab.store("old"))
        shutil.copytree(lab.store("b"), root)
    before = lab.objects("a", "packs")
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more", "big": os.urandom(9000)})
    r = w.push()
    assert (r.version, r.under_replicated) == (2, 0)
    assert lab.objects("a", "packs") == before
    states = {b.name: b.state for b in w.backends()}
    assert states["a"] != "ok"
    assert (states["b"], states["c"]) == ("ok", "ok")
    report = w.check()
    assert "a" in {p.backend for p in (*report.problems, *report.meta_problems)}
    assert not report.lost
    c = lab.clone(lab.urls("b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


@pytest.mark.parametrize("role", ["both", "storage"])
def test_a_store_that_is_emptied_while_a_workspace_is_open(lab: Lab, role: str) -> None:
    w = lab.init([lab.url("a", role=role), *lab.urls("b", "c")])
    write(w.directory, FILES)
    w.push()
    wipe(lab.store("a"))
    write(w.directory, {"more.txt": b"more", "big": os.urandom(9000)})
    assert w.push().version == 2
    assert {b.name: b.state == "ok" for b in w.backends()} == {"a": False, "b": True, "c": True}
    lab.lose("a")  # whatever it took meanwhile counts for nothing
    assert tree_of(lab.clone(lab.urls("b", "c")).directory) == tree_of(w.directory)


def test_an_older_copy_of_one_store_does_not_bring_the_past_back(lab: Lab) -> None:
    w = started(lab)
    w.close()
    shutil.copytree(lab.store("a"), lab.root / "saved", copy_function=shutil.copy2)
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    w.push()
    w.close()
    wipe(lab.store("a"))
    shutil.copytree(lab.root / "saved", lab.store("a"), dirs_exist_ok=True)
    w = lab.reopen(w)
    assert w.pull().version == 2
    assert w.check().meta_problems
    write(w.directory, {"more.txt": b"even more"})
    assert w.push().version == 3
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


def test_older_copies_of_a_majority_are_a_fork(lab: Lab) -> None:
    w = started(lab)
    w.close()
    for n in "abc":
        shutil.copytree(lab.store(n), lab.root / "saved" / n)
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    w.push()
    for n in "abc":
        wipe(lab.store(n))
        shutil.copytree(lab.root / "saved" / n, lab.store(n), dirs_exist_ok=True)
    w = lab.reopen(w)
    lab.hurry()
    write(w.directory, {"more.txt": b"even more"})
    for act in (w.push, w.pull):
        with pytest.raises(ForkError) as e:
            act()
        says(e.value, "older past", ": entry ", " is gone")
    assert (w.directory / "more.txt").read_bytes() == b"even more"


# --- full and read-only


def test_a_full_backend_passes_its_packs_on(lab: Lab) -> None:
    w = started(lab)
    lab.faults["a"].full_over_bytes = 6_000
    write(w.directory, {f"n{i}": os.urandom(8_000) for i in range(4)})
    r = w.push()
    assert (r.version, r.under_replicated, r.elsewhere > 0 or "a" not in r.down) == (2, 0, True)
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    assert not w.check().short


def test_all_backends_full(lab: Lab) -> None:
    w = started(lab)
    for n in "abc":
        lab.faults[n].full_over_bytes = 3_000
    write(w.directory, {"big": os.urandom(50_000)})
    before = tree_of(w.directory)
    with pytest.raises(FullError) as e:
        w.push()
    says(e.value, "every backend is full", "a: ", "b: ", "c: ")
    assert tree_of(w.directory) == before
    for n in "abc":
        lab.faults[n].full_over_bytes = None
    w = lab.reopen(w)
    assert w.push().version == 2
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


def test_backends_too_full_for_the_log(lab: Lab) -> None:
    w = started(lab)
    lab.hurry()
    for n in "abc":
        lab.faults[n].full_over_bytes = 0
    (w.directory / "notes.txt").unlink()
    with pytest.raises(MetaSyncError) as e:
        w.push()
    says(e.value, "full")


def test_two_full_backends_of_three_leave_one_copy(lab: Lab) -> None:
    w = started(lab)
    for n in "ab":
        lab.faults[n].full_over_bytes = 6_000
    write(w.directory, {"big": os.urandom(50_000)})
    r = w.push()
    assert (r.version, r.under_replicated) == (2, 1)
    assert w.status().under_replicated == 1


def test_a_read_only_backend(lab: Lab) -> None:
    w = started(lab)
    lab.faults["a"].read_only = True
    write(w.directory, {"big": os.urandom(50_000)})
    r = w.push()
    assert (r.version, r.under_replicated) == (2, 0)
    lab.faults["b"].read_only = True
    lab.hurry(proposing=True)
    write(w.directory, {"big": os.urandom(50_000)})
    w = lab.reopen(w)
    with pytest.raises(NoQuorumError) as e:
        w.push()
    says(e.value, "a: ", "b: ", "read-only")


# --- log entries that are forged, replayed, or badly signed


def slots(lab: Lab, name: str) -> list[Path]:
    """The log entries on a backend, the oldest first."""
    return sorted(lab.objects(name, "px"), key=lambda p: p.stat().st_mtime_ns)


def newest_slot(lab: Lab, name: str, w: Workspace, push: bytes) -> tuple[Path, list[Path]]:
    """Pushes, and gives (the first entry that the push added on a backend, all that were there before)."""
    before = slots(lab, name)
    write(w.directory, {"push.txt": push})
    w.push()
    added = [p for p in slots(lab, name) if p not in before]
    assert added
    return added[0], before


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "kind", ["garbage", "flipped", "another backend's", "an older version's", "another workspace's", "empty"]
)
def test_a_log_entry_that_is_not_its_own_poisons_that_log_only(lab: Lab, kind: str) -> None:
    """The poisoned backend is out for the version, and named; the others go on."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    other = lab.init(lab.urls("a", "b", "c"), device="other", name="other", passphrase="another")
    theirs = newest_slot(lab, "a", other, b"1")[0].read_bytes()
    b_before = slots(lab, "b")
    first, before = newest_slot(lab, "a", w, b"1")
    if kind == "garbage":
        first.write_bytes(os.urandom(first.stat().st_size))
    elif kind == "flipped":
        flip(first)
    elif kind == "another backend's":
        first.write_bytes(next(p for p in slots(lab, "b") if p not in b_before).read_bytes())
    elif kind == "an older version's":
        first.write_bytes(before[-1].read_bytes())
    elif kind == "another workspace's":
        first.write_bytes(theirs)
    else:
        first.write_bytes(b"")
    lab.faults["c"].slow_s = 0.3  # so that the poisoned log is read before the quorum of the others is there
    assert c.pull().version >= 2
    lab.faults["c"].slow_s = 0
    assert tree_of(c.directory) == tree_of(w.directory)
    write(c.directory, {"push.txt": b"2"})
    c.push()
    w = lab.reopen(w)
    w.pull()
    assert tree_of(c.directory) == tree_of(w.directory)
    d = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(d.directory) == tree_of(w.directory)


def test_entries_planted_ahead_are_no_news(lab: Lab) -> None:
    """A provider that copies old entries to the names of coming ones cannot make them count."""
    w = started(lab)
    state = w.status()
    known = set(slots(lab, "a"))
    write(w.directory, {"x": b"1"})
    w.push()
    coming = [p for p in slots(lab, "a") if p not in known]
    data = {p: p.read_bytes() for p in known}
    assert state.version == 1
    for p in coming:
        p.write_bytes(sorted(data.values())[0])
    w = lab.reopen(w)
    assert w.pull().version == 2
    write(w.directory, {"x": b"2"})
    assert w.push().version == 3


def test_a_poisoned_log_is_named(lab: Lab) -> None:
    w = started(lab)
    poison_next(lab, w, "a")
    write(w.directory, {"x": b"1"})
    w = lab.reopen(w)
    lab.faults["b"].slow_s = lab.faults["c"].slow_s = 0.2
    s = w.status()
    assert s.newest == 1
    report = w.check()
    assert [p.backend for p in report.meta_problems] == ["a"]
    assert "version 2" in report.meta_problems[0].problem
    states = {b.name: b.state for b in s.backends}
    assert states["a"].startswith("poisoned"), states
    lab.faults["b"].slow_s = lab.faults["c"].slow_s = 0
    r = w.push()
    assert r.version == 2
    assert w.check().meta_problems == ()  # the next version's log is clean


def test_a_majority_of_poisoned_logs_stops_pushes_and_says_where(lab: Lab) -> None:
    w = started(lab)
    lab.hurry()
    poison_next(lab, w, "ab")
    write(w.directory, {"x": b"1"})
    before = tree_of(w.directory)
    w = lab.reopen(w)
    for act in (w.push, w.pull):
        with pytest.raises(NoQuorumError) as e:
            act()
        says(e.value, "a: entry 0 of version 2", "b: entry 0 of version 2")
    assert tree_of(w.directory) == before


# --- newer formats


def test_a_format_that_nobody_vouches_for_is_no_newer_one(lab: Lab) -> None:
    """The clear byte of a log entry is as any byte that a backend shows: a newer program raises `min_fmt` first."""
    w = started(lab)
    lab.hurry()
    sample = bytearray(slots(lab, "a")[0].read_bytes())
    sample[0] = 9
    poison_next(lab, w, "ab", bytes(sample))
    w = lab.reopen(w)
    write(w.directory, {"x": b"1"})
    for act in (w.push, w.pull):
        with pytest.raises(NoQuorumError) as e:
            act()
        says(e.value, "a", "b", "format 9")
        assert "pgrade" not in str(e.value)


def test_a_newer_format_that_is_agreed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is too old for the workspace neither reads on nor writes: `min_fmt` of policy and state."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    w.pull()
    with monkeypatch.context() as newer, w._session("test") as s:
        newer.setattr(log_replay, "FORMAT", 2)
        opened = open_admin_key(s, s.newest_state(), PASSPHRASE)
        state, devices = opened.state, opened.devices
        policy = devices.policy.signed(opened.admin_private, era=state.era, version=state.v + 1, min_fmt=2)
        digest = s.put_const(state, replace(devices, policy_data=policy.encode()).encode())
        change = Change(op_id=os.urandom(16), devices=digest, min_fmt=2)
        s.runtime.run(s.group.propose(state, lambda: change))
    before = tree_of(c.directory)
    write(c.directory, {"mine": b"1"})
    for act in (c.push, c.pull, c.check):
        with pytest.raises(UpgradeError) as e:
            act()
        says(e.value, "pgrade metasync")
    assert isinstance(c.status().error, UpgradeError)
    assert set(tree_of(c.directory)) == {*before, b"mine"}
    with pytest.raises(UpgradeError):
        lab.clone(lab.urls("a", "b", "c"), device="third")


@pytest.mark.parametrize("part", ["genesis", "keys"])
def test_a_newer_format_of_what_clone_reads(lab: Lab, part: str) -> None:
    from hashlib import sha256

    started(lab)
    for name in "abc":
        paths = lab.objects(name, part) or [p for p in lab.store(name).rglob(part) if p.is_file()]
        for path in paths:
            data = b"\x09" + path.read_bytes()[1:]
            path.unlink()
            kind, dash, _ = path.name.rpartition("-")
            (path.parent / (f"{kind}-{sha256(data).hexdigest()}" if dash else path.name)).write_bytes(data)
    with pytest.raises(UpgradeError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "pgrade metasync")


def test_a_ring_of_a_newer_format_that_one_backend_made_up(lab: Lab) -> None:
    from hashlib import sha256

    w = started(lab)
    keys = lab.objects("a", "keys")[0].parent
    junk = b"\x09" + os.urandom(300)
    for epoch in (1, 999):
        (keys / f"ring-{epoch}-{sha256(junk).hexdigest()}").write_bytes(junk)
    for name in (f"slot-{sha256(junk).hexdigest()}", f"slot-1-{sha256(junk).hexdigest()}"):
        (keys / name).write_bytes(junk)
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_newer_local_state(lab: Lab) -> None:
    w = started(lab)
    w.close()
    with sqlite3.connect(w.directory / ".metasync/state.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UpgradeError) as e:
        Workspace.open(w.directory)
    says(e.value, "state.db", "99", "pgrade metasync")
