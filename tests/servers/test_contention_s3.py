"""Eight processes that push at once into three S3 servers; the same test as for folders."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import s3
from crowd_kit import crowd

pytestmark = pytest.mark.servers


def test_eight_processes_push_at_once(s3_servers: Callable[[int], list[s3.S3Server]], tmp_path: Path) -> None:
    prefix = f"crowd-{secrets.token_hex(4)}"
    crowd(tmp_path, [server.url(prefix) + f"&name=s{i}" for i, server in enumerate(s3_servers(3))])


def test_a_server_goes_down_in_the_crowd(s3_keys: dict[str, str], tmp_path: Path) -> None:
    """One of three is away from the second round on: all pushes go through all the same."""
    binary = s3.find_binary()
    if binary is None:
        pytest.skip("no versitygw: tests/servers/run.sh fetches it")
    with s3.running(3, tmp_path / "servers", s3_keys, binary) as servers:

        def outage(number: int) -> None:
            if number == 1:
                servers[1].stop()
            if number == 2:
                servers[1].start()

        urls = [server.url() + f"&name=s{i}" for i, server in enumerate(servers)]
        crowd(tmp_path, urls, devices=4, before_round=outage, sick={"s1"})
