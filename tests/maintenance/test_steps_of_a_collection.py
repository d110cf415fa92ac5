"""What the steps of a collection decide, one by one: what counts as needed, what a later base changes, what goes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus import JOURNAL_KEY, NOTHING, ZERO_HASH, Ref
from metasync.errors import DamagedError, MetaSyncError, UnreachableError, UsageError, WorkspaceError
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance import collect, line, sweep
from metasync.maintenance.repair import lost_paths
from metasync.session.folder import BASE_KEY
from metasync.store import collection, retention
from metasync.store.collection import Plan
from metasync.store.pack_format import WHOLE
from metasync.store.retained import Dropped, Named, Replaced, Retained

OLD, NEW = (1, b"old"), (2, b"new")  # packs
LAST = retention.parse("last=1")


def state(v: int, **more: Any) -> Any:
    values = {"era": 0, "config": b"c", "retained": NOTHING, "epoch": 1, "gen": 3, "min_gen": 1} | more
    return SimpleNamespace(v=v, hash=b"h%d" % v, master=values.pop("master", b"s%d" % v), index=NOTHING, **values)


class Index:
    """An index that names these packs, and where objects lie."""

    def __init__(self, *packs: Any, objects: dict[bytes, Any] | None = None) -> None:
        self._packs = dict.fromkeys(packs)
        self.segments: tuple[Any, ...] = ()
        self.objects = objects or {}

    def packs(self) -> dict[Any, Any]:
        return self._packs

    def ids(self, kind: Any) -> tuple[bytes, ...]:
        return ()

    def __contains__(self, object_id: object) -> bool:
        return object_id in self.objects

    def find(self, object_id: bytes) -> list[Any]:
        return [(SimpleNamespace(id=pack), SimpleNamespace(encoding=WHOLE)) for pack in self.objects.get(object_id, ())]


def base(v: int, *packs: Any, items: tuple[bytes, ...] = (), segments: tuple[Any, ...] = (), **more: Any) -> Any:
    root = SimpleNamespace(items=tuple(SimpleNamespace(ref=Ref(1, i.ljust(32))) for i in items))
    config = SimpleNamespace(moving=None)
    return SimpleNamespace(state=state(v, **more), index=Index(*packs), root=root, segments=segments, config=config)


def found(at: Any, **more: Any) -> collect._Found:
    values: dict[str, Any] = {
        "base": at, "before": Retained(), "retained": Retained(), "kept": 1, "dropped": 0, "marked": {b"marked"},
        "plan": Plan(), "known": ((1, b"s1"),), "stay": frozenset({1}),
    }  # fmt: skip
    return collect._Found(**(values | more))


class Steps:
    """One collection, whose other steps answer as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Any = None) -> None:
        self.patch = monkeypatch
        self.told: list[Any] = []
        self.db: dict[str, Any] = {}
        db = SimpleNamespace(set=lambda key, value: self.db.__setitem__(key.name, value), has=self._has)
        self.s: Any = SimpleNamespace(entropy=bytes, listener=self.told.append, db=db, load=lambda decided: decided)
        self.run = collect._Collection(self.s, policy, dry_run=False)

    def _has(self, key: Any) -> bool:
        return key.name in self.db

    def step(self, name: str, answer: Callable[..., Any]) -> None:
        self.patch.setattr(self.run, name, answer)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


# ---- what is looked at


