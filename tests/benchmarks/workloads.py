"""The trees that benchmarks move: `kernel` (many small files), `paper` (few), `photos` (incompressible).

    python workloads.py --work DIR [--load kernel,paper,photos] [--linux auto|fetch|generated|PATH]

- `kernel`: 15,000 files of Linux source, 899 directories, 167 MB
- `paper`: 50 texts and 20 incompressible figures in 3 directories, 1.6 MB
- `photos`: 50 incompressible files, 193 MB

The same source gives the same bytes, names, modes and mtimes. Linux source is looked for where Debian's `linux-source`
puts it (`auto`), fetched by apt-get (`fetch`), or given as a folder or archive. Without it, texts are made up: sizes,
depth and compressibility as in the real ones, and every table says "generated". A tree that is there already is used
again if its digest is the one that was noted when it was made.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from tempfile import gettempdir

VERSION = 1  # a change to what is made here needs another one: trees of the old kind are made anew
NAMES = ("kernel", "paper", "photos")
MTIME_S = 1_400_000_000
INSTALLED = Path("/usr/src")
_MODE = 0o644

KERNEL_FILES, KERNEL_BYTES, KERNEL_FOLDERS = 15_000, 166_000_000, 899
PAPER_TEXTS, PAPER_FIGURES, PAPER_BYTES = 50, 20, 1_600_000
PAPER_TEXT_BYTES = range(12_000, 22_001)
PHOTOS, PHOTOS_BYTES = 50, 193_000_000

# Taken whole, in this order; small documents then fill up the number of files, a few large drivers that of bytes.
_KERNEL_WHOLE = (
    *("block", "certs", "crypto", "fs", "include", "init", "io_uring", "ipc", "kernel", "lib", "mm", "net"),
    *("security", "virt", "scripts", "samples", "rust", "LICENSES", "usr", "tools/testing/selftests/powerpc"),
    *("tools/include", "tools/testing/selftests/arm64", "tools/build"),
)
_KERNEL_SMALL, _KERNEL_LARGE = "Documentation", "drivers/staging"
_KERNEL_LARGE_STEP = 20


@dataclass(frozen=True)
class Load:
    """One workload as it lies below `path`. `origin` is what its texts are from; "generated" if made up."""

    name: str
    path: Path
    origin: str
    files: int
    folders: int
    size_bytes: int
    digest: str

    @property
    def title(self) -> str:
        return f"{self.name} (generated)" if self.origin == "generated" else self.name


# --- Linux source: a folder or an archive, read as (path, size) and then the chosen ones' bytes ---


class Source:
    """The plain files of an unpacked Linux source or of its archive, in one fixed order whichever it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.origin = path.name.split(".tar", 1)[0]
        sizes = dict(self._folder_sizes() if path.is_dir() else self._archive_sizes())
        self.sizes = {name: sizes[name] for name in sorted(sizes, key=_walk_order)}

    def below(self, folder: str) -> list[str]:
        return [name for name in self.sizes if name.startswith(folder + "/")]

    def copy(self, chosen: dict[str, Path]) -> None:
        """Writes the content of each chosen name to its path."""
        if self.path.is_dir():
            for name, target in chosen.items():
                write(target, (self.path / name).read_bytes())
            return
        with self._archive() as archive:
            for member in archive:
                target_path = chosen.get(_inside(member.name))
                content = archive.extractfile(member) if target_path and member.isreg() else None
                if target_path and content:
                    write(target_path, content.read())

    def _folder_sizes(self) -> Iterator[tuple[str, int]]:
        for folder, _, files in os.walk(self.path):
            for name in files:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.path).as_posix(), path.stat().st_size

    def _archive_sizes(self) -> Iterator[tuple[str, int]]:
        with self._archive() as archive:
            for member in archive:
                if member.isreg():
                    yield _inside(member.name), member.size

    def _archive(self) -> tarfile.TarFile:
        return tarfile.open(self.path, "r|*")  # a stream: unpacking all of it would be 80,000 files


def _inside(name: str) -> str:
    return name.removeprefix("./").partition("/")[2]  # archives hold one folder with everything in it


def _walk_order(name: str) -> tuple[tuple[int, str], ...]:
    """A folder's own files by name, then its folders by name."""
    *folders, file = PurePosixPath(name).parts
    return (*((1, f) for f in folders), (0, file))


def find_source(asked: str, work: Path) -> Source | None:
    """What `--linux` names; None if texts are to be made up. `SystemExit` if it is not there."""
    if asked == "generated":
        return None
    if asked == "fetch":
        return Source(_fetched(work))
    if asked == "auto":
        found = [p for p in sorted(INSTALLED.glob("linux-source-*")) if p.is_dir() or ".tar." in p.name]
        return Source(found[-1]) if found else None
    if not Path(asked).exists():
        raise SystemExit(f"--linux {asked}: no such folder or archive; auto, fetch and generated are the other choices")
    source = Source(Path(asked))
    if len(source.below(_KERNEL_SMALL)) < KERNEL_FILES // 10:
        raise SystemExit(f"--linux {asked}: that is no Linux source: {_KERNEL_SMALL}/ is not there, or nearly empty")
    return source


