"""What this process knows of one instance: the logs of all acceptors for one version, and what follows from them.

Pure bookkeeping: which value is decided, which is the highest accepted one, who promised what. Votes count only from
acceptors whose birth object was seen to be the right one during the operation in progress (consensus.md, rule 1.9: a
root that was wiped may accept what it had promised not to), and only if their log was read at most DELTA_S ago: who
slept longer must read again, and then meets the fence that a change of the config left behind (`reconfig`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from metasync.config import Config
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Round
from metasync.consensus.records.log_replay import NEVER, Log
from metasync.consensus.records.state import State
from metasync.errors import ForkError
from metasync.keys.device_set import DeviceSet
from metasync.keys.keyring import WorkspaceKeys

DELTA_S: Final = (
    300.0  # on a clock that counts suspend; a removed backend is wiped much later than this after the fence
)


class Instance:
    """Instance v = base.v + 1, on the config and device set that `base` names."""

    def __init__(self, keys: WorkspaceKeys, config: Config, devices: DeviceSet, base: State) -> None:
        self.config = config
        self.devices = devices
        self.base = base
        self.v = base.v + 1
        self.names = {acceptor.acceptor_id: backend.name for backend, acceptor in config.acceptors}
        self.births = {acceptor.acceptor_id: acceptor.birth for _, acceptor in config.acceptors}
        self._keys = keys
        self._forms = {acceptor.acceptor_id: acceptor.form for _, acceptor in config.acceptors}
        self.logs: dict[bytes, Log | Blocks] = {a: self._empty(a) for a in self.names}
        self.quorum = config.quorum
        self.born: set[bytes] = set()  # birth seen right in this operation
        self.ended: set[bytes] = set()  # log read to its end in this operation
        self.vouched: set[bytes] = set()  # birth seen right beside its promise
        self.beyond: set[bytes] = set()  # seen to hold nothing of the version after this one, in this operation
        self.heard: set[bytes] = set()  # birth seen right when asked last in this operation: it counts for no vote
        self.floored: dict[bytes, bytes] = {}  # acceptors whose floor is above v: their logs may be deleted
        self.now = 0.0  # the latest time anybody told
        self.read_at: dict[bytes, float] = {}  # when each log was last read onwards, or written

    def _empty(self, acceptor_id: bytes) -> Log | Blocks:
        kind = Blocks if self._forms[acceptor_id] == "block" else Log
        return kind(self._keys, self.devices, self.base, acceptor_id)

    def log(self, acceptor_id: bytes) -> Log:
        """The log of an acceptor in log form."""
        log = self.logs[acceptor_id]
        assert isinstance(log, Log)
        return log

    def blocks(self, acceptor_id: bytes) -> Blocks:
        """The blocks of an acceptor in block form."""
        blocks = self.logs[acceptor_id]
        assert isinstance(blocks, Blocks)
        return blocks

    @property
    def all_logs(self) -> bool:
        """True when no acceptor has the block form: then an absent entry 0 shows that nothing is there at all."""
        return all(isinstance(log, Log) for log in self.logs.values())

    def begin(self) -> None:
        """Starts an operation: births and ends of logs seen before count no longer."""
        self.born.clear()
        self.ended.clear()
        self.beyond.clear()
        self.heard.clear()
        self.vouched.clear()

    def forget(self, acceptor_id: bytes) -> None:
        """Drops all that an acceptor was seen to hold: its root is not the one that the config means.

        It may come back as it was before, and must then not be thought to hold what it took in between.
        """
        self.logs[acceptor_id] = self._empty(acceptor_id)
        for noted in (self.born, self.heard, self.ended, self.vouched, self.beyond):
            noted.discard(acceptor_id)

    def decided(self, *, births: bool = True) -> State | None:
        """The value decided for v as far as the logs that were read show, or None.

        `births=False` counts every log: a reason to look, not a result. `ForkError` when two values are decided.
        """
        votes: Counter[tuple[Round, bytes]] = Counter()
        closed: Counter[bytes] = Counter()
        values: dict[bytes, State] = {}
        found: dict[bytes, State] = {}
        for acceptor_id, log in self.logs.items():
            if not log.usable or (births and (acceptor_id not in self.born or not self.is_fresh(acceptor_id))):
                continue
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

    def evidence(self) -> State | None:
        """The value of the highest accepted round in any log seen: the one that may already be decided.

        `ForkError` when two values were accepted in that round: an incarnation was duplicated.
        """
        top = max((log.accepted[0] for log in self.logs.values() if log.accepted), default=None)
        if top is None:  # whoever closed a log proposed as good as any other, if nothing can have been decided else
            closed = {log.closed for log in self.logs.values() if log.closed is not None}
            return closed.pop() if len(closed) == 1 else None
        values = {log.accepted[1] for log in self.logs.values() if log.accepted and log.accepted[0] == top}
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
            log.usable and (log.shut or log.grants(rnd)) and a in self.vouched and self.is_fresh(a)
            for a, log in self.logs.items()
        )

    def note_read(self, acceptor_id: bytes, at: float) -> None:
        """A log was read onwards, or written, by a request that was sent at this time."""
        self.read_at[acceptor_id] = at
        self.now = max(self.now, at)

    def is_fresh(self, acceptor_id: bytes) -> bool:
        """Whether what its log shows may be counted; see DELTA_S."""
        return self.now - self.read_at.get(acceptor_id, self.now) <= DELTA_S

    def _is_fenced(self, rnd: Round, key: bytes, births: bool) -> bool:
        """Whether a quorum has a value accepted in this round or its log closed with it, and nobody another one later.

        One DECIDED alone proves nothing: a device that is about to be revoked may have signed it. But a closed log
        accepts nothing else either. So it counts as a vote for its value where the logs that are counted with it show
        that no other one can have been decided: that would stand on one of them, in a higher round.
        """
        held = 0
        for a, log in self.logs.items():
            if not log.usable or (births and (a not in self.born or not self.is_fresh(a))):
                continue
            later = log.accepted is not None and log.accepted[0] > rnd and log.accepted[1].hash != key
            if later or (log.closed is not None and log.closed.hash != key):
                return False
            voted = rnd in log.votes and log.votes[rnd].hash == key
            held += voted or log.shut
        return held >= self.quorum

    def top_round(self) -> Round:
        """The highest round promised anywhere."""
        return max((log.promised for log in self.logs.values()), default=NEVER)

    def owned(self, except_for: bytes) -> bool:
        """True when some other incarnation's round is promised by a quorum: let it finish."""
        rounds = Counter(log.promised for log in self.logs.values() if log.usable)
        return any(n >= self.quorum and rnd.incarnation != except_for for rnd, n in rounds.items() if rnd != NEVER)

    def has_votes(self) -> bool:
        """True when any acceptor was seen to have accepted a value."""
        return any(log.votes for log in self.logs.values())

    def progress(self) -> int:
        """How many entries were read; grows while somebody works on this instance."""
        return sum(log.next_idx for log in self.logs.values())

    def quiet(self) -> bool:
        """True when a quorum's logs, read to their ends, hold no vote: nothing was decided when the read began."""
        silent = sum(log.usable and a in self.born and a in self.ended and log.silent for a, log in self.logs.items())
        return silent >= self.quorum

    def is_last(self) -> bool:
        """True when a quorum of the same acceptors holds nothing of the version after this one either.

        What is decided for that one would stand on a quorum. It has these acceptors, and names made with the same keys,
        only where the value that is decided here changes neither.
        """
        value = self.decided()
        same = value is not None and (value.config, value.epoch) == (self.base.config, self.base.epoch)
        return same and len(self.beyond & self.born) >= self.quorum

    def read(self) -> int:
        """How many acceptors were read to the end of their logs in this operation, with the right birth."""
        return len(self.born & self.ended)

    def poisoned(self) -> dict[str, str]:
        """Acceptors that are out for this version: {backend name: why}."""
        return {self.names[a]: log.poison for a, log in self.logs.items() if log.poison}

    def check_fork(self) -> None:
        """Raises `ForkError` naming the backends that hold entries on top of another state than our base."""
        forked = [self.names[a] for a, log in self.logs.items() if log.fork]
        if forked:
            raise ForkError(
                f"{', '.join(sorted(forked))}: version {self.v} stands on another state than version "
                f"{self.base.v} as this device knows it ({self.base.fingerprint})",
                next_step="compare the fingerprint with another device; do not trust the named backends",
            )
