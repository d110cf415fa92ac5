"""What the open pages are told as it happens: the newest state of each workspace, over server-sent events.

A page that is slow, or asleep, is told the newest state when it listens again, and none of those between. An idle page
costs nothing: nothing is sent while nothing changes. All methods are for the page's loop but `tell`, which is for any
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.types import Receive, Scope, Send

EVERY_S: Final = 0.25  # between two states of one workspace


class Live:
    """The states that pages show, by workspace. `on_pages(n)`: is called when n pages are open now.

    `first`: the workspaces that a page is told before others; it opens with the first that it is told.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_pages: Callable[[int], None], first: Sequence[str] = ()
    ) -> None:
        self._loop, self._on_pages, self._first = loop, on_pages, first
        self._states: dict[str, Any] = {}
        self._pages: set[_Page] = set()
        self._due: set[str] = set()
        self._ended = False

    @property
    def states(self) -> list[Any]:
        return list(self._states.values())

    def tell(self, state: Any) -> None:
        """Has the pages told of a workspace, by its `id`, soon. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, with the page
            self._loop.call_soon_threadsafe(self._take, state)

    def _take(self, state: Any) -> None:
        key = state["id"]
        if self._states.get(key) == state:
            return
        self._states[key] = state
        if key not in self._due:
            self._due.add(key)
            self._loop.call_later(EVERY_S, self._pass_on, key)

    def _pass_on(self, key: str) -> None:
        self._due.discard(key)
        for page in self._pages:
            page.add(key)

    def _in_order(self, keys: set[str]) -> list[str]:
        return sorted(keys, key=lambda key: (key not in self._first, key))

    def end(self) -> None:
        """Ends what pages listen to."""
        self._ended = True
        for page in self._pages:
            page.wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one page, for as long as it is open."""
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")],
            }
        )
        page = _Page(set(self._states))
        self._pages.add(page)
        self._on_pages(len(self._pages))
        gone = asyncio.create_task(until_gone(receive))
        gone.add_done_callback(lambda _: page.wake.set())
        page.wake.set()
        try:
            while True:
                await page.wake.wait()
                page.wake.clear()
                if gone.done() or self._ended:
                    break
                lines = [f"data: {json.dumps(self._states[key])}\n\n" for key in self._in_order(page.taken())] or [
                    ": here\n\n"
                ]
                await send({"type": "http.response.body", "body": "".join(lines).encode(), "more_body": True})
        finally:
            gone.cancel()
            self._pages.discard(page)
            self._on_pages(len(self._pages))
        await send({"type": "http.response.body", "body": b""})


class _Page:
    """One open page: of which workspaces it does not know the newest state."""

    def __init__(self, unknown: set[str]) -> None:
        self._unknown = unknown
        self.wake = asyncio.Event()

    def add(self, key: str) -> None:
        self._unknown.add(key)
        self.wake.set()

    def taken(self) -> set[str]:
        keys, self._unknown = self._unknown, set()
        return keys


async def until_gone(receive: Receive) -> None:
    """Returns when who asked has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
