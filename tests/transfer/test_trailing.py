"""Pushes that are interrupted go on, and pushes with `durability` agree before all copies are made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_kit import Lab, flip, tree_of, write

from metasync.errors import FormatError, UnreachableError, UsageError, WorkspaceError
from metasync.events import Event, Notice
from metasync.local.state_keys import STORED
from metasync.session import agreement
from metasync.transfer import late_copies, upload
from metasync.transfer.copies import Transfer
from metasync.transfer.late_copies import AT_ONCE_BYTES, TRAILING_KEY, Trail, decode_trails, encode_trails, load
from metasync.workspace import Workspace

PACK = 4 << 20


def packs(lab: Lab, *names: str) -> dict[str, set[str]]:
    """By backend: the names of the packs that lie there."""
    return {n: {p.name for p in lab.objects(n, "packs")} for n in names}


def copies(lab: Lab, *names: str) -> list[int]:
    """How many backends hold each pack."""
    held = packs(lab, *names)
    every = set().union(*held.values())
    return sorted(sum(p in held[n] for n in names) for p in every)


# --- a push that was killed

KILLED = """
import os, signal, sys
from metasync import Workspace
from metasync.backends.folder import FolderBackend
from metasync.transfer import upload
upload.NOTED_BYTES = int(sys.argv[3])
left = int(sys.argv[2])
real = FolderBackend.put
def put(self, path, data):
    global left
    real(self, path, data)
    if "/packs/" in path:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
FolderBackend.put = put
Workspace.open(sys.argv[1]).push("never ends")
"""


def killed_push(w: Workspace, puts: int, noted_bytes: int = 1) -> None:
    """A process that pushes from this folder and is killed when it has stored so many copies of packs."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(w.directory), str(puts), str(noted_bytes)], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL


def heard(lab: Lab, w: Workspace) -> tuple[Workspace, list[Event]]:
    """The workspace as the next command sees it, and what it tells."""
    told: list[Event] = []
    w.close()
    return lab.keep(Workspace.open(w.directory, on_event=told.append)), told


def notices(told: list[Event]) -> list[str]:
    return [e.text for e in told if isinstance(e, Notice)]


@pytest.mark.long
def test_a_killed_push_goes_on_where_it_was(lab: Lab) -> None:
    """60 MB in some 15 packs of two copies: killed at the 20th copy, the next push sends the rest and a window more."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(20)})
    killed_push(w, 20)
    before = packs(lab, "a", "b", "c")
    assert sum(map(len, before.values())) >= 20
    w, told = heard(lab, w)
    r = w.push("again")
    assert (r.version, r.under_replicated) == (1, 0)
    again = sum(map(len, packs(lab, "a", "b", "c").values())) - sum(map(len, before.values()))
    assert again == 2 * r.packs
    (notice,) = (t for t in notices(told) if t.startswith("going on with "))
    assert notice.endswith(" stored before")
    noted = int(notice.split()[3])
    assert noted >= 3, "six are under way at most, so four of ten had ended before the last one began"
    assert r.bytes_stored < 60_500_000 - noted * 3_500_000
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    assert w.check(read_data=True).short == 0


def test_notes_are_made_now_and_then_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short push of little notes nothing; one of 60 MB, noted every 16 MB, three or four times."""
    flushed: list[int] = []
    real = upload._encode
    monkeypatch.setattr(upload, "_encode", lambda some: flushed.append(len(some)) or real(some))
    monkeypatch.setattr(upload, "NOTE_EVERY_S", 1e9)
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {"small": b"1"})
    w.push()
    assert not flushed
    monkeypatch.setattr(upload, "NOTED_BYTES", 16 << 20)
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(20)})
    w.push()
    assert 2 <= len(flushed) <= 4
    assert w._db.count_records(STORED) == 0, "agreed: nothing to go on with"


def test_notes_go_by_time_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a"), replicas=1)
    made: list[int] = []
    real = upload._encode
    monkeypatch.setattr(upload, "_encode", lambda some: made.append(len(some)) or real(some))
    monkeypatch.setattr(upload, "NOTE_EVERY_S", 0.0)
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(4)})
    r = w.push()
    assert made == [1] * r.packs


def test_a_disk_without_room_for_notes_stops_no_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_packs: object) -> list[bytes]:
        raise WorkspaceError("no room")

    monkeypatch.setattr(upload, "_encode", full)
    monkeypatch.setattr(upload, "NOTED_BYTES", 1)
    w = lab.init(lab.urls("a"), replicas=1)
    write(w.directory, {"f": os.urandom(100_000)})
    assert w.push().version == 1


# --- durability


