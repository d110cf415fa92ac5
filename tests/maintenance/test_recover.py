"""A majority of the backends lost for good: whole workspaces are restarted, and nobody's files are lost."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.consensus import Group
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.participant import Outcome
from metasync.consensus.records.entry import Kind
from metasync.errors import (
    BackendError,
    ForkError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UnreachableError,
    UsageError,
)
from metasync.events import Notice
from metasync.local.state_keys import TREE_KEY
from metasync.runtime.effects import Sleep
from metasync.session.folder import ERA_KEY
from metasync.workspace import Workspace
from metasync.worktree.bases import BaseCache


def files(root: Path) -> dict[str, bytes]:
    return {p.decode(): node.data for p, node in tree_of(root).items() if node.kind == "file"}


def lose(lab: Lab, *names: str) -> None:
    """The stores are away: their folders are moved aside."""
    for name in names:
        lab.store(name).rename(lab.root / f"away-{name}")


def bring_back(lab: Lab, *names: str) -> None:
    for name in names:
        (lab.root / f"away-{name}").rename(lab.store(name))


def test_a_restart_on_the_one_that_is_left(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    lab.hurry()
    write(w.directory, {f"f{i}": b"%d" % i * 1000 for i in range(10)})
    w.push("one")
    write(w.directory, {f"g{i}": b"%d" % i * 1000 for i in range(10)})
    w.push("two")
    lose(lab, "b", "c")
    w = lab.reopen(w)
    report = w.recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert report.era == 1 and report.missing == ()
    assert w.check(read_data=True).lost == ()
    clone = lab.clone(lab.urls("a"))
    assert files(clone.directory) == files(w.directory)
    write(clone.directory, {"new": b"new"})
    clone.push("three")
    w.pull()
    assert files(clone.directory) == files(w.directory)


def test_a_list_of_what_is_kept_that_is_lost_stops_no_restart(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)
    lab.hurry()
    write(w.directory, {"f": b"1"})
    w.push()
    w.tag("1", "first")
    with w._session("test") as s:
        name = s.newest_state().retained.hash.hex()
    for path in lab.root.rglob(name):
        path.unlink()
    lose(lab, "b", "c")
    clone = lab.clone(lab.urls("a"), device="reader")
    report = clone.recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert report.era == 1
    assert [note for note in report.notes if "their names, cannot be read, and are forgotten" in note]
    assert clone.tags().tags == ()
    write(clone.directory, {"g": b"2"})
    assert clone.push().version


def two_devices(lab: Lab) -> tuple[Workspace, Workspace]:
    """Two devices at version 2 or so of a workspace on three backends."""
    one = lab.init(lab.urls("a", "b", "c"), replicas=3)
    lab.hurry()
    write(one.directory, {"both": b"first", "gone": b"to be deleted", "edited": b"line\n" * 10})
    one.push("one")
    other = lab.clone(lab.urls("a", "b", "c"))
    other.push("enrolled")
    one.pull()
    return one, other


def pushed_to_the_lost(lab: Lab, w: Workspace) -> None:
    """A push that the backend that will be left does not see."""
    lose(lab, "a")
    w = lab.reopen(w)
    write(w.directory, {"both": b"second", "only mine": b"mine", "edited": b"mine\n" + b"line\n" * 10})
    (w.directory / "gone").unlink()
    assert w.push("two").version
    w.close()
    bring_back(lab, "a")


@pytest.mark.few(1)
@pytest.mark.parametrize("back", [False, True])
def test_what_only_the_lost_held_comes_back_with_the_device_that_has_it(lab: Lab, back: bool) -> None:
    one, other = two_devices(lab)
    pushed_to_the_lost(lab, one)
    lose(lab, "b", "c")
    other = lab.reopen(other)
    report = other.recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert (report.era, report.carried) == (1, False)
    write(other.directory, {"edited": b"line\n" * 10 + b"yours\n", "only yours": b"yours"})
    other.push("in the new era")
    if back:
        bring_back(lab, "b", "c")
    told: list[str] = []
    one = lab.reopen(one)
    one.on_event = lambda e: told.append(e.text) if isinstance(e, Notice) else None
    one.status()  # hears all backends, not only the first that make a quorum
    one.sync()
    assert any("restarted as era 1 without b, c" in text for text in told)
    other.sync()
    assert files(one.directory) == files(other.directory)
    assert files(one.directory) | {"gone": b""} == {
        "both": b"second",
        "only mine": b"mine",
        "only yours": b"yours",
        "edited": b"mine\n" + b"line\n" * 10 + b"yours\n",
        "gone": b"",
    }
    for w in (one, other):
        assert w.status().problem == "" and w.check(read_data=True).lost == ()
        w.close()
    assert files(lab.clone(lab.urls("a"), device="third").directory) == files(one.directory)


def test_what_was_never_here_does_not_count_as_deleted_after_a_restart(lab: Lab) -> None:
    """The version that the folder left has it, as the one that the new era begins with has; the folder has no row."""
    one, other = two_devices(lab)
    with one._session("pull") as s, s.db.transaction():
        s.db.delete_rows([b"both"])
        s.db.set(TREE_KEY, None)
    (one.directory / "both").unlink()
    lose(lab, "a")
    one = lab.reopen(one)
    write(one.directory, {"only mine": b"mine"})
    assert one.push("two").version
    one.close()
    bring_back(lab, "a")
    lose(lab, "b", "c")
    other = lab.reopen(other)
    other.recover(["b", "c"], PASSPHRASE, confirm="docs")
    other.push("in the new era")
    one = lab.reopen(one)
    one.status()
    one.sync()
    other.sync()
    assert files(other.directory)["both"] == b"first"


def test_what_the_others_can_still_agree_is_no_loss(lab: Lab) -> None:
    one, _ = two_devices(lab)
    with pytest.raises(UsageError, match="make a quorum"):
        one.recover(["b"], PASSPHRASE, confirm="docs")
    with pytest.raises(UsageError, match="answer, which is a quorum"):
        one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    lose(lab, "a", "b")
    one = lab.reopen(one)
    with pytest.raises(NoQuorumError, match="a backend that is to be kept does not answer"):
        one.recover(["b", "c"], PASSPHRASE, confirm="docs")


def test_nothing_is_changed_before_it_is_sure(lab: Lab) -> None:
    one, _ = two_devices(lab)
    lose(lab, "b", "c")
    one = lab.reopen(one)
    before = {p: p.read_bytes() for p in lab.store("a").rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="its name 'docs'"):
        one.recover(["b", "c"], PASSPHRASE, confirm="Docs")
    with pytest.raises(PassphraseError):
        one.recover(["b", "c"], "a guess", confirm="docs")
    report = one.recover(["b", "c"], "", dry_run=True)
    assert (report.version, report.newest, report.lost_packs) == (None, one.status().version, 0)
    after = {p: p.read_bytes() for p in lab.store("a").rglob("*") if p.is_file()}
    assert {p for p in before if "/hint" not in str(p)} == {p for p in after if "/hint" not in str(p)}
    assert all(after[p] == data for p, data in before.items())
    bring_back(lab, "b", "c")
    assert lab.reopen(one).sync()[1].version is None


def test_the_recovery_phrase_serves_too(lab: Lab) -> None:
    made = Workspace.init(lab.root / "laptop", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE,
                          kdf=CHEAP)  # fmt: skip
    one = lab.keep(made.workspace)
    lab.hurry()
    write(one.directory, {"f": b"1"})
    one.push()
    lose(lab, "b", "c")
    assert lab.reopen(one).recover(["b", "c"], made.recovery_phrase, confirm="docs").era == 1


@pytest.mark.long
def test_data_that_no_copy_is_left_of_is_stored_anew_from_the_folder(lab: Lab) -> None:
    one = lab.init(lab.urls("a", "b", "c"), replicas=1)
    lab.hurry()
    for n in range(12):
        write(one.directory, {f"small {n}": b"%d" % n * 100, f"big {n}": os.urandom(400_000)})
        one.push()
    write(one.directory, {"changed here": b"old"})
    one.push()
    gone_before = os.urandom(3000)
    write(one.directory, {"changed here": gone_before})
    lose(lab, "b", "c")
    one = lab.reopen(one)
    report = one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert report.lost_packs and report.stored_again > 400_000
    assert set(report.missing) <= {b"changed here"}
    one.push()
    assert one.check(read_data=True).lost == ()
    assert files(lab.clone(lab.urls("a")).directory) == files(one.directory)


def test_what_moved_in_the_folder_is_given_back_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseCache, "keep", lambda *_, **__: None)
    one = lab.init(lab.urls("a", "b", "c"), replicas=1)
    lab.hurry()
    for n in range(12):
        write(one.directory, {f"f{n}": b"%d" % n * 100})
        one.push()
    for n in range(12):
        (one.directory / f"f{n}").rename(one.directory / f"moved {n}")
    lose(lab, "b", "c")
    report = lab.reopen(one).recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert report.stored_again and report.missing == ()
    assert files(lab.clone(lab.urls("a")).directory) == {f"f{n}": b"%d" % n * 100 for n in range(12)}


def test_a_pack_is_not_lost_because_a_store_was_busy(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is left answers 503 when it is asked for packs: nothing is dropped, and the next run goes on."""
    one = lab.init(lab.urls("a", "b", "c"), replicas=3)
    write(one.directory, {"kept": os.urandom(3000)})
    one.push(durability=3)
    (one.directory / "kept").unlink()
    one.push(durability=3)
    for name in "bc":
        lab.lose(name)
    one = lab.reopen(one)
    busy, stat = [True], FolderBackend.stat

    def answers(self: FolderBackend, path: str) -> int:
        if busy[0] and "/packs/" in path:
            raise BackendError("503: try again")
        return stat(self, path)

    monkeypatch.setattr(FolderBackend, "stat", answers)
    for dry_run in (True, False):
        with pytest.raises(NoQuorumError, match=r"a, which is to be kept, does not say which packs it holds \(503"):
            one.recover(["b", "c"], PASSPHRASE, confirm="docs", dry_run=dry_run)
    busy[0] = False
    report = lab.reopen(one).recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert (report.lost_packs, report.missing) == (0, ())


