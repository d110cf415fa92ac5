"""A small server that takes a login and then answers as a test has it: what a sound Swift would not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "hunter2-the-key"
TOKEN = "AUTH_tk-hunter2-the-token"
PAGE = b"<!DOCTYPE html><html><body>Please sign in. hunter2 quota</body></html>"
NOT_FOUND = b"<html><h1>Not Found</h1><p>The resource could not be found.</p></html>"
TRANS = {"X-Trans-Id": "tx1", "X-Openstack-Request-Id": "tx1"}
META = {**TRANS, "X-Timestamp": "1795000000.00000", "ETag": "9a0364b9e99bb480dd25e1f0284c8555"}
CONTAINER = {**TRANS, "X-Container-Object-Count": "1"}


@dataclass
class Request:
    method: str
    path: str  # below the account, with its query
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # what the head claims, where it lies
    endless: bool = False  # the body is repeated until nobody listens


@dataclass
class Fake:
    """What the server answers, and what it was asked. `answer` has requests of the store alone."""

    answer: Callable[[Request], Answer] = lambda _request: Answer()
    log_in: Callable[[Request], Answer] | None = None
    asked: list[Request] = field(default_factory=list)
    logins: list[Request] = field(default_factory=list)
    connections: int = 0
    sent_bytes: int = 0
    port: int = 0
    scheme: str = "http"
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def root(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def methods(self) -> list[str]:
        return [request.method for request in self.asked]

    def token(self, number: int) -> str:
        return f"{TOKEN}-{number}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def setup(self) -> None:
        super().setup()
        self.fake.connections += 1

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fake = self.fake
        storage = "/v1/AUTH_test"
        if self.path.startswith(storage):
            request = Request(self.command, self.path[len(storage) :], self.headers, body)
            fake.asked.append(request)
            answer = fake.answer(request)
        else:
            request = Request(self.command, self.path, self.headers, body)
            with fake.lock:
                fake.logins.append(request)
                number = len(fake.logins)
            head = {"X-Storage-Url": fake.root + storage, "X-Auth-Token": fake.token(number)}
            answer = fake.log_in(request) if fake.log_in is not None else Answer(200, b"", head)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        length = len(answer.body) if answer.length is None else answer.length
        headers = {"Content-Length": str(length), **answer.headers}
        for name, value in headers.items():
            if not (answer.endless and name == "Content-Length"):
                self.send_header(name, value)
        self.end_headers()
        try:
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            while answer.endless:
                self.wfile.write(answer.body)
                self.fake.sent_bytes += len(answer.body)
        except OSError:  # the client heard enough
            self.close_connection = True
        lies = answer.length is not None and self.command != "HEAD"  # of a HEAD it is the length of what a GET has
        if lies or answer.endless:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 (the names http.server asks for)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that hangs up, on a certificate say, is none of ours
            super().handle_error(request, client_address)


@contextmanager
def serving(wrap: Callable[[Any], Any] | None = None, scheme: str = "http") -> Iterator[Fake]:
    """A fake on a free port. `wrap` makes another socket of the server's, for TLS."""
    fake = Fake(scheme=scheme)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    if wrap is not None:
        server.socket = wrap(server.socket)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def certificate(folder: Path, *, first_day: int = -1) -> Path:
    """A key and a certificate that it signed itself, for 127.0.0.1, in one file; valid from a day on, for ten."""
    import ipaddress
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    begin = datetime.now(UTC) + timedelta(days=first_day)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=10))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"certificate{first_day}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
