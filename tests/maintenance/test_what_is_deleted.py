"""What may be deleted on a backend, rule by rule: by a collection, after a move, and where a backend was removed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import Store, World

from metasync.consensus import Ref
from metasync.errors import BackendError, FormatError, NotFoundError, RefusedError, UnreachableError, UsageError
from metasync.local.state_keys import SWEPT_KEY
from metasync.maintenance import sweep
from metasync.moving import surplus, wipe
from metasync.runtime.effects import Op, Reply
from metasync.session import witnesses
from metasync.session.folder import WIPE_KEY
from metasync.store import moves
from metasync.transfer.copies import Place

IDS = {"a": b"a" * 16, "b": b"b" * 16}
NOWHERE = dict[str, str]  # is deleting refused
AWAY, REFUSED = UnreachableError("busy"), RefusedError("forbidden")


@pytest.fixture(autouse=True)
def _all_know_the_newest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds where some do not: `test_known_before_deleted`."""
    monkeypatch.setattr(witnesses, "refusals", lambda *_: {})
    monkeypatch.setattr(witnesses, "unaware", lambda *_: {})


class Session:
    """Two backends, `a` and `b`, as a device with a session reaches them."""

    def __init__(self) -> None:
        self.world = World(5, [*"ab"])
        self.stores = self.world.stores
        self.db: dict[Any, Any] = {}
        backends = [SimpleNamespace(name=n, backend_id=i, storage=(1,)) for n, i in IDS.items()]
        self.backends = backends
        places = {i: Place(n, i, (i,)) for n, i in IDS.items()}
        down: dict[str, BackendError] = {}
        self.s: Any = SimpleNamespace(
            transfer=SimpleNamespace(places=places, down=down, away=lambda place: place.name in down),
            out={}, listener=lambda _: None, form=None, names={i: n for n, i in IDS.items()},
            config=SimpleNamespace(
                backends=backends, acceptors=[(b, SimpleNamespace(acceptor_id=b.backend_id)) for b in backends]
            ),
            connections=SimpleNamespace(config_hash=b"now"),
            db=SimpleNamespace(get=self.db.get, set=self.db.__setitem__),
            runtime=SimpleNamespace(run=lambda task: self.world.do(task, {})),
        )  # fmt: skip

    def pack(self, name: str, generation: int, what: str, data: bytes = b"pack") -> tuple[int, bytes]:
        """A copy of a pack. `what`: two digits, which its name is made of."""
        pack = what * 32
        self.stores[name][f"{IDS[name].hex()}/packs/{generation}/{what}/{pack}"] = data
        return generation, bytes.fromhex(pack)

    def packs(self, name: str) -> set[tuple[int, str]]:
        """(generation, first two digits) of what lies there."""
        return {(int(p.split("/")[2]), p.split("/")[3]) for p in self.stores[name] if "/packs/" in p}

    def answers(self, name: str, kind: str, error: BackendError, of: str = "") -> None:
        """Requests of this kind, on paths that have `of` in them, fail there."""

        def answer(_: str, op: Op, store: Store) -> Reply:
            return Reply(error=error) if op.kind == kind and of in op.path else store.do(op)

        self.world.liars[name] = answer

    def asked(self, name: str, kind: str) -> int:
        return sum(op.kind == kind for op in self.world.requests[name])


# --- a collection


def test_packs_below_the_fence_that_are_not_named_go_and_nothing_else() -> None:
    w = Session()
    kept = w.pack("a", 1, "aa")
    for generation, what in ((1, "bb"), (2, "cc"), (3, "dd")):
        w.pack("a", generation, what)
    top = f"{IDS['a'].hex()}/packs"
    others = [f"{top}/x/ee/{'ee' * 32}", f"{top}/1/zz/{'ff' * 32}", f"{top}/1/bb/note", f"{top}/1/bb/{'99' * 32}"]
    w.stores["a"] |= dict.fromkeys(others, b"?")
    swept = sweep.sweep(w.s, {kept}, 3, NOWHERE)
    assert (dict(swept.packs), dict(swept.bytes), swept.away) == ({"a": 2}, {"a": 2}, {})
    assert w.stores["a"].keys() == {*others, f"{top}/1/aa/{'aa' * 32}", f"{top}/3/dd/{'dd' * 32}"}


def test_all_generations_are_listed_where_none_is_given() -> None:
    w = Session()
    found = [w.pack("a", 0, "aa"), w.pack("a", 12, "bb"), w.pack("b", 3, "cc")]
    assert [copy.id for copy in sweep.listed(w.s, {})] == found


