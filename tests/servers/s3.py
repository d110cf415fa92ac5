"""S3 servers for tests and benchmarks: versitygw over a temporary folder, on loopback, with a key made up on the spot.

    METASYNC_S3_SERVER=.servers/bin/versitygw python tests/servers/s3.py --count 3 --root DIR

starts three, prints a URL for each and the variables that hold their key, and stops them when its standard input
closes or it is told to end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import loopback

BUCKET = "metasync"
REGION = "us-east-1"


def find_binary() -> str | None:
    """The versitygw to run: the one named in the environment, the one `versitygw.sh` built, or one on the PATH."""
    fetched = Path(__file__).parents[2] / ".servers/bin/versitygw"
    return os.environ.get("METASYNC_S3_SERVER") or shutil.which(fetched) or shutil.which("versitygw")


def missing() -> str:
    return "no versitygw: tests/servers/versitygw.sh builds it, or set METASYNC_S3_SERVER"


def make_keys() -> dict[str, str]:
    """The variables with a new key. What else the environment says of AWS does not matter to our backend."""
    return {
        "AWS_ACCESS_KEY_ID": f"test{secrets.token_hex(8)}",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        "AWS_REGION": REGION,
    }


class S3Server(loopback.LoopbackServer):
    """One server with one bucket."""

    name = "versitygw"

    def __init__(self, root: Path, keys: dict[str, str], binary: str) -> None:
        super().__init__(root)
        self.env = keys
        self._binary = binary
        self.make_bucket(BUCKET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", *, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        # Without --keep-alive it closes the connection after every request, which doubles the client's CPU.
        arguments = ["--port", f"127.0.0.1:{self.port}", "--region", REGION, "--keep-alive", "--quiet", "posix"]
        if not _has_xattr(self.root):
            arguments += ["--sidecar", str(self.root / "meta")]
        # Keys in the environment: arguments are seen by everybody.
        keys = {"ROOT_ACCESS_KEY": "AWS_ACCESS_KEY_ID", "ROOT_SECRET_KEY": "AWS_SECRET_ACCESS_KEY"}
        variables = {name: self.env[ours] for name, ours in keys.items()}
        return [self._binary, *arguments, str(self.root / "buckets")], variables

    def make_bucket(self, name: str) -> None:
        (self.root / "buckets" / name).mkdir(parents=True, exist_ok=True)
        (self.root / "meta" / name).mkdir(parents=True, exist_ok=True)

    def remove_bucket(self, name: str) -> None:
        shutil.rmtree(self.root / "buckets" / name)

    def wipe(self) -> None:
        """Empties it behind its back."""
        self.remove_bucket(BUCKET)
        self.make_bucket(BUCKET)


@contextlib.contextmanager
def running(count: int, root: Path, keys: dict[str, str], binary: str | None = None) -> Iterator[list[S3Server]]:
    """`count` servers below `root`, all with the same key; they end with the block."""
    found = binary or find_binary()
    if found is None:
        raise RuntimeError(missing())
    with loopback.running(count, root, lambda folder: S3Server(folder, keys, found)) as servers:
        yield servers


def _has_xattr(folder: Path) -> bool:
    """Whether files here can hold what versitygw keeps beside them; tmpfs and some network file systems cannot."""
    if not hasattr(os, "setxattr"):
        return sys.platform == "darwin"
    try:
        os.setxattr(folder, "user.metasync.test", b"1")
        os.removexattr(folder, "user.metasync.test")
    except OSError:
        return False
    return True


def main() -> int:
    arguments = loopback.parser("S3 servers").parse_args()
    return loopback.serve(running(arguments.count, arguments.root.resolve(), make_keys()))


if __name__ == "__main__":
    sys.exit(main())
