"""What nobody has is named by path and versions, once: files, chunks of files, and directories."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from content_kit import noise
from workspace_kit import Lab, tree_of, write

from metasync.errors import DamagedError, MetaSyncError, UnreachableError
from metasync.maintenance.repair import lost_paths
from metasync.objects import directory, walk_large
from metasync.objects.model import Entry, Kind, ObjectKind
from metasync.objects.walk import chunks, find
from metasync.session import agreement
from metasync.store.index import PackRecord
from metasync.store.pack_format import WHOLE
from metasync.store.retained import Dropped, Retained
from metasync.store.retention import Keep
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


def versions(lab: Lab) -> Workspace:
    """Six versions: 1 has the folders old, new and kept; 2 to 6 each change a file of one of them."""
    w = lab.init(lab.urls(*NAMES))
    write(
        w.directory, {f"{d}/{f}": b"%s %s 1" % (d.encode(), f.encode()) for d in ("old", "new", "kept") for f in "xy"}
    )
    w.push()
    for v, name in enumerate(("kept/x", "old/x", "new/x", "old/x", "kept/y"), 2):
        write(w.directory, {name: b"%s %d" % (name.encode(), v)})
        w.push()
    return lab.reopen(w)


def entry_at(w: Workspace, version: int, path: bytes) -> Entry:
    """What a version has at a path."""
    with w._session("test") as s:
        newest = agreement.newest(s)
        contents = s.contents(newest)
        roots = {v.number: v.root for v in lost_paths.pushes(s, contents, newest)}
        at = max(v for v in roots if v <= version)
        entry = contents.walk(find(roots[at], path)).entry
        assert entry is not None
        return entry


def pack_of(w: Workspace, object_id: bytes) -> PackRecord:
    with w._session("test") as s:
        ((record, _),) = agreement.newest(s).index.find(object_id)
        return record


def lose_pack(lab: Lab, record: PackRecord) -> None:
    """Deletes every copy of a pack."""
    copies = [p for p in (lab.root / "stores").rglob(f"packs/*/*/*{record.name.hex()[-40:]}*") if p.is_file()]
    assert copies
    for path in copies:
        path.unlink()


def forget_cached(w: Workspace) -> None:
    """Drops all directories and snapshots that a device keeps."""
    with w._session("test") as s:
        index = agreement.newest_seen(s).index
        w._db.drop_objects([i for i, _ in w._db.objects_by_age() if i in index])


def lose_directory(lab: Lab, w: Workspace, version: int, path: bytes, *devices: Workspace) -> None:
    """Has everybody lose a directory of a version, with all that lies in the same pack."""
    lose_pack(lab, pack_of(w, entry_at(w, version, path).content))
    for device in (w, *devices):
        forget_cached(device)


def told(report: Any) -> list[tuple[bytes, int, int]]:
    return [(g.path, g.first, g.last) for g in report.repaired.gone]


def test_a_lost_directory_of_an_older_version_is_named_with_its_versions(lab: Lab) -> None:
    """Version 3 changed old, which version 5 changed again: versions 3 and 4 have what is lost. The snapshot of version
    3, and so all of it, lay beside it."""
    w = versions(lab)
    lose_directory(lab, w, 3, b"old")
    report = w.check(repair=True)
    assert told(report) == [(b"/", 3, 3), (b"old/", 4, 4)]
    assert report.nowhere == (), "the newest version has all"
    again = w.check(repair=True)
    assert again.repaired is None and not again.problems, "it is named once"


def test_a_lost_directory_of_the_newest_version_is_named_by_check(lab: Lab) -> None:
    w = versions(lab)
    lose_directory(lab, w, 4, b"new")
    report = w.check()
    assert b"new/" in report.nowhere
    assert lab.cli("check").code == 7
    assert "lost: new/" in lab.cli("check").out
    assert told(w.check(repair=True)) == [(b"/", 4, 4), (b"new/", 5, 6)]
    assert b"new/" in w.check().nowhere, "no pack has it any more"


def test_whoever_keeps_a_directory_stores_it_again(lab: Lab) -> None:
    w = versions(lab)
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    lose_directory(lab, w, 4, b"new")
    w.check(repair=True)
    assert b"new/" in phone.check().nowhere, "that this device has it at hand helps no other"
    assert phone.check(repair=True).nowhere == ()
    assert w.check(read_data=True).nowhere == ()
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    assert tree_of(fresh.directory) == tree_of(w.directory)


def test_what_lies_before_a_lost_version_is_named_too(lab: Lab) -> None:
    w = versions(lab)
    lose_pack(lab, pack_of(w, entry_at(w, 2, b"kept").content))
    lose_directory(lab, w, 4, b"new")
    report = w.check(repair=True)
    assert told(report) == [(b"/", 2, 2), (b"kept/", 3, 3), (b"/", 4, 4), (b"kept/", 5, 5), (b"new/", 5, 6)]


def test_of_versions_before_a_gap_the_losses_are_named_too(lab: Lab) -> None:
    """Versions 3 to 5 are dropped: 1 and 2 are looked at all the same."""
    w = versions(lab)
    w.tag("1", "first")
    w.tag("2", "second")
    w.gc(Keep(last=1, tag=("first", "second")))
    with w._session("test") as s:
        newest = agreement.newest(s)
        assert [v.number for v in lost_paths.pushes(s, s.contents(newest), newest)] == [6, 2, 1]


def test_a_pull_names_the_directory_that_it_cannot_read(lab: Lab) -> None:
    w = versions(lab)
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    for name in ("new/z", "kept/z"):
        write(w.directory, {name: b"z"})
        w.push()
    lose_directory(lab, w, 8, b"new")
    with pytest.raises(MetaSyncError, match="version 8, which laptop wrote, cannot be read") as caught:
        lab.reopen(phone).pull()
    assert "what is in new/ is not known" in caught.value.message


def test_a_directory_of_many_nodes_of_which_one_is_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other nodes say is told as ever; a file that is lost as well is named too."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {f"long/{i:05d}": b"%d" % i for i in range(3000)})
    w.push()
    root = entry_at(w, 1, b"long")
    gone = entry_at(w, 1, b"long/00000")
    with w._session("test") as s:
        contents = s.contents(agreement.newest(s))
        node = directory.decode_node(contents.load(ObjectKind.DIR, [root.content])[root.content])
        assert len(node.children) > 1
        leaf = node.children[-1][1]
        found = lost_paths.gone_files(s, agreement.newest(s), {leaf, gone.content})
    assert [(g.path, g.first, g.last) for g in found] == [(b"long/", 1, 1), (b"long/00000", 1, 1)]


@pytest.mark.long
def test_a_chunk_that_another_device_gave_up_is_missed_and_stored_again(lab: Lab) -> None:
    """A file in chunks: its list of chunks is there, and one of them is in no pack any more."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"large": noise(20_000_000, 1), "small": b"small"})
    w.push()
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    entry = entry_at(w, 1, b"large")
    assert entry.kind is Kind.FILE and entry.root
    with w._session("test") as s:
        pieces = s.contents(agreement.newest(s)).walk(chunks((entry.root,)))[entry.root]
    (Path(phone.directory) / "large").unlink()  # it has it no more
    lose_pack(lab, pack_of(w, pieces[2].id))
    assert (b"large", 1, 1) in told(phone.check(repair=True))
    w = lab.reopen(w)
    report = w.check()
    assert report.nowhere == (b"large",)
    assert w.check(repair=True).nowhere == ()
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    assert tree_of(fresh.directory) == tree_of(w.directory)


