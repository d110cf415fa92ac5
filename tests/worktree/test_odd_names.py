"""Names at the edge: long, deep, with control characters, not UTF-8; special files; names that are meant to do harm."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import read_tree
from disks_kit import Casefold, Fat, Mac, OldMac, OtherDisk, Windows
from effort import few_and_many
from workdir import DIR, File, Fuse, FusedDisk, Killed, Link, QuietDisk, Workspace, digest, entries, entry, files_under
from workdir import read as read_short
from workdir import write as write_short
from workspace_kit import Lab, run_process

from metasync.checkout.checkout import Change, Checkout
from metasync.errors import FormatError
from metasync.local.state import LocalDb
from metasync.merge.copies import conflict_name
from metasync.objects import walk
from metasync.objects.directory import decode_node, encode_dir, name_is_valid
from metasync.objects.model import Entry, Ids, Kind, ObjectKind
from metasync.terminal.text import phrases, sync_text
from metasync.worktree.disk import check_name, check_path
from metasync.worktree.fs_probe import rules_of
from metasync.worktree.index import load_rows
from metasync.worktree.names import folds_to_state

IDS = Ids(b"k" * 32)


# ---- deep


def make_deep(root: Path, names: list[bytes], data: bytes) -> None:
    """A file below so many directories that no path leads to it."""
    fd = os.open(root, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open(b"f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
    os.write(file, data)
    os.close(file)
    os.close(fd)


def descend(root: Path, names: list[bytes]) -> int:
    fd = os.open(root, os.O_RDONLY)
    for name in names:
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def remove_deep(root: Path, names: list[bytes]) -> None:
    """Python's own removal gives up at such depths."""
    subprocess.run(["rm", "-rf", os.fsdecode(names[0])], cwd=root, check=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("names", [[b"d"] * 1023, [b"d" * 250] * 300], ids=["1,023 names", "75,000 bytes"])
@pytest.mark.long
def test_a_path_far_longer_than_any_system_call_takes(lab: Lab, names: list[bytes]) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    one = lab.init(urls)
    path = b"/".join([*names, b"f"])
    places = [one.directory]
    try:
        make_deep(one.directory, names, b"deep")
        assert path in one.push().changes.added
        two = lab.clone(urls)
        places.append(two.directory)
        fd = descend(two.directory, names)
        assert os.listdir(fd) == ["f"]
        file = os.open(b"f", os.O_WRONLY | os.O_TRUNC, dir_fd=fd)
        os.write(file, b"deeper")
        os.close(file)
        os.close(fd)
        assert two.push().changes.modified == (path,)
        fd = descend(one.directory, names)
        file = os.open(b"f", os.O_WRONLY | os.O_APPEND, dir_fd=fd)
        os.write(file, b", and changed here")
        os.close(file)
        os.close(fd)
        assert [c.path for c in one.pull().conflicts] == [path]  # beside it, at the same depth
        assert one.push().changes.added == (conflict_name(path, b"laptop-20261122", 1),)
        assert two.pull().changes.added == (conflict_name(path, b"laptop-20261122", 1),)
        remove_deep(one.directory, names)
        assert len(one.push(force=True).changes.deleted) == 2
        two.pull(force=True)
        assert read_tree(two.directory) == {}
        places = []
    finally:
        for place in places:
            remove_deep(place, names)


# ---- long


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [b"n" * 255, b"n" * 251 + b".txt", "\u00e9".encode() * 127, b"." + b"x" * 254])
def test_names_of_255_bytes_and_copies_of_them(lab: Lab, name: bytes) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    one = lab.init(urls)
    here = os.fsdecode(name)
    (one.directory / here).write_bytes(b"1")
    one.push()
    two = lab.clone(urls)
    (one.directory / here).write_bytes(b"\0by one")
    (two.directory / here).write_bytes(b"\0by two")
    one.push()
    (conflict,) = two.pull().conflicts
    assert len(conflict.kept) <= 255
    assert conflict.kept.decode()  # cut between characters
    assert (two.directory / os.fsdecode(conflict.kept)).read_bytes() == b"\0by two"
    assert two.push().changes.added == (conflict.kept,)
    one.pull()
    assert read_tree(one.directory) == read_tree(two.directory)
    (two.directory / here).write_bytes(b"\0by two again")
    (one.directory / here).write_bytes(b"\0by one again")
    (one.directory / os.fsdecode(conflict.kept)).write_bytes(b"\0copy by one")
    (two.directory / os.fsdecode(conflict.kept)).write_bytes(b"\0copy by two")
    two.push()
    assert len({c.kept for c in one.pull().conflicts}) == 2


