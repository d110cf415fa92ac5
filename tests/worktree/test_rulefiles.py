"""Ignore rules at work: what a scan takes in under them, and what push, pull, clone and status make of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import workdir
from workdir import DIR, QuietDisk, entries
from workdir import Workspace as Folder
from workspace_kit import Lab, tree_of, write

from metasync.errors import WorkspaceError
from metasync.local.state_keys import RULES_KEY
from metasync.workspace import Workspace
from metasync.worktree import ignore_files
from metasync.worktree import scan as scanning
from metasync.worktree.disk import Disk
from metasync.worktree.ignore_files import RULES_BYTES_MAX
from metasync.worktree.index import load_rows
from metasync.worktree.names import IGNORE_NAME as RULES
from metasync.worktree.scan import Scan

NAME = os.fsdecode(RULES)
TREE: dict[bytes, Any] = {b"a.txt": b"alpha", b"d": DIR, b"d/b.o": b"beta", b"d/e": DIR, b"d/e/c.txt": b"gamma"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path) as found:
        yield found


def agreed(folder: Folder, tree: dict[bytes, Any] = TREE) -> Scan:
    workdir.write(folder.root, tree)
    found = folder.scan_past()
    folder.base = dict(found.tree)
    return found


# ---- one scan


def test_rules_in_directories_and_what_they_leave(folder: Folder) -> None:
    workdir.write(
        folder.root,
        {
            RULES: b"*.o\n!keep.o\n/top\nbuild/\n.*\n",
            b"x.o": b"x",
            b"keep.o": b"x",
            b"top": b"x",
            b"build/a": b"x",
            b"d/top": b"x",
            b"d/build": b"a file",
            b"d/" + RULES: b"!*.o\nkeep.o\n",
            b"d/x.o": b"x",
            b"d/keep.o": b"x",
            b"d/.hidden": b"x",
        },
    )
    found = folder.scan()
    assert set(found.tree) == {b"keep.o", b"d", b"d/top", b"d/build", b"d/x.o"}
    ignored = [RULES, b"build", b"d/.hidden", b"d/" + RULES, b"d/keep.o", b"top", b"x.o"]
    assert (found.ignored, found.held(), found.warnings, found.skipped) == (ignored, [], [], [])
    assert set(found.rules) == {b"", b"d"}  # ignored themselves, and still rules: as git has it


def test_defaults_can_be_taken_back_and_the_state_cannot(folder: Folder) -> None:
    workdir.write(folder.root, {RULES: b"!.DS_Store\n!~$*\n!.metasync\n", b".DS_Store": b"x", b"~$a": b"x"})
    workdir.write(folder.root, {b"~$metasync.3": b"ours", b"Thumbs.db": b"x"})
    found = folder.scan()
    assert set(found.tree) == {RULES, b".DS_Store", b"~$a"}
    assert found.ignored == [b"Thumbs.db"]


def test_bad_lines_are_told_with_file_and_line(folder: Folder) -> None:
    workdir.write(folder.root, {b"d/" + RULES: b"*.o\n[\n\xff[z\n", b"d/x.o": b"x", b"d/y": b"x"})
    found = folder.scan()
    assert set(found.tree) == {b"d", b"d/" + RULES, b"d/y"}
    line = ".metasyncignore, line {}: a bracket is not closed; this line is left out, the others count"
    assert found.warnings == ["d/" + line.format(2), "d/" + line.format(3)]


def test_an_ignored_path_keeps_what_was_agreed(folder: Folder) -> None:
    """Edited, deleted, replaced by a directory, chmodded: nothing of it is a change any more."""
    agreed(folder, {**TREE, b"e.o": b"1", b"f.o": b"2", b"g.o": b"3", b"out": DIR, b"out/x": b"4"})
    folder.at(b"d/b.o").write_bytes(b"edited")
    folder.at(b"e.o").unlink()
    folder.at(b"f.o").unlink()
    workdir.write(folder.root, {b"f.o/new": b"x"})
    folder.at(b"g.o").chmod(0o600)
    shutil.rmtree(folder.at(b"out"))
    folder.at(RULES).write_bytes(b"*.o\nout/\n")
    found = folder.scan()
    assert found.tree.pop(RULES).size
    assert (found.tree, found.deleted, found.missing) == (folder.base, [], [])
    assert found.held() == [b"d/b.o", b"e.o", b"f.o", b"g.o", b"out/x"]
    assert found.ignored == []


def test_what_went_while_it_was_ignored_is_not_deleted_when_the_rule_goes(folder: Folder) -> None:
    """Whoever ignores a directory to have it off this disk must not lose it everywhere by loosening the rule."""
    agreed(folder, {**TREE, RULES: b"/d/e/\n*.txt\n"})
    folder.base |= {p: e for p, e in entries(TREE).items() if p not in folder.base}
    folder.at(RULES).write_bytes(b"")
    folder.scan()  # known here: everything has a row
    folder.at(RULES).write_bytes(b"/d/e/\n*.txt\n")
    folder.scan()
    shutil.rmtree(folder.at(b"d/e"))
    folder.at(b"a.txt").unlink()
    folder.at(b"d/b.o").unlink()
    assert folder.scan().deleted == [b"d/b.o"]
    folder.at(RULES).write_bytes(b"# nothing\n")
    gone = [b"a.txt", b"d/e", b"d/e/c.txt"]
    for _ in range(2):  # the second time as a scan that remembers nothing of rules
        found = folder.scan()
        assert found.deleted == [b"d/b.o"]
        assert set(gone) <= found.tree.keys()
    assert load_rows(folder.db).keys().isdisjoint(gone)
    assert folder.db.unplaced().keys() == set(gone)
    folder.at(b"a.txt").write_bytes(b"again")  # by hand: it need not be brought
    found = folder.scan()
    assert found.tree[b"a.txt"].size == 5
    assert folder.db.unplaced().keys() == {b"d/e", b"d/e/c.txt"}


def test_a_missing_path_is_named_once(folder: Folder) -> None:
    agreed(folder)
    folder.at(RULES).write_bytes(b"d\n")
    folder.scan()
    shutil.rmtree(folder.at(b"d"))
    folder.at(RULES).unlink()
    found = folder.scan()
    assert found.missing == [b"d", b"d/b.o", b"d/e", b"d/e/c.txt"]
    assert [(p, why.split(":")[0]) for p, why in found.skipped] == [(b"d", "went while it was ignored")]


class Unreadable(QuietDisk):
    """A rule file that can't be opened."""

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if name == RULES:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)
        return super().open(name, flags, dir_fd, mode)


