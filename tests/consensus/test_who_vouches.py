"""Who vouches for what is jumped over: whose entries count, which heads lie on the way, and who could end a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import World

from metasync.consensus import leaps
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.hints import AHEAD_MAX
from metasync.errors import DamagedError
from metasync.runtime.effects import Task

ME: Any = SimpleNamespace(identity=SimpleNamespace(device_id=b"me"))


def saying(result: Any) -> Callable[..., Task]:
    def task(*args: object, **_: object) -> Task:
        yield from ()
        return result(*args) if callable(result) else result

    return task


def do(task: Task) -> Any:
    return World(1, [*"abc"]).do(task, {})


# --- which entries lead on


class Jumping:
    """A jump by the entries of `a` and `b`, in this order. What is asked of each on the way can be answered here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.admitted, self.begins, self.decided = {"a", "b"}, {"a", "b"}, {"a", "b"}
        self.others: dict[str, bytes] = {}
        self.accused: list[tuple[Any, ...]] = []
        word = lambda *args: self.accused.append(args[3:])  # noqa: E731
        for name, answer in {
            "_is_admitted": lambda _, signed: signed.entry.base in self.admitted,
            "_begins_here": lambda _m, _i, base: base in self.begins,
            "_last_under": lambda _m, _i, _current, base: base,
            "_may_be_decided": lambda _m, _e, _i, _current, state: state in self.decided,
            "_borne_out_to": lambda _m, _e, _i, state, _entries: f"as far as is sure to {state}",
            "other_at": lambda _m, _i, base: self.others.get(base),
            "check_word": word,
        }.items():
            monkeypatch.setattr(leaps, name, saying(answer))
        self.shown: Any = {name.encode(): SimpleNamespace(entry=SimpleNamespace(base=name)) for name in "ab"}

    def jump(self, *, certain: bool = True) -> Any:
        at: Any = SimpleNamespace(acceptors={b"a": "view of a", b"b": "view of b"})
        return do(leaps.jump(ME, saying(None), at, SimpleNamespace(), self.shown, certain=certain))  # type: ignore[arg-type]


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Jumping:
    return Jumping(monkeypatch)


def test_a_jump_goes_as_far_as_is_sure_or_where_only_a_look_is_wanted_as_far_as_is_shown(jumping: Jumping) -> None:
    assert jumping.jump() == "as far as is sure to a"
    assert jumping.jump(certain=False) == "a"


@pytest.mark.parametrize("lacking", ["admitted", "begins", "decided"])
def test_an_entry_leads_nowhere_that_fails_one_question(jumping: Jumping, lacking: str) -> None:
    getattr(jumping, lacking).discard("a")
    assert jumping.jump(certain=False) == "b"
    getattr(jumping, lacking).discard("b")
    assert jumping.jump() is None
    assert jumping.accused == []


def test_the_word_of_another_history_is_looked_into(jumping: Jumping) -> None:
    jumping.begins.clear()
    jumping.others["b"] = b"another state"
    assert jumping.jump() is None
    assert jumping.accused == [("view of b", jumping.shown[b"b"], b"another state")]


