"""The daemon's side of its socket: a thread for each caller, as many as there may be, none of whom can hold up another.

The socket, its folder and the system's word on who is at the other end keep other users away. Who is let in is the
user, but may be a program that hangs, sends nonsense or never reads: it has so long for a line, and so much room.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from metasync.errors import FormatError, MetaSyncError, UsageError, WorkspaceError
from metasync.events import Event, Progress, Transferred, Travelled
from metasync.reports.service import DaemonState, WorkspaceState
from metasync.service.wire import protocol, sockets, values

CLIENTS_MAX: Final = 64  # callers at once: a page has two, a command one
LINE_S: Final = 60.0  # for the next request to come: a caller that hangs gives its place back
WATCH_S: Final = 0.25  # between looks at whether a caller that waits is still there
EVENTS_MAX: Final = 512  # on their way to one caller
SLOTS_S: Final = 0.2  # to wait after an error of `accept`, such as no more descriptors: no busy loop


class Calls(Protocol):
    """A transfer that may be given up on: `desk.Call`. `travelled`: what it moved, once it has run."""

    travelled: Travelled | None

    def cancel(self) -> None: ...


class Serves(Protocol):
    """What answers: `desk.Desk`."""

    def state(self) -> DaemonState: ...
    def subscribe(self, hear: Callable[[str, WorkspaceState | None], None]) -> Callable[[], None]: ...
    def do(self, request: protocol.Request, call: Any) -> Any: ...


class Server:
    """Listens at `path` until `close`, and anew where its socket was taken away. The caller holds the daemon's lock.

    `new_call(on_event)` makes what a transfer is given up by; `log` is told, in words, of whom was turned away.
    `is_alone` is asked before it looks at its socket: False: that place is another daemon's now.
    """

    def __init__(
        self,
        path: Path,
        desk: Serves,
        new_call: Callable[[Callable[[Event], None]], Calls],
        log: Callable[[str], None] = lambda _: None,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self.path = path
        self._desk, self._new_call, self._log, self._is_alone = desk, new_call, log, is_alone
        self._listener, self._place = self._listen()
        self._trouble = ""  # why it cannot listen anew, as it was last told
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._lines: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="socket", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends all conversations and takes the socket away, unless another one stands there. May be repeated."""
        self._ends.set()
        with self._lock:
            listener, lines = self._listener, tuple(self._lines)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        if sockets.place_of(self.path) == self._place:
            with contextlib.suppress(OSError):
                self.path.unlink()
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> tuple[socket.socket, tuple[int, int] | None]:
        listener = sockets.listen(self.path)
        listener.settimeout(sockets.LOOK_S)
        return listener, sockets.place_of(self.path)

    def look(self) -> None:
        """Listens anew if its socket is gone. In its own thread, now and then."""
        try:
            if not self._is_alone() or sockets.place_of(self.path) == self._place:
                return
            listener, place = self._listen()
        except (WorkspaceError, OSError) as e:  # its folder went with a login session, and cannot be made here
            text = e.message if isinstance(e, WorkspaceError) else str(e)
            if text != self._trouble:
                self._log(f"the socket was taken away, and cannot be made anew: {text}")
            self._trouble = text
            return
        with self._lock:
            if not self._ends.is_set():
                (before, self._listener), self._place, self._trouble = (self._listener, listener), place, ""
                listener = before
        listener.close()
        self._log("the socket was taken away: it listens anew")

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                line, _ = self._listener.accept()
            except TimeoutError:
                self.look()
                continue
            except OSError:
                self._ends.wait(SLOTS_S)
                continue
            if not self._let_in(line):
                line.close()

    def _let_in(self, line: socket.socket) -> bool:
        """Begins a conversation; False: with this one there is none."""
        if (uid := sockets.peer_of(line)) != os.getuid():
            self._log(f"a process of user {uid} was turned away")
            return False
        with self._lock:
            if len(self._lines) >= CLIENTS_MAX:
                self._log(f"{CLIENTS_MAX} callers at once: another one was turned away")
                return False
            self._lines.add(line)
        try:
            threading.Thread(target=self._converse, args=(line,), name="caller", daemon=True).start()
        except RuntimeError:  # no more threads
            with self._lock:
                self._lines.discard(line)
            return False
        return True

    def _converse(self, line: socket.socket) -> None:
        talk = _Talk(line)
        try:
            lines = sockets.Lines(line, protocol.REQUEST_BYTES_MAX)
            while not self._ends.is_set() and (data := lines.next(LINE_S)) is not None:
                try:
                    request = protocol.read_request(data)
                except FormatError as e:
                    talk.send(protocol.refusal(0, UsageError(e.message)))
                    continue
                self._serve(request, talk)
        except FormatError as e:  # too long: what follows cannot be told apart from its rest
            with contextlib.suppress(OSError):
                talk.send(protocol.refusal(0, UsageError(e.message)))
        except (OSError, TimeoutError):
            pass  # it is gone, or hangs
        finally:
            with self._lock:
                self._lines.discard(line)
            line.close()

    def _serve(self, request: protocol.Request, talk: _Talk) -> None:
        """Answers one request. What it is about runs in a thread of its own, so that a caller that left is noticed."""
        if request.do == "events":
            self._stream(talk)
            return
        told = Told()
        call = self._new_call(told.hear)
        outcome: list[bytes] = []

        def work() -> None:
            try:
                done = self._desk.do(request, call)
                outcome.append(protocol.answer(request.id, done, call.travelled))
            except MetaSyncError as e:
                outcome.append(protocol.refusal(request.id, e, call.travelled))
            except Exception as e:  # noqa: BLE001 - whatever it is, the caller is told, and the daemon goes on
                self._log(f"{request.do} failed: {e!r}")
                outcome.append(protocol.refusal(request.id, e, call.travelled))
            finally:
                told.end()

        try:
            threading.Thread(target=work, name=f"request {request.do}", daemon=True).start()
            while not (is_over := told.wait(WATCH_S)):
                if self._ends.is_set():
                    stopped = WorkspaceError("the daemon was stopped", next_step="Run again.")
                    outcome.insert(0, protocol.refusal(request.id, stopped))
                    break
                for event in told.take():
                    talk.send(protocol.line({"id": request.id, "event": protocol.told(event)}))
                if sockets.is_gone(talk.line):
                    raise BrokenPipeError
            for event in told.take() if is_over else ():
                talk.send(protocol.line({"id": request.id, "event": protocol.told(event)}))
            talk.send(outcome[0])
        finally:
            call.cancel()  # nothing happens where it is over

    def _stream(self, talk: _Talk) -> None:
        """Tells the state of all workspaces, and each change of one, until the other end closes.

        Of a workspace that changes faster than it is read, only the last state is kept.
        """
        changed = threading.Condition()
        waiting: dict[str, WorkspaceState | None] = {}

        def hear(directory: str, state: WorkspaceState | None) -> None:
            with changed:
                waiting[directory] = state
                changed.notify()

        end = self._desk.subscribe(hear)
        try:
            talk.send(protocol.line({"event": {"daemon": values.encode(self._desk.state())}}))
            while not self._ends.is_set() and not sockets.is_gone(talk.line):
                with changed:
                    changed.wait_for(lambda: waiting, 4 * WATCH_S)
                    now = dict(waiting)
                    waiting.clear()
                for directory, state in now.items():
                    event = {"gone": directory} if state is None else {"workspace": values.encode(state)}
                    talk.send(protocol.line({"event": event}))
        finally:
            end()


