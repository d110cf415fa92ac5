"""What an edit of a document stores, by how finely documents are cut. `make bench-chunks`.

    python tests/benchmarks/chunks.py [--edits 50] [--megabytes 5] [--seed 1]

Files that people edit in place are made, edited and cut by the project's own chunker, with several chunk sizes. Told
is what an edit adds on average, in KB: the new chunks, compressed together as segments have them; the list of chunks in
the file object, which is written anew; and the new chunks' records in the index. With deltas a new chunk is
stored against the chunks that lay where it lies now, where that is smaller.

    mailbox     a message is appended; every tenth time one in the middle is deleted
    sqlite      ten rows of a database are updated
    image       four blocks of a virtual disk are overwritten
    log         ten lines are appended
    document    a word of a text in a zip archive is changed, and the archive written anew with pictures beside it
    insert      fourteen bytes are inserted at a random place into bytes that do not compress
"""

from __future__ import annotations

import argparse
import io
import random
import sqlite3
import tempfile
import zipfile
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import zstandard

from metasync.objects import delta
from metasync.objects.chunker import Chunker, SizeClass

KIB = 1 << 10
SIZES = ((8, 32, 128), (16, 64, 256), (32, 128, 512), (64, 256, 1024))  # least, average, largest chunk in KiB
SEGMENT_BYTES = 256 * KIB
LISTED_BYTES = 35  # a chunk in a file object: its id and its length
INDEXED_BYTES = 57  # an object in the index
LEVEL = 3
WORDS = [sha256(b"%d" % n).hexdigest()[: 2 + n % 11] for n in range(4000)]


def text(draw: random.Random, size: int) -> bytes:
    """Lines of words, of which few are frequent."""
    out = bytearray()
    while len(out) < size:
        line = (WORDS[int(4000 * draw.random() ** 3)] for _ in range(12))
        out += " ".join(line).encode() + b"\n"
    return bytes(out[:size])


def mailbox(draw: random.Random, size: int) -> Iterator[bytes]:
    messages = [b"From someone\n" + text(draw, draw.randrange(2_000, 20_000)) for _ in range(size // 11_000)]
    for edit in range(1 << 30):
        yield b"".join(messages)
        messages.append(b"From someone\n" + text(draw, draw.randrange(2_000, 20_000)))
        if edit % 10 == 9:
            del messages[draw.randrange(len(messages))]


def sqlite(draw: random.Random, size: int) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "db"
        db = sqlite3.connect(path)
        db.execute("create table t (id integer primary key, name text, value text)")
        rows = size // 250
        db.executemany(
            "insert into t (name, value) values (?, ?)", ((text(draw, 20), text(draw, 200)) for _ in range(rows))
        )
        while True:
            db.commit()
            yield path.read_bytes()
            for _ in range(10):
                db.execute("update t set value = ? where id = ?", (text(draw, 200), draw.randrange(rows)))


def image(draw: random.Random, size: int) -> Iterator[bytes]:
    disk = bytearray(
        b"".join(text(draw, 4096) if draw.random() < 0.5 else draw.randbytes(4096) for _ in range(size >> 12))
    )
    while True:
        yield bytes(disk)
        for _ in range(4):
            at = draw.randrange(size >> 12) << 12
            disk[at : at + 4096] = text(draw, 4096)


def log(draw: random.Random, size: int) -> Iterator[bytes]:
    lines = bytearray(text(draw, size))
    while True:
        yield bytes(lines)
        lines += text(draw, 800)


def document(draw: random.Random, size: int) -> Iterator[bytes]:
    pictures = [draw.randbytes(size // 4) for _ in range(3)]
    content = bytearray(text(draw, size))
    while True:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
            for number, picture in enumerate(pictures):
                z.writestr(zipfile.ZipInfo(f"Pictures/{number}.png"), picture)
            z.writestr(zipfile.ZipInfo("content.xml"), bytes(content), zipfile.ZIP_DEFLATED)
        yield out.getvalue()
        at = draw.randrange(len(content) - 9)
        content[at : at + 9] = b"corrected"


def insert(draw: random.Random, size: int) -> Iterator[bytes]:
    data = bytearray(draw.randbytes(size))
    while True:
        yield bytes(data)
        at = draw.randrange(len(data))
        data[at:at] = draw.randbytes(14)


KINDS = (mailbox, sqlite, image, log, document, insert)


def cut(data: bytes, sizes: tuple[int, int, int]) -> list[bytes]:
    chunker = Chunker(64 * KIB, [SizeClass(None, *(n * KIB for n in sizes))], bytes(32))
    return list(chunker.cut(io.BytesIO(data).read, len(data)))


def compressed(chunks: list[bytes]) -> int:
    """Bytes of chunks in segments."""
    out, segment = 0, bytearray()
    for chunk in [*chunks, b""]:
        if segment and (not chunk or len(segment) + len(chunk) > SEGMENT_BYTES):
            out += min(len(segment), len(zstandard.compress(bytes(segment), LEVEL)))
            segment.clear()
        segment += chunk
    return out


def smaller(old: bytes, new: bytes) -> int:
    """Bytes of a chunk as a delta against what lay there, where that is smaller."""
    return min(len(delta.make(old[: delta.BLOB_BYTES_MAX], new)), compressed([new]))


def measured(versions: list[bytes], sizes: tuple[int, int, int]) -> tuple[float, float, float, float]:
    """Bytes: all of the first version; per edit: whole chunks, deltas, the file object and the index."""
    whole = deltas = lists = 0
    before: list[bytes] = []
    known = set[bytes]()
    first = 0
    for number, data in enumerate(versions):
        chunks = cut(data, sizes)
        new = [
            (at, c) for at, c in zip(accumulate(map(len, chunks), initial=0), chunks, strict=False) if c not in known
        ]
        known.update(chunks)
        listed = LISTED_BYTES * len(chunks) + INDEXED_BYTES * len(new)
        if not number:
            first = compressed(chunks) + listed
        else:
            whole += compressed([c for _, c in new])
            starts = list(accumulate(map(len, before), initial=0))
            for at, chunk in new:
                upto = bisect_right(starts, at + len(chunk))
                deltas += smaller(b"".join(before[max(bisect_right(starts, at) - 1, 0) : upto]), chunk)
            lists += listed
        before = chunks
    edits = max(len(versions) - 1, 1)
    return first, whole / edits, deltas / edits, lists / edits


def main() -> None:
    parser = argparse.ArgumentParser(description="What an edit of a document stores, by how finely documents are cut.")
    parser.add_argument("--edits", type=int, default=50, help="of each kind")
    parser.add_argument("--megabytes", type=float, default=5, help="size of the documents")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print("| document | chunks, KiB | first, KB | an edit: chunks + lists, KB | with deltas |")
    print("| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        edited = kind(random.Random(asked.seed), int(asked.megabytes * 1e6))
        versions = [next(edited) for _ in range(asked.edits + 1)]
        for sizes in SIZES:
            first, whole, deltas, lists = (n / 1000 for n in measured(versions, sizes))
            told = [f"{n:.1f} + {lists:.1f} = {n + lists:.1f}" for n in (whole, deltas)]
            print(f"| {kind.__name__} | {'/'.join(map(str, sizes))} | {first:,.0f} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
