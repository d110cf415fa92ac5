"""The keys of the local state, each with its type, codec, meaning and writer; and its tables.

A key holds one value. The record of a room above this one is declared as bytes here; its own room gives it its type
with `Key.holding`, and others import that key.

A damaged value is a `WorkspaceError` with the key's next step. A key without a next step only saves work: its damaged
value counts as absent.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_type_hints

from metasync.codec import Reader, bytes32, u32, u64
from metasync.config import Config, decode_config
from metasync.errors import FormatError, UpgradeError, WorkspaceError

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R", bound=tuple[Any, ...])

CLONE_ANEW: Final = (
    "`metasync clone --merge FOLDER`, with the workspace's name and backends or an invitation, makes the folder a new "
    "device: all files in it stay, and the next push brings what was not pushed."
)
BYTES_MAX: Final = 1 << 24  # of one path or text in a list: longer ones come from damage


def local_value(decode: Callable[[bytes], T], data: bytes, next_step: str = CLONE_ANEW) -> T:
    """Decodes a value that this device wrote. `WorkspaceError` if it does not decode, `UpgradeError` if a newer program
    may have written it."""
    try:
        return decode(data)
    except UpgradeError as e:
        raise UpgradeError(f"the local state in .metasync: {e.message}", next_step=e.next_step) from e
    except FormatError as e:
        raise WorkspaceError(f"the local state in .metasync is damaged: {e.message}", next_step=next_step) from e


class Codec(NamedTuple, Generic[T]):
    """`encode` makes bytes of a value; `decode` is its inverse, and raises `FormatError` for other bytes."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """A key of the local state with the type of its value. `next_step`: for the error about a damaged value."""

    name: str
    codec: Codec[T]
    next_step: str | None = CLONE_ANEW

    def holding(self, encode: Callable[[U], bytes], decode: Callable[[bytes], U]) -> Key[U]:
        """The same key, for the room that owns the record in it."""
        return Key(self.name, Codec(encode, decode), self.next_step)

    def load(self, data: bytes) -> T | None:
        """Decodes the value. A damaged one is a `WorkspaceError`, or None for a key without a next step."""
        if self.next_step is not None:
            return local_value(self.codec.decode, data, self.next_step)
        with contextlib.suppress(FormatError, UpgradeError):
            return self.codec.decode(data)
        return None

    def entry(self, value: T | None) -> tuple[str, bytes | None]:
        """The name, and the bytes to write; None: the key is to be removed."""
        return self.name, None if value is None else self.codec.encode(value)


def json_codec(what: str, read: Callable[[Any], T]) -> Codec[T]:
    """Makes a codec of JSON. `read` makes the value of the decoded JSON, and may fail as Python does on wrong types."""

    def decode(data: bytes) -> T:
        try:
            return read(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as e:
            raise FormatError(f"{what} cannot be read") from e

    return Codec(lambda value: json.dumps(value, default=sorted).encode(), decode)  # a set as a sorted list


def _count(data: bytes) -> int:
    r = Reader(data, "number")
    value = r.u64()
    r.end()
    return value


def _inodes(data: bytes) -> tuple[int, ...]:
    if len(data) % 8:
        raise FormatError("inodes of a checkout: cut short")
    return struct.unpack(f"<{len(data) // 8}Q", data)


def _items(data: bytes, value: Callable[[Reader], T]) -> dict[bytes, T]:
    """By path or name."""
    r = Reader(data, "list of paths")
    out: dict[bytes, T] = {}
    while r.pos < len(data):
        path = r.bytes32(BYTES_MAX)
        if path in out:
            raise r.fail("a path twice")
        out[path] = value(r)
    return out


BYTES: Final = Codec[bytes](bytes, bytes)
TEXT: Final = Codec[str](str.encode, lambda data: data.decode("utf-8", "replace"))
FLAG: Final = Codec[bool](lambda _: b"1", lambda _: True)  # there or absent
COUNT: Final = Codec[int](u64, _count)
INODES: Final = Codec[tuple[int, ...]](lambda inodes: struct.pack(f"<{len(inodes)}Q", *inodes), _inodes)
TEXTS: Final = Codec[dict[bytes, bytes]](
    lambda texts: b"".join(bytes32(k) + bytes32(v) for k, v in sorted(texts.items())),
    lambda data: _items(data, lambda r: r.bytes32(BYTES_MAX)),
)
MODES: Final = Codec[dict[bytes, int]](
    lambda modes: b"".join(bytes32(path) + u32(mode) for path, mode in modes.items()),
    lambda data: _items(data, Reader.u32),
)


class Failures(NamedTuple):
    """So many failures of a backend since its last answer, the last one at `at_ns` (since 1970)."""

    exceptions: int
    at_ns: int


class SpaceNote(NamedTuple):
    """The space that a backend told, in bytes, and when (ns since 1970). None: it does not tell."""

    when_ns: int
    free: int | None
    total: int | None


class PendingKeys(NamedTuple):
    """A backend that may lack key files. `away`: it gave no answer, and is tried as soon as it answers.

    Any other is tried after `due_s` (since 1970).
    """

    away: bool
    due_s: float


class KeyCopies(NamedTuple):
    """The key epoch that was looked at last, and the backends where something is left to do, by id in hex."""

    epoch: int
    pending: Mapping[str, PendingKeys]


def _space_notes(told: Any) -> dict[str, SpaceNote]:
    out = {str(name): SpaceNote(*note) for name, note in told.items()}
    if not all(type(n.when_ns) is int and {type(n.free), type(n.total)} <= {int, type(None)} for n in out.values()):
        raise ValueError("not sizes")
    return out


def _failures(told: Any) -> dict[str, Failures]:
    return {str(name): Failures(int(exceptions), int(at_ns)) for name, (exceptions, at_ns) in told.items()}


def _key_copies(told: Any) -> KeyCopies:
    epoch, pending = told
    return KeyCopies(int(epoch), {str(k): PendingKeys(bool(away), float(due)) for k, (away, due) in pending.items()})


class Floorless(NamedTuple):
    """Acceptors that were seen to have no floor: id in hex -> the floor, and when, in seconds of the machine's clock.

    `mark`: of the machine, whose clock counts for nothing once it is another one.
    """

    mark: str
    seen: Mapping[str, tuple[int, float]]


def _floorless(told: Any) -> Floorless:
    mark, seen = told
    return Floorless(str(mark), {bytes.fromhex(a).hex(): (int(floor), float(at)) for a, (floor, at) in seen.items()})


def _bad_copies(told: Any) -> Mapping[str, Mapping[str, int]]:
    return {
        bytes.fromhex(pack).hex(): {bytes.fromhex(backend).hex(): int(at_ns) for backend, at_ns in by.items()}
        for pack, by in told.items()
    }


def _texts(data: bytes) -> tuple[bytes, ...]:
    r = Reader(data, "list")
    out = []
    while r.pos < len(data):
        out.append(r.bytes32(BYTES_MAX))
    return tuple(out)


def _names(told: Any) -> frozenset[str]:
    if not isinstance(told, list) or not all(isinstance(name, str) for name in told):
        raise TypeError("not names")
    return frozenset(told)


# The workspace and this device (`session.folder`). CONFIG, PREVIOUS and LINKS follow the agreed config.
NAME_KEY: Final = Key("name", TEXT)
DEVICE_KEY: Final = Key("device", BYTES)  # id of this device
PLACE_KEY: Final = Key("place", BYTES)  # where `.metasync` lay when this device was enrolled: `session.folder`
INVITED_KEY: Final = Key("invited", BYTES)  # until a device that came by an invitation is agreed: its secret, and whose
CONFIG_KEY: Final = Key("config", Codec[Config](Config.encode, decode_config))  # of the newest state
PREVIOUS_KEY: Final = Key("config before", CONFIG_KEY.codec)  # whose mapping is still read
LINKS_KEY: Final = Key("links", BYTES)  # ways to backends by name: `session.folder.Link`
JOINING_KEY: Final = Key("joining", BYTES)  # ways to backends that this device wants added, by backend id in hex

# What is agreed (`session.agreement`).
BASE_KEY: Final = Key("base", BYTES)  # `State` that this folder is at
NEWEST_KEY: Final = Key("newest", BYTES)  # newest `State` that this device saw decided: never gone back behind
OWN_KEY: Final = Key("own", BYTES, None)  # the hash of the last state that this device proposed and saw decided
LINE_KEY: Final = Key("line", BYTES, None)  # `State`s that lead to the skip of the next version
ERA_KEY: Final = Key("era", BYTES)  # the beginning of the newest era that this device passed to
LEFT_KEY: Final = Key("left", BYTES)  # `State` of an old era that the folder was at, until that is merged
RETIRED_KEY: Final = Key("retired", COUNT, None)  # the newest era for which an acceptor was seen retired
JOURNAL_KEY: Final = Key("consensus.journal", BYTES)  # `Journal` of a change that may be decided: `consensus.proposer`
MEMORY_KEY: Final = Key("memory", BYTES)  # what each acceptor last showed, with the newest state
FLOORLESS_KEY: Final = Key("no floors", json_codec("floors that were not there", _floorless), None)
FLOORS_KEY: Final = Key("floors", BYTES, None)  # `Progress` of this device in deleting old logs

LET_GO_KEY: Final = Key("let go", Codec[Sequence[bytes]](lambda some: b"".join(map(bytes32, some)), _texts), None)

# The folder.
TREE_KEY: Final = Key("rows are", BYTES)  # root of the tree that the rows are; a change of a row drops it
RULES_KEY: Final = Key("ignore.rules", TEXTS, CLONE_ANEW)  # rule files of the last stored scan, by directory
NAME_RULES_KEY: Final = Key("names.rules", BYTES, None)  # `Rules` of the file system: `worktree.fs_probe`
KEPT_KEY: Final = Key("kept", BYTES)  # id of a staged snapshot that the next push names as a parent: `sync.pull`
RESTORED_KEY: Final = Key("restored", TEXTS)  # path -> content, of restores on `RESTORED_ON_KEY`: `history.restore`
RESTORED_ON_KEY: Final = Key("restored.on", BYTES)  # snapshot of the base that does not have what they brought

# A checkout under way (`checkout`), and a clone (`sync.first_checkout`).
CLONING_KEY: Final = Key("cloning", FLAG)  # until `clone` has ended: running it again goes on
UNFINISHED_KEY: Final = Key("unfinished", FLAG)  # until a clone has brought its first tree
PARTS_KEY: Final = Key("unfinished.parts", BYTES)  # `State` that a clone brings in parts
PARTS_UPTO_KEY: Final = Key("unfinished.upto", BYTES)  # up to which path it is here
EXACT_KEY: Final = Key("unfinished.exact", BYTES)  # up to which path the rows of these parts are known to be as agreed
PLAN_KEY: Final = Key("checkout.plan", BYTES)  # `Plan` that is being staged or applied
INODES_KEY: Final = Key("checkout.inodes", INODES)  # of what is staged, by change; there: the plan is being applied
WHOLE_KEY: Final = Key("checkout.whole", BYTES)  # which directories were staged whole, while the plan is being applied
MODES_KEY: Final = Key(  # of directories that were made writable for the checkout, to be given back
    "checkout.modes",
    MODES,
    f"{CLONE_ANEW} Some directories here may have been made writable.",
)
REPLACED_KEY: Final = Key("checkout.replaced", COUNT)  # the next free number in `.metasync/replaced/`
CURSOR_KEY: Final = Key("replaced.cursor", COUNT)  # the number in it to look at next: `checkout.trash`
BASES_KEY: Final = Key("bases", COUNT, None)  # about how many bytes `.metasync/bases` has: `worktree.bases`

# The backends.
LAST_HOUR_KEY: Final = Key("last hour", BYTES, None)  # how many files came and went: `service.last_hour`
TRAILING_KEY: Final = Key(  # packs that lack copies: `transfer.late_copies`
    "trailing", BYTES, "`metasync check` tells which packs lack copies."
)
WIPE_KEY: Final = Key("wipe", BYTES, None)  # ways to removed backends that are to be emptied: `moving.wipe`
MENDING_KEY: Final = Key("mending", BYTES, None)  # names of packs with a bad copy: `transfer.wrong_copies`
BAD_COPIES_KEY: Final = Key(  # where copies were found altered, by pack and backend, with when: `transfer.wrong_copies`
    "bad copies", json_codec("bad copies", _bad_copies), None
)
READING_KEY: Final = Key("reading", COUNT, None)  # when a push reads copies next, seconds since 1970: `moving.upkeep`
UPKEEP_KEY: Final = Key("upkeep", COUNT, None)  # when upkeep is tried again, seconds since 1970: `moving.upkeep`
SURPLUS_KEY: Final = Key("surplus", COUNT, None)  # how often a push may still try to free it: `moving.upkeep`
MOVED_KEY: Final = Key("moved", BYTES, None)  # partitions whose packs lie where they belong: `maintenance.moved`
SWEPT_KEY: Final = Key("swept", BYTES, None)  # the hash of a config under which no surplus copies were left
SHORT_KEY: Final = Key("short", COUNT)  # how many packs this device stored with fewer copies than promised
CARRIED_KEY: Final = Key("carried", BYTES)  # how unevenly pushes have loaded backends: `store.placement`
ESTIMATES_KEY: Final = Key("estimates", BYTES, None)  # what the lines to the backends bear: `transfer.estimates`
# Backends whose ballast was given up, and what backends told of their space: `session.space`.
GIVEN_UP_KEY: Final = Key("ballast", json_codec("names of backends", _names), None)
SPACE_KEY: Final = Key("space", json_codec("space of backends", _space_notes), None)
FAILURES_KEY: Final = Key(  # by backend: `maintenance.scrub_failures`
    "failures", json_codec("failures of backends", _failures), None
)
HUNG_KEY: Final = Key(  # backends that gave no answer a moment ago, with the time (s since 1970): `session.connections`
    "hung", json_codec("backends that hung", lambda told: {str(name): float(at) for name, at in told.items()}), None
)
EVIDENCE_KEY: Final = Key(  # (backend, what it did, ns since 1970), oldest first: `session.evidence`
    "evidence", json_codec("evidence", lambda told: [(str(b), str(w), int(t)) for b, w, t in told]), None
)
UNLINKED_KEY: Final = Key(  # agreed backends that the user wants no way to from here: `session.connections`
    "unlinked", json_codec("names of backends", _names), None
)
NO_WRITES_KEY: Final = Key(  # why backends refused the last write, by name: `session.evidence`
    "no writes", json_codec("refused writes", lambda told: {str(name): str(why) for name, why in told.items()}), None
)
AWAY_KEY: Final = Key(  # backends that cannot be used, with when that was first noticed (ns since 1970)
    "away", json_codec("backends that are away", lambda told: {str(name): int(at) for name, at in told.items()}), None
)  # `session.evidence`
KEY_COPIES_KEY: Final = Key("key copies", json_codec("copies of keys", _key_copies), None)  # `members.key_copies`


AGREED_MARK: Final = b"agreed"  # cached under the hash of a content that the tree of a decided version holds
META_KIND: Final = 100  # kinds of the local cache beyond `ObjectKind`: meta objects by hash


def block_key(acceptor_id: bytes) -> Key[bytes]:
    """This device's last block at an acceptor: `consensus.acceptors.block`."""
    return Key(f"block.{acceptor_id.hex()}", BYTES)


