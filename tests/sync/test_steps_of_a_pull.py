"""What the steps of a pull decide, one by one: which base it merges with, what counts as deleted, what is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from agreement_kit import X
from workspace_kit import Lab, write

from metasync.errors import DamagedError, MetaSyncError, UnreachableError, UpgradeError, WorkspaceError
from metasync.local.lock import GiveWay, Turns
from metasync.local.spill import Large
from metasync.local.state_keys import EXACT_KEY, KEPT_KEY, PLAN_KEY, TREE_KEY, UNFINISHED_KEY, UNPLACED, Unplaced
from metasync.objects.model import Entry, Kind
from metasync.reports.sync import PullReport, Skipped
from metasync.session import unreadable
from metasync.session.agreement import LEFT_KEY
from metasync.session.folder import BASE_KEY
from metasync.sync import first_checkout, no_change, pull
from metasync.sync.fetch import ChangedMeanwhile
from metasync.sync.scanned import summary, summary_of_new
from metasync.worktree.index import Row, pack_entry, unpack_entry

FILE = Entry(Kind.FILE, 0o644, 0, 1, b"c" * 32)
DIR = Entry(Kind.DIR, 0o755, 0, 0, b"")


class Db:
    """The local state, as far as these steps ask."""

    def __init__(self, **values: Any) -> None:
        self.values = values
        self.rows: list[Any] = []

    def has(self, key: Any) -> bool:
        return self.values.get(key.name) is not None

    def get(self, key: Any) -> Any:
        return self.values.get(key.name)

    need = get

    def set(self, key: Any, value: Any) -> None:
        self.values[key.name] = value

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield


def at(v: int = 1, era: int = 0, **more: Any) -> Any:
    state = SimpleNamespace(v=v, era=era, master=more.pop("master", b"m%d" % v), hash=b"h%d" % v)
    return SimpleNamespace(state=state, **more)


# ---- the base


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was stored as deleted since the version that the folder left."""
    stored: list[Any] = []
    monkeypatch.setattr(pull, "_deleted", lambda _s, left, base: [(left.state.v, base.state.v)])
    monkeypatch.setattr(pull, "store_rows", lambda _db, rows: stored.extend(rows))
    return stored


def test_within_an_era_the_base_stays(deleted: list[Any]) -> None:
    s: Any = SimpleNamespace()
    base = at(1)
    assert pull.rebased(s, base, at(5)) is base


@pytest.mark.parametrize("left", [None, 3])
def test_a_later_era_sets_the_folder_back_and_keeps_what_it_had_deleted(deleted: list[Any], left: int | None) -> None:
    s: Any = SimpleNamespace(db=Db(**{LEFT_KEY.name: left}), base=lambda: at(2), load=at)
    assert pull.rebased(s, at(3), at(5, era=1)).state.v == 2
    assert deleted == ([] if left is None else [(3, 2)])
    assert not s.db.has(LEFT_KEY)


def test_what_the_left_version_had_comes_back_where_that_cannot_be_read(deleted: list[Any]) -> None:
    def gone(_: object) -> Any:
        raise UnreachableError("away")

    s: Any = SimpleNamespace(db=Db(**{LEFT_KEY.name: 3}), base=lambda: at(2), load=gone)
    assert pull.rebased(s, at(3), at(5, era=1)).state.v == 2
    assert deleted == []
    assert not s.db.has(LEFT_KEY), "it is not tried for ever"


