"""The daemon: keeps the user's workspaces in step, in one process for all of them.

    run      in this process, until it is told to stop
    start    in a process of its own; returns when that answers
    stop     ends it; returns when it has ended

One runs for each user of a machine: it holds a lock for as long as it lives. A daemon that was killed leaves nothing
that stops the next one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from metasync.errors import UsageError, WorkspaceError
from metasync.local import memory
from metasync.local.settings import Settings
from metasync.reports.service import DaemonState, WorkspaceState
from metasync.service import client, install
from metasync.service.brokers.push_channel import PushChannel
from metasync.service.desk import Call, Desk
from metasync.service.registry import Registry, daemon_folder
from metasync.service.supervisor import Beside, Keeping, Make, Supervisor
from metasync.service.telling import metrics
from metasync.service.telling.logs import Log, log_path
from metasync.service.telling.notices import Notices
from metasync.service.telling.story import Entry, happened
from metasync.service.wire import alone, sockets
from metasync.service.wire.alone import Alone
from metasync.service.wire.server import Server

OUTPUT: Final = "daemon.out"  # what a daemon of its own process prints before it has a log
START_S: Final = 20.0  # for it to answer: a slow machine loads Python for a few seconds
STOP_S: Final = 10.0
GIVE_BACK_S: Final = 60.0  # between looks whether work has left memory free
WORKED_S: Final = 0.1  # of CPU; an hour of rest takes less
OPEN_MAX: Final = 10_240  # files at once, more than macOS gives to nobody: a workspace on three folders takes 15
STEP_S: Final = 0.05  # between looks whether it answers, or has ended
_children: Final[list[subprocess.Popen[bytes]]] = []  # daemons that this process started: they are not waited for
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def make_keeper(directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> Keeping:
    from metasync.service.keeper import Keeper  # with the watcher and all that a push needs: `stop` is to be quick

    return Keeper(directory, settings=settings, tell=tell)


def run(add: Sequence[Path] = (), *, make: Make = make_keeper, also: Callable[[Entry], None] = lambda _: None) -> None:
    """Keeps what is registered in step, and the workspaces at `add`, until it is stopped by request or signal.

    `also` is told each entry of the log. For the main thread. `WorkspaceError`: another daemon runs; there is no place
    for its socket.
    """
    path = place()
    with Alone(path.parent) as lock, contextlib.closing(Log(log_path(), also)) as log:
        ends = _End()

        def is_alone() -> bool:
            """Ends this daemon where another one took over: the folder of both was removed, and made anew by it."""
            if not (is_so := lock.is_so()):
                log.say("socket", level="warning", text="another daemon of this user runs: this one ends")
                ends.set()
            return is_so

        def say(text: str) -> None:
            log.say("socket", text=text)

        memory.keep_little()
        _open_many()
        supervisor = Supervisor(Registry(), make, _beside(log, lambda: supervisor.state()))
        supervisor.subscribe(_Story(log).hear)
        desk = Desk(supervisor, ends.set, lambda: metrics.text(supervisor.state))
        with (
            ends.by_signals(),
            contextlib.closing(Server(path, desk, Call, say, is_alone)) as s,
        ):
            log.say("started", pid=os.getpid())
            supervisor.start()
            for directory in add:
                supervisor.add(directory)
            s.start()
            _rest(ends)
            log.say("stopping")
            if not supervisor.stop():
                log.say("stopped", level="warning", text="a workspace did not end in time; it is as after a kill")
                _leave(s, log)
        log.say("stopped")


def _open_many() -> None:
    """Lets this process have as many files open as its user may allow it, up to OPEN_MAX. Never fewer than it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a system that sets less than it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _rest(ends: _End) -> None:
    """Waits for the end. What work has left free goes back to the system meanwhile."""
    used_s = 0.0
    while not ends.wait(GIVE_BACK_S):
        if time.process_time() - used_s >= WORKED_S:
            memory.give_back()
            used_s = time.process_time()


def _leave(server: Server, log: Log) -> None:
    """Ends the process although a thread hangs, in a mount that does not answer: two seconds are promised."""
    server.close()
    log.close()
    os._exit(0)


