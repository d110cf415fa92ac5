"""A seeded mutator of bytes, and a minimiser: what there is to fuzz with where atheris is not installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INTERESTING = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0xFFFFFFFF,
    2**63,
    2**64 - 1,
)


def mutated(rng: random.Random, seeds: Sequence[bytes], most: int) -> bytes:
    """One input, from one or two seeds, changed one to five times."""
    data = bytearray(rng.choice(seeds))
    for _ in range(1 + min(rng.getrandbits(2), rng.getrandbits(3))):
        _MUTATIONS[rng.randrange(len(_MUTATIONS))](rng, data, seeds)
    return bytes(data[:most])


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Takes 2, 4 or 8 bytes for a big-endian number and makes it another: counts and lengths are that."""
    width = rng.choice((2, 4, 8))
    if len(data) < width:
        return
    at = rng.randrange(len(data) - width + 1)
    old = int.from_bytes(data[at : at + width], "big")
    new = rng.choice((old + 1, old - 1, old * 2, rng.choice(INTERESTING))) % (1 << 8 * width)
    data[at : at + width] = new.to_bytes(width, "big")


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 4, 8, 32, 40, 64, len(data)))]


def _insert(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * rng.choice((1, 1, 2, 4, 8, 32))


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Doubles a piece of its own: a record that stands twice."""
    if data:
        at = rng.randrange(len(data))
        n = rng.choice((4, 8, 32, 40, 45, 49, 64, rng.randint(1, len(data))))
        data[at:at] = data[at : at + n]


def _swap(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Two pieces of one length change places: records out of order."""
    n = rng.choice((1, 2, 8, 16, 32, 40, 48, 49))
    if len(data) >= 2 * n:
        a = rng.randrange(len(data) - 2 * n + 1)
        b = rng.randrange(a + n, len(data) - n + 1)
        data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """The rest, or a piece, of another seed."""
    other = rng.choice(seeds)
    if not other:
        return
    start = rng.randrange(len(other))
    piece = other[start : start + rng.choice((8, 32, 64, len(other)))]
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, len(piece), len(data)))] = piece


_MUTATIONS = (_flip, _flip, _set, _number, _number, _cut, _insert, _repeat, _swap, _splice)


def minimised(data: bytes, still: Callable[[bytes], bool], tries_max: int = 3_000) -> bytes:
    """A shorter, then a duller input for which `still` holds."""
    tries = 0

    def holds(candidate: bytes) -> bool:
        nonlocal tries
        tries += 1
        return still(candidate)

    step = max(1, len(data) // 2)
    while step and tries < tries_max:
        at = 0
        while at < len(data) and tries < tries_max:
            shorter = data[:at] + data[at + step :]
            if holds(shorter):
                data = shorter
            else:
                at += step
        step //= 2
    for at in range(len(data)):
        if tries >= tries_max:
            break
        if data[at] and holds(duller := data[:at] + b"\0" + data[at + 1 :]):
            data = duller
    return data
