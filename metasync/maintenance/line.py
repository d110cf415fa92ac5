"""The pushes that are kept, as snapshots lead from one to the next, and what a mark must know of them (G8 in
docs/design/collection.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from metasync.consensus import ZERO_HASH, State
from metasync.errors import DamagedError, MetaSyncError, WorkspaceError
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.objects.reach import Marked
from metasync.session import left_out
from metasync.session.session import Agreed, Session
from metasync.session.states import Chain
from metasync.store.retained import Retained
from metasync.store.retention import Keep
from metasync.transfer.contents import Contents

SNAPSHOTS_TOGETHER: Final = 256
LOOK_BACK_MAX: Final = 4096  # versions that are gone through for the one that a snapshot was agreed as
T = TypeVar("T")


def line(s: Session, base: Agreed, retained: Retained, contents: Contents) -> Iterator[tuple[int, bytes, Snapshot]]:
    """The pushes that are kept, the newest first, as snapshots say it: version, id and snapshot of each."""
    ids: list[bytes] = []
    if base.state.master != ZERO_HASH:
        ids = [i for i in base.index.ids(ObjectKind.SNAPSHOT) if s.db.get_object(i) is None]
    for start in range(0, len(ids), SNAPSHOTS_TOGETHER):
        contents.load(ObjectKind.SNAPSHOT, ids[start : start + SNAPSHOTS_TOGETHER])
    current = base.state.master
    while current != ZERO_HASH and (current in base.index or current == base.state.master):
        snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [current])[current])
        v = version_of(snapshot)
        yield v, current, snapshot
        current = before(snapshot, v, retained)


def agreed(
    s: Session, base: Agreed, retained: Retained, contents: Contents
) -> tuple[list[tuple[int, bytes, Snapshot]], bool]:
    """-> (the same, whether that is all of them), as the chain of states says it: a snapshot may name another one
    before it than was, or another version. What is older than a push whose snapshot is lost is left out.

    A snapshot that nothing leads to is a push that was led past, if its version was agreed with it. So only such
    snapshots take a state each, and all where one is found, or where versions cannot be what they are said to be.
    """
    there, chain = list(line(s, base, retained, contents)), Chain(s, base.state)
    on, found = {i for _, i, _ in there}, dict[int, tuple[bytes, Snapshot]]()
    said = {v for v, _, _ in there}
    for snapshot_id in base.index.ids(ObjectKind.SNAPSHOT):
        if snapshot_id in on:
            continue
        snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [snapshot_id])[snapshot_id])
        v = version_of(snapshot)
        if not 0 < v <= base.state.v or retained.has_dropped(v) or base.devices.policy.skip_over(v) is not None:
            continue
        try:
            is_agreed = chain.at(base.state, v).master == snapshot_id
        except DamagedError:  # it went with lost backends
            is_agreed = v not in said
        if is_agreed:
            found[v] = snapshot_id, snapshot
    numbers = [base.state.v + 1, *(v for v, _, _ in there), 0]
    is_whole = not there or before(there[-1][2], there[-1][0], retained) == ZERO_HASH
    is_odd = found or any(a <= b for a, b in pairwise(numbers)) or any(map(retained.has_dropped, said))
    if is_whole and not is_odd:
        return there, True
    by = {_number(chain, base.state, *one): one[1:] for one in there} | found
    out = list[tuple[int, bytes, Snapshot]]()
    for v in sorted(by, reverse=True):
        if v and out and _agreed_before(chain, base.state, out[-1][0], retained, by[v][0]) != by[v][0]:
            return out, False
        out += [(v, *by[v])] if v else []
    return out, not out or _agreed_before(chain, base.state, out[-1][0], retained, ZERO_HASH) == ZERO_HASH


def _agreed_before(chain: Chain, newest: State, v: int, retained: Retained, otherwise: bytes) -> bytes:
    """The snapshot of the push before version `v` that is kept; `otherwise` if its state went with lost backends."""
    gap = retained.over(v - 1)
    try:
        return gap.below if gap is not None else chain.at(newest, v - 1).master
    except DamagedError:
        return otherwise


def _number(chain: Chain, newest: State, said: int, snapshot_id: bytes, _: Snapshot) -> int:
    """The version that was agreed with this snapshot, which says it is `said`; 0: there is none."""
    state, steps = newest, 0
    try:
        if 0 < said <= newest.v and chain.at(newest, said).master == snapshot_id:
            state = chain.at(newest, said)
        while state.master != snapshot_id and state.v and steps < LOOK_BACK_MAX:
            state, steps = chain.at(state, state.v - 1), steps + 1
        while state.v > 1 and (below := chain.at(state, state.v - 1)).master == snapshot_id:
            state = below
    except DamagedError:  # the others went with lost backends
        return state.v if state.master == snapshot_id else said if 0 < said < newest.v else 0
    return state.v if state.master == snapshot_id else 0


def is_agreed(s: Session, base: Agreed, newest: Agreed, new: Sequence[tuple[int, bytes]]) -> bool:
    """Whether these are the pushes from `base` to `newest`, by the chain of states."""
    if newest.state.v - base.state.v > LOOK_BACK_MAX:
        return False
    chain, master, told = Chain(s, newest.state), base.state.master, list[tuple[int, bytes]]()
    for v in range(base.state.v + 1, newest.state.v + 1):
        if (at := chain.at(newest.state, v).master) != master:
            told.append((v, at))
            master = at
    return told == [*new]


def before(snapshot: Snapshot, v: int, retained: Retained) -> bytes:
    """The snapshot of the push before version `v` that is kept; zeros: there is none."""
    gap = retained.over(v - 1) if v else None
    return gap.below if gap is not None else next(iter(snapshot.parents), ZERO_HASH)


def check_unknown(s: Session, newest: State, oldest: int, readable: int, policy: Keep, retained: Retained) -> None:
    """`DamagedError` unless all goes that is older than the oldest version whose snapshot can be read.

    Which versions these are nobody knows, nor what they need.
    """
    named = [n.name for n in retained.named if n.version < oldest]
    if not named and policy == Keep(last=policy.last) and 0 < policy.last <= readable:
        return
    what = f", such as {named[0]!r}" if named else ""
    give_up = f" `metasync gc --keep-last {readable}` gives the older versions up" if readable else ""
    first = ", once `metasync tag --delete` took their names" if named else ""
    error = DamagedError(
        f"the version before {oldest} is in no pack, so that what older ones need is not known{what}; "
        "nothing was deleted",
        next_step="`metasync check --repair` on a device that knows it brings it back."
        + (f"{give_up}{first}." if give_up else ""),
    )
    with contextlib.suppress(MetaSyncError):
        error.objects = (Chain(s, newest).at(newest, oldest - 1).master,)
    raise left_out.explained(s, newest, error, oldest - 1)


def check_order(pushes: list[tuple[int, bytes, int]]) -> None:
    """`WorkspaceError` unless versions descend: a policy must not drop one in the name of another."""
    above, newer = 1 << 64, ""
    for v, snapshot_id, _ in pushes:
        here = f"snapshot {snapshot_id.hex()[:12]} says that it is version {v}"
        if not 0 < v < above:
            raise WorkspaceError(
                f"{newer or here}, and cannot be, by what comes before it; no version was dropped",
                next_step="`metasync gc` without a policy deletes what no version needs.",
            )
        above, newer = v, here


class Fresh:
    """A set of ids that grows, with those that were added to it from here on."""

    def __init__(self, marked: Marked) -> None:
        self._marked = marked
        self.ids: list[bytes] = []

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._marked

    def add(self, object_id: bytes) -> None:
        self._marked.add(object_id)
        self.ids.append(object_id)


def all_named(walk: Generator[Needs, Bytes, T], base: Agreed) -> Generator[Needs, Bytes, T]:
    """The same walk. `DamagedError` where it asks for what the index does not name, though it may be cached here."""
    try:
        needs = next(walk)
        while True:
            if lost := tuple(i for i in needs[1] if i not in base.index):
                error = DamagedError(f"{_count(needs[0], len(lost))} in no pack that is agreed")
                error.objects = lost
                raise error
            needs = walk.send((yield needs))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _count(kind: ObjectKind, lost: int) -> str:
    one, many = {
        ObjectKind.DIR: ("directory", "directories"),
        ObjectKind.FILE: ("list of a file's chunks", "lists of files' chunks"),
    }.get(kind, ("version", "versions"))
    return f"{lost:,} {one if lost == 1 else many} {'is' if lost == 1 else 'are'}"
