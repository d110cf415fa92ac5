"""Canonical byte encodings: fixed-width big-endian integers, length-prefixed byte strings, sorted tags.

One value has one byte string. A `Reader` never reads beyond its buffer, bounds every count and length before use, and
raises `FormatError` alone; `Reader.end` rejects trailing bytes. `docs/design/format.md` section 1 gives the tables.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from metasync.errors import FormatError, UpgradeError

Tags: TypeAlias = tuple[tuple[int, bytes], ...]
"""Extension records `(tag, bytes)`, sorted by tag, each tag once. Unknown ones are kept and written back."""

TAGS_MAX = 64  # more extension records than this in one value is a corrupt or hostile record
TAG_BYTES_MAX = 0xFFFF

UPGRADE: Final = "upgrade metasync"
FORMAT_PLAUSIBLE: Final = 31  # below printable text: a login page must not be taken for a newer version

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


def u8(n: int) -> bytes:
    return n.to_bytes(1, "big")


def u16(n: int) -> bytes:
    return _U16.pack(n)


def u32(n: int) -> bytes:
    return _U32.pack(n)


def u64(n: int) -> bytes:
    return _U64.pack(n)


def i64(n: int) -> bytes:
    return _I64.pack(n)


def bytes16(b: bytes) -> bytes:
    """A byte string of up to 65,535 bytes behind its u16 length."""
    return _U16.pack(len(b)) + b


def bytes32(b: bytes) -> bytes:
    """A byte string of up to 2^32-1 bytes behind its u32 length."""
    return _U32.pack(len(b)) + b


def text16(s: str) -> bytes:
    """A UTF-8 string behind the u16 length of its encoding."""
    return bytes16(s.encode("utf-8"))


def encode_tags(tags: Tags) -> bytes:
    """`u8 count`, then per tag `u16 tag, u16 length, bytes`, ascending."""
    if not tags:
        return b"\0"
    if len(tags) > TAGS_MAX or any(a[0] >= b[0] for a, b in pairwise(tags)):
        raise ValueError("tags must be sorted, distinct and few")
    if any(not 0 <= tag <= 0xFFFF or len(data) > TAG_BYTES_MAX for tag, data in tags):
        raise ValueError("a tag is a u16 with up to 65,535 bytes")
    return u8(len(tags)) + b"".join(u16(tag) + bytes16(data) for tag, data in tags)


class Reader:
    """Reads one record from bytes that may be hostile."""

    __slots__ = ("data", "pos", "what")

    def __init__(self, data: bytes, what: str, pos: int = 0) -> None:
        self.data = data
        self.pos = pos
        self.what = what

    def fail(self, why: str) -> FormatError:
        return FormatError(f"{self.what}: {why} at byte {self.pos}")

    def take(self, n: int) -> bytes:
        end = self.pos + n
        if n < 0 or end > len(self.data):
            raise self.fail(f"{n} bytes wanted, {len(self.data) - self.pos} left")
        out = self.data[self.pos : end]
        self.pos = end
        return out

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def bytes16(self, most: int = 0xFFFF) -> bytes:
        n = self.u16()
        if n > most:
            raise self.fail(f"length {n} over {most}")
        return self.take(n)

    def bytes32(self, most: int) -> bytes:
        n = self.u32()
        if n > most:
            raise self.fail(f"length {n} over {most}")
        return self.take(n)

    def text16(self, most: int = 0xFFFF) -> str:
        raw = self.bytes16(most)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.fail("text is not UTF-8") from e

    def count(self, n: int, least_bytes_each: int, most: int | None = None) -> int:
        """Checks a count against its bound and what is left, so that nothing is allocated for a lie."""
        if most is not None and n > most:
            raise self.fail(f"{n} items, at most {most}")
        if n * least_bytes_each > len(self.data) - self.pos:
            raise self.fail(f"{n} items cannot fit")
        return n

    def tags(self) -> Tags:
        n = self.u8()
        if n > TAGS_MAX:
            raise self.fail(f"{n} tags")
        out: list[tuple[int, bytes]] = []
        for _ in range(n):
            tag = self.u16()
            if out and tag <= out[-1][0]:
                raise self.fail("tags out of order")
            out.append((tag, self.bytes16()))
        return tuple(out)

    def end(self) -> None:
        if self.pos != len(self.data):
            raise self.fail(f"{len(self.data) - self.pos} bytes too many")


def check_format(fmt: int, what: str) -> None:
    """`UpgradeError` for a format byte above 1, the only one so far; `FormatError` for zero and for text."""
    if 1 < fmt <= FORMAT_PLAUSIBLE:
        raise UpgradeError(f"{what} has format {fmt}; this program knows 1", next_step=UPGRADE)
    if fmt != 1:
        raise FormatError(f"{what}: format {fmt}")


def check_kind(kind: int, known: int, what: str) -> int:
    """A kind from 1 to `known`, as it is; `UpgradeError` for a greater one, `FormatError` for zero.

    Only for bytes that are known to be some device's (verified by hash, seal or signature): in others it is damage.
    """
    if kind > known:
        raise UpgradeError(f"{what} is of kind {kind}; this program knows {known}", next_step=UPGRADE)
    if kind == 0:
        raise FormatError(f"{what}: kind 0")
    return kind


def ascending(items: Sequence[bytes]) -> bool:
    """True when byte strings are strictly ascending (sorted and distinct)."""
    return all(a < b for a, b in pairwise(items))


def padme(size: int) -> int:
    """The next Padmé size: `size` with all but the top log2(log2(size))+1 bits of its mantissa rounded up.

    Nikitin et al., "Reducing Metadata Leakage from Encrypted Files and Communication with PURBs", 2019, section 4: at
    most 12 % more, and often 3 %, for sizes that say little about what is inside.
    """
    if size < 2:
        return size
    e = size.bit_length() - 1
    low_bits = e - e.bit_length()
    if low_bits <= 0:
        return size
    mask = (1 << low_bits) - 1
    return (size + mask) & ~mask


def amount(n: int) -> str:
    """Bytes for people, in a unit that fits, powers of 1,024."""
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
    s = max(1, round(seconds))
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s"
    return f"{s // 3600} h {s % 3600 // 60} min"


def printable(line: str) -> str:
    """A line that moves no cursor and hides nothing, whatever names and servers' answers stand in it."""
    return line if line.isprintable() else "".join(c if c.isprintable() else _escaped(ord(c)) for c in line)


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as `os.fsdecode` gives it
        code -= 0xDC00
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
