"""Clone: what a new device reads before its keys, and how it is agreed while files come."""

from __future__ import annotations

from typing import Any

import pytest
from workspace_kit import PASSPHRASE, QUICK_S, Lab, tree_of, write

from metasync.checkout.checkout import Checkout
from metasync.consensus import JOURNAL_KEY, Change, Group, State
from metasync.errors import DamagedError, ExcludedError, NoQuorumError, UnreachableError, UsageError
from metasync.members import admission
from metasync.runtime.effects import Sleep
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Session
from metasync.testing.counting import CountingBackend
from metasync.transfer.contents import Contents
from metasync.workspace import Workspace

STEP_S, HUNG_STEPS = 0.01, 6000
FILES = {"a/one": b"1" * 5000, "a/two": b"2", "three": b"3" * 70_000}


def published(lab: Lab, *names: str, **options: Any) -> Workspace:
    w = lab.init(lab.urls(*(names or ("a", "b", "c"))), **options)
    write(w.directory, FILES)
    w.push("first")
    return w


def agree_on_files(*workspaces: Workspace) -> None:
    for w in (*workspaces, *workspaces):
        w.sync()
    assert len({str(sorted(tree_of(w.directory).items())) for w in workspaces}) == 1


def test_the_new_device_is_agreed_beside_the_download(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab)
    order: list[str] = []
    entering, fetch = admission._entering, Contents.fetch

    def watched(*a: Any) -> Any:
        result = yield from entering(*a)
        order.append("agreed")
        return result

    def fetched(self: Contents, *a: Any, **k: Any) -> None:
        order.append("fetch")
        fetch(self, *a, **k)

    monkeypatch.setattr(admission, "_entering", watched)
    monkeypatch.setattr(Contents, "fetch", fetched)
    apply = Checkout.apply

    def applied(self: Checkout, *a: Any) -> Any:
        order.append("apply")
        return apply(self, *a)

    monkeypatch.setattr(Checkout, "apply", applied)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert "fetch" in order
    assert order.index("agreed") < order.index("apply")
    with d._session("test") as s:
        assert not s.db.has(JOURNAL_KEY)
        assert s.base_state() == s.newest_state()
        assert s.db.get(BASE_KEY) == s.newest_state()
        assert agreement.is_in(s, s.devices_of(s.base_state()))
    assert d.status().newest == 2


def test_the_connections_that_found_the_workspace_stay(lab: Lab) -> None:
    published(lab)
    before = len(lab._all_counts)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory).keys() >= {b"three"}
    assert sorted(place for place, _ in lab._all_counts[before:]) == ["a", "b", "c"], "each was opened once"


def test_nothing_is_asked_for_between_the_promise_and_the_vote(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling the index of its base asks for the state before that: it is read beside PREPARE."""
    published(lab)
    known: list[bool] = []
    really = agreement.proposing

    def proposing(s: Session, base: State, change: Change) -> Any:
        known.append(base.prev in s.group.participant.states)
        return really(s, base, change)

    monkeypatch.setattr(agreement, "proposing", proposing)
    lab.clone(lab.urls("a", "b", "c"))
    assert known == [True]


def test_a_state_before_that_cannot_be_read_stops_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab)

    def state_at(*_: Any) -> Any:
        raise DamagedError("gone")
        yield

    monkeypatch.setattr(Group, "state_at", state_at)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert d.status().newest == 2


def test_the_device_is_proposed_while_the_index_comes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab)
    order: list[str] = []
    index_files, entering = admission._index_files, admission._entering

    def slow(*a: Any) -> Any:
        for _ in range(HUNG_STEPS):
            if order:
                break
            yield Sleep(STEP_S)
        files = yield from index_files(*a)
        order.append("index")
        return files

    def watched(*a: Any) -> Any:
        order.append("proposing")
        return (yield from entering(*a))

    monkeypatch.setattr(admission, "_index_files", slow)
    monkeypatch.setattr(admission, "_entering", watched)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert order == ["proposing", "index"]
    assert d.status().newest == 2


def test_nothing_is_placed_for_a_device_that_is_not_let_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was revoked with the keys that admitted it, while its files came: no file of theirs is left behind."""
    published(lab)

    def excluded(*_: Any) -> Any:
        raise ExcludedError("the keys were changed since")
        yield

    monkeypatch.setattr(admission, "_entering", excluded)
    folder = lab.root / "late"
    with pytest.raises(ExcludedError):
        lab.clone(lab.urls("a", "b", "c"), device="late")
    assert not folder.exists()


def test_a_push_beside_it_is_lost_by_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab)
    news = {"a/two": b"changed", "new/four": b"4"}

    def push() -> None:
        write(w.directory, news)
        (w.directory / "three").unlink()
        w.push("second")

    real = admission.arrive

    def arrive(s: Session, *, read_only: bool) -> admission.Arrival:
        arrival = real(s, read_only=read_only)
        push()  # the device may be agreed before it or after it
        return arrival

    monkeypatch.setattr(admission, "arrive", arrive)
    d = lab.clone(lab.urls("a", "b", "c"))
    agree_on_files(w, d)
    assert tree_of(d.directory)[b"a/two"].data == b"changed"
    assert b"three" not in tree_of(d.directory)


