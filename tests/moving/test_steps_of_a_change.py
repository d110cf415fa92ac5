"""What the steps of a change of the backends decide, one by one: what is agreed, written, closed, lost and told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.config import (
    CHANGED_TAG,
    EARLIER_TAG,
    MOVING_TAG,
    NO_LIMIT,
    TRUSTING_TAG,
    Acceptor,
    BackendEntry,
    Config,
    RedundancyClass,
    Replicate,
    Storage,
)
from metasync.consensus import ZERO_HASH, Ref, birth_digest, birth_path
from metasync.consensus.records.state import NOTHING
from metasync.errors import (
    MetaSyncError,
    NoQuorumError,
    RefusedError,
    UnreachableError,
    UsageError,
    WeakeningError,
    WorkspaceError,
)
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.members import key_copies, key_store
from metasync.moving import reconfigure, strays
from metasync.moving.reconfigure import OnlyThereError, Wanted
from metasync.reports.backends import Moving
from metasync.runtime.effects import Op, Reply
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.store import moves

HASH = b"h" * 32


def pack(name: str) -> Any:
    data = name.encode() * 16  # its first 8 bytes say in which partition it is
    return SimpleNamespace(id=(0, data), generation=0, name=data, size=100)


PACKS = [pack(bytes([n]).decode("latin-1")) for n in range(1, 100)]


def entry(n: int, form: Any = "log", *, stores: bool = True) -> BackendEntry:
    """Backend b`n`; without a form it does not vote."""
    storage = (Storage(bytes([n, 2]) * 8, HASH),) if stores else ()
    acceptor = Acceptor(bytes([n, 1]) * 8, form, HASH) if form else None
    return BackendEntry(bytes([n]) * 16, f"b{n}", "memory", 1 << 30, bytes([n]) * 32, storage, acceptor)


def of(*entries: BackendEntry, copies: int = 2, f: int = 0, **more: Any) -> Config:
    config = Config(entries, redundancy=(RedundancyClass(NO_LIMIT, Replicate(copies)),), f=f)
    return replace(config, mode="bft" if f else "crash", **more)


def some(n: int, **more: Any) -> Config:
    return of(*map(entry, range(1, n + 1)), **more)


def agreed(config: Config, packs: Iterable[Any] = (), **more: Any) -> Any:
    state = SimpleNamespace(v=6, era=0, config=HASH, index=Ref(3, b"i" * 32), retained=NOTHING, fingerprint="print",
                            master=b"m", **more)  # fmt: skip
    named = {p.id: p for p in packs}
    return SimpleNamespace(
        config=config, state=state, index=SimpleNamespace(packs=lambda: named),
        root=SimpleNamespace(before=(), apart=()),
        devices=SimpleNamespace(policy=SimpleNamespace(contradiction=lambda _: "")),
    )  # fmt: skip


class Bench:
    """A session that answers as a test wants, and notes what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.steps: list[str] = []
        self.told: list[Any] = []
        self.ops: list[Op] = []
        self.errors: dict[str, Any] = {}  # by backend
        self.drawn = 100
        self.is_unfinished = False
        db = SimpleNamespace(set=lambda key, value: self.steps.append(f"set {key is BASE_KEY} {value is None}"),
                             has=lambda key: key is UNFINISHED_KEY and self.is_unfinished,
                             put_objects=lambda _: None)  # fmt: skip
        self.s: Any = SimpleNamespace(
            db=db, previous=None, entropy=self._entropy, listener=self.told.append, down={}, load=self._load,
            names={bytes([n]) * 16: f"b{n}" for n in range(1, 9)},
            runtime=SimpleNamespace(run=self._run), group=SimpleNamespace(participant=None, enter=None),
            transfer=SimpleNamespace(places={}, home=lambda _: (), read_order=lambda _: []),
            put_const=lambda _, data: data,
        )  # fmt: skip

    def _entropy(self, n: int) -> bytes:
        self.drawn += 1
        return bytes([self.drawn]) * n

    def _load(self, state: Any) -> Any:
        self.steps.append(f"load {state}")
        return self.base

    base: Any = None

    def _run(self, task: Any) -> Any:
        """Runs a task of calls side by side, or gives what is no task."""
        if not hasattr(task, "send"):
            return task
        try:
            asked = next(task)
            while True:
                asked = task.send({key: self._reply(branch) for key, branch in asked.branches.items()})
        except StopIteration as e:
            return e.value

    def _reply(self, branch: Any) -> Reply:
        op = next(branch)
        self.ops.append(op)
        branch.close()
        return Reply(error=self.errors.get(op.backend))

    def stands_in(self, name: str, step: str, value: Any = None, module: Any = reconfigure) -> None:
        """Has a function note a step (unless that is empty) and return a value, or raise it."""

        def stand_in(*_: Any, **__: Any) -> Any:
            if step:
                self.steps.append(step)
            if isinstance(value, BaseException):
                raise value
            return value

        self.patch.setattr(module, name, stand_in)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


