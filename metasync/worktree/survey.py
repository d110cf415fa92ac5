"""Scans the folder with what the local state knows of it, and stores what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metasync.local.state import State
from metasync.local.state_keys import JOURNAL_KEY, UNPLACED, Unplaced
from metasync.objects.model import Entry
from metasync.worktree.ignore_files import load_texts, store_texts
from metasync.worktree.index import Row, load_rows, store_rows
from metasync.worktree.quick_scan import Differing, FromRows, Part
from metasync.worktree.scan import Ingest, Reading, Scan, scan
from metasync.worktree.tree import WorkTree

MISSING: Final = "it is not here, though nobody deleted it"  # why a checkout is to bring a path again


def survey(
    tree: WorkTree,
    db: State,
    base: Mapping[bytes, Entry],
    ingest: Ingest,
    rows: Mapping[bytes, Row] | None = None,
    reading: Reading | None = None,
) -> Scan:
    """A scan by the stored rows (`rows`, if they are at hand) and ignore rules, as `scan` has it. Stores nothing."""
    return scan(tree, load_rows(db) if rows is None else rows, base, ingest, load_texts(db), reading=reading)


def survey_part(
    tree: WorkTree, db: State, differing: Differing, ingest: Ingest, reading: Reading | None = None
) -> tuple[Scan, FromRows, Part]:
    """The same of the differing names alone, in a folder whose rows are the agreed tree; with that tree."""
    part = Part(db, differing)
    seen = scan(tree, part.rows, part.base, ingest, {}, part, reading)
    before, seen.tree = part.trees(seen.tree)
    return seen, before, part


def store_survey(db: State, seen: Scan) -> None:
    """Stores what a scan saw: it is true of the disk, whatever becomes of it.

    A push whose end is not known may have been agreed with paths that are gone since and that only rows know: these
    rows stay, because without them nobody deleted what the base then turns out to hold.
    """
    stay = set(seen.forgotten) if db.has(JOURNAL_KEY) else set()
    with db.transaction():
        store_rows(db, seen.put_rows.items())
        db.delete_rows([p for p in seen.delete_rows if p not in stay])
        store_texts(db, seen.rules)
        came_back = [p for p, why in db.unplaced().items() if why == MISSING and p in seen.put_rows]
        db.delete_records(UNPLACED, came_back)  # by the user's hand: it had no row
        db.put_records(UNPLACED, (Unplaced(path, MISSING) for path in seen.missing))
