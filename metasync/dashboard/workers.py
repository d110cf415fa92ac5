"""The threads that work at one workspace for the page, whose own loop never waits for a disk.

A `Workspace` belongs to one thread at a time, so the folder is opened once for each thread: a few that read, one
that changes, and a few that download. A long push keeps nobody from looking at the history. They are opened when
they are first needed, and rest between operations.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from metasync.errors import CancelledError, MetaSyncError
from metasync.events import Listener, ignore
from metasync.workspace import Workspace

T = TypeVar("T")

DOWNLOADS_MAX: Final = 3  # at once, for one workspace; others wait for their turn
PIECES_MAX: Final = 4  # of a download that wait for the browser: a slow one must not fill the memory
READERS: Final = 3  # opened when the others are busy: a look at all files must not hold up the history
CHANGES_MAX: Final = 8  # that wait for the one under way


class Workers:
    """Work at the workspace in `directory`. `on_event`: is told of what changes do, from their thread."""

    def __init__(self, directory: Path, on_event: Listener = ignore) -> None:
        self.directory = directory
        self._readers = [_Thread(directory, f"reads-{n}", ignore) for n in range(READERS)]
        self._changer = _Thread(directory, "changes", on_event)
        self._downloads = ThreadPoolExecutor(DOWNLOADS_MAX, "metasync-page-download")
        self._turns = asyncio.Semaphore(DOWNLOADS_MAX)
        self._changes = 0
        self._lock = threading.Lock()
        self._downloading: set[Workspace] = set()
        self._closed = False

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way, or waits."""
        return self._changes > 0

    async def read(self, do: Callable[[Workspace], T]) -> T:
        """What `do` makes of the workspace; it changes nothing. Raises what `do` does, and what `open` does."""
        reader = min(self._readers, key=lambda thread: thread.waiting)
        return await asyncio.wrap_future(reader.submit(do))

    async def change(self, do: Callable[[Workspace], T]) -> T:
        """The same for what changes something: one after the other. It goes on where the asking browser is gone."""
        if self._changes >= CHANGES_MAX:
            raise MetaSyncError("too much waits to be done already", next_step="Wait until that is over.")
        self._changes += 1
        future = self._changer.submit(do)
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with the page
                loop.call_soon_threadsafe(self._count_down)

        future.add_done_callback(ended)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _count_down(self) -> None:
        self._changes -= 1

    def stop_change(self) -> None:
        """Ends the change that is under way, as a kill would: the next one goes on where it was."""
        self._changer.cancel()

    async def pieces(self, version: str, path: bytes) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in a version, piece by piece, each checked. A caller that stops ends the download."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        free, gone = threading.Semaphore(PIECES_MAX), threading.Event()

        def put(item: bytes | BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def write(piece: bytes) -> None:
            free.acquire()
            if gone.is_set():
                raise CancelledError("the browser went away", next_step="Download it again.")
            put(bytes(piece))

        async with self._turns:
            self._downloads.submit(self._download, version, path, write, put)
            try:
                while (item := await queue.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
                    free.release()
            finally:
                gone.set()
                free.release(PIECES_MAX)

    def _download(
        self, version: str, path: bytes, write: Callable[[bytes], None], put: Callable[[BaseException | None], None]
    ) -> None:
        try:
            with Workspace.open(self.directory) as workspace:
                with self._lock:
                    self._downloading.add(workspace)
                try:
                    if not self._closed:
                        workspace.cat(path, version, write)
                finally:
                    with self._lock:
                        self._downloading.discard(workspace)
        except Exception as e:  # noqa: BLE001 - raised again in the loop, by whoever waits for the pieces
            put(e)
        else:
            put(None)

    def close(self) -> None:
        """Ends what is under way, and waits for the threads."""
        self._closed = True
        with self._lock:
            for workspace in self._downloading:
                workspace.cancel()
        self._downloads.shutdown(wait=True, cancel_futures=True)
        for reader in self._readers:
            reader.close()
        self._changer.close()


class _Thread:
    """One thread, and the workspace as it has it open."""

    def __init__(self, directory: Path, what: str, on_event: Listener) -> None:
        self._directory, self._on_event = directory, on_event
        self._pool = ThreadPoolExecutor(1, f"metasync-page-{what}")
        self._workspace: Workspace | None = None
        self._lock = threading.Lock()
        self.waiting = 0  # with the one under way

    def submit(self, do: Callable[[Workspace], T]) -> Future[T]:
        with self._lock:
            self.waiting += 1
        future = self._pool.submit(self._done, do)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        with self._lock:
            self.waiting -= 1

    def _done(self, do: Callable[[Workspace], T]) -> T:
        if self._workspace is None:
            self._workspace = Workspace.open(self._directory, on_event=self._on_event)
        return do(self._workspace)

    def cancel(self) -> None:
        if self._workspace is not None:
            self._workspace.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._workspace is not None:
            self._workspace.close()  # ends what is under way
        self._pool.shutdown(wait=True)
        if self._workspace is not None:  # one that was being opened meanwhile
            self._workspace.close()
