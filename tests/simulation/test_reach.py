"""What a simulation is judged by where blobs are stored as deltas: what comes of them, not their own bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from content_kit import ID_KEY, IDS, Entropy, at_once, pack_format

from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.pack_format import Delta
from metasync.store.packs import Packer, SealedPack
from simulation.reach import Library
from simulation.world import Violation

TEXTS = [b"".join(b"line %d of %d\n" % (n, n * n) for n in range(40)) + b"edit %d\n" % i for i in range(4)]
ID = [IDS.blob(text) for text in TEXTS]


def library(*stored: tuple[int, bytes, Delta | None]) -> Library:
    """Of packs with one text each, by its number: whole, or as a delta."""
    out: list[SealedPack] = []
    form = pack_format()
    found = Library(cast(Any, SimpleNamespace(id_key=ID_KEY)), {}, cast(Any, SimpleNamespace(riding={})))
    for number, data, row in stored:
        packer = Packer(form, at_once, Entropy(), out.append)
        packer.add(ObjectKind.BLOB, ID[number], data, row)
        packer.finish()
    for pack in out:
        found._read_pack(pack.name, pack.data, form)
    return found


def whole(number: int) -> tuple[int, bytes, None]:
    return number, TEXTS[number], None


def made_of(base: int, number: int, depth: int) -> tuple[int, bytes, Delta]:
    return number, delta.make(TEXTS[base], TEXTS[number]), Delta(ID[base], depth)


def test_a_delta_is_judged_by_what_comes_of_it() -> None:
    found = library(made_of(1, 2, 2), made_of(0, 1, 1), whole(0), made_of(2, 3, 3))
    assert [found._object(ObjectKind.BLOB, i) for i in ID] == TEXTS


def test_of_two_places_one_that_opens_is_enough() -> None:
    found = library(made_of(3, 1, 1), made_of(0, 1, 2), whole(0))
    assert found._object(ObjectKind.BLOB, ID[1]) == TEXTS[1]


@pytest.mark.parametrize(
    "stored",
    [
        [made_of(0, 1, 1)],  # its base is gone
        [made_of(0, 1, 1), made_of(1, 0, 1)],  # of each other
        [whole(0), made_of(0, 2, 2), made_of(2, 1, 2)],  # a base of no less depth
        [whole(0), (1, delta.make(TEXTS[0], TEXTS[2]), Delta(ID[0], 1))],  # of another blob
        [whole(0), (1, b"no delta at all", Delta(ID[0], 1))],
    ],
)
def test_a_delta_that_does_not_open_is_no_blob(stored: list[tuple[int, bytes, Delta | None]]) -> None:
    with pytest.raises(Violation, match="is in no pack but as a delta that does not open"):
        library(*stored)._object(ObjectKind.BLOB, ID[1])


def test_what_no_pack_has_is_said_to_be_in_none() -> None:
    with pytest.raises(Violation, match=r"is in no pack$"):
        library(whole(0))._object(ObjectKind.BLOB, ID[1])
