"""Indexes that ride: the root of a version's index in the log entries of that version (consensus.md, rule 1.14).

A vote for a value whose index rides counts only where its entry carries the root (`ValueRules`). So whoever counts a
quorum of votes has read the root, and every quorum shows it, as it would show an object beside the logs. It lasts as
long as the log of the version does. So no version is one to start from while its index is in its log alone: `settle`
makes objects of such roots before a hint, a config or a later version names them.

Such a root says what it adds to the root of the version before, which may ride as well, in the log of that version.
Versions that hints name do not ride, so the way back has 15 steps at most.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

from metasync.consensus.chain import fetch_state
from metasync.consensus.instance import Instance
from metasync.consensus.objects import seal_object
from metasync.consensus.participant import Participant
from metasync.consensus.records.entry import RANDOM_BYTES
from metasync.consensus.records.state import Change, State
from metasync.errors import NoQuorumError
from metasync.keys.derive import RecordKind
from metasync.runtime.effects import Gather, Task

READ_S: Final = 5.0  # for the entries of one version

Enter = Callable[..., Task]


def roots(m: Participant, enter: Enter, state: State, is_known: Callable[[bytes], bool]) -> Task:
    """-> {name: root} of the index of `state`, and of the versions before, back to one that is known or does not ride.

    `NoQuorumError`: no backend shows one of them.
    """
    found: dict[bytes, bytes] = {}
    while state.index_rides and not is_known(state.index.hash):
        found[state.index.hash] = (yield from _read(m, enter, state))[RANDOM_BYTES:]
        state = yield from _before(m, enter, state)
    return found


def settle(m: Participant, enter: Enter, state: State, put: Callable[[State, bytes], Task]) -> Task:
    """Makes objects of the index root of a decided state, and of those that it goes on from, where they ride.

    `put`: has enough acceptors hold the root of a state, sealed. `NoQuorumError`.
    """
    while state.index_rides and state.index.hash not in m.settled:
        riding, before = (yield from _read(m, enter, state)), (yield from _before(m, enter, state))
        random, root = riding[:RANDOM_BYTES], riding[RANDOM_BYTES:]
        _, data = seal_object(m.keys, RecordKind.META, root, era=before.era, epoch=before.epoch, random=random)
        yield from put(state, data)
        m.note_settled(state.index.hash)
        state = before


def made(make_value: Callable[[], Any], settle: Callable[[], Task]) -> Task:
    """-> the Change that is to be proposed. One that keeps the index of its base has that settled first, because the
    log of the new version does not carry it."""
    change = make_value()
    if isinstance(change, GeneratorType):
        change = yield from change
    assert isinstance(change, Change)
    if change.index is None:
        yield from settle()
    return change


def _read(m: Participant, enter: Enter, state: State) -> Task:
    """-> what the entries of a version carry of its index: from memory, or from its logs."""
    digest = state.index.hash
    if digest not in m.riding:
        instance: Instance = yield from enter((yield from _before(m, enter, state)), ahead=True)
        looks = {a.name: a.look() for a in instance.acceptors.values()}
        yield Gather(looks, lambda _: digest in m.riding, deadline_s=READ_S)
    if digest not in m.riding:
        raise NoQuorumError(
            f"version {state.v}: no backend shows the log entry that carries its index",
            next_step="run again when the backends are reachable",
        )
    return m.riding[digest]


def _before(m: Participant, enter: Enter, state: State) -> Task:
    """-> the state before."""
    instance = yield from enter(state, ahead=True)
    return (yield from fetch_state(m, instance, state.v - 1, state.prev, state.epoch))
