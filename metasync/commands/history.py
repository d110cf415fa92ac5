"""`log`, `show`, `diff`, `ls`, `cat`, `restore` and `undelete`: what was agreed before, and how to get back to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from metasync.errors import UsageError
from metasync.terminal.console import Console, Finish, Options, common, opened, passes_pause, path_in
from metasync.terminal.names import completing
from metasync.terminal.text import history_text, phrases

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.reports.history import Listing, RestoreReport
    from metasync.workspace import Workspace

CAUSES = {"damaged": 7, "unreachable": 5, "refused": 1, "disk": 1}  # of what could not be restored: exit codes

TYPE = click.Path(path_type=str)


class Filters(TypedDict):
    """What `log` is asked to leave out, or to take in."""

    device: str | None
    since: str | None
    until: str | None
    grep: str | None
    everything: bool


@click.command()
@click.argument("path", type=TYPE, required=False)
@click.option("-n", "--limit", type=click.IntRange(1), default=None, help="Show at most this many versions.")
@click.option("--device", metavar="NAME", default=None, help="Show only versions of this device.")
@click.option("--since", metavar="TIME", default=None, help="Show only versions of that time or later.")
@click.option("--until", metavar="TIME", default=None, help="Show only versions of that time or earlier.")
@click.option("--grep", metavar="PATTERN", default=None, help="Show only versions whose message matches.")
@click.option("--all", "everything", is_flag=True, help="Show also what changed of devices, keys and backends.")
@common
@click.pass_obj
def log(options: Options, path: str | None, limit: int | None, **filters: Unpack[Filters]) -> None:
    """Lists the versions, newest first.

    With PATH, lists only the versions that changed this file or directory, and how; it may be deleted by now. With
    --verbose, every version shows how much it changed.

    TIME is `2026-11-20` (that day), `2026-11-20T14:00`, `today`, `yesterday`, `now`, or `2 days ago`: seconds, minutes,
    hours, days, weeks, months or years. It is compared with the clock of the device that pushed. PATTERN is a regular
    expression of Python's. NAME is a device's name or the beginning of its id; a revoked device has its name still.

    \b
    Example:
      metasync log -n 10
      metasync log letters/2026.txt
      metasync log --device desktop --since '2 days ago'
    """
    console = Console(options)
    with opened(options, console) as w:
        where = path_in(options, w, path) if path is not None else None
        items = w.log(where, limit, with_counts=options.verbose, **filters)
    console.report("log", history_text.log(items, some=any(filters.values())), {"versions": items}, paged=True)


@click.command()
@click.argument("version", shell_complete=completing("versions"))
@click.option("--text", is_flag=True, help="Show which lines of text files differ.")
@click.option("-p", "--path", "paths", type=TYPE, multiple=True, metavar="PATH",
              help="Show only this path and what is below it.")  # fmt: skip
@common
@click.pass_obj
def show(options: Options, version: str, text: bool, paths: tuple[str, ...]) -> None:
    """Shows a version: who made it and when, and what it changed.

    VERSION is named as for `metasync diff`. One that is no push shows what changed of devices, keys and backends.

    \b
    Example:
      metasync show latest --text
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.show(version, [path_in(options, w, p) for p in paths], text=text)
    console.report("show", history_text.show(r), r, paged=True)


@click.command()
@click.argument("version", shell_complete=completing("versions"))
@click.argument("path", type=TYPE)
@passes_pause
@common
@click.pass_obj
def cat(options: Options, version: str, path: str) -> None:
    """Prints a file of a version.

    Every byte is checked before it is printed. If the file is damaged, or cannot be reached, from some byte on, what
    is printed ends there, and the exit code is 7 or 5. With --json, the content is in base64.

    \b
    Example:
      metasync cat latest~1 letters/2026.txt
      metasync cat @yesterday photo.jpg > photo.jpg
    """
    console = Console(options)
    with opened(options, console) as w:
        pieces: list[bytes] = []
        write: Callable[[bytes], object] = pieces.append if options.json else _stdout(console)
        r = w.cat(path_in(options, w, path), version, write)
    if not options.json:
        console.clear()
        raise Finish(0)
    from base64 import b64encode

    console.report("cat", (), {**phrases.value(r), "base64": b64encode(b"".join(pieces)).decode()})


def _stdout(console: Console) -> Callable[[bytes], object]:
    """Writes bytes to stdout as they are; what has been written has left this process."""
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        if sys.stdout.isatty():
            console.clear()  # the line of progress is on the same terminal
        out.write(data)
        out.flush()

    return write


