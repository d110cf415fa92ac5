"""An index that leaves out packs which older versions need, by one device that lies or is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attack_kit import NO_BLOB, Insider, insider
from test_unreadable_version import _change, _put, _with_segment
from workspace_kit import Lab, write

from metasync.errors import DamagedError, UnreadableError
from metasync.events import Notice
from metasync.keys.derive import sha256
from metasync.store.index import INLINE_TAG, IndexRoot, Ref, RootItem, encode_root, encode_segment, make_segment
from metasync.workspace import Workspace

OLD = (b"the first", b"the second", b"the third")


def _empty(m: Insider) -> int:
    return _change(m, index=_put(m, encode_root(IndexRoot(()))))


def _tombstones(m: Insider) -> int:
    packs = {record.id for segment in m.base.segments for record, _ in segment}
    return _with_segment(m, encode_segment(make_segment((), packs)))


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


@pytest.mark.parametrize("pushes", [0, 1, 5])
@pytest.mark.parametrize("way", [_empty, _tombstones])
def test_who_left_packs_out_is_named_by_all_that_miss_them(
    victim: Workspace, lab: Lab, way: Callable[[Insider], int], pushes: int
) -> None:
    """Old versions are asked for, on a device that has the older index in its local state and, once there is a newer
    tree that can be read, on a new one."""
    bad = _left_out(lab, way)
    _later(victim, pushes)
    devices = [victim]
    if pushes:
        victim.check(repair=True)  # of the newest version all is stored again
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

    def one(m: Insider) -> int:
        index = m.base.index
        segment = make_segment((r, [o for o in index.inside(r) if o.id != old]) for r in index.packs().values())
        data = encode_segment(segment)
        tags = ((INLINE_TAG, data),)
        item = RootItem(Ref(m.base.state.gen, sha256(data)), len(data), len(segment), len(segment.packs), tags)
        return _change(m, index=_put(m, encode_root(IndexRoot((item,)))))

    bad = _left_out(lab, one)
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