def test_a_way_begins_with_what_the_next_version_bears_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first state is the one decided there, or may be; a base that is not after that version is this one."""
    base: Any = SimpleNamespace(v=4, hash=b"base")
    next_one: Any = SimpleNamespace(v=5, hash=b"next", prev=b"base")
    monkeypatch.setattr(leaps, "ancestor", saying(b"next"))
    monkeypatch.setattr(leaps, "fetch_state", saying(next_one))

    def begins(ahead: Any, decided: Any, may: bool = False) -> bool:
        at: Any = SimpleNamespace(v=5, base=base, decided=lambda: decided, may_decide=lambda _: may)
        return bool(do(leaps._begins_here(ME, at, ahead)))

    ahead = SimpleNamespace(v=9, epoch=1)
    assert begins(base, None)
    assert not begins(SimpleNamespace(v=4, hash=b"other"), None)
    assert begins(ahead, next_one)
    assert not begins(ahead, SimpleNamespace(hash=b"other"), may=True)
    assert begins(ahead, None, may=True)
    assert not begins(ahead, None, may=False)
    next_one.prev = b"other"
    assert not begins(ahead, None, may=True)


def test_a_state_that_is_known_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaps, "fetch_state", saying(None))
    current: Any = SimpleNamespace(v=4)
    nowhere: Any = saying(None)
    assert do(leaps._may_be_decided(ME, nowhere, current, current, current))


# --- which heads lie on the way


def test_a_head_vouches_for_the_way_that_it_lies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are of versions on the way to version 10, of 11, which is being voted on, and of later ones."""
    said: dict[bytes, tuple[int, str] | None] = {
        b"none": None,
        b"below": (5, "main 5"),
        b"of another": (5, "other 5"),
        b"same": (10, "main 10"),
        b"voted": (11, "voted 11"),
        b"not voted": (11, "other 11"),
        b"later": (12, "main 12"),
        b"later, of another": (12, "voted 12"),
        b"unread": (12, "gone 12"),
        b"farthest": (10 + AHEAD_MAX, "main far"),
        b"too far": (11 + AHEAD_MAX, "main too far"),
    }
    asked: list[Any] = []

    def heads(_m: object, _at: object, devices: list[bytes], links: list[str], enough: int) -> Any:
        asked.append((devices, links, enough))
        return {d: None if h is None else SimpleNamespace(v=h[0], state_hash=h[1]) for d, h in said.items()}

    def ancestor(_m: object, _at: object, state: Any, v: int) -> str:
        assert state.v >= v, "a state has nothing after it"
        return f"{state.chain} {v}"

    def fetched(_m: object, _at: object, v: int, digest: str, _epoch: int) -> Any:
        if digest.startswith("gone"):
            raise DamagedError("gone")
        return SimpleNamespace(v=v, chain=digest.split()[0])

    monkeypatch.setattr(leaps, "read_heads", saying(heads))
    monkeypatch.setattr(leaps, "ancestor", saying(ancestor))
    monkeypatch.setattr(leaps, "fetch_state", saying(fetched))
    monkeypatch.setattr(leaps, "_is_voted_for", saying(lambda _at, digest: digest.startswith("voted")))
    views = {n: SimpleNamespace(reach=lambda n=n: None if n == "away" else n) for n in ("a", "away", "b", "c")}
    certificates = [SimpleNamespace(device_id=d) for d in (b"me", b"signer", b"x")]
    ahead: Any = SimpleNamespace(v=11, acceptors=views, devices=SimpleNamespace(certificates=certificates))
    high: Any = SimpleNamespace(v=10, hash="main 10", chain="main", epoch=1)
    found = do(leaps._heads_on_the_way(ME, ahead, high, {b"signer"}))
    assert found == {b"below": 5, b"same": 10, b"voted": 10, b"later": 10, b"farthest": 10}
    assert asked == [([b"x"], ["a", "b", "c"], 2)]


def test_a_state_is_voted_for_where_a_log_that_is_read_has_a_vote_for_it() -> None:
    class View:
        def __init__(self, name: str, vote: bytes, link: str | None) -> None:
            self.name, self._vote, self._link = name, vote, link
            self.log = SimpleNamespace(votes=dict[int, Any]())

        def reach(self) -> str | None:
            return self._link

        def look(self) -> Task:
            yield from ()
            self.log.votes[1] = SimpleNamespace(hash=self._vote)

    def is_voted(digest: bytes) -> bool:
        views = {"a": View("a", b"one", "a"), "b": View("b", b"two", "b"), "c": View("c", b"three", None)}
        at: Any = SimpleNamespace(acceptors=views)
        return bool(do(leaps._is_voted_for(at, digest)))

    assert [is_voted(digest) for digest in (b"one", b"two", b"three", b"four")] == [True, True, False, False]


# --- how far it is sure


