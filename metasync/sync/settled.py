"""Whether the folder still is the agreed tree, told from stats alone: what most pushes find.

The rows of a folder that was pushed are the entries of the agreed tree, one by one. `note_settled` says so once, with
the tree's root, and whoever changes a row takes that back (`localdb.TREE_KEY`). While it stands, neither the agreed
tree nor any row needs to be decoded to know that nothing has changed: every name that the walk meets must have a row
with its very stat, and there must be as many names as rows. Whatever is out of the ordinary (a name with rules of its
own, ignore rules, a stat that is not trusted, an error) is left to `scan`, which says more than yes or no.
"""

from __future__ import annotations

import stat as stat_
from collections.abc import Collection, Iterable, Mapping

from metasync.localdb import TREE_KEY, State
from metasync.objects.model import Entry
from metasync.sync.fsio import WorkTree
from metasync.sync.rows import Row, is_packed_dir, is_packed_file
from metasync.sync.rulefiles import load_texts
from metasync.sync.scan import ENCODING, is_odd, why_not_taken


def note_settled(
    db: State,
    root: bytes,
    tree: Mapping[bytes, Entry],
    rows: Mapping[bytes, Row],
    put: Mapping[bytes, Row],
    gone: Collection[bytes],
    differing: Iterable[bytes] | None = None,
) -> None:
    """Notes that the stored rows are `tree`, which is the one of this root, if they are.

    They are `rows`, then `put` over them, and without `gone`. `differing`: paths at which the tree may differ from the
    one that `rows` are; None: at any, or they are none.
    """
    if db.count_rows() != len(tree) + 1:
        return
    gone = set(gone)

    def holds(path: bytes) -> bool:
        row = None if path in gone else put.get(path) or rows.get(path)
        return (row.entry if row is not None else None) == tree.get(path)

    paths = {*tree, *rows, *put} if differing is None else {*differing, *put, *gone}
    paths.discard(b"")
    if (b"" in put or b"" in rows) and b"" not in gone and all(map(holds, paths)):
        db.set(TREE_KEY, root)


def base_from_rows(db: State, root: bytes | None, rows: Mapping[bytes, Row]) -> dict[bytes, Entry] | None:
    """The tree of this root, if the stored rows are known to be it: at no cost beside theirs."""
    if root is None or db.get(TREE_KEY) != root:
        return None
    tree = {path: row.entry for path, row in rows.items()}
    del tree[b""]
    return tree


def is_settled(work: WorkTree, db: State, root: bytes | None) -> bool:
    """Whether the folder holds what the tree of this root says, every bit of it, and nothing else. Stores nothing."""
    if root is None or db.get(TREE_KEY) != root or work.rules.has_twins:
        return False
    if load_texts(db):  # the walk would meet a rule file, and end there
        return False
    try:
        return _is_as_rows(work, db.packed_rows())
    except OSError:
        return False


def _is_as_rows(work: WorkTree, rows: Mapping[bytes, bytes]) -> bool:
    work.forget()
    top = rows.get(b"")
    if top is None or not is_packed_dir(top, work.root_stat):
        return False
    met = 1
    todo = [b""]
    while todo:
        path = todo.pop()
        prefix = path + b"/" if path else b""
        with work.disk.entries(work.dir(path)) as names:
            for found in names:
                name = found.name
                if is_odd(name) and why_not_taken(name, plain=True):
                    if path or name != ".metasync":
                        return False
                    continue
                child = prefix + name.encode(*ENCODING)
                row = rows.get(child)
                if row is None:
                    return False
                st = found.stat(follow_symlinks=False)
                if stat_.S_ISDIR(st.st_mode):
                    if not is_packed_dir(row, st):
                        return False
                    todo.append(child)
                elif not is_packed_file(row, st):
                    return False
                met += 1
    return met == len(rows)