@pytest.mark.parametrize("error", [AWAY, REFUSED])
def test_a_backend_that_cannot_be_listed_is_noted_and_the_others_are_swept(error: BackendError) -> None:
    w = Session()
    w.pack("a", 1, "aa")
    w.pack("b", 1, "bb")
    w.answers("a", "list", error)
    swept = sweep.sweep(w.s, (), 2, NOWHERE)
    assert (swept.away, dict(swept.packs)) == ({"a": error.message}, {"b": 1})
    assert w.s.transfer.down == ({"a": error} if error is AWAY else {}), "who refuses one thing is not away"


@pytest.mark.parametrize("how", ["out", "down"])
def test_a_backend_that_is_out_is_not_asked(how: str) -> None:
    w = Session()
    w.pack("a", 1, "aa")
    (w.s.out if how == "out" else w.s.transfer.down)["a"] = AWAY
    assert sweep.sweep(w.s, (), 2, NOWHERE).away == {"a": "busy"}
    assert not w.world.requests["a"]


def test_what_could_not_be_deleted_is_not_counted() -> None:
    w = Session()
    w.pack("a", 1, "aa")
    w.pack("b", 1, "aa")
    w.answers("a", "delete", REFUSED)
    swept = sweep.sweep(w.s, (), 2, NOWHERE)
    assert (dict(swept.packs), swept.away) == ({"b": 1}, {"a": "forbidden"})


def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack's bytes are the one object that it holds; other bytes are none."""

    def footer(data: bytes, *_: object) -> Any:
        if data == b"damaged":
            raise FormatError("damaged")
        return None, SimpleNamespace(objects=[SimpleNamespace(id=data)])

    monkeypatch.setattr(sweep, "read_footer", footer)


def test_where_something_is_missing_only_a_copy_goes_whose_pack_was_read_and_has_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = Session()
    reading(monkeypatch)
    for name in "ab":
        w.pack(name, 1, "aa", b"missed")
        w.pack(name, 1, "bb", b"else")
    w.pack("a", 1, "cc", b"damaged")
    w.pack("b", 1, "cc", b"else")
    swept = sweep.sweep(w.s, (), 2, NOWHERE, lambda object_id: object_id == b"missed")
    assert (w.packs("a"), w.packs("b")) == ({(1, "aa"), (1, "cc")}, {(1, "aa")})
    assert (swept.spared, dict(swept.packs)) == (3, {"a": 1, "b": 2})
    assert (w.asked("a", "get"), w.asked("b", "get")) == (3, 1), "one copy of each pack, if it can be read"


def test_a_copy_that_cannot_be_had_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Session()
    reading(monkeypatch)
    w.pack("a", 1, "aa", b"else")
    w.answers("a", "get", AWAY)
    assert sweep.sweep(w.s, (), 2, NOWHERE, lambda _: False).spared == 1
    assert w.packs("a") == {(1, "aa")}


def records(w: Session, name: str) -> set[str]:
    return {path.partition("/meta/")[2] for path in w.stores[name]}


def test_records_below_the_fence_that_are_not_needed_go_and_nothing_else() -> None:
    w = Session()
    needed, other = "aa" * 32, "bb" * 32
    for name in "ab":
        top = f"{IDS[name].hex()}/meta"
        w.stores[name] |= {
            f"{top}/{path}": b"?" for path in (f"1/{needed}", f"1/{other}", "1/note", f"2/{other}", "x/y")
        }
    sweep.sweep_records(w.s, {Ref(1, bytes.fromhex(needed))}, 2, NOWHERE)
    assert records(w, "a") == records(w, "b") == {f"1/{needed}", "1/note", f"2/{other}", "x/y"}


@pytest.mark.parametrize("how", ["no way", "out", "refuses", "empty"])
def test_records_of_the_other_backends_go_though_one_cannot_be_swept(how: str) -> None:
    w = Session()
    for name in "ab":
        w.stores[name][f"{IDS[name].hex()}/meta/1/{'bb' * 32}"] = b"?"
    if how == "no way":
        del w.s.names[IDS["a"]]
    elif how == "out":
        w.s.out["a"] = AWAY
    elif how == "refuses":
        w.answers("a", "list", REFUSED)
    else:
        w.stores["a"].clear()
    sweep.sweep_records(w.s, (), 2, NOWHERE)
    assert len(records(w, "a")) == (how != "empty")
    assert not records(w, "b")


def test_a_generation_that_is_gone_meanwhile_has_no_records() -> None:
    w = Session()
    w.answers("a", "list", NotFoundError("not there"))
    assert sweep._listed_in(w.s, "a", "meta/1", sweep._NAME) == []


