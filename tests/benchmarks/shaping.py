"""A distant, narrow backend on loopback: a proxy that delays, limits and counts what goes through it.

    python shaping.py --round-trip-ms 80 --rate 5000000 TARGET_PORT [TARGET_PORT ...]

listens on a port of its own for each target, prints a line of JSON with the ports, answers each line on its standard
input with one of JSON (what has gone through so far), and ends when its standard input does. It is a process of its
own, so that its CPU is not the client's. `python shaping.py --ceiling` prints what the proxy itself can carry.

The model. A backend has one line in each direction, shared by all of its connections: a piece of n bytes leaves when
those before it have left and n / rate seconds have passed, and arrives half a round trip later. A new connection's
first bytes leave one round trip after it was opened: the handshake. Pieces are small, so that no connection waits for
more than one piece of each other; a sender that is ahead of the line is held back through TCP. A service may take time
of its own for each answer, by method (`Shape`). Not in the model: slow start, loss, TLS, limits per connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script it is started with -P or from anywhere
    sys.path.insert(0, str(Path(__file__).parent))
from http_requests import RequestStream

# 3.3 ms of a line of 5 MB/s: the most that one connection's piece can hold up another's.
SHAPED_PIECE_BYTES = 16 << 10
FREE_PIECE_BYTES = 256 << 10
# How far ahead of the line pieces are taken in: the event loop wakes up to 1 ms late, and the line must not idle then.
AHEAD_S = 0.05
# Held for one direction of one connection; beyond it the sender waits. Twice what a line of 100 MB/s has under way.
HELD_BYTES_MAX = 16 << 20
START_TIMEOUT_S = 20


@dataclass(frozen=True)
class Shape:
    """A backend's line, and its service. Bytes a second each way, 0 for no limit.

    `service_s`: seconds that the service takes before it answers, by method; a request for a list counts as "LIST",
    and what is not named takes no time. `jitter`: sigma of the log-normal factor on them, drawn for every request.
    """

    round_trip_s: float = 0.0
    up: float = 0.0
    down: float = 0.0
    service_s: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0


@dataclass
class Line:
    """One direction of a backend. `book` says when a piece that is ready at `now` has left; pieces leave in order."""

    rate: float  # bytes a second; 0 is no limit
    free_at: float = 0.0
    carried_bytes: int = 0

    def book(self, size: int, now: float) -> float:
        self.carried_bytes += size
        self.free_at = max(now, self.free_at) + (size / self.rate if self.rate else 0.0)
        return self.free_at


@dataclass
class Counted:
    """What has gone through to one backend. `opaque` connections were no HTTP/1: their requests are not counted.

    `requests` are counted by method, `targets` by what was asked for (`RequestStream`).
    """

    requests: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    up_bytes: int = 0
    down_bytes: int = 0
    connections: int = 0
    opaque: int = 0

    def since(self, before: Counted) -> Counted:
        """What came after `before` was taken."""
        return Counted(
            self.requests - before.requests,
            self.targets - before.targets,
            self.up_bytes - before.up_bytes,
            self.down_bytes - before.down_bytes,
            self.connections - before.connections,
            self.opaque - before.opaque,
        )


class Backend:
    """One target with its two lines, and the counts of the connections to it."""

    def __init__(self, port: int, shape: Shape, seed: int = 0) -> None:
        self.port = port
        self.shape = shape
        self.round_trip_s = shape.round_trip_s
        self.up, self.down = Line(shape.up), Line(shape.down)
        self._chance = random.Random(seed)
        self._streams: list[RequestStream] = []
        self._ended = Counted()

    def opened(self) -> RequestStream:
        stream = RequestStream()
        self._streams.append(stream)
        self._ended.connections += 1
        return stream

    def takes_s(self, line: bytes) -> float:
        """What the service takes before it answers this request, drawn anew."""
        method = "LIST" if b"list-type=" in line else line.partition(b" ")[0].decode()
        seconds = self.shape.service_s.get(method, 0.0)
        return seconds * self._chance.lognormvariate(0.0, self.shape.jitter) if seconds else 0.0

    def closed(self, stream: RequestStream) -> None:
        self._streams.remove(stream)
        self._ended.requests += stream.methods
        self._ended.targets += stream.targets
        self._ended.opaque += stream.opaque

    def counted(self) -> Counted:
        ended = self._ended
        out = Counted(Counter(ended.requests), Counter(ended.targets), 0, 0, ended.connections, ended.opaque)
        for stream in self._streams:
            out.requests += stream.methods
            out.targets += stream.targets
            out.opaque += stream.opaque
        out.up_bytes, out.down_bytes = self.up.carried_bytes, self.down.carried_bytes
        return out


class Connection:
    """One client's connection: two ends and what is under way between them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.stream = backend.opened()
        now = asyncio.get_running_loop().time()
        self.usable_at = now + backend.round_trip_s
        self.client = End(self, backend.up)
        self.server = End(self, backend.down)
        self.client.other, self.server.other = self.server, self.client
        self._open = True
        self._answering, self._service_s = 0, 0.0  # which request, and what the service takes for it

    def saw(self, end: End, data: memoryview) -> float:
        """Notes what an end sent. -> how long the service held it back."""
        stream = self.stream
        if end is self.client:
            stream.feed(data)
            return 0.0
        if stream.awaits_answer:  # leave to send the body, or a refusal
            stream.answered(data)
            return 0.0
        if self.backend.shape.service_s and self._answering != stream.methods.total():
            self._answering, self._service_s = stream.methods.total(), self.backend.takes_s(stream.line)
        return self._service_s

    def close(self) -> None:
        """Both ends at once: one of them is gone."""
        if self._open:
            self._open = False
            self.backend.closed(self.stream)
            for end in (self.client, self.server):
                end.abandon()


