"""What versions need and no pack has: how it is marked, and where a device looks for it, one step at a time.

Objects have names of one letter here.
"""

from __future__ import annotations

import stat
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.errors import DamagedError
from metasync.events import Progress
from metasync.maintenance.repair import matching_files, needs
from metasync.maintenance.repair.needs import Needs
from metasync.objects.model import Entry, Kind, ObjectKind

BLOB, FILE, DIR, SNAPSHOT = ObjectKind.BLOB, ObjectKind.FILE, ObjectKind.DIR, ObjectKind.SNAPSHOT


class Packed:
    """An upload, and what it got."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        self.ids.append(object_id)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self.ids


# ---- the mark


class Marked:
    """A mark that walks objects as a test says: each with what it is made of, a list with its level.

    `named`: what the agreed index names. `beside`: what else the index has that is marked with.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, named: str = "", beside: str = "", snapshot: bool = True,
        snapshots: str = "", here: str = "", pushes: str = "",
    ) -> None:  # fmt: skip
        self.loaded: list[Any] = []
        self.walked: list[Any] = []
        self.nodes: dict[bytes, Any] = {}
        index = Index(named + beside, snapshots)
        agreed = SimpleNamespace(index=Index(named), state=SimpleNamespace(master=b"m"), snapshot=snapshot or None)
        db = SimpleNamespace(get_object=lambda i: i if i in here.encode() else None)
        s: Any = SimpleNamespace(listener=lambda _: None, contents=lambda _: self, db=db)
        with monkeypatch.context() as patch:
            patch.setattr(needs, "replace", lambda what, **_: what)
            patch.setattr(needs, "mark", lambda ids, marked, *_: ids)
            patch.setattr(needs.unreadable, "list_or_older", lambda *_: SimpleNamespace(replacing=None))
            ids = [SimpleNamespace(id=i.encode()) for i in pushes]
            patch.setattr(needs.lost_paths, "pushes", lambda *_: iter(ids))
            patch.setattr(Needs, "_watched", lambda _, pushes: self.walked.append(pushes))
            patch.setattr(needs, "SNAPSHOTS_TOGETHER", 2)
            self.needs = Needs(s, agreed, index)  # type: ignore[arg-type]
        monkeypatch.setattr(needs.file, "decode_node", lambda data: self.nodes[data])

    def walk(self, *_: Any) -> None:
        pass

    def load(self, kind: ObjectKind, ids: list[bytes], *_: Any) -> None:
        assert kind is SNAPSHOT
        self.loaded.append(b"".join(ids).decode())

    def watch(self, *steps: tuple[ObjectKind, str]) -> None:
        """Has a walk get these objects, which it asked for."""

        def walk() -> Any:
            for kind, ids in steps:
                yield kind, [i.encode() for i in ids]

        walking = self.needs._watched(walk())
        asked = next(walking, None)
        while asked is not None:
            try:
                asked = walking.send({i: i for i in asked[1]})  # type: ignore[misc]
            except StopIteration:
                break

    def parts(self, of: str, ids: str, level: int = 0) -> None:
        self.nodes[of.encode()] = SimpleNamespace(level=level, parts=[SimpleNamespace(id=i.encode()) for i in ids])

    def broken(self) -> str:
        return "".join(sorted(i.decode() for i in self.needs.broken()))


class Index:
    def __init__(self, named: str, snapshots: str = "") -> None:
        self.named, self.snapshots = named.encode(), snapshots

    def __contains__(self, object_id: Any) -> bool:
        return object_id in self.named

    def ids(self, kind: ObjectKind) -> list[bytes]:
        assert kind is SNAPSHOT
        return [i.encode() for i in self.snapshots]


def test_what_is_needed_is_lacking_or_missing_by_what_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Marked(monkeypatch, named="a", beside="b").needs
    for i in (b"a", b"b", b"c"):
        assert i not in mark
        mark.add(i)
        assert i in mark
    assert dict(mark.lacking) == {b"b": b"", b"c": b""}
    assert [i in mark.missing for i in (b"a", b"b", b"c")] == [False, False, True]


def test_of_what_this_device_has_though_it_is_in_no_index_the_kind_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Marked(monkeypatch, named="a")
    mark.needs.add(b"b")
    mark.watch((DIR, "ab"))
    mark.needs.add(b"b")
    assert dict(mark.needs.lacking) == {b"b": bytes([DIR])}


