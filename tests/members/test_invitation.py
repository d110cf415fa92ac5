"""Invitations, on whole workspaces: one device, once, without the passphrase; and all the ways in which that ends."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from racing_kit import race
from workspace_kit import CHEAP, PASSPHRASE, Lab, flip, tree_of, wipe, write

from metasync.errors import (
    ExcludedError,
    ForkError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UsageError,
    WorkspaceError,
)
from metasync.keys.invitation import Code, Way, decode_code
from metasync.local.state_keys import INVITED_KEY
from metasync.reports.members import InviteReport
from metasync.session import agreement
from metasync.session.session import Session
from metasync.workspace import Workspace


def begun(lab: Lab, **options: Any) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"), **options)
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    return w


def invite(w: Workspace, name: str = "tablet", **options: Any) -> InviteReport:
    return w.invite(name, PASSPHRASE, **options)


def accepted(lab: Lab, code: str, device: str = "tablet", **options: Any) -> Workspace:
    return lab.keep(Workspace.clone(lab.root / device, invite=code, **options).workspace)


def objects(lab: Lab, part: str = "invite-") -> list[Path]:
    return [p for n in "abc" for p in lab.objects(n, "keys") if p.name.startswith(part)]


def names(w: Workspace) -> list[str]:
    return [d.name for d in w.device_list().devices if d.state == "admitted"]


def test_an_invited_device_reads_and_writes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    w = begun(lab)
    made = invite(w)
    assert (made.name, made.backends, made.missing) == ("tablet", ("a", "b", "c"), ())
    assert len(objects(lab)) == 3
    assert [i.name for i in w.device_list().invitations] == ["tablet"]
    t = accepted(lab, made.code)
    assert tree_of(t.directory) == tree_of(w.directory)
    assert objects(lab) == []
    assert w.device_list().invitations == ()
    assert names(w) == ["laptop", "tablet"]
    write(t.directory, {"from tablet": b"t"})
    assert t.push().version is not None
    w.pull()
    assert (w.directory / "from tablet").read_bytes() == b"t"
    w.key_rotate(PASSPHRASE, kdf=CHEAP)
    t = lab.reopen(t)
    t.pull()
    w.device_revoke(["tablet"], PASSPHRASE, kdf=CHEAP)
    with pytest.raises(ExcludedError):
        t.pull()


def test_neither_code_nor_object_holds_a_login(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs cannot hold one; and the passphrase, the admin key and the phrase are in neither."""
    w = begun(lab)
    code = decode_code(invite(w).code)
    assert {way.name for way in code.ways} == {"a", "b", "c"}
    assert all("?" not in way.url or "secret" not in way.url for way in code.ways)
    assert PASSPHRASE not in repr(code)
    assert code.secret.hex() not in repr(code)


def test_an_invitation_is_used_once(lab: Lab) -> None:
    w = begun(lab)
    code = invite(w).code
    kept = [(p, p.read_bytes()) for p in objects(lab)]
    t = accepted(lab, code)
    with pytest.raises(WorkspaceError, match="not on a, b, c"):
        accepted(lab, code, "second")
    for path, data in kept:  # a provider that keeps what it is told to delete
        path.write_bytes(data)
    with pytest.raises(ExcludedError, match="used before") as e:
        accepted(lab, code, "second")
    assert "device revoke tablet" in e.value.next_step
    assert not (lab.root / "second").exists()
    t.pull()
    assert names(w) == ["laptop", "tablet"]


def test_two_at_once_and_one_gets_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = begun(lab)
    code = invite(w).code
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Any) -> Any:
        if self.db.has(INVITED_KEY) and not done:
            done.append(1)
            accepted(lab, code, "faster")
        return real(self, base, change)

    monkeypatch.setattr(agreement, "propose", propose)
    with pytest.raises(ExcludedError, match="used before"):
        accepted(lab, code, "slower")
    assert names(w) == ["laptop", "tablet"]


