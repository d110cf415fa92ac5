"""What backends and networks do to agreement, one case after the other, on whole workspaces: work goes on, nothing is
agreed twice, and whoever is to blame is named by `status` (the table is in docs/design/consensus.md).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, flip, tree_of, wipe, write

from metasync.checkout import trash as replaced_module
from metasync.consensus import State
from metasync.errors import NoQuorumError
from metasync.events import Notice
from metasync.session import agreement
from metasync.session.session import Session
from metasync.sync.push import _Push
from metasync.testing.faults import Fault, Plan
from metasync.workspace import Workspace
from metasync.worktree.index import load_rows

NAMES = ("a", "b", "c")


def started(lab: Lab, kind: Literal["file", "memory"] = "file", names: tuple[str, ...] = NAMES) -> Workspace:
    """A workspace at version 2."""
    w = lab.init(lab.urls(*names, kind=kind))
    for n in (1, 2):
        write(w.directory, {f"file{n}": os.urandom(2000)})
        assert w.push().version == n
    return w


def states(w: Workspace) -> dict[str, str]:
    return {b.name: b.state for b in w.status().backends}


def blamed(w: Workspace) -> set[str]:
    return {name for name, state in states(w).items() if state != "ok"}


def pushes(w: Workspace, name: str = "more") -> int:
    write(w.directory, {name: os.urandom(100)})
    version = w.push().version
    assert version is not None
    return version


# The network.


@pytest.mark.few(4)
@pytest.mark.parametrize("where", ["all", "a", "b"])
@pytest.mark.parametrize("fault", ["lost_reply", "lost_request", "late", "duplicate", "unreachable"])
def test_what_happens_to_a_log_entry_on_its_way(lab: Lab, fault: Fault, where: str) -> None:
    """Once each, or everywhere at once: the push is agreed, once, and others see it."""
    w = lab.reopen(started(lab, "memory"))
    write(w.directory, {"more": b"more"})
    w.status()  # connects
    for name in NAMES if where == "all" else (where,):
        lab.faults[name].fail_next(fault, kind="create", times=2)
    w.push()
    for name in NAMES:
        lab.faults[name].land()
    again = lab.reopen(w)
    write(again.directory, {"and": b"more"})
    again.push()
    assert [item.version for item in again.log()] == [4, 3, 2, 1]
    other = lab.clone(lab.urls(*NAMES, kind="memory"))
    assert tree_of(other.directory) == tree_of(again.directory)


@pytest.mark.parametrize("fault", ["lost_reply", "late"])
def test_an_outcome_that_nobody_heard_of(lab: Lab, fault: Fault) -> None:
    """No reply at all to what would have agreed it: told as unknown, found out by the next push, never agreed twice."""
    w = started(lab, "memory")
    lab.hurry(2.0, proposing=True)
    write(w.directory, {"more": b"more"})
    for name in NAMES:
        lab.faults[name].plan = Plan(1, {fault: 1.0}, lambda path: "/px/" in path)
    with pytest.raises(NoQuorumError, match="may be committed"):
        w.push()
    for name in NAMES:
        lab.faults[name].plan = None
        lab.faults[name].land()
    lab.hurry(30.0, proposing=True)
    w = lab.reopen(w)
    report = w.push()
    assert (report.version, report.found_again) == (None, 3)
    assert [item.version for item in w.log()] == [3, 2, 1]


def test_a_minority_that_hangs_is_not_waited_for(lab: Lab) -> None:
    w = started(lab, "memory")
    lab.faults["c"].hanging = True
    try:
        assert pushes(w) == 3
        assert pushes(w) == 4
        assert blamed(w) == {"c"}
    finally:
        lab.faults["c"].release()


def test_a_full_backend_counts_as_down(lab: Lab) -> None:
    w = lab.reopen(started(lab, "memory"))
    w.status()
    lab.faults["c"].full_over_bytes = 0
    assert [pushes(w, f"f{n}") for n in range(3)] == [3, 4, 5]
    lab.faults["c"].full_over_bytes = None
    assert pushes(w) == 6


# Stores that forget.


def test_a_backend_that_missed_versions_is_simply_behind(lab: Lab) -> None:
    w = started(lab)
    away = lab.store("b").rename(lab.root / "away")
    assert [pushes(lab.reopen(w), f"f{n}") for n in range(3)] == [3, 4, 5]
    away.rename(lab.store("b"))
    w = lab.reopen(w)
    assert blamed(w) == set()
    lab.store("a").rename(lab.root / "away")  # now it takes the one that missed them to agree
    w = lab.reopen(w)
    assert pushes(w) == 6
    assert blamed(w) == {"a"}


@pytest.mark.few(1)
@pytest.mark.parametrize("replacement", ["b", "elsewhere"])
def test_a_wiped_backend_is_named_and_can_be_replaced(lab: Lab, replacement: str) -> None:
    """In one step, in the same place or in another: it is another acceptor in any case."""
    w = started(lab)
    wipe(lab.store("b"))
    w = lab.reopen(w)
    assert blamed(w) == {"b"}
    assert "emptied or replaced" in states(w)["b"]
    assert pushes(w) == 3
    w.backend_add(f"file://{lab.store(replacement)}?name=new", replaces="b")
    assert blamed(w) == set()
    before = pushes(w, "z")
    wipe(lab.store("a"))  # it counts: without the new one there is no quorum
    lab.store("a").rmdir()
    assert pushes(lab.reopen(w), "zz") == before + 1


def test_a_backend_restored_from_a_backup_is_named_for_good(lab: Lab) -> None:
    """It lacks an entry that this device saw there. What it did stays noted after it is as it was again."""
    w = started(lab)
    shutil.copytree(lab.store("b"), lab.root / "backup")
    w = lab.reopen(w)  # a process of its own prepares first, and so sees what each of them holds
    assert pushes(w) == 3
    w.close()
    shutil.copytree(lab.store("b"), lab.root / "newest")
    restore(lab.root / "backup", lab.store("b"))
    w = lab.keep(Workspace.open(w.directory))
    assert pushes(w) == 4, "the other two agree"
    assert "rolled back" in states(w)["b"]
    told = w.status().evidence
    assert [(e.backend, e.what.split(" of ")[1]) for e in told] == [("b", "version 3 is gone")]
    shown = lab.cli("backend", "list").out
    assert "b: distrusted: " in shown and "metasync backend link b URL" in shown, "a list asks no log, and knows it"
    restore(lab.root / "newest", lab.store("b"))
    w = lab.reopen(w)
    assert [e.backend for e in w.status().evidence] == ["b"]
    assert "b is not to be trusted" in lab.cli("status").out
    w.backend_add(lab.url("d"), replaces="b")
    assert w.status().evidence == ()
    assert "distrusted" not in lab.cli("backend", "list").out


def restore(backup: Path, store: Path) -> None:
    """Puts what a store held back into the same folder."""
    wipe(store)
    shutil.copytree(backup, store, dirs_exist_ok=True)


def test_a_majority_restored_from_backups_is_refused(lab: Lab) -> None:
    w = started(lab)
    for name in ("a", "b"):
        shutil.copytree(lab.store(name), lab.root / f"backup-{name}")
    w = lab.reopen(w)
    assert pushes(w) == 3
    before = tree_of(w.directory)
    w.close()
    for name in ("a", "b"):
        restore(lab.root / f"backup-{name}", lab.store(name))
    lab.hurry(2.0)
    done = lab.cli("pull")
    assert done.code == 1, done
    assert "older past" in done.err
    assert "a: " in done.err
    assert "b: " in done.err
    assert tree_of(w.directory) == before


def test_an_entry_lost_in_the_middle(lab: Lab) -> None:
    """The last one that this device saw there is gone: whether by a disk or a hand, the store has forgotten it."""
    w = lab.reopen(started(lab))
    before = set(lab.objects("c", "px"))
    assert pushes(w, "x") == 3  # of a process of its own: its PREPARE is seen to stand everywhere
    w.close()
    for path in set(lab.objects("c", "px")) - before:
        path.unlink()
    w = lab.keep(Workspace.open(w.directory))
    assert pushes(w, "y") == 4
    assert blamed(w) == {"c"}
    assert {e.backend for e in w.status().evidence} == {"c"}


def test_an_altered_entry_poisons_its_log_and_no_other(lab: Lab) -> None:
    w = lab.reopen(started(lab))
    fresh = lab.clone(lab.urls(*NAMES))
    assert pushes(w) == 4
    for path in lab.objects("b", "px"):
        flip(path)
    fresh = lab.reopen(fresh)
    fresh.pull()
    assert tree_of(fresh.directory) == tree_of(w.directory)
    assert blamed(fresh) <= {"b"}
    assert pushes(fresh, "y") == 5


def test_a_copy_mounted_in_its_place_is_not_the_backend(lab: Lab) -> None:
    """It has the right birth; what makes it another store is the file system's own identity."""
    w = started(lab)
    shutil.copytree(lab.store("b"), lab.root / "copy")
    lab.lose("b")
    (lab.root / "copy").rename(lab.store("b"))
    w = lab.reopen(w)
    assert pushes(w) == 3
    assert blamed(w) == {"b"}
    assert "not the store that was linked" in states(w)["b"]
    assert "metasync backend link b URL" in states(w)["b"]
    told: list[str] = []
    w.on_event = lambda event: told.append(event.text) if isinstance(event, Notice) and event.warning else None
    assert set(w.gc().away) == {"b"}
    assert [text for text in told if text.startswith("b: what is at ")] and not any("b: b: " in text for text in told)
    w.link("b", f"file://{lab.store('b')}")  # the user says it is right
    assert blamed(lab.reopen(w)) == set()


