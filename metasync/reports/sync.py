"""What a push and a pull report: values for the library, and what the command line prints from.

Paths are bytes, as the file system has them. Beside each field with paths stands one whose name ends in `_str`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


def path_str(path: bytes) -> str:
    """A path as `str`: bytes that are no UTF-8 as lone surrogates, which `os.fsencode` turns back."""
    return path.decode("utf-8", "surrogateescape")


class OfPath:
    """A report of one path, which is there as `str` too."""

    __slots__ = ()
    path: bytes

    @property
    def path_str(self) -> str:
        return path_str(self.path)


@dataclass(frozen=True, slots=True)
class ConflictSide(OfPath):
    """One side of a conflict: what stands at `path`.

    device   who wrote it; None if that is not known. `here`: this device
    version  the agreed version that brought it; of a conflict copy the one that it was changed on
    time_ns  when that was agreed, or the conflict found, by that device's clock
    """

    path: bytes
    device: str | None
    here: bool
    version: int | None
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class ConflictReport(OfPath):
    """A conflict that waits: `path` has one side, the file or directory `kept` beside it the other.

    `reason`: a sentence. `sides`: that of `path`, and that of `kept`.
    """

    path: bytes
    kept: bytes
    reason: str
    sides: tuple[ConflictSide, ConflictSide]

    @property
    def whose(self) -> str:
        """Whose side is at `kept`, as people say it."""
        side = self.sides[1]
        return "yours" if side.here else f"{side.device}'s" if side.device is not None else "another device's"

    @property
    def kept_str(self) -> str:
        return path_str(self.kept)


@dataclass(frozen=True, slots=True)
class Met(OfPath):
    """Two changes that met in one file and were put together: nothing waits for a choice.

    kind   what git calls it: `modify/delete`, `rename/modify`, `rename/delete`, `rename/rename`
    path   where the file is now; with `rename/rename` under this device's name
    here   what this device did: `modified`, `deleted` or `renamed`. The other side did the other
    was    the path before a rename
    other  with `rename/rename`: the name that the other side gave it, which stays too
    """

    kind: Literal["modify/delete", "rename/modify", "rename/delete", "rename/rename"]
    path: bytes
    here: Literal["modified", "deleted", "renamed"]
    was: bytes | None = None
    other: bytes | None = None

    @property
    def was_str(self) -> str | None:
        return path_str(self.was) if self.was is not None else None

    @property
    def other_str(self) -> str | None:
        return path_str(self.other) if self.other is not None else None


@dataclass(frozen=True, slots=True)
class Skipped(OfPath):
    """A path that was left out, and why; nothing about it was changed."""

    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class BadCopies:
    """Copies of so many packs, on one backend, whose bytes are not those that were stored; none of them was used.

    `since_ns`: when this device first noticed one (its clock, ns since 1970); None: in this operation. What is noted
    since then counts copies, too, that were gone when it was their turn to be read.
    """

    backend: str
    packs: int
    since_ns: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Renamed(OfPath):
    """A file that is at `path` with the bytes that it had at `was`, where nothing is any more."""

    path: bytes
    was: bytes

    @property
    def was_str(self) -> str:
        return path_str(self.was)


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths by what happened to them, sorted: tuples, or where they are very many what is equal to one.

    A renamed file is neither among the added nor among the deleted ones.
    """

    added: Sequence[bytes] = ()
    modified: Sequence[bytes] = ()
    deleted: Sequence[bytes] = ()
    renamed: Sequence[Renamed] = ()

    @property
    def added_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.added))

    @property
    def modified_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.modified))

    @property
    def deleted_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.deleted))

    def __len__(self) -> int:
        return len(self.added) + len(self.modified) + len(self.deleted) + len(self.renamed)


@dataclass(frozen=True, slots=True)
class PullReport:
    """The outcome of a pull.

    before, version  the agreed version this folder was at, and is at now
    conflicts        those that this pull found, and those that came with what it brought
    merged           texts that were merged by their lines
    unplaced         what is agreed and cannot be held here; it stays as it is for the others
    warnings         sentences: what is wrong with ignore rules, and in a dry run why the pull would stop
    resolved         paths whose conflict another device has resolved
    met              changes on both sides that were put together
    bad_copies       those that were met altered, by backend
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
    resolved: tuple[bytes, ...] = ()
    met: tuple[Met, ...] = ()
    bad_copies: tuple[BadCopies, ...] = ()

    @property
    def resolved_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.resolved))

    @property
    def merged_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.merged))


def together(pulls: Sequence[PullReport]) -> PullReport:
    """Several pulls, one after the other, as one report."""
    first, last = pulls[0], pulls[-1]
    kinds = ("added", "modified", "deleted", "renamed")
    return PullReport(
        before=first.before,
        version=last.version,
        changes=Changes(*(tuple(sorted({p for r in pulls for p in getattr(r.changes, k)})) for k in kinds)),
        conflicts=tuple(c for r in pulls for c in r.conflicts),
        resolved=tuple(sorted({p for r in pulls for p in r.resolved})),
        met=tuple(m for r in pulls for m in r.met),
        merged=tuple(sorted({p for r in pulls for p in r.merged})),
        warnings=last.warnings,
        unplaced=last.unplaced,
        bad_copies=tuple(dict.fromkeys(b for r in pulls for b in r.bad_copies)),
    )


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
    live         databases and repositories that are new in this push, which other programs write to, with advice
    unportable   names that are new in this push and that other systems can't hold
    trailing     with `durability`: copies that were still to be made when it was agreed, by backend; else those of
                 earlier pushes that are still to be made: in the background with `durability`, or not now
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
    live: tuple[Skipped, ...] = ()
