"""What differs here, and how the backends fare (`metasync status`). Changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from metasync.errors import MetaSyncError
from metasync.keys.device_set import names_of
from metasync.local.state_keys import CONFLICTS, SHORT_KEY, Conflict
from metasync.maintenance import backend_states
from metasync.maintenance.holdings import Holdings, holdings, still_moving
from metasync.members import key_copies
from metasync.members.devices import withdrawals
from metasync.merge import guard
from metasync.reports.backends import BackendState, Moving, Status
from metasync.reports.members import Withdrawal
from metasync.reports.sync import BadCopies, Changes
from metasync.session import agreement, evidence, health
from metasync.session.connections import REMOVED
from metasync.session.folder import STATE_DIR, exposed
from metasync.session.session import Session
from metasync.store.placement import survives
from metasync.sync import sides
from metasync.sync.scanned import noted, summary
from metasync.transfer import late_copies, wrong_copies
from metasync.worktree.merge_walk import walk_folder, walk_index
from metasync.worktree.overlay import changed
from metasync.worktree.scan import scan

if TYPE_CHECKING:
    from metasync.session.session import Agreed

IGNORED_MAX: Final = 1000  # ignored paths listed: more than anybody reads, little in a report
DEADLINE_S: Final = 15.0  # the backends' own states were asked for before: together less than a command may wait


def status(s: Session) -> Status:
    """Compares the folder with the version it is at, and asks the backends how they fare and for news."""
    base = s.base_state()
    names = sorted(s.connections.agreed_names)
    answers, asked_by = backend_states.ask(s, names), s.connections.config_hash
    newest: int | None = None
    problem, error = "", None
    try:
        agreed = s.base()
        walk = walk_index(s.tree, s.db, agreed.tree_root) or walk_folder(s.tree, s.db, s.flat(agreed))
    except MetaSyncError as e:
        backends = backend_states.states_of(s, names, answers, None)
        return Status(
            s.name, base.v, None, base.fingerprint, Changes(), tuple(backends), problem=e.message, error=e,
            survives=survives(s.config), evidence=evidence.of(s.db, names), state=base.hash.hex(), bad_copies=_bad(s),
        )  # fmt: skip
    try:
        newest = agreement.ask_newest(s, deadline_s=DEADLINE_S).v
    except MetaSyncError as e:  # of whatever kind: what is here can be shown all the same
        problem, error = e.message, e
    ailing = health.standings(s) if error is None else health.noted_standings(s)
    heads = health.check_heads(s, s.newest_state()) if error is None else ()
    if s.connections.config_hash != asked_by:  # the news were of another set of backends
        names = sorted(s.connections.agreed_names)
        answers = backend_states.ask(s, names)
    kept, moving = holdings(s, agreed.index), still_moving(s, agreed)
    backend_states.forget_removed(s, moving)
    backends = backend_states.states_of(s, names, answers._replace(states={**ailing, **answers.states}), kept)
    seen = scan(walk, s.ingest())
    before, held = seen.base, seen.held()
    waiting = s.db.records(CONFLICTS)
    if waiting:
        sides.mark(s, seen, moved=False)
        waiting = [c for c in waiting if c.copy in seen.tree or sides.is_there(s, c.copy)]
    differing = changed(seen.tree)
    stop = guard.stop("push", guard.loss(before, {p: seen.tree.get(p) for p in differing}))
    return dataclasses.replace(
        _kept_here(s, agreed, newest, backends, kept, moving, waiting),
        changes=summary(differing, before.get, seen.tree.get),
        unreadable=noted(seen.unreadable),
        skipped=noted(seen.skipped),
        problem=problem,
        error=error,
        ignored=tuple(seen.ignored[:IGNORED_MAX]),
        ignored_total=len(seen.ignored),
        ignored_agreed=len(held),
        warnings=(
            *seen.warnings,
            *heads,
            *key_copies.warnings(s),
            *([shown] if (shown := exposed(s.directory / STATE_DIR)) else []),
            *([guard.warning(stop)] if stop is not None else []),
        ),
    )


def known(s: Session, away: Mapping[str, str]) -> Status:
    """The same as far as it is known here: no backend is asked and no file looked at, `changes` and warnings lack.

    For whoever knows by another way what changed, and that there is news: a daemon keeps the folder in step. `away`:
    backends that it could not use lately, by name, with the reason.
    """
    agreed, names = s.base(), sorted(s.connections.agreed_names)
    states = {name: f"unreachable: {why}" for name, why in away.items() if name in names}
    answers = backend_states.Answers({**health.noted_standings(s), **states}, {})
    kept, moving = holdings(s, agreed.index), still_moving(s, agreed)
    backends = backend_states.states_of(s, names, answers, kept)
    return _kept_here(s, agreed, s.newest_state().v, backends, kept, moving, s.db.records(CONFLICTS))


def _kept_here(
    s: Session, agreed: Agreed, newest: int | None, backends: Sequence[BackendState], kept: Holdings, moving: Moving,
    waiting: Iterable[Conflict],
) -> Status:  # fmt: skip
    """The part of a status that the local state tells: version, backends and copies, conflicts, and what is late."""
    return Status(
        name=s.name,
        version=agreed.state.v,
        newest=newest,
        fingerprint=agreed.state.fingerprint,
        state=agreed.state.hash.hex(),
        changes=Changes(),
        backends=tuple(backends),
        conflicts=sides.told(s, agreed, waiting),
        unplaced=noted(sorted(s.db.unplaced().items())),
        under_replicated=s.db.get(SHORT_KEY) or 0,
        survives=survives(s.config),
        evidence=evidence.of(s.db, sorted(s.connections.agreed_names)),
        moving=moving,
        warnings=key_copies.warnings(s),
        withdraw=_withdraw(s),
        trailing=late_copies.summary(late_copies.load(s.db).values(), s.names),
        device=_author(agreed),
        time_ns=agreed.snapshot.time_ns if agreed.snapshot is not None else None,
        copies=kept.copies,
        by_copies=kept.by_copies(_within_reach(s, backends)),
        bad_copies=_bad(s),
    )


def _bad(s: Session) -> tuple[BadCopies, ...]:
    """Copies that this device found bad, and does not know to be mended."""
    return wrong_copies.summary(s.db, {b.backend_id: b.name for b in s.config.backends})


def _author(agreed: Agreed) -> str:
    """The name of the device that made a version, revoked or not, else how its id begins; "" before the first push."""
    if agreed.snapshot is None:
        return ""
    return names_of(agreed.devices).get(agreed.snapshot.device) or agreed.snapshot.device.hex()[:8]


def _within_reach(s: Session, backends: Iterable[BackendState]) -> set[bytes]:
    """Ids of the backends whose packs count as copies; a removed one's too, while it is open."""
    held = {b.name for b in backends if b.holds}
    away = {name.removesuffix(REMOVED) for name in s.down}
    return {e.backend_id for e in s.config.backends if e.name in held} | {
        i for i, way in s.former.items() if way.partition("~")[0] not in away
    }


def _withdraw(s: Session) -> tuple[Withdrawal, ...]:
    """Logins to withdraw, as of the newest state known; none where that cannot be had now."""
    try:
        return withdrawals(s.devices_of(s.newest_state()))
    except MetaSyncError:
        return ()
