"""What each backend's line bears: latency and bandwidth up and down, from the last few answers.

Pure: it is told of calls and times, and measures nothing itself. The mean is the harmonic one of the last five samples,
as HyCloud has it (E et al., eq. 4): one lucky sample raises it little.

Several calls at once share a backend's line, so the time that one of them took says little about the line. A call's
sample of the bandwidth is therefore what the *line* carried while that call's bytes were on it: its own bytes; of calls
that ended before, as much as fell into that time, each taken as even over its own; and of those still under way, as
much as the call itself got in the time that it shared with them, for a line is shared evenly. A call's bytes are on the
line from its begin on, less the latency, which is learned from small answers.

What is known is kept between runs in a small note; see `encode`. It is a hint and no more: a wrong estimate costs time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from metasync.codec import Reader, text16, u8, u16, u32, u64
from metasync.config import BACKENDS_MAX, NAME_BYTES_MAX
from metasync.local import state_keys
from metasync.runtime.effects import Now, Op, Reply
from metasync.runtime.sizes import PROMPT_BYTES_MAX

FORMAT: Final = 1
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
        """In how many seconds all calls under way may have been answered, as far as lines are known; else None.

        Rather too few: each line is taken to bear half as much above its mean as it bore at its best of late.
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
        """How long the slowest line that is known takes for a small answer; 0.0 where none is."""
        lines = [line for (_, way), line in list(self._lines.items()) if way is direction]
        return max((latency for line in lines if (latency := line.estimate().latency_s) is not None), default=0.0)

    def encode(self) -> bytes:
        """A note of all that is known: `u8` format, `u16` count, then by name and direction, ascending, `text16` name,
        `u8` direction, `u8` count and that many `u32` latencies in microseconds, `u8` count and `u64` bytes a second.
        """
        known = sorted((k, v) for k, v in self._rounded().items() if v[0] or v[1])[:BACKENDS_MAX]
        out = [u8(FORMAT), u16(len(known))]
        for (name, direction), (latencies, rates) in known:
            out += [text16(name), u8(direction), u8(len(latencies)), *map(u32, latencies)]
            out += [u8(len(rates)), *map(u64, rates)]
        return b"".join(out)

    def _rounded(self) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
        return {
            (name, int(direction)): ([max(1, round(s * 1e6)) for s in v.latencies], [max(1, round(r)) for r in v.rates])
            for (name, direction), v in self._lines.items()
            if 0 < len(name.encode()) <= NAME_BYTES_MAX
        }

    @classmethod
    def decode(cls, data: bytes) -> Estimates:
        """Reads a note. `FormatError` for anything that `encode` does not write."""
        r = Reader(data, "estimates")
        if r.u8() != FORMAT:
            raise r.fail("unknown format")
        out = cls()
        last: tuple[str, int] | None = None
        for _ in range(r.count(r.u16(), 5)):
            key = r.text16(NAME_BYTES_MAX), r.u8()
            if key[1] not in tuple(Direction) or not key[0] or (last is not None and key <= last):
                raise r.fail("lines out of order, or of no direction")
            latencies = tuple(r.u32() / 1e6 for _ in range(_few(r)))
            rates = tuple(float(r.u64()) for _ in range(_few(r)))
            most = max(latencies, default=0.0) > LATENCY_MAX_S or max(rates, default=0.0) > BYTES_PER_S_MAX
            if most or not (latencies or rates) or not all((*latencies, *rates)):
                raise r.fail("no sample, or an impossible one")
            out._lines[key[0], Direction(key[1])] = _Line(latencies, rates)
            last = key
        if len(out._lines) > BACKENDS_MAX:
            raise r.fail("too many lines")
        r.end()
        return out


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


def _few(r: Reader) -> int:
    n = r.u8()
    if n > SAMPLES:
        raise r.fail(f"{n} samples")
    return n


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
