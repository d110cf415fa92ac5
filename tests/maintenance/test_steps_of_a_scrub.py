"""What the steps of a scrub decide, one by one: who is asked, what is compared, looked at, read, mended and noted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest

from metasync.errors import UnreachableError
from metasync.local.state_keys import FAILURES_KEY, HUNG_KEY, LOOKS, SHORT_KEY, TOLD, Failures, Look
from metasync.maintenance import check, scrub, scrub_record
from metasync.maintenance.scrub_failures import Failing
from metasync.maintenance.scrub_reading import Reader
from metasync.maintenance.scrub_record import DAY_NS, LATER_NS
from metasync.reports.checks import Repaired
from metasync.session import agreement
from metasync.store import inventory, moves
from metasync.store.inventory import CIRCLE, Told
from metasync.transfer import verify, wrong_copies
from metasync.transfer.copies import Place
from metasync.transfer.inventories import Heard
from metasync.transfer.verify import CopyState

NOW: Final = 1000 * DAY_NS
PARTITIONS: Final = 4
DAYS: Final = 90
INDEX: Final = b"newest"


def pack(n: int) -> Any:
    """A pack in partition n % 4, whose digests of every kind begin as its name."""
    name = bytes([n]) * 32
    return SimpleNamespace(name=name, generation=0, id=(0, name), size=100, digest=lambda kind: name)


def key(n: int) -> bytes:
    return inventory.key_of(pack(n).id)


def entry(n: int, digest: bytes | None = None) -> bytes:
    return inventory.entry(pack(n).id, 100, digest)


def told(*numbers: int, wrong: Sequence[int] = ()) -> Told:
    """What a backend told: these packs, and of the wrong ones another digest."""
    out = Told(PARTITIONS)
    for n in (*numbers, *wrong):
        out.put(pack(n).id, entry(n, b"other" if n in wrong else None))
    return out


def heard(name: str, how: Any = "not due", of: Told | None = None, **look: Any) -> Heard:
    """A backend, which was seen, compared and read just now if nothing else is said."""
    values = {"at_ns": NOW, "compared": INDEX, "read_ns": NOW} | look
    h = Heard(Place(name, name.encode(), (b"id",)), Look(name.encode(), **values), how=how)
    h.told = of
    return h


def names(some: Iterable[Heard]) -> list[str]:
    return [h.place.name for h in some]


def agreed(*packs: int) -> Any:
    found = {pack(n).id: pack(n) for n in packs}
    index = SimpleNamespace(packs=lambda: found)
    return SimpleNamespace(index=index, state=SimpleNamespace(v=1, index=SimpleNamespace(hash=INDEX)))


class Places:
    """Packs of partition 1 move from d to a, b and c; the others belong on a and b."""

    now = SimpleNamespace(partitions=PARTITIONS)
    copies_least = 2

    def is_displaced(self, name: bytes) -> bool:
        return int.from_bytes(name, "big") % PARTITIONS == 1

    def partition(self, name: bytes) -> int:
        return int.from_bytes(name, "big") % PARTITIONS

    def primary(self, name: bytes) -> tuple[bytes, ...]:
        return (b"a", b"b", b"c") if self.is_displaced(name) else (b"a", b"b")

    def had(self, name: bytes) -> tuple[bytes, ...]:
        return (b"d",) if self.is_displaced(name) else ()

    def ids(self, backend_id: bytes, name: bytes) -> tuple[bytes, ...]:
        return (b"id",)


class Bench:
    """A scrub whose session answers as a test wants, and that writes down what it does in `steps`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.steps: list[Any] = []
        self.rows: dict[str, list[Any]] = {}
        self.values: dict[str, Any] = {}
        self.newest = agreed()
        db = SimpleNamespace(
            get=lambda of: self.values.get(of.name), set=lambda of, value: self.values.__setitem__(of.name, value),
            update=lambda of, value: self.values.__setitem__(of.name, value), transaction=contextlib.nullcontext,
            records=lambda of: self.rows.get(of.name, []),
            put_records=lambda of, rows: self.rows.__setitem__(of.name, [*rows]),
        )  # fmt: skip
        placement = SimpleNamespace(partitions=PARTITIONS, copies=2, primary=lambda name: Places().primary(name))
        self.s: Any = SimpleNamespace(
            config=SimpleNamespace(backends=()), previous=None, db=db, out={}, wall_ns=lambda: NOW,
            listener=lambda _: None, newest_state=lambda: self.newest.state, load=lambda _: self.newest,
            connections=SimpleNamespace(config_hash=b"config"), form=SimpleNamespace(digests=("md5",)),
            transfer=SimpleNamespace(places={}, down={}, placement=placement),
            runtime=SimpleNamespace(run=lambda _: None),
        )  # fmt: skip
        self.failing: Any = SimpleNamespace(
            silent=lambda copies: self.steps.append(("silent", dict(copies))) if copies else None,
            heed=lambda _: None, pass_over=lambda *_: None, passed_over=lambda _: None, is_noted=lambda _: False,
        )  # fmt: skip
        monkeypatch.setattr(scrub, "Places", lambda *_: Places())
        monkeypatch.setattr(scrub, "Failing", lambda _: self.failing)
        monkeypatch.setattr(moves, "trims", lambda _: b"")
        monkeypatch.setattr(scrub_record, "tell", lambda *_: self.steps.append("tell"))

    def scrub(self, *some: Heard, full: bool = False, days: int = DAYS) -> Any:
        made = scrub._Scrub(self.s, full=full, read_ns=days * DAY_NS)
        made.heard, made.state, made.index = [*some], self.newest.state, INDEX
        made.displaced = lambda p: p == 1
        return made

    def instead(self, of: Any, name: str, does: Callable[..., Any]) -> None:
        self.patch.setattr(of, name, does)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


