"""Three-way merge of trees: an example of every rule."""

from __future__ import annotations

from typing import NoReturn

import pytest
from merge_kit import LABEL, D, Lazy, Tree, applied, file, folder, link, merged_tree, run

from metasync.codec import TAGS_MAX
from metasync.merge.trees import TEXT_BYTES_MAX, Conflict, Merge, Reason, TextMerge, diff, merge
from metasync.objects.model import Entry, Kind
from metasync.reports.sync import Met


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        # changed on one side only
        (file(b"1"), file(b"1"), file(b"2"), file(b"2")),
        (file(b"1"), file(b"2"), file(b"1"), file(b"2")),
        (file(b"1"), file(b"1"), None, None),
        (file(b"1"), None, file(b"1"), None),
        (None, file(b"1"), None, file(b"1")),
        (None, None, file(b"1"), file(b"1")),
        (file(b"1"), file(b"1"), link(b"x"), link(b"x")),
        (file(b"1"), None, None, None),
        # deleted here, changed there, even if only touched
        (file(b"1"), None, file(b"2"), file(b"2")),
        (file(b"1"), file(b"2"), None, file(b"2")),
        (file(b"1"), None, file(b"1", 11), file(b"1", 11)),
        (file(b"1"), file(b"1", mode=0o755), None, file(b"1", mode=0o755)),
        (folder(0o755), None, folder(0o700), folder(0o700)),
        (folder(0o755), folder(0o700), None, folder(0o700)),
        # the same bytes
        (file(b"1"), file(b"2", 30), file(b"2", 20), file(b"2", 30)),
        (file(b"1"), file(b"2", 20), file(b"2", 30), file(b"2", 30)),
        (None, file(b"2", 30), file(b"2", 20), file(b"2", 30)),
        (None, file(b"2", 20), file(b"2", 30), file(b"2", 30)),
        (None, link(b"x", 30), link(b"x", 20), link(b"x", 30)),
        (link(b"y"), link(b"x", 20), link(b"x", 30), link(b"x", 30)),
        (file(b"2", 10), file(b"2", 30), file(b"2", 20), file(b"2", 30)),
        (file(b"1", 30), file(b"2", 30), file(b"2", 20), file(b"2", 30)),
        # a date set back on purpose is a change like another
        (file(b"1", 10), file(b"1", 5), file(b"1", 10, 0o600), file(b"1", 5, 0o600)),
        (file(b"1", 10), file(b"1", 10, 0o600), file(b"1", 5), file(b"1", 5, 0o600)),
        # modes, three-way
        (file(b"1"), file(b"2", mode=0o600), file(b"2"), file(b"2", mode=0o600)),
        (file(b"1"), file(b"2"), file(b"2", mode=0o600), file(b"2", mode=0o600)),
        (file(b"1"), file(b"2", mode=0o700), file(b"2", mode=0o600), file(b"2", mode=0o600)),
        (None, file(b"2", mode=0o700), file(b"2", mode=0o600), file(b"2", mode=0o600)),
        (link(b"x"), file(b"2", mode=0o700), file(b"2", mode=0o600), file(b"2", mode=0o600)),
        (folder(0o700), file(b"2", mode=0o600), file(b"2", mode=0o700), file(b"2", mode=0o700)),
        (folder(0o755), folder(0o700), folder(0o711), folder(0o711)),
        (None, folder(0o700), folder(0o711), folder(0o711)),
        (folder(0o755), folder(0o700), folder(0o755), folder(0o700)),
        # content on one side, metadata on the other: the content comes with its mtime
        (file(b"1", 10), file(b"1", 99), file(b"2", 20), file(b"2", 20)),
        (file(b"1", 10), file(b"2", 20), file(b"1", 99), file(b"2", 20)),
        (file(b"1", 10), file(b"1", 99, 0o600), file(b"2", 20), file(b"2", 20, 0o600)),
        (file(b"1", 10), file(b"2", 20), file(b"1", 99, 0o600), file(b"2", 20, 0o600)),
        (link(b"x"), link(b"x", 99), link(b"y", 20), link(b"y", 20)),
        # another kind on one side, metadata on the other
        (file(b"1"), file(b"1", 99, 0o600), link(b"x"), link(b"x")),
        (file(b"1"), folder(0o700), file(b"1", 99, 0o600), folder(0o700)),
        (folder(0o755), folder(0o700), file(b"1"), file(b"1")),
        (folder(0o755), file(b"1"), folder(0o700), file(b"1")),
    ],
)
def test_no_conflict(base: Entry | None, ours: Entry | None, theirs: Entry | None, merged: Entry | None) -> None:
    trees: list[Tree] = [{b"p": entry} if entry else {} for entry in (base, ours, theirs, merged)]
    result = run(*trees[:3])
    assert applied(trees[1], result.changes) == trees[3]
    assert (result.conflicts, result.text) == ((), ())


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "reason"),
    [
        (file(b"1"), file(b"2"), file(b"3"), Reason.EDITED),
        (None, file(b"2"), file(b"3"), Reason.ADDED),
        (link(b"1"), file(b"2"), file(b"3"), Reason.ADDED),
        (link(b"1"), link(b"2"), link(b"3"), Reason.EDITED),
        (None, link(b"2"), link(b"3"), Reason.ADDED),
        (None, file(b"2"), link(b"2"), Reason.KINDS),
        (None, link(b"2"), file(b"2"), Reason.KINDS),
        (file(b"1"), file(b"2"), link(b"3"), Reason.KINDS),
        (None, file(b"2"), folder(0o700), Reason.KINDS),
        (None, link(b"2"), folder(0o700), Reason.KINDS),
        (file(b"1"), file(b"2"), folder(0o700), Reason.KINDS),
        (None, folder(0o700), file(b"2"), Reason.KINDS),
        (file(b"1"), folder(0o700), file(b"2"), Reason.KINDS),
        (folder(), link(b"1"), file(b"2"), Reason.KINDS),
    ],
)
def test_conflict(base: Entry | None, ours: Entry, theirs: Entry, reason: Reason) -> None:
    """The agreed side keeps the name, and both entries stay as they are."""
    trees: list[Tree] = [{b"d": D, b"d/p.txt": entry} if entry else {b"d": D} for entry in (base, ours, theirs)]
    result = run(*trees)
    assert applied(trees[1], result.changes) == {b"d": D, b"d/p.txt": theirs, b"d/p.conflict-pad-20261122.txt": ours}
    assert result.conflicts == (Conflict(b"d/p.txt", b"d/p.conflict-pad-20261122.txt", reason),)


