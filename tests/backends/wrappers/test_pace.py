"""Accounts that ask for fewer requests are left alone, in all processes of a user, and no longer than they ask."""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metasync.backends._shared.http import MOST_S as HOLD_MOST_S
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import parse_url
from metasync.backends.wrappers import pace as _pace
from metasync.backends.wrappers.pace import LOOK_S, Account, Paced, account_of
from metasync.backends.wrappers.retry import Retrying
from metasync.errors import BackendError, HeldBackError, UnreachableError
from metasync.runtime.effects import CARRIED


class Clock:
    """A clock that only sleeping moves; `wall` goes with it, from another start."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.turned = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1.7e9 + self.turned

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state directory of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


# --- what is decided


def test_nothing_is_held_before_a_refusal(tmp_path: Path, clock: Clock) -> None:
    a = account(tmp_path, clock)
    assert [a.held_s() for _ in range(5000)] == [0.0] * 5000
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_holds_for_as_long_as_the_server_asks_and_not_for_ever(tmp_path: Path, clock: Clock) -> None:
    a = account(tmp_path, clock)
    a.refused(7.0)
    held = [a.held_s()]
    for seconds in (6.5, 0.5):
        clock.sleep(seconds)
        held.append(a.held_s())
    assert held == [7.0, 0.5, 0.0]
    a.refused(86_400.0)
    assert a.held_s() == HOLD_MOST_S
    clock.sleep(1.0)
    a.refused(1.0)
    assert a.held_s() == HOLD_MOST_S - 1, "a shorter rest does not end a longer one"


def test_refusals_of_a_burst_hold_as_long_as_the_longest_and_are_written_once(tmp_path: Path, clock: Clock) -> None:
    a = account(tmp_path, clock)
    written = set()
    for _ in range(8):
        a.refused(10.0)
        written.add((tmp_path / "a.json").stat().st_ino)
        clock.sleep(0.01)
    assert a.held_s() == pytest.approx(9.99), "what the last one asked for"
    assert len(written) == 1


@example([(0.1 + 0.2, "refused", 4000.0)] * 3 + [(1.1, "told", 3600.0)])
@given(
    st.lists(st.tuples(st.floats(0, 50), st.sampled_from(["ask", "refused", "told"]), st.floats(0, 4000)), max_size=60)
)
def test_whatever_happens_it_is_asked_again(events: list[tuple[float, str, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        a, other = account(Path(folder), clock), account(Path(folder), clock)
        for after, what, number in events:
            clock.sleep(after)
            if what == "refused":
                a.refused(number)
            elif what == "told":
                other.refused(number)
            assert 0 <= a.held_s() <= HOLD_MOST_S
        clock.sleep(HOLD_MOST_S + 1e-3)
        assert a.held_s() == other.held_s() == 0.0
        assert account(Path(folder), clock).held_s() == 0.0


# --- what is remembered


def account(folder: Path, clock: Clock) -> Account:
    """As another process sees it."""
    return Account(str(folder / "a.json"), clock=clock, wall=clock.wall)


def test_another_process_knows_and_forgets(tmp_path: Path, clock: Clock) -> None:
    one, other = account(tmp_path / "deep" / "down", clock), account(tmp_path / "deep" / "down", clock)
    assert other.held_s() == 0.0
    one.refused(20.0)
    clock.sleep(5.0)
    assert other.held_s() == pytest.approx(15.0)
    assert account(tmp_path / "deep" / "down", clock).held_s() == pytest.approx(15.0)
    clock.sleep(15.5)
    assert other.held_s() == 0.0
    assert account(tmp_path / "deep" / "down", clock).held_s() == 0.0
    assert not list((tmp_path / "deep" / "down").iterdir()), "what has run out is removed"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[1, 2]",
        b'{"format": 1}',
        b'{"format": 2, "at": 1, "until": 2, "rate": null, "refused": 0}',
        b'{"format": 1, "at": "x", "until": 2, "rate": null, "refused": 0}',
        b'{"format": 1, "at": NaN, "until": Infinity, "rate": null, "refused": 0}',
        b'{"format": 1, "at": 1700001000, "until": 1e999, "rate": null, "refused": 0}',
        b'{"format": 1, "at": 1700001000, "until": 1700001000, "rate": -1, "refused": 0}',
        b'{"format": 1, "at": 1700001000, "until": 1700001000, "rate": 0, "refused": 5}',
        b'{"format": 1, "at": 1' + b"0" * 5000 + b', "until": 2, "rate": null, "refused": 0}',
        b"[" * 4000,
        b"\xff\xfe",
    ],
    ids=lambda data: data[:40],
)
def test_a_damaged_note_is_none(tmp_path: Path, clock: Clock, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    assert account(tmp_path, clock).held_s() == 0.0


def test_a_clock_that_was_turned_costs_little(tmp_path: Path, clock: Clock) -> None:
    one = account(tmp_path, clock)
    one.refused(60.0)
    clock.turned = -86_400.0
    assert account(tmp_path, clock).held_s() == 0.0, "said tomorrow: by a clock that was wrong, then or now"
    assert one.held_s() == 60.0, "who heard it goes by another clock"
    clock.turned = 0.0
    one.refused(60.0)
    clock.turned = 86_400.0
    assert account(tmp_path, clock).held_s() == 0.0


@pytest.mark.parametrize(("hold_s", "kept_s"), [(HOLD_MOST_S, HOLD_MOST_S), (HOLD_MOST_S + 60, 0.0), (1e9, 0.0)])
def test_a_note_that_nobody_of_ours_writes_holds_nothing(
    tmp_path: Path, clock: Clock, hold_s: float, kept_s: float
) -> None:
    """Else every process would keep off the account for another hour, until somebody finds the file."""
    (tmp_path / "a.json").write_text(json.dumps({"format": 1, "at": clock.wall(), "until": clock.wall() + hold_s}))
    assert account(tmp_path, clock).held_s() == kept_s


def test_a_shorter_rest_that_another_process_is_told_does_not_end_a_longer_one(tmp_path: Path, clock: Clock) -> None:
    one, other = account(tmp_path, clock), account(tmp_path, clock)
    assert other.held_s() == 0.0  # it has looked a moment ago
    one.refused(600.0)
    other.refused(1.0)
    assert other.held_s() == 600.0
    assert account(tmp_path, clock).held_s() == 600.0


@pytest.mark.parametrize("kind", ["file in the way", "read-only", "link", "folder", "pipe"])
def test_no_memory_is_no_error(tmp_path: Path, clock: Clock, kind: str) -> None:
    folder = tmp_path / "accounts"
    if kind == "file in the way":
        folder.write_text("x")
    else:
        folder.mkdir()
    if kind == "link":
        account(tmp_path / "other", clock).refused(60.0)  # a note, but whose?
        (tmp_path / "elsewhere").write_bytes((tmp_path / "other/a.json").read_bytes())
        (folder / "a.json").symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        (folder / "a.json").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / "a.json")
    elif kind == "read-only":
        folder.chmod(0o555)
    one = account(folder, clock)
    assert one.held_s() == 0.0
    one.refused(9.0)
    assert one.held_s() == 9.0
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == (tmp_path / "other/a.json").read_bytes()
    folder.chmod(0o755)


def test_writers_at_once_leave_a_whole_note(tmp_path: Path, clock: Clock) -> None:
    def refuse(seed: int) -> None:
        one, rng = account(tmp_path, clock), random.Random(seed)
        for _ in range(50):
            one.refused(rng.uniform(1, 1000))

    threads = [threading.Thread(target=refuse, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert 1.0 <= account(tmp_path, clock).held_s() <= 1000.0
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_whose_requests_are_counted_together(state: Path) -> None:
    def path(url: str, scope: bytes = b"e" * 16) -> str:
        return account_of(parse_url(url), scope)._path

    one = path("s3://bucket/a?endpoint=https://h")
    assert one == path("s3://other/b?endpoint=https://h&name=x&capacity=1GB"), "another workspace of the same account"
    assert one != path("s3://bucket/a?endpoint=https://h&profile=work")
    assert one != path("s3://bucket/a?endpoint=https://h", b"f" * 16)
    assert one.startswith(f"{state}/metasync/accounts/")
    assert "bucket" not in one
    assert account_of(parse_url("s3://b-1/x"), b"") is account_of(parse_url("s3://b-2/y"), b"")


def test_without_a_state_directory_the_home_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert account_of(parse_url("s3://b-1/x"), b"")._path.startswith(f"{tmp_path}/.local/state/metasync/accounts/")


def test_a_user_without_a_home_has_no_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock) -> None:
    """As in a container that runs under a number: `~` stays as it is then, and would be a folder in the workspace."""
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_pace, "_accounts", {})
    one = account_of(parse_url("s3://b-1/x"), b"", clock)
    one.refused(9.0)
    assert one.held_s() == 9.0
    assert list(tmp_path.iterdir()) == []
    assert account_of(parse_url("s3://b-1/x"), b"f" * 16) is not one


# --- the wrapper


class Server(MemoryBackend):
    """Sends away what comes while `refuse` holds answers, and notes when it was asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.refuse: list[float] = []
        self.asked: list[float] = []

    def stat(self, path: str) -> int:
        self.asked.append(self.clock.now)
        if self.refuse:
            raise BackendError("429", retry_after_s=self.refuse.pop(0))
        return 1


