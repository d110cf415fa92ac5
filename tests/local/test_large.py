"""What holds very many entries in little memory is like what Python has for few."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from content_kit import IDS, digest, file_entry, walk
from workdir import Workspace, ingest, write
from workspace_kit import Lab, tree_of
from workspace_kit import write as lab_write

from metasync.errors import WorkspaceError
from metasync.local import spill
from metasync.local.spill import IdSet, Large, Paths, Spool, grown
from metasync.local.state_keys import TREE_KEY
from metasync.objects import walk as walk_module
from metasync.objects.model import Entry, Kind, ObjectKind
from metasync.objects.walk import build, build_nodes, flatten
from metasync.store import index
from metasync.store.index import PackRecord, decode_segment, encode_segment, make_segment, pack_objects, segments_of
from metasync.store.pack_format import Located
from metasync.sync.scanned import summary, summary_of_new
from metasync.worktree import scan as scanning
from metasync.worktree.index import pack_entry, unpack_entry
from metasync.worktree.names import unportable
from metasync.worktree.pending_reads import Unread, UnreadHere

DIR = Entry(Kind.DIR, 0o755, 0, 0, b"")


def large() -> Large[int]:
    return Large(lambda n: b"%d" % n, int)


@pytest.mark.few(8)
@pytest.mark.parametrize("held", [0, 1, 5, 10_000])
@pytest.mark.parametrize("seed", range(8))
def test_a_large_mapping_is_like_a_dict(held: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "HELD_MAX", held)
    monkeypatch.setattr(spill, "PAGE", 3)
    rng = random.Random(seed)
    both: tuple[Any, dict[bytes, int]] = (large(), {})
    for _ in range(60):
        key, n = b"%d" % rng.randrange(12), rng.randrange(5)
        kind = rng.randrange(4)
        for into in both:
            if kind == 0:
                into[key] = n
            elif kind == 1:
                into.pop(key, None)
            elif kind == 2:
                into.update({key: n, b"x": 3})
            else:
                into.setdefault(key, n)
        assert (both[0].get(key), key in both[0]) == (both[1].get(key), key in both[1])
        if rng.random() < 0.3:
            assert list(both[0].items()) == sorted(both[1].items())
            assert list(both[0]) == sorted(both[1])
            assert list(both[0].values()) == [n for _, n in sorted(both[1].items())]
            assert (len(both[0]), both[0] == both[1]) == (len(both[1]), True)
            assert both[0].keys() - both[1].keys() == set()
    with pytest.raises(KeyError):
        both[0][b"none"]
    with pytest.raises(KeyError):
        del both[0][b"none"]
    both[0].close()


def test_a_temporary_file_that_fails_is_told() -> None:
    broken = large()
    broken[b"a"] = 1
    broken.close()
    with pytest.raises(WorkspaceError, match="temporary file"):
        broken[b"b"]


@pytest.mark.few(6)
@pytest.mark.parametrize("more", [0, 100, 3500, 9000])
@pytest.mark.parametrize("few", [0, 1, 700, 1 << 15])
def test_a_set_of_ids_is_like_a_set(few: int, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.local.spill.FEW", few)
    rng = random.Random(few)
    ids, plain = IdSet(), set()
    for turn in range(6000):
        if turn in (0, 2000):
            ids.reserve(more)
        one = digest(rng.randrange(5000))
        assert (one in ids) == (one in plain)
        ids.add(one)
        plain.add(one)
    assert len(ids) == len(plain)
    assert all(i in ids for i in plain)
    assert not any(digest(n) in ids for n in range(5000, 9000))


@pytest.mark.parametrize("few", [0, 50, 10_000])
def test_a_part_of_a_set_has_some_of_its_ids(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.local.spill.FEW", few)
    ids, rng = IdSet(), random.Random(few)
    for n in range(3000):
        ids.add(digest(n))
    part, plain = ids.part(), set()
    for _ in range(2000):
        n = rng.randrange(3000)
        assert (digest(n) in part) == (n in plain)
        part.add(digest(n))
        plain.add(n)
    assert len(part) == len(plain)
    assert not any(digest(n) in part for n in range(3000, 4000))


def test_a_part_takes_no_other_ids_and_no_more_of_a_set_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.local.spill.FEW", 0)
    ids = IdSet()
    ids.add(digest(1))
    part = ids.part()
    with pytest.raises(KeyError):
        part.add(digest(2))
    for n in range(2000):
        ids.add(digest(n))
    with pytest.raises(AssertionError):
        part.add(digest(2))


@pytest.mark.long
def test_a_set_of_ids_grows_once_where_it_is_told_how_many_come() -> None:
    ids = IdSet()
    ids.reserve(100_000)
    sizes = set()
    for n in range(106_000):
        ids.add(digest(n))
        sizes.add(len(ids._slots))
    assert len(sizes) == 2
    assert max(sizes) < 23 * 106_000
    ids.add(digest(-1))
    for n in range(106_000, 110_000):
        ids.add(digest(n))
    assert all(digest(n) in ids for n in range(-1, 110_000))


@pytest.mark.parametrize("few", [0, 50])
def test_ids_that_begin_alike_are_told_apart(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.local.spill.FEW", few)
    ids = IdSet()
    alike = [b"\xff" * 15 + bytes([n]) * 17 for n in range(200)]
    for one in alike[::2]:
        ids.add(one)
    assert [one in ids for one in alike] == [True, False] * 100


@pytest.mark.parametrize("least", [0, 2, 4 << 10])
@pytest.mark.parametrize("held", [0, 1, 3, 5, 6])
def test_what_is_unread_comes_back_whole(
    held: int, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.worktree.pending_reads.PACKED_BYTES_LEAST", least)
    monkeypatch.setattr("metasync.worktree.pending_reads.HELD_MAX", held)
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    file, link = (tmp_path / "file").lstat(), (tmp_path / "link").lstat()
    unread = Unread()
    for prefix, files, links in [(b"", b"ab", b"l"), (b"d/", b"x", b""), (b"c/", b"", b"kl"), (b"e/", b"", b"")]:
        here = UnreadHere()
        for names, st in ((files, file), (links, link)):
            for n in range(len(names)):
                here.add(names[n : n + 1], st)
        unread.add(prefix, here)
    wanted = [(b"a", False), (b"b", False), (b"c/k", True), (b"c/l", True), (b"d/x", False), (b"l", True)]
    assert sorted((path, is_link) for path, is_link, _ in unread) == wanted
    if held >= 6:
        assert [path for path, _, _ in unread] == [path for path, _ in wanted]
    known = [path for path, is_link, seen in unread if seen is file and not is_link]
    assert len(known) == {0: 0, 1: 0, 3: 2, 5: 3, 6: 3}[held]
    assert (len(unread), unread.size_bytes) == (6, 12)


@pytest.mark.few(6)
@pytest.mark.parametrize("most", [1, 300, 20_000])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_built_one_by_one_are_those_of_the_tree(most: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    tree = {b"%05d" % n: file_entry(n) for n in rng.sample(range(9000), rng.choice([5, 900, 4000]))}
    for n in rng.sample(range(9000), 30):
        tree[b"%05d" % n] = DIR
        tree.update({b"%05d/%s" % (n, name): file_entry(n) for name in rng.sample([b"a", b"a-", b"b", b"c"], 2)})
        tree[b"%05d/d" % n] = DIR
        tree[b"%05d-x" % n] = file_entry(1)
    monkeypatch.setattr(walk_module, "BUILDING_ENTRIES_MAX", 20_000)
    root, nodes = build(tree, IDS)
    monkeypatch.setattr(walk_module, "BUILDING_ENTRIES_MAX", max(most, 2000))  # fewer might be one node after all
    made = list(build_nodes(sorted(tree.items()), IDS))
    assert made[-1][0] == root
    assert dict(made) == nodes
    assert walk(flatten(root), dict(made))[0] == tree


def test_a_path_without_a_directory_above_it_is_no_tree() -> None:
    for tree in ({b"a/b": DIR}, {b"a": file_entry(1), b"a/b": DIR}, {b"a": DIR, b"a/b/c": DIR}):
        with pytest.raises(KeyError):
            build(tree, IDS)


def pack_of(n: int, objects: int) -> tuple[PackRecord, tuple[Located, ...]]:
    one = make_record(n)
    rng = random.Random(n)
    return one, tuple(
        Located(ObjectKind.BLOB, rng.randbytes(32), 0, i, 1, 0) for i in range(objects)
    )  # fmt: skip


def make_record(n: int) -> PackRecord:
    from metasync.store.pack_format import HEADER_BYTES, Segment

    return PackRecord(digest(n), n, 1 << 20, bytes(HEADER_BYTES), (Segment(1 << 18, 1 << 20, digest(1)),))


def test_packed_objects_make_the_segments_that_the_values_do(monkeypatch: pytest.MonkeyPatch) -> None:
    packs = [pack_of(n, 300) for n in range(5)]
    packs[2] = (packs[2][0], packs[2][1] + packs[0][1][:5])  # the same object in two packs
    whole = make_segment(packs)
    (packed,) = segments_of((record, pack_objects(objects)) for record, objects in packs)
    assert encode_segment(packed) == encode_segment(whole)
    assert decode_segment(encode_segment(packed)).objects == whole.objects
    for record, objects in packs:
        for one in objects:
            assert (record, one) in packed.find(one.id)
    monkeypatch.setattr(index, "SEGMENT_OBJECTS_MAX", 650)
    several = list(segments_of((record, pack_objects(objects)) for record, objects in packs))
    assert [len(s.packs) for s in several] == [2, 2, 1]
    assert sum(map(len, several)) == len(whole)


@pytest.mark.parametrize("twin", [b"d/B", b"e", b"D", "d/ä".encode(), None])
def test_twins_are_found_among_many_names(twin: bytes | None) -> None:
    names = [b"d", b"d-", b"d/a", b"d/b", b"d/c/b", b"d/c", "d/Ä".encode(), b"E", b"f/b", b"f"]
    names += [twin] if twin else []
    some: Large[Entry] = Large(pack_entry, unpack_entry, ((name, DIR) for name in names))
    found = unportable(names, some, ascending=True)
    assert found == unportable(names, names)
    assert bool(found) == (twin is not None)


def test_a_scan_of_many_files_finds_what_one_of_few_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path / "w") as work:
        write(work.root, {b"d%d/f%d" % (i, j): b"%d" % j for i in range(4) for j in range(9)})
        (work.root / "link").symlink_to("x")
        few = work.scan(store=False)
        monkeypatch.setattr(scanning, "HELD_MAX", 10)
        monkeypatch.setattr("metasync.worktree.pending_reads.HELD_MAX", 10)
        monkeypatch.setattr(spill, "HELD_MAX", 3)
        many = work.scan()
        assert isinstance(many.tree.put, Large)
        assert many.tree == few.tree
        assert many.put_rows.keys() == few.put_rows.keys()
        assert many.files_read == few.files_read == 36
        work.base = dict(many.tree)
        work.tree.tick_past(work.tree.clock_ns(), 1.0)
        assert work.scan(ingest=ingest).tree == few.tree


def test_what_was_read_when_a_scan_broke_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading:
        rows: dict[bytes, Any]

        def begins(self, size_bytes: int, files: int) -> None:
            self.size_bytes, self.files = size_bytes, files

        def broken_off(self, rows: Any) -> None:
            self.rows = dict(rows)

    monkeypatch.setattr(scanning, "HELD_MAX", 3)
    monkeypatch.setattr("metasync.worktree.pending_reads.HELD_MAX", 3)
    with Workspace(tmp_path / "w") as work:
        write(work.root, {b"d/%d" % n: b"%d" % n for n in range(9)})
        reading, left = Reading(), [5]

        def some(fd: int, st: Any, _: object) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return ingest(fd, st)

        with pytest.raises(KeyboardInterrupt):
            work.scan(ingest=some, reading=reading)
        assert sorted(reading.rows) == [b"d/%d" % n for n in range(5)]
        assert (reading.size_bytes, reading.files) == (9, 9)


def test_very_many_paths_are_like_a_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "PAGE", 4)
    for count in (0, 1, 4, 5, 8, 21):
        plain = tuple(b"d/%d" % n for n in range(count))
        paths = Paths(iter(plain))
        assert paths == plain
        assert paths == Paths(plain)
        assert paths != (*plain, b"x")
        assert (len(paths), tuple(paths), bool(paths)) == (count, plain, bool(plain))
        assert [paths[i] for i in range(-count, count)] == [plain[i] for i in range(-count, count)]
        assert (paths[1:7], paths[:3], paths[-2:], paths[::-1]) == (plain[1:7], plain[:3], plain[-2:], plain[::-1])
        with pytest.raises(IndexError):
            paths[count]
        assert hash(paths) == hash(plain)


def test_what_is_new_is_told_alike_for_many_and_few() -> None:
    tree = {b"d": DIR, b"d/e": DIR, b"d/f": file_entry(1), b"d-": DIR, b"x": file_entry(2), b"d/e/g": DIR}
    many = Large(pack_entry, unpack_entry, tree.items())
    told = summary_of_new(many)
    assert told == summary_of_new(tree) == summary(tree, lambda _: None, tree.get)
    assert told.added == (b"d-", b"d/e/g", b"d/f", b"x")


def test_a_whole_push_of_many_files(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of a million files, with bounds for a few: pushed, changed, cloned."""
    monkeypatch.setattr(scanning, "HELD_MAX", 5)
    monkeypatch.setattr(spill, "HELD_MAX", 3)
    monkeypatch.setattr(spill, "PAGE", 4)
    monkeypatch.setattr(index, "TIER_BYTES_BASE", 1 << 20)  # or these would be merged at once, for they are small
    monkeypatch.setattr(index, "SEGMENT_OBJECTS_MAX", 10)
    monkeypatch.setattr(spill, "SPOOL_BYTES_HELD", 50)
    monkeypatch.setattr("metasync.store.packs.SPREAD_BYTES_LEAST", 100)
    monkeypatch.setattr("metasync.consensus.group.META_BYTES_TOGETHER", 0)
    monkeypatch.setattr("metasync.sync.packing.NODES_TOGETHER", 2)
    urls = lab.urls("one", "two", "three")
    w = lab.init(urls)
    files = {f"d{i}/f{j}": b"%d %d" % (i, j) for i in range(6) for j in range(7)}
    lab_write(w.directory, files)
    (w.directory / "empty").mkdir()
    first = w.push()
    assert sorted(first.changes.added) == sorted([*(name.encode() for name in files), b"empty"])
    assert w._db.get(TREE_KEY) is not None
    with w._session("check") as s:
        assert len(s.base().root.items) > 1
    lab_write(w.directory, {f"e{i}/f": b"%d" % i for i in range(9)})
    (w.directory / "d0" / "f0").unlink()
    second = w.push()
    assert (len(second.changes.added), second.changes.deleted) == (9, (b"d0/f0",))
    other = lab.clone(urls)
    assert tree_of(other.directory) == tree_of(w.directory)
    assert w.push().version is None
    assert w.check(read_data=True).problems == ()