# ---- the order of things


def begin(bench: Bench, old: Config, decided: list[bool], alone: int = 0, weaker: str = "") -> list[Any]:
    """Sets the steps up. `decided`: of each proposal of the change, whether it was this one. -> changes proposed."""
    bench.base = base = agreed(old)
    base.devices.policy.contradiction = lambda _: weaker
    bench.stands_in("settle_journal", "settle", module=agreement)
    bench.stands_in("newest", "newest", base, module=agreement)
    bench.stands_in("_complete", "complete", some(4))
    bench.stands_in("_check_data", "data", PACKS[:alone])
    bench.stands_in("_allowing", "allow", SimpleNamespace(encode=lambda: b"a weaker policy"))
    bench.stands_in("_tell_shares", "shares")
    bench.stands_in("foreseen", "foresee", {})
    bench.stands_in("_moving", "moving", Moving(1, 2))
    bench.stands_in("_losses", "losses", {})
    bench.stands_in("_prepared", "prepare", b"digest")
    bench.stands_in("_settle", "close", base.state)
    proposed: list[Any] = []

    def propose(_: Any, __: Any, change: Any) -> Any:
        proposed.append(change)
        bench.steps.append("propose" if change.config else "propose nothing")
        mine = decided.pop(0) if change.config else True
        return SimpleNamespace(mine=mine, state=SimpleNamespace(v=7, fingerprint="next"))

    bench.patch.setattr(agreement, "propose", propose)
    return proposed


FIRST = ["settle", "newest", "checked", "complete", "data"]
LAST = ["foresee", "moving", "prepare", "propose", "set False True", "close"]


@pytest.mark.parametrize(
    ("alone", "weaker", "dry_run", "may_lose", "steps"),
    [
        (0, "", False, False, [*FIRST, "shares", *LAST]),
        (2, "", False, True, [*FIRST, "shares", *LAST]),
        (0, "fewer", False, False, [*FIRST, "allow", "shares", *LAST]),
        (2, "fewer", True, False, [*FIRST[1:], "shares", "moving", "losses"]),
    ],
    ids=["plain", "may-lose", "weaker", "dry-run"],
)
def test_a_change_is_looked_through_before_it_is_prepared_and_closed_after_it_is_agreed(
    bench: Bench, alone: int, weaker: str, dry_run: bool, may_lose: bool, steps: list[str]
) -> None:
    proposed = begin(bench, some(3), [True], alone, weaker)
    checked = lambda _: bench.steps.append("checked")  # noqa: E731
    wanted = Wanted("b4", lambda _: some(4), may_lose=may_lose, check=checked)
    report = reconfigure.change(bench.s, wanted, dry_run=dry_run)
    assert bench.steps == steps
    assert (report.version, report.dry_run, report.moving.packs) == (None if dry_run else 7, dry_run, 1)
    assert [c.devices for c in proposed] == ([] if dry_run else [b"a weaker policy" if weaker else None])
    assert any("passphrase" in text for text in report.kept) == (dry_run and bool(weaker))