def test_a_clone_by_invitation_that_was_interrupted_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after its device was agreed: it knows that it was the one."""
    w = begun(lab)
    code = invite(w).code

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("metasync.members.invitation.used_up", dies)
        with pytest.raises(KeyboardInterrupt):
            accepted(lab, code)
    assert names(w) == ["laptop", "tablet"]
    t = accepted(lab, code)
    assert tree_of(t.directory) == tree_of(w.directory)
    assert objects(lab) == []


def test_an_invitation_that_was_taken_back(lab: Lab) -> None:
    w = begun(lab)
    made = invite(w)
    kept = [(p, p.read_bytes()) for p in objects(lab)]
    assert w.invitation_revoke(["tablet"], dry_run=True).version is None
    assert w.invitation_revoke([made.invitation_id[:8]]).names == ("tablet",)
    assert objects(lab) == []
    with pytest.raises(WorkspaceError, match="taken back"):
        accepted(lab, made.code)
    for path, data in kept:
        path.write_bytes(data)
    with pytest.raises(ExcludedError, match="not open any more"):
        accepted(lab, made.code)
    assert not (lab.root / "tablet").exists()
    with pytest.raises(UsageError, match="no open invitation"):
        w.invitation_revoke(["tablet"])
    accepted(lab, invite(w).code)
    assert names(w) == ["laptop", "tablet"]


def test_an_invitation_ends_with_the_keys_it_was_made_with(lab: Lab) -> None:
    w = begun(lab)
    made = invite(w)
    kept = [(p, p.read_bytes()) for p in objects(lab)]
    assert w.key_rotate(PASSPHRASE, kdf=CHEAP).invitations == ("tablet",)
    assert objects(lab) == []
    for path, data in kept:
        path.write_bytes(data)
    with pytest.raises(ExcludedError):
        accepted(lab, made.code)
    assert names(w) == ["laptop"]


def test_an_invitation_ends_after_so_many_versions(lab: Lab) -> None:
    w = begun(lab)
    made = invite(w, expires_after=2)
    assert made.expires == made.version + 2
    for turn in range(3):
        write(w.directory, {"notes": b"%d" % turn})
        w.push()
    with pytest.raises(ExcludedError, match="expired"):
        accepted(lab, made.code)
    write(w.directory, {"notes": b"last"})
    w.push()  # which takes it back for good: its device is admitted never more
    assert w.device_list().invitations == ()
    with w._session("x") as s:
        devices = s.devices_of(agreement.ask_newest(s))
        assert len(devices.ended_ids) == 1
    unending = invite(w, "phone", expires_after=0)
    assert unending.expires is None
    accepted(lab, unending.code, "phone")


def test_on_its_last_version_an_invitation_still_serves(lab: Lab) -> None:
    w = begun(lab)
    made = invite(w, expires_after=2)
    for turn in range(2):
        write(w.directory, {"notes": b"%d" % turn})
        w.push()
    accepted(lab, made.code)


def test_other_ways_to_the_backends(lab: Lab) -> None:
    """The inviter's paths lead nowhere from here; the stores stand elsewhere."""
    w = begun(lab)
    made = invite(w)
    code = decode_code(made.code)
    ways = tuple(Way(x.name, x.url.replace("/stores/", "/elsewhere/"), x.folder) for x in code.ways)
    moved = Code(code.invitation_id, code.secret, ways).encode()
    with pytest.raises(NoQuorumError, match="none of the workspace's backends can be reached"):
        accepted(lab, moved)
    with pytest.raises(NoQuorumError, match="takes 2 voting backends, and 1"):
        accepted(lab, moved, backends=lab.urls("a"))
    assert not (lab.root / "tablet" / ".metasync").exists()
    t = accepted(lab, moved, backends=lab.urls("a", "b"))
    assert tree_of(t.directory) == tree_of(w.directory)
    t.link("c", lab.url("c"))
    t.pull()


def test_a_code_that_is_not_whole(lab: Lab) -> None:
    w = begun(lab)
    code = invite(w).code
    for bad in (code[:-3], code[:40] + ("A" if code[40] != "A" else "B") + code[41:], code[:-1] + "!"):
        with pytest.raises(UsageError, match="not whole"):
            accepted(lab, bad)
    for bad in ("", "nowhere.txt", str(lab.root)):
        with pytest.raises(UsageError):
            accepted(lab, bad)
    file = lab.root / "code.txt"
    file.write_text("\n".join(code[i : i + 60] for i in range(0, len(code), 60)) + "\n")
    accepted(lab, str(file))


def test_an_altered_object_is_taken_from_another_backend(lab: Lab) -> None:
    w = begun(lab)
    code = invite(w).code
    first, *_ = objects(lab)
    flip(first)
    accepted(lab, code)


def test_all_objects_altered(lab: Lab) -> None:
    w = begun(lab)
    code = invite(w).code
    for path in objects(lab):
        flip(path)
    with pytest.raises(WorkspaceError, match="not on a, b, c"):
        accepted(lab, code)