def test_a_file_is_broken_of_which_a_part_is_nowhere_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of lists `t` has all of its parts, and one of these has not; all of `s` is there."""
    mark = Marked(monkeypatch, named="stuvwd", beside="b")
    mark.parts("t", "uv", level=1)
    mark.parts("s", "v", level=1)
    mark.parts("u", "bx")
    mark.parts("v", "bb")
    mark.parts("w", "bb")
    mark.parts("d", "x")
    mark.watch((DIR, "d"), (FILE, "stw"), (FILE, "uv"))
    assert mark.broken() == "tu"


def test_snapshots_that_are_not_here_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Marked(monkeypatch, snapshots="abcd", here="b", pushes="dc")
    assert mark.loaded == ["ac", "d"]
    assert mark.walked == [[b"m", b"d", b"c"]]
    assert Marked(monkeypatch, pushes="dc", snapshot=False).walked == [[b"d", b"c"]], "the newest one was left out"


# ---- lists of chunks


def lists(known: str = "") -> tuple[Any, Packed]:
    upload = Packed()
    return matching_files._Lists(lambda i: i in known.encode() or i in upload, upload), upload  # type: ignore[arg-type]


def test_a_list_waits_for_its_chunks_and_for_lists_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {b"t": (1, b"u"), b"u": (0, b"bc"), b"v": (0, b"x"), b"k": (0, b"b")}

    def node(data: bytes) -> Any:
        level, ids = nodes[data]
        return SimpleNamespace(level=level, parts=[SimpleNamespace(id=bytes([i])) for i in ids])

    monkeypatch.setattr(matching_files.file, "decode_node", node)
    waiting, upload = lists("bk")
    for i in (b"t", b"u", b"v", b"k"):
        waiting.store(FILE, i, i)
    waiting.store(BLOB, b"b", b"known")
    waiting.store(BLOB, b"c", b"not known")
    assert upload.ids == [b"c"]
    waiting.end()
    assert upload.ids == [b"c", b"u", b"t"]


def test_lists_that_wait_have_a_bound_and_each_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching_files, "LISTS_BYTES_MAX", 10)
    monkeypatch.setattr(matching_files.file, "decode_node", lambda _: SimpleNamespace(level=0, parts=()))
    waiting, upload = lists()
    for i, size in ((b"a", 4), (b"a", 4), (b"b", 5), (b"c", 2)):
        waiting.store(FILE, i, bytes(size))
    waiting.end()
    assert sorted(upload.ids) == [b"a", b"b"]


# ---- what is looked for, and where


class Finding:
    """Objects that may be missing, with their kinds: which are loaded, and which are looked for in files.

    `known`: what a pack has. `loads`: what this device has of trees and lists.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *missing: tuple[str, Any], known: str = "", loads: str = ""
    ) -> None:
        self.loaded: list[tuple[ObjectKind, str]] = []
        self.searched: list[str] | None = None
        self.asked: list[bytes] = []
        self.upload, self.known, self.loads = Packed(), known.encode(), loads.encode()
        self.chunks: dict[bytes, list[bytes]] = {}
        monkeypatch.setattr(matching_files, "bases_of", lambda _: {b"o": b"an old chunk"})
        monkeypatch.setattr(matching_files, "_not_given", lambda *_: ((i.encode(), kind) for i, kind in missing))
        monkeypatch.setattr(matching_files, "_Search", self._search)
        monkeypatch.setattr(matching_files, "NODES_TOGETHER", 3)
        monkeypatch.setattr(matching_files.walk, "chunks", lambda ids: ids)
        s: Any = SimpleNamespace(contents=lambda _: self, listener=lambda _: None)
        agreed: Any = SimpleNamespace(index=None)
        self.is_whole = matching_files.find(s, agreed, self._known, self.upload, (), None)  # type: ignore[arg-type]

    def _known(self, object_id: bytes) -> bool:
        self.asked.append(object_id)
        return object_id in self.upload or object_id in [bytes([k]) for k in self.known]

    def _search(self, _s: Any, is_wanted: Any, _store: Any) -> Any:
        self.searched = [bytes([i]).decode() for i in b"abcdnotxyz" if is_wanted(bytes([i]))]
        return SimpleNamespace(run=lambda: None)

    def load(self, kind: ObjectKind, ids: list[bytes], *_: Any) -> dict[bytes, bytes]:
        self.loaded.append((kind, b"".join(ids).decode()))
        return {i: b"data" for i in ids if i in self.loads}

    def walk(self, ids: tuple[bytes, ...]) -> Any:
        if ids[0] not in self.chunks:
            raise DamagedError("the list cannot be read")
        return {ids[0]: [SimpleNamespace(id=c) for c in self.chunks[ids[0]]]}


