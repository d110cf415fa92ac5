"""Block form: random schedules of mixed quorums over stores whose create races, and rules removed one by one.

The other rules are taken away in test_blocks.py, each in a schedule made for it.

METASYNC_BLOCK_RUNS sets how many schedules are run for each mix (default 12). A failure names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from effort import first
from test_paxos import broken, schedule

from metasync.config import Form
from metasync.consensus.acceptors import block as blockform_module
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.participant import Outcome
from metasync.consensus.records.entry import Kind
from metasync.runtime.effects import Task

RUNS = int(os.environ.get("METASYNC_BLOCK_RUNS", "12"))
MIXES: dict[str, tuple[Form, ...]] = {
    "1 log 2 blocks": ("log", "block", "block"),
    "2 logs 1 block": ("log", "log", "block"),
    "3 blocks": ("block", "block", "block"),
    "2 logs 3 blocks": ("log", "log", "block", "block", "block"),
}
ONE_OF_EACH = MIXES["1 log 2 blocks"]


@pytest.mark.long
def test_log_form_over_a_racing_store_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all else here is for: the same stores, used as if their create were atomic."""

    def racing(seed: int) -> None:
        monkeypatch.setattr("paxos_world.Store.racing", True)
        schedule(seed)

    assert broken(racing, range(1, 200, 2)) is not None


@pytest.mark.parametrize("mix", first(2, MIXES))
@pytest.mark.long
def test_random_schedules_agree(mix: str) -> None:
    totals: dict[str, int] = {}
    for seed in range(RUNS):
        try:
            for key, count in schedule(seed, MIXES[mix]).items():
                totals[key] = totals.get(key, 0) + count
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
    if RUNS >= 12:
        assert totals["crashes"]
        assert totals["owned"]
        assert totals["helped"]
        assert totals["wiped"]


# Mutants: each takes one rule away, and agreement must be seen to break.


SEEDS = range(1, 600, 2)
READ_ALL = BlockAcceptor._read_all
WRITE = BlockAcceptor._write
APPEND = BlockAcceptor.append


def caught(forms: Sequence[Form] = ONE_OF_EACH) -> bool:
    return broken(lambda seed: schedule(seed, forms), SEEDS) is not None


def not_after(*kinds: Kind) -> Callable[..., Task]:
    """`_append` whose read after the write is left out for these kinds; round 0 counts as kind DECIDED here."""

    def append(self: BlockAcceptor, kind: Kind, rnd: Any, value: Any, stale: Any, **options: Any) -> Task:
        if (Kind.DECIDED if rnd.n == 0 else kind) not in kinds:
            return (yield from APPEND(self, kind, rnd, value, stale, **options))
        blocks = self.log
        failed = yield from self._claim()
        if failed is None and not blocks.stands(kind, rnd):
            failed = self._refused(kind, rnd, stale)
            failed = failed or (yield from WRITE(self, kind, rnd, value))
        if failed is None and not (yield from self.read_birth()):
            failed = Outcome("failed", "birth")
        if failed is not None:
            return failed
        blocks.judge(blocks.known())
        return self.vouch(blockform_module._outcome(blocks, kind, rnd, value))

    return append


@pytest.mark.long
def test_mutant_no_read_after_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockAcceptor, "append", not_after(Kind.PREPARE))
    assert caught()


@pytest.mark.long
def test_mutant_no_read_after_an_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockAcceptor, "append", not_after(Kind.ACCEPT))
    assert caught()


@pytest.mark.long
def test_mutant_no_read_in_the_owners_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockAcceptor, "append", not_after(Kind.DECIDED))
    assert caught()


@pytest.mark.long
def test_mutant_the_read_comes_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: BlockAcceptor, *message: Any) -> Task:
        failed = yield from READ_ALL(self)
        return failed or (yield from WRITE(self, *message))

    def read_all(self: BlockAcceptor, *, own_too: bool = False) -> Task:
        if not own_too:
            return (yield from READ_ALL(self))
        return None if (yield from self.read_birth()) else Outcome("failed", "birth")

    monkeypatch.setattr(BlockAcceptor, "_write", write)
    monkeypatch.setattr(BlockAcceptor, "_read_all", read_all)
    assert caught()
