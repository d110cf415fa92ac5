"""An index that leaves out packs which older versions need, by one device that lies or is broken."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attack_kit import NO_BLOB, Insider, insider
from delta_kit import edited, write_deltas
from test_false_rows import list_in_a_pack_of_its_own
from test_unreadable_version import _change, _put, _with_segment
from workspace_kit import PASSPHRASE, Lab, forget_bases, tree_of, write

from metasync.errors import DamagedError, UnreachableError, UnreadableError, UsageError
from metasync.events import Notice
from metasync.keys.derive import sha256
from metasync.maintenance import check
from metasync.maintenance.repair import left_out_packs, matching_files
from metasync.maintenance.repair.needs import Needs
from metasync.objects.model import ObjectKind
from metasync.store.index import (
    INLINE_TAG,
    IndexRoot,
    Ref,
    RootItem,
    decode_segment,
    encode_root,
    encode_segment,
    make_segment,
)
from metasync.store.retention import parse as parse_policy
from metasync.workspace import Workspace

OLD = (b"the first", b"the second", b"the third")


def _empty(m: Insider) -> int:
    return _change(m, index=_put(m, encode_root(IndexRoot(()))))


def _tombstones(m: Insider) -> int:
    packs = {record.id for segment in m.base.segments for record, _ in segment}
    return _with_segment(m, encode_segment(make_segment((), packs)))


def _without(m: Insider, object_id: bytes) -> bytes:
    """A segment of all that the index has but one object."""
    index = m.base.index
    return encode_segment(
        make_segment((r, [o for o in index.inside(r) if o.id != object_id]) for r in index.packs().values())
    )


def _with_only(m: Insider, data: bytes, **changes: Any) -> int:
    """Has a version agreed whose index is this one segment."""
    segment, tags = decode_segment(data), ((INLINE_TAG, data),)
    item = RootItem(Ref(m.base.state.gen, sha256(data)), len(data), len(segment), len(segment.packs), tags)
    return _change(m, index=_put(m, encode_root(IndexRoot((item,)))), **changes)


@pytest.fixture
def victim(lab: Lab) -> Iterator[Workspace]:
    """A device that pushed a file in three versions, another one with it."""
    victim = lab.init(lab.urls("a", "b", kind="memory"))
    for n, data in enumerate(OLD):
        write(victim.directory, {"f": data, "d/same": b"in all", f"n{n}": b"of %d" % n})
        victim.push()
    yield victim


def _left_out(lab: Lab, way: Callable[[Insider], int] = _empty) -> int:
    with insider(lab.clone(lab.urls("a", "b", kind="memory"), device="mallory")) as m:
        return way(m)


def _later(victim: Workspace, pushes: int) -> None:
    """Honest versions on top."""
    for n in range(pushes):
        write(victim.directory, {"f": b"later %d" % n})
        victim.push()


def _told(device: Workspace, operation: Callable[[], object]) -> list[str]:
    """What an operation tells beside what it returns."""
    told: list[str] = []
    device.on_event = lambda event: told.append(event.text) if isinstance(event, Notice) else None
    operation()
    return told


@pytest.mark.few(2)
@pytest.mark.parametrize("pushes", [0, 1, 5])
@pytest.mark.parametrize("way", [_empty, _tombstones])
def test_who_left_packs_out_is_named_by_all_that_miss_them(
    victim: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch, way: Callable[[Insider], int], pushes: int
) -> None:
    """Old versions are asked for, on a device that has the older index in its local state and, once there is a newer
    tree that can be read, on a new one."""
    bad = _left_out(lab, way)
    _later(victim, pushes)
    devices = [victim]
    if pushes:
        with monkeypatch.context() as patch:  # of the newest version all is stored again, and nothing else done
            patch.setattr(check, "rejoin", lambda s, agreed, *_: (None, agreed, Needs(s, agreed)))
            patch.setattr(matching_files, "find", lambda *_, **__: lambda _: False)
            victim.check(repair=True)
        devices.append(lab.clone(lab.urls("a", "b", kind="memory"), device="third"))
    for device in devices:
        operations: list[Callable[[], object]] = [
            lambda w=device: w.read(b"f", "1"),  # type: ignore[misc]
            lambda w=device: w.restore("2", [b"f"]),  # type: ignore[misc]
            lambda w=device: w.diff("1", "2"),  # type: ignore[misc]
            lambda w=device: w.tag("1", "important"),  # type: ignore[misc]
            device.gc,
        ]
        for operation in operations:
            with pytest.raises(DamagedError) as raised:
                operation()
            assert f"version {bad}, which mallory wrote, left that out of the index" in raised.value.message
            assert "`metasync check --repair`" in raised.value.next_step
            assert raised.value.exit_code == 7
        told = _told(device, device.log)
        assert any(f"version {bad}, which mallory wrote" in text and "check --repair" in text for text in told)


def test_an_object_of_an_old_version_alone_is_missed(victim: Workspace, lab: Lab) -> None:
    """The pack of the first version's contents is left out, and all trees stay."""
    with victim._session("test") as s:
        old = s.ids.blob(OLD[0])

    bad = _left_out(lab, lambda m: _with_only(m, _without(m, old)))
    _later(victim, 2)
    with pytest.raises(DamagedError, match=f"version {bad}, which mallory wrote, left that out") as raised:
        victim.read(b"f", "1")
    assert "f of version 1 cannot be read" in raised.value.message
    assert victim.read(b"f", "2") == OLD[1]


