"""Builds packs from objects, and reads them (architecture.md, D2 and D3). `docs/design/format.md` section 5.

Writing is a pipeline. Objects gather into segments of about `segment_bytes`, which workers compress; segments gather in
order into packs of about `pack_bytes`, which workers seal. A pack's name is the SHA-256 of its bytes; among a few salts
the one is taken that loads the backends evenly. Small blobs share segments, trees and histories get segments of their
own (a clone reads those first), and a large chunk is a segment alone, so that it can be fetched alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Any, NamedTuple, Protocol, TypeAlias

from metasync.backends.digests import KINDS, digest_of
from metasync.codec import Tags, padme
from metasync.errors import DamagedError, FormatError, UpgradeError, WorkspaceError
from metasync.keys.derive import derive
from metasync.keys.keyring import WorkspaceKeys
from metasync.objects.model import ObjectKind
from metasync.store import pack_format
from metasync.store.pack_format import DELTA, Delta, Footer, Header, Located, Segment
from metasync.translators._base import Buffer, Chain, Context, IntegrityError

SHRINKING_BYTES_MAX = 8 << 20  # of raw segments in or before a worker; keeps two cores busy
SEALING_MAX = 2  # packs in or before a worker
PACK_KEYS_KEPT = 64  # of packs being read or written just now
SALT_BYTES = 8  # a pack needs a handful of values; a provider cannot tell how many were tried
SPREAD_BYTES_LEAST = 256 << 10  # at 5 MB/s as long as a round trip: a smaller pack is not worth its own requests
PIECES = 3  # for each pack of a small push: what is in a segment does not shrink alike
SLACK = 1 / 8  # of its share by which a pack of a small push may be off
OBJECT_BYTES_OVERHEAD = 64  # what an object adds to a footer and to the index; bounds objects per pack

Choose: TypeAlias = Callable[[int, Iterable[bytes]], int]
"""Is given a pack's size in bytes and names that it might have, in endless supply; returns the number of the best."""


class PackKeys(Protocol):
    """What sealing needs of the workspace's keys."""

    @property
    def encrypted(self) -> bool: ...
    def pack_key(self, epoch: int, random: bytes) -> bytes: ...
    def pack_binding(self, epoch: int, header: bytes) -> bytes: ...


class WorkspacePackKeys:
    """`PackKeys` of a workspace: a key per pack, of the epoch key and the pack's random bytes (architecture.md, D2)."""

    def __init__(self, keys: WorkspaceKeys) -> None:
        self._keys = keys
        self.pack_key = lru_cache(maxsize=PACK_KEYS_KEPT)(partial(_pack_key, keys))

    @property
    def encrypted(self) -> bool:
        return self._keys.encrypted

    def pack_binding(self, epoch: int, header: bytes) -> bytes:
        return self._keys.ns_id + epoch.to_bytes(4, "big") + b"pack" + header


def _pack_key(keys: WorkspaceKeys, epoch: int, random: bytes) -> bytes:
    return derive(keys.pack_key(epoch), "one pack", random)


class SealedPack(NamedTuple):
    """A pack ready to travel: its name (SHA-256), its bytes, its header and what lies where in it (`pack_place`)."""

    name: bytes
    data: bytes
    header: Header
    segments: tuple[Segment, ...]
    places: bytes
    tags: Tags = ()  # the digests that its format asks for, and the rows of its deltas

    @property
    def footer(self) -> Footer:
        """The same as values."""
        rows = tuple(t for t in self.tags if t[0] in pack_format.DELTA_TAGS)
        return Footer(self.segments, pack_format.unpack_places(self.places), rows)


@dataclass(frozen=True, slots=True)
class PackFormat:
    """How packs are made in this workspace: chains of the agreed config, the epoch in force, sizes in bytes."""

    keys: PackKeys
    chains: tuple[Chain, ...]
    epoch: int
    level: int
    segment_bytes: int
    pack_bytes: int
    digests: tuple[str, ...] = ()  # kinds that packs are to have, for stores that tell them of what they hold

    def context(self, header: bytes, h: Header, number: int, raw_bytes: int, digest: bytes | None = None) -> Context:
        return Context(
            key=self.keys.pack_key(h.epoch, h.random),
            number=number,
            binding=self.keys.pack_binding(h.epoch, header),
            raw_bytes=raw_bytes,
            level=self.level,
            digest=digest,
            encrypted=self.keys.encrypted,
        )

    def chain(self, ordinal: int) -> Chain:
        if ordinal >= len(self.chains):
            raise UpgradeError(
                "a pack was made by translators this device does not know",
                next_step="Upgrade metasync, then try again.",
            )
        return self.chains[ordinal]


