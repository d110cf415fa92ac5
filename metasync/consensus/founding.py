"""Founds a workspace for `init`, and finds where `clone` starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from metasync.codec import check_format
from metasync.config import Config
from metasync.consensus.eras import newest_record
from metasync.consensus.objects import const_path, created, get_const, open_named, sealed
from metasync.consensus.participant import decode_agreed_config
from metasync.consensus.records.birth import (
    GENESIS_BYTES_MAX,
    birth_path,
    encode_birth,
    genesis_path,
    open_genesis,
    seal_genesis,
)
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, SignedEntry, hint_path, open_hint
from metasync.consensus.records.era import ERAS, EraRecord
from metasync.consensus.records.log_replay import check_config, fault_named
from metasync.consensus.records.state import State, follows, genesis_state
from metasync.errors import (
    BackendError,
    DamagedError,
    ForkError,
    FormatError,
    MetaSyncError,
    NoQuorumError,
    NotFoundError,
    UpgradeError,
)
from metasync.keys.derive import RecordKind
from metasync.keys.device_set import DeviceSet, decode_device_set
from metasync.keys.keyring import WorkspaceKeys
from metasync.keys.policy import AdminChain
from metasync.runtime.effects import Gather, Op, Random, Reply, Task

LOOK_TIMEOUT_S: Final = 10.0  # backends are read one after the other until one shows the config
ROOTS_MAX: Final = 64  # acceptors that one backend's folder may show; more is not ours
ROOTS_AT_ONCE: Final = 4  # ids in a folder that are read without asking whose they are: a backend's two, and a change


@dataclass(frozen=True, slots=True)
class Found:
    """The start of a new device: a decided `state`, maybe not the latest, with its config and device set.

    `links`: backends by acceptor id. `problems`: why backends could not be used.
    """

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
    """Writes births, consts and genesis on every acceptor, all confirmed. -> State, of version 0.

    `keyring`: SHA-256 of the ring, stored already. `births`: nonces by acceptor id; the config holds their hashes. The
    caller writes births of storage roots. `BackendError`: nothing is agreed, and no config names what was written.
    """
    check_config(config)
    new = partial(sealed, keys, RecordKind.CONST, era=0, epoch=keys.epoch)
    config_hash, config_data = yield from new(config.encode)
    devices_hash, devices_data = yield from new(devices.encode)
    state = genesis_state(ns_id=keys.ns_id, config=config_hash, devices=devices_hash, keyring=keyring, epoch=keys.epoch)

    def one(acceptor_id: bytes) -> Task:
        backend = links[acceptor_id]
        genesis = seal_genesis(keys, state, chain, admin_private, acceptor_id, (yield Random(32)))
        first = {
            birth_path(acceptor_id): encode_birth(acceptor_id, births[acceptor_id]),
            const_path(acceptor_id, config_hash.hex()): config_data,
            const_path(acceptor_id, devices_hash.hex()): devices_data,
        }
        yield Gather({path: created(backend, path, data) for path, data in first.items()})
        yield from created(backend, genesis_path(acceptor_id), genesis)

    yield Gather({a.acceptor_id.hex(): one(a.acceptor_id) for _, a in config.acceptors})
    return state


Seen: TypeAlias = Mapping[tuple[str, str], Reply]
"""What backends answered before: (backend, path) -> reply, of a list for the path "" and of gets for others."""


def look(backends: Sequence[str], on_ids: Callable[[str, Sequence[bytes]], None] = lambda *_: None) -> Task:
    """Reads ahead what `bootstrap` needs and no key protects, without judging it. -> Seen.

    Of a folder with many ids only the list is read. `on_ids` is told a backend and the ids in its folder.
    """
    seen: dict[tuple[str, str], Reply] = {}

    def read(backend: str, path: str, most: int) -> Task:
        seen[backend, path] = yield Op(backend, "get", path, max_bytes=most, timeout_s=LOOK_TIMEOUT_S)

    def one(backend: str) -> Task:
        reply: Reply = yield Op(backend, "list", "", timeout_s=LOOK_TIMEOUT_S)
        seen[backend, ""] = reply
        ids = [] if reply.error is not None else [bytes.fromhex(e.name) for e in reply.value if _is_id(e.name)]
        on_ids(backend, ids)
        if len(ids) <= ROOTS_AT_ONCE:
            wanted = {genesis_path(i): GENESIS_BYTES_MAX for i in ids} | {hint_path(i): ENTRY_BYTES_MAX for i in ids}
            yield Gather({path: read(backend, path, most) for path, most in wanted.items()})

    yield Gather({b: one(b) for b in backends})
    return seen


def bootstrap(
    keys: WorkspaceKeys,
    backends: Sequence[str],
    seen: Seen = MappingProxyType({}),
    held: Mapping[bytes, bytes] = MappingProxyType({}),
) -> Task:
    """Reads genesis and hints on all reachable backends, to start a new device. -> Found.

    What `look` has `seen` is not read again, nor are sealed objects that are `held` by the SHA-256 that their names
    promise. Where folders hold many ids, one backend is read first, and on the others only the acceptors of its config.
    `Group.get_recent(found.state)` is to follow, and checks births. `DamagedError` when no backend holds a genesis,
    `NoQuorumError` when none could be read, `ForkError` when two contradict each other.
    """
    problems: dict[str, str] = {}
    restarted: set[str] = set()
    listed: dict[str, Any] = yield Gather({b: _listed(b, restarted, seen) for b in backends})
    record: EraRecord | None = yield from newest_record(keys, restarted)
    got: dict[str, Any] = {}
    first: Config | None = None
    rest = list(backends)
    few = all(not isinstance(ids, list) or len(ids) <= ROOTS_AT_ONCE for ids in listed.values())
    while rest and first is None and not few:
        backend = rest.pop(0)
        got[backend] = yield from _roots(keys, backend, listed[backend], seen)
        if isinstance(got[backend], list) and got[backend]:
            acceptor_id, genesis, _ = got[backend][0]
            with suppress(DamagedError, FormatError, NoQuorumError):  # not intact here: the next one has it
                root = {acceptor_id: (backend, genesis, None)}
                first = decode_agreed_config((yield from _const_of(keys, root, genesis.config, held)))
    known = None if first is None else {a.acceptor_id.hex() for _, a in first.acceptors}
    moved = any(isinstance(g, list) and any(_has_moved_on(root) for root in g) for g in got.values())
    if moved or record is not None:
        known = None
    if known is not None:
        ours = {b: [name for name in ids if name in known] for b, ids in listed.items() if isinstance(ids, list)}
        listed |= {b: ids for b, ids in ours.items() if ids}
    got.update((yield Gather({b: _roots(keys, b, listed[b], seen) for b in rest})))
    roots = _by_acceptor(got, problems)
    if not roots:
        raise _no_beginning(backends, got, problems)
    if len({genesis for _, genesis, _ in roots.values()}) > 1:
        raise ForkError(
            "backends show different beginnings of this workspace: "
            + ", ".join(f"{b} {g.fingerprint}" for b, g, _ in roots.values()),
            next_step="give `clone` only backends that belong together",
        )
    state, config, devices = yield from _start(keys, roots, first, record, held)
    members = {a.acceptor_id for _, a in config.acceptors}
    links = {acceptor_id: backend for acceptor_id, (backend, _, _) in roots.items() if acceptor_id in members}
    return Found(state, config, devices, links, problems)


def _has_moved_on(root: tuple[bytes, State, SignedEntry | None]) -> bool:
    """Whether an acceptor's hint shows another config than its genesis: then others may vote by now."""
    _, genesis, hint = root
    return hint is not None and hint.entry.value is not None and hint.entry.value.config != genesis.config


