"""The golden vectors of content formats: one file per case in `tests/vectors/content`, written by `make_content.py`.

Other implementations may read them: `docs/design/format.md` says what the fields mean. A pack is also read here by a
reader of its own, written from that page and using nothing of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import content_packs
import pytest
import zstandard
from blake3 import blake3
from content_case import plain
from content_kit import SEALED_ONLY, chunker, digest
from content_objects import lengths, shape
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from make_content import build

from metasync import errors
from metasync.codec import Reader, encode_tags, padme
from metasync.keys.keyring import WorkspaceKeys
from metasync.objects import delta, directory, file, model
from metasync.objects.model import Chunk, Entry, Ids, Kind, ObjectKind
from metasync.store import index, pack_format, placement
from metasync.store.packs import PackFormat, WorkspacePackKeys, read_footer, read_objects, read_segment
from metasync.store.retained import decode_retained, encode_retained
from metasync.translators._base import Chain, IntegrityError
from metasync.translators.compress import Compress
from metasync.translators.encrypt import Encrypt
from metasync.translators.integrity import Integrity

HERE = Path(__file__).resolve().parent
FILES = sorted((HERE / "content").glob("*.json"))
CASES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
STEPS = {"compress": Compress(), "encrypt": Encrypt(), "integrity": Integrity()}
ERRORS: dict[str, type[Exception]] = {**vars(errors), "IntegrityError": IntegrityError}


def of(what: str, *, good: bool | None = None) -> list[str]:
    """Names of the cases of a kind."""
    return [name for name, c in CASES.items() if c["what"] == what and good in (None, c.get("expect") == "ok")]


def data_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex("".join(case["hex"]))


def test_vectors_are_what_the_code_writes():
    """A change of format must be meant: run `python tests/vectors/make_content.py` and read the diff."""
    assert build() == {path.name: path.read_text(encoding="utf-8") for path in FILES}


def test_bad_cases_outnumber_good_ones():
    expected = [c["expect"] for c in CASES.values() if "expect" in c]
    assert len(expected) > 130
    assert expected.count("ok") * 2 < len(expected)
    assert all(("bad" in name) == (c["expect"] != "ok") for name, c in CASES.items() if "expect" in c)


# --- what has one byte string


def decode_tags(data: bytes) -> Any:
    r = Reader(data, "tags")
    out = r.tags()
    r.end()
    return out


def encode_dir_node(node: directory.DirNode) -> bytes:
    if node.level:
        rows = b"".join(struct.pack(">H", len(name)) + name + i for name, i in node.children)
        return struct.pack(">BBI", 1, node.level, len(node.children)) + rows
    return directory.encode_dir(node.entries, Ids(bytes(32)))[-1][1]


def encode_file_node(node: file.FileNode) -> bytes:
    rows = b"".join(p.id + struct.pack(">Q", p.size) for p in node.parts)
    return struct.pack(">BBQ32sI", 1, node.level, node.size, node.content, len(node.parts)) + rows


CODECS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "tags": (decode_tags, encode_tags),
    "dir node": (directory.decode_node, encode_dir_node),
    "file node": (file.decode_node, encode_file_node),
    "snapshot": (model.decode_snapshot, model.encode_snapshot),
    "pack footer": (pack_format.decode_footer, pack_format.encode_footer),
    "index root": (index.decode_root, index.encode_root),
    "retained list": (decode_retained, encode_retained),
}
KINDS = {"dir node": ObjectKind.DIR, "file node": ObjectKind.FILE, "snapshot": ObjectKind.SNAPSHOT}


@pytest.mark.parametrize("name", [n for what in CODECS for n in of(what, good=True)])
def test_good(name):
    case = CASES[name]
    decode, encode = CODECS[case["what"]]
    data = data_of(case)
    value = decode(data)
    assert plain(value) == case["value"]
    assert encode(value) == data
    if "id" in case:
        assert Ids(bytes.fromhex(CASES["ids"]["id_key"])).of(KINDS[case["what"]], data).hex() == case["id"]


@pytest.mark.parametrize("name", [n for what in (*CODECS, "index segment") for n in of(what, good=False)])
def test_bad(name):
    case = CASES[name]
    decode = index.decode_segment if case["what"] == "index segment" else CODECS[case["what"]][0]
    with pytest.raises(errors.MetaSyncError) as caught:
        decode(data_of(case))
    assert type(caught.value) is ERRORS[case["expect"]]


@pytest.mark.parametrize("name", of("delta"))
def test_deltas(name):
    case = CASES[name]
    base = bytes.fromhex(case["base"])
    if case["expect"] == "ok":
        assert delta.opened(base, data_of(case)).hex() == case["value"]
    else:
        with pytest.raises(ERRORS[case["expect"]]):
            delta.opened(base, data_of(case))


# --- ids and boundaries


def test_ids():
    case = CASES["ids"]
    ids = Ids(bytes.fromhex(case["id_key"]))
    for row in case["of"]:
        for kind in ObjectKind:
            key = blake3(
                b"metasync object %d" % kind, key=hkdf(bytes.fromhex(case["id_key"]), b"", b"metasync object ids")
            ).digest()
            assert row[kind.name] == ids.of(kind, bytes.fromhex(row["bytes"])).hex()
            assert row[kind.name] == blake3(bytes.fromhex(row["bytes"]), key=key).hexdigest()
    for name, bits in case["split"].items():
        assert f"{ids.split_point(bytes.fromhex(name)):016x}" == bits


def test_split_of_a_directory():
    case = CASES["split-dir"]
    listing = [(b"%05d.txt" % i, Entry(Kind.FILE, 0o644, i, i, digest(i))) for i in range(case["count"])]
    nodes = directory.encode_dir(listing, Ids(bytes.fromhex(case["id_key"])))
    assert shape(nodes, directory.decode_node) == case["nodes"]
    assert len(nodes) > 5


def test_split_of_a_file():
    case = CASES["split-file"]
    chunks = [Chunk(digest(i), i + 1) for i in range(case["count"])]
    nodes = file.encode_file(digest(-1), chunks, Ids(bytes.fromhex(case["id_key"])))
    assert shape(nodes, file.decode_node) == case["nodes"]
    assert len(nodes) > 4


@pytest.mark.parametrize("name", of("chunks"))
def test_chunk_boundaries(name):
    c = CASES[name]
    data = bytes(c["size"]) if c["data"] == "zeros" else hashlib.shake_256(b"chunks").digest(c["size"])
    made = chunker(((None, *c["sizes"]),), kind=c["kind"], whole=c["whole_bytes_max"], seed=int(c["seed"], 16))
    assert lengths(made, data) == c["lengths"]
    assert sum(c["lengths"]) == c["size"]


@pytest.mark.parametrize("name", [n for n in of("chunks") if CASES[n]["kind"] == "cdc" and CASES[n]["size"] < 50_000])
def test_chunk_boundaries_from_the_description(name):
    """The rule of `format.md` 2.3, byte by byte: what another implementation would do."""
    c = CASES[name]
    if c["whole_bytes_max"]:
        return
    least, average, most = c["sizes"]
    data = bytes(c["size"]) if c["data"] == "zeros" else hashlib.shake_256(b"chunks").digest(c["size"])
    seed = bytes.fromhex(c["seed"])
    key = blake3(b"metasync cuts", key=seed).digest()
    got, start, before = [], 0, 0
    for at in candidates(data, average, seed):
        if at - start > most:
            got.append(before - start)
            start = before
        size = at - start
        drawn = int.from_bytes(blake3(data[at - 64 : at], key=key).digest()[:8], "big")
        nearby = max(average // 16, 256)
        usual = 2 * nearby * 2**64 // average if size >= average else nearby * 2**64 // (2 * average)
        if at == len(data) or (size >= least and drawn < usual):
            got.append(size)
            start = at
        before = at
    assert got == c["lengths"]


def candidates(data: bytes, chunk_average: int, seed: bytes) -> Iterator[int]:
    average = max(chunk_average // 16, 256)
    least, most = max(chunk_average // 16 // 4, 64), max(chunk_average // 16 * 4, 1024)
    mixed = int.from_bytes(blake3(b"metasync cut candidates", key=seed).digest()[:8], "big") & 2**63 - 1
    gear = [int.from_bytes(hashlib.md5(bytes([i]) * 64).digest()[:8], "big") ^ mixed for i in range(256)]
    bits = round_log2(average)
    strict, loose = MASKS[bits + 1], MASKS[bits - 1]
    start = 0
    while start < len(data):
        left = min(len(data) - start, most)
        length, fingerprint = left, 0
        if left > least:
            normal = min(average, left) & ~1
            for i in range(least & ~1, left & ~1):
                fingerprint = (fingerprint << 1) + gear[data[start + i]] & 2**64 - 1
                if not fingerprint & (strict if i < normal else loose):
                    length = i
                    break
        start += length
        yield start


def round_log2(n: int) -> int:
    low = n.bit_length() - 1
    return low + (n * n > 2 << 2 * low)  # above the geometric mean of two powers: the upper one


MASKS = {7: 0x18035100, 8: 0x1800035300, 9: 0x19000353000, 10: 0x590003530000, 11: 0xD90003530000, 12: 0xD90103530000}


def test_padme():
    for size, padded in CASES["padme"]["sizes"]:
        assert padme(size) == padded


# --- packs


def form_of(case: dict[str, Any]) -> PackFormat:
    epochs = tuple((int(e), bytes.fromhex(k)) for e, k in sorted(case["epoch_keys"].items()))
    id_key = bytes.fromhex(case["id_key"])
    keys = WorkspaceKeys(bytes.fromhex(case["ns_id"]), case["encrypted"], epochs, id_key, bytes(32))
    chains = tuple(Chain([STEPS[name] for name in names]) for names in case["chains"])
    return PackFormat(WorkspacePackKeys(keys), chains, 1, 3, 1 << 18, 1 << 22)


def read_pack(case: dict[str, Any]) -> tuple[pack_format.Header, pack_format.Footer, dict[bytes, bytes]]:
    data, form = data_of(case), form_of(case)
    header, footer = read_footer(data, bytes.fromhex(case["name"]), form)
    at = pack_format.offsets(footer.segments)
    out: dict[bytes, bytes] = {}
    for n, segment in enumerate(footer.segments):
        raw = read_segment(data[:38], data[at[n] : at[n + 1]], n, segment, form, verified=False)
        wanted = [o for o in footer.objects if o.segment == n]
        out |= {o.id: bytes(d) for o, d in read_objects(raw, wanted, Ids(bytes.fromhex(case["id_key"])).of)}
    return header, footer, out


def neg_ln(h: int) -> int:
    """As docs/design/placement.md has it."""
    ln2, c = 837963523372001241319907, [(2 << 80) // (2 * i + 1) for i in range(16)]

    def twice_atanh(z: int) -> int:
        square, total = (z * z) >> 80, 0
        for i in reversed(range(16)):
            total = ((total * square) >> 80) + c[i]
        return (total * z) >> 80

    x = 2 * h + 1
    e = len(f"{x:b}")
    high, low = 2**e, 2 ** (e - 1)
    if x * x < low * high:
        return (66 - e) * ln2 - twice_atanh(((x - low) << 80) // (x + low))
    return (65 - e) * ln2 + twice_atanh(((high - x) << 80) // (high + x))


def test_placement_is_computed_from_the_description_alone():
    c = CASES["placement"]
    assert {h: str(neg_ln(int(h))) for h in c["neg_ln"]} == c["neg_ln"]
    assert {h: str(placement.neg_ln(int(h))) for h in c["neg_ln"]} == c["neg_ln"]
    for pack in c["packs"]:
        at = int(pack["name"], 16) % c["partitions"]
        costs = {}
        for backend_id, weight in c["weights"].items():
            message = at.to_bytes(8, "big") + bytes.fromhex(backend_id)
            h = hashlib.blake2b(message, digest_size=8, person=b"metasync place 1").digest()
            costs[backend_id] = (neg_ln(int.from_bytes(h, "big")) << 64) // int(weight)
        assert (at, {i: str(cost) for i, cost in costs.items()}) == (pack["partition"], pack["costs"])
        assert sorted(costs, key=lambda i: (costs[i], i)) == pack["order"]


@pytest.mark.parametrize("name", of("pack", good=True))
def test_good_pack(name):
    case = CASES[name]
    header, footer, objects = read_pack(case)
    assert plain(header) == case["header"]
    assert plain(footer) == case["footer"]
    assert plain(objects) == case["objects"]
    keys = form_of(case).keys
    assert keys.pack_key(header.epoch, header.random).hex() == case["pack_key"]
    assert keys.pack_binding(header.epoch, data_of(case)[:38]).hex() == case["binding"]


@pytest.mark.parametrize("name", of("pack", good=False))
def test_bad_pack(name):
    case = CASES[name]
    with pytest.raises(errors.MetaSyncError) as caught:
        read_pack(case)
    assert type(caught.value) is ERRORS[case["expect"]]


def hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869), 32 bytes."""
    prk = hmac.digest(salt or bytes(32), key, "sha256")
    return hmac.digest(prk, info + b"\1", "sha256")