def test_only_what_the_left_version_lacked_counts_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both have and is not here was not placed; what is here is looked at as ever."""
    trees = {1: {b"both": FILE}, 2: {b"both": FILE, b"gone": FILE, b"here": FILE}}
    row = Row(DIR, 7, 0, 0, 0, 0, 0o40755, trusted=True)
    rows: dict[bytes, Row] = {b"": row, b"here": row}
    monkeypatch.setattr(pull, "load_rows", lambda _: rows)
    s: Any = SimpleNamespace(db=None, contents=lambda _: None, flat=lambda base, _: trees[base.state.v])
    assert [path for path, _ in pull._deleted(s, at(1), at(2))] == [b"gone"]
    del rows[b""]
    assert pull._deleted(s, at(1), at(2)) == [], "nothing was ever here"


@pytest.mark.parametrize(
    ("dropped", "replacing", "root", "says"),
    [
        (False, b"new", b"new", "kept without what was forgotten"),
        (True, None, None, "no longer kept"),
        (True, b"new", None, "no longer kept"),
        (False, b"old", None, "no longer kept"),
    ],
)
def test_what_is_kept_of_a_base_whose_tree_is_gone(
    monkeypatch: pytest.MonkeyPatch, dropped: bool, replacing: bytes | None, root: bytes | None, says: str
) -> None:
    """Another tree in its place, where paths were forgotten; none, where the version was dropped."""

    def gone(*_: object) -> Any:
        raise DamagedError("gone")

    told: list[Any] = []
    retained = SimpleNamespace(has_dropped=lambda _: dropped, replacing=lambda _: replacing)
    s: Any = SimpleNamespace(
        indexes=SimpleNamespace(retained=lambda _: retained), flat=gone, contents=lambda _: None, listener=told.append
    )
    snapshot = SimpleNamespace(_replace=lambda root: root)
    monkeypatch.setattr(pull, "replace", lambda _, snapshot: snapshot)
    base = at(1, snapshot=snapshot, tree_root=b"old")
    assert pull._as_kept(s, base, at(2)) == root
    assert says in told[0].text


@pytest.mark.parametrize("cause", [DamagedError("a pack is torn"), OSError("busy")])
def test_a_folder_that_never_holds_still_is_told_and_so_is_damage_behind_it(
    monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    tried = []

    def once(*_: object, **__: object) -> Any:
        tried.append(1)
        raise ChangedMeanwhile("it changed") from cause

    monkeypatch.setattr(pull, "_integrate_once", once)
    monkeypatch.setattr(pull, "over_skips", lambda base, _: base)
    monkeypatch.setattr(unreadable, "named", lambda _s, _b, _t, lost: WorkspaceError(f"version 2: {lost.message}"))
    s: Any = SimpleNamespace(tree=SimpleNamespace(root=b"/folder"))
    wanted = "a pack is torn" if isinstance(cause, DamagedError) else "changed again and again"
    with pytest.raises(WorkspaceError, match=wanted):
        pull.integrate(s, at(1), at(2))
    assert len(tried) == pull.ROUNDS_MAX


class Retried:
    """A merge that fails as a test says, each time with another error; `tried`: the bases it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception, kept: Any = None) -> None:
        self.tried: list[Any] = []
        self.asked: list[Any] = []
        self.errors, self.kept = list(errors), kept
        monkeypatch.setattr(pull, "_integrate_once", self._once)
        monkeypatch.setattr(pull, "_as_kept", self._as_kept)
        monkeypatch.setattr(pull, "over_skips", lambda base, _: base)
        monkeypatch.setattr(unreadable, "named", lambda _s, _b, _t, lost: WorkspaceError(f"version 2: {lost.message}"))

    def _once(self, _s: object, base: Any, *_: object, **__: object) -> Any:
        self.tried.append(base)
        if self.errors:
            raise self.errors.pop(0)
        return "merged"

    def _as_kept(self, _s: object, base: Any, _target: object) -> Any:
        self.asked.append(base)
        return self.kept

    def run(self) -> Any:
        return pull.integrate(SimpleNamespace(), self.base, at(2))  # type: ignore[arg-type]

    base = at(1)


def test_a_base_whose_tree_is_gone_on_purpose_is_merged_with_what_is_kept_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: Any = "what is kept"
    merge = Retried(monkeypatch, DamagedError("a tree is gone"), kept=kept)
    assert merge.run() == "merged"
    assert merge.tried == [merge.base, kept]


@pytest.mark.parametrize(("error", "is_asked"), [(DamagedError("torn"), True), (UpgradeError("of a later day"), False)])
def test_what_cannot_be_read_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, error: MetaSyncError, is_asked: bool
) -> None:
    """What only a newer MetaSync reads is not gone: nothing takes its place."""
    merge = Retried(monkeypatch, error, kept=None if is_asked else "never asked for")
    with pytest.raises(WorkspaceError, match=f"version 2: {error.message}"):
        merge.run()
    assert len(merge.tried) == 1
    assert merge.asked == ([merge.base] if is_asked else [])


