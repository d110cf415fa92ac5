"""The digests that stores tell, made here: each beside its definition, and beside the provider's own code."""

from __future__ import annotations

import hashlib
import random

import pytest

from metasync.backends.digests import KINDS, digest_of

BLOCK = 4 << 20


def test_the_tags_and_lengths_of_the_format() -> None:
    assert {(kind, of.tag, of.size) for kind, of in KINDS.items()} == {
        ("md5", 1, 16), ("sha1", 2, 20), ("content_hash", 3, 32), ("quickxor", 4, 20)
    }  # fmt: skip
    assert all(len(digest_of(kind, b"x")) == of.size for kind, of in KINDS.items())


@pytest.mark.parametrize("kind", ["sha256", "md5", "sha1"])
def test_plain_digests(kind: str) -> None:
    assert digest_of(kind, b"data") == hashlib.new(kind, b"data").digest()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_dropbox_content_hash_is_that_of_its_sdk(size: int) -> None:
    """At the edges of a block; the SDK's own hasher is the other side."""
    content_hash = pytest.importorskip("dropbox.content_hash")
    data = bytes(range(256)) * (size // 256 + 1)
    assert digest_of("content_hash", data[:size]).hex() == content_hash.content_hash(data[:size])


def by_definition(data: bytes) -> bytes:
    """quickXorHash a byte at a time, as Microsoft describes it (docs of OneDrive: QuickXorHash Algorithm)."""
    value = 0
    for place, byte in enumerate(data):
        for bit in range(8):
            if byte >> bit & 1:
                value ^= 1 << (place * 11 + bit) % 160
    out = bytearray(value.to_bytes(20, "little"))
    for place, byte in enumerate(len(data).to_bytes(8, "little")):
        out[12 + place] ^= byte
    return bytes(out)


@pytest.mark.parametrize("size", [0, 1, 19, 20, 21, 159, 160, 161, 320, 10239, 10240, 10241, 10400, 20481, 33333])
def test_quickxor_is_as_it_is_described(size: int) -> None:
    """At the edges of a turn of the bits, of a row, and of the rows that are taken at once."""
    data = random.Random(size).randbytes(size)
    assert digest_of("quickxor", data) == by_definition(data)


def test_a_kind_that_is_none() -> None:
    with pytest.raises(KeyError):
        digest_of("crc", b"")