class Way:
    """The way from version 0 to 10. `members`: the devices by version, from which on they are these. `signers`: whose
    entries stand on 10, and whether their signatures are right. `logs`: from where to where they show it decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **signers: bool) -> None:
        self.members = {0: {"me", "x", "y", "z"}}
        self.signers, self.heads = signers, dict[bytes, int]()
        self.logs: dict[int, int] = {}
        self.read: list[int] = []
        between = lambda _m, _i, _high, first, _last: [SimpleNamespace(v=first)]  # noqa: E731
        monkeypatch.setattr(leaps, "_heads_on_the_way", saying(lambda *_: dict(self.heads)))
        monkeypatch.setattr(leaps, "states_between", saying(between))
        monkeypatch.setattr(leaps, "_replayed", saying(self._replayed))

    def _replayed(self, _m: object, _e: object, _i: object, low: Any, *_: object) -> Any:
        self.read.append(low.v)
        return SimpleNamespace(v=self.logs[low.v]) if low.v in self.logs else low

    def _at(self, state: Any) -> Any:
        names = self.members[max(v for v in self.members if v <= state.v)]
        devices = {n.encode(): SimpleNamespace(device_id=n.encode(), sign_public=n.encode()) for n in names}
        held = SimpleNamespace(certificates=[*devices.values()], get=devices.get)
        return SimpleNamespace(base=state, devices=held)

    def sure(self, *, logs: bool = True) -> int:
        entries: Any = [
            SimpleNamespace(entry=SimpleNamespace(device_id=name.encode()), verifies=lambda _, right=right: right)
            for name, right in self.signers.items()
        ]
        start, high = SimpleNamespace(v=0), SimpleNamespace(v=10)
        enter: Any = saying(self._at)
        return int(do(leaps._borne_out_to(ME, enter, self._at(start), high, entries, logs=logs)).v)  # type: ignore[arg-type]


def test_two_devices_or_this_one_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for signers in ({"x": True, "y": True}, {"me": True}):
        way = Way(monkeypatch, **signers)
        assert (way.sure(), way.read) == (10, [])


@pytest.mark.parametrize("signers", [{"x": True}, {"x": True, "y": False}, {"x": True, "stranger": True}])
def test_where_one_device_vouches_the_logs_are_read(monkeypatch: pytest.MonkeyPatch, signers: dict[str, bool]) -> None:
    """Neither a signature that is wrong counts, nor that of who is no device there."""
    way = Way(monkeypatch, **signers)
    way.logs = {0: 4, 4: 7}
    assert (way.sure(), way.read) == (7, [0, 4, 7])
    way.logs[7] = 10
    assert way.sure() == 10


def test_a_head_vouches_up_to_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way(monkeypatch, x=True)
    way.heads = {b"y": 6, b"z": 3}
    way.logs = {6: 8}
    assert (way.sure(), way.read) == (8, [6, 8])


def test_who_was_no_device_yet_vouches_for_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It joined by what it was shown. From a version on that is sure, and that admits it, its word counts."""
    way = Way(monkeypatch, x=True, late=True)
    way.members[4] = {"me", "x", "y", "z", "late"}
    assert (way.sure(), way.read) == (0, [0])
    way = Way(monkeypatch, x=True, late=True)
    way.members[4] = {"me", "x", "y", "z", "late"}
    way.logs = {0: 4}
    assert (way.sure(), way.read) == (10, [0])


def test_where_there_is_but_one_other_device_its_word_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way(monkeypatch, x=True)
    way.members = {0: {"me", "x"}}
    assert (way.sure(), way.read) == (10, [])
    way.members = {0: {"me", "x", "y"}, 5: {"me", "x"}}
    way.logs = {0: 5}
    assert (way.sure(), way.read) == (10, [0]), "from version 5 on"


def test_whoever_asks_the_logs_otherwise_gets_what_devices_vouch_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way(monkeypatch, x=True)
    way.logs = {0: 4}
    assert (way.sure(logs=False), way.read) == (0, [])
    way.heads = {b"y": 6}
    assert (way.sure(logs=False), way.read) == (6, [])


# --- what the logs of each version show


@dataclass(frozen=True)
class Step:
    """One state of a chain."""

    v: int
    prev: str = ""
    config: str = "config"
    chain: str = "main"
    epoch: int = 1
    fingerprint: str = "fingerprint"

    @property
    def hash(self) -> str:
        return f"{self.chain} {self.v}"


