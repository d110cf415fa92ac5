"""Another process with connections of its own to the store under test: both ends of it.

`python -m metasync.testing.peer` reads one JSON document per line on its standard input and answers each with one on
its standard output. The first says how to open the store; what is secret comes by the environment, as it does for every
command, never by an argument. It ends when its input ends, and can be killed at any moment: that is what it is for.

    {"opener": "module:function", "argument": "..."}   {"identity": "<hex>"}
    {"do": "get", "path": ..., "max_bytes": ...}       {"data": "<hex>"}, or {"error": "NotFoundError", "message": ...}
    {"do": "write", "kind": "create" or "put", "path": ..., "label": ..., "size": n, "die_after_s": s or null}
                                                       {"began": true}, then {"done": true or false, "seconds": s}
    {"do": "race", ...}                                {"calls": [...]}
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, MetaSyncError
from metasync.testing.counting import Count, CountingBackend
from metasync.testing.race import WRITERS, Call, Meeting, RacePlan, run_writers

_ANSWER_TIMEOUT_S = 180.0  # longer than the slowest call of a backend on a line that works
_END_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 1 << 24  # the calls of 10,000 names by eight writers are 6 MB
_STDERR_CHARS = 300
_SOONEST_S = 1e-6  # an alarm of 0 is none


class PeerError(Exception):
    """The other process could not be started, or is gone."""


@dataclass(frozen=True, slots=True)
class Store:
    """How the store under test is opened: here by `open`, in another process by `opener` with `url`.

    `opener` is "module:function", and is called with `url`. Each call of either gives another backend object on the
    same store. Without a `url` no other process can open it.
    """

    open: Callable[[], Backend]
    url: str | None = None
    opener: str = "metasync.testing.peer:open_url"

    @classmethod
    def at(cls, url: str) -> Store:
        """The store of a backend URL. A root that is missing is not made."""
        return cls(lambda: open_url(url), url)


def open_url(url: str) -> Backend:
    """Opens a backend by its URL."""
    return open_backend(parse_url(url))


def content(label: str, size_bytes: int) -> bytes:
    """Bytes that do not compress, the same for the same label in every process."""
    return hashlib.shake_256(label.encode()).digest(size_bytes)


class Peer:
    """The parent's end. `PeerError` if the process does not start, or does not see the same store."""

    def __init__(self, store: Store, identity: bytes) -> None:
        if store.url is None:
            raise PeerError("this store can be opened in this process only")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the peer
        self._answers = b""
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        try:
            # -P: no code from the folder we happen to be in. A session of its own: Ctrl-C is for the parent to handle.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "metasync.testing.peer"],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise PeerError(f"no second process could be started: {error.strerror or error}") from error
        try:
            answer = self.ask(opener=store.opener, argument=store.url)
            if "error" in answer:
                raise PeerError(f"another process cannot open this store: {answer['message']}")
            if bytes.fromhex(answer["identity"]) != identity:
                raise PeerError("another process sees another store under this URL")
        except BaseException:
            self.kill()
            raise

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self.send(**command)
        return self.receive()

    def send(self, **command: Any) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def receive(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next answer. `PeerError` if the process ends or says nothing for so long."""
        stdout = self._process.stdout
        assert stdout is not None
        until = time.monotonic() + timeout_s
        while b"\n" not in self._answers:
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise PeerError(f"the other process said nothing for {timeout_s:.0f} s")
            more = os.read(stdout.fileno(), 1 << 16)
            if not more or len(self._answers) > _ANSWER_BYTES_MAX:
                raise self._gone()
            self._answers += more
        line, _, self._answers = self._answers.partition(b"\n")
        return cast(dict[str, Any], json.loads(line))

    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def dies(self) -> bool:
        """Waits for the end of a write that was told to die. False if it came to its end before, and answered."""
        with contextlib.suppress(PeerError):
            self.receive()
            return False
        return True

    def kill(self) -> bool:
        """Ends the process on the spot (SIGKILL), whatever it is doing. Whether it still owed an answer."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        answered = bool(self._answers or self._process.stdout.read(1))
        self._finish()
        return not answered

    def close(self) -> None:
        """Ends the process when it has done what it does."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def _finish(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()
        self._stderr.close()

    def _gone(self) -> PeerError:
        self._process.wait(_END_TIMEOUT_S)
        self._stderr.seek(0)
        said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        why = f": {said[-1][:_STDERR_CHARS]}" if said else ""
        return PeerError(f"the other process ended with {self._process.returncode}{why}")


def _error(error: Exception) -> dict[str, str]:
    message = error.message if isinstance(error, MetaSyncError) else f"{type(error).__name__}: {error}"
    return {"error": type(error).__name__, "message": message}


class _Child:
    """The other end: carries out what it is told, one command after the other."""

    def __init__(self, answer: Callable[[dict[str, Any]], None]) -> None:
        self._answer = answer
        self._open: Callable[[], Backend] = self._not_open
        self._backends: list[CountingBackend] = []

    def carry_out(self, command: dict[str, Any]) -> None:
        do = command.get("do")
        try:
            if do is None:
                self._answer(self._begin(command["opener"], command["argument"]))
            elif do == "get":
                self._answer(self._get(command["path"], command["max_bytes"]) | self._cost())
            elif do == "write":
                self._answer(self._write(command) | self._cost())
            elif do == "race":
                self._answer(self._race(command) | self._cost())
            else:
                raise ValueError(f"no such command: {do!r}")
        except Exception as error:  # noqa: BLE001 - whatever the backend raises is for the parent to judge
            self._answer(_error(error) | self._cost())

    def _begin(self, opener: str, argument: str) -> dict[str, Any]:
        module, _, name = opener.partition(":")
        function = getattr(importlib.import_module(module), name)

        def opened() -> Backend:
            backend = CountingBackend(function(argument))
            self._backends.append(backend)
            return backend

        self._open = opened
        return {"identity": opened().identity().hex()}

    def _get(self, path: str, max_bytes: int) -> dict[str, Any]:
        return {"data": self._backends[0].get(path, max_bytes=max_bytes).hex()}

    def _write(self, command: dict[str, Any]) -> dict[str, Any]:
        data = content(command["label"], command["size"])
        call = getattr(self._backends[0], command["kind"])
        self._answer({"began": True})
        if (die_after_s := command.get("die_after_s")) is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the system ends the process, and no code of ours runs
            signal.setitimer(signal.ITIMER_REAL, max(_SOONEST_S, die_after_s))
        began = time.monotonic()
        done = call(command["path"], data)
        return {"done": done, "seconds": time.monotonic() - began}

    def _race(self, command: dict[str, Any]) -> dict[str, Any]:
        plan = RacePlan(command["folder"], command["names"], tuple(command["turns"]), command["read_every"])
        parent = os.getppid()
        meeting = Meeting(command["meeting"], plan.names, alive=lambda: os.getppid() == parent)
        try:
            stores = {writer: self._open() for writer in range(WRITERS // 2, WRITERS)}
            return {"calls": run_writers(plan, meeting, stores)}
        except BaseException:
            meeting.cancel()
            raise
        finally:
            meeting.close()

    def _cost(self) -> dict[str, Any]:
        counts = [backend.take() for backend in self._backends]
        return {"cost": [sum(c.requests.total() for c in counts), *(sum(b) for b in _bytes(counts))]}

    @staticmethod
    def _not_open() -> Backend:
        raise BackendError("no store was opened")


def _bytes(counts: list[Count]) -> tuple[list[int], list[int]]:
    return [c.up_bytes for c in counts], [c.down_bytes for c in counts]


def calls_of(answer: dict[str, Any]) -> list[Call]:
    """The calls of a race as the other process tells them."""
    return [Call(*call) for call in answer["calls"]]


def main() -> int:
    """The other process: until its input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not come between the answers

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    child = _Child(answer)
    for line in sys.stdin:
        child.carry_out(json.loads(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
