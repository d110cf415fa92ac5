"""Target: a device that reads what three backends show it, of which the input has altered some.

Each part of the input alters one object: bytes of an outsider's, or a record that a device of the workspace sealed and
signed with something else inside. Then a device learns the newest state from where it was, and a new one begins. What
one outsider does to one backend of three changes nothing; what an insider does may stop a device, in words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from paxos_world import World, change, make_workspace

from fuzz.target import FEW, Target, joined_parts, parts_of, replaced
from metasync.codec import u32, u64
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.founding import bootstrap
from metasync.consensus.records.birth import birth_path, genesis_path
from metasync.consensus.records.entry import Entry, Kind, Round, _encode, entry_path, hint_path
from metasync.consensus.records.state import VERSION_MAX, State
from metasync.errors import (
    DamagedError,
    ForkError,
    MetaSyncError,
    NoQuorumError,
    UpgradeError,
    WorkspaceError,
)
from metasync.keys.derive import Header, RecordKind, seal, sign

NAMES = ["a", "b", "c"]
VERSIONS = 4
ALTERED_MAX = 10
LIMIT_S = 400.0  # of virtual time: several deadlines
FAR = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 21, 37, 69, 133, 10**6, 2**32, 2**40, 2**62, VERSION_MAX, 2**64 - 1)
PROBED = (  # where a learner gallops, stride by stride
    VERSIONS + 1,
    *(VERSIONS + 1 + sum(8 * 16**k for k in range(n)) + 16**n * step for n in range(17) for step in (1, 2, 4, 8)),
)


class Ground(NamedTuple):
    """What lies on the backends before anything is altered."""

    ws: Any
    stores: dict[str, dict[str, bytes]]
    chain: list[State]


@cache
def ground() -> Ground:
    world = World(1, NAMES)
    ws = make_workspace(world)
    group = ws.group(b"\1" * 16)
    chain = [ws.genesis]
    for n in range(1, VERSIONS + 1):
        op = bytes((n,)) * 16
        decided = world.do(group.propose(chain[-1], lambda op=op: change(op), op_id=op))
        world.do(group.write_hint(chain[-1], decided.state, now=True))
        chain.append(decided.state)
    world.run()  # what is under way lands
    return Ground(ws, {n: dict(s) for n, s in world.stores.items()}, chain)


def learn(data: bytes) -> None:
    g = ground()
    world = World(2, NAMES)
    for name, objects in g.stores.items():
        world.stores[name].update(objects)
    touched, insider = set(), False
    for part in parts_of(data)[:ALTERED_MAX]:
        b = part[:6].ljust(6, b"\0")
        name = NAMES[b[1] % 3]
        touched.add(name)
        insider |= b[0] % 8 >= 5
        _alter(g, world.stores[name], g.ws.acceptor_of(name), b, part[6:])
    device = g.ws.group(b"\2" * 16, device=1)
    with replaced([(LogAcceptor, "first_entry", checked_first_entry)]):
        _read(g, world, device, data, touched, insider)


first_entry = LogAcceptor.first_entry


def checked_first_entry(acceptor: LogAcceptor, v: int) -> Any:
    """What a learner gallops with: never to a version that fits no field."""
    assert v <= VERSION_MAX, f"looks for version {v}"
    return first_entry(acceptor, v)


def _read(g: Ground, world: World, device: Any, data: bytes, touched: set[str], insider: bool) -> None:
    wrong: MetaSyncError | None = None
    for task in (device.get_recent(g.chain[b_known(data)]), bootstrap(g.ws.keys, NAMES), _begin(g)):
        process = world.start("reader", task)
        world.run(lambda p=process: p.done, limit_s=world.now + LIMIT_S)
        assert process.done, "a task that does not end"
        if process.error is not None:
            if not isinstance(process.error, MetaSyncError):
                raise process.error
            wrong = process.error
            continue
        if isinstance(process.result, State) and not insider and len(touched) <= 1:
            assert process.result == g.chain[-1]
    if wrong is not None:
        # one backend alone stops nobody; with a device's keys behind it, it may show a fork
        assert len(touched) > 1 or (insider and isinstance(wrong, ForkError)), f"one backend stopped it: {wrong}"
        raise wrong


def b_known(data: bytes) -> int:
    return len(data) % (VERSIONS + 1)


def _begin(g: Ground) -> Any:
    """What `clone` does: begins somewhere, then learns the newest."""
    start = yield from bootstrap(g.ws.keys, NAMES)
    group = g.ws.group(b"\3" * 16, device=2, links=start.links)
    return (yield from group.get_recent(start.state))


def _alter(g: Ground, store: dict[str, bytes], acceptor: bytes, b: bytes, payload: bytes) -> None:
    """b: 0 what is done, 1 backend, 2 version, 3 index or object, 4 of an insider's record: its base, 5 its kind."""
    keys = g.ws.keys
    v = FAR[b[2] % len(FAR)]
    slot = entry_path(keys, 1, 0, acceptor, v, b[3] % 8)
    paths = [slot, hint_path(acceptor), birth_path(acceptor), genesis_path(acceptor), *sorted(store)]
    path = paths[b[3] % len(paths)]
    match b[0] % 8:
        case 0:
            store.pop(path, None)
        case 1:
            store[slot] = payload
        case 2:
            store[path] = payload
        case 3:
            old = bytearray(store.get(path, b""))
            at = int.from_bytes(b[4:6], "big") % (len(old) + 1)
            old[at : at + len(payload)] = payload
            store[path] = bytes(old)
        case 4:
            store[path] = store.get(paths[b[4] % len(paths)], b"")
        case 5:
            store[slot] = _sealed(g, acceptor, v, b, payload, RecordKind.ENTRY)
        case 6:
            store[hint_path(acceptor)] = _sealed(g, acceptor, v, b, payload, RecordKind.HINT)
        case _:
            for far in PROBED[: 4 * (b[4] % 32) + 1]:
                if far <= 2**64 - 1:
                    far_slot = entry_path(keys, 1, 0, acceptor, far, 0)
                    store[far_slot] = _sealed(g, acceptor, far, b, payload, RecordKind.ENTRY)


