"""Once the backends of the beginning are gone, a new device begins with a hint: lost ones are told and put back."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace_kit import PASSPHRASE, Lab, flip, write

from metasync.errors import NoQuorumError
from metasync.session import genesis
from metasync.workspace import Workspace

NEW = ("d", "e", "f")


def hints(lab: Lab) -> list[Path]:
    return [path for name in NEW for path in sorted(lab.store(name).rglob("hint"))]


def delete_hints(lab: Lab, *names: str) -> None:
    for name in names:
        for path in lab.store(name).rglob("hint"):
            path.unlink()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine loses no hint that is waited for."""
    monkeypatch.setattr("metasync.consensus.hints.WAIT_S", 60.0)


@pytest.fixture
def moved(lab: Lab) -> Workspace:
    """A workspace whose three backends were all replaced by others, and are gone."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"1"})
    w.push()
    for old, new in zip("abc", NEW, strict=True):
        w.backend_add(lab.url(new), replaces=old, passphrase=PASSPHRASE)
        w.rebalance()
        lab.lose(old)
    w = lab.reopen(w)  # nothing is under way any more
    assert len(hints(lab)) == 3
    return w


def test_lost_hints_are_told_and_put_back(moved: Workspace, lab: Lab) -> None:
    assert moved.check().notes == ()
    assert moved.drill(["d"]).joins
    delete_hints(lab, *NEW)
    drilled = moved.drill(["d"])
    assert (drilled.agrees, drilled.joins, drilled.is_passed) == (True, False, False)
    assert [p.problem for p in drilled.problems] == [
        "the hint of which backends there are today: on no backend that is left"
    ]
    assert not hints(lab), "it brings nothing"
    report = moved.check()
    assert report.meta_problems == ()
    assert report.notes == tuple(f"{name}: brought what was missing there: hint" for name in NEW)
    assert len(hints(lab)) == 3
    assert moved.check().notes == ()
    assert moved.drill(["d"]).is_passed
    assert (Path(lab.clone(lab.urls(*NEW)).directory) / "x").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("replaced", "added", "without", "joins"),
    [
        ("", "d", "d", True),  # all that the genesis names are left
        ("", "de", "d", False),  # the genesis does not name e: a new device finds no way to it
        ("", "", "a", True),
        ("a", "", "a", True),
        ("a", "", "b", False),  # of the genesis' backends one alone
        ("a", "d", "b", False),
    ],
)
def test_no_hint_is_missed_where_the_backends_of_the_beginning_lead_on(
    lab: Lab, replaced: str, added: str, without: str, joins: bool
) -> None:
    """Where the drill says so, a clone from the backends that are left works."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"1"})
    w.push()
    for old in replaced:
        w.backend_add(lab.url(f"new-{old}"), replaces=old, passphrase=PASSPHRASE)
        w.rebalance()
        lab.lose(old)
    for name in added:
        w.backend_add(lab.url(name), passphrase=PASSPHRASE)
        w.rebalance()
    w = lab.reopen(w)
    names = sorted(w._connections.agreed_names)
    delete_hints(lab, *names)
    gone = [f"new-{name}" if name in replaced else name for name in without]
    drilled = w.drill(gone)
    assert drilled.agrees
    assert (drilled.joins, [p.problem for p in drilled.problems] == []) == (joins, joins)
    if joins:
        clone = lab.clone(lab.urls(*(name for name in names if name not in gone)), device="new")
        assert (Path(clone.directory) / "x").exists()
        assert clone.status().version >= w.status().version


def test_one_lost_hint_is_put_back_without_a_word(moved: Workspace, lab: Lab) -> None:
    delete_hints(lab, "e")
    assert moved.drill(["d"]).joins, "one is enough"
    assert (moved.check().notes, len(hints(lab))) == ((), 3)


def test_an_altered_hint_is_told_and_stored_anew_by_a_repair(moved: Workspace, lab: Lab) -> None:
    flip(next(lab.store("e").rglob("hint")))
    report = moved.check()
    assert [(p.backend, p.problem) for p in report.meta_problems] == [("e", "hint is altered")]
    report = moved.check(repair=True)
    assert (report.meta_problems, report.notes) == ((), ("e: stored anew what was altered there: hint",))
    delete_hints(lab, "d", "f")
    assert (Path(lab.clone(lab.urls(*NEW)).directory) / "x").read_bytes() == b"1"


