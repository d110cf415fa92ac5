"""Keyrings and slots on backends that were away, lost them or joined later: who brings what, and at what cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rotation_kit import NEW, agree_on_files, away, keys_in, revoke, rotate, three
from workspace_kit import CHEAP, PASSPHRASE, Lab, flip, tree_of, write

from metasync.errors import DamagedError, PassphraseError
from metasync.keys.keyring import ring_path
from metasync.keys.slots import make_slot, new_slots, slot_path
from metasync.local.state_keys import KEY_COPIES_KEY
from metasync.members import key_copies, key_store, rotation
from metasync.session import agreement
from metasync.session.session import Session
from metasync.workspace import Workspace


def names_in(lab: Lab, backend: str, *kinds: str) -> set[str]:
    return {p.name for kind in kinds or ("ring", "slot") for p in keys_in(lab, backend, kind)}


def ring_of(lab: Lab, backend: str, epoch: int) -> Path:
    return next(p for p in keys_in(lab, backend, "ring") if p.name.startswith(f"ring-{epoch}-"))


def folder_of(lab: Lab, backend: str) -> Path:
    return next(p for p in lab.store(backend).rglob("keys") if p.is_dir())


def push(w: Workspace, text: str) -> None:
    write(w.directory, {"f": text.encode()})
    assert w.push().version is not None


def asked_keys(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with the backends that are asked for what lies below `keys/`, from now on."""
    asked: list[str] = []
    real = key_store.look

    def look(s: Session, among: object = None) -> key_store.KeyFiles:
        found = real(s, among)  # type: ignore[arg-type]
        asked.extend(sorted(found.names))
        return found

    monkeypatch.setattr(key_store, "look", look)
    return asked


# --- a backend that was away


@pytest.mark.few(1)
@pytest.mark.parametrize("who", ["the one that rotated", "another", "a new process"])
def test_a_push_brings_what_a_backend_missed(lab: Lab, who: str) -> None:
    w, d, _ = three(lab, replicas=3)
    with away(lab, "c"):
        revoke(w, "phone", new_passphrase=NEW)
        push(w, "without c")
    assert len(names_in(lab, "c", "ring")) == 1
    if who == "another":
        d.pull()
        push(d, "with c")
    elif who == "a new process":
        push(lab.reopen(w), "with c")
    else:
        for turn in range(50):  # a push does not wait for c, so that it may not hear that it is back
            push(w, f"{turn}")
            if names_in(lab, "c") == names_in(lab, "a"):
                break
    assert names_in(lab, "c") == names_in(lab, "a") == names_in(lab, "b")
    assert len(names_in(lab, "c", "slot")) == 2  # and the old ones are gone
    lab.clone([lab.url("c")], device="alone", passphrase=NEW)
    with pytest.raises(PassphraseError):
        lab.clone([lab.url("c")], device="old", passphrase=PASSPHRASE)


@pytest.mark.long
def test_rings_of_all_epochs_come(lab: Lab) -> None:
    w, d, _ = three(lab)
    with away(lab, "c"):
        for _ in range(3):
            rotate(w)
        push(w, "x")
    push(w := lab.reopen(w), "y")
    assert names_in(lab, "c") == names_in(lab, "a")
    assert len(names_in(lab, "c", "ring")) == 4
    with away(lab, "a"):  # the sleeper steps from epoch to epoch, each by its ring
        d.pull()
    assert d.device_list().epoch == 4


def test_an_ordinary_push_asks_nobody_for_keys(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)
    asked = asked_keys(lab, monkeypatch)
    push(w, "before any rotation")
    assert asked == []
    with away(lab, "c"):
        rotate(w)
        asked.clear()
        push(w, "1")
        push(lab.reopen(w), "2")
        assert asked == []  # c does not answer: nothing can be done
        d.pull()
        push(d, "3")
        assert asked == ["a", "b"]  # it followed, and looks once
        push(d, "4")
        assert asked == ["a", "b"]
    asked.clear()
    d = lab.reopen(d)
    push(d, "5")
    assert asked == ["a", "b", "c"]
    push(d, "6")
    push(lab.reopen(d), "7")
    assert asked == ["a", "b", "c"]


