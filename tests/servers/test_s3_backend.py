"""The S3 backend on a real server: the contract, and what it says when server, bucket or key are not right."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import s3
from contract_kit import FULL, SMALL, passes
from object_calls import CALLS, expect_gone, expect_prefixes_apart, expect_return, open_url

from metasync.backends.api import Digest, TellsDigests
from metasync.errors import RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
@pytest.mark.parametrize("prefix", ["", "some/prefix"])
def test_contract(s3_server: s3.S3Server, check: Check, prefix: str) -> None:
    passes(check, Store.at(s3_server.url(prefix)), SMALL if prefix else FULL, f"contract-{secrets.token_hex(4)}")


def test_names_are_refused_before_any_request(s3_keys: dict[str, str]) -> None:
    nobody = open_url("s3://metasync?endpoint=http://127.0.0.1:9")
    for path in ("../a", "A", "a//b", ".tmp-1"):
        for call in (
            lambda path=path: nobody.create(path, b""),
            lambda path=path: nobody.put(path, b""),
            lambda path=path: nobody.get(path, max_bytes=1),
            lambda path=path: nobody.stat(path),
            lambda path=path: nobody.list(path),
            lambda path=path: nobody.delete(path),
        ):
            with pytest.raises(ValueError, match="not a path"):
                call()


def test_a_run_of_the_kit(s3_server: s3.S3Server) -> None:
    report = run(Store.at(s3_server.url("run")), scratch_name(), scale=replace(QUICK, kills=1))
    assert report.verdict == "may vote", report.reasons
    assert {outcome.name for outcome in report.checks if outcome.result != "passed"} == {"space", "watch"}
    assert report.left_behind == 0
    assert open_url(s3_server.url("run")).list("") == ()


def test_no_verdict_without_a_bucket_or_a_key(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match="no such bucket"):
        run(Store.at(s3_server.url("x", bucket="missing")), scratch_name())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2hunter")
    with pytest.raises(RefusedError, match="AWS_SECRET_ACCESS_KEY"):
        run(Store.at(s3_server.url("x")), scratch_name())


def test_prefixes_are_apart(s3_server: s3.S3Server) -> None:
    expect_prefixes_apart(s3_server.url)


def test_servers_are_independent(s3_servers: Callable[[int], list[s3.S3Server]]) -> None:
    backends = [open_url(server.url("independent")) for server in s3_servers(3)]
    for number, backend in enumerate(backends):
        assert backend.create("same", b"%d" % number) is True
    assert [backend.get("same", max_bytes=1) for backend in backends] == [b"0", b"1", b"2"]
    assert len({backend.identity() for backend in backends}) == 3


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_bucket_that_is_not_there_is_never_an_empty_one(s3_server: s3.S3Server, call: Callable) -> None:
    with pytest.raises(UnreachableError, match="no such bucket"):
        call(open_url(s3_server.url("x", bucket="missing")))


def test_a_bucket_that_was_deleted(s3_server: s3.S3Server) -> None:
    s3_server.make_bucket("deleted")
    backend = open_url(s3_server.url("x", bucket="deleted"))
    expect_gone(backend, lambda: s3_server.remove_bucket("deleted"), "bucket")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_a_wrong_key(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch, call: Callable, wrong: str) -> None:
    monkeypatch.setenv(wrong, "hunter2hunter2hunter")
    backend = open_url(s3_server.url("x"))
    with pytest.raises(RefusedError, match="AWS_SECRET_ACCESS_KEY") as caught:
        call(backend)
    said = f"{caught.value}{caught.value!r}{backend!r}"
    assert "hunter2" not in said
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in said


def test_what_the_environment_says_besides_does_not_matter(
    s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[default]\naws_access_key_id = no\naws_secret_access_key = no\n[work]\n"
        f"aws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}\naws_secret_access_key={keys['AWS_SECRET_ACCESS_KEY']}\n"
    )
    for name, value in {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_ACCESS_KEY_ID": "another",
        "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_SESSION_TOKEN": "another",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_BUCKET": "another",
        "AWS_SKIP_SIGNATURE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    backend = open_url(f"{s3_server.url('environment')}&profile=work")
    assert backend.create("a", b"1") is True
    assert backend.create("a", b"2") is False
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert open_url(s3_server.url("environment")).get("a", max_bytes=1) == b"1"


def test_a_server_that_goes_and_comes_back(own_s3_server: s3.S3Server) -> None:
    expect_return(own_s3_server)


def test_a_checksum_is_taken(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Amazon gets it by default: the server compares it, and creates are as they were."""
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "sha256")
    backend = open_url(s3_server.url("checksum"))
    assert [backend.create("a", b"1"), backend.create("a", b"2")] == [True, False]
    backend.put("b", bytes(1 << 20))
    assert backend.get("b", max_bytes=1 << 20) == bytes(1 << 20)
    assert backend.probe() == "log"


def test_digests(s3_server: s3.S3Server) -> None:
    backend = open_url(s3_server.url("digests"))
    assert isinstance(backend, TellsDigests)
    big = secrets.token_bytes(1 << 20)
    backend.put("big", big)
    assert backend.digest("big") == Digest(1 << 20, None), "nothing small was seen yet to show what tags mean here"
    backend.put("small", b"1")
    assert backend.digest("big") == Digest(1 << 20, hashlib.md5(big).digest())


def test_probe(s3_server: s3.S3Server) -> None:
    backend = open_url(s3_server.url("probe"))
    assert backend.probe() == "log"
    assert backend.list("") == ()


def test_the_script_for_benchmarks(tmp_path: Path, s3_keys: dict[str, str]) -> None:
    script = Path(s3.__file__)
    with subprocess.Popen(
        [sys.executable, str(script), "--count", "2", "--root", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [process.stdout.readline().strip() for _ in range(6)]
        assert lines[5] == "ready"
        ports = [int(line.partition("127.0.0.1:")[2].partition("&")[0]) for line in lines[:2]]
        assert all(line.startswith("export AWS_") for line in lines[2:5])
        process.stdin.close()
        assert process.wait(60) == 0
    for port in ports:
        with pytest.raises(UnreachableError):
            open_url(f"s3://metasync?endpoint=http://127.0.0.1:{port}").list("")
