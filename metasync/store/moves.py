"""Which copies of packs count, and which are surplus, after the backends changed any number of times (pure).

Theory of operation (consensus.md, rule 6.4; the model `Replicas`). A change of the mapping is over with a *trim*: the
config that no longer names the mapping before. From then on any device may delete the copies that the trim's mapping
does not place, however late its deletion arrives. So a copy counts only in a storage id that is younger than the last
trim whose mapping did not place the pack on that backend. The config carries the mappings that were trimmed, and with
each the storage id that was the newest one on each backend then.

A change that comes while data of the one before still move is *merged*: the config goes on naming the mapping before
the first of them, and lists the ones in between. Nothing was deleted by these, so they say only where else copies lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from metasync.codec import TAG_BYTES_MAX, Reader, u8, u16, u64
from metasync.config import DEAD_TAG, EARLIER_TAG, MOVING_TAG, Config
from metasync.store.index import PackRecord
from metasync.store.placement import ORDERS_KEPT_MAX, Placement, Target, gaining, partition_of, placement_of

EARLIER_MAX: Final = 32  # trims that a config tells apart; packs in storage ids older than those are copied anew
MERGED_MAX: Final = 8  # changes that are merged into one that is under way: each is one more mapping to look at
TO_EMPTY_TAG: Final = 6  # 16 bytes each: ids of removed backends of which whoever has a way to them deletes all
_TARGET_BYTES: Final = 40
_ID_BYTES: Final = 16


class Former(NamedTuple):
    """What an earlier mapping gave a backend: its id and weight, and the storage id that was its newest then."""

    backend_id: bytes
    weight: int
    newest: bytes


class Earlier(NamedTuple):
    """An earlier mapping. `is_trimmed`: it was the trim's; else it was merged. `copies` 0: it placed nothing anywhere.

    The latter stands for several older trims, of which it excludes more than any of them.
    """

    is_trimmed: bool
    copies: int
    targets: tuple[Former, ...]


def earlier(config: Config) -> tuple[Earlier, ...]:
    """The earlier mappings that a config carries, the oldest first. `Config.check` has looked at their form."""
    data = dict(config.tags).get(EARLIER_TAG)
    return _decode(data) if data is not None else ()


def _with_earlier(config: Config, items: Sequence[Earlier]) -> Config:
    """The same with these earlier mappings, one at least, in the place of those that it lists."""
    return replace(config, tags=tuple(sorted({**dict(config.tags), EARLIER_TAG: _encode(items)}.items())))


def _encode(items: Iterable[Earlier]) -> bytes:
    out = []
    for item in items:
        out.append(u8(item.is_trimmed) + u8(item.copies) + u16(len(item.targets)))
        out += [t.backend_id + u64(t.weight) + t.newest for t in item.targets]
    return b"".join(out)


@lru_cache(maxsize=16)
def _decode(data: bytes) -> tuple[Earlier, ...]:
    r = Reader(data, "earlier mappings")
    out = []
    while r.pos < len(data):
        is_trimmed, copies, count = r.u8(), r.u8(), r.count(r.u16(), _TARGET_BYTES)
        targets = tuple(Former(r.take(16), r.u64(), r.take(16)) for _ in range(count))
        out.append(Earlier(bool(is_trimmed), copies, targets))
    return tuple(out)


def _former(config: Config, *, is_trimmed: bool) -> Earlier:
    stores = [b for b in config.backends if b.storage]
    targets = tuple(Former(b.backend_id, b.capacity_bytes, b.storage[-1].storage_id) for b in stores)
    return Earlier(is_trimmed, placement_of(config).copies, targets)


def trimmed(config: Config) -> Config:
    """The trim: what the changes displaced is moved, the earlier mappings are read no more."""
    past = [item for item in earlier(config) if item.is_trimmed]
    now = [*past, _former(config, is_trimmed=True)]
    while len(now) > EARLIER_MAX or len(_encode(now)) > TAG_BYTES_MAX:
        now[:2] = [now[1]._replace(copies=0)]
    return _with_earlier(unmoved(config), now)


def trims(config: Config) -> bytes:
    """What the trims were, in bytes: by them a storage id counts for a pack, or does not."""
    return _encode(item for item in earlier(config) if item.is_trimmed)


def unmoved(config: Config) -> Config:
    """The same, with nothing left to move: no config before is read."""
    return replace(config, prev_config=None).tagged(MOVING_TAG, None).tagged(DEAD_TAG, None)


def without(config: Config, backend_id: bytes) -> Config:
    """The same without this backend, and with a note that nobody is to ask it for what is to be moved."""
    left = removing(config, backend_id)
    tags = dict(left.tags) | {DEAD_TAG: b"".join(sorted(left.dead | {backend_id}))}
    return replace(left, tags=tuple(sorted(tags.items())))


def removing(config: Config, backend_id: bytes, *, emptied: bool = False) -> Config:
    """The same without this backend; where it is removed already, the note alone. `emptied`: it is to be emptied.

    Else it is not to be, whatever a config before said: who removes a backend says what becomes of it.
    """
    left = config.with_backends([b for b in config.backends if b.backend_id != backend_id])
    wanted = to_empty(left) - {backend_id} | ({backend_id} if emptied else set())
    tags = {t: data for t, data in left.tags if t != TO_EMPTY_TAG}
    if wanted:
        tags[TO_EMPTY_TAG] = b"".join(sorted(wanted))
    return replace(left, tags=tuple(sorted(tags.items())))


def to_empty(config: Config) -> frozenset[bytes]:
    """Ids of the removed backends that are to be emptied. One that is in use is none of them."""
    data = dict(config.tags).get(TO_EMPTY_TAG, b"")
    ids = frozenset(data[i : i + _ID_BYTES] for i in range(0, len(data), _ID_BYTES))
    return ids - {b.backend_id for b in config.backends}


def merged(old: Config, new: Config, *, since: Config | None = None) -> Config:
    """`new`, a change of `old` while data of an earlier change still move.

    `since`: the config that lists the mappings before, where it is not `old`.
    """
    return _with_earlier(new, [*earlier(since or old), _former(old, is_trimmed=False)])


def merges(config: Config) -> int:
    """How many changes were merged into the one whose data still move."""
    return sum(not item.is_trimmed for item in earlier(config))


def may_merge(old: Config, *, takes_out: bool = False) -> bool:
    """Whether one more change may be merged into those that are under way in `old`.

    One that `takes_out` a backend may come on top of so many others: they may be waiting for that backend, for ever.
    """
    items = earlier(old)
    count, size = merges(old), len(_encode(items))
    if takes_out:
        return count < 2 * MERGED_MAX and size + len(_encode([_former(old, is_trimmed=False)])) <= TAG_BYTES_MAX
    return count < MERGED_MAX and size < TAG_BYTES_MAX * 3 // 4


def fresh(old: Config, new: Config, previous: Config | None = None) -> set[bytes]:
    """Backends of both configs that need a new storage id: they may get packs that another mapping had elsewhere.

    `previous`: the mapping before, where `new` is merged into a change under way. What got an id in the course of that
    needs no other, for no trim has come since.
    """
    gain = gaining(old, new)
    cut = {t.backend_id: t.newest for i in earlier(old) if i.is_trimmed and not i.copies for t in i.targets}
    gain |= {b.backend_id for b in new.backends if b.storage and b.storage[-1].storage_id == cut.get(b.backend_id)}
    if previous is not None:
        before = {b.backend_id: {s.storage_id for s in b.storage} for b in previous.backends}
        now = {b.backend_id: b.storage[-1].storage_id for b in new.backends if b.storage}
        gain -= {i for i in gain if now[i] not in before.get(i, set())}
    return gain


class Places:
    """Where copies of packs are to lie under a config, and where they may lie still. `previous`: what is read beside.

    Not thread-safe.
    """

    def __init__(self, config: Config, previous: Config | None) -> None:
        self.now = placement_of(config)
        items = earlier(config)
        self.before = [placement_of(previous)] if previous is not None else []
        self.before += [self._mapping(i) for i in items if not i.is_trimmed]
        self._trims = [(self._mapping(i) if i.copies else None, {t.backend_id: t.newest for t in i.targets})
                       for i in items if i.is_trimmed]  # fmt: skip
        self._ids = {b.backend_id: tuple(s.storage_id for s in b.storage) for b in config.backends}
        self.counting = lru_cache(maxsize=ORDERS_KEPT_MAX)(self._counting)

    def _mapping(self, item: Earlier) -> Placement:
        return Placement([Target(t.backend_id, t.weight) for t in item.targets], copies=max(1, item.copies),
                         partitions=self.now.partitions)  # fmt: skip

    def partition(self, name: bytes) -> int:
        return partition_of(name, self.now.partitions)

    @property
    def copies_least(self) -> int:
        """How many copies a pack has at least, under whichever of the mappings it was stored."""
        return min(m.copies for m in (self.now, *self.before))

    def primary(self, name: bytes) -> tuple[bytes, ...]:
        """Ids of the backends that ought to hold a pack."""
        return self.now.primary(name)

    def had(self, name: bytes) -> tuple[bytes, ...]:
        """Ids of the backends that earlier mappings, still read, gave a pack."""
        return tuple(dict.fromkeys(i for m in self.before for i in m.primary(name)))

    def is_displaced(self, name: bytes) -> bool:
        """Whether a mapping that is still read places a pack elsewhere than this one."""
        now = set(self.now.primary(name))
        return any(set(m.primary(name)) != now for m in self.before)

    def receivers(self, name: bytes) -> list[bytes]:
        """The backends that a pack still has to be copied to, by the mappings alone."""
        return [i for i in self.now.primary(name) if any(i not in m.primary(name) for m in self.before)]

    def givers(self, name: bytes) -> list[bytes]:
        """The backends whose copies are surplus once the pack is moved, by the mappings alone."""
        return [i for i in self.had(name) if i not in self.now.primary(name)]

    def ids(self, backend_id: bytes, name: bytes) -> tuple[bytes, ...]:
        """The storage ids in which a copy on a backend counts, the newest first; empty where the pack may not lie."""
        return self.counting(backend_id, self.partition(name))

    def _counting(self, backend_id: bytes, partition: int) -> tuple[bytes, ...]:
        """Those younger than the last trim whose mapping did not give the backend the partition."""
        name = partition.to_bytes(8, "big")  # its partition is this one: H is less than 2^64
        ids = self._ids.get(backend_id, ())
        first = 0
        for mapping, newest in self._trims:
            was = newest.get(backend_id)
            if was in ids and (mapping is None or backend_id not in mapping.primary(name)):
                first = max(first, ids.index(was) + 1)
        return ids[first:][::-1]

    def is_surplus(self, backend_id: bytes, storage_id: bytes, record: PackRecord) -> bool:
        """Whether a copy may be deleted once all that count are verified: some trim has given it up."""
        return storage_id not in self.ids(backend_id, record.name)
