"""`init`, `clone` and `demo`: how a folder becomes a workspace."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from metasync.config import byzantine_f, quorum
from metasync.errors import UsageError
from metasync.terminal import by_daemon, prompt
from metasync.terminal.console import Console, Options, common, program_in
from metasync.terminal.passphrase import anyway_option, first_passphrase, tried
from metasync.terminal.style import alarm
from metasync.terminal.text import phrases, sync_text

if TYPE_CHECKING:  # asking for help, or completing a word, loads no workspace
    from metasync.members.clone_invitation import Trust
    from metasync.reports.start import ClonePreview, CloneReport
    from metasync.workspace import Workspace

FEW_VOTERS = (
    "With fewer than 4 voting backends, one that lies or is restored from a backup can show your devices different"
    " histories."
)


def _asked_byzantine(options: Options) -> Callable[[int], bool | None] | None:
    """At 5 and 7 voting backends it is a choice, and the user's: asks on a terminal, else leaves it at crashes."""
    if options.json or options.quiet or not prompt.somebody():
        return None

    def ask(n: int) -> bool | None:
        lying, down = byzantine_f(n, at_cost=True), n - quorum(n, 0)
        if lying == byzantine_f(n):
            return None
        return prompt.confirmed(
            f"{n} backends may vote. As it is, any {down} of them may be down, and none may lie."
            f" Shall any {lying} be allowed to lie, and {n - quorum(n, lying)} be down?"
        )

    return ask


def _missing(directory: Path, *, name: str | None, has_backends: bool) -> UsageError:
    """What `init` cannot do without, all at once, where there is nobody to ask."""
    usual = directory.resolve().name
    usual = shlex.quote(usual if usual and usual.isprintable() else "docs")
    if has_backends:
        return UsageError("no name was given: what the workspace is called on all devices",
                          next_step=f"Add one: --name {usual}")  # fmt: skip
    what = "no backend was given" if name is not None else "neither a name nor a backend was given"
    words = "--backend URL --backend URL --backend URL"
    return UsageError(
        f"{what}, and nobody can be asked here",
        next_step=f"Add {words if name is not None else f'--name {usual} {words}'}: three stores that do not"
        " fail together. On a terminal, `metasync init` alone asks for all of it.",
    )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=Path())
@click.option("--name", default=None, help="What the workspace is called on all devices.")
@click.option("--backend", "backends", multiple=True, metavar="URL", help="The URL of a backend; give several.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 16),
    default=None,
    help="How many backends hold each piece of data (default 2).",
)
@click.option("--device-name", default=None, metavar="NAME", help="The name of this device (default: its host name).")
@click.option("--no-encryption", is_flag=True, help="Store data unencrypted. Changes to them are still noticed.")
@click.option("--byzantine/--no-byzantine", default=None,
              help="Bear voting backends that lie, even if fewer may then be down; or do not.")  # fmt: skip
@click.option("--by-space/--equal-shares", default=None,
              help="Share by free space, or equally. Default: by space, where all backends tell it.")  # fmt: skip
@anyway_option
@common
@click.pass_obj
def init(
    options: Options,
    directory: Path,
    name: str | None,
    backends: tuple[str, ...],
    replicas: int | None,
    device_name: str | None,
    no_encryption: bool,
    byzantine: bool | None,
    by_space: bool | None,
    anyway: bool,
) -> None:
    """Makes a folder a workspace, on the given backends.

    Asks for a passphrase, or makes one, and prints a recovery phrase that opens the workspace without it. Other
    devices get the folder by `metasync clone`. Without backends, on a terminal, it asks for them, links accounts, and
    invites a second device.

    \b
    Example:
      metasync init ~/Documents
      metasync init ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b --backend file:///mnt/c
    A backend URL may end in ?capacity=15GiB, &name=work-box, &role=storage.
    """
    may_ask = not options.json and not options.quiet and prompt.somebody()
    is_guided = may_ask and not backends
    if may_ask and (is_guided or name is None):
        from metasync.commands import guided

        if is_guided:
            name, backends = guided.asked(options.directory / directory, name)
        else:
            name = guided.name_of(options.directory / directory)
    if name is None or not backends:
        raise _missing(options.directory / directory, name=name, has_backends=bool(backends))
    console = Console(options)
    from metasync.workspace import Workspace

    passphrase = first_passphrase(anyway=anyway, about=[name])
    report = Workspace.init(
        options.directory / directory,
        name=name,
        backends=backends,
        passphrase=passphrase,
        replicas=replicas,
        encryption=not no_encryption,
        byzantine=_asked_byzantine(options) if byzantine is None else byzantine,
        by_space=by_space,
        device_name=device_name,
        on_event=console.event,
    )
    lines = [
        f"Workspace {name} in {report.directory}, on {phrases.count(len(report.backends), 'backend')}.",
        report.survives,
        *([FEW_VOTERS] if report.lying == 0 and report.voters < 4 else []),
        "",
        "Recovery phrase: opens the workspace if the passphrase is lost. Write it down; it is not shown again.",
        f"  {report.recovery_phrase}",
        "",
        f"Next: {program_in(options.directory / directory)} push",
    ]
    if is_guided:
        for line in lines:  # the phrase is shown before anything else is asked, and may go wrong
            console.line(line)
        lines = ["", *guided.invited(report.workspace, passphrase)]
    report.workspace.close()
    console.report("init", lines, report, once=report.recovery_phrase)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--name", default=None, help="The workspace's name.")