class Told:
    """Events on their way to a caller: what is added up or replaced meanwhile takes no room. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._moved: dict[tuple[str, str, bool], Transferred] = {}
        self._is_over = False

    def hear(self, event: Event) -> None:
        """Takes an event; never waits for the caller."""
        with self._changed:
            if isinstance(event, Transferred):
                key = (event.backend, event.direction, event.pack)
                before = self._moved.get(key)
                if before is not None:
                    size, seconds = before.bytes + event.bytes, before.seconds + event.seconds
                    event = replace(event, bytes=size, seconds=seconds)
                self._moved[key] = event
            elif isinstance(event, Progress) and self._events and _is_same(self._events[-1], event):
                self._events[-1] = event
            elif len(self._events) < EVENTS_MAX:
                self._events.append(event)

    def take(self) -> list[Event]:
        """What came since it was last asked."""
        with self._changed:
            found = [*self._events, *self._moved.values()]
            self._events.clear()
            self._moved.clear()
        return found

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Whether it is over, within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, seconds)


def _is_same(one: Event, other: Progress) -> bool:
    return isinstance(one, Progress) and one.phase == other.phase


class _Talk:
    """One conversation's way back."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def send(self, data: bytes) -> None:
        """`OSError` when the other end is gone or does not read."""
        self.line.settimeout(sockets.SEND_S)
        self.line.sendall(data)
