"""`backend ...`: the agreed set of backends, this device's ways to them, and what a store is fit for."""

from __future__ import annotations

from typing import Any, Literal

import click

from metasync.errors import UnreachableError
from metasync.terminal import prompt
from metasync.terminal.by_daemon import mending
from metasync.terminal.console import Console, Options, common, opened, passes_pause
from metasync.terminal.names import completing
from metasync.terminal.passphrase import if_needed
from metasync.terminal.text import backends_text, phrases

UNREACHABLE_CODE = 5  # of the whole of what was asked, as where a quorum is missing


@click.group()
@common
def backend() -> None:
    """Lists, links, adds, changes, removes and checks backends.

    \b
    Example:
      metasync backend list
    """


@backend.command("list")
@common
@click.pass_obj
def backend_list(options: Options) -> None:
    """Lists the workspace's backends, and what they survive.

    used: packs there, counted by the index. share: the part of all packs that a backend gets. free: what its
    provider tells. Long URLs are cut, but with --verbose.

    \b
    Example:
      metasync backend list --json
    """
    console = Console(options)
    with opened(options, console) as w:
        listed = w.backend_list()
    lines = [
        listed.survives,
        "",
        *backends_text.backends(listed.backends, verbose=options.verbose),
        *backends_text.moving(listed.moving),
    ]
    console.report("backend list", lines, listed)


@backend.command("link")
@click.argument("name", shell_complete=completing("backends"))
@click.argument("url")
@common
@click.pass_obj
def backend_link(options: Options, name: str, url: str) -> None:
    """Tells this device how to reach a backend of the workspace.

    Linking it anew also ends the warning that it is not to be trusted: do so once you looked into it.

    \b
    Example:
      metasync backend link usb file:///mnt/usb/metasync
    """
    console = Console(options)
    with mending(options, console) as w:
        state = w.link(name, url)
    console.report("backend link", [f"Linked {name}: {state.url}"], state)


@backend.command("unlink")
@click.argument("name", shell_complete=completing("backends"))
@common
@click.pass_obj
def backend_unlink(options: Options, name: str) -> None:
    """Has this device forget how to reach a backend.

    The backend stays in the workspace, and other devices go on with it; this one warns of it no more. Of a removed
    backend, forgets what may still be read there.

    \b
    Example:
      metasync backend unlink usb
    """
    console = Console(options)
    with opened(options, console) as w:
        state = w.link(name, None)
    lines = [f"This device has no way to {name} any more. To link it again: metasync backend link {name} URL"]
    console.report("backend unlink", lines, state)


_dry_run = click.option("--dry-run", is_flag=True, help="Show what would become of the set, and change nothing.")


@backend.command("add")
@click.argument("url")
@click.option(
    "--replace",
    "replaces",
    metavar="NAME",
    default=None,
    shell_complete=completing("backends"),
    help="Remove this backend in the same step.",
)
@_dry_run
@common
@click.pass_obj
def backend_add(options: Options, url: str, replaces: str | None, dry_run: bool) -> None:
    """Adds a backend for all devices, and links this one to it.

    Other devices go on as they are; `metasync backend link` there tells them how to reach it. Stored data stay
    where they are. --replace takes out a backend that is dead or was emptied, in the same step; the new one may have
    its URL.

    Asks for the passphrase where the voting backends that were signed for with it make no quorum any more.

    \b
    Example:
      metasync backend add 'file:///mnt/usb/metasync?name=usb&capacity=64GiB'
    """
    console = Console(options)
    with mending(options, console) as w:
        done = if_needed(lambda given: w.backend_add(url, replaces=replaces, passphrase=given, dry_run=dry_run))
    console.report("backend add", backends_text.backend_change("add", done), done)


@backend.command("remove")
@click.argument("name", shell_complete=completing("backends"))
@click.option("--dead", is_flag=True, help="It is lost for good: no device asks it for anything any more.")
@click.option("--wipe", is_flag=True, help="Have its data moved, then delete what the workspace has on it.")
@click.option("-y", "--yes", is_flag=True, help="With --dead: give up what only it had, without a question.")
@_dry_run
@common
@click.pass_obj
def backend_remove(options: Options, name: str, dead: bool, wipe: bool, yes: bool, dry_run: bool) -> None:
    """Removes a backend, for all devices.

    What it holds is left there, and read until `metasync rebalance` has moved it. --wipe moves the data at once, and
    then deletes what the workspace has there, and nothing else; what is left then goes with later pushes and with
    `metasync rebalance`, on any device that has its way. --dead is for one that will never answer again, also if it
    was removed before: nobody waits for it any more, or empties it. What only it had is named first, and asked about.

    Asks for the passphrase where fewer backends may lie then than the workspace promises, and where the voting backends
    that were signed for with it make no quorum any more.

    \b
    Example:
      metasync backend remove usb
      metasync backend remove usb --dead
    """
    console = Console(options)
    with mending(options, console) as w:
        asks = dead and not (yes or dry_run or options.json or options.quiet)
        if asks and prompt.somebody():
            plan = w.backend_remove(name, dry_run=True, dead=True)
            if plan.lost_packs:
                for line in backends_text.losses(plan, verbose=options.verbose):
                    console.line(line)
                console.confirm(f"Give up what only {name} had?")
                yes = True
        wanted: dict[str, Any] = {"dry_run": dry_run, "dead": dead, "lose": yes, "wipe": wipe}
        done = if_needed(lambda given: w.backend_remove(name, passphrase=given, **wanted))
    codes = [7] * bool(done.lost_packs) + [4] * bool(done.wiped and done.wiped.left)
    console.report("backend remove", backends_text.backend_change("remove", done), done, codes)