def test_a_text_is_merged_in_one_batch() -> None:
    base = {b"a": file(b"1", 1), b"b": file(b"1", 1), b"c": file(b"1", 1), b"d": file(b"1", 9)}
    ours = {b"a": file(b"2", 5, 0o600), b"b": file(b"2", 5), b"c": file(b"2", 5), b"d": file(b"2", 5)}
    theirs = {b"a": file(b"3", 4, tags=((7, b"x"),)), b"b": file(b"3", 6), b"c": file(b"3", 6), b"d": file(b"3", 6)}
    task = merge(base, ours, theirs, LABEL)
    requests = next(task)
    assert requests == tuple(TextMerge(path, base[path], ours[path], theirs[path]) for path in (b"a", b"b", b"c", b"d"))
    text = Entry(Kind.FILE, 0o777, 99, 4, b"text", b"root", ((1, b"no"),))
    with pytest.raises(StopIteration) as done:
        task.send({b"a": text, b"b": None, b"d": text})  # no answer counts as None
    result = done.value.value
    assert result.text == (requests[0], requests[3])
    assert result.changes == {
        b"a": Entry(Kind.FILE, 0o600, 5, 4, b"text", b"root", ((7, b"x"),)),
        b"b": theirs[b"b"],
        b"b.conflict-pad-20261122": ours[b"b"],
        b"c": theirs[b"c"],
        b"c.conflict-pad-20261122": ours[b"c"],
        b"d": Entry(Kind.FILE, 0o644, 6, 4, b"text", b"root"),
    }
    assert [conflict.path for conflict in result.conflicts] == [b"b", b"c"]


