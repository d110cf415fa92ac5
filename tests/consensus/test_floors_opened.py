"""What a floor says that cannot be opened yet, or ever, and which acceptors a new one is put up on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import World
from test_counting import Logs

from metasync.consensus import truncation
from metasync.consensus.instance import Instance
from metasync.errors import ExcludedError, FormatError
from metasync.runtime.effects import Task

LATER: Any = SimpleNamespace(epoch=2)  # keys of the next epoch


class Floors:
    """Device 1 meets floors on three logs. `rings`: keys that keyrings hold for it; `shut`: some hold none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.logs = Logs()
        self.group = self.logs.ws.group(b"r" * 16, 1, links=dict(self.logs.ws.links))
        self.m = self.group.participant
        self.keys: Any = self.m.keys
        self.instance: Instance = self.logs.world.do(self.group.enter(self.logs.base))
        self.ids = [self.logs.ws.acceptor_of(name) for name in "abc"]
        self.rings: list[Any] = []
        self.shut = False
        self.asked: list[list[str]] = []
        monkeypatch.setattr(truncation, "find_keys", self._find)
        monkeypatch.setattr(truncation, "shown_epoch", lambda data: 2 if data.startswith(b"later") else 1)
        monkeypatch.setattr(truncation, "open_floor", self._open)

    def _find(self, _m: object, _epoch: int, links: list[str]) -> Task:
        yield from ()
        self.asked.append(links)
        return list(self.rings), self.shut

    def _open(self, keys: Any, data: bytes, acceptor_id: bytes, _: int) -> tuple[Any, bytes]:
        if (data == b"now" and keys is self.keys) or (data == b"later" and keys is LATER):
            return acceptor_id, data
        raise FormatError("it opens with other keys")

    def opened(self, **floors: bytes) -> set[str]:
        for name, a in zip("abc", self.ids, strict=True):
            self.instance.acceptors[a].floor = floors.get(name)
        found = self.logs.world.do(truncation.opened(self.m, self.instance))
        return {self.logs.ws.links[a] for a in found}

    def poisoned(self) -> dict[str, str]:
        return {a.name: a.log.poison for a in self.instance.acceptors.values() if a.log.poison}


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> Floors:
    return Floors(monkeypatch)


def test_a_floor_of_today_opens_with_the_keys_of_today(floors: Floors) -> None:
    assert floors.opened(a=b"now", b=b"now") == {"a", "b"}
    assert floors.asked == [], "no keyring is looked for"
    assert floors.m.keys is floors.keys


def test_a_floor_of_a_later_epoch_opens_with_keys_that_are_looked_for(floors: Floors) -> None:
    floors.rings = [LATER]
    del floors.m.links[floors.ids[2]]
    assert floors.opened(a=b"later") == {"a"}
    assert [sorted(links) for links in floors.asked] == [["a", "b"]]
    assert floors.m.keys is LATER
    assert floors.poisoned() == {}


def test_what_is_no_floor_puts_its_acceptor_out(floors: Floors) -> None:
    assert floors.opened(a=b"rubbish", b=b"later") == set()
    why = floors.poisoned()
    assert "it opens with other keys" in why["a"]
    assert "sealed with keys of epoch 2, and no keyring gives them" in why["b"]


def test_who_is_shut_out_of_too_many_floors_is_told_so(floors: Floors) -> None:
    floors.shut = True
    assert floors.opened(a=b"later") == set()
    assert "keys not for this device" in floors.poisoned()["a"]
    with pytest.raises(ExcludedError):
        floors.opened(a=b"later", b=b"later")


def test_keys_that_open_a_floor_count_though_another_keyring_shuts_this_device_out(floors: Floors) -> None:
    floors.shut, floors.rings = True, [LATER]
    assert floors.opened(a=b"later", b=b"later") == {"a", "b"}
    assert floors.poisoned() == {}


def test_a_floor_that_no_keys_open_is_told_with_what_is_wrong_with_it(floors: Floors) -> None:
    """There is a keyring of its epoch, with keys for this device, and the floor is no floor."""
    floors.rings = [LATER]
    assert floors.opened(a=b"later, and torn") == set()
    assert "it opens with other keys" in floors.poisoned()["a"]
    assert "no keyring gives them" not in floors.poisoned()["a"]


# ---- which logs are still there


