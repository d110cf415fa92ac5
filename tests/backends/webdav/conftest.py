"""A WebDAV server that answers as a test says, and a login that nothing else knows of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dav_kit import PASSWORD, Script, Store, serving


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    for name in ("METASYNC_WEBDAV_USER", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def script() -> Iterator[Script]:
    with serving() as script:
        yield script


@pytest.fixture
def store(script: Script) -> Store:
    script.answer = store = Store()
    return store
