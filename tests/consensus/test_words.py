"""What a device says outside the logs: its head, its hints, its word of another history; and the keys that go along."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_counting import Logs

from metasync.consensus import chain, forks, hints
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Participant
from metasync.consensus.records.state import State, hint_is_due
from metasync.errors import DamagedError, ExcludedError, ForkError, NoQuorumError, UnreachableError
from metasync.keys.derive import sha256
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime.effects import Reply, Task


class Words:
    """Devices 0, 1 and 2 on three logs; what 1 makes of what 0 and 2 say."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.world, self.ws, self.base = self.logs.world, self.logs.ws, self.logs.base
        self.groups = [self.ws.group(bytes([n + 1]) * 16, n) for n in range(3)]
        self.m: Participant = self.groups[1].participant
        self.instance: Instance = self.do(self.groups[1].enter(self.base))
        self.backends = ["a", "b", "c"]

    def do(self, task: Task) -> Any:
        return self.world.do(task, {})

    def says(self, device: int, state: State) -> None:
        head = hints.write_head(self.groups[device].participant, state, bytes(32), bytes(32), self.backends)
        assert self.do(head) >= 2
        self.world.run()

    def apart(self, monkeypatch: pytest.MonkeyPatch, name: str, result: Any) -> None:
        """Has a step of the look into another history come to this."""

        def task(*_: object) -> Task:
            yield from ()
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(forks, name, task)


@pytest.fixture
def words() -> Words:
    return Words()


# ---- heads


def test_heads_are_told_as_ahead_or_apart_and_ones_own_is_not(words: Words) -> None:
    ahead, apart = replace(words.base, v=3), replace(words.base, op_id=b"o" * 16)
    words.says(0, ahead)
    words.says(1, replace(words.base, v=9))
    words.says(2, words.base)
    found = words.do(hints.check_heads(words.m, words.instance, words.backends))
    assert [[head.v for head in heads] for heads in found] == [[3], []]
    words.says(2, apart)
    found = words.do(hints.check_heads(words.m, words.instance, words.backends))
    assert [[head.device_id for head in heads] for heads in found] == [
        [words.ws.identities[0].device_id],
        [words.ws.identities[2].device_id],
    ]