def test_a_tree_that_is_damaged_though_it_is_kept_has_nothing_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a version that nobody dropped, and of which nothing was forgotten: nothing is told and no tree is read."""
    retained = SimpleNamespace(has_dropped=lambda _: False, replacing=lambda _: None)
    monkeypatch.setattr(unreadable, "list_or_older", lambda *_: retained)
    s: Any = SimpleNamespace()
    assert pull._as_kept(s, at(1, snapshot=SimpleNamespace(), tree_root=b"old"), at(2)) is None


# ---- the checkout


def test_a_path_that_could_not_be_placed_gets_what_is_new_there(lab: Lab) -> None:
    """And is forgotten where nothing is agreed at it any more."""
    urls = lab.urls("a")
    w = lab.init(urls)
    write(w.directory, {"x": b"old", "y": b"y"})
    w.push()
    d = lab.clone(urls)
    d._db.put_records(UNPLACED, [Unplaced(path, "no room") for path in (b"x", b"never")])
    write(w.directory, {"x": b"new and longer"})
    w.push()
    d.pull()
    assert (d.directory / "x").read_bytes() == b"new and longer"
    assert list(d._db.unplaced()) == []


def test_a_file_that_was_deleted_here_and_changed_its_mode_elsewhere_comes_back(lab: Lab) -> None:
    urls = lab.urls("a")
    w = lab.init(urls)
    write(w.directory, {"x": b"data", "y": b"y"})
    w.push()
    d = lab.clone(urls)
    (w.directory / "x").chmod(0o755)
    w.push()
    (d.directory / "x").unlink()
    d.pull()
    assert (d.directory / "x").read_bytes() == b"data"
    assert os.stat(d.directory / "x").st_mode & 0o777 == 0o755


def test_what_merges_replaced_is_kept_until_a_push_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second pull's names that of the first as a parent."""
    parents: list[Any] = []
    monkeypatch.setattr(pull, "kept_snapshot", lambda _texts, of, *_: parents.append(of))
    for before, wanted in ((None, (b"m1",)), (b"k1", (b"m1", b"k1"))):
        s: Any = SimpleNamespace(
            db=Db(**{KEPT_KEY.name: before}), ids=None, wall_ns=lambda: 1, device=SimpleNamespace(device_id=b"d"),
            ingest=lambda sink: None,
        )  # fmt: skip
        pull._stage_kept(s, at(1, snapshot="there"), {})
        assert parents.pop() == wanted


def test_what_waits_for_room_is_told() -> None:
    assert pull._room_warning(0, 0) == []
    assert pull._room_warning(1, 5)[0].startswith("1 file of 5 B in all has no room")
    assert pull._room_warning(2000, 5)[0].startswith("2,000 files of 5 B in all have no room")


# ---- what is told


def test_what_is_as_it_was_is_no_change() -> None:
    before, after = {b"a": FILE, b"b": FILE}, {b"a": FILE, b"b": FILE._replace(mode=0o600), b"c": FILE}
    changes = summary([b"a", b"b", b"c"], before.get, after.get)
    assert (changes.added, changes.modified, changes.deleted) == ((b"c",), (b"b",), ())


def test_a_directory_is_told_where_nothing_in_it_is() -> None:
    tree = {b"d": DIR, b"d/x": FILE, b"e": DIR}
    added = summary(tree, lambda _: None, tree.get)
    deleted = summary(tree, tree.get, lambda _: None)
    assert added.added == deleted.deleted == (b"d/x", b"e")
    assert summary_of_new(tree) == added
    large = Large(pack_entry, unpack_entry, tree.items())
    assert list(summary_of_new(large).added) == [b"d/x", b"e"]
    large.close()


def test_a_file_that_became_a_directory_is_told_and_so_is_the_other_way_round() -> None:
    file, full = {b"d": FILE}, {b"d": DIR, b"d/x": FILE}
    became = summary([b"d", b"d/x"], file.get, full.get)
    assert (became.added, became.modified, became.deleted) == ((b"d/x",), (b"d",), ())
    back = summary([b"d", b"d/x"], full.get, file.get)
    assert (back.added, back.modified, back.deleted) == ((), (b"d",), (b"d/x",))


