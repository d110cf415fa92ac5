"""When a push is due, on a clock that the test moves."""

from __future__ import annotations

import pytest

from metasync.service.batch import PAUSE_MOST_S, Batch, Batching, Pauses, Sizes


def batch(draw: float = 0.5) -> Batch:
    return Batch(Batching(), Pauses(lambda: draw))


def test_nothing_changed_and_nothing_is_due() -> None:
    assert batch().due(100.0) is None


def test_it_is_due_when_nothing_changed_for_the_quiet_time() -> None:
    b = batch()
    b.changed(10.0)
    assert b.due(10.0) == 15.0
    b.changed(13.0)
    assert b.due(13.0) == 18.0


def test_it_waits_no_longer_than_the_longest_time() -> None:
    b = batch()
    for at in range(10, 60, 2):
        b.changed(float(at))
    assert b.due(58.0) == 40.0


def test_it_is_due_at_once_when_enough_is_to_be_sent() -> None:
    b = batch()
    b.changed(10.0)
    b.estimated(300_000)
    assert b.due(11.0) == 15.0, "210,000 by the first ratio"
    b.estimated(400_000)
    assert b.due(11.0) == 11.0


def test_what_compresses_well_waits_longer_once_pushes_have_shown_it() -> None:
    b = batch()
    for _ in range(20):
        b.changed(0.0)
        b.estimated(1_000_000)
        b.begins()
        b.ended(100_000)
    b.changed(10.0)
    b.estimated(1_000_000)
    assert 90_000 < b.delta_bytes < 120_000
    assert b.due(11.0) == 15.0


def test_what_changes_while_a_push_runs_gathers_for_the_next() -> None:
    b = batch()
    b.changed(10.0)
    b.begins()
    assert b.due(15.0) is None
    b.changed(16.0)
    b.ended(0)
    assert b.due(17.0) == 21.0


def test_pauses_grow_after_failures_and_never_end_at_the_same_time() -> None:
    ends: list[list[float]] = []
    for draw in (0.0, 1.0):
        b, now = batch(draw), 0.0
        b.changed(now)
        ends.append([])
        for _ in range(12):
            b.begins()
            b.failed(now)
            due = b.due(now)
            assert due is not None
            ends[-1].append(due - now)
            now = due
    assert ends[0][:4] == pytest.approx([5.0, 7.5, 15.0, 30.0], abs=1.3)
    assert ends[0][-1] == PAUSE_MOST_S * 0.75
    assert ends[1][-1] == PAUSE_MOST_S * 1.25
    assert all(a < b for a, b in zip(*ends, strict=True) if b > 7)


def test_an_hour_without_a_quorum_is_few_attempts() -> None:
    b, now, attempts = batch(), 0.0, 0
    b.changed(now)
    while now < 3600.0:
        b.changed(now)  # somebody saves a file all the time
        due = b.due(now)
        assert due is not None
        if due <= now:
            attempts += 1
            b.begins()
            b.failed(now)
        now += 1.0
    assert attempts < 20


def test_the_user_passes_by_a_pause() -> None:
    b = batch()
    b.changed(0.0)
    b.begins()
    b.failed(0.0)
    b.ask()
    assert b.due(1.0) == 1.0
    b.begins()
    b.ended(0)
    assert b.due(2.0) is None


def test_settings_are_understood_and_nonsense_counts_as_not_set() -> None:
    assert Batching.of({}) == (5.0, 250_000, 30.0)
    assert Batching.of({"daemon.quiet": "2s", "daemon.delta": "1M", "daemon.longest": "1m"}) == (2.0, 1 << 20, 60.0)
    assert Batching.of({"daemon.quiet": "soon", "daemon.delta": "off"}) == (5.0, 250_000, 30.0)
    assert Batching.of({"daemon.quiet": "40s"}).longest_s == 40.0


def test_a_file_that_grows_does_not_count_until_it_rests() -> None:
    sizes = Sizes()
    for at in range(5):
        assert sizes.look(float(at), [(b"download", 100_000 * (at + 1), None)]) == 0.0
        assert sizes.growing(float(at), 30.0) == {b"download"}
    assert sizes.look(8.0, [(b"download", 500_000, None)]) == 500_000
    assert not sizes.growing(8.0, 30.0)


def test_a_file_that_grows_on_and_on_is_waited_for_no_longer_than_the_longest_time() -> None:
    sizes = Sizes()
    for at in range(31):
        sizes.look(float(at), [(b"download", 100 * (at + 1), None)])
    assert sizes.growing(29.0, 30.0) == {b"download"}
    assert sizes.growing(30.0, 30.0) == set()
    sizes.forget()
    sizes.look(31.0, [(b"download", 9999, 3100)])
    assert sizes.growing(31.0, 30.0) == {b"download"}, "it waits anew for its next part"


def test_a_known_file_counts_by_what_came_to_it_or_as_some_chunks() -> None:
    sizes = Sizes()
    files = [(b"log", 1_100_000, 1_000_000), (b"image", 9_000_000, 9_000_000), (b"small", 10, 10), (b"cut", 5, 50_000)]
    assert sizes.look(0.0, files) == 65_536 + 10 + 49_995, "the log grew just now"
    assert sizes.look(10.0, files) == 100_000 + 65_536 + 10 + 49_995
    sizes.forget([b"log"])
    assert set(sizes.seen) == {b"log"}
