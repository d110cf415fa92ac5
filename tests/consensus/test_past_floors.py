"""What a device makes of the hints and floors that it meets, step by step (consensus.md, rule 1.11).

Each step is asked alone here; what it asks others for can be answered as the test wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from test_who_vouches import do, saying

from metasync.consensus import leaps
from metasync.consensus.truncation import Remains
from metasync.errors import DamagedError, NoQuorumError
from metasync.runtime.effects import Task

FLOOR = 1024  # of version 6, which follows the one that is known


@dataclass(frozen=True)
class At:
    """A state, as far as these steps ask."""

    v: int
    chain: str = "main"
    config: str = "config"
    devices: str = "devices"
    epoch: int = 1

    @property
    def hash(self) -> str:
        return f"{self.chain} {self.v}"


def state(v: int, chain: str = "main", config: str = "config") -> Any:
    return At(v, chain, config)


KNOWN = state(5)


def word(value: Any, device: str = "x", *, base: Any = None) -> Any:
    return SimpleNamespace(entry=SimpleNamespace(value=value, device_id=device, base=base))


class View:
    """One acceptor, as far as these steps ask."""

    def __init__(self, name: str) -> None:
        self.name = self.acceptor_id = name
        self.floor: Any = "a floor"
        self.memory = SimpleNamespace(no_floor=(-1, 0.0))
        self.poisoned = ""
        self.link: str | None = name
        self.free = False
        self.born, self.ended = True, True
        self.log = SimpleNamespace(silent=True, usable=True, closed="")

    def poison(self, why: str) -> None:
        self.poisoned = why

    def reach(self) -> str | None:
        return self.link

    def counts(self) -> bool:
        return self.born

    def has_no_floor(self, v: int) -> Task:
        yield from ()
        assert v == KNOWN.v + 1
        return self.free


class Logs:
    """The acceptors of the version after the one that is known, and this device."""

    def __init__(self, names: str = "abc", quorum: int = 2, f: int = 0) -> None:
        self.views = {name: View(name) for name in names}
        self.m: Any = SimpleNamespace(
            acceptors={name: view.memory for name, view in self.views.items()},
            void_values={},
            keys=SimpleNamespace(epoch=1),
        )
        self.decided: Any = None
        self.at: Any = SimpleNamespace(
            v=KNOWN.v + 1, acceptors=self.views, quorum=quorum, config=SimpleNamespace(f=f),
            begin=lambda: None, decided=lambda: self.decided,
        )  # fmt: skip

    def out(self) -> dict[str, str]:
        return {name: view.poisoned for name, view in self.views.items() if view.poisoned}

    def believed(self) -> set[str]:
        """Of which what they show counts, though they have a floor."""
        return {name for name, view in self.views.items() if view.memory.no_floor[0] == FLOOR}


# --- what is shown


class Leaping(Logs):
    """`hints`, `floors`: what is found there; `vouched`: of what a device vouches for, all without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.hints: dict[str, Any] = {}
        self.floors: dict[str, Any] = {}
        self.not_vouched: list[Any] = []
        self.accused: list[Any] = []
        self.best: dict[str, Any] = {}
        self.found: Any = "found"
        self.with_newer_keys: Any = None
        self.asked: list[str] = []

        def borne_out(_m: object, _e: object, _i: object, _c: object, best: dict[str, Any], _n: int) -> Any:
            self.best = {name: shown.v for name, shown in best.items()}
            return self.found

        def newer_keys(*_: object) -> Any:
            self.asked.append("newer keys")
            return self.with_newer_keys

        def sure_of(_m: object, _e: object, _i: object, _c: object, found: Any, words: list[Any], good: Any) -> Any:
            self.asked.append("sure")
            self.good, self.words = set(good), len(words)
            return f"sure of {found}" if found else None

        for name, answer in {
            "opened": lambda *_: dict(self.floors),
            "_hint": lambda view: self.hints.get(view.name),
            "_vouched": lambda _, signed: signed not in self.not_vouched,
            "other_at": lambda _m, _i, value: f"{value.chain} 5" if value.chain != "main" else None,
            "check_word": lambda *args: self.accused.append(args[3:]),
            "_borne_out": borne_out,
            "_shown_with_newer_keys": newer_keys,
            "_sure_of": sure_of,
        }.items():
            monkeypatch.setattr(leaps, name, saying(answer))

    def leap(self, *, certain: bool = True) -> Any:
        return do(leaps.leap(self.m, saying(None), self.at, KNOWN, 2, certain=certain))


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> Leaping:
    return Leaping(monkeypatch)


