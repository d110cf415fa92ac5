"""The policy: what no device may weaken by itself, in one record that the admin key signs; and the admin keys.

A device set begins with it (`device_set`). It says how content is translated and whether it is encrypted, the fewest
copies, how many voting backends may lie at least, the oldest format, the keyring with its slots, who was revoked, and
which versions were passed over because they cannot be read.
Every value that is agreed keeps to the policy that it names, or is VOID (consensus.md, rules 8.4 and 8.5). So a change
to the worse takes the passphrase; joining, renaming and better configs do not.

Its sequence number is the era and version as which it was agreed: one that lost the race for that version never counts.

Every key epoch has an admin key of its own, certified by the one before it, back to the key whose hash is the
workspace's id. Policies and keyrings carry this chain, so either can be checked with nothing but `ns_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from metasync.codec import Reader, Tags, ascending, check_format, check_kind, encode_tags, text16, u8, u16, u32, u64
from metasync.errors import FormatError
from metasync.keys.derive import FORMAT, SIGNATURE_BYTES, sha256, sign, sign_public, verify
from metasync.keys.slots import RECOVERY

if TYPE_CHECKING:
    from metasync.config import Config

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


class Skip(NamedTuple):
    """The versions between `good` and `at` were passed over, because they cannot be read.

    at      the version that has the tree of `good` in their place
    good    the version before them; its `tree`: id of the root
    master  id of its snapshot; zeros: there is none, and the tree is empty
    """

    at: int
    good: int
    tree: bytes
    master: bytes

    def covers(self, version: int) -> bool:
        """Whether a version was passed over."""
        return self.good < version < self.at


SKIPS_TAG: Final = 1
SKIPS_MAX: Final = 64  # the newest: a device that slept through more merges what the older ones passed over
_SKIP_BYTES: Final = 8 + 8 + 32 + 32


def encode_skips(skips: Sequence[Skip]) -> bytes:
    """The value of the tag for skips, oldest first: the newest `SKIPS_MAX` of them."""
    kept = skips[-SKIPS_MAX:]
    return u8(len(kept)) + b"".join(u64(skip.at) + u64(skip.good) + skip.tree + skip.master for skip in kept)


def decode_skips(value: bytes) -> tuple[Skip, ...]:
    """What the tag's value says, oldest first. `FormatError`."""
    r = Reader(value, "skips")
    out = tuple(Skip(r.u64(), r.u64(), r.take(32), r.take(32)) for _ in range(r.count(r.u8(), _SKIP_BYTES, SKIPS_MAX)))
    r.end()
    if any(a.at >= b.at for a, b in pairwise(out)):
        raise r.fail("out of order")
    return out


POLICY_BYTES_MAX: Final = 1 << 19
SLOTS_MAX: Final = 256
REVOKED_MAX: Final = 4096
ACCEPTORS_MAX: Final = 32
CHAINS_MAX: Final = 256
STEPS_MAX: Final = 16
STEP_BYTES_MAX: Final = 255
_SIGNED: Final = "policy 1"


@dataclass(frozen=True, slots=True)
class Policy:
    """What is agreed under the admin's signature. `slots`: (kind, id of the key) of what opens the workspace.

    `era`, `version`: as which it was agreed. `keyring`: SHA-256 of the ring of the epoch that `chain` ends with.
    `chains`: the translator chains of every config, exactly. `copies`, `f`: a config has as many at least, and in
    Byzantine mode is one of f > 0. `acceptors`: (id, birth) of votes that make a quorum of every config by themselves,
    ascending. `revoked_ids`, `revoked_keys` (Ed25519) ascend, as `slots` do.
    """

    chain: AdminChain
    era: int
    version: int
    min_fmt: int
    keyring: bytes
    encrypted: bool
    chains: tuple[tuple[str, ...], ...]
    copies: int
    f: int
    acceptors: tuple[tuple[bytes, bytes], ...]
    slots: tuple[tuple[int, bytes], ...]
    revoked_ids: tuple[bytes, ...] = ()
    revoked_keys: tuple[bytes, ...] = ()
    tags: Tags = ()
    signature: bytes = b""

    @property
    def epoch(self) -> int:
        return self.chain.epoch

    @property
    def sequence(self) -> tuple[int, int]:
        """Which of two is newer."""
        return self.era, self.version

    @property
    def skips(self) -> tuple[Skip, ...]:
        """What was passed over because it cannot be read, oldest first."""
        value = dict(self.tags).get(SKIPS_TAG)
        return decode_skips(value) if value is not None else ()

    def skip_over(self, version: int) -> Skip | None:
        """The newest skip that passed over a version; None: it was not."""
        return next((skip for skip in reversed(self.skips) if skip.covers(version)), None)

    def skipping(self, made: Skip) -> Tags:
        """The tags with one more skip, the newest."""
        return tuple(sorted({**dict(self.tags), SKIPS_TAG: encode_skips((*self.skips, made))}.items()))

    def _body(self) -> bytes:
        return b"".join(
            (
                u8(FORMAT),
                self.chain.encode(),
                u32(self.era),
                u64(self.version),
                u8(self.min_fmt),
                self.keyring,
                u8(self.encrypted),
                u16(len(self.chains)),
                *(u8(len(steps)) + b"".join(text16(name) for name in steps) for steps in self.chains),
                u8(self.copies),
                u8(self.f),
                u8(len(self.acceptors)),
                *(acceptor_id + birth for acceptor_id, birth in self.acceptors),
                u16(len(self.slots)),
                *(u8(kind) + key for kind, key in self.slots),
                u16(len(self.revoked_ids)),
                *self.revoked_ids,
                u16(len(self.revoked_keys)),
                *self.revoked_keys,
                encode_tags(self.tags),
            )
        )

    def encode(self) -> bytes:
        return self._body() + self.signature

    def signed(self, admin_private: bytes, **changes: Any) -> Policy:
        """The same with these changes, in canonical order, signed by the admin key that its chain ends with."""
        new = replace(self, **changes)
        if sign_public(admin_private) != new.chain.admin:
            raise ValueError("not the admin key of the policy's epoch")
        new = replace(
            new,
            acceptors=tuple(sorted(set(new.acceptors))),
            slots=tuple(sorted(set(new.slots))),
            revoked_ids=tuple(sorted(set(new.revoked_ids))),
            revoked_keys=tuple(sorted(set(new.revoked_keys))),
        )
        return replace(new, signature=sign(admin_private, _SIGNED, new._body()))

    def contradiction(self, config: Config) -> str:
        """How a config breaks this policy; "" where it keeps to it."""
        if config.encrypted != self.encrypted or config.chains != self.chains:
            shown, wanted = (", ".join(chains[-1]) or "nothing" for chains in (config.chains, self.chains))
            return f"its data would be stored by the steps {shown}, and the policy says {wanted}"
        copies = config.survives.copies + 1
        if copies < self.copies:
            return f"{copies} copies of each pack, and the policy says {self.copies} at least"
        if config.f < self.f:
            return f"it allows for {config.f} backends that lie, and the policy says {self.f} at least"
        named = len(set(voters(config)) & set(self.acceptors))
        if named < config.quorum:
            return (
                f"{named} of its {config.n} voting backends are ones that the policy names, and {config.quorum} must be"
            )
        return ""


