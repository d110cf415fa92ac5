"""Logs in to an SFTP server: with the keys of the agent and of ~/.ssh, else with a password, as the server allows.

The password comes from METASYNC_SFTP_PASSWORD or the system's keyring (service "metasync", account "user@host"). It
also answers a single hidden question of keyboard-interactive. Nothing is sent before the host key was checked, and the
user is asked nothing.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from typing import Any, Final

from metasync.backends._shared.credentials import SERVICE, is_for, secret
from metasync.backends.sftp.hosts import PORT, Server, paramiko
from metasync.errors import BackendError, RefusedError, UnreachableError

HOST_VARIABLE: Final = "METASYNC_SFTP_HOST"
PASSWORD_VARIABLE: Final = "METASYNC_SFTP_PASSWORD"  # noqa: S105
_USUAL = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_KEYS_MAX = 6  # a server ends the connection after so many attempts (MaxAuthTries of OpenSSH)
_KEYS_BEFORE_PASSWORD_MAX = 4  # one more goes to the question which ways there are, and one to the password
_UNSIGNED = ("ssh-agent", "signing")  # what paramiko's errors say where an agent did not sign
_LIST_TIMEOUT_S = 5  # for an agent to say what it holds
_SIGN_TIMEOUT_S = 15  # for an agent that asks its user first; a login has to be through in 20


def log_in(transport: Any, server: Server) -> None:
    """Leaves `transport` logged in. `RefusedError` if the server lets nobody in with what there is."""
    attempt = _Attempt(server)
    try:
        # With a key first, and without asking which ways there are: on a far line that is two answers less to wait for.
        if not attempt.with_keys(transport) and not attempt.with_password(transport):
            raise attempt.refused()
    except paramiko.AuthenticationException:
        raise attempt.refused() if transport.is_active() else attempt.cut_off() from None


class _AgentWay:
    """A socket to the agent. paramiko reads it in a thread in which other errors than its own would be lost."""

    def __init__(self) -> None:
        self.is_silent = False
        self._socket = socket.socket(socket.AF_UNIX)
        self.send = self._socket.send
        self.close = self._socket.close
        self.settimeout = self._socket.settimeout

    def connect(self, path: str, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.connect(path)

    def recv(self, count: int) -> bytes:
        try:
            return self._socket.recv(count)
        except OSError as error:
            self.is_silent = isinstance(error, TimeoutError)
            raise paramiko.SSHException("the ssh-agent gives no answer") from error


class _Attempt:
    """One try to log in, and what was tried."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tried: list[str] = []
        self._locked: list[str] = []
        self._allowed: list[str] = []
        self._agent_silent = False

    def with_keys(self, transport: Any) -> bool:
        """Whether a key was enough."""
        agent = self._agent()
        try:
            for name, key in self._keys(agent):
                if len(self._tried) >= _KEYS_MAX:
                    break
                if len(self._tried) == _KEYS_BEFORE_PASSWORD_MAX and password_of(self._server) is not None:
                    if self._is_open_to_all(transport):
                        return True
                    if self._takes_password():
                        break
                self._tried.append(name)
                try:
                    more = transport.auth_publickey(self._server.user, key)
                except paramiko.BadAuthenticationType as error:
                    self._allowed = list(error.allowed_types)
                    return False
                except paramiko.AuthenticationException:
                    if not transport.is_active():
                        raise
                    continue
                except paramiko.SSHException as error:
                    if any(word in str(error) for word in _UNSIGNED):
                        raise RefusedError(
                            f"{self._server.login} is not let in: the SSH agent does not sign with a key that it lists",
                            next_step="Is the agent locked, or waiting for you? Or name another key in ~/.ssh/config"
                            " (IdentityFile, IdentitiesOnly yes).",
                        ) from error
                    raise
                self._allowed = list(more)  # what it wants in addition
                return not more
        finally:
            if agent is not None:
                agent._close()
        return False

    def with_password(self, transport: Any) -> bool:
        """Whether the password was enough, or none is needed."""
        if self._is_open_to_all(transport):
            return True
        given = password_of(self._server) if self._takes_password() else None
        if given is None:
            return False
        password = given.encode("utf-8", "surrogateescape")  # bytes of the environment that are no text stay themselves
        self._tried.append("the password")
        if "password" in self._allowed:
            try:
                return not transport.auth_password(self._server.user, password, fallback=False)
            except paramiko.BadAuthenticationType:
                pass  # it wants it by dialogue alone

        def answer(_title: str, _instructions: str, questions: list[tuple[str, bool]]) -> list[bytes]:
            hidden = [not shown for _, shown in questions]
            return [password] if hidden == [True] else [b"" for _ in questions]

        return not transport.auth_interactive(self._server.user, answer)

    def _is_open_to_all(self, transport: Any) -> bool:
        """Asks which ways there are, unless that is known. Whether none was needed."""
        if self._allowed:
            return False
        try:
            transport.auth_none(self._server.user)
        except paramiko.BadAuthenticationType as error:
            self._allowed = list(error.allowed_types)
            return False
        return True

    def _takes_password(self) -> bool:
        return bool({"password", "keyboard-interactive"} & set(self._allowed))

    def _agent(self) -> Any:
        """What paramiko's own `Agent` is, but for its bounds in time: it waits for an agent for ever."""
        if not self._server.agent:
            return None
        way = _AgentWay()
        agent = paramiko.agent.AgentSSH()
        try:
            way.connect(self._server.agent, _LIST_TIMEOUT_S)
            agent._connect(way)
            way.settimeout(_SIGN_TIMEOUT_S)
        except Exception:  # noqa: BLE001  # it is not there, or answers anything: there are keys in files
            self._agent_silent = way.is_silent
            way.close()
            return None
        return agent

    def _keys(self, agent: Any) -> Iterator[tuple[str, Any]]:
        """Keys with their names: those of the configuration, the agent's, the usual ones; each once."""
        held = {key.asbytes(): key for key in agent.get_keys()} if agent is not None else {}
        seen: set[bytes] = set()
        files = self._server.key_files or tuple(map(os.path.expanduser, _USUAL))
        named = [(path, key) for path in files if (key := self._key(path, held)) is not None]
        others = [] if self._server.only_those else [("a key of the agent", key) for key in held.values()]
        for name, key in [*named, *others] if self._server.key_files else [*others, *named]:
            blob = key.asbytes()
            if blob not in seen:
                seen.add(blob)
                yield name, key

    def _key(self, path: str, held: dict[bytes, Any]) -> Any:
        """The key of a file: from the agent where it holds it, None if it cannot be used."""
        try:
            public = paramiko.PublicBlob.from_file(path if path.endswith(".pub") else path + ".pub")
        except (OSError, ValueError, paramiko.SSHException):
            public = None
        if public is not None and public.key_blob in held:
            return held[public.key_blob]
        try:
            return paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):  # the latter is how `cryptography` says it
            self._locked.append(path)
        except Exception:  # noqa: BLE001  # missing, no key, of a kind not known here: libraries below raise anything
            return None
        return None

    def refused(self) -> RefusedError:
        tried = f"tried: {', '.join(self._tried)}" if self._tried else "there is nothing to log in with"
        steps = []
        if self._locked:
            steps.append(f"The key {self._locked[0]} is encrypted: run ssh-add {shlex.quote(self._locked[0])}.")
        if self._agent_silent:
            steps.append(f"The SSH agent ({self._server.agent}) does not answer: is it locked, or waiting for you?")
        if "the password" in self._tried and os.environ.get(PASSWORD_VARIABLE):
            steps.append(f"It does not take the password in {PASSWORD_VARIABLE}.")
        elif "the password" in self._tried:
            steps.append(f"Correct the password: keyring set {SERVICE} {shlex.quote(self._server.login)}")
        elif self._takes_password():
            steps.append(f"Set {PASSWORD_VARIABLE}, or run: keyring set {SERVICE} {shlex.quote(self._server.login)}")
        elif not self._locked:
            flag = "" if self._server.port == PORT else f"-p {self._server.port} "
            steps.append(f"Make a key (ssh-keygen), then: ssh-copy-id {flag}{shlex.quote(self._server.login)}")
        ways = ", ".join(w for w in self._allowed if w.isascii() and w.isprintable())[:100] or "nothing"
        return RefusedError(
            f"{self._server.login} is not let in ({tried}; the server takes: {ways})", next_step=" ".join(steps)
        )

    def cut_off(self) -> BackendError:
        if not self._tried:
            return UnreachableError(
                f"{self._server.host} broke off while {self._server.user} was to be logged in",
                next_step="Try again later.",
            )
        return RefusedError(
            f"{self._server.login} is not let in: the server broke off (tried: {', '.join(self._tried)})",
            next_step="Name the right key in ~/.ssh/config (IdentityFile, IdentitiesOnly yes).",
        )


def password_of(server: Server) -> str | None:
    """The password for a login, if one is given to us anywhere."""
    ours = any(is_for(name, HOST_VARIABLE, os.environ) for name in (server.alias, server.host))
    return secret(server.login, (PASSWORD_VARIABLE,) if ours else ())
