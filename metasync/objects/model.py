"""What content objects are made of: values, keyed ids, snapshots, paths. `docs/design/format.md` sections 2 to 4.

A path is bytes, `/`-separated, relative to the root of its tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, NewType

from blake3 import blake3

from metasync.codec import Reader, Tags, check_format, check_kind, encode_tags, i64, text16, u8
from metasync.errors import FormatError
from metasync.keys.derive import derive

ObjectId = NewType("ObjectId", bytes)
"""32 bytes: the keyed BLAKE3 of an object's plaintext, with a key of its kind."""

ID_BYTES = 32
PATH_BYTES_MAX = 1 << 20  # 4,000 names of 255 bytes; a chain of directories says a path per node, each longer by a name
DEPTH_MAX = 1024  # directories, one in the other: of names of three letters as many as PATH_MAX of Linux has room for
NAME_BYTES_MAX = 4096  # no file system holds a longer name; a bound for hostile records
TARGET_BYTES_MAX = 0xFFFF  # PATH_MAX is 4,096 on Linux
MESSAGE_BYTES_MAX = 0xFFFF


class ObjectKind(IntEnum):
    """What an object is; part of what its id is keyed with."""

    BLOB = 1
    FILE = 2
    DIR = 3
    SNAPSHOT = 4


_KINDS_KNOWN = len(ObjectKind)


def check_object_kinds(of: Iterable[int], what: str) -> None:
    """Checks bytes of encoding and kind: `FormatError` for kind 0 and for a delta that is no blob, `UpgradeError` for
    one of a later version."""
    for byte in of:
        if check_kind(byte & 15, _KINDS_KNOWN, what) != ObjectKind.BLOB and byte >> 4 == 1:
            raise FormatError(f"{what} is a delta and no blob")


class Kind(IntEnum):
    """What a directory entry is."""

    FILE = 1
    DIR = 2
    SYMLINK = 3


SPECIAL = 0o7000  # of a mode: set-user-id, set-group-id, sticky


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


class Ids:
    """Names objects. Two workspaces never give the same bytes the same id, so no provider can confirm a guess.

    `id_key`: 32 bytes, drawn once per workspace. One subkey per kind keeps, say, a blob that looks like a directory
    from ever passing for one.
    """

    __slots__ = ("_blob", "_keys", "_split")

    def __init__(self, id_key: bytes) -> None:
        if len(id_key) != ID_BYTES:
            raise ValueError("an id key has 32 bytes")
        root = derive(id_key, "object ids")  # the id key itself derives keys, and does nothing else
        self._keys = {kind: blake3(b"metasync object %d" % kind, key=root).digest() for kind in ObjectKind}
        self._blob = self._keys[ObjectKind.BLOB]
        self._split = blake3(b"metasync split", key=root).digest()

    def of(self, kind: ObjectKind, data: bytes | memoryview) -> ObjectId:
        """The 32-byte id of an object's plaintext."""
        return ObjectId(blake3(data, key=self._keys[kind]).digest())

    def blob(self, data: bytes | memoryview) -> ObjectId:
        """The id of a blob; of a whole file's bytes it is also the file's content hash."""
        return ObjectId(blake3(data, key=self._blob).digest())

    def content(self) -> blake3:
        """A running content hash; `.update(piece)`, then `.digest()`. Equals `blob` of the pieces joined."""
        return blake3(key=self._blob)

    def split_point(self, name: bytes) -> int:
        """64 pseudo-random bits of a name, from which directories take their boundaries."""
        return int.from_bytes(blake3(name, key=self._split).digest(8), "big")


FORMAT = 1
PARENTS_MAX = 16
DEVICE_BYTES = 16


def encode_snapshot(s: Snapshot) -> bytes:
    """The bytes of a snapshot. `ValueError` on a message of over 65,535 bytes or too many parents."""
    if (
        len(s.parents) > PARENTS_MAX
        or len(s.device) != DEVICE_BYTES
        or any(len(i) != ID_BYTES for i in (s.root, *s.parents))
    ):
        raise ValueError("not a snapshot that can be encoded")
    if len(s.message.encode("utf-8")) > MESSAGE_BYTES_MAX:
        raise ValueError("the message is longer than 65,535 bytes")
    head = u8(FORMAT) + s.root + u8(len(s.parents)) + b"".join(s.parents)
    return head + s.device + i64(s.time_ns) + text16(s.message) + encode_tags(s.tags)


def decode_snapshot(data: bytes) -> Snapshot:
    """Reads a snapshot; `FormatError` on anything else, `UpgradeError` if newer."""
    r = Reader(data, "snapshot object")
    check_format(r.u8(), "a snapshot")
    root = r.take(ID_BYTES)
    count = r.u8()
    if count > PARENTS_MAX:
        raise r.fail(f"{count} parents")
    parents = tuple(r.take(ID_BYTES) for _ in range(count))
    out = Snapshot(root, parents, r.take(DEVICE_BYTES), r.i64(), r.text16(), r.tags())
    r.end()
    return out


def split(path: bytes) -> tuple[bytes, bytes]:
    """The directory a path lies in (b"" for the root) and its name there."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


VERSION_TAG = 1  # of a snapshot: the version it was agreed as


def version_of(snapshot: Snapshot) -> int:
    """The version that a snapshot was agreed as; 0 if it does not say."""
    for tag, data in snapshot.tags:
        if tag == VERSION_TAG:
            try:
                return Reader(data, "version tag").u64()
            except FormatError:
                return 0
    return 0
