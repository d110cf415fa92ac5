"""Rows: the entry that this device last wrote or scanned at a path, with its stat; and their bytes."""

from __future__ import annotations

import os
import stat as stat_
import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from metasync.codec import Reader, Tags, encode_tags
from metasync.errors import FormatError, WorkspaceError
from metasync.local.state import State
from metasync.local.state_keys import CLONE_ANEW
from metasync.objects.model import ID_BYTES, SPECIAL, Entry, Kind


class Row(NamedTuple):
    """`entry` stood at a path with this stat. The root's own row has the path b"".

    entry     the agreed or scanned entry, with the agreed values where the file system keeps less (FAT: modes, 2 s)
    mode      st_mode, type bits included
    trusted   an equal stat proves equal bytes: both times lay before the file system's clock when it was read.
              An untrusted row is read again by the next scan.

    Directories have size, mtime_ns and ctime_ns 0: these change with every name inside.
    """

    entry: Entry
    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    trusted: bool


# kind, trusted, mode, mtime_ns, size | dev, ino, size, mtime_ns, ctime_ns, st_mode | lengths of content, root, tags
_FIXED = struct.Struct("<BBHqQ QQQqqI HHI")
_FIXED_BYTES = _FIXED.size
CONTENT_AT = slice(_FIXED_BYTES, _FIXED_BYTES + ID_BYTES)  # of a file's, where its content stands
_STAT = struct.Struct("<QQQqqI")  # the part of `_FIXED` about the stat
_STAT_AT = slice(20, 20 + _STAT.size)
_pack_stat = _STAT.pack
_TRUSTED_FILE, _TRUSTED_LINK = bytes([Kind.FILE, 1]), bytes([Kind.SYMLINK, 1])
assert (_STAT_AT.start, _STAT_AT.stop) == (20, 64)
_DEVICE = struct.Struct("<Q")  # of that, the device
_KINDS = (None, Kind.FILE, Kind.DIR, Kind.SYMLINK)
PAGE_ROWS = 2000  # read at a time: half a megabyte
AFTER_ALL = b"\xff" * 5000  # behind every path: no name has so many bytes
TIME_NS_MAX = (1 << 63) - 1
_new = tuple.__new__  # a NamedTuple's own constructor costs three times as much, and there is one per file


def mtime_of(st: os.stat_result) -> int:
    """The mtime of a stat in ns as entries and rows hold it: one beyond their 64 bits (before 1677, after 2262) is the
    nearest that they hold."""
    ns = st.st_mtime_ns
    return ns if -TIME_NS_MAX <= ns <= TIME_NS_MAX else min(max(ns, -TIME_NS_MAX), TIME_NS_MAX)


def row_of(entry: Entry, st: os.stat_result, *, trusted: bool) -> Row:
    """The row of `entry` seen with stat `st`."""
    if stat_.S_ISDIR(st.st_mode):
        return Row(entry, st.st_dev, st.st_ino, 0, 0, 0, st.st_mode, True)
    seen = (entry, st.st_dev, st.st_ino, st.st_size, mtime_of(st), st.st_ctime_ns, st.st_mode, trusted)
    row: Row = _new(Row, seen)
    return row


def same_stat(row: Row, st: os.stat_result) -> bool:
    """Whether a path is what the row saw: the same inode, unchanged (of a directory: itself)."""
    return same_file(row, st) and (st.st_ctime_ns == row.ctime_ns or stat_.S_ISDIR(row.mode))


def same_file(row: Row, st: os.stat_result) -> bool:
    """As `same_stat`, but for the ctime, which a rename or a new link changes too."""
    return (
        st.st_ino == row.ino
        and st.st_dev == row.dev
        and st.st_mode == row.mode
        and ((mtime_of(st) == row.mtime_ns and st.st_size == row.size) or stat_.S_ISDIR(row.mode))
    )


