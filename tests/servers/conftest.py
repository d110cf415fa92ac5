"""Real servers for the tests in this folder: started once a session, each on a port and a folder of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

import azurite  # noqa: E402  (found by the line above, however pytest was started)
import fakegcs  # noqa: E402
import openssh  # noqa: E402
import providers_kit  # noqa: E402
import s3  # noqa: E402
import swift_server  # noqa: E402
import webdav  # noqa: E402


@pytest.fixture(scope="session")
def s3_keys() -> Iterator[dict[str, str]]:
    """The key of every server of this session, also set in the environment while it lasts."""
    keys = s3.make_keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        for name, value in keys.items():
            patch.setenv(name, value)
        yield keys


@pytest.fixture(scope="session")
def s3_servers(
    s3_keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], list[s3.S3Server]]]:
    """`s3_servers(n)`: n independent servers that all tests of the session share; more are started when asked for."""
    binary = s3.find_binary()
    if binary is None:
        pytest.skip("no versitygw: tests/servers/run.sh fetches it")
    with contextlib.ExitStack() as stack:
        started: list[s3.S3Server] = []

        def at_least(count: int) -> list[s3.S3Server]:
            if count > len(started):
                root = tmp_path_factory.mktemp("s3")
                started.extend(stack.enter_context(s3.running(count - len(started), root, s3_keys, binary)))
            return started[:count]

        yield at_least


@pytest.fixture
def s3_server(s3_servers: Callable[[int], list[s3.S3Server]]) -> s3.S3Server:
    """One server, shared by the session."""
    return s3_servers(1)[0]


@pytest.fixture
def own_s3_server(s3_keys: dict[str, str], tmp_path: Path) -> Iterator[s3.S3Server]:
    """A server for this test alone: to stop, start and damage."""
    binary = s3.find_binary()
    if binary is None:
        pytest.skip("no versitygw: tests/servers/run.sh fetches it")
    with s3.running(1, tmp_path, s3_keys, binary) as servers:
        yield servers[0]


# Azure and Google Cloud Storage


@pytest.fixture(scope="session")
def azure_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], list[azurite.AzuriteServer]]]:
    """`azure_servers(n)`: n servers with one account, whose key is in the environment while the session lasts."""
    binary = azurite.find_binary()
    if binary is None:
        pytest.skip(azurite.missing())
    keys = azurite.make_keys()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in keys.items():
            patch.setenv(name, value)
        started: list[azurite.AzuriteServer] = []

        def at_least(count: int) -> list[azurite.AzuriteServer]:
            if count > len(started):
                root = tmp_path_factory.mktemp("azure")
                started.extend(stack.enter_context(azurite.running(count - len(started), root, keys, binary)))
            return started[:count]

        yield at_least


@pytest.fixture
def azure_server(azure_servers: Callable[[int], list[azurite.AzuriteServer]]) -> azurite.AzuriteServer:
    """One server, shared by the session."""
    return azure_servers(1)[0]


@pytest.fixture
def own_azure_server(
    azure_servers: Callable[[int], list[azurite.AzuriteServer]], tmp_path: Path
) -> Iterator[azurite.AzuriteServer]:
    """A server for this test alone: to stop, start and damage. Its account is that of the session."""
    with azurite.running(1, tmp_path, azure_servers(1)[0].env) as servers:
        yield servers[0]


@pytest.fixture(scope="session")
def gcs_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], list[fakegcs.GcsServer]]]:
    """`gcs_servers(n)`: n servers that all tests of the session share."""
    binary = fakegcs.find_binary()
    if binary is None:
        pytest.skip(fakegcs.missing())
    with contextlib.ExitStack() as stack:
        started: list[fakegcs.GcsServer] = []

        def at_least(count: int) -> list[fakegcs.GcsServer]:
            if count > len(started):
                root = tmp_path_factory.mktemp("gcs")
                started.extend(stack.enter_context(fakegcs.running(count - len(started), root, binary)))
            return started[:count]

        yield at_least


@pytest.fixture
def gcs_server(gcs_servers: Callable[[int], list[fakegcs.GcsServer]]) -> fakegcs.GcsServer:
    """One server, shared by the session."""
    return gcs_servers(1)[0]


@pytest.fixture
def own_gcs_server(
    gcs_servers: Callable[[int], list[fakegcs.GcsServer]], tmp_path: Path
) -> Iterator[fakegcs.GcsServer]:
    """A server for this test alone: to stop, start and damage."""
    with fakegcs.running(1, tmp_path) as servers:
        yield servers[0]


# Swift.


@pytest.fixture(scope="session")
def swift_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[swift_server.SwiftServer]:
    """One cluster that all tests of the session share."""
    binaries = swift_server.find_binaries()
    if binaries is None:
        pytest.skip("no Swift: tests/servers/swift_server.sh fetches it")
    with swift_server.running(1, tmp_path_factory.mktemp("swift"), swift_server.make_keys(), binaries) as servers:
        yield servers[0]


@pytest.fixture
def swift(swift_shared: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch) -> swift_server.SwiftServer:
    """The shared cluster, with its user and key in the environment."""
    clean_of_openstack(monkeypatch)
    for name, value in swift_shared.env.items():
        monkeypatch.setenv(name, value)
    return swift_shared


@pytest.fixture
def own_swift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[swift_server.SwiftServer]:
    """A cluster for this test alone, with three replicas of each object: to stop, start and damage."""
    binaries = swift_server.find_binaries()
    if binaries is None:
        pytest.skip("no Swift: tests/servers/swift_server.sh fetches it")
    clean_of_openstack(monkeypatch)
    with swift_server.running(1, tmp_path, swift_server.make_keys(), binaries, nodes=3) as servers:
        for name, value in servers[0].env.items():
            monkeypatch.setenv(name, value)
        yield servers[0]


def clean_of_openstack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the environment says of an OpenStack."""
    for name in [name for name in os.environ if name.startswith(("OS_", "ST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METASYNC_KEYRING", "off")


# SFTP


@pytest.fixture(scope="session")
def ssh_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], list[openssh.SshServer]]]:
    """`ssh_servers(n)`: n independent servers that all tests of the session share; `ssh_home` is the user's."""
    if openssh.find_binary() is None:
        pytest.skip(openssh.MISSING)
    root = tmp_path_factory.mktemp("sshd")
    home = openssh.Home(root / "home")
    with contextlib.ExitStack() as stack:
        started: list[openssh.SshServer] = []

        def at_least(count: int) -> list[openssh.SshServer]:
            if count > len(started):
                part = root / str(len(started))
                started.extend(stack.enter_context(openssh.running(count - len(started), part, home)))
            return started[:count]

        yield at_least


