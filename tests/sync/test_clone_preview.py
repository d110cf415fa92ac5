"""`clone --dry-run`: how much would come and whether there is room, and nothing is changed anywhere."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from workspace_kit import Lab, run_cli, write

from metasync.sync import clone_preview


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def stored(lab: Lab) -> set[Path]:
    return {p for p in (lab.root / "stores").rglob("*") if p.is_file()}


def test_a_dry_run_counts_and_leaves_nothing_behind(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = lab.root / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with lab.init(lab.urls("a", "b", "c")) as w:
        write(w.directory, {"a": b"1" * 1000, "d/b": b"2" * 500})
        w.push()
    before = stored(lab)
    words = ("clone", str(lab.root / "x" / "desktop"), "--name", "docs", *lab.words("a", "b"), "--dry-run", "--json")
    ran = run_cli(*words)
    assert (ran.code, ran.json["files"], ran.json["bytes"], ran.json["fits"]) == (0, 2, 1500, True)
    assert ran.json["version"] == 1
    assert not (lab.root / "x").exists()
    assert stored(lab) == before
    assert list(scratch.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 100))
    full = run_cli(*words[:-1])
    assert full.code == 1
    assert "The disk has no room for it: 100 B free" in full.out
    monkeypatch.setenv("METASYNC_PASSPHRASE", "hunter2")
    assert run_cli(*words).code == 6
    assert list(scratch.iterdir()) == []


def test_an_invitation_is_not_used_up(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    code = lab.cli("invite", "tablet", "-q").out.strip()
    for _ in range(2):
        ran = run_cli("clone", str(lab.root / "tablet"), "--invite", code, "--dry-run")
        assert ran.code == 0
        assert "0 files" in ran.out
    assert run_cli("clone", str(lab.root / "tablet"), "--invite", code).code == 0


def test_keys_in_the_systems_keyring_go_with_the_folder(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    dropped: list[Path] = []
    drop = clone_preview.drop_secret
    monkeypatch.setattr(clone_preview, "drop_secret", lambda at, db: (dropped.append(at), drop(at, db)))
    assert run_cli("clone", str(lab.root / "y"), "--name", "docs", *lab.words("a", "b"), "--dry-run").code == 0
    assert len(dropped) == 1
