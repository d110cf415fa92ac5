"""Objects by id, wherever they lie: kept locally, or in packs on backends.

The face of the store for whoever wants objects and not packs. Trees and histories are kept in a local cache, blobs
never: the working tree is the local store (D8).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

from metasync.effects import Task
from metasync.errors import DamagedError
from metasync.objects.model import ObjectKind
from metasync.objects.packfile import Located
from metasync.objects.walk import Needs
from metasync.store.index import Index, PackRecord
from metasync.store.transfer import Deliver, Transfer

PACKS_IN_FLIGHT = 6  # packs being fetched or opened at a time: 6 x (4 MiB stored + a raw segment) bounds memory

T = TypeVar("T")


class ObjectCache(Protocol):
    """Where small objects are kept on this device; may forget anything."""

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]: ...
    def put_objects(self, items: Iterable[tuple[bytes, int, bytes]]) -> None: ...


class Contents:
    """Reads objects through one index. `start` runs a task and returns its future (the runtime's)."""

    def __init__(
        self, index: Index, transfer: Transfer, cache: ObjectCache, start: Callable[[Task], Future[Any]]
    ) -> None:
        self.index = index
        self.transfer = transfer
        self._cache = cache
        self._start = start

    def load(self, kind: ObjectKind, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The bytes of objects of one kind. `DamagedError` if one can be had from nowhere."""
        wanted = list(dict.fromkeys(ids))
        out = self._cache.get_objects(wanted) if kind is not ObjectKind.BLOB else {}
        missing = [i for i in wanted if i not in out]
        if missing:
            got: dict[bytes, bytes] = {}
            self.fetch(missing, lambda objects: got.update((o.id, bytes(data)) for o, data in objects))
            if kind is not ObjectKind.BLOB:
                self._cache.put_objects((i, int(kind), data) for i, data in got.items())
            out.update(got)
        return out

    def walk(self, walk: Generator[Needs, Mapping[bytes, bytes], T]) -> T:
        """Runs a walk over trees, answering what it needs."""
        try:
            needs = next(walk)
            while True:
                needs = walk.send(self.load(*needs))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def fetch(self, ids: Iterable[bytes], deliver: Deliver) -> None:
        """Gets objects from packs and delivers them, verified, from worker threads, in no certain order."""
        plan = self.plan(ids)
        todo = iter(plan.values())
        running: set[Future[Any]] = set()
        try:
            while True:
                for record, located in todo:
                    running.add(self._start(self.transfer.fetch(record, located, deliver)))
                    if len(running) >= PACKS_IN_FLIGHT:
                        break
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        finally:
            for future in running:
                future.cancel()

    def plan(self, ids: Iterable[bytes]) -> dict[tuple[int, bytes], tuple[PackRecord, list[Located]]]:
        """Which packs to read, and what of each; packs that are needed anyway are preferred."""
        plan: dict[tuple[int, bytes], tuple[PackRecord, list[Located]]] = {}
        for object_id in dict.fromkeys(ids):
            places = self.index.find(object_id)
            if not places:
                raise DamagedError(
                    f"object {object_id.hex()[:16]} is in no pack that the agreed index names",
                    next_step="`metasync check --read-data` tells what else is missing.",
                )
            record, located = next((p for p in places if (p[0].generation, p[0].name) in plan), places[0])
            plan.setdefault((record.generation, record.name), (record, []))[1].append(located)
        return plan