@click.command()
@click.argument("path", type=TYPE)
@click.option("--dry-run", is_flag=True, help="Only show what would come back.")
@passes_pause
@common
@click.pass_obj
def undelete(options: Options, path: str, dry_run: bool) -> None:
    """Brings a deleted file or directory back.

    It comes from the last version that has it. This changes the folder only, as `metasync restore` does: `metasync
    push` gives it to the others.

    \b
    Example:
      metasync undelete letters/2026.txt
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.undelete(path_in(options, w, path), dry_run=dry_run)
    console.report("undelete", history_text.restore(r, dry_run=dry_run), r, _codes(r))


def _codes(r: RestoreReport) -> list[int]:
    return [CAUSES[f.cause] for f in r.failed] + ([3] if r.conflicts else [])


@click.command()
@click.argument("a", required=False, shell_complete=completing("versions"))
@click.argument("b", required=False, shell_complete=completing("versions"))
@click.option("--text", is_flag=True, help="Show which lines of text files differ.")
@click.option(
    "-p",
    "--path",
    "paths",
    type=TYPE,
    multiple=True,
    metavar="PATH",
    help="Compare only this path and what is below it.",
)
@common
@click.pass_obj
def diff(options: Options, a: str | None, b: str | None, text: bool, paths: tuple[str, ...]) -> None:
    """Compares two versions, or a version with this folder.

    A and B are versions. Without B, compares A with the folder; without both, the version that the folder is based
    on. A version is a number, `latest`, `base` (what this folder is based on), `latest~3`, the beginning of a
    snapshot's id as `log` shows it, a name that `metasync tag` gave, or a time: `@2026-11-20`, `@2026-11-20T14:00`.

    \b
    Example:
      metasync diff --text
      metasync diff latest~3 latest -p letters
    Signs: + added, ~ modified, - deleted, > renamed, m mode, t time, T another type.
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.diff(a, b, [path_in(options, w, p) for p in paths], text=text)
    console.report("diff", history_text.diff(r), r, [1] if r.unreadable else [], paged=True)


@click.command()
@click.argument("version", required=False)
@click.argument("path", type=TYPE, required=False)
@click.option("-r", "--recursive", is_flag=True, help="List everything below, not only the directory.")
@click.option("-l", "--long", is_flag=True, help="Show mode, size and time.")
@common
@click.pass_obj
def ls(options: Options, version: str | None, path: str | None, recursive: bool, long: bool) -> None:
    """Lists the files of a version, the newest if none is given.

    A single argument is a version if it names one, else a path in the newest version.

    \b
    Example:
      metasync ls -l latest~1 letters
    """
    console = Console(options)
    with opened(options, console) as w:
        if path is None and version is not None:
            r = _ls_one(options, w, version, recursive)
        else:
            r = w.ls(version, path_in(options, w, path) if path is not None else "", recursive=recursive)
    console.report("ls", history_text.listing(r, long=long), r, paged=True)


def _ls_one(options: Options, w: Workspace, word: str, recursive: bool) -> Listing:
    """What one word names: a version, if it is the name of one that there is; else a path."""
    try:
        return w.ls(word, recursive=recursive)
    except UsageError as no_version:
        from metasync.history.versions import is_version_name

        try:
            return w.ls(None, path_in(options, w, word), recursive=recursive)
        except UsageError as no_path:
            raise (no_version if is_version_name(word) else no_path) from None


@click.command()
@click.argument("version", shell_complete=completing("versions"))
@click.argument("paths", type=TYPE, nargs=-1, metavar="[PATH]...")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Write into DIR, and leave the folder alone.",
)
@click.option("--no-delete", is_flag=True, help="Keep files that the version does not have.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@passes_pause
@common
@click.pass_obj
def restore(
    options: Options, version: str, paths: tuple[str, ...], to: Path | None, no_delete: bool, dry_run: bool
) -> None:
    """Brings the folder, or paths in it, back to a version.

    Changes the folder only: `metasync push` makes that the newest version. Nothing unsaved is lost: what no version
    holds stays, under another name where a restored file needs its own. With --to the folder is left alone, and
    nothing that exists in DIR is replaced.

    \b
    Example:
      metasync restore latest~1 letters/2026.txt
      metasync restore @2026-11-20 --to /tmp/as-it-was
    """
    if to is not None and no_delete:
        raise UsageError("--no-delete says nothing with --to, which never deletes", next_step="Leave one of them out.")
    console = Console(options)
    with opened(options, console) as w:
        r = w.restore(
            version,
            [path_in(options, w, p) for p in paths],
            options.directory / to if to is not None else None,
            delete=not no_delete,
            dry_run=dry_run,
        )
    console.report("restore", history_text.restore(r, dry_run=dry_run), r, _codes(r))
