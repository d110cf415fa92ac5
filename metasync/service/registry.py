"""Which workspaces the daemon of this user keeps in step: a small file below the user's state folder.

    {"format": 1, "workspaces": ["/home/a/docs", ...]}

A folder that is not there (a drive that is not mounted) stays in it until the user removes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from metasync.errors import UsageError, WorkspaceError
from metasync.local.lock import exclusive, private
from metasync.local.user_folders import state_folder

FILE: Final = "workspaces.json"
FORMAT: Final = 1
FILE_BYTES_MAX: Final = 1 << 20
WORKSPACES_MAX: Final = 200  # each has threads, connections and watched directories of its own
LOCK_WAIT_S: Final = 5.0


def daemon_folder() -> Path:
    """Where the daemon keeps what it knows. `WorkspaceError` for a user without a home."""
    folder = state_folder("daemon")
    if not folder:
        raise WorkspaceError("there is no place for the daemon's state", next_step="Set HOME, or XDG_STATE_HOME.")
    return Path(folder)


class Registry:
    """The registered workspaces, by the absolute path of their folder. For several processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        return (self._folder or daemon_folder()) / FILE

    def directories(self) -> tuple[Path, ...]:
        """In the order they were added. `WorkspaceError` if the file cannot be read, or is not what was written."""
        path = self.path
        try:
            with path.open("rb") as f:
                data = f.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return ()
        except OSError as e:
            raise WorkspaceError(f"{path} cannot be read: {e.strerror}", next_step="Check its rights.") from e
        try:
            found: Any = json.loads(data) if len(data) <= FILE_BYTES_MAX else None
            if found["format"] != FORMAT:
                raise ValueError("another format")
            names = [str(name) for name in found["workspaces"]]
            if len(names) > WORKSPACES_MAX or not all(os.path.isabs(name) and "\0" not in name for name in names):
                raise ValueError("no paths")
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            raise WorkspaceError(
                f"{path} is damaged: it does not say which workspaces are kept in step",
                next_step="Remove it, and add them again: metasync daemon add DIR.",
            ) from e
        return tuple(dict.fromkeys(Path(name) for name in names))

    def add(self, directory: Path) -> bool:
        """Registers a folder. False: it was registered already. `UsageError` where there are too many."""

        def added(now: tuple[Path, ...]) -> tuple[Path, ...]:
            if len(now) >= WORKSPACES_MAX and directory not in now:
                raise UsageError(f"more than {WORKSPACES_MAX} workspaces", next_step="Remove one first.")
            return now if directory in now else (*now, directory)

        return self._change(added)

    def remove(self, directory: Path) -> bool:
        """Has a folder not kept in step any more; nothing in it changes. False: it was not registered."""
        return self._change(lambda now: tuple(d for d in now if d != directory))

    def _change(self, changed: Callable[[tuple[Path, ...]], tuple[Path, ...]]) -> bool:
        path = self.path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(path.with_suffix(".lock"), LOCK_WAIT_S):
                before = self.directories()
                after = changed(before)
                if after != before:
                    self._write(path, after)
        except TimeoutError as e:
            raise WorkspaceError(f"{path} is being changed by another process", next_step="Run again.") from e
        except OSError as e:
            raise WorkspaceError(f"{path} cannot be written: {e.strerror or e}", next_step="Check its rights.") from e
        return after != before

    def _write(self, path: Path, directories: tuple[Path, ...]) -> None:
        text = json.dumps({"format": FORMAT, "workspaces": [str(d) for d in directories]}, indent=1)
        beside = path.with_suffix(".new")
        with open(beside, "w", encoding="utf-8", opener=private) as file:
            file.write(text + "\n")
        beside.replace(path)