class Looked(Steps):
    """Pushes 1 to 3, of which a policy keeps those in `stay`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Any = None, before: Retained | None = None) -> None:
        super().__init__(monkeypatch, policy)
        before = before or Retained()
        self.pushes = [3, 2, 1]
        self.stay = {3}
        self.s.indexes = SimpleNamespace(retained=lambda _: before)
        self.s.contents = lambda _: None
        self.s.wall_ns = lambda: 0
        snapshots = lambda: [(v, b"s%d" % v, SimpleNamespace(time_ns=v)) for v in self.pushes]  # noqa: E731
        monkeypatch.setattr(line, "line", lambda *_: iter(snapshots()))
        monkeypatch.setattr(line, "before", lambda *_: ZERO_HASH)
        monkeypatch.setattr(retention, "kept", lambda *_: self.stay)
        monkeypatch.setattr(collection, "plan", lambda *_, **__: Plan())
        self.step("_mark", lambda *_: None)

    def look(self) -> collect._Found:
        return self.run.look(base(3))


def test_a_version_that_has_no_name_any_more_is_told_to_who_asks_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agreed policy may still say it: nobody is there to mend that."""
    policy = retention.parse("last=1 tag=gone")
    with pytest.raises(UsageError, match="no version is called 'gone'"):
        Looked(monkeypatch, policy).look()
    assert Looked(monkeypatch, before=Retained(keep=policy)).look().stay == {3}


def test_where_there_is_no_version_nothing_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch, LAST)
    looked.pushes, looked.stay = [], set()
    assert (looked.look().kept, looked.look().changes_nothing) == (0, True)


def test_what_stays_changes_nothing_of_what_is_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch, LAST)
    looked.stay = {1, 2, 3}
    assert looked.look().changes_nothing
    looked.stay = {3}
    assert not looked.look().changes_nothing
    assert [(d.first, d.last) for d in looked.look().retained.dropped] == [(1, 2)]
    agreed = Retained(dropped=(Dropped(2, 2, b"another".ljust(32)),))
    others = Looked(monkeypatch, LAST, before=agreed)
    others.pushes, others.stay = [3, 1], {1, 3}
    assert others.look().retained == agreed, "as it was said by whoever dropped it"


def test_a_pack_that_goes_changes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(base(3)).changes_nothing
    assert not found(base(3), plan=Plan(gone=frozenset({OLD}))).changes_nothing
    assert not found(base(3), retained=Retained(purge=True)).changes_nothing


def test_more_gaps_than_can_be_agreed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "INTERVALS_MAX", 0)
    with pytest.raises(UsageError, match="more gaps in history"):
        Looked(monkeypatch, LAST).look()


def test_what_replaces_a_tree_goes_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = tuple(Replaced(b"s%d".ljust(32) % n, b"r" * 32) for n in (1, 2))
    looked = Looked(monkeypatch, before=Retained(replaced=replaced, named=(Named("x", 1),)))
    looked.run.marked = {replaced[0].snapshot}  # type: ignore[assignment]
    assert looked.look().retained.replaced == replaced[:1]


def test_only_damage_is_told_with_the_way_past_it(steps: Steps) -> None:
    for error in (DamagedError("torn"), UnreachableError("away")):

        def walk(_: object, error: MetaSyncError = error) -> None:
            raise error

        contents: Any = SimpleNamespace(walk=walk)
        with pytest.raises(type(error)) as told:
            steps.run._mark([], Retained(), base(3), contents)
        assert ("Nothing was deleted" in told.value.next_step) is isinstance(error, DamagedError)


@pytest.mark.parametrize(
    ("gone", "way"),
    [
        ([b"big", b"a file"], "`metasync forget big 'a file'` takes that out"),
        ([b"folder/", b"big"], "`metasync forget big` takes that out"),
        ([b"folder/"], ""),
        ([], ""),
    ],
    ids=["files", "a directory too", "a directory", "unknown"],
)
def test_forgetting_is_told_as_a_way_past_files_alone(steps: Steps, gone: list[bytes], way: str) -> None:
    """Of a directory only a part is gone: to forget it takes what can be read out of all versions, too."""
    of = tuple(SimpleNamespace(path=path, path_str=path.decode()) for path in gone)
    steps.patch.setattr(lost_paths, "named", lambda _, __, error: (error, of))

    def walk(_: object) -> None:
        raise DamagedError("torn")

    contents: Any = SimpleNamespace(walk=walk)
    with pytest.raises(DamagedError) as told:
        steps.run._mark([], Retained(), base(3), contents)
    assert way in told.value.next_step
    assert ("metasync forget" in told.value.next_step) is bool(way)


