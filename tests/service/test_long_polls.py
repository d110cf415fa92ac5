"""Watches of backends: what they say is passed on, what fails covers nothing, and nothing is asked too often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import HUNG_S, wait_for
from servers.standin import linked

from metasync.backends.api import Change
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, NotFoundError, UnreachableError
from metasync.service.brokers.hints import AT_ONCE_MAX, EACH_S
from metasync.service.long_polls import POLL_LEAST_S, POLL_S, Line, LongPolls
from metasync.session.folder import Link
from metasync.session.peek import Watchable

QUIET = Change("later", False)
NEWS = Change("later", True)
Answer = Change | Exception


def at(name: str, url: str = "") -> Watchable:
    return Watchable(name, Link(url or f"dropbox:/{name}", "ws", "00" * 32), "ws/votes")


class Store:
    """A backend that answers its watches as a test says, each after so many seconds."""

    def __init__(self, hall: Hall, name: str) -> None:
        self.hall, self.name = hall, name
        self.is_closed = False

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        self.hall.asked.append((self.name, cursor, timeout_s))
        said, after_s = self.hall.says(self.name, cursor)
        self.hall.now += after_s
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        self.is_closed = True


class Hall:
    """A line on stores, by a clock of its own. `says`: what a store answers, and after how many seconds."""

    def __init__(self, *names: str) -> None:
        self.now = 1000.0
        self.asked: list[tuple[str, str, float]] = []
        self.told: list[str] = []
        self.changes: list[bool] = []
        self.opened: list[Any] = []
        self.says: Callable[[str, str], tuple[Answer, float]] = lambda _, cursor: (
            (QUIET, POLL_S) if cursor else (Change("begun", True), 0.0)
        )
        self.line = Line(
            [at(name) for name in names], self.open, self.told.append,
            lambda: self.changes.append(self.line.works), clock=lambda: self.now, draw=lambda: 0.5,
        )  # fmt: skip

    def open(self, to: Watchable) -> Any:
        self.opened.append(Store(self, to.name))
        return self.opened[-1]

    def go_on(self, seconds: float) -> None:
        end, turns = self.now + seconds, 0
        while self.now < end:
            wait_s = self.line.turn()
            self.now += wait_s
            turns += 1
            assert turns < 3000, "a busy loop"


def test_a_day_of_quiet_takes_eight_requests_an_hour() -> None:
    hall = Hall("one", "two")
    hall.go_on(24 * 3600.0)
    assert len(hall.asked) <= 24 * 7.5 + 2
    assert hall.told == ["one", "two"], "what came before they were watched is not known"
    assert hall.changes == [True]
    assert {name for name, _, _ in hall.asked[-2:]} == {"one", "two"}, "in turn"


def test_what_changed_is_told() -> None:
    hall = Hall("one")
    hall.go_on(1.0)
    hall.told.clear()
    hall.says = lambda *_: (NEWS, 7.0)
    hall.go_on(1.0)
    assert hall.told == ["one"]
    hall.says = lambda *_: (QUIET, 7.0)
    hall.go_on(1.0)
    assert hall.told == ["one"]
    assert [cursor for _, cursor, _ in hall.asked] == ["", "begun", "later", "later"]


@pytest.mark.parametrize("said", [QUIET, NEWS], ids=["quiet", "news"])
def test_a_server_that_answers_at_once_is_asked_a_bounded_number_of_times(said: Change) -> None:
    hall = Hall("one")
    hall.says = lambda *_: (said, 0.0)
    hall.go_on(3600.0)
    assert len(hall.asked) <= AT_ONCE_MAX + 3600 / EACH_S + 1


def test_a_server_that_wants_to_be_left_alone_is() -> None:
    hall = Hall("one")
    hall.says = lambda *_: (Change("later", False, 900.0), 0.0)
    hall.go_on(3600.0)
    assert len(hall.asked) <= 5


@pytest.mark.parametrize("error", [UnreachableError("away"), NotFoundError("too old"), BackendError("odd")])
def test_a_watch_that_fails_covers_nothing_and_is_tried_again_after_pauses_that_grow(error: BackendError) -> None:
    hall = Hall("one")
    hall.go_on(1.0)
    assert hall.line.works
    hall.says = lambda _, cursor: (error, 0.1) if cursor else (Change("begun", True), 0.0)
    hall.go_on(24 * 3600.0)
    assert not hall.line.works
    assert len(hall.asked) < 90
    assert all(store.is_closed for store in hall.opened)
    hall.says = lambda *_: (NEWS, 60.0)
    hall.told.clear()
    hall.go_on(3 * 3600.0)
    assert hall.line.works
    assert hall.told


def test_a_backend_that_cannot_be_opened_or_watched_covers_nothing() -> None:
    for kind in (UnreachableError("away"), BackendError("in pieces")):

        def refuse(_to: Watchable, kind: BackendError = kind) -> Any:
            raise kind

        hall = Hall("one")
        hall.line._open = refuse
        hall.go_on(3600.0)
        assert (hall.changes, hall.asked) == ([], [])
    hall = Hall("one")
    made: list[MemoryBackend] = []
    hall.line._open = lambda _: [made.append(MemoryBackend("a")), made[-1]][1]
    hall.go_on(3600.0)
    assert (hall.changes, hall.told) == ([], [])
    assert 1 < len(made) < 20


def test_where_one_of_two_fails_the_other_is_watched_on() -> None:
    hall = Hall("one", "two")
    hall.go_on(1.0)
    hall.says = lambda name, cursor: (
        (UnreachableError("away"), 0.1) if name == "one" else (QUIET, POLL_S) if cursor else (NEWS, 0.0)
    )
    hall.go_on(24 * 3600.0)
    assert hall.line.works
    hall.asked.clear()
    hall.go_on(3600.0)
    assert sum(name == "two" for name, _, _ in hall.asked) >= 5


def test_a_poll_after_one_that_failed_is_shorter() -> None:
    """The network may forget a line that is silent for minutes."""
    hall = Hall("one")
    hall.says = lambda _, cursor: (UnreachableError("timed out"), 500.0) if cursor else (NEWS, 0.0)
    hall.go_on(24 * 3600.0)
    times = [timeout_s for _, cursor, timeout_s in hall.asked if cursor]
    assert times[0] == POLL_S
    assert times[-1] == POLL_LEAST_S
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("failures", [1, 3, 20])
def test_polls_that_end_well_grow_longer_again(failures: int) -> None:
    hall = Hall("one")
    hall.says = lambda _, cursor: (UnreachableError("timed out"), 500.0) if cursor else (NEWS, 0.0)
    while len([1 for _, cursor, _ in hall.asked if cursor]) < failures:
        hall.now += hall.line.turn()
    hall.says = lambda _, cursor: (QUIET, hall.asked[-1][2]) if cursor else (NEWS, 0.0)
    hall.go_on(6 * 3600.0)
    hall.asked.clear()
    hall.go_on(3600.0)
    assert {timeout_s for _, _, timeout_s in hall.asked} == {POLL_S}
    assert len(hall.asked) <= 8, "as many requests as if nothing had failed"


def test_where_the_network_forgets_silent_lines_most_polls_end_well() -> None:
    hall = Hall("one")

    def says(_: str, cursor: str) -> tuple[Answer, float]:
        asked_s = hall.asked[-1][2]
        if not cursor:
            return NEWS, 0.0
        return (QUIET, asked_s) if asked_s <= 300 else (UnreachableError("timed out"), asked_s + 20)

    hall.says = says
    hall.go_on(24 * 3600.0)
    times = [timeout_s for _, cursor, timeout_s in hall.asked if cursor]
    assert sum(time_s <= 300 for time_s in times) >= 2 * sum(time_s > 300 for time_s in times)


def test_an_error_of_our_own_is_that_one_watchs_failure() -> None:
    hall = Hall("one", "two")
    hall.go_on(1.0)
    hall.says = lambda name, cursor: (
        (AttributeError("odd"), 0.1) if name == "one" else (QUIET, POLL_S) if cursor else (NEWS, 0.0)
    )
    hall.go_on(24 * 3600.0)
    assert hall.line.works
    assert sum(name == "one" for name, _, _ in hall.asked) < 90
    hall.asked.clear()
    hall.go_on(3600.0)
    assert sum(name == "two" for name, _, _ in hall.asked) >= 7


def test_what_an_ended_watch_says_nobody_hears() -> None:
    hall = Hall("one")
    hall.go_on(1.0)
    hall.told.clear()
    hall.changes.clear()

    def end(*_: str) -> tuple[Answer, float]:
        hall.line.end()
        return NEWS, 1.0

    hall.says = end
    hall.line.turn()
    assert (hall.told, hall.changes) == ([], [])
    assert all(store.is_closed for store in hall.opened)


# ---- in threads, on stores


class Ear:
    """Hears what the watches of some stores tell."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.covered: list[bool] = []
        self.polls = LongPolls(lambda to: open_backend(parse_url(to.link.url)), self.told.append, self.covered.append)

    def begin(self, *backends: Watchable) -> None:
        self.polls.follow(backends)
        wait_for(lambda: self.covered[-1:] == [True], "a watch")
        wait_for(lambda: self.polls.watched >= {one.name for one in backends}, "all watches")
        self.told.clear()


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.polls.end()


