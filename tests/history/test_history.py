"""Whole workspaces and their past: names of versions, the log of a path, differences, listings."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace_kit import Lab, laboratory, unreadable, write

from metasync.consensus import Group
from metasync.errors import DamagedError, MetaSyncError, NoQuorumError, UsageError
from metasync.history import log as history
from metasync.history.versions import parse
from metasync.reports.history import LogItem, PathChange
from metasync.workspace import Workspace

TEXT = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def short(changes: tuple[PathChange, ...] | None) -> list[str]:
    """Changes as `kind path`, or `renamed old > new`."""
    assert changes is not None
    return [f"{c.kind} {f'{c.was.decode()} > ' if c.was else ''}{c.path.decode()}" for c in changes]


def said(items: list[LogItem]) -> list[tuple[int, list[str]]]:
    return [(item.version, short(item.changes)) for item in items]


def six_pushes(lab: Lab) -> Workspace:
    """Six pushes, in which every kind of change occurs; version 4 is a device that joined."""
    w = lab.init(lab.urls("a", "b", "c"))
    top = w.directory
    write(top, {"a.txt": TEXT, "deep/er/est/f": b"f1", "deep/other": b"o", "mode": b"m", "touched": b"t", "doc": b"D"})
    (top / "link").symlink_to("a.txt")
    w.push("one")
    write(top, {"a.txt": TEXT.replace(b"two", b"2"), "deep/er/est/f": b"f two"})
    (top / "mode").chmod(0o600)
    os.utime(top / "touched", ns=(1, 10**18))
    w.push("two")
    (top / "deep/er/est/f").rename(top / "moved")
    (top / "doc").unlink()
    (top / "doc").mkdir()
    write(top, {"doc/inside": b"in"})
    (top / "link").unlink()
    (top / "link").symlink_to("mode")
    w.push("three")
    lab.clone(lab.urls("a", "b", "c"))
    (top / "moved").unlink()
    (top / "empty").mkdir()
    w.push("five")
    write(top, {"a.txt": TEXT})
    w.push("six")
    return w


@pytest.fixture
def past(lab: Lab) -> Workspace:
    return six_pushes(lab)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """`past` for tests that change nothing: they share one."""
    with pytest.MonkeyPatch.context() as patch, laboratory(tmp_path_factory.mktemp("seen"), patch) as lab:
        yield six_pushes(lab)


# --- names of versions


def test_names_of_versions(seen: Workspace) -> None:
    log = seen.log()
    assert [i.version for i in log] == [6, 5, 3, 2, 1]
    ids = {i.version: i.snapshot for i in log}

    def at(name: str) -> tuple[int | None, bytes]:
        found = seen.ls(name)
        return found.version, found.snapshot

    for name in ("6", "v6", "latest", "base", ids[6].hex(), ids[6].hex()[:8], "latest~0"):
        assert at(name) == (6, ids[6]), name
    for name in ("2", "v2", "latest~3", "base~3", "3~", "3~1", f"{ids[3].hex()[:12]}~"):
        assert at(name) == (2, ids[2]), name
    assert at("4") == (4, ids[3]), "a device joined: the tree agreed at that version"
    assert seen.ls("0").entries == ()
    assert at("5~1")[1] == ids[3]


def test_a_device_that_is_behind_has_another_base(lab: Lab, past: Workspace) -> None:
    desk = lab.keep(Workspace.open(lab.root / "desktop"))
    assert desk.ls("base").version == 4
    assert desk.ls("latest").version == desk.ls().version == 6
    assert desk.ls("base~1").version == 2


@pytest.mark.parametrize(
    "name",
    ["7", "v99", "latest~5", "1~1", "0~1", "ffffffff", "12345678", "latest~99999", "@1999-01-01", "@1999-01-01T00:00"],
)
def test_versions_that_are_not_there(seen: Workspace, name: str) -> None:
    with pytest.raises(UsageError) as e:
        seen.ls(name)
    assert "metasync log" in e.value.next_step
    assert name.partition("~")[0].lstrip("v") in e.value.message or name in e.value.message


@pytest.mark.parametrize(
    "name", ["", "v", "newest", "~1", "1~x", "1~1~1", "abc", "latest~-1", "-1", "1.5", "ABCDEF12", "@", "@soon"]
)
def test_names_that_are_none(seen: Workspace, name: str) -> None:
    with pytest.raises(UsageError) as e:
        seen.restore(name)
    assert e.value.next_step


def test_an_ambiguous_beginning_of_an_id(seen: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 bits of two ids would have to be equal: so another index is shown."""
    ids = [bytes.fromhex("abcdef01" + "0" * 56), bytes.fromhex("abcdef01" + "1" * 56)]
    monkeypatch.setattr(history.History, "ids_like", lambda self, prefix: ids)
    with pytest.raises(UsageError, match="beginning of 2 snapshots: abcdef010000, abcdef011111"):
        seen.ls("abcdef01")


