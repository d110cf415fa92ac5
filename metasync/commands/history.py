"""`log`: what was agreed before."""

from __future__ import annotations

import click

from metasync import render
from metasync.console import Console, Options, common, opened


@click.command()
@click.option("-n", "--limit", type=click.IntRange(1), default=None, help="At most so many versions.")
@common
@click.pass_obj
def log(options: Options, limit: int | None) -> None:
    """Shows the agreed history, newest first.

    \b
    Example:
      metasync log -n 10
    """
    console = Console(options)
    with opened(options, console) as w:
        items = w.log(limit=limit)
    console.report("log", render.log(items), {"versions": render.value(items)})
