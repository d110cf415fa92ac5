"""One workspace on every provider at once, on real servers: both forms of voting in one quorum, some of them lost."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_kit import CHEAP, PASSPHRASE, edit_some, make_tree, quiet_environment, read_tree, same_trees
from test_contention import crowd

from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
quiet_environment()

LEAST = 5  # providers whose servers can be had here: fewer show little


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One server of each provider that can be had, by scheme; those that are stopped or emptied are this test's own."""
    ways: dict[str, Callable[[], Any]] = {
        "s3": lambda: request.getfixturevalue("own_s3_server"),
        "azure": lambda: request.getfixturevalue("azure_server"),
        "gcs": lambda: request.getfixturevalue("own_gcs_server"),
        "swift": lambda: request.getfixturevalue("swift"),
        "webdav": lambda: request.getfixturevalue("dav_servers")("apache", 1)[0],
        "sftp": lambda: request.getfixturevalue("own_ssh_server"),
    }
    out: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            out[name] = way()
        except pytest.skip.Exception:
            print(f"no server for {name}")
    if len(out) < LEAST:
        pytest.skip(f"servers of only {len(out)} providers can be had here")
    return out


def urls_of(servers: dict[str, Any], root: Path) -> dict[str, str]:
    prefix = f"all-{secrets.token_hex(4)}"
    urls = {name: server.url(prefix) for name, server in servers.items()}
    urls["disk"] = f"file://{root / 'disk'}"
    return {name: f"{url}{'&' if '?' in url else '?'}name={name}" for name, url in urls.items()}


def clone(place: Path, urls: dict[str, str], device: str) -> Workspace:
    return Workspace.clone(
        place, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, device_name=device
    ).workspace


def test_one_workspace_on_all_of_them(servers: dict[str, Any], tmp_path: Path) -> None:
    urls = urls_of(servers, tmp_path)
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
        servers[name].stop()
    (one / "late").write_bytes(b"while two were away")
    with Workspace.open(one) as w:
        assert w.push("late").version is not None
    with clone(tmp_path / "three", urls, "three"):
        same_trees({"one": read_tree(one), "three": read_tree(tmp_path / "three")})
    for name in ("s3", "sftp"):
        servers[name].start()
    with Workspace.open(two) as w:
        w.pull()
    same_trees({"one": read_tree(one), "two": read_tree(two)})

    servers["gcs"].wipe()
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


def test_six_processes_push_at_once_into_all_of_them(servers: dict[str, Any], tmp_path: Path) -> None:
    crowd(tmp_path, [*urls_of(servers, tmp_path).values()], devices=6, enter=True)
