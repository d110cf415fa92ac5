"""Which S3 servers may vote, what a probe finds out, and what becomes of a create that broke off."""

from __future__ import annotations

import os
import threading

import pytest
from answers_kit import (
    META,
    Answer,
    Script,
    xml,
)

from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, UnreachableError
from metasync.session import open_backend as ways


def test_a_server_that_ignores_the_condition(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"", META)
    assert script.open().probe() == "none"


def test_a_server_that_knows_no_conditions(script: Script) -> None:
    script.answer = lambda method, _: Answer(501 if method == "PUT" else 204, xml("NotImplemented"), META)
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
            return Answer(412, xml("PreconditionFailed"))
        pause.wait(0.05)
        stored[path] = b""
        return Answer(200, b"", META)

    script.answer = answer
    assert script.open().probe() == "none"


def test_a_probe_without_an_answer_says_nothing(script: Script) -> None:
    script.answer = lambda *_: Answer(503)
    with pytest.raises(BackendError):
        script.open().probe()


@pytest.mark.parametrize(
    ("where", "form"),
    [
        ("", "log"),
        ("https://s3.eu-central-1.amazonaws.com", "log"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "log"),
        ("https://0123.r2.cloudflarestorage.com", "log"),
        ("http://127.0.0.1:9000", "log"),
        ("http://192.168.1.5:9000", "log"),
        ("http://[fd00::5]:9000", "log"),
        ("http://nas:9000", "log"),
        ("http://minio.lan:9000", "log"),
        ("https://s3.us-west-004.backblazeb2.com", "none"),
        ("https://s3.example.org", "none"),
        ("https://amazonaws.com.example.org", "none"),
        ("https://evilamazonaws.com", "none"),
        ("http://1.1.1.1:9000", "none"),
        ("http://16843009:9000", "none"),
        ("http://0x01010101:9000", "none"),
        ("https://s3.example.org&server=minio", "log"),
        ("https://s3.example.org&server=ceph", "log"),
        ("https://s3.example.org&server=versitygw", "log"),
        ("http://nas:9000&server=garage", "none"),
        ("http://nas:9000&server=seaweedfs", "none"),
        ("http://nas:9000&server=other", "none"),
    ],
)
def test_who_may_vote(script: Script, where: str, form: str) -> None:
    backend = open_backend(parse_url(f"s3://bucket/x?endpoint={where}" if where else "s3://bucket/x"))
    assert backend.form == form
    reason = getattr(backend, "form_reason", "")
    assert ("server=minio" in reason) == (form == "none")


def test_a_create_that_broke_off(script: Script) -> None:
    """Only other bytes say that the name was taken: one's own may have come by this create, whose answer was lost."""
    own = os.urandom((1 << 18) + 1)
    held: list[bytes] = []

    def answer(method: str, _path: str) -> Answer:
        if method == "PUT":
            return Answer(hangs_up=True)
        return Answer(200, held[0], META) if held else Answer(404, xml("NoSuchKey"))

    script.answer = answer
    for there in (own[::-1], own[1:]):
        held[:] = [there]
        assert script.open().create("a", own) is False
    for size, looks in ((len(own), True), (len(own) - 1, False)):
        for there in ([], [own[:size]]):
            held[:] = there
            script.asked.clear()
            with pytest.raises(UnreachableError) as caught:
                script.open().create("a", own[:size])
            assert caught.value.retryable
            assert script.asked.count("PUT") == 1
            assert (len(script.asked) > 1) is looks, "a small one is cheap to send again"


def test_a_large_create_that_landed_unheard_is_ones_own(script: Script) -> None:
    """Its answer was lost, the next attempt is told that the name is taken, and what lies there are its bytes."""
    own = os.urandom((1 << 18) + 1)
    hung_up: list[str] = []

    def answer(method: str, path: str) -> Answer:
        if method != "PUT":
            part = {"Content-Range": f"bytes 0-{len(own) - 1}/{len(own)}"} if "range" in script.heads[-1] else {}
            return Answer(206 if part else 200, own, {**META, **part})
        if not hung_up:
            hung_up.append(path)
            return Answer(hangs_up=True)
        return Answer(412, xml("PreconditionFailed"))

    script.answer = answer
    assert ways.wrapped(script.open()).create("a", own) is True