def test_what_the_fence_lets_go_or_an_index_names_is_no_stray(steps: Steps) -> None:
    packs = [(0, b"fenced"), OLD, (1, b"stray"), (4, b"newer"), (4, b"newer too")]
    steps.patch.setattr(sweep, "listed", lambda *_: [SimpleNamespace(id=p) for p in packs])
    assert steps.run._strays(found(base(3, OLD))) == [1, 4]


# ---- a base that has more pushes


class Followed(Steps):
    """A fence was made on version 3, and lost to version 4, a push on it. `new`: objects that this one needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.parents = {b"s4": b"s3"}
        self.versions = {b"s4": 4}
        self.before = found(
            base(3, OLD, items=(b"one",)), plan=Plan(gone=frozenset({OLD})), known=((1, b"s1"), (3, b"s3")),
            stay=frozenset({3}), kept=1, dropped=1,
        )  # fmt: skip
        segment = SimpleNamespace(tombstones=())
        self.newest = base(4, OLD, NEW, items=(b"one", b"two"), segments=(segment, segment))
        self.segment = self.newest.segments[1]
        self.places: dict[bytes, list[Any]] = {b"fresh": [NEW]}
        self.run.stored = (self.before.base, [])
        contents = SimpleNamespace(load=lambda _kind, ids: dict.fromkeys(ids, ids[0]), walk=lambda _: None)
        self.s.contents = lambda _: contents
        of = lambda i: SimpleNamespace(id=i, parents=[self.parents[i]] if self.parents[i] != ZERO_HASH else [])  # noqa: E731
        monkeypatch.setattr(collect, "decode_snapshot", of)
        monkeypatch.setattr(collect, "version_of", lambda snapshot: self.versions[snapshot.id])
        monkeypatch.setattr(collect, "mark", lambda *_: None)
        monkeypatch.setattr(line, "all_named", lambda *_: None)
        monkeypatch.setattr(line, "Fresh", lambda _: SimpleNamespace(ids=[*self.places]))
        monkeypatch.setattr(collect, "Index", self._added)

    def _added(self, segments: tuple[Any, ...]) -> Any:
        assert segments == (self.segment,), "what the base had was looked at"
        index: Any = Index(objects=self.places)
        index.segments = segments
        return index

    def follows(self) -> collect._Found | None:
        return self.run._follow(self.before, self.newest)


def test_a_push_on_the_base_of_a_fence_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    after = Followed(monkeypatch).follows()
    assert after is not None
    assert (after.base.state.v, after.kept, after.stay) == (4, 2, {3, 4})
    assert after.known == ((1, b"s1"), (3, b"s3"), (4, b"s4"))
    assert [(d.first, d.last) for d in after.retained.dropped] == [(1, 2)]
    assert after.is_followed


def test_where_no_version_was_dropped_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)
    followed.before = collect.replace(followed.before, dropped=0)
    after = followed.follows()
    assert after is not None
    assert after.retained == Retained()


@pytest.mark.parametrize(
    "why",
    [
        "nothing stored",
        "packs gone",
        "another start",
        "too many",
        "out of order",
        "not as agreed",
        "tombstones",
        "back to what goes",
    ],
)
def test_anything_but_pushes_on_the_base_has_all_looked_at_again(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Or something could go that a version needs which nobody looked at."""
    followed = Followed(monkeypatch)
    if why == "nothing stored":
        followed.run.stored = None
    elif why == "packs gone":  # somebody else collected
        followed.newest.index = Index(NEW)
    elif why == "another start":
        followed.parents[b"s4"] = ZERO_HASH
    elif why == "too many":
        monkeypatch.setattr(collect, "FOLLOWED_MAX", 0)
    elif why == "out of order":
        followed.versions[b"s4"] = 3
    elif why == "not as agreed":  # it says another number than the chain of states has for it
        followed.versions[b"s4"] = 5
    elif why == "tombstones":
        followed.segment.tombstones = (OLD,)
    else:
        followed.places[b"fresh"] = [OLD]
    assert followed.follows() is None


