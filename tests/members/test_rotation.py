"""New keys and revoked devices, on whole workspaces: who follows, who is told, what is sealed again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, flip, tree_of, write

from metasync.backends import registry
from metasync.consensus import Group, State
from metasync.consensus.records.log_replay import Log
from metasync.errors import (
    DamagedError,
    ExcludedError,
    NoQuorumError,
    PassphraseError,
    RevokedError,
    UsageError,
)
from metasync.keys.derive import device_recipient
from metasync.keys.device_set import open_logins
from metasync.keys.keyring import read_ring
from metasync.keys.slots import Cost, make_slot, slot_path
from metasync.local.state_keys import KEPT_KEY
from metasync.members import admission, devices, key_store, rotation
from metasync.reports.members import RotationReport
from metasync.runtime.effects import Gather
from metasync.session import agreement, open_backend
from metasync.session.session import Session
from metasync.session.write_index import AgreedIndexes
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace

NEW = "another horse, another battery"
WRONG = "not that one"
FILES = {"notes.txt": b"one\n", "d/photo.bin": b"\x01" * 20_000}


def three(lab: Lab, *names: str, **options: Any) -> tuple[Workspace, Workspace, Workspace]:
    """Three devices at one version: laptop, desktop, phone."""
    urls = lab.urls(*(names or ("a", "b", "c")))
    w = lab.init(urls, **options)
    write(w.directory, FILES)
    w.push("first")
    d, p = lab.clone(urls), lab.clone(urls, device="phone")
    w.pull()
    return w, d, p


def revoke(w: Workspace, *names: str, passphrase: str = PASSPHRASE, **options: Any) -> RotationReport:
    return w.device_revoke(names, passphrase, kdf=CHEAP, **options)


def rotate(w: Workspace, passphrase: str = PASSPHRASE, **options: Any) -> RotationReport:
    return w.key_rotate(passphrase, kdf=CHEAP, **options)


@contextlib.contextmanager
def away(lab: Lab, *names: str) -> Iterator[None]:
    """These backends cannot be reached meanwhile, from no device."""
    for n in names:
        lab.store(n).rename(lab.store(f"{n} is away"))
    try:
        yield
    finally:
        for n in names:
            lab.store(f"{n} is away").rename(lab.store(n))


def pack_epochs(lab: Lab, *names: str) -> dict[str, int]:
    """The key epoch in the clear header of every pack."""
    return {p.name: int.from_bytes(p.read_bytes()[2:6], "big") for n in names for p in lab.objects(n, "packs")}


def keys_in(lab: Lab, backend: str, kind: str) -> list[Path]:
    return [p for p in lab.objects(backend, "keys") if p.name.startswith(f"{kind}-")]


def agree_on_files(*workspaces: Workspace) -> None:
    for w in workspaces:
        w.sync()
    for w in workspaces:
        w.pull()
        assert tree_of(w.directory) == tree_of(workspaces[0].directory)


# --- who goes on


def test_the_others_follow_and_the_revoked_one_is_told(lab: Lab) -> None:
    w, d, p = three(lab)
    report = revoke(w, "phone", new_passphrase=NEW)
    assert (report.revoked, report.devices, report.complete) == (("phone",), ("desktop", "laptop"), True)
    assert (report.epoch, report.missing, report.old_slots) == (2, (), ())
    assert {x.backend for x in report.withdraw} == {"a", "b", "c"}
    write(w.directory, {"after": b"not for the phone"})
    w.push()
    d.pull()
    assert (d.directory / "after").read_bytes() == b"not for the phone"
    write(p.directory, {"unsent": b"mine"})
    before = tree_of(p.directory)
    for operation in (p.push, p.pull, p.sync):
        with pytest.raises(RevokedError, match=r"phone.*revoked") as e:
            operation()
        assert e.value.exit_code == 6
        assert "by hand" in e.value.next_step
    assert tree_of(p.directory) == before
    status = p.status()
    assert isinstance(status.error, RevokedError)
    assert status.changes.added == (b"unsent",)
    write(d.directory, {"from desktop": b"d"})
    agree_on_files(d, w)
    assert [x.name for x in w.device_list().devices if x.state == "admitted"] == ["desktop", "laptop"]


def test_what_a_revoked_device_pushed_still_has_its_name(lab: Lab) -> None:
    w, _, p = three(lab)
    write(p.directory, {"last words": b"of the phone"})
    p.push()
    w.pull()
    revoke(w, "phone", new_passphrase=NEW)
    assert w.status().device == "phone"
    w.device_confirm("phone")
    w.pull()
    assert w.status().device == "phone", "also once its logins are withdrawn"


def test_a_restart_has_the_new_keys_without_asking(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)
    rotate(w)
    d.pull()
    monkeypatch.setattr(Group, "open_epoch", None)  # nothing is left to follow
    monkeypatch.setattr("metasync.consensus.group.follow_keys", None)
    d = lab.reopen(d)
    write(d.directory, {"x": b"1"})
    assert d.push().version is not None


def test_keys_that_could_not_be_saved_are_fetched_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    rotate(w)
    with monkeypatch.context() as m:
        m.setattr(open_backend, "save_secret", full)
        d.pull()
    d = lab.reopen(d)
    write(d.directory, {"x": b"1"})
    assert d.push().version is not None


@pytest.mark.long
def test_a_device_that_slept_over_three_rotations(lab: Lab) -> None:
    w, d, p = three(lab)
    write(d.directory, {"slept": b"here"})
    for turn in range(3):
        write(w.directory, {f"awake {turn}": b"%d" % turn})
        w.push()
        rotate(w)
    revoke(w, "phone")
    write(w.directory, {"last": b"!"})
    w.push()
    d = lab.reopen(d)
    agree_on_files(d, w)
    assert d.device_list().epoch == 5
    with pytest.raises(RevokedError):
        p.pull()


def test_what_came_after_a_rotation_is_looked_for_under_its_keys(lab: Lab) -> None:
    """The first look shows too few votes, and a search ahead ends at the rotation: later names are of the new epoch."""
    w, d, _ = three(lab)
    d.pull()
    with away(lab, "c"):
        write(w.directory, {"before": b"1"})
        w.push()
        rotate(w)
        write(w.directory, {"after": b"1"})
        newest = w.push().version
    with away(lab, "a"):
        assert d.device_list().version == newest


def test_history_of_all_epochs_can_be_read_by_a_new_device(lab: Lab) -> None:
    w, _, _ = three(lab)
    for turn in range(12):  # more versions than a step of `skip` covers
        write(w.directory, {"f": b"%d" % turn})
        w.push(f"turn {turn}")
        if turn % 3 == 0:
            rotate(w)
    c = lab.clone(lab.urls("a", "b", "c"), device="late")
    assert tree_of(c.directory) == tree_of(w.directory)
    assert len(c.log()) == len(w.log()) == 13
    old = c.log()[5]
    c.restore(str(old.version), ["f"])
    assert old.message == f"turn {(c.directory / 'f').read_text()}"
    write(c.directory, {"f": b"late"})
    assert c.push().version is not None
    w.pull()
    assert (w.directory / "f").read_bytes() == b"late"


def test_a_workspace_without_encryption_revokes_too(lab: Lab) -> None:
    w, d, p = three(lab, encryption=False)
    revoke(w, "phone")
    write(d.directory, {"x": b"1"})
    agree_on_files(d, w)
    write(p.directory, {"p": b"1"})
    with pytest.raises(RevokedError):
        p.push()
    with pytest.raises(RevokedError):
        p.pull()


def test_only_storage_holds_the_ring_too(lab: Lab) -> None:
    urls = [*lab.urls("a", "b"), lab.url("s", role="storage")]
    w = lab.init(urls)
    rotate(w)
    assert all(len(keys_in(lab, n, "ring")) == 2 for n in "abs")


# --- passphrases


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


# --- who can be revoked


@pytest.mark.long
def test_who_cannot_be_revoked(lab: Lab) -> None:
    w, _, _ = three(lab)
    urls = lab.urls("a", "b", "c")
    twins = [lab.clone(urls, device=f"twin{i}") for i in range(2)]
    with pytest.raises(UsageError, match="can't revoke itself"):
        revoke(w, "laptop")
    with pytest.raises(UsageError, match=r"no device.*nobody"):
        revoke(w, "nobody")
    with pytest.raises(UsageError, match="no device is named"):
        revoke(w)
    ids = {x.name: x.device_id for x in w.device_list().devices}
    assert revoke(w, ids["twin0"][:8], "twin1").revoked == ("twin0", "twin1")
    with pytest.raises(UsageError, match="revoked already"):
        revoke(w, "twin0")
    for twin in twins:
        with pytest.raises(RevokedError):
            twin.pull()


def test_one_name_of_two_devices_is_not_enough(lab: Lab) -> None:
    w, _, _ = three(lab)
    report = Workspace.clone(
        lab.root / "second", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE, device_name="phone"
    )
    second = lab.keep(report.workspace)
    with pytest.raises(UsageError, match="2 devices are called 'phone'") as e:
        revoke(w, "phone")
    assert second._connections.device.device_id.hex()[:8] in e.value.next_step


def test_a_dry_run_changes_nothing(lab: Lab) -> None:
    w, _, p = three(lab)
    before = sorted(x.name for n in "abc" for x in lab.store(n).rglob("*"))
    report = revoke(w, "phone", dry_run=True)
    assert (report.version, report.revoked, report.devices) == (None, ("phone",), ("desktop", "laptop"))
    assert report.recovery_phrase == ""
    assert len(report.withdraw) == 3
    assert sorted(x.name for n in "abc" for x in lab.store(n).rglob("*")) == before
    p.pull()


# --- logins


def test_logins_stay_open_on_all_devices_until_confirmed(lab: Lab) -> None:
    w, d, _ = three(lab)
    revoke(w, "phone")
    for x in (w, d):
        assert [(i.device, i.backend) for i in x.status().withdraw] == [("phone", n) for n in "abc"]
    assert [i.backend for i in d.device_confirm("phone", ["b"]).withdraw] == ["a", "c"]
    assert [i.backend for i in w.status().withdraw] == ["a", "c"]
    with pytest.raises(UsageError, match="at b"):
        w.device_confirm("phone", ["b"])
    assert w.device_confirm("phone", dry_run=True).version is None
    assert w.device_confirm("phone").withdraw == ()
    assert w.status().withdraw == d.status().withdraw == ()
    with pytest.raises(UsageError, match="no login"):
        w.device_confirm("phone")


def test_logins_survive_what_others_agree(lab: Lab) -> None:
    w, d, _ = three(lab)
    revoke(w, "phone")
    write(d.directory, {"x": b"1"})
    d.push()
    lab.clone(lab.urls("a", "b", "c"), device="tablet")
    revoke(w, "desktop")
    assert {i.device for i in w.status().withdraw} == {"phone", "desktop"}


# --- races


def test_a_push_that_lost_to_a_rotation_seals_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packs are stored, then the keys change: what it names in the end is of the new epoch."""
    w, d, _ = three(lab)
    real = AgreedIndexes.storing
    turns: list[int] = []

    def slow(self: AgreedIndexes, base: State, *index: Any, **options: Any) -> Any:
        if not turns:
            rotate(w)
        turns.append(base.epoch)
        return real(self, base, *index, **options)

    monkeypatch.setattr(AgreedIndexes, "storing", slow)
    write(d.directory, {"big": b"\x07" * 300_000})
    report = d.push()
    assert turns == [1, 2]
    assert report.version is not None
    assert set(pack_epochs(lab, "a", "b", "c").values()) == {1, 2}
    w.pull()
    assert (w.directory / "big").read_bytes() == b"\x07" * 300_000
    late = lab.clone(lab.urls("a", "b", "c"), device="late")
    with late._session("look") as s:
        named = set(agreement.newest(s).index.packs())
    ours = {n for n, epoch in pack_epochs(lab, "a", "b", "c").items() if epoch == 2}
    assert ours & {name.hex() for _, name in named}


