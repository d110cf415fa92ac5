"""What the S3 backend makes of the answers that a sound server does not give; a small server here gives them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from answers_kit import (
    CALLS,
    META,
    PAGE,
    Answer,
    Refusal,
    Script,
    expect_absence,
    expect_no_page,
    expect_patience,
    expect_refusal,
    make_certificates,
    serving,
    xml,
)
from http_kit import gets_in_two_processes

from metasync.backends._shared import wire
from metasync.backends.api import Digest
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.wrappers import pace
from metasync.backends.wrappers.retry import ATTEMPTS_MAX
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.local import settings
from metasync.runtime.effects import Op, Task, Urgency
from metasync.runtime.tasks import Runtime
from metasync.session import open_backend as ways

ANSWERS = [
    Refusal(400, xml("ExpiredToken"), RefusedError, False),
    Refusal(400, xml("AuthorizationHeaderMalformed"), RefusedError, False),
    Refusal(400, xml("RequestTimeout"), BackendError, True),
    Refusal(400, xml("Whatever"), BackendError, False),
    Refusal(401, b"", RefusedError, False),
    Refusal(403, xml("AccessDenied"), RefusedError, False),
    Refusal(403, xml("InvalidAccessKeyId"), RefusedError, False),
    Refusal(403, xml("RequestTimeTooSkewed"), RefusedError, False),
    Refusal(403, xml("QuotaExceeded"), FullError, False),
    Refusal(403, xml("ObjectQuotaExceeded"), FullError, False),
    Refusal(400, xml("XMinioAdminBucketQuotaExceeded"), FullError, False),
    Refusal(403, xml("InvalidObjectState"), BackendError, False),
    Refusal(403, PAGE, RefusedError, False),
    Refusal(403, xml("NoSuchKey"), RefusedError, False),
    Refusal(409, xml("NoSuchKey"), BackendError, True),
    Refusal(404, xml("NoSuchBucket"), UnreachableError, True),
    Refusal(404, xml("SomethingElse"), UnreachableError, True),
    Refusal(404, PAGE, UnreachableError, True),
    Refusal(404, b"", UnreachableError, True),
    Refusal(409, xml("ConditionalRequestConflict"), BackendError, True),
    Refusal(409, xml("OperationAborted"), BackendError, True),
    Refusal(413, xml("EntityTooLarge"), RefusedError, False),
    Refusal(429, b"", BackendError, True),
    Refusal(500, xml("InternalError"), BackendError, True),
    Refusal(501, xml("NotImplemented"), BackendError, False),
    Refusal(502, PAGE, BackendError, True),
    Refusal(503, xml("SlowDown"), BackendError, True),
    Refusal(507, xml("XMinioStorageFull"), FullError, False),
]


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("refusal", ANSWERS)
def test_refusals(script: Script, call: Callable, refusal: Refusal) -> None:
    expect_refusal(script, call, refusal)


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    ("status", "body", "after_s"),
    [
        (503, xml("SlowDown"), 1.0),
        (503, xml("InternalError"), 1.0),
        (503, b"", 1.0),
        (429, b"", 1.0),
        (400, xml("RequestLimitExceeded"), 1.0),
        (500, xml("InternalError"), None),
        (502, PAGE, None),
    ],
)
def test_a_server_that_asks_for_fewer_requests(
    script: Script, call: Callable, status: int, body: bytes, after_s: float | None
) -> None:
    expect_patience(script, call, status, body, after_s)


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
    away = [xml("SlowDown")] * 3
    script.answer = lambda *_: Answer(503, away.pop()) if away else Answer(200, b"", {"ETag": '"e"'})
    backend = script.open()
    with Runtime({"s3": backend}) as runtime:
        futures = [runtime.start(_one(Op("s3", "put", f"p{n}", b"1", urgency=Urgency.SOON))) for n in range(20)]
        assert [f.result(60).error for f in futures] == [None] * 20
    assert len(script.asked) == 23
    backend.close()


def test_not_found(script: Script) -> None:
    expect_absence(script, "NoSuchKey")
    CALLS["delete"](script.open())


@pytest.mark.parametrize("kind", ["create", "put", "get", "get part", "stat"])
def test_a_login_page_for_everything(script: Script, kind: str) -> None:
    """(An empty list and a delete may pass for one: nothing rests on them.)"""
    expect_no_page(script, kind)


@pytest.mark.parametrize("kind", ["put", "create"])
def test_a_success_that_may_be_none(script: Script, kind: str) -> None:
    script.answer = lambda *_: Answer(200)
    with pytest.raises(BackendError) as caught:
        CALLS[kind](script.open())
    assert caught.value.retryable


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_another_region(script: Script, call: Callable) -> None:
    script.answer = lambda *_: Answer(301, xml("PermanentRedirect"))
    with pytest.raises(RefusedError, match="another region"):
        call(script.open())
    script.answer = lambda *_: Answer(
        400, xml("AuthorizationHeaderMalformed", "<Region>eu-central-1</Region>"), {"Content-Type": "application/xml"}
    )
    with pytest.raises(RefusedError, match="in the region eu-central-1") as caught:
        call(script.open())
    assert "&region=eu-central-1 " in caught.value.next_step


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_takes_no_signature_along_and_is_no_success(
    script: Script, monkeypatch: pytest.MonkeyPatch, call: Callable, status: int
) -> None:
    """(An empty list and a delete may pass for one: nothing rests on them.)"""
    monkeypatch.setenv("HTTP_PROXY", script.endpoint)
    script.answer = lambda _method, path: (
        Answer(200, PAGE, {"Content-Type": "text/html", "ETag": '"5f3a-64b"'})
        if "login" in path
        else Answer(status, b"", {"Location": "http://login.example.org/login"})
    )
    backend = open_backend(parse_url("s3://bucket/x?endpoint=http://s3.example.org"))
    try:
        call(backend)
    except BackendError as error:
        assert not isinstance(error, NotFoundError)
    else:
        assert call in (CALLS["list"], CALLS["delete"]), "a page is no success"
    assert "authorization" in script.heads[0]
    assert not any("authorization" in head for head in script.heads if "login" in head["path"])


def test_a_refusal_keeps_its_connection_unless_the_server_may_have_left_some_of_the_request_unread(
    script: Script,
) -> None:
    script.answer = lambda *_: Answer(404, xml("NoSuchKey"))
    with contextlib.closing(script.open()) as backend:
        for _ in range(5):
            with pytest.raises(NotFoundError):
                backend.get("d/a", max_bytes=9)
        assert len(script.clients) == 1
        for connections, answer in ((2, Answer(403, xml("AccessDenied"))), (3, Answer(307))):
            script.answer = lambda *_, answer=answer: answer
            for size_bytes in (1 << 20, 1):
                with pytest.raises(BackendError):
                    backend.put("d/a", bytes(size_bytes))
            assert len(script.clients) == connections


def test_large_answers_share_the_connections_of_small_ones(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"ab", META)
    backend = script.open()
    used: dict[int, set[tuple[str, int]]] = {9: set(), 1 << 26: set()}
    for _ in range(20):  # a connection that is given back a moment late is not used again at once
        for max_bytes, connections in used.items():
            script.clients.clear()
            assert backend.get("d/a", max_bytes=max_bytes) == b"ab"
            connections |= script.clients
    assert len(script.asked) == 40
    assert used[9] & used[1 << 26]


def test_silence_ends_a_read_and_slowness_does_not(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SMALL_TIMEOUT_S", 1)
    release = threading.Event()
    backend = script.open()
    script.answer = lambda *_: Answer(200, b"slow", META, drip_s=0.5)
    assert backend.get("d/a", max_bytes=9) == b"slow", "four bytes in two seconds"

    def silent(*_: str) -> Answer:
        release.wait(60)
        return Answer()

    script.answer = silent
    with pytest.raises(UnreachableError, match="no answer in time"):
        backend.get("d/a", max_bytes=1 << 26)
    release.set()


@pytest.mark.parametrize("size_bytes", [1, (1 << 18) + 1])
def test_a_large_write_may_take_longer_than_silence_may(
    script: Script, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(wire, "SMALL_TIMEOUT_S", 1)

    def late(*_: str) -> Answer:
        time.sleep(2)
        return Answer(200, b"", META)

    script.answer = late
    if size_bytes == 1:
        with pytest.raises(UnreachableError, match="no answer in time"):
            script.open().put("d/a", bytes(size_bytes))
    else:
        script.open().put("d/a", bytes(size_bytes))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_certificate_of_an_unknown_authority(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable
) -> None:
    authority, own = make_certificates(tmp_path)
    with serving(Script(), own) as server:
        server.answer = lambda *_: Answer(403, xml("SignatureDoesNotMatch"))
        with pytest.raises(UnreachableError, match="TLS certificate was not accepted") as caught:
            call(server.open())
        assert "SSL_CERT_FILE" in caught.value.next_step
        assert server.asked == []
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        with pytest.raises(RefusedError, match="refused the credentials"):
            call(server.open())


def test_plain_and_encrypted_confused(script: Script, tmp_path: Path) -> None:
    script.scheme = "https"
    with pytest.raises(UnreachableError, match="does not speak TLS"):
        CALLS["get"](script.open())
    with serving(Script(), make_certificates(tmp_path)[1]) as server:
        server.scheme = "http"
        with pytest.raises(UnreachableError, match="the connection broke"):
            CALLS["get"](server.open())


def test_proxies(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    far, far_encrypted = (parse_url(f"s3://bucket/x?endpoint={s}://s3.example.org") for s in ("http", "https"))
    proxy = script.endpoint
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    script.answer = lambda *_: Answer(407)
    with pytest.raises(UnreachableError, match="a proxy that asks for a login"):
        CALLS["get"](open_backend(far))
    with pytest.raises(UnreachableError, match="the proxy asks for a login") as caught:
        CALLS["get"](open_backend(far_encrypted))
    assert "HTTPS_PROXY" in caught.value.next_step
    script.answer = lambda *_: Answer(403)
    with pytest.raises(UnreachableError, match="the proxy let nothing through"):
        CALLS["get"](open_backend(far_encrypted))
    assert script.asked == ["GET", "CONNECT", "CONNECT"]
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="connection refused") as caught:
        CALLS["get"](open_backend(far_encrypted))
    assert "HTTPS_PROXY" in caught.value.next_step


def test_the_bucket_in_the_hosts_name(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", script.endpoint)
    script.answer = lambda *_: Answer(200, b"1", META)
    for virtual, path in (("1", "http://bucket.s3.example.org/x/a"), ("0", "http://s3.example.org/bucket/x/a")):
        backend = open_backend(parse_url(f"s3://bucket/x?endpoint=http://s3.example.org&virtual={virtual}"))
        assert backend.get("a", max_bytes=9) == b"1"
        assert script.heads[-1]["path"] == path
        assert backend.identity() == open_backend(parse_url("s3://bucket/x?endpoint=http://s3.example.org")).identity()


def test_who_gets_a_checksum(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon, and whoever is to have one by AWS_CHECKSUM_ALGORITHM; no server that may not know the header."""
    monkeypatch.setenv("HTTP_PROXY", script.endpoint)
    script.answer = lambda *_: Answer(200, b"", {**META, "ETag": f'"{"0" * 32}"'})
    right = base64.b64encode(hashlib.sha256(b"data").digest()).decode()
    for environment, host, sent in (
        ("", "s3.eu-west-1.amazonaws.com", right),
        ("", "s3.example.org", None),
        ("sha256", "s3.example.org", right),
    ):
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", environment) if environment else None
        open_backend(parse_url(f"s3://bucket/x?endpoint=http://{host}")).put("a", b"data")
        assert script.heads[-1].get("x-amz-checksum-sha256") == sent
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "hunter2")
    with pytest.raises(RefusedError, match="not in the right form") as caught:
        open_backend(parse_url("s3://bucket/x?endpoint=http://s3.example.org")).put("a", b"data")
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