@backend.command("set")
@click.argument("name", shell_complete=completing("backends"))
@click.option("--name", "new_name", default=None, metavar="NAME", help="The new name.")
@click.option("--capacity", default=None, metavar="SIZE", help="How much data it may hold, such as 15GiB.")
@click.option("--role", type=click.Choice(["both", "storage"]), default=None,
              help="both: holds data and votes; storage: holds data only.")  # fmt: skip
@_dry_run
@common
@click.pass_obj
def backend_set(
    options: Options,
    name: str,
    new_name: str | None,
    capacity: str | None,
    role: Literal["both", "storage"] | None,
    dry_run: bool,
) -> None:
    """Changes a backend's name, capacity or role, for all devices.

    \b
    Example:
      metasync backend set usb --capacity 128GiB --name big-usb
    """
    from metasync.backends.registry import parse_bytes

    console = Console(options)
    if new_name is None and capacity is None and role is None:
        raise click.UsageError("Say what to change: --name, --capacity or --role.")
    size = parse_bytes(capacity) if capacity is not None else None
    with mending(options, console) as w:
        wanted: dict[str, Any] = {"capacity_bytes": size, "new_name": new_name, "role": role, "dry_run": dry_run}
        done = if_needed(lambda given: w.backend_set(name, passphrase=given, **wanted))
    console.report("backend set", backends_text.backend_change("set", done), done)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be moved and freed.")
@click.option("--read-data", is_flag=True, help="Verify every copy by reading it back, whatever its provider tells.")
@passes_pause
@common
@click.pass_obj
def rebalance(options: Options, dry_run: bool, read_data: bool) -> None:
    """Moves data to where they belong since the backends changed.

    Copies what a change of the backends displaced, verifies every copy, has that agreed, and then deletes what is
    surplus, and what is left on removed backends that are to be emptied. Pushes go on meanwhile. Stopped at any point,
    it goes on when run again, here or on another device; several devices may share the work. Ends with 4 while
    something is left to do.

    \b
    Example:
      metasync rebalance --dry-run
      metasync rebalance
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.rebalance(dry_run=dry_run, read_data=read_data)
    codes = [] if dry_run or r.is_whole else [4]
    console.report("rebalance", backends_text.rebalance(r), r, [*([7] if r.lost else []), *codes])


@click.command()
@click.option(
    "--without",
    "without",
    multiple=True,
    required=True,
    metavar="NAME",
    shell_complete=completing("backends"),
    help="A backend to do without; may be repeated.",
)
@click.option("--read-data", is_flag=True, help="Read every copy on the others, whatever their providers tell.")
@common
@click.pass_obj
def drill(options: Options, without: tuple[str, ...], read_data: bool) -> None:
    """Shows whether all would go on without some backends.

    Asks those backends nothing: has the others tell the newest version, looks there for a copy of every pack and of
    all that a new device needs, and names the files that would be lost. Changes nothing. Ends with 7 where something
    would be lost, with 4 where something else would not go on.

    \b
    Example:
      metasync drill --without usb
      metasync drill --without usb --without box --read-data
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.drill(without, read_data=read_data)
    codes = [7] * bool(r.lost) + [4] * (not r.is_passed)
    console.report("drill", backends_text.drill(r, verbose=options.verbose), r, codes)


@backend.command("check")
@click.argument("url")
@click.option("--quick", is_flag=True, help="A fifth of the requests and bytes, and a weaker answer.")
@click.option("--thorough", is_flag=True, help="Four times the requests, and a gigabyte.")
@common
@click.pass_obj
def backend_check(options: Options, url: str, quick: bool, thorough: bool) -> None:
    """Tests whether a store may vote, holds data only, or is unfit.

    Makes about 10,000 requests and moves about 130 MB, in a folder of its own (metasync-check-...) that it removes
    again. Needs no workspace and no passphrase.

    \b
    Example:
      metasync backend check file:///mnt/usb/metasync
      metasync backend check --quick 's3://bucket/prefix?endpoint=https://s3.example.org'
    """
    from metasync.backends.registry import parse_url
    from metasync.session import open_backend
    from metasync.testing import contract

    console = Console(options)
    if quick and thorough:
        raise click.UsageError("--quick and --thorough exclude each other.")
    scale = contract.QUICK if quick else contract.THOROUGH if thorough else contract.STANDARD
    parsed = parse_url(url)
    folder = contract.scratch_name()
    console.line(f"Checking {parsed.location} in the folder {folder}.")

    def tell(told: contract.Told) -> None:
        if isinstance(told, contract.Outcome):
            console.line(backends_text.outcome(told))
        else:
            console.event(told)

    try:
        open_backend.refuse_silent(parsed)
        report = contract.run(
            contract.Store.at(parsed.location),
            folder,
            scale=scale,
            on_event=tell,
            storage_only="its URL says role=storage" if parsed.role == "storage" else "",
        )
    except UnreachableError as error:
        error.exit_code = UNREACHABLE_CODE
        raise
    value = {"url": parsed.location, "folder": folder, **phrases.value(report)}
    console.report("backend check", backends_text.verdict(report), value, [1] if report.verdict == "unfit" else [])
