"""`gc`: what nothing needs goes, what something needs stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from collect_kit import LAST, STORES, all_is_there, break_off, meanwhile, named, noise, nothing_else_is_there, packs
from workspace_kit import Lab, flip, forget_bases, tree_of, write

from metasync.consensus import JOURNAL_KEY, NOTHING, Change
from metasync.errors import DamagedError, UsageError, WorkspaceError
from metasync.local import spill
from metasync.local.spill import IdSet, Spool, Spooled
from metasync.maintenance import line, sweep
from metasync.objects.model import ObjectKind
from metasync.objects.reach import mark
from metasync.session import agreement, write_index
from metasync.session.session import Agreed, Session
from metasync.store import collection, retention
from metasync.store.pack_format import HEADER_BYTES, offsets
from metasync.store.packs import read_footer, read_segment
from metasync.store.retained import Retained
from metasync.sync import push
from metasync.workspace import Workspace

# ---- what goes


def test_an_index_that_lies_in_files_is_collected_and_added_to(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    class Counted(Spooled):
        def __init__(self, spool: Spool, place: slice) -> None:
            super().__init__(spool, place)
            kept.append(len(self))

    monkeypatch.setattr(write_index, "HELD_BYTES_LEAST", 0)
    monkeypatch.setattr(write_index, "HELD_BYTES_MAX", 0)
    monkeypatch.setattr(write_index, "Spooled", Counted)
    monkeypatch.setattr(spill, "SPOOL_BYTES_HELD", 0)
    six = lab.reopen(six)
    before = packs(lab)
    assert six.gc(LAST).dropped
    assert len(packs(lab)) < len(before)
    write(six.directory, {"new": b"after it"})
    six.push()
    two.pull()
    assert tree_of(two.directory) == tree_of(six.directory)
    all_is_there(six)
    nothing_else_is_there(six, lab)
    assert kept


def test_what_only_dropped_versions_need_goes(six: Workspace, lab: Lab) -> None:
    before = packs(lab)
    report = six.gc(LAST)
    after = packs(lab)
    assert (report.kept, report.dropped) == (1, 5)
    assert sum(f.bytes for f in report.freed) == sum(before[k] for k in before.keys() - after.keys())
    assert sum(after.values()) <= 1.1 * 3 * 2 * 20_000 * 5 / 3, "file4 to file6, f and stays, twice"
    assert [i.version for i in six.log()] == [6]
    all_is_there(six)
    nothing_else_is_there(six, lab)
    six.restore("latest", to=lab.root / "out")
    assert (lab.root / "out" / "file4").read_bytes() == noise(4)
    other = lab.clone(lab.urls(*STORES))
    assert (other.directory / "f").read_bytes() == noise(106)


def test_all_that_kept_versions_have_can_be_restored(six: Workspace, lab: Lab) -> None:
    six.tag("2", "draft")
    report = six.gc(retention.parse("last=2"))
    assert (report.kept, report.dropped) == (3, 3)
    assert [(i.version, i.dropped) for i in six.log()] == [(6, None), (5, (3, 4)), (2, None)]
    six.restore("2", to=lab.root / "out")
    assert {p.name: p.read_bytes() for p in (lab.root / "out").iterdir()} == {
        "file1": noise(1), "file2": noise(2), "f": noise(102), "stays": noise(0),
    }  # fmt: skip
    all_is_there(six)
    nothing_else_is_there(six, lab)


def test_packs_mostly_dead_are_packed_anew(lab: Lab) -> None:
    w = lab.init(lab.urls(*STORES))
    write(w.directory, {f"f{n}": noise(n) for n in range(20)})
    w.push()
    for n in range(1, 20):
        (w.directory / f"f{n}").unlink()
    w.push(force=True)
    report = w.gc(LAST)
    assert report.packed_anew
    assert sum(packs(lab).values()) < 2 * 2 * 20_000
    all_is_there(w)
    nothing_else_is_there(w, lab)
    assert w.read("f0") == noise(0)


def test_what_merges_replaced_is_kept_with_its_version(lab: Lab) -> None:
    """A clean merge by lines leaves a snapshot beside the version; its bytes are in no other one."""
    one = lab.init(lab.urls(*STORES))
    lines = [b"line %d" % n for n in range(9)]
    write(one.directory, {"text": b"\n".join(lines)})
    one.push()
    other = lab.clone(lab.urls(*STORES))
    write(one.directory, {"text": b"\n".join([b"ONE", *lines[1:]])})
    one.push()
    write(other.directory, {"text": b"\n".join([*lines[:-1], b"OTHER"])})
    other.push()
    (item,) = [i for i in other.log("text") if i.kept]
    other.gc(LAST)
    all_is_there(other)
    assert other.read("text", item.snapshot.hex()[:16]) == b"\n".join([*lines[:-1], b"OTHER"])


def test_the_agreed_policy_is_the_one_without_another(six: Workspace, two: Workspace) -> None:
    assert two.gc().dropped == 0, "without a policy all versions are kept"
    six.keep("last=3", change=True)
    assert two.gc().dropped == 3
    assert [i.version for i in two.log()] == [6, 5, 4]
    with pytest.raises(UsageError, match="no version is called 'draft'"):
        two.gc(retention.parse("tag=draft"))


def test_a_run_with_nothing_to_do_agrees_nothing(six: Workspace) -> None:
    six.gc(LAST)
    version = six.status().version
    report = six.gc(LAST)
    assert (report.dropped, report.freed, six.status().version) == (0, (), version)


def test_a_dry_run_tells_what_would_go_and_changes_nothing(six: Workspace, lab: Lab) -> None:
    before, version = packs(lab), six.status().version
    told = six.gc(LAST, dry_run=True)
    assert (packs(lab), six.status().version) == (before, version)
    assert told.version is None
    done = six.gc(LAST)
    assert (told.kept, told.dropped) == (done.kept, done.dropped)
    if not done.packed_anew:
        assert told.freed == done.freed


def test_the_index_is_that_of_what_lives(lab: Lab) -> None:
    """However many versions there were, a new device reads the index of those that are kept."""
    w = lab.init(lab.urls("a", kind="memory"))
    for n in range(40):
        write(w.directory, {"f": noise(n, 100), f"g{n % 3}": noise(n + 1000, 100)})
        w.push()
    with w._session("test") as s:
        before = agreement.newest(s)
    w.gc(LAST)
    with w._session("test") as s:
        after = agreement.newest(s)
    assert before.index.places > 140
    assert after.index.places <= 4 + 1 + 1, "the files, their directory, the snapshot"
    assert len(after.root.items) <= 2
    assert not any(segment.tombstones for segment in after.index.segments)


def test_uploads_that_broke_off_go_with_the_time_after_the_next(
    six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell them from those of a push that is under way: these get the time between two runs."""
    with monkeypatch.context() as m:
        m.setattr(push._Push, "agree", break_off)
        write(six.directory, {"new": noise(50)})
        with pytest.raises(WorkspaceError, match="broke off"):
            six.push()
    strays = len(packs(lab)) - 2 * len(named(six))
    assert strays >= 2
    first = six.gc()
    assert first.freed == ()
    assert "under way" in first.notes[0]
    assert sum(f.packs for f in six.gc().freed) == strays
    nothing_else_is_there(six, lab)
    (six.directory / "new").unlink()
    six.push()
    all_is_there(six)


