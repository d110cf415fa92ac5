"""Targets: the content formats (docs/design/format.md): objects, walks, packs, the pack index."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import zstandard
from content_kit import FULL, IDS, NoSuchObject, blob, digest, file_entry, noise, pack_all, pack_format, walk

from fuzz.target import Target, certain, joined_parts, parts_of, replaced
from metasync.codec import Reader, ascending, encode_tags, u16, u32, u64
from metasync.errors import DamagedError, FormatError, UpgradeError, WorkspaceError
from metasync.merge import copies
from metasync.objects import delta, directory, file, model
from metasync.objects import walk as walk_module
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind
from metasync.session import write_index
from metasync.store import index
from metasync.store import pack_format as packfile
from metasync.store.index import Index, PackRecord
from metasync.store.pack_format import Footer, Header, Located, Segment
from metasync.store.packs import PackFormat, read_footer, read_objects, read_segment
from metasync.store.retained import decode_retained, encode_retained
from metasync.transfer.contents import Contents
from metasync.transfer.download import ranges
from metasync.translators._base import Context
from metasync.translators.compress import Compress
from metasync.worktree import bases

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


@cache
def vectors(folder: str) -> dict[str, dict[str, Any]]:
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted((VECTORS / folder).glob("*.json"))}


def content_seeds(what: str) -> list[bytes]:
    """The bytes of all golden vectors of a kind, good and bad."""
    return [bytes.fromhex("".join(c["hex"])) for c in vectors("content").values() if c["what"] == what]


# --- objects


def decode_tags(data: bytes) -> Any:
    r = Reader(data, "tags")
    out = r.tags()
    r.end()
    return out


def sane(name: bytes) -> bool:
    """What may become a file's name, said without the help of the product."""
    return name not in (b"", b".", b"..") and not {0, ord("/")} & set(name)


def encode_dir_node(node: directory.DirNode) -> bytes:
    names = [name for name, _ in node.children or node.entries]
    assert ascending(names)
    assert all(map(sane, names))
    if node.level:
        items = [u16(len(name)) + name + i for name, i in node.children]
    else:
        items = [directory._encode_entry(name, e) for name, e in node.entries]
    return struct.pack(">BBI", 1, node.level, len(items)) + b"".join(items)


def encode_file_node(node: file.FileNode) -> bytes:
    rows = b"".join(p.id + struct.pack(">Q", p.size) for p in node.parts)
    return struct.pack(">BBQ32sI", 1, node.level, node.size, node.content, len(node.parts)) + rows


# --- trees: nodes whose ids are their numbers, so that a mutation can point anywhere


def node_id(n: int) -> bytes:
    return bytes((n,)) * 32


TREE_BYTES_MAX, CHUNKS_AGAIN_MAX = 1 << 17, 2_000
LIMITS = [  # what a few nodes spread over millions of paths or chunks ends in an error: here it ends sooner
    (walk_module, name, value)
    for name, value in (("TREE_BYTES_MAX", TREE_BYTES_MAX), ("CHUNKS_AGAIN_MAX", CHUNKS_AGAIN_MAX))
    if hasattr(walk_module, name)
]


def walk_tree(data: bytes) -> None:
    """Parts 0 and 1 are the roots of two trees. What flattens has sane paths, builds again, and differs as told."""
    store = {node_id(n): part for n, part in enumerate(parts_of(data)[:256])}
    with replaced(LIMITS):
        try:
            for path in (b"a", b"d/x", b"c/y"):  # trees that `flatten` refuses too
                with suppress(FormatError, UpgradeError):
                    walk(walk_module.find(node_id(0), path), store)
            trees = [walk(walk_module.flatten(node_id(n)), store)[0] for n in (0, 1)]
            changes = walk(walk_module.diff(node_id(0), node_id(1)), store)[0]
        except NoSuchObject:
            raise FormatError("an id that nothing has") from None
        for n, tree in enumerate(trees):
            for path in list(tree)[:20]:
                found = walk(walk_module.find(node_id(n), path), store)[0].entry
                assert found is not None
                assert tree[path] in (found, found._replace(content=b""))
            last: dict[bytes, bytes] = {}
            for path, entry in tree.items():
                above, _, name = path.rpartition(b"/")
                assert last.get(above, b"") < name, "names of a directory out of order"
                last[above] = name
                assert all(map(sane, path.split(b"/"))), path
                parent = path.rpartition(b"/")[0]
                assert not parent or tree[parent].kind is Kind.DIR
                assert entry.content or entry.kind is Kind.DIR
            with certain("a tree that was read cannot be written"):
                root, nodes = walk_module.build(tree, IDS)
                assert walk(walk_module.flatten(root), nodes)[0] == tree
    a, b = trees
    assert changes == {p: (a.get(p), b.get(p)) for p in {*a, *b} if a.get(p) != b.get(p)}


