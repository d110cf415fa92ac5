"""Pieces of zeros become holes: a sparse file stays one on every device."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace_kit import Lab

from metasync.worktree import disk as fsio
from metasync.worktree.disk import HOLE_BYTES_MIN, Disk, write_part

MB = 1 << 20


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.fixture
def holes(fd: int) -> None:
    if not fsio._punch(fd, 0, 1):
        pytest.skip("this file system, or this system, knows no holes")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("punches", [True, False])
def test_pieces_in_any_order_and_again_are_the_file(
    fd: int, seed: int, punches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if not punches:
        monkeypatch.setattr(fsio, "_fallocate", lambda: None)
    size = HOLE_BYTES_MIN + 777
    pieces = [bytes(size), rng.randbytes(size), bytes(size - 1) + b"x", b"x" + bytes(size), bytes(size), bytes(5)]
    rng.shuffle(pieces)
    offsets = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    whole = b"".join(pieces)
    os.pwrite(fd, rng.randbytes(rng.randrange(len(whole))), 0)  # what an earlier delivery left
    order = list(range(len(pieces))) * 2
    rng.shuffle(order)
    for i in order:
        write_part(Disk(), fd, memoryview(pieces[i]), offsets[i])
    assert content(fd) == whole


def test_zeros_take_no_room_and_do_not_shorten(fd: int, holes: None) -> None:
    disk = Disk()
    write_part(disk, fd, b"end", 64 * MB)
    for at in range(0, 64 * MB, 4 * MB):
        write_part(disk, fd, bytes(4 * MB), at)
    st = os.fstat(fd)
    assert st.st_size == 64 * MB + 3
    assert st.st_blocks * 512 < MB
    assert content(fd) == bytes(64 * MB) + b"end"


def test_a_clone_of_a_sparse_file_is_sparse(lab: Lab, holes: None) -> None:
    urls = lab.urls("one", "two", "three")
    w = lab.init(urls)
    with (w.directory / "sparse").open("wb") as f:
        f.write(b"begin")
        f.seek(40 * MB)
        f.write(b"middle")
        f.truncate(80 * MB)
    w.push()
    other = lab.clone(urls)
    here, there = w.directory / "sparse", other.directory / "sparse"
    assert there.read_bytes() == here.read_bytes()
    assert there.stat().st_blocks * 512 < 20 * MB
