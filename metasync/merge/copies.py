"""Conflict copies: their names, and the tag by which every device knows the two sides of a conflict. Pure.

A copy lies beside the file that it is a copy of, as Syncthing's and Dropbox's do: `notes.conflict-laptop-20261122.txt`.
Its entry has a tag that says whose side it is, and whose side has the name. A conflict is open as long as an entry has
that tag: whoever deletes the copy, gives it another name or takes the tag away has resolved it for all devices.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from metasync.codec import TAGS_MAX, Reader, Tags, bytes16, i64, text16, u8, u64
from metasync.errors import FormatError
from metasync.local.state_keys import Conflict
from metasync.objects.model import DEVICE_BYTES, NAME_BYTES_MAX, Entry, split

COMPONENT_BYTES_MAX = 255  # NAME_MAX of every file system we know
EXTENSION_BYTES_MAX = 64  # what follows the last dot and is longer is a sentence, not an extension
DEVICE_NAME_BYTES_MAX: Final = 32  # of a device's name in that of a copy: enough to know it by
REASON_BYTES_MAX: Final = 200
MARK: Final = b".conflict-"  # in the name of every copy
_UTF8_TAIL_BYTES_MAX = 3  # bytes of a UTF-8 character after its first
_LABEL = rb"[^./]+-[0-9]{8}(?:-[1-9][0-9]*)?"
_COPY = re.compile(rb"(.+)\.conflict-" + _LABEL + rb"((?:\.tar)?\.[^.]+)?", re.DOTALL)
_UNSAFE = re.compile(r"[^\w]+")  # anything but letters, digits and _: what a file system or a shell might mind

CONFLICT_TAG: Final = 1  # of an entry: `Sides`
_TAG_FORMAT: Final = 1
NOBODY: Final = bytes(DEVICE_BYTES)


class Side(NamedTuple):
    """Whose a side of a conflict is.

    device   id of the device that wrote it; `NOBODY` where that is not known
    version  the agreed version that brought it; of a copy the one that it was changed on. 0: not known
    time_ns  when that was agreed, or the conflict was found, by that device's clock; 0: not known
    """

    device: bytes = NOBODY
    version: int = 0
    time_ns: int = 0


class Sides(NamedTuple):
    """What the tag of a conflict copy says: the file `name` beside it has the `agreed` side, the copy the `other`."""

    name: bytes
    reason: str
    agreed: Side
    other: Side


class Origin(NamedTuple):
    """Who makes conflict copies, and when. `label`: of their names, by `label_of`."""

    label: bytes
    device: bytes = NOBODY
    time_ns: int = 0


UNNAMED: Final = Origin(b"here-20000101")


def label_of(device: str, date: str) -> bytes:
    """What the name of a copy says of its device and date (`20261122`): safe for every file system, and bounded."""
    name = _UNSAFE.sub("-", unicodedata.normalize("NFC", device)).strip("-_")
    safe = _cut(name.encode("utf-8", "replace"), DEVICE_NAME_BYTES_MAX) or b"device"
    return safe + b"-" + date.encode()


def conflict_name(path: bytes, label: bytes, n: int) -> bytes:
    """Where the n-th copy of `path` with this label is kept, beside it: `notes.conflict-laptop-20261122-2.txt`.

    The first has no number. A copy of a copy has the name of one of the first file, so that names don't grow with each
    race. The last component has at most 255 bytes, its stem cut between UTF-8 characters.
    """
    parent, slash, name = path.rpartition(b"/")
    stem, extension = _split(name)
    tail = MARK + label + (b"-%d" % n if n > 1 else b"") + extension
    return parent + slash + _cut(stem, COMPONENT_BYTES_MAX - len(tail)) + tail


def copied_from(path: bytes) -> bytes | None:
    """The path of which this one, by its name, is a conflict copy; None if it is no such name.

    The name of a long one was cut: what a copy is really of stands in its tag.
    """
    parent, slash, name = path.rpartition(b"/")
    copy = _COPY.fullmatch(name)
    return parent + slash + copy[1] + (copy[2] or b"") if copy is not None else None


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Stem and extension with its dot, b"" if none: leading dots belong to the stem, a last one too.

    Of `backup.tar.gz` the extension is `.tar.gz`.
    """
    if copy := _COPY.fullmatch(name):
        return copy[1], copy[2] or b""
    stem, dot, extension = name.rpartition(b".")
    if not stem.strip(b".") or not 0 < len(extension) <= EXTENSION_BYTES_MAX:
        return name, b""
    inner = stem.removesuffix(b".tar")
    if inner != stem and inner.strip(b"."):
        return inner, b".tar" + dot + extension
    return stem, dot + extension