def test_what_would_be_lost_is_not_given_up_unasked(bench: Bench) -> None:
    proposed = begin(bench, some(3), [True], alone=2)
    with pytest.raises(UsageError, match=r"2 packs \(200 bytes\) have no copy .* lost with b3"):
        reconfigure.change(bench.s, Wanted("b3", lambda _: some(2), leaves=bytes([3]) * 16))
    assert (bench.steps, proposed) == ([step for step in FIRST if step != "checked"], [])


def test_what_is_so_already_is_not_proposed(bench: Bench) -> None:
    proposed = begin(bench, some(3), [True])
    assert reconfigure.change(bench.s, Wanted("b3", lambda config: config)).version is None
    assert (bench.steps, proposed) == (["settle", "newest"], [])


def test_a_version_that_could_not_be_closed_is_passed_by_an_empty_one(bench: Bench) -> None:
    begin(bench, some(3), [True])
    answers: list[dict[str, str]] = [{"b1": "its log ended"}, {}]
    bench.patch.setattr(reconfigure, "foreseen", lambda *_: answers.pop(0))
    reconfigure.change(bench.s, Wanted("b4", lambda _: some(4)))
    assert [step for step in bench.steps if "propose" in step] == ["propose nothing", "propose"]
    assert bench.steps.index("prepare") > bench.steps.index("propose nothing")


def test_a_version_lost_to_somebody_else_has_the_change_made_on_top_of_it_and_not_for_ever(bench: Bench) -> None:
    proposed = begin(bench, some(3), [False, True])
    assert reconfigure.change(bench.s, Wanted("b4", lambda _: some(4))).version == 7
    assert len(proposed) == 2
    assert proposed[0].op_id == proposed[1].op_id
    assert bench.steps.count("close") == 1
    proposed = begin(bench, some(3), [False] * 1000)
    with pytest.raises(WorkspaceError, match="nothing was changed"):
        reconfigure.change(bench.s, Wanted("b4", lambda _: some(4)))
    assert len(proposed) == LOST_ROUNDS_MAX


def test_a_weaker_policy_takes_the_passphrase(bench: Bench) -> None:
    bench.stands_in("open_admin_key", "opened", SimpleNamespace(admin_private=b"key"), key_store)
    bench.stands_in("replace", "", "signed")
    bench.patch.setattr(reconfigure, "allowing", lambda *_, **__: SimpleNamespace(encode=lambda: b""))
    with pytest.raises(WeakeningError, match="fewer"):
        reconfigure._allowing(bench.s, agreed(some(3)), some(2), None, "fewer")
    assert bench.steps == []
    assert reconfigure._allowing(bench.s, agreed(some(3)), some(2), "pass", "fewer") == "signed"  # type: ignore[comparison-overlap]
    assert bench.steps == ["opened"]


def test_shares_are_told_where_they_change(bench: Bench) -> None:
    reconfigure._tell_shares(bench.s, some(3), some(3, f=0, compression_level=9))
    assert bench.told == []
    reconfigure._tell_shares(bench.s, some(3), some(4))
    assert ["b4 50%" in notice.text for notice in bench.told] == [True]


# ---- what follows from what is wanted


def completed(
    bench: Bench, old: Config, raw: Config, packs: Iterable[Any] = (), wanted: Wanted | None = None
) -> Config:
    return reconfigure._complete(bench.s, wanted or Wanted("x", lambda _: raw), agreed(old, packs), raw)


def under_way(bench: Bench) -> Config:
    """Of four backends, the last one added while nothing else moved, with its data still to be moved."""
    bench.s.previous = some(3)
    return replace(some(4), prev_config=b"p" * 32).tagged(MOVING_TAG, (1, b"o" * 32))


def test_a_step_keeps_a_quorum_of_the_voters_and_room_for_the_copies(bench: Bench) -> None:
    with pytest.raises(UsageError, match="1 of 3 voting backends would stay"):
        completed(bench, some(3), of(entry(1), entry(2, ""), entry(3, "")))
    with pytest.raises(UsageError, match="4 copies need 4 backends that hold data, and 3 would be left"):
        completed(bench, some(3), some(3, copies=4))
    assert completed(bench, some(3), some(3, copies=3)).survives.copies == 2


