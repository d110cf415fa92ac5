"""The WebDAV backend on real servers: the contract, and what it says when server, folder or login are not right."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
import webdav
from contract_kit import FULL, SMALL, passes

from metasync.testing.contract import CHECKS, Check, Store, check_id
from metasync.testing.verdict import NEEDS_ATOMIC_CREATE

pytestmark = pytest.mark.servers

SCALE = {
    "apache": replace(FULL, listed_names=1200, kills=3, big_again=3, versions=40),
    "wsgidav": replace(SMALL, listed_names=400, big_bytes=8 << 20, versions=40),  # 5 ms of its CPU for a request
}
RACES = {"race", "big-race"}  # that several win is what these servers are here for


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name not in RACES], ids=check_id)
def test_contract(dav_server: webdav.DavServer, check: Check) -> None:
    """All that holding data needs, all that voting in block form needs, and create as long as nobody races."""
    assert set(NEEDS_ATOMIC_CREATE) >= RACES
    url = dav_server.url("some/place")
    passes(check, Store.at(url), SCALE[dav_server.kind], f"contract-{secrets.token_hex(4)}")
