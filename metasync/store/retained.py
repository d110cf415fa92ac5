"""The retained list: which versions a workspace no longer keeps, on purpose (format.md, section 6.4).

A state names it, or nothing while all is kept. What is missing and not in it is a loss.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from metasync.codec import Reader, Tags, check_format, encode_tags, u8, u32, u64
from metasync.errors import FormatError

FORMAT: Final = 1
INTERVALS_MAX: Final = 1 << 16  # ten years of a version a minute, one kept a day, have a twentieth of that


class Retained(NamedTuple):
    """`dropped`: intervals of versions (first, last), ascending, with kept versions between any two."""

    dropped: tuple[tuple[int, int], ...] = ()
    tags: Tags = ()

    def has_dropped(self, v: int) -> bool:
        """Whether the tree of a version may be gone without loss."""
        at = bisect_right(self.dropped, (v, (1 << 64) - 1))
        return at > 0 and v <= self.dropped[at - 1][1]


def encode_retained(r: Retained) -> bytes:
    if _fault(r):
        raise ValueError(_fault(r))
    rows = b"".join(u64(first) + u64(last) for first, last in r.dropped)
    return u8(FORMAT) + u32(len(r.dropped)) + rows + encode_tags(r.tags)


def decode_retained(data: bytes) -> Retained:
    """Reads what `encode_retained` wrote; `FormatError`, or `UpgradeError` if newer."""
    r = Reader(data, "retained list")
    check_format(r.u8(), "the retained list")
    out = Retained(tuple((r.u64(), r.u64()) for _ in range(r.count(r.u32(), 16))), r.tags())
    r.end()
    if fault := _fault(out):
        raise FormatError(f"retained list: {fault}")
    return out


def _fault(r: Retained) -> str:
    if not 1 <= len(r.dropped) <= INTERVALS_MAX:
        return f"{len(r.dropped)} intervals"
    before = -1
    for first, last in r.dropped:
        if not before + 1 < first <= last:
            return "intervals out of order, or two that are one"
        before = last
    return ""
