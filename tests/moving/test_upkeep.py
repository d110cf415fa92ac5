"""A push moves data and makes copies good when its own work is done, for a while, and only where there is anything."""

from __future__ import annotations

import os
from typing import Any

import pytest
from workspace_kit import PASSPHRASE, Lab, flip, write

from metasync.local.state_keys import MENDING_KEY, SURPLUS_KEY, UPKEEP_KEY
from metasync.moving import surplus, upkeep
from metasync.moving.rebalance import Deadline
from metasync.transfer import wrong_copies
from metasync.workspace import Workspace

LONG_S = 600.0  # never over in a test


def some(lab: Lab, *names: str, pushes: int = 6) -> Workspace:
    w = lab.init(lab.urls(*names))
    for n in range(pushes):
        push(w, f"file{n}")
    return w


def push(w: Workspace, name: str) -> None:
    write(w.directory, {name: os.urandom(2000)})
    w.push(name)


def test_pushes_move_what_a_change_displaced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b", "c")
    w.set_copies(3)
    assert w.status().moving.packs
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    push(w, "later")
    assert not w.status().moving.packs
    with w._session("test") as s:
        assert s.config.prev_config is None, "the trim was agreed"
    packs = {p.name for p in lab.objects("a", "packs")}
    assert packs == {p.name for p in lab.objects("b", "packs")} == {p.name for p in lab.objects("c", "packs")}
    assert w.check(read_data=True).problems == ()
    w.set_copies(2, passphrase=PASSPHRASE)  # and the next change goes through


@pytest.mark.long
def test_several_devices_share_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b", "c")
    others = [lab.clone(lab.urls("a", "b", "c"), device=f"device{n}") for n in range(2)]
    w.set_copies(3)
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    for n, other in enumerate(others):
        other.sync()
        push(other, f"of{n}")
    w.sync()
    assert not w.status().moving.packs
    assert w.check(read_data=True).problems == ()


def test_off_and_over_move_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b", "c")
    w.set_copies(3)
    left = w.status().moving.packs
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    w.configure("upkeep", "off")
    push(w, "off")
    assert w.status().moving.packs == left
    w.configure("upkeep", None)
    monkeypatch.setattr(upkeep, "Deadline", lambda _: Deadline(0.0))
    push(w, "over")
    assert w.status().moving.packs == left
    with w._session("test") as s:
        assert s.db.get(UPKEEP_KEY), "it came to nothing: not again for a while"
    monkeypatch.setattr(upkeep, "Deadline", Deadline)
    push(w, "a moment later")
    assert w.status().moving.packs == left


def test_a_backend_that_is_away_fails_no_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b", "c")
    w.set_copies(3)
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    lab.faults["c"].down = True
    push(w, "away")
    assert w.status().moving.packs


def test_what_check_noticed_is_made_good_by_the_next_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b")
    gone, altered = lab.objects("a", "packs")[0], lab.objects("b", "packs")[-1]
    gone.unlink()
    flip(altered)
    assert w.check(read_data=True).problems
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    push(w, "later")
    assert gone.exists()
    with w._session("test") as s:
        assert not s.db.has(MENDING_KEY)
    assert w.check(read_data=True).problems == ()


def test_what_found_one_place_only_gets_its_other_copy_when_the_stores_are_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = some(lab, "a", "b", "c")
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    for name in "bc":
        lab.faults[name].full_over_bytes = 6_000
    write(w.directory, {"big": os.urandom(50_000)})
    short = w.push()
    assert short.under_replicated
    assert w.status().under_replicated == short.under_replicated
    for name in "bc":
        lab.faults[name].full_over_bytes = None
    with w._session("test") as s:
        s.db.set(UPKEEP_KEY, None)  # its pause, after it could do nothing
    lab.hurry()
    push(w, "later")
    assert w.status().under_replicated == 0
    assert (report := w.check(read_data=True)).problems == ()
    assert report.short == 0


