"""What each backend's line bears: latency and bandwidth up and down, from the last few answers.

Pure: it is told of calls and times, and measures nothing itself. The mean is the harmonic one of the last five samples,
as HyCloud has it (E et al., eq. 4): one lucky sample raises it little.

Several calls share a backend's line, so the time of one call says little about the line. A call's bandwidth sample is
therefore what the *line* carried while that call's bytes were on it. That is its own bytes, the share of ended calls
that falls into that time, and for calls still under way as much as this call got meanwhile: a line is shared evenly. A
call's bytes are on the line from its begin on, less the latency, which small answers teach.

Estimates are kept between runs (`encode`). They are hints: a wrong one costs time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from metasync.config import BACKENDS_MAX
from metasync.errors import FormatError
from metasync.local import state_keys
from metasync.runtime.effects import Now, Op, Reply
from metasync.runtime.sizes import PROMPT_BYTES_MAX

SAMPLES: Final = 5  # K of eq. 4
LARGE_BYTES_LEAST: Final = 256 << 10  # one of fewer is mostly latency, and says little of the bandwidth
DATA_SHARE_LEAST: Final = 0.1  # of a call's time that is its bytes', however long the latency is thought to be
RECENT_MAX: Final = 64  # ended calls that others may have shared the line with: eight connections, eight calls each
LATENCY_MAX_S: Final = 3600.0
BYTES_PER_S_MAX: Final = 1 << 50


class Direction(IntEnum):
    UP = 0
    DOWN = 1


class Estimate(NamedTuple):
    """What is known of one line; None: nothing yet."""

    latency_s: float | None = None
    bytes_per_s: float | None = None


class Call(NamedTuple):
    """A call under way, to be handed back when it ends."""

    backend: str
    direction: Direction
    number: int


class _Span(NamedTuple):
    begin: float
    end: float
    size: int


@dataclass
class _Line:
    latencies: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    under_way: dict[int, tuple[float, int]] = field(default_factory=dict)  # by number: begun at, size
    recent: list[_Span] = field(default_factory=list)  # ended calls, as the time that their bytes were on the line

    def estimate(self) -> Estimate:
        return Estimate(_harmonic(self.latencies), _harmonic(self.rates))


@dataclass
class Estimates:
    """Learns from every call that it is told of. One thread tells it; any may ask."""

    _lines: dict[tuple[str, Direction], _Line] = field(default_factory=dict)
    _calls: int = 0

    def of(self, backend: str, direction: Direction) -> Estimate:
        line = self._lines.get((backend, direction))
        return line.estimate() if line is not None else Estimate()

    def begin(self, backend: str, direction: Direction, size: int, now: float) -> Call:
        """A call that is expected to carry `size` bytes is sent. Every one must be ended or dropped."""
        self._calls += 1
        line = self._lines.setdefault((backend, direction), _Line())
        line.under_way[self._calls] = (now, size)
        return Call(backend, direction, self._calls)

    def drop(self, call: Call) -> None:
        """A call failed, or nobody waits for it any more: it teaches nothing."""
        self._lines[call.backend, call.direction].under_way.pop(call.number, None)

    def end(self, call: Call, size: int, seconds: float, now: float) -> None:
        """A call was answered now; it carried `size` bytes, and its backend took `seconds` of the time."""
        line = self._lines[call.backend, call.direction]
        del line.under_way[call.number]
        if not 0 < seconds <= LATENCY_MAX_S:
            return  # nobody measured it
        if size <= PROMPT_BYTES_MAX:
            line.latencies = (*line.latencies, seconds)[-SAMPLES:]
        latency = _harmonic(line.latencies) or 0.0
        span = _Span(now - max(seconds - latency, seconds * DATA_SHARE_LEAST), now, size)
        if size >= LARGE_BYTES_LEAST:
            rate = min(_carried(line, span, latency) / (span.end - span.begin), BYTES_PER_S_MAX)
            line.rates = (*line.rates, rate)[-SAMPLES:]
        first = min((at for at, _ in line.under_way.values()), default=now)
        line.recent = [s for s in (*line.recent, span) if s.end > first][-RECENT_MAX:]

    def left_s(self, direction: Direction, now: float) -> float | None:
        """Seconds until all calls under way may be answered; None if a line is unknown.

        Rather too few: each line counts with the mean of its average and its best rate.
        """
        most = 0.0
        for (_, way), line in list(self._lines.items()):
            under_way = list(line.under_way.values())
            if way is not direction or not under_way:
                continue
            latency, mean = line.estimate()
            if mean is None:
                return None
            rate = (mean + max(line.rates)) / 2
            first = min(begun for begun, _ in under_way) + (latency or 0.0)
            size = float(sum(size for _, size in under_way))
            for ended in line.recent:  # they shared the line since
                size += ended.size * max(0.0, ended.end - max(ended.begin, first)) / (ended.end - ended.begin)
            most = max(most, first + size / rate - now)
        return most

    def latency_s(self, direction: Direction) -> float:
        """The latency of the slowest known line; 0.0 where none is known."""
        lines = [line for (_, way), line in list(self._lines.items()) if way is direction]
        return max((latency for line in lines if (latency := line.estimate().latency_s) is not None), default=0.0)

    def pays(self, lines: Collection[str], *, fetched: int, whole: int, delta: int) -> bool:
        """Whether fetching a base and storing a delta takes less time than storing a chunk whole, as far as all these
        lines are known (HyCloud, eq. 2, for both directions on the client's side).

        Bytes: `fetched` come from one of them, `whole` or `delta` are all copies together, and go to all at once.
        """
        ups, downs = ([self.of(name, way) for name in lines] for way in Direction)
        up = sum(line.bytes_per_s or 0.0 for line in ups)
        down = max((line.bytes_per_s or 0.0 for line in downs), default=0.0)
        if not down or not all(line.bytes_per_s for line in ups):
            return False
        return self.latency_s(Direction.DOWN) + fetched / down + delta / up < whole / up

    def encode(self) -> bytes:
        """All that is known, as JSON: [name, direction, latencies in microseconds, bytes a second] for each line."""
        lines = [
            [name, int(way), [max(1, round(s * 1e6)) for s in v.latencies], [max(1, round(r)) for r in v.rates]]
            for (name, way), v in sorted(self._lines.items())
            if name and (v.latencies or v.rates)
        ]
        return json.dumps(lines[:BACKENDS_MAX]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Estimates:
        """Reads a note. `FormatError` for anything that `encode` does not write."""
        out = _NOTE.decode(data)
        if out.encode() != data:
            raise FormatError("estimates: not as they are written")
        return out


def _read(lines: Any) -> Estimates:
    out = Estimates()
    for name, way, latencies, rates in lines:
        if max(len(latencies), len(rates)) > SAMPLES or max(rates, default=0) > BYTES_PER_S_MAX:
            raise ValueError("samples out of bounds")
        line = _Line(tuple(us / 1e6 for us in latencies), tuple(map(float, rates)))
        if max(line.latencies, default=0.0) > LATENCY_MAX_S:
            raise ValueError("a latency out of bounds")
        out._lines[str(name), Direction(way)] = line
    return out


_NOTE: Final = state_keys.json_codec("estimates", _read)


def timed(estimates: Estimates, op: Op, size: int) -> Generator[Any, Any, Reply]:
    """Carries out one `put` or `get` of about `size` bytes, and learns from it."""
    direction = Direction.DOWN if op.kind == "get" else Direction.UP
    call = estimates.begin(op.backend, direction, size, (yield Now()))
    try:
        reply: Reply = yield op
        if reply.error is None:
            carried = len(reply.value) if op.kind == "get" else len(op.data)
            estimates.end(call, carried, reply.seconds, (yield Now()))
    finally:
        estimates.drop(call)
    return reply


def _harmonic(samples: tuple[float, ...]) -> float | None:
    return len(samples) / sum(1 / s for s in samples) if samples else None


def _carried(line: _Line, span: _Span, latency: float) -> float:
    """Bytes that a line carried while one call's were on it."""
    took = span.end - span.begin
    own_rate = span.size / took
    carried = float(span.size)
    for other in line.recent:
        shared = min(other.end, span.end) - max(other.begin, span.begin)
        if shared > 0:
            carried += other.size * shared / (other.end - other.begin)
    for begun, size in line.under_way.values():
        shared = span.end - max(begun + latency, span.begin)
        if shared > 0:
            carried += min(float(size), own_rate * shared)
    return carried


ESTIMATES_KEY: Final = state_keys.ESTIMATES_KEY.holding(Estimates.encode, Estimates.decode)
