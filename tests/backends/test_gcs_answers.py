"""What the Google Cloud Storage backend makes of answers that a sound server does not give, and the logins it takes."""

from __future__ import annotations

import hashlib
import json
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
    serving,
    xml,
)

from metasync.backends._shared import tokens_google
from metasync.backends._shared.credentials import runs_in
from metasync.backends.api import Digest
from metasync.backends.gcs import GcsBackend, read_credentials
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError

URL = "gcs://bucket/{prefix}?endpoint={endpoint}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "hunter2")
    with serving(Script(url=URL)) as script:
        yield script


def _account(tmp_path: Path) -> str:
    """The file of a service account's key, as Google hands it out."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    path = tmp_path / "account.json"
    account = {"type": "service_account", "client_email": "me@example.org", "private_key_id": "1", "private_key": text}
    path.write_text(json.dumps(account))
    return str(path)


ANSWERS = [
    Refusal(400, xml("ExpiredToken"), RefusedError, False, "refused the credentials"),
    Refusal(400, xml("Whatever"), BackendError, False, "Whatever"),
    Refusal(401, xml("AuthenticationRequired"), RefusedError, False, "refused the credentials"),
    Refusal(401, b"", RefusedError, False, "refused the credentials"),
    Refusal(403, xml("AccessDenied"), RefusedError, False, "AccessDenied"),
    Refusal(403, xml("RetentionPolicyNotMet"), RefusedError, False, "RetentionPolicyNotMet"),
    Refusal(403, PAGE, RefusedError, False, "403"),
    Refusal(403, xml("NoSuchKey"), RefusedError, False, "403"),
    Refusal(500, xml("NoSuchKey"), BackendError, True, "500"),
    Refusal(404, xml("NoSuchBucket"), UnreachableError, True, "no such bucket"),
    Refusal(404, b"Not Found", UnreachableError, True, "not the Google Cloud Storage server"),
    Refusal(404, PAGE, UnreachableError, True, "not the Google Cloud Storage server"),
    Refusal(409, xml("OperationAborted"), BackendError, True, "OperationAborted"),
    Refusal(413, xml("EntityTooLarge"), RefusedError, False, "too large"),
    Refusal(500, xml("InternalError"), BackendError, True, "500"),
    Refusal(502, PAGE, BackendError, True, "502"),
    Refusal(507, b"", FullError, False, "no space"),
]


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("refusal", ANSWERS)
def test_refusals(script: Script, call: Callable, refusal: Refusal) -> None:
    expect_refusal(script, call, refusal)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("status", "body"), [(503, xml("SlowDown")), (503, b""), (429, xml("RateLimitExceeded"))])
def test_a_server_that_asks_for_fewer_requests(script: Script, call: Callable, status: int, body: bytes) -> None:
    expect_patience(script, call, status, body)


def test_how_it_creates(script: Script) -> None:
    script.answer = lambda *_: Answer(200, b"", META)
    assert script.open().create("a", b"1") is True
    assert script.heads[-1]["x-goog-if-generation-match"] == "0"
    script.open().put("a", b"1")
    assert "x-goog-if-generation-match" not in script.heads[-1]
    script.answer = lambda *_: Answer(412, xml("PreconditionFailed"))
    assert script.open().create("a", b"1") is False
    script.answer = lambda *_: Answer(409, xml("Conflict"))
    with pytest.raises(BackendError):
        script.open().create("a", b"1")


def test_not_found(script: Script) -> None:
    expect_absence(script, "NoSuchKey")
    CALLS["delete"](script.open())


@pytest.mark.parametrize("kind", ["create", "put", "get", "get part", "stat"])
def test_a_login_page_for_everything(script: Script, kind: str) -> None:
    expect_no_page(script, kind)


def test_a_tag_that_is_no_md5_is_no_digest(script: Script) -> None:
    """An object made of others, or encrypted with a key of its owner's, has a tag of another kind."""
    right = hashlib.md5(b"data").hexdigest()
    for tag, told in ((right, bytes.fromhex(right)), ("CJjvzZ+w9ocDEAE=", None), ("0" * 32, None)):
        script.answer = lambda method, _, tag=tag: Answer(
            200, b"" if method == "PUT" else b"data", {**META, "ETag": f'"{tag}"'}
        )
        backend = script.open()
        backend.put("a", b"data")
        assert backend.digest("a") == Digest(4, told)


