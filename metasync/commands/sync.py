"""`status`, `push`, `pull`, `sync` and `check`: the folder against what is agreed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from metasync.events import Notice
from metasync.terminal import by_daemon
from metasync.terminal.console import Console, Options, common, opened, passes_pause
from metasync.terminal.text import backends_text, phrases, status_text, sync_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.reports.service import WorkspaceState
    from metasync.reports.sync import PullReport, PushReport
    from metasync.workspace import Workspace

FORCE = "Go on even if most files would be deleted."
DURABILITY = (
    "Finish when N copies of everything are stored; the others follow. Default: the setting `durability`, or all."
)


@click.command()
@common
@click.pass_obj
def status(options: Options) -> None:
    """Shows whether you are in step and safe, and what to do next.

    In step: nothing changed here that is not pushed, and nothing newer is there. Safe: every pack of data has all its
    copies on backends that answer. Ends with 4 where copies are missing or bad, 3 where conflicts wait, 5 where too few
    backends answer. With --verbose also shows what is ignored.

    \b
    Example:
      metasync status
      metasync status --json
    """
    console = Console(options)
    with by_daemon.keeping(options.directory) as found:
        kept = found[1] if found is not None else None
    with opened(options, console) as w:
        s = w.status()
    codes = [s.error.exit_code] if s.error is not None else []
    codes += [1] if s.unreadable else []
    codes += [3] if s.conflicts else []
    codes += [4] if s.short or s.bad_copies else []
    now_ns = time.time_ns()
    above, document = _kept(kept, now_ns / 1e9)
    lines = [*above, *status_text.status(s, now_ns=now_ns, verbose=options.verbose, daemon=kept)]
    console.report("status", lines, {**phrases.value(s), "daemon": document}, codes)


def _kept(state: WorkspaceState | None, now_s: float) -> tuple[list[str], dict[str, Any] | None]:
    """What the daemon tells of the folder, as lines and as a document; nothing where it does not keep it."""
    if state is None:
        return [], None
    from metasync.service.wire.values import encode
    from metasync.terminal.text import daemon_text

    return daemon_text.kept(state, now_s), encode(state)


@click.command()
@click.option("-m", "--message", default="", metavar="MSG", help="Describe the version, for `metasync log`.")
@click.option("--dry-run", is_flag=True, help="Only show what would be pushed.")
@click.option("--force", is_flag=True, help=FORCE)
@passes_pause
@click.option("--durability", type=int, metavar="N", help=DURABILITY)
@common
@click.pass_obj
def push(options: Options, message: str, dry_run: bool, force: bool, durability: int | None) -> None:
    """Uploads this folder's changes as a new version.

    If another device was faster, merges its changes into the folder first, as `metasync pull` does.

    \b
    Example:
      metasync push -m "holiday photos"
    """
    console = Console(options)
    words: dict[str, Any] = {"dry_run": dry_run, "force": force, "durability": durability}

    def alone() -> PushReport:
        with opened(options, console) as w:
            return _with_copies(console, w, w.push(message, **words))

    r = by_daemon.done(console, lambda d, at: d.push(at, on_event=console.event, message=message, **words), alone)
    console.report("push", sync_text.push(r, dry_run=dry_run), r, _push_codes(r))


def _with_copies(console: Console, w: Workspace, r: PushReport) -> PushReport:
    """Waits for the copies that a push, or one before it, left open; its report with those that cannot be made now."""
    if not r.trailing or not w.copying:
        return r
    copies = phrases.count(sum(t.packs for t in r.trailing), "copy", "copies")
    committed = f"committed as version {r.version}; " if r.version is not None else ""
    console.event(Notice(f"{committed}finishing {copies} (Ctrl-C is safe)"))
    try:
        return replace(r, trailing=w.finish_copies())
    except KeyboardInterrupt:
        console.event(Notice("the rest of the copies is made by the next push or sync", warning=True))
        raise


def _push_codes(r: PushReport) -> list[int]:
    codes = [1] if r.unreadable else []
    codes += [3] if r.pulled is not None and r.pulled.conflicts else []
    return codes + ([4] if r.under_replicated or r.trailing else [])


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would change here.")
@click.option("--force", is_flag=True, help=FORCE)
@passes_pause
@common
@click.pass_obj
def pull(options: Options, dry_run: bool, force: bool) -> None:
    """Brings this folder to the newest version.

    Merges with what changed here. Where both sides changed the same lines, both files are kept: see `metasync
    conflicts`.

    \b
    Example:
      metasync pull
    """
    console = Console(options)
    words: dict[str, Any] = {"dry_run": dry_run, "force": force}

    def alone() -> PullReport:
        with opened(options, console) as w:
            return w.pull(**words)

    r = by_daemon.done(console, lambda d, at: d.pull(at, on_event=console.event, **words), alone)
    lines = [*(["Dry run: nothing was changed."] if dry_run else []), *sync_text.pull(r, dry_run=dry_run)]
    console.report("pull", lines, r, [3] if r.conflicts else [])


@click.command()
@click.option("-m", "--message", default="", metavar="MSG", help="Describe the version, for `metasync log`.")
@click.option("--dry-run", is_flag=True, help="Only show what would change on both sides.")
@click.option("--force", is_flag=True, help=FORCE)
@passes_pause
@click.option("--durability", type=int, metavar="N", help=DURABILITY)
@common
@click.pass_obj
def sync(options: Options, message: str, dry_run: bool, force: bool, durability: int | None) -> None:
    """Pulls, merges and pushes, until both sides agree.

    \b
    Example:
      metasync sync
    """
    console = Console(options)
    words: dict[str, Any] = {"dry_run": dry_run, "force": force, "durability": durability}

    def alone() -> tuple[PullReport, PushReport]:
        with opened(options, console) as w:
            pulled, pushed = w.sync(message, **words)
            return pulled, _with_copies(console, w, pushed)

    pulled, pushed = by_daemon.done(
        console, lambda d, at: d.sync(at, on_event=console.event, message=message, **words), alone
    )
    codes = ([3] if pulled.conflicts else []) + _push_codes(pushed)
    lines = [*sync_text.pull(pulled, dry_run=dry_run), *sync_text.push(pushed, dry_run=dry_run)]
    console.report("sync", lines, {"pull": pulled, "push": pushed}, codes)


@click.command()
@click.option("--read-data", is_flag=True, help="Read every copy and verify all that is in it, not only its size.")
@click.option("--repair", is_flag=True, help="Make again what is missing or damaged, as far as anybody has it.")
@passes_pause
@common
@click.pass_obj
def check(options: Options, read_data: bool, repair: bool) -> None:
    """Verifies that all data are there, with all promised copies.

    Compares names and sizes on every backend; --read-data reads every copy. Where the same is wrong with many packs of
    a backend, they are counted; --verbose names each.

    --repair stores again what is missing or damaged, from other copies. Of what no backend has, it stores what any file
    in this folder has, pushed or not, and names the rest. Nothing is deleted. With --read-data it also finds copies
    that were altered, and packs in which a device has listed what is not in them. It also puts back into the index what
    a version left out of it though older versions need it.

    \b
    Example:
      metasync check --read-data
      metasync check --repair
    """
    console = Console(options)
    with (by_daemon.mending if repair else opened)(options, console) as w:
        r = w.check(read_data=read_data, repair=repair)
    gone = r.repaired is not None and (r.repaired.gone or r.repaired.gone_objects)
    codes = [7] if r.lost or r.nowhere or gone else []
    codes += [4] if r.short or r.problems or r.meta_problems or r.untrue else []
    console.report("check", backends_text.check(r, read_data=read_data, verbose=options.verbose), r, codes)


@click.command()
@click.option("--full", is_flag=True, help="List every backend now, also those that are not due.")
@passes_pause
@common
@click.pass_obj
def scrub(options: Options, full: bool) -> None:
    """Compares what the backends list, and mends what is missing.

    Costs little: a backend that tells what has changed is asked for that, the others are listed once a day. What they
    tell is compared with the newest version; only packs that differ are asked for, and mended as by `check --repair`.

    It trusts what a backend lists. `metasync check --read-data` trusts nothing.

    
    Example:
      metasync scrub
      metasync scrub --full
    """
    console = Console(options)
    with opened(options, console) as w:
        r = w.scrub(full=full)
    gone = r.repaired is not None and (r.repaired.gone or r.repaired.gone_objects)
    codes = [7] if r.lost or gone else []
    codes += [4] if r.short or r.problems or any(b.how == "away" for b in r.backends) else []
    console.report("scrub", backends_text.scrub(r, verbose=options.verbose), r, codes)
