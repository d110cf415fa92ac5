"""An index that has no object of its own: its root rides in the log entry, its segments ride in the root.

No program of today has a root ride; every one reads it (format-agreement.md 8, format.md 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.consensus import Group, Ref, State
from metasync.consensus.acceptors import log
from metasync.consensus.objects import seal_object
from metasync.consensus.records.entry import ROOT_TAG, Entry
from metasync.errors import DamagedError
from metasync.keys.derive import RecordKind, sha256
from metasync.store.index import INLINE_TAG, IndexRoot, decode_root, encode_root
from metasync.store.index import Ref as Named
from metasync.workspace import Workspace

RANDOM = bytes(range(32))


@pytest.fixture
def riding(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> tuple[Workspace, Workspace, list[bytes]]:
    """Two devices; what the first pushes from now on has no meta object. The list is what its entries carry last."""
    urls = lab.urls("a", "b", "c", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"f": b"first"})
    one.push("first")
    two = lab.clone(urls)
    carried: list[bytes] = []

    def put_index(
        self: Group, base: State, leaves: Iterable[Callable[[], bytes]], make_root: Callable[[Sequence[Ref]], bytes],
        *, generation: int,
    ) -> Any:  # fmt: skip
        segments = [leaf() for leaf in leaves]
        refs = [Ref(generation, sha256(data)) for data in segments]
        root = decode_root(make_root(refs))
        inline = {Named(*ref): data for ref, data in zip(refs, segments, strict=True)}
        items = tuple(i._replace(tags=((INLINE_TAG, inline[i.ref]),)) if i.ref in inline else i for i in root.items)
        plain = encode_root(IndexRoot(items, root.tags))
        keys = self.participant.keys
        digest, _ = seal_object(keys, RecordKind.META, plain, era=base.era, epoch=base.epoch, random=RANDOM)
        carried[:] = [RANDOM + plain]
        yield from ()
        return [*refs, Ref(generation, digest)], plain

    def carrying(entry: Entry, refs: Sequence[Ref]) -> Entry:
        return replace(entry, tags=((ROOT_TAG, carried[0]),)) if carried else entry

    monkeypatch.setattr(Group, "put_index", put_index)
    monkeypatch.setattr(log, "with_refs", carrying)
    return one, two, carried


def test_an_index_is_read_from_the_entry(riding: tuple[Workspace, Workspace, list[bytes]], lab: Lab) -> None:
    one, two, carried = riding
    for n in range(3):
        write(one.directory, {f"g{n}": b"more %d" % n})
        one.push()
    two.pull()
    assert tree_of(two.directory) == tree_of(one.directory)
    root = decode_root(carried[0][32:])
    assert len(root.items) == 4
    assert root.apart == ()
    write(two.directory, {"h": b"on top of it"})
    two.push()
    one.pull()
    assert tree_of(two.directory) == tree_of(one.directory)
    third = lab.clone(lab.urls("a", "b", "c", kind="memory"), device="third")
    assert tree_of(third.directory) == tree_of(one.directory)


def test_a_root_that_is_not_the_agreed_one_is_not_used(riding: tuple[Workspace, Workspace, list[bytes]]) -> None:
    one, two, carried = riding
    append = log.with_refs

    def lying(entry: Entry, refs: Sequence[Ref]) -> Entry:
        carried[:] = [carried[0][:-1] + b"\1" if carried else b""]
        return append(entry, refs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "with_refs", lying)
        write(one.directory, {"g": b"more"})
        one.push()
    with pytest.raises(DamagedError):
        two.pull()
