"""A pull that looks at what differs alone comes to what one that looks at everything comes to, and holds little."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import first
from workspace_kit import Lab, tree_of, write

from metasync.errors import GuardError
from metasync.local.state import LocalDb
from metasync.local.state_keys import CONFLICTS, KEPT_KEY, REPLACED, TREE_KEY
from metasync.merge.copies import Origin
from metasync.reports.sync import Changes, Renamed
from metasync.session.folder import BASE_KEY
from metasync.sync import pull as pulling
from metasync.sync import sides
from metasync.workspace import Workspace
from metasync.worktree import index, merge_walk, overlay
from metasync.worktree.index import load_rows
from metasync.worktree.tree import WorkTree

LINES = b"".join(b"line %d\n" % i for i in range(30))
# "-" and "." come before "/" and "0" behind it: directories lie between their own name and what is in them.
NAMES = ["a", "a-", "a.txt", "a0", "b", "B", "c.conflict-desktop-20261122.txt", "c.txt", "d", "x", "y"]


HOT = [".", "d1", "d1/d2"]


class Looks:
    """Which folders were compared with their index alone, and how often; those in `whole` never are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole: set[bytes] = set()
        self.asked: list[bytes] = []
        self.by_stats: list[bytes] = []
        monkeypatch.setattr(pulling, "walk_index", self)

    def __call__(self, work: WorkTree, *others: Any) -> Any:
        name = os.path.basename(work.root)
        found = None if name in self.whole else merge_walk.walk_index(work, *others)
        self.asked.append(name)
        if found is not None:
            self.by_stats.append(name)
        return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


