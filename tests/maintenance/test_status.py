"""`status` answers whether this folder is in step and safe, by counts; each answer has its exit code and next step."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from dataclasses import replace

import pytest
from workspace_kit import Lab, write

from metasync.errors import NoQuorumError
from metasync.local.state_keys import AWAY_KEY, MISSING
from metasync.maintenance.holdings import Held, Holdings
from metasync.reports.backends import BackendState, Status
from metasync.reports.sync import Changes, Skipped
from metasync.store.placement import survives
from metasync.terminal.text import backends_text, status_text
from metasync.terminal.text.phrases import ago, since
from metasync.transfer.estimates import ESTIMATES_KEY, Direction, Estimates
from metasync.workspace import Workspace

NOON = dt.datetime(2026, 11, 20, 12).astimezone()  # a Friday
NOW_NS = int(NOON.timestamp() * 1e9)
HOUR_NS = 3_600 * 10**9
A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


def state(name: str, condition: str = "ok", **more: object) -> BackendState:
    given = {"state": condition, "condition": condition, "share": 2 / 3, "used_bytes": 1 << 20, **more}
    return BackendState(name, f"file:///mnt/{name}", ("data", "vote"), 1 << 40, linked=True, **given)  # type: ignore[arg-type]


def status(**more: object) -> Status:
    given = Status(
        "docs", 14, 14, "14-ab", Changes(), tuple(state(n) for n in "abc"), device="desktop",
        time_ns=NOW_NS - 120 * 10**9, copies=2, by_copies=(0, 0, 7),
    )  # fmt: skip
    return replace(given, **more)  # type: ignore[arg-type]


def said(s: Status) -> list[str]:
    lines = status_text.status(s, now_ns=NOW_NS)
    return lines[: lines.index("")]


def test_all_is_well_in_one_line() -> None:
    assert said(status()) == ["In step with version 14 (2 minutes ago, from desktop). All 7 packs have 2 copies."]


def test_a_backend_that_is_down_is_told_with_what_it_means() -> None:
    b = state("b", "down", since_ns=NOW_NS - 70 * HOUR_NS)
    s = status(backends=(state("a"), b, state("c")), by_copies=(0, 5, 2))
    assert said(s) == [
        "In step with version 14 (2 minutes ago, from desktop).",
        "b is down since Tuesday: 5 of 7 packs have 1 copy; nothing is lost.",
        "Next: bring b back; if it is lost for good: metasync backend add URL --replace b",
    ]
    assert s.short == 5


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        (
            "run again; if it is lost for good: metasync recover --without b",
            ["Next: bring b back; if it is lost for good: metasync recover --without b"],
        ),
        (
            "tell this device the way to them: metasync backend link NAME URL",
            ["Tell this device the way to them: metasync backend link NAME URL", "Next: bring b back"],
        ),
    ],
)
def test_a_restart_is_named_only_where_it_would_help(step: str, lines: list[str]) -> None:
    """A device that slept, and knows no way to the backends of today, would restart the workspace of all others."""
    error = NoQuorumError("no quorum", next_step=step)
    s = status(newest=None, problem="no quorum", error=error, backends=(state("a"), state("b", "down"), state("c")))
    assert [line for line in said(s) if "b back" in line or "link" in line] == lines


def test_packs_out_of_reach_are_not_called_safe() -> None:
    s = status(backends=(state("a"), state("b", "down"), state("c", "down")), by_copies=(1, 4, 2))
    assert said(s)[1] == (
        "b is down; c is down: 4 of 7 packs have 1 copy, 1 of 7 cannot be read until a backend that has them is back."
    )


def test_copies_that_were_never_made_are_told_though_all_backends_answer() -> None:
    lines = said(status(under_replicated=2))
    assert lines[1:] == [
        "2 of 7 packs were stored with fewer than 2 copies.",
        "Next: metasync check tells which copies are missing",
    ]


@pytest.mark.parametrize(
    ("more", "first", "then"),
    [
        ({"newest": 16}, "Behind by 2 versions: this folder is at version 14 (", "Next: metasync pull"),
        (
            {"changes": Changes((b"x",))},
            "Version 14 (2 minutes ago, from desktop) is the newest; changed here: 1",
            "push",
        ),
        ({"newest": 15, "changes": Changes((b"x",))}, "Behind by 1 version: ", "Next: metasync sync"),
        (
            {"newest": None, "problem": "no quorum"},
            "At version 14 (2 minutes ago, from desktop); whether",
            "No quorum.",
        ),
        (
            {"newest": None, "problem": "The local state failed: it is read-only."},
            "At version 14 (2 minutes ago, from desktop); whether",
            "The local state failed: it is read-only.",
        ),
        (
            {"unplaced": (Skipped(b"film", "no room for its 5 bytes"), Skipped(b"x.", "its name ends in a dot"))},
            "Version 14 (2 minutes ago, from desktop) is the newest; 1 file waits for room on this disk.",
            "Next: free some space; then metasync pull",
        ),
        (
            {"unplaced": (Skipped(b"film", "no room for its 5 bytes: the disk has no inodes left"),)},
            "Version 14 (2 minutes ago, from desktop) is the newest; 1 file waits for room on this disk.",
            "Next: delete some files; then metasync pull",
        ),
        (
            {"unplaced": (Skipped(b"x.log", MISSING), Skipped(b"x.", "its name ends in a dot"))},
            "Version 14 (2 minutes ago, from desktop) is the newest; 1 path of it is missing here.",
            "Next: metasync pull",
        ),
        ({"time_ns": None, "device": "", "by_copies": ()}, "Nothing was pushed yet.", "Next: metasync push"),
    ],
)
def test_the_first_line_says_whether_the_folder_is_in_step(more: dict[str, object], first: str, then: str) -> None:
    lines = said(status(**more))
    assert lines[0].startswith(first)
    assert lines[1].endswith(then) and ".." not in lines[1]


def test_what_a_pull_brings_is_not_listed_as_what_this_disk_cannot_hold() -> None:
    lines = said(status(unplaced=(Skipped(b"x.log", MISSING), Skipped(b"x.", "its name ends in a dot"))))
    at = lines.index("Not here, though nobody deleted them (a pull brings them):")
    assert lines[at - 1 : at + 2] == ["  x.: its name ends in a dot", lines[at], "  x.log"]


def test_a_row_has_100_columns_at_most_and_errors_stand_below() -> None:
    items = [
        replace(state("a" * 40), url="file:///" + "long/" * 40, free_bytes=1 << 40, limit_bytes=15 << 30),
        replace(state("b", "down", state="unreachable: b: " + "no " * 60), roles=("data",)),
    ]
    lines = backends_text.backends(items)
    assert [len(line) <= 100 for line in lines] == [True, True, True, False]
    assert lines[0].split() == ["backend", "role", "used", "share", "capacity", "free", "state", "where"]
    assert lines[3] == "b: " + "no " * 60
    assert backends_text.backends([state("a"), state("b")])[0].split() == [
        "backend", "used", "share", "free", "state", "where",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-10, "just now"), (59, "just now"), (60, "1 minute ago"), (3_599, "59 minutes ago"), (7_200, "2 hours ago"),
        (86_400 * 3, "3 days ago"), (86_400 * 14, "on 2026-11-06"), (-86_400, "on 2026-11-21"),
    ],
)  # fmt: skip
def test_how_long_ago(seconds: int, told: str) -> None:
    assert ago(NOW_NS - seconds * 10**9, NOW_NS) == told


@pytest.mark.parametrize(
    ("hours", "told"),
    [(1, "11:00"), (13, "Thursday"), (24 * 6, "Saturday"), (24 * 8, "2026-11-12"), (-48, "2026-11-22")],
)
def test_since_when(hours: int, told: str) -> None:
    assert since(NOW_NS - hours * HOUR_NS, NOW_NS) == told


def test_holdings_count_copies_within_reach() -> None:
    held = Holdings(2, {frozenset({A, B}): Held(3, 30), frozenset({B, C}): Held(2, 20), frozenset({A}): Held(1, 10)})
    assert held.by_copies({A, B, C}) == (0, 1, 5)
    assert held.by_copies({A, C}) == (0, 6, 0)
    assert held.by_copies({C}) == (4, 2, 0)
    assert [held.on(i) for i in (A, B, C)] == [40, 50, 20]


def test_what_the_set_survives_is_told_in_the_list(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    told = w.backend_list().survives
    assert told == "Any 1 of 3 backends may be lost: everything has 2 copies; a push needs any 2 of the 3 that vote."
    assert told == survives(w._connections.config)
    assert told in lab.cli("backend", "list").out
    assert told not in lab.cli("status").out


def noted(w: Workspace) -> dict[str, int]:
    return dict(w._db.get(AWAY_KEY) or {})


def test_a_backend_that_goes_and_comes_back(lab: Lab) -> None:
    """4 while copies are missing, 0 before and after. Since when is kept over commands, until it is back."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {f"f{n}": bytes([n]) * 100 for n in range(4)})
    w.push()
    assert lab.cli("status").code == 0
    assert "have 2 copies." in lab.cli("status").out or "has 2 copies." in lab.cli("status").out
    store, aside = lab.store("b"), lab.root / "aside"
    gone = [b for b in w.status().backends if b.used_bytes]
    store, aside = lab.store(gone[0].name), lab.root / "aside"
    shutil.move(store, aside)
    first = lab.cli("status", "--json")
    assert first.code == 4
    assert first.json["by_copies"][1] == sum(first.json["by_copies"])
    (away,) = [b for b in first.json["backends"] if b["condition"] != "ok"]
    assert (away["name"], away["condition"]) == (store.name, "down")
    again = lab.cli("status", "--json")
    assert [b["since_ns"] for b in again.json["backends"]] == [b["since_ns"] for b in first.json["backends"]]
    assert f"{store.name} is down since " in lab.cli("status").out
    shutil.move(aside, store)
    w = lab.reopen(w)
    assert noted(w) != {}
    w.pull()
    assert w.status().short == 0
    assert noted(w) == {}
    assert lab.cli("status").code == 0