def _fetched(work: Path) -> Path:
    """Debian's linux-source, downloaded and its one archive unpacked from the package; not installed."""
    place = work / "linux"
    if not list(place.glob("usr/src/*.tar.*")):
        place.mkdir(parents=True, exist_ok=True)
        depends = _output(["apt-cache", "depends", "--important", "linux-source"], place)
        names = [
            line.split(":")[1].strip() for line in depends.splitlines() if line.strip().startswith("Depends: linux")
        ]
        if not names:
            raise SystemExit("--linux fetch: apt-cache knows no linux-source; try `apt-get update`, or give a path")
        _output(["apt-get", "download", names[0]], place)
        _output(["dpkg-deb", "-x", str(next(place.glob("*.deb"))), "."], place)
    return next(place.glob("usr/src/*.tar.*"))


def _output(argv: list[str], cwd: Path) -> str:
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        raise SystemExit(f"--linux fetch: {' '.join(argv)} failed: {said}") from error


# --- what is made ---


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(_MODE)
    os.utime(path, (MTIME_S, MTIME_S))


def kernel(target: Path, source: Source | None) -> None:
    if source is None:
        _generated_kernel(target)
        return
    chosen = [name for folder in _KERNEL_WHOLE for name in source.below(folder)]
    small = source.below(_KERNEL_SMALL)
    large = sorted(source.below(_KERNEL_LARGE), key=lambda name: -source.sizes[name])
    room = KERNEL_FILES - len(chosen)
    for count in range(0, room, _KERNEL_LARGE_STEP):
        filled = [*chosen, *large[:count], *small[: room - count]]
        if sum(source.sizes[name] for name in filled) >= KERNEL_BYTES:
            break
    source.copy({name: target / name for name in filled})


def paper(target: Path, source: Source | None) -> None:
    rng = random.Random(20150708)
    texts = [target / ("", "sections")[i % 2] / f"s{i:02d}.tex" for i in range(PAPER_TEXTS)]
    if source is None:
        prose = Prose(rng, 50_000)
        for path in texts:
            write(path, prose.text(rng.choice(PAPER_TEXT_BYTES)))
    else:
        fitting = [
            n for n in source.below("Documentation") if n.endswith(".rst") and source.sizes[n] in PAPER_TEXT_BYTES
        ]
        source.copy(dict(zip(rng.sample(fitting, PAPER_TEXTS), texts, strict=True)))
    left = PAPER_BYTES - sum(path.stat().st_size for path in texts)
    for i, size in enumerate(_parts(left, [1.0] * PAPER_FIGURES)):
        write(target / "figs" / f"f{i:02d}.png", rng.randbytes(size))


def photos(target: Path, source: Source | None) -> None:
    rng = random.Random(193)
    for i, size in enumerate(_parts(PHOTOS_BYTES, [rng.uniform(0.6, 1.4) for _ in range(PHOTOS)])):
        write(target / f"IMG_{i:04d}.jpg", rng.randbytes(size))


def _parts(total: int, weights: list[float]) -> list[int]:
    parts = [int(total * weight / sum(weights)) for weight in weights]
    parts[-1] += total - sum(parts)
    return parts


# --- made up: log-normal sizes (median 3.3 kB, 90 % below 26 kB), names and depth as in the real tree ---

_MEDIAN_BYTES, _SIGMA, _FILE_BYTES_MAX = 3316, 1.6, 1_500_000
_TOP_FOLDERS = 22
# The largest real folder has 1,400 files of 15,000, half of the folders less than 6.
_FOLDER_SKEW = 0.9


def _generated_kernel(target: Path) -> None:
    rng = random.Random(61)
    prose = Prose(rng, 500_000)
    weights = [min(_FILE_BYTES_MAX, rng.lognormvariate(math.log(_MEDIAN_BYTES), _SIGMA)) for _ in range(KERNEL_FILES)]
    sizes = _parts(KERNEL_BYTES, weights)
    folders = [f"{prose.word()}{i}" for i in range(_TOP_FOLDERS)]
    while len(folders) < KERNEL_FOLDERS - 1:  # the root is one of them
        parent = min(rng.choices(folders, k=3), key=lambda folder: folder.count("/"))
        folders.append(f"{parent}/{prose.word()}{len(folders)}")
    crowd = [1 / (rank + 1) ** _FOLDER_SKEW for rank in range(len(folders))]
    rng.shuffle(crowd)
    homes = [*folders, *rng.choices(folders, crowd, k=KERNEL_FILES - len(folders))]
    for i, (home, size) in enumerate(zip(homes, sizes, strict=True)):
        write(target / home / f"{prose.word()}_{i}.{rng.choice(('c', 'h', 'rst', 'yaml'))}", prose.text(size))