# ---- who is asked


def look(
    bench: Bench, *some: Heard, hears: Sequence[str] = (), finds: bool = False, changes_config: bool = False
) -> Any:
    """One look. Those with cursors have feeds. `hears`: of which another device says that it listed all just now."""
    one, steps = bench.scrub(), bench.steps

    def read_feeds(these: Sequence[Heard]) -> None:
        for h in these:
            h.how = "changes"

    def list_all(these: Sequence[Heard]) -> None:
        steps.append(("list", names(these)))
        for h in these:
            h.how, h.is_new = "listed", True

    def compare(these: Sequence[Heard], _: Any) -> None:
        steps.append(("compare", names(these)))
        one.findings = ["one"] if finds else []

    def ask_newest(_: Any) -> Any:
        steps.append("ask")
        if changes_config:
            bench.s.connections.config_hash = b"other"
        return bench.newest.state

    def hear(_: Any, __: Any, ___: Any, these: Sequence[Heard]) -> None:
        steps.append(("hear", names(these)))
        for h in these:
            if h.place.name in hears:
                h.look = h.look._replace(others_ns=NOW, since_ns=NOW)

    bench.instead(one, "_begun", lambda _: [*some])
    bench.instead(one, "_read_feeds", read_feeds)
    bench.instead(one, "_list", list_all)
    bench.instead(one, "_compare", compare)
    bench.instead(one, "_read_copies", lambda these, _: steps.append(("read", names(these))))
    bench.instead(one, "_note", lambda _: steps.append("note"))
    bench.instead(agreement, "ask_newest", ask_newest)
    bench.instead(scrub_record, "hear", hear)
    one.look()
    return steps


FEED: Final = {"cursors": "c", "at_ns": NOW - 2 * DAY_NS}  # what its feed tells is all, however long ago it was listed
DUE: Final = {"at_ns": NOW - 2 * DAY_NS}
END: Final = ["note", "tell"]


