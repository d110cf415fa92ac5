"""Workspaces on accounts that ask for fewer requests: how long a command waits, what it asks meanwhile and says."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import limited_kit
import pytest
from workspace_kit import Lab, run_process, write

from metasync import Workspace
from metasync.backends import registry
from metasync.backends.wrappers import pace
from metasync.errors import HeldBackError
from metasync.runtime import channel
from metasync.runtime.effects import Op, Reply, Task, Urgency
from metasync.runtime.tasks import Runtime

NAMES = ("a", "b", "c")
UNDER_WAY = 12  # calls on one backend that may have begun before the first of them was sent away


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of this test's own, and the scheme `limited` in this process and those it starts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(registry._BUILT_IN, "limited", "limited_kit:LimitedBackend")
    monkeypatch.setenv("PYTHONPATH", limited_kit.install(tmp_path / "site"))
    begin_anew(monkeypatch)
    return tmp_path / "state"


def begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process knows of accounts is what their files say, as if it had just begun."""
    monkeypatch.setattr(pace, "_accounts", {})


def notes(state: Path) -> list[Path]:
    return sorted((state / "metasync" / "accounts").glob("*"))


class Stores:
    """The three stores of a workspace, each an account of its own."""

    def __init__(self, lab: Lab) -> None:
        self.root = lab.root / "stores"
        self.urls = [f"limited://{n}@server{self.root}/{n}?name={n}" for n in NAMES]

    def rule(self, *names: str, **fields: float | None) -> None:
        for name in names:
            limited_kit.rule(self.root / name, **fields)

    def made(self, name: str) -> list[limited_kit.Made]:
        return limited_kit.calls(self.root / name)

    def forget(self) -> None:
        for name in NAMES:
            limited_kit.forget(self.root / name)


@pytest.fixture
def stores(lab: Lab) -> Stores:
    """A workspace `laptop` on them, with one version."""
    made = Stores(lab)
    w = lab.init(made.urls)
    write(w.directory, {"first": b"1"})
    w.push()
    w.close()
    made.forget()
    return made


def test_where_nothing_is_limited_no_file_is_written(lab: Lab, stores: Stores, state: Path) -> None:
    write(lab.root / "laptop", {"second": b"2"})
    assert run_process("push", cwd=lab.root / "laptop").code == 0
    assert not state.exists()
    assert {c.status for n in NAMES for c in stores.made(n)} == {200}


@pytest.mark.long
def test_the_next_commands_leave_a_held_backend_alone(
    lab: Lab, stores: Stores, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    until = time.time() + 300  # longer than these commands take on a busy machine
    stores.rule("b", until=until)
    write(lab.root / "laptop", {"second": b"2"})
    first = run_process("push", cwd=lab.root / "laptop")
    assert first.code == 0, first.err
    assert "b asked for fewer requests: it is left alone for" in first.err
    refused = stores.made("b")
    assert 1 <= len(refused) <= UNDER_WAY
    assert {c.status for c in refused} == {429}
    assert len(notes(state)) == 1
    stores.forget()
    write(lab.root / "laptop", {"third": b"3"})
    for words in (["push"], ["pull"], ["status"], ["check"]):
        ran = run_process(*words, cwd=lab.root / "laptop")
        assert ran.code == (4 if words == ["check"] else 0), ran.err
        if words == ["status"]:
            at = time.strftime("%H:%M:", time.localtime(until))
            assert f"held back: it asked for fewer requests, and is left alone until {at}" in ran.out, ran.out
    assert stores.made("b") == [], "not one request of four commands"
    assert stores.made("a")
    stores.rule("b")
    for path in notes(state):  # as if that time were over
        path.unlink()
    assert run_process("push", cwd=lab.root / "laptop").code == 0
    assert stores.made("b")
    assert {c.status for c in stores.made("b")} == {200}
    begin_anew(monkeypatch)
    assert (lab.clone(stores.urls, device="desktop").directory / "third").read_bytes() == b"3"


@pytest.mark.long
def test_two_processes_at_once_share_what_one_was_told(lab: Lab, stores: Stores) -> None:
    lab.clone(stores.urls, device="desktop").close()
    stores.forget()
    stores.rule("b", until=time.time() + 300)
    for device in ("laptop", "desktop"):
        write(lab.root / device, {f"of {device}": device.encode()})
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "metasync", "sync"], cwd=lab.root / device, stderr=subprocess.PIPE, text=True
        )
        for device in ("laptop", "desktop")
    ]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    asked = stores.made("b")
    assert {c.status for c in asked} == {429}
    assert len(asked) <= 2 * UNDER_WAY


