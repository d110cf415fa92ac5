"""What the steps of a repair decide, one by one: what is copied, what leaves the index, what is stored anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from content_kit import digest
from delta_kit import LATER, told

from metasync.consensus import JOURNAL_KEY
from metasync.errors import UnreachableError, WorkspaceError
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance.repair import give_back, mend
from metasync.objects.model import ObjectKind
from metasync.session import agreement, space
from metasync.session.folder import BASE_KEY
from metasync.store.pack_format import DELTA, WHOLE, Located
from metasync.transfer.copies import Place
from metasync.transfer.moving import Brought

A, B, C = b"a", b"b", b"c"  # backends


def record(number: int) -> Any:
    return SimpleNamespace(id=(0, b"%d" % number), name=b"%d" % number, size=100)


def finding(number: int, good: Sequence[bytes], bad: Sequence[bytes], is_sure: bool = True) -> mend.Finding:
    return mend.Finding(record(number), tuple(good), tuple(bad), is_sure)


# ---- what is done with what was found


class Steps:
    """A repair whose steps answer as a test wants: `given`, then of each turn whether this device's change was agreed.

    `named`: the packs of the index that is agreed after a turn.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mended: list[int] = []
        self.lost: list[list[int]] = []
        self.heard: list[bool] = []
        self.given = give_back.Given((1, b"root"), 700, (), ())  # type: ignore[arg-type]
        self.wins = [True]
        self.named = {(0, b"1"): None, (0, b"2"): None}
        self.files: tuple[Any, ...] = ()
        self.agreed: Any = SimpleNamespace(state=SimpleNamespace(v=1), index=self._index())
        self.s: Any = SimpleNamespace(listener=lambda _: None, load=self._load)
        monkeypatch.setattr(space, "begin_asking", lambda *_: lambda: None)
        monkeypatch.setattr(mend, "_mend", self._mend)
        monkeypatch.setattr(mend, "give_back", self._give_back)
        monkeypatch.setattr(mend, "name_in_index", lambda *_: (SimpleNamespace(v=2), self.wins.pop(0)))
        monkeypatch.setattr(mend, "gone_files", lambda *_: self.files)

    def _index(self) -> Any:
        return SimpleNamespace(packs=lambda: self.named)

    def _load(self, state: Any) -> Any:
        return SimpleNamespace(state=state, index=self._index())

    def _mend(self, _: Any, found: Sequence[mend.Finding]) -> mend._Made:
        self.mended += [int(f.record.name) for f in found]
        return mend._Made(len(found), 100 * len(found))

    def _give_back(self, _: Any, __: Any, lost: Sequence[Any], *, are_all_heard: bool, **_more: Any) -> give_back.Given:
        self.lost.append([int(p.name) for p in lost])
        self.heard.append(are_all_heard)
        return self.given

    def run(self, *found: mend.Finding, nowhere: bool = False) -> Any:
        return mend.repair(self.s, self.agreed, found, nowhere)[0]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_only_what_has_a_good_copy_and_lacks_one_is_copied(steps: Steps) -> None:
    steps.run(finding(1, [A], [B]), finding(2, [], [A, B]), finding(3, [A], []), finding(4, [], [], is_sure=False))
    assert steps.mended == [1]
    assert steps.lost == []


def test_while_a_copy_may_be_elsewhere_nothing_leaves_the_index(steps: Steps) -> None:
    """Not what is surely lost either: what the folder lacks of it may lie in what is away."""
    report = steps.run(finding(1, [], [A], is_sure=False), finding(2, [], [A]), nowhere=True)
    assert (steps.lost, steps.heard, report.waits) == ([[]], [False], 1)


def test_where_there_is_nothing_to_name_no_version_is_agreed(steps: Steps) -> None:
    steps.given, steps.wins = steps.given._replace(root=None), []
    assert steps.run(finding(1, [], [A])).version is None


def test_what_another_device_gave_up_meanwhile_is_not_given_up_again(steps: Steps) -> None:
    steps.wins, steps.named = [False, True], {(0, b"2"): None}
    report = steps.run(finding(1, [], [A]), finding(2, [], [B]))
    assert (steps.lost, report.version) == ([[1, 2], [2]], 2)


def test_a_repair_that_others_are_always_faster_than_ends(steps: Steps) -> None:
    steps.wins = [False] * mend.LOST_ROUNDS_MAX
    with pytest.raises(WorkspaceError, match="others were faster"):
        steps.run(finding(1, [], [A]))


