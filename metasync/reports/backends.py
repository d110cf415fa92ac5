"""What commands report that are about backends: which there are and how they fare, moves, `gc`, `recover`, `status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metasync.errors import MetaSyncError
from metasync.reports.sync import BadCopies, Changes, ConflictReport, Skipped, Trailing, path_str

if TYPE_CHECKING:
    from metasync.reports.members import RotationReport, Withdrawal


@dataclass(frozen=True, slots=True)
class Evidence:
    """`what` a backend did, and when this device first noticed it (its own clock, ns since 1970)."""

    backend: str
    what: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class BackendState:
    """How a backend fares. `state`: `ok`, or why not. `linked`: this device has a way to it.

    condition     the state in a word or two: `CONDITIONS`
    since_ns      since when it cannot be used, as this device noticed it (its clock, ns since 1970)
    share         of all packs that it gets by the mapping, 0 to 1; None where it holds no data
    capacity_bytes  its weight, which the share follows; `limit_bytes`: how much may go there, None without a limit
    used_bytes    of packs there, counted by the index of this folder's version; None when that is not at hand
    free_bytes    on the account, and `total_bytes` of it, where the backend tells
    reserve_used  it was full, and its ballast was given up so that agreement went on
    warning       a sentence when it is nearly full, or refused what was last written there, else ""
    looked_ns     when a device last saw all that lies there, as this one knows (`scrub`, `check`; ns since 1970)
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
    condition: str = "ok"
    since_ns: int | None = None
    share: float | None = None
    limit_bytes: int | None = None
    looked_ns: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the packs there count as copies. Of one that is not linked here this device can't tell otherwise."""
        return self.condition in ("ok", "full", "held back", "not linked", "distrusted")


CONDITIONS = ("ok", "full", "held back", "not linked", "down", "replaced", "rolled back", "distrusted", "not usable")


@dataclass(frozen=True, slots=True)
class Moving:
    """What still lies only where the backends had it before they changed; it is read there.

    `seconds`: how long it takes to move it by what is known of the lines; None where that is nothing.
    """

    packs: int = 0
    bytes: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Backends that keep the same packs, and the part of all packs that this is, 0 to 1."""

    backends: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True)
class BackendList:
    """The workspace's backends. `survives`: what the set of them lives through, in a sentence.

    `together`: which of them keep the same packs, by the mapping: of a sample of partitions.
    """

    backends: tuple[BackendState, ...]
    moving: Moving = Moving()
    survives: str = ""
    together: tuple[Together, ...] = ()


@dataclass(frozen=True, slots=True)
class Wiped:
    """What was deleted on a removed backend. `left`: objects that could not be, and `why`."""

    objects: int
    bytes: int
    left: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A file that versions `first` to `last` have, and of which no backend, folder or cache has the contents.

    A path with a slash at its end is a directory, of which a part can be read no more.
    """

    path: bytes
    first: int
    last: int

    @property
    def path_str(self) -> str:
        return path_str(self.path)


