"""Bad input gets a clear error, and nothing is lost: wrong words, backends away or out of order, local trouble."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_input_kit import FILES, poison_next, says, started
from workspace_kit import CHEAP, PASSPHRASE, Lab, run_cli, tree_of, unreadable, write

from metasync.backends.folder import FolderBackend
from metasync.consensus import DEADLINE_S
from metasync.errors import (
    DamagedError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    RefusedError,
    UnreachableError,
    UsageError,
    WorkspaceError,
)
from metasync.events import Event, Notice
from metasync.session import session
from metasync.testing.faults import Plan
from metasync.workspace import Workspace
from metasync.worktree import scan
from metasync.worktree.disk import Disk

# --- finding a workspace


def test_a_wrong_passphrase_is_said_only_after_all_slots_were_tried(lab: Lab) -> None:
    started(lab)
    lab.init(lab.urls("a", "b", "c"), device="other", name="other", passphrase="another secret")
    with pytest.raises(PassphraseError) as e:
        lab.clone(lab.urls("a", "b", "c"), passphrase="wrong")
    says(e.value, "wrong passphrase", "key slots on a, b, c")
    assert not (lab.root / "desktop" / ".metasync").exists()


def test_the_recovery_phrase_opens_too(lab: Lab) -> None:
    report = Workspace.init(
        lab.root / "laptop", name="docs", backends=lab.urls("a", "b", "c"), passphrase="lost", kdf=CHEAP
    )
    lab.keep(report.workspace).push()
    c = lab.clone(lab.urls("a", "b", "c"), passphrase="  " + report.recovery_phrase.upper())
    assert tree_of(c.directory) == tree_of(report.workspace.directory)


def test_a_name_that_the_passphrase_does_not_open(lab: Lab) -> None:
    started(lab)
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"), name="dogs")
    says(e.value, "'dogs'", "'docs'")


def test_no_workspace_there(lab: Lab) -> None:
    for n in ("a", "b"):
        lab.store(n).mkdir(parents=True)
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b"))
    says(e.value, "a, b")


def test_a_name_that_is_taken(lab: Lab) -> None:
    started(lab)
    before = sorted(lab.store("a").glob("*/keys/*"))  # what the first push left under way may land later
    with pytest.raises(WorkspaceError) as e:
        lab.init(lab.urls("a", "b", "c"), device="other")
    says(e.value, "'docs'", "clone")
    assert sorted(lab.store("a").glob("*/keys/*")) == before
    lab.init(lab.urls("a", "b", "c"), device="other", passphrase="of somebody else's")  # who cannot know of the first


def test_a_folder_that_is_no_workspace(lab: Lab) -> None:
    with pytest.raises(WorkspaceError) as e:
        Workspace.open(lab.root)
    says(e.value, str(lab.root), "metasync init")


def test_a_workspace_inside_a_workspace_is_refused(lab: Lab) -> None:
    started(lab)
    for make in (lab.init, lab.clone):
        with pytest.raises(WorkspaceError) as e:
            make(lab.urls("x"), device="laptop/d", name="inner")
        says(e.value, "lies in the workspace")


def test_a_folder_beside_the_workspace_is_not_inside_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` leads out of the folder: `-C ../other push` must not push this one."""
    w = started(lab)
    (lab.root / "other").mkdir()
    monkeypatch.chdir(w.directory)
    for path in ("../other", "../not-there", f"{w.directory}/../other"):
        with pytest.raises(WorkspaceError) as e:
            Workspace.open(path)
        says(e.value, "is not in a MetaSync workspace", f"{lab.root}/{path.rpartition('/')[2]} ")
    Workspace.open(f"../{w.directory.name}").close()
    beside = Workspace.clone("../beside", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE)
    with beside.workspace as other:
        assert other.directory == lab.root / "beside"