def inner(level: int, *children: tuple[bytes, int]) -> bytes:
    items = b"".join(u16(len(name)) + name + node_id(n) for name, n in children)
    return bytes((1, level)) + u32(len(children)) + items


def leaf(*entries: tuple[bytes, Entry]) -> bytes:
    return directory.encode_dir(entries, IDS)[-1][1]


def conflict_seeds() -> list[bytes]:
    one, two = copies.Side(b"a" * 16, 3, 1_700_000_000_000_000_000), copies.Side()
    return [copies.encode_sides(copies.Sides(n, r, one, two)) for n, r in ((b"notes.txt", "why"), (b"\xff", ""))]


def tree_seeds() -> list[bytes]:
    f = file_entry(1)
    link = Entry(Kind.SYMLINK, 0, -1, 7, b"../else")

    def sub(n: int) -> Entry:
        return Entry(Kind.DIR, 0o755, 0, 0, node_id(n))

    return [
        joined_parts([leaf((b"a", f)), leaf((b"a", f), (b"b", link))]),
        joined_parts([leaf((b"d", sub(2)), (b"e", sub(3))), leaf((b"d", sub(3))), leaf((b"x", f)), leaf((b"y", f))]),
        joined_parts([inner(1, (b"a", 2), (b"c", 3)), leaf(), leaf((b"a", f), (b"b", f)), leaf((b"c", f))]),
        joined_parts(
            [
                inner(2, (b"a", 2), (b"e", 3)),
                inner(1, (b"a", 4), (b"c", 5)),
                inner(1, (b"a", 4), (b"c", 5)),
                inner(1, (b"e", 6)),
                leaf((b"a", f)),
                leaf((b"c", sub(7))),
                leaf((b"e", f)),
                leaf(),
            ]
        ),
        joined_parts([leaf((b"a", sub(2)), (b"b", sub(2))), leaf(), *(doubled(n) for n in range(3, 20)), leaf()]),
        joined_parts([leaf((b"a", sub(0))), leaf()]),
        joined_parts([inner(1, (b"a", 2), (b"c", 3)), leaf(), leaf((b"a", f), (b"d", f)), leaf((b"c", f))]),
    ]


def doubled(n: int) -> bytes:
    """A directory that holds number n twice: a chain of 17 of them says 130,000 paths."""
    sub = Entry(Kind.DIR, 0o755, 0, 0, node_id(n))
    return leaf((b"a", sub), (b"b", sub))


def walk_files(data: bytes) -> None:
    """Parts 0 and 1 are roots of file objects. What is accepted has the size that its root says."""
    parts = parts_of(data)[:256]
    store = {node_id(n): part for n, part in enumerate(parts)}
    with replaced(LIMITS):
        try:
            got = walk(walk_module.chunks((node_id(0), node_id(1))), store)[0]
        except NoSuchObject:
            raise FormatError("an id that nothing has") from None
    for root, chunks in got.items():
        node = file.decode_node(store[root])
        assert sum(c.size for c in chunks) == node.size
        assert all(c.size for c in chunks)
        assert len(chunks) >= 2


def file_node(level: int, content: bytes, *parts: tuple[int, int]) -> bytes:
    return encode_file_node(
        file.FileNode(level, sum(size for _, size in parts), content, tuple(Chunk(node_id(n), s) for n, s in parts))
    )