def _sealed(g: Ground, acceptor: bytes, v: int, b: bytes, payload: bytes, kind: RecordKind) -> bytes:
    """An entry or hint of version v as a device of the workspace may seal it: bytes 1.. of the payload are laid over
    its body, from where its byte 0 says (in steps of 16)."""
    base = replace(g.chain[min(v - 1, VERSIONS) if v - 1 <= VERSIONS else b[4] % (VERSIONS + 1)], v=v - 1)
    if b[4] & 64 and v > VERSIONS + 1:
        base = replace(base, config=b"\7" * 32)
    if b[4] & 128 and v > VERSIONS + 1:
        base = replace(base, devices=b"\7" * 32)
    value = replace(base, v=v, prev=base.hash, skip=base.hash, writer=b"\7" * 16, op_id=b[1:2] * 16)
    what = Kind(b[5] % 3 + 1) if kind is RecordKind.ENTRY else Kind.DECIDED
    identity = g.ws.identities[0]
    entry = Entry(
        acceptor_id=acceptor,
        v=v,
        idx=b[3] % 8 if kind is RecordKind.ENTRY and b[0] % 8 == 5 else 0,
        prev_entry=bytes(32) if kind is RecordKind.HINT or not b[3] % 8 else b"\7" * 32,
        base=base,
        kind=what,
        round=Round(1 + b[5] % 4, bytes((1 + b[1] % 255,)) * 16),
        value=None if what is Kind.PREPARE else value,
        entry_id=b"\7" * 16,
        device_id=identity.device_id if b[5] < 128 else b"\7" * 16,
        certificate=payload[:200] if b[5] >= 128 else b"",
    )
    body = bytearray(_encode(entry))
    if payload and b[5] < 128:
        at = payload[0] * 16 % len(body)
        body[at : at + len(payload) - 1] = payload[1:]
    body = body[:3_500]
    header = Header(kind, base.era, base.epoch, b"\5" * 32)
    context = "entry 1" if kind is RecordKind.ENTRY else "hint 1"
    signed = bytes(body) + sign(identity.sign_private, context, header.encode() + bytes(body))
    binding = g.ws.keys.ns_id + acceptor
    if kind is RecordKind.ENTRY:
        binding += u64(v) + u32(entry.idx)
    return seal(g.ws.keys.log_key(1), header, signed, binding=binding)


def knowing_all(data: bytes) -> bytes:
    """The same, read by a device that is at the newest version."""
    return data + bytes((VERSIONS - len(data)) % (VERSIONS + 1) or VERSIONS + 1)


def seeds() -> list[bytes]:
    def step(
        what: int, backend: int = 0, v: int = 4, at: int = 0, base: int = 0, kind: int = 0, data: bytes = b""
    ) -> bytes:
        return bytes((what, backend, v, at, base, kind)) + data

    newer = b"\2" * 150
    return [
        b"",
        joined_parts([step(0, at=n) for n in range(6)]),
        joined_parts([step(1, data=bytes(512)), step(1, v=3, at=1, data=b"<html>")]),
        joined_parts([step(2, at=2, data=b"x"), step(2, at=3, data=b"\2" + bytes(511))]),
        joined_parts([step(3, at=6, base=1, data=b"\0\1\2"), step(4, at=1, base=3)]),
        joined_parts([step(5, kind=0), step(5, at=1, kind=1)]),
        joined_parts([step(5, v=5, base=64), step(5, 1, v=6, base=128), step(5, 2, v=5, base=2)]),
        joined_parts([step(6, v=18, kind=2), step(6, 1, v=18), step(6, 2, v=18)]),
        joined_parts([step(6, v=6, kind=128, data=newer), step(5, v=4, kind=128, data=newer)]),
        knowing_all(joined_parts([step(7, n, v=4, base=31, kind=1) for n in range(3)])),
        knowing_all(joined_parts([step(7, n, v=4, base=8 + 64, kind=1) for n in range(3)])),
        joined_parts([step(5, n, v=4, kind=k) for n in range(3) for k in (0, 1)]),
    ]


NETWORK = (
    Target(
        "network",
        learn,
        seeds,
        allowed=(ForkError, NoQuorumError, UpgradeError, DamagedError, WorkspaceError),
        room=lambda _: 4 << 20,
        tries=FEW,
    ),
)
