"""Gives objects that no pack has from any file on this device whose bytes have their ids (`check --repair`).

An id is a keyed hash of what an object holds. So a chunk that is lost is found wherever the same bytes lie: in a file
that moved or was copied, that is ignored or not pushed yet, that is as an older version had it; in what checkouts
replaced or left half-way (`.metasync/replaced`, `tmp`); in old chunks that are kept for deltas (`bases`). What is
stored is what was hashed, whoever writes to the file meanwhile, and nothing else of a file.

A file that its row shows unchanged is opened only if a chunk of it is missing. All others are read once, and twice
where even the list of their chunks is lost. Links, other file systems and the state of workspaces inside are left out.
"""

from __future__ import annotations

import os
import stat as stat_
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from metasync.errors import CANNOT_BE_READ, UnreachableError
from metasync.events import Phase, Progress
from metasync.local.spill import IdSet
from metasync.maintenance.repair.needs import Needs
from metasync.objects import file, walk
from metasync.objects.model import Entry, ObjectKind, split
from metasync.session.session import Agreed, Session
from metasync.store import deltas
from metasync.store.index import Index
from metasync.store.pack_format import Located
from metasync.sync.old_chunks import bases_of, known_chunks
from metasync.transfer.upload import Upload
from metasync.worktree.disk import READ_FLAGS, check_name
from metasync.worktree.index import is_packed_file, unpack_row
from metasync.worktree.scan import Content
from metasync.worktree.tree import DirTree

STATE_FOLDERS: Final = (b"replaced", b"tmp")
TOLD_EVERY: Final = 64  # files
NODES_TOGETHER: Final = 256  # of trees and lists: 16 MB as a rule
LISTS_BYTES_MAX: Final = 64 << 20  # of lists of chunks that wait for these; what is beyond comes with the next run

Known: TypeAlias = Callable[[bytes], bool]
Store: TypeAlias = Callable[[ObjectKind, bytes, bytes], None]


