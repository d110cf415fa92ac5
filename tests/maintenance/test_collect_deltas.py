"""`gc`, `forget` and `check --repair` where chunks are stored as deltas: what these are made of stays with them."""

from __future__ import annotations

from typing import Any

import pytest
from content_kit import noise
from delta_kit import edited, write_deltas
from workspace_kit import Lab, forget_bases, write

from metasync.maintenance import collect
from metasync.maintenance.repair import give_back
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.store import deltas, retention
from metasync.store.index import Index, IndexSegment
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
LAST = retention.parse("last=1")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    return write_deltas(monkeypatch)


def pushed(lab: Lab, versions: int, beside: int = 0) -> Workspace:
    """A document, edited once in each version. `beside`: bytes of another file, which each version has anew."""
    w = lab.init(lab.urls(*NAMES))
    for n in range(versions):
        write(w.directory, {"doc": edited(n), "other": noise(beside, n) if beside else b"%d" % n})
        w.push()
    return w


def index_of(w: Workspace) -> Index:
    with w._session("test") as s:
        return agreement.newest(s).index


def blob(w: Workspace, data: bytes) -> bytes:
    with w._session("test") as s:
        return s.ids.of(ObjectKind.BLOB, data)


def lose(lab: Lab, w: Workspace, object_id: bytes) -> None:
    """Takes all copies of the packs with this object from the backends."""
    names = {record.name.hex() for record, _ in index_of(w).find(object_id)}
    assert names
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        if path.name in names:
            path.unlink()


def comes_to_others(lab: Lab, w: Workspace, doc: bytes, device: str = "phone") -> None:
    report = w.check(read_data=True)
    assert not (report.problems or report.lost or report.nowhere or report.meta_problems)
    assert (lab.clone(lab.urls(*NAMES), device=device).directory / "doc").read_bytes() == doc


def test_what_a_kept_delta_is_made_of_stays(lab: Lab, made: list[bytes]) -> None:
    w = pushed(lab, 5)
    assert len(made) == 4
    report = w.gc(LAST)
    assert (report.dropped, report.missing) == (4, 0)
    depths = [deltas.depth_of(index_of(w), blob(w, edited(n))) for n in range(5)]
    assert depths == [0, 1, 2, 3, 4]
    comes_to_others(lab, w, edited(4))
    assert w.gc(LAST).freed == ()


def test_what_nothing_is_made_of_any_more_goes(lab: Lab, made: list[bytes]) -> None:
    w = pushed(lab, 3)
    write(w.directory, {"doc": b"short"})
    w.push()
    w.gc(LAST)
    assert made and not deltas.are_in(index_of(w))
    assert blob(w, edited(0)) not in index_of(w)


def test_deltas_are_packed_anew_as_they_are(lab: Lab, made: list[bytes]) -> None:
    w = pushed(lab, 4, beside=20_000)
    report = w.gc(LAST)
    assert report.packed_anew > 0 and made
    index = index_of(w)
    assert [deltas.depth_of(index, blob(w, edited(n))) for n in range(4)] == [0, 1, 2, 3]
    generations = {record.generation for record, _ in index.find(blob(w, edited(2)))}
    assert generations == {max(generations)} and min(generations) > 0
    comes_to_others(lab, w, edited(3))


def test_a_delta_that_cannot_be_read_as_it_is_is_packed_whole(
    lab: Lab, made: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab, 3, beside=20_000)
    monkeypatch.setattr("metasync.transfer.contents.Contents.fetch_deltas", lambda *_: {})
    w.gc(LAST)
    assert made and deltas.depth_of(index_of(w), blob(w, edited(1))) == 0
    comes_to_others(lab, w, edited(2))
    assert w.gc(LAST).missing == 0
    assert blob(w, edited(0)) not in index_of(w)  # nothing is made of it any more
    comes_to_others(lab, w, edited(2), "desktop")


def test_what_was_forgotten_is_no_base_of_what_is_kept(lab: Lab, made: list[bytes]) -> None:
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"secret": edited(0), "stays": b"x"})
    w.push()
    (w.directory / "secret").unlink()
    write(w.directory, {"doc": edited(1)})
    w.push()
    write(w.directory, {"doc": edited(2)})
    w.push()
    assert len(made) == 2
    w.forget(["secret"])
    w.gc()
    index = index_of(w)
    assert blob(w, edited(0)) not in index
    assert deltas.depth_of(index, blob(w, edited(1))) == 0
    assert deltas.depth_of(index, blob(w, edited(2))) == 2  # made of what is whole now
    named = {record.name.hex() for record in index.packs().values()}
    assert {p.name for name in NAMES for p in lab.objects(name, "packs")} == named
    comes_to_others(lab, w, edited(2))