def test_a_change_that_moves_nothing_leaves_what_moves_as_it_was(bench: Bench) -> None:
    old = under_way(bench)
    bench.s.previous = None  # which would stand in the way of one that moves data
    renamed = old.with_backends([*old.backends[:3], replace(old.backends[3], name="other")])
    assert completed(bench, old, renamed, PACKS) == renamed.tagged(CHANGED_TAG, (7, HASH))


def test_who_gains_packs_gets_a_new_place_for_them_the_same_in_each_attempt(bench: Bench) -> None:
    old, raw = some(4), some(3)
    wanted = Wanted("b4", lambda _: raw)
    new = completed(bench, old, raw, PACKS, wanted)
    assert [len(b.storage) for b in new.backends] == [2, 2, 2]
    assert (new.prev_config, new.moving) == (HASH, (3, b"i" * 32))
    assert {s.storage_id: s.birth for b in new.backends for s in b.storage[1:]} == {
        storage_id: birth_digest(nonce) for storage_id, nonce in wanted.births.items()
    }
    assert completed(bench, old, raw, PACKS, wanted) == new
    more = completed(bench, some(3), some(4), PACKS)
    assert [len(b.storage) for b in more.backends] == [1, 1, 1, 1], "to which nothing comes back"


def test_nothing_is_to_be_moved_where_no_pack_was_stored_elsewhere(bench: Bench) -> None:
    new = completed(bench, some(4), some(3))
    assert (new.prev_config, new.moving) == (None, None)


def test_a_change_while_data_move_is_merged_if_it_can_be(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    old = under_way(bench)
    raw = old.with_backends([*old.backends, entry(5)])
    new = completed(bench, old, raw)
    assert (new.prev_config, new.moving) == (old.prev_config, (3, b"i" * 32))
    assert [item.is_trimmed for item in moves.earlier(new)] == [False]
    bench.stands_in("still_moving", "", Moving(5, 500))
    previous, bench.s.previous = bench.s.previous, None
    with pytest.raises(UsageError, match=r"still move \(5 packs, .* the config before cannot be read"):
        completed(bench, old, raw)
    bench.s.previous = previous
    bench.stands_in("still_moving", "", Moving(5, 500, 200.0))
    monkeypatch.setattr(moves, "may_merge", lambda *_, **__: False)
    monkeypatch.setattr(moves, "merges", lambda _: 8)
    with pytest.raises(UsageError, match="and 8 changes were merged") as told:
        completed(bench, old, raw)
    assert "moves them, in about 3 min 20 s by what is known of the lines; then" in str(told.value.next_step)
    assert EARLIER_TAG not in dict(old.tags)


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (some(3), some(4), 1),
        (some(3), some(4, tags=((TRUSTING_TAG, b""),)), 0),
        (some(3), of(*some(3).backends, entry(4, "block")), 0),
        (some(3), some(4, copies=1), 0),
        (some(4), some(4), 0),
        (some(4), some(5), 0),
        (some(4, f=1), some(3, f=1), 0),
        (some(5, f=1), some(5, f=1), 1),
        (some(5, f=1), of(*some(4).backends, entry(5, "block"), f=1), 0),
        (some(5, f=1), some(5, f=1, copies=1), 0),
        (some(8, f=2, copies=3), some(8, f=2, copies=2), 1),
        (some(7, f=2, copies=3), some(8, f=2, copies=3), 2),
    ],
    ids=[
        "gained", "trusting", "block", "one-copy", "as-many-as-before", "at-a-cost", "too-few", "kept", "a-block-comes",
        "fewer-copies", "some-fewer", "not-fewer-for-being-more",
    ],
)  # fmt: skip
def test_as_many_liars_are_allowed_for_as_voters_and_copies_bear(old: Config, new: Config, allowed: int) -> None:
    got = reconfigure._outvoting(old, new)
    assert (got.f, got.mode) == (allowed, "bft" if allowed else "crash")


