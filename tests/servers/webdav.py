"""WebDAV servers for tests: Apache's mod_dav and wsgidav, each over a folder of its own, on loopback, with a login.

    python tests/servers/webdav.py --kind apache --count 2 --root DIR

starts two, prints a URL for each and the variables that hold their login, and stops them when its standard input
closes or it is told to end.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Kind = Literal["apache", "wsgidav"]

COUNT_MAX = 9
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 5
MOUNT = "dav"
USER = "anna"
REALM = "tests"
_FETCHED = Path(__file__).parents[2] / ".servers"


def find_apache() -> str | None:
    """The Apache to run: the one named in the environment, the system's, or the one `apache.sh` unpacked."""
    for found in (
        os.environ.get("METASYNC_APACHE", ""),
        *(shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") for name in ("apache2", "httpd")),
        str(_FETCHED / "apache/usr/sbin/apache2"),
    ):
        if found and os.access(found, os.X_OK) and _modules(found) is not None:
            return found
    return None


def find_wsgidav() -> str | None:
    """The Python that has wsgidav: the one named in the environment, or the one `wsgidav.sh` installed."""
    return os.environ.get("METASYNC_WSGIDAV_PYTHON") or shutil.which(_FETCHED / "wsgidav/bin/python")


def why_not(kind: Kind) -> str:
    """A sentence on why this server cannot be started here; "" if it can."""
    if kind == "wsgidav":
        return "" if find_wsgidav() else "no wsgidav: tests/servers/wsgidav.sh installs it"
    if find_apache() is None:
        return "no Apache with mod_dav: tests/servers/apache.sh unpacks it"
    if os.geteuid() == 0 and subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode:
        return "Apache serves nothing as root, and this system gives no user namespace to hide that in"
    return ""


def make_login() -> dict[str, str]:
    """The variables with a login that is made up on the spot."""
    return {
        "METASYNC_WEBDAV_USER": USER,
        "METASYNC_WEBDAV_PASSWORD": secrets.token_hex(12),
        "METASYNC_KEYRING": "off",
    }


class DavServer:
    """One server. `stop` ends it; `start` brings it back at the same address with what it held."""

    kind: Kind

    def __init__(self, root: Path, env: dict[str, str], *, digest: bool = False, tls: tuple[str, str] | None) -> None:
        self.root = root
        self.env = env
        self.digest = digest
        self.tls = tls
        self.port = _free_port()
        self.store = root / "www" / MOUNT
        self.store.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, prefix: str = "") -> str:
        """A folder on it, which is made."""
        (self.store / prefix).mkdir(parents=True, exist_ok=True)
        line = "webdav" if self.tls else "webdav+http"
        return f"{line}://127.0.0.1:{self.port}/{MOUNT}/{prefix}".rstrip("/")

    def wipe(self) -> None:
        """Takes away all that it holds, behind its back."""
        for item in self.store.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()

    def start(self) -> None:
        for attempt in range(3):
            if self._start():
                return
            if attempt == 0:
                self.port = _free_port()  # another program took it between our look and the server's start
        raise RuntimeError(f"{self.kind} did not start:\n{self._log()}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _command(self) -> tuple[list[str], dict[str, str]]:
        raise NotImplementedError

    def _start(self) -> bool:
        command, env = self._command()
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.root), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
            )
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                time.sleep(0.02)
                return self._process.poll() is None
            time.sleep(0.02)
        self.stop()
        return False

    def _log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.root.glob("*log"))


