"""A device says that another history was decided: what the logs say to that (consensus.md, rule 3.3).

Its entry, hint or floor stands on a chain that leaves this device's. Either it lies, or it was led apart, or this
device was. Its word alone does not tell. So the logs are read where the two chains part: on the last state that both
have, a quorum of votes tells which one was decided next. If it is the other one, backends have shown two histories, and
all stop (`ForkError`). If not, it is one device's word: it stops nobody, and the device is named.

What is read is replayed on states that both chains have, or that were found decided that way. A chain that somebody
made up can have all the votes he likes on states of his own; they count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.chain import fetch_state
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Participant, Word
from metasync.consensus.records.entry import SignedEntry
from metasync.consensus.records.state import State, skip_version
from metasync.errors import DamagedError, ExcludedError, ForkError, FormatError, NoQuorumError, UpgradeError
from metasync.runtime.effects import Gather, Now, Task

LOOK_S: Final = 2.0  # for the logs of one version
STEPS_MAX: Final = 256  # back along both chains: a chain of 2^20 versions has 210 at most
REPLAYED_MAX: Final = 16  # versions between the last state that both are seen to have and the first that differs
LOOKS_MAX: Final = 4  # for one device's words in one process

Enter = Callable[..., Task]  # as in `learner`


def look_into(m: Participant, enter: Enter, instance: Instance) -> Task:
    """Looks into the entries that stand on other states than the instance's base, once each.

    `ForkError` naming the backends that hold them, if the logs bear one out.
    """
    base = instance.base
    words = {word: other for a in instance.acceptors.values() for word, other in a.log.elsewhere.items()}
    for word, other in words.items():
        names = ", ".join(sorted(a.name for a in instance.acceptors.values() if word in a.log.elsewhere))
        if (yield from _is_fork(m, enter, instance, *word, names, other)):
            raise ForkError(
                f"{names}: version {instance.v} stands on another state than version "
                f"{base.v} as this device knows it ({base.fingerprint})",
                next_step="compare the fingerprint with another device; do not trust the named backends",
            )


def check_word(
    m: Participant, enter: Enter, instance: Instance, acceptor: AcceptorView, signed: SignedEntry, digest: bytes
) -> Task:
    """The same of what a backend shows of versions ahead, whose chain has another state in the place of the base.

    `digest`: the hash of that one.
    """
    base, shown = instance.base, signed.entry.value or signed.entry.base
    if (yield from _is_fork(m, enter, instance, signed.entry.device_id, digest, acceptor.name)):
        raise ForkError(
            f"{acceptor.name}: its version {shown.v} does not descend from version "
            f"{base.v} as this device knows it ({base.fingerprint})",
            next_step="compare the fingerprint with another device; do not trust the named backend",
        )


def _is_fork(
    m: Participant, enter: Enter, instance: Instance, device_id: bytes, digest: bytes, names: str,
    other: State | None = None,
) -> Task:  # fmt: skip
    """-> bool: the logs show that another state was decided in the place of the instance's base, as a device says.

    If they do not, it is noted whose word it is, and that one's is not looked into again. What cannot be read bears out
    nothing; so another device that says the same is heard. `names`: of the backends that show its word.
    """
    base = instance.base
    if (device_id, digest) not in m.doubted:
        looks = sum(device == device_id for device, _ in m.doubted)
        if looks < LOOKS_MAX:
            if other is not None:
                m.remember_state(other)
            if (yield from _borne_out(m, enter, instance, digest)):
                return True
        m.doubted.add((device_id, digest))
        m.void_values[device_id, instance.v] = Word(
            f"it stands on another version {base.v} ({base.v}-{digest[:5].hex()}; on {names}) than the one here "
            f"({base.fingerprint}), which the backends do not bear out"
        )
    return False


def _borne_out(m: Participant, enter: Enter, instance: Instance, digest: bytes) -> Task:
    """-> bool: the logs, replayed from a state of this device's chain on, lead to another one."""
    try:
        found: tuple[tuple[int, bytes], tuple[int, bytes]] | None = yield from _parting(m, instance, digest)
        if found is None:
            return False
        low, (v, wanted) = found
        state: State = yield from fetch_state(m, instance, *low, m.keys.epoch)
        while state.v < v <= low[0] + REPLAYED_MAX:
            at: Instance = yield from enter(state, ahead=True)
            at.begin()
            yield Gather({a.name: a.look() for a in at.acceptors.values()}, deadline_s=LOOK_S)
            m.now = yield Now()
            decided = at.decided()
            if decided is None or not at.is_certain(decided):
                return False
            state = decided
    except (DamagedError, ExcludedError, FormatError, NoQuorumError, UpgradeError):
        return False
    return (state.v, state.hash) == (v, wanted)


def _parting(m: Participant, instance: Instance, digest: bytes) -> Task:
    """-> (version, hash) of a state of ours, the newest that both chains are seen to have or at least one from which
    theirs can be replayed; (version, hash) of the oldest of theirs that is seen to differ. None without a way back.

    States of either chain may be gone, where backends were rolled back.
    """
    ours, epoch = instance.base, m.keys.epoch
    low: tuple[int, bytes] | None = None
    high = ours.v, digest
    for _ in range(STEPS_MAX):
        if ours.v == 0:
            break
        back = skip_version(ours.v), ours.skip
        try:
            theirs: State = yield from fetch_state(m, instance, *high, epoch)
        except (DamagedError, NoQuorumError):
            low = low or back
            break
        if ours.prev == theirs.prev:
            low = ours.v - 1, ours.prev
            break
        mine = ours.v - 1, ours.prev
        high = ours.v - 1, theirs.prev
        if ours.skip == theirs.skip:
            low = back
        else:
            mine, high = back, (back[0], theirs.skip)
        try:
            ours = yield from fetch_state(m, instance, *mine, epoch)
        except (DamagedError, NoQuorumError):
            break
    return None if low is None else (low, high)
