"""Notes of what this device noticed of backends: since when one cannot be used, and what no honest one does.

What is against honesty is kept until the backend is removed (consensus.md, rule 3.3): it showed an older past than
before, or different pasts to different devices. Such a backend is left out while this device can tell, and the note
stays when it behaves again: people decide whether to go on with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from metasync.local.state import LocalDb
from metasync.local.state_keys import AWAY_KEY, EVIDENCE_KEY, NO_WRITES_KEY

if TYPE_CHECKING:
    from metasync.reports.backends import Evidence

EVIDENCE_MAX: Final = 100  # kept; what is older and more of the same tells nothing new


def noted(db: LocalDb) -> tuple[Evidence, ...]:
    """All that is kept, oldest first."""
    items = db.get(EVIDENCE_KEY)
    if not items:
        return ()  # what nearly every command finds, without loading what it would report
    from metasync.reports.backends import Evidence

    return tuple(Evidence(*item) for item in items)


def note(db: LocalDb, found: Iterable[tuple[str, str]], now_ns: int) -> None:
    """Adds what is new: (backend, what it did)."""
    kept = db.get(EVIDENCE_KEY) or []
    known = {(backend, what) for backend, what, _ in kept}
    new = [(b, w, now_ns) for b, w in dict.fromkeys(found) if (b, w) not in known]
    if new:
        db.set(EVIDENCE_KEY, (kept + new)[-EVIDENCE_MAX:])


def of(db: LocalDb, backends: Sequence[str]) -> tuple[Evidence, ...]:
    """What is noted of these backends: one that was removed is nobody's concern any more."""
    return tuple(e for e in noted(db) if e.backend in backends)


def note_away(db: LocalDb, away: Collection[str], unsure: Collection[str], now_ns: int) -> Mapping[str, int]:
    """Notes which backends cannot be used now. -> since when each of those is away, as first noticed here.

    What is noted of `unsure` ones stays: nobody asked them. All others answer, or are in the workspace no more.
    """
    known = db.get(AWAY_KEY) or {}
    since = {name: known.get(name, now_ns) for name in sorted(away)}
    now = {name: at for name, at in known.items() if name in unsure} | since
    if now != known:
        db.set(AWAY_KEY, now or None)
    return since


def note_writes(db: LocalDb, outcomes: Mapping[str, str | None]) -> None:
    """Notes why backends refused the last write, by name: "" where it went well; what is None, or absent, stays."""
    if not any(outcomes.values()) and not db.has(NO_WRITES_KEY):
        return  # as nearly always
    known = db.get(NO_WRITES_KEY) or {}
    told = known | {name: why for name, why in outcomes.items() if why is not None}
    now = {name: why for name, why in told.items() if why}
    if now != known:
        db.update(NO_WRITES_KEY, now or None)


def no_writes(db: LocalDb, backend: str) -> str:
    """A sentence on a backend that refused the last write of this device, else ""."""
    why = (db.get(NO_WRITES_KEY) or {}).get(backend)
    return f"{backend} refused what was last to be written there: {why}" if why else ""
