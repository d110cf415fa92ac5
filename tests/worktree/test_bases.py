"""The chunks that are kept for deltas: bounded, never trusted, and of no consequence where the disk fails."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from content_kit import IDS, noise

from metasync.local.state import LocalDb
from metasync.local.state_keys import BASES_KEY
from metasync.worktree import bases
from metasync.worktree.bases import BaseCache
from metasync.worktree.disk import Disk
from metasync.worktree.tree import WorkTree

TEXT = b"what is written again and again\n" * 1000
FRAME = zstandard.ZstdCompressor().compress(TEXT)


class Kept:
    """A folder, and caches in it."""

    def __init__(self, root: Path) -> None:
        (root / ".metasync").mkdir()
        self.dir = root / ".metasync/bases"
        self.disk = Disk()
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

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("open", "look", "names"):
        monkeypatch.setattr(kept.disk, call, full)
    assert cache.get(object_id) is None
    assert object_id not in cache
    put(cache, noise(1000))
    cache.trim(0)


def test_a_disk_with_little_room_is_left_alone(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = kept.cache()
    monkeypatch.setattr(kept.disk, "free_bytes", lambda _: 15_000)
    assert put(cache, noise(1000)) not in cache
    assert put(cache, noise(900)) in cache


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


def test_how_full_it_is_is_known_to_the_next_one_and_found_out_again(kept: Kept) -> None:
    first = kept.cache(80_000)
    for n in range(8):
        put(first, noise(9_000, n))
    first.note()
    second = kept.cache(80_000)
    put(second, noise(9_500, 99))
    assert kept.bytes <= 70_000
    assert kept.db.get(BASES_KEY) == kept.bytes
    kept.db.set(BASES_KEY, 79_999)  # of a file that somebody removed
    put(kept.cache(80_000), noise(9_000, 100))
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
