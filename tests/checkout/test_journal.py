"""The journal of a checkout: it is read as it was written, or refused; while it is applied nothing else begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checkout_kit import agreed
from workdir import Workspace, entry

from metasync.checkout import plan as plans
from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.plan import Plan, decode_plan, encode_plan, is_of_others
from metasync.codec import bytes16, bytes32, i64, text16, u8, u32, u64
from metasync.errors import WorkspaceError
from metasync.local.state_keys import INODES_KEY, PLAN_KEY, WHOLE_KEY
from metasync.merge.copies import UNNAMED
from metasync.worktree.index import Row, pack_entry, pack_row

NEW = entry(b"new")
ROW = Row(entry(b"old"), 1, 2, 3, 4, 5, 0o100644, True)
CHANGES = (Change(b"a", NEW, ROW), Change(b"b", None, ROW), Change(b"c", NEW, None))


def test_a_plan_is_what_it_was() -> None:
    plan = Plan(CHANGES, {"here": b"1", "empty": b"", "none": None}, 7, 5, (3, 4), True, "why", {2: "no room"})
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(replace(plan, own=False))) == replace(plan, own=False)


def test_whose_changes_a_journal_has_is_read_from_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of a large pull asks, and would decode all of it."""
    of_others, own = journal(own=0), journal(own=1)
    read: list[bytes] = []

    def decoding(data: bytes) -> Plan:
        read.append(data)
        return decode_plan(data)

    monkeypatch.setattr(plans, "decode_plan", decoding)
    monkeypatch.setattr(plans, "_judged", {})
    for data, is_so in ((of_others, True), (own, False), (b"damaged", False), (of_others, True)):
        assert [is_of_others(data), is_of_others(data)] == [is_so, is_so]
    assert read == [of_others, own, b"damaged", of_others]
    assert len(plans._judged) == 1, "of the last one alone"


def journal(
    *,
    form: int = 3,
    values: tuple[tuple[str, int, bytes], ...] = (),
    changes: tuple[tuple[bytes, bytes, bytes], ...] = ((b"a", b"", b""), (b"b", b"", b"")),
    own: int = 0,
    unfit: tuple[tuple[int, bytes], ...] = (),
    more: bytes = b"",
) -> bytes:
    """A journal part by part, as `encode_plan` writes it."""
    out = [u8(form), u64(7), u64(0), u64(1), u64(2), u32(len(values))]
    for name, there, value in values:
        out += [text16(name), u8(there), bytes32(value)]
    out.append(u32(len(changes)))
    for parts in changes:
        out += map(bytes32, parts)
    out += [u8(own), text16("why"), u32(len(unfit))]
    out += [bytes16(UNNAMED.label), bytes16(UNNAMED.device), i64(UNNAMED.time_ns)]
    for i, why in unfit:
        out += [u32(i), bytes32(why)]
    return b"".join(out) + more


def test_the_parts_of_a_journal_make_one() -> None:
    assert encode_plan(decode_plan(journal())) == journal()
    full = journal(values=(("x", 1, b"1"), ("y", 0, b"")), unfit=((0, b"no"), (1, b"nor")), own=1)
    assert encode_plan(decode_plan(full)) == full


@pytest.mark.parametrize(
    "data",
    [
        journal(form=2),
        journal(values=(("x", 1, b"1"), ("x", 1, b"1"))),
        journal(values=(("x", 2, b"1"),)),
        journal(values=(("x", 0, b"1"),)),
        journal(changes=((b"b", b"", b""), (b"a", b"", b""))),
        journal(changes=((b"a", b"", b""), (b"a", b"", b""))),
        journal(changes=((b"a", pack_row(ROW), b""),)),
        journal(changes=((b"a", b"rubbish", b""),)),
        journal(changes=((b"a", b"", pack_entry(NEW)[:-1]),)),
        journal(own=2),
        journal(unfit=((0, b"no"), (0, b"no"))),
        journal(unfit=((2, b"no"),)),
        journal(unfit=((0, b"\xff"),)),
        journal(more=b"\0"),
        journal()[:-1],
        b"",
    ],
    ids=range(16),
)
def test_any_other_journal_is_refused(data: bytes) -> None:
    with pytest.raises(WorkspaceError):
        decode_plan(data)


def being_applied(work: Workspace, plan: Plan, inodes: tuple[int, ...], whole: bytes = b"\0\0\0\0") -> None:
    work.db.set_value(PLAN_KEY.name, encode_plan(plan))
    work.db.set(INODES_KEY, inodes)
    work.db.set_value(WHOLE_KEY.name, whole)
    (work.root / ".metasync" / "tmp").mkdir(exist_ok=True)
    (work.root / ".metasync" / "tmp" / "0").write_bytes(b"the user's, exchanged to here")


@pytest.mark.parametrize("do", [lambda c: c.begin([]), lambda c: c.abandon()], ids=["begin", "abandon"])
def test_while_a_plan_is_being_applied_nothing_begins_and_nothing_is_dropped(
    work: Workspace, do: Callable[[Checkout], Any]
) -> None:
    """A file of the user's may lie in `tmp`, exchanged to there by a process that was killed."""
    agreed(work, {b"a": b"old"})
    being_applied(work, Plan((), {}, 1, 0, (1, 1)), (0,))
    with pytest.raises(WorkspaceError, match=r"earlier checkout|being applied"):
        do(Checkout(work.db, work.tree))
    assert (work.root / ".metasync" / "tmp" / "0").exists()


@pytest.mark.parametrize(
    ("inodes", "whole"), [((0, 0), b"\0\0\0\0"), ((), b"\0\0\0\0"), ((0,), b"\1\0\0\0\7\0\0\0"), ((0,), b"\0")]
)
def test_a_journal_that_does_not_fit_its_plan_is_not_applied(
    work: Workspace, inodes: tuple[int, ...], whole: bytes
) -> None:
    agreed(work, {b"a": b"old"})
    root = work.tree.root_stat
    being_applied(work, Plan((Change(b"b", NEW, None),), {}, 1, 0, (root.st_dev, root.st_ino)), inodes, whole)
    with pytest.raises(WorkspaceError, match="does not fit its plan"):
        Checkout(work.db, work.tree).recover()
    assert (work.root / ".metasync" / "tmp" / "0").exists()


def test_what_an_interrupted_restore_staged_is_not_kept_for_the_next_checkout(work: Workspace) -> None:
    """Only what others' changes bring is brought again."""
    for own, is_left in ((False, True), (True, False)):
        first = Checkout(work.db, work.tree)
        first.begin([Change(b"f", entry(b"12345"), None)], own=own)
        first.stage_whole(b"f", b"12345")
        first.pause()
        again = Checkout(work.db, work.tree)
        again.begin([Change(b"f", entry(b"12345"), None)])
        assert again.has_left is is_left
        again.abandon()


def test_a_restore_that_was_not_applied_is_dropped_and_others_changes_are_not(work: Workspace) -> None:
    for own in (False, True):
        first = Checkout(work.db, work.tree)
        first.begin([Change(b"f", entry(b"12345"), None)], own=own)
        first.stage_whole(b"f", b"12345")
        first.pause()
        assert Checkout(work.db, work.tree).recover() is None
        assert work.db.has(PLAN_KEY) is not own
    assert Checkout(work.db, work.tree).recover() is None
    assert not work.db.has(PLAN_KEY)