def test_what_moves_under_a_new_config_is_counted_from_where_it_is_read(bench: Bench) -> None:
    def moving(old: Config, new: Config) -> int:
        return reconfigure._moving(bench.s, agreed(old, PACKS), new).packs

    read = replace(some(4), prev_config=HASH)
    among_four = moving(some(3), read)
    assert 0 < among_four < len(PACKS), "only what the new one gets"
    assert moving(some(3), some(4)) == 0, "no config before is read"
    old = under_way(bench)
    assert moving(old, old) == 0, "what moved before"
    raw = old.with_backends([*old.backends, entry(5)])
    bench.s.previous = some(3)
    assert moving(old, raw) > moving(some(4), raw), "what the change before moves, too"


# ---- what must not be lost


@pytest.mark.parametrize(
    ("is_dead", "elsewhere", "here", "error"),
    [
        (False, True, True, None),
        (False, False, True, OnlyThereError),
        (False, False, False, UsageError),
        (True, False, True, None),
    ],
)
def test_what_only_the_backend_has_that_goes_keeps_it_unless_it_is_dead(
    bench: Bench, is_dead: bool, elsewhere: bool, here: bool, error: type[UsageError] | None
) -> None:
    wanted = Wanted("b3", lambda _: some(2), leaves=bytes([3]) * 16, is_dead=is_dead)
    base = agreed(some(3), PACKS)
    bench.stands_in("_may_hold", "", PACKS[:2])
    bench.stands_in("_without_copy", "", [] if elsewhere else PACKS[:2])
    bench.s.transfer.places = {bytes([n]) * 16: f"place {n}" for n in (1, 3)}
    asked: list[list[Any]] = []

    def has_copy(places: Iterable[Any], _: Any) -> bool:
        asked.append([*places])
        return here

    bench.patch.setattr(reconfigure, "has_copy", has_copy)
    bench.patch.setattr(reconfigure, "where_not", lambda _, tasks: [p for p, has in tasks if not has])
    if error is None:
        assert reconfigure._check_data(bench.s, wanted, base, some(2)) == ([] if elsewhere else PACKS[:2])
        return
    with pytest.raises(UsageError, match=r"2 packs \(200 bytes\) .* without b3") as e:
        reconfigure._check_data(bench.s, wanted, base, some(2))
    assert type(e.value) is error
    assert asked == [["place 3"]] * 2, "whether that one gives them"


def test_nothing_is_asked_where_none_goes(bench: Bench) -> None:
    bench.stands_in("_may_hold", "asked", [])
    assert reconfigure._check_data(bench.s, Wanted("b4", lambda _: some(4)), agreed(some(3), PACKS), some(4)) == []
    assert (bench.steps, bench.told) == ([], [])


@pytest.mark.parametrize(
    ("moves_still", "is_dead", "lists", "held"),
    [
        (False, False, PACKS[5:6], [*PACKS[:2], *PACKS[5:6]]),
        (False, True, PACKS[5:6], PACKS[:2]),
        (True, True, [], PACKS),
        (False, False, UnreachableError("is away"), PACKS),
    ],
)
def test_what_a_backend_may_hold_is_what_belongs_and_strays_there(
    bench: Bench, moves_still: bool, is_dead: bool, lists: Any, held: list[Any]
) -> None:
    goes = bytes([3]) * 16
    belongs = {p.name for p in PACKS[:2]}
    bench.s.transfer.home = lambda name: (goes,) if name in belongs else ()
    bench.s.previous = some(3) if moves_still else None
    bench.stands_in("listed", "", lists, strays)
    wanted = Wanted("b3", lambda _: some(2), leaves=goes, is_dead=is_dead)
    assert reconfigure._may_hold(bench.s, wanted, agreed(some(3), PACKS)) == held


def test_losses_are_named_where_there_are_any(bench: Bench) -> None:
    bench.stands_in("would_be_lost", "looked", (("a file",), 3))
    assert reconfigure._losses(bench.s, agreed(some(3)), []) == {}
    assert bench.steps == []
    assert reconfigure._losses(bench.s, agreed(some(3)), PACKS[:2]) == {
        "lost_packs": 2, "gone": ("a file",), "gone_objects": 3,
    }  # fmt: skip