def test_backends_rolled_back_below_the_invitation(lab: Lab) -> None:
    """What the inviter had seen on the backends, the new device knows: an older state of all of them is refused."""
    w = begun(lab)
    for n in "abc":
        shutil.copytree(lab.store(n), lab.root / "old" / n)
    write(w.directory, {"notes": b"two\n"})
    w.push()
    made = invite(w)
    kept = {p.relative_to(lab.root / "stores"): p.read_bytes() for p in objects(lab)}
    for n in "abc":
        for item in lab.store(n).iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()
        shutil.copytree(lab.root / "old" / n, lab.store(n), dirs_exist_ok=True)
    for path, data in kept.items():
        (lab.root / "stores" / path).write_bytes(data)
    with pytest.raises(ForkError, match="older past"):
        accepted(lab, made.code)


def test_who_may_not_be_invited(lab: Lab) -> None:
    w = begun(lab)
    with pytest.raises(UsageError, match="called laptop already"):
        invite(w, "laptop")
    with pytest.raises(UsageError, match="printable"):
        invite(w, "a\nb")
    with pytest.raises(UsageError, match="longer than"):
        invite(w, "x" * 300)
    with pytest.raises(UsageError, match="versions"):
        invite(w, "x", expires_after=-1)
    invite(w, "tablet")
    with pytest.raises(UsageError, match="open invitation for tablet already"):
        invite(w, "tablet")
    with pytest.raises(PassphraseError):
        w.invite("other", "wrong")
    assert invite(w, "dry", dry_run=True).code == ""
    assert [i.name for i in w.device_list().invitations] == ["tablet"]


def test_invitations_of_a_workspace_without_encryption(lab: Lab) -> None:
    w = begun(lab, encryption=False)
    t = accepted(lab, invite(w).code)
    write(t.directory, {"x": b"1"})
    t.push()
    w.pull()
    assert (w.directory / "x").exists()


def test_into_a_folder_with_files(lab: Lab) -> None:
    w = begun(lab)
    code = invite(w).code
    write(lab.root / "full", {"mine": b"1"})
    with pytest.raises(WorkspaceError, match="not empty"):
        accepted(lab, code, "full")
    with pytest.raises(MetaSyncError):
        accepted(lab, code, "laptop/inside")
    accepted(lab, code)


def test_a_device_that_an_invitation_is_for_is_not_taken_in_as_a_newcomer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks where it finds no quorum. Taken in by another, its invitation would stay open, and end nowhere."""
    race(lab, monkeypatch, "block")
    w = lab.init(lab.urls("dav", "one", "two"))
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    code = invite(w).code
    wipe(lab.store("one"))  # in log form: on the one that is left a device that is not in cannot vote alone
    lab.hurry(2.0)
    with contextlib.suppress(MetaSyncError):
        accepted(lab, code)
    lab.hurry(30.0)
    write(w.directory, {"notes": b"two\n"})
    w.push()
    assert names(w) == ["laptop"]
    assert [i.name for i in w.device_list().invitations] == ["tablet"]


def test_a_device_whose_joining_a_restart_has_forgotten_uses_its_invitation_up_again(lab: Lab) -> None:
    """Only the lost backends showed that the invitation was used; nobody else may use it now."""
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)
    lab.hurry()
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    code = invite(w).code
    w.close()
    away = lab.lose("a")
    t = accepted(lab, code)
    t.close()
    away.rename(lab.store("a"))
    for name in ("b", "c"):
        lab.lose(name)
    w = lab.reopen(w)
    w.recover(["b", "c"], PASSPHRASE, confirm="docs")
    assert [i.name for i in w.device_list().invitations] == ["tablet"]
    t = lab.reopen(t)
    t.link("a", lab.url("a"))
    write(t.directory, {"from tablet": b"t"})
    t.sync()
    assert names(w) == ["laptop", "tablet"]
    assert w.device_list().invitations == ()


def test_who_has_the_code_too_does_not_get_in_with_the_next_keys(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """New keys end the list of invitations. Two devices opened one; the one that used it is in."""
    w = begun(lab)
    code = invite(w).code

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("metasync.members.admission.enrol", dies)
        with pytest.raises(KeyboardInterrupt):
            accepted(lab, code, "second")
    accepted(lab, code)
    w.key_rotate(PASSPHRASE, kdf=CHEAP)
    with pytest.raises(ExcludedError, match="was used before"):
        accepted(lab, code, "second")


def test_what_the_inviter_stored_in_blocks_is_not_asked_of_the_invited(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has blocks of its own: those of the inviter are not missing where the invited one has none."""
    race(lab, monkeypatch, "block")
    w = lab.init(lab.urls("dav", "one", "two"))
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    t = accepted(lab, invite(w).code)
    for n in range(2):
        write(t.directory, {"from tablet": b"%d" % n})
        t.push()
    assert {b.name: b.condition for b in t.status().backends} == dict.fromkeys(("dav", "one", "two"), "ok")