@pytest.mark.long
def test_what_a_collection_deletes_meanwhile_is_not_called_lost(lab: Lab) -> None:
    w = versions(lab)
    write(w.directory, {"new/large": noise(20_000_000, 1)})
    w.push()
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    with phone._session("test") as s:
        agreed = agreement.newest(s)
        shutil.rmtree(w.directory / "new")
        w.push(force=True)
        w.gc(Keep(last=1))
        phone._db.drop_objects([i for i, _ in phone._db.objects_by_age() if i in agreed.index])
        assert lost_paths.nowhere(s, agreed) == ()


@pytest.mark.parametrize("few", [True, False])
def test_it_says_the_same_whether_paths_are_many_or_few(lab: Lab, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr(lost_paths, "PATHS_HELD", 3)
        monkeypatch.setattr(walk_large, "BATCH_BYTES", 1)
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {f"d{i:02d}/{f}": b"%d" % i + f.encode() for i in range(20) for f in "xy"})
    w.push()
    for path in (p for p in (lab.root / "stores").rglob("packs/*/*/*") if p.is_file()):
        path.unlink()
    for i in range(10):
        (w.directory / f"d{i:02d}/x").write_bytes(b"edited")
    assert told(w.check(repair=True)) == [(b"d%02d/x" % i, 1, 1) for i in range(10)]
    assert [*w.check().nowhere] == [b"d%02d/x" % i for i in range(10)]


