"""What two devices do to one file at once: nothing new is lost, both end alike, and an edit follows a rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workspace_kit import Lab, laboratory, tree_of, write

from metasync.reports.sync import Met
from metasync.workspace import Workspace

Do = Callable[[Path, bytes], None]


def edit(top: Path, by: bytes) -> None:
    (top / "s/f").write_bytes((top / "s/f").read_bytes() + b"edited by " + by)


def delete(top: Path, by: bytes) -> None:
    (top / "s/f").unlink()


def move(name: str) -> Do:
    def step(top: Path, by: bytes) -> None:
        (top / "s/f").rename(top / "s" / name)

    return step


def move_and_edit(top: Path, by: bytes) -> None:
    edit(top, by)
    (top / "s/f").rename(top / "s/g")


def move_dir(name: str) -> Do:
    def step(top: Path, by: bytes) -> None:
        (top / "s").rename(top / name)

    return step


def delete_dir(top: Path, by: bytes) -> None:
    shutil.rmtree(top / "s")


def file_for_dir(top: Path, by: bytes) -> None:
    shutil.rmtree(top / "s")
    (top / "s").write_bytes(top.name.encode() + b" a file by " + by)


def new_at_target(top: Path, by: bytes) -> None:
    edit(top, by)
    (top / "s/g").write_bytes(top.name.encode() + b" new by " + by)


STEPS: dict[str, Do] = {
    "nothing": lambda top, by: None,
    "edit": edit,
    "delete": delete,
    "to-g": move("g"),
    "to-h": move("h"),
    "move-edit": move_and_edit,
    "dir-to-t": move_dir("t"),
    "rmdir": delete_dir,
    "file-for-dir": file_for_dir,
    "new-at-g": new_at_target,
}
EDIT_FOLLOWS = {"to-g": "s/g", "to-h": "s/h", "dir-to-t": "t/f"}


def bytes_in(w: Workspace, top: str = "") -> dict[str, bytes]:
    found = tree_of(w.directory / top)
    return {path.decode(): node.data for path, node in found.items() if node.kind == "file"}


def pair(lab: Lab, tops: list[str]) -> tuple[Workspace, Workspace]:
    urls = lab.urls("a", kind="memory")
    w = lab.init(urls)
    for top in tops:
        name = top.encode()
        write(w.directory, {f"{top}/s/f": b"\0file of " + name, f"{top}/s/other": b"\0other of " + name})
    w.push()
    return w, lab.clone(urls)


def test_every_pair_of_changes(lab: Lab) -> None:
    """One directory for each pair of what the laptop and the desktop do in it."""
    pairs = {f"{one}+{two}": (one, two) for one, two in product(STEPS, STEPS)}
    w, c = pair(lab, [*pairs])
    new: dict[str, set[bytes]] = {}
    for top, (one, two) in pairs.items():
        before = set(bytes_in(w, top).values())
        STEPS[one](w.directory / top, b"laptop")
        STEPS[two](c.directory / top, b"desktop")
        new[top] = (set(bytes_in(w, top).values()) | set(bytes_in(c, top).values())) - before
    w.push(force=True)
    pulled = c.pull(force=True)
    c.push(force=True)
    w.pull(force=True)
    assert tree_of(w.directory) == tree_of(c.directory)
    for top in pairs:
        assert new[top] <= set(bytes_in(w, top).values()), top
    for step, place in EDIT_FOLLOWS.items():
        for top, by in ((f"edit+{step}", b"laptop"), (f"{step}+edit", b"desktop")):
            files = bytes_in(w, top)
            assert files[place].endswith(b"edited by " + by), top
            assert len(files) == 2, (top, "the old name is gone")
    assert bytes_in(w, "edit+delete") == bytes_in(c, "edit+delete")
    told = {(m.kind, m.path.decode().partition("/")[0]) for m in pulled.met}
    for one, two, kind in (
        ("edit", "delete", "modify/delete"), ("delete", "edit", "modify/delete"), ("edit", "rmdir", "modify/delete"),
        ("edit", "to-g", "rename/modify"), ("dir-to-t", "edit", "rename/modify"),
        ("to-g", "to-h", "rename/rename"), ("to-g", "delete", "rename/delete"), ("rmdir", "to-h", "rename/delete"),
    ):  # fmt: skip
        assert (kind, f"{one}+{two}") in told
    assert not {top for _, top in told} & {"nothing+edit", "edit+edit", "to-g+to-g", "delete+delete", "delete+nothing"}
    assert w.push().version is c.push().version is None


def test_what_met_is_told_by_pull_and_by_push(lab: Lab) -> None:
    w, c = pair(lab, ["d"])
    (w.directory / "d/s").rename(w.directory / "d/t")
    w.push()
    write(c.directory, {"d/s/f": b"\0edited"})
    would = c.pull(dry_run=True)
    pushed = c.push().pulled
    assert pushed is not None
    assert would.met == pushed.met == (Met("rename/modify", b"d/t/f", "modified", b"d/s/f"),)
    assert (c.directory / "d/t/f").read_bytes() == b"\0edited"
    assert not (c.directory / "d/s").exists()


def test_an_edit_stays_where_this_disk_cannot_hold_the_new_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, c = pair(lab, ["d"])
    (w.directory / "d/s/f").rename(w.directory / "d/s/new")
    w.push()
    write(c.directory, {"d/s/f": b"\0edited"})
    from metasync.sync import pull

    monkeypatch.setattr(pull, "unfit", lambda tree, db, changes: {
        i: "no such name here" for i, change in enumerate(changes) if change.path == b"d/s/new"
    })  # fmt: skip
    pulled = c.pull()
    assert [(m.kind, m.path) for m in pulled.met] == [("modify/delete", b"d/s/f")]
    assert (c.directory / "d/s/f").read_bytes() == b"\0edited"
    c.push()
    w.pull()
    assert bytes_in(w) == bytes_in(c)


@pytest.mark.long
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([*STEPS])), min_size=2, max_size=8))
def test_one_after_the_other(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]) -> None:
    """Many changes by two devices that sync now and then: they end alike."""
    root = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as monkeypatch, laboratory(root, monkeypatch, None) as lab:  # type: ignore[arg-type]
        both = pair(lab, ["d"])
        for n, (who, step) in enumerate(steps):
            top = both[who].directory / "d"
            if (top / "s/f").is_file():
                STEPS[step](top, b"%d" % n)
            if n % 3 == 2:
                both[1 - who].sync(force=True)
        for w in (*both, *both):
            w.sync(force=True)
        assert tree_of(both[0].directory) == tree_of(both[1].directory)
