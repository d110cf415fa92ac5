"""What each change of the backends means, step by step: what may be added, who votes, weighs how much, and goes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.backends.api import Listed, Space
from metasync.config import (
    DEAD_TAG,
    DEFAULT_CAPACITY,
    NO_LIMIT,
    Acceptor,
    BackendEntry,
    Config,
    RedundancyClass,
    Replicate,
    Storage,
)
from metasync.consensus import birth_digest, birth_path, encode_birth
from metasync.errors import BackendError, NotFoundError, UnreachableError, UsageError
from metasync.moving import add_backend
from metasync.moving.reconfigure import Wanted
from metasync.session import agreement, open_backend, space
from metasync.session.folder import Link
from metasync.session.open_backend import NewBackend
from metasync.store import moves

MIB, GIB = 1 << 20, 1 << 30
NONCE = b"n" * 32
HERE = "f0"  # the folder of this workspace on a store


def place(n: int, what: int) -> bytes:
    """The id of backend n's vote (1), or of a place for its data."""
    return bytes([n, what]) * 8


def entry(n: int, form: Any = "log", *, places: int = 1, weight: int = GIB) -> BackendEntry:
    """Backend b`n`; without a form it does not vote."""
    born = birth_digest(NONCE)
    storage = tuple(Storage(place(n, 2 + k), born) for k in range(places))
    acceptor = Acceptor(place(n, 1), form, born) if form else None
    return BackendEntry(bytes([n]) * 16, f"b{n}", "memory", weight, bytes([n]) * 32, storage, acceptor)


def of(*entries: BackendEntry, f: int = 0) -> Config:
    return Config(entries, f=f, mode="bft" if f else "crash")


THREE, FOUR = of(entry(1), entry(2), entry(3)), of(entry(1), entry(2), entry(3), entry(4), f=1)


class Store:
    """Stands in for a store. `born`: the places of which it has the births, below `HERE`."""

    def __init__(self, born: tuple[bytes, ...] = (), identity: int = 9, form: str = "log") -> None:
        self.born, self.form, self.is_closed = born, form, False
        self.listed = [Listed("a file", 3), Listed(HERE, None)]
        self.error: BackendError = NotFoundError("is not there")
        self.form_reason = "it is a toy"
        self._identity = bytes([identity]) * 32

    def identity(self) -> bytes:
        return self._identity

    def list(self, _: str) -> list[Listed]:
        return self.listed

    def get(self, path: str, **_: Any) -> bytes:
        for at in self.born:
            if path == f"{HERE}/{birth_path(at)}":
                return encode_birth(at, NONCE)
        raise self.error

    def close(self) -> None:
        self.is_closed = True


class Probing(Store):
    def __init__(self, form: str, tells: str) -> None:
        super().__init__(form=form)
        self.tells = tells

    def probe(self) -> Any:
        return self.tells


class Bench:
    """A session on agreed backends, whose changes are noted and not made."""

    def __init__(self, patch: pytest.MonkeyPatch, top: Path) -> None:
        self.patch, self.top = patch, top
        self.config = THREE
        self.store: Any = Store()
        self.wanted: list[Wanted] = []
        self.dry: list[bool] = []
        self.steps: list[Any] = []
        self.drawn = 100
        self.joined: bytes | None = None
        connections = SimpleNamespace(
            links={}, agreed_names=set(), absent={}, store=lambda _: self.store, join=self._join,
            has_joined=lambda: self.steps.append("has joined"),
            machine=SimpleNamespace(opened=self._opened, reached=lambda *_: "way"),
        )  # fmt: skip
        self.s: Any = SimpleNamespace(
            connections=connections, directory=top / "workspace", entropy=self._entropy, listener=lambda _: None,
            previous=None, config=THREE,
        )  # fmt: skip
        patch.setattr(agreement, "newest", lambda _: SimpleNamespace(config=self.config))
        patch.setattr(add_backend, "change", self._change)
        patch.setattr(add_backend, "_free", lambda _: None)

    def _entropy(self, n: int) -> bytes:
        self.drawn += 1
        return bytes([self.drawn]) * n

    def _opened(self, name: str, _: Any, *, create: bool) -> Store:
        self.steps.append((name, create))
        opened: Store = self.store
        return opened

    def _join(self, name: str, backend_id: bytes, *_: Any) -> None:
        assert self.store.is_closed
        self.joined = backend_id
        self.steps.append(f"joins as {name}")

    def _change(self, _: Any, wanted: Wanted, *, passphrase: str | None = None, dry_run: bool = False) -> Any:
        self.wanted.append(wanted)
        self.dry.append(dry_run)
        return SimpleNamespace()

    def set_up(self, config: Config) -> None:
        self.config = self.s.config = config

    @property
    def made(self) -> Config:
        """What the last change makes of the agreed config."""
        return self.wanted[-1].make(self.config)

    def named(self, name: str) -> BackendEntry:
        found = self.made.named(name)
        assert found is not None
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