@pytest.fixture
def ssh_server(
    ssh_servers: Callable[[int], list[openssh.SshServer]], monkeypatch: pytest.MonkeyPatch
) -> openssh.SshServer:
    """One server, shared by the session; the environment is that of a user who may log in."""
    server = ssh_servers(1)[0]
    for name, value in server.home.env.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def own_ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[openssh.SshServer]:
    """A server and a user for this test alone: to stop, start and damage."""
    if openssh.find_binary() is None:
        pytest.skip(openssh.MISSING)
    home = openssh.Home(tmp_path / "home")
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    with openssh.running(1, tmp_path / "sshd", home) as servers:
        yield servers[0]


# WebDAV


@pytest.fixture(scope="session")
def dav_env() -> Iterator[dict[str, str]]:
    """The login of every WebDAV server of this session, also set in the environment while it lasts."""
    env = webdav.make_login()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NETRC", "/nonexistent")
        for name, value in env.items():
            patch.setenv(name, value)
        yield env


@pytest.fixture(scope="session")
def dav_servers(
    dav_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[webdav.Kind, int], list[webdav.DavServer]]]:
    """`dav_servers(kind, n)`: n independent servers that all tests of the session share."""
    with contextlib.ExitStack() as stack:
        started: dict[webdav.Kind, list[webdav.DavServer]] = {"apache": [], "wsgidav": []}

        def at_least(kind: webdav.Kind, count: int) -> list[webdav.DavServer]:
            missing = webdav.why_not(kind)
            if missing:
                pytest.skip(missing)
            here = started[kind]
            if count > len(here):
                root = tmp_path_factory.mktemp("webdav")
                here.extend(stack.enter_context(webdav.running(kind, count - len(here), root, dav_env)))
            return here[:count]

        yield at_least


@pytest.fixture(params=["apache", "wsgidav"])
def dav_server(
    request: pytest.FixtureRequest, dav_servers: Callable[[webdav.Kind, int], list[webdav.DavServer]]
) -> webdav.DavServer:
    """One server of each kind, shared by the session."""
    return dav_servers(request.param, 1)[0]


@pytest.fixture(params=["apache", "wsgidav"])
def own_dav_server(
    request: pytest.FixtureRequest, dav_env: dict[str, str], tmp_path: Path
) -> Iterator[webdav.DavServer]:
    """A server for this test alone: to stop, start and damage."""
    missing = webdav.why_not(request.param)
    if missing:
        pytest.skip(missing)
    with webdav.running(request.param, 1, tmp_path, dav_env) as servers:
        yield servers[0]


# One of each


@pytest.fixture
def providers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One server of each provider that can be had, by scheme; those that are stopped or emptied are this test's own."""
    ways: dict[str, Callable[[], Any]] = {
        "s3": lambda: request.getfixturevalue("own_s3_server"),
        "azure": lambda: request.getfixturevalue("azure_server"),
        "gcs": lambda: request.getfixturevalue("own_gcs_server"),
        "swift": lambda: request.getfixturevalue("swift"),
        "webdav": lambda: request.getfixturevalue("dav_servers")("apache", 1)[0],
        "sftp": lambda: request.getfixturevalue("own_ssh_server"),
    }
    out: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            out[name] = way()
        except pytest.skip.Exception:
            print(f"no server for {name}")
    if len(out) < providers_kit.LEAST:
        pytest.skip(f"servers of only {len(out)} providers can be had here")
    return out
