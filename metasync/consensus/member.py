"""This process as a participant: its keys and incarnation, its ways to the acceptors, and what it remembers of them.

Also the requests on one acceptor: read its birth, read its log onwards, append to its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from metasync.codec import Reader, ascending, u8, u16, u32, u64
from metasync.config import Config
from metasync.consensus.entries import ENTRY_BYTES_MAX, Entry, Kind, Round, Seen, entry_path, seal_entry
from metasync.consensus.genesis import BIRTH_BYTES, birth_matches, birth_path
from metasync.consensus.instance import Instance
from metasync.consensus.replay import Log
from metasync.consensus.states import State
from metasync.effects import Gather, Now, Op, Random, Reply, Sleep, Task
from metasync.errors import BackendError, ForkError, FormatError, FullError, NotFoundError, UpgradeError
from metasync.keys.derive import FORMAT, UPGRADE, check_format, sha256
from metasync.keys.devices import DeviceIdentity, DeviceSet
from metasync.keys.ring import WorkspaceKeys

OP_TIMEOUT_S: Final = 10.0  # one small object; a backend that takes longer is as good as down
RTT_FIRST_S: Final = 0.1  # assumed until the first reply
RTT_MAX_S: Final = 2.0
CREATE_TRIES: Final = 3  # of the same bytes at the same index, when the outcome is unknown
LAG_TRIES: Final = 5  # reads of a slot that a create found taken (a provider's reads may lag)
RETRY_FIRST_S: Final = 0.05
AHEAD: Final = 2  # entries read side by side once a log is known to hold one: ACCEPT after PREPARE, and the end
STATES_CACHED: Final = 256
MEMORY_MAX: Final = 1024

StandingKind = Literal["ok", "down", "full", "replaced", "poisoned", "rolled back", "unlinked", "unknown"]


class Standing(NamedTuple):
    """How a backend fares as an acceptor, with the reason for `status` and `check`."""

    kind: StandingKind
    reason: str = ""


class Remembered(NamedTuple):
    """The last entry this device knows an acceptor to hold. `epoch`: whose log key names it."""

    epoch: int
    seen: Seen


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
    ) -> None:
        self.keys = keys
        self.identity = identity
        self.incarnation = incarnation
        self.links = dict(links)
        self.certificate = certificate
        self.memory: dict[bytes, Remembered] = {m.seen.acceptor_id: m for m in decode_memory(memory)}
        self.unaudited: set[bytes] = set(self.memory)
        self.standings: dict[str, Standing] = {}
        self.rolled_back: dict[bytes, str] = {}
        self.replaced: dict[bytes, str] = {}
        self.suspects: dict[bytes, str] = {}
        self.configs: dict[bytes, Config] = {}
        self.device_sets: dict[bytes, DeviceSet] = {}
        self.states: dict[bytes, State] = {}
        self.rounds_used: dict[int, int] = {}
        self.instance: Instance | None = None
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
        old = self.memory.get(log.acceptor_id)
        if old is None or (old.seen.v, old.seen.idx) < (seen.v, seen.idx):
            self.memory[log.acceptor_id] = Remembered(log.base.epoch, seen)

    def encode_memory(self) -> bytes:
        """For the local state, to be given to the next process."""
        return encode_memory(self.memory.values())

    def timed(self, seconds: float) -> None:
        self.rtt_s = min(RTT_MAX_S, 0.7 * self.rtt_s + 0.3 * seconds)

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
        self.standings[instance.names[acceptor_id]] = Standing(kind, error.message)
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
        seen = sorted(m.seen for a, m in self.memory.items() if a != log.acceptor_id and a in self.links)
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
            seen=tuple(seen[:32]),
            certificate=b"" if admitted else self.certificate,
        )
        return entry, seal_entry(self.keys, entry, self.identity.sign_private, entropy[:32])


def check_config(config: Config) -> Config:
    """Refuses a config whose way of agreeing this program does not know."""
    if config.mode != "crash" or any(a.form != "log" for _, a in config.acceptors):
        raise UpgradeError("the workspace agrees in a way that this program does not know", next_step=UPGRADE)
    return config


def read_birth(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """-> bool: the root is the one the config means. Notes it in `instance.born`, or why not in the standings."""
    instance.born.discard(acceptor_id)
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return False
    reply: Reply = yield Op(backend, "get", birth_path(acceptor_id), max_bytes=ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if isinstance(reply.error, NotFoundError):
        why = "its birth object is missing: it was emptied"
    elif reply.error is not None:
        m.fault(instance, acceptor_id, reply.error)
        return False
    elif birth_matches(reply.value, acceptor_id, instance.births[acceptor_id]):
        m.replaced.pop(acceptor_id, None)
        instance.born.add(acceptor_id)
        return True
    else:
        why = f"its birth object is another ({len(reply.value)} bytes, {BIRTH_BYTES} expected): it was replaced"
    m.replaced[acceptor_id] = why
    instance.vouched.discard(acceptor_id)
    m.judge(instance, acceptor_id)
    return False


def read_slot(m: Member, instance: Instance, acceptor_id: bytes, idx: int) -> Task:
    """-> bytes, None when absent, or the `BackendError`."""
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return BackendError("not linked")
    log = instance.logs[acceptor_id]
    # Twice the bound: a longer entry than ours is read far enough to be told from one that is not there.
    reply: Reply = yield Op(backend, "get", m.place(log, idx), max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if isinstance(reply.error, NotFoundError):
        return None
    return reply.error if reply.error is not None else reply.value


def look(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Reads a log from where it was read to, up to its end, and the birth object beside every step. -> Outcome.

    Two requests when nothing is new (a third audits an acceptor met for the first time); entries that follow are read
    AHEAD at a time.
    """
    log = instance.logs[acceptor_id]
    instance.ended.discard(acceptor_id)
    if m.backend_of(instance, acceptor_id) is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    width = 1
    while log.usable:
        branches = {str(i): read_slot(m, instance, acceptor_id, log.next_idx + i) for i in range(width)}
        branches["birth"] = read_birth(m, instance, acceptor_id)
        if acceptor_id in m.unaudited:
            branches["audit"] = audit(m, instance, acceptor_id)
        got: Mapping[str, Any] = yield Gather(branches)
        if not got.get("audit", True):
            return _unaudited(m, instance, acceptor_id)
        for i in range(width):
            found = got[str(i)]
            if isinstance(found, BackendError):
                return m.fault(instance, acceptor_id, found)
            if found is None:
                instance.ended.add(acceptor_id)
                break
            take_in(m, log, found)
            if not log.usable:
                break
        if not got["birth"]:
            return Outcome("failed", "birth")
        if acceptor_id in instance.ended:
            m.judge(instance, acceptor_id)
            return Outcome("done")
        width = AHEAD
    m.judge(instance, acceptor_id)
    return Outcome("failed", log.poison)