# ---- each rule of what counts as lost by itself

AWAY, GONE = UnreachableError("a: away", next_step=""), DamagedError("no intact copy")
FILE = Entry(Kind.FILE, 0o644, 0, 10, b"content", b"root")


class FakeIndex(set[bytes]):
    """Names these objects, each whole."""

    def find(self, object_id: bytes) -> list[tuple[None, Any]]:
        return [(None, SimpleNamespace(encoding=WHOLE))] * (object_id in self)


def contents_of(index: FakeIndex, chunks: dict[bytes, list[Any]], failing: dict[bytes, MetaSyncError]) -> Any:
    """Gives the chunks of these files. Of one of `failing` it raises that, and has read by a newer index since."""

    def walk(roots: tuple[bytes, ...]) -> dict[bytes, list[Any]]:
        for root in roots:
            if root in failing:
                found.index = newer
                raise failing[root]
        return {root: chunks[root] for root in roots}

    newer = FakeIndex(index - {b"left out"})
    found = SimpleNamespace(index=index, walk=walk)
    return found


def test_what_a_backend_that_is_away_may_have_is_not_lost() -> None:
    contents = SimpleNamespace(index=FakeIndex({b"a", b"b"}))
    unread = lost_paths.Unread(cast(Any, contents))
    unread([b"a"], AWAY)
    unread([b"a"], UnreachableError("another", next_step=""))
    assert (unread.lost, unread.why) == (set(), AWAY)
    unread([b"x"], GONE)
    assert unread.lost == {b"x"}, "by the index that was asked for, whatever that names"
    contents.index = FakeIndex({b"b"})
    unread([b"a", b"b"], GONE)
    assert unread.lost == {b"x", b"b"}, "what a newer one does not name went on purpose"


