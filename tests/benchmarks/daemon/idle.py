"""Nothing happens: CPU, memory and requests of an hour, at so many tiny files, with ignore rules and files they ignore.

Memory is that of a daemon in a process of its own, whose stores are folders: begun after the first push, as at a login,
it pushes one file and rests for more than a minute.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from daemon.led import CHEAP, COPIES, led, tiny_files

from metasync import daemon
from metasync.service import client
from metasync.workspace import Workspace

REST_S: Final = 90.0  # connections and threads go after a minute
RULES: Final = b"*.tmp\nbuild/\n!keep.tmp\n/0*/**/*.o\ncache/*\n!cache/README\n"


def rows(folder: Path, count: int = 15_000) -> Iterator[tuple[str, str, str, bool]]:
    with led(folder / "w", fill=lambda made: _fill(made, count)) as kept:
        kept.go_on(3700.0)
        before, turns = kept.spent(), kept.turns
        kept.go_on(3600.0)
        spent = kept.since(before)
        yield f"{count:,} files, an hour: CPU", f"{spent.cpu_s / 3600:.3%} of a core", "0.2 %", spent.cpu_s < 7.2
        yield f"{count:,} files, an hour: requests", f"{spent.requests}", "60", spent.requests <= 60
        yield f"{count:,} files, an hour: turns", f"{kept.turns - turns}", "", True
    shutil.rmtree(folder / "w")
    most_mb = 60 if count <= 15_000 else 300
    resident_mb, cpu_s = _alone(folder / "alone", count)
    yield f"{count:,} files: memory of a daemon alone", f"{resident_mb} MB", f"{most_mb} MB", resident_mb <= most_mb
    yield f"{count:,} files: CPU of its {REST_S:.0f} s of rest", f"{cpu_s:.2f} s", "", True


def _fill(folder: Path, count: int) -> None:
    """So many files, and beside each hundred of them one that is ignored."""
    (folder / ".metasyncignore").write_bytes(RULES)
    for directory in tiny_files(folder, count):
        (directory / "ignored.tmp").write_bytes(b"")


def _alone(folder: Path, count: int) -> tuple[int, float]:
    """The resident memory of a daemon at rest, in MB, and the CPU seconds of its rest."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        os.environ[name] = str(folder / name.lower())
        (folder / name.lower()).mkdir(parents=True, mode=0o700)
    os.environ |= {"METASYNC_KEYRING": "off", "METASYNC_DAEMON": "on"}
    made = folder / "w"
    made.mkdir()
    _fill(made, count)
    urls = [f"file://{folder}/{name}?name={name}" for name in ("one", "two", "three")]
    w = Workspace.init(made, name="bench", backends=urls, passphrase="bench", replicas=COPIES, kdf=CHEAP).workspace
    w.push()
    w.configure("notify.desktop", "off")
    w.close()
    try:
        pid = daemon.start(made).pid
        _settled(1)
        (made / "new").write_bytes(b"new")
        _settled(2)
        before = _cpu_s(pid)
        time.sleep(REST_S)
        return _resident_mb(pid), _cpu_s(pid) - before
    finally:
        daemon.stop()


def _settled(version: int) -> None:
    for _ in range(600):
        with client.connected() as line:
            assert line is not None
            [state] = line.status().workspaces
            if (state.doing, state.version) == ("in step", version):
                return
        time.sleep(0.5)
    raise AssertionError(state)


def _cpu_s(pid: int) -> float:
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))
