"""What puts back packs that an index left out decides, one by one: which are named again, which are read and stored
anew, and how far it looks.

Objects and packs have names of one letter here. A pack "a5" is that of generation 5.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus import ZERO_HASH
from metasync.errors import DamagedError, NoQuorumError, UnreachableError, UnreadableError, WorkspaceError
from metasync.events import Notice
from metasync.maintenance.repair import left_out_packs
from metasync.maintenance.repair.left_out_packs import Beside
from metasync.objects.model import ObjectKind
from metasync.session.session import Agreed
from metasync.store.index import Index, IndexSegment, PackRecord, make_segment, pack_objects, packed_ids
from metasync.store.pack_format import HEADER_BYTES, Located, Segment
from metasync.transfer.verify import CopyState

FENCE = 5  # what is older than this generation, anybody may delete


def name(letter: str) -> bytes:
    return letter.encode() * 32


def record(pack: str) -> PackRecord:
    segment = Segment(100, 100, bytes(32))
    return PackRecord(name(pack[0]), int(pack[1:] or FENCE), 1000, bytes(HEADER_BYTES), (segment,))


def rows(objects: str) -> list[Located]:
    return [Located(ObjectKind.BLOB, name(o), 0, ord(o), 1) for o in objects]


def segment(dead: str = "", **packs: str) -> IndexSegment:
    """A segment of these packs, with their objects, and of tombstones."""
    return make_segment([(record(p), rows(o)) for p, o in packs.items()], [record(d).id for d in dead.split()])


def agreed(*segments: IndexSegment, **more: Any) -> Any:
    values = {"v": 9, "master": b"m", "min_gen": FENCE} | more
    return Agreed(SimpleNamespace(**values), None, None, None, Index(segments), "a snapshot")  # type: ignore[arg-type]


def beside(**packs: str) -> list[Beside]:
    return [(record(p), pack_objects(rows(o))) for p, o in packs.items()]


def said(packs: list[Beside]) -> dict[str, str]:
    """Packs with what lies in them, as `beside` takes them, without the generation."""
    return {r.name[:1].decode(): "".join(i[:1].decode() for i in packed_ids(objects)) for r, objects in packs}


# ---- what is named again, and what is stored anew


def again(at: Any, packs: list[Beside], needed: str = "xyz", broken: str = "") -> tuple[dict[str, str], str]:
    needs: Any = SimpleNamespace(
        agreed=at, index=left_out_packs._with(at, packs), all={name(n) for n in needed},
        broken=lambda: {name(b) for b in broken},
    )  # fmt: skip
    out = left_out_packs._again(needs, packs)
    return said(out.named), "".join(sorted(i[:1].decode() for i in out.stored))


def test_what_nobody_may_have_deleted_is_named_again_and_what_is_fenced_is_stored_anew() -> None:
    """G3 in docs/design/collection.md: a pack that anybody may delete at any time is no pack to name."""
    assert again(agreed(), beside(a5="x", b6="y")) == ({"a": "x", "b": "y"}, "")
    assert again(agreed(), beside(a4="x", b5="y")) == ({"b": "y"}, "x")


def test_of_what_is_fenced_only_that_is_stored_anew_which_the_index_lacks() -> None:
    assert again(agreed(segment(n5="y")), beside(a4="xy")) == ({}, "x")


def test_a_fenced_pack_that_the_index_names_has_its_other_rows_named_too() -> None:
    """A collection keeps it: it is in the agreed index."""
    assert again(agreed(segment(a4="y")), beside(a4="xy")) == ({"a": "xy"}, "")


def test_a_pack_of_which_all_is_named_stays_as_it_is() -> None:
    assert again(agreed(segment(a5="xy")), beside(a5="xy")) == ({}, "")
    assert again(agreed(segment("a5", n5="xy")), beside(a5="xy")) == ({}, ""), "it is dead, and others have all"
    assert again(agreed(segment("a5", n5="y")), beside(a5="xy")) == ({"a": "xy"}, "")


def test_a_pack_of_which_others_are_only_said_to_have_all_is_named_again() -> None:
    """Their rows may be false, and what nothing names is deleted."""
    assert again(agreed(segment(n5="x")), beside(a5="x")) == ({"a": "x"}, "")


def test_what_no_version_needs_and_what_is_not_whole_stays_out() -> None:
    """G4: who names the list of a file's chunks names the chunks."""
    assert again(agreed(), beside(a5="xyz"), needed="xy") == ({"a": "xy"}, "")
    assert again(agreed(), beside(a5="xy"), broken="y") == ({"a": "x"}, "")
    assert again(agreed(), beside(a5="x", b4="y"), needed="z") == ({}, "")