def voters(config: Config) -> tuple[tuple[bytes, bytes], ...]:
    """The acceptors of a config, as a policy names them."""
    return tuple((acceptor.acceptor_id, acceptor.birth) for _, acceptor in config.acceptors)


def allowing(policy: Policy, config: Config, admin_private: bytes, **changes: Any) -> Policy:
    """The policy with these changes, loosened as far as `config` needs it, and signed."""
    copies, f = min(policy.copies, config.survives.copies + 1), min(policy.f, config.f)
    return policy.signed(admin_private, copies=copies, f=f, acceptors=voters(config), **changes)


def make_policy(
    chain: AdminChain,
    config: Config,
    *,
    admin_private: bytes,
    keyring: bytes,
    slots: Iterable[tuple[int, bytes]],
    revoked_ids: Iterable[bytes] = (),
    revoked_keys: Iterable[bytes] = (),
    era: int = 0,
    version: int = 0,
    min_fmt: int = FORMAT,
    tags: Tags = (),
) -> Policy:
    """The policy that holds a workspace to what `config` is: its chains, its copies, and the liars that it allows for.

    `era`, `version`: as which it will be agreed.
    """
    bare = Policy(
        chain=chain,
        era=era,
        version=version,
        min_fmt=min_fmt,
        keyring=keyring,
        encrypted=config.encrypted,
        chains=config.chains,
        copies=config.survives.copies + 1,
        f=config.f,
        acceptors=voters(config),
        slots=tuple(slots),
        revoked_ids=tuple(revoked_ids),
        revoked_keys=tuple(revoked_keys),
        tags=tags,
    )
    return bare.signed(admin_private)


def decode_policy(data: bytes) -> Policy:
    """Decodes and verifies all of it. `FormatError` otherwise, `UpgradeError` for a newer format.

    That its first admin key is the workspace's, the caller checks.
    """
    if len(data) > POLICY_BYTES_MAX:
        raise FormatError(f"policy of {len(data)} bytes")
    r = Reader(data, "policy")
    check_format(r.u8(), "the policy")
    chain = decode_chain(r)
    era, version, min_fmt, keyring, encrypted = r.u32(), r.u64(), r.u8(), r.take(32), r.u8()
    steps = tuple(
        tuple(r.text16(STEP_BYTES_MAX) for _ in range(r.count(r.u8(), 2, STEPS_MAX)))
        for _ in range(r.count(r.u16(), 1, CHAINS_MAX))
    )
    copies, f = r.u8(), r.u8()
    named = tuple((r.take(16), r.take(32)) for _ in range(r.count(r.u8(), 48, ACCEPTORS_MAX)))
    slots = tuple((r.u8(), r.take(32)) for _ in range(r.count(r.u16(), 33, SLOTS_MAX)))
    ids = tuple(r.take(16) for _ in range(r.count(r.u16(), 16, REVOKED_MAX)))
    keys = tuple(r.take(32) for _ in range(r.count(r.u16(), 32, REVOKED_MAX)))
    tags = r.tags()
    out = Policy(
        chain, era, version, min_fmt, keyring, bool(encrypted), steps, copies, f, named, slots, ids, keys, tags,
        r.take(SIGNATURE_BYTES),
    )  # fmt: skip
    r.end()
    if encrypted > 1 or not min_fmt or not copies or not steps:
        raise FormatError("policy: a value that is out of bounds")
    if not all(
        ascending(items)
        for items in ([a + birth for a, birth in named], [u8(kind) + key for kind, key in slots], ids, keys)
    ):
        raise FormatError("policy: out of order")
    if not verify(chain.admin, _SIGNED, out._body(), out.signature):
        raise FormatError("policy: the admin's signature is wrong")
    if (skips := dict(tags).get(SKIPS_TAG)) is not None:
        decode_skips(skips)
    for kind, _ in slots:
        check_kind(kind, RECOVERY, "a key slot of the policy")
    return out
