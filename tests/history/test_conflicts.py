"""Conflicts that wait, and the choice between their sides: nothing that loses is destroyed."""

from __future__ import annotations

import os
import shutil

import pytest
from effort import few_and_many
from test_restore import every_call, kept
from workspace_kit import Lab, tree_of, write

from metasync.errors import UsageError
from metasync.history import conflicts as conflicting
from metasync.merge.trees import conflict_name, copied_from
from metasync.sync.operations import settle_replaced
from metasync.workspace import Workspace


@pytest.fixture
def two(lab: Lab) -> tuple[Workspace, Workspace]:
    """A laptop, and a desktop on which its pull found conflicts: a file, and a directory that moved aside."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"notes.txt": b"base\n", "other": b"o", "thing": b"a file"})
    w.push("first")
    c = lab.clone(urls)
    write(w.directory, {"notes.txt": b"laptop\n", "thing": b"still a file, edited"})
    w.push("laptop")
    write(c.directory, {"notes.txt": b"desktop\n"})
    (c.directory / "thing").unlink()
    write(c.directory, {"thing/in/x": b"x", "thing/y": b"y"})
    c.pull()
    return w, c


def test_recorded_conflicts(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    notes, thing = c.conflicts()
    assert (notes.path, notes.copy) == (b"notes.txt", b"notes.conflict.1.txt")
    assert (thing.path, thing.copy) == (b"thing", b"thing.conflict.1")
    assert (notes.recorded, notes.version, notes.device) == (True, 3, "laptop")
    assert notes.time_ns == w.log()[0].time_ns
    assert notes.reason == "edited on both sides"
    assert w.conflicts() == ()
    (c.directory / "notes.conflict.1.txt").unlink()
    assert [x.path for x in c.conflicts()] == [b"thing"]


def test_conflicts_that_arrive_are_told_by_their_names(two: tuple[Workspace, Workspace], lab: Lab) -> None:
    w, c = two
    write(c.directory, {"a.conflict.1.txt": b"no original beside it", "x.conflict.0": b"", "conflict.1": b""})
    c.push("with conflicts")
    w.pull()
    found = {x.copy: x for x in w.conflicts()}
    assert set(found) == {b"notes.conflict.1.txt", b"thing.conflict.1"}
    notes = found[b"notes.conflict.1.txt"]
    assert (notes.recorded, notes.version, notes.device) == (False, 4, "desktop")
    assert notes.time_ns == w.log()[0].time_ns
    assert w.status().conflicts == ()
    ran = lab.cli("conflicts")
    assert ran.code == 3
    assert "notes.txt: also as notes.conflict.1.txt (found by its name" in ran.out
    assert "desktop" in ran.out
    w.resolve("notes.txt", "both")
    assert {x.copy for x in w.conflicts()} == {b"thing.conflict.1"}
    w.resolve("thing", "theirs")
    assert w.conflicts() == ()
    assert lab.cli("conflicts").code == 0
    w.push("resolved")
    c.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    assert not (c.directory / "thing.conflict.1").exists()


@pytest.mark.parametrize("named", ["original", "copy"])
@pytest.mark.parametrize("keep", ["mine", "theirs", "both"])
def test_a_file(two: tuple[Workspace, Workspace], lab: Lab, keep: str, named: str) -> None:
    w, c = two
    r = c.resolve("notes.txt" if named == "original" else "notes.conflict.1.txt", keep)  # type: ignore[arg-type]
    assert (r.path, r.copies, r.keep) == (b"notes.txt", (b"notes.conflict.1.txt",), keep)
    text = (c.directory / "notes.txt").read_bytes()
    assert text == (b"desktop\n" if keep == "mine" else b"laptop\n")
    assert (c.directory / "notes.conflict.1.txt").exists() == (keep == "both")
    assert {b"desktop\n", b"laptop\n"} <= kept(c)
    assert [x.path for x in c.conflicts()] == [x.path for x in c.status().conflicts] == [b"thing"]
    if keep != "both":
        (lost,) = r.replaced
        assert (c.directory / lost.at).read_bytes() == (b"laptop\n" if keep == "mine" else b"desktop\n")
        assert lost.path == (b"notes.txt" if keep == "mine" else b"notes.conflict.1.txt")
    c.push("resolved")
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    with pytest.raises(UsageError, match=r"no conflict at notes\.txt"):
        c.resolve("notes.txt", keep)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", ["mine", "theirs", "both"])
def test_a_directory(two: tuple[Workspace, Workspace], keep: str) -> None:
    w, c = two
    c.resolve("thing", keep)  # type: ignore[arg-type]
    now = tree_of(c.directory)
    contents = {b"x", b"y", b"still a file, edited"}
    assert contents <= kept(c)
    if keep == "mine":
        assert now[b"thing/in/x"].data == b"x"
    else:
        assert now[b"thing"].data == b"still a file, edited"
    assert (b"thing.conflict.1/in/x" in now) == (keep == "both")
    assert not any(x.path == b"thing" for x in c.conflicts())
    c.push("resolved")
    w.pull()
    assert tree_of(w.directory) == now


MINE = {"both": b"mine", "same": b"s", "new/n": b"n"}


def test_a_directory_in_place_of_one(lab: Lab) -> None:
    """`mine` takes a directory's place: what only the other side has goes, what is in both is compared."""
    w = lab.init(lab.urls("a", kind="memory"))
    write(
        w.directory,
        {
            "d/both": b"1",
            "d/only": b"2",
            "d/same": b"s",
            "d.conflict.1/both": b"mine",
            "d.conflict.1/same": b"s",
            "d.conflict.1/new/n": b"n",
        },
    )
    w.push()
    assert [x.copy for x in w.conflicts()] == [b"d.conflict.1"]
    r = w.resolve("d", "mine")
    assert {p: n.data for p, n in tree_of(w.directory / "d").items() if n.kind == "file"} == {
        b"both": b"mine", b"same": b"s", b"new/n": b"n",
    }  # fmt: skip
    assert {k.path for k in r.replaced} == {b"d/both", b"d/only"}
    assert not (w.directory / "d.conflict.1").exists()


