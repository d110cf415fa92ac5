"""A workspace's settings on this device, in `.metasync/settings.json`, and how a running process obeys them.

The file holds values as the user typed them: `{"settings": {"limit.up": "2M"}, "pause": {"until": 1790000000.0}}`. It
is read anew within LOOK_S of a change, so a limit that another process sets holds at once. A damaged file stops the
next command that moves data; a running process goes on with the values it knew.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from metasync.errors import PausedError, UsageError, WorkspaceError
from metasync.local.lock import exclusive, private

if TYPE_CHECKING:  # `limits` is loaded only where something is set
    from metasync.reports.settings import SettingsReport
    from metasync.runtime.limits import Limits, Line, Schedule

FILE: Final = "settings.json"
FILE_BYTES_MAX: Final = 64 << 10
LOOK_S: Final = 1.0  # between looks at the file, and the longest wait before the next look
FOR_EVER: Final = math.inf
TRANSFERS: Final = frozenset({"push", "pull", "restore", "cat", "check"})  # operations that a pause refuses to begin
LOCK_WAIT_S: Final = 5.0  # for another process to write one small file
PAUSE_MOST_S: Final = 366 * 86_400.0


class Settings(NamedTuple):
    """Values by key. `paused_until`: seconds since 1970, `FOR_EVER` until it is ended; None: not paused."""

    values: Mapping[str, str] = {}
    paused_until: float | None = None

    def pause_left_s(self, wall: float) -> float:
        """The seconds that transfers rest from now on; 0: they do not."""
        return 0.0 if self.paused_until is None else max(0.0, self.paused_until - wall)


def read(path: Path) -> Settings:
    """Reads the settings; none where there is no file. `WorkspaceError` if it is damaged or cannot be read."""
    try:
        with path.open("rb") as f:
            data = f.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Settings()
    except OSError as e:
        raise WorkspaceError(f"the settings {path} cannot be read: {e.strerror}", next_step="Check its rights.") from e
    try:
        found = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
        return _checked(found)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, UsageError) as e:
        raise WorkspaceError(
            f"the settings {path} are damaged ({e.message if isinstance(e, UsageError) else 'not what was written'})",
            next_step="Remove the file, and set anew what you want: metasync config set KEY VALUE.",
        ) from e


def _checked(found: Any) -> Settings:
    from metasync.runtime.limits import understood

    values = {str(k): v for k, v in found["settings"].items()}
    if not all(isinstance(v, str) for v in values.values()):
        raise ValueError("a value that is no text")
    understood(values)
    until = None
    if found["pause"] is not None:
        ends = found["pause"]["until"]
        until = FOR_EVER if ends is None else float(ends)
        if math.isnan(until):
            raise ValueError("no time")
    return Settings(values, until)


def is_on(path: Path, key: str) -> bool:
    """Whether a setting that is on or off is on."""
    return read(path).values.get(key) == "on"


def write(path: Path, settings: Settings) -> None:
    """Replaces the file, whole or not at all. `WorkspaceError` if that fails."""
    until = settings.paused_until
    pause = None if until is None else {"until": None if until == FOR_EVER else until}
    text = json.dumps({"settings": dict(sorted(settings.values.items())), "pause": pause}, indent=1)
    beside = path.with_suffix(".new")
    try:
        with open(beside, "w", encoding="utf-8", opener=private) as file:
            file.write(text + "\n")
        beside.replace(path)
    except OSError as e:
        raise WorkspaceError(
            f"the settings {path} cannot be written: {e.strerror}", next_step="Free some space, or check its rights."
        ) from e


def when(until: float) -> str:
    """The end of a pause as a phrase: "until 18:00"."""
    if until == FOR_EVER:
        return "until it is resumed"
    at, now = time.localtime(until), time.localtime()
    return "until " + time.strftime("%H:%M" if at[:3] == now[:3] else "%Y-%m-%d %H:%M", at)


def report(path: Path) -> SettingsReport:
    """Reports the settings. `WorkspaceError` if they cannot be read."""
    return _told(read(path))


def check(values: Mapping[str, str]) -> None:
    """`UsageError` where one of these is no setting, or no value of it. Which backends there are is not asked."""
    for key, value in values.items():
        from metasync.runtime import limits

        limits.check(key, value)


def configure(path: Path, key: str, value: str | None, backends: Collection[str]) -> SettingsReport:
    """Sets one key of `limits`, or takes it back (None). `backends`: names that may stand in a key.

    `UsageError`: no such key or value.
    """
    from metasync.runtime import limits

    if value is not None:
        limits.check(key, value)
    name = limits.backend_of(key)
    if value is not None and name is not None and name not in backends:
        raise UsageError(
            f"no backend of this workspace is called {name!r}", next_step=f"They are: {', '.join(sorted(backends))}."
        )

    def changed(s: Settings) -> Settings:
        if value is None and key not in s.values:
            raise UsageError(f"{key[:60]} is not set", next_step="`metasync config list` shows what is set.")
        others = {k: v for k, v in s.values.items() if k != key}
        return s._replace(values=others if value is None else {**others, key: value.strip()})

    return _change(path, changed)


def pause(path: Path, seconds: float | None) -> SettingsReport:
    """Pauses transfers for so many seconds, or until `resume` (None)."""
    if seconds is not None and not 0 < seconds <= PAUSE_MOST_S:
        raise UsageError("a pause lasts longer than no time, and a year at most")
    until = FOR_EVER if seconds is None else time.time() + seconds
    return _change(path, lambda s: s._replace(paused_until=until))


def resume(path: Path) -> SettingsReport:
    """Ends a pause, if there is one."""
    return _change(path, lambda s: s._replace(paused_until=None))


def refuse_paused(path: Path, what: str) -> None:
    """Raises `PausedError` for an operation that moves data during a pause."""
    if what not in TRANSFERS:
        return
    if paused := _paused(read(path)):
        raise PausedError(
            f"transfers of this workspace are paused on this device {paused}",
            next_step=f"`metasync resume` ends the pause; `metasync {what} --now` passes it by once.",
        )


def _change(path: Path, changed: Callable[[Settings], Settings]) -> SettingsReport:
    try:
        with exclusive(path.with_suffix(".lock"), LOCK_WAIT_S):
            new = changed(read(path))
            write(path, new)
    except TimeoutError as e:
        raise WorkspaceError(f"the settings {path} are being changed by another process", next_step="Run again.") from e
    except OSError as e:
        raise WorkspaceError(
            f"the settings {path} cannot be changed: {e.strerror}", next_step="Check that .metasync is writable."
        ) from e
    return _told(new)


def _told(s: Settings) -> SettingsReport:
    from metasync.reports.settings import SettingsReport

    return SettingsReport(dict(s.values), _paused(s))


def _paused(s: Settings) -> str:
    """The end of a pause as a phrase; "" if there is none now."""
    return when(s.paused_until) if s.paused_until is not None and s.pause_left_s(time.time()) > 0 else ""


class Governor:
    """Makes a runtime's calls obey the file at `path`: see `channel.Governor`. `now`: pauses do not count.

    `on_pause(phrase)` is called from any thread when transfers begin to wait for the end of a pause. `clock` never goes
    back; `wall` gives seconds since 1970, and with them the local time of day.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: bool = False,
        on_pause: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self.passes_pauses = now
        self._on_pause = on_pause
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._looked_at = -math.inf
        self._stamp: tuple[int, int, int] | None = None
        self._limits: Limits | None = None  # None: nothing was ever set
        self._set = Settings()
        self._told: float | None = None  # the end of the pause that was told
        self._minute = 0
        self._lines: dict[tuple[bool, str], Line] = {}

    def connections(self, backend: str) -> int | None:
        with self._lock:
            self._look()
            if self._limits is None:
                return None
            most = self._limits.connections
            return most.get(backend, most.get(""))

    def requests(self, backend: str) -> float | None:
        """How many requests a minute the user allows; infinite: any number; None: as many as its provider publishes."""
        with self._lock:
            self._look()
            if self._limits is None:
                return None
            most = self._limits.requests
            return most.get(backend, most.get(""))

    def ask(self, backend: str, *, up: bool, size_bytes: int) -> float:
        with self._lock:
            self._look()
            wait_s = self._pause_s()
            if wait_s <= 0 and size_bytes > 0:
                lines = self._lines_of(backend, up)
                now = self._clock()
                waits = [line.wait_s(now, rate, (backend, up), size_bytes) for line, rate in lines]
                wait_s = max(waits, default=0.0)
                if wait_s <= 0:
                    for line, _ in lines:
                        line.go((backend, up))
            until = self._set.paused_until
            told = until if self._pause_s() > 0 and self._told != until else None
            self._told = told if told is not None else self._told
        if told is not None:
            self._on_pause(when(told))
        return min(wait_s, LOOK_S)

    def count(self, backend: str, *, up: bool, size_bytes: int) -> None:
        with self._lock:
            self._look()
            now = self._clock()
            for line, rate in self._lines_of(backend, up):
                line.count(now, rate, size_bytes)

    def forget(self, backend: str, *, up: bool) -> None:
        with self._lock:
            for line, _ in self._lines_of(backend, up):
                line.leave((backend, up))

    # with the lock held

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        at = time.localtime(self._wall())
        self._minute = at.tm_hour * 60 + at.tm_min
        try:
            st = self._path.stat()
            stamp = (st.st_mtime_ns, st.st_ino, st.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        from metasync.runtime.limits import understood

        try:
            found = read(self._path)
        except WorkspaceError:
            return  # the known values hold; the file is looked at again
        self._stamp, self._set, self._limits = stamp, found, understood(found.values)

    def _pause_s(self) -> float:
        return 0.0 if self.passes_pauses else self._set.pause_left_s(self._wall())

    def _lines_of(self, backend: str, up: bool) -> list[tuple[Line, float | None]]:
        """The lines that a call in this direction books on, each with the rate it lets pass now."""
        if self._limits is None:
            return []
        from metasync.runtime.limits import Line

        schedules: Mapping[str, Schedule] = self._limits.up if up else self._limits.down
        found = {name: schedules[name] for name in ("", backend) if name in schedules}
        return [(self._lines.setdefault((up, n), Line()), s.rate(self._minute)) for n, s in found.items()]
