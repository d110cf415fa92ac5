"""What the Azure backend makes of answers that a sound server does not give, and which credentials it takes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
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
    own_keyring,
    serving,
    xml,
)

from metasync.backends.azure import AzureBackend, read_credentials, string_to_sign
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

KEY = base64.b64encode(b"hunter2" * 9).decode()
URL = "azure://container/{prefix}?account=name&endpoint={endpoint}/name"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with serving(Script(url=URL)) as script:
        yield script


ANSWERS = [
    Refusal(400, xml("AuthorizationHeaderMalformed"), BackendError, False, "400"),
    Refusal(400, xml("Whatever"), BackendError, False, "Whatever"),
    Refusal(401, xml("NoAuthenticationInformation"), RefusedError, False, "refused the credentials"),
    Refusal(401, b"", RefusedError, False, "refused the credentials"),
    Refusal(403, xml("AuthenticationFailed"), RefusedError, False, "refused the credentials"),
    Refusal(403, xml("AuthorizationFailure"), RefusedError, False, "refused the credentials"),
    Refusal(403, xml("AuthorizationPermissionMismatch"), RefusedError, False, "AuthorizationPermissionMismatch"),
    Refusal(403, xml("AuthenticationFailed", "Request date header too old: 'Sat'"), RefusedError, False, "clock"),
    Refusal(403, PAGE, RefusedError, False, "403"),
    Refusal(403, xml("BlobNotFound"), RefusedError, False, "403"),
    Refusal(500, xml("BlobNotFound"), BackendError, True, "500"),
    Refusal(404, xml("ContainerNotFound"), UnreachableError, True, "no such container"),
    Refusal(404, xml("ResourceNotFound"), UnreachableError, True, "not the Azure server"),
    Refusal(404, PAGE, UnreachableError, True, "not the Azure server"),
    Refusal(
        404, b"Bulk delete request failed for key a: gone (code: 404)", UnreachableError, True, "not the Azure server"
    ),
    Refusal(409, xml("ContainerBeingDeleted"), UnreachableError, True, "no such container"),
    Refusal(409, xml("BlobImmutableDueToPolicy"), BackendError, False, "BlobImmutableDueToPolicy"),
    Refusal(409, xml("Whatever"), BackendError, True, "409"),
    Refusal(412, xml("LeaseIdMissing"), BackendError, False, "LeaseIdMissing"),
    Refusal(413, xml("RequestBodyTooLarge"), RefusedError, False, "too large"),
    Refusal(500, xml("OperationTimedOut"), BackendError, True, "500"),
    Refusal(502, PAGE, BackendError, True, "502"),
    Refusal(507, b"", FullError, False, "no space"),
]


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("refusal", ANSWERS)
def test_refusals(script: Script, call: Callable, refusal: Refusal) -> None:
    expect_refusal(script, call, refusal)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("status", "body"), [(503, xml("ServerBusy")), (503, b""), (429, b"")])
def test_a_server_that_asks_for_fewer_requests(script: Script, call: Callable, status: int, body: bytes) -> None:
    expect_patience(script, call, status, body)


def test_taken_is_one_conflict_among_several(script: Script) -> None:
    script.answer = lambda *_: Answer(409, xml("BlobAlreadyExists"))
    assert script.open().create("a", b"1") is False
    for status, code in ((409, "SnapshotsPresent"), (412, "ConditionNotMet"), (403, "BlobAlreadyExists")):
        script.answer = lambda *_, status=status, code=code: Answer(status, xml(code))
        with pytest.raises(BackendError):
            script.open().create("a", b"1")


def test_not_found(script: Script) -> None:
    expect_absence(script, "BlobNotFound")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (202, "", None),
        (404, "BlobNotFound", None),
        (404, "ContainerNotFound", UnreachableError),
        (403, "AuthorizationPermissionMismatch", RefusedError),
        (409, "LeaseIdMissing", BackendError),
        (503, "ServerBusy", BackendError),
    ],
)
@pytest.mark.parametrize("in_head", [True, False])
def test_a_delete(script: Script, status: int, code: str, expected: type[BackendError] | None, in_head: bool) -> None:
    """The code stands in the head of the answer, in its body, or in both."""
    script.answer = lambda *_: Answer(
        status, b"" if in_head else xml(code), {"x-ms-error-code": code} if in_head else {}
    )
    if expected is None:
        script.open().delete("d/a")
    else:
        with pytest.raises(expected) as caught:
            script.open().delete("d/a")
        assert type(caught.value) is expected
    assert script.asked == ["DELETE"]


def test_what_a_key_signs(script: Script) -> None:
    """The example of "Authorize with Shared Key" in Microsoft's reference, as of the versions since 2015."""
    headers = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
    query = [("restype", "container"), ("comp", "metadata"), ("timeout", "20")]
    assert string_to_sign("GET", "myaccount", "/mycontainer", query, headers, 0) == (
        "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
        "/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
    )


