"""The command line prints what the transcripts in tests/cli show, and its JSON is what the schemas say."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import click
import json_schemas
import pytest
from transcripts import FOLDER, Player, Step, play, read, rewrite
from workspace_kit import CHEAP, PASSPHRASE, Lab, run_cli, run_process

from metasync.cli import cli
from metasync.session import open_backend
from metasync.testing import contract, many_callers
from metasync.workspace import Workspace

WRITE = os.environ.get("METASYNC_TRANSCRIPTS") == "write"
FILES = sorted(FOLDER.glob("*.txt"))
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7}  # 130 needs a signal: see test_exit_codes


@pytest.mark.few(8)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(lab: Lab, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    lab.hurry(3.0 if "no quorum of" in path.read_text("utf-8") else 30.0)  # else what answers is heard, however late
    monkeypatch.setitem(Workspace.init.__func__.__kwdefaults__, "kdf", CHEAP)
    monkeypatch.setattr(open_backend, "default_device_name", lambda: "laptop")
    monkeypatch.setattr(contract, "QUICK", replace(contract.QUICK, kills=1))
    monkeypatch.setattr(many_callers, "_MET_SHARE", 0.0)  # a busy machine lets few of them meet
    monkeypatch.setenv("METASYNC_PASSPHRASE", PASSPHRASE)
    monkeypatch.chdir(work)
    player = Player(work, monkeypatch.setenv, monkeypatch.chdir)
    seen = []
    for step, lines in play(path, player):
        seen.append(lines)
        if not WRITE:
            assert lines == step.shown, f"{path.name}: $ {step.command}"
    if WRITE:
        rewrite(path, seen)


def commands(group: click.Group, before: str = "") -> set[str]:
    """Every command that can be typed, with its group."""
    out = set()
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        out |= commands(command, f"{before}{name} ") if isinstance(command, click.Group) else {before + name}
    return out


def test_every_command_and_exit_code_has_a_transcript() -> None:
    steps = [item for path in FILES for item in read(path) if isinstance(item, Step)]
    typed = [re.sub(r" -C \S+", "", s.command) for s in steps]
    shown = {c for c in commands(cli) if any(t.startswith(f"metasync {c}") for t in typed)}
    assert commands(cli) - shown == set()
    ends = {int(line[6:-1]) for s in steps for line in s.shown if line.startswith("[exit ")} | {0}
    assert EXIT_CODES - ends == set()
    as_json = {c for c in commands(cli) if any(t.startswith(f"metasync {c}") and "--json" in t for t in typed)}
    assert commands(cli) - as_json - {"demo"} == set()


def test_every_command_has_a_schema_and_each_is_as_the_types_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(json_schemas.COMMANDS) == commands(cli) - {"demo"}
    monkeypatch.setattr(sys, "argv", ["json_schemas.py", "--check"])
    assert json_schemas.main() == 0, "run: python tests/kits/json_schemas.py"


@pytest.mark.long
def test_the_demo_in_json_is_a_document(tmp_path: Path) -> None:
    """It printed nothing at all, not even where --keep had left its folder."""
    shown = run_process("demo", "--json", cwd=tmp_path)
    assert (shown.code, shown.json["command"], shown.json["exit_code"]) == (0, "demo", 0)
    assert shown.json["lines"][0].startswith("1. ")
    assert run_process("demo", "--quiet", cwd=tmp_path) == (0, "", "")


def test_every_document_says_what_travelled(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    where = str(lab.root / "laptop")
    (lab.root / "laptop" / "f").write_bytes(b"x" * 20_000)
    went = run_cli("-C", where, "push", "--json").json["travelled"]
    assert went["requests"] >= 2 + 3 + 3, "packs, promises and votes"
    assert went["up_bytes"] >= 3 * (1024 + 1536), "an entry of each kind on each backend"
    assert went["down_bytes"] > 0
    assert run_cli("-C", where, "config", "list", "--json").json["travelled"]["requests"] == 0
    failed = run_cli("-C", where, "log", "nothing", "--json")
    assert failed.code == 2
    assert set(failed.json["travelled"]) == {"requests", "up_bytes", "down_bytes"}


def test_init_and_clone_in_json_give_the_phrase_and_the_version(lab: Lab) -> None:
    """They printed an error of ours in its place: the recovery phrase, shown once, was lost."""
    made = run_cli("init", str(lab.root / "laptop"), "--name", "docs", "--json", *lab.words("a", "b", "c"))
    assert made.code == 0
    assert len(made.json["recovery_phrase"].split()) in (12, 24)
    assert "workspace" not in made.json
    cloned = run_cli("clone", str(lab.root / "desktop"), "--name", "docs", "--json", *lab.words("a", "b"))
    assert (cloned.code, cloned.json["version"], cloned.json["unlinked"]) == (0, 1, ["c"])