def _by_acceptor(
    got: Mapping[str, Any], problems: dict[str, str]
) -> dict[bytes, tuple[str, State, SignedEntry | None]]:
    """The acceptors that were found, and notes on the backends that show none, or another's."""
    roots: dict[bytes, tuple[str, State, SignedEntry | None]] = {}
    for backend, answer in got.items():
        if isinstance(answer, BackendError | UpgradeError):
            problems[backend] = answer.message
            continue
        for acceptor_id, genesis, hint in answer:
            if acceptor_id in roots:
                problems[backend] = f"holds the same acceptor as {roots[acceptor_id][0]}: one is a copy of the other"
                continue
            roots[acceptor_id] = (backend, genesis, hint)
        if not answer:
            problems[backend] = "holds no acceptor of this workspace"
    return roots


def _no_beginning(backends: Sequence[str], got: Mapping[str, Any], problems: Mapping[str, str]) -> MetaSyncError:
    newer = [answer for answer in got.values() if isinstance(answer, UpgradeError)]
    if 2 * len(newer) > len(backends):  # of fewer it may be damage
        return newer[0]
    reasons = "; ".join(f"{b}: {why}" for b, why in sorted(problems.items()))
    if any(isinstance(answer, BackendError) for answer in got.values()) or not backends:
        return NoQuorumError(f"no backend could be read ({reasons})", next_step="check the backends' URLs")
    return DamagedError(
        f"no backend holds a genesis of this workspace ({reasons})", next_step="give more of its backends"
    )


