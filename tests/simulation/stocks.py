"""The packs on the stores, by rules of the simulator's own: what a version may name, what a trim may end, what may go.

It looks at every decision and every deletion as it lands (docs/design/moving.md, docs/design/collection.md):

    a version   names no new pack of a fenced generation or another key epoch, and none of which every copy is surplus
    a trim      is agreed only while every pack that the mappings place differently lies where the newest one wants it
    a list      of what is kept drops no versions to come
    a deletion  takes no copy that counts of a pack that the newest version names, and none while another is missing
                where it belongs; of other packs only fenced ones

Which copies count stands here a second time. Config, index and places are decoded by the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from metasync.config import BackendEntry, Config
from metasync.consensus.objects import open_object, seal_object
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.errors import FormatError
from metasync.keys.derive import RecordKind, sha256
from metasync.keys.keyring import WorkspaceKeys
from metasync.store.index import IndexRoot, PackRecord, decode_root, decode_segment, joined
from metasync.store.moves import Earlier, earlier
from metasync.store.pack_format import decode_header
from metasync.store.placement import Placement, Target, placement_of
from metasync.store.retained import Retained, decode_retained
from simulation.network import Store
from simulation.world import Violation

PackId = tuple[int, bytes]
_PACKS: Final = "/packs/"
AWAY_S: Final = 180.0  # so long after a call that failed a device may leave a backend out


def pack_id(path: str) -> PackId | None:
    """(generation, name) of the pack that a path names."""
    parts = path.partition(_PACKS)[2].split("/")
    with suppress(ValueError):
        return int(parts[0]), bytes.fromhex(parts[-1])
    return None


def storage_of(path: str) -> bytes:
    """The storage id under which a pack lies."""
    return bytes.fromhex(path.partition(_PACKS)[0].rpartition("/")[2])


class Stocks:
    """`bodies`: every pack that ever landed; `metas`: every object of the kind that versions name, by its hash.
    `riding`: entries, by store and path, that carried such an object, by its hash.

    `robbed`: identities of stores that were emptied. `blind` where nothing is to be asked any more: a
    recovery went on without what was lost.
    """

    def __init__(self, stores: Mapping[bytes, Store]) -> None:
        self.stores = stores
        self.bodies: dict[PackId, bytes] = {}
        self.metas: dict[bytes, bytes] = {}
        self.riding: dict[bytes, set[tuple[str, str]]] = {}
        self.robbed: set[bytes] = set()
        self.blind = False
        self.lies: set[bytes] = set()  # names of lists of what is kept that a device made up
        self.lacks_way: Callable[[bytes], bool] = lambda backend_id: False  # whether some device has no way there now
        self.surplus = 0  # copies of packs that the newest version names which were deleted
        self._since: list[Placement] = []  # how packs were placed before each change since the last trim
        self._indexes: dict[bytes, dict[PackId, PackRecord]] = {ZERO_HASH: {}}

    def landed(self, path: str, data: bytes) -> None:
        if _PACKS in path and (found := pack_id(path)) is not None and sha256(data) == found[1]:
            self.bodies.setdefault(found, data)
        elif "/meta/" in path:
            self.metas.setdefault(sha256(data), data)

    def rode(self, keys: WorkspaceKeys, base: State, value: State, riding: bytes, place: tuple[str, str]) -> None:
        """An entry at this place (store, path) carried something for the index root of its value."""
        digest, sealed = seal_object(
            keys, RecordKind.META, riding[32:], era=base.era, epoch=base.epoch, random=riding[:32]
        )
        if digest == value.index.hash:
            self.metas.setdefault(digest, sealed)
            self.riding.setdefault(digest, set()).add(place)

    def index(self, keys: WorkspaceKeys, state: State) -> dict[PackId, PackRecord] | None:
        """The packs that a state names; None where its index is nowhere, as an insider's may be."""
        digest = state.index.hash
        if digest not in self._indexes:
            root = self.root(keys, state)
            if root is None:
                return None
            segments = [
                decode_segment(i.inline or open_object(keys, RecordKind.META, self.metas[i.ref.hash]))
                for i in root.items
            ]
            gone = {key for segment in segments for key in segment.tombstones}
            packs = {p.id: p for segment in segments for p in segment.packs}
            self._indexes[digest] = {key: p for key, p in packs.items() if key not in gone}
        return self._indexes[digest]

    def root(self, keys: WorkspaceKeys, state: State) -> IndexRoot | None:
        """The root of the index that a state names; None where that is nowhere, or is none."""
        if state.index.hash == ZERO_HASH:
            return IndexRoot()
        try:
            return joined(
                decode_root(open_object(keys, RecordKind.META, self.metas[state.index.hash])),
                lambda ref: open_object(keys, RecordKind.META, self.metas[ref.hash]),
            )
        except (KeyError, FormatError):
            return None

    def retained(self, keys: WorkspaceKeys, state: State) -> Retained:
        """Which versions a state no longer keeps."""
        if state.retained.hash == ZERO_HASH:
            return Retained()
        return decode_retained(open_object(keys, RecordKind.META, self.metas[state.retained.hash]))

    # what counts

    def _holds(self, backend: BackendEntry, ids: Iterable[bytes], key: PackId) -> bool:
        objects = self.stores[backend.identity].objects
        ends = tuple(f"{i.hex()}{_PACKS}{key[0]}/{key[1].hex()[:2]}/{key[1].hex()}" for i in ids)
        return bool(ends) and any(p.endswith(ends) and sha256(data) == key[1] for p, data in objects.items())

    def _may_hold(self, backend: BackendEntry) -> bool:
        """Whether its copies may be asked for: it was not robbed of them, by no fault of the devices'."""
        return backend.identity not in self.robbed and not self.stores[backend.identity].gone

    # what happens

    def decided(self, keys: WorkspaceKeys, base: State, value: State, old: Config, new: Config) -> None:
        """A version was decided, on top of `base`."""
        since, self._since = self._since, self._since if new.prev_config is not None else []
        if new.prev_config is not None and new != old:
            self._since = [*since, placement_of(old)]
        if self.blind or value.era != base.era:
            return
        if value.retained.hash not in {base.retained.hash, *self.lies}:
            dropped = self.retained(keys, value).dropped
            if dropped and dropped[-1].last > base.v:
                raise Violation(f"version {value.v} drops version {dropped[-1].last}, which is still to come")
        before, after = self.index(keys, base), self.index(keys, value)
        if before is None or after is None:
            return
        for key in sorted(after.keys() - before.keys()):
            self._check_new(base, value, new, key)
        if old.prev_config is not None and new.prev_config is None:
            for key in sorted(after):
                self._check_moved(value, new, since, key)

    def _check_new(self, base: State, value: State, config: Config, key: PackId) -> None:
        what = f"version {value.v} names a new pack, {key[1].hex()[:16]},"
        if key[0] < base.min_gen:
            raise Violation(f"{what} of the fenced generation {key[0]}")
        body = self.bodies.get(key)
        if body is None:
            raise Violation(f"{what} that nobody ever stored")
        with suppress(FormatError):
            if decode_header(body).epoch != base.epoch:
                raise Violation(f"{what} of another key epoch")
        held = [self._holds(b, counting(config, b, key[1]), key) for b in config.backends]
        placed = placement_of(config).primary(key[1])
        stands_in = any(self._holds(b, [s.storage_id for s in b.storage], key) for b in config.backends)
        is_cut_off = stands_in and all(map(self.lacks_way, placed))  # a copy that stands in need not count (rule 6.4)
        is_cut_off |= stands_in and self._was_away(key, [b for b in config.backends if b.backend_id in placed])
        if not any(held) and not is_cut_off and all(self._may_hold(b) for b in config.backends):
            raise Violation(f"{what} that has no copy which counts")
        for backend in (b for b in config.backends if b.backend_id in placed):
            ids = {s.storage_id for s in backend.storage} - set(counting(config, backend, key[1]))
            if self._holds(backend, ids, key):
                raise Violation(f"{what} of which the copy on {backend.name} does not count")

    def _was_away(self, key: PackId, placed: Iterable[BackendEntry]) -> bool:
        """Whether whoever stored a pack had no answer, a moment ago, from any of the backends where it belongs.

        Then the copy that stands in may be the only one. It is deleted after those that count were verified alone, and
        no deletion of before can meet it, for nobody knew the pack.
        """
        wanted = [self.stores[b.identity] for b in placed]
        since = next(iter(self.stores.values())).world.now - AWAY_S
        writers = {s.writers.get(p, "") for s in self.stores.values() for p in s.objects if pack_id(p) == key}
        return any(all(s.failed.get(writer, 0.0) > since for s in wanted) for writer in writers)

    def lacking(self, config: Config, key: PackId) -> list[str]:
        """The backends that a pack belongs on, and that have no copy of it that counts, though nobody robbed them."""
        entries = {b.backend_id: b for b in config.backends}
        placed = [entries[i] for i in placement_of(config).primary(key[1])]
        return [b.name for b in placed if not self._holds(b, counting(config, b, key[1]), key) and self._may_hold(b)]

    def _check_moved(self, value: State, config: Config, since: Iterable[Placement], key: PackId) -> None:
        now = set(placement_of(config).primary(key[1]))
        if all(set(before.primary(key[1])) == now for before in since):
            return
        somewhere = any(pack_id(p) == key for s in self.stores.values() for p in s.objects)
        if somewhere and (lacking := self.lacking(config, key)):
            raise Violation(f"version {value.v} ends a move, and pack {key[1].hex()[:16]} is not on {lacking[0]}")

    def deleted(self, keys: WorkspaceKeys, store: Store, path: str, state: State, config: Config) -> None:
        """A copy is about to be deleted, while this is the newest state."""
        key = pack_id(path)
        packs = None if self.blind or key is None else self.index(keys, state)
        if packs is None or key is None:
            return
        if key not in packs:
            if key[0] >= state.min_gen:
                raise Violation(f"pack {key[1].hex()[:16]} is deleted on {store.name}, and no fence lets it go")
            return
        self.surplus += 1
        storage = storage_of(path)
        for backend in config.backends:
            if backend.identity == store.identity and storage in counting(config, backend, key[1]):
                raise Violation(f"a copy of pack {key[1].hex()[:16]} that counts is deleted on {store.name}")
        if config.prev_config is None and (lacking := self.lacking(config, key)):
            what = f"a copy of pack {key[1].hex()[:16]} is deleted on {store.name}"
            raise Violation(f"{what}, and there is none on {lacking[0]}, where it belongs")


def _mapping(item: Earlier, config: Config) -> Placement:
    targets = [Target(t.backend_id, t.weight) for t in item.targets]
    return Placement(targets, copies=item.copies, partitions=config.mapping.partitions)


def counting(config: Config, backend: BackendEntry, name: bytes) -> list[bytes]:
    """The storage ids of a backend in which a copy of a pack counts: all younger than the last trim that had placed the
    pack elsewhere."""
    out = [s.storage_id for s in backend.storage]
    for item in earlier(config):
        newest = next((t.newest for t in item.targets if t.backend_id == backend.backend_id), None)
        if not item.is_trimmed or newest not in out:
            continue
        if not item.copies or backend.backend_id not in _mapping(item, config).primary(name):
            out = out[out.index(newest) + 1 :]
    return out