def test_a_place_that_nobody_would_rely_on_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out_packs.deltas, "is_relied_on", lambda _index, _record, o, _needed: o.id != name("y"))
    assert again(agreed(), beside(a5="xy")) == ({"a": "x"}, "")


# ---- the index with them


def test_without_packs_to_add_the_index_is_the_same_one() -> None:
    at = agreed(segment(a5="x"))
    assert left_out_packs._with(at, []) is at.index


def test_a_pack_that_is_dead_in_the_index_is_not_dead_in_the_one_with_it() -> None:
    """Nor is anything left of what segments said of it; others stay dead, and other segments as they are."""
    untouched = segment(n5="y")
    at = agreed(segment(a5="x", b5="z"), untouched, segment("a5 c5"))
    index = left_out_packs._with(at, beside(a5="x"))
    assert {p[1][:1] for p in index.packs()} == {b"a", b"b", b"n"}
    assert index.dead == {record("c5").id}
    assert untouched in index.segments
    assert set(left_out_packs._without_dead(at, beside(a5="x"))) == {0, 2}
    assert left_out_packs._without_dead(at, beside(d5="x")) == {}, "nothing says that it is dead"


def test_a_segment_of_which_nothing_is_left_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Any] = []
    upload = SimpleNamespace(finish=lambda: None, index_segments=lambda: ["what was read"])
    monkeypatch.setattr(left_out_packs, "upload_for", lambda *_: upload)
    read: list[Any] = []
    monkeypatch.setattr(left_out_packs, "store_read", lambda _contents, ids, _upload: read.append(ids))
    monkeypatch.setattr(left_out_packs, "STORED_TOGETHER", 2)

    def replaced(_state: Any, _root: Any, _segments: Any, stays: Any, fresh: Any) -> Any:
        stored.append((list(stays), list(fresh)))
        return ["segments", "the root"]

    s: Any = SimpleNamespace(indexes=SimpleNamespace(replace=replaced))
    at = agreed(segment(n5="y"), segment("a5"), segment("a5 c5"), segment(a5="x", b5="z"))
    made = left_out_packs._Again(beside(a5="x"), dict.fromkeys([name("u"), name("v"), name("w")], record("d4")))
    needs: Any = SimpleNamespace(contents=None)
    assert left_out_packs._stored(s, at, needs, made) == "the root"
    ((stays, fresh),) = stored
    assert stays == [0], "of the others one is empty now, and two are written anew"
    assert [one if isinstance(one, str) else (len(one.packs), len(one.tombstones)) for one in fresh] == [
        (0, 1), (1, 0), (1, 0), "what was read",
    ]  # fmt: skip
    assert read == [[name("u"), name("v")], [name("w")]]


# ---- how far it looks


class Marks:
    """Marks of what versions need: of the agreed index, and of those with more packs beside it.

    `missing`: what each one after the other misses. `older`: the packs of older indexes, one index after the other.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *missing: str, there: str = "", older: tuple[str, ...] = (),
        why: Any = None, lacking: str | None = None, are_untrue: bool = False,
    ) -> None:  # fmt: skip
        self.todo, self.why, self.lacking = list(missing), why, lacking
        self.made: list[str] = []
        self.found: list[Beside] = beside(**{p: p for p in there})
        self.older, self.left = older, len(older)
        self.are_untrue = are_untrue
        monkeypatch.setattr(left_out_packs, "Needs", self._mark)
        monkeypatch.setattr(left_out_packs, "_with", lambda _, packs: "".join(sorted(said(packs))))

    def _mark(self, _s: Any, _agreed: Any, index: str) -> Any:
        self.made.append(index)
        missing = {name(m) for m in self.todo.pop(0)}
        lacking = missing if self.lacking is None else {name(m) for m in self.lacking}
        return SimpleNamespace(missing=missing, lacking=lacking, why=self.why, number=len(self.made))

    def beside(self, _: Any) -> list[Beside]:
        return list(self.found)

    def more(self, _: Any) -> Any:
        for packs in self.older:
            self.left -= 1
            new = beside(**{p: p for p in packs})
            self.found += new
            yield new

    def open_deltas(self, _: Any) -> bool:
        return self.are_untrue

    def look(self) -> tuple[int, str]:
        """-> the number of the mark that counts, and the packs that were marked with."""
        needs, packs = left_out_packs._look(None, None, self)  # type: ignore[arg-type]
        return needs.number, "".join(sorted(said(packs)))


def test_where_the_index_names_all_no_older_one_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch, "", older=("x",), are_untrue=True)
    assert marks.look() == (1, "")
    assert (marks.made, marks.left) == ([""], 1)


def test_where_needs_are_not_known_no_older_index_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch, "x", older=("x",), why=DamagedError("gone"))
    assert marks.look() == (1, "")
    assert marks.left == 1


def test_what_an_attempt_before_has_found_is_marked_with_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch, "", there="x", older=("y",), lacking="x")
    assert marks.look() == (1, "x")
    assert (marks.made, marks.left) == (["x"], 1)
    marks = Marks(monkeypatch, "y", "", there="x", older=("y",))
    assert marks.look() == (2, "xy")


def test_older_indexes_are_opened_until_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that adds nothing of that is no reason for another mark."""
    marks = Marks(monkeypatch, "xy", "y", "", older=("n", "x", "m", "y", "z"))
    assert marks.look() == (3, "mnxy")
    assert (marks.made, marks.left) == (["", "nx", "mnxy"], 1)


