"""The four clouds for tests that are the same for all: their stand-ins, and what differs between them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from servers.standin import Standin


def _remove_from_box(standin: Any, pack: str) -> None:
    standin.trash(standin.find(pack).id)


def _remove_from_dropbox(standin: Any, pack: str) -> None:
    with standin.lock:
        del standin.tree[pack]
        standin.changes.append(pack)


def _remove_from_gdrive(standin: Any, pack: str) -> None:
    with standin.lock:
        gone = next(file for file in standin.files.values() if file.name == pack)
        del standin.files[gone.id]
        standin.changes.append((99_999, gone.id))


def _remove_from_onedrive(standin: Any, pack: str) -> None:
    standin.damage(pack, None)


@dataclass(frozen=True)
class Cloud:
    """A provider. `roles`: what it does in a workspace. `powers`: which calls it has beyond those that all four have.

    `remove`: takes a file away, as another program does.
    """

    name: str
    standin: str
    library: str
    roles: tuple[str, ...]
    remove: Callable[[Any, str], None]
    powers: tuple[str, ...] = ()

    def make(self) -> Standin:
        """A stand-in; skips where the provider's library is missing."""
        if self.library and importlib.util.find_spec(self.library) is None:
            pytest.skip(f"no {self.library}")
        made: Standin = getattr(importlib.import_module(f"servers.{self.name}_standin"), self.standin)()
        return made

    def files(self, standin: Any) -> list[str]:
        """The paths of all files there."""
        return sorted(standin.files() if self.name == "onedrive" else standin.objects())

    def packs(self, standin: Any) -> list[str]:
        return [path for path in self.files(standin) if "packs" in path]


CLOUDS = (
    Cloud("dropbox", "DropboxStandin", "dropbox", ("data", "vote"), _remove_from_dropbox, ("watch", "sweep")),
    Cloud("onedrive", "OneDriveStandin", "", ("data", "vote", "blocks"), _remove_from_onedrive),
    Cloud("box", "BoxStandin", "box_sdk_gen", ("data", "vote"), _remove_from_box, ("watch", "sweep")),
    Cloud("gdrive", "GoogleDriveStandin", "googleapiclient", ("data",), _remove_from_gdrive),
)
each_cloud = pytest.mark.parametrize("cloud", CLOUDS, ids=[cloud.name for cloud in CLOUDS])
