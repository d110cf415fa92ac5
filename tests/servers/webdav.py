"""WebDAV servers for tests: Apache's mod_dav and wsgidav, each over a folder of its own, on loopback, with a login.

    python tests/servers/webdav.py --kind apache --count 2 --root DIR

starts two, prints a URL for each and the variables that hold their login, and stops them when its standard input
closes or it is told to end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import loopback

Kind = Literal["apache", "wsgidav"]

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


class DavServer(loopback.LoopbackServer):
    """One server, of one of two kinds."""

    kind: Kind

    def __init__(self, root: Path, env: dict[str, str], *, digest: bool = False, tls: tuple[str, str] | None) -> None:
        super().__init__(root)
        self.name = self.kind
        self.env = env
        self.digest = digest
        self.tls = tls
        self.store = root / "www" / MOUNT
        self.store.mkdir(parents=True, exist_ok=True)

    def url(self, prefix: str = "") -> str:
        """A folder on it, which is made."""
        (self.store / prefix).mkdir(parents=True, exist_ok=True)
        line = "webdav" if self.tls else "webdav+http"
        return f"{line}://127.0.0.1:{self.port}/{MOUNT}/{prefix}".rstrip("/")

    def wipe(self) -> None:
        """Takes away all that it holds, behind its back."""
        for item in self.store.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()


class ApacheServer(DavServer):
    """mod_dav over mod_dav_fs: a PUT is whole, a create is not atomic. No quota."""

    kind = "apache"

    def command(self) -> tuple[list[str], dict[str, str]]:
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

    def command(self) -> tuple[list[str], dict[str, str]]:
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
    make = partial(_SERVERS[kind], env=env, digest=digest, tls=tls)
    with loopback.running(count, root / f"{kind}-{secrets.token_hex(4)}", make) as servers:
        yield servers


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


def main() -> int:
    parser = loopback.parser("WebDAV servers")
    parser.add_argument("--kind", choices=sorted(_SERVERS), default="apache")
    arguments = parser.parse_args()
    return loopback.serve(running(arguments.kind, arguments.count, arguments.root.resolve(), make_login()))


if __name__ == "__main__":
    sys.exit(main())
