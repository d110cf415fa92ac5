"""Roles of words: plain text for all but the console, which turns them into colours and escapes all other codes."""

from __future__ import annotations

import io
import os

import pytest

from metasync.terminal.console import Options, colours
from metasync.terminal.style import CODES, SIGNS, Safe, Styled, alarm, joined, rendered, signed, styled


def test_a_styled_line_is_its_text() -> None:
    line = "  " + signed("+", "a.txt") + " (3 B)"
    assert line == "  + a.txt (3 B)"
    assert f"{line}" == str(line) == "  + a.txt (3 B)"
    assert rendered(line, colour=False) == "  + a.txt (3 B)"
    assert rendered(line, colour=True) == "  \x1b[32m+ a.txt\x1b[0m (3 B)"


def test_roles_stay_where_they_are_when_lines_are_put_together() -> None:
    cells = [styled("good", "up").ljust(4), styled("alarm", "7").rjust(3), "x"]
    line = joined("|", cells)
    assert line == "up  |  7|x"
    assert [(line[b:e], role) for b, e, role in line.spans] == [("up", "good"), ("7", "alarm")]
    assert (line + line).spans[2:] == ((10, 12, "good"), (17, 18, "alarm"))
    assert joined(", ", []) == styled("added", "") == Styled("") == ""
    assert rendered(styled("added", ""), colour=True) == ""


@pytest.mark.parametrize("colour", [True, False])
def test_what_is_not_printable_is_escaped_in_a_role_too(colour: bool) -> None:
    shown = rendered("\x1b[2J" + styled("added", "a\x1b[31m\n") + "\r", colour=colour)
    assert "\\x1b[2J" in shown
    assert "a\\x1b[31m\\n".replace("\\n", "\\x0a") in shown
    assert "\n" not in shown
    assert "\r" not in shown
    assert shown.count("\x1b") == (2 if colour else 0)


def test_a_safe_line_keeps_its_tabs_alone() -> None:
    assert rendered(Safe.of("+\ta\x1b", "added"), colour=True) == "\x1b[32m+\ta\\x1b\x1b[0m"
    assert rendered(Safe.of("\t"), colour=False) == "\t"
    assert rendered("a\tb", colour=False) == "a\\x09b"


def test_the_word_warning_is_coloured_wherever_a_line_begins_with_it() -> None:
    assert rendered("warning: b is away", colour=True) == "\x1b[33mwarning:\x1b[0m b is away"
    assert rendered(alarm("warning: now"), colour=True) == "\x1b[1;31mwarning: now\x1b[0m"


def test_every_sign_has_a_role_with_a_code() -> None:
    assert {CODES[role] for role in SIGNS.values()} <= set(CODES.values())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("color", "environment", "terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),  # no-color.org: when present and not empty
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_who_decides_on_colours(
    color: str, environment: dict[str, str], terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colours(Options(color=color), Terminal() if terminal else io.StringIO()) is wanted
    assert os.environ.get("NO_COLOR") == environment.get("NO_COLOR")