def test_an_object_of_a_push_that_lies_in_a_pack_that_stays_too_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(monkeypatch)
    followed.places[b"fresh"] = [OLD, NEW]
    assert followed.follows() is not None


# ---- the two versions


def test_who_begins_on_a_newer_base_looks_at_it(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may need what was about to go."""
    looked: list[Any] = []
    wins = {4}

    def propose(_s: object, on: Any, change: Any) -> Any:
        return SimpleNamespace(mine=on.v in wins, state=state(on.v + 1, gen=change.gen))

    monkeypatch.setattr(collect.agreement, "propose", propose)
    monkeypatch.setattr(collect.agreement, "ask_newest", lambda _: state(4))
    steps.step("_taken", lambda on, decided: SimpleNamespace(state=decided, on=on.v))
    steps.step("look", lambda newest: looked.append(newest.on) or "what was looked at")
    assert steps.run._begun(found(base(3))) == "what was looked at"
    assert looked == [4]
    wins.add(3)
    begun: Any = steps.run._begun(found(base(3))).base
    assert (begun.on, begun.state.gen) == (3, 4)
    assert looked == [4]


class Fencing(Steps):
    """Fences are proposed until one is agreed: `wins` says which. `short`: why nothing can be packed anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.did: list[str] = []
        self.wins = [True]
        self.short = ""
        self.is_followed = False
        self.step("_pack", lambda _: self.did.append("pack") or self.short)
        self.step("look", lambda *_, repack: self.did.append(f"look, repack {repack}") or self.goes(3))
        self.step("_change", lambda _: None)
        self.step("_propose", lambda *_: (self.did.append("propose") or self.wins.pop(0), base(4, OLD)))
        self.step("_follow", lambda *_: collect.replace(self.goes(4), is_followed=True) if self.is_followed else None)

    def goes(self, v: int) -> collect._Found:
        return found(base(v, OLD), plan=Plan(gone=frozenset({OLD})))

    def fenced(self, *, repack: bool = True) -> tuple[collect._Found, str]:
        self.did.clear()
        return self.run._fenced(self.goes(3), repack=repack)


def test_what_is_sparse_is_packed_before_the_fence_and_without_that_all_is_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would have been packed anew must stay, then."""
    fencing = Fencing(monkeypatch)
    assert fencing.fenced()[1] == ""
    assert fencing.did == ["pack", "propose"]
    fencing.wins, fencing.short = [True], "no room"
    assert fencing.fenced()[1] == "no room"
    assert fencing.did == ["pack", "look, repack False", "propose"]
    fencing.wins = [True]
    assert fencing.fenced(repack=False)[1] == ""
    assert fencing.did == ["look, repack False", "propose"]


@pytest.mark.parametrize("repack", [True, False])
def test_a_base_that_is_followed_is_neither_packed_nor_planned_again(
    monkeypatch: pytest.MonkeyPatch, repack: bool
) -> None:
    fencing = Fencing(monkeypatch)
    fencing.wins, fencing.is_followed = [False, True], True
    fencing.fenced(repack=repack)
    assert fencing.did == ["pack" if repack else "look, repack False", "propose", "propose"]
    fencing.wins, fencing.is_followed = [False, True], False
    fencing.fenced(repack=repack)
    assert fencing.did[-3:] == [f"look, repack {repack}", "pack" if repack else "look, repack False", "propose"]


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("refs", [[], [Ref(1, b"s" * 32), Ref(1, b"r" * 32)], [Ref(1, b"s" * 32), NOTHING]])
def test_a_fence_names_the_index_that_was_stored(steps: Steps, followed: bool, refs: list[Ref]) -> None:
    steps.step("_index", lambda _: [] if followed else refs)
    steps.step("_index_again", lambda _: refs if followed else [])
    change = steps.run._change(found(base(3), is_followed=followed))
    assert change.index == (refs[-1] if refs else None)
    assert change.adding == (tuple(refs[:-1]) if refs and refs[-1] != NOTHING else ()), "an empty index adds nothing"
    assert change.retained is None


def test_an_index_that_would_lose_an_object_is_not_made(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "uncovered", lambda *_: 2)
    with pytest.raises(WorkspaceError, match="2 objects would be lost; nothing was changed"):
        steps.run._index(found(base(3)))


class Segments(Steps):
    """The index of version 3 has these segments, each with the packs that it lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *packs: Any, gone: tuple[Any, ...] = ()) -> None:
        super().__init__(monkeypatch)
        self.gone = frozenset(gone)
        self.stored: list[Any] = []
        self.named: list[Ref] = [Ref(1, b"n" * 32)]
        monkeypatch.setattr(collection, "uncovered", lambda *_: 0)
        monkeypatch.setattr(collection, "is_whole", lambda one, stays, _: all(map(stays, one)))
        monkeypatch.setattr(collection, "rewritten", lambda one, stays, _: [p for p in one if stays(p)] or None)
        self.s.indexes = SimpleNamespace(replace=self._replace, opened=lambda _: (self.root, self.index))
        self.base = base(3, *{p for one in packs for p in one}, items=tuple(b"%d" % n for n in range(len(packs))))
        self.base.segments = tuple(packs)
        self.root: Any = SimpleNamespace(items=(), _replace=lambda items: items)
        self.index: Any = SimpleNamespace(segments=())

    def _replace(self, _state: object, _root: object, _all: object, whole: Any, new: Any) -> list[Ref]:
        self.stored.append(([*whole], [*new]))
        return [*self.named]

    def index_of(self, at: Any = None) -> list[Ref]:
        return self.run._index(found(at or self.base, plan=Plan(gone=self.gone)))


