"""Stores R copies of each pack, and keeps what one session knows of the backends (architecture.md, D6 and D7).

Decisions are tasks over effects (architecture.md, D9); whoever calls decides how many run at once. A backend that could
not be reached or is full is not asked again within one session: it costs one timeout, not one per pack. One that is
known to have no room for a pack counts as full before it says so (`Room`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from metasync.backends.wrappers.ballast import BALLAST_BYTES, BALLAST_PATH
from metasync.codec import amount
from metasync.config import Config
from metasync.errors import BackendError, FullError, OtherSizeError, RefusedError, UnreachableError
from metasync.keys.derive import sha256
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Gather, Op, Reply, Task, Urgency, Work, patience_s
from metasync.store import pack_format
from metasync.store.index import PackRecord
from metasync.store.packs import PackFormat, SealedPack
from metasync.store.placement import Placement, partition_of, placement_of
from metasync.transfer.estimates import ESTIMATES_KEY, Estimates, timed

if TYPE_CHECKING:
    from metasync.local.state import LocalDb

# Left free by packs: for what is agreed, for deletions, and to put the ballast back. Free space is known roughly only
# (blocks, directories, other writers), and the ballast itself is there for when this was not enough.
MARGIN_BYTES: Final = 4 * BALLAST_BYTES
NEARLY_FULL_BYTES: Final = 1 << 30  # a backend with more than this free is not called nearly full, whatever its size
NEARLY_FULL_SHARE: Final = 20  # nor one with more than a twentieth of it free


@dataclass
class Room:
    """Room for packs by backend name; no entry: no known limit. For one thread.

    `free`: what the backend reported, less what this push sent there since. `left`: the agreed capacity, less what the
    index places there. `stale`: backends whose report is old; they are asked again before it counts as too little.
    """

    free: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    sending: dict[str, int] = field(default_factory=dict)

    def told(self, name: str, free_bytes: int) -> None:
        """Notes a report of free space, less the packs on their way, which it may not count yet."""
        self.free[name] = free_bytes - self.sending.get(name, 0)
        self.stale.discard(name)

    def of(self, name: str) -> int | None:
        """Bytes of packs that still fit; None when nothing limits them."""
        limits = [self.left[name]] if name in self.left else []
        limits += [self.free[name] - MARGIN_BYTES] if name in self.free else []
        return max(0, min(limits)) if limits else None

    def lacks(self, name: str, size: int) -> FullError | None:
        """Why a pack of this size does not fit; None if it does, as far as is known."""
        if size > self.left.get(name, size):
            return FullError(
                f"{name}: its capacity has {amount(max(0, self.left[name]))} left, too little for a pack of"
                f" {amount(size)}",
                next_step="Packs go to other backends, if there are any with room.",
            )
        if size + MARGIN_BYTES > self.free.get(name, size + MARGIN_BYTES):
            return FullError(
                f"{name}: {amount(max(0, self.free[name]))} are free there; a pack of {amount(size)} must leave"
                f" {amount(MARGIN_BYTES)} of it to decide on versions",
                next_step="Free space there.",
            )
        return None

    def begin(self, name: str, size: int) -> None:
        """A pack is about to be sent."""
        self.sending[name] = self.sending.get(name, 0) + size
        self._less(name, size)

    def end(self, name: str, size: int, *, stored: bool) -> None:
        """It arrived, or it did not."""
        self.sending[name] -= size
        if not stored:
            self._less(name, -size)

    def _less(self, name: str, size: int) -> None:
        for known in (self.free, self.left):
            if name in known:
                known[name] -= size


def is_nearly_full(left_bytes: int, total_bytes: int | None, *, least_bytes: int = MARGIN_BYTES) -> bool:
    """Whether to warn: little space is left, in itself and of the whole, or less than `least_bytes`."""
    small = total_bytes is not None and left_bytes * NEARLY_FULL_SHARE < total_bytes
    return left_bytes < least_bytes or (small and left_bytes < NEARLY_FULL_BYTES)


def placed_bytes(packs: Iterable[PackRecord], placement: Placement) -> Mapping[bytes, int]:
    """Bytes of the packs that belong on each backend, by id. Summed by partition first, which needs fewer orders."""
    parts: dict[int, tuple[bytes, int]] = {}
    for p in packs:
        partition = partition_of(p.name, placement.partitions)
        parts[partition] = (p.name, parts[partition][1] + p.size if partition in parts else p.size)
    out = dict.fromkeys((t.backend_id for t in placement.targets), 0)
    for name, size in parts.values():
        for backend_id in placement.primary(name):
            out[backend_id] += size
    return out


def transfer_of(
    config: Config,
    previous: Config | None,
    names: Mapping[bytes, str],
    form: PackFormat,
    check: Callable[[ObjectKind, bytes | memoryview], bytes],
    estimates: Estimates,
) -> Transfer:
    """The `Transfer` of a config; it also reads where the previous config has packs. `names`: links by backend id."""
    entries = {b.backend_id: b for c in (previous, config) if c is not None for b in c.backends if b.storage}
    places = {i: Place(names[i], i, tuple(s.storage_id for s in b.storage)) for i, b in entries.items() if i in names}
    before = placement_of(previous) if previous is not None else None
    return Transfer(placement_of(config), places, form, check, before=before, estimates=estimates)


class Begun(NamedTuple):
    """The first `size` bytes of a pack, on their way from `holder` since `at`."""

    holder: str
    size: int
    at: float
    reply: Future[Reply]


PackKey: TypeAlias = tuple[int, bytes]
"""The generation and the name of a pack."""


SPACE_TIMEOUT_S = 5.0  # without an answer the pack is sent: a full backend says so itself
TREES_BYTES_MAX = BALLAST_BYTES // 4  # of a pack that may take a reserve: the trees of some hundred changed directories

Put: TypeAlias = Callable[["Place", "_Cargo"], Generator[Any, Any, bool]]
Check: TypeAlias = Callable[[ObjectKind, bytes | memoryview], bytes]


class Place(NamedTuple):
    """One backend's storage as this device reaches it. `storage_ids`: 16 bytes each, the newest last."""

    name: str
    backend_id: bytes
    storage_ids: tuple[bytes, ...]