def test_versions_by_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    monkeypatch.setenv("TZ", "UTC-2")
    times = ["2026-03-01T23:30:00", "2026-03-02T00:30:00", "2026-03-02T14:00:00.7"]
    for n, text in enumerate(times):
        moment = int(dt.datetime.fromisoformat(text).astimezone().timestamp() * 10) * 10**8
        monkeypatch.setattr("metasync.session.open_backend.time.time_ns", lambda moment=moment: moment)
        write(w.directory, {"f": b"%d" % n})
        w.push(text)
    wanted = {
        "@2026-03-01": 1,
        "@2026-03-02": 3,
        "@2027-01-01": 3,
        "@2026-03-02T00:29": 1,
        "@2026-03-02T00:30": 2,
        "@2026-03-02T13:59:59": 2,
        "@2026-03-02T14:00": 3,
        "@2026-03-02~1": 2,
    }
    for name, version in wanted.items():
        assert w.ls(name).version == version, name
    zoned = dt.datetime.fromisoformat("2026-03-02T00:30:00").astimezone().isoformat()
    assert w.ls(f"@{zoned}").version == 2
    with pytest.raises(UsageError, match="oldest that is kept, version 1, is newer"):
        w.ls("@2026-02-28")


def test_a_time_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse("@2026-11-20T14:00")
    assert spec is not None
    assert spec.until_ns // 10**9 == int(dt.datetime(2026, 11, 20, 14).astimezone().timestamp())
    day = parse("@2026-11-20")
    assert day is not None
    assert day.until_ns + 1 == int(dt.datetime(2026, 11, 21).astimezone().timestamp()) * 10**9