# --- after a move


class Moving(Session):
    """Packs that the index names, whose copies on `b` count, and on `a` no longer do. `verified`: by bringing them."""

    def __init__(self, *packs: str, verified: Collection[str] | None = None) -> None:
        super().__init__()
        named = {}
        for what in packs:
            for name in "ab":
                key = self.pack(name, 1, what)
            named[key] = SimpleNamespace(generation=1, name=key[1], size=100)
        self.brought: list[list[Any]] = []
        self.at_once = 0
        good = {key for key in named if verified is None or key[1].hex()[:2] in verified}
        self.tally = SimpleNamespace(done=set[Any](), waiting=dict[str, str](), lost=set[bytes]())

        def bring_all(records: list[Any], *, note: bool) -> None:
            assert not note
            self.brought.append(records)
            self.tally.done |= {(r.generation, r.name) for r in records} & good

        self.s.runtime.start, self.s.runtime.wait = self._start, self._wait
        self.mover: Any = SimpleNamespace(
            s=self.s, tally=self.tally, bring_all=bring_all, ends=None,
            base=SimpleNamespace(index=SimpleNamespace(packs=lambda: named), state=None),
            places=SimpleNamespace(is_surplus=lambda backend_id, storage_id, _: storage_id == backend_id == IDS["a"]),
        )  # fmt: skip

    def _start(self, task: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.world.do(task, {}))
        return future

    def _wait(self, running: Collection[Future[Any]]) -> list[Future[Any]]:
        self.at_once = max(self.at_once, len(running))
        return list(running)[:1]

    def free(self) -> surplus.Freed:
        return surplus.free(self.mover)


def test_copies_that_a_trim_gave_up_go_once_the_others_are_verified() -> None:
    w = Moving("aa", "bb", "cc", verified=("aa", "bb"))
    w.pack("a", 1, "dd")  # which no index names
    freed = w.free()
    assert (w.packs("a"), w.packs("b")) == ({(1, "cc"), (1, "dd")}, {(1, "aa"), (1, "bb"), (1, "cc")})
    assert (freed.copies, freed.bytes, freed.failed) == ({"a": 2}, {"a": 200}, {})


