"""The real command line on a terminal of its own, looked at as a person does: the screen, not the bytes.

    with on_terminal("push", cwd=folder) as t:
        t.until("upload")
        t.press(CTRL_C)
        assert t.end() == 130
        assert "interrupted" in t.text()

`until` waits for text on the screen; a minute without it means "hung". What was typed and is on the screen is there
because the terminal or the program echoed it. `seen` has every screen that was different from the one before.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte
from ptyprocess import PtyProcess

CTRL_C = "\x03"
CTRL_D = "\x04"
HUNG_S = 60
WAITS_S = 0.1  # from a question to the read of its answer, at most
_READ_BYTES = 1 << 12  # small: screens between two drawings are looked at, too

CHEAP_PROGRAM = """
import sys
from metasync.keys.slots import Cost
from metasync.workspace import Workspace
for method in (Workspace.init, Workspace.device_revoke, Workspace.key_change_passphrase, Workspace.key_rotate):
    method.__kwdefaults__["kdf"] = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
from metasync.terminal import interrupt
from metasync.cli import main
sys.argv[0] = "metasync"
main()
"""
"""The program, with passphrases that are stretched as cheaply as the format allows."""


class Terminal:
    """A terminal of `columns` x `rows` with a program on it. A context manager: what still runs is ended."""

    def __init__(
        self, *words: str, cwd: Path, env: Mapping[str, str] | None = None, columns: int = 80, rows: int = 24,
        program: list[str] | None = None,
    ) -> None:  # fmt: skip
        environment = {**os.environ, "TERM": "xterm", "METASYNC_KEYRING": "off", "COLUMNS": "", "LINES": ""}
        for name in ("NO_COLOR", "METASYNC_PASSPHRASE", "COLUMNS", "LINES", "PAGER", "METASYNC_PAGER", "LESS"):
            environment.pop(name, None)
        environment |= env or {}
        argv = program or [sys.executable, "-c", CHEAP_PROGRAM, *words]
        self.screen = pyte.Screen(columns, rows)
        self.seen: list[tuple[str, ...]] = []
        self._stream = pyte.ByteStream(self.screen)
        self._process = PtyProcess.spawn(argv, cwd=str(cwd), env=environment, dimensions=(rows, columns))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.fd, selectors.EVENT_READ)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._process.close(force=True)

    def rows(self) -> list[str]:
        """The lines of the screen, from the top, without blanks at their ends and empty ones at the bottom."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def text(self) -> str:
        return "\n".join(self.rows())

    def colours(self, text: str) -> set[str]:
        """The colours of a text where the screen shows it last; `default` for none."""
        for y in reversed(range(self.screen.lines)):
            x = self.screen.display[y].rfind(text)
            if x >= 0:
                return {self.screen.buffer[y][x + i].fg for i in range(len(text)) if text[i] != " "}
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text()}")

    def until(self, wanted: str | Callable[[Terminal], bool]) -> None:
        """Waits until the screen shows a text, or is as wanted."""
        met = (lambda t: wanted in t.text()) if isinstance(wanted, str) else wanted
        ends = time.monotonic() + HUNG_S
        while not met(self):
            if not self._read(ends):
                raise AssertionError(f"never came: {wanted!r}\n{self.text()}")

    def asked(self, question: str) -> None:
        """Waits until the cursor stands behind a question and its blank: by then the echo is off, if it is to be.

        And a little longer: Python loses a signal that comes just before it waits for a line, until that line comes.
        """
        self.until(lambda t: t.screen.display[t.screen.cursor.y][: t.screen.cursor.x].endswith(f"{question} "))
        time.sleep(WAITS_S)

    def type(self, line: str) -> None:
        """Types a line, and Enter."""
        self.press(line + "\r")

    def press(self, keys: str) -> None:
        self._process.write(keys.encode())

    def end(self) -> int:
        """Waits for the program to end; its exit code."""
        ends = time.monotonic() + HUNG_S
        while self._read(ends):
            pass
        self._process.wait()
        return self._process.exitstatus if self._process.exitstatus is not None else -self._process.signalstatus

    def _read(self, ends: float) -> bool:
        """Takes what the program wrote; False when it has ended."""
        if not self._selector.select(max(0.0, ends - time.monotonic())):
            raise AssertionError(f"hung:\n{self.text()}")
        try:
            self._stream.feed(self._process.read(_READ_BYTES))
        except EOFError:
            return False
        rows = tuple(self.rows())
        if not self.seen or self.seen[-1] != rows:
            self.seen.append(rows)
        return True


on_terminal = Terminal
