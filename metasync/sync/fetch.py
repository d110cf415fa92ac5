"""Brings the bytes of files to where they are wanted: from the folder where they are there already, else from packs.

What a pull, a restore and the choice of a conflict's side have in common. Bytes are checked against their entry's
content before they count, wherever they came from.
"""

from __future__ import annotations

import os
import stat as stat_
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol, TypeAlias

from metasync.checkout.checkout import Checkout
from metasync.checkout.held import delivered
from metasync.codec import amount
from metasync.errors import DamagedError, MetaSyncError, UnreachableError
from metasync.events import Notice, Phase, Progress
from metasync.local.lock import GiveWay, Turns
from metasync.objects import walk
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind, split
from metasync.session.around import heeding
from metasync.session.session import Session
from metasync.store.pack_format import Located
from metasync.sync.old_chunks import SMALL_BYTES_LEAST, OldChunks, bases_of
from metasync.transfer.contents import Contents, NotNamedError
from metasync.transfer.download import Deliver
from metasync.worktree.disk import READ_FLAGS

PIECE_BYTES = 1 << 20


class ChangedMeanwhile(Exception):  # noqa: N818 - a signal to the caller: look again at what is here, and try again
    """A file that was to be moved or kept is not what the scan saw."""


class Staging(Protocol):
    """Takes contents of files by path, in any order, from any thread: a checkout, or a directory elsewhere."""

    def stage_whole(self, path: bytes, data: bytes | memoryview) -> None: ...
    def stage_part(self, path: bytes, offset: int, data: bytes | memoryview) -> None: ...
    def forget(self, path: bytes) -> None: ...  # what was staged of it in parts
    def finish(self, path: bytes) -> None: ...


OnLost: TypeAlias = Callable[[bytes, MetaSyncError], None]
"""Is told of a file whose bytes can be had from nowhere, and why."""


NOWHERE = "its contents were lost: no pack has them any more"


class Nowhere:
    """What a checkout leaves out: files that the agreed index names no contents of. Nothing brings these back but a
    device that has them; all else that cannot be had may come with a backend, and ends the checkout.

    `ours`: paths with bytes that are only here, so that what the scan saw has changed.
    """

    def __init__(self, ours: Container[bytes] = ()) -> None:
        self.ours = ours
        self.why: dict[bytes, str] = {}

    def __call__(self, path: bytes, error: MetaSyncError) -> None:
        if not isinstance(error, NotNamedError):
            raise error
        if path in self.ours:
            raise ChangedMeanwhile from error
        self.why[path] = NOWHERE


def read_here(s: Session, path: bytes, entry: Entry) -> bytes | None:
    """A local file's bytes if they are still those of `entry`, else None. For files that may be held in memory."""
    disk, fd = s.tree.disk, _opened(s, path)
    if fd is None:
        return None
    try:
        if not stat_.S_ISREG(disk.fstat(fd).st_mode):
            return None
        data = b"".join(iter(lambda: disk.read_next(fd, PIECE_BYTES), b""))
    finally:
        disk.close(fd)
    return data if s.ids.blob(data) == entry.content else None


def whole(s: Session, contents: Contents, entries: Iterable[Entry], *, merges: bool = False) -> dict[bytes, bytes]:
    """Whole agreed files by content hash: those that may be held in memory. `merges`: they change, and will again."""
    entries = list(entries)
    big = tuple({e.root for e in entries if e.root})
    pieces = contents.walk(walk.chunks(big)) if big else {}
    for e in entries:
        if e.root and sum(c.size for c in pieces[e.root]) != e.size:  # or a small entry would bring terabytes
            raise DamagedError(f"the chunks of a file of {e.size} bytes have another size together")
    wanted = [e.content for e in entries if not e.root and e.size]
    wanted += [c.id for cs in pieces.values() for c in cs]
    blobs = _edited(s, contents, wanted) if merges else contents.load(ObjectKind.BLOB, wanted)
    out: dict[bytes, bytes] = {}
    for e in entries:
        chunks = pieces[e.root] if e.root else [Chunk(e.content, e.size)] if e.size else []
        sound = all(len(blobs[c.id]) == c.size for c in chunks)
        data = b"".join(blobs[c.id] for c in chunks) if sound else b""
        if not sound or s.ids.blob(data) != e.content:
            raise DamagedError(f"a file of {e.size} bytes does not have the content its entry says")
        out[e.content] = data
    return out


