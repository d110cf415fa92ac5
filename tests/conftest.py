"""What holds for every test: Ctrl-C reaches child processes, and the target says how many examples a property tries.

`make test` proves: few examples, the same ones each time. `make test-long` explores: it takes the profile `long`, which
tries more, and other ones each time. No example has a deadline, because a busy machine is no bug.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from workspace_kit import Lab, laboratory

always = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", always, max_examples=25, derandomize=True)
settings.register_profile("long", always, max_examples=200, print_blob=True)
settings.load_profile("few")


def pytest_configure() -> None:
    """Gives Ctrl-C its usual meaning, also under `nohup` and in a background job, where it begins as ignored.

    Tests press it in child processes, which inherit what is ignored here.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps the collector of garbage away from what lives to the end: 8,000 tests, a tenth of the CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    """Named stores that can be broken and devices on them, below one temporary folder."""
    with laboratory(tmp_path, monkeypatch, capsys) as made:
        yield made
