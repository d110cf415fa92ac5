"""A push stores what no pack gives any more, though the index still names a part of it."""

from __future__ import annotations

import pytest
from content_kit import noise
from test_lost_paths import entry_at, lose_pack, pack_of
from workspace_kit import Lab, forget_bases, write

from metasync.session import agreement
from metasync.sync import packing
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
LARGE = noise(3_000_000, 7)


def lost_but_for_its_list(lab: Lab) -> Workspace:
    """A workspace whose first version had a file that is lost, but for the list of its chunks, which a pack has."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"large": LARGE, "small": b"small"})
    w.push()
    entry = entry_at(w, 1, b"large")
    (w.directory / "large").unlink()
    w.push()
    with w._session("test") as s:
        index = agreement.newest(s).index
        of_list = {record.name.hex() for record, _ in index.find(entry.root)}
        ids: list[bytes] = []
        s.ingest(sink=lambda _, i, __: ids.append(i), known=lambda _: False).of_bytes(LARGE)
        chunks = {record.name.hex() for i in ids if i != entry.root for record, _ in index.find(i)}
    assert of_list and chunks - of_list
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        if path.name in chunks - of_list:
            path.unlink()
    forget_bases(w)
    repaired = w.check(repair=True).repaired
    assert repaired is not None and [g.path for g in repaired.gone] == [b"large"]
    with w._session("test") as s:
        assert entry.root in agreement.newest(s).index
    return w


def is_whole(lab: Lab, path: str) -> bool:
    """Whether a new device gets the file, and a check finds nothing wrong with the newest version."""
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    return (fresh.directory / path).read_bytes() == LARGE and fresh.check(read_data=True).nowhere == ()


def test_a_file_that_is_read_by_the_push(lab: Lab) -> None:
    w = lost_but_for_its_list(lab)
    write(w.directory, {"found again": LARGE})
    w.push()
    assert is_whole(lab, "found again")


@pytest.mark.long
def test_a_file_that_a_pull_has_read(lab: Lab) -> None:
    """The push finds its row, and reads nothing."""
    w = lost_but_for_its_list(lab)
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    write(phone.directory, {"note": b"news"})
    phone.push()
    w = lab.reopen(w)
    write(w.directory, {"found again": LARGE})
    w.pull()
    w.push()
    assert is_whole(lab, "found again")


@pytest.mark.few(1)
@pytest.mark.parametrize("is_lost", [False, True], ids=["list there", "list lost"])
def test_a_file_that_a_pull_has_read_is_read_again_only_if_its_list_cannot_be_had(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """A file that was moved: nothing of it is stored again."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"large": LARGE})
    w.push()
    root = entry_at(w, 1, b"large").root
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    write(phone.directory, {"note": b"news"})
    phone.push()
    w = lab.reopen(w)
    (w.directory / "large").rename(w.directory / "moved")
    w.pull()
    if is_lost:
        lose_pack(lab, pack_of(w, root))
        w._db.drop_objects([root])
    read: list[bytes] = []
    plain = packing.reread
    monkeypatch.setattr(packing, "reread", lambda tree, path, *more: read.append(path) or plain(tree, path, *more))
    report = w.push()
    assert (read, report.bytes_stored < len(LARGE)) == ([b"moved"] * is_lost, True)
