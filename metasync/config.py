"""The agreed config: which backends there are, who votes, and how data are cut, packed, translated and placed.

Every version of the state names one config by hash; it governs the instance that agrees the next version (consensus.md,
rule 1.1). A config is canonical: one value, one byte string. Unknown tags survive. What differs between devices
(URLs, accounts, credentials) stands in no agreed object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeVar

from metasync.codec import (
    UPGRADE,
    Reader,
    Tags,
    ascending,
    check_format,
    check_kind,
    encode_tags,
    text16,
    u8,
    u16,
    u32,
    u64,
)
from metasync.errors import FormatError, UpgradeError, UsageError

FORMAT: Final = 1
CONFIG_BYTES_MAX: Final = 1 << 20
BACKENDS_MAX: Final = 256
ACCEPTORS_MAX: Final = 32  # a log entry's `seen` of so many leaves room for all else in it
STORAGE_IDS_MAX: Final = 1024  # a mapping change may give a backend a new one
CLASSES_MAX: Final = 16
CHAINS_MAX: Final = 256
CHAIN_STEPS_MAX: Final = 16
NAME_BYTES_MAX: Final = 255
PARTITIONS_MAX: Final = 1 << 20
DEFAULT_CAPACITY: Final = 1 << 40  # what a backend counts as that says nothing: all equal
CAPACITY_BYTES_MAX: Final = 1 << 63  # what the mapping can weigh
CHUNK_BYTES_MAX: Final = 1 << 24  # a chunk is one segment, and a reader unpacks at most 64 MiB at once
CDC_MINIMUM_MAX: Final = 1 << 20
CDC_AVERAGE_MAX: Final = 1 << 22
CDC_MAXIMUM_LEAST: Final = 1 << 10  # the chunker takes no smaller one
PACK_BYTES_MAX: Final = 1 << 27
SEGMENT_BYTES_MAX: Final = 1 << 25
NO_LIMIT: Final = (1 << 64) - 1  # the size limit of a last size class
CHANGED_TAG: Final = 1  # u64 version as which a change made this config, 32 bytes: the hash of the one before
MOVING_TAG: Final = 2  # u64 generation, 32 bytes: the index whose packs lie where `prev_config` maps them
DEAD_TAG: Final = 5  # 16 bytes each: ids of removed backends that nobody is to ask, though `prev_config` has them
EARLIER_TAG: Final = 4  # earlier mappings, by which copies count or are surplus: `store.moves`
LIMIT_TAG: Final = 1  # of a backend: u64, its limit in bytes where the weight is another; 0 for none
TRUSTING_TAG: Final = 3  # no bytes: the user chose to allow for no backend that lies, also where it costs nothing
WEIGHTED_RENDEZVOUS: Final = 1

Mode = Literal["crash", "bft"]
Form = Literal["log", "block"]
_MODES: Final[tuple[Mode, ...]] = ("crash", "bft")
_FORMS: Final[tuple[Form, ...]] = ("log", "block")


class Survives(NamedTuple):
    """What a workspace lives through: acceptors down, acceptors lying, and copies lost at once."""

    down: int
    lying: int
    copies: int


@dataclass(frozen=True, slots=True)
class Acceptor:
    """A backend's vote. `birth`: SHA-256 of the nonce in its birth object; new for every (re)initialised root."""

    acceptor_id: bytes
    form: Form
    birth: bytes


