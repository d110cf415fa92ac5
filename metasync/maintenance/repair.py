"""Makes whole what `check` found: copies of packs from other copies, and lost objects from this folder and its cache.

A pack that nobody has any more leaves the index, and what this device has of its objects is stored anew. So no push
takes for stored what is lost, and each device that repairs adds what it alone has. A pack is given up only when every
backend that holds data has said that it has it not, or not intact; while one is away, it may come back with it.

Nothing is deleted here, so two devices may repair the same at once: the same bytes are stored under the same name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

from metasync.consensus import JOURNAL_KEY, Change, Ref, State
from metasync.errors import CANNOT_BE_READ, BackendError, MetaSyncError, NoQuorumError, WorkspaceError
from metasync.events import Notice, Phase, Progress
from metasync.local.memory import room_for_tree
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.reports.backends import Gone, Repaired
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, space
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store.index import Index, IndexSegment, PackId, PackRecord
from metasync.store.moves import Places
from metasync.store.pack_format import Located
from metasync.transfer.contents import Contents
from metasync.transfer.moving import bring
from metasync.transfer.upload import Upload, known_in
from metasync.worktree.ingest import reread

OP_ID_BYTES: Final = 16
PACKS_MENDED_AT_ONCE: Final = 4  # each held in memory


class Finding(NamedTuple):
    """A pack with which something is wrong. `good`: ids of the backends that hold it intact, `bad`: those that should
    and do not. `is_sure`: every backend that may hold it has been heard."""

    record: PackRecord
    good: tuple[bytes, ...]
    bad: tuple[bytes, ...]
    is_sure: bool


def repair(s: Session, agreed: Agreed, found: Sequence[Finding], nowhere: bool) -> tuple[Repaired, Agreed]:
    """Makes whole what was found, as far as that can be had. -> also what is agreed then.

    `nowhere`: files of the newest version are in no pack, which this folder may have.
    """
    s.listener(Phase("repair"))
    space.begin_asking(s, agreed.index)()
    copies, copied, altered = _mend(s, [f for f in found if f.good and f.bad])
    none = [f for f in found if not f.good or f.record.id in altered]
    lost, away = [f.record for f in none], sum(not f.is_sure for f in none)
    out = Repaired(copies=copies, copied_bytes=copied, waits=away)
    lost = lost if not away else []
    if not lost and not nowhere:
        return out, agreed
    for _ in range(LOST_ROUNDS_MAX):
        given = give_back(s, agreed, lost)
        if given.root is None:
            return out, agreed
        state, mine = name_in_index(s, agreed.state, given.root)
        agreed = s.load(state)
        if mine:
            files = gone_files(s, agreed, given.gone) if given.gone else ()
            out = replace(out, stored_bytes=given.bytes_stored, version=state.v, gone=files)
            return replace(out, gone_objects=0 if files else len(given.gone)), agreed
        lost = [p for p in lost if p.id in agreed.index.packs()]  # as far as nobody else did it meanwhile
    raise WorkspaceError(
        f"others were faster {LOST_ROUNDS_MAX} times; what is lost is not stored anew yet", next_step="Run again."
    )


def nowhere(s: Session, agreed: Agreed) -> tuple[bytes, ...]:
    """The files of the newest version of which the agreed index names no contents. What cannot be read is told."""
    if agreed.tree_root is None:
        return ()
    try:
        tree = s.flat(agreed)
    except CANNOT_BE_READ as e:
        s.listener(Notice(f"the newest version cannot be read: {e.message}", warning=True))
        return ()
    index = agreed.index
    return tuple(sorted(p for p, e in tree.items() if _has_bytes(e) and (e.root or e.content) not in index))


# ---- copies from other copies


def _mend(s: Session, found: Sequence[Finding]) -> tuple[int, int, set[PackId]]:
    """-> how many copies were made again, the bytes of them, and the packs of which no copy was right after all."""
    t, copies, copied, altered = s.transfer, 0, 0, set[PackId]()
    places = Places(s.config, s.previous)
    running: dict[Future[Any], Finding] = {}
    todo = iter(found)
    while True:
        for f in todo:
            name, to = f.record.name, [place for i in f.bad if (place := t.places.get(i)) is not None]
            wanted = [p._replace(storage_ids=places.ids(p.backend_id, name)[::-1]) for p in to]
            task = bring(t, f.record, wanted, t.read_order(name), are_all=f.is_sure)
            running[s.runtime.start(task)] = f
            if len(running) >= PACKS_MENDED_AT_ONCE:
                break
        if not running:
            return copies, copied, altered
        for future in s.runtime.wait(running):
            f, brought = running.pop(future), future.result()
            copies += len(brought.sent)
            copied += f.record.size * len(brought.sent)
            altered |= {f.record.id} if brought.is_lost else set()
            s.listener(Progress("copies", copies, None, "copies"))


# ---- objects from this device


class Given(NamedTuple):
    """What was stored anew. `root`: of the index that names it, None where there is nothing to be named.

    missing  files of the newest version that cannot be had; `gone`: objects of the lost packs that cannot
    """

    root: Ref | None
    bytes_stored: int
    missing: tuple[bytes, ...]
    gone: frozenset[bytes]


def give_back(s: Session, agreed: Agreed, lost: Sequence[PackRecord] = ()) -> Given:
    """Stores anew what the newest version needs and no pack holds, and what the packs `lost` held, as far as this
    folder or its cache has it. The index that is stored names the lost packs no more."""
    upload = Upload(
        s.transfer,
        replace(s.form, epoch=agreed.state.epoch),
        agreed.state.gen,
        runner=s.runtime,
        listener=s.listener,
        entropy=s.entropy,
        begin=lambda: lambda: None,
    )
    before, without = agreed, [IndexSegment((), b"", tuple(sorted(p.id for p in lost)))] if lost else []
    if lost:
        agreed = replace(agreed, index=Index((*agreed.segments, *without)))
        for record in lost:
            _store_objects(s, s.contents(before), agreed.index, record, upload)
    missing = _store_tree(s, agreed, upload)
    upload.finish()
    fresh = chain(without, upload.index_segments())
    stored = s.indexes.store(before.state, before.root, before.segments, fresh)
    known = known_in(agreed.index, upload)
    gone = {o.id for p in lost for o in before.index.inside(p) if not known(o.id)}
    return Given(stored, upload.bytes_stored, tuple(missing), frozenset(gone))


def _store_objects(s: Session, contents: Contents, rest: Index, record: PackRecord, upload: Upload) -> None:
    """Of a lost pack: what is cached here, and what can be read of its damaged copies."""
    wanted = {o.id: o.kind for o in contents.index.inside(record) if o.id not in rest}
    cached = s.db.get_objects([i for i in wanted if i not in upload])
    for object_id, data in cached.items():
        if s.ids.of(wanted[object_id], data) == object_id:
            upload.add(wanted[object_id], object_id, data)
    got: dict[bytes, tuple[ObjectKind, bytes]] = {}

    def take(objects: Sequence[tuple[Located, memoryview]]) -> None:
        got.update((o.id, (o.kind, bytes(data))) for o, data in objects)

    contents.fetch([i for i in wanted if i not in upload], take, on_lost=lambda *_: None)
    for object_id, (kind, data) in got.items():
        upload.add(kind, object_id, data)


def _store_tree(s: Session, agreed: Agreed, upload: Upload) -> list[bytes]:
    """Of the newest version: directories, its snapshot, and files as they stand here. -> files that cannot be had."""
    if agreed.tree_root is None:
        return []
    known, contents = known_in(agreed.index, upload), s.contents(agreed)
    try:
        tree = s.flat(agreed, contents)
        snapshot = contents.load(ObjectKind.SNAPSHOT, [agreed.state.master])[agreed.state.master]
    except MetaSyncError as e:
        s.listener(Notice(f"the newest version cannot be read: {e.message}", warning=True))
        return []
    missing = _store_files(s, contents, tree, upload)
    _, nodes = walk.build(tree, s.ids)
    for object_id, data in nodes.items():
        if not known(object_id):
            upload.add(ObjectKind.DIR, object_id, data)
    if not known(agreed.state.master):
        upload.add(ObjectKind.SNAPSHOT, agreed.state.master, snapshot)
    return missing


def _store_files(s: Session, contents: Contents, tree: Mapping[bytes, Entry], upload: Upload) -> list[bytes]:
    """-> the files whose bytes are in no pack, and that do not stand here as they were agreed."""
    known = known_in(contents.index, upload)
    ingest = s.ingest(sink=upload.add, known=known)
    missing = []
    for path, entry in sorted(tree.items()):
        held = not _has_bytes(entry) or _is_held(contents, entry)
        if not held and not reread(s.tree, path, entry, ingest):
            missing.append(path)
    return missing


def _has_bytes(entry: Entry) -> bool:
    return entry.kind is Kind.FILE and entry.size > 0


def _is_held(contents: Contents, entry: Entry) -> bool:
    """Whether packs hold all that a file is made of."""
    if not entry.root:
        return entry.content in contents.index
    if entry.root not in contents.index:
        return False
    try:
        pieces = contents.walk(walk.chunks((entry.root,)))[entry.root]
    except MetaSyncError:
        return False
    return all(c.id in contents.index for c in pieces)


def name_in_index(s: Session, base: State, index: Ref | None) -> tuple[State, bool]:
    """Has a version agreed whose index this is, with the same files. -> the state decided, and whether it is this."""
    decided = agreement.propose(s, base, Change(op_id=s.entropy(OP_ID_BYTES), index=index))
    state = decided.state
    s.db.set(JOURNAL_KEY, None)
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(s.group.write_hint(base, state, now=True, everywhere=True))
    if s.base_state().master == state.master and not s.db.has(UNFINISHED_KEY):
        s.load(state)
        s.db.set(BASE_KEY, state)
    return state, decided.mine


# ---- what nobody has


def gone_files(s: Session, agreed: Agreed, gone: Container[bytes]) -> tuple[Gone, ...]:
    """The files of all versions whose contents are among `gone`, the oldest first."""
    contents, out = s.contents(agreed), []
    last: dict[bytes, int] = {}  # of files that are gone in the version looked at: the last version that has them
    later: Snapshot | None = None
    for snapshot in _line(s, contents, agreed):
        with contextlib.suppress(*CANNOT_BE_READ):
            after, version = (later.root if later is not None else None), version_of(snapshot)
            for path, (old, new) in contents.walk(walk.diff(snapshot.root, after, room_for_tree)).items():
                if path in last and new is not None and later is not None:
                    out.append(Gone(path, version_of(later), last.pop(path)))
                if old is not None and _has_bytes(old) and _is_gone(contents, old, gone):
                    last[path] = version
        later = snapshot
    oldest = version_of(later) if later is not None else 0
    out += [Gone(path, oldest, v) for path, v in last.items()]
    return tuple(sorted(out, key=lambda g: (g.first, g.path)))


def _line(s: Session, contents: Contents, agreed: Agreed) -> Iterator[Snapshot]:
    """The snapshots that can be read, newest first."""
    snapshot, retained = agreed.snapshot, s.indexes.retained(agreed.state)
    while snapshot is not None:
        yield snapshot
        if not snapshot.parents or snapshot.parents[0] not in contents:
            return
        try:
            before = snapshot.parents[0]
            snapshot = retained.as_kept(before, decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [before])[before]))
        except CANNOT_BE_READ:
            return


def _is_gone(contents: Contents, entry: Entry, gone: Container[bytes]) -> bool:
    if not entry.root:
        return entry.content in gone
    if entry.root in gone:
        return True
    try:
        return any(c.id in gone for c in contents.walk(walk.chunks((entry.root,)))[entry.root])
    except CANNOT_BE_READ:
        return True
