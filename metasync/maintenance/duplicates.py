"""Objects that lie in several packs: which packs may go because others have what is in them, too.

A row of an index is what the device that wrote it says. One device could list an object in a pack of its own, over
other bytes; a collection that took this for a copy would delete the only true one. So before a pack goes because
others have its objects, these are read there. Where they are not what their ids say, or cannot be had now, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final, NamedTuple

from metasync.local.spill import IdSet
from metasync.store.collection import Plan
from metasync.store.deltas import is_relied_on
from metasync.store.index import Index, PackId
from metasync.transfer.contents import Contents

READ_BYTES_MAX: Final = 1 << 30  # of objects, for one run; the packs of what is beyond that go with a later one
READ_TOGETHER_BYTES: Final = 32 << 20


class _Copy(NamedTuple):
    """A needed object for which the pack `goes` is not kept, as the pack `stays` has it."""

    object_id: bytes
    goes: PackId
    stays: PackId
    size_bytes: int


class Duplicates:
    """What one run has read, over all its attempts."""

    def __init__(self) -> None:
        self._sound: set[tuple[bytes, PackId]] = set()
        self._left_bytes = READ_BYTES_MAX
        self._there = IdSet()  # needed objects that were read, wherever

    def in_doubt(self, index: Index, contents: Contents, plan: Plan, needed: Container[bytes]) -> set[PackId]:
        """The packs that go by the plan and have to stay: the others were not shown to have what is in them."""
        doubted: set[PackId] = set()
        some, size = list[_Copy](), 0
        for one in _copies(index, plan, needed):
            if (one.object_id, one.stays) in self._sound or one.goes in doubted:
                continue
            if one.size_bytes > self._left_bytes:
                doubted.add(one.goes)
                continue
            self._left_bytes -= one.size_bytes
            some.append(one)
            size += one.size_bytes
            if size >= READ_TOGETHER_BYTES:
                doubted |= self._read(contents, some)
                some, size = [], 0
        return doubted | self._read(contents, some)

    def shown(self, index: Index, contents: Contents, needed: Container[bytes]) -> Callable[[Sequence[bytes]], bool]:
        """-> whether all that is needed of these objects was read now where the index says that it lies.

        For packs that an index does not name, and no plan of this run let go: whoever did may have said of a pack of
        its own that it has the same.
        """

        def is_shown(ids: Sequence[bytes]) -> bool:
            wanted = [i for i in dict.fromkeys(ids) if i in needed and i not in self._there]
            size = sum(contents.size_of(i) for i in wanted)
            if any(i not in index for i in wanted) or size > self._left_bytes:
                return False
            self._left_bytes -= size
            there: set[bytes] = set()
            contents.fetch(wanted, lambda got: there.update(o.id for o, _ in got), on_lost=lambda *_: None)
            for i in there:
                self._there.add(i)
            return all(i in there for i in wanted)

        return is_shown

    def _read(self, contents: Contents, some: list[_Copy]) -> set[PackId]:
        """Reads objects where they are said to lie, too. -> the packs of those that are not there."""
        at = {one.object_id: one.stays for one in some}
        there: set[bytes] = set()
        if at:
            only = contents.only_in(at)
            only.fetch(at, lambda got: there.update(o.id for o, _ in got), on_lost=lambda ids, error: None)
        self._sound.update((i, at[i]) for i in there)
        return {one.goes for one in some if one.object_id not in there}


def _copies(index: Index, plan: Plan, needed: Container[bytes]) -> Iterator[_Copy]:
    packs = index.packs()
    for pack in plan.gone:
        for here in index.inside(packs[pack]):
            if here.id not in needed:
                continue
            for record, there in index.find(here.id):
                if record.id not in plan.gone and is_relied_on(index, record, there, needed):
                    yield _Copy(here.id, pack, record.id, there.length)
                    break
