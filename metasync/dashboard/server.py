"""Serves the page on loopback, until it is told to end or no page was open for a while."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import uvicorn

from metasync.dashboard.app import made
from metasync.dashboard.gate import HOST, Gate
from metasync.dashboard.live import Live
from metasync.dashboard.page import Page
from metasync.dashboard.sources import Source
from metasync.dashboard.views import workspace_id
from metasync.errors import UsageError

FIRST_PAGE_S: Final = 600.0  # for the user to open the address
QUIET_S: Final = 120.0  # without an open page: a page that is loaded again is away for a moment
CONNECTIONS_MAX: Final = 64  # a browser takes six
HEADER_BYTES_MAX: Final = 16 << 10
GRACE_S: Final = 2  # for answers under way at the end


class Server:
    """The page of these workspaces, which opens with one of them. `port` 0: any free one.

    `keeper`: the daemon, where one runs; the page shows what that keeps, too.
    `UsageError`: the port is taken. `run` serves until `stop`, from any thread, a signal, or until nobody looks.
    """

    def __init__(self, directories: Sequence[Path], *, port: int = 0, keeper: Source | None = None) -> None:
        self._directories, self._keeper = directories, keeper
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]
        self.first_page_s, self.quiet_s = FIRST_PAGE_S, QUIET_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._page: Page | None = None
        self.gate: Gate | None = None

    def run(self, ready: Callable[[Gate], None]) -> None:
        """Serves. `ready` is called once the address can be opened, in the thread of the loop."""
        with contextlib.closing(self._socket):
            asyncio.run(self._serve(ready))

    def stop(self) -> None:
        """Ends it, soon. From any thread; after the end it does nothing."""
        loop, ended = self._loop, self._ended
        if loop is not None and ended is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

    async def _serve(self, ready: Callable[[Gate], None]) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        live = Live(self._loop, self._pages, [workspace_id(d) for d in self._directories])
        page = self._page = Page(self._directories, self._keeper, live.tell)
        try:
            self.gate = made(page, live, self.port)
            server = _Quiet(
                uvicorn.Config(
                    self.gate, http="h11", ws="none", loop="asyncio", lifespan="off", log_config=None,
                    access_log=False, proxy_headers=False, server_header=False, date_header=False,
                    limit_concurrency=CONNECTIONS_MAX, h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                    timeout_graceful_shutdown=GRACE_S,
                ),
                self._ended,
            )  # fmt: skip
            with _signals(self._loop, self._ended):
                serving = asyncio.create_task(server.serve(sockets=[self._socket]))
                self._wait(self.first_page_s)
                ready(self.gate)
                await self._ended.wait()
                live.end()
                await serving
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.to_thread(page.close)

    def _pages(self, count: int) -> None:
        """Begins to wait for the end where the last page went, and ends the waiting where one came."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not count:
            self._wait(self.quiet_s)

    def _wait(self, seconds: float) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(seconds, self._nobody)

    def _nobody(self) -> None:
        assert self._page is not None
        assert self._ended is not None
        if self._page.is_changing:  # what a user began is done, page or not
            self._wait(self.quiet_s)
        else:
            self._ended.set()


class _Quiet(uvicorn.Server):
    """A server that leaves signals to whoever runs it, and does not wake ten times a second: `ended` ends it."""

    def __init__(self, config: uvicorn.Config, ended: asyncio.Event) -> None:
        super().__init__(config)
        self._ended = ended

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> Iterator[None]:
    """Has Ctrl-C and a request to end set `ended`, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _bound(port: int) -> socket.socket:
    """A socket that listens on loopback, and on nothing else."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen(CONNECTIONS_MAX)
    except OSError as e:
        made.close()
        raise UsageError(
            f"the page cannot be served on port {port}: {e.strerror}", next_step="Leave --port out, or take another."
        ) from e
    return made
