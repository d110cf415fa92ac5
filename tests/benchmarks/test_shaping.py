"""The proxy that benchmarks are run through: what it counts, what it leaves alone, and how long things take on it.

Times are exact because they are virtual: client, proxy and target share an event loop whose clock jumps to the next
timer when no socket has anything to say, and loopback delivers before `send` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import shaping
from effort import examples
from http_requests import HEAD_BYTES_MAX, RequestStream
from hypothesis import given, settings
from hypothesis import strategies as st

ROUND_TRIP_S = 0.08
RATE = 5e6
SLACK_S = 0.001  # event loops fire a timer up to a clock tick early


# --- counting ---

HEADER_NAMES = ("content-length", "Content-Length", "CONTENT-LENGTH")
DECOYS = (b"GET /x HTTP/1.1\r\n\r\n", b"0\r\n\r\nPUT /y HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"\r\n\r\n", b"")


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """One request and its method; its body may look like more requests."""
    method = draw(st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]))
    line = f"{method} /b/{draw(st.integers(0, 99))}?list-type=2 HTTP/1.1\r\nHost: h\r\n".encode()
    if method not in ("PUT", "POST"):
        return method, line + b"\r\n"
    body = draw(st.sampled_from(DECOYS)) + draw(st.binary(max_size=60)) + draw(st.sampled_from(DECOYS))
    expect = b"Expect: 100-continue\r\n" if draw(st.booleans()) else b""
    if draw(st.booleans()):
        length = f"{draw(st.sampled_from(HEADER_NAMES))}: {len(body)}\r\n".encode()
        return method, line + expect + length + b"X: y\r\n\r\n" + body
    cut = draw(st.integers(0, len(body)))
    pieces = [p for p in (body[:cut], body[cut:]) if p]
    chunks = b"".join(b"%x;chunk-signature=ab\r\n%b\r\n" % (len(p), p) for p in pieces)
    trailer = draw(st.sampled_from([b"", b"x-amz-checksum: 0\r\n"]))
    return method, line + expect + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


def fed(stream: RequestStream, data: bytes, cuts: list[int]) -> RequestStream:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    for start, end in itertools.pairwise(places):
        stream.feed(data[start:end])
    return stream


@settings(max_examples=examples(150))
@given(st.lists(requests(), min_size=1, max_size=6), st.lists(st.integers(0, 2000), max_size=30))
def test_requests_are_counted_wherever_the_bytes_are_cut(sent: list[tuple[str, bytes]], cuts: list[int]) -> None:
    stream = fed(RequestStream(), b"".join(data for _, data in sent), cuts)
    assert not stream.opaque
    assert stream.methods == Counter(method for method, _ in sent)


PUT = b"PUT /a HTTP/1.1\r\nContent-Length: 40\r\nExpect: 100-continue\r\n\r\n"
CHUNKED_PUT = b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
NEXT = b"GET /the/next/on HTTP/1.1\r\nHost: a.b\r\n\r\n"
assert len(NEXT) == 40


@pytest.mark.parametrize("put", [PUT, CHUNKED_PUT])
@pytest.mark.parametrize("cut", range(len(NEXT)))
def test_a_refused_body_is_not_waited_for(put: bytes, cut: int) -> None:
    stream = fed(RequestStream(), put, [20])
    assert stream.awaits_answer
    stream.answered(b"HTTP/1.1 4")
    fed(stream, NEXT + NEXT, [cut])
    assert not stream.opaque
    assert stream.methods == {"PUT": 1, "GET": 2}


@pytest.mark.parametrize("answer", [[b"HTTP/1.1 100 Continue\r\n\r\n"], [b"HTTP", b"/1.1 ", b"100 Continue\r\n"], []])
def test_a_body_that_looks_like_a_request_is_a_body_unless_refused(answer: list[bytes]) -> None:
    stream = RequestStream()
    stream.feed(PUT)
    for data in answer:
        stream.answered(data)
    stream.feed(NEXT)
    stream.feed(NEXT)
    assert stream.methods == {"PUT": 1, "GET": 1}


def test_a_body_that_comes_in_spite_of_a_refusal_is_a_body() -> None:
    stream = RequestStream()
    stream.feed(PUT)
    stream.answered(b"HTTP/1.1 503 Slow Down\r\n")
    stream.feed(b"x" * 40)
    stream.feed(NEXT)
    assert stream.methods == {"PUT": 1, "GET": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and what else TLS says\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * (HEAD_BYTES_MAX + 1),
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    ],
)
def test_what_is_no_http_is_said(data: bytes) -> None:
    stream = RequestStream()
    stream.feed(data)
    before = stream.methods.copy()
    stream.feed(NEXT)
    assert stream.opaque
    assert stream.methods == before


# --- time ---


class JumpingSelector(selectors.DefaultSelector):
    """Never waits: when nothing is ready, the clock jumps to when the next timer is due."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            self.now += max(0.0, timeout)
        return ready


