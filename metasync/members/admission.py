"""Has this device join the agreed device set, by its certificate or an invitation (architecture.md, D11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from metasync.consensus import JOURNAL_KEY, ZERO_HASH, Change, Decided, Group, Ref, State
from metasync.consensus.chain import exclusion
from metasync.errors import BackendError, FormatError, MetaSyncError, NoQuorumError, UpgradeError
from metasync.keys.device_set import DeviceSet, expired, joined, rejoined, without_invitations
from metasync.keys.invitation import SECRET_BYTES
from metasync.local.state_keys import INVITED_KEY, META_KIND
from metasync.members.newcomers import asking, may_enter, propose_devices
from metasync.runtime.effects import Gather, Task, together
from metasync.session import agreement
from metasync.session.session import LOOK_S, Agreed, Session
from metasync.store.index import decode_root

if TYPE_CHECKING:
    from metasync.session.health import Heads

AHEAD_BYTES: Final = 16 << 20  # of index segments that are read before they are asked for: held all at once


@dataclass(frozen=True)
class Arrival:
    """A new device that is being agreed. `newest`: the newest version, loaded.

    `finish` is called once, from the same thread. It waits until the device is agreed, where it can be. -> (the newest
    state, why it may not be the newest or ""). `ExcludedError`: not admitted.
    """

    newest: Agreed
    finish: Callable[[], tuple[State, str]]


def arrive(s: Session, *, read_only: bool) -> Arrival:
    """Gets the newest version, and has a new device agreed, where it can be.

    With a certificate the agreement runs beside the caller, who may download meanwhile. It must place nothing before
    `finish`, which tells whether the device is admitted. `NoQuorumError`: what could be read holds no tree.
    """
    try:
        with asking(s):  # what is newest may be unknown to this device alone: those who are in take it in all the same
            enters = not read_only and may_enter(s)
        if not enters:
            return _arrived(s, agreement.newest(s))
        if s.db.has(INVITED_KEY):
            with asking(s):
                enrol(s)  # agreeing on anything tells what is newest: no look before it is needed
            from metasync.members.invitation import used_up

            used_up(s)
            return _arrived(s, s.load(s.newest_state()))
        entering: Future[tuple[Decided, Heads | None]] | None = None
        with asking(s), _reading_index(s, s.newest_state()):
            state, stored = _ask_newest(s)
            if not agreement.is_in(s, devices := s.devices_of(state)):
                new = stored or _joined(s, state, devices).encode()
                entering = s.runtime.start(_entering(s, state, new, s.entropy(16)))
        if entering is not None:
            return Arrival(s.load(state), partial(_entered, s, entering))
        s.db.set(JOURNAL_KEY, None)  # an earlier process had this device agreed
        return _arrived(s, s.load(state))
    except NoQuorumError as e:  # better an older version than none, if that is said
        seen = agreement.newest_seen(s)
        if seen.tree_root is None:  # an empty folder would look like an empty workspace
            raise
        return _arrived(s, seen, e.message)


@contextlib.contextmanager
def _reading_index(s: Session, state: State) -> Iterator[None]:
    """Reads the index of a decided state into the local cache meanwhile; the newest one shares much of it."""
    known = s.db.get_objects([state.index.hash])
    with contextlib.suppress(FormatError, UpgradeError):  # whoever loads it is told why
        known |= s.db.get_objects([i.ref.hash for root in known.values() for i in decode_root(root).apart])
    begun = s.runtime.start(_index_files(s.group, state, known))
    yield
    with contextlib.suppress(MetaSyncError):
        s.db.put_objects((digest, META_KIND, data) for digest, data in begun.result().items())


def _index_files(group: Group, state: State, known: Mapping[bytes, bytes]) -> Task:
    """-> an index root and its first segments by hash, but for segments that are `known`."""
    ref = state.index
    if ref.hash == ZERO_HASH or state.index_rides:
        return {}
    root: bytes = known.get(ref.hash) or (yield from group.get_meta(ref))
    listed = decode_root(root).apart
    sizes = accumulate(i.size for i in listed)
    tasks = {
        i.ref.hash: group.get_meta(Ref(*i.ref))
        for i, upto in zip(listed, sizes, strict=True)
        if upto <= AHEAD_BYTES and i.ref.hash not in known
    }
    got: dict[str, bytes] = yield Gather({digest.hex(): task for digest, task in tasks.items()})
    return {ref.hash: root, **{bytes.fromhex(digest): data for digest, data in got.items()}}


def _arrived(s: Session, newest: Agreed, problem: str = "") -> Arrival:
    return Arrival(newest, lambda: (newest.state, problem or _apart(s, newest.state)))


def _apart(s: Session, newest: State, heads: Heads | None = None) -> str:
    """Versions that other devices have synchronised and the backends do not show; "" if there are none."""
    from metasync.session.health import check_heads

    return "; ".join(check_heads(s, newest, heads))


def _ask_newest(s: Session) -> tuple[State, bytes | None]:
    """Asks for the newest state. -> it, and the hash of its device set with this device, where that is stored already.

    By what a proposal begins with, where nothing newer was listed (consensus.md, rule 2.2). The device set is stored
    beside it, and counts where all acceptors turn out to be what they were: the copy on an emptied one is none.
    """
    known = s.newest_state()
    devices = s.devices_of(known)
    if not s.connections.is_quiet or agreement.is_in(s, devices) or not devices.admits(s.certificate):
        return agreement.ask_newest(s), None
    data = _joined(s, known, devices).encode()
    beside = together({"stored": s.group.put_const(known, data), "before": _state_before(s.group, known)})
    with s.runtime.beside(beside) as stored, agreement.looking(s, preparing=True) as look:
        state = agreement.told(s, look)
        if state != known or len(s.group.heard) < s.config.n:
            return state, None
        with contextlib.suppress(NoQuorumError):  # `_entering` tries again
            digest: bytes = stored()["stored"]
            return state, digest
    return state, None


def _entering(s: Session, state: State, devices: bytes, op_id: bytes) -> Task:
    """Has a device set, or the stored one of this hash, agreed after `state`.

    -> (Decided, what other devices have synchronised of it if it is ours).
    """
    stored = devices
    if len(devices) != len(ZERO_HASH):
        prepared = _if_it_can(s.group.prepare(state))
        storing = s.group.put_const(state, devices)
        done = yield Gather({"stored": storing, "prepared": prepared, "before": _state_before(s.group, state)})
        stored = done["stored"]
    decided: Decided = yield from agreement.proposing(s, state, Change(op_id=op_id, devices=stored))
    if not decided.mine:
        return decided, None
    hint = _if_it_can(s.group.write_hint(state, decided.state, now=True))
    looked = s.group.check_heads(decided.state, sorted(s.names.values()))
    return decided, (yield Gather({"heads": looked, "hint": hint}))["heads"]


def _state_before(group: Group, state: State) -> Task:
    """Reads the state before this one beside PREPARE: settling its index asks for it after that (consensus.md, rule
    1.14)."""
    if state.v > 0:
        with contextlib.suppress(MetaSyncError):  # whoever needs it is told why
            yield from group.state_at(state, state.v - 1)


def _if_it_can(task: Task) -> Task:
    """Runs a task that nobody depends on."""
    with contextlib.suppress(BackendError, NoQuorumError):
        return (yield from task)


def _entered(s: Session, entering: Future[tuple[Decided, Heads | None]]) -> tuple[State, str]:
    """Waits for `_entering`, and begins anew where others were faster."""
    try:
        with asking(s):
            try:
                decided, heads = entering.result()
            finally:
                agreement.note_standings(s)
            agreement.remember(s, decided.state)
            s.db.set(JOURNAL_KEY, None)
            if not decided.mine:
                enrol(s)
        return s.newest_state(), _apart(s, s.newest_state(), heads)
    except NoQuorumError as e:
        return s.newest_state(), e.message


def enrol(s: Session) -> None:
    """Has this device agreed as one of the workspace's devices. `NoQuorumError`, `ExcludedError`.

    Proposes on the newest known state, and learns of newer ones by losing. With an invitation all backends are read
    first.
    """
    op_id = s.entropy(16)
    state = s.newest_state()
    if s.db.has(INVITED_KEY):
        s.runtime.run(s.group.newest_seen(state, deadline_s=LOOK_S))
        state = agreement.ask_newest(s)
    if not s.devices_of(state).admits(s.certificate) or agreement.is_in(s, s.devices_of(state)):
        state = agreement.ask_newest(s)  # the keys were changed since, or an earlier process had this device agreed
    while not agreement.is_in(s, devices := s.devices_of(state)):
        decided = propose_devices(s, state, _joined(s, state, devices), op_id)
        state = decided.state if decided.mine else agreement.ask_newest(s)
    s.db.set(JOURNAL_KEY, None)


def _joined(s: Session, state: State, devices: DeviceSet) -> DeviceSet:
    """The device set of a decided state with this device. `ExcludedError` when it is not admitted."""
    kept = s.db.get(INVITED_KEY)
    if kept is not None:
        return joined(devices, s.certificate, state.v, kept[:SECRET_BYTES])
    if not devices.admits(s.certificate):
        raise exclusion(s.group.participant, devices, state.v)
    return rejoined(devices, s.certificate, partial(s.entropy, SECRET_BYTES))


def changed_devices(s: Session, state: State, devices: DeviceSet) -> bytes | None:
    """Stores the device set with this device, and without expired invitations. -> its hash; None if nothing changed."""
    new = devices if agreement.is_in(s, devices) else _joined(s, state, devices)
    if gone := expired(new, state.v):
        new = without_invitations(new, gone)
    return None if new is devices else s.put_const(state, new.encode())