def test_a_hint_of_backends_before_counts_as_missing(lab: Lab) -> None:
    w = lab.init(lab.urls(*NEW))
    write(w.directory, {"x": b"1"})
    w.push()
    w.check()
    w = lab.reopen(w)
    assert len(hints(lab)) == 3
    before = {path: path.read_bytes() for path in hints(lab)}
    w.backend_add(lab.url("g"), passphrase=PASSPHRASE)
    for path in lab.store("g").rglob("hint"):
        path.unlink()
    for path, data in before.items():
        path.write_bytes(data)
    assert w.drill(["g"]).joins, "those of the beginning are all there, and lead on"
    assert len(w.check().notes) == 4
    assert w.drill(["g"]).joins


def test_hints_that_cannot_be_stored_are_told(moved: Workspace, lab: Lab) -> None:
    delete_hints(lab, *NEW)
    for name in NEW:
        lab.faults[name].read_only = True
    told = {(p.backend, p.problem) for p in moved.check().meta_problems}
    assert told == {(name, "hint is missing") for name in NEW}


def test_where_the_beginning_is_of_today_nothing_is_told(lab: Lab) -> None:
    w = lab.init(lab.urls(*NEW))
    assert (w.check().notes, hints(lab)) == ((), []), "version 0 is the genesis"
    write(w.directory, {"x": b"1"})
    w.push()
    w = lab.reopen(w)
    delete_hints(lab, *NEW)
    assert w.drill(["d"]).joins
    assert (w.check().notes, len(hints(lab))) == ((), 3)


def test_a_clone_that_finds_no_way_to_the_newer_versions_ends_with_an_error(moved: Workspace, lab: Lab) -> None:
    kept = {path: path.read_bytes() for path in hints(lab)}
    delete_hints(lab, *NEW)
    with pytest.raises(NoQuorumError, match="no quorum of 2 of 3 backends") as e:
        lab.clone(lab.urls(*NEW))
    assert "metasync check" in str(e.value.next_step)
    assert not (lab.root / "desktop").exists()
    for path, data in kept.items():
        path.write_bytes(data)
    assert (Path(lab.clone(lab.urls(*NEW)).directory) / "x").read_bytes() == b"1"


def test_a_merge_that_finds_no_way_to_the_newer_versions_leaves_nothing_either(moved: Workspace, lab: Lab) -> None:
    kept = {path: path.read_bytes() for path in hints(lab)}
    delete_hints(lab, *NEW)
    write(lab.root / "desktop", {"mine": b"2"})
    with pytest.raises(NoQuorumError):
        lab.clone(lab.urls(*NEW), merge=True)
    assert [p.name for p in (lab.root / "desktop").iterdir()] == ["mine"]
    for path, data in kept.items():
        path.write_bytes(data)
    there = Path(lab.clone(lab.urls(*NEW), merge=True).directory)
    assert ((there / "x").read_bytes(), (there / "mine").read_bytes()) == (b"1", b"2")


def test_an_empty_workspace_is_cloned_by_a_quorum_alone(lab: Lab) -> None:
    lab.init(lab.urls(*NEW))
    lab.clone(lab.urls("d", "e"))
    with pytest.raises(NoQuorumError):
        lab.clone(lab.urls("f"), device="third")
    assert not (lab.root / "third").exists()


def test_an_older_version_is_better_than_none(lab: Lab) -> None:
    w = lab.init(lab.urls(*NEW), replicas=3)
    for n in (1, 2):
        write(w.directory, {"x": b"%d" % n})
        w.push()
    lab.reopen(w)
    delete_hints(lab, *NEW)
    there = Path(lab.clone(lab.urls("d")).directory)
    assert (there / "x").read_bytes() == b"1"


def test_what_it_is_made_of_judges_as_a_clone_does(moved: Workspace, lab: Lab) -> None:
    """A hint of another acceptor opens nowhere else; a fit one counts."""
    paths = hints(lab)
    paths[0].write_bytes(paths[1].read_bytes())
    with moved._session("test") as s:
        state = s.newest_state()
        seen = genesis.look_at_hints(s, {"f"}, state)
    assert [[seen.links[a] for a in some] for some in (seen.intact, seen.lacking, seen.altered)] == [["e"], [], ["d"]]
