"""Proxies of every kind that the environment may name: what goes through them, and what is said where nothing does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers_kit import META, Answer, Script, make_certificates, serving
from http_kit import make_certificate

from metasync.backends._shared import wire
from metasync.backends._shared.proxies import proxy_for
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import RefusedError, UnreachableError

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy:
    """Speaks HTTP or SOCKS 5, and leads every line on to one server, whatever the name that it is asked for."""

    def __init__(self, to_port: int, context: ssl.SSLContext | None) -> None:
        self.asked: list[bytes] = []
        self._to_port = to_port
        self._context = context

    def serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if self._context is not None:
                line = self._context.wrap_socket(line, server_side=True)
            stack.enter_context(line)
            first = line.recv(1, socket.MSG_PEEK) if self._context is None else b"C"
            self._socks(line) if first == b"\5" else self._connect(line)
            far = stack.enter_context(socket.create_connection(("127.0.0.1", self._to_port)))
            back = threading.Thread(target=self._pump, args=(far, line), daemon=True)
            back.start()
            self._pump(line, far)

    def _connect(self, line: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(1 << 16)
        self.asked.append(head)
        line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")

    def _socks(self, line: socket.socket) -> None:
        """RFC 1928, with the login of RFC 1929."""
        line.recv(257)
        line.sendall(b"\5\2")
        self.asked.append(line.recv(513))
        line.sendall(b"\1\0")
        self.asked.append(line.recv(262))
        line.sendall(b"\5\0\0\1" + bytes(4) + struct.pack(">H", 9))

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxying(to_port: int, certificate: tuple[str, str] | None = None) -> Iterator[tuple[int, Proxy]]:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    proxy = Proxy(to_port, context)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=proxy.serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], proxy
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


@pytest.mark.parametrize("far_is_secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("kind", ["http", "https", "socks5", "socks5h"])
def test_objects_go_through_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, far_is_secure: bool
) -> None:
    """4 MiB both ways, over one connection; the server is found and checked by its own name."""
    if kind.startswith("socks"):
        pytest.importorskip("socks")
    if kind in {"http", "https"} and not far_is_secure:
        pytest.skip("that is a request in the absolute form, and no line through")
    authority, own = make_certificates(tmp_path)
    proxys = make_certificate(tmp_path)
    (tmp_path / "all.pem").write_bytes(Path(authority).read_bytes() + Path(proxys[0]).read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "all.pem"))
    data = bytes(range(256)) * (1 << 14)
    script = Script()
    script.answer = lambda method, _: Answer(200, data if method == "GET" else b"", {**META, "ETag": f'"{"0" * 32}"'})
    with serving(script, own if far_is_secure else "") as far:
        monkeypatch.setenv("no_proxy", "elsewhere.example")
        with proxying(far.port, proxys if kind == "https" else None) as (port, proxy):
            monkeypatch.setenv("all_proxy", f"{kind}://me:{SECRET}@127.0.0.1:{port}")
            with contextlib.closing(far.open()) as backend:
                for _ in range(2):
                    backend.put("a", data)
                    assert backend.get("a", max_bytes=len(data)) == data
        assert len(far.clients) == 1
        if kind in {"http", "https"}:
            assert proxy.asked[0].startswith(b"CONNECT %b:%d HTTP/1.1\r\n" % (b"127.0.0.1", far.port))
            assert b"Proxy-Authorization: Basic bWU6aHVudGVyMg==\r\n" in proxy.asked[0]
        else:
            assert proxy.asked[0] == b"\1\2me\7hunter2"
        assert not any("proxy-authorization" in head for head in far.heads), "the login is the proxy's alone"


@pytest.mark.parametrize("kind", ["http", "https", "socks5"])
def test_nobody_listens_where_the_proxy_is_said_to_be(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "socks5":
        pytest.importorskip("socks")
    monkeypatch.setenv("all_proxy", f"{kind}://me:{SECRET}@127.0.0.1:9")
    with pytest.raises(UnreachableError, match="through the proxy") as caught:
        open_backend(parse_url("s3://bucket/x?endpoint=https://s3.example.org")).get("a", max_bytes=9)
    assert "ALL_PROXY" in caught.value.next_step
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("piece", [b"X: y\r\n", b"x", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_proxy_that_answers_without_an_end(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    sent = [0]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as line:
                line.recv(1 << 16)
                line.sendall(b"HTTP/1.1 200 OK\r\n" if b":" in piece else b"")
                while sent[0] < 64 << 20:
                    line.sendall(piece * 4096)
                    sent[0] += len(piece) * 4096

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(UnreachableError):
            open_backend(parse_url("s3://bucket/x?endpoint=https://s3.example.org")).get("a", max_bytes=9)
        thread.join(60)
    assert sent[0] < 24 << 20


@pytest.mark.parametrize(
    ("server", "no_proxy", "is_used"),
    [
        ("https://10.1.2.3", "", True),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3:8443", "x, 10.1.2.0/24", False),
        ("https://[fd00::1]", "fd00::/8", False),
        ("https://11.1.2.3", "10.0.0.0/8,nonsense/9,10.0.0.0/99", True),
        ("https://s3.example.org", "10.0.0.0/8", True),
        ("https://s3.example.org", "example.org", False),
        ("https://s3.example.org", "*", False),
    ],
)
def test_whom_no_proxy_names(monkeypatch: pytest.MonkeyPatch, server: str, no_proxy: str, is_used: bool) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    found = proxy_for(wire.urlsplit(server))
    assert (found is not None) is is_used
    if found is not None:
        assert (found.scheme, found.host, found.port, dict(found.headers)) == ("http", "proxy.example", 3128, {})


@pytest.mark.parametrize("text", ["ftp://h", "http://", "http://h:99999", "http://h:0", "https://[bad"])
def test_what_is_no_proxy(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("https_proxy", text)
    with pytest.raises(RefusedError, match="no address of one") as caught:
        open_backend(parse_url("s3://bucket/x?endpoint=https://s3.example.org"))
    assert "NO_PROXY" in caught.value.next_step