def _cut(stem: bytes, size: int) -> bytes:
    if len(stem) <= size:
        return stem
    for end in range(size, size - _UTF8_TAIL_BYTES_MAX - 1, -1):
        if stem[end] & 0xC0 != 0x80:  # a character starts here
            return stem[:end]
    return stem[:size]  # no UTF-8


# ---- the tag


def marked(entry: Entry, sides: Sides) -> Entry:
    """The entry of a conflict copy with its tag."""
    return entry._replace(tags=_with(entry.tags, encode_sides(sides)))


def unmarked(entry: Entry) -> Entry:
    """The same as an entry like any other."""
    return entry._replace(tags=_with(entry.tags, None))


def sides_of(entry: Entry | None) -> Sides | None:
    """What an entry's tag says; None if it has none, or one that says nothing of use."""
    value = dict(entry.tags).get(CONFLICT_TAG) if entry is not None and entry.tags else None
    if value is None:
        return None
    try:
        return decode_sides(value)
    except FormatError:
        return None


def encode_sides(sides: Sides) -> bytes:
    """The value of the tag; `decode_sides` is the inverse. `docs/design/format.md`, 3.2."""
    return u8(_TAG_FORMAT) + bytes16(sides.name) + text16(sides.reason) + _side(sides.agreed) + _side(sides.other)


def decode_sides(value: bytes) -> Sides:
    """What the tag's value says. `FormatError`."""
    r = Reader(value, "conflict tag")
    if r.u8() != _TAG_FORMAT:
        raise r.fail("unknown format")
    name, reason = r.bytes16(NAME_BYTES_MAX), r.text16(REASON_BYTES_MAX)
    sides = Sides(name, reason, _read_side(r), _read_side(r))
    r.end()
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise r.fail("no name of a file")
    return sides


def original_of(copy: bytes, sides: Sides) -> bytes:
    """The path whose conflict a copy is of: it lies beside the copy."""
    parent, _ = split(copy)
    return parent + b"/" + sides.name if parent else sides.name


def record_of(copy: bytes, sides: Sides) -> Conflict:
    """What this device notes of a conflict, by its tag."""
    agreed, other = sides.agreed, sides.other
    path = original_of(copy, sides)
    return Conflict(
        path, copy, sides.reason, agreed.version, agreed.device, agreed.time_ns,
        other.device, other.version, other.time_ns,
    )  # fmt: skip


def sides_in(record: Conflict) -> Sides:
    """The tag's content, of what this device noted of a conflict."""
    agreed = Side(record.device or NOBODY, record.version, record.time_ns)
    other = Side(record.copy_device or NOBODY, record.copy_version, record.copy_time_ns)
    return Sides(split(record.path)[1], record.reason, agreed, other)


def _with(tags: Tags, value: bytes | None) -> Tags:
    others = {tag: data for tag, data in tags if tag != CONFLICT_TAG}
    if value is None:
        return tuple(sorted(others.items()))
    if len(others) >= TAGS_MAX:  # more could not be encoded
        return tags
    return tuple(sorted([*others.items(), (CONFLICT_TAG, value)]))


def _side(side: Side) -> bytes:
    return side.device + u64(side.version) + i64(side.time_ns)


def _read_side(r: Reader) -> Side:
    return Side(r.take(DEVICE_BYTES), r.u64(), r.i64())