def test_a_store_given_twice_is_one_store(lab: Lab) -> None:
    """A second way to one backend in the place of another does not vote for it."""
    w = started(lab)
    lab.lose("c")
    lab.store("c").symlink_to(lab.store("b"))
    w = lab.reopen(w)
    assert pushes(w) == 3
    assert blamed(w) == {"c"}


def test_what_is_deleted_while_a_push_is_in_doubt_was_deleted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push was agreed and its answer lost; the file it brought is deleted; a second push scans, and fails."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"kept": b"1"})
    w.push()
    d = lab.clone(urls)
    w.pull()  # its own push is the next version then, and not the clone's joining
    write(w.directory, {"doubtful": b"2"})
    propose = agreement.propose

    def unheard(self: Session, *change: Any) -> Any:
        assert propose(self, *change).mine
        raise NoQuorumError("the answer was lost")

    def unsent(self: Session, *change: Any) -> Any:
        raise NoQuorumError("nobody is there")

    with monkeypatch.context() as m:
        m.setattr(agreement, "propose", unheard)
        with pytest.raises(NoQuorumError):
            w.push()
    (Path(w.directory) / "doubtful").unlink()
    with monkeypatch.context() as m:
        m.setattr(agreement, "propose", unsent)
        m.setattr(agreement, "settle_journal", lambda self, latest=None: None)
        m.setattr(agreement, "newest_or_own", lambda self: (self.base(), True))
        write(w.directory, {"kept": b"3"})
        with pytest.raises(NoQuorumError):
            w.push()
    assert b"doubtful" in load_rows(w._db), "else nothing tells that it was deleted here"
    w.sync()
    d.pull()
    assert set(tree_of(d.directory)) == set(tree_of(w.directory)) == {b"kept"}