def test_check_brings_the_list_of_what_is_kept_where_it_is_missing(six: Workspace, lab: Lab) -> None:
    six.gc(LAST)
    with six._session("test") as s:
        name = agreement.newest(s).state.retained.hash.hex()
    (copy,) = [p for p in lab.objects("a", "meta") if p.name == name]
    copy.unlink()
    report = six.check()
    assert any("list of what is kept" in note for note in [*report.notes, *(p.problem for p in report.meta_problems)])
    assert copy.exists()


# ---- the rule of deletion


def test_a_pack_goes_only_if_it_is_fenced_and_not_named() -> None:
    old, new = (3, b"\1" * 32), (4, b"\2" * 32)
    assert sweep.may_go(old, set(), 4)
    assert not sweep.may_go(old, {old}, 4), "a version needs it"
    assert not sweep.may_go(new, set(), 4), "a push under way may have stored it"


def test_names_that_are_no_packs_stay(six: Workspace, lab: Lab) -> None:
    (pack,) = lab.objects("a", "packs")[:1]
    other = pack.with_name("README")
    other.write_bytes(b"not ours")
    (pack.parent.parent / "zz").mkdir()
    wrong = pack.parent.parent / ("00" if pack.parent.name != "00" else "01") / pack.name
    wrong.parent.mkdir(exist_ok=True)
    wrong.write_bytes(b"in another's folder")
    six.gc(LAST)
    assert other.exists()
    assert wrong.exists()


# ---- index records


def records(lab: Lab, name: str = "a") -> set[str]:
    return {p.name for p in lab.objects(name, "meta")}


