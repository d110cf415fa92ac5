"""A backend is removed that is dead, or alone holds something: nothing is lost unnamed, nobody waits for the dead."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.config import DEAD_TAG, decode_config
from metasync.errors import UnreachableError, UsageError
from metasync.moving import add_backend, removal, wipe
from metasync.moving.reconfigure import OnlyThereError
from metasync.reports.backends import BackendChange, Moving, RebalanceReport, Share, Wiped
from metasync.store import moves
from metasync.terminal import prompt
from metasync.testing.quota import Quota
from metasync.workspace import Workspace


def fill(w: Workspace, pushes: int = 8, mark: str = "") -> None:
    for n in range(pushes):
        write(w.directory, {f"file{mark}{n}": f"{mark} {n} ".encode() * 700})
        w.push(f"push {mark}{n}")


def fill_until(lab: Lab, w: Workspace, name: str) -> None:
    """Pushes more until a backend has a pack: where one lies is drawn."""
    n = 0
    while not lab.objects(name, "packs"):
        fill(w, 1, f"more{n}-")
        n += 1


def is_back(lab: Lab, w: Workspace) -> None:
    """Another device gets all that this one has."""
    desktop = lab.clone([lab.url(b.name) for b in w.backends()])
    want = {path: node.data for path, node in tree_of(w.directory).items()}
    assert {path: node.data for path, node in tree_of(desktop.directory).items()} == want


def test_a_dead_one_is_never_asked_and_keeps_nobody_waiting(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c", "d"))
    fill(w)
    w = lab.reopen(w)
    counted = lab.counts["d"]
    lab.faults["d"].down = True
    counted.take()
    done = w.backend_remove("d", passphrase=PASSPHRASE, dead=True)
    assert (done.version is not None, done.lost_packs) == (True, 0)
    report = w.rebalance()
    assert report.is_whole, report
    fill(w, 1, "later")
    assert lab.counts["d"] is counted, "no way to it was opened"
    assert not counted.take().requests
    with w._session("test") as s:
        assert DEAD_TAG not in dict(s.config.tags), "the trim ends it"
    is_back(lab, w)


@pytest.mark.long
def test_one_that_dies_after_its_removal_ends_with_the_same_command(lab: Lab) -> None:
    """What only that one had (for other copies got lost) keeps the trim waiting until somebody says that it is dead."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    fill_until(lab, w, "a")
    other = lab.clone(lab.urls("a", "b", "c"))
    w.backend_remove("a", passphrase=PASSPHRASE)
    w = lab.reopen(w)
    lab.faults["a"].down = True
    on_a = {p.name for p in lab.objects("a", "packs")}
    for copy in [p for name in "bc" for p in lab.objects(name, "packs") if p.name in on_a]:
        copy.unlink()
    waits = w.rebalance()
    assert not waits.is_whole
    assert waits.version is None
    with pytest.raises(UsageError, match="lost with a"):
        w.backend_remove("a", dead=True)
    plan = w.backend_remove("a", dead=True, dry_run=True)
    assert plan.lost_packs
    assert plan.version is None
    w.backend_remove("a", dead=True, lose=True)
    ended = w.rebalance()
    assert ended.version is not None
    assert len(ended.lost) == plan.lost_packs
    assert not w.status().moving.packs
    repaired = w.check(repair=True)  # the folder has all that was lost
    assert repaired.lost == ()
    assert repaired.nowhere == ()
    other = lab.reopen(other)
    other.pull()
    assert not any("a" in name for name in other._connections.links)
    assert {k: v.data for k, v in tree_of(other.directory).items()} == {
        k: v.data for k, v in tree_of(w.directory).items()
    }


def test_what_only_a_dead_one_had_is_named_and_asked_about(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=1)
    fill(w)
    fill_until(lab, w, "a")
    w.close()
    told: list[str] = []
    monkeypatch.setattr(prompt, "somebody", lambda: True)
    monkeypatch.setattr(prompt, "confirmed", lambda text: told.append(text))  # no is what Enter means
    ran = lab.cli("backend", "remove", "a", "--dead")
    assert (ran.code, told) == (1, ["Give up what only a had?"])
    assert "would be lost: file" in ran.out
    monkeypatch.setattr(prompt, "somebody", lambda: False)
    assert lab.cli("backend", "remove", "a", "--dead").code == 2, "a script has to say so"
    assert lab.cli("backend", "remove", "a", "--dead", "--json").code == 2
    ran = lab.cli("backend", "remove", "a", "--dead", "--dry-run", "--json")
    assert ran.code == 7
    files = {p.name for p in (lab.root / "laptop").glob("file*")}
    assert {g["path"] for g in ran.json["gone"]} <= files | {"/"}
    assert lab.cli("backend", "remove", "a", "--dead", "--yes").code == 7
    assert lab.cli("backend", "list").out.count("file://") == 2


