"""`metasync.store.packs`: packs are built in a pipeline, readable by themselves, and never taken on trust."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from content_kit import (
    CASES,
    FULL,
    IDS,
    SEALED_ONLY,
    Entropy,
    Object,
    at_once,
    blob,
    digest,
    mutated,
    noise,
    pack_all,
    pack_format,
)

from metasync.backends.digests import KINDS, digest_of
from metasync.codec import padme
from metasync.errors import DamagedError, FormatError, UpgradeError, WorkspaceError
from metasync.objects.model import ObjectKind
from metasync.store import pack_format as packfile
from metasync.store import packs
from metasync.store.index import objects_at, pack_objects
from metasync.store.pack_format import Delta, Footer, Header, Located, Segment
from metasync.store.packs import (
    OBJECT_BYTES_OVERHEAD,
    SEALING_MAX,
    Packer,
    PackFormat,
    SealedPack,
    read_footer,
    read_objects,
    read_segment,
    seal_pack,
)
from metasync.transfer.copies import record_of
from metasync.translators._base import IntegrityError

KIB = 1 << 10
Work = Callable[[Callable[[], Any]], Future[Any]]


def objects(n: int = 400, seed: int = 1) -> list[Object]:
    """Small and large blobs, trees and a snapshot, mixed."""
    rng = random.Random(seed)
    out: list[Object] = []
    for i in range(n):
        data = rng.randbytes(rng.choice((1, 50, 700, 3000))) + b"text " * rng.randrange(100) + b"%d" % i
        kind = rng.choice((ObjectKind.BLOB, ObjectKind.BLOB, ObjectKind.BLOB, ObjectKind.DIR, ObjectKind.FILE))
        out.append((kind, IDS.of(kind, data), data))
        if i % 50 == 0:
            out.append(blob(rng.randbytes(20 * KIB)))
    snapshot = b"snapshot"
    out.append((ObjectKind.SNAPSHOT, IDS.of(ObjectKind.SNAPSHOT, snapshot), snapshot))
    return out


@pytest.fixture(params=["at once", "threads"])
def work(request: pytest.FixtureRequest) -> Iterator[Work]:
    if request.param == "at once":
        yield at_once
        return
    with ThreadPoolExecutor(3) as pool:
        yield pool.submit


def read_back(packed: list[SealedPack], form: PackFormat, *, verified: bool = True) -> dict[bytes, bytes]:
    """Every object of every pack, read from the packs' bytes alone, segment by segment."""
    out: dict[bytes, bytes] = {}
    for pack in packed:
        _, footer = read_footer(pack.data, pack.name, form)
        at = packfile.offsets(footer.segments)
        for number, segment in enumerate(footer.segments):
            stored = pack.data[at[number] : at[number + 1]]
            raw = read_segment(pack.data[: packfile.HEADER_BYTES], stored, number, segment, form, verified=verified)
            wanted = [o for o in footer.objects if o.segment == number]
            for located, data in read_objects(raw, wanted, IDS.of):
                assert located.id not in out, "packed twice"
                out[located.id] = bytes(data)
    return out


@pytest.mark.parametrize("encrypted", [True, False])
def test_all_that_goes_in_comes_out(work, encrypted):
    form = pack_format(encrypted=encrypted)
    added = objects()
    packed = pack_all([*added, *added[:50]], form, work)
    expected = {i: data for _, i, data in added}
    assert read_back(packed, form) == expected
    assert read_back(packed, form, verified=False) == expected
    kinds = {o.id: o.kind for p in packed for o in p.footer.objects}
    assert kinds == {i: kind for kind, i, _ in added}
    assert len(packed) > 3


def test_threads_make_the_packs_that_one_thread_makes():
    with ThreadPoolExecutor(4) as pool:
        several = pack_all(objects(), pack_format(), pool.submit)
    assert several == pack_all(objects(), pack_format()), "same bytes, same names, same order"


def test_packs_come_in_the_order_in_which_objects_went_in():
    added = [blob(noise(2000, i)) for i in range(500)]
    with ThreadPoolExecutor(4) as pool:
        packed = pack_all(added, pack_format(), pool.submit)
    assert [o.id for p in packed for o in p.footer.objects] == [i for _, i, _ in added]


