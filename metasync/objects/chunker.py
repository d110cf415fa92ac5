"""Where files are cut into chunks, and long lists into nodes (architecture.md, D1).

Files: content-defined (FastCDC, Xia et al. 2016, by `pyfastcdc`) with a secret seed, or fixed. Which sizes a file gets
is a function of its length and of the agreed config alone, so that every device cuts the same bytes at the same places.

Lists of encoded items: a node ends after an item whose 64 pseudo-random bits fall below its length in proportion to
`NODE_BYTES_SPREAD`, once the node has `NODE_BYTES_MIN`; at `NODE_BYTES_MAX` it ends anyway. So an edit changes the node
it falls in and, rarely, the next one or two, whatever the list's length.
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


NODE_BYTES_WHOLE = 64 << 10  # a list up to this size is one node: most directories are
NODE_BYTES_MIN = 16 << 10
NODE_BYTES_SPREAD = 32 << 10  # expected further length after the minimum
NODE_BYTES_MAX = 128 << 10
LEVELS_MAX = 8  # 128 KiB nodes with a fan-out of hundreds: 8 levels hold more than any disk


def cut(items: Sequence[bytes], names: Sequence[bytes], bits: Callable[[bytes], int]) -> list[tuple[int, int]]:
    """Half-open ranges of `items`, one per node, at least one. `bits(name)`: 64 pseudo-random bits of an item."""
    if sum(map(len, items)) <= NODE_BYTES_WHOLE:
        return [(0, len(items))]
    out = cut_full(items, names, bits)
    start = out[-1][1] if out else 0
    if start < len(items):
        out.append((start, len(items)))
    return out


def cut_full(items: Sequence[bytes], names: Sequence[bytes], bits: Callable[[bytes], int]) -> list[tuple[int, int]]:
    """The same of a list that is not one node, without what is left at its end: items behind it may belong to that."""
    out: list[tuple[int, int]] = []
    start = size = 0
    for i, item in enumerate(items):
        size += len(item)
        if size >= NODE_BYTES_MIN and (size >= NODE_BYTES_MAX or bits(names[i]) * NODE_BYTES_SPREAD < len(item) << 64):
            out.append((start, i + 1))
            start, size = i + 1, 0
    return out