def test_what_one_alone_holds_is_moved_before_it_goes(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=1)
    fill(w)
    fill_until(lab, w, "a")
    assert w.backend_remove("a", passphrase=PASSPHRASE, dry_run=True).moving.packs
    assert lab.objects("a", "packs")
    done = w.backend_remove("a", passphrase=PASSPHRASE)
    assert done.version is not None
    assert not done.moving.packs
    lab.lose("a")
    w = lab.reopen(w)
    is_back(lab, w)
    report = w.check(read_data=True)
    assert (report.problems, report.lost) == ((), ())


def test_one_that_lacks_what_it_alone_should_hold_may_not_go(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=1)
    fill(w)
    fill_until(lab, w, "a")
    lost = lab.objects("a", "packs")[0]
    data = lost.read_bytes()
    lost.unlink()
    with pytest.raises(UsageError, match="no copy on another backend"):
        w.backend_remove("a", passphrase=PASSPHRASE)
    lost.write_bytes(data)
    w.backend_remove("a", passphrase=PASSPHRASE)


@pytest.mark.long
def test_while_data_move_they_are_moved_first(lab: Lab) -> None:
    """The config before maps nothing to the one that goes, so nobody would look there for what was pushed meanwhile."""
    w = lab.init(lab.urls("a", "b", "c"), replicas=1)
    fill(w)
    w.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    fill_until(lab, w, "d")
    w.backend_remove("d", passphrase=PASSPHRASE)
    lab.lose("d")
    w = lab.reopen(w)
    is_back(lab, w)


def test_a_backend_that_is_full_keeps_the_other_in_use(lab: Lab) -> None:
    lab.quotas.update(b=Quota(64 << 20), c=Quota(64 << 20))
    w = lab.init(lab.urls("a", "b", "c"), replicas=1)
    fill(w)
    fill_until(lab, w, "a")
    for quota in lab.quotas.values():
        quota.fill()
    with pytest.raises(UnreachableError, match="could not be moved"):
        w.backend_remove("a", passphrase=PASSPHRASE)
    assert {b.name for b in w.backends()} == {"a", "b", "c"}
    is_back(lab, w)