class Fault(NamedTuple):
    """A copy that could not be used: on which backend, which pack, and why. `altered`: by its bytes."""

    backend: str
    pack: bytes
    why: str
    missing: bool
    altered: bool = False


class _Cargo(NamedTuple):
    """A pack on its way to a backend."""

    name: bytes
    data: bytes
    generation: int
    urgency: Urgency


class Stored(NamedTuple):
    """A stored pack and its holders, which may be fewer than the `copies` promised.

    `elsewhere`: a copy lies on a backend that the pack does not belong to.
    """

    record: PackRecord
    holders: tuple[str, ...]
    copies: int
    elsewhere: bool


def pack_path(storage_id: bytes, generation: int, name: bytes) -> str:
    """Where a pack lies on a backend, relative to the workspace's folder there (consensus.md, rule 6.1)."""
    h = name.hex()
    return f"{storage_id.hex()}/packs/{generation}/{h[:2]}/{h}"


def read_op(place: Place, path: str, size: int, urgency: Urgency, *, whole: bool = True, offset: int = 0) -> Op:
    """Asks for `size` bytes of a pack: all of it, or from `offset` on."""
    length, patience = None if whole else size, patience_s(size)
    return Op(
        place.name, "get", path, offset=offset, length=length, max_bytes=size, timeout_s=patience, urgency=urgency
    )


def sized(op: Op, reply: Reply) -> Generator[Any, Any, Reply]:
    """The answer to a read of a whole pack: with `OtherSizeError` if it was refused and the copy has another length.

    A copy that has grown is refused, as are other things. Only then is the store asked for its length.
    """
    if op.length is not None or not isinstance(reply.error, RefusedError):
        return reply
    told: Reply = yield Op(op.backend, "stat", op.path, urgency=op.urgency)
    if told.error is not None or told.value == op.max_bytes:
        return reply
    return Reply(error=OtherSizeError(f"has {told.value} bytes instead of {op.max_bytes}"))


def record_of(pack: SealedPack, generation: int) -> PackRecord:
    """What an index says of a sealed pack."""
    header = pack.data[: pack_format.HEADER_BYTES]
    return PackRecord(pack.name, generation, len(pack.data), header, pack.segments, tags=pack.tags)


