"""Whole workspaces end to end: kinds of files, sets of backends, what a push costs, what a merge keeps."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from workspace_kit import PASSPHRASE, Lab, flip, tree_of, write

from metasync.backends.api import BackendUrl, LogForm
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import parse_url
from metasync.errors import GuardError, MetaSyncError, UnreachableError, UsageError
from metasync.events import Event, Notice
from metasync.session import open_backend
from metasync.workspace import Workspace

FILES = {"notes.txt": b"one\ntwo\nthree\n", "d/photo.bin": os.urandom(20_000), "d/e/f": b"deep"}


def pair(lab: Lab, *names: str, **options: Any) -> tuple[Workspace, Workspace]:
    """Two devices with the same three files."""
    urls = lab.urls(*(names or ("a", "b", "c")), kind="memory")
    w = lab.init(urls, **options)
    write(w.directory, FILES)
    w.push("first")
    c = lab.clone(urls)
    return w, c


def same(w: Workspace, c: Workspace) -> None:
    assert tree_of(c.directory) == tree_of(w.directory)


def crossed(w: Workspace, c: Workspace) -> None:
    """Brings both to the newest version, and sees that they are equal and settled."""
    w.push()
    c.sync()
    w.pull()
    c.pull()
    same(w, c)
    for x in (w, c):
        assert len(x.status().changes) == 0
        assert x.push().version is None


# --- sets of backends


@pytest.mark.few(3)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_sets_of_one_to_five_backends(lab: Lab, n: int) -> None:
    names = "abcde"[:n]
    w, c = pair(lab, *names)
    same(w, c)
    down = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}[n]
    for name in names[:down]:
        lab.faults[name].down = True
    write(w.directory, {"more": os.urandom(5000)})
    assert w.push().version == 3
    c.pull()
    same(w, c)
    if down:
        assert w.push().under_replicated == 0
    for name in names[:down]:
        lab.faults[name].down = False
    d = lab.clone(lab.urls(*names, kind="memory"), device="third")
    same(w, d)


def test_any_one_backend_may_be_away_at_a_clone(lab: Lab) -> None:
    w, _ = pair(lab, "a", "b", "c", "d")
    for name in "abcd":
        lab.faults[name].down = True
        same(w, lab.clone(lab.urls("a", "b", "c", "d", kind="memory"), device=f"without-{name}"))
        lab.faults[name].down = False


def test_backends_that_hold_data_only(lab: Lab) -> None:
    urls = [
        lab.url("vote", "memory"),
        *(lab.url(n, "memory", role="storage", capacity="100GiB") for n in ("store1", "store2")),
    ]
    w = lab.init(urls)
    write(w.directory, FILES | {f"n{i}": os.urandom(500) for i in range(5)})
    w.push()
    assert [b.roles for b in w.backends()] == [("data",), ("data",), ("data", "vote")]
    c = lab.clone(urls)
    same(w, c)
    assert {b.name: (b.linked, b.state) for b in c.backends()} == dict.fromkeys(
        ("vote", "store1", "store2"), (True, "ok")
    )
    write(c.directory, {"from-c": b"1"})
    c.push()
    w.pull()
    same(w, c)
    lab.faults["store1"].down = True
    d = lab.clone(urls, device="third")
    same(w, d)


def test_a_clone_with_the_voters_alone_says_what_is_not_linked(lab: Lab) -> None:
    urls = [lab.url("v", "memory"), *(lab.url(n, "memory", role="storage") for n in ("s1", "s2"))]
    w = lab.init(urls, replicas=3)
    write(w.directory, FILES)
    w.push()
    report = Workspace.clone(lab.root / "desktop", name="docs", backends=urls[:1], passphrase=PASSPHRASE)
    c = lab.keep(report.workspace)
    same(w, c)
    assert report.unlinked == ("s1", "s2")
    assert not report.read_only
    assert c.link("s1", urls[1]).state == "ok"
    with pytest.raises(UsageError):
        c.link("s2", urls[1])


def test_shares_follow_capacity(lab: Lab) -> None:
    urls = [lab.url(n, "memory", capacity=c) for n, c in (("small", "1GiB"), ("mid", "4GiB"), ("large", "15GiB"))]
    w = lab.init(urls, replicas=1)
    for i in range(40):
        write(w.directory, {f"f{i % 3}": os.urandom(100)})
        w.push()
    held = {n: sum("/packs/" in p for p in lab.faults[n].snapshot()) for n in ("small", "mid", "large")}
    assert sum(held.values()) == 40
    assert held["small"] <= 8  # 2 expected
    assert held["large"] >= 20  # 30 expected
    assert held["small"] < held["large"] > held["mid"]


def test_an_empty_workspace(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls)
    assert w.push().version is None
    assert w.log() == []
    assert w.check().packs == 0
    c = lab.clone(urls)
    assert tree_of(c.directory) == {}
    write(c.directory, {"x": b"1"})
    c.push()
    w.pull()
    same(w, c)
    (w.directory / "x").unlink()
    w.push()
    c.pull()
    assert tree_of(c.directory) == {}


# --- without encryption


def test_no_encryption_keeps_integrity(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls, encryption=False)
    text = b"a text that anyone may read\n" * 40
    write(w.directory, {"clear.bin": os.urandom(500) + text, "notes.txt": b"one\n"})
    w.push()
    c = lab.clone(urls)
    same(w, c)
    for pack in lab.objects("a", "packs"):
        flip(pack, at=100)
    report = w.check(read_data=True)
    assert {p.backend for p in report.problems} <= {"a"}
    same(w, lab.clone(urls, device="third"))
    with pytest.raises(MetaSyncError):
        lab.clone(urls, device="fourth", passphrase="wrong")


def test_no_encryption_does_not_let_a_provider_forge(lab: Lab) -> None:
    """All keys derive from public values then: what stops a provider is the signature alone."""
    from metasync.consensus.records.entry import Entry, Kind, Round, entry_path, seal_entry
    from metasync.consensus.records.state import Change, successor
    from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device

    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls, encryption=False)
    write(w.directory, FILES)
    w.push()
    before = tree_of(w.directory)
    evil = new_device("evil", os.urandom(DEVICE_ENTROPY_BYTES))
    with w._session("test") as s:
        base = s.newest_state()
        forged = successor(
            base, Change(op_id=os.urandom(16), master=os.urandom(32)), skip=base.prev, writer=os.urandom(16)
        )
        for backend, acceptor in s.config.acceptors:
            place = entry_path(s.keys, base.epoch, base.era, acceptor.acceptor_id, base.v + 1, 0)
            entry = Entry(
                acceptor_id=acceptor.acceptor_id, v=base.v + 1, idx=0, prev_entry=bytes(32), base=base,
                kind=Kind.DECIDED, round=Round(1, forged.writer), value=forged, entry_id=os.urandom(16),
                device_id=s.device.device_id, certificate=b"",
            )  # fmt: skip
            data = seal_entry(s.keys, entry, evil.sign_private, os.urandom(32))
            if backend.name == "a":
                s.runtime._backends["a"].put(place, data)
    w = lab.reopen(w)
    assert w.pull().version == 1
    assert tree_of(w.directory) == before
    write(w.directory, {"more": b"1"})
    assert w.push().version == 2
    c = lab.clone(urls)
    same(w, c)


# --- kinds of files


def test_all_that_a_tree_can_hold(lab: Lab) -> None:
    w, c = pair(lab)
    top = w.directory
    (top / "empty/in/empty").mkdir(parents=True)
    (top / "empty.txt").write_bytes(b"")
    (top / "dangling").symlink_to("nowhere")
    (top / "absolute").symlink_to("/etc/passwd")
    (top / "inside").symlink_to("d/e")
    os.symlink(b"bytes\xff\n", os.fsencode(top) + b"/odd\xfe\nname")
    write(top, {"secret": b"s", "run.sh": b"#!/bin/sh\n", "locked/in": b"1", "ro.txt": b"ro"})
    (top / "secret").chmod(0o400)
    (top / "run.sh").chmod(0o755)
    (top / "ro.txt").chmod(0o444)
    os.link(top / "d/photo.bin", top / "d/hard-link.bin")
    os.utime(top / "run.sh", ns=(1, 1_234_567_890_123_456_789))
    os.utime(top / "empty.txt", ns=(1, 1))
    os.utime(top / "dangling", ns=(1, 999_999_999), follow_symlinks=False)
    (top / "locked").chmod(0o555)
    os.mkfifo(top / "pipe")
    r = w.push()
    assert [s.path for s in r.skipped] == [b"pipe"]
    (top / "pipe").unlink()
    c.pull()
    same(w, c)
    (top / "locked").chmod(0o755)
    write(top, {"locked/in": b"22", "locked/more": b"3"})
    (top / "locked").chmod(0o500)
    (top / "secret").chmod(0o600)
    (top / "dangling").unlink()
    (top / "dangling").symlink_to("elsewhere")
    w.push()
    c.pull()
    same(w, c)
    assert w.push().version is None
    assert c.push().version is None


def test_files_of_all_sizes(lab: Lab) -> None:
    w, c = pair(lab)
    sizes = [0, 1, 63, 64, 65, 4095, 4096, 65_535, 65_536, 65_537, 262_144, 1 << 20, (3 << 20) + 7]
    write(w.directory, {f"f{n}": os.urandom(n) for n in sizes})
    write(w.directory, {f"z{n}": bytes(n) for n in sizes})
    w.push()
    c.pull()
    same(w, c)
    assert w.check(read_data=True).problems == ()


def test_a_big_file_of_nothing(lab: Lab) -> None:
    w, c = pair(lab)
    with (w.directory / "sparse").open("wb") as f:
        f.truncate(200 << 20)
    r = w.push()
    assert r.bytes_stored < 1 << 20
    c.pull()
    assert (c.directory / "sparse").stat().st_size == 200 << 20


# --- what a push costs


def uploaded(lab: Lab) -> int:
    return sum(count.take().up_bytes for count in lab.counts.values())


def test_renames_copies_and_touches_upload_no_data(lab: Lab) -> None:
    w, c = pair(lab)
    write(w.directory, {"big/one.bin": os.urandom(700_000), "big/two.bin": os.urandom(2_000_000)})
    w.push()
    uploaded(lab)
    (w.directory / "big").rename(w.directory / "renamed")
    w.push()
    assert uploaded(lab) < 60_000
    write(w.directory, {"copy.bin": (w.directory / "renamed/two.bin").read_bytes()})
    w.push()
    assert uploaded(lab) < 60_000
    (w.directory / "renamed/one.bin").touch()
    r = w.push()
    assert r.changes.modified == (b"renamed/one.bin",)
    assert uploaded(lab) < 60_000
    c.pull()
    same(w, c)
    with (w.directory / "renamed/two.bin").open("r+b") as f:
        f.seek(1_000_000)
        f.write(b"changed in the middle")
    uploaded(lab)
    w.push()
    assert uploaded(lab) < 3_000_000  # of 4,000,000: both copies
    c.pull()
    same(w, c)


def test_a_push_of_one_file_takes_few_requests(lab: Lab) -> None:
    """The least of three: on a busy machine what was not answered in time is asked for again."""
    w, _ = pair(lab)
    w.sync()
    least = []
    for n in range(3):
        w = lab.reopen(w)
        for count in lab.counts.values():
            count.take()
        write(w.directory, {"x": b"%d" % n})
        r = w.push()
        requests = sum(count.take().requests.total() for count in lab.counts.values())
        least.append(requests - r.packs * 2)
    assert min(least) <= 12 * 3


# --- merges


def test_deleted_here_and_changed_there_keeps_the_change(lab: Lab) -> None:
    w, c = pair(lab)
    (w.directory / "notes.txt").unlink()
    write(c.directory, {"notes.txt": b"changed\n", "d/e/f": b"changed too"})
    w.push()
    c.push()
    w.pull()
    assert (w.directory / "notes.txt").read_bytes() == b"changed\n"
    (c.directory / "notes.txt").unlink()
    import shutil

    shutil.rmtree(c.directory / "d")
    write(w.directory, {"notes.txt": b"changed again\n", "d/e/f": b"changed here"})
    w.push()
    c.push()
    crossed(w, c)
    assert (c.directory / "notes.txt").read_bytes() == b"changed again\n"
    assert (c.directory / "d/e/f").read_bytes() == b"changed here"
    assert not (c.directory / "d/photo.bin").exists()


def test_edits_on_both_sides(lab: Lab) -> None:
    w, c = pair(lab)
    lines = [f"line {i}\n" for i in range(20)]
    write(w.directory, {"merge.txt": "".join(lines).encode()})
    w.push()
    c.pull()
    mine, theirs = lines.copy(), lines.copy()
    mine[2], theirs[17] = "mine\n", "theirs\n"
    write(w.directory, {"merge.txt": "".join(mine).encode(), "notes.txt": b"A\n", "same.txt": b"same\n"})
    write(c.directory, {"merge.txt": "".join(theirs).encode(), "notes.txt": b"B\n", "same.txt": b"same\n"})
    w.push()
    r = c.push()
    assert r.pulled is not None
    assert [x.path for x in r.pulled.conflicts] == [b"notes.txt"]
    assert r.pulled.merged == (b"merge.txt",)
    crossed(w, c)
    text = (w.directory / "merge.txt").read_text()
    assert "mine\n" in text
    assert "theirs\n" in text
    assert (w.directory / "notes.txt").read_bytes() == b"A\n"
    assert (w.directory / "notes.conflict-desktop-20261122.txt").read_bytes() == b"B\n"
    assert not (w.directory / "same.conflict-desktop-20261122.txt").exists()


@pytest.mark.few(6)
@pytest.mark.parametrize("here", ["file", "dir", "link", "gone"])
@pytest.mark.parametrize("there", ["file", "dir", "link", "gone"])
def test_kinds_that_change_on_both_sides(lab: Lab, here: str, there: str) -> None:
    w, c = pair(lab)

    def become(path: Path, kind: str, mark: str) -> None:
        path.unlink()
        if kind == "file":
            path.write_text(mark)
        elif kind == "dir":
            path.mkdir()
            (path / f"in-{mark}").write_text(mark)
        elif kind == "link":
            path.symlink_to(f"to-{mark}")

    become(w.directory / "notes.txt", here, "w")
    become(c.directory / "notes.txt", there, "c")
    w.push()
    c.push()
    crossed(w, c)
    kept = {(n.kind, n.data) for n in tree_of(w.directory).values()}
    for kind, mark in ((here, b"w"), (there, b"c")):
        if kind in ("file", "dir"):
            assert ("file", mark) in kept
        elif kind == "link":
            assert ("link", b"to-" + mark) in kept


def test_files_that_stand_in_the_way_of_a_pull(lab: Lab) -> None:
    w, c = pair(lab)
    write(w.directory, {"new.txt": b"theirs\n", "new-dir/x": b"theirs"})
    w.push()
    write(c.directory, {"new.txt": b"mine\n", "new-dir": b"a file of mine"})
    r = c.pull()
    assert {x.path for x in r.conflicts} == {b"new.txt", b"new-dir"}
    kept = {n.data for n in tree_of(c.directory).values()}
    assert {b"mine\n", b"theirs\n", b"a file of mine", b"theirs"} <= kept
    crossed(w, c)


def test_ignored_files_stay_at_home(lab: Lab) -> None:
    w, c = pair(lab)
    write(w.directory, {".DS_Store": b"1", "d/Thumbs.db": b"2", "~$lock.docx": b"3", ".metasync.txt": b"mine"})
    r = w.push()
    assert r.changes.added == (b".metasync.txt",)
    c.pull()
    assert not (c.directory / ".DS_Store").exists()


def test_beside_a_file_called_as_the_state_all_goes_to_the_others(lab: Lab) -> None:
    w, c = pair(lab)
    write(w.directory, {"nd/f": b"x", "nd/.metasync": b"no state"})
    r = w.push()
    assert r.changes.added == (b"nd/f",)
    assert [s.path for s in r.skipped] == [b"nd/.metasync"]
    c.pull()
    assert (c.directory / "nd" / "f").read_bytes() == b"x"
    assert not (c.directory / "nd" / ".metasync").exists()
    (c.directory / "nd" / "f").unlink()
    (c.directory / "nd").rmdir()
    c.push()
    w.pull()
    assert [p.name for p in (w.directory / "nd").iterdir()] == [".metasync"]


def test_everything_deleted_and_made_anew(lab: Lab) -> None:
    import shutil

    w, c = pair(lab)
    for path in w.directory.iterdir():
        if path.name != ".metasync":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(GuardError):
        w.push()
    r = w.push(force=True)
    assert len(r.changes.deleted) == 3
    c.pull()
    assert tree_of(c.directory) == {}
    write(c.directory, FILES)
    c.push()
    w.pull()
    same(w, c)


def test_a_workspace_that_was_moved(lab: Lab) -> None:
    w, c = pair(lab)
    w.close()
    w.directory.rename(lab.root / "moved")
    w = lab.keep(Workspace.open(lab.root / "moved/d"))
    assert len(w.status().changes) == 0
    write(w.directory, {"x": b"1"})
    w.push()
    c.pull()
    same(w, c)


def test_a_workspace_that_was_copied_whole(lab: Lab) -> None:
    """A copy is the same device twice: nothing is lost, whatever order the two push in."""
    import shutil

    w, c = pair(lab)
    w.close()
    shutil.copytree(w.directory, lab.root / "copy", symlinks=True)
    w = lab.reopen(w)
    x = lab.keep(Workspace.open(lab.root / "copy"))
    write(w.directory, {"from-w": b"1"})
    write(x.directory, {"from-x": b"2", "notes.txt": b"of x\n"})
    w.push()
    x.push()
    write(w.directory, {"notes.txt": b"of w\n"})
    w.push()
    x.pull()
    c.pull()
    assert tree_of(w.directory).keys() == tree_of(x.directory).keys() == tree_of(c.directory).keys()
    assert {b"of x\n", b"of w\n"} <= {n.data for n in tree_of(c.directory).values()}


def test_a_dry_run_of_sync_tells_and_changes_nothing(lab: Lab) -> None:
    w, c = pair(lab, "a", "b", "c")
    write(c.directory, {"theirs.txt": b"theirs"})
    c.push()
    write(w.directory, {"ours.txt": b"ours"})
    before = tree_of(w.directory)
    pulled, pushed = w.sync(dry_run=True)
    assert (pulled.changes.added, pushed.changes.added) == ((b"theirs.txt",), (b"ours.txt",))
    assert pushed.version is None
    assert tree_of(w.directory) == before
    assert w.sync()[1].version is not None
    assert {"ours.txt", "theirs.txt"} <= {p.name for p in w.directory.iterdir()}


class Probed(MemoryBackend):
    """Its probe ends only while all the others are probed too."""

    meeting: ClassVar[threading.Barrier]
    verdicts: ClassVar[Iterator[LogForm | Exception]]

    def probe(self) -> LogForm:
        self.meeting.wait(60)
        verdict = next(self.verdicts)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, BackendUrl]:
    urls = {name: parse_url(f"memory://probed-{name}") for name in "abc"}
    monkeypatch.setattr(Probed, "meeting", threading.Barrier(3), raising=False)
    return urls


def test_new_backends_are_probed_side_by_side(probed: dict[str, BackendUrl], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probed, "verdicts", iter(["none", "none", "log"]), raising=False)
    events: list[Event] = []
    new = open_backend.new_backends({name: Probed() for name in probed}, probed, events.append)
    assert [b.name for b in new] == ["a", "b", "c"]
    assert sorted(b.form for b in new) == ["log", "none", "none"]
    told = [b.name for b in new if b.form == "none"]
    assert [e.text.split()[0] for e in events if isinstance(e, Notice)] == told


def test_a_probe_that_fails_is_told(probed: dict[str, BackendUrl], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probed, "verdicts", iter(["log", UnreachableError("gone"), "log"]), raising=False)
    with pytest.raises(UnreachableError, match="gone"):
        open_backend.new_backends({name: Probed() for name in probed}, probed, [].append)