def _start(
    keys: WorkspaceKeys,
    roots: Mapping[bytes, tuple[str, State, SignedEntry | None]],
    config: Config | None,
    record: EraRecord | None,
    held: Mapping[bytes, bytes],
) -> Task:
    """-> (State, Config, DeviceSet): the newest hint signed by a device that its base admits, else the genesis.

    `config`: that of the genesis, if it was read. With an era's `record` only hints of that era count, and its first
    state replaces the genesis.
    """
    first = genesis = next(iter(roots.values()))[1]
    configs = {} if config is None else {genesis.config: config}
    if record is not None:
        first = record.first
        configs[first.config] = check_config(record.config)
    sets: dict[bytes, DeviceSet] = {}
    hints = [hint for _, _, hint in roots.values() if hint is not None and hint.entry.base.era == first.era]
    hints.sort(key=lambda hint: hint.entry.v, reverse=True)
    likely = [s for s in (hints[0].entry.base, hints[0].entry.value) if s is not None] if hints else [first]
    wanted = dict.fromkeys([likely[-1].config, *(state.devices for state in likely)])
    tasks = {d.hex(): _const_or_none(keys, roots, d, held) for d in wanted if d not in configs}
    consts: dict[str, bytes | None] = yield Gather(tasks)

    def const_of(digest: bytes) -> Task:
        return consts.get(digest.hex()) or (yield from _const_of(keys, roots, digest, held))

    def devices_of(state: State) -> Task:
        if state.devices not in sets:
            sets[state.devices] = decode_device_set((yield from const_of(state.devices)), keys.ns_id)
        return sets[state.devices]

    def loaded(state: State) -> Task:
        if state.config not in configs:
            configs[state.config] = decode_agreed_config((yield from const_of(state.config)))
        return state, configs[state.config], (yield from devices_of(state))

    for hint in hints:
        value = hint.entry.value
        assert value is not None
        try:
            public = (yield from devices_of(hint.entry.base)).key_of(hint.entry.device_id, hint.entry.certificate)
            if public is None or not hint.verifies(public) or not follows(value, hint.entry.base):
                continue
            start = yield from loaded(value)
            if not fault_named(*start):
                return start
        except (FormatError, UpgradeError, DamagedError, NoQuorumError):
            continue  # an older hint, or the genesis, is as good a start
    return (yield from loaded(first))


def _const_of(keys: WorkspaceKeys, roots: Mapping[bytes, Any], digest: bytes, held: Mapping[bytes, bytes]) -> Task:
    if digest in held:
        with suppress(FormatError, UpgradeError):  # then any other copy is asked for, and whoever needs it is told why
            return open_named(keys, RecordKind.CONST, digest, held[digest])
    return (yield from get_const(keys, digest, [(a, root[0]) for a, root in roots.items()], "a const object"))


def _const_or_none(keys: WorkspaceKeys, roots: Mapping[bytes, Any], digest: bytes, held: Mapping[bytes, bytes]) -> Task:
    """-> a const object, fetched ahead; None where that fails: whoever needs it is told why."""
    try:
        return (yield from _const_of(keys, roots, digest, held))
    except (DamagedError, FormatError, NoQuorumError, UpgradeError):
        return None


def _listed(backend: str, restarted: set[str], seen: Seen) -> Task:
    """-> the ids that lie in a backend's folder, or its error. Notes backends that show records of eras."""
    reply: Reply = seen.get((backend, "")) or (yield Op(backend, "list", "", timeout_s=LOOK_TIMEOUT_S))
    if reply.error is not None:
        return reply.error
    if any(item.name == ERAS for item in reply.value):
        restarted.add(backend)
    return [item.name for item in reply.value if _is_id(item.name)][:ROOTS_MAX]


def _roots(keys: WorkspaceKeys, backend: str, listed: Any, seen: Seen) -> Task:
    """-> [(acceptor id, genesis, hint or None)] of the ids listed on a backend, or its error."""
    if not isinstance(listed, list):
        return listed
    got = yield Gather({name: _root(keys, backend, bytes.fromhex(name), seen) for name in listed})
    errors = [root for root in got.values() if isinstance(root, BackendError | UpgradeError)]
    good = [root for root in got.values() if isinstance(root, tuple)]
    return errors[0] if errors and not good else good


def _root(keys: WorkspaceKeys, backend: str, acceptor_id: bytes, seen: Seen) -> Task:
    """-> (acceptor id, genesis, hint or None); None for something else; or the error."""
    data = yield from _get(backend, genesis_path(acceptor_id), GENESIS_BYTES_MAX, seen)
    if data is None or isinstance(data, BackendError):
        return data
    try:
        genesis = open_genesis(keys, data, acceptor_id)
    except UpgradeError as e:
        return e
    except FormatError:
        try:
            check_format(data[0] if data else 0, "the genesis")
        except UpgradeError as e:  # nobody vouches for the byte: `_no_beginning` says so where most backends show it
            return e
        except FormatError:
            pass
        return None
    hint = None
    data = yield from _get(backend, hint_path(acceptor_id), ENTRY_BYTES_MAX, seen)
    if isinstance(data, bytes):
        with suppress(FormatError, UpgradeError):  # anything but a good hint is ignored
            hint = open_hint(keys, data, acceptor_id)
    return acceptor_id, genesis, hint


def _get(backend: str, path: str, most: int, seen: Seen) -> Task:
    reply: Reply = seen.get((backend, path)) or (
        yield Op(backend, "get", path, max_bytes=most, timeout_s=LOOK_TIMEOUT_S)
    )
    if isinstance(reply.error, NotFoundError):
        return None
    return reply.error if reply.error is not None else reply.value


def _is_id(name: str) -> bool:
    return len(name) == 32 and not name.strip("0123456789abcdef")
