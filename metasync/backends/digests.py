"""The digests that stores tell of what they hold, by their kind: how each is made, and its tag in a pack's record.

The tags are those of format.md, section 6.2. SHA-256 has none: it is a pack's name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 4 << 20


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


KINDS: Final[Mapping[str, Kind]] = {
    "md5": Kind(1, 16, partial(_plain, "md5")),
    "sha1": Kind(2, 20, partial(_plain, "sha1")),
    "content_hash": Kind(3, 32, _content_hash),
}