def test_where_something_stays_missing_all_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch, "xu", "u", older=("x", "n"))
    assert marks.look() == (2, "x")
    assert marks.left == 0


def test_after_untrue_deltas_it_is_marked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(monkeypatch, "x", "", "", older=("x",), are_untrue=True)
    assert marks.look() == (3, "x")


# ---- what comes of it


class Run:
    """Puts back `named` packs, in attempts of which others overtake the first `lost`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, named: str = "", stored: str = "", lacking: str = "x",
        why: Any = None, error: Any = None, waits: int = 0, lost: int = 0,
    ) -> None:  # fmt: skip
        self.told: list[Any] = []
        self.attempts = 0
        self.again = left_out_packs._Again(beside(**{n: n for n in named}), {name(i): record("d4") for i in stored})
        self.needs: Any = SimpleNamespace(lacking=lacking, why=why, agreed=None)
        self.lost, self.error = lost, error
        found = SimpleNamespace(waits=waits, by=lambda _: {(4, "mallory"): 2})
        for what, answer in {
            "_Older": lambda _: found,
            "true_index": lambda at, _: at,
            "_look": self._look,
            "Needs": lambda *_: self.needs,
            "_again": lambda *_: self.again,
            "_stored": lambda *_: "a name",
            "_loaded": lambda _, at: at,
            "name_in_index": self._name,
            "newest": lambda _: "a newer one",
        }.items():
            monkeypatch.setattr(left_out_packs, what, answer)
        self.s: Any = SimpleNamespace(listener=self._told, load=lambda state: f"loaded {state.v}")

    def _told(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.told.append(event.text)

    def _look(self, *_: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.needs, []

    def _name(self, *_: Any) -> Any:
        self.attempts += 1
        return SimpleNamespace(v=10), self.attempts > self.lost

    def run(self) -> Any:
        at: Any = SimpleNamespace(state=None)
        out, now, needs = left_out_packs.rejoin(self.s, at)
        assert needs is self.needs
        return out, now if isinstance(now, str) else "as it was"


@pytest.mark.parametrize(("named", "stored"), [("a", ""), ("", "x"), ("a", "x")])
def test_who_left_out_what_was_put_back_is_told(monkeypatch: pytest.MonkeyPatch, named: str, stored: str) -> None:
    report, now = Run(monkeypatch, named=named, stored=stored, waits=3).run()
    assert (report.version, report.waits, now) == (10, 3, "loaded 10")
    assert [(one.version, one.device, one.packs) for one in report.left_out] == [(4, "mallory", 2)]


def test_where_nothing_is_put_back_only_what_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for waits in (0, 2):
        run = Run(monkeypatch, waits=waits)
        report, now = run.run()
        assert (report is None) is (waits == 0)
        assert (now, run.attempts) == ("as it was", 0)
    run = Run(monkeypatch, named="a", lacking="")
    assert run.run() == (None, "as it was")
    assert run.attempts == 0, "the index names all that is needed"


@pytest.mark.parametrize("how", ["a mark that ended early", "DamagedError", "NoQuorumError"])
def test_where_needs_are_not_known_nothing_is_put_back_and_all_else_goes_on(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What would be named might be the part of a file that is nowhere (G4)."""
    early = how == "a mark that ended early"
    error = None if early else {"DamagedError": DamagedError, "NoQuorumError": NoQuorumError}[how]("a list is gone")
    run = Run(monkeypatch, named="a", why=DamagedError("a list is gone") if early else None, error=error, waits=2)
    assert run.run() == (None, "as it was")
    assert run.told == ["what older versions need is not known: a list is gone"]
    assert run.attempts == 0


