"""The inbox of a runtime's coordinator: what is put is taken in order, and a wait ends in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from effort import few_and_many

from metasync.runtime.threads import Inbox

HUNG_S = 60.0
GETS = 100_000  # `queue.SimpleQueue` hung within 5,000 to 110,000 of them


def ends(work: Callable[[], None]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HUNG_S)
    return not thread.is_alive()


@few_and_many("gets", GETS // 4, GETS)
def test_a_wait_whose_time_is_over_before_it_begins_ends(gets: int) -> None:
    """A coordinator with one timer, due at once, waited for ever: the command that slept for it never ended."""

    def work() -> None:
        for _ in range(gets):
            assert Inbox().get(1e-7) is None

    assert ends(work)


def test_messages_of_many_threads_are_taken_each_once_and_in_each_ones_order() -> None:
    inbox, taken = Inbox(), list[tuple[int, int]]()

    def putter(who: int) -> None:
        for number in range(5_000):
            inbox.put(partial(taken.append, (who, number)))

    def taker() -> None:
        while len(taken) < 20_000:
            message = inbox.get()
            if message is not None:
                message()

    threads = [threading.Thread(target=putter, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    assert ends(taker)
    for who in range(4):
        assert [n for w, n in taken if w == who] == list(range(5_000))
    assert inbox.get(0) is None


def test_a_message_ends_a_wait_without_a_limit() -> None:
    inbox, said = Inbox(), threading.Event()

    def taker() -> None:
        while (message := inbox.get()) is None:
            pass
        message()

    threading.Timer(0.01, inbox.put, [said.set]).start()
    assert ends(taker) and said.is_set()