def test_a_backend_that_takes_nothing_is_not_asked_at_every_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, _ = three(lab)
    with away(lab, "c"):
        rotate(w)
    w = lab.reopen(w)
    refused: list[str] = []

    def bring(s: Session, found: key_copies.Copies) -> dict[str, tuple[str, ...]]:
        refused.extend(found.lacking)
        return {}

    monkeypatch.setattr(key_copies, "_bring", bring)
    push(w, "1")
    push(w, "2")
    assert refused == ["c"]
    later = w._machine.wall_ns() + int(1.1e9 * key_copies.AGAIN_S)
    monkeypatch.setattr(type(w._machine), "wall_ns", lambda _: later)
    push(w, "3")
    assert refused == ["c", "c"]


def test_status_tells_of_it_without_asking(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, _ = three(lab)
    with away(lab, "c"):
        rotate(w)
        asked = asked_keys(lab, monkeypatch)
        assert [x for x in w.status().warnings if x.startswith("c: the newest keyring")]
        assert asked == []
    push(w := lab.reopen(w), "x")
    assert not [x for x in w.status().warnings if "keyring" in x]


def test_a_check_while_a_backend_is_away_doubts_no_keys(lab: Lab) -> None:
    w, _, _ = three(lab)
    with away(lab, "c"):
        w = lab.reopen(w)
        w.check()
        assert not [x for x in w.status().warnings if "keyring" in x]
        rotate(w)
        w.check()
        assert [x for x in w.status().warnings if x.startswith("c: the newest keyring")]


def test_a_damaged_note_costs_a_look(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, _ = three(lab)
    w._db.set_value(KEY_COPIES_KEY.name, b"[1]")
    asked = asked_keys(lab, monkeypatch)
    push(w, "1")
    push(w, "2")
    assert asked == ["a", "b", "c"]


# --- what counts, and what does not


def test_the_newer_of_two_slots_of_one_key_comes(lab: Lab) -> None:
    """The passphrase was changed while c was away: what is there opens the same key, by the older passphrase."""
    w, _, _ = three(lab, replicas=3)
    with away(lab, "c"):
        w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP)
    push(w := lab.reopen(w), "x")
    assert names_in(lab, "a") < names_in(lab, "c")
    assert names_in(lab, "a") == names_in(lab, "b")
    lab.clone([lab.url("c")], device="alone", passphrase=NEW)
    notes = w.check().notes
    assert [n for n in notes if n.startswith("c: an older passphrase still opens")]
    w.key_change_passphrase(NEW, NEW, kdf=CHEAP)
    assert not [n for n in w.check().notes if "older passphrase" in n]


def test_an_older_slot_alone_is_not_spread(lab: Lab) -> None:
    """Only c answers, which holds the slot of the older passphrase: fewer than a quorum tell nothing."""
    w, _, _ = three(lab)
    with away(lab, "c"):
        w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP)
    with w._session("x") as s:
        found = key_copies.look(s, s.newest_state(), ["c"])
    assert [kind for kind, _ in found.slots] == []
    with w._session("x") as s:
        found = key_copies.look(s, s.newest_state(), ["b", "c"])
    assert [kind for kind, _ in found.unclear] == [1]  # one holds this, one that
    assert [kind for kind, _ in found.slots] == [2]


def test_what_nobody_agreed_on_is_neither_spread_nor_deleted(lab: Lab) -> None:
    """It may be of a change of keys that is under way."""
    w, _, _ = three(lab)
    with away(lab, "c"):
        rotate(w)
    ns_id = w._connections.keys.ns_id
    data, _ = make_slot(1, "x", ns_id=ns_id, name="docs", entropy=b"\x09" * 96, cost=CHEAP)
    slot = folder_of(lab, "a") / slot_path(data).rpartition("/")[2]
    slot.write_bytes(data)
    ring = ring_of(lab, "a", 2)
    junk = ring.parent / f"ring-1-{'0' * 64}"
    junk.write_bytes(ring.read_bytes())
    forged = ring.parent / f"ring-2-{'1' * 64}"
    forged.write_bytes(b"no ring")
    push(lab.reopen(w), "x")
    assert {slot.name, junk.name, forged.name} <= names_in(lab, "a")
    assert not {slot.name, junk.name, forged.name} & names_in(lab, "c")
    assert names_in(lab, "c") == names_in(lab, "b")