def test_an_id_of_an_agreed_backend_is_not_taken_for_dead(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    with w._session("test") as s:
        config = s.config
    one, two = (b.backend_id for b in config.backends[:2])
    gone = moves.without(config, one)
    assert gone.dead == {one}
    again = gone.with_backends(config.backends)
    assert decode_config(again.encode()).dead == frozenset()
    assert moves.without(gone, two).dead == {one, two}
    assert moves.trimmed(gone).dead == frozenset()


# ---- step by step


@pytest.mark.parametrize("left", ["", "packs", "waiting", "lost"])
def test_a_backend_goes_when_all_that_it_holds_was_moved(monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """Nothing still to come, nobody who did not answer, and no pack that cannot be had."""
    report = SimpleNamespace(
        left=SimpleNamespace(packs=int(left == "packs")),
        waiting=(("b", "b: busy"),) * (left == "waiting"),
        lost=("a pack",) * (left == "lost"),
    )
    monkeypatch.setattr(removal, "rebalance", lambda _: report)
    work: Any = None
    if not left:
        removal._moved(work, "a")
        return
    with pytest.raises(UnreachableError, match="b: busy" if left == "waiting" else "cannot be had intact"):
        removal._moved(work, "a")


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that a removal takes, in their order, of which none does anything."""
    did: list[str] = []
    for place, name, says in (
        (removal, "_bring_strays", "bring"), (removal, "_moved", "move"), (removal, "unchanged", "unchanged"),
        (add_backend, "remove", "remove"), (add_backend, "drain", "drain"), (wipe, "give_up", "give up"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, lambda *_, says=says, **__: did.append(says) or DONE)
    monkeypatch.setattr(removal, "changing", lambda *_, **__: contextlib.nullcontext())
    return did


DONE = BackendChange("a", 3, "", dry_run=False, before="", after="", voting=1, storing=1)


@pytest.mark.parametrize(
    ("holds", "dry_run", "steps"),
    [
        ("no more than others", True, ["remove"]), ("no more than others", False, ["bring", "remove"]),
        ("something alone", True, ["remove", "drain"]),
        ("something alone", False, ["bring", "remove", "move", "drain", "move", "remove"]),
    ],
)  # fmt: skip
def test_what_a_backend_holds_for_others_or_alone_is_moved_before_it_goes_and_a_dry_run_moves_nothing(
    monkeypatch: pytest.MonkeyPatch, did: list[str], holds: str, dry_run: bool, steps: list[str]
) -> None:
    def remove(*_: object, **__: object) -> BackendChange:
        did.append("remove")
        if holds == "something alone" and did.count("remove") == 1:
            raise OnlyThereError("a alone holds packs")
        return DONE

    monkeypatch.setattr(add_backend, "remove", remove)
    removal._remove(cast(Any, None), "a", passphrase=None, dry_run=dry_run)
    assert did == steps


@pytest.mark.parametrize(
    ("agreed", "ways", "dry_run", "steps"),
    [
        ("a", (), False, ["remove"]),  # another one of this name may still be to be emptied
        ("b", ("a~1",), False, ["remove"]), ("b", (), True, ["remove"]), ("b", (), False, ["give up", "unchanged"]),
    ],
)  # fmt: skip
def test_emptying_is_given_up_only_for_one_that_was_removed_and_is_read_no_more(
    did: list[str], agreed: str, ways: tuple[str, ...], dry_run: bool, steps: list[str]
) -> None:
    connections = SimpleNamespace(
        ways={name.encode(): SimpleNamespace(name=name) for name in ways},
        agreed_names={agreed},
        doing_without=lambda _: contextlib.nullcontext(),
    )
    work: Any = SimpleNamespace(connections=connections, session=lambda _: contextlib.nullcontext())
    removal._remove_dead(work, "a", passphrase=None, dry_run=dry_run, lose=False)
    assert did == steps


def test_what_stands_in_for_others_and_cannot_be_brought_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later push looks at these, and at no pack that was brought."""
    found = [SimpleNamespace(id=(1, name), name=name) for name in (b"brought", b"left")]
    noted: list[bytes] = []
    config = SimpleNamespace(named=lambda _: SimpleNamespace(backend_id=b"a"))
    base = SimpleNamespace(config=config, index=SimpleNamespace(packs=dict))
    mover = SimpleNamespace(base=base, tally=SimpleNamespace(done={found[0].id}), bring_all=lambda *_, **__: None)
    monkeypatch.setattr(removal, "Mover", lambda *_, **__: mover)
    monkeypatch.setattr(removal.strays, "listed", lambda *_: found)
    monkeypatch.setattr(removal.wrong_copies, "note", lambda _, names: noted.extend(names))
    s = SimpleNamespace(db=None, listener=lambda _: None)
    removal._bring_strays(cast(Any, SimpleNamespace(session=lambda _: contextlib.nullcontext(s))), "a")
    assert noted == [b"left"]


@pytest.mark.parametrize(("dry_run", "is_moving"), [(False, False), (True, False), (False, True)])
def test_a_rebalance_goes_on_with_emptying_once_all_has_moved_and_tells_of_what_it_did(
    monkeypatch: pytest.MonkeyPatch, dry_run: bool, is_moving: bool
) -> None:
    """A dry run deletes nothing, and where data are still to be moved that alone is told."""
    report = RebalanceReport(dry_run, None, "", Moving())
    outcomes = {
        "all": Wiped(2, 20), "none": Wiped(0, 0), "some": Wiped(1, 5, 3, "busy"), "away": UnreachableError("no answer")
    }  # fmt: skip
    monkeypatch.setattr(removal, "rebalance", lambda *_, **__: report)
    monkeypatch.setattr(wipe, "go_on", lambda _: outcomes)
    config = SimpleNamespace(prev_config=b"before" if is_moving else None)
    work: Any = SimpleNamespace(connections=SimpleNamespace(config=config))
    told = removal.rebalance_and_wipe(work, dry_run=dry_run, read_data=False)
    if dry_run or is_moving:
        assert told == report
    else:
        assert told.emptied == (Share("all", 2, 20), Share("some", 1, 5))
        assert told.unemptied == (("some", "busy"), ("away", "no answer"))


def test_a_backend_is_not_removed_to_be_emptied_by_who_has_no_way_to_it(
    monkeypatch: pytest.MonkeyPatch, did: list[str]
) -> None:
    config = SimpleNamespace(named=lambda name: name)
    monkeypatch.setattr(removal.agreement, "newest", lambda _: SimpleNamespace(config=config))
    connections = SimpleNamespace(ways={b"b": SimpleNamespace(name="b")})
    work: Any = SimpleNamespace(connections=connections, session=lambda _: contextlib.nullcontext())
    with pytest.raises(UsageError, match="no way to"):
        removal._remove_and_wipe(work, "a", passphrase=None, dry_run=False)
    assert did == []


@pytest.mark.parametrize("is_in", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_backend_is_removed_and_emptied_once_and_a_dry_run_does_neither(
    monkeypatch: pytest.MonkeyPatch, is_in: bool, dry_run: bool
) -> None:
    """One that was removed already, by a run that was interrupted, is emptied."""
    did: list[str] = []
    for place, name, says in (
        (removal, "_remove", "remove"), (removal, "unchanged", "unchanged"), (removal, "_moved", "move"),
        (wipe, "begin", "note"), (wipe, "wipe", "wipe"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, lambda *_, says=says, **__: did.append(says) or DONE)
    monkeypatch.setattr(wipe, "noted", lambda *_: {b"a" * 16: "a"})
    monkeypatch.setattr(wipe, "together", lambda _: None)
    config = SimpleNamespace(named=lambda name: name if is_in else None)
    monkeypatch.setattr(removal.agreement, "newest", lambda _: SimpleNamespace(config=config))
    connections = SimpleNamespace(ways={b"a" * 16: SimpleNamespace(name="a")})
    work: Any = SimpleNamespace(connections=connections, session=lambda _: contextlib.nullcontext())
    removal._remove_and_wipe(work, "a", passphrase=None, dry_run=dry_run)
    if dry_run:
        assert did == (["remove"] if is_in else ["unchanged"])
    else:
        assert did == [*(["remove"] if is_in else ["note", "unchanged"]), "move", "wipe"]
