"""`device ...` and `invite`: who may write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metasync.errors import UsageError
from metasync.terminal.console import Console, Options, common, opened
from metasync.terminal.names import completing
from metasync.terminal.passphrase import anyway_option, checked, new_passphrase, tried
from metasync.terminal.text import devices_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.reports.members import InvitationInfo


@click.group()
@common
def device() -> None:
    """Lists, renames and revokes devices.

    \b
    Example:
      metasync device list
    """


@device.command("list")
@common
@click.pass_obj
def device_list(options: Options) -> None:
    """Lists devices, open invitations, and logins to be withdrawn.

    Beside each device stands the version that it pushed last, and when: a device that only pulls leaves no trace for
    the others. A revoked device still has its logins at the providers. They are listed until `metasync device confirm`.

    \b
    Example:
      metasync device list --json
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.device_list()
    console.report("device list", devices_text.devices(r), r, [5] if r.problem else [])


@device.command("revoke")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=completing("devices"))
@click.option("--keep-passphrase", is_flag=True, help="Do not ask for a new passphrase.")
@click.option("--dry-run", is_flag=True, help="Only show who would be revoked, and what is to be withdrawn.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask whether you are sure.")
@anyway_option
@common
@click.pass_obj
def device_revoke(
    options: Options, names: tuple[str, ...], keep_passphrase: bool, dry_run: bool, yes: bool, anyway: bool
) -> None:
    """Revokes devices by new keys, or takes invitations back.

    NAME is the name of a device or of an invitation, or the beginning of its id. Asks for the passphrase (or the
    recovery phrase) and for a new one, since whoever has the device may know the old one. Taking an invitation back
    needs no passphrase.

    A revoked device keeps what it had read, and its logins at the providers. Withdraw those there: they are listed
    until you say so with `metasync device confirm`.

    \b
    Example:
      metasync device revoke phone
      metasync device revoke phone --keep-passphrase
    """
    console = Console(options)
    with opened(options, console) as w:
        listed = w.device_list()
        admitted = {d.name for d in listed.devices}
        invited = [n for n in names if n not in admitted and any(_means(n, i) for i in listed.invitations)]
        if invited and len(invited) < len(names):
            raise UsageError(
                f"{', '.join(invited)}: an invitation, to be taken back by a command of its own",
                next_step="Devices and invitations cannot be given together.",
            )
        if invited:
            taken = w.invitation_revoke(invited, dry_run=dry_run)
            console.report("device revoke", devices_text.taken_back(taken), taken)
        what = f"Revoke {', '.join(names)}, and change the keys of the workspace?"
        if not dry_run and not yes:
            console.confirm(what)
        if keep_passphrase or dry_run:
            r = tried(lambda given: w.device_revoke(names, given, dry_run=dry_run))
        else:
            current = checked(lambda given: w.device_revoke(names, given, dry_run=True))
            r = w.device_revoke(names, current, new_passphrase=new_passphrase(anyway=anyway))
    console.report("device revoke", devices_text.rotation(r), r, devices_text.codes(r), once=r.recovery_phrase)


@device.command("rename")
@click.argument("name")
@click.argument("new_name")
@click.option("--dry-run", is_flag=True, help="Only check the names.")
@common
@click.pass_obj
def device_rename(options: Options, name: str, new_name: str, dry_run: bool) -> None:
    """Gives a device another name.

    NAME is its name, or the beginning of its id. All devices use the new name from then on, in `metasync log` for its
    earlier versions too. Needs no passphrase.

    \b
    Example:
      metasync device rename laptop old-laptop
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.device_rename(name, new_name, dry_run=dry_run)
    console.report("device rename", devices_text.renamed(r), r)


@device.command("confirm")
@click.argument("name", shell_complete=completing("devices"))
@click.argument("backends", nargs=-1, metavar="[BACKEND...]", shell_complete=completing("backends"))
@click.option("--dry-run", is_flag=True, help="Only show what would be left.")
@common
@click.pass_obj
def device_confirm(options: Options, name: str, backends: tuple[str, ...], dry_run: bool) -> None:
    """Notes that the logins of a revoked device were withdrawn.

    They were withdrawn at the given backends, or at all of them if none is given.

    \b
    Example:
      metasync device confirm phone
      metasync device confirm phone work-box
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.device_confirm(name, backends, dry_run=dry_run)
    console.report("device confirm", devices_text.confirmed(r), r)


@click.command()
@click.argument("name")
@click.option("--expires", type=click.IntRange(0), default=None, metavar="N",
              help="End it after N versions (default 1000); 0: never.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write the code to a file.")
@click.option("--dry-run", is_flag=True, help="Only check passphrase and name.")
@common
@click.pass_obj
def invite(options: Options, name: str, expires: int | None, out: Path | None, dry_run: bool) -> None:
    """Invites a device, which joins without the passphrase.

    Prints a code for one new device called NAME. Hand it over on a way that nobody else reads: whoever uses it
    first is admitted. It works once, ends after some versions or when the keys are changed, and `metasync device
    revoke NAME` takes it back. It holds no login for a provider: the new device needs its own.

    \b
    Example:
      metasync invite tablet
      metasync invite tablet --out ~/tablet.txt
      metasync clone ~/Documents --invite tablet.txt     (there)
    """
    console = Console(options)
    out = options.directory / out if out is not None else None
    if out is not None and (out.exists() or not out.parent.is_dir()):
        why = "is there already" if out.exists() else f"cannot be made: there is no directory {out.parent}"
        raise UsageError(f"{out} {why}", next_step="Choose another file.")
    with opened(options, console) as w:
        if out is not None and out.resolve().is_relative_to(w.directory.resolve()):
            raise UsageError(
                f"{out} lies inside the workspace: the code would be pushed", next_step="Choose a place outside of it."
            )
        r = tried(lambda given: w.invite(name, given, expires_after=expires, dry_run=dry_run))
    if out is not None and not dry_run:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as f:
            f.write(r.code + "\n")
    console.report("invite", devices_text.invitation(r, out), r, once="" if out is not None else r.code)


def _means(word: str, i: InvitationInfo) -> bool:
    from metasync.members.devices import ID_DIGITS_LEAST

    return word == i.name or (len(word) >= ID_DIGITS_LEAST and i.invitation_id.startswith(word.lower()))
