"""A folder whose base is gone: dropped on purpose it is an empty base, and nothing counts as deleted (D8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from attack_kit import insider
from workspace_kit import Lab, write

from metasync.errors import DamagedError
from metasync.history.log import History
from metasync.objects.model import Kind, ObjectKind
from metasync.session.write_index import AgreedIndexes
from metasync.store.retained import Dropped, Retained
from metasync.sync import pull
from metasync.transfer.contents import Contents
from metasync.workspace import Workspace


@pytest.fixture
def apart(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> tuple[Workspace, Workspace]:
    """The second device is at version 1, whose tree nobody has any more; the first went on, and deleted a file."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"stays": b"same", "goes": b"deleted by the first", "both": b"as it was"})
    one.push("first")
    two = lab.clone(urls)
    root = one.log()[0].snapshot
    (one.directory / "goes").unlink()
    write(one.directory, {"both": b"by the first"})
    one.push("second")
    (two.directory / "stays").unlink()
    write(two.directory, {"both": b"by the second"})
    load = Contents.load
    gone: set[bytes] = set()

    def without(self: Contents, kind: ObjectKind, ids: Iterable[bytes], *how: Any) -> dict[bytes, bytes]:
        wanted = list(ids)
        if gone.intersection(wanted):
            raise DamagedError("no pack has it")
        found = load(self, kind, wanted, *how)
        if kind is ObjectKind.SNAPSHOT and root in found:
            gone.add(found[root][1:33])
        return found

    monkeypatch.setattr(Contents, "load", without)
    return one, two


def test_a_base_that_was_dropped_is_an_empty_one(
    apart: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = apart
    monkeypatch.setattr(AgreedIndexes, "retained", lambda *_: Retained((Dropped(1, 2),)))
    report = two.pull()
    names = {p.name for p in two.directory.iterdir()} - {".metasync"}
    assert {"stays", "goes", "both"} < names, "nothing counts as deleted, on either side"
    contents = {(two.directory / name).read_bytes() for name in names}
    assert {b"by the first", b"by the second"} < contents
    assert len(report.conflicts) == 1


@dataclass
class Kept:
    """What an index says of one version."""

    dropped: bool
    root: bytes | None

    def has_dropped(self, _: int) -> bool:
        return self.dropped

    def replacing(self, _: bytes) -> bytes | None:
        return self.root


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dropped", "root", "kept"),
    [
        (False, None, "error"),
        (True, None, "nothing"),
        (False, b"r" * 32, "another"),
        (True, b"r" * 32, "nothing"),  # of a version that was dropped the other tree is not kept either
        (False, b"same", "nothing"),  # that other tree is the one that cannot be read
    ],
)
def test_what_is_kept_of_a_base_whose_tree_is_gone_on_purpose(
    apart: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch, dropped: bool, root: bytes | None, kept: str
) -> None:
    _, two = apart
    with two._session("pull") as s:
        base = s.base()
        assert base.snapshot is not None
        retained = Kept(dropped, base.tree_root if root == b"same" else root)
        monkeypatch.setattr(AgreedIndexes, "retained", lambda *_: retained)
        found = pull._as_kept(s, base, base)
    if kept == "error":
        assert found is None
    else:
        assert found is not None
        assert (found.snapshot.root if found.snapshot is not None else None) == (root if kept == "another" else None)


def test_a_base_that_is_damaged_is_an_error(apart: tuple[Workspace, Workspace]) -> None:
    _, two = apart
    before = sorted(p.name for p in two.directory.iterdir())
    with pytest.raises(DamagedError):
        two.pull()
    assert sorted(p.name for p in two.directory.iterdir()) == before


def test_what_a_newer_index_may_have_elsewhere_is_no_damage_yet(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs are rewritten beside a pull: it goes on through the index that is the newest by then."""
    urls = lab.urls("a", kind="memory")
    one = lab.init(urls)
    write(one.directory, {"f": b"first"})
    one.push()
    two = lab.clone(urls)
    write(one.directory, {"f": b"second"})
    one.push()
    integrate, tried = pull.integrate, []

    def once(*args: object, **options: object) -> object:
        tried.append(args)
        if len(tried) > 1:
            return integrate(*args, **options)  # type: ignore[arg-type]
        write(one.directory, {"f": b"third"})
        one.push()
        raise DamagedError("its pack is gone")

    monkeypatch.setattr(pull, "integrate", once)
    assert two.pull().version == 4
    assert (two.directory / "f").read_bytes() == b"third"
    write(one.directory, {"f": b"fourth"})
    one.push()

    def never(*_: object, **__: object) -> object:
        raise DamagedError("its pack is gone")

    monkeypatch.setattr(pull, "integrate", never)
    with pytest.raises(DamagedError):
        two.pull()


@pytest.fixture
def rewritten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A device whose commands have begun at version 2, when another one packs all anew and deletes the old packs."""
    one = lab.init(lab.urls("a"))
    write(one.directory, {"f": b"first\n" * 10, "d/g": b"other\n" * 10})
    one.push()
    two = lab.clone(lab.urls("a"))
    old = lab.objects("a", "packs")
    with insider(one) as m:
        tree = {path: entry for path, entry in m.s.flat(m.base).items() if entry.kind is Kind.FILE}
        for path in tree:
            m.put(ObjectKind.BLOB, (one.directory / path.decode()).read_bytes())
        master = m.s.base().state.master
        m.put(ObjectKind.SNAPSHOT, m.s.contents(m.base).load(ObjectKind.SNAPSHOT, [master])[master])
        m.commit(m.tree({}))
    for pack in old:
        pack.unlink()
    with two._session("test") as s:
        s.db._execute("DELETE FROM objects")
    monkeypatch.setattr(History, "_learned", lambda history: history.s.base())
    return two


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "reads",
    [
        lambda w: w.read("f", "2"),
        lambda w: (w.restore("2", ["f"]), (w.directory / "f").read_bytes())[1],
        lambda w: w.ls("2", recursive=True) and b"first\n" * 10,
        lambda w: w.diff("1", "2") and b"first\n" * 10,
        lambda w: w.show("2", text=True) and b"first\n" * 10,
    ],
    ids=["cat", "restore", "ls", "diff", "show"],
)
def test_what_was_packed_anew_meanwhile_is_no_damage(rewritten: Workspace, reads: Callable[[Workspace], bytes]) -> None:
    """The packs that the index of the command's beginning names are gone; the newest one says where all lies now."""
    (rewritten.directory / "f").unlink()
    assert reads(rewritten) == b"first\n" * 10


def test_a_merge_reads_its_base_from_what_was_packed_anew(rewritten: Workspace) -> None:
    with rewritten._session("test") as s:
        assert s.flat(s.base()).keys() == {b"d", b"d/g", b"f"}


def test_what_no_index_has_elsewhere_is_damage(rewritten: Workspace, lab: Lab) -> None:
    asked = []
    with rewritten._session("test") as s:
        contents, tree = s.contents(s.base()), s.flat(s.base())
        contents.along.clear()
        for pack in lab.objects("a", "packs"):
            pack.unlink()
        newer = contents.newer
        contents.newer = lambda: asked.append(1) or newer()  # type: ignore[func-returns-value]
        for path in (b"f", b"d/g"):
            with pytest.raises(DamagedError):
                contents.load(ObjectKind.BLOB, [tree[path].content])
    assert len(asked) == 1, "it is asked once, and not for every object"
