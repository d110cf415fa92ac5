"""The guard against mass deletions: decides when a push or a pull stops until the user insists. Pure.

A folder whose disk is not mounted, a script with a wrong path, a clean-up gone astray: all look like deletions, and a
push would carry them to every device. The history has the files still, but nobody wants to find out that way.

A program that pushes by itself, every few seconds, would see such a deletion as many small ones. It keeps count of the
files of the last hour, and the same numbers hold for what went in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple

from metasync.errors import GuardError
from metasync.objects.model import Entry, Kind

SMALL_FILES: Final = 20  # up to so many files, half of them is what people delete by hand and on purpose
SHARE: Final = 2  # more than one in so many files is no everyday deletion
SPAN_S: Final = 3600  # of a program that pushes by itself: what goes in so long counts as if it went at once
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
    net      how many files more there are after it; less than 0: fewer
    before   how many files fewer there are already than there were within SPAN_S before; 0 also where nobody counts
    """

    deleted: tuple[bytes, ...] = ()
    renamed: int = 0
    files: int = 0
    net: int = 0
    before: int = 0

    @property
    def in_all(self) -> tuple[int, int]:
        """How many files fewer there are after it than there were within SPAN_S, and how many there were."""
        return self.before - self.net, self.before + self.files

    @property
    def goes_on(self) -> bool:
        """Whether it deletes, and leaves fewer, where files went before."""
        return bool(self.deleted) and self.before > 0 > self.net

    @property
    def is_most(self) -> bool:
        """More than half of a tree that is not small."""
        return _is_most(len(self.deleted), self.files)

    @property
    def is_all(self) -> bool:
        """Every file of a tree of more than one."""
        return len(self.deleted) == self.files > 1

    def stops(self, verb: Verb) -> bool:
        """Whether it is too much by itself."""
        return self.is_most or (verb == "push" and self.is_all)

    def stops_in_all(self, verb: Verb) -> bool:
        """Whether it is too much with what went before."""
        gone, files = self.in_all
        return self.goes_on and (_is_most(gone, files) or (verb == "push" and gone == files > 1))


def most_gone(nets: Iterable[int]) -> int:
    """How many files fewer there are than at the time when there were most. `nets`: of each change, the last one first.

    0: there never were more.
    """
    more = most = 0
    for net in nets:
        more -= net
        most = max(most, more)
    return most


def loss(tree: Mapping[bytes, Entry], changes: Mapping[bytes, Entry | None], before: int = 0) -> Loss:
    """What `changes` (path to its new entry; None: nothing) take from `tree`. `before`: see `Loss`."""
    if not tree:
        return Loss()
    gone, net = [], 0
    for path in sorted(changes):
        was, stays = tree.get(path), _is_file(changes[path])
        net += stays - _is_file(was)
        if _is_file(was) and not stays:
            gone.append((path, was))
    if not gone:
        return Loss(net=net)
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
    most = max(
        SMALL_FILES, SHARE * max(len(deleted), before - net)
    )  # of a tree of so many they are neither most nor all
    files = sum(1 for _ in islice(filter(_is_file, tree.values()), most))
    return Loss(tuple(deleted), len(gone) - len(deleted), files, net, before)


def stop(verb: Verb, taken: Loss) -> GuardError | None:
    """The error with which a push or pull stops that takes this; None: it goes on.

    A push of a folder that lost all its files stops however few they were: few people empty a workspace on purpose.
    """
    if taken.stops(verb):
        gone, files = len(taken.deleted), taken.files
        what = f"{'all' if taken.is_all else f'{gone:,} of'} {files:,} files {_WHERE[verb]}"
    elif taken.stops_in_all(verb):
        gone, files = taken.in_all
        one = f"{len(taken.deleted):,} {'file' if len(taken.deleted) == 1 else 'files'}"
        what = f"{one} {_WHERE[verb]}, after which {gone:,} of {files:,} are gone within an hour"
    else:
        return None
    names = ", ".join(_text(path) for path in taken.deleted[:NAMES_MAX])
    more = ", ..." if len(taken.deleted) > NAMES_MAX else ""
    renamed = f" (and {taken.renamed:,} renamed, which count as kept)" if taken.renamed else ""
    return GuardError(
        f"this {verb} would delete {what}{renamed}: {names}{more}",
        next_step=f"nothing was changed. If that is what you want: metasync {verb} --force; else {_LOOK[verb]}.",
        deleted=gone,
        files=files,
    )


def warning(error: GuardError) -> str:
    """What is said of a stop that is yet to come."""
    return f"{error.message.replace('this', 'a', 1)}; it stops unless forced"


def guard(verb: Verb, taken: Loss, *, force: bool) -> None:
    """Raises what `stop` says, unless forced."""
    if not force and (error := stop(verb, taken)) is not None:
        raise error


def _is_most(gone: int, files: int) -> bool:
    return files > SMALL_FILES and gone * SHARE > files


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is not Kind.DIR


def _bytes_of(entry: Entry) -> tuple[Kind, int, bytes]:
    return entry.kind, entry.size, entry.content


def _text(path: bytes) -> str:
    text = path.decode("utf-8", "surrogateescape")
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}..."
