"""Chunks that replace others are stored as deltas, on top of what the agreed index holds, or whole."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from content_kit import noise
from workspace_kit import PASSPHRASE, Lab, flip, tree_of, write

from metasync.errors import DamagedError, WorkspaceError
from metasync.local.state_keys import BASES_KEY
from metasync.objects import delta
from metasync.objects.model import Chunk, ObjectKind
from metasync.runtime.sizes import DISK_MARGIN_BYTES
from metasync.session import agreement
from metasync.store import deltas, retention
from metasync.store.index import Index
from metasync.store.pack_format import DELTA
from metasync.sync.old_chunks import OldChunks
from metasync.sync.packing import Packing
from metasync.sync.push import _Push
from metasync.sync.replaced_chunks import FileChunks
from metasync.transfer.estimates import Estimates
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

NAMES = ("a", "b", "c")
LARGE = 400_000  # a file of several chunks: of 256 KiB on average
SHORT: Final = 15_000  # bytes that no seed of the chunker cuts


def edited(data: bytes, n: int) -> bytes:
    """The same with a few bytes more, at a place that `n` draws."""
    at = random.Random(n).randrange(len(data))
    return data[:at] + b"edit %d" % n + data[at:]


def history(n: int, size: int = LARGE) -> list[bytes]:
    """A document and its edits."""
    docs = [noise(size, 1)]
    for i in range(n):
        docs.append(edited(docs[-1], i))
    return docs


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document of 90,000 bytes is one chunk, whatever the workspace's seed is: some cut it in two."""
    monkeypatch.setattr("metasync.objects.chunker._Cutter._is_cut", lambda *_: False)


def index_of(w: Workspace) -> Index:
    with w._session("test") as s:
        return agreement.newest(s).index


def depths(w: Workspace) -> list[int]:
    """The depths of all blobs, ascending."""
    index = index_of(w)
    return sorted(deltas.depth_of(index, i) or 0 for i in index.ids(ObjectKind.BLOB))


def blob(w: Workspace, data: bytes) -> bytes:
    with w._session("test") as s:
        return s.ids.of(ObjectKind.BLOB, data)


def stored(lab: Lab, name: str = "a") -> int:
    return sum(p.stat().st_size for name in NAMES for p in lab.objects(name, "packs"))


def push(w: Workspace, doc: bytes) -> int | None:
    write(w.directory, {"doc": doc})
    return w.push().version


def comes_to_others(lab: Lab, w: Workspace, device: str = "phone") -> None:
    report = w.check(read_data=True)
    assert not (report.problems or report.lost or report.nowhere or report.meta_problems)
    other = lab.clone(lab.urls(*NAMES), device=device)
    assert tree_of(other.directory) == tree_of(w.directory)


# ---- where nothing is made of anything


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["cache", "index", "nodes", "off"])
def test_without_the_old_bytes_a_chunk_is_stored_whole(lab: Lab, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls(*NAMES))
    if what == "off":
        w.configure("base-cache-mb", "0")
    docs = history(1)
    push(w, docs[0])
    if what == "cache":
        shutil.rmtree(w.directory / ".metasync/bases")
    elif what == "index":
        monkeypatch.setattr("metasync.sync.replaced_chunks.depth_of", lambda *_: None)
    elif what == "nodes":
        monkeypatch.setattr("metasync.sync.replaced_chunks.known_chunks", lambda *_: ())
    push(w, docs[1])
    assert set(depths(w)) == {0}
    comes_to_others(lab, w)


@pytest.mark.parametrize("how", ["push", "pull"])
def test_a_cache_that_is_to_be_empty_is_so_at_once(lab: Lab, how: str) -> None:
    """Whether there is something to do or not."""
    w = lab.init(lab.urls(*NAMES))
    push(w, noise(LARGE, 1))
    kept = w.directory / ".metasync/bases"
    assert list(kept.iterdir())
    w.configure("base-cache-mb", "0")
    getattr(w, how)()
    assert not list(kept.iterdir())


