"""Google Cloud Storage for tests: fake-gcs-server over a temporary folder, on loopback. It asks for no credentials."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import loopback

BUCKET = "metasync"


def find_binary() -> str | None:
    """What `fakegcs.sh` built, or what is named in the environment."""
    fetched = Path(__file__).parents[2] / ".servers/bin/fakegcs"
    return os.environ.get("METASYNC_FAKE_GCS") or shutil.which(fetched)


def missing() -> str:
    return "no fake-gcs-server: tests/servers/fakegcs.sh builds it, and needs Go"


class GcsServer(loopback.LoopbackServer):
    """One server with one bucket."""

    name = "fake-gcs-server"
    env: Mapping[str, str] = {}

    def __init__(self, root: Path, binary: str) -> None:
        super().__init__(root)
        self._binary = binary
        self.make_bucket(BUCKET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", *, bucket: str = BUCKET) -> str:
        return f"gcs://{bucket}/{prefix}?endpoint={self.endpoint}"

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        return [self._binary, "-address", f"127.0.0.1:{self.port}", "-root", str(self.root / "data")], {}

    def make_bucket(self, name: str) -> None:
        (self.root / "data" / name).mkdir(parents=True, exist_ok=True)

    def remove_bucket(self, name: str) -> None:
        shutil.rmtree(self.root / "data" / name)

    def wipe(self) -> None:
        """Empties it behind its back."""
        self.remove_bucket(BUCKET)
        self.make_bucket(BUCKET)


@contextlib.contextmanager
def running(count: int, root: Path, binary: str | None = None) -> Iterator[list[GcsServer]]:
    """`count` servers below `root`; they end with the block."""
    found = binary or find_binary()
    if found is None:
        raise RuntimeError(missing())
    with loopback.running(count, root, lambda folder: GcsServer(folder, found)) as servers:
        yield servers
