"""Bounded logs: a floor below which logs may be deleted, and what that asks of everybody (consensus.md, rule 1.11).

A create-if-absent at a deleted index succeeds, so deleting a log is dangerous: a proposer that slept would commit its
version again, and a learner would take the absence for "nothing newer". Hence a *floor* F, a multiple of 1024:

1. The states of the versions below F get an object of their own, a block of 1024 at a time. Then `floor/F` is created
   on every acceptor that is reached, a quorum at least. No multiple is skipped on any: one GET tells if one covers v.
   It says of the newest state then that it is decided, in the words of a device that this state's base admits.
2. Who would delete reads `floor/F` on an acceptor again, waits `GRACE_S` by its own clock, and then deletes there.
3. A create for v, or the absence of an entry of v, counts only if the acceptor was seen to have no floor above v at a
   time that lies at most `TRUST_S` before the reply came. Deletion begins 30 times as long after the floor was made.

Only differences of one's own clock are used, never the time of day of others.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from metasync.consensus.acceptors.view import TRUST_S, AcceptorView
from metasync.consensus.chain import ancestor, fetch_state, find_keys, shut_out, writers
from metasync.consensus.hints import decided_entry
from metasync.consensus.instance import Instance
from metasync.consensus.objects import const_path, put_everywhere, sealed
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    VERSIONS_PER_FOLDER,
    SignedEntry,
    block_path,
    covering,
    entry_path,
    floor_path,
    open_floor,
    seal_floor,
    shown_epoch,
)
from metasync.consensus.records.state import State
from metasync.errors import DamagedError, FormatError, NoQuorumError, NotFoundError, UpgradeError
from metasync.keys.derive import RecordKind
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Task, each

STEP: Final = VERSIONS_PER_FOLDER  # floors stand at its multiples
KEEP: Final = 10_000  # newest versions whose logs stay; a log is two small objects a version and acceptor
BEHIND_LEAST: Final = STEP  # a floor is never nearer to the newest version: whoever is this far behind looks first
GRACE_S: Final = 30 * TRUST_S
DELETES_MAX: Final = 512  # requests for one push's share of the work
FETCHES: Final = 32  # states fetched side by side
LOOK_S: Final = 2.0  # for the logs of one version

Enter = Callable[..., Task]  # as in `learner`


def opened(m: Participant, instance: Instance) -> Task:
    """-> {acceptor: its floor}. An acceptor with something else in that place is out.

    A floor of a later key epoch is opened with keys that this device looks for. `ExcludedError` when none of those
    keyrings are for this device, and too few other floors are left for a quorum.
    """
    out: dict[bytes, SignedEntry] = {}
    unread: set[bytes] = set()
    floor = covering(instance.v)
    floored = {a: view.floor for a, view in instance.acceptors.items() if view.floor is not None}
    links = [link for a in instance.acceptors.values() if (link := a.reach())]
    for acceptor_id, data in floored.items():
        candidates = [m.keys]
        epoch = shown_epoch(data)
        if epoch > m.keys.epoch:
            found, shut = yield from find_keys(m, epoch, links)
            candidates += found
            if shut:
                unread.add(acceptor_id)
        why = ""
        for keys in candidates:
            try:
                out[acceptor_id] = open_floor(keys, data, acceptor_id, floor)
            except (FormatError, UpgradeError) as e:
                why = e.message
            else:
                m.keys = keys
                break
        if acceptor_id not in out and acceptor_id not in unread:
            if epoch > m.keys.epoch and len(candidates) == 1:
                why = f"it is sealed with keys of epoch {epoch}, and no keyring gives them to this device"
            instance.acceptors[acceptor_id].poison(f"its floor of version {floor} cannot be read: {why}")
    if unread and len(instance.acceptors) - len(unread - out.keys()) < instance.quorum:
        raise shut_out(m)
    for acceptor_id in unread - out.keys():
        instance.acceptors[acceptor_id].poison(f"its floor of version {floor} is sealed with keys not for this device")
    return out


class Remains(NamedTuple):
    """Acceptors with a floor, by what they still have: `there` the logs that it is about; `silent` did not tell."""

    there: frozenset[bytes] = frozenset()
    silent: frozenset[bytes] = frozenset()


def intact(m: Participant, enter: Enter, instance: Instance, current: State, floored: Collection[bytes]) -> Task:
    """-> Remains: which of the acceptors `floored` still have the log of the instance's version, if they ever had.

    The logs of a block's first two versions are deleted before all others of it, and after all of the block before. So
    one that shows the votes for two versions in a row, either of which goes before this one, has lost nothing yet. Two,
    because one vote may be a sleeping owner's, which came late into a deleted log; of version 1 there is no owner.
    """
    first = _first_of(covering(instance.v) - covering(0))
    last = first + 1 if current.v > first else current.v
    wanted = range(max(1, last - 1), last + 1)
    pairs: list[tuple[State, State | None]] = [(current, None)]  # the log of version 1 itself
    left, silent = set(floored), set[bytes]()
    try:
        if wanted:
            states: list[State] = yield from states_between(m, instance, current, wanted[0] - 1, wanted[-1])
            pairs = list(pairwise(states))
        for base, state in pairs:
            at = Instance(m, instance.config, instance.devices, base)  # what was read before it slept says nothing
            if base != current:
                at = yield from enter(base, ahead=True)
            views = [view for a, view in at.acceptors.items() if a in left]
            yield Gather({view.name: _looked(view) for view in views}, deadline_s=LOOK_S)
            m.now = yield Now()
            silent |= {view.acceptor_id for view in views if view.log.usable and not (view.counts() and view.ended)}
            left = {view.acceptor_id for view in views if any(x == (state or x) for x in view.log.votes.values())}
    except (DamagedError, FormatError, NoQuorumError, UpgradeError):
        return Remains()
    return Remains(frozenset(left - silent), frozenset(silent))


def _looked(view: AcceptorView) -> Task:
    """Reads a log though a floor may cover it: what it shows is not counted for its version."""
    held = view.memory.no_floor
    view.memory.no_floor = covering(view.v), (yield Now())
    try:
        yield from view.look()
    finally:
        view.memory.no_floor = held


def _first_of(block: int) -> int:
    """The first version of a block that has a log, by the block's lowest version."""
    return max(1, block)


