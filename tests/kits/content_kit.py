"""What the tests of the content formats share: fixed keys, hostile bytes, a fetcher for walks, a driver for tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from metasync.errors import BackendError, FormatError, NotFoundError, RefusedError, UpgradeError
from metasync.keys.keyring import WorkspaceKeys
from metasync.objects.chunker import Chunker, SizeClass
from metasync.objects.model import Entry, Ids, Kind, ObjectKind
from metasync.runtime.effects import Gather, Now, Op, Reply, Task, Work
from metasync.store.packs import Packer, PackFormat, SealedPack, WorkspacePackKeys
from metasync.translators._base import Chain
from metasync.translators.compress import Compress
from metasync.translators.encrypt import Encrypt
from metasync.translators.integrity import Integrity

T = TypeVar("T")

NS_ID = bytes(range(32))
ID_KEY = bytes(range(32, 64))
IDS = Ids(ID_KEY)
EPOCH_KEYS = {1: b"\x11" * 32, 2: b"\x22" * 32}

CASES = 2_000  # hostile inputs per decoder
FULL = Chain([Compress(), Encrypt(), Integrity()])
SEALED_ONLY = Chain([Encrypt(), Integrity()])
"""Without compression: the same bytes under every version of zstd."""


def digest(n: int) -> bytes:
    """32 bytes that look random and never change."""
    return hashlib.sha256(b"%d" % n).digest()


def noise(n: int, seed: int = 0) -> bytes:
    """`n` incompressible bytes."""
    return random.Random(seed).randbytes(n)


def keys(*, encrypted: bool = True, ns_id: bytes = NS_ID) -> WorkspacePackKeys:
    """The keys of packs, of epochs 1 and 2, as a workspace derives them."""
    return WorkspacePackKeys(WorkspaceKeys(ns_id, encrypted, tuple(EPOCH_KEYS.items()), ID_KEY, b"\x33" * 32))


def pack_format(
    *,
    encrypted: bool = True,
    chains: tuple[Chain, ...] = (FULL,),
    epoch: int = 1,
    segment_bytes: int = 16 << 10,
    pack_bytes: int = 128 << 10,
    ns_id: bytes = NS_ID,
) -> PackFormat:
    return PackFormat(keys(encrypted=encrypted, ns_id=ns_id), chains, epoch, 3, segment_bytes, pack_bytes)


class Entropy:
    """Bytes that never repeat, the same in every run."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, n: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(b"%d" % self.drawn).digest(n)


def at_once(function: Callable[[], Any]) -> Future[Any]:
    """A worker that has no thread."""
    f: Future[Any] = Future()
    try:
        f.set_result(function())
    except Exception as e:
        f.set_exception(e)
    return f


class AtOnce:
    """A `Runner` for tasks that ask these backends: each has ended when it has started."""

    def __init__(self, backends: Mapping[str, FakeBackend]) -> None:
        self._backends = backends

    def clock(self) -> float:
        return 0.0

    def start(self, task: Task) -> Future[Any]:
        return at_once(lambda: run(task, self._backends))

    def submit_work(self, function: Callable[[], Any]) -> Future[Any]:
        return at_once(function)

    def wait(
        self, futures: Iterable[Future[Any]], timeout_s: float | None = None, *, for_all: bool = False
    ) -> list[Future[Any]]:
        return list(futures)


Object = tuple[ObjectKind, bytes, bytes]


def blob(data: bytes) -> Object:
    return ObjectKind.BLOB, IDS.blob(data), data


def pack_all(
    objects: Iterable[Object], form: PackFormat, work: Callable[[Callable[[], Any]], Future[Any]] = at_once
) -> list[SealedPack]:
    out: list[SealedPack] = []
    packer = Packer(form, work, Entropy(), out.append)
    for kind, object_id, data in objects:
        packer.add(kind, object_id, data)
    packer.finish()
    return out


def file_entry(n: int, **changes: Any) -> Entry:
    return Entry(Kind.FILE, 0o644, 1_700_000_000_000_000_000 + n, n, digest(n))._replace(**changes)


