"""The simulator itself: a seed is always the same run, what it stands on is like the real thing, it finds faults."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from effort import first

from metasync.backends.api import Backend
from metasync.consensus import Group, reconfigure
from metasync.errors import UnreachableError
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import CONFLICTS, REPLACED, TABLES, UNPLACED, Conflict, ReplacedFile, Unplaced
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Op, Sleep, Task
from metasync.store.pack_format import Delta
from metasync.transfer.upload import Upload
from metasync.worktree.disk import CREATE_FLAGS, DIR_FLAGS, READ_FLAGS, WRITE_FLAGS, Disk
from simulation import Plan, Play, checks, make_plan, simulator
from simulation.client import Operation
from simulation.db import SimDb, copied, empty_tables
from simulation.disk import SimDisk, Volume
from simulation.lies import LIES, Liar
from simulation.mutants import MUTANTS, Mutant
from simulation.mutants_agreed import floors_without, no_confirm, no_fence
from simulation.network import Hold, Lines, SimStore, Store
from simulation.plan import Fault, Step
from simulation.runtime import SimRuntime
from simulation.scenarios import changed_often, collected_deltas
from simulation.shrink import decode_plan, encode_plan, shrunk
from simulation.stocks import pack_id
from simulation.user import User
from simulation.witness import Witness
from simulation.world import Actor, Boot, Crashed, Stuck, Violation, World

KEPT = Path(__file__).parent / "kept.jsonl"


# whole simulations


@pytest.mark.long
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    here = Play(make_plan(3)).run()
    assert here.failure == ""
    code = "from simulation import Play, make_plan\nprint(Play(make_plan(3)).run().trace)"
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [here.trace]


def test_nothing_of_the_product_is_exchanged_but_for_mutants_floors_and_what_draws_by_itself() -> None:
    modules = {p.name: p.read_text("utf-8") for p in Path(simulator.__file__).parent.glob("*.py")}
    assert "play.py" in modules
    patching = {name for name, text in modules.items() if re.search(r"\bmock\b|\bsetattr\(", text)}
    assert {name for name in patching if not name.startswith("test_")} == {
        "mutants.py", "mutants_agreed.py", "mutants_stocks.py", "mutants_trust.py", "sealing.py", "short_logs.py",
        "small_deltas.py",
    }  # fmt: skip


@pytest.mark.long
def test_another_seed_is_another_run() -> None:
    assert Play(make_plan(5)).run().trace != Play(dataclasses.replace(make_plan(5), seed=6)).run().trace


def test_every_plan_is_large_enough() -> None:
    plans = [make_plan(seed) for seed in range(300)]
    for plan in plans:
        assert len(plan.clients) >= 3
        assert plan.pushes >= 10
        assert plan.troubles >= 5
    assert sum(plan.pushes >= 30 for plan in plans) >= 45


def test_brief_plans_are_brief() -> None:
    for seed in range(300):
        plan = make_plan(seed, brief=True)
        invited = sum(bool(c.invited) for c in plan.clients)
        assert len(plan.clients) - invited <= 4
        assert plan.pushes <= 20 + 2 * invited
    again = [make_plan(seed, brief=True) for seed in range(300)]
    assert {f for p in again for f in p.features} >= {"guests", "eras", "ended", "insider", "liars", "blocks", "floors"}
    assert any(f.kind == "gone again" for p in again for f in p.faults)


@pytest.mark.long
def test_a_batch_counts_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator.main(["--seeds", "2", "--first", "11", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 seeds from 11" in out
    assert "seeds per second" in out
    assert "owner round" in out


CAUGHT = (
    "small-quorum", "any-owner", "climb-blind", "overwrite", "no-promise", "block-no-reread", "epoch-name", "no-settle",
    "era-unretired", "closed-open",
)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", first(2, CAUGHT))
def test_a_broken_rule_is_caught(name: str) -> None:
    broken = MUTANTS[name]
    plans = [plan for seed in range(1, 120) if (plan := broken.fits(make_plan(seed))) is not None]
    with broken.broken():
        assert any(Play(plan).run().failure for plan in plans[:14])


SHOWN = (
    "lone-decided", "block-learn-once", "no-fence", "no-expiry", "no-confirm", "fence-on-removed", "no-floor",
    "learn-no-floor", "floor-no-elapsed", "floor-no-wait", "floor-skips",
    "read-no-floor", "floor-clock-stops", "floor-everywhere", "any-round", "highest-round", "either-of-two",
    "apart-decided", "leap", "gc-delete-by-old", "trim-unverified", "gc-no-rebase-fence", "move-early",
    "gc-delete-unfenced", "gc-no-rebase-epoch", "gc-reuse-stored", "gc-drop-late-roots", "gc-no-repack-fence",
    "gc-fence-sinks", "trim-same-id", "trim-old-counts", "trim-last-only", "move-blind", "move-notes",
    "trim-late", "gc-no-bases", "gc-no-rebase-delta", "gc-no-depth", "gc-reuse-headless",
    "list-ahead", "moving-word", "liar-forges", "gc-no-rebase-reuse", "trim-any-place",
    "era-any-value",
)  # fmt: skip
"""Mutants that a scenario of their own shows."""
LATER = {
    "list-ahead": 18,
    "move-blind": 144,
}  # the first seed that is tried, where those from 7 on show nothing for long


@pytest.mark.few(1)
@pytest.mark.parametrize("name", first(4, SHOWN))
def test_a_scenario_shows_a_broken_rule_and_nothing_else(name: str) -> None:
    """Within a few seeds: what the network does is still chance."""
    broken, least = MUTANTS[name], LATER.get(name, 7)
    for seed in range(least, least + 24):
        plan = broken.fits(make_plan(seed))
        assert plan is not None
        with broken.broken():
            shown = Play(plan).run().failure
        if shown:
            sound = Play(plan).run()
            assert sound.failure == ""
            assert sound.counts["removed backend emptied"] <= 1, "when the plan says so, and not by chance too"
            return
    pytest.fail(f"{name} is not caught")


FAILED_ONCE = (38, 40, 42, 48, 60, 98)
"""Seeds of `changed_often` that failed once: a move that ended too early, a device without a way to a new backend."""


@pytest.mark.long
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_backends_that_change_while_data_move(seed: int) -> None:
    assert Play(changed_often(make_plan(seed))).run().failure == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", first(2, tuple(range(1, 60))))
def test_deltas_while_others_collect(seed: int) -> None:
    assert Play(collected_deltas(make_plan(seed))).run().failure == ""


@pytest.mark.long
def test_plans_with_deltas_make_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five to fifteen as a rule, and in a plan of sixty none by chance."""
    made, add = [], Upload.add

    def adding(self: Upload, kind: ObjectKind, object_id: bytes, data: bytes, delta: Delta | None = None) -> None:
        made.append(delta is not None)
        add(self, kind, object_id, data, delta)

    monkeypatch.setattr(Upload, "add", adding)
    for seed in (3, 5):
        assert Play(collected_deltas(make_plan(seed))).run().failure == ""
    assert sum(made) > 5


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("no-fence", lambda: mock.patch.object(reconfigure, "fence", no_fence)),
        ("no-confirm", lambda: mock.patch.object(Group, "_make_sure_of_fence", no_confirm)),
        ("floor-skips", lambda: floors_without(skips=False, quorum=False)),
        ("floor-skips", lambda: floors_without(skips=False, covering="above")),
        ("floor-skips", lambda: floors_without(quorum=False, covering="above")),
        ("floor-everywhere", lambda: floors_without(covering="elsewhere")),
    ],
)
@pytest.mark.long
def test_what_a_broken_rule_is_broken_with_is_no_matter_alone(name: str, others: Callable[[], Any]) -> None:
    """Some mutants break several rules, because each suffices alone: without the one they are named for all is well."""
    plan = MUTANTS[name].fits(make_plan(7))
    assert plan is not None
    with others():
        assert Play(plan).run().failure == ""


