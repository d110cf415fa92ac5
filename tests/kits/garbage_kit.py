"""What objects hold each other after a call: only the garbage collector frees them, and it comes by when it likes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any


def left_as_garbage(act: Callable[[], object]) -> list[Any]:
    """The objects that the call left behind, and that nobody but they themselves hold.

    What another thread is still about to let go of is none of them: so a busy machine makes it fewer, and never more.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        act()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_on:
            gc.enable()