def test_what_never_was_in_an_index_is_left_out_by_nobody(victim: Workspace, lab: Lab) -> None:
    """A version whose contents no pack ever had: no other version is blamed for it."""
    with insider(lab.clone(lab.urls("a", "b", kind="memory"), device="mallory")) as m:
        never = m.commit(m.tree({b"none": m.file(b"x")._replace(content=NO_BLOB)}))
    _later(victim, 2)
    with pytest.raises(DamagedError) as raised:
        victim.read(b"none", str(never))
    assert "left that out" not in raised.value.message


def test_a_new_device_is_told_what_puts_it_back(victim: Workspace, lab: Lab) -> None:
    bad = _left_out(lab)
    with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote, cannot be read") as raised:
        lab.clone(lab.urls("a", "b", kind="memory"), device="third")
    assert "check --repair" in raised.value.next_step
    assert f"`metasync skip {bad}`" in raised.value.next_step


# ---- what puts it back


def _whole(device: Workspace, at: tuple[int, ...] = (1, 2, 3)) -> bool:
    """Whether all old versions can be read here."""
    return [device.read(b"f", str(v)) for v in at] == [OLD[v - 1] for v in at]


@pytest.mark.few(1)
@pytest.mark.parametrize("pushes", [0, 5])
@pytest.mark.parametrize("way", [_empty, _tombstones])
def test_a_repair_puts_back_what_an_index_left_out(
    victim: Workspace, lab: Lab, way: Callable[[Insider], int], pushes: int
) -> None:
    """On the device that knows the older index, with honest versions on top: nothing is stored again, all that was
    left out is named again, and a collection goes on as ever."""
    bad = _left_out(lab, way)
    _later(victim, pushes)
    report = victim.check(repair=True)
    assert report.repaired is not None
    assert [(one.version, one.device, one.packs) for one in report.repaired.left_out] == [(bad, "mallory", 3)]
    assert (report.repaired.stored_bytes, report.nowhere, report.lost) == (0, (), ())
    assert report.problems == report.meta_problems == ()
    assert _whole(victim)
    assert [item.version for item in victim.log()][-3:] == [3, 2, 1]
    third = lab.clone(lab.urls("a", "b", kind="memory"), device="third")
    assert _whole(third)
    assert third.gc().dropped == 0
    assert _whole(third)
    assert third.check(repair=True).repaired is None


@pytest.mark.few(1)
@pytest.mark.parametrize("way", [_empty, _tombstones])
def test_a_new_device_puts_it_back_itself(victim: Workspace, lab: Lab, way: Callable[[Insider], int]) -> None:
    """A clone stopped, since the newest tree is in no pack that is named: a repair there has no older index at hand."""
    bad = _left_out(lab, way)
    urls = lab.urls("a", "b", kind="memory")
    with pytest.raises(UnreadableError):
        lab.clone(urls, device="third")
    with Workspace.open(lab.root / "third") as third:
        report = third.check(repair=True)
    assert report.repaired is not None
    assert [(one.version, one.device) for one in report.repaired.left_out] == [(bad, "mallory")]
    assert _whole(lab.clone(urls, device="third"))
    assert _whole(victim)


