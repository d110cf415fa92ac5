"""Key slots and keyrings that somebody planted: whoever can write to a backend can put any bytes below `keys/`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workspace_kit import PASSPHRASE, Lab, write

from metasync.codec import bytes32, u8, u32
from metasync.errors import (
    FormatError,
    PassphraseError,
    UnreachableError,
    UpgradeError,
    UsageError,
    WorkspaceError,
)
from metasync.keys import slots
from metasync.keys.derive import sha256
from metasync.keys.slots import COST, Cost, make_slot, open_slot, read_slot, slot_path
from metasync.members import key_store, search
from metasync.testing.faults import Plan
from metasync.workspace import Workspace

CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
NAMES = ("a", "b", "c")


def bogus(cost: Cost = CHEAP) -> bytes:
    """A slot that no passphrase opens, and that asks for a cost."""
    data, _ = make_slot(
        slots.PASSPHRASE, os.urandom(8).hex(), ns_id=os.urandom(32), name="docs", entropy=os.urandom(96), cost=CHEAP
    )
    return data[:34] + u32(cost.memory_kib) + u32(cost.iterations) + u32(cost.lanes) + data[46:]


def folder(lab: Lab, name: str) -> Path:
    """The folder of the workspace on a backend."""
    return next(p for p in lab.store(name).iterdir() if len(p.name) == 32)


def plant(lab: Lab, data: bytes, *names: str) -> None:
    for n in names:
        (folder(lab, n) / slot_path(data)).write_bytes(data)


def published(lab: Lab) -> Workspace:
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"one": b"1"})
    w.push("first")
    return w


def paid(monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    """The costs that are paid from now on."""
    out: list[Cost] = []
    real = slots._stretch

    def stretch(kind: int, passphrase: str, salt: bytes, cost: Cost) -> bytes:
        out.append(cost)
        return real(kind, passphrase, salt, Cost(8, 1, 1) if cost != CHEAP else cost)

    monkeypatch.setattr(slots, "_stretch", stretch)
    return out


def test_forty_bogus_slots_on_every_backend_keep_nobody_out(lab: Lab) -> None:
    """Whoever can write to all backends plants more slots than a workspace has. The right passphrase still opens."""
    published(lab)
    for _ in range(40):
        plant(lab, bogus(), *NAMES)
    assert (lab.clone(lab.urls(*NAMES)).directory / "one").read_bytes() == b"1"
    with pytest.raises(PassphraseError, match="none of the 41 key slots"):
        lab.clone(lab.urls(*NAMES), device="other", passphrase="another one")


def test_slots_that_one_backend_shows_are_tried_last(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One provider plants slots, dear ones, in its folder and in many made up. What others hold too comes first."""
    published(lab)
    dear = [bogus(Cost(256 << 10, 4, 4)) for _ in range(20)]
    for data in dear:
        plant(lab, data, "a")
        for _ in range(4):
            made_up = lab.store("a") / os.urandom(16).hex()
            (made_up / "keys").mkdir(parents=True)
            (made_up / slot_path(data)).write_bytes(data)
    costs = paid(monkeypatch)
    lab.clone(lab.urls(*NAMES))
    assert costs[0] == CHEAP
    assert len(costs) <= 1 + search.MORE_TRIES


