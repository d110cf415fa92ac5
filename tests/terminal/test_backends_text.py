"""What `check` prints of a backend where much is wrong: one line for what is alike, each pack on request."""

from __future__ import annotations

from metasync.reports.checks import CheckProblem, CheckReport, Repaired
from metasync.terminal.backends_text import PACKS_NAMED, check

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
