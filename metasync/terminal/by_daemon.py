"""Commands in a folder that the daemon keeps: they work through it, and by themselves where none runs.

A command looks for the daemon by its socket's file. Without one it loads nothing of this.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from metasync.errors import MetaSyncError
from metasync.events import Notice
from metasync.local.user_folders import run_folder
from metasync.terminal.console import Console, Options, opened

if TYPE_CHECKING:
    from metasync.reports.service import WorkspaceState
    from metasync.service.client import Client
    from metasync.workspace import Workspace

T = TypeVar("T")
_SOCKET: Final = "daemon.sock"  # as `service.wire.sockets` has it; that would load half of the daemon's side


def _may_run() -> bool:
    """Whether a daemon has left its socket. Most often none has, and nothing more is to be loaded."""
    folder = run_folder()
    off = os.environ.get("METASYNC_DAEMON", "").lower() == "off"
    return bool(folder) and not off and os.path.exists(os.path.join(folder, _SOCKET))


@contextlib.contextmanager
def keeping(directory: Path) -> Iterator[tuple[Client, WorkspaceState] | None]:
    """A line to the daemon and the workspace's state, if one runs and keeps the workspace that this folder lies in."""
    if not _may_run():
        yield None
        return
    from metasync.service import client

    with client.connected() as daemon:
        found = daemon.workspace(directory) if daemon is not None else None
        yield (daemon, found) if daemon is not None and found is not None else None


def refuse_kept(folder: Path) -> None:
    """`WorkspaceError` where the daemon keeps this very folder: it is at work with the local state that is there."""
    with keeping(folder) as found:
        if found is None or Path(found[1].directory) != Path(os.path.realpath(folder)):
            return
    from shlex import quote

    from metasync.errors import WorkspaceError

    name = quote(str(folder))
    raise WorkspaceError(
        f"the daemon keeps {folder} in step, and has its local state open",
        next_step=f"Have it let go first: metasync daemon remove {name}. Afterwards: metasync daemon add {name}.",
    )


@contextlib.contextmanager
def mending(options: Options, console: Console) -> Iterator[Workspace]:
    """The workspace, for what may end a problem of it. A daemon that keeps it goes on afterwards, and waits no more."""
    with opened(options, console) as workspace:
        folder = workspace.directory
        yield workspace
    go_on(folder)


def go_on(folder: Path | None = None) -> None:
    """Has the daemon, if one runs, try again at once what it waits with: in a folder, or in all that it keeps."""
    if not _may_run():
        return
    from metasync.service import client

    with contextlib.suppress(MetaSyncError, OSError), client.connected() as daemon:
        if daemon is None:
            return
        kept = daemon.status().workspaces if folder is None else filter(None, [daemon.workspace(folder)])
        for one in kept:
            if any(p.blocks or p.kind == "backend" for p in one.problems):
                daemon.sync_now(Path(one.directory))


def done(console: Console, through: Callable[[Client, Path], T], alone: Callable[[], T]) -> T:
    """What `through` gives where the daemon keeps the folder, else what `alone` gives.

    With `--now` the command works by itself: the daemon heeds a pause. So it does where the daemon cannot serve it.
    """
    options: Options = console.options
    if options.now:
        return alone()
    from metasync.service.wire.protocol import UnservedError

    try:
        with keeping(options.directory) as found:
            if found is not None:
                daemon, state = found
                return through(daemon, Path(state.directory))
    except UnservedError as e:
        console.event(Notice(f"{e.message}; going on without it", warning=True))
    return alone()
