"""The scan of files that grow, change or are exchanged while they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scan_kit import agreed
from workdir import QuietDisk, Workspace, digest, entry, ingest, write

from metasync.worktree.scan import READS_MAX, Content, store_scan


def test_a_file_that_changes_once_is_read_again(work: Workspace) -> None:
    write(work.root, {b"a": b"one", b"b": b"x"})
    calls = []

    def change_once(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        calls.append(got.content)
        if len(calls) == 1:
            work.at(b"a").write_bytes(b"changed")
        return got

    found = work.scan(ingest=change_once)
    assert found.tree[b"a"].content == digest(b"changed")
    assert calls == [digest(b"one"), digest(b"changed"), digest(b"x")]


@pytest.mark.parametrize("known", [True, False])
def test_a_busy_file_is_left_and_the_others_go_on(work: Workspace, known: bool) -> None:
    if known:
        agreed(work, {b"a": b"zero"})
        work.at(b"a").write_bytes(b"one")
    else:
        write(work.root, {b"a": b"one"})
    write(work.root, {b"b": b"x"})
    reads = []

    def always(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        if got.content != digest(b"x"):
            reads.append(1)
            work.at(b"a").write_bytes(b"%d" % len(reads))
        return got

    found = work.scan(ingest=always)
    assert len(reads) == READS_MAX
    assert found.busy == [b"a"]
    assert found.tree.get(b"a") == (entry(b"zero") if known else None)
    assert found.tree[b"b"] == entry(b"x")
    assert found.deleted == []
    assert work.scan().tree[b"a"].content == digest(b"3")  # quiet again


class Growing:
    """Reads files, and appends to `log` after each reading of it. `then`: what else happens to it, in which reading."""

    def __init__(self, work: Workspace, then: Callable[[Path], object] = lambda _: None, at: int = 0) -> None:
        self.log = work.at(b"log")
        self.then = then
        self.at = at
        self.reads = 0

    def __call__(self, fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        self.reads += 1
        with self.log.open("ab") as f:
            f.write(b"line %d\n" % self.reads)
        if self.reads == self.at:
            self.then(self.log)
        return got


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_grows_is_taken_as_it_was(work: Workspace, known: bool) -> None:
    write(work.root, {b"log": b"line 0\n"})
    if known:
        agreed(work, {b"log": b"line 0\n"})
        work.at(b"log").write_bytes(b"line 0\nline\n")
    begins = work.at(b"log").read_bytes()
    growing = Growing(work)
    found = work.scan(ingest=growing)
    assert growing.reads == READS_MAX + 1
    assert found.busy == []
    taken = begins + b"".join(b"line %d\n" % n for n in range(1, READS_MAX))
    assert found.tree[b"log"].content == digest(taken)
    assert found.tree[b"log"].size == len(taken) < work.at(b"log").stat().st_size
    store_scan(work.db, found)
    assert work.scan().tree[b"log"].content == digest(work.at(b"log").read_bytes())  # the rest comes next


def _first_line(log: Path) -> None:
    with log.open("r+b") as f:
        f.write(b"LINE")


@pytest.mark.parametrize(
    "then",
    [
        _first_line,
        lambda log: os.truncate(log, 3),
        lambda log: log.unlink(),
        lambda log: (log.unlink(), log.write_bytes(b"another file, and a longer one than that\n" * 9)),
        lambda log: log.chmod(0o600),
    ],
    ids=["written over", "shorter", "gone", "another", "mode"],
)
def test_a_file_that_does_not_only_grow_is_busy(work: Workspace, then: Callable[[Path], object]) -> None:
    write(work.root, {b"log": b"line 0\n"})
    found = work.scan(ingest=Growing(work, then, READS_MAX))
    assert found.busy == [b"log"]
    assert b"log" not in found.tree


def test_an_empty_file_that_grows_is_busy(work: Workspace) -> None:
    """Somebody is about to write it: an empty one is no version of it."""
    write(work.root, {b"log": b""})
    log, turns = work.at(b"log"), iter(range(READS_MAX))

    def emptied(fd: int, st: os.stat_result, was: object = None) -> Content:
        os.truncate(log, 0)
        got = ingest(fd, st)
        log.write_bytes(b"line")
        if next(turns) < READS_MAX - 1:
            os.truncate(log, 0)
        return got

    assert work.scan(ingest=emptied).busy == [b"log"]


@pytest.mark.parametrize("becomes", ["nothing", "another file", "a directory", "a symlink", "a fifo"])
def test_a_file_that_is_exchanged_while_it_is_read(work: Workspace, becomes: str) -> None:
    agreed(work, {b"a": b"zero", b"b": b"y"})
    work.at(b"a").write_bytes(b"one!")
    work.at(b"c").write_bytes(b"saved")
    done = []

    def exchange(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        if got.content == digest(b"one!") and not done:
            done.append(1)
            at = work.at(b"a")
            if becomes == "another file":
                work.at(b"c").rename(at)
            else:
                at.unlink()
                {"nothing": lambda: 0, "a directory": at.mkdir, "a fifo": lambda: os.mkfifo(at)}.get(
                    becomes, lambda: at.symlink_to("/etc/passwd")
                )()
        return got

    found = work.scan(ingest=exchange)
    if becomes == "another file":
        assert found.tree[b"a"].content == digest(b"saved")
    else:
        assert found.busy == [b"a"]
        assert found.tree[b"a"] == entry(b"zero")
    assert found.tree[b"b"] == entry(b"y")
    assert found.deleted == []


@pytest.mark.parametrize("becomes", ["nothing", "another file", "another size", "a directory", "a symlink", "a fifo"])
def test_a_file_that_is_exchanged_between_the_walk_and_its_reading(work: Workspace, becomes: str) -> None:
    """What the walk saw is not what is read: the stat afterwards tells, and the file is looked at again."""
    agreed(work, {b"a": b"zero", b"b": b"y"})
    work.at(b"a").write_bytes(b"one!")
    work.at(b"c").write_bytes(b"more, saved" if becomes == "another size" else b"two!")
    saved = work.at(b"c").read_bytes()

    class Exchanging(QuietDisk):
        done = False

        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name == b"a" and not self.done:
                self.done = True
                at = work.at(b"a")
                if becomes.startswith("another"):
                    work.at(b"c").rename(at)
                else:
                    at.unlink()
                    {"nothing": lambda: 0, "a directory": at.mkdir, "a fifo": lambda: os.mkfifo(at)}.get(
                        becomes, lambda: at.symlink_to("/etc/passwd")
                    )()
            return super().open(name, flags, dir_fd, mode)

    work.tree.disk = Exchanging()
    found = work.scan()
    if becomes.startswith("another"):
        assert found.tree[b"a"].content == digest(saved)
    else:
        assert found.busy == [b"a"]
        assert found.unreadable == []
        assert found.tree[b"a"] == entry(b"zero")
    assert found.tree[b"b"] == entry(b"y")
    assert found.deleted == []
