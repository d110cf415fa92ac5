"""A device says in its index that an object lies in a pack of its own, over other bytes; others collect garbage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_kit import Insider, insider
from delta_kit import edited, write_deltas
from workspace_kit import Lab, forget_bases, tree_of, write

from metasync.consensus import JOURNAL_KEY, Change
from metasync.maintenance import duplicates
from metasync.maintenance.repair import give_back, untrue_rows
from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.store.index import PackRecord, make_segment
from metasync.store.pack_format import Delta, Located
from metasync.workspace import Workspace


def agree(m: Insider, refs: Any) -> int:
    """Has a version agreed with the index that was stored. -> its number."""
    change = Change(
        m.s.entropy(16), index=refs[-1], adding=tuple(refs[:-1]), index_rides=bool(refs.riding), riding=refs.riding
    )
    v = agreement.propose(m.s, m.base.state, change).state.v
    m.s.db.set(JOURNAL_KEY, None)
    return v


def list_in_a_pack_of_its_own(
    device: Workspace,
    blob: bytes,
    stored: bytes,
    *,
    kind: ObjectKind = ObjectKind.BLOB,
    object_id: bytes = b"",
    row: Delta | None = None,
) -> int:
    """Has a version agreed that lists a blob, which others have stored, in a pack of this device; with these bytes.
    -> its number.

    `object_id`: of another object, of this kind. `row`: the bytes are said to be a delta.
    """
    with insider(device) as m:
        s, state = m.s, m.base.state
        m._upload.add(kind, object_id or s.ids.of(ObjectKind.BLOB, blob), stored, row)
        m._upload.seal()
        with s.indexes.storing(state, m.base.root, m.base.segments, m._upload.index_segments()) as index:
            m._upload.finish()
            refs = index()
        return agree(m, refs)


@pytest.mark.few(1)
@pytest.mark.parametrize("most", [duplicates.READ_BYTES_MAX, 0])
def test_a_collection_deletes_no_object_because_another_pack_is_said_to_have_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """`most`: of what may be read for that."""
    monkeypatch.setattr(duplicates, "READ_BYTES_MAX", most)
    urls = lab.urls("a", "b", "c")
    victim, photo = lab.init(urls), os.urandom(5400)
    write(victim.directory, {"kept": os.urandom(90_000), "d/photo": photo})
    victim.push("first")
    list_in_a_pack_of_its_own(lab.clone(urls, device="mallory"), photo, b"no photo" * 3)
    write(victim.directory, {"kept": b"small"})  # the pack with the photo is mostly dead from here on
    victim.push()
    victim.gc()
    victim.gc()
    report = victim.check(read_data=True)
    assert (report.problems, report.lost, report.nowhere) == ((), (), ())
    assert tree_of(lab.clone(urls, device="fresh").directory) == tree_of(victim.directory)
    parts: list[bytes] = []
    victim.cat("d/photo", "1", parts.append)
    assert b"".join(parts) == photo


@pytest.mark.long
def test_what_two_packs_have_goes_from_one_of_them(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    one, same = lab.init(urls), os.urandom(40_000)
    write(one.directory, {"x": same})
    one.push()
    other = lab.clone(urls, device="other")
    list_in_a_pack_of_its_own(other, same, same)
    before = one.check().packs
    one.gc()
    assert one.check(read_data=True).packs <= before
    assert tree_of(lab.clone(urls, device="fresh").directory) == tree_of(one.directory)
    assert [other.gc().freed, other.check(read_data=True).problems] == [(), ()]


def test_what_was_forgotten_goes_once_the_pack_beside_it_may(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that has to stay for now keeps what was forgotten; the next collection still knows that it is to go."""
    urls = lab.urls("a", "b", "c")
    one, same = lab.init(urls), os.urandom(40_000)
    write(one.directory, {"x": same, "secret": os.urandom(3000)})
    one.push()
    list_in_a_pack_of_its_own(lab.clone(urls, device="other"), same, same)
    (one.directory / "secret").unlink()
    one.push()
    monkeypatch.setattr(duplicates, "READ_BYTES_MAX", 0)
    one.forget(["secret"])
    one.gc()
    with one._session("look") as s:
        assert s.indexes.retained(s.newest_state()).purge
    monkeypatch.setattr(duplicates, "READ_BYTES_MAX", 1 << 30)
    one.gc()
    with one._session("look") as s:
        assert not s.indexes.retained(s.newest_state()).purge
    assert one.check(read_data=True).problems == ()


# ---- `check --read-data` says so, and `--repair` mends it


LIED = 3  # the version: its device joined with version 2


