"""What a clone reads while the passphrase is stretched, and what becomes of it."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import Lab, tree_of, write

from metasync.backends.wrappers.wrapper import Call, Wrapper
from metasync.consensus import Group, Ref
from metasync.keys.derive import sha256
from metasync.members import admission, ahead, search
from metasync.session import agreement, open_backend
from metasync.workspace import Workspace

STEP_S, HUNG_S = 0.005, 60.0
FILES = {"a/one": b"1" * 5000, "a/two": b"2", "three": noise(70_000, 3), "four": noise(300_000, 4)}


class _Noting(Wrapper):
    """Notes each call, in the order in which they begin."""

    def __init__(self, inner: Any, notes: list[tuple[str, str]]) -> None:
        super().__init__(inner)
        self._notes = notes

    def around(self, call: Call, do: Callable[[], Any]) -> Any:
        self._notes.append((call.kind, call.path))
        return do()


class Watch:
    """A clone whose passphrase takes as long to stretch as what is read meanwhile. `meanwhile` is called after that.

    `before`, `after`: the calls until then, and from then on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[tuple[str, str]] = []
        self.before: list[tuple[str, str]] = []
        self.read: list[ahead.Ahead] = []
        self.meanwhile: Callable[[], object] = lambda: None
        made, opened, tried = ahead.Ahead.__init__, open_backend.reached, search._open

        def init(one: ahead.Ahead, *a: Any) -> None:
            made(one, *a)
            self.read.append(one)

        def stretched(*a: Any) -> Any:
            wait_for(lambda: self.is_read)
            self.before = list(self.notes)
            self.meanwhile()
            return tried(*a)

        monkeypatch.setattr(ahead.Ahead, "__init__", init)
        monkeypatch.setattr(open_backend, "reached", lambda *a, **k: _Noting(opened(*a, **k), self.notes))
        monkeypatch.setattr(search, "_open", stretched)

    @property
    def is_read(self) -> bool:
        """Whether nothing is being read ahead any more."""
        return bool(self.read) and not any(one.under_way for one in self.read)

    @property
    def after(self) -> list[tuple[str, str]]:
        return self.notes[len(self.before) :]

    def asked(self, part: str, kind: str = "get") -> list[str]:
        """The paths below a folder `part` that were asked for after the passphrase was stretched."""
        return [path for k, path in self.after if k == kind and f"/{part}/" in path]


def wait_for(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + HUNG_S
    while not is_so():
        assert time.monotonic() < ends, "hung"
        time.sleep(STEP_S)


@pytest.fixture
def watch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def published(lab: Lab, *names: str, **options: Any) -> Workspace:
    w = lab.init(lab.urls(*(names or ("a", "b", "c"))), **options)
    write(w.directory, FILES)
    w.push("first")
    return w


def test_a_small_workspace_is_read_while_the_passphrase_is_stretched(lab: Lab, watch: Watch) -> None:
    w = published(lab)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)
    for part in ("const", "meta", "packs"):
        assert watch.asked(part) == [], part
        assert any(f"/{part}/" in path for kind, path in watch.before if kind == "get"), part
    gets = Counter(path.rpartition("/")[2] for kind, path in watch.before if kind == "get" and "/packs/" in path)
    assert set(gets.values()) == {1}, "each pack is asked for once, whoever has it"
    assert d.status().newest == 2


def test_the_device_is_proposed_in_place_of_a_look(lab: Lab, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab)
    looks: list[bool] = []
    looking = agreement.looking

    def noted(*a: Any, **k: Any) -> Any:
        looks.append(k.get("preparing", False))
        return looking(*a, **k)

    monkeypatch.setattr(agreement, "looking", noted)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert looks == [True]
    kinds = [kind for kind, path in watch.after if "/px/" in path]
    assert kinds.count("create") == 6, "PREPARE and ACCEPT on each acceptor, and none was in vain"
    assert kinds.index("create") < 3, "no look was waited for"
    assert sum("/const/" in path for kind, path in watch.after if kind == "put") == 3, "the device set is stored once"
    assert d.status().newest == 2


def test_what_was_pushed_since_is_brought(lab: Lab, watch: Watch) -> None:
    w = published(lab)

    def push() -> None:
        write(w.directory, {"three": b"another", "five": b"5"})
        w.push("second")

    watch.meanwhile = push
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)
    assert d.status().newest == 3


def test_where_a_newer_version_is_listed_a_look_comes_first(lab: Lab, watch: Watch) -> None:
    w = published(lab)
    for n in range(2, 4):  # no hint names the third version
        write(w.directory, {"a/two": b"%d" % n})
        w.push()
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)
    assert d.status().newest == 4
    kinds = [kind for kind, path in watch.after if "/px/" in path]
    assert kinds.count("create") == 6, "no PREPARE met the third version"


