"""Where a device keeps its keys: what the system's keyring gives back is not taken on trust."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from metasync.backends._shared.credentials import drop_from_keyring, to_keyring
from metasync.errors import WorkspaceError
from metasync.session import folder


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a keyring holds, by account."""
    kept: dict[str, Any] = {}
    ring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    ring.errors = errors  # type: ignore[attr-defined]
    ring.set_password = lambda _, account, value: kept.__setitem__(account, value)  # type: ignore[attr-defined]
    ring.get_password = lambda _, account: kept.get(account)  # type: ignore[attr-defined]
    ring.delete_password = lambda _, account: kept.pop(account)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", ring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    monkeypatch.delenv("METASYNC_KEYRING", raising=False)
    return kept


def test_keys_come_back_from_the_keyring(tmp_path: Path, entries: dict[str, Any]) -> None:
    folder.keep_secret(tmp_path, "device x", b"secret")
    assert (tmp_path / folder.KEYS_FILE).read_bytes() == folder.IN_KEYRING
    assert folder.kept_secret(tmp_path, "device x") == b"secret"


@pytest.mark.parametrize("value", [None, "", "not base64!", "\u00e9", "YQ", base64.b64encode(b"x").decode() + "\n=="])
def test_an_entry_that_is_not_ours_is_no_traceback(tmp_path: Path, entries: dict[str, Any], value: str | None) -> None:
    folder.keep_secret(tmp_path, "device x", b"secret")
    entries["device x"] = value
    with pytest.raises(WorkspaceError, match="keyring"):
        folder.kept_secret(tmp_path, "device x")


def test_a_keyring_that_gives_back_something_else_is_not_used(tmp_path: Path, entries: dict[str, Any]) -> None:
    sys.modules["keyring"].set_password = lambda _, account, value: entries.__setitem__(account, "?")  # type: ignore[attr-defined]
    folder.keep_secret(tmp_path, "device x", b"secret")
    assert (tmp_path / folder.KEYS_FILE).read_bytes() == b"secret"


def test_a_secret_is_dropped_whatever_the_environment_says_now(
    entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert to_keyring("device x", "secret")
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    assert not to_keyring("device y", "secret")
    drop_from_keyring("device x")
    assert entries == {}


def test_without_the_package_nothing_is_kept_and_nothing_has_to_be_dropped(
    entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the secret was kept: a login is forgotten all the same."""
    assert to_keyring("device x", "secret")
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert not to_keyring("device x", "another")
    drop_from_keyring("device x")
    assert entries == {"device x": "secret"}
