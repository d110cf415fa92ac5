"""The trace: one line per call, whoever makes it, and no secret in any of them."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_kit import Lab, run_process, write

from metasync.backends.api import Backend
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import parse_url
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.trace import TEXT_CHARS_MAX, Traced, file_sink, redacted
from metasync.errors import NotFoundError, UnreachableError, UsageError
from metasync.session import open_backend
from metasync.testing.faults import FaultyBackend


class Sink(list[str]):
    """Keeps the lines."""

    def __call__(self, line: str) -> None:
        self.append(line)

    def fields(self) -> list[list[str]]:
        return [line.split("\t") for line in self]


@pytest.fixture
def sink() -> Sink:
    return Sink()


def ticking() -> Callable[[], float]:
    """A clock that goes on by a quarter of a second whenever it is looked at."""
    times = iter(range(1_000_000))
    return lambda: next(times) / 4


def test_a_line_per_call(sink: Sink) -> None:
    backend = Traced(MemoryBackend(), "disk-a", sink, clock=ticking())
    backend.create("d/a", b"content")
    backend.create("d/a", b"content")
    backend.put("d/b", b"x")
    backend.get("d/a", offset=1, length=3, max_bytes=9)
    backend.stat("d/a")
    backend.list("")
    backend.delete("d/a")
    with pytest.raises(NotFoundError):
        backend.get("d/a", max_bytes=9)
    with pytest.raises(ValueError, match="not a path"):
        backend.put("../x", b"")
    assert [f[1:] for f in sink.fields()] == [
        ["disk-a", "create", "d/a", "up=7", "ok", "250.000", "1"],
        ["disk-a", "create", "d/a", "up=7", "taken", "250.000", "1"],
        ["disk-a", "put", "d/b", "up=1", "ok", "250.000", "1"],
        ["disk-a", "get", "d/a", "down=3", "ok", "250.000", "1"],
        ["disk-a", "stat", "d/a", "-", "ok", "250.000", "1"],
        ["disk-a", "list", "-", "-", "ok", "250.000", "1"],
        ["disk-a", "delete", "d/a", "-", "ok", "250.000", "1"],
        ["disk-a", "get", "d/a", "-", "NotFoundError: d/a is not in this store", "250.000", "1"],
        ["disk-a", "put", "../x", "-", "ValueError: not a path in a backend: '../x'", "250.000", "1"],
    ]
    times = [float(f[0]) for f in sink.fields()]
    assert times == sorted(times)


def test_attempts_are_numbered(sink: Sink) -> None:
    faulty = FaultyBackend(MemoryBackend())
    backend = Retrying(Traced(faulty, "m", sink), attempts_max=3, sleep=lambda _s: None)
    faulty.fail_next("unreachable", times=2)
    backend.put("a", b"")
    backend.put("a", b"")
    assert [f[7] for f in sink.fields()] == ["1", "2", "3", "1"]
    faulty.fail_next("unreachable")
    backend.put("a", b"")
    backend.inner.stat("a")
    assert sink.fields()[-1][7] == "1", "past the retries, in the same thread"


def test_what_is_still_under_way_when_it_closes(sink: Sink) -> None:
    faulty = FaultyBackend(MemoryBackend())
    faulty.hanging = True
    backend = Traced(faulty, "m", sink)

    def call() -> None:
        with pytest.raises(UnreachableError):
            backend.stat("a")

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    while not faulty.calls["stat"]:
        pass
    backend.close()
    faulty.release()
    caller.join(60)
    assert [f[2:6] for f in sink.fields()] == [["stat", "a", "-", "no answer yet"]], "once"


def test_a_broken_sink_fails_no_call() -> None:
    def broken(_line: str) -> None:
        raise OSError("disk full")

    backend = Traced(MemoryBackend(), "m", broken)
    backend.put("a", b"1")
    assert backend.get("a", max_bytes=1) == b"1"


def test_lines_from_many_threads_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    backend = Traced(MemoryBackend(), "m", file_sink(str(path)))
    threads = [
        threading.Thread(target=lambda n=n: [backend.put(f"{n}/{i}", b"x" * n) for i in range(100)]) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = path.read_text().splitlines()
    assert len(lines) == 800
    assert all(line.count("\t") == 7 for line in lines)
    assert {line.split("\t")[3] for line in lines} == {f"{n}/{i}" for n in range(8) for i in range(100)}


# --- secrets

SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PLANTED = [
    ("https://anna:hunter2@dav.example.org/x: refused", "hunter2"),
    ("s3://AKIAIOSFODNN7EXAMPLE@bucket/x", "AKIAIOSFODNN7EXAMPLE"),
    ("GET https://b.example.org/o?X-Amz-Credential=abc&X-Amz-Signature=fe5f80f77d5fa3be failed", "fe5f80f77d5fa3be"),
    ("GET https://b.example.org/o?sv=2020&sig=q%2Bx failed", "q%2Bx"),
    ("Authorization: Bearer short-1", "short-1"),
    ("authorization: Basic YW5uYTpodW50ZXIy", "YW5uYTpodW50ZXIy"),
    ("AWS4-HMAC-SHA256 Credential=AKIAX/us, SignedHeaders=host, Signature=fe5f80f7", "fe5f80f7"),
    ('{"access_token": "ya29.a0", "expires_in": 3599}', "ya29.a0"),
    ("{'refresh_token': '1//0gabc'}", "1//0gabc"),
    ("client_secret=GOCSPX&grant=x", "GOCSPX"),
    ("password is wrong: passwd=hunter2;", "hunter2"),
    ("Set-Cookie: session=deadbeef; Path=/", "deadbeef"),
    (f"the key {SECRET_KEY} is unknown", SECRET_KEY),
    (f"token {JWT} has expired", JWT),
    ("<AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId><StringToSign>AWS4 x y</StringToSign>", "AWS4 x y"),
    ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADAN\n-----END PRIVATE KEY-----", "IBADAN"),
    ("-----BEGIN PRIVATE KEY-----\nMIIEvQ", "MIIEvQ"),
    ("it was 'correct horse' and no other", "correct horse"),
]
ENVIRON = {"METASYNC_PASSPHRASE": "correct horse", "METASYNC_PASSPHRASE_FILE": "d/plain-path", "HOME": "/home/anna"}


@pytest.mark.few
@pytest.mark.parametrize(("text", "secret"), PLANTED, ids=range(len(PLANTED)))
@pytest.mark.parametrize("where", ["error", "cause", "path", "name"])
def test_no_secret_in_a_line(sink: Sink, text: str, secret: str, where: str) -> None:
    class Store(MemoryBackend):
        def stat(self, path: str) -> int:
            if where == "cause":
                raise UnreachableError(f"cannot stat {path}") from OSError(text)
            raise UnreachableError(f"cannot stat {path}: {text if where == 'error' else ''}", next_step=text)

    backend = Traced(Store(), text if where == "name" else "m", sink, environ=ENVIRON)
    with pytest.raises(UnreachableError):
        backend.stat(text if where == "path" else "d/a")
    assert len(sink) == 1
    assert secret not in sink[0]
    assert sink[0].count("\t") == 7
    assert "\n" not in sink[0]


def test_no_content_in_a_line(sink: Sink) -> None:
    backend = Traced(MemoryBackend(), "m", sink)
    backend.create("a", b"hunter2 and more")
    backend.get("a", max_bytes=99)
    assert not any("hunter2" in line for line in sink)


@pytest.mark.parametrize(
    "text",
    [
        "cannot get 5f0c1b2d3e4f5a6b7c8d9e0f1a2b3c4d/px/0/"
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 in s3://bucket/docs at"
        " http://127.0.0.1:9000: the server answered 503 (SlowDown)",
        "cannot put ab/meta/0/ff in /media/my stick/metasync: No space left on device",
        "cannot stat a: the server refused the credentials (InvalidAccessKeyId)",
        "no answer for 5.0 s",
    ],
)
def test_what_is_no_secret_can_be_read(text: str) -> None:
    assert redacted(text, ENVIRON) == text


def test_control_characters_are_escaped(sink: Sink) -> None:
    backend = Traced(MemoryBackend(), "m", sink)
    with pytest.raises(ValueError, match="not a path"):
        backend.stat("a\x1b[31m\r\n\tb\u202e\x00")
    assert sink.fields()[0][3] == r"a\x1b[31m\r\n\tb\u202e\x00"
    assert sink[0].isprintable() or set(sink[0]) - set("\t") == {c for c in sink[0] if c.isprintable()}


def test_texts_are_bounded(sink: Sink) -> None:
    class Store(MemoryBackend):
        def stat(self, path: str) -> int:
            raise UnreachableError("long " * 1_000_000)

    with pytest.raises(UnreachableError):
        Traced(Store(), "m", sink).stat("a")
    assert len(sink[0]) < TEXT_CHARS_MAX + 100


# --- for users


def test_the_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    old = os.umask(0)
    try:
        write_line = file_sink(str(path))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_line("one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file_sink(str(path))("two")
    assert path.read_text() == "one\ntwo\n", "appended"
    with pytest.raises(UsageError, match="cannot write the trace"):
        file_sink(str(tmp_path / "no" / "folder"))


@pytest.mark.long
def test_every_command_writes_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = lab.root / "trace"
    monkeypatch.setenv("METASYNC_TRACE", str(trace))
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"hello"})
    w.push()
    w.close()

    def taken() -> list[list[str]]:
        lines = [line.split("\t") for line in trace.read_text().splitlines()]
        trace.unlink()
        return lines

    lines = taken()
    assert {f[1] for f in lines} == {"a", "b", "c"}
    assert {f[2] for f in lines} >= {"open", "create", "put", "get", "identity"}
    assert "correct horse" not in json.dumps(lines)
    for words in (["status"], ["push"], ["pull"], ["check"], ["log"], ["backend", "list"]):
        ran = run_process(*words, cwd=w.directory)
        assert ran.code == 0, ran.err
        asked = {f[1] for f in taken() if f[2] == "get"}
        assert asked <= {"a", "b", "c"}, words
        assert len(asked) >= 2, words  # a look ends with a quorum: the third may not have been asked yet
    lab.clone(lab.urls("a", "b", "c")).close()
    assert {f[2] for f in taken()} >= {"open", "list", "get", "put"}


def test_a_trace_that_cannot_be_written_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_TRACE", str(lab.root / "no" / "folder" / "trace"))
    with pytest.raises(UsageError, match="METASYNC_TRACE"):
        lab.init(lab.urls("a"))


def test_an_opening_that_fails_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_TRACE", str(tmp_path / "trace"))
    with pytest.raises(UnreachableError, match="x: the folder"):
        open_backend.opened("x", parse_url(f"file://{tmp_path}/gone"), create=False)
    fields = (tmp_path / "trace").read_text().rstrip("\n").split("\t")
    assert fields[1:3] == ["x", "open"]
    assert fields[5].startswith("UnreachableError: the folder")


def test_without_the_variable_nothing_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_TRACE", raising=False)
    opened: Backend = open_backend.opened("x", parse_url(f"file://{tmp_path}"), create=False)
    assert not isinstance(opened, Traced)
