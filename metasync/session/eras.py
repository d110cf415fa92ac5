"""What becomes of this folder when the workspace is restarted without its lost backends (consensus.md, rule 5.3).

The folder may be at a version of the old era that the new one does not contain. Then its base is set back to the last
version that both have, in the same step in which the new era is remembered. Nothing on the disk changes by that: what
the folder has beyond that base is a change of this device's own from now on, merged and pushed as any other.

States of an old era are read through the first index, config and device set of the new one: what they name themselves
may have been on the lost backends alone.
"""

from __future__ import annotations

import contextlib
import datetime
import stat
from typing import TYPE_CHECKING, Final

from metasync.consensus.records.era import EraRecord, Tombstone
from metasync.consensus.records.state import STATE_BYTES, ZERO_HASH, State, decode_state
from metasync.errors import MetaSyncError
from metasync.local import state_keys
from metasync.local.state_keys import RETIRED_KEY
from metasync.objects.model import Kind
from metasync.worktree.index import Row, load_rows, store_rows

if TYPE_CHECKING:
    from metasync.local.state import LocalDb
    from metasync.session.agreement import Seat
    from metasync.session.session import Agreed, Session


LEFT_KEY: Final = state_keys.LEFT_KEY.holding(State.encode, decode_state)


def note(record: EraRecord) -> bytes:
    """What the local state keeps of a record."""
    return record.first.encode() + record.ended.encode() + record.digest


def beginning(data: bytes | None) -> State | None:
    """The first state of the era that this device passed to last, from what `note` kept; None: it never did."""
    return None if data is None else decode_state(data[:STATE_BYTES])


def digest(data: bytes | None) -> bytes | None:
    """The digest of that era's record."""
    return None if data is None else data[2 * STATE_BYTES :]


def named_by(data: bytes | None, state: State) -> State:
    """The state whose config, devices and index serve to read `state`: itself, unless its era has ended."""
    first = beginning(data)
    return state if first is None or state.era >= first.era else first


def cross(s: Seat, known: State, state: State) -> list[str]:
    """Passes from `known` to a state of a later era, in the transaction that is open. -> what to tell the user.

    The folder's base is set back where the new era does not contain it. Contents that were noted as agreed are so no
    more then: what a checkout replaced may be on this disk alone.
    """
    from metasync.local.state_keys import ERA_KEY
    from metasync.session.agreement import AGREED_MARK, BASE_KEY

    told = []
    records, before = s.group.participant.followed, s.base_state()
    base = before
    for number in range(known.era + 1, state.era + 1):
        record = records.get(number)
        if record is None:
            continue
        text = f"the workspace was restarted as era {number} without {', '.join(record.without)} on {day(record.at_s)}"
        if base.era < number and (base.era, base.v) > (record.ended.era, record.ended.v):
            base = record.ended
            text += (
                f"; version {before.v}, which this folder is at, is not part of it: what the folder has beyond version "
                f"{base.v} is kept as changes of this device"
            )
            s.db.set(BASE_KEY, base)
            s.db.set(LEFT_KEY, before)
            s.db.drop_objects_of(AGREED_MARK)
        s.db.set(ERA_KEY, note(record))
        s.db.set(RETIRED_KEY, None)
        told.append(text)
    return told


def day(at_s: int) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(at_s, datetime.UTC).date().isoformat()
    return "an unknown day"


def rebased(s: Session, base: Agreed, target: Agreed) -> Agreed:
    """The folder's base for a merge with `target`: another one by now, if that is of a later era."""
    if base.state.era == target.state.era:
        return base
    base = s.base()
    if s.db.has(LEFT_KEY):
        with s.db.transaction():
            with contextlib.suppress(MetaSyncError):  # then what was deleted comes back
                store_rows(s.db, _deleted(s, s.load(s.db.need(LEFT_KEY)), base))
            s.db.set(LEFT_KEY, None)
    return base


def _deleted(s: Session, left: Agreed, base: Agreed) -> list[tuple[bytes, Row]]:
    """Rows for what the version that the folder left lacks and `base` has: it was here once, and then deleted."""
    contents = s.contents(base)
    rows, there = load_rows(s.db), s.flat(left, contents)
    root = rows.get(b"")
    if root is None:
        return []
    modes = {Kind.FILE: stat.S_IFREG, Kind.DIR: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}
    return [
        (path, Row(entry, root.dev, 0, 0, 0, 0, modes[entry.kind] | entry.mode, trusted=False))
        for path, entry in s.flat(base, contents).items()
        if path not in there and path not in rows
    ]


def note_retired(s: Seat) -> None:
    """Keeps for the next process that an acceptor was seen retired: then it looks for the record of the new era."""
    era = max((stone.era for stone in s.group.participant.tombstones.values()), default=0)
    if era > s.newest_state().era and s.db.get(RETIRED_KEY) is None:
        s.db.set(RETIRED_KEY, era)


def noted_tombstones(db: LocalDb) -> dict[bytes, Tombstone]:
    """What an earlier process of this device saw of it, for `Participant.tombstones`."""
    noted = db.get(RETIRED_KEY)
    return {} if noted is None else {b"": Tombstone(noted, ZERO_HASH)}
