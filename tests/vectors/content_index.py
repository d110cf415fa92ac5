"""Golden vectors of the pack index, its roots, placement and the list of what is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from content_case import FORMAT, OK, UPGRADE, Case, Cases, case
from content_kit import digest
from content_packs import frame, one_row

from metasync.codec import text16, u16, u32, u64
from metasync.objects.model import ObjectKind
from metasync.store import pack_format as packfile
from metasync.store import placement, retention
from metasync.store.index import (
    IndexRoot,
    IndexSegment,
    PackRecord,
    Ref,
    RootItem,
    encode_root,
    make_segment,
    root_after,
)
from metasync.store.pack_format import Delta, Header, Located, Packs, Segment
from metasync.store.retained import Dropped, Named, Replaced, Retained, encode_retained


def record(number: int, *segments: Segment, **changes: Any) -> PackRecord:
    segments = segments or (Segment(60, 100, digest(number)),)
    size = packfile.HEADER_BYTES + sum(s.stored_bytes for s in segments) + 100
    header = packfile.encode_header(Header(0, 1, digest(number + 100)))
    return PackRecord(digest(number + 200), number, size, header, segments)._replace(**changes)


def table(s: IndexSegment, redundancy: bytes = b"\0\1\1") -> bytes:
    """The tables of an index segment, by hand."""
    out = u32(len(s.packs))
    for p in s.packs:
        out += u64(p.generation) + p.name + u64(p.size) + p.header + redundancy
        out += u32(len(p.segments)) + b"".join(map(one_row, p.segments)) + tag_bytes(p.tags)
    out += u32(len(s)) + s.objects
    return out + u32(len(s.tombstones)) + b"".join(u64(g) + name for g, name in s.tombstones) + tag_bytes(s.tags)


def tag_bytes(tags: Sequence[tuple[int, bytes]]) -> bytes:
    return bytes((len(tags),)) + b"".join(u16(t) + u16(len(b)) + b for t, b in tags)


def index_case(about: str, expect: str, plain_table: bytes, **more: Any) -> Case:
    return case("index segment", about, expect, b"\1" + frame(plain_table), **more)


def index_ok(about: str, s: IndexSegment) -> Case:
    objects = [{"pack": p.name, **located._asdict()} for p, located in s]
    value = {"packs": tuple(s.packs), "objects": objects, "tombstones": s.tombstones, "tags": s.tags}
    return index_case(about, OK, table(s), value=value)


END = u32(0) + b"\0"  # no tombstones, no tags


def of_index() -> Cases:
    a, b = record(1), record(2, Segment(60, 100, digest(5)), Segment(40, 40, digest(6)))
    in_a = [Located(ObjectKind.BLOB, digest(11), 0, 0, 100), Located(ObjectKind.DIR, digest(12), 0, 0, 50)]
    in_b = [Located(ObjectKind.BLOB, digest(11), 1, 0, 40, 1), Located(ObjectKind.SNAPSHOT, digest(13), 0, 3, 4)]
    yield "index-empty", index_ok("nothing", make_segment([]))
    yield "index-one-pack", index_ok("one pack, two objects", make_segment([(a, in_a)]))
    stones = [(9, digest(1)), (3, digest(2)), (3, digest(1))]
    yield (
        "index-two-packs",
        index_ok(
            "an object in two packs, one of them a delta; tombstones", make_segment([(a, in_a), (b, in_b)], stones)
        ),
    )
    same = [(record(1, generation=4), in_a), (record(1, generation=5), in_a)]
    yield "index-generations", index_ok("one pack in two generations", make_segment(same))
    with_rows = b._replace(tags=packfile.delta_tags({(1, 0): Delta(digest(14), 3)}))
    yield "index-deltas", index_ok("a delta with its row", make_segment([(with_rows, in_b)]))
    tagged = make_segment([(a._replace(tags=((1, digest(7)[:16]), (99, b"later"))), in_a)], stones)
    tagged.tags = ((7, b"kept"),)
    yield "index-tags", index_ok("tags of a pack and of the segment", tagged)
    good = table(make_segment([(a, in_a)]))
    objects_at = len(good) - 5 - 2 * 49
    rows = [good[objects_at + i * 49 :][:49] for i in range(2)]
    head = good[: objects_at - 4]

    def listed(*packs: PackRecord) -> bytes:
        return table(IndexSegment(Packs.of(packs), b""))

    low, high = record(1), record(2)
    bad = {
        "nothing": ("no tables", b""),
        "packs-descending": ("packs out of order", listed(high, low)),
        "packs-twice": ("a pack two times", listed(a, a)),
        "delta-row": ("a row of a delta cut short", listed(a._replace(tags=((16, bytes(40)),)))),
        "delta-depth": ("a delta of depth 0", listed(a._replace(tags=((16, bytes(41)),)))),
        "packs-huge": ("2^32-1 packs", b"\xff\xff\xff\xff" + good[4:]),
        "k-0": ("k = 0", table(IndexSegment(Packs.of([a]), b""), b"\0\0\1")),
        "k-above-n": ("k = 2 of n = 1", table(IndexSegment(Packs.of([a]), b""), b"\0\2\1")),
        "pack-large": ("a pack of 256 MiB + 1", listed(a._replace(size=(256 << 20) + 1))),
        "pack-small": ("segments longer than their pack", listed(a._replace(size=97))),
        "segment-large": (
            "a segment that unpacks to 64 MiB + 1",
            listed(record(1, Segment(5, (64 << 20) + 1, digest(1)))),
        ),
        "segments-huge": (
            "2^32-1 segments",
            good.replace(u32(1) + one_row(a.segments[0]), b"\xff" * 4 + one_row(a.segments[0])),
        ),
        "objects-descending": ("objects out of order", head + u32(2) + rows[1] + rows[0] + END),
        "objects-twice": ("an object two times", head + u32(2) + rows[0] * 2 + END),
        "objects-huge": ("2^32-1 objects", head + b"\xff\xff\xff\xff" + good[objects_at:]),
        "kind-0": ("an object of kind 0", head + u32(1) + rows[0][:32] + b"\0" + rows[0][33:] + END),
        "no-pack": ("an object in pack 1 of 1", head + u32(1) + rows[0][:36] + b"\1" + rows[0][37:] + END),
        "no-segment": ("an object in segment 1 of 1", head + u32(1) + rows[0][:40] + b"\1" + rows[0][41:] + END),
        "outside": ("an object longer than its segment", head + u32(1) + rows[0][:48] + b"\xff" + END),
        "tombstones-descending": (
            "tombstones out of order",
            u32(0) * 2 + u32(2) + (u64(2) + digest(1)) + (u64(1) + digest(1)) + b"\0",
        ),
        "tombstones-twice": ("a tombstone two times", u32(0) * 2 + u32(2) + (u64(1) + digest(1)) * 2 + b"\0"),
        "tombstones-huge": ("2^32-1 tombstones", u32(0) * 2 + b"\xff\xff\xff\xff" + u64(1) + digest(1)),
        "tags-twice": ("tag 1 two times", good[:-1] + b"\2\0\1\0\0\0\1\0\0"),
        "trailing": ("a byte behind the tags", good + b"\0"),
        "cut-short": ("a byte is missing", good[:-1]),
    }
    for name, (about, data) in bad.items():
        yield f"index-bad-{name}", index_case(about, FORMAT, data)
    later = {
        "shards": ("a pack of 6 shards, 4 of which give it back", table(IndexSegment(Packs.of([a]), b""), b"\0\4\6")),
        "class": ("a pack of another class of redundancy", table(IndexSegment(Packs.of([a]), b""), b"\1\1\1")),
        "kind-5": ("an object of kind 5", head + u32(1) + rows[0][:32] + b"\5" + rows[0][33:] + END),
    }
    for name, (about, data) in later.items():
        yield f"index-bad-{name}", index_case(about, UPGRADE, data)
    whole = b"\1" + frame(good)
    frames = {
        "empty": ("no bytes", b""),
        "format-0": ("format 0", b"\0" + whole[1:]),
        "no-frame": ("no zstd frame", b"\1" + good),
        "frame-cut": ("a frame cut short", whole[:-1]),
        "frame-trailing": ("a byte behind the frame", whole + b"\0"),
        "frame-twice": ("two frames", whole + frame(good)),
        "frame-no-size": (
            "a frame that does not say how large it unpacks",
            b"\1\x28\xb5\x2f\xfd\0\x58" + frame(good)[9:],
        ),
        "frame-size-huge": (
            "a frame that claims 2^40 bytes",
            b"\1\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + frame(good)[9:],
        ),
        "frame-size-0": ("a frame that claims no bytes", b"\1\x28\xb5\x2f\xfd\x20\0" + frame(good)[9:]),
        "frame-skippable": ("a skippable frame", b"\1\x50\x2a\x4d\x18\3\0\0\0abc"),
    }
    for name, (about, data) in frames.items():
        yield f"index-bad-{name}", case("index segment", about, FORMAT, data)
    yield "index-bad-newer", case("index segment", "format 2", UPGRADE, b"\2" + whole[1:])


def of_roots() -> Cases:
    largest = RootItem(Ref(2**64 - 1, digest(2)), 2**40, 2**33, 2**32 - 1, ((9, b"later"),))
    items = (RootItem(Ref(3, digest(1)), 4096, 70, 2), largest)
    segment = b"\1" + frame(table(make_segment([])))
    inline = RootItem(Ref(3, hashlib.sha256(segment).digest()), len(segment), 0, 0, ((1, segment),))
    for name, about, root in (
        ("empty", "no segments", IndexRoot()),
        ("two", "two segments, one of them with a tag, and a tag of the root", IndexRoot(items, ((2, b"x"),))),
        ("inline", "a segment that stands in the root itself", IndexRoot((items[0], inline))),
        ("after", "a root that goes on from another one", root_after(Ref(3, digest(4)), [inline])),
    ):
        yield f"root-{name}", case("index root", about, OK, encode_root(root), value=root)
    good = encode_root(IndexRoot(items))
    bad = {
        "nothing": ("no bytes", b""),
        "format-0": ("format 0", b"\0" + good[1:]),
        "count-1025": ("more segments than a root may list", b"\1" + u32(1025) + good[5:66] * 1025 + b"\0"),
        "count-huge": ("2^32-1 segments", b"\1\xff\xff\xff\xff" + good[5:]),
        "count-high": ("one segment less than counted", b"\1" + u32(3) + good[5:]),
        "count-low": ("one segment more than counted", b"\1" + u32(1) + good[5:]),
        "tags-twice": ("tag 1 two times", good[:-1] + b"\2\0\1\0\0\0\1\0\0"),
        "inline-hash": (
            "a segment in it that is not the one it names",
            encode_root(IndexRoot((inline._replace(ref=Ref(3, digest(1))),))),
        ),
        "inline-size": (
            "a segment in it that is longer than it says",
            encode_root(IndexRoot((inline._replace(size=inline.size - 1),))),
        ),
        "after-short": ("a root to go on from that lacks a byte", encode_root(IndexRoot(items, ((1, bytes(39)),)))),
        "after-long": ("two roots to go on from", encode_root(IndexRoot(items, ((1, bytes(80)),)))),
        "trailing": ("a byte behind the tags", good + b"\0"),
        "cut-short": ("no tags", good[:-1]),
    }
    for name, (about, data) in bad.items():
        if len(data) < 10_000:
            yield f"root-bad-{name}", case("index root", about, FORMAT, data)
    yield "root-bad-newer", case("index root", "format 2", UPGRADE, b"\2" + good[1:])


def of_placement() -> Cases:
    """What a writer needs: the logarithm, and where packs of one config go."""
    numbers = [0, 1, 2, 2**20, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    numbers += [int.from_bytes(digest(n)[:8], "big") for n in range(9)]
    weights = {"a": 1 << 40, "b": 15 << 30, "c": 1 << 40, "d": 1, "e": 1 << 63}
    targets = [placement.Target(digest(ord(name))[:16], weight) for name, weight in weights.items()]
    names = [digest(n) for n in range(300, 310)]

    def told(name: bytes) -> Case:
        at = placement.partition_of(name, 65_536)
        costs = {t.backend_id.hex(): str(placement.cost(t, at)) for t in targets}
        order = [i.hex() for i in placement.order(targets, at)]
        return {"name": name.hex(), "partition": at, "costs": costs, "order": order}

    yield (
        "placement",
        {
            "what": "placement",
            "about": "floor* of twenty numbers, in decimal; five backends of unequal weights, ten packs, H = 65,536",
            "neg_ln": {str(h): str(placement.neg_ln(h)) for h in numbers},
            "weights": {t.backend_id.hex(): str(t.weight) for t in targets},
            "partitions": 65_536,
            "packs": [told(name) for name in names],
        },
    )


def of_retained() -> Cases:
    below = bytes(range(32))
    policy = retention.parse("last=5 daily=unlimited within=1y5m7d2h tag=first-draft")
    trees = Replaced(bytes(32), below), Replaced(below, bytes(32))
    for name, about, value in (
        ("one", "version 1 is no longer kept", Retained((Dropped(1, 1),))),
        (
            "three",
            "three intervals, and a tag",
            Retained((Dropped(1, 7), Dropped(9, 9, below), Dropped(11, 2**63 - 1, below)), tags=((5, b"later"),)),
        ),
        ("named", "two versions with names, and a policy", Retained((), (Named("draft", 3), Named("é", 1)), policy)),
        ("forgotten", "two snapshots with other trees, and packs to be purged", Retained(replaced=trees, purge=True)),
    ):
        yield f"retained-{name}", case("retained list", about, OK, encode_retained(value), value=value)

    end = b"\0\0\0\0" + b"\0" + b"\0"  # no trees, nothing to purge, no tags

    def rows(*pairs: tuple[int, int], rest: bytes = b"\0\0" + b"\0\0" + end) -> bytes:
        return b"\1" + u32(len(pairs)) + b"".join(u64(a) + u64(b) + below for a, b in pairs) + rest

    def names(*named: tuple[str, int]) -> bytes:
        return u16(len(named)) + b"".join(text16(name) + u64(v) for name, v in named) + b"\0\0" + end

    def forgotten(*ids: bytes, purge: bytes = b"\0") -> bytes:
        return rows(rest=b"\0\0" + b"\0\0" + u32(len(ids)) + b"".join(i + below for i in ids) + purge + b"\0")

    good = rows((1, 2), (4, 5))
    bad = {
        "nothing": ("no bytes", b""),
        "empty": ("no intervals, names or policy: then there is no list", rows()),
        "version-0": ("version 0 dropped", rows((0, 3))),
        "upside-down": ("an interval that ends before it begins", rows((3, 2))),
        "adjacent": ("two intervals that are one", rows((1, 2), (3, 4))),
        "descending": ("intervals out of order", rows((4, 5), (1, 2))),
        "count-high": ("one interval less than counted", b"\1" + u32(3) + good[5:]),
        "count-huge": ("2^32-1 intervals", b"\1\xff\xff\xff\xff" + good[5:]),
        "trailing": ("a byte behind the tags", good + b"\0"),
        "cut-short": ("no tags", good[:-1]),
        "names-descending": ("names out of order", rows(rest=names(("b", 1), ("a", 2)))),
        "name-twice": ("a name twice", rows(rest=names(("a", 1), ("a", 2)))),
        "name-number": ("a name that is a number", rows(rest=names(("12", 1)))),
        "name-dropped": ("a name of a version that is dropped", rows((1, 2), rest=names(("a", 2)))),
        "policy-unknown": ("a word that no policy has", rows(rest=u16(0) + text16("minutely=3") + end)),
        "policy-order": ("a policy in another order", rows(rest=u16(0) + text16("daily=3 last=2") + end)),
        "trees-descending": ("trees out of order", forgotten(below, bytes(32))),
        "tree-twice": ("two trees for one snapshot", forgotten(below, below)),
        "purge": ("a flag that is neither 0 nor 1", forgotten(below, purge=b"\2")),
        "policy-zero": ("a number of 0", rows(rest=u16(0) + text16("last=0") + end)),
    }
    for name, (about, data) in bad.items():
        yield f"retained-bad-{name}", case("retained list", about, FORMAT, data)
    yield "retained-bad-newer", case("retained list", "format 2", UPGRADE, b"\2" + good[1:])
