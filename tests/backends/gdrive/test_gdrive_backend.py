"""The Google Drive backend on its stand-in: the contract, by Google's own library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_kit import SMALL, passes
from servers.gdrive_standin import GoogleDriveStandin

from metasync.backends.gdrive import GoogleDriveBackend
from metasync.testing.contract import CHECKS, Check, Store, check_id

DATA = [check for check in CHECKS if check.needed_for == "data"]
VOTES = [check for check in CHECKS if check.needed_for == "voting"]


@pytest.mark.few(3)
@pytest.mark.parametrize("check", DATA, ids=check_id)
def test_contract(check: Check, opened: Callable[..., GoogleDriveBackend], standin: GoogleDriveStandin) -> None:
    passes(check, Store(opened), SMALL)


@pytest.mark.long
@pytest.mark.parametrize("check", VOTES, ids=check_id)
def test_what_voters_promise(
    check: Check, opened: Callable[..., GoogleDriveBackend], standin: GoogleDriveStandin
) -> None:
    """Nothing rests on it. The stand-in, whose searches are not late, shows that twins give way to one."""
    passes(check, Store(opened), SMALL)
