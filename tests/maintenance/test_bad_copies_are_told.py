"""Altered copies that a command meets are told in its report, and by `status` until they are mended."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import Lab, Ran, flip, write

from metasync.dashboard import sources
from metasync.errors import DamagedError, WorkspaceError
from metasync.events import Notice
from metasync.members import ahead
from metasync.moving import upkeep
from metasync.reports.service import Problem, WorkspaceState
from metasync.reports.sync import BadCopies
from metasync.terminal.text import status_text
from metasync.transfer import wrong_copies
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
LONG_S = 600.0  # never over in a test


@pytest.fixture(autouse=True)
def nothing_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone would take a pack from whichever store lists it first: from the one that has the good copy, too."""
    monkeypatch.setattr(ahead, "PACKS_BYTES_MAX", 0)


def some(lab: Lab, *, copies: int = 2) -> Workspace:
    w = lab.init(lab.urls(*NAMES), replicas=copies)
    for n in range(3):
        write(w.directory, {f"file{n}": bytes([n]) * 500})
        w.push(f"{n}")
    return w


def homes(w: Workspace) -> dict[str, tuple[str, ...]]:
    """The backends that ought to have each pack, by its name in hex."""
    with w._session("test") as s:
        t = s.transfer
        packs = s.base().index.packs().values()
        return {p.name.hex(): tuple(sorted(t.places[i].name for i in t.placement.primary(p.name))) for p in packs}


def copy_of(lab: Lab, backend: str, pack: str) -> Path:
    return next(p for p in lab.objects(backend, "packs") if p.name == pack)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def alter(lab: Lab, w: Workspace, how: Callable[[Path], None] = flip) -> dict[str, int]:
    """Alters each copy where it belongs, and puts a good one where it does not: that is asked for last.

    -> how many are altered, by backend.
    """
    altered: dict[str, int] = {}
    with w._session("test") as s:
        for p in s.base().index.packs().values():
            home = s.transfer.placement.primary(p.name)
            names = [s.transfer.places[i].name for i in home]
            elsewhere = next(place for i, place in s.transfer.places.items() if i not in home)
            data = copy_of(lab, names[0], p.name.hex()).read_bytes()
            assert s.runtime.run(s.transfer.put_copy(elsewhere, p.name, p.generation, data))
            for name in names:
                how(copy_of(lab, name, p.name.hex()))
                altered[name] = altered.get(name, 0) + 1
    return altered


def told(ran: Ran) -> dict[str, int]:
    """What the document says, which is what the notices on stderr say too."""
    found = {one["backend"]: one["packs"] for one in ran.json["bad_copies"]}
    lines = [json.loads(line) for line in ran.err.splitlines()]
    notices = [line["text"] for line in lines if line["event"] == "notice" and line["warning"]]
    assert sorted(found) == sorted(text.partition(":")[0] for text in notices if "altered there" in text)
    return found


def clone(lab: Lab, *more: str) -> Ran:
    return lab.cli("clone", "../desktop", "--name", "docs", *lab.words(*NAMES), *more)


def test_a_clone_tells_and_status_does_until_a_push_has_mended_them(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab)
    altered = alter(lab, w)
    ran = clone(lab, "--json")
    assert ran.code == 0
    assert told(ran) == altered
    status = lab.cli("status", "--json", cwd="desktop")
    assert status.code == 4
    assert {one["backend"]: one["packs"] for one in status.json["bad_copies"]} == altered
    assert all(one["since_ns"] > 0 for one in status.json["bad_copies"])
    assert sum(status.json["by_copies"]) == status.json["by_copies"][0] == len(homes(w)), "no copy is known to be right"
    text = lab.cli("status", cwd="desktop").out
    assert "altered or gone there" in text
    assert "All 3 packs have" not in text
    assert lab.cli("status", "--json").json["bad_copies"] == [], "notes are the device's that met them"
    monkeypatch.setattr(upkeep, "BUDGET_S", LONG_S)
    assert lab.cli("push", cwd="desktop").code == 0
    status = lab.cli("status", "--json", cwd="desktop")
    assert (status.code, status.json["bad_copies"]) == (0, [])
    assert w.check(read_data=True).problems == ()


@pytest.mark.parametrize("how", [flip, grow])
def test_a_line_on_stderr_tells_it_to_people_even_if_quiet(lab: Lab, how: Callable[[Path], None]) -> None:
    altered = alter(lab, some(lab), how)
    ran = clone(lab, "--quiet")
    assert ran.out == ""
    assert [line.split(": ")[:2] for line in ran.err.splitlines()] == [["warning", name] for name in sorted(altered)]


@pytest.mark.parametrize(
    "words",
    [("pull",), ("restore", "latest~1"), ("restore", "latest", "--to", "../out"), ("cat", "latest", "file9")],
)
def test_others_that_read_tell_it_too(lab: Lab, words: tuple[str, ...]) -> None:
    w = some(lab)
    lab.clone(lab.urls(*NAMES))
    write(w.directory, {"file9": b"new"})
    w.push("of which the other has nothing yet")
    if words[0] == "restore" and words[1] == "latest~1":
        lab.cli("pull", cwd="desktop")
        (w.directory / "file9").write_bytes(b"newer")
        w.push("newer")
        shutil.rmtree(lab.root / "desktop" / ".metasync" / "bases", ignore_errors=True)
    altered = alter(lab, w)
    found = told(lab.cli(*words, "--json", cwd="desktop"))
    assert found
    assert all(n <= altered[name] for name, n in found.items())
    status = lab.cli("status", "--json", cwd="desktop").json
    assert {one["backend"]: one["packs"] for one in status["bad_copies"]} == found