@pytest.mark.parametrize("part", ["const", "meta", "packs"])
def test_what_is_not_what_its_name_says_is_read_elsewhere(lab: Lab, watch: Watch, part: str) -> None:
    w = published(lab)
    for path in lab.objects("a", part):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)


def test_a_pack_that_is_listed_and_gone_is_read_elsewhere(lab: Lab, watch: Watch) -> None:
    w = published(lab)
    for path in lab.objects("a", "packs"):
        path.unlink()
        path.mkdir()
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)


def test_nobody_waits_for_what_is_read_ahead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inventories hang: the clone ends all the same, and asks for everything as ever."""
    w = published(lab)
    over, asked = threading.Event(), threading.Event()
    opened = open_backend.reached

    class Hanging(Wrapper):
        def around(self, call: Call, do: Callable[[], Any]) -> Any:
            if call.kind == "inventory":
                asked.set()
                over.wait(HUNG_S)
            return do()

    monkeypatch.setattr(open_backend, "reached", lambda *a, **k: Hanging(opened(*a, **k)))
    tried = search._open

    def stretched(*a: Any) -> Any:
        assert asked.wait(HUNG_S)
        return tried(*a)

    monkeypatch.setattr(search, "_open", stretched)
    try:
        d = lab.clone(lab.urls("a", "b", "c"))
        assert tree_of(d.directory) == tree_of(w.directory)
        assert not over.is_set()
    finally:
        over.set()


@pytest.mark.parametrize("name", ["OBJECTS_MAX", "OBJECTS_BYTES_MAX", "PACKS_BYTES_MAX"])
def test_a_large_workspace_is_not_read_ahead(
    lab: Lab, watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    w = published(lab)
    monkeypatch.setattr(ahead, name, 1)
    d = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(d.directory) == tree_of(w.directory)
    parts = ("packs",) if name == "PACKS_BYTES_MAX" else ("const", "meta")
    for part in parts:
        assert not any(f"/{part}/" in path for kind, path in watch.before if kind == "get"), part


def test_a_device_set_on_an_emptied_acceptor_counts_for_nothing(
    lab: Lab, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored beside the PREPARE that found the acceptor emptied: it is stored again, on those that are sound."""
    published(lab)
    stored: list[bool] = []
    put = Group.put_const

    def put_const(self: Group, *a: Any) -> Any:
        stored.append(any(m.replaced for m in self.participant.acceptors.values()))
        return (yield from put(self, *a))

    monkeypatch.setattr(Group, "put_const", put_const)

    def empty() -> None:
        for path in lab.store("c").rglob("birth"):
            path.unlink()

    watch.meanwhile = empty
    lab.clone(lab.urls("a", "b", "c"))
    assert stored == [False, True]


def test_one_that_the_keys_of_the_hint_do_not_admit_looks_first(
    lab: Lab, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lab)
    asked: list[bool] = []
    ask = admission._ask_newest

    def asking(s: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(type(s.devices_of(s.newest_state())), "admits", lambda *_: False)
            newest = ask(s)
        asked.append(newest[1] is None)
        return newest

    monkeypatch.setattr(admission, "_ask_newest", asking)
    assert lab.clone(lab.urls("a", "b", "c")).status().newest == 2
    assert asked == [True]


def test_where_too_few_logs_are_listed_a_look_comes_first(
    lab: Lab, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lab)
    quiet: list[bool] = []
    is_quiet = ahead.Ahead.is_quiet

    def noted(self: ahead.Ahead, *a: Any) -> bool:
        quiet.append(is_quiet(self, *a))
        self._logs.popitem()
        for name in {n for n, _ in self._logs} - {"a"}:
            self._logs = {key: names for key, names in self._logs.items() if key[0] != name}
        quiet.append(is_quiet(self, *a))
        return quiet[-1]

    monkeypatch.setattr(ahead.Ahead, "is_quiet", noted)
    lab.clone(lab.urls("a", "b", "c"))
    assert quiet == [True, False]


def test_an_index_that_does_not_open_is_left_to_who_needs_it(lab: Lab) -> None:
    w = published(lab)
    with w._session("test") as s:
        state = s.newest_state()
        keys, junk = s.keys, b"no sealed record"
        read = s.runtime.run(s.group._get_meta(state.index, bytes))
    assert ahead.index_at_hand(keys, state, {}) == {}
    assert ahead.index_at_hand(keys, state, {state.index.hash: junk}) == {}
    other = dataclasses.replace(state, index=Ref(0, sha256(junk)))
    assert ahead.index_at_hand(keys, other, {sha256(junk): junk}) == {}, "agreed, and of nobody's keys"
    assert [*ahead.index_at_hand(keys, state, {state.index.hash: read})] == [state.index.hash]