@dataclass(frozen=True, slots=True)
class _Shrunk:
    raw_bytes: int
    data: bytes
    places: bytes  # of its objects (`pack_place`)
    deltas: Mapping[int, Delta] = field(default_factory=dict)  # by offset

    @property
    def count(self) -> int:
        return len(self.places) // pack_format.PLACE_BYTES


def seal_pack(
    segments: Iterable[_Shrunk], form: PackFormat, random: bytes, *, salt: bytes = b"", choose: Choose | None = None
) -> SealedPack:
    """Seals segments into one pack. Pure but for `choose`: `random` (32 bytes, used once) and `salt` are its chance.

    With `choose` the pack gets a salt that brings it a chosen name; `salt` is the first one tried.
    """
    h = Header(len(form.chains) - 1, form.epoch, random)
    header = pack_format.encode_header(h)
    chain = form.chains[-1]
    if form.keys.encrypted and not chain.conceals:
        steps = ", ".join(chain.names) or "nothing"
        raise WorkspaceError(
            f"the workspace is encrypted, and its packs would be stored by the steps {steps}, which encrypt nothing; "
            "nothing was stored",
            next_step="`metasync log --all` shows who changed that.",
        )
    parts = [header]
    table: list[Segment] = []
    places = bytearray()
    deltas: dict[tuple[int, int], Delta] = {}
    for number, segment in enumerate(segments):
        stored = chain.seal(segment.data, form.context(header, h, number, segment.raw_bytes))
        parts.append(stored)
        table.append(Segment(len(stored), segment.raw_bytes, hashlib.sha256(stored).digest()))
        places += pack_format.in_segment(segment.places, number)
        deltas.update(((number, offset), delta) for offset, delta in segment.deltas.items())
    rows = pack_format.delta_tags(deltas)
    plain = pack_format.encode_packed_footer(tuple(table), bytes(places), rows)
    at_footer = form.context(header, h, pack_format.FOOTER_NUMBER, len(plain))
    stored_footer = chain.seal(chain.shrink(plain, at_footer), at_footer)
    trailer = chain.seal(
        pack_format.encode_trailer(len(stored_footer)),
        form.context(header, h, pack_format.TRAILER_NUMBER, pack_format.TRAILER_PLAIN_BYTES),
    )
    if form.keys.encrypted:
        at_padding = form.context(header, h, pack_format.PADDING_NUMBER, 0)
        overhead = len(chain.seal(b"", at_padding)) + len(salt)
        size = sum(map(len, parts)) + overhead + len(stored_footer) + len(trailer)
        parts.append(chain.seal(bytes(padme(size) - size), at_padding))
    name, salt = _named(parts, salt, stored_footer + trailer, choose)
    data = b"".join((*parts, salt, stored_footer, trailer))
    tags = sorted((KINDS[kind].tag, digest_of(kind, data)) for kind in form.digests)
    return SealedPack(name, data, h, tuple(table), bytes(places), (*tags, *rows))


def _named(before: Iterable[bytes], salt: bytes, after: bytes, choose: Choose | None) -> tuple[bytes, bytes]:
    """The name of a pack and its salt. Each trial hashes only what stands behind the salt: the footer."""
    digest = hashlib.sha256()
    size = 0
    for part in before:
        digest.update(part)
        size += len(part)

    def named(candidate: bytes) -> bytes:
        full = digest.copy()
        full.update(candidate + after)
        return full.digest()

    if choose is None:
        return named(salt), salt
    salts: list[bytes] = []
    names: list[bytes] = []

    def candidates() -> Iterator[bytes]:
        first = int.from_bytes(salt, "big")
        for n in count():
            salts.append(((first + n) % (1 << 8 * len(salt))).to_bytes(len(salt), "big"))
            names.append(named(salts[-1]))
            yield names[-1]

    number = choose(size + len(salt) + len(after), candidates())
    return names[number], salts[number]


def spread_evenly(segments: Sequence[_Shrunk], parts: int) -> list[list[_Shrunk]]:
    """Cuts these segments, in order, into at most `parts` runs of about the same size; none is empty."""
    ends = list(accumulate(len(s.data) for s in segments))
    out: list[list[_Shrunk]] = []
    for segment, end in zip(segments, ends, strict=True):
        middle = end - len(segment.data) / 2  # a segment goes where more of it falls
        if not out or int(middle * parts / max(1, ends[-1])) >= len(out):
            out.append([])
        out[-1].append(segment)
    return out


