"""Names that people give to versions, and the agreed policy of what is kept: both keep versions from `metasync gc`.

Both stand in the retained list of the agreed state, so that every device knows them and any of them collects by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from metasync.consensus import JOURNAL_KEY, Change, State
from metasync.errors import UsageError, WorkspaceError
from metasync.history.log import History
from metasync.history.versions import required, resolve
from metasync.local.state import LocalDb
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.objects.model import version_of
from metasync.reports.history import KeepReport, TaggedVersion, TagReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement
from metasync.session.folder import BASE_KEY, stored_newest
from metasync.session.session import Session
from metasync.store import retention
from metasync.store.retained import NAMES_MAX, Named, Retained, decode_retained

OP_ID_BYTES: Final = 16
WORDS: Final = "last=N hourly=N daily=N weekly=N monthly=N yearly=N within=1y2m3d4h"


def listing(s: Session) -> TagReport:
    """All names, ascending."""
    return _report(None, s.indexes.retained(agreement.ask_newest(s)))


def tag(s: Session, version: str, name: str, *, dry_run: bool = False) -> TagReport:
    """Gives a version a name, by which it is kept. `UsageError`: there is none, or the name is taken or no name."""
    if not retention.is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a version",
            next_step="Take 1 to 64 characters without spaces, `=`, `,` and `~`, that are not a number or an id.",
        )
    history = History(s)
    found = resolve(history, required(version))
    if history.problem is not None:
        raise history.problem
    number = version_of(found.snapshot) if found.snapshot is not None and found.number is not None else 0
    if not number:
        raise UsageError(f"{found.title} is no push, and holds no files to keep", next_step="See `metasync log`.")

    def named(retained: Retained) -> Retained:
        known = {n.name: n.version for n in retained.named}
        if known.get(name, number) != number:
            raise UsageError(
                f"version {known[name]} is called {name!r} already",
                next_step=f"Take another name, or give this one up first: metasync tag --delete {name}",
            )
        if retained.has_dropped(number):
            raise UsageError(f"version {number} is no longer kept", next_step="See `metasync log`.")
        if len(known) >= NAMES_MAX:
            raise UsageError(f"{NAMES_MAX:,} versions have names, and no more can", next_step="Give up one of them.")
        return retained._replace(named=tuple(Named(*n) for n in sorted({**known, name: number}.items())))

    return _report(*change(s, named, dry_run=dry_run))


def untag(s: Session, names: Sequence[str], *, dry_run: bool = False) -> TagReport:
    """Gives up names. `UsageError`: no version has one of them; nothing was changed."""

    def without(retained: Retained) -> Retained:
        for name in names:
            if all(n.name != name for n in retained.named):
                raise UsageError(f"no version is called {name!r}", next_step="`metasync tag` lists the names.")
        return retained._replace(named=tuple(n for n in retained.named if n.name not in names))

    return _report(*change(s, without, dry_run=dry_run))


def keep(s: Session, policy: str | None, *, dry_run: bool = False) -> KeepReport:
    """Agrees on which versions `gc` keeps; None: on nothing, which keeps all. `UsageError`: that is no policy."""
    try:
        wanted = retention.parse(policy or "")
    except ValueError as e:
        raise UsageError(f"keep: {e}", next_step=f"Write some of {WORDS} and tag=NAME.") from e
    state, retained = change(s, lambda r: r._replace(keep=wanted), dry_run=dry_run)
    return KeepReport(state.v if state is not None else None, str(retained.keep) or None)


def kept(s: Session) -> KeepReport:
    """The agreed policy."""
    return KeepReport(None, str(s.indexes.retained(agreement.ask_newest(s)).keep) or None)


def known(db: LocalDb) -> KeepReport:
    """The policy, as the newest state says that this device knows; none where it has not read it."""
    state = stored_newest(db)
    data = db.get_object(state.retained.hash)
    return KeepReport(None, (str(decode_retained(data).keep) or None) if data is not None else None)


def change(s: Session, make: Callable[[Retained], Retained], *, dry_run: bool) -> tuple[State | None, Retained]:
    """Has the retained list changed by what `make` makes of it, on top of whatever is agreed.

    -> the state that says so, None where nothing was agreed; and the list.
    """
    agreement.settle_journal(s)
    op_id = s.entropy(OP_ID_BYTES)
    state = agreement.ask_newest(s)
    for _ in range(LOST_ROUNDS_MAX):
        before = s.indexes.retained(state)
        retained = make(before)
        if dry_run or retained == before:
            return None, retained
        ref = s.indexes.store_retained(state, retained)
        decided = agreement.propose(s, state, Change(op_id=op_id, retained=ref))
        if decided.mine:
            if s.base_state().hash == state.hash and not s.db.has(UNFINISHED_KEY):
                s.db.set(BASE_KEY, decided.state)
            s.db.set(JOURNAL_KEY, None)
            return decided.state, retained
        state = agreement.ask_newest(s)
    raise WorkspaceError(f"others were faster {LOST_ROUNDS_MAX} times; nothing was changed", next_step="Run again.")


def _report(state: State | None, retained: Retained) -> TagReport:
    return TagReport(
        state.v if state is not None else None, tuple(TaggedVersion(n.name, n.version) for n in retained.named)
    )
