"""The keys change where backends are away, or hide, forge or damage them. The version before is closed on a quorum."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from rotation_kit import NEW, agree_on_files, away, closed_logs, keys_in, looked, revoke, rotate, three
from workspace_kit import Lab, flip, tree_of, write

from metasync.consensus import Group
from metasync.consensus.records.log_replay import Log
from metasync.errors import DamagedError, NoQuorumError, PassphraseError, RevokedError
from metasync.members import key_store, rotation
from metasync.session import agreement
from metasync.session.session import Session


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
        s.runtime.run(looked(before, instance))
        closed = [a.log for a in instance.acceptors.values() if a.log.closed is not None]
        assert len(closed) >= 2
        assert {log.closed.epoch for log in closed if log.closed} == {2}
    assert isinstance(closed[0], Log)


def test_who_follows_closes_the_version_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that revoked died before it had closed it."""
    w, d, _ = three(lab)
    with w._session("before") as s:
        base = s.newest_state()
    with monkeypatch.context() as m:
        m.setattr(Group, "fence", _unreachable)
        assert not revoke(w, "phone").complete
    d.pull()
    assert closed_logs(w, base) >= 2


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
    assert closed_logs(w, base) >= 2
