"""New keys and revoked devices, on whole workspaces: who follows, who is told, what is sealed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rotation_kit import NEW, agree_on_files, away, keys_in, revoke, rotate, three
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.backends import registry
from metasync.consensus import Group
from metasync.errors import RevokedError, UsageError
from metasync.keys.derive import device_recipient
from metasync.keys.device_set import open_logins
from metasync.keys.keyring import read_ring
from metasync.local.state_keys import KEPT_KEY
from metasync.members import devices
from metasync.session import agreement, open_backend
from metasync.workspace import Workspace

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


def test_every_provider_says_which_login_to_withdraw() -> None:
    assert registry._BUILT_IN.keys() <= devices._LOGINS.keys()
