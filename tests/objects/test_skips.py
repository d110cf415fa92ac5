"""The record of a skip: its bytes, what it covers, and whose signature counts."""

from __future__ import annotations

import pytest

from metasync.errors import FormatError
from metasync.keys.derive import sign_public
from metasync.objects.model import VERSION_TAG, Snapshot
from metasync.objects.skips import (
    SKIPS_MAX,
    SKIPS_TAG,
    Skip,
    decode_skips,
    encode_skips,
    repeated,
    skip_over,
    skips_of,
)

NS = b"n" * 32
ADMIN, OTHER = b"a" * 32, b"o" * 32
ADMINS = (sign_public(ADMIN), sign_public(OTHER))


def skip(at: int, good: int, epoch: int = 1) -> Skip:
    return Skip(at, at - 1, good, b"t" * 32, b"m" * 32, b"p" * 32, epoch).signed(NS, ADMIN)


def snapshot(*skips: Skip, value: bytes | None = None) -> Snapshot:
    tag = (SKIPS_TAG, encode_skips(skips) if value is None else value)
    return Snapshot(b"r" * 32, (), b"d" * 16, 0, "", ((VERSION_TAG, bytes(8)), tag))


def test_what_was_written_is_read() -> None:
    skips = (skip(20, 12), skip(9, 5))
    assert decode_skips(encode_skips(skips)) == skips == skips_of(snapshot(*skips))
    assert repeated(snapshot(*skips)) == ((SKIPS_TAG, encode_skips(skips)),)


def test_the_newest_are_kept() -> None:
    skips = [skip(2 * n + 2, 2 * n) for n in reversed(range(SKIPS_MAX + 3))]
    assert decode_skips(encode_skips(skips)) == tuple(skips[:SKIPS_MAX])


@pytest.mark.parametrize(
    "value", [b"", b"\2\1", b"\1\0", b"\1\x41", encode_skips([skip(9, 5)])[:-1], encode_skips([skip(9, 5)] * 2)]
)
def test_nothing_else_is(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_skips(value)
    assert skips_of(snapshot(value=value)) == ()


def test_what_lies_between_is_covered() -> None:
    found = snapshot(skip(20, 3), skip(9, 5))
    covered = {v: skip_over(found, v, NS, ADMINS) for v in (3, 4, 6, 19, 20)}
    assert {v: s and s.at for v, s in covered.items()} == {3: None, 4: 20, 6: 20, 19: 20, 20: None}


@pytest.mark.parametrize(
    "lie",
    [
        skip(9, 5)._replace(good=4),
        skip(9, 5)._replace(tree=b"x" * 32),
        skip(9, 5)._replace(epoch=2),
        skip(9, 5, epoch=2),
        skip(9, 5, epoch=0),
        skip(9, 5, epoch=3),
        skip(9, 8),
        skip(9, 5)._replace(signature=bytes(64)),
    ],
)
def test_without_the_signature_of_its_admin_key_it_counts_for_nothing(lie: Skip) -> None:
    assert not lie.is_of(NS, ADMINS)
    assert all(skip_over(snapshot(lie), v, NS, ADMINS) is None for v in range(12))


def test_of_another_workspace_it_counts_for_nothing() -> None:
    assert skip(9, 5).is_of(NS, ADMINS)
    assert not skip(9, 5).is_of(b"x" * 32, ADMINS)