# ---- a first checkout


def test_a_device_that_is_none_of_the_versions_devices_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first push takes it in, though nothing changed."""
    monkeypatch.setattr(no_change, "_tree_root", lambda *_: b"root")
    monkeypatch.setattr(no_change, "_is_in", lambda *_: False)
    look: Any = "the look"
    s: Any = SimpleNamespace(base_state=lambda: None)
    assert no_change.push(s, [look]) == no_change.Begun(look, None)


def test_a_tree_far_beyond_the_disk_is_refused_while_it_is_read() -> None:
    """Files that are too large on their own are left unplaced, and do not count."""
    asked: list[int] = []
    tree = first_checkout._Tree(free=1 << 20, check=asked.append)
    far = int(first_checkout.FAR_BEYOND * tree.free) // (1 << 19) + 2
    tree.take([(b"0", FILE._replace(size=1 << 40))])
    assert asked == []
    tree.take([(b"%d" % n, FILE._replace(size=1 << 19)) for n in range(far)])
    assert asked == [tree.needed]


@pytest.mark.parametrize(("era", "skipped", "goes_on"), [(0, False, True), (1, False, False), (0, True, False)])
def test_a_clone_goes_on_with_a_version_that_still_is_one(era: int, skipped: bool, goes_on: bool) -> None:
    values = {"parts": at(3).state, "unfinished": True, "parts-upto": b"path", "exact": b"path"}
    names = {first_checkout.PARTS_KEY: "parts", first_checkout.UNFINISHED_KEY: "unfinished"}
    names |= {first_checkout.PARTS_UPTO_KEY: "parts-upto", first_checkout.EXACT_KEY: "exact"}
    db = Db(**{key.name: values[name] for key, name in names.items()})  # type: ignore[attr-defined]
    policy = SimpleNamespace(skip_over=lambda v: "a skip" if skipped and v == 3 else None)
    target = at(9, era=era, devices=SimpleNamespace(policy=policy))
    s: Any = SimpleNamespace(db=db)
    begun = first_checkout._begun(s, target)
    assert begun == ((values["parts"], b"path") if goes_on else None)
    assert db.has(first_checkout.PARTS_KEY) is goes_on


@pytest.mark.parametrize("others", [False, True])
def test_a_clone_tells_what_it_could_not_place(monkeypatch: pytest.MonkeyPatch, others: bool) -> None:
    """Its own entry into the workspace is no news; what others agreed meanwhile is brought too, and told with it."""
    from metasync.members import admission

    newest: Any = SimpleNamespace(v=4, master=b"m4" if others else b"m3", fingerprint="f", hash=b"h" * 32)
    ended: list[str] = []
    arrival = SimpleNamespace(newest=at(3), finish=lambda: (newest, "a problem"))
    first = PullReport(3, 3, unplaced=(Skipped(b"x", "no room"),), conflicts=())
    monkeypatch.setattr(admission, "arrive", lambda *_, **__: arrival)

    def bring(_s: object, target: Any, before: Any) -> Any:
        before()
        return first_checkout.Brought(first, target, 2, 3)

    monkeypatch.setattr(first_checkout, "bring", bring)
    more = PullReport(3, 4, unplaced=(Skipped(b"y", "no room"),))
    monkeypatch.setattr(pull, "pull", lambda *_, **__: more)
    links = SimpleNamespace(
        is_read_only=False, agreed_names={"a", "b"}, links={"a": "a"}, end_ahead=lambda: ended.append("what came")
    )
    s: Any = SimpleNamespace(
        connections=links, db=Db(), load=lambda _: None, directory="/folder", down={}, bad_copies=(), name="docs"
    )  # fmt: skip
    report = first_checkout.finish_clone(s, "workspace")
    assert report.unplaced == (more if others else first).unplaced
    assert s.db.get(BASE_KEY) == (None if others else newest), "a pull sets it itself"
    assert (report.version, report.unlinked, report.problem) == (4, ("b",), "a problem")
    assert ended == ["what came"]


def test_a_clone_in_parts_that_has_no_room_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = object.__new__(first_checkout._Parts)
    parts.s, parts.last, parts.applied = SimpleNamespace(), b"here", None  # type: ignore[assignment]
    placed: list[object] = []

    def no_room() -> None:
        raise WorkspaceError("no room")

    parts._look_at_tree = lambda: None  # type: ignore[method-assign]
    parts._check_room = no_room  # type: ignore[method-assign]
    parts._place = lambda *_, **__: placed.append(1)  # type: ignore[method-assign]
    with pytest.raises(WorkspaceError, match="no room"):
        parts.bring(lambda: None)
    assert placed == []


class Part:
    """The last part of a clone, of one path `x`, whose checkout comes to these rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.db = Db()
        self.rows: dict[bytes, Any] = {b"x": SimpleNamespace(entry=FILE)}
        self.gone: set[bytes] = set()
        self.count = 2  # and the folder itself
        self.db.count_rows = lambda: self.count  # type: ignore[attr-defined]
        checkout = SimpleNamespace(
            begin=lambda *_, **__: [], leave_out=lambda _: None, apply=self._apply, rows=(self.rows, self.gone)
        )
        monkeypatch.setattr(first_checkout, "Checkout", lambda *_: checkout)
        monkeypatch.setattr(first_checkout, "deliver", lambda *_, **__: None)
        monkeypatch.setattr(first_checkout.sides, "origin", lambda _: None)
        self.parts = object.__new__(first_checkout._Parts)
        p: Any = self.parts
        p.s = SimpleNamespace(db=self.db, tree=None)
        p.target = SimpleNamespace(state=X, tree_root=b"root")
        p.paths, p.last, p.is_exact, p.applied = {b"x": FILE}, b"", True, first_checkout.Applied()
        p.bytes_here, p.files_here, p.tree, p.contents = 0, 0, SimpleNamespace(size_bytes=1), None
        p.has_repeated, p.repeated = False, {}

    def _apply(self, commit_too: Any) -> Any:
        commit_too()
        return first_checkout.Applied()

    def brought(self, *, is_last: bool = True) -> bytes | None:
        """-> the tree that the folder's index counts as from then on; that far, where more parts come."""
        self.parts._check_out({b"x": FILE}, {}, lambda: None, is_last=is_last)
        root: bytes | None = self.db.get(TREE_KEY if is_last else EXACT_KEY)
        return root