def simulated(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with contextlib.closing(loop):
        loop.run_until_complete(asyncio.wait_for(main(), 3600))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A target: takes `up size, down size` as two numbers on a line, then that many bytes, and sends that many."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while line := await reader.readline():
            up, down = map(int, line.split())
            await reader.readexactly(up)
            writer.write(b"d" * down)
    writer.close()


@contextlib.asynccontextmanager
async def world(round_trip_s: float, rate: float, **more: Any) -> Any:
    target = await asyncio.start_server(more.pop("target", answer), "127.0.0.1", 0)
    shape = shaping.Shape(round_trip_s, **{"up": rate, "down": rate, **more})
    backend = shaping.Backend(target.sockets[0].getsockname()[1], shape)
    proxy = await shaping.listen(backend)
    yield backend, proxy.sockets[0].getsockname()[1]
    proxy.close()
    target.close()
    await asyncio.sleep(1)  # what is under way ends


class Client:
    """A connection through the proxy. `exchange` is how long it takes to send and to get so many bytes."""

    @classmethod
    async def to(cls, port: int) -> Client:
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def exchange(self, up: int = 0, down: int = 1) -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self.writer.write(b"%-10d %-10d\n" % (up, down) + b"u" * up)
        await self.reader.readexactly(down)
        return loop.time() - start

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def about(seconds: float, tolerance_s: float = SLACK_S) -> Any:
    return pytest.approx(seconds, abs=tolerance_s)


@pytest.mark.parametrize("round_trip_s", [0.08, 0.3])
def test_a_round_trip_and_one_more_for_a_new_connection(round_trip_s: float) -> None:
    async def main() -> None:
        async with world(round_trip_s, 0) as (_, port):
            client = await Client.to(port)
            assert await client.exchange() == about(2 * round_trip_s)
            assert await client.exchange() == about(round_trip_s)
            await asyncio.sleep(5)
            assert await client.exchange(1000, 1000) == about(round_trip_s)
            await client.close()

    simulated(main)


def test_an_end_without_data_takes_its_time_too() -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, RATE) as (_, port):
            client = await Client.to(port)
            await client.exchange()
            start = asyncio.get_running_loop().time()
            client.writer.write_eof()
            assert await client.reader.read() == b""
            assert asyncio.get_running_loop().time() - start == about(ROUND_TRIP_S)
            await client.close()

    simulated(main)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_rate_in_each_direction(way: str) -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, RATE) as (_, port):
            client = await Client.to(port)
            await client.exchange()
            assert await client.exchange(**{way: 10_000_000}) == about(ROUND_TRIP_S + 2.0, 0.01)
            await client.close()

    simulated(main)