def test_no_copy_goes_where_the_trim_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on other backends do. What has none there need not be verified."""
    w = Moving("aa", "bb")
    w.mover.places.is_surplus = lambda backend_id, storage_id, _: storage_id == backend_id
    for path in [path for path in w.stores["b"] if "/bb/" in path]:
        del w.stores["b"][path]
    monkeypatch.setattr(witnesses, "refusals", lambda *_: {"a": "it has not heard of it", "z": "nor has it"})
    freed = w.free()
    assert (w.packs("a"), w.packs("b")) == ({(1, "aa"), (1, "bb")}, set())
    assert freed.failed == {"a": "nothing is deleted there yet: it has not heard of it"}
    assert [[r.name[:1] for r in some] for some in w.brought] == [[b"\xaa"]]
    assert w.s.db.get(SWEPT_KEY) is None, "it is looked for again"


def test_what_was_verified_before_is_not_brought_again() -> None:
    w = Moving("aa", "bb")
    w.tally.done.add((1, b"\xaa" * 32))
    w.free()
    assert [[r.name[:1] for r in some] for some in w.brought] == [[b"\xbb"]]
    assert not w.packs("a")


def test_so_many_are_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surplus, "PACKS_ASKED_AT_ONCE", 3)
    w = Moving(*(f"{n:02x}" for n in range(10)))
    assert w.free().copies == {"a": 10}
    assert w.at_once == 3


def test_what_time_does_not_allow_is_left_for_another_time() -> None:
    """Nothing more is begun, and it is looked for again."""
    w = Moving("aa", "bb")
    w.mover.ends = SimpleNamespace(is_over=True)
    freed = w.free()
    assert (freed.copies, freed.is_all) == ({}, False)
    assert len(w.packs("a")) == 2
    assert w.db == {}
    w.mover.ends.is_over = False
    assert w.free().is_all
    assert not w.packs("a")


@pytest.mark.parametrize(("at_once", "asked", "left"), [(1, 1, 2), (1, 4, 2), (1, 5, 1), (1, 6, 0), (2, 5, 0)])
def test_what_time_does_not_allow_is_left_wherever_it_ends(
    monkeypatch: pytest.MonkeyPatch, at_once: int, asked: int, left: int
) -> None:
    """After so many looks at the clock: while copies are listed, or between two that are deleted. What is done when
    all is deleted is done."""
    monkeypatch.setattr(surplus, "PACKS_ASKED_AT_ONCE", at_once)
    w = Moving("aa", "bb")
    looks: list[int] = []

    class Ends:
        @property
        def is_over(self) -> bool:
            looks.append(1)
            return len(looks) > asked

    w.mover.ends = Ends()
    assert w.free().is_all is (left == 0)
    assert len(w.packs("a")) == left


def test_it_is_looked_for_once_after_each_change_of_the_backends() -> None:
    w = Moving("aa")
    w.free()
    assert w.db == {SWEPT_KEY: b"now"}
    w.pack("a", 1, "aa")
    assert not w.free().copies
    w.s.connections.config_hash = b"later"
    assert w.free().copies == {"a": 1}


@pytest.mark.parametrize("how", ["refused", "away", "waiting", "not linked", "lost"])
def test_it_is_looked_for_again_where_not_all_went(how: str) -> None:
    w = Moving("aa")
    if how == "refused":
        w.answers("a", "delete", REFUSED)
    elif how == "away":
        w.answers("a", "list", AWAY)
    elif how == "waiting":
        w.tally.waiting["b"] = "full"
    elif how == "not linked":
        del w.s.names[IDS["b"]]
    else:
        w.tally.lost.add(b"lost")
    freed = w.free()
    why = {"refused": {"a": "forbidden"}, "away": {"a": "busy"}, "waiting": {"b": "full"},
           "not linked": {"b": "not linked here"}, "lost": {}}  # fmt: skip
    assert freed.failed == why[how]
    assert not w.db
    assert freed.copies == ({} if how in ("refused", "away") else {"a": 1})


def test_a_backend_that_holds_no_data_need_not_be_linked() -> None:
    w = Moving("aa")
    w.backends.append(SimpleNamespace(name="v", backend_id=b"v" * 16, storage=()))
    assert w.free().failed == {}


def test_a_copy_that_is_gone_already_is_no_failure() -> None:
    w = Moving("aa")
    w.answers("a", "delete", NotFoundError("not there"))
    assert (w.free().failed, w.db) == ({}, {SWEPT_KEY: b"now"})


# --- a backend that was removed


class Removed(Session):
    """`a` was removed, and is to be emptied: the way to it is noted. `config`: what of the backends is agreed."""

    KEY = f"a~{IDS['a'].hex()}"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sweeps: bool = True) -> None:
        super().__init__()
        self.stores["a"] |= {"one": b"1", "packs/1/aa/two": b"2", "px/three": b"3"}
        self.swept: list[str] = []
        link = SimpleNamespace(folder="folder")
        self.db[WIPE_KEY] = {self.KEY: link, "other~ff": link}
        tags = ((moves.TO_EMPTY_TAG, IDS["a"]),)
        self.config: Any = SimpleNamespace(backends=[], acceptors=[], tags=tags, prev_config=None)
        backend = SimpleNamespace(close=lambda: None)
        if sweeps:
            backend.sweep = self.swept.append
        run = self.s.runtime.run

        @contextlib.contextmanager
        def session(_: str) -> Iterator[Any]:
            yield SimpleNamespace(config=self.config, listener=lambda _: None)

        def agree(_: Any, __: str, ids: set[bytes], *, emptied: bool) -> None:
            self.agreed.append((sorted(ids), emptied))

        self.agreed: list[tuple[list[bytes], bool]] = []
        monkeypatch.setattr(wipe.agreement, "ask_newest", lambda _: None)
        monkeypatch.setattr(wipe, "_agree", agree)
        monkeypatch.setattr(wipe, "Prefixed", lambda *_: None)
        monkeypatch.setattr(
            wipe.open_backend, "bare_runtime", lambda _: contextlib.nullcontext(SimpleNamespace(run=run))
        )
        machine = SimpleNamespace(way=lambda *_, **__: backend)
        ways = {IDS["a"]: SimpleNamespace(name="a", link=link), IDS["b"]: SimpleNamespace(name="b~old", link=link)}
        self.connections: Any = SimpleNamespace(db=self.s.db, machine=machine, ways=ways)
        self.session = session

    def wipe(self) -> Any:
        return wipe.wipe(self, IDS["a"])  # type: ignore[arg-type]


def test_all_that_lies_there_goes_and_that_is_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    done = w.wipe()
    assert (done.objects, done.bytes, done.left) == (3, 3, 0)
    assert not w.stores["a"] and w.swept == ["folder"]
    assert w.agreed == [([IDS["a"]], False)]
    assert Removed(monkeypatch, sweeps=False).wipe().left == 0


@pytest.mark.parametrize("how", ["in use", "not wanted any more", "no way here"])
def test_nothing_goes_where_that_is_not_agreed(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    w = Removed(monkeypatch)
    if how == "in use":
        w.config.backends.append(SimpleNamespace(backend_id=IDS["a"], storage=()))
    elif how == "no way here":
        del w.db[WIPE_KEY]
    else:
        w.config.tags = ()
    assert (w.wipe().objects, w.agreed, len(w.stores["a"])) == (0, [], 3)


def test_nothing_goes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    w.config.prev_config = b"before"
    with pytest.raises(UsageError, match="still to be moved"):
        w.wipe()
    assert len(w.stores["a"]) == 3


@pytest.mark.parametrize("where", ["", "in/"])
@pytest.mark.parametrize("what", ["votes", "data"])
def test_nothing_goes_where_a_place_in_use_lies(monkeypatch: pytest.MonkeyPatch, where: str, what: str) -> None:
    """Somebody has added a store inside the old folder; it is met before anything beside it."""
    w = Removed(monkeypatch)
    place = b"\7" * 16
    entry = SimpleNamespace(backend_id=IDS["b"], storage=(SimpleNamespace(storage_id=place),) * (what == "data"))
    w.config.backends.append(entry)
    if what == "votes":
        w.config.acceptors.append((entry, SimpleNamespace(acceptor_id=place)))
    w.stores["a"].clear()
    w.stores["a"] |= {f"{where}ballast": b"0", f"{where}{place.hex()}/birth": b"1", f"{where}keys/slot": b"2"}
    with pytest.raises(UsageError, match="in use"):
        w.wipe()
    assert (len(w.stores["a"]), w.swept, w.agreed) == (3, [], [])


def test_what_there_was_no_time_for_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    done = wipe.wipe(w, IDS["a"], lambda: 0.0)  # type: ignore[arg-type]
    assert (done.objects, done.left > 0, len(w.stores["a"]), w.swept, w.agreed) == (0, True, 3, [], [])


def test_nothing_goes_while_one_that_votes_does_not_know_of_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be left alone, and then needs what lies there."""
    w = Removed(monkeypatch)
    monkeypatch.setattr(witnesses, "unaware", lambda *_: {"b": "b: it has not heard of version 7"})
    with pytest.raises(UnreachableError, match=r"a is removed, and nothing was deleted there: .*\(b: it has not heard"):
        w.wipe()
    assert len(w.stores["a"]) == 3
    assert w.agreed == []


