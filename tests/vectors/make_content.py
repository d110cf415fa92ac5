"""Writes `tests/vectors/content/*.json` anew: one file per named case, with what must come of it.

    python tests/vectors/make_content.py

A change of format shows as a diff of these files, and none may show otherwise. Nothing here draws chance or depends on
the version of a compressor: zstd frames are written by hand, of raw blocks.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

from content_kit import EPOCH_KEYS, FULL, ID_KEY, IDS, NS_ID, SEALED_ONLY, blob, digest, pack_format

from metasync.codec import padme, text16, u16, u32, u64
from metasync.objects import directory, file, model
from metasync.objects.chunker import Chunker
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind, Snapshot
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
from metasync.store.pack_format import Delta, Footer, Header, Located, Packs, Segment
from metasync.store.packs import SealedPack, _Shrunk, seal_pack
from metasync.store.retained import Dropped, Named, Replaced, Retained, encode_retained
from metasync.translators._base import Chain, Context
from metasync.translators.compress import Compress
from metasync.translators.encrypt import Encrypt
from metasync.translators.integrity import Integrity

FOLDER = Path(__file__).resolve().parent / "content"
OK, FORMAT, UPGRADE, INTEGRITY = "ok", "FormatError", "UpgradeError", "IntegrityError"
Case = dict[str, Any]
Cases = Iterator[tuple[str, Case]]


def plain(value: Any) -> Any:
    """A value as JSON shows it: bytes in hex, records by field, enums by name."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, retention.Keep):
        return str(value)
    if hasattr(value, "_asdict"):
        return {k: plain(v) for k, v in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {(k.hex() if isinstance(k, bytes) else k): plain(v) for k, v in value.items()}
    return value


def lines(data: bytes) -> list[str]:
    """Hex in lines of 32 bytes, so that a diff shows what changed."""
    return [data[i : i + 32].hex() for i in range(0, len(data), 32)]


def case(what: str, about: str, expect: str, data: bytes, **more: Any) -> Case:
    return {
        "what": what,
        "about": about,
        "expect": expect,
        **{k: plain(v) for k, v in more.items()},
        "hex": lines(data),
    }


# --- primitives


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


# --- directories

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


# --- packs


def frame(data: bytes) -> bytes:
    """A zstd frame of one raw block (RFC 8878): the same under every version of the compressor."""
    assert len(data) < 1 << 17
    block = (1 | len(data) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little") + block + data


class Framed(Compress):
    """Compression of a kind that every reader undoes and that no library's version changes."""

    def put(self, data: bytes, context: Context) -> bytes:
        return b"\1" + frame(data)


FRAMED = Chain([Framed(), Encrypt(), Integrity()])
RANDOM = bytes(range(100, 132))


def shrunk(chain: Chain, *objects: tuple[ObjectKind, bytes, bytes]) -> _Shrunk:
    raw, places = b"", b""
    for kind, object_id, data in objects:
        places += packfile.pack_place(kind, object_id, len(raw), len(data))
        raw += data
    return _Shrunk(len(raw), chain.shrink(raw, Context(b"", 0, b"", len(raw))), places)


SNAPSHOT_BYTES = model.encode_snapshot(FIRST)
TREE = (
    (ObjectKind.DIR, IDS.of(ObjectKind.DIR, leaf((b"a", FILE))), leaf((b"a", FILE))),
    (ObjectKind.SNAPSHOT, IDS.of(ObjectKind.SNAPSHOT, SNAPSHOT_BYTES), SNAPSHOT_BYTES),
)
BLOBS = (blob(b"hello"), blob(b""), blob(b"world"))


def pack(chain: Chain = SEALED_ONLY, *, encrypted: bool = True, epoch: int = 1, random: bytes = RANDOM) -> SealedPack:
    form = pack_format(chains=(chain,), encrypted=encrypted, epoch=epoch)
    return seal_pack([shrunk(chain, *BLOBS), shrunk(chain, *TREE)], form, random)


def salted(*, encrypted: bool = True) -> SealedPack:
    """With a salt before the footer: the third one tried."""
    form = pack_format(chains=(SEALED_ONLY,), encrypted=encrypted)
    segments = [shrunk(SEALED_ONLY, *BLOBS), shrunk(SEALED_ONLY, *TREE)]
    return seal_pack(
        segments,
        form,
        RANDOM,
        salt=bytes(range(8)),
        choose=lambda _, names: len([*zip("123", names, strict=False)]) - 1,
    )


def pack_case(
    about: str, expect: str, p: bytes, *, name: bytes | None = None, chain: Chain = SEALED_ONLY, **more: Any
) -> Case:
    values = {
        "chains": [list(chain.names)],
        "encrypted": True,
        "ns_id": NS_ID,
        "epoch_keys": {str(e): k for e, k in EPOCH_KEYS.items()},
        "id_key": ID_KEY,
        "name": hashlib.sha256(p).digest() if name is None else name,
        **more,
    }
    return case("pack", about, expect, p, **values)


def pack_ok(about: str, p: SealedPack, chain: Chain = SEALED_ONLY, **more: Any) -> Case:
    objects = {i: data for _, i, data in (*BLOBS, *TREE)} if p.footer.objects else {}
    form = pack_format(encrypted=more.get("encrypted", True), epoch=p.header.epoch)
    derived = {
        "pack_key": form.keys.pack_key(p.header.epoch, p.header.random),
        "binding": form.keys.pack_binding(p.header.epoch, p.data[: packfile.HEADER_BYTES]),
    }
    return pack_case(
        about,
        OK,
        p.data,
        name=p.name,
        chain=chain,
        **derived,
        header=p.header,
        footer=p.footer,
        objects=objects,
        **more,
    )


def flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def open_pack(footer: bytes, *, gap: int = 0, claimed: int | None = None, header: bytes | None = None) -> bytes:
    """An unencrypted pack by hand."""
    head = packfile.encode_header(Header(0, 1, RANDOM)) if header is None else header
    return head + bytes(gap) + footer + u32(len(footer) if claimed is None else claimed)


def of_packs() -> Cases:
    sealed, clear = pack(), pack(encrypted=False)
    yield "pack-sealed", pack_ok("encrypted, not compressed", sealed)
    yield "pack-epoch-2", pack_ok("under the keys of epoch 2", pack(epoch=2))
    yield "pack-framed", pack_ok("zstd frames in it", pack(FRAMED), FULL)
    yield "pack-clear", pack_ok("made with --no-encryption: integrity alone, no padding", clear, encrypted=False)
    yield (
        "pack-clear-framed",
        pack_ok("the same with zstd frames", pack(FRAMED, encrypted=False), FULL, encrypted=False),
    )
    yield "pack-salted", pack_ok("with a salt between padding and footer", salted(), salt=bytes(range(7)) + b"\x09")
    yield (
        "pack-clear-salted",
        pack_ok(
            "the same with --no-encryption", salted(encrypted=False), encrypted=False, salt=bytes(range(7)) + b"\x09"
        ),
    )
    form = pack_format(chains=(SEALED_ONLY,))
    yield "pack-empty", pack_ok("no segments", seal_pack([], form, RANDOM))
    at = packfile.offsets(sealed.footer.segments)
    footer_bytes = len(packfile.encode_footer(sealed.footer)) + 16
    places = {
        "header": 10,
        "segment": at[0] + 3,
        "padding": at[-1] + 1,
        "footer": -20 - footer_bytes // 2,
        "trailer": -1,
    }
    for name, place in places.items():
        yield (
            f"pack-bad-flipped-{name}",
            pack_case(f"a bit of the {name} flipped", INTEGRITY, flip(sealed.data, place), name=sealed.name),
        )
    for name, about, data in (
        ("cut-short", "the last byte is missing", sealed.data[:-1]),
        ("longer", "a byte too many", sealed.data + b"\0"),
        ("nothing", "no bytes", b""),
        ("other", "another pack under this name", pack(random=digest(7)).data),
    ):
        yield f"pack-bad-{name}", pack_case(about, INTEGRITY, data, name=sealed.name)
    for name in ("header", "footer", "trailer"):
        yield (
            f"pack-bad-renamed-{name}",
            pack_case(
                f"a bit of the {name} flipped, and the name fitted to it", FORMAT, flip(sealed.data, places[name])
            ),
        )
    yield (
        "pack-bad-renamed-segment",
        pack_case(
            "a bit of a segment flipped, and the name fitted to it", INTEGRITY, flip(sealed.data, places["segment"])
        ),
    )
    first, second = sealed.data[at[0] : at[1]], sealed.data[at[1] : at[2]]
    swapped = sealed.data[: at[0]] + second + first + sealed.data[at[2] :]
    yield "pack-bad-swapped-segments", pack_case("two segments in each other's place", INTEGRITY, swapped)
    stranger = pack(random=digest(7)).data
    tail = footer_bytes + 20
    yield (
        "pack-bad-foreign-footer",
        pack_case("the footer and trailer of another pack", FORMAT, sealed.data[:-tail] + stranger[-tail:]),
    )
    yield "pack-bad-workspace", pack_case("a pack of another workspace", FORMAT, sealed.data, ns_id=digest(9))
    wrong = {str(e): digest(e) for e in EPOCH_KEYS}
    yield "pack-bad-key", pack_case("other epoch keys", FORMAT, sealed.data, epoch_keys=wrong)
    yield (
        "pack-bad-id-key",
        pack_case("objects that are not what their ids say", "DamagedError", sealed.data, id_key=digest(9)),
    )
    unknown = packfile.encode_header(Header(0, 9, RANDOM)) + sealed.data[packfile.HEADER_BYTES :]
    yield "pack-bad-epoch", pack_case("an epoch whose key is not here", "WorkspaceError", unknown)
    chain_9 = packfile.encode_header(Header(9, 1, RANDOM)) + sealed.data[packfile.HEADER_BYTES :]
    yield "pack-bad-chain", pack_case("a translator chain that is not known", UPGRADE, chain_9)
    yield "pack-bad-newer", pack_case("format 2", UPGRADE, b"\2" + sealed.data[1:])
    yield "pack-bad-format-0", pack_case("format 0", FORMAT, b"\0" + sealed.data[1:])
    yield "pack-bad-header-alone", pack_case("nothing but a header", FORMAT, sealed.data[: packfile.HEADER_BYTES])
    empty = packfile.encode_footer(Footer((), ()))
    beyond = packfile.encode_footer(Footer((Segment(101, 101, digest(1)),), ()))
    for name, about, expect, data in (
        ("footer-long", "a footer longer than the pack", FORMAT, open_pack(empty, claimed=11)),
        ("footer-huge", "a footer of 2^32-1 bytes", FORMAT, open_pack(empty, claimed=2**32 - 1)),
        ("footer-short", "a footer cut short", FORMAT, open_pack(empty, claimed=9)),
        ("footer-newer", "a footer of format 2", UPGRADE, open_pack(b"\2" + empty[1:])),
        ("segments-beyond", "segments that reach into the footer", FORMAT, open_pack(beyond, gap=100)),
        ("encoding-2", "an object stored in a way of a later version", UPGRADE, encoding_2_pack()),
    ):
        yield f"pack-bad-clear-{name}", pack_case(about, expect, data, encrypted=False)


def encoding_2_pack() -> bytes:
    """What a later version may write: encoding 2."""
    raw = b"a shape"
    located = Located(ObjectKind.BLOB, digest(1), 0, 0, len(raw), 2)
    footer = Footer((Segment(len(raw), len(raw), hashlib.sha256(raw).digest()),), (located,))
    return packfile.encode_header(Header(0, 1, RANDOM)) + raw + open_pack(packfile.encode_footer(footer), header=b"")


def of_footers() -> Cases:
    one = Segment(60, 100, digest(1))
    good = Footer(
        (one, Segment(16, 0, digest(2))),
        (
            Located(ObjectKind.BLOB, digest(3), 0, 0, 100),
            Located(ObjectKind.SNAPSHOT, digest(4), 0, 100, 0),
            Located(ObjectKind.FILE, digest(5), 1, 0, 0, 15),
        ),
        ((1, b"tag"),),
    )
    yield (
        "footer",
        case("pack footer", "two segments, three objects, a tag", OK, packfile.encode_footer(good), value=good),
    )
    yield (
        "footer-deltas",
        case("pack footer", "three deltas and a whole blob", OK, packfile.encode_footer(deltas()), value=deltas()),
    )
    data = packfile.encode_footer(Footer((one,), (Located(ObjectKind.BLOB, digest(3), 0, 0, 100),)))
    entry_at = 1 + 4 + 40 + 4
    bad = {
        "nothing": ("no bytes", b""),
        "format-0": ("format 0", b"\0" + data[1:]),
        "segments-65537": ("more segments than a pack can have", b"\1" + u32(65_537) + one_row(one) * 65_537),
        "segments-huge": ("2^32-1 segments", b"\1" + b"\xff\xff\xff\xff" + data[5:]),
        "objects-huge": ("2^32-1 objects", data[:45] + b"\xff\xff\xff\xff" + data[49:]),
        "segment-large": ("a segment that unpacks to 64 MiB + 1", data[:9] + u32((64 << 20) + 1) + data[13:]),
        "kind-0": ("an object of kind 0", data[: entry_at + 32] + b"\0" + data[entry_at + 33 :]),
        "no-segment": ("an object in segment 1 of 1", data[: entry_at + 36] + b"\1" + data[entry_at + 37 :]),
        "outside": (
            "an object that ends a byte behind its segment",
            data[: entry_at + 40] + b"\1" + data[entry_at + 41 :],
        ),
        "wraps": (
            "offset and length whose sum is 2^32 + 98",
            data[: entry_at + 37] + b"\xff\xff\xff\xfe" + data[entry_at + 41 :],
        ),
        "trailing": ("a byte behind the tags", data + b"\0"),
        "cut-short": ("no tags", data[:-1]),
    }
    bad.update((f"delta-{name}", (about, packfile.encode_footer(f))) for name, (about, f) in bad_deltas().items())
    for name, (about, hostile) in bad.items():
        if len(hostile) < 10_000:  # the others are in test_objects.py: megabytes of hex say nothing
            yield f"footer-bad-{name}", case("pack footer", about, FORMAT, hostile)
    yield "footer-bad-newer", case("pack footer", "format 2", UPGRADE, b"\2" + data[1:])
    kind_5 = data[: entry_at + 32] + b"\5" + data[entry_at + 33 :]
    yield "footer-bad-kind-5", case("pack footer", "an object of kind 5, a later version's", UPGRADE, kind_5)


def deltas() -> Footer:
    rows = {(0, 40): Delta(digest(6), 1), (0, 60): Delta(digest(7), 8), (1, 0): Delta(digest(6), 2)}
    return Footer(
        (Segment(60, 100, digest(1)), Segment(40, 30, digest(2))),
        (
            Located(ObjectKind.BLOB, digest(3), 0, 0, 40),
            Located(ObjectKind.BLOB, digest(4), 0, 40, 20, 1),
            Located(ObjectKind.BLOB, digest(5), 0, 60, 40, 1),
            Located(ObjectKind.BLOB, digest(8), 1, 0, 30, 1),
        ),
        packfile.delta_tags(rows),
    )


def bad_deltas() -> dict[str, tuple[str, Footer]]:
    """Footers with rows of deltas that no writer makes."""
    good = deltas()
    ((_, rows),) = good.tags
    a, b, c = rows[:41], rows[41:82], rows[82:]

    def with_rows(rows: bytes, tag: int = 16) -> Footer:
        return good._replace(tags=((tag, rows),))

    first = good.objects[1]._replace(kind=ObjectKind.FILE)
    return {
        "no-rows": ("deltas without rows", good._replace(tags=())),
        "row-missing": ("a delta without a row", with_rows(a + c)),
        "row-too-many": ("a row without its delta", with_rows(rows + b"\0\0\0\2" + c[4:])),
        "row-elsewhere": ("a row of another offset", with_rows(a[:7] + b"\x29" + a[8:] + b + c)),
        "rows-descending": ("rows out of order", with_rows(b + a + c)),
        "rows-twice": ("a row two times", with_rows(a + a + b + c)),
        "rows-cut-short": ("rows cut short", with_rows(rows[:-1])),
        "rows-empty": ("no rows, and a tag for them", good._replace(objects=good.objects[:1], tags=((16, b""),))),
        "second-tag": ("rows in tag 17 alone", with_rows(rows, 17)),
        "half-tag": ("rows in tag 17 before tag 16 was full", good._replace(tags=((16, a), (17, b + c)))),
        "depth-0": ("a delta of depth 0", with_rows(a[:-1] + b"\0" + b + c)),
        "depth-9": ("a delta of depth 9", with_rows(a[:-1] + b"\x09" + b + c)),
        "no-blob": (
            "a file object stored as a delta",
            good._replace(objects=(good.objects[0], first, *good.objects[2:])),
        ),
    }


COPIED = bytes.fromhex("010000001a28b52ffd241ad10000746865206e6577206279746573746865206f6c642062797465731567c3a1")
"""By `zstd --patch-from`, its checksum behind the frame, and 5 bytes before it."""


def of_deltas() -> Cases:
    base, new = b"the old bytes", b"the new bytes"

    def framed(size: int, content: bytes, codec: int = 1) -> bytes:
        return bytes((codec,)) + u32(size) + content

    def delta_case(about: str, expect: str, data: bytes, **more: Any) -> Case:
        return case("delta", about, expect, data, base=base, **more)

    yield "delta-raw", delta_case("a frame that takes nothing of its base", OK, framed(13, frame(new)), value=new)
    yield "delta-copied", delta_case("a frame that takes what it can of its base", OK, COPIED, value=new + base)
    bad = {
        "nothing": ("no bytes", b""),
        "no-frame": ("no frame", framed(13, b"")),
        "codec-0": ("codec 0", framed(13, frame(new), 0)),
        "size-0": ("a size of 0", framed(0, frame(b""))),
        "size-less": ("a size below that of the frame", framed(12, frame(new))),
        "size-more": ("a size above that of the frame", framed(14, frame(new))),
        "size-huge": ("a size of 16 MiB + 1", framed((16 << 20) + 1, frame(new))),
        "trailing": ("a byte behind the frame", framed(13, frame(new) + b"\0")),
        "cut-short": ("a frame cut short", framed(13, frame(new)[:-1])),
        "twice": ("two frames", framed(13, frame(new) * 2)),
        "skippable": ("a skippable frame", framed(13, b"\x50\x2a\x4d\x18\x0d\0\0\0" + new)),
    }
    for name, (about, hostile) in bad.items():
        yield f"delta-bad-{name}", delta_case(about, FORMAT, hostile)
    for codec in (2, 255):
        yield f"delta-bad-codec-{codec}", delta_case("a later codec", UPGRADE, framed(13, b"no frame", codec))
    yield "delta-bad-codec-alone", delta_case("a later codec, and nothing else", UPGRADE, b"\2")


def one_row(s: Segment) -> bytes:
    return u32(s.stored_bytes) + u32(s.raw_bytes) + s.digest


def of_sizes() -> Cases:
    sizes = [0, 1, 2, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 1000, 65_535, 65_537, 1_000_000, 4_194_305, 2**32 + 1]
    yield (
        "padme",
        {"what": "padme", "about": "padded sizes", "sizes": [[n, padme(n)] for n in sizes]},
    )


# --- the pack index


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


def build() -> dict[str, str]:
    """Every vector: file name -> text."""
    out: dict[str, str] = {}
    makers = (of_tags, of_ids, of_dirs, of_splits, of_files, of_chunks, of_snapshots, of_packs, of_footers, of_sizes)
    for maker in (*makers, of_deltas, of_index, of_roots, of_retained, of_placement):
        for name, value in maker():
            assert f"{name}.json" not in out, name
            out[f"{name}.json"] = json.dumps(value, indent=1) + "\n"
    return out


def main() -> None:
    files = build()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(files)} vectors in {FOLDER.name}/")


if __name__ == "__main__":
    main()
