"""What ends an acceptor's part in a version, which rounds that leaves, and how far ahead versions are looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from agreement_kit import ACCEPTOR, KEYS, RULES, Writer, X
from forger_kit import Forger
from paxos_world import World
from test_counting import Logs, without_birth

from metasync.consensus import learner
from metasync.consensus.acceptors.log import AHEAD
from metasync.consensus.instance import Instance
from metasync.consensus.records import log_replay
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER, ROUND_MAX, Log
from metasync.consensus.records.state import VERSION_MAX
from metasync.errors import ForkError


def fed(writer: Writer) -> Log:
    log = Log(KEYS, RULES, ACCEPTOR)
    for data in writer.entries:
        log.feed(data)
    return log


def test_a_log_ends_when_it_is_poisoned() -> None:
    log = fed(Writer().prepare(1))
    assert log.ended == ""
    log.feed(b"rubbish".ljust(512))
    assert log.ended == log.poison != ""


def test_a_log_ends_when_the_last_round_was_promised_in_it() -> None:
    """Nobody can go above it."""
    assert not fed(Writer().prepare(ROUND_MAX - 1)).spent
    log = fed(Writer().prepare(ROUND_MAX))
    assert log.spent
    assert "the last round" in log.ended


def test_a_log_ends_when_it_is_full_unless_it_was_closed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed one needs no more entries: its value is known."""
    open_yet = Writer().prepare(1).accept(1, X)
    closed = Writer().prepare(1).accept(1, X).decided(X)
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", 3)
    assert fed(open_yet).ended == ""
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", 2)
    assert "is full" in fed(open_yet).ended
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", 3)
    assert fed(closed).closed == X
    assert fed(closed).ended == ""


def test_a_log_takes_what_fits_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = fed(Writer().prepare(1).accept(1, X))
    left = 1000
    monkeypatch.setattr(log_replay, "LOG_BYTES_MAX", log.size + left)
    assert log.takes(left)
    assert not log.takes(left + 1)
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", 2)
    assert not log.takes(1)


# ---- what several logs say together


def looked(logs: Logs) -> Instance:
    """All logs as they are, where a read would end as soon as it knows the value."""
    group = logs.ws.group(b"r" * 16, 1)
    instance = Instance(group.participant, logs.ws.config, logs.ws.devices, logs.base)
    for acceptor in instance.acceptors.values():
        logs.world.do(acceptor.look(beyond=True))
    return instance


def test_the_highest_round_is_that_of_the_logs_in_which_one_can_go_above_it() -> None:
    logs = Logs()
    logs.prepare("a", 3)
    Forger(logs.world, logs.ws, 1).tell(logs.base, "b", Kind.PREPARE, Round(ROUND_MAX, b"r" * 16))
    assert logs.read().top_round() == logs.proposer.round(3)


def test_a_poisoned_log_does_not_say_that_a_round_was_never_promised() -> None:
    """Rule 8.2: what stood in it is not known, so that the value may be the decided one and is to be proposed."""
    logs = Logs("abcde")
    logs.prepare("cd", 1)
    logs.prepare("abe", 2)
    logs.accept("c", 1, logs.x)
    for name in "ab":
        logs.poison(name, 1)
    assert logs.read().evidence() == logs.x


def test_of_two_values_either_of_which_may_have_a_quorum_one_is_taken_only_where_it_does_not_matter_which() -> None:
    logs = Logs()
    y = logs.proposer.lie(logs.base, b"y...")
    logs.prepare("abc", 1)
    logs.accept("a", 1, logs.x)
    logs.accept("b", 1, y)
    instance = logs.read()
    with pytest.raises(ForkError, match="two values were proposed"):
        instance.evidence()
    assert instance.evidence(either=True) in (logs.x, y)


def test_the_round_of_a_value_is_that_of_the_closed_log_and_of_no_other_value() -> None:
    logs = Logs()
    logs.prepare("bc", 3)
    logs.accept("bc", 3, logs.x)
    logs.prepare("a", 5)
    logs.accept("a", 5, logs.x)
    logs.close("a", logs.x)
    instance = looked(logs)
    assert instance.round_of(logs.x) == logs.proposer.round(5)
    assert instance.round_of(logs.proposer.lie(logs.base, b"y...")) == NEVER