def test_only_google_sees_googles_login(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", _account(tmp_path))
    script.answer = lambda *_: Answer(200, b"", META)
    for name in ("GOOGLE_BEARER_TOKEN", ""):
        script.open().put("a", b"1")
        assert script.heads[-1].get("authorization", "Bearer").strip() == "Bearer"
        if name:
            monkeypatch.delenv(name)
    with pytest.raises(RefusedError, match="plain text"):
        open_backend(parse_url("gcs://bucket?endpoint=http://storage.googleapis.com"))
    open_backend(parse_url("gcs://bucket?endpoint=https://storage.googleapis.com"))


def test_a_service_account_signs_for_itself(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    script.answer = lambda *_: Answer(200, b"", META)
    credentials = read_credentials({"GOOGLE_APPLICATION_CREDENTIALS": _account(tmp_path)})
    backend = GcsBackend("bucket", "x", endpoint=script.endpoint, credentials=credentials)
    backend.put("a", b"1")
    assert script.asked == ["PUT"], "no server is asked for a token"
    assert script.heads[0]["authorization"].startswith("Bearer eyJ")
    script.answer = lambda *_: Answer(401, xml("AuthenticationRequired"))
    for call in CALLS.values():
        with pytest.raises(RefusedError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            call(backend)
        assert "eyJ" not in f"{caught.value}{backend!r}"


def test_a_users_own_login(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `gcloud auth application-default login` leaves is shown to Google's server of tokens, and to no other."""
    assert tokens_google._TOKENS.startswith("https://oauth2.googleapis.com/")
    monkeypatch.setattr(tokens_google, "_TOKENS", f"{script.endpoint}/token")
    login = tmp_path / "login.json"
    words = {"type": "authorized_user", "client_id": "c", "client_secret": "hunter2", "refresh_token": "R"}
    login.write_text(json.dumps(words))
    script.answer = lambda _method, path: Answer(
        200, b'{"access_token":"TOKEN","expires_in":3599}' if path == "/token" else b"1", META
    )
    credentials = {"application_credentials": str(login)}
    backend = GcsBackend("bucket", "x", endpoint=script.endpoint, credentials=credentials)
    assert [backend.get("a", max_bytes=1), backend.get("b", max_bytes=1)] == [b"1", b"1"]
    assert (script.asked, script.heads[-1]["authorization"]) == (["POST", "GET", "GET"], "Bearer TOKEN")
    assert b"refresh_token=R" in script.bodies[0]
    backend.close()
    for text in ("[]", '{"type": "authorized_user"}', '{"type": "service_account", "private_key": "hunter2"}', "x"):
        login.write_text(text)
        with pytest.raises(RefusedError, match="not in the right form") as caught:
            GcsBackend("bucket", "x", endpoint=script.endpoint, credentials=credentials).put("a", b"1")
        assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


def test_the_machine_gives_no_token(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, f"127.0.0.1:{script.port}")
    script.answer = lambda *_: Answer(404)
    backend = GcsBackend("bucket", "x", endpoint=script.endpoint, credentials=read_credentials({"K_SERVICE": "x"}))
    with pytest.raises(RefusedError, match="no token was given"):
        backend.put("a", b"1")
    script.answer = lambda method, _path: Answer(
        200, b'{"access_token":"TOKEN","expires_in":3600}' if method == "GET" else b"", META
    )
    backend.put("a", b"1")
    assert script.heads[-1]["authorization"] == "Bearer TOKEN"


def test_a_certificate_of_an_unknown_authority(script: Script, tmp_path: Path) -> None:
    with (
        serving(Script(url=URL), make_certificates(tmp_path)[1]) as server,
        pytest.raises(UnreachableError, match="TLS certificate was not accepted"),
    ):
        server.open().put("a", b"1")


def test_who_may_vote(script: Script) -> None:
    assert script.open().form == "log"
    assert open_backend(parse_url("gcs://bucket")).form == "log"
    other = open_backend(parse_url("gcs://bucket?endpoint=https://storage.example.org"))
    assert other.form == "none"
    assert "nobody vouches" in getattr(other, "form_reason", "")


def test_identity(script: Script) -> None:
    def of(url: str) -> bytes:
        return open_backend(parse_url(url)).identity()

    assert of("gcs://bucket/a") == of("gcs://bucket/a/?endpoint=https://storage.googleapis.com/")
    assert (
        len({of("gcs://bucket/a"), of("gcs://bucket/b"), of("gcs://other/a"), of("gcs://bucket/a?endpoint=http://h")})
        == 4
    )


def test_the_name_that_googles_own_tools_use() -> None:
    assert parse_url("gs://bucket/x?endpoint=http://h") == parse_url("gcs://bucket/x?endpoint=http://h")
    assert parse_url("GS://bucket").location == "gcs://bucket"


def test_where_a_login_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(**environ: str) -> dict[str, str]:
        return read_credentials({"HOME": str(tmp_path), **environ}, in_cloud=lambda: False)

    account = _account(tmp_path)
    text = Path(account).read_text()
    assert of(GOOGLE_APPLICATION_CREDENTIALS=account) == {"application_credentials": account}
    assert of(GOOGLE_SERVICE_ACCOUNT=account) == {"service_account": account}
    assert of(GOOGLE_SERVICE_ACCOUNT_KEY=text) == {"service_account_key": text}
    assert of(GOOGLE_BEARER_TOKEN="t", GOOGLE_SERVICE_ACCOUNT=account) == {"bearer_token": "t"}
    assert of(GOOGLE_BEARER_TOKEN="t\r\n") == {"bearer_token": "t"}
    assert of(GCE_METADATA_HOST="x") == {}
    with pytest.raises(RefusedError, match="GOOGLE_BEARER_TOKEN holds a character") as caught:
        of(GOOGLE_BEARER_TOKEN="hunter2\nx")
    assert "hunter2" not in str(caught.value)
    assert read_credentials({"HOME": str(tmp_path)}, in_cloud=lambda: True) == {}
    with pytest.raises(RefusedError, match="no credentials for Google Cloud Storage"):
        of()
    with pytest.raises(RefusedError, match="both set"):
        of(GOOGLE_SERVICE_ACCOUNT=account, GOOGLE_SERVICE_ACCOUNT_KEY=text)
    login = tmp_path / ".config/gcloud/application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text('{"type": "authorized_user"}')
    assert of() == {"application_credentials": str(login)}
    with monkeypatch.context() as context:
        context.chdir(tmp_path)
        context.setattr("os.path.expanduser", lambda path: path.replace("~", "/nobody"))
        with pytest.raises(RefusedError):  # the folder one happens to be in is nobody's home
            read_credentials({}, in_cloud=lambda: False)
    other = tmp_path / "elsewhere/application_default_credentials.json"
    other.parent.mkdir()
    other.write_text('{"type": "authorized_user"}')
    assert of(CLOUDSDK_CONFIG=str(other.parent)) == {"application_credentials": str(other)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "no text"),
        (b"hunter2", "not in JSON"),
        (b"[]", "not in JSON"),
        (b'{"type": "external_account", "x": "hunter2"}', "of the type 'external_account'"),
    ],
)
def test_a_login_that_is_none(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "login.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RefusedError, match=said) as caught:
        read_credentials({"GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"
    assert str(path) in caught.value.message


def test_whose_machine_this_is(tmp_path: Path) -> None:
    signs = {"aws": ("sys_vendor", "Amazon EC2"), "gcs": ("product_name", "Google Compute Engine")}
    signs["azure"] = ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")
    for cloud, (name, sign) in signs.items():
        folder = tmp_path / cloud
        assert not runs_in(cloud, str(folder))  # type: ignore[arg-type]
        folder.mkdir()
        (folder / name).write_text(f"{sign}\n")
        assert [other for other in signs if runs_in(other, str(folder))] == [cloud]  # type: ignore[arg-type]
        (folder / name).write_text("QEMU\n")
        assert not runs_in(cloud, str(folder))  # type: ignore[arg-type]
