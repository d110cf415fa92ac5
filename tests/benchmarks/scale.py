"""How MetaSync does with very many files and very large ones: time, memory, requests and bytes against size.

    python tests/benchmarks/scale.py                              10,000, 100,000 and 1,000,000 files: an hour, 10 GB
    python tests/benchmarks/scale.py --files 10000,100000         these sizes
    python tests/benchmarks/scale.py --parts files,flat,large,sparse --large-gb 20 --sparse-gb 24 --out FILE

Parts. `files`: small files, 1,000 in each folder, through all steps. `flat`: the same number in one folder. `large`:
one file of pseudo-random bytes, pushed to a store that keeps what `_discarding` says. `sparse`: one file that is a hole
but for a little data at both ends and in the middle; pushed, cloned, and the clone compared with it.

Each step is a process of its own, and its peak the one that the system says of it (`ru_maxrss`). One backend, a folder
(R = 1), through a wrapper that counts calls of the contract and the bytes of objects they move.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import workloads
from measure import child_environment, measured

T = TypeVar("T")
FOLDER_FILES = 1000
FILE_BYTES = 100
PARTS = ("files", "flat", "large", "sparse")
STEPS = ("push", "no-change push", "one-file push", "clone", "no-change pull", "second one-file push", "one-file pull")
TIMEOUT_S = 4 * 3600.0
PEAK_MB_MAX = 200.0
BARS_S = {"no-change push": 6.0, "one-file push": 7.0}  # for a million files
BAR_FILES = 1_000_000
GB = 10**9
BLOCK_BYTES = 1 << 20
Row = dict[str, float]
Rows = dict[str, Row]  # by step


# --- what is pushed ---


def make_files(folder: Path, count: int, *, flat: bool) -> None:
    """`count` files of `FILE_BYTES` bytes, no two alike, in folders of `FOLDER_FILES` or in one."""
    folder.mkdir(parents=True)
    for first in range(0, count, FOLDER_FILES):
        inside = folder if flat else folder / f"d{first // FOLDER_FILES:04}"
        inside.mkdir(exist_ok=True)
        above = os.open(inside, os.O_RDONLY)
        for n in range(first, min(first + FOLDER_FILES, count)):
            fd = os.open(f"f{n:07}.txt", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=above)
            os.write(fd, _text(n))
            os.close(fd)
        os.close(above)


def _text(n: int) -> bytes:
    """As compressible as a text: 40 of its bytes are random."""
    return (hashlib.sha256(b"%d" % n).hexdigest()[:80] + " and what stands in every file\n").encode().ljust(FILE_BYTES)


def make_large(path: Path, size: int) -> None:
    """Pseudo-random bytes of AES in counter mode: as fast as the disk."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for at in range(0, size, BLOCK_BYTES):
            file.write(stream.update(bytes(min(BLOCK_BYTES, size - at))))


