"""The example of docs/howto/write-a-backend.md is a backend: its own test passes, and a workspace lies on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import example_kit
import pytest
from workspace_kit import PASSPHRASE, run_process

from metasync.backends import api

pytestmark = pytest.mark.pages

SMALL_ENOUGH = {"metasync_sqlite.py": 140, "test_metasync_sqlite.py": 30, "pyproject.toml": 12}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", example_kit.install(tmp_path / "site"))
    return tmp_path / "site"


def test_the_page_shows_a_whole_package() -> None:
    shown = example_kit.files()
    assert shown.keys() == SMALL_ENOUGH.keys()
    for name, most in SMALL_ENOUGH.items():
        assert len(shown[name].splitlines()) <= most, f"{name} is an example that is read"
    assert "metasync.backends._" not in "".join(shown.values()), "what is imported is meant for others"


def test_its_own_test_passes(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_metasync_sqlite.py"],
        cwd=installed, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"2\d passed", done.stdout)


def test_a_workspace_lies_on_it(installed: Path, tmp_path: Path) -> None:
    env = {"METASYNC_PASSPHRASE": PASSPHRASE, "METASYNC_KEYRING": "off", "HOME": str(tmp_path)}
    urls = [f"sqlite://{tmp_path}/{n}.db?name={n}" for n in "abc"]
    words = [word for url in urls for word in ("--backend", url)]
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop/a.txt").write_text("hello")
    made = run_process("init", "laptop", "--name", "docs", *words, cwd=tmp_path, env=env)
    assert made.code == 0, made.err
    assert "a votes on the word of the package that provides sqlite URLs: it is not MetaSync's own" in made.err
    assert run_process("push", cwd=tmp_path / "laptop", env=env).code == 0
    cloned = run_process("clone", "desktop", "--name", "docs", *words, cwd=tmp_path, env=env)
    assert cloned.code == 0, cloned.err
    assert (tmp_path / "desktop/a.txt").read_text() == "hello"
    os.replace(tmp_path / "b.db", tmp_path / "gone.db")
    (tmp_path / "laptop/a.txt").write_text("hello again")
    assert run_process("push", cwd=tmp_path / "laptop", env=env).code == 0, "two of three are a majority"
    status = run_process("status", cwd=tmp_path / "laptop", env=env)
    assert "there is no file" in status.out + status.err


def test_storage_only_is_the_users_own_judgement(installed: Path, tmp_path: Path) -> None:
    env = {"METASYNC_PASSPHRASE": PASSPHRASE, "METASYNC_KEYRING": "off", "HOME": str(tmp_path)}
    urls = [f"file://{tmp_path}/stick?name=stick", f"sqlite://{tmp_path}/a.db?name=a&role=storage"]
    words = [word for url in urls for word in ("--backend", url)]
    made = run_process("init", "laptop", "--name", "docs", *words, cwd=tmp_path, env=env)
    assert made.code == 0, made.err
    assert "votes on the word" not in made.err
    listed = run_process("backend", "list", cwd=tmp_path / "laptop", env=env)
    (line,) = [line for line in listed.out.splitlines() if line.split()[:1] == ["a"]]
    assert "vote" not in line


def test_what_others_import_has_the_contract_in_it() -> None:
    assert all(hasattr(api, name) for name in api.__all__)
    assert {"Backend", "Listed", "Space", "BackendUrl", "LogForm", "Cautions", "TellsDigests"} <= set(api.__all__)
