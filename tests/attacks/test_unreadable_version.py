"""Versions that cannot be read, made up by a device or damaged: the way past them, for everybody else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard
from attack_kit import NO_BLOB, Insider, insider, named
from test_policy import propose, unsigned
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.codec import u32, u64
from metasync.consensus import JOURNAL_KEY, Change, Ref
from metasync.errors import (
    FormatError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UnreadableError,
    UpgradeError,
    UsageError,
)
from metasync.events import Notice
from metasync.keys.derive import sha256
from metasync.keys.policy import Skip
from metasync.objects.model import Kind, ObjectKind, decode_snapshot
from metasync.session import agreement
from metasync.store import index as pack_index
from metasync.store.index import (
    INLINE_TAG,
    IndexRoot,
    RootItem,
    decode_segment,
    encode_root,
    encode_segment,
    make_segment,
)
from metasync.store.retained import Dropped, Retained, encode_retained
from metasync.store.retention import parse as parse_policy
from metasync.sync import first_checkout
from metasync.sync import skip as skipping
from metasync.workspace import Workspace


@pytest.fixture
def pair(lab: Lab) -> Iterator[tuple[Workspace, Workspace]]:
    """Two devices at one version; the second one is the attacker's."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push("first")
    yield victim, lab.clone(urls, device="mallory")


def _dots(m: Insider) -> int:
    return m.commit(m.directory(named(b"..", Kind.DIR, m.directory(), mode=0o755)))


def _nul(m: Insider) -> int:
    return m.commit(m.directory(named(b"a\0b", Kind.FILE, m.file(b"x").content, size=1)))


def _missing_directory(m: Insider) -> int:
    return m.commit(m.directory(named(b"d", Kind.DIR, m.put(ObjectKind.DIR, b"gone", lose=True), mode=0o755)))


def _missing_snapshot(m: Insider) -> int:
    return m.commit(m.tree({b"new": m.file(b"n")}), lose=True)


def _garbage_snapshot(m: Insider) -> int:
    return m.commit(m.tree({}), snapshot=b"\1garbage")


def _missing_blob(m: Insider) -> int:
    return m.commit(m.tree({b"new": m.file(b"n"), b"none": m.file(b"x")._replace(content=NO_BLOB)}))


def _wrong_size(m: Insider) -> int:
    return m.commit(m.tree({b"new": m.file(b"twelve bytes", size=7)}))


def _newer_format(m: Insider) -> int:
    return m.commit(m.directory(named(b"d", Kind.DIR, m.directory(fmt=9), mode=0o755)))


def _missing_index(m: Insider) -> int:
    return m.commit(m.tree({b"new": m.file(b"n")}), index=Ref(m.base.state.index.generation, b"\x77" * 32))


def _index_alone(m: Insider) -> int:
    """The snapshot stays as it was, and the index is nowhere."""
    return _change(m, index=Ref(m.base.state.index.generation, b"\x77" * 32))


def _put(m: Insider, data: bytes) -> Ref:
    """Stores a meta object of these bytes."""
    refs, _ = m.s.runtime.run(m.s.group.put_index(m.base.state, (), lambda _: data, generation=m.base.state.gen))
    return Ref(*refs[-1])


def _change(m: Insider, **changes: Any) -> int:
    """Has a version agreed that differs from the one before in these fields alone."""
    decided = agreement.propose(m.s, m.base.state, Change(m.s.entropy(16), **changes))
    m.s.db.set(JOURNAL_KEY, None)
    assert decided.mine
    return decided.state.v


def _with_segment(m: Insider, data: bytes, *, apart: bool = False) -> int:
    """The index as it was, and one more segment: in the root, or an object of its own. The snapshot stays."""
    name = _put(m, data) if apart else Ref(m.base.state.gen, sha256(data))
    tags = () if apart else ((INLINE_TAG, data),)
    objects, packs = 1, 1
    with contextlib.suppress(FormatError, UpgradeError):
        objects, packs = len(segment := decode_segment(data)), len(segment.packs)
    item = RootItem(pack_index.Ref(*name), len(data), objects, packs, tags)
    return _change(m, index=_put(m, encode_root(IndexRoot((*m.base.root.items, item)))))