@pytest.mark.parametrize("held", [0, 10, 1 << 20])
def test_what_is_put_away_comes_back(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPOOL_BYTES_HELD", held)
    spool, rng = Spool(), random.Random(1)
    put = [(data, spool.put(data)) for data in (rng.randbytes(n) for n in (5, 0, 7, 300, 1))]
    assert [spool.get(place) for _, place in put] == [data for data, _ in put]
    late = spool.put(b"late")
    assert (spool.get(put[2][1]), spool.get(late)) == (put[2][0], b"late")


def test_a_place_without_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill, "SPOOL_BYTES_HELD", 2)
    monkeypatch.setattr("os.write", full)
    with pytest.raises(WorkspaceError, match="No space left"):
        Spool().put(b"abc")


@pytest.mark.parametrize("held", [0, 2, 100])
def test_from_a_key_on_and_what_is_there_twice(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "HELD_MAX", held)
    monkeypatch.setattr(spill, "PAGE", 2)
    values = [b"1xxA", b"1xyB", b"2xxC", b"1xxD", b"1zz", b"1yzE", b"1", b"1yz"]
    some = Large(bytes, bytes, ((b"%d" % n, value) for n, value in enumerate(values)))
    assert [key for key, _ in some.pairs(b"3")] == [b"4", b"5", b"6", b"7"]
    assert [key for key, _ in some.pairs(b"")] == sorted(some)
    assert list(some.pairs(b"7")) == []
    assert sorted(some.repeated(slice(1, 3), b"1")) == [b"xx", b"yz"]
    assert list(some.repeated(slice(1, 3), b"2")) == []
    some.close()
    with pytest.raises(WorkspaceError, match="temporary file"):
        list(some.repeated(slice(1, 3), b"1"))


def test_a_mapping_grows_out_of_memory() -> None:
    few = {b"%d" % n: n for n in range(3)}
    assert grown(few, 3, lambda n: b"%d" % n, int) is few
    many = {b"%d" % n: n for n in range(4)}
    out = grown(many, 3, lambda n: b"%d" % n, int)
    assert isinstance(out, Large)
    assert out == many
    assert grown(out, 3, lambda n: b"%d" % n, int) is out
