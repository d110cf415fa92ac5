"""`metasync.sync.fetch`: file objects that only a hostile device of the workspace could have made."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from content_kit import IDS, digest
from content_kit import walk as walked

from metasync.errors import DamagedError
from metasync.objects import file
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind
from metasync.sync import fetch

A, B = b"a" * 5, b"b" * 7
WHOLE = Entry(Kind.FILE, 0o644, 0, 12, IDS.blob(A + B))


class Contents:
    """Objects in memory; counts the blobs that are asked for."""

    def __init__(self, nodes: dict[bytes, bytes]) -> None:
        self.nodes = nodes
        self.asked = 0

    def walk(self, task: Any) -> Any:
        return walked(task, self.nodes)[0]

    def load(self, kind: ObjectKind, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted = set(ids)
        self.asked += len(wanted)
        return {i: data for i, data in ((IDS.blob(x), x) for x in (A, B)) if i in wanted}


def of(*chunks: Chunk, size: int = 12) -> tuple[Contents, Entry]:
    nodes = file.encode_file(WHOLE.content, chunks, IDS)
    return Contents(dict(nodes)), WHOLE._replace(root=nodes[-1][0], size=size)


def whole(contents: Contents, entry: Entry) -> dict[bytes, bytes]:
    session: Any = SimpleNamespace(ids=IDS)
    return fetch.whole(session, contents, [entry])  # type: ignore[arg-type]


def test_a_file_of_two_chunks_is_joined() -> None:
    assert whole(*of(Chunk(IDS.blob(A), 5), Chunk(IDS.blob(B), 7))) == {WHOLE.content: A + B}


def test_a_small_entry_with_many_chunks_is_refused_before_they_are_fetched() -> None:
    """Else a text of 12 bytes would bring as many blobs as its file object likes to name."""
    contents, entry = of(*[Chunk(digest(i), 1 << 24) for i in range(500)])
    with pytest.raises(DamagedError, match="12 bytes"):
        whole(contents, entry)
    assert not contents.asked


def test_blobs_of_other_sizes_than_the_file_object_says_are_refused() -> None:
    with pytest.raises(DamagedError, match="12 bytes"):
        whole(*of(Chunk(IDS.blob(A), 6), Chunk(IDS.blob(B), 6)))
