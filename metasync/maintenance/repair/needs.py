"""What kept versions need, by one mark, and what of it the index does not name: what a repair goes by.

The mark is that of a collection, but that it goes on where something cannot be read. One of a million objects takes
half a minute of CPU. So one is made, and handed on to all that asks (`check --repair`).
"""

from __future__ import annotations

from collections.abc import Generator, MutableMapping
from dataclasses import replace
from typing import Final

from metasync.errors import CANNOT_BE_READ, BackendError, MetaSyncError, NoQuorumError
from metasync.events import Phase
from metasync.local.spill import IdSet, grown
from metasync.maintenance.repair import lost_paths
from metasync.objects import file
from metasync.objects.directory import Bytes
from metasync.objects.directory import Needs as Wanted
from metasync.objects.model import ObjectKind
from metasync.objects.reach import mark
from metasync.session import unreadable
from metasync.session.session import Agreed, Session
from metasync.store.index import Index

SNAPSHOTS_TOGETHER: Final = 256
LACKING_HELD: Final = 20_000
NOT_KNOWN: Final = (*CANNOT_BE_READ, BackendError, NoQuorumError)
"""What keeps a mark from learning what versions need."""


class Needs:
    """What the kept versions of an agreed state need, as far as `index` leads to it: by default the agreed one.

    all      the ids of it
    lacking  what of it the agreed index does not name: the kind of what this device has all the same, else b""
    missing  what of it `index` does not name either
    why      what kept the mark from learning all; None: nothing did
    """

    def __init__(self, s: Session, agreed: Agreed, index: Index | None = None, *, are_all: bool = True) -> None:
        """Marks. `are_all`: all kept versions, else the newest one."""
        s.listener(Phase("mark"))
        self.agreed = agreed
        self.index = agreed.index if index is None else index
        self.contents = replace(s.contents(replace(agreed, index=self.index)), newer=lambda: None)
        self.all = IdSet()
        self.missing = IdSet()
        self.lacking: MutableMapping[bytes, bytes] = {}
        self.why: MetaSyncError | None = None
        self._is_read = True  # all that led on
        self._parts: dict[bytes, list[bytes]] = {}  # by the object of a file or a part of one that is nowhere: of what
        try:
            replacing = unreadable.list_or_older(s, agreed.state).replacing
            pushes = self._pushes(s, are_all)
            self.contents.walk(self._watched(mark(pushes, self, self.index.__contains__, replacing)), self._unread)
        except NOT_KNOWN as e:
            self.why = e

    @property
    def are_there(self) -> bool:
        """Whether the agreed index names all, and all that leads to it could be read."""
        return self.why is None and self._is_read and not self.lacking

    def lacks(self, index: Index) -> bool:
        """Whether this index, that of a later state with the same versions, does not name all."""
        return any(i not in index for i in self.lacking)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self.all

    def add(self, object_id: bytes) -> None:
        self.all.add(object_id)
        if object_id not in self.agreed.index:
            self._note(object_id, b"")
            if object_id not in self.index:
                self.missing.add(object_id)

    def broken(self) -> set[bytes]:
        """The objects of files of which a part is nowhere."""
        out = set[bytes]()
        todo = [i for i in self._parts if i not in self.index]
        while todo:
            for above in self._parts.get(todo.pop(), ()):
                if above not in out:
                    out.add(above)
                    todo.append(above)
        return out

    def _pushes(self, s: Session, are_all: bool) -> list[bytes]:
        out = [self.agreed.state.master] if self.agreed.snapshot is not None else []
        if are_all:
            ids = [i for i in self.index.ids(ObjectKind.SNAPSHOT) if s.db.get_object(i) is None]
            for start in range(0, len(ids), SNAPSHOTS_TOGETHER):
                self.contents.load(ObjectKind.SNAPSHOT, ids[start : start + SNAPSHOTS_TOGETHER], lambda *_: None)
            try:
                for push in lost_paths.pushes(s, self.contents, self.agreed):
                    out.append(push.id)
            except NOT_KNOWN as e:
                self.why = e
        return out

    def _note(self, object_id: bytes, kind: bytes) -> None:
        if kind or object_id not in self.lacking:
            self.lacking[object_id] = kind
            self.lacking = grown(self.lacking, LACKING_HELD, bytes, bytes)

    def _unread(self, *_: object) -> None:
        self._is_read = False

    def _watched(self, walk: Generator[Wanted, Bytes, None]) -> Generator[Wanted, Bytes, None]:
        """The same walk. Notes what is here and not in the index, and which lists of chunks have a part that is
        nowhere, or lead to one."""
        needs = next(walk, None)
        while needs is not None:
            got = yield needs
            for object_id, data in got.items():
                if object_id not in self.agreed.index:
                    self._note(object_id, bytes([needs[0]]))
                if needs[0] is ObjectKind.FILE:
                    self._note_parts(object_id, data)
            try:
                needs = walk.send(got)
            except StopIteration:
                return

    def _note_parts(self, object_id: bytes, data: bytes) -> None:
        for part in (node := file.decode_node(data)).parts:
            if node.level or part.id not in self.index:
                self._parts.setdefault(part.id, []).append(object_id)
