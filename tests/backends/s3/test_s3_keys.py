"""Where the S3 backend finds its key, and what it makes of one that is wrong, ended or renewed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from answers_kit import META, Answer, Script, own_keyring, xml

from metasync.backends.s3 import read_keys, read_region
from metasync.errors import RefusedError

FILES = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}


def test_where_keys_come_from(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = %d%\n"
        "[work]\naws_access_key_id=W\naws_secret_access_key=w\naws_session_token=t\n[half]\naws_access_key_id=H\n"
    )
    file_only = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_CONFIG_FILE": str(tmp_path / "config")}
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
    nothing = {**file_only, "AWS_PROFILE": "none", "METASYNC_KEYRING": "off"}
    identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": "x", "AWS_ROLE_ARN": "y"}
    assert read_keys({**nothing, **identity}, None) is None
    for half in identity:  # the client would ask for a machine of Amazon's
        with pytest.raises(RefusedError):
            read_keys({**nothing, half: "x"}, None, in_cloud=lambda: False)
    assert read_keys(nothing, None, in_cloud=lambda: True) is None
    with pytest.raises(RefusedError, match="export-credentials"):
        read_keys(nothing, None, in_cloud=lambda: False)
    with pytest.raises(RefusedError):
        read_keys({**nothing, "AWS_EC2_METADATA_DISABLED": "true"}, None, in_cloud=lambda: True)
    with pytest.raises(RefusedError):
        read_keys({**nothing, **identity}, "none", in_cloud=lambda: True)
    with pytest.raises(RefusedError, match="AWS_SECRET_ACCESS_KEY is not set, and"):
        read_keys({**nothing, "AWS_ACCESS_KEY_ID": "E"}, None, in_cloud=lambda: False)


def test_the_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(
        "[default]\nregion = eu-west-1\n[profile work]\nregion=eu-central-1\naws_access_key_id=W\n"
        "aws_secret_access_key=w\n[profile login]\nsso_session = x\n"
    )
    environ = {"AWS_CONFIG_FILE": str(file), "AWS_SHARED_CREDENTIALS_FILE": "/none", "METASYNC_KEYRING": "off"}
    assert read_region(environ, None) == "eu-west-1"
    assert read_region({**environ, "AWS_PROFILE": "work"}, None) == "eu-central-1"
    assert read_region({**environ, "AWS_REGION": "us-west-2"}, None) == "us-west-2"
    assert read_region({**environ, "AWS_REGION": "us-west-2"}, "work") == "eu-central-1"
    assert read_region({**environ, "AWS_DEFAULT_REGION": "us-west-2"}, "login") == "us-west-2"
    assert read_region({"AWS_CONFIG_FILE": "/none"}, None) == ""
    assert read_keys(environ, "work")["secret_access_key"] == "w"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_keys({**environ, "AWS_CONFIG_FILE": "~/config"}, "work")["secret_access_key"] == "w"
    with pytest.raises(RefusedError, match="export-credentials"):
        read_keys(environ, "login")


def test_a_profile_that_gets_its_key_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever asks for a role or a login never gets another's rights: not the key beside it, nor the machine's."""
    (tmp_path / "config").write_text(
        "[profile role]\nrole_arn = r\nsource_profile = role\n[profile sso]\nsso_session = x\n"
        "[profile process]\ncredential_process = /bin/x\n[profile both]\ncredential_process = /bin/x\n"
        "[profile mixed]\naws_access_key_id = C\naws_secret_access_key = c\naws_session_token = old\n"
    )
    (tmp_path / "credentials").write_text(
        "[role]\naws_access_key_id = B\naws_secret_access_key = b\n[both]\naws_access_key_id = S\n"
        "aws_secret_access_key = s\n[mixed]\naws_access_key_id = M\naws_secret_access_key = m\n"
    )
    environ = {name: str(tmp_path / file) for file, name in FILES.items()}
    own_keyring(monkeypatch, {"s3:nas": "K:secret"})
    for name, word in (("role", "role_arn"), ("sso", "sso_session"), ("process", "credential_process")):
        for chosen, profile in ((environ, name), ({**environ, "AWS_PROFILE": name}, None)):
            with pytest.raises(RefusedError, match=f"profile {name} gets its key by {word}") as caught:
                read_keys(chosen, profile, "far", in_cloud=lambda: True)
            assert f"export-credentials --profile {name}" in caught.value.next_step
        assert read_keys({**environ, "AWS_PROFILE": name}, None, "nas")["secret_access_key"] == "secret"
    assert read_keys(environ, "both")["access_key_id"] == "S", "as Amazon's tools: a key comes before a command"
    keys = read_keys(environ, "mixed")
    assert (keys["secret_access_key"], keys["token"]) == ("m", None), "whole out of one file"
    with pytest.raises(RefusedError) as caught:
        read_keys({**environ, "AWS_CONFIG_FILE": "/none"}, "x; rm -r x")
    assert "--profile" not in caught.value.next_step


