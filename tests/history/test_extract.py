"""`restore --to`: nothing that exists is replaced, nothing lands outside, no half file, and what can be had is had."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from crash_kit import Crashed, Fate, mortal_clients
from effort import few_and_many
from workspace_kit import Lab, tree_of, write

from metasync.errors import DamagedError, UsageError, WorkspaceError
from metasync.history import export as extracting
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, Snapshot
from metasync.sync.fetch import ChangedMeanwhile
from metasync.workspace import Workspace
from metasync.worktree import disk
from metasync.worktree.disk import Disk

BIG = os.urandom(1_300_000)


@pytest.fixture
def past(lab: Lab) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"))
    top = w.directory
    write(top, {"a.txt": b"one\n", "d/e/f": b"deep", "big": BIG, "empty": b"", "run": b"#!", "ro/in": b"r"})
    (top / "link").symlink_to("nowhere")
    (top / "hollow").mkdir()
    (top / "run").chmod(0o4755)
    (top / "ro").chmod(0o555)
    os.symlink(b"x\xff", os.fsencode(top) + b"/odd\xfe\nname")
    os.utime(top / "a.txt", ns=(1, 1_234_567_890_123_456_789))
    w.push("one")
    write(top, {"a.txt": b"two\n", "later": b"l"})
    w.push("two")
    return w


def test_a_version_elsewhere(lab: Lab, past: Workspace) -> None:
    (past.directory / "later").unlink()
    write(past.directory, {"a.txt": b"unsaved"})
    past.configure("special-modes", "on")  # `run` is set-user-id
    before = tree_of(past.directory)
    out = lab.root / "new/deep/out"
    r = past.restore("latest", to=out)
    assert tree_of(past.directory) == before
    wanted = {**before}
    now = tree_of(out)
    assert now.pop(b"later").data == b"l"
    assert now.pop(b"a.txt").data == b"two\n"
    wanted.pop(b"a.txt")
    assert now == wanted, "kinds, modes, times and odd names"
    assert (r.to, r.version, r.failed, r.unchanged) == (str(out), 2, (), 0)
    assert r.size_written == sum(len(n.data) for n in tree_of(out).values() if n.kind == "file")
    again = past.restore("2", to=out)
    assert (again.size_written, len(again.changes.added), again.unchanged) == (0, 0, len(tree_of(out)))
    assert past.status().conflicts == ()


def test_single_paths_keep_their_place(lab: Lab, past: Workspace) -> None:
    r = past.restore("1", ["d/e", "a.txt"], to=lab.root / "out")
    assert set(tree_of(lab.root / "out")) == {b"d", b"d/e", b"d/e/f", b"a.txt"}
    assert (lab.root / "out/a.txt").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert r.changes.added == (b"a.txt", b"d/e/f")
    with pytest.raises(UsageError, match="nothing at nowhere"):
        past.restore("1", ["nowhere"], to=lab.root / "other")
    assert not (lab.root / "other").exists()
    past.restore("0", to=lab.root / "nothing")
    assert tree_of(lab.root / "nothing") == {}


def test_a_dry_run_writes_nothing(lab: Lab, past: Workspace) -> None:
    r = past.restore("1", to=lab.root / "out", dry_run=True)
    assert b"d/e/f" in r.changes.added
    assert not (lab.root / "out").exists()


@pytest.mark.few
@pytest.mark.parametrize("other", ["file", "longer", "dir", "link", "fifo"])
@pytest.mark.parametrize("path", ["a.txt", "d", "d/e", "link", "big"])
def test_what_exists_is_never_replaced(lab: Lab, past: Workspace, path: str, other: str) -> None:
    out = lab.root / "out"
    place = out / path
    place.parent.mkdir(parents=True)
    if other == "file":
        place.write_bytes(b"mine")
    elif other == "longer":
        place.write_bytes(BIG + b"mine")
    elif other == "dir":
        place.mkdir()
    elif other == "link":
        place.symlink_to(lab.root)
    else:
        os.mkfifo(place)
    if other == "dir" and path.startswith("d"):
        past.restore("1", to=out)
        assert (out / "d/e/f").read_bytes() == b"deep"
        return
    before = sorted(lab.root.glob("out/**/*"))
    with pytest.raises(WorkspaceError, match="holds something else at 1 of the paths"):
        past.restore("1", to=out)
    assert sorted(lab.root.glob("out/**/*")) == before
    assert not (lab.root / "e").exists(), "no link was followed"


def test_equal_files_and_own_ones_stay(lab: Lab, past: Workspace) -> None:
    out = lab.root / "out"
    write(out, {"a.txt": b"one\n", "d/mine": b"mine"})
    stamp = (out / "a.txt").stat()
    r = past.restore("1", to=out)
    assert r.unchanged == 2  # a.txt and d
    after = (out / "a.txt").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (stamp.st_ino, stamp.st_mtime_ns, stamp.st_ctime_ns)
    assert (out / "d/mine").read_bytes() == b"mine"
    assert (out / "d/e/f").read_bytes() == b"deep"


def test_places_that_are_none(lab: Lab, past: Workspace) -> None:
    top = past.directory
    (lab.root / "file").write_bytes(b"1")
    (lab.root / "way-in").symlink_to(top / ".metasync")
    for to in (top / ".metasync", top / ".metasync/x", top / ".METASYNC/x", lab.root / "way-in/x", lab.root / "file"):
        with pytest.raises(UsageError):
            past.restore("1", to=to)
    assert not (top / ".metasync/x").exists()
    past.restore("1", to=top / "inside")
    assert (top / "inside/d/e/f").read_bytes() == b"deep"
    assert b"inside/a.txt" in past.status().changes.added


HOSTILE = [b".metasync", b".MetaSync", b"METASY~1", ".met\u200casync".encode(), b".metasync ", b".metasync:stream"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("inside", [b"", b"d/"])
def test_hostile_names_are_refused(
    lab: Lab, past: Workspace, name: bytes, inside: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admitted device that means harm: its tree holds names that some file system takes for `.metasync`."""
    real = extracting._collect

    def hostile(history, path, entry, tree, failures):  # type: ignore[no-untyped-def]
        real(history, path, entry, tree, failures)
        if not path:
            leaf = tree[b"a.txt"]
            tree[inside + name] = Entry(Kind.DIR, 0o755, 0, 0, b"")
            tree[inside + name + b"/state.db"] = leaf

    monkeypatch.setattr(extracting, "_collect", hostile)
    r = past.restore("1", to=lab.root / "out")
    assert {(f.path, f.cause) for f in r.failed} == {
        (inside + name, "refused"),
        (inside + name + b"/state.db", "refused"),
    }
    assert (lab.root / "out/a.txt").read_bytes() == b"one\n"
    assert not any(b"meta" in p.lower() for p in tree_of(lab.root / "out"))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [b"..", b"../up", b"/abs", b"."])