class Left:
    """Logs of acceptors with a floor of version 8, the first of a block of eight or of its own. All voted for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, block: int = 8) -> None:
        self.looked: list[int] = []
        self.entered: list[int] = []
        self.views: dict[int, dict[str, Any]] = {}
        self.block = block
        monkeypatch.setattr(truncation, "covering", lambda v: (v // block + 1) * block)
        monkeypatch.setattr(truncation, "states_between", self._states)
        monkeypatch.setattr(truncation, "_looked", self._looked)
        monkeypatch.setattr(truncation, "Instance", lambda _m, _c, _d, base: self._at(base))

    def _states(self, _m: object, _i: object, latest: Any, first: int, last: int) -> Task:
        yield from ()
        assert last <= latest.v, "a state has nothing after it"
        return [self.state(v) for v in range(first, last + 1)]

    def state(self, v: int) -> Any:
        return At(v)

    def at(self, v: int, name: str) -> Any:
        """What an acceptor shows of a version."""
        views = self.views.setdefault(v, {})
        if name not in views:
            log = SimpleNamespace(usable=True, votes={1: self.state(v)})
            views[name] = SimpleNamespace(acceptor_id=name, name=name, log=log, ended=True, counts=lambda: True, v=v)
        return views[name]

    def _at(self, base: Any) -> Any:
        return SimpleNamespace(acceptors={name: self.at(base.v + 1, name) for name in "abc"})

    def _looked(self, view: Any) -> Task:
        yield from ()
        self.looked.append(view.v)

    def remains(self, current: int) -> tuple[str, str]:
        """-> (whose logs are there, who did not tell), of a and b."""

        def enter(base: Any, *, ahead: bool) -> Task:
            yield from ()
            assert ahead
            self.entered.append(base.v)
            return self._at(base)

        instance: Any = SimpleNamespace(v=current + 1, config=None, devices=None)
        me: Any = SimpleNamespace(now=0.0)
        self.looked, self.entered = [], []
        found = World(1, [*"abc"]).do(truncation.intact(me, enter, instance, self.state(current), ["a", "b"]))  # type: ignore[arg-type]
        return "".join(sorted(found.there)), "".join(sorted(found.silent))  # type: ignore[arg-type]


@dataclass(frozen=True)
class At:
    v: int
    chain: str = "agreed"


@pytest.mark.parametrize(
    ("current", "wanted"), [(0, [1]), (1, [1]), (2, [1, 2]), (6, [1, 2]), (8, [7, 8]), (9, [8, 9]), (13, [8, 9])]
)
def test_the_first_two_logs_of_a_block_tell_what_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch, current: int, wanted: list[int]
) -> None:
    """Rule 1.11. Or the two before the reader's own, where it is one of them, and version 1 itself."""
    left = Left(monkeypatch)
    assert left.remains(current) == ("ab", "")
    assert sorted({*left.looked}) == wanted
    assert left.entered == [v - 1 for v in wanted if v - 1 != current], "as its own config has it"


def test_a_log_without_a_vote_for_what_was_agreed_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In either of the two. A vote for another value may be one that came late."""
    for v in (8, 9):
        left = Left(monkeypatch)
        left.at(v, "a").log.votes.clear()
        assert left.remains(13) == ("b", "")
        left.at(v, "a").log.votes[1] = At(v, "another")
        assert left.remains(13) == ("b", "")
        left.at(v, "a").log.votes[2] = At(v)
        assert left.remains(13) == ("ab", "")
    left = Left(monkeypatch)
    left.at(1, "a").log.votes[1] = At(1, "another")
    assert left.remains(0) == ("ab", ""), "of version 1 any vote will do: it has no owner"
    left.at(1, "a").log.votes.clear()
    assert left.remains(0) == ("b", "")


def test_who_cannot_be_read_whole_does_not_tell_and_who_is_poisoned_has_lost_its_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Left(monkeypatch)
    left.at(9, "a").ended = False
    left.at(8, "b").counts = lambda: False
    assert left.remains(13) == ("", "ab")
    left.at(9, "a").log.usable = left.at(8, "b").log.usable = False
    assert left.remains(13) == ("ab", ""), "what it had accepted before stays evidence"


# ---- where floors are put up


def test_a_floor_is_put_up_on_who_is_in_reach_and_what_it_was(floors: Floors) -> None:
    assert {link for _, link in truncation._sound(floors.instance)} == {"a", "b", "c"}
    del floors.m.links[floors.ids[0]]
    floors.m.acceptors[floors.ids[1]].replaced = "it was emptied"
    assert [link for _, link in truncation._sound(floors.instance)] == ["c"]


def test_states_are_read_from_the_logs_of_one_that_can_be_asked(floors: Floors) -> None:
    floors.logs.prepare("abc", 1)
    first = next(iter(floors.instance.acceptors.values()))
    del floors.m.links[first.acceptor_id]
    found = floors.logs.world.do(truncation._bases(floors.instance, range(2)))
    assert found == {floors.logs.base.hash: floors.logs.base}