@pytest.mark.parametrize("kind", ["create", "put", "get", "get part", "stat", "delete"])
def test_a_login_page_for_everything(script: Script, kind: str) -> None:
    expect_no_page(script, kind)


def test_a_redirected_write_is_no_success(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", script.endpoint)
    script.answer = lambda _method, path: (
        Answer(200, PAGE, {"ETag": '"5f3a-64b"'})
        if "login" in path
        else Answer(303, b"", {"Location": "http://login.example.org/login"})
    )
    backend = open_backend(parse_url("azure://container/x?account=name&endpoint=http://blob.example.org"))
    for kind in ("create", "put"):
        with pytest.raises(UnreachableError):
            CALLS[kind](backend)
    for kind in ("get", "stat"):
        with pytest.raises(BackendError) as caught:
            CALLS[kind](backend)
        assert not isinstance(caught.value, NotFoundError)
    assert not any("authorization" in head for head in script.heads if "login" in head["path"])


def test_answers_that_do_not_hold(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"", META, length=1 << 40)
    with pytest.raises(RefusedError, match="at most 9"):
        script.open().get("d/a", max_bytes=9)
    script.answer = lambda *_: Answer(200, b"half", META, length=8)
    with pytest.raises(UnreachableError):
        script.open().get("d/a", max_bytes=9)
    script.answer = lambda *_: Answer(206, b"z" * (4 << 20), {**META, "Content-Range": "bytes 0-8/9"})
    with pytest.raises(BackendError):
        script.open().get("d/a", offset=0, length=9, max_bytes=9)
    script.answer = lambda *_: Answer(206, b"", {**META, "Content-Range": "bytes 9-9/5"})
    assert script.open().get("d/a", offset=9, max_bytes=9) == b"", "as Azurite has it of a part behind the end"


def test_a_certificate_of_an_unknown_authority(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority, own = make_certificates(tmp_path)
    with serving(Script(url=URL), own) as server:
        with pytest.raises(UnreachableError, match="TLS certificate was not accepted"):
            server.open().put("a", b"1")
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        server.answer = lambda *_: Answer(201, b"", META)
        server.open().put("a", b"1")


def test_secrets_that_are_sent_go_nowhere_in_plain_text(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    far = parse_url("azure://container?account=name&endpoint=http://blob.example.org")
    open_backend(far)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    for name in ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"):
        monkeypatch.setenv(name, "sig=hunter2")
        with pytest.raises(RefusedError, match="plain text") as caught:
            open_backend(far)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(RefusedError, match="not a server of Microsoft's"):
            open_backend(parse_url("azure://container?account=name&endpoint=https://core.windows.net.example.org"))
        for own in ("name.blob.core.windows.net", "name.z01.blob.storage.azure.net", "192.168.1.5:10000/name"):
            open_backend(parse_url(f"azure://container?account=name&endpoint=https://{own}"))
        open_backend(parse_url("azure://container?account=name"))
        open_backend(parse_url(URL.format(prefix="x", endpoint=script.endpoint)))
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("status", "body", "expected", "said"),
    [
        (401, b'{"error":"invalid_client","error_description":"hunter2"}', RefusedError, r"no token .* \(401\)"),
        (500, b"", UnreachableError, "answered 500"),
        (200, PAGE, UnreachableError, "of another kind"),
    ],
)
def test_entra_gives_no_token(
    script: Script, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, expected: type[BackendError], said: str
) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", script.endpoint)
    login = {"client_id": "c", "tenant_id": "t", "client_secret": "hunter2", "credential_type": "client_secret"}
    script.answer = lambda *_: Answer(status, body, {"Content-Type": "application/json"})
    backend = AzureBackend("container", "x", account="name", endpoint=f"{script.endpoint}/name", credentials=login)
    for call in CALLS.values():
        with pytest.raises(expected, match=said) as caught:
            call(backend)
        assert "hunter2" not in str(caught.value)
    assert {head["path"] for head in script.heads} == {"/t/oauth2/v2.0/token"}


def test_entra_gives_one(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", script.endpoint)
    login = {"client_id": "c", "tenant_id": "t", "client_secret": "hunter2", "credential_type": "client_secret"}
    token = b'{"access_token":"TOKEN","expires_in":3600,"token_type":"Bearer"}'
    script.answer = lambda method, _: Answer(200, token if method == "POST" else b"1", META)
    backend = AzureBackend("container", "x", account="name", endpoint=f"{script.endpoint}/name", credentials=login)
    assert [backend.get("a", max_bytes=1), backend.get("b", max_bytes=1)] == [b"1", b"1"]
    assert script.asked == ["POST", "GET", "GET"], "one token for all"
    assert script.heads[-1]["authorization"] == "Bearer TOKEN"


def test_a_workload_and_a_machine(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a container's file holds is shown to Entra; a machine's own service is asked without a secret."""
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", script.endpoint)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{script.endpoint}/msi")
    monkeypatch.setenv("IDENTITY_HEADER", "mine")
    monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
    (tmp_path / "jwt").write_text("JWT\n")
    token = b'{"access_token":"TOKEN","expires_in":"3600"}'
    script.answer = lambda _method, path: Answer(200, b"1" if "container" in path else token, META)
    workload = {"client_id": "c", "tenant_id": "t", "federated_token_file": str(tmp_path / "jwt")}
    for login, method, said in (
        ({**workload, "credential_type": "workload_identity"}, "POST", b"client_assertion=JWT"),
        ({"credential_type": "managed_identity"}, "GET", b""),
    ):
        script.asked.clear()
        script.bodies.clear()
        backend = AzureBackend("container", "x", account="name", endpoint=f"{script.endpoint}/name", credentials=login)
        assert backend.get("a", max_bytes=1) == b"1"
        assert script.asked == [method, "GET"]
        assert said in script.bodies[0]
        assert script.heads[-1]["authorization"] == "Bearer TOKEN"
        backend.close()
    assert script.heads[-2]["x-identity-header"] == "mine"
    assert script.heads[-2]["path"].startswith("/msi?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com")


@pytest.mark.parametrize(
    "credentials",
    [
        {"account_key": "hunter2 is no base64", "credential_type": "access_key"},
        {"sas_key": "hunter2", "credential_type": "sas_token"},
    ],
)
def test_credentials_of_no_form(script: Script, credentials: dict[str, str]) -> None:
    backend = AzureBackend("container", "x", account="name", endpoint=script.endpoint, credentials=credentials)
    with pytest.raises(RefusedError, match="not in the right form") as caught:
        backend.put("a", b"1")
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}{backend!r}"
    assert caught.value.__suppress_context__


def test_no_az_to_ask(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    login = {"credential_type": "azure_cli"}
    backend = AzureBackend("container", "x", account="name", endpoint=script.endpoint, credentials=login)
    with pytest.raises(RefusedError, match="its command failed"):
        backend.put("a", b"1")


def test_identity(script: Script) -> None:
    def of(url: str) -> bytes:
        return open_backend(parse_url(url)).identity()

    own = "https://name.blob.core.windows.net"
    assert of("azure://container/a?account=name") == of(f"azure://container/a/?account=name&endpoint={own}/")
    different = ["azure://container/a?account=name", "azure://container/b?account=name", "azure://other/a?account=name"]
    different += ["azure://container/a?account=another", "azure://container/a?account=name&endpoint=https://h"]
    assert len({of(url) for url in different}) == len(different)


def test_where_credentials_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(**environ: str) -> dict[str, str]:
        return read_credentials(environ, "name", in_cloud=lambda: False)

    own_keyring(
        monkeypatch, {"azure:name": "RING", "azure:sas": "?sv=1&sig=x", "azure:s": "AccountName=s;AccountKey=S"}
    )
    key = {"AZURE_STORAGE_ACCOUNT_KEY": "KEY"}
    entra = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}
    string = "DefaultEndpointsProtocol=https;AccountName={};AccountKey=S==;EndpointSuffix=core.windows.net"
    sas = {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x"}
    off = {"METASYNC_KEYRING": "off"}
    assert of(**key) == {"account_key": "KEY", "credential_type": "access_key"}
    assert of(**key, **sas, **entra)["account_key"] == "KEY"
    assert of(**sas) == {"sas_key": "sv=1&sig=x", "credential_type": "sas_token"}
    assert of(**key, AZURE_STORAGE_CONNECTION_STRING=string.format("name"))["account_key"] == "S=="
    assert of(**key, AZURE_STORAGE_CONNECTION_STRING=string.format("other"))["account_key"] == "KEY"
    assert (
        of(AZURE_STORAGE_CONNECTION_STRING="BlobEndpoint=x;SharedAccessSignature=sv=1&sig=y")["sas_key"] == "sv=1&sig=y"
    )
    shared = "BlobEndpoint={}://{};SharedAccessSignature=sv=1&sig=y"
    for endpoint in (("https", "name.blob.core.windows.net/"), ("http", "127.0.0.1:10000/name")):
        assert of(AZURE_STORAGE_CONNECTION_STRING=shared.format(*endpoint))["sas_key"] == "sv=1&sig=y"
    for endpoint in (("https", "other.blob.core.windows.net"), ("http", "127.0.0.1:10000/other")):
        with pytest.raises(RefusedError, match="another account's"):
            of(**off, AZURE_STORAGE_CONNECTION_STRING=shared.format(*endpoint))
    assert of() == {"account_key": "RING", "credential_type": "access_key"}
    assert of(**key, AZURE_STORAGE_ACCOUNT_NAME="other")["account_key"] == "RING", "never another account's"
    assert read_credentials({}, "sas", in_cloud=lambda: False)["credential_type"] == "sas_token"
    assert read_credentials({}, "s", in_cloud=lambda: False)["account_key"] == "S"
    assert of(**off, **entra, AZURE_CLIENT_SECRET="s")["credential_type"] == "client_secret"
    assert of(**off, **entra, AZURE_FEDERATED_TOKEN_FILE="f")["credential_type"] == "workload_identity"
    assert of(**off, AZURE_CREDENTIAL_TYPE="azure_cli") == {"credential_type": "azure_cli"}
    assert of(**off, AZURE_USE_AZURE_CLI="true") == {"credential_type": "azure_cli"}
    assert of(**off, IDENTITY_ENDPOINT="http://x") == {"credential_type": "managed_identity"}
    assert read_credentials(off, "name", in_cloud=lambda: True) == {"credential_type": "managed_identity"}
    for environ in (off, {**off, **entra}, {**off, **key, "AZURE_STORAGE_ACCOUNT": "other"}):
        with pytest.raises(RefusedError, match="no credentials for the Azure storage account name") as caught:
            of(**environ)
        assert "KEY" not in caught.value.message
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"):
        assert "hunter2" in of(**off, **{name: "hunter2\r\n"}).values(), "a line's end that came along is left off"
        with pytest.raises(RefusedError, match="holds a character") as caught:
            of(**off, **{name: "hunter2\nx"})
        assert "hunter2" not in str(caught.value)
    for locked in ("locked", "nobody"):
        with pytest.raises(RefusedError):
            read_credentials({}, locked, in_cloud=lambda: False)
