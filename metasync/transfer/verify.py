"""Checks whether the copies of a pack are there and right: by size, by the store's own digest, or by reading.

A store's word costs one small request and shows accidents; only reading shows a lie. An unexpected digest is no
verdict, because a service may encrypt or assemble what it stores: the copy is read then. Where a store tells no digest,
`check` has some pieces read.

A pack that is read whole also shows whether what the index lists in it is there. That is up to the device that listed
it, and the same in all copies, so one of them is looked through.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from metasync.errors import BackendError, FormatError, NotFoundError, OtherSizeError, UnreachableError, UpgradeError
from metasync.keys.derive import sha256
from metasync.runtime.effects import Gather, Op, Reply, Urgency, Work
from metasync.runtime.sizes import PACKS_ASKED_AT_ONCE
from metasync.runtime.tasks import Runtime
from metasync.store import pack_format
from metasync.store.index import PackRecord
from metasync.store.pack_format import WHOLE, Located
from metasync.store.packs import read_segment
from metasync.transfer.copies import Place, Transfer, pack_path, read_op, sized

How: TypeAlias = Literal["size", "digest", "piece", "read"]


class CopyState(NamedTuple):
    """One copy as `check` found it: no problem means right, as far as was looked (`how`, `bytes_read`).

    `unknown`: the backend did not say; it may have the copy. `storage_id`: where on the backend it is, if it is right.
    `is_given_up`: it is right, and a change of the backends has it deleted later. `no_way`: to its backend, from here.
    `untrue`: ids of objects that do not lie in the pack where they are listed, if that was looked for in this copy.
    """

    backend: str
    problem: str | None
    missing: bool = False
    how: How = "size"
    bytes_read: int = 0
    unknown: bool = False
    storage_id: bytes = b""
    untrue: tuple[bytes, ...] = ()
    is_given_up: bool = False
    no_way: bool = False


def check_pack(
    t: Transfer,
    record: PackRecord,
    *,
    read_data: bool,
    pieces: Mapping[str, int] | None = None,
    listed: Sequence[Located] = (),
) -> Generator[Any, Any, tuple[list[CopyState], list[CopyState]]]:
    """Looks at a pack's copies: (those on the R places it belongs to, those elsewhere, which may be in their stead).

    Of the former, those to which there is no way are left out; of the latter, those that are missing or damaged.

    `pieces`: by backend, the number of the segment to read there if that store tells no digest. `listed`: what an index
    lists in the pack; it is looked for in one right copy that is read.
    """
    belongs, pieces, rows = t.placement.primary(record.name), pieces or {}, [*listed]
    order = t.read_order(record.name)
    home, others = ([p for p in order if (p.backend_id in belongs) is there] for there in (True, False))
    first = yield Gather({p.name: check_copy(t, p, record, read_data, pieces.get(p.name), rows) for p in home})
    states = [first[p.name] for p in home]
    if len(states) == len(belongs) and all(s.problem is None for s in states):
        return states, []
    rest = yield Gather({p.name: check_copy(t, p, record, read_data, None, rows) for p in others})
    return states, [x for p in others if (x := rest[p.name]).problem is None or x.unknown]


def check_copy(
    t: Transfer,
    place: Place,
    record: PackRecord,
    read_data: bool,
    piece: int | None,
    listed: list[Located] | None = None,
) -> Generator[Any, Any, CopyState]:
    """Looks at the copy of a pack on one backend. The first one that is right takes what is `listed` out, and looks for
    it."""
    if t.away(place):
        return CopyState(place.name, f"cannot be reached: {t.down[place.name].message}", unknown=True)
    problem: CopyState | None = None
    for storage_id in reversed(place.storage_ids):
        path = pack_path(storage_id, record.generation, record.name)
        state: CopyState | None
        if read_data:
            state = yield from _read(t, place, path, record, listed if listed is not None else [])
        else:
            state = yield from _asked(t, place, path, record, piece)
        if state is not None:
            problem = state
            if state.problem is None:
                return state._replace(storage_id=storage_id)
            if place.name in t.down:
                return state
    return problem or CopyState(place.name, "missing", True)


def _asked(
    t: Transfer, place: Place, path: str, record: PackRecord, piece: int | None
) -> Generator[Any, Any, CopyState | None]:
    """By what the store says of it; None where it is not there."""
    reply: Reply = yield Op(place.name, "digest", path)
    if reply.error is not None:
        return _failed(t, place, reply)
    size, kind, told = reply.value
    if size != record.size:
        return CopyState(place.name, f"has {size} bytes instead of {record.size}")
    expected = record.digest(kind)
    if told is not None and expected is not None:
        if told == expected:
            return CopyState(place.name, None, how="digest")
        return (yield from _read(t, place, path, record, []))
    if piece is not None:
        return (yield from _read_piece(t, place, path, record, piece))
    return CopyState(place.name, None)


def _read(
    t: Transfer, place: Place, path: str, record: PackRecord, listed: list[Located]
) -> Generator[Any, Any, CopyState | None]:
    """By all that it holds."""
    op = read_op(place, path, record.size, Urgency.LATER)
    reply: Reply = yield from sized(op, (yield op))
    if isinstance(reply.error, OtherSizeError):
        return CopyState(place.name, reply.error.message, how="read")
    if reply.error is not None:
        return _failed(t, place, reply)
    data = reply.value
    if len(data) != record.size:
        problem: str | None = f"has {len(data)} bytes instead of {record.size}"
    else:
        problem = None if (yield Work(partial(sha256, data))) == record.name else "altered"
    untrue: tuple[bytes, ...] = ()
    if problem is None and listed:
        rows, listed[:] = [*listed], []
        untrue = yield Work(partial(not_there, t, record, data, rows))
    return CopyState(place.name, problem, how="read", bytes_read=len(data), untrue=untrue)


def not_there(t: Transfer, record: PackRecord, data: bytes, listed: Iterable[Located]) -> tuple[bytes, ...]:
    """The ids of objects that do not lie in a pack where they are listed. `data`: all its bytes, which are right.

    Of deltas only those that cannot be read: the others are told by what they come to. Segments are opened one by one.
    """
    by_segment: dict[int, list[Located]] = {}
    for one in listed:
        by_segment.setdefault(one.segment, []).append(one)
    at, view, out = pack_format.offsets(record.segments), memoryview(data), list[bytes]()
    for number, some in sorted(by_segment.items()):
        stored, segment = view[at[number] : at[number + 1]], record.segments[number]
        try:
            raw = memoryview(read_segment(record.header, stored, number, segment, t.form, verified=False))
        except UpgradeError:
            continue
        except FormatError:
            out += [one.id for one in some]
            continue
        whole = (one for one in some if one.encoding == WHOLE)
        out += [o.id for o in whole if t.check(o.kind, raw[o.offset : o.offset + o.length]) != o.id]
    return tuple(out)


def _read_piece(
    t: Transfer, place: Place, path: str, record: PackRecord, number: int
) -> Generator[Any, Any, CopyState | None]:
    """By one segment of it."""
    segment, at = record.segments[number], pack_format.offsets(record.segments)[number]
    reply: Reply = yield read_op(place, path, segment.stored_bytes, Urgency.LATER, whole=False, offset=at)
    if reply.error is not None:
        return _failed(t, place, reply)
    right = (yield Work(partial(sha256, reply.value))) == segment.digest
    return CopyState(place.name, None if right else "altered", how="piece", bytes_read=len(reply.value))


def _failed(t: Transfer, place: Place, reply: Reply) -> CopyState | None:
    error = reply.error
    assert error is not None
    if isinstance(error, NotFoundError):
        return None
    if isinstance(error, UnreachableError):
        t.down[place.name] = error
        return CopyState(place.name, f"cannot be reached: {error.message}", unknown=True)
    return CopyState(place.name, error.message, unknown=True)


def where_not(runtime: Runtime, tasks: Iterable[tuple[PackRecord, Generator[Any, Any, bool]]]) -> list[PackRecord]:
    """Runs questions about packs, some at a time. -> those with the answer no."""
    todo = iter(tasks)
    out: list[PackRecord] = []
    running: dict[Future[Any], PackRecord] = {}
    while True:
        for record, task in todo:
            running[runtime.start(task)] = record
            if len(running) >= PACKS_ASKED_AT_ONCE:
                break
        if not running:
            return out
        finished = runtime.wait(running)
        out += [record for future in finished if (record := running.pop(future)) and not future.result()]


def has_copy(
    others: Iterable[Place], record: PackRecord, silent: dict[bytes, BackendError] | None = None
) -> Generator[Any, Any, bool]:
    """-> bool: one of these holds a copy of the right size. `silent`: gets the errors of those that did not tell, by
    backend id, where no other one holds any.
    """
    errors: dict[bytes, BackendError] = {}
    for place in others:
        for storage_id in reversed(place.storage_ids):
            path = pack_path(storage_id, record.generation, record.name)
            reply: Reply = yield Op(place.name, "stat", path)
            if reply.error is None and reply.value == record.size:
                return True
            if reply.error is not None and not isinstance(reply.error, NotFoundError):
                errors[place.backend_id] = reply.error
            if isinstance(reply.error, UnreachableError):
                break
    if silent is not None:
        silent.update(errors)
    return False
