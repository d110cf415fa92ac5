"""The Azure backend on a real server: the contract, and what it says when server, container or key are not right."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import replace

import azurite
import pytest
from contract_kit import FULL, SMALL, passes
from object_calls import CALLS, expect_gone, expect_prefixes_apart, expect_return, open_url

from metasync.backends.api import TellsDigests, TellsSpace
from metasync.errors import RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
@pytest.mark.parametrize("prefix", ["", "some/prefix"])
def test_contract(azure_server: azurite.AzuriteServer, check: Check, prefix: str) -> None:
    passes(check, Store.at(azure_server.url(prefix)), FULL if prefix else SMALL, f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(azure_server: azurite.AzuriteServer) -> None:
    report = run(Store.at(azure_server.url("run")), scratch_name(), scale=replace(QUICK, kills=1, race_names=40))
    assert report.verdict == "may vote", report.reasons
    assert {outcome.name for outcome in report.checks if outcome.result != "passed"} <= {
        "space",
        "digest",
        "race",
        "watch",
    }
    assert report.left_behind == 0


def test_what_it_cannot_tell(azure_server: azurite.AzuriteServer) -> None:
    backend = open_url(azure_server.url("x"))
    assert not isinstance(backend, TellsSpace)
    assert not isinstance(backend, TellsDigests), "an ETag of Azure's is not a digest"


def test_prefixes_and_containers_are_apart(azure_server: azurite.AzuriteServer) -> None:
    expect_prefixes_apart(azure_server.url)
    azure_server.make_container("another")
    other = open_url(azure_server.url("apart/one", container="another"))
    assert other.list("") == ()
    assert other.create("a", b"2") is True


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_container_that_is_not_there_is_never_an_empty_one(
    azure_server: azurite.AzuriteServer, call: Callable
) -> None:
    with pytest.raises(UnreachableError, match="no such container"):
        call(open_url(azure_server.url("x", container="missing")))


def test_a_container_that_was_deleted(azure_server: azurite.AzuriteServer) -> None:
    azure_server.make_container("deleted")
    backend = open_url(azure_server.url("x", container="deleted"))
    expect_gone(backend, lambda: azure_server.remove_container("deleted"), "container")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("wrong", ["key", "signature", "old signature", "token"])
def test_wrong_credentials(
    azure_server: azurite.AzuriteServer, monkeypatch: pytest.MonkeyPatch, call: Callable, wrong: str
) -> None:
    key = azure_server.env["AZURE_STORAGE_ACCOUNT_KEY"]
    if wrong == "key":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"hunter2" * 9).decode())
    else:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        sas = {"signature": f"{azure_server.sas()}hunter2", "old signature": azure_server.sas(seconds=-60)}
        if wrong in sas:
            monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas[wrong])
        else:
            monkeypatch.setenv("AZURE_STORAGE_TOKEN", "hunter2")
    backend = open_url(azure_server.url("x"))
    with pytest.raises(RefusedError, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
        call(backend)
    said = f"{caught.value}{caught.value!r}{backend!r}"
    assert "hunter2" not in said
    assert key not in said
    assert "sig=" not in said


def test_a_signature_opens_one_container(azure_server: azurite.AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    azure_server.make_container("elsewhere")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_server.sas())
    backend = open_url(azure_server.url("sas"))
    assert [backend.create("a", b"1"), backend.create("a", b"2")] == [True, False]
    assert backend.get("a", max_bytes=1) == b"1"
    backend.delete("a")
    backend.delete("a")
    assert backend.list("") == ()
    with pytest.raises(RefusedError):
        open_url(azure_server.url("sas", container="elsewhere")).list("")


def test_a_signature_that_may_only_read(azure_server: azurite.AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    open_url(azure_server.url("readonly")).put("a", b"1")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_server.sas("rl"))
    backend = open_url(azure_server.url("readonly"))
    assert backend.get("a", max_bytes=1) == b"1"
    for call in (lambda: backend.put("a", b"2"), lambda: backend.create("b", b"2"), lambda: backend.delete("a")):
        with pytest.raises(RefusedError):
            call()
    assert backend.list("") == (("a", 1),)


def test_a_connection_string(azure_server: azurite.AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    key = azure_server.env["AZURE_STORAGE_ACCOUNT_KEY"]
    for name in azure_server.env:
        monkeypatch.delenv(name)
    text = f"DefaultEndpointsProtocol=https;AccountName={azure_server.account};AccountKey={key};EndpointSuffix=x"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert open_url(azure_server.url("string")).create("a", b"1") is True


def test_what_the_environment_says_besides_does_not_matter(
    azure_server: azurite.AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AZURE_STORAGE_TOKEN": "another",
        "AZURE_STORAGE_SAS_TOKEN": "sig=another",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
        "AZURE_ENDPOINT": "http://127.0.0.1:9",
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:9",
        "AZURE_SKIP_SIGNATURE": "true",
        "AZURE_CONTAINER_NAME": "another",
        "AZURE_CREDENTIAL_TYPE": "azure_cli",
    }.items():
        monkeypatch.setenv(name, value)
    backend = open_url(azure_server.url("environment"))
    assert [backend.create("a", b"1"), backend.create("a", b"2")] == [True, False]
    assert backend.list("") == (("a", 1),)


def test_a_server_that_goes_and_comes_back(own_azure_server: azurite.AzuriteServer) -> None:
    expect_return(own_azure_server)


def test_probe(azure_server: azurite.AzuriteServer) -> None:
    backend = open_url(azure_server.url("probe"))
    assert backend.probe() == "log"
    assert backend.list("") == ()
