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
from metasync.objects import directory
from metasync.objects.model import Kind, decode_snapshot
from metasync.runtime.limits import CACHE
from metasync.session.session import Session
from metasync.session.write_index import root_at_hand

MB_DEFAULT: Final = 1024
LEFT_SHARE: Final = 4  # a quarter goes, so that not every command has to
READ_TOGETHER: Final = 256


def bound(s: Session, settings_path: Path) -> int:
    """Drops cached objects where they have more bytes than the user allows. -> how many went."""
    try:
        most = int(settings.read(settings_path).values.get(CACHE, MB_DEFAULT)) << 20
        held = s.db.objects_bytes()
        return _drop(s, held - most + most // LEFT_SHARE) if held > most else 0
    except MetaSyncError:
        return 0  # what cannot be tidied now can be next time


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
    if (root := root_at_hand(db, state.index.hash)) is not None:
        _add(needed, (one.hash for one in (*root.before, *(item.ref for item in root.items))))
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
