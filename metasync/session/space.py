"""Space on the backends: asked for, kept for a while, compared with what goes there; and the ballast put back.

Backends are asked when a push stores its first object, while the rest is being read; a push without changes asks
nobody. An answer serves later commands for some minutes, if it is plenty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from metasync.backends.wrappers.ballast import BALLAST_BYTES, BALLAST_PATH
from metasync.codec import amount
from metasync.config import DEFAULT_CAPACITY
from metasync.errors import NotFoundError, UsageError
from metasync.events import Notice
from metasync.local.state_keys import GIVEN_UP_KEY, SPACE_KEY, SpaceNote
from metasync.reports.sync import TightBackend
from metasync.runtime.effects import Op, each
from metasync.session.folder import given_up
from metasync.store.placement import Placement, placement_of
from metasync.transfer.copies import MARGIN_BYTES, Room, is_nearly_full, placed_bytes

if TYPE_CHECKING:
    from metasync.backends.api import Space
    from metasync.config import Config
    from metasync.runtime.effects import Reply, Task
    from metasync.session.open_backend import NewBackend
    from metasync.session.session import Session
    from metasync.store.index import Index

FRESH_S: Final = 300.0  # an answer serves again for so long
PLENTY_BYTES: Final = 1 << 30  # if it was more than this: a user who makes room wants it seen at once
MIB: Final = 1 << 20
CAPACITY_SHARE: Final = 0.9  # of what is free that is offered as a capacity: others write there, too
SHARE_DIGITS: Final = 4  # of a share as it is told: a hundredth of a percent
UNEQUAL_FACTOR: Final = 1.1  # space that differs by less counts as equal: others write there, too
ASK_TIMEOUT_S: Final = 5.0  # one small request; who does not answer has room until it says otherwise
PUT_BACK_TIMEOUT_S: Final = 30.0  # 256 KiB at 64 kbit/s


def ask(run: Callable[[Task], Any], names: Iterable[str]) -> dict[str, Space]:
    """Asks backends for their space, all at once. Those that do not answer are left out."""
    replies: Mapping[str, Reply] = run(each({n: Op(n, "space", "", timeout_s=ASK_TIMEOUT_S) for n in names}))
    return {n: r.value for n, r in replies.items() if r.error is None and r.value is not None}


def offer(free_bytes: int) -> int:
    """The weight of a backend with so much free space."""
    return max(MIB, int(free_bytes * CAPACITY_SHARE) // MIB * MIB)


def weighed(
    new: Sequence[NewBackend], told: Mapping[str, Space], by_space: bool | None
) -> tuple[list[NewBackend], str]:
    """New backends with their weights, which their shares of the data follow; and by what these were decided.

    Capacities, where all have one. Else the told space, or a smaller capacity, where all have either and it differs
    by `UNEQUAL_FACTOR`. Else all are equal. `by_space`: True takes the space however little it differs, and raises
    `UsageError` where one does not tell; False never takes it.
    """
    if all(b.limit_bytes is not None for b in new):
        return list(new), "by capacity"
    free = {n: offer(space.free_bytes) for n, space in told.items() if space.free_bytes is not None}
    known = {b.name: [*filter(None, (free.get(b.name), b.limit_bytes))] for b in new}
    silent = [name for name, sizes in known.items() if not sizes]
    if by_space and silent:
        raise UsageError(
            f"{', '.join(silent)}: how much is free there, these backends do not tell",
            next_step="Give their capacity in the URL: capacity=15GiB.",
        )
    weights = {name: min(sizes) for name, sizes in known.items() if sizes}
    unequal = not silent and max(weights.values()) >= UNEQUAL_FACTOR * min(weights.values())
    if by_space or (by_space is None and unequal):
        return [replace(b, weight=weights[b.name]) for b in new], "by free space"
    why = "equal, for not all have a capacity" if any(b.limit_bytes for b in new) else "equal"
    return [replace(b, weight=DEFAULT_CAPACITY) for b in new], why


def config_shares(config: Config) -> dict[bytes, float]:
    """By id of each backend that holds data: the part of all packs that it gets, 0 to 1. Empty: too many to compute."""
    return rounded_shares(placement_of(config))


def rounded_shares(placement: Placement) -> dict[bytes, float]:
    """The expected shares, to `SHARE_DIGITS`; empty where there are too many backends to compute them."""
    try:
        expected = placement.expected_shares()
    except UsageError:
        return {}
    return {backend_id: round(float(share), SHARE_DIGITS) for backend_id, share in expected.items()}


def shares_text(shares: Mapping[str, float | None], why: str = "") -> str:
    """Who gets how much of all data, in a sentence."""
    parts = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items()) if share is not None)
    return f"of all data each backend gets: {parts}{f' ({why})' if why else ''}"


def begin_asking(s: Session, index: Index) -> Callable[[], None]:
    """Starts to ask for space; -> a function that waits for the answers and gives them to the transfer."""
    room, storing = s.transfer.room, sorted(p.name for p in s.transfer.places.values())
    told = _told(s)
    rest = [n for n in storing if n not in told and n not in room.free and n not in s.transfer.down]
    asked = s.runtime.start(each({n: Op(n, "space", "", timeout_s=ASK_TIMEOUT_S) for n in rest}))

    def finish() -> None:
        for name, free in told.items():
            room.free.setdefault(name, free)
            room.stale.add(name)
        now: dict[str, Space] = {n: r.value for n, r in asked.result().items() if r.error is None and r.value}
        for name, space in now.items():
            if space.free_bytes is not None:
                room.told(name, space.free_bytes)
        put_back(s)
        for name in given_up(s.db) | s.given_up:
            room.free.setdefault(name, 0)  # and it does not tell: what is left there is for agreement
        room.left.update(_left(s, index))
        _remember(s, now)

    return finish


def _left(s: Session, index: Index) -> dict[str, int]:
    """The bytes left of the capacities that users gave; a default capacity only says that all backends are equal."""
    given = {b: limit for b in s.config.backends if b.storage and (limit := b.limit_bytes) is not None}
    if not given:
        return {}
    placed = placed_bytes(index.packs().values(), s.transfer.placement)
    return {b.name: limit - placed.get(b.backend_id, 0) for b, limit in given.items()}


def _told(s: Session) -> dict[str, int]:
    """The free bytes that backends told a short while ago, if they were plenty."""
    now = s.wall_ns()
    out = {}
    for name, (when, free, _) in (s.db.get(SPACE_KEY) or {}).items():
        if 0 <= now - when < FRESH_S * 1e9 and free is not None and free >= PLENTY_BYTES:
            out[name] = free
    return {n: f for n, f in out.items() if n in {p.name for p in s.transfer.places.values()}}


def _remember(s: Session, told: Mapping[str, Space]) -> None:
    if told:
        now, known = s.wall_ns(), s.db.get(SPACE_KEY) or {}
        s.db.set(SPACE_KEY, {**known, **{n: SpaceNote(now, *t) for n, t in told.items()}})


def note_sent(s: Session) -> None:
    """Lowers the known free bytes by what a push sent."""
    known = s.db.get(SPACE_KEY) or {}
    lower = {n: t._replace(free=s.transfer.room.free[n]) for n, t in known.items() if n in s.transfer.room.free}
    if lower:
        s.db.set(SPACE_KEY, {**known, **lower})


def warning(name: str, capacity: int | None, used_bytes: int | None, space: Space | None) -> str:
    """A sentence on a backend that is nearly full, or beyond the capacity that a user gave; "" for one that is well."""
    if (
        capacity is not None
        and used_bytes is not None
        and is_nearly_full(capacity - used_bytes, capacity, least_bytes=1)
    ):
        left = capacity - used_bytes
        return f"{name} is nearly at its capacity: {amount(max(0, left))} of {amount(capacity)} are left"
    if space is not None and space.free_bytes is not None and is_nearly_full(space.free_bytes, space.total_bytes):
        of = f" of {amount(space.total_bytes)}" if space.total_bytes is not None else ""
        return f"{name} is nearly full: {amount(space.free_bytes)}{of} are free"
    return ""


def shares_of(s: Session, size: int) -> dict[str, int]:
    """The bytes of a push of `size` that each backend would get, by name, sorted.

    A share is the average of placement, and up to one pack more.
    """
    names = {p.backend_id: p.name for p in s.transfer.places.values()}
    try:
        shares = s.transfer.placement.expected_shares()
    except UsageError:  # too many backends to compute it: then each might get everything
        shares = {}
    return {
        name: min(size, int(size * shares.get(backend_id, 1)) + s.config.pack_bytes)
        for backend_id, name in sorted(names.items(), key=lambda item: item[1])
        if size
    }


def tight(s: Session, index: Index, shares: Mapping[str, int]) -> tuple[TightBackend, ...]:
    """The backends without room for their shares."""
    if not shares:
        return ()
    room = Room(left=_left(s, index))
    for name, space in ask(s.runtime.run, list(shares)).items():
        if space.free_bytes is not None:
            room.told(name, space.free_bytes)
    fitting = ((name, most, room.of(name)) for name, most in shares.items())
    return tuple(TightBackend(name, most, fits) for name, most, fits in fitting if fits is not None and most > fits)


# --- the ballast


def put_back(s: Session) -> None:
    """Puts the ballast back where an earlier command deleted it, if there is space: tried once in a command."""
    names = sorted(set(s.names.values()) & given_up(s.db) - s.down.keys() - s.tried)
    if names:
        s.tried.update(names)
        for name in _put_back(s, names):
            s.listener(Notice(f"{name} has space again: its reserve was put back"))


def _put_back(s: Session, names: Sequence[str]) -> list[str]:
    """Tries to put the ballast back; -> the backends that have it again."""
    told = ask(s.runtime.run, names)
    free = {n: told[n].free_bytes if n in told else None for n in names}
    roomy = [n for n in names if (f := free[n]) is None or f >= MARGIN_BYTES]
    data = s.entropy(BALLAST_BYTES) if roomy else b""
    ops = {n: Op(n, "create", BALLAST_PATH, data, timeout_s=PUT_BACK_TIMEOUT_S) for n in roomy}
    replies: Mapping[str, Reply] = s.runtime.run(each(ops))
    back = [n for n in roomy if replies[n].error is None]
    s.db.update(GIVEN_UP_KEY, given_up(s.db).difference(back) or None)
    return back


def check_ballast(s: Session, ill: Iterable[str]) -> tuple[str, ...]:
    """Looks for the ballast on all backends but `ill` ones, puts it back if there is space, and reports."""
    names = sorted(set(s.names.values()) - s.down.keys() - set(ill))
    replies: Mapping[str, Reply] = s.runtime.run(
        each({n: Op(n, "stat", BALLAST_PATH, timeout_s=ASK_TIMEOUT_S) for n in names})
    )
    there = {n for n in names if replies[n].error is None}
    missing = [n for n in names if isinstance(replies[n].error, NotFoundError)]
    back = _put_back(s, missing)
    s.db.update(GIVEN_UP_KEY, (given_up(s.db) - there) | {n for n in missing if n not in back} or None)
    return tuple(
        f"{n}: its reserve was missing, and was put back"
        if n in back
        else f"{n}: its reserve is missing, and could not be put back; is there space?"
        for n in missing
    )
