"""What happens beside what: a push or pull waits for no answer that it does not need yet.

A call is held until another one has begun, for seconds at most: one that would only begin after it shows that the two
follow each other.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from workspace_kit import Lab, write

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.wrappers.wrapper import Call, Wrapper
from metasync.consensus import Ref, chain
from metasync.consensus.acceptors import log
from metasync.consensus.records.entry import with_refs
from metasync.local.state import LocalDb
from metasync.local.state_keys import Key
from metasync.session import open_backend
from metasync.session.agreement import LINE_KEY
from metasync.session.folder import BASE_KEY
from metasync.sync import no_change

T = TypeVar("T")
LONG_S = 20.0  # for what begins at once where it is not waited for in vain


class Watched:
    """All calls on all backends, in the order in which they begin; some held back until `wait` returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.hold: Callable[[str], None] = lambda _: None
        self._changed = threading.Condition()
        really = open_backend.opened

        def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
            return _Seen(really(name, url, create=create), self)

        monkeypatch.setattr(open_backend, "opened", opened)

    def call(self, call: Call) -> None:
        what = f"{call.kind} {call.path}"
        with self._changed:
            self.begun.append(what)
            self._changed.notify_all()
        self.hold(what)

    def await_(self, *parts: str) -> None:
        """Waits until calls have begun in which each of these stands."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: all(any(part in what for what in self.begun) for part in parts), timeout=LONG_S
            )
        assert there, f"{parts} did not begin: {self.begun}"

    def are_begun(self, part: str, count: int) -> bool:
        """Waits until so many different calls have begun in which this stands."""
        with self._changed:
            return self._changed.wait_for(lambda: len({w for w in self.begun if part in w}) >= count, timeout=LONG_S)

    def forget(self) -> None:
        self.begun.clear()


class _Seen(Wrapper):
    def __init__(self, inner: Backend, watched: Watched) -> None:
        super().__init__(inner)
        self.watched = watched

    def around(self, call: Call, do: Callable[[], T]) -> T:
        self.watched.call(call)
        return do()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize(("first", "size"), [(False, 5), (True, 1_500_000)], ids=["later", "first, 1.5 MB"])
def test_packs_index_and_prepare_are_one_step(watched: Watched, lab: Lab, first: bool, size: int) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    if not first:
        write(w.directory, {"x": b"x"})
        w.push()
        w = lab.reopen(w)
    write(w.directory, {"x": random.Random(1).randbytes(size)})
    watched.forget()
    failed: list[AssertionError] = []

    def hold(what: str) -> None:
        if "/packs/" in what:
            try:
                watched.await_("/meta/", "create")
            except AssertionError as e:
                failed.append(e)

    watched.hold = hold
    assert w.push().version == (1 if first else 2)
    assert failed == []


def test_nothing_is_agreed_before_packs_and_index_are_stored(watched: Watched, lab: Lab) -> None:
    """PREPARE may go out beside them, one create on each backend; the vote may not."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"x"})
    w.push()
    w = lab.reopen(w)
    write(w.directory, {"x": b"other"})
    released = threading.Event()
    for held in ("/packs/", "/meta/"):
        too_many_to_ride = {f"{held[1:-1]}-{n}": f"{held} {n}".encode() for n in range(50)}
        write(w.directory, too_many_to_ride)
        watched.forget()
        released.clear()

        def hold(what: str, held: str = held) -> None:
            if held in what and what.startswith("put"):
                released.wait(LONG_S)

        watched.hold = hold
        pushing = threading.Thread(target=w.push)
        pushing.start()
        watched.await_(held, "create")
        pushing.join(0.3)  # long enough for what would not wait
        creates = sum(what.startswith("create") for what in watched.begun)
        released.set()
        pushing.join()
        assert creates == 3
        w = lab.reopen(w)
        write(w.directory, {"x": b"once more"})


def test_the_folder_is_walked_while_news_are_asked_for(
    watched: Watched,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"x"})
    w.push()
    w = lab.reopen(w)
    walked = threading.Event()
    really = no_change.walk_index

    def differences(*args: object) -> object:
        watched.await_("/px/")
        differing = really(*args)  # type: ignore[arg-type]
        walked.set()
        return differing

    monkeypatch.setattr(no_change, "walk_index", differences)
    late: list[str] = []

    def hold(what: str) -> None:
        if "/px/" in what and not walked.wait(LONG_S):
            late.append(what)

    watched.hold = hold
    assert w.push().version is None
    assert late == []


