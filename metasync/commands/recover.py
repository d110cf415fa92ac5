"""`recover`: restarts the workspace when a majority of its backends is lost for good."""

from __future__ import annotations

import click

from metasync.errors import UsageError
from metasync.terminal import backends_text, prompt
from metasync.terminal.console import Console, Options, common, opened
from metasync.terminal.names import completing
from metasync.terminal.passphrase import tried


@click.command()
@click.option(
    "--without",
    "without",
    multiple=True,
    required=True,
    metavar="NAME",
    shell_complete=completing("backends"),
    help="A backend that is lost for good; may be repeated.",
)
@click.option(
    "--confirm", default=None, metavar="NAME", help="The workspace's name, where there is no terminal to ask on."
)
@click.option("--dry-run", is_flag=True, help="Show what is known and what may be lost, and change nothing.")
@common
@click.pass_obj
def recover(options: Options, without: tuple[str, ...], confirm: str | None, dry_run: bool) -> None:
    """Restarts the workspace when most backends are lost for good.

    Only for accounts that are closed and disks that are dead. While backends are merely away, wait; where the
    others can still agree, use `metasync backend remove`. Asks for the passphrase (or the recovery phrase), and for
    the workspace's name.

    Goes on from the newest version that is known here and on the backends that are left. What only the lost ones
    held is on the devices that pushed or pulled it: they merge it by themselves when they meet the restart.

    \b
    Example:
      metasync recover --without box --without work-drive --dry-run
      metasync recover --without box --without work-drive
    """
    console = Console(options)
    with opened(options, console) as w:
        name = w.name
        if dry_run or (confirm is None and prompt.somebody()):
            r = w.recover(without, "", dry_run=True)
            if dry_run:
                console.report("recover", backends_text.recovery(r), r)
            for line in backends_text.recovery(r):
                console.line(line)
            confirm = prompt.line(f"Type the workspace's name ({name}) to restart it")
        if confirm is None:
            raise UsageError(
                "a restart is to be confirmed, and there is no terminal to ask on",
                next_step=f"Give the workspace's name: --confirm {name!r}.",
            )
        if confirm != name:
            raise UsageError(f"the workspace is called {name!r}, not {confirm!r}; nothing was changed")
        r = tried(lambda given: w.recover(without, given, confirm=confirm))
    console.report("recover", backends_text.recovery(r), r, [7] if r.missing else [])
