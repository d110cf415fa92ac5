"""The learner far behind (consensus.md, rules 1.8 and 1.11): a jump over many versions, and a leap past deleted logs.

A chain of hashes tells what stood before a state, and not that it was decided. One device can make up a chain with all
its votes, but for one version, where it parts from what was agreed. So a jump asks who vouches for the versions on the
way, and where one device does so alone, it reads the logs of each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.chain import ancestor, fetch_state, find_keys, other_at
from metasync.consensus.forks import check_word
from metasync.consensus.hints import AHEAD_MAX, WAIT_S, read_heads
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Participant, Word
from metasync.consensus.proposer import look_around
from metasync.consensus.records.entry import Head, SignedEntry, covering, hint_path, open_hint
from metasync.consensus.records.state import State, follows
from metasync.consensus.truncation import Remains, intact, opened, states_between
from metasync.errors import DamagedError, FormatError, NoQuorumError, UpgradeError
from metasync.runtime.effects import Gather, Now, Task

LOOK_S: Final = 2.0  # for the logs of one version
WINDOW: Final = 64  # versions whose logs are read side by side
FIRST: Final = 2  # entries of each: PREPARE and ACCEPT, or the ACCEPT of an owner

Enter = Callable[..., Task]  # as in `learner`


# Past a floor.


def leap(
    m: Participant, enter: Enter, instance: Instance, current: State, enough: int, *, certain: bool = True
) -> Task:
    """-> the newest state after `current` that `enough` acceptors show (consensus.md, rule 1.11); None if none does.

    An acceptor whose floor no admitted device signed is out. One acceptor is not enough: a device that was revoked
    meanwhile is still admitted in the states that this device knows. `certain`: nor is one device's word, where the
    logs are there.
    """
    floors: dict[bytes, SignedEntry] = yield from opened(m, instance)
    acceptors = instance.acceptors.values()
    hints: dict[str, SignedEntry | None] = yield Gather({a.name: _hint(a) for a in acceptors})
    best: dict[bytes, State] = {}
    words: list[SignedEntry] = []
    good: set[bytes] = set()
    apart: list[tuple[AcceptorView, SignedEntry, bytes]] = []
    for acceptor in acceptors:
        floor = floors.get(acceptor.acceptor_id)
        for signed in (hints[acceptor.name], floor):
            value = None if signed is None else signed.entry.value
            if signed is None or value is None or not (yield from _vouched(enter, signed)):
                continue
            digest = yield from other_at(m, instance, value)
            if digest is not None:
                apart.append((acceptor, signed, digest))
                if signed is floor:  # if it is one device's word alone, the logs are there
                    del floors[acceptor.acceptor_id]
                    acceptor.memory.no_floor = covering(instance.v), (yield Now())
                continue
            if signed is floor:
                good.add(acceptor.acceptor_id)
            words.append(signed)
            shown = best.get(acceptor.acceptor_id)
            if value.v > max(current.v, 0 if shown is None else shown.v):
                best[acceptor.acceptor_id] = value
    if apart:
        for word in apart:
            yield from check_word(m, enter, instance, *word)
    found = yield from _borne_out(m, enter, instance, current, best, enough)
    if found is None and best:
        found = yield from _shown_with_newer_keys(m, enter, instance, current, best, enough)
    _leave_out(instance, floors.keys() - good, "its floor is not one that a device of the workspace made")
    if certain and good:
        found = yield from _sure_of(m, enter, instance, current, found, words, good)
    if found is None and good:
        raise NoQuorumError(
            f"the logs after version {current.v} are gone, and the way to the newer versions cannot be read",
            next_step="run again when more backends are reachable, or clone the workspace into a new folder",
        )
    return found


def _leave_out(instance: Instance, acceptors: Collection[bytes], why: str) -> None:
    """Takes acceptors out for this version. All are asked for their floors anew."""
    for a in acceptors:
        instance.acceptors[a].poison(why)
    for acceptor in instance.acceptors.values():
        acceptor.floor = None


def _sure_of(
    m: Participant, enter: Enter, instance: Instance, current: State, found: State | None,
    words: Sequence[SignedEntry], good: set[bytes],
) -> Task:  # fmt: skip
    """-> the newest state up to `found` that two devices vouch for, or the logs bear out; `found` where these are gone.

    None where the logs show that nothing was decided after `current`: then no log was deleted, and the floors of the
    acceptors `good` count for nothing; it is emptied. What the logs show counts only if they were there before and
    after they were read: those behind a true floor may be deleted at any moment.
    """
    tellers = {signed.entry.device_id for signed in words}
    if found is not None:
        through = []
        for signed in words:
            value = signed.entry.value
            if value is not None and value.v >= found.v and (yield from _leads_to(m, instance, value, found)):
                through.append(signed)
        vouched: State = yield from _borne_out_to(m, enter, instance, found, through, logs=False)
        if vouched.v > current.v:
            return vouched
    free = []
    for a in instance.acceptors.keys() - good:
        free += [a] * (yield from instance.acceptors[a].has_no_floor(instance.v))
    before: Remains = yield from intact(m, enter, instance, current, good)
    if not (before.there or before.silent or free):
        return found
    yield from _believe(m, instance, before.there)
    instance.begin()
    yield from look_around(m, instance, LOOK_S, everybody=True)
    reached = instance.decided()
    if reached is not None and found is not None and (yield from _leads_to(m, instance, found, reached)):
        reached = yield from _replayed(m, enter, instance, current, found, tellers)
    after: Remains = yield from intact(m, enter, instance, current, before.there)
    shown = {a for a in (*before.there, *free) if (view := instance.acceptors[a]).born and view.ended}
    quiet = {a for a in shown if instance.acceptors[a].log.silent}
    made_up = len(quiet) > len(instance.acceptors) - instance.quorum + instance.config.f  # so v was never decided
    if after.there != before.there or reached is not None or not (made_up or len(shown) >= instance.quorum):
        for a in before.there:
            m.acceptors[a].no_floor = -1, 0.0
        if reached is not None and after.there == before.there:
            return reached
        several = len(before.there) > len(instance.acceptors) - instance.quorum
        if several or before.silent or after.silent:
            raise NoQuorumError(
                f"too few backends answer to tell whether the logs after version {current.v} were deleted",
                next_step="run again when more backends are reachable, or clone the workspace into a new folder",
            )
        return found
    yield from _believe(m, instance, good if made_up else ())
    _leave_out(instance, () if made_up else good - before.there, "its floor tells of deleted logs")
    good.clear()
    why = Word("its floor or hint goes on from here to versions that the backends do not bear out")
    m.void_values.update(dict.fromkeys(((device, instance.v) for device in tellers), why))
    return None


def _believe(m: Participant, instance: Instance, acceptors: Iterable[bytes]) -> Task:
    """Counts what these show and lack of the instance's version, though each has a floor above it."""
    for a in acceptors:
        m.acceptors[a].no_floor = covering(instance.v), (yield Now())


