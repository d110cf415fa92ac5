"""Merges by lines where not all texts can be had."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import pytest

from metasync.errors import DamagedError
from metasync.merge.trees import TextMerge
from metasync.objects.model import Entry, Kind
from metasync.sync.texts import merge_texts
from metasync.worktree.ingest import Ingest


class _Ingest:
    def of_bytes(self, data: bytes) -> tuple[int, bytes, bytes]:
        return len(data), hashlib.sha256(data).digest(), b""


class Texts:
    """Requests to merge, and what a pack holds of them."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.here: dict[bytes, bytes] = {}

    def entry(self, data: bytes, *, lost: bool = False) -> Entry:
        size, content, root = _Ingest().of_bytes(data)
        if not lost:
            self.stored[content] = data
        return Entry(Kind.FILE, 0o644, 0, size, content, root)

    def request(self, path: bytes, *, lost: str = "") -> TextMerge:
        sides = {"base": b"%s\n\nlast\n", "ours": b"%s\n\nours\n", "theirs": b"theirs %s\n\nlast\n"}
        made = {name: self.entry(text % path, lost=name == lost) for name, text in sides.items()}
        self.here[path] = sides["ours"] % path
        return TextMerge(path, **made)

    def load(self, entries: list[Entry]) -> Mapping[bytes, bytes]:
        if any(e.content not in self.stored for e in entries):
            raise DamagedError("an object is in no pack")
        return {e.content: self.stored[e.content] for e in entries}

    def merged(self, *requests: TextMerge) -> dict[bytes, Any]:
        ingest = cast(Ingest, _Ingest())
        return dict(merge_texts(requests, lambda path, _: self.here[path], self.load, ingest))


def test_a_base_that_is_lost_leaves_its_file_to_be_a_conflict_and_the_others_merge() -> None:
    """After `recover` the index may name no pack with the bytes of an old version any more."""
    texts = Texts()
    merged = texts.merged(texts.request(b"a"), texts.request(b"b", lost="base"))
    assert merged.keys() == {b"a"}
    assert merged[b"a"].data == b"theirs a\n\nours\n"


def test_what_the_newest_version_names_must_be_had() -> None:
    texts = Texts()
    with pytest.raises(DamagedError):
        texts.merged(texts.request(b"a"), texts.request(b"b", lost="theirs"))
