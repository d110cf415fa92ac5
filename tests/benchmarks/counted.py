"""Runs the command line with every backend counted: `python counted.py COUNTS.json ARGUMENTS...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from metasync import cli
from metasync.backends.api import Backend, BackendUrl
from metasync.session import open_backend
from metasync.testing.counting import CountingBackend

_opened: list[tuple[str, CountingBackend]] = []
_really_opened = open_backend.opened


def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
    backend = CountingBackend(_really_opened(name, url, create=create))
    _opened.append((name, backend))
    return backend


def main() -> None:
    out = Path(sys.argv[1])
    open_backend.opened = opened
    try:
        cli.main(sys.argv[2:])
    finally:
        counts: dict[str, dict[str, int]] = {}
        for name, backend in _opened:
            count = backend.count()
            row = counts.setdefault(name, {"up": 0, "down": 0})
            for kind, n in count.requests.items():
                row[kind] = row.get(kind, 0) + n
            row["up"] += count.up_bytes
            row["down"] += count.down_bytes
        out.write_text(json.dumps(counts))


main()
