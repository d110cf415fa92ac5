"""The command line: takes words apart, calls `metasync.Workspace`, prints what it reports (shared with users: CLI).

Every command takes `-C`, `--json`, `--quiet` and `--verbose`, before or after its name. Exit codes: 0 done; 1 failed;
2 wrong usage; 3 conflicts wait; 4 below the promised redundancy; 5 no quorum or outcome unknown; 6 wrong passphrase;
7 damaged beyond repair; 130 interrupted. Where several hold: 5, 7, 6, 1, 3, 4.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from metasync import __version__, render
from metasync.errors import MetaSyncError
from metasync.events import Event, Notice, Progress
from metasync.passphrase import passphrase
from metasync.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
EXIT_ORDER = (5, 7, 6, 1, 3, 4)


@dataclass
class Options:
    """What the options that every command takes say."""

    directory: Path = Path()
    json: bool = False
    quiet: bool = False
    verbose: bool = False


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        options = ctx.ensure_object(Options)
        if value:
            if name == "directory":
                options.directory = options.directory / value
            else:
                setattr(options, name, True)
        return value

    return callback


def common(f: F) -> F:
    """Adds the options that every command takes."""
    for option in (
        click.option("-C", "work_in", metavar="DIR", expose_value=False, callback=_set("directory"),
                     help="Work in DIR instead of the current directory."),
        click.option("--json", is_flag=True, expose_value=False, callback=_set("json"),
                     help="Print one JSON document, errors too."),
        click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_set("quiet"),
                     help="Print nothing but errors."),
        click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set("verbose"),
                     help="Tell more, and show tracebacks."),
    ):  # fmt: skip
        f = option(f)
    return f


class Finish(Exception):  # noqa: N818 - not an error: the end of a command with an exit code
    """Ends a command with an exit code, after its report was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def worst(codes: Sequence[int]) -> int:
    """The exit code to return where several hold."""
    return next((c for c in EXIT_ORDER if c in codes), 0)


class Console:
    """Prints reports on stdout; notices and progress on stderr."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._bar = _Bar() if sys.stderr.isatty() and not options.quiet and not options.json else None

    def event(self, event: Event) -> None:
        if isinstance(event, Notice):
            if not self.options.quiet or event.warning:
                self.clear()
                click.echo(render.printable(("warning: " if event.warning else "") + event.text), err=True)
        elif isinstance(event, Progress) and self._bar is not None:
            self._bar.show(event)

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def report(self, command: str, lines: Sequence[str], value: Any, codes: Sequence[int] = ()) -> None:
        """Prints the outcome, and ends the command with the worst of `codes`."""
        self.clear()
        code = worst(codes)
        if self.options.json:
            body = value if isinstance(value, dict) else {"result": value}
            click.echo(json.dumps({"command": command, "exit_code": code, **body}, ensure_ascii=True, indent=2))
        elif not self.options.quiet:
            for line in lines:
                click.echo(render.printable(line))
        raise Finish(code)


class _Bar:
    """One line of progress on a terminal."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, p: Progress) -> None:
        done = render.size(p.done) if p.unit == "B" else f"{p.done:,}"
        total = "" if p.total is None else f" of {render.size(p.total) if p.unit == 'B' else format(p.total, ',')}"
        line = f"{p.phase}: {done}{total}{'' if p.unit == 'B' else ' ' + p.unit}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


@contextlib.contextmanager
def opened(options: Options, console: Console) -> Iterator[Workspace]:
    with Workspace.open(options.directory, on_event=console.event) as workspace:
        yield workspace


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="metasync")
@common
def cli() -> None:
    """Keeps a folder versioned, encrypted and in step on all your devices, over providers nobody has to trust.

    \b
    Example:
      metasync init ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b --backend s3://bucket/docs
      metasync -C ~/Documents push -m "first"
      metasync clone ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b     (on another device)
    """


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path), default=Path())
@click.option("--name", required=True, help="What the workspace is called on all devices.")
@click.option("--backend", "backends", multiple=True, required=True, metavar="URL", help="A backend; give several.")
@click.option("--replicas", type=click.IntRange(1, 16), default=None, help="Copies of everything (default 2).")
@click.option("--no-encryption", is_flag=True, help="Store packs in the clear; integrity is kept.")
@common
@click.pass_obj
def init(
    options: Options, directory: Path, name: str, backends: tuple[str, ...], replicas: int | None, no_encryption: bool
) -> None:
    """Makes a folder a workspace, on the backends given.

    \b
    Example:
      metasync init ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b --backend file:///mnt/c
    A backend URL may end in ?capacity=15GiB, &name=work-box, &role=storage.
    """
    console = Console(options)
    report = Workspace.init(
        options.directory / directory,
        name=name,
        backends=backends,
        passphrase=passphrase(confirm=True),
        replicas=replicas,
        encryption=not no_encryption,
        on_event=console.event,
    )
    lines = [
        f"Workspace {name} in {report.directory}, on {render.count(len(report.backends), 'backend')}.",
        report.survives,
        "",
        "Recovery phrase: opens the workspace if the passphrase is lost. Write it down; it is not shown again.",
        f"  {report.recovery_phrase}",
        "",
        "Next: metasync push",
    ]
    report.workspace.close()
    console.report("init", lines, render.value(report))


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="The workspace's name.")
@click.option("--backend", "backends", multiple=True, required=True, metavar="URL",
              help="A backend of the workspace; give a majority.")  # fmt: skip