class Table(Generic[R]):
    """A table of records, each a NamedTuple of bytes, str and int. `key`: the field that tells records apart.

    `types`: of the record's fields. `schema`: the SQL that makes the table.
    """

    def __init__(self, name: str, record: Callable[..., R], key: str) -> None:
        self.name = name
        self.record = record
        self.key = key
        fields = get_type_hints(record)
        self.types = tuple(fields.values())
        columns = "".join(f"{field} {_SQL_TYPES[type_]} NOT NULL, " for field, type_ in fields.items())
        self.schema = f"CREATE TABLE {name} ({columns}PRIMARY KEY ({key}))"


_SQL_TYPES: Final = {bytes: "BLOB", str: "TEXT", int: "INTEGER"}


class Conflict(NamedTuple):
    """A conflict that waits for the user: `copy` holds the other side of `path`.

    `version`, `device`, `time_ns`: of what stands at `path`; the others of the copy. See `merge.copies.Side`.
    """

    path: bytes
    copy: bytes
    reason: str
    version: int
    device: bytes = b""
    time_ns: int = 0
    copy_device: bytes = b""
    copy_version: int = 0
    copy_time_ns: int = 0


class ReplacedFile(NamedTuple):
    """The file `.metasync/replaced/<n>`: it stood at `path`, and this device knew its content as `content`.

    `hashed`: the content when it was last read (b"": never), with the two times that the file had then.
    """

    n: int
    path: bytes
    content: bytes
    hashed: bytes = b""
    hashed_mtime_ns: int = 0
    hashed_ctime_ns: int = 0