def test_what_could_not_be_deleted_leaves_the_folder_and_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    w.answers("a", "delete", REFUSED, of="px/")
    done = w.wipe()
    assert (done.objects, done.left, done.why) == (2, 1, "forbidden")
    assert w.swept == [] and w.agreed == []


def test_what_is_gone_already_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    w.answers("a", "delete", NotFoundError("not there"), of="px/")
    assert w.wipe().left == 0


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Removed(monkeypatch)
    w.answers("a", "list", REFUSED, of="px")
    with pytest.raises(RefusedError):
        w.wipe()
    assert w.agreed == []
    w.answers("a", "list", NotFoundError("not there"), of="px")  # gone meanwhile
    assert w.wipe().left == 0


def test_folders_are_followed_so_far() -> None:
    """A store may show a folder in every folder, for ever."""
    asked: list[str] = []

    def listed(path: str) -> list[tuple[str, int | None]]:
        asked.append(path)
        return [("in", None), ("file", 1)]

    found = dict(wipe._below(listed, "", 0, set()))
    assert len(asked) == len(found) == wipe.DEPTH_MAX + 1
    assert {"file", "in/file", "in/in/file"} <= found.keys()


def test_what_is_to_be_emptied_is_agreed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`b` was removed under the name that it had; `a` is waited for already."""
    w = Removed(monkeypatch)
    w.connections.config = SimpleNamespace(backend=lambda _: None)
    wipe.begin(w, "a")  # type: ignore[arg-type]
    assert w.agreed == []
    wipe.begin(w, "b")  # type: ignore[arg-type]
    assert w.agreed == [([IDS["b"]], True)]
    with pytest.raises(UsageError, match="no way to a backend called 'c'"):
        wipe.begin(w, "c")  # type: ignore[arg-type]
    w.connections.ways.clear()  # the workspace has forgotten the backend
    wipe.begin(w, "a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no way to"):
        wipe.begin(w, "b")  # type: ignore[arg-type]
    assert len(w.agreed) == 1
