"""Who tells the page how workspaces fare as it happens: the daemon, where one runs, or the page's own work.

Both give out `WorkspaceState`. Without a daemon nothing looks by itself: a state is what the last look or change of the
page came to, and stays until the next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from metasync.errors import MetaSyncError, WorkspaceError
from metasync.events import Event, Phase, Progress, Transferred
from metasync.local.state_keys import NO_ROOM
from metasync.reports.backends import Status
from metasync.reports.service import Activity, DaemonState, Doing, Line, Problem, WorkspaceState
from metasync.service import client
from metasync.service.client import Client
from metasync.service.problems import of_copies
from metasync.workspace import Workspace

Tell = Callable[[WorkspaceState], None]


class Source(Protocol):
    """Keeps workspaces in step, tells of them, and does what only their keeper can."""

    def directories(self) -> tuple[Path, ...]:
        """The workspaces that it keeps."""

    def start(self, tell: Tell) -> None:
        """Tells each state now, and each change of one from then on, from a thread of its own."""

    def sync_now(self, directory: Path) -> None:
        """Has it look, and push, at once."""

    def answer(self, directory: Path, key: str, *, allow: bool) -> None:
        """Answers a problem that asks."""

    def pause(self, directory: Path, seconds: float | None) -> None:
        """Has it rest, so long or until `resume`."""

    def resume(self, directory: Path) -> None:
        """Ends a pause."""

    def close(self) -> None:
        """Tells no more."""


AGAIN_S: Final = 5.0  # until a daemon that has ended is looked for again


class Daemon:
    """The daemon of this user as a source. One that ends, or is begun anew, is found again."""

    def __init__(self, line: Client) -> None:
        self._line: Client | None = line
        self._states = {w.directory: w for w in line.status().workspaces}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def found(cls) -> Daemon | None:
        """The daemon; None where none runs. `MetaSyncError`: one runs that does not answer, or not as it should."""
        line = client.connect()
        if line is None:
            return None
        try:
            return cls(line)
        except MetaSyncError:
            line.close()
            raise

    def directories(self) -> tuple[Path, ...]:
        return tuple(Path(d) for d in self._states)

    def start(self, tell: Tell) -> None:
        self._thread = threading.Thread(target=self._listen, args=(tell,), name="metasync-page-daemon")
        self._thread.start()

    def _listen(self, tell: Tell) -> None:
        while not self._ended.is_set():
            line = self._line
            if line is not None:
                with contextlib.suppress(MetaSyncError):
                    for event in line.events():
                        for state in event.workspaces if isinstance(event, DaemonState) else (event.state,):
                            if state is not None:
                                self._states[state.directory] = state
                                tell(state)
                line.close()
                self._gone(tell)
            if self._ended.wait(AGAIN_S):
                return
            with self._lock:
                self._line = None if self._ended.is_set() else _connected()

    def _gone(self, tell: Tell) -> None:
        """Tells that nobody keeps the workspaces in step now."""
        with self._lock:
            self._line = None
        if not self._ended.is_set():
            for state in tuple(self._states.values()):
                why = "the daemon has ended: `metasync daemon start` begins it anew"
                tell(replace(state, doing="waiting", why=why, activity=None))

    def sync_now(self, directory: Path) -> None:
        with _asked() as line:
            line.sync_now(directory)

    def answer(self, directory: Path, key: str, *, allow: bool) -> None:
        with _asked() as line:
            line.answer(directory, key, allow=allow)

    def pause(self, directory: Path, seconds: float | None) -> None:
        with _asked() as line:
            line.pause(directory, seconds)

    def resume(self, directory: Path) -> None:
        with _asked() as line:
            line.resume(directory)

    def close(self) -> None:
        self._ended.set()
        with self._lock:
            if self._line is not None:
                self._line.close()
        if self._thread is not None:
            self._thread.join()


def _connected() -> Client | None:
    try:
        return client.connect()
    except MetaSyncError:
        return None


@contextlib.contextmanager
def _asked() -> Iterator[Client]:
    """A line for one request: the other one listens."""
    with client.connected() as line:
        if line is None:
            raise WorkspaceError("the daemon has ended", next_step="`metasync daemon start` begins it anew.")
        yield line


def as_kept(w: Workspace, state: WorkspaceState) -> Status:
    """How a workspace fares, by what its keeper told and what is noted here: no backend is asked, no file looked at."""
    from metasync.maintenance import status

    with w._session("status") as s:
        found = status.known(s, {line.backend: line.away for line in state.lines if line.away})
    lost = next((p for p in state.problems if p.kind == "quorum"), None)
    return found if lost is None else replace(found, newest=None, problem=lost.text)


DOING: Final[dict[str, Doing]] = {"push": "pushing", "pull": "pulling", "sync": "pulling", "look": "looking"}


class OwnWork:
    """The state of one workspace that nobody keeps in step, from what the page does there. For several threads."""

    def __init__(self, directory: Path, name: str, tell: Tell, clock: Callable[[], float] = time.time) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._state = WorkspaceState(str(directory), name, "starting", clock(), "no look yet")

    @property
    def state(self) -> WorkspaceState:
        return self._state

    def began(self, what: str) -> None:
        """A change begins, or a look."""
        doing: Doing = DOING.get(what, "waiting")
        self._change(doing=doing, since_s=self._clock(), why="" if what in DOING else what, activity=Activity(what))

    def ended(self) -> None:
        """It ended. How the workspace fares is told by the next look."""
        self._change(activity=None, doing="waiting", why="to be looked at again", since_s=self._clock())

    def looked(self, s: Status) -> None:
        """What a look came to."""
        now = self._clock()
        doing, why = outcome(s)
        self._change(
            name=s.name,
            doing=doing,
            why=why,
            since_s=self._state.since_s if self._state.doing == doing else now,
            version=s.version,
            changed=len(s.changes),
            looked_s=now,
            activity=None,
            problems=problems(s, self._state.problems, now),
        )

    def heard(self, event: Event) -> None:
        """What the library tells of a change that is under way."""
        with self._lock:
            activity = self._state.activity or Activity("")
            match event:
                case Phase(name):
                    activity = replace(activity, phase=name, done=0, total=None, unit="")
                case Progress(phase, done, total, unit):
                    activity = replace(activity, phase=phase, done=done, total=total, unit=unit)
                case Transferred(backend, direction, size):
                    line = self._lines.get(backend, Line(backend))
                    up, down = (size, 0) if direction == "up" else (0, size)
                    self._lines[backend] = replace(
                        line, up_bytes=line.up_bytes + up, down_bytes=line.down_bytes + down, requests=line.requests + 1
                    )
                    activity = replace(activity, up_bytes=activity.up_bytes + up, down_bytes=activity.down_bytes + down)
                case _:
                    return
            lines = tuple(self._lines[name] for name in sorted(self._lines))
            self._state = replace(self._state, activity=activity, lines=lines)
            state = self._state
        self._tell(state)

    def _change(self, **fields: object) -> None:
        with self._lock:
            self._state = replace(self._state, **fields)  # type: ignore[arg-type]
            state = self._state
        self._tell(state)


def outcome(s: Status) -> tuple[Doing, str]:
    """What a workspace is at that nobody keeps in step, and why."""
    if s.paused:
        return "paused", s.paused
    if s.newest is None:
        return "stuck", s.problem
    if s.newest > s.version:
        return "waiting", "there is a newer version"
    if len(s.changes):
        return "waiting", "changes here are not pushed yet"
    if any(one.reason.startswith(NO_ROOM) for one in s.unplaced):
        return "waiting", "files wait for room on this disk"
    return "in step", ""


def problems(s: Status, before: tuple[Problem, ...], now: float) -> tuple[Problem, ...]:
    """What the user is to know of; `since` as it was first noticed by this page."""
    since = {p.key: p.since_s for p in before}

    def problem(key: str, kind: object, text: str, step: str, *, blocks: bool = False) -> Problem:
        return Problem(key, kind, text, step, since.get(key, now), "", blocks)  # type: ignore[arg-type]

    out = []
    if s.newest is None:
        step = s.error.next_step if s.error is not None else ""
        out.append(problem("quorum", "quorum", s.problem, step, blocks=True))
    if s.conflicts:
        n = len(s.conflicts)
        text = "One file has a conflict." if n == 1 else f"{n:,} files have a conflict."
        out.append(problem("conflicts", "conflict", text, "Compare both sides, and choose one."))
    for b in s.backends:
        if not b.holds:
            out.append(problem(f"backend {b.name}", "backend", f"{b.name}: {b.state}", "See Storage."))
        elif b.warning:
            out.append(problem(f"space {b.name}", "space", b.warning, "See Storage."))
    out += [of_copies(c, None, now) for c in s.bad_copies]
    for e in s.evidence:
        out.append(problem(f"fork {e.backend}", "fork", f"{e.backend} is not to be trusted: {e.what}", "See Storage."))
    out += [problem(f"folder {n}", "folder", text, "") for n, text in enumerate(s.warnings)]
    if s.unplaced:
        text = f"{len(s.unplaced):,} agreed paths are not on this disk."
        out.append(problem("unplaced", "unplaced", text, "`metasync status` names them."))
    return tuple(out)