def test_names_that_lead_out_do_not_decode(lab: Lab, past: Workspace, name: bytes) -> None:
    with past._session("test") as s, pytest.raises(ValueError, match="not a valid next name"):
        walk.directory.encode_dir([(name, Entry(Kind.DIR, 0o755, 0, 0, bytes(32)))], s.ids)
    assert disk.check_path(name + b"/x") or name == b"../up" or name == b"/abs"
    assert disk.check_path(b"d/" + name) != "" or b"/" in name


@pytest.mark.long
def test_what_can_be_had_is_restored_and_the_rest_is_listed(lab: Lab, past: Workspace) -> None:
    old = {p.name for n in "abc" for p in lab.objects(n, "packs")}
    write(past.directory, {"d/fresh": b"in a pack of its own", "big": BIG[::-1]})
    past.push("three")
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    c.log(with_counts=True)  # all trees are here, and soon no file
    for path in c.directory.iterdir():
        if path.name != ".metasync":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            if pack.name in old:
                pack.unlink() if name != "b" else pack.write_bytes(bytes(pack.stat().st_size))
    r = c.restore("latest", to=lab.root / "out")
    lost = {f.path: f.cause for f in r.failed}
    assert lost == dict.fromkeys((b"a.txt", b"d/e/f", b"later", b"ro/in", b"run"), "damaged")
    assert (lab.root / "out/d/fresh").read_bytes() == b"in a pack of its own"
    assert (lab.root / "out/big").read_bytes() == BIG[::-1]
    assert (lab.root / "out/empty").read_bytes() == b""
    assert os.readlink(lab.root / "out/link") == "nowhere"
    with pytest.raises(DamagedError):
        c.restore("latest")
    ran = lab.cli("restore", "latest", "--to", str(lab.root / "out2"), cwd="third")
    assert ran.code == 7
    assert "Could not be restored: 5 paths" in ran.out
    ran = lab.cli("restore", "latest", "--to", str(lab.root / "out2"), "--json", cwd="third")
    assert (ran.code, ran.json["exit_code"], len(ran.json["failed"])) == (7, 7, 5)
    lab.hurry()
    for name in "abc":
        lab.faults[name].down = True
    c = lab.reopen(c)
    r = c.restore("latest", to=lab.root / "out3")
    assert {f.path: f.cause for f in r.failed} == dict.fromkeys([*lost, b"d/fresh", b"big"], "unreachable")
    assert lab.cli("restore", "latest", "--to", str(lab.root / "out4"), cwd="third").code == 5
    assert (lab.root / "out4/empty").exists()


