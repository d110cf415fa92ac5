"""Makes the release of the last commit in `dist/`: `make dist`.

    python release/dist.py CYCLONEDX

Wheel and sdist are built twice, from two exports of the commit in folders of other names, under other umasks and time
zones; their bytes are the same, or nothing is released. Times in them are the commit's (SOURCE_DATE_EPOCH). Beside them
come the list of what the release needs (CycloneDX, by the program CYCLONEDX, from `requirements-all.lock`) and
`SHA256SUMS`. Whoever has the commit can make the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements-all.lock"


def exported(commit: str, to: Path) -> Path:
    """The files of a commit, in a folder."""
    data = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    to.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(to, filter="data")
    return to


def epoch_of(commit: str) -> str:
    """When a commit was made, in seconds since 1970."""
    told = subprocess.run(["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return told.stdout.decode().strip()


def built(source: Path, epoch: str, *, umask: int, zone: str) -> dict[str, bytes]:
    """Builds wheel and sdist. -> {file name: bytes}."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": zone}
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", out]
        subprocess.run(command, cwd=source, env=env, umask=umask, check=True, stdout=subprocess.DEVNULL)
        return {p.name: p.read_bytes() for p in Path(out).iterdir()}


def twice(commit: str) -> dict[str, bytes]:
    """Builds a commit in two places. Ends the program when the bytes differ."""
    epoch = epoch_of(commit)
    with tempfile.TemporaryDirectory() as top:
        one = built(exported(commit, Path(top) / "one"), epoch, umask=0o022, zone="UTC")
        other = built(exported(commit, Path(top) / "a second one"), epoch, umask=0o077, zone="Asia/Tokyo")
    if one != other:
        differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        sys.exit(f"built twice, with other bytes: {', '.join(differing)}")
    return one


def needed(cyclonedx: str, commit: str) -> bytes:
    """What the release needs, as CycloneDX in JSON, without the time at which it was made."""
    with tempfile.TemporaryDirectory() as top:
        source = exported(commit, Path(top) / "source")
        command = [cyclonedx, "requirements", LOCK, "--pyproject", "pyproject.toml", "--mc-type", "application"]
        command += ["--output-reproducible", "--of", "JSON", "--output-file", "-"]
        return subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE).stdout


def sums(files: Mapping[str, bytes]) -> bytes:
    """Hashes of files, as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


def main(cyclonedx: str) -> None:
    commit = "HEAD"
    files = twice(commit)
    wheel = next(name for name in files if name.endswith(".whl"))
    files["-".join(wheel.split("-")[:2]) + ".cdx.json"] = needed(str(Path(cyclonedx).resolve()), commit)
    files[LOCK] = subprocess.run(["git", "show", f"{commit}:{LOCK}"], cwd=ROOT, check=True, capture_output=True).stdout
    files["SHA256SUMS"] = sums(files)
    place = ROOT / "dist"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in sorted(files.items()):
        (place / name).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  dist/{name}  {len(data):,} bytes")
    print("Wheel and sdist were built twice: the same bytes.")


if __name__ == "__main__":
    main(sys.argv[1])
