"""What a keeper tells of its workspace: one state, kept up to date, and told at most four times a second."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, Final

from metasync.backends.wrappers.breaker import lasting
from metasync.events import Event, Phase, Progress, Transferred
from metasync.local.state_keys import NO_ROOM, Conflict
from metasync.reports.service import Activity, Doing, Line, Problem, WorkspaceState
from metasync.reports.sync import PullReport, Skipped
from metasync.service import problems as told
from metasync.service.problems import Problems

log = logging.getLogger(__name__)
TELL_S: Final = 0.25
UNPLACED_MAX: Final = 20  # paths that are told one by one


class Account:
    """The state of one workspace. Thread-safe. `clock` never goes back, `wall` gives seconds since 1970."""

    def __init__(
        self,
        directory: Path,
        tell: Callable[[WorkspaceState], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._directory, self._tell, self._clock, self._wall = directory, tell, clock, wall
        self._lock = threading.RLock()
        self._problems = Problems()
        self._lines: dict[str, Line] = {}
        self._answered: dict[str, Problem] = {}  # backends that were away, and moved data since: what was told of them
        self._told_at: float | None = None
        self.tell_at: float | None = None  # when something is to be told that was held back
        self._state = WorkspaceState(str(directory), directory.name, "starting", wall())

    @property
    def state(self) -> WorkspaceState:
        with self._lock:
            return self._state

    def update(self, **fields: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **fields)

    def watched(self, short: Problem | None) -> None:
        """Whether not all can be watched."""
        self.only("watch", () if short is None else (replace(short, since_s=self._wall()),))

    def set(self, doing: Doing, why: str = "") -> None:
        """What it is at; also brings problems and lines up to date, and tells."""
        with self._lock:
            if (doing, why) != (self._state.doing, self._state.why):
                self._state = replace(self._state, doing=doing, why=why, since_s=self._wall(), activity=None)
            self._bring_up_to_date()
        self.tell()

    def _bring_up_to_date(self) -> None:
        lines = tuple(self._lines[name] for name in sorted(self._lines))
        self._state = replace(self._state, problems=self._problems.all(), lines=lines)

    def tell(self) -> None:
        with self._lock:
            now = self._clock()
            if self._told_at is not None and now - self._told_at < TELL_S:
                self.tell_at = self._told_at + TELL_S
                return
            self._told_at, self.tell_at = now, None
            state = self._state
        try:
            self._tell(state)
        except Exception:
            log.exception("a listener of the state raised")

    def hear(self, event: Event) -> None:
        """Hears of the progress of operations."""
        with self._lock:
            if isinstance(event, Transferred):
                line = self._lines.get(event.backend) or Line(event.backend)
                up, down = (event.bytes, 0) if event.direction == "up" else (0, event.bytes)
                self._lines[event.backend] = replace(
                    line, up_bytes=line.up_bytes + up, down_bytes=line.down_bytes + down, requests=line.requests + 1
                )
                if (problem := self._problems.get(f"backend:{event.backend}")) is not None:
                    self._answered[event.backend] = problem
                    self.back(event.backend)
                    self._bring_up_to_date()
            elif isinstance(event, Phase):
                self._state = replace(self._state, activity=Activity(event.name))
            elif isinstance(event, Progress):
                self._state = replace(self._state, activity=Activity(event.phase, event.done, event.total, event.unit))
            else:
                return
        self.tell()

    # problems

    @property
    def problems(self) -> tuple[Problem, ...]:
        with self._lock:
            return self._problems.all()

    def failed(self, verb: str, problem: Problem) -> None:
        """An operation ended with this problem: what it had before is no more. Their keys begin with its name."""
        with self._lock:
            if problem.key.startswith(f"{verb}:"):
                self._problems.only(f"{verb}:", [problem])
            else:
                self._problems.put(problem)

    def passed(self, verb: str) -> None:
        """An operation went well."""
        with self._lock:
            for prefix in (f"{verb}:", "open:", told.QUORUM, told.DISK):
                self._problems.only(prefix, ())

    def only(self, prefix: str, problems: Iterable[Problem]) -> None:
        with self._lock:
            self._problems.only(prefix, problems)

    def down(self, reasons: Mapping[str, str]) -> None:
        """The backends that the last operation did without."""
        reasons = {name: lasting(why).removeprefix(f"{name}: ") for name, why in reasons.items()}
        with self._lock:
            before, self._answered = self._answered, {}
            for name in before.keys() & reasons.keys():  # it answered a part of this operation alone: away as before
                self._problems.put(before[name])
            for name, line in self._lines.items():
                away = reasons.get(name, "")
                if line.away != away:
                    since_s = before[name].since_s if name in before else self._wall()
                    self._lines[name] = replace(line, away=away, since_s=since_s if away else None)
        folder, wall = str(self._directory), self._wall()
        self.only("backend:", (told.of_backend(name, why, wall, folder) for name, why in reasons.items()))

    @property
    def away(self) -> frozenset[str]:
        """The backends that do not answer, by what is told of them."""
        with self._lock:
            return self._problems.about("backend:")

    def broker(self, has_broker: bool, why: str) -> None:
        """Whether a broker tells of news now; `why` one is away that is set."""
        self.update(has_broker=has_broker)
        self.only("broker", (told.of_broker(why, self._wall()),) if why else ())

    def back(self, name: str) -> None:
        """A backend answers. One that moves data does so by that, until the operation says that it did without."""
        with self._lock:
            self._problems.drop(f"backend:{name}")
            line = self._lines.get(name)
            if line is not None and line.away:
                self._lines[name] = replace(line, away="", since_s=None)

    def pulled(self, report: PullReport) -> None:
        """What a pull could not bring."""
        wall, step = self._wall(), "Rename it on a device that can hold it."
        waiting = [one for one in report.unplaced if one.reason.startswith(NO_ROOM)]
        unplaced = [one for one in report.unplaced if not one.reason.startswith(NO_ROOM)][:UNPLACED_MAX]
        texts = ((p := os.fsdecode(one.path), f"{p}: {one.reason}") for one in unplaced)
        self.only("unplaced:", (Problem(f"unplaced:{p}", "unplaced", text, step, wall) for p, text in texts))
        step = f"{told.free_space(str(self._directory), _waiting(waiting))} What waits comes by itself then."
        self.only("room", [Problem("room", "disk", _waiting(waiting), step, wall)] if waiting else ())

    def conflicts(self, records: Iterable[Conflict]) -> None:
        """The conflicts whose copies are here."""
        top, found = os.fsencode(self._directory), []
        for one in list(records)[: told.PROBLEMS_MAX]:
            if not os.path.lexists(os.path.join(top, one.copy)):
                continue
            path, copy = os.fsdecode(one.path), os.fsdecode(one.copy)
            text = f"{path}: changed here and elsewhere; the other side is kept as {copy}"
            command = (
                f"metasync -C {quote(str(self._directory))} resolve {quote(path)}"  # another device named the file
            )
            step = f"Run: {command} (or use the page), and say which to keep."
            found.append(Problem(f"conflict:{copy}", "conflict", text, step, self._wall()))
        self.only("conflict:", found)


def _waiting(files: Sequence[Skipped]) -> str:
    """What is told of files that have no room here; "" of none."""
    if not files:
        return ""
    more = f"; so it is with {len(files) - 1:,} more" if len(files) > 1 else ""
    return f"{os.fsdecode(files[0].path)}: {files[0].reason}{more}"
