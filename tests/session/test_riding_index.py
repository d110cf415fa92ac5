"""An index that has no object of its own: its root rides in log entries of its version (consensus.md, rule 1.14)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.consensus import Group, Ref, State, riding
from metasync.consensus.participant import Participant
from metasync.consensus.truncation import Progress
from metasync.errors import DamagedError, MetaSyncError, NoQuorumError
from metasync.runtime.effects import Task
from metasync.session import write_index
from metasync.session.folder import BASE_KEY
from metasync.session.witnesses import unaware
from metasync.store.index import ROOTS_MAX, TIER_BYTES_BASE, decode_root
from metasync.workspace import Workspace


def state_of(w: Workspace):  # type: ignore[no-untyped-def]
    return w._db.need(BASE_KEY)


def pushed(w: Workspace, *numbers: int) -> None:
    for n in numbers:
        write(w.directory, {f"g{n}": b"more %d" % n})
        w.push()


def metas(lab: Lab, name: str = "a") -> set[str]:
    return {path.name for path in lab.objects(name, "meta")}


@pytest.fixture
def one(lab: Lab) -> Workspace:
    """A device at version 3 or later, whose index rides."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f": b"first"})
    w.push()
    pushed(w, *range(2))
    while not state_of(w).index_rides:
        pushed(w, state_of(w).v)
    return w


def test_what_is_small_has_no_object(one: Workspace, lab: Lab) -> None:
    pushed(one, 80, 81)
    before, state = metas(lab), state_of(one)
    pushed(one, 90)
    assert [state.v, state.index_rides, state_of(one).index_rides] == [5, True, True]
    assert metas(lab) == before
    root = one._db.get_object(state_of(one).index.hash)
    assert root is not None
    assert decode_root(root).after == state.index
    assert len(decode_root(root).items) == 1, "the new segment alone"


def test_an_object_that_is_stored_anyway_has_few_small_segments_in_it(one: Workspace) -> None:
    """What rode until then is merged with it. Few versions ride in a row: the next one that does not lets logs go."""
    stored, small = [state_of(one).v], 0
    while state_of(one).v < 16:
        before, small = small, small_bytes(one)
        pushed(one, state_of(one).v)
        if not state_of(one).index_rides:
            stored.append(state_of(one).v)
    assert stored[-1] == 16, "hints name it"
    assert small > TIER_BYTES_BASE >= small_bytes(one)
    assert before < small, "version 15 rode"
    assert max(b - a for a, b in pairwise(stored)) <= 9


def small_bytes(w: Workspace) -> int:
    """Bytes of the index segments that stand in roots."""
    root = write_index.root_at_hand(w._db, state_of(w).index.hash)
    assert root is not None
    return sum(i.size for i in root.items if i.inline is not None)


