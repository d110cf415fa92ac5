"""Bounds the cache of directories, history and agreed records that a device keeps: the oldest goes first.

What the version that the folder is at needs stays, and what is newest, however large: with it nothing is asked for that
a push or a merge needs anyway. All else is fetched again by whoever wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from metasync.consensus import State
from metasync.errors import MetaSyncError
from metasync.local import settings
from metasync.local.spill import IdSet
from metasync.local.state import LocalDb
from metasync.local.state_keys import LET_GO_KEY
from metasync.objects import directory
from metasync.objects.model import ID_BYTES, Kind, decode_snapshot
from metasync.runtime.limits import CACHE
from metasync.session.session import Session
from metasync.session.write_index import root_at_hand
from metasync.store.index import IndexRoot

MB_DEFAULT: Final = 1024
LEFT_SHARE: Final = 4  # a quarter goes, so that not every command has to
READ_TOGETHER: Final = 256
LET_GO_MAX: Final = 64  # directories that a push notes, or looks into at one level: others go by age
PUSHES_KEPT: Final = 32  # whose replaced directories stay: what was changed lately is what is looked back at


def bound(s: Session, settings_path: Path) -> int:
    """Drops cached objects where they have more bytes than the user allows. -> how many went."""
    try:
        most = int(settings.read(settings_path).values.get(CACHE, MB_DEFAULT)) << 20
        held = s.db.objects_bytes()
        return _drop(s, held - most + most // LEFT_SHARE) if held > most else 0
    except MetaSyncError:
        return 0  # what cannot be tidied now can be next time


def let_go(db: LocalDb, before: State, now: State) -> None:
    """Drops of a version what its successor replaces: parts of its index, and `PUSHES_KEPT` pushes later directories.

    So a process that pushes for days has a cache that grows with the folder, and not with the number of its pushes, and
    the last versions are compared and restored with what is here. Not in a change of the backends, while its index is
    still read.
    """
    old, new = _index_names(db, before), _index_names(db, now)
    trees = [_root_of(db, state) for state in (before, now)]
    replaced, there = _replaced(db, *trees) if all(trees) else (set[bytes](), set[bytes]())
    noted = [_ids(packed) - there - replaced for packed in db.get(LET_GO_KEY) or ()]  # what came back stays
    noted.append(replaced)
    db.set(LET_GO_KEY, [b"".join(sorted(ids)) for ids in noted[-PUSHES_KEPT:]])
    db.drop_objects(sorted((old - new if new else set()).union(*noted[:-PUSHES_KEPT])))


def _ids(packed: bytes) -> set[bytes]:
    return {packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)}


def _index_names(db: LocalDb, state: State) -> set[bytes]:
    """The records of a state's index, as far as they are cached."""
    root = root_at_hand(db, state.index.hash)
    return set() if root is None else {state.index.hash, *(one.hash for one in root.before), *_hashes(root)}


def _hashes(root: IndexRoot) -> Iterator[bytes]:
    return (item.ref.hash for item in root.items)


def _root_of(db: LocalDb, state: State) -> bytes:
    """The root of a state's tree; b"" if its snapshot is not cached."""
    data = db.get_object(state.master)
    return b"" if data is None else decode_snapshot(data).root


def _replaced(db: LocalDb, before: bytes, now: bytes) -> tuple[set[bytes], set[bytes]]:
    """Directories of one tree that are not in the other one, and those of the other that the look came across.

    Level by level: what both have is not looked at.
    """
    old, new, gone, kept = {before}, {now}, set[bytes](), set[bytes]()
    while old := old - new:
        gone |= old
        new -= gone
        kept |= new
        old, new = _below(db, old), _below(db, new)
        kept |= new
    return set(sorted(gone - kept)[:LET_GO_MAX]), kept | {now}


def _below(db: LocalDb, dirs: set[bytes]) -> set[bytes]:
    """The directories, and parts of long ones, that cached ones name."""
    out: set[bytes] = set()
    for data in db.get_objects(sorted(dirs)[:LET_GO_MAX]).values():
        node = directory.decode_node(data)
        out.update(child for _, child in node.children)
        out.update(e.content for _, e in node.entries if e.kind is Kind.DIR)
    return out


def _drop(s: Session, too_many: int) -> int:
    db, needed = s.db, IdSet()
    for state in (s.base_state(), s.newest_state()):
        _add_needed(db, state, needed)
    done, some = 0, list[bytes]()
    for object_id, size in list(db.objects_by_age()):
        if too_many <= 0:
            break
        if object_id not in needed:
            some.append(object_id)
            too_many -= size
    going: Iterator[bytes] = iter(some)
    while ids := list(islice(going, READ_TOGETHER)):
        db.drop_objects(ids)
        done += len(ids)
    return done


def _add_needed(db: LocalDb, state: State, needed: IdSet) -> None:
    """Adds what a state names of what is cached, with its tree."""
    for digest in (state.config, state.devices, state.keyring, state.index.hash, state.retained.hash, state.master):
        _add(needed, [digest])
    _add(needed, _index_names(db, state))
    if (snapshot := db.get_object(state.master)) is None:
        return
    dirs = [decode_snapshot(snapshot).root]
    _add(needed, dirs)
    while dirs:
        some, dirs = dirs[-READ_TOGETHER:], dirs[:-READ_TOGETHER]
        for data in db.get_objects(some).values():
            node = directory.decode_node(data)
            below = [child for _, child in node.children] + [e.content for _, e in node.entries if e.kind is Kind.DIR]
            dirs += [i for i in dict.fromkeys(below) if i not in needed]
            _add(needed, below)


def _add(needed: IdSet, ids: Iterable[bytes]) -> None:
    for i in ids:
        if i not in needed:
            needed.add(i)