class Replay:
    """The way from version `low` to `high`: each version is decided as it says, but for those in `decided`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs: dict[int, str] = {}
        self.decided: dict[int, Any] = {}
        self.may: set[int] = set()
        self.bound: set[int] = set()
        self.finishes: set[int] = set()
        self.chain = "main"
        self.looked: list[int] = []
        self.me: Any = SimpleNamespace(identity=SimpleNamespace(device_id=b"me"), now=0.0, void_values={})

        def look(_m: object, at: Any, *_: object, **__: object) -> None:
            self.looked.append(at.v)

        monkeypatch.setattr(leaps, "states_between", saying(lambda *args: [self.state(v) for v in self._asked(*args)]))
        monkeypatch.setattr(leaps, "_glance", saying(None))
        monkeypatch.setattr(leaps, "look_around", saying(look))
        monkeypatch.setattr(leaps, "_can_finish", lambda _, at: at.v in self.finishes)

    def _asked(self, _m: object, _i: object, _high: object, first: int, last: int) -> range:
        return range(first, last + 1)

    def state(self, v: int) -> Any:
        config = [name for since, name in sorted(self.configs.items()) if since <= v]
        return Step(v, f"{self.chain} {v - 1}", config[-1] if config else "config", self.chain)

    def _at(self, base: Any, **_: object) -> Any:
        v = base.v + 1
        return SimpleNamespace(
            v=v, base=base, begin=lambda: None, decided=lambda: self.decided.get(v, self.state(v)),
            may_decide=lambda _: v in self.may, is_bound=lambda _: v in self.bound,
        )  # fmt: skip

    def reached(self, low: int = 0, high: int = 10) -> int:
        before: Any = Step(low)
        return int(do(leaps._replayed(self.me, saying(self._at), ME, before, self.state(high), {b"x"})).v)


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Replay:
    return Replay(monkeypatch)


def test_versions_that_the_logs_show_decided_are_passed_many_at_a_time(replay: Replay) -> None:
    """No more than are read side by side, and none that another floor covers."""
    assert (replay.reached(), replay.looked) == (10, [])
    assert replay.reached(0, 500) == leaps.WINDOW
    assert replay.reached(1000, 1100) == 1023


def test_a_version_that_is_not_shown_decided_is_looked_at_and_not_passed(replay: Replay) -> None:
    """Nobody is named where it may be decided yet."""
    replay.decided, replay.may = {4: None}, {4}
    assert (replay.reached(), replay.looked, replay.me.void_values) == (3, [4], {})
    replay.decided, replay.may = {4: Step(4, "main 3", chain="other")}, set()
    assert replay.reached() == 3
    assert list(replay.me.void_values) == [(b"x", 4)]


def test_a_version_whose_votes_bind_is_passed_by_who_cannot_finish_it(replay: Replay) -> None:
    replay.decided, replay.bound, replay.may = {4: None}, {4}, {4}
    assert replay.reached() == 10
    replay.finishes = {4}
    assert replay.reached() == 3


def test_a_way_that_does_not_begin_at_what_is_sure_is_not_gone(replay: Replay) -> None:
    replay.chain = "other"
    assert replay.reached() == 0


def test_the_logs_of_one_config_are_read_at_a_time(replay: Replay) -> None:
    """The version that changes it is still its own."""
    replay.configs = {5: "another"}
    replay.decided = {7: None}
    assert replay.reached() == 5


def test_the_last_state_under_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any number of versions; the newest itself where the config never changed."""

    def last(changed: int, low: int, high: int) -> int:
        def of(v: int) -> Any:
            return Step(v, config="config" if v < changed else "another")

        monkeypatch.setattr(leaps, "ancestor", saying(""))
        monkeypatch.setattr(leaps, "fetch_state", saying(lambda _m, _i, v, *_: of(v)))
        return int(do(leaps._last_under(ME, ME, of(low), of(high))).v)

    assert [last(changed, 0, 9) for changed in (1, 2, 5, 9, 10)] == [0, 1, 4, 8, 9]


class Glanced(LogAcceptor):
    """A log with two entries, as far as a glance asks."""

    def __init__(self, name: str, v: int, vouching: dict[str, bool]) -> None:
        self.name, self.v, self.said = name, v, vouching
        self.link: str | None = name
        self.down, self.covered = False, False
        self.log: Any = SimpleNamespace(next_idx=0)
        self.taken: list[str] = []

    def reach(self) -> str | None:
        return self.link

    def is_out(self, *more: str) -> bool:
        assert more == ("down",)
        return self.down

    def place(self, idx: int, v: int | None = None, epoch: int | None = None) -> str:
        return f"{self.v} {idx}"

    def get(self, path: str) -> Task:
        yield from ()
        return path

    def vouching(self) -> Task:
        yield from ()
        return {what: saying(answer)() for what, answer in self.said.items()}

    def has_no_floor(self, v: int) -> Task:
        yield from ()
        assert v == self.v
        return not self.covered

    def take(self, found: Sequence[Any], asked: float) -> None:
        self.taken += found


