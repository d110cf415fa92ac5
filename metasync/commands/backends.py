"""`backend ...`: the agreed set of backends, this device's ways to them, and what a store is fit for."""

from __future__ import annotations

import click

from metasync import render
from metasync.backends._registry import parse_url
from metasync.console import Console, Options, common, opened
from metasync.errors import UnreachableError

UNREACHABLE_CODE = 5  # of the whole of what was asked, as where a quorum is missing


@click.group()
@common
def backend() -> None:
    """Shows the agreed backends, links this device to them, and checks what a store is fit for.

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


@backend.command("check")
@click.argument("url")
@click.option("--quick", is_flag=True, help="A third of the requests, a fifth of the bytes, and a weaker answer.")
@click.option("--thorough", is_flag=True, help="Four times the requests, and a gigabyte.")
@common
@click.pass_obj
def backend_check(options: Options, url: str, quick: bool, thorough: bool) -> None:
    """Finds out whether a store may vote, holds data only, or is unfit.

    Makes about 6,000 requests and moves about 130 MB, in a folder of its own (metasync-check-...) that it removes
    again. Needs no workspace and no passphrase.

    \b
    Example:
      metasync backend check file:///mnt/usb/metasync
      metasync backend check --quick 's3://bucket/prefix?endpoint=https://s3.example.org'
    """
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
            console.line(render.outcome(told))
        else:
            console.event(told)

    try:
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
    value = {"url": parsed.location, "folder": folder, **render.value(report)}
    console.report("backend check", render.verdict(report), value, [1] if report.verdict == "unfit" else [])
