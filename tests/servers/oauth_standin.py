"""A stand-in for the four providers' OAuth: authorize, token, device code, revoke. It knows what each asks for.

    with oauth_standin("box") as standin:
        monkeypatch.setenv("METASYNC_BOX_ENDPOINT", standin.url)
        login = standin.linked()          # as after `metasync auth box`
        standin.switches.lost_answers = 1

A request that the provider would not take is answered as the provider does, and noted in `faults`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import parse_qs, urlencode, urlsplit

from http_kit import Answer, Handler, listening

from metasync.backends._shared.logins import kept
from metasync.backends._shared.logins.oauth import DEVICE_GRANT, PROVIDERS, Provider

CLIENT_ID, CLIENT_SECRET = "app-of-the-tests", "secret-of-the-app"


@dataclass
class Switches:
    """What goes wrong. Counts are of the next requests to the token endpoint."""

    expires_in: object = 3600
    lost_answers: int = 0  # renewed, and then the line breaks
    failures: int = 0  # answered with `status`, and nothing is renewed
    status: int = 503
    refusal: bytes = b""  # what those answers hold, in JSON; "": a page
    retry_after: str = ""
    hold: threading.Event | None = None  # an answer waits for it
    held: threading.Event = field(default_factory=threading.Event)  # one waits
    says_no: bool = False  # the user, asked whether the app may
    types_code_after: int = 0  # times that a device asks before the user has typed its code
    scope: str | None = None  # given; None: what was asked for
    forgets_refresh: bool = False
    body: bytes | None = None  # in the place of an answer with tokens


@dataclass
class _Code:
    redirect: str
    challenge: str
    scope: str


class Standin:
    """One provider's OAuth. `renewals` counts what it renewed; `requests` has each request's path and form."""

    def __init__(self, provider: Provider, url: str) -> None:
        self.provider = provider
        self.url = url
        self.switches = Switches()
        self.renewals = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.faults: list[str] = []
        self.refresh: dict[str, int] = {}  # refresh tokens that hold: the login they are of
        self.access: dict[str, int] = {}  # access tokens that hold, too
        self._codes: dict[str, _Code] = {}
        self._devices: dict[str, int] = {}
        self._logins = 0
        self._lock = threading.Lock()

    def linked(self, account: str = kept.DEFAULT, *, left_s: float = 3600.0, early_s: float = 900.0) -> kept.Grant:
        """Keeps a login as linking an account does; -> what is kept. Its token has `left_s` left."""
        access, refresh = self.grant()
        ends_at = time.time() + left_s
        grant = kept.Grant(
            self.provider.name, account, CLIENT_ID, CLIENT_SECRET if self.provider.has_secret else "", access, refresh,
            ends_at, ends_at - early_s, time.time(), endpoint=self.url,
        )  # fmt: skip
        place = kept.Place(self.provider, account)
        with place.locked():
            place.write(grant)
        return grant

    def grant(self) -> tuple[str, str]:
        """A new login's access and refresh token."""
        with self._lock:
            self._logins += 1
            return self._pair(self._logins)

    def revoke_all(self) -> None:
        """The user unlinks the app."""
        with self._lock:
            self.refresh.clear()
            self.access.clear()

    def end_access(self) -> None:
        """Access tokens end; logins stay."""
        with self._lock:
            self.access.clear()

    def holds(self, access: str) -> bool:
        return access in self.access

    def browse(self, url: str) -> str:
        """Opens an authorize address as a person in a browser does, and allows it; -> the page that is shown last."""
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.requests.append((parts.path, form or query))
        p = self.provider
        if method == "GET" and parts.path == urlsplit(p.authorize).path:
            return self._authorize(query)
        if method == "POST" and parts.path == urlsplit(p.tokens).path:
            return self._token(form, headers)
        if method == "POST" and p.device and parts.path == urlsplit(p.device).path:
            return self._device(form)
        if method == "POST" and p.revoke and parts.path == urlsplit(p.revoke).path:
            return self._revoke(form, headers, body)
        return self._fault(404, "not_found", f"{method} {parts.path}")

    def _fault(self, status: int, error: str, why: str) -> Answer:
        self.faults.append(why)
        return _said(status, {"error": error, "error_description": f"about {CLIENT_SECRET}: {why}"})

    def _authorize(self, query: dict[str, str]) -> Answer:
        p, redirect = self.provider, query.get("redirect_uri", "")
        if query.get("client_id") != CLIENT_ID or query.get("response_type") != "code":
            return self._fault(400, "invalid_request", "authorize")
        if p.has_pkce and (query.get("code_challenge_method") != "S256" or len(query["code_challenge"]) != 43):
            return self._fault(400, "invalid_request", "no PKCE")
        if p.scope != query.get("scope", "") or any(query.get(name) != value for name, value in p.more):
            return self._fault(400, "invalid_scope", "scope or parameters")
        registered = p.redirect.replace(":{port}", "")
        port = f":{urlsplit(redirect).port}"
        sent = redirect.replace(port, "") if "{port}" in p.redirect else redirect
        if sent != registered and not (p.shows_code and not redirect):
            return self._fault(400, "redirect_uri_mismatch", redirect)
        if self.switches.says_no:
            back = {"error": "access_denied", "state": query["state"]}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = _Code(redirect, query.get("code_challenge", ""), query.get("scope", ""))
            back = {"code": code, "state": query["state"]}
        if not redirect:
            return Answer(200, back["code"].encode(), {"Content-Type": "text/html"})
        return Answer(302, b"", {"Location": f"{redirect}?{urlencode(back)}"})

    def _token(self, form: dict[str, str], headers: Any) -> Answer:
        switches = self.switches
        if switches.hold is not None:
            switches.held.set()
            switches.hold.wait(60)
        if headers.get("Content-Type") != "application/x-www-form-urlencoded":
            return self._fault(400, "invalid_request", "the form")
        if switches.failures:
            switches.failures -= 1
            extra = {"Retry-After": switches.retry_after} if switches.retry_after else {}
            if switches.refusal:
                return Answer(switches.status, switches.refusal, {"Content-Type": "application/json", **extra})
            return Answer(switches.status, b"<html>later</html>", {"Content-Type": "text/html", **extra})
        if form.get("client_id") != CLIENT_ID or (
            self.provider.has_secret and form.get("client_secret") != CLIENT_SECRET
        ):
            return self._fault(401, "invalid_client", "the client")
        with self._lock:
            answer = self._granted(form)
        if answer.status == 200 and switches.lost_answers:
            switches.lost_answers -= 1
            return Answer(hangs_up=True)
        return answer

    def _granted(self, form: dict[str, str]) -> Answer:
        kind = form.get("grant_type")
        if kind == "refresh_token":
            login = self.refresh.get(form["refresh_token"])
            if login is None:
                return _said(400, {"error": "invalid_grant", "error_description": f"{form['refresh_token']} is none"})
            if self.provider.single_use:
                del self.refresh[form["refresh_token"]]
            self.renewals += 1
            return self._given(login, self.provider.scope, rotates=self.provider.name in ("box", "onedrive"))
        if kind == "authorization_code":
            code = self._codes.pop(form.get("code", ""), None)
            if code is None or form.get("redirect_uri", "") != code.redirect:
                return self._fault(400, "invalid_grant", "the code or its redirect")
            made = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
            if self.provider.has_pkce and made.decode().rstrip("=") != code.challenge:
                return self._fault(400, "invalid_grant", "the verifier")
        elif kind == DEVICE_GRANT and form.get("device_code") in self._devices:
            if self.switches.says_no:
                return _said(400, {"error": "authorization_declined"})
            if self._devices[form["device_code"]] > 0:
                self._devices[form["device_code"]] -= 1
                return _said(400, {"error": "authorization_pending"})
        else:
            return self._fault(400, "unsupported_grant_type", str(kind))
        self._logins += 1
        return self._given(self._logins, self.provider.scope, rotates=True)

    def _given(self, login: int, scope: str, *, rotates: bool) -> Answer:
        if self.switches.body is not None:
            return Answer(200, self.switches.body, {"Content-Type": "application/json"})
        access, refresh = self._pair(login, rotates=rotates)
        given = scope.replace(" offline_access", "") if self.switches.scope is None else self.switches.scope
        body = {"access_token": access, "token_type": "bearer", "expires_in": self.switches.expires_in}
        if given:
            body["scope"] = given
        if rotates and not self.switches.forgets_refresh:
            body["refresh_token"] = refresh
        return _said(200, body)

    def _pair(self, login: int, *, rotates: bool = True) -> tuple[str, str]:
        access, refresh = f"access-{secrets.token_urlsafe(24)}", f"refresh-{secrets.token_urlsafe(24)}"
        self.access[access] = login
        if rotates:
            self.refresh[refresh] = login
        return access, refresh

    def _device(self, form: dict[str, str]) -> Answer:
        if form != {"client_id": CLIENT_ID, "scope": self.provider.scope}:
            return self._fault(400, "invalid_request", "the device's form")
        code = secrets.token_urlsafe(16)
        self._devices[code] = self.switches.types_code_after
        url = f"{self.url}/devicelogin"
        said = {"device_code": code, "user_code": "ABCD-1234", "verification_uri": url, "expires_in": 900}
        return _said(200, {**said, "interval": 1})

    def _revoke(self, form: dict[str, str], headers: Any, body: bytes) -> Answer:
        if self.provider.name == "dropbox":
            login = self.access.get(str(headers.get("Authorization", "")).removeprefix("Bearer "))
            if body or login is None:
                return self._fault(401, "invalid_access_token", "revoke")
        else:
            held = self.access if self.provider.name == "box" else self.refresh
            login = held.get(form.get("token", ""))
            secret = form.get("client_secret") if self.provider.name == "box" else CLIENT_SECRET
            if login is None or secret != CLIENT_SECRET:
                return self._fault(400, "invalid_token", "revoke")
        with self._lock:
            for tokens in (self.refresh, self.access):
                for token in [t for t, of in tokens.items() if of == login]:
                    del tokens[token]
        return Answer(200, b"", {})


def _said(status: int, body: dict[str, object]) -> Answer:
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


@contextlib.contextmanager
def oauth_standin(provider: str) -> Iterator[Standin]:
    """A provider's stand-in on loopback. `METASYNC_..._ENDPOINT` is the caller's to set."""
    found: list[Standin] = []

    class Asked(Handler):
        def respond(self, body: bytes) -> Answer:
            return found[0].answer(self.command, self.path, self.headers, body)

    with listening(Asked) as port:
        before = PROVIDERS[provider]
        own = before  # a port that is registered may be another test's at this moment
        if "{port}" not in before.redirect:
            with socket.create_server(("127.0.0.1", 0)) as free:
                own = replace(before, redirect=f"http://localhost:{free.getsockname()[1]}/")
        known = cast("dict[str, Provider]", PROVIDERS)
        known[provider] = own
        found.append(Standin(own, f"http://127.0.0.1:{port}"))
        try:
            yield found[0]
        finally:
            known[provider] = before
