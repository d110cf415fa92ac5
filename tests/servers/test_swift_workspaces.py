"""Whole workspaces over Swift, in block form: alone, and in one quorum with folders in log form."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import swift_server
from crash_kit import CHEAP, PASSPHRASE, quiet_environment, read_tree, same_trees
from crowd_kit import crowd

from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
quiet_environment()


def three_containers(server: swift_server.SwiftServer) -> list[str]:
    """Stores of their own, each in a container of its own."""
    names = [f"c{i}-{secrets.token_hex(4)}" for i in range(3)]
    for name in names:
        server.make_container(name)
    return [f"{server.url('w', container=name)}&name=s{i}" for i, name in enumerate(names)]


def mixed(server: swift_server.SwiftServer, root: Path, folders: int) -> list[str]:
    """Some Swift containers, and folders: three in all."""
    out = three_containers(server)[: 3 - folders]
    for i in range(folders):
        (root / f"folder{i}").mkdir()
        out.append(f"file://{root}/folder{i}?name=f{i}")
    return out


def clone(place: Path, urls: list[str], device: str) -> Workspace:
    return Workspace.clone(place, name="job", backends=urls, passphrase=PASSPHRASE, device_name=device).workspace


@pytest.mark.parametrize("folders", [0, 1, 2])
def test_push_clone_pull(swift: swift_server.SwiftServer, tmp_path: Path, folders: int) -> None:
    urls = mixed(swift, tmp_path, folders)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / "sub").mkdir()
    for i in range(30):
        (one / "sub" / f"f{i}").write_bytes(b"%d\n" % i * (1 + 1000 * (i % 3)))
    w = Workspace.init(one, name="job", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one").workspace
    with w:
        assert w.push("first").version is not None
        with clone(two, urls, "two") as c:
            same_trees({"one": read_tree(one), "two": read_tree(two)})
            w.push()  # takes the second device in, where Swift alone decides
            (two / "mine").write_text("by two\n")
            assert c.push("second").version is not None
        w.pull()
        same_trees({"one": read_tree(one), "two": read_tree(two)})
        found = w.check(read_data=True)
        assert not (found.problems or found.lost or found.short), found


def test_devices_push_at_once_over_swift_alone(swift: swift_server.SwiftServer, tmp_path: Path) -> None:
    crowd(tmp_path, three_containers(swift), devices=4, rounds=1, enter=True)


def test_eight_devices_push_at_once_over_both_forms(swift: swift_server.SwiftServer, tmp_path: Path) -> None:
    crowd(tmp_path, mixed(swift, tmp_path, 2), devices=8, rounds=1)


def test_swift_goes_away_and_comes_back(own_swift: swift_server.SwiftServer, tmp_path: Path) -> None:
    """One of three acceptors: the two folders decide without it, and it takes part again afterwards."""
    urls = mixed(own_swift, tmp_path, 2)
    one = tmp_path / "one"
    one.mkdir()
    (one / "a").write_text("a\n")
    with Workspace.init(
        one, name="job", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one"
    ).workspace as w:
        w.push("with all")
    own_swift.stop()
    with Workspace.open(one) as w:
        (one / "b").write_text("b\n")
        assert w.push("without Swift").version is not None
    own_swift.start()
    (tmp_path / "folder0").rename(tmp_path / "away")
    with Workspace.open(one) as w:
        (one / "c").write_text("c\n")
        assert w.push("Swift decides").version is not None
    (tmp_path / "away").rename(tmp_path / "folder0")
    with clone(tmp_path / "two", urls, "two"):
        same_trees({"one": read_tree(one), "two": read_tree(tmp_path / "two")})
