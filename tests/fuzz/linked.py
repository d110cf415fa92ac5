"""Targets: a login as it is kept, what a provider's token endpoint answers, and what a browser or a user brings."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import cache

from fuzz.target import Target
from metasync.backends._shared.logins import kept, linking, oauth
from metasync.backends._shared.wire import Answer
from metasync.errors import FormatError, RefusedError, UnreachableError, UsageError

GOOGLE = oauth.PROVIDERS["gdrive"]
GRANT = kept.Grant("gdrive", "work", "id", "secret", "access", "refresh", 2e9, 2e9 - 900, 1e9, "before", 5.0, "")
TOKENS = {"access_token": "a.b-c", "refresh_token": "1//r", "expires_in": 3599, "token_type": "Bearer"}
STATUSES = (200, 200, 400, 401, 429, 500, 204, 302)


def login_file(data: bytes) -> kept.Grant:
    grant = kept._decoded(kept._object(data))
    if grant is None:
        raise FormatError("no login")
    assert isinstance(grant.refresh, str) and 0 <= grant.ends_at < 1e12
    return grant


def token_answer(data: bytes) -> oauth.Tokens:
    status = STATUSES[data[0] % len(STATUSES)] if data else 200
    headers = {"content-type": "application/json", "retry-after": data[1:9].decode("latin-1")}
    tokens = oauth._first(GOOGLE, oauth._object(GOOGLE, Answer(status, headers, data[1:])))
    assert tokens.access.isprintable() and " " not in tokens.access
    assert tokens.renew_at <= tokens.ends_at <= time.time() + oauth.LIFE_S_MAX
    return tokens


@cache
def attempt() -> linking.Attempt:
    return linking.Attempt(GOOGLE, oauth.Client("id"), "http://127.0.0.1:53117", "", "the-state", "the-verifier")


def pasted(data: bytes) -> str:
    code = attempt().pasted(data.decode("utf-8", "surrogateescape"))
    assert b"the-state" in data or b"%" in data
    assert 0 < len(code) <= oauth.CODE_CHARS_MAX
    return code


def _logins() -> list[bytes]:
    return [json.dumps({"format": 1, **asdict(GRANT)}).encode()]


def _answers() -> list[bytes]:
    said: list[dict[str, object]] = [
        TOKENS, {**TOKENS, "scope": GOOGLE.scope}, {**TOKENS, "expires_in": "NaN"}, {"error": "invalid_grant"},
        {"error": "slow_down", "error_description": "x"}, {"error": ["x"]},
    ]  # fmt: skip
    return [bytes([n % 4]) + json.dumps(s).encode() for n, s in enumerate(said)]


def _pasted() -> list[bytes]:
    top = attempt().redirect
    queries = ("code=4/abc&state=the-state", "error=access_denied&state=the-state", "code=x&state=other", "state=%FF")
    return [f"{top}/?{query}".encode() for query in queries]


LINKED = (
    Target("login-file", login_file, _logins),
    Target("token-answer", token_answer, _answers, allowed=(RefusedError, UnreachableError)),
    Target("pasted-address", pasted, _pasted, allowed=(UsageError, RefusedError)),
)
