"""A set of object ids in a third of the memory that Python's own takes: a push may add millions."""

from __future__ import annotations

KEY_BYTES = 16  # of an id's 32: ids are keyed hashes, and two that share 128 bits will never be met
_FIRST = 1 << 10  # slots
_EMPTY = bytes(KEY_BYTES)
FEW = 1 << 15  # so many are kept as Python does, which takes a fifth of the time


class IdSet:
    """Ids can be added, and asked for. Open addressing in one array, which is never more than three quarters full.

    The first `FEW` are in a set of Python's, 4 MB at most, and move when there are more.
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
        """Up to about so many more are going to be added: it grows at once, when it does, to have room for them."""
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

    def _move(self, few: set[bytes]) -> None:
        self._few = None
        self._size = max(_FIRST, 2 * len(few), self._expected)
        self._slots = bytearray(self._size * KEY_BYTES)
        for key in few:
            self.add(key)

    def _place(self, key: bytes) -> int:
        """Where a key stands, or would. Its first bytes are as good as random."""
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