@pytest.mark.long
def test_what_a_false_fence_let_go_is_stored_anew(victim: Workspace, lab: Lab) -> None:
    """The version that leaves packs out also fences them, so that anybody may delete them at any time: they are not
    named again, what is needed of them is read and stored anew, and stays when they are deleted."""
    mallory = lab.clone(lab.urls("a", "b", kind="memory"), device="mallory")
    with insider(mallory) as m:
        gen = m.base.state.gen + 1
        _change(m, gen=gen)
    with insider(mallory) as m:
        bad = _change(m, index=_put(m, encode_root(IndexRoot(()))), min_gen=gen)
    _later(victim, 1)
    report = victim.check(repair=True)
    assert report.repaired is not None
    assert [(one.version, one.packs) for one in report.repaired.left_out] == [(bad, 3)]
    assert _whole(victim)
    freed = victim.gc().freed
    assert sum(one.packs for one in freed) >= 6
    assert _whole(victim)
    assert _whole(lab.clone(lab.urls("a", "b", kind="memory"), device="third"))


@pytest.fixture
def kept(lab: Lab) -> Workspace:
    """The same on folders, of which a test can take packs."""
    kept = lab.init(lab.urls("a", "b"))
    for data in OLD:
        write(kept.directory, {"f": data, "d/same": b"in all"})
        kept.push()
    return kept


def _pack_of(device: Workspace, data: bytes) -> bytes:
    """The name of the pack that has these contents of a file."""
    with device._session("test") as s:
        ((record, _),) = s.base().index.find(s.ids.blob(data))
    return record.name


def _take(lab: Lab, name: bytes, backends: str = "ab") -> dict[Path, bytes]:
    """Takes the copies of a pack from backends. -> what they were."""
    paths = [path for backend in backends for path in lab.objects(backend, "packs") if path.name == name.hex()]
    taken = {path: path.read_bytes() for path in paths}
    assert taken
    for path in taken:
        path.unlink()
    return taken


def test_of_what_was_left_out_and_is_gone_nothing_is_named(kept: Workspace, lab: Lab) -> None:
    """One pack of three is on no backend any more: the index names none that is not there, and all others."""
    gone = _pack_of(kept, OLD[1])
    with insider(lab.clone(lab.urls("a", "b"), device="mallory")) as m:
        bad = _empty(m)
    _take(lab, gone)
    report = kept.check(repair=True)
    assert report.repaired is not None
    assert [(one.version, one.packs) for one in report.repaired.left_out] == [(bad, 2)]
    assert report.lost == ()
    assert report.problems == ()
    assert _whole(kept, (1, 3))
    with pytest.raises(DamagedError):
        kept.read(b"f", "2")
    with kept._session("test") as s:
        assert gone not in {pack[1] for pack in s.load(s.newest_state()).index.packs()}


def test_what_one_copy_is_left_of_gets_its_other_again(kept: Workspace, lab: Lab) -> None:
    name = _pack_of(kept, OLD[0])
    with insider(lab.clone(lab.urls("a", "b"), device="mallory")) as m:
        _empty(m)
    _take(lab, name, "a")
    report = kept.check(repair=True)
    assert report.repaired is not None
    assert (report.repaired.copies, report.short, report.lost) == (1, 0, ())
    assert _whole(kept)


@pytest.mark.long
def test_what_a_backend_that_is_away_may_hold_is_not_given_up(lab: Lab) -> None:
    """Packs have one copy each, and a backend is away: what the others hold is named, the rest with the next run."""
    urls = lab.urls("a", "b", "c")
    kept = lab.init(urls, replicas=1)
    for n in range(6):
        write(kept.directory, {"f": b"version %d" % n})
        kept.push()
    with insider(lab.clone(urls, device="mallory")) as m:
        _empty(m)
    holder = next(name for name in "abc" if lab.objects(name, "packs"))
    kept.close()
    away = lab.lose(holder)
    kept = lab.reopen(kept)
    kept.check(repair=True)  # where which pack lies is drawn, and so is what this one finds
    kept.close()
    away.rename(lab.store(holder))
    kept = lab.reopen(kept)
    kept.check(repair=True)
    assert [kept.read(b"f", str(n + 1)) for n in range(6)] == [b"version %d" % n for n in range(6)]