@click.option("--expect", default=None, metavar="FINGERPRINT", help="Refuse unless the newest version is this one.")
@common
@click.pass_obj
def clone(options: Options, directory: Path, name: str, backends: tuple[str, ...], expect: str | None) -> None:
    """Brings a workspace into a new folder, on this device.

    \b
    Example:
      metasync clone ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b
    """
    console = Console(options)
    report = Workspace.clone(
        options.directory / directory,
        name=name,
        backends=backends,
        passphrase=passphrase(),
        expect=expect,
        on_event=console.event,
    )
    lines = [
        f"Cloned {name} into {report.directory}: version {report.version} ({report.fingerprint}),"
        f" {render.count(report.files, 'file')}, {render.size(report.bytes)}.",
    ]
    if report.problem:
        lines.append(f"There may be newer versions; this is the newest that could be proven: {report.problem}")
        lines.append("Run `metasync pull` when more backends are reachable.")
    lines += [f"Not linked here: {n}. Link it: metasync backend link {n} URL" for n in report.unlinked]
    if report.read_only:
        lines.append("This device has a way to fewer backends than a quorum: it can read, but not push.")
    lines += render.conflicts(report.conflicts)
    lines += [f"warning: {n}: {why}" for n, why in sorted(report.down.items())]
    report.workspace.close()
    codes = [3] if report.conflicts else []
    codes += [5] if report.problem and not report.read_only else []
    console.report("clone", lines, render.value(report), codes)


@cli.command()
@common
@click.pass_obj
def status(options: Options) -> None:
    """Shows what differs here, what is ahead or behind, and how each backend fares.

    \b
    Example:
      metasync status --json
    """
    console = Console(options)
    with opened(options, console) as w:
        s = w.status()
    codes = [s.error.exit_code] if s.error is not None else []
    codes += [1] if s.unreadable else []
    codes += [4] if s.under_replicated else []
    console.report("status", render.status(s), render.value(s), codes)


@cli.command()
@click.option("-m", "--message", default="", metavar="MSG", help="What to say about it in the log.")
@click.option("--dry-run", is_flag=True, help="Only show what would be pushed.")
@common
@click.pass_obj
def push(options: Options, message: str, dry_run: bool) -> None:
    """Takes a snapshot, uploads it, and has it agreed; merges first when others were faster.

    \b
    Example:
      metasync push -m "holiday photos"
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.push(message, dry_run=dry_run)
    console.report("push", render.push(r, dry_run=dry_run), render.value(r), _push_codes(r))


def _push_codes(r: Any) -> list[int]:
    codes = [1] if r.unreadable else []
    codes += [3] if r.pulled is not None and r.pulled.conflicts else []
    return codes + ([4] if r.under_replicated else [])


@cli.command()
@click.option("--dry-run", is_flag=True, help="Only show what would change here.")
@common
@click.pass_obj
def pull(options: Options, dry_run: bool) -> None:
    """Brings the folder up to the newest agreed version, merging with what changed here.

    \b
    Example:
      metasync pull
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.pull(dry_run=dry_run)
    lines = [*(["Dry run: nothing was changed."] if dry_run else []), *render.pull(r)]
    console.report("pull", lines, render.value(r), [3] if r.conflicts else [])


@cli.command()
@click.option("-m", "--message", default="", metavar="MSG", help="What to say about it in the log.")
@click.option("--dry-run", is_flag=True, help="Only show what would change on both sides.")
@common
@click.pass_obj
def sync(options: Options, message: str, dry_run: bool) -> None:
    """Pulls and pushes until both sides agree.

    \b
    Example:
      metasync sync
    """
    console = Console(options)
    with opened(options, console) as w:
        pulled, pushed = w.sync(message, dry_run=dry_run)
    codes = ([3] if pulled.conflicts else []) + _push_codes(pushed)
    lines = [*render.pull(pulled), *render.push(pushed, dry_run=dry_run)]
    console.report("sync", lines, {"pull": render.value(pulled), "push": render.value(pushed)}, codes)