def test_the_backend_that_goes_is_named_as_the_config_had_it_that_has_it_still() -> None:
    base, wanted = agreed(some(2)), Wanted("new", lambda _: some(2), leaves=bytes([3]) * 16)
    assert reconfigure._leaving(base, some(3), wanted) == "b3"
    assert reconfigure._leaving(base, None, wanted) == "new"
    assert reconfigure._leaving(agreed(some(3)), None, wanted) == "b3"


def test_a_copy_on_the_backend_that_goes_is_none(bench: Bench) -> None:
    places = [SimpleNamespace(backend_id=bytes([n]) * 16) for n in (1, 3)]
    bench.s.transfer.read_order = lambda name: places if name == PACKS[0].name else places[1:]
    bench.patch.setattr(reconfigure, "has_copy", lambda others, _: bool(others))
    bench.patch.setattr(reconfigure, "where_not", lambda _, tasks: [p for p, has in tasks if not has])
    assert reconfigure._without_copy(bench.s, PACKS[:2], bytes([3]) * 16) == PACKS[1:2]


# ---- making ready


def make_ready(bench: Bench, joins: str, fails: MetaSyncError | None = None) -> tuple[Any, ...]:
    """-> what was given to whoever prepares the new config: nonces, ways, meta objects."""
    given: list[Any] = []
    bench.stands_in("_write_root", "root")
    bench.stands_in("_write_births", "births", fails)
    bench.stands_in("take_away", "taken away", UnreachableError("is away"))
    bench.s.group.follow = lambda _, __, ways: given.append(ways)

    def prepare_config(_: Any, __: Any, *more: Any) -> bytes:
        given.extend(more)
        return b"digest"

    bench.s.group.prepare_config = prepare_config
    new = some(4)
    acceptor_id, storage_id = bytes([4, 1]) * 8, bytes([4, 2]) * 8
    wanted = Wanted("b4", lambda _: new, joins=joins, births={acceptor_id: b"n", storage_id: b"s"})
    base = agreed(some(3))
    base.root.before = ((1, b"b" * 32), (0, ZERO_HASH))
    base.root.apart = (SimpleNamespace(ref=(2, b"a" * 32)),)
    assert reconfigure._prepared(bench.s, wanted, base, new) == b"digest"
    return tuple(given)


def test_only_new_acceptors_are_given_what_they_need(bench: Bench) -> None:
    acceptor_id = bytes([4, 1]) * 8
    refs = [Ref(3, b"i" * 32), Ref(1, b"b" * 32), Ref(2, b"a" * 32)]
    assert make_ready(bench, "") == ({acceptor_id: "b4"}, {acceptor_id: b"n"}, refs)
    assert bench.steps == ["births"]
    assert make_ready(bench, "new way")
    assert bench.steps == ["births", "root", "births"]


def test_what_was_begun_on_a_new_root_is_taken_away_after_a_failure(bench: Bench) -> None:
    for joins, steps in (("", ["births"]), ("new way", ["root", "births", "taken away"])):
        bench.steps.clear()
        with pytest.raises(RefusedError):
            make_ready(bench, joins, RefusedError("is full"))
        assert bench.steps == steps


def test_births_are_written_where_places_are_new_by_ways_that_there_are(bench: Bench) -> None:
    born = bytes([3, 2]) * 8
    wanted = Wanted("x", lambda _: some(3), births={born: b"n" * 32})
    reconfigure._write_births(bench.s, wanted, some(3))
    assert [(op.backend, op.path) for op in bench.ops] == [("b3", birth_path(born))]
    bench.errors["b3"] = RefusedError("is full")
    with pytest.raises(RefusedError, match="b3: is full"):
        reconfigure._write_births(bench.s, wanted, some(3))
    del bench.s.names[bytes([3]) * 16]
    bench.ops.clear()
    with pytest.raises(UsageError, match="b3 gets more data by this, and this device has no way to it"):
        reconfigure._write_births(bench.s, wanted, some(3))
    assert bench.ops == []


