"""`check --repair` killed at any step, and on four devices at once: in the end all is whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import crash_kit
from crash_kit import Child, die_at_call, quiet_environment, read_tree, run_clone, run_init, run_pull, run_push
from effort import few_and_many

from metasync.workspace import Workspace

NAMES = ("x", "y", "z")

quiet_environment()


def run_repair(directory: str) -> list[str]:
    """-> the names of files that nobody has."""
    with Workspace.open(directory) as w:
        return [str(path) for path in w.check(repair=True, read_data=True).lost]


def die_in_repair(k: int, directory: str) -> Any:
    return die_at_call(k, run_repair, directory)


def packs(top: Path, name: str) -> list[Path]:
    return sorted(p for p in (top / name).rglob("*") if p.is_file() and "packs" in p.parts)


def made(top: Path, devices: int) -> list[Path]:
    """Three stores, two copies, and devices with the same folder."""
    urls = [f"file://{top}/{n}?name={n}" for n in NAMES]
    folders = [top / f"device{n}" for n in range(devices)]
    folders[0].mkdir()
    run_init(str(folders[0]), urls)
    for n in range(4):
        (folders[0] / f"f{n}").write_bytes(random.Random(n).randbytes(20_000))
        run_push(str(folders[0]), f"{n}")
    for n, folder in enumerate(folders[1:]):
        run_clone(str(folder), urls, crash_kit.NAME, f"device{n}")
    return folders


def harm(top: Path, rng: random.Random) -> None:
    """One store lost all its packs, another one has an altered one, and of one pack no copy is left.

    The folders have all of it.
    """
    for path in packs(top, rng.choice(NAMES)):
        path.unlink()
    left = [path for name in NAMES for path in packs(top, name)]
    gone = rng.choice(left)
    for path in left:
        if path.name == gone.name:
            path.unlink()
    altered = rng.choice([path for path in left if path.name != gone.name])
    data = bytearray(altered.read_bytes())
    data[len(data) // 2] ^= 1
    altered.chmod(0o644)
    altered.write_bytes(data)


def assert_whole(folders: list[Path]) -> int:
    """-> the newest version."""
    for folder in folders:
        with Workspace.open(folder) as w:
            version = w.pull().version
            found = w.check(read_data=True)
            assert (found.problems, found.lost) == ((), ())
    assert len({str(read_tree(folder)) for folder in folders}) == 1
    return version


@few_and_many("kills", 2, 10)
def test_kill_at_any_call_of_a_repair(tmp_path: Path, kills: int) -> None:
    rng = random.Random(20261128)
    one, two = made(tmp_path, 2)
    harm(tmp_path, rng)
    total, _ = Child(die_in_repair, 0, str(one)).wait()
    assert total > 20
    for number in range(kills):
        (one / f"new{number}").write_bytes(rng.randbytes(20_000))  # what was repaired lies in ever fewer packs
        run_push(str(one), "one more")
        run_pull(str(two))
        harm(tmp_path, rng)
        Child(die_in_repair, rng.randint(1, total), str(one)).outcome()
        Child(die_in_repair, rng.randint(1, total), str(two)).outcome()  # the other goes on, and dies as well
        assert run_repair(str(rng.choice((one, two)))) == [], f"round {number}"
        assert_whole([one, two])


@few_and_many("rounds", 1, 4)
def test_four_devices_repair_at_once(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(20261129)
    folders = made(tmp_path, 4)
    version = assert_whole(folders)
    for _ in range(rounds):
        harm(tmp_path, rng)
        children = [Child(run_repair, str(folder)) for folder in folders]
        assert [child.wait() for child in children] == [[]] * 4
        newest = assert_whole(folders)
        assert newest <= version + 4, "one that names the new packs, from each device at most"
        version = newest
