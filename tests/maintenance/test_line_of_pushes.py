"""Which pushes are kept, where snapshots lie about what was before them or are lost, and the states of some versions.

In these tests "0abc" are the snapshots that versions 0 to 3 were agreed with, 0 for none.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus import ZERO_HASH
from metasync.errors import DamagedError
from metasync.maintenance import line
from metasync.objects.model import ObjectKind
from metasync.store.retained import Dropped, Retained


class Index:
    """An index that names these snapshots."""

    def __init__(self, named: set[bytes]) -> None:
        self.named = named

    def ids(self, kind: ObjectKind) -> tuple[bytes, ...]:
        assert kind is ObjectKind.SNAPSHOT
        return tuple(sorted(self.named))

    def __contains__(self, object_id: object) -> bool:
        return object_id in self.named


class Pushes:
    """A workspace of these versions. `said`: snapshots that say another version, or another one before it.

    `named`: the snapshots that the index names. `lost`: versions whose states went.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        masters: str,
        said: dict[str, tuple[int, str]] | None = None,
        *,
        named: str | None = None,
        lost: tuple[int, ...] = (),
        skipped: int = 0,
    ) -> None:
        self.looked: list[int] = []
        self.asked: list[list[str]] = []
        self.cached: set[bytes] = set()
        self.masters, self.lost = masters, lost
        self.newest = self._state(len(masters) - 1)
        self.snapshots: dict[str, Any] = {}
        for v, i in enumerate(masters):
            if i != "0" and i not in self.snapshots:
                self.snapshots[i] = self._snapshot(v, masters[v - 1])
        for i, (v, parent) in (said or {}).items():
            self.snapshots[i] = self._snapshot(v, parent)
        self.index = {i.encode() for i in (self.snapshots if named is None else named)}
        self.skipped = skipped
        monkeypatch.setattr(line, "Chain", lambda *_: self)
        monkeypatch.setattr(line, "decode_snapshot", lambda snapshot: snapshot)
        monkeypatch.setattr(line, "version_of", lambda snapshot: snapshot.v)

    @staticmethod
    def _snapshot(v: int, parent: str) -> Any:
        return SimpleNamespace(v=v, parents=() if parent == "0" else (parent.encode(),))

    def _state(self, v: int) -> Any:
        return SimpleNamespace(v=v, master=ZERO_HASH if self.masters[v] == "0" else self.masters[v].encode())

    def at(self, above: Any, v: int) -> Any:
        """The state of a version, as `Chain.at` gives it."""
        assert v >= 0
        self.looked.append(v)
        if v in self.lost:
            raise DamagedError("it went with lost backends")
        return self._state(min(v, above.v))

    def load(self, kind: ObjectKind, ids: list[bytes]) -> dict[bytes, Any]:
        assert kind is ObjectKind.SNAPSHOT
        self.asked.append([i.decode() for i in ids])
        return {i: self.snapshots[i.decode()] for i in ids}

    def _given(self, retained: Retained) -> tuple[Any, ...]:
        policy = SimpleNamespace(skip_over=lambda v: "a skip" if v == self.skipped else None)
        base = SimpleNamespace(state=self.newest, index=Index(self.index), devices=SimpleNamespace(policy=policy))
        s = SimpleNamespace(db=SimpleNamespace(get_object=lambda i: i if i in self.cached else None))
        return s, base, retained, self

    def line(self) -> str:
        return "".join(i.decode() for _, i, _ in line.line(*self._given(Retained())))

    def agreed(self, *dropped: Dropped) -> tuple[str, bool]:
        """-> each push that is kept, with its version; whether that is all of them."""
        pushes, is_whole = line.agreed(*self._given(Retained(dropped=dropped)))
        return " ".join(f"{v}{i.decode()}" for v, i, _ in pushes), is_whole

    def number(self, said: int, snapshot: str) -> int:
        return line._number(self, self.newest, said, snapshot.encode(), None)  # type: ignore[arg-type]


# ---- as snapshots say it


def test_snapshots_that_are_not_here_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "SNAPSHOTS_TOGETHER", 2)
    pushes = Pushes(monkeypatch, "0abcd")
    pushes.cached = {b"c"}
    assert pushes.line() == "dcba"
    assert pushes.asked[:2] == [["a", "b"], ["d"]]


def test_before_the_first_push_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = Pushes(monkeypatch, "00", {"a": (1, "0")})
    assert pushes.line() == ""
    assert pushes.asked == []


