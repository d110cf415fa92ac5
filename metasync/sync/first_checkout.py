"""Brings the first tree of a clone, part by part where it has very many files.

Theory of operation. A checkout holds its plan, and what it knows of each of its files, in memory. So the tree of a
clone into an empty folder is cut into parts, contiguous in the order of paths (hence nearly in that of the packs), and
each of them is a checkout of its own: planned, delivered, placed, and recorded in one transaction, which also notes up
to which path the tree is here (`PARTS_KEY`). The last one sets the folder's base. The tree lies in a temporary file;
one of up to `WHOLE_PATHS_MAX` paths is one part, and lies in memory.

Until then the base is the empty tree (`UNFINISHED_KEY`), and nothing else is done in this folder: whoever begins
something finishes this first. It goes on at the path noted, with the version it was begun with, though there may be
newer ones: of a folder that holds half of one version and half of another, nobody could tell what the user changed.
What the user makes or changes meanwhile is in no plan. Where it stands in the way of what comes it becomes a conflict
copy, like everything that a checkout meets; what is done to parts that are here is a change for the next push.

A checkout that was interrupted is finished or found again as any other: `Checkout.recover`, `Leftovers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.checkout.room import check_room, is_too_large
from metasync.consensus import State
from metasync.errors import DamagedError, ExcludedError, UpgradeError, WorkspaceError
from metasync.events import Notice, Phase
from metasync.keys.slots import fingerprint_words
from metasync.local.spill import Large, grown
from metasync.local.state_keys import CLONING_KEY, EXACT_KEY, PARTS_UPTO_KEY, PLAN_KEY, TREE_KEY, UNFINISHED_KEY
from metasync.objects.model import Entry, Kind
from metasync.objects.walk_large import gather
from metasync.reports.start import CloneReport, W
from metasync.reports.sync import PullReport
from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.session.folder import BASE_KEY, PARTS_KEY
from metasync.session.session import Agreed, Session
from metasync.sync import pull, sides
from metasync.sync.fetch import ChangedMeanwhile, Nowhere, deliver
from metasync.sync.scanned import noted
from metasync.transfer.contents import Contents
from metasync.worktree.index import CONTENT_AT, pack_entry, unpack_entry
from metasync.worktree.merge_walk import walk_folder
from metasync.worktree.names import STATE_NAME
from metasync.worktree.scan import scan, store_scan

WHOLE_PATHS_MAX = 20_000  # so many are one part, in memory, which takes less of the CPU
FAR_BEYOND = 4  # times the room of the disk: nobody waits to hear how much more a tree would take
DIR_BYTES = 256  # that a directory takes on a disk, at least: its inode
PART_PATHS = 20_000  # at most: what a checkout knows of them is some 60 MB
PART_PATHS_LEAST = 15_000  # from then on a part ends where the top of the folder has its next name


@dataclass(frozen=True)
class Brought:
    """What a first checkout came to. `agreed`: the version that is here now; `files`, `size_bytes`: of its tree."""

    report: PullReport
    agreed: Agreed
    files: int
    size_bytes: int


def finish_clone(s: Session, workspace: W) -> CloneReport[W]:
    """The second half of a clone: has this device agreed, and brings the tree of the newest version."""
    from metasync.members import admission

    arrival = admission.arrive(s, read_only=s.connections.is_read_only)
    found: list[tuple[State, str]] = []
    try:
        brought = bring(s, arrival.newest, lambda: found.append(arrival.finish()))
    finally:
        s.connections.end_ahead()
    pulled = brought.report
    newest, problem = found[-1]
    if newest.master == brought.agreed.state.master:  # what was agreed since is this device itself, as a rule
        s.db.set(BASE_KEY, newest)
    else:
        more = pull.pull(s, brought.agreed, s.load(newest), force=True)  # nothing here is only here
        pulled = replace(more, conflicts=pulled.conflicts + more.conflicts)
    s.db.set(CLONING_KEY, None)
    c = s.connections
    return CloneReport(
        directory=str(s.directory),
        version=newest.v,
        fingerprint=newest.fingerprint,
        words=fingerprint_words(newest.hash),
        files=brought.files,
        bytes=brought.size_bytes,
        unlinked=tuple(sorted(c.agreed_names - c.links.keys())),
        read_only=c.is_read_only,
        conflicts=pulled.conflicts,
        unplaced=pulled.unplaced,
        down=dict(s.down),
        bad_copies=s.bad_copies,
        problem=problem,
        workspace=workspace,
        name=s.name,
    )


@dataclass
class _Tree:
    """All paths of an agreed tree: a `Large` where there are many of them.

    `free`: bytes that the folder's disk has left. Files that are too large for it will not be placed, and are counted
    apart, in `large`. `check`: raises where there is no room for so many bytes; asked while paths come, where
    they take far more, so that a few directories that say very many paths are refused in time.
    """

    paths: MutableMapping[bytes, Entry] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    large: int = 0
    dirs: int = 0
    free: int = 1 << 64
    check: Callable[[int], None] = lambda _: None

    def take(self, found: list[tuple[bytes, Entry]]) -> None:
        self.paths.update(found)
        self.paths = grown(self.paths, WHOLE_PATHS_MAX, pack_entry, unpack_entry)
        sizes = [e.size for _, e in found if e.kind is not Kind.DIR]
        fitting = [size for size in sizes if not is_too_large(size, self.free)]
        self.files += len(sizes)
        self.large += len(sizes) - len(fitting)
        self.size_bytes += sum(fitting)
        self.dirs += len(found) - len(sizes)
        needed = max(self.needed, self.dirs * DIR_BYTES)
        if needed > FAR_BEYOND * self.free:
            self.check(needed)

    @property
    def needed(self) -> int:
        """Bytes that the files take on a disk."""
        return self.size_bytes + (self.files - self.large) * SMALL_FILE_BYTES


def bring(s: Session, target: Agreed, before: Callable[[], None] = lambda: None) -> Brought:
    """Brings an agreed tree to a folder that has no base, and sets it; or goes on with the one that was begun.

    `before`: see `pull.integrate`. The user's own files in the folder are merged, or become conflict copies.
    """
    begun = _begun(s, target)
    if begun is not None:
        target = s.load(begun[0])
    elif not s.db.has(UNFINISHED_KEY) or not _is_empty(s):
        return _merged(s, target, before)
    contents = s.contents(target)
    try:
        return _bring(s, target, before, contents, begun[1] if begun is not None else None)
    except (DamagedError, UpgradeError) as e:
        from metasync.session import unreadable

        raise unreadable.named(s, s.base(), target, e) from e
    finally:
        s.transfer.begun.clear()


def walked(contents: Contents, target: Agreed, tree: _Tree | None = None) -> _Tree:
    """Reads all paths of an agreed tree, into `tree` if it is given."""
    tree = tree or _Tree()
    contents.walk(
        gather(target.tree_root, contents.size_of, tree.take, lambda dirs: grown(dirs, WHOLE_PATHS_MAX, bytes, bytes))
    )
    return tree


def _bring(s: Session, target: Agreed, before: Callable[[], None], contents: Contents, last: bytes | None) -> Brought:
    """The same, of a tree that is read first. `last`: up to which path it is here already, None: nothing was begun."""
    tree = _Tree(free=s.tree.disk.free_bytes(s.tree.state_dir()))
    if last is None and not s.db.has(PLAN_KEY):  # some of it lies there already: each checkout looks for itself
        tree.check = partial(check_room, s.tree, s.db)
    walked(contents, target, tree)
    if last and not isinstance(tree.paths, Large):
        tree.paths = Large(pack_entry, unpack_entry, tree.paths.items())
    parts = _Parts(s, target, contents, tree, last or b"")
    try:
        return parts.bring(before)
    finally:
        parts.close()


def _begun(s: Session, target: Agreed) -> tuple[State, bytes] | None:
    """The state whose tree is here in part, and up to which path it is."""
    state = s.db.get(PARTS_KEY)
    if state is None or not s.db.has(UNFINISHED_KEY):
        return None
    if state.era == target.state.era and target.devices.policy.skip_over(state.v) is None:
        return state, s.db.need(PARTS_UPTO_KEY)
    for key in (EXACT_KEY, PARTS_UPTO_KEY):
        s.db.set(key, None)
    s.db.set(PARTS_KEY, None)  # what it names may be lost: what is here of it counts as this device's own
    return None


def _is_empty(s: Session) -> bool:
    """Whether nothing is in the folder, and nothing is known of it."""
    return {*s.tree.disk.names(s.tree.root_fd)} == {STATE_NAME} and not s.db.packed_rows_after(b"", 1)


def _merged(s: Session, target: Agreed, before: Callable[[], None]) -> Brought:
    """By one checkout, merged with what is in the folder."""
    sizes: list[int] = []

    def count(paths: Mapping[bytes, Entry]) -> None:
        sizes.extend(e.size for e in paths.values() if e.kind is not Kind.DIR)

    report = pull.integrate(s, s.base(), target, on_tree=count, before=before)
    return Brought(report, target, len(sizes), sum(sizes))


class _Parts:
    """One run of a clone in parts. `last`: up to which path all is here."""

    def __init__(self, s: Session, target: Agreed, contents: Contents, tree: _Tree, last: bytes) -> None:
        self.s = s
        self.target = target
        self.contents = contents
        self.tree = tree
        self.paths = tree.paths
        self.last = last
        self.is_exact = not last or s.db.get(EXACT_KEY) == last
        self.files_here = self.bytes_here = 0
        self.applied = Applied()
        self.repeated: MutableMapping[bytes, bytes] = {}  # contents of several files -> one that is here, or b""
        self.has_repeated = False

    def close(self) -> None:
        for held in (self.repeated, self.paths):
            if isinstance(held, Large):
                held.close()

    def bring(self, before: Callable[[], None]) -> Brought:
        s, applied = self.s, self.applied
        if not self.last:
            store_scan(s.db, scan(walk_folder(s.tree, s.db, {}), s.ingest()))  # there is nothing but the folder itself
        self._look_at_tree()
        self._check_room()
        s.listener(Phase("checkout"))
        for part, is_last in self._cut():
            self._place(part, before, is_last=is_last)
            before = _nothing
        version = self.target.state.v
        report = PullReport(
            before=version,
            version=version,
            conflicts=sides.told(self.s, self.target, applied.conflicts),
            skipped=noted(applied.kept),
            unplaced=noted(applied.unplaced),
            down=dict(s.down),
            bad_copies=s.bad_copies,
        )
        return Brought(report, self.target, self.tree.files, self.tree.size_bytes)

    def _look_at_tree(self) -> None:
        """Finds the contents that several files have, and counts what is here already."""
        if not isinstance(self.paths, Large):
            return  # one part, and nothing is here
        self.repeated = Large(bytes, bytes)
        for content in self.paths.repeated(CONTENT_AT, bytes([Kind.FILE])):
            self.repeated[content] = b""
        self.has_repeated = any(True for _ in self.repeated)
        if self.last:
            for path, entry in self.paths.pairs():
                if path > self.last:
                    break
                self._count(path, entry)
            self.s.listener(Notice(f"going on with a clone: {self.files_here:,} files are here already"))

    def _count(self, path: bytes, entry: Entry) -> None:
        """Notes a path that is here."""
        if entry.kind is not Kind.DIR:
            self.files_here += 1
            self.bytes_here += entry.size
        if self.has_repeated and entry.kind is Kind.FILE and self.repeated.get(entry.content) == b"":
            self.repeated[entry.content] = path

    def _check_room(self) -> None:
        """`WorkspaceError` where the disk has no room for what is left, before any of it comes."""
        if self.s.db.has(PLAN_KEY):
            return  # some of it lies there already: each part looks for itself
        check_room(self.s.tree, self.s.db, self.tree.needed - self.bytes_here - self.files_here * SMALL_FILE_BYTES)

    def _cut(self) -> Iterator[tuple[dict[bytes, Entry], bool]]:
        """What is not here yet, in parts; and whether a part is the last one."""
        if not isinstance(self.paths, Large):
            yield dict(self.paths), True
            return
        part: dict[bytes, Entry] = {}
        for path, entry in self.paths.pairs(self.last):
            if len(part) >= PART_PATHS or (len(part) >= PART_PATHS_LEAST and b"/" not in path):
                yield part, False
                part = {}
            part[path] = entry
        yield part, True

    def _place(self, part: dict[bytes, Entry], before: Callable[[], None], *, is_last: bool) -> None:
        """Brings one part, and notes that it is here."""
        here: dict[bytes, bytes] = {}
        if self.has_repeated:
            found = ((e.content, self.repeated.get(e.content)) for e in part.values() if e.kind is Kind.FILE)
            here = {content: path for content, path in found if path}
        try:
            self._check_out(part, here, before, is_last=is_last)
        except ChangedMeanwhile as e:
            if not here:  # what is in no pack
                raise (e.__cause__ or e) from None
            self._check_out(part, {}, before, is_last=is_last)
        for path, entry in part.items():
            self._count(path, entry)

    def _check_out(
        self, part: dict[bytes, Entry], here: Mapping[bytes, bytes], before: Callable[[], None], *, is_last: bool
    ) -> None:
        s, state = self.s, self.target.state
        last = next(reversed(part), self.last)
        commit = [PARTS_KEY.entry(state), PARTS_UPTO_KEY.entry(last)]
        if is_last:
            ended = (UNFINISHED_KEY, PARTS_KEY, PARTS_UPTO_KEY, EXACT_KEY)
            commit = [BASE_KEY.entry(state), *((key.name, None) for key in ended)]
        checkout = Checkout(s.db, s.tree)
        changes = (Change(path, new, None) for path, new in part.items())
        wanted = checkout.begin(changes, dict(commit), version=state.v, needed=None, origin=sides.origin(s))
        try:
            entries = {path: part[path] for path in wanted}
            nowhere, done, whole = Nowhere(), self.bytes_here, self.tree.size_bytes
            deliver(s, checkout, entries, here, self.contents, nowhere, before_bytes=done, all_bytes=whole)
            checkout.leave_out(nowhere.why)
            before()
        except (WorkspaceError, ExcludedError):  # the disk has no room, or nothing here is for this device
            checkout.abandon()
            raise
        except BaseException:
            checkout.pause()  # what came so far need not come again
            raise

        def commit_too() -> None:
            put, gone = checkout.rows
            self.is_exact &= not gone and all((row := put.get(p)) and row.entry == e for p, e in part.items())
            if not is_last:
                s.db.set(EXACT_KEY, last if self.is_exact else None)
            elif self.is_exact and s.db.count_rows() == len(self.paths) + 1 and self.target.tree_root is not None:
                s.db.set(TREE_KEY, self.target.tree_root)

        applied = checkout.apply(commit_too)
        self.applied.conflicts += [*sides.in_changes(part), *applied.conflicts]
        self.applied.kept += applied.kept
        self.applied.unplaced += applied.unplaced
        self.last = last


def _nothing() -> None:
    pass