def names(config: Config) -> list[str]:
    return [b.name for b in config.backends]


# ---- add


@pytest.mark.parametrize(
    ("url", "is_there", "dry_run", "steps"),
    [
        ("file://{}/new", False, True, []),
        ("file://{}/new?role=storage", False, True, []),
        ("file://{}/new", True, True, [("new", False)]),
        ("sftp://somebody@host/new", False, True, [("new", False)]),
        ("file://{}/new", False, False, [("new", True), "joins as new", "has joined"]),
    ],
)
def test_a_dry_run_makes_and_joins_nothing(
    bench: Bench, url: str, is_there: bool, dry_run: bool, steps: list[Any]
) -> None:
    if is_there:
        (bench.top / "new").mkdir()
    add_backend.add(bench.s, url.format(bench.top), dry_run=dry_run)
    assert bench.steps == steps
    assert bench.dry == [dry_run]
    assert bench.wanted[0].joins == ("" if dry_run else "new")
    new = bench.named("new")
    assert bench.joined == (None if dry_run else new.backend_id)
    assert (new.acceptor is None) == ("storage" in url)
    assert bench.wanted[0].births.keys() == {
        new.storage[0].storage_id,
        *([new.acceptor.acceptor_id] if new.acceptor else []),
    }


def test_what_may_not_be_added_is_refused_before_anything_is_agreed(bench: Bench) -> None:
    with pytest.raises(UsageError, match="inside the workspace"):
        add_backend.add(bench.s, f"file://{bench.top}/workspace/store")
    assert bench.steps == []
    bench.store = Store(identity=2)
    with pytest.raises(UsageError, match="the store of the backend b2"):
        add_backend.add(bench.s, "memory://new")
    assert bench.wanted == []


def test_one_backend_takes_the_place_of_another_in_one_step(bench: Bench) -> None:
    add_backend.add(bench.s, "memory://new", replaces="b2")
    assert bench.wanted[0].leaves == bytes([2]) * 16
    assert sorted(names(bench.made)) == ["b1", "b3", "new"]
    add_backend.add(bench.s, "memory://new")
    assert bench.wanted[-1].leaves == b""
    assert sorted(names(bench.made)) == ["b1", "b2", "b3", "new"]
    bench.set_up(of(entry(1)))
    add_backend.add(bench.s, "memory://new", replaces="b1")
    assert sorted(names(bench.made)) == ["b1", "new"], "which is refused where the step is checked"
    with pytest.raises(UsageError, match=r"no backend of this workspace is called 'nobody'"):
        add_backend.add(bench.s, "memory://new", replaces="nobody")


def test_a_name_is_made_another_unless_it_was_given() -> None:
    assert add_backend._named("memory://b", ["a"])[0] == "b"
    assert add_backend._named("memory://b", ["b", "b-2"])[0] == "b-3"
    with pytest.raises(UsageError, match="is called 'b'"):
        add_backend._named("memory://x?name=b", ["b"])


