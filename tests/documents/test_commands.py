"""What tells of the commands is as the commands are: help by purpose, the reference, the man pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from metasync.cli import Commands, cli

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
EVERYDAY = ["init", "clone", "status", "push", "pull"]


def every_command(group: click.Group, words: str = "metasync") -> dict[str, click.Command]:
    """The commands that can be typed and their groups, by their words."""
    context, out = click.Context(group), {words: group}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = f"{words} {name}"
        out |= every_command(command, below) if isinstance(command, click.Group) else {below: command}
    return out


def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "metasync", *words, "--help"],
        env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_help_has_the_everyday_commands_first() -> None:
    shown = help_of()
    names = re.findall(r"^  ([a-z]+)  ", shown, re.MULTILINE)
    assert names[: len(EVERYDAY)] == EVERYDAY
    assert shown.index("Everyday:") < shown.index("Backends:") < shown.index("Options:")
    assert isinstance(cli, Commands)
    grouped = [c.name for commands in cli.by_purpose(click.Context(cli)).values() for c in commands]
    assert grouped == cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("group", ["", "backend", "config", "device", "key"])
def test_no_summary_is_cut_off(group: str) -> None:
    assert "..." not in help_of(*group.split()).replace("[ARGS]...", "")


@pytest.mark.parametrize("words", every_command(cli))
def test_every_command_has_an_example_that_it_would_take(words: str) -> None:
    text = every_command(cli)[words].help or ""
    _, _, example = text.partition("Example:\n")
    assert f"{words} " in f"{example} ".replace("\n", " ").replace("metasync -C ~/Documents", "metasync")


def test_reference_and_man_pages_are_what_the_commands_say() -> None:
    check = [sys.executable, str(REFERENCE / "make.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}run: make reference"


def test_every_command_is_in_the_reference_and_has_a_man_page() -> None:
    reference = (REFERENCE / "commands.md").read_text("utf-8")
    for words in every_command(cli):
        page = REFERENCE / "man" / f"{'-'.join(words.split()[:2])}.1"
        assert f" {words}\n" in reference or words == "metasync"
        assert words.replace("-", "\\-") in page.read_text("utf-8")
    for link in re.findall(r"\(#([a-z-]+)\)", reference):
        assert f"## {link.replace('-', ' ', 1)}\n" in reference


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_are_sound() -> None:
    for page in sorted((REFERENCE / "man").glob("*.1")):
        groff = ["groff", "-man", "-Tutf8", "-ww", "-b", str(page)]
        done = subprocess.run(groff, capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
