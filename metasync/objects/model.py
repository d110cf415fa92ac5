"""The values that content objects are made of (architecture.md, D1). `docs/design/format.md` sections 2 and 3."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, NewType

from metasync.codec import Tags

ObjectId = NewType("ObjectId", bytes)
"""32 bytes: the keyed BLAKE3 of an object's plaintext, with a key of its kind."""

ID_BYTES = 32
PATH_BYTES_MAX = 1 << 20  # 4,000 names of 255 bytes; a chain of directories says a path per node, each longer by a name
NAME_BYTES_MAX = 4096  # no file system holds a longer name; a bound for hostile records
TARGET_BYTES_MAX = 0xFFFF  # PATH_MAX is 4,096 on Linux
MESSAGE_BYTES_MAX = 0xFFFF


class ObjectKind(IntEnum):
    """What an object is; part of what its id is keyed with."""

    BLOB = 1
    FILE = 2
    DIR = 3
    SNAPSHOT = 4


class Kind(IntEnum):
    """What a directory entry is."""

    FILE = 1
    DIR = 2
    SYMLINK = 3


class Entry(NamedTuple):
    """One name in a directory, without the name.

    field     file                           dir                    symlink
    mode      permission bits 0..0o7777      the same               0
    mtime_ns  ns since 1970, signed          0                      ns since 1970
    size      bytes                          0                      length of the target
    content   keyed hash of the whole        id of the dir object   the target's bytes
              content; of a one-chunk file   (b"" in a flat tree)
              that is its blob's id
    root      id of the file object if more  b""                    b""
              than one chunk, else b""
    tags      extensions (xattrs and others to come): kept, sorted
    """

    kind: Kind
    mode: int
    mtime_ns: int
    size: int
    content: bytes
    root: bytes = b""
    tags: Tags = ()


class Chunk(NamedTuple):
    """One piece of a file: the blob's id and its length in bytes."""

    id: bytes
    size: int


class FileObject(NamedTuple):
    """A file of more than one chunk: its size, the keyed hash of its whole content, its chunks in order."""

    size: int
    content: bytes
    chunks: tuple[Chunk, ...]


class Snapshot(NamedTuple):
    """A point of history. `parents`: none for the first, one as a rule, two after a merge (agreed one first).

    `device`: 16-byte id of the author's device; `time_ns`: its wall clock, for people only; `message`: UTF-8.
    """

    root: bytes
    parents: tuple[bytes, ...]
    device: bytes
    time_ns: int
    message: str
    tags: Tags = ()
