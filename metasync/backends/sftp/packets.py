"""SFTP version 3 in bytes: requests as they are sent, answers as they are checked (draft-ietf-secsh-filexfer-02).

The extensions are OpenSSH's (PROTOCOL, section 4). No I/O here. What a server sends is checked for its lengths before
anything is made of it; `ProtocolError` is all that is raised, and `StatusError` where it said no.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

VERSION: Final = 3
PACKET_BYTES_MAX: Final = 1 << 18  # of an answer: OpenSSH sends none that is longer, and asks for none

_INIT, _VERSION = 1, 2
_OPEN, _CLOSE, _READ, _WRITE, _LSTAT, _FSTAT = 3, 4, 5, 6, 7, 8
_OPENDIR, _READDIR, _REMOVE, _MKDIR, _RMDIR, _REALPATH, _STAT, _RENAME = 11, 12, 13, 14, 15, 16, 17, 18
_STATUS, _HANDLE, _DATA, _NAME, _ATTRS, _EXTENDED, _EXTENDED_REPLY = 101, 102, 103, 104, 105, 200, 201

OK, EOF, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE = 0, 1, 2, 3, 4, 5
NO_CONNECTION, CONNECTION_LOST, OP_UNSUPPORTED = 6, 7, 8
# Of later versions of the protocol; some servers say them in version 3 as well.
NO_SUCH_PATH, FILE_ALREADY_EXISTS, WRITE_PROTECT, NO_SPACE, QUOTA_EXCEEDED = 10, 11, 12, 14, 15
ABSENT: Final = frozenset({NO_SUCH_FILE, NO_SUCH_PATH})
_STATUS_NAMES = {
    EOF: "end of file",
    NO_SUCH_FILE: "no such file",
    PERMISSION_DENIED: "permission denied",
    FAILURE: "failure",
    BAD_MESSAGE: "bad message",
    NO_CONNECTION: "no connection",
    CONNECTION_LOST: "connection lost",
    OP_UNSUPPORTED: "not supported",
    NO_SUCH_PATH: "no such path",
    FILE_ALREADY_EXISTS: "file already exists",
    WRITE_PROTECT: "write-protected",
    NO_SPACE: "no space",
    QUOTA_EXCEEDED: "quota exceeded",
}

HARDLINK: Final = b"hardlink@openssh.com"
POSIX_RENAME: Final = b"posix-rename@openssh.com"
FSYNC: Final = b"fsync@openssh.com"
STATVFS: Final = b"statvfs@openssh.com"
_KNOWN: Final = {HARDLINK: b"1", POSIX_RENAME: b"1", FSYNC: b"1", STATVFS: b"2"}

_FOR_READING, _FOR_WRITING, _NEW = 0x01, 0x02, 0x08 | 0x20
_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES, _HAS_MORE = 0x01, 0x02, 0x04, 0x08, 1 << 31
_READ_ONLY = 0x01

Request: TypeAlias = tuple[int, bytes]
"""A request's type and what follows its number."""


class ProtocolError(Exception):
    """What came is not SFTP."""


class StatusError(Exception):
    """The server's no. It never holds the server's own words: those can be of any length and in any language."""

    def __init__(self, code: int) -> None:
        super().__init__(_STATUS_NAMES.get(code, f"status {code}"))
        self.code = code


class Reply(NamedTuple):
    """An answer: its type, and what follows its number."""

    kind: int
    body: bytes


class Attributes(NamedTuple):
    """What a server tells of a file. None: it does not say."""

    size: int | None
    mode: int | None

    @property
    def is_file(self) -> bool:
        return self.mode is None or stat.S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        return self.mode is not None and stat.S_ISDIR(self.mode)


class Room(NamedTuple):
    """What a server tells of a file system. `fsid` is the same for as long as it is mounted."""

    fsid: int
    free_bytes: int
    total_bytes: int
    files_free: int
    files_total: int
    read_only: bool


def init() -> bytes:
    return struct.pack(">IBI", 5, _INIT, VERSION)


def version(packet: bytes) -> frozenset[bytes]:
    """The extensions offered, of those known here."""
    if len(packet) < 5 or packet[0] != _VERSION:
        raise ProtocolError("no version")
    if int.from_bytes(packet[1:5], "big") < VERSION:
        raise ProtocolError("an older version than 3")
    reader = _Reader(packet[5:])
    found = set()
    while not reader.ended():
        name, value = reader.text(), reader.text()
        if _KNOWN.get(name) == value:
            found.add(name)
    return frozenset(found)


def numbered(request: Request, number: int) -> bytes:
    kind, rest = request
    return struct.pack(">IBI", 5 + len(rest), kind, number) + rest


def reply(packet: bytes) -> tuple[int, Reply]:
    """A packet without its length: the number of the request it answers, and the answer."""
    if len(packet) < 5:
        raise ProtocolError("a short packet")
    return int.from_bytes(packet[1:5], "big"), Reply(packet[0], packet[5:])