@pytest.mark.parametrize(
    "sides",
    [
        (None, file(b"2"), file(b"3")),
        (link(b"1"), file(b"2"), file(b"3")),
        (link(b"1"), link(b"2"), link(b"3")),
        (file(b"1", size=TEXT_BYTES_MAX + 1), file(b"2"), file(b"3")),
        (file(b"1"), file(b"2", size=TEXT_BYTES_MAX + 1), file(b"3")),
        (file(b"1"), file(b"2"), file(b"3", size=TEXT_BYTES_MAX + 1)),
    ],
)
def test_what_is_no_text_is_not_asked_for(sides: tuple[Entry | None, ...]) -> None:
    def never(request: TextMerge) -> NoReturn:
        raise AssertionError(request)

    base, ours, theirs = ({b"p": entry} if entry else {} for entry in sides)
    assert len(run(base, ours, theirs, never).conflicts) == 1
    base, ours, theirs = ({b"p": file(content, size=TEXT_BYTES_MAX)} for content in (b"1", b"2", b"3"))
    with pytest.raises(AssertionError):
        run(base, ours, theirs, never)


def test_a_chunked_file_keeps_the_agreed_root() -> None:
    base, ours = {b"p": file(b"1")}, {b"p": file(b"2", 30)._replace(root=b"ours")}
    theirs = {b"p": file(b"2", 20)._replace(root=b"theirs")}
    assert run(base, ours, theirs).changes == {b"p": file(b"2", 30)._replace(root=b"theirs")}


def test_tags_merge_one_by_one() -> None:
    base = {b"p": file(b"1", tags=((1, b"a"), (2, b"a"), (3, b"a"), (4, b"a"), (5, b"a"), (6, b"a")))}
    ours = {b"p": file(b"1", tags=((1, b"o"), (3, b"o"), (4, b"o"), (5, b"a"), (6, b"a"), (7, b"o"), (9, b"o")))}
    theirs = {b"p": file(b"2", tags=((1, b"a"), (2, b"a"), (3, b"t"), (5, b"t"), (8, b"t"), (9, b"t")))}
    kept = ((1, b"o"), (3, b"t"), (5, b"t"), (7, b"o"), (8, b"t"), (9, b"t"))
    assert run(base, ours, theirs).changes[b"p"] == file(b"2", tags=kept)


def test_tags_stay_few_enough_to_encode() -> None:
    full = tuple((n, b"") for n in range(TAGS_MAX))
    ours, theirs = {b"d": folder(tags=((TAGS_MAX, b""),))}, {b"d": folder(tags=full)}
    assert run({}, ours, theirs).changes == {b"d": folder(tags=full)}
    theirs = {b"d": folder(tags=full[1:])}
    assert run({}, ours, theirs).changes == {b"d": folder(tags=(*full[1:], (TAGS_MAX, b"")))}


def test_a_directory_goes_with_all_in_it() -> None:
    base = {b"d": D, b"d/e": D, b"d/e/a": file(b"1"), b"d/b": file(b"1")}
    ours = {b"d": D, b"d/e": D, b"d/e/a": file(b"1")}
    assert merged_tree(base, ours, {}) == {}
    assert merged_tree(base, {}, ours) == {}


def test_a_deleted_directory_comes_back_for_what_survives_in_it() -> None:
    base = {b"d": folder(0o700), b"d/e": folder(0o711), b"d/e/a": file(b"1"), b"d/b": file(b"1"), b"d/f": D}
    changed = base | {b"d/e/a": file(b"2")}
    expected = {b"d": folder(0o700), b"d/e": folder(0o711), b"d/e/a": file(b"2")}
    assert merged_tree(base, {}, changed) == expected
    assert merged_tree(base, changed, {}) == expected
    chmod = base | {b"d/e": folder(0o500)}
    assert merged_tree(base, {}, chmod) == {b"d": folder(0o700), b"d/e": folder(0o500)}
    added = base | {b"d/f/g": D}
    assert merged_tree(base, added, {}) == {b"d": folder(0o700), b"d/f": D, b"d/f/g": D}


