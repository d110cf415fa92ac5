"""What tests of the daemon share: a keeper that does what it is told and no more, folders, a listening daemon.

No test here waits for time to pass: it waits for what it needs to have happened, and gives up after a minute.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from metasync import daemon
from metasync.local.settings import Settings
from metasync.reports.service import Problem, WorkspaceState
from metasync.service.desk import Call, Desk
from metasync.service.registry import Registry
from metasync.service.supervisor import Beside, Keeping, Supervisor
from metasync.service.wire import protocol, sockets
from metasync.service.wire.server import Server
from metasync.workspace import Workspace

HUNG_S = 60.0


def wait_for(condition: Callable[[], Any], what: str = "it") -> Any:
    """What `condition` gives as soon as that is something."""
    step = threading.Event()
    for _ in range(int(HUNG_S / 0.005)):
        if found := condition():
            return found
        step.wait(0.005)
    raise AssertionError(f"{what} did not come")


def state(directory: Path | str = "/w/docs", doing: Any = "in step", **words: Any) -> WorkspaceState:
    return WorkspaceState(str(directory), Path(directory).name, doing, 1_000.0, **words)


def problem(key: str = "conflict:a", kind: Any = "conflict", since_s: float = 1_000.0, **words: Any) -> Problem:
    words = {"text": "a.txt has two sides", "next_step": "metasync conflicts", **words}
    return Problem(key=key, kind=kind, since_s=since_s, **words)


class FakeKeeper:
    """Says what it was asked for. `workspace` is what `call` hands out."""

    def __init__(self, directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> None:
        self.directory, self.settings, self.tell = directory, settings, tell
        self.published: Callable[[], None] = lambda: None
        self.workspace_id: bytes | None = None
        self.asked: list[Any] = []
        self.workspace: Any = None
        self.now = state(directory)
        self.is_started = False
        self.is_stopped = False
        self.hangs_in_stop: threading.Event | None = None

    def start(self) -> None:
        self.is_started = True
        self.tell(self.now)

    def become(self, doing: Any, **words: Any) -> None:
        self.now = replace(self.now, doing=doing, **words)
        self.tell(self.now)

    def state(self) -> WorkspaceState:
        return self.now

    def sync_now(self) -> None:
        self.asked.append("sync_now")

    def hint(self) -> None:
        self.asked.append("hint")

    def covered(self, by: str, is_so: bool, why: str = "") -> None:
        self.asked.append((by, is_so, why))

    def pause(self, until_s: float | None) -> None:
        self.asked.append(("pause", until_s))
        self.now = replace(self.now, doing="paused", paused_until_s=float("inf") if until_s is None else until_s)

    def resume(self) -> None:
        self.asked.append("resume")
        self.now = replace(self.now, doing="in step", paused_until_s=None)

    def answer(self, key: str, allow: bool) -> None:
        self.asked.append(("answer", key, allow))

    def call(self, do: Callable[[Any], Any]) -> Any:
        return do(self.workspace)

    def stop(self) -> None:
        if self.hangs_in_stop is not None:
            self.hangs_in_stop.wait(HUNG_S)
        self.is_stopped = True


class Fleet:
    """A supervisor on fake keepers. `fails`: what is raised when the next keepers of a folder are made, by its name."""

    def __init__(
        self, root: Path, beside: Callable[[Path], Sequence[Beside]] = lambda _: (), kind: type[FakeKeeper] = FakeKeeper
    ) -> None:
        self.root, self._kind = root, kind
        self.keepers: dict[str, FakeKeeper] = {}
        self.made: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.registry = Registry(root / "state")
        self.supervisor = Supervisor(self.registry, self._make, beside)
        self.stopped = threading.Event()
        self.desk = Desk(self.supervisor, self.stopped.set, lambda: "metasync_up 1\n")

    def _make(self, directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> Keeping:
        self.made.append(directory.name)
        if self.fails.get(directory.name):
            raise self.fails[directory.name].pop(0)
        made = self.keepers[directory.name] = self._kind(directory, settings, tell)
        return made

    def folder(self, name: str) -> Path:
        """A folder that looks like a workspace."""
        found = self.root / name
        (found / ".metasync").mkdir(parents=True, exist_ok=True)
        (found / ".metasync" / "state.db").touch()
        return found

    def keep(self, name: str) -> FakeKeeper:
        """A folder that is kept, and its keeper."""
        self.supervisor.add(self.folder(name))
        return self.keeper(name)

    def keeper(self, name: str) -> FakeKeeper:
        kept = self.supervisor.kept(self.root / name)
        wait_for(lambda: kept._keeper, f"the keeper of {name}")
        return self.keepers[name]


@contextmanager
def fleet(
    root: Path, beside: Callable[[Path], Sequence[Beside]] = lambda _: (), kind: type[FakeKeeper] = FakeKeeper
) -> Iterator[Fleet]:
    made = Fleet(root, beside, kind)
    try:
        yield made
    finally:
        made.supervisor.stop()


@contextmanager
def listening(made: Fleet, path: Path, log: Callable[[str], None] = lambda _: None) -> Iterator[Server]:
    server = Server(path, made.desk, Call, log)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def line_to(server: Server) -> Iterator[socket.socket]:
    line = sockets.connect(server.path, HUNG_S)
    assert line is not None
    try:
        yield line
    finally:
        line.close()


def ask(line: socket.socket, document: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request on a line where nothing else is said."""
    line.sendall(protocol.line(document))
    return heard(line)


def heard(line: socket.socket) -> dict[str, Any]:
    found = sockets.Lines(line, protocol.ANSWER_BYTES_MAX).next(HUNG_S)
    assert found is not None
    return protocol.document_of(found)


class WorkingKeeper(FakeKeeper):
    """A keeper that works when it is asked to, with a workspace that stays open, in a thread of its own."""

    def __init__(self, directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> None:
        super().__init__(directory, settings, tell)
        self._work: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._opened = threading.Event()
        self.called = 0

    def start(self) -> None:
        self._thread.start()
        self._opened.wait(HUNG_S)  # a test may take the folder's state away
        super().start()

    def call(self, do: Callable[[Any], Any]) -> Any:
        self.called += 1
        outcome: Future[Any] = Future()
        self._work.put((do, outcome))
        return outcome.result(HUNG_S)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(HUNG_S)
        super().stop()

    def _run(self) -> None:
        with Workspace.open(self.directory) as workspace:
            self._opened.set()
            while (item := self._work.get()) is not None:
                do, outcome = item
                try:
                    outcome.set_result(do(workspace))
                except BaseException as e:  # the caller's
                    outcome.set_exception(e)


def run_fake() -> None:
    """A daemon on fake keepers in this process: `python -c "import daemon_kit; daemon_kit.run_fake()"`."""
    sockets.LOOK_S = float(os.environ.get("LOOK_S", sockets.LOOK_S))  # type: ignore[misc]
    daemon.run(make=FakeKeeper if not os.environ.get("HANGS") else _Hanging)


class _Hanging(FakeKeeper):
    def stop(self) -> None:
        threading.Event().wait()
