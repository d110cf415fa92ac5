"""A push of one changed file, by hints and without them, at so many files: CPU seconds, and rows of the index read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from daemon.led import led, tiny_files

from metasync.local.state import LocalDb


def rows(folder: Path, count: int = 1_000_000) -> Iterator[tuple[str, str, str, bool]]:
    read = [0]
    after = LocalDb.packed_rows_after

    def counted(db: LocalDb, path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        page = after(db, path, most, end)
        read[0] += len(page)
        return page

    with led(folder / "w", fill=lambda made: tiny_files(made, count)) as kept:
        LocalDb.packed_rows_after = counted  # type: ignore[method-assign]
        try:
            cost: dict[str, tuple[float, int]] = {}
            for what in ("by hints", "by hints, again", "of everything"):
                (kept.folder / "000" / "00" / "07").write_bytes(what.encode())
                kept.keeper._changes.catch_up()
                if what == "of everything":
                    kept.keeper._changes.everything()
                read[0], began = 0, time.process_time()
                kept.go_on(6.0)
                cost[what] = time.process_time() - began, read[0]
        finally:
            LocalDb.packed_rows_after = after  # type: ignore[method-assign]
    for what, (cpu_s, rows_read) in cost.items():
        within = what == "of everything" or rows_read < 10_000
        yield f"{count:,} files, one changed, {what}", f"{cpu_s:.2f} CPU s, {rows_read:,} rows", "", within
