"""Who copies keyrings, breaks one half of the hybrid, or has a weaker key certified, opens nothing by it.

Keyrings lie on every backend for ever, so that what is sealed to devices today has to hold for decades.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from workspace_kit import PASSPHRASE, Lab, write

from metasync.errors import ExcludedError, UpgradeError
from metasync.keys import device_set, keyring
from metasync.keys.derive import HYBRID, Recipient, device_recipient, seal_to, sealing_key
from metasync.keys.keyring import read_ring
from metasync.keys.slots import Cost
from metasync.workspace import Workspace

CHEAP = Cost(memory_kib=64, iterations=1, lanes=1, for_tests=True)


def rings(lab: Lab, *backends: str) -> list[Path]:
    """The keyrings as these providers hold them, the newest last."""
    found = (p for b in backends for p in lab.objects(b, "keys") if p.name.startswith("ring-"))
    return sorted(found, key=lambda p: int(p.name.split("-")[1]))


def rotate(w: Workspace) -> None:
    w.key_rotate(PASSPHRASE, kdf=CHEAP)


def test_a_copied_keyring_stays_closed_when_one_half_is_broken(lab: Lab) -> None:
    """A provider keeps the keyring, and computes one of a device's two private keys from its public one years later."""
    w = lab.init(lab.urls("a"))
    ring = read_ring(rings(lab, "a")[-1].read_bytes())
    wrapped = dict(ring.wraps)[device_recipient(w._connections.certificate.sealing)]
    drawn = hashlib.shake_256(w._connections.device.seal_private).digest(96)
    mlkem, x25519 = MLKEM768PrivateKey.from_seed_bytes(drawn[:64]), X25519PrivateKey.from_private_bytes(drawn[64:])
    suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
    info = b"metasync ring\0" + ring.salt
    assert len(suite.decrypt(wrapped, hpke.MLKEM768X25519PrivateKey(mlkem, x25519), info=info)) == 32
    for broken in (
        hpke.MLKEM768X25519PrivateKey(MLKEM768PrivateKey.generate(), x25519),
        hpke.MLKEM768X25519PrivateKey(mlkem, X25519PrivateKey.generate()),
    ):
        with pytest.raises(InvalidTag):
            suite.decrypt(wrapped, broken, info=info)


def test_no_keyring_is_sealed_to_a_weaker_key(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was altered certifies a device with X25519 alone, with the admin key that the passphrase opened.

    Nobody seals new keys to it, and nobody leaves it out in silence: the device is revoked, by name, or stays.
    """

    def weak(private: bytes) -> Recipient:
        return Recipient(1, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    with monkeypatch.context() as m:
        m.setattr(device_set, "sealing_key", weak)
        lab.clone(urls, device="weak")
    w.pull()
    before = rings(lab, "a", "b", "c")
    with pytest.raises(UpgradeError, match="of kind 1"):
        rotate(w)
    assert rings(lab, "a", "b", "c") == before
    w.device_revoke(["weak"], PASSPHRASE, kdf=CHEAP)
    assert {who.kind for who, _ in read_ring(rings(lab, "a")[-1].read_bytes()).wraps} == {HYBRID, 3}


def test_a_keyring_whose_recipients_were_swapped_shuts_one_device_out_and_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who knows the passphrase seals what is meant for the phone to a key of his own, under the phone's id.

    The phone is told that the keys are not for it; the others go on.
    """
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    d, p = lab.clone(urls), lab.clone(urls, device="phone")
    w.pull()
    phone, thief = p._connections.certificate.sealing, sealing_key(b"t" * 32)

    def swapped(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
        return seal_to(thief if public == phone else public, secret, label, salt)

    with monkeypatch.context() as m:
        m.setattr(keyring, "seal_to", swapped)
        rotate(w)
    write(w.directory, {"new": b"under the new keys"})
    w.push("new")
    d.pull()
    assert (d.directory / "new").read_bytes() == b"under the new keys"
    with pytest.raises(ExcludedError):
        p.pull()
    assert not (p.directory / "new").exists()
