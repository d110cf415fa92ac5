"""Which server an SFTP URL means, and whether the one that answers is it: ~/.ssh/config and the known_hosts files.

A key that no file names is refused, and so is one in place of another; nothing is ever added to a file. Names may be
hashed, have patterns, or be negated (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"). `@revoked` keys are refused.
`@cert-authority` lines are not used, so a server known by its certificate alone is unknown here.

paramiko is loaded without `invoke`, half of its import time (50 of 110 ms), which only `Match exec` in ~/.ssh/config
needs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import glob
import hashlib
import hmac
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from metasync.errors import RefusedError

PORT: Final = 22
_CONFIG = "~/.ssh/config"
_AGENT_VARIABLE = "SSH_AUTH_SOCK"
_SETTING = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_INCLUDE = re.compile(r"^\s*include\b", re.IGNORECASE | re.MULTILINE)
_DEPTH_MAX = 16  # of files that include each other, as with OpenSSH
_EXEC = re.compile(r"^\s*match\b.*\bexec\b", re.IGNORECASE | re.MULTILINE)
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_FILE_BYTES_MAX = 1 << 24  # 100,000 hosts; longer files are cut there


class Server(NamedTuple):
    """A server as the user's SSH configuration has it."""

    host: str
    port: int
    user: str
    known_as: str
    key_files: tuple[str, ...]
    """Named in the configuration, in its order; empty: the usual ones."""
    only_those: bool
    """Whether the agent's other keys are to be left alone."""
    proxy: str
    """A command whose standard input and output lead to the server; "": none."""
    known_hosts: tuple[str, ...]
    agent: str = ""
    """The agent's socket; "": there is none, or it is to be left alone."""
    alias: str = ""
    """What the URL calls it."""

    @property
    def login(self) -> str:
        return f"{self.user}@{self.host}"


class KnownKeys(NamedTuple):
    """What the files say of one server: its keys as (type, key), and keys that must not be accepted."""

    keys: tuple[tuple[str, bytes], ...]
    revoked: frozenset[bytes]


def server_of(host: str, port: int | None, user: str | None) -> Server:
    """The server of a URL. What the URL says wins over the configuration."""
    said = _config(host)
    name = str(said.get("hostname") or host)
    number = port or _port(said.get("port"))
    alias = said.get("hostkeyalias")
    files = said.get("userknownhostsfile")
    system_files = said.get("globalknownhostsfile")
    return Server(
        host=name,
        port=number,
        user=user or str(said.get("user") or "") or _local_user(),
        known_as=str(alias) if alias else (name if number == PORT else f"[{name}]:{number}").lower(),
        key_files=tuple(_path(f) for f in said.get("identityfile") or ()),
        only_those=str(said.get("identitiesonly", "")).lower() in {"yes", "true"},
        proxy=_proxy(said, name, number),
        known_hosts=tuple(
            os.path.expanduser(f)
            for f in (
                *(shlex.split(str(files)) if files else _KNOWN_HOSTS),
                *(shlex.split(str(system_files)) if system_files else _SYSTEM_KNOWN_HOSTS),
            )
        ),
        agent=_agent(str(said.get("identityagent") or "")),
        alias=host,
    )


def known_keys(server: Server) -> KnownKeys:
    """What is known of a server, from all its files. A file that cannot be read is none."""
    keys: list[tuple[str, bytes]] = []
    revoked: set[bytes] = set()
    for path in server.known_hosts:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            found = keys_in(file.read(_FILE_BYTES_MAX).decode("utf-8", "replace").splitlines(), server.known_as)
            keys += found.keys
            revoked |= found.revoked
    return KnownKeys(tuple(keys), frozenset(revoked))


def keys_in(lines: Iterable[str], name: str) -> KnownKeys:
    """What the lines of a known_hosts file say of a server of that name."""
    keys: list[tuple[str, bytes]] = []
    revoked: set[bytes] = set()
    for line in lines:
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or not _is_meant(fields[0], name):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        if marker == "@revoked":
            revoked.add(key)
        elif not marker:
            keys.append((fields[1], key))
    return KnownKeys(tuple(keys), frozenset(revoked))


def check_key(server: Server, known: KnownKeys, kind: str, key: bytes) -> None:
    """`RefusedError` unless this server is known by this very key."""
    shown = f"{kind} {fingerprint(key)}"
    if key in known.revoked:
        raise RefusedError(
            f"{server.host} shows the host key {shown}, which is marked as revoked: somebody may be in its place",
            next_step="Ask whoever runs the server. Nothing was sent to it.",
        )
    if key in (k for _, k in known.keys):
        return
    flag = "" if server.port == PORT else f" -p {server.port}"
    if known.keys:
        was = ", ".join(sorted({f"{k} {fingerprint(b)}" for k, b in known.keys}))
        raise RefusedError(
            f"THE HOST KEY OF {server.host} HAS CHANGED: it shows {shown}, and known is {was}."
            " Somebody may be in its place, or the server was set up anew",
            next_step=f"Nothing was sent to it. Ask whoever runs the server; if its key is new, run:"
            f" ssh-keygen -R {shlex.quote(server.known_as)}, then: ssh{flag} {shlex.quote(server.login)}",
        )
    raise RefusedError(
        f"the server {server.host} is not known here: it shows the host key {shown}",
        next_step=f"Compare that with the key the server has (there: ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub). If it"
        f" is the same, run: ssh{flag} {shlex.quote(server.login)} and answer yes; or:"
        f" ssh-keyscan{flag} {shlex.quote(server.host)} >> ~/.ssh/known_hosts",
    )


