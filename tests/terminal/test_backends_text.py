"""What `check` prints of a backend where much is wrong: one line for what is alike, each pack on request."""

from __future__ import annotations

import pytest

from metasync.reports.backends import BackendChange, Moving, RebalanceReport
from metasync.reports.checks import CheckProblem, CheckReport, Repaired, ScrubReport, Unmade
from metasync.terminal.text.backends_text import PACKS_NAMED, check, losses, rebalance, scrub

DOWN = "cannot be reached: the folder is not there"


def _lines(missing: int, altered: int, *, verbose: bool = False) -> list[str]:
    problems = [CheckProblem("disk", bytes([i] * 32), DOWN) for i in range(missing)]
    problems += [CheckProblem("disk", bytes([i] * 32), "altered") for i in range(missing, missing + altered)]
    report = CheckReport(1, missing + altered, missing + altered, 0, tuple(problems), short=missing + altered)
    return check(report, read_data=False, verbose=verbose)[1:-2]


def test_few_packs_are_named() -> None:
    assert _lines(PACKS_NAMED, 1) == [
        *(f"  disk: pack {f'{i:02x}' * 8} {DOWN}" for i in range(PACKS_NAMED)),
        f"  disk: pack {f'{PACKS_NAMED:02x}' * 8} altered",
    ]


def test_many_with_which_the_same_is_wrong_are_counted() -> None:
    assert _lines(200, 1) == [f"  disk: 200 packs {DOWN}", f"  disk: pack {'c8' * 8} altered"]


def test_all_are_named_on_request() -> None:
    lines = _lines(200, 1, verbose=True)
    assert len(set(lines)) == 201 and all("pack " in line for line in lines)


def test_the_next_step_is_told_where_it_makes_something_whole() -> None:
    def last(*problems: str, lost: tuple[bytes, ...] = (), repaired: Repaired | None = None, read: bool = False) -> str:
        found = tuple(CheckProblem("disk", b"p", one) for one in problems)
        return check(CheckReport(1, 1, 1, 0, found, lost=lost, repaired=repaired, short=1), read_data=read)[-1]

    assert last("missing") == "Next: metasync check --repair"
    assert last("altered", DOWN, read=True) == "Next: metasync check --repair --read-data"
    assert last("missing", lost=(b"p",)) == (
        "Next: metasync check --repair, here and on each device that may have what is missing"
    )
    assert last(DOWN) == "Everything can still be read. Some packs have too few copies.", "it waits to be answered"
    assert not last("missing", repaired=Repaired()).startswith("Next")
    assert check(CheckReport(1, 1, 1, 0, ()), read_data=False)[-1] == "All is there, as often as promised."


def test_a_repair_says_where_copies_could_not_be_made_and_what_to_do() -> None:
    unmade = (Unmade("a", 2, "1 KiB is free there", is_full=True), Unmade("c", 1, "no answer", is_full=False))
    step = "Next: free space on a, or add a backend; then metasync check --repair"
    for told in (
        check(CheckReport(1, 1, 1, 0, (), short=1, repaired=Repaired(unmade=unmade)), read_data=False),
        scrub(ScrubReport(1, (), 0, 0, short=1, repaired=Repaired(unmade=unmade))),
    ):
        assert told[1:3] == [
            "a: 2 copies could not be made there: 1 KiB is free there",
            "c: 1 copy could not be made there: no answer",
        ]
        assert told[-1] == step
    report = CheckReport(1, 1, 1, 0, (), short=1, repaired=Repaired(unmade=unmade[1:]))
    assert not any(line.startswith("Next") for line in check(report, read_data=False))


@pytest.mark.parametrize("why", ["replaced: its birth is another", "emptied or replaced: no birth", "rolled back"])
def test_a_replaced_store_is_not_to_be_repaired_but_replaced(why: str) -> None:
    def steps(*backends: str, lost: tuple[bytes, ...] = (), repaired: Repaired | None = None) -> list[str]:
        found = tuple(CheckProblem(one, b"p", "altered") for one in backends)
        meta = (CheckProblem("b", b"", why), CheckProblem("d", b"", "down: no answer"))
        report = CheckReport(1, 1, 1, 0, found, lost=lost, repaired=repaired, meta_problems=meta, short=1)
        return [line for line in check(report, read_data=False) if line.startswith("Next")]

    replace, repair = "Next: metasync backend add URL --replace b", "Next: metasync check --repair"
    assert steps() == steps("b") == [replace]
    assert steps("a", "b") == [replace, repair]
    assert steps("b", lost=(b"p",)) == [replace, f"{repair}, here and on each device that may have what is missing"]
    assert steps("a", "b", repaired=Repaired()) == [replace]


@pytest.mark.parametrize("left", [0, 2])
def test_a_move_of_what_nobody_has_is_not_to_be_run_again(left: int) -> None:
    def steps(*lost: bytes) -> list[str]:
        waiting = (("a", "down"),)
        lines = rebalance(RebalanceReport(False, None, "", Moving(left, 10 * left), waiting=waiting, lost=lost))
        return [line.partition("Next: ")[2] for line in lines if "Next: " in line]

    assert steps(b"p") == ["metasync check --repair, here and on each device that may have what is missing"]
    assert steps() == ["metasync rebalance"]


@pytest.mark.parametrize(("n", "dry_run", "text"), [(1, False, "1 pack was"), (2, False, "2 packs were"),
                                                   (1, True, "1 pack would be")])  # fmt: skip
def test_packs_that_are_lost_are_counted_in_words(n: int, dry_run: bool, text: str) -> None:
    change = BackendChange("a", None, "", dry_run, "", "", 3, 3, lost_packs=n)
    assert f"{text} on no other backend that answers." in losses(change)[0]
