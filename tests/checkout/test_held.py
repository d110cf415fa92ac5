"""A checkout that lets others go first goes on with what it staged, if all of that is as it was."""

from __future__ import annotations

import os

import pytest
from workdir import DIR, Workspace, entry

from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.held import Held, delivered, go_on, hold, parts_seen
from metasync.local.state_keys import INODES_KEY, PLAN_KEY

WHOLE, LARGE = entry(b"123456"), entry(b"abcdef")._replace(root=b"r" * 32)
CHANGES = [Change(b"d", entry(DIR), None), *(Change(path, WHOLE, None) for path in (b"d/f", b"g", b"h"))]
CHANGES += [Change(b"large", LARGE, None)]


def held(work: Workspace) -> Held:
    """A checkout that staged a file at the top, one with its directory, and half of one that comes in pieces."""
    checkout = Checkout(work.db, work.tree)
    assert checkout.begin(CHANGES) == [b"d/f", b"g", b"h", b"large"]
    checkout.stage_whole(b"d/f", b"123456")
    checkout.stage_whole(b"g", b"123456")
    checkout.stage_part(b"large", 0, b"abc")
    found = hold(checkout)
    assert found is not None
    return found


def test_it_goes_on_and_asks_for_the_rest(work: Workspace) -> None:
    was = held(work)
    assert was.brought == (2, 15)
    assert was.comes_to({change.path: change.new for change in CHANGES})
    assert not was.comes_to({change.path: change.new for change in CHANGES[1:]})
    checkout = Checkout(work.db, work.tree)
    assert go_on(checkout, was) == [b"h", b"large"]
    assert delivered(checkout, b"large") == {0: 3}
    checkout.stage_whole(b"h", b"123456")
    checkout.stage_part(b"large", 3, b"def")
    checkout.finish(b"large")
    checkout.apply()
    contents = {name: (work.root / name).read_bytes() for name in ("d/f", "g", "h", "large")}
    assert contents == dict.fromkeys(("d/f", "g", "h"), b"123456") | {"large": b"abcdef"}


@pytest.mark.parametrize("name", ["0/f", "2", "4"])
@pytest.mark.parametrize("what", ["written", "gone", "another"])
def test_it_begins_anew_where_a_staged_file_is_not_as_it_was(work: Workspace, name: str, what: str) -> None:
    was = held(work)
    path = work.root / ".metasync" / "tmp" / name
    st = path.stat()
    if what != "written":
        path.unlink()
    if what != "gone":
        path.write_bytes(b"x" * st.st_size)
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert go_on(Checkout(work.db, work.tree), was) is None


@pytest.mark.parametrize("what", ["another plan", "ended", "being applied", "another folder"])
def test_it_begins_anew_where_the_journal_is_not_its_own(work: Workspace, what: str) -> None:
    was = held(work)
    if what == "another plan":
        work.db.set_value(PLAN_KEY.name, (work.db.value(PLAN_KEY.name) or b"") + b"x")
    elif what == "ended":
        work.db.set_value(PLAN_KEY.name, None)
    elif what == "being applied":
        work.db.set(INODES_KEY, (0,) * len(CHANGES))
    else:
        was = was._replace(plan=was.plan.on_device(was.plan.root[0] + 1, was.plan.root[1]))
    assert go_on(Checkout(work.db, work.tree), was) is None


def test_what_ran_out_of_room_or_was_not_begun_is_not_held(work: Workspace) -> None:
    checkout = Checkout(work.db, work.tree)
    assert hold(checkout) is None
    checkout.begin(CHANGES, needed=())
    checkout.leave_out({b"h": "no room"})
    assert hold(checkout) is None
    assert checkout.plan is None, "it is paused all the same"


@pytest.mark.parametrize("lacks", ["plan", "stage", "journal", "nothing"])
def test_without_all_that_it_goes_on_with_it_is_not_held(work: Workspace, lacks: str) -> None:
    """Nor where an earlier checkout's leavings are still to be taken up: they are not of this plan."""
    if lacks == "nothing":
        held(work)
    checkout = Checkout(work.db, work.tree)
    checkout.begin(CHANGES)
    assert checkout.has_left == (lacks == "nothing")
    if lacks == "plan":
        checkout.plan = None
    elif lacks == "stage":
        assert checkout._stage is not None
        checkout._stage.close()
        checkout._stage = None
    elif lacks == "journal":
        work.db.set_value(PLAN_KEY.name, None)
    assert hold(checkout) is None
    assert checkout.plan is None, "it is paused all the same"


@pytest.mark.parametrize("since", ["as it was", "written", "another came"])
def test_pieces_are_held_as_they_were_before_others_had_their_turn(work: Workspace, since: str) -> None:
    """What was done to them meanwhile is found: the stats of that moment say nothing of it."""
    checkout = Checkout(work.db, work.tree)
    assert parts_seen(checkout) == {}
    checkout.begin(CHANGES)
    checkout.stage_part(b"large", 0, b"abc")
    before = parts_seen(checkout)
    assert [*before] == [4]
    if since == "written":
        (work.root / ".metasync" / "tmp" / "4").write_bytes(b"xyz")
    elif since == "another came":
        before = {}
    found = hold(checkout, before)
    assert checkout.plan is None, "it is paused all the same"
    assert (found is None) == (since == "another came")
    if found is not None:
        assert (go_on(Checkout(work.db, work.tree), found) is None) == (since == "written")
