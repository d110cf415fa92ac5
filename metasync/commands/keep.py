"""`tag`, `forget` and `gc`: what is kept of old versions, and how the space of the rest comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from metasync.errors import UsageError
from metasync.terminal.console import Console, Options, common, opened, path_in
from metasync.terminal.names import completing
from metasync.terminal.text import keep_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.store.retention import Keep


@click.command()
@click.argument("version", required=False, shell_complete=completing("versions"))
@click.argument("name", required=False)
@click.option("-d", "--delete", "delete", multiple=True, metavar="NAME", help="Give up this name; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only check whether it can be done.")
@common
@click.pass_obj
def tag(options: Options, version: str | None, name: str | None, delete: tuple[str, ...], dry_run: bool) -> None:
    """Gives a version a name, by which it is kept.

    Whatever `metasync gc` is told to keep, it keeps versions that have a name. Without VERSION and NAME, lists the
    names. VERSION is named as for `metasync diff`.

    \b
    Example:
      metasync tag latest sent-to-ann
      metasync tag
      metasync tag --delete sent-to-ann
    """
    console = Console(options)
    if (version is None) != (name is None) or (version is not None and delete):
        raise UsageError("a version and its name are needed, or --delete and a name", next_step="See metasync tag -h.")
    with opened(options, console) as w:
        if version is not None and name is not None:
            r = w.tag(version, name, dry_run=dry_run)
        else:
            r = w.untag(delete, dry_run=dry_run) if delete else w.tags()
    console.report("tag", keep_text.tags(r, given=name, version=version, gone=delete, dry_run=dry_run), r)


@click.command()
@click.argument("paths", metavar="PATH...", type=click.Path(path_type=str), nargs=-1, required=True)
@click.option("--gc", "collect", is_flag=True, help="Then delete what nothing needs, as `metasync gc` does.")
@click.option("--dry-run", is_flag=True, help="Only show which versions have them, and how much that is.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask whether you are sure.")
@common
@click.pass_obj
def forget(options: Options, paths: tuple[str, ...], collect: bool, dry_run: bool, yes: bool) -> None:
    """Takes files or directories out of all versions.

    It is for what should not have been pushed, such as a password. No version has PATH any more, nor what is below it;
    nothing else of a version changes, and `metasync log` tells which versions it was. It cannot be undone. A file that
    the newest version has is refused: delete it and push first.

    The bytes go when garbage is collected, with --gc or by the next `metasync gc` on any device. Where another path has
    the same bytes, they stay. Nobody can take back what others have seen: change a password that slipped in.

    \b
    Example:
      metasync forget config/passwords.txt --dry-run
      metasync forget config/passwords.txt --gc
    """
    console = Console(options)
    with opened(options, console) as w:
        where = [path_in(options, w, path) for path in paths]
        if not dry_run and not yes:
            console.confirm(f"Forget {keep_text.to_forget(w.forget(where, dry_run=True))}?")
        r = w.forget(where, gc=collect, dry_run=dry_run)
    console.report("forget", keep_text.forget(r), r)


@click.command()
@click.option("--keep-last", metavar="N", help="Keep the N newest versions; `unlimited` for all, here and below.")
@click.option("--keep-hourly", metavar="N", help="Keep the newest version of each of the N newest hours that have one.")
@click.option("--keep-daily", metavar="N", help="The same for days.")
@click.option("--keep-weekly", metavar="N", help="The same for weeks, which begin on Monday.")
@click.option("--keep-monthly", metavar="N", help="The same for months.")
@click.option("--keep-yearly", metavar="N", help="The same for years.")
@click.option("--keep-within", metavar="AGE", help="Keep what is less than AGE older than the newest: 1y5m7d2h.")
@click.option("--keep-tag", metavar="NAME", multiple=True, help="Keep the version of this name; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only show what would be freed, for each backend.")
@common
@click.pass_obj
def gc(options: Options, /, dry_run: bool, **keep: str | tuple[str, ...] | None) -> None:
    """Drops old versions, and frees the space of what nothing needs.

    Without --keep-... the agreed policy holds (`metasync config set keep`); where there is none, no version is dropped,
    and only what no version needs goes. With several of them, a version is kept if any says so. The newest version is
    always kept, and so are those that have a name (`metasync tag`).

    Hours and days are those of this device's time zone, and times those of the device that pushed.

    Other devices may push meanwhile. A push that is under way goes on, but sends again what it had sent before.

    What was interrupted goes on when it is run again, on any device. A backend that is away keeps its part until the
    next run that reaches it.

    \b
    Example:
      metasync gc --keep-last 10 --keep-daily 14 --keep-monthly 12 --dry-run
      metasync gc --keep-within 1y
    """
    console = Console(options)
    policy = _policy(keep)
    with opened(options, console) as w:
        r = w.gc(policy, dry_run=dry_run)
    console.report("gc", keep_text.gc(r), r)


def _policy(keep: dict[str, str | tuple[str, ...] | None]) -> Keep | None:
    """What the options ask for; None: for nothing."""
    from metasync.store import retention

    words = [(key.removeprefix("keep_"), value) for key, value in keep.items() if value not in (None, ())]
    pairs = [(key, one) for key, value in words for one in (value if isinstance(value, tuple) else (value,))]
    try:
        return retention.of_words(pairs) if pairs else None
    except ValueError as e:
        raise UsageError(f"--keep: {e}", next_step="See metasync gc --help.") from e
