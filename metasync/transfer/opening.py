"""Opens deltas as they and what they are made of arrive, in any order, from worker threads (format.md, 5.8)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final, TypeAlias

from metasync.errors import FormatError, UpgradeError
from metasync.objects.delta import opened
from metasync.objects.model import ObjectKind
from metasync.store.deltas import Link
from metasync.store.pack_format import DELTA, Located

HELD_BYTES_MAX: Final = 64 << 20  # of whole bases that one download may have to hold

Objects: TypeAlias = Sequence[tuple[Located, memoryview]]


class Opening:
    """The chains of one download. `asked`: what is delivered of all that arrives."""

    def __init__(
        self,
        check: Callable[[ObjectKind, bytes | memoryview], bytes],
        asked: Container[bytes],
        deliver: Callable[[Objects], None],
    ) -> None:
        self._check = check
        self._asked = asked
        self._deliver = deliver
        self._lock = threading.Lock()
        self._links: dict[bytes, Link] = {}  # of blobs that come as deltas
        self._resting: dict[bytes, set[bytes]] = defaultdict(set)  # blob -> those whose deltas are made of it
        self._open: dict[bytes, set[bytes]] = defaultdict(set)  # the same, of deltas that are not opened yet
        self._held: dict[bytes, bytes] = {}  # bases that are here and still needed
        self._waiting: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)  # base -> blobs and their deltas
        self._made: set[bytes] = set()
        self._base_bytes: dict[bytes, int] = {}
        self.bases: dict[bytes, bytes] = {}  # that are on this device and are not fetched
        self.failed: list[Link] = []  # deltas that did not give what their ids say
        self.newer: set[bytes] = set()  # blobs whose deltas, or what these rest on, only a later version opens

    def expect(self, chain: Sequence[Link]) -> bool:
        """This chain is about to be fetched: the delta of a blob, and what it is made of. False: there is no room."""
        with self._lock:
            last = chain[-1]
            base = last.located.id if last.delta is None else last.delta.base
            size = last.located.length if last.delta is None else len(self.bases[base])
            if base not in self._base_bytes and sum(self._base_bytes.values()) + size > max(HELD_BYTES_MAX, size):
                self.bases.pop(base, None)
                return False
            self._base_bytes[base] = size
            for link in chain:
                blob = link.located.id
                if link.delta is not None and blob not in self._made:
                    self._links[blob] = link
                    self._resting[link.delta.base].add(blob)
                    self._open[link.delta.base].add(blob)
                    if link.delta.base in self.bases:
                        self._held[link.delta.base] = self.bases[link.delta.base]
            return True

    def resting_on(self, object_id: bytes) -> Iterator[bytes]:
        """The object, and all blobs that were to be made of it and are not here."""
        todo, seen = [object_id], {object_id}
        while todo:
            one = todo.pop()
            yield one
            more = {i for i in self._resting.get(one, ()) if i not in self._made} - seen
            seen |= more
            todo += more

    @property
    def missing(self) -> list[bytes]:
        """What is asked for and was not opened."""
        return [i for i in self._links if i in self._asked and i not in self._made]

    def take(self, objects: Objects) -> None:
        """Takes what arrived, and delivers what is asked for of it and of what comes of it."""
        out: list[tuple[Located, memoryview]] = []
        for located, data in objects:
            if located.encoding != DELTA:
                if located.id in self._asked:
                    out.append((located, data))
                if located.id not in self._resting:
                    continue
            with self._lock:
                made = self._came(located, bytes(data))
            out += ((Located(ObjectKind.BLOB, i, 0, 0, len(d)), memoryview(d)) for i, d in made if i in self._asked)
        if out:
            self._deliver(out)

    def _came(self, located: Located, data: bytes) -> list[tuple[bytes, bytes]]:
        """-> the blobs that could be opened, with their bytes."""
        if located.encoding != DELTA:
            return self._opened(located.id, data)
        link = self._links.get(located.id)
        if located.id in self._made or link is None or link.delta is None:
            return []
        base = self._held.get(link.delta.base)
        if base is None:
            self._waiting[link.delta.base].append((located.id, data))
            return []
        return self._made_of(base, located.id, data)

    def _opened(self, base_id: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
        """A base is here: opens what waits for it, and holds it for the rest."""
        out: list[tuple[bytes, bytes]] = []
        if self._open.get(base_id):
            self._held[base_id] = data
        for object_id, delta in self._waiting.pop(base_id, ()):
            link = self._links[object_id]
            if object_id not in self._made and link.delta is not None and link.delta.base == base_id:
                out += self._made_of(data, object_id, delta)
        return out

    def _made_of(self, base: bytes, object_id: bytes, delta: bytes) -> list[tuple[bytes, bytes]]:
        link = self._links[object_id]
        assert link.delta is not None
        try:
            data = opened(base, delta)
            is_right = self._check(ObjectKind.BLOB, data) == object_id
        except FormatError:
            is_right = False
        except UpgradeError:
            is_right = False
            self.newer.update(self.resting_on(object_id))
        self._open[link.delta.base].discard(object_id)
        if not self._open[link.delta.base]:
            self._held.pop(link.delta.base, None)
        if not is_right:
            self.failed.append(link)
            return []
        self._made.add(object_id)
        return [(object_id, data), *self._opened(object_id, data)]
