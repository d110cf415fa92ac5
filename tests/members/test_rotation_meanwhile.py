"""The keys change while other devices push, join, revoke or change them too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rotation_kit import NEW, agree_on_files, away, keys_in, meanwhile, pack_epochs, revoke, rotate, three
from workspace_kit import Lab, tree_of, write

from metasync.consensus import State
from metasync.errors import ExcludedError, NoQuorumError, PassphraseError, RevokedError
from metasync.members import admission
from metasync.session import agreement
from metasync.session.session import Session
from metasync.session.write_index import AgreedIndexes
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace


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
    write(p.directory, {"late": b"mine"})
    with meanwhile(monkeypatch, "phone", lambda: revoke(w, "phone")), pytest.raises(RevokedError):
        p.push()
    assert (p.directory / "late").read_bytes() == b"mine"
    d.pull()
    assert not (d.directory / "late").exists()


@pytest.mark.long
def test_a_revocation_that_lost_to_a_push_comes_after_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, p = three(lab)

    def another_push() -> None:
        write(p.directory, {"before": b"in time"})
        p.push()
        lab.clone(lab.urls("a", "b", "c"), device="newcomer")

    with meanwhile(monkeypatch, "laptop", another_push, lambda change: change.keyring is not None):
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
    with meanwhile(monkeypatch, "laptop", lambda: rotate(d)):
        assert rotate(w).epoch == 3  # the passphrase was kept: it goes on
    with (
        meanwhile(monkeypatch, "laptop", lambda: rotate(d, new_passphrase=NEW)),
        pytest.raises(PassphraseError, match="another device changed"),
    ):
        rotate(w)
    assert all(len(keys_in(lab, n, "slot")) == 2 for n in "abc")
    write(w.directory, {"x": b"1"})
    agree_on_files(w, d)


def test_a_device_revoked_by_the_other_while_it_revokes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d, _ = three(lab)
    with meanwhile(monkeypatch, "laptop", lambda: revoke(d, "laptop")), pytest.raises(RevokedError):
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
