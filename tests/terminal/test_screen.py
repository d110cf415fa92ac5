"""What a terminal shows: colours where it has them, a pager where the screen is too small, a bar that goes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from terminal_kit import CTRL_C, Terminal, on_terminal
from workspace_kit import Lab, write

from metasync.workspace import Workspace


@pytest.fixture
def edited(lab: Lab) -> Path:
    """A folder with forty versions' worth of names pushed, and three changes since."""
    with lab.init(lab.urls("a", "b", "c")) as w:
        write(w.directory, {"notes.txt": b"one\ntwo\n", "old.txt": b"x", **{f"f{n:02}": b"" for n in range(40)}})
        w.push("first")
    write(w.directory, {"notes.txt": b"one\nthree\n", "new.txt": b""})
    (w.directory / "old.txt").unlink()
    return w.directory


@pytest.mark.long
def test_the_screen_of_a_diff_has_gits_colours_and_none_with_no_color(edited: Path) -> None:
    with on_terminal("diff", "--text", cwd=edited) as t:
        assert t.end() == 0
        for text, colour in (
            ("+ new.txt", "green"),
            ("- old.txt", "red"),
            ("~ notes.txt", "brown"),
            ("+three", "green"),
        ):
            assert t.colours(text) == {colour}, text
        assert t.colours("-two") == {"red"}
        assert t.colours("@@ -1,2 +1,2 @@") == {"cyan"}
        assert t.colours(" one") == {"default"}
    with on_terminal("diff", "--text", cwd=edited, env={"NO_COLOR": "1"}) as t:
        assert t.end() == 0
        assert t.colours("+three") == {"default"}


@pytest.mark.long
def test_what_does_not_fit_the_screen_goes_through_the_pager(edited: Path) -> None:
    pager = {"METASYNC_PAGER": "sed 's/^/paged: /'"}
    with on_terminal("ls", cwd=edited, env=pager, rows=60) as t:
        assert t.end() == 0
        assert "paged:" not in t.text(), "it fits"
    with on_terminal("ls", cwd=edited, env=pager, rows=20) as t:
        assert t.end() == 0
        assert "paged: f39" in t.text()
    with on_terminal("ls", cwd=edited, env={"METASYNC_PAGER": "no-such-program-1234"}, rows=20) as t:
        assert t.end() == 0
        assert t.rows()[-1] == "old.txt", "printed as it is"


def test_ctrl_c_in_a_pager_is_the_pagers(edited: Path) -> None:
    pager = "trap 'echo heard' INT; cat > /dev/null; echo ready; read line < /dev/tty; echo ended"
    with on_terminal("ls", cwd=edited, env={"METASYNC_PAGER": pager}, rows=20) as t:
        t.until("ready")
        t.press(CTRL_C)
        t.until("heard")
        t.type("")
        assert t.end() == 0
        assert "interrupted" not in t.text()


@pytest.mark.long
def test_the_bar_fits_the_terminal_goes_away_and_makes_room_for_ctrl_c(lab: Lab) -> None:
    with lab.init(lab.urls("a", "b", "c")) as w:
        w.configure("limit.up", "300k")
    write(w.directory, {f"{n}.bin": os.urandom(300_000) for n in range(6)})
    for columns in (30, 100):
        with on_terminal("push", cwd=w.directory, columns=columns) as t:
            t.until(_has_percent)
            t.press(CTRL_C)
            assert t.end() == 130
            assert t.rows()[-1] == "metasync: interrupted; safe to run again"[-columns:] or columns < 41
            assert not any("%" in row for row in t.rows()), t.rows()
            assert all(len(rows) <= 2 for rows in t.seen), "the bar took more than a line"
    with Workspace.open(w.directory, now=True) as w:
        assert len(w.status().changes.added) == 6


def _has_percent(t: Terminal) -> bool:
    return "upload" in t.text() and "%" in t.text()
