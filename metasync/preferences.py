"""The part of `Workspace` about this device's settings: limits, and a pause of all transfers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metasync.errors import PausedError, UsageError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.local import settings as kept
from metasync.local.lock import exclusive
from metasync.session.folder import STATE_DIR

if TYPE_CHECKING:
    from metasync.session.connections import Connections

TRANSFERS: Final = frozenset({"push", "pull", "restore", "check"})  # operations that a pause refuses to begin
LOCK_WAIT_S: Final = 5.0  # for who writes the settings at this moment: one small file
PAUSE_MOST_S: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """What is set on this device for this workspace. `paused`: until when transfers rest, as a phrase; "": they do not.

    `settings` are as they were typed; what they mean stands in `limits`.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    paused: str = ""


class Preferences:
    """Mixed into `Workspace`. `now`: this object's transfers go on in spite of a pause.

    A change holds for other processes that work in this folder within a few seconds. Nothing here takes the
    workspace's lock: a push that runs can be slowed down, or made to wait.
    """

    directory: Path
    on_event: Listener
    now: bool = False
    _connections: Connections
    _governed: kept.Governor | None = None

    def settings(self) -> SettingsReport:
        """What is set. `WorkspaceError` if that cannot be read."""
        return _report(kept.read(self._settings_path))

    def configure(self, key: str, value: str | None) -> SettingsReport:
        """Sets one of the settings of `limits`, or takes it back (None). `UsageError`: no such one, or value."""
        from metasync.runtime import limits

        if value is not None:
            limits.check(key, value)
        name = limits.backend_of(key)
        known = self._connections.agreed_names
        if value is not None and name is not None and name not in known:
            raise UsageError(
                f"no backend of this workspace is called {name!r}", next_step=f"They are: {', '.join(sorted(known))}."
            )

        def changed(s: kept.Settings) -> kept.Settings:
            if value is None and key not in s.values:
                raise UsageError(f"{key[:60]} is not set", next_step="`metasync config list` shows what is set.")
            others = {k: v for k, v in s.values.items() if k != key}
            return s._replace(values=others if value is None else {**others, key: value.strip()})

        return self._change(changed)

    def pause(self, seconds: float | None = None) -> SettingsReport:
        """Has all transfers of this workspace rest on this device: so long, or until `resume`.

        What is being agreed on is finished; calls that have begun end.
        """
        if seconds is not None and not 0 < seconds <= PAUSE_MOST_S:
            raise UsageError("a pause lasts longer than no time, and a year at most")
        until = kept.FOR_EVER if seconds is None else time.time() + seconds
        return self._change(lambda s: s._replace(paused_until=until))

    def resume(self) -> SettingsReport:
        """Ends a pause. Nothing happens where there is none."""
        return self._change(lambda s: s._replace(paused_until=None))

    @property
    def _settings_path(self) -> Path:
        return self.directory / STATE_DIR / kept.FILE

    def _change(self, changed: Callable[[kept.Settings], kept.Settings]) -> SettingsReport:
        path = self._settings_path
        try:
            with exclusive(path.with_suffix(".lock"), LOCK_WAIT_S):
                new = changed(kept.read(path))
                kept.write(path, new)
        except TimeoutError as e:
            raise WorkspaceError(
                f"the settings {path} are being changed by another process", next_step="Run again."
            ) from e
        except OSError as e:
            raise WorkspaceError(
                f"the settings {path} cannot be changed: {e.strerror}", next_step="Check that .metasync is writable."
            ) from e
        return _report(new)

    def _refuse_paused(self, what: str) -> None:
        """`PausedError` for an operation that moves data, while there is a pause."""
        if what not in TRANSFERS or self.now:
            return
        until = kept.read(self._settings_path)
        if until.pause_left_s(time.time()) > 0:
            assert until.paused_until is not None
            raise PausedError(
                f"transfers of this workspace are paused on this device {kept.when(until.paused_until)}",
                next_step=f"`metasync resume` ends the pause; `metasync {what} --now` passes it by once.",
            )

    def _least_copies(self, durability: int | None, copies: int) -> int | None:
        """For how many of the promised `copies` a push waits, as asked for or else as set; None: for all.

        A setting that asks for more than are promised, as another number of backends may have it, asks for all.
        """
        from metasync.transfer import late_copies

        if durability is None and (kept_here := kept.read(self._settings_path).values.get("durability")) is not None:
            durability = min(int(kept_here), copies)
        return late_copies.copies_to_wait_for(durability, copies)

    def _governor(self) -> kept.Governor:
        """What has the calls of this workspace obey the settings, one for all its operations."""
        if self._governed is None or self._governed.passes_pauses != self.now:
            self._governed = kept.Governor(self._settings_path, now=self.now, on_pause=self._say_paused)
        return self._governed

    def _say_paused(self, phrase: str) -> None:
        self.on_event(Notice(f"paused {phrase}: what has begun ends, the rest waits; `metasync resume` goes on"))


def _report(s: kept.Settings) -> SettingsReport:
    paused = s.paused_until is not None and s.pause_left_s(time.time()) > 0
    return SettingsReport(dict(s.values), kept.when(s.paused_until) if paused and s.paused_until is not None else "")
