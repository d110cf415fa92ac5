"""Many workspaces in one process: one that fails takes no other along, and all that is registered is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_kit import HUNG_S, FakeKeeper, Fleet, fleet, wait_for
from workspace_kit import Lab, write

from metasync import __version__
from metasync.errors import UsageError, WorkspaceError
from metasync.events import Event, Notice, Travelled
from metasync.local.settings import Settings
from metasync.reports.service import Activity, Doing, WorkspaceState
from metasync.service import desk, supervisor
from metasync.service.desk import Call
from metasync.service.keeper import Keeper
from metasync.service.registry import Registry
from metasync.service.supervisor import Keeping
from metasync.service.wire import protocol


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(supervisor, "RETRY_S", (0.01, 0.04))
    monkeypatch.setattr(supervisor, "SETTINGS_S", 0.01)
    with fleet(tmp_path) as one:
        yield one


def do(made: Fleet, what: str, **args: Any) -> Any:
    request = protocol.read_request(protocol.request(1, what, args)[:-1])
    return made.desk.do(request, Call())


def test_what_is_registered_is_kept_after_a_restart(made: Fleet, tmp_path: Path) -> None:
    made.keep("docs")
    made.keep("photos")
    with fleet(tmp_path) as after:
        after.supervisor.start()
        assert after.keeper("docs").directory == tmp_path / "docs"
        assert after.keeper("photos").is_started
        after.supervisor.remove(tmp_path / "docs" / "below")
    assert Registry(tmp_path / "state").directories() == (tmp_path / "photos",)


def test_a_keeper_that_cannot_be_made_is_told_and_tried_again_and_others_go_on(made: Fleet) -> None:
    told: list[WorkspaceState | None] = []
    made.supervisor.subscribe(lambda _, state: told.append(state))
    made.fails["docs"] = [WorkspaceError("the drive is away", next_step="Mount it."), ZeroDivisionError("oh")]
    made.supervisor.add(made.folder("docs"))
    made.keep("photos").become("pushing")
    assert made.keeper("docs").is_started
    stuck = [s for s in told if s is not None and s.doing == "stuck"]
    assert stuck[0].problems[0].text == "the drive is away"
    assert "ZeroDivisionError" in stuck[1].problems[0].text
    assert all(s.problems[0].blocks and s.problems[0].key == "start" for s in stuck)
    assert made.made.count("docs") == 3


def test_the_pauses_between_tries_grow_and_end_somewhere(made: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S", (2.0, 300.0))
    pauses: list[float] = []
    enough = threading.Event()

    def wait(kept: supervisor.Kept, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            kept._ends = True
            enough.set()

    monkeypatch.setattr(supervisor.Kept, "_wait", wait)
    made.fails["docs"] = [WorkspaceError("away")] * 20
    made.supervisor.add(made.folder("docs"))
    assert enough.wait(HUNG_S)
    assert len(pauses) == 12
    for n, pause in enumerate(pauses):
        whole = min(2.0 * 2**n, 300.0)
        assert whole / 2 <= pause <= whole


def test_a_request_for_one_that_cannot_be_opened_says_why(made: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S", (60.0, 60.0))
    made.fails["docs"] = [WorkspaceError("the drive is away", next_step="Mount it.")]
    made.supervisor.add(made.folder("docs"))
    wait_for(lambda: made.supervisor.state().workspaces[0].doing == "stuck")
    with pytest.raises(protocol.UnservedError, match="the drive is away") as e:
        do(made, "sync_now", directory=str(made.root / "docs"))
    assert e.value.next_step == "Mount it."


def test_a_folder_that_is_not_kept_and_one_that_is_no_workspace_are_refused(made: Fleet) -> None:
    with pytest.raises(UsageError, match="does not keep"):
        do(made, "sync_now", directory=str(made.root))
    (made.root / "plain").mkdir()
    with pytest.raises(WorkspaceError):
        do(made, "add", directory=str(made.root / "plain"))
    assert made.registry.directories() == ()


def test_the_requests_reach_the_keeper(made: Fleet) -> None:
    keeper = made.keep("docs")
    here = str(made.root / "docs" / "sub")
    do(made, "sync_now", directory=here)
    do(made, "answer", directory=here, key="guard:push", allow=True)
    assert do(made, "pause", seconds=60.0).workspaces[0].doing == "paused"
    assert do(made, "resume", directory=here).workspaces[0].doing == "in step"
    assert do(made, "metrics") == {"text": "metasync_up 1\n"}
    assert keeper.asked[:2] == ["sync_now", ("answer", "guard:push", True)]
    assert keeper.asked[2][0] == "pause"
    assert keeper.asked[3] == "resume"
    with pytest.raises(UsageError):
        do(made, "pause", seconds=-1.0)
    assert not made.stopped.is_set()
    do(made, "stop")
    assert made.stopped.is_set()


def test_a_keeper_that_hangs_does_not_hold_up_the_end(made: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.05)
    hung = made.keep("docs")
    other = made.keep("photos")
    hung.hangs_in_stop = threading.Event()
    assert not made.supervisor.stop()
    wait_for(lambda: other.is_stopped)
    hung.hangs_in_stop.set()
    assert made.supervisor.kept(made.root / "docs").join(HUNG_S)


def set_to(made: Fleet, name: str, values: dict[str, str]) -> None:
    path = made.root / name / ".metasync" / "settings.json"
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"settings": values, "pause": None}))
    beside.replace(path)


def test_settings_of_its_own_make_another_keeper_and_others_do_not(
    made: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "OWN_KEYS", ("nice",))
    first = made.keep("docs")
    kept = made.supervisor.kept(made.root / "docs")
    set_to(made, "docs", {"cache-mb": "512"})
    wait_for(lambda: kept._stamp, "a look at the settings")
    assert made.keeper("docs") is first
    set_to(made, "docs", {"nice": "5"})
    wait_for(lambda: made.keepers["docs"] is not first, "another keeper")
    assert first.is_stopped
    assert made.keeper("docs").settings.values == {"nice": "5"}
    (made.root / "docs" / ".metasync").rename(made.root / "away")  # as when a drive is unmounted
    second = made.keepers["docs"]
    stamp = kept._stamp
    assert not kept._has_other_settings()
    assert kept._stamp == stamp
    assert made.keepers["docs"] is second


class Lacking:
    """Goes along with a keeper, and cannot."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended = 0

    def begin(self, keeper: Keeping, settings: Settings) -> None:
        raise WorkspaceError("pika is not installed", next_step="pip install metasync[amqp]")

    def hear(self, state: WorkspaceState) -> None:
        self.heard.append(state.doing)

    def end(self) -> None:
        self.ended += 1