@pytest.mark.long
def test_the_table_of_mutants_tells_those_that_are_not_caught(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Mutant("nothing is broken", contextlib.nullcontext)
    monkeypatch.setitem(MUTANTS, "whole", whole)
    assert simulator.main(["--mutants", "whole", "no-fence", "--seeds", "2", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^whole +- +- +- +-  NOT CAUGHT$", out, re.MULTILINE)
    assert re.search(
        r"^no-fence +a plan of its own +1 +[\d.]+  an entry of version \d+ is on top of", out, re.MULTILINE
    )
    assert "1 of 2 caught; not: whole" in out
    assert simulator.main(["--mutants", "no-fence", "--seeds", "2", "--jobs", "1"]) == 0

    def impossible(plan: Plan) -> Plan:
        fitted = known.fits(plan)
        assert fitted is not None
        return dataclasses.replace(fitted, faults=(Fault(0.0, "no such fault", 0),)) if plan.seed == 1 else fitted

    known = MUTANTS["no-fence"]
    monkeypatch.setitem(MUTANTS, "fails", Mutant("a rule, and a plan that fails", known.broken, impossible))
    assert simulator.main(["--mutants", "fails", "--seeds", "6", "--jobs", "1"]) == 1, "though a later seed shows it"
    out = capsys.readouterr().out
    assert re.search(
        r"^fails +a plan of its own +[2-6] +[\d.]+  an entry of version \d+ is on top of", out, re.MULTILINE
    )
    assert "A PLAN OF IT FAILS WITHOUT IT TOO" in out


def test_requests_lie_around_or_are_refused_as_a_plan_says() -> None:
    world = World(1)
    store = Store("b0", world)
    store.holds += [
        Hold("c", "create px", 50.0, lands=50.0),
        Hold("c", "get px", 100.0, lag_s=3.0),
        Hold("c", "put floor/8", 100.0, refuses=True),
    ]
    took: dict[str, int] = {}
    refused: list[str] = []

    def body(actor: Actor) -> None:
        for when, client in (("early", "c"), ("early", "other"), ("late", "c")):
            actor.sleep(200.0 if when == "late" else 0.0)
            view = cast(Backend, SimStore(store, client))
            runtime = SimRuntime(world, Boot(actor, 1), client, Lines(world), {"b0": view})
            for op in (
                Op("b0", "create", f"a/px/0/{when} {client}", b"1", timeout_s=60.0),
                Op("b0", "get", "a/px/0/not there", max_bytes=9, timeout_s=60.0),
                Op("b0", "put", "a/floor/8", b"1", timeout_s=60.0),
                Op("b0", "put", "a/floor/81", b"1", timeout_s=60.0),
            ):
                began = world.now

                def ask(op: Op = op) -> Task:
                    return (yield op)

                reply = runtime.run(ask())
                took[f"{when} {client} {op.kind} {op.path}"] = round(world.now - began)
                if isinstance(reply.error, UnreachableError):
                    refused.append(f"{when} {client} {op.kind} {op.path}")

    actor = world.spawn("c", body)
    world.director.wait(lambda: actor.ended)
    assert world.failure is None
    assert len(took) == 12
    slow = {"early c create a/px/0/early c": 50, "early c get a/px/0/not there": 3}
    assert {what: seconds for what, seconds in took.items() if seconds} == slow
    assert refused == ["early c put a/floor/8"]


@pytest.mark.long
def test_mutants_break_what_they_say_and_mend_it_again() -> None:
    """Each can be put in and taken out: those that replace parts of a function's text find these parts."""
    for broken in MUTANTS.values():
        with broken.broken():
            pass
    assert Play(make_plan(3)).run().failure == ""


@pytest.mark.parametrize("brief", [False, True])
def test_plans_are_within_what_can_be_borne(brief: bool) -> None:
    for seed in range(400):
        plan = make_plan(seed, brief=brief)
        assert not (plan.liars and plan.blocks)
        assert len(plan.liars) <= (plan.bft and plan.backends >= 4)
        assert not (plan.beyond and (plan.liars or plan.blocks or plan.spares or plan.floors))
        assert not (plan.beyond and any(c.invited for c in plan.clients))


@pytest.mark.parametrize("kind", LIES)
def test_what_a_liar_does_with_an_entry(kind: str) -> None:
    liar, objects = Liar(1, (kind,)), {"f/a/px/0/other": b"other"}
    said = liar.create("c0", "f/a/px/0/mine", b"mine", objects)
    if said is None:
        objects["f/a/px/0/mine"] = b"mine"
    shown = [liar.get("c0", "f/a/px/0/mine", objects) for _ in range(40)]
    foreign = [liar.get("c0", "f/a/px/0/other", objects) for _ in range(40)]
    expected = {
        "omit": (None, {b"mine", None}, {b"other", None}),
        "cut": (True, {b"mine"}, {None}),
        "deaf": (None, {None}, {None}),
        "apart": (True, {b"mine"}, {b"other"}),
        "replay": (None, {b"mine", b"other"}, {b"mine", b"other"}),
        "swap": (None, {b"mine"}, {b"mine", b"other"}),
        "yes": (True, {None}, {b"other"}),
    }
    assert (said, set(shown), set(foreign)) == expected[kind]


def test_a_machine_that_sleeps_takes_nothing_in_and_goes_on() -> None:
    world = World(1)
    told: list[float] = []

    def body(actor: Actor) -> None:
        boot = Boot(actor, 1)
        runtime = SimRuntime(world, boot, "c", Lines(world), {})
        world.at(1.0, lambda: boot.suspend(100.0))

        def task() -> Any:
            for _ in range(2):
                yield Sleep(2.0)
                told.append(world.now)

        runtime.run(task())

    actor = world.spawn("c", body)
    world.director.wait(lambda: actor.ended)
    assert told == [101.0, 103.0]


def shrinks(plan: Plan, why: str) -> bool:
    """Whether it fails alike without its second client, or its third: what shrinking tries first."""
    smaller = (dataclasses.replace(plan, clients=(*plan.clients[:n], *plan.clients[n + 1 :])) for n in (1, 2))
    return any(simulator.kind_of(Play(p).run().failure) == simulator.kind_of(why) for p in smaller)


@pytest.mark.long
def test_a_failing_seed_is_told_shrunk_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "SHRINK_RUNS", 5)
    kept = tmp_path / "kept.jsonl"
    with MUTANTS["overwrite"].broken():
        # Without recoveries, which a smaller plan may leave without a cause; and a plan that five runs can shrink.
        plans = (p for p in map(make_plan, range(9, 60)) if len(encode_plan(p)) < 5_000)
        plans = (p for p in plans if not {"eras", "ended"} & {*p.features})
        seed = next(p.seed for p in plans if (why := Play(p).run().failure) and shrinks(p, why))
        assert (
            simulator.main(["--longer", "--seeds", "1", "--first", str(seed), "--jobs", "1", "--keep", str(kept)]) == 1
        )
        out = capsys.readouterr().out
        assert f"seed {seed} FAILED" in out
        assert f"FAILED: seeds {seed}" in out
        assert len(kept.read_text()) < len(encode_plan(make_plan(seed)))
        assert simulator.main(["--replay", str(kept)]) == 1
    assert simulator.main(["--replay", str(kept)]) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("at", first(6, reversed(range(len(KEPT.read_text("utf-8").splitlines())))))
def test_a_plan_that_failed_once_is_well(at: int) -> None:
    """The newest first; `at` counts from the oldest."""
    plan = decode_plan(KEPT.read_text("utf-8").splitlines()[at])
    assert Play(plan).run().failure == ""


def test_a_majority_is_lost_only_where_the_rest_bears_every_version_out() -> None:
    """Else a device of the version before recovers from there, and what others changed since has no history."""
    plan = next(p for p in map(decode_plan, KEPT.read_text("utf-8").splitlines()) if p.seed == 150)
    counts = Play(plan).run().counts
    assert counts["loss put off"]
    assert not counts["majority lost"]
    played = Play(dataclasses.replace(plan, seed=1001))  # in which b3 has such a vote
    assert played.run().counts["majority lost"]


def test_a_plan_survives_being_written_down() -> None:
    for seed in range(50):
        assert decode_plan(encode_plan(make_plan(seed))) == make_plan(seed)


def test_shrinking_keeps_what_matters() -> None:
    plan = make_plan(8)
    culprit = plan.clients[1].steps[4]

    def fails(p: Plan) -> bool:
        return any(s.seed == culprit.seed for c in p.clients for s in c.steps)

    small = shrunk(plan, fails, 500)
    assert sum(len(c.steps) for c in small.clients) == 1
    assert (small.faults, small.pounces) == ((), ())


# what the simulation judges by


def told(client: str, began: float, ended: float, version: int, *, pushed: bool = False) -> Operation:
    return Operation(client, "push" if pushed else "pull", began, ended, "ok", version, pushed, [bytes([version]) * 16])


class Chain:
    """A witness that saw versions 1 to n decided, version v with the change v."""

    def __init__(self, n: int) -> None:
        self.chain = [type("State", (), {"op_id": bytes([v]) * 16, "v": v})() for v in range(n + 1)]
        self.ended: list[Any] = []


def judged(*operations: Operation, versions: int = 5) -> None:
    checks.history(operations, Chain(versions))  # type: ignore[arg-type]


def test_histories_that_are_in_order_pass() -> None:
    judged(told("a", 0, 1, 1, pushed=True), told("b", 0.5, 2, 1), told("b", 3, 4, 2, pushed=True), told("a", 5, 6, 2))
    judged(told("a", 0, 10, 1), told("b", 1, 2, 3, pushed=True), told("c", 3, 4, 3))


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([told("a", 0, 1, 2, pushed=True), told("b", 2, 3, 1)], "when version 2"),
        ([told("a", 0, 1, 2), told("b", 2, 3, 2, pushed=True)], "when version 2"),
        ([told("a", 0, 1, 9)], "nobody decided"),
        ([dataclasses.replace(told("a", 0, 1, 2, pushed=True), op_ids=[b"x" * 16])], "another change"),
    ],
)
def test_histories_out_of_order_are_named(operations: list[Operation], why: str) -> None:
    with pytest.raises(Violation, match=why):
        judged(*operations)


