"""The agreed config: canonical bytes, bounds, quorums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.config import (
    NO_LIMIT,
    Acceptor,
    BackendEntry,
    ChunkingClass,
    Config,
    Mapping,
    RedundancyClass,
    Replicate,
    Storage,
    Survives,
    decode_config,
    quorum,
)
from metasync.errors import FormatError, UpgradeError, UsageError


def backend(i: int, *, votes: bool = True, **more: Any) -> BackendEntry:
    acceptor = Acceptor(bytes([i, 1]) * 8, "log", bytes([i]) * 32) if votes else None
    storage = (Storage(bytes([i, 2]) * 8, bytes([i]) * 32),)
    entry = BackendEntry(bytes([i]) * 16, f"b{i}", "file", 1 << 30, bytes([i]) * 32, storage, acceptor)
    return replace(entry, **more)


def config(n: int = 3, **more: Any) -> Config:
    return replace(Config(tuple(backend(i) for i in range(1, n + 1))), **more)


@pytest.mark.parametrize(
    ("n", "f", "q", "copies", "survives"),
    [
        (1, 0, 1, 1, (0, 0, 1)),
        (2, 0, 2, 1, (0, 0, 1)),
        (3, 0, 2, 2, (1, 0, 1)),
        (4, 0, 3, 2, (1, 0, 1)),
        (5, 0, 3, 3, (2, 0, 1)),
        (7, 0, 4, 4, (3, 0, 1)),
        (4, 1, 3, 3, (1, 1, 1)),
        (5, 1, 4, 3, (1, 1, 1)),
        (6, 1, 4, 4, (2, 1, 1)),
        (7, 2, 5, 5, (2, 2, 1)),
    ],
)
def test_quorums(n: int, f: int, q: int, copies: int, survives: tuple[int, int, int]) -> None:
    c = config(n, f=f, mode="bft" if f else "crash").check()
    assert (c.n, c.quorum, c.meta_copies) == (n, q, copies)
    assert c.survives == Survives(*survives)
    assert decode_config(c.encode()) == c


@given(st.integers(1, 40), st.integers(0, 10))
def test_two_quorums_share_an_honest_acceptor(n: int, f: int) -> None:
    q = quorum(n, f)
    assert 2 * q - n >= f + 1
    assert 2 * (q - 1) - n < f + 1  # and no smaller one would do


def test_one_copy_less_than_there_are_is_what_data_survive() -> None:
    c = config(redundancy=(RedundancyClass(NO_LIMIT, Replicate(2)),)).check()
    assert c.survives.copies == 1
    assert c.policy(5) == c.policy(1 << 40) == Replicate(2)
    assert decode_config(c.encode()) == c


names = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=20)
"""What `str.isprintable` says is printable."""
tags = st.dictionaries(st.integers(0, 65535), st.binary(max_size=20), max_size=3).map(
    lambda d: tuple(sorted(d.items()))
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    n = draw(st.integers(1, 6))
    backends = []
    for i in range(1, n + 1):
        storage = tuple(
            Storage(bytes([i, 100 + k]) * 8, draw(st.binary(min_size=32, max_size=32)))
            for k in range(draw(st.integers(0, 3)))
        )
        entry = backend(i, votes=i == 1 or draw(st.booleans()), storage=storage, tags=draw(tags))
        backends.append(replace(entry, name=f"{i}{draw(names)}", capacity_bytes=draw(st.integers(1, 1 << 63))))
    minimum = draw(st.integers(256, 1 << 20))  # no chunker takes a maximum below 1,024
    return Config(
        tuple(backends),
        redundancy=(RedundancyClass(NO_LIMIT, Replicate(draw(st.sampled_from([1, 3, 255])))),),
        encrypted=draw(st.booleans()),
        mapping=Mapping(partitions=draw(st.integers(1, 1 << 20))),
        chunking=(
            ChunkingClass(100, "fixed", minimum, minimum, minimum),
            ChunkingClass(NO_LIMIT, "cdc", minimum, 2 * minimum, 4 * minimum),
        ),
        whole_bytes=draw(st.integers(0, 1 << 20)),
        compression_level=draw(st.integers(1, 22)),
        chains=(("compress",), ("compress", draw(names)), ()),
        prev_config=draw(st.none() | st.binary(min_size=32, max_size=32)),
        tags=draw(tags),
    )


@given(configs())
def test_every_config_has_one_byte_string(c: Config) -> None:
    data = c.encode()
    assert decode_config(data) == c
    assert decode_config(data).encode() == data


@given(configs(), st.data())
@settings(max_examples=examples(80))
def test_altered_bytes_decode_to_themselves_or_not_at_all(c: Config, data: st.DataObject) -> None:
    bad = bytearray(c.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(bad)[: data.draw(st.integers(0, len(bad)))] if data.draw(st.booleans()) else bytes(bad)
    try:
        decoded = decode_config(cut)
    except (FormatError, UpgradeError):
        return
    assert decoded.encode() == cut


@given(st.binary(max_size=200))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises((FormatError, UpgradeError)):
        decode_config(data)


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "no backend": {"backends": ()},
    "out of order": {"backends": (backend(2), backend(1))},
    "one twice": {"backends": (backend(1), backend(1))},
    "one name twice": {"backends": (backend(1), backend(2, name="b1"))},
    "no name": {"backends": (backend(1, name=""),)},
    "a name too long": {"backends": (backend(1, name="n" * 256),)},
    "one acceptor id twice": {"backends": (backend(1), backend(2, acceptor=backend(1).acceptor))},
    "one storage id twice": {"backends": (backend(1), backend(2, storage=backend(1).storage))},
    "nobody votes": {"backends": (backend(1, votes=False),)},
    "f in crash mode": {"f": 1},
    "bft without liars": {"mode": "bft", "f": 0},
    "too few for bft": {"mode": "bft", "f": 1},
    "no partitions": {"mapping": Mapping(partitions=0)},
    "unknown mapping": {"mapping": Mapping(kind=2)},
    "no redundancy": {"redundancy": ()},
    "no last class": {"redundancy": (RedundancyClass(5, Replicate(2)),)},
    "classes descend": {"redundancy": (RedundancyClass(NO_LIMIT, Replicate(2)), RedundancyClass(5, Replicate(2)))},
    "no copies": {"redundancy": (RedundancyClass(NO_LIMIT, Replicate(0)),)},
    "more copies than a byte says": {"redundancy": (RedundancyClass(NO_LIMIT, Replicate(256)),)},
    "two classes of redundancy": {
        "redundancy": (RedundancyClass(1 << 20, Replicate(3)), RedundancyClass(NO_LIMIT, Replicate(2)))
    },
    "chunks upside down": {"chunking": (ChunkingClass(NO_LIMIT, "cdc", 4096, 1024, 8192),)},
    "chunks that no chunker cuts": {"chunking": (ChunkingClass(NO_LIMIT, "cdc", 1 << 20, 1 << 23, 1 << 24),)},
    "segments that no reader unpacks": {"segment_bytes": 1 << 26, "pack_bytes": 1 << 27},
    "fixed of two sizes": {"chunking": (ChunkingClass(NO_LIMIT, "fixed", 1024, 1024, 2048),)},
    "level": {"compression_level": 0},
    "tiny packs": {"pack_bytes": 100},
    "segments above packs": {"segment_bytes": 8 << 20},
    "no chain": {"chains": ()},
    "a chain twice": {"chains": (("a",), ("a",))},
    "a nameless step": {"chains": (("",),)},
    "a long chain": {"chains": (tuple("abcdefghijklmnopq"),)},
    "a short hash": {"prev_config": b"x"},
}


@pytest.mark.parametrize("case", list(IMPOSSIBLE))
def test_impossible_configs_are_refused(case: str) -> None:
    with pytest.raises(UsageError):
        config(**IMPOSSIBLE[case]).encode()


def test_newer_and_cut_configs() -> None:
    data = config().encode()
    for newer in (b"\x02" + data[1:], data[:1] + b"\x02" + data[2:]):
        with pytest.raises(UpgradeError):
            decode_config(newer)
    for bad in (b"", b"\0" + data[1:], data[:-1], data + b"\0"):
        with pytest.raises(FormatError):
            decode_config(bad)


def test_lookups() -> None:
    c = config()
    assert c.named("b2") == c.backend(bytes([2]) * 16) == c.backends[1]
    assert c.named("x") is None
    assert c.with_backends(list(reversed(c.backends))) == c
