"""Indexes that ride: the root of a version's index in the log entries of that version (consensus.md, rule 1.14).

A vote for a value whose index rides counts only where its entry carries the root (`ValueRules`). So whoever counts a
quorum of votes has read the root, and every quorum shows it, as it would show an object beside the logs. It lasts as
long as the log of the version does. So no version is one to start from while its index is in its log alone: `settle`
makes objects of such roots before a hint, a config or a later version names them.

Such a root says what it adds to the root of the version before, which may ride as well, in the log of that version. The
way back has `index_root.ROOTS_MAX` steps at most, because whoever would make it longer stores an object.

A device that keeps to no rule may keep the index of its base and not settle it. Nobody can tell from the value. So
nothing here trusts that a version which keeps an index was made so: `find` looks for a root that is no object in the
log of the version that brought it, and `settle` goes back to that version.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from types import GeneratorType
from typing import Any, Final

from metasync.consensus.chain import fetch_state
from metasync.consensus.instance import Instance
from metasync.consensus.objects import seal_object
from metasync.consensus.participant import Participant
from metasync.consensus.records.entry import RANDOM_BYTES
from metasync.consensus.records.state import NOTHING, Change, Ref, State
from metasync.errors import DamagedError, NoQuorumError
from metasync.keys.derive import RecordKind
from metasync.runtime.effects import Gather, Task

READ_S: Final = 5.0  # for the entries of one version
LOOK_BACK_MAX: Final = 1024  # versions: one that brings an index comes sooner, as long as anybody pushes

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


def find(m: Participant, enter: Enter, state: State, digest: bytes, way: Container[bytes]) -> Task:
    """-> the root of this name, from the log of the version that brought it: `state` or one before it.

    `way`: the roots from that of `state` on which lead to it. None: no version there has it in its log.
    `NoQuorumError`: no backend shows it.
    """
    for _ in range(LOOK_BACK_MAX):
        if state.index_rides and state.index.hash == digest:
            return (yield from _read(m, enter, state))[RANDOM_BYTES:]
        if state.index == NOTHING or (state.index.hash != digest and state.index.hash not in way):
            break
        state = yield from _before(m, enter, state)
    return None


def settle(
    m: Participant,
    enter: Enter,
    state: State,
    get: Callable[[Ref], Task],
    put: Callable[[Ref, bytes], Task],
) -> Task:
    """Makes objects of the index root of a decided state, and of those that it goes on from, where they ride or did.

    The oldest first, so that what an object goes on from is an object. `get`: brings the sealed root of this name, from
    wherever it is an object. `put`: has enough acceptors of today hold it. The way back ends early where no backend
    shows a state any more, because those that had its log are out of use: a root there must be an object.
    `NoQuorumError`, `DamagedError` where a root is neither an object nor in a log.
    """
    todo: list[tuple[State, State | None]] = []
    kept: list[bytes] = []
    while state.index != NOTHING and state.index.hash not in m.settled:
        before: State | None = None
        with suppress(DamagedError, NoQuorumError):
            before = yield from _before(m, enter, state)
        if state.index_rides or before is None:
            todo.append((state, before))
        elif state.index == before.index:
            kept.append(state.index.hash)
        else:
            break
        if before is None:
            break
        state = before
    for at, before in reversed(todo):
        yield from put(at.index, (yield from _sealed_root(m, enter, at, before, get)))
        m.note_settled(at.index.hash)
    for digest in kept:
        m.note_settled(digest)


def _sealed_root(m: Participant, enter: Enter, state: State, before: State | None, get: Callable[[Ref], Task]) -> Task:
    """-> the index root of a state as its object is, from there or from its log. `before`: None, no log is left."""
    if before is None:
        return (yield from get(state.index))
    if state.index.hash not in m.riding:
        with suppress(DamagedError, NoQuorumError):
            return (yield from get(state.index))
    riding = yield from _read(m, enter, state)
    random, root = riding[:RANDOM_BYTES], riding[RANDOM_BYTES:]
    return seal_object(m.keys, RecordKind.META, root, era=before.era, epoch=before.epoch, random=random)[1]


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
