"""The daemon's socket: what comes over it is what was meant, and who is wrong on it holds up nobody."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import resource
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import HUNG_S, Fleet, ask, fleet, heard, line_to, listening, problem, state, wait_for
from hypothesis import given
from hypothesis import strategies as st

from metasync import __version__
from metasync.errors import CancelledError, FormatError, GuardError, MetaSyncError, NoQuorumError, WorkspaceError
from metasync.events import Notice, Phase, Progress, Transferred, Travelled
from metasync.reports.service import Activity, DaemonState, Line, WorkspaceState
from metasync.reports.sync import Changes, ConflictReport, ConflictSide, Met, PullReport, PushReport, Renamed, Skipped
from metasync.runtime.travelled import COUNTER
from metasync.service import client
from metasync.service.desk import Call
from metasync.service.wire import alone, protocol, server, sockets, values
from metasync.service.wire.alone import Alone
from metasync.service.wire.server import Server, Told

PATH = st.binary(min_size=1, max_size=12)
CHANGES = st.builds(
    Changes,
    *(st.lists(PATH, max_size=3).map(tuple),) * 3,
    st.lists(st.builds(Renamed, PATH, PATH), max_size=2).map(tuple),
)
SIDE = st.builds(
    ConflictSide, PATH, st.none() | st.text(max_size=4), st.booleans(), st.none() | st.integers(0), st.none()
)
PULL = st.builds(
    PullReport, st.integers(0, 1 << 60), st.integers(0), CHANGES,
    st.lists(st.builds(ConflictReport, PATH, PATH, st.text(), st.tuples(SIDE, SIDE)), max_size=2).map(tuple),
    met=st.lists(st.builds(Met, st.just("rename/modify"), PATH, st.just("renamed"), st.none() | PATH)).map(tuple),
    down=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)  # fmt: skip
PUSH = st.builds(
    PushReport, st.none() | st.integers(1), CHANGES, st.none() | PULL,
    skipped=st.lists(st.builds(Skipped, PATH, st.text()), max_size=2).map(tuple),
    to_send=st.dictionaries(st.text(max_size=3), st.integers(0), max_size=2),
)  # fmt: skip
FULL = state(
    problems=(problem(),), activity=Activity("upload", 5, None, "B", 7), lines=(Line("a", 1, 2, 3, "away", 4.5),),
    paused_until_s=math.inf, pushed_s=12.5,
)  # fmt: skip


def there_and_back(kind: Any, value: Any) -> Any:
    return values.decode(kind, protocol.document_of(protocol.answer(1, value)[:-1])["ok"])


@given(PUSH)
def test_a_push_is_reported_by_the_daemon_as_by_the_command(report: PushReport) -> None:
    assert there_and_back(PushReport, report) == report


@given(PULL)
def test_a_pull_is_reported_by_the_daemon_as_by_the_command(report: PullReport) -> None:
    assert there_and_back(PullReport, report) == report


def test_states_come_over_as_they_are_also_what_json_has_no_word_for() -> None:
    whole = DaemonState(7, "1.0", 3.25, (FULL, state()))
    assert there_and_back(DaemonState, whole) == whole


def test_a_state_of_another_version_is_read_as_far_as_it_is_known() -> None:
    told = values.encode(FULL)
    told["colour"] = "green"
    del told["lines"]
    assert values.decode(WorkspaceState, told) == values.decode(WorkspaceState, {**values.encode(FULL), "lines": []})
    with pytest.raises(FormatError):
        values.decode(WorkspaceState, {"directory": "/w"})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, True), (int, "1"), (float, "1"), (float, True), (float, 10**400), (str, 1), (bool, 1), (bytes, "\ud800"),
        (bytes, 3), (tuple[int, ...], {"a": 1}), (tuple[int, int], [1]), (dict[str, int], [1]), (type(None), 0),
        (int | None, "x"), (DaemonState, []), (DaemonState, {"pid": "7", "version": "", "began_s": 0}),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(FormatError):
        values.decode(kind, value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"1", b"\xff", b"null", b"{}", b'{"do": "format"}', b'{"do": ["status"]}', b"[" * 10_000,
        b'{"do": "status", "id": -1}', b'{"do": "status", "id": true}', b'{"do": "status", "id": 1e400}',
        b'{"do": "status", "id": 99999999999999999999}', b'{"do": "status", "colour": 1}', b'{"do": "push"}',
        b'{"do": "add", "directory": "docs"}', b'{"do": "add", "directory": 7}',
        b'{"do": "add", "directory": "/a\\u0000"}', b'{"do": "pause", "seconds": "1"}',
        b'{"do": "add", "directory": "/\\ud800"}', b'{"do": "pause", "seconds": NaN}',
        b'{"do": "answer", "directory": "/w", "key": "k"}', b'{"do": "add", "directory": "/' + b"a" * 5000 + b'"}',
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        protocol.read_request(data)


def test_a_request_is_what_was_asked() -> None:
    line = protocol.request(3, "push", {"directory": "/w", "message": "m", "version": "1", "durability": None})
    found = protocol.read_request(line[:-1])
    assert (found.id, found.do) == (3, "push")
    assert found.args == {
        "directory": "/w", "message": "m", "dry_run": False, "force": False, "durability": None, "version": "1",
    }  # fmt: skip
    assert protocol.read_request(b'{"do": "pause"}').args == {"directory": None, "seconds": None}


@pytest.mark.parametrize("error", [NoQuorumError("no quorum", next_step="Run again."), GuardError("most would go")])
def test_an_error_comes_over_as_its_own_class(error: MetaSyncError) -> None:
    told = protocol.error_of(protocol.document_of(protocol.refusal(1, error)[:-1])["error"])
    assert type(told) is type(error)
    assert (told.message, told.next_step, told.exit_code) == (error.message, error.next_step, error.exit_code)


def test_an_error_of_the_daemons_own_is_an_error_and_names_no_class_of_ours() -> None:
    told = protocol.error_of(protocol.document_of(protocol.refusal(1, ZeroDivisionError("oh"))[:-1])["error"])
    assert type(told) is MetaSyncError
    assert "oh" in told.message
    for wrong in (None, {}, {"message": 1}):
        with pytest.raises(FormatError):
            protocol.error_of(wrong)
    assert type(protocol.error_of({"message": "m", "kind": "annotations"})) is MetaSyncError
    assert type(protocol.error_of({"message": "m", "kind": "FormatError", "exit_code": 0})) is MetaSyncError


@pytest.mark.parametrize(
    "event",
    [
        Phase("scan"),
        Progress("upload", 1, None, "B"),
        Notice("so", warning=True),
        Transferred("a", "up", 5, 0.5, pack=True),
    ],
)
def test_events_come_over_as_they_are(event: Any) -> None:
    assert protocol.event_of(json.loads(json.dumps(protocol.told(event)))) == event
    assert protocol.event_of({"smoke": {}}) is None


def test_what_a_caller_does_not_read_is_added_up_and_takes_no_room() -> None:
    told = Told()
    told.hear(Phase("upload"))
    for n in range(10_000):
        told.hear(Progress("upload", n, None, "B"))
        told.hear(Transferred("a", "up", 2, 0.5))
    assert told.take() == [
        Phase("upload"), Progress("upload", 9_999, None, "B"), Transferred("a", "up", 20_000, 5_000.0),
    ]  # fmt: skip
    for n in range(10_000):
        told.hear(Notice(str(n)))
    assert len(told.take()) == server.EVENTS_MAX
    assert told.take() == []


# --- the socket


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as one:
        yield one


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def served(made: Fleet, tmp_path: Path, said: list[str]) -> Iterator[Server]:
    with listening(made, tmp_path / "run" / "daemon.sock", said.append) as one:
        yield one


def test_the_socket_is_its_owners_alone(served: Server) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_closed_and_a_strangers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o777)
    sockets.private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(WorkspaceError, match="not yours"):
        sockets.private_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.undo()
    with pytest.raises(WorkspaceError, match="not yours"):
        sockets.private_folder(tmp_path / "link")


def test_another_user_is_turned_away_at_both_ends(
    served: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "peer_of", lambda _: os.getuid() + 1)
    with pytest.raises(WorkspaceError, match="another user"):
        sockets.connect(served.path, HUNG_S)
    wait_for(lambda: said, "the word about it")
    assert "turned away" in said[0]


def test_the_system_says_who_is_at_the_other_end() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert sockets.peer_of(one) == os.getuid()
    closed = socket.socket()
    closed.close()
    assert sockets.peer_of(closed) == -1


def test_what_a_killed_daemon_left_is_replaced(made: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.sock"
    with listening(made, path) as one:
        one._listener.close()  # as after kill -9: the file stays
    left = sockets.listen(path)
    left.close()
    assert path.exists()
    assert sockets.connect(path, 5.0) is None
    with listening(made, path) as one, line_to(one) as line:
        assert "ok" in ask(line, {"do": "status"})
    assert not path.exists()
    assert sockets.connect(path, 5.0) is None


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon looks at its socket all the time."""
    monkeypatch.setattr(sockets, "LOOK_S", 0.005)


