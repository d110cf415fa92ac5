"""`gc` beside pushes, repairs, readers and other collections: what is needed stays, whoever does what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from collect_kit import LAST, STORES, all_is_there, break_off, meanwhile, named, noise, nothing_else_is_there
from workspace_kit import PASSPHRASE, Lab, write

from metasync.consensus import JOURNAL_KEY, Change
from metasync.errors import UsageError, WorkspaceError
from metasync.maintenance import collect, sweep
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store import collection, retention
from metasync.store.pack_format import decode_header
from metasync.sync import push
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace


@pytest.mark.long
def test_a_push_between_mark_and_fence_keeps_what_it_reuses(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It relies on a blob of a dropped version, which its base's index names: the mark comes to know of it."""

    def reuse() -> None:
        write(two.directory, {"back": noise(2)})
        assert two.push().bytes_stored < 20_000, "it is in the index"

    done = meanwhile(monkeypatch, collect._Collection, "_change", reuse)
    six.gc(LAST)
    assert done
    all_is_there(six)
    nothing_else_is_there(six, lab)
    assert lab.clone(lab.urls(*STORES), device="third").read("back") == noise(2)


@pytest.mark.few(1)
@pytest.mark.parametrize("pushes", [1, 2])
def test_a_large_file_that_a_push_reuses_keeps_all_its_parts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, pushes: int
) -> None:
    """Its file object lies in a pack that stays, its chunks in one that goes: the index names neither any more.

    A push that was interrupted after it had read the file asks for the file object alone. With two pushes, the second
    brings the file object, and the first most of the chunks.
    """
    monkeypatch.setattr(collection, "UNUSED_SHARE", 0)  # packs stay as long as anything in them is needed
    monkeypatch.setattr(collection, "MOSTLY_DEAD", 1 << 60)
    w = lab.init(lab.urls("a", kind="memory"))
    large = noise(7, 12 << 20)
    if pushes == 2:
        write(w.directory, {"large": large})
        w.push()
        large += noise(8)
    write(w.directory, {"large": large, "zz": noise(9), **{f"dir{n}/f": noise(n, 2_000) for n in range(40)}})
    w.push()
    with w._session("test") as s:
        index = agreement.newest(s).index
        (record,) = {r.id for i in index.ids(ObjectKind.FILE)[:1] for r, _ in index.find(i)}
    other = lab.clone(lab.urls("a", kind="memory"))
    write(other.directory, {"again": large})
    with monkeypatch.context() as m:
        m.setattr(push._Push, "agree", break_off)
        with pytest.raises(WorkspaceError, match="broke off"):
            other.push()
    (w.directory / "large").unlink()
    w.push(force=True)
    w.gc(LAST)
    assert record in named(w), "what lies beside it is needed"
    (other.directory / "large").unlink()
    other.push()
    all_is_there(other)
    assert w.read("again") == large


