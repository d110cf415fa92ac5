"""The ballast: an object on every backend that is deleted when the backend is full, so that agreement goes on.

A full backend accepts no log entry, and so cannot vote though it is well (consensus.md, rule 1.13). So `init` leaves an
object of random bytes there. When a write that agreement needs meets `FullError`, the ballast is deleted and the write
repeated, once. Packs never take that space: they go to another backend.

Any client may delete the ballast, and a provider may too: a backend without one is a backend like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError, FullError

BALLAST_PATH: Final = "ballast"  # below the workspace's folder
# A version costs a voting backend about 6 KiB in 6 objects, 30 KiB where every object takes blocks of 4 KiB. This is
# room for forty or nine of them, and half a minute of a line of 64 kbit/s at `init`. Random: it must not compress.
BALLAST_BYTES: Final = 256 << 10


def is_pack_path(path: str) -> bool:
    """Whether an object below the workspace's folder is a pack: `<storage id>/packs/...`."""
    parts = path.split("/", 2)
    return len(parts) == 3 and parts[1] == "packs"


class WithBallast(Wrapper):
    """A workspace's folder on a backend, whose ballast makes room for small writes.

    `on_given_up` is called, from the thread of the write, each time the ballast was deleted.
    """

    def __init__(self, inner: Backend, on_given_up: Callable[[], object]) -> None:
        super().__init__(inner)
        self._on_given_up = on_given_up
        self._giving_up = threading.Lock()
        self._gone = False  # deleted by this process, and not put back by it since
        self._was_full = False  # it refused a pack for lack of space

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind not in ("create", "put"):
            return do()
        was_gone = self._gone  # then nothing that happens during the write makes room for it
        try:
            done = do()
        except FullError as full:
            self._was_full |= is_pack_path(call.path)
            if was_gone or call.path == BALLAST_PATH or is_pack_path(call.path):
                raise
            try:
                self._give_up()
            except BackendError:  # full as it is, it may refuse even that
                raise full from None
            return do()
        self._gone = self._gone and call.path != BALLAST_PATH
        return done

    def delete(self, path: str) -> None:
        """The ballast is given up for a pack only where one found no space: whoever takes all away tells nobody."""
        if path == BALLAST_PATH and self._was_full:
            self._give_up()
        else:
            super().delete(path)

    def _give_up(self) -> None:
        """Deletes the ballast; of several writes that fail together one does, and the others wait for it."""
        with self._giving_up:
            if self._gone:
                return
            self.inner.delete(BALLAST_PATH)
            self._gone = True
        self._on_given_up()