@click.option("--backend", "backends", multiple=True, metavar="URL",
              help="A backend of the workspace; give a majority.")  # fmt: skip
@click.option("--invite", default=None, metavar="CODE|FILE", help="Join by an invitation, without name and passphrase.")
@click.option("--device-name", default=None, metavar="NAME", help="The name of this device (default: its host name).")
@click.option(
    "--expect",
    default=None,
    metavar="FINGERPRINT",
    help="Stop unless the newest version has this fingerprint, in digits or in words.",
)
@click.option("--dry-run", is_flag=True, help="Only show how much would come, and whether the disk has room for it.")
@click.option("--merge", is_flag=True,
              help="The folder may have files: they stay, and count as new.")  # fmt: skip
@click.option("--trust-hosts", is_flag=True,
              help="Send your logins to the servers that the invitation names, without asking.")  # fmt: skip
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE",
              help="A setting that holds from the first file on, such as limit.down=2M.")  # fmt: skip
@common
@click.pass_obj
def clone(
    options: Options,
    directory: Path,
    name: str | None,
    backends: tuple[str, ...],
    invite: str | None,
    expect: str | None,
    device_name: str | None,
    settings: tuple[str, ...],
    dry_run: bool,
    merge: bool,
    trust_hosts: bool,
) -> None:
    """Copies a workspace into a new folder, on this device.

    Takes the workspace's name, its passphrase, and the URLs of most of its backends; or an invitation, which
    `metasync invite` makes on another device. With an invitation, give URLs only for backends that this device
    reaches by another address. Asks before your logins go to servers that the invitation alone names.

    With --merge the folder may have files, and a local state that was lost, damaged or copied: nothing of it is
    deleted, and where the workspace has something else at a path, both are kept.

    \b
    Example:
      metasync clone ~/Documents --name docs --backend file:///mnt/a --backend file:///mnt/b
      metasync clone ~/Documents --invite tablet.txt
    """
    from metasync.keys.invitation import is_code
    from metasync.workspace import Workspace

    console = Console(options)
    _check_words(name, backends, invite, expect or device_name)

    code = invite if invite is None or is_code(invite) else str(options.directory / invite)
    trusted = _asked_trust(options) if not trust_hosts else True
    if dry_run:
        _preview(console, options.directory / directory, name or "", backends, code, trusted, merge=merge)

    if merge:
        by_daemon.refuse_kept(options.directory / directory)

    def begun(given: str) -> CloneReport[Workspace]:
        return Workspace.clone(
            options.directory / directory,
            name=name or "",
            backends=backends,
            passphrase=given,
            invite=code,
            expect=expect,
            device_name=device_name,
            settings=_settings(settings),
            trust_hosts=trusted,
            merge=merge,
            on_event=console.event,
        )

    run = program_in(options.directory / directory)
    report = begun("") if invite is not None else tried(begun)
    lines = [
        f"Cloned {name or report.name} into {report.directory}: version {report.version} ({report.fingerprint}),"
        f" {phrases.count(report.files, 'file')}, {phrases.size(report.bytes)}.",
    ]
    lines += _fingerprint(report.version, report.words, vouched=report.vouched)
    if report.problem:
        lines.append(f"There may be newer versions; this is the newest that could be proven: {report.problem}")
        lines.append(f"Run `{run} pull` when more backends are reachable.")
    lines += [f"Not linked here: {n}. Link it: {run} backend link {n} URL" for n in report.unlinked]
    if report.read_only:
        lines.append("This device has a way to fewer backends than a quorum: it can read, but not push.")
    lines += sync_text.conflicts(report.conflicts)
    lines += sync_text.unplaced(report.unplaced)
    lines += sync_text.down(report.down)
    report.workspace.close()
    if merge:
        lines += _text_of_merge(Path(report.directory), run)
    codes = [3] if report.conflicts else []
    codes += [5] if report.problem and not (report.read_only and report.files) else []
    console.report("clone", lines, report, codes)


