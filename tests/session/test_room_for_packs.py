"""Packs on their way: a backend without room is passed over, and the reserve is for agreement and small trees."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from content_kit import IDS, FakeBackend, blob, noise, pack_all, pack_format, run

from metasync.backends.api import Space
from metasync.errors import FullError
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Gather, Now, Op
from metasync.store.packs import SealedPack
from metasync.store.placement import Placement, Target
from metasync.transfer.copies import MARGIN_BYTES, TREES_BYTES_MAX, Place, Transfer

GIB = 1 << 30

FORM = pack_format(segment_bytes=16 << 10, pack_bytes=4 << 20)


class Telling(FakeBackend):
    """A backend that tells its space when asked, and has a ballast that can be deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.tells: Space | None = None
        self.ballast = True

    def do(self, op: Op) -> Any:
        if op.kind == "space":
            self.calls.append(op)
            return self.tells
        if op.kind == "delete":
            self.calls.append(op)
            assert op.path == "ballast"
            self.ballast = False
            return None
        return super().do(op)

    def kinds(self) -> list[str]:
        return [op.kind for op in self.calls]


class World:
    """Four backends for two copies of a pack of blobs, or of trees."""

    def __init__(self) -> None:
        placement = Placement([Target(n.encode() * 16, 1 << 40) for n in "abcd"], copies=2)
        places = {n.encode() * 16: Place(n, n.encode() * 16, (n.encode() * 16,)) for n in "abcd"}
        self.backends = {n: Telling() for n in "abcd"}
        self.t = Transfer(placement, places, FORM, IDS.of)

    def order(self, pack: SealedPack) -> list[str]:
        return [p.name for p in self.t.order(pack.name)]

    def upload(self, pack: SealedPack) -> tuple[str, ...]:
        holders: tuple[str, ...] = run(self.t.upload(pack, 0), self.backends).holders
        return holders


def data_pack(seed: int = 0, size: int = 50_000) -> SealedPack:
    (pack,) = pack_all([blob(noise(size, seed))], FORM)
    return pack


def tree_pack(size: int = 100) -> SealedPack:
    data = noise(size, 3)
    (pack,) = pack_all([(ObjectKind.DIR, IDS.of(ObjectKind.DIR, data), data)], FORM)
    return pack


def test_a_backend_without_room_is_passed_over_without_a_request() -> None:
    w, pack = World(), data_pack()
    first, second, third, _ = w.order(pack)
    w.t.room.told(first, MARGIN_BYTES + len(pack.data) - 1)
    assert w.upload(pack) == (second, third)
    assert w.backends[first].kinds() == []
    assert isinstance(w.t.down[first], FullError)
    assert not w.t.away(w.t.places[first.encode() * 16]), "it still serves reads"


def test_a_pack_that_just_fits_goes_there() -> None:
    w, pack = World(), data_pack()
    first, second, *_ = w.order(pack)
    w.t.room.told(first, MARGIN_BYTES + len(pack.data))
    w.t.room.left[second] = len(pack.data)
    assert w.upload(pack) == (first, second)
    assert w.t.down == {}
    assert (w.t.room.of(first), w.t.room.of(second)) == (0, 0)


def test_uploads_side_by_side_count_each_other() -> None:
    w = World()
    packs = [p for p in (data_pack(i) for i in range(60)) if w.order(p)[0] == "a"][:2]
    assert len(packs) == 2
    w.t.room.told("a", MARGIN_BYTES + len(packs[0].data) + 10)
    puts: list[Op] = []
    for pack in packs:  # neither has an answer yet
        gather = next(w.t.upload(pack, 0))
        assert isinstance(gather, Gather)
        puts += [op for op in (_first(branch) for branch in gather.branches.values()) if op is not None]
    assert sorted(op.backend for op in puts).count("a") == 1
    assert isinstance(w.t.down["a"], FullError)


def _first(branch: Generator[Any, Any, Any]) -> Op | None:
    try:
        op = next(branch)
        while isinstance(op, Now):  # when it was begun: what it takes teaches the estimates
            op = branch.send(0.0)
    except StopIteration:
        return None
    assert isinstance(op, Op)
    return op


@pytest.mark.parametrize("freed", [True, False])
def test_old_news_of_little_space_is_asked_for_anew(freed: bool) -> None:
    w, pack = World(), data_pack()
    first, second, third, _ = w.order(pack)
    w.t.room.free[first] = MARGIN_BYTES
    w.t.room.stale.add(first)
    w.backends[first].tells = Space(GIB if freed else MARGIN_BYTES + 5, None)
    assert w.upload(pack) == ((first, second) if freed else (second, third))
    assert w.backends[first].kinds() == (["space", "put"] if freed else ["space"])


def test_old_news_of_enough_space_does() -> None:
    w, pack = World(), data_pack()
    first, second, *_ = w.order(pack)
    w.t.room.free[first] = GIB
    w.t.room.stale.add(first)
    assert w.upload(pack) == (first, second)
    assert w.backends[first].kinds() == ["put"]


def test_trees_alone_go_where_data_may_not() -> None:
    w, pack = World(), tree_pack()
    order = w.order(pack)
    for n in order:
        w.t.room.told(n, 0)
    assert w.upload(pack) == tuple(order[:2])
    assert w.t.down == {}
    assert all(b.ballast for b in w.backends.values())


def test_trees_alone_take_the_reserve_only_where_copies_would_be_missing() -> None:
    w, pack = World(), tree_pack()
    first, second, third, fourth = w.order(pack)
    w.backends[first].full = FullError("no space")
    assert w.upload(pack) == (second, third), "elsewhere first"
    assert w.backends[first].ballast
    w = World()
    real = Telling.do

    def frees(self: Telling, op: Op) -> Any:
        out = real(self, op)
        if op.kind == "delete":
            self.full = None
        return out

    for n in (first, second, third):
        w.backends[n].full = FullError("no space")
        w.backends[n].do = frees.__get__(w.backends[n])  # type: ignore[method-assign]
    assert w.upload(pack) == (fourth, first)
    assert [n for n in "abcd" if not w.backends[n].ballast] == [first]


def test_a_holder_that_another_pack_finds_full_meanwhile_is_not_counted_twice() -> None:
    w, pack = World(), tree_pack()
    first, *others = w.order(pack)
    for n in others:
        w.backends[n].full = FullError("no space")
    real = w.backends[first].do

    def took_it(op: Op) -> Any:
        out = real(op)
        w.t.down[first] = FullError("another pack, at the same time")
        return out

    w.backends[first].do = took_it  # type: ignore[method-assign]
    assert w.upload(pack) == (first,)
    assert w.backends[first].kinds() == ["put"]


def test_data_never_takes_the_reserve() -> None:
    w = World()
    for b in w.backends.values():
        b.full = FullError("no space")
    with pytest.raises(FullError, match="every backend is full: none has room for a pack of"):
        w.upload(data_pack(size=100))
    assert all(b.ballast for b in w.backends.values())


def test_large_trees_are_data() -> None:
    w = World()
    for b in w.backends.values():
        b.full = FullError("no space")
    data = noise(TREES_BYTES_MAX, 1)
    (pack,) = pack_all([(ObjectKind.DIR, IDS.of(ObjectKind.DIR, data), data)], FORM)
    with pytest.raises(FullError):
        w.upload(pack)
    assert all(b.ballast for b in w.backends.values())
