"""What this process knows of one instance: every acceptor's answers for one version, and what follows from them.

Pure bookkeeping: which value is decided, which is the highest accepted one, who promised what. Votes count only from
acceptors whose birth object was seen to be the right one during the operation in progress (consensus.md, rule 1.9: a
root that was wiped may accept what it had promised not to), and only if their log was read at most DELTA_S ago: who
slept longer must read again, and then meets the fence that a change of the config left behind (`reconfigure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from metasync.codec import UPGRADE
from metasync.config import Config, Form
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.participant import Participant
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Round
from metasync.consensus.records.log_replay import NEVER, Log, ValueRules
from metasync.consensus.records.state import State
from metasync.errors import ForkError, UpgradeError
from metasync.keys.device_set import DeviceSet

_FORMS: Final[dict[Form, type[AcceptorView]]] = {"log": LogAcceptor, "block": BlockAcceptor}


class Instance:
    """Instance v = base.v + 1, on the config and device set that `base` names. `acceptors`: its acceptors by id."""

    def __init__(self, m: Participant, config: Config, devices: DeviceSet, base: State) -> None:
        self.config = config
        self.devices = devices
        self.base = base
        self.v = base.v + 1
        self.rules = ValueRules(m.keys, config, devices, base)
        views = self.acceptors = dict[bytes, AcceptorView]()
        for backend, acceptor in config.acceptors:
            form = _FORMS[acceptor.form]
            views[acceptor.acceptor_id] = form(m, self.rules, backend.name, acceptor, views)
        self.quorum = config.quorum
        self.prepared = NEVER  # a round of ours that a quorum promised ahead, and that was not used yet

    @property
    def names(self) -> list[str]:
        """The agreed names of the backends that vote."""
        return [a.name for a in self.acceptors.values()]

    @property
    def all_logs(self) -> bool:
        """True when no acceptor has the block form: then an absent entry 0 shows that nothing is there at all."""
        return all(a.form == "log" for a in self.acceptors.values())

    def begin(self) -> None:
        """Starts an operation: births and ends of logs seen before count no longer."""
        for acceptor in self.acceptors.values():
            acceptor.begin()

    @property
    def heard(self) -> set[bytes]:
        """Acceptors whose births were seen right when they were asked last in this operation."""
        return {a for a, view in self.acceptors.items() if view.heard}

    def hear(self, acceptor_ids: Collection[bytes]) -> None:
        """The births of these were seen right in this operation, on the way to this version."""
        for a, view in self.acceptors.items():
            view.heard = view.heard or a in acceptor_ids

    def take_prepared(self) -> Round:
        """The round that was prepared ahead, once; `NEVER` when there is none."""
        prepared, self.prepared = self.prepared, NEVER
        return prepared

    def decided(self, *, births: bool = True) -> State | None:
        """The value decided for v as far as the logs that were read show, or None.

        `births=False` counts every log: a reason to look, not a result. `ForkError` when two values are decided.
        """
        votes: Counter[tuple[Round, bytes]] = Counter()
        closed: Counter[bytes] = Counter()
        values: dict[bytes, State] = {}
        found: dict[bytes, State] = {}
        for log in self._counted(births):
            if log.closed is not None:
                values[log.closed.hash] = log.closed
                closed[log.closed.hash] += 1
            for rnd, value in log.votes.items():
                values[value.hash] = value
                votes[rnd, value.hash] += log.closed in (None, value)  # behind a fence no other vote is left
        for (rnd, key), count in votes.items():
            if count >= self.quorum or (closed[key] and self._is_fenced(rnd, key, births)):
                found[key] = values[key]
        found.update({key: values[key] for key, count in closed.items() if count >= self.quorum})
        if len(found) > 1:
            raise ForkError(f"two values are decided for version {self.v}: backends show contradicting histories")
        return next(iter(found.values()), None)

    def _counted(self, births: bool) -> list[Log | Blocks]:
        """The logs whose votes count; all usable ones where `births` do not matter."""
        return [a.log for a in self.acceptors.values() if a.log.usable and (not births or a.counts())]

    def evidence(self) -> State | None:
        """The value of the highest accepted round in any log seen: the one that may already be decided.

        `ForkError` when two values were accepted in that round: an incarnation was duplicated.
        """
        logs = [a.log for a in self.acceptors.values()]
        top = max((log.accepted[0] for log in logs if log.accepted), default=None)
        if top is None:  # whoever closed a log proposed as good as any other, if nothing can have been decided else
            closed = {log.closed for log in logs if log.closed is not None}
            return closed.pop() if len(closed) == 1 else None
        values = {log.accepted[1] for log in logs if log.accepted and log.accepted[0] == top}
        if len(values) > 1:
            raise ForkError(
                f"two values were proposed in one round of version {self.v}: two processes run as one",
                next_step="a memory snapshot of this or another device was resumed twice; stop one of the two",
            )
        return values.pop()

    def promises(self, rnd: Round) -> int:
        """How many acceptors promised `rnd`, nothing higher since, and were not emptied before they did.

        One whose log is closed takes nothing any more, which is as good as a promise.
        """
        return sum(
            a.log.usable and (a.log.shut or a.log.grants(rnd)) and a.vouched and a.is_fresh()
            for a in self.acceptors.values()
        )

    def _is_fenced(self, rnd: Round, key: bytes, births: bool) -> bool:
        """Whether a quorum has a value accepted in this round or its log closed with it, and nobody another one later.

        One DECIDED alone proves nothing: a device that is about to be revoked may have signed it. But a closed log
        accepts nothing else either. So it counts as a vote for its value where the logs that are counted with it show
        that no other one can have been decided: that would stand on one of them, in a higher round.
        """
        held = 0
        for log in self._counted(births):
            later = log.accepted is not None and log.accepted[0] > rnd and log.accepted[1].hash != key
            if later or (log.closed is not None and log.closed.hash != key):
                return False
            voted = rnd in log.votes and log.votes[rnd].hash == key
            held += voted or log.shut
        return held >= self.quorum

    def top_round(self) -> Round:
        """The highest round promised anywhere."""
        return max((a.log.promised for a in self.acceptors.values()), default=NEVER)

    def owned(self, except_for: bytes) -> bool:
        """True when some other incarnation's round is promised by a quorum: let it finish."""
        rounds = Counter(a.log.promised for a in self.acceptors.values() if a.log.usable)
        return any(n >= self.quorum and rnd.incarnation != except_for for rnd, n in rounds.items() if rnd != NEVER)

    def has_votes(self) -> bool:
        """True when any acceptor was seen to have accepted a value."""
        return any(a.log.votes for a in self.acceptors.values())

    def progress(self) -> int:
        """How many entries were read; grows while somebody works on this instance."""
        return sum(a.log.next_idx for a in self.acceptors.values())

    def quiet(self) -> bool:
        """True when a quorum's logs, read to their ends, hold no vote: nothing was decided when the read began."""
        return sum(a.log.usable and a.born and a.ended and a.log.silent for a in self.acceptors.values()) >= self.quorum

    def is_last(self) -> bool:
        """True when a quorum of the same acceptors holds nothing of the version after this one either.

        What is decided for that one would stand on a quorum. It has these acceptors, and names made with the same keys,
        only where the value that is decided here changes neither.
        """
        value = self.decided()
        same = value is not None and (value.config, value.epoch) == (self.base.config, self.base.epoch)
        return same and sum(a.beyond and a.born for a in self.acceptors.values()) >= self.quorum

    def read(self) -> int:
        """How many acceptors were read to the end of their logs in this operation, with the right birth."""
        return sum(a.born and a.ended for a in self.acceptors.values())

    def is_audited(self) -> bool:
        """True when every acceptor still showed what it was seen to hold, by whomever."""
        return not any(a.memory.unaudited for a in self.acceptors.values())

    def is_behind_floor(self) -> bool:
        """True when an acceptor has a floor above v: its logs may be deleted."""
        return any(a.floor is not None for a in self.acceptors.values())

    def check_fork(self) -> None:
        """Raises `ForkError` naming the backends that hold entries on top of another state than our base."""
        forked = [a.name for a in self.acceptors.values() if a.log.fork]
        if forked:
            raise ForkError(
                f"{', '.join(sorted(forked))}: version {self.v} stands on another state than version "
                f"{self.base.v} as this device knows it ({self.base.fingerprint})",
                next_step="compare the fingerprint with another device; do not trust the named backends",
            )

    def check_upgrade(self) -> None:
        """Raises `UpgradeError` naming the backends that hold entries of a newer format."""
        newer = [a.name for a in self.acceptors.values() if a.log.newer]
        if newer:
            raise UpgradeError(f"{', '.join(sorted(newer))}: written by a newer version", next_step=UPGRADE)

    def check_rollback(self) -> None:
        """Raises `ForkError` when so many acceptors show an older past than remembered that no quorum is left."""
        lost = {a.name: a.memory.rolled_back for a in self.acceptors.values() if a.memory.rolled_back}
        if len(lost) > len(self.acceptors) - self.quorum:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(lost.items()))
            raise ForkError(
                f"backends show an older past than this device has seen ({reasons})",
                next_step="they were restored from a backup, or lie: compare fingerprints with another device",
            )
