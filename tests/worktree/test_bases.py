"""The chunks that are kept for deltas: bounded, never trusted, and of no consequence where the disk fails."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import zstandard
from content_kit import IDS, noise

from metasync.local.state import LocalDb
from metasync.local.state_keys import BASES_KEY
from metasync.runtime.sizes import DISK_MARGIN_BYTES
from metasync.worktree import bases
from metasync.worktree.bases import BaseCache, make_room
from metasync.worktree.disk import Disk
from metasync.worktree.tree import WorkTree

TEXT = b"what is written again and again\n" * 1000
FRAME = zstandard.ZstdCompressor().compress(TEXT)


def failing(code: int) -> Callable[..., Any]:
    """A system call that fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


class Kept:
    """A folder, and caches in it."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        (root / ".metasync").mkdir()
        self.dir = root / ".metasync/bases"
        self.disk = disk or Disk()
        self.tree = WorkTree(os.fsencode(root), self.disk)
        self.db = LocalDb.open(":memory:")
        self._times = itertools.count(10**18, 10**9)

    def cache(self, most_bytes: int = 1 << 20) -> BaseCache:
        return BaseCache(self.tree, self.db, IDS, most_bytes, lambda: next(self._times))

    @property
    def files(self) -> list[Path]:
        return sorted(self.dir.iterdir())

    @property
    def bytes(self) -> int:
        return sum(p.stat().st_size for p in self.files)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.tree.close()
    kept.db.close()


def put(cache: BaseCache, data: bytes, *, changes: bool = True) -> bytes:
    object_id = IDS.blob(data)
    cache.keep(object_id, data, changes=changes)
    return object_id


@pytest.mark.parametrize("damage", [b"", b"\0", b"\1", b"\1no frame", b"\2" + TEXT, b"\0" + TEXT[:-1], b"\2" + FRAME])
def test_what_is_damaged_is_not_here_and_goes(kept: Kept, damage: bytes) -> None:
    cache = kept.cache()
    object_id = put(cache, TEXT)
    kept.files[0].write_bytes(damage)
    assert cache.get(object_id) is None
    assert object_id not in cache
    assert not kept.files
    assert cache.get(put(cache, TEXT)) == TEXT


def test_a_link_in_its_place_is_not_followed(kept: Kept, tmp_path: Path) -> None:
    cache = kept.cache()
    object_id = put(cache, TEXT)
    (tmp_path / "secret").write_bytes(b"\0" + TEXT)
    kept.files[0].unlink()
    (kept.dir / object_id.hex()).symlink_to(tmp_path / "secret")
    assert cache.get(object_id) is None


def test_what_is_empty_or_too_large_for_a_chunk_is_neither_kept_nor_unpacked(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = kept.cache()
    object_id = put(cache, TEXT)
    assert [put(cache, data) in cache for data in (b"", b"x")] == [False, True]
    monkeypatch.setattr(bases, "CHUNK_BYTES_MAX", len(TEXT) - 1)
    assert cache.get(object_id) is None
    assert [put(cache, data) in cache for data in (TEXT, TEXT[1:])] == [False, True]


def test_what_would_take_more_than_is_freed_at_a_time_is_not_kept(kept: Kept) -> None:
    cache = kept.cache(80_000)
    assert [put(cache, noise(size)) in cache for size in (10_000, 9_900)] == [False, True]


def test_a_disk_that_fails_keeps_nothing_and_ends_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = kept.cache()
    object_id = put(cache, TEXT)

    for call in ("open", "look", "names"):
        monkeypatch.setattr(kept.disk, call, failing(errno.ENOSPC))
    assert cache.get(object_id) is None
    assert object_id not in cache
    put(cache, noise(1000))
    cache.trim(0)


class SmallDisk(Disk):
    """Has so many bytes for chunks, and for what `others` write."""

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.others = 0
        self.dir: Path | None = None

    def free_bytes(self, fd: int) -> int:
        there = self.dir is not None and self.dir.exists()
        kept = sum(p.stat().st_size for p in self.dir.iterdir()) if self.dir is not None and there else 0
        return self.bytes - self.others - kept


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Kept, SmallDisk]]:
    disk = SmallDisk(DISK_MARGIN_BYTES + 16_000_000)
    kept = Kept(tmp_path, disk)
    disk.dir = kept.dir
    yield kept, disk
    kept.tree.close()
    kept.db.close()


def test_the_cache_takes_a_share_of_the_disk_in_all(small: tuple[Kept, SmallDisk]) -> None:
    kept, disk = small
    cache = kept.cache(1 << 30)
    for n in range(60):
        put(cache, noise(200_000, n))
    cache.note()
    assert disk.bytes // 32 < kept.bytes <= disk.bytes // 16
    disk.others = 8_000_000
    kept.cache(1 << 30).note()
    assert 1_000_000 < kept.bytes <= (disk.bytes - disk.others) // 16


def test_a_chunk_that_is_much_of_its_room_is_not_kept(small: tuple[Kept, SmallDisk]) -> None:
    kept, disk = small
    most = disk.bytes // 16 // 8
    assert [put(kept.cache(1 << 30), noise(size)) in kept.cache() for size in (most, most - 1)] == [False, True]


def test_the_margin_is_not_for_the_cache(small: tuple[Kept, SmallDisk]) -> None:
    kept, disk = small
    disk.others = 15_999_000
    cache = kept.cache(1 << 30)
    assert put(cache, noise(200)) not in cache
    disk.others = 14_000_000
    assert put(cache, noise(100_000)) in cache
    kept.db.set(BASES_KEY, 1 << 40)  # somebody removed much of it
    cache = kept.cache(1 << 30)
    for n in range(40):
        put(cache, noise(100_000, n))
    assert disk.free_bytes(0) >= DISK_MARGIN_BYTES
    assert kept.bytes > 1_000_000
    disk.others = 16_000_000
    cache.note()
    assert (kept.bytes, kept.db.get(BASES_KEY)) == (0, 0)


def test_what_is_coming_has_its_room(small: tuple[Kept, SmallDisk]) -> None:
    kept, _ = small
    cache = kept.cache(1 << 30)
    cache.coming_bytes = 15_900_000
    assert put(cache, noise(101_000)) not in cache
    cache.coming_bytes = 14_000_000
    assert put(cache, noise(101_000)) in cache


def test_it_gives_back_what_is_lacking(kept: Kept) -> None:
    assert make_room(kept.tree, kept.db, 1) == 0
    assert not kept.dir.exists()
    cache = kept.cache()
    ids = [put(cache, noise(9_000, n)) for n in range(4)]
    assert make_room(kept.tree, kept.db, 9_002) == 2 * 9_001
    assert [i in cache for i in ids] == [False, False, True, True]
    assert kept.db.get(BASES_KEY) == kept.bytes
    assert make_room(kept.tree, kept.db) == 2 * 9_001
    assert (kept.files, kept.db.get(BASES_KEY)) == ([], 0)


def test_what_a_disk_refuses_stays_and_is_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = kept.cache()
    for n in range(2):
        put(cache, noise(9_000, n))
    cache.note()
    with monkeypatch.context() as patch:
        patch.setattr(kept.disk, "unlink", failing(errno.EROFS))
        assert make_room(kept.tree, kept.db) == 0
        patch.setattr(kept.disk, "names", failing(errno.EIO))
        assert make_room(kept.tree, kept.db) == 0
        patch.setattr(kept.disk, "free_bytes", failing(errno.EIO))
        cache.note()
    assert kept.db.get(BASES_KEY) == kept.bytes == 2 * 9_001


def test_chunks_that_a_folder_brings_with_it_are_counted(kept: Kept) -> None:
    for n in range(8):
        put(kept.cache(80_000), noise(9_000, n))
    kept.db.set(BASES_KEY, None)  # its local state was lost
    put(kept.cache(80_000), noise(9_500, 99))
    assert kept.bytes <= 70_000


def test_chunks_come_back_compressed_where_that_saves_something(kept: Kept) -> None:
    cache, random = kept.cache(), noise(20_000)
    for data in (TEXT, random, b"x"):
        assert cache.get(put(cache, data)) == data
    assert len(kept.files) == 3
    assert kept.bytes < 20_000 + 1_000
    assert all(p.stat().st_mode & 0o077 == 0 for p in kept.files)


def test_the_least_recently_used_go_first(kept: Kept) -> None:
    cache = kept.cache(80_000)
    ids = [put(cache, noise(9_000, n)) for n in range(8)]
    assert cache.get(ids[0]) is not None
    more = put(cache, noise(9_500, 99))
    assert [i in cache for i in (more, *ids)] == [True, True, False, False, True, True, True, True, True]
    assert kept.bytes <= 70_000


def test_what_was_passed_over_goes_first(kept: Kept) -> None:
    cache = kept.cache(80_000)
    ids = [put(cache, noise(9_000, n)) for n in range(8)]
    cache.pass_over(ids[5])
    cache.pass_over(b"no such chunk".ljust(32))
    put(cache, noise(9_500, 99))
    assert [i in cache for i in ids] == [False, True, True, True, True, False, True, True]


def test_what_never_changed_takes_half_and_goes_first(kept: Kept) -> None:
    cache = kept.cache(80_000)
    photos = [put(cache, noise(9_000, n), changes=False) for n in range(8)]
    assert [p in cache for p in photos] == [True] * 4 + [False] * 4
    docs = [put(cache, noise(9_000, n)) for n in range(10, 15)]
    assert all(d in cache for d in docs)
    assert sum(p in cache for p in photos) == 2


def test_of_what_never_changed_and_does_not_shrink_little_is_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.worktree.bases.UNSHRUNK_BYTES_MAX", 20_000)
    cache = kept.cache()
    assert [put(cache, noise(9_000, n), changes=False) in cache for n in (0, 0, 0, 1, 2, 3)] == [True] * 4 + [False] * 2
    assert put(cache, TEXT, changes=False) in cache
    assert put(cache, noise(9_000, 4)) in cache


class Later:
    """A worker that begins with what is waited for, and not before."""

    def __init__(self) -> None:
        self.given: list[Later.Work] = []

    def __call__(self, function: Callable[[], list[bytes]]) -> Future[list[bytes]]:
        self.given.append(Later.Work(function))
        return self.given[-1]

    class Work(Future[list[bytes]]):
        def __init__(self, function: Callable[[], list[bytes]]) -> None:
            super().__init__()
            self._function = function

        def result(self, timeout: float | None = None) -> list[bytes]:
            if not self.done():
                self.set_result(self._function())
            return super().result(timeout)


def test_a_worker_that_fails_ends_the_keeping(kept: Kept) -> None:
    cache = kept.cache()

    def fails(_: Callable[[], list[bytes]]) -> Future[list[bytes]]:
        broken: Future[list[bytes]] = Future()
        broken.set_exception(MemoryError())
        return broken

    cache.work = fails
    for n in range(6):
        put(cache, noise(40_000, n), changes=False)
    with pytest.raises(MemoryError):
        put(cache, noise(40_000, 6), changes=False)
    cache.note()  # and what was not written is not here


def test_new_chunks_are_the_same_whether_workers_compress_them(tmp_path: Path) -> None:
    made = []
    for name, work in (("alone", None), ("beside", Later())):
        (tmp_path / name).mkdir()
        kept = Kept(tmp_path / name)
        cache = kept.cache(8 << 20)
        cache.work = work
        for n in range(30):
            put(cache, TEXT[n:] if n % 2 else noise(30_000, n), changes=False)
            put(cache, noise(5_000, 100 + n))  # of files that change: at once
        assert work is None or len(work.given) == 3
        cache.note()
        made.append({p.name: p.read_bytes() for p in kept.files})
        assert kept.db.get(BASES_KEY) == kept.bytes
        kept.tree.close()
        kept.db.close()
    assert made[0] == made[1]
    assert len(made[0]) == 60


def test_who_keeps_new_chunks_waits_for_workers_that_have_much(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "WAITING_BYTES_MAX", 600_000)
    cache, work = kept.cache(8 << 20), Later()
    cache.work = work
    ids = [put(cache, noise(100_000, n), changes=False) for n in range(8)]
    assert [w.done() for w in work.given] == [False, False]
    assert not any(i in cache for i in ids)
    ids.append(put(cache, noise(100_000, 8), changes=False))
    assert [w.done() for w in work.given] == [True, False, False]
    assert [i in cache for i in ids] == [True] * 3 + [False] * 6
    cache.note()
    assert all(i in cache for i in ids)


def test_how_full_it_is_is_known_to_the_next_one_and_found_out_again(kept: Kept) -> None:
    first = kept.cache(80_000)
    for n in range(8):
        put(first, noise(9_000, n))
    first.note()
    second = kept.cache(80_000)
    put(second, noise(9_500, 99))
    second.note()
    assert kept.bytes <= 70_000
    assert kept.db.get(BASES_KEY) == kept.bytes
    kept.db.set(BASES_KEY, 79_999)  # of a file that somebody removed
    third = kept.cache(80_000)
    put(third, noise(9_000, 100))
    third.note()
    assert kept.db.get(BASES_KEY) == kept.bytes


def test_none_are_kept_where_none_may_be(kept: Kept) -> None:
    cache = kept.cache(0)
    assert put(cache, TEXT) not in cache
    assert put(cache, b"x", changes=False) not in cache


@pytest.mark.parametrize("most", [0, 30_000])
def test_what_has_less_room_than_it_had_shrinks(kept: Kept, most: int) -> None:
    first = kept.cache(80_000)
    ids = [put(first, noise(9_000, n)) for n in range(8)]
    first.note()
    less = kept.cache(most)
    assert (less.get(ids[7]) is None) == (most == 0)
    put(less, noise(9_000, 9))
    less.note()
    assert kept.bytes <= most
    assert kept.db.get(BASES_KEY) == kept.bytes


def test_trimmed_to_nothing(kept: Kept) -> None:
    cache = kept.cache()
    object_id = put(cache, TEXT)
    cache.trim(0)
    assert not kept.files and object_id not in cache