@contextmanager
def ends_all_threads(name: str) -> Iterator[None]:
    yield
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith(f"watches {name}")], "their end")


def folders(root: Path, *names: str) -> list[tuple[FolderBackend, Watchable]]:
    out = []
    for name in names:
        (root / name).mkdir()
        store = FolderBackend(str(root / name))
        store.put("ws/votes/birth", b"0")
        out.append((store, at(name, f"file://{root / name}")))
    return out


def test_an_entry_in_a_folder_is_told_at_once(ear: Ear, tmp_path: Path) -> None:
    (one, to_one), (two, to_two) = folders(tmp_path, "one", "two")
    ear.begin(to_one, to_two)
    assert ear.covered == [True]
    one.put("ws/packs/beside", b"0")
    two.create("ws/votes/px/0/entry", b"0")
    wait_for(lambda: ear.told, "a hint")
    assert set(ear.told) == {"two"}
    with ends_all_threads("one"), ends_all_threads("two"):
        ear.polls.end()
    assert ear.covered == [True, False]
    assert ear.polls.watched == frozenset()


def test_the_same_backends_are_watched_on_and_others_instead(ear: Ear, tmp_path: Path) -> None:
    (one, to_one), (two, to_two) = folders(tmp_path, "one", "two")
    ear.begin(to_one)
    lines = ear.polls._lines
    ear.begin(to_one)
    assert ear.polls._lines is lines
    ear.begin(to_two)
    one.create("ws/votes/entry", b"0")
    two.create("ws/votes/entry", b"0")
    wait_for(lambda: ear.told, "a hint")
    assert set(ear.told) == {"two"}
    ear.polls.end()
    ear.begin(to_two)