@pytest.mark.usefixtures("often")
def test_a_socket_that_was_removed_is_made_anew_and_who_talked_goes_on(made: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.sock"
    said: list[str] = []
    with listening(made, path, said.append) as one:
        with line_to(one) as before:
            for gone in (path.unlink, lambda: shutil.rmtree(path.parent)):
                gone()
                line = wait_for(lambda: sockets.connect(path, HUNG_S), "the new socket")
                with line:
                    assert "ok" in ask(line, {"do": "status"})
            assert "ok" in ask(before, {"do": "status"})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    assert any("anew" in text for text in said)


@pytest.mark.usefixtures("often")
def test_where_its_socket_has_no_place_any_more_it_says_so_once_and_tries_on(made: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.sock"
    said: list[str] = []
    looks = threading.Semaphore(0)

    def is_alone() -> bool:
        looks.release()
        return True

    one = Server(path, made.desk, Call, said.append, is_alone)
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"in the way")
    one.start()
    try:
        for _ in range(3):
            assert looks.acquire(timeout=HUNG_S)
        assert len(said) == 1
        assert "cannot be made" in said[0]
        path.parent.unlink()
        wait_for(lambda: sockets.connect(path, HUNG_S), "the new socket").close()
    finally:
        one.close()


@pytest.mark.usefixtures("often")
def test_the_socket_of_another_daemon_is_left_alone(made: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "run" / "daemon.sock"
    looks = threading.Semaphore(0)

    def is_alone() -> bool:
        looks.release()
        return False

    one = Server(path, made.desk, Call, is_alone=is_alone)
    path.unlink()
    with listening(made, path) as other:
        one.start()
        for _ in range(3):
            assert looks.acquire(timeout=HUNG_S)
        one.close()
        with line_to(other) as line:
            assert "ok" in ask(line, {"do": "status"})


def test_a_daemon_that_is_silent_is_named_with_the_way_past_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("METASYNC_DAEMON", "on")
    monkeypatch.setattr(client, "ANSWER_S", 0.0)
    near, far = socket.socketpair()
    with far, client.Client(near) as daemon, Alone(tmp_path / "metasync"), pytest.raises(WorkspaceError) as e:
        daemon.status()
    assert f"process {os.getpid()}" in e.value.message
    assert "METASYNC_DAEMON=off" in e.value.next_step
    assert f"kill -9 {os.getpid()}" in e.value.next_step


def test_one_alone_holds_the_lock_and_makes_one_anew_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert alone.holder(folder) is None
    with Alone(folder) as lock:
        for gone in ((folder / alone.LOCK).unlink, lambda: shutil.rmtree(folder)):
            assert lock.is_so()
            assert alone.holder(folder) == os.getpid()
            gone()
        with Alone(folder) as other:
            assert not lock.is_so()
            assert not lock.is_so()
            assert other.is_so()
        assert lock.is_so()
        with pytest.raises(WorkspaceError, match=f"runs already .process {os.getpid()}"):
            Alone(folder)
        (folder / alone.LOCK).write_bytes(b"no number")
        assert alone.holder(folder) == 0
    assert alone.holder(folder) is None
    lock.close()


def test_a_path_that_is_too_long_for_a_socket_serves(made: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25) / ("longer" * 20)
    with listening(made, folder / "daemon.sock") as one, line_to(one) as line:
        assert "ok" in ask(line, {"do": "status"})


def test_garbage_is_answered_and_the_next_request_too(served: Server) -> None:
    with line_to(served) as line:
        line.sendall(b"\x00\xffgarbage\n")
        assert heard(line)["error"]["kind"] == "UsageError"
        assert ask(line, {"id": 9, "do": "status"})["id"] == 9


def test_a_line_without_an_end_is_cut_off(served: Server) -> None:
    def send_for_ever(line: socket.socket) -> None:
        while True:
            line.sendall(b"a" * 65_536)

    with line_to(served) as line, pytest.raises(ConnectionError):
        send_for_ever(line)
    with line_to(served) as line:
        assert "ok" in ask(line, {"do": "status"})


def test_many_callers_that_say_nothing_do_not_stop_those_that_come_after_they_left(
    served: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLIENTS_MAX", 4)
    idle = []
    for _ in range(4):
        line = sockets.connect(served.path, HUNG_S)
        assert line is not None
        assert "ok" in ask(line, {"do": "status"})
        idle.append(line)
    with line_to(served) as line:
        assert line.recv(1) == b""
    wait_for(lambda: said, "the word about it")
    assert "4 callers" in said[0]
    for line in idle:
        line.close()

    def answered() -> bool:
        with contextlib.suppress(ConnectionError), line_to(served) as one:  # it may be turned away once more
            one.sendall(protocol.line({"do": "status"}))
            return bool(one.recv(1))
        return False

    wait_for(answered, "a free place")


def test_a_caller_that_is_silent_gives_its_place_back(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINE_S", 0.01)
    with line_to(served) as line:
        line.sendall(b'{"do": "sta')
        assert line.recv(1) == b""


class Hanging:
    """A workspace whose push lasts until it is cancelled, or let go."""

    def __init__(self) -> None:
        self.on_event: Callable[[Any], None] = lambda _: None
        self.began, self.ends = threading.Event(), threading.Event()
        self.is_cancelled = False
        self.copying = False
        self.travelled = Travelled(100, 200, 300)  # what it moved before

    def push(self, _message: str, **_words: Any) -> PushReport:
        self.on_event(Phase("scan"))
        self.began.set()
        assert self.ends.wait(HUNG_S)
        self.travelled += Travelled(7, 8, 9)
        if self.is_cancelled:
            raise CancelledError("cancelled")
        return PushReport(4, Changes(added=(b"a",)))

    def cancel(self) -> None:
        self.is_cancelled = True
        self.ends.set()


@pytest.fixture
def hanging(made: Fleet) -> Hanging:
    keeper = made.keep("docs")
    keeper.workspace = Hanging()
    return keeper.workspace


def push_in(made: Fleet, **words: Any) -> dict[str, Any]:
    return {"id": 5, "do": "push", "directory": str(made.root / "docs"), "version": __version__, **words}


def test_a_caller_that_leaves_cancels_what_it_asked_for(made: Fleet, served: Server, hanging: Hanging) -> None:
    with line_to(served) as line:
        line.sendall(protocol.line(push_in(made)))
        assert hanging.began.wait(HUNG_S)
    assert hanging.ends.wait(HUNG_S)
    assert hanging.is_cancelled


def test_one_who_is_served_slowly_holds_up_nobody(made: Fleet, served: Server, hanging: Hanging) -> None:
    with line_to(served) as slow, line_to(served) as other:
        slow.sendall(protocol.line(push_in(made)))
        assert hanging.began.wait(HUNG_S)
        assert "ok" in ask(other, {"do": "status"})
        hanging.ends.set()
        assert heard(slow)


def test_a_client_hears_events_then_the_report(made: Fleet, served: Server, hanging: Hanging) -> None:
    events: list[Any] = []

    def hear(event: Any) -> None:
        events.append(event)
        hanging.ends.set()

    line = sockets.connect(served.path, HUNG_S)
    assert line is not None
    with client.Client(line) as daemon:
        report = daemon.push(made.root / "docs", on_event=hear)
    assert report == PushReport(4, Changes(added=(b"a",)))
    assert events == [Phase("scan")]
    assert hanging.on_event is not hear  # the keeper's own listener is back


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_daemon_moved_counts_as_the_commands(
    made: Fleet, served: Server, hanging: Hanging, fails: bool
) -> None:
    before = COUNTER.total
    hanging.ends.set()
    hanging.is_cancelled = fails
    line = sockets.connect(served.path, HUNG_S)
    assert line is not None
    with client.Client(line) as daemon:
        daemon.status()
        assert COUNTER.total.since(before) == Travelled()
        with pytest.raises(CancelledError) if fails else contextlib.nullcontext():
            daemon.push(made.root / "docs")
    assert COUNTER.total.since(before) == Travelled(7, 8, 9)


def test_what_travelled_is_checked() -> None:
    assert protocol.travelled_of({"ok": {}}) == Travelled()
    for nonsense in (7, None, {"requests": "many"}, {"requests": True}):
        with pytest.raises(FormatError):
            protocol.travelled_of({"ok": {}, "travelled": nonsense})


def test_another_version_is_told_so_that_the_command_does_it_by_itself(made: Fleet, served: Server) -> None:
    made.keep("docs")
    line = sockets.connect(served.path, HUNG_S)
    assert line is not None
    with client.Client(line) as daemon, pytest.raises(protocol.UnservedError):
        daemon.push(made.root / "docs", version="0.0.1")


def test_the_states_are_streamed_and_each_change(made: Fleet, served: Server) -> None:
    keeper = made.keep("docs")
    line = sockets.connect(served.path, HUNG_S)
    assert line is not None
    with client.Client(line) as daemon:
        events = daemon.events()
        first = next(events)
        assert isinstance(first, DaemonState)
        assert [w.doing for w in first.workspaces] == ["in step"]
        keeper.become("pushing", changed=3)
        second = next(events)
        assert isinstance(second, client.Changed)
        assert second.state is not None
        assert (second.state.doing, second.state.changed) == ("pushing", 3)
        made.supervisor.remove(made.root / "docs")
        last = next(events)
        while last.state is not None:  # that it is stopping is told, too
            last = next(events)
        assert last == client.Changed(str(made.root / "docs"), None)
        served.close()
        assert list(events) == []


def test_a_stopping_daemon_tells_who_waits(made: Fleet, served: Server, hanging: Hanging) -> None:
    with line_to(served) as line:
        line.sendall(protocol.line(push_in(made)))
        assert hanging.began.wait(HUNG_S)
        served._ends.set()
        lines = sockets.Lines(line, protocol.ANSWER_BYTES_MAX)
        while "event" in (found := protocol.document_of(lines.next(HUNG_S) or b"")):
            pass
        assert found["error"]["message"] == "the daemon was stopped"
    wait_for(lambda: hanging.is_cancelled, "the cancelling")


def test_nobody_looks_for_a_daemon_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("METASYNC_DAEMON", "off")
    assert client.connect() is None
    monkeypatch.delenv("METASYNC_DAEMON")
    assert sockets.socket_path() == tmp_path / "metasync" / "daemon.sock"
    assert client.connect() is None


def test_a_folder_that_cannot_be_made_names_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(WorkspaceError, match="cannot be made: Not a directory") as told:
        sockets.private_folder(tmp_path / "file" / "metasync")
    assert "set XDG_STATE_HOME" in told.value.next_step
    (tmp_path / "run" / alone.LOCK).mkdir(parents=True)
    (tmp_path / "run").chmod(0o700)
    with pytest.raises(WorkspaceError, match=r"lock in .* cannot be made: Is a directory") as told:
        Alone(tmp_path / "run")
    assert "set XDG_STATE_HOME" in told.value.next_step


def test_a_line_with_a_high_descriptor_is_there_until_it_is_closed() -> None:
    """`select` takes none above 1,023, and whoever waited at such a line counted as gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1100:
        if hard != resource.RLIM_INFINITY and hard < 1100:
            pytest.skip("this user may not have so many files open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (1100, hard))
    here, there = socket.socketpair()
    try:
        with here, there, socket.socket(fileno=fcntl.fcntl(there.fileno(), fcntl.F_DUPFD, 1050)) as high:
            assert not sockets.is_gone(high)
            here.close()
            assert sockets.is_gone(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
