"""Packs that are fetched before it is known what of them is wanted: a clone's first, while its tree is being read.

Between the index and the first file of a clone lie the trees, some round trips and much unpacking, and all lines are
idle. Nearly all contents of an agreed index are wanted by a clone, as a rule. So each backend that is not asked for
trees is asked for one piece of a pack, `HOLDER_BYTES` at most, and the others when the trees are there; unless these
come so soon that the lines are not what a clone waits for. What came of it is at hand when it turns out to be wanted;
if it is not, that much was fetched in vain. A download that wants the pack takes over what is under way
(`Download.want`), with all that holds for what it asked for itself: verified before it is opened, asked elsewhere if it
is bad, late or missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeAlias

from metasync.objects import packfile
from metasync.runtime.effects import Op, Reply, Task, Urgency
from metasync.store.estimates import timed
from metasync.store.index import PackRecord
from metasync.store.transfer import Place, Transfer, pack_path, patience_s

HOLDER_BYTES: Final = 4 << 20  # of each backend: what a line of 5 MB/s carries while a tree is read
WHOLE_BYTES_MAX: Final = HOLDER_BYTES + (HOLDER_BYTES >> 3)  # a pack of the usual size and its padding is not cut
PACK_BYTES_LEAST: Final = 1 << 20  # smaller ones are there in one go when they are asked for


class Begun(NamedTuple):
    """The first `size` bytes of a pack, on their way from `holder` since `at`."""

    holder: str
    size: int
    at: float
    reply: Future[Reply]


Chosen: TypeAlias = tuple[PackRecord, str, int]


def choose(packs: Iterable[tuple[PackRecord, Sequence[str]]]) -> list[Chosen]:
    """What to begin with, of packs and their holders: (pack, holder, how many of its first bytes). One of each holder.

    Of the newest packs, for what was stored last was replaced least, the largest.
    """
    out: list[Chosen] = []
    busy: set[str] = set()
    sized = [(record, holders, size) for record, holders in packs if (size := first_bytes(record))]
    for record, holders, size in sorted(sized, key=lambda p: (-p[0].generation, -p[2], p[0].name)):
        free = [name for name in holders if name not in busy]
        if free:
            busy.add(free[0])
            out.append((record, free[0], size))
    return out


def first_bytes(record: PackRecord) -> int:
    """How much of a pack to begin with: all of it, or its first segments; 0 where it is not worth it."""
    if record.size < PACK_BYTES_LEAST:
        return 0
    if record.size <= WHOLE_BYTES_MAX:
        return record.size
    return max((at for at in packfile.offsets(record.segments)[1:] if at <= HOLDER_BYTES), default=0)


def begin(
    t: Transfer,
    packs: Iterable[PackRecord],
    start: Callable[[Task], Future[Reply]],
    clock: Callable[[], float],
    busy: Collection[str] = (),
) -> None:
    """Asks for the first of these packs, and leaves what is under way in `t.begun`. Backends that are `busy`, or have
    something under way there already, are asked for nothing."""
    free = {p.name: p for p in t.places.values() if not t.away(p) and len(p.storage_ids) == 1}
    for name in (*busy, *t.silent, *(begun.holder for begun in t.begun.values())):
        free.pop(name, None)
    if not free:
        return
    listed = []
    for record in packs:
        if (record.generation, record.name) not in t.begun:
            homes = [t.places[i].name for i in t.placement.primary(record.name) if i in t.places]
            listed.append((record, [n for n in homes if n in free]))
    for record, holder, size in choose(listed):
        begun = Begun(holder, size, clock(), start(_asking(t, free[holder], record, size)))
        t.begun[record.generation, record.name] = begun


def _asking(t: Transfer, place: Place, record: PackRecord, size: int) -> Generator[Any, Any, Reply]:
    op = Op(
        place.name,
        "get",
        pack_path(place.storage_ids[-1], record.generation, record.name),
        length=None if size == record.size else size,
        max_bytes=size,
        timeout_s=patience_s(size),
        urgency=Urgency.SOON,
    )
    return (yield from timed(t.estimates, op, size))