def test_the_newest_version_is_one_after_which_a_quorum_of_right_roots_has_nothing() -> None:
    """Rule 1.9: what a root without its birth lacks, it may have had."""
    logs = Logs()
    logs.prepare("abc", 1)
    logs.accept("abc", 1, logs.x)
    logs.proposer.tell(logs.x, "b", Kind.PREPARE, Round(1, b"n" * 16))

    def is_last() -> bool:
        instance = looked(logs)
        assert instance.decided() == logs.x
        return instance.is_last()

    assert is_last()
    for n in range(2, 2 + AHEAD):
        logs.prepare("c", n)
    assert is_last()
    without_birth(logs, "c", after=2)  # it was asked for the next version, and not to the end of this one
    assert not is_last()


def test_an_acceptor_that_is_poisoned_after_it_was_read_does_not_say_that_no_vote_is_there() -> None:
    logs = Logs()
    logs.world.down = {"c"}
    instance = looked(logs)
    assert instance.quiet()
    a = instance.acceptors[logs.ws.acceptor_of("a")]
    logs.poison("a", 0)
    logs.world.do(a.append(Kind.PREPARE, Round(2, b"r" * 16), None, NEVER))
    assert not a.log.usable
    assert not instance.quiet()


# ---- looking far ahead


@pytest.mark.parametrize("start", [1, 1000, VERSION_MAX - 70, VERSION_MAX - 1, VERSION_MAX])
@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 7, 8, 9, 40, 300])
def test_the_highest_version_with_an_entry_is_found_wherever_it_is(
    start: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = min(start + ahead, VERSION_MAX)
    shown = SimpleNamespace(entry=SimpleNamespace(base=SimpleNamespace(hash=b"base")))

    def probe(instance: Any, versions: list[int], left: float, enough: int | None) -> Any:
        assert versions
        assert max(versions) <= VERSION_MAX
        yield from ()
        return {v: {b"a": shown, b"b": shown} for v in versions if v <= newest}, 2

    monkeypatch.setattr(learner, "_probe_versions", probe)
    instance: Any = SimpleNamespace(v=start, quorum=2)
    top = World(1, []).do(learner._gallop(instance, 10.0))
    assert (top.v, top.absent) == (newest, newest + 1)


def test_entries_on_the_most_common_base_count_if_enough_show_it() -> None:
    """One on another base may be a revoked device's."""

    def on(base: bytes) -> Any:
        return SimpleNamespace(entry=SimpleNamespace(base=SimpleNamespace(hash=base)))

    shown = {b"a": on(b"x"), b"b": on(b"y"), b"c": on(b"x")}
    assert learner._agreeing(shown, 2).keys() == {b"a", b"c"}
    assert learner._agreeing(shown, 3) == {}


@pytest.mark.parametrize(("others", "n", "same", "away", "certain"), [
    ("", 1, False, "e", True),
    ("d", 1, False, "e", True),
    ("cd", 1, False, "", True),
    ("cd", 1, False, "e", False),  # e may have been the third
    ("cd", 3, False, "e", True),  # above a decided round honest devices propose its value alone
    ("cd", 1, True, "e", True),
])  # fmt: skip
def test_a_decided_value_is_certain_if_no_other_one_can_have_been_decided_in_a_lower_round(
    others: str, n: int, same: bool, away: str, certain: bool
) -> None:
    """Rule 8.2: of five, a, b and c voted for x in round 2; others, c among them, for y in another one."""
    logs = Logs("abcde")
    y = logs.x if same else logs.proposer.lie(logs.base, b"y...")
    votes = [(n, others, y), (2, "abc", logs.x)]
    for rnd, names, value in sorted(votes, key=lambda vote: vote[0]):
        logs.prepare("abcde" if rnd == 1 else names, rnd)
        logs.accept(names, rnd, value)
    logs.world.down = {*away}
    assert looked(logs).is_certain(logs.x) is certain
