"""What the operations on history and conflicts report. `reports` has those of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from metasync.reports.backends import GcReport
from metasync.reports.sync import BadCopies, Changes, ConflictReport, OfPath, Skipped, path_str


@dataclass(frozen=True, slots=True)
class LogItem:
    """One agreed version. `time_ns`: the author's clock, ns since 1970; `device`: the author's name or id.

    changes  in the log of a path: what changed there; None in the log of all
    counts   how much changed, if that was asked for
    kept     not a version (`version` is 0): what a merge by lines replaced, kept beside the version it came with
    others_after  in the log of all: how many versions directly after this one are no pushes: they changed devices,
             keys or backends
    skips    the versions that this one passed over because they cannot be read, ascending: `metasync skip`
    begins   in the log of all, of the oldest: why nothing older is listed, in a sentence
    dropped  the first and the last of the versions directly before this one that are no longer kept, where older ones
             are: `metasync gc`
    forgotten  paths of this version were forgotten on purpose: `metasync forget`
    events   in the log of everything: what this version changed of devices, keys and backends. A version that is no
             push has nothing else: no snapshot (b""), no device (""), and no time (0)
    """

    version: int
    snapshot: bytes
    device: str
    time_ns: int
    message: str
    changes: tuple[PathChange, ...] | None = None
    counts: Counts | None = None
    kept: bool = False
    others_after: int = 0
    begins: str = ""
    skips: tuple[int, ...] = ()
    events: tuple[str, ...] = ()
    dropped: tuple[int, int] | None = None
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class SkipReport:
    """Versions that were passed over because they cannot be read.

    version  that passes over them; None: a dry run
    named    the one that was given
    skipped  those that brought what was passed over, ascending; `devices`: who wrote them
    good     the version whose tree it has; None: none can be read, and the tree is empty
    down     backends that did not answer, and why
    """

    version: int | None
    named: int
    skipped: tuple[int, ...]
    devices: tuple[str, ...]
    good: int | None
    down: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaggedVersion:
    """A version that has a name, by which it is kept."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class TagReport:
    """The names of versions, ascending. `version`: as which a change of them was agreed; None: nothing was."""

    version: int | None
    tags: tuple[TaggedVersion, ...]


@dataclass(frozen=True, slots=True)
class KeepReport:
    """The agreed policy of which versions are kept; None: all are. `version`: as which it was agreed now, or None."""

    version: int | None
    keep: str | None


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """Paths that versions no longer have. `version`: as which that was agreed; None: a dry run.

    versions  how many versions had them, from `first` to `last`; what merges had replaced counts with its version
    contents  how many files of different contents these were, and `bytes` how many bytes they have
    freed     what a collection of garbage came to after that; None: there was none
    stay      how many of these contents it left, since other paths have them
    """

    version: int | None
    paths: tuple[bytes, ...]
    versions: int
    first: int
    last: int
    contents: int
    bytes: int
    freed: GcReport | None = None
    stay: int = 0

    @property
    def paths_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.paths))


NodeKind: TypeAlias = Literal["file", "dir", "link"]


ChangeKind: TypeAlias = Literal["added", "modified", "deleted", "renamed", "mode", "type", "time"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a tree says of a path. `size` in bytes; `mtime_ns` since 1970, 0 for directories; `target` of a symlink."""

    kind: NodeKind
    mode: int
    size: int
    mtime_ns: int
    target: bytes | None = None

    @property
    def target_str(self) -> str | None:
        return None if self.target is None else path_str(self.target)


@dataclass(frozen=True, slots=True)
class PathChange(OfPath):
    """One path that differs.

    kind    `modified`: other bytes (or another target); `mode`, `time`: only that; `type`: file, directory or link
            is another of them now; `renamed`: the file of the same bytes that was at `was` is gone there
    before  None where nothing was; of a renamed file: what stood at `was`
    after   None where nothing is
    """

    kind: ChangeKind
    path: bytes
    before: Facts | None
    after: Facts | None
    was: bytes | None = None

    @property
    def was_str(self) -> str | None:
        return None if self.was is None else path_str(self.was)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many paths changed in which way. `other`: mode, time, type."""

    added: int = 0
    modified: int = 0
    deleted: int = 0
    renamed: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True)