def test_a_workspace_around_a_workspace_leaves_it_out(lab: Lab) -> None:
    started(lab, device="outer/inner")
    w = lab.init(lab.urls("x"), device="outer", name="outer")
    write(w.directory, {"mine": b"1"})
    r = w.push()
    assert r.changes.added == (b"mine",)
    assert [s.path for s in r.skipped] == [b"inner"]


def test_a_backend_inside_the_workspace_is_refused(lab: Lab) -> None:
    (lab.root / "laptop").mkdir()
    with pytest.raises(UsageError) as e:
        lab.init([f"file://{lab.root}/laptop/store"])
    says(e.value, "store")
    assert not (lab.root / "laptop" / "store").exists()
    with pytest.raises(UsageError):
        lab.init([f"file://{lab.root}/laptop"])
    w = started(lab)
    with pytest.raises(UsageError):
        w.link("a", f"file://{w.directory}/d")


def test_clone_into_a_folder_with_files(lab: Lab) -> None:
    started(lab)
    write(lab.root / "desktop", {"mine.txt": b"mine"})
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "not empty")
    assert os.listdir(lab.root / "desktop") == ["mine.txt"]


def test_one_store_given_twice(lab: Lab) -> None:
    (lab.root / "stores").mkdir()
    (lab.root / "stores/link").symlink_to(lab.root / "stores/a")
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), f"file://{lab.root}/stores/./a?name=b"])
    says(e.value, "a and b are the same store")
    with pytest.raises(UsageError):
        lab.init([lab.url("a"), f"file://{lab.root}/stores/link?name=b"])
    assert not (lab.root / "laptop" / ".metasync").exists()


@pytest.mark.parametrize("when", ["opened", "asked"])
def test_what_to_do_about_refused_credentials(lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A temporary key that ended, say: to run again when the backends are reachable would not help."""
    w = started(lab)

    def refuse(*_: Any, **__: Any) -> Any:
        raise RefusedError("the server refused the credentials (ExpiredToken)", next_step="Check AWS_SESSION_TOKEN.")

    for name in ("open",) if when == "opened" else ("get", "create", "put", "stat", "list"):
        monkeypatch.setattr(FolderBackend, name, refuse)
    lab.hurry()
    w = lab.reopen(w)
    write(w.directory, {"new": b"1"})
    for act in (w.push, w.pull):
        with pytest.raises(NoQuorumError, match="ExpiredToken") as e:
            act()
        assert e.value.next_step == "Check AWS_SESSION_TOKEN. Then run again."


def test_one_store_under_two_addresses(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of a server, or a folder by two protocols: their identities tell nothing, what lies there does."""
    (lab.root / "stores/a").mkdir(parents=True)
    (lab.root / "stores/link").symlink_to(lab.root / "stores/a")
    monkeypatch.setattr(FolderBackend, "identity", lambda _: os.urandom(32))
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), lab.url("b"), f"file://{lab.root}/stores/link?name=c"])
    says(e.value, "a and c are the same store")
    assert not (lab.root / "laptop" / ".metasync").exists()
    assert not [path for name in "ab" for path in lab.store(name).rglob("*") if path.is_file()], "all is taken away"


def test_a_store_inside_another(lab: Lab) -> None:
    """Two of one: what takes the outer one takes both. Nothing is made before that is seen."""
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), lab.url("b"), f"file://{lab.root}/stores/a/deeper/c"])
    says(e.value, "the backend c", "lies inside the backend a", "beside it")
    assert not lab.store("a").exists()
    assert not (lab.root / "laptop" / ".metasync").exists()


