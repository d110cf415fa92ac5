"""This process as a participant: its keys and incarnation, its ways to the acceptors, and what it remembers of them.

The requests on acceptors are in `births`, `logform` and `acceptors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from metasync.codec import Reader, ascending, u8, u16, u32, u64
from metasync.config import Config
from metasync.consensus.instance import Instance
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import (
    SEEN_MAX,
    Entry,
    Kind,
    Round,
    Seen,
    block_path,
    entry_path,
    open_block,
    open_entry,
    seal_entry,
    with_refs,
)
from metasync.consensus.records.era import EraRecord, Tombstone
from metasync.consensus.records.log_replay import NEVER, Log
from metasync.consensus.records.state import Ref, State
from metasync.errors import BackendError, ForkError, FormatError, FullError, UpgradeError
from metasync.keys.derive import FORMAT, UPGRADE, check_format
from metasync.keys.device_set import DeviceIdentity, DeviceSet
from metasync.keys.keyring import WorkspaceKeys

OP_TIMEOUT_S: Final = 10.0  # one small object; a backend that takes longer is as good as down
RTT_FIRST_S: Final = 0.1  # assumed until the first reply
RTT_MAX_S: Final = 2.0
STATES_CACHED: Final = 256
MEMORY_MAX: Final = 1024

StandingKind = Literal["ok", "down", "full", "replaced", "poisoned", "rolled back", "unlinked", "unknown"]


class Standing(NamedTuple):
    """How a backend fares as an acceptor, with the reason for `status` and `check`."""

    kind: StandingKind
    reason: str = ""
    first: str = ""  # what somebody has to do before asking again can help


class Remembered(NamedTuple):
    """The last entry this device knows an acceptor to hold. `epoch`: whose log key names it."""

    epoch: int
    seen: Seen


class Barred(NamedTuple):
    """Why this process must not write blocks, and what to do about it."""

    reason: str
    next_step: str


def _free() -> Barred | None:
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an append ended.

    done      the message is effective
    rejected  a higher round was promised
    met       a foreign round stands there that is not known to be stale: let it finish
    closed    the log says what is decided
    failed    the acceptor cannot be counted on now (`reason`)
    """

    kind: Literal["done", "rejected", "met", "closed", "failed"]
    reason: str = ""


