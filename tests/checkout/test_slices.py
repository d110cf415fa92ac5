"""A checkout whose rows are written slice by slice: in the middle of it the rows are what stands in the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import NEW, OLD, agreed, assert_settled, full
from workdir import DIR, Dir, File, Workspace, digest, entries, read

from metasync.checkout import checkout as checkout_module
from metasync.checkout.checkout import Applied, Checkout
from metasync.local.state_keys import INODES_KEY
from metasync.worktree.fs_probe import rules_of
from metasync.worktree.index import load_rows
from metasync.worktree.merge_walk import walk_rows
from metasync.worktree.names import Fold
from metasync.worktree.tree import WorkTree

BEFORE: dict[bytes, Any] = {
    b"d": DIR,
    b"d/edited": b"old",
    b"d/gone": b"gone",
    b"gone": DIR,
    b"gone/deep": DIR,
    b"gone/deep/f": b"f",
    b"kept": b"kept",
}
AFTER: dict[bytes, Any] = {
    b"d": DIR,
    b"d/added": b"added",
    b"d/edited": b"new words",
    b"d/sub": DIR,
    b"d/sub/f": b"sub",
    b"kept": b"kept",
    b"whole": DIR,
    b"whole/1": b"1",
    b"whole/deep": Dir(0o700),
    b"whole/deep/2": File(b"2", 0o600),
    b"whole/deep/empty": b"",
    b"whole2": DIR,
    b"whole2/1": b"another",
}


@pytest.fixture(autouse=True)
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is a slice."""
    monkeypatch.setattr(checkout_module, "SLICE_CHANGES", 1)


def begun(work: Workspace, new: dict[bytes, Any]) -> Checkout:
    ours = work.scan_past()
    checkout = Checkout(work.db, work.tree)
    changes = work.changes(ours.tree, entries(new))
    work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), new)
    return checkout


def is_quiet(work: Workspace) -> bool:
    """Whether the folder is what the rows say, as an operation sees it that was let in."""
    with WorkTree(os.fsencode(work.root), work.tree.disk) as tree:
        tree.rules = rules_of(tree, work.db)
        return walk_rows(tree, work.db).is_quiet


def applied(work: Workspace, checkout: Checkout, look: Callable[[], None]) -> Applied:
    def answer() -> None:
        assert (work.db.value("base"), work.db.has(INODES_KEY)) == (None, True), "a killed process goes on from here"
        look()

    return checkout.apply(answer=answer)


def test_after_each_slice_the_rows_are_what_stands_in_the_folder(work: Workspace) -> None:
    agreed(work, BEFORE)
    checkout = begun(work, AFTER)
    seen: list[tuple[bool, int]] = []
    applied(work, checkout, lambda: seen.append((is_quiet(work), len(read(work.root)))))
    assert all(quiet for quiet, _ in seen)
    assert len({count for _, count in seen}) >= 8, "looked at in many states between the two"
    assert read(work.root) == full(AFTER)
    work.base = entries(AFTER)
    assert_settled(work, AFTER)
    assert checkout.rows[0].keys() | set(checkout.rows[1]) == {
        p for p in BEFORE.keys() | AFTER.keys() if entries(BEFORE).get(p) != entries(AFTER).get(p)
    }


def test_all_rows_are_those_of_a_checkout_at_once(tmp_path: Path) -> None:
    """But for inodes and times of change."""

    def rows(name: str, answer: Callable[[], None] | None) -> dict[bytes, Any]:
        with Workspace(tmp_path / name) as work:
            agreed(work, OLD)
            begun(work, NEW).apply(answer=answer)
            return {path: (row.entry, row.mode, row.trusted) for path, row in load_rows(work.db).items()}

    assert rows("slices", lambda: None) == rows("at-once", None)


@pytest.mark.parametrize(
    "edit",
    [
        lambda root: (root / "kept").write_bytes(b"mine now"),
        lambda root: (root / "mine").write_bytes(b"mine now"),
        lambda root: (root / "whole" / "1").write_bytes(b"mine now"),
        lambda root: (root / "d" / "gone").write_bytes(b"mine now"),
        lambda root: (root / "d" / "edited").write_bytes(b"mine now"),
    ],
    ids=["kept", "new", "brought", "deleted", "replaced"],
)
def test_an_edit_in_the_middle_is_seen_and_stays_a_change(work: Workspace, edit: Callable[[Path], Any]) -> None:
    agreed(work, BEFORE)
    checkout = begun(work, AFTER)
    quiet: list[bool] = []

    def look() -> None:
        if len(quiet) == len(AFTER) - 4:
            assert is_quiet(work)
            edit(work.root)
        quiet.append(is_quiet(work))

    applied(work, checkout, look)
    assert not any(quiet[len(AFTER) - 4 :])
    work.base = entries(AFTER)
    found = work.scan()
    assert digest(b"mine now") in {e.content for e in found.tree.values()}
    assert found.tree != entries(AFTER)


def test_names_that_may_have_twins_are_not_brought_in_slices(work: Workspace) -> None:
    agreed(work, BEFORE)
    checkout = begun(work, AFTER)
    work.tree.rules = replace(work.tree.rules, fold=Fold.ASCII)
    answered: list[None] = []
    checkout.apply(answer=lambda: answered.append(None))
    assert not answered
    assert read(work.root) == full(AFTER)