class Hand:
    """Makes the same random changes in several folders that are alike."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ns = 10**18

    def some_tree(self, inside: list[Path], depth: int) -> None:
        for name in self.rng.sample(NAMES, self.rng.randint(1, 6)):
            at = [place / name for place in inside]
            if depth and self.rng.random() < 0.4:
                for path in at:
                    path.mkdir()
                self.some_tree(at, depth - 1)
            else:
                self.make(at)

    def make(self, at: list[Path]) -> None:
        """A file or a symlink where nothing is."""
        kind = self.rng.random()
        data = LINES if kind < 0.4 else self.rng.choice([b"", b"one", b"two", self.rng.randbytes(5)])
        self.now_ns += 10**6
        for path in at:
            if kind > 0.9:
                path.symlink_to("target")
            else:
                path.write_bytes(data)
            os.utime(path, ns=(self.now_ns, self.now_ns), follow_symlinks=False)

    def edit(self, roots: list[Path]) -> None:
        """One change somewhere."""
        rng, first = self.rng, roots[0]
        dirs = sorted(d for d, _, _ in os.walk(first) if ".metasync" not in Path(d).parts)
        inside = Path(rng.choice(dirs)).relative_to(first)
        if rng.random() < 0.6:  # where the others are at work, too
            inside = Path(rng.choice([hot for hot in HOT if (first / hot).is_dir() and not (first / hot).is_symlink()]))
        here = sorted(p.name for p in (first / inside).iterdir() if p.name != ".metasync")
        kind, new = rng.randrange(10), inside / rng.choice(NAMES)
        at = inside / rng.choice(here) if here else None
        if at is None or (kind <= 1 and not os.path.lexists(first / new)):
            if not os.path.lexists(first / new):
                self.make_any([root / new for root in roots])
            return
        paths = [root / at for root in roots]
        is_dir = paths[0].is_dir() and not paths[0].is_symlink()
        if kind <= 3:
            remove(paths)
        elif kind == 4:
            remove(paths)
            self.make_any(paths)
        elif kind == 5 and not paths[0].is_symlink():
            mode = rng.choice([0o700, 0o750]) if is_dir else rng.choice([0o600, 0o755])
            for path in paths:
                path.chmod(mode)
        elif kind == 6 and not os.path.lexists(first / new) and new.parent != at:
            for root, path in zip(roots, paths, strict=True):
                path.rename(root / new)
        elif kind == 7 and not is_dir and not os.path.lexists(first / new):
            for root, path in zip(roots, paths, strict=True):
                shutil.copy2(path, root / new, follow_symlinks=False)
        elif not is_dir and not paths[0].is_symlink():
            lines = paths[0].read_bytes().splitlines(keepends=True) or [b""]
            lines[rng.randrange(len(lines))] = b"changed %d\n" % rng.randrange(4)
            self.now_ns += 10**6
            for path in paths:
                path.write_bytes(b"".join(lines))
                os.utime(path, ns=(self.now_ns, self.now_ns))

    def make_any(self, paths: list[Path]) -> None:
        if self.rng.random() < 0.4:
            for path in paths:
                path.mkdir()
            self.some_tree(paths, 1)
        else:
            self.make(paths)


def remove(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def pulled(workspace: Workspace, **options: bool) -> Any:
    try:
        return replace(workspace.pull(**options), down={})
    except GuardError as e:
        return e.message, e.next_step, pulled(workspace, force=True)


def state_of(root: Path) -> dict[str, Any]:
    """What the local state says that is not of this folder alone: inodes, times of changes, numbers of devices."""
    with LocalDb.open(root / ".metasync/state.db") as db:
        return {
            "rows": {p: (r.entry, r.mode, r.size, r.mtime_ns if r.size else 0) for p, r in load_rows(db).items()},
            "tree": db.get(TREE_KEY),
            "base": db.get(BASE_KEY),
            "kept": db.has(KEPT_KEY),
            "staged": sorted(kind for _, kind, _ in db.staged()),
            "conflicts": db.records(CONFLICTS),
            "unplaced": db.unplaced(),
            "replaced": [(r.n, r.path, r.content) for r in db.records(REPLACED)],
        }


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", first(3, range(16)))
def test_it_comes_to_what_a_look_at_everything_comes_to(
    lab: Lab, looks: Looks, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    hand = Hand(rng)
    urls = lab.urls("one")
    author = lab.init(urls, replicas=1)
    hand.some_tree([author.directory], 2)
    write(author.directory, {"d1/d2/file.txt": LINES, "d1/x.text": LINES, "y.text": LINES})
    author.push()
    some, whole = lab.clone(urls, device="some"), lab.clone(urls, device="whole")
    monkeypatch.setattr(sides, "origin", lambda _: Origin(b"one-20261122", b"d" * 16))  # conflict copies tell it
    some.pull()  # that the other one is a device now is a version
    both = [some.directory, whole.directory]
    looks.whole.add(b"whole")
    for turn in range(3):
        for _ in range(rng.choice([0, 1, 2, 5])):
            hand.edit(both)
        for _ in range(rng.choice([1, 2, 6])):
            hand.edit([author.directory])
        write(author.directory, {f"news {turn} {seed}": b"%d" % turn})
        author.push(force=True)
        if turn and rng.random() < 0.3:
            assert pulled(some, dry_run=True) == pulled(whole, dry_run=True)
        before = len(looks.asked)
        reports = pulled(some), pulled(whole)
        assert reports[0] == reports[1], f"turn {turn}"
        looks_each = 2 if isinstance(reports[0], tuple) else 1
        assert len(looks.asked) == before + 2 * looks_each, "once, unless it was told to force it"
        assert tree_of(both[0]) == tree_of(both[1]), f"turn {turn}"
        states = [state_of(root) for root in both]
        assert states[0] == states[1], f"turn {turn}"
        assert b"some" in looks.by_stats
        some.push(force=True)
        whole.pull(force=True)
        whole.push(force=True)
        some.pull(force=True)
        author.pull(force=True)
        assert tree_of(both[0]) == tree_of(both[1]), f"turn {turn}"
    assert b"whole" not in looks.by_stats


def test_what_lies_elsewhere_in_the_folder_is_not_fetched(lab: Lab, looks: Looks) -> None:
    urls = lab.urls("one")
    author = lab.init(urls, replicas=1)
    data = random.Random(1).randbytes(500_000)
    write(author.directory, {"a/large": data, "b/other": b"x", "c/moved": data[::-1]})
    author.push()
    reader = lab.clone(urls)
    shutil.copyfile(author.directory / "a/large", author.directory / "b/copy")
    (author.directory / "c/moved").rename(author.directory / "b/here")
    author.push()
    lab.counts["one"].take()
    changes = reader.pull().changes
    assert changes.added == (b"b/copy",)
    assert changes.renamed == (Renamed(b"b/here", b"c/moved"),)
    assert looks.by_stats == [b"desktop"]
    assert (reader.directory / "b/copy").read_bytes() == data
    assert (reader.directory / "b/here").read_bytes() == data[::-1]
    assert lab.counts["one"].take().down_bytes < 100_000


def test_what_has_changed_since_is_fetched_all_the_same(lab: Lab, looks: Looks) -> None:
    """The rows say where a content is; that it is there no more only a look tells."""
    urls = lab.urls("one")
    author = lab.init(urls, replicas=1)
    write(author.directory, {"a": b"first", "b": b"x"})
    author.push()
    reader = lab.clone(urls)
    (reader.directory / "a").write_bytes(b"other")
    shutil.copyfile(author.directory / "a", author.directory / "copy")
    author.push()
    reader.pull()
    assert looks.by_stats == [b"desktop"]
    assert [(reader.directory / name).read_bytes() for name in ("a", "b", "copy")] == [b"other", b"x", b"first"]


def test_a_pull_of_one_file_loads_the_rows_of_few(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = lab.urls("one")
    author = lab.init(urls, replicas=1)
    write(author.directory, {f"d{i}/f{j}": b"%d %d" % (i, j) for i in range(20) for j in range(10)})
    author.push()
    reader = lab.clone(urls)
    (author.directory / "d3/f3").write_bytes(b"news")
    (author.directory / "d4/f4").unlink()
    author.push()
    unpacked = []

    def unpack(data: bytes) -> index.Row:
        unpacked.append(data)
        return unpack_row(data)

    unpack_row = index.unpack_row
    for module in (index, overlay, merge_walk):
        monkeypatch.setattr(module, "unpack_row", unpack)
    assert reader.pull().changes == Changes(modified=(b"d3/f3",), deleted=(b"d4/f4",))
    assert len(unpacked) < 60
    assert tree_of(author.directory) == tree_of(reader.directory)
    with LocalDb.open(reader.directory / ".metasync/state.db") as db:
        assert db.get(TREE_KEY) is not None
