"""Both sides of a conflict: how large and how old they are, which lines differ, whether they are pictures.

Files are read from the folder as it stands, and only those that a conflict names: what the page asks for is a side, not
a path.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

from metasync.codec import printable
from metasync.dashboard import views
from metasync.errors import UsageError
from metasync.merge.lines import unified
from metasync.reports.sync import ConflictReport
from metasync.workspace import Workspace

TEXT_BYTES_MAX: Final = 4 << 20  # of a file whose lines are compared, as of `metasync conflicts --diff`
LINES_MAX: Final = 2_000  # of a comparison that are shown
LINE_CHARS_MAX: Final = 1_000
PICTURE_BYTES_MAX: Final = 32 << 20
PICTURES: Final = (  # by their first bytes; no SVG, which can hold scripts
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def found(workspace: Workspace, copy: bytes) -> ConflictReport:
    """The conflict whose copy is at that path. `UsageError`: it is none any more."""
    for c in workspace.conflicts():
        if c.kept == copy:
            return c
    raise UsageError("this conflict waits no more", next_step="Look at the list again.")


def compared(workspace: Workspace, copy: bytes) -> Any:
    """Both sides, and how they differ."""
    c = found(workspace, copy)
    sides = [{**views.side(s), **_facts(workspace.directory, s.path)} for s in c.sides]
    texts = [_read(workspace.directory, s.path, TEXT_BYTES_MAX) for s in c.sides]
    lines, note = _lines(texts[0], texts[1], sides)
    return {**views.conflict(c), "sides": sides, "lines": lines, "note": note}


def picture(workspace: Workspace, copy: bytes, side: int) -> tuple[str, bytes]:
    """The kind and the bytes of a side that is a picture. `UsageError` for anything else."""
    path = found(workspace, copy).sides[side].path
    data = _read(workspace.directory, path, PICTURE_BYTES_MAX)
    kind = None if data is None else kind_of(data)
    if data is None or kind is None:
        raise UsageError(f"{views.shown(path)} is no picture that can be shown")
    return kind, data


def kind_of(data: bytes) -> str | None:
    """Which kind of picture bytes are, by their beginning; None for what is none, or may hold a script."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for head, kind in PICTURES if data.startswith(head)), None)


def _facts(directory: Path, path: bytes) -> dict[str, Any]:
    try:
        st = os.lstat(directory / os.fsdecode(path))
    except OSError:
        return {"size": None, "changed": None, "kind": "missing", "picture": False}
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "dir"), (stat.S_ISLNK, "link"))
    kind = next((name for check, name in kinds if check(st.st_mode)), "other")
    is_small = kind == "file" and st.st_size <= PICTURE_BYTES_MAX
    head = _read(directory, path, PICTURE_BYTES_MAX, first=16) if is_small else None
    return {
        "size": st.st_size if kind == "file" else None,
        "changed": st.st_mtime_ns // 1_000_000 / 1000,
        "kind": kind,
        "picture": head is not None and kind_of(head) is not None,
    }


def _read(directory: Path, path: bytes, most: int, first: int | None = None) -> bytes | None:
    """The bytes (or the first of them) of a regular file in the folder; None if there is none, or a larger one."""
    place, top = directory / os.fsdecode(path), os.path.realpath(directory)
    if os.path.commonpath((os.path.realpath(place.parent), top)) != top:  # a link on the way leads out of the folder
        return None
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        st = os.fstat(file.fileno())
        if not stat.S_ISREG(st.st_mode) or st.st_size > most:
            return None
        return file.read(most if first is None else first)


def _lines(a: bytes | None, b: bytes | None, sides: list[dict[str, Any]]) -> tuple[list[str], str]:
    """The lines of a unified diff, or why there are none."""
    if a is None or b is None:
        return [], "Only two files of at most 4 MiB are compared line by line."
    if a == b:
        return [], "Both sides have the same contents."
    if any(s["picture"] for s in sides):
        return [], ""
    told = unified(a, b, "a", "b")
    if isinstance(told, str):
        return [], printable(told[:1].upper() + told[1:] + ".")
    shown = ["\t".join(printable(part) for part in line.split("\t"))[:LINE_CHARS_MAX] for line in told[2:]]
    cut = len(shown) > LINES_MAX
    return shown[:LINES_MAX], f"The first {LINES_MAX:,} of {len(shown):,} lines." if cut else ""
