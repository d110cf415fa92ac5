"""What a push asks of the backends that follows on another one of the same process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.backends.wrappers.wrapper import Call, T
from metasync.consensus.hints import HEAD_EVERY_S
from metasync.errors import NoQuorumError
from metasync.session.open_backend import Machine
from metasync.testing.counting import CountingBackend
from metasync.workspace import Workspace

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


def test_without_a_quorum_of_the_stores_nothing_is_proposed(lab: Lab, heard: Heard) -> None:
    w = warm(lab)
    lab.faults["b"].wipe()
    lab.faults["c"].wipe()
    lab.hurry(0.3)
    heard.take()
    write(w.directory, {"f": b"nobody may know of this"})
    with pytest.raises(NoQuorumError) as e:
        w.push()
    assert "may be committed" not in e.value.message
    assert heard.take()["create px"] == 0


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
