"""Events of a real folder: all that changed lies below what they make dirty, whatever is lost on the way."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import first
from walk_kit import ROOT, Settled, both, edit, is_same, some_tree

from metasync.service.dirty import Dirty
from metasync.service.watch import HEADER, InotifyWatch, ObserverWatch, Short
from metasync.worktree.hints import ALL, Hints
from metasync.worktree.merge_walk import walk_index
from metasync.worktree.scan import store_scan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify")
HUNG_S = 120.0
OVERFLOW = HEADER.pack(-1, 0x4000, 0, 0)


class Heard:
    """Notes what is heard."""

    def __init__(self) -> None:
        self.dirty = Dirty()
        self.lock = threading.Condition()
        self.times_all = 0
        self.shorts: list[Short | None] = []
        self.is_lost = False

    def name(self, directory: bytes, name: bytes, is_dir: bool | None) -> None:
        with self.lock:
            self.dirty.name(directory, name)

    def tree(self, directory: bytes) -> None:
        with self.lock:
            self.dirty.tree(directory)

    def everything(self) -> None:
        with self.lock:
            self.times_all += 1
            self.dirty.everything()
            self.lock.notify_all()

    def short_of(self, short: Short | None) -> None:
        with self.lock:
            self.shorts.append(short)
            self.lock.notify_all()

    def lost(self) -> None:
        with self.lock:
            self.is_lost = True
            self.lock.notify_all()

    def until(self, what: Any) -> None:
        with self.lock:
            assert self.lock.wait_for(what, HUNG_S)

    def take(self) -> Hints:
        with self.lock:
            hints = self.dirty.take()
            self.dirty.ended(well=True)
        return hints


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Settled]:
    with Settled(tmp_path / "w") as w:
        yield w


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watched(work: Settled, heard: Heard) -> Iterator[InotifyWatch]:
    watch = InotifyWatch(work.root, heard, lambda path: path.split(b"/")[-1] == b"ignored")
    watch.start()
    heard.until(lambda: heard.times_all)
    heard.take()
    yield watch
    watch.stop()


def told(watch: InotifyWatch, heard: Heard) -> Hints:
    assert watch.caught_up(HUNG_S)
    return heard.take()


@pytest.mark.parametrize("seed", first(12, range(300)))
def test_events_are_complete_hints(work: Settled, watched: InotifyWatch, heard: Heard, seed: int) -> None:
    """Trees and edits without pauses: a directory may have gone, moved and come again before its events are read."""
    rng = random.Random(seed)
    rules = rng.choice([0.0, 0.3])
    some_tree(rng, work.root, rules=rules)
    told(watched, heard)
    work.agree(work.scan_past())
    for _ in range(5):
        told(watched, heard)
        for _ in range(rng.randint(0, 8)):
            edit(rng, work.root, rules)
        hints = told(watched, heard)
        if walk_index(work.tree, work.db, ROOT, hints) is None:
            return
        whole, found = both(work, hints)
        is_same(whole, found)
        work.tree.tick_past(work.tree.clock_ns(), 1.0)
        whole, _ = both(work, hints)
        store_scan(work.db, whole)
        work.agree(whole)


def test_a_change_names_its_directory_alone(work: Settled, watched: InotifyWatch, heard: Heard) -> None:
    (work.root / "a" / "b").mkdir(parents=True)
    (work.root / "other").mkdir()
    told(watched, heard)
    (work.root / "a" / "b" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints({b"a/b"})
    (work.root / "a" / "b" / "x").rename(work.root / "other" / "x")
    assert told(watched, heard) == Hints({b"a/b", b"other"})
    (work.root / "a" / "b").chmod(0o700)
    assert told(watched, heard) == Hints({b"a"})
    assert told(watched, heard) == Hints()


def test_a_directory_that_moves_is_watched_where_it_is_now(work: Settled, watched: InotifyWatch, heard: Heard) -> None:
    (work.root / "a" / "b" / "c").mkdir(parents=True)
    told(watched, heard)
    (work.root / "a" / "b").rename(work.root / "z")
    assert told(watched, heard) == Hints({b"a", b""}, {b"z"})
    (work.root / "z" / "c" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints({b"z/c"})
    (work.root / "z").rename(work.root / "a" / "b")
    (work.root / "a" / "b" / "c" / "x").write_bytes(b"y")
    hints = told(watched, heard)
    assert b"a/b" in hints.trees
    assert {b"", b"a"} <= set(hints.dirs)


def test_a_directory_that_left_the_folder_is_watched_no_more(
    work: Settled, watched: InotifyWatch, heard: Heard, tmp_path: Path
) -> None:
    (work.root / "a" / "b").mkdir(parents=True)
    told(watched, heard)
    (work.root / "a").rename(tmp_path / "away")
    assert told(watched, heard) == Hints({b""})
    (tmp_path / "away" / "b" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints()


def test_what_is_ours_and_what_is_ignored_is_not_watched(work: Settled, watched: InotifyWatch, heard: Heard) -> None:
    (work.root / ".metasync" / "x").write_bytes(b"x")
    (work.root / "ignored" / "deep").mkdir(parents=True)
    told(watched, heard)
    (work.root / "ignored" / "deep" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints()
    (work.root / "inner" / ".metasync").mkdir(parents=True)
    (work.root / "inner" / ".metasync" / "state.db").touch()
    (work.root / "inner" / "deep").mkdir()
    watched.renew()
    heard.until(lambda: heard.times_all == 2)
    told(watched, heard)
    (work.root / "inner" / "deep" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints()


def test_beside_what_is_called_as_a_state_and_is_none_all_is_watched(
    work: Settled, watched: InotifyWatch, heard: Heard
) -> None:
    for name in ("a", "b"):
        (work.root / name / "deep").mkdir(parents=True)
    (work.root / "a" / ".metasync").mkdir()
    (work.root / "b" / ".metasync").touch()
    watched.renew()
    heard.until(lambda: heard.times_all == 2)
    told(watched, heard)
    for name in ("a", "b"):
        (work.root / name / "deep" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints({b"a/deep", b"b/deep"})
    (work.root / "a" / "new").mkdir()
    assert told(watched, heard) == Hints({b"a"}, {b"a/new"})
    (work.root / "a" / ".metasync" / "x").write_bytes(b"not taken in, so not watched")
    assert told(watched, heard) == Hints()


def test_a_workspace_inside_that_is_none_any_more_is_watched(
    work: Settled, watched: InotifyWatch, heard: Heard, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "state.db").touch()
    (work.root / "inner" / "deep").mkdir(parents=True)
    told(watched, heard)
    state.rename(work.root / "inner" / ".metasync")  # as MetaSync makes it
    assert told(watched, heard) == Hints(trees={b"inner"})
    (work.root / "inner" / "deep" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints()
    shutil.rmtree(work.root / "inner" / ".metasync")
    assert told(watched, heard) == Hints(trees={b"inner"})
    (work.root / "inner" / "deep" / "x").write_bytes(b"xx")
    assert told(watched, heard) == Hints({b"inner/deep"})


def test_an_overflow_makes_everything_dirty_and_finds_what_came_unheard(
    work: Settled, watched: InotifyWatch, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice is put before events of which the kernel dropped all."""
    reads = watched.take
    came = threading.Event()

    def dropping(events: bytes) -> None:
        reads(OVERFLOW)
        monkeypatch.setattr(watched, "take", reads)
        came.set()

    monkeypatch.setattr(watched, "take", dropping)
    (work.root / "a" / "b").mkdir(parents=True)
    assert came.wait(HUNG_S)
    assert heard.take() == ALL
    told(watched, heard)
    (work.root / "a" / "b" / "x").write_bytes(b"x")
    assert told(watched, heard) == Hints({b"a/b"})


