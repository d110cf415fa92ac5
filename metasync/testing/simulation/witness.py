"""The omniscient view: every log entry as it lands, counted by rules of its own.

It reads what lands on the stores themselves, not what anybody is told. What an acceptor promised and accepted, and what
a majority is, stands here a second time, so that a rule that is wrong in the product does not hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from metasync.consensus.entries import Kind, Round, entry_path, open_entry
from metasync.consensus.genesis import birth_matches, birth_path
from metasync.consensus.states import State
from metasync.errors import FormatError, UpgradeError
from metasync.keys.ring import WorkspaceKeys
from metasync.testing.simulation.network import Store
from metasync.testing.simulation.world import Violation, World


@dataclass
class _Acceptor:
    """One log of one version: promised round, votes, and where it goes on."""

    store: Store
    acceptor_id: bytes
    v: int
    next_idx: int = 0
    promised: tuple[int, bytes] = (-1, b"")
    votes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    closed: bool = False
    rounds: set[tuple[int, bytes]] = field(default_factory=set)


class Witness:
    """`chain`: the decided states, from the genesis on. Raises `Violation` when a version has two values."""

    def __init__(
        self,
        world: World,
        keys: WorkspaceKeys,
        genesis: State,
        acceptors: dict[bytes, tuple[Store, bytes]],
        least: int | None = None,
    ) -> None:
        self.world = world
        self.keys = keys
        self.acceptors = acceptors  # acceptor id -> its store, and the digest of its birth
        self.chain = [genesis]
        self.forked = False
        self.tolerates_forks = False
        self.on_moment: Callable[[int, str, Store], None] = lambda v, moment, store: None
        self._seen: set[tuple[int, str]] = set()
        self._least = least or len(acceptors) // 2 + 1
        self._expected: dict[tuple[str, str], _Acceptor] = {}  # (store, end of a path) -> whose log goes on there
        self._values: dict[bytes, State] = {}
        self._tally: dict[tuple[int, tuple[int, bytes], bytes], set[bytes]] = defaultdict(set)
        self._decided: dict[int, bytes] = {}
        self._open(1)

    @property
    def newest(self) -> State:
        return self.chain[-1]

    def _open(self, v: int) -> None:
        """Version v may be worked on: the one before it is decided."""
        for acceptor_id, (store, _) in self.acceptors.items():
            self._expect(_Acceptor(store, acceptor_id, v))

    def _expect(self, log: _Acceptor) -> None:
        base = self.chain[log.v - 1]
        path = entry_path(self.keys, base.epoch, base.era, log.acceptor_id, log.v, log.next_idx)
        self._expected[log.store.name, path] = log

    def landed(self, store: Store, path: str, data: bytes) -> None:
        """An object was stored."""
        inside = path.partition("/")[2]  # below the workspace's folder
        log = self._expected.pop((store.name, inside), None)
        if log is None:
            return
        self._feed(log, data)
        log.next_idx += 1
        self._expect(log)

    def _born(self, log: _Acceptor) -> bool:
        digest = self.acceptors[log.acceptor_id][1]
        end = birth_path(log.acceptor_id)
        return any(birth_matches(d, log.acceptor_id, digest) for p, d in log.store.objects.items() if p.endswith(end))

    def _feed(self, log: _Acceptor, data: bytes) -> None:
        base = self.chain[log.v - 1]
        try:
            entry = open_entry(
                self.keys, data, ns_id=base.ns_id, era=base.era, epoch=base.epoch,
                acceptor_id=log.acceptor_id, v=log.v, idx=log.next_idx,
            ).entry  # fmt: skip
        except (FormatError, UpgradeError) as e:
            raise Violation(f"a client wrote an entry that does not open: {log.store.name} v{log.v}: {e}") from e
        if entry.base != base:
            if self.forked:
                return
            raise Violation(f"an entry of version {log.v} is on top of another state than the decided one")
        if log.closed or not self._born(log):
            return
        rnd = (entry.round.n, entry.round.incarnation)
        if entry.kind is Kind.DECIDED:
            log.closed = True
        elif entry.kind is Kind.PREPARE:
            if rnd > log.promised:
                log.promised = rnd
                self._rival(log, rnd)
                self._moment(log, "promise")
        elif entry.value is not None:
            self._vote(log, rnd, entry.round, entry.value, base)

    def _rival(self, log: _Acceptor, rnd: tuple[int, bytes]) -> None:
        if any(r[1] != rnd[1] for r in log.rounds):
            self.world.count("rivals in one version")
        log.rounds.add(rnd)

    def _vote(self, log: _Acceptor, rnd: tuple[int, bytes], named: Round, value: State, base: State) -> None:
        if rnd < log.promised or log.votes.get(rnd, value.hash) != value.hash:
            return
        if named.n == 0 and named.incarnation != base.writer:
            return
        log.promised = rnd
        log.votes[rnd] = value.hash
        self._rival(log, rnd)
        self._values[value.hash] = value
        tally = self._tally[log.v, rnd, value.hash]
        tally.add(log.acceptor_id)
        self._moment(log, "vote")
        if len(tally) >= self._least:
            self._decide(log.v, rnd, value)
            self._moment(log, "decision")

    def _moment(self, log: _Acceptor, moment: str) -> None:
        """Tells of the first promise, the first vote and the decision of a version."""
        if (log.v, moment) not in self._seen:
            self._seen.add((log.v, moment))
            self.on_moment(log.v, moment, log.store)

    def _decide(self, v: int, rnd: tuple[int, bytes], value: State) -> None:
        known = self._decided.get(v)
        if known is None:
            self._decided[v] = value.hash
            self.chain.append(value)
            self.world.trace("decided", v, value.hash.hex()[:16])
            self.world.count("owner round" if rnd[0] == 0 else "decided in a prepared round")
            if rnd[1] != value.writer:
                self.world.count("value helped by another")
            self._open(v + 1)
        elif known != value.hash:
            self.forked = True
            self.world.count("fork")
            if not self.tolerates_forks:
                raise Violation(f"two values were decided for version {v}")