@pytest.mark.parametrize(
    ("some", "options", "steps"),
    [
        ([("a", FEED, ""), ("b", {}, "")], {}, [("list", []), *END]),
        ([("a", FEED, "changed"), ("b", {}, "")], {}, ["ask", ("hear", []), ("list", []), ("compare", ["a"]), *END]),
        (
            [("a", FEED | {"compared": b"older"}, ""), ("b", {}, "")], {},
            ["ask", ("hear", []), ("list", []), ("compare", ["a"]), *END],
        ),
        ([("a", FEED, ""), ("b", DUE, "")], {}, ["ask", ("hear", ["b"]), ("list", ["b"]), ("compare", ["b"]), *END]),
        ([("a", {}, ""), ("b", DUE, "")], {"hears": ["b"]}, ["ask", ("hear", ["b"]), ("list", []), *END]),
        ([("a", FEED, ""), ("b", DUE, "away")], {}, ["ask", ("hear", []), ("list", []), *END]),
        (
            [("a", {}, ""), ("b", {"read_ns": NOW - 2 * DAY_NS}, "")], {},
            ["ask", ("hear", ["b"]), ("list", []), ("read", ["b"]), *END],
        ),
        (
            [("a", DUE, ""), ("b", {}, ""), ("c", DUE, "away")], {"changes_config": True},
            ["ask", ("hear", ["a", "b"]), ("list", ["a"]), ("compare", ["a"]), *END],
        ),
        ([("a", DUE, "")], {"finds": True}, ["ask", ("hear", ["a"]), ("list", ["a"]), ("compare", ["a"]), "note"]),
    ],
    ids=["quiet", "changes", "compared-with-an-older", "due", "heard-of", "away", "to-read", "other-backends", "found"],
)  # fmt: skip
def test_who_is_asked_for_what(bench: Bench, some: Any, options: Any, steps: list[Any]) -> None:
    """Where nothing was stored since, not even the newest version is asked for."""
    these = []
    for name, of, what in some:
        these.append(h := heard(name, "away" if what == "away" else "not due", **of))
        h.changes = {pack(1).id: None} if what == "changed" else {}
    assert look(bench, *these, **options) == steps


@pytest.mark.parametrize(
    ("known", "full", "is_due"),
    [
        ({"at_ns": NOW - DAY_NS + 1}, False, False),
        ({"at_ns": NOW - DAY_NS}, False, True),
        ({"at_ns": NOW}, True, True),
        ({"others_ns": NOW - 1, "since_ns": NOW - 29 * DAY_NS}, False, False),
        ({"others_ns": NOW - 1, "since_ns": NOW - 31 * DAY_NS}, False, True),
        ({"others_ns": NOW - 1}, False, False),
        ({"others_ns": NOW - 2 * DAY_NS, "since_ns": NOW - 3 * DAY_NS}, False, True),
    ],
)
def test_when_a_backend_is_listed(bench: Bench, known: Any, full: bool, is_due: bool) -> None:
    assert bench.scrub(full=full)._is_due(heard("a", **{"at_ns": 0} | known).look) is is_due


@pytest.mark.parametrize(
    ("read_ns", "how", "days", "is_to_read", "begins"),
    [
        (NOW - DAY_NS, "not due", DAYS, True, False),
        (NOW - DAY_NS + 1, "not due", DAYS, False, False),
        (NOW - DAY_NS, "away", DAYS, False, False),
        (NOW - DAY_NS, "not due", 0, False, False),
        (0, "not due", DAYS, False, True),
        (NOW + LATER_NS, "not due", DAYS, False, False),
        (NOW + LATER_NS + 1, "not due", DAYS, False, True),
    ],
)
def test_when_copies_are_read(bench: Bench, read_ns: int, how: str, days: int, is_to_read: bool, begins: bool) -> None:
    """Once a day. The period begins when a backend is first seen, and again where a clock was far ahead."""
    h = heard("a", how, read_ns=read_ns)
    assert bench.scrub(days=days)._is_to_read(h) is is_to_read
    assert (h.look.read_ns, h.is_begun) == (NOW if begins else read_ns, begins)