class _Lists:
    """Lists of the chunks of files. An index that names one names its chunks (collection.md, G4): so it is stored once
    these are."""

    def __init__(self, known: Known, upload: Upload) -> None:
        self._known = known
        self._upload = upload
        self._waiting: dict[bytes, bytes] = {}
        self._bytes = 0

    def store(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        """Stores an object that is not known; a list later."""
        if self._known(object_id):
            return
        if kind is not ObjectKind.FILE:
            self._upload.add(kind, object_id, data)
        elif object_id not in self._waiting and self._bytes + len(data) <= LISTS_BYTES_MAX:
            self._waiting[object_id] = data
            self._bytes += len(data)

    def end(self) -> None:
        nodes = [(file.decode_node(data), i) for i, data in self._waiting.items()]
        for node, object_id in sorted(nodes, key=lambda n: n[0].level):
            if all(self._known(part.id) for part in node.parts):
                self._upload.add(ObjectKind.FILE, object_id, self._waiting[object_id])


def find(
    s: Session, agreed: Agreed, known: Known, upload: Upload, also: Iterable[Located], needs: Needs
) -> Callable[[Entry], bool]:
    """Stores of what versions need, and of what is in `also`, what is not `known`: as far as this device has it.

    -> whether all of a file of the newest version is known now.
    """
    bases, lists, wanted = bases_of(s), _Lists(known, upload), IdSet()
    contents, here = s.contents(agreed), list[tuple[ObjectKind, bytes]]()

    def store_here() -> None:
        for kind in sorted({kind for kind, _ in here}):
            got = contents.load(kind, [i for k, i in here if k is kind], lambda *_: None)
            for object_id, data in got.items():
                lists.store(kind, object_id, data)
        for object_id in (i for _, i in here if not known(i)):
            wanted.add(object_id)
        here.clear()

    for object_id, kind in _not_given(agreed.index, needs, also):
        if known(object_id):
            continue
        if kind is not None and kind is not ObjectKind.BLOB:
            here.append((kind, object_id))
        elif (data := bases.get(object_id)) is not None:
            upload.add(ObjectKind.BLOB, object_id, data)
        else:
            wanted.add(object_id)
        if len(here) >= NODES_TOGETHER:
            store_here()
    store_here()
    if len(wanted):
        s.listener(Phase("search"))
        _Search(s, lambda object_id: object_id in wanted and not known(object_id), lists.store).run()
    lists.end()

    def is_whole(entry: Entry) -> bool:
        if not entry.root or entry.root in upload or not known(entry.root):
            return known(entry.root or entry.content)
        with suppress(*CANNOT_BE_READ, UnreachableError):
            return all(known(c.id) for c in contents.walk(walk.chunks((entry.root,)))[entry.root])
        return False

    return is_whole


def _not_given(index: Index, needs: Needs, also: Iterable[Located]) -> Iterator[tuple[bytes, ObjectKind | None]]:
    """What versions need and an index may not give, with its kind, if that is known."""
    for object_id, kind in needs.lacking.items():
        yield object_id, ObjectKind(kind[0]) if kind else None
    for o in also:
        yield o.id, o.kind
    for record in deltas.dangling(index).values():
        yield from ((o.id, o.kind) for o in index.inside(record) if o.id in needs)


class _Search:
    """One look through the files of a folder for what is missing, which goes to `store`."""

    def __init__(self, s: Session, is_wanted: Known, store: Store) -> None:
        self.s = s
        self.is_wanted = is_wanted
        self.store = store

    def run(self) -> None:
        tree, looked = self.s.tree, 0
        there = tree.disk.names(tree.state_dir())
        for some in (tree, *(tree.state_tree(name) for name in STATE_FOLDERS if name in there)):
            for path in _files(some):
                self.s.check()
                looked += 1
                if looked % TOLD_EVERY == 0:
                    self.s.listener(Progress("search", looked, None, "files"))
                with suppress(OSError):  # it is gone, or may not be read
                    self._look(some, path)

    def _look(self, tree: DirTree, path: bytes) -> None:
        above, name = split(path)
        st = tree.disk.lstat(name, tree.dir(above))
        if not stat_.S_ISREG(st.st_mode) or not st.st_size or (tree is self.s.tree and not self._may_have(path, st)):
            return
        seen: list[bytes] = []
        lists: list[bytes] = []

        def is_known(object_id: bytes) -> bool:
            seen.append(object_id)
            return not self.is_wanted(object_id)

        def take(kind: ObjectKind, object_id: bytes, data: bytes) -> None:
            lists.extend([object_id] * (kind is ObjectKind.FILE))
            self.store(kind, object_id, data)

        if self._read(tree, path, take, is_known).root in lists:  # of its chunks nobody knew
            wanted = {*seen}
            self._read(tree, path, self.store, lambda object_id: object_id not in wanted)

    def _read(self, tree: DirTree, path: bytes, sink: Store, known: Known) -> Content:
        above, name = split(path)
        with tree.disk.opened(name, READ_FLAGS, tree.dir(above)) as fd:
            st = tree.disk.fstat(fd)
            if not stat_.S_ISREG(st.st_mode):
                raise OSError("no file any more")
            return self.s.ingest(sink=sink, known=known)(fd, st)

    def _may_have(self, path: bytes, st: os.stat_result) -> bool:
        """Whether a file of the folder may have what is missing: not if its row proves what it consists of."""
        row = self.s.db.packed_row(path)
        if row is None or not is_packed_file(row, st):
            return True
        entry = unpack_row(row).entry
        chunks = known_chunks(self.s.db, entry)
        return not chunks or any(map(self.is_wanted, (entry.root or entry.content, *(c.id for c in chunks))))


def _files(tree: DirTree) -> Iterator[bytes]:
    """All paths in a tree but directories and what is below a name like `.metasync`, on the device of its root."""
    todo = [b""]
    while todo:
        above = todo.pop()
        try:
            fd, device = tree.dir_device(above)
            names = tree.disk.names(fd) if device == tree.root_stat.st_dev else []
        except OSError:
            continue
        for path in (above + b"/" + name if above else name for name in sorted(names) if not check_name(name)):
            try:
                is_dir = stat_.S_ISDIR(tree.disk.lstat(split(path)[1], tree.dir(above)).st_mode)
            except OSError:
                continue
            if is_dir:
                todo.append(path)
            else:
                yield path