def test_an_upload_of_an_old_epoch_or_generation_is_not_gone_on_with() -> None:
    """Even if nothing is stored yet: what it is going to store would be of the old one."""
    form = SimpleNamespace(epoch=1)
    upload = Upload(None, form, 3, runner=None, listener=None, entropy=None, clock=None, begin=None)  # type: ignore[arg-type]
    assert upload.counting(3, 1)
    assert not upload.counting(3, 2)
    assert not upload.counting(4, 1)


def test_a_revoked_devices_push_comes_before_or_not_at_all(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, p = three(lab)
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Any) -> Any:
        if self.device.name == "phone" and not done:
            done.append(1)
            revoke(w, "phone")
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose)
    write(p.directory, {"late": b"mine"})
    with pytest.raises(RevokedError):
        p.push()
    assert (p.directory / "late").read_bytes() == b"mine"
    d.pull()
    assert not (d.directory / "late").exists()


@pytest.mark.long
def test_a_revocation_that_lost_to_a_push_comes_after_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, p = three(lab)
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Any) -> Any:
        if self.device.name == "laptop" and change.keyring is not None and not done:
            done.append(1)
            write(p.directory, {"before": b"in time"})
            p.push()
            lab.clone(lab.urls("a", "b", "c"), device="newcomer")
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose)
    report = revoke(w, "phone")
    assert "newcomer" in report.devices
    d.pull()
    assert (d.directory / "before").read_bytes() == b"in time"
    newcomer = lab.keep(Workspace.open(lab.root / "newcomer"))
    write(newcomer.directory, {"n": b"1"})
    assert newcomer.push().version is not None
    assert all(len(keys_in(lab, n, "ring")) == 2 for n in "abc"), "the ring that lost is gone"