def test_contents_are_taken_from_old_chunks_or_looked_for_and_trees_loaded_from_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kind at a time, some together. What is known by then is looked for nowhere."""
    missing = (("x", BLOB), ("o", BLOB), ("a", DIR), ("b", SNAPSHOT), ("c", DIR), ("d", DIR), ("n", None), ("y", DIR))
    finding = Finding(monkeypatch, *missing, known="y", loads="abd")
    assert sorted(finding.loaded, key=lambda one: one[1]) == [(DIR, "ac"), (SNAPSHOT, "b"), (DIR, "d")]
    assert sorted(finding.upload.ids) == [b"a", b"b", b"d", b"o"]
    assert finding.searched == ["c", "n", "x"]


def test_where_all_is_here_no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(monkeypatch, ("a", DIR), ("o", BLOB), ("y", DIR), known="y", loads="a")
    assert finding.searched is None
    assert finding.loaded == [(DIR, "a")]


def test_a_file_is_whole_if_its_list_and_all_chunks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(monkeypatch, known="cxylmn")
    finding.chunks = {b"l": [b"x", b"y"], b"m": [b"x", b"z"], b"k": [b"x"]}

    def whole(root: bytes, content: bytes = b"h") -> bool:
        return finding.is_whole(Entry(Kind.FILE, 0o644, 0, 9, content, root=root))

    assert [whole(root) for root in (b"l", b"m", b"n", b"k")] == [True, False, False, False]
    finding.upload.add(FILE, b"u", b"")
    assert whole(b"u"), "it waited for its chunks"
    finding.asked.clear()
    assert [whole(b"", content) for content in (b"c", b"z")] == [True, False]
    assert finding.asked == [b"c", b"z"]


def test_what_a_delta_is_made_of_may_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = [SimpleNamespace(id=i, kind=BLOB) for i in (b"a", b"b")]
    index: Any = SimpleNamespace(inside=lambda _: inside)
    monkeypatch.setattr(matching_files.deltas, "dangling", lambda _: {"a pack": "its record"})

    class Some(set[bytes]):
        def __init__(self) -> None:
            super().__init__({b"b"})
            self.lacking = {b"l": b"", b"d": bytes([DIR])}

    also: Any = [SimpleNamespace(id=b"u", kind=FILE)]
    found = list(matching_files._not_given(index, Some(), also))  # type: ignore[arg-type]
    assert found == [(b"l", None), (b"d", DIR), (b"u", FILE), (b"b", BLOB)]


# ---- the files


class Folder:
    """A folder of files, and one of the state beside it; `read`: which were read."""

    def __init__(self) -> None:
        self.stats: dict[bytes, Any] = {}
        self.opened = stat.S_IFREG
        self.read: list[bytes] = []
        self.checked = 0
        self.told: list[Any] = []
        self.disk = SimpleNamespace(
            lstat=lambda name, _: self.stats[name],
            names=lambda _: [b"replaced"],
            opened=self._opened,
            fstat=lambda _: SimpleNamespace(st_mode=self.opened),
        )
        self.s: Any = SimpleNamespace(
            tree=self, check=self._check, listener=self.told.append, ingest=lambda **_: self._ingest
        )
        self.search = matching_files._Search(self.s, lambda _: True, lambda *_: None)

    def _check(self) -> None:
        self.checked += 1

    @contextmanager
    def _opened(self, name: bytes, *_: Any) -> Any:
        self.read.append(name)
        yield 3

    def _ingest(self, *_: Any) -> Any:
        return SimpleNamespace(root=b"")

    def dir(self, _: bytes) -> int:
        return 1

    def state_dir(self) -> int:
        return 2

    def state_tree(self, name: bytes) -> Any:
        return SimpleNamespace(disk=self.disk, dir=self.dir, name=name)


def file_stat(size: int = 1, mode: int = stat.S_IFREG) -> Any:
    return SimpleNamespace(st_mode=mode, st_size=size)


def test_only_files_with_bytes_that_may_have_it_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    folder.stats = {
        b"file": file_stat(), b"proven": file_stat(), b"empty": file_stat(0), b"pipe": file_stat(1, stat.S_IFIFO),
        b"link": file_stat(1, stat.S_IFLNK),
    }  # fmt: skip
    monkeypatch.setattr(folder.search, "_may_have", lambda path, _: path != b"proven")
    for name in folder.stats:
        folder.search._look(folder, name)  # type: ignore[arg-type]
    assert folder.read == [b"file"]


def test_a_file_of_the_state_has_no_row_that_proves_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the folder may have the same path."""
    folder = Folder()
    folder.stats = {b"proven": file_stat()}
    monkeypatch.setattr(folder.search, "_may_have", lambda *_: False)
    folder.search._look(folder.state_tree(b"replaced"), b"proven")
    assert folder.read == [b"proven"]


def test_what_became_a_pipe_meanwhile_is_not_read() -> None:
    folder = Folder()
    folder.stats, folder.opened = {b"f": file_stat()}, stat.S_IFIFO
    with pytest.raises(OSError, match="no file any more"):
        folder.search._look(folder.state_tree(b"replaced"), b"f")


def test_a_search_ends_when_it_is_told_to_and_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, looked = Folder(), list[bytes]()
    monkeypatch.setattr(matching_files, "TOLD_EVERY", 2)
    monkeypatch.setattr(matching_files, "_files", lambda tree: [b"a", b"b"] if tree is folder else [b"c"])

    def look(_tree: Any, path: bytes) -> None:
        looked.append(path)
        if path == b"a":
            raise OSError("it is gone")

    monkeypatch.setattr(folder.search, "_look", look)
    folder.search.run()
    assert (looked, folder.checked) == ([b"a", b"b", b"c"], 3)
    assert [event.done for event in folder.told if isinstance(event, Progress)] == [2]
