"""The daemon, as commands and the page see it.

    with client.connected() as daemon:       None where no daemon runs
        if daemon is not None:
            daemon.status()

Nothing here starts a daemon, or decides anything: a command that finds none works by itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from metasync import __version__
from metasync.errors import FormatError, WorkspaceError
from metasync.events import Event, ignore
from metasync.reports.service import DaemonState, WorkspaceState
from metasync.runtime.travelled import COUNTER
from metasync.service.wire import alone, protocol, sockets, values

if TYPE_CHECKING:
    from metasync.reports.sync import PullReport, PushReport

T = TypeVar("T")
CONNECT_S: Final = 5.0  # it is on this machine; one that is so busy is as good as none
ANSWER_S: Final = 30.0  # for what takes no work
_GONE = WorkspaceError("the daemon ended before it answered", next_step="Run again; nothing that was pushed is lost.")


def _silent() -> WorkspaceError:
    """It is stopped by a signal, or hangs: how to do without it."""
    path = sockets.socket_path()
    pid = None if path is None else alone.holder(path.parent)
    return WorkspaceError(
        f"the daemon{f' (process {pid})' if pid else ''} does not answer",
        next_step=f"To work without it, set {sockets.SWITCH}=off. {alone.to_end(pid)}",
    )


@dataclass(frozen=True, slots=True)
class Changed:
    """A workspace's new state; None: it is not kept any more."""

    directory: str
    state: WorkspaceState | None


class Client:
    """One line to the daemon, for one thread. What methods raise is what the same command raises by itself."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lines = sockets.Lines(line, protocol.ANSWER_BYTES_MAX)
        self._number = 0

    def status(self) -> DaemonState:
        return self._ask(DaemonState, "status")

    def workspace(self, directory: str | os.PathLike[str]) -> WorkspaceState | None:
        """The state of the workspace that a folder lies in; None if the daemon does not keep it."""
        here = real(directory)
        above = {str(here), *map(str, here.parents)}
        return next((w for w in self.status().workspaces if w.directory in above), None)

    def push(self, directory: Path, *, on_event: Callable[[Event], None] = ignore, **words: Any) -> PushReport:
        """As `Workspace.push`, by the daemon; copies that it leaves open are waited for."""
        from metasync.reports.sync import PushReport

        return self._transfer(PushReport, "push", directory, on_event, words)

    def pull(self, directory: Path, *, on_event: Callable[[Event], None] = ignore, **words: Any) -> PullReport:
        from metasync.reports.sync import PullReport

        return self._transfer(PullReport, "pull", directory, on_event, words)

    def sync(
        self, directory: Path, *, on_event: Callable[[Event], None] = ignore, **words: Any
    ) -> tuple[PullReport, PushReport]:
        from metasync.reports.sync import PullReport, PushReport

        told = self._ask_for("sync", self._words(directory, words), None, on_event)
        if not isinstance(told, dict):
            raise FormatError("an answer that is no object")
        return values.decode(PullReport, told.get("pull")), values.decode(PushReport, told.get("push"))

    def sync_now(self, directory: Path) -> WorkspaceState:
        """Has it look, push and pull at once."""
        return self._ask(WorkspaceState, "sync_now", directory=str(real(directory)))

    def pause(self, directory: Path | None = None, seconds: float | None = None) -> DaemonState:
        """Has one workspace rest, or all; so long, or until `resume`."""
        return self._ask(DaemonState, "pause", directory=_text(directory), seconds=seconds)

    def resume(self, directory: Path | None = None) -> DaemonState:
        return self._ask(DaemonState, "resume", directory=_text(directory))

    def answer(self, directory: Path, key: str, *, allow: bool) -> WorkspaceState:
        """Answers a problem that asks, by its key."""
        return self._ask(WorkspaceState, "answer", directory=str(real(directory)), key=key, allow=allow)

    def add(self, directory: Path) -> WorkspaceState:
        return self._ask(WorkspaceState, "add", directory=str(real(directory)))

    def remove(self, directory: Path) -> None:
        self._ask_for("remove", {"directory": str(real(directory))}, ANSWER_S)

    def stop(self) -> None:
        """Has it end; returns when it has been told, or has ended before it could answer."""
        self._send("stop", {})
        self._next(ANSWER_S)

    def metrics(self) -> str:
        """Its figures, in the text format of Prometheus."""
        told = self._ask_for("metrics", {}, ANSWER_S)
        return str(told.get("text", "")) if isinstance(told, dict) else ""

    def events(self) -> Iterator[DaemonState | Changed]:
        """The state of all, then each change, until the daemon ends. `close` from another thread ends it too."""
        self._send("events", {})
        while (found := self._next(None)) is not None:
            event = found.get("event")
            if not isinstance(event, dict):
                self._raise(found)
            elif "daemon" in event:
                yield values.decode(DaemonState, event["daemon"])
            elif "workspace" in event:
                state = values.decode(WorkspaceState, event["workspace"])
                yield Changed(state.directory, state)
            elif isinstance(event.get("gone"), str):
                yield Changed(event["gone"], None)

    def close(self) -> None:
        """May be repeated, and from any thread."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transfer(
        self, kind: type[T], do: str, directory: Path, on_event: Callable[[Event], None], words: Mapping[str, Any]
    ) -> T:
        return values.decode(kind, self._ask_for(do, self._words(directory, words), None, on_event))

    def _words(self, directory: Path, words: Mapping[str, Any]) -> dict[str, Any]:
        return {"directory": str(real(directory)), "version": __version__, **words}

    def _ask(self, kind: type[T], do: str, **args: Any) -> T:
        return values.decode(kind, self._ask_for(do, args, ANSWER_S))

    def _ask_for(
        self, do: str, args: Mapping[str, Any], within_s: float | None, on_event: Callable[[Event], None] = ignore
    ) -> Any:
        self._send(do, args)
        while (found := self._next(within_s)) is not None:
            COUNTER.add(protocol.travelled_of(found))
            if "ok" in found:
                return found["ok"]
            if "event" in found:
                if (event := protocol.event_of(found["event"])) is not None:
                    on_event(event)
                continue
            self._raise(found)
        raise _GONE

    def _send(self, do: str, args: Mapping[str, Any]) -> None:
        self._number += 1
        try:
            self._line.settimeout(sockets.SEND_S)
            self._line.sendall(protocol.request(self._number, do, args))
        except OSError as e:
            raise _GONE from e

    def _next(self, within_s: float | None) -> dict[str, Any] | None:
        try:
            data = self._lines.next(within_s)
        except TimeoutError as e:
            raise _silent() from e
        except (OSError, ValueError):  # closed, here or there
            return None
        return None if data is None else protocol.document_of(data)

    def _raise(self, found: Mapping[str, Any]) -> None:
        raise protocol.error_of(found.get("error"))


def connect() -> Client | None:
    """A line to the daemon of this user; None where none runs. `WorkspaceError` if somebody else listens there."""
    path = sockets.socket_path()
    line = None if path is None else sockets.connect(path, CONNECT_S)
    return None if line is None else Client(line)


@contextlib.contextmanager
def connected() -> Iterator[Client | None]:
    """The same, closed at the end."""
    found = connect()
    if found is None:
        yield None
        return
    with found:
        yield found


def real(directory: str | os.PathLike[str]) -> Path:
    """The folder by the name that the daemon has for it."""
    return Path(os.path.realpath(directory))


def _text(directory: Path | None) -> str | None:
    return None if directory is None else str(real(directory))
