"""A device says of its own snapshot what is not true: another version, or another one before it."""

from __future__ import annotations

import pytest
from attack_kit import Insider, insider
from workspace_kit import Lab, write

from metasync.codec import u64
from metasync.objects.model import VERSION_TAG, Snapshot, encode_snapshot


def commit(m: Insider, *parents: bytes, version: int) -> int:
    """Has a version with this snapshot agreed; -> its number."""
    root = m.tree({b"f": m.file(b"mallory's")})
    lie = Snapshot(root, parents, m.s.device.device_id, 0, "", ((VERSION_TAG, u64(version)),))
    return m.commit(root, snapshot=encode_snapshot(lie))


@pytest.mark.parametrize("number", [3, 2, 1])
@pytest.mark.parametrize("has_parent", [True, False])
def test_what_is_asked_for_by_its_version_is_what_was_agreed_as_it(lab: Lab, number: int, has_parent: bool) -> None:
    """By the chain of states, whatever number a device says that its tree has, and whatever it says was before it."""
    w = lab.init(lab.urls("a", kind="memory"))
    for n in (1, 2, 3):
        write(w.directory, {"f": b"%d" % n})
        w.push()
    w.tag(str(number), "draft")
    w.log()  # all snapshots are cached
    with insider(w) as m:
        lie = commit(m, *([m.base.state.master] if has_parent else []), version=number)
    w.pull()
    for name in (str(number), "draft"):
        assert w.read("f", name) == b"%d" % number
    assert w.read("f", str(lie)) == b"mallory's"