def test_a_pull_notes_since_when_a_backend_is_away(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"1"})
    w.push()
    shutil.move(lab.store("c"), lab.root / "aside")
    w = lab.reopen(w)
    w.pull()
    at = noted(w)
    assert set(at) == {"c"}
    assert w.status().backends[2].since_ns == at["c"]


def test_a_damaged_note_of_who_is_away_is_as_none(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    w._db.set_value(AWAY_KEY.name, b"{]")
    assert w.status().problem == ""


def test_conflicts_that_wait_are_3(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"\0one"})
    w.push()
    other = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"\0mine"})
    write(other.directory, {"x": b"\0theirs"})
    w.push()
    other.pull()
    assert lab.cli("status", cwd="desktop").code == 3
    shutil.move(lab.store("a"), lab.root / "aside")
    shutil.move(lab.store("b"), lab.root / "aside-b")
    lab.hurry()
    assert lab.cli("status", cwd="desktop").code == 5, "of several, the worst: 5, 7, 6, 1, 3, 4"


def test_status_asks_no_more_than_it_needs(lab: Lab) -> None:
    """Counted: two births, a space, and the looks at the log and heads of each backend."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"1"})
    w.push()
    w = lab.reopen(w)
    w.status()
    for name in "abc":
        lab.counts[name].take()
    w.status()
    asked = {name: lab.counts[name].take().requests.total() for name in "abc"}
    assert max(asked.values()) <= REQUESTS_MAX, asked


REQUESTS_MAX = 8  # of one backend by a process that knows it


def test_what_is_still_to_move_takes_as_long_as_the_slowest_line_takes(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"f": os.urandom(50_000)})
    w.push()
    w.set_copies(3)
    (to,) = {"a", "b", "c"} - {n for n in ("a", "b", "c") if lab.objects(n, "packs")}
    assert w.status().moving.seconds is None
    for name, seconds in ((next(iter({"a", "b", "c"} - {to})), None), (to, w.status().moving.bytes / 100.0)):
        known = Estimates()
        known.end(known.begin(name, Direction.UP, 1 << 20, 0.0), 100 * 3600, 3600.0, 3600.0)
        with w._session("test") as s:
            s.db.set(ESTIMATES_KEY, known)
            assert known.of(name, Direction.UP).bytes_per_s == 100.0
        assert w.status().moving.seconds == seconds, name
    assert "about " in "\n".join(backends_text.moving(w.status().moving))
