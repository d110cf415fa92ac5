"""Which record of a restart counts: of several that backends show, of some that nobody can read, and of none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_counting import Logs

from metasync.consensus import eras
from metasync.consensus.records.era import Tombstone
from metasync.errors import (
    ExcludedError,
    ForkError,
    FormatError,
    NoQuorumError,
    NotFoundError,
    PassphraseError,
    UnreachableError,
)
from metasync.keys.derive import sha256
from metasync.runtime.effects import Reply, Task


def saying(result: Any) -> Callable[..., Task]:
    def task(*args: object, **_: object) -> Task:
        yield from ()
        found = result(*args) if callable(result) else result
        if isinstance(found, Exception):
            raise found
        return found

    return task


class Restarts:
    """What a device finds of the records that its backends show. `withdrawn`: names of those of an earlier admin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.logs = Logs()
        self.world, self.base = self.logs.world, self.logs.base
        self.m = self.logs.ws.group(b"r" * 16, 1, links=dict(self.logs.ws.links)).participant
        self.withdrawn: set[bytes] = set()
        monkeypatch.setattr(eras, "is_withdrawn", lambda _m, _known, record: record.digest in self.withdrawn)

    def do(self, task: Task) -> Any:
        return self.world.do(task, {})

    def shown(self, **by: bytes) -> None:
        """The backends show these records: their names, or what cannot be read."""
        wrong = {b"shut": ExcludedError("not for this device"), b"rubbish": FormatError("rubbish")}
        self.patch.setattr(eras, "_shown", saying(lambda link, _: by.get(link)))
        opened = lambda _m, data, *_: wrong.get(data) or SimpleNamespace(digest=data, data=data)  # noqa: E731
        self.patch.setattr(eras, "opened_record", saying(opened))

    def found(self, known: Any = None) -> bytes | None:
        record = self.do(eras.find_record(self.m, 1, "abc", known))
        return None if record is None else record.digest


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> Restarts:
    return Restarts(monkeypatch)


def test_a_record_counts_where_others_show_none_or_what_cannot_be_read(restarts: Restarts) -> None:
    restarts.shown(a=b"shut", b=b"one", c=b"rubbish")
    assert restarts.found() == b"one"
    assert restarts.do(eras.records(restarts.m, 1, "abc")) == {eras.era_path(1): b"one"}


def test_what_only_others_can_read_is_told_and_rubbish_is_nothing(restarts: Restarts) -> None:
    restarts.shown(a=b"shut", c=b"rubbish")
    with pytest.raises(ExcludedError):
        restarts.found()
    assert restarts.do(eras.records(restarts.m, 1, "abc")) == {}
    restarts.shown(c=b"rubbish")
    assert restarts.found() is None


def test_of_two_records_the_one_of_todays_admin_counts(restarts: Restarts) -> None:
    restarts.shown(a=b"one", b=b"two")
    with pytest.raises(ForkError):
        restarts.found(restarts.base)
    restarts.withdrawn = {b"one"}
    assert restarts.found(restarts.base) == b"two"
    with pytest.raises(ForkError):
        restarts.found()
    restarts.shown(a=b"one")
    assert restarts.found(restarts.base) == b"one", "where there is no other"


def over(restarts: Restarts, look: Any, record: Any) -> Any:
    """What comes of a look over eras. `look`: by the state that is known."""
    later = replace(restarts.base, era=1)
    restarts.patch.setattr(eras, "find_record", saying(record))
    restarts.patch.setattr(eras, "follow", saying(later))
    looked = saying(lambda _m, _enter, known, _s: look(known) if known.era == 0 else known)
    return restarts.do(eras.over_eras(looked, restarts.m, lambda _: saying(None)(), restarts.base, 5.0))


RECORD = SimpleNamespace(digest=b"one")
AWAY = NoQuorumError("away")


