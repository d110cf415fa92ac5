"""Tab completion, in the protocols of the shells: what is offered, and how little is loaded for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from workspace_kit import Lab, write

from metasync.cli import cli

SDKS = {"obstore", "requests", "swiftclient", "paramiko", "keyring", "cryptography"}


def completed(shell: str, line: str) -> list[str]:
    """What a shell is offered for the last word of a line, in the protocol of the script that it was given."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_METASYNC_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "metasync"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines() if done.stdout.strip() else []


def test_bash_completes_commands_and_options() -> None:
    assert completed("bash", "metasync pu") == ["plain,push", "plain,pull"]
    assert completed("bash", "metasync backend re") == ["plain,remove"]
    assert completed("bash", "metasync push --du") == ["plain,--durability"]
    assert completed("bash", "metasync completion f") == ["plain,fish"]
    assert completed("bash", "metasync -C somewhere resolve notes.txt --keep t") == ["plain,theirs"]
    assert completed("bash", "metasync restore 3 no") == ["file,no"]


def test_zsh_and_fish_are_told_what_each_is_for() -> None:
    assert completed("zsh", "metasync res") == [
        "plain", "restore", *summary("restore"), "plain", "resolve", *summary("resolve"),
        "plain", "resume", *summary("resume"),
    ]  # fmt: skip
    assert completed("fish", "metasync cle") == []
    assert completed("fish", "metasync clo") == [f"plain,clone\t{summary('clone')[0]}"]


def summary(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [command.get_short_help_str()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_as_it_is_answered(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metasync", "completion", shell], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"_METASYNC_COMPLETE={shell}_complete" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    typed = (
        'eval "$(metasync completion bash)"; COMP_WORDS=(metasync backend ch); COMP_CWORD=2;'
        '_metasync_completion metasync; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "check\n"


def test_completing_loads_no_workspace_and_no_provider() -> None:
    code = (
        "import sys, metasync.cli\n"
        "try: metasync.cli.main([])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    environment = {**os.environ, "_METASYNC_COMPLETE": "zsh_complete", "COMP_WORDS": "metasync ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "init" in done.stdout.splitlines()
    loaded = set(done.stderr.split())
    assert loaded & SDKS == set()
    assert {
        m for m in loaded if m.startswith(("metasync.workspace", "metasync.backends.", "metasync.consensus"))
    } == set()


def test_names_that_this_device_knows_are_offered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, as a shell asks: what stands in the local state, and no network."""
    w = lab.init(lab.urls("away", "box", "big"))
    write(w.directory, {"a": b"a"})
    w.push()
    w.close()
    (lab.root / "stores").rename(lab.root / "elsewhere")  # none of them answers, and none is asked
    there = ["-C", str(w.directory)]

    def offered(*words: str) -> list[str]:
        *before, typed = words
        found = ShellComplete(cli, {}, "metasync", "_").get_completions([*there, *before], typed)
        return [item.value for item in found]

    assert offered("backend", "remove", "b") == ["big", "box"]
    assert offered("backend", "add", "file:///x", "--replace", "") == ["away", "big", "box"]
    assert offered("recover", "--without", "a") == ["away"]
    assert offered("device", "revoke", "") == ["laptop"]
    assert offered("device", "confirm", "laptop", "bo") == ["box"]
    assert offered("restore", "") == ["latest", "base", "2", "1"] or offered("restore", "") == ["latest", "base", "1"]
    assert offered("diff", "la") == ["latest"]
    assert offered("config", "set", "limit.up") == ["limit.up", "limit.up.away", "limit.up.big", "limit.up.box"]
    there[1] = str(lab.root)
    assert offered("backend", "remove", "") == []
