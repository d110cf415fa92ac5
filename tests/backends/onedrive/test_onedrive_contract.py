"""The conformance kit on the OneDrive backend, by a personal account and by one of work or school."""

from __future__ import annotations

import pytest
from contract_kit import SMALL, passes
from servers.onedrive_standin import OneDriveStandin

from metasync.backends.api import Backend, Cautions, ExplainsForm, Inventories, Probes, TellsDigests, TellsSpace
from metasync.backends.onedrive import OneDriveBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.testing.contract import CHECKS, Check, Store, check_id

URL = "onedrive:/metasync/one"


@pytest.mark.few(5)
@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(standin: OneDriveStandin, check: Check) -> None:
    standin.page = 40
    open_backend(parse_url(URL), create_root=True).close()
    passes(check, Store(lambda: open_backend(parse_url(URL)), URL), SMALL)


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name in ("inventory", "delete", "list")], ids=check_id)
def test_contract_at_work(standin: OneDriveStandin, check: Check) -> None:
    standin.switches.is_business, standin.page = True, 3
    open_backend(parse_url(URL), create_root=True).close()
    passes(check, Store(lambda: open_backend(parse_url(URL)), URL), SMALL)


def test_powers(backend: OneDriveBackend) -> None:
    for power in (Backend, TellsSpace, TellsDigests, Inventories, ExplainsForm, Probes):
        assert isinstance(backend, power)
    assert not isinstance(backend, Cautions)
    assert backend.probe() == "block"