def test_what_was_seen_in_other_storage_ids_or_partitions_is_not_known(bench: Bench) -> None:
    """Up to where copies were read holds, for the circle is the same."""
    one, place = bench.scrub(), heard("a").place
    stores = one._begun_at(place, None).look.stores
    same, other = (Look(b"a", of, "c", NOW, INDEX, read_to=5, read_ns=7) for of in (stores, b"other"))
    assert one._begun_at(place, same).look == same
    assert one._begun_at(place, other).look == Look(b"a", stores, read_to=5, read_ns=7)


def test_backends_are_those_that_hold_packs_and_are_linked(bench: Bench) -> None:
    some = {i: heard(i.decode()).place for i in (b"a", b"b")}
    bench.s.transfer.places = some
    of = [SimpleNamespace(backend_id=i, storage=storage) for i, storage in ((b"a", (1,)), (b"b", ()), (b"c", (1,)))]
    bench.s.config.backends = of
    assert scrub._places(bench.s) == [some[b"a"]]


def test_a_feed_that_told_has_shown_all_there_is(bench: Bench) -> None:
    a, b = heard("a", "changes", **DUE), heard("b", "away", **DUE)
    bench.instead(scrub, "together", lambda tasks: tasks)
    bench.scrub()._read_feeds([a, b])
    assert (a.look.at_ns, b.look.at_ns) == (NOW, NOW - 2 * DAY_NS)


# ---- comparing


@pytest.mark.parametrize("is_found", [False, True])
def test_what_differs_is_suspected_and_what_moves_is_not_compared(bench: Bench, is_found: bool) -> None:
    """Pack 4 is missing on a, of 2 it told another digest, and 5 moves; b has all."""
    bench.newest = agreed(2, 4, 5)
    a, b = heard("a", "listed", told(wrong=[2]), compared=b""), heard("b", "listed", told(2, 4, 5), compared=b"")
    one, looked = bench.scrub(a, b), []

    def look_at(_: Any, __: Any, suspects: Sequence[Any]) -> None:
        looked.extend(p.name[0] for p in suspects)
        one.looked.found = {pack(5).id: None} if is_found else {}

    right = {n % PARTITIONS: entry(n) for n in (2, 4, 5)}
    bench.instead(inventory, "wanted", lambda *_: {b"a": right, b"b": right})
    bench.instead(one, "_short_while_moving", lambda _: [pack(5)])
    bench.instead(one, "_look_at", look_at)
    one._compare([a, b], bench.newest)
    assert a.wrong == {0: [key(4)], 2: [key(2)]}
    assert (b.wrong, one.doubted) == ({}, {key(2)})
    assert (sorted(looked), one.compared) == ([2, 4, 5], 4)
    assert (a.look.compared, b.look.compared) == (b"", b"" if is_found else INDEX)


def test_what_moves_is_short_by_what_all_of_its_backends_told(bench: Bench) -> None:
    """Of 5 only a told, of 9 a and b did, c another digest. What d told was loaded; one that is away may have it."""
    a, b, c = heard("a", "listed", told(5, 9)), heard("b", "listed", told(9)), heard("c", "listed", told(wrong=[9]))
    d, e, f = heard("d"), heard("e", "away"), heard("f", at_ns=0)
    one, loaded = bench.scrub(a, b, c, d, e, f), []

    def load(some: Sequence[Heard]) -> None:
        loaded.extend(names(some))
        d.told = told()

    bench.instead(one, "_load", load)
    assert one._short_while_moving([pack(4)]) == []
    assert loaded == []
    short = one._short_while_moving([pack(4), pack(5), pack(9)])
    assert (loaded, sorted(p.name[0] for p in short)) == (["d"], [5, 9])
    assert (one.doubted, one.compared) == ({key(9)}, 4)


