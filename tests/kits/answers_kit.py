"""A small server on loopback that gives object stores the answers which a sound server does not give."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from http_kit import Answer, Handler, listening

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, NotFoundError

PAGE = b"<!DOCTYPE html><html><body>Please sign in. <Code>" + b"</Code></body></html>"
META = {"Last-Modified": "Fri, 20 Nov 2026 10:00:00 GMT", "ETag": '"e"'}

CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),  # type: ignore[attr-defined]
    "delete": lambda b: b.delete("d/a"),
}


def xml(code: str, more: str = "") -> bytes:
    """A refusal as object stores word it."""
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>AKIA hunter2</Message>{more}</Error>'.encode()


class Refusal(NamedTuple):
    """An answer, and the error that is to come of it in every call."""

    status: int
    body: bytes
    expected: type[BackendError]
    retryable: bool
    said: str = ""


@dataclass
class Script:
    """What the server answers, and what it was asked."""

    answer: Callable[[str, str], Answer] = lambda _method, _path: Answer()
    asked: list[str] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)  # the first KiB of each
    clients: set[tuple[str, int]] = field(default_factory=set)  # by connection
    url: str = "s3://bucket/{prefix}?endpoint={endpoint}"
    port: int = 0
    scheme: str = "http"

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def open(self, prefix: str = "x") -> Backend:
        return open_backend(parse_url(self.url.format(prefix=prefix, endpoint=self.endpoint)))


def expect_refusal(script: Script, call: Callable[[Backend], object], refusal: Refusal) -> None:
    script.answer = lambda *_: Answer(refusal.status, refusal.body)
    with pytest.raises(BackendError, match=refusal.said or None) as caught:
        call(script.open())
    assert type(caught.value) is refusal.expected
    assert caught.value.retryable is refusal.retryable
    assert re.search(r"(bucket|container)/x", caught.value.message), "it says which store"
    assert "hunter2" not in str(caught.value)
    assert base64.b64encode(b"hunter2").decode()[:9] not in str(caught.value)
    assert len(set(script.asked)) == len(script.asked) <= 2, "nothing is tried twice"


def expect_patience(
    script: Script, call: Callable[[Backend], object], status: int, body: bytes, after_s: float | None = 1.0
) -> None:
    """That a server which asks for fewer requests is to be asked again, and when."""
    script.answer = lambda *_: Answer(status, body)
    with pytest.raises(BackendError) as caught:
        call(script.open())
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)


def expect_absence(script: Script, code: str) -> None:
    """That an object is not there by this code in the answer, and only where it is asked for."""
    script.answer = lambda method, _: Answer(404, b"" if method == "HEAD" else xml(code))
    for kind in ("get", "get part", "stat"):
        with pytest.raises(NotFoundError):
            CALLS[kind](script.open())
    for kind in ("create", "put"):
        with pytest.raises(BackendError):
            CALLS[kind](script.open())


def expect_no_page(script: Script, kind: str) -> None:
    """That nothing in a login page passes for data, for a write, or for an object's absence."""
    script.answer = lambda *_: Answer(200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(BackendError) as caught:
        CALLS[kind](script.open())
    assert not isinstance(caught.value, NotFoundError)


class _Handler(Handler):
    script: Script

    def respond(self, body: bytes) -> Answer:
        self.script.asked.append(self.command)
        self.script.bodies.append(body[:1024])
        self.script.clients.add(self.client_address)
        self.script.heads.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
        return self.script.answer(self.command, self.path)


@contextlib.contextmanager
def serving(script: Script, certificate: str = "") -> Iterator[Script]:
    """With a file of key and certificate the server speaks TLS."""
    script.scheme = "https" if certificate else "http"
    pair = (certificate, certificate) if certificate else None
    with listening(type("Scripted", (_Handler,), {"script": script}), pair) as script.port:
        yield script


def make_certificates(folder: Path) -> tuple[str, str]:
    """The certificate of an authority nobody knows; key and certificate that it gave to 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.now(UTC)

    def certificate(name: str, key: Any, signer: Any, extensions: list[Any]) -> Any:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(signer, hashes.SHA256())

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    own = certificate("nobody", authority, authority, [x509.BasicConstraints(ca=True, path_length=None)])
    given = certificate("server", key, authority, [x509.BasicConstraints(ca=False, path_length=None), address])
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "authority.pem").write_bytes(own.public_bytes(pem))
    (folder / "server.pem").write_bytes(key.private_bytes(pem, *plain) + given.public_bytes(pem))
    return str(folder / "authority.pem"), str(folder / "server.pem")


def own_keyring(monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str]) -> None:
    """A keyring that holds these for MetaSync, in the place of the system's."""
    package, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")
    vars(errors)["KeyringError"] = type("KeyringError", (Exception,), {})
    vars(package)["errors"] = errors

    def get_password(service: str, name: str) -> str | None:
        if name.endswith("locked"):
            raise vars(errors)["KeyringError"]("locked")
        return secrets.get(name) if service == "metasync" else None

    vars(package)["get_password"] = get_password
    monkeypatch.delenv("METASYNC_KEYRING", raising=False)
    monkeypatch.setitem(sys.modules, "keyring", package)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
