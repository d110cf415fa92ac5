"""The sessions in README, tutorial and how-to pages, and the README's library example, are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import example_kit
import pytest

ROOT = Path(__file__).parents[2]


def _blocks(page: str, language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert found, f"{page} has {language} blocks that are run"
    return "".join(found)


METASYNC = f"""#!{sys.executable}
import sys
from metasync.keys import slots
slots.COST = slots.Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
from metasync.__main__ import main
sys.exit(main())
"""
"""The command with the cheapest stretching of passphrases, which is half the time of a session."""


def _environment(tmp_path: Path) -> dict[str, str]:
    scripts = tmp_path / ".bin"
    scripts.mkdir()
    (scripts / "metasync").write_text(METASYNC)
    (scripts / "metasync").chmod(0o755)
    path = f"{scripts}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "METASYNC_KEYRING": "off", "PATH": path, "HOME": str(tmp_path)}


HOWTO = [p for p in sorted((ROOT / "docs" / "howto").glob("*.md")) if "```console" in p.read_text()]
PAGES = [
    "README.md",
    *(pytest.param(page, marks=pytest.mark.pages) for page in ("docs/tutorial.md", "docs/compare.md")),
    *(pytest.param(f"docs/howto/{p.name}", marks=pytest.mark.pages) for p in HOWTO),
]


@pytest.mark.parametrize("page", PAGES)
def test_console_session(tmp_path: Path, page: str) -> None:
    """Every command succeeds, and every line shown is printed by the command above it; `...` stands for any text."""
    script = ["set -eu"]
    expected: list[list[str]] = []
    for line in _blocks(page, "console").splitlines():
        if line.startswith("$ "):
            script += [f"echo '@@{len(expected)}'", line[2:]]
            expected.append([])
        elif line:
            expected[-1].append(line)
    environment = _environment(tmp_path)
    if page == example_kit.PAGE:
        environment["PYTHONPATH"] = example_kit.install(tmp_path / "site")
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = re.split(r"^@@\d+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(expected)
    for output, lines in zip(outputs, expected, strict=True):
        printed = output.splitlines()
        for line in lines:
            wanted = re.compile(re.escape(line).replace(re.escape("..."), ".*"))
            assert any(map(wanted.fullmatch, printed)), f"{line!r} is not in {output!r}"


def test_library_example(tmp_path: Path) -> None:
    code = _blocks("README.md", "python").replace("/tmp/metasync-readme", str(tmp_path / "stores"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 ['today.txt']", "['hello']"]
