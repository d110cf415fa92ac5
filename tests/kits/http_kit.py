"""A small HTTP server on loopback that gives whatever answers a test wants, sound or not, over TLS too."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    before: bytes = b""  # what is sent ahead of it
    length: int | None = None  # what the head claims, where it lies
    chunked: bool = False
    unsized: bool = False
    endless: bool = False  # the body is repeated until nobody listens
    drip_s: float = 0.0  # the pause before each byte of the body
    hangs_up: bool = False  # without a word


class Handler(BaseHTTPRequestHandler):
    """Reads requests, of whatever method, and sends answers. `respond` says which."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets, and the second waited 40 ms for the first's receipt

    def respond(self, body: bytes) -> Answer:
        raise NotImplementedError

    def sent(self, count: int) -> None:
        """Told of every piece of a body."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:  # the client is gone
            self.close_connection = True
            return
        answer = self.respond(body)
        if answer.hangs_up:
            self.close_connection = True
            return
        self.wfile.write(answer.before)
        self.send_response(answer.status)
        claimed = len(answer.body) if answer.length is None else answer.length
        framing = {"Transfer-Encoding": "chunked"} if answer.chunked else {"Content-Length": str(claimed)}
        if answer.unsized or answer.endless:
            framing = {"Connection": "close"}
        for name, value in {**framing, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            try:
                for piece in self._pieces(answer):
                    self.wfile.write(piece)
                    self.sent(len(piece))
            except OSError:  # the client heard enough
                self.close_connection = True
        lies = answer.length is not None and self.command != "HEAD"  # of a HEAD it is the length of what a GET has
        if lies or answer.unsized or answer.endless:
            self.close_connection = True

    def _pieces(self, answer: Answer) -> Iterator[bytes]:
        if answer.chunked:
            yield b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer.body), answer.body)
        elif answer.drip_s:
            for byte in answer.body:
                time.sleep(answer.drip_s)
                yield bytes([byte])
        else:
            yield answer.body
        while answer.endless:
            yield answer.body

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that hangs up, on a certificate say, is none of ours
            super().handle_error(request, client_address)


@contextlib.contextmanager
def listening(handler: type[Handler], certificate: tuple[str, str] | None = None) -> Iterator[int]:
    """The port of a server; over TLS with a certificate and its key."""
    server = _Server(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(
    folder: Path, *, days_from: int = -1, days_to: int = 2, address: str = "127.0.0.1"
) -> tuple[str, str]:
    """A certificate for loopback that is signed by itself, and its key: two files in `folder`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days_from))
        .not_valid_after(now + datetime.timedelta(days=days_to))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


_FORKED = """
import os, sys
from metasync.backends.registry import open_backend, parse_url
backend = open_backend(parse_url(sys.argv[1]))
for name in "ab":
    backend.get(name, max_bytes=9)
own = "a" if os.fork() else "b"
for _ in range(100):
    found = backend.get(own, max_bytes=9)
    assert found == own.encode(), (own, found)
if own == "a":
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def gets_in_two_processes(url: str) -> str:
    """What went wrong where a process that has connections forks, and both go on: each reads an object of its own.

    The objects `a` and `b` hold their names. "": nothing.
    """
    done = subprocess.run([sys.executable, "-c", _FORKED, url], capture_output=True, text=True, check=False)
    return done.stderr[-2000:] if done.returncode else ""
