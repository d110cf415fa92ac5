"""What a state names, read from the stores themselves: every pack, every tree, all of history."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress

from metasync.config import Config, decode_config
from metasync.consensus.objects import open_object
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import RecordKind
from metasync.keys.keyring import WorkspaceKeys
from metasync.objects import delta, walk
from metasync.objects.model import Ids, Kind, ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.session import open_backend
from metasync.store import pack_format
from metasync.store.index import decode_root, decode_segment, joined
from metasync.store.pack_format import DELTA, DEPTH_MAX, delta_at
from metasync.store.packs import PackFormat, WorkspacePackKeys, read_footer, read_objects, read_segment
from metasync.store.retained import Retained
from simulation.network import Store
from simulation.stocks import Stocks
from simulation.world import Violation


class Library:
    """All that lies on the stores, by name, whoever's copy it is; opened as it is asked for.

    `stocks`: of what was ever there.
    """

    def __init__(self, keys: WorkspaceKeys, stores: Mapping[str, Store], stocks: Stocks) -> None:
        self.keys = keys
        self.stocks = stocks
        self.ids = Ids(keys.id_key)
        self._by_hash: dict[bytes, bytes] = {}
        for store in stores.values():
            for path, data in store.objects.items():
                if "/packs/" in path or "/meta/" in path or "/const/" in path:
                    self._by_hash.setdefault(hashlib.sha256(data).digest(), data)
        held = {store.name: store.objects for store in stores.values()}
        for digest, places in stocks.riding.items():
            if any(path in held.get(name, ()) for name, path in places):
                self._by_hash.setdefault(digest, stocks.metas[digest])
        self._objects: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._deltas: dict[bytes, set[tuple[int, bytes, bytes]]] = {}  # by blob: (depth, base, bytes) of each
        self.dropped = False  # whether a recovery found packs of which nothing was left: then history has holes

    def _meta(self, kind: RecordKind, digest: bytes, what: str) -> bytes:
        data = self._by_hash.get(digest)
        if data is None:
            raise Violation(f"{what} {digest.hex()[:16]} is intact on no backend")
        return open_object(self.keys, kind, data)

    def config(self, state: State) -> Config:
        return decode_config(self._meta(RecordKind.CONST, state.config, "the config"))

    def contents_of(self, state: State) -> set[bytes]:
        """The contents of all files and links in all versions up to `state` that are kept, and of dropped ones all that
        was ever packed. `Violation`: one that is kept cannot be read."""
        self._read_packs(state)
        retained = self.stocks.retained(self.keys, state)
        out: set[bytes] = set()
        roots: set[bytes] = set()
        seen, todo = set(), [state.master]
        while todo:
            snapshot_id = todo.pop()
            if snapshot_id in seen:
                continue
            seen.add(snapshot_id)
            try:
                snapshot = decode_snapshot(self._object(ObjectKind.SNAPSHOT, snapshot_id))
                todo += _needed(snapshot, retained)
                if snapshot.root not in roots:
                    roots.add(snapshot.root)
                    out |= self._tree(snapshot.root)
            except Violation:
                if not self.dropped or snapshot_id == state.master:
                    raise
        if retained.dropped:
            for (_, name), data in self.stocks.bodies.items():
                self._read_pack(name, data, self._form(state))
            out |= {data for kind, data in self._objects.values() if kind is ObjectKind.BLOB}
            out |= {data for data in map(self._made_of_a_delta, self._deltas) if data is not None}
        return out

    def newest_of(self, state: State) -> set[bytes]:
        """The contents of all files and links of this version. After `contents_of`."""
        return self._tree(decode_snapshot(self._object(ObjectKind.SNAPSHOT, state.master)).root)

    def _form(self, state: State) -> PackFormat:
        config = self.config(state)
        return PackFormat(
            keys=WorkspacePackKeys(self.keys),
            chains=tuple(open_backend.chain_of(names) for names in config.chains),
            epoch=self.keys.epoch,
            level=config.compression_level,
            segment_bytes=config.segment_bytes,
            pack_bytes=config.pack_bytes,
        )

    def _read_packs(self, state: State) -> None:
        form = self._form(state)
        if state.index.hash == ZERO_HASH:
            return
        root = joined(
            decode_root(self._meta(RecordKind.META, state.index.hash, "the pack index")),
            lambda ref: self._meta(RecordKind.META, ref.hash, "a part of the pack index"),
        )
        segments = [
            decode_segment(item.inline or self._meta(RecordKind.META, item.ref.hash, "a segment of the pack index"))
            for item in root.items
        ]
        dropped = {key for segment in segments for key in segment.tombstones}
        self.dropped = bool(dropped)
        for segment in segments:
            for record in segment.packs:
                data = self._by_hash.get(record.name)
                if data is None and (record.generation, record.name) in dropped:
                    continue
                if data is None:
                    raise Violation(f"pack {record.name.hex()[:16]}, which version {state.v} names, is on no backend")
                self._read_pack(record.name, data, form)

    def _read_pack(self, name: bytes, data: bytes, form: PackFormat) -> None:
        _, footer = read_footer(data, name, form)
        at = pack_format.offsets(footer.segments)
        header = data[: pack_format.HEADER_BYTES]
        for number, segment in enumerate(footer.segments):
            stored = data[at[number] : at[number] + segment.stored_bytes]
            raw = read_segment(header, stored, number, segment, form, verified=True)
            located = [o for o in footer.objects if o.segment == number]
            for item, piece in read_objects(raw, located, self.ids.of):
                if item.encoding == DELTA:
                    row = delta_at(footer.tags, item)
                    self._deltas.setdefault(item.id, set()).add((row.depth, row.base, bytes(piece)))
                else:
                    self._objects[item.id] = (item.kind, bytes(piece))

    def _object(self, kind: ObjectKind, object_id: bytes) -> bytes:
        found = self._objects.get(object_id)
        if found is not None and found[0] == kind:
            return found[1]
        data = self._made_of_a_delta(object_id) if kind is ObjectKind.BLOB else None
        if data is None:
            of = " but as a delta that does not open" if object_id in self._deltas else ""
            raise Violation(f"{kind.name.lower()} {object_id.hex()[:16]}, which a version names, is in no pack{of}")
        return data

    def _made_of_a_delta(self, object_id: bytes, below: int = DEPTH_MAX + 1) -> bytes | None:
        """A blob that is stored as a delta of less than this depth; None: none opens (format.md, 5.8)."""
        for depth, base_id, data in sorted(self._deltas.get(object_id, ())):
            if depth >= below:
                return None
            whole = self._objects.get(base_id)
            base = self._made_of_a_delta(base_id, depth) if whole is None else whole[1]
            with suppress(FormatError, UpgradeError):
                if base is not None and self.ids.of(ObjectKind.BLOB, made := delta.opened(base, data)) == object_id:
                    return made
        return None

    def _tree(self, root: bytes) -> set[bytes]:
        task = walk.flatten(root)
        try:
            needs = next(task)
            while True:
                kind, wanted = needs
                needs = task.send({i: self._object(kind, i) for i in wanted})
        except StopIteration as stop:
            tree = stop.value
        out = set()
        for entry in tree.values():
            if entry.kind is Kind.SYMLINK:
                out.add(entry.content)
            elif entry.kind is Kind.FILE and not entry.root:
                out.add(self._object(ObjectKind.BLOB, entry.content) if entry.size else b"")
            elif entry.kind is Kind.FILE:
                raise AssertionError("simulated users write files of one chunk")
        return out


def _needed(snapshot: Snapshot, retained: Retained) -> list[bytes]:
    """The snapshots that a kept one stands on: the version before that is kept, and what a merge replaced.

    What was replaced was no version. The one that it was made from stands in the history of versions, if it is kept.
    """
    v = version_of(snapshot)
    if not v:
        return list(snapshot.parents[1:])
    gap = retained.over(v - 1)
    if gap is None:
        return list(snapshot.parents)
    return [gap.below] * (gap.below != ZERO_HASH) + list(snapshot.parents[1:])