def in_doubt(lab: Lab) -> tuple[Workspace, Workspace]:
    """Two devices at version 2; the first one's push of version 3 was agreed, it did not hear of it, and wrote on."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"f.txt": b"one\n"})
    w.push()
    d = lab.clone(urls)
    w.pull()
    write(w.directory, {"f.txt": b"pushed\none\n"})
    propose = agreement.propose

    def unheard(self: Session, *change: Any) -> Any:
        assert propose(self, *change).mine
        raise NoQuorumError("the answer was lost")

    with pytest.MonkeyPatch.context() as m:
        m.setattr(agreement, "propose", unheard)
        m.setattr(agreement, "remember", lambda *_, **__: None)
        with pytest.raises(NoQuorumError):
            w.push()
    w = lab.reopen(w)
    write(w.directory, {"f.txt": b"later\npushed\none\n"})
    return w, d


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ["keys", "backends"])
def test_a_change_that_comes_upon_an_own_push_in_doubt(lab: Lab, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A first look still finds the push open, the next one that it was agreed: what follows stands on it."""
    w, d = in_doubt(lab)
    settle = agreement.settle_journal
    looks: list[Session] = []

    def open_at_first(self: Session, latest: State | None = None) -> int | None:
        looks.append(self)
        return settle(self, latest) if len(looks) > 1 else None

    with monkeypatch.context() as m:
        m.setattr(agreement, "settle_journal", open_at_first)
        if change == "keys":
            w.key_rotate(PASSPHRASE, kdf=CHEAP)
        else:
            w.backend_set("a", new_name="one")
    w = lab.reopen(w)
    report = w.push()
    assert report.version is not None
    assert report.pulled is None
    assert w.conflicts() == ()
    d.pull()
    assert tree_of(d.directory)[b"f.txt"].data == b"later\npushed\none\n"


