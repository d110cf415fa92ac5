"""Golden vectors of packs, their footers, deltas and padded sizes."""

from __future__ import annotations

import hashlib
from typing import Any

from content_case import FORMAT, INTEGRITY, OK, UPGRADE, Case, Cases, case
from content_kit import EPOCH_KEYS, FULL, ID_KEY, IDS, NS_ID, SEALED_ONLY, blob, digest, pack_format
from content_objects import FILE, FIRST, leaf

from metasync.codec import padme, u32
from metasync.objects import model
from metasync.objects.model import ObjectKind
from metasync.store import pack_format as packfile
from metasync.store.pack_format import Delta, Footer, Header, Located, Segment
from metasync.store.packs import SealedPack, _Shrunk, seal_pack
from metasync.translators._base import Chain, Context
from metasync.translators.compress import Compress
from metasync.translators.encrypt import Encrypt
from metasync.translators.integrity import Integrity


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
