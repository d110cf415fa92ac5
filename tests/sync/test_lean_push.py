"""What a push asks of the backends that follows on another one of the same process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.backends.wrappers.wrapper import Call, T
from metasync.consensus import Group
from metasync.consensus.hints import HEAD_EVERY_S
from metasync.errors import NoQuorumError
from metasync.runtime.effects import Task
from metasync.runtime.sizes import SMALL_BYTES_MAX
from metasync.session import agreement
from metasync.session.open_backend import Machine
from metasync.session.session import Session
from metasync.sync.no_change import SMALL_FILES_MAX
from metasync.testing.counting import CountingBackend
from metasync.workspace import Workspace
from metasync.worktree import merge_walk

NAMES = ("a", "b", "c")


def warm(lab: Lab) -> Workspace:
    """A workspace in memory whose process has pushed."""
    w = lab.init(lab.urls(*NAMES, kind="memory"))
    for n in range(3):
        write(w.directory, {"f": b"%d" % n})
        w.push()
    return w


class Heard:
    """The calls on all backends, by kind and what they are about."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.votes: Counter[str] = Counter()  # entries of logs by backend, from the beginning on
        self.under_way = 0
        self.changed = threading.Condition()

    def take(self) -> Counter[str]:
        """Those since the last time; waits for what is under way. What a push left behind may come later, or never."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.under_way == 0, timeout=60)
            taken, self.calls = self.calls, Counter()
            return taken


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    noted, around = Heard(), CountingBackend.around

    def listening(self: CountingBackend, call: Call, do: Callable[[], T]) -> T:
        parts = call.path.split("/")
        what = next((p for p in ("birth", "px", "packs", "meta", "devices", "hint", "floor") if p in parts), call.path)
        with noted.changed:
            noted.calls[f"{call.kind} {what}"] += 1
            noted.votes[parts[0]] += (call.kind, what) == ("create", "px")
            noted.under_way += 1
        try:
            return around(self, call, do)
        finally:
            with noted.changed:
                noted.under_way -= 1
                noted.changed.notify_all()

    monkeypatch.setattr(CountingBackend, "around", listening)
    return noted


def test_the_owner_of_a_version_looks_for_no_other(lab: Lab, heard: Heard) -> None:
    """Of several pushes the one that asks for least: a call that one left behind counts for the next."""
    w = warm(lab)
    least = None
    for n in range(8):
        heard.take()
        write(w.directory, {"f": b"once more %d" % n})
        assert w.push().version == 4 + n
        calls = heard.take()
        assert calls["get px"] == 0
        least = calls if least is None or calls.total() < least.total() else least
    assert least is not None
    assert least["create px"] <= 3
    assert least["put packs"] == 2
    assert least["get birth"] <= 3 + 2, "one beside each vote, and one beside each copy of the pack"
    assert least.total() <= 10


def test_a_push_with_nothing_to_do_still_asks_what_is_newest(lab: Lab) -> None:
    w = warm(lab)
    d = lab.clone(lab.urls(*NAMES, kind="memory"))
    write(d.directory, {"g": b"of the other"})
    d.push()
    assert w.push().pulled is not None
    assert (w.directory / "g").read_bytes() == b"of the other"


def test_an_owner_that_was_overtaken_merges(lab: Lab) -> None:
    """The other device's version stands in the way of the create, and is taken in."""
    w = warm(lab)
    d = lab.clone(lab.urls(*NAMES, kind="memory"))
    write(d.directory, {"g": b"of the other"})
    theirs = d.push().version
    write(w.directory, {"h": b"mine"})
    report = w.push()
    assert theirs is not None
    assert report.version == theirs + 1
    d.pull()
    assert tree_of(d.directory).keys() == tree_of(w.directory).keys() >= {b"f", b"g", b"h"}


def test_a_store_that_was_emptied_since_gets_no_pack_that_counts(lab: Lab) -> None:
    """Its birth is asked for beside the pack, and the copy goes to another store."""
    w = warm(lab)
    lab.faults["b"].wipe()
    for n in range(6):
        write(w.directory, {"f": b"after it was emptied %d" % n})
        report = w.push()
        assert report.under_replicated == 0
    third = lab.clone(lab.urls("a", "c", kind="memory"), device="third")
    assert len({p.pack for p in third.check().problems if p.pack}) <= 3, "what was there before it was emptied"


def test_one_copy_alone_goes_to_a_store_that_is_asked(lab: Lab, heard: Heard) -> None:
    w = lab.init(lab.urls(*NAMES, kind="memory"), replicas=1)
    asked = []
    for n in range(8):
        write(w.directory, {"f": b"%d" % n})
        w.push()
        asked.append(heard.take())
    assert all(calls["put packs"] == 1 for calls in asked)
    assert max(calls["get birth"] for calls in asked[2:]) >= 4, "one beside the pack, and one beside each vote"


@pytest.mark.parametrize("is_cold", [False, True])
def test_without_a_quorum_of_the_stores_nothing_is_proposed(lab: Lab, heard: Heard, is_cold: bool) -> None:
    """A process of its own begins with its proposal, and stores nothing."""
    w = warm(lab)
    w = lab.reopen(w) if is_cold else w
    lab.faults["b"].wipe()
    lab.faults["c"].wipe()
    lab.hurry(0.3)
    heard.take()
    write(w.directory, {"f": b"nobody may know of this"})
    with pytest.raises(NoQuorumError) as e:
        w.push()
    assert "may be committed" not in e.value.message
    stored = heard.take()["put packs"]
    if is_cold:
        assert stored == 0
    else:
        assert max(heard.votes.values()) <= 1 + 3, "those of init and of the pushes, of which some may come late"


