"""Keys that Amazon gives a machine, a container or a web identity: who is asked, how often, and what answers do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from answers_kit import PAGE, Answer, Script

from metasync.backends._shared.tokens import amazon_keys, seconds_until
from metasync.errors import BackendError, RefusedError, UnreachableError

KEYS = {"access_key_id": "AKIA", "secret_access_key": "hunter2", "token": "t"}


def told(ends: str = "2099-01-01T00:00:00Z") -> bytes:
    found = {"AccessKeyId": "AKIA", "SecretAccessKey": "hunter2", "Token": "t", "Expiration": ends, "Code": "Success"}
    return json.dumps(found).encode()


def machine(script: Script, ends: str = "2099-01-01T00:00:00Z") -> Callable[[str, str], Answer]:
    def answer(method: str, path: str) -> Answer:
        if path == "/latest/api/token":
            return Answer(200 if method == "PUT" else 405, b"SESSION")
        if script.heads[-1].get("x-aws-ec2-metadata-token") != "SESSION":
            return Answer(401)
        top = "/latest/meta-data/iam/security-credentials/"
        return Answer(200, b"my-role\n") if path == top else Answer(200 if path == f"{top}my-role" else 404, told(ends))

    return answer


def test_the_role_of_a_machine(script: Script) -> None:
    script.answer = machine(script)
    keys = amazon_keys({"AWS_EC2_METADATA_SERVICE_ENDPOINT": script.endpoint}, "us-east-1")
    assert [keys(), keys()] == [KEYS, KEYS]
    assert script.asked == ["PUT", "GET", "GET"], "once for all requests"


def test_a_key_that_ends_soon_is_asked_for_again(script: Script) -> None:
    script.answer = machine(script, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60)))
    keys = amazon_keys({"AWS_EC2_METADATA_SERVICE_ENDPOINT": script.endpoint}, "us-east-1")
    assert [keys(), keys()] == [KEYS, KEYS]
    assert len(script.asked) == 6


def test_a_container(script: Script, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("SESSION\n")
    environ = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{script.endpoint}/v1/credentials?x=y",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    script.answer = lambda *_: Answer(200, told())
    assert amazon_keys(environ, "us-east-1")() == KEYS
    assert (script.heads[0]["path"], script.heads[0]["authorization"]) == ("/v1/credentials?x=y", "SESSION")
    with pytest.raises(RefusedError, match="no address of this machine"):
        amazon_keys({**environ, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://evil.example/"}, "us-east-1")
    (tmp_path / "token").unlink()
    with pytest.raises(RefusedError, match="cannot read the token"):
        amazon_keys(environ, "us-east-1")()


def test_a_web_identity(script: Script, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("JWT\n")
    environ = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL_STS": f"{script.endpoint}/sts",
    }
    script.answer = lambda *_: Answer(
        200,
        b"<R><Credentials><AccessKeyId>AKIA</AccessKeyId><SecretAccessKey>hunter2</SecretAccessKey>"
        b"<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></R>",
    )
    assert amazon_keys(environ, "us-east-1")() == KEYS
    assert (script.asked, script.heads[0]["path"]) == (["POST"], "/sts")
    form = parse_qs(script.bodies[0].decode())
    assert (form["RoleArn"], form["WebIdentityToken"]) == (["arn:aws:iam::1:role/r"], ["JWT"])


@pytest.mark.parametrize(
    ("answer", "expected", "said"),
    [
        (Answer(403, b"hunter2"), RefusedError, r"no token was given for these credentials \(403\)"),
        (Answer(500, b"hunter2"), UnreachableError, "answered 500"),
        (Answer(302, b"", {"Location": "/hunter2"}), UnreachableError, "answered 302"),
        (Answer(200, PAGE), UnreachableError, "of another kind"),
        (Answer(200, b'{"AccessKeyId": 7, "SecretAccessKey": "hunter2", "Token": "t"}'), UnreachableError, "kind"),
        (Answer(200, b'{"AccessKeyId": "A", "SecretAccessKey": "hunter2\\nx", "Token": "t"}'), RefusedError, "charact"),
        (Answer(200, b"[" * 100_000), UnreachableError, "of another kind"),
        (Answer(200, b"x" * (1 << 16), endless=True), UnreachableError, "more than any answer"),
    ],
)
def test_answers_that_are_no_key(script: Script, answer: Answer, expected: type[BackendError], said: str) -> None:
    script.answer = lambda *_: answer
    with pytest.raises(expected, match=said) as caught:
        amazon_keys({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{script.endpoint}/x"}, "us-east-1")()
    assert "hunter2" not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in caught.value.next_step or "Copy" in caught.value.next_step


def test_times() -> None:
    assert seconds_until("1970-01-01T00:01:00Z") == seconds_until("1970-01-01T00:01:00") == 60.0
    assert seconds_until(None) == seconds_until("soon") == float("inf")
