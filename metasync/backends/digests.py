"""The digests that stores tell of what they hold, by their kind: how each is made, and its tag in a pack's record.

The tags are those of format.md, section 6.2. SHA-256 has none: it is a pack's name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 4 << 20
_ROW_BYTES: Final = 160
_ROWS_BYTES: Final = _ROW_BYTES << 6  # 2 ms for 4 MiB
_160_BITS: Final = (1 << 160) - 1


class Kind(NamedTuple):
    """`tag`: of a pack's record. `size`: in bytes. `make`: the digest of some bytes."""

    tag: int
    size: int
    make: Callable[[bytes], bytes]


def digest_of(kind: str, data: bytes) -> bytes:
    """The digest of a kind of some bytes. `KeyError` for a kind that is none."""
    return hashlib.sha256(data).digest() if kind == "sha256" else KINDS[kind].make(data)


def _plain(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data, usedforsecurity=False).digest()


def _content_hash(data: bytes) -> bytes:
    """Dropbox's: the SHA-256 of the SHA-256s of each 4 MiB."""
    view = memoryview(data)
    blocks = (view[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))
    return hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).digest()


def _quick_xor(data: bytes) -> bytes:
    """Microsoft's quickXorHash: each byte XORed into 160 bits that turn by 11 a byte; then the length.

    After 160 bytes the bits are where they began, so whole rows of 160 bytes are XORed first, many at once.
    """
    view, rows = memoryview(data), 0
    for at in range(0, len(data), _ROWS_BYTES):
        rows ^= int.from_bytes(view[at : at + _ROWS_BYTES], "little")
    value = len(data) << 96  # in the last 8 of the 20 bytes
    folded = rows.to_bytes(_ROWS_BYTES, "little")
    row = 0
    for at in range(0, min(len(data), _ROWS_BYTES), _ROW_BYTES):
        row ^= int.from_bytes(folded[at : at + _ROW_BYTES], "little")
    for place, byte in enumerate(row.to_bytes(_ROW_BYTES, "little")):
        turned = byte << (place * 11 % 160)
        value ^= (turned & _160_BITS) ^ (turned >> 160)
    return value.to_bytes(20, "little")


KINDS: Final[Mapping[str, Kind]] = {
    "md5": Kind(1, 16, partial(_plain, "md5")),
    "sha1": Kind(2, 20, partial(_plain, "sha1")),
    "content_hash": Kind(3, 32, _content_hash),
    "quickxor": Kind(4, 20, _quick_xor),
}