def file_seeds() -> list[bytes]:
    none = bytes(32)
    flat = file_node(0, digest(1), (9, 5), (8, 7))
    return [
        joined_parts([flat, flat]),
        joined_parts(
            [
                file_node(1, digest(1), (2, 12), (3, 3)),
                flat,
                file_node(0, none, (9, 5), (8, 7)),
                file_node(0, none, (9, 3)),
            ]
        ),
        joined_parts(
            [
                file_node(2, digest(1), (2, 12), (2, 12)),
                flat,
                file_node(1, none, (3, 12)),
                file_node(0, none, (9, 5), (8, 7)),
            ]
        ),
        joined_parts([file_node(1, digest(1), (2, 11), (2, 12)), flat, file_node(0, none, (9, 5), (8, 7))]),
        joined_parts(
            [
                file_node(7, digest(1), *[(2, 2 * 10**6)] * 10),
                flat,
                *(file_node(7 - n, none, *[(n + 2, 2 * 10 ** (6 - n))] * 10) for n in range(1, 7)),
                file_node(0, none, (9, 2)),
            ]
        ),
    ]


# --- packs


CLEAR, SEALED = pack_format(encrypted=False), pack_format()
PACK_ERRORS = (FormatError, UpgradeError, WorkspaceError, DamagedError)


def read_pack(data: bytes, form: PackFormat) -> None:
    """All that a pack holds, as a rebuilt index would read it. Its name is right: a provider names it as it likes."""
    _, footer = read_footer(data, hashlib.sha256(data).digest(), form)
    at = packfile.offsets(footer.segments)
    header = data[: packfile.HEADER_BYTES]
    for n, segment in enumerate(footer.segments):
        stored = memoryview(data)[at[n] : at[n + 1]]
        try:
            raw = read_segment(header, stored, n, segment, form, verified=True)
        except FormatError:
            continue
        assert len(raw) == segment.raw_bytes
        try:
            for located, view in read_objects(raw, [o for o in footer.objects if o.segment == n], IDS.of):
                assert len(view) == located.length
        except DamagedError:
            continue


def read_pack_inside(data: bytes) -> None:
    """Who holds the keys seals what he likes: the part of a header, a footer, then shrunken segments; sealed here."""
    head, footer, *segments = [*parts_of(data), b"", b""][:66]
    if len(head) < 5:
        raise FormatError("no header in this input")
    h = Header(head[0], int.from_bytes(head[1:5], "big"), hashlib.sha256(head).digest())
    chain = FULL
    header = packfile.encode_header(h)
    form = SEALED
    if h.epoch not in (1, 2):
        form = CLEAR
    if form.keys.encrypted:
        sealed = [chain.seal(s, form.context(header, h, n, len(s))) for n, s in enumerate(segments)]
        last = chain.seal(footer, form.context(header, h, packfile.FOOTER_NUMBER, len(footer)))
        end = chain.seal(u32(len(last)), form.context(header, h, packfile.TRAILER_NUMBER, 4))
    else:
        sealed, last, end = segments, footer, u32(len(footer))
    read_pack(b"".join((header, *sealed, last, end)), form)


def pack_inside_seeds() -> list[bytes]:
    raw = [b"helloworld", noise(300)]
    packed = b"\1" + zstandard.ZstdCompressor().compress(b"hello" * 50)
    objects = (
        Located(ObjectKind.BLOB, IDS.blob(b"hello"), 0, 0, 5),
        Located(ObjectKind.BLOB, IDS.blob(b"world"), 0, 5, 5),
        Located(ObjectKind.BLOB, IDS.blob(raw[1]), 1, 0, 300),
    )
    table = tuple(Segment(len(r) + 1 + 16, len(r), digest(0)) for r in raw)
    footer = packfile.encode_footer(Footer(table, objects, ((3, b"kept"),)))
    one = packfile.encode_footer(Footer((Segment(len(packed) + 16, 250, digest(0)),), ()))
    shrunk = [b"\0" + r for r in raw]
    return [
        joined_parts([b"\0" + u32(1), b"\0" + footer, *shrunk]),
        joined_parts([b"\0" + u32(1), b"\1" + zstandard.ZstdCompressor().compress(footer), *shrunk]),
        joined_parts([b"\0" + u32(2), b"\0" + one, packed]),
        joined_parts([b"\0" + u32(9), b"\0" + footer, *shrunk]),
    ]


def pack_seeds() -> list[bytes]:
    mine = pack_all([blob(b"hello"), blob(noise(200))], SEALED)
    return [*content_seeds("pack"), *(p.data for p in mine)]


UNPACKED_MAX = 1 << 16


