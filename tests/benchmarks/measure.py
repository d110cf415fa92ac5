"""What one command took, and whether two trees are the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import FLOOR_MB

__all__ = [
    "FLOOR_MB",
    "TREE",
    "Usage",
    "busy_s",
    "child_environment",
    "cpu_s_of",
    "differences",
    "measured",
    "version_of",
]

TREE = Path(__file__).parents[2]
_LAUNCH = [sys.executable, "-I", "-S", str(Path(__file__).parent / "launch.py")]
_BLOCK_BYTES = 1 << 20
# What the clients keep of themselves inside the trees that they keep in step.
_CLIENTS_OWN = {".metasync", ".git"}


@dataclass(frozen=True)
class Usage:
    """`cpu_s` is user and system time of the command and what it waited for; `peak_mb` that of the largest process."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    exit_code: int
    timed_out: bool
    output: str


def child_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a client whose home, and with it every cache, is `home`; nothing of the user's own settings.

    Compiled modules may be written, as on a user's machine: without them every start of a Python program is slower.
    """
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(TREE), **(extra or {})}


def measured(argv: Sequence[str], env: Mapping[str, str], *, cwd: Path, log: Path, timeout_s: float) -> Usage:
    """Runs a command to its end. All dirty pages are written out before, so that none is paid for by the next one."""
    os.sync()
    out = log.with_suffix(".usage")
    launch = [*_LAUNCH, str(out), str(timeout_s), *argv]
    with log.open("wb") as file:
        process = subprocess.Popen(launch, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            failed = process.wait()
        finally:
            process.terminate()  # if we are interrupted: it ends the command
            process.wait()
    if failed:
        raise RuntimeError(f"launch.py itself failed, exit {failed}:\n{log.read_text(errors='replace')}")
    wall_s, cpu_s, kib, code, timed_out = out.read_text().split()
    text = log.read_text(errors="replace")
    return Usage(float(wall_s), float(cpu_s), float(kib) / 1024, int(code), timed_out == "1", text)


def busy_s() -> float | None:
    """CPU seconds that this machine has spent on anything; None where it does not say."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    spent = [int(word) for word in words]
    return (sum(spent) - spent[3] - spent[4]) / os.sysconf("SC_CLK_TCK")


def cpu_s_of(*pids: int) -> float:
    """CPU seconds that these processes have used themselves; only where `busy_s` gives something."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def version_of(argv: Sequence[str]) -> str:
    """The first thing that looks like a version in what the command prints."""
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[\w.+-]*", result.stdout + result.stderr)
    return found[0] if found else "unknown"


def differences(source: Path, clone: Path, keeps: frozenset[str]) -> list[str]:
    """What is not the same in the two trees, as lines; empty if all is.

    Names, kinds and contents always count; `modes`, `links` and `mtimes` (or their whole `seconds` alone) where `keeps`
    names them. Directories have no mtime: MetaSync and git keep none.
    """
    left, right = dict(_entries(source)), dict(_entries(clone))
    if "links" not in keeps:
        left = {name: path for name, path in left.items() if not path.is_symlink()}
    out = [f"{name}: only in {source.name}" for name in left.keys() - right.keys()]
    out += [f"{name}: only in {clone.name}" for name in right.keys() - left.keys()]
    for name in left.keys() & right.keys():
        said = _difference(left[name], right[name], keeps)
        if said:
            out.append(f"{name}: {said}")
    return sorted(out)


def _difference(a: Path, b: Path, keeps: frozenset[str]) -> str | None:
    x, y = a.lstat(), b.lstat()
    if x.st_mode & 0o170000 != y.st_mode & 0o170000:
        return "kind differs"
    if a.is_symlink():
        return None if a.readlink() == b.readlink() else "link differs"
    if "modes" in keeps and x.st_mode != y.st_mode:
        return f"mode differs, {x.st_mode & 0o7777:o} and {y.st_mode & 0o7777:o}"
    if a.is_dir():
        return None
    apart_ns = abs(x.st_mtime_ns - y.st_mtime_ns)
    if ("mtimes" in keeps and apart_ns) or ("seconds" in keeps and apart_ns >= 1_000_000_000):
        return "mtime differs"
    return None if x.st_size == y.st_size and _same_content(a, b) else "content differs"


def _same_content(a: Path, b: Path) -> bool:
    with a.open("rb") as x, b.open("rb") as y:
        while block := x.read(_BLOCK_BYTES):
            if block != y.read(_BLOCK_BYTES):
                return False
        return True  # of the same size


def _entries(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, dirs, files in os.walk(root):
        if folder == str(root):
            dirs[:] = [d for d in dirs if d not in _CLIENTS_OWN]
        for name in [*dirs, *files]:
            path = Path(folder, name)
            yield str(path.relative_to(root)), path