class Ids(Protocol):
    """A set of object ids."""

    def __contains__(self, object_id: object, /) -> bool: ...
    def add(self, object_id: bytes, /) -> None: ...


class LevelChoice(Protocol):
    """Chooses compression levels, one for each segment."""

    def level(self) -> int:
        """The level for the next segment."""

    def timed(self, level: int, size: int, shrink: Callable[[], bytes]) -> bytes:
        """What `shrink` makes of `size` bytes at `level`. Workers call it."""


@dataclass(eq=False)
class Packer:
    """Turns objects into sealed packs. One thread adds; `work` runs workers; `emit` gets packs in order, and may block.

    Objects added twice, or in `seen`, are packed once. `choose` chooses the packs' names, in workers; without it they
    have no salt. `spread`: the rest at the end becomes up to so many packs, so that a small push too loads all
    backends. `levels` chooses the compression level of each segment; without it that of `form` counts.
    """

    form: PackFormat
    work: Callable[[Callable[[], Any]], Future[Any]]
    entropy: Callable[[int], bytes]
    emit: Callable[[SealedPack], None]
    choose: Choose | None = None
    spread: int = 1
    seen: Ids = field(default_factory=set[bytes])
    levels: LevelChoice | None = None

    def __post_init__(self) -> None:
        self._pack_bytes_max = min(self.form.pack_bytes, pack_format.PACK_BYTES_MAX // 2)  # footer, padding on top
        self._objects_max = min(self._pack_bytes_max // OBJECT_BYTES_OVERHEAD, pack_format.OBJECTS_MAX)
        self._open: dict[bool, _Gathering] = {True: _Gathering(), False: _Gathering()}  # blobs; trees and histories
        self._shrinking: deque[tuple[int, Future[_Shrunk]]] = deque()
        self._shrinking_bytes = 0
        self._pack: list[_Shrunk] = []
        self._pack_bytes = self._pack_objects = self._pack_deltas = 0
        self._sealing: deque[Future[SealedPack]] = deque()
        self._early: list[_Gathering] = []  # what all segments so far were made of, while they may be cut anew
        self._early_bytes = 0
        self._keeps_early = self.spread > 1

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes, delta: Delta | None = None) -> None:
        """Takes one object; blocks while too much is under way. With `delta`, `data` is the delta to its base."""
        if object_id in self.seen:
            return
        self.seen.add(object_id)
        limit = self.form.segment_bytes
        if len(data) > pack_format.SEGMENT_RAW_BYTES_MAX:
            raise ValueError(f"an object of {len(data)} bytes: no reader would unpack it")
        if len(data) >= limit:  # a large chunk travels alone; what gathered before it stays open
            alone = _Gathering()
            alone.add(kind, object_id, data, delta)
            self._shrink(alone)
            return
        gathering = self._open[kind is ObjectKind.BLOB]
        if gathering.size + len(data) > pack_format.SEGMENT_RAW_BYTES_MAX:
            self._shrink(gathering)
            gathering = self._open[kind is ObjectKind.BLOB] = _Gathering()
        gathering.add(kind, object_id, data, delta)
        if gathering.size >= limit or len(gathering.parts) >= self._objects_max or gathering.is_full:
            self._open[kind is ObjectKind.BLOB] = _Gathering()
            self._shrink(gathering)

    def finish(self) -> None:
        """Seals what is left and hands on the last packs."""
        self._shrink_last(self._open[True])
        if self._open[False].parts:
            self._shrink(self._open[False])
        self._open = {True: _Gathering(), False: _Gathering()}
        while self._shrinking:
            self._take_shrunk()
        self._cut_anew()
        for segments in spread_evenly(self._pack, min(self.spread, self._pack_bytes // SPREAD_BYTES_LEAST)):
            self._pack = segments
            self._seal()
        while self._sealing:
            self.emit(self._sealing.popleft().result())

    def _cut_anew(self) -> None:
        """Cuts segments of a small push near where a pack is to end: packs are of whole segments, and may be uneven."""
        early, self._early, self._keeps_early = self._early, [], False
        parts, total = min(self.spread, self._pack_bytes // SPREAD_BYTES_LEAST), sum(len(s.data) for s in self._pack)
        if parts < 2 or len(early) != len(self._pack):
            return
        largest = max(sum(len(s.data) for s in segments) for segments in spread_evenly(self._pack, parts))
        if largest - total / parts < SPREAD_BYTES_LEAST:
            return
        segments, self._pack = self._pack, []
        self._pack_bytes = self._pack_objects = self._pack_deltas = end = 0
        for segment, gathering in zip(segments, early, strict=True):
            size = len(segment.data)
            begin, end = end, end + size
            ends = [total * n / parts / PIECES for n in range(1, parts * PIECES)]
            slack = total / parts * SLACK
            ends = [gathering.size * (at - begin) / size for at in ends if begin + slack < at < end - slack]
            pieces = gathering.cut_at(ends)
            if len(pieces) > 1:
                for piece in pieces:
                    self._shrink(piece)
            else:
                done: Future[_Shrunk] = Future()
                done.set_result(segment)
                self._shrink(gathering, done)
        while self._shrinking:
            self._take_shrunk()

    def _shrink_last(self, last: _Gathering) -> None:
        """Makes one segment of the last small blobs, or several where `spread` asks for more packs."""
        if not last.parts:
            return
        whole = self.work(self._shrinker(last))
        if self.spread > 1 and last.size >= 2 * SPREAD_BYTES_LEAST:  # alike ones stay together: they shrink together
            pieces = last.cut(min(self.spread, len(whole.result().data) // SPREAD_BYTES_LEAST))
            if len(pieces) > 1:
                for piece in pieces:
                    self._shrink(piece)
                return
        self._shrink(last, whole)

    def _shrink(self, gathering: _Gathering, begun: Future[_Shrunk] | None = None) -> None:
        self._shrinking.append((gathering.size, begun or self.work(self._shrinker(gathering))))
        self._shrinking_bytes += gathering.size
        self._early_bytes += gathering.size
        self._keeps_early &= self._early_bytes <= SHRINKING_BYTES_MAX
        if self._keeps_early:
            self._early.append(gathering)
        else:
            self._early.clear()
        while self._shrinking and (self._shrinking_bytes > SHRINKING_BYTES_MAX or self._shrinking[0][1].done()):
            self._take_shrunk()

    def _shrinker(self, gathering: _Gathering) -> Callable[[], _Shrunk]:
        chain, levels = self.form.chains[-1], self.levels
        level = self.form.level if levels is None else levels.level()

        def run() -> _Shrunk:
            raw = gathering.parts[0] if len(gathering.parts) == 1 else b"".join(gathering.parts)
            shrink = partial(chain.shrink, raw, Context(b"", 0, b"", len(raw), level))
            data = shrink() if levels is None else levels.timed(level, len(raw), shrink)
            return _Shrunk(len(raw), data, bytes(gathering.places), gathering.deltas)

        return run

    def _take_shrunk(self) -> None:
        size, future = self._shrinking.popleft()
        self._shrinking_bytes -= size
        self._place(future.result())

    def _place(self, segment: _Shrunk) -> None:
        size = len(segment.data) + OBJECT_BYTES_OVERHEAD * segment.count
        objects, deltas = self._pack_objects + segment.count, self._pack_deltas + len(segment.deltas)
        full = len(self._pack) >= pack_format.SEGMENTS_MAX or objects > pack_format.OBJECTS_MAX
        full |= deltas > pack_format.DELTAS_MAX
        over = self._pack_bytes + size - self._pack_bytes_max
        if self._pack and (full or over > max(0, size - over)):
            self._seal()  # a segment goes where more of it fits, so that packs have their size on average
        self._pack.append(segment)
        self._pack_bytes += size
        self._pack_objects += segment.count
        self._pack_deltas += len(segment.deltas)

    def _seal(self) -> None:
        if self._pack:
            self._keeps_early = False
            self._early.clear()
            segments, form, choose = self._pack, self.form, self.choose
            random = self.entropy(pack_format.RANDOM_BYTES)
            salt = self.entropy(SALT_BYTES) if choose is not None else b""
            parts = _taken(segments)
            self._sealing.append(self.work(lambda: seal_pack(parts, form, random, salt=salt, choose=choose)))
            self._pack, self._pack_bytes, self._pack_objects, self._pack_deltas = [], 0, 0, 0
        while self._sealing and (len(self._sealing) > SEALING_MAX or self._sealing[0].done()):
            self.emit(self._sealing.popleft().result())


@dataclass(slots=True, eq=False)
class _Gathering:
    """A segment being gathered."""

    places: bytearray = field(default_factory=bytearray)  # `pack_place` of each part
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    deltas: dict[int, Delta] = field(default_factory=dict)  # by offset

    @property
    def is_full(self) -> bool:
        return len(self.deltas) >= pack_format.DELTAS_MAX

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes, delta: Delta | None) -> None:
        encoding = pack_format.WHOLE if delta is None else DELTA
        self.places += pack_format.pack_place(kind, object_id, self.size, len(data), encoding)
        if delta is not None:
            self.deltas[self.size] = delta
        self.parts.append(data)
        self.size += len(data)

    def cut(self, pieces: int) -> list[_Gathering]:
        """The same objects, in order, in at most so many gatherings of about the same size, and one at least."""
        return self.cut_at([self.size * n / pieces for n in range(1, pieces)])

    def cut_at(self, ends: Sequence[float]) -> list[_Gathering]:
        """The same objects, in order, in gatherings that end near these ascending offsets; none is empty."""
        out = [_Gathering()]
        for place, data in zip(pack_format.unpack_places(bytes(self.places)), self.parts, strict=True):
            middle = place.offset + place.length / 2
            if out[-1].parts and len(out) <= len(ends) and middle >= ends[len(out) - 1]:
                out.append(_Gathering())
            out[-1].add(place.kind, place.id, data, self.deltas.get(place.offset))
        return out


def _taken(segments: list[_Shrunk]) -> Iterator[_Shrunk]:
    """These segments, each let go of when the next is taken."""
    segments.reverse()
    while segments:
        yield segments.pop()


def read_footer(data: bytes, name: bytes, form: PackFormat) -> tuple[Header, Footer]:
    """What a whole pack holds, from its bytes alone; verified against its name first."""
    if hashlib.sha256(data).digest() != name:
        raise IntegrityError("pack: not the bytes its name promises")
    h = pack_format.decode_header(data)
    chain = form.chain(h.chain)
    header = data[: pack_format.HEADER_BYTES]
    trailer_at = form.context(header, h, pack_format.TRAILER_NUMBER, pack_format.TRAILER_PLAIN_BYTES)
    trailer_bytes = len(chain.seal(bytes(pack_format.TRAILER_PLAIN_BYTES), trailer_at))
    stored = pack_format.decode_trailer(bytes(chain.open(data[-trailer_bytes:], trailer_at)))
    start = len(data) - trailer_bytes - stored
    if start < pack_format.HEADER_BYTES:
        raise FormatError("pack: its footer does not fit in it")
    at = form.context(header, h, pack_format.FOOTER_NUMBER, pack_format.SEGMENT_RAW_BYTES_MAX)
    footer = pack_format.decode_footer(bytes(chain.get(data[start : len(data) - trailer_bytes], at)))
    if pack_format.offsets(footer.segments)[-1] > start:
        raise FormatError("pack: its segments do not fit in it")
    return h, footer


def read_segment(
    header: bytes, stored: Buffer, number: int, segment: Segment, form: PackFormat, *, verified: bool
) -> Buffer:
    """One segment's raw bytes. `verified`: its stored bytes are known to be right (the whole pack was checked)."""
    h = pack_format.decode_header(header)
    context = form.context(header, h, number, segment.raw_bytes, None if verified else segment.digest)
    raw = form.chain(h.chain).get(stored, context)
    if len(raw) != segment.raw_bytes:
        raise FormatError("segment: not as long as agreed")
    return raw


def read_objects(
    raw: Buffer, located: Iterable[Located], check: Callable[[ObjectKind, bytes | memoryview], bytes]
) -> Iterator[tuple[Located, memoryview]]:
    """The objects asked for of one raw segment, each checked against its id (check twice: architecture.md, D10).

    A delta is checked by whoever opens it: here its own bytes are given. Ends with `DamagedError` if some are not what
    their ids say: a device may list anything, and what others have listed beside it is there all the same.
    """
    view, wrong = memoryview(raw), list[bytes]()
    for item in located:
        if item.encoding > DELTA:
            raise UpgradeError("an object is stored in a newer way", next_step="Upgrade metasync, then try again.")
        data = view[item.offset : item.offset + item.length]
        if item.encoding != DELTA and check(item.kind, data) != item.id:
            wrong.append(item.id)
            continue
        yield item, data
    if wrong:
        error = DamagedError(f"object {wrong[0].hex()[:16]} is not what its id says, though its pack is intact")
        error.objects = tuple(wrong)
        raise error
