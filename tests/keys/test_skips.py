"""Skips in a policy: their bytes, what they cover, and whose signature counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement_kit import ADMIN, POLICY

from metasync.errors import FormatError
from metasync.keys.policy import SKIPS_MAX, SKIPS_TAG, Skip, decode_policy, decode_skips, encode_skips

LATER = (9, b"of a later program")


def skip(at: int, good: int) -> Skip:
    return Skip(at, good, b"t" * 32, b"m" * 32)


def test_what_was_skipped_is_read_with_the_policy_and_one_more_is_added_to_it() -> None:
    policy = POLICY.signed(ADMIN, tags=(LATER,))
    assert policy.skips == ()
    for made in (skip(9, 5), skip(20, 12)):
        policy = policy.signed(ADMIN, tags=policy.skipping(made))
        policy = decode_policy(policy.encode())
    assert policy.skips == (skip(9, 5), skip(20, 12))
    assert dict(policy.tags)[LATER[0]] == LATER[1]


def test_the_newest_are_kept() -> None:
    skips = [skip(2 * n + 2, 2 * n) for n in range(SKIPS_MAX + 3)]
    assert decode_skips(encode_skips(skips)) == tuple(skips[3:])


@pytest.mark.parametrize(
    "value",
    [b"", b"\2", encode_skips([skip(9, 5)])[:-1], encode_skips([skip(9, 5)]) + b"\0",
     encode_skips([skip(9, 5)] * 2), encode_skips([skip(20, 12), skip(9, 5)]),
     b"\x41" + b"".join(encode_skips([skip(2 * n + 2, 2 * n)])[1:] for n in range(SKIPS_MAX + 1))],
)  # fmt: skip
def test_a_policy_that_says_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_policy(POLICY.signed(ADMIN, tags=((SKIPS_TAG, value),)).encode())


def test_what_lies_between_is_covered_and_the_newest_counts() -> None:
    policy = POLICY.signed(ADMIN, tags=((SKIPS_TAG, encode_skips([skip(9, 5), skip(20, 3)])),))
    covered = {v: policy.skip_over(v) for v in (3, 4, 6, 19, 20)}
    assert {v: s and s.at for v, s in covered.items()} == {3: None, 4: 20, 6: 20, 19: 20, 20: None}


def test_without_the_admins_signature_none_is_added_changed_or_taken_away() -> None:
    policy = POLICY.signed(ADMIN, tags=POLICY.skipping(skip(9, 5)))
    for tags in ((), policy.skipping(skip(20, 12)), ((SKIPS_TAG, encode_skips([skip(9, 4)])),)):
        with pytest.raises(FormatError, match="signature"):
            decode_policy(replace(policy, tags=tags).encode())
