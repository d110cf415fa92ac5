"""An endpoint of an attacker's that speaks HTTP: it gets no login sent elsewhere, and no client's memory."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from answers_kit import CALLS, META, Script, serving, xml
from http_kit import Answer, Handler, listening

from metasync.backends._shared import listing, object_store
from metasync.backends._shared.tokens import amazon_keys
from metasync.backends._shared.tokens_google import google_tokens
from metasync.backends._shared.tokens_microsoft import microsoft_tokens
from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, NotFoundError, UnreachableError

SECRET = "hunter2"
LOGINS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": SECRET,
    "AZURE_STORAGE_SAS_TOKEN": f"sv=1&sig={SECRET}",
    "METASYNC_KEYRING": "off",
    "METASYNC_WEBDAV_PASSWORD": SECRET,
    "NETRC": "/nonexistent",
    "ST_USER": "test:tester",
    "ST_KEY": SECRET,
}
UNSET = (
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AWS_PROFILE",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AWS_ENDPOINT_URL",
    "METASYNC_WEBDAV_USER",
    "METASYNC_WEBDAV_HOST",
    "OS_STORAGE_URL",
    "OS_AUTH_TOKEN",
    "OS_AUTH_URL",
    "ST_AUTH",
)
URLS = {
    "s3": "s3://bucket/x?endpoint={endpoint}",
    "azure": "azure://container/x?account=name&endpoint={endpoint}/name",
    "gcs": "gcs://bucket/x?endpoint={endpoint}",
}
ALL_URLS = {
    **URLS,
    "swift": "swift://bucket/x?auth={endpoint}/login/v1.0",
    "swift's login": "swift://bucket/x?auth={endpoint}/auth/v1.0",
    "webdav": "webdav+http://anna@{host}/dav/x",
}
LISTS = {"s3": "ListBucketResult", "gcs": "ListBucketResult", "azure": "EnumerationResults"}
CAP_BYTES = 64 << 20  # where a server that nobody stops gives up, so that a test ends
HEARD_BYTES_MAX = 24 << 20  # what a client may take of an endless answer, what fits the buffers of the line included


@pytest.fixture(autouse=True)
def _logins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOGINS.items():
        monkeypatch.setenv(name, value)
    for name in (*UNSET, *(n + "_proxy" for n in ("http", "https", "all"))):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def elsewhere() -> Iterator[tuple[int, list[str]]]:
    """The port of another server, which takes whatever comes, and what came."""
    heard: list[str] = []

    class Takes(Handler):
        def respond(self, body: bytes) -> Answer:
            heard.append(f"{self.command} {self.path} {self.headers}")
            return Answer(200, b"taken", {**META, "ETag": f'"{"0" * 32}"'})

    with listening(Takes) as port:
        yield port, heard


@pytest.mark.few
@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_nowhere(kind: str, call: str, status: int, elsewhere: tuple[int, list[str]]) -> None:
    """The endpoint sends the client to a server that collects logins, or that says "stored" to a write."""
    port, heard = elsewhere
    script = Script(url=URLS[kind])
    with serving(script), contextlib.closing(script.open()) as backend:
        for place in (f"http://127.0.0.1:{port}/x", f"http://localhost:{port}/x", "/elsewhere", "//x", "http://[", ""):
            script.answer = lambda *_, place=place: Answer(status, xml("Moved"), {"Location": place} if place else {})
            with pytest.raises(BackendError) as caught:
                CALLS[call](backend)
            assert not isinstance(caught.value, NotFoundError)
            assert SECRET not in str(caught.value)
    assert heard == []
    assert not any("elsewhere" in head["path"] for head in script.heads)


@pytest.mark.parametrize("cloud", ["amazon", "a container", "google", "microsoft"])
def test_what_a_cloud_gives_a_machine_passes_no_proxy(
    cloud: str, elsewhere: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of the environment hears the keys of this machine, or answers with those of its own: none is asked."""
    proxy, heard = elsewhere
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
    keys = {"AccessKeyId": "AKIA", "SecretAccessKey": SECRET, "Token": "t", "access_token": "t", "expires_in": 3600}
    script = Script()
    script.answer = lambda method, path: Answer(
        200, b"role" if method == "PUT" or path.endswith("/") else json.dumps(keys).encode()
    )
    with serving(script):
        given = {
            "amazon": lambda: amazon_keys({"AWS_EC2_METADATA_SERVICE_ENDPOINT": script.endpoint}, "us-east-1"),
            "a container": lambda: amazon_keys({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{script.endpoint}/x"}, ""),
            "google": lambda: google_tokens({}, {"GCE_METADATA_HOST": f"127.0.0.1:{script.port}"}, ""),
            "microsoft": lambda: microsoft_tokens(
                {"credential_type": "managed_identity"}, {"IDENTITY_ENDPOINT": f"{script.endpoint}/msi"}, ""
            ),
        }[cloud]()
        assert given()
    assert heard == []
    assert script.asked


class Endless(NamedTuple):
    """A server that begins an answer and goes on for as long as anybody listens."""

    port: int
    sent: list[int]  # bytes, by connection, in the order in which they came
    begun: list[int]  # the connections on which it began, by their numbers

    def open(self, kind: str) -> Backend:
        host = f"127.0.0.1:{self.port}"
        return open_backend(parse_url(ALL_URLS[kind].format(endpoint=f"http://{host}", host=host)))


LOGGED_IN = (
    b"HTTP/1.1 200 OK\r\nX-Storage-Url: http://127.0.0.1:%d/v1/a\r\nX-Auth-Token: t\r\nContent-Length: 0\r\n\r\n"
)


@contextlib.contextmanager
def endless(head: bytes, piece: bytes) -> Iterator[Endless]:
    sent: list[int] = []
    begun: list[int] = []
    piece *= max(1, (1 << 16) // len(piece))

    def serve(line: socket.socket, number: int) -> None:
        with line, contextlib.suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            if line.recv(1 << 16).startswith(b"GET /login"):
                line.sendall(LOGGED_IN % server.getsockname()[1])
                line.recv(1 << 16)
            begun.append(number)
            line.sendall(head)
            while sent[number] < CAP_BYTES:
                line.sendall(piece)
                sent[number] += len(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                line = server.accept()[0]
                sent.append(0)
                threading.Thread(target=serve, args=(line, len(sent) - 1), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Endless(server.getsockname()[1], sent, begun)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def expect_bounded(server: Endless, kind: str, calls: Callable[[str], bool] = lambda _: True) -> None:
    for name, call in CALLS.items():
        if calls(name):
            before = len(server.sent)
            with contextlib.closing(server.open(kind)) as backend, pytest.raises(BackendError) as caught:
                call(backend)
            assert not isinstance(caught.value, NotFoundError), name
            assert sum(server.sent[before:]) < HEARD_BYTES_MAX, (name, server.sent)
            assert {*range(before, len(server.sent))} & {*server.begun}, (name, "it never heard of it")


HEAD = b'HTTP/1.1 %d X\r\nContent-Type: application/xml\r\nETag: "' + b"0" * 32 + b'"\r\n'
CHUNK = b"10000\r\n" + bytes(1 << 16) + b"\r\n"


@pytest.mark.few
@pytest.mark.parametrize("kind", ALL_URLS)
@pytest.mark.parametrize("status", [400, 403, 404, 500, 503])
def test_the_text_of_a_refusal_has_a_bound(kind: str, status: int) -> None:
    """The endpoint refuses with 400 MB of text, or text that never ends: that took the whole process's memory."""
    with endless(HEAD % status + b"Connection: close\r\n\r\n<Error><Code>X</Code>", b"hunter2 ") as server:
        expect_bounded(server, kind, lambda name: name in {"put", "get", "stat", "list"})


@pytest.mark.parametrize("kind", ALL_URLS)
@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 999999999999\r\n\r\n"])
def test_the_answer_to_a_write_or_a_delete_has_a_bound(kind: str, framing: bytes) -> None:
    """Success that goes on: in chunks, or with a length that nothing of ours has."""
    piece = CHUNK if b"chunked" in framing else bytes(1 << 16)
    with endless(HEAD % 200 + framing, piece) as server:
        for call in ("create", "put", "delete"):
            before = len(server.sent)
            with contextlib.closing(server.open(kind)) as backend, contextlib.suppress(BackendError):
                CALLS[call](backend)
            assert sum(server.sent[before:]) < HEARD_BYTES_MAX, (call, server.sent)
        expect_bounded(server, kind, lambda name: name in {"get", "list"})


@pytest.mark.few
@pytest.mark.parametrize("kind", ALL_URLS)
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"),
        (b"", b"x"),
        (b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
    ids=["a header", "headers", "100", "103", "a status", "trailers", "a chunk's head"],
)
def test_no_part_of_an_answer_is_endless(kind: str, head: bytes, piece: bytes) -> None:
    """The head, what comes ahead of it, between chunks and behind them: it ends, whatever form it has."""
    with endless(head, piece) as server:
        expect_bounded(server, kind, lambda name: name in {"get", "stat", "list"})


@pytest.mark.parametrize("kind", URLS)
def test_a_listing_has_a_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without an end; pages without an end; a page that leads to itself."""
    monkeypatch.setattr(listing, "PAGE_BYTES_MAX", 1 << 18)  # parsing a whole one takes a third of a second
    entry = b"<Contents><Key>x/d/%d</Key><Size>1</Size></Contents>" % 7
    with endless(HEAD % 200 + f"\r\n<{LISTS[kind]}>".encode(), entry) as server:
        expect_bounded(server, kind, lambda name: name == "list")
    monkeypatch.setattr(object_store, "PAGES_MAX", 12, raising=False)
    script = Script(url=URLS[kind])
    for numbers in (False, True):
        script.asked.clear()

        def answer(*_: str, numbers: bool = numbers) -> Answer:
            mark = len(script.asked) if numbers else "same"
            following = f"<NextContinuationToken>{mark}</NextContinuationToken><NextMarker>{mark}</NextMarker>"
            return Answer(200, f"<{LISTS[kind]}><IsTruncated>true</IsTruncated>{following}</{LISTS[kind]}>".encode())

        script.answer = lambda *_, answer=answer: answer() if len(script.asked) < 100 else Answer(500)
        with serving(script), contextlib.closing(script.open()) as backend, pytest.raises(BackendError):
            backend.list("d")
        assert len(script.asked) < 20


BOMB = b"<!DOCTYPE a [%s]>" % b"".join(
    b'<!ENTITY e%d "%s">' % (n, b"x" * 99 if n == 0 else b"&e%d;" % (n - 1) * 99) for n in range(9)
)


@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize(
    "text",
    [
        BOMB + b"<{list}><Contents><Key>&e8;</Key><Size>1</Size></Contents></{list}>",
        b'<!DOCTYPE a [<!ENTITY f SYSTEM "file:///etc/passwd">]><{list}><Contents><Key>&f;</Key></Contents></{list}>',
        b"<{list}>" + b"<a>" * 10_000,
        b"<{list}><Contents><Key>" + b"x" * (1 << 20) + b"</Key><Size>1</Size></Contents></{list}>",
        b"<{list}><Contents><Key>a</Key><Size>" + b"9" * 5000 + b"</Size></Contents></{list}>",
        b"<html>sign in</html>",
        b"",
    ],
    ids=["entities", "a file", "depth", "a name", "a size", "a page", "nothing"],
)
def test_a_listing_that_is_no_listing(kind: str, text: bytes) -> None:
    script = Script(url=URLS[kind])
    script.answer = lambda *_: Answer(200, text.replace(b"{list}", LISTS[kind].encode()))
    with serving(script), contextlib.closing(script.open()) as backend, pytest.raises(UnreachableError):
        backend.list("d")


@pytest.mark.parametrize("kind", URLS)
def test_names_in_a_listing_that_are_none(kind: str) -> None:
    """`..`, names of other folders, half names: what cannot be asked for again is left out."""
    names = (
        "x/d/..",
        "x/d/../../etc",
        "/etc/passwd",
        "x/d/a b",
        "x/d/A",
        "y/d/b",
        "x/d/",
        "x/d",
        "",
        "x/d/ok",
        "x/d/e/f",
    )
    tag, key, size = ("Blob", "Name", "Content-Length") if kind == "azure" else ("Contents", "Key", "Size")
    entries = "".join(f"<{tag}><{key}>{n}</{key}><Properties/><{size}>1</{size}></{tag}>" for n in names)
    script = Script(url=URLS[kind])
    body = f"<{LISTS[kind]}>{entries}</{LISTS[kind]}>".encode()
    if kind == "azure":
        body = body.replace(b"<Properties/><Content-Length>1</Content-Length>",
                            b"<Properties><Content-Length>1</Content-Length></Properties>")  # fmt: skip
    script.answer = lambda *_: Answer(200, body)
    with serving(script), contextlib.closing(script.open()) as backend:
        assert [entry.name for entry in backend.list("d")] == ["ok"]


@pytest.mark.few
@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Sat, 21 Nov 2026 08:00:09 GMT", "Date": "Sat, 21 Nov 2026 08:00:00 GMT"}, 9.0),
        ({"Retry-After": "9" * 9}, 3600.0),
        ({"Retry-After": "-1"}, 1.0),
        ({}, 1.0),
    ],
)
def test_a_server_that_says_when_to_come_back(kind: str, status: int, headers: dict[str, str], seconds: float) -> None:
    """It is heeded up to an hour: longer, an endpoint could have itself asked never again."""
    script = Script(url=URLS[kind])
    script.answer = lambda *_: Answer(status, b"", headers)
    with serving(script), contextlib.closing(script.open()) as backend:
        for call in ("put", "get", "list"):
            with pytest.raises(BackendError) as caught:
                CALLS[call](backend)
            assert (caught.value.retry_after_s, caught.value.retryable) == (seconds, True)


@pytest.mark.parametrize("kind", URLS)
def test_a_length_that_nothing_has(kind: str) -> None:
    """An object of 2^60 bytes, or of a size that is no number, is refused by its head; nothing is set aside for it."""
    script = Script(url=URLS[kind])
    for length in (1 << 60, 10**30):
        script.answer = lambda *_, length=length: Answer(200, b"", META, length=length)
        with serving(script), contextlib.closing(script.open()) as backend:
            with pytest.raises(BackendError):
                backend.get("d/a", max_bytes=99)
            assert SECRET not in base64.b64encode(repr(backend).encode()).decode()
