"""Brings a pack to the places where it is to lie, and verifies every copy there (consensus.md, rule 6.4).

A copy is verified when its store tells the right digest of it, or when it was read back. A store's word that it has
stored something is not enough: what follows is the deletion of another copy.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from metasync.errors import NotFoundError, OtherSizeError, UnreachableError
from metasync.keys.derive import sha256
from metasync.runtime.effects import Gather, Op, Reply, Urgency, Work
from metasync.store.index import PackRecord
from metasync.transfer.copies import Place, Transfer, pack_path, read_op, sized

TRIES: Final = 2  # of storing a copy that is not there afterwards


class Brought(NamedTuple):
    """What became of a pack. `lacking`: the backends that do not have it, or of which that is not known, and why.

    sent     how many copies were stored, by the name of the backend
    is_lost  every backend that might have it was asked, and none has it intact
    """

    lacking: dict[str, str]
    sent: tuple[str, ...] = ()
    is_lost: bool = False

    @property
    def verified(self) -> bool:
        return not self.lacking


def bring(
    t: Transfer, record: PackRecord, wanted: Sequence[Place], sources: Sequence[Place], *,
    are_all: bool = True, read_data: bool = False,
) -> Generator[Any, Any, Brought]:  # fmt: skip
    """Makes sure of a copy on all of `wanted`. A place has the storage ids in which a copy counts, the newest last.

    `sources`: where to read the pack, in this order, under all of a backend's ids; `are_all`: no other backend may have
    it. `read_data`: digests do not do.
    """
    asked = yield Gather({p.name: _has(t, p, record, read_data) for p in wanted})
    lacking = {p.name: str(asked[p.name]) for p in wanted if asked[p.name]}
    lacking.update({p.name: t.down[p.name].message for p in wanted if asked[p.name] and p.name in t.down})
    absent = [p for p in wanted if asked[p.name] == _ABSENT and p.name not in t.down]
    if not absent:
        return Brought(lacking)
    there = {p.name for p in wanted if not asked[p.name]}
    data, unsure = yield from _read(t, record, sorted(sources, key=lambda p: p.name not in there))
    if data is None:
        lacking.update({p.name: "some packs have no copy on a backend that answers" for p in absent})
        return Brought(lacking, is_lost=are_all and not unsure and not there)
    sent: list[str] = []
    for _ in range(TRIES):
        stored = yield Gather({p.name: _store(t, p, record, data, read_data) for p in absent})
        sent += [p.name for p in absent if not stored[p.name]]
        lacking = {n: why for n, why in lacking.items() if n not in sent}
        lacking.update({p.name: str(stored[p.name]) for p in absent if stored[p.name]})
        absent = [p for p in absent if stored[p.name] == _ABSENT]
        if not absent:
            break
    return Brought(lacking, tuple(sent))


_ABSENT: Final = "it has not what was stored there"


def _has(t: Transfer, place: Place, record: PackRecord, read_data: bool) -> Generator[Any, Any, str]:
    """Whether a place has a right copy: "" if it has, else why not."""
    for storage_id in reversed(place.storage_ids):
        if t.away(place):
            return t.down[place.name].message
        if (why := (yield from _verified(t, place, storage_id, record, read_data))) != _ABSENT:
            return why
    return _ABSENT


def _verified(
    t: Transfer, place: Place, storage_id: bytes, record: PackRecord, read_data: bool
) -> Generator[Any, Any, str]:
    path = pack_path(storage_id, record.generation, record.name)
    told: Reply = yield Op(place.name, "digest", path, urgency=Urgency.LATER)
    if told.error is not None:
        return _failed(t, place, told)
    size, kind, digest = told.value
    if size != record.size:
        return _ABSENT
    expected = record.digest(kind)
    if digest is not None and digest == expected and not read_data:
        return ""
    reply: Reply = yield read_op(place, path, record.size, Urgency.LATER)
    if reply.error is not None:
        return _failed(t, place, reply)
    return "" if (yield Work(partial(sha256, reply.value))) == record.name else _ABSENT


def _failed(t: Transfer, place: Place, reply: Reply) -> str:
    error = reply.error
    assert error is not None
    if isinstance(error, NotFoundError | OtherSizeError):
        return _ABSENT
    if isinstance(error, UnreachableError):
        t.down[place.name] = error
    return error.message


def _read(t: Transfer, record: PackRecord, sources: Sequence[Place]) -> Generator[Any, Any, tuple[bytes | None, bool]]:
    """-> the pack from the first source that has it intact, and whether one that may have it could not be asked."""
    unsure = False
    for place in sources:
        for storage_id in reversed(place.storage_ids):
            if t.away(place):
                unsure = True
                break
            path = pack_path(storage_id, record.generation, record.name)
            op = read_op(place, path, record.size, Urgency.LATER)
            reply: Reply = yield from sized(op, (yield op))
            if reply.error is None and (yield Work(partial(sha256, reply.value))) == record.name:
                return bytes(reply.value), unsure
            unsure |= reply.error is not None and _failed(t, place, reply) != _ABSENT
    return None, unsure


def _store(t: Transfer, place: Place, record: PackRecord, data: bytes, read_data: bool) -> Generator[Any, Any, str]:
    """Stores a copy under the newest id, and verifies it: "" when it is there, else why not."""
    if not (yield from t.put_copy(place, record.name, record.generation, data)):
        return t.down[place.name].message
    return (yield from _verified(t, place, place.storage_ids[-1], record, read_data))
