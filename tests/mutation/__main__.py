"""`python -m mutation`: one fault in every guard of what agrees, merges, checks out and deletes.

    --rooms NAME ...   of `ROOMS`; else all
    --only TEXT        only guards whose key has this in it, such as a function's name
    --tests PATH ...   only these of its tests, below `tests`: a quicker first look
    --again            with the census of the last run
    --left             only guards that the last run left, such as after new tests for them
    --seconds N        for one fault, of the time that its tests take without any: 20 of the room's own and 20 of others
    --jobs N           so many processes

Every guard is broken once (`mutation.guards`), and tests that saw it decide are run (`mutation.plugin`). What is left
is looked up in `explained.toml`, which says why a guard may go uncaught. Exits with 1 for a guard that nothing catches
and that is not explained there, and for an explanation that fits no such guard.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
REPOSITORY: Final = HERE.parents[1]
CAUGHT: Final = ("caught", "hangs")


class Room(NamedTuple):
    """What is broken, and the folders of the tests that may catch it, the room's own first."""

    packages: tuple[str, ...]
    tests: tuple[str, ...]

    def has(self, key: str) -> bool:
        """Whether a guard is of one of its packages or modules; another's name may begin like one of them."""
        return any(key.startswith((f"{p}:", f"{p}.")) for p in self.packages)


