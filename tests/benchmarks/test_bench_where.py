"""The profile changes nothing of what it looks at."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections import Counter

import where


class Held:
    """What a function has while it is looked at."""


def looked_at(sampler: where.Sampler) -> weakref.ref[Held]:
    held = Held()
    sampler._tick(0, sys._getframe())
    return weakref.ref(held)


def test_a_look_keeps_nothing_of_the_frames_that_it_saw() -> None:
    sampler = where.Sampler.__new__(where.Sampler)  # without its timer
    sampler.before, sampler.charged = 0.0, Counter()
    sampler._known, sampler._me = {}, threading.get_ident()
    gc.disable()
    try:
        began = time.thread_time()
        held = looked_at(sampler)
        assert held() is None
    finally:
        gc.enable()
    assert sum(sampler.charged.values()) >= began
