"""One SFTP session: requests are sent without waiting for each other's answers, which are matched by their numbers.

A session belongs to one thread at a time (`sftp.connection` lends it). After `LostError` or `ProtocolError` it is
closed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from metasync.backends.sftp import packets as sftp
from metasync.backends.sftp.hosts import paramiko
from metasync.backends.sftp.packets import ProtocolError, Reply, Request, StatusError

_SEND_BYTES = 1 << 15  # offered to SSH at a time: it takes what fits into one packet, a little less
_RECEIVE_BYTES = 1 << 18
_NUMBERS = 1 << 32

PIECE_BYTES: Final = 240 << 10
"""In one read or write at an OpenSSH server, which takes packets of 256 KiB."""
SMALL_PIECE_BYTES: Final = 32 << 10
"""At any other: what the protocol demands of a server."""
_AHEAD_BYTES = 4 << 20  # of reads under way: 40 MB/s at 100 ms
FOLDER_ENTRIES_MAX: Final = 1 << 20


class LostError(Exception):
    """The connection is gone, or gives no answer. What was asked may have been done."""


class Session:
    """An open SFTP session on `channel`, which it closes."""

    def __init__(self, channel: Any, *, piece_bytes: int, until: float) -> None:
        """Agrees the version. `until`: as `self.until`."""
        self._channel = channel
        self.piece_bytes = piece_bytes
        self.until = until
        """On the monotonic clock: answers that come later are not waited for."""
        self._number = 0
        self._in = bytearray()
        self._out = bytearray(sftp.init())
        self._early: dict[int, Reply] = {}
        self._due: set[int] = set()
        self._unwanted: set[int] = set()
        self.powers = sftp.version(self._packet())

    def is_open(self) -> bool:
        """Whether the server has not ended it: some do, after a while of silence, and leave the connection alone."""
        return not (self._channel.closed or self._channel.eof_received)

    def close(self) -> None:
        self._channel.close()

    def send(self, request: Request, *, unwanted: bool = False) -> int:
        """Has a request sent, at the latest with the next `receive`; -> its number. `unwanted`: so is its answer."""
        self._number = number = (self._number + 1) % _NUMBERS
        (self._unwanted if unwanted else self._due).add(number)
        self._out += sftp.numbered(request, number)
        if len(self._out) > _SEND_BYTES:
            self.flush()
        return number

    def receive(self, number: int) -> Reply:
        """The answer to the request of that number."""
        self._due.discard(number)
        if number in self._early:
            return self._early.pop(number)
        while True:
            found, reply = sftp.reply(self._packet())
            if found == number:
                return reply
            if found in self._unwanted:
                self._unwanted.discard(found)
            elif found in self._due and found not in self._early:
                self._early[found] = reply
            else:
                raise ProtocolError("an answer to what was not asked")

    def settle(self) -> None:
        """For the end of a call: nobody waits any more for answers that have not come yet."""
        self._unwanted |= self._due - self._early.keys()
        self._due.clear()
        self._early.clear()

    def ask(self, *requests: Request) -> list[Reply]:
        """All of them at once; -> their answers."""
        numbers = [self.send(request) for request in requests]
        return [self.receive(number) for number in numbers]

    def ask_one(self, request: Request) -> Reply:
        return self.receive(self.send(request))

    def write(self, handle: bytes, data: bytes) -> list[int]:
        """Has all of `data` written; -> the numbers of the requests, each answered by a status."""
        view, step = memoryview(data), self.piece_bytes
        return [self.send(sftp.write(handle, at, view[at : at + step])) for at in range(0, len(data), step)]

    def read(self, handle: bytes, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`, or fewer where the file ends before. Several pieces are under way at a time."""
        waiting: deque[tuple[int, int, int]] = deque()  # number, where in the part, how many
        parts: list[bytes] = []
        step = self.piece_bytes
        pieces = ((at, min(step, count - at)) for at in range(0, count, step))
        ended = False
        while True:
            while not ended and len(waiting) * step < _AHEAD_BYTES and (piece := next(pieces, None)):
                at, length = piece
                waiting.append((self.send(sftp.read(handle, offset + at, length)), at, length))
            if not waiting:
                return b"".join(parts) if len(parts) != 1 else parts[0]
            number, at, length = waiting.popleft()
            data = sftp.data_of(self.receive(number), length)
            parts.append(data)
            while data and len(data) < length:  # a server may give less at a time than it was asked for
                at, length = at + len(data), length - len(data)
                data = sftp.data_of(self.ask_one(sftp.read(handle, offset + at, length)), length)
                parts.append(data)
            if not data:
                ended = True
                for number, _, _ in waiting:  # behind the end there is nothing, whatever is said
                    self.receive(number)
                waiting.clear()

    def names(self, folder: bytes) -> Iterator[tuple[bytes, sftp.Attributes]]:
        """The entries of a folder without "." and "..". To be read to the end."""
        handle = sftp.handle_of(self.ask_one(sftp.opendir(folder)))
        return self._entries(handle, self._read_on(handle, 2))

    def folders(self, folders: Sequence[bytes]) -> list[list[tuple[bytes, sftp.Attributes]] | StatusError]:
        """The entries of each folder, as `names` has them, or why it cannot be read. All are asked for at once."""
        opened: list[tuple[bytes, list[int]] | StatusError] = []
        for number in [self.send(sftp.opendir(folder)) for folder in folders]:
            try:
                handle = sftp.handle_of(self.receive(number))
                opened.append((handle, self._read_on(handle, 2)))
            except StatusError as error:
                opened.append(error)
        out: list[list[tuple[bytes, sftp.Attributes]] | StatusError] = []
        count = 0
        for one in opened:
            try:
                entries = one if isinstance(one, StatusError) else list(self._entries(*one))
            except StatusError as error:
                entries = error
            out.append(entries)
            count += 0 if isinstance(entries, StatusError) else len(entries)
            if count > FOLDER_ENTRIES_MAX:
                raise ProtocolError(f"folders of more than {FOLDER_ENTRIES_MAX} entries")
        return out

    def _read_on(self, handle: bytes, count: int) -> list[int]:
        return [self.send(sftp.readdir(handle)) for _ in range(count)]

    def _entries(self, handle: bytes, numbers: list[int]) -> Iterator[tuple[bytes, sftp.Attributes]]:
        """What an open folder holds, which it closes. `numbers`: of two reads under way; that of a small folder has
        all, and the second says so."""
        count = 0
        try:
            while True:
                for answer in [self.receive(number) for number in numbers]:
                    entries = sftp.names_of(answer)
                    if entries is None:
                        return
                    for name, found in entries:
                        count += 1
                        if count > FOLDER_ENTRIES_MAX:
                            raise ProtocolError(f"a folder of more than {FOLDER_ENTRIES_MAX} entries")
                        if name not in (b".", b".."):
                            yield name, found
                numbers = self._read_on(handle, 8)
        finally:
            self.send(sftp.close(handle), unwanted=True)

    def _packet(self) -> bytes:
        self.flush()
        data = self._in
        while len(data) < 4:
            self._fill()
        length = int.from_bytes(data[:4], "big")
        if length > sftp.PACKET_BYTES_MAX:
            raise ProtocolError(f"a packet of {length} bytes")
        needed = 4 + length
        while len(data) < needed:
            self._fill()
        packet = bytes(memoryview(data)[4:needed])
        del data[:needed]
        return packet

    def _fill(self) -> None:
        self._limit()
        try:
            found = self._channel.recv(_RECEIVE_BYTES)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise _lost(error) from error
        if not found:
            raise LostError("the connection broke")
        self._in += found

    def flush(self) -> None:
        """Has sent what `send` was given."""
        if not self._out:
            return
        whole, self._out = memoryview(self._out), bytearray()
        at = 0
        while at < len(whole):
            self._limit()
            try:
                sent = self._channel.send(bytes(whole[at : at + _SEND_BYTES]))
            except (OSError, EOFError, paramiko.SSHException) as error:
                raise _lost(error) from error
            if not sent:
                raise LostError("the connection broke")
            at += sent

    def _limit(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise LostError("no answer in time")
        self._channel.settimeout(left)


def _lost(error: BaseException) -> LostError:
    return LostError("no answer in time" if isinstance(error, TimeoutError) else "the connection broke")
