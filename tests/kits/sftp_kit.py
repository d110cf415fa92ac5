"""A small SFTP server on loopback, in this process: it answers as a test has it answer, right or wrong."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from metasync.backends.api import Backend

OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT, OPENDIR, READDIR = 3, 4, 5, 6, 7, 8, 11, 12
REMOVE, MKDIR, REALPATH, STAT, RENAME, STATUS, HANDLE, DATA, NAME, ATTRS = 13, 14, 16, 17, 18, 101, 102, 103, 104, 105
EXTENDED, EXTENDED_REPLY = 200, 201
LINK, POSIX_RENAME, FSYNC, STATVFS = (
    "hardlink@openssh.com",
    "posix-rename@openssh.com",
    "fsync@openssh.com",
    "statvfs@openssh.com",
)
EXTENSIONS = ((LINK, b"1"), (POSIX_RENAME, b"1"), (FSYNC, b"1"), (STATVFS, b"2"))
OPENSSH = "SSH-2.0-OpenSSH_9.2p1 Debian-2"
ROOT = "/store"


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def status(code: int, said: bytes = b"hunter2") -> bytes:
    return bytes([STATUS]) + b"%b" + struct.pack(">I", code) + text(said) + text(b"en")


def handle(name: bytes = b"h") -> bytes:
    return bytes([HANDLE]) + b"%b" + text(name)


def data(content: bytes) -> bytes:
    return bytes([DATA]) + b"%b" + text(content)


def attributes(size: int, mode: int = 0o100644) -> bytes:
    return struct.pack(">IQI", 0x05, size, mode)


def attrs(size: int = 0, mode: int = 0o100644) -> bytes:
    return bytes([ATTRS]) + b"%b" + attributes(size, mode)


FOLDER = attrs(0, 0o040755)


def names(*found: tuple[bytes, bytes, bytes]) -> bytes:
    return bytes([NAME]) + b"%b" + struct.pack(">I", len(found)) + b"".join(text(a) + text(b) + c for a, b, c in found)


def room(free: int = 1 << 40, *, files: int = 1 << 20, fsid: int = 7, flags: int = 0) -> bytes:
    return (
        bytes([EXTENDED_REPLY])
        + b"%b"
        + struct.pack(">11Q", 4096, 4096, 1 << 30, free // 4096, free // 4096, 1 << 30, files, files, fsid, flags, 255)
    )


CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "get much": lambda b: b.get("d/a", max_bytes=1 << 20),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),  # type: ignore[attr-defined]
    "delete": lambda b: b.delete("d/a"),
}

Answer = bytes | None
"""A packet in which the first "%b" stands for the request's number; None: the connection breaks."""


def asked_for(kind: int, body: bytes) -> str:
    """The extension that is asked for."""
    return body[4 : 4 + int.from_bytes(body[:4], "big")].decode() if kind == EXTENDED else ""


def sound(kind: int, body: bytes) -> Answer:
    """What a server says of which the root is an empty folder, and that accepts everything."""
    if kind in (OPEN, OPENDIR):
        return handle()
    if kind == STAT:
        return FOLDER
    if kind == REALPATH:
        return names((ROOT.encode(), b"", attributes(0, 0o040755)))
    if kind in (LSTAT, FSTAT):
        return status(2) if kind == LSTAT else attrs(0)
    if kind in (READ, READDIR):
        return status(1)
    if asked_for(kind, body) == STATVFS:
        return room()
    return status(0)


@dataclass
class Script:
    """What the server answers, whom it lets in, and what it was asked."""

    home: Path
    answer: Callable[[int, bytes], Answer] = sound
    version: str = OPENSSH
    extensions: tuple[tuple[str, bytes], ...] = EXTENSIONS
    hello: bytes | None = None
    password: str | bytes | None = None  # None: everybody with a key is let in
    by_dialogue: bool = False
    backwards: bool = False  # answers to what was sent at once come in the other order
    asked: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    _ends: list[paramiko.Transport] = field(default_factory=list)
    _channels: list[paramiko.Channel] = field(default_factory=list)

    def url(self, path: str = ROOT) -> str:
        return f"sftp://someone@127.0.0.1:{self.port}{path}"

    def hang_up(self) -> None:
        """Ends every session, and no connection."""
        while self._channels:
            self._channels.pop().close()

    def drop(self) -> None:
        """Breaks every connection."""
        while self._ends:
            self._ends.pop().close()


class _Door(paramiko.ServerInterface):
    def __init__(self, script: Script) -> None:
        self._script = script

    def get_allowed_auths(self, username: str) -> str:
        if self._script.password is None:
            return "publickey"
        return "keyboard-interactive" if self._script.by_dialogue else "publickey,password"

    def check_auth_publickey(self, username: str, key: object) -> int:
        self._script.tried.append("key")
        return paramiko.AUTH_SUCCESSFUL if self._script.password is None else paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self._script.tried.append("password")
        return paramiko.AUTH_SUCCESSFUL if password == self._script.password else paramiko.AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> object:
        return paramiko.InteractiveQuery("", "", ("Password: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self._script.tried.append("dialogue")
        return paramiko.AUTH_SUCCESSFUL if responses == [self._script.password] else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Sftp(paramiko.SubsystemHandler):
    """Reads requests, and sends what the script says."""

    def __init__(self, channel: paramiko.Channel, name: str, server: _Door) -> None:
        super().__init__(channel, name, server)
        self._script = server._script

    def start_subsystem(self, name: str, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        self._script._channels.append(channel)
        with contextlib.suppress(EOFError, OSError):
            self._serve(transport, channel)
        channel.close()

    def _serve(self, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        rest = b""
        while True:
            got = channel.recv(1 << 16)
            if not got:
                return
            rest += got
            out = []
            while len(rest) >= 4 and len(rest) >= 4 + int.from_bytes(rest[:4], "big"):
                size = 4 + int.from_bytes(rest[:4], "big")
                packet, rest = rest[4:size], rest[size:]
                answer = self._answer(packet)
                if answer is None:
                    transport.close()
                    return
                out.append(answer)
            for answer in reversed(out) if self._script.backwards else out:
                channel.sendall(answer)

    def _answer(self, packet: bytes) -> Answer:
        kind, number, body = packet[0], packet[1:5], packet[5:]
        if kind == 1:
            if self._script.hello is not None:
                return self._script.hello
            found = b"".join(text(name.encode()) + text(value) for name, value in self._script.extensions)
            return text(struct.pack(">BI", 2, 3) + found)
        self._script.asked.append(asked_for(kind, body) or str(kind))
        answer = self._script.answer(kind, body)
        if answer is None:
            return None
        return answer.removeprefix(b"raw") if answer.startswith(b"raw") else text(answer.replace(b"%b", number, 1))


@contextlib.contextmanager
def serving(home: Path) -> Iterator[Script]:
    """A server whose host key `home` knows; it ends with the block."""
    script = Script(home)
    key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    script.port = listener.getsockname()[1]
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    with open(home / ".ssh/known_hosts", "a") as file:
        file.write(f"[127.0.0.1]:{script.port} {key.get_name()} {key.get_base64()}\n")

    def accept() -> None:
        while True:
            try:
                way, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(way)
            script.connections += 1
            script._ends.append(transport)
            transport.local_version = script.version
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", _Sftp)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=_Door(script))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        script.drop()
        thread.join(60)


Opened = Callable[[Script], Backend]
