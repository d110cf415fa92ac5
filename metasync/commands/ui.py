"""`ui`: the page that shows workspaces and works at them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from metasync.errors import MetaSyncError, UsageError, WorkspaceError
from metasync.events import Notice
from metasync.terminal.console import Console, Options, common

if TYPE_CHECKING:  # asking for help loads no server
    from metasync.dashboard.gate import Gate

NEEDED: Final = ("starlette", "uvicorn")
OPENER: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>MetaSync</title>
<p><a href="{url}">Open the page</a></p>
"""


@click.command()
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Serve on port N; else on any.")
@common
@click.pass_obj
def ui(options: Options, directory: Path | None, no_browser: bool, port: int) -> None:
    """Opens a page in the browser: state, files, history.

    It shows conflicts, backends, devices and settings, too, and works at them.

    The page is for your browser on this machine alone. Its address works once: run the command again for another
    browser. It ends with Ctrl-C, or when no page was open for two minutes.

    \b
    Example:
      metasync ui ~/Documents
      metasync ui --no-browser --port 8765
    """
    refuse_missing()
    from metasync.dashboard.server import Server
    from metasync.dashboard.sources import Daemon

    console = Console(options)
    try:
        keeper = Daemon.found()
    except MetaSyncError as e:
        keeper = None
        console.event(Notice(f"the page works without the daemon: {e.message}", warning=True))
    folders = _folders(options.directory, directory, keeper is not None and bool(keeper.directories()))
    server = Server(folders, port=port, keeper=keeper)

    with tempfile.TemporaryDirectory(prefix="metasync-page-") as private:

        def ready(gate: Gate) -> None:
            if options.json:
                click.echo(json.dumps({"command": "ui", "exit_code": 0, "url": gate.url}, indent=2))
            elif options.quiet:
                click.echo(gate.url)
            else:
                console.line(f"The page: {gate.url}")
                console.line("It opens once, in one browser. Ctrl-C ends it.")
            if not no_browser and has_screen():
                threading.Thread(target=opened, args=(gate.url, Path(private)), daemon=True).start()

        server.run(ready)
    if not options.json:
        console.line("The page has ended.")


def _folders(here: Path, named: Path | None, others: bool) -> list[Path]:
    """The workspace that was named, or that one stands in. `others`: there are those of the daemon, so none will do."""
    from metasync.session.folder import folder_above

    try:
        return [folder_above(here / (named or ""))]
    except WorkspaceError:
        if named is None and others:
            return []
        raise


def refuse_missing() -> None:
    """`UsageError` where the extra `ui` is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the page needs {' and '.join(missing)}", next_step="pip install 'metasync[ui]'")


def has_screen() -> bool:
    """Whether a browser would open in a window: one for terminals would take this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def opened(url: str, private: Path, browse: Callable[[str], object] | None = None) -> None:
    """Opens the address in the user's browser, by a file that is the user's alone in a folder that is so too.

    The address itself would stand in the arguments of a process, which every user of the machine can list.
    """
    import webbrowser

    path = private / "open.html"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(OPENER.format(url=url))
    (browse or webbrowser.open)(path.as_uri())