def spoil(folder: Folder, how: str, at: bytes = RULES) -> str:
    """Makes a rule file unusable; returns a part of what is told of it."""
    path = folder.at(at)
    if how == "denied":
        folder.tree.disk = Unreadable()
        return "Permission denied"
    path.unlink(missing_ok=True)
    if how == "directory":
        path.mkdir()
        (path / "x").touch()
        return "not a file"
    if how == "symlink":
        path.symlink_to("/dev/null")
        return "symlink"
    if how == "fifo":
        os.mkfifo(path)
        return "not a file"
    path.write_bytes(b"#" * (RULES_BYTES_MAX + 1))
    return "65,537 bytes"


HOWS = ["denied", "directory", "symlink", "fifo", "too big"]


@pytest.mark.parametrize("how", HOWS)
def test_a_rule_file_that_cannot_be_read_keeps_its_last_rules(folder: Folder, how: str) -> None:
    agreed(folder, {**TREE, RULES: b"secret*\n", b"secret.key": b"s"})
    assert b"secret.key" not in folder.base
    why = spoil(folder, how)
    folder.at(b"a.txt").unlink()
    workdir.write(folder.root, {b"new": b"n", b"d/secret": b"s"})
    for _ in range(2):
        found = folder.scan()
        assert {b"secret.key", b"d/secret"}.isdisjoint(found.tree)
        assert found.tree[b"a.txt"] == folder.base[b"a.txt"]  # the new rules might say that it stays
        assert b"new" in found.tree
        assert found.deleted == []
        told = [w for w in found.warnings if why in w]
        assert len(told) == 1
        assert "the rules that it had last still count" in told[0]
    folder.tree.disk = QuietDisk()
    shutil.rmtree(folder.at(RULES)) if how == "directory" else folder.at(RULES).unlink()
    folder.at(RULES).write_bytes(b"")
    found = folder.scan()
    assert {b"secret.key", b"d/secret"} <= found.tree.keys()
    assert (found.deleted, found.warnings) == ([b"a.txt"], [])