# ---- looking closer


class Looked:
    """Stands in for the look at copies: what is sound and what is wrong is said by the test."""

    def __init__(self, asked: list[Any]) -> None:
        self.asked, self.read_data, self.silent = asked, False, {"a": 1}
        self.sound, self.found, self.problems = set[Any](), dict[Any, Any](), ()

    def at(self, _: Any, __: Any, packs: Sequence[Any]) -> Looked:
        self.asked.append((self.read_data, [p.name[0] for p in packs]))
        return self


def test_what_is_doubted_is_read_and_the_rest_of_the_suspects_is_asked_for(bench: Bench) -> None:
    one, asked = bench.scrub(), list[Any]()
    bench.instead(check, "Looked", lambda **_: Looked(asked))
    one.doubted = {key(2)}
    one._look_at(bench.s, agreed(2, 3), [pack(2), pack(3)])
    assert asked == [(False, [3]), (True, [2])]
    assert bench.steps == [("silent", {"a": 1})], "what is silent is counted once"


def test_a_suspect_stays_one_until_its_copy_was_seen_or_it_went_on_purpose(bench: Bench) -> None:
    """On a, 4 was found right, 8 not; 5 is gone from the index, and 3 was not told of before."""
    a = heard("a", "listed", told(4, 8, 5))
    a.wrong = {0: [key(4), key(8)], 1: [key(5)], 3: [key(3)]}
    one = bench.scrub(a)
    one.records = {key(n): pack(n) for n in (3, 4, 5, 8)}
    one.wanted = {b"a": {1: b"", 3: entry(3)}}
    looked = Looked([])
    looked.sound = {("a", pack(n).id) for n in (3, 4)} | {("b", pack(8).id)}
    bench.instead(check, "Looked", lambda **_: looked)
    one._look_at(bench.s, agreed(3, 4, 8), [pack(n) for n in (3, 4, 5, 8)])
    assert a.wrong == {0: [key(8)]}
    assert a.told is not None
    assert a.told.has(pack(3).id)
    assert [*a.told.differing({0: entry(4) + entry(8), 3: entry(3)})] == [], "partition 1 was found well as it is"


# ---- reading


def test_copies_are_read_only_of_what_no_change_moves_and_what_was_told_is_not_loaded_again(bench: Bench) -> None:
    a, b = heard("a", of=told(4)), heard("b")
    one, loaded, due = bench.scrub(a, b), list[str](), list[Any]()

    def load(some: Sequence[Heard]) -> None:
        loaded.extend(names(some))
        b.told = told()

    bench.instead(inventory, "wanted", lambda packs, _: {b"": [*packs]})
    bench.instead(one, "_load", load)
    bench.instead(one, "_read_due", lambda h, packs: due.append((h.place.name, [p.name[0] for p in packs])))
    one._read_copies([a, b], agreed(4, 5))
    assert (loaded, due) == (["b"], [("a", [4]), ("b", [4])])


