"""Reads objects by id, from the local cache or from packs on backends.

Trees and histories are cached, blobs never: the working tree holds those (architecture.md, D8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from metasync.codec import UPGRADE
from metasync.errors import DamagedError, FormatError, MetaSyncError, UpgradeError
from metasync.objects.directory import Needs
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Runner, Urgency
from metasync.store.index import Index, PackRecord
from metasync.store.pack_format import DELTA, WHOLE, Located
from metasync.transfer import download as headstart
from metasync.transfer.copies import Transfer
from metasync.transfer.download import Deliver, Download
from metasync.transfer.schedule import AT_ONCE_LEAST

if TYPE_CHECKING:
    from metasync.store.deltas import Link
    from metasync.transfer.opening import Opening

PACKS_IN_FLIGHT = AT_ONCE_LEAST  # being fetched at a time, where there are so many
WHOLE_BYTES_MAX = 128 << 10  # of a pack that is read as a whole with its trees: its files are wanted next, as a rule
ALONG_BYTES_MAX = 8 << 20  # of such files, kept until they are asked for
TREES_BYTES_MAX = 1 << 20  # of a pack's trees, as stored, that are taken along: those of 15,000 files

DeltaPlace: TypeAlias = tuple[tuple[int, bytes], Located]
"""A delta by the pack that it is in: (generation and name, where it lies there)."""
T = TypeVar("T")
OnLost: TypeAlias = Callable[[Sequence[bytes], MetaSyncError], None]
"""Gets the ids of objects that no backend has, and why, in the thread that called `fetch`."""


class ObjectCache(Protocol):
    """Where small objects are kept on this device; may forget anything."""

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]: ...
    def put_objects(self, items: Iterable[tuple[bytes, int, bytes]]) -> None: ...


class Bases(Protocol):
    """Where the bytes of chunks are kept on this device that others may be stored as deltas of; may forget anything."""

    def __contains__(self, object_id: object) -> bool: ...
    def get(self, object_id: bytes) -> bytes | None: ...


REST_EVERY: Final = 1 << 14  # objects: they are looked up in a tenth of a second of CPU


def _go_on() -> None:
    pass


class NoBases:
    """None are kept."""

    def __contains__(self, object_id: object) -> bool:
        return False

    def get(self, object_id: bytes) -> bytes | None:
        return None


@dataclass(eq=False)
class Contents:
    """Reads objects through one index.

    `at_hand`: objects kept for the next push, which no pack holds yet. `along`: blobs that came with trees, by id, and
    `along_deltas`, by where they lie; each is taken out when it is asked for. One session shares them. `newer`: asks
    for the newest agreed index; None where it is this one, or cannot be had. It is asked once, before a pack that is
    gone is called damaged (consensus.md, rule 6.2): its objects may lie elsewhere by then, and are read through that
    index from there on. `explained`: makes the error of an object that no index names say what else is known of it.
    """

    index: Index
    transfer: Transfer
    cache: ObjectCache
    runner: Runner
    at_hand: Mapping[bytes, tuple[ObjectKind, bytes]] = field(default_factory=dict)
    along: dict[bytes, bytes] = field(default_factory=dict, kw_only=True)
    along_deltas: dict[DeltaPlace, bytes] = field(default_factory=dict, kw_only=True)
    newer: Callable[[], tuple[Index, Transfer] | None] = field(default=lambda: None, kw_only=True)
    bases: Bases = field(default_factory=NoBases, kw_only=True)
    explained: Callable[[DamagedError], MetaSyncError] = field(default=lambda error: error, kw_only=True)
    rest: Callable[[], None] = field(
        default_factory=lambda: _go_on, init=False
    )  # called now and then before files are fetched
    has_asked: bool = field(default=False, init=False)  # for a newer index
    may_begin: bool = field(default=False, init=False)  # whether `begin_ahead` may ask backends not asked for trees
    has_begun: bool = field(default=False, init=False)
    _later: tuple[Index, Transfer] | None = field(default=None, init=False)
    _bad: set[tuple[int, bytes, bytes]] = field(default_factory=set, init=False)  # places that are not read
    _newer: set[bytes] = field(default_factory=set, init=False)  # blobs whose deltas a later version alone opens

    def __contains__(self, object_id: bytes) -> bool:
        """Whether an object is at hand, or in a pack that the index names."""
        return object_id in self.at_hand or object_id in self.index

    def size_of(self, object_id: bytes) -> int:
        """The size of an object in bytes, by the index; of a delta about that, by what it is made of; 0: not known."""
        places = self.index.find(object_id)
        if places and all(located.encoding == DELTA for _, located in places):
            from metasync.store.deltas import Chains

            chain = Chains(self.index.find).of(object_id)
            return chain[-1].located.length if chain is not None else 0
        return next((located.length for _, located in places if located.encoding == WHOLE), 0)

    def begin_ahead(self, busy: Collection[str] = ()) -> None:
        """Begins to fetch packs that a clone will want, from backends that are not busy: see `download.begin`."""
        self.has_begun = True
        only_blobs = (record for record in self.index.packs().values() if not self.index.inside(record, blobs=False))
        headstart.begin(self.transfer, only_blobs, self.runner.start, self.runner.clock, busy)

    def load(self, kind: ObjectKind, ids: Iterable[bytes], on_lost: OnLost | None = None) -> dict[bytes, bytes]:
        """The bytes of objects of one kind. `DamagedError` if one can be had from nowhere.

        With `on_lost` such an object is reported there and left out, but for blobs.
        """
        wanted = list(dict.fromkeys(ids))
        if kind is ObjectKind.BLOB:
            blobs: dict[bytes, bytes] = {}
            self.fetch(wanted, lambda objects: blobs.update((o.id, bytes(data)) for o, data in objects))
            return blobs
        cached = self.cache.get_objects(wanted)
        out = {i: data for i, data in cached.items() if self.transfer.check(kind, data) == i}  # a disk may fail
        out.update((i, self.at_hand[i][1]) for i in wanted if i in self.at_hand)
        missing = [i for i in wanted if i not in out]
        if missing:
            got: dict[bytes, tuple[int, bytes]] = {}
            lost: set[bytes] = set()

            def told(gone: Sequence[bytes], error: MetaSyncError) -> None:
                assert on_lost is not None
                on_lost(gone, error)
                lost.update(gone)

            def take(objects: Iterable[tuple[Located, memoryview]]) -> None:
                for o, data in objects:
                    if o.kind is ObjectKind.BLOB:
                        self._take_along(o, data)
                    else:
                        got[o.id] = int(o.kind), bytes(data)

            self.fetch(missing, take, neighbours=True, on_lost=told if on_lost is not None else None)
            self.cache.put_objects((i, k, data) for i, (k, data) in got.items())
            for i in missing:
                if i in lost and i not in got:
                    continue
                if i not in got or got[i][0] != kind:
                    raise DamagedError(
                        f"object {i.hex()[:16]} is no {kind.name.lower()}, and is used as one",
                        next_step="`metasync check --read-data` tells what else is wrong.",
                    )
                out[i] = got[i][1]
        return out

    def walk(self, walk: Generator[Needs, Mapping[bytes, bytes], T], on_lost: OnLost | None = None) -> T:
        """Runs a walk over trees, answering what it needs. `DamagedError` where an object is not what it claims.

        With `on_lost` the walk is answered without what can be had from nowhere, which is reported there.
        """
        try:
            needs = next(walk)
            while True:
                needs = walk.send(self.load(*needs) if on_lost is None else self.load(*needs, on_lost))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except FormatError as e:
            raise DamagedError(e.message) from e

    def fetch(
        self, ids: Iterable[bytes], deliver: Deliver, *, neighbours: bool = False, on_lost: OnLost | None = None
    ) -> None:
        """Gets objects from packs and delivers them, verified, from worker threads, in any order.

        `neighbours`: also fetches the directories and histories beside them, so that a walk down a tree costs one or
        two requests instead of one per level.

        After a failure an object may be delivered twice. An object whose pack is lost is read from another pack. An
        object that no backend has ends the call with `DamagedError` or `UnreachableError`; with `on_lost` it is
        reported there, and the others are fetched.
        """
        ids = list(dict.fromkeys(ids))
        if here := [(i, *self.at_hand[i]) for i in ids if i in self.at_hand]:
            deliver([(Located(kind, i, 0, 0, len(data)), memoryview(data)) for i, kind, data in here])
            ids = [i for i in ids if i not in self.at_hand]
        if came := [(i, data) for i in ids if (data := self.along.pop(i, None)) is not None]:
            deliver([(Located(ObjectKind.BLOB, i, 0, 0, len(data)), memoryview(data)) for i, data in came])
            taken = {i for i, _ in came}
            ids = [i for i in ids if i not in taken]
        urgency = Urgency.NOW if neighbours else Urgency.SOON
        beside = self.begin_ahead if self.may_begin and neighbours else None
        asked = set(ids)
        some = _Wanted(self, asked, deliver, on_lost, takes_all=neighbours)
        download = Download(self.transfer, self.runner, some.take, urgency, beside)

        def want(wanted: Iterable[bytes]) -> None:
            for record, located in some.plan(wanted).values():
                find = self._with_neighbours if neighbours else self._not_along
                download.want(record, find(record, located, some))

        elsewhere: list[bytes] = []  # perhaps, by a newer index
        if not neighbours:
            self.rest()
            some.rest = self.rest
        want(ids)
        some.rest = _go_on
        with contextlib.closing(download.run()) as losses:
            for record, objects, error in losses:
                some.lost.add((record.generation, record.name))
                missed = some.missed(objects)  # neighbours were taken along and are not missed
                if gone := [i for i in missed if not some.can_be_had(i)]:
                    if isinstance(error, DamagedError) and (elsewhere or self._newer_index() is not None):
                        elsewhere += gone
                    else:
                        if isinstance(error, DamagedError):
                            error.objects = tuple(gone)
                        if on_lost is None:
                            raise error
                        on_lost(gone, error)
                    some.given_up.update(gone)
                want(i for i in missed if i not in gone)
        if elsewhere and (later := self._newer_index()) is not None:
            (self.index, self.transfer), self._later = later, None
            self.fetch(elsewhere, deliver, neighbours=neighbours, on_lost=on_lost)
        if again := some.again():
            self.fetch(again, deliver, on_lost=on_lost)

    def fetch_deltas(self, links: Iterable[Link]) -> dict[bytes, bytes]:
        """The bytes of deltas as they are stored, by the ids of the blobs; without those that cannot be had now."""
        got: dict[bytes, bytes] = {}
        wanted: dict[tuple[int, bytes], tuple[PackRecord, list[Located]]] = {}
        for record, located, _ in links:
            wanted.setdefault(record.id, (record, []))[1].append(located)
        if wanted:
            download = Download(
                self.transfer, self.runner, lambda some: got.update((o.id, bytes(d)) for o, d in some), Urgency.SOON
            )
            for record, some in wanted.values():
                download.want(record, some)
            for _ in download.run():
                pass
        return got

    def _newer_index(self) -> tuple[Index, Transfer] | None:
        """The newest index, and where its packs lie by now, where one is another."""
        if not self.has_asked:
            self.has_asked, self._later = True, self.newer()
        return self._later

    def _not_along(self, record: PackRecord, located: list[Located], some: _Wanted) -> list[Located]:
        """Takes the deltas of a pack that came along. -> what is still to be fetched of these objects."""
        if not self.along_deltas:
            return located
        here = [(o, data) for o in located if (data := self.along_deltas.pop((record.id, o), None)) is not None]
        some.take([(o, memoryview(data)) for o, data in here])
        return [o for o in located if o not in dict(here)]

    def _with_neighbours(self, record: PackRecord, located: list[Located], some: _Wanted) -> list[Located]:
        """Objects to fetch with `located`: all of a small pack, its trees if small, else all in the same segments."""
        if record.size <= WHOLE_BYTES_MAX:
            inside = [o for o in self.index.inside(record) if o.encoding <= DELTA]
            return [o for o in inside if o.encoding == WHOLE or some.packs.setdefault(o, record.id) == record.id]
        trees = self.index.inside(record, blobs=False)
        if sum(record.segments[i].stored_bytes for i in {o.segment for o in trees}) <= TREES_BYTES_MAX:
            return trees
        read = {o.segment for o in located}
        return [o for o in self.index.inside(record) if o.segment in read and o.encoding == WHOLE]

    def _take_along(self, located: Located, data: memoryview) -> None:
        if self._has_room_along(len(data)):
            self.along[located.id] = bytes(data)

    def take_along(self, place: DeltaPlace, data: memoryview) -> None:
        """Keeps a delta that came with trees."""
        if self._has_room_along(len(data)):
            self.along_deltas[place] = bytes(data)

    def _has_room_along(self, size: int) -> bool:
        held = (*list(self.along.values()), *list(self.along_deltas.values()))
        return sum(map(len, held)) + size <= ALONG_BYTES_MAX

    def places(self, object_id: bytes, lost: Container[tuple[int, bytes]]) -> list[tuple[PackRecord, Located]]:
        """Where an object may be read, in packs that are not `lost`. What is stored in a later way is none of them."""
        places = self.index.find(object_id)
        if any(p[1].encoding > DELTA for p in places):
            places = [p for p in places if p[1].encoding <= DELTA]
        if lost:
            places = [p for p in places if (p[0].generation, p[0].name) not in lost]
        if self._bad:
            places = [p for p in places if (p[0].generation, p[0].name, object_id) not in self._bad]
        return places

    def only_in(self, packs: Mapping[bytes, tuple[int, bytes]]) -> Contents:
        """The same that reads these objects in one pack each, and nowhere else: not in a newer index, nor here."""
        out = replace(self, at_hand={}, newer=lambda: None, along={}, along_deltas={}, bases=NoBases())
        for object_id, pack in packs.items():
            others = (record.id for record, _ in self.index.find(object_id) if record.id != pack)
            out._bad.update((*other, object_id) for other in others)
        return out

    def is_refuted(self, pack: tuple[int, bytes], object_id: bytes) -> bool:
        """Whether a delta of a pack was opened here, and is not what its id says."""
        return (*pack, object_id) in self._bad and object_id not in self._newer

    def plan(
        self, ids: Iterable[bytes], lost: Container[tuple[int, bytes]] = ()
    ) -> dict[tuple[int, bytes], tuple[PackRecord, list[Located]]]:
        """Chooses the packs to read, without `lost` ones; packs that are needed anyway are preferred."""
        wanted = _Wanted(self, frozenset(), lambda _: None, None)
        wanted.lost = lost
        return wanted.plan(ids)

    def could_not_open(self, deltas: Iterable[Link], newer: Iterable[bytes]) -> None:
        """Notes that deltas do not give what their ids say: they are not read again. `newer`: blobs of which a later
        version's program would have got more."""
        self._bad.update((link.record.generation, link.record.name, link.located.id) for link in deltas)
        self._newer.update(newer)

    def unreadable(self, object_id: bytes) -> MetaSyncError:
        """Why an object cannot be had though no backend was asked for it."""
        if object_id in self._newer or any(o.encoding > DELTA for _, o in self.index.find(object_id)):
            return UpgradeError(f"object {object_id.hex()[:16]} is stored in a newer way", next_step=UPGRADE)
        if not self._bad or object_id not in self.index:
            return _in_no_pack(object_id)
        error = DamagedError(
            f"object {object_id.hex()[:16]} is stored as a delta, and what comes of it is not what its id says",
            next_step="`metasync check --read-data` tells what else is wrong.",
        )
        error.objects = (object_id,)
        return error


