"""How many copies packs have within reach, and how much lies on each backend: counted by the index, asking nobody.

Placement says where a pack lies. A pack that a change of the backends displaced lies where the config before has it,
until it is moved; copies that are on their way (`transfer.late_copies`) are not there yet. The index does not record
copies that found another place than their own: `metasync check` looks for those.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from metasync.consensus import Ref
from metasync.errors import MetaSyncError
from metasync.maintenance import moved
from metasync.reports.backends import Moving
from metasync.store import placement
from metasync.store.moves import Places
from metasync.store.placement import Placement, partition_of, placement_of
from metasync.transfer import late_copies, wrong_copies
from metasync.transfer.estimates import Direction

if TYPE_CHECKING:
    from metasync.session.session import Agreed, Session
    from metasync.store.index import Index, PackRecord

PackKey: TypeAlias = tuple[int, bytes]


class Held(NamedTuple):
    """So many packs, of so many bytes together."""

    packs: int
    bytes: int


class Holdings(NamedTuple):
    """By the ids of the backends that hold them: how many packs. `copies`: how many copies of each are promised."""

    copies: int
    by_holders: Mapping[frozenset[bytes], Held]

    def on(self, backend_id: bytes) -> int:
        """Bytes of packs on a backend."""
        return sum(held.bytes for holders, held in self.by_holders.items() if backend_id in holders)

    def by_copies(self, within: Set[bytes]) -> tuple[int, ...]:
        """How many packs have 0, 1, ... as many copies as promised on the backends `within` reach."""
        counts = [0] * (self.copies + 1)
        for holders, held in self.by_holders.items():
            counts[min(self.copies, len(holders & within))] += held.packs
        return tuple(counts)


def holdings(s: Session, index: Index) -> Holdings:
    """What the backends hold of an index."""
    now = s.transfer.placement
    packs = index.packs()
    late = {key: t for key, t in late_copies.load(s.db).items() if key in packs}
    bad = wrong_copies.bad(s.db)
    seen_bad = {p.id for p in packs.values() if p.name in bad} if bad else set()
    apart = late.keys() | seen_bad
    before, is_still = _before(s, now)
    out: dict[frozenset[bytes], Held] = {}
    if before is not now:
        _count(out, (p for p in packs.values() if p.id not in apart and is_still(p)), before)
    _count(out, (p for p in packs.values() if p.id not in apart and not is_still(p)), now)
    for trail in late.values():
        _add(out, frozenset(trail.holders).difference(bad.get(trail.name, ())), 1, trail.size)
    for p in (packs[i] for i in seen_bad - late.keys()):
        holders = (before if is_still(p) else now).primary(p.name)
        _add(out, frozenset(holders).difference(bad[p.name]), 1, p.size)
    return Holdings(now.copies, out)


def _before(s: Session, now: Placement) -> tuple[Placement, Callable[[PackRecord], bool]]:
    """The placement before this one, and which packs lie by it still."""
    if s.previous is None or s.config.moving is None:
        return now, lambda _: False
    before, moved = placement_of(s.previous), displaced(s)

    def is_still(p: PackRecord) -> bool:
        may = moved is None or p.id in moved
        return may and not set(now.primary(p.name)) <= set(before.primary(p.name))

    return before, is_still


def _count(out: dict[frozenset[bytes], Held], packs: Iterable[PackRecord], placement: Placement) -> None:
    """By partition first, so that a large index costs an order per partition, not per pack."""
    parts: dict[int, tuple[bytes, int, int]] = {}
    for p in packs:
        partition = partition_of(p.name, placement.partitions)
        _, number, size = parts.get(partition, (b"", 0, 0))
        parts[partition] = p.name, number + 1, size + p.size
    for name, number, size in parts.values():
        _add(out, frozenset(placement.primary(name)), number, size)


def _add(out: dict[frozenset[bytes], Held], holders: frozenset[bytes], packs: int, size: int) -> None:
    held = out.get(holders, Held(0, 0))
    out[holders] = Held(held.packs + packs, held.bytes + size)


def knows_all(s: Session) -> bool:
    """Whether this device has a way to every backend that may hold packs and was not given up."""
    stores = {b.backend_id for c in (s.config, s.previous) if c is not None for b in c.backends if b.storage}
    return stores - s.config.dead <= s.names.keys() | s.former.keys()


def displaced(s: Session) -> Mapping[PackKey, PackRecord] | None:
    """The packs that the last change of the backends was made on. None where that cannot be had: it may be any."""
    if s.config.moving is not None:
        with contextlib.suppress(MetaSyncError):
            return s.indexes.of(Ref(*s.config.moving)).packs()
    return None


def still_moving(s: Session, agreed: Agreed | None) -> Moving:
    """What the changes of the backends displaced, the newest index known still names, and is not known to be moved."""
    if s.config.moving is None or s.previous is None:
        return Moving()
    gone = displaced(s) or {}  # without it all packs count: too many rather than too few
    index = agreed.index if agreed is not None else s.indexes.at_hand(s.base_state().index)
    named = index.packs() if index is not None else gone
    packs = (p for p in named.values() if not gone or p.id in gone)
    places = Places(s.config, s.previous)
    done = moved.Noted(places, named.values(), moved.load(s))
    left = [p for p in packs if places.receivers(p.name) and p.name not in done]
    return replace(placement.moving(left), seconds=_takes_s(s, places, left))


def _takes_s(s: Session, places: Places, packs: Iterable[PackRecord]) -> float | None:
    """How long the slowest line takes to bring these packs to where they belong; None: nothing is known of one."""
    names, to = {b.backend_id: b.name for b in s.config.backends}, Counter[str]()
    for p in packs:
        to.update({names[i]: p.size for i in places.receivers(p.name) if i in names})
    rates = {name: s.estimates.of(name, Direction.UP).bytes_per_s for name in to}
    takes = [size / rate for name, size in to.items() if (rate := rates[name])]
    return max(takes, default=None) if len(takes) == len(to) else None
