"""Golden vectors of tags, ids, directories, files, chunks and snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from content_case import FORMAT, OK, UPGRADE, Case, Cases, case
from content_kit import ID_KEY, IDS, digest

from metasync.codec import u16, u32, u64
from metasync.objects import directory, file, model
from metasync.objects.chunker import Chunker
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind, Snapshot


def of_tags() -> Cases:
    yield "tags-none", case("tags", "no extension records", OK, b"\0", value=())
    two = ((1, b"abc"), (0xFFFF, b""))
    yield "tags-two", case("tags", "two, ascending", OK, bytes.fromhex("02 0001 0003 616263 ffff 0000"), value=two)
    for name, about, data in (
        ("descending", "tag 2 before tag 1", "02 0002 0000 0001 0000"),
        ("twice", "tag 1 two times", "02 0001 0000 0001 0000"),
        ("too-many", "65 of them", "41" + "".join(f"{i:04x}0000" for i in range(65))),
        ("cut-short", "three bytes promised, two there", "01 0001 0003 6162"),
        ("trailing", "a byte behind the last", "01 0001 0000 00"),
        ("missing", "not even a count", ""),
    ):
        yield f"tags-bad-{name}", case("tags", about, FORMAT, bytes.fromhex(data))


def of_ids() -> Cases:
    yield (
        "ids",
        {
            "what": "ids",
            "about": "ids of the same bytes by kind, and the bits that split a directory",
            "id_key": ID_KEY.hex(),
            "of": [
                {"bytes": data.hex(), **{kind.name: IDS.of(kind, data).hex() for kind in ObjectKind}}
                for data in (b"", b"abc", bytes(range(256)))
            ],
            "split": {name.hex(): f"{IDS.split_point(name):016x}" for name in (b"a", b"b", b"\xff\xfe")},
        },
    )


FILE = Entry(Kind.FILE, 0o644, 1_700_000_000_123_456_789, 5, digest(1))
BIG = Entry(Kind.FILE, 0o755, 0, 5 << 20, digest(2), digest(3))
DIR = Entry(Kind.DIR, 0o700, 0, 0, digest(4))
LINK = Entry(Kind.SYMLINK, 0, -1, 7, b"../else")


def leaf(*entries: tuple[bytes, Entry]) -> bytes:
    return directory.encode_dir(entries, IDS)[-1][1]


def dir_ok(about: str, *entries: tuple[bytes, Entry]) -> Case:
    data = leaf(*entries)
    return case("dir node", about, OK, data, id=IDS.of(ObjectKind.DIR, data), value=directory.decode_node(data))


def entry(
    kind: int = 1,
    mode: int = 0o644,
    mtime_ns: int = 0,
    size: int = 5,
    name: bytes = b"a",
    body: bytes = digest(1),
    tags: bytes = b"\0",
) -> bytes:
    """An entry by hand, right or wrong."""
    head = bytes((kind,)) + u16(mode) + mtime_ns.to_bytes(8, "big", signed=True) + u64(size)
    return head + u16(len(name)) + name + body + tags


def node(*entries: bytes, fmt: int = 1, level: int = 0, count: int | None = None) -> bytes:
    return bytes((fmt, level)) + u32(len(entries) if count is None else count) + b"".join(entries)


def child(name: bytes, n: int) -> bytes:
    return u16(len(name)) + name + digest(n)


def of_dirs() -> Cases:
    yield "dir-empty", dir_ok("no entries")
    yield "dir-one-file", dir_ok("one file of one chunk", (b"a", FILE))
    tagged = FILE._replace(tags=((7, b"kept"), (9, b"")))
    yield "dir-all-kinds", dir_ok("each kind of entry", (b"a", tagged), (b"b", BIG), (b"c", DIR), (b"d", LINK))
    extreme = FILE._replace(mode=0o7777, mtime_ns=-(2**63), size=2**64 - 1)
    other = FILE._replace(mode=0, mtime_ns=2**63 - 1, size=0)
    yield "dir-bounds", dir_ok("the least and largest numbers", (b"a", extreme), (b"b", other))
    names = (b"\x01", b"..a", b"A", b"a", b"a b", b"a\nb", "é".encode(), b"\xff")
    yield "dir-names", dir_ok("names are bytes, in the order of bytes", *((n, FILE) for n in sorted(names)))
    yield "dir-long-name", dir_ok("a name of 4,096 bytes", (b"n" * 4096, FILE))
    inner = node(child(b"a", 1), child(b"m", 2), level=1)
    yield "dir-inner", case("dir node", "an inner node", OK, inner, value=directory.decode_node(inner))
    tail = node(child(b"a", 1), level=7)
    yield (
        "dir-inner-tail",
        case("dir node", "a level may end in one child", OK, tail, value=directory.decode_node(tail)),
    )
    good = entry()
    bad = {
        "nothing": ("no bytes", b""),
        "format-0": ("format 0", node(good, fmt=0)),
        "level-8": ("level 8", node(child(b"a", 1), child(b"b", 2), level=8)),
        "count-low": ("one entry more than counted", node(good, entry(name=b"b"), count=1)),
        "count-high": ("one entry less than counted", node(good, count=2)),
        "count-huge": ("2^32-1 entries", node(good, count=2**32 - 1)),
        "trailing": ("a byte behind the last entry", node(good) + b"\0"),
        "cut-short": ("the count of tags is missing", node(good)[:-1]),
        "descending": ("b before a", node(entry(name=b"b"), good)),
        "twice": ("a two times", node(good, good)),
        "name-empty": ("a name of no bytes", node(entry(name=b""))),
        "name-dot": ("the name .", node(entry(name=b"."))),
        "name-dotdot": ("the name ..", node(entry(name=b".."))),
        "name-slash": ("a name with a slash", node(entry(name=b"a/b"))),
        "name-absolute": ("a name that begins with a slash", node(entry(name=b"/etc"))),
        "name-nul": ("a name with a NUL", node(entry(name=b"a\0"))),
        "name-too-long": ("a name of 4,097 bytes", node(entry(name=b"n" * 4097))),
        "mode-high": ("mode 0o10000", node(entry(mode=0o10000))),
        "kind-0": ("kind 0", node(entry(kind=0))),
        "file-id-short": ("31 bytes of an id", node(entry(body=digest(1)[:31], tags=b""))),
        "file-root-short": (
            "a file object's id cut short",
            node(entry(kind=4, body=digest(1) + digest(2)[:31], tags=b"")),
        ),
        "dir-time": ("a directory with a time", node(entry(kind=2, mtime_ns=1, size=0))),
        "dir-size": ("a directory with a size", node(entry(kind=2, size=1))),
        "link-mode": ("a symlink with a mode", node(entry(kind=3, mode=0o777, size=1, body=b"\0\1x"))),
        "link-size": ("a symlink whose size is not its target's", node(entry(kind=3, mode=0, size=2, body=b"\0\1x"))),
        "link-empty": ("a symlink to nothing", node(entry(kind=3, mode=0, size=0, body=b"\0\0"))),
        "link-nul": ("a target with a NUL", node(entry(kind=3, mode=0, size=1, body=b"\0\1\0"))),
        "tags-descending": ("tags out of order", node(entry(tags=b"\2\0\2\0\0\0\1\0\0"))),
        "inner-empty": ("an inner node without children", node(level=1)),
        "inner-descending": ("children out of order", node(child(b"b", 1), child(b"a", 2), level=1)),
        "inner-twice": ("two children of one name", node(child(b"a", 1), child(b"a", 2), level=1)),
        "inner-name": ("a child named ..", node(child(b"..", 1), child(b"a", 2), level=1)),
        "inner-count": ("2^31 children", node(child(b"a", 1), level=1, count=2**31)),
        "inner-trailing": ("a byte behind the last child", node(child(b"a", 1), level=1) + b"\0"),
    }
    for name, (about, data) in bad.items():
        yield f"dir-bad-{name}", case("dir node", about, FORMAT, data)
    newer = {
        "newer": ("format 2", node(good, fmt=2)),
        "kind-5": ("an entry of kind 5, which a later version may write", node(entry(kind=5))),
        "kind-5-unordered": ("kind 5 with a mode and an order of its own", node(good, entry(kind=5, mode=0xFFFF))),
    }
    for name, (about, data) in newer.items():
        yield f"dir-bad-{name}", case("dir node", about, UPGRADE, data)


def shape(nodes: Sequence[tuple[bytes, bytes]], decode: Any) -> list[Any]:
    out = []
    for node_id, data in nodes:
        n = decode(data)
        parts = n.children or n.entries if hasattr(n, "children") else n.parts
        out.append({"level": n.level, "items": len(parts), "bytes": len(data), "id": node_id.hex()})
    return out


def of_splits() -> Cases:
    listing = [(b"%05d.txt" % i, Entry(Kind.FILE, 0o644, i, i, digest(i))) for i in range(6000)]
    yield (
        "split-dir",
        {
            "what": "dir split",
            "about": "entry i of 6,000: name '%05d.txt', mode 644, time i, size i, content SHA-256 of i in decimal",
            "id_key": ID_KEY.hex(),
            "count": 6000,
            "nodes": shape(directory.encode_dir(listing, IDS), directory.decode_node),
        },
    )
    chunks = [Chunk(digest(i), i + 1) for i in range(6000)]
    yield (
        "split-file",
        {
            "what": "file split",
            "about": "chunk i of 6,000: id SHA-256 of i in decimal, i + 1 bytes; content SHA-256 of '-1'",
            "id_key": ID_KEY.hex(),
            "count": 6000,
            "nodes": shape(file.encode_file(digest(-1), chunks, IDS), file.decode_node),
        },
    )


# --- files and chunks


def part(level: int, content: bytes, *children: tuple[bytes, int], fmt: int = 1, **changes: int) -> bytes:
    size = changes.get("size", sum(n for _, n in children))
    head = bytes((fmt, level)) + u64(size) + content + u32(changes.get("count", len(children)))
    return head + b"".join(i + u64(n) for i, n in children)


def of_files() -> Cases:
    zero, one, two = bytes(32), (digest(1), 5), (digest(2), 2**40)
    for name, about, data in (
        ("two-chunks", "the shortest file object: two chunks", part(0, digest(0), one, two)),
        ("same-chunk", "one chunk twice", part(0, digest(0), one, one)),
        ("inner-root", "a root over two nodes", part(1, digest(0), one, two)),
        ("leaf", "a leaf that is no root", part(0, zero, one, two)),
        ("leaf-tail", "a leaf that is no root may have one chunk", part(0, zero, one)),
    ):
        more = {"id": IDS.of(ObjectKind.FILE, data)}
        yield f"file-{name}", case("file node", about, OK, data, **more, value=file.decode_node(data))
    bad = {
        "nothing": ("no bytes", b""),
        "format-0": ("format 0", part(0, digest(0), one, two, fmt=0)),
        "level-8": ("level 8", part(8, digest(0), one, two)),
        "root-of-one": ("a root with one chunk", part(0, digest(0), one)),
        "no-parts": ("nothing in it", part(0, digest(0))),
        "size-low": ("a size below the sum", part(0, digest(0), one, one, size=9)),
        "size-high": ("a size above the sum", part(0, digest(0), one, one, size=11)),
        "empty-chunk": ("a chunk of no bytes", part(0, digest(0), one, (digest(2), 0))),
        "sum-wraps": (
            "sizes whose sum is 5 modulo 2^64",
            part(0, digest(0), one, (digest(2), 2**64 - 1), (digest(3), 1), size=5),
        ),
        "count-high": ("one part less than counted", part(0, digest(0), one, two, count=3)),
        "count-huge": ("2^32-1 parts", part(0, digest(0), one, two, count=2**32 - 1)),
        "trailing": ("a byte behind the last part", part(0, digest(0), one, two) + b"\0"),
        "cut-short": ("a byte is missing", part(0, digest(0), one, two)[:-1]),
    }
    for name, (about, data) in bad.items():
        yield f"file-bad-{name}", case("file node", about, FORMAT, data)
    yield "file-bad-newer", case("file node", "format 2", UPGRADE, part(0, digest(0), one, two, fmt=2))


def stream(n: int) -> bytes:
    """`n` bytes that look random: SHAKE-256 of `chunks`."""
    return hashlib.shake_256(b"chunks").digest(n)


def lengths(chunker: Chunker, data: bytes) -> list[int]:
    at = 0

    def read(n: int) -> bytes:
        nonlocal at
        out = data[at : at + n]
        at += len(out)
        return out

    return [len(c) for c in chunker.cut(read, len(data))]


def of_chunks() -> Cases:
    from content_kit import chunker

    big = (65_536, 262_144, 1_048_576)
    small = (256, 1024, 4096)
    for name, about, kind, whole, sizes, seed, data, size in (
        (
            "default",
            "the default sizes of small files, a secret seed",
            "cdc",
            65_536,
            big,
            2**256 - 1,
            "shake",
            3 << 20,
        ),
        ("seed-1", "seed 1", "cdc", 0, small, 1, "shake", 40_000),
        ("seed-2", "the same bytes under seed 2", "cdc", 0, small, 2, "shake", 40_000),
        ("far", "many candidates to a chunk", "cdc", 0, (2048, 8192, 32_768), 1, "shake", 49_000),
        ("average-odd", "an average that is no power of two", "cdc", 0, (300, 1500, 5001), 1, "shake", 40_000),
        ("zeros", "candidates as far from each other as they can be, no cut", "cdc", 0, small, 3, "zeros", 10_000),
        ("zeros-cut", "the same where the hash makes each a cut", "cdc", 0, small, 1, "zeros", 10_000),
        ("short", "not longer than the least chunk", "cdc", 0, small, 1, "shake", 256),
        ("whole", "small files are one chunk", "cdc", 40_000, small, 1, "shake", 40_000),
        ("empty", "an empty file has no chunk", "cdc", 0, small, 1, "zeros", 0),
        ("fixed", "pieces of one size", "fixed", 0, (1024, 1024, 1024), 1, "shake", 4000),
    ):
        raw = stream(size) if data == "shake" else bytes(size)
        yield (
            f"chunks-{name}",
            {
                "what": "chunks",
                "about": about,
                "kind": kind,
                "whole_bytes_max": whole,
                "sizes": list(sizes),
                "seed": f"{seed:064x}",
                "data": "the first bytes of SHAKE-256 of 'chunks'" if data == "shake" else "zeros",
                "size": size,
                "lengths": lengths(chunker(((None, *sizes),), kind=kind, whole=whole, seed=seed), raw),
            },
        )


# --- snapshots

FIRST = Snapshot(digest(1), (), b"device-16-bytes!", 1_700_000_000_000_000_000, "")
MERGE = Snapshot(digest(1), (digest(2), digest(3)), b"device-16-bytes!", -1, "mérge\n\U0001f600", ((5, b"later"),))


def of_snapshots() -> Cases:
    for name, about, s in (("first", "without parents", FIRST), ("merge", "of two, with a message and a tag", MERGE)):
        data = model.encode_snapshot(s)
        yield f"snapshot-{name}", case("snapshot", about, OK, data, id=IDS.of(ObjectKind.SNAPSHOT, data), value=s)
    good = model.encode_snapshot(FIRST)
    head, rest = good[:33], good[34:]
    bad = {
        "nothing": ("no bytes", b""),
        "format-0": ("format 0", b"\0" + good[1:]),
        "parents-17": ("17 parents", head + b"\x11" + digest(2) * 17 + rest),
        "parents-missing": ("a parent that is not there", head + b"\1" + rest),
        "message-not-utf8": ("a message that is no UTF-8", good[:-3] + b"\0\1\xff\0"),
        "message-surrogate": ("a message with half a surrogate pair", good[:-3] + b"\0\3\xed\xa0\x80\0"),
        "message-long": ("a message longer than the rest", good[:-3] + b"\xff\xffab\0"),
        "tags-twice": ("tag 1 two times", good[:-1] + b"\2\0\1\0\0\0\1\0\0"),
        "trailing": ("a byte behind the tags", good + b"\0"),
        "cut-short": ("no tags", good[:-1]),
    }
    for name, (about, data) in bad.items():
        yield f"snapshot-bad-{name}", case("snapshot", about, FORMAT, data)
    yield "snapshot-bad-newer", case("snapshot", "format 2", UPGRADE, b"\2" + good[1:])
