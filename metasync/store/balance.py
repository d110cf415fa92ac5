"""Spreads the packs of a push evenly over the backends by choosing among names for each (architecture.md, D6).

Theory of operation. A pack's place follows from its name, and its name from its bytes, of which eight, the salt, mean
nothing. A writer tries a few salts and keeps the name that leaves loads most even: the sum of load^2 / share over the
backends is least, share being the part of all packs that placement gives a backend. That sum is least for its total
when loads are in the ratio of shares, so backends of any capacities compare. To leave the fullest least full at each
step would not do: with two copies on three backends two of them could run ahead, each step as good as any other.

A choice adds (2 load + size) size / share for each backend that it takes, so the best one takes the backends for which
this is least. The search ends when it is found: a pack costs about as many trials as there are sets of backends, and
`TRIALS_MAX` at most. With one copy on equal backends it is the least loaded, and what list scheduling promises holds:
the fullest has less than a pack above the mean (Graham, "Bounds on multiprocessing timing anomalies", 1969).

Where shares differ, a short push would skip small backends: one pack is far more than their part of it. The imbalance
of a push is therefore carried into the next one of this device. Where all shares are equal, nothing is carried.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from metasync.errors import UsageError
from metasync.store.placement import BACKEND_ID_BYTES, Placement

TRIALS_MAX: Final = 16  # of 48 packs on three backends the fullest then has 1.04 of the mean at worst, with 8 1.06
EQUAL: Final = 1 + 1e-9  # what rounding may make of equal sums
CARRIED_BYTES_MAX: Final = 1 << 40  # of what is told of earlier pushes: no device is uneven by more

_CARRIED = struct.Struct(f">{BACKEND_ID_BYTES}sQ")


def pick(loads: Sequence[float], shares: Sequence[float], size: float, choices: Iterable[Sequence[int]]) -> int:
    """Which of the choices leaves loads most even: its number, the first one of equals.

    `loads` and `shares` by backend, shares above 0. A choice is the numbers of the backends that would each get `size`
    more; all choices have equally many, there is at least one, and no more are drawn than `TRIALS_MAX`.
    """
    costs = [(2 * load + size) * size / share for load, share in zip(loads, shares, strict=True)]
    ascending = sorted(costs)
    best, least = 0, float("inf")
    for number, choice in enumerate(choices):
        cost = sum(costs[i] for i in choice)
        if cost * EQUAL < least:
            best, least = number, cost
        if least <= sum(ascending[: len(choice)]) * EQUAL or number + 1 >= TRIALS_MAX:
            break
    return best


class Balance:
    """Chooses the names of one push's packs and counts where they go. Usable from any thread.

    `carried`: what `carry` returned after an earlier push; whatever does not fit this placement is left out.
    """

    def __init__(self, placement: Placement, carried: bytes = b"") -> None:
        self._placement = placement
        self._ids = [t.backend_id for t in placement.targets]
        self._number = {backend_id: i for i, backend_id in enumerate(self._ids)}
        self._shares = _shares(placement)
        self._lock = threading.Lock()
        before = _decode(carried) if self._is_uneven else {}
        self._loads = [float(before.get(i, 0)) for i in self._ids] if before.keys() == set(self._ids) else []
        self._loads = self._loads or [0.0] * len(self._ids)

    @property
    def _is_uneven(self) -> bool:
        """Whether backends differ in what they should get."""
        return len(set(self._shares)) > 1

    @property
    def matters(self) -> bool:
        """False where every pack goes to all backends, whatever its name."""
        return self._placement.copies < len(self._ids)

    @property
    def even_packs(self) -> int:
        """How many packs of one size it takes to load backends of equal shares evenly."""
        return len(self._ids) // math.gcd(len(self._ids), self._placement.copies)

    def choose(self, size: int, names: Iterable[bytes]) -> int:
        """The number of the name that a pack of `size` bytes should have; its bytes count from now on."""
        tried: list[list[int]] = []

        def choices() -> Iterable[Sequence[int]]:
            for name in names:
                tried.append([self._number[i] for i in self._placement.primary(name)])
                yield tried[-1]

        with self._lock:
            number = pick(self._loads, self._shares, float(size), choices())
            for i in tried[number]:
                self._loads[i] += size
        return number

    def carry(self) -> bytes:
        """The load of each backend beyond its share of the least loaded, for the next push."""
        if not self._is_uneven:
            return b""
        with self._lock:
            least = min(load / share for load, share in zip(self._loads, self._shares, strict=True))
            over = [int(load - least * share) for load, share in zip(self._loads, self._shares, strict=True)]
        return b"".join(
            _CARRIED.pack(i, max(0, min(o, CARRIED_BYTES_MAX))) for i, o in zip(self._ids, over, strict=True)
        )


def _shares(placement: Placement) -> list[float]:
    """The share of all packs for each target; by capacity alone where there are too many to compute it."""
    try:
        exact = placement.expected_shares()
        shares = [float(exact[t.backend_id]) for t in placement.targets]
    except UsageError:
        total = sum(t.weight for t in placement.targets)
        shares = [min(1.0, placement.copies * t.weight / total) for t in placement.targets]
    return [max(s, 1e-12) for s in shares]  # a backend of a byte among those of exabytes


def _decode(carried: bytes) -> dict[bytes, int]:
    if len(carried) % _CARRIED.size:
        return {}
    return {i: min(load, CARRIED_BYTES_MAX) for i, load in _CARRIED.iter_unpack(carried)}