def test_nothing_is_retired_where_it_is_not_known_what_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that fails has cost no backend its vote: the others were not lost after all, and all goes on."""
    one, other = two_devices(lab)
    lose(lab, "b", "c")
    one, stat = lab.reopen(one), FolderBackend.stat

    def busy(self: FolderBackend, path: str) -> int:
        if "/packs/" in path:
            raise BackendError("503: try again")
        return stat(self, path)

    with monkeypatch.context() as while_busy:
        while_busy.setattr(FolderBackend, "stat", busy)
        with pytest.raises(NoQuorumError, match="does not say which packs it holds"):
            one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    bring_back(lab, "b", "c")
    write(other.directory, {"new": b"1"})
    assert other.push().version
    assert {b.name: b.condition for b in other.status().backends} == {"a": "ok", "b": "ok", "c": "ok"}
    one = lab.reopen(one)
    one.pull()
    assert files(one.directory) == files(other.directory)


def test_backends_can_be_added_afterwards(lab: Lab) -> None:
    one, _ = two_devices(lab)
    lose(lab, "b", "c")
    one = lab.reopen(one)
    one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    one.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    write(one.directory, {"more": b"more"})
    one.push()
    other = lab.keep(Workspace.open(lab.root / "desktop"))
    with pytest.raises(NoQuorumError, match="d: this device has no way to it"):
        other.sync()  # an era and another config behind
    other.link("d", lab.url("d"))
    other.sync()
    assert files(other.directory) == files(one.directory)
    assert [b.name for b in one.backends()] == ["a", "d"]


@pytest.mark.few(1)
@pytest.mark.parametrize("role", ["both", "storage"])
def test_a_backend_that_is_added_later_has_the_records_of_all_eras(lab: Lab, role: str) -> None:
    """Who reaches none of the backends of the restart finds the record on those that came since."""
    one, _ = two_devices(lab)
    lose(lab, "b", "c")
    one = lab.reopen(one)
    one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    one.backend_add(f"{lab.url('d')}&role={role}", passphrase=PASSPHRASE)
    found = [[p.read_bytes() for p in lab.store(name).rglob("eras/1")] for name in "ad"]
    assert len(found[0]) == 1 and found[0] == found[1]


@pytest.mark.long
def test_a_second_loss_is_another_era(lab: Lab) -> None:
    one, other = two_devices(lab)
    third = lab.clone(lab.urls("a", "b", "c"), device="third")
    write(third.directory, {"slept": b"over two eras"})
    lose(lab, "b", "c")
    one = lab.reopen(one)
    assert one.recover(["b", "c"], PASSPHRASE, confirm="docs").era == 1
    one.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    write(one.directory, {"in era 1": b"1"})
    one.push()
    lose(lab, "d")
    one = lab.reopen(one)
    report = one.recover(["d"], PASSPHRASE, confirm="docs")
    assert report.era == 2
    for w in (third, other):
        w = lab.reopen(w)
        w.sync()
        w.close()
    one.pull()
    assert files(one.directory) == files(third.directory) | {} and files(one.directory)["slept"] == b"over two eras"
    assert lab.reopen(other).pull() is not None
    assert files(other.directory) == files(one.directory)
    assert files(lab.clone(lab.urls("a"), device="fourth").directory) == files(one.directory)


@pytest.mark.long
def test_a_device_that_slept_over_new_keys_follows(lab: Lab) -> None:
    one, other = two_devices(lab)
    write(other.directory, {"slept": b"over new keys"})
    one.key_rotate(PASSPHRASE, kdf=CHEAP)
    one.push()
    lose(lab, "b", "c")
    one = lab.reopen(one)
    one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    other = lab.reopen(other)
    other.sync()
    one.pull()
    assert files(one.directory) == files(other.directory)


def test_a_revoked_device_does_not_come_back_by_it(lab: Lab) -> None:
    one, other = two_devices(lab)
    one.device_revoke(["desktop"], PASSPHRASE, kdf=CHEAP)
    lose(lab, "b", "c")
    one = lab.reopen(one)
    one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    write(other.directory, {"stolen": b"?"})
    with pytest.raises(MetaSyncError):
        lab.reopen(other).sync()
    assert one.pull().changes.added == ()
    assert {d.name: d.state for d in one.device_list().devices} == {"laptop": "admitted", "desktop": "revoked"}


@pytest.mark.long
def test_two_restarts_stop_whoever_sees_both(lab: Lab) -> None:
    one, other = two_devices(lab)
    third = lab.clone(lab.urls("a", "b", "c"), device="third")
    before = files(third.directory)
    lose(lab, "b", "c")
    lab.reopen(one).recover(["b", "c"], PASSPHRASE, confirm="docs")
    lose(lab, "a")
    bring_back(lab, "b")
    lab.reopen(other).recover(["a", "c"], PASSPHRASE, confirm="docs")
    bring_back(lab, "a")
    with pytest.raises(ForkError, match="restarted twice as era 1"):
        lab.reopen(third).pull()
    assert files(third.directory) == before
    with pytest.raises(ForkError, match="restarted twice as era 1"):
        lab.clone(lab.urls("a", "b"), device="fourth")


def cut(patch: pytest.MonkeyPatch, *names: str) -> None:
    """These take no ACCEPT any more."""
    real = LogAcceptor.append

    def append(self: LogAcceptor, kind: Kind, *rest: Any, **options: Any) -> Any:
        if kind is Kind.ACCEPT and self.name in names:
            yield Sleep(0.01)
            return Outcome("failed", "cut")
        return (yield from real(self, kind, *rest, **options))

    patch.setattr(LogAcceptor, "append", append)
    patch.setattr(Group.propose, "__kwdefaults__", {"op_id": None, "deadline_s": 1.0})


def test_an_interrupted_push_that_was_carried_is_found_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two_devices(lab)
    write(one.directory, {"unsure": b"unsure"})
    with monkeypatch.context() as patch:
        cut(patch, "b", "c")
        with pytest.raises(NoQuorumError):
            one.push("unsure")
    one.close()
    lose(lab, "b", "c")
    report = lab.reopen(other).recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert report.carried
    one = lab.keep(Workspace.open(one.directory))
    assert one.push().found_again == report.newest + 1
    other = lab.reopen(other)
    other.pull()
    assert files(one.directory) == files(other.directory) and files(one.directory)["unsure"] == b"unsure"


@pytest.mark.parametrize("part", [2, *(pytest.param(part, marks=pytest.mark.long) for part in (0, 1, 3))])
def test_cut_off_at_any_write_it_goes_on_when_run_again(lab: Lab, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """From its nth write on the backend that is left does not answer; then it does, and the same command is run again.

    A power cut is the same for what is on the backend; what the local state keeps is written in whole steps.
    """
    n, cut_off = part, True
    while cut_off:
        n += 4
        monkeypatch.setattr(Group.propose, "__kwdefaults__", {"op_id": None, "deadline_s": 30.0})
        left, *gone = (f"{name}{n}" for name in "abc")
        one = lab.init(lab.urls(left, *gone), replicas=3, device=f"laptop{n}", name=f"docs{n}")
        lab.hurry(1.5)
        write(one.directory, {"f": b"1"})
        one.push()
        other = lab.clone(lab.urls(left, *gone), device=f"desktop{n}", name=f"docs{n}")
        one.pull()
        lose(lab, left)
        one = lab.reopen(one)
        write(one.directory, {"only mine": b"mine"})
        one.push()
        one.close()
        bring_back(lab, left)
        lose(lab, *gone)
        other = lab.reopen(other)
        monkeypatch.setattr(Group.propose, "__kwdefaults__", {"op_id": None, "deadline_s": 0.5})
        cut_off = recover_until(n, other, gone, monkeypatch)
        monkeypatch.setattr(Group.propose, "__kwdefaults__", {"op_id": None, "deadline_s": 30.0})
        other = lab.reopen(other)
        with contextlib.suppress(NoQuorumError):
            other.pull()
        if other._db.get(ERA_KEY) is None:
            assert other.recover(gone, PASSPHRASE, confirm=f"docs{n}").era == 1
        for w in (other, one := lab.reopen(one), other):
            w.sync()
        assert files(one.directory) == files(other.directory) and files(other.directory)["only mine"] == b"mine"
        assert len(list(lab.store(left).rglob("eras/1"))) == 1
        assert other.check().lost == ()
        for w in (one, other):
            w.close()
    assert n >= 13


def test_a_restart_that_was_begun_is_given_up_when_the_lost_are_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two_devices(lab)
    lose(lab, "b", "c")
    one = lab.reopen(one)
    assert recover_until(4, one, ["b", "c"], monkeypatch, name="docs")
    bring_back(lab, "b", "c")
    one = lab.reopen(one)
    with pytest.raises(UsageError, match="b, c answer, which is a quorum of 2"):
        one.recover(["b", "c"], PASSPHRASE, confirm="docs")
    write(one.directory, {"goes on": b"in the old era"})
    assert one.push().version
    other = lab.reopen(other)
    other.pull()
    assert files(other.directory) == files(one.directory)


def recover_until(n: int, w: Workspace, gone: list[str], monkeypatch: pytest.MonkeyPatch, name: str = "") -> bool:
    """Recovers, with no answer from the nth write on. -> whether it came to that."""
    writes = 0

    def dying(real: Any) -> Any:
        def call(self: Any, *args: Any, **more: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes >= n:
                raise UnreachableError("the line is dead")
            return real(self, *args, **more)

        return call

    with monkeypatch.context() as patch:
        for verb in ("put", "create"):
            patch.setattr(FolderBackend, verb, dying(getattr(FolderBackend, verb)))
        with contextlib.suppress(MetaSyncError):
            w.recover(gone, PASSPHRASE, confirm=name or f"docs{n}")
    return writes >= n


def test_a_record_of_an_era_that_is_missing_is_brought_and_told(lab: Lab) -> None:
    """Without it on any backend a new device would begin with what was before the restart."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"one": b"1"})
    w.push()
    lose(lab, "b", "c")
    w.recover(["b", "c"], PASSPHRASE, confirm="docs")
    for name in "de":
        w.backend_add(lab.url(name), passphrase=PASSPHRASE)
    w.rebalance()
    paths = {name: next(lab.store(name).rglob("eras/1")) for name in "ade"}
    for name, path in paths.items():
        path.unlink()
        report = w.check()
        assert report.notes == (f"{name}: brought what was missing there: record of era 1",)
        assert (report.meta_problems, w.check().notes) == ((), ())
    for path in paths.values():
        path.unlink()
    told = {(p.backend, p.problem) for p in w.check(repair=True).meta_problems}
    assert told == {(name, "record of era 1 is missing") for name in "ade"}
    drilled = w.drill(["e"])
    assert (drilled.agrees, drilled.joins) == (True, False)
