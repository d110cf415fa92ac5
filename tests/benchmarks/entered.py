"""Counts the modules of the package that a push of one file enters: a new process, a workspace on three folders.

    python tests/benchmarks/entered.py [--list] [--imported]

A module is entered when one of its functions is called, in any thread; defining its classes and functions as it is
imported is no call. What is left of an import alone is told beside it: modules that were imported and never entered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "metasync"


def watched(directory: str) -> None:
    """The process that is watched: opens the workspace and pushes. Prints the calls by file, as JSON."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    from metasync.workspace import Workspace

    with Workspace.open(directory) as w:
        report = w.push("one file")
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    assert report.version is not None, "nothing was pushed"
    files: Counter[str] = Counter()
    for code, n in calls.items():
        if code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(str(PACKAGE)):
            files[str(Path(code.co_filename).relative_to(PACKAGE))] += n
    loaded = [getattr(m, "__file__", None) for name, m in sys.modules.items() if name.partition(".")[0] == "metasync"]
    names = sorted(str(Path(f).relative_to(PACKAGE)) for f in loaded if f)
    print(json.dumps({"entered": files, "imported": names}))


def measured() -> dict[str, Any]:
    """Makes the workspace and runs the process."""
    from metasync.keys.slots import Cost
    from metasync.workspace import Workspace

    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "laptop"
        urls = [f"file://{top}/{name}" for name in ("a", "b", "c")]
        cheap = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
        folder.mkdir()
        for n in range(20):
            (folder / f"{n}.txt").write_text(f"{n}\n" * 100)
        with Workspace.init(
            folder, name="docs", backends=urls, passphrase="four words of it", kdf=cheap
        ).workspace as w:
            w.push("all")
        (folder / "new.txt").write_text("a new file\n" * 100)
        words = [sys.executable, __file__, "--watched", str(folder)]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--list", action="store_true", help="name the modules, with the number of calls")
    options.add_argument("--watched", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.watched:
        watched(given.watched)
        return
    found = measured()
    if given.list:
        for name, n in sorted(found["entered"].items()):
            print(f"{n:8,}  {name}")
        for name in sorted(set(found["imported"]) - found["entered"].keys()):
            print(f"imported  {name}")
    print(f"{len(found['entered'])} modules entered, {len(found['imported'])} imported")


if __name__ == "__main__":
    main()
