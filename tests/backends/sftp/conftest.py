"""An SSH server that answers as a test says, and backends that are closed after a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from sftp_kit import Opened, Script, serving

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name, value in {"HOME": str(tmp_path), "SSH_AUTH_SOCK": "", "METASYNC_KEYRING": "off"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("METASYNC_SFTP_PASSWORD", raising=False)
    (tmp_path / ".ssh").mkdir()
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / ".ssh/id_ecdsa"))
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens backends that are closed after the test."""
    found: list[Backend] = []

    def open_it(script: Script) -> Backend:
        found.append(open_backend(parse_url(script.url())))
        return found[-1]

    yield open_it
    for backend in found:
        backend.close()