def _text_of_merge(folder: Path, run: str) -> list[str]:
    """What comes of the files that were in the folder, and where the local state lies that was there."""
    from metasync.session.folder import BEFORE, STATE_DIR

    lines = [f"What was here and is not pushed yet: `{run} status` shows it, `{run} push` brings it."]
    if (folder / STATE_DIR / BEFORE).exists():
        lines.append(f"The local state that was here lies in {STATE_DIR}/{BEFORE}; it may be deleted.")
    return lines


def _asked_trust(options: Options) -> Trust:
    """Asks on a terminal whether logins may go to the servers of an invitation; elsewhere they may not."""
    if options.json or options.quiet or not prompt.somebody():
        return False

    def ask(servers: tuple[str, ...]) -> bool:
        prompt.tell(
            "The invitation leads to servers that you did not name. They will be shown the logins that you have for",
            "their kind: in the environment, in files, in the keyring.",
            *(f"  {server}" for server in servers),
        )
        return prompt.confirmed("Do you trust whoever made the invitation, and are these the servers you were told of?")

    return ask


def _fingerprint(version: int, words: str, *, vouched: bool) -> list[str]:
    """What a person can compare; and what a device without a memory cannot know."""
    lines = [f"Fingerprint in words: {words}"]
    if not vouched:
        lines.append(
            "This device has no memory yet: it cannot know of newer versions, or of a revoked device, that all the"
            " backends it reached leave out."
        )
        lines.append(
            f"Compare the words with another device's: `metasync status -v` there, when it is at version {version}."
        )
    return lines


def _preview(
    console: Console, directory: Path, name: str, backends: tuple[str, ...], code: str | None, trusted: Trust, *,
    merge: bool,
) -> NoReturn:  # fmt: skip
    """Says what a clone would bring. Exit code 1 where the disk has no room for it."""
    from metasync.session.folder import absolute
    from metasync.sync.clone_preview import preview

    def looked(given: str) -> ClonePreview:
        return preview(absolute(directory), name, backends, given, code, console.event, trusted, merge=merge)

    r = looked("") if code is not None else tried(looked)
    free, needed = phrases.size(r.free_bytes), phrases.size(r.needed_bytes)
    lines = [
        f"Would clone {r.name} into {r.directory}: version {r.version} ({r.fingerprint}),"
        f" {phrases.count(r.files, 'file')}, {phrases.size(r.bytes)}. Nothing was changed.",
        f"The disk has room for it: {free} free."
        if r.fits
        else alarm(f"The disk has no room for it: {free} free, {needed} needed."),
        *_fingerprint(r.version, r.words, vouched=code is not None),
        *sync_text.down(r.down),
    ]
    console.report("clone", lines, r, [] if r.fits else [1])


def _settings(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"--config {key} has no value", next_step="Give it as KEY=VALUE, such as limit.down=2M.")
    return {key: value for key, _, value in pairs}


def _check_words(name: str | None, backends: tuple[str, ...], invite: str | None, other: str | None) -> None:
    if invite is not None:
        if name is not None or other is not None:
            raise UsageError(
                "an invitation says which workspace, which version and what this device is called: leave out --name, "
                "--expect and --device-name"
            )
    elif name is None or not backends:
        raise UsageError(
            "clone needs --name and --backend, or an invitation",
            next_step="Run: metasync clone DIR --name NAME --backend URL, or: metasync clone DIR --invite CODE",
        )


@click.command()
@click.option("--keep", is_flag=True, help="Keep the demo's folder, to look at.")
@common
@click.pass_obj
def demo(options: Options, keep: bool) -> None:
    """Shows MetaSync at work: three backends and two devices.

    Works in a temporary folder, for about a minute.

    \b
    Example:
      metasync demo
    """
    from metasync.commands import demo as show

    said: list[str] = []
    code = show.run(said.append if options.quiet or options.json else click.echo, keep=keep)
    Console(options).report("demo", [], {"lines": [line for text in said for line in text.splitlines()]}, [code])
