"""Spreads the packs of a push evenly over the backends by choosing among names for each (ARCHITECTURE D6).

Theory of operation. A pack's place follows from its name, and its name from its bytes, of which eight, the salt, mean
nothing. A writer tries a few salts and keeps the name that leaves the fullest backend least full. A backend's *relative
load* is its bytes divided by the share of all packs that placement gives it, so backends of any capacities compare.

The search ends with the first name that is as good as any could be: one that leaves the fullest backend as it is, or,
where every choice makes it fuller, one that goes to the least loaded. So a pack costs about as many trials as there are
sets of backends that would not do, and `TRIALS_MAX` at most. What list scheduling promises holds (Graham, "Bounds on
multiprocessing timing anomalies", 1969): the fullest has at most a pack more than the mean.

Where shares differ, a short push alone would pass by small backends, which it would fill above its mean. What a push
left uneven is therefore carried into the next one of this device, and shares stay true over time. Where all shares are
equal no backend is preferred, and nothing is carried: an earlier push makes no later one uneven.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from metasync.errors import UsageError
from metasync.store.mapping import BACKEND_ID_BYTES
from metasync.store.placement import Placement

TRIALS_MAX: Final = 16  # of 48 packs on three backends the fullest then has 1.04 of the mean at worst, with 8 1.05
CARRIED_BYTES_MAX: Final = 1 << 40  # of what is told of earlier pushes: no device is uneven by more

_CARRIED = struct.Struct(f">{BACKEND_ID_BYTES}sQ")


def pick(loads: Sequence[float], shares: Sequence[float], size: float, choices: Iterable[Sequence[int]]) -> int:
    """Which of the choices leaves the fullest backend least full: its number, the first one of equals.

    `loads` and `shares` by backend, shares above 0. A choice is the numbers of the backends that would each get `size`
    more; all choices have equally many, there is at least one, and no more are drawn than `TRIALS_MAX`.
    """
    relative = [load / share for load, share in zip(loads, shares, strict=True)]
    after = [(load + size) / share for load, share in zip(loads, shares, strict=True)]
    fullest = max(relative)
    best, best_after, least = 0, -1.0, -1.0
    for number, choice in enumerate(choices):
        if least < 0:
            least = max(fullest, sorted(after)[len(choice) - 1])
        then = max(fullest, *(after[i] for i in choice))
        if best_after < 0 or then < best_after:
            best, best_after = number, then
        if best_after <= least or number + 1 >= TRIALS_MAX:
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
        """What the next push should know: how much more than its share of the least loaded each backend has."""
        if not self._is_uneven:
            return b""
        with self._lock:
            least = min(load / share for load, share in zip(self._loads, self._shares, strict=True))
            over = [int(load - least * share) for load, share in zip(self._loads, self._shares, strict=True)]
        return b"".join(
            _CARRIED.pack(i, max(0, min(o, CARRIED_BYTES_MAX))) for i, o in zip(self._ids, over, strict=True)
        )


def _shares(placement: Placement) -> list[float]:
    """What part of all packs each target should hold. By capacity alone where there are too many to compute it."""
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