def test_a_push_agrees_with_the_first_copy_and_makes_the_rest(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(6)})
    r = w.push(durability=1)
    assert (r.version, r.copies, r.under_replicated) == (1, 2, 0)
    assert sum(t.packs for t in r.trailing) == r.packs
    assert sum(t.bytes for t in r.trailing) == r.bytes_stored
    assert {t.name for t in r.trailing} <= {"a", "b", "c"}
    assert w.finish_copies() == ()
    assert copies(lab, "a", "b", "c") == [2] * r.packs
    assert (load(w._db), w.status().trailing) == ({}, ())
    report = w.check(read_data=True)
    assert (report.problems, report.short, report.trailing) == ((), 0, ())
    assert all(p[n] for p in [packs(lab, "a", "b", "c")] for n in "abc")


def test_by_default_a_push_waits_for_all(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f": b"1"})
    r = w.push()
    assert (r.trailing, copies(lab, "a", "b", "c")) == ((), [2])
    assert not w.copying


@pytest.mark.parametrize("n", [0, -1, 3])
def test_durability_is_at_least_one_copy_and_at_most_what_is_promised(lab: Lab, n: int) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    with pytest.raises(UsageError, match="one copy of everything"):
        w.push(durability=n)
    write(w.directory, {"f": b"1"})
    assert w.push(durability=2).trailing == ()


def test_what_is_set_for_this_device_holds_where_a_push_is_told_nothing(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    w.configure("durability", "1")
    write(w.directory, {"f": os.urandom(50_000)})
    r = w.push()
    assert (r.version, sum(t.packs for t in r.trailing)) == (1, r.packs)
    assert (w.finish_copies(), copies(lab, "a", "b", "c")) == ((), [2] * r.packs)
    write(w.directory, {"g": b"2"})
    assert w.push(durability=2).trailing == (), "what is asked for goes before what is set"
    w.configure("durability", "7")  # more than this workspace promises
    write(w.directory, {"h": b"3"})
    assert w.push().trailing == ()
    w.configure("durability", None)
    write(w.directory, {"i": b"4"})
    assert w.sync()[1].trailing == ()


class Held:
    """Keeps all further copies from being made until `release`; those of `first` are not held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.begun = threading.Event()
        self.real = Transfer.complete

        def complete(*_args: object) -> object:
            self.begun.set()
            raise UnreachableError("held back")
            yield

        monkeypatch.setattr(Transfer, "complete", complete)

    def release(self) -> None:
        self.patch.setattr(Transfer, "complete", self.real)


def left_open(lab: Lab, monkeypatch: pytest.MonkeyPatch, names: str = "abc", files: int = 6) -> tuple[Workspace, int]:
    """A process that pushed with durability 1 and died before it made a further copy; how many packs there are."""
    w = lab.init(lab.urls(*names))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(files)})
    held = Held(monkeypatch)
    r = w.push(durability=1)
    with pytest.raises(UnreachableError):
        w.finish_copies()
    assert held.begun.is_set()
    held.release()
    assert copies(lab, *names) == [1] * r.packs
    return lab.reopen(w), r.packs


def test_what_is_on_its_way_is_shown_and_is_no_damage(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, n = left_open(lab, monkeypatch)
    s = w.status()
    assert sum(t.packs for t in s.trailing) == n
    assert s.under_replicated == 0
    report = w.check(read_data=True)
    assert (report.problems, report.short, report.lost) == ((), 0, ())
    assert report.trailing == s.trailing
    ran = lab.cli("status")
    assert ran.code == 4, "as the push ended that left them open"
    assert f"All {n} packs have 1 copy; nothing is lost." in ran.out
    assert all(f"{t.packs} packs (" in ran.out or t.packs == 1 for t in s.trailing)
    assert f"still to be copied to {s.trailing[0].name}." in ran.out
    assert lab.cli("check").code == 0
    assert sum(t["packs"] for t in lab.cli("status", "--json").json["trailing"]) == n


def test_damage_is_damage_though_copies_are_on_their_way(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, n = left_open(lab, monkeypatch)
    held = next(name for name in "abc" if lab.objects(name, "packs"))
    lab.objects(held, "packs")[0].unlink()
    report = w.check()
    assert len(report.lost) == 1
    assert report.short == 1
    assert [p.backend for p in report.problems].count(held) == 1
    assert sum(t.packs for t in report.trailing) == n - 1


@pytest.mark.parametrize("how", ["push", "sync", "push --durability", "finish_copies"])
@pytest.mark.long
def test_whoever_has_the_folder_next_makes_the_rest(lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The bytes are gone with the process; they are fetched from the backend that holds them."""
    w, n = left_open(lab, monkeypatch)
    if how == "push":
        assert w.push().version is None
    elif how == "sync":
        w.sync()
    elif how == "finish_copies":
        assert w.finish_copies() == ()
    else:
        write(w.directory, {"more": os.urandom(100_000)})
        r = w.push(durability=1)
        assert sum(t.packs for t in r.trailing) == 1, "of this push"
        w.finish_copies()
        n += 1
    assert copies(lab, "a", "b", "c") == [2] * n
    assert w._db.get(TRAILING_KEY) is None
    assert w.check(read_data=True).problems == ()


def test_packs_are_read_back_in_bounded_portions(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = left_open(lab, monkeypatch, files=16)
    at_once, most = 0, 0
    real = Transfer.complete

    def complete(self: Transfer, name: bytes, generation: int, size: int, *rest: object):  # type: ignore[no-untyped-def]
        nonlocal at_once, most
        at_once += size
        most = max(most, at_once)
        try:
            return (yield from real(self, name, generation, size, *rest))  # type: ignore[arg-type]
        finally:
            at_once -= size

    monkeypatch.setattr(Transfer, "complete", complete)
    assert w.finish_copies() == ()
    assert PACK < most <= AT_ONCE_BYTES


def test_a_damaged_first_copy_is_never_copied(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, n = left_open(lab, monkeypatch)
    held = next(name for name in "abc" if lab.objects(name, "packs"))
    bad = lab.objects(held, "packs")[0]
    flip(bad, 5000)
    left = w.finish_copies()
    assert sum(t.packs for t in left) == 1
    assert copies(lab, "a", "b", "c") == [1] + [2] * (n - 1)
    assert [t.name.hex() for t in load(w._db).values()] == [bad.name], "never forgotten"


def test_a_backend_that_is_away_gets_its_copies_later(lab: Lab) -> None:
    """With three backends its share would go to another one; with two, it waits."""
    w = lab.init([lab.url("a"), lab.url("b", role="storage")])
    write(w.directory, {"f": os.urandom(3_000_000)})
    lab.faults["b"].read_only = True
    r = w.push(durability=1)
    left = w.finish_copies()
    assert [(t.name, t.packs) for t in left] == [("b", r.packs)]
    assert copies(lab, "a", "b") == [1] * r.packs
    lab.faults["b"].read_only = False
    w = lab.reopen(w)
    w.push()
    assert copies(lab, "a", "b") == [2] * r.packs
    assert w.status().trailing == ()


def test_it_is_noted_before_it_is_agreed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in the midst of agreeing leaves a note behind; what was never agreed is dropped later."""

    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f": os.urandom(100_000)})
    real = agreement.propose

    class Died(BaseException):
        pass

    def propose(*_args: object) -> None:
        assert len(load(w._db)) == 1
        raise Died

    monkeypatch.setattr(agreement, "propose", propose)
    with pytest.raises(Died):
        w.push(durability=1)
    monkeypatch.setattr(agreement, "propose", real)
    w = lab.reopen(w)
    assert len(load(w._db)) == 1
    (w.directory / "f").write_bytes(b"something else")
    assert w.push().version == 1
    assert load(w._db) == {}
    assert w.check().problems == ()


@pytest.mark.long
def test_an_interrupted_push_with_durability_goes_on_too(lab: Lab) -> None:
    """What has one copy is not sent again by a push that waits for one; one that waits for two stores it anew."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(16)})
    w.close()
    script = KILLED.replace('push("never ends")', "push(durability=1)")
    done = subprocess.run([sys.executable, "-c", script, str(w.directory), "9", "1"], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    w, told = heard(lab, w)
    with w._session("look") as s:
        noted = [k for k in upload.Notes(s.db, *_context(w)).load(s.base().index) if k.trail is not None]
    assert noted
    r = w.push(durability=1)
    assert any("going on with" in t for t in notices(told))
    assert sum(t.packs for t in r.trailing) == r.packs + len(noted)
    assert w.finish_copies() == ()
    report = w.check(read_data=True)
    assert (report.problems, report.short) == ((), 0)


def _context(w: Workspace) -> tuple[bytes, int, int, Callable[[], float]]:
    state = w_state(w)
    return state.config, state.gen, state.epoch, lambda: 0.0


def w_state(w: Workspace):  # type: ignore[no-untyped-def]
    with w._session("look") as s:
        return s.base().state


@pytest.mark.long
def test_what_lacks_copies_is_stored_anew_by_a_push_that_waits_for_all(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(16)})
    w.close()
    script = KILLED.replace('push("never ends")', "push(durability=1)")
    subprocess.run([sys.executable, "-c", script, str(w.directory), "9", "1"], check=False, timeout=60)
    w, told = heard(lab, w)
    r = w.push()
    assert not any("going on with" in t for t in notices(told))
    assert (r.bytes_stored > 48_000_000, r.trailing) == (True, ())
    assert w.check(read_data=True).short == 0


def test_several_pushes_share_one_background(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    total = 0
    for i in range(4):
        write(w.directory, {f"f{i}": os.urandom(2_000_000)})
        total += w.push(durability=1).packs
    assert w.finish_copies() == ()
    assert copies(lab, "a", "b", "c") == [2] * total


def test_closing_leaves_the_rest_noted(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(6)})
    for f in lab.faults.values():
        f.slow_s = 0.05
    r = w.push(durability=1)
    w.close()
    w = lab.reopen(w)
    lacking = {t.name.hex() for t in load(w._db).values()}
    held = packs(lab, "a", "b", "c")
    assert {p for p in set().union(*held.values()) if sum(p in h for h in held.values()) < 2} <= lacking
    assert w.push().version is None
    assert copies(lab, "a", "b", "c") == [2] * r.packs


# --- the command line


def test_the_command_tells_that_it_is_agreed_and_finishes(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{i}": os.urandom(3_000_000) for i in range(3)})
    w.close()
    ran = lab.cli("push", "--durability", "1")
    n = len(copies(lab, "a", "b", "c"))
    assert f"committed as version 1; finishing {n} copies (Ctrl-C is safe)\n" in ran.err
    assert ran.code == 0
    assert "still to be copied" not in ran.out
    assert copies(lab, "a", "b", "c") == [2] * n


def test_an_interrupted_command_leaves_the_rest_to_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f": os.urandom(100_000)})
    w.close()
    held = Held(monkeypatch)

    def pressed(_self: Workspace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "finish_copies", pressed)
    ran = lab.cli("push", "--durability", "1")
    assert ran.code == 130
    assert "the rest of the copies is made by the next push or sync" in ran.err
    held.release()
    assert copies(lab, "a", "b", "c") == [1]
    assert "1 pack (" in lab.cli("status").out
    assert lab.cli("sync").code == 0
    assert copies(lab, "a", "b", "c") == [2]


def test_copies_that_cannot_be_made_now_are_told(lab: Lab) -> None:
    w = lab.init([lab.url("a"), lab.url("b", role="storage")])
    write(w.directory, {"f": os.urandom(100_000)})
    w.close()
    lab.faults["b"].read_only = True
    ran = lab.cli("push", "--durability", "1")
    assert ran.code == 4
    assert "1 pack (" in ran.out
    assert "still to be copied to b." in ran.out


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["push", "sync"])
def test_a_push_with_nothing_new_makes_the_rest_with_durability_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is a setting: whoever pressed Ctrl-C pushes again without a word about it."""
    w, n = left_open(lab, monkeypatch)
    w.configure("durability", "1")
    w.close()
    ran = lab.cli(how)
    assert ran.code == 0
    assert f"finishing {n} copies (Ctrl-C is safe)" in ran.err
    assert "committed" not in ran.err
    assert "Nothing to push." in ran.out
    assert copies(lab, "a", "b", "c") == [2] * n


@pytest.mark.parametrize("durability", [(), ("--durability", "1")])
def test_copies_of_an_earlier_push_that_cannot_be_made_now_are_told(lab: Lab, durability: tuple[str, ...]) -> None:
    w = lab.init([lab.url("a"), lab.url("b", role="storage")])
    write(w.directory, {"f": os.urandom(100_000)})
    w.close()
    lab.faults["b"].read_only = True
    assert lab.cli("push", "--durability", "1").code == 4
    ran = lab.cli("push", *durability)
    assert "Nothing to push." in ran.out
    assert "still to be copied to b." in ran.out
    assert ran.code == 4


# --- what is noted


def test_trails_are_read_as_they_were_written() -> None:
    trails = [
        Trail(bytes([i]) * 32, i, i * 1000, (b"a" * 16,) * i, tuple(bytes([n]) * 16 for n in range(i)))
        for i in range(4)
    ]
    assert decode_trails(encode_trails(trails)) == trails
    assert decode_trails(encode_trails([])) == []


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 40, 52, 53, -1])
def test_damaged_notes_of_copies_are_no_silence(lab: Lab, cut: int) -> None:
    data = encode_trails([Trail(b"n" * 32, 1, 5, (b"a" * 16,), (b"b" * 16,))])
    with pytest.raises(FormatError):
        decode_trails(data[:cut])
    with pytest.raises(FormatError):
        decode_trails(data + b"\0")
    with pytest.raises(FormatError):
        decode_trails(b"\2" + data[1:])


def test_a_damaged_note_is_told(tmp_path: Path, lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    w._db.set_value(TRAILING_KEY.name, b"\1nonsense")
    with pytest.raises(WorkspaceError, match="damaged"):
        late_copies.load(w._db)
    with pytest.raises(WorkspaceError, match="damaged"):
        w.status()