@pytest.mark.long
def test_every_device_reads_it(one: Workspace, lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    two = lab.clone(urls)
    for n in range(20):  # over versions that hints name, and over merges
        pushed(one if n % 3 else two, n)
        other = two if n % 3 else one
        other.pull()
        assert tree_of(one.directory) == tree_of(two.directory)
    third = lab.clone(urls, device="third")
    assert tree_of(third.directory) == tree_of(one.directory)
    assert third.check().problems == ()


def test_who_was_away_reads_the_way_back(one: Workspace, lab: Lab) -> None:
    """Of versions that it never saw: each root goes on from the one before, in the log of its own version."""
    two = lab.clone(lab.urls("a", "b", "c"))
    pushed(one, *range(100, 107))
    for digest in [d for d, _ in list(two._db.objects_by_age())]:
        two._db.drop_objects([digest])
    two.pull()
    assert tree_of(one.directory) == tree_of(two.directory)


def test_it_is_read_with_one_backend_away(one: Workspace, lab: Lab) -> None:
    two = lab.clone(lab.urls("a", "b", "c"))
    pushed(one, 200)
    assert state_of(one).index_rides
    lab.lose("a")
    lab.hurry()
    two.pull()
    assert (two.directory / "g200").read_bytes() == b"more 200"


def test_a_version_that_keeps_the_index_has_it_settled_first(one: Workspace, lab: Lab) -> None:
    """The name of a version changes the list of what is kept, and no file: its own log would carry no index."""
    name = state_of(one).index.hash.hex()
    assert name not in metas(lab)
    one.tag("latest", "good")
    assert name in metas(lab) | metas(lab, "b")
    assert one.check().problems == ()
    third = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(third.directory) == tree_of(one.directory)


@pytest.mark.long
def test_a_new_backend_gets_it(one: Workspace, lab: Lab) -> None:
    name = state_of(one).index.hash.hex()
    one.backend_add(lab.url("d"))
    assert name in metas(lab, "d")
    assert one.check().problems == ()
    pushed(one, 300, 301)
    third = lab.clone(lab.urls("b", "c", "d"), device="third")
    assert tree_of(third.directory) == tree_of(one.directory)


def test_a_new_device_settles_it(one: Workspace, lab: Lab) -> None:
    """Its version changes the device set alone, and a hint names it."""
    name = state_of(one).index.hash.hex()
    lab.clone(lab.urls("a", "b", "c"), device="third")
    assert name in metas(lab) | metas(lab, "b")


def test_a_workspace_is_restarted_from_it(one: Workspace, lab: Lab) -> None:
    for name in "bc":
        lab.lose(name)
    lab.hurry()
    one.recover(["b", "c"], "correct horse battery staple", confirm="docs")
    assert not state_of(one).index_rides
    assert one.check().problems == ()


def test_without_an_entry_that_carries_it_nothing_is_guessed(
    one: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = lab.clone(lab.urls("a", "b", "c"))
    pushed(one, 400, 401)
    assert state_of(one).index_rides
    before = tree_of(two.directory)

    def lost(self: Group, state: object, is_known: object) -> object:
        self.participant.riding.clear()
        monkeypatch.setattr(riding, "READ_S", 0.0)
        return riding.roots(self.participant, self.enter, state, is_known)  # type: ignore[arg-type]

    monkeypatch.setattr(Group, "get_roots", lost)
    with pytest.raises(MetaSyncError, match="carries its index"):
        two.pull()
    assert tree_of(two.directory) == before


def test_what_is_not_small_is_stored(one: Workspace, lab: Lab) -> None:
    write(one.directory, {f"h{n}": b"%d" % n for n in range(60)})
    before = metas(lab)
    one.push()
    assert not state_of(one).index_rides
    assert metas(lab) > before


def test_a_root_at_hand_needs_those_before_it(one: Workspace, tmp_path: Path) -> None:
    state = state_of(one)
    whole = write_index.root_at_hand(one._db, state.index.hash)
    assert whole is not None
    assert whole.before
    assert whole.after is None
    one._db.drop_objects([whole.before[-1].hash])
    assert write_index.root_at_hand(one._db, state.index.hash) is None


@pytest.mark.long
def test_a_way_back_that_a_kept_index_would_lengthen_ends_at_an_object(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 16, which hints name, may keep the index of 15: the way back does not end there by itself."""
    monkeypatch.setattr(write_index, "TIER_SEGMENTS_MAX", 100)  # segments of one size end it earlier, as a rule
    one = lab.init(lab.urls("a", "b", "c"))
    while state_of(one).v < 15:
        pushed(one, state_of(one).v)
    one.tag("latest", "sixteen")
    assert (state_of(one).v, state_of(one).index_rides) == (16, False)
    longest = 0
    for n in range(17, 32):
        pushed(one, n)
        root = write_index.root_at_hand(one._db, state_of(one).index.hash)
        assert root is not None
        assert len(root.before) <= ROOTS_MAX
        longest = max(longest, len(root.before))
    assert longest == ROOTS_MAX
    two = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(one.directory) == tree_of(two.directory)


@pytest.fixture
def unsettled(one: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """At a version that keeps an index which the log of an earlier one has alone, made by no rule."""
    lab.clone(lab.urls("a", "b", "c"))
    one.pull()
    pushed(one, 500, 501)
    while not state_of(one).index_rides:
        pushed(one, 500 + state_of(one).v)
    name = state_of(one).index

    def nothing(self: Group, state: State) -> Task:
        return
        yield

    with monkeypatch.context() as broken:
        broken.setattr(Group, "settle", nothing)
        one.tag("latest", "kept")
        one.tag("latest", "again")
    assert (state_of(one).index, state_of(one).index_rides) == (name, False)
    assert not is_object(lab, name)
    return lab.reopen(one)


def is_object(lab: Lab, name: Ref) -> bool:
    """Whether a quorum holds the root of an index as an object."""
    return sum(name.hash.hex() in metas(lab, backend) for backend in "abc") >= 2


def other(lab: Lab) -> Workspace:
    """The other device, which has cached nothing of any index."""
    two = next(w for w in lab.open_workspaces if w.directory.name == "desktop")
    two._db.drop_objects([digest for digest, _ in list(two._db.objects_by_age())])
    return two


@pytest.mark.long
def test_what_nobody_settled_is_read_from_the_log_that_has_it(unsettled: Workspace, lab: Lab) -> None:
    two = other(lab)
    two.pull()
    assert tree_of(two.directory) == tree_of(unsettled.directory)


def test_versions_on_top_of_it_are_read(unsettled: Workspace, lab: Lab) -> None:
    pushed(unsettled, *range(600, 603))
    two = other(lab)
    two.pull()
    assert tree_of(two.directory) == tree_of(unsettled.directory)


def test_what_nobody_settled_is_read_with_one_backend_away(unsettled: Workspace, lab: Lab) -> None:
    lab.lose("b")
    lab.hurry()
    two = other(lab)
    two.pull()
    assert tree_of(two.directory) == tree_of(unsettled.directory)


def test_the_next_device_settles_it(unsettled: Workspace, lab: Lab) -> None:
    name = state_of(unsettled).index
    third = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(third.directory) == tree_of(unsettled.directory)
    assert is_object(lab, name)


@pytest.mark.long
def test_the_next_version_that_keeps_it_settles_it(unsettled: Workspace, lab: Lab) -> None:
    unsettled.tag("latest", "by-the-rules")
    assert is_object(lab, state_of(unsettled).index)


def test_a_new_backend_gets_it_though_nobody_settled_it(unsettled: Workspace, lab: Lab) -> None:
    name = state_of(unsettled).index
    unsettled.backend_add(lab.url("d"))
    assert name.hash.hex() in metas(lab, "d")
    report = unsettled.check()
    assert (report.problems, report.meta_problems) == ((), ())


def test_no_log_goes_while_it_has_it_alone(unsettled: Workspace, lab: Lab) -> None:
    with unsettled._session("push") as s:
        s.runtime.run(s.group.bound_logs(state_of(unsettled), Progress(), 0.0))
    assert is_object(lab, state_of(unsettled).index)


def test_nothing_is_let_go_by_a_version_that_has_it_nowhere_else(unsettled: Workspace, lab: Lab) -> None:
    with unsettled._session("gc") as s:
        assert unaware(s, state_of(unsettled)) == {}
    assert is_object(lab, state_of(unsettled).index)


@pytest.mark.long
def test_check_settles_it(unsettled: Workspace, lab: Lab) -> None:
    report = unsettled.check()
    assert (report.problems, report.meta_problems) == ((), ())
    assert is_object(lab, state_of(unsettled).index)


def test_a_workspace_is_restarted_from_what_nobody_settled(unsettled: Workspace, lab: Lab) -> None:
    for name in "bc":
        lab.lose(name)
    lab.hurry()
    unsettled.recover(["b", "c"], "correct horse battery staple", confirm="docs")
    assert unsettled.check().problems == ()


def no_log_is_left(monkeypatch: pytest.MonkeyPatch, *, states_are: bool) -> None:
    """As where all backends that voted for past versions are out of use; `states_are`: but for the states."""

    def none(*_: object) -> Task:
        raise NoQuorumError("no log is left")
        yield

    monkeypatch.setattr(riding, "_read" if states_are else "_before", none)


@pytest.mark.few(1)
@pytest.mark.parametrize("states_are", [True, False])
def test_what_is_neither_an_object_nor_in_a_log_is_kept_by_no_version(
    unsettled: Workspace, monkeypatch: pytest.MonkeyPatch, states_are: bool
) -> None:
    before = state_of(unsettled)
    with monkeypatch.context() as gone:
        no_log_is_left(gone, states_are=states_are)
        with pytest.raises(MetaSyncError):
            unsettled.tag("latest", "by-the-rules")
    unsettled.pull()
    assert state_of(unsettled) == before


@pytest.mark.few(1)
@pytest.mark.parametrize("states_are", [True, False])
def test_what_is_an_object_needs_no_log(
    unsettled: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch, states_are: bool
) -> None:
    """One copy is left: the others are made of it, and the version that keeps the index goes on."""
    unsettled.check()
    name = state_of(unsettled).index
    for backend in "bc":
        for path in lab.objects(backend, "meta"):
            if path.name == name.hash.hex():
                path.unlink()
    assert not is_object(lab, name)
    unsettled = lab.reopen(unsettled)
    no_log_is_left(monkeypatch, states_are=states_are)
    unsettled.tag("latest", "by-the-rules")
    assert is_object(lab, name)


def test_an_index_that_is_nowhere_is_not_looked_for_in_all_logs(
    one: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version before names another index, which does not lead there: nothing further back is read."""
    looked: list[int] = []
    before = riding._before

    def counting(m: Participant, enter: riding.Enter, state: State) -> Task:
        looked.append(state.v)
        return before(m, enter, state)

    monkeypatch.setattr(riding, "_before", counting)
    lost = replace(state_of(one), index=Ref(1, bytes(31) + b"x"), index_rides=False)
    with one._session("log") as s, pytest.raises(DamagedError, match="meta object"):
        s.indexes.of_state(lost)
    assert looked == [lost.v]