def _leads_to(m: Participant, instance: Instance, later: State, state: State) -> Task:
    """-> bool: the chain of `later` goes through `state`, as far as it can be read."""
    try:
        return (yield from ancestor(m, instance, later, state.v)) == state.hash
    except (DamagedError, NoQuorumError):
        return False


def _shown_with_newer_keys(
    m: Participant, enter: Enter, instance: Instance, current: State, best: Mapping[bytes, State], enough: int
) -> Task:
    """`_borne_out` with keys of later epochs, which seal a floor that is made again after a rotation.

    The keys of what turns out to be agreed are followed afterwards.
    """
    links = [link for a in instance.acceptors.values() if (link := a.reach())]
    held = m.keys
    newer, _ = yield from find_keys(m, held.epoch + 1, links)
    for keys in newer:
        m.keys = keys
        found = yield from _borne_out(m, enter, instance, current, best, enough)
        if found is not None:
            return found
    m.keys = held
    return None


def _borne_out(
    m: Participant, enter: Enter, instance: Instance, current: State, best: Mapping[bytes, State], enough: int
) -> Task:
    """`_shown_by_enough`, or else with the acceptors whose logs are closed where `current`'s config ended.

    A backend that was removed since gets neither floors nor hints any more. It still has the log that the fence closed.
    """
    found = yield from _shown_by_enough(m, instance, current, best, enough)
    ahead = sorted(dict.fromkeys(best.values()), key=lambda state: state.v, reverse=True)
    while found is None and ahead:
        closed = yield from _closed_at_the_end(m, enter, instance, current, ahead.pop(0))
        if closed:
            found = yield from _shown_by_enough(m, instance, current, {**best, **closed}, enough)
    return found


