"""Logs are deleted below floors that stand, and what a backend refuses, lacks or has in their place deletes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from paxos_world import Store, Workspace, World, make_workspace
from test_floors import BLOCK, folders, group_of, push

from metasync.consensus import Group, State, chain, truncation
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import floor_path
from metasync.consensus.truncation import DELETES_MAX, GRACE_S, Progress
from metasync.errors import NoQuorumError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.effects import Op, Reply


class Floors:
    """30 versions: floors 8 and 16 are due."""

    def __init__(self) -> None:
        self.world = World(7, [*"abc"])
        self.ws: Workspace = make_workspace(self.world)
        self.group: Group = group_of(self.ws, 1)
        self.state: State = push(self.world, self.group, self.ws.genesis, 30)
        self.progress = Progress()

    def step(self, now_s: float = 0.0) -> bool:
        done: bool = self.world.do(self.group.bound_logs(self.state, self.progress, now_s, keep=BLOCK))
        return done

    def all(self, now_s: float = 0.0) -> None:
        for _ in range(100):
            if not self.step(now_s):
                return
        raise AssertionError("it does not end")

    def path(self, name: str, floor: int) -> str:
        return floor_path(self.ws.acceptor_of(name), floor)

    def stands(self, floor: int) -> str:
        return "".join(name for name in "abc" if self.path(name, floor) in self.world.stores[name])

    def whole(self, name: str) -> bool:
        return folders(self.world, self.ws, name) == {"0", "1", "2", "3"}


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Floors]:
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(chain, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(truncation, "STEP", BLOCK)
    monkeypatch.setattr(truncation, "BEHIND_LEAST", BLOCK)
    yield Floors()


def test_a_floor_that_stands_on_too_few_is_none(floors: Floors) -> None:
    """Whoever sleeps would not find it at those that lack it, and take the gap for news."""

    def refuses(_: str, op: Op, store: Store) -> Reply:
        return Reply(error=RefusedError("no")) if "/floor/" in op.path and op.kind == "create" else store.do(op)

    floors.world.liars = {"a": refuses, "b": refuses}
    with pytest.raises(NoQuorumError, match="too few backends"):
        floors.step()
    assert floors.progress.made == 0
    floors.world.liars = {"a": refuses}
    assert floors.step()
    assert (floors.progress.made, floors.stands(8)) == (8, "bc")


def test_what_lies_in_the_place_of_a_floor_is_none(floors: Floors) -> None:
    for name in "ab":
        floors.world.stores[name][floors.path(name, 8)] = b"rubbish".ljust(512)
    with pytest.raises(NoQuorumError, match="too few backends"):
        floors.step()


def test_a_floor_that_another_device_made_is_one(floors: Floors) -> None:
    floors.all()
    other = group_of(floors.ws, 2, 1)
    again = Progress()
    assert floors.world.do(other.bound_logs(floors.state, again, 0.0, keep=BLOCK))
    assert again.made == 8


@pytest.mark.parametrize("lower", ["gone", "rubbish"])
def test_an_acceptor_gets_no_floor_before_the_one_below(floors: Floors, lower: str) -> None:
    """It was away: else its logs below the lower one would never go."""
    assert floors.step()
    if lower == "gone":
        del floors.world.stores["c"][floors.path("c", 8)]
    else:
        floors.world.stores["c"][floors.path("c", 8)] = b"rubbish".ljust(512)
    progress = Progress(made=8)
    progress.read_s = {(floors.ws.acceptor_of(name).hex(), 8): 0.0 for name in "abc"}
    floors.progress = progress
    assert floors.step()
    assert floors.stands(16) == "ab"


def test_an_acceptor_that_was_away_gets_what_it_lacks(floors: Floors) -> None:
    floors.world.down = {"c"}
    assert floors.step()
    assert floors.stands(8) == "ab"
    floors.world.down = set()
    floors.all()
    assert (floors.stands(8), floors.stands(16)) == ("abc", "abc")


@pytest.mark.parametrize("there", [b"rubbish".ljust(512), b""])
def test_below_what_is_no_floor_nothing_is_deleted(floors: Floors, there: bytes) -> None:
    floors.all()
    floors.progress = Progress(made=16)
    floors.world.stores["a"][floors.path("a", 8)] = there
    floors.all()
    floors.all(GRACE_S + 1)
    assert floors.whole("a")
    assert not floors.whole("b")


def test_an_acceptor_that_does_not_answer_loses_nothing(floors: Floors) -> None:
    floors.all()
    floors.progress = Progress(made=16)
    floors.world.down = {"a"}
    floors.all()
    floors.world.down = set()
    floors.step(GRACE_S + 1)  # what was not read again has not waited
    assert floors.whole("a")


def test_an_emptied_acceptor_is_left_alone(floors: Floors) -> None:
    floors.all()
    floors.world.stores["c"].clear()
    instance = floors.world.do(floors.group.enter(floors.state))
    instance.acceptors[floors.ws.acceptor_of("c")].memory.replaced = "it was emptied"
    floors.all(GRACE_S + 1)
    assert not floors.world.stores["c"]


# ---- what is deleted


def deletes(store: Callable[[Op], Reply]) -> tuple[int | None, list[str]]:
    """How many entries the deletion of a folder leaves (None: it refuses), and the names that were to go."""
    world, gone = World(1, ["a"]), []

    def answer(_: str, op: Op, __: Store) -> Reply:
        if op.kind == "delete":
            gone.append(op.path)
        return store(op)

    world.liars["a"] = answer
    return world.do(truncation._delete_block("a", "folder")), gone


class Item:
    def __init__(self, name: str, size: int | None = 1) -> None:
        self.name, self.size = name, size


def test_a_folder_that_is_not_there_is_deleted() -> None:
    assert deletes(lambda _: Reply(error=NotFoundError("none"))) == (0, [])


def test_a_folder_that_cannot_be_listed_is_not() -> None:
    assert deletes(lambda _: Reply(error=UnreachableError("busy"))) == (None, [])


@pytest.mark.parametrize(("error", "left"), [(None, 0), (NotFoundError("gone"), 0), (RefusedError("no"), None)])
def test_a_folder_is_deleted_when_nothing_in_it_is_left(error: Exception | None, left: int | None) -> None:
    def store(op: Op) -> Reply:
        if op.kind == "list":
            return Reply((Item("one"), Item("a folder", None), Item("two")))
        return Reply(error=error) if op.path.endswith("two") else Reply()  # type: ignore[arg-type]

    assert deletes(store) == (left, ["folder/one", "folder/two"])


@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_large_folder_is_deleted_in_parts(more: int) -> None:
    items = tuple(Item(str(n)) for n in range(DELETES_MAX + more))
    left, gone = deletes(lambda op: Reply(items) if op.kind == "list" else Reply())
    assert (left, len(gone)) == (more, DELETES_MAX)


@pytest.mark.parametrize("what", ["delete", "list", "create"])
def test_one_that_refuses_for_ever_keeps_its_own_logs_alone(floors: Floors, what: str) -> None:
    """It is the first by its id: the others' logs go all the same, and the step ends."""
    first = min("abc", key=floors.ws.acceptor_of)

    def refuses(_: str, op: Op, store: Store) -> Reply:
        is_meant = "/floor/" in op.path if what == "create" else "/px/" in op.path
        return Reply(error=RefusedError("no")) if op.kind == what and is_meant else store.do(op)

    floors.world.liars = {first: refuses}
    floors.all()
    floors.all(GRACE_S + 1)
    for name in "abc":
        assert floors.whole(name) == (name == first), name
    floors.world.liars = {}
    floors.all(2 * GRACE_S)
    floors.all(3 * GRACE_S + 9)
    assert not floors.whole(first)
