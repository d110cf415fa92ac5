"""Threads that wait for work hold nothing of what they did last: an answer may be a pack of megabytes."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from garbage_kit import left_as_garbage

from metasync.backends.memory import MemoryBackend
from metasync.runtime import channel
from metasync.runtime.effects import Op, Reply, Work, together
from metasync.runtime.tasks import Runtime
from metasync.runtime.threads import Pool

PATIENCE_S = 60.0


class Answer:
    """What somebody may hold."""


def gone(ref: Callable[[], Any]) -> bool:
    """Whether it is let go of, in a while."""
    end = time.monotonic() + PATIENCE_S
    while ref() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return ref() is None


def through_a_pool(job: Callable[[], None]) -> Callable[[], None]:
    pool = Pool("test", 1)
    assert pool.submit(job, lambda _value, _error: None)
    return pool.close


def through_a_runtime(job: Callable[[], None]) -> Callable[[], None]:
    def task() -> Any:
        yield Work(job)

    runtime = Runtime({})
    runtime.run(task())
    return runtime.close


@pytest.mark.parametrize("through", [through_a_pool, through_a_runtime])
def test_what_was_done_last_is_let_go_of(through: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
    answer = Answer()
    ref = weakref.ref(answer)
    close = through(lambda held=answer: None)  # type: ignore[misc]
    del answer
    try:
        assert gone(ref)
    finally:
        close()


def calls_of(objects: list[Any]) -> list[channel.Call]:
    return [o for o in objects if isinstance(o, channel.Call)]


def test_what_was_sent_last_is_let_go_of() -> None:
    def task() -> Any:
        return (yield Op("a", "create", "x", data=b"sent"))

    with Runtime({"a": MemoryBackend("test")}) as runtime:
        assert isinstance(runtime.run(task()), Reply)
        # A call that hangs in another test may be there, too.
        assert gone(lambda: next((o for o in calls_of(gc.get_objects()) if o.op.data == b"sent"), None))


def test_what_branches_gave_is_let_go_of_without_the_garbage_collector() -> None:
    def branch(answer: Answer) -> Any:
        yield Work(lambda: None)
        return answer

    def task() -> Any:
        return (yield from together({"one": branch(Answer()), "other": branch(Answer())}))

    with Runtime({}) as runtime:
        assert not any(isinstance(o, Answer) for o in left_as_garbage(lambda: runtime.run(task())))