def test_a_drive_that_is_unmounted_is_watched_again_when_it_is_back(ear: Ear, tmp_path: Path) -> None:
    [(_, to_one)] = folders(tmp_path, "one")
    ear.begin(to_one)
    (tmp_path / "one" / "ws" / "votes").rename(tmp_path / "away")
    wait_for(lambda: ear.covered == [True, False], "the end of the watch")
    assert not ear.polls.watched
    (tmp_path / "away").rename(tmp_path / "one" / "ws" / "votes")
    ear.polls.end()  # rather than after the pause
    ear.begin(to_one)


@pytest.mark.parametrize("cloud", ["dropbox", "box"])
def test_a_service_tells_of_an_entry(ear: Ear, cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin: Any
    if cloud == "dropbox":
        pytest.importorskip("dropbox")
        from servers.dropbox_standin import DropboxStandin as Standin
    else:
        pytest.importorskip("box_sdk_gen")
        from servers.box_standin import BoxStandin as Standin  # type: ignore[assignment]
    with linked(Standin(), monkeypatch, tmp_path / "config") as standin:
        standin.faults.poll_most_s = HUNG_S
        store = open_backend(parse_url(f"{cloud}:/top"), create_root=True)
        store.put("ws/votes/birth", b"0")
        with ends_all_threads(cloud):
            ear.begin(at(cloud, f"{cloud}:/top"))
            store.put("ws/votes/entry", b"0")
            wait_for(lambda: ear.told, "a hint")
            ear.polls.end()
            store.put("ws/votes/entry2", b"0")  # it ends the poll that is left
        store.close()
