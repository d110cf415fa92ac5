"""`recover` and `skip`: how a workspace goes on past lost backends, ended versions, and ones that cannot be read."""

from __future__ import annotations

import click

from metasync.errors import UsageError
from metasync.terminal import prompt
from metasync.terminal.by_daemon import mending
from metasync.terminal.console import Console, Options, common
from metasync.terminal.names import completing
from metasync.terminal.passphrase import anyway_option, checked, new_passphrase, tried
from metasync.terminal.text import backends_text, history_text


@click.command()
@click.option(
    "--without",
    "without",
    multiple=True,
    metavar="NAME",
    shell_complete=completing("backends"),
    help="A backend that is lost for good; may be repeated.",
)
@click.option(
    "--revoke",
    "revoke",
    multiple=True,
    metavar="NAME",
    shell_complete=completing("devices"),
    help="A device to be revoked with it, by name or the beginning of its id; may be repeated.",
)
@click.option("--keep-passphrase", is_flag=True, help="With --revoke: do not ask for a new passphrase.")
@click.option(
    "--confirm", default=None, metavar="NAME", help="The workspace's name, where there is no terminal to ask on."
)
@click.option("--dry-run", is_flag=True, help="Show what is known and what may be lost, and change nothing.")
@anyway_option
@common
@click.pass_obj
def recover(
    options: Options,
    without: tuple[str, ...],
    revoke: tuple[str, ...],
    keep_passphrase: bool,
    confirm: str | None,
    dry_run: bool,
    anyway: bool,
) -> None:
    """Restarts past lost backends, or a version that was ended.

    With --without: only for accounts that are closed and disks that are dead. While backends are merely away, wait;
    where the others can still agree, use `metasync backend remove`. Without it: where every command says that a version
    cannot be agreed any more, though the backends answer. Asks for the passphrase (or the recovery phrase), and for
    the workspace's name.

    Goes on from the newest version that is known here and on the backends that are left. What only the lost ones
    held is on the devices that pushed or pulled it: they merge it by themselves when they meet the restart.

    A device that ended a version can do it again. --revoke shuts it out with the restart, by new keys, as `metasync
    device revoke` does; it asks for a new passphrase too.

    \b
    Example:
      metasync recover --without box --without work-drive --dry-run
      metasync recover --without box --without work-drive
      metasync recover --revoke phone
    """
    console = Console(options)
    with mending(options, console) as w:
        name = w.name
        if dry_run or (confirm is None and prompt.somebody()):
            r = w.recover(without, "", revoke=revoke, dry_run=True)
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
        if not revoke or keep_passphrase:
            r = tried(lambda given: w.recover(without, given, revoke=revoke, confirm=confirm))
        else:
            w.recover(without, "", revoke=revoke, dry_run=True)  # before anything is asked that it may not need
            current = checked(lambda given: w.recover(without, given, revoke=revoke, dry_run=True))
            new = new_passphrase(anyway=anyway)
            r = w.recover(without, current, revoke=revoke, new_passphrase=new, confirm=confirm)
    once = r.keys.recovery_phrase if r.keys is not None else ""
    console.report("recover", backends_text.recovery(r), r, [7] if r.missing else [], once=once)


@click.command()
@click.argument("version", type=click.IntRange(min=1))
@click.option("--dry-run", is_flag=True, help="Show what would be skipped and which tree is taken, and change nothing.")
@common
@click.pass_obj
def skip(options: Options, version: int, dry_run: bool) -> None:
    """Passes over versions that cannot be read, for all devices.

    Only where an error names VERSION: something of it is lost on all backends, or was never right. Makes a new version
    that has the tree of the last one that can be read. All versions between are passed over. Asks for the passphrase
    (or the recovery phrase).

    Nothing is taken from a folder: who has files of a skipped version keeps them, and pushes them again.

    \b
    Example:
      metasync skip 12 --dry-run
      metasync skip 12
    """
    console = Console(options)
    with mending(options, console) as w:
        r = tried(lambda given: w.skip(version, given, dry_run=dry_run))
    console.report("skip", history_text.skip(r), r)
