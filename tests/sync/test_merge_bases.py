"""What a scan and a merge take for agreed, where they find the bytes they need, and what is told of it."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import WorkspaceError
from metasync.local.state_keys import KEPT_KEY, UNPLACED, Unplaced
from metasync.objects.model import decode_snapshot
from metasync.sync import pull
from metasync.workspace import Workspace
from metasync.worktree import scan as scan_room
from metasync.worktree.disk import Disk
from metasync.worktree.scan import Scan


def names(w: Workspace) -> list[bytes]:
    return sorted(tree_of(w.directory))


@pytest.fixture
def misled(lab: Lab) -> tuple[Workspace, Workspace]:
    """A device at a version that deleted `gone` and whose snapshot nobody can read, and another that skipped it."""
    urls = lab.urls("a", "b")
    one = lab.init(urls)
    write(one.directory, {"kept": b"k", "gone": b"g", "other": b"o", "d/f": b"f"})
    one.push()
    two = lab.clone(urls)
    stored = {path for name in "ab" for path in lab.objects(name, "packs")}
    (two.directory / "gone").unlink()
    write(two.directory, {"new": b"n"})
    bad = two.push().version
    assert bad is not None
    for path in {path for name in "ab" for path in lab.objects(name, "packs")} - stored:
        path.unlink()
    one.skip(bad, PASSPHRASE)
    one.pull()
    return two, one


def test_what_a_skipped_version_deleted_comes_again_and_what_the_user_deleted_does_not(
    misled: tuple[Workspace, Workspace],
) -> None:
    two, one = misled
    (two.directory / "other").unlink()
    two.pull()
    assert names(two) == [b"d", b"d/f", b"gone", b"kept", b"new"]
    assert two.push().changes.deleted == (b"other",)
    one.pull()
    assert tree_of(one.directory) == tree_of(two.directory)


def test_what_stands_where_a_skipped_version_deleted_a_file_stays(misled: tuple[Workspace, Workspace]) -> None:
    """It is ignored, so the scan did not take it in; nothing takes its place, and no copy of it is made."""
    two, _ = misled
    write(two.directory, {".metasyncignore": b"gone\n", "gone": b"mine"})
    assert two.pull().conflicts == ()
    assert (two.directory / "gone").read_bytes() == b"mine"
    assert names(two) == [b".metasyncignore", b"d", b"d/f", b"gone", b"kept", b"new", b"other"]


def test_what_lies_behind_a_symlink_is_not_brought_again_with_it(misled: tuple[Workspace, Workspace], lab: Lab) -> None:
    two, _ = misled
    (two.directory / "d").rename(lab.root / "elsewhere")
    (two.directory / "d").symlink_to(lab.root / "elsewhere")
    assert two.pull().unplaced == ()
    assert (two.directory / "d").is_symlink()
    assert names(two) == [b"d", b"gone", b"kept", b"new", b"other"]


def test_a_trial_of_a_pull_past_a_skipped_version_notes_nothing(misled: tuple[Workspace, Workspace]) -> None:
    two, _ = misled
    two.pull(dry_run=True)
    with two._session("status") as s:
        assert list(s.db.unplaced()) == []


def test_bytes_that_are_only_here_are_found_beside_a_symlink_that_says_the_same(lab: Lab) -> None:
    """A new file is to be a conflict copy; a symlink's target is the very bytes of it."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    one.push()
    two = lab.clone(urls)
    write(one.directory, {"f": b"of one"})
    one.push()
    write(two.directory, {"f": b"only here"})
    (two.directory / "l").symlink_to("only here")
    (conflict,) = two.pull().conflicts
    assert (two.directory / conflict.sides[1].path.decode()).read_bytes() == b"only here"
    assert (two.directory / "f").read_bytes() == b"of one"


def test_an_edit_that_a_pull_saw_and_that_was_ignored_for_a_while_is_still_an_edit(lab: Lab) -> None:
    """The row of the file has the edit, the agreed tree has not: after a push of other files as well."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"f": b"agreed"})
    one.push()
    two = lab.clone(urls)
    write(one.directory, {"other": b"o"})
    one.push()
    write(two.directory, {"f": b"edited"})
    two.pull()
    write(two.directory, {".metasyncignore": b"f\n"})
    assert two.push().changes.added == (b".metasyncignore",)
    (two.directory / ".metasyncignore").unlink()
    assert two.push().changes.modified == (b"f",)
    one.pull()
    assert (one.directory / "f").read_bytes() == b"edited"


def test_names_that_others_cannot_hold_are_told_in_whatever_order_they_were_read(lab: Lab) -> None:
    """Directories are seen before files are read: these two stand far apart."""
    one = lab.init(lab.urls("a", kind="memory"))
    write(one.directory, {"d/A/x": b"1", "d/a": b"2", "e/x": b"3"})
    assert [odd.path for odd in one.push().unportable] == [b"d/A", b"d/a"]


def test_old_names_that_others_cannot_hold_are_not_told_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are edited, among more files than are held in memory."""
    one = lab.init(lab.urls("a", kind="memory"))
    write(one.directory, {"a:b": b"1", "c": b"2", "d": b"3"})
    assert [odd.path for odd in one.push().unportable] == [b"a:b"]
    monkeypatch.setattr(scan_room, "HELD_MAX", 1)
    write(one.directory, {"a:b": b"4", "c": b"5", "d": b"6"})
    assert one.push().unportable == ()