def test_what_others_agreed_meanwhile_is_not_added_twice(bench: Bench) -> None:
    wanted = add_backend._adding(NewBackend("b9", "memory", GIB, "log", bytes([9]) * 32, True), bench.s.entropy)
    assert sorted(names(wanted.make(THREE))) == ["b1", "b2", "b3", "b9"]
    assert wanted.make(THREE).named("b9") is not None
    with pytest.raises(UsageError, match="another device has added a backend 'b9'"):
        wanted.make(of(entry(1), replace(entry(2), name="b9")))
    with pytest.raises(UsageError, match="another device has added the store of b9"):
        wanted.make(of(entry(1), replace(entry(2), identity=bytes([9]) * 32)))


@pytest.mark.parametrize(
    ("form", "role_both", "config", "votes"),
    [
        ("log", True, FOUR, "log"),
        ("log", False, FOUR, None),
        ("none", True, FOUR, None),
        ("block", True, THREE, "block"),
        ("block", True, FOUR, UsageError),
        ("block", False, FOUR, None),
    ],
)
def test_a_block_does_not_vote_where_some_may_lie(
    bench: Bench, form: Any, role_both: bool, config: Config, votes: Any
) -> None:
    wanted = add_backend._adding(NewBackend("b9", "memory", GIB, form, bytes([9]) * 32, role_both), bench.s.entropy)
    if votes is UsageError:
        with pytest.raises(UsageError, match="cannot vote where some may lie"):
            wanted.make(config)
        return
    new = wanted.make(config).named("b9")
    assert new is not None
    assert (new.acceptor.form if new.acceptor else None) == votes
    assert len(wanted.births) == (2 if votes else 1)


EQUAL = DEFAULT_CAPACITY


@pytest.mark.parametrize(
    ("weights", "unstored", "limit", "free", "weight"),
    [
        ((EQUAL, EQUAL), GIB, GIB, None, EQUAL),
        ((EQUAL, EQUAL), EQUAL, GIB, None, EQUAL),
        ((GIB, EQUAL), EQUAL, 5 * GIB, 100 * MIB, 5 * GIB),
        ((GIB, 3 * GIB), EQUAL, None, 100 * MIB, 90 * MIB),
        ((GIB, 3 * GIB), EQUAL, None, None, 2 * GIB),
    ],
    ids=["equal-but-for-one-without-data", "equal", "capacity", "free-space", "mean"],
)
def test_a_new_backend_weighs_like_those_that_hold_data(
    weights: tuple[int, int], unstored: int, limit: int | None, free: int | None, weight: int
) -> None:
    config = of(*(entry(n, weight=w) for n, w in enumerate(weights, 1)), entry(3, places=0, weight=unstored))
    new = NewBackend("b9", "memory", limit or DEFAULT_CAPACITY, "log", bytes(32), True)
    assert add_backend._weight(config, new, free) == weight


@pytest.mark.parametrize(("told", "free"), [({"": Space(7, 9)}, 7), ({}, None)])
def test_free_space_is_what_a_store_tells(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Space], free: int | None
) -> None:
    runtime = SimpleNamespace(run=None)
    monkeypatch.setattr(open_backend, "bare_runtime", lambda _: contextlib.nullcontext(runtime))
    monkeypatch.setattr(space, "ask", lambda *_: told)
    store: Any = Store()
    assert add_backend._free(store) == free


# ---- what takes part already


@pytest.mark.parametrize(
    ("identity", "linked", "leaves", "refused"),
    [
        (9, {}, None, False),
        (2, {}, None, True),
        (2, {}, 2, False),
        (2, {}, 1, True),
        (9, {"b2": 9}, None, True),
        (9, {"b2": 8}, None, False),
        (9, {"b2": 9}, 2, False),
    ],
)
def test_a_store_that_takes_part_is_added_only_in_its_own_place(
    bench: Bench, identity: int, linked: dict[str, int], leaves: int | None, refused: bool
) -> None:
    bench.s.connections.links = {n: Link("", "", (bytes([i]) * 32).hex()) for n, i in linked.items()}
    store: Any = Store(identity=identity)
    leaving = entry(leaves) if leaves is not None else None
    with pytest.raises(UsageError, match="the store of the backend b2") if refused else contextlib.nullcontext():
        add_backend._refuse_known(bench.s, "new", store, leaving)