def test_each_acceptor_shows_the_newest_state_that_its_hint_or_its_floor_names(leaping: Leaping) -> None:
    """And nothing that is known already, nor what no device vouches for."""
    leaping.floors = {"a": word(state(16)), "b": word(state(16)), "c": word(state(9))}
    leaping.hints = {"a": word(state(12)), "b": word(state(20)), "c": word(state(99))}
    leaping.not_vouched = [leaping.hints["c"]]
    assert leaping.leap() == "sure of found"
    assert leaping.best == {"a": 16, "b": 20, "c": 9}
    assert (leaping.good, leaping.words) == ({"a", "b", "c"}, 5)
    leaping.floors, leaping.hints = {}, {"a": word(state(5)), "b": word(state(6))}
    leaping.leap()
    assert leaping.best == {"b": 6}


def test_whose_floor_no_device_made_is_out(leaping: Leaping) -> None:
    leaping.floors = {"a": word(state(16)), "b": word(state(17))}
    leaping.not_vouched = [leaping.floors["b"]]
    leaping.leap()
    assert list(leaping.out()) == ["b"]
    assert all(view.floor is None for view in leaping.views.values()), "all are asked for theirs anew"


def test_a_floor_on_another_history_is_one_devices_word(leaping: Leaping) -> None:
    """It is looked into. If it is a lie the logs are there: its acceptor stays, and what it shows counts."""
    leaping.floors = {"a": word(state(16, "other")), "b": word(state(16))}
    leaping.leap()
    assert [(view.name, signed, digest) for view, signed, digest in leaping.accused] == [
        ("a", leaping.floors["a"], "other 5")
    ]
    assert (leaping.best, leaping.good, leaping.out()) == ({"b": 16}, {"b"}, {})
    assert leaping.believed() == {"a"}


def test_a_hint_on_another_history_says_nothing_of_the_floor_beside_it(leaping: Leaping) -> None:
    leaping.floors, leaping.hints = {"a": word(state(16))}, {"a": word(state(20, "other"))}
    leaping.leap()
    assert [digest for _, _, digest in leaping.accused] == ["other 5"]
    assert (leaping.best, leaping.good, leaping.out(), leaping.believed()) == ({"a": 16}, {"a"}, {}, set())


def test_newer_keys_are_looked_for_where_those_at_hand_lead_nowhere(leaping: Leaping) -> None:
    leaping.found, leaping.with_newer_keys = None, "found with newer keys"
    leaping.hints = {"a": word(state(16))}
    assert leaping.leap() == "found with newer keys"
    leaping.asked, leaping.found = [], "found"
    assert leaping.leap() == "found"
    leaping.found, leaping.hints = None, {}
    assert leaping.leap() is None
    assert leaping.asked == [], "nobody shows anything to find the way to"


def test_only_floors_are_doubted_and_not_by_who_only_looks(leaping: Leaping) -> None:
    leaping.floors = {"a": word(state(16))}
    assert leaping.leap(certain=False) == "found"
    leaping.floors, leaping.hints = {}, {"a": word(state(16))}
    assert leaping.leap() == "found"
    assert leaping.asked == []


def test_no_way_past_a_floor_that_holds_is_no_quorum(leaping: Leaping) -> None:
    """Without such a floor nothing was deleted: the logs tell."""
    leaping.found = None
    assert leaping.leap() is None
    leaping.floors = {"a": word(state(16))}
    for certain in (True, False):
        with pytest.raises(NoQuorumError, match="the way to the newer versions cannot be read"):
            leaping.leap(certain=certain)


# --- a floor that may be a lie