def test_a_retired_acceptor_leads_on_though_the_old_era_still_answers(restarts: Restarts) -> None:
    assert over(restarts, lambda known: known, RECORD).era == 0, "nobody says that there is another"
    memory = restarts.m.acceptors[restarts.logs.ws.acceptor_of("a")]
    memory.tombstone = Tombstone(1, b"s" * 32)
    assert over(restarts, lambda known: known, RECORD).era == 1
    assert over(restarts, lambda known: known, None).era == 0
    restarts.withdrawn = {b"one"}
    assert over(restarts, lambda known: known, RECORD).era == 0, "of an admin who has no say any more"
    assert over(restarts, lambda _: AWAY, RECORD).era == 1, "which is refused by who follows it"
    with pytest.raises(NoQuorumError, match="a restart of the workspace was begun, and did not end"):
        over(restarts, lambda _: AWAY, None)
    memory.tombstone = None
    with pytest.raises(NoQuorumError, match=r"^away$"):
        over(restarts, lambda _: AWAY, None)


def test_the_acceptors_of_a_new_era_are_reached_as_the_same_backends_were(restarts: Restarts) -> None:
    """There is no way to one of them, and another joined with the restart."""
    ws, m = restarts.logs.ws, restarts.m
    a, b, c = (ws.acceptor_of(name) for name in "abc")
    m.configs = {restarts.base.config: ws.config}
    del m.links[c]
    again = {a: b"A" * 16, b: b"B" * 16, c: b"C" * 16}
    backends = tuple(
        replace(entry, acceptor=replace(entry.acceptor, acceptor_id=again[entry.acceptor.acceptor_id]))
        for entry in ws.config.backends
        if entry.acceptor is not None
    )
    first = replace(restarts.base, era=1, config=b"f" * 32)
    record: Any = SimpleNamespace(
        config=replace(ws.config, backends=backends), first=first, ended=restarts.base, number=1
    )
    eras.take_over(m, record)
    assert {again[x]: m.links.get(again[x]) for x in (a, b, c)} == {b"A" * 16: "a", b"B" * 16: "b", b"C" * 16: None}
    restarts.do(eras._load_devices(m, record))  # from those to which there is a way


def test_the_newest_record_that_can_be_read_is_found_by_a_new_device(restarts: Restarts) -> None:
    """Whatever else lies there, and with one backend away."""
    stores = restarts.world.stores
    stores["a"] |= {eras.era_path(1): b"one", eras.era_path(3): b"rubbish", f"{eras.ERAS}/note": b"n"}
    stores["b"] |= {eras.era_path(2): b"two"}
    restarts.world.down = {"c"}

    def opened(_: object, data: bytes, number: int, *__: object) -> Any:
        if data == b"rubbish":
            raise FormatError("rubbish")
        return SimpleNamespace(digest=data, number=number)

    restarts.patch.setattr(eras, "open_record", opened)
    record = restarts.do(eras.newest_record(restarts.logs.ws.keys, "abc"))
    assert (record.digest, record.number) == (b"two", 2)
    asked = {op.path for op in restarts.world.requests["a"] if op.kind == "get"}
    assert eras.era_path(2) not in asked, "it has none of that number"


def test_a_backend_that_has_no_keyrings_hides_none(restarts: Restarts) -> None:
    restarts.patch.setattr(eras, "opened_record", saying(FormatError("rubbish")))
    for error, is_busy in ((NotFoundError("no such folder"), False), (UnreachableError("busy"), True)):
        restarts.world.liars["a"] = lambda _, op, store, error=error: (
            Reply(error=error) if op.kind == "list" else store.do(op)
        )
        task = eras.at_place(restarts.m, b"rubbish", 1, ["a"])
        if is_busy:
            with pytest.raises(UnreachableError):
                restarts.do(task)
        else:
            assert restarts.do(task) is None


def test_an_era_is_followed_though_its_device_set_cannot_be_had_yet(restarts: Restarts) -> None:
    restarts.patch.setattr(eras, "_check_descent", saying(None))
    restarts.patch.setattr(eras, "_load_devices", saying(None))
    restarts.patch.setattr(eras, "take_over", lambda *_: None)
    first = replace(restarts.base, era=1, devices=b"unknown".ljust(32))
    record: Any = SimpleNamespace(number=1, first=first, digest=b"one")
    assert restarts.do(eras.follow(restarts.m, lambda _: saying(None)(), restarts.base, record)) == first


