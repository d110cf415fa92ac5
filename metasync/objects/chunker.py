"""Where files are cut into chunks, and long lists into nodes (architecture.md, D1).

Files: content-defined with a secret seed, or fixed. Which sizes a file gets is a function of its length and of the
agreed config alone, so that every device cuts the same bytes at the same places. A content-defined cut takes two steps.
FastCDC (Xia et al. 2016, by `pyfastcdc`) gives candidates, sixteen to a chunk; a keyed hash of the bytes before a
candidate says whether it is a cut. The library's own seed can be computed from a few cuts, the hash's key cannot.

Lists of encoded items: a node ends after an item whose 64 pseudo-random bits fall below its length in proportion to
`NODE_BYTES_SPREAD`, once the node has `NODE_BYTES_MIN`; at `NODE_BYTES_MAX` it ends anyway. So an edit changes the node
it falls in and, rarely, the next one or two, whatever the list's length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from blake3 import blake3

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

READ_BYTES = 8 << 20  # what is held of a file at a time, besides the largest chunk
CANDIDATES = 16  # to an average chunk: at so many the hash takes less time than FastCDC
CANDIDATE_BYTES_LEAST = 64, 256, 1024  # the library takes no smaller least, average and largest size
WINDOW_BYTES = 64  # before a candidate, of which the hash is taken: no candidate is nearer to the one before
_LIBRARY_SEED_MAX = (1 << 63) - 1  # pyfastcdc doubles the seed in 64 bits: of a larger one the top is dropped


class SizeClass(NamedTuple):
    """Chunk sizes in bytes for files of up to `file_bytes_max` (None: any). Fixed chunks have `average_bytes`."""

    file_bytes_max: int | None
    min_bytes: int
    average_bytes: int
    max_bytes: int
    kind: Literal["cdc", "fixed"] = "cdc"


def candidate_bytes(average_bytes: int) -> tuple[int, int, int]:
    """Least, average and largest distance of the candidates for cuts between chunks of `average_bytes`."""
    average = average_bytes // CANDIDATES
    least, usual, most = CANDIDATE_BYTES_LEAST
    return max(average // 4, least), max(average, usual), max(average * 4, most)


class Chunker:
    """Cuts one file at a time. `whole_bytes_max`: files up to this size are one chunk; `seed`: 32 secret bytes."""

    def __init__(self, whole_bytes_max: int, classes: Sequence[SizeClass], seed: bytes) -> None:
        if not classes or classes[-1].file_bytes_max is not None:
            raise ValueError("the last size class must take files of any size")
        self.whole_bytes_max = whole_bytes_max
        self._seed = seed
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
        if self._classes[number].kind == "fixed":
            step = self._classes[number].average_bytes
            while data := _read_full(read, step):
                yield data
            return
        cutter = _cutter(self._classes[number], self._seed)
        buffer, seen = bytearray(), 0  # since the last cut; of these, the bytes up to the last candidate
        last = False
        while not last:
            held = len(buffer)
            buffer += _read_full(read, READ_BYTES)
            last = len(buffer) == held
            done, seen = yield from cutter.cut(buffer, seen, last)
            del buffer[:done]


class _Cutter:
    """Cuts buffers by the sizes of a class."""

    def __init__(self, sizes: SizeClass, seed: bytes) -> None:
        from pyfastcdc import FastCDC  # loaded with the first file that is cut

        least, average, self._farthest = candidate_bytes(sizes.average_bytes)
        library_seed = blake3(b"metasync cut candidates", key=seed).digest(8)
        self._candidates: FastCDC = FastCDC(
            average,
            min_size=least,
            max_size=self._farthest,
            seed=int.from_bytes(library_seed, "big") & _LIBRARY_SEED_MAX,
        )
        self._key = blake3(b"metasync cuts", key=seed).digest()
        self._sizes = sizes
        self._rare = (average << 64) // (2 * sizes.average_bytes)  # of 2^64: one in twice as many as make an average
        self._usual = (2 * average << 64) // sizes.average_bytes  # one in half as many

    def cut(self, buffer: bytes | bytearray, seen: int, last: bool) -> Generator[bytes, None, tuple[int, int]]:
        """The chunks that are known to end in this buffer, which begins with a chunk.

        seen     where its last candidate is that was looked at; 0: none
        last     nothing follows
        Returns how many bytes the chunks have together, and `seen` of what is left.
        """
        view = memoryview(buffer)
        start, before = 0, seen
        for piece in self._candidates.cut_buf(view[seen:]):
            end = seen + piece.offset + piece.length
            if end - start > self._sizes.max_bytes:
                yield bytes(view[start:before])
                start = before
            # the buffer's end is only known to be a candidate when it can be no farther from the one before
            if end == len(buffer) and (last or piece.length < self._farthest):
                break
            if self._is_cut(view, start, end):
                yield bytes(view[start:end])
                start = end
            before = end
        if last and start < len(buffer):
            yield bytes(view[start:])
        return start, before - start

    def _is_cut(self, view: memoryview, start: int, end: int) -> bool:
        size = end - start
        if size < self._sizes.min_bytes:
            return False
        drawn = blake3(view[end - WINDOW_BYTES : end], key=self._key).digest(8)
        return int.from_bytes(drawn, "big") < (self._rare if size < self._sizes.average_bytes else self._usual)


_cutter = lru_cache(maxsize=64)(_Cutter)


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
