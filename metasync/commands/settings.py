"""`config`, `pause` and `resume`: what this device may use for a workspace, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from metasync.terminal.console import Console, Options, common, opened
from metasync.terminal.names import completing
from metasync.terminal.passphrase import if_needed
from metasync.terminal.text import backends_text, keep_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.reports.history import KeepReport
    from metasync.reports.settings import SettingsReport


KEEP: Final = "keep"  # agreed: which versions are kept
COPIES: Final = "copies"  # agreed: how many copies of everything there are


def _lines(r: SettingsReport) -> list[str]:
    lines = [f"{key} = {value}" for key, value in sorted(r.settings.items())] or ["Nothing is set: no limits."]
    return [*lines, *([f"Transfers are paused {r.paused}."] if r.paused else [])]


def _with_agreed(r: SettingsReport, agreed: KeepReport) -> SettingsReport:
    return replace(r, settings={**r.settings, **({KEEP: agreed.keep} if agreed.keep is not None else {})})


@click.group("config")
@common
def config() -> None:
    """Shows and changes this device's limits and other settings.

    \b
    Example:
      metasync config set limit.up "9:00-18:00 500k, 2M"
    """


@config.command("list")
@common
@click.pass_obj
def config_list(options: Options) -> None:
    """Lists the settings.

    `keep` is agreed by all devices, and shown as this device knows it: `metasync config get keep` asks.

    \b
    Example:
      metasync config list --json
    """
    console = Console(options)
    with opened(options, console) as w:
        r = _with_agreed(w.settings(), w.keep(ask=False))
    console.report("config list", _lines(r), r)


@config.command("get")
@click.argument("key", shell_complete=completing("settings"))
@common
@click.pass_obj
def config_get(options: Options, key: str) -> None:
    """Prints the value of KEY. Exit code 1 if it is not set.

    \b
    Example:
      metasync config get limit.up
    """
    from metasync.runtime import limits

    console = Console(options)
    if key == KEEP:
        with opened(options, console) as w:
            agreed = w.keep()
        lines = [agreed.keep] if agreed.keep is not None else []
        console.report("config get", lines, {"key": key, "value": agreed.keep}, [] if lines else [1])
    if key != COPIES:
        limits.check_key(key)
    with opened(options, console) as w:
        value = w.settings().settings.get(key) if key != COPIES else str(w.copies)
    lines = [value] if value is not None else []
    console.report("config get", lines, {"key": key, "value": value}, [] if value is not None else [1])


@config.command("set")
@click.argument("key", shell_complete=completing("settings"))
@click.argument("value")
@common
@click.pass_obj
def config_set(options: Options, key: str, value: str) -> None:
    """Sets KEY to VALUE, for this device and this workspace. Commands that run obey within seconds.

    \b
    limit.up, limit.down   bytes a second: 500k, 2M, off; with hours: "9:00-18:00 500k, 2M"
    limit.connections      calls at once on each backend, 1 to 32
    limit.requests         requests a minute to each, 10 or more, off; else what its provider publishes (providers.md)
    nice                   0 to 19, as the program `nice` has it; holds from the next command on
    durability             push and sync wait for so many copies; the others follow (docs/howto/long-push.md)
    cache-mb               megabytes of directories and history kept here at most, 64 or more; 1024 unless set
    base-cache-mb          megabytes of old chunks kept here at most, for changes of files; 2048 unless set, 0: none
    scrub.days             so many days until every copy was read, where a store tells no digests (docs/howto/repair.md)
    special-modes          on: set-id and sticky bits of what others pushed are set here too (docs/howto/limits.md)
    daemon.quiet, daemon.delta, daemon.longest   the daemon pushes when nothing changed for so long (5s), or so much
                           is to be sent (250k), or a change has waited for so long (30s)
    daemon.ask             it asks for news of other devices about so often while nothing happens: 60s
    daemon.trash           so many days what pulls replace or delete here stays in .metasync/replaced; 0 unless set
    upkeep                 how long a push may move, mend and check data when its own work is done: 2s, off. The daemon
                           takes thirty times as long at once, while nothing else is to do
    notify.desktop, .webhook, .command, .after   how the daemon tells you of problems (docs/howto/notices.md)
    daemon.broker          a broker by which devices hear of news at once (docs/howto/on-a-server.md)
    daemon.metrics         an address of this machine for the daemon's figures, such as 127.0.0.1:9464
    The limits may be set for one backend: limit.up.NAME.

    \b
    Two settings are agreed, and hold for all devices:
    copies                 how many copies of everything there are (docs/howto/change-backends.md)
    keep                   versions that `metasync gc` keeps: "last=10 daily=7 weekly=5 monthly=12 within=2d"

    \b
    Example:
      metasync config set limit.up 2M
      metasync config set limit.connections.usb 2
    """
    console = Console(options)
    if key == COPIES:
        if not value.isdecimal():
            raise click.UsageError("copies: a number, such as 2.")
        with opened(options, console) as w:
            done = if_needed(lambda given: w.set_copies(int(value), passphrase=given))
        console.report("config set", backends_text.backend_change("set", done), done)
        return
    with opened(options, console) as w:
        if key == KEEP:
            agreed = w.keep(value, change=True)
            console.report("config set", keep_text.keep(agreed), _with_agreed(w.settings(), agreed))
        r = w.configure(key, value)
    console.report("config set", _lines(r), r)


@config.command("unset")
@click.argument("key", shell_complete=completing("settings"))
@common
@click.pass_obj
def config_unset(options: Options, key: str) -> None:
    """Removes a setting.

    \b
    Example:
      metasync config unset limit.up
    """
    console = Console(options)
    with opened(options, console) as w:
        if key == KEEP:
            agreed = w.keep(None, change=True)
            console.report("config unset", keep_text.keep(agreed), _with_agreed(w.settings(), agreed))
        r = w.configure(key, None)
    console.report("config unset", _lines(r), r)


@click.command()
@click.argument("duration", required=False)
@common
@click.pass_obj
def pause(options: Options, duration: str | None) -> None:
    """Pauses transfers on this device, for a time or until `resume`.

    DURATION is such as 90m, 2h, 1h30m or 2d. A running command sends nothing new within seconds, and goes on when
    the pause ends.

    \b
    Example:
      metasync pause 2h
    """
    from metasync.runtime.limits import parse_duration

    console = Console(options)
    seconds = parse_duration(duration) if duration is not None else None
    with opened(options, console) as w:
        r = w.pause(seconds)
    console.report("pause", [f"Transfers are paused {r.paused}."], r)


@click.command()
@common
@click.pass_obj
def resume(options: Options) -> None:
    """Ends a pause.

    \b
    Example:
      metasync resume
    """
    console = Console(options)
    with opened(options, console) as w:
        was = w.settings().paused
        r = w.resume()
    console.report("resume", ["Transfers go on." if was else "There was no pause."], r)
