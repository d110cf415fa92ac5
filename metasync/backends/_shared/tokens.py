"""Keys and tokens that a machine or a service hands to whoever asks, kept until shortly before they end.

The times and bounds here are for all three clouds. Amazon has a container's address (ECS, EKS), a web identity (STS),
and the role of the machine (IMDS, version 2). They ask the machine's own service or the one that the environment names,
never one that a backend's URL names.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from metasync.backends._shared.credentials import is_loopback, sendable
from metasync.backends._shared.wire import Answer, Wire
from metasync.errors import BackendError, RefusedError, UnreachableError

ANSWER_BYTES_MAX: Final = 1 << 18
_EARLY_S: Final = 300.0
_FILE_BYTES_MAX: Final = 1 << 16
_IMDS: Final = "http://169.254.169.254"
_CONTAINERS: Final = "http://169.254.170.2"
_AGENTS: Final = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
AMAZON_STEP: Final = "Check the role of this machine or container, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."


class Lent(NamedTuple):
    """What was given out, and until when it holds: seconds since 1970; infinite where nobody says."""

    value: Any
    ends_at: float


class Kept:
    """What a call gives, asked for again when it is about to end. For several threads; one of them asks."""

    def __init__(self, fetch: Callable[[], Lent]) -> None:
        self._fetch = fetch
        self._lent: Lent | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        lent = self._lent
        if lent is None or time.time() > lent.ends_at - _EARLY_S:
            with self._lock:
                lent = self._lent
                if lent is None or time.time() > lent.ends_at - _EARLY_S:
                    lent = self._lent = self._fetch()
        return lent.value


def asked(method: str, url: str, headers: Mapping[str, str], body: bytes, step: str, what: str = "no token") -> Answer:
    """The answer to one request for a token. `RefusedError` if it is refused, `UnreachableError` if there is none.

    Of what the answer says nothing is told: it may quote the secret.
    """
    parts = urlsplit(url)
    attempt = f"{what} could be had from {parts.hostname}"
    # What has no TLS is the machine's own: a proxy would hear what it gives, and ask the service of another machine.
    wire = Wire(f"{parts.scheme}://{parts.netloc}", may_proxy=parts.scheme == "https")
    try:
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        answer = wire.ask(method, target, headers, body, attempt, answer_bytes_max=ANSWER_BYTES_MAX)
    except UnreachableError as error:
        raise UnreachableError(error.message, next_step=step) from error
    finally:
        wire.close()
    if 400 <= answer.status < 500 and answer.status not in (408, 429):
        raise RefusedError(f"{what} was given for these credentials ({answer.status})", next_step=step)
    if not 200 <= answer.status < 300:
        raise UnreachableError(
            f"{what} could be had: the server that gives them answered {answer.status}", next_step=step
        )
    return answer


def as_object(answer: Answer, step: str) -> dict[str, Any]:
    """The JSON object of an answer. `UnreachableError` if it is none."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise of_another_kind(step)
    return found


def of_another_kind(step: str) -> BackendError:
    return UnreachableError("no token could be had: the answer is of another kind", next_step=step)


def word(found: Mapping[str, Any], name: str, step: str) -> str:
    """A string of an answer that is to stand in the head of requests."""
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise of_another_kind(step)
    return sendable(value, "a token that was given to this machine")


def lent_token(found: Mapping[str, Any], step: str) -> Lent:
    """The token of an answer as OAuth has it, with the seconds that it lives."""
    try:
        life_s = float(found.get("expires_in") or 600)
    except (TypeError, ValueError):
        life_s = 600.0
    return Lent(word(found, "access_token", step), time.time() + min(max(life_s, 0.0), 86400.0))


def seconds_until(text: object) -> float:
    """A time in ISO 8601 as seconds since 1970; infinite for anything else."""
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return float("inf")
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def amazon_keys(environ: Mapping[str, str], region: str) -> Kept:
    """The keys that Amazon gives this machine, in the order in which Amazon's own tools ask."""
    get = environ.get
    role, file = get("AWS_ROLE_ARN", ""), get("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    relative, full = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if role and file:
        china = ".cn" if region.startswith("cn-") else ""
        sts = get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com{china}"
        session = get("AWS_ROLE_SESSION_NAME") or "metasync"
        return Kept(lambda: _of_web_identity(sts, role, file, session))
    if relative or full:
        url = f"{_CONTAINERS}{relative}" if relative else _own_address(full or "")
        return Kept(lambda: _of_container(url, get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")))
    return Kept(lambda: _of_role(get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or get("AWS_METADATA_ENDPOINT") or _IMDS))


def _own_address(url: str) -> str:
    """The address of a container's keys, which is TLS, or an agent on this very machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and (is_loopback(host) or host in _AGENTS)):
        raise RefusedError(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI names no address of this machine's", next_step=AMAZON_STEP
        )
    return url


def _of_container(url: str, token_file: str) -> Lent:
    headers = (
        {"authorization": sendable(text_of(token_file, AMAZON_STEP), "the container's token")} if token_file else {}
    )
    return _lent(as_object(asked("GET", url, headers, b"", AMAZON_STEP), AMAZON_STEP))


def _of_role(imds: str) -> Lent:
    top = f"{imds.rstrip('/')}/latest"
    life = {"x-aws-ec2-metadata-token-ttl-seconds": "600"}
    session = asked("PUT", f"{top}/api/token", life, b"", AMAZON_STEP).text
    headers = {"x-aws-ec2-metadata-token": sendable(session, "the token of this machine")}
    roles = f"{top}/meta-data/iam/security-credentials/"
    role = asked("GET", roles, headers, b"", AMAZON_STEP).text.partition("\n")[0].strip()
    if re.fullmatch(r"[\w+=,.@-]{1,64}", role, re.ASCII) is None:
        raise of_another_kind(AMAZON_STEP)
    return _lent(as_object(asked("GET", f"{roles}{role}", headers, b"", AMAZON_STEP), AMAZON_STEP))


def _of_web_identity(sts: str, role: str, file: str, session: str) -> Lent:
    form = {
        "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": role, "RoleSessionName": session,
        "WebIdentityToken": text_of(file, AMAZON_STEP),
    }  # fmt: skip
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/xml"}
    text = asked("POST", sts, headers, urlencode(form).encode(), AMAZON_STEP).text
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    found = {name: re.search(rf"<{name}>([^<]{{1,16384}})</{name}>", text) for name in names}
    return _lent({"Token" if n == "SessionToken" else n: m[1].strip() for n, m in found.items() if m is not None})


def _lent(found: Mapping[str, Any]) -> Lent:
    keys = {
        "access_key_id": word(found, "AccessKeyId", AMAZON_STEP),
        "secret_access_key": word(found, "SecretAccessKey", AMAZON_STEP),
        "token": word(found, "Token", AMAZON_STEP),
    }
    return Lent(keys, seconds_until(found.get("Expiration")))


def text_of(path: str, step: str) -> str:
    """The text of a file that holds a token or a login, without what a file has around it. `RefusedError`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_FILE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError):
        raise RefusedError(f"cannot read the token in {path}", next_step=step) from None
