"""The main job on three SFTP servers: two devices, any one server taken away, one emptied, one in block form."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import openssh
import pytest
from crash_kit import CHEAP, PASSPHRASE, make_tree, quiet_environment, read_tree, same_trees

from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
pytest.importorskip("paramiko")
quiet_environment()

SERVERS = 3


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[openssh.SshServer]]:
    if openssh.find_binary() is None:
        pytest.skip(openssh.MISSING)
    home = openssh.Home(tmp_path / "home")
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    with openssh.running(SERVERS, tmp_path / "servers", home) as running:
        yield running


def clone(place: Path, urls: list[str], device: str) -> Workspace:
    return Workspace.clone(place, name="job", backends=urls, passphrase=PASSPHRASE, device_name=device).workspace


@pytest.mark.parametrize("form", ["log", "block"])
def test_main_job(servers: list[openssh.SshServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """In block form one server of the three looks as if it were not OpenSSH; the others vote in log form."""
    if form == "block":
        other = servers[0].port
        monkeypatch.setattr("metasync.backends.sftp._votes_in_log_form", lambda line: line.server.port != other)
    one, urls = tmp_path / "one", [f"{server.url('job')}?name=s{i}" for i, server in enumerate(servers)]
    make_tree(one, random.Random(5), files=150)
    made = Workspace.init(
        one, name="job", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one", replicas=2
    )
    with made.workspace as w:
        assert w.push("first").version is not None
    two = tmp_path / "two"
    clone(two, urls, "two").close()
    with Workspace.open(one) as w:
        w.push()  # takes the new device in
    tree = read_tree(one)
    for i, server in enumerate(servers):
        server.stop()
        if form == "log":  # in block form a device that is not in yet needs both of the others, and help
            left = urls if i == 0 else [u for u in urls if f"name=s{i}" not in u]  # given and dead, or not given
            place = tmp_path / f"without{i}"
            clone(place, left, f"without{i}").close()
            same_trees({"expected": tree, f"without {i}": read_tree(place)})
        (two / f"from{i}").write_text(f"pushed while server {i} was away\n")
        with Workspace.open(two) as w:
            assert w.push(f"without {i}").version is not None
        tree = read_tree(two)
        server.start()
    with Workspace.open(one) as w:
        w.pull()
    same_trees({"one": read_tree(one), "two": read_tree(two)})
    servers[2].wipe()  # the others are a quorum, and hold a copy of everything
    (two / "more").write_text("pushed while one store was empty\n")
    with Workspace.open(two) as w:
        assert w.push("one emptied").version is not None
    with Workspace.open(one) as w:
        w.pull()
        found = w.check(read_data=True)
        assert not found.lost
        emptied = "cannot be reached: replaced: its birth object is missing: it was emptied"
        assert found.problems
        assert {p.problem for p in found.problems} <= {"missing", emptied}
    same_trees({"one": read_tree(one), "two": read_tree(two)})