def test_a_further_store_inside_another_or_around_it(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    (lab.root / "link").symlink_to(lab.store("a"))
    inside, around = f"file://{lab.root}/link/workspaces?name=sub", f"file://{lab.root}/stores?name=all"
    for url, why in ((inside, "sub .* lies inside the backend a "), (around, "[abc] .* lies inside the backend all ")):
        for dry_run in (True, False):
            with pytest.raises(UsageError, match=why):
                laptop.backend_add(url, dry_run=dry_run)
    assert not (lab.store("a") / "workspaces").exists()
    assert laptop.status().version == 0
    laptop.backend_add(f"file://{lab.store('b')}-beside?name=d")


def test_a_store_inside_the_one_whose_place_it_takes(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    laptop.backend_add(f"file://{lab.store('a')}/deeper?name=d", replaces="a")
    assert laptop.check().meta_problems == ()


@pytest.mark.parametrize("by", ["passphrase", "invitation"])
def test_a_clone_warns_of_stores_inside_each_other(lab: Lab, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that has them already stays usable."""
    inner = f"file://{lab.root}/stores/a/deeper?name=d"
    monkeypatch.setattr("metasync.members.found.refuse_nested", lambda *_, **__: None)
    laptop = lab.init([*lab.urls("a", "b", "c"), inner])
    events: list[Event] = []
    how: dict[str, Any] = {"name": "docs", "backends": [*lab.urls("a", "b", "c"), inner], "passphrase": PASSPHRASE}
    if by == "invitation":
        how = {"invite": laptop.invite("desktop", PASSPHRASE).code}
    desktop = lab.keep(Workspace.clone(lab.root / "desktop", on_event=events.append, **how).workspace)
    told = [e.text for e in events if isinstance(e, Notice) and e.warning]
    assert told == ["d lies inside a: they count as two, and what takes a takes both"]
    write(desktop.directory, {"new": b"1"})
    assert desktop.push().changes.added == (b"new",)


def test_an_added_backend_warns_of_stores_inside_each_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a clone does. The new one is beside them."""
    monkeypatch.setattr("metasync.members.found.refuse_nested", lambda *_, **__: None)
    lab.init([*lab.urls("a", "b", "c"), f"file://{lab.root}/stores/a/deeper?name=d"])
    ran = lab.cli("backend", "add", lab.url("e"))
    assert ran.code == 0
    assert ran.err.count("d lies inside a: they count as two, and what takes a takes both") == 1


def test_more_copies_than_backends(lab: Lab) -> None:
    with pytest.raises(UsageError) as e:
        lab.init(lab.urls("a", "b"), replicas=3)
    says(e.value, "3 copies", "2")


def test_init_with_a_backend_that_fails_leaves_nothing(lab: Lab) -> None:
    lab.store("b").parent.mkdir(parents=True)
    lab.store("b").write_bytes(b"a file, no folder")
    with pytest.raises(MetaSyncError) as e:
        lab.init(lab.urls("a", "b", "c"))
    says(e.value, "b:")
    assert not (lab.root / "laptop" / ".metasync").exists()
    assert not [p for p in lab.store("a").rglob("*") if p.is_file()]


def test_the_expected_fingerprint(lab: Lab) -> None:
    w = started(lab)
    right = w.status().fingerprint
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"), expect="1-0000000000")
    says(e.value, right)
    assert not (lab.root / "desktop" / ".metasync").exists()
    lab.clone(lab.urls("a", "b", "c"), expect=right)


# --- backends that cannot be reached


def test_one_of_three_is_away(lab: Lab) -> None:
    w = started(lab)
    lab.faults["b"].down = True
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    r = w.push()
    assert r.version == 2
    assert r.under_replicated == 0
    assert "b" in r.down
    assert {b.name: b.state[:11] for b in w.status().backends} == {"a": "ok", "b": "unreachable", "c": "ok"}
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    lab.faults["b"].down = False
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"even more"})
    assert w.push().version == 4


def test_one_of_two_copies_has_no_place(lab: Lab) -> None:
    w = started(lab, replicas=3)
    lab.lose("c")
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    r = w.push()
    assert (r.version, r.under_replicated, list(r.down)) == (2, 1, ["c"])
    assert w.status().under_replicated == 1
    assert w.check().short == 2


def test_a_majority_away(lab: Lab) -> None:
    assert DEADLINE_S == 30  # the promise of exit code 5
    w = started(lab)
    lab.hurry()
    lab.faults["b"].down = lab.faults["c"].down = True
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    for act in (w.push, w.pull, w.check):
        with pytest.raises(NoQuorumError) as e:
            act()
        says(e.value, "2 of 3", "b: ", "c: ")
    s = w.status()
    assert s.newest is None
    assert isinstance(s.error, NoQuorumError)
    assert s.changes.added == (b"more.txt",)
    assert [i.version for i in w.log()] == [1]
    lab.faults["b"].down = lab.faults["c"].down = False
    lab.hurry(30)
    assert w.push().version == 2


def test_slow_backends_hold_a_command_up_no_longer_than_promised(lab: Lab) -> None:
    """It ends while they have not answered yet."""
    w = started(lab)
    lab.hurry()
    answer, answered = threading.Event(), []

    def slowly(_: float) -> None:
        assert answer.wait(60)
        answered.append(1)

    for n in "bc":
        lab.faults[n].slow_s, lab.faults[n]._sleep = 1.2, slowly
    with pytest.raises(NoQuorumError):
        w.push()
    assert answered == []
    answer.set()
    lab.faults["c"].slow_s = 0
    lab.hurry(30)
    write(w.directory, {"more.txt": b"more"})
    assert lab.reopen(w).push().version == 2


def test_the_state_of_all_backends_is_asked_for_at_once(lab: Lab) -> None:
    w = started(lab, "a", "b", "c", "d", "e")
    asked, all_asked = set(), threading.Event()

    def slowly(name: str) -> None:
        """No answer before all have been asked."""
        asked.add(name)
        if len(asked) == 5:
            all_asked.set()
        assert all_asked.wait(60)

    for name, fault in lab.faults.items():
        fault.slow_s, fault._sleep = 0.5, lambda _, name=name: slowly(name)  # type: ignore[misc]
    assert {b.state for b in w.backends()} == {"ok"}


def test_clone_goes_on_with_the_backends_that_answer(lab: Lab) -> None:
    started(lab)
    lab.lose("a")
    c = lab.clone(lab.urls("a", "b", "c"))
    write(c.directory, {"from-here": b"1"})
    assert c.push().version == 3
    states = {b.name: (b.linked, b.state[:11]) for b in c.backends()}
    assert states["b"] == states["c"] == (True, "ok")
    assert states["a"][1] != "ok"


def test_clone_with_no_backend_that_answers(lab: Lab) -> None:
    started(lab)
    with pytest.raises(MetaSyncError) as e:
        lab.clone([f"file://{lab.root}/nowhere/{n}" for n in "abc"])
    says(e.value, "none of the backends answers", "nowhere/a")
    assert e.value.next_step == "Mount it and repeat the command. Only init makes a folder that is missing."


def test_a_pack_on_backends_that_are_not_linked_is_not_damaged(lab: Lab) -> None:
    w = started(lab, replicas=1)
    for i in range(6):
        write(w.directory, {f"n{i}": os.urandom(100)})
        w.push()
    with pytest.raises(UnreachableError) as e:
        lab.clone(lab.urls("a"))
    is_left = (lab.root / "desktop").exists()  # by where the first pack is that it needs and has no way to
    says(e.value, "no way to", "backend link" if is_left else "--backend URL")


def test_clone_with_fewer_backends_than_a_quorum_is_read_only(lab: Lab) -> None:
    w = started(lab, replicas=3)
    before = tree_of(w.directory)
    write(w.directory, {"more.txt": b"perhaps not proven decided by one backend alone"})
    w.push()
    report = Workspace.clone(
        lab.root / "desktop", name="docs", backends=[lab.url("a")], passphrase=PASSPHRASE, device_name="desktop"
    )
    c = lab.keep(report.workspace)
    assert report.read_only
    assert "no quorum" in report.problem
    assert report.unlinked == ("b", "c")
    assert tree_of(c.directory) in (before, tree_of(w.directory))
    write(c.directory, {"mine.txt": b"mine"})
    with pytest.raises(NoQuorumError) as e:
        c.push()
    says(e.value, "b: ", "c: ", "link")
    c.link("b", lab.url("b"))
    assert c.push().version == 3
    assert w.pull().version == 3


def test_a_clone_that_cannot_know_whether_it_is_the_newest_says_so(lab: Lab) -> None:
    w = started(lab)
    before = tree_of(w.directory)
    write(w.directory, {"more.txt": b"more"})
    w.push()
    poison_next(lab, w, "b")
    lab.faults["c"].down = True
    lab.hurry()
    ran = run_cli("clone", str(lab.root / "desktop"), "--name", "docs", *lab.words("a", "b", "c"))
    assert ran.code == 5
    assert "There may be newer versions" in ran.out
    assert "b: entry 0 of version" in ran.out
    assert tree_of(lab.root / "desktop") in (before, tree_of(w.directory))
    lab.faults["c"].down = False
    lab.hurry(30)
    with Workspace.open(lab.root / "desktop") as c:
        c.link("c", lab.url("c"))
        assert c.pull().version == 2
        assert tree_of(c.directory) == tree_of(w.directory)


def test_links_to_the_wrong_place_are_refused(lab: Lab) -> None:
    w = started(lab)
    lab.store("x").mkdir()
    with pytest.raises(UsageError) as e:
        w.link("a", lab.url("b"))
    says(e.value, "'a'")
    with pytest.raises(UsageError):
        w.link("a", lab.url("x"))
    with pytest.raises(UsageError) as e:
        w.link("nobody", lab.url("a"))
    says(e.value, "a, b, c")
    assert w.link("a", lab.url("a")).state == "ok"


def test_a_store_that_was_moved_is_linked_again(lab: Lab) -> None:
    w = started(lab)
    lab.store("a").rename(lab.store("moved"))
    w = lab.reopen(w)
    assert w.link("a", lab.url("moved")).state == "ok"
    write(w.directory, {"more.txt": b"more"})
    assert not w.push().down


# --- backends that answer garbage

PARTS = ["packs", "px", "keys", "meta", "const", "birth", "genesis", "devices"]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("part", "fault"),
    [
        *((part, fault) for part in PARTS for fault in ("html", "swapped")),
        *(("", fault) for fault in ("html", "garbage", "bit_flip", "truncated", "swapped")),
        *(
            (part, "absent") for part in PARTS if part != "px"
        ),  # to hide votes is to lie: 3 backends survive none that does
        *((part, "garbage") for part in ("keys", "genesis", "const")),
        *((part, "bit_flip") for part in ("packs", "px", "meta")),
    ],
)
def test_one_backend_that_answers_garbage(lab: Lab, part: str, fault: Any) -> None:
    w = started(lab, "a", "b", "c")
    plan = Plan(seed=1, rates={fault: 1.0}, paths=lambda path: part in path)
    lab.faults["a"].plan = plan
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more", "notes.txt": b"one\ntwo\n3\n"})
    v = w.push().version
    assert v == 2
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    write(c.directory, {"from-c": os.urandom(300)})
    c.push()
    w.pull()
    assert tree_of(c.directory) == tree_of(w.directory)
    lab.faults["a"].plan = None
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(c.directory) == tree_of(w.directory)


