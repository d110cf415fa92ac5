"""Backends that cannot be reached, or that are not the ones that were meant: what goes on without them."""

from __future__ import annotations

import os
import threading

import pytest
from bad_input_kit import poison_next, says, started
from workspace_kit import PASSPHRASE, Lab, run_cli, tree_of, write

from metasync.consensus import DEADLINE_S
from metasync.errors import MetaSyncError, NoQuorumError, UnreachableError, UsageError
from metasync.workspace import Workspace


def test_one_of_three_is_away(lab: Lab) -> None:
    w = started(lab)
    lab.faults["b"].down = True
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    r = w.push()
    assert r.version == 2
    assert r.under_replicated == 0
    assert "b" in r.down
    assert {b.name: b.state[:11] for b in w.status().backends} == {"a": "ok", "b": "unreachable", "c": "ok"}
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    lab.faults["b"].down = False
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"even more"})
    assert w.push().version == 4


def test_one_of_two_copies_has_no_place(lab: Lab) -> None:
    w = started(lab, replicas=3)
    lab.lose("c")
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    r = w.push()
    assert (r.version, r.under_replicated, list(r.down)) == (2, 1, ["c"])
    assert w.status().under_replicated == 1
    assert w.check().short == 2


def test_a_majority_away(lab: Lab) -> None:
    assert DEADLINE_S == 30  # the promise of exit code 5
    w = started(lab)
    lab.hurry()
    lab.faults["b"].down = lab.faults["c"].down = True
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    for act in (w.push, w.pull, w.check):
        with pytest.raises(NoQuorumError) as e:
            act()
        says(e.value, "2 of 3", "b: ", "c: ")
    s = w.status()
    assert s.newest is None
    assert isinstance(s.error, NoQuorumError)
    assert s.changes.added == (b"more.txt",)
    assert [i.version for i in w.log()] == [1]
    lab.faults["b"].down = lab.faults["c"].down = False
    lab.hurry(30)
    assert w.push().version == 2


def test_slow_backends_hold_a_command_up_no_longer_than_promised(lab: Lab) -> None:
    """It ends while they have not answered yet."""
    w = started(lab)
    lab.hurry()
    answer, answered = threading.Event(), []

    def slowly(_: float) -> None:
        assert answer.wait(60)
        answered.append(1)

    for n in "bc":
        lab.faults[n].slow_s, lab.faults[n]._sleep = 1.2, slowly
    with pytest.raises(NoQuorumError):
        w.push()
    assert answered == []
    answer.set()
    lab.faults["c"].slow_s = 0
    lab.hurry(30)
    write(w.directory, {"more.txt": b"more"})
    assert lab.reopen(w).push().version == 2


def test_the_state_of_all_backends_is_asked_for_at_once(lab: Lab) -> None:
    w = started(lab, "a", "b", "c", "d", "e")
    asked, all_asked = set(), threading.Event()

    def slowly(name: str) -> None:
        """No answer before all have been asked."""
        asked.add(name)
        if len(asked) == 5:
            all_asked.set()
        assert all_asked.wait(60)

    for name, fault in lab.faults.items():
        fault.slow_s, fault._sleep = 0.5, lambda _, name=name: slowly(name)  # type: ignore[misc]
    assert {b.state for b in w.backends()} == {"ok"}


def test_clone_goes_on_with_the_backends_that_answer(lab: Lab) -> None:
    started(lab)
    lab.lose("a")
    c = lab.clone(lab.urls("a", "b", "c"))
    write(c.directory, {"from-here": b"1"})
    assert c.push().version == 3
    states = {b.name: (b.linked, b.state[:11]) for b in c.backends()}
    assert states["b"] == states["c"] == (True, "ok")
    assert states["a"][1] != "ok"


def test_clone_with_no_backend_that_answers(lab: Lab) -> None:
    started(lab)
    with pytest.raises(MetaSyncError) as e:
        lab.clone([f"file://{lab.root}/nowhere/{n}" for n in "abc"])
    says(e.value, "none of the backends answers", "nowhere/a")
    assert e.value.next_step == "Mount it and repeat the command. Only init makes a folder that is missing."


def test_a_pack_on_backends_that_are_not_linked_is_not_damaged(lab: Lab) -> None:
    w = started(lab, replicas=1)
    for i in range(6):
        write(w.directory, {f"n{i}": os.urandom(100)})
        w.push()
    with pytest.raises(UnreachableError) as e:
        lab.clone(lab.urls("a"))
    is_left = (lab.root / "desktop").exists()  # by where the first pack is that it needs and has no way to
    says(e.value, "no way to", "backend link" if is_left else "--backend URL")


def test_clone_with_fewer_backends_than_a_quorum_is_read_only(lab: Lab) -> None:
    w = started(lab, replicas=3)
    before = tree_of(w.directory)
    write(w.directory, {"more.txt": b"perhaps not proven decided by one backend alone"})
    w.push()
    report = Workspace.clone(
        lab.root / "desktop", name="docs", backends=[lab.url("a")], passphrase=PASSPHRASE, device_name="desktop"
    )
    c = lab.keep(report.workspace)
    assert report.read_only
    assert "no quorum" in report.problem
    assert report.unlinked == ("b", "c")
    assert tree_of(c.directory) in (before, tree_of(w.directory))
    write(c.directory, {"mine.txt": b"mine"})
    with pytest.raises(NoQuorumError) as e:
        c.push()
    says(e.value, "b: ", "c: ", "link")
    c.link("b", lab.url("b"))
    assert c.push().version == 3
    assert w.pull().version == 3


def test_a_clone_that_cannot_know_whether_it_is_the_newest_says_so(lab: Lab) -> None:
    w = started(lab)
    before = tree_of(w.directory)
    write(w.directory, {"more.txt": b"more"})
    w.push()
    poison_next(lab, w, "b")
    lab.faults["c"].down = True
    lab.hurry()
    ran = run_cli("clone", str(lab.root / "desktop"), "--name", "docs", *lab.words("a", "b", "c"))
    assert ran.code == 5
    assert "There may be newer versions" in ran.out
    assert "b: entry 0 of version" in ran.out
    assert tree_of(lab.root / "desktop") in (before, tree_of(w.directory))
    lab.faults["c"].down = False
    lab.hurry(30)
    with Workspace.open(lab.root / "desktop") as c:
        c.link("c", lab.url("c"))
        assert c.pull().version == 2
        assert tree_of(c.directory) == tree_of(w.directory)


def test_links_to_the_wrong_place_are_refused(lab: Lab) -> None:
    w = started(lab)
    lab.store("x").mkdir()
    with pytest.raises(UsageError) as e:
        w.link("a", lab.url("b"))
    says(e.value, "'a'")
    with pytest.raises(UsageError):
        w.link("a", lab.url("x"))
    with pytest.raises(UsageError) as e:
        w.link("nobody", lab.url("a"))
    says(e.value, "a, b, c")
    assert w.link("a", lab.url("a")).state == "ok"


def test_a_store_that_was_moved_is_linked_again(lab: Lab) -> None:
    w = started(lab)
    lab.store("a").rename(lab.store("moved"))
    w = lab.reopen(w)
    assert w.link("a", lab.url("moved")).state == "ok"
    write(w.directory, {"more.txt": b"more"})
    assert not w.push().down
