"""What programs that use the library may rely on: what escapes, who may end an operation, what reports say."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from workspace_kit import Lab, flip, tree_of, write

import metasync
from metasync import reports
from metasync.errors import (
    CancelledError,
    DamagedError,
    MetaSyncError,
    NoQuorumError,
    PausedError,
    UsageError,
    WorkspaceError,
)
from metasync.events import Event, Phase
from metasync.local.lock import WorkspaceLock
from metasync.testing.faults import FaultyBackend
from metasync.workspace import Workspace

HUNG_S = 60.0


class Held:
    """Holds every write of a backend until `let` is called; `met` is set by the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met, self._go = threading.Event(), threading.Event()
        real = FaultyBackend.put

        def put(backend: FaultyBackend, path: str, data: bytes) -> None:
            self.met.set()
            self._go.wait(HUNG_S)
            real(backend, path, data)

        monkeypatch.setattr(FaultyBackend, "put", put)

    def let(self) -> None:
        self._go.set()


def in_thread(operation: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Begins an operation in another thread. -> the thread, and what escapes from it."""
    escaped: list[BaseException] = []

    def run() -> None:
        try:
            operation()
        except BaseException as e:
            escaped.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, escaped


# --- ends from outside


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_push_that_another_thread_ends_raises_cancelled_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {"one": b"1" * 100_000})
    held = Held(monkeypatch)
    thread, escaped = in_thread(lambda: w.push("one"))
    assert held.met.wait(HUNG_S)
    getattr(w, end)()
    thread.join(HUNG_S)
    held.let()
    assert [type(e) for e in escaped] == [CancelledError]
    assert isinstance(escaped[0], MetaSyncError)
    w = lab.reopen(w) if end == "close" else w
    assert w.push("again").version == 1
    assert w.read("one") == b"1" * 100_000


def test_closing_ends_a_wait_for_the_folder(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    waits = threading.Event()
    w.on_event = lambda _event: waits.set()
    with WorkspaceLock(w.directory / ".metasync").acquire("somebody else"):
        thread, escaped = in_thread(w.push)
        assert waits.wait(HUNG_S)
        w.close()
        thread.join(HUNG_S)
    assert [type(e) for e in escaped] == [CancelledError]


def test_a_listener_may_cancel_and_close(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    write(w.directory, {"one": b"1"})

    def cancels(event: Event) -> None:
        if isinstance(event, Phase) and event.name == "upload":
            w.cancel()

    w.on_event = cancels
    with pytest.raises(CancelledError):
        w.push()

    def closes(event: Event) -> None:
        if isinstance(event, Phase) and event.name == "upload":
            w.close()

    w.on_event = closes
    with pytest.raises(CancelledError):
        w.push()
    with pytest.raises(WorkspaceError, match="closed"):
        w.push()
    assert lab.reopen(w).push().version == 1


def test_cancel_with_nothing_under_way_does_nothing(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    w.cancel()
    write(w.directory, {"one": b"1"})
    assert w.push().version == 1


# --- listeners


def test_a_listener_that_raises_is_logged_once_and_told_on(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {"one": b"1"})
    told: list[Event] = []

    def bad(event: Event) -> None:
        told.append(event)
        raise ValueError("the listener's own fault")

    w.on_event = bad
    with caplog.at_level(logging.WARNING, "metasync"):
        assert w.push().version == 1
    assert len(told) > 2
    assert [record.name for record in caplog.records] == ["metasync"]
    assert caplog.records[0].exc_info is not None
    cloned = Workspace.clone(
        lab.root / "desktop", name="docs", backends=lab.urls("a", "b"), passphrase=os.environ["METASYNC_PASSPHRASE"],
        on_event=bad,
    )  # fmt: skip
    lab.keep(cloned.workspace)
    assert tree_of(cloned.workspace.directory) == tree_of(w.directory)


# --- what is there


def test_all_is_there_after_import_metasync() -> None:
    asked = "import metasync; print(metasync.errors.MetaSyncError.__name__, metasync.events.Phase.__name__)"
    asked += "; print(metasync.reports.PushReport.__name__, metasync.reports.Status.__name__)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MetaSyncError", "Phase", "PushReport", "Status"]
    with pytest.raises(AttributeError):
        _ = metasync.no_such_name


def report_classes() -> list[Any]:
    return [getattr(reports, name) for name in reports.__all__ if isinstance(getattr(reports, name), type)]


def test_reports_exports_every_report_class() -> None:
    from metasync.reports import backends, checks, history, members, settings, start, sync

    modules = (backends, checks, history, members, settings, start, sync)
    there = {
        name
        for module in modules
        for name, kind in vars(module).items()
        if dataclasses.is_dataclass(kind) and getattr(kind, "__module__", "") == module.__name__
    }
    assert there <= {kind.__name__ for kind in report_classes()}
    with pytest.raises(AttributeError):
        _ = reports.dataclass


def test_beside_every_path_of_a_report_stands_a_str() -> None:
    """Bytes that are no path: ids, names of packs, contents."""
    lacking = [
        f"{kind.__name__}.{field.name}"
        for kind in report_classes()
        for field in dataclasses.fields(kind)
        if re.search(r"\bbytes\b", str(field.type)) and field.name not in ("snapshot", "pack", "lost", "data", "ids")
        if not hasattr(kind, f"{field.name}_str") and f"{field.name}_str" not in vars(kind)
    ]
    assert lacking == []


def test_paths_that_are_no_utf8_go_there_and_back(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    name = b"caf\xe9.txt"
    path = os.path.join(os.fsencode(w.directory), name)
    with open(path, "wb") as f:
        f.write(b"x")
    pushed = w.push()
    assert pushed.changes.added_str == (name.decode("utf-8", "surrogateescape"),)
    assert os.fsencode(pushed.changes.added_str[0]) == name
    listed = w.ls().entries[0]
    assert w.read(listed.path_str) == b"x"


# --- read


def test_read_gives_a_file_of_any_version(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b"))
    large = os.urandom(3 << 20)
    write(w.directory, {"d/notes": b"one", "large": large, "empty": b""})
    w.push()
    write(w.directory, {"d/notes": b"two"})
    w.push()
    assert w.read("d/notes", "1") == b"one"
    assert w.read("d/notes") == b"two"
    assert w.read("empty") == b""
    assert w.read(b"large", "latest~1") == large
    out = io.BytesIO()
    assert w.cat("d/notes", "1", out.write).size == 3
    assert out.getvalue() == b"one"
    for path, version in (("d", "latest"), ("none", "latest"), ("d/notes", "7"), ("", "1")):
        with pytest.raises(UsageError):
            w.read(path, version)
    os.symlink("d/notes", w.directory / "link")
    w.push()
    with pytest.raises(UsageError, match="a link to d/notes"):
        w.read("link")


def test_nothing_unverified_is_given_out(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    large = os.urandom(24 << 20)
    write(w.directory, {"large": large})
    w.push()
    (w.directory / "large").unlink()
    packs = sorted(lab.objects("a", "packs"), key=lambda path: path.stat().st_size)
    flip(packs[-1], 1000)  # in what is read: the end of a pack is not, where two lines share it
    pieces: list[bytes] = []
    with pytest.raises(DamagedError, match="large of version 1 cannot be read"):
        w.cat("large", "1", pieces.append)
    assert large.startswith(b"".join(pieces))


def test_who_is_away_is_no_damage(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"one": os.urandom(200_000)})
    w.push()
    (w.directory / "one").unlink()
    lab.hurry()
    for name in "abc":
        lab.faults[name].down = True
    with pytest.raises(NoQuorumError):
        w.read("one", "base")


def test_a_file_that_is_here_is_read_here(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b"))
    data = os.urandom(2 << 20)
    write(w.directory, {"large": data, "small": b"one"})
    w.push()
    w = lab.reopen(w)
    assert w.read("large") == data  # which learns of its chunks
    for name in "ab":
        lab.counts[name].take()
    assert w.read("large", "base") == data
    assert w.read("small", "base") == b"one"
    (w.directory / "large").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert w.read("large", "base") == data
    fetched = sum(lab.counts[name].take().down_bytes for name in "ab")
    assert 0 < fetched < 2 << 20  # the last chunk alone, which is not the folder's any more


def test_a_pause_refuses_to_read(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    write(w.directory, {"one": b"1"})
    w.push()
    w.pause()
    with pytest.raises(PausedError):
        w.read("one")
    w.resume()
    assert w.read("one") == b"1"
