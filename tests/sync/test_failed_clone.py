"""What a clone leaves that failed: nothing, where it cannot go on; and never less than was there."""

from __future__ import annotations

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import MetaSyncError, UnreachableError
from metasync.session import lost_state

FILES = {"notes": b"one", "d/more": bytes(5000)}
NAMES = ("a", "b", "c", "d")


def begun(lab: Lab) -> None:
    """A workspace with a version; what its backend "a" had of that is on another one, too, and there alone now."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, FILES)
    w.push()
    for pack in lab.objects("a", "packs"):
        pack.unlink()


@pytest.mark.parametrize("there", [False, True])
def test_too_few_ways_leave_nothing_and_more_do(lab: Lab, there: bool) -> None:
    begun(lab)
    folder = lab.root / "new/desktop"
    if there:
        folder.mkdir(parents=True)
    lab.hurry()
    with pytest.raises(UnreachableError, match="has no way to") as e:
        lab.clone([lab.url("a")], device="new/desktop")
    assert "--backend URL" in e.value.next_step
    assert (lab.root / "new").exists() is there
    if there:
        assert list(folder.iterdir()) == []
    assert tree_of(lab.clone(lab.urls(*NAMES), device="new/desktop").directory) == tree_of(lab.root / "laptop")


@pytest.mark.parametrize("merge", [False, True])
def test_what_was_there_stays(lab: Lab, merge: bool) -> None:
    begun(lab)
    lab.hurry()
    write(lab.root / "desktop", {"mine": b"1"})
    with pytest.raises(MetaSyncError):
        lab.clone([lab.url("a")], merge=merge)
    assert (lab.root / "desktop/mine").read_bytes() == b"1"


def test_a_clone_that_can_go_on_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device is agreed: another one would be a stranger."""
    begun(lab)

    def fails(*_: object, **__: object) -> None:
        raise UnreachableError("the network is gone")

    with monkeypatch.context() as m:
        m.setattr("metasync.sync.first_checkout.bring", fails)
        with pytest.raises(UnreachableError):
            lab.clone(lab.urls(*NAMES))
    assert (lab.root / "desktop/.metasync").is_dir()
    assert tree_of(lab.clone(lab.urls(*NAMES)).directory) == tree_of(lab.root / "laptop")


def test_a_clone_that_is_interrupted_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(lab)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("metasync.members.admission.arrive", stopped)
        with pytest.raises(KeyboardInterrupt):
            lab.clone(lab.urls("a"))
    assert (lab.root / "desktop/.metasync").is_dir()


def test_folders_that_a_failure_left_empty_go(lab: Lab) -> None:
    old = lab.root / "old"
    old.mkdir()

    def fail(*names: str) -> None:
        with lost_state.leaving_nothing(old / "x/y"):
            (old / "x/y").mkdir(parents=True)
            for name in names:
                (old / "x" / name).touch()
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert list(old.iterdir()) == []
    with pytest.raises(ValueError, match="why"):
        fail("z")
    assert [p.name for p in (old / "x").iterdir()] == ["z"]
