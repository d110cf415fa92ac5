"""Collections of what a push or a scan holds per file: they spill to a temporary file, or take little memory.

A temporary file has no name, and goes with its process.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
import zlib
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from typing import Generic, TypeVar, overload

from metasync.errors import WorkspaceError

V = TypeVar("V")

HELD_MAX = 5_000  # entries in memory: some 3 MB of rows
PAGE = 2_000  # entries read at a time
SPOOL_BYTES_HELD = 4 << 20
_GONE = object()

_PAIRS = "SELECT key, value FROM large{} ORDER BY key LIMIT ?"
_KEYS = "SELECT key, NULL FROM large{} ORDER BY key LIMIT ?"
_INSERT = "INSERT OR REPLACE INTO large VALUES (?, ?)"
_DELETE = "DELETE FROM large WHERE key = ?"


class Streamed(Mapping[bytes, V], Generic[V]):
    """A mapping that is cheap to iterate, and dearer to ask for one item."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[bytes, V]]:
        """Yields all keys with their values."""

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.pairs())

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def items(self) -> ItemsView[bytes, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)


class _Items(ItemsView[bytes, V]):
    def __init__(self, mapping: Streamed[V]) -> None:
        super().__init__(mapping)
        self._pairs = mapping.pairs

    def __iter__(self) -> Iterator[tuple[bytes, V]]:
        return self._pairs()


class _Values(ValuesView[V]):
    def __init__(self, mapping: Streamed[V]) -> None:
        super().__init__(mapping)
        self._pairs = mapping.pairs

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._pairs())