@pytest.mark.parametrize(("era", "written"), [(0, ["slot", "ballast"]), (2, ["slot", "eras", "ballast"])])
def test_a_new_root_gets_the_records_of_its_eras_from_others_that_answer(
    bench: Bench, era: int, written: list[str]
) -> None:
    asked: list[list[str]] = []
    bench.s.names = {bytes([n]): f"b{n}" for n in (1, 2, 3)}
    bench.s.down = {"b2": UnreachableError("is away")}

    def records(_: Any, __: Any, others: list[str]) -> dict[str, bytes]:
        asked.append(others)
        return {"eras": b""}

    bench.patch.setattr(reconfigure, "records", records)
    bench.stands_in("give", "", {"slot": b""}, key_copies)
    bench.patch.setattr(reconfigure, "BALLAST_PATH", "ballast")
    state: Any = SimpleNamespace(era=era)
    reconfigure._write_root(bench.s, "b3", state)
    assert ([op.path for op in bench.ops], asked) == (written, [["b1"]] if era else [])
    bench.errors["b3"] = RefusedError("is full")
    with pytest.raises(RefusedError, match="b3: is full"):
        reconfigure._write_root(bench.s, "b3", state)


# ---- after it was agreed


@pytest.mark.parametrize(
    ("is_unfinished", "master", "fences", "steps"),
    [
        (False, b"m", True, ["fence", "propose", "set False True", "hint", "load newest", "set True False"]),
        (False, b"o", True, ["fence", "propose", "set False True", "hint"]),
        (True, b"m", True, ["fence", "propose", "set False True", "hint"]),
        (False, b"m", False, ["fence", "set False True", "hint", "load decided", "set True False"]),
    ],
    ids=["plain", "another-tree", "unfinished", "no-quorum"],
)
def test_a_folder_passes_on_to_the_new_config_only_with_the_tree_that_it_has(
    bench: Bench, is_unfinished: bool, master: bytes, fences: bool, steps: list[str]
) -> None:
    class State(SimpleNamespace):
        def __str__(self) -> str:
            return str(self.name)

    newest, decided = State(name="newest", master=b"m"), State(name="decided", master=b"m")

    def fence(*_: Any) -> None:
        bench.steps.append("fence")
        if not fences:
            raise NoQuorumError("too few")

    bench.is_unfinished = is_unfinished
    bench.s.base_state = lambda: SimpleNamespace(master=master)
    bench.s.group.fence = fence
    bench.s.group.write_hint = lambda *_, **__: bench.steps.append("hint")
    bench.stands_in("propose", "propose", SimpleNamespace(state=newest), agreement)
    base: Any = None
    got: Any = reconfigure._settle(bench.s, base, decided)  # type: ignore[arg-type]
    assert got.name == ("newest" if fences else "decided")
    assert bench.steps == steps
    assert [n.warning for n in bench.told] == ([] if fences else [True])


LEFT = "What b3 holds was left there; keep it until nothing is left to move."
IN_TURN = "What lies elsewhere now than it belongs is read where it was. To move it: metasync rebalance"


@pytest.mark.parametrize(
    ("old", "new", "more", "packs", "weaker", "kept"),
    [
        (3, 4, {}, 0, "", ()),
        (3, 4, {}, 5, "", (IN_TURN,)),
        (3, 4, {}, 0, "fewer", ("This takes the workspace's passphrase: fewer.",)),
        (3, 2, {"leaves": bytes([3]) * 16}, 0, "", (LEFT,)),
        (3, 2, {"leaves": bytes([3]) * 16, "is_dead": True}, 0, "", ("Nobody asks b3 for anything any more.",)),
        (3, 3, {"leaves": bytes([3]) * 16}, 0, "", ()),
    ],
)
def test_what_stays_as_it_is_is_told(
    old: int, new: int, more: dict[str, Any], packs: int, weaker: str, kept: tuple[str, ...]
) -> None:
    base, wanted = agreed(some(old)), Wanted("x", lambda config: config, **more)
    report = reconfigure._report(
        wanted, base, some(new), 7, base.state, dry_run=False, moving=Moving(packs, 0), weaker=weaker
    )
    assert (report.kept, report.voting, report.storing) == (kept, new, new)
