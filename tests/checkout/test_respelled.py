"""A directory that others gave another spelling, where the disk takes both for one and the user has something in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import agreed
from disks_kit import Mac
from workdir import DIR, Dir, Workspace, entries, read

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.checkout.staging import may_come_whole
from metasync.worktree.index import load_rows
from metasync.worktree.names import Fold, Rules

TAKEN = "this file system takes its name for that of another file, which is here"


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Workspace]:
    """A disk on which `docs` and `Docs` are one name."""
    with Workspace(tmp_path, Mac()) as work:
        work.tree.rules = Rules(fold=Fold.FULL, normalises=True)
        yield work


def check_out(work: Workspace, new: dict[bytes, Any], since: Callable[[], Any]) -> Applied:
    """Brings these, takes what else is here, after the user did something that the scan did not see."""
    rows, coming = load_rows(work.db), entries(new)
    checkout = Checkout(work.db, work.tree)
    changes = [
        Change(path, coming.get(path), rows.get(path))
        for path in rows.keys() | coming.keys()
        if path and (path not in rows or rows[path].entry != coming.get(path))
    ]
    work.stage(checkout, changes, checkout.begin(changes), new)
    since()
    return checkout.apply()


def test_it_has_the_new_spelling_with_all_that_the_user_has_in_it(mac: Workspace) -> None:
    agreed(mac, {b"docs": DIR, b"docs/f": b"1", b"docs/sub": DIR, b"docs/sub/g": b"2", b"docs2": DIR, b"docs2/h": b"3"})

    def add() -> None:
        mac.at(b"docs/mine").write_bytes(b"the user's")
        mac.at(b"docs/sub/mine").write_bytes(b"the user's")
        mac.at(b"docs2/mine").write_bytes(b"the user's")

    outcome = check_out(mac, {b"Docs": DIR, b"Docs/f": b"1", b"Docs/sub": DIR, b"Docs/sub/g": b"2"}, add)
    assert outcome.unplaced == []
    assert [note.path for note in outcome.kept] == [b"docs2"]  # of what has another name now, nothing was kept
    assert {path for path in read(mac.root) if not path.startswith(b"docs2")} == {
        b"Docs", b"Docs/f", b"Docs/mine", b"Docs/sub", b"Docs/sub/g", b"Docs/sub/mine"
    }  # fmt: skip


def test_it_has_its_mode_wherever_it_lies(mac: Workspace) -> None:
    """Directories are closed and opened again on the way."""
    agreed(mac, {b"a": DIR, b"p": DIR, b"p/docs": DIR, b"p/docs/f": b"1"})
    new = {b"a": DIR, b"a/new": b"2", b"p": DIR, b"p/Docs": Dir(0o700), b"p/Docs/f": b"1"}
    outcome = check_out(mac, new, lambda: mac.at(b"p/docs/mine").write_bytes(b"the user's"))
    assert (outcome.unplaced, outcome.kept) == ([], [])
    here = read(mac.root)
    assert here[b"p/Docs"] == Dir(0o700)
    assert here.keys() == new.keys() | {b"p/Docs/mine"}


def test_a_directory_of_the_users_is_not_given_another_name(mac: Workspace) -> None:
    agreed(mac, {b"x": b"1"})
    outcome = check_out(mac, {b"Docs": DIR, b"x": b"1"}, lambda: mac.at(b"docs").mkdir())
    assert outcome.unplaced == [(b"Docs", TAKEN)]
    assert set(read(mac.root)) == {b"docs", b"x"}


def test_a_directory_that_is_to_stay_is_not_given_the_name_of_another(mac: Workspace) -> None:
    """The user had removed it as the checkout began, so that its twin was thought to have room."""
    agreed(mac, {b"docs": DIR})
    mac.at(b"docs").rmdir()
    outcome = check_out(mac, {b"Docs": DIR, b"docs": Dir(0o700)}, lambda: mac.at(b"docs").mkdir())
    assert outcome.unplaced == [(b"Docs", TAKEN)]
    assert read(mac.root) == {b"docs": Dir(0o700)}


def test_a_file_that_the_user_changed_is_no_directory_under_another_name(mac: Workspace) -> None:
    agreed(mac, {b"docs": b"old"})
    outcome = check_out(mac, {b"Docs": DIR, b"Docs/f": b"1"}, lambda: mac.at(b"docs").write_bytes(b"the user's"))
    assert [note.path for note in outcome.unplaced] == [b"Docs", b"Docs/f"]
    assert [note.path for note in outcome.kept] == [b"docs"]
    assert mac.at(b"docs").read_bytes() == b"the user's"
    assert set(read(mac.root)) == {b"docs"}


def test_no_directory_comes_whole_where_names_have_twins(mac: Workspace) -> None:
    """Each name in it is looked at by itself: it may be another spelling of one that is here."""
    assert not may_come_whole(mac.tree)
    mac.tree.rules = Rules()
    assert may_come_whole(mac.tree)