@pytest.mark.parametrize(
    ("born", "leaves", "refused"),
    [
        ((), None, None),
        ((place(2, 1),), None, "metasync backend link b2 URL"),
        ((place(2, 3),), None, "metasync backend link b2 URL"),
        ((place(2, 2),), None, None),
        ((place(2, 1),), 1, "metasync backend link b2 URL"),
        ((place(2, 1), place(2, 2), place(2, 3)), 2, "Empty that store"),
        ((place(2, 1), place(2, 3)), 2, None),
        ((place(2, 2), place(2, 3)), 2, None),
        ((place(3, 2),), None, "metasync backend link b3 URL"),
    ],
    ids=["nothing", "vote", "data", "old-data", "another-leaves", "leaves-whole", "emptied", "no-vote", "no-voter"],
)  # fmt: skip
def test_a_store_that_holds_a_backend_under_another_identity_is_refused(
    bench: Bench, born: tuple[bytes, ...], leaves: int | None, refused: str | None
) -> None:
    """b2 was emptied once: it has a new place for data beside the one of old, which lies nowhere any more."""
    bench.set_up(of(entry(1), entry(2, places=2), entry(3, None)))
    store: Any = Store(born)
    leaving = bench.config.named(f"b{leaves}") if leaves is not None else None
    if refused is None:
        add_backend._refuse_known(bench.s, "new", store, leaving)
        return
    with pytest.raises(UsageError, match="what is at new holds the backend") as e:
        add_backend._refuse_known(bench.s, "new", store, leaving)
    assert refused in (e.value.next_step or "")


def test_an_answer_that_got_lost_is_no_missing_birth(bench: Bench) -> None:
    store: Any = Store()
    add_backend._refuse_known(bench.s, "new", store, None)
    store.error = UnreachableError("is away")
    with pytest.raises(UnreachableError):
        add_backend._refuse_known(bench.s, "new", store, None)


# ---- remove, drain


def test_a_backend_goes_and_is_asked_no_more_where_it_is_dead(bench: Bench) -> None:
    for dead, emptied in ((False, False), (False, True), (True, False)):
        add_backend.remove(bench.s, "b3", dead=dead, emptied=emptied)
        assert (names(bench.made), bench.wanted[-1].is_dead) == (["b1", "b2"], dead)
        assert (bool(bench.made.dead), bool(moves.to_empty(bench.made))) == (dead, emptied)


def test_one_that_went_may_be_said_to_be_dead_while_data_move(bench: Bench) -> None:
    bench.set_up(of(entry(1), entry(2)))
    bench.s.previous = THREE
    with pytest.raises(UsageError, match="is called 'b3'"):
        add_backend.remove(bench.s, "b3")
    with pytest.raises(UsageError, match="is called 'b4'"):
        add_backend.remove(bench.s, "b4", dead=True)
    add_backend.remove(bench.s, "b3", dead=True)
    assert (sorted(bench.made.dead), names(bench.made)) == ([bytes([3]) * 16], ["b1", "b2"])
    bench.config = bench.made
    assert DEAD_TAG in dict(bench.config.tags)
    add_backend.remove(bench.s, "b3", dead=True, emptied=True)
    assert moves.to_empty(bench.made) == {bytes([3]) * 16}, "the second step of it"
    bench.set_up(of(entry(1), entry(2), replace(entry(4), name="b3")))
    add_backend.remove(bench.s, "b3", dead=True)
    assert bench.wanted[-1].leaves == bytes([4]) * 16, "the one that is called so now"


def test_a_backend_that_is_drained_stays_with_the_least_of_weights(bench: Bench) -> None:
    add_backend.drain(bench.s, "b3")
    assert (names(bench.made), bench.named("b3").capacity_bytes) == (["b1", "b2", "b3"], 1)
    assert bench.named("b3").limit_bytes == GIB
    others = of(entry(1), entry(2))
    assert bench.wanted[-1].make(others) == others, "removed meanwhile"


# ---- set