class TextDiff(OfPath):
    """One file's text before and after, as lines of a unified diff; without lines, `note` says why there are none.

    Characters are as they are in the file; bytes that are no UTF-8 stand as `\\xNN`.
    """

    path: bytes
    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiffReport:
    """What differs between two versions, or a version and the folder.

    a, b        what was compared, as people say it
    texts       with `text`: of each file that came, went or changed, its lines
    unreadable  files and directories in the folder that could not be read: they count as unchanged
    busy        files in the folder that were being written to
    warnings    what is wrong with the ignore rules
    """

    a: str
    b: str
    changes: tuple[PathChange, ...]
    counts: Counts
    texts: tuple[TextDiff, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    busy: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShowReport:
    """One version, as `log` has it, and what it changed against the version before it (as `diff` has that).

    `diff` is None of a version that is no push.
    """

    version: LogItem
    diff: DiffReport | None


@dataclass(frozen=True, slots=True)
class Listed(OfPath):
    """One path of a version, with what the version says of it."""

    path: bytes
    facts: Facts


@dataclass(frozen=True, slots=True)
class Listing(OfPath):
    """What a version holds at a path. `version` is None for a snapshot that was no version of its own."""

    version: int | None
    snapshot: bytes
    path: bytes
    entries: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class CatReport(OfPath):
    """A file of a version that was read whole. `size` in bytes. `version`: as of `Listing`.

    `bad_copies`: those that were met altered on the way, by backend.
    """

    version: int | None
    snapshot: bytes
    path: bytes
    size: int
    bad_copies: tuple[BadCopies, ...] = ()


Cause: TypeAlias = Literal["damaged", "unreachable", "refused", "disk"]


@dataclass(frozen=True, slots=True)
class NotRestored(OfPath):
    """A path that could not be restored. `damaged`: no intact copy; `unreachable`: those who hold it are away;
    `refused`: a name that must not be made; `disk`: what the disk said."""

    path: bytes
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The outcome of a restore.

    version    what was restored (None: a snapshot that was no version of its own)
    to         the directory it was restored to; None: into place
    changes    what changed there; `size_written` is that of the files, in bytes
    unchanged  paths that were as wanted already
    conflicts  unsaved files that stood in the way, and the name each has now
    unsaved    in a dry run: unsaved files in the way, which would get such a name
    failed     what could not be restored
    skipped    what was left as it is, and why
    bad_copies  those that were met altered, by backend
    """

    version: int | None
    snapshot: bytes
    to: str | None
    changes: Changes = field(default_factory=Changes)
    size_written: int = 0
    unchanged: int = 0
    conflicts: tuple[ConflictReport, ...] = ()
    unsaved: tuple[bytes, ...] = ()
    failed: tuple[NotRestored, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    down: Mapping[str, str] = field(default_factory=dict)
    bad_copies: tuple[BadCopies, ...] = ()

    @property
    def unsaved_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.unsaved))


@dataclass(frozen=True, slots=True)
class Kept(OfPath):
    """What a choice took out of the folder: it stood at `path`, and is at `at` until an agreed version holds it."""

    path: bytes
    at: str


@dataclass(frozen=True, slots=True)
class Merged:
    """A choice of neither side: the file gets these bytes."""

    data: bytes


Keep: TypeAlias = Literal["ours", "theirs", "both"] | bytes | Merged
"""Which side is kept: this device's, the other's, both; the one that stands at this path; or bytes in place of both."""


@dataclass(frozen=True, slots=True)
class ResolveReport(OfPath):
    """The outcome of a choice.

    kept      the path of the side that has `path` now; None: both stay
    copies    the conflict copies it was about
    replaced  what went, and where it is
    merged    `path` has bytes in place of both sides
    """

    path: bytes
    kept: bytes | None
    copies: tuple[bytes, ...]
    replaced: tuple[Kept, ...] = ()
    conflicts: tuple[ConflictReport, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    merged: bool = False

    @property
    def kept_str(self) -> str | None:
        return path_str(self.kept) if self.kept is not None else None

    @property
    def copies_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.copies))