def is_unchanged(a: os.stat_result, b: os.stat_result, *, ctime: bool = False) -> bool:
    """Whether a file was not written to between two stats; `ctime`: nor renamed, nor linked."""
    return (
        a.st_ino == b.st_ino
        and a.st_dev == b.st_dev
        and a.st_size == b.st_size
        and a.st_mtime_ns == b.st_mtime_ns
        and a.st_mode == b.st_mode
        and (not ctime or a.st_ctime_ns == b.st_ctime_ns)
    )


def has_grown(a: os.stat_result, b: os.stat_result) -> bool:
    """Whether a file is longer than it was, and the same file else, as far as stats tell."""
    return (a.st_ino, a.st_dev, a.st_mode) == (b.st_ino, b.st_dev, b.st_mode) and a.st_size < b.st_size


def mode_now(row: Row, st: os.stat_result) -> int:
    """The mode that a path has, whose row says what was agreed and what the disk had made of that.

    A disk without modes (FAT), or a checkout that set no set-id bits, has another than was agreed. What the disk does
    not show as changed is not changed.
    """
    if row.mode == st.st_mode:
        return row.entry.mode
    mode = stat_.S_IMODE(st.st_mode)
    return mode if (row.mode ^ mode) & SPECIAL else mode & ~SPECIAL | row.entry.mode & SPECIAL


def pack_row(row: Row) -> bytes:
    """The bytes of a row; `unpack_row` is the inverse."""
    e = row.entry
    tags = encode_tags(e.tags) if e.tags else b""
    return (
        _FIXED.pack(
            e.kind, row.trusted, e.mode, e.mtime_ns, e.size,
            row.dev, row.ino, row.size, row.mtime_ns, row.ctime_ns, row.mode,
            len(e.content), len(e.root), len(tags),
        )
        + e.content + e.root + tags
    )  # fmt: skip


def pack_entry(entry: Entry) -> bytes:
    """The bytes of an untrusted row without a stat, for an entry that is not there yet."""
    kind, mode, mtime_ns, size, content, root, tags = entry
    if tags:
        return pack_row(Row(entry, 0, 0, 0, 0, 0, 0, False))
    fixed = _FIXED.pack(kind, 0, mode, mtime_ns, size, 0, 0, 0, 0, 0, 0, len(content), len(root), 0)
    return fixed + content + root


def unpack_row(data: bytes) -> Row:
    """The row of these bytes of `pack_row`. Damage in our own local state is a `WorkspaceError`."""
    try:
        kind, trusted, e_mode, e_mtime, e_size, dev, ino, size, mtime, ctime, mode, a, b, t = _FIXED.unpack_from(data)
        at = _FIXED_BYTES
        if len(data) != at + a + b + t or not 1 <= kind <= 3 or trusted > 1:
            raise FormatError("wrong length, kind or flag")
        tags = _unpack_tags(data[at + a + b :]) if t else ()
    except (struct.error, FormatError) as e:
        raise WorkspaceError(
            f"A row of the local state is damaged ({e}).",
            next_step=CLONE_ANEW,
        ) from e
    content = data[at : at + a]
    root = data[at + a : at + a + b] if b else b""
    entry: Entry = _new(Entry, (_KINDS[kind], e_mode, e_mtime, e_size, content, root, tags))
    row: Row = _new(Row, (entry, dev, ino, size, mtime, ctime, mode, bool(trusted)))
    return row


def unpack_entry(data: bytes) -> Entry:
    """The entry that `pack_entry` made these bytes of."""
    return unpack_row(data).entry


def size_in(data: bytes) -> int:
    """The size that the file of a packed row had on the disk."""
    return int(_STAT.unpack_from(data, _STAT_AT.start)[2])


def is_packed_file(data: bytes, st: os.stat_result) -> bool:
    """Whether this stat proves that a file or symlink has the content of a packed row. Does not unpack it."""
    try:
        stat = _pack_stat(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode)
    except struct.error:  # a time beyond 64 bits
        stat = _pack_stat(st.st_dev, st.st_ino, st.st_size, mtime_of(st), st.st_ctime_ns, st.st_mode)
    return data[20:64] == stat and data[:2] in (_TRUSTED_FILE, _TRUSTED_LINK)


