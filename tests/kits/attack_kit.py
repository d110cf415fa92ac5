"""What the tests of attacks share: an insider, which is a device of the workspace that writes whatever it likes.

Its objects have right ids, its packs and states are sealed and signed with its own valid keys: what only a device can
make up. The ordinary code of a push refuses such trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from workspace_kit import Lab

from metasync.codec import Tags, bytes16, u64
from metasync.consensus import JOURNAL_KEY, ZERO_HASH, Change, Ref
from metasync.consensus.records.entry import Entry as LogEntry
from metasync.consensus.records.entry import Kind as LogKind
from metasync.consensus.records.entry import Round, entry_path, seal_entry
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.keys.derive import sha256
from metasync.objects import walk
from metasync.objects.directory import _HEAD, _NODE
from metasync.objects.model import VERSION_TAG, Entry, Kind, ObjectKind, Snapshot, encode_snapshot
from metasync.session import agreement
from metasync.session.session import Agreed, Session
from metasync.sync.packing import Packing
from metasync.workspace import Workspace

NO_BLOB = b"\x5a" * 32  # the id of a blob that nobody has


def named(name: bytes, kind: int, content: bytes, *, mode: int = 0o644, size: int = 0, tail: bytes = b"\0") -> bytes:
    """One entry of a directory as it stands in one, whatever it says."""
    return _HEAD.pack(kind, mode, 0, size, len(name)) + name + content + tail


def node(entries: Iterable[bytes], *, fmt: int = 1, level: int = 0) -> bytes:
    """A directory object of these entries, in the given order."""
    entries = list(entries)
    return _NODE.pack(fmt, level, len(entries)) + b"".join(entries)


def child(name: bytes, node_id: bytes) -> bytes:
    """A child of an inner node."""
    return bytes16(name) + node_id


class Insider:
    """One version in the making. `base` is what it stands on."""

    def __init__(self, s: Session, base: Agreed) -> None:
        self.s = s
        self.base = base
        self._upload = Packing(s, None, lambda: None, lambda _: lambda: None, {}).upload_for(base)

    def put(self, kind: ObjectKind, data: bytes, *, lose: bool = False) -> bytes:
        """Stores an object, or does not; -> its id."""
        object_id = self.s.ids.of(kind, data)
        if not lose:
            self._upload.add(kind, object_id, data)
        return object_id

    def directory(self, *entries: bytes, fmt: int = 1) -> bytes:
        """Stores a directory of these entries; -> its id."""
        return self.put(ObjectKind.DIR, node(entries, fmt=fmt))

    def file(self, data: bytes, **values: int) -> Entry:
        """Stores a small file; -> its entry. `values`: others than it would have."""
        return Entry(Kind.FILE, 0o644, 0, len(data), self.put(ObjectKind.BLOB, data))._replace(**values)

    def tree(self, changes: Mapping[bytes, Entry | None]) -> bytes:
        """Stores the base's tree with these entries in the place of what is there; -> the root's id."""
        tree = self.s.flat(self.base)
        for path, entry in changes.items():
            if entry is None:
                del tree[path]
            else:
                tree[path] = entry
        root, nodes = walk.build(tree, self.s.ids)
        for data in nodes.values():
            self.put(ObjectKind.DIR, data)
        return root

    def commit(
        self,
        root: bytes,
        message: str = "",
        *,
        lose: bool = False,
        snapshot: bytes | None = None,
        tags: Tags = (),
        index: Ref | None = None,
    ) -> int:
        """Has a version with this root agreed; -> its number. `lose`: its snapshot is not stored.

        `index`: it names this one in place of that which was stored.
        """
        s, state = self.s, self.base.state
        parents = (state.master,) if self.base.snapshot is not None else ()
        made = Snapshot(
            root, parents, s.device.device_id, s.wall_ns(), message, ((VERSION_TAG, u64(state.v + 1)), *tags)
        )
        master = self.put(ObjectKind.SNAPSHOT, encode_snapshot(made) if snapshot is None else snapshot, lose=lose)
        upload = self._upload
        upload.seal()
        segments = upload.index_segments()
        with s.indexes.storing(state, self.base.root, self.base.segments, segments) as stored:
            upload.finish()
            refs = stored()
        index = index or (refs[-1] if refs else None)
        decided = agreement.propose(
            s, state, Change(s.entropy(16), master=master, index=index, adding=tuple(refs[:-1]))
        )
        s.db.set(JOURNAL_KEY, None)
        assert decided.mine
        return decided.state.v


@contextmanager
def insider(workspace: Workspace) -> Iterator[Insider]:
    """The device of this workspace writes a version of its own making, on top of the newest."""
    with workspace._work.begun("push") as s:
        yield Insider(s, agreement.newest(s))


def spoil(
    lab: Lab, workspace: Workspace, how: str, names: Iterable[str], entries: int, *, at: Workspace | None = None
) -> None:
    """The device of this workspace ends the version after the newest on these backends, with its own keys and logins.

    `how`: "garbage" in the next place of the logs, a PREPARE of the "last round", or logs that are "full", of so many
    `entries`. `at`: the device whose newest version is meant; the names are computed with this device's keys all the
    same.
    """
    at = at or workspace
    with at._session("status") as s:
        base, config = s.newest_state(), s.config
    with workspace._session("status") as s:
        keys, me = s.keys, s.device
    epoch = min(base.epoch, keys.epoch)
    for backend, acceptor in config.acceptors:
        if backend.name not in names:
            continue
        a, v = acceptor.acceptor_id, base.v + 1
        folder = next(lab.store(backend.name).rglob(a.hex())).parent
        last = ZERO_HASH
        for idx in range(entries if how == "full" else 1):
            n = ROUND_MAX if how == "last round" else idx + 1
            entry = LogEntry(
                acceptor_id=a, v=v, idx=idx, prev_entry=last, base=base, kind=LogKind.PREPARE,
                round=Round(n, b"\x66" * 16), value=None, entry_id=bytes([idx]) * 16, device_id=me.device_id,
            )  # fmt: skip
            data = b"garbage" if how == "garbage" else seal_entry(keys, entry, me.sign_private, bytes([idx]) * 32)
            last = sha256(data)
            place = folder / entry_path(keys, epoch, base.era, a, v, idx)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