def test_connections_share_a_rate_and_small_things_pass_between_large_ones() -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, RATE) as (_, port):
            clients = [await Client.to(port) for _ in range(8)]
            for client in clients:
                await client.exchange()
            loop = asyncio.get_running_loop()
            start = loop.time()
            large = [asyncio.ensure_future(c.exchange(down=1_000_000)) for c in clients[:-1]]
            await asyncio.sleep(0.3)
            small = await clients[-1].exchange()
            took = await asyncio.gather(*large)
            assert max(took) == about(ROUND_TRIP_S + 1.4, 0.01)
            assert min(took) > 0.7, "0.28 s alone: none of them got much more than its share"
            assert loop.time() - start == about(max(took))
            ahead = shaping.AHEAD_S + len(large) * shaping.SHAPED_PIECE_BYTES / RATE
            assert ROUND_TRIP_S <= small + SLACK_S <= ROUND_TRIP_S + ahead + 2 * SLACK_S
            for client in clients:
                await client.close()

    simulated(main)


def test_directions_and_backends_do_not_share() -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, RATE) as (_, one), world(ROUND_TRIP_S, RATE) as (_, two):
            clients = [await Client.to(port) for port in (one, one, two, two)]
            for client in clients:
                await client.exchange()
            ways = [{"up": 5_000_000}, {"down": 5_000_000}] * 2
            took = await asyncio.gather(*(c.exchange(**way) for c, way in zip(clients, ways, strict=True)))
            assert took == [about(ROUND_TRIP_S + 1.0, 0.01)] * 4
            for client in clients:
                await client.close()

    simulated(main)


