"""Ctrl-C in a process of the command line: exit code 130, from the first line of this program to the last.

    note_early()   while the program is loaded: remembered, and acted on once there is somebody to say it
    raise_it()     while a command runs: `Interrupted`, so that it is ended in order
    leave()        while an end is being told, and after it: the process ends at once
    end()          that is the end

Where the signal is ignored (a job in the background of a script), it stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

EXIT_CODE: Final = 130
UNBROKEN_S: Final = 10.0  # for what must not end halfway; then whatever it waits for does not come

_pressed: list[int] = []


class Interrupted(KeyboardInterrupt):
    """Raised in the place of `KeyboardInterrupt` itself, which counts even when it is caught.

    Once one went through code that was compiled from a string, as every dataclass is when its module is loaded,
    CPython kills the process by the signal in the end, whatever exit code was asked for. It looks for that class alone.
    """


def note_early() -> None:
    """From now on Ctrl-C is remembered; a second one ends the process."""
    _install(_noted)


def raise_it() -> None:
    """From now on Ctrl-C raises `Interrupted` in the main thread; at once, if it was pressed before."""
    _install(_raised)
    if _pressed:
        _pressed.clear()
        raise Interrupted


def end(code: int) -> NoReturn:
    """Ends the process of a command: what it printed is written out, and nothing else is left to do.

    Taking an interpreter with all its modules apart takes 15 ms, and serves nobody.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed pipe is known by now
            stream.flush()
    if (threads := sys.modules.get("metasync.runtime.threads")) is not None:  # a login that is being renewed, say
        threads.await_unbroken(UNBROKEN_S)
    os._exit(code)


def leave() -> None:
    """From now on Ctrl-C ends the process: nothing is left to be put in order."""
    _install(_left)


def _install(respond: Callable[[int, FrameType | None], None]) -> None:
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, respond)


def _noted(number: int, _frame: FrameType | None) -> None:
    if _pressed:
        os._exit(EXIT_CODE)
    _pressed.append(number)


def _raised(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _left(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)
