"""The fault campaign: a few rounds of it, and that it notices what it is there for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simulation import campaign, campaigns, steps
from simulation.campaign import Campaign, make_campaign
from simulation.play import Outcome
from simulation.real_campaign import RealCampaign

SEED = 1  # five backends, three copies: in two rounds one is emptied, and packs of others are damaged


@pytest.mark.long
def test_what_is_harmed_is_named_and_made_whole() -> None:
    done = Campaign(make_campaign(SEED), 2).run()
    assert done.failure == ""
    assert done.counts["campaign: round"] == 2
    assert done.counts["campaign: wiped"]
    assert done.counts["campaign: rotten"]
    assert done.counts["campaign: named"] >= 3


@pytest.mark.long
def test_a_backend_that_is_not_named_ends_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "accused_by_check", lambda report: frozenset())
    failure = Campaign(make_campaign(SEED), 2).run().failure
    assert "check accuses []" in failure


@pytest.mark.long
def test_copies_that_are_not_made_again_end_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> None:
        """No repair."""

    monkeypatch.setitem(steps.DO, "repair", nothing)  # type: ignore[misc]
    monkeypatch.setitem(steps.DO, "rebalance", nothing)  # type: ignore[misc]
    failure = Campaign(make_campaign(SEED), 2).run().failure
    assert "packs lack copies" in failure


def made_up(first: int, rounds: int, number: int) -> Outcome:
    counts = Counter({"campaign: round": campaign.ROUNDS, "campaign: wiped": 3})
    return Outcome(first + number, "what was written is nowhere" * number, counts=counts)


def test_the_command_tells_rounds_and_failures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "simulated", made_up)
    assert campaigns.main(["--rounds", "10", "--real", "0", "--first", str(SEED), "--jobs", "1"]) == 0
    assert "10 simulated rounds" in capsys.readouterr().out
    assert campaigns.main(["--rounds", "20", "--real", "0", "--first", str(SEED), "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert f"campaign {SEED + 1} FAILED: what was written is nowhere" in out
    assert "6 campaign: wiped" in out


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_rounds(seed: int) -> None:
    assert Campaign(make_campaign(seed)).run().failure == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_on_real_processes(tmp_path: Path, seed: int) -> None:
    real = RealCampaign(tmp_path, seed, 3)
    real.run()
    assert real.counts["campaign: round"] == 3
