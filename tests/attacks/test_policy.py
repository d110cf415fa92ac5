"""What the others hold on to when a valid device lies: its program keeps no rule, and proposes what it likes.

The insider's keys are in order, and it stores what it names as any device does. What it proposes against the policy has
no effect (consensus.md, rules 8.4 and 8.5): each test looks at what the next device makes of it, which keeps the rules.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from content_kit import pack_format
from workspace_kit import PASSPHRASE, Lab, write

from metasync.codec import u64
from metasync.config import CHANGED_TAG, MOVING_TAG, NO_LIMIT, Config, RedundancyClass, Replicate
from metasync.consensus import Change, State, proposer
from metasync.consensus.records.log_replay import ValueRules
from metasync.errors import MetaSyncError, WorkspaceError
from metasync.events import Notice
from metasync.keys.device_set import DeviceSet
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store.packs import seal_pack
from metasync.translators._base import Chain
from metasync.translators.compress import Compress
from metasync.translators.integrity import Integrity
from metasync.workspace import Workspace

SECRET = b"a secret that no store may see " * 40


@contextlib.contextmanager
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that takes any value for a good one, its own first of all."""

    def after(base: State, change: Change, *, skip: bytes, writer: bytes) -> State:
        names = ("master", "config", "index", "devices", "keyring", "epoch", "gen", "min_gen", "min_fmt")
        given = {name: value for name in names if (value := getattr(change, name)) is not None}
        return replace(base, v=base.v + 1, prev=base.hash, skip=skip, writer=writer, op_id=change.op_id, **given)

    def carried(self: ValueRules, value: State | None, own: dict[bytes, bytes]) -> tuple[Any, ...]:
        if value is None:
            return b"", b"", ()
        pairs = ((value.config, self.base.config), (value.devices, self.base.devices))
        config, devices = (b"" if new == old else own.get(new, b"") for new, old in pairs)
        return config, devices, self.steps

    with monkeypatch.context() as m:
        m.setattr(proposer, "successor", after)
        m.setattr(ValueRules, "fault", lambda *_: "")
        m.setattr(ValueRules, "carried", carried)
        yield


Attack = Callable[[Session, State], dict[str, Any]]
LIES_FOR_S = 3.0  # nobody takes it: until then it is proposed in round after round


def propose(monkeypatch: pytest.MonkeyPatch, insider: Workspace, attack: Attack) -> None:
    """The insider proposes what `attack` makes of the newest state, on all backends."""
    with insider._session("attack") as s:
        base = agreement.ask_newest(s)
        change = Change(os.urandom(16), **attack(s, base))
        with lying(monkeypatch), contextlib.suppress(MetaSyncError):
            s.runtime.run(s.group.propose(base, lambda: change, deadline_s=LIES_FOR_S))


def a_config(change: Callable[[Config], Config]) -> Attack:
    def attack(s: Session, base: State) -> dict[str, Any]:
        config = change(s.config_of(base)).tagged(CHANGED_TAG, (base.v + 1, base.config))
        return {"config": s.put_const(base, config.encode())}

    return attack


def a_set(change: Callable[[Session, DeviceSet], DeviceSet]) -> Attack:
    def attack(s: Session, base: State) -> dict[str, Any]:
        return {"devices": s.put_const(base, change(s, s.devices_of(base)).encode())}

    return attack


def unsigned(**changes: Any) -> Attack:
    """A device set whose policy was changed by one who does not have the admin key."""
    return a_set(lambda _, d: replace(d, policy_data=replace(d.policy, **changes).encode()))


def without_others(s: Session, devices: DeviceSet) -> DeviceSet:
    return replace(devices, certificates=tuple(c for c in devices.certificates if c.device_id == s.device.device_id))


def revoking_others(s: Session, devices: DeviceSet) -> DeviceSet:
    others = tuple(c.device_id for c in devices.certificates if c.device_id != s.device.device_id)
    policy = replace(devices.policy, revoked_ids=others)
    return replace(without_others(s, devices), policy_data=policy.encode())


def ending_others(s: Session, devices: DeviceSet) -> DeviceSet:
    others = tuple(c.device_id for c in devices.certificates if c.device_id != s.device.device_id)
    return replace(without_others(s, devices), ended_ids=others)


def one_copy(config: Config) -> Config:
    return replace(config, redundancy=(RedundancyClass(NO_LIMIT, Replicate(1)),))


