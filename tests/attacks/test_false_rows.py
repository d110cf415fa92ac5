"""A device says in its index that an object lies in a pack of its own, over other bytes; others collect garbage."""

from __future__ import annotations

import os

import pytest
from attack_kit import insider
from workspace_kit import Lab, tree_of, write

from metasync.consensus import JOURNAL_KEY, Change
from metasync.maintenance import duplicates
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.workspace import Workspace


def list_in_a_pack_of_its_own(device: Workspace, blob: bytes, stored: bytes) -> None:
    """Has a version agreed that lists a blob, which others have stored, in a pack of this device; with these bytes."""
    with insider(device) as m:
        s, state = m.s, m.base.state
        m._upload.add(ObjectKind.BLOB, s.ids.of(ObjectKind.BLOB, blob), stored)
        m._upload.seal()
        with s.indexes.storing(state, m.base.root, m.base.segments, m._upload.index_segments()) as index:
            m._upload.finish()
            refs = index()
        change = Change(
            s.entropy(16), index=refs[-1], adding=tuple(refs[:-1]), index_rides=bool(refs.riding), riding=refs.riding
        )
        agreement.propose(s, state, change)
        s.db.set(JOURNAL_KEY, None)


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