@pytest.mark.long
def test_pushes_without_a_pause_are_followed(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each proposal of the fence loses against a push, four times: only the first base is looked at as a whole."""
    looks: list[int] = []
    pushed = iter(range(4))
    real_look, real_change = collect._Collection.look, collect._Collection._change

    def change(self: collect._Collection, found: Any) -> Any:
        out = real_change(self, found)
        if (n := next(pushed, None)) is not None:
            write(two.directory, {"new": noise(60 + n), f"new{n}": noise(70 + n)})
            if n == 2:
                (two.directory / "new0").unlink()
            two.push()
        return out

    monkeypatch.setattr(collect._Collection, "_change", change)
    monkeypatch.setattr(collect._Collection, "look", lambda *a, **o: looks.append(1) or real_look(*a, **o))
    report = six.gc(LAST)
    assert next(pushed, None) is None
    assert len(looks) == 1
    assert (report.kept, report.dropped) == (5, 5)
    all_is_there(six)
    nothing_else_is_there(six, lab)
    assert [i.version for i in six.log()][-1] == 6
    third = lab.clone(lab.urls(*STORES), device="third")
    assert (third.read("new"), third.read("new0", "9"), third.read("f")) == (noise(63), noise(70), noise(106))


def test_a_repair_between_two_fences_is_no_push(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a lost pack out of the index: what the attempt before had stored names that, and is not used."""
    real, done = collect._Collection._change, []

    def change(self: collect._Collection, found: Any) -> Any:
        out = real(self, found)
        if not done:
            done.append(1)
            with two._session("test") as s:
                index = agreement.newest(s).index
                names = {record.name.hex() for record, _ in index.find(s.ids.blob(noise(6)))}
            for store in STORES:
                for path in lab.objects(store, "packs"):
                    if path.name in names:
                        path.unlink()
            assert two.check(repair=True).repaired
        return out

    monkeypatch.setattr(collect._Collection, "_change", change)
    six.gc(LAST)
    assert done
    all_is_there(six)
    nothing_else_is_there(six, lab)


@pytest.mark.long
def test_a_fence_between_a_push_and_its_base_has_it_store_again(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it stored in a fenced generation is deleted, and what it reused is dropped: both are stored anew."""
    write(two.directory, {"new": noise(60), "back": noise(2)})
    done = meanwhile(monkeypatch, push._Push, "agree", lambda: six.gc(LAST))
    report = two.push()
    assert done
    assert report.bytes_stored >= 40_000
    all_is_there(two)
    assert {g for g, _ in named(two)} == {0, 1} or {g for g, _ in named(two)} == {1}
    third = lab.clone(lab.urls(*STORES), device="third")
    assert (third.read("new"), third.read("back")) == (noise(60), noise(2))
    six.gc(LAST)
    all_is_there(six)


def test_a_push_of_the_new_generation_looks_up_what_it_reuses_again(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began after BEGIN, so what it stored counts; what it reused was dropped, and is stored."""
    with six._work.begun("test") as s:
        agreement.propose(s, agreement.newest(s).state, Change(s.entropy(16), gen=1))
        s.db.set(JOURNAL_KEY, None)
    two.pull()
    write(two.directory, {"new": noise(60), "back": noise(2)})
    done = meanwhile(monkeypatch, push._Push, "agree", lambda: six.gc(LAST))
    report = two.push()
    assert done
    assert 40_000 <= report.bytes_stored < 60_000, "the one that it reused, and not the other one again"
    all_is_there(two)
    assert lab.clone(lab.urls(*STORES), device="third").read("back") == noise(2)


@pytest.mark.long
def test_a_push_whose_file_is_gone_by_then_takes_the_tree_as_it_is(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packs do not count any more, and the bytes are not there to be stored again: it scans anew."""
    write(two.directory, {"new": noise(60), "other": noise(61)})

    def gone() -> None:
        six.gc(LAST)
        (two.directory / "new").unlink()

    meanwhile(monkeypatch, push._Push, "agree", gone)
    two.push()
    all_is_there(two)
    assert (lab.clone(lab.urls(*STORES), device="third").directory / "other").read_bytes() == noise(61)


def test_two_collectors(six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second drops other versions between mark and fence of the first, and packs anew what that packs anew."""
    six.tag("2", "draft")
    done = meanwhile(monkeypatch, collect._Collection, "_change", lambda: two.gc(retention.parse("last=3")))
    six.gc(LAST)
    assert done
    all_is_there(six)
    six.gc(), six.gc()  # what the first had packed anew by then
    nothing_else_is_there(six, lab)
    assert [i.version for i in six.log()] == [6, 2]


def test_another_collector_drops_what_was_packed_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only a version needs that is kept no more, by then, is not in the index, though it was packed for it."""
    w = lab.init(lab.urls(*STORES))
    for files in ({"stays": noise(0)}, {"mid": noise(1), "f": noise(2)}, {"f": noise(3)}, {"g": noise(4)}):
        write(w.directory, files)
        if "g" in files:
            (w.directory / "mid").unlink()
        w.push()
    other = lab.clone(lab.urls(*STORES))
    w.tag("1", "first")

    def others() -> None:
        other.gc(LAST)
        other.untag(["first"])
        write(other.directory, {"h": noise(5)})
        other.push()

    done = meanwhile(monkeypatch, collect._Collection, "_change", others)
    w.gc(retention.parse("last=2"))
    assert done
    all_is_there(w)
    assert len(w.log()) == 2


def test_a_name_given_between_mark_and_fence_keeps_its_version(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = meanwhile(monkeypatch, collect._Collection, "_change", lambda: two.tag("3", "late"))
    six.gc(LAST)
    assert done
    assert [i.version for i in six.log()] == [6, 3]
    all_is_there(six)
    assert two.read("file3", "3") == noise(3)


def test_a_name_for_a_version_that_is_dropped_meanwhile_is_refused(
    six: Workspace, two: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who loses to the fence looks at the list of versions again."""
    from metasync.history import tags

    done = meanwhile(monkeypatch, tags.agreement, "propose", lambda: six.gc(LAST))
    with pytest.raises(UsageError, match="version 3 is no longer kept"):
        two.tag("3", "late")
    assert done


def test_new_keys_between_packing_and_fence(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was packed anew is sealed under keys that a revoked device has: it is packed once more."""
    w = lab.init(lab.urls(*STORES))
    write(w.directory, {f"f{n}": noise(n) for n in range(20)})
    w.push()
    other = lab.clone(lab.urls(*STORES))
    for n in range(1, 20):
        (w.directory / f"f{n}").unlink()
    w.push(force=True)
    done = meanwhile(monkeypatch, collect._Collection, "_change", lambda: other.key_rotate(PASSPHRASE))
    w.gc(LAST)
    assert done
    all_is_there(w)
    with w._session("test") as s:
        newest = agreement.newest(s)
        epochs = {decode_header(p.header).epoch for p in newest.index.packs().values() if p.generation}
        assert newest.state.epoch == 2
        assert epochs == {2}, "nothing that is new is sealed under old keys"


@pytest.mark.long
def test_backends_that_change_between_packing_and_fence(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was packed anew lies where the backends of then wanted it: it is packed once more, for those of now."""
    w = lab.init(lab.urls(*STORES))
    write(w.directory, {f"f{n}": noise(n) for n in range(20)})
    w.push()
    other = lab.clone(lab.urls(*STORES))
    for n in range(1, 20):
        (w.directory / f"f{n}").unlink()
    w.push(force=True)
    url = lab.url("d")
    done = meanwhile(monkeypatch, collect._Collection, "_change", lambda: other.backend_add(url))
    uploads: list[Upload] = []
    real = collect.Upload

    def upload(*args: Any, **options: Any) -> Upload:
        uploads.append(real(*args, **options))
        return uploads[-1]

    monkeypatch.setattr(collect, "Upload", upload)
    assert w.gc(LAST).packed_anew
    assert done
    assert len(uploads) == 2
    before, after = (set(u.transfer.placement.order(bytes(32))) for u in uploads)
    assert len(after - before) == 1, "the new backend"
    w.link("d", url)
    all_is_there(w)
    assert w.read("f0") == noise(0)


def test_a_collector_that_sleeps_before_it_deletes(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its list, then others push, bring back what it is about to delete, and collect: it deletes by its list."""
    real = sweep.listed

    def asleep(s: Session, away: dict[str, str], below: int | None = None) -> Iterator[sweep.Copy]:
        copies = list(real(s, away, below))
        if s.directory == six.directory and below is not None:
            write(two.directory, {"back": noise(1), "new": noise(70)})
            two.push()
            monkeypatch.setattr(sweep, "listed", real)
            two.gc(LAST)
            write(two.directory, {"newer": noise(71)})
            two.push()
        yield from copies

    monkeypatch.setattr(sweep, "listed", asleep)
    six.gc(LAST)
    all_is_there(two)
    assert six.read("back") == noise(1)


def test_a_collector_that_sleeps_between_fence_and_list(
    six: Workspace, two: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another one has fenced more: what its own index lacks it may not delete up to that fence."""

    def more() -> None:
        write(two.directory, {"new": noise(70), "goes": noise(71)})
        two.push()
        (two.directory / "goes").unlink()
        write(two.directory, {"newer": noise(72)})
        two.push()
        two.gc(LAST)

    done = meanwhile(monkeypatch, collect._Collection, "_swept", more)
    six.gc(LAST)
    assert done
    all_is_there(two)
    assert (six.read("new"), six.read("newer")) == (noise(70), noise(72))


def test_what_lies_in_two_packs_that_both_go_is_packed_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices stored one file at the same time, each beside much that goes."""
    w = lab.init(lab.urls(*STORES))
    write(w.directory, {"first": b"x"})
    w.push()
    other = lab.clone(lab.urls(*STORES))
    write(w.directory, {"same": noise(5), **{f"w{n}": noise(100 + n) for n in range(9)}})
    write(other.directory, {"same too": noise(5), **{f"o{n}": noise(200 + n) for n in range(9)}})
    done = meanwhile(monkeypatch, push._Push, "agree", w.push)
    other.push()
    assert done
    with other._session("test") as s:
        index = agreement.newest(s).index
        assert [len(index.find(i)) for i in index.ids(ObjectKind.BLOB)].count(2) == 1
    for path in [*other.directory.glob("o*"), *other.directory.glob("w*")]:
        path.unlink()
    other.push(force=True)
    assert other.gc(LAST).packed_anew
    all_is_there(other)
    nothing_else_is_there(other, lab)
    assert (other.read("same"), other.read("same too")) == (noise(5), noise(5))


def test_a_reader_beside_the_collector(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun at a version whose packs are gone when it comes to them."""
    with six._session("test") as s:
        s.db._execute("DELETE FROM objects WHERE kind < 6")
    with two._session("test") as s:
        s.db._execute("DELETE FROM objects WHERE kind < 6")
        base = agreement.newest(s)
        six.gc(LAST)
        contents = s.contents(base)
        tree = s.flat(base, contents)
        assert contents.load(ObjectKind.BLOB, [tree[b"file5"].content])


def test_check_beside_the_collector(six: Workspace, two: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun by an index whose packs go meanwhile, and calls none of them missing."""
    from metasync.maintenance import check

    done = meanwhile(monkeypatch, check, "looked_at", lambda: six.gc(LAST))
    report = two.check(read_data=True)
    assert done
    assert (report.problems, report.lost, report.short) == ((), (), 0)


def test_a_device_that_slept_over_it_loses_nothing(six: Workspace, two: Workspace, lab: Lab) -> None:
    """Its base is no longer kept. What both have stays, what it changed comes back, and nothing counts as deleted."""
    write(two.directory, {"mine": noise(80), "f": noise(81)})
    (two.directory / "stays").unlink()
    (six.directory / "file4").unlink()
    write(six.directory, {"f": noise(82)})
    six.push()
    six.gc(LAST)
    with two._session("test") as s:
        s.db._execute("DELETE FROM objects WHERE kind < 6")
    assert two.status().version == 7
    report = two.push()
    assert report.version is not None
    there = {p.name: p.read_bytes() for p in two.directory.iterdir() if p.is_file()}
    assert there["mine"] == noise(80)
    assert {noise(81), noise(82)} <= set(there.values())
    all_is_there(two)
    six.pull()
    assert {p.name: p.read_bytes() for p in six.directory.iterdir() if p.is_file()} == there
