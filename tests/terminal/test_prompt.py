"""Questions: nothing wipes them, nothing is written over them, and only one module asks them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from terminal_kit import CTRL_C, on_terminal
from workspace_kit import PASSPHRASE, Lab, run_cli

import metasync
from metasync.events import Notice, Phase
from metasync.terminal import bar, prompt
from metasync.terminal.console import Console, Options

PACKAGE = Path(metasync.__file__).parent


def test_only_the_prompt_asks() -> None:
    """A question that is asked elsewhere is wiped by the next drawing of the bar."""
    asks = re.compile(r"\b(click\.(prompt|confirm|getchar|pause|edit)|getpass\.getpass|input)\(")
    asking = {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if asks.search(p.read_text("utf-8"))}
    assert asking == {"terminal/prompt.py"}


def test_progress_and_notices_keep_off_while_somebody_is_asked(capfd: Any) -> None:
    shown = bar.Bar()
    shown.take(Phase("scan"))
    with bar.question():
        assert capfd.readouterr().err == "\rscan\r    \r"
        others = threading.Thread(target=lambda: (shown.take(Phase("upload")), shown._draw(0.0)))
        others.start()
        others.join(timeout=60)  # what works in the background is not held up by a question
        assert not others.is_alive()
        Console(Options()).event(Notice("b is slow", warning=True))
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "warning: b is slow\n"
    shown.take(Phase("agree"))
    shown._draw(1.0)
    assert "agree" in capfd.readouterr().err
    bar.end_progress()
    capfd.readouterr()


def test_questions_in_a_question_and_one_that_is_broken_off(capfd: Any) -> None:
    with bar.question():
        with pytest.raises(KeyboardInterrupt), bar.question():
            raise KeyboardInterrupt
        Console(Options()).event(Notice("late"))
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "late\n"


def test_the_screen_of_a_revocation(folder: Path) -> None:
    """The bar used to wipe each of these questions, half a second after it was asked."""
    with on_terminal("device", "revoke", "phone", cwd=folder) as t:
        t.asked("Revoke phone, and change the keys of the workspace? [y/N]:")
        t.type("y")
        t.asked("Passphrase:")
        t.type(PASSPHRASE)
        t.asked("New passphrase (Enter: seven words are made for you):")
        t.type("eight loud herons by the mill")
        t.asked("Repeat it:")
        t.type("eight loud herons by the mill")
        assert t.end() == 0
        assert t.rows()[:4] == [
            "Revoke phone, and change the keys of the workspace? [y/N]: y",
            "Passphrase:",
            "New passphrase (Enter: seven words are made for you):",
            "Repeat it:",
        ]
        assert t.rows()[4].startswith("Revoked phone in version ")
        assert not any("heron" in row or "horse" in row for rows in t.seen for row in rows)


def test_the_screen_of_a_restart_and_ctrl_c_at_its_question(lab: Lab, folder: Path) -> None:
    for name in ("b", "c"):
        lab.store(name).rename(lab.root / f"gone-{name}")
    with on_terminal("recover", "--without", "b", "--without", "c", cwd=folder) as t:
        t.asked("Type the workspace's name (docs) to restart it:")
        t.press(CTRL_C)
        assert t.end() == 130
        assert t.rows()[-2:] == [
            "Type the workspace's name (docs) to restart it: ^C",
            "metasync: interrupted; safe to run again",
        ]


# --- what is shown once


WORDS = r"([a-z]+ ){11,23}[a-z]+\n"


def test_quiet_prints_what_is_shown_once_and_nothing_else(lab: Lab) -> None:
    """It threw the recovery phrase away, and the invitation: nobody could ever see them again."""
    urls = lab.words("a", "b", "c")
    made = run_cli("init", str(lab.root / "laptop"), "--name", "docs", "--quiet", *urls)
    assert (made.code, made.err) == (0, "")
    assert re.fullmatch(WORDS, made.out)
    lab.clone(lab.urls("a", "b", "c"), passphrase=made.out).close()
    rotated = lab.cli("key", "rotate", "--keep-passphrase", "-q")
    assert re.fullmatch(WORDS, rotated.out)
    assert rotated.out != made.out
    invited = lab.cli("invite", "tablet", "-q")
    assert re.fullmatch(r"metasync-invitation-[\w-]+\n", invited.out)
    assert lab.cli("invite", "watch", "-q", "--out", str(lab.root / "code")) == (0, "", "")
    revoked = lab.cli("device", "revoke", "desktop", "-q", "--yes", "--keep-passphrase")
    assert re.fullmatch(WORDS, revoked.out), revoked
    for words in (("key", "rotate"), ("device", "revoke", "desktop", "--keep-passphrase"), ("invite", "x")):
        assert lab.cli(*words, "-q", "--dry-run").out == ""


def test_a_question_that_needs_an_answer_is_not_asked_of_a_script(lab: Lab) -> None:
    assert not prompt.somebody()
