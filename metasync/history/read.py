"""The bytes of one file of a version (`metasync cat`), in order.

Every chunk is checked against its id before any byte of it is given out, so that who reads has seen nothing but what
was agreed, however it ends. A chunk that the folder still has at that path is taken from there.
"""

from __future__ import annotations

import os
import stat as stat_
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from metasync.errors import DamagedError, NoQuorumError, UnreachableError, UsageError
from metasync.events import Phase, Progress
from metasync.history.diff import nothing_there
from metasync.history.log import History
from metasync.history.versions import required, resolve
from metasync.objects import walk
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind, split
from metasync.reports.history import CatReport
from metasync.session.session import Session
from metasync.worktree.disk import READ_FLAGS

FIRST_BYTES = 1 << 20  # fetched before the first are given out: who looks at the beginning need not wait for more
BATCH_BYTES = 16 << 20  # fetched together after that, and held in memory


def read(s: Session, version: str, path: bytes, write: Callable[[bytes], object]) -> CatReport:
    """Gives the bytes of the file at `path` in a version to `write`, piece by piece.

    `UsageError`: no such version, or no file there. `DamagedError`, `NoQuorumError`: it cannot be had, or not from some
    byte on; what was given out until then is right. What `write` raises ends it.
    """
    history = History(s, ask=version != "base")
    found = resolve(history, required(version))
    at = history.find(found.root, path)
    if at.entry is None:
        raise nothing_there(history, found, path, at.reached)
    entry, name = at.entry, os.fsdecode(path)
    if entry.kind is not Kind.FILE:
        raise UsageError(
            f"{name or 'the root'} is no file in {found.title}, but a directory"
            if entry.kind is Kind.DIR
            else f"{name} is no file in {found.title}, but a link to {os.fsdecode(entry.content)}",
            next_step="`metasync ls VERSION PATH` lists a directory.",
        )
    done = 0
    s.listener(Phase("download"))
    try:
        for piece in _pieces(history, path, entry):
            write(piece)
            done += len(piece)
            s.listener(Progress("download", done, entry.size, "B"))
    except (DamagedError, UnreachableError) as e:
        kind = DamagedError if isinstance(e, DamagedError) else NoQuorumError
        given = f"; {done:,} of its {entry.size:,} bytes were given out, and these are right" if done else ""
        raise kind(f"{name} of {found.title} cannot be read{given}: {e.message}", next_step=e.next_step) from e
    return CatReport(found.number, found.id, path, entry.size, history.s.bad_copies)


def _pieces(history: History, path: bytes, entry: Entry) -> Iterator[bytes]:
    """A file's chunks in order, each checked."""
    chunks: Sequence[Chunk] = [Chunk(entry.content, entry.size)] if entry.size else []
    if entry.root:
        chunks = history.contents.walk(walk.chunks((entry.root,)))[entry.root]
    if sum(chunk.size for chunk in chunks) != entry.size:
        raise DamagedError(f"its chunks do not make the {entry.size:,} bytes that its entry says")
    with _here(history.s, path, entry) as at_hand:
        offset = 0
        for batch in _batches(chunks):
            blobs: dict[bytes, bytes] = {}
            for chunk in batch:
                if (data := at_hand(chunk, offset)) is not None:
                    blobs[chunk.id] = data
                offset += chunk.size
            missing = [chunk.id for chunk in batch if chunk.id not in blobs]
            blobs.update(history.contents.load(ObjectKind.BLOB, missing))
            for chunk in batch:
                if len(blobs[chunk.id]) != chunk.size:
                    raise DamagedError(f"a chunk has {len(blobs[chunk.id]):,} bytes where its file says {chunk.size:,}")
                yield blobs[chunk.id]


def _batches(chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
    """The chunks some at a time: few at first."""
    batch: list[Chunk] = []
    most, size = FIRST_BYTES, 0
    for chunk in chunks:
        if batch and size + chunk.size > most:
            yield batch
            batch, size, most = [], 0, BATCH_BYTES
        batch.append(chunk)
        size += chunk.size
    if batch:
        yield batch


@contextmanager
def _here(s: Session, path: bytes, entry: Entry) -> Iterator[Callable[[Chunk, int], bytes | None]]:
    """What gives a chunk at an offset from the file that stands at this path now; None where it has other bytes."""
    parent, name = split(path)
    disk = s.tree.disk
    try:
        fd = disk.open(name, READ_FLAGS, s.tree.dir(parent))
    except OSError:
        yield lambda _chunk, _offset: None
        return

    def at_hand(chunk: Chunk, offset: int) -> bytes | None:
        try:
            data = disk.read(fd, chunk.size, offset)
        except OSError:
            return None
        return data if s.ids.blob(data) == chunk.id else None

    try:
        st = disk.fstat(fd)
        is_like_it = stat_.S_ISREG(st.st_mode) and st.st_size == entry.size
        yield at_hand if is_like_it else lambda _chunk, _offset: None
    finally:
        disk.close(fd)
