"""One workspace on every provider at once, on real servers: both forms of voting in one quorum, some of them lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from crash_kit import CHEAP, PASSPHRASE, edit_some, make_tree, quiet_environment, read_tree, same_trees
from crowd_kit import crowd
from providers_kit import clone, urls_of

from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
quiet_environment()


def test_one_workspace_on_all_of_them(providers: dict[str, Any], tmp_path: Path) -> None:
    urls = urls_of(providers, tmp_path)
    rng = random.Random(11)
    one, two = tmp_path / "one", tmp_path / "two"
    make_tree(one, rng, files=80)
    report = Workspace.init(one, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP,
                            device_name="one", replicas=3)  # fmt: skip
    assert report.voters == len(urls)
    with report.workspace as w:
        w.push("first")
        assert w.check().problems == ()
    with clone(two, urls, "two") as w:
        same_trees({"one": read_tree(one), "two": read_tree(two)})
        edit_some(two, rng, 20, "two")
        w.push("from two")
    with Workspace.open(one) as w:
        w.pull()
    same_trees({"one": read_tree(one), "two": read_tree(two)})

    for name in ("s3", "sftp"):  # two away: a quorum is left, and a copy of everything
        providers[name].stop()
    (one / "late").write_bytes(b"while two were away")
    with Workspace.open(one) as w:
        assert w.push("late").version is not None
    with clone(tmp_path / "three", urls, "three"):
        same_trees({"one": read_tree(one), "three": read_tree(tmp_path / "three")})
    for name in ("s3", "sftp"):
        providers[name].start()
    with Workspace.open(two) as w:
        w.pull()
    same_trees({"one": read_tree(one), "two": read_tree(two)})

    providers["gcs"].wipe()
    with Workspace.open(two) as w:
        (two / "later").write_bytes(b"while one was empty")
        assert w.push("one emptied").version is not None
        states = {b.name: b.state for b in w.backends()}
        assert "emptied" in states["gcs"], states
        found = w.check(read_data=True)
        assert not found.lost
        assert {p.backend for p in found.problems} <= {"gcs", "s3", "sftp"}, found.problems
    with clone(tmp_path / "four", urls, "four"):
        same_trees({"two": read_tree(two), "four": read_tree(tmp_path / "four")})


def test_eight_processes_push_at_once_into_all_of_them(providers: dict[str, Any], tmp_path: Path) -> None:
    crowd(tmp_path, [*urls_of(providers, tmp_path).values()], enter=True)
