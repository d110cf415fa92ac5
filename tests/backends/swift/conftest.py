"""A Swift cluster that answers as a test says, and no credentials but its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from swift_fake import KEY, Fake, serving


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OS_", "ST_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("ST_USER", "test:tester")
    monkeypatch.setenv("ST_KEY", KEY)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as fake:
        yield fake
