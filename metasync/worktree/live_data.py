"""Databases and repositories that other programs write to: many files that only hold together as they are. Pure.

A push takes each file as it stands when it is read. Of a database that is written to meanwhile, or on two devices at
once, the files then come from different moments, and no merge can put them right: docs/howto/live-data.md.
"""

from __future__ import annotations

from collections.abc import Collection
from shlex import quote
from typing import Final, NamedTuple

from metasync.objects.model import split

SQLITE: Final = "an open SQLite database"
BESIDE: Final = (b"-wal", b"-journal", b"-shm")  # what SQLite has beside a database that is open


class Live(NamedTuple):
    """`path`: of the database or the repository's directory; `what` it is, as a noun with its article."""

    path: bytes
    what: str


def live_data(new: Collection[bytes]) -> list[Live]:
    """The live data among new paths, ascending; each database and repository once."""
    out: dict[bytes, str] = {}
    for path in new:
        parent, name = split(path)
        above, last = split(parent)
        if name == b"HEAD" and last == b".git":
            out[parent] = "a git repository"
        elif name == b"PG_VERSION" and split(above)[1] != b"base":
            out[parent] = "a PostgreSQL database"
        elif name == b"ibdata1":
            out[parent] = "a MySQL database"
        elif name == b"CURRENT" and (parent + b"/LOCK" if parent else b"LOCK") in new:
            out[parent] = "a LevelDB database"
        else:
            for tail in BESIDE:
                if name.endswith(tail) and path.removesuffix(tail) in new:
                    out[path.removesuffix(tail)] = SQLITE
    return [Live(path, what) for path, what in sorted(out.items())]


def warning(found: Live) -> str:
    """What is said of it, with what to do."""
    path = found.path.decode("utf-8", "surrogateescape")
    if found.what == "a git repository":
        top = path.removesuffix(".git").rstrip("/")
        at = f"-C {quote(top)} " if top else ""
        return (
            f"{path} is a git repository: two devices that write to it at once break it. To leave it out: "
            f"echo {quote(f'/{path}/')} >> .metasyncignore; to carry it as one file: git {at}bundle create repo.bundle "
            "--all (docs/howto/live-data.md)"
        )
    pattern = f"/{path}*" if found.what == SQLITE else f"/{path}/" if path else "/*"
    return (
        f"{path or 'this folder'} is {found.what}: a copy made while a program writes to it may be useless. To leave "
        f"it out: echo {quote(pattern)} >> .metasyncignore; then push a dump, or close the program before each push "
        "(docs/howto/live-data.md)"
    )
