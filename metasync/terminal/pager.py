"""A pager for what is longer than the screen, chosen as git chooses it: METASYNC_PAGER, else PAGER, else less."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence


def shown(lines: Sequence[str]) -> bool:
    """Shows lines in a pager, until it ends; False where they fit the terminal, or no pager is wanted or there."""
    if not sys.stdout.isatty():
        return False
    size = shutil.get_terminal_size()
    rows = sum(-(-max(1, len(line)) // max(1, size.columns)) for line in lines)
    command = _command()
    return rows >= size.lines and command != "" and _run(command, "\n".join(lines) + "\n")


def _command() -> str:
    """The command line of the pager; "" for none."""
    for variable in ("METASYNC_PAGER", "PAGER"):
        command = os.environ.get(variable)
        if command is not None:
            return "" if command.strip() in ("", "cat") else command
    return "less" if shutil.which("less") else ""


def _run(command: str, text: str) -> bool:
    environment = {"LESS": "FRX", "LV": "-c", **os.environ}  # as git: colours as they are, and nothing is cleared
    sys.stdout.flush()
    before = signal.getsignal(signal.SIGINT)
    alone = threading.current_thread() is threading.main_thread() and before != signal.SIG_IGN
    if alone:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)  # Ctrl-C is the pager's: it ends a search there
    try:
        running = subprocess.Popen(  # noqa: S602 - the user's own command, as git runs it
            command, shell=True, stdin=subprocess.PIPE, env=environment
        )
        assert running.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was left before its end
            running.stdin.write(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
            running.stdin.close()
        return running.wait() not in (126, 127)  # of the shell: there is no such program
    except OSError:
        return False
    finally:
        if alone:
            signal.signal(signal.SIGINT, before)
