"""The page beside a daemon: it shows what the daemon tells, and asks it for what only it can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import Fleet, fleet, listening, problem, wait_for
from page_kit import Ear, Served, served
from workspace_kit import Lab, write

from metasync.dashboard import sources, views
from metasync.local.settings import Settings
from metasync.reports.service import Line, WorkspaceState
from metasync.service.desk import Call, Desk
from metasync.service.keeper import Keeper
from metasync.service.registry import Registry
from metasync.service.supervisor import Keeping, Supervisor
from metasync.service.wire import sockets
from metasync.service.wire.server import Server
from metasync.workspace import Workspace


class Running:
    """A daemon on fake keepers that can be ended and begun anew."""

    def __init__(self, made: Fleet, path: Path) -> None:
        self.fleet, self.path = made, path
        self._stack = ExitStack()

    def begin(self) -> None:
        self._stack.enter_context(listening(self.fleet, self.path))

    def end(self) -> None:
        self._stack.close()


@pytest.fixture
def daemon(tmp_path: Path, laptop: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.delenv("METASYNC_DAEMON")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sources, "AGAIN_S", 0.01)
    (tmp_path / "run").mkdir(mode=0o700)
    path = sockets.socket_path()
    assert path is not None
    with fleet(tmp_path / "daemon") as made:
        made.supervisor.add(laptop.directory)
        made.root = laptop.directory.parent
        made.keeper("laptop")
        running = Running(made, path)
        running.begin()
        yield running
        running.end()


@pytest.fixture
def page(daemon: Running) -> Iterator[Served]:
    with served([], keeper=sources.Daemon.found()) as s:
        s.open()
        yield s


@pytest.fixture
def told(page: Served) -> Iterator[Iterator[Any]]:
    ear = Ear(page)
    yield ear.states()
    ear.close()


def test_without_a_daemon_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("METASYNC_DAEMON")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert sources.Daemon.found() is None


def test_what_the_daemon_tells_is_shown_as_it_happens(daemon: Running, told: Iterator[Any]) -> None:
    keeper = daemon.fleet.keeper("laptop")
    assert next(told)["daemon"] is True
    keeper.become("stuck", problems=(problem("guard:1", "guard", asks="push", blocks=True),), why="a guard")
    seen = next(s for s in told if s["doing"] == "stuck")
    assert [(p["key"], p["asks"], p["blocks"]) for p in seen["problems"]] == [("guard:1", "push", True)]


def test_a_pause_without_an_end_is_json(daemon: Running, told: Iterator[Any]) -> None:
    daemon.fleet.keeper("laptop").become("paused", paused_until_s=float("inf"))
    seen = next(s for s in told if s["doing"] == "paused")
    assert (seen["paused"], seen["paused_until"]) == (True, None)
    json.dumps(seen, allow_nan=False)


def test_the_daemon_is_asked_for_what_it_keeps(daemon: Running, page: Served) -> None:
    keeper = daemon.fleet.keeper("laptop")
    for action, fields in (
        ("sync", {}),
        ("answer", {"key": "guard:1", "allow": True}),
        ("pause", {"seconds": None}),
        ("resume", {}),
    ):
        answer = page.do(action, **fields)
        assert (answer.status, answer.json) == (200, {"asked": True}), answer.body
    assert [a if isinstance(a, str) else a[0] for a in keeper.asked] == ["sync_now", "answer", "pause", "resume"]
    assert keeper.asked[1] == ("answer", "guard:1", True)


@pytest.mark.parametrize("fields", [{}, {"key": 7, "allow": True}, {"key": "x"}, {"key": "x", "allow": "yes"}])
def test_an_answer_that_is_none_reaches_nobody(daemon: Running, page: Served, fields: dict[str, Any]) -> None:
    assert page.do("answer", **fields).status == 409
    assert daemon.fleet.keeper("laptop").asked == []


def test_all_else_is_done_by_the_page(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"notes.txt": b"other"})
    laptop.push()
    assert page.do("restore", version="1", path=views.path_id(b"notes.txt")).status == 200
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\nolives\n"
    assert page.look("overview")["version"] == 2


def test_a_daemon_that_ends_is_told_and_found_again(daemon: Running, page: Served, told: Iterator[Any]) -> None:
    next(told)
    daemon.end()
    assert "the daemon has ended" in next(s for s in told if s["doing"] == "waiting")["why"]
    answer = page.do("sync")
    assert answer.status == 409
    assert "the daemon has ended" in answer.message
    daemon.begin()
    assert next(s for s in told if s["doing"] == "in step")["daemon"] is True
    assert page.do("sync").status == 200


def test_a_workspace_that_is_given_to_the_daemon_meanwhile_is_shown(
    daemon: Running, page: Served, told: Iterator[Any]
) -> None:
    daemon.fleet.supervisor.add(daemon.fleet.folder("music"))
    assert next(s for s in told if s["name"] == "music")["daemon"] is True


def test_the_page_opens_with_the_workspace_that_was_named(daemon: Running, laptop: Workspace) -> None:
    """It shows the one that it is told first, of which there are those of the daemon, too."""
    folders = [laptop.directory, *(daemon.fleet.folder(name) for name in ("films", "music", "plans"))]
    for folder in folders[1:]:
        daemon.fleet.keep(folder.name)
    for named in folders:
        with served([named], keeper=sources.Daemon.found()) as page:
            page.open()
            known = page.server._page
            assert known is not None
            wait_for(lambda shown=known.shown: all(s.kept for s in shown.values()), "the states")
            ear = Ear(page)
            assert next(ear.states())["directory"] == str(named)
            ear.close()


# ---- on a real keeper


@pytest.fixture
def kept(tmp_path: Path, laptop: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The page of a daemon that keeps the workspace in step."""
    laptop.configure("daemon.quiet", "1s")
    laptop.close()
    monkeypatch.delenv("METASYNC_DAEMON")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)
    path = sockets.socket_path()
    assert path is not None

    def make(directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> Keeping:
        return Keeper(directory, settings=settings, tell=tell)

    supervised = Supervisor(Registry(tmp_path / "registry"), make, lambda _: ())
    desk = Desk(supervised, lambda: None, lambda: "")
    try:
        supervised.add(laptop.directory)
        with closing(Server(path, desk, Call, lambda _: None)) as server:
            server.start()
            with served([], keeper=sources.Daemon.found()) as page:
                page.open()
                yield page
    finally:
        supervised.stop()


def in_step(told: Iterator[Any], version: int) -> Any:
    return next(s for s in told if (s["doing"], s["version"]) == ("in step", version) and s["looked"] is not None)


def test_the_page_shows_what_a_real_keeper_does_and_asks_no_backend_by_itself(
    kept: Served, laptop: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "status", lambda _: pytest.fail("the keeper knows"))
    ear = Ear(kept)
    told = ear.states()
    in_step(told, 1)
    write(laptop.directory, {"new.txt": b"new"})
    seen = in_step(told, 2)
    assert seen["pushed"] is not None
    assert sum(line["up"] for line in seen["lines"]) > 0
    before = lab.requests()
    for _ in range(3):
        found = kept.look("overview")
    assert lab.requests() == before
    assert (found["version"], found["newest"], found["device"], found["problem"]) == (2, 2, "laptop", "")
    assert {b["name"]: b["holds"] for b in found["backends"]} == dict.fromkeys(("nas", "bucket", "work-box"), True)
    assert (found["packs"] > 0, found["short"], found["copies"]) == (True, 0, 2)
    (laptop.directory / "new.txt").unlink()
    assert kept.do("sync").json == {"asked": True}
    in_step(told, 3)
    ear.close()


def test_what_a_keeper_cannot_reach_is_shown(kept: Served, laptop: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear(kept)
    in_step(ear.states(), 1)
    shown = next(iter(kept.server._page.shown.values()))
    assert shown.kept is not None
    away = replace(shown.kept, lines=(Line("nas", away="no route"),), problems=(problem("quorum", "quorum"),))
    shown.kept = away
    found = kept.look("overview")
    assert [(b["holds"], b["condition"]) for b in found["backends"] if b["name"] == "nas"] == [(False, "down")]
    assert (found["newest"], found["problem"]) == (None, away.problems[0].text)
    ear.close()