def test_cheap_slots_come_before_dear_ones(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes to all backends plants slots that ask for the most there may be: the workspace's own is cheaper."""
    published(lab)
    for _ in range(5):
        plant(lab, bogus(Cost(256 << 10, 4, 4)), *NAMES)
    costs = paid(monkeypatch)
    lab.clone(lab.urls(*NAMES))
    assert costs[0] == CHEAP


@pytest.mark.parametrize("cost", [Cost(1 << 20, 16, 4), Cost((256 << 10) + 1, 1, 1), Cost(64 << 10, 5, 1)])
def test_no_slot_asks_for_more_than_a_client_pays(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider plants a slot that asks for a gigabyte and sixteen passes. It is refused before it is paid."""
    costs = paid(monkeypatch)
    data = bogus(cost)
    costs.clear()
    with pytest.raises(FormatError, match="out of bounds"):
        open_slot(data, PASSPHRASE)
    assert not costs


def test_what_was_left_untried_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many slots are planted everywhere that not all are tried: this is not called a wrong passphrase."""
    w = published(lab)
    for _ in range(12):
        plant(lab, bogus(), *NAMES)
    monkeypatch.setattr(slots, "TRIED_KIB_MAX", 8 * 4)
    with pytest.raises(WorkspaceError, match=r"4 key slots that were tried.*9 more .*left untried"):
        lab.clone(lab.urls(*NAMES), passphrase="another one")
    monkeypatch.setattr(slots, "TRIED_KIB_MAX", 0)
    with pytest.raises(WorkspaceError, match=r"1 more were left untried"):
        w.key_rotate(PASSPHRASE)


def test_slots_made_up_by_name_do_not_stop_a_change_of_keys(lab: Lab) -> None:
    """A device that is to be revoked fills `keys/` with names that come before the real ones, on one backend or all."""
    w = published(lab)
    for n in NAMES:
        for i in range(70):
            (folder(lab, n) / "keys" / f"slot-1-{i:064x}").write_bytes(b"rubbish")
    assert w.key_rotate(PASSPHRASE).epoch == 2


def test_a_copied_slot_of_a_newer_format_does_not_stop_a_change_of_keys(lab: Lab) -> None:
    """The clear part of the real slot, around a record that says a newer format: it is passed over."""
    w = published(lab)
    real = next((folder(lab, "a") / "keys").glob("slot-1-*")).read_bytes()
    sealed = read_slot(real).sealed
    clear = real[: len(real) - 4 - len(sealed)]
    for newer in (clear + bytes32(u8(2) + sealed[1:] + bytes([i])) for i in range(8)):
        plant(lab, newer, *NAMES)
    assert w.key_rotate(PASSPHRASE).epoch == 2


def test_a_planted_slot_of_a_newer_format_is_not_what_a_wrong_passphrase_is_told(lab: Lab) -> None:
    """A mistyped passphrase is one, whatever a provider put beside the slot: upgrading would not help."""
    published(lab)
    data = u8(2) + bogus()[1:]
    plant(lab, data, *NAMES)
    with pytest.raises(PassphraseError, match="1 of a newer version"):
        lab.clone(lab.urls(*NAMES), passphrase="another one")
    for n in NAMES:
        for slot in (folder(lab, n) / "keys").glob("slot-*"):
            if slot.read_bytes() != data:
                slot.unlink()
    with pytest.raises(UpgradeError):  # where nothing else is, it may well be
        lab.clone(lab.urls(*NAMES))


def test_keys_that_a_slow_store_did_not_give_are_not_called_damaged(lab: Lab) -> None:
    """The store lists its keyring, and does not answer when it is fetched. Nothing is known to be damaged."""
    published(lab).close()
    for part, told in (("ring-", "keyring"), ("slot-", "key slot")):
        for n in NAMES:
            lab.faults[n].plan = Plan(rates={"unreachable": 1.0}, paths=lambda path, part=part: part in path)
        with pytest.raises(UnreachableError, match=f"no {told}.*read"):
            lab.clone(lab.urls(*NAMES))


@pytest.mark.parametrize("where", ["a", "abc"])
def test_keyrings_that_were_made_up_keep_nobody_out(lab: Lab, where: str) -> None:
    """Whoever can write to backends puts seventy keyrings of later epochs there, under the hashes of their bytes."""
    published(lab)
    for n in where:
        for i in range(70):
            junk = bytes([1, i]) * 100
            (folder(lab, n) / "keys" / f"ring-{5 + 1000 * (i % 2)}-{sha256(junk).hex()}").write_bytes(junk)
    assert (lab.clone(lab.urls(*NAMES)).directory / "one").read_bytes() == b"1"


def test_a_slot_that_is_made_protects_its_passphrase() -> None:
    """What providers hold can be tried for ever: no slot of ours is cheaper than OWASP's least."""
    assert COST.memory_kib >= 19 << 10
    assert COST.iterations >= 2
    for cost in (Cost(8, 1, 1), Cost(19 << 10, 1, 1), Cost((19 << 10) - 1, 2, 1)):
        with pytest.raises(UsageError, match="too few"):
            make_slot(slots.PASSPHRASE, "p", ns_id=bytes(32), name="n", entropy=bytes(96), cost=cost)


def test_all_slots_are_looked_at_that_a_look_may_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """More slots than one look reads: those on most backends are read, and the others are counted."""
    w = published(lab)
    for _ in range(3):
        plant(lab, bogus(), "b")
    monkeypatch.setattr(key_store, "SLOT_FILES_MAX", 2)
    with w._session("test") as s:
        found = key_store.look(s)
    assert len(found.slots) == 2
    assert found.left == 3