def test_a_key_that_is_renewed_meanwhile(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A temporary key ends after an hour, in the middle of a long push; the one that replaces it in the file counts."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    for file, name in FILES.items():
        monkeypatch.setenv(name, str(tmp_path / file))
    valid = "A1"

    def answer(*_: str) -> Answer:
        ended = f"Credential={valid}/" not in script.heads[-1]["authorization"]
        return Answer(400, xml("ExpiredToken")) if ended else Answer(200, b"1", META)

    def renew(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / "credentials")

    def reads() -> bool:
        try:
            return backend.get("a", max_bytes=9) == b"1"
        except RefusedError as error:
            assert "ExpiredToken" in error.message
            return False

    script.answer = answer
    key = "[default]\naws_access_key_id = {}\naws_secret_access_key = s\naws_session_token = t\n"
    renew(key.format("A1"))
    backend = script.open()
    assert reads()
    renew("[default")
    valid = "A2"
    assert not reads(), "a file that cannot be read changes nothing"
    renew(key.format("A2"))
    until = time.monotonic() + 60
    while not reads():
        assert time.monotonic() < until
    assert script.heads[-1]["x-amz-security-token"] == "t"
    (tmp_path / "credentials").unlink()
    time.sleep(0.2)
    assert reads(), "what was read is not forgotten"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_what_no_request_can_hold(script: Script, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A line's end in a header would begin another one."""
    for text in ("hunter2\nx", "hunter2\rx", "hunt er2", "h\u00fcnter2", "hunter2\udcff"):
        monkeypatch.setenv(name, text)
        with pytest.raises(RefusedError, match=r"holds a character|is no region") as caught:
            script.open().list("")
        assert name == "AWS_REGION" or "nter2" not in str(caught.value)
    monkeypatch.setenv(name, "hunter2\r\n")
    script.answer = lambda *_: Answer(200, b"1", META)
    assert script.open().get("a", max_bytes=9) == b"1", "a line's end that came along is left off"


def test_keys_in_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    own_keyring(monkeypatch, {"s3:nas": "K:secret", "s3:far.example.org": "T:secret:with:colons", "s3:odd": "no colon"})
    environ = {"AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_CONFIG_FILE": "/none"}
    assert read_keys(environ, None, "nas")["secret_access_key"] == "secret"
    assert read_keys(environ, None, "far.example.org")["secret_access_key"] == "secret:with:colons"
    for host, profile, more in (("odd", None, {}), ("nas", "work", {}), ("nas", None, {"METASYNC_KEYRING": "off"})):
        with pytest.raises(RefusedError):
            read_keys({**environ, **more}, profile, host, in_cloud=lambda: False)


@pytest.mark.parametrize("text", [b"hunter2 without a section", b"\xff\xfe\x00", b"[default\nhunter2"])
def test_a_credentials_file_that_is_none(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(text)
    with pytest.raises(RefusedError) as caught:
        read_keys({"AWS_SHARED_CREDENTIALS_FILE": str(file)}, None)
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"
    assert os.fspath(file) in str(caught.value)
