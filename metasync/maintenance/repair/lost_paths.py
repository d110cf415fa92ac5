"""What nobody has any more, by path: files and directories of the newest version, or of which versions.

A path with a slash at its end is a directory of which a part is lost; what was below it is told by nobody. Trees are
walked with some megabytes of them in memory. What is found is held, and beyond some thousand paths of the newest
version in a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, MutableMapping, Sequence
from typing import Final, NamedTuple

from metasync.consensus import ZERO_HASH, State
from metasync.errors import CANNOT_BE_READ, DamagedError, MetaSyncError, UnreachableError
from metasync.events import Notice
from metasync.local.spill import Paths, grown
from metasync.maintenance import line
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, decode_snapshot, version_of
from metasync.objects.walk_large import Dirs, Losses, compare, gather
from metasync.reports.backends import Gone
from metasync.session import left_out, unreadable
from metasync.session.session import Agreed, Session
from metasync.store.deltas import Given
from metasync.transfer.contents import Contents
from metasync.worktree.index import pack_entry, unpack_entry

PATHS_HELD: Final = 20_000
NAMED_MAX: Final = 10  # of the paths that an error names
PUSHLESS_MAX: Final = 4096  # versions without a push between two pushes
CHUNKED_TOGETHER_BYTES: Final = 16 << 30  # of files whose chunks are looked at together: some 16,000 chunks


def held(dirs: Dirs) -> Dirs:
    """Keeps a long list of directories in a file."""
    return grown(dirs, PATHS_HELD, bytes, bytes)


class Found:
    """Paths that come in any order, and maybe twice."""

    def __init__(self) -> None:
        self._paths: MutableMapping[bytes, bytes] = {}

    def add(self, path: bytes, entry: Entry | None = None) -> None:
        """Adds a path. `entry`: what it has, for `but`."""
        self._paths[path] = b"" if entry is None else pack_entry(entry)
        self._paths = grown(self._paths, PATHS_HELD, bytes, bytes)

    def but(self, is_found: Callable[[Entry], bool]) -> Found:
        """The same without paths whose entries are found after all."""
        out = Found()
        for path, packed in self._paths.items():
            if not packed or not is_found(unpack_entry(packed)):
                out.add(path)
        return out

    def __bool__(self) -> bool:
        return len(self._paths) > 0

    def all(self) -> Sequence[bytes]:
        """They all, ascending."""
        return tuple(sorted(self._paths)) if isinstance(self._paths, dict) else Paths(self._paths)


class Unread:
    """Takes the objects that no backend gave. `lost`: those that none has, as far as all that may have them answer.

    What a newer index does not name, by which `contents` has begun to read, may be gone on purpose: it is left out.
    """

    def __init__(self, contents: Contents) -> None:
        self.lost: set[bytes] = set()
        self.why: MetaSyncError | None = None  # the first one of a backend that did not answer
        self._contents, self._index = contents, contents.index

    def __call__(self, ids: Sequence[bytes], error: MetaSyncError) -> None:
        index = self._contents.index
        if isinstance(error, DamagedError):
            self.lost.update(i for i in ids if index is self._index or i in index)
        elif self.why is None:
            self.why = error


def nowhere(s: Session, agreed: Agreed) -> Sequence[bytes]:
    """The paths of the newest version that the agreed index does not give: files of which it gives not all contents,
    and directories that it does not name, or that no backend has. What cannot be asked for now is told the listener."""
    if agreed.tree_root is None:
        return ()
    found, contents, index = Found(), s.contents(agreed), agreed.index
    unread = Unread(contents)

    def take(entries: list[tuple[bytes, Entry]]) -> None:
        for path, _ in lacking(contents, agreed, entries, unsure=False):
            found.add(path)

    def told(prefix: bytes, node_id: bytes) -> None:
        if node_id in unread.lost or node_id not in index:
            found.add(prefix or b"/")

    if agreed.state.master not in index:
        found.add(b"/")
    losses = Losses(told, lambda i: i not in index)
    try:
        contents.walk(gather(agreed.tree_root, contents.size_of, take, held, losses), on_lost=unread)
    except CANNOT_BE_READ as e:
        unread.why = e
    if unread.why is not None:
        s.listener(Notice(f"the newest version cannot be read: {unread.why.message}", warning=True))
    return found.all()


def has_bytes(entry: Entry) -> bool:
    """Whether an entry is a file that is not empty."""
    return entry.kind is Kind.FILE and entry.size > 0


def lacking(
    contents: Contents, agreed: Agreed, entries: Iterable[tuple[bytes, Entry]], *, unsure: bool
) -> Iterator[tuple[bytes, Entry]]:
    """Of these paths the files of which the agreed index does not give all that they are made of.

    `unsure`: also those of which that cannot be told now, since a backend is away.
    """
    given, some, size = Given(agreed.index), list[tuple[bytes, Entry]](), 0
    for path, entry in entries:
        if not has_bytes(entry):
            continue
        if (entry.root or entry.content) not in given:
            yield path, entry
        elif entry.root:
            some.append((path, entry))
            size += entry.size
            if size >= CHUNKED_TOGETHER_BYTES:
                yield from _lacking_chunks(contents, agreed, some, unsure)
                some, size = [], 0
    yield from _lacking_chunks(contents, agreed, some, unsure)


def _lacking_chunks(
    contents: Contents, agreed: Agreed, files: Sequence[tuple[bytes, Entry]], unsure: bool
) -> Iterator[tuple[bytes, Entry]]:
    """The same of files in chunks: several at once, and where that fails one by one."""
    if not files:
        return
    try:
        pieces = contents.walk(line.all_named(walk.chunks(tuple({e.root for _, e in files})), agreed))
    except (*CANNOT_BE_READ, UnreachableError) as e:
        if len(files) > 1:
            for one in files:
                yield from _lacking_chunks(contents, agreed, [one], unsure)
        elif unsure or (isinstance(e, DamagedError) and files[0][1].root in contents.index):
            yield files[0]  # the newest index still names it, as far as that was asked for
        return
    given = Given(agreed.index)
    for path, entry in files:
        if any(c.id not in given for c in pieces[entry.root]):
            yield path, entry


# ---- of which versions


class _Version(NamedTuple):
    """A push that is kept. `root`: of its tree; None where nobody has its snapshot any more. `id`: of that."""

    number: int
    root: bytes | None
    id: bytes = b""


def gone_files(s: Session, agreed: Agreed, gone: Container[bytes]) -> tuple[Gone, ...]:
    """The files and directories of all versions that are made of what is `gone`, the oldest first."""
    contents, later = s.contents(agreed), None
    ranges = _Ranges(contents, gone)
    for version in pushes(s, contents, agreed):
        ranges.go_back(version, later)
        later = version
    return ranges.all(later.number if later is not None else 0)


def named(s: Session, agreed: Agreed, error: DamagedError) -> tuple[DamagedError, tuple[Gone, ...]]:
    """The error of an object that kept versions need, with the paths and versions that need it and who wrote these."""
    found = gone_files(s, agreed, error.objects) if error.objects else ()
    told = []
    for one in found[:NAMED_MAX]:
        versions = f"version {one.first}" if one.first == one.last else f"versions {one.first} to {one.last}"
        who = "a device"
        with contextlib.suppress(MetaSyncError):
            who = unreadable.author(s, s.runtime.run(s.group.state_at(agreed.state, one.first)))
        told.append(f"{one.path_str} of {versions}, which {who} wrote")
    told += [f"{len(found) - NAMED_MAX:,} more"] if len(found) > NAMED_MAX else []
    out = DamagedError(": ".join([error.message, *(["; ".join(told)] if told else [])]), next_step=error.next_step)
    out.objects = error.objects
    return left_out.explained(s, agreed.state, out, found[0].first if found else 0), found


class _Ranges:
    """Which paths are gone in which versions, going back from the newest one.

    `last`: of paths that are gone in the version that was looked at, the last version that has them so.
    """

    def __init__(self, contents: Contents, gone: Container[bytes]) -> None:
        self.contents = contents
        self.gone = gone
        self.last: dict[bytes, int] = {}
        self.found: list[Gone] = []
        self.unread = Unread(contents)

    def go_back(self, version: _Version, later: _Version | None) -> None:
        """Looks at the version before `later`. None: it is the newest one."""
        if version.root is None:
            changed, lost = {*self.last}, {b"/"}
        else:
            changed, lost = self._compared(version.number, version.root, later)
        for path in changed - lost:
            self._close(path, later)
        for path in lost:
            self.last.setdefault(path, version.number)

    def _compared(self, number: int, root: bytes, later: _Version | None) -> tuple[set[bytes], set[bytes]]:
        """Notes the files. -> the directories in `last` that `later` has otherwise, and those that are lost here."""
        changed, lost = set[bytes](), set[bytes]()

        def opened(prefix: bytes) -> None:
            if (prefix or b"/") in self.last:
                changed.add(prefix or b"/")

        def told(prefix: bytes, node_id: bytes) -> None:
            if self.is_lost(node_id):
                lost.add(prefix or b"/")

        def take(found: list[tuple[bytes, Entry | None, Entry | None]]) -> None:
            for path, _, new in found:
                if new is not None:
                    self._close(path, later)
            for path, old, _ in found:
                if old is not None and has_bytes(old) and _is_gone(self.contents, old, self.gone):
                    self.last[path] = number

        losses, newer = Losses(told, self.is_lost), later.root if later is not None else None
        with contextlib.suppress(*CANNOT_BE_READ):
            self.contents.walk(
                compare(root, newer, self.contents.size_of, take, held, losses, opened), on_lost=self.unread
            )
        return changed, lost

    def _close(self, path: bytes, later: _Version | None) -> None:
        """Notes the versions in which a path is gone: `later` is the first of them."""
        if later is not None and path in self.last:
            self.found.append(Gone(path, later.number, self.last.pop(path)))

    def is_lost(self, node_id: bytes) -> bool:
        return node_id in self.gone or node_id in self.unread.lost

    def all(self, oldest: int) -> tuple[Gone, ...]:
        """What was found, `oldest` being the first version that was looked at."""
        self.found += [Gone(path, oldest, v) for path, v in self.last.items()]
        return tuple(sorted(self.found, key=lambda g: (g.first, g.path)))


def pushes(s: Session, contents: Contents, agreed: Agreed) -> Iterator[_Version]:
    """The pushes that are kept, the newest first, as far as snapshots lead, or the states past one that is lost."""
    retained = unreadable.list_or_older(s, agreed.state)
    current, version = agreed.state.master, agreed.state.v + 1
    while current != ZERO_HASH:
        try:
            data = contents.load(ObjectKind.SNAPSHOT, [current])[current]
            snapshot = retained.as_kept(current, decode_snapshot(data))
        except CANNOT_BE_READ:
            before = _brought_before(s, agreed.state, version, current)
            if before is None:
                return
            version, current = before.v + 1, before.master
            if retained.has_dropped(version):
                return
            yield _Version(version, None, current)
            gap = retained.over(before.v)
            current = gap.below if gap is not None else current
        else:
            version = version_of(snapshot)
            yield _Version(version, snapshot.root, current)
            current = line.before(snapshot, version, retained)


def _brought_before(s: Session, newest: State, version: int, master: bytes) -> State | None:
    """The last state without a snapshot that states directly before a version have. None: that cannot be told."""
    try:
        state = newest
        for v in range(version - 1, max(version - 1 - PUSHLESS_MAX, -1), -1):
            state = s.runtime.run(s.group.state_at(newest, v, state)) if v < newest.v else newest
            if state.master != master:
                return state
    except MetaSyncError:
        pass
    return None


def _is_gone(contents: Contents, entry: Entry, gone: Container[bytes]) -> bool:
    if not entry.root:
        return entry.content in gone
    if entry.root in gone:
        return True
    try:
        return any(c.id in gone for c in contents.walk(walk.chunks((entry.root,)))[entry.root])
    except CANNOT_BE_READ:
        return True
