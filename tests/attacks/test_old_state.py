"""A new device that is shown an old state: all backends are rolled back to before a revocation."""

from __future__ import annotations

import shutil

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, write

from metasync.errors import ForkError, MetaSyncError, WorkspaceError
from metasync.keys.slots import FINGERPRINT_WORDS, fingerprint_words, word_list
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


def revoked_and_rolled_back(lab: Lab) -> tuple[str, str]:
    """A workspace with a revoked device, on backends from before that. -> what its fingerprint was, and its words."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    lab.clone(lab.urls(*NAMES), device="stolen").close()
    for n in NAMES:
        shutil.copytree(lab.store(n), lab.root / "old" / n)
    w.device_revoke(["stolen"], PASSPHRASE, kdf=CHEAP)
    w.pull()
    shown = lab.cli("status", "-v").out
    s = w.status()
    words = fingerprint_words(bytes.fromhex(s.state))
    assert f"({s.fingerprint}; in words: {words})" in shown
    assert f"of version {s.version} in words: {words}" in lab.cli("key", "show").out
    w.close()
    for n in NAMES:
        shutil.rmtree(lab.lose(n))
        shutil.copytree(lab.root / "old" / n, lab.store(n))
    return s.fingerprint, words


@pytest.mark.long
def test_the_fingerprint_in_words_finds_a_rollback_out(lab: Lab) -> None:
    """Whoever compares the words, or gives them to `clone`, does not share with the device that was revoked."""
    fingerprint, words = revoked_and_rolled_back(lab)
    for expected in (words, f"{fingerprint.partition('-')[0]} {words}", words.upper().replace(" ", "-"), fingerprint):
        with pytest.raises(WorkspaceError, match="not "):
            lab.clone(lab.urls(*NAMES), device="new", expect=expected)
        assert not (lab.root / "new" / ".metasync").exists()
    ran = lab.cli("clone", "new", "--name", "docs", *lab.words(*NAMES), cwd=".")
    assert words not in ran.out
    assert "in words: " in ran.out


def test_what_a_new_device_cannot_know_is_said(lab: Lab) -> None:
    """Nobody vouches for what the backends show: `clone` says what that means, before and after it joined."""
    w = lab.init(lab.urls(*NAMES))
    ran = lab.cli("clone", "dry", "--dry-run", "--name", "docs", *lab.words(*NAMES), cwd=".")
    assert "has no memory yet" in ran.out
    words = fingerprint_words(bytes.fromhex(w.status().state))
    assert f"in words: {words}" in ran.out
    ran = lab.cli("clone", "new", "--name", "docs", *lab.words(*NAMES), cwd=".")
    assert "has no memory yet" in ran.out
    w.pull()
    words = fingerprint_words(bytes.fromhex(w.status().state))
    assert f"in words: {words}" in ran.out
    ran = lab.cli("clone", "sure", "--name", "docs", "--expect", words, *lab.words(*NAMES), cwd=".")
    assert ran.code == 0
    assert "has no memory yet" not in ran.out


def test_an_invitation_vouches(lab: Lab) -> None:
    """An invitation names the state that agreed it: who shows an older one to the device it is for is found out."""
    w = lab.init(lab.urls(*NAMES))
    for n in NAMES:
        shutil.copytree(lab.store(n), lab.root / "old" / n)
    write(w.directory, {"notes": b"two\n"})
    w.push()
    made = w.invite("tablet", PASSPHRASE)
    kept = {p.relative_to(lab.root): p.read_bytes() for n in NAMES for p in lab.objects(n, "keys")}
    w.close()
    for n in NAMES:
        shutil.rmtree(lab.lose(n))
        shutil.copytree(lab.root / "old" / n, lab.store(n))
    for path, data in kept.items():
        (lab.root / path).write_bytes(data)
    with pytest.raises(ForkError, match="older past"):
        Workspace.clone(lab.root / "tablet", invite=made.code)


@pytest.mark.parametrize("expect", ["abandon " * 6, "2", "zoo", "", "0000000000"])
def test_another_fingerprint_is_refused(lab: Lab, expect: str) -> None:
    lab.init(lab.urls(*NAMES)).close()
    with pytest.raises(MetaSyncError, match="fingerprint"):
        lab.clone(lab.urls(*NAMES), device="new", expect=expect)


def test_the_words_stand_for_66_bits() -> None:
    """Six words of 2,048: each bit of these changes a word."""
    digest = bytes(range(32))
    words = fingerprint_words(digest)
    assert len(words.split()) == FINGERPRINT_WORDS
    assert [word_list().index(x) for x in words.split()] == [
        int(f"{int.from_bytes(digest, 'big'):0256b}"[11 * i : 11 * i + 11], 2) for i in range(6)
    ]
    for bit in range(66):
        other = bytearray(digest)
        other[bit // 8] ^= 128 >> bit % 8
        assert fingerprint_words(bytes(other)) != words


@pytest.mark.parametrize("devices", [1, 2])
def test_no_honest_device_is_to_be_revoked_where_backends_were_set_back(lab: Lab, devices: int) -> None:
    """Two of three stores are set back in place, beyond what is promised: the third shows what the device agreed, and
    the two do not bear it out. A device that lies looks the same, so the clone says both, and how to find out."""
    one = lab.init(lab.urls(*NAMES))
    write(one.directory, {"x": b"1"})
    one.push()
    for n in NAMES[:2]:
        shutil.copytree(lab.store(n), lab.root / "old" / n)
    pushers = [one, *(lab.clone(lab.urls(*NAMES), device="second") for _ in range(devices - 1))]
    for w in pushers * 4:
        w.pull()
        write(w.directory, {f"{w.directory.name}{w.status().version}": b"new"})
        w.push()
    for n in NAMES[:2]:
        for path in lab.store(n).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(lab.root / "old" / n, lab.store(n), dirs_exist_ok=True)
    lab.faults["c"].down = True  # else the clone may bring to an end what it shows, which loses nothing
    assert lab.cli("clone", "new", "--name", "docs", *lab.words(*NAMES), cwd=".").code == 0
    lab.faults["c"].down = False
    linked = lab.cli("backend", "link", "c", lab.urls("c")[0], cwd="new")
    told = linked.out + linked.err
    for command in ("status", "pull", "check"):
        ran = lab.cli(command, cwd="new")
        told += ran.out + ran.err
    assert "is not believed about version" in told
    assert "; on c) than the one here" in told
    assert "backends were set back to an older state" in told
    assert "device revoke" not in told
    assert "older past" in lab.cli("status").out, "as the honest device says, to which the clone sends"