@pytest.mark.long
def test_the_way_back_to_skip_is_at_hand(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each push by a process of its own, which remembers nothing."""
    w = lab.init(lab.urls("a", "b", "c"))
    fetched: list[str] = []
    really = chain.get_anywhere

    def get_anywhere(copies: object, bytes_max: int, what: str) -> object:
        fetched.append(what)
        return really(copies, bytes_max, what)  # type: ignore[arg-type]

    monkeypatch.setattr(chain, "get_anywhere", get_anywhere)
    for v in range(1, 17):
        write(w.directory, {"x": b"%d" % v})
        assert w.push().version == v
        w = lab.reopen(w)
    assert fetched == []
    assert len(w._db.get(LINE_KEY) or ()) == 1, "of 16 on there is one way back"
    w._db.set_value(LINE_KEY.name, b"damaged")
    for v in range(17, 21):
        write(w.directory, {"x": b"%d" % v})
        assert w.push().version == v
        w = lab.reopen(w)
    assert fetched == [], "what was damaged is begun anew"
    w._db.set(LINE_KEY, None)
    for v in range(21, 25):
        write(w.directory, {"x": b"%d" % v})
        w._db.set(LINE_KEY, None)
        assert w.push().version == v
        w = lab.reopen(w)
    assert fetched == ["the state of version 22", "the state of version 20"]


def test_the_others_are_told_while_the_outcome_is_recorded(
    watched: Watched,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"x"})
    recorded = threading.Event()
    really = LocalDb.set

    def set_(db: LocalDb, key: Key[Any], value: Any) -> None:
        really(db, key, value)
        if key == BASE_KEY:
            recorded.set()

    monkeypatch.setattr(LocalDb, "set", set_)
    late: list[str] = []

    def hold(what: str) -> None:
        if "/devices/" in what and not recorded.wait(LONG_S):
            late.append(what)

    watched.hold = hold
    assert w.push().version == 1
    assert any("/devices/" in what for what in watched.begun)
    assert late == []


def test_a_small_pull_reads_a_pack_once(watched: Watched, lab: Lab) -> None:
    """Its trees and its files, which are all wanted."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"d/x": b"x" * 500, "y": b"y"})
    w.push()
    d = lab.clone(urls)
    w.pull()  # else its push is overtaken by the new device, and stores its snapshot twice
    write(w.directory, {"d/x": b"other" * 200})
    w.push()
    watched.forget()
    d.pull()
    assert (d.directory / "d/x").read_bytes() == b"other" * 200
    assert sum("/packs/" in what for what in watched.begun) == 1


def test_a_pull_reads_the_root_of_the_index_and_what_is_new_in_it_side_by_side(
    watched: Watched,
    lab: Lab,
) -> None:
    """Who voted for the version has said what its index names anew."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"x": b"x"})
    w.push()
    d = lab.clone(urls)
    write(w.directory, {"x": b"other"})
    w.push()
    watched.forget()
    alone: list[str] = []

    def hold(what: str) -> None:
        if "/meta/" in what and not watched.are_begun("/meta/", 2):
            alone.append(what)

    watched.hold = hold
    d.pull()
    assert (d.directory / "x").read_bytes() == b"other"
    assert alone == []


@pytest.mark.few(1)
@pytest.mark.parametrize("said", [(), (Ref(0, bytes(32)),), (Ref(7, b"\x07" * 32),) * 4], ids=["none", "zero", "false"])
def test_what_is_said_of_an_index_is_a_hint_alone(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    said: tuple[Ref, ...],
) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"x": b"x"})
    w.push()
    d = lab.clone(urls)
    write(w.directory, {"x": b"other"})
    monkeypatch.setattr(log, "with_refs", lambda entry, _: with_refs(entry, said))
    w.push()
    d.pull()
    assert (d.directory / "x").read_bytes() == b"other"


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_news_are_taken_in_where_nothing_changed_here(lab: Lab, command: str) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"x": b"x"})
    w.push()
    d = lab.clone(urls)
    write(d.directory, {"y": b"y"})
    d.push()
    w = lab.reopen(w)
    getattr(w, command)()
    assert (w.directory / "y").read_bytes() == b"y"
    assert lab.reopen(w).push().version is None