class Doubt(Logs):
    """All have floors, or those that `good` names. `remains`: what their logs show before and after they are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str = "abc", quorum: int = 2, f: int = 0) -> None:
        super().__init__(names, quorum, f)
        self.found: Any = state(20)
        self.words = [word(state(20), "x")]
        self.vouched = KNOWN
        self.good: Any = {*names}
        self.remains = [Remains(), Remains()]
        self.through: list[Any] = []
        self.looked = False

        def borne_out_to(_m: object, _e: object, _i: object, found: Any, through: list[Any], *, logs: bool) -> Task:
            yield from ()
            assert not logs, "they are asked here, beside what is left of them"
            self.through = through
            return self.vouched

        def leads_to(_m: object, _i: object, later: Any, wanted: Any) -> bool:
            assert later.v >= wanted.v
            return bool(later.chain == wanted.chain)

        def look(*_: object, **__: object) -> None:
            self.looked = True

        monkeypatch.setattr(leaps, "_borne_out_to", borne_out_to)
        monkeypatch.setattr(leaps, "_leads_to", saying(leads_to))
        monkeypatch.setattr(leaps, "look_around", saying(look))
        monkeypatch.setattr(leaps, "_replayed", saying(lambda *args: f"replayed to {args[4].v}"))
        monkeypatch.setattr(leaps, "intact", saying(lambda *_: next(self._left)))
        self._left: Any = iter(())

    def there(self, before: str, after: str | None = None, *, silent: tuple[str, str] = ("", "")) -> None:
        """Whose logs are there, by two looks, and who did not tell."""
        names = (before, before if after is None else after)
        self.remains = []
        for who, quiet in zip(names, silent, strict=True):
            there: Any = frozenset(who)
            unclear: Any = frozenset(quiet)
            self.remains.append(Remains(there, unclear))

    def sure(self) -> Any:
        self._left = iter(self.remains)
        return do(leaps._sure_of(self.m, saying(None), self.at, KNOWN, self.found, self.words, self.good))


@pytest.fixture
def doubt(monkeypatch: pytest.MonkeyPatch) -> Doubt:
    return Doubt(monkeypatch)


def test_what_two_devices_vouch_for_is_taken_and_the_logs_are_not_asked(doubt: Doubt) -> None:
    """Each of them for this state, or for a later one that goes through it."""
    doubt.vouched = state(18)
    doubt.words = [word(state(20)), word(state(30)), word(state(19)), word(state(30, "other"))]
    assert doubt.sure() == doubt.vouched
    assert doubt.through == doubt.words[:2]
    assert not doubt.looked


def test_where_nothing_is_left_that_tells_the_floors_hold(doubt: Doubt) -> None:
    assert doubt.sure() == doubt.found
    assert not doubt.looked


@pytest.mark.parametrize("f", [0, 1])
def test_floors_above_logs_that_show_that_nothing_followed_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch, f: int
) -> None:
    """More logs than can lack a vote of a decided version show none. Who signed is named, and nobody is out."""
    doubt = Doubt(monkeypatch, "abc" if not f else "abcd", 2 + f, f)
    doubt.there("".join(doubt.views))
    assert doubt.sure() is None
    assert (doubt.out(), doubt.good, doubt.believed()) == ({}, set(), {*doubt.views})
    assert list(doubt.m.void_values) == [("x", 6)]


def test_who_lacks_its_log_is_not_out_where_the_others_show_that_nothing_followed(doubt: Doubt) -> None:
    """Its log was never there: it was away, and its floor is a lie as the others' are."""
    doubt.there("ab")
    assert doubt.sure() is None
    assert (doubt.out(), doubt.believed()) == ({}, {"a", "b", "c"})


def test_a_floor_without_logs_beside_logs_that_open_a_version_is_out(doubt: Doubt) -> None:
    """A quorum's logs are there. They do not show that nothing was decided, and go on by them is what remains."""
    doubt.there("ab")
    doubt.views["a"].log.silent = False
    doubt.views["c"].born = False
    assert doubt.sure() is None
    assert doubt.out() == {"c": "its floor tells of deleted logs"}
    assert doubt.believed() == {"a", "b"}
    assert doubt.good == set()


def test_what_a_log_shows_without_its_birth_or_its_end_tells_nothing(doubt: Doubt) -> None:
    """Two of three would be enough."""
    for lacking in ("born", "ended"):
        doubt.there("ab")
        setattr(doubt.views["b"], lacking, False)
        with pytest.raises(NoQuorumError, match="too few backends answer to tell whether the logs after version 5"):
            doubt.sure()
        doubt.views["b"].born = doubt.views["b"].ended = True


