"""The pushes that are kept, as snapshots lead from one to the next, and what a mark must know of them (G8 in
docs/design/collection.md)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, TypeVar

from metasync.consensus import ZERO_HASH
from metasync.errors import DamagedError, WorkspaceError
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.objects.reach import Marked
from metasync.session.session import Agreed, Session
from metasync.store.retained import Retained
from metasync.store.retention import Keep
from metasync.transfer.contents import Contents

SNAPSHOTS_TOGETHER: Final = 256
T = TypeVar("T")


def line(s: Session, base: Agreed, retained: Retained, contents: Contents) -> Iterator[tuple[int, bytes, Snapshot]]:
    """The pushes that are kept, the newest first: version, id and snapshot of each."""
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


def before(snapshot: Snapshot, v: int, retained: Retained) -> bytes:
    """The snapshot of the push before version `v` that is kept; zeros: there is none."""
    gap = retained.over(v - 1) if v else None
    return gap.below if gap is not None else next(iter(snapshot.parents), ZERO_HASH)


def check_unknown(oldest: int, readable: int, policy: Keep, retained: Retained) -> None:
    """`DamagedError` unless all goes that is older than the oldest version whose snapshot can be read.

    Which versions these are nobody knows, nor what they need.
    """
    named = [n.name for n in retained.named if n.version < oldest]
    if not named and policy == Keep(last=policy.last) and 0 < policy.last <= readable:
        return
    what = f", such as {named[0]!r}" if named else ""
    raise DamagedError(
        f"the version before {oldest} is in no pack, so that what older ones need is not known{what}; "
        "nothing was deleted",
        next_step="`metasync check --repair` on a device that knows it brings it back. "
        + (f"`--keep-last {readable}` gives the older versions up, once none of them has a name." if readable else ""),
    )


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