def test_several_copies(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f.txt": b"0", "f.conflict.1.txt": b"1", "f.conflict.2.txt": b"2", "f.conflict.3.txt": b"3"})
    w.push()
    with pytest.raises(UsageError, match="has 3 conflict copies") as e:
        w.resolve("f.txt", "mine")
    assert "f.conflict.2.txt" in e.value.next_step
    w.resolve("f.conflict.2.txt", "mine")
    assert (w.directory / "f.txt").read_bytes() == b"2"
    assert {x.copy for x in w.conflicts()} == {b"f.conflict.1.txt", b"f.conflict.3.txt"}
    w.resolve("f.conflict.1.txt", "both")
    r = w.resolve("f.txt", "theirs")
    assert r.copies == (b"f.conflict.3.txt",)
    assert w.conflicts() == ()
    assert (w.directory / "f.conflict.1.txt").exists()
    assert {b"0", b"2", b"3"} <= kept(w)


def test_the_original_is_gone(two: tuple[Workspace, Workspace]) -> None:
    _, c = two
    (c.directory / "notes.txt").unlink()
    assert b"notes.txt" in {x.path for x in c.conflicts()}
    c.resolve("notes.txt", "mine")
    assert (c.directory / "notes.txt").read_bytes() == b"desktop\n"


def test_unsaved_edits_of_both_sides_are_kept(two: tuple[Workspace, Workspace]) -> None:
    _, c = two
    write(c.directory, {"notes.txt": b"edited since\n", "notes.conflict.1.txt": b"edited too\n"})
    c.resolve("notes.txt", "mine")
    assert (c.directory / "notes.txt").read_bytes() == b"edited too\n"
    assert b"edited since\n" in kept(c)
    c.push()
    with c._session("test") as s:
        settle_replaced(s)
    assert b"edited since\n" in kept(c), "no version holds it"


def test_saved_at_the_last_moment(two: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch) -> None:
    _, c = two
    real = conflicting.deliver

    def late(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        write(c.directory, {"notes.txt": b"late\n"})

    monkeypatch.setattr(conflicting, "deliver", late)
    r = c.resolve("notes.txt", "mine")
    assert [x.path for x in r.conflicts] == [b"notes.txt"]
    assert b"late\n" in kept(c)
    assert (c.directory / "notes.txt").read_bytes() == b"desktop\n"
    assert b"notes.txt" in {x.path for x in c.conflicts()}


def test_both_is_forgotten_with_the_copy(lab: Lab) -> None:
    w = lab.init(lab.urls("a", kind="memory"))
    write(w.directory, {"f": b"0", "f.conflict.1": b"1"})
    w.push()
    w.resolve("f", "both")
    assert w.conflicts() == ()
    (w.directory / "f.conflict.1").unlink()
    w.push()
    write(w.directory, {"f.conflict.1": b"another"})
    w.push()
    assert w.conflicts() == ()  # nothing was resolved in between: the note is still of this name
    write(w.directory, {"g": b"0", "g.conflict.1": b"1"})
    w.push()
    (w.directory / "f.conflict.1").unlink()
    w.resolve("g", "both")
    write(w.directory, {"f.conflict.1": b"another"})
    w.push()
    assert [x.copy for x in w.conflicts()] == [b"f.conflict.1"]


@few_and_many("stride", 5, 1)
@pytest.mark.parametrize("keep", ["mine", "theirs"])
def test_killed_at_every_call(
    two: tuple[Workspace, Workspace], lab: Lab, monkeypatch: pytest.MonkeyPatch, keep: str, stride: int
) -> None:
    _, c = two
    before = tree_of(c.directory)
    sides = {b"x", b"y", b"still a file, edited"}

    def check(w: Workspace) -> bool:
        assert sides <= kept(w)
        now = tree_of(w.directory)
        waiting = {x.path for x in w.conflicts()}
        if now == before:
            assert waiting == {b"notes.txt", b"thing"}
            return False
        assert b"thing.conflict.1" not in now
        assert (b"thing/in/x" in now) == (keep == "mine")
        assert waiting == {b"notes.txt"}
        assert {x.path for x in w.status().conflicts} == {b"notes.txt"}
        return True

    outcomes = every_call(lab, c, monkeypatch, lambda w: w.resolve("thing", keep), check, stride)  # type: ignore[arg-type]
    assert min(outcomes.values()) > 5 // stride


@pytest.mark.parametrize(
    "path", [b"notes.txt", b"Makefile", b"a/b/c.tar.gz", b".profile", b"a.b/c", b"n\xc3\xa4.txt", b"\xff.x", b"no.ext."]
)
def test_the_name_of_a_copy_tells_its_original(path: bytes) -> None:
    for n in (1, 7, 10_000):
        assert copied_from(conflict_name(path, n)) == path
    assert copied_from(path) is None


def test_names_that_are_no_copies() -> None:
    for name in (b"x.conflict.0", b"x.conflict.", b"conflict.1", b".conflict.1", b"x.conflict.01", b"x.conflict.1.a.b"):
        assert copied_from(name) is None


def test_odd_names_on_the_command_line(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    top = os.fsencode(w.directory)
    for name in (b"\x1b[31m\xff.txt", b"\x1b[31m\xff.conflict.1.txt"):
        with open(os.path.join(top, name), "wb") as f:
            f.write(name)
    w.push()
    for words in (("conflicts",), ("ls",), ("log", os.fsdecode(b"\x1b[31m\xff.txt")), ("diff", "0", "1", "--text")):
        ran = lab.cli(*words)
        assert ran.code in (0, 3), ran
        assert "\\x1b[31m\\xff" in ran.out
        assert "\x1b" not in ran.out
    assert lab.cli("conflicts", "--json").json["conflicts"][0]["path"] == "\\x1b[31m\\xff.txt"
    ran = lab.cli("resolve", os.fsdecode(b"\x1b[31m\xff.txt"), "--keep", "mine")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    shutil.rmtree(lab.store("a"))
    shutil.rmtree(lab.store("b"))
    assert lab.cli("conflicts").code == 0, "asks nobody"
