"""What `log` lists and leaves out, what it says of versions that are no pushes, and what it asks for that."""

from __future__ import annotations

import datetime as dt

import pytest
from workspace_kit import PASSPHRASE, Lab, write

from metasync.errors import UsageError
from metasync.history.times import span
from metasync.reports import LogItem
from metasync.workspace import Workspace

NOON = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC)
SECOND = 10**9


def ns(*when: int) -> int:
    return int(dt.datetime(*when, tzinfo=dt.UTC).timestamp()) * SECOND  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-11-20", ns(2026, 11, 20), ns(2026, 11, 21) - 1),
        ("20261120", ns(2026, 11, 20), ns(2026, 11, 21) - 1),
        ("2026-11-20T14:00", ns(2026, 11, 20, 14), ns(2026, 11, 20, 14) + SECOND - 1),
        ("2026-11-20 14:00:30", ns(2026, 11, 20, 14, 0, 30), ns(2026, 11, 20, 14, 0, 31) - 1),
        ("2026-11-20T14:00+02:00", ns(2026, 11, 20, 12), ns(2026, 11, 20, 12, 0, 1) - 1),
        ("2026-11-20T14:00Z", ns(2026, 11, 20, 14), ns(2026, 11, 20, 14, 0, 1) - 1),
        ("today", ns(2026, 11, 22), ns(2026, 11, 23) - 1),
        (" Yesterday ", ns(2026, 11, 21), ns(2026, 11, 22) - 1),
        ("now", ns(2026, 11, 22, 12), ns(2026, 11, 22, 12)),
        ("2 days ago", ns(2026, 11, 20, 12), ns(2026, 11, 20, 12)),
        ("an hour ago", ns(2026, 11, 22, 11), ns(2026, 11, 22, 11)),
        ("1 week ago", ns(2026, 11, 15, 12), ns(2026, 11, 15, 12)),
        ("9 months ago", ns(2026, 2, 22, 12), ns(2026, 2, 22, 12)),
        ("1 year  ago", ns(2025, 11, 22, 12), ns(2025, 11, 22, 12)),
    ],
)
def test_times_that_people_write(text: str, first: int, last: int) -> None:
    assert span(text, NOON) == (first, last)


def test_a_month_that_is_shorter_ends_earlier() -> None:
    assert span("1 month ago", dt.datetime(2026, 3, 31, 8, tzinfo=dt.UTC))[0] == ns(2026, 2, 28, 8)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2026-13-01", "2026-11-31", "2 fortnights ago", "ago", "-1 days ago", "99999 years ago", "14:00"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        span(text, NOON)


@pytest.fixture
def two(lab: Lab) -> tuple[Workspace, Workspace]:
    """Versions 1 and 2 are laptop's pushes, 3 is desktop that joins, 4 is its push, 5 laptop's."""
    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls)
    for n in (1, 2):
        write(w.directory, {f"{n}": b"%d" % n})
        w.push(f"push {n}")
    c = lab.clone(urls)
    write(c.directory, {"4": b"4"})
    (c.directory / "1").unlink()
    c.push("tidy (4)")
    w.pull()
    write(w.directory, {"5": b"5"})
    w.push("push 5")
    return w, c


def versions(items: list[LogItem]) -> list[int]:
    return [item.version for item in items]


