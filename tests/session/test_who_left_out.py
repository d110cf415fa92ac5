"""Which version left an object out of the index: found by halves among indexes, some of which went.

In these tests "ynn?" is what the indexes of versions 1 to 4 say of an object: the first names it, the next two do not,
and the last cannot be read any more.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metasync.errors import DamagedError, NoQuorumError, UnreachableError
from metasync.session import left_out

OBJECT = b"an object"


class Indexes:
    """The indexes of versions 1 to n. `opened`: the versions whose index was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, indexes: str, *, lost_states: tuple[int, ...] = ()) -> None:
        self.opened: list[int] = []
        self.told: list[Any] = []
        self.all, self.lost_states = indexes, lost_states
        self.newest: Any = SimpleNamespace(v=len(indexes))
        monkeypatch.setattr(left_out, "Chain", lambda *_: self)
        monkeypatch.setattr(left_out.unreadable, "author", lambda _s, state: f"device {state.v}")

    def at(self, above: Any, v: int) -> Any:
        """The state of a version, as `Chain.at` gives it."""
        if v in self.lost_states:
            raise UnreachableError("away")
        return SimpleNamespace(v=min(v, above.v))

    def of_state(self, state: Any) -> Any:
        self.opened.append(state.v)
        assert state.v > 0, "before version 1 there is no index"
        what = self.all[state.v - 1]
        if what == "?":
            raise DamagedError("it went")
        if what == "!":
            raise NoQuorumError("away")
        return None, {OBJECT} if what == "y" else set()

    @property
    def s(self) -> Any:
        return SimpleNamespace(indexes=self, listener=self.told.append)

    def leaver(self, since: int = 0) -> int | None:
        found = left_out.leaver(self.s, self.newest, OBJECT, since)
        return found.v if found is not None else None


@pytest.mark.parametrize(
    ("indexes", "since", "by"),
    [
        ("yn", 1, 2),
        ("yyynn", 1, 4),
        ("yyynn", 3, 4),
        ("yyynnnnnnnn", 2, 4),
        # the newest needs it
        ("yn", 0, 2),
        ("yyynn", 0, 4),
        ("y" + 40 * "n", 0, 2),
        ("nnyynn", 0, 5),
        # the index of the version that needs it left it out itself, whatever came after
        ("yn", 2, 2),
        ("yynnn", 4, 3),
        ("ynyyy", 2, 2),
        ("yyynynn", 4, 4),
        # left out twice: the first time
        ("ynynnn", 0, 2),
        # a number that a snapshot made up
        ("yyn", 99, 3),
    ],
)
def test_the_first_index_without_an_object_is_found(
    monkeypatch: pytest.MonkeyPatch, indexes: str, since: int, by: int
) -> None:
    assert Indexes(monkeypatch, indexes).leaver(since) == by


@pytest.mark.parametrize(
    ("indexes", "since"),
    [
        ("yyy", 1),
        ("yyy", 3),
        ("yyy", 0),
        ("yyy", 99),
        # no version ever had it
        ("n", 1),
        ("n", 0),
        ("nnnn", 0),
        ("nnnn", 2),
    ],
)
def test_what_is_named_or_never_was_is_left_out_by_nobody(
    monkeypatch: pytest.MonkeyPatch, indexes: str, since: int
) -> None:
    assert Indexes(monkeypatch, indexes).leaver(since) is None


@pytest.mark.parametrize("gone", ["?", "!"])
@pytest.mark.parametrize(
    ("indexes", "since", "by"),
    [
        ("y??yn", 1, 5),
        ("yn???", 1, None),  # that of the newest version is gone
        ("yy?nn", 2, None),  # it was one of two
        ("yy?nn", 0, None),
        ("?n", 0, None),
        ("?n", 1, None),
        ("y?", 1, None),
        ("???", 0, None),
        ("y?yn?n", 2, 4),
    ],
)
def test_a_version_whose_index_is_gone_is_not_blamed_nor_the_one_after_it(
    monkeypatch: pytest.MonkeyPatch, indexes: str, since: int, by: int | None, gone: str
) -> None:
    assert Indexes(monkeypatch, indexes.replace("?", gone)).leaver(since) == by


def test_each_index_is_opened_once_and_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in (1, 500, 999, 1000):
        many = Indexes(monkeypatch, named * "y" + (1000 - named) * "n")
        assert many.leaver() == (named + 1 if named < 1000 else None)
        assert len(many.opened) == len(set(many.opened)) <= 24
    monkeypatch.setattr(left_out, "LOOKS_MAX", 2)
    assert Indexes(monkeypatch, "yyn").leaver(1) is None
    assert Indexes(monkeypatch, "yn").leaver(1) == 2


def test_where_a_state_cannot_be_had_nobody_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Indexes(monkeypatch, "yyn", lost_states=(2,)).leaver(1) is None


# ---- what is told of it


def _error(next_step: str, *objects: bytes) -> DamagedError:
    error = DamagedError("an object is in no pack", next_step=next_step)
    error.objects = objects
    return error


def test_an_error_names_who_left_its_first_object_out(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(monkeypatch, "yyn")
    told = left_out.explained(indexes.s, indexes.newest, _error("Or wait.", OBJECT, b"more"), 1)
    assert told.message == "an object is in no pack; version 3, which device 3 wrote, left that out of the index"
    assert told.next_step == f"{left_out.NEXT_STEP} Or wait."
    assert told.objects == (OBJECT, b"more")
    step = "`metasync check --repair` brings it back."
    assert left_out.explained(indexes.s, indexes.newest, _error(step, OBJECT)).next_step == step


def test_an_error_stays_as_it_is_where_nobody_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for indexes, objects in (("yyn", ()), ("yyy", (OBJECT,))):
        looked = Indexes(monkeypatch, indexes)
        error = _error("Or wait.", *objects)
        assert left_out.explained(looked.s, looked.newest, error, 1) is error


def test_the_end_of_history_is_told_where_somebody_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for indexes, count in (("yyn", 1), ("nnn", 0)):
        looked = Indexes(monkeypatch, indexes)
        left_out.tell_end(looked.s, looked.newest, OBJECT, 2)
        assert [note.warning for note in looked.told] == [True] * count
        assert all("version 2 and older ones" in note.text and "device 3" in note.text for note in looked.told)