def test_the_next_process_asks_for_no_floor_that_was_not_there_today(
    lab: Lab, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = warm(lab)
    for mark in ((), ("another machine, or one that slept",)):
        if mark:
            monkeypatch.setattr(Machine, "mark", lambda _, mark=mark: mark)
        w.close()
        w = lab.reopen(w)
        heard.take()
        write(w.directory, {"f": repr(mark).encode()})
        w.push()
        floors = heard.take()["get floor"]
        assert floors >= 2 if mark else floors == 0


def cold(lab: Lab, w: Workspace, heard: Heard) -> Counter[str]:
    """What the next process asks for that pushes."""
    w.close()
    heard.take()
    w = lab.reopen(w)
    w.push()
    w.close()
    calls = heard.take()
    del calls["identity "]  # asks a store in memory, and no provider
    return calls


def test_a_process_of_its_own_begins_with_its_proposal(lab: Lab, heard: Heard) -> None:
    """Where this device pushed last no look goes before it. Of several pushes the one that asks for least: some store
    a merged index, and one may take up a call that another left behind."""
    w = warm(lab)
    least = None
    for n in range(8):
        write(w.directory, {"f": b"a process each %d" % n})
        calls = cold(lab, w, heard)
        least = calls if least is None or calls.total() < least.total() else least
    assert least is not None
    assert least["create px"] <= 6, "PREPARE and ACCEPT"
    assert least["get birth"] <= 6, "one beside each"
    assert least["get px"] <= 3, "what was last seen there is still there"
    assert least["put packs"] == 2
    assert least["put devices"] <= 3
    assert least.total() <= 20


@pytest.mark.parametrize("what", ["another device", "large", "many", "nothing"])
def test_a_process_looks_first_where_a_proposal_might_be_in_vain(lab: Lab, heard: Heard, what: str) -> None:
    """Another device pushed last; or the push takes long, and would keep others waiting; or there is nothing to do."""
    w = warm(lab)
    if what == "another device":
        d = lab.clone(lab.urls(*NAMES, kind="memory"))
        write(d.directory, {"g": b"of the other"})
        d.push()
        w.pull()
    w.close()
    heard.take()
    w = lab.reopen(w)
    if what == "large":
        write(w.directory, {"f": bytes(SMALL_BYTES_MAX + 1)})
    elif what == "many":
        write(w.directory, {f"many/{n}": b"%d" % n for n in range(SMALL_FILES_MAX + 1)})
    elif what != "nothing":
        write(w.directory, {"f": b"small"})
    asked: list[str] = []
    real = Group.get_recent

    def looks(*words: object, **more: object) -> Task:
        asked.append("look")
        return real(*words, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "get_recent", looks)
        report = w.push()
    assert (report.version is None) is (what == "nothing")
    assert asked == ["look"]
    if what == "nothing":
        assert heard.take()["create px"] == 0


def test_a_large_folder_is_looked_for_beside_its_walk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is newest is not asked after the walk where that takes long."""
    w = warm(lab)
    monkeypatch.setattr(merge_walk, "LOOKED_EVERY", 1)
    w = lab.reopen(w)
    asked: list[str] = []
    looking, walk = agreement.looking, merge_walk.walk_index

    def look(s: Session, **how: object) -> object:
        asked.append("look")
        return looking(s, **how)  # type: ignore[arg-type]

    def walked(*words: object) -> object:
        found = walk(*words)  # type: ignore[arg-type]
        asked.append("walked")
        return found

    monkeypatch.setattr(agreement, "looking", look)
    monkeypatch.setattr("metasync.sync.no_change.walk_index", walked)
    assert w.push().version is None
    assert asked == ["look", "walked"]
    write(w.directory, {"f": b"something"})
    w = lab.reopen(w)
    assert w.push().version is not None
    assert asked == ["look", "walked"] * 2, "one look"


def test_news_that_a_proposal_met_are_merged(lab: Lab) -> None:
    """It found another device's version in its place."""
    w = warm(lab)
    d = lab.clone(lab.urls(*NAMES, kind="memory"))
    write(d.directory, {"g": b"of the other"})
    theirs = d.push().version
    w = lab.reopen(w)
    write(w.directory, {"h": b"mine"})
    report = w.push()
    assert theirs is not None
    assert report.version == theirs + 1
    assert (w.directory / "g").read_bytes() == b"of the other"


def test_heads_are_written_once_a_minute_and_in_the_end(lab: Lab, heard: Heard) -> None:
    w = warm(lab)
    heard.take()
    for n in range(3):
        write(w.directory, {"f": b"again %d" % n})
        w.push()
    assert heard.take()["put devices"] == 0
    head = w._connections.head
    assert head.written_s is not None
    head.written_s -= HEAD_EVERY_S
    write(w.directory, {"f": b"a minute later"})
    w.push()
    assert heard.take()["put devices"] >= 2
    write(w.directory, {"f": b"the last one"})
    last = w.push().version
    assert heard.take()["put devices"] == 0
    w.close()
    assert heard.take()["put devices"] >= 2
    d = lab.clone(lab.urls(*NAMES, kind="memory"))
    with d._session("test") as s:
        heads = s.runtime.run(s.group.read_heads(s.newest_state(), [w._connections.device.device_id], list(NAMES)))
    assert [h.v for h in heads.values() if h] == [last]