def test_the_newest_push_is_one_though_its_own_index_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be here; of older ones, what no index names is not looked for."""
    assert Pushes(monkeypatch, "0abc", named="ab").line() == "cba"
    assert Pushes(monkeypatch, "0abc", named="ac").line() == "c"


# ---- as it was agreed


def test_where_snapshots_lead_to_all_that_are_named_no_state_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for masters in ("0abc", "00", "0aab"):
        pushes = Pushes(monkeypatch, masters)
        assert pushes.agreed()[1]
        assert pushes.looked == []
    assert Pushes(monkeypatch, "0abc").agreed() == ("3c 2b 1a", True)
    assert Pushes(monkeypatch, "00").agreed() == ("", True)


def test_what_is_older_than_a_lost_push_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pushes(monkeypatch, "0abc", named="bc").agreed() == ("3c 2b", False)
    assert Pushes(monkeypatch, "0abc", named="ac").agreed() == ("3c", False)


@pytest.mark.parametrize("v", [0, -1, 4, 99])
def test_a_snapshot_that_says_no_version_there_is_was_no_push(monkeypatch: pytest.MonkeyPatch, v: int) -> None:
    pushes = Pushes(monkeypatch, "0abc", {"x": (v, "a")})
    assert pushes.agreed() == ("3c 2b 1a", True)
    assert pushes.looked == []


def test_a_dropped_version_is_none_though_its_snapshot_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pushes(monkeypatch, "0abc").agreed(Dropped(2, 2, b"a")) == ("3c 1a", True)


def test_a_skipped_version_is_none_though_its_snapshot_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pushes(monkeypatch, "0abc", {"c": (3, "a")}, skipped=2).agreed() == ("3c 1a", True)


def test_a_push_that_was_led_past_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pushes(monkeypatch, "0abc", {"c": (3, "a")}).agreed() == ("3c 2b 1a", True)


def test_what_was_led_past_and_not_agreed_as_its_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = Pushes(monkeypatch, "0abc", {"x": (2, "a")})
    assert pushes.agreed() == ("3c 2b 1a", True)
    assert pushes.looked == [2]


def test_what_was_led_to_and_never_agreed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = Pushes(monkeypatch, "0abc", {"c": (3, "x"), "x": (2, "a")})
    assert pushes.agreed() == ("3c 2b 1a", True)


def test_a_version_whose_state_is_lost_is_that_of_the_snapshot_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """But of one that is led to, if there is one."""
    assert Pushes(monkeypatch, "0abc", {"c": (3, "a")}, lost=(2,)).agreed() == ("3c 2b 1a", True)
    assert Pushes(monkeypatch, "0abc", {"x": (2, "a")}, lost=(2,)).agreed() == ("3c 2b 1a", True)


@pytest.mark.parametrize("said", [0, 1, 3, 7])
def test_versions_are_numbered_as_they_were_agreed(monkeypatch: pytest.MonkeyPatch, said: int) -> None:
    """Where they are out of order, or none there is."""
    assert Pushes(monkeypatch, "0abc", {"b": (said, "a")}).agreed() == ("3c 2b 1a", True)
    assert Pushes(monkeypatch, "0abc", {"b": (said, "a")}, lost=(0,)).agreed() == ("3c 2b 1a", True)


def test_below_a_gap_comes_the_push_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 was dropped, and version 4 leads past version 3."""
    pushes = Pushes(monkeypatch, "0abcd", {"d": (4, "a")}, named="acd")
    assert pushes.agreed(Dropped(2, 2, b"a")) == ("4d 3c 1a", True)


# ---- the number of one


def test_a_push_has_the_first_version_that_was_agreed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others agreed since, such as a device, is of the same snapshot."""
    pushes = Pushes(monkeypatch, "00aaab")
    for said in (0, 1, 2, 3, 4, 5, 99):
        assert pushes.number(said, "a") == 2
    assert Pushes(monkeypatch, "0aab").number(2, "a") == 1


def test_a_snapshot_that_no_version_was_agreed_with_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in (0, 2, 99):
        assert Pushes(monkeypatch, "0abc").number(said, "x") == 0


def test_nothing_was_pushed_before_version_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = Pushes(monkeypatch, "0ab")
    assert pushes.number(1, "a") == 1
    assert set(pushes.looked) == {1}


def test_so_many_versions_are_gone_through_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LOOK_BACK_MAX", 2)
    pushes = Pushes(monkeypatch, "0abcdef")
    assert [pushes.number(0, i) for i in "fedba"] == [6, 5, 4, 0, 0]
    assert pushes.number(1, "a") == 1, "it is where it says"


def test_where_states_are_lost_a_push_has_the_version_that_is_known_or_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = Pushes(monkeypatch, "0abc", lost=(1,))
    assert [pushes.number(said, "b") for said in (0, 2, 9)] == [2, 2, 2]
    pushes = Pushes(monkeypatch, "0abc", lost=(2,))
    assert [pushes.number(said, "b") for said in (0, 2, 3, 9)] == [0, 2, 0, 0]
    assert pushes.number(3, "c") == 3


# ---- what an index does not name


@pytest.mark.parametrize(
    ("kind", "ids", "says"),
    [
        (ObjectKind.DIR, (b"a", b"x"), "1 directory is in no pack"),
        (ObjectKind.DIR, (b"x", b"y"), "2 directories are in no pack"),
        (ObjectKind.FILE, (b"x",), "1 list of a file's chunks is in no pack"),
        (ObjectKind.FILE, (b"x", b"y"), "2 lists of files' chunks are in no pack"),
        (ObjectKind.SNAPSHOT, (b"x",), "1 version is in no pack"),
    ],
)
def test_what_no_pack_has_is_lost_though_it_may_be_here(kind: ObjectKind, ids: tuple[bytes, ...], says: str) -> None:
    def walk() -> Any:
        got = yield kind, (b"a",)
        yield kind, ids
        return got

    base: Any = SimpleNamespace(index={b"a"})
    walked = line.all_named(walk(), base)
    assert next(walked) == (kind, (b"a",))
    with pytest.raises(DamagedError, match=says) as raised:
        walked.send({b"a": b"data"})
    assert raised.value.objects == tuple(i for i in ids if i != b"a")


def test_what_is_found_from_here_on_is_known_apart() -> None:
    marked: Any = {b"old"}
    fresh = line.Fresh(marked)
    assert b"old" in fresh
    assert b"new" not in fresh
    fresh.add(b"new")
    assert b"new" in fresh
    assert fresh.ids == [b"new"]
    assert marked == {b"old", b"new"}
