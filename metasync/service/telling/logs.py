"""The daemon's log: a JSON object a line, in files of a bounded size, of which a bounded number is kept.

    {"t": 1790000000.123, "level": "info", "workspace": "docs", "what": "pushed", "version": 12}

The file lies below the user's state folder and is the user's alone. Messages of the library hold no secret, and what
goes over its logger `metasync` comes here as well. A log that cannot be written stops nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import threading
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

from metasync.local.lock import private
from metasync.service.registry import daemon_folder
from metasync.service.telling.story import Entry, words

FILE: Final = "daemon.log"
FILE_BYTES_MAX: Final = 1 << 20  # some ten thousand entries
FILES_MAX: Final = 5  # besides the one that is written
TEXT_CHARS_MAX: Final = 4 << 10  # of one value: a traceback may be long
ENTRY_BYTES_MAX: Final = 64 << 10  # of a line that is read
FOLLOW_S: Final = 0.5  # between looks at a log that is followed


def log_path() -> Path:
    return daemon_folder() / FILE


class _Files(logging.handlers.RotatingFileHandler):
    """The files. What they hold is the user's alone."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Passes over what could not be written: the disk may be full, and the daemon is to say so elsewhere."""


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = getattr(record, "entry", None)
        if entry is None:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{self.formatException(record.exc_info)}"
            entry = {"level": record.levelname.lower(), "what": "library", "text": text}
        return json.dumps({"t": round(record.created, 3), **{k: _bounded(v) for k, v in entry.items()}})


def _bounded(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else str(value)[:TEXT_CHARS_MAX]


class Log:
    """Writes the log, from any thread. `also` is told each entry, for a daemon that runs at a terminal."""

    def __init__(self, path: Path, also: Callable[[Entry], None] = lambda _: None) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._also = also
        self._files = _Files(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_MAX, delay=True)
        self._files.setFormatter(_Json())
        self._library = logging.getLogger("metasync")
        self._library.addHandler(self._files)
        self._was_propagated, self._library.propagate = self._library.propagate, False

    def say(self, what: str, *, level: str = "info", **values: Any) -> None:
        """Writes an entry. Values are numbers or short texts; no secret is among them."""
        self.write({"level": level, "what": what, **values})

    def write(self, entry: Entry) -> None:
        record = logging.makeLogRecord({"name": "metasync.daemon", "levelno": logging.INFO, "entry": entry})
        self._files.handle(record)
        self._also(entry)

    def close(self) -> None:
        self._library.removeHandler(self._files)
        self._library.propagate = self._was_propagated
        self._files.close()


def entry_of(line: str) -> Entry:
    """The entry on a line. What is none, because a disk was full, is told as it stands."""
    try:
        found = json.loads(line[:ENTRY_BYTES_MAX])
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    return {"what": line.strip()[:TEXT_CHARS_MAX]}


def shown(entry: Entry) -> str:
    """An entry for people: its time by this device's clock, and what happened."""
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(entry.get("t", 0))))
    except (ValueError, TypeError, OverflowError, OSError):
        at = "?"
    return f"{at} {words(entry)}"


def last(path: Path, count: int) -> list[Entry]:
    """The newest entries, oldest first."""
    lines: list[str] = []
    for one in (path, *(path.with_name(f"{path.name}.{n}") for n in range(1, FILES_MAX + 1))):
        if len(lines) >= count:
            break
        with contextlib.suppress(FileNotFoundError):
            lines = one.read_text("utf-8", "replace").splitlines() + lines
    return [entry_of(line) for line in lines[-count:]] if count else []


def follow(path: Path, ends: threading.Event) -> Iterator[Entry]:
    """Entries as they are written from now on, also after the file was begun anew, until `ends` is set."""
    file = _opened(path)
    if file is not None:
        file.seek(0, os.SEEK_END)
    try:
        while True:
            has_ended, is_old = ends.is_set(), _is_another(path, file)  # before reading: what is written is read then
            yield from _entries(file) if file is not None else ()
            if is_old:
                if file is not None:
                    file.close()
                file = _opened(path)
            elif has_ended:
                return
            else:
                ends.wait(FOLLOW_S)
    finally:
        if file is not None:
            file.close()


def _entries(file: TextIOWrapper) -> Iterator[Entry]:
    """The whole lines that are there to be read. A line's beginning stays for the next time."""
    at = file.tell()
    while (line := file.readline(ENTRY_BYTES_MAX)) and (line.endswith("\n") or len(line) == ENTRY_BYTES_MAX):
        yield entry_of(line)
        at = file.tell()
    file.seek(at)


def _opened(path: Path) -> TextIOWrapper | None:
    try:
        return open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _is_another(path: Path, file: TextIOWrapper | None) -> bool:
    """Whether the file at the path is not the one that is open."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return file is None or os.fstat(file.fileno()).st_ino != found.st_ino