def _tagged(tag: str, data: bytes = b"data") -> Callable[[str, str], Answer]:
    return lambda method, _: Answer(200, b"" if method == "PUT" else data, {**META, "ETag": tag})


def test_a_digest_counts_when_tags_were_seen_to_be_md5s(script: Script) -> None:
    md5 = hashlib.md5(b"data").hexdigest()
    script.answer = _tagged(f'"{md5}"')
    backend = script.open()
    assert backend.digest("a") == Digest(4, None)
    for see in (lambda b: b.put("a", b"data"), lambda b: b.create("a", b"data"), lambda b: b.get("a", max_bytes=9)):
        backend = script.open()
        see(backend)
        assert backend.digest("a") == Digest(4, bytes.fromhex(md5))
    script.asked.clear()
    backend.digest("a")
    assert script.asked == ["HEAD"]


@pytest.mark.parametrize("tag", ["0" * 32, "d41d8cd98f00b204e9800998ecf8427e-3", "W/x", "e"])
def test_a_tag_that_is_no_md5_ends_all_digests(script: Script, tag: str) -> None:
    """So it is with SSE-KMS and SSE-C: the tag has 32 digits, and they are not those of the bytes."""
    md5 = hashlib.md5(b"data").hexdigest()
    script.answer = _tagged(f'"{md5}"')
    backend = script.open()
    backend.put("a", b"data")
    script.answer = _tagged(f'"{tag}"')
    if tag != "0" * 32:
        assert backend.digest("large") == Digest(4, None), "this object alone"
    backend.put("b", b"data")
    script.answer = _tagged(f'"{md5}"')
    backend.put("a", b"data")
    assert backend.digest("a") == Digest(4, None)


