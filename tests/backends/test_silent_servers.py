"""Servers that take connections and say nothing, met by commands that know nothing of them yet."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from workspace_kit import Lab, run_cli

from metasync.backends._shared.race_probe import keeps_creates
from metasync.backends.memory import MemoryBackend
from metasync.errors import UnreachableError
from metasync.session import open_backend
from metasync.testing.faults import FaultyBackend

SECRET = "hunter2"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that the system accepts connections for, and nobody answers."""
    monkeypatch.setattr(open_backend, "FIRST_ANSWER_S", 0.3)
    monkeypatch.setattr(open_backend, "_opening", {})
    monkeypatch.setenv("METASYNC_WEBDAV_USER", "anna")
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"webdav+http://127.0.0.1:{server.getsockname()[1]}/dav"


def test_init_says_so_soon(lab: Lab, silent: str) -> None:
    url = f"{silent}?name=cloud"
    ran = run_cli("init", str(lab.root / "new"), "--name", "docs", *lab.words("a", "b"), "--backend", url)
    assert ran.code == 1
    assert "cloud: it did not open within 0.3 s" in ran.err
    assert "take connections there and say nothing" in ran.err
    assert SECRET not in ran.out + ran.err
    assert not (lab.root / "new" / ".metasync").exists()


@pytest.mark.usefixtures("lab")
def test_a_check_says_so_soon(silent: str) -> None:
    ran = run_cli("backend", "check", "--quick", silent)
    assert ran.code == 5
    assert "did not open within 0.3 s" in ran.err


def test_a_backend_that_is_added_says_so_soon(lab: Lab, silent: str) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    with pytest.raises(UnreachableError, match=r"cloud: it did not open within 0\.3 s"):
        w.backend_add(f"{silent}?name=cloud")
    assert len(w.backends()) == 3


def test_a_look_that_failed_is_not_followed_by_more_of_the_same() -> None:
    """Each request to a silent server takes a minute."""
    store = FaultyBackend(MemoryBackend())
    store.down = True
    with pytest.raises(UnreachableError):
        keeps_creates(store)
    assert store.calls.total() <= 2, store.calls