def list_rows(device: Workspace, make: Callable[[Insider], list[tuple[PackRecord, list[Located]]]]) -> int:
    """Has a version agreed whose index lists these objects in these packs, too. -> its number."""
    with insider(device) as m:
        s, state = m.s, m.base.state
        with s.indexes.storing(state, m.base.root, m.base.segments, [make_segment(make(m))]) as index:
            refs = index()
        return agree(m, refs)


def is_sound(w: Workspace) -> bool:
    r = w.check(read_data=True)
    return not (r.problems or r.lost or r.nowhere or r.meta_problems or r.untrue)


def content(w: Workspace, path: str, version: str = "latest") -> bytes:
    parts: list[bytes] = []
    w.cat(path, version, parts.append)
    return b"".join(parts)


def photo_and_liar(lab: Lab) -> tuple[Workspace, Workspace, bytes]:
    """The photo of one device, and another one whose version `LIED` lists it in a pack of its own, over other bytes."""
    urls = lab.urls("a", "b", "c")
    victim, photo = lab.init(urls), os.urandom(5400)
    write(victim.directory, {"kept": os.urandom(90_000), "d/photo": photo, "d/again": photo})
    victim.push("first")
    mallory = lab.clone(urls, device="mallory")
    assert list_in_a_pack_of_its_own(mallory, photo, b"no photo" * 3) == LIED
    write(victim.directory, {"kept": b"small"})
    victim.push()
    return victim, mallory, photo


def test_check_says_which_pack_does_not_hold_what_who_listed_in_it(lab: Lab) -> None:
    victim, _, photo = photo_and_liar(lab)
    assert victim.check().untrue == (), "what was not read is not known"
    (found,) = victim.check(read_data=True).untrue
    with victim._session("look") as s:
        assert found.ids == (s.ids.of(ObjectKind.BLOB, photo),)
        places = agreement.newest(s).index.find(found.ids[0])
    assert found.pack in {record.name for record, _ in places} and len(places) == 2
    assert (found.objects, sorted(found.paths), found.version, found.device) == (
        1, [b"d/again", b"d/photo"], LIED, "mallory",
    )  # fmt: skip
    ran = lab.cli("check", "--read-data")
    assert ran.code == 4
    assert f"pack {found.pack.hex()[:16]} does not hold 1 object that the index lists in it" in ran.out
    assert f"as of version {LIED}, which mallory wrote" in ran.out and "d/photo" in ran.out
    assert "Everything can still be read." in ran.out
    victim.gc()
    assert [u.version for u in victim.check(read_data=True).untrue] == [LIED]


@pytest.mark.long
def test_repair_takes_the_untrue_rows_out_and_reads_the_true_bytes_elsewhere(lab: Lab) -> None:
    victim, _, photo = photo_and_liar(lab)
    report = victim.check(read_data=True, repair=True)
    assert report.untrue == () and report.repaired is not None
    assert [u.version for u in report.repaired.untrue] == [LIED]
    assert (report.repaired.gone, report.repaired.gone_objects, report.nowhere) == ((), 0, ())
    assert is_sound(victim)
    victim.gc()
    fresh = lab.clone(lab.urls("a", "b", "c"), device="fresh")
    assert tree_of(fresh.directory) == tree_of(victim.directory)
    assert content(fresh, "d/photo", "1") == photo and is_sound(fresh)


def lose_true_packs(lab: Lab, w: Workspace, object_id: bytes) -> None:
    """Deletes all copies of the packs with an object but the newest pack of those, which is the liar's."""
    with w._session("look") as s:
        places = sorted(agreement.newest(s).index.find(object_id), key=lambda p: p[0].size)
    gone = {record.name.hex() for record, _ in places[1:]}
    assert len(gone) == 1
    for path in (p for name in "abc" for p in lab.objects(name, "packs")):
        if path.name in gone:
            path.unlink()


@pytest.mark.long
def test_where_only_the_untrue_row_is_left_the_folder_gives_the_bytes(lab: Lab) -> None:
    victim, mallory, photo = photo_and_liar(lab)
    with victim._session("look") as s:
        object_id = s.ids.of(ObjectKind.BLOB, photo)
    lose_true_packs(lab, victim, object_id)
    mallory.check(repair=True)  # the pack that is lost leaves the index
    assert victim.check().nowhere == (), "the row says that it is there"
    report = victim.check(read_data=True)
    assert {b"d/photo", b"d/again"} <= {*report.nowhere}
    assert lab.cli("check", "--read-data").code == 7
    report = victim.check(read_data=True, repair=True)
    assert (report.nowhere, report.untrue) == ((), ())
    assert is_sound(victim)
    assert content(lab.clone(lab.urls("a", "b", "c"), device="fresh"), "d/photo") == photo


