"""What a device believes of others' words on a backend, and what it tells: a wrong word hides copies that are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus.records.scrubbed import Scrubbed
from metasync.errors import NotFoundError, UnreachableError
from metasync.maintenance import scrub_record
from metasync.maintenance.scrub_record import DAY_NS, LATER_NS, hear, is_within, keepers, tell
from metasync.runtime.effects import Reply
from metasync.transfer.inventories import Look

NOW, STORES, ME, OTHER, BACKEND = 100 * DAY_NS, b"s" * 32, b"m" * 16, b"o" * 16, b"b" * 16
BEFORE = Look(BACKEND, STORES, at_ns=90 * DAY_NS, read_to=5, read_ns=80 * DAY_NS)


def heard(name: str, how: str = "not due", **more: Any) -> Any:
    values = {"look": BEFORE, "seen": None, "is_begun": False, "is_to_tell": True, "wrong": {}} | more
    return SimpleNamespace(place=SimpleNamespace(name=name, backend_id=name.encode() * 16), how=how, **values)


def word(**more: Any) -> Scrubbed:
    values = {
        "at_ns": NOW - 5,
        "wrong": 0,
        "read_to": 9,
        "read_ns": NOW - 5,
        "device_id": OTHER,
        "stores": STORES,
    } | more
    return Scrubbed(certificate=b"", backend_id=BACKEND, **values)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose tasks give what they are."""
    monkeypatch.setattr(scrub_record, "together", lambda tasks: tasks)
    return SimpleNamespace(
        group=SimpleNamespace(participant=None), devices_of=lambda _: None, wall_ns=lambda: NOW,
        runtime=SimpleNamespace(run=lambda tasks: tasks), device=SimpleNamespace(device_id=ME),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("at_ns", "within"),
    [(0, False), (1, True), (DAY_NS // 2 - DAY_NS, False), (LATER_NS + 100, True), (LATER_NS + 101, False)],
)
def test_a_time_that_is_not_known_or_far_ahead_is_not_lately(at_ns: int, within: bool) -> None:
    assert is_within(at_ns, 100, DAY_NS) is within
    assert not is_within(1, DAY_NS + 1, DAY_NS)


def test_who_keeps_the_word_on_a_backend() -> None:
    """The next two on the ring that are not away; itself where there is no other."""
    a, b, c, d = ring = [heard("a"), heard("b", "away"), heard("c"), heard("d")]
    assert [keepers(ring, h) for h in ring] == [["c", "d"], ["c", "d"], ["d", "a"], ["a", "c"]]
    assert keepers([a], a) == ["a"] and keepers([a, b], a) == ["a"] and keepers([d, c], c) == ["d"]


@pytest.mark.parametrize(
    ("said", "others", "reads"),
    [
        (word(), True, True),
        (word(stores=b"t" * 32), False, False),  # of other storage ids: it is of another time
        (word(device_id=ME), False, True),  # what this device said is in its own state
        (word(wrong=1), False, True),  # that one found something: it is looked for here, too
        (word(at_ns=NOW - DAY_NS), False, True),
        (word(at_ns=NOW + LATER_NS + 1), False, True),
        (word(read_ns=80 * DAY_NS), True, False),
        (word(read_ns=NOW + LATER_NS + 1), True, False),
        (None, False, False),
    ],
)
def test_what_counts_of_the_word_of_another_device(
    said: Scrubbed | None, others: bool, reads: bool, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_record, "_read", lambda *_: said)
    one = heard("a")
    hear(session, SimpleNamespace(), [one, heard("b")], [one])
    assert (one.look.others_ns, one.look.since_ns) == ((NOW - 5, NOW) if others else (0, 0))
    assert (one.look.read_to, one.look.read_ns) == ((9, NOW - 5) if reads else (5, 80 * DAY_NS))


def test_nobody_is_asked_about_no_backend(session: Any) -> None:
    session.runtime.run = None
    hear(session, SimpleNamespace(), [heard("a")], [])


@pytest.mark.parametrize(
    ("how", "seen", "told"),
    [
        ("listed", word(at_ns=NOW + 5, wrong=3), (90 * DAY_NS, 1)),  # the other's clock is ahead: this is what was seen
        ("not due", word(at_ns=NOW, wrong=3), (NOW, 3)),  # copies alone were read: the listing of the other stays told
        ("not due", word(at_ns=80 * DAY_NS, wrong=3), (90 * DAY_NS, 1)),
        ("not due", None, (90 * DAY_NS, 1)),
    ],
)
def test_what_is_told_of_a_listing_stays_told(
    how: str, seen: Scrubbed | None, told: tuple[int, int], session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[Scrubbed] = []
    monkeypatch.setattr(scrub_record, "_write", lambda _m, _s, said, _names: wrote.append(said))
    tell(session, SimpleNamespace(), [heard("a", how, seen=seen, wrong={0: [b"key"]}), heard("b", is_to_tell=False)])
    assert [(one.at_ns, one.wrong) for one in wrote] == [told]


@pytest.mark.parametrize(("error", "asked"), [(NotFoundError("none"), ["a"]), (UnreachableError("away"), ["a", "b"])])
def test_a_keeper_that_has_no_word_is_believed_and_one_that_is_away_is_passed_by(
    error: NotFoundError | UnreachableError, asked: list[str]
) -> None:
    """The first that answers was the first that was written to."""
    read: Callable[..., Any] = scrub_record._read
    task, names, answer = read(SimpleNamespace(), None, BACKEND, ["a", "b"]), [], None
    with contextlib.suppress(StopIteration):
        while True:
            names.append(task.send(answer).backend)
            answer = Reply(error=error)
    assert names == asked
