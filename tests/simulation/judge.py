"""Which values a version may have, by the simulator's own rules (format-agreement.md, 8.1), not the product's.

Objects are decoded, and signatures checked, by the product's decoders; what they may say is judged here.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from metasync.config import Config, decode_config
from metasync.consensus.objects import open_object, seal_object
from metasync.consensus.records.entry import Entry, root_in
from metasync.consensus.records.state import NOTHING, State
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import RecordKind, sha256
from metasync.keys.device_set import UNUSED, DeviceSet, decode_device_set, invitations
from metasync.keys.keyring import WorkspaceKeys


def way_back(chain: Sequence[State], v: int) -> list[State]:
    """From state v - 1 to the state that state v names as its `skip`: the states between, then that one."""
    out = [chain[v - 1]]
    while out[-1].v > v & (v - 1):
        out.append(chain[v - 2] if len(out) == 1 else chain[out[-1].v & (out[-1].v - 1)])
    return out[1:] or out


def fault_of(keys: WorkspaceKeys, chain: Sequence[State], config: Config, devices: DeviceSet, entry: Entry) -> str:
    """Why the value of an entry may not follow its base, which names this config and these devices; "" if it may.

    `chain`: the decided states up to the base, and more.
    """
    value, base = entry.value, chain[entry.v - 1]
    assert value is not None
    same_place = (value.v, value.prev, value.ns_id, value.era) == (base.v + 1, base.hash, base.ns_id, base.era)
    if not same_place or value.writer == bytes(16):
        return "it does not follow its base"
    *steps, last = way_back(chain, entry.v)
    if value.skip != last.hash or entry.steps != tuple(s.encode() for s in steps):
        return "its skip is another state, or is not proven"
    numbers = (value.epoch - base.epoch in (0, 1), value.gen - base.gen in (0, 1), base.min_gen <= value.min_gen)
    if not all(numbers) or value.min_gen > value.gen or value.min_fmt < base.min_fmt:
        return "its numbers do not follow those of its base"
    if value.index_rides and not _rides(keys, base, value, entry):
        return "its index does not ride"
    try:
        if value.devices == base.devices:
            new_devices = devices
        else:
            new_devices = decode_device_set(_carried(keys, base, value.devices, entry.devices), base.ns_id)
        if value.config == base.config:
            new_config = config
        else:
            new_config = decode_config(_carried(keys, base, value.config, entry.config))
    except (FormatError, UpgradeError) as e:
        return f"an object that it names: {e.message}"
    policy = new_devices.policy
    if (value.epoch, value.keyring, value.min_fmt) != (policy.epoch, policy.keyring, policy.min_fmt):
        return "its keys are not those of the policy"
    return (
        (_fault_of_devices(devices, new_devices, value) if new_devices is not devices else "")
        or (_fault_of_config(config, new_config, value, base) if new_config is not config else "")
        or _fault_by_policy(new_config, new_devices)
    )


def _rides(keys: WorkspaceKeys, base: State, value: State, entry: Entry) -> bool:
    """Whether an index may ride, and the entry carries its root."""
    if value.v % 16 == 0 or value.v.bit_count() == 1 or (value.config, value.devices) != (base.config, base.devices):
        return False
    riding = root_in(entry)
    random, root, era = riding[:32], riding[32:], base.era
    named = seal_object(keys, RecordKind.META, root, era=era, epoch=base.epoch, random=random.ljust(32))[0]
    return named == value.index.hash != base.index.hash and base.index != NOTHING and len(root) <= 1536


def _carried(keys: WorkspaceKeys, base: State, digest: bytes, data: bytes) -> bytes:
    if sha256(data) != digest or int.from_bytes(data[6:10], "big") != base.epoch:
        raise FormatError("it is not carried, or not of the base's epoch")
    return open_object(keys, RecordKind.CONST, data)


def _fault_of_config(old: Config, new: Config, value: State, base: State) -> str:
    old_ids, new_ids = ({a.acceptor_id for _, a in c.acceptors} for c in (old, new))
    if len(old_ids & new_ids) < (old.n + old.f) // 2 + 1:
        return "too few of those who vote would stay"
    if new.changed != (value.v, base.config):
        return "its config was made for another version, or after another config"
    if new.prev_config is not None:
        moves = (old.prev_config or base.config, old.moving or base.index)
        if new.prev_config != moves[0] or new.moving not in (moves[1], base.index):
            return "its config says of others that packs lie by them"
    for before in old.backends:
        after = new.backend(before.backend_id)
        if after is not None and (
            after.identity != before.identity or after.storage[: len(before.storage)] != before.storage
        ):
            return "a backend would be another one, or what it holds forgotten"
    return ""


def _fault_of_devices(old: DeviceSet, new: DeviceSet, value: State) -> str:
    if new.chain.keys[: len(old.chain.keys)] != old.chain.keys:
        return "other admin keys"
    if new.policy_data != old.policy_data and (new.policy.era, new.policy.version) != (value.era, value.v):
        return "a policy for another version"
    for certificate in old.certificates:
        kept = new.get(certificate.device_id)
        if kept is None and certificate.device_id not in new.revoked_ids:
            return "a device is gone that was not revoked"
        if kept is not None and kept.sign_public != certificate.sign_public:
            return "a device with other keys"
    ended = set(old.ended_ids) - set(new.ended_ids)
    return "an invitation that had ended" if ended and new.policy.epoch == old.policy.epoch else ""


def misuse_of(
    keys: WorkspaceKeys, devices: DeviceSet, entry: Entry, invited: Mapping[bytes, bytes], left: Container[bytes]
) -> str:
    """What a device that keeps the rules does not propose: one joins by an invitation once, while that is open.

    `invited`: the invitation of each device that ever had one. No rule of 8.1: an admin certified that device.
    `left`: devices that had joined in an era that ended, perhaps in versions that the next one left behind: these come
    back by their certificates, whatever became of the invitation.
    """
    value = entry.value
    if value is None or not entry.devices or sha256(entry.devices) != value.devices:
        return ""
    base = entry.base
    new = decode_device_set(_carried(keys, base, value.devices, entry.devices), base.ns_id)
    then, now = ({i.invitation_id: i for i in invitations(d)} for d in (devices, new))
    for certificate in new.certificates:
        invitation_id = invited.get(certificate.device_id)
        if invitation_id is None or devices.get(certificate.device_id) is not None:
            continue
        before, after = then.get(invitation_id), now.get(invitation_id)
        comes_back = certificate.device_id in left
        if not comes_back and (before is None or not before.is_open(base.v)):
            return "a device joins by an invitation that is not open"
        if (after is None and not comes_back) or (after is not None and after.used == UNUSED):
            return "a device joins, and its invitation stays open"
    if value.epoch != base.epoch:
        return "invitations outlive the keys" if now else ""
    reused = [
        i for i in then.values() if i.used != UNUSED and getattr(now.get(i.invitation_id), "used", None) != i.used
    ]
    return "an invitation that was used is so no more" if reused else ""


def _fault_by_policy(config: Config, devices: DeviceSet) -> str:
    policy = devices.policy
    named = {(a.acceptor_id, a.birth) for _, a in config.acceptors} & set(policy.acceptors)
    kept = (
        config.encrypted == policy.encrypted,
        config.chains == policy.chains,
        all(c.policy.copies >= policy.copies for c in config.redundancy),
        config.f >= policy.f,
        len(named) >= (config.n + config.f) // 2 + 1,
    )
    return "" if all(kept) else "a config that the policy forbids"
