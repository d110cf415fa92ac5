"""What a simulation puts in the place of HPKE, whose randomness the library draws by itself.

A keyring's bytes name it, and its name stands in states: with other bytes in each run, no seed would be the same run
twice. The stand-in keeps the lengths, opens with the right key alone, and is no secret from anybody.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from unittest import mock

from metasync.keys import keyring
from metasync.keys.derive import HYBRID, WRAPPED_BYTES, Recipient, sealing_key, unwrap, wrap


def _key(public: bytes, label: str, salt: bytes) -> bytes:
    return hashlib.sha256(public + label.encode() + salt).digest()


def _seal_to(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
    key = _key(public.key, label, salt)
    wrapped = wrap(key, secret)
    return hashlib.shake_128(key).digest(WRAPPED_BYTES[HYBRID] - len(wrapped)) + wrapped


def _open_sealed(private: bytes, sealed: bytes, label: str, salt: bytes) -> bytes | None:
    return unwrap(_key(sealing_key(private).key, label, salt), sealed[-48:])


@contextlib.contextmanager
def repeatable_sealing() -> Iterator[None]:
    """Keyrings are sealed to devices by the stand-in; as it was, afterwards. Not for two threads at once."""
    with mock.patch.object(keyring, "seal_to", _seal_to), mock.patch.object(keyring, "open_sealed", _open_sealed):
        yield