def test_others_may_be_faster_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out_packs, "LOST_ROUNDS_MAX", 3)
    run = Run(monkeypatch, named="a", lost=2)
    monkeypatch.setattr(left_out_packs, "newest", lambda _: SimpleNamespace(state=None))
    assert run.run()[1] == "loaded 10"
    assert run.attempts == 3
    run = Run(monkeypatch, named="a", lost=3)
    monkeypatch.setattr(left_out_packs, "newest", lambda _: SimpleNamespace(state=None))
    with pytest.raises(WorkspaceError, match="others were faster 3 times"):
        run.run()


def test_a_version_whose_snapshot_was_left_out_is_loaded_anew_if_it_has_one() -> None:
    s: Any = SimpleNamespace(load=lambda state: "loaded")
    at = agreed()
    assert left_out_packs._loaded(s, at) is at
    assert left_out_packs._loaded(s, replace(at, snapshot=None)) == "loaded"
    before = replace(agreed(master=ZERO_HASH), snapshot=None)
    assert left_out_packs._loaded(s, before) is before, "before the first push there is none"


@pytest.mark.parametrize("is_read", [True, False])
def test_a_version_without_its_snapshot_is_one_to_mend_if_its_index_can_be_read(
    monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    error = UnreadableError("version 9")

    def unreadable(_: Any) -> Any:
        raise error

    def index(_: Any) -> Any:
        if not is_read:
            raise DamagedError("it is nowhere")
        return "a root", Index()

    monkeypatch.setattr(left_out_packs.agreement, "newest", unreadable)
    monkeypatch.setattr(left_out_packs.agreement, "ask_newest", lambda _: agreed().state)
    s: Any = SimpleNamespace(
        indexes=SimpleNamespace(of_state=index), config_of=lambda _: None, devices_of=lambda _: None
    )
    if is_read:
        found = left_out_packs.newest(s)
        assert (found.root, found.snapshot) == ("a root", None)
    else:
        with pytest.raises(UnreadableError) as raised:
            left_out_packs.newest(s)
        assert raised.value is error


# ---- what older indexes name


class Older:
    """Versions, the newest first: the segments of each one's index; None: it is gone. `copies`: of packs, by backend,
    what is wrong with each; "?": the backend does not say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *indexes: Any, **copies: tuple[str, ...]) -> None:
        self.indexes, self.copies = indexes, copies
        self.looked: list[str] = []
        self.opened: list[Any] = []
        self.untrue: set[bytes] = set()
        self.states = [SimpleNamespace(v=len(indexes) - n) for n in range(len(indexes))]
        self.ends: Any = None
        monkeypatch.setattr(left_out_packs.unreadable, "brought", lambda *_: self._brought())
        monkeypatch.setattr(left_out_packs, "where_not", self._where_not)
        monkeypatch.setattr(left_out_packs, "check_copy", self._copy)
        transfer = SimpleNamespace(read_order=lambda pack: range(len(self.copies.get(pack[:1].decode(), ("",)))))
        s: Any = SimpleNamespace(
            indexes=SimpleNamespace(of_state=self._of), listener=lambda _: None, runtime=None, transfer=transfer
        )
        self.older = left_out_packs._Older(s)

    def _brought(self) -> Any:
        yield from self.states
        if self.ends is not None:
            raise self.ends

    def _of(self, state: Any) -> Any:
        segments = self.indexes[len(self.indexes) - state.v]
        if segments is None:
            raise DamagedError("it went after a collection")
        items = [SimpleNamespace(ref=SimpleNamespace(hash=id(one))) for one in segments]
        return SimpleNamespace(items=items), Index(segments)

    def _copy(self, _transfer: Any, place: int, pack: PackRecord, *_: Any) -> Any:
        letter = pack.name[:1].decode()
        problem = self.copies.get(letter, ("",))[place]
        self.looked.append(letter)
        return CopyState("b", problem or None, unknown=problem == "?", untrue=tuple(self.untrue))
        yield

    def _where_not(self, _runtime: Any, tasks: Any) -> list[PackRecord]:
        out = []
        for pack, task in tasks:
            try:
                next(task)
            except StopIteration as end:
                if not end.value:
                    out.append(pack)
        return out

    def more(self, at: Any) -> list[dict[str, str]]:
        return [said(packs) for packs in self.older.more(at)]

    def leavers(self) -> dict[str, int]:
        return {pack[1][:1].decode(): state.v for pack, state in self.older._leaver.items()}


def test_packs_of_older_indexes_that_the_newest_lacks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, from the newest index that has it; the version after that is told to have left it out."""
    new, common, old = segment(n5="y"), segment(a5="x"), segment(b5="z")
    older = Older(monkeypatch, [new], None, [common, new], [common, old])
    at = agreed(new)
    assert older.more(at) == [{"a": "x"}, {"b": "z"}]
    assert older.looked == ["a", "b"]
    assert older.leavers() == {"a": 4, "b": 2}
    assert said(older.older.beside(at)) == {"a": "x", "b": "z"}


def test_a_pack_of_which_the_newest_index_names_a_part_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [segment(a5="x", b5="y")], [segment(a5="xz", b5="y")])
    assert older.more(agreed(segment(a5="x", b5="y"))) == [{"a": "xz"}]