def fingerprint(key: bytes) -> str:
    """As ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def by_known(algorithms: Sequence[str], known: KnownKeys) -> tuple[str, ...]:
    """Host key algorithms in the order in which to offer them: a server with several keys is to show a known one."""
    kinds = {kind for kind, _ in known.keys}
    return tuple(sorted(algorithms, key=lambda a: _kind_of(a) not in kinds))


def _kind_of(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") and "-cert-" not in algorithm else algorithm


def _is_meant(patterns: str, name: str) -> bool:
    """Whether the first field of a line is about the server `name`."""
    if patterns.startswith("|"):
        return _is_hash_of(patterns, name)
    meant = False
    for pattern in patterns.lower().split(","):
        negated, plain = pattern.startswith("!"), pattern.removeprefix("!")
        if _matches(plain, name.lower()):
            if negated:
                return False
            meant = True
    return meant


def _matches(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in re.sub(r"\*+", "*", pattern)[:256])
    return re.fullmatch("".join(parts), name) is not None


def _is_hash_of(field: str, name: str) -> bool:
    parts = field.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[2:])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode("utf-8", "surrogateescape"), "sha1"), digest)


def _config(host: str) -> dict[str, Any]:
    path = os.path.expanduser(_CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_FILE_BYTES_MAX)
        text = _with_included(text, host)
        if _EXEC.search(text):
            with_match_exec()
        return dict(paramiko.SSHConfig.from_text(text).lookup(host))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, ImportError, paramiko.SSHException) as error:
        raise RefusedError(
            f"cannot make sense of {path}: {type(error).__name__}",
            next_step=f"See what ssh says of it: ssh -G {shlex.quote(host)}",
        ) from None


def _with_included(text: str, host: str, depth: int = 0) -> str:
    """`text` with the files that its `Include` lines name, where those stand in a block that is about `host`."""
    if _INCLUDE.search(text) is None:
        return text
    block, lines = "Host *", []
    for line in text.splitlines():
        match = _SETTING.match(line)
        key = match[1].lower() if match else ""
        if key in ("host", "match"):
            block = line
        if match is None or key != "include":
            lines.append(line)
        elif depth < _DEPTH_MAX and _is_about(block, host):
            for pattern in shlex.split(match[2], comments=True):
                found = glob.glob(os.path.join(os.path.expanduser("~/.ssh"), os.path.expanduser(pattern)))
                for path in filter(os.path.isfile, sorted(found)):
                    with open(path, encoding="utf-8") as file:
                        lines.append(_with_included(file.read(_FILE_BYTES_MAX), host, depth + 1))
            lines.append(block)  # what follows belongs to it again
    return "\n".join(lines)


def _is_about(block: str, host: str) -> bool:
    """Whether what stands below such a line counts for a host."""
    if _EXEC.search(block):
        with_match_exec()
    return "metasync" in paramiko.SSHConfig.from_text(f"{block}\n  metasync yes\n").lookup(host)


def _path(text: Any) -> str:
    """A path of the configuration, with ~ and ${NAME} put in."""
    return os.path.expanduser(re.sub(r"\$\{(\w+)\}", lambda name: os.environ.get(name[1], ""), str(text)))


def _agent(text: str) -> str:
    """Where the agent listens: what `IdentityAgent` says, else SSH_AUTH_SOCK."""
    if not text or text == _AGENT_VARIABLE:
        return os.environ.get(_AGENT_VARIABLE, "")
    if text.startswith("$") and not text.startswith("${"):
        return os.environ.get(text[1:], "")
    return "" if text.lower() == "none" else _path(text)


def _port(text: Any) -> int:
    with contextlib.suppress(ValueError):
        if text is None or 0 < int(text) < 1 << 16:
            return int(text or PORT)
    raise RefusedError(f"~/.ssh/config names no port: {str(text)[:20]!r}", next_step="Put it right there.")


def _local_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise RefusedError("nobody says as whom to log in", next_step="Write sftp://user@host/path.") from None


def _proxy(said: dict[str, Any], host: str, port: int) -> str:
    jump = str(said.get("proxyjump") or "")
    if jump and jump.lower() != "none":
        *first, last = (part.strip() for part in jump.split(","))
        words = ["ssh", *(["-J", ",".join(first)] if first else []), *_ssh_words(last), "-W", f"[{host}]:{port}"]
        return shlex.join(words)
    command = str(said.get("proxycommand") or "")
    return "" if command.lower() == "none" else command


def _ssh_words(hop: str) -> Iterator[str]:
    """What ssh is told of `[user@]host[:port]` or `ssh://...`; a hop that begins with a dash is no option."""
    if hop.startswith("ssh://"):
        yield from ("--", hop)
        return
    before, colon, port = hop.rpartition(":")
    if colon and port.isdecimal():
        yield from ("-p", port)
        hop = before
    yield hop.strip("[]") if not hop.startswith("-") else ""


_SPARED = "invoke"


def _load() -> Any:
    if "paramiko" in sys.modules or _SPARED in sys.modules:
        return importlib.import_module("paramiko")
    sys.modules[_SPARED] = None  # type: ignore[assignment]  # "it is not installed"
    try:
        return importlib.import_module("paramiko")
    finally:
        del sys.modules[_SPARED]


paramiko: Any = _load()


def with_match_exec() -> None:
    """From here on `SSHConfig` can carry out `Match exec`, where `invoke` is installed."""
    config = importlib.import_module("paramiko.config")
    if getattr(config, _SPARED, None) is None:
        setattr(config, _SPARED, importlib.import_module(_SPARED))