def test_a_directory_is_named_only_where_nothing_inside_it_is(lab: Lab) -> None:
    one = lab.init(lab.urls("a", kind="memory"))
    write(one.directory, {"d/f": b"1", "e/f": b"2"})
    one.push()
    for name in "de":
        (one.directory / name).chmod(0o700)
    write(one.directory, {"d/new": b"3"})
    changes = one.push().changes
    assert (changes.added, changes.modified) == ((b"d/new",), (b"e",))


def test_a_busy_file_is_no_source(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of several chunks comes that another one here has. That one is being written: the bytes are fetched."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    large = random.Random(1).randbytes(5 << 20)
    write(one.directory, {"live": large})
    one.push()
    two = lab.clone(urls)
    write(one.directory, {"copy": large})
    one.push()
    scan = pull.scan

    def busy(*args: Any) -> Scan:
        seen = scan(*args)
        (two.directory / "live").write_bytes(large[::-1])
        seen.tree.revert(b"live")
        seen.put_rows.pop(b"live", None)
        seen.busy.append(b"live")
        return seen

    monkeypatch.setattr(pull, "scan", busy)
    two.pull()
    assert (two.directory / "copy").read_bytes() == large


def test_no_word_of_room_where_there_is_enough(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    two = lab.clone(urls)
    write(one.directory, {"f": b"f"})
    one.push()
    assert two.pull().warnings == ()


def test_a_clone_is_whole_where_a_pull_lets_files_wait_for_room(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    two = lab.clone(urls)
    write(one.directory, {f"f{i}": b"%d" % i * 9_000 for i in range(9)})
    one.push()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 70_000)
    assert two.pull().unplaced != ()
    with pytest.raises(WorkspaceError, match="Free some space"):
        lab.clone(urls, device="third")
    assert [path.name for path in (lab.root / "third").iterdir()] == [".metasync"]


def test_a_folder_that_has_no_rows_has_deleted_nothing(lab: Lab) -> None:
    """Of what the version that it left lacks, a restart's first version has files again."""
    one = lab.init(lab.urls("a", kind="memory"))
    write(one.directory, {"f": b"f"})
    one.push()
    with one._session("pull") as s, s.db.transaction():
        base = s.base()
        assert [path for path, _ in pull._deleted(s, replace(base, snapshot=None), base)] == []
        s.db.delete_rows([b"", b"f"])
        assert pull._deleted(s, replace(base, snapshot=None), base) == []


def test_a_trial_of_a_pull_does_not_take_the_folder_to_a_version_with_the_same_files(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"f": b"f"})
    one.push()
    lab.clone(urls)  # which is taken in, by a version of its own
    before = one.status().version
    assert one.pull(dry_run=True).before == before
    with one._session("status") as s:
        assert s.base_state().v == before
    assert one.pull().version > before


def test_what_waited_for_another_try_and_is_agreed_no_more_is_forgotten(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"f": b"f"})
    one.push()
    with one._session("pull") as s:
        s.db.put_records(UNPLACED, [Unplaced(b"no/such", "no room")])
    write(one.directory, {".metasyncignore": b"no/\n", "no/such": b"the user's"})
    report = one.pull()
    assert (report.unplaced, report.skipped) == ((), ())
    with one._session("status") as s:
        assert list(s.db.unplaced()) == []
    assert (one.directory / "no/such").read_bytes() == b"the user's"


def test_a_conflict_whose_copy_comes_again_after_it_was_deleted_here_is_told_anew(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    one.push()
    two = lab.clone(urls)
    write(one.directory, {"f": b"of one"})
    one.push()
    write(two.directory, {"f": b"of two"})
    (conflict,) = two.pull().conflicts
    two.push()
    one.pull()
    copy = conflict.sides[1].path.decode()
    os.utime(two.directory / copy, ns=(10**17, 10**17))
    two.push()
    assert one.pull().resolved == (), "it came again, and is one still"
    (one.directory / copy).unlink()
    os.utime(two.directory / copy, ns=(10**18, 10**18))
    two.push()
    report = one.pull()
    assert [c.path for c in report.conflicts] == [b"f"]
    assert report.resolved == ()


def test_what_a_clean_merge_replaces_is_a_version_on_top_of_the_base(lab: Lab) -> None:
    """The edit of this device that was merged with another's is kept in the history, after the version it began at."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    lines = [b"line %d\n" % n for n in range(9)]
    write(one.directory, {"text": b"".join(lines)})
    one.push()
    two = lab.clone(urls)
    with two._session("status") as s:
        base = s.base_state().master
    write(one.directory, {"text": b"".join([b"by one\n", *lines])})
    one.push()
    write(two.directory, {"text": b"".join([*lines, b"by two\n"])})
    assert two.pull().merged == (b"text",)
    with two._session("status") as s:
        staged = {i: data for i, _, data in s.db.staged()}
        assert decode_snapshot(staged[s.db.need(KEPT_KEY)]).parents == (base,)