def _closed_at_the_end(m: Participant, enter: Enter, instance: Instance, current: State, ahead: State) -> Task:
    """-> {acceptor: the state that ended `current`'s config on the way to `ahead`}, for logs that are closed on it.

    Its DECIDED says the same as a floor, and its signer is admitted by the state before.
    """
    try:
        if (yield from ancestor(m, instance, ahead, current.v)) != current.hash:
            return {}
        last: State = yield from _last_under(m, instance, current, ahead)
        if last.v == ahead.v:
            return {}
        digest = yield from ancestor(m, instance, ahead, last.v + 1)
        state: State = yield from fetch_state(m, instance, last.v + 1, digest, ahead.epoch)
        at: Instance = yield from enter(last, ahead=True)
    except (DamagedError, FormatError, NoQuorumError, UpgradeError):
        return {}
    at.begin()
    yield from look_around(m, at, LOOK_S, everybody=True)
    good = {a: view.log for a, view in at.acceptors.items() if view.counts() and view.ended and view.log.usable}
    return {a: state for a, log in good.items() if log.closed == state}


def _shown_by_enough(
    m: Participant, instance: Instance, current: State, best: Mapping[bytes, State], enough: int
) -> Task:
    """-> the newest state that lies in the chains of what `enough` acceptors show; None if there is none."""
    shown = sorted(best.items(), key=lambda item: item[1].v)
    while len(shown) >= enough:
        _, state = shown[-enough]
        try:
            leads_back = (yield from ancestor(m, instance, state, current.v)) == current.hash
            above = 0 if leads_back else -1
            for _, later in shown[len(shown) - enough + 1 :] if leads_back else ():
                above += (yield from ancestor(m, instance, later, state.v)) == state.hash
        except (DamagedError, NoQuorumError):
            above = -1
        if above == enough - 1:
            return state
        shown.pop(-1 if above >= 0 else -enough)  # they do not agree, or the way back cannot be read
    return None


def _hint(acceptor: AcceptorView) -> Task:
    """-> what an acceptor's hint says, or None."""
    found = yield from acceptor.get(hint_path(acceptor.acceptor_id))
    if not isinstance(found, bytes):
        return None
    try:
        return open_hint(acceptor.m.keys, found, acceptor.acceptor_id)
    except (FormatError, UpgradeError):
        return None


def _vouched(enter: Enter, signed: SignedEntry) -> Task:
    """-> bool: an admitted device signed it, and its value may follow its base."""
    entry = signed.entry
    try:
        if entry.value is None or not follows(entry.value, entry.base) or not (yield from _is_admitted(enter, signed)):
            return False
        if (entry.value.config, entry.value.devices) != (entry.base.config, entry.base.devices):
            yield from enter(entry.value, ahead=True)  # it keeps to the policy that it names
        return True
    except (DamagedError, FormatError, NoQuorumError, UpgradeError):
        return False


def _is_admitted(enter: Enter, signed: SignedEntry) -> Task:
    """-> bool: a device that the base of an entry admits signed it."""
    ahead: Instance = yield from enter(signed.entry.base, ahead=True)
    public = ahead.devices.key_of(signed.entry.device_id, signed.entry.certificate)
    return public is not None and signed.verifies(public)


# Over many versions.


def jump(
    m: Participant,
    enter: Enter,
    instance: Instance,
    current: State,
    shown: Mapping[bytes, SignedEntry],
    *,
    certain: bool,
) -> Task:
    """-> the base of the entries `shown` of one version far ahead, by acceptor, proven to descend from `current`; None
    without.

    Never beyond the end of `current`'s config: only a quorum of today's acceptors says which ones follow. `certain`:
    nor beyond what more than one device, or the logs of every version, bear out.

    `ForkError` when an admitted device signed a base whose chain does not contain `current`, and the logs bear it out.
    """
    for acceptor_id, signed in shown.items():
        entry = signed.entry
        try:
            if not (yield from _is_admitted(enter, signed)):
                continue
            if (yield from _begins_here(m, instance, entry.base)):
                state: State = yield from _last_under(m, instance, current, entry.base)
                if (yield from _may_be_decided(m, enter, instance, current, state)):
                    if not certain:
                        return state
                    return (yield from _borne_out_to(m, enter, instance, state, shown.values()))
            elif (digest := (yield from other_at(m, instance, entry.base))) is not None:
                yield from check_word(m, enter, instance, instance.acceptors[acceptor_id], signed, digest)
        except (DamagedError, FormatError, NoQuorumError, UpgradeError):
            continue  # made up, or the way back cannot be read now: step forward one by one instead
    return None


