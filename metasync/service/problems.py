"""What goes wrong with a kept workspace, as the user is told of it: what it is about, what to do, since when."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from dataclasses import replace
from shlex import quote
from typing import Final, Literal

from metasync.errors import (
    NO_WAY,
    BackendError,
    DamagedError,
    ForkError,
    FullError,
    GuardError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UpgradeError,
    WorkspaceError,
)
from metasync.local import state
from metasync.local.state_keys import NO_INODES
from metasync.reports.service import COPIES, Kind, Problem
from metasync.reports.sync import BadCopies

Verb = Literal["push", "pull"]
LOGIN: Final = "metasync auth"  # stands in the next step of an error that a login would mend
QUORUM: Final = "quorum"
DISK: Final = "disk"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
TEXT_MAX: Final = 500  # characters of an error that is none of ours
PROBLEMS_MAX: Final = 100  # told at a time; a folder may have more conflicts than anyone reads
AGAIN: Final = "It is tried again by itself."
_KINDS: Final[tuple[tuple[type[MetaSyncError], Kind], ...]] = (
    (GuardError, "guard"),
    (NoQuorumError, "quorum"),
    (FullError, "space"),
    (ForkError, "fork"),
    (DamagedError, "damage"),
    (BackendError, "backend"),
    (WorkspaceError, "folder"),
)
NEEDS_A_HAND: Final = (ForkError, DamagedError, PassphraseError, UpgradeError)
"""Errors that do not pass by themselves."""


class Problems:
    """The problems there are, by key; each keeps the time at which it was first noticed."""

    def __init__(self) -> None:
        self._by_key: dict[str, Problem] = {}

    def put(self, problem: Problem) -> None:
        before = self._by_key.get(problem.key)
        self._by_key[problem.key] = problem if before is None else replace(problem, since_s=before.since_s)

    def get(self, key: str) -> Problem | None:
        return self._by_key.get(key)

    def about(self, prefix: str) -> frozenset[str]:
        """What the problems are about whose keys begin so: the rest of their keys."""
        return frozenset(key.removeprefix(prefix) for key in self._by_key if key.startswith(prefix))

    def drop(self, key: str) -> None:
        self._by_key.pop(key, None)

    def only(self, prefix: str, problems: Iterable[Problem]) -> None:
        """These are the problems whose keys begin so."""
        now = {problem.key: problem for problem in problems}
        for key in [k for k in self._by_key if k.startswith(prefix) and k not in now]:
            del self._by_key[key]
        for problem in now.values():
            self.put(problem)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def all(self) -> tuple[Problem, ...]:
        """What blocks comes first, then what is oldest. What a push and a pull ended with alike is one."""
        found: dict[tuple[str, str, str], Problem] = {}
        for one in sorted(self._by_key.values(), key=lambda p: (not p.blocks, p.since_s, p.key)):
            found.setdefault((one.text, one.next_step, one.asks), one)
        return tuple(found.values())[:PROBLEMS_MAX]


def of_error(verb: str, error: BaseException, now_s: float, folder: str = "this folder") -> Problem:
    """The problem that an operation in a folder ended with. Its key is `verb:kind`, but QUORUM and DISK for all."""
    asks: Literal["", "push", "pull"] = ""
    if is_of_full_disk(error):
        kind: Kind = "disk"
        text = error.message if isinstance(error, MetaSyncError) else f"The disk is full: {error}."[:TEXT_MAX]
        step = f"{free_space(folder, text)} {AGAIN}"
    elif isinstance(error, MetaSyncError):
        kind = next((kind for type_, kind in _KINDS if isinstance(error, type_)), "other")
        if LOGIN in error.next_step:
            kind = "login"
        if isinstance(error, GuardError):
            asks = "pull" if verb == "pull" or error.message.startswith("this pull") else "push"
        text, step = error.message, error.next_step or AGAIN
    else:
        kind, step = "other", f"{AGAIN} Report it if it stays."
        text = f"An error of MetaSync's own: {type(error).__name__}: {error}"[:TEXT_MAX]
    key = kind if kind in (QUORUM, DISK) else f"{verb}:{kind}"
    return Problem(key, kind, text, step, now_s, asks, blocks=True)


def free_space(folder: str, why: str = "") -> str:
    """What to do where a disk of this device is full, for a reason that names what it lacks."""
    return f"{'Delete some files' if NO_INODES in why else 'Free some space'} on the disk of {folder}."


def is_of_full_disk(error: BaseException) -> bool:
    """Whether an operation failed since a disk of this device is full. A backend that is full is none of these."""
    if isinstance(error, MetaSyncError) and not isinstance(error, WorkspaceError):
        return False
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BackendError):
        if isinstance(cause, OSError) and cause.errno in FULL:
            return True
        if state.is_of_full_disk(cause):
            return True
        cause = cause.__cause__
    return False


def of_backend(name: str, reason: str, now_s: float, folder: str) -> Problem:
    """A backend that a push or pull in a folder did without."""
    kind: Kind = "login" if LOGIN in reason else "backend"
    if reason == NO_WAY:  # another device added it: it does not come back by itself
        step = f"Run: metasync -C {quote(folder)} backend link {quote(name)} URL"
        return Problem(f"backend:{name}", kind, f"the backend {name} is not linked here", step, now_s)
    step = "Nothing, if it is back soon: what it lacks is brought to it then. `metasync backend list` tells more."
    return Problem(f"backend:{name}", kind, f"the backend {name} is away: {reason}", step, now_s)


def of_copies(copies: BadCopies, mends_at_s: float | None, now_s: float) -> Problem:
    """Copies on a backend that were found altered or gone. `mends_at_s`: not before that they are made good by
    themselves; None: not at all."""
    what = "a copy is" if copies.packs == 1 else f"{copies.packs:,} copies are"
    step = "Run: metasync check --repair"
    if mends_at_s is not None:
        at = time.strftime(" after %H:%M", time.localtime(mends_at_s)) if mends_at_s > now_s else " within minutes"
        step = f"Nothing: it is made good by itself{at}, from other copies; or at once: metasync check --repair"
    text = f"the backend {copies.backend}: {what} altered or gone there"
    return Problem(f"{COPIES}{copies.backend}", "damage", text, step, (copies.since_ns or 0) / 1e9)


def of_broker(why: str, now_s: float) -> Problem:
    """A broker that does not tell of news. It stops nothing, and is told by `status` alone."""
    step = "Nothing, if it is back soon: backends are asked for news meanwhile."
    return Problem("broker", "other", f"the broker is away: {why}", step, now_s)


def of_watches(needed: int, limit: int, now_s: float) -> Problem:
    """Too few watches for all directories of the folder."""
    wanted = max(2 * needed, 2 * limit, 1 << 19)
    has = f"; this system lets you have {limit:,} for all programs" if limit else ""
    step = (
        f"Run: sudo sysctl fs.inotify.max_user_watches={wanted} (and put fs.inotify.max_user_watches={wanted} into "
        "/etc/sysctl.d/60-metasync.conf). Until then the folder is walked every few minutes."
    )
    return Problem("watch", "watch", f"{needed:,} directories cannot all be watched{has}.", step, now_s)
