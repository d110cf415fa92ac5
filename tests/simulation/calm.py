"""The end of a simulation: all faults are over, and all who can must come to one tree, or be told why they cannot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from metasync.consensus.records.state import HINT_EVERY
from simulation import checks
from simulation.client import Client, Operation
from simulation.plan import Step
from simulation.world import Actor, Violation

if TYPE_CHECKING:
    from simulation.play import Play

CALM_ROUNDS: Final = 8  # in which all clients must come to one tree after the last fault
LOOKS_AFTER_LIES: Final = 6
CALM_S: Final = 3_600.0  # for a round, in virtual time
_LAST_ROUND: Final = "it promised the last round"
_UNDELETED: Final = "were deleted"  # of what `leaps` says where floors may be true or not


class Calm:
    """The end of a play. Within the budget of faults it is `settle`, beyond it `name_lies`."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self._lost: set[Client] = set()  # who can find no quorum any more, by what is not promised
        self._written_on = False  # so that a hint stands on all that are left

    def settle(self, actor: Actor) -> None:
        """All clients, in turns, until nothing changes any more."""
        for client in self.play.clients:
            client.close()
        self._tell_revoked(actor)
        self._bring_guests(actor)
        # A device that never was agreed before the keys changed is told to clone anew, or that it cannot go on.
        left = [c for c in self.play.clients if not (c.gone or c.revoked)]
        clients = [c for c in left if not c.agreed.is_excluded(c, revoked=False)]
        began = self.play.world.now
        self._recover(actor, clients)
        if self.play.is_lost_again():
            for client in clients:
                client.operate(actor, Step("sync", 0), client.rng())
                client.close()
            self.play.lose_again()
            self._recover(actor, clients[::-1])
        for work in (self._skip, self._oust) if self.play.plan.seed % 2 else (self._oust, self._skip):
            work(actor, clients)
        clients = [c for c in clients if not c.revoked]
        for number in range(CALM_ROUNDS):
            for client in clients:
                client.opened(actor)
                client.link(actor, client.rng())
                op = client.operate(actor, Step("sync", number, stays=True), client.rng())
                lacks_a_way = client.lacks_a_way  # who slept learns of one backend after the other
                client.close()
                self._recover(actor, clients)
                if op.outcome != "ok" and self._lacks_a_hint(op):
                    self._write_on(actor, [c for c in clients if c is not client])
                    continue
                if op.outcome != "ok" and (client.revoked or self._cut_off(op)):
                    continue  # revoked: by what was in doubt until one of these rounds finished it
                if op.outcome != "ok" and number and not lacks_a_way:
                    raise Violation(f"after all faults, {client.name}'s sync ended with {op.outcome}: {op.error}")
            clients = [c for c in clients if c not in self._lost and not c.revoked]
            if not clients:
                self.play.world.count("nobody was left")
                return
            if self._agree(clients):
                self.play.world.count("rounds to converge", number + 1)
                break
        else:
            raise Violation(f"no convergence in {CALM_ROUNDS} rounds: {self._differences(clients)}")
        for client in clients:
            if client.plan.invited and client.agreed.misused(client) and not self.play.world.counts["era begun"]:
                raise Violation(f"{client.name} takes part by an invitation that another used, or that had ended")
        if self.play.world.now - began > CALM_S * CALM_ROUNDS:
            raise Violation(f"convergence took {self.play.world.now - began:.0f} s of virtual time")
        op = clients[0].operate(actor, Step("check", 1), clients[0].rng())
        if op.outcome != "ok":
            raise Violation(f"after all faults, check ended with {op.outcome}: {op.error}")
        clients[0].close()

    def _recover(self, actor: Actor, clients: Sequence[Client]) -> None:
        """Where a majority is lost for good, or a version was ended, and no recovery came to its end yet, one does."""
        for client in [c for c in clients[:2] for _ in range(2)]:
            if not self.play.is_stuck:
                return
            client.opened(actor)
            op = client.operate(actor, Step("recover", 0), client.rng())
            client.close()
        if clients and self.play.is_stuck:
            raise Violation(f"after all faults, {op.client}'s recover ended with {op.outcome}: {op.error}")

    def _bring_guests(self, actor: Actor) -> None:
        """Whoever holds the code of an open invitation joins by it; others are told that it cannot be used."""
        for client in self.play.clients:
            client.gone = client.gone or (not client.joined and not client.code)
            if client.gone or client.joined or client.revoked:
                continue
            for _ in range(2):
                if client.secret is not None:
                    client.opened(actor)
                    client.link(actor, client.rng())
                op = client.operate(actor, Step("join", 0), client.rng())
                client.close()
                if client.joined or client.revoked:
                    break
            late = client.agreed.misused(client)
            if not client.joined and not late and not client.revoked and self._may_join(client):
                raise Violation(f"after all faults, {client.name}'s join ended with {op.outcome}: {op.error}")
            client.gone = client.gone or not client.joined

    def _may_join(self, client: Client) -> bool:
        """Whether a quorum of the backends that its invitation names are what they were then."""
        play = self.play
        return not (
            play.witness is None
            or play.plan.spares
            or play.world.counts["wiped"]
            or play.plan.insider
            or play.plan.liars
        )

    def _skip(self, actor: Actor, clients: Sequence[Client]) -> None:
        """What the insider made that cannot be read is passed over; in the second try at the latest, as below."""
        told = ""
        for client in [c for c in clients if not c.revoked for _ in range(2)]:
            if client.agreed.unreadable() is None:
                return
            client.opened(actor)
            client.link(actor, client.rng())
            op = client.operate(actor, Step("skip", 0), client.rng())
            told = f"{client.name} is told {op.outcome}: {op.error}"
            client.close()
        if clients and clients[0].agreed.unreadable() is not None:
            raise Violation(f"after all faults, nobody can skip what cannot be read: {told}")

    def _oust(self, actor: Actor, clients: Sequence[Client]) -> None:
        """The insider is revoked; in the second try at the latest, for the first may meet what was left in doubt."""
        told = ""
        for client in [c for c in clients for _ in range(2)]:
            if client.agreed.insider() is None:
                return
            client.opened(actor)
            client.link(actor, client.rng())
            op = client.operate(actor, Step("oust", 0), client.rng())
            told = f"{client.name} is told {op.outcome}: {op.error}"
            client.close()
            self._recover(actor, clients)
        if self.play.insider is not None and clients and clients[0].agreed.insider() is not None:
            raise Violation(f"after all faults, nobody can revoke the insider: {told}")

    def _lacks_a_hint(self, op: Operation) -> bool:
        """Whether a device that slept over a floor may have to wait for the next hint, once.

        One provider was emptied, and another was away while the floor and the hints before it were written: then only
        one shows that there are newer versions, and one's word is not enough.
        """
        lacks = op.outcome == "NoQuorumError" and op.error.startswith("the logs after version")
        lacks = lacks and bool(self.play.plan.floors and self.play.world.counts["wiped"]) and not self._written_on
        self._written_on = self._written_on or lacks
        return lacks

    def _write_on(self, actor: Actor, others: Sequence[Client]) -> None:
        """Those who are awake push until hints are written again."""
        self.play.world.count("waited for the next hint")
        assert self.play.witness is not None
        first = self.play.witness.newest.v
        for number in range(2 * HINT_EVERY * len(others)):
            client = others[number % len(others)]
            client.operate(actor, Step("sync", number), client.rng(), edits=1)
            client.close()
            if self.play.witness.newest.v // HINT_EVERY > first // HINT_EVERY:
                break

    def _cut_off(self, op: Operation) -> bool:
        """Whether a device that slept may find no quorum for good: a promise that is not made.

        A thief closed an acceptor that the fence had not reached, and another one lies or was emptied: that is one more
        than the quorum bears in that version. Or too many of those that were backends then have been emptied since.
        Whoever was awake is past it. Or a backend lies, and shows the logs behind a floor that others have deleted, to
        one who knows no version with a second device; or one of those with such logs was emptied. Or those in log form,
        by whom invited devices join, are no quorum any more.
        """
        counts = self.play.world.counts
        if op.outcome != "NoQuorumError":
            return False
        client = next(c for c in self.play.clients if c.name == op.client)
        assert client.secret is not None
        assert self.play.witness is not None
        blocks = self.play.plan.blocks and (counts["wiped"] or self.play.plan.insider)
        if client.plan.invited and blocks and self.play.witness.devices.get(client.secret[1].device_id) is None:
            self._lost.add(client)  # an invitation takes a quorum of those in log form
            self.play.world.count("invited where too few are in log form")
            return True
        robbed = counts["stolen device strikes"] and (self.play.plan.liars or counts["wiped"])
        shown = self.play.plan.floors and _UNDELETED in op.error
        shown = shown and bool(self.play.plan.liars or self._knew_nobody(op))
        if not robbed and not shown and not self._was_emptied(op):
            return False
        self._lost |= {c for c in self.play.clients if c.name == op.client}
        emptied = "slept over a floor and cannot tell" if shown else "slept until too many were emptied"
        self.play.world.count("cut off by a thief and a fault" if robbed else emptied)
        return True

    def _knew_nobody(self, op: Operation) -> bool:
        """Whether a backend was emptied, and an error names a version that admits one device, as the first does."""
        assert self.play.witness is not None
        named = re.match(rf".*the logs after version (\d+) {_UNDELETED}", op.error)
        known = None if named is None else self.play.witness.chain[int(named[1])]
        emptied = bool(self.play.world.counts["wiped"])
        return emptied and known is not None and len(self.play.witness.devices_of(known).certificates) == 1

    def _was_emptied(self, op: Operation) -> bool:
        """Whether those who could decide the version that an error names are too few by now.

        One that an insider had promise the last round, before the fence reached it, tells what it voted and no more.
        """
        assert self.play.witness is not None
        named = re.match(rf"version (\d+): |.*the logs after version (\d+) (are gone|{_UNDELETED})", op.error)
        v = 0 if named is None else int(named[1] or int(named[2]) + 1)
        if not 0 < v < len(self.play.witness.chain):  # of what is not decided nobody is past
            return False
        config = self.play.witness.config_of(self.play.witness.chain[v - 1])
        left = sum(
            any(p.endswith(f"/{a.acceptor_id.hex()}/birth") for p in self.play.stores_by[e.identity].objects)
            for e, a in config.acceptors
        )
        stopped = any(strike.kind == "last" for strike in self.play.plan.insider)
        return left - stopped * op.error.count(_LAST_ROUND) < config.quorum

    def _tell_revoked(self, actor: Actor) -> None:
        """Whose device was revoked is told so, and has no part in anything any more."""
        for client in self.play.clients:
            if not client.gone and not client.revoked and client.agreed.is_excluded(client, revoked=True):
                for _ in range(2):
                    client.opened(actor)
                    client.link(actor, client.rng())
                    op = client.operate(actor, Step("sync", 0), client.rng())
                    client.close()
                    if op.outcome == "ok":
                        raise Violation(f"{client.name} was revoked, and its sync ends as if nothing were")
                if not client.revoked and not self._cut_off(op):
                    raise Violation(f"{client.name} was revoked, and is told {op.outcome}: {op.error}")

    def name_lies(self, actor: Actor) -> None:
        """After lies that this mode of agreement does not bear: whoever says that all is well is on one history.

        Who names a device that stands on another one does not say so.

        Every client pushes something, so that each meets the others' entries; then all look until nobody has anything
        to push: whose pushes were refused before may be the last to be let through.
        """
        clients = [c for c in self.play.clients if not c.gone]
        for client in clients:
            client.close()
        last: dict[str, Operation] = {}
        told: set[str] = set()
        for edits in (1, 1, *[0] * LOOKS_AFTER_LIES):
            for client in clients:
                last[client.name] = op = client.operate(actor, Step("sync", 0), client.rng(), edits=edits)
                told |= {client.name} if "told of another history" in op.notes else set()
                client.close()
            if not edits and not any(op.pushed for op in last.values()):
                break
        well = [c for c in clients if last[c.name].outcome == "ok" and c.name not in told]
        self.play.world.count("lies: clients that go on", len(well))
        self.play.world.count("lies: clients that stopped", len(clients) - len(well))
        if len({c.base() for c in well}) > 1:
            where = ", ".join(f"{c.name} at version {c.base_version()}" for c in well)
            raise Violation(f"a silent fork: all say that all is well, on different histories: {where}")

    def _agree(self, clients: list[Client]) -> bool:
        trees = checks.comparable(clients)
        return all(t == trees[0] for t in trees) and len({c.base_version() for c in clients}) == 1

    def _differences(self, clients: list[Client]) -> str:
        first, *rest = checks.comparable(clients)
        out = [f"{c.name} at version {c.base_version()}" for c in clients]
        for client, tree in zip(clients[1:], rest, strict=True):
            paths = sorted(p for p in first.keys() | tree.keys() if first.get(p) != tree.get(p))[:3]
            out += [f"{client.name} {p!r}: {first.get(p)} / {tree.get(p)}" for p in paths]
        return "; ".join(out)[:900]