def test_a_ring_of_a_change_that_lost_is_not_spread(lab: Lab) -> None:
    """Two rings of epoch 2, both well made: the one whose admin key the agreed chain has is the one."""
    w, _, _ = three(lab)
    with w._session("lost") as s:
        opened = key_store.open_admin_key(s, agreement.ask_newest(s), PASSPHRASE)
        slots = new_slots(PASSPHRASE, ns_id=s.keys.ns_id, name=opened.secret.name, entropy=s.entropy, cost=CHEAP)
        lost = rotation.make(s, opened, slots, (), s.config, (opened.state.era, opened.state.v + 1))
    rotate(w)
    rotate(w)
    ours = names_in(lab, "c")
    for n in "bc":
        ring_of(lab, n, 2).unlink()
    for n in "ab":  # on more backends than the other one
        (folder_of(lab, n) / ring_path(lost.ring).rpartition("/")[2]).write_bytes(lost.ring)
    assert w.check().meta_problems == ()
    assert names_in(lab, "c") == ours


# --- check


def test_check_finds_and_brings_what_is_missing(lab: Lab) -> None:
    w, _, _ = three(lab)
    rotate(w)
    whole = names_in(lab, "b")
    ring_of(lab, "b", 1).unlink()
    ring_of(lab, "c", 2).unlink()
    for path in keys_in(lab, "c", "slot"):
        path.unlink()
    report = w.check()
    assert report.meta_problems == ()
    assert any("brought keyrings and key slots to b, c" in n for n in report.notes)
    assert names_in(lab, "b") == names_in(lab, "c") == whole
    assert not any("keyring" in n for n in w.check().notes)