def test_a_pack_is_named_by_its_bytes_and_known_by_its_footer():
    form = pack_format()
    for pack in pack_all(objects(), form):
        assert pack.name == hashlib.sha256(pack.data).digest()
        assert read_footer(pack.data, pack.name, form) == (pack.header, pack.footer)
        assert packfile.decode_header(pack.data) == pack.header


def test_random_bytes_are_used_once():
    packed = pack_all(objects(), pack_format())
    assert len({p.header.random for p in packed}) == len(packed)


def test_sizes_of_packs():
    form = pack_format()
    sealed = pack_all([blob(noise(1500, i)) for i in range(2000)], form)
    for pack in sealed[:-1]:
        assert 0.75 * form.pack_bytes < len(pack.data) < 1.15 * form.pack_bytes
    assert all(len(p.data) == padme(len(p.data)) for p in sealed), "a size that padding gives"
    plain = pack_format(encrypted=False)
    for pack in pack_all(objects(), plain):
        at = packfile.offsets(pack.footer.segments)
        footer = FULL.shrink(packfile.encode_footer(pack.footer), plain.context(b"", pack.header, 0, 0))
        assert len(pack.data) == at[-1] + len(footer) + packfile.TRAILER_PLAIN_BYTES, "nothing is padded in the open"


@pytest.mark.parametrize("size", [0, 1, 100, 5000, 70_000])
def test_padding_is_exact(size):
    """The smallest Padmé size that holds the pack with an empty padding."""
    form = pack_format(chains=(SEALED_ONLY,))
    (pack,) = pack_all([blob(noise(size))], form)
    fixed = packfile.HEADER_BYTES + (size + 16) + 16 + (len(packfile.encode_footer(pack.footer)) + 16) + (4 + 16)
    assert len(pack.data) == padme(fixed)


def test_a_pack_has_the_digests_that_its_format_asks_for():
    form = replace(pack_format(), digests=("content_hash", "md5", "sha1"))
    (pack,) = pack_all([blob(b"abc")], form)
    assert pack.tags == tuple((KINDS[kind].tag, digest_of(kind, pack.data)) for kind in ("md5", "sha1", "content_hash"))
    (plain,) = pack_all([blob(b"abc")], pack_format())
    assert plain.tags == ()
    record = record_of(pack, 3)
    assert record.digest("sha256") == pack.name
    assert record.digest("content_hash") == digest_of("content_hash", pack.data)
    assert (record.digest("crc"), record_of(plain, 3).digest("md5")) == (None, None)
    assert record._replace(tags=((KINDS["sha1"].tag, b"short"),)).digest("sha1") is None


def test_a_large_chunk_is_a_segment_alone():
    small = [blob(noise(100, i)) for i in range(10)]
    large = [blob(noise(16 * KIB + i, i)) for i in range(3)]
    mixed = [x for i in range(3) for x in (*small[i * 3 : i * 3 + 3], large[i])]
    (pack,) = pack_all(mixed, pack_format())
    for _, object_id, data in large:
        (o,) = (o for o in pack.footer.objects if o.id == object_id)
        assert (o.offset, o.length) == (0, pack.footer.segments[o.segment].raw_bytes) == (0, len(data))
    assert len({o.segment for o in pack.footer.objects}) == 4, "the small ones share a segment"


def test_trees_lie_in_other_segments_than_blobs():
    for pack in pack_all(objects(), pack_format()):
        by_segment: dict[int, set[bool]] = {}
        for o in pack.footer.objects:
            by_segment.setdefault(o.segment, set()).add(o.kind is ObjectKind.BLOB)
        assert all(len(kinds) == 1 for kinds in by_segment.values())


def test_duplicates_are_packed_once():
    packer = Packer(pack_format(), at_once, Entropy(), lambda pack: None)
    kind, object_id, data = blob(b"abc")
    assert object_id not in packer.seen
    packer.add(kind, object_id, data)
    packer.add(kind, object_id, data)
    assert object_id in packer.seen
    (pack,) = pack_all([blob(b"abc")] * 3, pack_format())
    assert len(pack.footer.objects) == 1


def test_nothing_added_makes_no_pack():
    assert pack_all([], pack_format()) == []


def test_a_pack_without_segments_is_readable():
    form = pack_format()
    pack = seal_pack([], form, bytes(32))
    assert read_footer(pack.data, pack.name, form)[1] == Footer((), ())


