"""A workspace in virtual time whose majority is lost, and the whole of a recovery."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from paxos_world import Workspace, World, change, make_workspace

from metasync.config import Acceptor, Config
from metasync.consensus import Decided, EraRecord, Group, State, birth_digest
from metasync.consensus.new_era import Content, Held, begin, end_era
from metasync.errors import NoQuorumError
from metasync.runtime.effects import Task

ME, OTHER, THIRD = b"m" * 16, b"o" * 16, b"t" * 16


@dataclass
class Room:
    """A workspace on some backends, and all acceptors there ever were."""

    world: World
    ws: Workspace
    births: dict[bytes, bytes]
    links: dict[bytes, str] = field(default_factory=dict)

    @classmethod
    def made(cls, seed: int, names: str) -> Room:
        world = World(seed, [*names])
        ws = make_workspace(world)
        return cls(world, ws, dict(ws.births), dict(ws.links))

    def group(self, incarnation: bytes, device: int = 0, **more: Any) -> Group:
        return self.ws.group(incarnation, device, **more)

    def without(self, config: Config, lost: str) -> tuple[Config, dict[bytes, bytes], dict[bytes, str]]:
        """The config without the lost ones, every other with a new vote; births and ways of these."""
        births, links, entries = {}, {}, []
        for b in config.backends:
            if b.name in lost:
                continue
            acceptor_id, nonce = self.world.rng.randbytes(16), self.world.rng.randbytes(32)
            births[acceptor_id], links[acceptor_id] = nonce, b.name
            entries.append(replace(b, acceptor=Acceptor(acceptor_id, "log", birth_digest(nonce))))
        self.births |= births
        return config.with_backends(entries), births, links


def recovering(room: Room, group: Group, known: State, lost: str, *, carry: bool = True) -> Task:
    """The whole of a recovery, as `maintenance.recover` does it. -> EraRecord."""
    ids = {b.backend_id for b in room.ws.config.backends if b.name in lost}
    found = yield from end_era(group.participant, group.enter, known, ids)
    if isinstance(found, EraRecord):
        return found
    assert isinstance(found, Held)
    carried = found.carried if carry else None
    config, births, links = room.without((yield from group._config_of(found.ended)), lost)
    content = Content(
        config=config, births=births, devices=room.ws.devices.encode(), state=carried or found.ended,
        op_id=room.world.rng.randbytes(16), carried=carried, without=tuple(lost), at_ns=1, links=links,
    )  # fmt: skip
    return (yield from begin(
        group.participant, group.enter, found.ended, content, room.ws.devices.chain, room.ws.admin
    ))  # fmt: skip


def pushed(room: Room, group: Group, base: State, op: int, *, only: str = "") -> State:
    """A push, agreed; `only`: the backends that are up meanwhile."""
    room.world.down = set(room.world.stores) - set(only) if only else set()
    op_id = bytes([op]) * 16
    decided: Decided = room.world.do(group.propose(base, lambda: change(op_id), op_id=op_id))
    assert decided.mine
    room.world.run()
    room.world.down = set()
    return decided.state


def tried(room: Room, group: Group, base: State, op: int, *, only: str) -> None:
    """A push that reaches too few: its outcome stays open."""
    room.world.down = set(room.world.stores) - set(only)
    op_id = bytes([op]) * 16
    with pytest.raises(NoQuorumError):
        room.world.do(group.propose(base, lambda: change(op_id), op_id=op_id, deadline_s=3.0))
    room.world.run()
    room.world.down = set()


def recovered(room: Room, lost: str, known: State, **more: Any) -> tuple[EraRecord, State]:
    """Another process recovers. -> its record, and what it then learns."""
    room.world.down |= set(lost)
    group = room.group(OTHER, 1)
    record = room.world.do(recovering(room, group, known, lost, **more))
    return record, room.world.do(group.get_recent(known))
