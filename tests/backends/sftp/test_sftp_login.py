"""How SFTP gets to a server and into it: what is no SSH server, passwords, keys, the agent."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import types
from collections.abc import Iterator

import pytest

pytest.importorskip("paramiko")

import paramiko
from sftp_kit import Opened, Script, text

from metasync.backends.registry import open_backend, parse_url
from metasync.errors import RefusedError, UnreachableError


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n<html></html>", "is not an SSH server"),
        (b"", "broke off|not an SSH server"),
        (None, "not answer in time"),
    ],
)
def test_what_is_no_ssh_server(script: Script, monkeypatch: pytest.MonkeyPatch, sent: bytes | None, said: str) -> None:
    monkeypatch.setattr("metasync.backends.sftp.connection._LOGIN_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            way, _ = listener.accept()
            with way:
                if sent is None:
                    over.wait(60)
                else:
                    way.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnreachableError, match=said) as caught:
            open_backend(parse_url(f"sftp://x@127.0.0.1:{listener.getsockname()[1]}/store"))
        assert caught.value.retryable
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1:{free}", "connection refused"), ("no-such-host.invalid", "its name cannot be resolved")],
)
def test_a_server_that_is_not_there(script: Script, host: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    with pytest.raises(UnreachableError, match=said) as caught:
        open_backend(parse_url(f"sftp://x@{host.format(free=free)}/store"))
    assert caught.value.next_step


# Passwords.


def keyring_with(monkeypatch: pytest.MonkeyPatch, secrets: dict[tuple[str, str], str]) -> None:
    errors = types.ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    module = types.ModuleType("keyring")
    module.errors = errors  # type: ignore[attr-defined]
    module.get_password = lambda service, account: secrets.get((service, account))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    monkeypatch.setenv("METASYNC_KEYRING", "on")


@pytest.mark.parametrize("by_dialogue", [False, True])
@pytest.mark.parametrize("source", ["environment", "keyring"])
def test_a_password(
    script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch, by_dialogue: bool, source: str
) -> None:
    script.password, script.by_dialogue = "hunter2", by_dialogue
    with pytest.raises(RefusedError, match="is not let in") as caught:
        opened(script)
    assert "METASYNC_SFTP_PASSWORD, or run: keyring set metasync someone@127.0.0.1" in caught.value.next_step
    if source == "environment":
        monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    else:
        keyring_with(monkeypatch, {("metasync", "someone@127.0.0.1"): "hunter2"})
    backend = opened(script)
    assert backend.list("") == ()
    assert script.tried[-1] == ("dialogue" if by_dialogue else "password")
    assert "hunter2" not in repr(backend)


@pytest.mark.parametrize("by_dialogue", [False, True])
def test_a_wrong_password(script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch, by_dialogue: bool) -> None:
    script.password, script.by_dialogue = "right", by_dialogue
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    with pytest.raises(RefusedError, match=r"tried: .*the password") as caught:
        opened(script)
    assert "hunter2" not in f"{caught.value}{caught.value!r}"
    assert script.tried.count("dialogue" if by_dialogue else "password") == 1, "nobody is locked out"


def test_no_password_goes_to_a_server_that_is_not_known(
    script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    script.password = "hunter2"
    (script.home / ".ssh/known_hosts").unlink()
    with pytest.raises(RefusedError, match="not known here"):
        opened(script)
    assert script.tried == []


def test_a_password_that_is_wrong_is_said_to_be(
    script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.password = "right"
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "wrong")
    with pytest.raises(RefusedError) as caught:
        opened(script)
    assert "does not take the password in METASYNC_SFTP_PASSWORD" in caught.value.next_step
    monkeypatch.delenv("METASYNC_SFTP_PASSWORD")
    keyring_with(monkeypatch, {("metasync", "someone@127.0.0.1"): "wrong"})
    with pytest.raises(RefusedError) as caught:
        opened(script)
    assert caught.value.next_step == "Correct the password: keyring set metasync someone@127.0.0.1"


@pytest.mark.parametrize("given", [b"\xff\xfe", "p\u00e4 \u2603:@/#%".encode(), b" ", b"a\nb"])
def test_a_password_is_bytes(script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    """Also where those are no text."""
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", os.fsdecode(given))
    try:
        script.password = given.decode()
    except UnicodeDecodeError:
        script.password = given
    assert opened(script).list("") == ()


# The agent.


@pytest.fixture
def agent(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """One that holds no key of its own; the key in the file is let in."""
    with Agent() as found:
        monkeypatch.setenv("SSH_AUTH_SOCK", found.path)
        monkeypatch.setattr("metasync.backends.sftp.login._LIST_TIMEOUT_S", 0.3)
        monkeypatch.setattr("metasync.backends.sftp.login._SIGN_TIMEOUT_S", 0.3)
        yield found


class Agent:
    """Answers with `answers`, one for each question; then it is silent."""

    def __init__(self) -> None:
        self.path = f"/tmp/metasync-agent-{os.urandom(4).hex()}"  # a socket's name is short
        self.answers: list[bytes | None] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._ways: list[socket.socket] = []

    def __enter__(self) -> Agent:
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for way in self._ways:
            way.close()
        os.unlink(self.path)

    def _serve(self) -> None:
        while True:
            try:
                way, _ = self._listener.accept()
            except OSError:
                return
            self._ways.append(way)
            while self.answers and way.recv(1 << 16):
                answer = self.answers.pop(0)
                if answer is None:
                    way.shutdown(socket.SHUT_RDWR)
                    break
                way.sendall(text(answer))


def held(*keys: paramiko.PKey, comment: bytes = b"a key") -> bytes:
    return struct.pack(">BI", 12, len(keys)) + b"".join(text(key.asbytes()) + text(comment) for key in keys)


@pytest.mark.parametrize(
    "answers",
    [[], [None], [b"\x05"], [b""], [b"\x0c"], [held(paramiko.ECDSAKey.generate(), comment=b"\xff")]],
    ids=["silent", "breaks off", "refuses", "empty", "short", "no text"],
)
def test_an_agent_that_is_of_no_use(script: Script, opened: Opened, agent: Agent, answers: list[bytes | None]) -> None:
    """There is a key in a file."""
    agent.answers = answers
    assert opened(script).list("") == ()


def test_an_agent_that_is_silent_is_named(script: Script, opened: Opened, agent: Agent) -> None:
    (script.home / ".ssh/id_ecdsa").unlink()
    with pytest.raises(RefusedError, match="there is nothing to log in with") as caught:
        opened(script)
    assert f"({agent.path}) does not answer" in caught.value.next_step


@pytest.mark.parametrize("answers", [[], [b"\x05"]], ids=["silent", "refuses"])
def test_an_agent_that_does_not_sign(script: Script, opened: Opened, agent: Agent, answers: list[bytes | None]) -> None:
    agent.answers = [held(paramiko.ECDSAKey.generate()), *answers]
    with pytest.raises(RefusedError, match="the SSH agent does not sign") as caught:
        opened(script)
    assert "IdentityFile" in caught.value.next_step


def test_keys_leave_room_for_the_password(script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends the connection after six attempts."""
    ssh = script.home / ".ssh"
    for number in range(7):
        paramiko.ECDSAKey.generate().write_private_key_file(str(ssh / f"key-{number}"))
    (ssh / "config").write_text("".join(f"IdentityFile {ssh}/key-{number}\n" for number in range(7)))
    script.password = "right"
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "right")
    assert opened(script).list("") == ()
    assert script.tried == ["key"] * 4 + ["password"]
    monkeypatch.delenv("METASYNC_SFTP_PASSWORD")
    script.tried.clear()
    with pytest.raises(RefusedError):
        opened(script)
    assert script.tried == ["key"] * 6


def test_a_way_through_another_server_that_fails(script: Script, opened: Opened) -> None:
    for command in ("true", "echo no; exit 1", "/nonexistent/ssh"):
        (script.home / ".ssh/config").write_text(f"Host inner\n  ProxyCommand {command}\n")
        with pytest.raises(UnreachableError, match="by the ProxyJump or ProxyCommand") as caught:
            open_backend(parse_url("sftp://bob@inner/store"))
        assert caught.value.next_step == "See what it says: ssh inner"