@pytest.mark.parametrize(
    ("gone", "files", "told"), [((), (), (0, 0)), ((b"o",), (), (0, 1)), ((b"o",), ("f",), (1, 0))]
)
def test_what_is_gone_is_told_by_file_or_counted(steps: Steps, gone: Any, files: Any, told: tuple[int, int]) -> None:
    steps.given, steps.files = steps.given._replace(gone=gone), files
    report = steps.run(finding(1, [], [A]))
    assert (len(report.gone), report.gone_objects) == told


# ---- copies


def test_copies_go_where_the_backends_of_now_hold_the_pack_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that left since, or that no longer has this pack by the mapping, gets none."""
    places = {i: Place(i.decode(), i, ()) for i in (A, B)}
    ids = {(A, b"1"): (b"new", b"old"), (B, b"2"): (b"x",), (A, b"2"): (b"x",), (A, b"3"): (b"x",)}
    counting = SimpleNamespace(ids=lambda i, name: ids.get((i, name), ()))
    monkeypatch.setattr(mend, "Places", lambda *_: counting)
    monkeypatch.setattr(mend, "PACKS_MENDED_AT_ONCE", 2)
    asked: dict[bytes, Any] = {}
    read: list[bytes] = []
    most = 0

    def bring(_: Any, of: Any, wanted: Sequence[Any], sources: Any, *, are_all: bool, read_data: bool) -> Any:
        asked[of.name] = [(p.backend_id, p.storage_ids) for p in wanted], are_all
        if read_data:
            read.append(of.name)
        return Brought({}, tuple(p.name for p in wanted), is_lost=of.name == b"3")

    def wait(running: Any) -> list[Any]:
        nonlocal most
        most = max(most, len(running))
        return [next(iter(running))]

    def start(result: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(result)
        return future

    monkeypatch.setattr(mend, "bring", bring)
    s: Any = SimpleNamespace(
        transfer=SimpleNamespace(places=places, read_order=lambda _: ()), config=None, previous=None,
        runtime=SimpleNamespace(start=start, wait=wait), listener=lambda _: None,
    )  # fmt: skip
    found = [
        finding(1, [C], [A, B, C]),
        finding(2, [C], [A, B], is_sure=False),
        finding(3, [C], [A])._replace(by_bytes=True),
    ]
    assert mend._mend(s, found) == (4, 400, {(0, b"3")}, ())
    both = [(A, (b"x",)), (B, (b"x",))]
    assert asked == {b"1": ([(A, (b"old", b"new"))], True), b"2": (both, False), b"3": (both[:1], True)}
    assert read == [b"3"], "the digest of a copy that was read and found wrong says nothing"
    assert most == 2


# ---- what is stored anew


def whole(*numbers: int) -> list[tuple[int, int, int, int]]:
    return [(n, WHOLE, 0, 0) for n in numbers]


UNDER_1, UNDER_2 = (2, DELTA, 1, 1), (2, DELTA, 3, 2)  # object 2, made of 1, and made of a delta


@pytest.mark.parametrize(
    ("index", "rest", "is_so"),
    [
        (whole(2), [], False),
        (whole(2), whole(2), True),
        ([UNDER_1], whole(2), True),
        ([UNDER_1], [UNDER_1], True),
        ([UNDER_1], [UNDER_2], False),
        (whole(2), [UNDER_1], False),
        ([(2, LATER, 0, 0)], [UNDER_2], True),
        ([UNDER_1], [(2, LATER, 0, 0)], False),
    ],
)
def test_deltas_may_count_on_the_rest_of_an_index_at_no_more_depth(index: Any, rest: Any, is_so: bool) -> None:
    assert give_back._is_as_deep(told(index), told(rest), digest(2)) is is_so


@pytest.mark.parametrize(
    ("rest", "stored", "is_free"),
    [
        ([whole(1), [UNDER_1]], (), True),
        ([whole(1)], (2,), True),
        ([whole(1)], (), False),
        ([whole(1), [UNDER_2]], (), False),
        ([], (1, 2), True),
    ],
)
def test_a_pack_leaves_the_index_only_if_what_it_gives_is_elsewhere(rest: Any, stored: Any, is_free: bool) -> None:
    """What it cannot give is no reason to keep it: object 7 is made of what nobody has."""
    index = told([*whole(1), UNDER_1, (7, DELTA, 99, 1)])
    (pack,) = index.packs().values()
    upload: Any = {digest(n): b"" for n in stored}
    assert give_back._is_free(index, told(*rest), pack, upload) is is_free


class Uploading(dict[bytes, bytes]):
    """What is stored."""

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        self[object_id] = data


def test_of_a_pack_that_goes_what_is_cached_or_can_be_read_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eleven objects the rest has 4 and 8, 7 is stored, 1 is cached, and what is cached as 2 is something else.

    Deltas are read with few others at a time: what they make may be large.
    """
    monkeypatch.setattr(give_back, "OPENED_TOGETHER_BYTES", 15)
    small = [(n, DELTA, 3, 1) for n in (5, 6, 8, 9, 10, 11)]
    index, upload, reads, looked_up = told([*whole(1, 2, 3, 4, 7), *small]), Uploading(), [], []
    upload[digest(7)] = b""
    (pack,) = index.packs().values()

    def fetch(ids: Sequence[bytes], take: Callable[[Any], None], on_lost: Any) -> None:
        reads.append(ids)
        some = [i for i in ids if i != digest(6)]
        on_lost([digest(6)], None)
        take([(Located(ObjectKind.BLOB, i, 0, 0, 10), memoryview(i)) for i in some])

    def get_objects(ids: Sequence[bytes]) -> dict[bytes, bytes]:
        looked_up.extend(ids)
        return {digest(1): digest(1), digest(2): b"altered"}

    s: Any = SimpleNamespace(
        db=SimpleNamespace(get_objects=get_objects), ids=SimpleNamespace(of=lambda kind, data: data)
    )
    contents: Any = SimpleNamespace(index=index, fetch=fetch, size_of=lambda _: 10)
    give_back._store_objects(s, contents, told(whole(4), [small[2]]), pack, upload)  # type: ignore[arg-type]
    ids = [o.id for o in index.inside(pack)]
    large, made = ([i for i in ids if i in map(digest, some)] for some in ((2, 3), (5, 6, 9, 10, 11)))
    assert reads == [large + made[:2], made[2:4], made[4:]]
    assert sorted(looked_up) == sorted([digest(1), *large, *made])
    assert upload == {digest(7): b""} | {digest(n): digest(n) for n in (1, 2, 3, 5, 9, 10, 11)}


