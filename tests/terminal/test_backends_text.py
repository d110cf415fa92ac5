"""What `check` prints of a backend where much is wrong: one line for what is alike, each pack on request."""

from __future__ import annotations

from metasync.reports.checks import CheckProblem, CheckReport
from metasync.terminal.backends_text import PACKS_NAMED, check

DOWN = "cannot be reached: the folder is not there"


def _lines(missing: int, altered: int, *, verbose: bool = False) -> list[str]:
    problems = [CheckProblem("disk", bytes([i] * 32), DOWN) for i in range(missing)]
    problems += [CheckProblem("disk", bytes([i] * 32), "altered") for i in range(missing, missing + altered)]
    report = CheckReport(1, missing + altered, missing + altered, 0, tuple(problems), short=missing + altered)
    return check(report, read_data=False, verbose=verbose)[1:-1]


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
