"""The Dropbox backend on its stand-in: the contract, by Dropbox's own library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_kit import SMALL, passes
from servers.dropbox_standin import DropboxStandin

from metasync.backends.dropbox import DropboxBackend
from metasync.testing.contract import CHECKS, Check, Store, check_id


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(check: Check, opened: Callable[..., DropboxBackend], standin: DropboxStandin) -> None:
    passes(check, Store(opened), SMALL)


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract_between_processes(
    check: Check, opened: Callable[..., DropboxBackend], standin: DropboxStandin
) -> None:
    passes(check, Store(opened, "dropbox:/top/ws"), SMALL)