def _segment(*parts: bytes) -> bytes:
    return b"\1" + zstandard.ZstdCompressor().compress(b"".join(parts))


ONE = u32(1)
NONE = u32(0)
PLACE = u64(0) + b"\x11" * 32 + u64(1000) + b"\1\0\0\0\1" + b"\x22" * 33  # of a pack: generation, name, size, header
PIECE = ONE + u32(100) + u32(100) + b"\x33" * 32 + b"\0"  # its one segment, and no tags
PACK = PLACE + b"\0\1\1" + PIECE


def _shards(m: Insider) -> int:
    return _with_segment(m, _segment(ONE, PLACE, b"\1\2\3", PIECE, NONE, NONE, b"\0"))


def _newer_segment(m: Insider) -> int:
    return _with_segment(m, b"\2" + _segment(NONE, NONE, NONE, b"\0")[1:])


def _garbage_segment(m: Insider) -> int:
    return _with_segment(m, b"\1garbage", apart=True)


def _object_of_a_later_kind(m: Insider) -> int:
    return _with_segment(m, _segment(ONE, PACK, ONE, b"\x44" * 32, b"\x09", NONE * 3, u32(10), NONE, b"\0"), apart=True)


def _one_pack_in_two_ways(m: Insider) -> int:
    record = min(record for segment in m.base.segments for record, _ in segment)
    other = record._replace(size=record.size + 1)
    return _with_segment(m, encode_segment(make_segment([(other, ())])))


def _garbage_root(m: Insider) -> int:
    return _change(m, index=_put(m, b"\1\0\0\0\7"))


def _newer_root(m: Insider) -> int:
    return _change(m, index=_put(m, b"\2"))


def _with_rows(m: Insider, *rows: RootItem) -> int:
    return _change(m, index=_put(m, encode_root(IndexRoot((*m.base.root.items, *rows)))))


EMPTY = encode_segment(make_segment(()))


def _segment_twice(m: Insider) -> int:
    return _with_rows(m, *[RootItem(pack_index.Ref(*_put(m, EMPTY)), len(EMPTY), 0, 0)] * 2)


def _row_of_another_size(m: Insider) -> int:
    """In a tier that is never merged: with as many as a root may have, the next push would write one that is none."""
    return _with_rows(m, RootItem(pack_index.Ref(*_put(m, EMPTY)), 1 << 60, 0, 0))


def _row_of_more_objects(m: Insider) -> int:
    return _with_rows(m, RootItem(pack_index.Ref(*_put(m, EMPTY)), len(EMPTY), 1 << 63, 0))


def _row_of_more_packs(m: Insider) -> int:
    return _with_rows(m, RootItem(pack_index.Ref(*_put(m, EMPTY)), len(EMPTY), 0, 9))


