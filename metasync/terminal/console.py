"""What every command shares: the common options, the console that prints reports, and the exit codes.

Every command takes `-C`, `--json`, `--quiet` and `--verbose`, before or after its name. Exit codes: 0 done; 1 failed;
2 wrong usage; 3 conflicts wait; 4 below the promised redundancy; 5 no quorum or outcome unknown; 6 wrong passphrase;
7 damaged beyond repair; 130 interrupted. Where several hold: 5, 7, 6, 1, 3, 4.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from metasync.errors import WorkspaceError
from metasync.events import Event, Notice
from metasync.runtime.travelled import COUNTER
from metasync.terminal import prompt
from metasync.terminal.bar import Bar, beside, end_progress
from metasync.terminal.style import rendered
from metasync.terminal.text import phrases

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.terminal.progress import Meter
    from metasync.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
JSON_EVERY_S = 1.0  # between two lines of progress for a program
EXIT_ORDER = (5, 7, 6, 1, 3, 4)


@dataclass
class Options:
    """What the options that every command takes say."""

    directory: Path = Path()
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    now: bool = False
    color: str = "auto"
    alone: bool = False  # the process is the command's own


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        options = ctx.ensure_object(Options)
        if value:
            if name == "directory":
                options.directory = options.directory / value
            elif name == "color":
                options.color = value
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
                     help="Print one JSON document, also for errors."),
        click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_set("quiet"),
                     help="Print nothing but errors, and what is shown once."),
        click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set("verbose"),
                     help="Print more, and tracebacks of errors."),
        click.option("--color", type=click.Choice(["auto", "always", "never"]), metavar="WHEN", expose_value=False,
                     callback=_set("color"), help="Colour the output: auto, always or never."),
    ):  # fmt: skip
        f = option(f)
    return f


def passes_pause(f: F) -> F:
    """Adds `--now` to a command that moves data."""
    return click.option(
        "--now", is_flag=True, expose_value=False, callback=_set("now"), help="Transfer even during `metasync pause`."
    )(f)


class Finish(Exception):  # noqa: N818 - not an error: the end of a command with an exit code
    """Ends a command with an exit code, after its report was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def program_in(directory: Path) -> str:
    """What to type before a command for that folder, from where the user stands: `metasync`, or `metasync -C DIR`."""
    if directory.resolve() == Path.cwd():
        return "metasync"
    import shlex

    return f"metasync -C {shlex.quote(str(directory))}"


def worst(codes: Sequence[int]) -> int:
    """The exit code to return where several hold."""
    return next((c for c in EXIT_ORDER if c in codes), 0)


class Console:
    """Prints reports on stdout; notices and progress on stderr."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._meter: Meter | None = None  # where there is no bar
        self._lock = threading.Lock()
        self._told_at = time.monotonic()
        self._bar = Bar() if sys.stderr.isatty() and not options.quiet and not options.json else None

    def event(self, event: Event) -> None:
        """Takes an event of the library's, from any thread."""
        if isinstance(event, Notice):
            if not self.options.quiet or event.warning:
                text = ("warning: " if event.warning else "") + event.text
                if self.options.json:
                    _echo_json({"event": "notice", "warning": event.warning, "text": event.text})
                else:
                    beside(lambda: _echo(text, colours(self.options, sys.stderr), err=True))
        elif self._bar is not None:
            self._bar.take(event)
        else:
            self._note(event)

    def _note(self, event: Event) -> None:
        """Counts where there is no bar, and with --json tells a program how far this is: a line on stderr a second."""
        now = time.monotonic()
        with self._lock:
            if self._meter is None:
                from metasync.terminal.progress import Meter

                self._meter = Meter()
            self._meter.add(event, now)
            if self.options.json and not self.options.quiet and now - self._told_at >= JSON_EVERY_S:
                self._told_at = now
                _echo_json(self._meter.told(now))

    def _summary(self) -> list[str]:
        """How much went how fast, if it took long."""
        meter = self._bar.meter if self._bar is not None else self._meter
        line = meter.summary(time.monotonic()) if meter is not None else ""
        return [line] if line else []

    def clear(self) -> None:
        """Takes the line of progress away for good."""
        self._bar = None
        end_progress()

    def line(self, text: str) -> None:
        """Prints a line of a report before the rest of it is known. Not for --json, nor --quiet."""
        if not self.options.json and not self.options.quiet:
            beside(lambda: _echo(text, colours(self.options, sys.stdout)))

    def confirm(self, question: str) -> None:
        """Asks on a terminal before something is done that cannot be undone. Scripts are taken to mean it."""
        ask = prompt.somebody() and not self.options.json and not self.options.quiet
        if ask and not prompt.confirmed(question):
            click.echo("Nothing was changed.", err=True)
            raise Finish(1)

    def report(
        self,
        command: str,
        lines: Sequence[str],
        value: Any,
        codes: Sequence[int] = (),
        *,
        once: str = "",
        paged: bool = False,
    ) -> NoReturn:
        """Prints the outcome, as `lines` or as JSON of `value`; ends the command with the worst of `codes`.

        `once`: what is among the lines and shown this once, such as a recovery phrase. --quiet prints it alone.
        `paged`: what does not fit the terminal goes through a pager.
        """
        summary = self._summary()
        self.clear()
        code = worst(codes)
        if self.options.json:
            told = phrases.value(value)  # only here: of a push of many files it takes as long as a seventh of the push
            body = told if isinstance(told, dict) else {"result": told}
            click.echo(json.dumps({**head_of(command, code), **body}, ensure_ascii=True, indent=2))
        elif not self.options.quiet:
            coloured = colours(self.options, sys.stdout)
            if not (paged and _paged([*lines, *summary], coloured)):
                for line in [*lines, *summary]:
                    _echo(line, coloured)
        elif once:
            _echo(once, colour=False)
        raise Finish(code)


def head_of(command: str, code: int) -> dict[str, object]:
    """What every document of --json begins with. `travelled`: by what the command asked of backends."""
    return {"command": command, "exit_code": code, "travelled": phrases.value(COUNTER.total)}


def colours(options: Options, stream: TextIO) -> bool:
    """Whether what goes to this stream is coloured: `--color`, else `NO_COLOR` (no-color.org), else on a terminal."""
    if options.color != "auto":
        return options.color == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def _paged(lines: Sequence[str], colour: bool) -> bool:
    """Shows lines in a pager, where there is a terminal that they do not fit."""
    if not sys.stdout.isatty():
        return False
    from metasync.terminal import pager

    return pager.shown([rendered(line, colour=colour) for line in lines])


def _echo_json(value: dict[str, object]) -> None:
    click.echo(json.dumps(value), err=True)


def _echo(line: str, colour: bool, *, err: bool = False) -> None:
    click.echo(rendered(line, colour=colour), err=err, color=colour)


@contextlib.contextmanager
def opened(options: Options, console: Console) -> Iterator[Workspace]:
    from metasync.workspace import Workspace

    with Workspace.open(options.directory, on_event=console.event, now=options.now) as workspace:
        if options.alone:
            _step_back(workspace)
        yield workspace


def path_in(options: Options, workspace: Workspace, given: str) -> bytes:
    """A path as it was typed, relative to the workspace. `UsageError`: it is elsewhere."""
    from metasync.worktree.paths import path_from

    return path_from(workspace.directory, options.directory, given)


def _step_back(workspace: Workspace) -> None:
    """Gives way to other programs as far as the user set it."""
    try:
        nice = workspace.settings().settings.get("nice")
    except WorkspaceError:
        return  # said where it matters: by what moves data, and by `config`
    if nice is not None and hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(max(0, int(nice) - os.nice(0)))
