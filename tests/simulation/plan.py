"""What happens in one simulation: the clients and what each does, the providers, and the faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400.0
INSIDER: Final = "insider"  # the name of its client
GUEST: Final = "guest"  # the name on invitations, with a number
MINORITY: Final = ("hint", "floor", "garbage", "last")  # which stop others where more backends have them


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does, after `pause_s`, and not before `at_s`. `seed`: of all chance in it.

    crash_at   the process dies at so many calls on what lies outside of it; 0: it does not
    power      the machine loses power then, and with it what was not synced
    down_s     how long it stays down after that
    agitate    the user edits at every so many system calls meanwhile; 0: the user waits
    at_s       so long after the clients began, for plans where one thing has to meet another
    stays      the process goes on after it, as a daemon's does
    """

    kind: str
    seed: int
    pause_s: float = 0.0
    edits: int = 0
    crash_at: int = 0
    power: bool = False
    down_s: float = 0.0
    agitate: int = 0
    force: bool = True
    target: int = 0  # which backend, or which client, of those that there are
    at_s: float = 0.0
    stays: bool = False


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client. `copy_of`: it begins as an image of that client's disk, taken at its `snap` step.

    `invited`: it begins by the invitation for this name, as soon as somebody made it; two clients may have one code.
    """

    name: str
    steps: tuple[Step, ...]
    skew_s: float = 0.0
    tick_ns: int = 1
    folds: bool = False
    copy_of: str = ""
    invited: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with a provider, or the line to it, from `at_s` on.

    gone    is lost for good: all of that kind together, as soon as the others have a copy of everything; with an
            `amount`, at once: then what an overwritten file held may be lost too
    gone again  so are so many of the new era's backends that the others are no quorum

    These are drawn for no seed, only written into scenarios (`simulation.scenarios`):

    hold    what `client` asks of it, if it is one of `calls` ("create px": kind and folder), lands when the fault ends
    lag     ... lands `amount` seconds after it was sent
    refuse  ... is refused
    empty   it is emptied if it was removed from the workspace
    """

    at_s: float
    kind: str
    backend: int
    amount: float = 0.0
    for_s: float = 0.0
    client: str = ""
    calls: str = ""


@dataclass(frozen=True, slots=True)
class Pounce:
    """Trouble at the worst moment: when version `v` gets its first promise, its first vote, or is decided.

    crash      the client that brought it about dies
    cut off    it reaches none of the other providers for a while
    hide       the provider where it just landed is out of reach for everybody for a while
    lonely     the others are
    swap       the others are, and then that one is in their place
    slow       all that this client sends for a while lies around for up to as long before it lands
    wipe       that provider is emptied, if the budget allows it, and another one hidden
    suspend    the machine of the client that brought it about sleeps, its requests stay on their way
    hold       what this client writes next into logs there lies around for so long (in scenarios only)
    """

    v: int
    moment: str
    kind: str
    for_s: float = 0.0
    down_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that the insider writes (`simulation.insider`), at `at_s`, or at a moment of version `v` as `Pounce`.

    back   it concerns the version so many before the one that is open
    on     the numbers of the backends, in scenarios; else some are drawn
    """

    kind: str
    seed: int
    at_s: float = 0.0
    v: int = 0
    moment: str = ""
    back: int = 0
    on: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens in one simulation but for the chance in the network, which `seed` gives.

    spares     stores beyond those that the workspace is founded on, to be added
    bft        agreement bears liars; `liars`: (backend, kinds of lies)
    blocks     backends without an atomic create
    floors     logs are short-lived
    insider    what a device of the workspace does that keeps no rule; none: there is no such device
    """

    seed: int
    backends: int
    copies: int
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    pounces: tuple[Pounce, ...] = ()
    features: tuple[str, ...] = ()
    beyond: bool = False  # providers lie or are rolled back, which is more than this mode of agreement bears
    spares: int = 0
    bft: bool = False
    liars: tuple[tuple[int, tuple[str, ...]], ...] = ()
    blocks: tuple[int, ...] = ()
    floors: bool = False
    encrypted: bool = True
    insider: tuple[Strike, ...] = ()

    @property
    def pushes(self) -> int:
        return sum(s.kind in ("push", "sync") for c in self.clients for s in c.steps)

    @property
    def troubles(self) -> int:
        """Faults of all kinds, crashes and restored disks among them."""
        own = sum(bool(c.invited) for c in self.clients)
        own += sum(bool(s.crash_at) or s.kind == "restore" or bool(s.agitate) for c in self.clients for s in c.steps)
        own += len(self.insider)
        return own + len(self.faults) + len(self.pounces) + sum(bool(c.copy_of) for c in self.clients)
