"""The failure table of scrubs: after ten exceptions a backend is passed over for a minute. What is back comes first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import Lab, write

from metasync.backends.api import Inventory
from metasync.errors import BackendError
from metasync.local.state_keys import FAILURES_KEY, LOOKS, Failures
from metasync.maintenance import scrub as scrub_module
from metasync.maintenance.scrub_failures import INTERVAL_NS, LIMIT, FailureTable
from metasync.reports.checks import ScrubReport

NAMES = ("a", "b", "c")
NOW_NS = 1_800_000_000 * 10**9


# The table.


def test_the_tenth_exception_counts_a_backend_as_failed() -> None:
    table = FailureTable({})
    for n in range(LIMIT):
        assert table.passed_over_ns("a", NOW_NS + n) == 0
        table.failed("a", NOW_NS + n)
    assert table.passed_over_ns("a", NOW_NS + LIMIT - 1) == INTERVAL_NS
    assert table.passed_over_ns("b", NOW_NS) == 0, "each has a row of its own"


def test_several_at_once_are_as_many() -> None:
    table = FailureTable({})
    table.failed("a", NOW_NS, LIMIT - 1)
    assert table.passed_over_ns("a", NOW_NS) == 0
    table.failed("a", NOW_NS, 7)
    assert table.rows["a"] == Failures(LIMIT, NOW_NS)


def test_a_minute_after_the_last_exception_the_number_is_0_again() -> None:
    table = FailureTable({"a": Failures(LIMIT, NOW_NS)})
    assert table.passed_over_ns("a", NOW_NS + INTERVAL_NS - 1) == 1
    assert table.passed_over_ns("a", NOW_NS + INTERVAL_NS) == 0
    table.failed("a", NOW_NS + INTERVAL_NS)
    assert table.rows["a"].exceptions == 1


def test_below_ten_they_add_up_however_long_it_takes() -> None:
    table = FailureTable({"a": Failures(LIMIT - 1, NOW_NS)})
    table.failed("a", NOW_NS + 1000 * INTERVAL_NS)
    assert table.passed_over_ns("a", NOW_NS + 1000 * INTERVAL_NS) == INTERVAL_NS


def test_an_answer_takes_the_row_away() -> None:
    table = FailureTable({"a": Failures(LIMIT - 1, NOW_NS)})
    table.answered("a")
    table.failed("a", NOW_NS)
    assert table.rows == {"a": Failures(1, NOW_NS)}


def test_a_clock_that_was_set_back_has_nobody_passed_over() -> None:
    table = FailureTable({"a": Failures(LIMIT, NOW_NS)})
    assert table.passed_over_ns("a", NOW_NS - 1) == 0


# A scrub.


def pushed(lab: Lab) -> Any:
    w = lab.init(lab.urls(*NAMES, kind="memory"))
    for i in range(12):
        write(Path(w.directory), {f"f{i}": noise(5_000, i)})
        w.push()
    w = lab.reopen(w)
    w.scrub()
    return w


def packs_of(lab: Lab, name: str, folder: str = "") -> list[str]:
    """The paths of all packs on a backend."""
    found: list[str] = []
    for item in lab.counts[name].inner.list(folder):
        inner = f"{folder}/{item.name}".removeprefix("/")
        if item.size is None:
            found += packs_of(lab, name, inner)
        elif "/packs/" in inner:
            found.append(inner)
    return found


def breaking(lab: Lab, name: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Has the server of a backend answer each list with an error of its own. -> what it was asked for packs."""
    asked: list[str] = []

    def broken(path: str, *_: Any, **__: Any) -> Any:
        asked.append(path)
        raise BackendError("the server has an error of its own", retryable=False)

    patch.setattr(lab.counts[name], "inventory", broken)
    return asked


def hows(report: ScrubReport) -> dict[str, str]:
    return {b.backend: b.how for b in report.backends}


def test_a_server_that_fails_ten_times_is_passed_over_for_a_minute(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab)
    with monkeypatch.context() as patch:
        asked = breaking(lab, "b", patch)
        for _ in range(LIMIT):
            assert hows(w.scrub())["b"] == "away"
        assert len(asked) == LIMIT
        lab.counts["b"].take()
        passed = w.scrub()
        assert len(asked) == LIMIT, "not asked"
        assert {b.backend: b.why for b in passed.backends}["b"].startswith(
            "b: it failed again and again; scrubs leave it"
        )
    assert hows(w.scrub()) == {"a": "changes", "b": "away", "c": "changes"}, "it is back, and still passed over"
    _, at_ns = w._db.get(FAILURES_KEY)["b"]
    w._db.set(FAILURES_KEY, {"b": Failures(LIMIT, at_ns - INTERVAL_NS)})
    assert hows(w.scrub()) == dict.fromkeys(NAMES, "changes")
    assert w._db.get(FAILURES_KEY) is None


def refusing(lab: Lab, name: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Has a server answer every call about packs with an error of its own. -> these calls."""
    backend, asked = lab.counts[name], []

    def instead(call: str) -> Any:
        plain = getattr(backend, call)

        def broken(path: str, *args: Any, **options: Any) -> Any:
            if "/packs" not in path:
                return plain(path, *args, **options)
            asked.append(call)
            raise BackendError("the server has an error of its own", retryable=False)

        return broken

    for call in ("inventory", "list", "stat", "get", "put", "create", "delete"):
        patch.setattr(backend, call, instead(call))
    return asked


def test_one_that_is_passed_over_is_asked_for_no_pack_and_takes_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab)
    for path in packs_of(lab, "a"):
        lab.counts["a"].delete(path)
    w._db.set(FAILURES_KEY, {"b": Failures(LIMIT, time.time_ns())})
    asked = refusing(lab, "b", monkeypatch)
    report = w.scrub()
    assert hows(report) == {"a": "changes", "b": "away", "c": "changes"}
    assert report.asked
    assert asked == []


def test_copies_that_nothing_is_told_of_count_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that lists, and has an error for whoever asks for a pack that it left out."""
    w = pushed(lab)
    refusing(lab, "b", monkeypatch)
    monkeypatch.setattr(lab.counts["b"], "inventory", lambda *_: Inventory((), "later", False))
    report = w.scrub(full=True)
    assert report.asked >= 3
    assert w._db.get(FAILURES_KEY)["b"].exceptions >= min(LIMIT, report.asked)


def test_what_comes_back_is_mended_first(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were seen at the same time. One that failed meanwhile has its packs looked at before those of the others."""
    w = pushed(lab)
    had = {name: packs_of(lab, name) for name in NAMES}
    gone: dict[str, str] = {}  # a pack that one backend alone lost, by that backend
    for name in NAMES:
        gone[name] = next(p for p in had[name] if Path(p).name not in {Path(q).name for q in gone.values()})
        lab.counts[name].inner.delete(gone[name])
    w._db.put_records(LOOKS, [row._replace(at_ns=NOW_NS // 2) for row in w._db.records(LOOKS)])
    w._db.set(FAILURES_KEY, {"b": Failures(3, NOW_NS // 2)})
    order: list[str] = []
    plain = scrub_module.repair

    def noted(s: Any, agreed: Any, found: Any, nowhere: bool) -> Any:
        order.extend(f.record.name.hex() for f in found)
        return plain(s, agreed, found, nowhere)

    monkeypatch.setattr(scrub_module, "repair", noted)
    assert w.scrub().problems == ()
    assert len(order) == 3
    assert order[0] == Path(gone["b"]).name
