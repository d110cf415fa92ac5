"""What an interrupted checkout staged: what the next one takes of it, and what it leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkout_kit import agreed
from workdir import DIR, QuietDisk, Workspace, entry, read

from metasync.checkout.checkout import Change, Checkout
from metasync.objects.model import Entry
from metasync.worktree.index import load_rows

DATA = b"123456"
LARGE = entry(DATA)._replace(root=b"r" * 32)  # it comes in pieces


def interrupted(work: Workspace, changes: list[Change], **contents: bytes) -> None:
    """A checkout that was given these contents, and ended before it was applied."""
    checkout = Checkout(work.db, work.tree)
    checkout.begin(changes)
    for path, data in contents.items():
        checkout.stage_part(path.replace("_", "/").encode(), 0, data)
    checkout.pause()


def found(work: Workspace, path: bytes, new: Entry) -> bytes | None:
    """What the next checkout finds of a file."""
    checkout = Checkout(work.db, work.tree)
    above = [Change(b"d", entry(DIR), None)] if path.startswith(b"d/") else []
    checkout.begin([*above, Change(path, new, None)])
    fd = checkout.open_left(path)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as f:
        return f.read()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("path", "above"),
    [(b"f", []), (b"d/f", [Change(b"d", entry(DIR), None)])],
    ids=["alone", "comes with its directory"],
)
def test_a_file_is_found_where_it_was_staged(work: Workspace, path: bytes, above: list[Change], large: bool) -> None:
    new = LARGE if large else entry(DATA)
    interrupted(work, [*above, Change(path, new, None)], **{os.fsdecode(path).replace("/", "_"): DATA})
    assert found(work, path, new) == DATA


@pytest.mark.parametrize(
    "other",
    [
        entry(b"654321"),
        entry(DATA)._replace(size=7),
        entry(DATA)._replace(root=b"s" * 32),
    ],
    ids=["content", "size", "pieces"],
)
def test_a_file_of_another_version_is_not_taken_for_the_one_that_comes(work: Workspace, other: Entry) -> None:
    interrupted(work, [Change(b"f", entry(DATA), None)], f=DATA)
    assert found(work, b"f", other) is None


@pytest.mark.parametrize(
    ("new", "staged", "is_found"),
    [
        (entry(DATA), DATA[:3], False),
        (entry(DATA), DATA + b"7", False),
        (LARGE, DATA[:3], True),
        (LARGE, DATA + b"7", False),
    ],
    ids=["short", "long", "some pieces", "more than its pieces"],
)
def test_only_a_file_that_comes_in_pieces_may_be_there_in_part(
    work: Workspace, new: Entry, staged: bytes, is_found: bool
) -> None:
    interrupted(work, [Change(b"f", new, None)], f=DATA[:3])
    (work.root / ".metasync" / "tmp" / "0").write_bytes(staged)
    assert found(work, b"f", new) == (staged if is_found else None)


@pytest.mark.parametrize("made", ["directory", "symlink"])
def test_what_is_no_file_is_not_taken(work: Workspace, made: str) -> None:
    """A part of a file may have any size, and so may they."""
    new = LARGE._replace(size=1 << 20)
    interrupted(work, [Change(b"f", new, None)], f=DATA)
    at = work.root / ".metasync" / "tmp" / "0"
    at.unlink()
    if made == "directory":
        at.mkdir()
    else:
        at.symlink_to(work.root / "elsewhere")
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", new, None)])
    assert checkout.open_left(b"f") is None


def test_where_nothing_was_staged_nothing_is_left(work: Workspace) -> None:
    interrupted(work, [Change(b"f", entry(DATA), None)])
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", entry(DATA), None)])
    assert not checkout.has_left


def test_what_is_staged_already_needs_no_room_again(tmp_path: Path) -> None:
    """A large file that was nearly all here before must not wait for room that it has already."""
    block = b"x" * (1 << 20)

    class Small(QuietDisk):
        free = 1 << 30

        def free_bytes(self, fd: int) -> int:
            return self.free

    disk = Small()
    with Workspace(tmp_path, disk) as work:
        changes = [Change(b"f", entry(block), None), Change(b"g", entry(b"y" * 1000), None)]
        interrupted(work, changes, f=block)
        disk.free = 100_000
        checkout = Checkout(work.db, work.tree)
        assert checkout.begin(changes, needed=(b"f", b"g")) == [b"f", b"g"]
        assert checkout.take_left(b"f", {0: len(block)})
        checkout.stage_whole(b"g", b"y" * 1000)
        checkout.apply()
        assert read(tmp_path)[b"f"].data == block


def test_what_is_left_is_taken_once_and_is_gone_when_it_is_dropped(work: Workspace) -> None:
    interrupted(work, [Change(b"f", entry(DATA), None)], f=DATA)
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", entry(DATA), None)])
    assert checkout.take_left(b"f", {0: len(DATA)})
    assert not checkout.take_left(b"f", {0: len(DATA)})
    checkout.drop_left()
    assert not checkout.has_left
    assert checkout.open_left(b"f") is None


def test_of_what_was_to_go_nothing_was_staged(work: Workspace) -> None:
    agreed(work, {b"f": b"old"})
    interrupted(work, [Change(b"f", None, load_rows(work.db)[b"f"]), Change(b"g", entry(DATA), None)], g=DATA)
    assert found(work, b"f", entry(DATA)) is None
