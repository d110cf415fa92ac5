"""`metasync.codec`: one value, one byte string, and nothing read that is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from content_kit import refuses
from hypothesis import given
from hypothesis import strategies as st

from metasync import codec
from metasync.codec import Reader, Tags
from metasync.config import decode_config
from metasync.consensus import decode_state
from metasync.errors import FormatError, UpgradeError
from metasync.keys.device_set import decode_certificate, decode_device_set
from metasync.keys.policy import decode_policy
from metasync.objects import directory, file
from metasync.objects.model import decode_snapshot
from metasync.store.index import decode_root, decode_segment
from metasync.store.pack_format import decode_footer, decode_header
from metasync.store.retained import decode_retained

tag_lists = st.dictionaries(st.integers(0, 0xFFFF), st.binary(max_size=80), max_size=8).map(
    lambda d: tuple(sorted(d.items()))
)


def decode_tags(data: bytes) -> Tags:
    r = Reader(data, "tags")
    out = r.tags()
    r.end()
    return out


@pytest.mark.parametrize(
    ("encode", "name", "low", "high"),
    [
        (codec.u8, "u8", 0, 2**8 - 1),
        (codec.u16, "u16", 0, 2**16 - 1),
        (codec.u32, "u32", 0, 2**32 - 1),
        (codec.u64, "u64", 0, 2**64 - 1),
        (codec.i64, "i64", -(2**63), 2**63 - 1),
    ],
)
def test_integers_at_their_bounds(encode, name, low, high):
    for n in (low, low + 1, high // 3, high - 1, high):
        data = encode(n)
        r = Reader(data, "n")
        assert getattr(r, name)() == n
        r.end()
        with pytest.raises(FormatError, match="bytes wanted"):
            getattr(Reader(data[:-1], "n"), name)()
    for n in (low - 1, high + 1):
        with pytest.raises(Exception, match=r"."):  # OverflowError or struct.error: our own mistake, never data's
            encode(n)


def test_integers_are_big_endian():
    assert codec.u32(1) == b"\0\0\0\1"
    assert codec.i64(-2) == b"\xff" * 7 + b"\xfe"


@given(st.binary(max_size=300), st.text(max_size=100))
def test_strings_round_trip(b, s):
    data = codec.bytes16(b) + codec.bytes32(b) + codec.text16(s)
    r = Reader(data, "strings")
    assert (r.bytes16(), r.bytes32(300), r.text16()) == (b, b, s)
    r.end()


def test_lengths_are_bounded_before_use():
    with pytest.raises(FormatError, match="over 3"):
        Reader(codec.bytes16(b"abcd"), "x").bytes16(3)
    with pytest.raises(FormatError, match="over 3"):
        Reader(codec.bytes32(b"abcd"), "x").bytes32(3)
    with pytest.raises(FormatError, match="over 1"):
        Reader(codec.text16("é"), "x").text16(1)
    with pytest.raises(FormatError, match="4294967295 items cannot fit"):
        Reader(bytes(100), "x").count(2**32 - 1, 1)


@pytest.mark.parametrize("raw", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_text_is_strict_utf8(raw):
    with pytest.raises(FormatError, match="UTF-8"):
        Reader(codec.bytes16(raw), "x").text16()


def test_text_that_is_no_text_is_not_written():
    with pytest.raises(ValueError, match="surrogates"):
        codec.text16("\ud800")


def test_a_failed_take_moves_nothing():
    r = Reader(b"abc", "x")
    with pytest.raises(FormatError, match="4 bytes wanted, 3 left at byte 0"):
        r.take(4)
    with pytest.raises(FormatError):
        r.take(-1)
    assert r.take(3) == b"abc"


def test_end_refuses_trailing_bytes():
    with pytest.raises(FormatError, match="1 bytes too many"):
        Reader(b"a", "x").end()


@given(tag_lists)
def test_tags_round_trip(tags):
    data = codec.encode_tags(tags)
    assert decode_tags(data) == tags
    assert codec.encode_tags(decode_tags(data)) == data


@pytest.mark.parametrize(
    "tags",
    [
        ((2, b""), (1, b"")),
        ((1, b"a"), (1, b"b")),
        tuple((i, b"") for i in range(codec.TAGS_MAX + 1)),
        ((1, bytes(codec.TAG_BYTES_MAX + 1)),),
        ((0x10000, b""),),
        ((-1, b""),),
    ],
    ids=["descending", "twice", "too many", "too long", "tag too large", "tag negative"],
)
def test_bad_tags_are_not_written(tags):
    with pytest.raises(ValueError, match="tag"):
        codec.encode_tags(tags)


@pytest.mark.parametrize(
    "data",
    [
        b"\2" + b"\0\2\0\0" + b"\0\1\0\0",
        b"\2" + b"\0\1\0\0" + b"\0\1\0\0",
        b"\xff" + bytes(2000),
        b"\1\0\1\0\5abcd",
        b"\1\0\1",
        b"",
    ],
    ids=["descending", "twice", "too many", "cut short", "no length", "nothing"],
)
def test_bad_tags_are_refused(data):
    with pytest.raises(FormatError):
        decode_tags(data)


def test_hostile_tags():
    refuses(decode_tags, [codec.encode_tags(((1, b"abc"), (7, b""), (900, b"x" * 30))), b"\0"], codec.encode_tags)


@given(st.lists(st.binary(max_size=3), max_size=6))
def test_ascending(items):
    assert codec.ascending(items) == (items == sorted(set(items)))


VOUCHED: dict[str, Callable[[bytes], object]] = {
    "certificate": decode_certificate, "config": decode_config,
    "device set": lambda data: decode_device_set(data, bytes(32)),
    "directory": directory.decode_node, "file": file.decode_node, "footer": decode_footer, "index root": decode_root,
    "index segment": decode_segment, "pack": decode_header, "policy": decode_policy, "retained": decode_retained,
    "snapshot": decode_snapshot, "state": decode_state,
}  # fmt: skip


@pytest.mark.parametrize("what", VOUCHED)
@pytest.mark.parametrize("fmt", [2, 31])
def test_a_newer_record_may_have_any_length(what: str, fmt: int) -> None:
    """The first byte alone says that a record is newer: it need not have the fields of today's, nor be as long."""
    for rest in (0, 1, 4, 45, 600):
        with pytest.raises(UpgradeError):
            VOUCHED[what](bytes([fmt]) + bytes(rest))
    for other in (b"", b"\0", bytes([32]), b"<html>"):
        with pytest.raises(FormatError):
            VOUCHED[what](other)
