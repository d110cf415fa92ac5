"""What users know of each other's backends and devices, beside what their own device tells them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from metasync.keys.derive import sha256
from metasync.keys.device_set import invitations
from metasync.keys.invitation import decode_code
from metasync.workspace import Workspace
from simulation.plan import GUEST
from simulation.thief import Thief

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.play import Play
    from simulation.witness import Witness


class Agreed:
    """What a user knows who changes backends or devices; the simulation puts its own in the place of this.

    `forks`: backends do more than this mode of agreement bears.
    """

    forks = False

    def is_excluded(self, client: Client, revoked: bool) -> bool:
        """Whether a device was revoked; if not, whether the keys changed before it was agreed."""
        return False

    def spare(self, number: int) -> str | None:
        """The name of a store that takes no part."""
        return None

    def may_leave(self, name: str) -> bool:
        """Whether a backend may be taken out, or out of the vote, within the budget of faults."""
        return False

    def changing(self, by: int) -> None:
        """A change of the backends begins (1), or has ended (-1)."""

    def left(self, name: str) -> None:
        """A backend was removed."""

    def invited(self, number: int, code: str) -> None:
        """An invitation was made: whoever waits for it has its code."""

    def misused(self, client: Client, *, in_doubt: bool = False) -> bool:
        """Whether a client has an invitation that it may not join by any more, or may have to take that for so."""
        return False

    def device(self, number: int) -> bytes:
        """The id of a device."""
        return bytes(16)

    def revoking(self, client: str) -> None:
        """A device's revocation begins."""

    def shut_out(self, device_id: bytes, version: int) -> None:
        """A device's revocation is complete."""

    def insider(self) -> bytes | None:
        """The id of the device that keeps no rule, while it is not revoked."""
        return None

    def lost(self, w: Workspace) -> list[str]:
        """The agreed backends that are lost for good."""
        return []

    def unreadable(self) -> int | None:
        """The first of the newest versions that nobody can read; None if the newest can be read."""
        return None

    def ender(self) -> bytes | None:
        """The id of a device that ended a version, while it is not revoked."""
        return None

    def is_ended(self) -> bool:
        """Whether the version after the newest was ended, or that one itself can have no fence."""
        return False

    def unclosed(self, v: int) -> bool:
        """Whether a device may have seen to it that this change can have no fence. Somebody was told so."""
        return False

    def recovered(self) -> None:
        """A recovery came to its end, or there was nothing to recover."""

    def may_stop(self) -> bool:
        """Whether a device may have written a second value in another's round, and a backend be away that tells."""
        return False

    def floors(self) -> Collection[int]:
        """The versions below which logs may be deleted by now."""
        return ()

    def store_of(self, w: Workspace, name: str) -> str | None:
        """The store that an agreed backend is."""
        return None


class AgreedIn(Agreed):
    """What users know of each other's backends and devices."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.forks = play.plan.beyond

    @property
    def _witness(self) -> Witness:
        assert self._play.witness is not None
        return self._play.witness

    def is_excluded(self, client: Client, revoked: bool) -> bool:
        if client.secret is None:
            return False
        device_id, devices = client.secret[1].device_id, self._witness.devices
        if revoked:
            return device_id in devices.revoked_ids
        return devices.get(device_id) is None and devices.chain.epoch > 1

    def spare(self, number: int) -> str | None:
        taken = {e.identity for e in self._witness.config.backends}
        free = [n for n, s in self._play.stores.items() if s.identity not in taken and n not in self._play._wiped]
        return free[number % len(free)] if free else None

    def may_leave(self, name: str) -> bool:
        play, config = self._play, self._witness.config
        entry = config.named(name)
        if entry is None:
            return False
        wiped = {play.stores[n].identity for n in play._wiped} & {e.identity for e in config.backends}
        return not wiped or entry.identity in wiped

    def changing(self, by: int) -> None:
        self._play._changing += by

    def left(self, name: str) -> None:
        play = self._play
        taken = {e.identity for e in self._witness.config.backends}
        if any(f.kind == "empty" for f in play.plan.faults):
            return  # the plan says when
        for store in play.stores.values():
            if store.identity not in taken and store.objects and play.world.rng.random() < 0.7:
                play.world.at(play.world.rng.choice((0.1, 30.0, 400.0)), partial(play.empty_removed, store))

    def invited(self, number: int, code: str) -> None:
        for client in self._play.clients:
            if client.plan.invited == f"{GUEST}{number}" and not client.code:
                client.code = code

    def misused(self, client: Client, *, in_doubt: bool = False) -> bool:
        if not client.code or self._play.world.counts["era begun"]:
            return bool(client.code)
        invitation_id = decode_code(client.code).invitation_id
        found = [i for i in invitations(self._witness.devices) if i.invitation_id == invitation_id]
        user = self._witness.used.get(invitation_id)
        if user == sha256(client.own_part):
            return in_doubt and not found  # new keys have ended the list, and it did not learn that it was the one
        return user is not None or not any(i.is_open(self._witness.newest.v) for i in found)

    def device(self, number: int) -> bytes:
        devices = self._witness.devices.certificates
        return devices[number % len(devices)].device_id

    def revoking(self, client: str) -> None:
        """One provider is often out of its reach, so that one log stays open."""
        world = self._play.world
        if world.rng.random() < 0.7:
            store = world.rng.choice(list(self._play.stores.values()))
            store.cut_off[client] = max(store.cut_off.get(client, 0.0), world.now + 20.0)

    def shut_out(self, device_id: bytes, version: int) -> None:
        play = self._play
        stolen = next(c for c in play.clients if c.secret is not None and c.secret[1].device_id == device_id)
        assert stolen.secret is not None
        thief = Thief(play.world, self._witness, stolen.secret)
        for seconds in (0.0, 0.3, 2.0, 20.0):
            play.world.at(seconds, lambda: thief.strike(version))
            play.world.at(seconds, lambda: thief.strike(self._witness.newest.v + 1))

    def floors(self) -> Collection[int]:
        return self._witness.floors

    def insider(self) -> bytes | None:
        found = self._play.insider
        return None if found is None or self._witness.devices.get(found.device_id) is None else found.device_id

    def lost(self, w: Workspace) -> list[str]:
        stores = self._play.stores_by
        return [e.name for e in w._connections.config.backends if stores[e.identity].gone]

    def unreadable(self) -> int | None:
        found, v = self._play.insider, None
        nowhere = set() if found is None else found.nowhere
        for state in reversed(self._witness.chain):
            if not {state.master, state.index.hash, state.retained.hash} & nowhere:
                break
            v = state.v
        return v

    def ender(self) -> bytes | None:
        found = self._play.insider
        return self.insider() if found is not None and (found.ended or self._play.unclosed) else None

    def is_ended(self) -> bool:
        found, v = self._play.insider, self._witness.newest.v
        return found is not None and (v + 1 in found.ended or v == self._play.unclosed > 0)

    def unclosed(self, v: int) -> bool:
        found = self._play.insider
        if found is None or v not in found.spoilt:
            return False
        self._play.unclosed = v
        return True

    def recovered(self) -> None:
        self._play.recovered_era = self._witness.newest.era

    def may_stop(self) -> bool:
        plan = self._play.plan
        return not self._play.healed and any(s.kind == "contrary" for s in plan.insider)

    def store_of(self, w: Workspace, name: str) -> str | None:
        entry = w._connections.config.named(name)
        return None if entry is None else self._play.stores_by[entry.identity].name