def test_who_has_no_floor_tells_as_well(doubt: Doubt) -> None:
    """It was seen to have none, so that its log was not deleted."""
    doubt.there("a")
    doubt.good = {"a", "b"}
    doubt.views["c"].free = True
    assert doubt.sure() is None
    assert doubt.believed() == {"a", "b"}, "c has none"
    doubt.good, doubt.views["c"].free = {"a", "b"}, False
    assert doubt.sure() == doubt.found


def test_logs_that_are_there_lead_on_where_they_show_a_decision(doubt: Doubt) -> None:
    """As far as they show it, if they are on the floors' way; else to what they decided next."""
    doubt.there("abc")
    doubt.decided = state(6)
    assert doubt.sure() == "replayed to 20"
    doubt.decided = state(6, "other")
    assert doubt.sure() == doubt.decided
    doubt.found, doubt.decided = None, state(6)
    assert doubt.sure() == doubt.decided
    assert doubt.out() == {}
    assert doubt.believed() == set(), "the floor is looked for anew"


def test_what_was_deleted_meanwhile_was_no_lie(doubt: Doubt) -> None:
    """Deletion began between the two looks: what was read then says nothing."""
    doubt.there("a", "")
    doubt.good = {"a"}
    doubt.views["b"].free = doubt.views["c"].free = True
    for doubt.decided in (None, state(6, "other")):
        assert doubt.sure() == doubt.found
        assert doubt.out() == {}
        assert doubt.believed() == set(), "the floor is looked for anew"


@pytest.mark.parametrize(
    ("there", "silent", "waits"),
    [("a", ("", ""), False), ("ab", ("", ""), True), ("a", ("b", ""), True), ("a", ("", "b"), True)],
)
def test_where_too_few_tell_and_too_many_may_have_their_logs_more_are_waited_for(
    doubt: Doubt, there: str, silent: tuple[str, str], waits: bool
) -> None:
    """One of three may lack its log and show it by chance; of two, one is right. Who did not tell may have it too."""
    doubt.there(there, silent=silent)
    for name in "bc":
        doubt.views[name].born = False
    if not waits:
        assert doubt.sure() == doubt.found
        return
    with pytest.raises(NoQuorumError, match="too few backends answer"):
        doubt.sure()


# --- the way to what is shown


def test_a_chain_leads_to_the_states_that_it_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaps, "ancestor", saying(lambda _m, _i, later, v: f"{later.chain} {v}"))
    at: Any = SimpleNamespace()
    assert do(leaps._leads_to(at, at, state(9), state(6)))
    assert not do(leaps._leads_to(at, at, state(9), state(6, "other")))

    def gone(*_: object) -> None:
        raise DamagedError("gone")

    monkeypatch.setattr(leaps, "ancestor", saying(gone))
    assert not do(leaps._leads_to(at, at, state(9), state(6)))


def test_the_keys_that_open_the_way_are_kept_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, held, asked = Logs(), SimpleNamespace(epoch=1), list[Any]()
    logs.views["b"].link = None

    def find(_m: object, epoch: int, links: list[str]) -> Any:
        asked.append((epoch, links))
        return ["of epoch 2", "of epoch 3", "of epoch 4"], False

    opens = {"of epoch 3"}
    monkeypatch.setattr(leaps, "find_keys", saying(find))
    monkeypatch.setattr(leaps, "_borne_out", saying(lambda m, *_: "found" if m.keys in opens else None))

    def leads() -> Any:
        logs.m.keys = held
        return do(leaps._shown_with_newer_keys(logs.m, saying(None), logs.at, KNOWN, {}, 2))

    assert leads() == "found"
    assert logs.m.keys == "of epoch 3"
    assert asked == [(2, ["a", "c"])]
    opens.clear()
    assert leads() is None
    assert logs.m.keys is held