def test_many_tiny_objects_do_not_make_a_footer_larger_than_a_pack():
    form = pack_format(segment_bytes=64 * KIB, pack_bytes=64 * KIB)
    packed = pack_all([blob(b"%05d" % i) for i in range(5000)], form)
    assert max(len(p.footer.objects) for p in packed) <= 64 * KIB // OBJECT_BYTES_OVERHEAD
    assert max(len(p.data) for p in packed) < 80 * KIB
    assert sum(len(p.footer.objects) for p in packed) == 5000


def test_counts_and_sizes_that_readers_refuse_are_never_written(monkeypatch):
    monkeypatch.setattr(packfile, "SEGMENTS_MAX", 5)
    monkeypatch.setattr(packfile, "OBJECTS_MAX", 7)
    form = pack_format(pack_bytes=1 << 30)
    added = [blob(bytes(16 * KIB + i)) for i in range(23)] + [blob(b"%d" % i) for i in range(40)]
    packed = pack_all(added, form)
    assert max(len(p.footer.segments) for p in packed) == 5
    assert max(len(p.footer.objects) for p in packed) == 7
    assert len(read_back(packed, form)) == 63
    monkeypatch.setattr(packfile, "SEGMENT_RAW_BYTES_MAX", 10 * KIB)
    packed = pack_all([blob(noise(3 * KIB, i)) for i in range(20)], form)
    assert max(s.raw_bytes for p in packed for s in p.footer.segments) == 9 * KIB
    with pytest.raises(ValueError, match="no reader"):
        pack_all([blob(bytes(10 * KIB + 1))], form)


# --- names that are chosen


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_chosen_name_is_that_of_a_pack_which_any_reader_reads(encrypted, number):
    form = pack_format(encrypted=encrypted)
    added = objects()
    packed: list[SealedPack] = []
    offered: list[tuple[int, list[bytes]]] = []

    def choose(size: int, names: Any) -> int:
        offered.append((size, [next(names) for _ in range(number + 1)]))
        return number

    packer = Packer(form, at_once, Entropy(), packed.append, choose)
    for o in added:
        packer.add(*o)
    packer.finish()
    assert len(packed) > 1
    for pack, (size, names) in zip(packed, offered, strict=True):
        assert hashlib.sha256(pack.data).digest() == pack.name == names[number]
        assert len(set(names)) == number + 1
        assert len(pack.data) == size
        assert len(pack.data) == padme(len(pack.data)) or not encrypted
        assert read_footer(pack.data, pack.name, form) == (pack.header, pack.footer)
    assert read_back(packed, form) == {i: data for _, i, data in added}


def test_packs_that_differ_by_their_salt_alone_differ_in_these_bytes_alone():
    form = pack_format()
    one, other = (
        seal_pack(
            [], form, bytes(32), salt=bytes(8), choose=lambda _size, names, n=n: [next(names) for _ in "12"] and n
        )
        for n in (0, 1)
    )
    assert one.name != other.name
    assert len(one.data) == len(other.data)
    (at,) = (i for i, (a, b) in enumerate(zip(one.data, other.data, strict=True)) if a != b)
    assert one.data[at - 7 : at + 1] == bytes(8)


def test_salts_go_round_at_their_end():
    seen: list[bytes] = []

    def choose(_size: int, names: Any) -> int:
        seen.extend(next(names) for _ in range(3))
        return 2

    pack = seal_pack([], pack_format(), bytes(32), salt=b"\xff" * 8, choose=choose)
    assert hashlib.sha256(pack.data).digest() == pack.name == seen[2]


# --- a small push goes to all backends


def spread(added: list[Object], parts: int, work: Work = at_once) -> list[SealedPack]:
    """The packs of a push whose packs have 4 MiB in segments of 1 MiB."""
    form = pack_format(segment_bytes=KIB * KIB, pack_bytes=4 * KIB * KIB)
    out: list[SealedPack] = []
    packer = Packer(form, work, Entropy(), out.append, spread=parts)
    for o in added:
        packer.add(*o)
    packer.finish()
    assert read_back(out, form) == {i: data for _, i, data in added}
    return out


def random_blobs(count: int, size: int) -> list[Object]:
    rng = random.Random(count)
    return [blob(rng.randbytes(size)) for _ in range(count)]


