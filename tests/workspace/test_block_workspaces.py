"""Whole workspaces over stores without an atomic create: devices that push at once, that join, that were copied."""

from __future__ import annotations

import contextlib
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
from racing_kit import URLS, at_once, crowd, race
from workspace_kit import PASSPHRASE, Lab, tree_of, wipe, write

from metasync.backends.memory import MemoryBackend
from metasync.errors import ForkError, MetaSyncError, NoQuorumError
from metasync.keys import device_set
from metasync.local.lock import WorkspaceLock
from metasync.local.state import LocalDb
from metasync.local.state_keys import PLACE_KEY
from metasync.members import newcomers
from metasync.session.folder import place_now
from metasync.testing.racy import RacingBackend
from metasync.workspace import Workspace


@pytest.mark.few(1)
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_push_at_once(racing: Lab, devices: int) -> None:
    crew = crowd(racing, devices)
    rounds = 3
    for number in range(rounds):
        for i, w in enumerate(crew):
            write(w.directory, {f"by{i}/round{number}": b"%d in round %d\n" % (i, number)})
        ends = at_once(*(lambda w=w, number=number: w.push(f"round {number}") for w in crew))  # type: ignore[misc]
        assert ends == [None] * devices
    for w in crew:
        w.pull()
    trees = [tree_of(w.directory) for w in crew]
    assert all(tree == trees[0] for tree in trees)
    files = {path for path, node in trees[0].items() if node.kind == "file"}
    assert files >= {b"by%d/round%d" % (i, number) for i in range(devices) for number in range(rounds)}
    assert not [path for path in files if b"conflict" in path]
    messages = [item.message for item in crew[0].log()]
    assert messages.count("round 0") == devices
    assert len({item.version for item in crew[0].log()}) == len(messages)