def test_a_role_a_name_and_a_capacity_are_changed_each_by_itself(bench: Bench) -> None:
    was = THREE.named("b2")
    assert was is not None
    bench.store = None  # which a new vote needs
    add_backend.alter(bench.s, "b2", None, "other", None)
    assert bench.named("other") == replace(was, name="other")
    add_backend.alter(bench.s, "b2", 5 * GIB, None, None)
    assert bench.named("b2") == replace(was, capacity_bytes=5 * GIB)
    add_backend.alter(bench.s, "b2", None, None, "storage")
    assert bench.named("b2") == replace(was, acceptor=None)
    add_backend.alter(bench.s, "b2", None, None, "both")
    assert bench.made == THREE
    bench.set_up(of(entry(1), entry(2, None)))
    add_backend.alter(bench.s, "b2", None, None, None)
    assert bench.made == bench.config
    with pytest.raises(UsageError, match="no way to b2"):
        add_backend.alter(bench.s, "b2", None, None, "both")


def test_what_others_did_meanwhile_is_not_undone_by_a_set(bench: Bench) -> None:
    add_backend.alter(bench.s, "b2", None, "other", None)
    for others, why in (
        (of(entry(1)), "b2 was removed by another device"),
        (of(entry(1), entry(2), replace(entry(3), name="other")), "another backend is called 'other'"),
    ):
        with pytest.raises(UsageError, match=why):
            bench.wanted[-1].make(others)
    voteless = of(entry(1), entry(2, None))
    assert bench.wanted[-1].make(voteless).n == 1


def test_a_capacity_among_equal_backends_is_a_limit_until_each_has_one(bench: Bench) -> None:
    bench.set_up(of(entry(1, weight=EQUAL), entry(2, weight=EQUAL)))
    add_backend.alter(bench.s, "b2", 5 * GIB, None, None)
    assert (bench.named("b2").capacity_bytes, bench.named("b2").limit_bytes) == (EQUAL, 5 * GIB)
    bench.set_up(bench.made)
    add_backend.alter(bench.s, "b1", 3 * GIB, None, None)
    assert [b.capacity_bytes for b in bench.made.backends] == [3 * GIB, 5 * GIB]


@pytest.mark.parametrize(
    ("store", "config", "form", "refused"),
    [
        (Store(form="log"), THREE, "log", None),
        (Probing("log", tells="block"), THREE, "block", None),
        (Probing("log", tells="block"), FOUR, None, "cannot vote where some may lie"),
        (Probing("log", tells="none"), THREE, None, "may not vote: it has no atomic create"),
        (Probing("none", tells="log"), THREE, None, "may not vote: it is a toy"),
        (Store(form="none"), THREE, None, "may not vote: it is a toy"),
        (None, THREE, None, "this device has no way to b3"),
    ],
)
def test_a_vote_is_given_in_the_form_that_the_store_shows(
    bench: Bench, store: Any, config: Config, form: str | None, refused: str | None
) -> None:
    bench.store = store
    bench.set_up(config.with_backends([*config.backends, entry(5, None)]))
    wanted = Wanted("b5", lambda config: config)
    refused = refused and refused.replace("b3", "b5")
    if refused is not None:
        with pytest.raises(UsageError, match=refused):
            add_backend._new_acceptor(bench.s, entry(5, None), wanted)
        assert wanted.births == {}
        return
    acceptor = add_backend._new_acceptor(bench.s, entry(5, None), wanted)
    assert acceptor.form == form
    assert wanted.births.keys() == {acceptor.acceptor_id}
    add_backend.alter(bench.s, "b5", None, None, "both")
    given = bench.named("b5").acceptor
    assert given is not None
    assert bench.wanted[-1].births.keys() == {given.acceptor_id}


@pytest.mark.parametrize(("copies", "is_possible"), [(0, False), (1, True), (255, True), (256, False)])
def test_there_is_one_copy_at_least(bench: Bench, copies: int, is_possible: bool) -> None:
    with contextlib.nullcontext() if is_possible else pytest.raises(UsageError, match="one of everything"):
        add_backend.set_copies(bench.s, copies)
        assert bench.made.redundancy == (RedundancyClass(NO_LIMIT, Replicate(copies)),)