def test_what_nobody_has_is_said_to_be_gone_by_name(lab: Lab) -> None:
    victim, mallory, photo = photo_and_liar(lab)
    with victim._session("look") as s:
        object_id = s.ids.of(ObjectKind.BLOB, photo)
    lose_true_packs(lab, victim, object_id)
    for name in ("d/photo", "d/again"):
        (Path(victim.directory) / name).unlink()
        (Path(mallory.directory) / name).unlink()
    forget_bases(victim, mallory)
    mallory.check(repair=True)
    report = victim.check(read_data=True, repair=True)
    assert report.untrue == () and report.repaired is not None
    assert {g.path for g in report.repaired.gone} >= {b"d/photo", b"d/again"}
    assert {b"d/photo", b"d/again"} <= {*report.nowhere}


def test_ids_that_no_version_needs_are_no_loss(lab: Lab) -> None:
    victim = lab.init(lab.urls("a", "b", "c"))
    write(victim.directory, {"x": os.urandom(5000)})
    victim.push()
    list_in_a_pack_of_its_own(victim, os.urandom(40), b"something else")
    report = victim.check(read_data=True, repair=True)
    assert report.repaired is not None
    assert (report.untrue, report.repaired.gone, report.repaired.gone_objects) == ((), (), 0)
    assert is_sound(victim)


@pytest.mark.long
def test_rows_in_the_pack_of_another_cost_it_none_of_its_objects(lab: Lab) -> None:
    """The pack leaves the index with the row, and all that does lie in it is stored anew first."""
    victim, urls = lab.init(lab.urls("a", "b", "c")), lab.urls("a", "b", "c")
    write(victim.directory, {f"d{i}/f": os.urandom(4000) for i in range(5)})
    victim.push("first")
    write(victim.directory, {"d0/f": os.urandom(4000)})
    victim.push()
    mallory = lab.clone(urls, device="mallory")

    def make(m: Insider) -> list[tuple[PackRecord, list[Located]]]:
        return [(record, [Located(ObjectKind.BLOB, b"\x77" * 32, 0, 0, 9)]) for record in m.base.index.packs().values()]

    v = list_rows(mallory, make)
    report = victim.check(read_data=True)
    assert report.packs >= 2 and [u.version for u in report.untrue] == [v] * report.packs
    report = victim.check(read_data=True, repair=True)
    assert (report.untrue, report.nowhere, report.lost) == ((), (), ())
    fresh = lab.clone(urls, device="fresh")
    assert tree_of(fresh.directory) == tree_of(victim.directory) and is_sound(fresh)
    assert [len(content(fresh, f"d{i}/f", "1")) for i in range(5)] == [4000] * 5
    victim.gc()
    assert is_sound(victim)


def test_rows_beside_others_keep_nobody_from_reading_these(lab: Lab) -> None:
    """All that a pack has of trees is read together, whatever somebody lists between it."""
    victim, urls = lab.init(lab.urls("a", "b", "c")), lab.urls("a", "b", "c")
    write(victim.directory, {"d/f": os.urandom(4000), "d/g": os.urandom(100)})
    victim.push()

    def make(m: Insider) -> list[tuple[PackRecord, list[Located]]]:
        kinds = ObjectKind.BLOB, ObjectKind.DIR, ObjectKind.FILE, ObjectKind.SNAPSHOT
        return [
            (r, [Located(k, bytes([k]) * 32, n, 0, 9) for k in kinds for n in range(len(r.segments))])
            for r in m.base.index.packs().values()
        ]

    list_rows(lab.clone(urls, device="mallory"), make)
    fresh = lab.clone(urls, device="fresh")
    assert tree_of(fresh.directory) == tree_of(victim.directory)
    assert len(fresh.check(read_data=True).untrue) == 1


def test_a_pack_of_which_the_rest_cannot_be_stored_anew_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, urls = lab.init(lab.urls("a", "b", "c")), lab.urls("a", "b", "c")
    write(victim.directory, {"f": os.urandom(4000)})
    victim.push()
    list_rows(
        lab.clone(urls, device="mallory"),
        lambda m: [(r, [Located(ObjectKind.BLOB, b"\x77" * 32, 0, 0, 9)]) for r in m.base.index.packs().values()],
    )
    with monkeypatch.context() as patch:
        patch.setattr(give_back, "_store_objects", lambda *_: None)
        report = victim.check(read_data=True, repair=True)
    assert len(report.untrue) == report.packs > 0 and (report.lost, report.nowhere) == ((), ())
    assert report.repaired is not None and report.repaired.gone_objects == 0
    assert tree_of(lab.clone(urls, device="fresh").directory) == tree_of(victim.directory)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["directory", "snapshot"])
