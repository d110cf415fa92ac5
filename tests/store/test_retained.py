"""Which versions are dropped: the codec of the retained list."""

from __future__ import annotations

import pytest
from content_kit import refuses
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import FormatError, UpgradeError
from metasync.store.retained import Retained, decode_retained, encode_retained

steps = st.lists(st.tuples(st.integers(2, 9), st.integers(0, 9)), min_size=1, max_size=20)


def intervals(of: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out, at = [], -1
    for gap, more in of:
        out.append((at + gap, at + gap + more))
        at = out[-1][1]
    return tuple(out)


@given(steps.map(intervals), st.just(()) | st.just(((3, b"later"),)))
def test_every_list_has_one_byte_string(
    dropped: tuple[tuple[int, int], ...], tags: tuple[tuple[int, bytes], ...]
) -> None:
    value = Retained(dropped, tags)
    data = encode_retained(value)
    assert decode_retained(data) == value
    gone = {v for first, last in dropped for v in range(first, last + 1)}
    assert [v for v in range(max(gone) + 3) if value.has_dropped(v)] == sorted(gone)


def test_nothing_is_dropped_by_an_empty_list() -> None:
    assert not Retained().has_dropped(0)


@pytest.mark.parametrize("bad", [(), ((3, 2),), ((0, 4),), ((1, 2), (3, 4)), ((5, 6), (1, 2)), ((1, 5), (4, 9))])
def test_impossible_lists_are_refused(bad: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="intervals"):
        encode_retained(Retained(bad))
    rows = b"".join(v.to_bytes(8, "big") for pair in bad for v in pair)
    with pytest.raises(FormatError, match="intervals"):
        decode_retained(b"\1" + len(bad).to_bytes(4, "big") + rows + b"\0")


def test_hostile_lists() -> None:
    data = encode_retained(Retained(((1, 3), (5, 5)), ((3, b"x"),)))
    refuses(decode_retained, [data], encode_retained)
    with pytest.raises(UpgradeError):
        decode_retained(b"\2" + data[1:])