def _begins_here(m: Participant, instance: Instance, ahead: State) -> Task:
    """-> bool: the first version of the way to a state ahead is one that this instance's logs bear out.

    A chain that a device made up can have all votes on states of its own, but none where it begins.
    """
    if ahead.v < instance.v:
        return ahead == instance.base
    first: bytes = yield from ancestor(m, instance, ahead, instance.v)
    decided = instance.decided()
    if decided is not None:
        return decided.hash == first
    state: State = yield from fetch_state(m, instance, instance.v, first, ahead.epoch)
    return state.prev == instance.base.hash and instance.may_decide(state)


def _may_be_decided(m: Participant, enter: Enter, instance: Instance, current: State, state: State) -> Task:
    """-> bool: the logs of a state's own version bear out that it was decided there, as far as they can be read.

    Entries of the version after it do not: one device can write them all (consensus.md, rule 8.1).
    """
    if state.v <= current.v:
        return True
    before = yield from fetch_state(m, instance, state.v - 1, state.prev, state.epoch)
    at: Instance = yield from enter(before, ahead=True)
    at.begin()
    yield from look_around(m, at, LOOK_S, everybody=True)
    return at.may_decide(state)


def _last_under(m: Participant, instance: Instance, current: State, ahead: State) -> Task:
    """-> the last state from `current` to `ahead`, on one chain, that names the config which `current` names."""
    low, high = current, ahead
    if high.config == low.config:
        return high
    while high.v - low.v > 1:
        v = (low.v + high.v) // 2
        state: State = yield from fetch_state(m, instance, v, (yield from ancestor(m, instance, high, v)), high.epoch)
        if state.config == low.config:
            low = state
        else:
            high = state
    return low


# Who vouches for the versions between.


def _borne_out_to(
    m: Participant, enter: Enter, instance: Instance, high: State, entries: Iterable[SignedEntry], *, logs: bool = True
) -> Task:
    """-> the newest state on the way from the instance's base to `high` that is sure to be decided, maybe the base.

    `entries`: of later versions, on chains that go through `high`. `logs`: they may be asked, too.

    A device signs nothing on a state that it does not know to be decided, and one device may lie. So what two devices
    vouch for is decided, by these entries or by their heads. Only such count as a state admits that is decided itself:
    who joined by a chain that somebody made up knows no better. From there on the logs of every version are asked.
    Where there is but one other device, nobody else can be led apart from this one, and its word is enough.
    """
    low, ahead = instance.base, (yield from enter(high, ahead=True))
    signers = set()
    for signed in entries:
        device = ahead.devices.get(signed.entry.device_id)
        if device is not None and signed.verifies(device.sign_public):
            signers.add(device.device_id)
    if m.identity.device_id in signers or len(_others(m, instance, ahead)) <= 1:
        return high
    marks = yield from _heads_on_the_way(m, ahead, high, signers)
    marks |= dict.fromkeys(signers, high.v)
    while low.v < high.v:
        at: Instance = yield from enter(low, ahead=True)
        if len(_others(m, at, ahead)) <= 1:
            return high
        vouched = sorted((v for device, v in marks.items() if at.devices.get(device) is not None), reverse=True)[1:2]
        if vouched and vouched[0] > low.v:
            [low] = yield from states_between(m, instance, high, vouched[0], vouched[0])
            continue
        if not logs:
            break
        reached: State = yield from _replayed(m, enter, instance, low, high, set(marks))
        if reached == low:
            break
        low = reached
    return low


def _others(m: Participant, *instances: Instance) -> set[bytes]:
    """The devices that the bases of these admit, but for this one."""
    return {c.device_id for i in instances for c in i.devices.certificates} - {m.identity.device_id}


