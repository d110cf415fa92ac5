"""Keyed object ids: a hash of the object's kind and bytes under the workspace's id key (architecture.md, D2)."""

from __future__ import annotations

from blake3 import blake3

from metasync.objects.model import ID_BYTES, ObjectId, ObjectKind


class Ids:
    """Names objects. Two workspaces never give the same bytes the same id, so no provider can confirm a guess.

    `id_key`: 32 bytes, drawn once per workspace. One subkey per kind keeps, say, a blob that looks like a directory
    from ever passing for one.
    """

    __slots__ = ("_blob", "_keys", "_split")

    def __init__(self, id_key: bytes) -> None:
        if len(id_key) != ID_BYTES:
            raise ValueError("an id key has 32 bytes")
        self._keys = {kind: blake3(b"metasync object %d" % kind, key=id_key).digest() for kind in ObjectKind}
        self._blob = self._keys[ObjectKind.BLOB]
        self._split = blake3(b"metasync split", key=id_key).digest()

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