def test_check_tells_what_follows_from_what_cannot_be_brought(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, _ = three(lab)
    rotate(w)
    for path in (ring_of(lab, "b", 1), ring_of(lab, "c", 2), *keys_in(lab, "c", "slot")):
        path.unlink()
    monkeypatch.setattr(key_copies, "_bring", lambda *_: {})
    told = {p.backend: p.problem for p in w.check().meta_problems}
    assert "keyring of epoch 1 is missing: a device that slept" in told["b"]
    assert "keyring of epoch 2 is missing: who reaches this backend alone" in told["c"]
    assert "key slot of the passphrase and of the recovery phrase is missing" in told["c"]
    assert lab.cli("check").code == 4


def test_check_reads_every_copy_when_asked(lab: Lab) -> None:
    w, _, _ = three(lab)
    rotate(w)
    good = ring_of(lab, "b", 2).read_bytes()
    flip(ring_of(lab, "b", 2))
    slot = keys_in(lab, "c", "slot")[0]
    kept = slot.read_bytes()
    flip(slot)
    assert not any("brought" in n for n in w.check().notes)
    assert any("brought keyrings and key slots to b, c" in n for n in w.check(read_data=True).notes)
    assert ring_of(lab, "b", 2).read_bytes() == good
    assert slot.read_bytes() == kept


def test_check_tells_what_nobody_holds(lab: Lab) -> None:
    w, _, _ = three(lab)
    rotate(w)
    for n in "abc":
        ring_of(lab, n, 1).unlink()
        for path in keys_in(lab, n, "slot"):
            if path.name.startswith("slot-2-"):
                path.unlink()
    told = [p.problem for p in w.check().meta_problems if p.backend == "all backends"]
    assert len(told) == 2
    assert "no intact keyring of epoch 1" in told[0]
    assert "no key slot of the recovery phrase" in told[1]


# --- other backends


def test_only_storage_gives_the_ring_to_who_follows(lab: Lab) -> None:
    urls = [*lab.urls("a", "b"), lab.url("s", role="storage")]
    w = lab.init(urls)
    d = lab.clone(urls)
    rotate(w)
    for n in "ab":
        ring_of(lab, n, 2).unlink()
    d.pull()
    assert d.device_list().epoch == 2
    late = lab.clone(urls, device="late")
    write(late.directory, {"x": b"1"})
    agree_on_files(late, w, d)
    ring_of(lab, "s", 1).unlink()
    push(w, "y")
    assert w.check().meta_problems == ()
    assert names_in(lab, "s") == names_in(lab, "a") == names_in(lab, "b")


def test_only_storage_that_was_away_gets_the_ring(lab: Lab) -> None:
    urls = [*lab.urls("a", "b"), lab.url("s", role="storage")]
    w = lab.init(urls)
    with away(lab, "s"):
        rotate(lab.reopen(w))
    push(lab.reopen(w), "x")
    assert names_in(lab, "s") == names_in(lab, "a")


@pytest.mark.long
def test_a_new_backend_gets_rings_and_slots_whatever_else_lies_there(lab: Lab) -> None:
    """A provider leaves names that come first, and there are many rings."""
    w, _, _ = three(lab)
    for _ in range(4):
        rotate(w)
    for i in range(100):
        (folder_of(lab, "a") / f"a{i:03}").write_bytes(b"junk")
    w.backend_add(lab.url("d"))
    assert names_in(lab, "d") == names_in(lab, "b")
    lab.clone(lab.urls("d", "a", "b"), device="late")


@pytest.mark.long
def test_a_backend_removed_and_another_added_after_a_rotation_it_missed(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    w, d = lab.init(urls), lab.clone(urls)
    with away(lab, "c"):
        rotate(w, new_passphrase=NEW)
        w.backend_remove("c")
        w.backend_add(lab.url("e"))
        push(w, "with e")
        fresh = lab.clone(lab.urls("e", "b"), device="fresh", passphrase=NEW)
        assert tree_of(fresh.directory) == tree_of(w.directory)
        assert [x.state for x in fresh.device_list().devices if x.this] == ["admitted"]
        push(fresh, "from the fresh one")
        d.pull()
        d.link("e", lab.url("e"))
        agree_on_files(d, w, fresh)


def test_no_ring_anywhere_is_still_damage(lab: Lab) -> None:
    urls = [*lab.urls("a", "b"), lab.url("s", role="storage")]
    w = lab.init(urls)
    d = lab.clone(urls)
    rotate(w)
    for n in "abs":
        ring_of(lab, n, 2).unlink()
    with pytest.raises(DamagedError, match="keyring of epoch 2"):
        d.pull()


@pytest.mark.few(1)
@pytest.mark.parametrize("who", ["the rotating device", "a later push"])
def test_one_that_cannot_take_the_new_slots_keeps_the_old_ones_until_it_can(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """A backend is full, and yet deletes: without the old slots nothing would open the workspace there."""
    w, _, _ = three(lab)
    old = {p.name for p in keys_in(lab, "c", "slot")}
    if who == "a later push":  # which finds the old slots there
        with away(lab, "c"):
            report = rotate(w)
    else:
        lab.faults["c"].full_over_bytes = 0
        w = lab.reopen(w)
        report = rotate(w)
        lab.faults["c"].full_over_bytes = None
    assert [n for n, _ in report.missing] == ["c"]
    assert report.old_slots == ("c",)
    real = key_copies._bring

    def full(*args: Any) -> Any:
        lab.faults["c"].full_over_bytes = 0
        try:
            return real(*args)
        finally:
            lab.faults["c"].full_over_bytes = None

    w = lab.reopen(w)
    with monkeypatch.context() as m:
        m.setattr(key_copies, "_bring", full)
        push(w, "full")
    assert {p.name for p in keys_in(lab, "c", "slot")} == old
    assert all(not old & {p.name for p in keys_in(lab, n, "slot")} for n in "ab")
    monkeypatch.setattr(key_copies, "AGAIN_S", 0.0)
    push(lab.reopen(w), "room again")
    there = {p.name for p in keys_in(lab, "c", "slot")}
    assert there == {p.name for p in keys_in(lab, "a", "slot")}
    assert not there & old