def _heads_on_the_way(m: Participant, ahead: Instance, high: State, but: Collection[bytes]) -> Task:
    """-> {device: the newest version up to `high` that its head shows it to know}, of devices other than `but`.

    A head that is not on the chain of `high` vouches for nothing there.
    """
    devices = sorted(_others(m, ahead) - set(but))
    links = [link for a in ahead.acceptors.values() if (link := a.reach())]
    heads: dict[bytes, Head | None] = yield from read_heads(m, ahead, devices, links, len(links) // 2 + 1)
    out = {}
    for device, head in heads.items():
        if head is None or head.v > high.v + AHEAD_MAX:
            continue
        try:
            if head.v <= high.v:
                on_it = (yield from ancestor(m, ahead, high, head.v)) == head.state_hash
            elif head.v == ahead.v and (yield from _is_voted_for(ahead, head.state_hash)):
                on_it = True
            else:
                later = yield from fetch_state(m, ahead, head.v, head.state_hash, high.epoch)
                on_it = (yield from ancestor(m, ahead, later, high.v)) == high.hash
        except (DamagedError, NoQuorumError):
            continue
        if on_it:
            out[device] = min(head.v, high.v)
    return out


def _is_voted_for(at: Instance, digest: bytes) -> Task:
    """-> bool: a log of this version has a vote for the state with this hash, which follows its base then. The newest
    state stands nowhere else."""
    for view in at.acceptors.values():
        if view.reach() is not None:
            yield Gather({view.name: view.look()}, deadline_s=LOOK_S)
        if any(value.hash == digest for value in view.log.votes.values()):
            return True
    return False


def _replayed(
    m: Participant, enter: Enter, instance: Instance, low: State, high: State, tellers: Collection[bytes]
) -> Task:
    """-> the newest state after `low` on the way to `high` up to which the logs show each version decided, WINDOW
    versions at most; `low` if there is none. `tellers`: who is named where they show that one was not.
    """
    last = min(low.v + WINDOW, high.v, covering(low.v + 1) - 1)  # one floor covers the logs of all
    states: list[State] = yield from states_between(m, instance, high, low.v + 1, last)
    if states[0].prev != low.hash:
        return low
    ats: list[Instance] = []
    for base in [low, *states[:-1]]:
        if base.config != low.config:
            break
        at: Instance = yield from enter(base, ahead=True)
        at.begin()
        ats.append(at)
    yield from _glance(ats)
    m.now = yield Now()
    open_yet = [at for at, state in zip(ats, states, strict=False) if at.decided() != state]
    yield Gather({str(at.v): look_around(m, at, LOOK_S, everybody=True) for at in open_yet})
    for at, state in zip(ats, states, strict=False):
        if at.decided() != state and not (at.is_bound(state) and not _can_finish(m, at)):
            if not at.may_decide(state):
                text = f"it goes on from a version {state.v} ({state.fingerprint}) that the backends do not bear out"
                why = Word(text)
                m.void_values.update(dict.fromkeys(((device, state.v) for device in tellers), why))
            return at.base
    return states[len(ats) - 1]


def _can_finish(m: Participant, at: Instance) -> bool:
    """True when enough acceptors of a version take messages of this device: not those that were emptied, or have ended,
    nor in block form before the device was taken in."""
    admitted = at.devices.get(m.identity.device_id) is not None
    open_yet = [a for a in at.acceptors.values() if not (a.log.ended or a.memory.replaced)]
    return sum(admitted or view.form == "log" for view in open_yet) >= at.quorum


def _glance(ats: Sequence[Instance]) -> Task:
    """Reads the first entries of the logs of several versions, which have one config and one floor, side by side on a
    quorum: as a rule the votes are there. What vouches for an acceptor is read once, beside them.
    """
    first = ats[0]

    def one(acceptor_id: bytes) -> Task:
        views = [at.acceptors[acceptor_id] for at in ats]
        logs = [view for view in views if isinstance(view, LogAcceptor) and not view.log.next_idx]
        branches = {f"{n} {i}": view.get(view.place(i)) for n, view in enumerate(logs) for i in range(FIRST)}
        asked = yield Now()
        got = yield Gather(branches | (yield from views[0].vouching()))
        if not (got["birth"] and got.get("audit", True) and got.get("floor", True)):
            return
        for n, view in enumerate(logs):
            if (yield from view.has_no_floor(view.v)):
                view.take([got[f"{n} {i}"] for i in range(FIRST)], asked)

    able = [a for a, view in first.acceptors.items() if view.form == "log" and view.reach() and not view.is_out("down")]
    yield Gather({a.hex(): one(a) for a in able[: first.quorum]}, deadline_s=WAIT_S)
