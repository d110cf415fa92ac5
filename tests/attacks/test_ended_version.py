"""A device ends agreement at one version: there is a way past it, and the device has no part in what comes after.

It puts what is no entry in the next place of the logs of a quorum, prepares the last round there is, or fills the logs.
No command can tell a store that lost a vote from a device that spoilt one, so no rule of agreement passes over it: an
admin does, by `recover`.
"""

from __future__ import annotations

import pytest
from test_votes import Place

from metasync.consensus import State
from metasync.consensus.records import log_replay
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.errors import (
    NoQuorumError,
)

SIZES = pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
WAYS = pytest.mark.parametrize("how", ["garbage", "last round", "full"])
FEW = 24  # entries that a log takes here, in place of 10,000


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", FEW)


def end(p: Place, base: State, how: str, names: list[str]) -> None:
    """The liar ends the version after `base` on these backends."""
    if how == "garbage":
        for name in names:
            p.world.stores[name][p.forger.place(base, name, 0)] = b"garbage"
    elif how == "last round":
        p.forger.tell(base, names, Kind.PREPARE, p.forger.round(ROUND_MAX))
    else:
        for n in range(FEW):
            p.forger.tell(base, names, Kind.PREPARE, p.forger.round(n + 1))


@SIZES
@WAYS
def test_an_ended_version_is_named_with_its_cause_and_the_way_past(n: int, f: int, how: str) -> None:
    """Where too few backends are left to agree the next version, whoever pushes is told which and why."""
    p = Place(n, f)
    end(p, p.x, how, p.names[:2])
    cause = {"garbage": "entry 0 of version 2", "last round": "the last round that version 2 has", "full": "is full"}
    with pytest.raises(NoQuorumError, match=r"version 2 cannot be agreed any more.*a: .*; b: ") as e:
        p.push(p.group(2, 1), p.x, b"y")
    assert cause[how] in e.value.message
    assert "c: " not in e.value.message
    assert "metasync recover" in e.value.next_step and "--revoke" in e.value.next_step


@SIZES
@WAYS
def test_one_backend_that_is_ended_stops_nobody(n: int, f: int, how: str) -> None:
    """What is ended on a minority is as good as down for that version: the others agree, and go on in the next."""
    p = Place(n, f)
    end(p, p.x, how, ["a"])
    y = p.push(p.group(2, 1), p.x, b"y")
    z = p.push(p.group(3), y, b"z")
    assert p.world.do(p.group(5, 1).get_recent(p.ws.genesis), {}) == z


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_log_takes_no_entry_that_others_would_not_read(spare: int) -> None:
    """A liar leaves room for less than a proposal. Whoever pushes must not count a vote that poisons the log for
    everybody else: two devices would know different versions."""
    p = Place()
    for n in range(FEW - spare):
        p.forger.tell(p.x, p.names, Kind.PREPARE, p.forger.round(n + 1))
    try:
        y = p.push(p.group(2, 1), p.x, b"y")
    except NoQuorumError:
        y = p.x
    p.world.run()
    assert p.world.do(p.group(5, 1).newest_seen(p.x), {}) == y
    assert (y == p.x) == (spare < 2)
