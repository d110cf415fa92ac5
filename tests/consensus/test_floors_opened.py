"""What a floor says that cannot be opened yet, or ever, and which acceptors a new one is put up on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
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
