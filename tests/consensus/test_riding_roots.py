"""Roots of indexes that ride: which versions' logs are read for one, and when an object is asked for instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus import NOTHING, Change, Ref, riding
from metasync.consensus.records.entry import RANDOM_BYTES
from metasync.errors import DamagedError, NoQuorumError
from metasync.runtime.effects import Gather, Task


def name_of(index: str) -> bytes:
    return index.encode().ljust(32, b".")


class Chain:
    """Versions 1, 2, ... of these indexes; `+`: it rides. An empty one: there is none yet.

    `logs`: what the log of a version carries. `objects`: roots that are objects. `lost`: versions whose states no
    backend shows. `read`: the versions whose logs were looked at, `got` and `put`: the objects asked for and made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *indexes: str, objects: str = "", lost: int = 0) -> None:
        self.states = [self._state(v, index) for v, index in enumerate(("", *indexes))]
        self.logs = {at.v: at.index.hash for at in self.states if at.index_rides}
        self.objects = {name_of(o): b"object " + o.encode() for o in objects.split()}
        self.lost = lost
        self.read: list[int] = []
        self.got: list[bytes] = []
        self.put: list[tuple[bytes, bytes]] = []
        self.m: Any = SimpleNamespace(riding={}, settled={}, keys=None)
        self.m.note_settled = self.m.settled.setdefault
        monkeypatch.setattr(riding, "fetch_state", self._fetch)
        monkeypatch.setattr(riding, "seal_object", lambda keys, kind, root, **_: (b"", b"sealed " + root))

    @staticmethod
    def _state(v: int, index: str) -> Any:
        ref = Ref(1, name_of(index.strip("+"))) if index else NOTHING
        return SimpleNamespace(v=v, prev=b"", era=0, epoch=1, index=ref, index_rides=index[:1] == "+")

    def _fetch(self, m: Any, instance: Any, v: int, prev: bytes, epoch: int) -> Task:
        if v < self.lost:
            raise DamagedError(f"the state of version {v} is gone")
        return self.states[v]
        yield

    def enter(self, base: Any, *, ahead: bool) -> Task:
        return SimpleNamespace(acceptors={"a": SimpleNamespace(name="a", look=lambda: self._look(base.v + 1))})
        yield

    def _look(self, v: int) -> Task:
        self.read.append(v)
        if v in self.logs:
            self.m.riding[self.logs[v]] = bytes(RANDOM_BYTES) + b"root %d" % v
        return
        yield

    def _get(self, ref: Ref) -> Task:
        self.got.append(ref.hash)
        if ref.hash not in self.objects:
            raise NoQuorumError("no object")
        return self.objects[ref.hash]
        yield

    def _put(self, ref: Ref, data: bytes) -> Task:
        self.put.append((ref.hash, data))
        return
        yield

    def run(self, task: Task) -> Any:
        """What a task returns. Its branches are run one after the other."""
        try:
            effect = next(task)
            while True:
                assert isinstance(effect, Gather)
                for branch in effect.branches.values():
                    assert list(branch) == []
                effect = task.send({})
        except StopIteration as end:
            return end.value

    def roots(self, known: str = "") -> dict[bytes, bytes]:
        names = {name_of(k) for k in known.split()}
        found: dict[bytes, bytes] = self.run(riding.roots(self.m, self.enter, self.states[-1], names.__contains__))
        return found

    def find(self, index: str, way: str = "") -> bytes | None:
        names = {name_of(k) for k in way.split()}
        found: bytes | None = self.run(riding.find(self.m, self.enter, self.states[-1], name_of(index), names))
        return found

    def settle(self) -> list[tuple[bytes, bytes]]:
        """What settling the newest version made objects of."""
        self.put = []
        self.run(riding.settle(self.m, self.enter, self.states[-1], self._get, self._put))
        return self.put


def test_roots_lead_back_to_the_first_index_that_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is known or not: its log carries nothing."""
    chain = Chain(monkeypatch, "x", "+y", "+z")
    assert chain.roots() == {name_of("z"): b"root 3", name_of("y"): b"root 2"}
    assert chain.read == [3, 2]


def test_roots_lead_back_to_the_first_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "x", "+y", "+z")
    assert chain.roots(known="y") == {name_of("z"): b"root 3"}
    assert chain.read == [3]


def test_a_root_that_no_log_shows_is_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "x", "+y")
    chain.logs = {}
    with pytest.raises(NoQuorumError, match="version 2: no backend shows the log entry"):
        chain.roots()


def test_a_root_is_found_where_it_rode_behind_versions_that_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions 3 and 4 keep the index of 2 by no rule: the log of 2 alone has it."""
    chain = Chain(monkeypatch, "x", "+y", "y", "y")
    assert chain.find("y") == b"root 2"
    assert chain.read == [2]