def _beside(log: Log, state: Callable[[], DaemonState]) -> Callable[[Path], Sequence[Beside]]:
    pages = metrics.Pages(state)
    folder = daemon_folder()

    def attach(directory: Path) -> Sequence[Beside]:
        return (Notices(directory, folder, log.say), PushChannel(log.say), metrics.PagesBeside(pages))

    return attach


class _Story:
    """Writes what happens to the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._before: dict[str, WorkspaceState] = {}

    def hear(self, directory: str, state: WorkspaceState | None) -> None:
        with self._lock:
            before = self._before.pop(directory, None)
            if state is not None:
                self._before[directory] = state
            entries = [] if state is None else happened(before, state)
        for entry in entries:
            self._log.write(entry)


def place() -> Path:
    """Where its socket is. `UsageError` where none is to run."""
    path = sockets.socket_path()
    if path is None:
        raise UsageError(f"{sockets.SWITCH}=off: no daemon is to run", next_step=f"Unset {sockets.SWITCH}.")
    return path


class _End:
    """That the daemon is to end, told by any thread, or by a signal.

    A signal may reach another thread than the one that waits: then its handler runs only when that one goes on. So the
    interpreter itself writes to the pipe. An event would not do: a handler may interrupt whoever holds its lock.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def set(self) -> None:
        with contextlib.suppress(OSError):  # it is full, or closed: it was told
            os.write(self._write, b"x")

    def wait(self, longest_s: float) -> bool:
        """Waits until it was told, or for so long. -> whether it was told."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(longest_s * 1000))

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """The first signal ends in order, the second at once. For the main thread."""
        came: list[int] = []

        def end(number: int, _frame: FrameType | None) -> None:
            if came:
                os._exit(128 + number)
            came.append(number)

        before = {number: signal.signal(number, end) for number in SIGNALS}
        woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)


def start(add: Path | None = None) -> DaemonState:
    """Starts a daemon unless one runs, and has it keep the workspace at `add` too. Returns when it answers.

    One that runs and lost its socket makes it anew soon. Where it is installed as a service, that is started.
    `WorkspaceError`: it ended at once, with what it said; it does not answer.
    """
    path = place()
    daemon = client.connect()
    if daemon is None:
        if alone.holder(path.parent) is not None:
            daemon = _answering(lambda: None)
        elif install.is_installed():
            install.start()
            daemon = _answering(lambda: None)
        else:
            daemon = _spawn()
    with daemon:
        if add is not None:
            daemon.add(add)
        return daemon.status()


def _spawn() -> client.Client:
    """A daemon in a session of its own: it outlives the terminal, and its parent is the system's first process."""
    folder = daemon_folder()
    sockets.private_folder(folder)
    output = os.open(folder / OUTPUT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        child = subprocess.Popen(  # noqa: S603 - this very program
            install.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
        )

        _children.append(child)

        def look() -> None:
            if child.poll() is not None:
                said = os.pread(output, 4096, 0).decode("utf-8", "replace").strip()
                raise WorkspaceError(
                    f"the daemon ended at once: {said or f'with code {child.returncode}'}",
                    next_step="See what it says: metasync daemon run.",
                )

        return _answering(look)
    finally:
        os.close(output)


def _answering(look: Callable[[], None]) -> client.Client:
    """A line to the daemon, as soon as it answers. `look` raises when that is not to be waited for."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        if (daemon := client.connect()) is not None:
            return daemon
        look()
        time.sleep(STEP_S)
    pid = alone.holder(place().parent)
    raise WorkspaceError(
        f"the daemon does not answer after {START_S:.0f} s",
        next_step=f"Look: metasync daemon log.{'' if pid is None else ' ' + alone.to_end(pid)}",
    )


def stop() -> bool:
    """Ends the daemon; returns when it has ended. False: none ran.

    `WorkspaceError`: it has not within STOP_S; one runs that cannot be reached.
    """
    path = place()
    daemon = client.connect()
    if daemon is None:
        alone.check_reachable(path)
        return False
    with daemon:
        pid = daemon.status().pid
        daemon.stop()
    ends = time.monotonic() + STOP_S
    while time.monotonic() < ends:
        with contextlib.suppress(WorkspaceError), Alone(path.parent):
            return True
        time.sleep(STEP_S)
    raise WorkspaceError(f"the daemon has not ended after {STOP_S:.0f} s", next_step=f"End it: kill -9 {pid}")
