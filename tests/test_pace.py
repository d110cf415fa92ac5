"""Accounts that ask for fewer requests are left alone, in all processes of a user, and no longer than they ask."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import parse_url
from metasync.backends.wrappers import pace as _pace
from metasync.backends.wrappers.pace import LOOK_S, Account, Paced, account_of
from metasync.backends.wrappers.pace_rate import FORGET_S, HOLD_MOST_S, RATE_LEAST, Allowance, Noted
from metasync.backends.wrappers.retry import Retrying
from metasync.errors import BackendError, HeldBackError, UnreachableError
from metasync.runtime.effects import DUE


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


def test_nothing_is_limited_before_a_refusal() -> None:
    a = Allowance()
    assert [a.turn_s(n / 1000, small=False, most_s=0.0) for n in range(5000)] == [0.0] * 5000
    assert a.held_s(5.0) == 0.0


def test_a_refusal_holds_for_as_long_as_the_server_asks_and_not_for_ever() -> None:
    a = Allowance()
    a.refused(10.0, 9.9, 7.0, 1.0)
    assert (a.held_s(10.0), a.held_s(16.5), a.held_s(17.0)) == (7.0, 0.5, 0.0)
    a.refused(20.0, 20.0, 86_400.0, 1.0)
    assert a.held_s(20.0) == HOLD_MOST_S
    a.refused(21.0, 21.0, 1.0, 1.0)
    assert a.held_s(21.0) == HOLD_MOST_S - 1, "a shorter rest does not end a longer one"


def test_calls_that_were_refused_together_halve_the_rate_once() -> None:
    a = Allowance()
    for n in range(8):
        a.refused(1.0 + n / 100, 0.9, 1.0, 40.0)
    assert a.rate == 20.0
    a.answered()
    a.refused(3.0, 2.5, 1.0, 40.0)
    assert a.rate == 10.0


def test_a_server_that_answers_none_is_asked_as_before_once_it_does() -> None:
    """As one in maintenance: however often it refused, the next calls do not crawl."""
    a, now = Allowance(), 1.0
    for _ in range(20):
        now += 2.0
        a.refused(now, now, 1.0, 40.0)
    assert a.rate == 20.0
    assert a.held_s(now) == 1.0


def test_the_rate_is_kept_and_grows_back() -> None:
    a, now = Allowance(), 1.0
    a.refused(now, now, 1.0, 64.0)
    assert a.rate == 32.0
    now += 1.0
    starts = []
    for _ in range(400):
        now += a.turn_s(now, small=False, most_s=60.0)
        starts.append(now)
    for n, start in enumerate(starts):
        lately = [s for s in starts if start - 1.0 < s <= start]
        assert len(lately) <= 32 + 4 * (n + 400) / 32, "the rate, its steps, and what an idle second saves up"
    assert a.rate is not None
    assert 56.0 < a.rate < 128.0, "a sixteenth of 64 in each of about 8 seconds"


def test_a_rate_that_limits_nothing_is_forgotten() -> None:
    a, now = Allowance(), 100.0
    a.refused(now, now, 0.0, 1.0)
    for _ in range(2000):
        now += max(0.05, a.turn_s(now, small=True, most_s=60.0))
    assert a.rate is None
    a.refused(now, now, 0.0, 1.0)
    assert a.rate is not None
    assert a.turn_s(now + FORGET_S + 2, small=True, most_s=0.0) == 0.0
    assert a.rate is None


def test_idle_time_does_not_raise_the_rate() -> None:
    a = Allowance()
    a.refused(0.0, 0.0, 0.0, 64.0)
    for now in (100.0, 200.0, 300.0):
        a.turn_s(now, small=False, most_s=60.0)
    assert a.rate == 32.0 + 3 * 4.0, "a step for each second in which something was asked"


def test_small_calls_do_not_wait_behind_large_ones() -> None:
    a = Allowance()
    a.refused(0.0, 0.0, 0.0, 1.0)
    large = [a.turn_s(0.0, small=False, most_s=60.0) for _ in range(81)]
    assert large[-1] == pytest.approx(10.0)
    assert a.turn_s(0.0, small=True, most_s=60.0) == 0.0
    assert a.turn_s(0.0, small=True, most_s=60.0) == pytest.approx(0.5)


def test_a_turn_that_comes_too_late_is_not_taken() -> None:
    a = Allowance()
    a.refused(0.0, 0.0, 0.0, 1.0)
    waits = [a.turn_s(0.0, small=False, most_s=1.0) for _ in range(50)]
    assert sum(w <= 1.0 for w in waits) == 9
    assert waits[-1] == waits[10], "who gave up is not waited for"


@given(
    st.lists(
        st.tuples(
            st.floats(0, 50), st.sampled_from(["turn", "small", "refused", "learn"]), st.floats(0, 4000), st.booleans()
        ),
        max_size=60,
    )
)
def test_whatever_happens_it_is_asked_again(events: list[tuple[float, str, float, bool]]) -> None:
    a, now = Allowance(), 0.0
    for after, what, number, recent in events:
        now += after
        if what == "refused":
            a.refused(now, now if recent else now - 5, number, number / 2)
        elif what == "learn":
            a.learn(now, Noted(number, number if recent else None, number))
        else:
            a.turn_s(now, small=what == "small", most_s=number)
        assert 0 <= a.held_s(now) <= HOLD_MOST_S
        assert a.rate is None or a.rate >= RATE_LEAST
    now += HOLD_MOST_S
    assert a.held_s(now) == 0.0
    assert a.turn_s(now, small=True, most_s=1e9) <= len(events) / (RATE_LEAST * 0.25) + 1


# --- what is remembered


def account(folder: Path, clock: Clock) -> Account:
    """As another process sees it."""
    return Account(str(folder / "a.json"), clock=clock, wall=clock.wall)


def test_another_process_knows_and_forgets(tmp_path: Path, clock: Clock) -> None:
    one, other = account(tmp_path / "deep" / "down", clock), account(tmp_path / "deep" / "down", clock)
    assert other.held_s() == 0.0
    one.refused(clock(), 20.0)
    clock.sleep(5.0)
    assert other.held_s() == pytest.approx(15.0)
    assert account(tmp_path / "deep" / "down", clock).held_s() == pytest.approx(15.0)
    clock.sleep(15.5)
    assert other.held_s() == 0.0
    held_s, wait_s = account(tmp_path / "deep" / "down", clock).begin(small=True, most_s=60.0)
    assert (held_s, wait_s) == (0.0, 0.0)
    clock.sleep(FORGET_S + 1)
    assert account(tmp_path / "deep" / "down", clock).held_s() == 0.0
    assert not list((tmp_path / "deep" / "down").iterdir()), "what has run out is removed"


def test_a_rate_is_shared(tmp_path: Path, clock: Clock) -> None:
    one = account(tmp_path, clock)
    for _ in range(100):
        one.begin(small=True, most_s=0.0)
    one.refused(clock(), 0.5)
    clock.sleep(1.0)
    other = account(tmp_path, clock)
    waits = [other.begin(small=False, most_s=60.0)[1] for _ in range(101)]
    assert waits[-1] == pytest.approx(2.0), "a hundred at fifty a second, with nothing saved up"


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
    assert account(tmp_path, clock).begin(small=True, most_s=1.0) == (0.0, 0.0)


def test_a_clock_that_was_turned_costs_little(tmp_path: Path, clock: Clock) -> None:
    one = account(tmp_path, clock)
    one.refused(clock(), 60.0)
    clock.turned = -86_400.0
    assert account(tmp_path, clock).held_s() == 0.0, "said tomorrow: by a clock that was wrong, then or now"
    assert one.held_s() == 60.0, "who heard it goes by another clock"
    clock.turned = 0.0
    one.refused(clock(), 60.0)
    clock.turned = 86_400.0
    assert account(tmp_path, clock).held_s() == 0.0


@pytest.mark.parametrize(("hold_s", "kept_s"), [(HOLD_MOST_S, HOLD_MOST_S), (HOLD_MOST_S + 60, 0.0), (1e9, 0.0)])
def test_a_note_that_nobody_of_ours_writes_holds_nothing(
    tmp_path: Path, clock: Clock, hold_s: float, kept_s: float
) -> None:
    """Else every process would keep off the account for another hour, until somebody finds the file."""
    (tmp_path / "a.json").write_text(
        json.dumps({"format": 1, "at": clock.wall(), "until": clock.wall() + hold_s, "rate": None, "refused": 0})
    )
    assert account(tmp_path, clock).held_s() == kept_s


def test_a_shorter_rest_that_another_process_is_told_does_not_end_a_longer_one(tmp_path: Path, clock: Clock) -> None:
    one, other = account(tmp_path, clock), account(tmp_path, clock)
    assert other.begin(small=True, most_s=1.0) == (0.0, 0.0)  # it has looked a moment ago
    one.refused(clock(), 600.0)
    other.refused(clock(), 1.0)
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
        account(tmp_path / "other", clock).refused(clock(), 60.0)  # a note, but whose?
        (tmp_path / "elsewhere").write_bytes((tmp_path / "other/a.json").read_bytes())
        (folder / "a.json").symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        (folder / "a.json").mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / "a.json")
    elif kind == "read-only":
        folder.chmod(0o555)
    one = account(folder, clock)
    assert one.begin(small=True, most_s=1.0) == (0.0, 0.0)
    one.refused(clock(), 9.0)
    assert one.held_s() == 9.0
    one.close()
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == (tmp_path / "other/a.json").read_bytes()
    folder.chmod(0o755)


def test_writers_at_once_leave_a_whole_note(tmp_path: Path, clock: Clock) -> None:
    def refuse(seed: int) -> None:
        one, rng = account(tmp_path, clock), random.Random(seed)
        for _ in range(50):
            one.refused(clock(), rng.uniform(1, 1000))

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
    one.refused(clock(), 9.0)
    assert one.held_s() == 9.0
    one.close()
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
    return Paced(server, account(folder, clock), sleep=clock.sleep, **options)


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


def test_the_wait_for_a_turn_ends_with_the_patience_of_who_asked(tmp_path: Path, clock: Clock) -> None:
    server = Server(clock)
    backend = paced(server, tmp_path)
    server.refuse = [0.0]
    with pytest.raises(BackendError):
        backend.stat("a")
    token = DUE.set(clock() + 3.0)
    try:
        began = clock()
        for _ in range(25):
            backend.stat("a")
        assert clock() > began + 1.0, "at about eight a second, and a line of its own for small calls"
        DUE.set(clock() + 0.1)
        with pytest.raises(HeldBackError, match="others are before"):
            ask(backend, 9)
        DUE.set(clock() - 1.0)
        clock.sleep(5.0)
        assert backend.stat("a") == 1, "a turn that is free is nobody's to refuse"
    finally:
        DUE.reset(token)


def test_who_slept_for_a_turn_looks_again(tmp_path: Path, clock: Clock) -> None:
    server = Server(clock)
    backend = paced(server, tmp_path)
    server.refuse = [0.0]
    with pytest.raises(BackendError):
        backend.stat("a")

    asked = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        asked.append(len(server.asked))
        backend._account.refused(clock(), 50.0)  # another call was sent away meanwhile

    backend._sleep = sleep
    with pytest.raises(HeldBackError, match="left alone until"):
        ask(backend, 9)
    assert asked == [len(server.asked)], "nothing was asked after that"


def test_what_another_process_was_told_counts_within_a_second(tmp_path: Path, clock: Clock) -> None:
    server = Server(clock)
    backend = paced(server, tmp_path)
    backend.stat("a")
    account(tmp_path, clock).refused(clock(), 50.0)
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
    pace = Paced(store, account(tmp_path, clock), sleep=clock.sleep)
    backend = Retrying(pace, clock=clock, sleep=clock.sleep)
    assert backend.create("d/x", b"mine") is created
    assert store.gets == gets
    assert not store.fates
    assert store.get("d/x", max_bytes=99) == (b"mine" if created else b"another's")


def test_a_create_that_was_never_sent_is_not_read_back(tmp_path: Path, clock: Clock) -> None:
    store = Taken("other")
    account(tmp_path, clock).refused(clock(), 1.0)
    pace = Paced(store, account(tmp_path, clock), sleep=clock.sleep)
    assert Retrying(pace, clock=clock, sleep=clock.sleep).create("d/x", b"another's") is False
    assert store.gets == 0