def test_their_file_in_place_of_our_directory() -> None:
    base = {b"d": folder(0o700), b"d/e": folder(0o711), b"d/e/a": file(b"1"), b"d/b": file(b"1")}
    ours = base | {b"d/e/a": file(b"2"), b"d/n": file(b"new")}
    theirs = {b"d": file(b"file")}
    result = run(base, ours, theirs)
    assert applied(ours, result.changes) == {
        b"d": file(b"file"),
        b"d.conflict-pad-20261122": folder(0o700),
        b"d.conflict-pad-20261122/e": folder(0o711),
        b"d.conflict-pad-20261122/e/a": file(b"2"),
        b"d.conflict-pad-20261122/n": file(b"new"),
    }
    assert result.conflicts == (Conflict(b"d", b"d.conflict-pad-20261122", Reason.KINDS),)
    assert merged_tree(base, base, theirs) == theirs


def test_our_file_in_place_of_their_directory() -> None:
    base = {b"d": folder(0o700), b"d/e": folder(0o711), b"d/e/a": file(b"1"), b"d/b": file(b"1")}
    ours = {b"d": link(b"x")}
    theirs = base | {b"d/e/a": file(b"2"), b"d/n": file(b"new")}
    result = run(base, ours, theirs)
    assert applied(ours, result.changes) == {
        b"d": folder(0o700),
        b"d/e": folder(0o711),
        b"d/e/a": file(b"2"),
        b"d/n": file(b"new"),
        b"d.conflict-pad-20261122": link(b"x"),
    }
    assert result.conflicts == (Conflict(b"d", b"d.conflict-pad-20261122", Reason.KINDS),)
    assert merged_tree(base, ours, base) == ours


def test_file_and_directory_added_at_one_name() -> None:
    tree, leaf = {b"n.d": D, b"n.d/a": file(b"1"), b"n.d/e": D}, {b"n.d": file(b"2")}
    assert merged_tree({}, leaf, tree) == tree | {b"n.conflict-pad-20261122.d": file(b"2")}
    assert merged_tree({}, tree, leaf) == {
        b"n.d": file(b"2"),
        b"n.conflict-pad-20261122.d": D,
        b"n.conflict-pad-20261122.d/a": file(b"1"),
        b"n.conflict-pad-20261122.d/e": D,
    }


def met(result: Merge) -> list[tuple[str, bytes, str]]:
    return [(m.kind, m.path, m.here) for m in result.met]


OLD, NEW = file(b"1"), file(b"2", 30)


def test_an_edit_follows_a_rename() -> None:
    base, edited, renamed = {b"a": OLD}, {b"a": NEW}, {b"b": OLD}
    result = run(base, edited, renamed)
    assert applied(edited, result.changes) == {b"b": NEW}
    assert result.met == (Met("rename/modify", b"b", "modified", b"a"),)
    assert (result.conflicts, result.followed()) == ((), {b"b"})
    result = run(base, renamed, edited)
    assert applied(renamed, result.changes) == {b"b": NEW}
    assert result.met == (Met("rename/modify", b"b", "renamed", b"a"),)
    assert result.followed() == set()
    assert run(base, edited, renamed, stay={b"b"}).changes == {b"b": OLD}
    # modes, three-way, at the new path; a new time alone follows as well
    renamed = {b"b": OLD._replace(mode=0o600)}
    assert merged_tree(base, edited, renamed) == {b"b": NEW._replace(mode=0o600)}
    assert merged_tree(base, {b"a": OLD._replace(mtime_ns=99)}, {b"b": OLD}) == {b"b": OLD._replace(mtime_ns=99)}