@pytest.mark.long
def test_racing_stores_used_in_log_form_break(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores can fail: what they are for in this file."""
    race(lab, monkeypatch, "log")
    crew = [lab.init(lab.urls(*URLS), device="d0")]
    lab.hurry()
    for i in range(1, 4):
        crew.append(lab.clone(lab.urls(*URLS), device=f"d{i}"))

    def broken() -> bool:
        for number in range(10):
            for i, w in enumerate(crew):
                write(w.directory, {f"by{i}/round{number}": b"%d in round %d\n" % (i, number)})
            ends = at_once(*(lambda w=w, number=number: w.push(f"round {number}") for w in crew))  # type: ignore[misc]
            ends += at_once(*(w.pull for w in crew))
            if any(isinstance(e, ForkError) for e in ends):
                return True
        return any(tree_of(w.directory) != tree_of(crew[0].directory) for w in crew)

    assert broken()


def test_of_several_writers_more_than_one_wins() -> None:
    inner = MemoryBackend()
    won: list[bool] = []
    looked = partial(threading.Barrier(4).wait, 60.0)
    jobs = [lambda i=i: won.append(RacingBackend(inner, pause=looked).create("a/name", b"%d" % i)) for i in range(4)]
    assert not any(at_once(*jobs))  # type: ignore[arg-type]
    assert won == [True] * 4, "each looked before one wrote"
    assert RacingBackend(inner).create("a/name", b"late") is False


# Joining.


def test_a_device_enters_with_help_when_a_store_in_log_form_is_out(racing: Lab) -> None:
    """Two in log form would be a quorum; one was emptied, and on the third a device that is not in writes nothing."""
    urls = racing.urls("dav", "one", "two")
    w = racing.init(urls)
    write(w.directory, {"f": b"f"})
    w.push()
    wipe(racing.store("one"))
    racing.hurry(2.0)
    c = racing.clone(racing.urls("dav", "two"))
    write(c.directory, {"mine": b"mine"})
    with pytest.raises(NoQuorumError):
        c.push()
    racing.hurry(30.0)
    write(w.directory, {"f": b"more"})
    w.push()
    assert c.sync()[1].version is not None
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)


def test_a_device_is_taken_in_by_one_that_is_in(racing: Lab) -> None:
    urls = racing.urls(*URLS)
    first = racing.init(urls, device="d0")
    write(first.directory, {"a": b"a\n"})
    first.push()
    heard: list[str] = []
    second = racing.clone(urls, device="d1", on_event=lambda e: heard.append(str(e)))
    assert (second.directory / "a").read_bytes() == b"a\n", "it can read at once"
    assert any("push yet" in text for text in heard)
    write(second.directory, {"b": b"b\n"})
    racing.hurry()
    with pytest.raises(NoQuorumError, match="belong to the workspace") as e:
        second.push()
    assert "metasync push" in e.value.next_step
    first.push()
    second.push("mine")
    first.pull()
    assert (first.directory / "b").read_bytes() == b"b\n"


def test_who_asks_to_be_taken_in_where_there_is_no_room_for_more_devices_stops_no_push(
    racing: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = racing.urls(*URLS)
    first = racing.init(urls, device="d0")
    racing.clone(urls, device="d1")
    racing.clone(urls, device="d2")
    for module in (device_set, newcomers):
        monkeypatch.setattr(module, "DEVICES_MAX", 2)
    for n in range(2):
        write(first.directory, {"a": b"%d" % n})
        first.push()
    assert len(first.device_list().devices) == 2


def test_a_stranger_without_a_certificate_is_not_taken_in(racing: Lab) -> None:
    urls = racing.urls(*URLS)
    first = racing.init(urls, device="d0")
    first.push()
    racing.clone(urls, device="d1")
    heads = [p for name in URLS for p in racing.objects(name, "devices") if p.is_file()]
    strangers = {p.name for p in heads}
    assert strangers
    for path in heads:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        (path.parent / ("0" * 32)).write_bytes(b"nobody")
    before = first.status().version
    first.push()
    assert first.status().version == before


def test_with_a_quorum_of_logs_a_device_enters_by_itself(racing: Lab) -> None:
    urls = racing.urls("dav1", "folder1", "folder2")
    first = racing.init(urls, device="d0")
    write(first.directory, {"a": b"a\n"})
    first.push()
    second = racing.clone(urls, device="d1")
    write(second.directory, {"b": b"b\n"})
    assert second.push().version is not None


# Copies of a folder.


def test_a_copied_folder_is_refused_and_told_so(racing: Lab) -> None:
    urls = racing.urls(*URLS)
    first = racing.init(urls, device="d0")
    write(first.directory, {"a": b"a\n"})
    first.push()
    first.close()
    shutil.copytree(first.directory, racing.root / "copy", symlinks=True)
    racing.hurry()
    copy = racing.keep(Workspace.open(racing.root / "copy"))
    write(copy.directory, {"b": b"b\n"})
    with pytest.raises(NoQuorumError, match="is a copy of another folder") as e:
        copy.push()
    assert "metasync clone" in e.value.next_step
    again = racing.keep(Workspace.open(first.directory))
    write(again.directory, {"c": b"c\n"})
    assert again.push().version is not None


def test_a_copied_folder_agrees_by_logs_alone_and_says_so(racing: Lab) -> None:
    first = racing.init(racing.urls("dav1", "folder1", "folder2"), device="d0")
    write(first.directory, {"a": b"a\n"})
    first.push()
    before = len(racing.objects("dav1", "bl"))
    first.close()
    shutil.copytree(first.directory, racing.root / "copy", symlinks=True)
    heard: list[str] = []
    copy = racing.keep(Workspace.open(racing.root / "copy", on_event=lambda e: heard.append(str(e))))
    write(copy.directory, {"b": b"b\n"})
    assert copy.push().version is not None
    assert sum("is a copy of another" in text and "dav1" in text for text in heard) == 1
    assert len(racing.objects("dav1", "bl")) == before


def test_a_moved_folder_goes_on(racing: Lab) -> None:
    first = racing.init(racing.urls(*URLS), device="d0")
    first.push()
    first.close()
    first.directory.rename(racing.root / "moved")
    moved = racing.keep(Workspace.open(racing.root / "moved"))
    write(moved.directory, {"b": b"b\n"})
    assert moved.push().version is not None


def test_without_blocks_a_copied_folder_works_as_ever(lab: Lab) -> None:
    first = lab.init(lab.urls("x", "y", "z"), device="d0")
    first.close()
    shutil.copytree(first.directory, lab.root / "copy", symlinks=True)
    copy = lab.keep(Workspace.open(lab.root / "copy"))
    write(copy.directory, {"b": b"b\n"})
    assert copy.push().version is not None


@pytest.mark.parametrize("how", ["init", "clone"])
def test_a_folder_that_was_never_opened_knows_its_place(racing: Lab, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It may be copied at any moment from the first on, and the copy is to know that it is one."""
    first = racing.init(racing.urls(*URLS), device="d0")

    class Died(BaseException):
        pass

    def die(*_a: object, **_k: object) -> None:
        raise Died

    monkeypatch.setattr("metasync.session.connections.IdentityGuard.__init__", die)
    begun = (
        partial(racing.init, racing.urls("u", "v", "w"), name="another")
        if how == "init"
        else partial(racing.clone, racing.urls(*URLS))
    )
    with pytest.raises(Died):
        begun(device="new")
    monkeypatch.undo()
    state_dir = racing.root / "new" / ".metasync"
    with contextlib.closing(LocalDb.open(state_dir / "state.db")) as db:
        assert db.get(PLACE_KEY) == place_now(state_dir) != first._db.get(PLACE_KEY)


def test_a_workspace_from_before_records_its_place_once(racing: Lab) -> None:
    first = racing.init(racing.urls(*URLS), device="d0")
    first._db.set(PLACE_KEY, None)
    first = racing.reopen(first)
    assert first._db.get(PLACE_KEY) is not None
    write(first.directory, {"b": b"b\n"})
    assert first.push().version is not None


# Commands that hold no lock.


def test_a_command_without_the_lock_takes_it_before_it_writes(racing: Lab) -> None:
    w = racing.init(racing.urls(*URLS), device="d0")
    guard, other = w._connections.guard, WorkspaceLock(w.directory / ".metasync")
    with guard.lending():
        assert guard() is None
        with pytest.raises(MetaSyncError):
            other.acquire("test", wait_s=0)
    other.acquire("test", wait_s=0)
    with guard.lending():
        barred = guard()
    assert barred is not None
    assert "held" in barred.reason
    other.release()


def test_what_a_push_left_under_way_does_not_hold_up_the_next_operation(
    racing: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the lock for a block, and nobody give it back before that operation ends."""
    monkeypatch.setattr("metasync.session.session.WAIT_S", 0.1)
    w = racing.init(racing.urls(*URLS), device="d0")
    w.push()
    late = w._connections.guard()
    w.pull()
    assert late is not None


@pytest.mark.few(1)
@pytest.mark.parametrize("pushes", [1, 3])
def test_a_share_that_was_not_mounted_during_a_push_votes_again(racing: Lab, pushes: int) -> None:
    w = racing.init(racing.urls(*URLS))
    write(w.directory, {"a": b"1"})
    w.push()
    root = Path(racing.store("dav1"))
    saved = shutil.copytree(root, racing.root / "saved")
    wipe(root)  # the folder below the mount: a server shows it at the same address
    for number in range(pushes):
        w = racing.reopen(w)
        write(w.directory, {"a": b"%d" % (number + 2)})
        w.push()
        assert w.status().backends[0].state.startswith("emptied or replaced")
    wipe(root)
    shutil.copytree(saved, root, dirs_exist_ok=True)
    w = racing.reopen(w)
    assert {b.name: b.state for b in w.status().backends} == dict.fromkeys(URLS, "ok")
    wipe(Path(racing.store("dav2")))
    write(w.directory, {"a": b"last"})
    w.push()
    assert w.status().backends[0].state == "ok"


# What is shown.


def test_what_init_and_list_say(racing: Lab) -> None:
    heard: list[str] = []
    w = Workspace.init(
        racing.root / "d0",
        name="docs",
        backends=racing.urls(*URLS),
        passphrase=PASSPHRASE,
        device_name="d0",
        on_event=lambda e: heard.append(str(e)),
    ).workspace
    racing.keep(w)
    assert sum("block form" in text for text in heard) == 2
    assert {b.name: b.roles for b in w.backends()} == {
        "dav1": ("data", "vote", "blocks"),
        "dav2": ("data", "vote", "blocks"),
        "folder": ("data", "vote"),
    }
    assert Path(racing.store("dav1")).is_dir()


def test_whom_to_ask_about_liars_is_not_asked_what_cannot_be(racing: Lab) -> None:
    """Five could outvote one that lies, but not where one of them votes in block form: a yes would be an error."""
    asked: list[int] = []

    def ask(voters: int) -> bool:
        asked.append(voters)
        return True

    folders = [*racing.urls("a", "b", "c", "d", "e"), racing.url("f", role="storage")]
    mixed = racing.init([*folders[:4], racing.url(URLS[0])], device="d0", name="mixed", byzantine=ask)
    assert asked == []
    assert "may lie" not in mixed.status().survives
    plain = racing.init(folders, device="d1", name="plain", byzantine=ask)
    assert asked == [5]
    assert "any 1 of them may lie" in plain.status().survives


def test_who_cannot_tell_what_is_newest_is_taken_in_all_the_same(racing: Lab) -> None:
    """Of four, two in block form: the newest version stands on three, one of which is away when a device joins."""
    urls = racing.urls("dav1", "dav2", "folder1", "folder2")
    one = racing.init(urls, device="d0")
    write(one.directory, {"a": b"1"})
    one.push()
    racing.hurry()
    newest = 1
    for away, device in (("dav1", "d1"), ("dav2", "d2")):
        racing.faults[away].down = True
        joined = racing.clone(urls, device=device)
        one = racing.reopen(one)
        assert one.push().version is None
        assert one.status().newest == newest + 1, "it was taken in"
        write(joined.directory, {f"of {device}": b"3"})
        joined = racing.reopen(joined)
        newest += 2
        assert joined.push().version == newest
        one.pull()
        racing.faults[away].down = False
    assert tree_of(one.directory) == tree_of(joined.directory)
