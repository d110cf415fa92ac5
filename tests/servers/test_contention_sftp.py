"""Eight processes that push at once into three SFTP servers; the same test as for folders."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import openssh
import pytest
from crowd_kit import crowd

pytestmark = pytest.mark.servers
pytest.importorskip("paramiko")


@pytest.mark.usefixtures("ssh_server")
def test_eight_processes_push_at_once(ssh_servers: Callable[[int], list[openssh.SshServer]], tmp_path: Path) -> None:
    prefix = f"crowd-{secrets.token_hex(4)}"
    crowd(tmp_path, [server.url(prefix, params=f"?name=s{i}") for i, server in enumerate(ssh_servers(3))])
