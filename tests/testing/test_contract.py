"""The conformance kit itself: right backends pass, and each wrong one fails the check that is meant for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import wrong_backends as wrong
from contract_kit import SMALL

from metasync.backends import api
from metasync.backends import names as _names
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend, MemoryStore
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError
from metasync.events import Notice
from metasync.testing import contract, race, verdict
from metasync.testing import peer as peers
from metasync.testing.contract import CHECKS, QUICK, STANDARD, THOROUGH, Outcome, Report, Store, run, try_check
from metasync.testing.faults import FaultyBackend, Plan

VOTING, DATA = "holds data only", "unfit"
BY_NAME = {check.name: check for check in CHECKS}


def store_of(kind: type[wrong.Right]) -> Store:
    shared = wrong.Shared()
    return Store(lambda: kind(shared))


def failed(report: Report) -> set[str]:
    return {outcome.name for outcome in report.checks if outcome.result == "failed"}


WRONG: dict[type[wrong.Right], tuple[str, str, str]] = {
    # create
    wrong.LooksThenWrites: ("race big-race", "", VOTING),
    wrong.LoserOverwrites: ("race big-race", "", VOTING),
    wrong.LastWriterWins: ("create-taken", "big-taken", VOTING),
    wrong.AlwaysWins: ("create-taken", "fresh-create big-taken", VOTING),
    wrong.WinsIfSame: ("create-taken", "", VOTING),
    wrong.TakesEmptyForFree: ("create-taken", "", VOTING),
    wrong.BigTakenWins: ("big-taken", "", VOTING),
    wrong.NobodyWins: ("race big-race", "", VOTING),
    wrong.NameFirst: ("big-race", "race", VOTING),
    wrong.NoNewFolders: ("create", "", DATA),
    # put
    wrong.PutInPlace: ("put-whole", "fresh-put", DATA),
    wrong.PutRemovesFirst: ("put-whole", "fresh-put", DATA),
    wrong.PutKeepsTheEnd: ("put", "", DATA),
    # get and stat
    wrong.Late: ("fresh-create fresh-put", "big-taken race big-race", VOTING),
    wrong.RemembersAbsence: ("fresh-create", "big-race", VOTING),
    wrong.OldAgain: ("fresh-put", "", VOTING),
    wrong.OneTooMany: ("ranges", "big threads big-taken", DATA),
    wrong.RefusesTheEnd: ("ranges", "", DATA),
    wrong.IgnoresMaxBytes: ("bound", "big", DATA),
    wrong.CutsAtMaxBytes: ("bound", "big", DATA),
    wrong.CutsBigObjects: ("big", "big-race", DATA),
    wrong.FlipsBigObjects: ("big", "big-race", DATA),
    wrong.NoEmptyObjects: ("empty", "put create-taken", DATA),
    wrong.AnothersBytes: ("names", "", DATA),
    wrong.EmptyForAbsent: ("absent", "big-race threads", DATA),
    wrong.OwnErrors: ("absent", "big-race threads", DATA),
    wrong.VagueErrors: ("absent", "", DATA),
    wrong.OtherTypes: ("create", " ".join(BY_NAME), DATA),
    wrong.OneBuffer: ("threads", "", DATA),
    # names, lists, delete
    wrong.FoldsCase: ("hostile-names", "", DATA),
    wrong.ClimbsUp: ("hostile-names", "", DATA),
    wrong.CutsNames: ("names", "hostile-names", DATA),
    wrong.ListsOnePage: ("long-list", "", DATA),
    wrong.ListsMissing: ("list", "", DATA),
    wrong.ListsUnsorted: ("list", "", DATA),
    wrong.ListsTemporaries: ("list", "", DATA),
    wrong.ListsAllBelow: ("list", "hostile-names", DATA),
    wrong.ListsWrongSizes: ("list", "", DATA),
    wrong.ListsTheDeleted: ("list", "", DATA),
    wrong.DeleteRaises: ("delete", "", DATA),
    wrong.DeleteKeeps: ("delete", "", DATA),
    wrong.DeletesTheFolder: ("delete-beside", "", DATA),
    # the whole
    wrong.ManyIdentities: ("identity", "", DATA),
    wrong.MoreFreeThanThereIs: ("space", "", DATA),
    wrong.TellsOldDigests: ("digest", "", DATA),
    wrong.TellsDigestsOfTheAbsent: ("digest", "", DATA),
    wrong.InventoryTellsOneFolder: ("inventory", "", DATA),
    wrong.InventoryTellsOldSizes: ("inventory", "", DATA),
    wrong.FeedForgetsWhatIsGone: ("inventory", "", DATA),
    wrong.FeedTakesAnyCursor: ("inventory", "", DATA),
    wrong.WatchMissesDeletes: ("watch", "", DATA),
    wrong.WatchBeginsWithNothing: ("watch", "", DATA),
    wrong.WatchTakesAnyCursor: ("watch", "", DATA),
    wrong.EmptyWhenClosed: ("closed", "", DATA),
    wrong.ClosesAll: ("closed", "big-taken", DATA),
}
"""Each wrong backend in memory: the checks that have to fail, those that may fail besides, and the verdict."""

FOLDERS: dict[type[FolderBackend], tuple[str, str]] = {
    wrong.HalfCreates: ("interrupted-create", "unfit"),
    wrong.LeavesTemporaries: ("interrupted-create", "unfit"),
    wrong.HalfPuts: ("interrupted-put", "unfit"),
    wrong.ArrivesLate: ("lost-reply", "holds data only"),
    wrong.OwnView: ("fresh-create", "holds data only"),
    wrong.NotAcross: ("race", "holds data only"),
}
"""What shows only when a process is killed, or another one looks: the check that has to fail, and what that means."""


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_backend_fails_the_check_that_is_meant_for_it(kind: type[wrong.Right]) -> None:
    report = run(store_of(kind), "scratch", scale=SMALL)
    meant, also, said = WRONG[kind]
    assert set(meant.split()) <= failed(report), report.reasons
    assert failed(report) <= set(meant.split()) | set(also.split()), report.reasons
    assert report.verdict == said, report.reasons
    for name in meant.split():
        assert any(reason.startswith(f"{name}: ") for reason in report.reasons)


def test_a_store_that_can_be_watched() -> None:
    assert try_check(BY_NAME["watch"], store_of(wrong.Watched), "scratch", scale=SMALL).result == "passed"


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.__name__)
def test_what_only_another_process_can_see(kind: type[FolderBackend], tmp_path: Path) -> None:
    meant, said = FOLDERS[kind]
    store = Store(lambda: kind(str(tmp_path)), f"{kind.__name__}:{tmp_path}", opener="wrong_backends:open_wrong")
    outcome = try_check(BY_NAME[meant], store, "scratch", scale=SMALL)
    assert outcome.result == "failed", outcome
    assert verdict.verdict_of([outcome], "log")[0] == said


def test_every_check_is_failed_by_a_backend_that_is_wrong_in_that_way() -> None:
    meant = {name for names, _, _ in WRONG.values() for name in names.split()} | {name for name, _ in FOLDERS.values()}
    assert meant == set(BY_NAME)


# --- what the verdict says


@pytest.mark.parametrize("kind", [wrong.Right, MemoryBackend])
def test_a_right_store_may_vote(kind: type) -> None:
    shared = wrong.Shared()
    store = Store(lambda: wrong.Right(shared)) if kind is wrong.Right else Store(lambda: MemoryBackend(shared.store))
    report = run(store, "scratch", scale=SMALL)
    assert report.verdict == "may vote", report.reasons
    assert (report.reasons, report.left_behind) == ((), 0)
    assert not shared.store.objects
    assert [o.name for o in report.checks] == [check.name for check in CHECKS]
    skipped = {o.name for o in report.checks if o.result == "skipped"}
    assert skipped == {"space", "digest", "watch", "interrupted-create", "interrupted-put", "lost-reply"}
    assert any("one process" in o.why and "this process only" in o.why for o in report.checks if o.name == "race")
    assert any("interrupted-create" in note and "this process only" in note for note in report.notes)
    assert any("quick" in note for note in report.notes), "a quick run says that it was quick"


def test_digests_of_a_store_that_tells_them() -> None:
    outcome = try_check(BY_NAME["digest"], store_of(wrong.TellsDigests), "scratch", scale=SMALL)
    assert outcome.result == "passed", outcome


def test_the_verdict_is_never_more_than_the_backends_own_list_allows() -> None:
    for kind, expected, reason in (
        (wrong.NeverVotes, "holds data only", "a reason of its own"),
        (wrong.NotYet, "may vote", "in block form"),
    ):
        report = run(store_of(kind), "scratch", scale=SMALL)
        assert not failed(report)
        assert report.verdict == expected
        assert report.form != "log"
        assert reason in report.reasons[0]
    report = run(store_of(wrong.Right), "scratch", scale=SMALL, storage_only="nobody asked it to")
    assert (report.verdict, report.reasons) == ("holds data only", ("nobody asked it to",))


def test_a_folder_synced_by_others_holds_data_only_although_it_passes(tmp_path: Path) -> None:
    (tmp_path / ".stfolder").touch()
    (tmp_path / "below").mkdir()
    report = run(Store.at(f"file://{tmp_path}/below"), "scratch", scale=SMALL, checks=CHECKS[:4])
    assert not failed(report)
    assert report.verdict == "holds data only"
    assert f"Syncthing keeps {tmp_path} in step with other places" in report.reasons[0]


def test_no_atomic_create_and_no_vote_is_still_room_for_data() -> None:
    """A service that ignores conditions: no check that is needed for data may lean on them."""

    class Careless(wrong.AlwaysWins):
        form = "none"

        def create(self, path: str, data: bytes) -> bool:
            self.put(path, data)
            return True

    assert run(store_of(Careless), "scratch", scale=SMALL).verdict == "holds data only"


def outcome(name: str, result: verdict.Result) -> Outcome:
    return Outcome.of(BY_NAME[name], result, why="said so")


def test_verdicts() -> None:
    of = verdict.verdict_of
    assert of([], "log") == ("may vote", ())
    assert of([outcome("race", "weak"), outcome("lost-reply", "skipped")], "log") == ("may vote", ())
    assert of([outcome("race", "failed")], "log") == ("holds data only", ("race: said so",))
    assert of([outcome("race", "failed"), outcome("put", "failed")], "log")[0] == "unfit"
    assert of([], "block") == ("may vote", (verdict.BY_BLOCKS,))
    assert of([outcome("race", "failed"), outcome("create-taken", "failed")], "block")[0] == "may vote"
    assert of([outcome("fresh-put", "failed")], "block") == ("holds data only", ("fresh-put: said so",))
    assert of([outcome("put", "failed")], "block")[0] == "unfit"
    assert of([outcome("put", "failed")], "none") == ("unfit", ("put: said so",))
    assert of([outcome("race", "failed")], "none")[1][1] == "race: said so"


def test_checks_name_promises_of_the_contract_word_for_word() -> None:
    said = " ".join(f"{Path(api.__file__).read_text()} {Path(_names.__file__).read_text()}".split())
    for check in CHECKS:
        assert check.proves in said, check.name
        assert set(check.after) <= {c.name for c in CHECKS[: CHECKS.index(check)]}
        assert check.what
    assert len(BY_NAME) == len(CHECKS)


def test_a_check_is_left_out_when_what_it_stands_on_failed() -> None:
    report = run(store_of(wrong.NoNewFolders), "scratch", scale=SMALL)
    by_name = {o.name: o for o in report.checks}
    assert (by_name["create-taken"].result, by_name["create-taken"].why) == ("skipped", "needs create")
    assert (by_name["race"].result, by_name["race"].requests) == ("skipped", 0)


def test_cost() -> None:
    """What docs/howto/check-a-backend.md promises; the checks that kill processes add 50 requests and 30 MB."""
    for scale, requests, megabytes in ((STANDARD, 10_500, 110), (QUICK, 1950, 25)):
        report = run(store_of(wrong.Right), "scratch", scale=scale)
        assert report.requests <= requests
        assert report.up_bytes + report.down_bytes <= megabytes * 10**6
        assert report.requests >= sum(o.requests for o in report.checks) + scale.listed_names
    assert STANDARD.race_names >= 1000
    assert STANDARD.listed_names >= 1200
    assert THOROUGH.race_turns == (8,)


def test_a_store_that_asks_for_patience_while_it_replaces_is_asked_again() -> None:
    """Some answer 503, or break off, to who reads beside a put. That is no torn read."""

    class Busy(wrong.Right):
        answered = 3  # of so many reads of the object by one connection, one is answered
        asked = 0

        def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
            if path.endswith("/torn"):
                self.asked += 1
                if self.asked % self.answered:
                    raise BackendError("try again later", retryable=True)
            return super().get(path, offset=offset, length=length, max_bytes=max_bytes)

    class AlwaysBusy(Busy):
        answered = 1 << 30

    found = try_check(BY_NAME["put-whole"], store_of(Busy), "scratch", scale=SMALL)
    assert found.result == "passed", found
    assert "made again" in found.why
    found = try_check(BY_NAME["put-whole"], store_of(AlwaysBusy), "scratch", scale=SMALL)
    assert found.result == "failed", "a store that never answers proves nothing"


# --- the race


def call(number: int, writer: int, outcome: str, began: int = 0, ended: int = 10, seen: int | None = None) -> race.Call:
    return race.Call(number, writer, began, ended, outcome, seen)


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        ([call(0, 1, "won"), call(0, 5, "won")], "two or more writers"),
        ([call(0, 1, "lost"), call(0, 5, "lost")], "given to nobody"),
        ([call(0, 1, "won", seen=5), call(0, 5, "lost")], "told that it had lost"),
        ([call(0, 1, "won"), call(0, 5, "lost", seen=race.TORN)], "in part"),
        ([call(0, 1, "won"), call(0, 5, "lost", seen=race.ABSENT)], "not found"),
        ([call(0, 1, "unknown"), call(0, 5, "won"), call(0, 6, "won")], "two or more"),
    ],
)
def test_what_a_race_disproves(calls: list[race.Call], problem: str) -> None:
    (said,) = race.judge(calls, 1).problems
    assert said.startswith("1 of 1 names")
    assert problem in said


@pytest.mark.parametrize(
    ("calls", "winners"),
    [
        ([call(0, 1, "won", seen=1), call(0, 5, "lost", seen=1)], {0: 1}),
        ([call(0, 1, "unknown"), call(0, 5, "lost", seen=1)], {}),  # the lost reply of the winner
        ([call(0, 1, "unknown"), call(0, 5, "won")], {0: 5}),
        ([call(0, 1, "unknown"), call(0, 5, "unknown")], {}),
    ],
)
def test_what_a_race_allows(calls: list[race.Call], winners: dict[int, int]) -> None:
    found = race.judge(calls, 1)
    assert found.problems == ()
    assert found.winners == winners


def test_meetings_are_counted() -> None:
    apart = [call(0, 0, "won", 0, 10), call(0, 5, "lost", 10, 20)]
    near = [call(1, 0, "won", 0, 10), call(1, 1, "lost", 9, 20), call(1, 5, "lost", 30, 40)]
    far = [call(2, 0, "won", 0, 10), call(2, 5, "lost", 5, 6)]
    found = race.judge([*apart, *near, *far], 3)
    assert (found.met, found.met_across) == (2, 1)


@pytest.mark.parametrize("turns", [(8,), (4, 3), (2,), (4,)])
def test_everybody_races_and_both_processes_do(turns: tuple[int, ...]) -> None:
    plan = race.RacePlan("f", 64, turns, 8)
    racers = [plan.racers(number) for number in range(64)]
    assert [len(set(here)) for here in racers] == [turns[number % len(turns)] for number in range(64)]
    assert all(min(here) < 4 <= max(here) for here in racers)
    assert {writer for here in racers for writer in here} == set(range(8))
    across = {(a, b) for here in racers for a in here for b in here if a < 4 <= b}
    assert len(across) == 16, "every writer of one process meets every one of the other"


def test_a_race_in_which_nobody_met_is_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_met", lambda calls, across=False: False)
    report = run(store_of(wrong.Right), "scratch", scale=SMALL, checks=[BY_NAME["race"]])
    assert report.checks[0].result == "weak"
    assert report.checks[0].figures["met"] == 0
    assert any(note.startswith("race was weak: ") and "met at 0 of 60 names" in note for note in report.notes)


def test_nobody_begins_before_all_are_there() -> None:
    meeting = race.Meeting(None, 2)
    came: list[bool] = []
    waiting = threading.Thread(target=lambda: came.append(meeting.wait(1, 0, (0, 5, 6))))
    waiting.start()
    assert meeting.wait(1, 5, (5,)) is True
    waiting.join(0.2)
    assert waiting.is_alive(), "one of three is missing"
    assert meeting.wait(1, 6, (0, 5, 6)) is True
    waiting.join(60)
    assert came == [True]
    meeting.close()


def test_a_meeting_ends_when_the_other_process_does() -> None:
    meeting = race.Meeting(None, 1, alive=lambda: False)
    assert meeting.wait(0, 0, (0, 5)) is False
    meeting.close()


def test_a_cancelled_meeting_holds_up_nobody(tmp_path: Path) -> None:
    with race.meeting_file() as path:
        here, there = race.Meeting(path, 4), race.Meeting(path, 4)
        came: list[bool] = []
        waiting = threading.Thread(target=lambda: came.append(here.wait(0, 0, (0, 5))))
        waiting.start()
        there.cancel()
        waiting.join(60)
        assert came == [False]
        assert there.wait(1, 5, (5,)) is False, "nor does a later one begin"
        here.close()
        there.close()


# --- the other process


def open_and_die(_url: str) -> MemoryBackend:
    os._exit(3)


def open_other(_url: str) -> MemoryBackend:
    return MemoryBackend(MemoryStore())


class DiesInTheRace(FolderBackend):
    def create(self, path: str, data: bytes) -> bool:
        if path.endswith("00020"):
            os._exit(4)
        return super().create(path, data)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("opener", "said"),
    [
        ("test_contract:open_and_die", "ended with 3"),
        ("test_contract:open_other", "sees another store"),
        ("test_contract:nothing", "AttributeError"),
        ("no_such_module:open", "ModuleNotFoundError"),
    ],
)
def test_without_another_process_threads_race_and_it_is_said(opener: str, said: str) -> None:
    shared = wrong.Shared()
    store = Store(lambda: wrong.Right(shared), "x", opener=opener)
    found = try_check(BY_NAME["race"], store, "scratch", scale=SMALL)
    assert found.result != "failed"
    assert "in one process" in found.why
    assert said in found.why
    assert try_check(BY_NAME["lost-reply"], store, "scratch", scale=SMALL).result == "skipped"
    found = try_check(BY_NAME["fresh-create"], store, "scratch", scale=SMALL)
    assert found.result == "passed"
    assert said in found.why


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    found = try_check(BY_NAME["race"], Store.at(f"file://{tmp_path}"), "scratch", scale=SMALL)
    assert found.result in ("passed", "weak")
    assert "no second process could be started" in found.why


def test_a_process_that_dies_in_the_race(tmp_path: Path) -> None:
    store = Store(lambda: FolderBackend(str(tmp_path)), str(tmp_path), opener="test_contract:DiesInTheRace")
    found = try_check(BY_NAME["race"], store, "scratch", scale=SMALL)
    assert found.result in ("passed", "weak"), "the race is run again, by threads"
    assert "the other process ended with 4" in found.why


def test_nothing_secret_is_an_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    popen = subprocess.Popen

    def note(arguments: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(arguments)
        return popen(arguments, **options)

    monkeypatch.setattr(peers.subprocess, "Popen", note)
    try_check(BY_NAME["fresh-create"], Store.at(f"file://{tmp_path}"), "scratch", scale=SMALL)
    assert started == [[sys.executable, "-P", "-m", "metasync.testing.peer"]]


# --- a store that fails for other reasons than being wrong


def faulty(**faults: float) -> tuple[FaultyBackend, Store]:
    backend = FaultyBackend(MemoryBackend(), Plan(seed=5, rates=faults) if faults else None)
    return backend, Store(lambda: backend)


def test_a_moment_without_an_answer_is_no_verdict() -> None:
    for fault in ("unreachable", "lost_reply", "late"):
        backend, store = faulty()
        backend.fail_next(fault, kind="create", times=2)
        found = try_check(BY_NAME["create"], store, "scratch", scale=replace(SMALL, waits_s=(0.0, 0.0)))
        assert found.result == "passed", fault


def test_a_race_with_lost_replies_is_judged_by_what_is_known() -> None:
    _, store = faulty(lost_reply=0.05, lost_request=0.05)
    found = try_check(BY_NAME["race"], store, "scratch", scale=replace(SMALL, waits_s=(0.0,) * 5))
    assert found.result != "failed", found.why
    assert "ended in an error" in found.why


@pytest.mark.parametrize(("fault", "kind"), [("unreachable", UnreachableError), ("full", FullError)])
def test_a_store_that_goes_away_gets_no_verdict(fault: str, kind: type[BackendError]) -> None:
    backend, store = faulty()
    told: list[object] = []

    def listen(event: object) -> None:
        told.append(event)
        if isinstance(event, Outcome) and event.name == "put":
            backend.fail_next(fault, kind="put", times=10**6)

    with pytest.raises(kind):
        run(store, "scratch", scale=replace(SMALL, waits_s=(0.0,)), on_event=listen)
    assert backend.list("") == (), "and what was stored is removed"
    assert not [event for event in told if isinstance(event, Notice)]


@pytest.mark.parametrize("switch", ["down", "read_only"])
def test_no_verdict_on_a_store_that_cannot_be_used_from_the_beginning(switch: str) -> None:
    backend, store = faulty()
    setattr(backend, switch, True)
    told: list[object] = []
    with pytest.raises(UnreachableError if switch == "down" else RefusedError):
        run(store, "scratch", scale=SMALL, on_event=told.append)
    assert not [event for event in told if isinstance(event, Outcome)]


def test_a_login_that_runs_out_is_no_verdict() -> None:
    backend, store = faulty()

    def listen(event: object) -> None:
        if isinstance(event, Outcome) and event.name == "names":
            backend.read_only = True

    told: list[object] = []
    with pytest.raises(RefusedError):
        run(store, "scratch", scale=SMALL, on_event=lambda event: (told.append(event), listen(event)))
    left = [event for event in told if isinstance(event, Notice)]
    assert len(left) == 1
    assert "in the folder scratch" in left[0].text
    assert "read-only" in left[0].text


def test_an_object_that_is_refused_for_its_size_is_one() -> None:
    class Small(wrong.Right):
        def create(self, path: str, data: bytes) -> bool:
            if len(data) > 1 << 17:
                raise RefusedError("at most 128 KiB")
            return super().create(path, data)

    report = run(store_of(Small), "scratch", scale=SMALL)
    assert report.verdict == "unfit"
    assert "big: RefusedError (at most 128 KiB)" in report.reasons


def test_a_list_may_be_late() -> None:
    class LateList(wrong.Right):
        def list(self, path: str) -> tuple[api.Listed, ...]:
            for entry in super().list(path):
                self.shared.seen.setdefault(f"{path}/{entry.name}", time.monotonic())
            due = time.monotonic() - 0.05
            return tuple(e for e in super().list(path) if self.shared.seen[f"{path}/{e.name}"] < due)

    report = run(store_of(LateList), "scratch", scale=replace(SMALL, patience_s=5))
    assert report.verdict == "may vote", report.reasons


# --- cleaning up


def test_what_cannot_be_removed_is_said() -> None:
    class Keeps(wrong.Right):
        def delete(self, path: str) -> None:
            if not path.startswith("scratch/names/"):
                super().delete(path)

    told: list[object] = []
    report = run(store_of(Keeps), "scratch", scale=SMALL, on_event=told.append)
    assert report.left_behind > 20
    assert any(isinstance(event, Notice) and event.warning and "folder scratch" in event.text for event in told)


def test_what_no_list_shows_is_removed_as_well() -> None:
    class Silent(wrong.Right):
        def list(self, path: str) -> tuple[api.Listed, ...]:
            return ()

    shared = wrong.Shared()
    run(Store(lambda: Silent(shared)), "scratch", scale=SMALL)
    assert not shared.store.objects


@pytest.mark.long
def test_what_another_process_stored_is_removed_as_well(tmp_path: Path) -> None:
    report = run(Store.at(f"file://{tmp_path}"), "scratch", scale=replace(SMALL, kills=2))
    assert report.verdict == "may vote", report.reasons
    assert [o.name for o in report.checks if o.result == "skipped" and o.name != "watch"] == ["digest"]
    assert os.listdir(tmp_path) == [], "with folders and half-written objects"
    assert report.free_bytes is not None


@pytest.mark.parametrize(("die_after_s", "dies"), [(0.0, True), (3600.0, False)])
def test_a_writer_dies_when_it_was_told_to(tmp_path: Path, die_after_s: float, dies: bool) -> None:
    """By itself, however busy the machine is: nobody has to kill it in time."""
    store = Store.at(f"file://{tmp_path}")
    peer = peers.Peer(store, store.open().identity())
    try:
        peer.ask(do="write", kind="put", path="a", label="a", size=1 << 20, die_after_s=die_after_s)
        assert peer.dies() is dies
        assert peer.alive() is not dies
    finally:
        peer.kill()


def test_an_interrupted_run_cleans_up(tmp_path: Path) -> None:
    def interrupt(event: object) -> None:
        if isinstance(event, Outcome) and event.name == "race":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Store.at(f"file://{tmp_path}"), "scratch", scale=SMALL, on_event=interrupt)
    assert os.listdir(tmp_path) == []


# --- the examples for authors of backends


def code_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.long
def test_the_example_is_all_a_new_backend_needs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/howto/check-a-backend.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(example.splitlines()) < 30
    in_module = [line for line in (contract.__doc__ or "").split("itself):", 1)[1].splitlines() if line[:4] == "    "]
    assert code_of("\n".join(in_module)) == code_of(example)
    (tmp_path / "test_mine.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "bound or fresh-put or empty"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
