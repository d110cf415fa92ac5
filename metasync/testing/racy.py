"""A backend whose `create` is not atomic: it looks, then writes, so that several writers can win one name.

    b = RacingBackend(inner)                # form "block": what such a store may be used for
    b = RacingBackend(inner, form="log")    # used as if its create were atomic, to see what comes of that

So do WebDAV servers and Swift, which check a condition before they take the body (providers.md, section 1.4). Between
the look and the write the writer pauses, and whoever looks meanwhile wins, too; the last to write stands. `put` and
reads are those of `inner`: who reads after a write sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from metasync.backends.api import Backend, LogForm
from metasync.backends.wrappers.wrapper import Wrapper
from metasync.errors import NotFoundError

PAUSE_S = 0.005  # longer than a folder takes, so that writers who begin together meet


class RacingBackend(Wrapper):
    """The same store without an atomic create. `pause` comes between the look and the write."""

    def __init__(
        self, inner: Backend, *, form: LogForm = "block", pause: Callable[[], None] = lambda: time.sleep(PAUSE_S)
    ) -> None:
        super().__init__(inner)
        vars(self).pop("probe", None)  # it would ask the inner store
        self._form = form
        self._pause = pause

    @property
    def form(self) -> LogForm:
        return self._form

    def create(self, path: str, data: bytes) -> bool:
        try:
            self.inner.stat(path)
        except NotFoundError:
            self._pause()
            self.inner.put(path, data)
            return True
        return False
