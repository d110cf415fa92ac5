"""AES-256-GCM with a key per pack; nonces count segments, so no nonce state lives anywhere (architecture.md, D2).

A pack's key comes from the epoch key and 32 fresh random bytes: two packs never share one, and within a pack each
number is used once. The associated data bind workspace, epoch, kind and header.
"""

from __future__ import annotations

from typing import ClassVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metasync.errors import FormatError
from metasync.translators._base import Buffer, Context

TAG_BYTES = 16


class Encrypt:
    """Seals and opens segments. Leaves them alone in a workspace made with `--no-encryption`."""

    name: ClassVar[str] = "encrypt"
    keyed: ClassVar[bool] = True
    conceals: ClassVar[bool] = True

    def put(self, data: bytes, context: Context) -> bytes:
        if not context.encrypted:
            return data
        return AESGCM(context.key).encrypt(context.number.to_bytes(12, "big"), data, context.binding)

    def get(self, data: Buffer, context: Context) -> Buffer:
        if not context.encrypted:
            return data
        if len(data) < TAG_BYTES:
            raise FormatError("segment: too short to be sealed")
        try:
            return AESGCM(context.key).decrypt(context.number.to_bytes(12, "big"), data, context.binding)
        except InvalidTag as e:
            raise FormatError("segment: does not open with this workspace's key") from e
