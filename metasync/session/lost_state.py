"""Tells whether the local state of a folder is of no use: gone, damaged, without its keys, or a copy of another's.

Such a folder becomes a device again by `clone --merge`: a new one, with keys of its own. The old device is not gone on
with. What it had promised and proposed stood in its local state, and block logs have one writer that must know what it
wrote last (consensus.md, rule 7.4); its floor against rolled back stores is lost in any case, as a new device lacks it.
The merge has an empty base, so nothing is deleted here: what only this folder has counts as new, and of two contents
of one path both stay (architecture.md, D8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from metasync.errors import MetaSyncError, NoQuorumError, UnreachableError, WorkspaceError
from metasync.local.state import LocalDb
from metasync.local.state_keys import (
    CLONE_ANEW,
    CONFIG_KEY,
    DEVICE_KEY,
    NAME_KEY,
    PLACE_KEY,
    PLAN_KEY,
    TABLES,
    Key,
)
from metasync.session.folder import (
    BASE_KEY,
    DB_FILE,
    LINKS_KEY,
    STATE_DIR,
    is_unfinished,
    load_secret,
    new_folder,
    place_now,
    stored_devices,
    stored_newest,
    take_back,
)

NEEDED: Final[tuple[Key[Any], ...]] = (NAME_KEY, DEVICE_KEY, CONFIG_KEY, LINKS_KEY, BASE_KEY)

CLONE_AGAIN: Final = (
    "Clone again when all can be reached, or with the ways to more of the backends: --backend URL, once for each."
)


def why_lost(folder: Path) -> str:
    """Why the local state of a folder is of no use; "" where it is sound. `WorkspaceError` where that cannot be told.

    Such as a disk that fails, another process that uses it, or a newer MetaSync (`UpgradeError`) that wrote it.
    """
    if not (folder / STATE_DIR / DB_FILE).is_file():
        return "it is gone"
    try:
        with contextlib.closing(LocalDb.open(folder / STATE_DIR / DB_FILE)) as db:
            db.check()
            for key in NEEDED:
                db.need(key)
            keys, _, _ = load_secret(folder, db)
            stored_devices(db, stored_newest(db), keys.ns_id)
            for table in TABLES:
                db.records(table)
            is_here = db.get(PLACE_KEY) in (None, place_now(folder / STATE_DIR))
    except WorkspaceError as e:
        if CLONE_ANEW not in (e.next_step or ""):
            raise
        return e.message
    return "" if is_here else "it is a copy of another folder's"


def is_begun(folder: Path, name: str | None, *, merge: bool) -> bool:
    """Whether the folder is an interrupted clone that goes on. `merge`: a local state that is lost is none."""
    if merge and (folder / STATE_DIR / DB_FILE).is_file() and why_lost(folder):
        return False
    return is_unfinished(folder, name)


@contextlib.contextmanager
def leaving_nothing(folder: Path) -> Iterator[None]:
    """Removes what a clone made that failed and cannot go on: of a folder with something in it, nothing.

    A clone goes on with the ways that it had. Where too few of them lead to a voting backend for its device to be
    agreed, and what it needs lies elsewhere, it begins anew with more of them. Empty folders go in any case.
    """
    was_there = (folder / STATE_DIR).exists()
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException as e:
        with contextlib.suppress(MetaSyncError, OSError):  # what failed first is told
            if not was_there and isinstance(e, UnreachableError | NoQuorumError) and _lacks_ways(folder):
                e.next_step = CLONE_AGAIN if take_back(folder) else e.next_step
        with contextlib.suppress(OSError):  # something is in it
            for place in made:
                place.rmdir()
        raise


def _lacks_ways(folder: Path) -> bool:
    """Whether an interrupted clone has planned nothing yet, and too few ways for its device to be agreed."""
    if not is_unfinished(folder, None):
        return False
    with contextlib.closing(LocalDb.open(folder / STATE_DIR / DB_FILE)) as db:
        if db.has(PLAN_KEY):
            return False
        config, links = db.need(CONFIG_KEY), db.need(LINKS_KEY)
        return sum(e.name in links for e, _ in config.acceptors) < config.quorum


def cleared(folder: Path, name: str, *, merge: bool, again: bool = False) -> Path:
    """The folder for a clone. `merge`: its files are to stay; else there must be none. `WorkspaceError`, `UsageError`.

    One with a local state is taken for a merge alone, and where that is lost; or where it is that of a merge which was
    interrupted, and whose keys were changed since: `again`.
    """
    if not merge or not (folder / STATE_DIR).is_dir():
        checked = new_folder(folder, name)
    elif (again and is_unfinished(folder, name)) or why_lost(folder):
        checked = new_folder(folder, name, anew=True)
    else:
        raise WorkspaceError(
            f"{folder} is a workspace already, whose local state is sound",
            next_step="`metasync status` there tells more. To have it made anew all the same, rename "
            f"{STATE_DIR}/{DB_FILE} in it first.",
        )
    if not merge and checked.is_dir() and any(not e.name.startswith(STATE_DIR) for e in checked.iterdir()):
        raise WorkspaceError(
            f"{checked} is not empty",
            next_step="Clone into a new folder, then move your files there; or add --merge: the files stay where they "
            "are, and count as new.",
        )
    return checked
