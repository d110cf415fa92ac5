"""A small WebDAV server on loopback that gives whatever answers a test wants, over TLS too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from http_kit import Answer, Handler, listening

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url

PASSWORD = "hunter2"
WHOLE = "1,2, <http://apache.org/dav/propset/fs/1>"  # in the header DAV of a server that writes a PUT whole
PAGE = b"<!DOCTYPE html><html><body>Please sign in. hunter2 <form></form></body></html>"
HTML = {"Content-Type": "text/html; charset=utf-8"}
_STATUS = "<propstat><prop>{}</prop><status>HTTP/1.1 200 OK</status></propstat>"

CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),  # type: ignore[attr-defined]
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
}
ALL_CALLS = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """What the server answers, and what it was asked."""

    answer: Callable[[Asked], Answer] = lambda _: Answer()
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    sent_bytes: int = 0
    port: int = 0
    tls: bool = False

    def url(self, path: str = "/dav/x", user: str = "anna") -> str:
        return f"{'webdav' if self.tls else 'webdav+http'}://{user}@127.0.0.1:{self.port}{path}"

    def open(self, path: str = "/dav/x") -> Backend:
        return open_backend(parse_url(self.url(path)))

    @property
    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked]


class Store:
    """A sound server's answers, from a dictionary. `overlay` may answer first."""

    def __init__(self, overlay: Callable[[Asked], Answer | None] = lambda _: None, dav: str = "1") -> None:
        self.files: dict[str, bytes] = {}
        self.folders = {"/dav", "/dav/x"}
        self.overlay = overlay
        self.dav = dav
        self.lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        with self.lock:
            return self.overlay(asked) or self.sound(asked)

    def sound(self, asked: Asked) -> Answer:
        path, above = asked.path.rstrip("/"), asked.path.rstrip("/").rpartition("/")[0]
        if asked.method == "OPTIONS":
            return Answer(200, b"", {"DAV": self.dav})
        if asked.method in {"PUT", "MKCOL"} and above not in self.folders:
            return Answer(409)
        if asked.method == "PUT":
            taken = path in self.files
            if taken and asked.headers.get("If-None-Match") == "*":
                return Answer(412)
            self.files[path] = asked.body
            return Answer(204 if taken else 201)
        if asked.method == "MKCOL":
            made = path not in self.folders
            self.folders.add(path)
            return Answer(201 if made else 405)
        if asked.method == "PROPFIND":
            return self._listed(path, asked.headers["Depth"])
        if path not in self.files:
            return Answer(404)
        if asked.method == "MOVE":
            to = "/" + asked.headers["Destination"].partition("://")[2].partition("/")[2]
            if to in self.files and asked.headers["Overwrite"] == "F":
                return Answer(412)
            self.files[to] = self.files.pop(path)
            return Answer(201)
        if asked.method == "DELETE":
            del self.files[path]
            return Answer(204)
        return Answer(200, self.files[path], {"ETag": f'"{hash(self.files[path])}"'})

    def _listed(self, path: str, depth: str) -> Answer:
        if path not in self.folders and path not in self.files:
            return Answer(404)
        below = [p for p in (*self.files, *self.folders) if p.rpartition("/")[0] == path and depth == "1"]
        return multistatus(*(entry(p, self.files.get(p)) for p in [path, *below]))


def entry(path: str, data: bytes | None) -> str:
    kind = "<resourcetype><collection/></resourcetype>"
    if data is not None:
        kind = f"<resourcetype/><getcontentlength>{len(data)}</getcontentlength>"
    return f"<response><href>{path}</href>{_STATUS.format(kind)}</response>"


def multistatus(*entries: str, head: str = "") -> Answer:
    body = f'<?xml version="1.0"?>{head}<multistatus xmlns="DAV:">{"".join(entries)}</multistatus>'
    return Answer(207, body.encode(), {"Content-Type": "application/xml"})


class _Handler(Handler):
    script: Script

    def setup(self) -> None:
        super().setup()
        self.script.connections += 1

    def respond(self, body: bytes) -> Answer:
        asked = Asked(self.command, self.path, dict(self.headers), body)
        self.script.asked.append(asked)
        return self.script.answer(asked)

    def sent(self, count: int) -> None:
        self.script.sent_bytes += count


@contextlib.contextmanager
def serving(certificate: tuple[str, str] | None = None) -> Iterator[Script]:
    """A server that answers as `script.answer` says; over TLS with a certificate and its key."""
    script = Script(tls=certificate is not None)
    with listening(type("Scripted", (_Handler,), {"script": script}), certificate) as script.port:
        yield script
