"""`daemon ...`: keeps folders in step in the background."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from metasync.codec import printable
from metasync.errors import WorkspaceError
from metasync.terminal.console import Console, Finish, Options, common
from metasync.terminal.text import daemon_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no daemon
    from metasync.reports.service import DaemonState
    from metasync.service.client import Client

ENTRIES: Final = 50  # of the log, where nothing else is said
ENTRIES_MOST: Final = 100_000


@click.group()
@common
def daemon() -> None:
    """Keeps folders in step in the background.

    One daemon keeps all your workspaces on this machine. What changes here is pushed within seconds, what others
    pushed comes by itself. The other commands work as ever beside it.

    \b
    Example:
      metasync daemon start ~/Documents
    """


@daemon.command("run")
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR]...")
@common
@click.pass_obj
def daemon_run(options: Options, directories: tuple[Path, ...]) -> None:
    """Runs the daemon in the foreground until it is stopped.

    Keeps the workspaces that were added, and those at DIR. Prints what goes into its log, unless --quiet; with --json
    as one object a line, on stderr. SIGTERM and Ctrl-C end it in order.

    \b
    Example:
      metasync daemon run ~/Documents
    """
    from metasync import daemon as process
    from metasync.service.telling.logs import shown

    console = Console(options)

    def also(entry: Mapping[str, Any]) -> None:
        if options.json:
            click.echo(json.dumps({"t": round(time.time(), 3), **entry}, default=str), err=True)
        else:
            click.echo(printable(shown({"t": time.time(), **entry})), err=True)

    process.run([options.directory / d for d in directories], also=(lambda _: None) if options.quiet else also)
    console.report("daemon run", ["The daemon has ended."], {})


@daemon.command("start")
@click.argument("directory", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@common
@click.pass_obj
def daemon_start(options: Options, directory: Path | None) -> None:
    """Starts the daemon, and has it keep the workspace at DIR.

    Without DIR it is the workspace that the current directory lies in, if it lies in one. Where a daemon runs already,
    the workspace is added to it. It ends with `metasync daemon stop` or when the machine is shut down: `metasync daemon
    install` has it started with each login.

    \b
    Example:
      metasync daemon start ~/Documents
    """
    from metasync import daemon as process

    console = Console(options)
    state = process.start(_wanted(options, directory))
    console.report("daemon start", daemon_text.status(state, time.time()), _document(state))


def _wanted(options: Options, directory: Path | None) -> Path | None:
    """The workspace to be kept; None where none is named and none is here."""
    from metasync.session.folder import folder_above

    if directory is not None:
        return folder_above(options.directory / directory)
    try:
        return folder_above(options.directory)
    except WorkspaceError:
        return None


@daemon.command("stop")
@common
@click.pass_obj
def daemon_stop(options: Options) -> None:
    """Stops the daemon; what it has under way goes on next time.

    \b
    Example:
      metasync daemon stop
    """
    from metasync import daemon as process
    from metasync.service import install

    console = Console(options)
    was_running = process.stop()
    if was_running and install.is_installed():
        install.stop()
    lines = ["The daemon has ended."] if was_running else ["No daemon was running."]
    console.report("daemon stop", lines, {"was_running": was_running})


@daemon.command("status")
@common
@click.pass_obj
def daemon_status(options: Options) -> None:
    """Shows what the daemon does, folder by folder.

    In step: nothing is to be done, as far as the backends told when they were last asked. Else what is going on, what
    waits, what is wrong, since when, and what to do. Exit code 1 where no daemon runs, 3 where one of the folders
    waits for you.

    \b
    Example:
      metasync daemon status --json
    """
    console = Console(options)
    with _running() as found:
        state = found.status()
    is_stuck = any(p.blocks or p.asks or p.kind == "conflict" for w in state.workspaces for p in w.problems)
    console.report("daemon status", daemon_text.status(state, time.time()), _document(state), [3] if is_stuck else [])


@daemon.command("pause")
@click.argument("duration", required=False)
@common
@click.pass_obj
def daemon_pause(options: Options, duration: str | None) -> None:
    """Has all folders of the daemon rest, for a time or until `resume`.

    DURATION is such as 90m, 2h, 1h30m or 2d. `metasync pause` has one workspace rest.

    \b
    Example:
      metasync daemon pause 2h
    """
    from metasync.runtime.limits import parse_duration

    console = Console(options)
    seconds = parse_duration(duration) if duration is not None else None
    with _running() as found:
        state = found.pause(None, seconds)
    console.report("daemon pause", daemon_text.status(state, time.time()), _document(state))


@daemon.command("resume")
@common
@click.pass_obj
def daemon_resume(options: Options) -> None:
    """Ends a pause of the daemon.

    \b
    Example:
      metasync daemon resume
    """
    console = Console(options)
    with _running() as found:
        state = found.resume()
    console.report("daemon resume", daemon_text.status(state, time.time()), _document(state))


@daemon.command("add")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@common
@click.pass_obj
def daemon_add(options: Options, directory: Path) -> None:
    """Has the daemon keep the workspace at DIR, from now on.

    \b
    Example:
      metasync daemon add ~/Photos
    """
    from metasync.service import client
    from metasync.service.registry import Registry
    from metasync.session.folder import folder_above

    console = Console(options)
    folder = client.real(folder_above(options.directory / directory))
    with client.connected() as found:
        if found is not None:
            found.add(folder)
            lines = [f"The daemon keeps {folder} in step."]
        else:
            Registry().add(folder)
            lines = [f"{folder} is kept in step when the daemon runs.", "Next: metasync daemon start"]
    console.report("daemon add", lines, {"directory": str(folder), "is_running": found is not None})


@daemon.command("remove")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@common
@click.pass_obj
def daemon_remove(options: Options, directory: Path) -> None:
    """Has the daemon keep the workspace at DIR no more.

    Nothing in the folder changes, and it is a workspace as before.

    \b
    Example:
      metasync daemon remove ~/Photos
    """
    from metasync.errors import UsageError
    from metasync.service import client
    from metasync.service.registry import Registry

    console = Console(options)
    given = client.real(options.directory / directory)
    registered = Registry().directories()
    folder = next((d for d in (given, *given.parents) if d in registered), None)  # also where the drive is away
    if folder is None:
        raise UsageError(f"the daemon does not keep {given}", next_step="`metasync daemon status` shows what it keeps.")
    with client.connected() as found:
        if found is not None:
            found.remove(folder)
        else:
            Registry().remove(folder)
    lines = [f"{folder} is not kept in step any more."]
    console.report("daemon remove", lines, {"directory": str(folder), "is_running": found is not None})


@daemon.command("log")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("-n", "--lines", "count", type=click.IntRange(0, ENTRIES_MOST), default=ENTRIES, metavar="N",
              help="Show the last N entries, 50 unless said otherwise.")  # fmt: skip
@common
@click.pass_obj
def daemon_log(options: Options, follow: bool, count: int) -> None:
    """Shows the daemon's log.

    The log is a JSON object a line, in files of a bounded size; here it is put into words. With --follow and --json
    each entry is printed as it is, one a line.

    \b
    Example:
      metasync daemon log -f
    """
    from metasync.service.telling import logs

    console = Console(options)
    entries = logs.last(logs.log_path(), count)
    if not follow:
        lines = [logs.shown(e) for e in entries] or ["The log is empty: no daemon has run yet."]
        console.report("daemon log", lines, {"entries": entries}, paged=True)
    for one in entries:
        _print(options, one)
    for one in logs.follow(logs.log_path(), threading.Event()):
        _print(options, one)
    raise Finish(0)


def _print(options: Options, entry: Mapping[str, Any]) -> None:
    from metasync.service.telling import logs

    click.echo(json.dumps(entry) if options.json else printable(logs.shown(entry)))
    sys.stdout.flush()


@daemon.command("install")
@click.option("--remove", is_flag=True, help="Stop it and take the service away.")
@common
@click.pass_obj
def daemon_install(options: Options, remove: bool) -> None:
    """Has the daemon started now and with each login.

    On Linux as a user unit of systemd, on macOS as an agent of launchd. A server where nobody logs in needs
    `loginctl enable-linger` as well.

    \b
    Example:
      metasync daemon install
    """
    from metasync import daemon as process
    from metasync.service import install
    from metasync.service.registry import daemon_folder

    console = Console(options)
    if remove:
        gone = install.uninstall()
        lines = [f"Stopped, and removed {gone.path}."] if gone else ["The daemon was not installed."]
        path = gone.path if gone else ""
        console.report("daemon install", lines, {"path": path, "by": gone.by if gone else "", "is_running": False})
    process.place()
    install.check()
    process.stop()  # one that was started by hand would be in the way
    done = install.install(daemon_folder() / process.OUTPUT)
    lines = [f"Installed {done.path}; {done.by} runs it now and with each login.", "Next: metasync daemon status"]
    console.report("daemon install", lines, done)


def _running() -> Client:
    """A line to the daemon. `WorkspaceError` where none runs."""
    from metasync.service import client
    from metasync.service.wire import alone, sockets

    if (found := client.connect()) is None:
        if (path := sockets.socket_path()) is not None:
            alone.check_reachable(path)
        raise WorkspaceError("no daemon runs", next_step="To start it: metasync daemon start")
    return found


def _document(state: DaemonState) -> dict[str, Any]:
    from metasync.service.wire.values import encode

    found: dict[str, Any] = encode(state)
    return found