def test_an_index_that_is_the_agreed_tree_is_noted_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Part(monkeypatch).brought() == b"root"
    assert Part(monkeypatch).brought(is_last=False) == b"x"


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("wrong", ["another entry", "no row", "a row that goes", "inexact before"])
def test_an_index_that_differs_anywhere_is_not(monkeypatch: pytest.MonkeyPatch, wrong: str, is_last: bool) -> None:
    """What is not as agreed would never be looked at again."""
    part = Part(monkeypatch)
    if wrong == "another entry":
        part.rows[b"x"] = SimpleNamespace(entry=FILE._replace(mode=0o600))
    elif wrong == "no row":
        part.rows.clear()
    elif wrong == "a row that goes":
        part.gone.add(b"y")
    else:
        part.parts.is_exact = False
    assert part.brought(is_last=is_last) is None


def test_an_index_with_more_rows_than_the_tree_is_not_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(monkeypatch)
    part.count = 3
    assert part.brought() is None


def test_bytes_that_changed_here_are_fetched_and_what_else_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    part, tried = Part(monkeypatch), list[Any]()

    def check_out(_part: object, here: Any, *_: object, **__: object) -> None:
        tried.append(dict(here))
        if here or not part.parts.has_repeated:
            raise ChangedMeanwhile("it changed") from DamagedError("a pack is torn")

    part.parts._check_out = check_out  # type: ignore[method-assign]
    with pytest.raises(DamagedError, match="a pack is torn"):
        part.parts._place({b"x": FILE}, lambda: None, is_last=True)
    assert tried == [{}]
    part.parts.has_repeated, part.parts.repeated = True, {FILE.content: b"earlier"}  # type: ignore[assignment]
    part.parts._place({b"x": FILE}, lambda: None, is_last=True)
    assert tried == [{}, {FILE.content: b"earlier"}, {}]


