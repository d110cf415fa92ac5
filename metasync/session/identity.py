"""Whether this process may write in its device's name: blocks are single-writer objects (consensus.md, rule 7.4).

Two processes that write as one device, each what the other does not know of, could take back what was agreed. So
whoever writes a block holds the workspace's lock, and works in the very folder that was enrolled: a home directory that
was copied, or a disk image, has the device's keys as well, and is another place. A folder that was moved is the same.

What tells places apart is what tells stores apart: machine, file system and inode. Not the number of the device
(`st_dev`): a stick that is plugged in again has another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from metasync.backends._folder_checks import place_of
from metasync.config import Config
from metasync.consensus import Barred
from metasync.errors import WorkspaceError
from metasync.events import Listener, Notice
from metasync.local.state import LocalDb
from metasync.local.state_keys import PLACE_KEY


def place_now(state_dir: Path) -> bytes:
    """32 bytes: the machine, the file system and the inode of `.metasync`."""
    folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return place_of(folder, str(state_dir))
    finally:
        os.close(folder)


class IdentityGuard:
    """The guard of one open workspace. Called from several threads.

    `init` and `clone` record the place; opening a workspace that has none, of an older version, does so too. `place()`
    is where it lies now; `lock()` takes its lock, or raises `WorkspaceError` at once.
    """

    def __init__(
        self,
        directory: Path,
        db: LocalDb,
        *,
        place: Callable[[], bytes],
        lock: Callable[[], contextlib.AbstractContextManager[object]],
    ) -> None:
        self._directory = directory
        self._place = place
        self._lock = lock
        self._mutex = threading.Lock()
        self._held = 0
        self._borrowed = contextlib.ExitStack()
        self._borrows = False
        recorded = db.get(PLACE_KEY)
        if recorded is None:
            recorded = place()
            db.set(PLACE_KEY, recorded)
        self._recorded = recorded

    def __call__(self) -> Barred | None:
        """Why no block may be written now; None: it may. A command that holds no lock takes it here, if it is free."""
        if self.is_copy():
            return Barred(
                f"{self._directory} is a copy of another folder, whose device identity it must not use",
                "give it an identity of its own: `metasync clone` into a new folder, and bring your changes there",
            )
        with self._mutex:
            if not (self._held or self._borrows):
                try:
                    self._borrowed.enter_context(self._lock())
                except WorkspaceError as e:
                    text = f"what is under way there must be finished first, and {e.message}"
                    return Barred(text, "run again when that ended")
                self._borrows = True
            return None

    def tell(self, config: Config, listener: Listener) -> None:
        """Warns who works in a copy: it agrees through acceptors in log form alone, if they make a quorum."""
        names = sorted(b.name for b, a in config.acceptors if a.form == "block")
        if names and self.is_copy():
            text = f"this folder is a copy of another: it does not vote on {', '.join(names)}"
            listener(
                Notice(f"{text}. `metasync clone` into a new folder gives it an identity of its own", warning=True)
            )

    def is_copy(self) -> bool:
        """True when `.metasync` is not where this device was enrolled."""
        try:
            return self._place() != self._recorded
        except OSError:
            return True

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """While the caller holds the workspace's lock."""
        with self._mutex:
            self._held += 1
        try:
            yield
        finally:
            with self._mutex:
                self._held -= 1

    def give_back(self) -> None:
        """Gives back a lock that was taken for a block."""
        with self._mutex:
            self._borrows = False
            self._borrowed.close()
