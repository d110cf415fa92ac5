"""How a new device finds the beginning of a workspace on its backends, and what it makes of what is wrong there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import Store, World, make_parts
from test_counting import Logs

from metasync.consensus import founding, hints
from metasync.consensus.founding import ERAS, Found, bootstrap
from metasync.consensus.records.birth import genesis_path, seal_genesis_again
from metasync.consensus.records.entry import SignedEntry
from metasync.errors import BackendError, DamagedError, ForkError, NoQuorumError, UnreachableError, UpgradeError
from metasync.keys.device_set import DeviceSet
from metasync.runtime.effects import Reply

FOREIGN = b"\xfe" * 16  # the id of an acceptor that is none of the config's


class Beginning:
    """A workspace founded on three backends, and another backend that holds nothing."""

    def __init__(self) -> None:
        self.logs = Logs("abc")
        self.world, self.ws = self.logs.world, self.logs.ws
        self.world.stores["d"] = Store()
        self.world.requests["d"], self.world.in_flight["d"] = [], 0
        self.genesis = {name: genesis_path(self.ws.acceptor_of(name)) for name in "abc"}

    def found(self, names: str = "abc") -> Found:
        found: Found = self.world.do(bootstrap(self.ws.keys, [*names]), {})
        return found

    def read(self, name: str, acceptor_id: bytes = FOREIGN) -> bool:
        return any(op.path == genesis_path(acceptor_id) and op.kind == "get" for op in self.world.requests[name])

    def failing(self, name: str, path: str) -> None:
        self.world.liars[name] = lambda _, op, store: (
            Reply(error=UnreachableError("busy")) if op.path == path and op.kind == "get" else store.do(op)
        )

    def hint(self) -> None:
        """Device 0 tells everybody that version 1 is decided."""
        member = self.ws.group(b"w" * 16, 0).participant
        task = hints.write_hints(member, self.ws.links, self.logs.base, self.logs.x, everywhere=True)
        assert self.world.do(task, {}) == 3

    def again(self, name: str) -> None:
        """The same beginning for an acceptor that is in no config."""
        data = self.world.stores["a"][self.genesis["a"]]
        owner = self.ws.acceptor_of("a")
        self.world.stores[name][genesis_path(FOREIGN)] = seal_genesis_again(
            self.ws.keys, data, owner, FOREIGN, bytes(32)
        )


@pytest.fixture
def begun() -> Beginning:
    return Beginning()


@pytest.fixture
def many(begun: Beginning, monkeypatch: pytest.MonkeyPatch) -> Beginning:
    """The same, as where folders hold very many ids: one backend is read first."""
    monkeypatch.setattr(founding, "ROOTS_AT_ONCE", 0)
    return begun


# ---- what is read


def test_what_is_no_config_is_not_founded() -> None:
    world = World(1, [*"abcd"])
    ws = make_parts(world.rng, [*"abcd"], 1, 1, dict.fromkeys("abcd", "block"))
    task = founding.found(
        ws.keys, ws.config, ws.devices, ws.devices.chain, admin_private=ws.admin, keyring=bytes(32), births=ws.births,
        links=ws.links,
    )  # fmt: skip
    with pytest.raises(UpgradeError):
        world.do(task)
    assert not any(world.stores.values())


def test_a_look_ahead_reads_beginnings_and_hints_of_who_answers(begun: Beginning) -> None:
    begun.world.down = {"c"}
    seen = begun.world.do(founding.look(["a", "c"]), {})
    assert seen["c", ""].error is not None
    assert ("a", begun.genesis["a"]) in seen


def test_it_is_found_on_all_of_them(begun: Beginning) -> None:
    found = begun.found()
    assert (found.state, found.config, found.devices) == (begun.logs.base, begun.ws.config, begun.ws.devices)
    assert found.links == begun.ws.links
    assert found.problems == {}


@pytest.mark.parametrize("junk", [b"", b"no sealed record", b"\x02 of a newer version"])
def test_objects_that_are_held_are_not_read_again_and_checked(begun: Beginning, junk: bytes) -> None:
    wanted = [begun.logs.base.config, begun.logs.base.devices]
    paths = {digest: f"{begun.ws.acceptor_of('a').hex()}/const/{digest.hex()}" for digest in wanted}
    held = {digest: begun.world.stores["a"][path] for digest, path in paths.items()}
    for given, asked in ((held, False), (dict.fromkeys(wanted, junk), True)):
        for requests in begun.world.requests.values():
            requests.clear()
        found: Found = begun.world.do(bootstrap(begun.ws.keys, [*"abc"], {}, given), {})
        assert (found.state, found.config, found.devices) == (begun.logs.base, begun.ws.config, begun.ws.devices)
        assert any("/const/" in op.path for ops in begun.world.requests.values() for op in ops) is asked


@pytest.mark.parametrize("name", ["z" * 32, "ab", "AB" * 16])
def test_names_that_are_no_ids_are_nobodys(begun: Beginning, name: str) -> None:
    begun.world.stores["a"][f"{name}/x"] = b"x"
    assert begun.found().problems == {}
    begun.world.do(founding.look(["a"]), {})
    assert not any(op.path.startswith(name) for op in begun.world.requests["a"])


def test_a_backend_that_has_records_of_eras_is_known_by_its_list(begun: Beginning) -> None:
    begun.world.stores["b"][f"{ERAS}/1"] = b"a record"
    restarted: set[str] = set()
    for name in "abc":
        begun.world.do(founding._listed(name, restarted, {}), {})
    assert restarted == {"b"}


def test_who_does_not_answer_is_named(begun: Beginning) -> None:
    begun.world.down = {"b"}
    begun.failing("c", begun.genesis["c"])
    found = begun.found()
    assert {*found.problems} == {"b", "c"}
    assert found.problems["c"] == "busy"
    assert {*found.links.values()} == {"a"}


def test_one_that_is_damaged_beside_a_good_one_does_no_harm(begun: Beginning) -> None:
    begun.world.stores["a"][genesis_path(FOREIGN)] = b"\x02 of a newer version"
    assert begun.found().links == begun.ws.links


def test_an_acceptor_that_is_in_no_config_is_no_link(begun: Beginning) -> None:
    begun.again("d")
    found = begun.found("abcd")
    assert found.links == begun.ws.links
    assert found.problems == {}


@pytest.mark.parametrize("first", ["down", "empty"])
def test_where_there_are_many_ids_the_first_that_can_be_read_says_which_count(many: Beginning, first: str) -> None:
    """The first one named is of no use; those after it are."""
    if first == "down":
        many.world.down = {"d"}
    many.again("b")
    many.again("c")
    found = many.found("dabc")
    assert found.state == many.logs.base
    assert {*found.links.values()} >= {"b", "c"}


def test_where_there_are_many_ids_others_are_not_read(many: Beginning) -> None:
    many.again("b")
    many.world.stores["d"][genesis_path(FOREIGN)] = b"rubbish"
    many.world.down = {"c"}
    found = many.found("abcd")
    assert {*found.links.values()} == {"a", "b"}
    assert not many.read("b")
    assert many.read("d"), "which has no other"


def test_where_others_vote_by_now_all_are_read(many: Beginning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(founding, "_has_moved_on", lambda _: True)
    many.again("b")
    many.found()
    assert many.read("b")


@pytest.mark.parametrize("names", ["a", "abc"])
def test_where_there_is_nothing_at_all_that_is_told(many: Beginning, names: str) -> None:
    for name in names:
        many.world.stores[name].clear()
        many.world.stores[name][genesis_path(FOREIGN)] = b"rubbish"
    with pytest.raises(DamagedError, match="no backend holds a genesis"):
        many.found(names)


def test_other_votes_are_known_by_a_hint_that_names_another_config() -> None:
    def root(value: Any) -> Any:
        genesis = SimpleNamespace(config=b"one")
        return b"id", genesis, None if value is None else SimpleNamespace(entry=SimpleNamespace(value=value[0]))

    assert not founding._has_moved_on(root(None))
    assert not founding._has_moved_on(root([None]))
    assert not founding._has_moved_on(root([SimpleNamespace(config=b"one")]))
    assert founding._has_moved_on(root([SimpleNamespace(config=b"two")]))


# ---- what is wrong


def test_two_beginnings_are_told(begun: Beginning) -> None:
    got = {"a": [(b"1" * 16, begun.logs.base, None)], "b": [(b"2" * 16, begun.logs.x, None)]}

    def roots(_keys: object, backend: str, *_: object) -> Any:
        yield from ()
        return got[backend]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(founding, "_roots", roots)
        with pytest.raises(ForkError, match="different beginnings"):
            begun.found("ab")


def test_a_copy_of_another_backend_and_one_that_holds_nothing_are_named() -> None:
    problems: dict[str, str] = {}
    state: Any = "genesis"
    got = {"a": [(b"1", state, None)], "b": [(b"1", state, None)], "c": [], "d": UnreachableError("busy")}
    assert founding._by_acceptor(got, problems) == {b"1": ("a", state, None)}
    assert problems == {
        "b": "holds the same acceptor as a: one is a copy of the other",
        "c": "holds no acceptor of this workspace",
        "d": "busy",
    }


NEWER, AWAY = UpgradeError("newer"), BackendError("away")


@pytest.mark.parametrize(
    ("got", "error"),
    [
        ({"a": NEWER, "b": NEWER, "c": []}, UpgradeError),
        ({"a": NEWER, "b": [], "c": []}, DamagedError),
        ({"a": AWAY, "b": [], "c": []}, NoQuorumError),
        ({"a": [], "b": []}, DamagedError),
        ({}, NoQuorumError),
    ],
)
def test_without_a_beginning_it_is_told_why(got: dict[str, Any], error: type[Exception]) -> None:
    assert type(founding._no_beginning([*got], got, {})) is error


@pytest.mark.parametrize("data", [b"\x02 of a newer version", b""])
def test_a_newer_format_is_told_as_that_where_most_show_it(begun: Beginning, data: bytes) -> None:
    for name in "ab":
        begun.world.stores[name][begun.genesis[name]] = data
    del begun.world.stores["c"][begun.genesis["c"]]
    with pytest.raises(UpgradeError if data else DamagedError):
        begun.found()


# ---- hints


def test_a_hint_is_a_start(begun: Beginning) -> None:
    begun.hint()
    assert begun.found().state == begun.logs.x


@pytest.mark.parametrize("wrong", ["device", "signature", "value"])
def test_a_hint_that_nobody_vouches_for_is_none(begun: Beginning, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    begun.hint()
    if wrong == "device":
        monkeypatch.setattr(DeviceSet, "key_of", lambda *_: None)
    elif wrong == "signature":
        monkeypatch.setattr(SignedEntry, "verifies", lambda *_: False)
    else:
        monkeypatch.setattr(founding, "follows", lambda *_: False)
    assert begun.found().state == begun.logs.base


def test_after_a_restart_its_first_state_is_the_start_and_all_are_read(
    many: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(many.logs.base, era=1)

    def newest(*_: object) -> Any:
        yield from ()
        return SimpleNamespace(first=first, config=many.ws.config)

    monkeypatch.setattr(founding, "newest_record", newest)
    many.again("b")
    many.hint()  # of the era before
    assert many.found().state == first
    assert many.read("b")
