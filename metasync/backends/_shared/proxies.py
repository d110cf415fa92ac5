"""The proxy that the environment names for a server, and a line to or through it: by HTTP, HTTP over TLS, or SOCKS."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from metasync.backends._shared.http import PROXY_STEP, ProxyError, why
from metasync.errors import RefusedError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S

_SOCKS: Final = {"socks4": (1, False), "socks4a": (1, True), "socks5": (2, False), "socks5h": (2, True)}
"""By scheme: the version as PySocks numbers them, and whether the proxy resolves the server's name."""
_PORTS: Final = {"http": 80, "https": 443, **dict.fromkeys(_SOCKS, 1080)}
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the login that it alone is shown."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def speaks_http(self) -> bool:
        return self.scheme not in _SOCKS

    @property
    def headers(self) -> Mapping[str, str]:
        if self.user is None:
            return {}
        login = f"{self.user}:{self.password or ''}"
        return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode('ascii')}"}

    def dial(self, host: str, port: int, context: Callable[[], ssl.SSLContext]) -> socket.socket:
        """A line to the proxy; one through it, to the server, where it speaks SOCKS. `ProxyError` if there is none."""
        try:
            if not self.speaks_http:
                return self._through_socks(host, port)
            sock = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT_S)
            if self.scheme == "http":
                return sock
            try:
                return context().wrap_socket(sock, server_hostname=self.host)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise ProxyError(f"there is no line through the proxy: {why(error)[1]}") from None

    def _through_socks(self, host: str, port: int) -> socket.socket:
        import socks

        version, resolves = _SOCKS[self.scheme]
        sock: socket.socket = socks.create_connection(
            (host, port), CONNECT_TIMEOUT_S, None, version, self.host, self.port, resolves, self.user, self.password
        )
        return sock


def proxy_for(server: SplitResult) -> Proxy | None:
    """The proxy that the environment names for a server. `RefusedError` if it cannot be used."""
    found = urllib.request.getproxies()
    text = found.get(server.scheme) or found.get("all") or ""
    if not text or urllib.request.proxy_bypass(server.netloc) or _in_a_network(server.hostname, found.get("no", "")):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        sound = bool(parts.hostname) and parts.port != 0 and parts.scheme in _PORTS
    except ValueError:
        sound = False
    if not sound:
        raise RefusedError(
            f"the proxy that the environment names for {server.netloc} has no address of one", next_step=PROXY_STEP
        )
    if parts.scheme in _SOCKS and importlib.util.find_spec("socks") is None:
        raise RefusedError(
            f"the environment names a SOCKS proxy for {server.netloc}, which takes the package PySocks",
            next_step=f"Run: pip install PySocks. Or: {PROXY_STEP}",
        )
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return Proxy(parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme], user or None, password)


def _in_a_network(host: str | None, no_proxy: str) -> bool:
    """Whether a server's address lies in one of the networks that NO_PROXY names, as in 10.0.0.0/8."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host or "")
        for text in no_proxy.split(","):
            with contextlib.suppress(ValueError):
                if "/" in text and address in ipaddress.ip_network(text.strip(), strict=False):
                    return True
    return False


class InnerTls:
    """TLS to a server inside the TLS to a proxy, as far as `wire` uses a socket."""

    def __init__(self, outer: ssl.SSLSocket, context: ssl.SSLContext, host: str) -> None:
        """Shakes hands."""
        self._outer = outer
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_hostname=host)
        self._do(self._tls.do_handshake)

    def recv_into(self, view: memoryview) -> int:
        try:
            count: int = self._do(lambda: self._tls.read(len(view), view))
        except ssl.SSLEOFError:  # as a socket's own TLS has it
            return 0
        return count

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            while piece:
                piece = piece[self._do(partial(self._tls.write, piece)) :]

    def _do(self, step: Callable[[], Any]) -> Any:
        """A step of the inner TLS, with what has to come and go for it. The time-out is that of the whole."""
        until = time.monotonic() + (self._outer.gettimeout() or 0.0)
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
                if time.monotonic() > until:
                    raise TimeoutError("timed out") from None
                data = self._outer.recv(_PIECE_BYTES)
                if data:
                    self._came.write(data)
                else:
                    self._came.write_eof()
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        if data := self._goes.read():
            self._outer.sendall(data)

    def pending(self) -> int:
        return self._tls.pending() + self._came.pending + self._outer.pending()

    def settimeout(self, timeout_s: float) -> None:
        self._outer.settimeout(timeout_s)

    def fileno(self) -> int:
        return self._outer.fileno()

    def close(self) -> None:
        self._outer.close()
