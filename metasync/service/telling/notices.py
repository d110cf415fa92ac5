"""Tells the user of a workspace's problems: each once, also after a restart, by the ways that are set.

What was told is remembered in a small file below the user's state folder. A problem that could not be told by any way
is tried again for as long as there is the problem: nobody may be logged in yet. A thread runs while something waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from metasync.local.lock import private
from metasync.local.settings import Settings
from metasync.reports.service import WorkspaceState
from metasync.runtime.daemon_keys import AFTER
from metasync.runtime.limits import parse_duration
from metasync.service.supervisor import Keeping
from metasync.service.telling.due import AFTER_S, Notice, Told, due, noted
from metasync.service.telling.ways import Desktop, NotToldError, Way, ways_of

MEMORY_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 4000
RETRY_S: Final = (30.0, 600.0)  # between tries of what reached nobody
Say = Callable[..., None]


class Memory:
    """What was told about one workspace. What cannot be read was not told; what cannot be written is told again."""

    def __init__(self, folder: Path, directory: Path) -> None:
        name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]
        self._path = folder / "told" / f"{name}.json"

    def read(self) -> dict[str, Told]:
        try:
            with self._path.open("rb") as f:
                data = f.read(MEMORY_BYTES_MAX + 1)
            found = json.loads(data) if len(data) <= MEMORY_BYTES_MAX else {}
            return {str(k): Told(_time(v["at_s"]), None if v["over_s"] is None else _time(v["over_s"]))
                    for k, v in found.items()}  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}

    def write(self, told: Mapping[str, Told]) -> None:
        newest = sorted(told.items(), key=lambda item: item[1].at_s)[-KEYS_MAX:]
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = self._path.with_suffix(".new")
            with open(beside, "w", encoding="utf-8", opener=private) as f:
                json.dump({key: asdict(one) for key, one in newest}, f)
            beside.replace(self._path)


def _time(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError("no time")
    return found


class Notices:
    """The notices of one workspace: goes along with its keeper. `say` writes the log."""

    def __init__(self, directory: Path, folder: Path, say: Say, wall: Callable[[], float] = time.time) -> None:
        self._directory, self._say, self._wall = directory, say, wall
        self._memory = Memory(folder, directory)
        self._told = self._memory.read()
        self._changed = threading.Condition()
        self._state: WorkspaceState | None = None
        self._is_new = False
        self._ways: Sequence[Way] = (Desktop(),)  # until the settings can be read
        self._after_s = AFTER_S
        self._thread: threading.Thread | None = None
        self._ends = False

    def begin(self, keeper: Keeping, settings: Settings) -> None:
        after = settings.values.get(AFTER)
        with self._changed:
            self._ways, self._after_s = (Desktop(),), AFTER_S  # what is wrong with the settings is told, too
            self._ways = ways_of(settings.values)
            self._after_s = AFTER_S if after is None else parse_duration(after)

    def hear(self, state: WorkspaceState) -> None:
        with self._changed:
            if self._state is not None and self._state.problems == state.problems:
                return
            self._state, self._is_new, self._ends = state, True, False
            if self._thread is None and (state.problems or self._told):
                self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    # its own thread, which ends when nothing is left to be told or to be forgotten

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                state, ways, after_s = self._state, self._ways, self._after_s
                self._is_new = False
            if state is None:
                return
            now = self._wall()
            told = noted(state.problems, self._told, now)
            found = due(state.problems, told, now, after_s)
            reached = [key for n in found.notices if self._tell(state, ways, n, failures) for key in n.keys]
            told |= {key: Told(now) for key in reached}
            if told != self._told:
                self._told = told
                self._memory.write(told)
            failed = len(reached) < sum(len(n.keys) for n in found.notices)
            failures = failures + 1 if failed else 0
            retry_s = min(RETRY_S[0] * 2 ** min(failures, 10), RETRY_S[1]) if failed else math.inf
            look_s = math.inf if found.look_s is None else max(0.0, found.look_s - self._wall())
            if not self._rest(min(retry_s, look_s)):
                return

    def _rest(self, seconds: float) -> bool:
        """Waits for a change, or so long. False: the thread is to end, for nothing is waited for but a change."""
        with self._changed:
            if seconds < math.inf:
                self._changed.wait_for(lambda: self._is_new or self._ends, min(seconds, threading.TIMEOUT_MAX))
            if self._ends or (seconds == math.inf and not self._is_new):
                self._thread = None
                return False
            return True

    def _tell(self, state: WorkspaceState, ways: Sequence[Way], notice: Notice, failures: int) -> bool:
        """Whether a way took it. Where none is set it counts as told: the user wants none."""
        reached = not ways
        for way in ways:
            try:
                way.tell(state.name, state.directory, notice)
            except NotToldError as e:
                if not failures:  # once, and not with each try
                    self._say("not told", level="warning", workspace=state.name, way=way.name, why=e.message)
            else:
                reached = True
                self._say("told", workspace=state.name, way=way.name, kind=notice.kind, text=notice.text)
        return reached
