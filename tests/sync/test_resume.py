"""A clone or pull that was interrupted goes on with what it had brought: nothing of that is fetched again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.checkout import checkout
from metasync.checkout.checkout import Checkout
from metasync.errors import WorkspaceError
from metasync.events import Notice
from metasync.reports.start import CloneReport
from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

MB = 1 << 20


class Stop(Exception):  # noqa: N818
    """The process ends here."""


def bytes_of(*seed: object) -> Callable[[int], bytes]:
    return random.Random(str(seed)).randbytes


def files(n: int = 60) -> dict[str, bytes]:
    """Small files in folders and at the top, and one of many chunks."""
    random_bytes = bytes_of("files")
    out = {f"d{i % 7}/e{i % 3}/f{i}": random_bytes(9_000 + i) for i in range(n)}
    return out | {f"top{i}": random_bytes(50_000) for i in range(5)} | {"huge/one": random_bytes(9 * MB)}


def published(lab: Lab, tree: dict[str, bytes]) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, tree)
    w.push("first")
    return w


def cloned(lab: Lab, told: list[str] | None = None) -> CloneReport[Workspace]:
    def listen(event: Any) -> None:
        if isinstance(event, Notice) and told is not None:
            told.append(event.text)

    report = Workspace.clone(
        lab.root / "desktop",
        name="docs",
        backends=lab.urls("a", "b", "c"),
        passphrase=PASSPHRASE,
        device_name="desktop",
        on_event=listen,
    )
    lab.keep(report.workspace)
    return report


def stop_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> Callable[[], list[int]]:
    """Has the delivery end after so many files and pieces; returns what takes that back, and gives their sizes."""
    whole, part = Checkout.stage_whole, Checkout.stage_part
    sizes: list[int] = []

    def counted(real: Any) -> Any:
        def staged(self: Checkout, *a: Any) -> None:
            if len(sizes) >= parts:
                raise Stop
            real(self, *a)
            sizes.append(len(a[-1]))

        return staged

    monkeypatch.setattr(Checkout, "stage_whole", counted(whole))
    monkeypatch.setattr(Checkout, "stage_part", counted(part))

    def undo() -> list[int]:
        monkeypatch.setattr(Checkout, "stage_whole", whole)
        monkeypatch.setattr(Checkout, "stage_part", part)
        return sizes

    return undo


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is delivered from here on."""
    sizes: list[int] = []
    whole, part = Checkout.stage_whole, Checkout.stage_part

    def stage_whole(self: Checkout, path: bytes, data: bytes) -> None:
        sizes.append(len(data))
        whole(self, path, data)

    def stage_part(self: Checkout, path: bytes, offset: int, data: bytes) -> None:
        sizes.append(len(data))
        part(self, path, offset, data)

    monkeypatch.setattr(Checkout, "stage_whole", stage_whole)
    monkeypatch.setattr(Checkout, "stage_part", stage_part)
    return sizes


def state_of(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / ".metasync").iterdir() if p.name in ("tmp", "left"))


@pytest.mark.few(2)
@pytest.mark.parametrize(("parts", "whole"), [(1, True), (20, True), (65, True), (69, True), (40, False)])
def test_an_interrupted_clone_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch, parts: int, whole: bool) -> None:
    """`whole`: on a disk where directories come with all that is in them, or on another."""
    if not whole:
        monkeypatch.setattr(checkout, "may_come_whole", lambda _: False)
    tree = files()
    w = published(lab, tree)
    undo = stop_after(monkeypatch, parts)
    with pytest.raises(Stop):
        cloned(lab)
    came = undo()
    folder = lab.root / "desktop"
    assert [p.name for p in folder.iterdir()] == [".metasync"]
    assert len(came) == parts
    delivered, told = watched(monkeypatch), list[str]()
    cloned(lab, told)
    assert tree_of(folder) == tree_of(w.directory)
    assert sum(delivered) == sum(map(len, tree.values())) - sum(came)
    assert [t for t in told if t.startswith("going on with ")]
    assert not any((folder / ".metasync/tmp").iterdir())
    assert not (folder / ".metasync/left").exists()


def test_a_command_that_finishes_a_clone_tells_the_conflicts_of_that(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own report knows only what it did itself."""
    w = published(lab, files(20))
    undo = stop_after(monkeypatch, 3)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    folder = lab.root / "desktop"
    write(folder, {"top1": b"the user's own"})
    told: list[Any] = []
    lab.keep(Workspace.open(folder, on_event=told.append)).pull()
    assert (folder / "top1.conflict-desktop-20261122").read_bytes() == b"the user's own"
    assert (folder / "top1").read_bytes() == (w.directory / "top1").read_bytes()
    warned = [e.text for e in told if isinstance(e, Notice) and e.warning]
    assert warned == ["top1: yours is kept as top1.conflict-desktop-20261122 (added on both sides)"]


def test_a_clone_that_goes_on_names_a_store_that_is_away_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab, files(20))
    undo = stop_after(monkeypatch, 3)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    lab.lose("c")
    words = [word for url in lab.urls("a", "b", "c") for word in ("--backend", url)]
    ran = lab.cli("clone", str(lab.root / "desktop"), "--name", "docs", *words, cwd=".")
    assert ran.code == 0
    assert f"warning: c: the folder {lab.store('c')} is not there" in ran.out


def test_bytes_that_are_damaged_meanwhile_come_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, say: what is staged is read and checked before it counts."""
    tree = files(20)
    w = published(lab, tree)
    undo = stop_after(monkeypatch, 1 << 30)
    real = Checkout.apply

    def apply(self: Checkout, *a: Any) -> Any:
        raise Stop

    monkeypatch.setattr(Checkout, "apply", apply)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    monkeypatch.setattr(Checkout, "apply", real)
    folder = lab.root / "desktop"
    staged = sorted(p for p in (folder / ".metasync/tmp").rglob("*") if p.is_file())
    assert len(staged) == len(tree)
    damaged = 0
    for n, path in enumerate(staged):
        data = path.read_bytes()
        damage = [bytes(len(data)), data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1]), None][n % 4]
        if damage is not None:
            damaged += 1
            path.chmod(0o644)
            path.write_bytes(damage)
    delivered = watched(monkeypatch)
    cloned(lab)
    assert tree_of(folder) == tree_of(w.directory)
    assert 0 < sum(delivered) < sum(map(len, tree.values()))
    assert len(delivered) >= damaged


