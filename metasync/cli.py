"""The command line: puts the commands together, and turns whatever goes wrong into a message and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from metasync import __version__
from metasync.codec import printable
from metasync.errors import CHECK_PATH, MetaSyncError, step_after
from metasync.runtime.travelled import COUNTER
from metasync.terminal import interrupt
from metasync.terminal.bar import end_progress
from metasync.terminal.console import Finish, Options, common, head_of
from metasync.terminal.text import phrases

_MANY_FILES: Final = ("clone", "pull", "push", "sync")
_COLLECT_AFTER: Final = (100_000, 20, 10)
"""`gc.set_threshold` for these: they make many small values that stay, and would look through them again and again for
circles that are not there. What lives for days keeps Python's own, for the sake of its memory."""

_PURPOSES: dict[str, dict[str, str]] = {
    "Everyday": {
        "init": "start",
        "clone": "start",
        "status": "sync",
        "push": "sync",
        "pull": "sync",
        "sync": "sync",
        "daemon": "daemon",
    },
    "History and conflicts": {
        "log": "history",
        "show": "history",
        "diff": "history",
        "ls": "history",
        "cat": "history",
        "restore": "history",
        "undelete": "history",
        "tag": "keep",
        "forget": "keep",
        "conflicts": "conflicts",
        "resolve": "conflicts",
        "skip": "recover",
    },
    "Backends": {
        "backend": "backends",
        "auth": "auth",
        "rebalance": "backends",
        "check": "sync",
        "drill": "backends",
        "scrub": "sync",
        "gc": "keep",
        "recover": "recover",
    },
    "Devices and keys": {"device": "devices", "invite": "devices", "key": "keys"},
    "This device": {"ui": "ui", "config": "settings", "pause": "settings", "resume": "settings"},
    "More": {"demo": "start", "completion": "completion"},
}
"""The commands as `metasync --help` lists them, by purpose; and the module of `metasync.commands` that has each."""
_MODULES = {name: module for commands in _PURPOSES.values() for name, module in commands.items()}


class Commands(click.Group):
    """The commands, each loaded with its family when it is asked for: a push does not pay for the others."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. Ctrl-C is told here: click would begin another line before the bar is taken away."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as e:
            raise click.Abort from e

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _MODULES:
            module = importlib.import_module(f"metasync.commands.{_MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        return self.commands.get(cmd_name)

    def by_purpose(self, ctx: click.Context) -> dict[str, list[click.Command]]:
        """The commands under the headings of `metasync --help`, in its order."""
        return {
            purpose: [command for name in names if (command := self.get_command(ctx, name)) is not None]
            for purpose, names in _PURPOSES.items()
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands, then the options: who asks for help looks for a command."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands grouped by purpose, all summaries in one column."""
        longest = max(map(len, _MODULES))
        limit = formatter.width - longest - 6  # click's own margins: two before a name, two behind it, two at the end
        for purpose, commands in self.by_purpose(ctx).items():
            with formatter.section(purpose):
                rows = [((c.name or "").ljust(longest), c.get_short_help_str(limit)) for c in commands]
                formatter.write_dl(rows)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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


def _fail(options: Options, command: str, code: int, kind: str, message: str, next_step: str = "") -> int:
    """Says what went wrong: one JSON document on stdout, or lines on stderr."""
    end_progress()
    message, next_step = printable(message), printable(next_step)
    if options.json:
        error = {"kind": kind, "message": message, "next_step": next_step}
        click.echo(json.dumps({**head_of(command, code), "error": error}, indent=2))
    else:
        click.echo(f"metasync: {message}", err=True)
        if next_step:
            click.echo(phrases.sentence(next_step), err=True)
    if options.verbose:
        import traceback

        traceback.print_exc()
    return code


def _command_of(words: Sequence[str]) -> str:
    """The command that was meant, as far as it can be told before the words are understood."""
    names: list[str] = []
    group: click.Command = cli
    for word in words:
        if isinstance(group, click.Group) and (found := _below(group, word)) is not None:
            group = found
            names.append(word)
    return " ".join(names)


def _below(group: click.Group, word: str) -> click.Command | None:
    """A command of a group, which is not asked for by what cannot be one."""
    return group.get_command(click.Context(group), word)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code. Without `argv` the process is the command's own, and so is Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a terminal that knows fewer characters gets the others escaped
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    words = list(sys.argv[1:] if argv is None else argv)
    options = Options(
        json="--json" in words, alone=argv is None
    )  # an error before it was understood is to be one document as well
    command = _command_of(words)
    COUNTER.begin()
    if argv is not None:
        sys.exit(_run(words, options, command))
    if command in _MANY_FILES:
        gc.set_threshold(*_COLLECT_AFTER)
    interrupt.end(_run_alone(words, options, command))


def _run_alone(words: list[str], options: Options, command: str) -> int:
    """The same in a process of its own. A second Ctrl-C, and one while the end is told, ends it at once."""
    try:
        interrupt.raise_it()
        code = _run(words, options, command)
        interrupt.leave()
    except KeyboardInterrupt:
        interrupt.leave()
        code = _interrupted(options, command)
    return code


def _has_clock() -> bool:
    """Whether the time is one that can be noted: nanoseconds since 1970 in 63 bits, or Python gives none."""
    try:
        return time.time_ns() >= 0
    except OverflowError:
        return False


def _interrupted(options: Options, command: str) -> int:
    if sys.stderr.isatty():
        end_progress()
        clear = "" if os.environ.get("TERM") == "dumb" else "\x1b[K"
        click.echo(f"\r{clear}", err=True, nl=False, color=True)  # over the terminal's own ^C
    return _fail(options, command, interrupt.EXIT_CODE, "Interrupted", "interrupted; safe to run again")


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
        return _interrupted(options, command)
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
            step_after(e, CHECK_PATH),
        )
    except Exception as e:  # noqa: BLE001 - whatever it is, its user gets a message and scripts their document
        if isinstance(e, OverflowError | struct.error) and not _has_clock():
            message = (
                "the clock of this machine stands so far out (before 1970 or after 2262, say) that it is of no use"
            )
            return _fail(options, command, 1, "WorkspaceError", message, "Set the clock, and run again.")
        return _fail(
            options,
            command,
            1,
            type(e).__name__,
            f"an error of MetaSync's own: {type(e).__name__}: {e}",
            "Nothing that was pushed is lost. Run again with --verbose, and report what it prints.",
        )
    return 0
