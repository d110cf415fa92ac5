"""Conflicts that wait, and the choice between their sides: nothing that loses is destroyed."""

from __future__ import annotations

import os

import pytest
from effort import few_and_many
from test_restore import every_call
from test_restore import kept as contents_kept
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import UsageError
from metasync.history import conflicts as conflicting
from metasync.reports.history import Merged
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


NOTES, THING = "notes.conflict-desktop-20261122.txt", "thing.conflict-desktop-20261122"


def short(
    w: Workspace,
) -> list[tuple[str, str, tuple[str | None, bool, int | None], tuple[str | None, bool, int | None]]]:
    """Each conflict's paths and reason, and device, here, version of both sides."""
    return [(os.fsdecode(c.kept), c.reason, *((x.device, x.here, x.version) for x in c.sides)) for c in w.conflicts()]  # type: ignore[misc]


@pytest.mark.long
def test_both_sides_are_known_on_every_device(two: tuple[Workspace, Workspace], lab: Lab) -> None:
    w, c = two
    kinds = "a file, a directory or a link on one side is something else on the other"
    assert short(c) == [
        (NOTES, "edited on both sides", ("laptop", False, 3), ("desktop", True, 2)),
        (THING, kinds, ("laptop", False, 3), ("desktop", True, 2)),
    ]
    assert c.conflicts() == c.status().conflicts
    assert c.conflicts()[0].sides[0].time_ns == w.log()[0].time_ns
    assert w.conflicts() == ()
    c.push("with conflicts")
    pulled = w.pull()
    assert pulled.conflicts == w.conflicts() == w.status().conflicts
    assert short(w) == [
        (NOTES, "edited on both sides", ("laptop", True, 3), ("desktop", False, 2)),
        (THING, kinds, ("laptop", True, 3), ("desktop", False, 2)),
    ]
    assert w.pull().conflicts == (), "told once"
    phone = Workspace.clone(
        lab.root / "phone", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE, device_name="phone"
    )
    with phone.workspace as p:
        assert [(c.kept, c.sides[0].device, c.sides[1].device) for c in phone.conflicts] == [
            (NOTES.encode(), "laptop", "desktop"), (THING.encode(), "laptop", "desktop"),
        ]  # fmt: skip
        assert p.conflicts() == phone.conflicts
        for keep in ("ours", "theirs"):
            with pytest.raises(UsageError, match=r"sides? of the conflict at notes\.txt") as e:
                p.resolve("notes.txt", keep)  # type: ignore[arg-type]
            assert e.value.next_step == f"Name the file to keep with --keep: notes.txt (laptop), {NOTES} (desktop)."
        p.resolve("notes.txt", NOTES.encode())
        p.push("resolved by a third")
    assert w.pull().resolved == c.pull().resolved == (b"notes.txt",)
    for x in (w, c):
        assert [os.fsdecode(k.kept) for k in x.conflicts()] == [THING]
        assert (x.directory / "notes.txt").read_bytes() == b"desktop\n"


def test_who_agreed_what_among_many_versions(lab: Lab) -> None:
    """The other side is of the version and device that changed this path last, not of the newest version."""
    urls = lab.urls("a", "b", "c", kind="memory")
    w, c, p = lab.init(urls), lab.clone(urls), lab.clone(urls, device="phone")
    write(w.directory, {"one": b"\0base", "two": b"\0base"})
    w.push()
    c.pull(), p.pull()
    write(c.directory, {"one": b"\0c", "two": b"\0c"})
    write(w.directory, {"one": b"\0w"})
    w.push()
    p.pull()
    write(p.directory, {"two": b"\0p"})
    p.push()
    write(w.directory, {"other": b"1"})
    w.push()
    c.pull()
    assert [(x[2], x[3]) for x in short(c)] == [
        (("laptop", False, 4), ("desktop", True, 3)),
        (("phone", False, 5), ("desktop", True, 3)),
    ]


