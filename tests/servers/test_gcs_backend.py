"""The Google Cloud Storage backend on a real server: the contract, digests, outages, and buckets that are not right.

fake-gcs-server asks for no credentials; what becomes of wrong ones is in tests/backends/test_gcs_answers.py.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace

import fakegcs
import pytest
from contract_kit import FULL, SMALL, passes
from object_calls import CALLS, expect_gone, expect_prefixes_apart, expect_return, open_url

from metasync.backends.api import Digest, TellsDigests, TellsSpace
from metasync.errors import UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
@pytest.mark.parametrize("prefix", ["", "some/prefix"])
def test_contract(gcs_server: fakegcs.GcsServer, check: Check, prefix: str) -> None:
    passes(check, Store.at(gcs_server.url(prefix)), FULL if prefix else SMALL, f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(gcs_server: fakegcs.GcsServer) -> None:
    report = run(Store.at(gcs_server.url("run")), scratch_name(), scale=replace(QUICK, kills=1, race_names=40))
    assert report.verdict == "may vote", report.reasons
    assert {outcome.name for outcome in report.checks if outcome.result != "passed"} <= {"space", "race", "watch"}
    assert report.left_behind == 0


def test_digests(gcs_server: fakegcs.GcsServer) -> None:
    backend = open_url(gcs_server.url("digests"))
    assert isinstance(backend, TellsDigests)
    assert not isinstance(backend, TellsSpace)
    big = secrets.token_bytes(1 << 20)
    backend.put("big", big)
    assert backend.digest("big") == Digest(1 << 20, None), "nothing small was seen yet to show what tags mean here"
    backend.put("small", b"1")
    assert backend.digest("big") == Digest(1 << 20, hashlib.md5(big).digest())
    reader = open_url(gcs_server.url("digests"))
    assert reader.get("small", max_bytes=9) == b"1"
    assert reader.digest("big").value == hashlib.md5(big).digest()


def test_prefixes_and_buckets_are_apart(gcs_server: fakegcs.GcsServer) -> None:
    expect_prefixes_apart(gcs_server.url)
    gcs_server.make_bucket("another")
    other = open_url(gcs_server.url("apart/one", bucket="another"))
    assert other.list("") == ()
    assert other.create("a", b"2") is True


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_bucket_that_is_not_there_is_never_an_empty_one(gcs_server: fakegcs.GcsServer, call: Callable) -> None:
    with pytest.raises(UnreachableError, match="no such bucket"):
        call(open_url(gcs_server.url("x", bucket="missing")))


def test_a_bucket_that_was_deleted(gcs_server: fakegcs.GcsServer) -> None:
    gcs_server.make_bucket("deleted")
    backend = open_url(gcs_server.url("x", bucket="deleted"))
    expect_gone(backend, lambda: gcs_server.remove_bucket("deleted"), "bucket")


def test_what_the_environment_says_does_not_matter(
    gcs_server: fakegcs.GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "GOOGLE_BASE_URL": "http://127.0.0.1:9",
        "GOOGLE_BUCKET": "another",
        "GOOGLE_SKIP_SIGNATURE": "false",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    backend = open_url(gcs_server.url("environment"))
    assert [backend.create("a", b"1"), backend.create("a", b"2")] == [True, False]


def test_a_server_that_goes_and_comes_back(own_gcs_server: fakegcs.GcsServer) -> None:
    expect_return(own_gcs_server)


def test_probe(gcs_server: fakegcs.GcsServer) -> None:
    backend = open_url(gcs_server.url("probe"))
    assert backend.probe() == "log"
    assert backend.list("") == ()