WAYS = (
    _dots, _nul, _missing_index, _index_alone, _missing_directory, _missing_snapshot, _garbage_snapshot, _wrong_size,
    _newer_format, _shards, _newer_segment, _garbage_segment, _object_of_a_later_kind, _one_pack_in_two_ways,
    _garbage_root, _newer_root, _segment_twice, _row_of_another_size, _row_of_more_objects, _row_of_more_packs,
)  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("way", WAYS)
def test_one_version_that_cannot_be_read_has_a_way_past_it(
    pair: tuple[Workspace, Workspace], lab: Lab, way: Callable[[Insider], int]
) -> None:
    """A version has a part that nobody can read. The error says which version and whose; a skip passes over it."""
    victim, mallory = pair
    with insider(mallory) as m:
        bad = way(m)
    write(victim.directory, {"mine": b"m", "kept": b"edited"})
    before = tree_of(victim.directory)
    for operation in (victim.pull, victim.push, lambda: lab.clone(lab.urls("a", kind="memory"), device="third")):
        with pytest.raises((UnreadableError, UpgradeError)) as raised:
            operation()
        assert f"version {bad}, which mallory wrote, cannot be read" in raised.value.message
        assert f"`metasync skip {bad}`" in raised.value.next_step
        assert raised.value.version == bad
    assert tree_of(victim.directory) == before
    plan = victim.skip(bad, PASSPHRASE, dry_run=True)
    assert (plan.version, plan.skipped, plan.devices) == (None, (bad,), ("mallory",))
    done = victim.skip(bad, PASSPHRASE)
    assert (done.skipped, done.good) == (plan.skipped, plan.good)
    assert done.version is not None and done.version > bad
    pulled = victim.pull()
    assert (pulled.conflicts, pulled.changes.deleted) == ((), ())
    assert tree_of(victim.directory) == before
    pushed = victim.push()
    assert (pushed.changes.added, pushed.changes.modified) == ((b"mine",), (b"kept",))
    fourth = lab.clone(lab.urls("a", kind="memory"), device="fourth")
    assert tree_of(fourth.directory) == tree_of(victim.directory)
    with pytest.raises(UsageError, match="was skipped before"):
        victim.skip(bad, PASSPHRASE)


