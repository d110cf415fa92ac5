"""What the S3 backend makes of the answers that a sound server does not give; a small server here gives them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metasync import settings, ways
from metasync.backends import _pace
from metasync.backends._base import Backend
from metasync.backends._registry import open_backend, parse_url
from metasync.backends._s3_keys import read_keys
from metasync.effects import Op, Task, Urgency
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime import Runtime

pytest.importorskip("obstore")

PAGE = b"<!DOCTYPE html><html><body>Please sign in. <Code>" + b"</Code></body></html>"
META = {"Last-Modified": "Fri, 20 Nov 2026 10:00:00 GMT", "ETag": '"e"'}


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # what the head claims, where it lies


@dataclass
class Script:
    """What the server answers, and what it was asked."""

    answer: Callable[[str, str], Answer] = lambda _method, _path: Answer()
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def open(self, prefix: str = "x") -> Backend:
        return open_backend(parse_url(f"s3://bucket/{prefix}?endpoint=http://127.0.0.1:{self.port}"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.script.asked.append(self.command)
        answer = self.script.answer(self.command, self.path)
        self.send_response(answer.status)
        length = len(answer.body) if answer.length is None else answer.length
        for name, value in {"Content-Length": str(length), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(answer.body)
            except OSError:  # the client heard enough
                self.close_connection = True
        if answer.length is not None:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 (the names http.server asks for)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"script": script}))
    server.daemon_threads = True
    script.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    server.shutdown()
    server.server_close()
    thread.join()


CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "delete": lambda b: b.delete("d/a"),
}


def _xml(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>AKIAEXAMPLE hunter2</Message></Error>'.encode()


ANSWERS: list[tuple[int, bytes, type[BackendError], bool]] = [
    (400, _xml("ExpiredToken"), RefusedError, False),
    (400, _xml("AuthorizationHeaderMalformed"), RefusedError, False),
    (400, _xml("RequestTimeout"), BackendError, True),
    (400, _xml("Whatever"), BackendError, False),
    (401, b"", RefusedError, False),
    (403, _xml("AccessDenied"), RefusedError, False),
    (403, _xml("InvalidAccessKeyId"), RefusedError, False),
    (403, _xml("RequestTimeTooSkewed"), RefusedError, False),
    (403, _xml("QuotaExceeded"), FullError, False),
    (403, _xml("ObjectQuotaExceeded"), FullError, False),
    (400, _xml("XMinioAdminBucketQuotaExceeded"), FullError, False),
    (403, PAGE, RefusedError, False),
    (404, _xml("NoSuchBucket"), UnreachableError, True),
    (404, _xml("SomethingElse"), UnreachableError, True),
    (404, PAGE, UnreachableError, True),
    (404, b"", UnreachableError, True),
    (409, _xml("ConditionalRequestConflict"), BackendError, True),
    (409, _xml("OperationAborted"), BackendError, True),
    (413, _xml("EntityTooLarge"), RefusedError, False),
    (429, b"", BackendError, True),
    (500, _xml("InternalError"), BackendError, True),
    (502, PAGE, BackendError, True),
    (503, _xml("SlowDown"), BackendError, True),
    (507, _xml("XMinioStorageFull"), FullError, False),
]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("status", "body", "expected", "retryable"), ANSWERS)
def test_refusals(
    script: Script, call: Callable, status: int, body: bytes, expected: type[BackendError], retryable: bool
) -> None:
    script.answer = lambda *_: Answer(status, body)
    with pytest.raises(BackendError) as caught:
        call(script.open())
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert "bucket/x" in caught.value.message
    assert "hunter2" not in str(caught.value)
    assert len(set(script.asked)) == len(script.asked) <= 2, "nothing is tried twice"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    ("status", "body", "after_s"),
    [
        (503, _xml("SlowDown"), 1.0),
        (503, b"", 1.0),
        (429, b"", 1.0),
        (400, _xml("RequestLimitExceeded"), 1.0),
        (500, _xml("InternalError"), None),
        (502, PAGE, None),
    ],
)
def test_a_server_that_asks_for_fewer_requests(
    script: Script, call: Callable, status: int, body: bytes, after_s: float | None
) -> None:
    script.answer = lambda *_: Answer(status, body)
    with pytest.raises(BackendError) as caught:
        call(script.open())
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)


def _one(op: Op) -> Task:
    return (yield op)


def test_limits_hold_over_a_real_connection(script: Script, tmp_path: Path) -> None:
    """6 MiB up, then 6 MiB down, at 4 MiB/s each: what the server saw is within 15 % of the rate, by the clock."""
    piece = bytes(1 << 18)
    script.answer = lambda method, _path: Answer(
        200, piece if method == "GET" else b"", dict(META) if method == "GET" else {"ETag": '"e"'}
    )
    settings.write(tmp_path / "s.json", settings.Settings({"limit.up": "4M", "limit.down": "4M"}))
    backend = script.open()
    with Runtime({"s3": backend}) as runtime:
        runtime.govern(settings.Governor(tmp_path / "s.json"))
        for ops in (
            [Op("s3", "put", f"p{n}", piece, urgency=Urgency.SOON) for n in range(24)],
            [Op("s3", "get", f"p{n}", max_bytes=len(piece), urgency=Urgency.SOON) for n in range(24)],
        ):
            began = time.monotonic()
            replies = [f.result(60) for f in [runtime.start(_one(op)) for op in ops]]
            took = time.monotonic() - began
            assert [r.error for r in replies] == [None] * 24
            assert 24 * len(piece) / took <= 4 * (1 << 20) * 1.15
    assert Counter(script.asked) == {"PUT": 24, "GET": 24}
    backend.close()


def test_a_server_that_asks_for_fewer_requests_gets_them(script: Script) -> None:
    """Every pack arrives, though the server sends the first ones away."""
    away = [_xml("SlowDown")] * 3
    script.answer = lambda *_: Answer(503, away.pop()) if away else Answer(200, b"", {"ETag": '"e"'})
    backend = script.open()
    with Runtime({"s3": backend}) as runtime:
        futures = [runtime.start(_one(Op("s3", "put", f"p{n}", b"1", urgency=Urgency.SOON))) for n in range(20)]
        assert [f.result(60).error for f in futures] == [None] * 20
    assert len(script.asked) == 23
    backend.close()


def test_not_found(script: Script) -> None:
    script.answer = lambda method, _: Answer(404, b"" if method == "HEAD" else _xml("NoSuchKey"))
    for kind in ("get", "get part", "stat"):
        with pytest.raises(NotFoundError):
            CALLS[kind](script.open())
    CALLS["delete"](script.open())
    for kind in ("create", "put"):
        with pytest.raises(BackendError):
            CALLS[kind](script.open())


@pytest.mark.parametrize("kind", ["create", "put", "get", "get part", "stat"])
def test_a_login_page_for_everything(script: Script, kind: str) -> None:
    """Nothing in it may pass for data, or for a write. (An empty list and a delete may: nothing rests on them.)"""
    script.answer = lambda *_: Answer(200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(BackendError) as caught:
        CALLS[kind](script.open())
    assert not isinstance(caught.value, NotFoundError)


@pytest.mark.parametrize("kind", ["put", "create"])
def test_a_success_that_may_be_none(script: Script, kind: str) -> None:
    script.answer = lambda *_: Answer(200)
    with pytest.raises(BackendError) as caught:
        CALLS[kind](script.open())
    assert caught.value.retryable


def test_another_region(script: Script) -> None:
    script.answer = lambda *_: Answer(301, _xml("PermanentRedirect"))
    with pytest.raises(RefusedError, match="region"):
        CALLS["get"](script.open())


def test_an_answer_cut_short(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"half", META, length=8)
    with pytest.raises(UnreachableError):
        script.open().get("d/a", max_bytes=9)


def test_an_object_too_large_is_refused_by_its_head(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"", META, length=1 << 40)
    with pytest.raises(RefusedError, match="at most 9"):
        script.open().get("d/a", max_bytes=9)


@pytest.mark.parametrize("claim", ["bytes 0-8/9", "bytes 0-9/1000", "bytes 5-14/1000"])
def test_a_part_longer_than_its_head_says_or_another_part(script: Script, claim: str) -> None:
    headers = {**META, "Content-Range": claim}
    script.answer = lambda *_: Answer(206, b"z" * (4 << 20), headers)
    with pytest.raises(BackendError):
        script.open().get("d/a", offset=0, length=9, max_bytes=9)


def test_a_server_that_ignores_the_condition(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"", META)
    assert script.open().probe() == "none"


def test_a_server_that_knows_no_conditions(script: Script) -> None:
    script.answer = lambda method, _: Answer(501 if method == "PUT" else 204, _xml("NotImplemented"), META)
    assert script.open().probe() == "none"


def test_a_server_that_checks_and_then_writes(script: Script) -> None:
    """Sequential creates look sound on it; racing ones do not."""
    stored: dict[str, bytes] = {}
    pause = threading.Event()

    def answer(method: str, path: str) -> Answer:
        if method == "GET":
            return Answer(200, b"first", META)
        if method != "PUT":
            return Answer(204)
        if path in stored:
            return Answer(412, _xml("PreconditionFailed"))
        pause.wait(0.05)
        stored[path] = b""
        return Answer(200, b"", META)

    script.answer = answer
    assert script.open().probe() == "none"


def test_a_probe_without_an_answer_says_nothing(script: Script) -> None:
    script.answer = lambda *_: Answer(503)
    with pytest.raises(BackendError):
        script.open().probe()


def test_services_nobody_vouches_for_hold_data_only(script: Script) -> None:
    assert script.open().form == "log"
    b2 = open_backend(parse_url("s3://bucket?endpoint=https://s3.us-west-004.backblazeb2.com"))
    assert b2.form == "none"


def test_identity(script: Script) -> None:
    def of(url: str) -> bytes:
        return open_backend(parse_url(url)).identity()

    assert of("s3://bucket/a?region=eu-west-1") == of("s3://bucket/a/?capacity=1GB")
    assert of("s3://bucket/a?endpoint=HTTP://Host:9000/") == of("s3://bucket/a?endpoint=http://host:9000")
    assert len({of("s3://b11/a"), of("s3://b11/b"), of("s3://b22/a"), of("s3://b11/a?endpoint=http://h")}) == 4


def test_closed(script: Script) -> None:
    backend = script.open()
    backend.close()
    backend.close()
    with pytest.raises(AssertionError):
        backend.put("a", b"")


def test_where_keys_come_from(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = %d%\n"
        "[work]\naws_access_key_id=W\naws_secret_access_key=w\naws_session_token=t\n[half]\naws_access_key_id=H\n"
    )
    file_only = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    both = {**file_only, "AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "e", "AWS_SESSION_TOKEN": "et"}

    def of(environ: dict[str, str], profile: str | None = None) -> tuple[str, str, str | None]:
        keys = read_keys(environ, profile)
        return keys["access_key_id"], keys["secret_access_key"], keys["token"]

    assert of(both) == ("E", "e", "et")
    assert of(both, "work") == ("W", "w", "t")
    assert of(file_only) == ("D", "%d%", None)
    assert of({**file_only, "AWS_PROFILE": "work"}) == ("W", "w", "t")
    assert of({**file_only, "AWS_SESSION_TOKEN": "stray"}) == ("D", "%d%", None)
    for profile in ("half", "none"):
        with pytest.raises(RefusedError, match=profile):
            read_keys(both, profile)
    assert read_keys({"HOME": "/", "AWS_WEB_IDENTITY_TOKEN_FILE": "x", "AWS_PROFILE": "none"}, None) is None


@pytest.mark.parametrize("text", [b"hunter2 without a section", b"\xff\xfe\x00", b"[default\nhunter2"])
def test_a_credentials_file_that_is_none(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(text)
    with pytest.raises(RefusedError) as caught:
        read_keys({"AWS_SHARED_CREDENTIALS_FILE": str(file)}, None)
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"
    assert os.fspath(file) in str(caught.value)


def test_slow_down_is_remembered_for_the_account(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another way to it, to another bucket and as another process has one, does not ask; S3 names no time: a second."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    script.answer = lambda _method, _path: Answer(503, _xml("SlowDown"))
    one, other = (
        ways.reached("m", parse_url(f"s3://bucket-{n}/x?endpoint=http://127.0.0.1:{script.port}")) for n in "12"
    )
    with pytest.raises(BackendError, match="asks for fewer requests"):
        one.get("a", max_bytes=9)
    assert len(script.asked) == ways.ATTEMPTS_MAX
    monkeypatch.setattr(_pace, "_accounts", {})
    third = ways.reached("m", parse_url(f"s3://bucket-3/x?endpoint=http://127.0.0.1:{script.port}"))
    script.answer = lambda _method, _path: Answer(200, b"x", META)
    began = time.monotonic()
    for way in (other, third):
        assert way.get("a", max_bytes=9) == b"x"
    assert 0.5 < time.monotonic() - began < 5, "both waited for the end of the second"
    assert len(script.asked) == ways.ATTEMPTS_MAX + 2, "and asked once"
    for way in (one, other, third):
        way.close()
