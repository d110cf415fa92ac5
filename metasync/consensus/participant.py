"""This process as a participant: its keys and links, what it remembers of each acceptor, and what it found out.

The requests on acceptors are in `acceptors`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Final, Literal, NamedTuple

from metasync.codec import Reader, ascending, check_format, u8, u16, u32, u64
from metasync.config import Config, decode_config
from metasync.consensus.records.entry import Claim, Seen
from metasync.consensus.records.era import EraRecord, Tombstone
from metasync.consensus.records.log_replay import check_config
from metasync.consensus.records.state import Ref, State
from metasync.errors import FormatError
from metasync.keys.derive import FORMAT
from metasync.keys.device_set import DeviceIdentity, DeviceSet
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Sleep, Task

OP_TIMEOUT_S: Final = 10.0  # one small object; a backend that takes longer is as good as down
RTT_FIRST_S: Final = 0.1  # assumed until the first reply
RTT_MAX_S: Final = 2.0
STATES_CACHED: Final = 256
OBJECTS_KEPT: Final = 8  # a change names two
RIDING_KEPT: Final = 32  # index roots that rode in logs: between two hints there are 15 at most
MEMORY_MAX: Final = 1024
ROUNDS_KEPT: Final = 1024  # versions whose rounds are known: nobody proposes again in one of so long ago
TURN_S: Final = 0.01  # between looks whether another task still looks at logs

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


class Word(str):
    """Why a device's word counts for nobody, where backends that were set back, or that hide something, look the same.

    What a device signed against a rule is no such thing: that is proof, whatever backends show.
    """

    __slots__ = ()


@dataclass(slots=True)
class AcceptorMemory:
    """What this process remembers of one acceptor, whatever the version.

    `last`: what it must show from now on. `unaudited`: `last` is to be seen there before the acceptor counts.
    `shown`: the newest entry that this process read there and another device signed: this device's messages carry it.
    `told_by`, `told_at`: the device that saw `last`, if it was another one, and when this process was told (seconds).
    `rolled_back`: why it is out for good: it showed another past than before. `replaced`: why its root is not the one
    that the config means. `suspicion`: what an audit found that began beside a look at its birth. All three: "" if not.
    `born_at`: when its birth was seen right last (seconds); None: never, or it was not when it answered last.
    `no_floor`: a floor that was not there, and when that was seen (seconds). `journal`: in block form, the journalled
    block that is known to be this device's last there; `unconfirmed`: it may not stand yet; `stands`: the hash of a
    block that was seen there beside the right birth, b"" if none was since the birth was last wrong.
    """

    last: Remembered | None = None
    unaudited: bool = False
    shown: Claim | None = None
    told_by: bytes = b""
    told_at: float = 0.0
    rolled_back: str = ""
    replaced: str = ""
    suspicion: str = ""
    born_at: float | None = None
    no_floor: tuple[int, float] = (-1, 0.0)
    tombstone: Tombstone | None = None
    journal: bytes = b""
    unconfirmed: bool = False
    stands: bytes = b""


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


@dataclass(eq=False)
class Participant:
    """One process's part in one workspace's consensus. Tasks that look at logs take turns (`alone`)."""

    keys: WorkspaceKeys
    identity: DeviceIdentity
    incarnation: bytes
    links: dict[bytes, str]
    _: KW_ONLY
    certificate: bytes = b""
    memory: InitVar[bytes] = b""
    guard: Callable[[], Barred | None] = lambda: None

    def __post_init__(self, memory: bytes) -> None:
        self.is_busy = False  # a task looks at logs
        self.others: tuple[str, ...] = ()  # ways to backends that do not vote: keyrings lie there too
        self.ways: Mapping[bytes, str] = {}  # by the backend's id, whether it votes today or not
        self.rtt_s = RTT_FIRST_S
        self.now = 0.0  # the latest time that anybody told, in seconds on the clock of `Now`

        # Memory.
        self.acceptors: defaultdict[bytes, AcceptorMemory] = defaultdict(AcceptorMemory)
        for last in decode_memory(memory):
            self.acceptors[last.seen.acceptor_id] = AcceptorMemory(last, unaudited=True)
        self.look_apart: Callable[[Any], Task] | None = None  # (Instance): `forks.look_into`, with the way to enter
        self.configs: dict[bytes, Config] = {}
        self.device_sets: dict[bytes, DeviceSet] = {}
        self.states: dict[bytes, State] = {}
        self.rounds_used: dict[int, int] = {}
        self.objects: dict[bytes, bytes] = {}  # configs and device sets, sealed, that values of our own may name
        self.adding: tuple[bytes, tuple[Ref, ...]] = b"", ()  # for `with_refs`: of the change with this operation id

        # Findings.
        self.standings: dict[str, Standing] = {}  # by a backend's agreed name
        self.evidence: list[tuple[str, str]] = []  # (backend, what it did): for the local state, and for people
        # (device, version) -> why a value of its counts for nobody; a `Word` where the backends may be wrong.
        self.void_values: dict[tuple[bytes, int], str] = {}
        self.doubted: set[tuple[bytes, bytes]] = (
            set()
        )  # (device, state): words of other histories that nothing bears out
        self.added: dict[bytes, tuple[Ref, ...]] = {}  # what the vote read last said of it, by its value's hash
        self.riding: dict[bytes, bytes] = {}  # what entries carried of indexes (`ROOT_TAG`), by name
        self.settled: dict[bytes, None] = {}  # those of them that are objects now, too
        self.reached: State | None = None  # the newest state that was found decided, though maybe not the latest
        self.fenced: set[bytes] = set()  # states whose change of config or keys is known to be fenced off
        self.followed: dict[int, EraRecord] = {}  # records by which this process passed to another era
        self.recovering = 0  # the era that this process is about to begin: retired acceptors are read for it

    def alone(self, task: Task) -> Task:
        """Runs a task that looks at logs, when no other one does: several threads may ask. -> what it returns."""
        while self.is_busy:
            yield Sleep(TURN_S)
        self.is_busy = True
        try:
            return (yield from task)
        finally:
            self.is_busy = False

    def find_ways(self, config: Config) -> None:
        """Knows the ways to the acceptors of a decided config, where they are on backends that it had ways to before:
        one may have got a vote since."""
        for entry, acceptor in config.acceptors:
            if (name := self.ways.get(entry.backend_id)) is not None:
                self.links.setdefault(acceptor.acceptor_id, name)

    def use_round(self, v: int, n: int) -> None:
        """Notes the round of a version that is about to be used, and forgets versions of long ago."""
        self.rounds_used[v] = n
        while len(self.rounds_used) > ROUNDS_KEPT:
            del self.rounds_used[next(iter(self.rounds_used))]

    def remember_state(self, state: State) -> None:
        """Keeps a state of the chain, to be fetched no more."""
        if len(self.states) >= STATES_CACHED:
            del self.states[next(iter(self.states))]
        self.states[state.hash] = state

    def keep_object(self, digest: bytes, data: bytes) -> None:
        """Keeps a config or device set, sealed, for the entries that are going to carry it."""
        while len(self.objects) >= OBJECTS_KEPT:
            del self.objects[next(iter(self.objects))]
        self.objects[digest] = data

    @property
    def tombstones(self) -> dict[bytes, Tombstone]:
        """Acceptors that were retired, and for which era."""
        return {a: memory.tombstone for a, memory in self.acceptors.items() if memory.tombstone is not None}

    def encode_memory(self) -> bytes:
        """For the local state, to be given to the next process."""
        return encode_memory(m.last for m in self.acceptors.values() if m.last is not None)

    def timed(self, seconds: float) -> None:
        """A request took so long."""
        known = seconds if self.rtt_s == RTT_FIRST_S else self.rtt_s  # the first reply tells more than a guess
        self.rtt_s = min(RTT_MAX_S, 0.7 * known + 0.3 * seconds)

    def keep_riding(self, value: State | None, riding: Mapping[bytes, bytes]) -> None:
        """Keeps the index root of a value, if it is among these, by name: entries that count carried them."""
        if value is not None and (digest := value.index.hash) in riding:
            self.riding.pop(digest, None)
            self.riding[digest] = riding[digest]
            _bound(self.riding, RIDING_KEPT)

    def note_settled(self, digest: bytes) -> None:
        """Notes that an index root which rode in a log is an object now."""
        self.settled[digest] = None
        _bound(self.settled, RIDING_KEPT)

    def waited(self, seconds: float) -> None:
        """A look took so long: who only reads would otherwise take slow backends for silent ones."""
        if seconds > self.rtt_s:
            self.timed(seconds)


def _bound(some: dict[bytes, Any], most: int) -> None:
    """Drops the oldest."""
    while len(some) > most:
        del some[next(iter(some))]


def decode_agreed_config(data: bytes) -> Config:
    """The config in a const object. `FormatError`; `UpgradeError` also for a way of agreeing that is not known here."""
    return check_config(decode_config(data))


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