@dataclass(frozen=True, slots=True)
class Storage:
    """A place for packs on a backend. `birth` as for an acceptor."""

    storage_id: bytes
    birth: bytes


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One backend as all devices agree on it. `storage`: newest last, empty when it stores nothing."""

    backend_id: bytes
    name: str
    scheme: str
    capacity_bytes: int
    identity: bytes
    storage: tuple[Storage, ...]
    acceptor: Acceptor | None
    tags: Tags = ()

    @property
    def limit_bytes(self) -> int | None:
        """How many bytes of packs may go there, as a user said; None: as many as the store takes."""
        said = dict(self.tags).get(LIMIT_TAG)
        if said is not None and len(said) == 8:
            return int.from_bytes(said, "big") or None
        return self.capacity_bytes if self.capacity_bytes != DEFAULT_CAPACITY else None

    def weighing(self, weight: int, limit: int | None) -> BackendEntry:
        """The same with this weight, and a limit of its own where that is not what the weight says."""
        tags = tuple(item for item in self.tags if item[0] != LIMIT_TAG)
        entry = replace(self, capacity_bytes=weight, tags=tags)
        if entry.limit_bytes == limit:
            return entry
        return replace(entry, tags=tuple(sorted((*tags, (LIMIT_TAG, u64(limit or 0))))))


@dataclass(frozen=True, slots=True)
class Replicate:
    """`copies` whole copies of every pack."""

    copies: int

    @property
    def losses(self) -> int:
        return self.copies - 1


@dataclass(frozen=True, slots=True)
class RedundancyClass:
    """The policy for packs of fewer than `below_bytes` bytes. There is one class today, for packs of any size."""

    below_bytes: int
    policy: Replicate


@dataclass(frozen=True, slots=True)
class ChunkingClass:
    """How files of fewer than `below_bytes` bytes are cut: content-defined, or in pieces of `average`."""

    below_bytes: int
    kind: Literal["cdc", "fixed"]
    minimum: int
    average: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """How packs are mapped to backends: the kind of hashing and the number of partitions."""

    kind: int = WEIGHTED_RENDEZVOUS
    partitions: int = 65536


DEFAULT_CHUNKING: Final = (
    ChunkingClass(64 << 20, "cdc", 64 << 10, 256 << 10, 1 << 20),
    ChunkingClass(4 << 30, "cdc", 256 << 10, 1 << 20, 4 << 20),
    ChunkingClass(NO_LIMIT, "cdc", 1 << 20, 4 << 20, 16 << 20),
)
DEFAULT_CHAINS: Final = (("compress", "encrypt", "integrity"),)


@dataclass(frozen=True, slots=True)
class Config:
    """The agreed config. `backends` ascend by backend id; `chains`: translator names, the last chain is in force and
    packs name theirs by its ordinal; `prev_config`: SHA-256 name of the config whose mapping is still read, or None;
    files of at most `whole_bytes` are one blob."""

    backends: tuple[BackendEntry, ...]
    redundancy: tuple[RedundancyClass, ...] = (RedundancyClass(NO_LIMIT, Replicate(2)),)
    f: int = 0
    mode: Mode = "crash"
    encrypted: bool = True
    mapping: Mapping = Mapping()
    chunking: tuple[ChunkingClass, ...] = DEFAULT_CHUNKING
    whole_bytes: int = 64 << 10
    pack_bytes: int = 4 << 20
    segment_bytes: int = 256 << 10
    compression_level: int = 3
    chains: tuple[tuple[str, ...], ...] = DEFAULT_CHAINS
    prev_config: bytes | None = None
    tags: Tags = ()

    @property
    def acceptors(self) -> tuple[tuple[BackendEntry, Acceptor], ...]:
        """The backends that vote, in the order of `backends`."""
        return tuple((b, b.acceptor) for b in self.backends if b.acceptor is not None)

    @property
    def logs_suffice(self) -> bool:
        """True when acceptors in log form make a quorum alone: a new device then enters by itself."""
        return sum(a.form == "log" for _, a in self.acceptors) >= self.quorum

    @property
    def has_blocks(self) -> bool:
        """True when a backend votes in block form."""
        return any(a.form == "block" for _, a in self.acceptors)

    @property
    def n(self) -> int:
        """How many vote."""
        return len(self.acceptors)

    @property
    def quorum(self) -> int:
        """Any two of this many share f + 1 acceptors: ceil((n + f + 1) / 2)."""
        return quorum(self.n, self.f)

    @property
    def meta_copies(self) -> int:
        """A meta object on so many acceptors is met honestly by every quorum: n - q + 1 + f."""
        return self.n - self.quorum + 1 + self.f

    @property
    def survives(self) -> Survives:
        return Survives(self.n - self.quorum, self.f, min(c.policy.losses for c in self.redundancy))

    @property
    def changed(self) -> tuple[int, bytes] | None:
        """As which version a change made this config, and the hash of the config before; None for the first one."""
        return _pair(self.tags, CHANGED_TAG)

    @property
    def moving(self) -> tuple[int, bytes] | None:
        """The index (generation, hash) of what lies where `prev_config` maps it, while that is set."""
        return _pair(self.tags, MOVING_TAG) if self.prev_config is not None else None

    @property
    def trusting(self) -> bool:
        """Whether the user chose to allow for no backend that lies."""
        return any(t == TRUSTING_TAG for t, _ in self.tags)

    @property
    def dead(self) -> frozenset[bytes]:
        """Ids of removed backends that nobody is to ask for what is to be moved. One that is in use is none."""
        data = dict(self.tags).get(DEAD_TAG, b"")
        return frozenset(data[i : i + 16] for i in range(0, len(data), 16)) - {b.backend_id for b in self.backends}

    def tagged(self, tag: int, pair: tuple[int, bytes] | None) -> Config:
        """The same config with such a tag, or without it."""
        tags = {t: data for t, data in self.tags if t != tag}
        if pair is not None:
            tags[tag] = u64(pair[0]) + pair[1]
        return replace(self, tags=tuple(sorted(tags.items())))

    def backend(self, backend_id: bytes) -> BackendEntry | None:
        return next((b for b in self.backends if b.backend_id == backend_id), None)

    def named(self, name: str) -> BackendEntry | None:
        return next((b for b in self.backends if b.name == name), None)

    def policy(self, pack_bytes: int) -> Replicate:
        """The redundancy of a pack of this size."""
        return next((c.policy for c in self.redundancy if pack_bytes < c.below_bytes), self.redundancy[-1].policy)

    def check(self) -> Config:
        """Returns itself, or raises `UsageError` with what is wrong."""
        fault = _fault(self)
        if fault:
            raise UsageError(f"config: {fault}")
        return self

    def with_backends(self, backends: Sequence[BackendEntry]) -> Config:
        """The same config with these backends, put in canonical order."""
        return replace(self, backends=tuple(sorted(backends, key=lambda b: b.backend_id)))

    def weighed(self) -> Config:
        """The same; where all have equal weights and each has a limit by now, with the limits for weights."""
        storing = [b for b in self.backends if b.storage]
        if any(b.capacity_bytes != DEFAULT_CAPACITY or b.limit_bytes is None for b in storing):
            return self
        return self.with_backends([b.weighing(b.limit_bytes or b.capacity_bytes, b.limit_bytes) for b in self.backends])

    def encode(self) -> bytes:
        self.check()
        return b"".join(
            (
                u8(FORMAT),
                u8(_MODES.index(self.mode)),
                u8(self.f),
                u8(self.encrypted),
                u16(len(self.backends)),
                *(_encode_backend(b) for b in self.backends),
                u8(self.mapping.kind),
                u32(self.mapping.partitions),
                u8(len(self.redundancy)),
                *(_encode_redundancy(c) for c in self.redundancy),
                u8(len(self.chunking)),
                *(_encode_chunking(c) for c in self.chunking),
                u32(self.whole_bytes),
                u32(self.pack_bytes),
                u32(self.segment_bytes),
                u8(self.compression_level),
                u16(len(self.chains)),
                *(u8(len(chain)) + b"".join(text16(name) for name in chain) for chain in self.chains),
                u8(self.prev_config is not None) + (self.prev_config or b""),
                encode_tags(self.tags),
            )
        )


def _pair(tags: Tags, tag: int) -> tuple[int, bytes] | None:
    data = dict(tags).get(tag)
    return (int.from_bytes(data[:8], "big"), data[8:]) if data is not None and len(data) == 40 else None


def quorum(n: int, f: int) -> int:
    """How many of n acceptors, f of which may lie, make a quorum."""
    return (n + f) // 2 + 1


def byzantine_f(n: int, *, at_cost: bool = False) -> int:
    """How many of n acceptors may lie without a larger quorum than crashes alone need (1 at 4, 6, 8, ... acceptors).

    `at_cost`: with one more in the quorum, which is one tolerated outage less (1 at 5, 2 at 7). 0 where it cannot be.
    """
    most = quorum(n, 0) + at_cost
    return max(f for f in range((max(n, 1) - 1) // 3 + 1) if quorum(n, f) <= most)


def decode_config(data: bytes) -> Config:
    """What `Config.encode` wrote. `FormatError` when it is no canonical config, `UpgradeError` for a newer format."""
    if len(data) > CONFIG_BYTES_MAX:
        raise FormatError(f"config of {len(data)} bytes")
    r = Reader(data, "config")
    check_format(r.u8(), "the config")
    config = Config(
        mode=_MODES[(number := r.u8()) and check_kind(number, len(_MODES) - 1, "the config's mode")],
        f=r.u8(),
        encrypted=_choice(r, (False, True)),
        backends=tuple(_decode_backend(r) for _ in range(r.count(r.u16(), 62))),
        mapping=Mapping(check_kind(r.u8(), WEIGHTED_RENDEZVOUS, "a mapping of the config"), r.u32()),
        redundancy=_decode_redundancies(r),
        chunking=tuple(_decode_chunking(r) for _ in range(r.count(r.u8(), 21))),
        whole_bytes=r.u32(),
        pack_bytes=r.u32(),
        segment_bytes=r.u32(),
        compression_level=r.u8(),
        chains=tuple(tuple(r.text16(NAME_BYTES_MAX) for _ in range(r.u8())) for _ in range(r.count(r.u16(), 1))),
        prev_config=r.take(32) if _choice(r, (False, True)) else None,
        tags=r.tags(),
    )
    r.end()
    fault = _fault(config)
    if fault:
        raise FormatError(f"config: {fault}")
    return config


def _encode_backend(b: BackendEntry) -> bytes:
    head = b.backend_id + text16(b.name) + text16(b.scheme) + u64(b.capacity_bytes) + b.identity
    head += u16(len(b.storage)) + b"".join(s.storage_id + s.birth for s in b.storage)
    if b.acceptor is None:
        head += u8(0)
    else:
        head += u8(1 + _FORMS.index(b.acceptor.form)) + b.acceptor.acceptor_id + b.acceptor.birth
    return head + encode_tags(b.tags)


def _decode_backend(r: Reader) -> BackendEntry:
    backend_id, name, scheme = r.take(16), r.text16(NAME_BYTES_MAX), r.text16(NAME_BYTES_MAX)
    capacity, identity = r.u64(), r.take(32)
    storage = tuple(Storage(r.take(16), r.take(32)) for _ in range(r.count(r.u16(), 48)))
    form = r.u8()
    if form:
        check_kind(form, len(_FORMS), "an acceptor")
    acceptor = Acceptor(r.take(16), _FORMS[form - 1], r.take(32)) if form else None
    return BackendEntry(backend_id, name, scheme, capacity, identity, storage, acceptor, r.tags())


def _encode_redundancy(c: RedundancyClass) -> bytes:
    return u64(c.below_bytes) + u8(1) + u8(1) + u8(c.policy.copies)


def _decode_redundancies(r: Reader) -> tuple[RedundancyClass, ...]:
    """`UpgradeError` for several classes, and for shards in place of copies: who does not know them loses data."""
    classes = []
    for _ in range(r.count(r.u8(), 11)):
        below, kind, needed, copies = r.u64(), r.u8(), r.u8(), r.u8()
        check_kind(kind, 1, "a redundancy of the config")
        if needed != 1:
            raise r.fail(f"redundancy of {needed} in {copies}")
        classes.append(RedundancyClass(below, Replicate(copies)))
    if len(classes) > 1:
        raise UpgradeError(
            f"the config has {len(classes)} classes of redundancy; this program knows 1", next_step=UPGRADE
        )
    return tuple(classes)


def _encode_chunking(c: ChunkingClass) -> bytes:
    return u64(c.below_bytes) + u8(1 if c.kind == "cdc" else 2) + u32(c.minimum) + u32(c.average) + u32(c.maximum)


def _decode_chunking(r: Reader) -> ChunkingClass:
    below, kind = r.u64(), check_kind(r.u8(), 2, "a chunking of the config")
    return ChunkingClass(below, "cdc" if kind == 1 else "fixed", r.u32(), r.u32(), r.u32())


_T = TypeVar("_T")


def _choice(r: Reader, of: tuple[_T, ...]) -> _T:
    i = r.u8()
    if i >= len(of):
        raise r.fail(f"choice {i} of {len(of)}")
    return of[i]


def _fault(c: Config) -> str:
    """What makes a config impossible, or nothing."""
    faults = (_fault_of_backends, _fault_of_acceptors, _fault_of_numbers, _fault_of_classes, _fault_of_earlier)
    return next(filter(None, (find(c) for find in faults)), "")


def _fault_of_backends(c: Config) -> str:
    if not 1 <= len(c.backends) <= BACKENDS_MAX:
        return f"{len(c.backends)} backends"
    if not ascending([b.backend_id for b in c.backends]):
        return "backends out of order, or one twice"
    if len({b.name for b in c.backends}) != len(c.backends):
        return "two backends have one name"
    ids = [s.storage_id for b in c.backends for s in b.storage] + [a.acceptor_id for _, a in c.acceptors]
    if len(set(ids)) != len(ids):
        return "one id for two places"
    for b in c.backends:
        if not b.name or len(b.name.encode()) > NAME_BYTES_MAX or len(b.scheme.encode()) > NAME_BYTES_MAX:
            return "a backend's name is empty or too long"
        if len(b.storage) > STORAGE_IDS_MAX:
            return f"backend {b.name} has {len(b.storage)} storage ids"
        if not 1 <= b.capacity_bytes <= CAPACITY_BYTES_MAX:
            return f"backend {b.name} has a capacity of {b.capacity_bytes} bytes"
    return ""


def _fault_of_acceptors(c: Config) -> str:
    if not 1 <= c.n <= ACCEPTORS_MAX:
        return f"{c.n} backends vote, 1 to {ACCEPTORS_MAX} are possible"
    if c.mode == "crash" and c.f != 0:
        return "f lying acceptors in crash mode"
    if c.mode == "bft" and not (c.f >= 1 and c.n >= 3 * c.f + 1):
        return f"{c.n} acceptors cannot outvote {c.f} that lie"
    return ""


def _fault_of_numbers(c: Config) -> str:
    if c.mapping.kind != WEIGHTED_RENDEZVOUS or not 1 <= c.mapping.partitions <= PARTITIONS_MAX:
        return f"mapping {c.mapping.kind} over {c.mapping.partitions} partitions"
    if not 1 <= c.compression_level <= 22:
        return f"compression level {c.compression_level}"
    longest = min(c.pack_bytes, SEGMENT_BYTES_MAX)
    if not 4096 <= c.pack_bytes <= PACK_BYTES_MAX or not 4096 <= c.segment_bytes <= longest:
        return f"packs of {c.pack_bytes} bytes in segments of {c.segment_bytes}"
    if not 0 <= c.whole_bytes <= CHUNK_BYTES_MAX:
        return f"whole files of {c.whole_bytes} bytes"
    if c.prev_config is not None and len(c.prev_config) != 32:
        return "the name of the config before is not 32 bytes"
    return ""


def _fault_of_classes(c: Config) -> str:
    for limits in ([r.below_bytes for r in c.redundancy], [k.below_bytes for k in c.chunking]):
        if not 1 <= len(limits) <= CLASSES_MAX or limits != sorted(set(limits)) or limits[-1] != NO_LIMIT:
            return "size classes must ascend and end without a limit"
    if len(c.redundancy) > 1:
        return f"{len(c.redundancy)} classes of redundancy"
    for r in c.redundancy:
        if not 1 <= r.policy.copies <= 255:
            return f"{r.policy.copies} copies"
    for k in c.chunking:
        if not 64 <= k.minimum <= k.average <= k.maximum <= CHUNK_BYTES_MAX:
            return f"chunks of {k.minimum}, {k.average}, {k.maximum} bytes"
        if k.kind == "cdc" and not (
            k.minimum <= CDC_MINIMUM_MAX and 256 <= k.average <= CDC_AVERAGE_MAX and k.maximum >= CDC_MAXIMUM_LEAST
        ):
            return f"chunks of {k.minimum}, {k.average}, {k.maximum} bytes, which no chunker cuts"
        if k.kind == "fixed" and not k.minimum == k.average == k.maximum:
            return "pieces of fixed size have one size"
    if not 1 <= len(c.chains) <= CHAINS_MAX or len(set(c.chains)) != len(c.chains):
        return "translator chains: none, too many, or one twice"
    names = [name for chain in c.chains for name in chain]
    if max(map(len, c.chains)) > CHAIN_STEPS_MAX or any(not x or len(x.encode()) > NAME_BYTES_MAX for x in names):
        return "a translator chain is too long or names nothing"
    return ""


def _fault_of_earlier(c: Config) -> str:
    data, merged = dict(c.tags).get(EARLIER_TAG, b""), False
    while data:
        end = 4 + 40 * int.from_bytes(data[2:4], "big")
        rows = [data[i : i + 40] for i in range(4, end, 40)]
        whole = data[0] <= 1 and 4 < end <= len(data) and not (merged and data[0])
        if not whole or len({row[:16] for row in rows}) < len(rows):
            return "earlier mappings that cannot be"
        if not all(1 <= int.from_bytes(row[16:24], "big") <= CAPACITY_BYTES_MAX for row in rows):
            return "a weight of an earlier mapping"
        data, merged = data[end:], not data[0]
    return ""