@pytest.mark.parametrize(
    ("tree_root", "error", "told_of"),
    [(b"root", UnreachableError("a is away"), ["the newest version cannot be read: a is away"]), (b"root", None, []),
     (None, UnreachableError("nothing is to be asked"), [])],
)  # fmt: skip
def test_a_newest_version_that_cannot_be_read_is_told(tree_root: Any, error: Any, told_of: list[str]) -> None:
    def walk(*_: Any, on_lost: Any) -> None:
        if error is not None:
            raise error

    notes: list[Any] = []
    contents = SimpleNamespace(index=told(), size_of=None, walk=walk)
    s: Any = SimpleNamespace(contents=lambda _: contents, ingest=lambda **_: None, listener=notes.append, tree=None)
    agreed: Any = SimpleNamespace(tree_root=tree_root, index=told(), state=SimpleNamespace(master=digest(1)))
    assert not give_back._store_tree(s, agreed, Uploading({digest(1): b""}))  # type: ignore[arg-type]
    assert [note.text for note in notes] == told_of


# ---- the version that names it


@pytest.mark.parametrize(
    ("base", "is_unfinished", "is_set"),
    [(b"same", False, True), (b"older", False, False), (b"same", True, False)],
)
def test_the_folder_is_at_the_new_version_only_if_it_has_its_files(
    monkeypatch: pytest.MonkeyPatch, base: bytes, is_unfinished: bool, is_set: bool
) -> None:
    """What an older folder lacks would count as deleted there."""
    decided = SimpleNamespace(state=SimpleNamespace(master=b"same", v=9), mine=True)
    monkeypatch.setattr(agreement, "propose", lambda *_: decided)
    noted: dict[str, Any] = {JOURNAL_KEY.name: "begun"}
    db = SimpleNamespace(
        set=lambda key, value: noted.__setitem__(key.name, value),
        has=lambda key: is_unfinished and key.name == UNFINISHED_KEY.name,
    )
    s: Any = SimpleNamespace(
        entropy=bytes, db=db, load=lambda _: None, base_state=lambda: SimpleNamespace(master=base),
        runtime=SimpleNamespace(run=lambda _: None), group=SimpleNamespace(write_hint=lambda *_, **__: None),
    )  # fmt: skip
    assert give_back.name_in_index(s, decided.state, None) == (decided.state, True)  # type: ignore[arg-type]
    assert noted == {JOURNAL_KEY.name: None} | ({BASE_KEY.name: decided.state} if is_set else {})
