"""The learner: what is the newest decided state (consensus.md, rule 1.8).

Slot 0 of every version has a name that any member can compute, so "is there anything after v" is one GET per acceptor,
with the birth object beside it: when a quorum has neither, v is the latest, because a decided v+1 stands on a quorum.
If there is more, the learner gallops: it probes slot 0 of versions ever further ahead, side by side, and takes the base
state that the furthest entry carries. Any entry of version t is a certificate that t-1 is decided; whether t is, its
logs tell, or the learner helps to decide it. It never guesses.

Nothing is believed below what the device remembers: a jump must lead back, by `prev` and `skip` hashes, to the state
the device knows, and an acceptor must still show the last entry that it was seen to hold.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.chain import find_keys, shut_out
from metasync.consensus.instance import Instance, no_quorum
from metasync.consensus.participant import Participant
from metasync.consensus.proposer import BehindFloorError, Hurry, look_around, prepare, settle
from metasync.consensus.records.entry import SignedEntry, hint_path, open_hint, shown_epoch
from metasync.consensus.records.state import VERSION_MAX, State
from metasync.errors import (
    BackendError,
    DamagedError,
    FormatError,
    NoQuorumError,
    UpgradeError,
)
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Gather, Now, Sleep, Task

GALLOP: Final = (1, 2, 4, 8)  # probed side by side, times a stride that grows while all are there
GALLOP_GROWTH: Final = 16
PAUSE_FIRST_S: Final = 0.1  # between looks while too few acceptors answer
PAUSE_MAX_S: Final = 2.0
PREPARE_SHARE: Final = 1 / 3  # of the time for a look, for promises in its place: where they fail it has the rest
NARROW: Final = 8  # probes between the last version known to be there and the first known to be absent

Enter = Callable[..., Task]
"""(state, ahead=False) -> the Instance after a state: loads the config and device set that it names. `ahead`: only to
look at, because nobody has vouched for the state yet: it must not say where to read and write."""


@dataclass(slots=True)
class _Top:
    """The highest version with an entry, and the lowest version above that is known absent.

    `shown`: first entries, by acceptor, of the highest version of which enough acceptors show one on the same base.
    """

    v: int
    shown: dict[bytes, SignedEntry]
    absent: int | None = None


def get_recent(m: Participant, enter: Enter, known: State, deadline_s: float, answered: Collection[bytes] = ()) -> Task:
    """-> the newest decided State, at least as new as `known` and as any commit that ended before the call.

    `answered`: acceptors whose births were seen right in this operation already.
    `ForkError` when backends contradict `known` or the device's memory; `NoQuorumError`; `UpgradeError`.
    """
    deadline = (yield Now()) + deadline_s
    current = known
    absent_above: int | None = None
    stepped = False
    slow: int | None = None  # a version behind floors, to be finished by its logs: a look ahead reads others' floors
    heard: set[bytes] = set()  # acceptors whose births were seen right, over all versions that were passed through
    while True:
        instance: Instance = yield from enter(current)
        instance.begin()
        instance.hear(answered)
        answered = ()
        m.remember_state(current)
        m.reached = current
        if absent_above == instance.v:
            instance.hear({a for a in heard if not m.acceptors[a].replaced})
            return current
        yield from _probe(m, instance, deadline)
        heard |= instance.heard
        if instance.is_behind_floor():
            from metasync.consensus.leaps import leap

            leapt: State | None = yield from leap(m, enter, instance, current, instance.quorum)
            slow = instance.v if leapt is None else None
            current = leapt or current
            absent_above = None
            continue
        if instance.quiet():
            return current
        decided = instance.decided()
        if decided is not None and not stepped:
            if decided.epoch != current.epoch:
                absent_above = None  # what was absent, was so by the names of another epoch
            if instance.is_last() and instance.is_audited():  # else the next look asks for claims
                absent_above = decided.v + 1
            stepped, current = True, decided  # one version more is the common case: no need to look far ahead
            continue
        if instance.progress() and slow != instance.v:
            top = yield from _gallop(instance, deadline)
            if top is not None:
                from metasync.consensus.leaps import jump  # whoever looks often is not far behind

                before = yield Now()
                jumped = yield from jump(m, enter, instance, current, top.shown, certain=True)
                deadline += (yield Now()) - before  # it ends where nothing is reached
                absent_above = top.absent if instance.all_logs else None
                if jumped is not None and jumped.v > current.v:
                    current = jumped
                    continue
        try:
            decided = yield from _resolve(m, instance, deadline)
        except BehindFloorError:
            continue
        if decided is None:
            return current
        same = (decided.epoch, decided.config) == (current.epoch, current.config)  # names and acceptors
        if not same or absent_above != decided.v + 1:
            absent_above = None
        current = decided


def get_recent_preparing(m: Participant, enter: Enter, known: State, deadline_s: float, hurry: Hurry) -> Task:
    """-> what `get_recent` does, for who is about to propose the next version: asked by its PREPARE (rule 2.2).

    A quorum that promises and holds no vote shows that there is nothing newer, as entries that are absent do. Else all
    is asked as ever; where a create found an entry of another, that is read at once with the end of its log. `prepare`
    and `propose` go on from the promises. `hurry`: whether somebody waits for it.
    """
    deadline = (yield Now()) + deadline_s
    instance: Instance = yield from enter(known)
    instance.take_prepared()  # an earlier operation's promises say nothing of now
    m.remember_state(known)
    m.reached = known
    with contextlib.suppress(BehindFloorError, NoQuorumError, DamagedError):  # the look says more of it
        if (yield from prepare(m, instance, deadline_s * PREPARE_SHARE, hurry, reads=False)):
            if instance.is_quiet_below(instance.prepared):
                return known
            instance.take_prepared()
    return (yield from get_recent(m, enter, known, max(deadline - (yield Now()), 0.0), instance.heard))


def newest_seen(m: Participant, enter: Enter, known: State, deadline_s: float) -> Task:
    """-> the newest state that any reachable acceptor proves decided, without a quorum: for a read-only look."""
    deadline = (yield Now()) + deadline_s
    instance: Instance = yield from enter(known)
    instance.begin()
    yield from look_around(m, instance, deadline - (yield Now()), everybody=True)
    yield from instance.check_fork()
    from metasync.consensus.leaps import jump, leap

    behind = instance.is_behind_floor()
    if behind and (leapt := (yield from leap(m, enter, instance, known, 1, certain=False))) is not None:
        return (yield from newest_seen(m, enter, leapt, deadline - (yield Now())))
    decided = instance.decided()
    top = (yield from _gallop(instance, deadline, enough=1)) if instance.progress() else None
    if top is not None and top.v > instance.v:
        jumped = yield from jump(m, enter, instance, known, top.shown, certain=False)
        if jumped is not None and jumped.v > known.v:  # the base of what was found: that may be decided as well
            return (yield from newest_seen(m, enter, jumped, deadline - (yield Now())))
    return decided or known


def _probe(m: Participant, instance: Instance, deadline: float) -> Task:
    """Reads births and logs onwards, with pauses, until a quorum answered, something was found, or time is up."""
    pause = PAUSE_FIRST_S
    while True:
        left = max(deadline - (yield Now()), 0.0)
        yield from look_around(m, instance, left, beyond=True, grace=True)
        instance.check_rollback()
        yield from instance.check_fork()
        if instance.read() >= instance.quorum or not instance.silent() or instance.is_behind_floor():
            return  # what others only prepared is no news, and without a quorum nobody can finish it
        now = yield Now()
        if now >= deadline or _hopeless(m, instance):
            instance.check_upgrade()
            raise no_quorum(m, instance)
        yield Sleep(min(pause, deadline - now))
        pause = min(PAUSE_MAX_S, pause * 2)


def _hopeless(m: Participant, instance: Instance) -> bool:
    out = sum(a.is_out("poisoned") for a in instance.acceptors.values())
    retired = any(stone.era > instance.base.era for stone in m.tombstones.values())  # look for its record
    return retired or out > len(instance.acceptors) - instance.quorum


def _resolve(m: Participant, instance: Instance, deadline: float) -> Task:
    """-> the value decided for the instance, or None when no commit of it had ended when the read began."""
    for attempt in range(3):
        decided = instance.decided()
        if decided is not None:
            return decided
        if instance.quiet():
            return None
        left = deadline - (yield Now())
        if attempt == 0:
            yield from look_around(m, instance, left, everybody=True)
        elif attempt == 1:
            yield Sleep(min(m.rtt_s, max(left, 0.0)))
            yield from look_around(m, instance, left)
        yield from instance.check_fork()
    try:
        return (yield from settle(m, instance, deadline - (yield Now())))
    except NoQuorumError:
        yield from _check_shut_out(m, instance)
        raise


def _check_shut_out(m: Participant, instance: Instance) -> Task:
    """Raises `ExcludedError` when every quorum has a hint of a later epoch that no keyring on it opens to this device.

    For a version that found no quorum: nothing is taken for decided by it. A rotation that was begun and lost leaves
    keyrings, too, so that one which holds keys for this device must open a hint.
    """
    acceptors = {a.name: a for a in instance.acceptors.values() if a.reach()}
    got = yield Gather({name: a.get(hint_path(a.acceptor_id)) for name, a in acceptors.items()}, deadline_s=PAUSE_MAX_S)
    epoch = m.keys.epoch
    later = {name: found for name, found in got.items() if isinstance(found, bytes) and shown_epoch(found) > epoch}
    if len(instance.acceptors) - len(later) >= instance.quorum:
        return
    links = [link for a in acceptors.values() if (link := a.reach())]
    newer, shut = yield from find_keys(m, epoch + 1, links)
    if shut and not any(_opens(keys, data, acceptors[name]) for keys in newer for name, data in later.items()):
        raise shut_out(m)


def _opens(keys: WorkspaceKeys, hint: bytes, acceptor: AcceptorView) -> bool:
    try:
        open_hint(keys, hint, acceptor.acceptor_id)
    except (FormatError, UpgradeError):
        return False
    return True


# Looking far ahead.


def _gallop(instance: Instance, deadline: float, enough: int | None = None) -> Task:
    """-> _Top: the highest version with an entry, from the instance's on; None when time is up."""
    top = _Top(instance.v, {})
    stride = 1
    while top.absent is None or top.absent - top.v > 1:
        if top.absent is None:
            versions = [v for v in (top.v + stride * step for step in GALLOP) if v <= VERSION_MAX]
            stride *= GALLOP_GROWTH
            if not versions:
                top.absent = VERSION_MAX + 1
                continue
        else:
            width = top.absent - top.v
            versions = sorted({top.v + 1 + (width - 1) * k // NARROW for k in range(NARROW)})
        left = deadline - (yield Now())
        if left <= 0:
            return None
        found, answers = yield from _probe_versions(instance, versions, left, enough)
        if answers < (instance.quorum if enough is None else enough):
            return None
        for v in versions:
            if v in found:
                top.v = v
                top.shown = _agreeing(found[v], instance.quorum if enough is None else enough) or top.shown
        top.absent = min((v for v in versions if v > top.v), default=top.absent)
    return top


def _agreeing(entries: Mapping[bytes, SignedEntry], least: int) -> dict[bytes, SignedEntry]:
    """The entries on the most common base, if `least` acceptors show it: one may be a revoked device's."""
    bases = Counter(signed.entry.base.hash for signed in entries.values())
    most = max(bases, key=bases.__getitem__)
    if bases[most] < least:
        return {}
    return {a: signed for a, signed in entries.items() if signed.entry.base.hash == most}


def _probe_versions(instance: Instance, versions: Sequence[int], left: float, enough: int | None) -> Task:
    """-> ({version: {acceptor: entry in its slot 0}}, how many acceptors answered for all versions)."""
    found: dict[int, dict[bytes, SignedEntry]] = {}

    def one(acceptor: AcceptorView) -> Task:
        if acceptor.reach() is None or acceptor.memory.replaced or acceptor.memory.unaudited:
            return False
        branches = {str(v): acceptor.first_entry(v) for v in versions}
        branches["birth"] = acceptor.read_birth()  # what is absent counts only where it is right
        got = yield Gather(branches)
        for v in versions:
            if isinstance(got[str(v)], SignedEntry):
                found.setdefault(v, {})[acceptor.acceptor_id] = got[str(v)]
        return got.pop("birth") and not any(isinstance(answer, BackendError) for answer in got.values())

    def until(results: Mapping[str, Any]) -> bool:
        wanted = instance.quorum if enough is None else len(instance.acceptors)
        return sum(answer is True for answer in results.values()) >= wanted

    branches = {a.name: one(a) for a in instance.acceptors.values()}
    results = yield Gather(branches, until, deadline_s=max(left, 0.0))
    return found, sum(answer is True for answer in results.values())
