"""`key ...`: which keys there are, another passphrase, other keys."""

from __future__ import annotations

import click

from metasync.terminal.console import Console, Options, common, opened
from metasync.terminal.passphrase import anyway_option, checked, new_passphrase, tried
from metasync.terminal.text import devices_text


@click.group()
@common
def key() -> None:
    """Shows the keys, changes them, or changes the passphrase.

    \b
    Example:
      metasync key show
    """


@key.command("show")
@common
@click.pass_obj
def key_show(options: Options) -> None:
    """Lists keys, key slots and keyrings, and where they are.

    Shows neither the keys themselves nor the recovery phrase.

    \b
    Example:
      metasync key show
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.key_show()
    console.report("key show", devices_text.keys(r), r)


@key.command("change-passphrase")
@click.option("--dry-run", is_flag=True, help="Only check the passphrase.")
@anyway_option
@common
@click.pass_obj
def key_change_passphrase(options: Options, dry_run: bool, anyway: bool) -> None:
    """Changes the passphrase, and no keys.

    The recovery phrase stays as well. Whoever knew the old passphrase may hold the keys already, or a copy of the
    old key slot: if that may be, run `metasync key rotate`.

    \b
    Example:
      metasync key change-passphrase
    """
    console = Console(options)
    with opened(options, console) as w:
        if dry_run:
            r = tried(lambda given: w.key_change_passphrase(given, given, dry_run=True))
        else:
            current = checked(lambda given: w.key_change_passphrase(given, given, dry_run=True))
            r = w.key_change_passphrase(current, new_passphrase(anyway=anyway))
    lines = devices_text.passphrase(r, dry_run=dry_run)
    console.report("key change-passphrase", lines, r)


@key.command("rotate")
@click.option("--keep-passphrase", is_flag=True, help="Do not ask for a new passphrase.")
@click.option("--dry-run", is_flag=True, help="Only check the passphrase.")
@anyway_option
@common
@click.pass_obj
def key_rotate(options: Options, keep_passphrase: bool, dry_run: bool, anyway: bool) -> None:
    """Changes the keys, for all that is written from now on.

    Also makes a new recovery phrase. What was written before stays under the old keys: whoever has those can read
    it, if it can be reached. Takes the passphrase or the recovery phrase. Devices follow by themselves; open
    invitations end.

    \b
    Example:
      metasync key rotate
      metasync key rotate --keep-passphrase
    """
    console = Console(options)
    with opened(options, console) as w:
        if keep_passphrase or dry_run:
            r = tried(lambda given: w.key_rotate(given, dry_run=dry_run))
        else:
            current = checked(lambda given: w.key_rotate(given, dry_run=True))
            r = w.key_rotate(current, new_passphrase=new_passphrase(anyway=anyway))
    console.report("key rotate", devices_text.rotation(r), r, devices_text.codes(r), once=r.recovery_phrase)
