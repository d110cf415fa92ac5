"""Many devices that push at the same moment: what all of them hold and what history says afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from crash_kit import (
    CHEAP,
    NAME,
    PASSPHRASE,
    Child,
    check_log,
    content_id,
    read_past,
    read_tree,
    run_clone,
    same_trees,
)

from metasync.workspace import Workspace

DEVICES = 8
ROUNDS = 3


def push_when(directory: str, message: str, at: float) -> tuple[int | None, int, float]:
    """Pushes at the moment `at`; -> (version, versions merged first, seconds)."""
    with Workspace.open(directory) as w:
        time.sleep(max(0.0, at - time.time()))
        start = time.monotonic()
        report = w.push(message)
        merged = report.pulled.version - report.pulled.before if report.pulled is not None else 0
        return report.version, merged, time.monotonic() - start


def pull_all(directory: str) -> int:
    with Workspace.open(directory) as w:
        return w.pull().version


def crowd(
    root: Path,
    urls: list[str],
    *,
    devices: int = DEVICES,
    rounds: int = ROUNDS,
    before_round: Callable[[int], None] = lambda _: None,
    sick: Collection[str] = (),
    enter: bool = False,
) -> None:
    """All devices push a file of their own and an edit of a shared one, at the same moment, several times.

    `enter`: the first device takes the clones in, where too few backends have an atomic create for them to enter.
    `sick`: backends that `before_round` takes away for some time; copies may be missing there.
    """
    began = time.monotonic()
    places = {f"device{i}": root / f"device{i}" for i in range(devices)}
    first = places["device0"]
    first.mkdir()
    for i in range(devices):
        (first / f"shared{i}.txt").write_text("".join(f"line {n}\n" for n in range(9)))
    with Workspace.init(
        first, name=NAME, backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="device0"
    ).workspace as w:
        pushed = {"first": w.push("first").version or 0}
    clones = [Child(run_clone, str(places[d]), urls, NAME, d) for d in places if d != "device0"]
    for clone in clones:
        clone.wait()
    if enter:
        with Workspace.open(first) as w:
            w.push()
    print(f"\nset-up and {devices - 1} clones at once: {time.monotonic() - began:.1f} s")
    written: set[bytes] = set()
    for number in range(rounds):
        for i, place in enumerate(places.values()):
            mine = place / f"of{i}"
            mine.mkdir(exist_ok=True)
            (mine / f"round{number}").write_bytes(os.urandom(200))
            written.add((mine / f"round{number}").read_bytes())
            shared = place / f"shared{i}.txt"
            lines = shared.read_text().splitlines(keepends=True)
            lines[number] = f"line {number} by device {i}\n"
            shared.write_text("".join(lines))
        before_round(number)
        start = time.monotonic()
        at = time.time() + 0.4
        running = {d: Child(push_when, str(p), f"{d} round {number}", at) for d, p in places.items()}
        done = {d: child.wait() for d, child in running.items()}
        took = sorted(seconds for _, _, seconds in done.values())
        lost = sorted(merged for _, merged, _ in done.values())
        print(
            f"round {number}: {time.monotonic() - start:.1f} s; a push took {took[0]:.2f} to {took[-1]:.2f} s,"
            f" median {took[len(took) // 2]:.2f}; versions merged first {lost}"
        )
        for d, (version, _, _) in done.items():
            assert version is not None, f"{d}: nothing pushed in round {number}"
            pushed[f"{d} round {number}"] = version
    assert len(set(pushed.values())) == len(pushed), "two pushes report one version"
    pulls = [Child(pull_all, str(p)) for p in places.values()]
    versions = {pull.wait() for pull in pulls}
    assert len(versions) == 1, versions
    trees = {d: read_tree(p) for d, p in places.items()}
    same_trees(trees)
    final = trees["device0"]
    assert {node.data for node in final.values()} >= written, "a file is missing"
    for i in range(devices):
        text = final[b"shared%d.txt" % i].data.decode()
        assert text.count(f"by device {i}") == rounds, text
    assert not [p for p in final if b".conflict-" in p], "nobody edited another's lines"
    with Workspace.open(first) as w:
        past = read_past(w, read_blobs=True)
        check_log(past, pushed)
        assert len([s for s in past.main if s.message]) == len(pushed)
        missing = [node for node in final.values() if node.kind != "dir" and content_id(w, node) not in past.contents]
        assert not missing
        report = w.check(read_data=True)
        assert not report.lost
        for problem in (*report.problems, *report.meta_problems):
            assert problem.backend in sick, problem
            assert "missing" in problem.problem, problem
        assert not report.short or sick
    took_s = time.monotonic() - began
    print(f"in all: {took_s:.1f} s, {len(pushed)} pushes")
