"""Key files on several backends: which count, which may be deleted, and what is copied where. Each rule by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasync.errors import FormatError, UnreachableError
from metasync.events import Notice
from metasync.local.state_keys import KeyCopies, PendingKeys
from metasync.members import key_copies, key_store
from metasync.runtime.effects import Op, Reply

KEY, OTHER = (1, b"K"), (1, b"L")


def copies(slots: dict[str, tuple[tuple[int, bytes] | None, tuple[str, ...]]], *heard: str) -> key_copies.Copies:
    """What these backends hold: for each slot its key, and who has it."""
    files = SimpleNamespace(slots=slots, names=dict.fromkeys(heard), holders=lambda name: slots[name][1])
    return key_copies.Copies(cast(Any, files))


@pytest.fixture
def keys_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "key_of", lambda slot: slot[0])


@pytest.mark.usefixtures("keys_of_slots")
def test_a_slot_is_in_force_by_what_a_quorum_holds() -> None:
    voters = [(SimpleNamespace(name=name), None) for name in "abc"]
    config, devices = SimpleNamespace(acceptors=voters, quorum=2), SimpleNamespace(slots=[KEY])

    def found(slots: dict[str, Any], *heard: str) -> key_copies.Copies:
        out = copies(slots, *heard)
        key_copies._find_slots(cast(Any, devices), cast(Any, config), out)
        return out

    assert found({"one": (KEY, ("a",))}, "a", "b").slots == {KEY: "one"}
    assert found({"one": (KEY, ("a",))}, "a").unclear == [KEY], "too few were heard"
    assert found({"of another": (OTHER, ("a", "b"))}, "a", "b").slots == {}
    two = found({"newer": (KEY, ("a", "b")), "older": (KEY, ("c",))}, "a", "b", "c")
    assert (two.slots, two.stale, two.unclear) == ({KEY: "newer"}, {"older": ("c",)}, [])
    apart = found({"newer": (KEY, ("a",)), "older": (KEY, ("c",))}, "a", "b", "c")
    assert (apart.slots, apart.stale, apart.unclear) == ({}, {}, [KEY])


@pytest.mark.usefixtures("keys_of_slots")
def test_a_slot_is_old_if_it_opens_an_agreed_older_ring_and_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key may open the rings of several epochs, since a passphrase stays as a rule: its slot is not to go."""
    ring = SimpleNamespace(chain=SimpleNamespace(keys=(b"first",)), admin_wraps=[(SimpleNamespace(key=KEY[1]), b"")])
    read: list[str] = []
    monkeypatch.setattr(key_copies, "_ring_of", lambda s, found, name: read.append(name) or name)
    monkeypatch.setattr(key_copies, "_read", {"agreed": ring, "lost": None}.get)

    def old(name: str, *in_force: tuple[int, bytes], first: bytes = b"first", rings: tuple[int, ...] = (1,)) -> object:
        read.clear()
        found = copies({"slot": (KEY, ("a", "b")), "other": (OTHER, ("a",)), "none": (None, ("a",))}, "a", "b")
        found.rings = dict.fromkeys(rings, name)
        devices = SimpleNamespace(slots=in_force, chain=SimpleNamespace(keys=(first, b"second")))
        key_copies._find_old(cast(Any, None), cast(Any, SimpleNamespace(epoch=2)), cast(Any, devices), found)
        return found.old

    assert old("agreed") == {"slot": ("a", "b")}
    assert old("agreed", KEY) == {}
    assert read == ["agreed"], "for the other one"
    assert old("agreed", KEY, OTHER) == {}
    assert read == [], "every slot has a use"
    assert old("agreed", first=b"of another chain") == {}
    assert old("lost") == old("agreed", rings=()) == {}