def test_what_cannot_go_along_is_a_problem_and_the_folder_is_kept_all_the_same(tmp_path: Path) -> None:
    beside = Lacking()
    with fleet(tmp_path, lambda _: [beside]) as made:
        keeper = made.keep("docs")
        (state,) = made.supervisor.state().workspaces
        assert [(p.text, p.blocks) for p in state.problems] == [("pika is not installed", False)]
        keeper.become("pushing")
        assert beside.heard[-1] == "pushing"
        made.supervisor.remove(made.root / "docs")
        wait_for(lambda: beside.ended)


# --- the registry


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": 2, "workspaces": []}', b'{"format": 1, "workspaces": ["docs"]}',
     b'{"format": 1, "workspaces": 7}', b"[" * 100_000, b'{"format": 1, "workspaces": ["/a\\u0000"]}'],
)  # fmt: skip
def test_a_damaged_registry_is_told_and_never_taken_for_an_empty_one(tmp_path: Path, data: bytes) -> None:
    registry = Registry(tmp_path)
    registry.path.write_bytes(data)
    with pytest.raises(WorkspaceError, match="damaged"):
        registry.directories()
    with pytest.raises(WorkspaceError, match="damaged"):
        registry.add(tmp_path)
    assert registry.path.read_bytes() == data


def test_the_registry_keeps_what_is_added_once_and_in_order(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "a")
    assert registry.add(Path("/b"))
    assert registry.add(Path("/a"))
    assert not registry.add(Path("/b"))
    assert Registry(tmp_path / "a").directories() == (Path("/b"), Path("/a"))
    assert registry.path.stat().st_mode & 0o777 == 0o600
    assert registry.remove(Path("/b"))
    assert not registry.remove(Path("/b"))


def test_there_is_an_end_to_the_workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.service.registry.WORKSPACES_MAX", 2)
    registry = Registry(tmp_path)
    registry.add(Path("/a"))
    registry.add(Path("/b"))
    with pytest.raises(UsageError):
        registry.add(Path("/c"))


