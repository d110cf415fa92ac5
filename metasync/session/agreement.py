"""This device's seat in the agreement: what is agreed, as states, asked for, remembered, and proposed anew.

It knows of hashes, keys, configs and devices, and of no tree, index or pack that a state names: a command that finds
nothing to do needs no more than this. `session` has the rest.

The states that lead to the `skip` of the next version, kept here so that no backend need be asked for them.

A state names the one before it and, by `skip`, one further back (`consensus.records.state`). The next version's is
found by going back along `skip` from the newest: `ancestry` fetches what it lacks, one answer after the other, before a
push can be agreed. These states, one for each bit that is set in the version, have 400 bytes each. Nothing is believed
because it stands here: a state is looked up by its hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from metasync.config import Config, decode_config
from metasync.consensus import (
    DEADLINE_S,
    JOURNAL_KEY,
    STATE_BYTES,
    Change,
    Decided,
    Group,
    Journal,
    State,
    checked_memory,
    decode_state,
    skip_version,
)
from metasync.consensus.truncation import KEEP as LOGS_KEPT
from metasync.consensus.truncation import Progress, decode_progress
from metasync.errors import (
    BackendError,
    DamagedError,
    ExcludedError,
    MetaSyncError,
    NoQuorumError,
    UnreachableError,
    WorkspaceError,
)
from metasync.events import Listener, Notice
from metasync.keys.device_set import Certificate, DeviceIdentity, DeviceSet, decode_device_set
from metasync.keys.keyring import WorkspaceKeys
from metasync.local import state_keys
from metasync.local.state import LocalDb
from metasync.local.state_keys import CLONE_ANEW, KEPT_KEY, local_value
from metasync.runtime.effects import Gather, Sleep, Task, Work
from metasync.session import eras, evidence

if TYPE_CHECKING:
    from metasync.runtime.tasks import Runtime
    from metasync.translators._base import Chain
    from metasync.worktree.tree import WorkTree


def extended(line: Sequence[State], states: Sequence[State]) -> list[State]:
    """The line with these states, the newest last: what is not on the way back from that one is dropped.

    The newest may have a lower version than others: a workspace that was restarted goes on from an earlier one.
    """
    held = {state.v: state for state in [*line, *states]}
    wanted, v = [], states[-1].v
    while v:
        wanted.append(v)
        v = skip_version(v)
    return [held[v] for v in reversed(wanted) if v in held]


def _decode_line(line: bytes) -> list[State]:
    return [decode_state(line[at : at + STATE_BYTES]) for at in range(0, len(line), STATE_BYTES)]


LINE_KEY: Final = state_keys.LINE_KEY.holding(lambda line: b"".join(state.encode() for state in line), _decode_line)
BASE_KEY: Final = state_keys.BASE_KEY.holding(State.encode, decode_state)
NEWEST_KEY: Final = state_keys.NEWEST_KEY.holding(State.encode, decode_state)
PARTS_KEY: Final = state_keys.PARTS_KEY.holding(State.encode, decode_state)
MEMORY_KEY: Final = state_keys.MEMORY_KEY.holding(bytes, checked_memory)
FLOORS_KEY: Final = state_keys.FLOORS_KEY.holding(Progress.encode, decode_progress)
LOOK_S: Final = 5.0  # for a look at what nobody waits for
HEED_S: Final = 0.02  # between looks at whether there is news
AGREED_MARK: Final = b"agreed"  # cached under the hash of a content that the tree of a decided version holds
META_KIND: Final = 100  # kinds of the local cache beyond `ObjectKind`: meta objects by hash

T = TypeVar("T")

Follow = Callable[[bytes, Config, Config | None], tuple[dict[bytes, str], dict[bytes, str]]]
"""Is told the hash, the newest agreed config and the one whose mapping is still read. -> `names`, `former`."""


@dataclass
class Seat:
    """What an open workspace is agreed to be, as states. `keep_keys` saves new keys."""

    name: str
    tree: WorkTree
    db: LocalDb
    runtime: Runtime
    group: Group
    keys: WorkspaceKeys
    device: DeviceIdentity
    certificate: Certificate
    config: Config
    chain_of: Callable[[tuple[str, ...]], Chain]
    names: dict[bytes, str]
    wall_ns: Callable[[], int]
    entropy: Callable[[int], bytes]
    listener: Listener
    keep_keys: Callable[[WorkspaceKeys], None] = field(repr=False)
    down: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)  # backends whose ballast went in this command
    tried: set[str] = field(default_factory=set)  # and those where it was tried to put it back
    previous: Config | None = None  # whose mapping is still read
    former: dict[bytes, str] = field(default_factory=dict)  # ways to backends that are in `previous` alone
    follow: Follow | None = None  # takes another config over into the local state
    others_wait: Callable[[], bool] = lambda: False  # whether another operation of this folder waits for its lock
    out: dict[str, UnreachableError] = field(default_factory=dict)  # backends that are not what they were
    config_hash: bytes = b""  # of `config`
    recalled: bool = False  # whether the agreement has been told of the states that are kept here

    def follow_keys(self, state: State) -> None:
        """Takes over the keys of the epoch that a decided state is in, once and for all (architecture.md, D11).

        Kept before the state is: a crash between leaves keys that no state asks for yet. `ExcludedError`.
        """
        if state.epoch > self.group.participant.keys.epoch:
            self.runtime.run(self.group.open_epoch(state))
        keys = self.group.participant.keys
        if keys != self.keys:
            self.take_keys(keys)
        while self.group.unfenced:  # whoever changed them may have died before it was done
            base, decided = self.group.unfenced.pop()
            with contextlib.suppress(BackendError, NoQuorumError, ExcludedError):
                self.runtime.run(self.group.fence(base, decided, deadline_s=LOOK_S))

    def take_keys(self, keys: WorkspaceKeys) -> None:
        """From now on works with these keys."""
        self.keep_keys(keys)
        self.keys = self.group.participant.keys = keys
        self._outdate("form", "transfer")

    def _outdate(self, *names: str) -> None:
        """For what is built from the config or the keys, which have changed: it is to be built anew."""

    def _leave_out(self, name: str, why: UnreachableError) -> None:
        """No pack goes to this backend any more, and none is read from it."""
        self.out.setdefault(name, why)

    @staticmethod
    def stored_state(db: LocalDb) -> State:
        """The state that a folder is at, from its local state."""
        return db.need(BASE_KEY)

    @staticmethod
    def stored_devices(db: LocalDb, state: State, ns_id: bytes) -> DeviceSet:
        """The device set that a stored state names."""
        data = db.get_object(state.devices)
        if data is None:
            why = "it does not hold the device set of the version this folder is at"
            raise WorkspaceError(f"the local state in .metasync is damaged: {why}", next_step=CLONE_ANEW)
        return local_value(lambda d: decode_device_set(d, ns_id, known=True), data)

    def base_state(self) -> State:
        """The state this folder is at."""
        return self.stored_state(self.db)

    @staticmethod
    def stored_newest(db: LocalDb) -> State:
        """The newest state that a folder's device has seen decided; its config is the one in the local state."""
        return db.get(NEWEST_KEY) or db.need(BASE_KEY)

    def newest_state(self) -> State:
        """The newest state this device has seen decided."""
        return self.stored_newest(self.db)

    @contextlib.contextmanager
    def looking(
        self, *, deadline_s: float = DEADLINE_S, on_news: Callable[[], object] | None = None
    ) -> Iterator[Callable[[], State]]:
        """Asks for the newest decided state beside what the caller does; `told` takes what it came to.

        Until then, or the end of the block, nothing else may be asked of logs. `on_news` is called in a worker as soon
        as there is a sign of a newer state, which takes another round trip or two to be known: time to load what it
        will need.
        """
        task = self.group.get_recent(self.newest_state(), deadline_s=deadline_s)
        with self.runtime.beside(task if on_news is None else self._heeding(task, on_news)) as look:
            yield look

    def _heeding(self, look: Task, on_news: Callable[[], object]) -> Task:
        def heed() -> Task:
            while not self.group.hears_news:
                yield Sleep(HEED_S)
            yield Work(on_news)

        results = yield Gather({"look": look, "news": heed()}, lambda got: "look" in got)
        return results["look"]

    def told(self, look: Callable[[], State]) -> State:
        """The newest decided state, by a quorum; remembered. `NoQuorumError`, `ForkError`."""
        known = self.newest_state()
        try:
            state = look()
        except NoQuorumError:
            reached = self.group.reached  # maybe under a config with backends that this device has no way to yet
            if reached is not None and (reached.era, reached.v) > (known.era, known.v):
                with contextlib.suppress(MetaSyncError):
                    self.remember(reached)
            raise
        finally:
            self.note_standings()
        self.remember(state)
        return state

    def ask_newest(self, *, deadline_s: float = DEADLINE_S) -> State:
        """The same, asked for now."""
        with self.looking(deadline_s=deadline_s) as look:
            return self.told(look)

    def remember(self, state: State) -> None:
        """Keeps a decided state and each acceptor's last entry, against rollback (consensus.md, rule 1.10)."""
        self.follow_keys(state)
        known = self.newest_state()
        mine = self.config_hash or known.config
        newer = (state.era, state.v) >= (known.era, known.v)
        strange = state.config != mine or self._lacks_previous()
        configs = self._configs_of(state) if newer and strange else None
        with self.db.transaction():
            if newer:
                self.db.set(NEWEST_KEY, state)
                line = self.db.get(LINE_KEY)
                if state.hash != known.hash or line is None:
                    self.db.set(LINE_KEY, extended(line or (), (known, state)))
            told = eras.cross(self, known, state)
            self.db.set(MEMORY_KEY, self.group.memory)
            if configs is not None and self.follow is not None:
                self.names, self.former = self.follow(state.config, *configs)
        if configs is not None:
            self.config, self.previous = configs
            self.config_hash = state.config
            self._outdate("transfer")
        for text in told:
            self.listener(Notice(text, warning=True))

    def _lacks_previous(self) -> bool:
        """Whether the mapping before is read still and not known here: in a new clone, or where it could not be had."""
        return self.previous is None and self.config.prev_config is not None

    def _configs_of(self, state: State) -> tuple[Config, Config | None]:
        """The config that a decided state names, and the one whose mapping it lets be read."""
        config = decode_config(self._cached([(state.config, self.group.get_const(state.config))])[0])
        previous = None
        if (name := config.prev_config) is not None:
            with contextlib.suppress(MetaSyncError):  # then what was not moved cannot be found now, and all else can
                previous = decode_config(self._cached([(name, self.group.get_const(name))])[0])
        return config, previous

    def note_standings(self) -> None:
        """Backends that are not what they were hold nothing back: no pack goes to them, none is read from them."""
        evidence.note(self.db, self.group.evidence, self.wall_ns())
        eras.note_retired(self)
        for name, standing in self.group.standings.items():
            if standing.kind in ("ok", "unknown"):
                continue
            self.down.setdefault(name, standing.reason or standing.kind)
            if standing.kind in ("replaced", "rolled back"):
                self._leave_out(name, UnreachableError(f"{standing.kind}: {standing.reason}"))

    def _cached(self, wanted: Sequence[tuple[bytes, Task]]) -> list[bytes]:
        """Objects beside the logs, by hash: from the local cache, else by their tasks, all at once."""
        have = self.db.get_objects([digest for digest, _ in wanted])
        missing = {digest.hex(): task for digest, task in wanted if digest not in have}
        for digest, task in wanted:
            if digest in have:
                task.close()
        if missing:
            got: dict[str, bytes] = self.runtime.run(together(missing))
            new = {bytes.fromhex(digest): data for digest, data in got.items()}
            self.db.put_objects((digest, META_KIND, data) for digest, data in new.items())
            have.update(new)
        return [have[digest] for digest, _ in wanted]

    def put_const(self, base: State, data: bytes) -> bytes:
        """Stores a config or device set on enough acceptors; returns its hash."""
        digest: bytes = self.runtime.run(self.group.put_const(base, data))
        self.db.put_objects([(digest, META_KIND, data)])
        return digest

    @contextlib.contextmanager
    def preparing(self, base: State) -> Iterator[None]:
        """Begins to agree on the version after `base` while the last of a push is stored. `propose` goes on."""
        self._recall()
        done = False
        prepared = self.runtime.start(self.group.prepare(base, hurry=lambda: done))
        try:
            yield
        finally:
            done = True
            prepared.exception()  # waits: one task at a time looks at logs. What failed, `propose` meets again

    def proposing(self, base: State, change: Change) -> Task:
        """The task of `propose`, for who waits for it elsewhere, and then remembers what was decided."""
        self._recall()
        return self.group.propose(base, lambda: change, op_id=change.op_id)

    def _recall(self) -> None:
        if not self.recalled:
            line = self.db.get(LINE_KEY)
            self.group.recall(line or ())
            self.recalled = True

    def propose(self, base: State, change: Change) -> Decided:
        """Has the version after `base` agreed. The journal stays until the caller has recorded the outcome.

        A push that never learned its end may be what is agreed in the place of `change`: then the folder is at that.
        """
        journal = self.db.get(JOURNAL_KEY)
        if journal is not None and journal.v <= base.v and journal.op_id != change.op_id:
            self.settle_journal(base)
        try:
            decided: Decided = self.runtime.run(self.proposing(base, change))
        finally:
            self.note_standings()
        self.remember(decided.state)
        won = journal is not None and not decided.mine and journal.op_id == decided.state.op_id
        if won and journal is not None and journal.base.hash == self.base_state().hash:
            self.adopt(decided.state)
        return decided

    def settle_journal(self, latest: State | None = None) -> int | None:
        """The version that an interrupted push was agreed as, if it was; the folder is then at that version.

        `latest`: the newest state, where it was asked for already.
        """
        journal = self.db.get(JOURNAL_KEY)
        if journal is None:
            return None
        latest = latest or self.ask_newest()
        if latest.v < journal.v and latest.era == journal.base.era:
            return None  # still open: whoever proposes that version next, this push for one, finishes it
        state = self.agreed_as(journal, latest)
        if state is not None and state.epoch != journal.base.epoch:
            self.group.unfenced.append((journal.base, state))
            self.follow_keys(latest)
        if state is not None and journal.base.hash == self.base_state().hash:
            self.adopt(state)
        else:
            self.db.set(JOURNAL_KEY, None)
        return journal.v if state is not None and state.master != journal.base.master else None

    def agreed_as(self, journal: Journal, latest: State) -> State | None:
        """The state that a journalled proposal was decided as; None if it was not, or `latest` is not so far yet."""
        try:
            agreed: bool | None = self.runtime.run(self.group.find_op(latest, journal))
        except DamagedError:  # so long ago that no backend of that time is left: what differs here is merged as any is
            return None
        return self.runtime.run(self.group.state_at(latest, journal.v)) if agreed else None

    def adopt(self, state: State) -> None:
        """Takes an own push that had been agreed unnoticed as what the folder is at.

        The agreed tree is what stood here then: what changed since is a change on top of it, not a conflict with it.
        """
        self.devices_of(state)  # a folder opens with the device set of what it is at, which others may have followed
        with self.db.transaction():
            if state.master != self.base_state().master:  # else it was a change of keys or devices, and holds no files
                self.drop_kept()
            self.db.set(BASE_KEY, state)
            self.db.set(JOURNAL_KEY, None)

    def drop_kept(self) -> None:
        """Forgets what merges had staged: an agreed version holds it now."""
        staged = [i for i, _, _ in self.db.staged()]
        self.note_agreed(staged)  # small texts: their contents are their blobs
        self.db.set(KEPT_KEY, None)
        self.db.clear_staged(staged)

    def note_agreed(self, contents: Iterable[bytes]) -> None:
        """Notes contents that a decided version holds: replaced files with them may go (architecture.md, D8)."""
        self.db.put_objects((content, META_KIND, AGREED_MARK) for content in contents)

    def config_of(self, state: State) -> Config:
        """The config that a decided state names."""
        return decode_config(self._cached([(state.config, self.group.get_const(state.config))])[0])

    def devices_of(self, state: State) -> DeviceSet:
        """The device set that a decided state names."""
        return decode_device_set(
            self._cached([(state.devices, self.group.get_const(state.devices))])[0], self.keys.ns_id
        )

    @contextlib.contextmanager
    def telling(self, base: State, state: State) -> Iterator[None]:
        """Tells the others of a commit, as far as backends take it, beside what the caller does: this device's head,
        and every now and then a hint."""
        backends = sorted(self.names.values())
        head = self.group.write_head(state, head=state.master, prev=base.master, backends=backends)
        with self.runtime.beside(together({"head": head, "hint": self.group.write_hint(base, state)})) as told:
            yield
            self.after_commit(state, told)

    def after_commit(self, state: State, told: Callable[[], object]) -> None:
        """What is left when the outcome is recorded: the others are to be `told`, and old logs to be deleted."""
        with contextlib.suppress(BackendError, NoQuorumError):
            told()
        if state.v > LOGS_KEPT:
            self._bound_logs(state)

    def _bound_logs(self, state: State) -> None:
        """This push's share in deleting logs that are long past (consensus.md, rule 1.11)."""
        progress = self.db.get(FLOORS_KEY) or Progress()
        with contextlib.suppress(BackendError, DamagedError, NoQuorumError):
            self.runtime.run(self.group.bound_logs(state, progress, self.wall_ns() / 1e9))
        self.db.set(FLOORS_KEY, progress)


def together(tasks: Mapping[str, Task]) -> Task:
    """All tasks side by side; their results by key."""
    return (yield Gather(tasks))