@pytest.mark.parametrize("how", HOWS)
def test_a_rule_file_of_which_nothing_is_known_lets_nothing_new_in(folder: Folder, how: str) -> None:
    agreed(folder)
    why = spoil(folder, how, b"d/" + RULES)
    if how == "denied":
        folder.at(b"d/" + RULES).write_bytes(b"secret")
    workdir.write(folder.root, {b"d/new": b"n", b"d/e/new": b"n", b"new": b"n"})
    folder.at(b"d/e/c.txt").unlink()
    found = folder.scan()
    assert found.tree.keys() - folder.base.keys() == {b"new"}
    assert found.deleted == []
    assert len(found.warnings) == 1
    assert why in found.warnings[0]
    assert "nothing new in d is pushed" in found.warnings[0]


def test_a_rule_file_that_changes_all_the_time(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed(folder, {**TREE, RULES: b"secret\n", b"secret": b"s"})
    real, reads = Disk.read, []

    def read(self: Disk, fd: int, size: int, offset: int) -> bytes:
        data = real(self, fd, size, offset)
        reads.append(data)
        folder.at(RULES).write_bytes(b"x" * (len(reads) % 2))  # as an editor does: emptied, then written
        return data

    monkeypatch.setattr(Disk, "read", read)
    found = folder.scan()
    assert len(reads) == ignore_files.READS_MAX
    assert b"secret" not in found.tree
    assert "changes all the time" in found.warnings[0]


def test_rules_of_a_directory_that_cannot_be_looked_into_are_remembered(folder: Folder) -> None:
    agreed(folder, {**TREE, b"d/" + RULES: b"secret\n", b"d/secret": b"s"})

    class Closed(QuietDisk):
        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name == b"d":
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)
            return super().open(name, flags, dir_fd, mode)

    folder.tree.disk = Closed()
    assert folder.scan().rules == {b"d": b"secret\n"}
    folder.tree.disk = Unreadable()
    assert b"d/secret" not in folder.scan().tree
    folder.tree.disk = QuietDisk()
    shutil.rmtree(folder.at(b"d"))
    assert folder.scan().rules == {}


def test_rules_survive_the_local_state_and_damage_there_is_told(folder: Folder) -> None:
    texts = {b"": b"a\nb", b"d/\xff": b"", b"e": bytes(range(256))}
    ignore_files.store_texts(folder.db, texts)
    assert ignore_files.load_texts(folder.db) == texts
    folder.db.set_value(RULES_KEY.name, b"\0\1")
    with pytest.raises(WorkspaceError, match="damaged"):
        ignore_files.load_texts(folder.db)
    ignore_files.store_texts(folder.db, {})
    assert folder.db.get(RULES_KEY) is None


# ---- whole workspaces


def pair(lab: Lab, files: dict[str, bytes]) -> tuple[Workspace, Workspace]:
    """A laptop that pushed these files, and a desktop that cloned them."""
    urls = lab.urls("a", "b")
    w = lab.init(urls)
    write(w.directory, files)
    w.push()
    return w, lab.clone(urls)


def paths(w: Workspace) -> set[str]:
    return {os.fsdecode(p) for p, node in tree_of(w.directory).items() if node.kind != "dir"}


def test_ignored_files_stay_at_home_and_rules_travel(lab: Lab) -> None:
    w, c = pair(lab, {NAME: b"*.log\n", "a.log": b"laptop's", "x": b"x"})
    assert paths(c) == {NAME, "x"}
    write(c.directory, {"b.log": b"desktop's"})
    assert c.push().version is None
    write(c.directory, {NAME: b"*.tmp\n", "c.tmp": b"t"})  # loosened and tightened: its own files follow at once
    r = c.push()
    assert (r.changes.added, r.changes.modified) == ((b"b.log",), (RULES,))
    w.pull()
    assert paths(w) == {NAME, "x", "a.log", "b.log"}
    assert w.push().changes.added == (b"a.log",)  # the next scan goes by the rules that the pull brought


