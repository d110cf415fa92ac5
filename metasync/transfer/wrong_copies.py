"""Notes packs with a copy that was noticed missing or damaged, or found no place, for a later push to make good.

`moving.upkeep` does that.

A note is a hint: whoever acts on it looks at every copy first, and reads it. What a store tells of a copy takes no note
back, and has no other copy deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from metasync.local.state import LocalDb
from metasync.local.state_keys import MENDING_KEY

NOTED_MAX: Final = 4096  # more is a matter for `check --repair`
_NAME_BYTES: Final = 32


def load(db: LocalDb) -> set[bytes]:
    """The names of packs that are noted."""
    data = db.get(MENDING_KEY) or b""
    return {data[i : i + _NAME_BYTES] for i in range(0, len(data), _NAME_BYTES)}


def doubted(db: LocalDb) -> Callable[[bytes], bool]:
    """Whether a pack's copies count by their bytes alone. All do where there is no room for further notes."""
    names = load(db)
    return names.__contains__ if len(names) < NOTED_MAX else lambda _: True


def note(db: LocalDb, names: Iterable[bytes]) -> None:
    """Notes these packs too, as far as there is room."""
    with db.transaction():
        known = load(db)
        now = known | set(names)
        if now != known:
            db.set(MENDING_KEY, b"".join(sorted(now)[:NOTED_MAX]))


def drop(db: LocalDb, names: Iterable[bytes]) -> None:
    """Takes these from the notes."""
    with db.transaction():
        left = load(db).difference(names)
        db.set(MENDING_KEY, b"".join(sorted(left)) or None)