def test_a_head_of_a_version_that_cannot_be_had_now_is_not_apart(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Task:
        yield from ()
        raise NoQuorumError("away")

    monkeypatch.setattr(hints, "ancestor", away)
    words.says(0, words.base)
    assert words.do(hints.check_heads(words.m, words.instance, words.backends)) == ((), ())


def test_a_certificate_goes_along_where_the_device_set_is_not_known_to_have_it(words: Words) -> None:
    words.m.certificate = b"certificate"
    assert hints.certificate_for(words.m, words.base) == b""
    assert hints.certificate_for(words.m, replace(words.base, devices=b"unknown".ljust(32))) == b"certificate"
    stranger = new_device("new", words.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    words.ws.identities.append(stranger)
    member = words.ws.group(b"s" * 16, len(words.ws.identities) - 1, certificate=b"its own").participant
    member.device_sets[words.base.devices] = words.ws.devices
    assert hints.certificate_for(member, words.base) == b"its own"


@pytest.mark.parametrize("everywhere", [False, True])
def test_hints_are_waited_for_by_most_or_by_all(words: Words, everywhere: bool) -> None:
    words.world.takes_s = {"a": 0.1, "b": 0.1, "c": 2.0}
    before = words.world.now
    count = words.do(hints.write_hints(words.m, words.ws.links, words.base, words.logs.x, everywhere=everywhere))
    assert count == (3 if everywhere else 2)
    assert (words.world.now - before > 1.0) is everywhere


def test_a_hint_that_was_not_taken_is_not_counted(words: Words) -> None:
    words.world.down = {"b", "c"}
    assert words.do(hints.write_hints(words.m, words.ws.links, words.base, words.logs.x, everywhere=True)) == 1


# ---- keys


def test_keyrings_that_are_damaged_or_not_answered_are_none(words: Words) -> None:
    store = words.world.stores["a"]
    rings = [b"a ring", b"another"]
    names = [f"keys/ring-{epoch}-{sha256(data).hex()}" for epoch, data in enumerate(rings, 1)]
    store |= dict(zip(names, rings, strict=True))
    assert words.do(chain.rings_on("a", lambda _: True)) == rings[::-1]
    store[names[1]] = b"rubbish"
    assert words.do(chain.rings_on("a", lambda _: True)) == rings[:1]
    words.world.liars["a"] = lambda _, op, there: (
        Reply(error=UnreachableError("busy")) if op.path == names[0] else there.do(op)
    )
    assert words.do(chain.rings_on("a", lambda _: True)) == []


@pytest.mark.parametrize(
    ("epoch", "certified", "error"),
    [
        (2, False, NoQuorumError),  # its keys are newer than the set, and no admin key of then certified it
        (1, False, ExcludedError),
        (2, True, ExcludedError),
    ],
)
def test_a_device_that_is_newer_than_a_version_is_not_told_that_it_is_shut_out(
    words: Words, epoch: int, certified: bool, error: type[Exception]
) -> None:
    stranger = new_device("new", words.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    admin = words.ws.admin if certified else words.world.rng.randbytes(32)
    certificate = stranger.certified(admin, words.ws.keys.ns_id).encode()
    member: Any = SimpleNamespace(identity=stranger, certificate=certificate, keys=SimpleNamespace(epoch=epoch))
    assert type(chain.exclusion(member, words.ws.devices, 1)) is error


# ---- other histories


def test_the_backends_that_show_another_history_are_named_and_no_others(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(words.base, op_id=b"o" * 16)
    b = words.instance.acceptors[words.ws.acceptor_of("b")]
    b.log.elsewhere[b"d" * 16, other.hash] = other
    words.apart(monkeypatch, "_borne_out", True)
    with pytest.raises(ForkError, match=r"^b: version 1 stands on another state"):
        words.do(forks.look_into(words.m, words.groups[1].enter, words.instance))
    assert words.m.states[other.hash] == other, "it is looked for no more"


def test_so_many_words_of_one_device_are_looked_into_and_no_more(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def into(_m: object, _enter: object, _instance: object, digest: bytes) -> Task:
        yield from ()
        looked.append(digest)
        return False

    monkeypatch.setattr(forks, "_borne_out", into)
    for n in range(2 * forks.LOOKS_MAX):
        task = forks._is_fork(words.m, words.groups[1].enter, words.instance, b"d" * 16, bytes([n]) * 32, "a")
        assert not words.do(task)
    assert len(looked) == forks.LOOKS_MAX


def borne_out(words: Words) -> bool:
    found = words.do(forks._borne_out(words.m, words.groups[1].enter, words.instance, words.logs.x.hash))
    assert isinstance(found, bool)
    return found


def test_what_no_way_leads_to_is_not_borne_out(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    words.apart(monkeypatch, "_parting", None)
    assert not borne_out(words)


def test_only_what_is_decided_and_certain_bears_a_history_out(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    words.m.remember_state(words.base)
    words.apart(monkeypatch, "_parting", ((0, words.base.hash), (1, words.logs.x.hash)))
    assert not borne_out(words), "nothing is decided"
    words.logs.prepare("abc", 1)
    words.logs.accept("abc", 1, words.logs.x)
    assert borne_out(words)
    monkeypatch.setattr(Instance, "is_certain", lambda *_: False)
    assert not borne_out(words)


def test_where_neither_chain_can_be_followed_nothing_is_known_in_common(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(words.logs.x, v=9)
    theirs = replace(mine, prev=b"t" * 32, skip=b"s" * 32)

    def fetched(_m: object, _instance: object, v: int, digest: bytes, _epoch: int) -> Task:
        yield from ()
        if digest != theirs.hash:
            raise DamagedError(f"version {v} is gone")
        return theirs

    monkeypatch.setattr(forks, "fetch_state", fetched)
    instance: Any = SimpleNamespace(base=mine)
    assert words.do(forks._parting(words.m, instance, theirs.hash)) is None


def test_where_two_chains_part_they_had_the_state_before_in_common(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs is of the same version, on the same state: it is the oldest that differs."""
    mine = replace(words.logs.x, v=9)
    theirs = replace(mine, op_id=b"t" * 16)

    def fetched(*_: object) -> Task:
        yield from ()
        return theirs

    monkeypatch.setattr(forks, "fetch_state", fetched)
    instance: Any = SimpleNamespace(base=mine)
    found = words.do(forks._parting(words.m, instance, theirs.hash))
    assert found == ((8, mine.prev), (9, theirs.hash))


def test_no_chain_is_followed_beyond_the_beginning(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device made up a version 1 on another version 0, which the admin did not sign."""
    mine = words.logs.x
    theirs = replace(mine, prev=b"t" * 32)
    asked = []

    def fetched(_m: object, _instance: object, v: int, digest: bytes, _epoch: int) -> Task:
        yield from ()
        asked.append((v, digest))
        return {theirs.hash: theirs, mine.prev: words.base}[digest]

    monkeypatch.setattr(forks, "fetch_state", fetched)
    instance: Any = SimpleNamespace(base=mine)
    found = words.do(forks._parting(words.m, instance, theirs.hash))
    assert found == ((0, words.base.hash), (0, theirs.prev))
    assert asked == [(1, theirs.hash), (0, mine.prev)]


@pytest.mark.parametrize(("beyond", "told"), [(0, True), (1, False)])
def test_a_head_too_far_ahead_is_made_up(words: Words, beyond: int, told: bool) -> None:
    words.says(0, replace(words.base, v=hints.AHEAD_MAX + beyond))
    ahead, apart = words.do(hints.check_heads(words.m, words.instance, words.backends))
    assert [head.v for head in ahead] == [hints.AHEAD_MAX] * told
    assert apart == ()


def test_when_hints_are_due() -> None:
    assert [v for v in range(1, 100) if hint_is_due(v)] == [1, 2, 4, 8, 16, 32, 48, 64, 80, 96]