def test_two_rotations_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Any) -> Any:
        if self.device.name == "laptop" and not done:
            done.append(1)
            rotate(d)
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose)
    assert rotate(w).epoch == 3  # the passphrase was kept: it goes on
    done.clear()

    def propose_with_another(self: Session, base: Any, change: Any) -> Any:
        if self.device.name == "laptop" and not done:
            done.append(1)
            rotate(d, new_passphrase=NEW)
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose_with_another)
    with pytest.raises(PassphraseError, match="another device changed"):
        rotate(w)
    assert all(len(keys_in(lab, n, "slot")) == 2 for n in "abc")
    write(w.directory, {"x": b"1"})
    agree_on_files(w, d)


def test_a_device_revoked_by_the_other_while_it_revokes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Any) -> Any:
        if self.device.name == "laptop" and not done:
            done.append(1)
            revoke(d, "laptop")
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose)
    with pytest.raises(RevokedError):
        revoke(w, "desktop")
    assert [x.name for x in d.device_list().devices if x.state == "admitted"] == ["desktop", "phone"]


def test_a_device_that_joins_while_the_keys_change(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a certificate by the admin key of before: it begins anew, by itself."""
    w, _, _ = three(lab)
    real = admission.arrive
    turns: list[int] = []

    def arrive(s: Session, *, read_only: bool) -> admission.Arrival:
        turns.append(1)
        if len(turns) == 1:
            rotate(w)
        return real(s, read_only=read_only)

    monkeypatch.setattr(admission, "arrive", arrive)
    late = lab.clone(lab.urls("a", "b", "c"), device="late")
    assert len(turns) == 2
    write(late.directory, {"x": b"1"})
    agree_on_files(late, w)


def test_a_reader_that_never_joined_is_told_to_clone_again(lab: Lab) -> None:
    w, _, _ = three(lab, replicas=3)
    reader = lab.clone([lab.url("a")], device="reader")
    assert reader.device_list().problem
    rotate(w)
    for name, url in zip("bc", lab.urls("b", "c"), strict=True):
        reader.link(name, url)
    with pytest.raises(ExcludedError, match="keys were changed") as e:
        reader.pull()
    assert not isinstance(e.value, RevokedError)
    assert "Clone" in e.value.next_step


@pytest.mark.long
def test_a_revoked_device_hears_of_it_where_no_quorum_is_left_either(lab: Lab) -> None:
    """The version that revoked it cannot be decided any more with what is within reach. Hints of later versions on
    every quorum, and keyrings that are not for it, tell all the same; who is not revoked is told what is missing."""
    w, d, p = three(lab, "a", "b", "c", "d")
    before = tree_of(p.directory)
    revoke(w, "phone")
    for n in range(16):  # there is a hint by then that is sealed with the new keys
        write(w.directory, {"x": b"%d" % n})
        w.push()
    lab.hurry()
    with away(lab, "c", "d"):
        with pytest.raises(ExcludedError, match="it was revoked, or was never taken in"):
            p.pull()
        with pytest.raises(NoQuorumError):
            d.pull()
    with away(lab, "b", "c", "d"), pytest.raises(NoQuorumError):  # one provider's word is not enough
        p.pull()
    assert tree_of(p.directory) == before
    with pytest.raises(RevokedError):
        p.pull()
    agree_on_files(w, d)


# --- backends


@pytest.mark.few(1)
@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_minority_may_be_away(lab: Lab, gone: str) -> None:
    w, d, p = three(lab)
    with away(lab, gone):
        report = revoke(w, "phone", new_passphrase=NEW)
        assert [n for n, _ in report.missing] == [gone]
        assert report.old_slots == (gone,)
        assert report.complete
        write(d.directory, {"x": b"1"})
        d.push()
    w = lab.reopen(w)
    agree_on_files(w, d)
    with pytest.raises(RevokedError):
        p.push()
    others = [n for n in "abc" if n != gone]
    late = lab.clone([*lab.urls(gone), *lab.urls(*others)], device="late", passphrase=NEW)
    assert tree_of(late.directory) == tree_of(w.directory)
    with pytest.raises(PassphraseError, match=r"not in force|wrong passphrase"):  # whether its old slot is gone or not
        lab.clone([*lab.urls(gone), *lab.urls(*others)], device="late2")


@pytest.mark.long
def test_a_clone_whose_first_backend_missed_the_rotation(lab: Lab) -> None:
    """The passphrase stayed, so the old slot there opens as well, and leads to an old ring."""
    w, _, _ = three(lab)
    with away(lab, "a"):
        rotate(w)
        write(w.directory, {"x": b"1"})
        w.push()
    late = lab.clone(lab.urls("a", "b", "c"), device="late")
    assert tree_of(late.directory) == tree_of(w.directory)
    write(late.directory, {"y": b"1"})
    agree_on_files(late, w)


def test_without_a_quorum_nothing_is_changed(lab: Lab) -> None:
    w, _, p = three(lab)
    lab.hurry()
    with away(lab, "b", "c"), pytest.raises(NoQuorumError):
        revoke(w, "phone")
    assert w.device_list().epoch == 1
    p.pull()


@pytest.mark.long
def test_the_new_ring_on_too_few_backends_is_not_proposed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, p = three(lab)
    real = key_store.store

    def store(s: Session, config: Any, files: Any) -> Any:
        with away(lab, "b", "c"):
            return real(s, config, files)

    monkeypatch.setattr(key_store, "store", store)
    with pytest.raises(NoQuorumError, match="1 voting backends of 2"):
        revoke(w, "phone")
    p.pull()
    w.pull()
    assert w.device_list().epoch == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["hidden", "forged", "altered"])
def test_a_backend_that_hides_or_forges_the_new_ring(lab: Lab, how: str) -> None:
    w, d, _ = three(lab)
    rotate(w)
    newest = max(keys_in(lab, "a", "ring"), key=lambda p: int(p.name.split("-")[1]))
    if how == "hidden":
        newest.unlink()
    elif how == "forged":
        shutil.copy(min(keys_in(lab, "a", "ring"), key=lambda p: int(p.name.split("-")[1])), newest)
    else:
        flip(newest)
    d.pull()
    write(d.directory, {"x": b"1"})
    agree_on_files(d, w)
    late = lab.clone(lab.urls("a", "b", "c"), device="late")
    assert tree_of(late.directory) == tree_of(w.directory)


def test_a_ring_that_no_backend_has(lab: Lab) -> None:
    w, d, _ = three(lab)
    rotate(w)
    for n in "abc":
        max(keys_in(lab, n, "ring"), key=lambda p: int(p.name.split("-")[1])).unlink()
    with pytest.raises(DamagedError, match="keyring of epoch 2"):
        d.pull()


@pytest.mark.long
def test_a_ring_and_a_slot_of_a_change_that_was_never_agreed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever clones with its passphrase is told; the right passphrase goes to the ring that is in force."""
    w, _, _ = three(lab)
    with monkeypatch.context() as m:

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        m.setattr(rotation, "_propose", dies)
        with pytest.raises(KeyboardInterrupt):
            rotate(w, new_passphrase=NEW)
    assert len(keys_in(lab, "a", "ring")) == 2
    urls = lab.urls("a", "b", "c")
    with pytest.raises(PassphraseError, match="not in force"):
        lab.clone(urls, device="x1", passphrase=NEW)
    assert not (lab.root / "x1" / ".metasync").exists()
    late = lab.clone(urls, device="x2")
    assert tree_of(late.directory) == tree_of(w.directory)
    rotate(w)
    lab.clone(urls, device="x3")


def test_the_version_is_closed_on_a_quorum(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief's program, which keeps to no rule, cannot have another value accepted after a revocation."""
    w, _, p = three(lab)
    with p._session("thief") as s:
        base = agreement.ask_newest(s)
        before = s.group
    report = revoke(w, "phone")
    assert report.complete
    with p._session("thief") as s:
        instance = s.runtime.run(before.enter(base))
        s.runtime.run(_looked(before, instance))
        closed = [a.log for a in instance.acceptors.values() if a.log.closed is not None]
        assert len(closed) >= 2
        assert {log.closed.epoch for log in closed if log.closed} == {2}
    assert isinstance(closed[0], Log)


def _looked(group: Group, instance: Any) -> Any:
    instance.begin()
    yield Gather({a.name: a.look() for a in instance.acceptors.values()})


def test_who_follows_closes_the_version_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that revoked died before it had closed it."""
    w, d, _ = three(lab)
    with w._session("before") as s:
        base = s.newest_state()
    with monkeypatch.context() as m:
        m.setattr(Group, "fence", _unreachable)
        assert not revoke(w, "phone").complete
    d.pull()
    with w._session("look") as s:
        instance = s.runtime.run(s.group.enter(base))
        s.runtime.run(_looked(s.group, instance))
        assert sum(a.log.closed is not None for a in instance.acceptors.values()) >= 2


def _unreachable(*_: Any, **__: Any) -> Any:
    raise NoQuorumError("no quorum for the fence")


def test_a_revocation_that_could_not_be_closed_is_closed_by_the_next_operation(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, _, _ = three(lab)
    with w._session("before") as s:
        base = s.newest_state()
    with monkeypatch.context() as m:
        m.setattr(Group, "fence", _unreachable)
        assert not revoke(w, "phone").complete
    w = lab.reopen(w)
    w.pull()
    with w._session("look") as s:
        instance = s.runtime.run(s.group.enter(base))
        s.runtime.run(_looked(s.group, instance))
        assert sum(a.log.closed is not None for a in instance.acceptors.values()) >= 2


# --- what is shown


def test_what_keys_there_are(lab: Lab) -> None:
    w, _, _ = three(lab)
    before = w.key_show()
    assert [(x.kind, x.backends, x.agreed) for x in before.slots] == [
        ("passphrase", ("a", "b", "c"), True),
        ("recovery phrase", ("a", "b", "c"), True),
    ]
    assert (before.epoch, before.devices, before.rings, before.encrypted) == (1, 3, ("ring-1",), True)
    assert before.stored.endswith("device.key")
    rotate(w)
    after = w.key_show()
    assert (after.epoch, after.rings, after.id) == (2, ("ring-1", "ring-2"), before.id)
    assert after.admin != before.admin
    with w._session("x") as s:
        ring = read_ring(s.runtime.run(s.group.get_ring(s.newest_state())))
        assert ring.epoch == 2
        assert not open_logins(s.devices_of(s.newest_state()))
    with away(lab, "b"):
        assert lab.reopen(w).key_show().unasked == ("b",)


def test_the_cost_of_a_slot_is_the_callers(lab: Lab) -> None:
    w, _, _ = three(lab)
    w.key_rotate(PASSPHRASE, kdf=Cost(16, 1, 1, for_tests=True))
    with w._session("x") as s:
        costs = {key_store.read_slot(data).cost.memory_kib for data in key_store.look(s).slots.values()}
    assert costs == {16}


def test_a_commit_without_files_leaves_what_merges_staged(lab: Lab) -> None:
    """A rotation that is found again after a crash holds nothing of what the next push has still to name."""
    w, _, _ = three(lab)
    with w._session("x") as s:
        state = s.base_state()
        s.db.set(KEPT_KEY, b"k" * 32)
        agreement.adopt(s, replace(state, v=state.v + 1, prev=state.hash))
        assert s.db.get(KEPT_KEY) == b"k" * 32
        agreement.adopt(s, replace(state, v=state.v + 2, master=b"m" * 32))
        assert s.db.get(KEPT_KEY) is None


def test_the_new_keys_are_sealed_to_the_others_alone(lab: Lab) -> None:
    w, d, p = three(lab)
    revoke(w, "phone")
    newest = max(keys_in(lab, "a", "ring"), key=lambda path: int(path.name.split("-")[1]))
    to = {who for who, _ in read_ring(newest.read_bytes()).wraps}
    assert device_recipient(d._connections.certificate.sealing) in to
    assert device_recipient(p._connections.certificate.sealing) not in to


def test_a_step_back_over_three_rotations(lab: Lab) -> None:
    """State 12 names state 8; the keys changed in 9, 10 and 11."""
    w = lab.init(lab.urls("a", "b", "c"))
    for v in range(1, 14):
        if v in (9, 10, 11):
            rotate(w)
        else:
            write(w.directory, {"f": b"%d" % v})
            assert w.push().version == v
    with lab.reopen(w)._session("x") as s:
        assert s.runtime.run(s.group.state_at(s.newest_state(), 1)).v == 1


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


def test_every_provider_says_which_login_to_withdraw() -> None:
    assert registry._BUILT_IN.keys() <= devices._LOGINS.keys()