@dataclass(frozen=True, slots=True)
class BackendChange:
    """A change of the agreed backends. `version`: as which it was agreed; None when nothing was (a dry run, no change).

    before, after  what the workspace survives, in a sentence
    moving         what lies elsewhere now than it belongs, to be moved later
    kept           sentences: what stays as it is, and until when
    lost_packs     packs that only a removed backend had which is dead; `gone`: the files in them, told by a dry run
                   alone, and how many directories and versions (`gone_objects`)
    wiped          what was deleted on a removed backend, where that was asked for and nothing was left to move
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
    lost_packs: int = 0
    gone: tuple[Gone, ...] = ()
    gone_objects: int = 0
    wiped: Wiped | None = None


@dataclass(frozen=True, slots=True)
class Freed:
    """How many packs a backend lost, and their bytes."""

    backend: str
    packs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What garbage collection came to. `version`: the newest agreed one then; None: a dry run.

    kept, dropped  how many versions with files are kept, and how many of those before are kept no more
    freed          by backend: what was deleted there; in a dry run what would be
    packed_anew    packs of which little was needed: that was stored in new packs, and they went
    unused_bytes   in packs that stay, of what nothing needs: about so many in each copy
    away           backends that were not reached, and why; what lies there goes with a later run
    notes          sentences: what could not be done, and when it will be
    missing        contents of files that versions need and no pack has that the index names
    """

    version: int | None
    dry_run: bool
    kept: int
    dropped: int
    freed: tuple[Freed, ...]
    packed_anew: int
    unused_bytes: int
    away: Mapping[str, str]
    notes: tuple[str, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """Copies of packs on one backend: how many, and their bytes together."""

    backend: str
    copies: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RebalanceReport:
    """What became of the packs that are not where the backends of today want them.

    version    as which it was agreed that all is moved, so that what is surplus may go; None when that was not, or is
               agreed before
    left       what is still to move, after this run; in a dry run before it
    sent       copies that were stored and verified, by backend; in a dry run those that would be
    freed      surplus copies that were deleted; in a dry run those that would be, by the mappings alone
    waiting    backends that keep it from its end, and why
    lost       packs of which no backend holds an intact copy
    unfreed    backends where surplus copies may be left, and why
    emptied    objects that were deleted on removed backends, which are to be emptied; `unemptied`: why some are left
    """

    dry_run: bool
    version: int | None
    fingerprint: str
    left: Moving
    sent: tuple[Share, ...] = ()
    freed: tuple[Share, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    lost: tuple[bytes, ...] = ()
    unfreed: tuple[tuple[str, str], ...] = ()
    emptied: tuple[Share, ...] = ()
    unemptied: tuple[tuple[str, str], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all is where it belongs, and nothing surplus is known to be left."""
        return not (self.left.packs or self.waiting or self.lost or self.unfreed or self.unemptied)


@dataclass(frozen=True, slots=True)
class RecoverReport:
    """A restart of the workspace, without backends that are lost for good or past a version that was ended.

    `version`: as which; None for a dry run.

    newest, newest_fingerprint  the newest version known to be agreed, which it goes on from
    carried        whether it has the content of a version after that, of which nobody can tell if it was agreed
    lost_packs     of that content, packs of which no backend that is left holds a copy; `lost_bytes` in them
    stored_again   bytes that this folder gave back; `missing`: files that it cannot give back either
    resumed        a restart that was begun before was gone on with
    before, after  what the workspace survives, in a sentence; `notes`: what is promised less than before
    ended          backends that could take no part in the version after `newest` any more, and why
    keys           the new keys, where devices were revoked with it
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
    missing: Sequence[bytes] = ()
    resumed: bool = False
    notes: tuple[str, ...] = ()
    ended: tuple[tuple[str, str], ...] = ()
    keys: RotationReport | None = None

    @property
    def missing_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.missing))


@dataclass(frozen=True, slots=True)
class Status:
    """What differs here, and how the backends fare. `newest` is None when no quorum answered (`problem` says why).

    device, time_ns  who made this version, and when, by the author's clock; "" and None before the first push
    copies         how many copies of each pack are promised
    by_copies      how many packs have 0, 1, ... as many copies as promised within reach, by the index and by which
                   backends answer; empty where the index is not at hand
    ignored        paths that are ignored and not agreed, the first of `ignored_total`; of a directory it alone
    ignored_agreed how many agreed files are ignored now: they stay agreed as they are, and changes here are not pushed
    warnings       sentences: what is wrong with ignore rules, why a push would stop
    moving         what lies where it was before the backends changed
    unplaced       what is agreed and cannot be held here
    evidence       what voting backends were seen to do that no honest one does, since they are in the workspace
    withdraw       logins that revoked devices have at providers until somebody confirms that they were withdrawn
    paused         until when this device's transfers rest, as a phrase; "" when they do not
    trailing       copies on their way, of packs that this device pushed with `durability`
    state          the hash of this version's agreed state, in hex, of which the fingerprint is the beginning
    bad_copies     those that this device found altered, or gone when it was their turn to be read, and does not know to
                   be mended, by backend; they do not count as copies within reach
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
    device: str = ""
    time_ns: int | None = None
    copies: int = 0
    by_copies: tuple[int, ...] = ()
    state: str = ""
    bad_copies: tuple[BadCopies, ...] = ()

    @property
    def packs(self) -> int:
        """How many packs this version has."""
        return sum(self.by_copies)

    @property
    def short(self) -> int:
        """How many of them have fewer copies within reach than promised, or may have."""
        return max(sum(self.by_copies[:-1]), self.under_replicated)

    @property
    def ignored_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.ignored))
