"""One workspace over Dropbox, OneDrive, Box, an S3 store and a WebDAV server, and one with Google Drive as storage.

The clouds are stand-ins with their own libraries in front; S3 and WebDAV are real servers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crash_kit import CHEAP, PASSPHRASE, edit_some, make_tree, quiet_environment, read_tree, same_trees
from providers_kit import clone, urls_of

from metasync.backends.registry import parse_url
from metasync.workspace import Workspace

for library in ("dropbox", "box_sdk_gen", "googleapiclient"):
    pytest.importorskip(library)

from servers.box_standin import BoxStandin  # noqa: E402  (after what may be missing)
from servers.dropbox_standin import DropboxStandin  # noqa: E402
from servers.gdrive_standin import GoogleDriveStandin  # noqa: E402
from servers.onedrive_standin import OneDriveStandin  # noqa: E402
from servers.standin import Standin, linked  # noqa: E402

pytestmark = pytest.mark.servers
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
quiet_environment()


def readme_urls() -> dict[str, str]:
    """The backends of the README's example of one workspace over five stores, by scheme."""
    example = README.partition("One workspace over five")[2].partition("```\n")[2].partition("```")[0]
    return {parse_url(url).scheme: url for url in re.findall(r"--backend '?([^\s']+)", example)}


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    home = tmp_path / "home"
    with ExitStack() as stack:
        kinds: tuple[Standin, ...] = (OneDriveStandin(), DropboxStandin(), BoxStandin(), GoogleDriveStandin())
        made = {one.provider: stack.enter_context(linked(one, monkeypatch, home)) for one in kinds}
        yield made


def test_a_workspace_over_five(providers: dict[str, Any], clouds: dict[str, Any], tmp_path: Path) -> None:
    """Outage, throttling and a token that ends, of one after the other, while two devices push."""
    servers = urls_of(providers, tmp_path)
    urls = {name: url if name in clouds else servers[name] for name, url in readme_urls().items()}
    assert [*urls] == ["dropbox", "onedrive", "box", "s3", "webdav"]
    rng = random.Random(12)
    one, two = tmp_path / "one", tmp_path / "two"
    make_tree(one, rng, files=40)
    report = Workspace.init(one, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP,
                            device_name="one", replicas=3)  # fmt: skip
    assert report.voters == 5
    with report.workspace as w:
        w.push("first")
        assert w.check().problems == ()
    with clone(two, urls, "two"):
        same_trees({"one": read_tree(one), "two": read_tree(two)})
    with Workspace.open(one) as w:
        w.push()  # takes the new device in, which stores that vote by blocks wait for
    with Workspace.open(two) as w:
        edit_some(two, rng, 10, "two")
        w.push("from two")
    for name in ("dropbox", "onedrive", "box"):
        clouds[name].is_away = True
        edit_some(one, rng, 3, f"without {name}")
        with Workspace.open(one) as w:
            w.pull()
            assert w.push(f"without {name}").version is not None
        clouds[name].is_away = False
    refusals = 50
    clouds["box"].switches.refused = [(429, "600")] * refusals
    clouds["dropbox"].switches.ended.add(clouds["dropbox"].token)
    renewals = clouds["dropbox"].renewals
    with Workspace.open(two) as w:
        w.pull()
        edit_some(two, rng, 3, "throttled")
        assert w.push("throttled").version is not None
    left = len(clouds["box"].switches.refused)
    assert 0 < left < refusals, "Box refused what it was asked for, and was left alone then"
    assert clouds["dropbox"].renewals > renewals, "its token ended while it was used, and was renewed"
    with Workspace.open(one) as w:
        w.pull()
    same_trees({"one": read_tree(one), "two": read_tree(two)})


def test_google_drive_as_storage(providers: dict[str, Any], clouds: dict[str, Any], tmp_path: Path) -> None:
    servers = urls_of(providers, tmp_path)
    urls = {"gdrive": "gdrive:/notes?name=gdrive", "dropbox": "dropbox:/notes?name=dropbox"}
    urls |= {name: servers[name] for name in ("s3", "webdav")}
    rng = random.Random(13)
    one, two = tmp_path / "one", tmp_path / "two"
    make_tree(one, rng, files=40)
    report = Workspace.init(one, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP,
                            device_name="one", replicas=3)  # fmt: skip
    assert report.voters == 3
    with report.workspace as w:
        w.push("first")
        assert w.check(read_data=True).problems == ()
    assert any("/packs/" in name for name in clouds["gdrive"].objects())
    with clone(two, urls, "two"):
        same_trees({"one": read_tree(one), "two": read_tree(two)})
    with Workspace.open(one) as w:
        w.push()  # takes the new device in, which stores that vote by blocks wait for
    clouds["dropbox"].is_away = True
    with Workspace.open(two) as w:
        edit_some(two, rng, 5, "two")
        assert w.push("without Dropbox").version is not None
