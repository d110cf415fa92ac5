"""Files whose agreed entry is only kept, because they are ignored or have no room: their bytes are others.

A pull, a push that merges, a restore and a resolution look in the folder for bytes that they need. What they find there
is not always what its entry says, and then the bytes come from the backends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.local.lock import GiveWay
from metasync.transfer.contents import Contents
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

AGREED = random.Random(1).randbytes(1_500_000)  # of several chunks
STALE = AGREED[:1_100_000] + random.Random(2).randbytes(400_000)  # as long; its beginning is right


@dataclass
class Pair:
    """Two devices at one version, in which `v` is AGREED; where `two` has STALE there, though it changed nothing."""

    one: Workspace
    two: Workspace
    is_ignored: bool

    def ends(self) -> None:
        """Nothing is left undone: what is here are the agreed files, and what was ignored is as it was."""
        stays = {b"v": STALE} if self.is_ignored else {}
        assert self.two.pull().unplaced == ()
        self.two.push()
        self.one.pull()
        here, there = tree_of(self.two.directory), tree_of(self.one.directory)
        assert {p: n.data for p, n in here.items()} == {p: n.data for p, n in there.items()} | stays
        assert there[b"v"].data == AGREED


@pytest.fixture(params=["ignored", "no room"])
def pair(request: pytest.FixtureRequest, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Pair:
    urls = lab.urls("a", "b", kind="memory")
    one = lab.init(urls)
    first = AGREED if request.param == "ignored" else STALE
    write(one.directory, {"v": first, "gone": AGREED, "c": b"c\n"})
    one.push()
    two = lab.clone(urls)
    (one.directory / "gone").unlink()
    if request.param == "ignored":
        write(one.directory, {".metasyncignore": b"v\n"})
        one.push()
        two.pull()
        with (two.directory / "v").open("r+b") as f:
            f.write(STALE)
    else:
        write(one.directory, {"v": AGREED})
        one.push()
        with monkeypatch.context() as m:
            m.setattr(Disk, "free_bytes", lambda *_: 0)
            assert [u.path for u in two.pull().unplaced] == [b"v"]
    return Pair(one, two, request.param == "ignored")


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [Workspace.pull, Workspace.sync], ids=["pull", "sync"])
def test_a_copy_of_the_agreed_file_comes(pair: Pair, how: Callable[[Workspace], object]) -> None:
    write(pair.one.directory, {"backup": AGREED})
    pair.one.push()
    how(pair.two)
    assert (pair.two.directory / "backup").read_bytes() == AGREED
    pair.ends()


def test_a_push_that_merges_brings_it_too(pair: Pair) -> None:
    write(pair.one.directory, {"backup": AGREED})
    pair.one.push()
    write(pair.two.directory, {"mine": b"mine"})
    assert pair.two.push().changes.added == (b"mine",)
    assert (pair.two.directory / "backup").read_bytes() == AGREED
    pair.ends()


def test_a_later_version_has_it_too(pair: Pair) -> None:
    for name in ("backup", "other"):
        write(pair.one.directory, {name: AGREED})
        pair.one.push()
    pair.two.pull()
    assert (pair.two.directory / "other").read_bytes() == AGREED
    pair.ends()


def test_what_was_deleted_comes_back(pair: Pair) -> None:
    pair.two.undelete(b"gone")
    assert (pair.two.directory / "gone").read_bytes() == AGREED
    pair.ends()


def test_a_restore_elsewhere_has_the_agreed_bytes(pair: Pair, lab: Lab) -> None:
    pair.two.restore("latest", to=lab.root / "out")
    assert (lab.root / "out/v").read_bytes() == AGREED


@pytest.mark.few(1)
def test_a_conflict_is_ended(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pair.one.directory, {"c": b"theirs\n"})
    pair.one.push()
    write(pair.two.directory, {"c": AGREED})
    with monkeypatch.context() as m:
        if not pair.is_ignored:  # so that it still waits
            m.setattr(Disk, "free_bytes", lambda *_: 1_700_000)
        pair.two.sync()
    assert len(pair.two.conflicts()) == 1
    assert (pair.two.directory / "v").read_bytes() == STALE
    pair.two.resolve("c", "ours")
    assert (pair.two.directory / "c").read_bytes() == AGREED
    assert pair.two.conflicts() == ()
    pair.ends()


def test_bytes_that_a_file_here_really_has_are_not_fetched(
    pair: Pair, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is what its entry says is the one that is copied."""
    write(pair.two.directory, {"a": AGREED})
    pair.two.push()
    write(pair.one.directory, {"backup": AGREED})
    pair.one.sync()
    if not pair.is_ignored:  # or `v` itself would come
        monkeypatch.setattr(Disk, "free_bytes", lambda *_: 1_700_000)
    for count in lab.counts.values():
        count.take()
    pair.two.pull()
    assert (pair.two.directory / "backup").read_bytes() == AGREED
    assert sum(count.take().down_bytes for count in lab.counts.values()) < 60_000


@pytest.mark.few(1)
def test_pieces_that_an_earlier_turn_fetched_are_not_copied_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was no source becomes one between two turns: the file is put together of pieces of one kind."""
    write(pair.one.directory, {"backup": AGREED})
    pair.one.push()
    fetched = Contents.fetch
    gone_on: list[bool] = []

    def fetch(self: Contents, ids: Any, take: Any, **how: Any) -> None:
        if gone_on:
            fetched(self, ids, take, **how)
            return
        gone_on.append(True)
        fetched(self, [*ids][:1], take, **how)
        (pair.two.directory / "v").write_bytes(AGREED)
        raise GiveWay

    monkeypatch.setattr(Contents, "fetch", fetch)
    pair.two.pull()
    assert gone_on
    assert (pair.two.directory / "backup").read_bytes() == AGREED