def test_a_version_that_was_pushed_first_is_brought_with_the_device(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proposal of the new device is beaten by another one: it begins anew on top, and has that version too."""
    w = published(lab)
    real = admission._entering

    def beaten(s: Session, *a: Any) -> Any:
        write(w.directory, {"three": b"another"})
        w.push("second")
        return (yield from real(s, *a))

    monkeypatch.setattr(admission, "_entering", beaten)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory)[b"three"].data == b"another"
    assert d.status().newest == 3
    agree_on_files(w, d)


def test_a_clone_without_enough_voters_says_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three go away while the device is being agreed: the files learned of before come all the same."""
    published(lab, replicas=3)

    def proposing(s: Session, base: State, change: Change) -> Any:
        for name in "bc":
            lab.store(name).rename(lab.root / f"{name} is away")
        return s.group.propose(base, lambda: change, op_id=change.op_id, deadline_s=QUICK_S)

    lab.hurry()
    proposed = agreement.proposing
    monkeypatch.setattr(agreement, "proposing", proposing)
    folder = lab.root / "desktop"
    report = Workspace.clone(folder, name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE)
    d = lab.keep(report.workspace)
    assert report.problem
    assert report.version == 1
    assert {p: n.data for p, n in tree_of(d.directory).items() if n.kind == "file"} == {
        name.encode(): data for name, data in FILES.items()
    }
    for name in "bc":
        (lab.root / f"{name} is away").rename(lab.store(name))
    monkeypatch.setattr(agreement, "proposing", proposed)
    d = lab.reopen(d)
    with d._session("push") as s:
        s.db.set(JOURNAL_KEY, None)  # nothing but that it is no member calls for a push
    assert d.push().version is None, "no file has changed"
    assert {x.state for x in d.device_list().devices} == {"admitted"}, "and the push had it agreed"


@pytest.mark.long
def test_a_device_that_was_agreed_unnoticed_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers were lost, not the entry: the next command finds it, and the device set that only backends hold."""
    w = published(lab)
    real = admission._entering

    def unnoticed(*a: Any) -> Any:
        yield from real(*a)
        raise NoQuorumError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(admission, "_entering", unnoticed)
        folder = lab.root / "desktop"
        report = Workspace.clone(folder, name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE)
    assert "no answer" in report.problem
    later = lab.clone(lab.urls("a", "b", "c"), device="later")  # the newest device set is another one by now
    d = lab.reopen(lab.keep(report.workspace))
    with pytest.raises(UsageError):
        d.backend_set("a", new_name="b")  # finds it, and reads nothing of the version at which this device entered
    d = lab.reopen(d)
    write(d.directory, {"five": b"5"})
    assert d.push("from the new device").version == 4
    agree_on_files(w, d, later)


@pytest.mark.parametrize("away", ["c", "abc"])
def test_a_backend_that_goes_away_while_a_clone_begins(lab: Lab, monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """All of it was read, but who it is: the clone has no way to it, and says so."""
    w = published(lab)
    real = CountingBackend.identity

    def identity(self: CountingBackend) -> bytes:
        if any(self is lab.counts[name] for name in away):
            raise UnreachableError("no way there")
        return real(self)

    with monkeypatch.context() as m:
        m.setattr(CountingBackend, "identity", identity)
        if len(away) == 3:
            with pytest.raises(UnreachableError):
                lab.clone(lab.urls("a", "b", "c"))
            return
        d = lab.clone(lab.urls("a", "b", "c"))
    assert sorted(d._connections.links) == ["a", "b"]
    d.link("c", lab.url("c"))
    agree_on_files(w, d)
