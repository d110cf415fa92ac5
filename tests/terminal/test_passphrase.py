"""Passphrases: weak ones are not taken unasked, good ones are made, and one that was mistyped may be typed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminal_kit import CTRL_D, on_terminal
from workspace_kit import CHEAP, PASSPHRASE, Lab, run_cli

from metasync.keys.slots import make_phrase, phrase_fault, word_list
from metasync.terminal.passphrase import misread, seven_words, weakness
from metasync.workspace import Workspace

STRONG = "eight loud herons by the mill"


@pytest.mark.parametrize("passphrase", ["\u00df", "letmein", "hunter2", "summer2024!", "new horse", "qwertyuiop123"])
def test_what_is_guessed_soon_is_weak(passphrase: str) -> None:
    assert "at 10,000 tries a second" in weakness(passphrase)
    assert passphrase not in weakness(passphrase)


@pytest.mark.parametrize(
    "passphrase", [PASSPHRASE, STRONG, "kJ8#mP2$vN5q", "a" * 3 + STRONG * 100, "\u00e4\u6f22\U0001f600 zug ufer"]
)
def test_what_is_not_guessed_is_not_weak(passphrase: str) -> None:
    assert weakness(passphrase) == ""


def test_what_the_workspace_is_called_is_guessed_first() -> None:
    assert weakness("holidayphotosarchive", ["holidayphotosarchive"]) != ""


def test_seven_words_are_drawn_anew_each_time() -> None:
    made = {seven_words() for _ in range(20)}
    assert len(made) == 20
    assert {len(words.split()) for words in made} == {7}
    assert {word for words in made for word in words.split()} <= set(word_list())
    assert all(weakness(words) == "" for words in made)


def test_a_typo_in_a_recovery_phrase_names_the_word() -> None:
    words = make_phrase(bytes(range(16))).split()
    assert misread(" ".join(words)) == ""
    for place, typo in ((3, "absurb"), (12, "zeebra"), (1, "\u00fcber")):
        wrong = [*words]
        wrong[place - 1] = typo
        told = misread(" ".join(wrong))
        assert told.startswith(f'Word {place}, "{typo}", is no word of a recovery phrase.'.replace("\u00fc", "u\u0308"))
        fault = phrase_fault(" ".join(wrong))
        assert fault is not None
        assert typo not in fault.message + repr(fault)
    assert misread(" ".join([*words[:2], "absurb", *words[3:]])).endswith('Did you mean "absurd"?')
    assert "11" in misread(" ".join(words[:11]))
    assert "checksum" in misread(" ".join([words[1], words[0], *words[2:]]))
    assert misread(STRONG) == misread("a passphrase of many words that is none of the twelve of those") == ""


# --- in scripts


def test_a_script_says_so_if_it_means_a_weak_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("init", str(lab.root / "laptop"), "--name", "docs", *lab.words("a", "b", "c"))
    monkeypatch.setenv("METASYNC_PASSPHRASE", "hunter2")
    refused = run_cli(*words)
    assert refused.code == 2
    assert "the passphrase is weak" in refused.err
    assert "--passphrase-anyway" in refused.err
    assert "hunter2" not in refused.err + refused.out
    assert not (lab.root / "laptop").exists()
    assert not (lab.root / "stores").exists()
    assert run_cli(*words, "--passphrase-anyway").code == 0
    monkeypatch.setenv("METASYNC_NEW_PASSPHRASE", "letmein")
    for command in (("key", "change-passphrase"), ("key", "rotate"), ("device", "revoke", "none")):
        assert "the new passphrase is weak" in lab.cli(*command).err
    assert lab.cli("key", "rotate", "--passphrase-anyway").code == 0
    monkeypatch.setenv("METASYNC_PASSPHRASE", "letmein")
    assert lab.cli("invite", "tablet", "--dry-run").code == 0


def test_a_typo_in_a_script_is_told_without_the_word(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Workspace.init(
        lab.root / "laptop", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE, kdf=CHEAP
    )
    made.workspace.close()
    monkeypatch.setenv("METASYNC_PASSPHRASE", made.recovery_phrase.replace(made.recovery_phrase.split()[4], "fifht"))
    for ran in (
        run_cli("clone", str(lab.root / "desktop"), "--name", "docs", *lab.words("a", "b")),
        lab.cli("invite", "tablet", "--json"),
    ):
        assert ran.code == 6
        assert "word 5 of the recovery phrase is not in the word list" in ran.out + ran.err
        assert "fifht" not in ran.out + ran.err


# --- on a terminal


def test_the_screen_of_init(lab: Lab) -> None:
    with on_terminal("init", str(lab.root / "laptop"), "--name", "docs", *lab.words("a", "b", "c"), cwd=lab.root) as t:
        t.asked("Passphrase (Enter: seven words are made for you):")
        t.type("password")
        t.asked("Take it all the same? [y/N]:")
        assert "That is weak: it is guessed in less than a second at 10,000 tries a second." in t.text().replace(
            "\n", ""
        )
        t.type("")
        t.asked("Passphrase (Enter: seven words are made for you):")
        t.type(STRONG)
        t.asked("Repeat it:")
        t.type(STRONG[:-1])
        t.until("The two are not the same.")
        t.asked("Passphrase (Enter: seven words are made for you):")
        t.type("")
        t.asked("Press Enter when you have them:")
        offered = [row.strip() for row in t.rows() if re.fullmatch(r"  ([a-z]+ ){6}[a-z]+", row)]
        assert len(offered) == 1
        t.type("")
        assert t.end() == 0
        assert not any(STRONG[:5] in row for rows in t.seen for row in rows)
    lab.clone(lab.urls("a", "b", "c"), passphrase=offered[0]).close()


def test_the_screen_of_a_clone_with_two_typos(lab: Lab) -> None:
    made = Workspace.init(
        lab.root / "laptop", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE, kdf=CHEAP
    )
    made.workspace.close()
    words = ("clone", "desktop", "--name", "docs", *lab.words("a", "b", "c"))
    with on_terminal(*words, cwd=lab.root, columns=120) as t:
        t.asked("Passphrase:")
        t.type("hunter2")
        t.until("Two more tries.")
        t.asked("Passphrase:")
        assert "Wrong passphrase: it does not open the key slot on a, b, c. Two more tries." in t.rows()
        t.type(made.recovery_phrase.replace(made.recovery_phrase.split()[4], "fifht"))
        t.until('Word 5, "fifht", is no word of a recovery phrase.')
        t.until("One more try.")
        t.asked("Passphrase:")
        t.type(made.recovery_phrase)
        assert t.end() == 0
        assert "Cloned docs into" in t.text()


def test_the_third_wrong_one_ends_it_and_nothing_was_made(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    with on_terminal("clone", "desktop", "--name", "docs", *lab.words("a", "b", "c"), cwd=lab.root) as t:
        for told in ("Passphrase:", "Two more tries.", "One more try."):
            t.until(told)
            t.asked("Passphrase:")
            t.type("hunter2")
        assert t.end() == 6
        assert "metasync: wrong passphrase: it does not open the key slot on" in t.text()
    assert not (lab.root / "desktop").exists()


def test_ctrl_d_at_a_passphrase(lab: Lab, tmp_path: Path) -> None:
    with on_terminal("init", "docs", "--name", "docs", *lab.words("a"), cwd=tmp_path) as t:
        t.asked("Passphrase (Enter: seven words are made for you):")
        t.press(CTRL_D)
        assert t.end() == 130
    assert not (tmp_path / "docs").exists()