def make_sparse(path: Path, size: int) -> None:
    """A hole of `size` bytes with a little data at both ends and in the middle."""
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for at in (0, size // 2, size - FILE_BYTES):
            file.seek(at)
            file.write(_text(at))


def data_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """What is in a file besides zeros, as (offset, bytes) of blocks that have any; holes are not read."""
    with path.open("rb") as file:
        at, end = 0, path.stat().st_size
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // BLOCK_BYTES * BLOCK_BYTES
            except OSError:
                return
            block = os.pread(file.fileno(), BLOCK_BYTES, at)
            if block.strip(b"\0"):
                yield at, block
            at += BLOCK_BYTES


# --- one step: a process ---


class Steps:
    """Runs steps in one home and keeps what they took."""

    def __init__(self, work: Path, *, discards: bool = False) -> None:
        self.work = work
        self.rows: Rows = {}
        self._discards = discards
        self._env = child_environment(
            work, {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": "seven quiet herons by the mill"}
        )

    def run(self, step: str, words: Sequence[str], *, keep: bool = True) -> None:
        calls = self.work / "calls.json"
        argv = [sys.executable, __file__, "--counted", str(calls), "discard" if self._discards else "keep", *words]
        usage = measured(argv, self._env, cwd=self.work, log=self.work / "log", timeout_s=TIMEOUT_S)
        if usage.exit_code:
            raise SystemExit(f"{step}: exit {usage.exit_code}\n{usage.output[-2000:]}")
        row = {"wall_s": usage.wall_s, "cpu_s": usage.cpu_s, "peak_mb": usage.peak_mb, **json.loads(calls.read_text())}
        if keep:
            self.rows[step] = row
            print(f"    {step}: " + ", ".join(f"{k} {v:,.3f}" for k, v in row.items()), file=sys.stderr, flush=True)


def counted(out: Path, mode: str, words: list[str]) -> None:
    """Runs the command line and writes down how many calls it made on stores, and the bytes of objects they moved."""
    from metasync import cli
    from metasync.backends.api import Backend, BackendUrl
    from metasync.session import open_backend
    from metasync.testing.counting import CountingBackend

    backends: list[CountingBackend] = []
    really_opened = open_backend.opened

    def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
        backend: Backend = really_opened(name, url, create=create)
        backend = CountingBackend(_discarding(backend, Path(url.path)) if mode == "discard" else backend)
        backends.append(backend)
        return backend

    open_backend.opened = opened
    try:
        cli.main(words)
    finally:
        counts = [backend.take() for backend in backends]
        row = {
            "requests": sum(c.requests.total() - c.requests["identity"] for c in counts),
            "up_mb": sum(c.up_bytes for c in counts) / 1e6,
            "down_mb": sum(c.down_bytes for c in counts) / 1e6,
        }
        out.write_text(json.dumps(row))


def _discarding(inner: Any, root: Path) -> Any:
    """A stand-in for a store that has room: of a pack it keeps the name and the size (as a hole), and not the bytes.

    A `get` of a pack gives zeros, which no reader takes for the pack; a push does not read what it stores. Everything
    that is agreed on (logs, indexes, keys) is stored as it is.
    """
    from metasync.backends.wrappers.wrapper import Wrapper

    class Discarding(Wrapper):
        def create(self, path: str, data: bytes) -> bool:
            if "/packs/" not in path:
                return bool(self.inner.create(path, data))
            if hashlib.sha256(data).hexdigest() != path.rpartition("/")[2]:
                raise SystemExit(f"{path} is not named by what is in it")
            if not self.inner.create(path, b""):
                return False
            os.truncate(root / path, len(data))
            return True

    return Discarding(inner)


# --- parts ---


def files_part(tree: Path, work: Path) -> Rows:
    """All steps over a tree of small files; the tree is as it was afterwards."""
    steps = Steps(work)
    clone = work / "clone"
    backend = ["--backend", f"file://{work}/store"]
    edited = min(p for p in _few(tree) if p.suffix == ".txt")
    text = edited.read_bytes()
    try:
        steps.run("init", ["init", str(tree), "--name", "scale", *backend], keep=False)
        steps.run("push", ["-C", str(tree), "push"])
        time.sleep(0.02)  # rows of files that changed in the scan's own clock tick are not trusted yet
        steps.run("no-change push", ["-C", str(tree), "push"])
        edited.write_bytes(text + b"one line\n")
        steps.run("one-file push", ["-C", str(tree), "push"])
        steps.run("clone", ["clone", str(clone), "--name", "scale", *backend])
        steps.run("no-change pull", ["-C", str(clone), "pull"])
        edited.write_bytes(text + b"another line\n")
        steps.run("second one-file push", ["-C", str(tree), "push"])
        steps.run("one-file pull", ["-C", str(clone), "pull"])
        _compare(tree, clone)
    finally:
        edited.write_bytes(text)
        shutil.rmtree(tree / ".metasync", ignore_errors=True)
    return steps.rows


def _few(tree: Path) -> list[Path]:
    return sorted(next(iter(sorted(p for p in tree.iterdir() if p.is_dir() and p.name[0] != ".")), tree).iterdir())


def _compare(tree: Path, clone: Path) -> None:
    """Names and bytes, folder by folder: no list of all."""
    todo = [""]
    while todo:
        inside = todo.pop()
        names = [sorted(n for n in os.listdir(side / inside) if n != ".metasync") for side in (tree, clone)]
        if names[0] != names[1]:
            raise SystemExit(f"the clone has other names in {inside or 'its root'}")
        for name in names[0]:
            a, b = os.path.join(tree, inside, name), os.path.join(clone, inside, name)
            if os.path.isdir(a):
                todo.append(os.path.join(inside, name))
            elif _bytes(a) != _bytes(b):
                raise SystemExit(f"{b} is not {a}")


def _bytes(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def large_part(size: int, work: Path) -> Rows:
    """A push of one large file, whose packs are discarded; then another with a byte more."""
    steps = Steps(work, discards=True)
    tree = work / "tree"
    make_large(tree / "large.bin", size)
    steps.run("init", ["init", str(tree), "--name", "scale", "--backend", f"file://{work}/store"], keep=False)
    steps.run("push", ["-C", str(tree), "push"])
    time.sleep(0.02)
    steps.run("no-change push", ["-C", str(tree), "push"])
    with (tree / "large.bin").open("ab") as file:
        file.write(b"x")
    steps.run("one-file push", ["-C", str(tree), "push"])
    return steps.rows


def sparse_part(size: int, work: Path) -> Rows:
    """Push and clone of one sparse file; the clone has the same data, and says how much disk it takes."""
    steps = Steps(work)
    tree, clone = work / "tree", work / "clone"
    make_sparse(tree / "sparse.bin", size)
    backend = ["--backend", f"file://{work}/store"]
    steps.run("init", ["init", str(tree), "--name", "scale", *backend], keep=False)
    steps.run("push", ["-C", str(tree), "push"])
    steps.run("clone", ["clone", str(clone), "--name", "scale", *backend])
    here, there = tree / "sparse.bin", clone / "sparse.bin"
    if here.stat().st_size != there.stat().st_size or list(data_of(here)) != list(data_of(there)):
        raise SystemExit("the clone of the sparse file differs")
    steps.rows["clone"]["disk_mb"] = there.stat().st_blocks * 512 / 1e6
    return steps.rows


# --- figures ---


def table(sizes: dict[int, Rows]) -> str:
    """Steps against sizes: wall (CPU) seconds, peak, requests, bytes."""
    heads = ["step", "files", "wall s", "CPU s", "CPU s a 100,000", "peak MB", "requests", "MB up", "MB down"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for step in STEPS:
        for size, rows in sizes.items():
            if (r := rows.get(step)) is not None:
                each = r["cpu_s"] / size * 100_000
                lines.append(
                    f"| {step} | {size:,} | {r['wall_s']:.2f} | {r['cpu_s']:.2f} | {each:.2f} | {r['peak_mb']:.0f} "
                    f"| {r['requests']:.0f} | {r['up_mb']:.3f} | {r['down_mb']:.3f} |"
                )
    return "\n".join(lines)


def one_table(rows: Rows, size: int) -> str:
    """The steps of one large file."""
    keys = list(dict.fromkeys(k for row in rows.values() for k in row))
    lines = ["| step | " + " | ".join(k.replace("_", " ") for k in keys) + " | MB/s |"]
    lines.append("| --- |" + " ---: |" * (len(keys) + 1))
    for step, row in rows.items():
        cells = [f"{row[k]:,.2f}" if k in row else "" for k in keys]
        lines.append(f"| {step} | " + " | ".join(cells) + f" | {size / 1e6 / row['wall_s']:,.0f} |")
    return "\n".join(lines)


def missed(part: str, sizes: dict[int, Rows]) -> list[str]:
    """Which bars are missed, as sentences."""
    out = []
    for size, rows in sizes.items():
        for step, row in rows.items():
            if row["peak_mb"] > PEAK_MB_MAX:
                out.append(f"{part}, {size:,}, {step}: {row['peak_mb']:.0f} MB, at most {PEAK_MB_MAX:.0f} wanted")
            if size == BAR_FILES and part in ("files", "flat") and row["wall_s"] > BARS_S.get(step, TIMEOUT_S):
                out.append(f"{part}, {size:,}, {step}: {row['wall_s']:.1f} s, at most {BARS_S[step]:.0f} wanted")
    return out


def main() -> None:
    if sys.argv[1:2] == ["--counted"]:
        counted(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="10000,100000,1000000", help="how many, for the parts files and flat")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--large-gb", type=float, default=20.0)
    parser.add_argument("--sparse-gb", type=float, default=24.0)
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    parser.add_argument(
        "--work", type=Path, default=workloads.default_work(), help="trees of files stay, the rest goes"
    )
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}\n")
    figures: dict[str, dict[int, Rows]] = {}
    for part in parts:
        figures[part] = {}
        if part in ("files", "flat"):
            for count in map(int, options.files.split(",")):
                tree = options.work / f"{part}-{count}"
                if not tree.exists():
                    making = tree.with_name(tree.name + ".part")
                    shutil.rmtree(making, ignore_errors=True)
                    make_files(making, count, flat=part == "flat")
                    making.rename(tree)
                _in_scratch(options.work, lambda work, tree=tree: files_part(tree, work), figures[part], count)
            print(f"## {part}\n\n{table(figures[part])}\n", flush=True)
        else:
            size = int((options.large_gb if part == "large" else options.sparse_gb) * GB)
            run = large_part if part == "large" else sparse_part
            _in_scratch(options.work, lambda work, run=run, size=size: run(size, work), figures[part], size)
            print(f"## {part}, {size / GB:g} GB\n\n{one_table(figures[part][size], size)}\n", flush=True)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(line for part in parts for line in missed(part, figures[part])) or "No bar was missed.")


def _in_scratch(work: Path, run: Callable[[Path], Rows], into: dict[int, Rows], size: int) -> None:
    print(f"  {size:,}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="scale-", dir=work) as scratch:
        into[size] = run(Path(scratch))


if __name__ == "__main__":
    main()
