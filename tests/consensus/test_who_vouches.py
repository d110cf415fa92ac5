"""Who vouches for what is jumped over: whose entries count, which heads lie on the way, and who could end a version."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import World

from metasync.consensus import leaps
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

    def sure(self) -> int:
        entries: Any = [
            SimpleNamespace(entry=SimpleNamespace(device_id=name.encode()), verifies=lambda _, right=right: right)
            for name, right in self.signers.items()
        ]
        start, high = SimpleNamespace(v=0), SimpleNamespace(v=10)
        enter: Any = saying(self._at)
        return int(do(leaps._borne_out_to(ME, enter, self._at(start), high, entries)).v)  # type: ignore[arg-type]


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