@pytest.mark.parametrize("begun", [True, False])
def test_room_is_asked_for_what_is_left(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """Unless a checkout was begun, some of which lies there already."""
    part, asked = Part(monkeypatch), list[Any]()
    monkeypatch.setattr(first_checkout, "check_room", lambda _tree, _db, size: asked.append(size))
    part.parts.tree = SimpleNamespace(needed=1000 + first_checkout.SMALL_FILE_BYTES)  # type: ignore[assignment]
    part.parts.bytes_here, part.parts.files_here = 300, 1
    part.db.values[PLAN_KEY.name] = b"a plan" if begun else None
    part.parts._check_room()
    assert asked == ([] if begun else [700])


# ---- the plan of the turn before


class Turned:
    """A turn that gave way with a plan for `a`, and what the next one finds: what a test changes of it.

    `held`: the paths whose rows were loaded at once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, settled: bool = True) -> None:
        self.held: list[set[bytes]] = []
        self.rows: dict[bytes, str] = {b"a": "row", b"other": "row"}
        self.base, self.target = at(1), at(2)
        merge = SimpleNamespace(changes={b"a": FILE})
        differing = {b"d"} if settled else None
        rest: dict[str, Any] = dict.fromkeys(("theirs", "left", "maker"))
        plan = pull.Plan(self._scan(), dict(self.rows), differing=differing, merge=merge, news={}, **rest)  # type: ignore[arg-type]
        self.turns: Any = Turns()
        self.turns.left = pull._Turn(self.base.state, self.target.state, plan)
        self.plan, self.seen, self.settled = plan, self._scan(put_rows={b"p": 1}, delete_rows={b"q": 1}), settled
        monkeypatch.setattr(pull, "_look", self._look)
        monkeypatch.setattr(pull, "rows_at", lambda _db, paths: {p: row for p, row in self.rows.items() if p in paths})

    def _scan(self, **rows: Any) -> Any:
        tree = SimpleNamespace(put={b"p": FILE}, gone={b"g"})
        lists = {name: [name] for name in ("busy", "deleted", "missing", "unreadable", "skipped")}
        return SimpleNamespace(tree=tree, base=SimpleNamespace(hold=self.held.append), **lists, **rows)

    def _look(self, *_: object) -> Any:
        return SimpleNamespace(seen=self.seen, is_settled=self.settled, theirs="theirs now")

    def again(self) -> Any:
        s: Any = SimpleNamespace(db=SimpleNamespace(unplaced=lambda: {b"u": ""}), ingest=lambda: None)
        return pull._plan_again(s, self.base, self.target, self.turns, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("settled", [True, False])
def test_a_plan_is_gone_on_with_where_all_is_as_it_was(monkeypatch: pytest.MonkeyPatch, settled: bool) -> None:
    turned = Turned(monkeypatch, settled=settled)
    turned.rows[b"other"] = "which the plan does not touch"
    plan = turned.again()
    assert plan.merge is turned.plan.merge
    assert (plan.scan, plan.theirs) == (turned.seen, "theirs now")
    assert plan.differing == ({b"d", b"p", b"q"} if settled else None)
    assert turned.held == [{b"a", b"u"} | ({b"d", b"p", b"q"} if settled else set())]


def test_without_a_plan_of_the_turn_before_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Turned(monkeypatch)
    left = turned.turns.left
    for turns in (None, SimpleNamespace(left=None), SimpleNamespace(left="of a first checkout")):
        turned.turns = turns
        assert turned.again() is None
    for other in (left._replace(base=at(0).state), left._replace(target=at(3).state)):
        turned.turns = SimpleNamespace(left=other)
        assert turned.again() is None


@pytest.mark.parametrize(
    "what", ["put", "gone", "busy", "deleted", "missing", "unreadable", "skipped", "settled", "a row", "no row"]
)
def test_a_plan_is_made_anew_where_anything_of_it_changed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    turned = Turned(monkeypatch)
    if what in ("put", "gone"):
        setattr(turned.seen.tree, what, {b"another": FILE})
    elif what == "settled":
        turned.settled = False
    elif what == "a row":
        turned.rows[b"a"] = "another"
    elif what == "no row":
        del turned.rows[b"a"]
    else:
        setattr(turned.seen, what, [])
    assert turned.again() is None
    assert turned.held == []


# ---- what a turn has staged


class Begun:
    """A checkout that is begun, or gone on with: `needed`, as it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, unfinished: bool = False) -> None:
        self.needed: Any = "not begun"
        self.brought: list[tuple[int, int]] = []
        values = {UNFINISHED_KEY.name: True} if unfinished else {}
        self.s: Any = SimpleNamespace(db=Db(**values))
        monkeypatch.setattr(pull.agreement, "note_agreed", lambda *_: None)
        monkeypatch.setattr(pull, "tell_brought", lambda _s, *brought: self.brought.append(brought))
        monkeypatch.setattr(pull, "replaceable", lambda *_: None)

    def begin(self, _changes: object, _commit: object, *, needed: Any, **_: object) -> list[bytes]:
        self.needed = needed
        return [b"all"]

    def wanted(self, held: Any = None, theirs: dict[bytes, Entry] | None = None) -> list[bytes]:
        scan = SimpleNamespace(deleted=[], tree={}, base={})
        plan: Any = SimpleNamespace(
            held=held, scan=scan, texts={}, rows={}, maker=None, theirs={} if theirs is None else theirs
        )
        state: Any = SimpleNamespace(v=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BASE_KEY.__class__, "entry", lambda key, _value: (key.name, b""))
            merged = {b"a": FILE, b"gone": None}
            return pull._begin(self.s, at(1), SimpleNamespace(state=state), plan, self, merged, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("comes_to", "goes_on"), [(False, True), (True, False), (True, True)])
