"""`conflicts` and `resolve`: what two devices changed at once, and the choice between the sides.

`--tool` runs a merge program on the two sides, by the convention of `git mergetool`. Its command line is given to the
shell, with the paths of four files in its environment: LOCAL (this device's side), REMOTE (the other's), BASE (what
both were changed from; empty if nothing was) and MERGED, which it is to write. They are copies in a temporary folder:
nothing in the workspace changes until it has ended with success.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from metasync.errors import UsageError
from metasync.events import Notice
from metasync.terminal.console import Console, Options, common, opened, path_in
from metasync.terminal.text import history_text, phrases

if TYPE_CHECKING:
    from metasync.reports.history import Keep, ResolveReport, TextDiff
    from metasync.reports.sync import ConflictReport
    from metasync.workspace import Workspace

DIFF_BYTES_MAX = 4 << 20  # of a file whose lines are compared


SIDES = ("ours", "theirs", "both")  # beside the names of files


@click.command()
@click.option("--diff", "with_diff", is_flag=True, help="Show which lines differ between the sides of text files.")
@common
@click.pass_obj
def conflicts(options: Options, with_diff: bool) -> None:
    """Lists the open conflicts: files that are kept under two names.

    Exit code 3 if there are any.

    \b
    Example:
      metasync conflicts --diff
    """
    console = Console(options)
    with opened(options, console) as w:
        items = w.conflicts()
        texts = [_diff(w, c) for c in items] if with_diff else []
    value = {"conflicts": phrases.value(items), "texts": phrases.value(texts)}
    console.report("conflicts", history_text.conflicts(items, texts), value, [3] if items else [])


def _diff(w: Workspace, c: ConflictReport) -> TextDiff:
    """How the copy differs from the file that has the name."""
    from metasync.merge.lines import unified
    from metasync.reports.history import TextDiff

    a, b = (_read(w, path, DIFF_BYTES_MAX) for path in (c.path, c.kept))
    if a is None or b is None:
        return TextDiff(c.kept, note="no two files of at most 4 MiB")
    found = unified(a, b, f"a/{os.fsdecode(c.path)}", f"b/{os.fsdecode(c.kept)}")
    return TextDiff(c.kept, note=found) if isinstance(found, str) else TextDiff(c.kept, found)


def _read(w: Workspace, path: bytes, most: int | None = None) -> bytes | None:
    """The bytes of a regular file in the folder; None if there is none, or a larger one."""
    place = w.directory / os.fsdecode(path)
    if place.is_symlink() or not place.is_file() or (most is not None and place.stat().st_size > most):
        return None
    return place.read_bytes()


@click.command()
@click.argument("paths", type=click.Path(path_type=str), nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="All conflicts.")
@click.option(
    "--keep",
    metavar="SIDE",
    shell_complete=lambda _ctx, _param, typed: [side for side in SIDES if side.startswith(typed)],
    help="ours: this device's side; theirs: the other's; NAME: the file of this name; both: all stay.",
)
@click.option("--tool", metavar="TOOL", help="Merge with this program, as `git mergetool` would.")
@common
@click.pass_obj
def resolve(options: Options, paths: tuple[str, ...], everything: bool, keep: str | None, tool: str | None) -> None:
    """Ends conflicts: keeps ours, theirs, a named file or both.

    PATH is a file, one of its conflict copies, a directory for all conflicts in it, or a pattern such as '*.txt'. The
    side that is kept has the name then; the other goes to .metasync/replaced, until a version holds it. `metasync push`
    resolves the conflict for all devices.

    TOOL is vimdiff, meld, kdiff3, code or opendiff, the name of one in git's config (mergetool.NAME.cmd), or a command
    that uses $LOCAL, $REMOTE, $BASE and $MERGED. What it leaves in $MERGED is the file then.

    \b
    Example:
      metasync resolve notes.txt --keep ours
      metasync resolve notes.txt --keep notes.conflict-laptop-20261122.txt
      metasync resolve --all --keep theirs
      metasync resolve notes.txt --tool meld
    """
    if (keep is None) == (tool is None):
        raise UsageError("either --keep or --tool must be given", next_step="`--keep ours`, or `--tool meld`, say.")
    if bool(paths) == everything:
        raise UsageError("either PATH or --all must be given", next_step="`metasync conflicts` lists the conflicts.")
    console = Console(options)
    with opened(options, console) as w:
        wanted = _wanted(options, w, paths)
        if keep is not None:
            done = list(w.resolve_all(wanted, _side(options, w, keep)))
        else:
            done = [r for path in wanted if (r := _with_tool(console, w, path, str(tool))) is not None]
    waiting = any(r.conflicts for r in done) or (tool is not None and len(done) < len(wanted))
    lines = [] if wanted and not done else history_text.resolved(done)  # why not, the program has said
    console.report("resolve", lines, {"resolved": phrases.value(done)}, [3] if waiting else [])


def _wanted(options: Options, w: Workspace, given: Sequence[str]) -> list[bytes]:
    """The paths of the conflicts that were named, each once. `UsageError`: nothing there, or nothing waits."""
    items = w.conflicts()
    if not given:
        return sorted({c.path for c in items})
    out: dict[bytes, None] = {}
    for word in given:
        path = path_in(options, w, word)
        exact = [path] if any(path in (c.path, c.kept) for c in items) else []
        found = exact or [c.path for c in items if c.path.startswith(path + b"/" if path else b"") or _fits(c, path)]
        if not found:
            raise UsageError(
                f"there is no conflict at {os.fsdecode(path)}", next_step="`metasync conflicts` lists them."
            )
        out |= dict.fromkeys(found)
    return list(out)


def _fits(c: ConflictReport, pattern: bytes) -> bool:
    """Whether a conflict's file, or its copy, fits a pattern: `*` takes in all but `/`."""
    parts = pattern.split(b"/")
    names = [path.split(b"/") for path in (c.path, c.kept)]
    return any(len(n) == len(parts) and all(map(fnmatchcase, n, parts)) for n in names)


