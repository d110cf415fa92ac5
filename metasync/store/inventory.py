"""What a backend says that it holds, beside what an index wants there: by partition, as digests of digests (pure).

Theory of operation (docs/design/scrub.md). A pack is an entry of 20 bytes: what names it, its size, and the beginning
of the digest that the store told. The sorted entries of a partition have one digest, and those of all partitions have
one again, so whatever is as it was costs one comparison. Only the leaves and the root are kept, as in LightSync (Ruan
et al., "On the Synchronization Bottleneck of OpenStack Swift-like Cloud Storage Systems", section 5.2): the entries
are at hand, and so a differing partition needs no round of questions.

Each of the n backends of a partition is compared with the index, which is n comparisons, and not with each other. A
partition that moves from one mapping to another is compared for all its backends together (`short_of`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from metasync.codec import Reader, u32
from metasync.keys.derive import sha256
from metasync.store.index import PackId, PackRecord
from metasync.store.placement import PARTITION_BYTES, Placement, partition_of

KEY_BYTES: Final = 12  # 8 of the name: among a million packs two share them once in 37 million workspaces
ENTRY_BYTES: Final = 20
DIGEST_BYTES: Final = 16
CIRCLE: Final = 1 << 32
_MARK_BYTES: Final = 3  # of the digest that was told; zeros where none was, or where it is the right one
_SIZE_BYTES: Final = 5
_SIZE_MAX: Final = (1 << 8 * _SIZE_BYTES) - 1
_NO_MARK: Final = bytes(_MARK_BYTES)
_UNKNOWN: Final = bytes(DIGEST_BYTES)


def key_of(pack_id: PackId) -> bytes:
    """What an entry knows a pack by."""
    return pack_id[1][:8] + u32(pack_id[0] & 0xFFFFFFFF)


def entry(pack_id: PackId, size: int, digest: bytes | None = None) -> bytes:
    """The entry of a pack of which a store says this. `digest` None: it tells none."""
    value = min(max(size, 0), _SIZE_MAX).to_bytes(_SIZE_BYTES, "big")
    mark = digest[:_MARK_BYTES].ljust(_MARK_BYTES, b"\1") if digest else _NO_MARK
    return key_of(pack_id) + value + mark


class Told:
    """What one backend told of its packs. `well`: by partition, the comparison that found nothing wrong there."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.parts: dict[int, bytes] = {}
        self.well: dict[int, bytes] = {}

    def __len__(self) -> int:
        """How many packs."""
        return sum(map(len, self.parts.values())) // ENTRY_BYTES

    def put(self, pack_id: PackId, one: bytes | None) -> None:
        """Sets the entry of a pack; None: it is not there. What was found well in its partition is to be seen again."""
        p, key = partition_of(pack_id[1], self.partitions), key_of(pack_id)
        entries = _split(self.parts.get(p, b""))
        at = bisect_left(entries, key, key=lambda e: e[:KEY_BYTES])
        end = at + (at < len(entries) and entries[at][:KEY_BYTES] == key)
        entries[at:end] = [one] if one else []
        self.well.pop(p, None)
        if entries:
            self.parts[p] = b"".join(entries)
        else:
            self.parts.pop(p, None)

    def has(self, pack_id: PackId) -> bool:
        """Whether a pack was told, of whatever size."""
        p, key = partition_of(pack_id[1], self.partitions), key_of(pack_id)
        return any(one[:KEY_BYTES] == key for one in _split(self.parts.get(p, b"")))

    def has_digest(self, pack_id: PackId) -> bool:
        """Whether a digest was told of a pack."""
        p, key = partition_of(pack_id[1], self.partitions), key_of(pack_id)
        told = [one for one in _split(self.parts.get(p, b"")) if one[:KEY_BYTES] == key]
        return bool(told) and told[0][-_MARK_BYTES:] != _NO_MARK

    def digest(self) -> bytes:
        """One digest over those of all partitions."""
        return sha256(b"".join(u32(p) + _digest(data) for p, data in sorted(self.parts.items())))

    def differing(self, wanted: Mapping[int, bytes]) -> Iterator[int]:
        """The partitions that are not as wanted, and were not found well as they are before. `wanted`: see `wanted`.

        One comparison each for all that the backend holds or should.
        """
        for p in sorted(self.parts.keys() | wanted.keys()):
            mine, right = self.parts.get(p, b""), wanted.get(p, b"")
            if mine != right and self.well.get(p) != _digest(mine + _digest(right)):
                yield p

    def wrong_in(self, p: int, wanted: bytes, marks: Mapping[bytes, Collection[bytes] | None]) -> dict[bytes, bool]:
        """The keys of packs that are missing or other than wanted in a partition; True where the digest alone is.

        What is there besides is no matter. `marks`: by key, the beginnings of the digests that are right, None for any.
        """
        mine = {one[:KEY_BYTES]: one for one in _split(self.parts.get(p, b""))}
        wrong = {}
        for right in _split(wanted):
            key = right[:KEY_BYTES]
            has, known = mine.get(key, b""), marks[key]
            if has[:-_MARK_BYTES] != right[:-_MARK_BYTES]:
                wrong[key] = False
            elif known is not None and has[-_MARK_BYTES:] not in known:
                wrong[key] = True
        return wrong

    def note_well(self, p: int, wanted: bytes) -> None:
        """Notes that a partition was found well: as it is now it is not compared with this again."""
        mine = self.parts.get(p, b"")
        if mine == wanted:
            self.well.pop(p, None)
        else:
            self.well[p] = _digest(mine + _digest(wanted))

    def encode(self) -> bytes:
        """For the local state."""
        out = [u32(self.partitions)]
        for p in sorted(self.parts.keys() | self.well.keys()):
            data = self.parts.get(p, b"")
            out.append(u32(p) + self.well.get(p, _UNKNOWN) + u32(len(data) // ENTRY_BYTES) + data)
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Told:
        """`FormatError` for what `encode` does not make."""
        r = Reader(data, "inventory")
        out, last = cls(r.u32()), -1
        while r.pos < len(data):
            p, well = r.u32(), r.take(DIGEST_BYTES)
            entries = r.take(r.count(r.u32(), ENTRY_BYTES) * ENTRY_BYTES)
            if not last < p < out.partitions or (well == _UNKNOWN and not entries):
                raise r.fail("partitions in another order")
            last = p
            if entries:
                out.parts[p] = entries
            if well != _UNKNOWN:
                out.well[p] = well
        return out


class Listing:
    """A whole listing while it comes in, of 20 bytes a pack. Where it has a pack twice, the later entry counts."""

    def __init__(self, partitions: int) -> None:
        self.packs = 0
        self._partitions = partitions
        self._parts: dict[int, bytearray] = {}

    def add(self, pack_id: PackId, one: bytes) -> None:
        self.packs += 1
        self._parts.setdefault(partition_of(pack_id[1], self._partitions), bytearray()).extend(one)

    def told(self) -> Told:
        """What it comes to. Nothing is to be added after that."""
        out = Told(self._partitions)
        while self._parts:
            p, data = self._parts.popitem()
            by_key = {one[:KEY_BYTES]: one for one in _split(data)}
            out.parts[p] = b"".join(by_key[k] for k in sorted(by_key))
        return out


def by_partition(packs: Iterable[PackRecord], partitions: int) -> dict[int, bytes]:
    """By partition, the sorted entries of packs as they should be told."""
    parts: dict[int, bytearray] = {}
    for p in packs:
        parts.setdefault(partition_of(p.name, partitions), bytearray()).extend(entry(p.id, p.size))
    return {partition: b"".join(sorted(_split(parts.pop(partition)))) for partition in [*parts]}


def wanted(packs: Iterable[PackRecord], placement: Placement) -> dict[bytes, dict[int, bytes]]:
    """By backend and partition, the entries of the packs that belong there. An order is computed once a partition."""
    out: dict[bytes, dict[int, bytes]] = {t.backend_id: {} for t in placement.targets}
    for partition, data in by_partition(packs, placement.partitions).items():
        for backend_id in placement.primary(partition.to_bytes(PARTITION_BYTES, "big")):
            out[backend_id][partition] = data
    return out


def short_of(
    p: int, right: bytes, holders: Collection[Told | None], copies: int, marks: Mapping[bytes, Collection[bytes] | None]
) -> dict[bytes, bool]:
    """The keys of packs in a partition that moves of which too few copies are told, or a wrong one.

    `right`: its entries. `holders`: what each backend told that some mapping gives it; None where that is not known,
    which counts as a copy. True, `marks`: as `Told.wrong_in` has them. While data move a pack may lie where one mapping
    wants it or another, so that it is there if `copies` of these backends have it.
    """
    known = [told for told in holders if told is not None]
    enough = copies - (len(holders) - len(known))
    good: dict[bytes, int] = {}
    out: dict[bytes, bool] = {}
    for told in known:
        has = {one[:KEY_BYTES] for one in _split(told.parts.get(p, b""))}
        wrong = told.wrong_in(p, right, marks)
        for key in (one[:KEY_BYTES] for one in _split(right)):
            if key in has and key in wrong:
                out[key] = wrong[key]
            elif key in has:
                good[key] = good.get(key, 0) + 1
    short = (key for key in (one[:KEY_BYTES] for one in _split(right)) if good.get(key, 0) < enough)
    return out | {key: False for key in short if key not in out}


def place_on_circle(name: bytes, backend_id: bytes, begin: int) -> int:
    """How far behind `begin` a pack stands on the circle by which a backend's copies take turns: 0 to `CIRCLE` - 1."""
    place = int.from_bytes(name[8:12], "big") ^ int.from_bytes(backend_id[:4], "big")
    return (place - begin) % CIRCLE


def marks_of(record: PackRecord, kinds: Iterable[str]) -> tuple[bytes, ...] | None:
    """The beginnings of the digests that stores of these kinds may tell of a pack, or of none; None where one of them
    was not noted."""
    digests = [record.digest(kind) for kind in ("sha256", *kinds)]
    return None if None in digests else (_NO_MARK, *(digest[:_MARK_BYTES] for digest in digests if digest is not None))


def _digest(data: bytes) -> bytes:
    return sha256(data)[:DIGEST_BYTES]


def _split(data: bytes | bytearray) -> list[bytes]:
    return [bytes(data[i : i + ENTRY_BYTES]) for i in range(0, len(data), ENTRY_BYTES)]
