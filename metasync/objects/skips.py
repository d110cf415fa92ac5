"""Skips: versions that were passed over because they cannot be read. `docs/design/format.md`, 4.1.

Whoever has the passphrase agrees a version with the tree of the last good one. Its snapshot says so in a tag, signed by
the admin key; each later snapshot repeats it, so that a device that slept finds it without reading what cannot be
read. A device whose folder is at a version that was passed over merges from the last good tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from metasync.codec import Reader, Tags, u8, u32, u64
from metasync.errors import FormatError
from metasync.keys.derive import sign, verify
from metasync.objects.model import ID_BYTES, Snapshot

SKIPS_TAG: Final = 2  # of a snapshot
SKIPS_MAX: Final = 64  # the newest of them: a device that slept through more merges what the older ones passed over
_FORMAT: Final = 1
_SIGNED: Final = "skip 1"
_SIGNATURE_BYTES: Final = 64
NOTHING: Final = bytes(ID_BYTES)


class Skip(NamedTuple):
    """The versions between `good` and `at` were passed over.

    at       the version whose snapshot first says so
    version  the one that was named as the reason
    good     the version before them, whose tree it has
    tree     id of that tree's root
    master   id of that version's snapshot; zeros: there is none, and the tree is empty
    passed   id of the newest snapshot that was passed over
    epoch    of the admin key that signed
    """

    at: int
    version: int
    good: int
    tree: bytes
    master: bytes
    passed: bytes
    epoch: int
    signature: bytes = b""

    def covers(self, version: int) -> bool:
        """Whether a version was passed over."""
        return self.good < version < self.at

    def signed(self, ns_id: bytes, admin_private: bytes) -> Skip:
        """The same with the signature of the admin key of its epoch."""
        return self._replace(signature=sign(admin_private, _SIGNED, ns_id + self._body()))

    def is_of(self, ns_id: bytes, admins: Sequence[bytes]) -> bool:
        """Whether it is signed by its epoch's of these admin keys, oldest first, and fits itself."""
        if not (0 < self.epoch <= len(admins) and self.good < self.version < self.at):
            return False
        return verify(admins[self.epoch - 1], _SIGNED, ns_id + self._body(), self.signature)

    def _body(self) -> bytes:
        numbers = u64(self.at) + u64(self.version) + u64(self.good)
        return numbers + self.tree + self.master + self.passed + u32(self.epoch)


def encode_skips(skips: Sequence[Skip]) -> bytes:
    """The value of the tag: the newest `SKIPS_MAX`, newest first."""
    kept = skips[:SKIPS_MAX]
    return u8(_FORMAT) + u8(len(kept)) + b"".join(skip._body() + skip.signature for skip in kept)


def decode_skips(value: bytes) -> tuple[Skip, ...]:
    """What the tag's value says. `FormatError`."""
    r = Reader(value, "skips")
    if r.u8() != _FORMAT:
        raise r.fail("unknown format")
    count = r.u8()
    if not 0 < count <= SKIPS_MAX:
        raise r.fail(f"{count} of them")
    out = tuple(
        Skip(
            r.u64(), r.u64(), r.u64(), r.take(ID_BYTES), r.take(ID_BYTES), r.take(ID_BYTES), r.u32(),
            r.take(_SIGNATURE_BYTES),
        )
        for _ in range(count)
    )  # fmt: skip
    r.end()
    if any(a.at <= b.at for a, b in pairwise(out)):
        raise r.fail("out of order")
    return out


def skips_of(snapshot: Snapshot | None) -> tuple[Skip, ...]:
    """What a snapshot says of skips, newest first; nothing where it says nothing of use. Signatures are not checked."""
    value = dict(snapshot.tags).get(SKIPS_TAG) if snapshot is not None else None
    if value is None:
        return ()
    try:
        return decode_skips(value)
    except FormatError:
        return ()


def skip_over(snapshot: Snapshot | None, version: int, ns_id: bytes, admins: Sequence[bytes]) -> Skip | None:
    """The newest skip that passed over a version, by a snapshot of later; None: it was not. Signatures are checked."""
    found = (skip for skip in skips_of(snapshot) if skip.covers(version))
    return next((skip for skip in found if skip.is_of(ns_id, admins)), None)


def repeated(snapshot: Snapshot | None) -> Tags:
    """The tag that a snapshot on top of this one repeats."""
    return tuple((tag, value) for tag, value in (snapshot.tags if snapshot is not None else ()) if tag == SKIPS_TAG)
