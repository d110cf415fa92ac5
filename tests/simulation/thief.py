"""A device that was stolen, in the hands of somebody who knows the format and keeps to no rule.

It has the keys that the device had. It strikes when its revocation is complete, and not before: until then it is one of
the workspace's devices, and devices are trusted. It writes to the stores themselves.
"""

from __future__ import annotations

import random
from typing import Final

from kits.forger_kit import NOBODY, Forger

from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.state import Change, State, successor
from metasync.keys.keyring import open_keys
from simulation.insider import Grip
from simulation.machine import Secret
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
        witness.liars.add(self._secret[1].device_id)
        if base.epoch not in dict(keys.epoch_keys):
            if keys.encrypted:
                return  # names that it cannot even compute
            keys = open_keys(keys.ns_id, base.epoch)
        incarnation = self._rng.randbytes(16)
        change = Change(op_id=self._rng.randbytes(16))
        witness.stolen.add(change.op_id)
        value = successor(base, change, skip=witness.skip_of(base), writer=incarnation)
        rnd = Round(HIGH, incarnation)
        messages: list[tuple[Kind, Round, State | None]] = [(Kind.PREPARE, rnd, None), (Kind.ACCEPT, rnd, value)]
        if self._rng.random() < 0.4:
            messages = [(Kind.DECIDED, NOBODY, value)]
        device, certificate = self._secret[1], self._secret[2]
        grip = Grip(keys, device, witness.config_of(base), witness.stores, self._rng)
        forger = Forger(grip, grip, 0, incarnation)
        names = [name for name, form in grip.forms.items() if form == "log"]
        for kind, message_round, content in messages:
            told = certificate.encode() if base.v == 0 else b""
            steps = witness.steps_of(base) if content is not None else ()
            forger.tell(base, names, kind, message_round, content, steps=steps, certificate=told)
        self._world.count("stolen device strikes")
