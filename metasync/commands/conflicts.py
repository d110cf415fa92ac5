"""`conflicts` and `resolve`: what two devices changed at once, and the choice between the sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from metasync.terminal import conflicts_text, text
from metasync.terminal.console import Console, Options, common, opened, path_in

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.workspace import Workspace


@click.command()
@common
@click.pass_obj
def conflicts(options: Options) -> None:
    """Lists the open conflicts: files that are kept under two names.

    Exit code 3 if there are any.

    \b
    Example:
      metasync conflicts
    """
    console = Console(options)
    with opened(options, console) as w:
        items = w.conflicts()
    value = {"conflicts": text.value(items)}
    console.report("conflicts", conflicts_text.conflicts(items), value, [3] if items else [])


@click.command()
@click.argument("path", type=click.Path(path_type=str))
@click.option(
    "--keep",
    required=True,
    metavar="SIDE",
    help="ours: this device's side; theirs: the other's; NAME: the file of this name; both: all stay.",
)
@common
@click.pass_obj
def resolve(options: Options, path: str, keep: str) -> None:
    """Ends a conflict: keeps ours, theirs, a named file or both.

    PATH is the file, or one of its conflict copies. The side that is kept has the name then; the other goes to
    .metasync/replaced, until a version holds it. `metasync push` resolves the conflict for all devices.

    \b
    Example:
      metasync resolve notes.txt --keep ours
      metasync resolve notes.txt --keep notes.conflict-laptop-20261122.txt
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.resolve(path_in(options, w, path), _side(options, w, keep))
    console.report("resolve", conflicts_text.resolve(r), r, [3] if r.conflicts else [])


def _side(options: Options, w: Workspace, keep: str) -> Literal["ours", "theirs", "both"] | bytes:
    """What --keep says: a word, or a path as it was typed. `mine` is `ours`."""
    words: dict[str, Literal["ours", "theirs", "both"]] = {
        "ours": "ours", "mine": "ours", "theirs": "theirs", "both": "both",
    }  # fmt: skip
    return words.get(keep) or path_in(options, w, keep)