# --- hostile bytes


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Valid bytes, damaged one to three times: flipped, overwritten, inserted, deleted, doubled, or cut short."""
    b = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(b) + 1)
        match rng.randrange(7):
            case 0 if at < len(b):
                b[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(b):
                b[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 2:
                b[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                del b[at : at + rng.randint(1, 40)]
            case 4:
                del b[at:]
            case 5:
                n = rng.choice((1, 4, 8, 32))
                b[at : at + n] = rng.choice((b"\0", b"\xff")) * n
            case _:
                b[at:at] = b[at : at + rng.randint(1, 60)]
    return bytes(b)


def hostile(valid: Sequence[bytes], cases: int = CASES, seed: int = 1) -> Iterable[bytes]:
    """At least `cases` damaged and random byte strings, every truncation of the shortest valid one among them."""
    rng = random.Random(seed)
    shortest = min(valid, key=len)
    yield from (shortest[:n] for n in range(min(len(shortest), 500)))
    for _ in range(cases):
        yield mutated(rng, rng.choice(valid))
    for _ in range(cases // 8):
        yield rng.randbytes(rng.randrange(200))
        yield rng.choice(valid)[:1] + rng.randbytes(rng.randrange(200))


def refuses(
    decode: Callable[[bytes], T],
    valid: Sequence[bytes],
    encode: Callable[[T], bytes] | None = None,
    *,
    cases: int = CASES,
    checked: bool = True,
) -> None:
    """Fed hostile bytes, a decoder raises its own errors alone; what it takes, it would write the same way.

    `checked`: the decoder can tell most damage from another valid value.
    """
    for data in valid:
        decode(data)
    taken = refused = 0
    for data in hostile(valid, cases):
        try:
            value = decode(data)
        except (FormatError, UpgradeError):
            refused += 1
            continue
        taken += 1
        if encode is not None:
            assert encode(value) == data
    assert refused >= cases // 8
    assert not checked or refused > taken // 4, "damage that nobody notices"


# --- walks and tasks


class NoSuchObject(Exception):  # noqa: N818 - what a store would say, no bug
    """A walk asked for an id that nothing has."""


def walk(task: Generator[Any, Any, T], store: Mapping[bytes, bytes]) -> tuple[T, list[tuple[ObjectKind, int]]]:
    """Runs a walk over objects in memory: (its result, what each round of requests asked for)."""
    rounds: list[tuple[ObjectKind, int]] = []
    try:
        needs = next(task)
        while True:
            kind, ids = needs
            assert len(set(ids)) == len(ids)
            rounds.append((kind, len(ids)))
            if not all(i in store for i in ids):
                raise NoSuchObject
            needs = task.send({i: store[i] for i in ids})
    except StopIteration as end:
        result: T = end.value
        return result, rounds


class FakeBackend:
    """Objects in a dict, and an error for every call while `broken` is set. `tells`: a kind of digest, and how."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.broken: BackendError | None = None
        self.full: BackendError | None = None
        self.calls: list[Op] = []
        self.tells: tuple[str, Callable[[bytes], bytes | None]] = "", lambda _: None

    def do(self, op: Op) -> Any:
        self.calls.append(op)
        if self.broken is not None:
            raise self.broken
        if op.kind == "put":
            if self.full is not None:
                raise self.full
            self.objects[op.path] = op.data
            return None
        if op.path not in self.objects:
            raise NotFoundError("not there")
        data = self.objects[op.path]
        if op.kind == "stat":
            return len(data)
        if op.kind == "digest":
            return len(data), self.tells[0], self.tells[1](data)
        assert op.kind == "get"
        part = data[op.offset :] if op.length is None else data[op.offset : op.offset + op.length]
        if len(part) > op.max_bytes:
            raise RefusedError("too large")
        return part


def run(task: Generator[Any, Any, T], backends: Mapping[str, FakeBackend]) -> T:
    """Carries out a task's effects one after the other."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            effect = task.send(value) if error is None else task.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        value, error = None, None
        try:
            match effect:
                case Op():
                    try:
                        value = Reply(backends[effect.backend].do(effect))
                    except BackendError as e:
                        value = Reply(error=e)
                case Gather():
                    value = {key: run(branch, backends) for key, branch in effect.branches.items()}
                case Work():
                    value = effect.function()
                case Now():
                    value = 0.0
                case _:
                    raise AssertionError(f"unexpected effect {effect!r}")
        except (FormatError, BackendError, UpgradeError) as e:
            error = e


SMALL = (256, 1024, 4096)
Sizes = tuple[int | None, int, int, int]


def chunker(
    classes: Sequence[Sizes] = ((None, *SMALL),), *, kind: str = "cdc", whole: int = 0, seed: int = 7
) -> Chunker:
    return Chunker(whole, [SizeClass(*c, kind) for c in classes], seed.to_bytes(32, "big"))
