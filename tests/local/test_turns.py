"""The turns of a long operation, and the lock that shows who waits for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from turns_kit import SOON_S, Clock, wait_until

from metasync.errors import WorkspaceError
from metasync.local import lock
from metasync.local.lock import LOOK_EVERY_S, TURN_S, GiveWay, Turns, WorkspaceLock


def test_a_push_has_its_turn_before_it_gives_way() -> None:
    clock, asked, wanted = Clock(), [0], [True]

    def others() -> bool:
        asked[0] += 1
        return wanted[0]

    t = Turns().begin(others, clock)
    t.look()
    clock.now += TURN_S * 0.9
    t.look()
    assert asked == [0]
    clock.now += TURN_S * 0.2
    with pytest.raises(GiveWay):
        t.look()
    wanted[0] = False
    for _ in range(13):
        clock.now += LOOK_EVERY_S / 5
        t.look()
    assert asked == [3], "looked for now and then only"


def test_a_turn_that_took_up_what_was_done_has_its_time_after_that() -> None:
    clock = Clock()
    t = Turns().begin(lambda: True, clock)
    t.look()
    clock.now += 10 * TURN_S
    t.renew()
    t.look()
    clock.now += TURN_S * 1.1
    with pytest.raises(GiveWay):
        t.look()


class Asides:
    """What lets others go first: tells that they `changed` something, or did not."""

    def __init__(self) -> None:
        self.changed = False
        self.count = 0

    def __call__(self, _: GiveWay) -> bool:
        self.count += 1
        return not self.changed


def test_a_rest_lets_others_go_first_and_the_turn_goes_on() -> None:
    clock, asides = Clock(), Asides()
    t = Turns().begin(lambda: True, clock, asides)
    t.rest()
    assert asides.count == 0
    clock.now += TURN_S * 1.1
    t.rest()
    assert asides.count == 1
    t.rest()
    clock.now += LOOK_EVERY_S * 0.9
    t.rest()
    assert asides.count == 1, "it gets on between two of them"
    clock.now += LOOK_EVERY_S * 0.2
    asides.changed = True
    with pytest.raises(GiveWay):
        t.rest()
    assert asides.count == 2


def test_nobody_is_let_in_where_nobody_waits() -> None:
    clock, asides = Clock(), Asides()
    t = Turns().begin(lambda: False, clock, asides)
    t.rest()
    clock.now += 2 * TURN_S
    t.rest()
    assert asides.count == 0


def own_time(t: Turns, clock: Clock, *asides: Asides) -> float:
    """How long the next turn goes on by itself, in turns as they are at first."""
    t.begin(lambda: True, clock, *asides).look()
    began = clock.now
    while True:
        clock.now += TURN_S / 4
        try:
            t.rest()
        except GiveWay:
            return round((clock.now - began) / TURN_S)


def test_turns_that_come_to_nothing_grow_until_one_gets_on() -> None:
    """Else a merge of very many files would never end, where a command comes each second and changes something."""
    clock, t = Clock(), Turns()
    assert [own_time(t, clock) for _ in range(4)] == [1, 2, 4, 8]
    t.begin(lambda: True, clock)
    t.got_on()
    assert [own_time(t, clock) for _ in range(2)] == [1, 2]
    for _ in range(20):
        t.begin(lambda: True, clock).look()
        clock.now += 10_000
        with pytest.raises(GiveWay):
            t.look()
    assert own_time(t, clock) == 2**lock.DOUBLINGS_MAX


def test_a_turn_that_got_on_before_it_gave_way_was_not_in_vain() -> None:
    clock, t = Clock(), Turns()
    for _ in range(3):
        t.begin(lambda: True, clock).look()
        t.got_on()
        clock.now += 2 * TURN_S
        with pytest.raises(GiveWay):
            t.look()
    assert own_time(t, clock) == 1


def test_a_rest_that_changed_nothing_was_not_in_vain() -> None:
    clock, asides, t = Clock(), Asides(), Turns()
    t.begin(lambda: True, clock, asides).look()
    for _ in range(5):
        clock.now += 2 * TURN_S
        t.rest()
        t.look()
    assert asides.count == 5
    asides.changed = True
    assert own_time(t, clock, asides) == 1


# --- the lock


@pytest.mark.parametrize("presses", [True, False])
def test_the_holder_sees_who_presses(tmp_path: Path, presses: bool) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    assert not held.wanted()
    other = WorkspaceLock(tmp_path)
    told: list[str] = []
    waiting = threading.Thread(target=lambda: other.acquire("pull", waiting=told.append, presses=presses))
    waiting.start()
    wait_until(lambda: told)
    if presses:
        wait_until(held.wanted)
    else:
        time.sleep(0.2)
        assert not held.wanted()
    held.release()
    waiting.join(SOON_S)
    assert other.held
    assert not held.wanted()
    other.release()


def test_who_gave_up_presses_no_more(tmp_path: Path) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    with pytest.raises(WorkspaceError):
        WorkspaceLock(tmp_path).acquire("pull", wait_s=0.1)
    assert not held.wanted()
    held.release()


def test_who_gave_way_goes_after_those_who_press(tmp_path: Path) -> None:
    held = WorkspaceLock(tmp_path).acquire("push")
    order: list[str] = []

    def pull() -> None:
        with WorkspaceLock(tmp_path).acquire("pull"):
            order.append("pull")

    waiting = threading.Thread(target=pull)
    waiting.start()
    wait_until(held.wanted)
    held.release()
    with WorkspaceLock(tmp_path).acquire("push", presses=False):
        order.append("push")
    waiting.join(SOON_S)
    assert order == ["pull", "push"]