def test_an_index_all_of_which_is_needed_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(monkeypatch, [OLD], [NEW])
    assert segments.index_of() == []
    assert segments.stored == []


def test_of_an_index_what_goes_is_left_out_and_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    other = (2, b"other")
    segments = Segments(monkeypatch, [OLD], [NEW], [OLD, other], gone=(OLD,))
    assert segments.index_of() == segments.named
    assert segments.stored == [([1], [[other]])]
    assert segments.run.stored == (segments.base, segments.named)
    segments.named = [NOTHING]
    segments.index_of()
    assert segments.run.stored is None, "there is nothing to follow on"


def test_an_index_with_what_nothing_needs_is_made_anew_though_no_pack_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(monkeypatch, [OLD])
    monkeypatch.setattr(collection, "is_whole", lambda *_: False)
    assert segments.index_of() == segments.named


def test_what_a_push_added_is_added_to_the_index_that_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments as they are, or without what goes; none of those that the base had."""
    segments = Segments(monkeypatch, [OLD], [NEW], [OLD, NEW], [OLD], gone=(OLD,))
    segments.root.items, segments.index.segments = ("stored",), ("stored",)
    older = base(2, OLD, items=(b"0",))
    first = Ref(1, b"f" * 32)
    segments.run.stored = (older, [first, Ref(1, b"r" * 32)])
    refs = segments.run._index_again(found(segments.base, plan=Plan(gone=segments.gone)))
    assert refs == [first, *segments.named]
    assert segments.stored == [([0, 1], [[NEW]])]
    assert collect._new_items(segments.base, older) == [1, 2, 3]


@pytest.mark.parametrize(("here", "unfinished", "moved"), [(3, False, True), (2, False, False), (3, True, False)])
def test_a_folder_that_was_at_the_base_is_at_the_fence(steps: Steps, here: int, unfinished: bool, moved: bool) -> None:
    """Its tree is the same. One that lacks pushes, or is not whole yet, has them still to come."""
    steps.s.base_state = lambda: state(here)
    steps.db = {UNFINISHED_KEY.name: b"x"} if unfinished else {}
    steps.run._taken(state(3), state(4))
    assert (BASE_KEY.name in steps.db) is moved
    assert steps.db[JOURNAL_KEY.name] is None


# ---- the end


@pytest.mark.parametrize("moving", [None, (1, b"m" * 32)])
def test_records_of_the_index_stay_and_of_one_that_moves(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, moving: Any
) -> None:
    swept: list[Any] = []
    steps.s.indexes = SimpleNamespace(names_of=lambda ref: {ref})
    monkeypatch.setattr(sweep, "sweep_records", lambda _s, needed, fence, _: swept.append((needed, fence)))
    at = base(4, min_gen=2)
    at.state.index = Ref(1, b"a" * 32)
    at.config.moving = moving
    steps.run._sweep_records(at)
    assert swept == [({at.state.index, NOTHING} | ({Ref(*moving)} if moving else set()), 2)]


def test_a_preview_tells_what_goes_and_of_what_is_packed_anew_the_rest(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray, dead, sparse = (1, b"stray"), (1, b"dead"), (1, b"sparse")
    copies = [sweep.Copy("a", "path", pack, 10) for pack in (stray, dead, sparse, NEW)]
    monkeypatch.setattr(sweep, "listed", lambda *_: iter(copies))
    use: Any = SimpleNamespace(record=SimpleNamespace(id=sparse), unused_bytes=4)
    plan = Plan(sparse=(use,), gone=frozenset({dead, sparse}), use_of={sparse: use}.get)
    report = steps.run._preview(found(base(3, dead, sparse, NEW), plan=plan))
    assert [(f.backend, f.packs, f.bytes) for f in report.freed] == [("a", 3, 24)]


@pytest.mark.parametrize(
    ("spared", "says"), [(0, ""), (1, "1 copy of a pack was spared"), (2, "2 copies of packs were")]
)
def test_copies_that_were_spared_are_told(steps: Steps, spared: int, says: str) -> None:
    notes = steps.run._report(found(base(3)), sweep.Swept(spared=spared), ()).notes
    assert any(says in note for note in notes) if says else notes == ()


def test_what_was_packed_by_an_attempt_before_is_not_fetched_again() -> None:
    asked: list[bytes] = []
    added: list[bytes] = []

    def fetch(ids: list[bytes], take: Callable[[Any], None]) -> None:
        asked.extend(ids)
        take((SimpleNamespace(id=i, kind="blob"), b"data") for i in ids)

    class Upload(set[bytes]):
        def add(self, _kind: object, object_id: bytes = b"", _data: bytes = b"") -> None:  # type: ignore[override]
            added.append(object_id)

    upload: Any = Upload([b"there"])
    contents: Any = SimpleNamespace(fetch=fetch, fetch_deltas=lambda links: dict.fromkeys(links, b""))
    collect._take(contents, {b"there": None, b"new": None}, upload)
    assert asked == added == [b"new"]


def test_objects_are_packed_together_up_to_a_size(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """So much is held in memory at most."""
    taken: list[list[bytes]] = []
    monkeypatch.setattr(collect, "_take", lambda _c, ids, _u: taken.append([*ids]))
    monkeypatch.setattr(collect, "PACKED_TOGETHER_BYTES", 10)
    monkeypatch.setattr(collection, "to_pack", lambda *_: iter([[b"a", b"b"], [b"c"]]))
    steps.s.contents = lambda _: SimpleNamespace(size_of=lambda _: 6)
    nowhere: Any = None
    steps.run._repack(found(base(3)), nowhere)
    assert taken == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize("short", ["", "no room"])
def test_without_room_what_goes_as_it_is_goes_first_and_then_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    steps = Steps(monkeypatch)
    did: list[str] = []
    shorts = [short, ""]
    goes = found(base(3, OLD), plan=Plan(gone=frozenset({OLD})))
    monkeypatch.setattr(collect.agreement, "settle_journal", lambda _: None)
    monkeypatch.setattr(collect.agreement, "newest", lambda _: base(3, OLD))
    steps.step("look", lambda _: did.append("look") or goes)
    steps.step("_fenced", lambda *_, **__: (did.append("fence") or goes, shorts.pop(0)))
    steps.step("_swept", lambda *_: did.append("sweep") or sweep.Swept())
    steps.step("_sweep_records", lambda *_: None)
    report = steps.run.run()
    again = ["sweep", "look", "fence"] if short else []
    assert did == ["look", "fence", *again, "sweep"]
    assert report.notes == ()


def test_a_generation_is_not_begun_for_nothing(steps: Steps) -> None:
    """No pack is sparse: nothing is packed, and no upload is begun."""
    assert steps.run._pack(found(base(3))) == ""
    assert steps.run.upload is None


def test_older_versions_that_cannot_be_read_go_by_the_command_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions 3 to 5 can be read. All older ones may go where a policy drops them, and none that has a name."""
    monkeypatch.setattr(line, "Chain", lambda *_: SimpleNamespace(at=lambda *_: state(2)))
    monkeypatch.setattr(line.left_out, "explained", lambda s, newest, error, v: error)

    def unknown(policy: str, readable: int = 3, *names: Named) -> DamagedError | None:
        keep = retention.parse(policy) if policy else retention.Keep()
        try:
            line.check_unknown(None, state(5), 3, readable, keep, Retained(named=names))  # type: ignore[arg-type]
        except DamagedError as error:
            assert error.objects == (b"s2",)
            return error
        return None

    for policy in ("", "last=4", "daily=1", "last=3,daily=1"):
        told = unknown(policy)
        assert told is not None
        assert told.next_step.endswith(" `metasync gc --keep-last 3` gives the older versions up.")
    assert unknown("last=3") is None
    assert unknown("last=1") is None
    assert unknown("last=1", 3, Named("later", 3)) is None
    old = unknown("last=1", 3, Named("old", 2))
    assert old is not None
    assert "such as 'old'" in old.message
    assert old.next_step.endswith("gives the older versions up, once `metasync tag --delete` took their names.")
    none = unknown("last=1", 0)
    assert none is not None
    assert none.next_step == "`metasync check --repair` on a device that knows it brings it back."


