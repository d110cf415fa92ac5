"""One client at its plan: opens the real workspace, lets it work, crashes it, and notes what it was told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metasync.consensus import JOURNAL_KEY, decode_journal, decode_state
from metasync.errors import (
    BackendError,
    DamagedError,
    ExcludedError,
    ForkError,
    GuardError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    RevokedError,
    UsageError,
    WorkspaceError,
)
from metasync.keys.invitation import SECRET_BYTES
from metasync.local.state_keys import EVIDENCE_KEY
from metasync.session.folder import BASE_KEY
from metasync.workspace import Workspace
from simulation.agreed import Agreed
from simulation.db import Tables, copied
from simulation.disk import Volume
from simulation.founding import accepted, make_state_dir
from simulation.machine import Secret, SimMachine, workspace
from simulation.network import Lines, Store
from simulation.plan import ClientPlan, Step
from simulation.steps import CHANGES, DO, unlinked
from simulation.user import NAMES, User, tree_of
from simulation.world import Actor, Boot, Crashed, Violation, World

JOIN_TRIES: Final = 20
JOIN_S: Final = 10.0  # between two tries to join by an invitation
CHANGE_TRIES: Final = 20
CHANGES_ENOUGH: Final = 24  # in one simulation
CHANGE_S: Final = 10.0  # between two tries to change the backends
SKIP_SHARE: Final = 0.3  # of those who are told that a version cannot be read, and skip it then


@dataclass(eq=False)
class Operation:
    """One call of a client, and what became of it. `version`: what it says is the newest, or what it pushed."""

    client: str
    kind: str
    began: float
    ended: float = float("inf")
    outcome: str = "unknown"
    version: int | None = None
    pushed: bool = False
    op_ids: list[bytes] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)
    accused: frozenset[str] = frozenset()  # backends of which it says that something is wrong there
    conflicts: list[bytes] = field(default_factory=list)  # paths that have the agreed bytes now, one's own beside them


class Client:
    """A machine with a folder on it."""

    def __init__(
        self, world: World, plan: ClientPlan, stores: Mapping[str, Store], lines: Lines, history: list[Operation]
    ) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.stores = stores
        self.lines = lines
        self.history = history
        self.volume = Volume(world.wall_ns, tick_ns=plan.tick_ns, folds=plan.folds)
        self.tables: Tables = {}
        self.secret: Secret | None = None
        self.user = User(plan.name, self.volume)
        self.image: tuple[Volume, Tables, Secret | None] | None = None
        self.code = ""  # of the invitation by which it joins
        self.own_part = b""  # the secret by which a device that joins knows that it was the one
        self.joined = not plan.invited
        self.boot: Boot | None = None
        self.workspace: Workspace | None = None
        self.never_restored = True  # this disk and the others: each has only what happened on it
        self.moved: Callable[[], set[bytes]] = set
        self.gone = False  # a copy that never came to be
        self.revoked = False  # and was told so
        self.agreed = Agreed()
        self.boots = 0

    def rng(self) -> random.Random:
        """Chance for what is in no step."""
        return random.Random(f"{self.name} {self.boots}")

    def base(self) -> bytes:
        """The state that the folder is at, encoded."""
        data: bytes = self.tables["kv"][BASE_KEY.name]
        return data

    def base_version(self) -> int:
        return decode_state(self.base()).v

    def live(self, actor: Actor) -> None:
        """The whole plan, one step after the other."""
        began = self.world.now
        for step in self.plan.steps:
            actor.sleep(max(step.pause_s, began + step.at_s - self.world.now))
            if self.world.failure is not None or self.revoked or self.gone:
                return
            if step.pause_s > 86_400:
                self.world.count("long sleep")
            self.carry_out(actor, step)

    def carry_out(self, actor: Actor, step: Step) -> None:
        rng = random.Random(step.seed)
        for _ in range(step.edits):
            self.user.edit(rng)
        if step.kind == "snap":
            self.image = (self.volume.copy(), copied(self.tables), self.secret)
        elif step.kind == "restore":
            self._restore()
        elif step.kind == "write":
            self.user.write(NAMES[step.target], step.seed)
        elif step.kind == "reopen":
            self.close()
        elif step.kind == "leave":
            self.close()
            self.gone = True
            self.world.count("machine gone for good")
        elif step.kind == "join":
            self.join(actor, step)
        elif step.kind == "change":
            self.change(actor, step, rng)
        else:
            op = self.operate(actor, step, rng)
            self.link(actor, rng)
            if op.outcome == "UnreadableError" and rng.random() < SKIP_SHARE:
                self.operate(actor, Step("skip", rng.getrandbits(32)), rng)

    def join(self, actor: Actor, step: Step) -> None:
        """Begins by an invitation: tried until it is done, or told that it cannot be used."""
        for turn in range(JOIN_TRIES):
            op = self.operate(actor, step if turn == 0 else Step("join", step.seed), self.rng())
            if self.joined or self.revoked:
                return
            if op.outcome == "WorkspaceError" and self.secret is None and self.agreed.misused(self):
                break
            actor.sleep(JOIN_S)
        if self.secret is None:
            self.gone = True

    def change(self, actor: Actor, step: Step, rng: random.Random) -> None:
        """Has the backends changed: tried until it is agreed, with a move before each further try.

        Unless they were changed often enough by now.
        """
        if self.world.counts["mapping changed after a push"] >= CHANGES_ENOUGH:
            return
        for _ in range(CHANGE_TRIES):
            self.operate(actor, Step("push", rng.getrandbits(32)), rng, edits=1)
            step = replace(step, seed=rng.getrandbits(32), target=rng.randrange(60))
            op = self.operate(actor, step, rng)
            step = replace(step, crash_at=0)
            self.link(actor, rng)
            if op.pushed or self.revoked:
                return
            actor.sleep(CHANGE_S)
            self.operate(actor, Step("rebalance", 2 * rng.getrandbits(31)), rng)
            self.link(actor, rng)

    def _accept(self, actor: Actor) -> None:
        """The first half of `clone --invite`."""
        own_part = self.world.rng.randbytes(SECRET_BYTES)
        self.secret, self.tables = accepted(
            self.world, actor, self.name, self.code, self.stores, self.lines, own_part
        )  # fmt: skip
        self.own_part = own_part
        make_state_dir(self.volume)
        self.world.count("invitation opened")

    def link(self, actor: Actor, rng: random.Random) -> None:
        """The user tells this device the ways to backends that others added."""
        if self.lacks_a_way and not self.revoked:
            self.operate(actor, Step("link", rng.getrandbits(32)), rng)

    @property
    def lacks_a_way(self) -> bool:
        """Whether the running process knows of backends that it has to be told the ways to."""
        return self.workspace is not None and bool(unlinked(self.workspace))

    def lacks_way_to(self, backend_id: bytes) -> bool:
        """Whether the running process has no way to this backend."""
        ways = {} if self.workspace is None else self.workspace._connections.ways
        return self.workspace is not None and (backend_id not in ways or ways[backend_id].view is None)

    def _restore(self) -> None:
        """The machine's disk fails, and its backup takes its place."""
        if self.image is None:
            return
        self.close()
        volume, tables, self.secret = self.image
        self.volume, self.tables = volume.copy(), copied(tables)
        self.user.has(self.volume)
        self.world.count("disk restored")

    def start_from(self, image: tuple[Volume, Tables, Secret | None]) -> None:
        """Begins as the copy of another machine's disk."""
        self.volume, self.tables, self.secret = image[0].copy(), copied(image[1]), image[2]
        self.user = User(self.name, self.volume)
        self.world.count("disk copied")

    # processes

    def opened(self, actor: Actor) -> Workspace:
        """The workspace of the running process; a new process if there is none."""
        if self.workspace is None:
            assert self.secret is not None
            self.boots += 1
            self.boot = boot = Boot(actor, self.boots)
            machine = SimMachine(
                self.world,
                boot,
                self.name,
                self.volume,
                self.stores,
                self.lines,
                self.secret,
                self.plan.skew_s,
                self._keep,
            )
            self.workspace = workspace(self.world, boot, self.tables, machine)
        return self.workspace

    def _keep(self, secret: Secret) -> None:
        self.secret = secret

    def close(self) -> None:
        if self.workspace is not None:
            self.workspace.close()
        self.workspace = self.boot = None

    def operate(self, actor: Actor, step: Step, rng: random.Random, edits: int = 0) -> Operation:
        """One command, from its start to its end, or the process's."""
        for _ in range(edits):
            self.user.edit(rng)
        op = Operation(self.name, step.kind, self.world.now)
        self.history.append(op)
        self.world.trace(self.name, "begins", step.kind)
        before = dict(self.tables.get("kv", {}))
        try:
            if self.secret is None:
                self._accept(actor)
            w = self.opened(actor)
            assert self.boot is not None
            self._arm(self.boot, step, rng)
            self.boot.proposed = op.op_ids = self._left_behind()
            if step.kind in CHANGES:
                CHANGES[step.kind](w, op, step, self.agreed)
            else:
                DO[step.kind](w, op, step)
            op.outcome = "ok"
            self.joined = True
            self._judge_conflicts(op, step)
        except Crashed:
            op.outcome = "crashed"
        except MetaSyncError as e:
            op.outcome = type(e).__name__
            op.error = e.message
            self._judge(op, e)
        op.ended = self.world.now
        op.notes += ["told of another history"] * (self.boot is not None and self.boot.told_apart)
        self.world.trace(self.name, "ends", step.kind, op.outcome, op.version)
        self._note_unusual(before)
        self.world.count(f"{step.kind}: {op.outcome}")
        for note in op.notes:
            self.world.count(note)
        if op.outcome == "crashed":
            self._restart(actor, step, rng)
        else:
            if self.boot is not None:  # else it has no secret yet
                self.boot.crash_at = 0
                self.boot.on_call = None
            if not step.stays and rng.random() < 0.4:  # a command on its own; else one that stays, as in a daemon
                self.close()
        return op

    def _left_behind(self) -> list[bytes]:
        """The change whose command did not learn its end: this one may tell of it."""
        journal = self.tables["kv"].get(JOURNAL_KEY.name)
        return [] if journal is None else [decode_journal(journal).op_id]

    def _note_unusual(self, before: Mapping[str, bytes]) -> None:
        """Counts what a command came across, as far as its local state tells."""
        now = self.tables.get("kv", {})
        if before.get(EVIDENCE_KEY.name) != now.get(EVIDENCE_KEY.name):
            self.world.count("liar named")
        if BASE_KEY.name in before and BASE_KEY.name in now:
            first, last = (decode_state(kv[BASE_KEY.name]).v for kv in (before, now))
            if any(first < floor <= last for floor in self.agreed.floors()):
                self.world.count("floor jump")

    def _arm(self, boot: Boot, step: Step, rng: random.Random) -> None:
        boot.crash_at = boot.yields + step.crash_at if step.crash_at else 0
        if step.agitate:
            left = [step.agitate]

            def agitate() -> None:
                left[0] -= 1
                if left[0] <= 0 and not boot.dead:
                    left[0] = 1 + rng.randrange(2 * step.agitate)
                    self.user.edit(rng)
                    self.world.count("edited meanwhile")

            boot.on_call = agitate

    def _restart(self, actor: Actor, step: Step, rng: random.Random) -> None:
        assert self.boot is not None
        down_s = step.down_s + self.boot.down_s
        self.workspace = self.boot = None
        if step.power and self.volume.lose_power(rng):
            self.world.count("unsynced writes lost")
        actor.sleep(down_s)
        if down_s > 86_400:
            self.world.count("down for days")

    def _judge_conflicts(self, op: Operation, step: Step) -> None:
        """A user's own past, pushed by its own device, is no other side of a conflict. What the user wrote under
        another name is: somebody's rename brought it there."""
        if (
            not self.never_restored
            or step.agitate
            or self.agreed.forks
            or self.world.counts["era leaves versions behind"]
            or self.world.counts["versions dropped"]
        ):
            return  # an old past was shown, a new era begins before what was pushed, or the base's tree may be gone
        tree = tree_of(self.volume)
        for path in op.conflicts:
            here = tree.get(path)
            if here is not None and (path, here.data) in self.user.stood and here.data not in self.moved():
                raise Violation(f"{self.name}: {op.kind} found a conflict of {path!r} with what it had pushed itself")

    def _judge(self, op: Operation, error: MetaSyncError) -> None:
        """Errors that no fault in the plan explains."""
        if isinstance(error, ForkError):
            self.world.count("fork named")
            two = "two values were proposed in one round" in error.message
            if not self.agreed.forks and not (two and self.agreed.may_stop()):
                raise Violation(f"{self.name}: {op.kind} calls a sound history a fork: {error.message}") from error
        unclosed = re.match(r"version (\d+) changed the backends, and cannot be closed", error.message)
        if unclosed is not None:
            self.world.count("no fence told")
            if not self.agreed.unclosed(int(unclosed[1])):
                raise Violation(f"{self.name}: {op.kind} finds no way to a fence: {error.message}") from error
        if isinstance(error, ExcludedError) and self.agreed.is_excluded(self, isinstance(error, RevokedError)):
            self.revoked = True
            self.world.count("revoked told" if isinstance(error, RevokedError) else "excluded told")
            return
        if isinstance(error, ExcludedError) and self.agreed.misused(self, in_doubt=True):
            self.revoked = True
            self.world.count("told that an invitation was used or ended")
            return
        expected: tuple[type[MetaSyncError], ...] = (
            NoQuorumError, BackendError, GuardError, ForkError, WorkspaceError, DamagedError,
        )  # fmt: skip
        if op.kind in CHANGES:
            expected = (*expected, UsageError, PassphraseError)
        if not isinstance(error, expected) or "damaged: " in error.message or isinstance(error, ExcludedError):
            raise Violation(f"{self.name}: {op.kind} ended with {type(error).__name__}: {error.message}") from error
