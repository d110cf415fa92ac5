"""Deletes what no version needs and none ever will: the last step of garbage collection (consensus.md, rule 6.3).

A pack may go once a decided state has fenced its generation and does not name it. No later state can name it then, so
it does not matter who deletes it, in which order, or how much later; and whoever was interrupted begins anew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

from metasync.consensus import Ref
from metasync.errors import BackendError, MetaSyncError, NotFoundError, UnreachableError, UpgradeError
from metasync.events import Progress
from metasync.runtime.effects import Op, Reply, Urgency, each
from metasync.session.session import Session
from metasync.store.index import PackId
from metasync.store.pack_format import PACK_BYTES_MAX
from metasync.store.packs import read_footer
from metasync.transfer.inventories import Copy, Pages

DELETED_AT_ONCE: Final = 64
LIST_TIMEOUT_S: Final = 120.0

Refusals: TypeAlias = Callable[[], Mapping[str, str]]
"""-> the backends on which nothing that a state let go may be deleted yet, and why (`session.witnesses`)."""

_GENERATION: Final = re.compile("0|[1-9][0-9]{0,19}")
_NAME: Final = re.compile("[0-9a-f]{64}")


@dataclass
class Swept:
    """By backend: how many packs were deleted there, and their bytes. `away`: where something may be left, and why.

    `spared`: copies that may hold what is missing, or is nowhere else.
    """

    packs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    away: dict[str, str] = field(default_factory=dict)
    spared: int = 0

    def add(self, copy: Copy) -> None:
        self.packs[copy.backend] += 1
        self.bytes[copy.backend] += copy.size


def listed(s: Session, away: dict[str, str], below: int | None = None) -> Iterator[Copy]:
    """The packs that the backends list, under all their storage ids; of generations `below` this one, if given.

    Backends that fail are left out from there on, and noted in `away`. A list is a hint: what it lacks stays.
    """
    for place in sorted(s.transfer.places.values()):
        if place.name in s.out or s.transfer.away(place):
            away[place.name] = (s.out.get(place.name) or s.transfer.down[place.name]).message
            continue
        try:
            pages = Pages(place, below)
            while (copies := s.runtime.run(pages.following())) is not None:
                yield from copies
        except BackendError as e:
            away[place.name] = e.message
            if isinstance(e, UnreachableError):
                s.transfer.down.setdefault(place.name, e)


def may_go(pack_id: PackId, named: Collection[PackId], min_gen: int) -> bool:
    """Whether a pack may be deleted, by the fence and the index of one decided state, whichever."""
    return pack_id[0] < min_gen and pack_id not in named


def sweep(
    s: Session,
    named: Collection[PackId],
    min_gen: int,
    refusals: Refusals,
    is_missed: Callable[[bytes], bool] | None = None,
    *,
    planned: Collection[PackId] = (),
    is_shown: Callable[[Sequence[bytes]], bool] | None = None,
) -> Swept:
    """Deletes what may go on all backends within reach. `named`, `min_gen`: of one decided state, see `may_go`.

    `refusals`: where nothing may be deleted by that state yet, and why; asked for when there is something to delete.
    `is_missed`: whether an object is needed and in no pack that is named, where there is such a one. Then a copy goes
    only if its bytes prove that it holds none. `planned`: the packs of which this run has seen that others have what is
    needed of them. Any other goes only if that `is_shown` of what it holds: who let it go may have lied.
    """
    out = Swept()
    going: Iterator[Copy] = (copy for copy in listed(s, out.away, min_gen) if may_go(copy.id, named, min_gen))
    going = _where_it_may(going, refusals, out)
    if is_missed is not None or is_shown is not None:
        going = _without_needed(s, going, planned, is_missed, is_shown or (lambda _: True), out)
    done = 0
    while some := list(islice(going, DELETED_AT_ONCE)):
        ops = {c.backend + "/" + c.path: Op(c.backend, "delete", c.path, urgency=Urgency.LATER) for c in some}
        replies: Mapping[str, Reply] = s.runtime.run(each(ops))
        for copy in some:
            error = replies[copy.backend + "/" + copy.path].error
            if error is None:
                out.add(copy)
            else:
                out.away.setdefault(copy.backend, error.message)
        done += len(some)
        s.listener(Progress("delete", done, None, "packs"))
    return out


def _where_it_may(copies: Iterator[Copy], refusals: Refusals, out: Swept) -> Iterator[Copy]:
    """Those of these copies that lie where deleting is allowed."""
    for copy in copies:
        if why := refusals().get(copy.backend):
            out.away.setdefault(copy.backend, f"nothing is deleted there yet: {why}")
        else:
            yield copy


def _without_needed(
    s: Session,
    copies: Iterator[Copy],
    planned: Collection[PackId],
    is_missed: Callable[[bytes], bool] | None,
    is_shown: Callable[[Sequence[bytes]], bool],
    out: Swept,
) -> Iterator[Copy]:
    """Those of these copies that were read whole and hold nothing that is missed, or may be nowhere else."""
    known: dict[PackId, bool] = {}
    for copy in copies:
        if copy.id in planned and is_missed is None:
            yield copy
            continue
        if copy.id not in known:
            held = _held(s, copy, is_sure=is_missed is not None)
            if held is not None:
                known[copy.id] = any(map(is_missed, held)) if is_missed is not None else False
                known[copy.id] |= copy.id not in planned and not is_shown(held)
        if known.get(copy.id, True):
            out.spared += 1
        else:
            yield copy


def _held(s: Session, copy: Copy, *, is_sure: bool) -> Sequence[bytes] | None:
    """What a pack holds; None: this copy cannot tell. One that is not what its name says holds nothing, unless another
    copy may be asked (`is_sure`)."""
    op = Op(copy.backend, "get", copy.path, max_bytes=PACK_BYTES_MAX, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER)
    reply: Reply = s.runtime.run(each({"": op}))[""]
    if reply.error is not None:
        return None
    try:
        _, footer = read_footer(reply.value, copy.id[1], s.form)
    except UpgradeError:
        return None
    except MetaSyncError:
        return None if is_sure else ()
    return [o.id for o in footer.objects]


# ---- records beside the logs


def sweep_records(s: Session, needed: Collection[Ref], min_gen: int, refusals: Refusals) -> None:
    """Deletes records of indexes, and lists of what is kept, that may go, on all acceptors within reach.

    They may go as packs may: by the fence of one decided state that does not need them, where that state is known.
    """
    for backend, acceptor in s.config.acceptors:
        link, top = s.names.get(backend.backend_id), f"{acceptor.acceptor_id.hex()}/meta"
        if link is None or link in s.out:
            continue
        try:
            for generation in sorted(g for g in map(int, _listed_in(s, link, top, _GENERATION)) if g < min_gen):
                folder = f"{top}/{generation}"
                names = _listed_in(s, link, folder, _NAME)
                going = iter([n for n in sorted(names) if Ref(generation, bytes.fromhex(n)) not in needed])
                while (some := list(islice(going, DELETED_AT_ONCE))) and link not in refusals():
                    ops = {n: Op(link, "delete", f"{folder}/{n}", urgency=Urgency.LATER) for n in some}
                    s.runtime.run(each(ops))
        except BackendError:
            continue  # the next run finds them


def _listed_in(s: Session, link: str, folder: str, form: re.Pattern[str]) -> list[str]:
    """The names of this form in a folder; none where there is no such folder."""
    op = Op(link, "list", folder, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER)
    reply: Reply = s.runtime.run(each({"": op}))[""]
    if isinstance(reply.error, NotFoundError):
        return []
    if reply.error is not None:
        raise reply.error
    return [item.name for item in reply.value if form.fullmatch(item.name)]
