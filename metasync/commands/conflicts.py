"""`conflicts` and `resolve`: what two devices changed at once, and the choice between the sides."""

from __future__ import annotations

from typing import Literal, cast

import click

from metasync.terminal import conflicts_text, text
from metasync.terminal.console import Console, Options, common, opened, path_in


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
@click.option("--keep", type=click.Choice(["mine", "theirs", "both"]), required=True,
              help="mine: the conflict copy takes the name; theirs: the copy goes; both: both stay.")  # fmt: skip
@common
@click.pass_obj
def resolve(options: Options, path: str, keep: str) -> None:
    """Ends a conflict: keeps mine, theirs or both.

    PATH is the file, or one of its conflict copies. What is not kept goes to .metasync/replaced, until a version
    holds it.

    \b
    Example:
      metasync resolve notes.conflict.1.txt --keep mine
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.resolve(path_in(options, w, path), cast(Literal["mine", "theirs", "both"], keep))
    console.report("resolve", conflicts_text.resolve(r), r, [3] if r.conflicts else [])
