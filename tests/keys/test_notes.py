"""The bytes of open logins, invitations, their objects and codes (format-agreement 6.1 and 6.2), and bad ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement_kit import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import ExcludedError, FormatError, UsageError
from metasync.keys.derive import sha256, sign_public
from metasync.keys.device_set import (
    DEVICE_ENTROPY_BYTES,
    INVITATIONS_TAG,
    LOGINS_TAG,
    NAMES_TAG,
    DeviceSet,
    Invitation,
    OpenLogins,
    decode_device_set,
    expired,
    given_names,
    invitations,
    joined,
    make_device_set,
    names_of,
    new_device,
    open_logins,
    used_by,
    with_invitations,
    with_logins,
    with_names,
    without_invitations,
)
from metasync.keys.invitation import Code, Invite, Way, decode_code, open_invite, seal_invite
from metasync.keys.policy import AdminChain, make_policy

ADMIN = b"\x05" * 32
CHAIN = AdminChain((sign_public(ADMIN),))
POLICY = make_policy(CHAIN, CONFIG, admin_private=ADMIN, keyring=bytes(32), slots=())
EMPTY = make_device_set(POLICY, ())
LOGINS = OpenLogins(b"\x01" * 16, "phone", (("a", "file"), ("b", "s3")))
DEVICE = new_device("tablet", b"\x07" * DEVICE_ENTROPY_BYTES)
CERTIFICATE = DEVICE.certified(ADMIN, CHAIN.ns_id)
OPEN = Invitation(b"\x02" * 16, DEVICE.device_id, CERTIFICATE.sign_public, "tablet", 9)
WAYS = (Way("a", "file:///mnt/a", "0" * 32),)
INVITE = Invite(CHAIN.ns_id, "docs", b"s", b"c", b"d", b"i", b"ce", b"k", b"m")


def test_open_logins_as_bytes() -> None:
    devices = with_logins(EMPTY, [LOGINS])
    assert dict(devices.tags)[LOGINS_TAG] == (b"\x01" * 16 + b"\0\5phone" + b"\0\2" + b"\0\1a\0\4file" + b"\0\1b\0\2s3")
    assert open_logins(decode_device_set(devices.encode(), CHAIN.ns_id)) == (LOGINS,)
    assert with_logins(devices, [replace(LOGINS, backends=())]) == EMPTY


def test_given_names_as_bytes() -> None:
    devices = with_names(with_logins(EMPTY, [LOGINS]), {b"\x02" * 16: "b", b"\x01" * 16: "a"})
    assert dict(devices.tags)[NAMES_TAG] == b"\x01" * 16 + b"\0\1a" + b"\x02" * 16 + b"\0\1b"
    again = decode_device_set(devices.encode(), CHAIN.ns_id)
    assert given_names(again) == {b"\x01" * 16: "a", b"\x02" * 16: "b"}
    assert names_of(again) == given_names(again)  # also in place of what the open logins say
    assert with_names(devices, {}).tags == with_logins(EMPTY, [LOGINS]).tags
    assert given_names(replace(EMPTY, tags=((NAMES_TAG, b"\x01" * 16 + b"\0\2a"),))) == {}


def test_invitations_as_bytes() -> None:
    devices = with_invitations(with_logins(EMPTY, [LOGINS]), [OPEN])
    assert dict(devices.tags)[INVITATIONS_TAG] == (
        b"\x02" * 16 + DEVICE.device_id + CERTIFICATE.sign_public + b"\0\6tablet" + b"\0" * 7 + b"\x09" + b"\0" * 32
    )
    assert invitations(decode_device_set(devices.encode(), CHAIN.ns_id)) == (OPEN,)
    assert open_logins(devices) == (LOGINS,)


@pytest.mark.parametrize("cut", [1, 16, 20, 30])
def test_notes_that_do_not_decode_are_none(cut: int) -> None:
    whole = with_invitations(with_logins(EMPTY, [LOGINS]), [OPEN])
    bad = replace(whole, tags=tuple((tag, data[:-cut]) for tag, data in whole.tags))
    assert invitations(bad) == ()
    assert len(open_logins(bad)) == 0


def test_too_many_logins_are_refused() -> None:
    many = [replace(LOGINS, device_id=n.to_bytes(16, "big")) for n in range(3000)]
    with pytest.raises(UsageError, match="full"):
        with_logins(EMPTY, many)


def test_an_invitation_is_used_by_one_secret() -> None:
    devices = with_invitations(EMPTY, [OPEN])
    used = joined(devices, CERTIFICATE, 9, b"mine")
    assert used.get(DEVICE.device_id) == CERTIFICATE
    assert invitations(used)[0].used == sha256(b"mine")
    assert used_by(used, DEVICE.device_id, b"mine")
    assert not used_by(used, DEVICE.device_id, b"theirs")
    assert not used_by(EMPTY, DEVICE.device_id, b"after a rotation"), "somebody else may have been the one"
    for bad, v in ((devices, 10), (used, 9), (EMPTY, 9), (without_invitations(devices, [OPEN]), 9)):
        with pytest.raises(ExcludedError, match="not open any more"):
            joined(bad, CERTIFICATE, v, b"mine")


def test_what_expires_and_what_is_taken_back() -> None:
    devices = with_invitations(EMPTY, [OPEN, replace(OPEN, invitation_id=b"\x03" * 16, expires=0)])
    assert expired(devices, 9) == ()
    assert expired(devices, 10) == (OPEN,)
    less: DeviceSet = without_invitations(devices, [OPEN])
    assert (less.ended_ids, less.ended_keys) == ((OPEN.device_id,), (OPEN.sign_public,))
    assert not less.admits(CERTIFICATE)
    assert [i.expires for i in invitations(less)] == [0]


def test_a_code_as_text() -> None:
    code = Code(b"\x02" * 16, b"\x03" * 32, WAYS)
    text = code.encode()
    assert text == (
        "metasync-invitation-AQICAgICAgICAgICAgICAgIDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwEAAWEADWZpbGU6Ly8vbW50L2EA"
        "IDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw" + text[-6:]
    )
    assert decode_code(" \n".join((text[:30], text[30:]))) == code


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_code_with_one_character_changed(at: int, c: str) -> None:
    text = Code(b"\x02" * 16, b"\x03" * 32, WAYS).encode()
    at %= len(text) - 1  # the last one has bits that mean nothing
    changed = text[:at] + c + text[at + 1 :]
    if changed == text or "".join(changed.split()) == text:
        return
    with pytest.raises(UsageError):
        decode_code(changed)


def test_an_object_opens_with_its_secret_and_id_alone() -> None:
    data = seal_invite(INVITE, b"\x02" * 16, b"\x03" * 32, b"\x04" * 32, epoch=1)
    assert len(data) == 1024
    assert open_invite(data, b"\x02" * 16, b"\x03" * 32) == INVITE
    for invitation_id, secret in ((b"\x02" * 16, b"\x04" * 32), (b"\x03" * 16, b"\x03" * 32)):
        with pytest.raises(FormatError):
            open_invite(data, invitation_id, secret)
    with pytest.raises(FormatError):
        open_invite(data[:-1], b"\x02" * 16, b"\x03" * 32)