def elsewhere(config: Config) -> Config:
    """All votes on acceptors that nobody has."""
    made_up = [replace(b, acceptor=replace(b.acceptor, acceptor_id=os.urandom(16))) for b in config.backends
               if b.acceptor is not None]  # fmt: skip
    return config.with_backends(made_up)


def forgetting(config: Config) -> Config:
    """Stores whose packs lie under ids that the config does not name any more."""
    return config.with_backends(
        [replace(b, storage=(replace(b.storage[0], storage_id=os.urandom(16)),)) for b in config.backends]
    )


def earlier(**changes: Any) -> Attack:
    """A config that says of others where packs lie that are to be moved: whoever moves them would look for these."""

    def attack(s: Session, base: State) -> dict[str, Any]:
        said = {"prev": base.config, "index": u64(base.index.generation) + base.index.hash, "before": base.config}
        said |= changes
        config = replace(s.config_of(base), prev_config=said["prev"])
        tags = {**dict(config.tags), MOVING_TAG: said["index"], CHANGED_TAG: u64(base.v + 1) + said["before"]}
        config = replace(config, tags=tuple(sorted(tags.items())))
        return {"config": s.put_const(base, config.encode())}

    return attack


ATTACKS: dict[str, Attack] = {
    "encryption-off": a_config(lambda c: replace(c, chains=(*c.chains, ("compress", "integrity")))),
    "encryption-off-alone": a_config(lambda c: replace(c, chains=(("compress", "integrity"),))),
    "encrypted-flag": a_config(lambda c: replace(c, encrypted=False)),
    "one-copy": a_config(one_copy),
    "other-acceptors": a_config(elsewhere),
    "forgotten-packs": a_config(forgetting),
    "moved-from-nowhere": earlier(prev=os.urandom(32)),
    "moved-by-an-index-that-is-nowhere": earlier(index=bytes(8) + os.urandom(32)),
    "moved-by-no-index": earlier(index=b"none"),
    "changed-after-another": earlier(before=os.urandom(32)),
    "no-slots": unsigned(slots=()),
    "encryption-off-in-the-policy": unsigned(chains=(("compress", "integrity"),)),
    "fewer-copies-in-the-policy": unsigned(copies=1),
    "others-revoked": a_set(revoking_others),
    "others-dropped": a_set(without_others),
    "others-ended": a_set(ending_others),
    "bogus-ring": lambda s, base: {"keyring": os.urandom(32)},
    "bogus-ring-next-epoch": lambda s, base: {"keyring": os.urandom(32), "epoch": base.epoch + 1},
    "last-epoch": lambda s, base: {"epoch": (1 << 32) - 1},
    "last-epoch-with-a-set": lambda s, base: {
        "epoch": (1 << 32) - 1,
        **a_set(lambda s, d: replace(d, tags=((9, b"x"),)))(s, base),
    },
    "min-fmt": lambda s, base: {"min_fmt": 2},
    "min-fmt-with-a-set": lambda s, base: {
        "min_fmt": 2,
        **a_set(lambda s, d: replace(d, tags=((9, b"x"),)))(s, base),
    },
    "far-generation": lambda s, base: {"gen": (1 << 64) - 1},
    "missing-config": lambda s, base: {"config": os.urandom(32)},
    "missing-devices": lambda s, base: {"devices": os.urandom(32)},
    "config-of-rubbish": lambda s, base: {"config": s.put_const(base, b"\1rubbish")},
    "newer-config": lambda s, base: {"config": s.put_const(base, b"\2" + s.config_of(base).encode()[1:])},
}


_NAMES = list(ATTACKS)
GROUPS = [tuple(_NAMES[at : at + 6]) for at in range(0, len(_NAMES), 6)]


