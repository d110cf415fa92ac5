"""Placement: the order of backends for a pack, under one agreed config (architecture.md, D6).

Theory of operation: weighted rendezvous hashing in integers. The pack's name picks one of H partitions. Each backend
draws for a partition a number u in (0, 1) from a hash of the partition and its own id, and pays the *cost* -ln(u) /
weight for it. The backends in ascending order of cost are the partition's order, and its first R keep the pack.

-ln(u) is exponentially distributed, so a backend is first with probability weight / (sum of weights), second with that
probability among the rest, and so on: sampling without replacement, which is what the virtual nodes of MetaSync (USENIX
ATC 2015, section 3.4, figure 6) yield in the limit, at one hash per backend in place of one per gigabyte. A cost
depends on its own backend alone and never rises with the weight. So removing a backend leaves the order of the others
as it was, adding one inserts it, growing one moves it forward: nothing moves between two backends that did not change.

Everything is an integer: a float's logarithm differs in its last bit between C libraries, and two devices that disagree
on an order look for a pack where it is not. `docs/design/placement.md` has the formula and what was measured.

A change of the config moves no pack by itself (consensus.md, rule 6.4): new packs go where the new config maps them,
and readers try that first and the old places next. `store.moves` tells where copies may lie meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

from metasync.config import CAPACITY_BYTES_MAX, Config
from metasync.errors import UsageError
from metasync.reports.backends import Moving
from metasync.store.index import PackRecord

BACKEND_ID_BYTES = 16
WEIGHT_MAX = CAPACITY_BYTES_MAX
PARTITION_BYTES = 8
SHARES_STEPS_MAX = 1 << 18  # a bound for `shares`: 16 backends with 8 copies pass, in 0.1 s, or 500 with 2

_HASH_BITS = 64
_DOMAIN = b"metasync place 1"  # 16 bytes, the most that BLAKE2b takes as its personalization
_FRACTION_BITS = 80  # keeps 14 bits of -ln(u) at the u next to 1, where it is 2**-65, and 78 at a usual one
_COST_BITS = 64  # costs stay apart at the largest weight: floor(c * 2**64 / weight) with weight <= 2**63
_LN2 = 837963523372001241319907  # floor(ln(2) * 2**80)
_ATANH_TERMS = 16  # z * z < 1 / 33.9 gives 5 bits a term
_ATANH_COEFFICIENTS = tuple((2 << _FRACTION_BITS) // (2 * i + 1) for i in reversed(range(_ATANH_TERMS)))
_SHARE_BITS = 128


@dataclass(frozen=True, slots=True)
class Target:
    """A backend that keeps packs: its 16-byte id and its weight, the capacity in bytes, 1 to 2**63.

    Raises `UsageError` for any other length or weight.
    """

    backend_id: bytes
    weight: int

    def __post_init__(self) -> None:
        if len(self.backend_id) != BACKEND_ID_BYTES:
            raise UsageError(f"a backend id has {BACKEND_ID_BYTES} bytes, not {len(self.backend_id)}")
        if not 1 <= self.weight <= WEIGHT_MAX:
            raise UsageError(f"backend {self.backend_id.hex()}: capacity {self.weight} is not in 1..{WEIGHT_MAX} bytes")


def partition_of(pack_name: bytes, partitions: int) -> int:
    """The partition of a pack: its name as a big-endian integer modulo `partitions` (H, at least 1)."""
    assert pack_name
    assert partitions >= 1
    return int.from_bytes(pack_name, "big") % partitions


def order(targets: Sequence[Target], partition: int) -> tuple[bytes, ...]:
    """Every backend's id, the preferred one first, whatever the order of `targets`. `partition`: 0..2**64-1.

    `UsageError` if an id occurs twice.
    """
    _check_distinct(targets)
    return tuple(backend_id for _, backend_id in sorted((cost(t, partition), t.backend_id) for t in targets))


def cost(target: Target, partition: int) -> int:
    """What the backend pays for the partition: floor(-ln(u) * 2**144 / weight), less the rounding of `neg_ln`.

    Equal costs are told apart by the backend's id.
    """
    message = partition.to_bytes(PARTITION_BYTES, "big") + target.backend_id
    digest = hashlib.blake2b(message, digest_size=_HASH_BITS // 8, person=_DOMAIN).digest()
    return (neg_ln(int.from_bytes(digest, "big")) << _COST_BITS) // target.weight


def neg_ln(h: int) -> int:
    """-ln(u) * 2**80 for u = (2 * h + 1) / 2**65, `h` in 0..2**64-1; off by less than 2**7, so by 2**-73 in -ln(u).

    With x = 2 * h + 1 between the powers of two `low` and `high`, the nearer one by ratio is taken, so that
    ln(x) = ln(low) + 2 * atanh((x - low) / (x + low)), or the same from `high`; the series for atanh is cut at z**31.
    No difference of near-equal numbers occurs, so a u close to 1 keeps its precision. Every shift and division rounds
    down, and the result is part of the format: a device that rounds otherwise looks for packs in other places.
    """
    x = 2 * h + 1
    high_log2 = x.bit_length()
    high = 1 << high_log2
    low = high >> 1
    if x * x < low * high:
        return (_HASH_BITS + 2 - high_log2) * _LN2 - _twice_atanh(((x - low) << _FRACTION_BITS) // (x + low))
    return (_HASH_BITS + 1 - high_log2) * _LN2 + _twice_atanh(((high - x) << _FRACTION_BITS) // (high + x))


def shares(targets: Sequence[Target], copies: int) -> dict[bytes, Fraction]:
    """By backend id, the expected fraction of packs that the backend keeps, if each pack goes to `copies` backends.

    Between 0 and 1, together min(copies, number of backends), right to 2**-100. It is the probability of being among
    the first `copies` (at least 1) in sampling without replacement, summed over the sets that can be drawn before a
    backend. Raises `UsageError` if an id occurs twice, or if these sets, times the backends, exceed `SHARES_STEPS_MAX`.
    """
    _check_distinct(targets)
    if copies >= len(targets):
        return {t.backend_id: Fraction(1) for t in targets}
    one = 1 << _SHARE_BITS
    total = sum(t.weight for t in targets)
    result = [0] * len(targets)
    drawn = {0: (one, total)}  # set of backends as bits: its probability, the weight left over
    for _ in range(copies):
        if len(drawn) * len(targets) > SHARES_STEPS_MAX:
            raise UsageError(f"cannot compute the shares of {len(targets)} backends with {copies} copies: too many")
        following: dict[int, tuple[int, int]] = {}
        for members, (probability, left) in drawn.items():
            for i, target in enumerate(targets):
                if members >> i & 1:
                    continue
                part = probability * target.weight // left
                result[i] += part
                union = members | 1 << i
                so_far = following[union][0] if union in following else 0
                following[union] = (so_far + part, left - target.weight)
        drawn = following
    return {t.backend_id: Fraction(part, one) for t, part in zip(targets, result, strict=True)}


def _twice_atanh(z: int) -> int:
    """2 * atanh(z) for z in 0..0.172, argument and result in units of 2**-80; by Horner's rule in z * z."""
    square = z * z >> _FRACTION_BITS
    total = 0
    for coefficient in _ATANH_COEFFICIENTS:
        total = (total * square >> _FRACTION_BITS) + coefficient
    return total * z >> _FRACTION_BITS