def unpack(data: bytes) -> None:
    """A shrunken segment: what comes out is never more than the reader asked for."""
    context = Context(b"", 0, b"", UNPACKED_MAX)
    out = Compress().get(data, context)
    assert len(out) <= UNPACKED_MAX
    assert bytes(Compress().get(memoryview(data), context)) == bytes(out)


def compress_seeds() -> list[bytes]:
    c = zstandard.ZstdCompressor
    whole = c(level=3).compress(b"abc" * 100)
    return [
        b"",
        b"\0",
        b"\0plain",
        b"\1" + whole,
        b"\1" + c(level=3, write_checksum=True).compress(b"abc" * 100),
        b"\1" + c(level=3, write_content_size=False).compress(b"abc" * 100),
        b"\1" + c(level=19).compress(bytes(UNPACKED_MAX)),
        b"\1" + c(level=1).compress(bytes(UNPACKED_MAX + 1)),
        b"\1" + c(compression_params=zstandard.ZstdCompressionParameters(window_log=27)).compress(b"x" * 40),
        b"\1" + whole + whole,
        b"\1\x50\x2a\x4d\x18\x04\0\0\0skip" + whole,
        b"\1" + c().compress(b""),
    ]


# --- the pack index


def decode_tables(tables: bytes) -> index.IndexSegment:
    """The tables of a segment, in a frame of ours. Whoever bisects them leans on their order."""
    out = index.decode_segment(framed(tables))
    raw = out.objects
    assert ascending([raw[at : at + 49] for at in range(0, len(raw), 49)])
    assert ascending([u64(generation) + name for generation, name in out.tombstones])
    assert ascending([u64(p.generation) + p.name for p in out.packs])
    return out


def framed(tables: bytes) -> bytes:
    return b"\1" + zstandard.ZstdCompressor(level=1).compress(tables)


