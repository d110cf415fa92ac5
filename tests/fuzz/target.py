"""What a fuzz target is, and how one input is judged.

A target takes bytes and ends in one of three ways: it accepts them, it refuses them with an error it may raise, or it
did something it must not, which is a *finding*: another exception, a value that encodes to other bytes, a broken
invariant (an assertion of the target's own), or more memory than the input can justify.
"""

from __future__ import annotations

import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from metasync.errors import FormatError, MetaSyncError, UpgradeError

ACCEPTED = "accepted"
SOME, FEW = 40, 8  # `tries` of targets whose inputs cost a millisecond, or fifty
INPUT_BYTES_MAX = 16 << 10  # long enough for every structure; a longer input only takes longer
MEMORY_BASE_BYTES = 1 << 20  # what any decoder may allocate, whatever it is given
MEMORY_PER_BYTE = 400  # the worst honest ratio is an entry of a directory: 60 bytes become 500
PART_BYTES_MAX = 0xFFFF


@dataclass(frozen=True)
class Target:
    """`decode` takes the input; `encode` (if given) must give the accepted bytes again.

    allowed  errors that refuse an input; all others are findings
    room     how many bytes an input may make the decoder hold, beyond the usual ratio (frames unpack)
    tries    seeded mutations in the plain tests: fewer where an input costs milliseconds (signatures, files, tasks)
    """

    name: str
    decode: Callable[[bytes], Any]
    seeds: Callable[[], Sequence[bytes]]
    encode: Callable[[Any], bytes] | None = None
    allowed: tuple[type[MetaSyncError], ...] = (FormatError, UpgradeError)
    room: Callable[[bytes], int] = lambda _: 0
    tries: int = 300


class NotCanonicalError(AssertionError):
    """A value that was accepted encodes to other bytes."""


class HungryError(AssertionError):
    """An input made its decoder hold more memory than it can justify."""


def judge(target: Target, data: bytes) -> str:
    """`accepted`, or the name of the error that refused the input. Raises the finding."""
    try:
        value = target.decode(data)
    except target.allowed as e:
        assert isinstance(e.message, str), "an error without a message"
        assert e.message
        return type(e).__name__
    if target.encode is not None:
        again = target.encode(value)
        if again != data:
            raise NotCanonicalError(f"accepted {data[:80].hex()}, which is written {again[:80].hex()}")
    return ACCEPTED


def judge_memory(target: Target, data: bytes) -> str:
    """`judge`, with Python's allocations counted: ten times slower."""
    judge(target, data)  # what is imported or cached at a first call is nobody's fault
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        verdict = judge(target, data)
        held = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    allowed = MEMORY_BASE_BYTES + MEMORY_PER_BYTE * len(data) + target.room(data)
    if held > allowed:
        raise HungryError(f"{len(data)} bytes made it hold {held} bytes, at most {allowed} expected")
    return verdict


def signature(error: BaseException) -> str:
    """Findings with one signature have one cause: the class, and the last line of the product that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/metasync/" in f.filename] or list(frames)
    last = ours[-1]
    return f"{type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno} {last.name}"


@contextmanager
def certain(what: str) -> Iterator[None]:
    """For what must work once an input was accepted: an error of ours is then a finding, no refusal."""
    try:
        yield
    except MetaSyncError as e:
        raise AssertionError(f"{what}: {e.message}") from e


# --- inputs of several parts


def parts_of(data: bytes) -> list[bytes]:
    """An input as a list: byte strings behind their u16 length, until the bytes run out. Every input is one."""
    out, at = [], 0
    while at + 2 <= len(data):
        n = int.from_bytes(data[at : at + 2], "big")
        out.append(data[at + 2 : at + 2 + n])
        at += 2 + n
    return out


def joined_parts(parts: Sequence[bytes]) -> bytes:
    assert all(len(p) <= PART_BYTES_MAX for p in parts)
    return b"".join(len(p).to_bytes(2, "big") + p for p in parts)


@contextmanager
def replaced(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes set for a while: (owner, name, value)."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