def test_an_agreed_path_that_becomes_ignored(lab: Lab) -> None:
    files = {"cfg/local.ini": b"1", "cfg/other.ini": b"1", "x": b"x"}
    w, c = pair(lab, files)
    write(w.directory, {NAME: b"local.ini\nother.ini\n", "cfg/local.ini": b"laptop's own"})
    (w.directory / "cfg/other.ini").unlink()
    r = w.push()
    assert r.changes.added == (RULES,)
    assert len(r.changes) == 1
    s = w.status()
    assert (len(s.changes), s.ignored_agreed, s.ignored) == (0, 2, ())
    c.pull()
    assert (c.directory / "cfg/local.ini").read_bytes() == b"1"
    d = lab.clone(lab.urls("a", "b"), device="phone")
    assert paths(d) == {NAME, *files}  # a clone has all that is agreed
    # Whoever still takes it in changes it: it comes by pull, and what was edited here becomes a conflict copy.
    write(c.directory, {NAME: b"", "cfg/local.ini": b"2", "cfg/other.ini": b"2"})
    c.push()
    p = w.pull()
    assert [(k.path, k.kept) for k in p.conflicts] == [(b"cfg/local.ini", b"cfg/local.conflict-laptop-20261122.ini")]
    assert (w.directory / "cfg/local.ini").read_bytes() == b"2"
    assert (w.directory / "cfg/other.ini").read_bytes() == b"2"
    assert (w.directory / "cfg/local.conflict-laptop-20261122.ini").read_bytes() == b"laptop's own"


@pytest.mark.parametrize("seen", [False, True])
def test_a_pull_never_overwrites_unsaved_edits_of_an_ignored_file(lab: Lab, seen: bool) -> None:
    """Also when a scan had seen the edit before the rule came: the row then tells of bytes that no version holds."""
    w, c = pair(lab, {"a.ini": b"1", "x": b"x"})
    write(w.directory, {"a.ini": b"mine"})
    if seen:
        write(c.directory, {"x": b"y"})
        c.push()
        w.pull()  # scans, and stores what it saw
    write(w.directory, {NAME: b"a.ini\n"})
    write(c.directory, {"a.ini": b"theirs"})
    c.push()
    p = w.pull()
    assert [k.kept for k in p.conflicts] == [b"a.conflict-laptop-20261122.ini"]
    assert (w.directory / "a.ini").read_bytes() == b"theirs"
    assert (w.directory / "a.conflict-laptop-20261122.ini").read_bytes() == b"mine"
    s = w.status()
    assert [k.kept for k in s.conflicts] == [b"a.conflict-laptop-20261122.ini"]
    w.push()
    c.pull()
    assert "a.conflict-laptop-20261122.ini" not in paths(c)  # it stays at home, as the file would


@pytest.mark.parametrize("seen", [False, True])
def test_deleted_elsewhere_goes_here_unless_it_was_edited(lab: Lab, seen: bool) -> None:
    w, c = pair(lab, {"a.ini": b"1", "b.ini": b"1", "x": b"x"})
    write(w.directory, {"b.ini": b"mine"})
    if seen:
        write(c.directory, {"x": b"y"})
        c.push()
        w.pull()
    write(w.directory, {NAME: b"*.ini\n"})
    for name in ("a.ini", "b.ini"):
        (c.directory / name).unlink()
    c.push()
    w.pull()
    assert paths(w) == {NAME, "x", "b.ini"}
    assert (w.directory / "b.ini").read_bytes() == b"mine"
    w.push()
    c.pull()
    assert paths(c) == {NAME, "x"}


@pytest.mark.few(1)
@pytest.mark.parametrize("seen", [False, True])
def test_an_ignored_file_in_the_way_of_an_agreed_one(lab: Lab, seen: bool) -> None:
    w, c = pair(lab, {"x": b"x"})
    write(w.directory, {"key.pem": b"secret"})
    if seen:
        write(c.directory, {"x": b"y"})
        c.push()
        w.pull()
    write(w.directory, {NAME: b"key.pem\n"})
    write(c.directory, {"key.pem": b"desktop's"})
    c.push()
    p = w.pull()
    assert [(k.path, k.kept) for k in p.conflicts] == [(b"key.pem", b"key.conflict-laptop-20261122.pem")]
    assert (w.directory / "key.conflict-laptop-20261122.pem").read_bytes() == b"secret"
    assert w.status().ignored == (b"key.conflict-laptop-20261122.pem",)
    w.push()
    c.pull()
    assert paths(c) == {NAME, "x", "key.pem"}