@pytest.mark.parametrize("name", of("pack", good=True))
def test_a_pack_is_read_from_the_description_alone(name):
    """`format.md` section 5, with nothing of metasync: if this breaks, the page is wrong or the format changed."""
    case, data = CASES[name], data_of(CASES[name])
    fmt, chain, epoch, random = struct.unpack(">BBI32s", data[:38])
    assert (fmt, hashlib.sha256(data).hexdigest()) == (1, case["name"])
    epoch_key = bytes.fromhex(case["epoch_keys"][str(epoch)])
    key = hkdf(hkdf(epoch_key, b"", b"metasync pack"), random, b"metasync one pack")
    binding = bytes.fromhex(case["ns_id"]) + struct.pack(">I", epoch) + b"pack" + data[:38]
    tag = 16 if case["encrypted"] else 0

    def unseal(stored: bytes, number: int) -> bytes:
        return AESGCM(key).decrypt(number.to_bytes(12, "big"), stored, binding) if tag else stored

    def unpack(plain: bytes) -> bytes:
        if "compress" not in case["chains"][chain]:
            return plain
        return plain[1:] if plain[0] == 0 else zstandard.ZstdDecompressor().decompress(plain[1:])

    (footer_bytes,) = struct.unpack(">I", unseal(data[-4 - tag :], 2**32 - 1))
    end = len(data) - 4 - tag
    footer = unpack(unseal(data[end - footer_bytes : end], 2**32 - 2))
    version, count = struct.unpack_from(">BI", footer)
    segments = [struct.unpack_from(">II32s", footer, 5 + 40 * i) for i in range(count)]
    pos = 5 + 40 * count
    (total,) = struct.unpack_from(">I", footer, pos)
    objects = [struct.unpack_from(">32sBIII", footer, pos + 4 + 45 * i) for i in range(total)]
    assert (version, footer[pos + 4 + 45 * total :]) == (1, b"\0")
    raws, at = [], 38
    for number, (stored_bytes, raw_bytes, sha) in enumerate(segments):
        stored = data[at : at + stored_bytes]
        assert hashlib.sha256(stored).digest() == sha
        raws.append(unpack(unseal(stored, number)))
        assert len(raws[-1]) == raw_bytes
        at += stored_bytes
    salt = bytes.fromhex(case.get("salt", ""))
    assert len(salt) in (0, 8)
    unread = data[at : end - footer_bytes]
    assert unread.endswith(salt)
    padding = unseal(unread[: len(unread) - len(salt)], 2**32 - 3)
    assert padding == bytes(len(padding) if tag else 0)
    id_key = bytes.fromhex(case["id_key"])
    got = {}
    for object_id, kind, segment, offset, length in objects:
        body = raws[segment][offset : offset + length]
        kind_key = blake3(b"metasync object %d" % kind, key=hkdf(id_key, b"", b"metasync object ids")).digest()
        assert blake3(body, key=kind_key).digest() == object_id
        got[object_id.hex()] = body.hex()
    assert got == case["objects"]


def test_a_pack_of_these_vectors_is_sealed_alike():
    assert content_packs.pack().data == data_of(CASES["pack-sealed"])
    assert SEALED_ONLY.names == tuple(CASES["pack-sealed"]["chains"][0])


# --- index segments


@pytest.mark.parametrize("name", of("index segment", good=True))
def test_good_index_segment(name):
    case, data = CASES[name], data_of(CASES[name])
    s = index.decode_segment(data)
    objects = [{"pack": p.name, **o._asdict()} for p, o in s]
    assert (
        plain({"packs": tuple(s.packs), "objects": objects, "tombstones": s.tombstones, "tags": s.tags})
        == case["value"]
    )
    unpack = zstandard.ZstdDecompressor().decompress
    assert unpack(index.encode_segment(s)[1:]) == unpack(data[1:]), (
        "the tables are canonical, the frame around them not"
    )
