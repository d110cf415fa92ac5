"""Cuts a long list of encoded items into nodes at places that depend on the items alone (architecture.md, D1).

A node ends after an item whose 64 pseudo-random bits fall below its length in proportion to `NODE_BYTES_SPREAD`, once
the node has `NODE_BYTES_MIN`; at `NODE_BYTES_MAX` it ends anyway. So an edit changes the node it falls in and, rarely,
the next one or two, whatever the list's length: the same idea as content-defined chunking, on whole items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