def test_folders_of_one_workspace_hear_of_each_other_and_others_do_not(made: Fleet) -> None:
    keepers = {name: made.keep(name) for name in ("laptop", "desktop", "photos", "starting")}
    for name, workspace_id in (("laptop", b"docs"), ("desktop", b"docs"), ("photos", b"photos")):
        keepers[name].workspace_id = workspace_id
    keepers["laptop"].published()
    assert {name: keeper.asked for name, keeper in keepers.items()} == {
        "laptop": [], "desktop": ["hint"], "photos": [], "starting": [],
    }  # fmt: skip
    keepers["starting"].published()
    assert keepers["desktop"].asked == ["hint"], "it is not known yet whose it is"
    made.supervisor.remove(made.root / "desktop")
    keepers["laptop"].published()
    assert keepers["desktop"].asked == ["hint"]


def test_a_broker_is_told_too(tmp_path: Path) -> None:
    published: list[str] = []

    class Told:
        def begin(self, keeper: Keeping, settings: Settings) -> None:
            keeper.published = lambda: published.append("to the broker")

        def hear(self, state: WorkspaceState) -> None: ...
        def end(self) -> None: ...

    with fleet(tmp_path, lambda _: [Told()]) as made:
        one, other = made.keep("laptop"), made.keep("desktop")
        one.workspace_id = other.workspace_id = b"docs"
        one.published()
    assert (published, other.asked) == (["to the broker"], ["hint"])


def test_what_one_real_keeper_pushes_is_in_the_other_folder_at_once(lab: Lab, tmp_path: Path) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")  # which nothing watches
    laptop, desktop = lab.init(urls), lab.clone(urls)
    for one in (laptop, desktop):
        one.configure("daemon.ask", "1h")
        one.configure("daemon.quiet", "1s")
        one.close()

    def make(directory: Path, settings: Settings, tell: Callable[[WorkspaceState], None]) -> Keeping:
        return Keeper(directory, settings=settings, tell=tell)

    supervised = supervisor.Supervisor(Registry(tmp_path / "state"), make, lambda _: ())
    try:
        for one in (laptop, desktop):
            supervised.add(one.directory)
        wait_for(lambda: {kept.state().doing for kept in supervised.all()} == {"in step"}, "that both are in step")
        write(laptop.directory, {"new": b"new"})
        supervised.kept(laptop.directory).keeper.call(lambda w: w.push())
        wait_for((desktop.directory / "new").exists, "the file on the other device")
    finally:
        supervised.stop()


# --- who waits


class Busy(FakeKeeper):
    """A keeper that is at something until the caller was told so."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told = threading.Event()

    def call(self, do: Callable[[Any], Any]) -> Any:
        assert self.told.wait(HUNG_S)
        return super().call(do)


@pytest.mark.parametrize(
    ("doing", "phase", "text"),
    [
        ("pushing", "upload", "waiting for the daemon, which is pushing (upload)"),
        ("looking", None, "waiting for the daemon, which is looking"),
        ("in step", "scan", "waiting for the daemon"),
    ],
)
def test_a_caller_that_waits_is_told_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doing: Doing, phase: str | None, text: str
) -> None:
    monkeypatch.setattr(desk, "SAY_S", 0.0)
    with fleet(tmp_path, kind=Busy) as made:
        keeper = made.keep("docs")
        assert isinstance(keeper, Busy)
        keeper.now = replace(keeper.now, doing=doing, activity=Activity(phase) if phase else None)
        keeper.workspace = SimpleNamespace(on_event=lambda _: None, pull=lambda **_: "pulled", travelled=Travelled())
        told: list[Event] = []

        def hear(event: Event) -> None:
            told.append(event)
            keeper.told.set()

        words = {"directory": str(made.root / "docs"), "version": __version__, "dry_run": False, "force": False}
        request = protocol.read_request(protocol.request(1, "pull", words)[:-1])
        assert made.desk.do(request, Call(hear)) == "pulled"
        assert told == [Notice(text)]


def test_a_call_that_has_begun_or_was_given_up_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, _seconds: float, say: Callable[[], None]) -> None:
            said.append(say)

        def start(self) -> None: ...
        def cancel(self) -> None: ...

    monkeypatch.setattr(threading, "Timer", Timer)
    told: list[Event] = []
    begun, ended, waits = Call(told.append), Call(told.append), Call(told.append)
    workspace: Any = SimpleNamespace(on_event=lambda _: None, cancel=lambda: None, travelled=Travelled())
    with begun.waiting(lambda: "begun"), ended.waiting(lambda: "ended"), waits.waiting(lambda: "waits"):
        begun.run(lambda _w, _tell: None, workspace)
        ended.cancel()
        for say in said:
            say()
    assert told == [Notice("waits")]