def test_a_digest_of_what_is_not_there(script: Script) -> None:
    script.answer = lambda method, _: Answer(404, b"" if method == "HEAD" else xml("NoSuchKey"))
    with pytest.raises(NotFoundError):
        script.open().digest("a")
    script.answer = lambda *_: Answer(404, xml("NoSuchBucket"))
    with pytest.raises(UnreachableError, match="cannot digest a"):
        script.open().digest("a")


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


def test_a_process_that_was_forked(script: Script) -> None:
    """Each process has connections of its own: on shared ones each would hear the other's answers."""
    script.answer = lambda _method, path: Answer(200, path[-1:].encode(), META)
    assert gets_in_two_processes(script.url.format(prefix="x", endpoint=script.endpoint)) == ""


def test_an_answer_that_announces_another_one(script: Script) -> None:
    """After 103 the answer itself follows: on a kept connection it would be read as the answer to the next request."""
    script.answer = lambda _method, path: Answer(
        200, path[-1:].encode(), META, before=b"HTTP/1.1 103 Early Hints\r\n\r\n" if path.endswith("a") else b""
    )
    backend = script.open()
    with pytest.raises(UnreachableError):
        backend.put("a", b"1")
    assert backend.get("b", max_bytes=9) == b"b"
    assert len(script.clients) == 2
    backend.close()


