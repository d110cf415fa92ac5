"""Where deletions of a version may be carried out: on backends that know it by themselves (consensus.md, rule 6.5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metasync.consensus import NOTHING, ZERO_HASH, Ref
from metasync.errors import NoQuorumError
from metasync.session import health, witnesses


class Place:
    """Backends a, b and c vote, and d holds data alone. `knowing`: whose logs show the version; `lacking`: who lacks
    a record that it names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.knowing: Any = {b"a", b"b", b"c"}
        self.lacking: dict[str, str] = {}
        self.asked: list[Any] = []
        backends = [
            SimpleNamespace(name=n, backend_id=n.encode(), acceptor=SimpleNamespace(acceptor_id=n.encode()))
            for n in "abc"
        ]
        self.s: Any = SimpleNamespace(
            config=SimpleNamespace(
                acceptors=[(b, b.acceptor) for b in backends],
                backends=[*backends, SimpleNamespace(name="d", backend_id=b"d", acceptor=None)],
                prev_config=None,
            ),
            names={n.encode(): f"way to {n}" for n in "abcd"},
            group=SimpleNamespace(
                participant=None, enter=None, state_at=lambda _, v: self.before, settle=lambda _: None
            ),
            runtime=SimpleNamespace(run=self._run),
            indexes=SimpleNamespace(names_of=lambda ref: {ref, Ref(1, b"segment")}),
        )
        self.state: Any = SimpleNamespace(
            v=7, config=b"config", devices=b"devices", index=Ref(1, b"index"), retained=NOTHING
        )
        self.before: Any = SimpleNamespace(config=b"config", devices=b"devices")
        monkeypatch.setattr(witnesses, "pass_on", lambda *_: self.knowing)
        monkeypatch.setattr(health, "check_meta", self._check)

    def _run(self, task: Any) -> Any:
        if isinstance(task, Exception):
            raise task
        return task

    def _check(self, _s: object, named: Any, but: Any, *, read_data: bool) -> Any:
        self.asked.append(([what for what, _ in named], sorted(but)))
        return self.lacking, None

    def refused(self) -> dict[str, str]:
        return dict(witnesses.refusals(self.s, self.state))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_where_all_that_vote_know_the_version_all_may_delete(place: Place) -> None:
    assert place.refused() == {}
    assert witnesses.unaware(place.s, place.state) == {}


def test_who_has_not_heard_of_it_deletes_nothing_nor_does_who_may_be_left_with_that_one(place: Place) -> None:
    place.knowing = {b"a", b"c"}
    assert place.refused() == {
        "way to b": "it has not heard of version 7",
        "way to d": "b may be the one that is left with it, and it has not heard of version 7",
    }
    assert place.asked[-1][1] == ["b"], "it need not be asked for records"


def test_who_lacks_a_record_that_the_version_names_deletes_nothing(place: Place) -> None:
    place.lacking = {"c": "the index is not there"}
    assert [*place.refused()] == ["way to c", "way to d"]


def test_who_cannot_be_asked_counts_as_one_that_does_not_know(place: Place) -> None:
    """Nothing can be deleted there, and what holds no vote waits for it."""
    del place.s.names[b"a"]
    assert witnesses.unaware(place.s, place.state) == {"a": "this device has no way to it"}
    assert [*place.refused()] == ["way to d"]


def test_where_it_cannot_be_told_nothing_is_deleted(place: Place) -> None:
    place.knowing = NoQuorumError("too few answer")
    assert place.refused().keys() == {f"way to {n}" for n in "abcd"}


def test_all_is_looked_for_that_a_restart_reads(place: Place) -> None:
    def named() -> list[str]:
        return [what for what, _ in witnesses._named(place.s, place.state)]

    assert named() == ["config", "device set", "index", "index"]
    place.state.retained, place.before.devices, place.before.config = Ref(1, b"kept"), b"others", b"another"
    assert named() == ["config", "device set", "config before", "device set before", "index", "index",
                       "list of what is kept"]  # fmt: skip
    place.before.config, place.s.config.prev_config = b"config", b"while data move"
    assert "config before" in named()
    place.state.index = Ref(0, ZERO_HASH)
    assert "index" not in named()
