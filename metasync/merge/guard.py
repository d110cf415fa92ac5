"""The guard against mass deletions: decides when a push or a pull stops until the user insists. Pure.

A folder whose disk is not mounted, a script with a wrong path, a clean-up gone astray: all look like deletions, and a
push would carry them to every device. The history has the files still, but nobody wants to find out that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple

from metasync.errors import GuardError
from metasync.objects.model import Entry, Kind

SMALL_FILES: Final = 20  # up to so many files, half of them is what people delete by hand and on purpose
SHARE: Final = 2  # more than one in so many files is no everyday deletion
NAMES_MAX: Final = 3  # shown, for a first idea of what they are
NAME_CHARS_MAX = 200  # of each: a path may have a million

Verb = Literal["push", "pull"]
_WHERE: Final[Mapping[str, str]] = {"push": "for all devices", "pull": "here"}
_LOOK: Final[Mapping[str, str]] = {
    "push": "look first whether a disk is not mounted or the files were moved away; `metasync status` shows what is "
    "gone, and `metasync restore` brings pushed files back",
    "pull": "ask first who deleted them: `metasync log` shows whose versions these are, and `metasync restore` brings "
    "pushed files back",
}


class Loss(NamedTuple):
    """What changes would take from a tree of `files` files (symlinks are files here, directories are not).

    deleted  paths that lose their file, and its bytes come nowhere else; ascending
    renamed  how many more paths lose it, while the same bytes come to another path
    files    counted no further than it takes to know that these are few of them
    """

    deleted: tuple[bytes, ...] = ()
    renamed: int = 0
    files: int = 0

    @property
    def is_most(self) -> bool:
        """More than half of a tree that is not small."""
        return self.files > SMALL_FILES and len(self.deleted) * SHARE > self.files

    @property
    def is_all(self) -> bool:
        """Every file of a tree of more than one."""
        return len(self.deleted) == self.files > 1


def loss(tree: Mapping[bytes, Entry], changes: Mapping[bytes, Entry | None]) -> Loss:
    """What `changes` (path to its new entry; None: nothing) take from `tree`."""
    if not tree:
        return Loss()
    gone = [(path, was) for path in sorted(changes) if _is_file(was := tree.get(path)) and not _is_file(changes[path])]
    if not gone:
        return Loss()
    come: Counter[tuple[Kind, int, bytes]] = Counter()
    for path, new in changes.items():
        was = tree.get(path)
        if new is not None and _is_file(new) and (was is None or _bytes_of(was) != _bytes_of(new)):
            come[_bytes_of(new)] += 1
    deleted = []
    for path, entry in gone:
        assert entry is not None
        if come[_bytes_of(entry)]:
            come[_bytes_of(entry)] -= 1  # each copy that comes stands for one that goes
        else:
            deleted.append(path)
    most = max(SMALL_FILES, SHARE * len(deleted))  # of a tree of so many they are neither most nor all
    files = sum(1 for _ in islice(filter(_is_file, tree.values()), most))
    return Loss(tuple(deleted), len(gone) - len(deleted), files)


def stop(verb: Verb, taken: Loss) -> GuardError | None:
    """The error with which a push or pull stops that takes this; None: it goes on.

    A push of a folder that lost all its files stops however few they were: few people empty a workspace on purpose.
    """
    if not taken.is_most and not (verb == "push" and taken.is_all):
        return None
    what = "all" if taken.is_all else f"{len(taken.deleted):,} of"
    names = ", ".join(_text(path) for path in taken.deleted[:NAMES_MAX])
    more = ", ..." if len(taken.deleted) > NAMES_MAX else ""
    renamed = f" (and {taken.renamed:,} renamed, which count as kept)" if taken.renamed else ""
    return GuardError(
        f"this {verb} would delete {what} {taken.files:,} files {_WHERE[verb]}{renamed}: {names}{more}",
        next_step=f"nothing was changed. If that is what you want: metasync {verb} --force; else {_LOOK[verb]}.",
        deleted=len(taken.deleted),
        files=taken.files,
    )


def warning(error: GuardError) -> str:
    """What is said of a stop that is yet to come."""
    return f"{error.message.replace('this', 'a', 1)}; it stops unless forced"


def guard(verb: Verb, taken: Loss, *, force: bool) -> None:
    """Raises what `stop` says, unless forced."""
    if not force and (error := stop(verb, taken)) is not None:
        raise error


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is not Kind.DIR


def _bytes_of(entry: Entry) -> tuple[Kind, int, bytes]:
    return entry.kind, entry.size, entry.content


def _text(path: bytes) -> str:
    text = path.decode("utf-8", "surrogateescape")
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}..."
