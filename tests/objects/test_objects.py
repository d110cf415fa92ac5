"""Content objects and their bytes: file, dir, snapshot, the layout of packs, and the rule that splits long lists."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from content_kit import IDS, digest, file_entry, refuses
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.codec import padme
from metasync.errors import FormatError, UpgradeError
from metasync.objects import chunker, directory, file, model
from metasync.objects.model import Chunk, Entry, Ids, Kind, ObjectKind, Snapshot
from metasync.store import pack_format
from metasync.store.pack_format import Footer, Header, Located, Segment

MANY = 100_000

ids32 = st.binary(min_size=32, max_size=32)
tags = st.dictionaries(st.integers(0, 0xFFFF), st.binary(max_size=20), max_size=3).map(
    lambda d: tuple(sorted(d.items()))
)
names = st.binary(min_size=1, max_size=40).filter(directory.name_is_valid)
modes = st.integers(0, 0o7777)
times = st.integers(-(2**63), 2**63 - 1)
targets = st.binary(min_size=1, max_size=60).filter(lambda t: b"\0" not in t)
entries = st.one_of(
    st.builds(Entry, st.just(Kind.FILE), modes, times, st.integers(0, 2**64 - 1), ids32, st.just(b"") | ids32, tags),
    st.builds(Entry, st.just(Kind.DIR), modes, st.just(0), st.just(0), ids32, st.just(b""), tags),
    st.builds(
        lambda t, ns, more: Entry(Kind.SYMLINK, 0, ns, len(t), t, b"", more),
        targets,
        times,
        tags,
    ),
)
listings = st.dictionaries(names, entries, max_size=12).map(lambda d: tuple(sorted(d.items())))
snapshots = st.builds(
    Snapshot,
    ids32,
    st.lists(ids32, max_size=4).map(tuple),
    st.binary(min_size=16, max_size=16),
    times,
    st.text(max_size=80),
    tags,
)


def leaf(listing: Sequence[tuple[bytes, Entry]]) -> bytes:
    (node,) = directory.encode_dir(listing, IDS)
    return node[1]


def encode_node(node: directory.DirNode) -> bytes:
    """What the encoder writes for one node, whatever the boundaries around it."""
    if not node.level:
        return b"\1\0" + len(node.entries).to_bytes(4, "big") + leaf(node.entries)[6:] if node.entries else leaf(())
    items = b"".join(len(n).to_bytes(2, "big") + n + i for n, i in node.children)
    return bytes((1, node.level)) + len(node.children).to_bytes(4, "big") + items


def encode_file_node(node: file.FileNode) -> bytes:
    head = bytes((1, node.level)) + node.size.to_bytes(8, "big") + node.content + len(node.parts).to_bytes(4, "big")
    return head + b"".join(p.id + p.size.to_bytes(8, "big") for p in node.parts)


# --- ids


def test_ids_depend_on_kind_key_and_bytes():
    other = Ids(bytes(32))
    all_ids = {ids.of(kind, data) for ids in (IDS, other) for kind in ObjectKind for data in (b"", b"a")}
    assert len(all_ids) == 2 * len(ObjectKind) * 2
    assert IDS.blob(b"a") == IDS.of(ObjectKind.BLOB, b"a") == IDS.of(ObjectKind.BLOB, memoryview(b"a"))
    assert IDS.split_point(b"a") != other.split_point(b"a")


def test_a_running_content_hash_is_the_blobs_id():
    h = IDS.content()
    for piece in (b"ab", b"", b"c" * 100_000):
        h.update(piece)
    assert h.digest() == IDS.blob(b"ab" + b"c" * 100_000)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_an_id_key_has_32_bytes(key):
    with pytest.raises(ValueError, match="32 bytes"):
        Ids(key)


# --- directories


@given(listings)
def test_directory_round_trip(listing):
    (node,) = directory.encode_dir(listing, IDS)
    assert node[0] == IDS.of(ObjectKind.DIR, node[1])
    decoded = directory.decode_node(node[1])
    assert decoded == directory.DirNode(0, listing, ())
    assert directory.encode_dir(decoded.entries, IDS) == [node]


def test_the_empty_directory():
    ((node_id, data),) = directory.encode_dir((), IDS)
    assert data == b"\1\0\0\0\0\0"
    assert node_id == IDS.of(ObjectKind.DIR, data)
    assert directory.decode_node(data) == directory.DirNode(0, (), ())


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        (b"", file_entry(1)),
        (b".", file_entry(1)),
        (b"..", file_entry(1)),
        (b"a/b", file_entry(1)),
        (b"a\0b", file_entry(1)),
        (b"n" * 4097, file_entry(1)),
        (b"a", file_entry(1, content=b"short")),
        (b"a", file_entry(1, content=bytes(10), root=bytes(54))),
        (b"a", file_entry(1, root=bytes(31))),
        (b"a", file_entry(1, mode=0o10000)),
        (b"a", file_entry(1, mode=-1)),
        (b"a", file_entry(1, size=-1)),
        (b"a", file_entry(1, size=2**64)),
        (b"a", file_entry(1, mtime_ns=2**63)),
        (b"a", file_entry(1, mtime_ns=-(2**63) - 1)),
        (b"a", file_entry(1, tags=((2, b""), (1, b"")))),
        (b"a", Entry(Kind.DIR, 0o755, 0, 0, b"")),
        (b"a", Entry(Kind.DIR, 0o755, 5, 0, digest(1))),
        (b"a", Entry(Kind.DIR, 0o755, 0, 5, digest(1))),
        (b"a", Entry(Kind.DIR, 0o755, 0, 0, digest(1), digest(2))),
        (b"a", Entry(Kind.SYMLINK, 0o777, 0, 1, b"t")),
        (b"a", Entry(Kind.SYMLINK, 0, 0, 2, b"t")),
        (b"a", Entry(Kind.SYMLINK, 0, 0, 0, b"")),
        (b"a", Entry(Kind.SYMLINK, 0, 0, 2, b"t\0")),
        (b"a", Entry(Kind.SYMLINK, 0, 0, 65536, b"t" * 65536)),
        (b"a", Entry(Kind.SYMLINK, 0, 0, 1, b"t", digest(1))),
    ],
)
def test_entries_that_no_reader_would_take_are_not_written(name, entry):
    with pytest.raises(ValueError, match=r"."):
        directory.encode_dir([(name, entry)], IDS)


def test_names_ascend_and_are_distinct():
    for pair in ((b"b", b"a"), (b"a", b"a")):
        with pytest.raises(ValueError, match="not a valid next name"):
            directory.encode_dir([(n, file_entry(1)) for n in pair], IDS)


def test_a_newer_directory_asks_for_an_upgrade():
    with pytest.raises(UpgradeError):
        directory.decode_node(b"\2" + leaf([(b"a", file_entry(1))])[1:])


def test_huge_counts_allocate_nothing():
    for head in (b"\1\0\xff\xff\xff\xff", b"\1\1\xff\xff\xff\xff"):
        with pytest.raises(FormatError, match="cannot fit"):
            directory.decode_node(head + bytes(100))
    with pytest.raises(FormatError, match="cannot fit"):
        file.decode_node(b"\1\0" + bytes(40) + b"\xff\xff\xff\xff" + bytes(100))


def test_hostile_directories():
    mixed = [
        (b"a", file_entry(1, tags=((1, b"x"), (5, b"yy")))),
        (b"b", file_entry(2, root=digest(9))),
        (b"c", Entry(Kind.DIR, 0o755, 0, 0, digest(3))),
        (b"d", Entry(Kind.SYMLINK, 0, -5, 4, b"../x")),
    ]
    inner = directory.DirNode(1, (), ((b"a", digest(1)), (b"f", digest(2)), (b"zz", digest(3))))
    refuses(directory.decode_node, [leaf(mixed), leaf([]), encode_node(inner)], encode_node, cases=6_000)


# --- files


@given(st.lists(st.tuples(ids32, st.integers(1, 2**40)), min_size=2, max_size=30), ids32.filter(any))
def test_file_round_trip(parts, content):
    chunks = tuple(Chunk(*p) for p in parts)
    (node,) = file.encode_file(content, chunks, IDS)
    assert node[0] == IDS.of(ObjectKind.FILE, node[1])
    decoded = file.decode_node(node[1])
    assert decoded == file.FileNode(0, sum(c.size for c in chunks), content, chunks)
    assert encode_file_node(decoded) == node[1]


@pytest.mark.parametrize(
    ("content", "chunks"),
    [
        (digest(0), ()),
        (digest(0), (Chunk(digest(1), 5),)),
        (b"short", (Chunk(digest(1), 5), Chunk(digest(2), 5))),
        (bytes(32), (Chunk(digest(1), 5), Chunk(digest(2), 5))),
        (digest(0), (Chunk(digest(1), 5), Chunk(digest(2), 0))),
        (digest(0), (Chunk(b"short", 5), Chunk(digest(2), 5))),
    ],
)
def test_files_that_no_reader_would_take_are_not_written(content, chunks):
    with pytest.raises(ValueError, match=r"."):
        file.encode_file(content, chunks, IDS)


def test_a_newer_file_object_asks_for_an_upgrade():
    (node,) = file.encode_file(digest(0), [Chunk(digest(1), 5), Chunk(digest(2), 5)], IDS)
    with pytest.raises(UpgradeError):
        file.decode_node(b"\2" + node[1][1:])


def test_hostile_file_objects():
    root = file.FileNode(0, 12, digest(0), (Chunk(digest(1), 5), Chunk(digest(2), 7)))
    inner = file.FileNode(1, 12, bytes(32), (Chunk(digest(1), 5), Chunk(digest(2), 7)))
    tail = file.FileNode(0, 5, bytes(32), (Chunk(digest(1), 5),))
    refuses(file.decode_node, [encode_file_node(n) for n in (root, inner, tail)], encode_file_node)


def test_only_a_node_that_is_no_root_has_one_part():
    with pytest.raises(FormatError, match="one part"):
        file.decode_node(encode_file_node(file.FileNode(0, 5, digest(0), (Chunk(digest(1), 5),))))


# --- the split rule


@pytest.fixture(scope="module")
def large() -> tuple[list[tuple[bytes, Entry]], dict[bytes, bytes]]:
    listing = [(b"file-%07d.dat" % i, file_entry(i)) for i in range(MANY)]
    return listing, dict(directory.encode_dir(listing, IDS))


@pytest.mark.long
def test_nodes_of_a_large_directory_are_bounded(large):
    listing, nodes = large
    decoded = [directory.decode_node(data) for data in nodes.values()]
    leaves = [n for n in decoded if not n.level]
    assert [e for n in leaves for e in n.entries] == listing
    sizes = sorted(len(data) for data in nodes.values())
    item = len(leaf([listing[0]]))
    assert sizes[-1] <= chunker.NODE_BYTES_MAX + item
    assert sum(s < chunker.NODE_BYTES_MIN for s in sizes) <= 2, "only the last of a level may be short"
    assert 32 << 10 < sum(sizes) / len(sizes) < 64 << 10
    assert max(n.level for n in decoded) == 1


@pytest.mark.few
@pytest.mark.parametrize("where", [0, 77_777, MANY - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("what", ["insert", "change", "delete"])
def test_one_edit_of_a_large_directory_rewrites_little(large, where, what):
    listing, nodes = large
    edited = list(listing)
    name = edited[where][0]
    match what:
        case "insert":
            edited.insert(where + 1, (name + b"+", file_entry(5)))
        case "change":
            edited[where] = (name, file_entry(MANY + 1))
        case _:
            del edited[where]
    new = dict(directory.encode_dir(edited, IDS))
    fresh = [i for i in new if i not in nodes]
    assert 2 <= len(fresh) <= 4, "one leaf, its neighbour at worst, and the root"
    assert sum(len(new[i]) for i in fresh) < 400 << 10


@pytest.mark.long
def test_boundaries_move_next_to_an_edit_only(large):
    """On average an edit changes less than 1.3 leaves."""
    listing, _ = large
    small = listing[:5_000]
    before = {i for i, _ in directory.encode_dir(small, IDS)}
    rng = random.Random(3)
    changed = 0
    for turn in range(60):
        edited = list(small)
        at = rng.randrange(len(edited))
        if turn % 2:
            del edited[at]
        else:
            edited.insert(at + 1, (edited[at][0] + b"+", file_entry(turn)))
        changed += sum(i not in before for i, _ in directory.encode_dir(edited, IDS)) - 1
    assert changed / 60 < 1.3


@pytest.mark.long
def test_a_large_file_is_split_like_a_large_directory():
    chunks = [Chunk(digest(i), 1 + i % 7) for i in range(MANY)]
    nodes = dict(file.encode_file(digest(1), chunks, IDS))
    decoded = [file.decode_node(data) for data in nodes.values()]
    assert sum(n.size for n in decoded if not n.level) == sum(c.size for c in chunks)
    assert max(map(len, nodes.values())) <= chunker.NODE_BYTES_MAX + 100
    for at in (0, MANY // 2, MANY - 1):
        edited = list(chunks)
        edited[at : at + 1] = [Chunk(digest(-1), 3), Chunk(digest(-2), 4)]
        new = dict(file.encode_file(digest(2), edited, IDS))
        assert 2 <= sum(i not in nodes for i in new) <= 4


def test_a_file_of_equal_chunks_has_few_different_nodes():
    """2 TB of zeros: nodes end where they are full, and are all the same."""
    chunks = [Chunk(digest(1), 16 << 20)] * 120_000
    nodes = file.encode_file(digest(2), chunks, IDS)
    assert len({i for i, _ in nodes}) <= 4
    assert max(len(data) for _, data in nodes) <= chunker.NODE_BYTES_MAX + 100


@pytest.mark.long
def test_long_names_make_several_levels_that_can_all_be_read():
    """A level may end in a node of one child: readers must take it (the root alone has at least two)."""
    ones = 0
    for n in range(300, 700, 3):
        listing = [((b"%05d" % i).ljust(4000, b"x"), file_entry(i)) for i in range(n)]
        nodes = directory.encode_dir(listing, IDS)
        decoded = [directory.decode_node(data) for _, data in nodes]
        assert decoded[-1].level >= 2
        assert len(decoded[-1].children) >= 2
        ones += sum(len(d.children) == 1 for d in decoded)
    assert ones, "the case that this test is about did not occur"


@given(st.lists(st.integers(1, 9000), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_cut_covers_all_in_order(lengths, rng):
    items = [bytes(n) for n in lengths]
    words = [rng.randbytes(8) for _ in items]
    ranges = chunker.cut(items, words, lambda w: int.from_bytes(w, "big"))
    assert [i for a, b in ranges for i in range(a, b)] == list(range(len(items)))
    if sum(lengths) <= chunker.NODE_BYTES_WHOLE:
        assert len(ranges) == 1
    else:
        for a, b in ranges[:-1]:
            size = sum(lengths[a:b])
            assert size >= chunker.NODE_BYTES_MIN
            assert size - lengths[b - 1] < chunker.NODE_BYTES_MAX


def test_another_key_splits_elsewhere(large):
    listing, _ = large
    few = listing[:5_000]
    counts = [
        [len(directory.decode_node(d).entries) for _, d in directory.encode_dir(few, ids)]
        for ids in (IDS, Ids(bytes(32)))
    ]
    assert counts[0] != counts[1]


# --- snapshots


@given(snapshots)
def test_snapshot_round_trip(s):
    data = model.encode_snapshot(s)
    assert model.decode_snapshot(data) == s
    assert model.encode_snapshot(model.decode_snapshot(data)) == data


GOOD = Snapshot(digest(1), (digest(2), digest(3)), b"d" * 16, 1_700_000_000_000_000_000, "mérge", ((3, b"x"),))


@pytest.mark.parametrize(
    "bad",
    [
        GOOD._replace(root=b"short"),
        GOOD._replace(parents=(b"short",)),
        GOOD._replace(parents=(digest(1),) * 17),
        GOOD._replace(device=b"short"),
        GOOD._replace(message="é" * 32768),
        GOOD._replace(message="\ud800"),
        GOOD._replace(tags=((2, b""), (2, b""))),
    ],
)
def test_snapshots_that_no_reader_would_take_are_not_written(bad):
    with pytest.raises(ValueError, match=r"."):
        model.encode_snapshot(bad)


def test_a_newer_snapshot_asks_for_an_upgrade():
    with pytest.raises(UpgradeError):
        model.decode_snapshot(b"\2" + model.encode_snapshot(GOOD)[1:])


def test_hostile_snapshots():
    first = model.encode_snapshot(GOOD._replace(parents=(), message="", tags=()))
    refuses(model.decode_snapshot, [model.encode_snapshot(GOOD), first], model.encode_snapshot)


# --- the layout of packs


FOOTER = Footer(
    (Segment(100, 300, digest(1)), Segment(7, 7, digest(2))),
    (
        Located(ObjectKind.BLOB, digest(3), 0, 0, 100),
        Located(ObjectKind.DIR, digest(4), 0, 100, 200),
        Located(ObjectKind.BLOB, digest(5), 1, 7, 0),
        Located(ObjectKind.SNAPSHOT, digest(6), 1, 0, 7, 2),
    ),
    ((4, b"later"),),
)


def test_header_and_footer_round_trip():
    h = Header(3, 70_000, digest(1))
    assert pack_format.decode_header(pack_format.encode_header(h) + b"what follows") == h
    assert pack_format.decode_footer(pack_format.encode_footer(FOOTER)) == FOOTER
    assert pack_format.decode_trailer(pack_format.encode_trailer(77)) == 77
    assert pack_format.offsets(FOOTER.segments) == [38, 138, 145]


def test_newer_packs_ask_for_an_upgrade():
    with pytest.raises(UpgradeError):
        pack_format.decode_header(b"\2" + pack_format.encode_header(Header(0, 1, digest(1)))[1:])
    with pytest.raises(UpgradeError):
        pack_format.decode_footer(b"\2" + pack_format.encode_footer(FOOTER)[1:])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (FOOTER._replace(segments=FOOTER.segments[:1]), "outside its segment"),
        (FOOTER._replace(objects=(Located(ObjectKind.BLOB, digest(3), 0, 201, 100),)), "outside its segment"),
        (FOOTER._replace(objects=(Located(ObjectKind.BLOB, digest(3), 0, 2**32 - 1, 2**32 - 1),)), "outside"),
        (FOOTER._replace(segments=(Segment(9, (64 << 20) + 1, digest(1)),), objects=()), "too large"),
    ],
)
def test_impossible_footers_are_refused(bad, why):
    with pytest.raises(FormatError, match=why):
        pack_format.decode_footer(pack_format.encode_footer(bad))


def test_counts_of_a_footer_are_bounded():
    with pytest.raises(FormatError, match="segments"):
        pack_format.decode_footer(b"\1" + b"\xff" * 100)
    with pytest.raises(FormatError, match="cannot fit"):
        pack_format.decode_footer(b"\1" + bytes(4) + b"\xff" * 100)
    limit = pack_format.OBJECTS_MAX * 45 + pack_format.SEGMENTS_MAX * 40 + 100
    assert limit < pack_format.SEGMENT_RAW_BYTES_MAX, "the largest footer must be readable"


def test_an_encoding_has_four_bits():
    with pytest.raises(ValueError, match="0 to 15"):
        pack_format.encode_footer(FOOTER._replace(objects=(FOOTER.objects[0]._replace(encoding=16),)))


def test_hostile_packs_in_the_clear():
    refuses(pack_format.decode_footer, [pack_format.encode_footer(FOOTER), b"\1" + bytes(9)], pack_format.encode_footer)
    header = pack_format.encode_header(Header(3, 70_000, digest(1)))
    refuses(lambda d: pack_format.decode_header(d), [header], cases=0)
    for data in (b"", bytes(3), bytes(5)):
        with pytest.raises(FormatError):
            pack_format.decode_trailer(data)


def test_padme():
    """Against the definition: the mantissa of a size keeps as many bits as its exponent has (at most 12 % more)."""
    assert [padme(n) for n in (0, 1, 2, 9, 10, 100, 1000, 4_500_000)] == [
        0,
        1,
        2,
        10,
        10,
        104,
        1024,
        4_587_520,
    ]
    for n in [*range(2, 5000), *(random.Random(1).randrange(2**33) for _ in range(2000))]:
        padded = padme(n)
        e = n.bit_length() - 1
        grain = 1 << max(0, e - e.bit_length())
        assert n <= padded < n + grain
        assert padded % grain == 0
        assert padded <= n * 1.12
        assert padme(padded) == padded