def tables_of(segment: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(segment[1:], max_output_size=1 << 20)


def frame_room(data: bytes) -> int:
    """What the frame of an index segment may unpack to, and the tuples that its tables become."""
    try:
        size = zstandard.frame_content_size(data[1:32])
    except zstandard.ZstdError:
        return 0
    return 12 * min(max(size, 0), index.SEGMENT_BYTES_MAX)


def segment_seeds() -> list[bytes]:
    return content_seeds("index segment")


def table_seeds() -> list[bytes]:
    out = []
    for data in segment_seeds():
        try:
            if 0 < zstandard.frame_content_size(data[1:32]) <= 1 << 20:
                out.append(tables_of(data))
        except zstandard.ZstdError:
            continue
    return [*out, merge_tables(1, 2), merge_tables(3)]


def record(n: int, generation: int = 0, segments: int = 2) -> PackRecord:
    header = packfile.encode_header(Header(0, 1, digest(n)))
    parts = tuple(Segment(100, 200, digest(n + i)) for i in range(segments))
    return PackRecord(digest(n), generation, 1000, header, parts)


def merge_tables(*packs: int, generation: int = 0, segments: int = 2, stones: Sequence[int] = ()) -> bytes:
    located = [Located(ObjectKind.BLOB, digest(100 + i), i % segments, 10 * i, 10) for i in range(4)]
    made = index.make_segment(
        [(record(n, generation, segments), located) for n in packs], [(generation, digest(n)) for n in stones]
    )
    return tables_of(index.encode_segment(made))


def merge_segments(data: bytes) -> None:
    """Parts are tables of segments. What loads answers for every id, plans, ranges and merges into what loads again."""
    segments = [index.decode_segment(framed(part)) for part in parts_of(data)[:16]]
    if not segments:
        raise FormatError("no segments in this input")
    loaded = Index(segments)
    with certain("an index that loaded is no use"):
        _use(segments, loaded)


def _use(segments: list[index.IndexSegment], loaded: Index) -> None:
    everything = sorted({o.id for s in segments for _, o in s})
    contents = Contents(loaded, None, None, None)  # type: ignore[arg-type]
    for object_id in everything:
        places = loaded.find(object_id)
        assert all(o.id == object_id for _, o in places)
        assert (object_id in loaded) == bool(places)
    live = [i for i in everything if i in loaded]
    for pack, located in contents.plan(live).values():
        asked = ranges(pack, {o.segment for o in located})
        assert all(0 <= offset <= offset + length <= pack.size for offset, length in asked)
    for pack in loaded.packs().values():
        loaded.inside(pack)
    for final in (False, True):
        merged = write_index.merge(segments, final=final)
        again = index.decode_segment(index.encode_segment(merged))
        after = Index([again])
        assert [i for i in everything if i in after] == live
        assert after.packs() == loaded.packs()


def merge_seeds() -> list[bytes]:
    return [
        joined_parts([merge_tables(1, 2), merge_tables(3, generation=1)]),
        joined_parts([merge_tables(1, 2), merge_tables(4, stones=(1,))]),
        joined_parts([merge_tables(1), merge_tables(1)]),
        joined_parts([merge_tables(1), merge_tables(1, segments=1)]),
    ]


# --- deltas: a device that keeps no rule seals what it likes


def open_delta(data: bytes) -> int:
    """The first part is the base. What opens is as long as the delta says, and comes again of a delta of its own."""
    base, made = (*parts_of(data), b"", b"")[:2]
    out = delta.opened(base, made)
    assert len(out) == int.from_bytes(made[1 : delta.HEAD_BYTES], "big") <= delta.BLOB_BYTES_MAX
    with certain("a delta of what a delta gave"):
        assert delta.opened(base, delta.make(base, out)) == out
    return len(out)


def delta_seeds() -> list[bytes]:
    cases = [c for c in vectors("content").values() if c["what"] == "delta"]
    kept = [joined_parts([bytes.fromhex(c["base"]), bytes.fromhex("".join(c["hex"]))]) for c in cases]
    return [*kept, joined_parts([noise(3_000), delta.make(noise(3_000), noise(2_000) + b"edit" + noise(1_000))])]


def delta_room(data: bytes) -> int:
    """What a delta may build is what it says, and a delta of that again with tables for it."""
    size = int.from_bytes((*parts_of(data), b"", b"")[1][1 : delta.HEAD_BYTES], "big")
    return 4 * min(size, delta.BLOB_BYTES_MAX) + (8 << 20)


def read_kept_chunk(data: bytes) -> bytes:
    """A file of the base cache, as a failing disk may leave it."""
    found = bases._unpacked(data)
    if found is None:
        raise FormatError("no kept chunk")
    assert len(found) <= max(len(data), bases.CHUNK_BYTES_MAX)
    return found


CONTENT = (
    Target("delta", open_delta, delta_seeds, room=delta_room),
    Target(
        "kept-chunk",
        read_kept_chunk,
        lambda: [b"\0text", b"\1" + zstandard.compress(b"text" * 999), b"\2"],
        room=lambda _: 2 * bases.CHUNK_BYTES_MAX,
    ),
    Target("tags", decode_tags, lambda: content_seeds("tags"), encode_tags),
    Target("dir", directory.decode_node, lambda: content_seeds("dir node"), encode_dir_node),
    Target("file", file.decode_node, lambda: content_seeds("file node"), encode_file_node),
    Target("conflict-tag", copies.decode_sides, conflict_seeds, copies.encode_sides),
    Target("snapshot", model.decode_snapshot, lambda: content_seeds("snapshot"), model.encode_snapshot),
    Target("footer", packfile.decode_footer, lambda: content_seeds("pack footer"), packfile.encode_footer),
    Target("index-root", index.decode_root, lambda: content_seeds("index root"), index.encode_root),
    Target("retained", decode_retained, lambda: content_seeds("retained list"), encode_retained),
    Target("index-segment", index.decode_segment, segment_seeds, room=frame_room),
    Target(
        "index-tables",
        decode_tables,
        table_seeds,
        lambda s: tables_of(index.encode_segment(s)),
    ),
    Target("index-merge", merge_segments, merge_seeds),
    Target("tree-walk", walk_tree, tree_seeds, room=lambda _: 40 * TREE_BYTES_MAX),
    Target("file-walk", walk_files, file_seeds),
    Target("compress", unpack, compress_seeds, room=lambda _: 4 * UNPACKED_MAX),
    Target("pack", lambda data: read_pack(data, SEALED), pack_seeds, allowed=PACK_ERRORS),
    Target("pack-clear", lambda data: read_pack(data, CLEAR), pack_seeds, allowed=PACK_ERRORS, room=lambda _: 64 << 20),
    Target("pack-inside", read_pack_inside, pack_inside_seeds, allowed=PACK_ERRORS, room=lambda _: 64 << 20),
)
