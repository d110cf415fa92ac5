"""The chain of admin keys: from the key whose hash is the workspace's id to the one that signs today.

Every key epoch has an admin key of its own, certified by the one before it. Key rings and device sets carry the chain,
so either can be checked with nothing but `ns_id`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metasync.codec import Reader, u16, u32
from metasync.errors import FormatError
from metasync.keys.derive import SIGNATURE_BYTES, sha256, sign, sign_public, verify

CHAIN_MAX: Final = 1024  # epochs in one workspace's life; one a day for almost three years
_CONTEXT: Final = "admin key 1"


@dataclass(frozen=True, slots=True)
class AdminChain:
    """Admin public keys, oldest first: key i (from 1) belongs to epoch i. `signatures[i]` certifies `keys[i + 1]`."""

    keys: tuple[bytes, ...]
    signatures: tuple[bytes, ...] = ()

    @property
    def ns_id(self) -> bytes:
        return sha256(self.keys[0])

    @property
    def admin(self) -> bytes:
        """The admin public key of today."""
        return self.keys[-1]

    @property
    def epoch(self) -> int:
        return len(self.keys)

    @property
    def signer(self) -> bytes:
        """The key that signs this epoch's ring: the one before, the first by itself."""
        return self.keys[-2] if len(self.keys) > 1 else self.keys[0]

    def extended(self, admin_private: bytes, public: bytes) -> AdminChain:
        """The chain with one more key, certified by today's private admin key."""
        if sign_public(admin_private) != self.admin:
            raise ValueError("not today's admin key")
        signature = sign(admin_private, _CONTEXT, self._certified(self.epoch + 1, public))
        return AdminChain((*self.keys, public), (*self.signatures, signature))

    def _certified(self, epoch: int, public: bytes) -> bytes:
        return self.ns_id + u32(epoch) + public

    def encode(self) -> bytes:
        rest = b"".join(k + s for k, s in zip(self.keys[1:], self.signatures, strict=True))
        return u16(len(self.keys)) + self.keys[0] + rest


def decode_chain(r: Reader) -> AdminChain:
    """Reads a chain and refuses it unless every link verifies."""
    n = r.u16()
    if not 1 <= n <= CHAIN_MAX:
        raise r.fail(f"{n} admin keys")
    r.count(n - 1, 32 + SIGNATURE_BYTES)
    keys, signatures = [r.take(32)], []
    for _ in range(n - 1):
        keys.append(r.take(32))
        signatures.append(r.take(SIGNATURE_BYTES))
    chain = AdminChain(tuple(keys), tuple(signatures))
    for i, signature in enumerate(signatures):
        if not verify(keys[i], _CONTEXT, chain._certified(i + 2, keys[i + 1]), signature):
            raise FormatError(f"admin key {i + 2} is not certified by the one before it")
    return chain