# ---- the keys that open a record


class Sealed:
    """A record of `epoch`, which opens with the keys of `with_keys`. `rings`: what lies on the backends, and the keys
    in each; None: not for this device."""

    def __init__(self, restarts: Restarts, epoch: int) -> None:
        self.restarts = restarts
        self.m: Any = restarts.m
        self.held = self.m.keys
        self.with_keys: Any = "of the ring"
        self.rings: dict[bytes, Any] = {}
        self.asked: list[str] = []
        for name, answer in {
            "epoch_of": lambda _: epoch,
            "rings_on": saying(self._on),
            "open_ring": self._ring,
            "open_record": self._record,
        }.items():
            restarts.patch.setattr(eras, name, answer)

    def _on(self, link: str, is_it: Callable[[int], bool]) -> list[bytes]:
        self.asked.append(link)
        return [*self.rings] if is_it(eras.epoch_of(b"")) else []

    def _ring(self, ring: bytes, *_: object) -> Any:
        if self.rings[ring] is None:
            raise PassphraseError("not for this device")
        return self.rings[ring]

    def _record(self, keys: Any, *_: object) -> Any:
        if keys != self.with_keys:
            raise FormatError("it opens with other keys")
        return SimpleNamespace(first=SimpleNamespace(keyring=sha256(b"ring")))

    def opened(self) -> Any:
        return self.restarts.do(eras.opened_record(self.m, b"data", 1, ["a", "b"]))


def test_a_record_opens_with_the_ring_that_it_names(restarts: Restarts) -> None:
    """Another ring with the same keys, and one for other devices, are passed by."""
    sealed = Sealed(restarts, 2)
    sealed.rings = {
        b"for others": None,
        b"of another": "other keys",
        b"same keys": "of the ring",
        b"ring": "of the ring",
    }
    assert sealed.opened().first.keyring == sha256(b"ring")
    assert sealed.m.keys == "of the ring"
    del sealed.rings[b"ring"]
    sealed.m.keys = sealed.held
    with pytest.raises(ExcludedError):
        sealed.opened()
    del sealed.rings[b"for others"]
    with pytest.raises(FormatError, match="whose keyring cannot be had"):
        sealed.opened()
    assert sealed.m.keys is sealed.held


def test_no_ring_is_looked_for_where_the_keys_of_the_epoch_are_agreed(restarts: Restarts) -> None:
    """What does not open with them is no record. Of an epoch that was never agreed other keys may be the right ones."""
    sealed = Sealed(restarts, 1)
    sealed.rings = {b"ring": "of the ring"}
    chain = SimpleNamespace(epoch=1, keys=())
    sealed.m.device_sets = {b"d": SimpleNamespace(chain=chain)}
    with pytest.raises(FormatError, match="it opens with other keys"):
        sealed.opened()
    assert (sealed.asked, sealed.m.keys) == ([], sealed.held)
    chain.epoch = 0
    assert sealed.opened()
    assert sealed.m.keys == "of the ring"


# ---- whether it goes on from what is known


@pytest.mark.parametrize(("known", "ended"), [(3, 7), (7, 3), (5, 5)])
def test_a_record_of_another_history_is_refused_whichever_end_is_further(
    restarts: Restarts, known: int, ended: int
) -> None:
    chain = replace(restarts.base, v=min(known, ended)).hash

    def ancestor(_m: object, _i: object, high: Any, v: int) -> bytes:
        assert high.v >= v, "a state has nothing after it"
        return chain

    def descends() -> None:
        record: Any = SimpleNamespace(ended=replace(restarts.base, v=ended), number=1)
        here = replace(restarts.base, v=known)
        restarts.do(eras._check_descent(restarts.m, lambda _: saying(None)(), here, record))

    restarts.patch.setattr(eras, "ancestor", saying(ancestor))
    descends()
    chain = b"another".ljust(32)
    with pytest.raises(ForkError, match="contradicts version"):
        descends()
