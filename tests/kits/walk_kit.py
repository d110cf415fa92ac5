"""What tests of walks share: trees and edits by chance, and a workspace whose rows are the agreed tree."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

from workdir import Workspace, ingest

from metasync.local.state_keys import TREE_KEY
from metasync.worktree.hints import ALL, Hints
from metasync.worktree.index import Row
from metasync.worktree.merge_walk import Walk, walk_folder, walk_index
from metasync.worktree.overlay import changed, note_index_of
from metasync.worktree.scan import Scan, scan

ROOT = b"\7" * 32
RULES = b".metasyncignore"
# "-" and "." come before "/" and "0" behind it: directories lie between their own name and what is in them.
NAMES = [
    "a",
    "a-",
    "a.b",
    "a0",
    "b",
    "B",
    ".hidden",
    "Two",
    "~x",
    "ä",
    "z",
    "x.o",
    ".DS_Store",
    "~$a",
    "a.conflict-z-20261122",
]
PATTERNS = b"a *.o b/ /a !a a/b **/z z/* * !.* B/ !x.o ~x a-/ [0".split()


class Settled(Workspace):
    """A workspace whose rows are noted as the agreed tree."""

    def settle(self) -> None:
        found = self.scan_past()
        self.agree(found)
        assert self.db.get(TREE_KEY) == ROOT

    def agree(self, found: Scan) -> None:
        """What a push of this scan does."""
        self.base = dict(found.tree)
        self.db.delete_rows([p for p in found.deleted if p not in found.tree])
        note_index_of(self.db, ROOT, found.tree, None)

    def both(self) -> tuple[Scan, Scan]:
        """What a scan finds that is given the agreed tree, and one that takes it from the index."""
        whole = scan(walk_folder(self.tree, self.db, self.base), ingest)
        walked = walk_index(self.tree, self.db, ROOT)
        assert walked is not None
        found = scan(walked, ingest)
        assert dict(found.base) == self.base
        assert len(found.base) == len(self.base)
        return whole, found

    def walk(self) -> Walk:
        found = walk_index(self.tree, self.db, ROOT)
        assert found is not None
        return found


def untimed(rows: Any) -> dict[bytes, Row]:
    return {path: row._replace(trusted=True) for path, row in rows.items()}


def some_tree(rng: random.Random, root: Path, depth: int = 3, rules: float = 0.0) -> None:
    for name in rng.sample(NAMES, rng.randint(0, 7)):
        at = root / name
        if depth and rng.random() < 0.45:
            at.mkdir()
            some_tree(rng, at, depth - 1, rules)
        elif rng.random() < 0.15:
            at.symlink_to("target")
        else:
            at.write_bytes(rng.randbytes(3))
    if rng.random() < rules:
        some_rules(rng, root)


def some_rules(rng: random.Random, inside: Path) -> None:
    (inside / os.fsdecode(RULES)).write_bytes(b"\n".join(rng.sample(PATTERNS, rng.randint(0, 3))))


def some_state(rng: random.Random, at: Path) -> None:
    """The state of a workspace inside, or something else of its name, which makes no workspace."""
    kind = rng.randrange(4)
    if kind == 0:
        at.write_bytes(b"a file")
        return
    at.mkdir()
    if kind > 1:
        (at / "state.db").touch()


def edit(rng: random.Random, root: Path, rules: float = 0.0) -> None:
    """One change somewhere."""
    places = [Path(d) for d, _, _ in os.walk(root) if ".metasync" not in Path(d).parts]
    inside = rng.choice(places)
    here = [p for p in sorted(inside.iterdir()) if p.name != ".metasync"]
    kind = rng.randrange(9)
    at = rng.choice(here) if here else None
    if at is not None and at.name == os.fsdecode(RULES):
        kind = 1
    if rng.random() < rules:
        some_rules(rng, inside)
    elif rng.random() < rules / 4 and not os.path.lexists(inside / ".metasync"):
        some_state(rng, inside / ".metasync")
    elif kind == 0 or at is None:
        new = inside / rng.choice([*NAMES, "new", "c"])
        if not os.path.lexists(new):
            if rng.random() < 0.5:
                new.mkdir()
                some_tree(rng, new, 1, rules)
            else:
                new.write_bytes(b"new")
    elif kind == 1:
        remove(at)
    elif kind == 2 and at.is_file() and not at.is_symlink():  # as many bytes, and the mtime put back
        st = at.stat()
        at.write_bytes(rng.randbytes(st.st_size))
        os.utime(at, ns=(st.st_atime_ns, st.st_mtime_ns))
    elif kind == 3 and not at.is_symlink():
        at.chmod(0o700 if at.is_dir() else 0o600)
    elif kind == 4:
        at.rename(inside / "moved") if not os.path.lexists(inside / "moved") else None
    elif kind == 5:
        remove(at)
        at.mkdir()
        some_tree(rng, at, 1, rules)
    elif kind == 6:
        remove(at)
        at.write_bytes(b"a file now")
    elif kind == 7:
        remove(at)
        at.symlink_to("elsewhere")
    elif kind == 8 and at.is_dir() and not at.is_symlink():  # the same names in another directory
        shutil.copytree(at, inside / "copy", symlinks=True, dirs_exist_ok=True)
        remove(at)
        (inside / "copy").rename(at)


def remove(at: Path) -> None:
    shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()


def both(work: Settled, hints: Hints) -> tuple[Scan, Scan]:
    """What a scan of everything finds, and one by hints."""
    found = []
    for some in (ALL, hints):
        walked = walk_index(work.tree, work.db, ROOT, some)
        assert walked is not None
        found.append(scan(walked, ingest))
    return found[0], found[1]


def is_same(whole: Scan, found: Scan) -> None:
    assert dict(found.tree) == dict(whole.tree)
    assert sorted(changed(found.tree)) == sorted(changed(whole.tree))
    assert dict(found.base) == dict(whole.base)
    for kind in ("delete_rows", "deleted", "forgotten", "missing"):
        assert getattr(found, kind) == getattr(whole, kind), kind
    for kind in ("skipped", "ignored", "warnings", "busy", "unreadable"):
        assert set(getattr(found, kind)) <= set(getattr(whole, kind)), kind
    rows = untimed(whole.put_rows)
    assert untimed(found.put_rows).items() <= rows.items()
    left = rows.keys() - found.put_rows.keys()  # rows that came to be trusted: their entries stay
    assert all(not path or rows[path].entry == found.base[path] for path in left)
    assert found.rules == whole.rules
