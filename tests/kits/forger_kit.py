"""A device that lies: it has its own valid keys, keeps to no rule, and writes to the stores themselves.

The tests of attacks have it in a `paxos_world.World`, the simulator (`simulation.insider`) in a world of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from metasync.config import Form
from metasync.consensus import Change, State
from metasync.consensus.records.entry import (
    Claim,
    Entry,
    Kind,
    Round,
    block_path,
    entry_path,
    seal_block,
    seal_entry,
)
from metasync.consensus.records.state import ZERO_HASH, ZERO_ID, step_versions, successor
from metasync.keys.derive import sha256
from metasync.keys.device_set import DeviceIdentity
from metasync.keys.keyring import WorkspaceKeys

NOBODY = Round(0, ZERO_ID)  # of every DECIDED


class Objects(Protocol):
    """What lies below the workspace's folder on one backend, by its path there."""

    def __contains__(self, path: object, /) -> bool: ...
    def __getitem__(self, path: str, /) -> bytes: ...
    def __setitem__(self, path: str, data: bytes, /) -> None: ...


class Stores(Protocol):
    """All backends, by their names."""

    rng: random.Random

    @property
    def stores(self) -> Mapping[str, Objects]: ...


class Members(Protocol):
    """What a device knows of its workspace. `forms`: of the acceptors, by the names of their backends."""

    keys: WorkspaceKeys

    @property
    def identities(self) -> Sequence[DeviceIdentity]: ...
    @property
    def forms(self) -> Mapping[str, Form]: ...
    def acceptor_of(self, name: str) -> bytes: ...


@dataclass
class Forger:
    """`device`: whose keys it signs with. `incarnation`: of its rounds."""

    world: Stores
    ws: Members
    device: int
    incarnation: bytes = b"\x66" * 16

    def lie(self, base: State, op: bytes = b"lie-", **changes: Any) -> State:
        """A value of its own after `base`, with anything changed; `skip` always where 4 divides its version."""
        skip = base.prev if base.v & 1 else base.hash
        assert "skip" in changes or not step_versions(base.v + 1)
        return replace(successor(base, Change(op * 4, master=op * 8), skip=skip, writer=self.incarnation), **changes)

    def round(self, n: int) -> Round:
        return Round(n, self.incarnation)

    def tell(
        self, base: State, names: Iterable[str], kind: Kind, rnd: Round, value: State | None = None,
        claim: Claim | None = None, steps: Sequence[State] = (), **carried: bytes,
    ) -> None:  # fmt: skip
        """Appends one message to these backends' logs of the version after `base`, or writes its next block there.

        `carried`: what else stands in it, as in an `Entry`.
        """
        for name in names:
            self._append(base, name, kind, rnd, value, claim=claim, steps=tuple(s.encode() for s in steps), **carried)

    def agree(self, base: State, names: Sequence[str], value: State, chain: Sequence[State], **carried: bytes) -> None:
        """Has these backends accept a value after `base`, in a round that it prepares.

        `chain`: the states before it, by version.
        """
        self.tell(base, names, Kind.PREPARE, self.round(1))
        steps = [chain[u] for u in step_versions(value.v)]
        self.tell(base, names, Kind.ACCEPT, self.round(1), value, steps=steps, **carried)

    def _append(self, base: State, name: str, kind: Kind, rnd: Round, value: State | None, **carried: Any) -> None:
        store = self.world.stores[name]
        idx, last = 0, ZERO_HASH
        while (path := self.place(base, name, idx)) in store:
            idx, last = idx + 1, sha256(store[path])
        store[path] = self.sealed(base, name, idx, last, kind, rnd, value, **carried)

    def sealed(
        self, base: State, name: str, idx: int, last: bytes, kind: Kind, rnd: Round, value: State | None = None,
        **carried: Any,
    ) -> bytes:  # fmt: skip
        """One message for this place, after the one with the hash `last`."""
        ws = self.ws
        me, a, v = ws.identities[self.device], ws.acceptor_of(name), base.v + 1
        entry = Entry(
            acceptor_id=a, v=v, idx=idx, prev_entry=last, base=base, kind=kind, round=rnd, value=value,
            entry_id=self.world.rng.randbytes(16), device_id=me.device_id, **carried,
        )  # fmt: skip
        seal = seal_block if ws.forms.get(name) == "block" else seal_entry
        return seal(ws.keys, entry, me.sign_private, self.world.rng.randbytes(32))

    def place(self, base: State, name: str, idx: int) -> str:
        """Where an entry of the version after `base` lies, or a block of this device."""
        ws, a = self.ws, self.ws.acceptor_of(name)
        if ws.forms.get(name) == "block":
            me = ws.identities[self.device].device_id
            return block_path(ws.keys, base.epoch, base.era, a, base.v + 1, me, idx)
        return entry_path(ws.keys, base.epoch, base.era, a, base.v + 1, idx)