class ApacheServer(DavServer):
    """mod_dav over mod_dav_fs: a PUT is whole, a create is not atomic. No quota."""

    kind = "apache"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        binary = find_apache()
        assert binary is not None
        modules = _modules(binary)
        assert modules is not None
        user, password = self.env["METASYNC_WEBDAV_USER"], self.env["METASYNC_WEBDAV_PASSWORD"]
        logins = self.root / "logins"
        if self.digest:
            told = hashlib.md5(f"{user}:{REALM}:{password}".encode(), usedforsecurity=False).hexdigest()
            logins.write_text(f"{user}:{REALM}:{told}\n")
        else:
            told = base64.b64encode(hashlib.sha1(password.encode(), usedforsecurity=False).digest()).decode()
            logins.write_text(f"{user}:{{SHA}}{told}\n")
        logins.chmod(0o600)
        name = "digest" if self.digest else "basic"
        wanted = ["mpm_event", "authn_core", "authn_file", "authz_core", "authz_user", f"auth_{name}", "mime"]
        wanted += ["dav", "dav_fs", "unixd"] + (["ssl", "socache_shmcb"] if self.tls else [])
        load = "\n".join(f"LoadModule {n}_module {modules / f'mod_{n}.so'}" for n in wanted if _is_apart(modules, n))
        tls = (
            f'SSLEngine on\nSSLCertificateFile "{self.tls[0]}"\nSSLCertificateKeyFile "{self.tls[1]}"'
            if self.tls
            else ""
        )
        (self.root / "types").write_text("text/html html htm\n")
        (self.root / "httpd.conf").write_text(
            f"""ServerRoot "{self.root}"
ServerName 127.0.0.1
Listen 127.0.0.1:{self.port}
{load}
PidFile "{self.root}/pid"
DefaultRuntimeDir "{self.root}"
Mutex file:{self.root}
ErrorLog "{self.root}/error.log"
LogLevel warn
TypesConfig "{self.root}/types"
DavLockDB "{self.root}/locks"
StartServers 1
ServerLimit 2
ThreadsPerChild 16
MaxRequestWorkers 32
KeepAliveTimeout 15
MaxKeepAliveRequests 0
DocumentRoot "{self.root}/www"
{tls}
<Directory "{self.root}">
    Require all denied
</Directory>
<Directory "{self.store}">
    Dav On
    AuthType {name}
    AuthName "{REALM}"
    AuthUserFile "{logins}"
    Require valid-user
    AllowOverride None
</Directory>
"""
        )
        hide = ["unshare", "--user"] if os.geteuid() == 0 else []  # as root it would have to change its user
        library = next((str(p.parent) for p in Path(binary).parents[2].glob("usr/lib/*/libapr-1.so.0")), "")
        return [*hide, binary, "-f", str(self.root / "httpd.conf"), "-D", "FOREGROUND"], {"LD_LIBRARY_PATH": library}


class WsgiDavServer(DavServer):
    """wsgidav over a folder: a PUT in place can be seen in part, a MOVE removes what it replaces first."""

    kind = "wsgidav"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        python = find_wsgidav()
        assert python is not None
        login = {self.env["METASYNC_WEBDAV_USER"]: {"password": self.env["METASYNC_WEBDAV_PASSWORD"]}}
        config = {
            "host": "127.0.0.1",
            "port": self.port,
            "server": "cheroot",
            "server_args": {"numthreads": 16},
            "provider_mapping": {f"/{MOUNT}": str(self.store)},
            "http_authenticator": {
                "accept_basic": not self.digest,
                "accept_digest": self.digest,
                "default_to_digest": self.digest,
            },
            "simple_dc": {"user_mapping": {"*": login}},
            "verbose": 1,
        }
        if self.tls:
            config |= {"ssl_adapter": "builtin", "ssl_certificate": self.tls[0], "ssl_private_key": self.tls[1]}
        path = self.root / "wsgidav.json"
        path.touch(0o600)
        path.write_text(json.dumps(config))
        return [python, "-m", "wsgidav.server.server_cli", "--config", str(path)], {}


_SERVERS: dict[Kind, type[DavServer]] = {"apache": ApacheServer, "wsgidav": WsgiDavServer}


@contextlib.contextmanager
def running(
    kind: Kind,
    count: int,
    root: Path,
    env: dict[str, str],
    *,
    digest: bool = False,
    tls: tuple[str, str] | None = None,
) -> Iterator[list[DavServer]]:
    """`count` servers below `root`, all with the same login; they end with the block. `tls`: certificate, key."""
    missing = why_not(kind)
    if missing:
        raise RuntimeError(missing)
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"between 1 and {COUNT_MAX} servers, not {count}")
    servers: list[DavServer] = []
    try:
        for _ in range(count):
            folder = root / f"{kind}-{secrets.token_hex(4)}"
            folder.mkdir(parents=True)
            server = _SERVERS[kind](folder, env, digest=digest, tls=tls)
            servers.append(server)
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def _modules(binary: str) -> Path | None:
    beside = Path(binary).parent.parent
    for folder in (
        beside / "lib/apache2/modules",
        *map(Path, ("/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/libexec/apache2")),
    ):
        if (folder / "mod_dav_fs.so").exists():
            return folder
    return None


def _is_apart(modules: Path, name: str) -> bool:
    """Whether a module is a file; some systems build a few of them in."""
    return (modules / f"mod_{name}.so").exists()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs WebDAV servers on loopback until standard input closes.")
    parser.add_argument("--kind", choices=sorted(_SERVERS), default="apache")
    parser.add_argument("--count", type=int, default=3, help=f"how many, at most {COUNT_MAX}")
    parser.add_argument("--root", type=Path, required=True, help="folder for what they hold; it stays")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    env = make_login()
    try:
        with running(arguments.kind, arguments.count, arguments.root.resolve(), env) as servers:
            for server in servers:
                print(server.url())
            for name, value in env.items():
                print(f"export {name}={value}")
            print("ready", flush=True)
            sys.stdin.read()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