@pytest.mark.long
def test_a_long_history_is_not_fetched_for_one_version(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", kind="memory"))
    for n in range(40):
        write(w.directory, {"f": b"%d" % n})
        w.push(f"push {n}")
    c = lab.clone(lab.urls("a", kind="memory"))  # knows the newest snapshot alone
    loaded: list[bytes] = []
    real = history.History.snapshot
    monkeypatch.setattr(history.History, "snapshot", lambda self, i: (loaded.append(i), real(self, i))[1])
    count = lab.counts["a"]
    count.take()
    assert c.ls("7").version == 7
    assert len(loaded) <= 2
    assert count.take().requests.total() < 40
    assert c.restore("7", to=lab.root / "out").version == 7
    assert (lab.root / "out/f").read_bytes() == b"6"
    c.log()
    assert len(set(loaded)) == 40
    assert count.take().requests.total() < 60, "those that were missing came in one go each"
    loaded.clear()
    assert c.ls("8").version == 8
    assert count.take().requests.total() < 10, "all is cached now"


def test_without_the_chain_of_states_snapshots_say_what_they_were(
    past: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = lab.clone(lab.urls("a", "b", "c"), device="third")

    def fails(self: Group, *_: object) -> object:
        raise NoQuorumError("the logs were trimmed")

    monkeypatch.setattr(Group, "state_at", fails)
    assert [c.ls(name).snapshot for name in ("2", "4")] == [past.ls(name).snapshot for name in ("2", "3")]


# --- the log of a path


def test_the_log_of_a_path(seen: Workspace) -> None:
    assert said(seen.log("a.txt")) == [(6, ["modified a.txt"]), (2, ["modified a.txt"]), (1, ["added a.txt"])]
    assert said(seen.log("mode")) == [(2, ["mode mode"]), (1, ["added mode"])]
    assert said(seen.log("touched")) == [(2, ["time touched"]), (1, ["added touched"])]
    assert said(seen.log("link")) == [(3, ["modified link"]), (1, ["added link"])]
    assert said(seen.log("deep/er/est/f")) == [
        (3, ["renamed deep/er/est/f > moved"]),
        (2, ["modified deep/er/est/f"]),
        (1, ["added deep/er/est/f"]),
    ]
    assert said(seen.log(b"moved")) == [(5, ["deleted moved"]), (3, ["renamed deep/er/est/f > moved"])]
    assert said(seen.log("doc")) == [(3, ["type doc", "added doc/inside"]), (1, ["added doc"])]
    assert said(seen.log("doc/inside")) == [(3, ["added doc/inside"])]
    assert said(seen.log("empty")) == [(5, ["added empty"])]
    assert [v for v, _ in said(seen.log("deep"))] == [3, 2, 1]
    assert [i.version for i in seen.log("")] == [6, 5, 3, 2, 1]
    assert said(seen.log("a.txt", limit=1)) == [(6, ["modified a.txt"])]
    sizes = seen.log("deep/er/est/f")[1].changes[0]
    assert (sizes.before.size, sizes.after.size) == (2, 5)
    first = seen.log("a.txt")[-1]
    assert (first.message, first.device, first.snapshot) == ("one", "laptop", seen.ls("1").snapshot)


@pytest.mark.parametrize("path", ["nothing", "a.txt/below", "deep/er/none", "link/x"])
def test_the_log_of_what_never_was(seen: Workspace, path: str) -> None:
    with pytest.raises(UsageError, match=path):
        seen.log(path)


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x", "a\0b"])
def test_paths_outside(seen: Workspace, path: str) -> None:
    for call in (seen.log, lambda p: seen.ls(path=p), lambda p: seen.restore("1", [p]), lambda p: seen.diff(paths=[p])):
        with pytest.raises(UsageError, match="inside the workspace"):
            call(path)


def test_a_search_reads_only_what_lies_on_the_way(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    real = history.Contents.load

    def load(self, kind, ids):  # type: ignore[no-untyped-def]
        ids = list(ids)
        if kind == history.ObjectKind.DIR:
            asked.extend(ids)
        return real(self, kind, ids)

    with past._session("test") as s:
        h = history.History(s)
        roots = [m.snapshot.root for m in h.line()]
        aside = {h.find(root, path).entry.content for root in roots for path in (b"deep/er", b"doc")} - {b""}
        monkeypatch.setattr(history.Contents, "load", load)
        trail: history.walk.Trail = {}
        for root in roots:
            trail = h.find(root, b"deep/other", trail).trail
        assert len(asked) == len(set(asked)) > len(set(roots)), "no directory is opened twice"
        assert not aside & set(asked)
        assert len(trail) == 2
    asked.clear()
    past.log("mode")
    assert len(asked) <= 2 * len(roots) + 2 * 8, "one way down per version, and the differences of two versions"


def test_counts(seen: Workspace) -> None:
    counts = {i.version: i.counts for i in seen.log(with_counts=True)}
    assert (counts[1].added, counts[1].modified, counts[1].deleted) == (7, 0, 0)
    assert (counts[2].modified, counts[2].other) == (2, 2)
    assert (counts[3].renamed, counts[3].other, counts[3].added, counts[3].deleted) == (1, 1, 1, 0)
    assert (counts[5].added, counts[5].deleted) == (1, 1)
    assert all(i.counts is None for i in seen.log())


def test_what_a_merge_by_lines_replaced_is_in_the_log(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c", kind="memory")
    w = lab.init(urls)
    write(w.directory, {"d/t.txt": TEXT, "other": b"1"})
    w.push("first")
    c = lab.clone(urls)
    write(w.directory, {"d/t.txt": TEXT.replace(b"one", b"ONE")})
    w.push("theirs")
    mine = TEXT.replace(b"seven", b"SEVEN")
    write(c.directory, {"d/t.txt": mine})
    c.pull()
    before = c.log("d/t.txt")
    assert (before[0].kept, before[0].version, short(before[0].changes)) == (True, 0, ["modified d/t.txt"])
    kept = before[0].snapshot.hex()
    assert c.ls(kept[:8], "d/t.txt").entries[0].facts.size == len(mine)
    c.restore(kept, ["d/t.txt"])  # from what is staged: no pack holds it yet
    assert (c.directory / "d/t.txt").read_bytes() == mine
    c.restore("latest", ["d/t.txt"])
    for x in c.conflicts():
        c.resolve(x.kept, "theirs")
    c.push("merged")
    w.pull()
    items = w.log("d/t.txt")
    sides = [i for i in items if i.kept]
    assert [i.snapshot.hex() for i in sides] == [kept]
    assert sides[0].device == "desktop"
    assert w.ls(kept[:10]).version is None
    assert w.diff(kept[:10], "latest", ["d"]).changes[0].before.size == len(mine)
    w.restore(kept[:12], ["d/t.txt"], to=lab.root / "out")
    assert (lab.root / "out/d/t.txt").read_bytes() == mine
    assert not any(i.kept for i in w.log("other"))
    assert not any(i.kept for i in w.log())


def test_log_where_one_backend_or_all_are_away(past: Workspace, lab: Lab) -> None:
    lab.hurry()
    wanted = said(past.log("a.txt"))
    listed = past.ls("1", recursive=True)
    lab.faults["b"].down = True
    assert said(past.log("a.txt")) == wanted
    for name in "ac":
        lab.faults[name].down = True
    past = lab.reopen(past)
    assert said(past.log("a.txt")) == wanted, "from the local cache"
    assert past.ls("1", recursive=True) == listed
    assert short(past.diff("1", "2").changes) == [
        "modified a.txt",
        "modified deep/er/est/f",
        "mode mode",
        "time touched",
    ]
    with pytest.raises(NoQuorumError, match="can be seen now"):
        past.ls("9")


def test_a_new_device_without_any_backend_says_so(past: Workspace, lab: Lab) -> None:
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    lab.hurry()
    for name in "abc":
        lab.faults[name].down = True
    c = lab.reopen(c)
    with pytest.raises(MetaSyncError) as e:
        c.log("deep/er/est/f")
    assert e.value.next_step


# --- differences


def test_diff_of_two_versions(seen: Workspace) -> None:
    assert short(seen.diff("1", "2").changes) == [
        "modified a.txt",
        "modified deep/er/est/f",
        "mode mode",
        "time touched",
    ]
    assert short(seen.diff("2", "3").changes) == [
        "type doc", "added doc/inside", "modified link", "renamed deep/er/est/f > moved",
    ]  # fmt: skip
    assert short(seen.diff("3", "2").changes) == [
        "renamed moved > deep/er/est/f", "type doc", "deleted doc/inside", "modified link",
    ]  # fmt: skip
    assert seen.diff("3", "4").changes == ()
    assert short(seen.diff("1", "6", ["a.txt", "deep"]).changes) == ["time a.txt", "deleted deep/er/est/f"]
    assert [c.kind for c in seen.diff("0", "1").changes] == ["added"] * 7
    r = seen.diff("1", "2")
    assert (r.a, r.b, r.counts.modified, r.counts.other) == ("version 1", "version 2", 2, 2)
    with pytest.raises(UsageError, match="neither in version 1 nor in version 2"):
        seen.diff("1", "2", ["nowhere"])


def test_diff_with_the_folder(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    top = past.directory
    assert past.diff().changes == ()
    write(top, {"a.txt": b"new\n", "fresh/x": b"x"})
    (top / "deep/other").rename(top / "other")
    (top / "mode").chmod(0o644)
    (top / "touched").unlink()
    expected = ["modified a.txt", "added fresh/x", "mode mode", "renamed deep/other > other", "deleted touched"]
    assert short(past.diff().changes) == expected
    assert short(past.diff("base").changes) == expected
    assert short(past.diff("latest").changes) == expected
    older = past.diff("2")
    assert "renamed deep/er/est/f > moved" not in short(older.changes)
    assert {"deleted deep/er/est/f", "type doc", "modified a.txt"} <= set(short(older.changes))
    assert "mode mode" in short(older.changes)
    assert short(past.diff(None, None, ["fresh", "touched"]).changes) == ["added fresh/x", "deleted touched"]
    assert past.diff(None, None, ["link"]).changes == ()
    with pytest.raises(UsageError, match="nor in the folder"):
        past.diff(None, None, ["nowhere"])
    unreadable(monkeypatch, b"a.txt")
    r = past.diff()
    assert [u.path for u in r.unreadable] == [b"a.txt"]
    assert "modified a.txt" not in short(r.changes)


def test_diff_of_base_and_folder_asks_nobody(past: Workspace, lab: Lab) -> None:
    write(past.directory, {"a.txt": b"new"})
    past = lab.reopen(past)
    past.diff()
    for count in lab.counts.values():
        count.take()
    assert short(past.diff().changes) == ["modified a.txt"]
    past.ls("base", recursive=True)
    assert sum(count.take().requests.total() for count in lab.counts.values()) == 0


def test_empty_files_are_no_renames(lab: Lab) -> None:
    w = lab.init(lab.urls("a", kind="memory"))
    write(w.directory, {"one": b"", "x/same": b"s", "y/same2": b"s"})
    w.push()
    (w.directory / "one").rename(w.directory / "two")
    (w.directory / "x/same").rename(w.directory / "x/new")
    (w.directory / "y/same2").rename(w.directory / "same2")
    assert short(w.diff().changes) == [
        "deleted one", "renamed y/same2 > same2", "added two", "renamed x/same > x/new",
    ]  # fmt: skip


def test_text_of_differences(past: Workspace, lab: Lab, tmp_path: Path) -> None:
    top = past.directory
    write(top, {"a.txt": TEXT.replace(b"six", b"6") + b"tail", "new.txt": b"x\n", "bin": b"\0\1"})
    (top / "mode").unlink()
    r = past.diff(text=True)
    texts = {t.path: t for t in r.texts}
    assert texts[b"bin"].note == "binary files differ"
    assert texts[b"a.txt"].lines[:2] == ("--- a/a.txt", "+++ b/a.txt")
    assert texts[b"new.txt"].lines == ("--- /dev/null", "+++ b/new.txt", "@@ -0,0 +1 @@", "+x")
    assert texts[b"mode"].lines[:3] == ("--- a/mode", "+++ /dev/null", "@@ -1 +0,0 @@")
    patch = "\n".join(line for t in r.texts if t.path != b"bin" for line in t.lines) + "\n"
    past.restore("latest", to=tmp_path / "was")
    subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=patch, text=True, cwd=tmp_path / "was", check=True)
    assert (tmp_path / "was/a.txt").read_bytes() == (top / "a.txt").read_bytes()
    assert (tmp_path / "was/new.txt").read_bytes() == b"x\n"
    assert not (tmp_path / "was/mode").exists()
    two = past.diff("1", "2", ["a.txt"], text=True)
    assert [line for line in two.texts[0].lines if line[0] in "+-"][2:] == ["-two", "+2"]
    assert past.diff("1", "2", ["mode", "touched"], text=True).texts == (), "no bytes differ"


def test_text_that_cannot_be_had_is_told(past: Workspace, lab: Lab) -> None:
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    c.log(with_counts=True)  # the trees are here then, the files are not
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            pack.unlink()
    r = c.diff("1", "2", ["a.txt", "deep"], text=True)
    assert [t.path for t in r.texts] == [b"a.txt", b"deep/er/est/f"]
    assert all(t.note.startswith("cannot be read: ") for t in r.texts)


# --- listings


def test_listings(seen: Workspace) -> None:
    def names(*args: object, **kwargs: object) -> list[str]:
        return [item.path.decode() for item in seen.ls(*args, **kwargs).entries]  # type: ignore[arg-type]

    assert names() == ["a.txt", "deep", "doc", "empty", "link", "mode", "touched"]
    assert names("1", "deep") == ["deep/er", "deep/other"]
    assert names("1", "deep", recursive=True) == ["deep/er", "deep/er/est", "deep/er/est/f", "deep/other"]
    assert names("1", b"deep/er/est/f") == ["deep/er/est/f"]
    assert names("2", "./deep//er/") == ["deep/er/est"]
    assert len(names("1", recursive=True)) == 10
    facts = {item.path: item.facts for item in seen.ls("2").entries}
    assert (facts[b"mode"].mode, facts[b"mode"].size, facts[b"mode"].kind) == (0o600, 1, "file")
    assert facts[b"touched"].mtime_ns == 10**18
    assert (facts[b"link"].kind, facts[b"link"].target) == ("link", b"a.txt")
    assert (facts[b"deep"].kind, facts[b"deep"].mtime_ns) == ("dir", 0)
    for path, nearest in (
        ("deep/er/nope/x", "deep/er/, with est/"),
        ("a.txt/x", "the root, with a.txt"),
        ("zz", "the root"),
    ):
        with pytest.raises(UsageError, match="version 1 has nothing at") as e:
            seen.ls("1", path)
        assert nearest in e.value.next_step


def test_a_missing_pack_is_damage(past: Workspace, lab: Lab) -> None:
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            pack.unlink()
    with pytest.raises(DamagedError):
        c.ls("1", recursive=True)


def test_an_empty_workspace_has_no_past(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c", kind="memory"))
    assert w.log() == []
    assert w.ls().entries == ()
    assert w.diff().changes == ()
    write(w.directory, {"x": b"1"})
    assert short(w.diff(text=True).changes) == ["added x"]
    for call in (
        lambda: w.log("x"),
        lambda: w.ls("1"),
        lambda: w.ls("latest~1"),
        lambda: w.ls("@2030-01-01"),
        lambda: w.ls("latest", "x"),
    ):
        with pytest.raises(UsageError):
            call()
    assert w.restore("latest").changes.deleted == ()
    assert (w.directory / "x").exists()


@pytest.mark.long
def test_many_files_cost_no_look_at_each(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """15,000 files: a listing and a difference of versions read directories alone, and few at that."""
    w = lab.init(lab.urls("a", kind="memory"))
    for d in range(30):
        write(w.directory, {f"d{d}/f{i}": b"x" for i in range(500)})
    w.push()
    write(w.directory, {"d7/f3": b"changed"})
    w.push()
    lab.counts["a"].take()
    loads: list[int] = []
    real = history.Contents.load
    monkeypatch.setattr(
        history.Contents,
        "load",
        lambda self, kind, ids: real(self, kind, [*(ids := list(ids)), *(loads.append(len(ids)) or [])]),
    )
    assert short(w.diff("1", "2").changes) == ["modified d7/f3"]
    assert sum(loads) < 40
    assert len(w.ls("1", recursive=True).entries) == 15_030
    assert lab.counts["a"].take().requests.total() < 25