def test_directories_and_versions_are_looked_for_too(lab: Lab, what: str) -> None:
    victim, urls = lab.init(lab.urls("a", "b", "c")), lab.urls("a", "b", "c")
    write(victim.directory, {"d/f": os.urandom(4000)})
    victim.push()
    mallory = lab.clone(urls, device="mallory")
    with insider(mallory) as m:
        assert m.base.snapshot is not None
        object_id = m.base.snapshot.root if what == "directory" else m.base.state.master
    kind = ObjectKind.DIR if what == "directory" else ObjectKind.SNAPSHOT
    list_in_a_pack_of_its_own(mallory, b"", b"no tree" * 3, kind=kind, object_id=object_id)
    (found,) = victim.check(read_data=True).untrue
    assert (found.ids, found.paths, found.device) == ((object_id,), (b"/",), "mallory")
    assert victim.check(read_data=True, repair=True).untrue == ()
    assert tree_of(lab.clone(urls, device="fresh").directory) == tree_of(victim.directory)


def test_a_segment_that_is_not_what_the_index_says_of_it(lab: Lab) -> None:
    """Each reader of a part of the pack would call it damaged, and each reader of all of it would not."""
    victim = lab.init(lab.urls("a", "b", "c"))
    write(victim.directory, {"f": b"x" * 5000, "g": b"y" * 5000})
    victim.push()
    with insider(victim) as m:
        m._upload.add(ObjectKind.BLOB, m.s.ids.of(ObjectKind.BLOB, b"mine"), b"mine")
        m._upload.finish()
        (segment,) = m._upload.index_segments()
        record, located = segment.packs[0], [o for _, o in segment]
    wrong = record._replace(segments=(record.segments[0]._replace(digest=bytes(32)),))
    list_rows(victim, lambda _: [(wrong, located)])
    (found,) = victim.check(read_data=True).untrue
    assert (found.pack, found.objects, found.paths) == (record.name, 1, ())


# ---- deltas


def test_a_delta_of_which_something_else_comes_is_found_by_what_it_comes_to(lab: Lab) -> None:
    victim, photo = lab.init(lab.urls("a", "b", "c")), os.urandom(5400)
    write(victim.directory, {"base": os.urandom(5000), "photo": photo})
    victim.push()
    mallory = lab.clone(lab.urls("a", "b", "c"), device="mallory")
    with insider(mallory) as m:
        base = m.s.ids.of(ObjectKind.BLOB, (mallory.directory / "base").read_bytes())
    other = delta.make((mallory.directory / "base").read_bytes(), b"no photo" * 600)
    list_in_a_pack_of_its_own(mallory, photo, other, row=Delta(base, 1))
    (found,) = victim.check(read_data=True).untrue
    assert (found.objects, found.paths, found.device) == (1, (b"photo",), "mallory")
    assert victim.check(read_data=True, repair=True).untrue == ()
    assert is_sound(victim)
    assert tree_of(lab.clone(lab.urls("a", "b", "c"), device="fresh").directory) == tree_of(victim.directory)


def test_what_is_no_delta_at_all_is_found(lab: Lab) -> None:
    victim, photo = lab.init(lab.urls("a", "b", "c")), os.urandom(5400)
    write(victim.directory, {"base": os.urandom(5000), "photo": photo})
    victim.push()
    with insider(victim) as m:
        base = m.s.ids.of(ObjectKind.BLOB, (victim.directory / "base").read_bytes())
    list_in_a_pack_of_its_own(victim, photo, b"\x01no delta", row=Delta(base, 1))
    (found,) = victim.check(read_data=True).untrue
    assert found.paths == (b"photo",)


@pytest.mark.few(1)
@pytest.mark.parametrize("together", [1, 4096])
def test_true_deltas_are_true_wherever_their_bases_lie(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(untrue_rows, "OPENED_TOGETHER", together)
    made = write_deltas(monkeypatch)
    w = lab.init(lab.urls("a", "b", "c"))
    for n in range(6):
        write(w.directory, {"doc": edited(n)})
        w.push()
    assert len(made) == 5 and is_sound(w)
    with w._session("look") as s:
        whole = s.ids.of(ObjectKind.BLOB, edited(0))
    list_in_a_pack_of_its_own(w, b"", b"not the whole one", object_id=whole)
    (found,) = w.check(read_data=True).untrue
    assert found.ids == (whole,), "the deltas of it are opened by what is true"


def test_a_backend_that_is_away_makes_nothing_untrue(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltas(monkeypatch)
    w = lab.init(lab.urls("a", "b", "c"))
    for n in range(12):
        write(w.directory, {"doc": edited(n)})
        w.push()
    w.close()
    for name in ("a", "b"):
        for path in lab.objects(name, "packs"):
            path.unlink()
    report = lab.reopen(w).check(read_data=True)
    assert report.problems and report.untrue == ()
