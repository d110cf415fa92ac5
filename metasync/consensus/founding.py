"""Founding a workspace, and finding one: what `init` writes, and where `clone` starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from metasync.config import Config, decode_config
from metasync.consensus.entries import ENTRY_BYTES_MAX, SignedEntry, hint_path, open_hint
from metasync.consensus.genesis import (
    GENESIS_BYTES_MAX,
    birth_matches,
    birth_path,
    encode_birth,
    genesis_path,
    open_genesis,
    seal_genesis,
)
from metasync.consensus.member import check_config
from metasync.consensus.meta import CONST_BYTES_MAX, Copy, const_path, get_anywhere, opener, seal_object
from metasync.consensus.states import State, genesis_state
from metasync.effects import Gather, Op, Random, Reply, Task
from metasync.errors import (
    BackendError,
    DamagedError,
    ForkError,
    FormatError,
    NoQuorumError,
    NotFoundError,
    UpgradeError,
)
from metasync.keys.chain import AdminChain
from metasync.keys.derive import RecordKind
from metasync.keys.devices import DeviceSet, decode_device_set
from metasync.keys.ring import WorkspaceKeys

FOUND_TIMEOUT_S: Final = 30.0
ROOTS_MAX: Final = 64  # acceptors that one backend's folder may show; more is not ours


@dataclass(frozen=True, slots=True)
class Founded:
    """A new workspace: version 0, and the names of its first config and device set."""

    state: State

    @property
    def config_hash(self) -> bytes:
        return self.state.config

    @property
    def devices_hash(self) -> bytes:
        return self.state.devices


@dataclass(frozen=True, slots=True)
class Found:
    """What a new device starts from: a decided `state` (not proven to be the latest), its config and device set, and
    which backend holds which acceptor. `problems`: backends that could not be used, with the reason."""

    state: State
    config: Config
    devices: DeviceSet
    links: Mapping[bytes, str]
    problems: Mapping[str, str] = field(default_factory=dict)


def found(
    keys: WorkspaceKeys,
    config: Config,
    devices: DeviceSet,
    chain: AdminChain,
    *,
    admin_private: bytes,
    keyring: bytes,
    births: Mapping[bytes, bytes],
    links: Mapping[bytes, str],
) -> Task:
    """Writes births, consts and genesis on every acceptor, all confirmed. -> Founded.

    `keyring`: SHA-256 of the ring's bytes, stored already. `births`: acceptor id -> the nonce whose hash the config
    holds. Birth objects of storage roots are the caller's. `BackendError` naming the backend that failed: nothing is
    agreed then; the roots that were written are to be removed, or left: nobody's config names them.
    """
    check_config(config)
    config_hash, config_data = yield from _const(keys, config.encode())
    devices_hash, devices_data = yield from _const(keys, devices.encode())
    state = genesis_state(ns_id=keys.ns_id, config=config_hash, devices=devices_hash, keyring=keyring, epoch=keys.epoch)

    def one(acceptor_id: bytes) -> Task:
        backend = links[acceptor_id]
        genesis = seal_genesis(keys, state, chain, admin_private, acceptor_id, (yield Random(32)))
        first = {
            birth_path(acceptor_id): encode_birth(acceptor_id, births[acceptor_id]),
            const_path(acceptor_id, config_hash.hex()): config_data,
            const_path(acceptor_id, devices_hash.hex()): devices_data,
        }
        yield Gather({path: _created(backend, path, data) for path, data in first.items()})
        yield from _created(backend, genesis_path(acceptor_id), genesis)

    yield Gather({a.acceptor_id.hex(): one(a.acceptor_id) for _, a in config.acceptors})
    return Founded(state)


def bootstrap(keys: WorkspaceKeys, backends: Sequence[str]) -> Task:
    """Where a new device starts: reads genesis and hints on all reachable backends. -> Found.

    Follow with `Group.get_recent(found.state)`. `DamagedError` when no backend holds a genesis, `NoQuorumError` when
    none could be read, `ForkError` when two contradict each other.
    """
    problems: dict[str, str] = {}
    got = yield Gather({b: _roots(keys, b) for b in backends})
    roots: dict[bytes, tuple[str, State, SignedEntry | None]] = {}
    for backend, answer in got.items():
        if isinstance(answer, BackendError | UpgradeError):
            problems[backend] = answer.message
            continue
        for acceptor_id, genesis, hint in answer:
            roots[acceptor_id] = (backend, genesis, hint)
        if not answer:
            problems[backend] = "holds no acceptor of this workspace"
    if not roots:
        newer = next((answer for answer in got.values() if isinstance(answer, UpgradeError)), None)
        if newer is not None:  # if others can be read, it is one backend's garbage
            raise newer
        reasons = "; ".join(f"{b}: {why}" for b, why in sorted(problems.items()))
        if any(isinstance(answer, BackendError) for answer in got.values()) or not backends:
            raise NoQuorumError(f"no backend could be read ({reasons})", next_step="check the backends' URLs")
        raise DamagedError(f"no backend holds a genesis of this workspace ({reasons})")
    if len({genesis for _, genesis, _ in roots.values()}) > 1:
        raise ForkError(
            "backends show different beginnings of this workspace: "
            + ", ".join(f"{b} {g.fingerprint}" for b, g, _ in roots.values()),
            next_step="give `clone` only backends that belong together",
        )
    state, config, devices = yield from _start(keys, roots)
    links = {}
    for backend, acceptor in config.acceptors:
        root = roots.get(acceptor.acceptor_id)
        if root is None:
            continue
        reply: Reply = yield Op(root[0], "get", birth_path(acceptor.acceptor_id), max_bytes=ENTRY_BYTES_MAX)
        if reply.error is None and birth_matches(reply.value, acceptor.acceptor_id, acceptor.birth):
            links[acceptor.acceptor_id] = root[0]
        else:
            problems[root[0]] = f"is not the {backend.name} that the config means"
    return Found(state, config, devices, links, problems)


def _start(keys: WorkspaceKeys, roots: Mapping[bytes, tuple[str, State, SignedEntry | None]]) -> Task:
    """-> (State, Config, DeviceSet): the newest hint that a device admitted by its base signed, else the genesis."""
    hints = [hint for _, _, hint in roots.values() if hint is not None]
    hints.sort(key=lambda hint: hint.entry.v, reverse=True)
    for hint in hints:
        value = hint.entry.value
        assert value is not None
        try:
            judges = yield from _const_of(keys, roots, hint.entry.base.devices)
            devices = decode_device_set(judges, keys.ns_id)
            public = devices.key_of(hint.entry.device_id, hint.entry.certificate)
            if public is None or not hint.verifies(public):
                continue
            return (yield from _loaded(keys, roots, value))
        except (FormatError, DamagedError, NoQuorumError):
            continue  # an older hint, or the genesis, is as good a start
    genesis = next(iter(roots.values()))[1]
    return (yield from _loaded(keys, roots, genesis))


def _loaded(keys: WorkspaceKeys, roots: Mapping[bytes, Any], state: State) -> Task:
    config = decode_config((yield from _const_of(keys, roots, state.config)))
    devices = decode_device_set((yield from _const_of(keys, roots, state.devices)), keys.ns_id)
    return state, check_config(config), devices


def _const_of(keys: WorkspaceKeys, roots: Mapping[bytes, Any], digest: bytes) -> Task:
    opened = opener(keys, RecordKind.CONST, digest)
    copies = [Copy(root[0], const_path(a, digest.hex()), opened) for a, root in roots.items()]
    return get_anywhere(copies, CONST_BYTES_MAX, "a const object")


def _roots(keys: WorkspaceKeys, backend: str) -> Task:
    """-> [(acceptor id, genesis, hint or None)] that lie on a backend, or its error."""
    reply: Reply = yield Op(backend, "list", "")
    if reply.error is not None:
        return reply.error
    names = [item.name for item in reply.value if _is_id(item.name)][:ROOTS_MAX]
    got = yield Gather({name: _root(keys, backend, bytes.fromhex(name)) for name in names})
    errors = [root for root in got.values() if isinstance(root, BackendError | UpgradeError)]
    good = [root for root in got.values() if isinstance(root, tuple)]
    return errors[0] if errors and not good else good


def _root(keys: WorkspaceKeys, backend: str, acceptor_id: bytes) -> Task:
    """-> (acceptor id, genesis, hint or None); None for something else; or the error."""
    wanted = {
        "genesis": (genesis_path(acceptor_id), GENESIS_BYTES_MAX),
        "hint": (hint_path(acceptor_id), ENTRY_BYTES_MAX),
    }
    got = yield Gather({key: _get(backend, path, most) for key, (path, most) in wanted.items()})
    if isinstance(got["genesis"], BackendError):
        return got["genesis"]
    if got["genesis"] is None:
        return None
    try:
        genesis = open_genesis(keys, got["genesis"], acceptor_id)
    except UpgradeError as e:
        return e
    except FormatError:
        return None
    hint = None
    if isinstance(got["hint"], bytes):
        try:
            hint = open_hint(keys, got["hint"], acceptor_id)
        except (FormatError, UpgradeError):
            hint = None  # anything but a good hint is ignored
    return acceptor_id, genesis, hint


def _get(backend: str, path: str, most: int) -> Task:
    reply: Reply = yield Op(backend, "get", path, max_bytes=most)
    if isinstance(reply.error, NotFoundError):
        return None
    return reply.error if reply.error is not None else reply.value


def _is_id(name: str) -> bool:
    return len(name) == 32 and not name.strip("0123456789abcdef")


def _const(keys: WorkspaceKeys, plaintext: bytes) -> Task:
    random = yield Random(32)
    return seal_object(keys, RecordKind.CONST, plaintext, era=0, epoch=keys.epoch, random=random)


def _created(backend: str, path: str, data: bytes) -> Task:
    """Creates an object of a new root; what is there already must be ours, from a reply that got lost."""
    error: BackendError | None = None
    for _ in range(3):
        reply: Reply = yield Op(backend, "create", path, data, timeout_s=FOUND_TIMEOUT_S)
        if reply.error is None:
            if reply.value:
                return
            there: Reply = yield Op(backend, "get", path, max_bytes=GENESIS_BYTES_MAX + CONST_BYTES_MAX)
            if there.error is None and there.value == data:
                return
            raise BackendError(f"{backend}: {path} is taken by something else", retryable=False)
        error = reply.error
        if not error.retryable:
            break
    assert error is not None
    raise BackendError(f"{backend}: cannot write {path}: {error.message}", next_step=error.next_step)