def needed_records(w: Workspace) -> set[str]:
    with w._session("test") as s:
        newest = agreement.newest(s)
        refs = {newest.state.retained, *s.indexes.names_of(newest.state.index)}
    return {ref.hash.hex() for ref in refs} - {NOTHING.hash.hex()}


def test_index_records_go_that_no_state_needs_any_more(six: Workspace, lab: Lab) -> None:
    before = needed_records(six)
    six.gc(LAST)
    after = needed_records(six)
    assert not (before - after) & records(lab)
    assert needed_records(six) <= records(lab)
    all_is_there(six)
    other = lab.clone(lab.urls(*STORES))
    assert (other.directory / "f").read_bytes() == noise(106)


@pytest.mark.long
def test_a_device_whose_index_is_gone_reads_through_the_newest(six: Workspace, two: Workspace, lab: Lab) -> None:
    """It slept over two collections, and has no index in its cache: it pulls, and pushes what it changed."""
    write(two.directory, {"mine": noise(80)})
    (two.directory / "stays").unlink()
    for n in (90, 91):
        write(six.directory, {"f": noise(n)})
        six.push()
        six.gc(retention.parse("last=3"))
    with two._session("test") as s:
        s.db._execute("DELETE FROM objects WHERE kind >= 6")
        base = s.base_state()
    assert base.index.hash.hex() not in records(lab)
    report = two.push()
    assert report.version is not None
    assert (two.directory / "f").read_bytes() == noise(91)
    assert not (two.directory / "stays").exists(), "its base was kept, so that its deletion is one"
    six.pull()
    assert (six.directory / "mine").read_bytes() == noise(80)
    all_is_there(six)