def reading(bench: Bench, monkeypatch: pytest.MonkeyPatch, states: dict[int, CopyState], at_once: int = 2) -> Any:
    """Half of the period has passed, so that half of the circle is due: 2, 3 and 4, at one to three sixteenths."""
    place = {2: CIRCLE // 16, 3: CIRCLE // 8, 4: CIRCLE * 3 // 16, 6: CIRCLE * 3 // 4}
    monkeypatch.setattr(inventory, "place_on_circle", lambda name, *_: place[name[0]])
    monkeypatch.setattr(scrub, "READ_AT_ONCE", at_once)
    a = heard("a", of=told(), read_ns=NOW - DAYS * DAY_NS // 2, read_to=0)
    one, read = bench.scrub(a), list[list[int]]()

    def copies(_: Any, packs: Sequence[Any]) -> list[CopyState]:
        read.append([p.name[0] for p in packs])
        return [states.get(p.name[0], CopyState("a", None, how="data", bytes_read=100)) for p in packs]

    one.reader = SimpleNamespace(in_time=lambda _, packs: packs, copies=copies)
    one._read_due(a, [pack(n) for n in (4, 6, 2, 3)])
    return one, a, read


def test_what_is_due_is_read_in_turn_and_what_is_wrong_is_suspected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, a, read = reading(bench, monkeypatch, {3: CopyState("a", "altered")})
    assert (read, one.read, one.bytes_read) == ([[2, 3], [4]], 3, 200)
    assert (a.look.read_to, a.look.read_ns) == (CIRCLE // 2, NOW)
    assert (a.wrong, one.doubted, bench.steps) == ({3: [key(3)]}, {key(3)}, [])


def test_reading_stops_where_a_backend_does_not_tell_and_goes_on_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, a, read = reading(bench, monkeypatch, {3: CopyState("a", "cannot be reached", unknown=True)}, at_once=1)
    assert (read, one.read) == ([[2], [3]], 1)
    assert bench.steps == [("silent", {"a": 1})]
    assert (a.look.read_to, a.wrong) == (CIRCLE // 8, {}), "up to the copy that was not read"
    assert a.look.read_ns == NOW - DAYS * DAY_NS // 2 + DAYS * DAY_NS // 8


@pytest.mark.parametrize("is_all", [True, False])
def test_a_push_reads_what_is_due_on_those_that_answer_and_leaves_the_rest_as_it_was(
    bench: Bench, is_all: bool
) -> None:
    """b gave no answer a moment ago, c is not due, and d was read by another device."""
    due = {"read_ns": NOW - 2 * DAY_NS, "at_ns": 3}
    some = [heard("a", **due), heard("b", **due), heard("c", at_ns=3), heard("d", **due)]
    one, read, noted, told = bench.scrub(), list[Any](), list[Any](), list[Any]()
    bench.rows[LOOKS.name] = [h.look for h in some]
    bench.values[HUNG_KEY.name] = {"b": 1}

    def hear(_: Any, __: Any, ___: Any, these: Sequence[Heard]) -> None:
        read.append(names(these))
        some[3].look = some[3].look._replace(read_ns=NOW)

    def read_copies(these: Sequence[Heard], _: Any) -> None:
        read.append(names(these))
        one.findings = [finding(2, [b"a"]), finding(3)]
        some[0].look = some[0].look._replace(read_ns=NOW if is_all else NOW - 2 * DAY_NS, at_ns=NOW, read_to=9)

    bench.instead(one, "_begun", lambda _: some)
    bench.instead(one, "_read_copies", read_copies)
    bench.instead(one, "_note", lambda _: None)
    bench.instead(scrub_record, "hear", hear)
    bench.instead(wrong_copies, "note", lambda _, packs: noted.extend(packs))
    bench.instead(wrong_copies, "note_bad", lambda _, found, at_ns: told.extend([*found, at_ns]))
    assert one.read_in_turn() is is_all
    assert (read, noted) == ([["a", "d"], ["a"]], [pack(2).name])
    assert told == [(pack(2).name, b"z"), (pack(3).name, b"z"), NOW]
    assert (some[0].look.at_ns, some[0].look.read_to, bench.steps) == (3, 9, [])


# ---- what comes of it


def finding(n: int, good: Sequence[bytes] = ()) -> Any:
    return SimpleNamespace(record=pack(n), good=tuple(good), bad=(b"z",), is_sure=True, by_bytes=False)


@pytest.mark.parametrize("moves", [False, True])
def test_what_is_still_named_is_mended_and_looked_at_again(bench: Bench, moves: bool) -> None:
    """Of three findings 3 is gone from the newest index, and the repair gives up 2."""
    some = [
        heard("a", "listed", compared=b""), heard("b", "changes", compared=b""), heard("c", compared=b""),
        heard("d", "listed", compared=b"older"), heard("e", "listed", compared=b""),
    ]  # fmt: skip
    some[4].wrong = {0: [key(4)]}
    one, mended, looked = bench.scrub(*some), list[int](), list[int]()
    taken_back, still = list[bytes](), list[Any]()
    one.findings = [finding(n) for n in (1, 2, 3)]
    one.looked = Looked([])
    one.looked.found = {pack(1).id: (SimpleNamespace(good=1), finding(1))}
    one.moving = {pack(1).id} if moves else set()

    def repair(_: Any, __: Any, left: Sequence[Any], *, nowhere: bool) -> Any:
        mended.extend(f.record.name[0] for f in left)
        return Repaired(copies=1), agreed(1)

    bench.instead(agreement, "newest", lambda _: agreed(1, 2))
    bench.instead(scrub, "repair", repair)
    one.findings[0] = SimpleNamespace(**{**vars(one.findings[0]), "by_bytes": True})
    bench.instead(wrong_copies, "mended", lambda _, gone: taken_back.extend(gone))
    bench.instead(wrong_copies, "note_bad", lambda _, found, __: still.extend(found))
    bench.instead(one, "_look_at", lambda _, __, packs: looked.extend(p.name[0] for p in packs))
    report = one.mended(bench.s)
    assert (mended, looked, report.repaired.copies) == ([1, 2], [1], 1)
    assert (taken_back, still) == ([pack(1).name], [(pack(1).name, b"z")]), "it was not looked at again here"
    assert [h.look.compared for h in some] == ([b"", b""] if moves else [INDEX, INDEX]) + [b"", b"older", b""]
    assert bench.steps == ["tell"]


@pytest.mark.parametrize(
    ("hows", "storages", "is_moving", "short"),
    [
        (("listed", "changes"), (1, 1), False, 1),
        (("listed", "changes"), (1, 1, 0), False, 1),
        (("listed", "changes"), (1, 1, 1), False, None),
        (("listed", "not due"), (1, 1), False, None),
        (("listed", "changes"), (1, 1), True, None),
    ],
)
def test_how_many_packs_have_too_few_copies_is_noted_where_all_backends_told(
    bench: Bench, hows: Any, storages: Any, is_moving: bool, short: int | None
) -> None:
    bench.s.config.backends = [SimpleNamespace(storage=(1,) * n) for n in storages]
    bench.s.previous = SimpleNamespace() if is_moving else None
    one = bench.scrub(*(heard(name, how) for name, how in zip("ab", hows, strict=True)))
    one.looked = Looked([])
    one.looked.found = {n: (SimpleNamespace(good=n), finding(n)) for n in (1, 2, 3)}
    one._note(bench.s)
    assert bench.values.get(SHORT_KEY.name) == short


def test_what_was_told_or_begun_is_noted(bench: Bench) -> None:
    some = [heard("a", "listed", told(4)), heard("b", "changes", told()), heard("c"), heard("d"), heard("e", "away")]
    some[0].is_new = some[3].is_begun = True
    one = bench.scrub(*some)
    one._note(bench.s)
    assert [row.backend for row in bench.rows[LOOKS.name]] == [b"a", b"b", b"d"]
    assert [row.backend for row in bench.rows[TOLD.name]] == [b"a"]


def test_a_report_names_as_lost_what_has_no_good_copy(bench: Bench) -> None:
    one = bench.scrub()
    one.looked = Looked([])
    one.looked.found = {n: (SimpleNamespace(good=n), finding(n, [b"a"] * n)) for n in (0, 1, 2)}
    report = one.report(None)
    assert (report.lost, report.short) == ((pack(0).name,), 2)


def test_the_lock_of_the_folder_is_taken_for_mending_alone(bench: Bench, tmp_path: Any) -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def changing(*_: Any) -> Any:
        entered.append("changing")
        yield bench.s

    work: Any = SimpleNamespace(session=lambda _: contextlib.nullcontext(bench.s), settings_path=tmp_path / "none")
    bench.instead(scrub, "changing", changing)
    bench.instead(scrub._Scrub, "mended", lambda *_: "mended")
    for found in ([], [finding(1)]):
        bench.instead(scrub._Scrub, "look", lambda self, found=found: (
            setattr(self, "findings", found), setattr(self, "state", bench.newest.state)
        ))  # fmt: skip
        report = scrub.scrub(work)
        assert (report == "mended", entered) == (bool(found), ["changing"] if found else [])


# ---- reading back, and failures


@pytest.mark.parametrize(
    ("at_ns", "is_mute", "first", "reads", "mutes"),
    [
        (NOW, False, CopyState("a", None), [True], False),
        (0, False, CopyState("a", None, how="digest"), [False], False),
        (0, False, CopyState("a", None), [False, True], True),
        (0, False, CopyState("a", "missing", missing=True), [False], False),
        (0, True, CopyState("a", None), [True], True),
    ],
    ids=["was-listed", "tells-a-digest", "tells-none", "is-wrong", "is-known-to-tell-none"],
)
def test_a_copy_is_read_unless_its_store_tells_a_digest_that_was_not_listed(
    bench: Bench, at_ns: int, is_mute: bool, first: CopyState, reads: list[bool], mutes: bool
) -> None:
    asked: list[bool] = []

    def check_copy(_: Any, __: Any, ___: Any, read_data: bool, ____: Any) -> Generator[Any, Any, CopyState]:
        asked.append(read_data)
        return CopyState("a", None, how="data") if read_data else first
        yield

    bench.instead(verify, "check_copy", check_copy)
    reader = Reader(bench.s, Places())  # type: ignore[arg-type]
    reader.mute = {"a"} if is_mute else set()
    task = reader._copy(heard("a", at_ns=at_ns), pack(2))
    with pytest.raises(StopIteration) as end:
        next(task)
    assert (asked, reader.mute) == (reads, {"a"} if mutes else set())
    assert end.value.value == (first if reads == [False] else CopyState("a", None, how="data"))


def test_copies_that_take_longer_than_there_is_time_for_are_none(bench: Bench) -> None:
    running = SimpleNamespace(result=lambda: pytest.fail("it is not there yet"))
    waited: list[float] = []
    bench.s.runtime = SimpleNamespace(start=lambda _: running, wait=lambda _, seconds: waited.append(seconds) or [])
    reader = Reader(bench.s, Places())  # type: ignore[arg-type]
    left = [60.0, 0.0]  # somebody waits: the time ends early
    reader.left_s = lambda: left.pop(0)
    assert reader.copies(heard("a"), [pack(2)]) == []
    assert max(waited) <= 1.0, "it looks within a second whether it is over"


def test_who_cannot_be_reached_failed_once_however_many_copies_it_did_not_tell_of(bench: Bench) -> None:
    bench.s.transfer.down = {"a": UnreachableError("no route"), "b": None}
    Failing(bench.s).silent({"a": 5, "b": 5, "c": 3})
    failed = {name: row.exceptions for name, row in bench.values[FAILURES_KEY.name].items()}
    assert failed == {"a": 1, "b": 5, "c": 3}
    assert bench.values[FAILURES_KEY.name]["a"] == Failures(1, NOW)


def test_who_tells_what_it_holds_has_a_clean_row_again_and_who_fails_has_one_more(bench: Bench) -> None:
    bench.values[FAILURES_KEY.name] = {name: Failures(3, NOW) for name in "abc"}
    some = [heard("a", "listed"), heard("b", "away")]
    some[1].failed = UnreachableError("no route")
    Failing(bench.s).heed(some)
    assert bench.values[FAILURES_KEY.name] == {"b": Failures(4, NOW), "c": Failures(3, NOW)}
    assert [*bench.s.transfer.down] == ["b"]
