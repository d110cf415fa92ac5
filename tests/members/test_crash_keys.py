"""A process that dies at any step of a rotation, a change of passphrase or an invitation leaves one of two states.

Either the old keys are in force or the new ones; whichever it is, some passphrase opens the workspace, the devices go
on, and running the command again ends what was begun. METASYNC_CRASH_STEPS: how many steps
`make test-long` tries (12).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from crash_kit import (
    NAME,
    PASSPHRASE,
    POINTS,
    Child,
    die_at,
    die_at_call,
    quiet_environment,
    read_tree,
    run_accept,
    run_change_passphrase,
    run_clone,
    run_init,
    run_invite,
    run_pull,
    run_push,
    run_revoke,
    same_trees,
)
from effort import few_and_many

from metasync.errors import DamagedError, ExcludedError, PassphraseError, RevokedError, UsageError, WorkspaceError
from metasync.workspace import Workspace

quiet_environment()

STEPS = int(os.environ.get("METASYNC_CRASH_STEPS", "12"))
NEW = "the new passphrase"


def made(root: Path) -> tuple[Path, Path, Path, list[str]]:
    """Devices a, b and the one to be revoked, c; and the URLs."""
    root.mkdir(exist_ok=True)
    urls = [f"file://{root}/b{i}" for i in range(3)]
    a, b, c = (root / x for x in "abc")
    a.mkdir()
    (a / "f").write_bytes(b"first")
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    run_clone(str(c), urls, NAME, "c")
    return a, b, c, urls


def opens(urls: list[str], place: Path, passphrase: str) -> bool:
    """Whether a clone with this passphrase becomes a device that can push."""
    try:
        report = Workspace.clone(place, name=NAME, backends=urls, passphrase=passphrase, device_name=place.name)
    except (PassphraseError, DamagedError):  # the second: a revocation died between its new slots and their keyring
        return False
    with report.workspace as w:
        assert not report.problem
        (place / place.name).write_bytes(b"x")
        assert w.push().version is not None
    return True


def goes_on(a: Path, b: Path, c: Path, urls: list[str]) -> None:
    """Ends the revocation, and sees that all are as they should be after it."""
    root = a.parent
    (b / "of b").write_bytes(b"b")
    run_push(str(b), "b")
    with Workspace.open(a) as w:
        revoked = all(d.name != "c" for d in w.device_list().devices if d.state == "admitted")
    right = NEW if revoked else PASSPHRASE
    assert opens(urls, root / "opened", right), f"revoked: {revoked}"
    assert not opens(urls, root / "not opened", PASSPHRASE if revoked else NEW)
    if revoked:
        with pytest.raises(UsageError, match="revoked already"):
            run_revoke(str(a), "c", NEW, NEW)
    else:
        run_pull(str(c))
        run_revoke(str(a), "c", PASSPHRASE, NEW)
    with pytest.raises(RevokedError):
        run_pull(str(c))
    (a / "of a").write_bytes(b"a")
    with Workspace.open(a) as w:
        w.sync("a")
    run_pull(str(b))
    same_trees({"a": read_tree(a), "b": read_tree(b)})
    assert opens(urls, root / "late", NEW)
    run_pull(str(a))


@pytest.mark.few(2)
@pytest.mark.parametrize("point", sorted(set(POINTS) - {"after_the_report"}))
@pytest.mark.long
def test_a_revocation_that_dies_as_it_is_agreed(tmp_path: Path, point: str) -> None:
    a, b, c, urls = made(tmp_path)
    assert not Child(die_at, point, run_revoke, str(a), "c", PASSPHRASE, NEW).outcome()[0]
    goes_on(a, b, c, urls)


@few_and_many("steps", 3, STEPS)
@pytest.mark.long
def test_a_revocation_that_dies_at_any_call(tmp_path: Path, steps: int) -> None:
    rng = random.Random(7)
    a, *_ = made(tmp_path / "count")
    total, _ = Child(die_at_call, 0, run_revoke, str(a), "c", PASSPHRASE, NEW).wait()
    for k in sorted(rng.sample(range(1, total + 1), min(steps, total))):
        a, b, c, urls = made(tmp_path / f"k{k}")
        assert not Child(die_at_call, k, run_revoke, str(a), "c", PASSPHRASE, NEW).outcome()[0]
        print(f"killed at call {k} of {total}")
        goes_on(a, b, c, urls)


@pytest.mark.long
@few_and_many("steps", 3, STEPS // 2)
def test_a_change_of_passphrase_that_dies_at_any_call(tmp_path: Path, steps: int) -> None:
    a, *_ = made(tmp_path / "count")
    total, _ = Child(die_at_call, 0, run_change_passphrase, str(a), PASSPHRASE, NEW).wait()
    for k in sorted(random.Random(3).sample(range(1, total + 1), min(steps, total))):
        a, _, _, urls = made(tmp_path / f"k{k}")
        Child(die_at_call, k, run_change_passphrase, str(a), PASSPHRASE, NEW).outcome()
        root = a.parent
        either = [p for p in (PASSPHRASE, NEW) if opens(urls, root / f"with {len(p)}", p)]
        assert either, f"killed at call {k}: no passphrase opens it"
        run_change_passphrase(str(a), either[0], NEW)
        assert opens(urls, root / "new", NEW)
        assert not opens(urls, root / "old", PASSPHRASE)


@few_and_many("steps", 3, STEPS)
@pytest.mark.long
def test_an_invitation_whose_use_dies_at_any_call(tmp_path: Path, steps: int) -> None:
    a, *_ = made(tmp_path / "count")
    total, _ = Child(die_at_call, 0, run_accept, str(a.parent / "t"), run_invite(str(a), "t")).wait()
    for k in sorted(random.Random(5).sample(range(1, total + 1), min(steps, total))):
        a, *_ = made(tmp_path / f"k{k}")
        code, place = run_invite(str(a), "t"), a.parent / "t"
        if not Child(die_at_call, k, run_accept, str(place), code).outcome()[0]:
            try:
                run_accept(str(place), code)
            except WorkspaceError as e:  # all was done, and it died while it gave its files back
                assert "is a workspace already" in e.message
        same_trees({"a": read_tree(a), f"killed at call {k}": read_tree(place)})
        (place / "mine").write_bytes(b"t")
        run_push(str(place), "t")
        with pytest.raises((ExcludedError, Exception)):
            run_accept(str(a.parent / "second"), code)
        run_pull(str(a))
        same_trees({"a": read_tree(a), "t": read_tree(place)})