class _Wanted:
    """What one download is to bring, with the deltas in it. `takes_all`: neighbours are delivered too."""

    def __init__(
        self,
        contents: Contents,
        asked: Container[bytes],
        deliver: Deliver,
        on_lost: OnLost | None,
        *,
        takes_all: bool = False,
    ) -> None:
        self._contents = contents
        self._asked = asked
        self._deliver = deliver
        self._on_lost = on_lost
        self._takes_all = takes_all
        self._opening: Opening | None = None  # once there is a delta
        self.rest: Callable[[], None] = _go_on
        self._not_here: set[bytes] = set()  # of the bases that seemed to be
        self._later: list[bytes] = []
        self.packs: dict[Located, tuple[int, bytes]] = {}  # of deltas that come along: which of two alike is not told
        self.lost: Any = set[tuple[int, bytes]]()
        self.given_up: set[bytes] = set()

    def take(self, objects: Sequence[tuple[Located, memoryview]]) -> None:
        """What arrived, from a worker thread."""
        if self._takes_all:
            self._deliver([(o, data) for o, data in objects if o.encoding == WHOLE])
            for located, data in objects:
                if located.encoding == DELTA:
                    self._contents.take_along((self.packs[located], located), data)
        elif self._opening is not None:
            self._opening.take(objects)
        else:
            self._deliver(objects)

    def plan(self, ids: Iterable[bytes]) -> dict[tuple[int, bytes], tuple[PackRecord, list[Located]]]:
        """Chooses the packs to read; what can be had from nowhere ends it, or is told."""
        plan: dict[tuple[int, bytes], tuple[PackRecord, list[Located]]] = {}
        deltas: list[bytes] = []
        for n, object_id in enumerate(dict.fromkeys(ids), 1):
            if not n % REST_EVERY:
                self.rest()
            places = self._contents.places(object_id, self.lost)
            whole = [p for p in places if p[1].encoding != DELTA]
            if not whole:
                if places:
                    deltas.append(object_id)
                else:
                    self._cannot(object_id)
                continue
            record, located = whole[0]
            if len(whole) > 1:
                record, located = next((p for p in whole if p[0].id in plan), whole[0])
            if (here := plan.get(key := (record.generation, record.name))) is None:
                here = plan[key] = record, []
            here[1].append(located)
        if deltas:
            self._plan_deltas(deltas, plan)
        return plan

    def _plan_deltas(
        self, ids: Sequence[bytes], plan: dict[tuple[int, bytes], tuple[PackRecord, list[Located]]]
    ) -> None:
        """Adds the deltas of blobs, and what they are made of: all of a chain is fetched at once."""
        from metasync.store.deltas import Chains
        from metasync.transfer.opening import Opening

        contents = self._contents
        if self._opening is None:
            self._opening = Opening(contents.transfer.check, self._asked, self._deliver)
        opening = self._opening
        chains = Chains(lambda i: contents.places(i, self.lost), self._is_here)
        planned = {(key, o) for key, (_, located) in plan.items() for o in located}
        for object_id in sorted(ids, key=lambda i: _end_of(chains.of(i))):
            chain = chains.of(object_id)
            while chain is not None and (base := chain[-1].delta) is not None and base.base not in opening.bases:
                if (data := self._base(base.base)) is not None:
                    opening.bases[base.base] = data
                else:
                    chains = Chains(lambda i: contents.places(i, self.lost), self._is_here)
                    chain = chains.of(object_id)
            if chain is None:
                self._cannot(object_id)
                continue
            if not opening.expect(chain):
                self._later.append(object_id)
                continue
            for link in chain:
                key = link.record.generation, link.record.name
                if (key, link.located) not in planned:
                    planned.add((key, link.located))
                    plan.setdefault(key, (link.record, []))[1].append(link.located)

    def _cannot(self, object_id: bytes) -> None:
        """An object can be had from nowhere."""
        error = self._contents.unreadable(object_id)
        if self._on_lost is None:
            raise self._contents.explained(error) if isinstance(error, NotNamedError) else error
        self._on_lost([object_id], error)
        self.given_up.add(object_id)

    def _is_here(self, object_id: bytes) -> bool:
        """Whether a base seems to be kept on this device."""
        return object_id not in self._not_here and object_id in self._contents.bases

    def _base(self, object_id: bytes) -> bytes | None:
        """The bytes of a base that is kept on this device; None where it is not, after all."""
        data = self._contents.bases.get(object_id)
        if data is None or self._contents.transfer.check(ObjectKind.BLOB, data) != object_id:
            self._not_here.add(object_id)
            return None
        return data

    def missed(self, objects: Iterable[Located]) -> list[bytes]:
        """What is asked for and was to come of these objects."""
        ids = (o.id for o in objects)
        if self._opening is not None:
            ids = (i for o in objects for i in self._opening.resting_on(o.id))
        return [i for i in dict.fromkeys(ids) if i in self._asked]

    def can_be_had(self, object_id: bytes) -> bool:
        """Whether an object has a place that may still be read."""
        places = self._contents.places(object_id, self.lost)
        if not places or any(located.encoding != DELTA for _, located in places):
            return bool(places)
        from metasync.store.deltas import Chains

        return Chains(lambda i: self._contents.places(i, self.lost), self._is_here).of(object_id) is not None

    def again(self) -> list[bytes]:
        """What another download is to bring: what had no room here, and what came of no delta that was read."""
        if self._opening is None:
            return []
        self._contents.could_not_open(self._opening.failed, self._opening.newer)
        missing = [i for i in self._opening.missing if i not in self.given_up]
        if missing and not self._opening.failed:
            raise self._contents.unreadable(missing[0])
        return [*self._later, *missing]


def _end_of(chain: Sequence[Link] | None) -> tuple[int, bytes, int]:
    """Where a chain ends. What a download has no room for then lies in other packs than the rest, none of which comes
    twice."""
    if not chain:
        return 0, b"", 0
    record, located, _ = chain[-1]
    return record.generation, record.name, located.segment


class NotNamedError(DamagedError):
    """An object is in no pack that the index names. Raised before anything is fetched."""


def _in_no_pack(object_id: bytes) -> NotNamedError:
    error = NotNamedError(
        f"object {object_id.hex()[:16]} is in no pack that the agreed index names",
        next_step="`metasync check --read-data` tells what else is missing.",
    )
    error.objects = (object_id,)
    return error