# ---- printed


NASTY = [
    b"new\nline",
    b"return\rback",
    b"\x1b[31mred\x1b]0;title\x07",
    b"\xff\xfe no utf-8",
    b"\xc2\x85next line\xc2\x9b31m",
    "\u202egpj.exe".encode(),
    "\u200bzero".encode(),
    b"tab\tdel\x7f",
    b"back\\slash \\x41",
    "\ue000 private \U000e0041".encode(),
]


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_names_are_printed_so_that_they_do_nothing(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    top = os.fsencode(lab.root / "laptop")
    for name in NASTY:
        Path(os.fsdecode(top + b"/" + name)).write_bytes(b"\0 1")
    os.mkfifo(top + b"/fifo\x1b[31m\n")
    lines = len(NASTY)
    for words in (["status"], ["push", "--dry-run"], ["push"], ["status", "--verbose"]):
        ran = lab.cli(*words)
        assert ran.code == 0
        assert is_safe(ran.out) and is_safe(ran.err), words
    assert lab.cli("push").out.count("\n") < lines
    with lab.clone(lab.urls("a", "b", "c")) as w:
        for name in NASTY:
            Path(os.fsdecode(os.fsencode(w.directory) + b"/" + name)).write_bytes(b"\0 2")
        w.push()
    for name in NASTY:
        Path(os.fsdecode(top + b"/" + name)).write_bytes(b"\0 3")
    for words in (["pull", "--dry-run"], ["pull"], ["status"], ["push"], ["log"]):
        ran = lab.cli(*words)
        assert ran.code in (0, 3), ran
        assert is_safe(ran.out) and is_safe(ran.err), words
        document = lab.cli(*words, "--json")
        assert document.out.isascii()
        assert isinstance(document.json, dict)


def test_an_error_on_such_a_name_is_printed_safely(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    folder = os.fsencode(lab.root) + b"/bad\x1b[31m\n\xff"
    os.mkdir(folder)
    ran = run_process("-C", os.fsdecode(folder), "status", cwd=lab.root)
    assert ran.code == 1
    assert is_safe(ran.err)
    assert "bad\\x1b[31m\\x0a\\xff" in ran.err
    ran = run_process("-C", os.fsdecode(folder), "--json", "status", cwd=lab.root)
    assert "bad\\x1b[31m\\x0a\\xff" in ran.json["error"]["message"]


def test_each_path_has_a_text_of_its_own() -> None:
    texts = [phrases.text(name) for name in NASTY]
    assert len(set(texts)) == len(NASTY)
    assert all(text.isprintable() for text in texts)
    twins = [b"\xff", b"\\xff", b"\\\xff", "\u00ff".encode(), b"\x85", "\u0085".encode(), b"\\u0085", b"\n", b"\\x0a"]
    assert [phrases.text(name) for name in twins] == [
        "\\xff", "\\\\xff", "\\\\\\xff", "\u00ff", "\\x85", "\\u0085", "\\\\u0085", "\\x0a", "\\\\x0a",
    ]  # fmt: skip


# ---- hints at the writing end


def test_a_push_hints_at_new_names_that_others_cannot_hold(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c", kind="memory"))
    names = ["a:b", "aux.txt", "README", "readme", "end.", "dir?/x", "plain", "Ünïcode"]
    for name in names:
        (w.directory / name).parent.mkdir(exist_ok=True)
        (w.directory / name).write_bytes(b"1")
    preview = w.push(dry_run=True)
    report = w.push()
    assert preview.unportable == report.unportable
    told = {s.path: s.reason for s in report.unportable}
    assert told == {
        b"README": "macOS and Windows take it for readme",
        b"readme": "macOS and Windows take it for README",
        b"a:b": "Windows: its name has :",
        b"aux.txt": "Windows: its name is that of a device",
        b"dir?": "Windows: its name has ?",
        b"end.": "Windows: its name ends in a dot",
    }
    lines = [line for line in sync_text.push(report, dry_run=False) if "every system" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: 6 new names cannot be held by every system: README (")
    assert lines[0].endswith(", ...")
    (w.directory / "a:b").write_bytes(b"changed")
    (w.directory / "dir?/y").write_bytes(b"plain in an odd directory")
    assert w.push().unportable == ()
    (w.directory / "PLAIN").write_bytes(b"a twin of an old one")
    assert [s.path for s in w.push().unportable] == [b"PLAIN"]


# ---- special files


@pytest.fixture
def special() -> Iterator[Callable[[Path, str], None]]:
    sockets: list[socket.socket] = []

    def make(at: Path, kind: str) -> None:
        if kind == "fifo":
            os.mkfifo(at)
        elif kind == "socket":
            sockets.append(socket.socket(socket.AF_UNIX))
            here = os.getcwd()
            os.chdir(at.parent)  # a socket's path is short
            try:
                sockets[-1].bind(at.name)
            finally:
                os.chdir(here)
        else:
            try:
                os.mknod(at, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("only root makes devices")

    yield make
    for each in sockets:
        each.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_special_files_are_skipped_with_one_word(lab: Lab, special: Callable[[Path, str], None], kind: str) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls)
    (w.directory / "d").mkdir()
    for path in ("here", "d/below", "d/file"):
        (w.directory / path).write_bytes(b"1") if path == "d/file" else special(w.directory / path, kind)
    report = w.push()
    assert sorted(s.path for s in report.skipped) == [b"d/below", b"here"]
    assert {s.reason for s in report.skipped} == {"neither a file nor a directory nor a symlink"}
    assert report.changes.added == (b"d/file",)
    two = lab.clone(urls)
    assert set(read_tree(two.directory)) == {b"d", b"d/file"}

    # In the place of an agreed file: the file stays agreed, and its changes go elsewhere.
    (w.directory / "d" / "file").unlink()
    special(w.directory / "d" / "file", kind)
    assert w.push().version is None
    (two.directory / "d" / "file").write_bytes(b"2, by two")
    two.push()
    (conflict,) = w.pull().conflicts
    assert (w.directory / "d" / "file").read_bytes() == b"2, by two"
    st = os.lstat(w.directory / os.fsdecode(conflict.kept))
    assert not stat.S_ISREG(st.st_mode)  # it was moved aside, as it was
    assert w.push().version is None
    (w.directory / "d" / "file").unlink()
    special(w.directory / "d" / "file", kind)
    (two.directory / "d" / "file").unlink()
    two.push()
    w.pull()
    assert not stat.S_ISREG(os.lstat(w.directory / "d" / "file").st_mode)
    assert w.push().version is None


# ---- names meant to do harm

BAD_BYTES = [b"", b".", b"..", b"a/b", b"/", b"/etc/x", b"a/../b", b"../x", b"x\0y", b"\0"]
TAKEN_FOR_STATE = [
    b".MetaSync",
    b".METASYNC",
    b".metasync.",
    b".metasync ",
    b".metasync . .",
    b".metasync::$INDEX_ALLOCATION",
    b".metasync:x",
    b".MetaSync.:$DATA",
    b"METASY~1",
    b"metasy~12",
    b"MetaSy~1.",
    ".meta\u200csync".encode(),
    ".met\u200dasync\ufeff".encode(),
    "\u202e.metasync".encode(),
    ".meta\u00adsync".encode(),
    ".metasync\ufe0f".encode(),
    "\U000e0020.metasync".encode(),
    ".meta\u034fsync".encode(),
    ".meta\u017fync".encode(),
]


def node_of(names: list[bytes], e: Entry) -> bytes:
    """A directory object as only a hostile writer makes it: its names are not checked."""
    out = struct.pack(">BBI", 1, 0, len(names))
    for name in sorted(names):
        out += struct.pack(">BHqQH", 1, e.mode, e.mtime_ns, e.size, len(name)) + name + e.content + b"\0"
    return out


@pytest.mark.parametrize("name", BAD_BYTES)
def test_names_that_are_no_names_are_in_no_object(name: bytes) -> None:
    good = entry(b"x")
    assert decode_node(node_of([b"good"], good)).entries == ((b"good", good),)
    with pytest.raises(FormatError):
        decode_node(node_of([name], good))
    assert not name_is_valid(name)
    with pytest.raises(ValueError, match="not a valid next name"):
        encode_dir([(name, good)], IDS)
    assert check_path(name) or b"/" in name


@pytest.mark.parametrize("name", TAKEN_FOR_STATE)
def test_names_taken_for_the_state_are_made_nowhere(name: bytes) -> None:
    assert folds_to_state(os.fsdecode(name))
    assert check_name(name)
    assert check_path(b"d/" + name + b"/x")


def test_names_that_only_look_alike_may_be_had() -> None:
    for name in [b"metasync", b".metasync2", b".metasyncignore", b"x.metasync", b"metasy~x", ".m\u00e9tasync".encode()]:
        assert check_name(name) == "", name


def hostile_tree() -> dict[bytes, Entry]:
    """What a member's device may have agreed on: names that decode, and that some disk takes for something else."""
    tree: dict[bytes, Any] = {b"ok": b"fine", b"d": DIR, b"d/ok": b"fine"}
    for n, name in enumerate(TAKEN_FOR_STATE):
        tree[name] = DIR if n % 2 else b"evil"
        if n % 2:
            tree[name + b"/state.db"] = b"evil"
            tree[name + b"/tmp"] = DIR
        tree[b"d/" + name] = Link(b"/")
    return entries(dict(sorted(tree.items())))


@pytest.mark.parametrize("disk", [QuietDisk, Mac, OldMac, Casefold, Windows, Fat])
def test_a_hostile_tree_harms_nothing(tmp_path: Path, disk: type[QuietDisk]) -> None:
    root, nodes = walk.build(hostile_tree(), IDS)
    walking = walk.flatten(root)
    needs = next(walking)
    try:
        while True:
            assert needs[0] is ObjectKind.DIR
            needs = walking.send({i: nodes[i] for i in needs[1]})
    except StopIteration as stop:
        tree: dict[bytes, Entry] = stop.value
    with Workspace(tmp_path / "w", disk()) as work:
        work.tree.rules = rules_of(work.tree, work.db)
        write_short(tmp_path / "w", {b"mine": b"mine"})
        before = sorted(os.listdir(work.root / ".metasync"))
        checkout = Checkout(work.db, work.tree)
        for path in checkout.begin([Change(p, e, None) for p, e in tree.items()]):
            checkout.stage_whole(path, b"fine")
        applied = checkout.apply()
        assert read_short(work.root) == {
            b"mine": File(b"mine", 0o644, read_short(work.root)[b"mine"].mtime_ns),
            b"ok": read_short(work.root)[b"ok"],
            b"d": read_short(work.root)[b"d"],
            b"d/ok": read_short(work.root)[b"d/ok"],
        }
        assert {n.path for n in applied.unplaced} == tree.keys() - {b"ok", b"d", b"d/ok"}
        assert sorted({*os.listdir(work.root / ".metasync")} - {"clock", "replaced", "tmp"}) == sorted(
            set(before) - {"clock", "replaced", "tmp"}
        )
        assert isinstance(work.db, LocalDb) and work.db.value("base") is None
        work.base = tree
        found = work.scan()
        assert (found.deleted, [p for p in tree if p not in found.tree]) == ([], [])
        for change in [Change(p, None, load_rows(work.db).get(p)) for p in tree if p not in (b"ok", b"d", b"d/ok")]:
            deleting = Checkout(work.db, work.tree)
            deleting.begin([change])
            deleting.apply()
        assert sorted({*os.listdir(work.root / ".metasync")} - {"clock", "replaced", "tmp"}) == sorted(
            set(before) - {"clock", "replaced", "tmp"}
        )


class Swapping:
    """At one call of a checkout, a directory on the way becomes a link to somewhere else (or is moved there)."""

    def __init__(self, work: Workspace, fuse: Fuse, victim: bytes, outside: Path, way: str) -> None:
        self.work, self.fuse, self.victim, self.outside, self.way = work, fuse, victim, outside, way

    def __call__(self) -> None:
        self.fuse.mend()
        at = self.work.at(self.victim)
        if not at.is_dir() or at.is_symlink():
            return
        at.rename(self.work.root.parent / "moved")
        if self.way == "symlink":
            at.symlink_to(self.outside)
        elif self.way == "inside":
            at.symlink_to(self.work.root / ".metasync")


OLD = {
    b"d": DIR,
    b"d/a": b"old a",
    b"d/e": DIR,
    b"d/e/b": b"old b",
    b"d/e/dir": DIR,
    b"d/e/dir/x": b"x",
    b"d/gone": b"gone",
    b"d/mode": File(b"mode", 0o644),
}
NEW = {
    b"d": DIR,
    b"d/a": b"new a",
    b"d/e": DIR,
    b"d/e/b": b"new b",
    b"d/e/dir": b"a file now",
    b"d/e/new": DIR,
    b"d/e/new/y": b"y",
    b"d/l": Link(b"x"),
    b"d/mode": File(b"mode", 0o600),
    b"d/n": b"new",
}
THEIRS = {b"a": b"a of theirs", b"e": DIR, b"e/b": b"b of theirs", b"gone": b"g", b"mode": b"m", b"n": b"n", b"x": b"x"}


@pytest.mark.few(1)
@few_and_many("stride", 3, 1)
@pytest.mark.parametrize("way", ["symlink", "inside"])
@pytest.mark.parametrize("victim", [b"d", b"d/e"])
def test_a_swap_at_any_call_leads_nowhere(tmp_path: Path, victim: bytes, way: str, stride: int) -> None:
    """From the first call of `begin` to the last of `apply`: nothing outside is made, changed, or removed."""
    for step in range(1, 400, stride):
        case = tmp_path / str(step)
        outside = case / "outside"
        outside.mkdir(parents=True)
        write_short(outside, THEIRS)
        guarded = read_short(outside)
        fuse = Fuse()
        with Workspace(case / "w", FusedDisk(fuse)) as work:
            write_short(work.root, OLD)
            work.base = dict(work.scan_past().tree)
            ours = work.scan_past()
            state = sorted(n for n in os.listdir(work.root / ".metasync") if n not in ("tmp", "replaced"))
            fuse.steps, fuse.at = 0, step
            fuse.error = Swapping(work, fuse, victim, outside, way)  # type: ignore[assignment]
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(NEW))
            work.stage(checkout, changes, checkout.begin(changes), NEW)
            checkout.apply()
            ended = fuse.at is not None
            fuse.mend()
            assert read_short(outside) == guarded, step
            assert sorted(n for n in os.listdir(work.root / ".metasync") if n not in ("tmp", "replaced")) == state
            assert os.listdir(work.root / ".metasync" / "tmp") == []
            found = work.scan()  # and nothing is read through it, either
            assert not {digest(b"a of theirs"), digest(b"b of theirs")} & {e.content for e in found.tree.values()}
            assert {b"old a", b"old b", b"gone", b"x"} <= {*files_under(case / "w"), *moved(case)}, step
        if ended:
            return
    raise AssertionError("the checkout never ended")


def moved(case: Path) -> list[bytes]:
    return files_under(case / "moved") if (case / "moved").exists() else []


def test_a_scan_walks_into_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write_short(outside, {b"secret": b"s", b"e": DIR, b"e/f": b"f"})
    with Workspace(tmp_path / "w") as work:
        write_short(work.root, {b"d": DIR, b"d/x": b"x", b"empty": DIR})
        work.base = dict(work.scan_past().tree)
        work.at(b"d").rename(tmp_path / "moved")
        work.at(b"d").symlink_to(outside)
        work.at(b"empty").rmdir()
        work.at(b"empty").symlink_to(outside)
        found = work.scan()
        assert {p for p in found.tree if p.startswith((b"d/", b"empty/"))} == {b"d/x"}  # the base's, by D8
        assert found.tree[b"empty"].kind is Kind.SYMLINK
        assert found.deleted == []
        assert [n.path for n in found.skipped] == [b"d"]


def test_a_directory_that_becomes_a_link_while_it_is_scanned(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write_short(outside, {b"x": b"of theirs", b"secret": b"s"})
    for step in range(1, 60):
        fuse = Fuse()
        with Workspace(tmp_path / str(step), FusedDisk(fuse)) as work:
            write_short(work.root, {b"d": DIR, b"d/x": b"mine", b"z": b"z"})

            def swap(work: Workspace = work, fuse: Fuse = fuse, step: int = step) -> None:
                fuse.mend()
                work.at(b"d").rename(tmp_path / f"moved{step}")
                work.at(b"d").symlink_to(outside)

            fuse.steps, fuse.at, fuse.error = 0, step, swap  # type: ignore[assignment]
            found = work.scan()
            ended = fuse.at is not None
            fuse.mend()
            contents = {e.content for e in found.tree.values()}
            assert not {digest(b"of theirs"), digest(b"s")} & contents, step
        if ended:
            return
    raise AssertionError("the scan never ended")


def test_killed_between_two_spellings(tmp_path: Path) -> None:
    """A directory that is given its new spelling by way of a third name is whole after any end of the process."""
    for step in range(1, 400):
        fuse = Fuse()

        class Dying(FusedDisk, Mac):
            pass

        with Workspace(tmp_path / str(step), Dying(fuse)) as work:
            work.tree.rules = rules_of(work.tree, work.db)
            write_short(work.root, {b"Docs": DIR, b"Docs/a": b"a", b"Docs/.DS_Store": b"left"})
            work.base = dict(work.scan_past().tree)
            ours = work.scan_past()
            new = {b"docs": DIR, b"docs/a": b"a"}
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(new))
            work.stage(checkout, changes, checkout.begin(changes), new)
            fuse.steps, fuse.at = 0, step
            try:
                checkout.apply()
                ended = True
            except Killed:
                ended = False
            fuse.mend()
            work.tree.forget()
            Checkout(work.db, work.tree).recover()
            here = {p: s.data for p, s in read_short(work.root).items() if isinstance(s, File)}
            if not ended and not here.get(b"docs/a"):
                # It died before anything was changed: the plan was dropped.
                assert here == {b"Docs/a": b"a", b"Docs/.DS_Store": b"left"}, step
            else:
                assert here == {b"docs/a": b"a", b"docs/.DS_Store": b"left"}, step
        if ended:
            return
    raise AssertionError("the checkout never ended")


def test_other_disks_are_what_they_are_taken_for(tmp_path: Path) -> None:
    """The disks of these tests and the rules of `metasync.worktree.names` agree on what is one name."""
    from metasync.worktree.names import key

    words = ["a", "A", "\u00e9", "\u00c9", "e\u0301", "E\u0301", "ss", "SS", "x", "K", "k", "\u03c3", "\u03a3"]
    kinds: list[type[OtherDisk]] = [Mac, OldMac, Casefold, Windows, Fat]
    for n, kind in enumerate(kinds):
        with Workspace(tmp_path / str(n), kind()) as work:
            rules = rules_of(work.tree, work.db)
            assert rules_of(work.tree, work.db) == rules  # kept
            for one in words:
                for other in words:
                    same = kind().key(one.encode()) == kind().key(other.encode())
                    assert (key(one.encode(), rules) == key(other.encode(), rules)) == same, (kind, one, other)


@pytest.mark.few(1)
@pytest.mark.parametrize("disk", [Mac, Fat])
def test_killed_with_names_that_do_not_fit(tmp_path: Path, disk: type[OtherDisk]) -> None:
    """What was left out before the end of the process is left out after it, and is not taken for deleted."""
    old = {b"README": b"upper", b"d": DIR, b"d/x": b"x", b"x": b"x"}
    new = {
        b"README": b"upper, changed",
        b"readme": b"lower",
        b"d": DIR,
        b"D": DIR,
        b"D/x": b"another x",
        b"b\xff": b"no name",
        b"l": Link(b"x"),
        b"x": b"x, changed",
    }
    odd = {b"readme", b"D", b"D/x", b"b\xff", *([b"l"] if disk is Fat else [])}
    for step in range(1, 400):
        fuse = Fuse()

        class Dying(FusedDisk, disk):  # type: ignore[misc, valid-type]
            pass

        with Workspace(tmp_path / str(step), Dying(fuse), fuse) as work:
            work.tree.rules = rules_of(work.tree, work.db)
            write_short(work.root, old)
            work.base = dict(work.scan_past().tree)
            ours = work.scan_past()
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(new))
            awaited = checkout.begin(changes)
            assert not odd & set(awaited)
            work.stage(checkout, changes, awaited, new)
            fuse.steps, fuse.at = 0, step
            try:
                checkout.apply()
                ended = True
            except Killed:
                ended = False
            fuse.mend()
            work.tree.forget()
            recovered = Checkout(work.db, work.tree).recover()
            here = {p: s.data for p, s in read_short(work.root).items() if isinstance(s, File)}
            if not ended and recovered is None and here[b"README"] == b"upper":
                continue  # it died before anything was changed
            assert here == {b"README": b"upper, changed", b"x": b"x, changed"}, step
            assert set(work.db.unplaced()) == odd, step
            assert not odd & load_rows(work.db).keys(), step
            work.base = entries(new)
            found = work.scan()
            assert (found.deleted, found.tree.keys() - entries(new).keys()) == ([], set()), step
            assert {p: found.tree[p] for p in odd} == {p: entries(new)[p] for p in odd}, step
        if ended:
            return
    raise AssertionError("the checkout never ended")