def test_what_no_copy_gives_ends_the_command_and_is_told_all_the_same(lab: Lab) -> None:
    w = some(lab)
    for name in NAMES:
        for path in lab.objects(name, "packs"):
            flip(path)
    (w.directory / "file0").unlink()
    with pytest.raises(DamagedError):
        w.read("file0", "latest~2")
    assert lab.cli("status", "--json").json["bad_copies"]


def test_a_pack_of_which_all_copies_have_grown_is_made_whole_from_the_folder(lab: Lab) -> None:
    w = some(lab)
    for name in NAMES:
        for path in lab.objects(name, "packs"):
            grow(path)
    assert lab.cli("check", "--read-data", "--repair").code == 0
    assert w.read("file0", "latest~2") == bytes(500)
    assert w.check(read_data=True).problems == ()


def test_reading_all_takes_back_what_is_noted_and_repair_mends_it(lab: Lab) -> None:
    w = some(lab)
    alter(lab, w)
    clone(lab)
    checked = lab.cli("check", "--read-data", "--json", cwd="desktop")
    assert checked.code == 4
    assert lab.cli("status", "--json", cwd="desktop").json["bad_copies"], "it found them itself"
    assert lab.cli("check", "--read-data", "--repair", cwd="desktop").code == 0
    assert lab.cli("status", "--json", cwd="desktop").json["bad_copies"] == []


def test_a_plain_check_reads_what_is_noted_and_takes_back_what_is_whole_again(lab: Lab) -> None:
    w = some(lab)
    altered = alter(lab, w)
    clone(lab)
    checked = lab.cli("check", "--json", cwd="desktop")
    assert checked.code == 4
    named = Counter(p["backend"] for p in checked.json["problems"] if p["problem"] == "altered")
    assert named == altered, "no size and no piece shows it"
    before = lab.cli("status", "--json", cwd="desktop").json["bad_copies"]
    assert {one["backend"]: one["packs"] for one in before} == altered
    mended = min(altered)
    for pack, places in homes(w).items():
        if mended in places:
            flip(copy_of(lab, mended, pack))
    assert lab.cli("check", cwd="desktop").code == 4
    left = lab.cli("status", "--json", cwd="desktop").json["bad_copies"]
    assert left == [one for one in before if one["backend"] != mended], "others are told as long as before"
    for pack, places in homes(w).items():
        for name in set(places) - {mended}:
            flip(copy_of(lab, name, pack))
    assert lab.cli("check", cwd="desktop").code == 0
    assert lab.cli("status", "--json", cwd="desktop").json["bad_copies"] == []
    desktop = Workspace.open(lab.root / "desktop")
    assert wrong_copies.load(desktop._db) == set()
    desktop.close()


def test_a_plain_check_with_repair_mends_what_is_noted(lab: Lab) -> None:
    w = some(lab)
    alter(lab, w)
    clone(lab)
    assert lab.cli("check", "--repair", cwd="desktop").code == 0
    assert lab.cli("status", "--json", cwd="desktop").json["bad_copies"] == []
    assert w.check(read_data=True).problems == ()


@pytest.mark.parametrize("more", [(), ("--read-data",)])
def test_what_cannot_be_looked_at_stays_noted(lab: Lab, more: tuple[str, ...]) -> None:
    w = some(lab)
    altered = alter(lab, w)
    clone(lab)
    away = min(altered)
    lab.faults[away].down = True
    lab.cli("check", *more, cwd="desktop")
    lab.faults[away].down = False
    left = lab.cli("status", "--json", cwd="desktop").json["bad_copies"]
    assert {one["backend"]: one["packs"] for one in left} == altered


def test_a_disk_that_takes_no_note_does_not_end_what_only_reads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = some(lab)
    alter(lab, w)
    (w.directory / "file0").unlink()
    heard: list[Any] = []
    w.on_event = heard.append

    def refuse(*_: object) -> None:
        raise WorkspaceError("the disk is full")

    monkeypatch.setattr(wrong_copies, "note", refuse)
    assert w.read("file0", "latest") == bytes(500)
    assert [e.warning for e in heard if isinstance(e, Notice) and "altered there" in e.text]


def test_status_tells_once_what_the_daemon_tells_and_the_page_tells_it_by_itself(lab: Lab) -> None:
    s = replace(some(lab).status(), bad_copies=(BadCopies("a", 2, 5_000_000_000), BadCopies("b", 1, 6_000_000_000)))

    def named(daemon: WorkspaceState | None) -> list[str]:
        lines = status_text.status(s, now_ns=10, daemon=daemon)
        return [line.split(": ")[1] for line in lines if "altered or gone there" in line]

    assert named(None) == ["a", "b"]
    kept = WorkspaceState("/docs", "docs", "in step", 0.0)
    assert named(kept) == ["a", "b"]
    assert named(replace(kept, problems=(Problem("copies:a", "damage", "told", "", 5.0),))) == ["b"]
    for before in ((), sources.problems(s, (), 90.0)):
        page = [p for p in sources.problems(s, before, 100.0) if p.kind == "damage"]
        assert [(p.key, p.since_s) for p in page] == [("copies:a", 5.0), ("copies:b", 6.0)]
        assert all("metasync check --repair" in p.next_step for p in page)
