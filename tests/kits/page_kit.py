"""What tests of the page share: its server in a thread, and a client that sends what it is told to, right or wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metasync.dashboard.gate import HOST, Gate
from metasync.dashboard.server import Server
from metasync.dashboard.sources import Source

HUNG_S = 60


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The words of a refusal or an error."""
        return str(self.json["error"]["message"])


class Served:
    """A page that is served. `cookie` is "" until `open`."""

    def __init__(self, server: Server, gate: Gate, thread: threading.Thread) -> None:
        self.server, self.gate, self.thread = server, gate, thread
        self.cookie = ""

    @property
    def token(self) -> str:
        return self.gate.url.partition("#")[2]

    def open(self) -> None:
        """Opens the page as a browser does."""
        answer = self.post("/open", {"token": self.token}, cookie="")
        assert answer.status == 200, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def ask(
        self, method: str, path: str, body: bytes | None = None, cookie: str | None = None, **headers: str | None
    ) -> Answer:
        """Sends a request with the headers that a browser would send; those that are named replace them (None: out)."""
        given: dict[str, str | None] = {
            "host": f"{HOST}:{self.server.port}",
            "origin": self.gate.origin if method == "POST" else None,
            "content-type": "application/json" if method == "POST" else None,
            "cookie": self.cookie if cookie is None else cookie,
            "content-length": None if body is None else str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection(HOST, self.server.port, timeout=HUNG_S)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def get(self, path: str, **headers: str | None) -> Answer:
        """Asks for what lies below the page's own path; a path from the root begins with a slash."""
        return self.ask("GET", path if path.startswith("/") else self.gate.path + path, **headers)

    def post(self, path: str, value: object, **headers: str | None) -> Answer:
        body = json.dumps(value).encode()
        return self.ask("POST", path if path.startswith("/") else self.gate.path + path, body, **headers)

    @property
    def id(self) -> str:
        """The only workspace's."""
        page = self.server._page
        assert page is not None
        (one,) = page.shown
        return one

    def look(self, view: str, **fields: str) -> Any:
        from urllib.parse import urlencode

        answer = self.get(f"api/{self.id}/{view}?{urlencode(fields)}")
        assert answer.status == 200, answer.body
        return answer.json

    def do(self, action: str, **fields: object) -> Answer:
        return self.post(f"api/{self.id}/do/{action}", fields)


class Ear:
    """What one open page is told."""

    def __init__(self, page: Served) -> None:
        self.connection = http.client.HTTPConnection(HOST, page.server.port, timeout=HUNG_S)
        self.connection.request("GET", page.gate.path + "api/events", headers={"cookie": page.cookie})
        self.response = self.connection.getresponse()
        assert self.response.getheader("content-type") == "text/event-stream"

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def states(self) -> Iterator[Any]:
        while line := self.response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


@contextlib.contextmanager
def served(directories: Sequence[Path], *, keeper: Source | None = None, port: int = 0) -> Iterator[Served]:
    """Serves a page until the end of the block."""
    server = Server(directories, port=port, keeper=keeper)
    ready = threading.Event()
    found: list[Gate] = []

    def begun(gate: Gate) -> None:
        found.append(gate)
        ready.set()

    thread = threading.Thread(target=server.run, args=(begun,), name="page")
    thread.start()
    try:
        assert ready.wait(HUNG_S)
        yield Served(server, found[0], thread)
    finally:
        server.stop()
        thread.join(HUNG_S)
        assert not thread.is_alive()
