"""A workspace with three files on stores, what an error must say, and a log that is poisoned ahead."""

from __future__ import annotations

import os
from typing import Any

from workspace_kit import PASSPHRASE, Lab, write

from metasync.consensus.records.entry import entry_path
from metasync.errors import MetaSyncError
from metasync.workspace import Workspace

FILES = {"notes.txt": b"one\ntwo\nthree\n", "d/photo.bin": os.urandom(20_000), "d/e/f": b"deep"}


def started(lab: Lab, *names: str, **options: Any) -> Workspace:
    """A workspace with three files, pushed."""
    w = lab.init(lab.urls(*(names or ("a", "b", "c"))), **options)
    write(w.directory, FILES)
    assert w.push("first").version == 1
    return w


def says(error: MetaSyncError, *words: str) -> None:
    """The message names what it must, gives a next step, and no secret."""
    text = str(error)
    for word in words:
        assert word in text, text
    assert error.next_step, text
    assert PASSPHRASE not in text
    assert "Traceback" not in text


def poison_next(lab: Lab, w: Workspace, names: str, data: bytes | None = None) -> None:
    """Puts garbage into the first slot of the coming version on backends, as their providers could not know to."""
    with w._session("test") as s:
        base = s.newest_state()
        for entry, acceptor in s.config.acceptors:
            if entry.name in names:
                path = entry_path(s.keys, base.epoch, base.era, acceptor.acceptor_id, base.v + 1, 0)
                s.runtime._backends[entry.name].put(path, data if data is not None else b"<html>".ljust(2048))