def read(handle: bytes, offset: int, length: int) -> Request:
    return _READ, _text(handle) + struct.pack(">QI", offset, length)


def write(handle: bytes, offset: int, data: bytes | memoryview) -> Request:
    return _WRITE, b"".join((_text(handle), struct.pack(">QI", offset, len(data)), data))


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def _request(kind: int, *texts: bytes, end: bytes = b"") -> Request:
    return kind, b"".join(map(_text, texts)) + end


# Of one path, or of the two that a name is given or changed by.
open_to_read = partial(_request, _OPEN, end=struct.pack(">II", _FOR_READING, 0))
open_to_create = partial(_request, _OPEN, end=struct.pack(">II", _FOR_WRITING | _NEW, 0))
"""Fails where the name is taken. The server's umask says who may read it."""
stat_of = partial(_request, _STAT)
lstat = partial(_request, _LSTAT)
statvfs = partial(_request, _EXTENDED, STATVFS)
realpath = partial(_request, _REALPATH)
hardlink = partial(_request, _EXTENDED, HARDLINK)
posix_rename = partial(_request, _EXTENDED, POSIX_RENAME)
rename = partial(_request, _RENAME)
remove = partial(_request, _REMOVE)
mkdir = partial(_request, _MKDIR, end=bytes(4))
rmdir = partial(_request, _RMDIR)
opendir = partial(_request, _OPENDIR)

# Of an open handle.
close = partial(_request, _CLOSE)
fsync = partial(_request, _EXTENDED, FSYNC)
fstat = partial(_request, _FSTAT)
readdir = partial(_request, _READDIR)


def status_of(answer: Reply) -> int:
    """The code of a status. `ProtocolError` for another answer."""
    if answer.kind != _STATUS or len(answer.body) < 4:
        raise ProtocolError(f"an answer of type {answer.kind} where a status was due")
    return int.from_bytes(answer.body[:4], "big")


def done(answer: Reply) -> None:
    """For requests that are answered by a status: `StatusError` unless that is OK."""
    if (code := status_of(answer)) != OK:
        raise StatusError(code)


def handle_of(answer: Reply) -> bytes:
    handle = _reader(answer, _HANDLE).text()
    if len(handle) > 256:
        raise ProtocolError("a handle of more than 256 bytes")
    return handle


def data_of(answer: Reply, asked: int) -> bytes:
    """The bytes read, at most `asked`; none at the end of the file."""
    if answer.kind == _STATUS and status_of(answer) == EOF:
        return b""
    data = _reader(answer, _DATA).text()
    if len(data) > asked:
        raise ProtocolError(f"{len(data)} bytes where {asked} were asked for")
    return data


def attributes_of(answer: Reply) -> Attributes:
    return _attributes(_reader(answer, _ATTRS))


def path_of(answer: Reply) -> bytes:
    """What `realpath` gave."""
    reader = _reader(answer, _NAME)
    if reader.u32() != 1:
        raise ProtocolError("not one name")
    return reader.text()


def names_of(answer: Reply) -> Iterator[tuple[bytes, Attributes]] | None:
    """The entries of a piece of a folder; None at its end."""
    if answer.kind == _STATUS and status_of(answer) == EOF:
        return None
    return _names(_reader(answer, _NAME))


def room_of(answer: Reply) -> Room:
    reader = _reader(answer, _EXTENDED_REPLY)
    _, unit, blocks, _, available, files, _, files_free, fsid, flags, _ = (reader.u64() for _ in range(11))
    return Room(fsid, available * unit, blocks * unit, files_free, files, bool(flags & _READ_ONLY))


def _reader(answer: Reply, kind: int) -> _Reader:
    if answer.kind == _STATUS:
        raise StatusError(status_of(answer))
    if answer.kind != kind:
        raise ProtocolError(f"an answer of type {answer.kind} where {kind} was due")
    return _Reader(answer.body)


def _names(reader: _Reader) -> Iterator[tuple[bytes, Attributes]]:
    for _ in range(reader.u32()):
        name, long_name, found = reader.text(), reader.text(), _attributes(reader)
        if found.mode is None:  # the line that `ls -l` would print begins with the kind
            found = found._replace(mode={b"d": stat.S_IFDIR, b"-": stat.S_IFREG}.get(long_name[:1]))
        yield name, found


def _attributes(reader: _Reader) -> Attributes:
    flags = reader.u32()
    size = reader.u64() if flags & _HAS_SIZE else None
    if flags & _HAS_OWNER:
        reader.u64()
    mode = reader.u32() if flags & _HAS_MODE else None
    if flags & _HAS_TIMES:
        reader.u64()
    if flags & _HAS_MORE:
        for _ in range(2 * reader.u32()):
            reader.text()
    return Attributes(size, mode)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def ended(self) -> bool:
        return self._at >= len(self._data)

    def u32(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def text(self) -> bytes:
        return self._take(self.u32())

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise ProtocolError("a packet that ends too soon")
        self._at += count
        return part
