"""Workspaces over WebDAV servers, which race on purpose: devices push and pull, all at once as well."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import webdav
from crash_kit import CHEAP, NAME, PASSPHRASE
from crowd_kit import crowd

from metasync.events import Event
from metasync.workspace import Workspace

pytestmark = pytest.mark.servers

Servers = Callable[[webdav.Kind, int], list[webdav.DavServer]]


def _three(servers: Servers) -> list[str]:
    """One Apache and two wsgidav."""
    name = f"ws-{secrets.token_hex(4)}"
    apart = [*servers("apache", 1), *servers("wsgidav", 2)]
    return [f"{server.url(name)}?name=dav{i}" for i, server in enumerate(apart)]


def _mixed(servers: Servers, root: Path) -> list[str]:
    """Two WebDAV servers that vote in block form and two folders that vote in log form: no quorum without both."""
    name = f"ws-{secrets.token_hex(4)}"
    apart = [*servers("apache", 1), *servers("wsgidav", 1)]
    urls = [f"{server.url(name)}?name=dav{i}" for i, server in enumerate(apart)]
    return urls + [f"file://{root}/folder{i}?name=folder{i}" for i in range(2)]


def test_two_devices(dav_servers: Servers, tmp_path: Path) -> None:
    urls = _three(dav_servers)
    heard: list[Event] = []
    first = tmp_path / "first"
    first.mkdir()
    (first / "a").write_bytes(b"a\n" * 1000)
    (first / "big").write_bytes(secrets.token_bytes(3 << 20))
    with Workspace.init(
        first, name=NAME, backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one", on_event=heard.append
    ).workspace as one:
        one.push("first")
        assert sum("block form" in str(event) for event in heard) == 3
        assert all(not b.warning for b in one.backends())
        with Workspace.clone(
            tmp_path / "second", name=NAME, backends=urls, passphrase=PASSPHRASE, device_name="two"
        ).workspace as two:
            assert (tmp_path / "second" / "big").read_bytes() == (first / "big").read_bytes()
            one.push()  # takes the second device in
            (tmp_path / "second" / "b").write_bytes(b"b\n")
            two.push("second")
            one.pull()
            assert (first / "b").read_bytes() == b"b\n"
            (first / "a").unlink()
            one.push("third")
            two.pull()
            assert not (tmp_path / "second" / "a").exists()
        report = one.check(read_data=True)
        assert not report.lost
        assert not report.problems
    with Workspace.open(first) as again:
        assert again.pull().version is not None


def test_six_processes_push_at_once(dav_servers: Servers, tmp_path: Path) -> None:
    crowd(tmp_path, _three(dav_servers), devices=6, enter=True)


def test_four_processes_push_at_once_into_a_mixed_quorum(dav_servers: Servers, tmp_path: Path) -> None:
    crowd(tmp_path, _mixed(dav_servers, tmp_path), devices=4, enter=True)


def test_a_server_goes_down_in_the_crowd(dav_env: dict[str, str], dav_servers: Servers, tmp_path: Path) -> None:
    """One of three is away from the second round on: all pushes go through all the same."""
    urls = _three(dav_servers)[1:]
    with webdav.running("wsgidav", 1, tmp_path / "server", dav_env) as [sick]:

        def outage(number: int) -> None:
            if number == 1:
                sick.stop()
            if number == 2:
                sick.start()

        urls.append(f"{sick.url('ws')}?name=sick")
        crowd(tmp_path, urls, devices=3, before_round=outage, sick={"sick"}, enter=True)
