"""Seeds in which the backends are changed twenty times in a row, with pushes between, faults, collection and repair."""

from __future__ import annotations

import pytest
from effort import first

from simulation import Play, make_plan, simulator
from simulation.many_changes import CHANGES_LEAST, make_changing_plan
from simulation.shrink import decode_plan, encode_plan


@pytest.mark.long
@pytest.mark.parametrize("seed", first(2, (1, 5, 9, 14)))
def test_twenty_changes_in_a_row(seed: int) -> None:
    """Each is agreed, packs lie elsewhere by each, and something was pushed between any two."""
    outcome = Play(make_changing_plan(seed)).run()
    assert outcome.failure == ""
    assert outcome.counts["mapping changed after a push"] >= CHANGES_LEAST


@pytest.mark.long
@pytest.mark.parametrize("seed", first(1, (41, 21, 3)))
def test_twenty_changes_in_each_seed_in_which_no_backend_is_emptied(seed: int) -> None:
    """Also in those that have fewer where some are: 21 and 41."""
    outcome = Play(make_changing_plan(seed, wipes=False)).run()
    assert outcome.failure == ""
    assert outcome.counts["mapping changed after a push"] >= CHANGES_LEAST


def test_no_backend_is_emptied_in_unwiped_plans() -> None:
    plans = [make_changing_plan(seed, wipes=False) for seed in range(50)]
    assert not [1 for plan in plans for what in (*plan.faults, *plan.pounces) if what.kind == "wipe"]
    assert {f.kind for plan in plans for f in plan.faults} >= {"outage", "lossy", "late", "full", "cut off", "corrupt"}
    assert {p.kind for plan in plans for p in plan.pounces} >= {"crash", "suspend", "lonely"}


@pytest.mark.long
def test_too_few_changes_fail_a_batch_of_unwiped_plans(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = simulator.simulated
    monkeypatch.setattr(simulator, "simulated", lambda _: real(make_plan(3, brief=True)))
    assert simulator.main(["--seeds", "1", "--first", "7", "--jobs", "1", "--unwiped"]) == 1
    assert "FEWER THAN 20 CHANGES: seeds 3" in capsys.readouterr().out


@pytest.mark.long
def test_changing_plans_have_all_that_is_to_meet() -> None:
    plans = [make_changing_plan(seed) for seed in range(200)]
    for plan in plans:
        kinds = [step.kind for client in plan.clients for step in client.steps]
        assert kinds.count("change") > CHANGES_LEAST
        assert kinds.count("push") + kinds.count("sync") > CHANGES_LEAST
        assert plan.troubles
        assert {"gc", "repair"} <= {*kinds}
        assert not (plan.liars or plan.beyond or plan.insider)
        assert decode_plan(encode_plan(plan)) == plan
    assert {f.kind for p in plans for f in p.faults} >= {
        "outage",
        "lossy",
        "late",
        "full",
        "cut off",
        "wipe",
        "corrupt",
    }
    assert {p.kind for plan in plans for p in plan.pounces} >= {"crash", "suspend", "lonely"}


def test_no_seed_means_something_else_for_them() -> None:
    """A batch runs them beside the plans of some seeds, and every seed has its own plan as before."""
    seeds = range(1, 121)
    cases = simulator.cases_of(seeds, "mixed")
    assert cases[:120] == [(seed, "mixed") for seed in seeds]
    assert cases[120:] == [(50, "changing"), (100, "changing")]
    assert simulator.plan_of(50) == make_plan(50)
    assert simulator.plan_of(51) == make_plan(51, brief=True)
    assert simulator.cases_of((50,), "longer") == [(50, "longer")]


@pytest.mark.long
def test_a_batch_tells_what_ran_beside_its_seeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(plan: object) -> object:
        ran.append(plan)
        return real(make_plan(3, brief=True))

    real = simulator.simulated
    monkeypatch.setattr(simulator, "simulated", run)
    assert simulator.main(["--seeds", "2", "--first", "50", "--jobs", "1"]) == 0
    assert ran == [make_plan(50), make_plan(51, brief=True), make_changing_plan(50)]
    out = capsys.readouterr().out
    assert "2 seeds from 50" in out
    assert "1 changing plans beside them" in out
    assert simulator.main(["--seeds", "1", "--first", "51", "--jobs", "1", "--changing"]) == 0
    assert ran[3:] == [make_changing_plan(51)]