def test_a_change_that_is_agreed_twice_is_named() -> None:
    chain = Chain(3)
    chain.chain[3].op_id = chain.chain[1].op_id
    with pytest.raises(Violation, match="both version 1 and 3"):
        checks.history([], chain)  # type: ignore[arg-type]


@pytest.mark.long
def test_content_that_is_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(make_plan(3))
    real = checks.nothing_lost

    def forgetful(clients: list[Any], stores: Any, witness: Witness) -> None:
        clients[0].user.own.add(b"never stored")
        real(clients, stores, witness)

    monkeypatch.setattr(checks, "nothing_lost", forgetful)
    assert "is nowhere" in play.run().failure


def test_a_line_that_is_in_history_alone_is_named() -> None:
    """By a merge: nobody who saw it took it away. What a user does away with is not missed."""
    one, two = (
        SimpleNamespace(name=n, gone=False, volume=Volume(lambda: 0), user=User(n, Volume(lambda: 0))) for n in "ab"
    )
    one.user.lines = {b"mine", b"deleted"}
    two.user.removed = {b"deleted"}
    clients = cast(Any, [one, two])
    checks.no_line_lost(clients, {b"mine\nothers"})
    with pytest.raises(Violation, match="a line that a's user wrote is in no file any more: b'mine'"):
        checks.no_line_lost(clients, {b"others"})
    one.gone = True
    checks.no_line_lost(clients, {b"others"})


