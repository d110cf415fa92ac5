"""Which version left out of the index what older versions need, and who wrote it. Loaded when an object is missed.

An index only grows, but for collections and repairs, and these keep what kept versions need. So the first index without
an object is looked for by halves, between a version that needs it and the newest one.
"""

from __future__ import annotations

from typing import Final

from metasync.consensus import State
from metasync.errors import CANNOT_BE_READ, DamagedError, MetaSyncError, NoQuorumError
from metasync.events import Notice
from metasync.session import unreadable
from metasync.session.session import Session
from metasync.session.states import Chain

LOOKS_MAX: Final = 64  # indexes that are opened: twice what halving 2^32 versions takes
NEXT_STEP: Final = (
    "`metasync check --repair` puts it back, as far as an older index names it and a backend has it, or this folder."
)


def leaver(s: Session, newest: State, object_id: bytes, since: int) -> State | None:
    """The first state after version `since` whose index does not name an object that the one before names.

    `since`: a version that needs it, 0 for the newest. Where its index does not name it, or went, one that does is
    looked for before it, in steps that double. None: it cannot be told.
    """
    look = _Look(s, newest, object_id)
    try:
        low, high = (since, newest.v) if since and look.names(since) else look.back(since or newest.v)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if look.lacks(middle) else (middle, high)
        return look.chain.at(newest, high) if 0 < low < high and look.names(low) and look.lacks(high) else None
    except MetaSyncError:
        return None


def explained(s: Session, newest: State, error: DamagedError, since: int = 0) -> DamagedError:
    """The error of an object that no agreed index names, with the version that left it out and who wrote that.

    The same error where that cannot be told.
    """
    found = leaver(s, newest, error.objects[0], since) if error.objects else None
    if found is None:
        return error
    step = error.next_step if "check --repair" in error.next_step else f"{NEXT_STEP} {error.next_step}".strip()
    out = DamagedError(f"{error.message}; {told(s, found)}", next_step=step)
    out.objects = error.objects
    return out


def tell_end(s: Session, newest: State, snapshot_id: bytes, v: int) -> None:
    """Tells who left the snapshot of version `v` out, if that can be told: history begins above it."""
    found = leaver(s, newest, snapshot_id, v)
    if found is not None:
        text = f"version {v} and older ones are in no pack that is agreed; {told(s, found)}. {NEXT_STEP}"
        s.listener(Notice(text, warning=True))


def told(s: Session, state: State) -> str:
    """Names the version that left something out."""
    return f"version {state.v}, which {unreadable.author(s, state)} wrote, left that out of the index"


class _Look:
    """Opens the indexes of older versions, for one object."""

    def __init__(self, s: Session, newest: State, object_id: bytes) -> None:
        self.chain = Chain(s, newest)
        self._s, self._newest, self._id = s, newest, object_id
        self._known: dict[int, bool | None] = {}

    def _at(self, v: int) -> bool | None:
        """Whether the index of a version names it; None: that index cannot be read any more."""
        if v not in self._known:
            if len(self._known) >= LOOKS_MAX:
                raise DamagedError(f"more than {LOOKS_MAX} indexes")
            try:
                index = self._s.indexes.of_state(self.chain.at(self._newest, v))[1]
                self._known[v] = self._id in index
            except (*CANNOT_BE_READ, NoQuorumError):
                self._known[v] = None
        return self._known[v]

    def names(self, v: int) -> bool:
        return self._at(v) is True

    def lacks(self, v: int) -> bool:
        """Whether it is known to be without. One that went did so after a collection, which kept what is needed."""
        return self._at(v) is False

    def back(self, before: int) -> tuple[int, int]:
        """A version before this one that names it, 0 if none is found; and one after it that does not."""
        high, step = before if self.lacks(before) else self._newest.v, 1
        while (low := before - step) > 0:
            if self.names(low):
                return low, high
            high = low if self.lacks(low) else high
            step *= 2
        return 0, high
