"""The guided start: `metasync init` without backends, on a terminal, asks where to store things and links accounts.

It only asks. What it ends with are the words that `init` takes, and each of its steps has a command of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from metasync.backends.registry import check_installed, has_atomic_create, is_own, may_vote, parse_url
from metasync.config import byzantine_f, quorum
from metasync.errors import MetaSyncError, UsageError
from metasync.session.folder import new_folder
from metasync.terminal import prompt
from metasync.terminal.console import Finish
from metasync.terminal.text import phrases

if TYPE_CHECKING:
    from metasync.backends.api import BackendUrl
    from metasync.workspace import Workspace

COPIES: Final = 2  # of everything, where there are so many backends: what `init` does
GOOD: Final = 3  # the least with which one may be away, and a push goes on
MOST: Final = 16
TRIES: Final = 3
_FILES_MAX: Final = 100_000  # that are looked at to say how large the folder is
_TITLES: Final = {"dropbox": "Dropbox", "onedrive": "OneDrive", "box": "Box", "gdrive": "Google Drive"}


class Start(NamedTuple):
    """What the user chose."""

    name: str
    backends: tuple[str, ...]


def asked(directory: Path, name: str | None) -> Start:
    """Asks for a new workspace's backends and its name. `Finish`: the user says no in the end, and nothing was made.

    Accounts that it linked meanwhile stay linked. `UsageError`, `WorkspaceError`: there can be no workspace here.
    """
    directory = new_folder(directory, name or "docs")  # before anything is asked for in vain
    prompt.tell(
        f"{directory} becomes a workspace: versioned, encrypted, and in step with your other devices.",
        "Where is it to be stored? Name stores that do not fail together: three or more, so that one may be away.",
    )
    kinds = _kinds()
    chosen: list[BackendUrl] = []
    texts: list[str] = []
    while len(chosen) < MOST:
        prompt.tell("", *(f"  {number}  {words}" for number, (words, _) in enumerate(kinds, start=1)))
        answer = prompt.line(
            "A number, or Enter if these are all" if chosen else "A number", empty=bool(chosen)
        ).strip()
        if not answer:
            if len(chosen) >= GOOD or prompt.confirmed(f"{_summary(chosen)} Go on with {_these(len(chosen))}?"):
                break
            continue
        if not answer.isdecimal() or not 1 <= int(answer) <= len(kinds):
            prompt.tell(f"That is none of the numbers from 1 to {len(kinds)}.")
            continue
        text = _tried(kinds[int(answer) - 1][1])
        if text is None:
            continue
        url = parse_url(text)
        if any(url.location == other.location for other in chosen):
            prompt.tell("That one is chosen already: its loss would be the loss of two copies.")
            continue
        chosen.append(url)
        texts.append(text)
        prompt.tell("", *(f"  {number}. {u.location}" for number, u in enumerate(chosen, start=1)), _summary(chosen))
    name = name or name_of(directory)
    prompt.tell("", *_cost(directory, len(chosen)))
    if not prompt.confirmed(f"Make the workspace {name}?"):
        prompt.tell("Nothing was made. Accounts that were linked stay linked: metasync auth --list")
        raise Finish(1)
    return Start(name, tuple(texts))


def name_of(directory: Path) -> str:
    """Asks for the name of a new workspace."""
    directory = new_folder(directory, "docs")
    usual = directory.name or "files"
    while True:
        words = f"What is the workspace called, on all devices? (Enter: {usual})"
        name = prompt.line(words, empty=True).strip() or usual
        try:
            new_folder(directory, name)
        except UsageError as error:
            prompt.tell(*_words(error))
        else:
            return name


def invited(workspace: Workspace, passphrase: str) -> list[str]:
    """Asks for a second device, and invites it. -> the lines with its one command; how to do it later, without one."""
    while True:
        device = prompt.line("A name for your second device, which is invited now (Enter: later)", empty=True).strip()
        if not device:
            return ["Another device, later: metasync invite NAME"]
        try:
            made = workspace.invite(device, passphrase)
        except UsageError as error:
            prompt.tell(*_words(error))
            continue
        except MetaSyncError as error:  # the workspace is there all the same
            prompt.tell(*_words(error))
            return ["No device was invited. Later: metasync invite NAME"]
        folder = workspace.directory.name
        return [
            f"On {device}, once you have pushed, run this one command. Whoever uses it first is admitted:",
            f"  metasync clone {folder} --invite {made.code}",
            f"It holds no login: link the accounts there first. Take it back: metasync device revoke {device}",
        ]


def _kinds() -> list[tuple[str, Callable[[], str]]]:
    """What may be chosen: the words, and what asks for a URL of it."""
    linked = [(f"{title} (an account that you link)", _asking(name)) for name, title in _TITLES.items() if is_own(name)]
    return [
        ("a folder: on another disk, a mounted drive, a network share", _folder),
        *linked,
        ("something else, by its URL: s3://, webdav://, sftp://, azure://, gs://, swift://", _by_url),
    ]


def _asking(provider: str) -> Callable[[], str]:
    return lambda: _account(provider)


def _tried(ask: Callable[[], str]) -> str | None:
    """A URL that can be one; None where it could not be had: the user chooses again."""
    for _ in range(TRIES):
        try:
            text = ask()
            parse_url(text)
        except UsageError as error:
            prompt.tell(*_words(error))
            if "not installed" in error.message:
                return None
        except MetaSyncError as error:
            prompt.tell(*_words(error))
            return None
        else:
            return text
    return None


def _words(error: MetaSyncError) -> list[str]:
    return [f"{phrases.sentence(error.message)}.", *([phrases.sentence(error.next_step)] if error.next_step else [])]


def _folder() -> str:
    path = os.path.expanduser(prompt.line("Its path, as in /mnt/disk/metasync").strip())
    if not os.path.isabs(path):
        raise UsageError("the path does not begin with /", next_step="Give all of it: /mnt/disk/metasync.")
    return f"file://{quote(os.path.normpath(path))}"


def _by_url() -> str:
    return prompt.line("Its URL").strip()


def _account(provider: str) -> str:
    from metasync.backends._shared.logins import kept
    from metasync.commands import linking

    known = linking.provider_named(provider)
    check_installed(provider)  # before anybody registers an app or logs in
    found = kept.accounts(provider)
    label = kept.DEFAULT
    if found:
        answer = prompt.line(
            f"Which account? Linked: {', '.join(found)}; another name links another one (Enter: {found[0]})", empty=True
        ).strip()
        label = kept.check_label(answer or found[0])
    if label not in found:
        linking.link(known, label, browser=True)
        prompt.tell(f"Linked the account of {known.title}.")
    folder = prompt.line("The folder there (Enter: metasync)", empty=True).strip().strip("/") or "metasync"
    return f"{provider}:/{quote(folder)}{'' if label == kept.DEFAULT else f'?account={label}'}"


def _these(n: int) -> str:
    return "this one" if n == 1 else f"these {n}"


def _summary(chosen: list[BackendUrl]) -> str:
    """What a choice survives, as far as it can be told before the stores are asked."""
    voting = [u for u in chosen if u.role == "both" and may_vote(u.scheme)]
    n, copies = len(voting), min(COPIES, len(chosen))
    if not n:
        return "None of them can vote: agreement needs one that can."
    lying = byzantine_f(n) if all(has_atomic_create(u.scheme) for u in voting) else 0
    q = quorum(n, lying)
    lost = (
        f"any {copies - 1} of the {len(chosen)} may be lost without losing data" if copies > 1 else "none may be lost"
    )
    away = f"{n - q} may be away" if n > q else "none may be away"
    lie = f", and {lying} may lie" if lying else ""
    advice = "" if len(chosen) >= GOOD else f" {GOOD} are advised."
    return f"With {_these(len(chosen))}: {lost}; for a push {away}{lie}.{advice}"


def _cost(directory: Path, n: int) -> list[str]:
    """What the choice costs in space."""
    copies = min(COPIES, n)
    each = "once" if copies == 1 else f"on {copies} of the {n}"
    line = f"Everything is stored {each}, compressed; what is unchanged is stored once for all versions."
    size, whole = _size(directory)
    if not size:
        return [line]
    least = "" if whole else "more than "
    whole_size, stored = phrases.size(size), phrases.size(size * copies)
    return [line, f"The folder has {least}{whole_size}: that is {least}{stored} before compression."]


def _size(directory: Path) -> tuple[int, bool]:
    """The bytes of the files of a folder, and whether these are all."""
    total = seen = 0
    for folder, dirs, files in os.walk(directory):
        dirs[:] = [name for name in dirs if name != ".metasync"]
        for name in files:
            seen += 1
            if seen > _FILES_MAX:
                return total, False
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total, True
