"""What a keeper counts of the files of the last hour, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metasync.errors import GuardError, NoQuorumError
from metasync.local import state_keys
from metasync.local.state import LocalDb
from metasync.merge.guard import SPAN_S
from metasync.service.last_hour import LAST_HOUR_KEY, STEP_S, STEPS_MAX, LastHour
from metasync.session.around import Around

STOP = GuardError("this push would delete 1 file", deleted=1, files=2)


class Hour(LastHour):
    """One with a clock."""

    def __init__(self, db: LocalDb) -> None:
        self.now = 1e9
        super().__init__(lambda: self.now)
        self.around = Around()
        self.begin(db, self.around)

    def lose(self, files: int, after_s: float = STEP_S) -> None:
        self.now += after_s
        self.around.counts(-files, forced=False)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[LocalDb]:
    with LocalDb.open(tmp_path / "state.db") as made:
        yield made


@pytest.fixture
def hour(db: LocalDb) -> Hour:
    return Hour(db)


def test_alone_nothing_is_counted() -> None:
    around = Around()
    around.counts(-7, forced=False)
    assert around.gone() == 0


def test_files_that_come_are_no_loss_and_write_nothing(db: LocalDb, hour: Hour) -> None:
    hour.lose(-5)
    assert hour.around.gone() == 0
    assert not db.has(LAST_HOUR_KEY)
    hour.lose(3)
    hour.lose(-1)
    assert hour.around.gone() == 2, "one came back"
    hour.lose(2)
    assert hour.around.gone() == 4


def test_files_that_come_and_go_add_up_to_nothing(hour: Hour) -> None:
    hour.lose(1)
    for after_s in (1.0, STEP_S):
        for _ in range(20):
            hour.lose(-5, after_s=after_s)
            hour.lose(5, after_s=after_s)
    assert 1 <= hour.around.gone() <= 5


def test_it_is_forgotten_after_the_hour_but_not_while_a_stop_waits(db: LocalDb, hour: Hour) -> None:
    hour.lose(4)
    hour.now += SPAN_S - 1
    assert hour.around.gone() == 4
    hour.failed("pull", NoQuorumError("no quorum"))
    hour.failed("push", STOP)
    hour.now += SPAN_S
    assert hour.around.gone() == 4
    again = Hour(db)
    again.now = hour.now
    again.passed("pull")
    assert again.around.gone() == 4, "another verb's"
    again.passed("push")
    assert again.around.gone() == 0


def test_a_push_that_passes_answers_for_a_pull(hour: Hour) -> None:
    hour.lose(4)
    hour.failed("pull", STOP)
    hour.now += SPAN_S
    hour.passed("push")
    assert hour.around.gone() == 0


def test_what_is_forced_begins_anew(db: LocalDb, hour: Hour) -> None:
    hour.lose(4)
    hour.around.counts(-9, forced=True)
    assert hour.around.gone() == 0
    assert not db.has(LAST_HOUR_KEY)


def test_for_what_somebody_asks_nothing_is_gone(hour: Hour) -> None:
    hour.lose(4)
    with hour.asked_for():
        with hour.asked_for():
            assert hour.around.gone() == 0
        assert hour.around.gone() == 0
        hour.lose(2)
    assert hour.around.gone() == 6


def test_a_clock_that_is_set_back_forgets_nothing_too_early_nor_keeps_it_for_ever(hour: Hour) -> None:
    hour.now += 1e8
    hour.lose(4)
    hour.now -= 1e8
    assert hour.around.gone() == 4
    hour.lose(1)
    hour.now += SPAN_S
    hour.lose(1)
    assert hour.around.gone() == 1


def test_it_keeps_a_bounded_number_of_steps_and_no_loss_gets_lost(db: LocalDb, hour: Hour) -> None:
    hour.lose(1)
    hour.failed("push", STOP)
    for _ in range(STEPS_MAX + 10):
        hour.lose(1)
    assert hour.around.gone() == STEPS_MAX + 11
    found = db.get(LAST_HOUR_KEY)
    assert found is not None and len(found.steps) == STEPS_MAX


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'[[[1]],""]', b'[[["a",1]],""]', b"[1,2]", b"\xff"])
def test_what_is_damaged_counts_as_absent(db: LocalDb, data: bytes) -> None:
    db.set(state_keys.LAST_HOUR_KEY, data)
    hour = Hour(db)
    assert hour.around.gone() == 0
    hour.lose(2)
    assert Hour(db).around.gone() == 2