def test_a_dry_run_tells_conflicts_that_would_arrive(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    c.push()
    told = w.pull(dry_run=True).conflicts
    assert w.conflicts() == ()
    assert w.pull().conflicts == told != ()


def test_names_alone_are_no_conflicts(lab: Lab) -> None:
    w = lab.init(lab.urls("a", kind="memory"))
    write(w.directory, {"f": b"0", "f.conflict-laptop-20261122": b"1"})
    w.push()
    assert w.conflicts() == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_resolved_by_hand(two: tuple[Workspace, Workspace], how: str) -> None:
    w, c = two
    c.push()
    w.pull()
    if how == "deleted":
        (w.directory / NOTES).unlink()
    else:
        (w.directory / NOTES).rename(w.directory / "desktop's notes.txt")
    assert [x.path for x in w.conflicts()] == [b"thing"]
    w.push()
    assert c.pull().resolved == (b"notes.txt",)
    for x in (w, c):
        assert [k.path for k in x.conflicts()] == [k.path for k in x.status().conflicts] == [b"thing"]


def test_a_conflict_goes_with_its_directory(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    w, c = lab.init(urls), lab.clone(urls)
    write(w.directory, {"d/f": b"\0w"})
    write(c.directory, {"d/f": b"\0c"})
    w.push()
    c.push()
    w.pull()
    (w.directory / "d").rename(w.directory / "e")
    w.push()
    c.pull()
    for x in (w, c):
        assert [(k.path, k.kept) for k in x.conflicts()] == [(b"e/f", b"e/f.conflict-desktop-20261122")]
    w.resolve("e/f", "theirs")
    w.push()
    c.pull()
    assert w.conflicts() == c.conflicts() == ()
    assert (c.directory / "e/f").read_bytes() == b"\0c"


def test_an_edited_copy_is_a_conflict_still(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    c.push()
    w.pull()
    write(w.directory, {NOTES: b"edited by the laptop\n"})
    w.push()
    c.pull()
    assert len(c.conflicts()) == len(w.conflicts()) == 2
    c.resolve(NOTES, "ours")
    assert (c.directory / "notes.txt").read_bytes() == b"edited by the laptop\n"


@pytest.mark.few
@pytest.mark.parametrize("named", ["original", "copy"])
@pytest.mark.parametrize("keep", ["ours", "theirs", "both"])
def test_a_file(two: tuple[Workspace, Workspace], lab: Lab, keep: str, named: str) -> None:
    w, c = two
    r = c.resolve("notes.txt" if named == "original" else "notes.conflict-desktop-20261122.txt", keep)  # type: ignore[arg-type]
    kept = {"ours": NOTES.encode(), "theirs": b"notes.txt", "both": None}[keep]
    assert (r.path, r.copies, r.kept) == (b"notes.txt", (NOTES.encode(),), kept)
    text = (c.directory / "notes.txt").read_bytes()
    assert text == (b"desktop\n" if keep == "ours" else b"laptop\n")
    assert (c.directory / "notes.conflict-desktop-20261122.txt").exists() == (keep == "both")
    assert {b"desktop\n", b"laptop\n"} <= contents_kept(c)
    assert [x.path for x in c.conflicts()] == [x.path for x in c.status().conflicts] == [b"thing"]
    if keep != "both":
        (lost,) = r.replaced
        assert (c.directory / lost.at).read_bytes() == (b"laptop\n" if keep == "ours" else b"desktop\n")
        assert lost.path == (b"notes.txt" if keep == "ours" else b"notes.conflict-desktop-20261122.txt")
    c.push("resolved")
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    with pytest.raises(UsageError, match=r"no conflict at notes\.txt"):
        c.resolve("notes.txt", keep)  # type: ignore[arg-type]


@pytest.mark.few(1)
@pytest.mark.parametrize("keep", ["ours", "theirs", "both"])
def test_a_directory(two: tuple[Workspace, Workspace], keep: str) -> None:
    w, c = two
    c.resolve("thing", keep)  # type: ignore[arg-type]
    now = tree_of(c.directory)
    contents = {b"x", b"y", b"still a file, edited"}
    assert contents <= contents_kept(c)
    if keep == "ours":
        assert now[b"thing/in/x"].data == b"x"
    else:
        assert now[b"thing"].data == b"still a file, edited"
    assert (b"thing.conflict-desktop-20261122/in/x" in now) == (keep == "both")
    assert not any(x.path == b"thing" for x in c.conflicts())
    c.push("resolved")
    w.pull()
    assert tree_of(w.directory) == now


def test_a_directory_in_place_of_one(lab: Lab) -> None:
    """The copy takes a directory's place: what only the other side has goes, what is in both is compared."""
    urls = lab.urls("a", kind="memory")
    w, c = lab.init(urls), lab.clone(urls)
    write(w.directory, {"d": b"a file"})
    write(c.directory, {"d/both": b"mine", "d/same": b"s", "d/new/n": b"n"})
    w.push()
    c.pull()
    (c.directory / "d").unlink()
    write(c.directory, {"d/both": b"1", "d/only": b"2", "d/same": b"s"})
    r = c.resolve("d", b"d.conflict-desktop-20261122")
    assert {p: n.data for p, n in tree_of(c.directory / "d").items() if n.kind == "file"} == {
        b"both": b"mine", b"same": b"s", b"new/n": b"n",
    }  # fmt: skip
    assert {k.path for k in r.replaced} == {b"d/both", b"d/only"}
    assert not (c.directory / "d.conflict-desktop-20261122").exists()


def test_several_copies(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    w, c, p = lab.init(urls), lab.clone(urls), lab.clone(urls, device="phone")
    write(w.directory, {"f.txt": b"0"})
    write(c.directory, {"f.txt": b"1"})
    write(p.directory, {"f.txt": b"2"})
    w.push(), c.push(), p.push(), c.pull(), w.pull()
    of_c, of_p = b"f.conflict-desktop-20261122.txt", b"f.conflict-phone-20261122.txt"
    assert {x.kept for x in w.conflicts()} == {of_c, of_p}
    with pytest.raises(UsageError, match=r"^2 sides of the conflict at f\.txt are another device's") as e:
        w.resolve("f.txt", "theirs")
    for name in ("f.txt (laptop)", f"{of_c.decode()} (desktop)", f"{of_p.decode()} (phone)"):
        assert name in e.value.next_step
    with pytest.raises(UsageError, match=r"other\.txt is no side of the conflict"):
        w.resolve("f.txt", b"other.txt")
    assert c.resolve(os.fsdecode(of_c), "theirs").kept == b"f.txt", "of one copy there are two sides"
    assert {x.kept for x in c.conflicts()} == {of_p}
    r = w.resolve("f.txt", of_p)
    assert (r.kept, set(r.copies)) == (of_p, {of_c, of_p})
    assert (w.directory / "f.txt").read_bytes() == b"2"
    assert w.conflicts() == ()
    assert {b"0", b"1", b"2"} <= contents_kept(w)
    w.push(), c.push(), p.pull(), w.pull()
    assert w.conflicts() == c.conflicts() == p.conflicts() == ()
    assert tree_of(w.directory) == tree_of(c.directory) == tree_of(p.directory)


def test_ours_of_a_name_that_this_device_agreed(two: tuple[Workspace, Workspace]) -> None:
    """On the device whose version has the name, `ours` is that version: it was the other one's before."""
    w, c = two
    c.push()
    w.pull()
    w.resolve("notes.txt", "ours")
    assert (w.directory / "notes.txt").read_bytes() == b"laptop\n"
    assert not (w.directory / NOTES).exists()
    w.resolve("thing", "theirs")
    assert (w.directory / "thing/in/x").read_bytes() == b"x"
    w.push()
    c.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    assert c.conflicts() == w.conflicts() == ()


def test_both_holds_everywhere(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    c.push()
    w.pull()
    w.resolve("notes.txt", "both")
    w.resolve(THING, "both")
    assert w.conflicts() == w.status().conflicts == ()
    assert w.push().version is not None
    before = tree_of(c.directory)
    assert c.pull().resolved == (b"notes.txt", b"thing")
    assert c.conflicts() == ()
    assert tree_of(c.directory) == before
    assert c.push().version is None
    assert w.push().version is None


def test_all_or_none(two: tuple[Workspace, Workspace]) -> None:
    _, c = two
    before = tree_of(c.directory)
    with pytest.raises(UsageError, match="no conflict at other"):
        c.resolve_all(["notes.txt", "other"], "ours")
    with pytest.raises(UsageError, match="names no side"):
        c.resolve("notes.txt", "mine")  # type: ignore[arg-type]
    assert tree_of(c.directory) == before
    assert [r.path for r in c.resolve_all(["thing", NOTES, "notes.txt"], "ours")] == [b"notes.txt", b"thing"]
    assert c.conflicts() == ()
    assert (c.directory / "notes.txt").read_bytes() == b"desktop\n"
    assert (c.directory / "thing/in/x").read_bytes() == b"x"
    assert b"laptop\n" in contents_kept(c)


def test_conflicts_inside_the_copy_of_another(two: tuple[Workspace, Workspace]) -> None:
    """What is inside is resolved first: its paths are others afterwards."""
    w, c = two
    c.push()
    w.pull()
    write(w.directory, {f"{THING}/y": b"\0by w"})
    write(c.directory, {f"{THING}/y": b"\0by c"})
    w.push()
    c.pull()
    inner = f"{THING}/y.conflict-desktop-20261122".encode()
    assert inner in {x.kept for x in c.conflicts()}
    assert len(c.resolve_all([x.path for x in c.conflicts()], "ours")) == 3
    assert c.conflicts() == ()
    assert (c.directory / "thing/y").read_bytes() == b"\0by c"
    assert not (c.directory / THING).exists()
    c.push()
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    assert w.conflicts() == ()


def test_bytes_in_place_of_both(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    r = c.resolve("notes.txt", Merged(b"merged by hand\n"))
    assert (r.merged, r.kept) == (True, b"notes.txt")
    assert {k.path for k in r.replaced} == {b"notes.txt", NOTES.encode()}
    assert (c.directory / "notes.txt").read_bytes() == b"merged by hand\n"
    assert {b"laptop\n", b"desktop\n"} <= contents_kept(c)
    c.push()
    assert w.pull().changes.modified == (b"notes.txt",)
    assert (w.directory / "notes.txt").read_bytes() == b"merged by hand\n"


def test_large_bytes_in_place_of_both(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    data = bytes(range(256)) * 20_000
    c.resolve("notes.txt", Merged(data))
    c.push()
    w.pull()
    assert (w.directory / "notes.txt").read_bytes() == data


def test_resolved_on_two_devices_at_once(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    c.push()
    w.pull()
    w.resolve("notes.txt", "ours")
    c.resolve("notes.txt", "ours")
    w.push(), c.push(), w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    assert [x.path for x in w.conflicts()] == [x.path for x in c.conflicts()] == [b"thing"]
    assert (w.directory / "notes.txt").read_bytes() == b"desktop\n", "one side changed the file, the other nothing"


def test_the_original_is_gone(two: tuple[Workspace, Workspace]) -> None:
    _, c = two
    (c.directory / "notes.txt").unlink()
    assert b"notes.txt" in {x.path for x in c.conflicts()}
    c.resolve("notes.txt", "ours")
    assert (c.directory / "notes.txt").read_bytes() == b"desktop\n"


def test_unsaved_edits_of_both_sides_are_kept(two: tuple[Workspace, Workspace]) -> None:
    _, c = two
    write(c.directory, {"notes.txt": b"edited since\n", "notes.conflict-desktop-20261122.txt": b"edited too\n"})
    c.resolve("notes.txt", "ours")
    assert (c.directory / "notes.txt").read_bytes() == b"edited too\n"
    assert b"edited since\n" in contents_kept(c)
    c.push()
    with c._session("test") as s:
        settle_replaced(s)
    assert b"edited since\n" in contents_kept(c), "no version holds it"


def test_saved_at_the_last_moment(two: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch) -> None:
    _, c = two
    real = conflicting.deliver

    def late(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        write(c.directory, {"notes.txt": b"late\n"})

    monkeypatch.setattr(conflicting, "deliver", late)
    r = c.resolve("notes.txt", "ours")
    assert [x.path for x in r.conflicts] == [b"notes.txt"]
    assert b"late\n" in contents_kept(c)
    assert (c.directory / "notes.txt").read_bytes() == b"desktop\n"
    assert b"notes.txt" in {x.path for x in c.conflicts()}


@few_and_many("stride", 5, 1)
@pytest.mark.parametrize("keep", ["ours", "theirs"])
@pytest.mark.long
def test_killed_at_every_call(
    two: tuple[Workspace, Workspace], lab: Lab, monkeypatch: pytest.MonkeyPatch, keep: str, stride: int
) -> None:
    _, c = two
    before = tree_of(c.directory)
    sides = {b"x", b"y", b"still a file, edited"}

    def check(w: Workspace) -> bool:
        assert sides <= contents_kept(w)
        now = tree_of(w.directory)
        waiting = {x.path for x in w.conflicts()}
        if now == before:
            assert waiting == {b"notes.txt", b"thing"}
            return False
        assert b"thing.conflict-desktop-20261122" not in now
        assert (b"thing/in/x" in now) == (keep == "ours")
        assert waiting == {b"notes.txt"}
        assert {x.path for x in w.status().conflicts} == {b"notes.txt"}
        return True

    outcomes = every_call(lab, c, monkeypatch, lambda w: w.resolve("thing", keep), check, stride)  # type: ignore[arg-type]
    assert min(outcomes.values()) > 5 // stride


def test_odd_names_on_the_command_line(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    w, c = lab.init(urls), lab.clone(urls)
    odd = b"\x1b[31m\xff.txt"
    for x in (c, w):
        with open(os.path.join(os.fsencode(x.directory), odd), "wb") as f:
            f.write(bytes(str(x.directory), "utf-8"))
    c.push()
    w.pull()
    for words in (("conflicts",), ("ls",), ("log", os.fsdecode(odd)), ("diff", "1", "2", "--text"), ("status",)):
        ran = lab.cli(*words)
        assert ran.code in (0, 3), ran
        assert "\\x1b[31m\\xff" in ran.out
        assert "\x1b" not in ran.out
    assert lab.cli("conflicts", "--json").json["conflicts"][0]["path"] == "\\x1b[31m\\xff.txt"
    ran = lab.cli("resolve", os.fsdecode(odd), "--keep", "ours")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    lab.lose("a")
    lab.lose("b")
    assert lab.cli("conflicts").code == 0, "asks nobody"