def test_filters(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    assert versions(w.log(device="desktop")) == [4]
    assert versions(w.log(device="laptop")) == [5, 2, 1]
    desktop = next(d for d in w.device_list().devices if not d.this)
    assert versions(w.log(device=desktop.device_id[:6].upper())) == [4]
    assert versions(w.log(grep=r"^push [25]$")) == [5, 2]
    assert versions(w.log(grep=r"\(4\)")) == [4]
    assert versions(w.log(limit=1, device="laptop", until="now")) == [5]
    assert versions(w.log(since="an hour ago")) == [5, 4, 2, 1]
    assert versions(w.log(until="an hour ago")) == []
    assert versions(w.log("1", device="desktop")) == [4]
    assert versions(w.log("1", device="laptop")) == [1]
    assert versions(c.log("2", since="yesterday")) == [2]
    for wrong in ({"device": "nobody"}, {"since": "soon"}, {"until": ""}, {"grep": "("}):
        with pytest.raises(UsageError):
            w.log(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="all versions"):
        w.log(everything=True, grep="x")


def test_clocks_of_devices_may_differ(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of a clock that goes ahead lies behind one that is older by its own."""
    w = lab.init(lab.urls("a", kind="memory"))
    real = w._machine.wall_ns()
    hour = 3600 * SECOND
    for n, ago in enumerate([9, 1, 5, 1, 0]):
        monkeypatch.setattr(w._machine, "wall_ns", lambda ago=ago: real - ago * hour)
        write(w.directory, {str(n): b"x"})
        w.push()
    assert versions(w.log(since="2 hours ago")) == [5, 4, 2]


def test_numbers_are_not_skipped_without_a_word(two: tuple[Workspace, Workspace]) -> None:
    w, _ = two
    items = w.log()
    assert [(item.version, item.others_after) for item in items] == [(5, 0), (4, 0), (2, 1), (1, 0)]
    assert [item.begins for item in items] == ["", "", "", "History begins with version 1, the first push."]
    w.device_rename("desktop", "tower")
    items = w.log()
    assert [(item.version, item.others_after) for item in items] == [(5, 1), (4, 0), (2, 1), (1, 0)]
    assert w.log(limit=2)[-1].begins == ""
    assert w.log(device="tower")[0].begins == ""


def test_log_of_everything(two: tuple[Workspace, Workspace]) -> None:
    w, _ = two
    w.device_rename("desktop", "tower")
    w.device_revoke(["tower"], PASSPHRASE)
    w.device_confirm("tower")
    told = [(item.version, item.events, item.device) for item in w.log(everything=True)]
    assert told == [
        (8, ("logins of tower were confirmed as withdrawn",), ""),
        (7, ("tower was revoked", "new keys, of epoch 2"), ""),
        (6, ("desktop is called tower now",), ""),
        (5, (), "laptop"),
        (4, (), "tower"),
        (3, ("desktop joined",), ""),
        (2, (), "laptop"),
        (1, (), "laptop"),
        (0, ("laptop made the workspace",), ""),
    ]
    assert versions(w.log(everything=True, limit=3)) == [8, 7, 6]
    shown = w.show("7")
    assert (shown.version.events, shown.diff) == (("tower was revoked", "new keys, of epoch 2"), None)


def test_changes_of_backends_are_lines_of_the_log(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"one": b"1"})
    w.push("one")
    w.backend_set("a", new_name="attic")
    w.backend_add(lab.url("d"))
    told = [event for item in w.log(everything=True) for event in item.events]
    assert "backend a is called attic now" in told
    assert "backend d was added" in told


@pytest.mark.long
def test_what_everything_asks_is_kept_here(lab: Lab) -> None:
    """States are searched as a skip list, and each is asked for once in the life of a folder."""
    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls)
    for n in range(20):
        write(w.directory, {"f": b"%d" % n})
        w.push(str(n))
    lab.clone(urls, device="second")
    for n in range(12):
        write(w.directory, {"f": b"again %d" % n})
        w.push(str(n))
    c = lab.clone(urls, device="third")

    def asked() -> int:
        return sum(sum(count.take().requests.values()) for count in lab.counts.values())

    assert len(c.log()) == 32
    asked()
    c.log()
    bare = asked()
    first = c.log(everything=True)
    assert [item.version for item in first] == list(range(34, -1, -1))
    assert [item.version for item in first if item.events] == [34, 21, 0]
    assert 0 < asked() - bare < 16  # some of the 35 states, and three device sets
    assert c.log(everything=True) == first
    assert asked() == bare  # the look for news, and nothing else


# --- names


def test_a_revoked_device_keeps_its_name_in_the_log(two: tuple[Workspace, Workspace]) -> None:
    w, _ = two
    w.device_revoke(["desktop"], PASSPHRASE)
    assert [item.device for item in w.log(limit=2)] == ["laptop", "desktop"]
    w.device_confirm("desktop")
    assert [item.device for item in w.log(limit=2)] == ["laptop", "desktop"]
    assert versions(w.log(device="desktop")) == [4]


def test_rename_holds_everywhere(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    renamed = w.device_rename("desktop", "tower")
    assert (renamed.version, renamed.before, renamed.name) == (6, "desktop", "tower")
    assert sorted(d.name for d in c.device_list().devices) == ["laptop", "tower"]
    assert [item.device for item in c.log(limit=2)] == ["laptop", "tower"]
    for word, name in (("tower", "laptop"), ("desktop", "x"), ("tower", " "), ("tower", "a\nb"), ("tower", "x" * 256)):
        with pytest.raises(UsageError):
            w.device_rename(word, name)
    w.invite("phone", PASSPHRASE)
    with pytest.raises(UsageError, match="open invitation"):
        w.device_rename("tower", "phone")
    with pytest.raises(UsageError, match="called tower already"):
        w.invite("tower", PASSPHRASE)
    assert w.device_rename("tower", "desk", dry_run=True).version is None
    assert w.device_revoke(["tower"], PASSPHRASE).revoked == ("tower",)
    assert [item.device for item in w.log(limit=2)] == ["laptop", "tower"]


def test_device_list_says_who_was_seen_when(two: tuple[Workspace, Workspace]) -> None:
    w, _ = two
    listed = {d.name: d for d in w.device_list().devices}
    assert (listed["laptop"].version, listed["desktop"].version) == (5, 4)
    times = {item.version: item.time_ns for item in w.log()}
    assert listed["desktop"].seen_ns == times[4]


# --- show, undelete


def test_show_is_a_version_and_its_changes(two: tuple[Workspace, Workspace]) -> None:
    w, _ = two
    shown = w.show("4", text=True)
    assert (shown.version.version, shown.version.message, shown.version.device) == (4, "tidy (4)", "desktop")
    assert shown.diff is not None
    assert [(c.kind, c.path_str) for c in shown.diff.changes] == [("deleted", "1"), ("added", "4")]
    assert len(shown.diff.texts) == 2
    first = w.show("1").diff
    assert first is not None
    assert [(c.kind, c.path_str) for c in first.changes] == [("added", "1")]
    assert w.show("3").version.events == ("desktop joined",)
    assert w.show("latest", ["5"]).version.version == 5
    w.device_rename("desktop", "tower")
    assert w.show("latest").version.version == 5  # whose files are those of the newest version
    for wrong in ("9", "nonsense"):
        with pytest.raises(UsageError):
            w.show(wrong)
    with pytest.raises(UsageError):
        w.show("4", ["none"])


def test_undelete_finds_the_last_version_that_has_it(two: tuple[Workspace, Workspace]) -> None:
    w, c = two
    with pytest.raises(UsageError, match="the last that has it is version 2") as e:
        w.restore("latest", ["1"])
    assert "metasync restore 2 PATH" in e.value.next_step
    assert w.undelete("1", dry_run=True).version == 2
    assert not (w.directory / "1").exists()
    assert w.undelete("1").version == 2
    assert (w.directory / "1").read_bytes() == b"1"
    with pytest.raises(UsageError, match="is not deleted"):
        w.undelete("1")
    with pytest.raises(UsageError, match="no version that is kept"):
        w.undelete("never")
    w.push()
    c.pull()
    assert (c.directory / "1").read_bytes() == b"1"
    (w.directory / "5").unlink()  # not pushed: the newest version has it
    assert w.undelete("5").version == 6


@pytest.mark.long
def test_log_of_everything_after_a_restart(lab: Lab) -> None:
    """The states of before lay on backends that are lost: what cannot be read is said, and all else is listed."""
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)
    write(w.directory, {"one": b"1"})
    w.push("one")
    c = lab.clone(lab.urls("a", "b", "c"))
    write(c.directory, {"two": b"2"})
    c.push("two")
    w.pull()
    w.close()
    c.close()
    for name in "bc":
        lab.lose(name)
    lab.hurry()
    w = lab.reopen(w)
    assert w.recover(["b", "c"], PASSPHRASE, confirm="docs").version is not None
    write(w.directory, {"three": b"3"})
    w.push("three")
    late = lab.clone(lab.urls("a"), device="late")
    for one in (w, late):
        items = one.log(everything=True)
        assert [item.version for item in items] == list(range(items[0].version, -1, -1))
        told = [event for item in items for event in item.events]
        assert "the workspace was restarted as era 1" in told
        assert [item.message for item in items if item.message] == ["three", "two", "one"]
