"""Deltas between blobs: what is made opens to the same, and nothing else opens."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.errors import FormatError, UpgradeError
from metasync.objects import delta

SOME = st.binary(max_size=300)


@given(SOME, st.binary(min_size=1, max_size=300))
@settings(max_examples=300)
def test_what_is_made_of_any_bytes_opens_to_them(base, new):
    assert delta.opened(base, delta.make(base, new)) == new


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 3_000), SOME), max_size=6))
@settings(max_examples=60)
def test_an_edited_blob_comes_back_and_its_delta_is_about_as_long_as_the_edits(seed, edits):
    base = new = random.Random(seed).randbytes(90_000)
    for at, less, more in edits:
        new = new[:at] + more + new[at + less :]
    made = delta.make(base, new)
    assert delta.opened(base, made) == new
    assert len(made) < 200 + sum(len(more) + 60 for _, _, more in edits)


def test_a_long_base_is_found_in_all_of_its_length():
    base = random.Random(1).randbytes(4 << 20)
    new = base[:1000] + b"one" + base[1000 : 3 << 20] + b"two" + base[3 << 20 :]
    assert len(delta.make(base, new)) < 8 << 10


def test_a_base_that_looks_like_a_dictionary_is_bytes():
    base = b"\x37\xa4\x30\xec" + random.Random(1).randbytes(5000)
    assert delta.opened(base, delta.make(base, base[:2000] + b"x" + base[2000:])) == base[:2000] + b"x" + base[2000:]


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_open_or_are_refused(data):
    for hostile in (data, b"\1" + data, delta.make(b"base", b"new")[:5] + data):
        with contextlib.suppress(FormatError, UpgradeError):
            delta.opened(b"base", hostile)


@given(st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=200)
def test_a_flipped_bit_makes_no_more_than_is_said(at, bit):
    """The frame has no checksum: whoever opens it compares the id."""
    base = bytes(range(256)) * 4
    made = bytearray(delta.make(base, base[::-1] + base))
    made[at % len(made)] ^= 1 << bit
    with contextlib.suppress(FormatError, UpgradeError):
        assert len(delta.opened(base, bytes(made))) == int.from_bytes(made[1:5], "big")


def test_a_delta_that_says_much_is_refused_before_anything_is_built():
    huge = delta.make(b"base", b"x" * 1000)
    tracemalloc.start()
    with pytest.raises(FormatError):
        delta.opened(b"base", huge[:1] + (16 << 20).to_bytes(4, "big") + huge[5:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_delta_is_made_only_where_it_is_clearly_smaller():
    rng = random.Random(2)
    base, other, text = rng.randbytes(50_000), rng.randbytes(50_000), b"a line of text, again and again\n" * 2000
    assert delta.gain(base, other, 3) is None
    assert delta.gain(text, text[:-5] + b"!", 3) is None
    made = delta.gain(base, base[:-5] + b"!", 3)
    assert made is not None
    assert len(made) < 100
    half = delta.gain(base, base[:25_000] + other[25_000:], 3)
    assert half is not None
    assert len(half) < 26_000


def test_what_no_delta_may_have_is_not_made():
    for base, new in ((b"base", b""), (bytes((16 << 20) + 1), b"x"), (b"", bytes((16 << 20) + 1))):
        with pytest.raises(ValueError, match="no delta"):
            delta.make(base, new)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs zstd")
def test_what_zstd_makes_of_two_files_opens(tmp_path):
    rng = random.Random(4)
    base = rng.randbytes(50_000)
    new = base[:100] + b"here" + base[200:] + b"end"
    (tmp_path / "base").write_bytes(base)
    (tmp_path / "new").write_bytes(new)
    made = subprocess.run(
        ["zstd", "-q", "-c", "--patch-from=base", "new"], cwd=tmp_path, check=True, capture_output=True
    ).stdout
    assert len(made) < 200
    assert delta.opened(base, b"\1" + len(new).to_bytes(4, "big") + made) == new