def test_a_cache_leaves_the_room_of_what_comes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another device writes anew again and again always has room on a small disk."""
    urls, size = lab.urls(*NAMES), DISK_MARGIN_BYTES + 4 * LARGE
    w = lab.init(urls)
    push(w, noise(LARGE, 1))
    other = lab.clone(urls)

    def free(*_: object) -> int:
        state = other.directory / ".metasync"
        files = [p for name in ("bases", "tmp") for p in (state / name).rglob("*") if p.is_file()]
        files += other.directory.glob("doc")
        return size - sum(p.stat().st_size for p in files)

    monkeypatch.setattr(Disk, "free_bytes", free)
    monkeypatch.setattr("metasync.worktree.bases.FREE_SHARE", 1)
    monkeypatch.setattr("metasync.worktree.bases.KEPT_SHARE", 2)
    for n in range(2, 8):
        push(w, noise(LARGE, n))
        assert other.pull().unplaced == ()
        assert free() >= DISK_MARGIN_BYTES
    assert list((other.directory / ".metasync/bases").iterdir())


@pytest.mark.usefixtures("uncut")
def test_damaged_old_bytes_are_not_used(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(2, 90_000)
    push(w, docs[0])
    for path in (w.directory / ".metasync/bases").iterdir():
        path.write_bytes(b"\0" + noise(1000, 7))
    push(w, docs[1])
    assert set(depths(w)) == {0}
    push(w, docs[2])
    assert set(depths(w)) == {0, 1}  # of a chunk that was whole
    comes_to_others(lab, w)


def test_other_bytes_are_no_deltas_and_soon_not_tried(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    gain = delta.gain

    def trying(base: bytes, new: bytes, level: int) -> bytes | None:
        tried.append(len(new))
        return gain(base, new, level)

    monkeypatch.setattr(delta, "gain", trying)
    w = lab.init(lab.urls(*NAMES))
    push(w, noise(4_000_000, 1))
    push(w, noise(4_000_000, 2))
    chunks = len(depths(w))
    assert set(depths(w)) == {0}
    assert 4 <= len(tried) <= 12 < chunks


@pytest.mark.few(1)
@pytest.mark.parametrize("most", [512, 2])
def test_of_very_many_new_small_files_few_are_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("metasync.sync.replaced_chunks.NEW_SMALL_MAX", most)
    w = lab.init(lab.urls(*NAMES))
    for n in range(3):
        write(w.directory, {f"doc{i}": b"%d" % n + noise(30_000, i) for i in range(5)} | {"tiny": noise(4_000, n)})
        w.push()
    assert depths(w) == ([0] * 8 + [1] * 5 + [2] * 5 if most > 5 else [0] * 11 + [1] * 5 + [2] * 2)
    comes_to_others(lab, w)


@pytest.mark.few(1)
@pytest.mark.parametrize("pays", [True, False])
def test_a_base_that_is_not_at_hand_is_fetched_where_that_pays(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    docs = history(1, 2_000_000)
    push(lab.init(lab.urls(*NAMES)), docs[0])
    other = lab.clone(lab.urls(*NAMES))
    asked: list[dict[str, int]] = []

    def pay(self: Estimates, lines: list[str], **sizes: int) -> bool:
        assert sorted(lines) == [*NAMES]
        asked.append(sizes)
        return pays

    monkeypatch.setattr(Estimates, "pays", pay)
    down(lab)
    push(other, docs[1])
    assert 1 <= len(asked) <= 2  # of all chunks the one that changed, and what lay beside it
    assert asked[0]["delta"] < asked[0]["fetched"] < asked[0]["whole"]
    assert (1 in depths(other)) == pays
    assert (down(lab) > 60_000) == pays
    comes_to_others(lab, other)


def test_a_base_that_cannot_be_fetched_is_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = history(1)
    push(lab.init(lab.urls(*NAMES)), docs[0])
    other = lab.clone(lab.urls(*NAMES))
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        if path.stat().st_size > 50_000:
            flip(path, path.stat().st_size // 2)
    monkeypatch.setattr(Estimates, "pays", lambda *_, **__: True)
    push(other, docs[1])
    assert set(depths(other)) == {0}


# ---- what it rests on


@pytest.mark.few(1)
@pytest.mark.parametrize("fenced", [True, False])
def test_a_base_that_goes_in_a_lost_race_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch, fenced: bool) -> None:
    """Between the look and the proposal another device replaces the document and collects all else. The fence would be
    enough: without it the bases are looked up again."""
    if not fenced:
        monkeypatch.setattr(Upload, "counting", lambda *_: True)
    w = lab.init(lab.urls(*NAMES))
    docs = history(1)
    push(w, docs[0])
    other = lab.clone(lab.urls(*NAMES))
    real, raced = Packing.add_trees, list[bool]()

    def race(*args: Any) -> tuple[bytes, bytes]:
        out = real(*args)
        if not raced:
            raced.append(True)
            (other.directory / "doc").unlink()
            write(other.directory, {"note": b"n"})
            other.push()
            other.gc(retention.parse("last=1"))
        return out

    monkeypatch.setattr(Packing, "add_trees", race)
    push(w, docs[1])
    assert raced
    assert set(depths(w)) == {0}
    comes_to_others(lab, w)


def test_a_base_that_stays_in_a_lost_race_counts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(1)
    push(w, docs[0])
    other = lab.clone(lab.urls(*NAMES))
    real, raced, uploads = Packing.add_trees, [], []

    def race(self: Packing, base: Any, here: Any, upload: Upload, *args: Any) -> tuple[bytes, bytes]:
        out = real(self, base, here, upload, *args)
        if self.s.directory == w.directory:
            uploads.append(upload)
        if not raced:
            raced.append(True)
            write(other.directory, {"note": b"n"})
            other.push()
        return out

    monkeypatch.setattr(Packing, "add_trees", race)
    push(w, docs[1])
    assert len({*map(id, uploads)}) == 1 < len(uploads)
    assert set(depths(w)) == {0, 1}
    comes_to_others(lab, w)


@pytest.mark.few(1)
@pytest.mark.parametrize("collected", [False, True])
def test_a_push_that_goes_on_uses_deltas_whose_bases_stayed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, collected: bool
) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(1)
    push(w, docs[0])
    other = lab.clone(lab.urls(*NAMES))
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> Any:
            raise WorkspaceError("the power failed")

        patch.setattr(_Push, "agree", broken)
        with pytest.raises(WorkspaceError, match="the power failed"):
            push(w, docs[1])
    before = stored(lab)
    if collected:
        (other.directory / "doc").unlink()
        other.push()
        other.gc(retention.parse("last=1"))
        w.pull()
    w.push()
    assert set(depths(w)) == ({0} if collected else {0, 1})
    if not collected:
        assert stored(lab) < before + 10_000  # trees alone
    comes_to_others(lab, w)


def test_two_devices_make_deltas_of_the_same_base(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    doc = noise(LARGE, 1)
    push(w, doc)
    other = lab.clone(lab.urls(*NAMES))
    push(other, edited(doc, 1))  # whole: a clone keeps nothing
    w.pull()
    write(w.directory, {"mine": edited(edited(doc, 1), 2), "doc": edited(edited(doc, 1), 3)})
    write(other.directory, {"doc": edited(edited(doc, 1), 4)})
    w.push()
    other.push()
    w.pull()
    assert 1 in depths(w)
    comes_to_others(lab, w)


# ---- what it gives


@pytest.mark.usefixtures("uncut")
def test_a_document_edited_many_times(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(20, 90_000)
    push(w, docs[0])
    first = stored(lab)
    for doc in docs[1:]:
        push(w, doc)
    assert stored(lab) - first < 20 * 4_000 * 2
    assert max(depths(w)) == 8
    index = index_of(w)
    for record in index.packs().values():
        assert all(o.encoding == DELTA or o.length > 50_000 or o.kind is not ObjectKind.BLOB
                   for o in index.inside(record))  # fmt: skip
    comes_to_others(lab, w)


def test_old_versions_can_be_read(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(10)
    versions = [str(push(w, doc)) for doc in docs]
    for n in (0, 3, 10):
        pieces: list[bytes] = []
        w.cat("doc", versions[n], pieces.append)
        assert b"".join(pieces) == docs[n]
    w.restore(versions[2], ["doc"])
    assert (w.directory / "doc").read_bytes() == docs[2]


def test_forgetting_a_path_empties_what_is_kept_for_deltas(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    for doc in history(2):
        push(w, doc)
    assert list((w.directory / ".metasync/bases").iterdir())
    (w.directory / "doc").unlink()
    w.push()
    w.forget(["doc"])
    assert not list((w.directory / ".metasync/bases").iterdir())


@pytest.mark.usefixtures("uncut")
def test_a_full_cache_keeps_what_deltas_will_be_made_of(lab: Lab) -> None:
    """Room for eleven chunks: the whole one at the end of the chain outlives twenty others."""
    w = lab.init(lab.urls(*NAMES))
    w.configure("base-cache-mb", "1")
    docs = history(20, 90_000)
    for doc in docs:
        push(w, doc)
    assert sum(p.stat().st_size for p in (w.directory / ".metasync/bases").iterdir()) <= 1 << 20
    assert depths(w).count(0) == 1
    comes_to_others(lab, w)


# ---- which chunk stands for which


class Push:
    """A push of chunks that are named by their bytes."""

    level = 3

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.stored: list[tuple[bytes, bytes | None]] = []
        self.bases = self
        self.upload = self

    def known(self, _: bytes) -> bool:
        return False

    def row(self, base: bytes) -> Any:
        from metasync.store.pack_format import Delta

        return Delta(base, 1)

    def base(self, object_id: bytes, *_: Any) -> bytes | None:
        return self.kept.get(object_id)

    def keep(self, object_id: bytes, data: bytes, **_: bool) -> None:
        self.kept[object_id] = data

    def pass_over(self, object_id: bytes) -> None:
        pass

    def add(self, _: ObjectKind, object_id: bytes, data: bytes, row: Any = None) -> None:
        self.stored.append((data, None if row is None else row.base))


def bases(old: Sequence[bytes], new: Sequence[bytes]) -> list[int | None]:
    """Of which old chunk each new one is made; None: of none."""
    push: Any = Push()
    ids = [b"old %d" % n for n in range(len(old))]
    same = dict(zip(old, ids, strict=True))
    push.kept.update(zip(ids, old, strict=True))
    file = FileChunks(push, [Chunk(i, len(d)) for i, d in zip(ids, old, strict=True)])
    for n, data in enumerate(new):
        file.take(same.get(data, b"new %d" % n), data)
    return [None if base is None else ids.index(base) for _, base in push.stored]


A, B, C, D = (noise(40_000, n) for n in range(4))
OTHER = noise(30_000, 9)


def test_chunks_are_made_of_those_in_whose_place_they_are() -> None:
    assert bases([A, B, C, D], [A, edited(B, 1), edited(C, 2), D]) == [0, 1, 2, 3]
    assert bases([A, B, C, D], [OTHER, A, edited(B, 1), C, D])[2] == 1  # all is farther behind
    assert bases([A, B, C, D], [edited(C, 1), D]) == [None, 3]  # not in its place, and nobody looks for it
    assert bases([A, B, C, D], [A, OTHER + B[:10], edited(B[10:], 2), C])[2] == 1


def test_chunks_that_were_split_and_merged() -> None:
    assert bases([A, B, C], [A, B[:15_000] + b"x", B[15_000:], C]) == [0, 1, 1, 2]
    assert bases([A, B, C, D], [A, edited(B + C, 1), D])[1] in (1, 2)


def test_what_is_shorter_or_longer_than_it_was() -> None:
    assert bases([A, B], [A]) == [0]
    assert bases([A], [A, edited(A, 1), edited(A, 2)])[2] in (0, None)
    assert bases([], [A]) == [None]


def test_many_inserts_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [noise(40_000, n) for n in range(30)]
    new = [edited(edited(d, n), n + 100) + noise(3_000, n) for n, d in enumerate(old)]
    assert all(a < b for a, b in pairwise([0, *[n + 1 for n in bases(old, new) if n is not None]]))
    assert bases(old, new) == [*range(30)]


# ---- what is rotten


def chain(lab: Lab, versions: int = 4) -> tuple[Workspace, list[bytes]]:
    """A document that is a delta of a delta."""
    w = lab.init(lab.urls(*NAMES))
    docs = history(versions, SHORT)
    for doc in docs:
        push(w, doc)
    assert max(depths(w)) == versions
    return w, docs


def copies_of(lab: Lab, w: Workspace, data: bytes) -> list[Path]:
    """The files of the packs with this content, on all backends."""
    names = {record.name.hex() for record, _ in index_of(w).find(blob(w, data))}
    return [p for name in NAMES for p in lab.objects(name, "packs") if p.name in names]


@pytest.mark.few(2)
@pytest.mark.parametrize("link", range(5))
def test_each_link_of_a_chain_comes_from_another_replica_where_one_is_rotten(lab: Lab, link: int) -> None:
    w, docs = chain(lab)
    first, second = copies_of(lab, w, docs[link])
    flip(first)
    other = lab.clone(lab.urls(*NAMES), device="phone")
    assert (other.directory / "doc").read_bytes() == docs[-1]
    flip(second)
    with pytest.raises(DamagedError):
        lab.clone(lab.urls(*NAMES), device="tablet")
    report = w.check(read_data=True)
    assert len(report.problems) == 2 and report.lost


def test_a_device_with_old_chunks_mends_what_no_backend_has(lab: Lab) -> None:
    w, docs = chain(lab)
    for path in copies_of(lab, w, docs[-1]):
        path.unlink()
    w.check(read_data=True, repair=True)
    comes_to_others(lab, w)


@pytest.mark.few(1)
@pytest.mark.parametrize("back", [0, 2, 4])
def test_versions_that_are_deltas_are_restored_elsewhere(lab: Lab, back: int) -> None:
    w, docs = chain(lab)
    w.restore(f"latest~{back}", to=lab.root / "out")
    assert (lab.root / "out/doc").read_bytes() == docs[-1 - back]


def test_a_restart_without_two_backends_keeps_what_is_stored_as_deltas(lab: Lab) -> None:
    """What the lost ones alone held is stored again from the folder, and new deltas are made in the new era."""
    w, docs = chain(lab)
    for name in "bc":
        lab.lose(name)
    lab.hurry()
    w = lab.reopen(w)
    w.recover(["b", "c"], PASSPHRASE, confirm="docs")
    w = lab.reopen(w)
    push(w, edited(docs[-1], 77))
    other = lab.clone(lab.urls("a"), device="phone")
    assert tree_of(other.directory) == tree_of(w.directory)
    assert not w.check(read_data=True).nowhere


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [1, 2])
def test_a_collection_keeps_what_kept_versions_are_made_of(lab: Lab, kept: int) -> None:
    w, docs = chain(lab)
    w.gc(retention.parse(f"last={kept}"))
    comes_to_others(lab, w)
    push(w, edited(docs[-1], 77))
    comes_to_others(lab, w, "tablet")


# ---- what a pull takes from the folder


def down(lab: Lab) -> int:
    """Bytes that came from the backends since the last time."""
    return sum(lab.counts[name].take().down_bytes for name in NAMES)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [SHORT, 2_000_000])
def test_a_pull_brings_the_difference(lab: Lab, size: int) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(3, size)
    push(w, docs[0])
    other = lab.clone(lab.urls(*NAMES))
    for doc in docs[1:]:
        push(w, doc)
        down(lab)
        other.pull()
        assert (other.directory / "doc").read_bytes() == doc
        assert down(lab) < 60_000
    push(other, edited(docs[-1], 9))
    assert len([d for d in depths(other) if d]) == 4  # of what the pulls brought


def test_a_file_that_changes_while_it_is_taken_from_is_not_used(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side of it: what the scan saw at the path is not what the chunks are read from."""
    w = lab.init(lab.urls(*NAMES))
    docs = history(2, 2_000_000)
    push(w, docs[0])
    other = lab.clone(lab.urls(*NAMES))
    push(w, docs[1])
    get, there = OldChunks.get, other.directory / "doc"

    def writing(self: OldChunks, object_id: bytes) -> bytes | None:
        there.write_bytes(noise(1_999_000, 5))
        return get(self, object_id)

    monkeypatch.setattr(OldChunks, "get", writing)
    down(lab)
    other.pull()
    assert down(lab) > 2_000_000
    found = {p.read_bytes() for p in other.directory.iterdir() if p.is_file()}
    assert found == {docs[1], noise(1_999_000, 5)}  # one of them as a conflict copy


def test_a_version_that_is_restored_comes_from_what_is_here(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    docs = history(2, 2_000_000)
    versions = [str(push(w, doc)) for doc in docs]
    down(lab)
    w.restore(versions[0], ["doc"])
    assert (w.directory / "doc").read_bytes() == docs[0]
    assert down(lab) < 60_000


def test_what_a_push_keeps_is_counted_where_it_reads_twice(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    with w._session("test") as s:
        base = agreement.newest(s)
        packing = Packing(s, None, lambda: None, lambda _: lambda: None, {})
        upload = packing.upload_for(base)
        for n in range(2):
            packing.ingest(base, upload).of_bytes(noise(20_000, n))
        packing._replaced.end()  # type: ignore[union-attr]
        kept = sum(p.stat().st_size for p in (w.directory / ".metasync/bases").iterdir())
        assert kept > 40_000
        assert s.db.get(BASES_KEY) == kept
