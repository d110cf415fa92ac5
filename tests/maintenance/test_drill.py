"""A drill finds what would be lost without some backends, asks those nothing, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workspace_kit import PASSPHRASE, Lab, flip, write

from metasync.errors import UsageError
from metasync.local.state_keys import AWAY_KEY
from metasync.workspace import Workspace


def some(lab: Lab, *names: str, copies: int = 2, pushes: int = 4) -> Workspace:
    """A workspace with a few packs, all copies of which are there."""
    w = lab.init(lab.urls(*names), replicas=copies)
    for n in range(pushes):
        write(w.directory, {f"file{n}": f"{n} ".encode() * 700})
        w.push(f"push {n}")
    return w


def held(lab: Lab) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in sorted((lab.root / "stores").rglob("*")) if p.is_file()}


def test_with_two_copies_any_one_may_go(lab: Lab) -> None:
    w = some(lab, "a", "b", "c")
    for name in "abc":
        r = w.drill([name])
        assert (r.is_passed, r.agrees, r.joins, r.lost, r.problems) == (True, True, True, (), ())
        assert (r.voting, r.quorum, r.version, sum(r.by_copies[1:])) == (2, 2, 4, sum(r.by_copies))


def test_without_too_many_it_says_which_files_of_which_versions_would_be_lost(lab: Lab) -> None:
    w = some(lab, "a", "b", "c", pushes=8)
    write(w.directory, {"file0": b"another"})
    w.push("file0 again")
    while not {p.name for p in lab.objects("a", "packs")} & {p.name for p in lab.objects("b", "packs")}:
        write(w.directory, {"file0": os.urandom(100)})  # where a pack lies is drawn
        w.push("again")
    r = w.drill(["a", "b"])
    assert (r.agrees, r.joins, r.voting) == (False, False, 1)
    only = {p.name for p in lab.objects("a", "packs")} - {p.name for p in lab.objects("c", "packs")}
    assert {name.hex() for name in r.lost} == only
    assert r.lost
    assert r.lost_bytes == sum(p.stat().st_size for p in lab.objects("a", "packs") if p.name in only)
    lab.lose("a")
    lab.lose("b")
    fresh = w.drill(["a", "b"])  # what it told was true: with these lost, the same packs are
    assert fresh.lost == r.lost


def test_lost_files_are_named_with_their_versions(lab: Lab) -> None:
    """With one copy of everything, what a backend holds goes with it; the directories are read where they are, and
    named where a version would lose them."""
    w = some(lab, "a", "b", copies=1, pushes=8)
    write(w.directory, {f"file{n}": b"another %d" % n for n in range(8)})
    w.push("all again")
    gone = {n: w.drill([n]).gone for n in "ab"}
    named = {n: {(g.path, g.first, g.last) for g in gone[n] if g.path != b"/"} for n in "ab"}
    every = {(f"file{n}".encode(), n + 1, 8) for n in range(8)} | {(f"file{n}".encode(), 9, 9) for n in range(8)}
    assert named["a"] | named["b"] == every
    assert not named["a"] & named["b"]
    roots = [v for n in "ab" for g in gone[n] if g.path == b"/" for v in range(g.first, g.last + 1)]
    assert sorted(roots) == [*range(1, 10)]


def test_it_asks_those_nothing_and_changes_nothing(lab: Lab) -> None:
    w = lab.reopen(some(lab, "a", "b", "c"))
    counted = lab.counts["c"]
    counted.take()
    before = held(lab)
    w.drill(["c"])
    assert lab.counts["c"] is counted, "it was not even opened"
    assert not counted.take().requests
    assert held(lab) == before
    with w._session("test") as s:
        assert s.db.get(AWAY_KEY) is None
    assert w.push("").version is None
    assert lab.counts["c"].take().requests, "afterwards it is asked again"


def test_a_dead_one_costs_no_time_and_one_that_is_left_and_away_is_a_problem(lab: Lab) -> None:
    w = some(lab, "a", "b", "c", "d")
    lab.faults["a"].down = True
    assert w.drill(["a"]).is_passed
    r = w.drill(["b"])
    assert not r.is_passed
    assert [p.backend for p in r.problems] == ["a"]


def test_a_copy_that_is_altered_does_not_count_when_it_is_read(lab: Lab) -> None:
    w = some(lab, "a", "b")
    one = lab.objects("a", "packs")[0]
    flip(one)
    assert [name.hex() for name in w.drill(["b"], read_data=True).lost] == [one.name]


def test_what_lies_beside_the_logs_and_the_keys_are_looked_for(lab: Lab) -> None:
    """A store that lost its keyrings and configs is no way in any more, though packs and votes are there."""
    w = some(lab, "a", "b", "c")
    for name in "ab":
        for part in ("keys", "meta", "const"):
            for path in lab.objects(name, part):
                path.unlink()
    r = w.drill(["c"])
    told = [p.problem for p in r.problems]
    assert not r.joins
    assert not r.is_passed
    assert any("config" in text for text in told), told
    assert any("keyring" in text for text in told), told
    assert not lab.objects("a", "keys"), "it brings nothing"


def test_the_genesis_is_looked_for(lab: Lab) -> None:
    w = some(lab, "a", "b", "c")
    for name in "ab":
        (path,) = lab.store(name).rglob("genesis")
        path.unlink()
    r = w.drill(["c"])
    assert [p.problem for p in r.problems] == ["the genesis: on no backend that is left"]
    assert (r.joins, r.is_passed) == (False, False)
    assert not list(lab.store("a").rglob("genesis")), "it brings nothing"
    assert w.drill(["a"]).is_passed, "one is enough"


def test_names(lab: Lab) -> None:
    w = some(lab, "a", "b", pushes=0)
    for names in (["x"], [], ["a", "b"]):
        with pytest.raises(UsageError):
            w.drill(names)


def test_a_removed_one_that_is_still_read_can_be_named(lab: Lab) -> None:
    w = some(lab, "a", "b", "c", "d", pushes=6)
    for n in range(100):
        if lab.objects("a", "packs"):  # else there is nothing to be read from it
            break
        write(w.directory, {f"more{n}": b"%d" % n})
        w.push()
    w.backend_remove("a", passphrase=PASSPHRASE)
    assert w.drill(["a"]).is_passed, "the removal was agreed because all else is elsewhere"


def test_the_command(lab: Lab) -> None:
    w = some(lab, "a", "b", "c")
    w.close()
    ran = lab.cli("drill", "--without", "a")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "All could go on without a.")
    ran = lab.cli("drill", "--without", "a", "--without", "b", "--json")
    assert ran.code in (4, 7)
    assert ran.json["agrees"] is False
    ran = lab.cli("drill", "--without", "a", "--without", "b")
    assert "metasync recover --without a --without b" in ran.out
    assert lab.cli("drill", "--without", "x").code == 2