def test_too_few_watches_are_told_with_the_number_needed(
    work: Settled, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(10):
        (work.root / f"{at}").mkdir()
    watch = InotifyWatch(work.root, heard, lambda _path: False)
    add, left = watch._os.inotify_add_watch, [5]

    def limited(fd: int, path: bytes, mask: int) -> int:
        import ctypes

        if left[0] <= 0:
            ctypes.set_errno(errno.ENOSPC)
            return -1
        left[0] -= 1
        return int(add(fd, path, mask))

    monkeypatch.setattr(watch._os, "inotify_add_watch", limited)
    watch.start()
    heard.until(lambda: heard.shorts)
    assert heard.shorts[0] is not None
    assert heard.shorts[0].needed == 11
    heard.take()
    left[0] = 100
    watch.renew()
    heard.until(lambda: len(heard.shorts) == 2)
    assert heard.shorts[1] is None
    told(watch, heard)
    (work.root / "9" / "x").write_bytes(b"x")
    assert told(watch, heard) == Hints({b"9"})
    watch.stop()


def test_a_folder_whose_state_goes_is_lost(work: Settled, watched: InotifyWatch, heard: Heard, tmp_path: Path) -> None:
    (tmp_path / "w/.metasync/more").touch()
    (tmp_path / "w/.metasync").chmod(0o700)
    assert watched.caught_up(HUNG_S)
    assert not heard.is_lost
    (tmp_path / "w/.metasync").rename(tmp_path / "away")
    heard.until(lambda: heard.is_lost)


def test_a_folder_that_goes_is_lost(work: Settled, watched: InotifyWatch, heard: Heard, tmp_path: Path) -> None:
    work.root.rename(tmp_path / "elsewhere")
    heard.until(lambda: heard.is_lost)


def test_who_waits_for_a_watcher_that_ends_waits_no_longer(watched: InotifyWatch) -> None:
    watched.stop()
    assert not watched.caught_up(HUNG_S)


def test_the_observer_of_other_systems_names_the_same(work: Settled, heard: Heard) -> None:
    watch = ObserverWatch(work.root, heard)
    watch.start()
    heard.until(lambda: heard.times_all)
    heard.take()
    (work.root / "new").mkdir()
    (work.root / ".metasync" / "x").write_bytes(b"x")
    heard.until(lambda: b"new" in heard.dirty._trees) if heard.dirty._trees else None
    with heard.lock:
        pass
    watch.dispatch(_event("moved", work.root / "a", work.root / "b", is_directory=True))
    hints = heard.take()
    assert b"b" in hints.trees
    assert b"" in hints.dirs
    assert not {path for path in (*hints.dirs, *hints.trees) if path.startswith(b".metasync")}
    watch.stop()


class _event:  # noqa: N801 - stands for one of watchdog's
    def __init__(self, event_type: str, src: Path, dest: Path, *, is_directory: bool) -> None:
        self.event_type, self.is_directory = event_type, is_directory
        self.src_path, self.dest_path = str(src), str(dest)


@pytest.mark.long
def test_a_storm_of_files_is_not_lost(work: Settled, watched: InotifyWatch, heard: Heard) -> None:
    """100,000 files in some ten seconds, in new directories and old ones."""
    work.agree(work.scan_past())
    told(watched, heard)
    for at in range(200):
        inside = work.root / f"d{at % 50}" / f"{at}"
        inside.mkdir(parents=True)
        for one in range(500):
            os.close(os.open(inside / f"{one}", os.O_CREAT | os.O_WRONLY))
        if at % 7 == 3:
            shutil.rmtree(work.root / f"d{(at - 3) % 50}", ignore_errors=True)
    hints = told(watched, heard)
    whole, found = both(work, hints)
    is_same(whole, found)