def test_closed_logs_are_asked_where_hints_and_floors_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest that is shown first; each time together with what the others show."""
    asked: list[dict[str, int]] = []
    enough: dict[str, Any] = {}
    closed: dict[int, dict[str, Any]] = {20: {}, 16: {"c": state(8), "d": state(8)}}

    def shown(_m: object, _i: object, _c: object, best: dict[str, Any], _n: int) -> Any:
        asked.append({name: s.v for name, s in best.items()})
        return enough.get("".join(best))

    monkeypatch.setattr(leaps, "_shown_by_enough", saying(shown))
    monkeypatch.setattr(leaps, "_closed_at_the_end", saying(lambda _m, _e, _i, _c, ahead: closed[ahead.v]))
    best: Any = {"a": state(16), "b": state(20)}

    def borne_out() -> Any:
        asked.clear()
        return do(leaps._borne_out(Logs().m, saying(None), Logs().at, KNOWN, best, 3))

    enough["abcd"] = "found"
    assert borne_out() == "found"
    assert asked == [{"a": 16, "b": 20}, {"a": 16, "b": 20, "c": 8, "d": 8}]
    enough["ab"] = "found at once"
    assert borne_out() == "found at once"
    assert len(asked) == 1
    enough.clear()
    assert borne_out() is None


class Closed(Logs):
    """A config that ended with version 8, on the way to version 20."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.last = state(7)
        for view in self.views.values():
            view.log.closed = "main 8"
        monkeypatch.setattr(leaps, "ancestor", saying(self._ancestor))
        monkeypatch.setattr(leaps, "_last_under", saying(lambda *_: self.last))
        monkeypatch.setattr(leaps, "fetch_state", saying(lambda _m, _i, _v, digest, _e: digest))
        monkeypatch.setattr(leaps, "look_around", saying(None))

    def _ancestor(self, _m: object, _i: object, later: Any, v: int) -> str:
        assert later.v >= v, "a state has nothing after it"
        return f"{later.chain} {v}"

    def closed(self, ahead: Any) -> dict[str, Any]:
        return do(leaps._closed_at_the_end(self.m, saying(self.at), self.at, KNOWN, ahead))  # type: ignore[no-any-return]


def test_a_log_that_is_closed_on_the_last_state_of_its_config_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Closed(monkeypatch)
    logs.views["c"].log.closed = "other 8"
    assert logs.closed(state(20)) == {"a": "main 8", "b": "main 8"}


@pytest.mark.parametrize("lacking", ["birth", "end", "sound entries"])
def test_a_closed_log_shows_nothing_unless_it_was_read_whole(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Its birth beside it, to its end, and without an entry that makes all of it doubtful."""
    logs = Closed(monkeypatch)
    view = logs.views["b"]
    view.born, view.ended, view.log.usable = lacking != "birth", lacking != "end", lacking != "sound entries"
    assert sorted(logs.closed(state(20))) == ["a", "c"]


def test_no_closed_log_is_looked_for_on_another_way_or_where_the_config_did_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = Closed(monkeypatch)
    for view in logs.views.values():
        view.log.closed = "other 8"
    assert logs.closed(state(20, "other")) == {}
    logs.last = state(20)
    assert logs.closed(state(20)) == {}


def test_enough_show_a_state_whose_chains_go_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose way back cannot be read, or that leads elsewhere, is left out, and the rest is asked again."""

    def ancestor(_m: object, _i: object, later: Any, v: int) -> str:
        if later.chain == "gone":
            raise DamagedError("gone")
        return f"{later.chain} {v}"

    monkeypatch.setattr(leaps, "ancestor", saying(ancestor))

    def shown(*states: Any) -> Any:
        best: Any = dict(zip("abcd", states, strict=False))
        return do(leaps._shown_by_enough(Logs().m, Logs().at, KNOWN, best, 2))

    eight = state(8)
    assert shown(eight, state(9)) is eight
    assert shown(eight) is None
    assert shown(eight, state(9, "other")) is None
    assert shown(eight, state(9), state(10, "other")) is eight, "the newest stands alone"
    assert shown(eight, state(9, "other"), state(10)) is eight, "the one between does not lead back"
    assert shown(eight, state(9, "gone"), state(10)) is eight


@pytest.mark.parametrize("lacking", ["", "value", "a value that follows", "admission", "a policy that is kept"])
def test_what_vouches_for_a_state(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """An admitted device signed it, its value may follow its base, and a new config keeps to the policy."""

    def enter(of: Any, **_: object) -> None:
        if of.config == "weaker":
            raise DamagedError("weaker than the policy")

    monkeypatch.setattr(leaps, "follows", lambda value, _: value.chain == "main")
    monkeypatch.setattr(leaps, "_is_admitted", saying(lacking != "admission"))
    config = "weaker" if lacking == "a policy that is kept" else "config"
    value = state(9, "other" if lacking == "a value that follows" else "main", config)
    signed = word(None if lacking == "value" else value, base=KNOWN)
    assert do(leaps._vouched(saying(enter), signed)) == (not lacking)