def paced(server: Server, folder: Path, **options: Callable[[float], None]) -> Paced:
    clock = server.clock
    return Paced(server, account(folder, clock), **options)


def ask(backend: Paced, times: int) -> None:
    for _ in range(times):
        backend.stat("a")


def test_a_held_account_is_not_asked(tmp_path: Path, clock: Clock) -> None:
    server, told = Server(clock), list[float]()
    backend = paced(server, tmp_path, on_hold=told.append)
    server.refuse = [30.0]
    with pytest.raises(BackendError, match="429"):
        backend.stat("a")
    for _ in range(5):
        clock.sleep(1.0)
        with pytest.raises(HeldBackError, match=r"left alone until \d\d:\d\d:\d\d") as e:
            backend.stat("a")
        assert e.value.retryable
    assert e.value.retry_after_s == pytest.approx(25.0)
    other = paced(server, tmp_path)
    with pytest.raises(HeldBackError):
        other.stat("a")
    assert len(server.asked) == 1
    assert told == [pytest.approx(29.0)], "once of each rest"
    clock.sleep(26.0)
    assert backend.stat("a") == other.stat("a") == 1


def test_the_channel_hears_of_a_refusal_that_is_tried_again_below_it(tmp_path: Path, clock: Clock) -> None:
    """Else what is in flight would grow for as long as second attempts go through."""

    class Flight:
        told: ClassVar[list[float]] = []
        is_urgent = False

        def refused(self, after_s: float) -> None:
            self.told.append(after_s)

    server = Server(clock)
    backend = Retrying(paced(server, tmp_path), clock=clock, sleep=clock.sleep)
    server.refuse = [0.5]
    token = CARRIED.set(Flight())
    try:
        assert backend.stat("a") == 1
    finally:
        CARRIED.reset(token)
    assert Flight.told == [0.5]


