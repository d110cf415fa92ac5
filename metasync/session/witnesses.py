"""Which backends know a decided version by themselves: nothing that it gave up is deleted where it is not known.

A version is decided by a quorum. Where that quorum is lost for good, `recover` goes on from what the others know, and
reads their packs by it. So what a version lets go is deleted on a voting backend only once that backend's own log shows
a vote for the version, and all records that it names lie there (consensus.md, rule 6.5). A backend without a vote may
be left with any one of those that vote, so there all of these must know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metasync.consensus import NOTHING, ZERO_HASH, Ref, State
from metasync.consensus.reconfigure import pass_on
from metasync.errors import NO_WAY, MetaSyncError
from metasync.session import health
from metasync.session.session import Session

PATIENCE_S: Final = 5.0


def unaware(s: Session, state: State) -> dict[str, str]:
    """Brings the newest decided state to all that vote. -> those that do not know it by themselves, and why."""
    acceptors = {a.acceptor_id: b for b, a in s.config.acceptors}
    try:
        s.runtime.run(s.group.settle(state))
        knowing = s.runtime.run(pass_on(s.group.participant, s.group.enter, state, PATIENCE_S))
        named = _named(s, state)
    except MetaSyncError as e:
        return {b.name: e.message for b in acceptors.values()}
    out = {b.name: f"it has not heard of version {state.v}" for a, b in acceptors.items() if a not in knowing}
    lacking, _ = health.check_meta(s, named, out.keys(), read_data=False)
    linked = {b.name for b in acceptors.values() if b.backend_id in s.names}
    missing = {b.name: NO_WAY for b in acceptors.values() if b.name not in linked}
    return {**dict(lacking), **out, **missing}


def _named(s: Session, state: State) -> list[tuple[str, Ref | bytes]]:
    """The records that a restart reads which goes on from this state, or where it is a change of the config, from the
    one before."""
    named: list[tuple[str, Ref | bytes]] = [("config", state.config), ("device set", state.devices)]
    before = s.runtime.run(s.group.state_at(state, max(0, state.v - 1)))
    configs = {before.config, s.config.prev_config or state.config} - {state.config}
    named += [("config before", name) for name in sorted(configs)]
    if before.devices != state.devices:
        named.append(("device set before", before.devices))
    if state.index.hash != ZERO_HASH:
        named += [("index", ref) for ref in sorted(s.indexes.names_of(state.index))]
    if state.retained != NOTHING:
        named.append(("list of what is kept", state.retained))
    return named


def refusals(s: Session, state: State) -> Mapping[str, str]:
    """-> the linked backends on which nothing that this newest decided state let go may be deleted yet, and why."""
    lacking = unaware(s, state)
    out = {}
    for backend in s.config.backends:
        why = lacking.get(backend.name, "")
        if backend.acceptor is None and lacking:
            name = min(lacking)
            why = f"{name} may be the one that is left with it, and {lacking[name]}"
        if why and backend.backend_id in s.names:
            out[s.names[backend.backend_id]] = why
    return out
