"""How backends fare, for `status` and `backend list`: what they answer and hold, and since when one is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from metasync.backends.wrappers.wrapper import AbsentBackend
from metasync.local.state_keys import LOOKS
from metasync.maintenance import holdings
from metasync.maintenance.holdings import still_moving
from metasync.reports.backends import CONDITIONS, BackendList, BackendState, Moving, Together
from metasync.session import evidence, health, space
from metasync.session.folder import given_up
from metasync.store.placement import order, placement_of, survives

if TYPE_CHECKING:
    from metasync.backends.api import Space
    from metasync.config import BackendEntry, Config
    from metasync.session.session import Session

WORDS = {"unreachable": "down", "emptied or replaced": "replaced", "poisoned": "distrusted"}
"""Conditions whose states begin with another word."""


PARTITIONS_LOOKED = 512  # of 65,536: parts are right to two or three in a hundred, in some milliseconds


class Answers(NamedTuple):
    """What backends said when they were asked how they fare, by name. `states`: of those that are not well."""

    states: Mapping[str, str]
    space: Mapping[str, Space]


def ask(s: Session, names: Sequence[str]) -> Answers:
    """Asks these backends, all at once, whether they are the stores they were, and how much room they have."""
    linked = [n for n in names if n in s.connections.links]
    states = health.check_places(s, linked)
    return Answers(states, space.ask(s.runtime.run, [n for n in linked if n not in states]))


def backends_now(s: Session, names: Sequence[str]) -> list[BackendState]:
    """How these backends fare now, as seen from this device; all are asked at once."""
    answers = ask(s, names)
    index = s.indexes.at_hand(s.base_state().index)
    return states_of(s, names, answers, holdings.holdings(s, index) if index is not None else None)


def listing(s: Session) -> BackendList:
    """All of the workspace's backends: see `Workspace.backend_list`."""
    states = [_with_evidence(s, state) for state in backends_now(s, sorted(s.connections.agreed_names))]
    moving = still_moving(s, None)
    forget_removed(s, moving)
    return BackendList(tuple(states), moving, survives(s.config), together(s.config))


def _with_evidence(s: Session, b: BackendState) -> BackendState:
    """The same, but distrusted where it answers as it should and did what no honest one does."""
    seen = evidence.of(s.db, [b.name])
    if not seen or b.state != "ok":
        return b
    said = f"{b.name} is not to be trusted (to end this warning: metasync backend link {b.name} URL)"
    return replace(b, state=f"distrusted: {seen[-1].what}", condition="distrusted", warning=b.warning or said)


def together(config: Config) -> tuple[Together, ...]:
    """Which backends keep the same packs, and how large a part: of PARTITIONS_LOOKED partitions."""
    names = {b.backend_id: b.name for b in config.backends}
    placement = placement_of(config)
    step = max(1, placement.partitions // PARTITIONS_LOOKED)
    looked = range(0, placement.partitions, step)
    found = Counter(tuple(sorted(names[b] for b in order(placement.targets, n)[: placement.copies])) for n in looked)
    parts = (Together(backends, count / len(looked)) for backends, count in found.items())
    return tuple(sorted(parts, key=lambda part: part.backends))


def forget_removed(s: Session, moving: Moving) -> None:
    """Forgets removed backends once nothing is read there: nobody is warned of them any more."""
    if s.former and not moving.packs:
        s.connections.forget_removed()


def linked(s: Session, name: str) -> BackendState:
    """How one backend fares after `link`; of a removed one only that it has no way any more."""
    if name in s.connections.agreed_names:
        return backends_now(s, [name])[0]
    return BackendState(name, "", (), 0, linked=False, state="not linked", condition="not linked")


def states_of(s: Session, names: Sequence[str], answers: Answers, held: holdings.Holdings | None) -> list[BackendState]:
    """How these backends fare, by what they answered. Notes since when those are away that are."""
    links, told = s.connections.links, answers.space
    looked = {row.backend: max(row.at_ns, row.others_ns) for row in s.db.records(LOOKS)}
    shares, without = space.config_shares(s.config), given_up(s.db) | s.given_up
    out = []
    for name in names:
        entry = s.config.named(name)
        assert entry is not None
        link = links.get(name)
        roles = (("data",) if entry.storage else ()) + (("vote",) if entry.acceptor is not None else ())
        roles += ("blocks",) if entry.acceptor is not None and entry.acceptor.form == "block" else ()
        state = "not linked" if link is None else answers.states.get(name, "ok")
        state = "full: its reserve was used" if state == "ok" and name in without else state
        capacity = entry.limit_bytes
        used = held.on(entry.backend_id) if held is not None and entry.storage else None
        out.append(
            BackendState(
                name=name,
                url=link.url if link is not None else "",
                roles=roles,
                capacity_bytes=entry.capacity_bytes,
                linked=link is not None,
                state=state,
                free_bytes=told[name].free_bytes if name in told else None,
                used_bytes=used,
                total_bytes=told[name].total_bytes if name in told else None,
                reserve_used=name in without,
                warning=_vote_doubt(s, name, entry)
                or evidence.no_writes(s.db, name)
                or space.warning(name, capacity, used, told.get(name)),
                condition=_condition(state),
                share=shares.get(entry.backend_id),
                limit_bytes=capacity,
                looked_ns=looked.get(entry.backend_id) or None,
            )
        )
    return _with_times(s, out)


def _condition(state: str) -> str:
    """A state in a word or two."""
    head = state.partition(":")[0]
    return WORDS.get(head, head if head in CONDITIONS else "not usable")


def _with_times(s: Session, states: Sequence[BackendState]) -> list[BackendState]:
    """The same with since when those are away that are; noted for the next time."""
    asked = {b.name for b in states if b.linked}
    unsure = [e.name for e in s.config.backends if e.name not in asked]
    since = evidence.note_away(s.db, [b.name for b in states if not b.holds], unsure, s.wall_ns())
    return [replace(b, since_ns=since.get(b.name)) for b in states]


def _vote_doubt(s: Session, name: str, entry: BackendEntry) -> str:
    """A sentence on a backend that votes and should not any more: its folder is copied by another program, say."""
    store = s.connections.store(name)
    if entry.acceptor is None or store is None or isinstance(store, AbsentBackend) or store.form != "none":
        return ""
    why = getattr(store, "form_reason", "") or "it has no atomic create"
    return f"{name} votes and should not: {why}. Take its vote: metasync backend set {name} --role storage"