def test_an_edit_follows_a_renamed_directory() -> None:
    base = {b"d": D, b"d/x": OLD, b"d/y": file(b"y"), b"d/e": D, b"d/e/z": file(b"z")}
    theirs = {b"n" + path[1:]: entry for path, entry in base.items()}
    ours = base | {b"d/x": NEW, b"d/e/z": file(b"zz")}
    assert merged_tree(base, ours, theirs) == theirs | {b"n/x": NEW, b"n/e/z": file(b"zz")}
    assert merged_tree(base, theirs, ours) == theirs | {b"n/x": NEW, b"n/e/z": file(b"zz")}
    new = ours | {b"d/new": file(b"new")}
    assert merged_tree(base, new, theirs) == theirs | {
        b"n/x": NEW, b"n/e/z": file(b"zz"), b"d": D, b"d/new": file(b"new"),
    }  # fmt: skip


def test_an_edit_follows_a_rename_into_a_directory_that_was_there() -> None:
    base = {b"a": OLD, b"d": D, b"d/e": D}
    edited, renamed = base | {b"a": NEW}, {b"d": D, b"d/e": D, b"d/e/b": OLD}
    assert merged_tree(base, edited, renamed) == merged_tree(base, renamed, edited) == renamed | {b"d/e/b": NEW}


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        # renamed and edited by one side: not the same bytes any more
        ({b"a": OLD}, {b"a": NEW}, {b"b": file(b"3")}, {b"a": NEW, b"b": file(b"3")}),
        # several files of these bytes: which went where, nobody can tell
        ({b"a": OLD, b"b": OLD}, {b"a": NEW, b"b": OLD}, {b"c": OLD, b"d": OLD}, {b"a": NEW, b"c": OLD, b"d": OLD}),
        ({b"a": OLD}, {b"a": NEW}, {b"b": OLD, b"c": OLD}, {b"a": NEW, b"b": OLD, b"c": OLD}),
        # ... but by their names
        (
            {b"a": OLD, b"b": OLD},
            {b"a": NEW, b"b": OLD},
            {b"d": D, b"d/a": OLD, b"d/b": OLD},
            {b"d": D, b"d/a": NEW, b"d/b": OLD},
        ),
        # the new name is taken, or lies below a file
        ({b"a": OLD}, {b"a": NEW, b"b": file(b"3")}, {b"b": OLD}, None),
        ({b"a": OLD}, {b"a": NEW, b"d": file(b"3")}, {b"d": D, b"d/a": OLD}, None),
        # empty files are all alike
        ({b"a": file(b"")}, {b"a": NEW}, {b"b": file(b"")}, {b"a": NEW, b"b": file(b"")}),
        # a copy is no rename
        ({b"a": OLD}, {b"a": NEW}, {b"a": OLD, b"b": OLD}, {b"a": NEW, b"b": OLD}),
        # the new name had another file before, which one side replaced and the other deleted
        ({b"a": OLD, b"b": file(b"3")}, {b"a": NEW}, {b"b": OLD}, {b"a": NEW, b"b": OLD}),
        # of two files one went, and its name came twice
        (
            {b"x": D, b"x/a": OLD, b"x/b": OLD},
            {b"x": D, b"x/a": NEW, b"x/b": OLD},
            {b"x": D, b"y": D, b"y/a": OLD, b"z": D, b"z/a": OLD},
            {b"x": D, b"x/a": NEW, b"y": D, b"y/a": OLD, b"z": D, b"z/a": OLD},
        ),
        # another kind is no edit
        ({b"a": OLD}, {b"a": link(b"x")}, {b"b": OLD}, {b"a": link(b"x"), b"b": OLD}),
    ],
)
def test_what_is_not_sure_is_no_rename(base: Tree, ours: Tree, theirs: Tree, merged: Tree | None) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        result = run(base, one, other)
        assert all(m.kind != "rename/modify" for m in result.met) or merged == {b"d": D, b"d/a": NEW, b"d/b": OLD}
        if merged is not None:
            assert applied(one, result.changes) == merged
        assert NEW in applied(one, result.changes).values() or merged is not None