def test_another_version_takes_what_it_has_in_common(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = files()
    w = published(lab, tree)
    undo = stop_after(monkeypatch, 62)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    for name in list(tree)[:10]:
        (w.directory / name).unlink()
    write(w.directory, {"a new one": b"at the top", "d1/e1/f1": b"another content", "zz/new": b"!"})
    w.push("second")
    delivered = watched(monkeypatch)
    cloned(lab)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    assert sum(delivered) < sum(map(len, tree.values()))
    assert 0 < len([size for size in delivered if size < 20_000]) < 30


def test_a_pull_goes_on_too_and_a_push_in_between_loses_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab, {"one": b"1"})
    d = cloned(lab).workspace
    tree = files(30)
    write(w.directory, tree)
    w.push("second")
    undo = stop_after(monkeypatch, 20)
    with pytest.raises(Stop):
        d.pull()
    undo()
    write(d.directory, {"mine": b"written meanwhile"})
    d = lab.reopen(d)
    delivered = watched(monkeypatch)
    d.sync()
    w.sync()
    assert tree_of(d.directory) == tree_of(w.directory)
    assert tree_of(d.directory)[b"mine"].data == b"written meanwhile"
    assert 0 < sum(delivered) < sum(map(len, tree.values()))
    assert state_of(d.directory) == ["tmp"]
    assert not any((d.directory / ".metasync/tmp").iterdir())


def test_no_room_is_no_reason_to_keep_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab, files(5))

    def full(self: Checkout, *a: Any) -> None:
        raise WorkspaceError("The disk is full")

    monkeypatch.setattr(Checkout, "finish", full)
    with pytest.raises(WorkspaceError, match="full"):
        cloned(lab)
    assert not any((lab.root / "desktop/.metasync/tmp").iterdir())


def test_what_is_staged_already_needs_no_room_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = files(10)
    w = published(lab, tree)
    total = sum(map(len, tree.values())) + len(tree) * SMALL_FILE_BYTES
    undo = stop_after(monkeypatch, len(tree))
    with pytest.raises(Stop):
        cloned(lab)
    came = sum(undo())
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: total - came)
    cloned(lab)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)


def test_and_what_has_no_room_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab, files(10))
    undo = stop_after(monkeypatch, 3)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 1000)
    with pytest.raises(WorkspaceError, match="are free"):
        cloned(lab)
    assert state_of(lab.root / "desktop") in ([], ["tmp"])
    assert not any((lab.root / "desktop/.metasync").glob("tmp/*"))


VICTIM = textwrap.dedent(
    """
    import sys, time
    from metasync.checkout.checkout import Checkout
    from metasync.workspace import Workspace

    whole = Checkout.stage_whole
    count = 0

    def stage_whole(self, *a):
        global count
        whole(self, *a)
        count += 1
        if count == 40:
            print("now", flush=True)
            time.sleep(60)

    Checkout.stage_whole = stage_whole
    Workspace.clone(sys.argv[1], name="docs", backends=sys.argv[2:], passphrase=sys.stdin.read())
    """
)


def test_a_large_file_for_reading_only_that_was_complete(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened for writing once more, which its own mode would not allow anybody but the superuser."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"huge": bytes_of("huge")(9 * MB)})
    (w.directory / "huge").chmod(0o444)
    w.push("first")
    real_apply, real_finish = Checkout.apply, Checkout.finish
    modes: list[int] = []

    def apply(self: Checkout, *a: Any) -> Any:
        raise Stop

    def finish(self: Checkout, path: bytes) -> None:
        staged = lab.root / "desktop/.metasync/tmp/0"
        modes.append(staged.stat().st_mode & 0o777)
        real_finish(self, path)

    monkeypatch.setattr(Checkout, "finish", finish)
    monkeypatch.setattr(Checkout, "apply", apply)
    with pytest.raises(Stop):
        cloned(lab)
    monkeypatch.setattr(Checkout, "apply", real_apply)
    delivered = watched(monkeypatch)
    cloned(lab)
    assert delivered == []
    assert [mode & 0o200 for mode in modes] == [0o200, 0o200]
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)


def test_a_killed_clone_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the middle of a real process; run again, by the command line, it says what it goes on with."""
    tree = files()
    w = published(lab, tree)
    folder = lab.root / "desktop"
    argv = [sys.executable, "-c", VICTIM, str(folder), *lab.urls("a", "b", "c")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(PASSPHRASE)
        victim.stdin.close()
        assert victim.stdout.readline() == "now\n"
        victim.send_signal(signal.SIGKILL)
        victim.wait(60)
    assert [p.name for p in folder.iterdir()] == [".metasync"]
    delivered = watched(monkeypatch)
    ran = lab.cli("clone", str(folder), "--name", "docs", *lab.words("a", "b", "c"))
    assert ran.code == 0, ran.err
    assert "going on with " in ran.err
    assert tree_of(folder) == tree_of(w.directory)
    assert len([size for size in delivered if size < 20_000]) <= len(tree) - 40