@pytest.mark.parametrize(("lacking", "left"), [({"b": ("in force",)}, ("a",)), ({"b": ("ring",)}, ("a", "b"))])
def test_old_slots_stay_where_one_in_force_is_missing(
    lacking: dict[str, tuple[str, ...]], left: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[object] = []
    monkeypatch.setattr(key_store, "remove", lambda s, names: removed.append(names) or ())
    monkeypatch.setattr(key_copies, "_noted", lambda _: key_copies.KeyCopies(1, {}))
    monkeypatch.setattr(key_copies, "note", lambda *_: None)
    found = copies({}, "a", "b")
    found.slots, found.old, found.lacking = {KEY: "in force"}, {"old": ("a", "b")}, lacking
    key_copies._settle(cast(Any, SimpleNamespace(names={})), cast(Any, SimpleNamespace(epoch=1)), found)
    assert removed == [{"old": left}]


@pytest.mark.parametrize(
    ("noted", "pending", "silent"),
    [(1, "", {"b"}), (2, "", set()), (2, "b", {"b"}), (2, "a", set())],
)  # fmt: skip
def test_one_that_was_not_heard_is_noted_if_the_keys_are_newer_or_it_lacked_some(
    noted: int, pending: str, silent: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had all of them when it was heard last has them still."""
    told: list[object] = []
    note = KeyCopies(noted, {name.encode().hex(): PendingKeys(True, 0.0) for name in pending})
    monkeypatch.setattr(key_store, "remove", lambda *_: ())
    monkeypatch.setattr(key_copies, "_noted", lambda _: note)
    monkeypatch.setattr(key_copies, "note", lambda s, epoch, away, refusing: told.append((epoch, away, refusing)))
    s = SimpleNamespace(names={b"a": "a", b"b": "b"})
    key_copies._settle(cast(Any, s), cast(Any, SimpleNamespace(epoch=2)), copies({}, "a"))
    assert told == [(2, silent, ())]


# --- what is read, and what is copied where


def named(kind: str, data: bytes) -> str:
    return f"{kind}-{hashlib.sha256(data).hexdigest()}"


class Stores:
    """What lies below `keys/` on several backends; `log` has each call. Of those `away` none is answered, and those
    that are `full` of a name refuse it."""

    def __init__(self, **held: dict[str, bytes]) -> None:
        self.held = held
        self.away: set[str] = set()
        self.full: dict[str, str] = {}
        self.log: list[str] = []

    def run(self, ops: Mapping[Any, Op]) -> dict[Any, Reply]:
        return {key: self._reply(op) for key, op in ops.items()}

    def _reply(self, op: Op) -> Reply:
        name = op.path.removeprefix("keys/")
        self.log.append(f"{op.kind} {op.backend} {name}")
        if op.backend in self.away or self.full.get(op.backend) == name:
            return Reply(error=UnreachableError(f"{op.backend}: no", next_step=""))
        if op.kind == "put":
            self.held[op.backend][name] = op.data
            return Reply()
        return Reply(self.held[op.backend][name])

    def found(self) -> key_copies.Copies:
        slots = {n: d for held in self.held.values() for n, d in held.items() if n.startswith("slot")}
        return key_copies.Copies(key_store.KeyFiles({b: tuple(held) for b, held in self.held.items()}, slots))

    @property
    def session(self) -> Any:
        return SimpleNamespace(runtime=self)


@pytest.fixture(autouse=True)
def no_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_copies, "each", lambda ops: ops)


SLOT, RING = named("slot-1", b"slot"), named("ring-1", b"ring")


def test_each_gets_what_it_lacks_and_what_it_refuses_is_still_lacking() -> None:
    """Else the old slots of a backend went that has not got the new ones."""
    stores = Stores(a={SLOT: b"slot", RING: b"ring"}, b={SLOT: b"slot"}, c={}, d={SLOT: b"rotten"})
    stores.full = {"c": SLOT}
    found = stores.found()
    found.files.slots[SLOT] = b"slot"
    found.slots, found.rings = {KEY: SLOT}, {1: RING}
    found.lacking = {"b": (RING,), "c": (RING, SLOT), "d": (SLOT,)}
    assert key_copies._bring(stores.session, found) == {"b": (RING,), "c": (RING,), "d": (SLOT,)}
    assert found.lacking == {"c": (SLOT,)}
    puts = [call for call in stores.log if call.startswith("put")]
    assert puts == [f"put b {RING}", f"put c {RING}", f"put c {SLOT}", f"put d {SLOT}"]


def test_what_no_backend_has_intact_is_brought_to_none() -> None:
    stores = Stores(a={RING: b"rotten"}, b={})
    found = stores.found()
    found.rings, found.lacking = {1: RING}, {"b": (RING,)}
    assert key_copies._bring(stores.session, found) == {}
    assert (found.lacking, stores.log) == ({"b": (RING,)}, [f"get a {RING}"])


def test_a_ring_is_read_once_from_the_first_that_has_it_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only so many are: whoever may write to a store can leave names there."""
    stores = Stores(a={RING: b"ring"}, b={RING: b"rotten"}, c={RING: b"ring"}, d={RING: b"ring"})
    stores.away = {"a"}
    found = stores.found()
    for _ in range(2):
        assert key_copies._ring_of(stores.session, found, RING) == b"ring"
    assert stores.log == [f"get a {RING}", f"get b {RING}", f"get c {RING}"]
    monkeypatch.setattr(key_copies, "FETCHES_MAX", 1)
    other = named("ring-2", b"other")
    stores.held["c"][other] = b"other"
    found.files = stores.found().files
    assert key_copies._ring_of(stores.session, stores.found(), other) == b"other"
    assert key_copies._ring_of(stores.session, found, other) is None
    assert len(stores.log) == 4


def test_of_several_rings_of_an_epoch_the_one_of_the_agreed_chain_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is rotten everywhere, is no ring, or is of another chain, on however many backends."""

    def read(data: bytes) -> Any:
        if data.startswith(b"junk"):
            raise FormatError("no ring")
        return SimpleNamespace(chain=SimpleNamespace(keys=(data,)))

    rings = {named("ring-1", data): data for data in (b"junk", b"of another chain", b"agreed")}
    rotten = {named("ring-1", b"lost"): b"rotten"}
    few = {name: data for name, data in rings.items() if data != b"agreed"}
    stores = Stores(a={**rings, **rotten}, b={**few, **rotten}, c=rotten)
    monkeypatch.setattr(key_copies, "read_ring", read)
    found = stores.found()
    devices = SimpleNamespace(chain=SimpleNamespace(keys=(b"agreed", b"second")))
    state = SimpleNamespace(epoch=2, keyring=bytes(32))
    key_copies._find_rings(stores.session, cast(Any, state), cast(Any, devices), found)
    assert found.rings == {1: named("ring-1", b"agreed")}


@pytest.mark.parametrize(("everywhere", "read"), [(True, []), (False, [f"get a {RING}"])])
def test_the_only_ring_of_an_epoch_is_read_before_it_is_copied(everywhere: bool, read: list[str]) -> None:
    """It may be none. Where all have it there is nothing to copy."""
    stores = Stores(a={RING: b"ring"}, b={RING: b"ring"} if everywhere else {})
    found, state = stores.found(), SimpleNamespace(epoch=2, keyring=bytes(32))
    key_copies._find_rings(stores.session, cast(Any, state), cast(Any, None), found)
    assert (found.rings, stores.log) == ({1: RING} if everywhere else {}, read)


def test_a_copy_that_cannot_be_read_counts_as_altered() -> None:
    stores = Stores(a={RING: b"ring"}, b={RING: b"rotten"}, c={RING: b"ring"})
    stores.away = {"c"}
    found = stores.found()
    found.rings = {1: RING}
    assert key_copies._altered(stores.session, found) == {"b": {RING}, "c": {RING}}


@pytest.mark.usefixtures("keys_of_slots")
def test_a_new_backend_gets_the_most_common_slot_where_it_is_not_clear_which_is_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one key, by those that answer; the new backend itself is not asked."""
    asked: list[str] = []
    found = copies({"x": (KEY, ("a",)), "y": (KEY, ("a", "b")), "z": (OTHER, ("a", "b", "c"))}, "a", "b", "c")
    found.unclear = [KEY]
    monkeypatch.setattr(key_copies, "look", lambda s, state, names: asked.extend(names) or found)
    s = SimpleNamespace(names=dict(enumerate("abcde")), down={"d"})
    assert key_copies.give(cast(Any, s), cast(Any, None), "e") == {"keys/y": found.files.slots["y"]}
    assert asked == ["a", "b", "c"]


@pytest.mark.parametrize("brought", [{}, {"b": ("ring",)}])
def test_a_push_asks_those_that_answer_and_of_the_others_those_whose_turn_it_is(
    monkeypatch: pytest.MonkeyPatch, brought: dict[str, tuple[str, ...]]
) -> None:
    asked: list[str] = []
    told: list[Notice] = []
    names = {name.encode(): name for name in "abcd"}
    pending = {"c": PendingKeys(False, -1.0), "d": PendingKeys(True, 1.0)}
    note = KeyCopies(1, {name.encode().hex(): one for name, one in pending.items()})
    monkeypatch.setattr(key_copies, "_noted", lambda _: note)
    monkeypatch.setattr(key_copies, "look", lambda s, state, names: asked.extend(names))
    monkeypatch.setattr(key_copies, "_bring", lambda *_: brought)
    monkeypatch.setattr(key_copies, "_settle", lambda *_: None)
    s = SimpleNamespace(
        names=names, down={"c", "d"}, transfer=SimpleNamespace(down=set()), group=SimpleNamespace(standings={}),
        newest_state=lambda: SimpleNamespace(epoch=2), wall_ns=lambda: 0, listener=told.append,
    )  # fmt: skip
    key_copies.bring(cast(Any, s))
    assert asked == ["a", "b", "c"]
    assert [n.text for n in told] == [key_copies._told(brought)] * bool(brought)


# --- what is told


def test_check_asks_none_that_is_away_or_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    found = copies({}, "a")
    monkeypatch.setattr(key_copies, "look", lambda s, state, names, **_: asked.extend(names) or found)
    monkeypatch.setattr(key_copies, "_settle", lambda *_: None)
    monkeypatch.setattr(key_copies, "_nowhere", lambda *_: ["no ring"])
    s = SimpleNamespace(names=dict(enumerate("abc")), down={"b"})
    told, notes = key_copies.check(cast(Any, s), cast(Any, None), ["c"], read_data=False)
    assert (asked, told, notes) == (["a"], [("all backends", "no ring")], [])


def test_of_one_backend_what_it_lacks_is_told_and_nothing_else() -> None:
    found = copies({}, "a")
    found.slots = {KEY: "slot-1-x", (2, b"R"): "slot-2-y"}
    found.rings = {1: "ring-1", 2: "ring-2"}
    found.lacking = {"a": ("slot-2-y", "ring-1")}
    told = key_copies._missing(found, "a")
    assert "keyring of epoch 1 is missing: a device that slept" in told
    assert "the key slot of the recovery phrase is missing" in told
    assert "epoch 2" not in told


@pytest.mark.parametrize(
    ("rings", "unclear", "heard", "failed", "told"),
    [
        ((1, 2), [KEY, OTHER], "ab", "", ["in force cannot be told"] * 2),
        ((1, 2), [], "ab", "c", ["no key slot of the passphrase is on any"] * 2),
        ((1, 2), [], "a", "bc", []),  # those that did not answer may have it
        ((2,), [], "a", "b", ["epoch 1 is on any backend that answers: devices that slept"]),
        ((1,), [], "a", "b", ["epoch 2 is on any backend that answers: no device can follow"]),
    ],
)  # fmt: skip
def test_what_no_backend_has_is_told_where_enough_of_them_answer(
    rings: tuple[int, ...], unclear: list[tuple[int, bytes]], heard: str, failed: str, told: list[str]
) -> None:
    found = copies({}, *heard)
    found.files.failed = dict.fromkeys(failed, "away")
    found.rings = {epoch: f"ring-{epoch}" for epoch in rings}
    found.unclear = unclear
    s = SimpleNamespace(devices_of=lambda _: SimpleNamespace(slots=[KEY, OTHER]))
    texts = key_copies._nowhere(cast(Any, s), cast(Any, SimpleNamespace(epoch=2)), found)
    assert len(texts) == len(told)
    assert all(part in text for part, text in zip(told, texts, strict=True))