@pytest.mark.long
def test_a_pack_that_is_gone_everywhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(make_plan(3))
    real = checks.nothing_lost

    def losing(clients: Any, stores: Any, witness: Witness) -> None:
        named = witness.stocks.index(witness.keys, witness.newest)
        assert named
        for store in stores.values():
            for path in [p for p in store.objects if pack_id(p) == min(named)]:
                del store.objects[path]
        real(clients, stores, witness)

    monkeypatch.setattr(checks, "nothing_lost", losing)
    assert "is on no backend" in play.run().failure


def test_what_is_found_as_a_request_lands_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the client it would be an error of the provider, after which it tries again."""
    real = Witness.landed

    def landed(self: Witness, store: Store, path: str, data: bytes) -> None:
        real(self, store, path, data)
        if len(self.chain) > 4 and not found:
            found.append(path)
            raise Violation("version 4 is there")

    found: list[str] = []
    monkeypatch.setattr(Witness, "landed", landed)
    assert Play(make_plan(4)).run().failure == "version 4 is there"


# the world


def test_a_world_in_which_nothing_can_happen_any_more_says_so() -> None:
    world = World(1)
    world.spawn("waits", lambda actor: actor.wait(lambda: False))
    world.director.wait(lambda: world.failure is not None)
    assert isinstance(world.failure, Stuck)


def test_a_dead_process_changes_nothing_any_more() -> None:
    world = World(1)
    volume = Volume(world.wall_ns)
    tables = empty_tables()
    seen: list[str] = []

    def body(actor: Actor) -> None:
        boot = Boot(actor, 1, crash_at=6)
        disk, db = SimDisk(volume, boot), SimDb(tables, boot)
        top = disk.open_top(b"/")
        try:
            try:
                disk.mkdir(b"a", top)
                with db.transaction():
                    db.set_value("k", b"1")
                    for n in range(5):
                        disk.mkdir(b"n%d" % n, top)
            finally:
                seen.append("unwinding")
                disk.mkdir(b"too late", top)
        except Crashed:
            seen.append("dead")

    actor = world.spawn("client", body)
    world.director.wait(lambda: actor.ended)
    assert seen == ["unwinding", "dead"]
    assert [name for name, _ in volume.root.entries.values()] == [b"a", b"n0", b"n1", b"n2"]
    assert tables["kv"] == {}


# what it stands on behaves like the real thing


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OSError as e:
        return errno.errorcode.get(e.errno or 0)


def _shape(disk: Disk, fd: int) -> Any:
    out = {}
    for name in sorted(disk.names(fd)):
        st = disk.lstat(name, fd)
        if st.st_mode & 0o170000 == 0o040000:
            below = disk.open(name, DIR_FLAGS, fd)
            out[name] = ("dir", _shape(disk, below))
            disk.close(below)
        elif st.st_mode & 0o170000 == 0o120000:
            out[name] = ("link", disk.readlink(name, fd))
        else:
            one = disk.open(name, READ_FLAGS, fd)
            out[name] = ("file", st.st_mode & 0o777, disk.read(one, 100, 0), st.st_nlink)
            disk.close(one)
    return out


KINDS = ("mkdir", "create", "write", "unlink", "rmdir", "rename", "rename_new", "link", "symlink", "exchange", "chmod")


@pytest.mark.parametrize("seed", range(12))
def test_the_disk_is_like_a_real_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disks = [Disk(), SimDisk(Volume(lambda: 1_700_000_000_000_000_000))]
    tops = [d.open_top(os.fsencode(tmp_path)) for d in disks]
    names = [b"a", b"b", b"c", b"d"]
    for _ in range(150):
        step = (rng.choice(KINDS), rng.choice([b"", *names]), rng.choice(names), rng.choice(names))
        if step[3] == step[1]:
            continue  # a directory and what lies in it never trade places
        mode = rng.randrange(0o700, 0o777)
        got = [_outcome(partial(_call, d, *step, top, mode)) for d, top in zip(disks, tops, strict=True)]
        assert got[0] == got[1], step
        assert _shape(disks[0], tops[0]) == _shape(disks[1], tops[1]), step


def _call(disk: Disk, kind: str, at: bytes, one: bytes, other: bytes, top: int, mode: int) -> Any:
    fd = disk.open(at, DIR_FLAGS, top) if at else top
    if kind in ("create", "write"):
        opened = disk.open(one, CREATE_FLAGS if kind == "create" else WRITE_FLAGS, fd)
        disk.write(opened, b"%o" % mode, mode % 3)
        disk.fchmod(opened, 0o644)
        return disk.close(opened)
    if kind == "symlink":
        return disk.symlink(b"target", one, fd)
    if kind == "chmod":
        return disk.chmod(one, fd, mode)
    if kind in ("rename", "rename_new", "link", "exchange"):
        return getattr(disk, kind)(one, fd, other, top)
    return getattr(disk, kind)(one, fd)


@pytest.mark.parametrize("seed", range(6))
def test_the_local_state_is_like_the_real_one(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    states: list[State] = [LocalDb.open(tmp_path / "state.db"), SimDb(empty_tables())]
    key = lambda: b"%d" % rng.randrange(6)  # noqa: E731
    for _ in range(60):
        steps: list[Callable[[State], Any]] = []
        for _ in range(rng.randint(1, 3)):
            k, v, n = key(), key(), rng.randrange(4)
            steps.append(
                rng.choice(
                    [
                        lambda s, k=k, v=v: s.set_value(k.decode(), v),
                        lambda s, k=k: s.set_value(k.decode(), None),
                        lambda s, k=k, v=v: s.put_packed_rows([(k, v)]),
                        lambda s, k=k: s.delete_rows([k]),
                        lambda s, k=k, v=v, n=n: s.put_objects([(k, n, v)]),
                        lambda s, v=v: s.drop_objects_of(v),
                        lambda s, k=k, v=v, n=n: s.stage_object(k, n, v),
                        lambda s, k=k: s.clear_staged([k]),
                        lambda s, k=k, v=v, n=n: s.put_records(CONFLICTS, [Conflict(v, k, "why", n)]),
                        lambda s, k=k: s.delete_records(CONFLICTS, [k]),
                        lambda s, k=k, v=v, n=n: s.put_records(REPLACED, [ReplacedFile(n, k, v)]),
                        lambda s, n=n: s.delete_records(REPLACED, [n]),
                        lambda s, k=k: s.put_records(UNPLACED, [Unplaced(k, "why")]),
                        lambda s, k=k: s.delete_records(UNPLACED, [k]),
                    ]
                )
            )
        undo = rng.random() < 0.3
        for state in states:
            with pytest.raises(ZeroDivisionError) if undo else state.transaction(), state.transaction():
                for step in steps:
                    step(state)
                if undo:
                    raise ZeroDivisionError
        assert _all(states[0]) == _all(states[1])
    states[0].close()  # type: ignore[attr-defined]


def _all(s: State) -> Any:
    kv = [s.value(str(n)) for n in range(6)]
    objects = s.get_objects([b"%d" % n for n in range(6)])
    return kv, s.packed_rows(), objects, s.staged(), *(s.records(table) for table in TABLES)


def test_power_loss_takes_only_what_was_not_synced() -> None:
    volume = Volume(lambda: 0)
    disk = SimDisk(volume)
    top = disk.open_top(b"/")
    kept = disk.open(b"kept", CREATE_FLAGS, top)
    disk.write(kept, b"durable")
    disk.syncfs(top)
    image = volume.copy()
    for seed in range(40):
        after = image.copy()
        again = SimDisk(after)
        root = again.open_top(b"/")
        fd = again.open(b"new", CREATE_FLAGS, root)
        again.write(fd, b"fresh bytes")
        again.rename(b"new", root, b"newer", root)
        after.lose_power(random.Random(seed))
        names = {name: node.data for name, node in after.root.entries.values()}
        assert names.pop(b"kept") == b"durable"
        assert set(names) <= {b"new", b"newer"}
        assert all(b"fresh bytes".startswith(d) or d == bytes(len(d)) for d in names.values())


def test_an_image_of_a_local_state_stays_as_it_was() -> None:
    tables = empty_tables()
    db = SimDb(tables)
    db.set_value("k", b"1")
    image = copied(tables)
    db.set_value("k", b"2")
    assert SimDb(image).value("k") == b"1"


def test_a_step_is_made_of_plain_values() -> None:
    assert dataclasses.asdict(Step("push", 1))["kind"] == "push"