def _side(options: Options, w: Workspace, keep: str) -> Keep:
    """What --keep says: a word, or a path as it was typed. `mine` is `ours`."""
    if keep in ("ours", "mine"):
        return "ours"
    if keep == "theirs":
        return "theirs"
    return "both" if keep == "both" else path_in(options, w, keep)


def _with_tool(console: Console, w: Workspace, path: bytes, tool: str) -> ResolveReport | None:
    """Merges one conflict with a program. None: the program ended with an error, and nothing was changed."""
    from metasync.errors import MetaSyncError
    from metasync.reports.history import Merged

    found = [c for c in w.conflicts() if path in (c.path, c.kept)]
    if len(found) != 1:
        names = ", ".join(os.fsdecode(c.kept) for c in found)
        raise UsageError(f"{os.fsdecode(path)} has {len(found)} conflict copies", next_step=f"Name one: {names}.")
    (c,) = found
    agreed, other = (_read(w, side.path) for side in c.sides)
    if agreed is None or other is None:
        raise UsageError(
            f"{os.fsdecode(c.path)} and {os.fsdecode(c.kept)} are not two files", next_step="Choose one with --keep."
        )
    base = b""
    if c.sides[1].version is not None:
        try:
            base = w.read(c.path, str(c.sides[1].version))
        except MetaSyncError:  # it is no longer kept, or nobody answers: then nothing is common
            base = b""
    local, remote = (agreed, other) if c.sides[0].here else (other, agreed)
    merged = run(tool, c.path, local=local, remote=remote, base=base, merged=agreed)
    if merged is None:
        why = f"{os.fsdecode(c.path)}: the merge tool ended with an error; nothing was changed"
        console.event(Notice(why, warning=True))
        return None
    return w.resolve(c.kept, Merged(merged))


TOOLS: Final = {
    "code": 'code --wait --merge "$REMOTE" "$LOCAL" "$BASE" "$MERGED"',
    "kdiff3": 'kdiff3 --auto "$BASE" "$LOCAL" "$REMOTE" -o "$MERGED"',
    "meld": 'meld "$LOCAL" "$BASE" "$REMOTE" --output "$MERGED"',
    "opendiff": 'opendiff "$LOCAL" "$REMOTE" -ancestor "$BASE" -merge "$MERGED" | cat',
    "vimdiff": 'vim -d "$LOCAL" "$MERGED" "$REMOTE" -c "wincmd l"',
}
_NAME = re.compile(r"[\w.-]+")
_UNSAFE = re.compile(r"[^\w. -]")


def command_of(tool: str) -> str:
    """The command line of a tool: of git's config, or one that is known here; or the words themselves. `UsageError`."""
    if not _NAME.fullmatch(tool):
        return tool
    told = _shell(f"git config --get mergetool.{tool}.cmd", capture_output=True)
    command = told.stdout.decode(errors="surrogateescape").strip() or TOOLS.get(tool)
    if command is None:
        raise UsageError(
            f"{tool} is no merge tool that is known here",
            next_step=f"Known are {', '.join(sorted(TOOLS))}; git's config may have others (mergetool.{tool}.cmd); or "
            "give a command with $LOCAL, $REMOTE, $BASE and $MERGED.",
        )
    return command


def run(tool: str, path: bytes, *, local: bytes, remote: bytes, base: bytes, merged: bytes) -> bytes | None:
    """Runs a tool on these contents of the file at `path`; what it made of `merged`, or None where it failed."""
    command = command_of(tool)
    name = Path(_UNSAFE.sub("_", os.fsdecode(path).rpartition("/")[2]))
    with tempfile.TemporaryDirectory(prefix="metasync-merge-") as folder:
        files = {"LOCAL": local, "REMOTE": remote, "BASE": base, "MERGED": merged}
        places = {word: Path(folder) / f"{name.stem[:100]}_{word}{name.suffix[:100]}" for word in files}
        for word, data in files.items():
            places[word].write_bytes(data)
        done = _shell(command, env={**os.environ, **{word: str(place) for word, place in places.items()}}, cwd=folder)
        return places["MERGED"].read_bytes() if done.returncode == 0 else None


def _shell(command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, shell=True, check=False, **options)  # noqa: S602 - the user's own command, as in git