def _check_distinct(targets: Sequence[Target]) -> None:
    if len({t.backend_id for t in targets}) != len(targets):
        raise UsageError("a backend id occurs twice among the backends that keep packs")


PARTITIONS = 65_536  # H, fixed for the life of a workspace (paper section 3.4): another H moves every pack
ORDERS_KEPT_MAX = 16_384  # 3.3 MB with five backends; an order that was dropped costs 20 us to compute again


class Placement:
    """Where packs go under one config. Thread-safe.

    `targets`: the backends with a storage role, in any order. `copies`: R of `replicate(R)`, n of `erasure(k, n)`; it
    is capped by the number of targets. `partitions`: H. `UsageError` for no target, an id twice, or a number below 1.
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
        order(self.targets, 0)  # refuses an id that occurs twice, now rather than at the first pack
        self._order = lru_cache(maxsize=ORDERS_KEPT_MAX)(partial(order, self.targets))

    def order(self, pack_name: bytes) -> tuple[bytes, ...]:
        """Ids of all backends in the order in which to store, look for and repair this pack. Never empty."""
        return self._order(partition_of(pack_name, self.partitions))

    def primary(self, pack_name: bytes) -> tuple[bytes, ...]:
        """Ids of the `copies` distinct backends that ought to keep this pack: the head of `order`."""
        return self.order(pack_name)[: self.copies]

    def expected_shares(self) -> dict[bytes, Fraction]:
        """By backend id, the expected fraction of all packs that the backend keeps; see `placement.shares`."""
        return shares(self.targets, self.copies)


def placement_of(config: Config) -> Placement:
    """Which backends keep which pack, by this config."""
    policy = config.policy(0)
    return Placement(
        [Target(b.backend_id, b.capacity_bytes) for b in config.backends if b.storage],
        copies=policy.copies,
        partitions=config.mapping.partitions,
    )


def gaining(old: Config, new: Config) -> set[bytes]:
    """Backends of both configs that `new` may map a pack to which `old` mapped elsewhere.

    Costs depend on their own backend alone (`store.placement`): one moves forward only by growing itself, or by another
    one's going or shrinking.
    """
    before, after = placement_of(old), placement_of(new)
    was = {t.backend_id: t.weight for t in before.targets}
    now = {t.backend_id: t.weight for t in after.targets}
    if before.copies >= len(was):
        return set()  # each had all already
    weaker = {i for i, weight in was.items() if now.get(i, 0) < weight}
    return {i for i in was.keys() & now.keys() if now[i] > was[i] or weaker - {i} or after.copies > before.copies}


def is_same_mapping(old: Config, new: Config) -> bool:
    """Whether packs belong where they belonged."""
    before, after = placement_of(old), placement_of(new)
    return (before.targets, before.copies, before.partitions) == (after.targets, after.copies, after.partitions)


def survives(config: Config) -> str:
    """What the set of backends lives through, in words: losses of data, how many a push needs, how many may lie."""
    n, q, s = config.n, config.quorum, config.survives
    copies = "1 copy" if not s.copies else f"{s.copies + 1} copies"
    data = f"Any {s.copies} of {len(config.backends)} backends may be lost" if s.copies else "No backend may be lost"
    data += " without losing data" if s.copies > s.down else ""
    needs = f"any {q} of the {n}" if q < n else f"all {n}" if n > 1 else "the one"
    push = f"a push needs {needs} that {'votes' if n == 1 else 'vote'}"
    lie = f"; any {s.lying} of them may lie" if s.lying else ""
    return f"{data}: everything has {copies}; {push}{lie}."


def moving(packs: Iterable[PackRecord]) -> Moving:
    """The number and bytes of these packs."""
    sizes = [p.size for p in packs]
    return Moving(len(sizes), sum(sizes))
