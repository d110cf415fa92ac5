"""What is told when too few acceptors answered: why, and the next step, which is the one that helps."""

from __future__ import annotations

import pytest
from test_counting import Logs

from metasync.consensus.instance import Instance, no_quorum
from metasync.consensus.participant import Standing
from metasync.errors import NoQuorumError


def told(standings: dict[str, Standing], names: str = "abc", *, linked: bool = True) -> NoQuorumError:
    logs = Logs(names)
    m = logs.ws.group(b"r" * 16, 1, **({} if linked else {"links": {}})).participant
    m.standings.update(standings)
    return no_quorum(m, Instance(m, logs.ws.config, logs.ws.devices, logs.base))


OK = Standing("ok")
DOWN = Standing("down", "timed out")
REFUSED = Standing("down", "refused", "Log in anew.")
REPLACED = Standing("replaced", "it was emptied")
FULL = Standing("full", "no space")
SLEPT = (
    "if other devices still push, this one slept too long: clone into a new folder and copy there what was not pushed "
    "from here"
)


@pytest.mark.parametrize(
    ("standings", "step"),
    [
        ({}, "run again when the backends are reachable"),
        ({"a": DOWN, "c": OK}, "run again when the backends are reachable"),
        ({"a": DOWN, "b": REFUSED, "c": OK}, "Log in anew. Then run again."),
        (
            {"a": Standing("poisoned", "rubbish", "Look at it."), "c": OK},
            "run again when the backends are reachable",
        ),
        ({"a": FULL, "b": FULL, "c": OK}, "free space on a, b, then run again"),
        (
            {"a": DOWN, "b": DOWN, "c": OK},
            "run again when the backends are reachable; if they are lost for good: metasync recover --without a "
            "--without b",
        ),
        (dict.fromkeys("abc", DOWN), "run again when the backends are reachable"),
        (
            {"a": REPLACED, "b": REPLACED, "c": OK},
            f"{SLEPT}; if none does: metasync recover --without a --without b",
        ),
        ({"a": REPLACED, "b": DOWN, "c": OK}, f"run again when the backends are reachable; {SLEPT}; if none does and "
         "they are lost for good: metasync recover --without a --without b"),
        ({"a": Standing("unlinked", "no way"), "b": DOWN}, "tell this device the way to them: metasync backend link "
         "NAME URL"),
    ],
)  # fmt: skip
def test_the_next_step_is_the_one_that_helps(standings: dict[str, Standing], step: str) -> None:
    assert told(standings).next_step == step


def test_a_device_that_knows_no_way_to_any_of_them_is_told_so() -> None:
    assert "knows a way to none of the backends" in told(dict.fromkeys("abc", DOWN), linked=False).next_step


def test_the_reasons_are_named_once_and_of_who_fares_well_there_is_none() -> None:
    error = told({"a": Standing("down", "a: timed out"), "b": OK, "c": Standing("full")})
    assert error.message.endswith("no quorum of 2 of 3 backends (a: timed out; c: full)")
    assert told({}).message.endswith("no quorum of 2 of 3 backends in time")


def test_a_version_that_was_ended_on_too_many_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "ended", lambda _: {"a": "its last round is taken"})
    assert "cannot be agreed any more" not in told({"b": DOWN}).message
    monkeypatch.setattr(Instance, "ended", lambda _: dict.fromkeys("ab", "its last round is taken"))
    error = told({})
    assert "cannot be agreed any more" in error.message
    assert "metasync recover" in error.next_step and SLEPT in error.next_step


def test_a_version_that_was_ended_on_one_may_be_past_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "ended", lambda _: {"a": "its last round is taken"})
    step = told({"b": DOWN, "c": OK}).next_step
    assert step == (
        f"run again when the backends are reachable; {SLEPT}; if none does and they are lost for good: "
        "metasync recover --without b"
    )