def test_when_all_are_limited_a_push_waits_as_they_say(lab: Lab, stores: Stores) -> None:
    write(lab.root / "laptop", {"second": b"2"})
    stores.rule(*NAMES, first_s=4.0)
    ran = run_process("push", cwd=lab.root / "laptop")
    assert ran.code == 0, ran.err
    assert "left alone for" in ran.err
    for name in NAMES:
        until = stores.made(name)[0].at + 4.0
        early = [c for c in stores.made(name) if c.at < until]
        assert len(early) <= UNDER_WAY, "it waits, and does not ask"
        assert {c.status for c in stores.made(name) if c.at >= until} == {200}


def test_when_all_are_limited_for_long_a_push_ends_and_says_so(
    lab: Lab, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    write(lab.root / "laptop", {"second": b"2"})
    stores.rule(*NAMES, until=time.time() + 300)
    lab.hurry(2.0, proposing=True)
    ran = lab.cli("push")
    assert ran.code == 5
    assert "a: it asked for fewer requests, and is left alone until" in ran.err
    assert sum(len(stores.made(n)) for n in NAMES) <= 3 * UNDER_WAY
    stores.forget()
    assert lab.cli("push").code == 5
    assert sum(len(stores.made(n)) for n in NAMES) == 0
    stores.rule(*NAMES)
    begin_anew(monkeypatch)
    for path in notes(Path(f"{lab.root}/state")):
        path.unlink()
    assert lab.cli("push").code == 0


def test_a_rate_is_found_and_kept(lab: Lab, stores: Stores) -> None:
    """A server that answers 15 requests a second: after the first refusals a process keeps to what it bears."""
    stores.rule("b", per_s=15)
    with Workspace.open(lab.root / "laptop") as w:
        for n in range(7):
            write(w.directory, {f"file {n}": b"%d" % n})
            assert w.push().version == n + 2
    asked = stores.made("b")
    refused = [c for c in asked if c.status == 429]
    assert len(asked) > 30
    assert len(refused) <= len(asked) / 4, f"{len(refused)} of {len(asked)}"


# --- calls on one backend


def one(op: Op) -> Task:
    return (yield op)


class Held:
    """A backend whose calls are kept off until a time."""

    def __init__(self, seconds: float, *, served: bool) -> None:
        self.until = time.monotonic() + seconds
        self.served = served  # whether it answers small calls all the same
        self.asked = 0

    def put(self, path: str, data: bytes) -> None:
        self.asked += 1
        left_s = self.until - time.monotonic()
        if left_s > 0 and not (self.served and path == "small"):
            raise HeldBackError("left alone", retry_after_s=left_s)

    create = get = stat = list = delete = put  # type: ignore[assignment]


def put(path: str, urgency: Urgency = Urgency.SOON) -> Task:
    return one(Op("m", "put", path, b"x" * 300_000, urgency=urgency, timeout_s=60))


def test_calls_that_were_not_made_wait_and_count_for_nothing() -> None:
    held = Held(0.6, served=True)
    with Runtime({"m": held}) as runtime:  # type: ignore[dict-item]
        assert runtime.run(put("small", Urgency.NOW)).error is None
        futures = [runtime.start(put(str(n))) for n in range(20)]
        assert [f.result(60).error for f in futures] == [None] * 20
        assert runtime._channels["m"]._concurrency.size == 8, "no server asked for fewer at once"
    assert time.monotonic() >= held.until
    assert held.asked < 60


def test_a_backend_held_before_a_command_began_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LEFT_OUT_S", 0.3)
    monkeypatch.setattr(channel, "HOLD_MAX_S", 2.0)
    held = Held(60.0, served=True)
    with Runtime({"m": held}) as runtime:  # type: ignore[dict-item]
        reply: Reply = runtime.run(put("pack"))
        assert isinstance(reply.error, HeldBackError)
        assert not reply.error.retryable, "others stand in for it at once"
        assert held.asked == 1
        held.until = time.monotonic() + 1.0
        assert runtime.run(put("small", Urgency.NOW)).error is None
        assert runtime.run(put("pack")).error is None, "it served us: it is worth a wait"
    held = Held(60.0, served=True)
    with Runtime({"m": held}) as runtime:  # type: ignore[dict-item]
        assert runtime.run(put("small", Urgency.NOW)).error is None
        assert isinstance(runtime.run(put("pack")).error, HeldBackError), "but not for ever"


def test_an_urgent_call_is_told_at_once() -> None:
    held = Held(3.0, served=False)
    with Runtime({"m": held}) as runtime:  # type: ignore[dict-item]
        reply: Reply = runtime.run(put("vote", Urgency.NOW))
        assert isinstance(reply.error, HeldBackError)
        assert held.asked == 1
