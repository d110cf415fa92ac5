"""What is sealed to devices: the construction against its published parts, its bounds, and what must be refused."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
from pathlib import Path

import pytest
from agreement_kit import ADMIN, ALICE, BOB, CHAIN, CONFIG, KEYS, NS_ID, drawn
from cryptography.hazmat.backends.openssl import backend as openssl
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from workspace_kit import Lab

from metasync.codec import Reader
from metasync.config import CONFIG_BYTES_MAX
from metasync.consensus.records.entry import OBJECTS_BYTES_MAX
from metasync.errors import FormatError, UpgradeError, UsageError, WorkspaceError
from metasync.keys import derive
from metasync.keys.derive import (
    HYBRID,
    PUBLIC_KEY_BYTES,
    SLOT_KEY,
    WRAPPED_BYTES,
    Recipient,
    RecordKind,
    device_recipient,
    open_sealed,
    read_recipient,
    seal_to,
    sealed_bytes,
    sealing_key,
    sha256,
    slot_recipient,
)
from metasync.keys.device_set import (
    CERTIFICATE_BYTES_MAX,
    DEVICE_ENTROPY_BYTES,
    DEVICE_NAME_BYTES_MAX,
    DEVICE_SET_BYTES_MAX,
    DEVICES_MAX,
    ENDED_MAX,
    Certificate,
    decode_certificate,
    decode_device_set,
    make_device_set,
    new_device,
    recertified,
)
from metasync.keys.keyring import RECIPIENTS_MAX, RING_BYTES_MAX, RING_ENTROPY_BYTES, make_ring, open_ring, read_ring
from metasync.keys.policy import POLICY_BYTES_MAX, REVOKED_MAX, SLOTS_MAX, make_policy

SEED = bytes.fromhex("7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26")
SHARED = bytes.fromhex("d2df0522128f09dd8e2c92b1e905c793d8f57a54c3da25861f10bf4ca613e384")
PUBLIC_SHA256 = "2e816deebcd76c5c80d0cd2d174478871658e8e2ff42bc9d4a6e486372e856bb"
CIPHERTEXT = bytes.fromhex(
    "b83aa828d4d62b9a83ceffe1d3d3bb1ef31264643c070c5798927e41fb07914a273f8f96e7826cd5375a283d7da885304c5de0516a0f0654"
    "243dc5b97f8bfeb831f68251219aabdd723bc6512041acbaef8af44265524942b902e68ffd23221cda70b1b55d776a92d1143ea3a0c475f6"
    "3ee6890157c7116dae3f62bf72f60acd2bb8cc31ce2ba0de364f52b8ed38c79d719715963a5dd3842d8e8b43ab704e4759b5327bf027c63c"
    "8fa857c4908d5a8a7b88ac7f2be394d93c3706ddd4e698cc6ce370101f4d0213254238b4a2e8821b6e414a1cf20f6c1244b699046f5a01ca"
    "a0a1a55516300b40d2048c77cc73afba79afeea9d2c0118bdf2adb8870dc328c5516cc45b1a2058141039e2c90a110a9e16b318dfb53bd49"
    "a126d6b73f215787517b8917cc01cabd107d06859854ee8b4f9861c226d3764c87339ab16c3667d2f49384e55456dd40414b70a6af841585"
    "f4c90c68725d57704ee8ee7ce6e2f9be582dbee985e038ffc346ebfb4e22158b6c84374a9ab4a44e1f91de5aac5197f89bc5e5442f51f9a5"
    "937b102ba3beaebf6e1c58380a4a5fedce4a4e5026f88f528f59ffd2db41752b3a3d90efabe463899b7d40870c530c8841e8712b733668ed"
    "033adbfafb2d49d37a44d4064e5863eb0af0a08d47b3cc888373bc05f7a33b841bc2587c57eb69554e8a3767b7506917b6b70498727f16ea"
    "c1a36ec8d8cfaf751549f2277db277e8a55a9a5106b23a0206b4721fa9b3048552c5bd5b594d6e247f38c18c591aea7f56249c72ce7b117a"
    "fcc3a8621582f9cf71787e183dee09367976e98409ad9217a497df888042384d7707a6b78f5f7fb8409e3b535175373461b776002d799cba"
    "d62860be70573ecbe13b246e0da7e93a52168e0fb6a9756b895ef7f0147a0dc81bfa644b088a9228160c0f9acf1379a2941cd28c06ebc80e"
    "44e17aa2f8177010afd78a97ce0868d1629ebb294c5151812c583daeb88685220f4da9118112e07041fcc24d5564a99fdbde28869fe07223"
    "87d7a9a4d16e1cc8555917e09944aa5ebaaaec2cf62693afad42a3f518fce67d273cc6c9fb5472b380e8573ec7de06a3ba2fd5f931d725b4"
    "93026cb0acbd3fe62d00e4c790d965d7a03a3c0b4222ba8c2a9a16e2ac658f572ae0e746eafc4feba023576f08942278a041fb82a70a595d"
    "5bacbf297ce2029898a71e5c3b0d1c6228b485b1ade509b35fbca7eca97b2132e7cb6bc465375146b7dceac969308ac0c2ac89e7863eb894"
    "3015b24314cafb9c7c0e85fe543d56658c213632599efabfc1ec49dd8c88547bb2cc40c9d38cbd3099b4547840560531d0188cd1e9c23a0e"
    "bee0a03d5577d66b1d2bcb4baaf21cc7fef1e03806ca96299df0dfbc56e1b2b43e4fc20c37f834c4af62127e7dae86c3c25a2f696ac8b589"
    "dec71d595bfbe94b5ed4bc07d800b330796fda89edb77be0294136139354eb8cd37591578f9c600dd9be8ec6219fdd507adf3397ed4d6870"
    "7b8d13b24ce4cd8fb22851bfe9d632407f31ed6f7cb1600de56f17576740ce2a32fc5145030145cfb97e63e0e41d354274a079d3e6fb2e15"
)
"""The first test vector of X-Wing (draft-connolly-cfrg-xwing-kem-08, appendix C); of its public key the SHA-256."""

PUBLIC, SECRET, SALT = sealing_key(ALICE.seal_private), drawn("secret"), drawn("salt")


# The construction, put together here once more from what is published.


def halves(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    """X-Wing, 5.2."""
    drawn_out = hashlib.shake_256(seed).digest(96)
    return MLKEM768PrivateKey.from_seed_bytes(drawn_out[:64]), X25519PrivateKey.from_private_bytes(drawn_out[64:])


def decapsulated(seed: bytes, ciphertext: bytes) -> bytes:
    """X-Wing, 5.3 and 5.5."""
    mlkem, x25519 = halves(seed)
    there = X25519PublicKey.from_public_bytes(ciphertext[1088:])
    shared = mlkem.decapsulate(ciphertext[:1088]) + x25519.exchange(there)
    mine = x25519.public_key().public_bytes_raw()
    return hashlib.sha3_256(shared + ciphertext[1088:] + mine + bytes.fromhex("5c2e2f2f5e5c")).digest()


def opened(seed: bytes, sealed: bytes, info: bytes) -> bytes:
    """RFC 9180, 5.1 and 5.2, base mode: KEM 0x647a, KDF 1, AEAD 2."""
    suite = b"HPKE" + bytes.fromhex("647a 0001 0002")

    def extract(salt: bytes, label: bytes, key: bytes) -> bytes:
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + key, "sha256")

    def expand(key: bytes, label: bytes, context: bytes, n: int) -> bytes:
        return hmac.digest(key, bytes([0, n]) + b"HPKE-v1" + suite + label + context + b"\1", "sha256")[:n]

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    secret = extract(decapsulated(seed, sealed[:1120]), b"secret", b"")
    key, nonce = expand(secret, b"key", context, 32), expand(secret, b"base_nonce", context, 12)
    return AESGCM(key).decrypt(nonce, sealed[1120:], b"")


def test_a_device_key_is_that_of_x_wing() -> None:
    assert sha256(sealing_key(SEED).key).hex() == PUBLIC_SHA256
    assert decapsulated(SEED, CIPHERTEXT) == SHARED


def test_what_is_sealed_is_hpke_with_x_wing() -> None:
    sealed = seal_to(PUBLIC, SECRET, "ring", SALT)
    assert opened(ALICE.seal_private, sealed, b"metasync ring\0" + SALT) == SECRET
    assert open_sealed(ALICE.seal_private, sealed, "ring", SALT) == SECRET
    assert (len(PUBLIC.key), len(sealed)) == (PUBLIC_KEY_BYTES[HYBRID], WRAPPED_BYTES[HYBRID]) == (1216, 1168)
    assert seal_to(PUBLIC, SECRET, "ring", SALT) != sealed, "each draws its own"


# What must be refused.


SEALED = seal_to(PUBLIC, SECRET, "ring", SALT)


@pytest.mark.parametrize("at", [0, 1087, 1088, 1119, 1120, 1167])
def test_an_altered_half_opens_nothing(at: int) -> None:
    """Either half alone decides: whoever breaks one of them has nothing yet."""
    bad = SEALED[:at] + bytes([SEALED[at] ^ 1]) + SEALED[at + 1 :]
    assert open_sealed(ALICE.seal_private, bad, "ring", SALT) is None


SMALL_ORDER = SEALED[:1088] + bytes(32) + SEALED[1120:]


@pytest.mark.parametrize("bad", [b"", SEALED[:1119], SEALED[:-1], SEALED + b"\0", SMALL_ORDER])
def test_what_has_another_length_or_a_key_of_small_order_opens_nothing(bad: bytes) -> None:
    assert open_sealed(ALICE.seal_private, bad, "ring", SALT) is None


def test_another_device_purpose_or_ring_opens_nothing() -> None:
    assert open_sealed(BOB.seal_private, SEALED, "ring", SALT) is None
    assert open_sealed(ALICE.seal_private, SEALED, "ring admin", SALT) is None
    assert open_sealed(ALICE.seal_private, SEALED, "ring", drawn("another salt")) is None


@pytest.mark.parametrize("x25519", [bytes(32), b"\1" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_nothing_is_sealed_to_an_x25519_key_of_small_order(x25519: bytes) -> None:
    with pytest.raises(FormatError, match="unusable"):
        seal_to(Recipient(HYBRID, PUBLIC.key[:1184] + x25519), SECRET, "ring", SALT)


@pytest.mark.parametrize("key", [b"\xff" * 1184 + PUBLIC.key[1184:], PUBLIC.key[:-1], PUBLIC.key + b"\0", b""])
def test_nothing_is_sealed_to_what_is_no_key(key: bytes) -> None:
    with pytest.raises(FormatError, match="unusable"):
        seal_to(Recipient(HYBRID, key), SECRET, "ring", SALT)


@pytest.mark.parametrize("kind", [1, SLOT_KEY, 4, 255])
def test_nothing_is_sealed_to_a_device_whose_key_is_of_another_kind(kind: int) -> None:
    """Neither to a weaker one nor to one that is not understood: no keyring is made without that device, either."""
    for size in (32, 1216):
        other = Recipient(kind, PUBLIC.key[:size])
        assert read_recipient(Reader(other.encode(), "x"), PUBLIC_KEY_BYTES) == other
        with pytest.raises(UpgradeError, match=f"of kind {kind}"):
            ring([PUBLIC, other])


def test_a_known_kind_has_its_length() -> None:
    for recipient, lengths in (
        (Recipient(HYBRID, bytes(32)), PUBLIC_KEY_BYTES),
        (Recipient(HYBRID, bytes(1217)), PUBLIC_KEY_BYTES),
        (Recipient(HYBRID, bytes(1216)), derive.RECIPIENT_ID_BYTES),
        (Recipient(SLOT_KEY, bytes(33)), derive.RECIPIENT_ID_BYTES),
        (Recipient(0, bytes(32)), PUBLIC_KEY_BYTES),
        (Recipient(9, bytes(2049)), PUBLIC_KEY_BYTES),
    ):
        with pytest.raises(FormatError):
            read_recipient(Reader(recipient.encode(), "x"), lengths)


# Rings and sets as large as they may be.


def ring(devices: list[Recipient], slots: int = 1) -> bytes:
    keys = [drawn(f"slot {i}") for i in range(slots)]
    return make_ring(
        KEYS,
        CHAIN,
        admin_private=ADMIN,
        signer_private=ADMIN,
        devices=devices,
        slots=keys,
        entropy=drawn("ring", RING_ENTROPY_BYTES),
    )


def test_a_keyring_names_devices_by_ids_that_give_no_key_away() -> None:
    data = ring([PUBLIC])
    assert [who for who, _ in read_ring(data).wraps] == [device_recipient(PUBLIC), slot_recipient(drawn("slot 0"))]
    assert device_recipient(PUBLIC) == Recipient(HYBRID, sha256(PUBLIC.key))
    for half in (PUBLIC.key[:1184], PUBLIC.key[1184:]):
        assert half not in data


def test_the_largest_keyring_fits_and_opens_for_the_last_device(monkeypatch: pytest.MonkeyPatch) -> None:
    real, last = seal_to, sealing_key(BOB.seal_private)
    once: dict[bool, bytes] = {}

    def sealed(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
        """Sealed once for the crowd: what counts is how long it is."""
        crowd = public != last
        once[crowd] = once.get(crowd) or real(PUBLIC if crowd else public, secret, label, salt)
        return once[crowd]

    monkeypatch.setattr("metasync.keys.keyring.seal_to", sealed)
    crowd = [Recipient(HYBRID, drawn(f"public {i}") * 38) for i in range(DEVICES_MAX - 1)]
    data = ring([*crowd, last], SLOTS_MAX)
    assert len(read_ring(data).wraps) == RECIPIENTS_MAX == DEVICES_MAX + SLOTS_MAX
    assert 1_200_000 < len(data) < RING_BYTES_MAX
    assert open_ring(data, BOB.seal_private, NS_ID) == KEYS
    with pytest.raises(ValueError, match="too many"):
        ring([*crowd, PUBLIC, last], SLOTS_MAX)


def certificates(n: int) -> list[Certificate]:
    """Of `n` devices with the longest names."""
    bare = [
        Certificate(NS_ID, drawn(f"id {i}", 16), "n" * DEVICE_NAME_BYTES_MAX, drawn(f"key {i}"), PUBLIC, b"")
        for i in range(n)
    ]
    return [recertified(c, ADMIN) for c in bare]


def test_the_fullest_device_set_fits_where_it_has_to() -> None:
    """Into an object, into an entry with the largest config, into an invitation; and one device more is refused."""
    policy = make_policy(CHAIN, CONFIG, admin_private=ADMIN, keyring=drawn("ring"), slots=())
    ended = [drawn(f"ended {i}") for i in range(ENDED_MAX)]
    every = certificates(DEVICES_MAX + 1)
    devices = make_device_set(policy, every[1:], [e[:16] for e in ended], ended)
    data = devices.encode()
    assert decode_device_set(data, NS_ID, known=True) == devices
    with pytest.raises(UsageError, match="1024 devices") as told:
        devices.with_device(every[0])
    assert "device revoke" in told.value.next_step
    with pytest.raises(FormatError, match="1025 items"):
        decode_device_set(make_device_set(policy, every).encode(), NS_ID)
    tags = 3 * (2 + 2 + 0xFFFF)
    most = DEVICES_MAX * (2 + CERTIFICATE_BYTES_MAX) + POLICY_BYTES_MAX + ENDED_MAX * 48 + tags + 64
    assert len(data) < most <= DEVICE_SET_BYTES_MAX
    sealed = sum(sealed_bytes(RecordKind.CONST, n) for n in (DEVICE_SET_BYTES_MAX, CONFIG_BYTES_MAX))
    assert sealed <= OBJECTS_BYTES_MAX
    assert REVOKED_MAX >= DEVICES_MAX, "all of them can be revoked"


def test_the_longest_certificate_fits() -> None:
    device = new_device("n" * DEVICE_NAME_BYTES_MAX, drawn("device", DEVICE_ENTROPY_BYTES))
    data = device.certified(ADMIN, NS_ID).encode()
    assert len(data) == 1 + 32 + 16 + 2 + 255 + 32 + 3 + 1216 + 1 + 64
    assert decode_certificate(data).sealing == sealing_key(device.seal_private)
    with pytest.raises(FormatError, match="of 2049 bytes"):
        decode_certificate(bytes(CERTIFICATE_BYTES_MAX + 1))


# Where there is no ML-KEM, and where none is needed.


def test_a_machine_without_ml_kem_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "mlkem_supported", lambda: False)
    for attempt in (lambda: sealing_key(SEED), lambda: seal_to(PUBLIC, SECRET, "ring", SALT),
                    lambda: open_sealed(SEED, SEALED, "ring", SALT)):  # fmt: skip
        with pytest.raises(WorkspaceError, match="no ML-KEM-768") as told:
            attempt()
        assert "OpenSSL 3.5" in told.value.next_step


def test_init_without_ml_kem_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "mlkem_supported", lambda: False)
    with pytest.raises(WorkspaceError, match="no ML-KEM-768"):
        lab.init(lab.urls("a"))
    assert not [p for p in lab.store("a").rglob("*") if p.is_file()]


def test_reading_devices_loads_no_ml_kem() -> None:
    """A device set is read by every command; keys are opened when there are new ones."""
    code = """
import sys
import metasync.workspace
from metasync.keys import device_set, keyring
device_set.decode_certificate(bytes.fromhex(sys.argv[1]))
keyring.read_ring(sys.stdin.buffer.read())
print([m for m in sys.modules if m.endswith(("mlkem", "hpke", "x25519"))])
"""
    certificate = ALICE.certified(ADMIN, NS_ID).encode().hex()
    root = Path(__file__).parents[2]
    told = [sys.executable, "-c", code, certificate]
    done = subprocess.run(told, input=ring([PUBLIC]), cwd=root, capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
