"""More broken rules, as in `mutants`: what an insider may not do, and how a new era begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from metasync.consensus import forks, new_era
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.instance import Instance
from metasync.consensus.records import log_replay
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import SignedEntry
from metasync.consensus.records.log_replay import Log
from metasync.consensus.records.state import State
from metasync.keys.device_set import Certificate, DeviceSet
from metasync.keys.keyring import WorkspaceKeys
from metasync.members import admission
from metasync.runtime.effects import Task
from metasync.session import agreement
from metasync.session.write_index import AgreedIndexes
from metasync.sync import skip
from simulation.mutants import mutant, needs, rewritten
from simulation.plan import Plan
from simulation.scenarios import (
    claimed_in_others_names,
    dropped_ahead,
    lost_with_two_values,
    moved_from_nowhere,
    told_of_a_late_lie,
    voted_alone,
)


def strikes(*kinds: str) -> Callable[[Plan], Plan | None]:
    """Plans in which an insider does one of these."""
    return lambda plan: plan if any(strike.kind in kinds for strike in plan.insider) else None


# Words of other histories.

_LOOK: Final = "if (yield from _borne_out(m, enter, instance, digest)):"


@mutant("apart-word", "one device's word that something else was decided is taken for a fork", strikes("apart"))
def _apart_word() -> Iterator[None]:
    with rewritten(forks, "_is_fork", (_LOOK, _LOOK.replace("):", ") or True:"))):
        yield


@mutant("apart-decided", "... is, if a quorum of the logs that were read shows votes for it", told_of_a_late_lie)
def _apart_decided() -> Iterator[None]:
    with rewritten(forks, "_borne_out", ("decided is None or not at.is_certain(decided)", "decided is None")):
        yield


@mutant("apart-void", "... never is", lambda plan: plan if plan.beyond else None)
def _apart_void() -> Iterator[None]:
    def is_fork(m: Any, enter: Any, instance: Any, device_id: bytes, digest: bytes, other: State | None = None) -> Task:
        m.doubted.add((device_id, digest))
        return False
        yield

    with mock.patch.object(forks, "_is_fork", is_fork):
        yield


# What one device says, proposes and writes.


@mutant("claim-word", "what a device says that a backend showed counts without the entry", strikes("claim"))
def _claim_word() -> Iterator[None]:
    opens = (
        "signed = open_claim(m.keys, claim, base.ns_id, base.hash if now else base.prev)",
        "signed = None",
    )
    counts = (
        "said = signed.entry",
        "seen = Seen(claim.acceptor_id, claim.v, claim.idx, sha256(claim.data))\n    "
        "return self.everybody[claim.acceptor_id].note_claim(seen, base.epoch, entry.device_id)",
    )
    with rewritten(AcceptorView, "note_claims", opens, counts):
        yield


@mutant("liar-forges", "evidence is taken without its signature", claimed_in_others_names)
def _liar_forges() -> Iterator[None]:
    with mock.patch.object(SignedEntry, "verifies", return_value=True):
        yield


@mutant("policy-passes", "a value counts though it contradicts the policy", strikes("void"))
def _policy_passes() -> Iterator[None]:
    with mock.patch.object(log_replay, "fault_named", return_value=""):
        yield


@mutant("leap", "one step replaces so many acceptors that an old quorum need not meet a survivor", voted_alone)
def _leap() -> Iterator[None]:
    with (
        mock.patch.object(log_replay, "fault_named", return_value=""),  # which forbids it, too
        rewritten(log_replay, "_fault_of_step", ("len(stay) < old.quorum", "False")),
    ):
        yield


@mutant("moving-word", "a config says what it will of where packs lay before", moved_from_nowhere)
def _moving_word() -> Iterator[None]:
    after = "new.changed != (value.v, base.config)", "new.changed is None or new.changed[0] != value.v"
    before = "if new.prev_config is not None:", "if False:"
    with rewritten(log_replay, "_fault_of_step", after, before):
        yield


@mutant("list-ahead", "a list of what is kept may drop versions to come", dropped_ahead)
def _list_ahead() -> Iterator[None]:
    with mock.patch.object(AgreedIndexes, "_is_ahead", return_value=False):
        yield


@mutant("closed-open", "a log that was closed on a lie counts as one that may vote yet", strikes("close"))
def _closed_open() -> Iterator[None]:
    with mock.patch.object(Instance, "_shut_by_a_lie", return_value=""):
        yield


def _nothing_if_poisoned(self: Log | Blocks) -> Any:
    return {} if self.poison else _ACCEPTS[type(self)](self)


_ACCEPTS: Final[dict[type, Callable[[Any], Any]]] = {
    Log: Log.accepts.fget,  # type: ignore[attr-defined]
    Blocks: Blocks.accepts.fget,  # type: ignore[attr-defined]
}


# Eras.

_FOUND: Final = "return Held(ended, instance.evidence(either=True))"


@mutant(
    "era-adopt", "the highest accepted value found is taken for the old era's decided state", needs("eras", "ended")
)
def _era_adopt() -> Iterator[None]:
    decides = "decided = instance.decided()", "decided = instance.decided() or instance.evidence(either=True)"
    with rewritten(new_era, "held", decides):
        yield


@mutant(
    "era-any-value", "any accepted value that is found is carried, not that of the highest round", lost_with_two_values
)
def _era_any_value() -> Iterator[None]:
    def lowest(instance: Instance) -> State | None:
        found = [vote for a in instance.acceptors.values() for vote in a.log.accepts.items()]
        return min(found, key=lambda vote: vote[0])[1] if found else None

    with (
        mock.patch.object(new_era, "_lowest", lowest, create=True),
        rewritten(new_era, "held", (_FOUND, "return Held(ended, _lowest(instance))")),
    ):
        yield


@mutant("era-drop", "the highest accepted value found is dropped", needs("eras", "ended"))
def _era_drop() -> Iterator[None]:
    with rewritten(new_era, "held", (_FOUND, "return Held(ended, None)")):
        yield


@mutant("era-poison-empty", "a log that holds garbage counts as one that had accepted nothing", needs("ended"))
def _era_poison_empty() -> Iterator[None]:
    def sound(instance: Instance) -> State | None:
        with (
            mock.patch.object(Log, "accepts", property(_nothing_if_poisoned)),
            mock.patch.object(Blocks, "accepts", property(_nothing_if_poisoned)),
        ):
            return instance.evidence(either=True)

    with (
        mock.patch.object(new_era, "_sound", sound, create=True),
        rewritten(new_era, "held", (_FOUND, "return Held(ended, _sound(instance))")),
    ):
        yield


@mutant(
    "era-old-names", "the names of the new era's logs are made with keys that the revoked device has", needs("ended")
)
def _era_old_names() -> Iterator[None]:
    real = WorkspaceKeys.log_name

    def log_name(self: WorkspaceKeys, epoch: int, place: bytes) -> str:
        return real(self, min(epoch for epoch, _ in self.epoch_keys), place)

    with mock.patch.object(WorkspaceKeys, "log_name", log_name):
        yield


@mutant(
    "era-unretired", "a new era begins while the acceptors that are left still vote in the old one",
    needs("eras", "ended"),
)  # fmt: skip
def _era_unretired() -> Iterator[None]:
    def retire(*_: Any) -> Task:
        return
        yield

    with mock.patch.object(new_era, "retire", retire):
        yield


# What is passed over.


@mutant(
    "skip-newest-index", "a skip keeps the newest index, not that of the last good version",
    lambda plan: plan if plan.insider else None,
)  # fmt: skip
def _skip_newest_index() -> Iterator[None]:
    newest = "_bare(s, newest, *s.indexes.of_state(newest))"
    with rewritten(skip, "_tree", ("snapshot.root, indexed", f"snapshot.root, {newest}")):
        yield


# Invitations.


@mutant("invite-again", "who finds an invitation used takes that for its own use of it", needs("guests"))
def _invite_again() -> Iterator[None]:
    with mock.patch.object(agreement, "_is_used_here", return_value=True):
        yield


@mutant("invite-left-open", "a device joins without using its invitation up", needs("guests"))
def _invite_left_open() -> Iterator[None]:
    def joined(devices: DeviceSet, certificate: Certificate, v: int, secret: bytes) -> DeviceSet:
        return devices.with_device(certificate)

    with mock.patch.object(admission, "joined", joined):
        yield