class Prose:
    """Lines that compress as source text does (zstd -3: by about 4), cut from a corpus too long for a match window."""

    WORDS = 20_000
    COMMON_LINES = 400
    COMMON_SHARE = 0.10
    PASSAGE_LINES = 40
    REPEATED_SHARE = 0.25  # of a file's passages: it says much twice

    def __init__(self, rng: random.Random, lines: int) -> None:
        """`lines` is the length of the corpus: one much longer than the texts makes passages rare in two of them."""
        self._rng = rng
        syllables = [a + b for a in "bcdfglmnprstv" for b in ("a", "e", "i", "o", "u", "ar", "en", "st", "_")]
        words = ["".join(rng.choices(syllables, k=rng.randint(1, 5))) for _ in range(self.WORDS)]
        self._words, self._weights = words, [1 / (rank + 5) for rank in range(self.WORDS)]
        common = [self._line() for _ in range(self.COMMON_LINES)]
        pool = iter(rng.choices(words, self._weights, k=lines * 6))
        self._corpus = [
            rng.choice(common) if rng.random() < self.COMMON_SHARE else self._line(pool) for _ in range(lines)
        ]

    def word(self) -> str:
        return self._rng.choice(self._words)

    def text(self, size: int) -> bytes:
        """That many bytes."""
        rng, length = self._rng, 0
        out: list[str] = []
        while length < size:
            if out and rng.random() < self.REPEATED_SHARE:
                passage = rng.choice(out[-self.PASSAGE_LINES :])
            else:
                start = rng.randrange(len(self._corpus) - self.PASSAGE_LINES)
                passage = "".join(self._corpus[start : start + rng.randint(1, self.PASSAGE_LINES)])
            out.append(passage)
            length += len(passage)
        return "".join(out).encode()[:size]

    def _line(self, pool: Iterator[str] | None = None) -> str:
        rng = self._rng
        words = pool or iter(rng.choices(self._words, self._weights, k=6))
        form = rng.choice(
            ("{}({}, {});", "{} = {}->{};", "if ({}.{})", "/* {} {} {} {} */", "#define {} {}", "{} {} {}")
        )
        return "\t" * rng.randint(0, 3) + form.format(*(next(words) for _ in range(form.count("{}")))) + "\n"


# --- kept ---

_MAKERS: dict[str, Callable[[Path, Source | None], None]] = {"kernel": kernel, "paper": paper, "photos": photos}


def ready(names: list[str], work: Path, linux: str = "auto") -> list[Load]:
    """The workloads below `work`, made where they are not there or not as they were made."""
    kept = {name: _kept(work / name, linux) for name in names}
    needs_source = any(load is None for name, load in kept.items() if name != "photos")
    source = find_source(linux, work) if needs_source else None
    return [kept[name] or _made(name, work / name, source) for name in names]


def _kept(path: Path, linux: str) -> Load | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        noted = json.loads(path.with_suffix(".json").read_text())
        if noted.pop("version") != VERSION:
            return None
        load = Load(**{**noted, "path": path})
        other_kind = linux != "auto" and (linux == "generated") != (load.origin == "generated")
        if (load.name == "photos" or not other_kind) and load == described(load.name, path, load.origin):
            return load
    return None


def _made(name: str, path: Path, source: Source | None) -> Load:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    _MAKERS[name](path, source)
    load = described(name, path, "random" if name == "photos" else source.origin if source else "generated")
    path.with_suffix(".json").write_text(json.dumps({**asdict(load), "path": str(path), "version": VERSION}))
    return load


def described(name: str, path: Path, origin: str) -> Load:
    """What lies there; the digest is over all names, kinds, modes, mtimes and contents."""
    digest = hashlib.sha256()
    files = folders = size_bytes = 0
    for folder, dirs, names in os.walk(path):
        dirs.sort()
        folders += 1
        for file in sorted(names):
            at = Path(folder, file)
            info = at.lstat()
            data = at.read_bytes()
            fields = [at.relative_to(path).as_posix(), oct(info.st_mode), str(info.st_mtime_ns), str(len(data))]
            digest.update("\0".join(fields).encode() + hashlib.sha256(data).digest())
            files += 1
            size_bytes += len(data)
    return Load(name, path, origin, files, folders, size_bytes, digest.hexdigest())


def default_work() -> Path:
    return Path(gettempdir()) / "metasync-bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=default_work() / "loads")
    parser.add_argument("--load", default=",".join(NAMES))
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH")
    options = parser.parse_args()
    for load in ready(options.load.split(","), options.work, options.linux):
        print(
            f"{load.title}: {load.files} files, {load.folders} folders, {load.size_bytes:,} bytes, {load.digest[:16]}"
        )


if __name__ == "__main__":
    main()
