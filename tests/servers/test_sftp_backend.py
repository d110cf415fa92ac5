"""The SFTP backend on OpenSSH's own server: the contract, and what it says when server, folder or key are not right."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import openssh
import pytest
from contract_kit import FULL, SMALL, passes

from metasync.backends._base import Backend
from metasync.backends._registry import open_backend, parse_url
from metasync.testing.contract import CHECKS, Check, Store, check_id

pytestmark = pytest.mark.servers
pytest.importorskip("paramiko")


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(ssh_server: openssh.SshServer, check: Check) -> None:
    passes(check, Store.at(ssh_server.url("contract")), FULL, f"contract-{secrets.token_hex(4)}")