# ---- from one push to the one before


def test_the_push_before_is_the_one_below_a_gap_or_the_first_parent() -> None:
    retained: Any = SimpleNamespace(over=lambda v: SimpleNamespace(below=b"below") if v in (-1, 4) else None)
    snapshot: Any = SimpleNamespace(parents=(b"first", b"second"))
    assert line.before(snapshot, 5, retained) == b"below"
    assert line.before(snapshot, 6, retained) == b"first"
    assert line.before(snapshot, 0, retained) == b"first", "a snapshot that says no version lies over no gap"
    assert line.before(SimpleNamespace(parents=()), 6, retained) == ZERO_HASH  # type: ignore[arg-type]


@pytest.mark.parametrize("versions", [(2, 2), (1, 2), (3, 0), (1 << 64,), (-1,)])
def test_versions_that_do_not_descend_are_no_order_to_drop_by(versions: tuple[int, ...]) -> None:
    line.check_order([(9, b"s9", 0), (4, b"s4", 0), (1, b"s1", 0)])
    with pytest.raises(WorkspaceError, match="says that it is version"):
        line.check_order([(v, b"s%d" % n, 0) for n, v in enumerate(versions)])


def test_pushes_of_a_long_while_are_not_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many versions the states are not read, whatever they would say."""
    monkeypatch.setattr(line, "LOOK_BACK_MAX", 2)
    monkeypatch.setattr(line, "Chain", lambda *_: SimpleNamespace(at=lambda _, v: state(v)))
    new = [(2, b"s2"), (3, b"s3")]
    assert line.is_agreed(None, base(1), base(3), new)  # type: ignore[arg-type]
    assert not line.is_agreed(None, base(1), base(3), new[:1])  # type: ignore[arg-type]
    assert not line.is_agreed(None, base(1), base(4), [*new, (4, b"s4")])  # type: ignore[arg-type]