@pytest.mark.long
def test_a_push_between_mark_and_fence_keeps_what_its_delta_is_made_of(
    lab: Lab, made: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab, 2)
    write(w.directory, {"doc": b"short"})
    w.push()
    other = lab.clone(lab.urls(*NAMES))
    change = collect._Collection._change
    pushes = [edited(3)]

    def pushing(self: Any, found: Any) -> Any:
        out = change(self, found)
        if pushes:
            write(other.directory, {"doc": pushes.pop()})
            other.push()
        return out

    monkeypatch.setattr(collect._Collection, "_change", pushing)
    w.gc(LAST)
    assert len(made) == 2 and not pushes
    w.pull()
    comes_to_others(lab, w, edited(3))


@pytest.mark.long
def test_a_delta_packed_anew_of_what_another_collector_freed_is_packed_again(
    lab: Lab, made: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab, 3, beside=20_000)
    write(w.directory, {"other": b"short"})
    w.push()
    with monkeypatch.context() as patch:
        patch.setattr(collect._Collection, "_pack", lambda *_: "there is no room")
        w.gc(LAST)  # drops the versions, so that the next two drop none
    change, turns = collect._Collection._change, [lab.clone(lab.urls(*NAMES))]

    def collecting(self: Any, found: Any) -> Any:
        out = change(self, found)
        if turns:
            with monkeypatch.context() as patch:
                patch.setattr("metasync.transfer.contents.Contents.fetch_deltas", lambda *_: {})
                turns.pop().gc()  # stores the document whole, beside what it was made of
        return out

    monkeypatch.setattr(collect._Collection, "_change", collecting)
    assert w.gc().packed_anew > 0
    index = index_of(w)
    assert made and not turns and blob(w, edited(1)) not in index
    assert deltas.depth_of(index, blob(w, edited(2))) == 0
    comes_to_others(lab, w, edited(2))


@pytest.mark.few(1)
@pytest.mark.parametrize("is_here", [True, False])
def test_a_delta_of_what_nobody_has_is_mended_from_the_folder_or_named(
    lab: Lab, made: list[bytes], is_here: bool
) -> None:
    w = pushed(lab, 3)
    lose(lab, w, blob(w, edited(0)))
    if not is_here:
        write(w.directory, {"doc": b"short"})
        w.push()
    assert w.check().lost
    forget_bases(w)
    done = w.check(repair=True).repaired
    assert done is not None and made
    gone = {(g.path, g.first, g.last) for g in done.gone}
    told = {(b"other", 1, 1), (b"doc", 1, 1), (b"doc", 2, 2)}
    assert gone == (told if is_here else told | {(b"doc", 3, 3)})
    comes_to_others(lab, w, edited(2) if is_here else b"short")
    assert not deltas.dangling(index_of(w))
    assert w.gc().missing == (3 if is_here else 4)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("are_all_heard", "is_read", "leave"), [(True, True, [0, 1]), (False, True, [0]), (True, False, [0])]
)
def test_packs_with_deltas_of_what_is_lost_leave_the_index_once_all_are_heard_and_the_rest_of_them_is_stored(
    lab: Lab, made: list[bytes], monkeypatch: pytest.MonkeyPatch, are_all_heard: bool, is_read: bool, leave: list[int]
) -> None:
    """Of version 1, beside the document as a delta, they hold another file and a snapshot. The folder has version 2."""
    w = pushed(lab, 3)
    lose(lab, w, blob(w, edited(0)))
    of = [{record.id for record, _ in index_of(w).find(blob(w, edited(n)))} for n in range(3)]
    assert made
    with w._session("test") as s:
        agreed, stored = agreement.newest(s), list[IndexSegment]()
        monkeypatch.setattr(s.indexes, "store", lambda *_: stored.extend(_[-1]))
        if not is_read:
            monkeypatch.setattr(give_back, "_store_objects", lambda *_: None)
        packs = agreed.index.packs()
        give_back.give_back(s, agreed, [packs[i] for i in of[0]], are_all_heard=are_all_heard)
    assert {i for segment in stored for i in segment.tombstones} == {i for n in leave for i in of[n]}


def test_a_base_of_which_one_copy_is_rotten_is_mended_from_another(lab: Lab, made: list[bytes]) -> None:
    w = pushed(lab, 3)
    names = {record.name.hex() for record, _ in index_of(w).find(blob(w, edited(0)))}
    path = next(p for name in NAMES for p in lab.objects(name, "packs") if p.name in names)
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    done = w.check(read_data=True, repair=True).repaired
    assert done is not None and (done.copies, done.gone) == (1, ()) and made
    assert path.read_bytes() == data
    comes_to_others(lab, w, edited(2))


def test_packs_with_deltas_move_as_they_are(lab: Lab, made: list[bytes]) -> None:
    w = pushed(lab, 4)
    before = index_of(w).packs()
    w.set_copies(3)
    w.rebalance()
    after = index_of(w).packs()
    assert made and {i: p.tags for i, p in before.items()} == {i: after[i].tags for i in before}
    assert all(len(lab.objects(name, "packs")) == len(after) for name in NAMES)
    comes_to_others(lab, w, edited(3))