def test_a_root_is_found_behind_those_that_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "x", "+y", "y", "+z")
    assert chain.find("y", way="z") == b"root 2"
    assert chain.find("y") is None, "the newest index is none of the way"


@pytest.mark.parametrize("index", ["x", "w"])
def test_a_root_that_never_rode_is_not_looked_for_beyond_its_version(
    monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    """Version 2 brought `x` as an object, after an index that is none of the way, or after none."""
    before = ["w"] if index == "x" else []
    chain = Chain(monkeypatch, *before, index, "+y")
    assert chain.find(index, way="y") is None
    assert chain.read == []


def test_a_way_back_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(riding, "LOOK_BACK_MAX", 3)
    assert Chain(monkeypatch, "+y", "y", "y").find("y") == b"root 1"
    assert Chain(monkeypatch, "+y", "y", "y", "y").find("y") is None


def test_what_rides_is_settled_the_oldest_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "x", "+y", "+z")
    assert chain.settle() == [(name_of("y"), b"sealed root 2"), (name_of("z"), b"sealed root 3")]
    read = [*chain.read]
    assert chain.settle() == []
    assert chain.read == read
    chain.states.append(chain._state(4, "+w"))
    chain.logs[4] = name_of("w")
    assert chain.settle() == [(name_of("w"), b"sealed root 4")], "back to what is settled"


def test_what_never_rode_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "+w", "x")
    assert chain.settle() == []
    assert Chain(monkeypatch).settle() == [], "no index yet"


def test_what_versions_keep_is_settled_by_the_one_that_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By no rule: version 4 keeps what rode in the log of 2."""
    chain = Chain(monkeypatch, "x", "+y", "y", "y")
    assert chain.settle() == [(name_of("y"), b"sealed root 2")]


def test_an_object_that_is_there_is_taken_before_a_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device settled it, and its log may be gone."""
    chain = Chain(monkeypatch, "x", "+y", objects="y")
    chain.logs = {}
    assert chain.settle() == [(name_of("y"), b"object y")]
    assert chain.read == []


def test_a_root_at_hand_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(monkeypatch, "x", "+y", objects="y")
    chain.m.riding[name_of("y")] = bytes(RANDOM_BYTES) + b"at hand"
    assert chain.settle() == [(name_of("y"), b"sealed at hand")]
    assert chain.got == []


def test_where_the_way_back_is_gone_the_root_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that had the log of version 2 are out of use: what this process remembers of it opens nothing."""
    chain = Chain(monkeypatch, "x", "+y", "+z", objects="y", lost=2)
    chain.m.riding[name_of("y")] = bytes(RANDOM_BYTES) + b"at hand"
    assert chain.settle() == [(name_of("y"), b"object y"), (name_of("z"), b"sealed root 3")]
    gone = Chain(monkeypatch, "x", "+y", lost=2)
    with pytest.raises(NoQuorumError, match="no object"):
        gone.settle()
    assert gone.read == []


def test_a_way_that_names_nothing_ends_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that lies may put zeros on the way."""
    chain = Chain(monkeypatch, "+z")
    way = {name_of("z"), NOTHING.hash}
    assert chain.run(riding.find(chain.m, chain.enter, chain.states[-1], name_of("y"), way)) is None


@pytest.mark.parametrize("is_task", [False, True])
def test_a_change_that_keeps_the_index_has_it_settled_before_it_is_proposed(is_task: bool) -> None:
    settled: list[bool] = []

    def settle() -> Task:
        settled.append(True)
        return
        yield

    def later(change: Change) -> Task:
        return change
        yield

    for change, times in ((Change(b"o" * 16, index=Ref(1, name_of("x"))), 0), (Change(b"o" * 16), 1)):
        task = riding.made(lambda change=change: later(change) if is_task else change, settle)
        with pytest.raises(StopIteration) as end:
            next(task)
        assert end.value.value == change
        assert len(settled) == times
