"""`backend ...`: the agreed set of backends, and this device's ways to them."""

from __future__ import annotations

import click

from metasync import render
from metasync.console import Console, Options, common, opened


@click.group()
@common
def backend() -> None:
    """Shows the agreed backends, and links this device to them.

    \b
    Example:
      metasync backend list
    """


@backend.command("list")
@common
@click.pass_obj
def backend_list(options: Options) -> None:
    """Lists the backends of the workspace, and how each fares.

    \b
    Example:
      metasync backend list --json
    """
    console = Console(options)
    with opened(options, console) as w:
        items = w.backends()
    console.report("backend list", render.backends(items), {"backends": render.value(items)})


@backend.command("link")
@click.argument("name")
@click.argument("url")
@common
@click.pass_obj
def backend_link(options: Options, name: str, url: str) -> None:
    """Tells this device the way to a backend of the workspace.

    \b
    Example:
      metasync backend link usb file:///mnt/usb/metasync
    """
    console = Console(options)
    with opened(options, console) as w:
        state = w.link(name, url)
    console.report("backend link", [f"Linked {name}: {state.url}"], render.value(state))
