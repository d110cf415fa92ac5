"""What `init` and `clone` report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from metasync.reports.sync import BadCopies, ConflictReport, Skipped

W = TypeVar("W")


@dataclass(frozen=True)
class InitReport(Generic[W]):
    """A new workspace. The recovery phrase is kept nowhere else. `workspace` is open: close it, or use `with`.

    `voters`: how many backends vote; `lying`: how many of these may lie.
    """

    directory: str
    name: str
    backends: tuple[str, ...]
    survives: str
    recovery_phrase: str = field(repr=False)
    workspace: W = field(repr=False)
    voters: int = 1
    lying: int = 0


@dataclass(frozen=True)
class ClonePreview:
    """What a clone would bring; nothing was changed. `needed_bytes`: with what file systems take for small files.

    `fits`: the disk that `directory` is on has so many bytes free. `words`: the fingerprint as words.
    """

    directory: str
    name: str
    version: int
    fingerprint: str
    files: int
    bytes: int
    needed_bytes: int
    free_bytes: int
    fits: bool
    down: dict[str, str]
    words: str = ""


@dataclass(frozen=True)
class CloneReport(Generic[W]):
    """A workspace brought to this device. `unlinked`: agreed backends that this device has no way to yet.

    `problem`: why it is not known whether `version` is the newest; "" when it is. `unplaced`: what cannot be held here.

    `words`: the fingerprint as words. `vouched`: an invitation or `expect` said how new it is at least; else
    this device cannot know of versions that all the backends that it reached leave out.

    `bad_copies`: those that it met altered, by backend.
    """

    directory: str
    version: int
    fingerprint: str
    files: int
    bytes: int
    unlinked: tuple[str, ...]
    read_only: bool
    conflicts: tuple[ConflictReport, ...]
    down: dict[str, str]
    workspace: W = field(repr=False)
    problem: str = ""
    unplaced: tuple[Skipped, ...] = ()
    name: str = ""
    words: str = ""
    vouched: bool = False
    bad_copies: tuple[BadCopies, ...] = ()
