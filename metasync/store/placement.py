"""Placement: the order of backends for a pack, under one agreed config (ARCHITECTURE D6).

A `Placement` is made from what the config says and holds nothing else, so every device that has the config computes the
same one. Orders are kept once computed: a push and a repair ask for the same few thousand partitions again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial

from metasync.errors import UsageError
from metasync.store import mapping
from metasync.store.mapping import Target

PARTITIONS = 65_536
"""H. Fixed for the life of a workspace (paper section 3.4): another H moves every pack."""

ORDERS_KEPT_MAX = 16_384  # 3.3 MB with five backends; an order that was dropped costs 20 us to compute again


class Placement:
    """Where packs go under one config.

    `targets` are the backends with a storage role, in any order, at least one. `copies` is the number of distinct
    backends a pack goes to: R of `replicate(R)`, n of `erasure(k, n)`; at least 1, and capped by the number of targets.
    `partitions` is H. Raises `UsageError` if there is no target, an id occurs twice, or a number is below 1.
    Safe to share between threads.
    """

    def __init__(self, targets: Sequence[Target], *, copies: int, partitions: int = PARTITIONS) -> None:
        if not targets:
            raise UsageError("no backend keeps packs", next_step="Add a backend with a storage role.")
        if copies < 1:
            raise UsageError(f"a pack needs at least one copy, not {copies}")
        if partitions < 1:
            raise UsageError(f"a placement needs at least one partition, not {partitions}")
        self.targets = tuple(sorted(targets, key=lambda t: t.backend_id))
        self.copies = min(copies, len(self.targets))
        self.partitions = partitions
        mapping.order(self.targets, 0)  # refuses an id that occurs twice, now rather than at the first pack
        self._order = lru_cache(maxsize=ORDERS_KEPT_MAX)(partial(mapping.order, self.targets))

    def order(self, pack_name: bytes) -> tuple[bytes, ...]:
        """Ids of all backends in the order in which to store, look for and repair this pack. Never empty."""
        return self._order(mapping.partition_of(pack_name, self.partitions))

    def primary(self, pack_name: bytes) -> tuple[bytes, ...]:
        """Ids of the `copies` distinct backends that ought to keep this pack: the head of `order`."""
        return self.order(pack_name)[: self.copies]

    def expected_shares(self) -> dict[bytes, Fraction]:
        """By backend id, the expected fraction of all packs that the backend keeps; see `mapping.shares`."""
        return mapping.shares(self.targets, self.copies)
