"""A device that was stolen, in the hands of somebody who knows the format and keeps to no rule.

It has the keys that the device had. It strikes when its revocation is complete, and not before: until then it is one of
the workspace's devices, and devices are trusted. It writes to the stores themselves.
"""

from __future__ import annotations

import random
from typing import Final

from metasync.consensus.records.entry import Entry, Kind, Round, entry_path, seal_entry
from metasync.consensus.records.state import Change, State, skip_version, step_versions, successor
from metasync.keys.derive import sha256
from metasync.keys.keyring import WorkspaceKeys, open_keys
from simulation.machine import Secret
from simulation.network import Store
from simulation.witness import Witness
from simulation.world import World

HIGH: Final = 1 << 20  # a round above all others


class Thief:
    """`secret`: what the stolen device held."""

    def __init__(self, world: World, witness: Witness, secret: Secret) -> None:
        self._world = world
        self._witness = witness
        self._secret = secret
        self._rng = random.Random(world.rng.getrandbits(32))

    def strike(self, v: int) -> None:
        """Tries to have a value of its own agreed as version v, on all logs there are."""
        witness = self._witness
        if not 0 < v <= len(witness.chain):
            return
        base = witness.chain[v - 1]
        keys = self._secret[0]
        if base.epoch not in dict(keys.epoch_keys):
            if keys.encrypted:
                return  # names that it cannot even compute
            keys = open_keys(keys.ns_id, base.epoch)
        incarnation = self._rng.randbytes(16)
        change = Change(op_id=self._rng.randbytes(16))
        witness.stolen.add(change.op_id)
        value = successor(base, change, skip=self._skip(base), writer=incarnation)
        rnd = Round(HIGH, incarnation)
        messages: list[tuple[Kind, Round, State | None]] = [(Kind.PREPARE, rnd, None), (Kind.ACCEPT, rnd, value)]
        if self._rng.random() < 0.4:
            messages = [(Kind.DECIDED, Round(0, bytes(16)), value)]
        config = witness.config_of(base)
        for entry, acceptor in config.acceptors:
            store = witness.stores[entry.identity]
            if acceptor.form == "log" and store.liar is None:
                for kind, message_round, content in messages:
                    self._append(keys, store, acceptor.acceptor_id, base, kind, message_round, content)
        self._world.count("stolen device strikes")

    def _skip(self, base: State) -> bytes:
        return self._witness.chain[skip_version(base.v + 1)].hash

    def _append(
        self, keys: WorkspaceKeys, store: Store, acceptor_id: bytes, base: State, kind: Kind, rnd: Round,
        value: State | None,
    ) -> None:  # fmt: skip
        idx, last = 0, bytes(32)
        while True:
            inside = entry_path(keys, base.epoch, base.era, acceptor_id, base.v + 1, idx)
            found = next((p for p in store.objects if p.endswith(inside)), None)
            if found is None:
                break
            last, idx = sha256(store.objects[found]), idx + 1
        root = next((p.partition("/")[0] for p in store.objects if f"/{acceptor_id.hex()}/birth" in p), None)
        if root is None:
            return
        device, certificate = self._secret[1], self._secret[2]
        steps = [self._witness.chain[v].encode() for v in step_versions(base.v + 1)] if value is not None else []
        entry = Entry(
            acceptor_id=acceptor_id, v=base.v + 1, idx=idx, prev_entry=last, base=base, kind=kind, round=rnd,
            value=value, entry_id=self._rng.randbytes(16), device_id=device.device_id,
            certificate=certificate.encode() if base.v == 0 else b"", steps=tuple(steps),
        )  # fmt: skip
        data = seal_entry(keys, entry, device.sign_private, self._rng.randbytes(32))
        store.objects[f"{root}/{inside}"] = data
        self._world.trace("thief", store.name, base.v + 1, idx, kind.name)
        store.landed(store, f"{root}/{inside}", data)