NO_ROOM: Final = "no room"  # so begins the reason of an unplaced file that only waits for room
NO_INODES: Final = "no inodes left"  # what is said of a disk that is full and has bytes left


MISSING: Final = "it is not here, though nobody deleted it"  # the reason of one that the next pull brings


class Unplaced(NamedTuple):
    """An agreed path that the last checkouts could not bring to this disk."""

    path: bytes
    reason: str


class StoredNote(NamedTuple):
    """Packs that a push stored and that no version names yet: `transfer.upload`."""

    n: int
    note: bytes


class Look(NamedTuple):
    """What is known of a backend's packs since this device last looked: `maintenance.scrub`.

    stores   a hash of the storage ids that were looked at, and of how packs are mapped
    cursors  of the feed in each of them, by line; a line is empty where the store has none
    at_ns    when all of it was last seen, ns since 1970; 0: never
    compared the hash of the index that it was compared with, b"" where something is still wrong
    packs    how many it told
    others_ns  when another device last saw all of it, as that says; since_ns: since when that was relied upon alone
    read_to, read_ns: up to where copies were read on the circle of 2^32 places, and when that was due
    """

    backend: bytes
    stores: bytes = b""
    cursors: str = ""
    at_ns: int = 0
    compared: bytes = b""
    packs: int = 0
    others_ns: int = 0
    since_ns: int = 0
    read_to: int = 0
    read_ns: int = 0


class ToldPacks(NamedTuple):
    """What a backend told of its packs: `store.inventory.Told`, encoded."""

    backend: bytes
    told: bytes


CONFLICTS: Final = Table("conflicts", Conflict, "copy")
REPLACED: Final = Table("replaced", ReplacedFile, "n")
UNPLACED: Final = Table("unplaced", Unplaced, "path")
STORED: Final = Table("stored", StoredNote, "n")
LOOKS: Final = Table("looks", Look, "backend")
TOLD: Final = Table("told", ToldPacks, "backend")
TABLES: Final[tuple[Table[Any], ...]] = (CONFLICTS, REPLACED, UNPLACED, STORED, LOOKS, TOLD)