def test_what_a_turn_staged_is_gone_on_with_if_it_is_of_this_plan_and_there(
    monkeypatch: pytest.MonkeyPatch, comes_to: bool, goes_on: bool
) -> None:
    begun = Begun(monkeypatch)
    held = SimpleNamespace(comes_to=lambda _: comes_to, brought=(1, 20))
    monkeypatch.setattr(pull, "go_on", lambda *_: [b"rest"] if goes_on else None)
    is_held = comes_to and goes_on
    assert begun.wanted(held) == ([b"rest"] if is_held else [b"all"])
    assert begun.brought == ([(1, 20)] if is_held else [])
    assert (begun.needed == "not begun") == is_held


def test_what_may_be_here_alone_needs_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is agreed with these bytes; and where a first checkout goes on, nothing is known to be here alone."""
    begun = Begun(monkeypatch)
    begun.wanted()
    assert begun.needed == {b"a"}
    begun.wanted(theirs={b"a": FILE._replace(mode=0o600)})
    assert begun.needed == set()
    begun = Begun(monkeypatch, unfinished=True)
    begun.wanted()
    assert begun.needed is None


@pytest.mark.parametrize("others", [True, False])
def test_a_turn_that_gives_way_leaves_its_plan_and_what_it_staged(
    monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """While it stages, the turn before is forgotten: more is staged than that one knows of."""
    turned = Turned(monkeypatch)
    turns: Any = turned.turns if others else None
    seen: list[Any] = []

    def deliver(*_: object, **__: object) -> None:
        seen.append(turned.turns.left)
        raise GiveWay

    for name, what in {
        "Checkout": lambda *_: "checkout",
        "_begin": lambda *_: [],
        "_sources": lambda *_: {},
        "_ours": lambda *_: set(),
        "deliver": deliver,
        "hold": lambda checkout, _: f"held of a {checkout}",
    }.items():
        monkeypatch.setattr(pull, name, what)
    s: Any = SimpleNamespace(listener=lambda _: None, db=SimpleNamespace(unplaced=dict), tree=None)
    with pytest.raises(GiveWay):
        pull._check_out(s, turned.base, turned.target, turned.plan, None, lambda: None, turns)  # type: ignore[arg-type]
    if others:
        assert seen == [None]
        left = turned.turns.left
        assert (left.base, left.target) == (turned.base.state, turned.target.state)
        assert left.plan.merge is turned.plan.merge
        assert left.plan.held == "held of a checkout"
