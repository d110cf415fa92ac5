"""Azure Blob Storage for tests: Azurite over a temporary folder, on loopback, with an account and key made up here."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import secrets
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import loopback

CONTAINER = "metasync"
_VERSION = "2021-08-06"


def find_binary() -> str | None:
    """The azurite-blob to run: the one named in the environment, the one `azurite.sh` fetched, or one on the PATH."""
    fetched = Path(__file__).parents[2] / ".servers/azurite/node_modules/.bin/azurite-blob"
    if shutil.which("node") is None:
        return None
    return os.environ.get("METASYNC_AZURITE") or shutil.which(fetched) or shutil.which("azurite-blob")


def missing() -> str:
    return "no Azurite: tests/servers/azurite.sh fetches it, and needs Node.js with npm"


def make_keys() -> dict[str, str]:
    """The variables with a new account and its key."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": f"test{secrets.token_hex(5)}",
        "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(secrets.token_bytes(64)).decode("ascii"),
    }


class AzuriteServer(loopback.LoopbackServer):
    """One server with one account and one container."""

    name = "Azurite"

    def __init__(self, root: Path, keys: dict[str, str], binary: str) -> None:
        super().__init__(root)
        self.env = keys
        self.account = keys["AZURE_STORAGE_ACCOUNT_NAME"]
        self._binary = binary

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def url(self, prefix: str = "", *, container: str = CONTAINER) -> str:
        return f"azure://{container}/{prefix}?account={self.account}&endpoint={self.endpoint}"

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        arguments = [self._binary, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--silent"]
        arguments += ["--location", str(self.root / "data"), "--disableTelemetry", "--skipApiVersionCheck"]
        # Keys in the environment: arguments are seen by everybody.
        return arguments, {"AZURITE_ACCOUNTS": f"{self.account}:{self.env['AZURE_STORAGE_ACCOUNT_KEY']}"}

    def start(self) -> None:
        super().start()
        self.make_container(CONTAINER)

    def answers(self) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            self._request("HEAD", "nothing-here")
        return True

    def make_container(self, name: str) -> None:
        try:
            self._request("PUT", name)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def remove_container(self, name: str) -> None:
        self._request("DELETE", name)

    def wipe(self) -> None:
        """Empties it behind its back. A container that was deleted may be made anew only later, so all goes."""
        self.stop()
        shutil.rmtree(self.root / "data")
        self.start()

    def sas(self, rights: str = "rwdlc", *, container: str = CONTAINER, seconds: int = 3600) -> str:
        """A signature for one container."""
        expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        resource = f"/blob/{self.account}/{container}"
        text = "\n".join([rights, "", expiry, resource, "", "", "", _VERSION, "c", "", "", "", "", "", "", ""])
        token = {"sv": _VERSION, "sr": "c", "sp": rights, "se": expiry, "sig": self._sign(text)}
        return urllib.parse.urlencode(token)

    def _request(self, method: str, container: str) -> None:
        date = email.utils.formatdate(usegmt=True)
        blanks = "\n" * 12
        text = (
            f"{method}{blanks}x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{self.account}/{self.account}/{container}\nrestype:container"
        )
        request = urllib.request.Request(f"{self.endpoint}/{container}?restype=container", method=method)
        for name, value in {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {self.account}:{self._sign(text)}",
            "Content-Length": "0",
        }.items():
            request.add_header(name, value)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).close()

    def _sign(self, text: str) -> str:
        key = base64.b64decode(self.env["AZURE_STORAGE_ACCOUNT_KEY"])
        return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode("ascii")


@contextlib.contextmanager
def running(
    count: int, root: Path, keys: dict[str, str] | None = None, binary: str | None = None
) -> Iterator[list[AzuriteServer]]:
    """`count` servers below `root`, all with the same account and key; they end with the block."""
    found = binary or find_binary()
    if found is None:
        raise RuntimeError(missing())
    shared = keys or make_keys()
    with loopback.running(count, root, lambda folder: AzuriteServer(folder, shared, found)) as servers:
        yield servers
