"""Releases that can be verified: the same bytes from the same commit, and locks with a hash for every file."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository")
def test_a_commit_has_one_wheel_and_one_sdist(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever builds the commit gets the bytes of the release, wherever and under whatever umask."""
    files = script("dist").twice("HEAD")
    assert sorted(name.rpartition(".")[2] for name in files) == ["gz", "whl"]


def test_other_bytes_are_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = script("dist")
    monkeypatch.setattr(dist, "epoch_of", lambda _: "0")
    monkeypatch.setattr(dist, "exported", lambda _, to: to)
    monkeypatch.setattr(dist, "built", lambda source, *_, **__: {"metasync.whl": source.name.encode()})
    with pytest.raises(SystemExit, match="other bytes: metasync"):
        dist.twice("HEAD")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_a_lock_has_a_hash_for_each_package_and_no_place(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^\S+ @ ", text, re.MULTILINE)
    packages = re.findall(r"^([a-z0-9-]+)==(\S+) (.*)$", text, re.MULTILINE)
    assert packages
    assert all(rest == "\\" for _, _, rest in packages), "a package without a hash"


def test_the_locks_hold_what_the_wheel_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [need for name, needs in project["optional-dependencies"].items() for need in needs
              if name not in ("all", "dev", "docs", "release")]  # fmt: skip
    for lock, needs in (("requirements.lock", []), ("requirements-all.lock", extras)):
        held = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text("utf-8"), re.MULTILINE))
        assert {re.split(r"[^\w-]", need)[0] for need in (*project["dependencies"], *needs)} <= held
    dev = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements-dev.lock").read_text("utf-8"), re.MULTILINE))
    everything = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements-all.lock").read_text("utf-8"), re.MULTILINE)
    assert {name: v for name, v in everything if dev.get(name) != v} == {}, "not what is tested: make lock"


def test_an_audit_without_a_database_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No answer is not "nothing is known"; a finding ends with 1."""
    audit = script("audit")
    tool = tmp_path / "pip-audit"

    def says(text: str, code: int) -> int:
        tool.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({code})\n")
        tool.chmod(0o755)
        return int(audit.main(str(tool)))

    assert says("connection refused", 1) == 2
    assert "no database" in capsys.readouterr().out
    assert says('{"dependencies": [{"name": "click", "version": "8", "vulns": []}]}', 0) == 0
    skipped = '{"name": "click", "skip_reason": "not found, and could not be audited"}'
    assert says(f'{{"dependencies": [{skipped}]}}', 0) == 2, "a mirror that knows no vulnerabilities is no database"
    assert "no database" in capsys.readouterr().out
    bad = '{"name": "click", "version": "8", "vulns": [{"id": "CVE-1", "fix_versions": ["9"]}]}'
    assert says(f'{{"dependencies": [{bad}]}}', 1) == 1
    assert "click 8: CVE-1, mended in 9" in capsys.readouterr().out


def test_how_to_report_names_no_address_that_is_made_up() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    assert "in private" in text
    assert not re.search(r"\S+@\S+|https?://", text)