def test_a_directory_removed_elsewhere_stays_for_its_ignored_files(lab: Lab) -> None:
    w, c = pair(lab, {NAME: b"*.o\n", "src/a.c": b"c", "x": b"x"})
    write(w.directory, {"src/a.o": b"o"})
    shutil.rmtree(c.directory / "src")
    c.push()
    w.pull()
    assert paths(w) == {NAME, "x", "src/a.o"}
    assert w.push().version is None
    c.pull()
    assert not (c.directory / "src").exists()


def test_what_is_missing_comes_back_after_the_rule_is_loosened(lab: Lab) -> None:
    w, c = pair(lab, {"photos/1.jpg": b"one", "photos/2.jpg": b"two", "x": b"x"})
    write(w.directory, {NAME: b"photos\n"})
    w.push()
    shutil.rmtree(w.directory / "photos")
    assert w.push().version is None
    (w.directory / NAME).unlink()
    r = w.push()
    assert r.changes.deleted == (RULES,)
    assert any(s.path == b"photos" for s in r.skipped)
    p = w.pull()
    assert paths(w) == {"photos/1.jpg", "photos/2.jpg", "x"}
    assert p.conflicts == ()
    c.pull()
    assert paths(c) == paths(w)
    assert (w.pull().changes.added, w.push().version) == ((), None)


def test_an_unreadable_rule_file_pushes_no_secrets(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, c = pair(lab, {NAME: b"secret\n", "secret": b"s", "x": b"x", "y": b"y"})
    real = Disk.open

    def refuse(self: Disk, path: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if path == RULES:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(self, path, flags, dir_fd, mode)

    (w.directory / "y").unlink()
    write(w.directory, {"x": b"changed", "d/secret": b"s"})
    with monkeypatch.context() as m:
        m.setattr(Disk, "open", refuse)
        r = w.push()
        assert (r.changes.modified, r.changes.deleted, r.changes.added) == ((b"x",), (), ())
        assert len(r.warnings) == 1
        assert len(w.status().warnings) == 1
    assert w.push().changes.deleted == (b"y",)
    c.pull()
    assert paths(c) == {NAME, "x"}


def test_status_tells_what_is_ignored(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = pair(lab, {"old.log": b"1", "d/old.log": b"1", "x": b"x"})
    write(w.directory, {NAME: b"*.log\nout/\n[\n", "new.log": b"n", "out/a": b"1", "out/b": b"1"})
    w.close()
    plain = lab.cli("status")
    assert "In the version, but ignored now: 2 files, kept as they are there; edits are not pushed." in plain.out
    assert "warning: .metasyncignore, line 3: a bracket is not closed" in plain.out
    assert "new.log" not in plain.out
    told = lab.cli("status", "--verbose").out
    assert "Ignored, and in no version: 2 paths\n  new.log\n  out\n" in told
    document = lab.cli("status", "--json").json
    assert (document["ignored"], document["ignored_total"], document["ignored_agreed"]) == (["new.log", "out"], 2, 2)
    monkeypatch.setattr("metasync.maintenance.status.IGNORED_MAX", 1)
    assert "  new.log\n  ... and 1 more\n" in lab.cli("status", "--verbose").out
    document = json.loads(lab.cli("push", "--json").out)
    assert len(document["warnings"]) == 1


def test_missing_paths_are_not_brought_over_what_stands_there(lab: Lab) -> None:
    """Put back by hand before the pull, with another content: that is an edit, and stays."""
    w, c = pair(lab, {"p": b"one", "x": b"x"})
    write(w.directory, {NAME: b"p\n"})
    w.push()
    (w.directory / "p").unlink()
    (w.directory / NAME).unlink()
    w.push()
    assert w._db.unplaced() == {b"p": scanning.MISSING}
    write(w.directory, {"p": b"mine"})
    w.pull()
    assert (w.directory / "p").read_bytes() == b"mine"
    w.push()
    c.pull()
    assert (c.directory / "p").read_bytes() == b"mine"
    assert paths(c) == {"p", "x"}