def is_packed_dir(data: bytes, st: os.stat_result) -> bool:
    """Whether a directory with this stat is that of a packed row, with its mode."""
    return data[0] == Kind.DIR and data[_STAT_AT] == _STAT.pack(st.st_dev, st.st_ino, 0, 0, 0, st.st_mode)


def on_device(data: bytes, was: int, now: int) -> bytes:
    """A packed row with the device number `now` in the place of `was`."""
    return data[:20] + _DEVICE.pack(now) + data[28:] if data[20:28] == _DEVICE.pack(was) else data


def _unpack_tags(data: bytes) -> Tags:
    r = Reader(data, "row")
    tags = r.tags()
    r.end()
    if not tags:
        raise r.fail("no tags where some were said to be")
    return tags


def pages(db: State) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yields pages of all packed rows but the root's, by path as bytes."""
    last = b""
    while page := db.packed_rows_after(last, PAGE_ROWS):
        yield page
        last = page[-1][0]


class RowsFrom(Iterator[tuple[bytes, bytes]]):
    """Yields packed rows but the root's by path, then `AFTER_ALL` for ever; may be sent ahead."""

    def __init__(self, db: State) -> None:
        self._db = db
        self._page: list[tuple[bytes, bytes]] = []
        self._at = 0
        self._last = b""
        self._most = 2

    def __next__(self) -> tuple[bytes, bytes]:
        if self._at == len(self._page):
            self._page, self._at = self._db.packed_rows_after(self._last, self._most), 0
            self._most = min(2 * self._most, PAGE_ROWS)
            if not self._page:
                return AFTER_ALL, b""
            self._last = self._page[-1][0]
        self._at += 1
        return self._page[self._at - 1]

    def seek(self, path: bytes) -> None:
        """Goes on with the first row that is not before a path, which lies ahead."""
        if self._page and self._page[-1][0] >= path:
            self._at = bisect_left(self._page, (path,), self._at)
            return
        data = self._db.packed_row(path)
        self._page, self._at = ([] if data is None else [(path, data)]), 0
        self._last, self._most = path, 2


def children(db: State, directory: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the packed rows of a directory's own entries, by path."""
    prefix = directory + b"/" if directory else b""
    end = directory + b"0" if directory else AFTER_ALL  # "0" comes after "/"
    last, most = prefix, 2
    while page := db.packed_rows_after(last, most, end):
        most = min(2 * most, PAGE_ROWS)
        for path, data in page:
            at = path.find(b"/", len(prefix))
            if at >= 0:
                last, most = path[: at + 1] + AFTER_ALL, 2  # past all that is in that directory
                break
            yield path, data
            last = path


def load_rows(db: State) -> dict[bytes, Row]:
    """All rows by path."""
    return {path: unpack_row(data) for path, data in db.packed_rows().items()}


def rows_at(db: State, paths: Collection[bytes]) -> dict[bytes, Row]:
    """The rows that exist at these paths."""
    return {path: unpack_row(data) for path, data in db.packed_rows_at(paths).items()}


def files_with(db: State, contents: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yields (content, path) of every file that has one of these contents by its row. Looks at all rows."""
    if len(contents) <= PAGE_ROWS:
        found = iter(db.packed_rows_with(_FIXED_BYTES, contents).items())
    else:  # each statement of the other kind looks at all rows
        found = ((path, data) for page in pages(db) for path, data in page if data[CONTENT_AT] in contents)
    for path, data in found:
        entry = unpack_row(data).entry
        if entry.kind is Kind.FILE and entry.content in contents:
            yield entry.content, path


def store_rows(db: State, rows: Iterable[tuple[bytes, Row]]) -> None:
    """Writes rows, each over the one at the same path."""
    db.put_packed_rows((path, pack_row(row)) for path, row in rows)
