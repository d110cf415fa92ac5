"""A checkout that lets others of its folder go first, and goes on with what it has staged.

Nothing that was staged is read again then. The same process wrote it: it is right if the journal still is that plan,
and each staged file, by its stat, is the one that was written. After a kill nobody knows that, and all bytes are looked
at (`Leftovers`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from metasync.checkout.checkout import Checkout
from metasync.checkout.plan import Plan
from metasync.checkout.staging import Stage
from metasync.errors import WorkspaceError
from metasync.local.state_keys import INODES_KEY, PLAN_KEY
from metasync.objects.model import Entry
from metasync.worktree.index import is_unchanged


class Held(NamedTuple):
    """What a checkout that is paused has staged. `parts`: see `Checkout`; `seen`: stats of all that is staged."""

    journal: bytes
    plan: Plan
    stats: Mapping[int, os.stat_result]
    parts: Mapping[int, Mapping[int, int]]
    awaited: frozenset[int]
    may_wait: frozenset[int]
    whole: Mapping[int, Sequence[int]]
    apart: frozenset[int]
    seen: Mapping[int, os.stat_result]

    @property
    def brought(self) -> tuple[int, int]:
        """How many files are staged, and the bytes of these and of the parts of others."""
        sizes = [st.st_size for st in self.stats.values()]
        return len(sizes), sum(sizes) + sum(sum(parts.values()) for parts in self.parts.values())

    def comes_to(self, wanted: Mapping[bytes, Entry | None]) -> bool:
        """Whether it brings these paths to these entries, and no others."""
        return {change.path: change.new for change in self.plan.changes} == wanted


def parts_seen(checkout: Checkout) -> dict[int, os.stat_result]:
    """The stats of files of which pieces are staged, by number."""
    with checkout._lock, suppress(OSError):
        stage = checkout._stage
        return {i: checkout.disk.lstat(*stage.at(i)) for i in sorted(checkout._parts)} if stage is not None else {}
    return {}


def hold(checkout: Checkout, before: Mapping[int, os.stat_result] | None = None) -> Held | None:
    """Pauses a checkout that is being staged. -> what `go_on` takes; None: the next one begins anew.

    `before`: what `parts_seen` said, where others had their turn since.
    """
    with checkout._lock:  # somebody may still be delivering
        plan, stage, journal = checkout.plan, checkout._stage, checkout.db.value(PLAN_KEY.name)
        if plan is None or stage is None or journal is None or checkout._short or checkout.has_left:
            checkout.pause()
            return None
        try:
            checkout.settle()
            parts = before if before is not None else {i: checkout.disk.lstat(*stage.at(i)) for i in checkout._parts}
            if parts.keys() != checkout._parts.keys():
                raise FileNotFoundError
            seen = {**parts, **checkout._stats}
            held = Held(
                journal, plan, dict(checkout._stats), {i: dict(parts) for i, parts in checkout._parts.items()},
                frozenset(checkout._awaited), frozenset(checkout._may_wait), dict(stage.whole), frozenset(stage.apart),
                seen,
            )  # fmt: skip
        except (OSError, WorkspaceError):
            held = None
        checkout.pause()
    return held


def go_on(checkout: Checkout, held: Held) -> list[bytes] | None:
    """Has a new checkout go on where one was paused; -> as `Checkout.begin`. None: it is to begin anew.

    Somebody else's checkout began meanwhile, or what was staged is not all there as it was.
    """
    db, tree, plan = checkout.db, checkout.tree, held.plan
    root = tree.root_stat
    if db.has(INODES_KEY) or db.value(PLAN_KEY.name) != held.journal or plan.root != (root.st_dev, root.st_ino):
        return None
    stage = Stage(tree, plan.changes, held.whole)
    stage.apart.update(held.apart)
    try:
        is_there = all(
            is_unchanged(st, tree.disk.lstat(*stage.at(i)), ctime=True) for i, st in sorted(held.seen.items())
        )
    except OSError:
        is_there = False
    if not is_there:
        stage.close()
        return None
    staged = {*held.stats, *held.awaited}
    checkout.plan, checkout._stage = plan, stage
    checkout._numbers = {plan.changes[i].path: i for i in staged}
    checkout._stats, checkout._short = dict(held.stats), set()
    checkout._parts = {i: dict(parts) for i, parts in held.parts.items()}
    checkout._awaited, checkout._may_wait = set(held.awaited), set(held.may_wait)
    return [plan.changes[i].path for i in sorted(held.awaited)]


def delivered(checkout: Checkout, path: bytes) -> Mapping[int, int]:
    """The pieces of a file that are staged already: offset -> bytes."""
    return checkout._parts.get(checkout._numbers[path], {})
