"""An S3 server that answers as a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answers_kit import Script, serving


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with serving(Script()) as script:
        yield script