def test_what_a_collection_let_go_comes_back_by_nothing(kept: Workspace, lab: Lab) -> None:
    """Versions were dropped by a policy, and one backend still has a pack of theirs: no repair names that again."""
    taken = {path: path.read_bytes() for path in lab.objects("a", "packs")}
    assert kept.gc(parse_policy("last=1")).dropped == 2
    for path, data in taken.items():
        if not path.exists():
            path.write_bytes(data)
    before = kept.status().version
    assert kept.check(repair=True).repaired is None
    assert kept.status().version == before
    with insider(lab.clone(lab.urls("a", "b"), device="mallory")) as m:
        bad = _empty(m)
    report = kept.check(repair=True)
    assert report.repaired is not None
    assert [one.version for one in report.repaired.left_out] == [bad]
    assert [item.version for item in kept.log()] == [3]
    assert kept.read(b"f", "3") == OLD[2]
    with kept._session("test") as s:
        index = s.load(s.newest_state()).index
        assert not any(s.ids.blob(data) in index for data in OLD[:2])


def test_a_collection_that_is_faster_is_looked_at_again(
    victim: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version is agreed while a repair names packs again, and lets go the oldest versions: the repair goes by
    what that says."""
    _left_out(lab)
    mallory = Workspace.open(lab.root / "mallory")
    named, before = list[int](), left_out_packs.name_in_index

    def overtaken(*args: Any) -> Any:
        if not named:
            named.append(1)
            with insider(mallory) as m:
                _change(m, gen=m.base.state.gen + 1)
            with insider(mallory) as m:
                _change(m, min_gen=m.base.state.gen)
        return before(*args)

    monkeypatch.setattr(left_out_packs, "name_in_index", overtaken)
    assert victim.check(repair=True).repaired is not None
    assert _whole(victim)
    with victim._session("test") as s:
        newest = s.load(s.newest_state())
    assert {pack[0] for pack in newest.index.packs()} == {newest.state.gen}, (
        "the old ones are fenced: all was stored anew"
    )


@pytest.mark.long
def test_a_large_file_of_which_a_part_is_gone_is_not_said_to_be_there(lab: Lab) -> None:
    """Of a file in chunks one was in a pack that is gone. Its list of chunks is not named, or a push of the same file
    would take it for stored."""
    urls = lab.urls("a", "b")
    kept = lab.init(urls)
    large = random.Random(1).randbytes(9 << 20)
    write(kept.directory, {"large": large})
    kept.push()
    (kept.directory / "large").unlink()
    write(kept.directory, {"f": b"small"})
    kept.push()
    with kept._session("test") as s:
        index = s.base().index
        (file_id,) = index.ids(ObjectKind.FILE)
        blobs = [r for r in index.packs().values() if not index.inside(r, blobs=False)]
    with insider(lab.clone(urls, device="mallory")) as m:
        _empty(m)
    _take(lab, blobs[0].name)
    forget_bases(kept)
    kept.check(repair=True)
    with kept._session("test") as s:
        assert file_id not in s.load(s.newest_state()).index
    write(kept.directory, {"again": large})
    kept.push()
    assert tree_of(lab.clone(urls, device="third").directory)[b"again"].data == large
    assert kept.read(b"large", "1") == large


def test_deltas_come_back_with_what_they_are_made_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_deltas(monkeypatch)
    urls = lab.urls("a", "b", kind="memory")
    kept = lab.init(urls)
    for n in range(5):
        write(kept.directory, {"f": edited(n)})
        kept.push()
    assert made
    monkeypatch.undo()
    with insider(lab.clone(urls, device="mallory")) as m:
        _empty(m)
    write(kept.directory, {"other": b"later"})
    kept.push()
    kept.check(repair=True)
    assert [kept.read(b"f", str(n + 1)) for n in range(5)] == [edited(n) for n in range(5)]


def test_a_collection_keeps_older_indexes_while_contents_are_missed(victim: Workspace, lab: Lab) -> None:
    """All trees are named, contents of the first version are not, and their pack is fenced: a collection goes on, and
    what a repair needs to find them stays."""
    with victim._session("test") as s:
        old = s.ids.blob(OLD[0])
    mallory = lab.clone(lab.urls("a", "b", kind="memory"), device="mallory")
    with insider(mallory) as m:
        gen = m.base.state.gen + 1
        _change(m, gen=gen)
    with insider(mallory) as m:
        bad = _with_only(m, _without(m, old), min_gen=gen)
    third = lab.clone(lab.urls("a", "b", kind="memory"), device="third")
    assert third.gc().missing == 1
    assert third.gc().missing == 1
    fourth = lab.clone(lab.urls("a", "b", kind="memory"), device="fourth")
    report = fourth.check(repair=True)
    assert report.repaired is not None
    assert [(one.version, one.device) for one in report.repaired.left_out] == [(bad, "mallory")]
    assert _whole(fourth)


def test_a_pack_that_is_said_to_have_the_same_keeps_none_out(victim: Workspace, lab: Lab) -> None:
    """A device lists contents of others in a pack of its own, over other bytes, and then leaves all packs out: the true
    one is named again, too, or a collection would take it for what a broken push left."""
    mallory = lab.clone(lab.urls("a", "b", kind="memory"), device="mallory")
    list_in_a_pack_of_its_own(mallory, OLD[0], b"not it")
    with insider(mallory) as m:
        _empty(m)
    victim.check(repair=True)
    for _ in range(2):
        victim.gc()
    assert _whole(victim)
    assert _whole(lab.clone(lab.urls("a", "b", kind="memory"), device="third"))


def test_a_row_that_is_not_true_does_not_come_back(kept: Workspace, lab: Lab) -> None:
    """Contents are lost, but for a pack that another device said to have them. A repair took that out of the index.
    Older indexes name it, and it stays out."""
    true = _pack_of(kept, OLD[0])
    list_in_a_pack_of_its_own(lab.clone(lab.urls("a", "b"), device="mallory"), OLD[0], b"not it")
    _take(lab, true)
    for read_data in (True, False, True):
        report = kept.check(read_data=read_data, repair=True)
        assert report.problems == ()
        with kept._session("test") as s:
            assert s.ids.blob(OLD[0]) not in s.load(s.newest_state()).index
    assert report.repaired is None
    assert _whole(kept, (2, 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_skip_carries_the_packs_of_the_last_good_index(victim: Workspace, lab: Lab, *, is_fenced: bool) -> None:
    """A clone that stopped at the version skips it: what that left out is in the index again, and no collection of
    others takes it."""
    mallory, urls = lab.clone(lab.urls("a", "b", kind="memory"), device="mallory"), lab.urls("a", "b", kind="memory")
    with insider(mallory) as m:
        gen = m.base.state.gen + is_fenced
        _change(m, gen=gen)
    with insider(mallory) as m:
        bad = _change(m, index=_put(m, encode_root(IndexRoot(()))), min_gen=gen)
    with pytest.raises(UnreadableError):
        lab.clone(urls, device="third")
    with Workspace.open(lab.root / "third") as third:
        assert third.skip(bad, PASSPHRASE).skipped == (bad,)
    victim.pull()
    assert _whole(victim)
    for _ in range(2):
        victim.gc()
    assert _whole(victim)
    assert _whole(lab.clone(urls, device="third"))


def test_where_the_version_can_be_read_a_skip_names_the_repair(victim: Workspace, lab: Lab) -> None:
    """A device that has all objects in its local state can read the newest version: nothing is skipped there."""
    bad = _left_out(lab)
    for pushes in range(2):
        _later(victim, pushes)
        with pytest.raises(UsageError, match=f"version {bad} left 3 packs out of the index") as raised:
            victim.skip(bad, PASSPHRASE)
        assert "check --repair" in raised.value.next_step
    victim.check(repair=True)
    assert _whole(victim)


def test_a_version_of_a_collection_left_nothing_out(kept: Workspace) -> None:
    assert kept.gc(parse_policy("last=1")).dropped == 2
    with kept._session("test") as s:
        newest = s.newest_state().v
    with pytest.raises(UsageError, match="nothing is to be skipped") as raised:
        kept.skip(newest, PASSPHRASE)
    assert "left" not in raised.value.message


def test_a_backend_that_is_away_ends_no_repair_by_what_it_has_of_old_versions(lab: Lab) -> None:
    """The history of old versions is on a backend that is away, and not here: a repair does what else it can."""
    urls = lab.urls("a", "b", "c")
    kept = lab.init(urls, replicas=1)
    for n in range(6):
        write(kept.directory, {"f": b"version %d" % n})
        kept.push()
    name = _pack_of(kept, b"version 0")
    third = lab.clone(urls, device="third")
    third.close()
    holder = next(b for b in "abc" if any(path.name == name.hex() for path in lab.objects(b, "packs")))
    lab.lose(holder)
    third = lab.reopen(third)
    told = _told(third, lambda: third.check(repair=True))
    assert any("what older versions need is not known" in text for text in told)


def test_a_new_device_without_an_older_index_is_told_as_before(victim: Workspace, lab: Lab) -> None:
    """Nothing comes back, since no older index can be had, and the newest tree is in no pack: no repair says that all
    is well."""
    bad = _left_out(lab)
    with pytest.raises(UnreadableError):
        lab.clone(lab.urls("a", "b", kind="memory"), device="third")
    with Workspace.open(lab.root / "third") as third:
        for error in (DamagedError("gone"), UnreachableError("away")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(left_out_packs, "_look", _raising(error))
                with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote"):
                    third.check(repair=True)


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_collection_deletes_no_pack_of_which_another_is_only_said_to_have_all(lab: Lab) -> None:
    """A device lists all that a pack has in one of its own, over other bytes, and leaves out the true one. That looks
    like what a broken push left. Collections keep it, and repairs put back what it has."""
    urls, files = lab.urls("a", "b"), {f"x{n}": random.Random(n).randbytes(60_000) for n in range(90)}
    kept = lab.init(urls)
    write(kept.directory, files)
    kept.push()
    with kept._session("test") as s:
        index = s.base().index
        true = next(r for r in index.packs().values() if not index.inside(r, blobs=False))
        ids = {o.id for o in index.inside(true)}
        hidden = {name for name, data in files.items() if s.ids.blob(data) in ids}
    assert len(hidden) > 10
    for name in hidden:
        (kept.directory / name).unlink()
    write(kept.directory, {"f": b"later"})
    kept.push(force=True)
    mallory = lab.clone(urls, device="mallory")
    with insider(mallory) as m:
        for n, object_id in enumerate(sorted(ids)):
            m._upload.add(ObjectKind.BLOB, object_id, b"not it %d" % n)
        m._upload.seal()
        with m.s.indexes.storing(m.base.state, m.base.root, m.base.segments, m._upload.index_segments()) as stored:
            m._upload.finish()
            _change(m, index=stored()[-1])
    with insider(mallory) as m:
        index = m.base.index
        segment = make_segment((r, index.inside(r)) for r in index.packs().values() if r.id != true.id)
        bad = _with_only(m, encode_segment(segment))
    for _ in range(3):
        assert kept.gc().missing == 0
    third = lab.clone(urls, device="third")
    assert third.gc().missing == 0
    report = third.check(read_data=True, repair=True)
    assert report.repaired is not None and report.repaired.gone == () and report.nowhere == ()
    assert (bad, "mallory") in [(one.version, one.device) for one in report.repaired.left_out]
    assert third.check(repair=True).repaired is None, "one repair is enough"
    assert {name: kept.read(name.encode(), "1") for name in hidden} == {name: files[name] for name in hidden}
    kept.gc()
    assert kept.gc().notes == ()
    assert {name: kept.read(name.encode(), "1") for name in hidden} == {name: files[name] for name in hidden}