def test_a_pack_that_is_dead_is_found_where_it_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of segments that both indexes have, only what has a tombstone in the newer one is new."""
    common, dead = segment(a5="x", b5="y"), segment("a5")
    older = Older(monkeypatch, [common, dead], [common])
    assert older.more(agreed(common, dead)) == [{"a": "x"}]
    assert older.looked == ["a"]
    older = Older(monkeypatch, [common, dead], [segment("c5"), common, dead])
    assert older.more(agreed(common, dead)) == []


def test_a_segment_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = segment(a5="x")
    older = Older(monkeypatch, [], [lost], [], [lost], a=("gone",))
    seen: list[int] = []
    plain = older.older._new
    monkeypatch.setattr(older.older, "_new", lambda at, index, some: seen.append(len(some)) or plain(at, index, some))
    older.more(agreed())
    assert (seen, older.looked) == ([0, 1, 0, 0], ["a"])


def test_a_pack_is_looked_at_once_in_whatever_segments_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later push had merged them."""
    older = Older(monkeypatch, [], [segment(a5="x", b5="y")], [segment(a5="x"), segment(b5="y")], a=("gone",))
    assert older.more(agreed()) == [{"b": "y"}]
    assert older.looked == ["a", "b"]


def test_where_states_went_with_lost_backends_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [], [segment(a5="x")])
    older.ends = UnreachableError("lost")
    assert older.more(agreed()) == [{"a": "x"}]


def test_a_later_attempt_goes_on_where_the_one_before_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [], [segment(a5="x")], [segment(b5="y")])
    assert said(next(older.older.more(agreed()))) == {"a": "x"}
    assert older.more(agreed()) == [{"b": "y"}]


def test_one_right_copy_is_enough_and_one_of_which_nothing_is_known_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = segment(a5="u", b5="v", c5="w", d5="x")
    older = Older(monkeypatch, [], [index], a=("gone", ""), b=("gone", "?"), c=("torn",), d=("?", ""))
    assert older.more(agreed()) == [{"a": "u", "d": "x"}]
    assert older.older.waits == 1


def test_rows_that_a_copy_refutes_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [], [segment(a5="xy")])
    older.untrue = {name("x")}
    assert older.more(agreed()) == [{"a": "y"}]


def test_a_pack_of_which_two_devices_say_two_things_stands_beside_no_index_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = Older(monkeypatch, [], [segment(a5="x", b5="y")])
    older.more(agreed())
    other = make_segment([(record("a5")._replace(size=999), rows("z")), (record("b5"), rows("z"))])
    assert said(older.older.beside(agreed(other))) == {"b": "y"}


def test_deltas_of_which_something_else_comes_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [], [segment(a5="xy", b5="z")])
    at = agreed()
    older.more(at)
    untrue: dict[str, str] = {}
    opened: list[Any] = []

    def add(_s: Any, with_them: Any, found: Any) -> None:
        opened.append(with_them)
        assert name("x") in with_them.index
        for pack, ids in untrue.items():
            found.add(record(pack).id, [name(i) for i in ids])

    monkeypatch.setattr(left_out_packs, "add_deltas", add)
    assert not older.older.open_deltas(at)
    assert opened == [], "there is no delta among them"
    monkeypatch.setattr(left_out_packs.deltas, "are_in", lambda _: True)
    assert not older.older.open_deltas(at)
    untrue |= {"a5": "x", "n5": "x"}  # one that the newest index names is no matter here
    assert older.older.open_deltas(at)
    assert said(older.older.beside(at)) == {"a": "y", "b": "z"}


def test_packs_are_told_by_the_version_that_left_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Older(monkeypatch, [], [segment(a5="x", b5="y")], [segment(c5="z", d5="u")])
    older.more(agreed())
    monkeypatch.setattr(left_out_packs.unreadable, "author", lambda _, state: f"device {state.v}")
    made = left_out_packs._Again(beside(a5="x", b5="y"), {name("z"): record("c5"), name("w"): record("c5")})
    assert older.older.by(made) == {(2, "device 2"): 1, (3, "device 3"): 2}