class Member:
    """One process's part in one workspace's consensus. Not for use by two tasks at once."""

    def __init__(
        self,
        keys: WorkspaceKeys,
        identity: DeviceIdentity,
        incarnation: bytes,
        links: Mapping[bytes, str],
        *,
        certificate: bytes = b"",
        memory: bytes = b"",
        guard: Callable[[], Barred | None] = _free,
    ) -> None:
        self.keys = keys
        self.identity = identity
        self.incarnation = incarnation
        self.links = dict(links)
        self.others: tuple[str, ...] = ()  # ways to backends that do not vote: keyrings lie there too
        self.certificate = certificate
        self.memory: dict[bytes, Remembered] = {m.seen.acceptor_id: m for m in decode_memory(memory)}
        self.unaudited: set[bytes] = set(self.memory)
        self.told_by: dict[bytes, bytes] = {}  # acceptors whose last entry another device saw, and which device
        self.adding: tuple[bytes, tuple[Ref, ...]] = b"", ()  # for `with_refs`: of the change with this operation id
        self.added: dict[bytes, tuple[Ref, ...]] = {}  # what the vote read last said of it, by its value's hash
        self.told_at: dict[bytes, float] = {}  # and when this device was told
        self.standings: dict[str, Standing] = {}
        self.rolled_back: dict[bytes, str] = {}
        self.replaced: dict[bytes, str] = {}
        self.suspects: dict[bytes, str] = {}
        self.evidence: list[tuple[str, str]] = []  # (backend, what it did): for the local state, and for people
        self.configs: dict[bytes, Config] = {}
        self.device_sets: dict[bytes, DeviceSet] = {}
        self.states: dict[bytes, State] = {}
        self.rounds_used: dict[int, int] = {}
        self.guard = guard
        self.barred: dict[bytes, Barred] = {}  # acceptors that took no block of ours at the last try
        self.journals: dict[bytes, bytes] = {}  # by acceptor: the journalled block that this process knows to be last
        self.unconfirmed: set[bytes] = set()  # acceptors where it may not stand yet
        self.instance: Instance | None = None
        self.floors: dict[bytes, tuple[int, float]] = {}  # no floor above versions of a block, and when that was seen
        self.prepared: tuple[Instance, Round] | None = None  # promised by a quorum, not yet used
        self.reached: State | None = None  # the newest state that was found decided, though maybe not the latest
        self.tombstones: dict[bytes, Tombstone] = {}  # acceptors that were retired, and for which era
        self.followed: dict[int, EraRecord] = {}  # records by which this process passed to another era
        self.recovering = 0  # the era that this process is about to begin: retired acceptors are read for it
        self.fenced: set[bytes] = set()  # states whose change of config or keys is known to be fenced off
        self.rtt_s = RTT_FIRST_S

    # what is remembered

    def remember_state(self, state: State) -> None:
        if len(self.states) >= STATES_CACHED:
            del self.states[next(iter(self.states))]
        self.states[state.hash] = state

    def remember_log(self, log: Log) -> None:
        """Keeps the last good entry of a log: what this acceptor must be able to show from now on."""
        seen = log.seen
        if seen is None or log.poison:
            return
        self.remember(log.acceptor_id, log.base.epoch, seen)

    def remember(self, acceptor_id: bytes, epoch: int, seen: Seen | None) -> None:
        """Keeps the newest of what an acceptor showed: an entry, in block form this device's own last block."""
        old = self.memory.get(acceptor_id)
        if seen is not None and (old is None or (old.seen.v, old.seen.idx) < (seen.v, seen.idx)):
            self.memory[acceptor_id] = Remembered(epoch, seen)

    def seen_place(self, instance: Instance, epoch: int, seen: Seen) -> str:
        """Where an acceptor must still show what it was seen to hold."""
        era = instance.base.era
        if isinstance(instance.logs[seen.acceptor_id], Blocks):
            return block_path(self.keys, epoch, era, seen.acceptor_id, seen.v, self.identity.device_id, seen.idx)
        return entry_path(self.keys, epoch, era, seen.acceptor_id, seen.v, seen.idx)

    def opens(self, instance: Instance, epoch: int, seen: Seen, data: bytes) -> bool:
        """Whether bytes are an entry of that place at all, whoever made it."""
        base, me = replace(instance.base, epoch=epoch), self.identity.device_id
        a, v, idx = seen.acceptor_id, seen.v, seen.idx
        try:
            if isinstance(instance.logs[a], Blocks):
                open_block(self.keys, data, base=base, acceptor_id=a, v=v, device_id=me, idx=idx)
            else:
                open_entry(self.keys, data, ns_id=base.ns_id, era=base.era, epoch=epoch, acceptor_id=a, v=v, idx=idx)
        except FormatError:
            return False
        except UpgradeError:
            pass
        return True

    def seen_elsewhere(self, acceptor_id: bytes) -> tuple[Seen, ...]:
        """For an entry: what other acceptors in log form last showed."""
        logs = {} if self.instance is None else self.instance.logs
        those = {a for a in self.links if a != acceptor_id and not isinstance(logs.get(a), Blocks)}
        return tuple(sorted(m.seen for a, m in self.memory.items() if a in those)[:SEEN_MAX])

    def encode_memory(self) -> bytes:
        """For the local state, to be given to the next process."""
        return encode_memory(self.memory.values())

    def take_prepared(self, instance: Instance) -> Round:
        """The round that was prepared ahead on this instance, once; `NEVER` when there is none."""
        prepared, self.prepared = self.prepared, None
        return prepared[1] if prepared is not None and prepared[0] is instance else NEVER

    def timed(self, seconds: float) -> None:
        known = seconds if self.rtt_s == RTT_FIRST_S else self.rtt_s  # the first reply tells more than a guess
        self.rtt_s = min(RTT_MAX_S, 0.7 * known + 0.3 * seconds)

    def waited(self, seconds: float) -> None:
        """A look took so long: who only reads would otherwise take slow backends for silent ones."""
        if seconds > self.rtt_s:
            self.timed(seconds)

    # one acceptor

    def backend_of(self, instance: Instance, acceptor_id: bytes) -> str | None:
        """The name under which the runtime reaches an acceptor; None (and its standing) when it cannot be used."""
        link = self.links.get(acceptor_id)
        name = instance.names[acceptor_id]
        if link is None:
            self.standings[name] = Standing("unlinked", "this device has no way to it")
            return None
        if acceptor_id in self.rolled_back:
            self.standings[name] = Standing("rolled back", self.rolled_back[acceptor_id])
            return None
        return link

    def fault(self, instance: Instance, acceptor_id: bytes, error: BackendError) -> Outcome:
        kind: StandingKind = "full" if isinstance(error, FullError) else "down"
        first = "" if error.retryable else error.next_step
        self.standings[instance.names[acceptor_id]] = Standing(kind, error.message, first)
        return Outcome("failed", error.message)

    def judge(self, instance: Instance, acceptor_id: bytes) -> None:
        """Writes down how an acceptor that answered fares."""
        log = instance.logs[acceptor_id]
        if acceptor_id in self.replaced:
            standing = Standing("replaced", self.replaced[acceptor_id])
        elif log.poison:
            standing = Standing("poisoned", log.poison)
        else:
            standing = Standing("ok")
        self.standings[instance.names[acceptor_id]] = standing

    def broken(self, instance: Instance, acceptor_id: bytes, why: str) -> None:
        """From here on an acceptor gives no promise and no vote in this version: what it shows is made up."""
        instance.logs[acceptor_id].poison = why
        self.judge(instance, acceptor_id)

    def check_rollback(self, instance: Instance) -> None:
        """Raises `ForkError` when so many acceptors show an older past than remembered that no quorum is left."""
        lost = {instance.names[a]: why for a, why in self.rolled_back.items() if a in instance.names}
        if len(lost) > len(instance.names) - instance.quorum:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(lost.items()))
            raise ForkError(
                f"backends show an older past than this device has seen ({reasons})",
                next_step="they were restored from a backup, or lie: compare fingerprints with another device",
            )

    def place(self, log: Log, idx: int) -> str:
        base = log.base
        return entry_path(self.keys, base.epoch, base.era, log.acceptor_id, log.v, idx)

    def sealed(self, log: Log, kind: Kind, rnd: Round, value: State | None, entropy: bytes) -> tuple[Entry, bytes]:
        """The next entry of a log, and its bytes."""
        admitted = log.devices.get(self.identity.device_id) is not None
        entry = Entry(
            acceptor_id=log.acceptor_id,
            v=log.v,
            idx=log.next_idx,
            prev_entry=log.last_hash,
            base=log.base,
            kind=kind,
            round=rnd,
            value=value,
            entry_id=entropy[32:48],
            device_id=self.identity.device_id,
            seen=self.seen_elsewhere(log.acceptor_id),
            certificate=b"" if admitted else self.certificate,
        )
        if value is not None and value.op_id == self.adding[0]:
            entry = with_refs(entry, self.adding[1])
        return entry, seal_entry(self.keys, entry, self.identity.sign_private, entropy[:32])


