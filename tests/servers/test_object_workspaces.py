"""A workspace on S3, Azure and Google Cloud Storage at once: each votes, and one of them may be lost."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from pathlib import Path

import azurite
import fakegcs
import pytest
import s3
from crash_kit import CHEAP, PASSPHRASE, make_tree, quiet_environment, read_tree, same_trees
from crowd_kit import crowd
from object_calls import open_url

from metasync.errors import UsageError
from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
quiet_environment()


def test_three_providers(
    s3_servers: Callable[[int], list[s3.S3Server]],
    own_azure_server: azurite.AzuriteServer,
    gcs_servers: Callable[[int], list[fakegcs.GcsServer]],
    tmp_path: Path,
) -> None:
    prefix = "workspace"
    servers = {"s3": s3_servers(1)[0], "azure": own_azure_server, "gcs": gcs_servers(1)[0]}
    urls = [f"{server.url(prefix)}&name={name}" for name, server in servers.items()]
    place = tmp_path / "one"
    make_tree(place, random.Random(7), files=60)
    report = Workspace.init(place, name="job", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one")
    assert report.voters == 3
    with report.workspace as one:
        one.push()
        checked = one.check()
        assert checked.problems == ()
        # Two of three tell digests: every pack has a copy on one of them at least.
        assert 0 < checked.packs <= checked.by_digest
        own_azure_server.stop()
        (place / "late").write_bytes(b"while one is away")
        one.push()
    with Workspace.clone(tmp_path / "two", name="job", backends=urls, passphrase=PASSPHRASE).workspace:
        same_trees({"one": read_tree(place), "two": read_tree(tmp_path / "two")})
    own_azure_server.start()
    with Workspace.open(place) as one:
        assert one.check(read_data=True).problems == ()


def test_one_server_by_two_names(s3_server: s3.S3Server, tmp_path: Path) -> None:
    """Its identities cannot be compared, and both would be told that the other's loss is no loss."""
    url = s3_server.url("twice")
    urls = [f"{url}&name=one", f"{url.replace('127.0.0.1', 'localhost')}&name=two"]
    with pytest.raises(UsageError, match="one and two are the same store"):
        Workspace.init(tmp_path / "x", name="job", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP)
    assert open_url(url).list("") == ()


def test_eight_processes_push_at_once(
    s3_servers: Callable[[int], list[s3.S3Server]],
    azure_servers: Callable[[int], list[azurite.AzuriteServer]],
    gcs_servers: Callable[[int], list[fakegcs.GcsServer]],
    tmp_path: Path,
) -> None:
    servers = (s3_servers(1)[0], azure_servers(1)[0], gcs_servers(1)[0])
    prefix = f"crowd-{secrets.token_hex(4)}"
    crowd(tmp_path, [f"{server.url(prefix)}&name=b{number}" for number, server in enumerate(servers)])
