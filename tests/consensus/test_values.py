"""Which values may follow a base: every rule of format-agreement.md, 8.1, one by one (consensus.md, rule 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agreement_kit import (
    ADMIN,
    ALICE,
    BASE,
    BOB,
    CAROL,
    CHAIN,
    CONFIG,
    DEVICES,
    KEYS,
    MALLORY,
    NS_ID,
    POLICY,
    RULES,
    backend,
    drawn,
    value,
)

from metasync.config import CHANGED_TAG, Config
from metasync.consensus.objects import seal_object
from metasync.consensus.records import log_replay
from metasync.consensus.records.log_replay import ValueRules, fault_named
from metasync.consensus.records.state import State
from metasync.errors import UpgradeError
from metasync.keys.derive import Recipient, RecordKind, sign_public
from metasync.keys.device_set import DeviceSet, recertified
from metasync.keys.policy import allowing

SECOND = drawn("second admin")
LONGER = CHAIN.extended(ADMIN, sign_public(SECOND))
V = BASE.v + 1


def sealed(plain: bytes, *, era: int = 0, epoch: int = 1) -> tuple[bytes, bytes]:
    return seal_object(KEYS, RecordKind.CONST, plain, era=era, epoch=epoch, random=drawn("const"))


def fault(
    config: Config | None = None, devices: DeviceSet | None = None, rules: ValueRules = RULES, **more: Any
) -> str:
    """What speaks against a value of this config and this device set, which its entry carries."""
    names: dict[str, bytes] = {}
    carried = {"config": b"", "devices": b""}
    for field, thing in (("config", config), ("devices", devices)):
        if thing is not None:
            names[field], carried[field] = sealed(thing.encode())
    return rules.fault(value(**{**names, **more}), carried["config"], carried["devices"])


def changed(config: Config = CONFIG, v: int = V) -> Config:
    return config.tagged(CHANGED_TAG, (v, BASE.config))


def under(admin: bytes = ADMIN, **changes: Any) -> DeviceSet:
    """The devices under another policy, as the admin signs it for this version."""
    policy = POLICY.signed(admin, **{"version": V, **changes})
    return replace(DEVICES, policy_data=policy.encode())


def test_what_changes_neither_carries_nothing() -> None:
    assert fault() == ""
    assert RULES.carried(value(), {}) == (b"", b"", ())


def test_good_changes_are_good() -> None:
    more = changed(CONFIG.with_backends([*CONFIG.backends, backend(4)]))
    joined = DEVICES.with_device(CAROL.certified(ADMIN, NS_ID))
    assert fault(config=more) == ""
    assert fault(devices=joined) == ""
    assert fault(config=more, devices=joined) == ""
    assert fault(devices=under(copies=1)) == ""
    assert fault(devices=under(slots=())) == ""  # the admin's own business


def test_what_is_carried_is_what_others_get() -> None:
    joined = DEVICES.with_device(CAROL.certified(ADMIN, NS_ID))
    rules = ValueRules(KEYS, CONFIG, DEVICES, BASE)
    digest, data = sealed(joined.encode())
    assert rules.fault(value(devices=digest), b"", data) == ""
    assert rules.carried(value(devices=digest), {}) == (b"", data, ())
    assert rules.device_sets[digest] == joined


def test_a_policy_may_allow_less_and_then_a_config_may_be_less() -> None:
    fewer = changed(
        replace(CONFIG, redundancy=(replace(CONFIG.redundancy[0], policy=type(CONFIG.redundancy[0].policy)(1)),))
    )
    assert "1 copies" in fault(config=fewer)
    assert fault(config=fewer, devices=under(copies=1)) == ""
    assert "2 copies" in fault(devices=under(copies=3))  # a config that stays keeps to it, too


def test_the_votes_that_the_policy_names_make_a_quorum_alone() -> None:
    """Or a device could put votes of its own in the place of all others, one version after the other."""
    four = changed(CONFIG.with_backends([*CONFIG.backends, backend(4)]))
    assert fault(config=four) == ""  # three of four are known, and three make a quorum
    rules = ValueRules(KEYS, four, DEVICES, BASE)
    two = changed(four.with_backends([*four.backends[1:]]))
    assert fault(config=two, rules=rules) == ""  # two of three
    rules = ValueRules(KEYS, two, DEVICES, BASE)
    five = changed(two.with_backends([*two.backends, backend(5)]))
    assert fault(config=five, rules=rules) == "2 of its 4 voting backends are ones that the policy names, and 3 must be"
    named = allowing(POLICY, five, ADMIN, version=V)
    assert fault(config=five, devices=replace(DEVICES, policy_data=named.encode()), rules=rules) == ""
    first = CONFIG.backends[0]
    assert first.acceptor is not None
    reborn = replace(first, acceptor=replace(first.acceptor, birth=drawn("another birth")))
    again = changed(two.with_backends([reborn, *two.backends[1:]]))
    assert fault(config=changed(two.with_backends([*two.backends, reborn])), rules=rules)
    assert again.n == 3


def rotated(**changes: Any) -> DeviceSet:
    devices = under(SECOND, chain=LONGER, keyring=drawn("ring 2"), **changes)
    return replace(devices, certificates=tuple(recertified(c, SECOND) for c in DEVICES.certificates))


def test_new_keys_come_with_the_policy_that_names_them() -> None:
    keys = {"epoch": 2, "keyring": drawn("ring 2")}
    assert fault(devices=rotated(), **keys) == ""
    assert "its keys" in fault(devices=rotated(), epoch=2, keyring=drawn("bogus"))
    assert "its keys" in fault(devices=rotated())
    assert "its keys" in fault(devices=under(), **keys)
    alone = replace(rotated(revoked_ids=(BOB.device_id,)), certificates=())
    assert ALICE.device_id.hex()[:8] in fault(devices=alone, **keys)


@pytest.mark.parametrize(
    "make",
    [
        lambda: under(version=V + 1),
        lambda: under(version=V - 1, tags=((9, b"x"),)),
        lambda: under(version=0, tags=((9, b"x"),)),
        lambda: under(era=1),
    ],
    ids=["later", "before", "founding", "era"],
)
def test_a_policy_counts_for_its_version_alone(make: Callable[[], DeviceSet]) -> None:
    assert fault(devices=make()) == "a policy that was not signed for this version"


def test_a_newer_program_is_asked_for_by_the_policy_alone() -> None:
    assert "cannot follow" in fault(min_fmt=2)
    assert "oldest format" in fault(devices=DEVICES.with_device(CAROL.certified(ADMIN, NS_ID)), min_fmt=2)
    with pytest.raises(UpgradeError):
        fault(devices=under(min_fmt=2), min_fmt=2)


def test_devices_stay_unless_the_admin_revoked_them() -> None:
    bob = BOB.device_id
    left = tuple(c for c in DEVICES.certificates if c.device_id != bob)
    assert "did not revoke" in fault(devices=replace(DEVICES, certificates=left))
    assert "did not revoke" in fault(devices=replace(DEVICES, certificates=left, ended_ids=(bob,)))
    assert fault(devices=replace(under(revoked_ids=(MALLORY.device_id, bob)), certificates=left)) == ""
    twin = replace(BOB, seal_private=drawn("another")).certified(ADMIN, NS_ID)
    weaker = recertified(replace(twin, sealing=Recipient(1, drawn("x25519"))), ADMIN)
    for other in (twin, weaker):  # the admin key signed them, once
        others = tuple(sorted((*left, other), key=lambda c: c.device_id))
        assert "other keys" in fault(devices=replace(DEVICES, certificates=others))


def test_what_was_ended_stays_ended_in_its_epoch() -> None:
    ended = replace(DEVICES, ended_ids=(drawn("guest", 16),), ended_keys=(drawn("guest key"),))
    rules = ValueRules(KEYS, CONFIG, ended, BASE)
    assert fault(devices=ended) == ""
    assert "ended invitation" in fault(devices=replace(ended, ended_ids=(), tags=((9, b"x"),)), rules=rules)
    assert "ended invitation" in fault(devices=replace(ended, ended_keys=()), rules=rules)
    assert fault(devices=rotated(), rules=rules, epoch=2, keyring=drawn("ring 2")) == ""


def test_a_config_is_one_step() -> None:
    first, second, third = CONFIG.backends
    assert "does not say" in fault(config=CONFIG.tagged(CHANGED_TAG, (V - 1, BASE.config)))
    assert "does not say" in fault(
        config=replace(CONFIG, level=4) if hasattr(CONFIG, "level") else replace(CONFIG, compression_level=4)
    )
    assert "1 of 3" in fault(config=changed(CONFIG.with_backends([first, backend(5), backend(6)])))
    assert first.acceptor is not None
    reborn = replace(first, acceptor=replace(first.acceptor, birth=drawn("another birth")))
    assert fault(config=changed(CONFIG.with_backends([reborn, second, third]))) == ""  # one of three
    assert "another store" in fault(
        config=changed(CONFIG.with_backends([replace(first, identity=drawn("x")), second, third]))
    )
    assert "another store" in fault(config=changed(CONFIG.with_backends([replace(first, storage=()), second, third])))
    more = replace(first, storage=(*first.storage, backend(7).storage[0]))
    assert fault(config=changed(CONFIG.with_backends([more, second, third]))) == ""


def test_an_object_is_sealed_for_its_base() -> None:
    joined = DEVICES.with_device(CAROL.certified(ADMIN, NS_ID))
    for era, epoch in ((1, 1), (0, 2)):
        keys = replace(KEYS, epoch_keys=(*KEYS.epoch_keys, (2, drawn("epoch 2"))))
        digest, data = seal_object(keys, RecordKind.CONST, joined.encode(), era=era, epoch=epoch, random=drawn("c"))
        rules = ValueRules(keys, CONFIG, DEVICES, BASE)
        assert rules.fault(value(devices=digest), b"", data) == "it names an object of another epoch"
    digest, data = sealed(joined.encode())
    assert "does not carry" in RULES.fault(value(devices=digest))
    assert "does not carry" in RULES.fault(value(devices=digest), b"", data + b"x")
    assert RULES.fault(value(devices=digest), b"", data) == ""


def test_a_state_from_far_is_held_to_its_own_policy() -> None:
    def state(**changes: Any) -> State:
        return replace(BASE, **changes)

    assert fault_named(BASE, CONFIG, DEVICES) == ""
    for changes in ({"epoch": 2}, {"keyring": drawn("x")}, {"min_fmt": 2}):
        assert fault_named(state(**changes), CONFIG, DEVICES)
    assert fault_named(BASE, replace(CONFIG, chains=(("compress", "integrity"),)), DEVICES)


def test_a_withdrawn_admin_key_names_no_other_devices() -> None:
    """The chain of admin keys goes on from its newest: what an older one signs, or goes on with, is void."""
    now, third = rotated(), drawn("third admin")
    branch = CHAIN.extended(ADMIN, sign_public(third))
    for chain, admin in ((CHAIN, ADMIN), (branch, third)):
        policy = POLICY.signed(admin, version=V, chain=chain)
        certificates = tuple(recertified(c, admin) for c in DEVICES.certificates)
        old = replace(DEVICES, policy_data=policy.encode(), certificates=certificates)
        assert log_replay._fault_of_devices(now, old, value()) == "a device set of other admin keys"
    assert log_replay._fault_of_devices(now, now, value()) == ""
