"""The line to an SFTP server: one SSH connection, and sessions on it that are lent to one caller each.

A session is a process of its own at an OpenSSH server, so one caller's fsync or pack holds up nobody else. The server
may bound their number (MaxSessions). A connection that broke is given up as a whole, and the next caller connects anew.
Nothing is tried twice here. paramiko's own thread, a daemon, reads the connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from metasync.backends.sftp import packets as sftp
from metasync.backends.sftp.hosts import Server, by_known, check_key, fingerprint, known_keys, paramiko
from metasync.backends.sftp.login import log_in
from metasync.backends.sftp.session import PIECE_BYTES, SMALL_PIECE_BYTES, LostError, Session
from metasync.errors import BackendError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S

_LOGIN_TIMEOUT_S = 20  # key exchange, login: a server that looks up names waits 10 s for those it cannot find
_SESSION_TIMEOUT_S = 10
_SILENT_S = 30  # what was sent and not even acknowledged for so long: the connection is dead
_KEEPALIVE_S = 30
_END_TIMEOUT_S = 2
SESSIONS_MAX: Final = 8  # OpenSSH's MaxSessions is 10, and the user may be logged in besides
_WINDOW_BYTES = 4 << 20
_OPENSSH = "SSH-2.0-OpenSSH_"
_NOT_UNIX = "SSH-2.0-OpenSSH_for_Windows"

# Handled here, and told in sentences. Without a handler Python prints them, with a traceback.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Line:
    """Lends sessions on `server`; `close` ends all of them. For several threads at once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._connecting = threading.Lock()
        self._connection: _Connection | None = None
        self._failed: tuple[float, BackendError] | None = None
        self._closed = False
        self._process = os.getpid()  # a fork takes the socket along, but not the thread that reads it
        self.key_fingerprint = ""
        """Of the host key that the first connection was made with: a server may show another one it has, later."""
        self.is_openssh = False
        """Whether the server said then that it is OpenSSH, on a system whose file calls are those of POSIX."""

    def close(self) -> None:
        if self._is_copy():
            return
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            self._free.notify_all()
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def session(self, timeout_s: float, attempt: str) -> Iterator[Session]:
        """Lends a session for one call, which must end in `timeout_s`. `attempt` begins every error.

        `UnreachableError`: there is none, or it is lost on the way. `BackendError`: what answers is not SFTP. Then the
        whole connection is given up.
        """
        connection, session = self._borrow(timeout_s)
        whole = False
        try:
            session.until = time.monotonic() + timeout_s
            yield session
            whole = True
        except (BackendError, sftp.StatusError):  # answers
            whole = True
            raise
        except LostError as error:
            raise UnreachableError(f"{attempt}: {error}", next_step="Check the server and the network.") from error
        except sftp.ProtocolError as error:
            raise BackendError(f"{attempt}: the server does not speak SFTP as it should: {error}") from error
        finally:
            self._give_back(connection, session, whole=whole)

    def _is_copy(self) -> bool:
        """Whether this is a forked process, and the connection that of the one it comes from, which goes on with it."""
        return self._process != os.getpid()

    def _borrow(self, timeout_s: float) -> tuple[_Connection, Session]:
        if self._is_copy():
            raise RefusedError(
                f"cannot use the connection to {self.server.host}: this process was forked from the one that made it",
                next_step='Start processes anew: multiprocessing.set_start_method("spawn").',
            )
        until = time.monotonic() + timeout_s
        while True:
            connection = self._connected()
            with self._lock:
                while self._connection is connection and connection.is_active():
                    session = connection.idle_session()
                    if session is not None:
                        return connection, session
                    if connection.sessions < connection.sessions_max:
                        connection.sessions += 1
                        break
                    if not self._free.wait(until - time.monotonic()):
                        raise UnreachableError(
                            f"{self.server.host}: no session was free in time", next_step="Try again later."
                        )
                else:
                    continue
            opened = self._opened(connection)
            if opened is not None:
                return connection, opened

    def _opened(self, connection: _Connection) -> Session | None:
        """A new session. None: the server allows no more of them at once."""
        try:
            return connection.open_session()
        except _NoMoreError as error:
            with self._lock:
                connection.sessions -= 1
                if connection.sessions > 0:
                    connection.sessions_max = connection.sessions
                    return None
            raise UnreachableError(f"{self.server.host} opens no SFTP session", next_step="Try again later.") from error
        except BaseException as error:
            self._give_up(connection)
            if isinstance(error, LostError | paramiko.SSHException | OSError | EOFError):
                raise UnreachableError(
                    f"{self.server.host}: the connection broke, or gave no answer, when an SFTP session was opened",
                    next_step="Check the server and the network.",
                ) from error
            if isinstance(error, sftp.ProtocolError):
                raise RefusedError(
                    f"{self.server.host} lets {self.server.user} in, but what answers there is not SFTP",
                    next_step="A login script of that account may print something: it must be silent for SFTP.",
                ) from error
            raise

    def _give_back(self, connection: _Connection, session: Session, *, whole: bool) -> None:
        if not whole:
            self._give_up(connection)
            return
        session.settle()
        with self._lock:
            connection.idle.append(session)
            self._free.notify()

    def _give_up(self, connection: _Connection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
            self._free.notify_all()
        connection.close()

    def _connected(self) -> _Connection:
        came = time.monotonic()
        connection = self._connection
        if connection is not None and connection.is_active():
            return connection
        with self._connecting:
            if self._closed:
                raise self._was_closed()
            connection = self._connection
            if connection is not None:
                if connection.is_active():
                    return connection
                self._give_up(connection)
            if self._failed is not None and self._failed[0] >= came:
                raise self._failed[1]  # somebody tried while we waited
            try:
                connection = _Connection(self.server)
            except BackendError as error:
                self._failed = time.monotonic(), error
                raise
            if not self.key_fingerprint:
                self.key_fingerprint, self.is_openssh = connection.key_fingerprint, connection.is_openssh
            with self._lock:
                if not self._closed:
                    self._connection = connection
                    return connection
        connection.close()
        raise self._was_closed()

    def _was_closed(self) -> UnreachableError:
        """For calls that were under way: those that come afterwards do not get here."""
        return UnreachableError(f"the connection to {self.server.host} was closed", retryable=False)


class _NoMoreError(Exception):
    """The server opens no further session."""


class _Connection:
    """An SSH connection to a server whose host key was checked, logged in."""

    def __init__(self, server: Server) -> None:
        self.idle: list[Session] = []
        self.sessions = 0
        self.sessions_max = SESSIONS_MAX
        self._server = server
        self._way, self._process = _way_to(server)
        self._transport = paramiko.Transport(self._way, default_window_size=_WINDOW_BYTES)
        # `_ended_after` bounds these: a server that is silent is to be told from one that is no SSH server.
        self._transport.banner_timeout = self._transport.handshake_timeout = 2 * _LOGIN_TIMEOUT_S
        try:
            with self._ended_after(_LOGIN_TIMEOUT_S) as overdue:
                try:
                    self.key_fingerprint = _handshake(self._transport, server)
                    log_in(self._transport, server)
                except (paramiko.SSHException, OSError, EOFError) as error:
                    raise _no_login(server, error, overdue=overdue.is_set()) from error
            self._transport.set_keepalive(_KEEPALIVE_S)
        except BaseException:
            self.close()
            raise
        version = self._transport.remote_version
        self.is_openssh = version.startswith(_OPENSSH) and not version.startswith(_NOT_UNIX)

    def is_active(self) -> bool:
        return bool(self._transport.is_active())

    def idle_session(self) -> Session | None:
        """One that is not lent, if there is any. To be called with the line's lock held."""
        while self.idle:
            session = self.idle.pop()
            if session.is_open():
                return session
            self.sessions -= 1
        return None

    def open_session(self) -> Session:
        with self._ended_after(_SESSION_TIMEOUT_S):
            try:
                channel = self._transport.open_session(timeout=2 * _SESSION_TIMEOUT_S)
            except paramiko.SSHException as error:
                # A ChannelException, but not if another thread's was refused at the same time: there is one place for
                # both, and whoever looks second finds nothing in it.
                if self._transport.is_active():
                    raise _NoMoreError from error
                raise
            try:
                channel.invoke_subsystem("sftp")
            except paramiko.SSHException:
                if self._transport.is_active():
                    raise RefusedError(
                        f"{self._server.host} lets {self._server.user} in, but not use SFTP",
                        next_step="Turn SFTP on there: Subsystem sftp in sshd_config, or a switch of the appliance.",
                    ) from None
                raise
        return Session(
            channel,
            piece_bytes=PIECE_BYTES if self.is_openssh else SMALL_PIECE_BYTES,
            until=time.monotonic() + _SESSION_TIMEOUT_S,
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._way.shutdown(socket.SHUT_RDWR)  # wakes paramiko's thread at once, where a close lets it sleep on
        self._transport.close()
        with contextlib.suppress(RuntimeError):  # it did not begin
            self._transport.join(_END_TIMEOUT_S)
        if self._process is not None:
            _end(self._process)

    @contextlib.contextmanager
    def _ended_after(self, seconds: float) -> Iterator[threading.Event]:
        """Closes if the block takes longer: paramiko waits without a bound in places. Sets the event then."""
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            self.close()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield overdue
        finally:
            timer.cancel()


def _way_to(server: Server) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
    """A socket to the server, or to the command that the configuration names."""
    if server.proxy:
        ours, its = socket.socketpair()
        try:
            # The command is the user's own, for a shell, as ssh has it.
            words = ["/bin/sh", "-c", f"exec {server.proxy}"]
            process = subprocess.Popen(words, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL)  # noqa: S603
        except OSError as error:
            ours.close()
            raise UnreachableError(f"cannot run a command to reach {server.host}: {error.strerror}") from error
        finally:
            its.close()
        return ours, process
    try:
        way = socket.create_connection((server.host, server.port), CONNECT_TIMEOUT_S)
    except (OSError, UnicodeError) as error:
        raise _no_connection(server, error) from error
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    way.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)
    return way, None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _handshake(transport: Any, server: Server) -> str:
    """Agrees keys, and checks whose they are; -> the host key's fingerprint."""
    known = known_keys(server)
    options = transport.get_security_options()
    options.key_types = by_known(options.key_types, known)
    # paramiko begins with AES in counter mode and a hash, which takes twice the time of GCM.
    options.ciphers = sorted((c for c in options.ciphers if "cbc" not in c), key=lambda name: "gcm" not in name)
    transport.start_client()  # `_ended_after` bounds it: two bounds of the same length would tell two stories
    key = transport.get_remote_server_key()
    blob = key.asbytes()
    check_key(server, known, key.get_name(), blob)
    return fingerprint(blob)


def _no_connection(server: Server, error: Exception) -> UnreachableError:
    if isinstance(error, TimeoutError):
        why = "no answer in time"
    elif isinstance(error, socket.gaierror | UnicodeError):
        why = "its name cannot be resolved"
    elif isinstance(error, ConnectionRefusedError):
        why = "connection refused"
    else:
        why = (error.strerror if isinstance(error, OSError) else None) or "no connection"
    return UnreachableError(
        f"cannot connect to {server.host}, port {server.port}: {why}",
        next_step="Check the server's name and port, and the network.",
    )


def _no_login(server: Server, error: Exception, *, overdue: bool) -> BackendError:
    if overdue or isinstance(error, TimeoutError):
        why = "it did not answer in time"
    elif isinstance(error, paramiko.IncompatiblePeer):
        return RefusedError(
            f"{server.host} and this program have no way to encrypt in common",
            next_step="The server's SSH is too old, or restricted: ask whoever runs it.",
        )
    elif "banner" in str(error):
        why = "what answers there is not an SSH server, or turns connections away"
    else:
        why = "it broke off before anybody was logged in"
    if server.proxy:
        return UnreachableError(
            f"cannot connect to {server.host} by the ProxyJump or ProxyCommand of ~/.ssh/config: {why}",
            next_step=f"See what it says: ssh {shlex.quote(server.alias)}",
        )
    return UnreachableError(
        f"cannot connect to {server.host}, port {server.port}: {why}", next_step="Check the server and its port."
    )