_WHOLE: Final = (
    "attacks",
    "sync",
    "workspace",
    "session",
    "history",
    "members",
    "maintenance",
    "moving",
    "commands/test_cli.py",
    "commands/test_exit_codes.py",
)
ROOMS: Final = {
    "merge": Room(("metasync.merge",), ("merge", "sync", "history", "workspace", "attacks")),
    "checkout": Room(("metasync.checkout",), ("checkout", "worktree", *_WHOLE)),
    "deletions": Room(
        (
            "metasync.worktree.deletions",
            "metasync.worktree.hints",
            "metasync.worktree.merge_walk",
            "metasync.worktree.scan",
            "metasync.worktree.case",
            "metasync.worktree.index",
            "metasync.sync.scanned",
            "metasync.sync.no_change",
            "metasync.sync.pull",
            "metasync.sync.first_checkout",
        ),
        ("worktree", "checkout", "local", *_WHOLE),
    ),
    "erasing": Room(
        (
            "metasync.maintenance.collect",
            "metasync.maintenance.line",
            "metasync.maintenance.sweep",
            "metasync.moving.removal",
            "metasync.moving.surplus",
            "metasync.moving.wipe",
            "metasync.session.witnesses",
            "metasync.store.collection",
        ),
        ("maintenance", "moving", "session", "store"),
    ),
    "keeping": Room(
        (
            "metasync.maintenance.scrub_record",
            "metasync.store.inventory",
            "metasync.store.moves",
            "metasync.store.retained",
            "metasync.store.retention",
        ),
        ("store", "maintenance", "history"),
    ),
    "lost": Room(
        ("metasync.maintenance.repair.lost_paths", "metasync.session.left_out"),
        ("maintenance", "session/test_who_left_out.py", "attacks/test_left_out.py", "commands/test_exit_codes.py"),
    ),
    "key_copies": Room(("metasync.members.key_copies",), ("members", "maintenance", "moving")),
    "mending": Room(
        (
            "metasync.maintenance.repair.give_back",
            "metasync.maintenance.repair.left_out_packs",
            "metasync.maintenance.repair.matching_files",
            "metasync.maintenance.repair.mend",
            "metasync.maintenance.repair.needs",
            "metasync.maintenance.repair.untrue_rows",
            "metasync.maintenance.scrub",
            "metasync.maintenance.scrub_failures",
            "metasync.maintenance.scrub_reading",
            "metasync.moving.rebalance",
            "metasync.moving.upkeep",
        ),
        ("maintenance", "moving", "sync", "attacks"),
    ),
    "backends": Room(
        ("metasync.moving.reconfigure", "metasync.moving.add_backend"),
        ("moving", "members", "maintenance", "session", "attacks"),
    ),
    "deltas": Room(
        ("metasync.store.deltas", "metasync.sync.replaced_chunks", "metasync.worktree.bases"),
        ("store", "transfer", "maintenance", "sync", "worktree", "workspace"),
    ),
    "consensus": Room(("metasync.consensus",), ("consensus", "simulation", "vectors", *_WHOLE)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", nargs="*", default=[], choices=ROOMS)
    parser.add_argument("--only", default="")
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--left", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    reasons = explained((HERE / "explained.toml").read_text(encoding="utf-8"))
    failed = False
    for name in given.rooms or ROOMS:
        began = time.monotonic()
        room = ROOMS[name]._replace(tests=tuple(given.tests)) if given.tests else ROOMS[name]
        hunting = ["--only", given.only, "--seconds", str(given.seconds), *(["--left"] if given.left else [])]
        outcomes = hunt(name, room, REPOSITORY, hunting, census=not given.again, jobs=given.jobs)
        if outcomes is None:
            return 1
        of_room = {k: why for k, why in reasons.items() if ROOMS[name].has(k) and given.only in k}
        text, is_clean = report(outcomes, of_room)
        sys.stdout.write(f"{name}, {time.monotonic() - began:,.0f} s: {text}")
        failed |= not is_clean
    return int(failed)


def hunt(
    name: str, room: Room, root: Path, options: Sequence[str] = (), *, census: bool = True, jobs: int = 1
) -> list[dict[str, Any]] | None:
    """Breaks each guard of a room; -> what came of each. None: its tests fail without any fault."""
    place = root / "build/mutants" / name
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(root), str(HERE.parent))),
        "MUTATION_PACKAGES": " ".join(room.packages),
        "MUTATION_ROOT": str(root),
    }
    tests = [f"tests/{t}" for t in room.tests if (root / "tests" / t).exists()]
    quick = "not servers and not long and not pages"
    command = [sys.executable, "-m", "pytest", "-p", "mutation.plugin", "-m", quick, *tests]
    if census:
        for old in place.glob("census-*.json"):
            old.unlink()
        spread = ["-n", str(jobs)] if jobs > 1 else []
        if subprocess.run([*command, "--census", str(place), *spread], cwd=root, env=env, check=False).returncode:
            sys.stdout.write(f"{name}: the tests fail without any fault\n")
            return None
    hunting = ["--hunt", str(place), "--own", f"{tests[0]}", "--children", str(jobs), *options]
    subprocess.run([*command, *hunting], cwd=root, env=env, check=True, stdout=subprocess.DEVNULL)
    with (place / "outcomes.jsonl").open(encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def explained(text: str) -> dict[str, str]:
    """Why a guard may go uncaught, by its key. Each `[[left]]` gives one reason for its guards."""
    return {key: group["reason"] for group in tomllib.loads(text).get("left", ()) for key in group["guards"]}


def report(outcomes: list[dict[str, Any]], reasons: dict[str, str]) -> tuple[str, bool]:
    """What came of the guards of a room, for people; whether each one that nothing catches is explained."""
    left = {o["guard"]: o for o in outcomes if o["outcome"] not in CAUGHT}
    found = Counter(o["outcome"] for o in outcomes)
    lines = [f"{len(outcomes)} guards: {', '.join(f'{n} {what}' for what, n in found.most_common())}"]
    lines.append(f"  explained: {len(reasons.keys() & left.keys())}")
    for key, o in left.items():
        if key not in reasons:
            lines.append(f"  UNEXPLAINED, {o['outcome']}, {o['file']}:{o['line']}: {key}")
    stale = sorted(reasons.keys() - left.keys())
    lines += [f"  EXPLAINED FOR NOTHING: {key}" for key in stale]
    return "\n".join(lines) + "\n", not stale and not left.keys() - reasons.keys()


if __name__ == "__main__":
    sys.exit(main())
