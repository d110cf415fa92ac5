"""The Box backend on its stand-in: the contract, by Box's own library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_kit import SMALL, passes
from servers.box_standin import BoxStandin

from metasync.backends.box import BoxBackend
from metasync.testing.contract import CHECKS, Check, Store, check_id


@pytest.mark.few(5)
@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(check: Check, opened: Callable[..., BoxBackend], standin: BoxStandin) -> None:
    passes(check, Store(opened), SMALL)


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract_between_processes(check: Check, opened: Callable[..., BoxBackend], standin: BoxStandin) -> None:
    passes(check, Store(opened, "box:/top/ws"), SMALL)