def audit(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Once per process, an acceptor must still show the last entry that it was seen to hold. -> bool: it does.

    One that shows nothing there, or another entry, was rolled back (or emptied: its birth object tells which).
    """
    remembered = m.memory[acceptor_id]
    seen = remembered.seen
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return False
    path = entry_path(m.keys, remembered.epoch, instance.base.era, acceptor_id, seen.v, seen.idx)
    reply: Reply = yield Op(backend, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if isinstance(reply.error, NotFoundError):
        m.suspects[acceptor_id] = f"entry {seen.idx} of version {seen.v} is gone"
        return False
    if reply.error is not None:
        m.fault(instance, acceptor_id, reply.error)
        return False
    if sha256(reply.value) != seen.hash:
        m.suspects[acceptor_id] = f"entry {seen.idx} of version {seen.v} is another"
        return False
    m.unaudited.discard(acceptor_id)
    m.suspects.pop(acceptor_id, None)
    return True


def _unaudited(m: Member, instance: Instance, acceptor_id: bytes) -> Outcome:
    """After an audit that failed, with the birth object read beside it."""
    instance.ended.discard(acceptor_id)
    why = m.suspects.pop(acceptor_id, "")
    if why and acceptor_id in instance.born:
        m.rolled_back[acceptor_id] = why
        m.backend_of(instance, acceptor_id)
    instance.born.discard(acceptor_id)
    return Outcome("failed", why or "it was not audited")


def take_in(m: Member, log: Log, data: bytes) -> None:
    """Replays bytes that were read, and remembers them."""
    if log.feed(data) is not None:
        m.remember_log(log)


def append(
    m: Member, instance: Instance, acceptor_id: bytes, kind: Kind, rnd: Round, value: State | None, stale: Round
) -> Task:
    """Appends one message to a log. -> Outcome.

    A create at the first index not read either succeeds, and then the log before it is known (Lemma A), or finds the
    slot taken, and then that entry is read and replayed and the next index tried. A reply that got lost is asked for
    again with the same bytes at the same index. PREPARE does not climb over foreign rounds above `stale`.

    The birth object is read beside every create: a vote counts only where it is right, because a root that was wiped
    accepts what it had promised not to (CONSENSUS 1.9, finding); and so does a promise, because a root that was wiped
    has forgotten what it accepted, and another value would be chosen over it.
    """
    log = instance.logs[acceptor_id]
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    if acceptor_id in m.unaudited:
        both = {"audit": audit(m, instance, acceptor_id), "birth": read_birth(m, instance, acceptor_id)}
        if not (yield Gather(both))["audit"]:
            return _unaudited(m, instance, acceptor_id)
    entry, data, unknown, checked = None, b"", 0, False
    while True:
        outcome = _standing(m, log, kind, rnd, stale)
        if outcome is not None:
            if outcome.kind == "done" and not checked:
                yield from read_birth(m, instance, acceptor_id)
            return _vouched(m, instance, acceptor_id, outcome)
        if entry is None or entry.idx != log.next_idx:
            entry, data = m.sealed(log, kind, rnd, value, (yield Random(48)))
            unknown = 0
        create = _create(m, Op(backend, "create", m.place(log, entry.idx), data, timeout_s=OP_TIMEOUT_S))
        got = yield Gather({"create": create, "birth": read_birth(m, instance, acceptor_id)})
        reply: Reply = got["create"]
        checked = True
        if reply.error is not None:
            unknown += 1
            if not reply.error.retryable or unknown >= CREATE_TRIES:
                return m.fault(instance, acceptor_id, reply.error)
            yield Sleep(RETRY_FIRST_S * (1 << unknown))
        elif reply.value:
            log.append_own(entry, data)
            m.remember_log(log)
        else:
            checked = False
            error = yield from _read_taken(m, instance, acceptor_id)
            if error is not None:
                return m.fault(instance, acceptor_id, error)


def _create(m: Member, op: Op) -> Task:
    """-> Reply; takes the time."""
    before = yield Now()
    reply: Reply = yield op
    if reply.error is None:
        m.timed((yield Now()) - before)
    return reply


def _vouched(m: Member, instance: Instance, acceptor_id: bytes, outcome: Outcome) -> Outcome:
    """An outcome `done` counts only with the right birth."""
    m.judge(instance, acceptor_id)
    if outcome.kind != "done":
        return outcome
    if acceptor_id not in instance.born:
        return Outcome("failed", "birth")
    instance.vouched.add(acceptor_id)
    return outcome


def _read_taken(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Reads the slot that a create found taken. -> None, or the `BackendError`."""
    log = instance.logs[acceptor_id]
    for attempt in range(LAG_TRIES):
        found = yield from read_slot(m, instance, acceptor_id, log.next_idx)
        if isinstance(found, BackendError):
            return found
        if found is not None:
            take_in(m, log, found)
            return None
        yield Sleep(RETRY_FIRST_S * (1 << attempt))
    return BackendError("says that a log entry exists, and does not show it")


def _standing(m: Member, log: Log, kind: Kind, rnd: Round, stale: Round) -> Outcome | None:
    """What a log says about our message already; None: it has to be appended."""
    if not log.usable:
        return Outcome("failed", log.poison)
    if kind is Kind.ACCEPT and rnd in log.votes:
        return Outcome("done")
    if log.closed is not None:
        return Outcome("closed")
    if log.promised > rnd:
        return Outcome("rejected")
    if kind is Kind.PREPARE:
        if log.promised == rnd:
            return Outcome("done")
        if log.promised > stale and log.promised.incarnation != m.incarnation:
            return Outcome("met")
    return None


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