@pytest.mark.parametrize(
    ("error", "root", "unsure", "told"),
    [
        (GONE, b"root", False, True), (GONE, b"root", True, True), (GONE, b"left out", False, False),
        (AWAY, b"root", False, False), (AWAY, b"root", True, True),
    ],
)  # fmt: skip
def test_a_file_whose_chunks_cannot_be_read_is_lacking_if_none_can_have_them(
    error: MetaSyncError, root: bytes, unsure: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two files: the other one is looked at by itself then."""
    monkeypatch.setattr(lost_paths.line, "all_named", lambda task, _: task)
    monkeypatch.setattr(lost_paths.walk, "chunks", lambda roots: roots)
    index = FakeIndex({b"root", b"left out", b"good", b"chunk"})
    contents = contents_of(index, {b"good": [SimpleNamespace(id=b"chunk")]}, {root: error})
    entries = [(b"good", FILE._replace(root=b"good")), (b"bad", FILE._replace(root=root))]
    found = lost_paths.lacking(contents, cast(Any, SimpleNamespace(index=index)), entries, unsure=unsure)
    assert [path for path, _ in found] == [b"bad"] * told


def test_files_of_which_a_part_is_not_named_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, those in chunks, and one of which a chunk alone is missing; however many are looked at together."""
    monkeypatch.setattr(lost_paths.line, "all_named", lambda task, _: task)
    monkeypatch.setattr(lost_paths.walk, "chunks", lambda roots: roots)
    monkeypatch.setattr(lost_paths, "CHUNKED_TOGETHER_BYTES", 15)
    index = FakeIndex({b"here", b"root", b"other", b"chunk"})
    parts = {
        b"root": [SimpleNamespace(id=b"chunk")],
        b"other": [SimpleNamespace(id=b"chunk"), SimpleNamespace(id=b"-")],
    }
    entries = {
        b"whole": FILE._replace(content=b"here", root=b""), b"gone": FILE._replace(root=b""),
        b"empty": FILE._replace(root=b"", size=0), b"link": Entry(Kind.SYMLINK, 0, 0, 4, b"none"),
        b"1": FILE, b"2": FILE._replace(root=b"other"), b"3": FILE, b"4": FILE._replace(root=b"nowhere"),
    }  # fmt: skip
    contents, agreed = contents_of(index, parts, {}), SimpleNamespace(index=index)
    found = lost_paths.lacking(contents, cast(Any, agreed), entries.items(), unsure=False)
    assert {path for path, _ in found} == {b"gone", b"2", b"4"}


def test_paths_are_told_in_their_order() -> None:
    found = lost_paths.Found()
    for path in (b"b", b"a", b"b"):
        found.add(path)
    assert found.all() == (b"a", b"b")


@pytest.mark.parametrize(
    ("root", "index", "error", "told", "notices"),
    [
        (b"root", {b"master"}, None, (), 0),
        (b"root", set(), None, (b"/",), 0),
        (b"root", {b"master"}, AWAY, (), 1),
        (None, set(), AWAY, (), 0),  # before the first push
    ],
)
def test_a_newest_version_whose_snapshot_no_pack_has_is_lost_and_one_that_is_away_is_said_to_be(
    root: bytes | None,
    index: set[bytes],
    error: MetaSyncError | None,
    told: tuple[bytes, ...],
    notices: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def walk(_: object, on_lost: lost_paths.Unread) -> None:
        if error is not None:
            on_lost((b"node",), error)

    monkeypatch.setattr(lost_paths, "gather", lambda *_: None)
    contents = SimpleNamespace(index=FakeIndex(index), walk=walk, size_of=None)
    said: list[object] = []
    s = SimpleNamespace(contents=lambda _: contents, listener=said.append)
    agreed = SimpleNamespace(tree_root=root, index=contents.index, state=SimpleNamespace(master=b"master"))
    assert lost_paths.nowhere(cast(Any, s), cast(Any, agreed)) == told
    assert len(said) == notices


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (FILE, ()), (FILE._replace(root=b"", content=b"gone"), (b"f",)),
        (FILE._replace(root=b"gone"), (b"f",)),  # though this device has the list of its chunks
        (FILE._replace(root=b"half"), (b"f",)),
        (Entry(Kind.SYMLINK, 0, 0, 4, b"gone"), ()),  # what it leads to stands in its entry
    ],
)  # fmt: skip
def test_a_file_of_an_older_version_is_gone_with_its_bytes_a_chunk_or_its_list(
    entry: Entry, told: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(step: Any, **_: object) -> Any:
        return step() if callable(step) else {root: [SimpleNamespace(id=parts[root])] for root in step}

    parts = {b"root": b"chunk", b"gone": b"chunk", b"half": b"gone"}
    monkeypatch.setattr(lost_paths.walk, "chunks", lambda roots: roots)
    monkeypatch.setattr(lost_paths, "compare", lambda *given: lambda: given[3]([(b"f", entry, None)]))
    ranges = lost_paths._Ranges(cast(Any, SimpleNamespace(index=FakeIndex(), walk=walk, size_of=None)), {b"gone"})
    ranges.go_back(lost_paths._Version(1, b"tree"), None)
    assert [g.path for g in ranges.all(1)] == [*told]


@pytest.mark.parametrize(("error", "told"), [(GONE, [(b"d/", 1, 1)]), (AWAY, [])])
def test_a_directory_that_is_found_lost_on_the_way_is_told_too(
    error: MetaSyncError, told: list[tuple[bytes, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knew that it is gone; one that is away may have it."""

    def walk(step: Any, on_lost: lost_paths.Unread) -> None:
        on_lost((b"node",), error)
        step()

    monkeypatch.setattr(lost_paths, "compare", lambda *given: lambda: given[5].told(b"d/", b"node"))
    contents = SimpleNamespace(index=FakeIndex({b"node"}), walk=walk, size_of=None)
    ranges = lost_paths._Ranges(cast(Any, contents), set())
    ranges.go_back(lost_paths._Version(1, b"tree"), None)
    assert [(g.path, g.first, g.last) for g in ranges.all(1)] == told


@pytest.mark.parametrize(
    ("unread", "states", "dropped", "told"),
    [
        ("", "ABCD", (), "4D 3C 2B 1A"),
        ("C", "ABCD", (), "4D 3- 2B 1A"),
        ("BC", "ABCD", (), "4D 3- 2- 1A"),
        ("A", "ABCD", (), "4D 3C 2B 1-"),
        ("C", "ABCCD", (), "5D 3- 2B 1A"),  # a version without a push is of the push before it
        ("C", "  CD", (), "4D"),  # which version brought it is not known
        ("BC", "ABCD", ((2, 2, "A"),), "4D 3- 1A"),  # a version that was dropped is not lost
        ("C", "ABCCD", ((3, 3, "B"),), "5D"),
    ],
)
def test_the_line_goes_on_past_a_lost_snapshot_by_the_states(
    unread: str, states: str, dropped: tuple[tuple[int, int, str], ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`states`: the snapshot that each version from 1 on names; a space: its state is not known."""
    made = {name.encode(): states.index(name) + 1 for name in states}
    before = dict(zip(b"DCB", b"CBA", strict=True))

    def load(_: ObjectKind, ids: list[bytes]) -> dict[bytes, bytes]:
        if ids[0].decode() in unread:
            raise GONE
        return {ids[0]: ids[0]}

    def snapshot(name: bytes) -> Any:
        parents = [bytes([before[name[0]]])] if name[0] in before else []
        return SimpleNamespace(root=name, parents=parents, version=made[name])

    def state(_: object, v: int, __: object) -> Any:
        name = states[v - 1] if v else ""
        if name == " ":
            raise GONE
        return SimpleNamespace(v=v, master=name.encode() or lost_paths.ZERO_HASH)

    retained = Retained(tuple(Dropped(first, to, below.encode()) for first, to, below in dropped))
    monkeypatch.setattr(lost_paths.unreadable, "list_or_older", lambda *_: retained)
    monkeypatch.setattr(lost_paths, "decode_snapshot", snapshot)
    monkeypatch.setattr(lost_paths, "version_of", lambda s: s.version)
    s = SimpleNamespace(runtime=SimpleNamespace(run=lambda task: task), group=SimpleNamespace(state_at=state))
    agreed = SimpleNamespace(state=state(None, len(states), None))
    line = lost_paths.pushes(cast(Any, s), cast(Any, SimpleNamespace(load=load)), cast(Any, agreed))
    assert " ".join(f"{v.number}{(v.root or b'-').decode()}" for v in line) == told