def test_what_met_is_told() -> None:
    assert met(run({b"a": OLD}, {b"a": NEW}, {})) == [("modify/delete", b"a", "modified")]
    assert met(run({b"a": OLD}, {}, {b"a": NEW})) == [("modify/delete", b"a", "deleted")]
    assert met(run({b"a": OLD}, {b"b": OLD}, {})) == [("rename/delete", b"b", "renamed")]
    assert met(run({b"a": OLD}, {}, {b"b": OLD})) == [("rename/delete", b"b", "deleted")]
    assert run({b"a": OLD}, {b"a": NEW}, {}).followed() == set()
    both = run({b"a": OLD}, {b"b": OLD}, {b"c": OLD})
    assert both.met == (Met("rename/rename", b"b", "renamed", b"a", b"c"),)
    assert applied({b"b": OLD}, both.changes) == {b"b": OLD, b"c": OLD}
    for base, ours, theirs in (
        ({b"a": OLD}, {b"b": OLD}, {b"b": OLD}),
        ({b"a": OLD}, {}, {}),
        ({b"a": OLD}, {b"a": OLD}, {}),
        ({b"a": OLD}, {b"b": OLD}, {b"a": OLD}),
        ({}, {b"b": OLD}, {b"c": OLD}),
        ({b"a": OLD}, {b"b": OLD}, {b"b": file(b"3")}),  # the new name was taken there: a conflict, told as that
        ({b"a": OLD}, {b"b": file(b"3")}, {b"b": OLD}),
        ({b"d": D}, {b"d": folder(0o700)}, {}),
    ):
        assert met(run(base, ours, theirs)) == []


def test_very_deep_paths() -> None:
    paths = [b"/".join([b"x"] * n) for n in range(1, 2049)]
    base = dict.fromkeys(paths, D)
    theirs = base | {paths[-1] + b"/new": file(b"1")}
    assert merged_tree(base, {}, theirs) == theirs
    assert len(merged_tree(base, theirs, {b"x": file(b"2")})) == 2050


def test_numbers_count_up_past_every_name_in_use() -> None:
    base: Tree = {b"n.txt": file(b"1"), b"n.conflict-pad-20261122-3.txt": file(b"0")}
    ours: Tree = {b"n.txt": file(b"2"), b"n.conflict-pad-20261122.txt": file(b"0")}
    theirs: Tree = {b"n.txt": file(b"3"), b"n.conflict-pad-20261122-2.txt": D}
    assert run(base, ours, theirs).conflicts == (Conflict(b"n.txt", b"n.conflict-pad-20261122-4.txt", Reason.EDITED),)
    # Two long names that are cut to the same one.
    long = [b"x" * 249 + tail for tail in (b"1", b"2")]
    result = run({}, dict.fromkeys(long, file(b"1")), dict.fromkeys(long, file(b"2")))
    tail = b".conflict-" + LABEL
    assert [kept for _, kept, _ in result.conflicts] == [b"x" * 233 + tail, b"x" * 231 + tail + b"-2"]


def test_diff() -> None:
    a = {b"a": file(b"1"), b"b": file(b"1"), b"c": file(b"1")}
    b = {b"b": file(b"1"), b"c": file(b"2"), b"d": D}
    found = diff(a, b)
    assert found == {b"a": (file(b"1"), None), b"c": (file(b"1"), file(b"2")), b"d": (None, D)}
    assert list(found) == sorted(found)
    assert diff(a, a) == {}


def test_work_is_proportional_to_the_change() -> None:
    base = {b"d": D} | {b"d/%05d" % n: file(b"1") for n in range(20_000)}
    ours = base | {b"d/00001": file(b"2"), b"d/n": file(b"3"), b"d/00002": D, b"d/00002/x": file(b"4")}
    theirs = base | {b"d/00001": file(b"3"), b"d/00002": file(b"3")}
    lazy = Lazy(base), Lazy(ours), Lazy(theirs)
    result = run(lazy[0], lazy[1], lazy[2], paths=[b"d/00002/x", b"d/00001", b"d/00002", b"d/n"])
    assert result == run(base, ours, theirs)
    assert sum(tree.asked for tree in lazy) < 40
