"""What the operations of a workspace report: values for the library, and what the command line prints from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metasync.errors import MetaSyncError

if TYPE_CHECKING:
    from metasync.sync.changes import Counts, PathChange
    from metasync.sync.device_reports import Withdrawal
    from metasync.sync.evidence import Evidence


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """`path` has the agreed bytes; this device's own are at `kept`. `reason`: a sentence."""

    path: bytes
    kept: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that was left out, and why; nothing about it was changed."""

    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths by what happened to them, sorted."""

    added: tuple[bytes, ...] = ()
    modified: tuple[bytes, ...] = ()
    deleted: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.added) + len(self.modified) + len(self.deleted)


@dataclass(frozen=True, slots=True)
class PullReport:
    """`before` and `version`: the agreed version this folder was at, and is at now. `warnings`: sentences: what is
    wrong with ignore rules, and in a dry run why the pull would stop.

    `unplaced`: what is agreed and cannot be held here; it stays as it is for the others.
    """

    before: int
    version: int
    changes: Changes = field(default_factory=Changes)
    conflicts: tuple[ConflictReport, ...] = ()
    merged: tuple[bytes, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unplaced: tuple[Skipped, ...] = ()
    down: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TightBackend:
    """A backend that would not hold what a push may bring: bytes it would get at most, and bytes that fit."""

    name: str
    needed_bytes: int
    fits_bytes: int


@dataclass(frozen=True, slots=True)
class Trailing:
    """Copies on their way to a backend, of packs that are agreed already and of which there are other copies."""

    name: str
    packs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PushReport:
    """The outcome of a push.

    version      the agreed version that holds what was pushed; None when there was nothing to push, or in a dry run
    changes      what differs from the version before it
    pulled       what was merged first, if others were faster
    packs        packs stored, with their bytes; `copies` wanted of each, `under_replicated` packs that have fewer
    elsewhere    packs that found another place than the one they belong to
    busy         files that kept changing while they were read: left to the next push
    unreadable   files and directories that could not be read: left out, the agreed version keeps them
    found_again  the version of an earlier push that had been agreed though it never said so
    warnings     sentences: what is wrong with ignore rules, and in a dry run why the push would stop
    size_to_read in a dry run: bytes of the files that are new or changed, `files_to_read` of them
    to_send      in a dry run: how many bytes of content would go to each backend at most, by name: less of what
                 is stored already or compresses
    tight        in a dry run: backends whose space may not be enough
    unportable   names that are new in this push and that other systems can't hold
    trailing     with `durability`: copies that were still to be made when it was agreed, by backend
    """

    version: int | None
    changes: Changes
    pulled: PullReport | None = None
    packs: int = 0
    bytes_stored: int = 0
    copies: int = 0
    under_replicated: int = 0
    elsewhere: int = 0
    busy: tuple[Skipped, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    found_again: int | None = None
    down: Mapping[str, str] = field(default_factory=dict)
    size_to_read: int = 0
    warnings: tuple[str, ...] = ()
    tight: tuple[TightBackend, ...] = ()
    unportable: tuple[Skipped, ...] = ()
    files_to_read: int = 0
    to_send: Mapping[str, int] = field(default_factory=dict)
    trailing: tuple[Trailing, ...] = ()


@dataclass(frozen=True, slots=True)
class LogItem:
    """One agreed version. `time_ns`: the author's clock, ns since 1970; `device`: the author's name or id.

    changes  in the log of a path: what changed there; None in the log of all
    counts   how much changed, if that was asked for
    kept     not a version (`version` is 0): what a merge by lines replaced, kept beside the version it came with
    """

    version: int
    snapshot: bytes
    device: str
    time_ns: int
    message: str
    changes: tuple[PathChange, ...] | None = None
    counts: Counts | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class BackendState:
    """How a backend fares. `state`: `ok`, or why not. `linked`: this device has a way to it.

    used_bytes    of packs that belong there, as the index of this folder's version says; None when it is not at hand
    free_bytes    on the account, and `total_bytes` of it, where the backend tells
    reserve_used  it was full, and its ballast was given up so that agreement went on
    warning       a sentence when it is nearly full, else ""
    """

    name: str
    url: str
    roles: tuple[str, ...]
    capacity_bytes: int
    linked: bool
    state: str
    free_bytes: int | None = None
    under_replicated: int = 0
    used_bytes: int | None = None
    total_bytes: int | None = None
    reserve_used: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Moving:
    """What still lies only where the backends had it before they changed; it is read there."""

    packs: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BackendChange:
    """A change of the agreed backends. `version`: as which it was agreed; None when nothing was (a dry run, no change).

    before, after  what the workspace survives, in a sentence
    moving         what lies elsewhere now than it belongs, to be moved later
    kept           sentences: what stays as it is, and until when
    """

    name: str
    version: int | None
    fingerprint: str
    dry_run: bool
    before: str
    after: str
    voting: int
    storing: int
    moving: Moving = Moving()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoverReport:
    """A restart of the workspace without backends that are lost for good. `version`: as which; None for a dry run.

    newest, newest_fingerprint  the newest version known to be agreed, which it goes on from
    carried        whether it has the content of a version after that, of which nobody can tell if it was agreed
    lost_packs     of that content, packs of which no backend that is left holds a copy; `lost_bytes` in them
    stored_again   bytes that this folder gave back; `missing`: files that it cannot give back either
    resumed        a restart that was begun before was gone on with
    before, after  what the workspace survives, in a sentence; `notes`: what is promised less than before
    """

    era: int
    version: int | None
    fingerprint: str
    dry_run: bool
    without: tuple[str, ...]
    newest: int
    newest_fingerprint: str
    carried: bool
    before: str
    after: str
    lost_packs: int = 0
    lost_bytes: int = 0
    stored_again: int = 0
    missing: tuple[bytes, ...] = ()
    resumed: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """What differs here, and how the backends fare. `newest` is None when no quorum answered (`problem` says why).

    ignored        paths that are ignored and not agreed, the first of `ignored_total`; of a directory it alone
    ignored_agreed how many agreed files are ignored now: they stay agreed as they are, and changes here are not pushed
    warnings       sentences: what is wrong with ignore rules, why a push would stop
    moving         what lies where it was before the backends changed
    unplaced       what is agreed and cannot be held here
    evidence       what voting backends were seen to do that no honest one does, since they are in the workspace
    withdraw       logins that revoked devices have at providers until somebody confirms that they were withdrawn
    paused         until when this device's transfers rest, as a phrase; "" when they do not
    trailing       copies on their way, of packs that this device pushed with `durability`
    """

    name: str
    version: int
    newest: int | None
    fingerprint: str
    changes: Changes
    backends: tuple[BackendState, ...]
    conflicts: tuple[ConflictReport, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unplaced: tuple[Skipped, ...] = ()
    under_replicated: int = 0
    survives: str = ""
    problem: str = ""
    error: MetaSyncError | None = None
    ignored: tuple[bytes, ...] = ()
    ignored_total: int = 0
    ignored_agreed: int = 0
    warnings: tuple[str, ...] = ()
    moving: Moving = Moving()
    evidence: tuple[Evidence, ...] = ()
    withdraw: tuple[Withdrawal, ...] = ()
    paused: str = ""
    trailing: tuple[Trailing, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """`backend` and what is wrong there; `pack` is its name, or b"" for a problem of the backend as a whole."""

    backend: str
    pack: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of a check. `lost`: packs of which no intact copy was found; `short`: those with too few.

    `trailing`: copies that are missing because this device is still to make them; these are no problems.

    `notes`: what was seen, and put right, that is no problem.
    """

    version: int
    packs: int
    copies_checked: int
    bytes_read: int
    problems: tuple[CheckProblem, ...]
    lost: tuple[bytes, ...] = ()
    short: int = 0
    meta_problems: tuple[CheckProblem, ...] = ()
    notes: tuple[str, ...] = ()
    trailing: tuple[Trailing, ...] = ()
