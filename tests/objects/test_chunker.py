"""`metasync.objects.chunker`: the same bytes are cut at the same places, on every device, however they are read."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from content_kit import SMALL, Sizes, chunker, noise
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.objects.chunker import READ_BYTES, Chunker, SizeClass, _cutter

KIB, MIB = 1 << 10, 1 << 20
CUTS_NO_ZEROS = 3  # a seed under which a file of zeros has no cut but where a chunk is full
DEFAULT: tuple[Sizes, ...] = (
    (64 * MIB, 64 * KIB, 256 * KIB, MIB),
    (4 << 30, 256 * KIB, MIB, 4 * MIB),
    (None, MIB, 4 * MIB, 16 * MIB),
)


def lengths(c: Chunker, data: bytes) -> list[int]:
    chunks = list(c.cut(io.BytesIO(data).read, len(data)))
    assert b"".join(chunks) == data
    return [len(x) for x in chunks]


def odd_reads(data: bytes, steps: Sequence[int]) -> Callable[[int], bytes]:
    """A `read` that gives less than it is asked for, as pipes and networks do."""
    at, turn = 0, 0

    def read(n: int) -> bytes:
        nonlocal at, turn
        n = min(n, steps[turn % len(steps)])
        turn += 1
        out = data[at : at + n]
        at += len(out)
        return out

    return read


@given(st.integers(0, 40_000), st.integers(0, 3), st.sampled_from(["cdc", "fixed"]), st.sampled_from([0, 500, 20_000]))
@settings(max_examples=examples(80))
def test_chunks_join_to_the_input(size, seed, kind, whole):
    data = noise(size, seed) if seed else bytes(size)
    got = lengths(chunker(kind=kind, whole=whole), data)
    if size <= whole:
        assert got == ([size] if size else [])
    elif kind == "fixed":
        assert set(got[:-1]) <= {1024}
        assert 0 < got[-1] <= 1024
    else:
        assert all(256 <= n <= 4096 for n in got[:-1])
        assert 0 < got[-1] <= 4096


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.sampled_from(["cdc", "fixed"]))
@settings(max_examples=examples(40))
def test_how_read_splits_its_answers_does_not_matter(steps, kind):
    data = noise(30_000, 1)
    c = chunker(kind=kind)
    assert [len(x) for x in c.cut(odd_reads(data, steps), len(data))] == lengths(c, data)


def test_buffers_do_not_show_in_the_boundaries():
    """Larger than what is read at a time, with runs that have no boundary and a full chunk just at a buffer's end."""
    data = noise(READ_BYTES - 3000, 1) + bytes(70_000) + noise(READ_BYTES + 1, 2) + bytes(READ_BYTES) + noise(77, 3)
    c = chunker(((None, 4096, 16_384, 65_536),))
    whole = [len(chunk) for chunk in _cutter(c._classes[0], c._seed).cut(data, 0, last=True)]  # in one piece
    assert lengths(c, data) == whole
    assert [len(x) for x in c.cut(odd_reads(data, [1_000_003, 7, 65_537]), len(data))] == whole


@pytest.mark.parametrize("size", [READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 2 * READ_BYTES])
def test_files_that_end_at_a_buffers_end(size):
    c = chunker(((None, 64 * KIB, 256 * KIB, MIB),), seed=CUTS_NO_ZEROS)
    lengths(c, noise(size, 4))
    assert set(lengths(c, bytes(size))[:-1]) == {MIB}


def test_one_byte_before_a_large_file_changes_few_chunks():
    c = chunker(DEFAULT)
    data = noise(64 * MIB - 1, 5)
    chunks = [{hashlib.sha256(x).digest() for x in c.cut(io.BytesIO(d).read, len(d))} for d in (data, b"!" + data)]
    assert len(chunks[0]) > 150
    assert len(chunks[1] - chunks[0]) <= 3


def test_an_edit_in_the_middle_changes_few_chunks():
    c = chunker()
    data = noise(MIB, 6)
    before = set(c.cut(io.BytesIO(data).read, len(data)))
    for at in range(0, MIB, 99_991):
        edited = data[:at] + b"edited" + data[at + 3 :]
        assert len(set(c.cut(io.BytesIO(edited).read, len(edited))) - before) <= 6


def test_another_seed_cuts_elsewhere():
    data = noise(MIB, 7)
    cuts = [set(accumulate(lengths(chunker(seed=seed), data))) for seed in (1, 2, 3 << 240)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert len(cuts[a] & cuts[b]) < len(cuts[a]) // 10


def test_cuts_cannot_be_told_from_what_gives_the_candidates():
    """Who has computed the library's seed from cuts that he saw knows the candidates, and of these no cut."""
    data, seed = noise(MIB, 8), bytes(31) + b"7"
    mine, other = (_cutter(SizeClass(None, 2048, 8192, 32_768), s) for s in (seed, bytes(31) + b"8"))
    vars(other)["_candidates"] = mine._candidates
    cuts = [set(accumulate(len(x) for x in c.cut(data, 0, last=True))) for c in (mine, other)]
    assert len(cuts[0]) > 80
    assert len(cuts[0] & cuts[1]) < len(cuts[0]) // 4


def test_equal_windows_are_cut_alike_wherever_they_are():
    """What stands before a cut decides, and neither what follows nor how far the file goes."""
    data = noise(MIB, 11)
    cuts = set(accumulate(lengths(chunker(), data)))
    for at in (300_000, 700_000):
        assert {c for c in accumulate(lengths(chunker(), data[:at])) if c < at} == {c for c in cuts if c < at}


def test_the_size_of_a_file_picks_its_class():
    classes: tuple[Sizes, ...] = ((10_000, 64, 256, 1024), (100_000, 256, 1024, 4096), (None, 1024, 4096, 16_384))
    c = chunker(classes, whole=1000, seed=CUTS_NO_ZEROS)
    assert lengths(c, bytes(1000)) == [1000]
    assert set(lengths(c, bytes(1024 * 9))) == {1024}
    assert lengths(c, bytes(10_000))[0] == 1024
    assert lengths(c, bytes(10_001))[0] == 4096
    assert lengths(c, bytes(100_000))[0] == 4096
    assert lengths(c, bytes(100_001))[0] == 16_384


def test_average_size_is_near_what_was_asked_for():
    got = lengths(chunker(DEFAULT), noise(48 * MIB, 9))
    assert 180 * KIB < sum(got) / len(got) < 420 * KIB


def test_a_file_that_grew_or_shrank_ends_with_its_bytes():
    c = chunker(whole=100)
    for expected, real in ((50, 300), (50, 20), (50, 0), (5000, 9000), (5000, 200), (5000, 0)):
        data = noise(real, 10)
        got = b"".join(c.cut(io.BytesIO(data).read, expected))
        assert got == (data[: expected + 1] if expected <= 100 else data)


def test_the_last_class_takes_any_size():
    for classes in ((), ((5000, *SMALL),)):
        with pytest.raises(ValueError, match="last size class"):
            chunker(classes)


@pytest.mark.few(1)
@pytest.mark.parametrize(("claimed", "total"), [(1 << 30, 1 << 30), (5 << 30, 256 * MIB)], ids=["1 GB", "of 5 GB"])
def test_memory_is_bounded(claimed, total):
    left = total

    def read(n: int) -> bytes:
        nonlocal left
        n = min(n, left)
        left -= n
        return bytes(n)

    tracemalloc.start()
    try:
        assert sum(len(chunk) for chunk in chunker(DEFAULT).cut(read, claimed)) == total
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()
