"""New passphrases, recovery phrases and their slots: which open the workspace after the keys or one of them changed."""

from __future__ import annotations

import pytest
from rotation_kit import NEW, WRONG, agree_on_files, away, keys_in, revoke, rotate, three
from workspace_kit import CHEAP, PASSPHRASE, Lab, write

from metasync.errors import NoQuorumError, PassphraseError, UsageError
from metasync.keys.slots import Cost, make_slot, slot_path
from metasync.members import key_store


def test_new_slots_open_and_old_ones_do_not(lab: Lab) -> None:
    w, _, _ = three(lab)
    report = revoke(w, "phone", new_passphrase=NEW)
    urls = lab.urls("a", "b", "c")
    assert all(len(keys_in(lab, n, "slot")) == 2 for n in "abc")
    assert all(len(keys_in(lab, n, "ring")) == 2 for n in "abc")  # rings are never deleted
    with pytest.raises(PassphraseError):
        lab.clone(urls, device="x1")
    lab.clone(urls, device="x2", passphrase=NEW)
    lab.clone(urls, device="x3", passphrase=report.recovery_phrase)
    assert report.new_passphrase


def test_the_passphrase_may_stay(lab: Lab) -> None:
    w, _, _ = three(lab)
    before = {p.name for p in keys_in(lab, "a", "slot")}
    report = rotate(w)
    assert not report.new_passphrase
    assert not before & {p.name for p in keys_in(lab, "a", "slot")}
    lab.clone(lab.urls("a", "b", "c"), device="x")
    w.key_rotate(PASSPHRASE, kdf=CHEAP)


def test_the_recovery_phrase_serves_in_place_of_the_passphrase(lab: Lab) -> None:
    w, _, _ = three(lab)
    phrase = rotate(w).recovery_phrase
    with pytest.raises(UsageError, match="cannot be kept"):
        rotate(w, phrase)
    report = rotate(w, phrase, new_passphrase=NEW)
    assert report.epoch == 3
    with pytest.raises(PassphraseError):
        rotate(w, phrase)
    with pytest.raises(PassphraseError):
        rotate(w, PASSPHRASE)
    rotate(w, NEW)


def test_a_wrong_passphrase_changes_nothing(lab: Lab) -> None:
    w, _, _ = three(lab)
    before = sorted(p.name for p in lab.objects("a", "keys"))
    with pytest.raises(PassphraseError, match="wrong passphrase") as e:
        revoke(w, "phone", passphrase=WRONG)
    assert e.value.exit_code == 6
    assert sorted(p.name for p in lab.objects("a", "keys")) == before
    assert w.device_list().epoch == 1
    with pytest.raises(UsageError, match="empty"):
        revoke(w, "phone", new_passphrase=" ")


def test_a_changed_passphrase_opens_the_same_keys(lab: Lab) -> None:
    w, _, _ = three(lab)
    report = w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP)
    assert (report.missing, report.old_slots, report.backends) == ((), (), ("a", "b", "c"))
    urls = lab.urls("a", "b", "c")
    with pytest.raises(PassphraseError):
        lab.clone(urls, device="x1")
    lab.clone(urls, device="x2", passphrase=NEW)
    assert w.device_list().epoch == 1
    assert w.key_rotate(NEW, kdf=CHEAP).epoch == 2
    with pytest.raises(PassphraseError):
        w.key_change_passphrase(PASSPHRASE, "third", kdf=CHEAP)


def test_a_backend_that_was_away_keeps_the_old_slot_and_that_is_said(lab: Lab) -> None:
    w, _, _ = three(lab)
    with away(lab, "c"):
        report = w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP)
    assert [n for n, _ in report.missing] == ["c"]
    assert report.old_slots == ("c",)
    again = w.key_change_passphrase(NEW, NEW, kdf=CHEAP)
    assert (again.missing, again.old_slots) == ((), ())
    assert all(len(keys_in(lab, n, "slot")) == 2 for n in "abc")
    with pytest.raises(PassphraseError):
        lab.clone(lab.urls("a", "b", "c"), device="x1")


def test_a_passphrase_is_not_changed_without_a_quorum(lab: Lab) -> None:
    w, _, _ = three(lab)
    lab.hurry()
    with away(lab, "b", "c"), pytest.raises(NoQuorumError):
        w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP)
    lab.clone(lab.urls("a", "b", "c"), device="x2")


def test_the_phrase_is_no_passphrase_to_be_changed(lab: Lab) -> None:
    w, _, _ = three(lab)
    phrase = rotate(w).recovery_phrase
    with pytest.raises(UsageError, match="recovery phrase"):
        w.key_change_passphrase(phrase, NEW, kdf=CHEAP)


def test_the_cost_of_a_slot_is_the_callers(lab: Lab) -> None:
    w, _, _ = three(lab)
    w.key_rotate(PASSPHRASE, kdf=Cost(16, 1, 1, for_tests=True))
    with w._session("x") as s:
        costs = {key_store.read_slot(data).cost.memory_kib for data in key_store.look(s).slots.values()}
    assert costs == {16}


def test_old_slots_that_could_not_be_deleted_lead_nobody_astray(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie on more backends than the new ones, and the same passphrase opens both."""
    w, _, _ = three(lab)
    with away(lab, "c"), monkeypatch.context() as m:
        m.setattr(key_store, "remove", lambda *_: ("a", "b"))
        assert rotate(w).old_slots == ("a", "b", "c")
    late = lab.clone(lab.urls("a", "b", "c"), device="late")
    write(late.directory, {"x": b"1"})
    agree_on_files(late, w)


def test_slots_that_are_not_agreed_are_not_tried(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try costs what a slot asks for: a provider cannot have a client pay for slots that it made up."""
    w, _, _ = three(lab)
    ns_id = w._connections.keys.ns_id
    for n in range(5):
        data, _ = make_slot(1, WRONG, ns_id=ns_id, name="docs", entropy=bytes([n]) * 96, cost=CHEAP)
        (keys_in(lab, "a", "slot")[0].parent / slot_path(data).rpartition("/")[2]).write_bytes(data)
    tries: list[bytes] = []
    real = key_store.open_slot
    monkeypatch.setattr(key_store, "open_slot", lambda data, text: tries.append(data) or real(data, text))
    with pytest.raises(PassphraseError):
        rotate(w, WRONG)
    assert len(tries) == 1