def test_a_pull_that_hears_of_its_own_push_only_as_it_looks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a first look misses, the next one brings: it is still this device's own push, and no side of a conflict."""
    w, d = in_doubt(lab)
    look = agreement.ask_newest
    looks: list[Session] = []

    def late(self: Session, **more: Any) -> Any:
        looks.append(self)
        return self.newest_state() if len(looks) == 1 else look(self, **more)

    monkeypatch.setattr(agreement, "ask_newest", late)
    for _ in range(2):
        assert w.pull().conflicts == ()
    assert w.push().version == 4
    d.pull()
    assert {n.data for n in tree_of(w.directory).values()} == {b"later\npushed\none\n"}
    assert tree_of(d.directory) == tree_of(w.directory)


def test_a_push_that_finds_its_own_push_below_another_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open when it began; then another device has it agreed and pushes on top, before this one looks."""
    w, d = in_doubt(lab)
    write(d.directory, {"other": b"other"})
    assert d.sync()[1].version == 4
    monkeypatch.setattr(agreement, "settle_journal", lambda self, latest=None: None)
    report = w.push()
    assert (report.found_again, report.version) == (3, 5)
    assert report.pulled is not None
    assert report.pulled.conflicts == ()
    d.pull()
    assert {n.data for n in tree_of(w.directory).values()} == {b"later\npushed\none\n", b"other"}
    assert tree_of(d.directory) == tree_of(w.directory)


def test_what_was_packed_and_never_agreed_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push packs a file, loses the race, and has its copy gone when it tries again: the index names it, no tree."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"f": b"first"})
    w.push()
    d = lab.clone(urls)
    w.pull()
    write(d.directory, {"f": b"theirs"})
    write(w.directory, {"f": b"ours", "more": b"more"})
    attempt, propose = _Push.attempt, agreement.propose
    tries: list[str] = []

    def raced(self: _Push, base: Any) -> Any:
        if self.s.tree.root == os.fsencode(w.directory):
            tries.append("a try")
            if len(tries) == 2:
                (Path(w.directory) / "f.conflict-laptop-20261122").unlink()
        return attempt(self, base)

    def late(self: Session, *change: Any) -> Any:
        monkeypatch.setattr(agreement, "propose", propose)
        d.push()
        return propose(self, *change)

    monkeypatch.setattr(_Push, "attempt", raced)
    monkeypatch.setattr(agreement, "propose", late)
    w.push()
    assert len(tries) == 2
    replaced = Path(w.directory) / ".metasync" / "replaced"
    assert b"ours" in {p.read_bytes() for p in replaced.iterdir()}
    monkeypatch.setattr(replaced_module, "QUIET_NS", -(10**12))
    w.pull()
    left = {p.read_bytes() for p in replaced.iterdir()}
    assert b"ours" in left
    assert b"first" not in left
