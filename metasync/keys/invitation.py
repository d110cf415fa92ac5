"""Invitations: what lets a new device in without the passphrase, once (architecture.md, D11).

While the admin key is open, the inviter draws a device's keys and certifies them. They are sealed under a secret of
their own into an object at `keys/`, with all that a new device starts from. The secret, the object's name and the ways
to the backends are the *code*, which goes from hand to hand. Neither holds a login for a provider.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final

from metasync.codec import Reader, bytes32, check_format, text16, u8
from metasync.errors import FormatError, UsageError
from metasync.keys.derive import FORMAT, Header, RecordKind, derive, seal, sha256, unseal

SECRET_BYTES: Final = 32
INVITATION_BYTES_MAX: Final = 8 << 20  # a device set is 4 MiB at most, a config 1 MiB
CODE_CHARS_MAX: Final = 64 << 10
_PREFIX: Final = "metasync-invitation-"
_CHECK_BYTES: Final = 4
_TEXT_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """How the inviter reaches a backend: its agreed name, its URL without credentials, the workspace's folder there."""

    name: str
    url: str
    folder: str


@dataclass(frozen=True, slots=True)
class Code:
    """What is handed over."""

    invitation_id: bytes
    secret: bytes = field(repr=False)
    ways: tuple[Way, ...]

    def encode(self) -> str:
        """As text for a mail or a file: one word, with a checksum."""
        body = u8(FORMAT) + self.invitation_id + self.secret + u8(len(self.ways))
        body += b"".join(text16(w.name) + text16(w.url) + text16(w.folder) for w in self.ways)
        return _PREFIX + base64.urlsafe_b64encode(body + sha256(body)[:_CHECK_BYTES]).decode("ascii").rstrip("=")


def is_code(text: str) -> bool:
    return text.strip().startswith(_PREFIX)


def decode_code(text: str) -> Code:
    """What `Code.encode` gave; spaces and line breaks do not matter. `UsageError` when it is not whole."""
    word = "".join(text.split())
    if not word.startswith(_PREFIX) or len(word) > CODE_CHARS_MAX:
        raise UsageError("this is no invitation", next_step=f"An invitation begins with {_PREFIX}")
    word = word.removeprefix(_PREFIX)
    try:
        data = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
        body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if sha256(body)[:_CHECK_BYTES] != check:
            raise FormatError("the checksum is wrong")
        r = Reader(body, "invitation")
        check_format(r.u8(), "the invitation")
        invitation_id, secret = r.take(16), r.take(SECRET_BYTES)
        ways = tuple(
            Way(r.text16(_TEXT_BYTES_MAX), r.text16(_TEXT_BYTES_MAX), r.text16(_TEXT_BYTES_MAX)) for _ in range(r.u8())
        )
        r.end()
    except (FormatError, ValueError) as e:  # binascii.Error among them, and letters that are none of Base64's
        raise UsageError(
            "the invitation is not whole: characters are missing, or were changed", next_step="Copy all of it again."
        ) from e
    return Code(invitation_id, secret, ways)


@dataclass(frozen=True, slots=True)
class Invite:
    """What the object holds, each part in its own encoding: enough to begin as a device at `state`."""

    ns_id: bytes
    name: str
    state: bytes
    config: bytes
    devices: bytes
    identity: bytes = field(repr=False)
    certificate: bytes
    keys: bytes = field(repr=False)
    memory: bytes


def invitation_name(invitation_id: bytes) -> str:
    """Its name below `keys/`."""
    return f"invite-{invitation_id.hex()}"


def seal_invite(invite: Invite, invitation_id: bytes, secret: bytes, random: bytes, *, epoch: int) -> bytes:
    """The object's bytes. `random`: 32 fresh bytes."""
    body = u8(FORMAT) + invite.ns_id + text16(invite.name)
    for part in (invite.state, invite.config, invite.devices, invite.identity, invite.certificate):
        body += bytes32(part)
    body += bytes32(invite.keys) + bytes32(invite.memory)
    header = Header(RecordKind.INVITATION, 0, epoch, random)
    return seal(derive(secret, "invitation"), header, body, binding=invitation_id)


def open_invite(data: bytes, invitation_id: bytes, secret: bytes) -> Invite:
    """What `seal_invite` sealed. `FormatError`, or `UpgradeError` for a newer format."""
    _, body = unseal(
        derive(secret, "invitation"),
        data,
        RecordKind.INVITATION,
        binding=invitation_id,
        bytes_max=INVITATION_BYTES_MAX,
    )
    r = Reader(body, "invitation")
    check_format(r.u8(), "the invitation")
    ns_id, name = r.take(32), r.text16(_TEXT_BYTES_MAX)
    parts = [r.bytes32(INVITATION_BYTES_MAX) for _ in range(7)]
    r.end()
    return Invite(ns_id, name, *parts)
