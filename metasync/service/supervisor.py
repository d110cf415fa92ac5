"""Many workspaces in one process: each has a keeper, and one that fails takes no other along.

A `Kept` is one workspace with a thread of its own, which makes its keeper, and makes another one where that failed or
the workspace's settings changed. What it does may hang (a mount whose server is gone): then it alone hangs. A keeper
goes on by itself after errors.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from metasync import __version__
from metasync.errors import MetaSyncError, UsageError
from metasync.local import settings as preferences
from metasync.local.settings import Settings
from metasync.reports.service import DaemonState, Kind, Problem, WorkspaceState
from metasync.service.hearing import Teller
from metasync.service.registry import Registry
from metasync.service.wire.protocol import UnservedError
from metasync.session.folder import STATE_DIR, folder_above

if TYPE_CHECKING:
    from metasync.workspace import Workspace

T = TypeVar("T")
RETRY_S: Final = (2.0, 300.0)  # the first pause before a keeper is made again, and the longest
SETTINGS_S: Final = 5.0  # between looks at a workspace's settings
STOP_S: Final = 1.5  # that a stop waits for the keepers: with what comes after it, two seconds


class Keeping(Protocol):
    """What keeps one workspace in step: `service.keeper.Keeper`."""

    published: Callable[[], None]
    workspace_id: bytes | None
    """Which workspace it is, the same for all its folders; None while that is not known."""

    def start(self) -> None: ...
    def state(self) -> WorkspaceState: ...
    def sync_now(self) -> None: ...
    def hint(self) -> None: ...
    def covered(self, by: Teller, is_so: bool, why: str = "") -> None: ...
    def pause(self, until_s: float | None) -> None: ...
    def resume(self) -> None: ...
    def answer(self, key: str, allow: bool) -> None: ...
    def call(self, do: Callable[[Workspace], T]) -> T: ...
    def stop(self) -> None: ...


Make = Callable[[Path, Settings, Callable[[WorkspaceState], None]], Keeping]


class Beside(Protocol):
    """Something that goes along with a keeper: what tells the user, the line to a broker. Thread-safe."""

    def begin(self, keeper: Keeping, settings: Settings) -> None:
        """A keeper began. `MetaSyncError`: the settings ask for what cannot be had; the keeper goes on without."""

    def hear(self, state: WorkspaceState) -> None:
        """The state changed. Quick: it is called from the keeper's thread."""

    def end(self) -> None:
        """The keeper ends. May be repeated."""


Attach = Callable[[Path], Sequence[Beside]]
Hear = Callable[[str, WorkspaceState | None], None]
"""Is told a workspace's folder and its new state; None: it is not kept any more. From any thread; be quick."""


