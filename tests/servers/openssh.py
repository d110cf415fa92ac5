"""SSH servers for tests: OpenSSH's sshd without rights of its own, on loopback, with host and user keys of its own.

An sshd that is not root lets in the account it runs as, and no other. Under root it is run as `daemon`, which needs
a folder that it can reach: then what the servers hold lies in a temporary folder of its own.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import loopback
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

START_TIMEOUT_S = 20
ACCOUNT = "daemon"  # under root
MISSING = "no sshd: tests/servers/openssh.sh fetches it"
FETCHED = Path(__file__).parents[2] / ".servers/bin/sshd"
SYSTEM_PATHS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/lib/ssh/sshd")


def find_binary() -> str | None:
    """The sshd to run: the one named in the environment, this system's, or the one `openssh.sh` unpacked."""
    for found in (os.environ.get("METASYNC_SSH_SERVER"), shutil.which("sshd"), *SYSTEM_PATHS, str(FETCHED)):
        if found and os.access(found, os.X_OK):
            return os.path.abspath(found)
    return None


def account() -> str:
    return ACCOUNT if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def make_key(path: Path, password: bytes | None = None) -> str:
    """Writes a private key, and its public half beside it; -> the public half as a line."""
    key = Ed25519PrivateKey.generate()
    encryption: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, encryption))
    path.chmod(0o600)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_suffix(".pub").write_text(line + "\n")
    return line


class Home:
    """A user's home with a key and known hosts. `env`: what a client needs to use it."""

    def __init__(self, root: Path) -> None:
        self.ssh = root / ".ssh"
        self.ssh.mkdir(parents=True, mode=0o700)
        self.public_key = make_key(self.ssh / "id_ed25519")
        self.known_hosts = self.ssh / "known_hosts"
        self.env = {"HOME": str(root), "SSH_AUTH_SOCK": "", "METASYNC_SFTP_PASSWORD": "", "METASYNC_KEYRING": "off"}

    def knows(self, server: SshServer) -> None:
        with open(self.known_hosts, "a") as file:
            file.write(f"[127.0.0.1]:{server.port} {server.host_key}\n")

    def forgets(self, server: SshServer) -> None:
        lines = self.known_hosts.read_text().splitlines(keepends=True)
        self.known_hosts.write_text("".join(x for x in lines if not x.startswith(f"[127.0.0.1]:{server.port} ")))


class SshServer(loopback.LoopbackServer):
    """One server with one folder, `data`. `stop` ends it and all who are connected; `start` brings it back."""

    def __init__(self, binary: str, root: Path, home: Home, lines: Sequence[str] = ()) -> None:
        super().__init__(root)
        self.name = binary
        self.data = root / "data"
        self.home = home
        self.lines = list(lines)
        """Of its configuration, before all others; read at each start."""
        self.has_sftp = True
        self._binary = binary
        self.data.mkdir()
        (root / "authorized_keys").write_text(home.public_key + "\n")
        self.host_key = make_key(root / "host_key")
        if os.geteuid() == 0:
            _give(root, account())

    def url(self, prefix: str = "", *, params: str = "") -> str:
        """The URL of a folder of that name, which is made."""
        folder = self.data / prefix
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            _give(self.data, account())
        return f"sftp://{account()}@127.0.0.1:{self.port}{folder}{params}"

    def new_host_key(self) -> None:
        """Takes effect with the next start."""
        self.host_key = make_key(self.root / "host_key")
        if os.geteuid() == 0:
            _give(self.root, account())

    def wipe(self) -> None:
        """Empties the stores behind their backs; their folders stay."""
        for store in self.data.iterdir():
            for found in store.iterdir():
                shutil.rmtree(found) if found.is_dir() else found.unlink()

    def sessions(self) -> list[int]:
        """The processes that serve those who are connected."""
        return _descendants(self.pid) if self._process is not None else []

    def stop(self) -> None:
        served = self.sessions()
        super().stop()
        self.drop(served)

    def drop(self, served: Sequence[int] | None = None) -> None:
        """Ends the processes that serve those who are connected, in the midst of what they do."""
        for pid in self.sessions() if served is None else served:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-2000:]

    def command(self) -> tuple[list[str], dict[str, str]]:
        config = self.root / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    *self.lines,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.root}/host_key",
                    f"PidFile {self.root}/pid",
                    f"AuthorizedKeysFile {self.root}/authorized_keys",
                    "StrictModes no",  # temporary folders are not the account's own all the way up
                    "UsePAM no",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "UseDNS no",
                    "MaxStartups 200",
                    *(["PerSourcePenalties no"] if _version(self._binary) >= (9, 8) else []),
                    *([f"Subsystem sftp internal-sftp -d {self.root}"] if self.has_sftp else []),
                ]
            )
            + "\n"
        )
        config.chmod(0o644)
        return [self._binary, "-D", "-e", "-f", str(config)], {}

    def run_as(self) -> dict[str, Any]:
        return {"user": account(), "group": _group(), "extra_groups": []} if os.geteuid() == 0 else {}

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            return probe.recv(8).startswith(b"SSH-2.0-")


@contextlib.contextmanager
def running(
    count: int, root: Path, home: Home, binary: str | None = None, lines: Sequence[str] = ()
) -> Iterator[list[SshServer]]:
    """`count` servers that `home` knows, below `root` (under root: a folder of their own); they end with the block."""
    binary = binary or find_binary()
    if binary is None:
        raise RuntimeError(MISSING)
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where no fsync waits for a disk
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metasync-sshd-", dir=memory)))
            root.chmod(0o755)
            binary = _within_reach(binary, root)
        servers = stack.enter_context(
            loopback.running(count, root, lambda folder: SshServer(binary, folder, home, lines))
        )
        for server in servers:
            home.knows(server)
        yield servers


def hashed(name: str) -> str:
    """The name of a known host as `ssh-keygen -H` writes it."""
    import hmac

    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _within_reach(binary: str, root: Path) -> str:
    """What `openssh.sh` unpacked, where another account can run it: a checkout may lie in a home."""
    unpacked = FETCHED.parents[1] / "openssh/unpacked"
    if Path(binary) != FETCHED:
        return binary
    wrapper = root / "sshd"
    shutil.copytree(unpacked, root / "unpacked", symlinks=True)
    wrapper.write_text(FETCHED.read_text().replace(str(unpacked), str(root / "unpacked")))
    wrapper.chmod(0o755)
    return str(wrapper)


def _version(binary: str) -> tuple[int, int]:
    done = subprocess.run([binary, "-V"], capture_output=True, timeout=START_TIMEOUT_S, check=False)
    match = re.search(rb"OpenSSH_(\d+)\.(\d+)", done.stderr + done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _group() -> int:
    return pwd.getpwnam(account()).pw_gid


def _give(folder: Path, name: str) -> None:
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, name, _group())


def _descendants(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    above = dict(tuple(map(int, line.split())) for line in done.stdout.splitlines())
    found = [pid]
    for one in found:
        found += [child for child, parent in above.items() if parent == one]
    return found[1:]