@pytest.mark.few
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize(("count", "size"), [(20, 100_000), (3, 1_200_000), (9, 450_000), (2000, 1000), (60, 52_000)])
def test_what_is_left_at_the_end_is_spread(work, parts, count, size):
    packed = spread(random_blobs(count, size), parts, work)
    sizes = [len(p.data) for p in packed]
    largest = max(s.stored_bytes for p in packed for s in p.footer.segments)
    assert 2 <= len(sizes) <= parts
    assert max(sizes) < sum(sizes) / parts + largest


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(("count", "size"), [(10, 100_000), (900, 1000), (8, 120_000)])
def test_small_files_are_spread_evenly(work, parts, count, size):
    sizes = [len(p.data) for p in spread(random_blobs(count, size), parts, work)]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) < 1.1 * size + 20_000


@pytest.mark.few(3)
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize(("count", "size"), [(22, 52_000), (1800, 1000), (19, 150_000), (1100, 1000)])
def test_files_that_filled_segments_before_the_end_was_known_are_spread_too(work, parts, count, size):
    sizes = [len(p.data) for p in spread(random_blobs(count, size), parts, work)]
    mean = sum(sizes) / len(sizes)
    assert len(sizes) == min(parts, sum(sizes) // packs.SPREAD_BYTES_LEAST)
    assert max(sizes) < mean + packs.SPREAD_BYTES_LEAST, "the fullest pack costs less than a round trip more"


def test_only_the_last_pack_is_spread():
    added = random_blobs(100, 100_000)
    as_one, spread_out = ([len(p.footer.objects) for p in spread(added, parts)] for parts in (1, 3))
    assert as_one == [44, 44, 12]
    assert spread_out == [44, 44, 11, 1]


@pytest.mark.parametrize("size", [100, 10_000, 2 * packs.SPREAD_BYTES_LEAST - 2000])
def test_what_is_too_small_to_spread_is_one_pack(size):
    assert len(spread([blob(noise(size, 1))], 3)) == 1
    tree = noise(300, 2)
    added = [blob(noise(size // 10, i)) for i in range(10)]
    assert len(spread([*added, (ObjectKind.DIR, IDS.of(ObjectKind.DIR, tree), tree)], 3)) == 1


def test_packed_places_are_what_the_footer_says():
    trees = [(ObjectKind.DIR, IDS.of(ObjectKind.DIR, data), data) for data in (noise(1000, i) for i in range(5))]
    for pack in spread([*random_blobs(3000, 1000), *trees], 1):
        _, footer = read_footer(pack.data, pack.name, pack_format())
        assert footer == pack.footer
        assert objects_at(pack.places) == pack_objects(footer.objects)
        assert packfile.kinds_of(pack.places) == {o.kind for o in footer.objects}
        assert len({o.segment for o in footer.objects}) == len(footer.segments) > 1


@pytest.mark.parametrize(("added", "shrunk"), [
    ([blob((b"text %d " % i) * 10_000) for i in range(10)], 1),  # one segment after all: it is shrunk once
    ([blob(noise(60_000, i)) for i in range(15)], 4),  # and three in place of one
    ([blob(noise(1000, 1))], 1),
])  # fmt: skip
def test_the_last_segment_is_shrunk_once_more_only_where_it_is_cut(added, shrunk, monkeypatch):
    sizes: list[int] = []
    really = Packer._shrinker
    monkeypatch.setattr(Packer, "_shrinker", lambda self, g: sizes.append(g.size) or really(self, g))
    spread(added, 3)
    assert len(sizes) == shrunk
    assert sum(sizes) == sum(len(data) for _, _, data in added) * (1 if shrunk == 1 else 2)


def test_what_shrinks_stays_together():
    texts = [blob((b"text %d " % i) * 10_000) for i in range(10)]
    (pack,) = spread(texts, 3)
    assert len(pack.footer.segments) == 1
    assert len(pack.data) < 100_000


@pytest.mark.parametrize(("count", "pack_bytes"), [(9, 1 << 30), (3, 1 << 20)])
def test_little_is_kept_to_be_cut_anew(count, pack_bytes):
    """8 MiB at most, and nothing once a pack was sealed."""
    form = pack_format(segment_bytes=KIB * KIB, pack_bytes=pack_bytes)
    packer = Packer(form, at_once, Entropy(), lambda _: None, spread=3)
    for added in random_blobs(count, KIB * KIB):
        packer.add(*added)
        assert sum(g.size for g in packer._early) <= packs.SHRINKING_BYTES_MAX
    assert packer._early == []
    assert not packer._keeps_early


def test_a_segment_that_is_large_by_itself_stays_beside_those_that_are_cut():
    large, small = random_blobs(2, 1_200_000), random_blobs(18, 90_000)
    packed = spread([*small[:9], large[0], *small[9:], large[1]], 3)
    assert len(packed) == 3
    assert sum(s.raw_bytes == 1_200_000 for p in packed for s in p.footer.segments) == 2


def test_trees_and_histories_are_spread_with_the_rest():
    trees = [(ObjectKind.DIR, IDS.of(ObjectKind.DIR, data), data) for data in (noise(1000, i) for i in range(5))]
    packed = spread([*random_blobs(10, 100_000), *trees], 3)
    assert len(packed) == 3
    kinds = [{o.kind for o in p.footer.objects} for p in packed]
    assert kinds == [{ObjectKind.BLOB}, {ObjectKind.BLOB}, {ObjectKind.BLOB, ObjectKind.DIR}]


# --- the pipeline


class Broken(Exception):  # noqa: N818
    """What goes wrong in a test."""


def test_errors_of_emit_come_out(work):
    def emit(pack: SealedPack) -> None:
        raise Broken

    packer = Packer(pack_format(), work, Entropy(), emit)
    with pytest.raises(Broken):  # noqa: PT012 - at which object it surfaces is up to the threads
        for o in objects():
            packer.add(*o)
        packer.finish()


@pytest.mark.parametrize("at", [0, 3, 9])
def test_errors_of_workers_come_out(work, at):
    turn = iter(range(10_000))

    def failing(function: Callable[[], Any]) -> Future[Any]:
        if next(turn) == at:

            def fail() -> None:
                raise Broken

            return work(fail)
        return work(function)

    packer = Packer(pack_format(), failing, Entropy(), lambda pack: None)
    with pytest.raises(Broken):  # noqa: PT012
        for o in objects():
            packer.add(*o)
        packer.finish()


def test_little_is_under_way_at_once(monkeypatch):
    """While workers are slower than the caller, `add` blocks before memory fills."""
    monkeypatch.setattr(packs, "SHRINKING_BYTES_MAX", 6 * 20 * KIB)
    under_way = most = 0
    lock = threading.Lock()
    with ThreadPoolExecutor(2) as pool:

        def slow(function: Callable[[], Any]) -> Future[Any]:
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            return pool.submit(run, function)

        def run(function: Callable[[], Any]) -> Any:
            nonlocal under_way
            time.sleep(0.002)
            try:
                return function()
            finally:
                with lock:
                    under_way -= 1

        packed = pack_all([blob(noise(20 * KIB, i)) for i in range(100)], pack_format(), slow)
    assert len(packed) > 10
    assert 2 < most <= 6 + 1 + SEALING_MAX + 1, "six segments and one on its way, two packs and one on its way"


# --- hostile packs


def resealed(parts: list[bytes]) -> tuple[bytes, bytes]:
    data = b"".join(parts)
    return hashlib.sha256(data).digest(), data


@pytest.mark.parametrize("encrypted", [True, False])
def test_any_altered_pack_is_refused_by_its_name(encrypted):
    form = pack_format(encrypted=encrypted)
    (pack,) = pack_all([blob(b"abc" * 50), blob(noise(300))], form)
    rng = random.Random(1)
    for _ in range(CASES):
        bad = mutated(rng, pack.data)
        if bad != pack.data:
            with pytest.raises(IntegrityError):
                read_footer(bad, pack.name, form)
    for n in range(len(pack.data)):
        with pytest.raises(IntegrityError):
            read_footer(pack.data[:n], pack.name, form)


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("chain", [FULL, SEALED_ONLY], ids=["compressed", "plain"])
def test_hostile_packs_with_the_right_name(encrypted, chain):
    """What someone could store who may name packs: nothing but format errors, and in secret nothing is taken."""
    form = pack_format(encrypted=encrypted, chains=(chain,))
    valid = [pack_all(o, form)[0].data for o in ([blob(b"abc" * 50), blob(noise(300))], [blob(b"")])]
    valid.append(seal_pack([], form, bytes(32)).data)
    footers = [read_footer(data, hashlib.sha256(data).digest(), form)[1] for data in valid]
    rng = random.Random(2)
    taken = 0
    for turn in range(CASES + 500):
        data = mutated(rng, rng.choice(valid)) if turn < CASES else rng.randbytes(rng.randrange(300))
        try:
            _, footer = read_footer(data, hashlib.sha256(data).digest(), form)
        except (FormatError, UpgradeError):
            continue
        except WorkspaceError:  # an epoch whose key is not here
            continue
        taken += 1
        assert packfile.offsets(footer.segments)[-1] <= len(data)
        assert not encrypted or footer in footers, "a footer that was never sealed"
    assert taken


@pytest.mark.parametrize("encrypted", [True, False])
def test_hostile_segments(encrypted):
    form = pack_format(encrypted=encrypted)
    (pack,) = pack_all([blob(b"abc" * 50), blob(noise(300))], form)
    header = pack.data[: packfile.HEADER_BYTES]
    segment = pack.footer.segments[0]
    stored = pack.data[packfile.HEADER_BYTES :][: segment.stored_bytes]
    rng = random.Random(3)
    for _ in range(CASES):
        bad = mutated(rng, stored)
        if bad == stored:
            continue
        with pytest.raises(IntegrityError):
            read_segment(header, bad, 0, segment, form, verified=False)
        try:
            raw = read_segment(header, bad, 0, segment, form, verified=True)
        except FormatError:
            continue
        assert not encrypted
        assert len(raw) == segment.raw_bytes
    with pytest.raises(FormatError, match="not as long"):
        read_segment(header, stored, 0, segment._replace(raw_bytes=segment.raw_bytes + 1), form, verified=False)


def test_a_segment_opens_only_in_its_place():
    form = pack_format()
    chunks = [blob(noise(16 * KIB, i)) for i in range(2)]
    one, two = pack_all(chunks, form), pack_all([blob(b"first"), *chunks], form)
    (pack,), (other,) = one, two
    segment = pack.footer.segments[0]
    header = pack.data[: packfile.HEADER_BYTES]
    stored = pack.data[packfile.HEADER_BYTES :][: segment.stored_bytes]
    assert read_segment(header, stored, 0, segment, form, verified=True)
    wrong_header = packfile.encode_header(Header(0, 1, digest(99)))
    wrong_epoch = packfile.encode_header(pack.header._replace(epoch=2))
    stranger = pack_format(ns_id=digest(5))
    for h, number, f in (
        (header, 1, form),
        (wrong_header, 0, form),
        (wrong_epoch, 0, form),
        (header, 0, stranger),
        (header, packfile.FOOTER_NUMBER, form),
    ):
        with pytest.raises(FormatError, match="does not open"):
            read_segment(h, stored, number, segment, f, verified=True)
    with pytest.raises(FormatError, match="does not open"):
        read_footer(other.data, other.name, stranger)


def test_a_chain_that_is_not_known_asks_for_an_upgrade():
    two = pack_format(chains=(FULL, SEALED_ONLY))
    (pack,) = pack_all([blob(b"abc")], two)
    assert pack.header.chain == 1, "the last chain is in force"
    assert read_footer(pack.data, pack.name, two)[1] == pack.footer
    with pytest.raises(UpgradeError):
        read_footer(pack.data, pack.name, pack_format(chains=(FULL,)))


def test_old_chains_and_epochs_stay_readable():
    old = pack_format(epoch=1, chains=(FULL,))
    (pack,) = pack_all([blob(b"abc")], old)
    new = pack_format(epoch=2, chains=(FULL, SEALED_ONLY))
    assert read_back([pack], new) == {IDS.blob(b"abc"): b"abc"}


def test_an_object_that_is_not_what_its_id_says():
    raw = b"abcdef"
    right = Located(ObjectKind.BLOB, IDS.blob(b"bcd"), 0, 1, 3)
    assert [bytes(d) for _, d in read_objects(raw, [right], IDS.of)] == [b"bcd"]
    for wrong in (
        right._replace(id=digest(1)),
        right._replace(offset=2),
        right._replace(length=2),
        right._replace(kind=ObjectKind.DIR),
        right._replace(offset=5),
    ):
        with pytest.raises(DamagedError, match="not what its id says"):
            list(read_objects(raw, [wrong], IDS.of))
    with pytest.raises(UpgradeError, match="newer"):
        list(read_objects(raw, [right._replace(encoding=2)], IDS.of))


def test_deltas_lie_in_packs_with_rows_of_their_bases():
    """Many packs, several segments, whole blobs between: footer and record say the same, every row finds its delta."""
    out: list[SealedPack] = []
    form = pack_format(segment_bytes=4096, pack_bytes=16 << 10)
    packer = Packer(form, at_once, Entropy(), out.append, spread=2)
    rng, given = random.Random(3), dict[bytes, tuple[bytes, Delta | None]]()
    for n in range(400):
        data = rng.randbytes(rng.randrange(20, 400))
        delta = Delta(digest(n % 200), 1 + n % 8) if n % 3 else None
        given[IDS.blob(data)] = data, delta
        packer.add(ObjectKind.BLOB, IDS.blob(data), data, delta)
    packer.finish()
    assert len(out) > 2
    for pack in out:
        _, footer = read_footer(pack.data, pack.name, form)
        assert footer == pack.footer
        assert packfile.has_deltas(record_of(pack, 1).tags)
        at = packfile.offsets(footer.segments)
        for o in footer.objects:
            data, delta = given.pop(o.id)
            assert o.encoding == (delta is not None)
            if delta is not None:
                assert packfile.delta_at(footer.tags, o) == delta
                with pytest.raises(FormatError, match="base"):
                    packfile.delta_at(footer.tags, o._replace(offset=o.offset + 1))
            stored = pack.data[at[o.segment] : at[o.segment + 1]]
            header = pack.data[: packfile.HEADER_BYTES]
            raw = read_segment(header, stored, o.segment, footer.segments[o.segment], form, verified=False)
            ((_, read),) = read_objects(raw, [o], IDS.of)
            assert read == data
    assert not given


def test_a_pack_ends_before_its_rows_of_deltas_do(monkeypatch):
    monkeypatch.setattr(packfile, "DELTAS_MAX", 10)
    out: list[SealedPack] = []
    packer = Packer(pack_format(), at_once, Entropy(), out.append)
    for n in range(35):
        packer.add(ObjectKind.BLOB, digest(n), b"%d" % n, Delta(digest(99), 1))
    packer.finish()
    assert [len(p.footer.objects) for p in out] == [10, 10, 10, 5]


def test_rows_fill_one_tag_after_the_other():
    rows = {(0, n): Delta(digest(1), 1) for n in range(2 * packfile.DELTAS_A_TAG + 1)}
    tags = packfile.delta_tags(rows)
    assert [tag for tag, _ in tags] == [16, 17, 18]
    assert packfile.check_deltas(tags, "") == rows.keys()
    assert packfile.delta_at(tags, Located(ObjectKind.BLOB, digest(2), 0, 2 * packfile.DELTAS_A_TAG, 1, 1)).depth == 1
    with pytest.raises(ValueError, match="more deltas"):
        packfile.delta_tags({(0, n): Delta(digest(1), 1) for n in range(packfile.DELTAS_MAX + 1)})


def test_a_footer_that_reaches_beyond_its_pack():
    form = pack_format(encrypted=False, chains=(SEALED_ONLY,))
    header = packfile.encode_header(Header(0, 1, bytes(32)))
    footer = packfile.encode_footer(Footer((Segment(1000, 1000, digest(1)),), ()))
    name, data = resealed([header, bytes(900), footer, packfile.encode_trailer(len(footer))])
    with pytest.raises(FormatError, match="segments do not fit"):
        read_footer(data, name, form)
    for claimed in (len(footer) + 901, 2**32 - 1):
        name, data = resealed([header, bytes(900), footer, packfile.encode_trailer(claimed)])
        with pytest.raises(FormatError, match="footer does not fit"):
            read_footer(data, name, form)


def test_what_packs_hold_is_known_from_their_bytes():
    form = pack_format()
    packed = pack_all(objects(), form)
    for pack in packed:
        assert read_footer(pack.data, pack.name, form) == (pack.header, pack.footer)
    for name, data in ((packed[1].name, packed[1].data[:-1]), (packed[2].name, packed[0].data)):
        with pytest.raises(FormatError):
            read_footer(data, name, form)


def test_a_newer_pack_is_not_taken_for_a_damaged_one():
    form = pack_format()
    (pack,) = pack_all([blob(b"abc")], form)
    newer = b"\2" + pack.data[1:]
    with pytest.raises(UpgradeError):
        read_footer(newer, hashlib.sha256(newer).digest(), form)


def test_keys_of_packs_are_all_different():
    form = pack_format()
    one = packs.WorkspacePackKeys
    assert isinstance(form.keys, one)
    drawn = {form.keys.pack_key(epoch, digest(i)) for epoch in (1, 2) for i in range(50)}
    assert len(drawn) == 100