def test_slow_down_is_remembered_for_the_account(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another way to it, to another bucket and as another process has one, does not ask; S3 names no time: a second."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refused: list[float] = []
    served: list[float] = []

    def refuse(_method: str, _path: str) -> Answer:
        refused.append(time.monotonic())
        return Answer(503, xml("SlowDown"))

    def serve(_method: str, _path: str) -> Answer:
        served.append(time.monotonic())
        return Answer(200, b"x", META)

    script.answer = refuse
    one, other = (
        ways.reached("m", parse_url(f"s3://bucket-{n}/x?endpoint=http://127.0.0.1:{script.port}")) for n in "12"
    )
    with pytest.raises(BackendError, match="asks for fewer requests"):
        one.get("a", max_bytes=9)
    assert len(script.asked) == ATTEMPTS_MAX
    monkeypatch.setattr(pace, "_accounts", {})
    third = ways.reached("m", parse_url(f"s3://bucket-3/x?endpoint=http://127.0.0.1:{script.port}"))
    script.answer = serve
    for way in (other, third):
        assert way.get("a", max_bytes=9) == b"x"
    assert served[0] - refused[-1] > 0.9, "both waited for the end of the second"
    assert len(script.asked) == ATTEMPTS_MAX + 2, "and asked once"
    for way in (one, other, third):
        way.close()