class Glance:
    """The logs of two versions on four acceptors, two of which make a quorum."""

    def __init__(self) -> None:
        self.said = {name: {"birth": True} for name in "abcd"}
        self.ats: list[Any] = []
        for v in (6, 7):
            views = {name.encode(): Glanced(name, v, said) for name, said in self.said.items()}
            self.ats.append(SimpleNamespace(acceptors=views, quorum=2))

    def view(self, name: str, v: int = 6) -> Glanced:
        found: Glanced = self.ats[v - 6].acceptors[name.encode()]
        return found

    def taken(self) -> dict[str, list[str]]:
        do(leaps._glance(self.ats))
        return {
            name: entries
            for name in "abcd"
            if (entries := [*self.view(name).taken, *self.view(name, 7).taken])
        }  # fmt: skip


def test_a_glance_reads_the_first_entries_on_a_quorum_that_is_at_hand() -> None:
    glance = Glance()
    glance.view("a").link = None
    glance.view("b").down = True
    assert glance.taken() == {"c": ["6 0", "6 1", "7 0", "7 1"], "d": ["6 0", "6 1", "7 0", "7 1"]}


def test_a_glance_begins_with_logs_in_log_form_that_were_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    glance = Glance()
    monkeypatch.setattr(glance.view("a"), "form", "block")
    glance.view("b").log.next_idx = 1
    assert glance.taken() == {"b": ["7 0", "7 1"], "c": ["6 0", "6 1", "7 0", "7 1"]}


@pytest.mark.parametrize("lacking", ["birth", "audit", "floor"])
def test_what_nothing_vouches_for_is_not_taken_in(lacking: str) -> None:
    """Rule 1.9 to 1.11: the right birth, the entry that was seen before, and no floor above, beside what is read."""
    glance = Glance()
    glance.said["a"] |= {"audit": True, "floor": True, lacking: False}
    assert list(glance.taken()) == ["b"]


def test_what_was_read_while_the_machine_slept_too_long_is_not_taken_in() -> None:
    """When it was seen to have no floor is too long ago by then."""
    glance = Glance()
    glance.view("a", 7).covered = True
    assert glance.taken()["a"] == ["6 0", "6 1"]


# --- who could end a version


@pytest.mark.parametrize(
    ("forms", "joined", "can"),
    [
        (("block", "block", "block"), True, True),
        (("block", "block", "block"), False, False),
        (("log", "block", "block"), False, False),
        (("log", "log", "block"), False, True),
    ],
)
def test_blocks_take_messages_of_devices_of_that_version_alone(forms: tuple[str, ...], joined: bool, can: bool) -> None:
    log, memory = SimpleNamespace(ended=""), SimpleNamespace(replaced="")
    at: Any = SimpleNamespace(
        devices=SimpleNamespace(get=lambda _: "a device" if joined else None),
        acceptors={n: SimpleNamespace(form=form, log=log, memory=memory) for n, form in enumerate(forms)},
        quorum=2,
    )
    assert leaps._can_finish(ME, at) == can


@pytest.mark.parametrize(("ended", "replaced"), [("its log is full", ""), ("", "it was emptied")])
def test_who_takes_nothing_more_finishes_nothing(ended: str, replaced: str) -> None:
    """Of three acceptors two are left that do; then one."""
    views = {
        n: SimpleNamespace(form="log", log=SimpleNamespace(ended=""), memory=SimpleNamespace(replaced=""))
        for n in range(3)
    }
    at: Any = SimpleNamespace(devices=SimpleNamespace(get=lambda _: "a device"), acceptors=views, quorum=2)
    can = []
    for view in list(views.values())[:2]:
        view.log.ended, view.memory.replaced = ended, replaced
        can.append(leaps._can_finish(ME, at))
    assert can == [True, False]
