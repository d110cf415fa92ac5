"""Which keys go with an agreed version, and what a chain is seen to have in the place of a state that is known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import change
from test_counting import Logs

from metasync.consensus import chain
from metasync.consensus.chain import follow_keys, other_at
from metasync.errors import DamagedError, RevokedError

TODAYS, OTHERS = (SimpleNamespace(epoch=1, whose=name) for name in ("today", "another"))


def followed(monkeypatch: pytest.MonkeyPatch, ring: Any = TODAYS, epoch: int = 1, *, bars: bool = False) -> Any:
    """What becomes of a version with keys of this epoch, whose keyring has this chain of admin keys."""

    def fetched(*_: object) -> Any:
        yield from ()
        return b"a keyring"

    monkeypatch.setattr(chain, "fetch_ring", fetched)
    monkeypatch.setattr(chain, "read_ring", lambda *_: SimpleNamespace(chain=ring))
    monkeypatch.setattr(chain, "open_ring", lambda *_: "keys")
    logs = Logs()
    devices: Any = SimpleNamespace(chain=TODAYS, bars=lambda _: bars)
    member = logs.ws.group(b"r" * 16, 1).participant
    return logs.world.do(follow_keys(member, replace(logs.base, epoch=epoch), devices, ["a"]))


def test_the_keys_of_a_version_are_those_of_its_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed(monkeypatch) == "keys"


def test_a_keyring_of_other_admin_keys_than_the_device_sets_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device could have it agreed, and everybody would seal under keys that somebody else gave."""
    with pytest.raises(DamagedError, match="its admin keys are not those of the device set"):
        followed(monkeypatch, OTHERS)
    with pytest.raises(DamagedError, match="its admin keys are not those of the device set"):
        followed(monkeypatch, epoch=2)


def test_a_revoked_device_follows_no_keys_though_it_could_open_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without encryption anybody can."""
    with pytest.raises(RevokedError):
        followed(monkeypatch, bars=True)


def test_a_chain_is_another_where_it_has_another_state_in_the_place_of_the_known_one() -> None:
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    first = logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16))).state
    second = logs.world.do(group.propose(first, lambda: change(b"2" * 16))).state
    instance = logs.world.do(group.enter(first))
    for state in (first, second):
        assert logs.world.do(other_at(group.participant, instance, state)) is None
    other = replace(first, op_id=b"o" * 16)
    assert logs.world.do(other_at(group.participant, instance, other)) == other.hash
    assert logs.world.do(other_at(group.participant, instance, replace(second, prev=other.hash))) == other.hash
    assert logs.world.do(other_at(group.participant, instance, logs.base)) is None  # it does not come so far