class Kept:
    """One workspace of the daemon. `tell` hears of each change of its state, `published` of each version of its own."""

    def __init__(
        self,
        directory: Path,
        make: Make,
        attach: Attach,
        tell: Callable[[WorkspaceState], None],
        published: Callable[[bytes | None], None],
    ) -> None:
        self.directory = directory
        self._make, self._tell, self._published = make, tell, published
        self._beside = attach(directory)
        self._changed = threading.Condition()
        self._keeper: Keeping | None = None
        self._ends = False
        self._state = WorkspaceState(str(directory), directory.name, "starting", time.time())
        self._lacks: tuple[Problem, ...] = ()  # what the settings ask for and cannot be had
        self._stamp: tuple[int, int, int] | None = None
        self._own: Mapping[str, str] = {}  # the settings that a keeper is made by
        self._thread = threading.Thread(target=self._run, name=f"kept {directory.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def state(self) -> WorkspaceState:
        keeper = self._keeper
        return self._state if keeper is None else self._with_lacks(keeper.state())

    def hint(self, workspace_id: bytes) -> None:
        """Another folder of this workspace published a version, if it is this one."""
        keeper = self._keeper
        if keeper is not None and keeper.workspace_id == workspace_id:
            keeper.hint()

    @property
    def keeper(self) -> Keeping:
        """`UnservedError` while there is none."""
        if (keeper := self._keeper) is None:
            problem = next(iter(self._state.problems), None)
            raise UnservedError(
                f"the daemon cannot work on {self.directory} now" + (f": {problem.text}" if problem else ""),
                next_step=problem.next_step if problem else "Run again in a moment.",
            )
        return keeper

    def stop(self) -> None:
        """Has it end, without waiting; `join` waits."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended within that time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # its own thread

    def _run(self) -> None:
        pause_s = RETRY_S[0]
        while not self._ends:
            if self._begin():
                pause_s = RETRY_S[0]
                while not self._ends and not self._has_other_settings():
                    self._wait(SETTINGS_S)
                self._end()
            else:
                self._wait(pause_s * (0.5 + random.random() / 2))
                pause_s = min(2 * pause_s, RETRY_S[1])
        for one in self._beside:
            one.end()

    def _begin(self) -> bool:
        """Whether there is a keeper now. A failure is told, and ends nothing else."""
        try:
            found = self._read_settings()
            self._own = _own(found)
            keeper = self._make(self.directory, found, self._heard)
            self._lacks = tuple(p for one in self._beside for p in _begun(one, keeper, found))
            keeper.published = _both(keeper.published, lambda: self._published(keeper.workspace_id))
            keeper.start()
        except Exception as e:  # noqa: BLE001 - whatever it is, it is told, and tried again
            self._failed(e)
            return False
        self._keeper = keeper
        return True

    def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        for one in self._beside:
            one.end()
        if keeper is not None:
            self._heard(replace(keeper.state(), doing="stopping" if self._ends else "starting", activity=None))
            keeper.stop()

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends, seconds)

    @property
    def _settings_path(self) -> Path:
        return self.directory / STATE_DIR / preferences.FILE

    def _read_settings(self) -> Settings:
        self._stamp = _stamp(self._settings_path)
        return preferences.read(self._settings_path)

    def _has_other_settings(self) -> bool:
        """Whether what a keeper is made by was changed. What cannot be read now, on a drive that is away, was not."""
        if _stamp(self._settings_path) == self._stamp or not self._settings_path.parent.is_dir():
            return False
        try:
            return _own(self._read_settings()) != self._own
        except MetaSyncError:
            return False

    def _heard(self, state: WorkspaceState) -> None:
        self._state = self._with_lacks(state)
        for one in self._beside:
            one.hear(self._state)
        self._tell(self._state)

    def _with_lacks(self, state: WorkspaceState) -> WorkspaceState:
        return replace(state, problems=(*state.problems, *self._lacks)) if self._lacks else state

    def _failed(self, error: Exception) -> None:
        before = next(iter(self._state.problems), None)
        problem = _problem("start", "folder", error)
        if before is not None and before.text == problem.text:
            problem = replace(problem, since_s=before.since_s)
        told = WorkspaceState(str(self.directory), self.directory.name, "stuck", problem.since_s, problems=(problem,))
        self._lacks = ()
        self._heard(told)


OWN_KEYS: Final = ("daemon.", "notify.")  # settings that a keeper, or what is beside it, is made by


def _own(settings: Settings) -> Mapping[str, str]:
    return {key: value for key, value in settings.values.items() if key.startswith(OWN_KEYS)}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        one()
        other()

    return call


def _begun(one: Beside, keeper: Keeping, settings: Settings) -> tuple[Problem, ...]:
    try:
        one.begin(keeper, settings)
    except MetaSyncError as e:
        return (replace(_problem(f"settings:{type(one).__name__}", "other", e), blocks=False),)
    return ()


def _problem(key: str, kind: Kind, error: Exception) -> Problem:
    if isinstance(error, MetaSyncError):
        return Problem(key, kind, error.message, error.next_step, time.time(), blocks=True)
    step = "It is tried again. `metasync daemon log` tells more; report it if it stays."
    return Problem(key, kind, f"an error of MetaSync's own: {error!r}", step, time.time(), blocks=True)


class Supervisor:
    """All workspaces of the daemon.

    make     makes the keeper of one
    attach   gives what goes along with it
    """

    def __init__(self, registry: Registry, make: Make, attach: Attach) -> None:
        self._registry, self._make, self._attach = registry, make, attach
        self._lock = threading.Lock()
        self._kept: dict[Path, Kept] = {}
        self._hearers: list[Hear] = []
        self._began_s = time.time()

    def start(self) -> None:
        """Begins to keep what is registered."""
        for directory in self._registry.directories():
            self._keep(directory)

    def add(self, directory: Path) -> WorkspaceState:
        """Registers the workspace that a folder lies in, and keeps it. `WorkspaceError` if it lies in none."""
        folder = folder_above(os.path.realpath(directory))  # by whichever of its names it is asked for later
        self._registry.add(folder)
        return self._keep(folder).state()

    def remove(self, directory: Path) -> None:
        """Keeps it no more, and forgets it. Nothing in it changes. `UsageError` if it is not kept."""
        kept = self.kept(directory)
        self._registry.remove(kept.directory)
        with self._lock:
            self._kept.pop(kept.directory, None)
        kept.stop()
        kept.join(STOP_S)
        self._hear(str(kept.directory), None)

    def kept(self, directory: str | os.PathLike[str]) -> Kept:
        """The workspace that a folder, by its real path, lies in. `UsageError` if the daemon keeps none there."""
        given = Path(directory)  # nothing is asked of the disk: another workspace's may hang
        with self._lock:
            for folder in (given, *given.parents):
                if folder in self._kept:
                    return self._kept[folder]
        raise UsageError(
            f"the daemon does not keep {given} in step", next_step=f"To have it do so: metasync daemon add {given}"
        )

    def all(self) -> tuple[Kept, ...]:
        with self._lock:
            return tuple(self._kept.values())

    def state(self) -> DaemonState:
        return DaemonState(os.getpid(), __version__, self._began_s, tuple(kept.state() for kept in self.all()))

    def subscribe(self, hear: Hear) -> Callable[[], None]:
        """Tells `hear` of each change from now on; the function that is returned ends that."""
        with self._lock:
            self._hearers.append(hear)

        def end() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._hearers.remove(hear)

        return end

    def stop(self) -> bool:
        """Ends all keepers at the same time. False: some had not ended after STOP_S; they are as after a kill."""
        all_kept = self.all()
        for kept in all_kept:
            kept.stop()
        ends = time.monotonic() + STOP_S
        ended = [kept.join(max(0.0, ends - time.monotonic())) for kept in all_kept]
        return all(ended)

    def _keep(self, folder: Path) -> Kept:
        with self._lock:
            if folder in self._kept:
                return self._kept[folder]
            kept = self._kept[folder] = Kept(
                folder,
                self._make,
                self._attach,
                lambda state: self._hear(str(folder), state),
                lambda workspace_id: self._published(folder, workspace_id),
            )
        kept.start()
        return kept

    def _published(self, folder: Path, workspace_id: bytes | None) -> None:
        """Has the other folders of the same workspace, which are other devices of it, look soon."""
        if workspace_id is not None:
            for kept in self.all():
                if kept.directory != folder:
                    kept.hint(workspace_id)

    def _hear(self, directory: str, state: WorkspaceState | None) -> None:
        with self._lock:
            hearers = tuple(self._hearers)
        for hear in hearers:
            hear(directory, state)