def _edited(s: Session, contents: Contents, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
    """Blobs of files that change: what is kept of them is not fetched, and what is fetched is kept."""
    cache = contents.bases = bases_of(s)
    here = {i: data for i in wanted if (data := cache.get(i)) is not None}
    fetched = contents.load(ObjectKind.BLOB, [i for i in wanted if i not in here])
    for chunk_id, data in fetched.items():
        if len(data) >= SMALL_BYTES_LEAST:
            cache.keep(chunk_id, data, changes=True)
    cache.note()
    return {**here, **fetched}


def deliver(
    s: Session,
    staging: Staging,
    entries: Mapping[bytes, Entry],
    here: Mapping[bytes, bytes],
    contents: Contents,
    on_lost: OnLost | None = None,
    *,
    old: Mapping[bytes, Entry] = MappingProxyType({}),
    before_bytes: int = 0,
    all_bytes: int | None = None,
    turns: Turns | None = None,
) -> None:
    """Stages the contents of these files. `here`: where in the folder a content may be found, by its hash.

    `old`: what is at these paths now. Chunks that it has in common with the new file are taken from there, and deltas
    are opened with the others.

    `before_bytes`, `all_bytes`: of a larger whole that these are a part of, for telling how far it is. `turns`:
    `GiveWay` while bytes are fetched, where others are to go first. What earlier turns brought is taken up before that.

    `ChangedMeanwhile`: a file has bytes that were only here, and these are not what they were. What can be had from
    nowhere raises `DamagedError` or `UnreachableError`. With `on_lost` it is told there; the other files are staged.
    """
    rest = _rest_of(turns)
    left = _take_left(s, staging, entries)
    rest()
    remote = {p: e for p, e in entries.items() if p not in left and not _is_copied(s, staging, here, p, e)}
    rest()
    gone: set[bytes] = set()

    def lose(path: bytes, error: MetaSyncError) -> None:
        if path not in gone and on_lost is not None:
            on_lost(path, error)
            gone.add(path)

    with _named(remote, contents):
        small, parts = _where(remote, contents, lose if on_lost is not None else None)
    rest()
    total = sum(e.size for e in remote.values()) if all_bytes is None else all_bytes
    taken = _take_left_parts(s, staging, remote, contents, parts) + _leave_delivered(staging, parts)
    coming = sum(e.size for e in remote.values())
    rest()
    chunks = contents.bases = OldChunks(s, _files(old, remote), coming)
    taken_here = _take_here(staging, chunks, parts)
    _end_left(s, staging, [entries[path] for path in left], taken)
    done = before_bytes + taken + taken_here
    rest()
    s.listener(Phase("download"))

    def take(objects: Sequence[tuple[Located, memoryview]]) -> None:
        nonlocal done
        for located, data in objects:
            for path in small.get(located.id, ()):
                if len(data) == remote[path].size:
                    staging.stage_whole(path, data)
                    chunks.keep(path, located.id, data)
                    continue
                size = remote[path].size
                error = DamagedError(f"{os.fsdecode(path)} has {len(data):,} bytes, its entry says {size:,}")
                if on_lost is None:
                    raise error
                lose(path, error)
            for path, offset in parts.get(located.id, ()):
                staging.stage_part(path, offset, data)
                chunks.keep(path, located.id, data)
            done += located.length
        s.listener(Progress("download", done, total, "B"))

    def lost(ids: Sequence[bytes], error: MetaSyncError) -> None:
        for i in ids:
            for path in (*small.get(i, ()), *(path for path, _ in parts.get(i, ()))):
                lose(path, error)

    with _named(remote, contents):
        _bring(s, contents, [*small, *parts], take, lost if on_lost is not None else None, turns)
    _end(staging, [path for path, entry in remote.items() if entry.root and path not in gone])
    chunks.end()


def _end(staging: Staging, in_parts: Iterable[bytes]) -> None:
    """Ends what was delivered: files that came in parts, and those that another process makes."""
    for path in in_parts:
        staging.finish(path)
    if isinstance(staging, Checkout):
        staging.settle()


def _rest_of(turns: Turns | None) -> Callable[[], None]:
    """What lets others go first between two steps."""
    return turns.rest if turns is not None else lambda: None


def _bring(
    s: Session,
    contents: Contents,
    wanted: Sequence[bytes],
    take: Deliver,
    on_lost: Callable[[Sequence[bytes], MetaSyncError], None] | None,
    turns: Turns | None,
) -> None:
    """Fetches objects, each of which `take` gets once. `GiveWay`: see `Turns.step_aside`.

    Where others are to go first the fetch is broken off. It goes on with what has not come yet, after they had their
    turn; what arrives late waits until the folder's lock is held again.
    """
    rest, came = _rest_of(turns), set[bytes]()
    arriving = threading.Lock()  # two threads creating files in one directory wait for each other in the kernel, too

    def take_new(objects: Sequence[tuple[Located, memoryview]]) -> None:
        with arriving:
            new = [(located, data) for located, data in objects if located.id not in came]
            take(new)
            came.update(located.id for located, _ in new)

    def let_others_go() -> None:
        with arriving:
            rest()

    contents.rest = let_others_go
    while True:
        try:
            with heeding(s, turns, anew=True):
                contents.fetch([i for i in wanted if i not in came], take_new, on_lost=on_lost)
            return
        except GiveWay as way:
            with arriving:
                if turns is None or not turns.step_aside(way, got_on=bool(came)):
                    raise


def _files(old: Mapping[bytes, Entry], wanted: Iterable[bytes]) -> dict[bytes, Entry]:
    """The files that stand at these paths."""
    found = ((path, old.get(path)) for path in (wanted if old else ()))
    return {path: entry for path, entry in found if entry is not None and entry.kind is Kind.FILE}


def _take_here(staging: Staging, chunks: OldChunks, parts: dict[bytes, list[tuple[bytes, int]]]) -> int:
    """Stages the pieces of files that are on this device; these need no delivery. -> their bytes."""
    taken = 0
    for chunk_id in [i for i in parts if i in chunks]:
        if (data := chunks.get(chunk_id)) is not None:
            for path, offset in parts.pop(chunk_id):
                staging.stage_part(path, offset, data)
                chunks.keep(path, chunk_id, data)
                taken += len(data)
    return taken


def _take_left(s: Session, staging: Staging, entries: Mapping[bytes, Entry]) -> set[bytes]:
    """Takes the whole files that an interrupted checkout had staged, where their bytes are right. -> their paths."""
    out: set[bytes] = set()
    if not isinstance(staging, Checkout) or not staging.has_left:
        return out
    for path, entry in entries.items():
        fd = None if entry.root else staging.open_left(path)
        if fd is None:
            continue
        try:
            data = s.tree.disk.read_next(fd, entry.size + 1)
        finally:
            s.tree.disk.close(fd)
        if len(data) == entry.size and s.ids.blob(data) == entry.content and staging.take_left(path, {0: entry.size}):
            out.add(path)
    return out


def _take_left_parts(
    s: Session,
    staging: Staging,
    remote: Mapping[bytes, Entry],
    contents: Contents,
    parts: dict[bytes, list[tuple[bytes, int]]],
) -> int:
    """The same of files of several chunks, chunk by chunk; what is right needs no delivery. -> its bytes."""
    if not isinstance(staging, Checkout) or not staging.has_left:
        return 0
    taken = 0
    disk = s.tree.disk
    pieces = _pieces({p: e for p, e in remote.items() if e.root}, contents, lambda *_: None)
    for path, entry in remote.items():
        fd = staging.open_left(path) if entry.root else None
        if fd is None:
            continue
        right: dict[int, Chunk] = {}
        try:
            offset = 0
            for chunk in pieces.get(entry.root, ()):
                if s.ids.blob(disk.read(fd, chunk.size, offset)) == chunk.id:
                    right[offset] = chunk
                offset += chunk.size
        finally:
            disk.close(fd)
        if right and staging.take_left(path, {offset: chunk.size for offset, chunk in right.items()}):
            taken += sum(chunk.size for chunk in right.values())
            for offset, chunk in right.items():
                parts[chunk.id].remove((path, offset))
    for chunk_id in [i for i, places in parts.items() if not places]:
        del parts[chunk_id]
    return taken


def _leave_delivered(staging: Staging, parts: dict[bytes, list[tuple[bytes, int]]]) -> int:
    """Leaves out the pieces that an earlier turn of the same checkout has staged. -> their bytes."""
    if not isinstance(staging, Checkout):
        return 0
    taken = 0
    for chunk_id, places in [*parts.items()]:
        there = [(path, offset) for path, offset in places if offset in delivered(staging, path)]
        taken += sum(delivered(staging, path)[offset] for path, offset in there)
        if there and len(there) == len(places):
            del parts[chunk_id]
        elif there:
            parts[chunk_id] = [place for place in places if place not in there]
    return taken


def _end_left(s: Session, staging: Staging, whole: Sequence[Entry], parts_bytes: int) -> None:
    """Tells what an interrupted checkout had brought; the rest of it is of no use."""
    if isinstance(staging, Checkout) and staging.has_left:
        tell_brought(s, len(whole), sum(entry.size for entry in whole) + parts_bytes)
        staging.drop_left()


def tell_brought(s: Session, files: int, size_bytes: int) -> None:
    """Tells what an earlier run or turn had brought already."""
    if size_bytes:
        count = f"{files:,} {'file' if files == 1 else 'files'}"
        s.listener(Notice(f"going on with {amount(size_bytes)} brought before: {count}, and parts of others"))


Places: TypeAlias = tuple[dict[bytes, list[bytes]], dict[bytes, list[tuple[bytes, int]]]]


@contextmanager
def _named(remote: Mapping[bytes, Entry], contents: Contents) -> Iterator[None]:
    """`ChangedMeanwhile` where a file has bytes that are only here, and were not what the scan saw."""
    try:
        yield
    except NotNamedError as e:
        if any((entry.root or entry.content) not in contents for entry in remote.values()):
            raise ChangedMeanwhile from e
        raise


def _where(remote: Mapping[bytes, Entry], contents: Contents, lose: OnLost | None) -> Places:
    """Which blob is which whole file, and which is a piece of which file at what offset."""
    small: dict[bytes, list[bytes]] = defaultdict(list)
    parts: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    pieces = _pieces(remote, contents, lose)
    for path, entry in remote.items():
        if not entry.root:
            small[entry.content].append(path)
            continue
        offset = 0
        for chunk in pieces.get(entry.root, ()):
            parts[chunk.id].append((path, offset))
            offset += chunk.size
        if offset != entry.size and entry.root in pieces:
            raise DamagedError(f"the chunks of {os.fsdecode(path)} are {offset} bytes, its entry says {entry.size}")
    return small, parts


def _pieces(remote: Mapping[bytes, Entry], contents: Contents, lose: OnLost | None) -> dict[bytes, tuple[Chunk, ...]]:
    """The chunks of files of more than one, by their file object's id."""
    roots = tuple({e.root for e in remote.values() if e.root})
    try:
        return contents.walk(walk.chunks(roots)) if roots else {}
    except (DamagedError, UnreachableError):
        if lose is None:
            raise
    out: dict[bytes, tuple[Chunk, ...]] = {}
    for root in roots:  # one by one: which of them it is
        try:
            out.update(contents.walk(walk.chunks((root,))))
        except (DamagedError, UnreachableError) as e:
            for path, entry in remote.items():
                if entry.root == root:
                    lose(path, e)
    return out


def _opened(s: Session, path: bytes) -> int | None:
    parent, name = split(path)
    try:
        return s.tree.disk.open(name, READ_FLAGS, s.tree.dir(parent))
    except OSError:
        return None


def _is_copied(s: Session, staging: Staging, here: Mapping[bytes, bytes], path: bytes, entry: Entry) -> bool:
    """Whether a file could be staged from what is in the folder already."""
    source = here.get(entry.content)
    return source is not None and _copy_here(s, staging, source, path, entry)


def _copy_here(s: Session, staging: Staging, source: bytes, path: bytes, entry: Entry) -> bool:
    """Stages a file from another place in the folder; False when its bytes are not the expected ones: none is staged.

    That need not pass: a file that is ignored, or has no room, has an agreed entry and other bytes.
    """
    if isinstance(staging, Checkout) and delivered(staging, path):
        return False  # an earlier turn found it so, and fetched a part
    disk, fd = s.tree.disk, _opened(s, source)
    if fd is None:
        return False
    try:
        st = disk.fstat(fd)
        if not stat_.S_ISREG(st.st_mode) or st.st_size != entry.size:
            return False
        if not entry.root:
            data = disk.read_next(fd, entry.size + 1)
            if len(data) != entry.size or s.ids.blob(data) != entry.content:
                return False
            staging.stage_whole(path, data)
            return True
        hasher, offset = s.ids.content(), 0
        while (piece := disk.read_next(fd, PIECE_BYTES)) and offset + len(piece) <= entry.size:
            hasher.update(piece)
            staging.stage_part(path, offset, piece)
            offset += len(piece)
        if piece or offset != entry.size or hasher.digest() != entry.content:
            staging.forget(path)
            return False
        staging.finish(path)
        return True
    finally:
        disk.close(fd)
