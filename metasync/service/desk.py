"""What the daemon does for each request on its socket."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metasync import __version__
from metasync.errors import CancelledError, UsageError
from metasync.events import Event, Listener, Notice, ignore
from metasync.local.lock import PutOff
from metasync.reports.service import DaemonState, WorkspaceState
from metasync.service.supervisor import Hear, Supervisor
from metasync.service.wire.protocol import Request, UnservedError

if TYPE_CHECKING:
    from metasync.events import Travelled
    from metasync.reports.sync import PullReport, PushReport
    from metasync.workspace import Workspace

TRANSFERS: Final = frozenset({"push", "pull", "sync"})  # requests that take long, and tell how far they are
SAY_S: Final = 1.0  # that one waits before it is told for what


class Call:
    """A transfer that somebody asked for, and may give up on."""

    def __init__(self, on_event: Listener = ignore) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._workspace: Workspace | None = None  # while its operation is under way
        self._has_begun = False
        self.travelled: Travelled | None = None  # what the workspace's lines moved while it ran

    def cancel(self) -> None:
        """Ends it soon, with `CancelledError`; at once, if it has not begun. What the keeper does else goes on."""
        with self._lock:
            self._is_cancelled = True
            if self._workspace is not None:
                self._workspace.cancel()

    @contextlib.contextmanager
    def waiting(self, why: Callable[[], str]) -> Iterator[None]:
        """Tells why it waits, if it does not begin soon. From a thread of its own."""

        def say() -> None:
            with self._lock:
                is_over = self._has_begun or self._is_cancelled
            if not is_over:
                self._on_event(Notice(why()))

        timer = threading.Timer(SAY_S, say)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def run(self, do: Callable[[Workspace, Listener], Any], workspace: Workspace) -> Any:
        """Runs it, in the keeper's thread."""
        with self._lock:
            if self._is_cancelled:
                raise CancelledError("cancelled before it began; nothing was changed")
            self._workspace, self._has_begun = workspace, True
        before, moved = workspace.on_event, workspace.travelled

        def both(event: Event) -> None:
            before(event)
            self._on_event(event)

        workspace.on_event = both
        try:
            return do(workspace, both)
        except PutOff:
            with self._lock:
                self._has_begun = False
            raise
        finally:
            with self._lock:
                self._workspace = None
            workspace.on_event = before
            self.travelled = workspace.travelled.since(moved)


class Desk:
    """Does what is asked. `stop` ends the daemon, `metrics` gives its figures; both are the process's own."""

    def __init__(self, supervisor: Supervisor, stop: Callable[[], None], metrics: Callable[[], str]) -> None:
        self._supervisor = supervisor
        self._stop, self._metrics = stop, metrics

    def state(self) -> DaemonState:
        return self._supervisor.state()

    def subscribe(self, hear: Hear) -> Callable[[], None]:
        return self._supervisor.subscribe(hear)

    def do(self, request: Request, call: Call) -> Any:
        """The value that answers a request, but for `events`. All that a command may raise."""
        args = request.args
        if request.do in TRANSFERS:
            return self._transfer(request, call)
        if request.do == "status":
            return self.state()
        if request.do == "metrics":
            return {"text": self._metrics()}
        if request.do == "stop":
            self._stop()
            return {}
        if request.do == "add":
            return self._supervisor.add(Path(args["directory"]))
        if request.do == "remove":
            self._supervisor.remove(Path(args["directory"]))
            return {}
        if request.do in ("pause", "resume"):
            return self._pause(args["directory"], args.get("seconds"), resume=request.do == "resume")
        kept = self._supervisor.kept(args["directory"])
        if request.do == "answer":
            kept.keeper.answer(args["key"], args["allow"])
        else:
            kept.keeper.sync_now()
        return kept.state()

    def _pause(self, directory: str | None, seconds: float | None, *, resume: bool) -> DaemonState:
        if seconds is not None and not seconds > 0:
            raise UsageError("a pause lasts longer than no time")
        all_kept = self._supervisor.all() if directory is None else (self._supervisor.kept(directory),)
        for kept in all_kept:
            if resume:
                kept.keeper.resume()
            else:
                kept.keeper.pause(None if seconds is None else time.time() + seconds)
        return self.state()

    def _transfer(self, request: Request, call: Call) -> Any:
        args = request.args
        if args["version"] != __version__:
            raise UnservedError(
                f"the daemon runs version {__version__}, this command {args['version']}",
                next_step="Start it anew: metasync daemon stop, metasync daemon start.",
            )
        keeper = self._supervisor.kept(args["directory"]).keeper
        do = {"push": _push, "pull": _pull, "sync": _sync}[request.do]
        with call.waiting(lambda: _what_is_waited_for(keeper.state())):
            done = keeper.call(partial(call.run, partial(do, args)))
        return {"pull": done[0], "push": done[1]} if request.do == "sync" else done


def _what_is_waited_for(state: WorkspaceState) -> str:
    at = f", which is {state.doing}" if state.doing in ("pushing", "pulling", "looking", "starting") else ""
    return f"waiting for the daemon{at}{f' ({state.activity.phase})' if at and state.activity is not None else ''}"


def _push(args: Any, w: Workspace, tell: Listener) -> PushReport:
    made = w.push(args["message"], dry_run=args["dry_run"], force=args["force"], durability=args["durability"])
    return _with_copies(w, tell, made)


def _pull(args: Any, w: Workspace, _tell: Listener) -> PullReport:
    return w.pull(dry_run=args["dry_run"], force=args["force"])


def _sync(args: Any, w: Workspace, tell: Listener) -> tuple[PullReport, PushReport]:
    words: dict[str, Any] = {key: args[key] for key in ("dry_run", "force", "durability")}
    pulled, pushed = w.sync(args["message"], **words)
    return pulled, _with_copies(w, tell, pushed)  # by their types the keeper tells what they did


def _with_copies(w: Workspace, tell: Listener, made: PushReport) -> PushReport:
    """Waits for the copies that a push left open, as the command does by itself."""
    if not made.trailing or not w.copying:
        return made
    tell(Notice("finishing copies (Ctrl-C is safe)"))
    return replace(made, trailing=w.finish_copies())