def test_what_a_pull_noticed_is_made_good(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b", pushes=3)
    desktop = lab.clone(lab.urls("a", "b"))
    for n in range(6):
        push(w, f"more{n}")
    before = {p.name for p in lab.objects("a", "packs")}
    for path in lab.objects("a", "packs"):
        flip(path)
    desktop.pull()
    with desktop._session("test") as s:
        noted = {name.hex() for name in wrong_copies.load(s.db)}
    assert noted
    assert noted <= before
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    push(desktop, "from there")
    wrong = {p.pack.hex() for p in desktop.check(read_data=True).problems}
    assert not wrong & noted


def test_what_nobody_has_is_left_to_the_repair(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b")
    name = lab.objects("a", "packs")[0].name
    for store in "ab":
        next(p for p in lab.objects(store, "packs") if p.name == name).unlink()
    with w._session("test") as s:
        wrong_copies.note(s.db, [bytes.fromhex(name), b"\1" * 32])
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    push(w, "later")
    with w._session("test") as s:
        assert not s.db.has(MENDING_KEY), "it is not tried for ever"


def test_nothing_more_is_asked_where_nothing_is_known(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab, "a", "b")
    monkeypatch.setattr(upkeep, "after_push", lambda _: pytest.fail("there was nothing to do"))
    push(w, "more")
    w.push("")


# ---- surplus copies


def fewer(lab: Lab) -> Workspace:
    """Three copies of everything were promised, two are now."""
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)
    for n in range(6):
        push(w, f"file{n}")
    w = lab.reopen(w)  # no copy is on its way any more
    w.set_copies(2, passphrase=PASSPHRASE)
    return w


def copies(lab: Lab) -> list[str]:
    return sorted(p.name for name in "abc" for p in lab.objects(name, "packs"))


def is_noted(w: Workspace) -> bool:
    return w._db.has(SURPLUS_KEY)


def test_what_is_surplus_goes_with_the_push_that_agreed_the_trim(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = fewer(lab)
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    push(w, "later")
    w = lab.reopen(w)
    names = copies(lab)
    assert names == sorted([*{*names}] * 2)
    assert not is_noted(w)
    report = w.check(read_data=True)
    assert (report.problems, report.short) == ((), 0)
    assert w.rebalance().freed == ()


def test_a_later_push_goes_on_where_the_time_was_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = fewer(lab)
    before = copies(lab)
    real = surplus.free
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)

    def late(mover: Any) -> Any:
        mover.ends = Deadline(0)
        return real(mover)

    monkeypatch.setattr(surplus, "free", late)
    push(w, "later")
    assert is_noted(w)
    assert {*before} <= {*copies(lab)} and len(copies(lab)) > len(before)
    monkeypatch.setattr(surplus, "free", real)
    w._db.set(UPKEEP_KEY, None)
    push(w, "still later")
    w = lab.reopen(w)
    names = copies(lab)
    assert not is_noted(w)
    assert names == sorted([*{*names}] * 2)


def test_it_is_given_up_after_some_tries_that_free_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = fewer(lab)
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    monkeypatch.setattr(surplus, "free", lambda _: surplus.Freed(is_all=False))
    monkeypatch.setattr(upkeep, "FREE_TRIES", 2)
    push(w, "one")
    assert is_noted(w)
    w._db.set(UPKEEP_KEY, None)
    push(w, "two")
    assert not is_noted(w)
    monkeypatch.undo()
    assert w.rebalance().freed


def test_a_surplus_copy_stays_until_all_that_count_are_there(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that counts went after the trim: it is made again from the others before any of them goes."""
    w = fewer(lab)
    real = surplus.free

    def losing(mover: Any) -> Any:
        monkeypatch.setattr(surplus, "free", real)
        for name in "abc":
            for path in lab.objects(name, "packs")[:2]:
                path.unlink()
        return real(mover)

    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    monkeypatch.setattr(surplus, "free", losing)
    push(w, "later")
    w = lab.reopen(w)
    w.check(repair=True)
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short) == ((), (), 0)


def test_a_backend_that_is_away_keeps_its_surplus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = fewer(lab)
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    real = surplus.free

    def away(mover: Any) -> Any:
        lab.faults["c"].down = True
        try:
            return real(mover)
        finally:
            lab.faults["c"].down = False

    monkeypatch.setattr(surplus, "free", away)
    push(w, "later")
    assert is_noted(w)
    monkeypatch.setattr(surplus, "free", real)
    w = lab.reopen(w)
    push(w, "again")
    w = lab.reopen(w)
    names = copies(lab)
    assert names == sorted([*{*names}] * 2)
