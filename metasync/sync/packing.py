"""What one push stores, over all its attempts: the contents it reads, the trees, the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from metasync.codec import amount, u64
from metasync.errors import CANNOT_BE_READ, BackendError, DamagedError, WorkspaceError
from metasync.events import Notice
from metasync.local.state_keys import CARRIED_KEY
from metasync.objects import walk
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import VERSION_TAG, Entry, Kind, ObjectKind, Snapshot, encode_snapshot
from metasync.session.session import Agreed, Session
from metasync.store.deltas import have_bases
from metasync.store.pack_format import deltas_in
from metasync.sync.old_chunks import bases_of
from metasync.sync.replaced_chunks import ReplacedChunks
from metasync.sync.scanned import Here
from metasync.transfer.upload import Notes, Upload, known_in
from metasync.worktree.index import Row, store_rows
from metasync.worktree.ingest import Ingest, reread

LISTS_TOGETHER = 64  # of chunks of files
T = TypeVar("T")
NODES_TOGETHER = 200  # of a tree that are stored here at a time: up to 25 MB, 64 KB each as a rule


@dataclass(frozen=True)
class Reading:
    """Tells the upload what the scan is going to read, and keeps what it has read if that is all it comes to."""

    s: Session
    upload: Upload
    ingest: Ingest

    def begins(self, size_bytes: int, files: int) -> None:
        self.upload.reserve(files)
        self.upload.expect(size_bytes, lambda: self.ingest.bytes_read)

    def broken_off(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        with suppress(WorkspaceError):  # then it is read again
            store_rows(self.s.db, rows)


class Packing:
    """Packs and stores what a push finds. What was stored for an attempt that lost counts for the next one.

    `least`: copies of each pack that are waited for; None: all that are promised. `look` is called now and then, and
    may break off by what it raises. `begin` is called with the first object; what it returns before the first pack.
    """

    def __init__(
        self,
        s: Session,
        least: int | None,
        look: Callable[[], None],
        begin: Callable[[Agreed], Callable[[], None]],
        chunks: Mapping[bytes, tuple[bytes, ...]],
    ) -> None:
        self.s = s
        self.least = least
        self.look = look
        self.begin = begin
        self.chunks = dict(chunks)  # by file objects, all below them (`Ingest.chunks`)
        self.upload: Upload | None = None
        self._notes: Notes | None = None
        self._replaced: ReplacedChunks | None = None

    def save(self, wait_s: float) -> None:
        """Notes what is stored, for the next push to go on with; waits so long for what is under way."""
        if self.upload is not None and self._notes is not None:
            self.upload.save(wait_s)
            self._notes.flush()

    def end(self) -> Upload | None:
        """Lets go of what this push read, and of who pushes: these held each other. -> what stored it, if anything."""
        upload, self.upload, self._notes, self._replaced = self.upload, None, None, None
        self.look, self.begin, self.chunks = _nothing, lambda _: _nothing, {}
        if upload is not None:
            upload.end()
        return upload

    def upload_for(self, base: Agreed) -> Upload:
        """What stores for this attempt: that of the one before, as far as its packs may be named on top of `base`."""
        s, upload, state = self.s, self.upload, base.state
        moved = upload is not None and not upload.transfer.is_alike(s.transfer)  # others changed the backends meanwhile
        if (
            upload is None
            or moved
            or not upload.counting(state.min_gen, state.epoch)
            or not upload.has_bases(base.index)
        ):
            notes = self._notes = Notes(s.db, state.config, state.gen, state.epoch, s.runtime.clock)
            upload = self.upload = Upload(
                s.transfer,
                replace(s.form, epoch=state.epoch),
                state.gen,
                runner=s.runtime,
                listener=s.listener,
                entropy=s.entropy,
                clock=s.runtime.clock,
                begin=lambda: self.begin(base),
                carried=s.db.get(CARRIED_KEY) or b"",
                least=self.least,
                noted=notes.add,
                look=self.look,
            )
            packs, size = upload.resume(
                k for k in notes.load(base.index) if have_bases(base.index, deltas_in(k.record.tags))
            )
            if packs:
                text = f"{packs:,} {'pack' if packs == 1 else 'packs'} ({amount(size)})"
                s.listener(Notice(f"going on with {text} stored before"))
        return upload

    def ingest(self, base: Agreed, upload: Upload) -> Ingest:
        """Reads files for the upload. Is asked for every piece, so that others are seen meanwhile."""
        known = known_in(base.index, upload)

        def look_and_ask(object_id: bytes) -> bool:
            self.look()
            return known(object_id)

        s = self.s
        if self._replaced is not None:
            self._replaced.end()
        bases = bases_of(s)
        bases.work = s.runtime.submit_work
        ingest = s.ingest(sink=upload.add, known=look_and_ask)
        ingest.chunks = self.chunks
        ingest.changes = self._replaced = ReplacedChunks(
            base.index,
            upload,
            look_and_ask,
            bases,
            s.db,
            level=s.config.compression_level,
            whole_bytes=s.config.whole_bytes,
            fetch=self._fetcher(base),
        )
        return ingest

    def _fetcher(self, base: Agreed) -> Callable[[bytes], bytes | None]:
        """Fetches a chunk of the base's index; None where it cannot be had now."""

        def fetch(object_id: bytes) -> bytes | None:
            with suppress(BackendError, DamagedError):
                return self.s.contents(base).load(ObjectKind.BLOB, [object_id])[object_id]
            return None

        return fetch

    def complete(self, base: Agreed, here: Here, upload: Upload) -> None:
        """Reads files whose bytes were named by an earlier scan and are stored nowhere yet."""
        known, seen = known_in(base.index, upload), here.seen

        def is_stored(entry: Entry) -> bool:
            if not entry.root:
                return known(entry.content)
            pieces = self.chunks.get(entry.root)
            return pieces is not None and known(entry.root) and all(map(known, pieces))

        files = ((p, e) for p, e in here.found if e is not None and e.kind is Kind.FILE and e.size)
        unstored = {p: e for p, e in files if not is_stored(e)}
        self._look_up(base, {e.root for e in unstored.values() if e.root in base.index and e.root not in self.chunks})
        unstored = {p: e for p, e in unstored.items() if not is_stored(e)}
        if not unstored:
            return
        ingest = self.ingest(base, upload)
        upload.expect(sum(entry.size for entry in unstored.values()), lambda: ingest.bytes_read)
        for path, entry in unstored.items():
            if not is_stored(entry) and not reread(self.s.tree, path, entry, ingest, partial(here.before.get, path)):
                seen.busy.append(path)
                seen.put_rows.pop(path, None)
                seen.tree.revert(path)

    def _look_up(self, base: Agreed, roots: Collection[bytes]) -> None:
        """Adds to `chunks` what the base says of files that this push has not read, as far as that can be had.

        That it names a file object does not say that it names the chunks: these may be lost.
        """
        todo = iter(sorted(roots))
        while some := tuple(islice(todo, LISTS_TOGETHER)):
            seen = set[bytes]()
            with suppress(*CANNOT_BE_READ, BackendError):  # then the files are read
                found = self.s.contents(base).walk(_noting(walk.chunks(some), seen))
                nodes = seen.difference(some)
                self.chunks.update((root, (*nodes, *(c.id for c in pieces))) for root, pieces in found.items())

    def add_trees(self, base: Agreed, here: Here, upload: Upload, message: str, staged: bytes) -> tuple[bytes, bytes]:
        """Adds directories, what merges left behind, and the snapshot. -> the ids of the root and of the snapshot."""
        s, known, tree = self.s, known_in(base.index, upload), here.seen.tree
        if self._replaced is not None:
            self._replaced.end()
        if base.tree_root is None or base.state.era:  # after a new start what else is there is made sure of, too
            nodes = walk.build_nodes(tree.ascending(), s.ids)
        else:
            nodes = iter(s.contents(base).walk(walk.rebuild(base.tree_root, tree, here.differing, s.ids))[1].items())
        root = b""
        while some := list(islice(nodes, NODES_TOGETHER)):
            root = some[-1][0]
            for object_id, data in some:
                if not known(object_id):
                    upload.add(ObjectKind.DIR, object_id, data)
            s.db.put_objects((i, int(ObjectKind.DIR), data) for i, data in some if i not in base.index)
        for object_id, kind, data in s.db.staged():
            if not known(object_id):
                upload.add(ObjectKind(kind), object_id, data)
        parents = [base.state.master] if base.snapshot is not None else []
        parents += [staged] if staged else []
        tags = ((VERSION_TAG, u64(base.state.v + 1)),)
        data = encode_snapshot(Snapshot(root, tuple(parents), s.device.device_id, s.wall_ns(), message, tags))
        snapshot_id = s.ids.of(ObjectKind.SNAPSHOT, data)
        upload.add(ObjectKind.SNAPSHOT, snapshot_id, data)
        s.db.put_objects([(snapshot_id, int(ObjectKind.SNAPSHOT), data)])
        return root, snapshot_id


def _nothing() -> None:
    pass


def _noting(walked: Generator[Needs, Bytes, T], seen: set[bytes]) -> Generator[Needs, Bytes, T]:
    """The same walk. Notes what it asks for."""
    try:
        needs = next(walked)
        while True:
            seen.update(needs[1])
            needs = walked.send((yield needs))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
