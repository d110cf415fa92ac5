"""Where packs lie under the agreed config, and under the one before while what it displaced is not moved (D6, 6.2).

A change of the mapping moves nothing by itself: new packs go where the new config maps them, and readers try that first
and the old places next. `moving` says what still lies where only the old config maps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from metasync.config import BackendEntry, Config, Replicate
from metasync.objects.model import ObjectKind
from metasync.reports.backends import Moving
from metasync.store.index import PackRecord
from metasync.store.packs import PackFormat
from metasync.store.placement import Placement, Target
from metasync.transfer.copies import Place, Transfer
from metasync.transfer.estimates import Estimates


def placement_of(config: Config) -> Placement:
    """Which backends keep which pack, by this config."""
    policy = config.policy(0)
    return Placement(
        [Target(b.backend_id, b.capacity_bytes) for b in config.backends if b.storage],
        copies=policy.copies if isinstance(policy, Replicate) else policy.total,
        partitions=config.mapping.partitions,
    )


def transfer_of(
    config: Config,
    previous: Config | None,
    names: Mapping[bytes, str],
    form: PackFormat,
    check: Callable[[ObjectKind, bytes | memoryview], bytes],
    estimates: Estimates,
) -> Transfer:
    """Moves packs under one config; reads also where the one before has them. `names`: the ways, by backend id."""
    entries = {b.backend_id: b for c in (previous, config) if c is not None for b in c.backends if b.storage}
    places = {i: _place(names[i], b) for i, b in entries.items() if i in names}
    before = placement_of(previous) if previous is not None else None
    return Transfer(placement_of(config), places, form, check, before=before, estimates=estimates)


def _place(name: str, entry: BackendEntry) -> Place:
    return Place(name, entry.backend_id, tuple(s.storage_id for s in entry.storage))


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


def to_move(old: Config, new: Config, packs: Iterable[PackRecord]) -> list[PackRecord]:
    """Those of `packs`, placed by `old`, of which `new` wants a copy somewhere else."""
    before, after = placement_of(old), placement_of(new)
    return [p for p in packs if not set(after.primary(p.name)) <= set(before.primary(p.name))]


def survives(config: Config) -> str:
    """What the set of backends lives through, in a sentence."""
    n, s = config.n, config.survives
    down = "none" if not s.down else f"any {s.down}"
    lost = "no loss" if not s.copies else f"the loss of any {s.copies}"
    lying = f" and any {s.lying} of them lying" if s.lying else " and none of them lying"
    return (
        f"{n} of {len(config.backends)} backends vote: changes can be agreed with {down} of them down{lying};"
        f" data survive {lost} ({s.copies + 1} {'copy' if not s.copies else 'copies'} of everything)."
    )


def moving(packs: Iterable[PackRecord]) -> Moving:
    """How much that is."""
    sizes = [p.size for p in packs]
    return Moving(len(sizes), sum(sizes))
