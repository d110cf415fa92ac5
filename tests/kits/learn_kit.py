"""Groups of devices that push versions in the world of a test, and how many requests they made."""

from __future__ import annotations

from typing import Any

from paxos_world import Workspace, World, change

from metasync.codec import u64
from metasync.consensus import Group, Ref, State
from metasync.consensus.records.entry import Entry, Kind, Round, entry_path, open_entry
from metasync.consensus.records.state import successor

NAMES = ["a", "b", "c"]


def push(world: World, ws: Workspace, group: Group, base: State, times: int = 1) -> State:
    for _ in range(times):
        op_id = u64(base.v + 1) * 2
        decided = world.do(group.propose(base, lambda op_id=op_id: change(op_id)))
        assert decided.mine
        world.do(group.write_hint(base, decided.state))
        base = decided.state
    world.run()  # lets stragglers land
    return base


def stored(world: World, group: Group, base: State, data: bytes, generation: int) -> Ref:
    """Stores one meta object; its name."""
    return world.do(group.put_index(base, [], lambda _: data, generation=generation))[0][-1]  # type: ignore[no-any-return]


def forget_requests(world: World) -> None:
    for requests in world.requests.values():
        requests.clear()


def most_requests(world: World) -> int:
    return max(len(requests) for requests in world.requests.values())


def group_of(ws: Workspace, number: int, device: int = 0, **more: Any) -> Group:
    return ws.group(bytes([number]) * 16, device, **more)


def push_while(world: World, group: Group, base: State) -> State:
    op_id = u64(base.v + 1) * 2
    decided = world.do(group.propose(base, lambda: change(op_id)))
    assert decided.mine
    return decided.state


def accept_on(world: World, ws: Workspace, base: State, names: list[str], op_id: bytes, number: int) -> State:
    """Puts PREPARE and ACCEPT of one round on these backends only, as a proposer that died would have."""
    member = group_of(ws, number).participant
    value = successor(base, change(op_id), skip=base.hash, writer=member.incarnation)
    for name in names:
        a = ws.unread(member, base, name)
        for kind, carried in ((Kind.PREPARE, None), (Kind.ACCEPT, value)):
            rnd = Round(1, member.incarnation)
            entry, data = a.sealed(a.log, kind, rnd, carried, world.rng.randbytes(48))
            world.stores[name][a.place(entry.idx)] = data
            a.log.append_own(entry, data)
    return value


def entries_of(world: World, ws: Workspace, name: str, v: int) -> list[Entry]:
    """What stands in the log of a version."""
    found: list[Entry] = []
    acceptor, store = ws.acceptor_of(name), world.stores[name]
    while (path := entry_path(ws.keys, 1, 0, acceptor, v, len(found))) in store:
        place = {"ns_id": ws.keys.ns_id, "era": 0, "epoch": 1, "acceptor_id": acceptor, "v": v, "idx": len(found)}
        found.append(open_entry(ws.keys, store[path], **place).entry)
    return found