def test_what_another_process_was_told_counts_within_a_second(tmp_path: Path, clock: Clock) -> None:
    server = Server(clock)
    backend = paced(server, tmp_path)
    backend.stat("a")
    account(tmp_path, clock).refused(50.0)
    clock.sleep(LOOK_S)
    with pytest.raises(HeldBackError):
        backend.stat("a")
    assert len(server.asked) == 1


# --- creates: throttled, lost, taken


class Taken(MemoryBackend):
    """What happens to each create, in turn: `refused`, `lost` (it takes effect), `gone` (it does not), `other` (another
    takes the name first), or nothing.
    """

    def __init__(self, *fates: str) -> None:
        super().__init__()
        self.fates = list(fates)
        self.gets = 0

    def create(self, path: str, data: bytes) -> bool:
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "refused":
            raise BackendError("429", retry_after_s=0.1)
        if fate == "gone":
            raise UnreachableError("no answer")
        if fate == "other":
            super().create(path, b"another's")
        created = super().create(path, data)
        if fate == "lost":
            raise UnreachableError("no answer")
        return created

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self.gets += 1
        return super().get(path, offset=offset, length=length, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("fates", "created", "gets"),
    [
        (["refused", ""], True, 0),
        (["refused", "refused", ""], True, 0),
        (["refused", "other"], False, 1),
        (["lost", ""], True, 1),
        (["lost", "refused", ""], True, 1),
        (["refused", "lost", "refused", ""], True, 1),
        (["gone", "other"], False, 1),
        (["gone", "refused", "other"], False, 1),
        (["gone", "refused", ""], True, 0),
        (["other"], False, 0),
    ],
)
def test_a_conflict_is_told_from_throttling_and_from_ones_own(
    tmp_path: Path, clock: Clock, fates: list[str], created: bool, gets: int
) -> None:
    store = Taken(*fates)
    pace = Paced(store, account(tmp_path, clock))
    backend = Retrying(pace, attempts_max=5, deadline_s=60.0, clock=clock, sleep=clock.sleep)
    assert backend.create("d/x", b"mine") is created
    assert store.gets == gets
    assert not store.fates
    assert store.get("d/x", max_bytes=99) == (b"mine" if created else b"another's")


def test_a_create_that_was_never_sent_is_not_read_back(tmp_path: Path, clock: Clock) -> None:
    store = Taken("other")
    account(tmp_path, clock).refused(1.0)
    pace = Paced(store, account(tmp_path, clock))
    assert (
        Retrying(pace, attempts_max=5, deadline_s=60.0, clock=clock, sleep=clock.sleep).create("d/x", b"another's")
        is False
    )
    assert store.gets == 0


def test_what_is_held_is_never_more_than_the_most_by_a_rounding(tmp_path: Path) -> None:
    """(now + h) - now may be a last bit more than h: 3600.0000000000005 was told where 3600 is the most."""
    clock = Clock()
    for step in range(1, 2000):
        clock.sleep(step / 7)
        a = account(tmp_path / str(step), clock)
        a.refused(HOLD_MOST_S)
        assert a.held_s() <= HOLD_MOST_S