@cli.command()
@click.option("-n", "--limit", type=click.IntRange(1), default=None, help="At most so many versions.")
@common
@click.pass_obj
def log(options: Options, limit: int | None) -> None:
    """Shows the agreed history, newest first.

    \b
    Example:
      metasync log -n 10
    """
    console = Console(options)
    with opened(options, console) as w:
        items = w.log(limit=limit)
    console.report("log", render.log(items), {"versions": render.value(items)})


@cli.command()
@click.option("--read-data", is_flag=True, help="Read every copy and verify its bytes, not only its size.")
@common
@click.pass_obj
def check(options: Options, read_data: bool) -> None:
    """Tells whether everything is there, as often as promised, and unaltered.

    \b
    Example:
      metasync check --read-data
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.check(read_data=read_data)
    codes = [7] if r.lost else []
    codes += [4] if r.short or r.problems or r.meta_problems else []
    console.report("check", render.check(r, read_data=read_data), render.value(r), codes)


@cli.group()
@common
def backend() -> None:
    """Shows the agreed backends, and links this device to them.

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


@cli.command()
@click.option("--keep", is_flag=True, help="Leave the demo's folder behind, to look at.")
@common
@click.pass_obj
def demo(options: Options, keep: bool) -> None:
    """Shows the main job: three providers and two devices in a temporary folder, in a minute.

    \b
    Example:
      metasync demo
    """
    from metasync import demo as show

    raise Finish(show.run(click.echo if not (options.quiet or options.json) else lambda _line: None, keep=keep))


def _fail(options: Options, command: str, code: int, kind: str, message: str, next_step: str = "") -> int:
    """Says what went wrong: one JSON document on stdout, or lines on stderr."""
    message, next_step = render.printable(message), render.printable(next_step)
    if options.json:
        error = {"kind": kind, "message": message, "next_step": next_step}
        click.echo(json.dumps({"command": command, "exit_code": code, "error": error}, indent=2))
    else:
        click.echo(f"metasync: {message}", err=True)
        if next_step:
            click.echo(next_step[:1].upper() + next_step[1:], err=True)
    if options.verbose:
        traceback.print_exc()
    return code


def _command_of(words: Sequence[str]) -> str:
    """The command that was meant, as far as it can be told before the words are understood."""
    names: list[str] = []
    group: click.Command = cli
    for word in words:
        if isinstance(group, click.Group) and word in group.commands:
            group = group.commands[word]
            names.append(word)
    return " ".join(names)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a terminal that knows fewer characters gets the others escaped
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    words = list(sys.argv[1:] if argv is None else argv)
    options = Options(json="--json" in words)  # an error before it was understood is to be one document as well
    sys.exit(_run(words, options, _command_of(words)))


def _run(words: list[str], options: Options, command: str) -> int:
    try:
        cli.main(args=words, prog_name="metasync", standalone_mode=False, obj=options)
    except Finish as e:
        return e.code
    except MetaSyncError as e:
        return _fail(options, command, e.exit_code, type(e).__name__, e.message, e.next_step)
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fail(options, command, 130, "Interrupted", "interrupted; safe to run again")
    except click.exceptions.NoArgsIsHelpError as e:
        if options.json:
            return _fail(options, command, 2, "UsageError", "no command was given", "See metasync --help.")
        e.show()
        return 2
    except click.ClickException as e:
        if options.json:
            return _fail(options, command, 2, "UsageError", e.format_message(), "See metasync --help.")
        e.show()
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        what = f"{os.fsdecode(e.filename)}: {e.strerror}" if isinstance(e.filename, str | bytes) else str(e)
        return _fail(
            options,
            command,
            1,
            type(e).__name__,
            f"{command or 'metasync'} failed: {what}",
            "Check the path, its rights and its disk, then run again; nothing that was agreed is lost.",
        )
    except Exception as e:  # noqa: BLE001 - whatever it is, its user gets a message and scripts their document
        return _fail(
            options,
            command,
            1,
            type(e).__name__,
            f"an error of MetaSync's own: {type(e).__name__}: {e}",
            "Nothing that was agreed is lost. Run again with --verbose, and report what it prints.",
        )
    return 0
