"""A small server that takes a login and then answers as a test has it: what a sound Swift would not."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from http_kit import Answer, Handler, listening

from metasync.backends.registry import open_backend, parse_url
from metasync.backends.swift import SwiftBackend

KEY = "hunter2-the-key"
TOKEN = "AUTH_tk-hunter2-the-token"
PAGE = b"<!DOCTYPE html><html><body>Please sign in. hunter2 quota</body></html>"
NOT_FOUND = b"<html><h1>Not Found</h1><p>The resource could not be found.</p></html>"
TRANS = {"X-Trans-Id": "tx1", "X-Openstack-Request-Id": "tx1"}
META = {**TRANS, "X-Timestamp": "1795000000.00000", "ETag": "9a0364b9e99bb480dd25e1f0284c8555"}
CONTAINER = {**TRANS, "X-Container-Object-Count": "1"}

CALLS: dict[str, Callable[[SwiftBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "create large": lambda b: b.create("d/new", bytes(1 << 20)),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "get nothing": lambda b: b.get("d/a", length=0, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "delete": lambda b: b.delete("d/b"),
    "space": lambda b: b.space(),
}


@dataclass
class Request:
    method: str
    path: str  # below the account, with its query
    headers: Mapping[str, str]
    body: bytes


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


class _Handler(Handler):
    fake: Fake

    def setup(self) -> None:
        super().setup()
        self.fake.connections += 1

    def respond(self, body: bytes) -> Answer:
        fake = self.fake
        storage = "/v1/AUTH_test"
        if self.path.startswith(storage):
            request = Request(self.command, self.path[len(storage) :], self.headers, body)
            fake.asked.append(request)
            return fake.answer(request)
        request = Request(self.command, self.path, self.headers, body)
        with fake.lock:
            fake.logins.append(request)
            number = len(fake.logins)
        head = {"X-Storage-Url": fake.root + storage, "X-Auth-Token": fake.token(number)}
        return fake.log_in(request) if fake.log_in is not None else Answer(200, b"", head)

    def sent(self, count: int) -> None:
        self.fake.sent_bytes += count


@contextmanager
def serving(certificate: tuple[str, str] | None = None) -> Iterator[Fake]:
    """A fake on a free port; over TLS with a certificate and its key."""
    fake = Fake(scheme="http" if certificate is None else "https")
    with listening(type("Faking", (_Handler,), {"fake": fake}), certificate) as fake.port:
        yield fake


def opened(fake: Fake, place: str = "bucket/x") -> SwiftBackend:
    backend = open_backend(parse_url(f"swift://{place}?auth={fake.root}/auth/v1.0"))
    assert isinstance(backend, SwiftBackend)
    return backend


def stored(request: Request) -> Answer:
    """The answer of a Swift that takes everything and has nothing else."""
    if request.method == "PUT":
        return Answer(201, b"", {**TRANS, "ETag": hashlib.md5(request.body).hexdigest()})
    if request.method == "DELETE":
        return Answer(204, b"", TRANS)
    return Answer(404, NOT_FOUND, {**TRANS, "Content-Type": "text/html; charset=UTF-8"})
