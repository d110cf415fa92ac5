"""A collection beside a device that lies about its versions, to have others dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from attack_kit import Insider, insider
from collect_kit import LAST, noise, nothing_else_is_there
from workspace_kit import Lab, write

from metasync.codec import u64
from metasync.errors import UsageError
from metasync.maintenance import collect
from metasync.objects.model import VERSION_TAG, ObjectKind, Snapshot, encode_snapshot
from metasync.session import agreement
from metasync.store import retention
from metasync.workspace import Workspace


def tell(w: Workspace, number: int | None = None, after: bytes | None = None, made_up: bytes = b"") -> int:
    """An insider has a version agreed that says so of itself, and an honest device pushes on it. -> its number.

    `after`: the snapshot that it says comes before, b"" for none; `made_up`: one that it forges as version 5, with this
    one before it.
    """

    def said(m: Insider, root: bytes, parent: bytes, v: int) -> bytes:
        parents = (parent,) if parent else ()
        return encode_snapshot(Snapshot(root, parents, m.s.device.device_id, 0, "", ((VERSION_TAG, u64(v)),)))

    with insider(w) as m:
        root, state = m.tree({b"x": m.file(b"x")}), m.base.state
        before = state.master if after is None else after
        if made_up:
            before = m.put(ObjectKind.SNAPSHOT, said(m, root, made_up, 5))
        told = m.commit(root, snapshot=said(m, root, before, state.v + 1 if number is None else number))
    write(w.directory, {"y": b"y"})
    w.pull()
    w.push()
    return told


def reads(w: Workspace, versions: Iterable[int]) -> None:
    """Each version that six_versions made has its tree whole, and the others are gone by agreement."""
    for n in range(1, 7):
        if n in versions:
            assert w.read("f", str(n)) == noise(100 + n) and w.read("stays", str(n)) == noise(0)
        else:
            with pytest.raises(UsageError, match="no longer kept"):
                w.read("f", str(n))


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [0, 2, 6, 99])
def test_a_device_that_lies_about_its_version_has_no_other_dropped(six: Workspace, lab: Lab, number: int) -> None:
    """An insider's snapshot says that it is version 2: by its word versions 3 to 6 would stand in one gap with it, and
    no policy could be gone by any more. By the chain of states it is what it was agreed as."""
    told = tell(six, number)
    six.gc(retention.parse("last=4"))
    reads(six, [5, 6])
    assert six.read("x", str(told)) == b"x"
    six.gc(retention.parse("last=2"))
    reads(six, [])
    assert six.read("x", str(told)) == b"x"
    six.gc(LAST)
    nothing_else_is_there(six, lab)


LED = pytest.mark.parametrize("how", ["no parent", "an older parent", "an older number", "a made-up parent"])


def lead_past(w: Workspace, how: str) -> int:
    """... which says that another version is before it than was, none, or that it stands at a gap."""
    third = next(one for one in w.log() if one.version == 3).snapshot
    if how == "an older number":
        return tell(w, number=3)
    if how == "a made-up parent":
        return tell(w, made_up=third)
    return tell(w, after=b"" if how == "no parent" else third)


@pytest.mark.few(1)
@LED
def test_a_device_that_leads_past_versions_has_none_dropped(six: Workspace, lab: Lab, how: str) -> None:
    """What no snapshot leads to any more is kept, as long as nobody drops it: the chain of states has it."""
    six.gc(retention.parse("last=4"))  # 3 to 6
    six.tag("5", "draft")
    told = lead_past(six, how)
    for _ in range(2):
        six.gc()
        reads(six, [3, 4, 5, 6])
        assert six.read("x", str(told)) == b"x"
    six.gc(retention.parse("last=3"))
    reads(six, [5, 6])
    six.untag(["draft"])
    six.gc(retention.parse("last=3"))
    reads(six, [6])
    assert six.check(read_data=True).lost == ()
    six.gc(LAST)
    nothing_else_is_there(six, lab)


@pytest.mark.few(1)
@LED
def test_so_it_is_while_a_collection_follows_pushes(
    six: Workspace, two: Workspace, lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insider pushes while the collector is between its look and its fence."""
    once, stored = [lead_past], collect._Collection._index

    def late(self: Any, found: Any) -> Any:
        refs = stored(self, found)
        if once:
            once.pop()(two, how)
        return refs

    two.sync()
    monkeypatch.setattr(collect._Collection, "_index", late)
    six.gc(retention.parse("last=4"))
    assert not once
    reads(lab.reopen(six), [n for n in range(1, 7) if not _is_dropped(two, n)])
    for n in (5, 6):
        assert not _is_dropped(two, n)


def _is_dropped(w: Workspace, version: int) -> bool:
    w.pull()
    with w._session("test") as s:
        return s.indexes.retained(agreement.newest(s).state).has_dropped(version)
