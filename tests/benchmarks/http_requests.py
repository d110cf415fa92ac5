"""Counts the HTTP/1 requests of one connection from what its client sends, however the bytes are cut; no I/O.

Theory of operation. Requests follow each other on a connection without a mark between them, so each must be followed to
its end: head, then a body of Content-Length bytes, or chunks up to the empty one and its trailers (RFC 9112, 6 and 7).
One case cannot be told from the client's bytes alone: with `Expect: 100-continue` a client may keep its body back when
the server refuses (RFC 9110, 10.1.1), and what comes next is a new request in the body's place. So `answered` is told
what the server sends, and after a refusal a request line counts as one.

What is no HTTP/1 (TLS, HTTP/2) makes the stream `opaque`: nothing is counted from there on, and that is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

# Servers refuse heads beyond 8 to 64 KiB; signed S3 requests have about 1 KiB.
HEAD_BYTES_MAX = 1 << 16
# The line with a chunk's size, with its extensions: aws-chunked puts a signature of 90 bytes there.
SIZE_LINE_BYTES_MAX = 4096

_REQUEST_LINE = re.compile(rb"([A-Z]{3,20}) [!-~]+ HTTP/1\.[01]\r?\Z")
_REQUEST_BEGUN = re.compile(rb"[A-Z]{1,20}(?: [!-~]*(?: [HTP/1.0\r]*)?)?\Z")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r?(?:\n|\Z)")
_CHUNKED = re.compile(rb"\ntransfer-encoding:[^\n]*\bchunked[ \t]*\r?(?:\n|\Z)")
_EXPECT = re.compile(rb"\nexpect:[ \t]*100-continue[ \t]*\r?(?:\n|\Z)")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_BYTES = len(b"HTTP/1.1 1")
_NAME = re.compile(r"[0-9a-f]{16,}")  # in a path: random names and digests
_NUMBER = re.compile(r"(?<=/)[0-9]+(?=/|$)")


class RequestStream:
    """`feed` takes what the client sent, `answered` what the server did; `methods` holds the requests begun so far.

    A request counts once its whole head has been sent. `line` is the request line of the last one. `targets` counts by
    method and path, with a star in the place of each digest and a # for each number: so there are few of them.
    """

    def __init__(self) -> None:
        self.methods: Counter[str] = Counter()
        self.targets: Counter[str] = Counter()
        self.line = b""
        self.opaque = False
        self.awaits_answer = False  # `answered` need not be called while this is false
        self._refused = False
        self._status = b""
        self._held = b""  # the beginning of a head or line that has no end yet
        self._left = 0  # bytes of a body or chunk to skip
        self._step: Callable[[bytes], bytes] = self._head

    def feed(self, data: bytes | memoryview) -> None:
        if self._left > len(data) and not self._refused:  # the middle of a body: nothing to look at
            self.awaits_answer = False
            self._left -= len(data)
            return
        rest = self._held + bytes(data)
        self._held = b""
        while rest and not self.opaque:
            rest = self._skip(rest) if self._left else self._step(rest)

    def answered(self, data: bytes | memoryview) -> None:
        """The server's next bytes, while the client waits for leave to send its body."""
        self._status += bytes(data[: _STATUS_BYTES - len(self._status)])
        if len(self._status) == _STATUS_BYTES:
            self.awaits_answer = False
            self._refused = not self._status.endswith(b" 1")

    def _skip(self, data: bytes) -> bytes:
        self.awaits_answer = False
        if self._refused:
            line, newline, _ = data.partition(b"\n")
            if not newline and len(data) < self._left and _REQUEST_BEGUN.match(line):
                return self._hold(data, HEAD_BYTES_MAX)
            self._refused = False
            if _REQUEST_LINE.match(line):
                self._left, self._step = 0, self._head
                return data
        skipped = min(self._left, len(data))
        self._left -= skipped
        return data[skipped:]

    def _head(self, data: bytes) -> bytes:
        data = data.lstrip(b"\r\n") if data[:1] in b"\r\n" else data  # RFC 9112, 2.2: empty lines before a request
        end = _HEAD_END.search(data)
        if end is None:
            return self._hold(data, HEAD_BYTES_MAX)
        head = data[: end.start()]
        line = _REQUEST_LINE.match(head.split(b"\n", 1)[0])
        if line is None:
            self.opaque = True
            return b""
        self.methods[line[1].decode()] += 1
        self.line = line[0]
        method, target = line[0].decode().split(" ")[:2]
        path, has_query, query = target.partition("?")
        asks_for_list = has_query and "list-type=" in query
        self.targets[f"{'LIST' if asks_for_list else method} {_NUMBER.sub('#', _NAME.sub('*', path))}"] += 1
        fields = head.lower()
        length = _LENGTH.search(fields)
        if _CHUNKED.search(fields):
            self._step = self._size
        elif length:
            self._left = int(length[1])
        if _EXPECT.search(fields) and (self._left or self._step == self._size):
            self.awaits_answer, self._refused, self._status = True, False, b""
        return data[end.end() :]

    def _size(self, data: bytes) -> bytes:
        self.awaits_answer = False
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return self._hold(data, SIZE_LINE_BYTES_MAX)
        if self._refused:
            self._refused = False
            if _REQUEST_LINE.match(line):
                self._step = self._head
                return data
        try:
            size = int(line.split(b";", 1)[0].strip(), 16)
        except ValueError:
            self.opaque = True
            return b""
        if size:
            self._left, self._step = size, self._chunk_end
        else:
            self._step = self._trailer
        return rest

    def _chunk_end(self, data: bytes) -> bytes:
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return self._hold(data, SIZE_LINE_BYTES_MAX)
        self.opaque = line.strip() != b""
        self._step = self._size
        return rest

    def _trailer(self, data: bytes) -> bytes:
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return self._hold(data, HEAD_BYTES_MAX)
        if not line.strip():
            self._step = self._head
        return rest

    def _hold(self, data: bytes, most: int) -> bytes:
        self._held = data
        self.opaque = len(data) > most
        return b""