NOWHERE = Ref(0, b"\x77" * 32)
LISTS: dict[str, Callable[[Insider], Ref]] = {
    "nowhere": lambda _: NOWHERE,
    "garbage": lambda m: _put(m, b"\1garbage"),
    "newer": lambda m: _put(m, b"\2" + bytes(20)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("what", LISTS)
def test_a_list_of_what_is_kept_that_cannot_be_read_stops_nobody_for_good(
    pair: tuple[Workspace, Workspace], lab: Lab, what: str
) -> None:
    """A version names a list that nobody can read. Pushes and pulls go on, old versions are shown by the list before;
    who would drop versions by it, or name one, is told the version and the device; a skip takes the list before."""
    victim, mallory = pair
    victim.tag("1", "important")
    with insider(mallory) as m:
        bad = _change(m, retained=LISTS[what](m))
    urls = lab.urls("a", kind="memory")
    write(victim.directory, {"mine": b"m"})
    victim.push()
    third = lab.clone(urls, device="third")
    told: list[str] = []
    victim.on_event = lambda event: told.append(event.text) if isinstance(event, Notice) else None
    assert victim.read(b"kept", "important") == b"of the victim"
    assert [text for text in told if f"version {bad}, which mallory wrote" in text and "the list" in text]
    for operation in (
        lambda: victim.gc(parse_policy("last=1")),
        lambda: victim.tag("1", "x"),
        lambda: victim.keep("daily=1", change=True),
        lambda: victim.forget([b"d/f"]),
    ):
        with pytest.raises((UnreadableError, UpgradeError)) as raised:
            operation()
        assert f"version {bad}, which mallory wrote, cannot be read" in raised.value.message
        assert f"`metasync skip {bad}`" in raised.value.next_step
    with pytest.raises(UsageError, match=f"begins with version {bad}"):
        victim.skip(bad - 1, PASSPHRASE)
    with pytest.raises(PassphraseError):
        victim.skip(bad, "another")
    plan = victim.skip(bad, PASSPHRASE, dry_run=True)
    before = tree_of(victim.directory)
    done = victim.skip(bad, PASSPHRASE)
    assert done.version == plan.good + 1 if plan.good else None
    assert (done.skipped, done.devices, done.good) == ((bad,), ("mallory",), plan.good)
    assert [(t.name, t.number) for t in victim.tags().tags] == [("important", 1)]
    assert victim.gc(parse_policy("last=1,tag=important")).dropped == 0
    for device in (victim, third):
        assert device.pull().changes.deleted == ()
        assert tree_of(device.directory) == before
    with pytest.raises(UsageError, match="nothing is to be skipped"):
        victim.skip(bad, PASSPHRASE)


@pytest.mark.few(1)
@pytest.mark.parametrize("last", [5, 6, 9, 1 << 60])
def test_no_list_drops_what_is_pushed_later(lab: Lab, last: int) -> None:
    """A device says in version 4 that versions to come are no longer kept: up to one that comes soon, or never. Nothing
    that is pushed later goes, whatever is built on that list, and a skip makes an end of it."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    for n in range(2):
        write(victim.directory, {"f": b"%d" % n})
        victim.push()
    with insider(lab.clone(urls, device="mallory")) as m:
        assert m.base.state.v == 3
        bad = _change(m, retained=_put(m, encode_retained(Retained((Dropped(5, last, m.base.state.master),)))))
    pushed = []
    for n in range(4):
        write(victim.directory, {"f": b"later %d" % n})
        pushed.append(victim.push().version)
        for operation in (victim.gc, lambda: victim.tag("1", "x"), lambda: victim.gc(parse_policy("last=1"))):
            with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote.*was not there yet"):
                operation()
        assert [i.version for i in victim.log()] == [*reversed(pushed), 2, 1]
    assert victim.skip(bad, PASSPHRASE).skipped == (bad,)
    victim.gc()
    assert [i.version for i in victim.log()] == [*reversed(pushed), 2, 1]
    assert victim.read(b"f", f"{pushed[0]}") == b"later 0"
    assert victim.gc(parse_policy("last=2")).dropped == 4
    victim.tag("latest", "kept")
    assert [i.version for i in victim.log()] == pushed[:-3:-1]


def test_a_tree_and_a_list_that_cannot_be_read_are_skipped_together(
    pair: tuple[Workspace, Workspace], lab: Lab
) -> None:
    victim, mallory = pair
    victim.tag("1", "important")
    with insider(mallory) as m:
        first = _change(m, retained=NOWHERE)
    with insider(mallory) as m:
        second = _missing_directory(m)
    done = victim.skip(second, PASSPHRASE)
    assert (done.skipped, done.good) == ((first, second), second - 1)
    assert [t.name for t in victim.tags().tags] == ["important"]
    assert victim.pull().changes.deleted == ()
    assert tree_of(lab.clone(lab.urls("a", kind="memory"), device="third").directory) == tree_of(victim.directory)


def test_an_index_that_is_nowhere_before_anything_was_pushed_has_a_way_past_it(lab: Lab) -> None:
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    with insider(lab.clone(urls, device="mallory")) as m:
        bad = _index_alone(m)
    write(victim.directory, {"mine": b"m"})
    with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote"):
        victim.push()
    assert victim.skip(bad, PASSPHRASE).skipped == (bad,)
    victim.pull()
    assert victim.push().changes.added == (b"mine",)
    assert tree_of(lab.clone(urls, device="third").directory) == tree_of(victim.directory)


def test_who_hides_what_is_needed_is_named(lab: Lab) -> None:
    """The index of a version no longer names the packs of the tree. A new device is told whose version that is, though
    the tree is another's; a device that has the files stores them again."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push()
    with insider(lab.clone(urls, device="mallory")) as m:
        packs = {record.id for segment in m.base.segments for record, _ in segment}
        bad = _with_segment(m, encode_segment(make_segment((), packs)))
    write(victim.directory, {"mine": b"m"})
    assert victim.push().changes.deleted == ()
    with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote"):
        lab.clone(urls, device="third")
    assert victim.check(repair=True).lost == ()
    assert tree_of(lab.clone(urls, device="fourth").directory) == tree_of(victim.directory)


def test_files_that_nobody_has_leave_the_others_alone(pair: tuple[Workspace, Workspace], lab: Lab) -> None:
    """A version names contents that no pack ever had, for a new file and in place of one that is there: these two are
    left as they are and told, all else comes, and nothing stops."""
    victim, mallory = pair
    with insider(mallory) as m:
        nowhere = m.file(b"x")._replace(content=NO_BLOB)
        m.commit(m.tree({b"new": m.file(b"n"), b"none": nowhere, b"kept": nowhere}))
    write(victim.directory, {"mine": b"m"})
    kept = (victim.directory / "kept").read_bytes()
    for _ in range(2):
        pulled = victim.pull()
        assert {noted.path for noted in pulled.unplaced} == {b"none", b"kept"}
        assert all("contents were lost" in noted.reason for noted in pulled.unplaced)
    pushed = victim.push()
    assert (pushed.changes.added, pushed.changes.modified, pushed.changes.deleted) == ((b"mine",), (), ())
    assert (victim.directory / "kept").read_bytes() == kept
    assert not (victim.directory / "none").exists()
    third = lab.clone(lab.urls("a", kind="memory"), device="third")
    assert sorted(tree_of(third.directory)) == [b"d", b"d/f", b"mine", b"new"]
    assert third.push().changes.deleted == ()
    with insider(mallory) as m:
        m.commit(m.tree({b"none": m.file(b"here"), b"kept": m.file(b"mended")}))
    for w in (victim, third):
        assert w.pull().unplaced == ()
        assert (w.directory / "none").read_bytes() + (w.directory / "kept").read_bytes() == b"heremended"


def test_who_is_at_the_version_keeps_its_files(lab: Lab) -> None:
    """The folder of the device that wrote it, and holds what others cannot read, loses nothing when it is skipped."""
    urls = lab.urls("a", "b")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push("first")
    author = lab.clone(urls, device="mallory")
    stored = {path for name in "ab" for path in lab.objects(name, "packs")}
    write(author.directory, {"own": b"of the author", "kept": b"edited there"})
    (author.directory / "d/f").unlink()
    bad = author.push("lost on the way").version
    assert bad is not None
    for path in {path for name in "ab" for path in lab.objects(name, "packs")} - stored:
        path.unlink()
    with pytest.raises(UnreadableError, match=f"version {bad}, which mallory wrote"):
        victim.pull()
    victim.skip(bad, PASSPHRASE)
    victim.pull()
    write(victim.directory, {"mine": b"m"})
    victim.push()
    report = author.pull()
    assert report.conflicts == ()
    here = {path: node.data for path, node in tree_of(author.directory).items() if node.kind == "file"}
    assert here == {b"own": b"of the author", b"kept": b"edited there", b"d/f": b"one", b"mine": b"m"}
    assert author.push().version is not None
    victim.pull()
    assert tree_of(victim.directory) == tree_of(author.directory)


def test_several_in_a_row_are_skipped_together(pair: tuple[Workspace, Workspace]) -> None:
    """Three bad versions, one on the other: the newest good tree before them is taken, whichever of them is named."""
    victim, mallory = pair
    bad = []
    for way in (_missing_blob, _missing_blob):
        with insider(mallory) as m:
            bad.append(way(m))
    with pytest.raises(UsageError, match="in nobody's way"):
        victim.skip(bad[0] - 1, PASSPHRASE)
    done = victim.skip(bad[1], PASSPHRASE)
    assert done.skipped == tuple(bad)
    victim.pull()
    assert sorted(tree_of(victim.directory)) == [b"d", b"d/f", b"kept"]
    with insider(mallory) as m:
        again = _dots(m)
    second = victim.skip(again, PASSPHRASE)
    assert (second.skipped, second.good) == ((again,), done.version)
    victim.pull()
    with victim._session("status") as s:
        found = s.base().devices.policy.skips
    assert [(skip.good, skip.at) for skip in found] == [(done.good, done.version), (done.version, second.version)]


def test_a_version_that_can_be_read_is_not_skipped(pair: tuple[Workspace, Workspace]) -> None:
    victim, mallory = pair
    write(mallory.directory, {"new": b"n"})
    version = mallory.push().version
    assert version is not None
    with pytest.raises(UsageError, match="nothing is to be skipped"):
        victim.skip(version, PASSPHRASE)
    with pytest.raises(UsageError, match="there is no version 99"):
        victim.skip(99, PASSPHRASE)


def test_a_skip_needs_the_passphrase(pair: tuple[Workspace, Workspace]) -> None:
    victim, mallory = pair
    with insider(mallory) as m:
        bad = _dots(m)
    with pytest.raises(PassphraseError):
        victim.skip(bad, "a guess")
    with pytest.raises(UnreadableError):
        victim.pull()


def test_a_skip_without_a_quorum_changes_nothing(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"k"})
    victim.push()
    with insider(lab.clone(urls, device="mallory")) as m:
        bad = _dots(m)
    lab.hurry()
    for name in ("a", "b"):
        lab.faults[name].down = True
    with pytest.raises(NoQuorumError):
        victim.skip(bad, PASSPHRASE)
    for name in ("a", "b"):
        lab.faults[name].down = False
    with pytest.raises(UnreadableError):
        victim.pull()
    assert victim.skip(bad, PASSPHRASE).version is not None


def test_a_skip_that_no_admin_signed_counts_for_nothing(
    pair: tuple[Workspace, Workspace], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device says that versions were skipped, to have the others take what they pulled for their own."""
    victim, mallory = pair
    write(mallory.directory, {"shared": b"s"})
    at = mallory.push().version
    assert at is not None
    victim.pull()
    with insider(mallory) as m:
        before = m.base.snapshot
        assert before is not None
        first = decode_snapshot(m.s.contents(m.base).load(ObjectKind.SNAPSHOT, before.parents)[before.parents[0]])
        lie = Skip(at + 1, at - 1, first.root, before.parents[0])
        tags = m.base.devices.policy.skipping(lie)
        devices = m.base.devices
    propose(monkeypatch, mallory, unsigned(tags=tags))
    mallory = lab.reopen(mallory)
    mallory.pull()
    with insider(mallory) as m:
        assert m.base.devices == devices
        m.commit(first.root)
    victim.pull()
    assert not (victim.directory / "shared").exists(), "an ordinary version that deletes it"


def _skipped(lab: Lab) -> tuple[Workspace, Workspace, Workspace, int]:
    """A device that has a version skipped; its author, which stays there, with a file more; a liar; that version."""
    urls = lab.urls("a", "b")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim"})
    victim.push("first")
    author, liar = lab.clone(urls, device="author"), lab.clone(urls, device="mallory")
    stored = {path for name in "ab" for path in lab.objects(name, "packs")}
    write(author.directory, {"own": b"of the author"})
    bad = author.push("lost on the way").version
    assert bad is not None
    for path in {path for name in "ab" for path in lab.objects(name, "packs")} - stored:
        path.unlink()
    victim.skip(bad, PASSPHRASE)
    return victim, author, liar, bad


def test_who_is_at_a_skipped_version_keeps_its_files_whatever_the_next_version_leaves_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a skip a device proposes the policy of before it, then the same without the skip; and it has a version
    agreed that has the last good tree and says nothing of the skip."""
    victim, author, liar, _ = _skipped(lab)
    with victim._session("test") as s:
        newest = s.newest_state()
        after = s.devices_of(newest).encode()
        before = s.devices_of(s.runtime.run(s.group.state_at(newest, newest.v - 1))).encode()
    assert after != before
    for attack in (lambda s, base: {"devices": s.put_const(base, before)}, unsigned(tags=())):
        propose(monkeypatch, liar, attack)
        liar = lab.reopen(liar)
    with insider(liar) as m:
        assert m.base.devices.encode() == after
        m.commit(m.tree({}))
    author.pull()
    assert set(tree_of(author.directory)) == {b"kept", b"own"}


def test_a_change_of_the_keys_keeps_what_was_skipped(lab: Lab) -> None:
    """A policy of new keys is signed while a device sleeps at a skipped version: it still finds the skip."""
    victim, author, _, bad = _skipped(lab)
    victim.device_revoke(["mallory"], PASSPHRASE)
    author.pull()
    assert set(tree_of(author.directory)) == {b"kept", b"own"}
    with pytest.raises(UsageError, match="was skipped before"):
        victim.skip(bad, PASSPHRASE)


def test_an_interrupted_clone_of_such_a_version_is_ended_by_a_skip(pair: tuple[Workspace, Workspace], lab: Lab) -> None:
    """A clone stops at a version that cannot be read. Skipped there, with nothing else at hand, the clone goes on."""
    victim, mallory = pair
    with insider(mallory) as m:
        bad = _wrong_size(m)
    urls = lab.urls("a", kind="memory")
    with pytest.raises(UnreadableError):
        lab.clone(urls, device="third")
    with Workspace.open(lab.root / "third") as third:
        third.skip(bad, PASSPHRASE)
    third = lab.clone(urls, device="third")
    assert tree_of(third.directory) == tree_of(victim.directory)


def test_what_a_backend_that_is_away_may_hold_is_not_given_up(lab: Lab) -> None:
    """A version lies on one backend, which is away: it cannot be read now, and is not skipped for that."""
    urls = lab.urls("a", "b", "c")
    one = lab.init(urls, replicas=1)
    write(one.directory, {"f": b"one"})
    one.push()
    two = lab.clone(urls)
    before = {name: len(lab.objects(name, "packs")) for name in "abc"}
    write(two.directory, {"f": b"two"})
    version = two.push().version
    assert version is not None
    (holder,) = (name for name in "abc" if len(lab.objects(name, "packs")) > before[name])
    one.close()
    gone = lab.lose(holder)
    one = lab.reopen(one)
    with pytest.raises(MetaSyncError) as raised:
        one.skip(version, PASSPHRASE)
    assert not isinstance(raised.value, (UsageError, UnreadableError))
    gone.rename(lab.store(holder))
    one = lab.reopen(one)
    assert one.pull().changes.modified == (b"f",)


def test_a_skip_that_another_device_overtakes_is_made_on_top(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another bad version is agreed while a skip is made: both are passed over."""
    victim, mallory = pair
    with insider(mallory) as m:
        bad = _wrong_size(m)
    late: list[int] = []
    commit = skipping._commit

    def overtaken(*args: Any) -> Any:
        if not late:
            with insider(mallory) as m:
                late.append(_missing_blob(m))
        return commit(*args)

    monkeypatch.setattr(skipping, "_commit", overtaken)
    done = victim.skip(bad, PASSPHRASE)
    assert done.skipped == (bad, *late)
    victim.pull()
    assert sorted(tree_of(victim.directory)) == [b"d", b"d/f", b"kept"]


def test_a_clone_in_parts_that_stopped_at_such_a_version_goes_on_with_the_one_that_skips_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a clone is here when it meets a file of another length than its entry says. After a skip all is here."""
    for name in ("WHOLE_PATHS_MAX", "PART_PATHS", "PART_PATHS_LEAST"):
        monkeypatch.setattr(first_checkout, name, 4)
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {f"d{n}/f": b"%d" % n for n in range(12)})
    victim.push()
    with insider(lab.clone(urls, device="mallory")) as m:
        bad = m.commit(m.tree({b"d1/g": m.file(b"of the version"), b"z": m.file(b"twelve bytes", size=7)}))
    with pytest.raises(UnreadableError):
        lab.clone(urls, device="third")
    assert (lab.root / "third/d1/g").exists()
    with Workspace.open(lab.root / "third") as third:
        third.skip(bad, PASSPHRASE)
    third = lab.clone(urls, device="third")
    (lab.root / "third/d1/g").unlink()  # of the version that was skipped: this device's own now
    assert tree_of(third.directory) == tree_of(victim.directory)