@pytest.mark.parametrize("fault", ["html", "garbage"])
def test_all_backends_answer_garbage(lab: Lab, fault: Any) -> None:
    w = started(lab)
    lab.hurry()
    for name in "abc":
        lab.faults[name].plan = Plan(seed=1, rates={fault: 1.0})
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    before = tree_of(w.directory)
    for act in (w.push, w.pull):
        with pytest.raises(MetaSyncError) as e:
            act()
        says(e.value, "a", "b", "c")
    assert tree_of(w.directory) == before
    with pytest.raises(MetaSyncError):
        lab.clone(lab.urls("a", "b", "c"))


# --- local trouble


def test_damaged_local_state(lab: Lab) -> None:
    w = started(lab)
    w.close()
    path = w.directory / ".metasync/state.db"
    good = path.read_bytes()
    for data in (b"no database at all" * 500, good[:4096] + os.urandom(len(good) - 4096)):
        for extra in ("-wal", "-shm"):
            Path(f"{path}{extra}").unlink(missing_ok=True)
        path.write_bytes(data)
        with pytest.raises(WorkspaceError) as e, Workspace.open(w.directory) as again:
            again.push()
        says(e.value, "state.db")
    path.write_bytes(good)


@pytest.mark.parametrize("key", ["config", "links", "base", "name", "memory", "newest"])
def test_nonsense_in_the_local_state(lab: Lab, key: str) -> None:
    w = started(lab)
    w.close()
    for value in (b"\x01" + b"\xff" * 40, b"", None):
        with sqlite3.connect(w.directory / ".metasync/state.db") as db:
            db.execute("DELETE FROM kv WHERE key = ?", (key,))
            if value is not None:
                db.execute("INSERT INTO kv VALUES (?, ?)", (key, value))
        db.close()
        if value is None and key in ("memory", "newest"):
            continue
        if (value, key) in ((b"", "memory"), (b"\x01" + b"\xff" * 40, "name"), (b"", "name")):
            continue  # as good as none
        with pytest.raises(MetaSyncError) as e, Workspace.open(w.directory) as again:
            again.push()
        says(e.value, ".metasync")