def test_a_rate_of_its_own_for_each_direction() -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, 0, up=1e6, down=4e6) as (_, port):
            client = await Client.to(port)
            await client.exchange()
            assert await client.exchange(up=4_000_000) == about(ROUND_TRIP_S + 4.0, 0.02)
            assert await client.exchange(down=4_000_000) == about(ROUND_TRIP_S + 1.0, 0.02)
            await client.close()

    simulated(main)


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A target that answers every request, and gives leave to send a body where it is asked for."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int((re.findall(rb"Content-Length: (\d+)", head) or [b"0"])[0])
            if b"Expect" in head:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def asked(client: Client, line: bytes, body: int = 0, expect: bool = False) -> float:
    """How long a request takes until it is answered."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    client.writer.write(
        b"%b HTTP/1.1\r\nContent-Length: %d\r\n%b\r\n" % (line, body, b"Expect: 100-continue\r\n" * expect)
    )
    if expect:
        assert b"100" in await client.reader.readuntil(b"\r\n\r\n")
    client.writer.write(b"b" * body)
    assert b"200" in await client.reader.readuntil(b"\r\n\r\n")
    return loop.time() - start


def test_a_service_takes_its_time_by_method() -> None:
    async def main() -> None:
        takes = {"GET": 0.3, "PUT": 0.5, "LIST": 0.4}
        async with world(ROUND_TRIP_S, 1e6, service_s=takes, target=http) as (_, port):
            client = await Client.to(port)
            await asked(client, b"DELETE /a")
            for _ in range(2):
                assert await asked(client, b"GET /a") == about(ROUND_TRIP_S + 0.3)
                assert await asked(client, b"GET /?list-type=2&prefix=a") == about(ROUND_TRIP_S + 0.4)
                assert await asked(client, b"HEAD /a") == about(ROUND_TRIP_S)
                assert await asked(client, b"PUT /a", body=200_000) == about(ROUND_TRIP_S + 0.2 + 0.5, 0.01)
            assert await asked(client, b"PUT /a", expect=True, body=10) == about(2 * ROUND_TRIP_S + 0.5), (
                "once, not twice"
            )
            await client.close()

    simulated(main)


def test_a_services_time_holds_up_nobody_else_and_scatters() -> None:
    async def main() -> None:
        async with world(ROUND_TRIP_S, 5e6, service_s={"PUT": 1.0}, jitter=0.5, target=http) as (_, port):
            slow, quick = await Client.to(port), await Client.to(port)
            for client in (slow, quick):
                await asked(client, b"GET /a")
            waiting = asyncio.ensure_future(asked(slow, b"PUT /a", body=1000))
            assert await asked(quick, b"GET /a") == about(ROUND_TRIP_S, 0.01)
            took = [await waiting] + [await asked(slow, b"PUT /a", body=1) for _ in range(60)]
            assert len(set(took)) > 50
            assert 0.8 < sorted(took)[30] - ROUND_TRIP_S < 1.25, "the median stays what it was without jitter"
            for client in (slow, quick):
                await client.close()

    simulated(main)


def test_an_idle_line_saves_nothing_up() -> None:
    line = shaping.Line(1000.0)
    assert line.book(500, now=10.0) == 10.5
    assert line.book(500, now=10.1) == 11.0
    assert line.book(500, now=60.0) == 60.5
    assert shaping.Line(0).book(10**9, now=3.0) == 3.0


# --- the process: nothing altered, nothing lost, everything counted ---


class Recorder:
    """A target on threads that reads to the end and answers with what it was given to say; it keeps what it read."""

    def __init__(self, say: bytes) -> None:
        self.say = say
        self.heard: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.socket.accept()[0],), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            self.heard.append(read_all(peer))
            peer.sendall(self.say)


def read_all(peer: socket.socket) -> bytes:
    return b"".join(iter(lambda: peer.recv(1 << 16), b""))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    target = Recorder(random.Random(1).randbytes(3_000_000))
    yield target
    target.socket.close()


@pytest.mark.parametrize("shape", [{}, {"round_trip_s": 0.02, "rate": 50e6}])
def test_nothing_is_altered_and_all_is_counted(recorder: Recorder, shape: dict[str, float]) -> None:
    bodies = [random.Random(i).randbytes(200_000 + i) for i in range(6)]
    sent = [
        b"GET /%d HTTP/1.1\r\n\r\nPUT /b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (i, len(b), b)
        for i, b in enumerate(bodies)
    ]
    got: list[bytes] = []

    def talk(port: int, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            got.append(read_all(client))

    with shaping.running([recorder.port, recorder.port], **shape) as proxy:
        threads = [threading.Thread(target=talk, args=(proxy.ports[0], data)) for data in sent]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before, idle = proxy.counted()
        talk(proxy.ports[0], sent[0])
        more = proxy.counted()[0].since(before)
    assert sorted(recorder.heard) == sorted([*sent, sent[0]])
    assert got == [recorder.say] * 7
    assert before == shaping.Counted(
        Counter(GET=6, PUT=6),
        before.targets,
        up_bytes=sum(map(len, sent)),
        down_bytes=6 * len(recorder.say),
        connections=6,
    )
    assert more == shaping.Counted(
        Counter(GET=1, PUT=1), more.targets, up_bytes=len(sent[0]), down_bytes=len(recorder.say), connections=1
    )
    assert more.targets.total() == 2
    assert idle == shaping.Counted()


def test_a_target_that_is_away_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with shaping.running([port], round_trip_s=0.01, rate=1e6) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.ports[0]), 20)
        with client, contextlib.suppress(ConnectionError):
            client.sendall(NEXT)
            assert client.recv(100) == b""
        assert proxy.counted()[0].connections == 1


def test_a_client_that_vanishes_is_told_to_the_target(recorder: Recorder) -> None:
    with shaping.running([recorder.port], round_trip_s=0.01, rate=1e8) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.ports[0]), 20) as client:
            client.sendall(PUT)
        with socket.create_connection(("127.0.0.1", proxy.ports[0]), 20) as client:
            client.sendall(NEXT)
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == recorder.say
        while len(recorder.heard) < 2:  # for ever, if the proxy keeps the first one's end to itself
            time.sleep(0.01)
        assert sorted(recorder.heard) == [NEXT, PUT]


def test_the_proxy_says_what_it_carries() -> None:
    found = shaping.ceiling()
    assert found.megabytes > 0
    assert found.requests > 0
