"""Verifies stored bytes on the way back, before anything is decrypted or parsed (MetaSync paper, section 3.5).

Works on SHA-256, because packs are named by it and several providers list it. With `--no-encryption` it is what
stands between a provider and the working tree.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

from metasync.translators._base import Buffer, Context, IntegrityError


def sha256(data: bytes | memoryview) -> bytes:
    """The digest that packs and segments are known by."""
    return hashlib.sha256(data).digest()


class Integrity:
    """Refuses a segment whose digest is not the agreed one; does nothing on the way out."""

    name: ClassVar[str] = "integrity"
    keyed: ClassVar[bool] = True

    def put(self, data: bytes, context: Context) -> bytes:
        return data

    def get(self, data: Buffer, context: Context) -> Buffer:
        if context.digest is not None and sha256(data) != context.digest:
            raise IntegrityError("segment: not the bytes that were stored")
        return data
