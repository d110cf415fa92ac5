"""The page's work: which workspaces it shows, what it is told of each, and what it has done there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from metasync.dashboard import compare, views
from metasync.dashboard.actions import ACTIONS, settings, understood
from metasync.dashboard.sources import OwnWork, Source, as_kept
from metasync.dashboard.workers import Workers
from metasync.errors import UsageError
from metasync.events import Event
from metasync.reports.service import WorkspaceState
from metasync.workspace import Workspace

T = TypeVar("T")

VERSIONS_MAX: Final = 500  # of the history that are shown at once
COUNTED_MAX: Final = 25  # whose changes are counted: that reads the trees of each
VERSION_CHARS_MAX: Final = 80


class Shown:
    """One workspace as the page shows it."""

    def __init__(self, directory: Path, tell: Callable[[Any], None], keeper: Source | None) -> None:
        self.id, self.directory, self.keeper = views.workspace_id(directory), directory, keeper
        self._told = tell
        self.own = OwnWork(directory, directory.name, self._tell)
        self.workers = Workers(directory, self._heard)
        self.kept: WorkspaceState | None = None  # as the keeper told it last
        if keeper is None:
            self._tell(self.own.state)

    def _tell(self, state: WorkspaceState) -> None:
        if self.keeper is None:
            self._told(views.state(state, by_daemon=False))

    def _heard(self, event: Event) -> None:
        self.own.heard(event)

    # ---- what is looked at

    async def overview(self) -> Any:
        """How it fares: as its keeper knows it; without one its backends are asked now."""
        if self.keeper is not None and (kept := self.kept) is not None:
            return {**views.status(await self.workers.read(lambda w: as_kept(w, kept))), "state": None}
        status = await self.workers.read(lambda w: w.status())
        if not self.workers.is_changing:
            self.own.looked(status)
        return {**views.status(status), "state": views.state(self.own.state, by_daemon=False)}

    async def storage(self) -> Any:
        """The backends, and which keep the same."""
        return views.backends(await self.workers.read(lambda w: w.backend_list()))

    async def log(self, path: str | None, *, counted: bool = False) -> Any:
        """The newest versions; of a path, those in which it changed. `counted`: fewer, and how much each changed."""
        what = None if path is None else views.path_of(path)
        most = COUNTED_MAX if counted else VERSIONS_MAX
        items = await self.workers.read(lambda w: w.log(what, most, with_counts=counted))
        return {"items": [views.item(i) for i in items], "most": most}

    async def version(self, version: str) -> Any:
        """One version, and what it changed."""
        name = _version(version)
        return views.show(await self.workers.read(lambda w: w.show(name)))

    async def files(self, version: str, path: str) -> Any:
        """What a version holds at a path."""
        name, where = _version(version), views.path_of(path)
        return views.listing(await self.workers.read(lambda w: w.ls(name, where)))

    async def size(self, version: str, path: str) -> int:
        """The size of a file in a version. `UsageError`: there is none, or something else."""
        name, where = _version(version), views.path_of(path)
        listed = await self.workers.read(lambda w: w.ls(name, where))
        found = [e for e in listed.entries if e.path == where and e.facts.kind == "file"]
        if not found:
            raise UsageError(f"{views.shown(where)} is no file of this version")
        return found[0].facts.size

    def pieces(self, version: str, path: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in a version."""
        return self.workers.pieces(_version(version), views.path_of(path))

    async def conflicts(self) -> Any:
        found = await self.workers.read(lambda w: w.conflicts())
        return {"conflicts": [views.conflict(c) for c in found]}

    async def conflict(self, copy: str) -> Any:
        where = views.path_of(copy)
        return await self.workers.read(lambda w: compare.compared(w, where))

    async def picture(self, copy: str, side: str) -> tuple[str, bytes]:
        where = views.path_of(copy)
        if side not in ("0", "1"):
            raise UsageError("a conflict has two sides")
        return await self.workers.read(lambda w: compare.picture(w, where, int(side)))

    async def devices(self) -> Any:
        return views.devices(await self.workers.read(lambda w: w.device_list()))

    async def settings(self) -> Any:
        return await self.workers.read(settings)

    # ---- what is done

    async def do(self, name: str, given: object) -> Any:
        """Does what the page asks for. What a keeper does is told by it; of all else the answer tells the outcome."""
        if self.keeper is not None and (asked := self._of_keeper(name, given)) is not None:
            await asyncio.to_thread(asked)
            return {"asked": True}
        args = understood(name, given)
        action = ACTIONS[name]

        def done(w: Workspace) -> Any:
            self.own.began(action.shows)
            try:
                return action.do(w, args)
            finally:
                self.own.ended()

        return await self.workers.change(done)

    def _of_keeper(self, name: str, given: object) -> Callable[[], None] | None:
        """What the keeper is to be asked for; None where the page does it by itself."""
        keeper, directory = self.keeper, self.directory
        assert keeper is not None
        match name, given:
            case "sync", {}:
                return lambda: keeper.sync_now(directory)
            case "answer", {"key": str(key), "allow": bool(allow)}:
                return lambda: keeper.answer(directory, key, allow=allow)
            case "pause", {**given}:
                seconds = understood(name, given)["seconds"]
                return lambda: keeper.pause(directory, seconds)
            case "resume", _:
                return lambda: keeper.resume(directory)
            case _:
                return None

    def close(self) -> None:
        self.workers.close()


class Page:
    """All workspaces that are shown: those of the daemon, and those that were named. For the page's loop.

    `tell`: takes the state of a workspace as the page is told it, from any thread.
    """

    def __init__(self, directories: Sequence[Path], keeper: Source | None, tell: Callable[[Any], None]) -> None:
        kept = keeper.directories() if keeper is not None else ()
        self._tell, self._keeper = tell, keeper
        self.shown: dict[str, Shown] = {}
        for directory in dict.fromkeys([*directories, *kept]):
            self._show(directory, keeper if directory in kept else None)
        if keeper is not None:
            keeper.start(self._kept)

    def _show(self, directory: Path, keeper: Source | None) -> None:
        shown = Shown(directory, self._tell, keeper)
        self.shown[shown.id] = shown

    def _kept(self, state: WorkspaceState) -> None:
        """Takes what the keeper tells, from its thread; of a workspace that was given to it meanwhile, too."""
        directory = Path(state.directory)
        shown = self.shown.get(views.workspace_id(directory))
        if shown is None:
            self._show(directory, self._keeper)
        elif shown.keeper is None:
            shown.keeper = self._keeper
        self.shown[views.workspace_id(directory)].kept = state
        self._tell(views.state(state, by_daemon=True))

    @property
    def is_changing(self) -> bool:
        """Whether something is under way that should not be broken off."""
        return any(s.workers.is_changing for s in tuple(self.shown.values()))

    def one(self, key: str) -> Shown:
        """The workspace that the page calls so. `UsageError`: there is none."""
        if key not in self.shown:
            raise UsageError("this workspace is not shown here", next_step="Load the page again.")
        return self.shown[key]

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        for s in tuple(self.shown.values()):
            s.close()


def _version(text: str) -> str:
    if not text or len(text) > VERSION_CHARS_MAX or not text.isprintable():
        raise UsageError("no version is called that")
    return text
