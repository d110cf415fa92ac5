"""Snapshot objects: a root directory, its parents, who and when. `docs/design/format.md` section 4."""

from __future__ import annotations

from metasync.codec import Reader, encode_tags, i64, text16, u8
from metasync.errors import UpgradeError
from metasync.objects.model import ID_BYTES, MESSAGE_BYTES_MAX, Snapshot

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
    fmt = r.u8()
    if fmt > FORMAT:
        raise UpgradeError(f"a snapshot has format {fmt}", next_step="Upgrade metasync.")
    if fmt != FORMAT:
        raise r.fail("unknown format")
    root = r.take(ID_BYTES)
    count = r.u8()
    if count > PARENTS_MAX:
        raise r.fail(f"{count} parents")
    parents = tuple(r.take(ID_BYTES) for _ in range(count))
    out = Snapshot(root, parents, r.take(DEVICE_BYTES), r.i64(), r.text16(), r.tags())
    r.end()
    return out