class End(asyncio.BufferedProtocol):
    """One end of a connection: what it reads goes onto `line`, and off it to the other end when its time has come."""

    other: End

    def __init__(self, connection: Connection, line: Line) -> None:
        self._connection = connection
        self._line = line
        self._delay_s = connection.backend.round_trip_s / 2
        self._shaped = bool(line.rate or self._delay_s or connection.backend.shape.service_s)
        self._buffer = memoryview(bytearray(SHAPED_PIECE_BYTES if self._shaped else FREE_PIECE_BYTES))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._under_way: deque[tuple[float, bytes | None]] = deque()  # when it arrives, what; None is the end
        self._held_bytes = 0
        self._reasons: set[str] = set()  # why nothing is read now
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self is self._connection.client:
            self._hold("target")
            self._loop.create_task(self._reach())

    async def _reach(self) -> None:
        connection = self._connection
        try:
            await self._loop.create_connection(lambda: connection.server, "127.0.0.1", connection.backend.port)
        except OSError:
            connection.close()
        else:
            self._release("target")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        service_s = self._connection.saw(self, data)
        now = self._loop.time()
        leaves = self._line.book(nbytes, max(now, self._connection.usable_at))
        if not self._shaped:
            self.other.write(data)
            return
        self._held_bytes += nbytes
        self._send_at(leaves + self._delay_s + service_s, bytes(data))
        if leaves > now + AHEAD_S:
            self._hold("line")
            self._loop.call_at(leaves - AHEAD_S / 2, self._release, "line")
        if self._held_bytes > HELD_BYTES_MAX:
            self._hold("held")

    def eof_received(self) -> bool:
        if self._shaped:
            now = max(self._loop.time(), self._connection.usable_at, self._line.free_at)
            self._send_at(now + self._delay_s, None)
        else:
            self.other.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connection.close()

    def write(self, data: memoryview | bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> None:
        """No more will be written to this end; once both ends have ended, the connection is over."""
        self._ended = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        if self.other._ended:
            for end in (self, self.other):
                if end._transport is not None:
                    end._transport.close()

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._under_way.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.other._hold("slow reader")

    def resume_writing(self) -> None:
        self.other._release("slow reader")

    def _send_at(self, when: float, data: bytes | None) -> None:
        when = max(when, self._under_way[-1][0]) if self._under_way else when  # nothing passes what went before
        self._under_way.append((when, data))
        if self._timer is None:
            self._timer = self._loop.call_at(when, self._arrive)

    def _arrive(self) -> None:
        now = self._loop.time()
        self._timer = None
        while self._under_way and self._under_way[0][0] <= now:
            data = self._under_way.popleft()[1]
            if data is None:
                self.other.end()
            else:
                self._held_bytes -= len(data)
                self.other.write(data)
        if self._held_bytes <= HELD_BYTES_MAX:
            self._release("held")
        if self._under_way:
            self._timer = self._loop.call_at(self._under_way[0][0], self._arrive)

    def _hold(self, reason: str) -> None:
        if not self._reasons and self._transport is not None:
            self._transport.pause_reading()
        self._reasons.add(reason)

    def _release(self, reason: str) -> None:
        if reason in self._reasons:
            self._reasons.remove(reason)
            if not self._reasons and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()


async def listen(backend: Backend) -> asyncio.Server:
    """Accepts connections to `backend` on a port of its own."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(backend).client, "127.0.0.1", 0, backlog=512)


async def serve(targets: Sequence[int], shapes: Sequence[Shape]) -> None:
    """Proxies for the targets, each with its shape, until standard input ends."""
    loop = asyncio.get_running_loop()
    backends = [Backend(port, shape, n) for n, (port, shape) in enumerate(zip(targets, shapes, strict=True))]
    servers = [await listen(backend) for backend in backends]
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    while await questions.readline():
        counted = [vars(backend.counted()) for backend in backends]
        print(json.dumps({"counted": counted, "cpu_s": time.process_time()}), flush=True)


class Proxy:
    """A running proxy process. `ports[i]` stands for the i-th target."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ports: list[int] = self._line()

    def counted(self) -> list[Counted]:
        """What has gone through to each target so far."""
        return [
            Counted(**{**c, "requests": Counter(c["requests"]), "targets": Counter(c["targets"])})
            for c in self._ask()["counted"]
        ]

    def cpu_s(self) -> float:
        """The CPU seconds that the proxy has used so far."""
        return float(self._ask()["cpu_s"])

    def _ask(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the shaping proxy ended, exit {self.process.wait(START_TIMEOUT_S)}")
        return json.loads(line)


@contextlib.contextmanager
def running(
    targets: Sequence[int], *, round_trip_s: float = 0.0, rate: float = 0.0, shapes: Sequence[Shape] = ()
) -> Iterator[Proxy]:
    """A proxy process for these ports on 127.0.0.1; it ends with the block. Without delay and rate it only counts.

    `shapes`: one for each port, in place of the same delay and rate for all.
    """
    shapes = shapes or [Shape(round_trip_s, rate, rate)] * len(targets)
    argv = [sys.executable, __file__, "--shapes", json.dumps([asdict(shape) for shape in shapes])]
    with subprocess.Popen(
        [*argv, *map(str, targets)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield Proxy(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


# --- what the proxy itself can carry ---

_BULK_BYTES = 256 << 20
_REQUESTS = 3000
_REQUEST = b"GET /bucket/name HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: " + b"x" * 400 + b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n" + bytes(4096)


@dataclass(frozen=True)
class Ceiling:
    """Per second of a core of the proxy's own, with no delay and no limit."""

    megabytes: float
    requests: float


def ceiling() -> Ceiling:
    """Measures the CPU that the proxy takes for 256 MiB in one upload, and for 3,000 requests with answers of 4 KiB."""
    with socket.create_server(("127.0.0.1", 0)) as server, running([server.getsockname()[1]]) as proxy:
        threading.Thread(target=_target, args=(server,), daemon=True).start()
        with socket.create_connection(("127.0.0.1", proxy.ports[0])) as client:
            before = proxy.cpu_s()
            client.sendall(b"PUT /bulk HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % _BULK_BYTES)
            piece = bytes(1 << 20)
            for _ in range(_BULK_BYTES // len(piece)):
                client.sendall(piece)
            _receive(client, len(_ANSWER))
            bulk_s = proxy.cpu_s() - before
            before = proxy.cpu_s()
            for _ in range(_REQUESTS):
                client.sendall(_REQUEST)
                _receive(client, len(_ANSWER))
            requests_s = proxy.cpu_s() - before
    return Ceiling(_BULK_BYTES / 1e6 / bulk_s, _REQUESTS / requests_s)


def _target(server: socket.socket) -> None:
    """Answers the one upload and then the requests of `ceiling`."""
    with server.accept()[0] as peer:
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(1 << 16)
        left = _BULK_BYTES - (len(head) - head.index(b"\r\n\r\n") - 4)
        _receive(peer, left)
        peer.sendall(_ANSWER)
        for _ in range(_REQUESTS):
            _receive(peer, len(_REQUEST))
            peer.sendall(_ANSWER)


def _receive(peer: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(1 << 18))
    while size:
        got = peer.recv_into(buffer[: min(size, len(buffer))])
        if not got:
            raise RuntimeError("the connection ended too soon")
        size -= got


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", type=int, metavar="TARGET_PORT")
    parser.add_argument("--round-trip-ms", type=float, default=80.0)
    parser.add_argument("--rate", type=float, default=5e6, help="bytes a second per target and direction; 0: no limit")
    parser.add_argument("--shapes", type=json.loads, help="JSON: a shape for each port, in place of the two above")
    parser.add_argument("--ceiling", action="store_true")
    options = parser.parse_args()
    if options.ceiling:
        found = ceiling()
        print(f"one core carries {found.megabytes:.0f} MB/s, or {found.requests:.0f} requests/s")
        return
    same = Shape(options.round_trip_ms / 1000, options.rate, options.rate)
    shapes = [Shape(**s) for s in options.shapes] if options.shapes else [same] * len(options.targets)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options.targets, shapes))


if __name__ == "__main__":
    main()