def test_keys_that_are_gone(lab: Lab) -> None:
    w = started(lab)
    w.close()
    path = w.directory / ".metasync/device.key"
    good = path.read_bytes()
    for data in (b"", good[:50], os.urandom(len(good))):
        path.write_bytes(data)
        with pytest.raises(WorkspaceError) as e:
            Workspace.open(w.directory)
        says(e.value, "keys")
    path.unlink()
    with pytest.raises(WorkspaceError) as e:
        Workspace.open(w.directory)
    says(e.value, "device.key")


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_an_unreadable_file_is_left_out_and_named(lab: Lab, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    w = started(lab)
    with monkeypatch.context() as m:
        unreadable(m, b"secret.txt", code)
        unreadable(m, b"notes.txt", code)
        write(w.directory, {"secret.txt": b"1", "notes.txt": b"changed\n", "other.txt": b"2"})
        r = w.push()
        assert {s.path for s in r.unreadable} == {b"secret.txt", b"notes.txt"}
        assert r.changes.added == (b"other.txt",)
        assert not r.changes.modified
        ran = lab.cli("push")
        assert ran.code == 1
        assert "secret.txt" in ran.out
    c = lab.clone(lab.urls("a", "b", "c"))
    assert (c.directory / "notes.txt").read_bytes() == FILES["notes.txt"]
    assert not (c.directory / "secret.txt").exists()
    r = w.push()
    assert r.changes.added == (b"secret.txt",)
    assert r.changes.modified == (b"notes.txt",)


def test_an_unreadable_directory_keeps_what_was_agreed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = started(lab)
    with monkeypatch.context() as m:
        unreadable(m, b"d")
        write(w.directory, {"other.txt": b"2"})
        r = w.push()
        assert {s.path for s in r.unreadable} == {b"d"}
        assert not r.changes.deleted
    assert set(tree_of(lab.clone(lab.urls("a", "b", "c")).directory)) >= {b"d", b"d/e/f", b"d/photo.bin"}


def test_a_file_that_changes_while_it_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = started(lab)
    write(w.directory, {"busy.log": b"0", "calm.txt": b"calm"})
    real = scan._Scanner.read_file
    reads = 0

    def read(self: Any, path: bytes, *seen: Any) -> Any:
        if path != b"busy.log":
            return real(self, path, *seen)
        ingest = self.ingest

        def writing(fd: int, st: os.stat_result, was: Any) -> Any:
            nonlocal reads
            reads += 1
            got = ingest(fd, st, was)
            (w.directory / "busy.log").write_bytes(b"%d" % reads)
            return got

        self.ingest = writing
        try:
            return real(self, path, *seen)
        finally:
            self.ingest = ingest

    with monkeypatch.context() as m:
        m.setattr(scan._Scanner, "read_file", read)
        r = w.push()
    assert reads == scan.READS_MAX
    assert [s.path for s in r.busy] == [b"busy.log"]
    assert r.changes.added == (b"calm.txt",)
    r = w.push()
    assert r.changes.added == (b"busy.log",)


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """A file system of 3 MiB for the device `desktop`."""
    place = lab.root / "desktop"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount")

    yield place
    for w in lab.open_workspaces:
        w.close()
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_at_a_pull(lab: Lab, small_disk: Path) -> None:
    """What has no room waits, and is told; the rest comes. It is no change of this device's."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"big": os.urandom(3_100_000), "notes.txt": b"new\n"})
    w.push()
    report = c.pull()
    assert [(u.path, "no room" in u.reason) for u in report.unplaced] == [(b"big", True)]
    assert (c.directory / "notes.txt").read_bytes() == b"new\n"
    assert c.push().version is None
    write(w.directory, {"big": b"small now"})
    w.push()
    assert c.pull().unplaced == ()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_full_disk_while_files_arrive(lab: Lab, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk said that there was room, and there is none. What did not arrive whole waits; nothing of it stays."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"big": os.urandom(1_500_000), "notes.txt": b"new\n"})
    w.push()
    filler = os.urandom(3 << 20)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "mine").write_bytes(filler)
    mine = (small_disk / "mine").read_bytes()
    (small_disk / "mine").write_bytes(mine[:-700_000])
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "free_bytes", lambda _self, _fd: 1 << 40)
        report = c.pull()
    assert b"big" in {u.path for u in report.unplaced}
    assert not (c.directory / "big").exists()
    (small_disk / "mine").unlink()
    c = lab.reopen(c)
    assert c.pull().unplaced == ()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_full_disk_at_a_push(lab: Lab, small_disk: Path) -> None:
    started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "mine").write_bytes(os.urandom(3 << 20))
    before = tree_of(c.directory)
    for _ in range(2):
        with pytest.raises(WorkspaceError) as e:
            c.push()
        says(e.value, "pace")
    assert tree_of(c.directory) == before
    data = (small_disk / "mine").read_bytes()
    (small_disk / "mine").write_bytes(data[:100_000])
    c = lab.reopen(c)
    c.push()
    assert tree_of(lab.clone(lab.urls("a", "b", "c"), device="third").directory) == tree_of(c.directory)


def test_a_clone_on_a_disk_that_is_too_small(lab: Lab, small_disk: Path) -> None:
    w = started(lab)
    write(w.directory, {"big": os.urandom(4_000_000)})
    w.push()
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "Free some space")
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "Free some space")
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


# --- two at once


def test_a_second_process_waits_or_says_who_holds_the_workspace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.local.lock import WorkspaceLock

    w = started(lab)
    monkeypatch.setattr(session, "WAIT_S", 0.3)
    with WorkspaceLock(w.directory / ".metasync").acquire("metasync push"):
        with pytest.raises(WorkspaceError) as e:
            w.pull()
        says(e.value, f"process {os.getpid()}", "metasync push", "Run again")
        assert w.status().version == 1
    assert w.pull().version == 1


def test_a_clone_takes_the_keyring_from_a_backend_that_has_it_intact(lab: Lab) -> None:
    w = started(lab)
    for ring in lab.store("a").glob("*/keys/ring-*"):
        ring.write_bytes(b"<html>please log in</html>")
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    for n in "bc":
        for ring in lab.store(n).glob("*/keys/ring-*"):
            ring.unlink()
    with pytest.raises(DamagedError, match="no keyring"):
        lab.clone(lab.urls("a", "b", "c"), device="phone")