def check_config(config: Config) -> Config:
    """Refuses a config whose way of agreeing this program does not know."""
    blocks = any(a.form == "block" for _, a in config.acceptors)
    if blocks and config.mode != "crash":  # what a liar shows once it need not show again: no vote would stay counted
        raise UpgradeError("the workspace agrees in a way that this program does not know", next_step=UPGRADE)
    return config


def encode_memory(memory: Iterable[Remembered]) -> bytes:
    items = sorted(memory, key=lambda m: m.seen.acceptor_id)
    return (
        u8(FORMAT)
        + u16(len(items))
        + b"".join(m.seen.acceptor_id + u32(m.epoch) + u64(m.seen.v) + u32(m.seen.idx) + m.seen.hash for m in items)
    )


def decode_memory(data: bytes) -> tuple[Remembered, ...]:
    """What `encode_memory` wrote; nothing for no bytes."""
    if not data:
        return ()
    r = Reader(data, "memory of acceptors")
    check_format(r.u8(), "the memory of acceptors")
    n = r.count(r.u16(), 64)
    out = []
    for _ in range(n):
        acceptor_id, epoch = r.take(16), r.u32()
        out.append(Remembered(epoch, Seen(acceptor_id, r.u64(), r.u32(), r.take(32))))
    r.end()
    if n > MEMORY_MAX or not ascending([m.seen.acceptor_id for m in out]):
        raise FormatError("memory of acceptors: too many, or out of order")
    return tuple(out)


def checked_memory(data: bytes) -> bytes:
    """The same bytes, if they are a memory. `FormatError`."""
    decode_memory(data)
    return data