class Large(Streamed[V], MutableMapping[bytes, V]):
    """A mapping that may be larger than memory: entries beyond `HELD_MAX` lie in a temporary file, by key.

    Iteration ascends, and may show entries that were written after it began. `pack` makes bytes of a value, `unpack` is
    its inverse. `WorkspaceError` if the temporary file fails. For one thread; `close` it.
    """

    def __init__(
        self, pack: Callable[[V], bytes], unpack: Callable[[bytes], V], items: Iterable[tuple[bytes, V]] = ()
    ) -> None:
        self._pack = pack
        self._unpack = unpack
        self._held: dict[bytes, V | object] = {}
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._run("PRAGMA journal_mode = OFF")
        self._run("CREATE TABLE large (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        for key, value in items:
            self[key] = value

    def close(self) -> None:
        self._held.clear()
        self._db.close()

    def _run(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[bytes, bytes]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as e:
            raise _failed(e) from e

    def _settle(self) -> None:
        """Writes the held entries to the file."""
        held, self._held = self._held, {}
        if not held:
            return
        try:
            self._db.execute("BEGIN")
            gone = ((key,) for key, value in held.items() if value is _GONE)
            self._db.executemany(_DELETE, gone)
            kept = ((key, self._pack(held[key])) for key in sorted(held) if held[key] is not _GONE)  # type: ignore[arg-type]
            self._db.executemany(_INSERT, kept)
            self._db.execute("COMMIT")
        except sqlite3.Error as e:
            raise _failed(e) from e

    def __getitem__(self, key: bytes) -> V:
        value = self._held.get(key)
        if value is None:
            found = self._run("SELECT value FROM large WHERE key = ?", (key,))
            if not found:
                raise KeyError(key)
            return self._unpack(found[0][0])
        if value is _GONE:
            raise KeyError(key)
        return value  # type: ignore[return-value]

    def __contains__(self, key: object) -> bool:
        value = self._held.get(key)  # type: ignore[call-overload]
        return (
            bool(self._run("SELECT 1, NULL FROM large WHERE key = ?", (key,))) if value is None else value is not _GONE
        )

    def __setitem__(self, key: bytes, value: V) -> None:
        self._held[key] = value
        if len(self._held) > HELD_MAX:
            self._settle()

    def __delitem__(self, key: bytes) -> None:
        self[key]
        self._held[key] = _GONE

    def pairs(self, after: bytes | None = None) -> Iterator[tuple[bytes, V]]:
        """Yields all keys with their values, ascending; `after`: those behind that key."""
        return ((key, self._unpack(value)) for key, value in self._paged(_PAIRS, after))

    def _paged(self, sql: str, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self._settle()
        if after is None:
            page = self._run(sql.format(""), (PAGE,))
        else:
            page = self._run(sql.format(" WHERE key > ?"), (after, PAGE))
        while page:
            yield from page
            page = self._run(sql.format(" WHERE key > ?"), (page[-1][0], PAGE))

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self._paged(_KEYS, None))

    def __len__(self) -> int:
        self._settle()
        return int(self._run("SELECT COUNT(*), NULL FROM large")[0][0])

    def repeated(self, at: slice, begin: bytes) -> Iterator[bytes]:
        """Yields the bytes at this place that more than one value has, of the values that begin so.

        Nothing may be written until the iteration ends.
        """
        self._settle()
        sql = (
            "SELECT substr(value, ?, ?) AS part FROM large WHERE substr(value, 1, ?) = ? "
            "GROUP BY part HAVING COUNT(*) > 1"
        )
        try:  # not all at once: it may be every second one
            for (part,) in self._db.execute(sql, (at.start + 1, at.stop - at.start, len(begin), begin)):
                yield part
        except sqlite3.Error as e:
            raise _failed(e) from e


def grown(
    held: MutableMapping[bytes, V], most: int, pack: Callable[[V], bytes], unpack: Callable[[bytes], V]
) -> MutableMapping[bytes, V]:
    """Returns the mapping itself, or a `Large` of it if it has more than `most` entries."""
    if isinstance(held, Large) or len(held) <= most:
        return held
    return Large(pack, unpack, held.items())


def _failed(cause: Exception) -> WorkspaceError:
    return WorkspaceError(
        f"A temporary file for what is known of many files failed: {cause}.",
        next_step="Give more room to the folder for temporary files (TMPDIR), and run again; nothing was lost.",
    )


class Spool:
    """Bytes that are stored and read again by their place: in memory while they are few, else in a file."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._fd = -1
        self._end = 0

    def put(self, data: bytes) -> slice:
        """Stores bytes; -> their place. `WorkspaceError` if the temporary file fails."""
        place = slice(self._end, self._end + len(data))
        if self._fd < 0 and place.stop <= SPOOL_BYTES_HELD:
            self._held += data
        else:
            try:
                self._write(data)
            except OSError as e:
                raise _failed(e) from e
        self._end = place.stop
        return place

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            import tempfile  # few pushes hold so much

            self._fd, name = tempfile.mkstemp()
            weakref.finalize(self, os.close, self._fd)
            os.unlink(name)
            data, self._held = bytes(self._held) + data, bytearray()
        while data:
            data = data[os.write(self._fd, data) :]

    def get(self, place: slice) -> bytes:
        """Returns the bytes at a place. `WorkspaceError` if the temporary file fails."""
        if self._fd < 0:
            return bytes(self._held[place])
        try:
            data = os.pread(self._fd, place.stop - place.start, place.start)
        except OSError as e:
            raise _failed(e) from e
        assert len(data) == place.stop - place.start
        return data


class Spooled:
    """Bytes in a spool, of which any part can be read."""

    def __init__(self, spool: Spool, place: slice) -> None:
        self._spool = spool
        self._begin: int = place.start
        self._size: int = place.stop - place.start

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self._size)
        return self._spool.get(slice(self._begin + begin, self._begin + max(begin, end)))


class Paths(Sequence[bytes]):
    """Very many paths, or other bytes without a NUL, compressed in blocks. Equal to a tuple of the same."""

    def __init__(self, paths: Iterable[bytes]) -> None:
        self._blocks: list[bytes] = []
        self._count = 0
        some: list[bytes] = []
        for path in paths:
            some.append(path)
            if len(some) == PAGE:
                self._add(some)
                some = []
        if some:
            self._add(some)

    def _add(self, some: list[bytes]) -> None:
        self._blocks.append(zlib.compress(b"\0".join(some), 1))
        self._count += len(some)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            yield from zlib.decompress(block).split(b"\0")

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, at: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(self._count)))
        place = range(self._count)[at]
        return zlib.decompress(self._blocks[place // PAGE]).split(b"\0")[place % PAGE]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Paths, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{self._count:,} paths>"


KEY_BYTES = 16  # of an id's 32: no two keyed hashes will ever share 128 bits
_FIRST = 1 << 10  # slots
_EMPTY = bytes(KEY_BYTES)
FEW = 1 << 15  # a set of Python's takes a fifth of the time


class IdSet:
    """A set of object ids in a third of the memory of Python's: open addressing in an array, three quarters full.

    The first `FEW` ids are in a set of Python's, 4 MB at most, and move when there are more.
    """

    def __init__(self) -> None:
        self._few: set[bytes] | None = set()
        self._slots = bytearray()
        self._size = 0  # slots
        self._expected = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count if self._few is None else len(self._few)

    def __contains__(self, object_id: object) -> bool:
        assert isinstance(object_id, bytes)
        key = object_id[:KEY_BYTES]
        if self._few is not None:
            return key in self._few
        return self._slots[(at := self._place(key)) : at + KEY_BYTES] == key

    def reserve(self, more: int) -> None:
        """Makes the next growth leave room for about so many more ids."""
        self._expected = (len(self) + more + more // 16) * 4 // 3 + 1  # directories come on top

    def add(self, object_id: bytes) -> None:
        key = object_id[:KEY_BYTES]
        if self._few is not None:
            if len(self._few) < FEW:
                self._few.add(key)
                return
            self._move(self._few)
        at = self._place(key)
        if self._slots[at : at + KEY_BYTES] == key:
            return
        self._slots[at : at + KEY_BYTES] = key
        self._count += 1
        if self._count * 4 > self._size * 3:
            self._resize(max(2 * self._size, self._expected))

    def part(self) -> IdPart | IdSet:
        """An empty set for some of these ids, and no others: a byte a slot. It holds while nothing is added here."""
        return IdPart(self) if self._few is None else IdSet()

    def slot(self, object_id: bytes) -> int | None:
        """The number of an id's slot, below `slots`; None: it is not here."""
        key = object_id[:KEY_BYTES]
        at = self._place(key)
        return at // KEY_BYTES if self._slots[at : at + KEY_BYTES] == key else None

    @property
    def slots(self) -> int:
        return self._size

    def _move(self, few: set[bytes]) -> None:
        self._few = None
        self._size = max(_FIRST, 2 * len(few), self._expected)
        self._slots = bytearray(self._size * KEY_BYTES)
        for key in few:
            self.add(key)

    def _place(self, key: bytes) -> int:
        """The place of a key, or where it would stand. Its first bytes are as good as random."""
        if key == _EMPTY:
            raise ValueError("no object has this id")
        slots, size = self._slots, self._size
        n = int.from_bytes(key[:8], "big") % size
        while (found := slots[n * KEY_BYTES : (n + 1) * KEY_BYTES]) != key and found != _EMPTY:
            n = n + 1 if n + 1 < size else 0
        return n * KEY_BYTES

    def _resize(self, size: int) -> None:
        old = self._slots
        self._slots = bytearray(size * KEY_BYTES)
        self._size = size
        for at in range(0, len(old), KEY_BYTES):
            if (key := bytes(old[at : at + KEY_BYTES])) != _EMPTY:
                place = self._place(key)
                self._slots[place : place + KEY_BYTES] = key


class IdPart:
    """Some ids of an `IdSet`, which has more than a few."""

    def __init__(self, whole: IdSet) -> None:
        self._whole = whole
        self._flags = bytearray(whole.slots)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, object_id: object) -> bool:
        assert isinstance(object_id, bytes)
        return (slot := self._slot(object_id)) is not None and bool(self._flags[slot])

    def add(self, object_id: bytes) -> None:
        """Takes in an id of the whole set. `KeyError`: it is none."""
        slot = self._slot(object_id)
        if slot is None:
            raise KeyError(object_id.hex())
        self._count += not self._flags[slot]
        self._flags[slot] = 1

    def _slot(self, object_id: bytes) -> int | None:
        assert self._whole.slots == len(self._flags), "the whole set has grown"
        return self._whole.slot(object_id)
