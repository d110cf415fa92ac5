"""Stores anew what no pack gives, from this device, wherever it has it (`matching_files`), and has an index agreed.

So no push takes for stored what is lost, and each device that repairs adds what it alone has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from metasync.consensus import JOURNAL_KEY, Change, Ref, State
from metasync.errors import BackendError, MetaSyncError, NoQuorumError
from metasync.events import Notice
from metasync.local.spill import IdSet
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance.repair import matching_files
from metasync.maintenance.repair.lost_paths import Found, Unread, held, lacking
from metasync.maintenance.repair.needs import Needs
from metasync.maintenance.repair.untrue_rows import NO_ROWS, UntrueRows, true_index
from metasync.objects.directory import Bytes
from metasync.objects.directory import Needs as Wanted
from metasync.objects.model import Entry, ObjectKind
from metasync.objects.walk_large import Losses, gather
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store import deltas
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import WHOLE, Located
from metasync.transfer.contents import Contents
from metasync.transfer.upload import Upload
from metasync.worktree.ingest import reread

OP_ID_BYTES: Final = 16
OPENED_TOGETHER_BYTES: Final = 32 << 20  # of blobs that are deltas


class Given(NamedTuple):
    """What was stored anew. `root`: of the index that names it, None where there is nothing to be named.

    missing  paths of the newest version that cannot be had; `gone`: objects of the lost packs that cannot, and so many
             of packs that are there and were `untrue` to them
    """

    root: Ref | None
    bytes_stored: int
    missing: Sequence[bytes]
    gone: IdSet
    untrue: int = 0


def give_back(
    s: Session,
    agreed: Agreed,
    lost: Sequence[PackRecord] = (),
    *,
    are_all_heard: bool = False,
    untrue: UntrueRows = NO_ROWS,
    are_all: bool = False,
    needs: Needs | None = None,
) -> Given:
    """Stores anew what the newest version needs and no pack gives, and what the packs `lost` held, as far as this
    folder, in whatever file, or its cache has it. The index that is stored names the lost packs no more.

    `are_all`: also what older versions need and no pack gives. `needs`: what that is, where a mark was made already.

    `are_all_heard`: what no backend has told is nowhere. Then packs with deltas that cannot be opened leave it, too.
    `untrue`: the packs with these rows leave it, too, as far as all else that lies in them is stored anew.
    """
    upload = upload_for(s, agreed)
    before, there = agreed, true_index(agreed, untrue)

    def left(packs: Sequence[PackRecord]) -> Agreed:
        return true_index(_without(before, packs), untrue)

    doubted = [p for i in untrue.packs() if (p := before.index.packs().get(i)) is not None and p not in lost]
    agreed = left([*lost, *doubted])
    for record in [*lost, *doubted]:
        _store_objects(s, s.contents(there), agreed.index, record, upload)
    lost = [*lost, *(p for p in doubted if _is_free(there.index, agreed.index, p, upload))]
    agreed = left(lost)
    missing = _store_tree(s, agreed, upload)
    if are_all or missing:
        needs = Needs(s, agreed, are_all=are_all) if needs is None else needs
        listed = (o for p in dict.fromkeys([*lost, *doubted]) for o in before.index.inside(p))
        found = matching_files.find(s, agreed, _known(agreed.index, upload), upload, listed, needs)
        missing = missing.but(found)
    if are_all_heard and (broken := [*deltas.dangling(agreed.index, upload.__contains__).values()]):
        rest = left([*lost, *broken]).index
        for record in broken:
            _store_objects(s, s.contents(there), rest, record, upload)
        lost = [*lost, *(p for p in broken if _is_free(agreed.index, rest, p, upload))]
        agreed = left(lost)
    upload.finish()
    fresh = chain(agreed.segments[len(before.segments) :], upload.index_segments())
    stored = s.indexes.store(before.state, before.root, before.segments, fresh)
    known = _known(agreed.index, upload)
    gone, was_there = IdSet(), IdSet()
    for pack in lost:
        for object_id in (o.id for o in before.index.inside(pack) if not known(o.id)):
            gone.add(object_id)
            if not untrue.has(pack.id, object_id):
                was_there.add(object_id)
    return Given(stored, upload.bytes_stored, missing.all(), gone, len(gone) - len(was_there))


def upload_for(s: Session, agreed: Agreed) -> Upload:
    """What stores on top of an agreed state."""
    return Upload(
        s.transfer,
        replace(s.form, epoch=agreed.state.epoch),
        agreed.state.gen,
        runner=s.runtime,
        listener=s.listener,
        entropy=s.entropy,
        clock=s.runtime.clock,
        begin=lambda: lambda: None,
    )


def _without(agreed: Agreed, packs: Sequence[PackRecord]) -> Agreed:
    """The same with an index that does not name these packs."""
    if not packs:
        return agreed
    return replace(agreed, index=Index((*agreed.segments, make_segment((), (p.id for p in packs)))))


def _known(index: Index, upload: Upload) -> Callable[[bytes], bool]:
    """Whether an object need not be stored: it is, or the index gives it with what is stored."""
    given = deltas.Given(index, upload.__contains__)
    return lambda object_id: object_id in upload or object_id in given


def _is_as_deep(index: Index, rest: Index, object_id: bytes) -> bool:
    """Whether the rest of an index has an object at no greater depth: deltas of it count on that."""
    there, here = deltas.depth_of(rest, object_id), deltas.depth_of(index, object_id)
    return there is not None and (here is None or there <= here)


def _is_free(index: Index, rest: Index, record: PackRecord, upload: Upload) -> bool:
    """Whether the rest of an index, and what is stored, have all that a pack gives."""
    given = deltas.Given(index, upload.__contains__)
    return all(o.id in upload or _is_as_deep(index, rest, o.id) or o.id not in given for o in index.inside(record))


def _store_objects(s: Session, contents: Contents, rest: Index, record: PackRecord, upload: Upload) -> None:
    """Of a pack that goes: what is cached here, and what can be read of it, or of its damaged copies."""
    inside = contents.index.inside(record)
    wanted = {o.id: o.kind for o in inside if not _is_as_deep(contents.index, rest, o.id)}
    cached = s.db.get_objects([i for i in wanted if i not in upload])
    for object_id, data in cached.items():
        if s.ids.of(wanted[object_id], data) == object_id:
            upload.add(wanted[object_id], object_id, data)
    some = [i for i in dict.fromkeys(o.id for o in inside if o.encoding == WHOLE) if i in wanted]
    size = 0
    for object_id in dict.fromkeys(o.id for o in inside if o.encoding != WHOLE and o.id in wanted):
        if size >= OPENED_TOGETHER_BYTES:  # blobs may be far larger than the deltas that a pack has of them
            store_read(contents, some, upload)
            some, size = [], 0
        some.append(object_id)
        size += contents.size_of(object_id)
    store_read(contents, some, upload)


def store_read(contents: Contents, ids: Sequence[bytes], upload: Upload) -> None:
    """Of these objects those that can be read."""
    got: dict[bytes, tuple[ObjectKind, bytes]] = {}

    def take(objects: Sequence[tuple[Located, memoryview]]) -> None:
        got.update((o.id, (o.kind, bytes(data))) for o, data in objects)

    contents.fetch([i for i in ids if i not in upload], take, on_lost=lambda *_: None)
    for object_id, (kind, data) in got.items():
        upload.add(kind, object_id, data)


def _store_tree(s: Session, agreed: Agreed, upload: Upload) -> Found:
    """Of the newest version: directories, its snapshot, and files as they stand here. -> files that cannot be had."""
    missing = Found()
    if agreed.tree_root is None:
        return missing
    known, contents = _known(agreed.index, upload), s.contents(agreed)
    ingest, unread = s.ingest(sink=upload.add, known=known), Unread(contents)

    def store(kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        if not known(object_id):
            upload.add(kind, object_id, data)

    def take(entries: list[tuple[bytes, Entry]]) -> None:
        for path, entry in lacking(contents, agreed, entries, unsure=True):
            if not reread(s.tree, path, entry, ingest):
                missing.add(path, entry)

    def told(prefix: bytes, _: bytes) -> None:
        missing.add(prefix or b"/")

    tree = gather(agreed.tree_root, contents.size_of, take, held, Losses(told))
    try:
        contents.walk(_storing(tree, store), on_lost=unread)
        if not known(agreed.state.master):
            snapshot = contents.load(ObjectKind.SNAPSHOT, [agreed.state.master])[agreed.state.master]
            upload.add(ObjectKind.SNAPSHOT, agreed.state.master, snapshot)
    except MetaSyncError as e:
        unread.why = e
    if unread.why is not None:
        s.listener(Notice(f"the newest version cannot be read: {unread.why.message}", warning=True))
    return missing


def _storing(walked: Generator[Wanted, Bytes, None], store: matching_files.Store) -> Generator[Wanted, Bytes, None]:
    """The same walk. What it reads goes to `store`."""
    needs = next(walked, None)
    while needs is not None:
        got = yield needs
        for object_id, data in got.items():
            store(needs[0], object_id, data)
        try:
            needs = walked.send(got)
        except StopIteration:
            return


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