@pytest.mark.few(1)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_what_one_device_proposes_against_the_policy_has_no_effect(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """The insider switches encryption off, takes copies, slots, votes or devices away, names what nobody has, or asks
    for keys and programs that do not exist. The other device goes on as before, and still revokes it."""
    urls = lab.urls("a", "b", "c")
    victim = lab.init(urls)
    insider = lab.clone(urls, device="insider")
    write(victim.directory, {"before": b"1"})
    victim.push()
    with victim._session("test") as s:
        config, before = s.config, s.newest_state()
    for name in names:
        propose(monkeypatch, insider, ATTACKS[name])
        victim, insider = lab.reopen(victim), lab.reopen(insider)
        write(victim.directory, {name: SECRET + os.urandom(16)})
        assert victim.push().version, name
        with victim._session("test") as s:
            newest, devices = s.newest_state(), s.devices_of(s.newest_state())
            assert s.config == config, name
            for field in ("config", "devices", "keyring", "epoch", "min_fmt", "gen"):
                assert getattr(newest, field) == getattr(before, field), name
            assert (len(devices.certificates), len(devices.slots)) == (2, 2), name
    stored = [p.read_bytes() for part in "abc" for p in lab.store(part).rglob("*") if p.is_file()]
    assert not [data for data in stored if b"no store" in data]
    victim.device_revoke(["insider"], PASSPHRASE)
    third = lab.clone(urls, device="third")
    assert (third.directory / names[0]).read_bytes().startswith(SECRET)
    assert {d.name for d in victim.device_list().devices if d.state == "admitted"} == {"laptop", "third"}


def test_who_proposed_what_counts_for_nobody_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The insider's proposal stands in the logs, signed: the next device says whose it is, and what to do."""
    urls = lab.urls("a", "b", "c")
    victim = lab.init(urls)
    insider = lab.clone(urls, device="insider")
    propose(monkeypatch, insider, ATTACKS["encryption-off"])
    told: list[str] = []
    victim.on_event = lambda event: told.append(event.text) if isinstance(event, Notice) else None
    write(victim.directory, {"x": b"1"})
    victim.push()
    assert [text for text in told if text.startswith("insider proposed a version 2") and "device revoke" in text]
    told.clear()
    write(victim.directory, {"x": b"2"})
    victim.push()
    assert not told


@pytest.mark.few(1)
@pytest.mark.parametrize("keys_too", [False, True])
def test_an_older_policy_is_not_taken_for_a_newer_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, keys_too: bool
) -> None:
    """After a device was revoked, another one names the device set of before, with the policy that the admin key had
    signed then: the revoked device would be back."""
    urls = lab.urls("a", "b", "c")
    victim = lab.init(urls)
    insider, thief = (lab.clone(urls, device=name) for name in ("insider", "thief"))
    victim.pull()
    with victim._session("test") as s:
        old = s.newest_state()
    victim.device_revoke(["thief"], PASSPHRASE)
    insider.pull()

    def again(s: Session, base: State) -> dict[str, Any]:
        keys = {"epoch": old.epoch, "keyring": old.keyring} if keys_too else {}
        return {"devices": s.put_const(base, s.devices_of(old).encode()), **keys}

    propose(monkeypatch, insider, again)
    victim = lab.reopen(victim)
    write(victim.directory, {"after": b"1"})
    victim.push()
    assert {d.name for d in victim.device_list().devices if d.state == "admitted"} == {"laptop", "insider"}
    thief.close()


def test_fewer_liars_are_not_allowed_for_without_the_passphrase(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four backends may lie, and the insider proposes majorities that trust them all."""
    urls = lab.urls("a", "b", "c", "d")
    victim = lab.init(urls)
    insider = lab.clone(urls, device="insider")
    propose(monkeypatch, insider, a_config(lambda c: replace(c, mode="crash", f=0)))
    write(victim.directory, {"x": b"1"})
    victim.push()
    with victim._session("test") as s:
        assert (s.config.mode, s.config.f) == ("bft", 1)


def test_what_admits_nobody_and_weakens_nothing_needs_no_passphrase(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What any device may do, by the program that it has: the rules are no wall against the others' work."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    w.backend_add(lab.url("d", role="storage"))
    w.device_rename("laptop", "tower")
    assert [d.name for d in w.device_list().devices] == ["tower"]
    assert "d" in [b.name for b in w.backends()]


def test_nothing_is_sealed_by_a_chain_that_encrypts_nothing() -> None:
    """Whatever was agreed, and however: in an encrypted workspace no pack is made in the clear."""
    chain = Chain([Compress(), Integrity()])
    with pytest.raises(WorkspaceError, match="compress, integrity, which encrypt nothing"):
        seal_pack([], pack_format(chains=(chain,)), bytes(32))
    assert seal_pack([], pack_format(chains=(chain,), encrypted=False), bytes(32)).data