@dataclass
class Transfer:
    """Moves packs under one config. Counters and findings accumulate over a session; tasks share one thread."""

    placement: Placement
    places: dict[bytes, Place]
    form: PackFormat
    check: Check
    down: dict[str, BackendError] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)  # backends that owe an answer to a download that ended
    estimates: Estimates = field(default_factory=Estimates)
    room: Room = field(default_factory=Room)
    before: Placement | None = None  # by which older packs lie, until they are moved
    doubted: dict[str, Callable[[], Task]] = field(default_factory=dict)  # until one says "": see `_put`
    strange: set[str] = field(default_factory=set)  # backends that turned out to be other stores, or to be silent
    begun: dict[PackKey, Begun] = field(default_factory=dict)  # on their way before they were wanted
    held: Callable[[PackKey], Begun | None] = lambda _: None  # whole ones that a clone began earlier still

    def order(self, name: bytes) -> list[Place]:
        """The linked places of a pack in the agreed order."""
        return [self.places[i] for i in self.placement.order(name) if i in self.places]

    def read_order(self, name: bytes) -> list[Place]:
        """The linked places of a pack in reading order: where it belongs now, where it did before, others."""
        now = self.placement.order(name)
        ids = now[: self.placement.copies]
        if self.before is not None:
            ids += self.before.order(name)[: self.before.copies]
        ids += now + (self.before.order(name) if self.before is not None else ())
        return [self.places[i] for i in dict.fromkeys(ids) if i in self.places]

    def home(self, name: bytes) -> tuple[bytes, ...]:
        """Ids of the backends that ought to hold a pack, by either config."""
        before = self.before.primary(name) if self.before is not None else ()
        return tuple(dict.fromkeys((*self.placement.primary(name), *before)))

    def is_alike(self, other: Transfer) -> bool:
        """Whether both place packs alike."""

        def where(t: Transfer) -> object:
            return t.placement.targets, t.placement.copies, {i: p.storage_ids[-1] for i, p in t.places.items()}

        return self is other or where(self) == where(other)

    def away(self, place: Place) -> bool:
        """True if a place could not be reached in this session. A full one still serves reads."""
        return isinstance(self.down.get(place.name), UnreachableError)

    # --- up

    def upload(self, pack: SealedPack, generation: int, *, least: int | None = None) -> Generator[Any, Any, Stored]:
        """Stores R copies; the copy of a full or unreachable backend goes to the next in the order.

        `least`: stores so many, on those of the R places with the least on their way, and leaves the rest to
        `complete`. A small pack of trees may use the reserve of full backends, without which a deletion could not be
        agreed. `FullError` or `UnreachableError` if no copy could be stored.
        """
        holders: list[str] = []
        order = self.order(pack.name)
        copies = self.placement.copies
        home = {place.name for place in order[:copies]}
        wanted = min(least, copies) if least is not None else copies
        if wanted < copies:
            order[:copies] = sorted(order[:copies], key=lambda p: self.room.sending.get(p.name, 0))
        cargo = _Cargo(pack.name, pack.data, generation, Urgency.SOON)
        trees, record = _is_small_trees(pack), record_of(pack, generation)
        del pack  # what lies in it takes as much memory again
        put = self._put if trees else self._put_if_it_fits
        yield from self._spread([p for p in order if p.name not in self.down], put, cargo, wanted, holders)
        if trees:
            full = [p for p in order if isinstance(self.down.get(p.name), FullError) and p.name not in holders]
            yield from self._spread(full, self._put_with_reserve, cargo, wanted, holders)
        if not holders:
            raise _no_room(self.down, record.size)
        return Stored(record, tuple(holders), copies, not home.issuperset(holders))

    def complete(
        self, name: bytes, generation: int, size: int, holders: Sequence[bytes], data: bytes | None
    ) -> Generator[Any, Any, tuple[bytes, ...]]:
        """Brings a stored pack to R copies, from its bytes or from one of its holders. -> ids of all holders.

        May be repeated. Nobody waits for it.
        """
        if data is None:
            data = yield from self._whole(name, generation, size, holders)
        if data is None:  # a change of the backends may have moved it
            others = [p.backend_id for p in self.read_order(name) if p.backend_id not in holders]
            data = yield from self._whole(name, generation, size, others)
            if data is None:
                return tuple(holders)
            holders = ()
        order = self.order(name)
        having = [p.name for p in order if p.backend_id in holders]
        waiting = [p for p in order if p.name not in having and p.name not in self.down]
        cargo = _Cargo(name, data, generation, Urgency.LATER)
        yield from self._spread(waiting, self._put_if_it_fits, cargo, self.placement.copies, having)
        beyond = tuple(i for i in holders if i not in self.places)
        return tuple(p.backend_id for p in order if p.name in having) + beyond

    def keep_learned(self, db: LocalDb) -> None:
        """Keeps what was learned of the lines for the next run."""
        db.update(ESTIMATES_KEY, self.estimates)

    def put_copy(self, place: Place, name: bytes, generation: int, data: bytes) -> Generator[Any, Any, bool]:
        """Stores a copy under the newest storage id of a place. False: it could not, and is `down` from now on."""
        if place.name in self.down:
            return False
        return (yield from self._put_if_it_fits(place, _Cargo(name, data, generation, Urgency.LATER)))

    def _whole(
        self, name: bytes, generation: int, size: int, holders: Sequence[bytes]
    ) -> Generator[Any, Any, bytes | None]:
        """Reads a pack from the first holder that has it intact; None if none has. Altered copies are faults."""
        for place in (self.places[i] for i in holders if i in self.places):
            for storage_id in reversed(place.storage_ids):
                path = pack_path(storage_id, generation, name)
                op = read_op(place, path, size, Urgency.LATER)
                reply: Reply = yield from sized(op, (yield op))
                if reply.error is None and (yield Work(partial(sha256, reply.value))) == name:
                    return bytes(reply.value)
                if isinstance(reply.error, UnreachableError):
                    break
                if reply.error is None or isinstance(reply.error, OtherSizeError):
                    why = reply.error.message if reply.error is not None else "is not the pack its name promises"
                    self.faults.append(Fault(place.name, name, why, missing=False, altered=True))
        return None

    def _spread(
        self, waiting: list[Place], put: Put, cargo: _Cargo, wanted: int, holders: list[str]
    ) -> Generator[Any, Any, None]:
        """Puts the pack on these places in order, until `wanted` hold it. Adds to `holders`."""
        before = set(self.down)
        while (missing := wanted - len(holders)) > 0 and waiting:
            now, waiting = waiting[:missing], waiting[missing:]
            done = yield Gather({p.name: put(p, cargo) for p in now})
            holders += [p.name for p in now if done[p.name]]
            waiting = [p for p in waiting if p.name in before or p.name not in self.down]

    def _put_if_it_fits(self, place: Place, cargo: _Cargo) -> Generator[Any, Any, bool]:
        size = len(cargo.data)
        full = self.room.lacks(place.name, size)
        if full is not None and place.name in self.room.stale:
            reply: Reply = yield Op(place.name, "space", "", timeout_s=SPACE_TIMEOUT_S)
            if reply.error is None and reply.value is not None and reply.value.free_bytes is not None:
                self.room.told(place.name, reply.value.free_bytes)
                full = self.room.lacks(place.name, size)
        if full is not None:
            self.down.setdefault(place.name, full)
            return False
        return (yield from self._put(place, cargo))

    def _put(self, place: Place, cargo: _Cargo) -> Generator[Any, Any, bool]:
        """Puts a copy, and asks beside that whether the store is the one that is meant, where that is in doubt."""
        ask = self.doubted.get(place.name)
        if ask is None:
            return (yield from self._put_there(place, cargo))
        got = yield Gather({"put": self._put_there(place, cargo), "doubt": ask()})
        if got["doubt"]:
            self.down[place.name] = UnreachableError(got["doubt"])
            self.strange.add(place.name)
            return False
        self.doubted.pop(place.name, None)
        return bool(got["put"])

    def _put_there(self, place: Place, cargo: _Cargo) -> Generator[Any, Any, bool]:
        size = len(cargo.data)
        path = pack_path(place.storage_ids[-1], cargo.generation, cargo.name)
        op = Op(place.name, "put", path, cargo.data, timeout_s=patience_s(size), urgency=cargo.urgency)
        self.room.begin(place.name, size)
        reply: Reply = yield from timed(self.estimates, op, size)
        if reply.error is not None and reply.error.retryable:
            reply = yield from timed(self.estimates, op, size)
        self.room.end(place.name, size, stored=reply.error is None)
        if reply.error is not None:
            self.down[place.name] = reply.error
            return False
        return True

    def _put_with_reserve(self, place: Place, cargo: _Cargo) -> Generator[Any, Any, bool]:
        """Puts a pack on a full backend, if need be after its ballast was deleted."""
        if (yield from self._put(place, cargo)):
            return True
        if not isinstance(self.down[place.name], FullError):
            return False
        given_up: Reply = yield Op(place.name, "delete", BALLAST_PATH)
        return given_up.error is None and (yield from self._put(place, cargo))


_TREES = {ObjectKind.DIR, ObjectKind.SNAPSHOT}


def _is_small_trees(pack: SealedPack) -> bool:
    """Whether a pack is small, and holds directories and snapshots alone: a deletion makes such packs."""
    return len(pack.data) <= TREES_BYTES_MAX and pack_format.kinds_of(pack.places) <= _TREES


def _no_room(down: dict[str, BackendError], size: int) -> BackendError:
    """The error for a pack that found no place at all."""
    reasons = "; ".join(f"{name}: {error.message.removeprefix(f'{name}: ')}" for name, error in sorted(down.items()))
    if down and all(isinstance(e, FullError) for e in down.values()):
        return FullError(
            f"every backend is full: none has room for a pack of {amount(size)} ({reasons})",
            next_step="Nothing was pushed, and nothing is lost. Free space on one of them, or add another; push again.",
        )
    return UnreachableError(
        f"no backend could store a pack ({reasons})", next_step="Check the backends, then run again."
    )