def test_lost_directories_are_listed(lab: Lab, past: Workspace) -> None:
    """The trees are lost too: what is known of the way down is restored."""
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    with c._session("test") as s:
        h = extracting.History(s)
        root = h.newest.tree_root
        assert root is not None
        lost = h.find(root, b"d/e").entry
        assert lost is not None
        s.db._execute("DELETE FROM objects WHERE id = ?", (lost.content,))
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            pack.unlink()
    r = c.restore("latest", to=lab.root / "out")
    assert {f.path: f.cause for f in r.failed} == {b"d/e": "damaged"}, "all else is copied from the folder"
    assert (lab.root / "out/a.txt").read_bytes() == b"two\n"
    assert (lab.root / "out/d").is_dir()


def test_a_full_disk_is_found_out_before(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "free_bytes", lambda self, fd: 1_000_000)
    with pytest.raises(WorkspaceError, match="nothing was written"):
        past.restore("1", to=lab.root / "out")
    assert not (lab.root / "out").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("call", ["write", "rename_new", "mkdir", "syncfs"])
def test_a_disk_that_fails_half_way(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    real = getattr(Disk, call)
    calls = []

    def fail(self: Disk, *args: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(self, *args)

    monkeypatch.setattr(Disk, call, fail)
    with pytest.raises(WorkspaceError, match=f"writing to {lab.root}/out failed: No space"):
        past.restore("1", to=lab.root / "out")
    monkeypatch.undo()
    one = past.restore("1", to=lab.root / "whole")
    whole = tree_of(lab.root / "whole")
    for path, node in tree_of(lab.root / "out").items():
        assert node.kind == "dir" or node == whole[path], "no half file under a final name"
    past.restore("1", to=lab.root / "out")
    assert tree_of(lab.root / "out").keys() == whole.keys()
    assert one.failed == ()


def test_a_source_that_changes_while_it_is_copied(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sources = extracting.deliver, []

    def late(s, staging, entries, here, *rest):  # type: ignore[no-untyped-def]
        sources.append(len(here))
        if here:
            staging.stage_part(b"big", 0, b"half of it")
            raise ChangedMeanwhile
        real(s, staging, entries, here, *rest)

    monkeypatch.setattr(extracting, "deliver", late)
    past.restore("1", to=lab.root / "out")
    assert (lab.root / "out/big").read_bytes() == BIG
    assert len(sources) == 2


def test_what_appears_meanwhile_is_not_replaced(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = extracting.deliver

    def late(*args: object) -> None:
        write(lab.root / "out", {"a.txt": b"mine, this very moment", "d": b"mine too", "hollow/x": b"in a directory"})
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(extracting, "deliver", late)
    r = past.restore("1", to=lab.root / "out")
    assert {f.path: f.cause for f in r.failed} == dict.fromkeys((b"a.txt", b"d", b"d/e", b"d/e/f"), "disk")
    assert (lab.root / "out/a.txt").read_bytes() == b"mine, this very moment"
    assert (lab.root / "out/d").read_bytes() == b"mine too"
    assert (lab.root / "out/hollow/x").read_bytes() == b"in a directory"
    assert lab.cli("restore", "1", "--to", str(lab.root / "out")).code == 1


@pytest.mark.long
@few_and_many("stride", 7, 1)
def test_killed_at_every_call(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    past.restore("1", to=lab.root / "whole")
    whole = tree_of(lab.root / "whole")
    past.close()
    ended = False
    with mortal_clients(monkeypatch) as here:
        for k in range(1, 400, stride):
            out = lab.root / f"out{k}"
            here.fate = fate = Fate()
            w = Workspace.open(past.directory)
            fate.live()
            fate.dies_at = k
            try:
                w.restore("1", to=out)
            except (Crashed, Exception):
                assert fate.dead
            ended = not fate.dead
            here.fate = None
            fate.live()
            w.close()
            if out.exists():
                for path, node in tree_of(out).items():
                    if not path.startswith(b"~$metasync.restore.") and node.kind != "dir":
                        assert node == whole[path], (k, path)
            with Workspace.open(past.directory) as again:
                again.restore("1", to=out)
            now = tree_of(out)
            assert now.keys() == whole.keys(), k
            assert {p: n for p, n in now.items() if n.kind != "dir"} == {
                p: n for p, n in whole.items() if n.kind != "dir"
            }
            for path in sorted(out.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            shutil.rmtree(out)
            if ended:
                break
    assert ended
    assert k > 30


def test_two_restores_to_one_place_leave_each_other_alone(lab: Lab, past: Workspace) -> None:
    out = lab.root / "out"
    out.mkdir()
    with extracting._below(out, Disk()) as there, extracting._staging(there) as fd:
        Path(out, os.listdir(out)[0], "7").write_bytes(b"of the other one")
        past.restore("1", to=out)
        assert os.listdir(fd) == ["7"]
    assert set(tree_of(out)) == set(tree_of(past.directory)) - {b"later"}


def test_snapshots_of_hostile_devices_are_snapshots_all_the_same(past: Workspace) -> None:
    """A version tag that is no number names no version."""
    from metasync.history.log import version_of

    assert version_of(Snapshot(bytes(32), (), bytes(16), 0, "", ((1, b"x"),))) == 0
