"""Hints where a folder may have changed since its last scan: so a walk need not look at the rest. Pure.

A hint is a directory: its own names may have changed (`dirs`), or anything in it (`trees`). Hints are complete if every
change since the last scan lies below one of them. Whoever gives hints answers for that; a walk by incomplete hints
misses changes, and a later one finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from metasync.objects.model import split


class Hints(NamedTuple):
    """Directories by path, b"" for the root. `dirs`: their own names; `trees`: all that is in them."""

    dirs: Set[bytes] = frozenset()
    trees: Set[bytes] = frozenset()

    @property
    def is_all(self) -> bool:
        """Whether anything may have changed."""
        return b"" in self.trees

    def __or__(self, other: Hints) -> Hints:
        return Hints(self.dirs | other.dirs, self.trees | other.trees)

    def __bool__(self) -> bool:
        return bool(self.dirs or self.trees)


ALL: Final = Hints(trees=frozenset({b""}))
Hinting: TypeAlias = Callable[[], Hints]
"""Tells, asked before each walk, where changes may be that no scan has seen whose push or pull ended well."""


def anywhere() -> Hints:
    """The hints of whoever watches nothing."""
    return ALL


class Way(Enum):
    """How a walk goes through a directory."""

    WHOLE = 1  # all that is below it
    NAMES = 2  # its names, and of its directories those that are hinted at, or new
    THROUGH = 3  # on its way to others: only their names
    PAST = 4  # not at all


@dataclass(slots=True)
class Route:
    """The directories that a walk by hints comes through."""

    hints: Hints
    through: dict[bytes, set[bytes]]  # directories above those of the hints -> the names to go on with

    @classmethod
    def of(cls, hints: Hints) -> Route:
        through: dict[bytes, set[bytes]] = {b"": set()}
        for path in hints.dirs | hints.trees:
            below = path
            while below:
                above, name = split(below)
                known = above in through
                through.setdefault(above, set()).add(name)
                if known:
                    break  # so are all above it
                below = above
        return cls(hints, through)

    def way(self, directory: bytes) -> Way:
        """How to go through a directory that stands there as the index has it."""
        if directory in self.hints.trees:
            return Way.WHOLE
        if directory in self.hints.dirs:
            return Way.NAMES
        return Way.THROUGH if directory in self.through else Way.PAST

    def names(self, directory: bytes) -> list[bytes]:
        """The names that a walk through a directory goes on with, ascending."""
        return sorted(self.through.get(directory, ()))