# Raising the floor.


@dataclass
class Progress:
    """One device's work on floors. `made`: the highest floor. `read_s`: when (acceptor, floor) was read again, seconds.

    `deleted`: by acceptor, the floor below which all is deleted.
    """

    made: int = 0
    read_s: dict[tuple[str, int], float] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        read = [[a, floor, at] for (a, floor), at in sorted(self.read_s.items())]
        return json.dumps({"made": self.made, "read": read, "deleted": self.deleted}).encode()


def decode_progress(data: bytes) -> Progress:
    """What `Progress.encode` wrote. A damaged note counts as none: floors are read and waited for anew."""
    try:
        note = json.loads(data)
        read = {(str(a), int(floor)): float(at) for a, floor, at in note.get("read", [])}
        return Progress(int(note.get("made", 0)), read, {str(a): int(f) for a, f in note.get("deleted", {}).items()})
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return Progress()


def bound_logs(
    m: Participant, instance: Instance, progress: Progress, now_s: float, *, keep: int = KEEP, grace_s: float = GRACE_S
) -> Task:
    """One step of keeping the logs short; `instance`: the one after the newest decided state. -> bool: anything done.

    `now_s`: the time of day. Called after pushes; whatever fails is tried again after a later one. Idempotent, and any
    number of devices may do it.
    """
    for acceptor, link in _sound(instance):
        if (yield from _bound_one(m, instance, acceptor, link, progress, now_s, grace_s)):
            return True
    if STEP * ((instance.base.v - max(keep, BEHIND_LEAST)) // STEP) > progress.made:
        yield from _make(m, instance, progress.made + STEP)
        progress.made += STEP
        return True
    return False


def _bound_one(
    m: Participant,
    instance: Instance,
    acceptor: AcceptorView,
    link: str,
    progress: Progress,
    now_s: float,
    grace_s: float,
) -> Task:
    """The same on one acceptor. -> bool: it came to something. One that refuses keeps its own logs, and no others."""
    acceptor_id = acceptor.acceptor_id
    name = acceptor_id.hex()
    done = progress.deleted.get(name, 0)
    for floor in range(done + STEP, progress.made + STEP, STEP):
        if (name, floor) in progress.read_s:
            continue
        look = Op(link, "get", floor_path(acceptor_id, floor), max_bytes=2 * ENTRY_BYTES_MAX)
        reply: Reply = yield look
        if reply.error is None and _opens(m, reply.value, acceptor_id, floor):
            progress.read_s[name, floor] = now_s
            return True
        if isinstance(reply.error, NotFoundError):  # it was away when the floor was made
            with contextlib.suppress(NoQuorumError):  # the others' logs may still go
                yield from _make(m, instance, floor)
            again: Reply = yield look
            if again.error is None:
                return True
        break
    due = progress.read_s.get((name, done + STEP))
    if due is None or now_s - due < grace_s:
        return False
    kind = "bl" if acceptor.form == "block" else "px"
    if not (yield from _delete_first(m, instance, acceptor, link, _first_of(done))):
        return False
    left = yield from _delete_block(link, f"{name}/{kind}/{done // STEP}")
    if left == 0:
        progress.deleted[name] = done + STEP
        del progress.read_s[name, done + STEP]
    return left is not None


def _sound(instance: Instance) -> list[tuple[AcceptorView, str]]:
    """The acceptors within reach that are what they were, each with the way to it."""
    return [(a, link) for a in instance.acceptors.values() if (link := a.reach()) and not a.memory.replaced]


def _opens(m: Participant, data: bytes, acceptor_id: bytes, floor: int) -> bool:
    try:
        open_floor(m.keys, data, acceptor_id, floor)
    except (FormatError, UpgradeError):
        return False
    return True


def _make(m: Participant, instance: Instance, floor: int) -> Task:
    """Writes the block of states below `floor`, then the floor itself, on a quorum at least. `NoQuorumError`."""
    latest = instance.base
    states: list[State] = yield from states_between(m, instance, latest, floor - STEP, floor - 1)
    plain = b"".join(state.encode() for state in states)
    _, data = yield from sealed(m.keys, RecordKind.STATES, lambda: plain, era=latest.era, epoch=latest.epoch)
    links = {a.acceptor_id: link for a, link in _sound(instance)}
    name = m.keys.states_name(states[-1].epoch, latest.era, (floor - 1) // STEP)
    paths = {link: const_path(a, name) for a, link in links.items()}
    yield from put_everywhere(paths, data, instance.config.meta_copies, "a block of states")
    before: State = yield from fetch_state(m, instance, latest.v - 1, latest.prev, latest.epoch)
    made = yield Gather({link: _create(m, instance, a, link, floor, before) for a, link in links.items()})
    if sum(made.values()) < instance.quorum:
        raise NoQuorumError(f"the floor of version {floor} stands on too few backends", next_step="run again later")


def states_between(m: Participant, instance: Instance, latest: State, first: int, last: int) -> Task:
    """-> the states of the versions `first` to `last` of the chain that ends with `latest`, proven by hash."""
    digest = yield from ancestor(m, instance, latest, last)
    known = latest if last == latest.v else (yield from fetch_state(m, instance, last, digest, latest.epoch))
    out: list[State] = [known]
    while out[-1].v > first:
        lowest = max(first, out[-1].v - FETCHES)
        ahead: dict[bytes, State] = yield from _bases(instance, range(lowest, out[-1].v))
        while out[-1].v > lowest:
            last_one = out[-1]
            state = ahead.get(last_one.prev)
            out.append(state or (yield from fetch_state(m, instance, last_one.v - 1, last_one.prev, last_one.epoch)))
    return out[::-1]


def _bases(instance: Instance, versions: range) -> Task:
    """-> {hash: state} of these versions, as far as one acceptor's logs after them show them at once."""
    shown = next((a for a in instance.acceptors.values() if a.form == "log" and a.reach()), None)
    if shown is None:
        return {}
    got: dict[str, Any] = yield Gather({str(v): shown.first_entry(v + 1) for v in versions})
    bases = [signed.entry.base for signed in got.values() if isinstance(signed, SignedEntry)]
    return {state.hash: state for state in bases}


def _create(m: Participant, instance: Instance, acceptor_id: bytes, link: str, floor: int, before: State) -> Task:
    """-> bool: the floor stands on this acceptor, and the one before it too."""
    if floor > STEP:
        lower: Reply = yield Op(
            link, "get", floor_path(acceptor_id, floor - STEP), max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S
        )
        if lower.error is not None or not _opens(m, lower.value, acceptor_id, floor - STEP):
            return False  # it was away when that one was made, and gets it first
    entropy = yield Random(48)
    entry = decided_entry(m, acceptor_id, before, instance.base, entropy[32:])
    data = seal_floor(m.keys, entry, m.identity.sign_private, entropy[:32])
    path = floor_path(acceptor_id, floor)
    reply: Reply = yield Op(link, "create", path, data, timeout_s=OP_TIMEOUT_S)
    if reply.error is None and reply.value:
        return True
    there: Reply = yield Op(link, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    return there.error is None and _opens(m, there.value, acceptor_id, floor)


def _delete_first(m: Participant, instance: Instance, acceptor: AcceptorView, link: str, first: int) -> Task:
    """Deletes the beginnings of the logs of a block's first two versions. -> bool: both are gone.

    Before all others of the block, so that whoever finds them there knows that a floor has no gap behind it.
    """
    for v in (first, first + 1):
        [base] = yield from states_between(m, instance, instance.base, v - 1, v - 1)
        at: tuple[WorkspaceKeys, int, int, bytes, int] = m.keys, base.epoch, base.era, acceptor.acceptor_id, v
        if acceptor.form == "log":
            paths = [entry_path(*at, 0)]
        else:
            paths = [block_path(*at, device, 0) for device in writers(m, instance)]
        got: Mapping[str, Reply] = yield from each({p: Op(link, "delete", p, timeout_s=OP_TIMEOUT_S) for p in paths})
        if any(r.error is not None and not isinstance(r.error, NotFoundError) for r in got.values()):
            return False
    return True


def _delete_block(link: str, folder: str) -> Task:
    """Deletes up to DELETES_MAX entries of a folder of logs. -> how many are left; None: the store refuses."""
    listed: Reply = yield Op(link, "list", folder, timeout_s=OP_TIMEOUT_S)
    if isinstance(listed.error, NotFoundError):
        return 0
    if listed.error is not None:
        return None
    names = [item.name for item in listed.value if item.size is not None]
    for at in range(0, min(len(names), DELETES_MAX), FETCHES):
        some = {n: Op(link, "delete", f"{folder}/{n}", timeout_s=OP_TIMEOUT_S) for n in names[at : at + FETCHES]}
        got: Mapping[str, Reply] = yield from each(some)
        if any(r.error is not None and not isinstance(r.error, NotFoundError) for r in got.values()):
            return None
    return max(0, len(names) - DELETES_MAX)
