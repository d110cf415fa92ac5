"""Where long polls of Box go: which requests they take, and that none of what happens is heard of later for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from servers.box_standin import BoxStandin
from servers.standin import Answer, Request

from metasync.backends.box import BoxBackend, feed
from metasync.errors import BackendError

QUIET_S = 610.0  # of a poll that nothing ends
Subscribe = Callable[[BoxStandin, Request], Answer]
subscribe: Subscribe = BoxStandin._subscribe


@pytest.fixture
def filled(backend: BoxBackend, standin: BoxStandin) -> BoxBackend:
    backend.put("d/a", b"0123")
    return backend


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a poll that nothing ends moves on."""
    now = [1000.0]
    monkeypatch.setattr(feed, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0]))

    def polled(self: BoxStandin, request: Request) -> Answer:
        answer = subscribe(self, request)
        now[0] += QUIET_S if b"reconnect" in answer.body else 0.0
        return answer

    monkeypatch.setattr(BoxStandin, "_subscribe", polled)
    return now


class Watched:
    """A watch that goes on from its cursor."""

    def __init__(self, backend: BoxBackend, standin: BoxStandin) -> None:
        self._backend, self._standin = backend, standin
        self._cursor = backend.watch("d", "", 30).cursor
        standin.take_log()

    def turn(self) -> str:
        """What the next turn asked for: a server, a poll, events; "!" where it told of news."""
        told = self._backend.watch("d", self._cursor, 30)
        self._cursor = told.cursor
        names = {"OPTIONS": "s", "GET": "e"}
        came = [exchange.request for exchange in self._standin.take_log()]
        return "".join("p" if "/subscribe" in one.target else names[one.method] for one in came) + "!" * told.changed

    def turns(self, count: int) -> str:
        return " ".join(self.turn() for _ in range(count))

    def news(self) -> None:
        self._backend.put("d/b", b"x")
        self._standin.take_log()


@pytest.fixture
def watched(now: list[float], filled: BoxBackend, standin: BoxStandin) -> Watched:
    return Watched(filled, standin)


def channels(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Answer | None]) -> None:
    """Has each channel answer its n-th poll (from 0) so; None: as ever."""
    seen: dict[str, int] = {}
    before: Subscribe = BoxStandin._subscribe

    def polled(self: BoxStandin, request: Request) -> Answer:
        channel = request.query["channel"]
        count = seen[channel] = seen.get(channel, -1) + 1
        told = answer(count)
        return before(self, request) if told is None else told

    monkeypatch.setattr(BoxStandin, "_subscribe", polled)


def test_a_server_is_polled_twice_where_nothing_happens(watched: Watched) -> None:
    assert watched.turns(6) == "sp p sp p sp p"


def test_what_happens_ends_the_next_poll_at_once(watched: Watched) -> None:
    for quiet in range(4):
        watched.turns(quiet)
        watched.news()
        assert watched.turn().endswith("pe!")


def test_a_server_that_told_of_news_in_its_second_poll_is_polled_as_often_as_box_says(watched: Watched) -> None:
    assert watched.turn() == "sp"
    watched.news()
    assert watched.turn() == "pe!"
    assert watched.turns(1) == "sp"  # its minutes were over
    assert watched.turns(9) == " ".join(["p"] * 9)
    assert watched.turn() == "sp"


def test_a_server_that_is_deaf_in_its_second_poll_is_found_out_once(
    watched: Watched, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll after it hears at once of what came meanwhile, and no server is polled again."""

    def deaf(count: int) -> Answer | None:
        if count == 0:
            return None
        now[0] += QUIET_S
        return Answer(200, b'{"message":"reconnect"}')

    channels(monkeypatch, deaf)
    assert watched.turn() == "sp"
    watched.news()
    assert watched.turns(2) == "p spe!"
    now[0] += QUIET_S  # the minutes of that server are over
    assert watched.turns(3) == "sp sp sp"


@pytest.mark.parametrize("status", [400, 404, 410, 500, 503])
def test_a_server_that_refuses_a_second_poll_is_no_failure(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    channels(monkeypatch, lambda count: Answer(status, b"{}") if count else None)
    assert watched.turns(4) == "sp p sp sp"
    watched.news()
    assert watched.turn() == "spe!"


@pytest.mark.parametrize("body", [b'{"message":"max_retries"}', b"", b"[]", b'{"message":"reconnect"}'])
def test_a_server_that_ends_a_second_poll_at_once_is_polled_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    channels(monkeypatch, lambda count: Answer(200, body) if count else None)
    assert watched.turns(5) == "sp p sp sp sp"


def test_a_first_poll_that_ends_oddly_has_another_server_be_asked(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels(monkeypatch, lambda count: Answer(200, b'{"message":"max_retries"}'))
    assert watched.turns(3) == "sp sp sp"


def test_a_server_is_not_polled_again_after_another_watch_had_its_turn(watched: Watched, now: list[float]) -> None:
    """What happened between its two polls would say nothing of the server."""
    assert watched.turn() == "sp"
    now[0] += 480.0
    assert watched.turn() == "sp"
    now[0] += 480.0
    watched.news()
    assert watched.turn() == "spe!"
    assert watched.turn() == "p"
    assert watched.turns(2) == "p sp"


def test_news_that_come_later_say_nothing_against_a_server(
    watched: Watched, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched.turns(2) == "sp p"
    before: Subscribe = BoxStandin._subscribe

    def late(self: BoxStandin, request: Request) -> Answer:
        now[0] += 100.0
        return before(self, request)

    monkeypatch.setattr(BoxStandin, "_subscribe", late)
    watched.news()
    assert watched.turn() == "spe!"
    assert watched.turns(4) == "p p sp p"


def test_a_server_is_asked_again_after_news_as_often_and_long_as_box_says(watched: Watched, now: list[float]) -> None:
    def news() -> str:
        watched.news()
        return watched.turn()

    begun, goes_on = "spe!", "pe!"
    assert [news() for _ in range(11)] == [begun, *[goes_on] * 9, begun]
    now[0] += 599.0
    assert news() == goes_on
    now[0] += 2.0
    assert news() == begun


def test_a_poll_that_failed_has_another_server_be_asked(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.news()
    assert watched.turn() == "spe!"
    with monkeypatch.context() as patch:
        patch.setattr(BoxStandin, "_subscribe", lambda self, request: Answer(404, b"{}"))
        with pytest.raises(BackendError):
            watched.turn()
    watched.news()
    assert watched.turn().endswith("spe!")