def test_a_push_between_the_look_and_the_sweep_keeps_its_index(
    six: Workspace, two: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own records are of a generation that no fence has reached; what it took over is of the state looked at."""
    write(two.directory, {"new": noise(70)})
    done = meanwhile(monkeypatch, sweep, "sweep_records", lambda: [two.push(), two.gc(LAST)])
    six.gc(LAST)
    assert done
    assert needed_records(two) <= records(lab)
    all_is_there(two)


def test_records_of_a_backend_that_is_away_go_with_a_later_run(six: Workspace, lab: Lab) -> None:
    lab.faults["c"].down = True
    for n in (90, 91):
        write(six.directory, {"f": noise(n)})
        six.push()
        six.gc(LAST)
    lab.faults["c"].down = False
    six = lab.reopen(six)
    stale = records(lab, "c") - needed_records(six)
    assert stale
    six.gc(LAST)
    assert not records(lab, "c") - needed_records(six)


# ---- what is lost


def unnamed(w: Workspace, gone: Callable[[Session, Agreed], set[bytes]]) -> set[bytes]:
    """Has an index agreed that does not name these objects any more, fenced as a collector would. -> their ids."""
    with w._work.begun("test") as s:
        base = agreement.newest(s)
        ids = gone(s, base)
        rest = {o.id for segment in base.segments for _, o in segment} - ids
        stays = {record.id for i in rest for record, _ in base.index.find(i)}
        anew = [collection.rewritten(one, stays.__contains__, rest) for one in base.segments]
        refs = s.indexes.replace(base.state, base.root, base.segments, (), [one for one in anew if one is not None])
        state = agreement.propose(s, base.state, Change(s.entropy(16), gen=base.state.gen + 1)).state
        agreement.propose(s, state, Change(s.entropy(16), index=refs[-1], min_gen=state.gen, adding=tuple(refs[:-1])))
        s.db.set(JOURNAL_KEY, None)
    return ids


def blob_of(data: bytes) -> Callable[[Session, Agreed], set[bytes]]:
    return lambda s, _: {s.ids.blob(data)}


@pytest.mark.long
def test_a_file_that_nobody_has_stops_no_collection(six: Workspace, two: Workspace, lab: Lab) -> None:
    """Its pack is gone from all backends, and `check --repair` has said so: the rest is collected."""
    lost = noise(2)
    with six._session("test") as s:
        index = agreement.newest(s).index
        names = {record.name.hex() for record, _ in index.find(s.ids.blob(lost))}
    for store in STORES:
        for path in lab.objects(store, "packs"):
            if path.name in names:
                path.unlink()
    forget_bases(six)
    assert six.check(repair=True).repaired
    six.tag("2", "draft")
    six.tag("5", "other")
    before = packs(lab)
    report = six.gc(LAST)
    assert report.missing == 2
    assert any("check --repair" in note for note in report.notes)
    assert report.dropped == 3
    assert sum(packs(lab).values()) < sum(before.values())
    assert [i.version for i in six.log()] == [6, 5, 2]
    assert six.read("stays", "2") == noise(0)
    assert six.read("file5", "5") == noise(5)
    assert two.gc().missing == 2
    six.untag(["draft"])
    assert six.gc(LAST).missing == 0
    nothing_else_is_there(six, lab)


@pytest.mark.few(1)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_pack_with_what_the_index_lacks_is_not_deleted(
    six: Workspace, two: Workspace, lab: Lab, damaged: bool
) -> None:
    """An insider agrees an index without a blob of a kept version: honest collectors leave its pack where it is.

    What else is needed of it is packed anew. Of a copy that is damaged nobody can say what it holds.
    """
    unnamed(two, blob_of(noise(2)))
    held = {key for key in packs(lab) if noise(2) in opened(six, lab, key)}
    assert len(held) == 2
    if damaged:
        store, _, name = max(held).split("/")
        flip(next(p for p in lab.objects(store, "packs") if p.name == name))
    for report in (six.gc(), six.gc(retention.parse("last=5"))):
        assert report.missing == 1
        assert held <= set(packs(lab))
    assert any("were spared" in note for note in report.notes)
    assert report.freed, "the packs of version 1"
    six.gc(LAST)
    nothing_else_is_there(six, lab)


def opened(w: Workspace, lab: Lab, key: str) -> bytes:
    """All that a pack holds."""
    store, _, name = key.split("/")
    (path,) = [p for p in lab.objects(store, "packs") if p.name == name]
    data = path.read_bytes()
    with w._session("test") as s:
        _, footer = read_footer(data, bytes.fromhex(name), s.form)
        at, out = offsets(footer.segments), b""
        for n, segment in enumerate(footer.segments):
            raw = data[at[n] : at[n + 1]]
            out += bytes(read_segment(data[:HEADER_BYTES], raw, n, segment, s.form, verified=True))
    return out


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["directory", "snapshot"])
def test_what_lost_objects_lead_to_is_not_collected(six: Workspace, two: Workspace, lab: Lab, what: str) -> None:
    """What a lost directory has, or versions before a lost snapshot, nobody knows: nothing is deleted."""

    def gone(s: Session, base: Agreed) -> set[bytes]:
        found = {v: (i, snapshot) for v, i, snapshot in line.line(s, base, Retained(), s.contents(base))}
        return {found[3][1].root if what == "directory" else found[3][0]}

    ids = unnamed(two, gone)
    for w in (six, two):
        with w._session("test") as s:
            s.db._execute(f"DELETE FROM objects WHERE id = x'{min(ids).hex()}'")
    before = packs(lab)
    for policy in (None, retention.parse("last=5"), *([retention.parse("daily=9")] if what == "snapshot" else [])):
        with pytest.raises(DamagedError):
            six.gc(policy)
    assert packs(lab) == before
    six.tag("2", "draft") if what == "directory" else None
    report = six.gc(LAST)
    assert report.kept == (2 if what == "directory" else 1)
    assert [i.version for i in six.log()] == ([6, 2] if what == "directory" else [6])
    assert "no longer kept" in six.log()[-1].begins or what == "directory"
    all_is_there(six)


def test_a_lost_snapshot_before_which_a_version_has_a_name_stops_it(six: Workspace, two: Workspace, lab: Lab) -> None:
    six.tag("1", "draft")
    two.pull()

    def gone(s: Session, base: Agreed) -> set[bytes]:
        return {next(i for v, i, _ in line.line(s, base, Retained(), s.contents(base)) if v == 3)}

    unnamed(two, gone)
    with pytest.raises(DamagedError, match="draft"):
        six.gc(LAST)


# ---- the walk


def test_the_mark_looks_at_nothing_twice(six: Workspace) -> None:
    with six._session("test") as s:
        newest = agreement.newest(s)
        contents = s.contents(newest)
        retained = s.indexes.retained(newest.state)
        roots = [i for _, i, _ in line.line(s, newest, retained, contents)]
        asked: list[bytes] = []
        load = contents.load

        def counted(kind: ObjectKind, ids: Iterable[bytes]) -> dict[bytes, bytes]:
            wanted = list(ids)
            asked.extend(wanted)
            return load(kind, wanted)

        contents.load = counted  # type: ignore[method-assign]
        marked = IdSet()
        contents.walk(mark(roots, marked, newest.index.__contains__))
        assert len(asked) == len(set(asked))
        assert len(marked) == len({o.id for segment in newest.index.segments for _, o in segment})
        contents.walk(mark(roots, marked, newest.index.__contains__))
        assert len(asked) == len(set(asked)), "a second mark of the same asks for nothing"
