"""Cuts files into chunks: content-defined (FastCDC, Xia et al. 2016, by `pyfastcdc`) with a secret seed, or fixed.

Which sizes a file gets is a function of its length and of the agreed config alone, never of the device
(architecture.md, D1), so that every device cuts the same bytes at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

SEED_MAX = (1 << 63) - 1  # pyfastcdc doubles the seed in 64 bits: of a larger one the top is dropped
READ_BYTES = 8 << 20  # what is held of a file at a time, besides the largest chunk


class SizeClass(NamedTuple):
    """Chunk sizes in bytes for files of up to `file_bytes_max` (None: any). Fixed chunks have `average_bytes`."""

    file_bytes_max: int | None
    min_bytes: int
    average_bytes: int
    max_bytes: int
    kind: Literal["cdc", "fixed"] = "cdc"


class Chunker:
    """Cuts one file at a time. `whole_bytes_max`: files up to this size are one chunk."""

    def __init__(self, whole_bytes_max: int, classes: Sequence[SizeClass], seed: int) -> None:
        if not classes or classes[-1].file_bytes_max is not None:
            raise ValueError("the last size class must take files of any size")
        self.whole_bytes_max = whole_bytes_max
        self._seed = seed & SEED_MAX
        self._classes = tuple(classes)

    def cut(self, read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
        """The chunks of a file of `size` bytes, in order. `read(n)` returns up to n bytes, b"" at the end.

        Ends with what `read` gives, be it more or less than `size`: the caller compares.
        """
        if size <= self.whole_bytes_max:
            data = _read_full(read, size + 1)
            if data:
                yield data
            return
        number = next(i for i, c in enumerate(self._classes) if c.file_bytes_max is None or size <= c.file_bytes_max)
        most = self._classes[number].max_bytes
        if self._classes[number].kind == "fixed":
            step = self._classes[number].average_bytes
            while data := _read_full(read, step):
                yield data
            return
        cutter = _cutter(self._classes[number], self._seed)
        rest = b""
        while True:
            buffer = _read_full(read, READ_BYTES)
            last = not buffer
            if rest:
                buffer = rest + buffer
            rest = b""  # one buffer at a time: a large chunk has 16 MiB
            done = yield from _cut_buffer(cutter, buffer, most, last)
            if last:
                return
            rest = buffer[done:]
            del buffer


@lru_cache(maxsize=64)
def _cutter(c: SizeClass, seed: int) -> FastCDC:
    """The library is loaded with the first file that is cut."""
    from pyfastcdc import FastCDC

    return FastCDC(c.average_bytes, min_size=c.min_bytes, max_size=c.max_bytes, seed=seed)


def _cut_buffer(cutter: FastCDC, buffer: bytes, most: int, last: bool) -> Generator[bytes, None, int]:
    """The chunks that are known to end in this buffer; returns how many bytes they have together."""
    view = memoryview(buffer)
    done = 0
    for chunk in cutter.cut_buf(view):
        end = chunk.offset + chunk.length
        # a cut at the buffer's end is only known to be one when nothing follows or the chunk is full
        if end == len(buffer) and not last and chunk.length < most:
            break
        yield bytes(view[chunk.offset : end])
        done = end
    return done


def _read_full(read: Callable[[int], bytes], n: int) -> bytes:
    """Reads until n bytes or the end."""
    data = read(n)
    if len(data) == n or not data:
        return data
    parts = [data]
    have = len(data)
    while have < n and (piece := read(n - have)):
        parts.append(piece)
        have += len(piece)
    return b"".join(parts)
