"""Golden vectors of keys and devices: slots, keyrings, chains, policies, device sets, their notes and invitations."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any
from unittest import mock

from agreement_case import FORMAT, OK, PASSPHRASE, UPGRADE, Case, Cases, case, cut, sealed_once
from agreement_kit import ADMIN, ALICE, BOB, CAROL, CHAIN, DEVICES, KEYS, MALLORY, NS_ID, POLICY, X, drawn
from agreement_states import a_config

from metasync.codec import bytes16, encode_tags, u8, u16, u32, u64
from metasync.consensus.participant import encode_memory
from metasync.keys import keyring
from metasync.keys.derive import sealing_key, sha256, sign, sign_public
from metasync.keys.device_set import (
    DeviceSet,
    Invitation,
    OpenLogins,
    make_device_set,
    recertified,
    with_invitations,
    with_logins,
)
from metasync.keys.invitation import Code, Invite, Way, seal_invite
from metasync.keys.keyring import make_ring, open_keys
from metasync.keys.policy import Skip, encode_skips
from metasync.keys.slots import Cost, make_slot

CHEAP = Cost(memory_kib=64, iterations=1, lanes=1, for_tests=True)


def made_ring(*args: Any, **more: Any) -> bytes:
    with mock.patch.object(keyring, "seal_to", sealed_once):
        return make_ring(*args, **more)


def a_note() -> tuple[OpenLogins, Invitation]:
    logins = OpenLogins(MALLORY.device_id, MALLORY.name, (("a", "file"), ("b", "s3")))
    carol = CAROL.certified(ADMIN, NS_ID)
    return logins, Invitation(drawn("invitation", 16), CAROL.device_id, carol.sign_public, CAROL.name, 1000)


def device_notes() -> Cases:
    def one(about: str, devices: DeviceSet, *, logins: Any = (), invitations: Any = ()) -> Case:
        told = {"logins": logins, "invitations": invitations}
        return case("notes", about, devices.encode(), ns_id=NS_ID, value=told)

    logins, invited = a_note()
    both = with_invitations(with_logins(DEVICES, [logins]), [invited])
    yield "notes", one("logins to withdraw, an open invitation", both, logins=[logins], invitations=[invited])
    used = replace(invited, expires=0, used=sha256(drawn("user")))
    yield "notes-used", one("an invitation that was used", with_invitations(DEVICES, [used]), invitations=[used])
    for at, what in ((1, "logins"), (2, "invitations")):
        short = replace(both, tags=tuple((tag, data[:-1] if tag == at else data) for tag, data in both.tags))
        other = {"invitations": [invited]} if at == 1 else {"logins": [logins]}
        yield f"notes-bad-{what}-short", one(f"{what} that do not decode are none, and the set stands", short, **other)


def invitation_codes() -> Cases:
    def one(about: str, text: str, expect: str = OK, **more: Any) -> Case:
        return case("code", about, text.encode(), expect, **more)

    def coded(body: bytes) -> str:
        data = base64.urlsafe_b64encode(body + sha256(body)[:4]).decode().rstrip("=")
        return f"metasync-invitation-{data}"

    ways = (Way("a", "file:///mnt/a", drawn("folder", 16).hex()), Way("b", "s3://bucket/docs?region=x", "0" * 32))
    code = Code(drawn("invitation", 16), drawn("secret"), ways)
    good = code.encode()
    prefix = u8(1) + code.invitation_id + code.secret
    yield "code", one("two ways", good, value=code)
    yield "code-spaces", one("broken into lines", f" {good[:40]}\n  {good[40:]}\n", value=code)
    yield "code-no-ways", one("no ways", coded(prefix + u8(0)), value=replace(code, ways=()))
    yield "code-bad-short", one("a character is missing", good[:-9], FORMAT)
    yield (
        "code-bad-character",
        one("a character is another", good[:50] + ("A" if good[50] != "A" else "B") + good[51:], FORMAT),
    )
    yield "code-bad-prefix", one("something else", good.removeprefix("metasync-"), FORMAT)
    yield "code-bad-newer", one("format 2", coded(u8(2) + prefix[1:] + u8(0)), UPGRADE)
    yield "code-bad-count", one("fewer ways than it says", coded(prefix + u8(1)), FORMAT)
    yield "code-bad-long", one("a byte too many", coded(prefix + u8(0) + b"\0"), FORMAT)


def invites() -> Cases:
    invitation_id, secret = drawn("invitation", 16), drawn("secret")

    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("invite", about, data, expect, **{"invitation": invitation_id, "secret": secret, **more})

    invite = Invite(
        ns_id=NS_ID,
        name="photos",
        state=X.encode(),
        config=a_config().encode(),
        devices=DEVICES.encode(),
        identity=CAROL.encode(),
        certificate=CAROL.certified(ADMIN, NS_ID).encode(),
        keys=KEYS.encode(),
        memory=encode_memory(()),
    )
    good = seal_invite(invite, invitation_id, secret, drawn("invite"), epoch=1)
    yield "invite", one("all that a device begins with", good, value=invite)
    yield "invite-bad-secret", one("another secret", good, FORMAT, secret=drawn("other"))
    yield "invite-bad-other", one("another invitation's", good, FORMAT, invitation=drawn("other", 16))
    yield "invite-bad-bit", one("altered", cut(good, 60, bytes([good[60] ^ 4])), FORMAT)
    yield "invite-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "invite-bad-short", one("cut", good[:-1024], FORMAT)


def slots() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, passphrase: str = "correct horse", **more: Any) -> Case:
        return case("slot", about, data, expect, passphrase=passphrase, **more)

    good, secret = make_slot(1, "correct horse", ns_id=NS_ID, name="photos", entropy=drawn("slot", 96), cost=CHEAP)
    opened = {"kind": 1, "key_id": secret.key_id, "ns_id": NS_ID, "name": "photos", "key": secret.key}
    yield "slot", one("a passphrase's", good, value=opened)
    words = "abandon " * 11 + "about"
    phrase, found = make_slot(2, words, ns_id=NS_ID, name="photos", entropy=drawn("recovery", 96), cost=CHEAP)
    recovered = {"kind": 2, "key_id": found.key_id, "ns_id": NS_ID, "name": "photos", "key": found.key}
    yield "slot-recovery", one("a recovery phrase's", phrase, passphrase=words, value=recovered)
    yield "slot-bad-passphrase", one("a wrong passphrase", good, PASSPHRASE, passphrase="wrong horse")
    yield "slot-bad-empty-passphrase", one("no passphrase", good, PASSPHRASE, passphrase="")
    yield "slot-bad-words", one("a misread recovery phrase", phrase, PASSPHRASE, passphrase="abandon " * 12)
    yield "slot-bad-memory", one("a terabyte of memory", cut(good, 34, u32(1 << 30)), FORMAT)
    yield "slot-bad-iterations", one("17 iterations", cut(good, 38, u32(17)), FORMAT)
    yield "slot-bad-lanes", one("17 lanes", cut(good, 42, u32(17)), FORMAT)
    tagged = make_slot(
        1, "correct horse", ns_id=NS_ID, name="photos", entropy=drawn("slot", 96), cost=CHEAP, tags=((7, b"later"),)
    )
    yield "slot-tags", one("with tags of a later version inside", tagged[0], value=opened)
    yield "slot-bad-key-id", one("the id of another key", cut(good, 49, drawn("other")), PASSPHRASE)
    yield "slot-bad-key-kind", one("a key of a later kind", cut(good, 46, b"\4"), UPGRADE)
    yield "slot-bad-key-length", one("an id of 31 bytes", good[:46] + b"\3\0\37" + good[50:], FORMAT)
    yield "slot-bad-kind", one("a later kind", cut(good, 1, b"\3"), UPGRADE)
    yield "slot-bad-kind-0", one("kind 0", cut(good, 1, b"\0"), FORMAT)
    yield "slot-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "slot-bad-long", one("a byte too many", good + b"\0", FORMAT)


def sealings() -> Cases:
    secret, salt = drawn("ring secret"), drawn("salt")

    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        shown = {"private": ALICE.seal_private, "label": "ring", "salt": salt, "value": secret, **more}
        return case("sealed", about, data, expect, **shown)

    public = sealing_key(ALICE.seal_private)
    good = sealed_once(public, secret, "ring", salt)
    yield "sealed", one("32 bytes for a device; `public` is its key", good, public=public.key)
    yield "sealed-bad-device", one("for somebody else", good, FORMAT, private=BOB.seal_private)
    yield "sealed-bad-label", one("for another purpose", good, FORMAT, label="ring admin")
    yield "sealed-bad-salt", one("of another keyring", good, FORMAT, salt=drawn("other"))
    yield "sealed-bad-lattice", one("a bit of the ML-KEM half", cut(good, 500, bytes([good[500] ^ 1])), FORMAT)
    yield "sealed-bad-curve", one("a bit of the X25519 half", cut(good, 1100, bytes([good[1100] ^ 1])), FORMAT)
    yield "sealed-bad-zero", one("an X25519 key of small order", cut(good, 1088, bytes(32)), FORMAT)
    yield "sealed-bad-tag", one("altered", cut(good, len(good) - 1, bytes([good[-1] ^ 1])), FORMAT)
    yield "sealed-bad-short", one("cut", good[:-1], FORMAT)
    yield "sealed-bad-long", one("a byte too many", good + b"\0", FORMAT)
    yield "sealed-bad-empty", one("no bytes", b"", FORMAT)


def rings() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case(
            "ring", about, data, expect, **{"private": ALICE.seal_private, "recipient": 2, "ns_id": NS_ID, **more}
        )

    def signed(ring: bytes) -> bytes:
        return ring + sign(ADMIN, "keyring 1", ring)

    parts: dict[str, Any] = {"devices": [sealing_key(ALICE.seal_private)], "slots": [drawn("slot key")]}
    good = made_ring(KEYS, CHAIN, admin_private=ADMIN, signer_private=ADMIN, entropy=drawn("ring", 96), **parts)
    by_slot = {"private": drawn("slot key"), "recipient": 3, "keys": KEYS.encode(), "admin": ADMIN}
    yield "ring", one("the first", good, keys=KEYS.encode())
    yield "ring-slot", one("the first, by a slot", good, **by_slot)
    at = len(good) - 64 - 1
    yield "ring-tags", one("with tags of a later version", signed(good[:at] + encode_tags(((7, b"later"),))), **by_slot)
    listed = 2 + len(CHAIN.encode()) + 32
    head, body = good[:listed], good[listed:-64]
    one_device, one_slot = 1 + 2 + 32 + 2 + 1168, 1 + 2 + 32 + 2 + 48
    device, slot, rest = body[2:][:one_device], body[2 + one_device :][:one_slot], body[2 + one_device + one_slot :]

    def listing(*recipients: bytes) -> bytes:
        return signed(head + u16(len(recipients)) + b"".join(recipients) + rest)

    later = u8(4) + bytes16(drawn("later", 32) * 38) + bytes16(drawn("wrapped", 32) * 35)
    x25519 = u8(1) + bytes16(drawn("x25519")) + bytes16(drawn("wrapped", 48))
    yield "ring-later-recipient", one("a recipient of a later kind", listing(device, slot, later), **by_slot)
    yield "ring-x25519", one("a recipient of kind 1, which nobody is", listing(x25519, device, slot), **by_slot)
    yield "ring-bad-kind-0", one("a recipient of kind 0", listing(u8(0) + x25519[1:], device, slot), FORMAT)
    yield "ring-bad-order", one("recipients descend", listing(slot, device), FORMAT)
    yield "ring-bad-twice", one("a recipient twice", listing(device, device, slot), FORMAT)
    yield "ring-bad-id", one("a device's id of 31 bytes", listing(u8(2) + u16(31) + device[4:], slot), FORMAT)
    short = device[:35] + u16(1167) + device[37:-1]
    yield "ring-bad-wrapped", one("1,167 bytes wrapped to a device", listing(short, slot), FORMAT)
    bobs = sealed_once(sealing_key(BOB.seal_private), drawn("ring", 96)[32:64], "ring", drawn("ring", 96)[:32])
    swapped = listing(device[:37] + bobs, slot)
    yield "ring-bad-swapped", one("what is sealed to Bob under Alice's id", swapped, PASSPHRASE)
    second = drawn("second admin")
    chain = CHAIN.extended(ADMIN, sign_public(second))
    keys = replace(KEYS, epoch_keys=(*KEYS.epoch_keys, (2, drawn("epoch 2"))))
    next_one = made_ring(keys, chain, admin_private=second, signer_private=ADMIN, entropy=drawn("ring 2", 96), **parts)
    yield "ring-second", one("of the second epoch", next_one, keys=keys.encode())
    bare = open_keys(NS_ID, 1)
    plain_ring = made_ring(bare, CHAIN, admin_private=ADMIN, signer_private=ADMIN, entropy=drawn("ring", 96), **parts)
    yield "ring-open", one("without encryption", plain_ring, private=None, keys=bare.encode())
    yield "ring-bad-recipient", one("for somebody else", good, PASSPHRASE, private=BOB.seal_private)
    yield "ring-bad-workspace", one("of another workspace", good, FORMAT, ns_id=bytes(32))
    yield "ring-bad-signature", one("altered signature", cut(good, len(good) - 1, bytes([good[-1] ^ 1])), FORMAT)
    yield "ring-bad-flag", one("the encryption flag cleared", cut(good, 1, b"\0"), FORMAT)
    yield "ring-bad-chain", one("an uncertified admin key", cut(next_one, 70, drawn("x", 4)), FORMAT)
    yield "ring-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "ring-bad-long", one("a byte too many", good + b"\0", FORMAT)
    yield "ring-bad-short", one("cut", good[:-65], FORMAT)


def admin_chains() -> Cases:
    """The chain of a workspace whose keys were rotated twice, alone: section 5."""

    def one(about: str, data: bytes, expect: str = FORMAT) -> Case:
        return case("chain", about, data, expect, ns_id=NS_ID)

    def link(private: bytes, ns_id: bytes, i: int, public: bytes) -> bytes:
        return public + sign(private, "admin key 1", ns_id + u32(i) + public)

    second, third = drawn("second admin"), drawn("third admin")
    chain = CHAIN.extended(ADMIN, sign_public(second)).extended(second, sign_public(third))
    keys = [sign_public(key) for key in (ADMIN, second, third)]
    first, good = u16(3) + keys[0], [link(ADMIN, NS_ID, 2, keys[1]), link(second, NS_ID, 3, keys[2])]
    whole = first + good[0] + good[1]
    assert chain.encode() == whole
    value = {"keys": keys, "ns_id": NS_ID, "epoch": 3}
    yield "chain", case("chain", "three keys: two rotations", whole, ns_id=NS_ID, value=value)
    by_first = good[0] + link(ADMIN, NS_ID, 3, keys[2])
    yield "chain-bad-signer", one("the third key certified by the first one", first + by_first)
    by_itself = good[0] + link(third, NS_ID, 3, keys[2])
    yield "chain-bad-own-signature", one("the third key certified by itself", first + by_itself)
    again = good[0] + link(second, NS_ID, 2, keys[2])
    yield "chain-bad-number", one("the third key certified as the second one", first + again)
    elsewhere = good[0] + link(second, sha256(keys[1]), 3, keys[2])
    yield "chain-bad-workspace", one("the third key certified for another workspace", first + elsewhere)
    yield "chain-bad-order", one("the links in reverse", first + good[1] + good[0])
    yield "chain-bad-key", one("another third key than was certified", cut(whole, 2 + 32 + 96, drawn("x", 32)))
    yield "chain-bad-none", one("no keys", u16(0) + whole[2:])
    yield "chain-bad-count", one("1,025 keys", u16(1025) + whole[2:])
    yield "chain-bad-short", one("cut", whole[:-1])


def policies() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("policy", about, data, expect, **{"ns_id": NS_ID, "admin": CHAIN.admin, **more})

    def altered(about: str, **changes: Any) -> Case:
        return one(about, replace(POLICY, **changes).encode(), FORMAT)

    good = POLICY.encode()
    yield "policy", one("of version 0: two copies, one slot, one device revoked", good, value=POLICY)
    second = drawn("second admin")
    chain = CHAIN.extended(ADMIN, sign_public(second))
    later = POLICY.signed(second, chain=chain, version=7, keyring=drawn("ring 2"), f=1, tags=((9, b"later"),))
    yield "policy-second", one("of the second epoch, with a tag", later.encode(), value=later, admin=chain.admin)
    skips = (Skip(9, 5, drawn("tree"), drawn("snapshot")), Skip(20, 0, drawn("empty tree"), bytes(32)))

    def skipping(about: str, tag: bytes) -> Case:
        return one(about, POLICY.signed(ADMIN, tags=((1, tag),)).encode(), FORMAT)

    said = encode_skips(skips)
    passed = POLICY.signed(ADMIN, tags=((1, said),))
    yield "policy-skips", one("6 to 8 were passed over, and 1 to 19 since", passed.encode(), value=passed)
    for name, about, tag in (
        ("nothing", "a tag of no bytes", b""),
        ("65", "65 skips", u8(65) + b"".join(u64(n) + u64(n - 2) + bytes(64) for n in range(2, 67))),
        ("order", "the newest skip first", u8(2) + said[81:] + said[1:81]),
        ("twice", "a skip two times", u8(2) + said[1:81] * 2),
        ("long", "a byte behind the last skip", said + b"\0"),
        ("short", "a skip that is cut", said[:-1]),
    ):
        yield f"policy-bad-skips-{name}", skipping(about, tag)
    yield "policy-bad-skips-unsigned", altered("skips that the admin key did not sign", tags=passed.tags)
    bare = replace(passed, tags=()).encode()
    yield "policy-bad-skips-left-out", one("without the skips that were signed", bare, FORMAT)
    yield "policy-bad-copies", altered("fewer copies than were signed", copies=1)
    yield "policy-bad-f", altered("another f than was signed", f=1)
    yield "policy-bad-chains", altered("other steps than were signed", chains=(("compress", "integrity"),))
    yield "policy-bad-encrypted", altered("encryption switched off", encrypted=False)
    yield "policy-bad-min-fmt", altered("another oldest format than was signed", min_fmt=2)
    yield "policy-bad-keyring", altered("another ring than was signed", keyring=drawn("bogus"))
    yield "policy-bad-version", altered("another sequence number than was signed", version=7)
    yield "policy-bad-acceptors", altered("a vote fewer than was signed", acceptors=POLICY.acceptors[1:])
    yield "policy-bad-slots", altered("without the slot that was signed", slots=())
    yield "policy-bad-revoked", altered("without the revocation that was signed", revoked_ids=())
    old = replace(later, signature=sign(ADMIN, "policy 1", later.encode()[:-64]))
    yield "policy-bad-signer", one("signed by the admin key of the epoch before", old.encode(), FORMAT)
    none = POLICY.signed(ADMIN, copies=0)
    yield "policy-bad-no-copies", one("no copies", none.encode(), FORMAT)
    flag = 1 + len(CHAIN.encode()) + 4 + 8 + 1 + 32
    yield "policy-bad-flag", one("an encrypted flag of 2", cut(good, flag, b"\2"), FORMAT)
    yield "policy-bad-count", one("65535 chains", cut(good, flag + 1, b"\xff\xff"), FORMAT)
    slot = POLICY.signed(ADMIN, slots=((9, bytes(32)),))
    yield "policy-bad-slot", one("a slot of unknown kind", slot.encode(), UPGRADE)
    yield "policy-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "policy-bad-short", one("cut", good[:-1], FORMAT)
    yield "policy-bad-long", one("a byte too many", good + b"\0", FORMAT)


def device_sets() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("devices", about, data, expect, **{"ns_id": NS_ID, **more})

    alice, bob = (d.certified(ADMIN, NS_ID) for d in (ALICE, BOB))
    yield "devices", one("two devices, one revoked", DEVICES.encode(), value=DEVICES)
    yield "devices-bad-workspace", one("of another workspace", DEVICES.encode(), FORMAT, ns_id=bytes(32))
    reverse = replace(DEVICES, certificates=DEVICES.certificates[::-1])
    yield "devices-bad-order", one("certificates descend", reverse.encode(), FORMAT)
    renamed = make_device_set(POLICY, [replace(alice, name="renamed"), bob])
    yield "devices-bad-certificate", one("an altered certificate", renamed.encode(), FORMAT)
    forger = make_device_set(POLICY, [recertified(alice, drawn("forger"))])
    yield "devices-bad-admin", one("certified by somebody else", forger.encode(), FORMAT)
    both = make_device_set(POLICY.signed(ADMIN, revoked_ids=(ALICE.device_id,)), [alice])
    yield "devices-bad-revoked-id", one("a device that is revoked too", both.encode(), FORMAT)
    key = make_device_set(POLICY.signed(ADMIN, revoked_keys=(alice.sign_public,)), [alice])
    yield "devices-bad-revoked-key", one("a key that is revoked too", key.encode(), FORMAT)
    ended = make_device_set(POLICY, [alice], [ALICE.device_id])
    yield "devices-bad-ended", one("a device whose invitation has ended", ended.encode(), FORMAT)
    unsigned = replace(DEVICES, policy_data=replace(POLICY, copies=1).encode())
    yield "devices-bad-policy", one("a policy that was changed after it was signed", unsigned.encode(), FORMAT)
    at = 1 + 4 + len(POLICY.encode())
    yield "devices-bad-count", one("65535 certificates", cut(DEVICES.encode(), at, b"\xff\xff"), FORMAT)
    yield "devices-bad-newer", one("format 2", cut(DEVICES.encode(), 0, b"\2"), UPGRADE)
    yield "devices-bad-long", one("a byte too many", DEVICES.encode() + b"\0", FORMAT)
