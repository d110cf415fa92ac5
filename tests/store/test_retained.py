"""Which versions are dropped, which have names, what the policy is: the codec of the retained list."""

from __future__ import annotations

import pytest
from content_kit import refuses
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import FormatError, UpgradeError
from metasync.store import retained
from metasync.store.retained import Dropped, Named, Replaced, Retained, decode_retained, encode_retained
from metasync.store.retention import Age, Keep

steps = st.lists(st.tuples(st.integers(2, 9), st.integers(0, 9)), max_size=20)
keeps = st.builds(
    Keep, last=st.integers(-1, 9), weekly=st.integers(0, 3), within=st.none() | st.just(Age(1, 2, 3, 4)),
    tag=st.sets(st.sampled_from(["a", "b-c", "é"])).map(lambda names: tuple(sorted(names))),
)  # fmt: skip


def intervals(of: list[tuple[int, int]]) -> tuple[Dropped, ...]:
    out: list[Dropped] = []
    at = -1
    for gap, more in of:
        out.append(Dropped(at + gap, at + gap + more, bytes([at & 0xFF] * 32)))
        at = out[-1].last
    return tuple(out)


@given(
    steps.map(intervals),
    st.sets(st.sampled_from(["draft", "first", "über"])),
    keeps,
    st.dictionaries(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), max_size=4),
    st.booleans(),
    st.just(()) | st.just(((3, b"later"),)),
)
def test_every_list_has_one_byte_string(
    dropped: tuple[Dropped, ...], names: set[str], keep: Keep, trees: dict[bytes, bytes], purge: bool,
    tags: tuple[tuple[int, bytes], ...],
) -> None:  # fmt: skip
    named = tuple(Named(name, 10_000) for name in sorted(names))
    value = Retained(dropped, named, keep, tuple(Replaced(i, trees[i]) for i in sorted(trees)), purge, tags)
    if not value:
        return
    data = encode_retained(value)
    assert decode_retained(data) == value
    assert all(value.replacing(i) == root for i, root in trees.items())
    assert value.replacing(bytes(32)) == trees.get(bytes(32))
    gone = {v for d in dropped for v in range(d.first, d.last + 1)}
    assert [v for v in range(max(gone, default=0) + 3) if value.has_dropped(v)] == sorted(gone)


def test_nothing_is_dropped_by_an_empty_list() -> None:
    assert not Retained().has_dropped(0)
    with pytest.raises(ValueError, match="nothing else"):
        encode_retained(Retained())


@pytest.mark.parametrize("bad", [((3, 2),), ((0, 4),), ((1, 2), (3, 4)), ((5, 6), (1, 2)), ((1, 5), (4, 9))])
def test_impossible_lists_are_refused(bad: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="intervals"):
        encode_retained(Retained(tuple(Dropped(*pair) for pair in bad)))
    rows = b"".join(first.to_bytes(8, "big") + last.to_bytes(8, "big") + bytes(32) for first, last in bad)
    with pytest.raises(FormatError, match="intervals"):
        decode_retained(b"\1" + len(bad).to_bytes(4, "big") + rows + bytes(10))


@pytest.mark.parametrize(
    "bad",
    [
        Retained(named=(Named("b", 1), Named("a", 1))),
        Retained(named=(Named("12", 1),)),
        Retained(named=(Named("two words", 1),)),
        Retained((Dropped(3, 5),), (Named("a", 4),)),
    ],
)
def test_impossible_names_are_refused(bad: Retained) -> None:
    with pytest.raises(ValueError, match="name"):
        encode_retained(bad)


@pytest.mark.parametrize("bad", [(b"\2" * 32, b"\1" * 32), (b"\1" * 32,) * 2, (b"short",)])
def test_impossible_trees_are_refused(bad: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="tree"):
        encode_retained(Retained(replaced=tuple(Replaced(i, bytes(32)) for i in bad)))


def test_hostile_lists() -> None:
    trees = (Replaced(b"\1" * 32, b"\2" * 32), Replaced(b"\3" * 32, b"\2" * 32))
    gaps = (Dropped(1, 3), Dropped(5, 5, b"\5" * 32))
    value = Retained(gaps, (Named("a", 4),), Keep(last=2), trees, True, ((3, b"x"),))
    data = encode_retained(value)
    refuses(decode_retained, [data], encode_retained)
    with pytest.raises(UpgradeError):
        decode_retained(b"\2" + data[1:])


def test_a_policy_in_other_words_than_its_own_is_refused() -> None:
    """A list has one byte string."""
    data = encode_retained(Retained(keep=Keep(last=1, weekly=1)))
    assert data.count(b"last=1 weekly=1") == 1
    with pytest.raises(FormatError, match="other words"):
        decode_retained(data.replace(b"last=1 weekly=1", b"weekly=1 last=1"))


@pytest.mark.parametrize("bound", ["INTERVALS_MAX", "NAMES_MAX", "REPLACED_MAX"])
def test_a_list_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = Retained((Dropped(1, 3),), (Named("a", 4),), Keep(), (Replaced(b"\1" * 32, b"\2" * 32),))
    data = encode_retained(value)
    monkeypatch.setattr(retained, bound, 0)
    with pytest.raises(FormatError, match="1 intervals, 1 names and 1 trees"):
        decode_retained(data)


@pytest.mark.parametrize(
    "bad",
    [
        Retained((Dropped(1, 3, b"short"),)),
        Retained(replaced=(Replaced(b"short", bytes(32)),)),
        Retained(replaced=(Replaced(bytes(32), b"short"),)),
    ],
)
def test_an_id_of_another_length_is_not_written(bad: Retained) -> None:
    """Or all that stands behind it is read at another place."""
    with pytest.raises(ValueError, match=r"out of order|without its ids"):
        encode_retained(bad)


# ---- fewer versions


@given(st.data())
def test_versions_go_with_the_push_before_them(data: st.DataObject) -> None:
    """Dropped step by step or at once is the same; each gap names the snapshot of the push that is left below it."""
    numbers = sorted(data.draw(st.sets(st.integers(1, 40), min_size=1, max_size=15)))
    pushes = [(v, bytes([v]) * 32) for v in numbers]
    first = set(data.draw(st.sets(st.sampled_from(numbers)))) | {numbers[-1]}
    then = set(data.draw(st.sets(st.sampled_from(sorted(first))))) | {numbers[-1]}
    once = Retained().without(pushes, first)
    twice = once.without([p for p in pushes if p[0] in first], then)
    assert twice.dropped == Retained().without(pushes, then).dropped
    for v in range(max(numbers) + 3):
        push = max((n for n in numbers if n <= v), default=0)
        assert twice.has_dropped(v) == bool(push and push not in then), v
    for gap in twice.dropped:
        below = max((n for n in then if n < gap.first), default=0)
        assert gap.below == bytes([below]) * 32
    if twice:
        assert decode_retained(encode_retained(twice)) == twice


def test_the_newest_push_is_never_dropped() -> None:
    pushes = [(1, b"\1" * 32), (2, b"\2" * 32)]
    assert Retained().without(pushes, ()).dropped == (Dropped(1, 1),)
