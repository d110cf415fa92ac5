"""The OAuth 2.0 of the providers whose accounts are linked: where each is asked, and what its token endpoint answers.

All four speak RFC 6749 at plain HTTP endpoints, so no library of theirs is needed. Each library keeps tokens in a form
of its own, reads answers without a bound, and refreshes a token before anybody could have written it down.

`METASYNC_DROPBOX_ENDPOINT` and so on lead to a stand-in: one address, with all of a provider's hosts under it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from metasync.backends._shared.credentials import is_loopback, sendable
from metasync.backends._shared.http import retry_after_s
from metasync.backends._shared.wire import Answer, Wire
from metasync.errors import RefusedError, UnreachableError

TOKEN_TIMEOUT_S: Final = 20  # for the answer to one request; a provider gives it within a second
ANSWER_BYTES_MAX: Final = 1 << 18
LIFE_S_MAX: Final = 86400.0  # of an access token; the longest of the four lives 4 hours
LIFE_S: Final = 600.0  # where an answer does not say
CODE_CHARS_MAX: Final = 4096  # of what people paste, and of what a browser brings
_FORM: Final = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
_CLIENTS_BYTES_MAX: Final = 1 << 14
_ERROR_CHARS_MAX: Final = 60
_GRAPH: Final = "https://graph.microsoft.com/"
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True)
class Provider:
    """Whose accounts can be linked. `name` is the scheme of its URLs, and the word of `metasync auth`.

    `more`: parameters of the authorize address. `redirect`: where a browser is sent, {port} being any free one; without
    {port} it is registered with the provider as it stands. `device`: where a code for another machine's browser is had;
    "": nowhere. `shows_code`: without a redirect it shows the code to people. `single_use`: a refresh token is taken
    once, and its answer has the next one. `app`: where an app is registered; `leave`: where an account is unlinked by
    hand.
    """

    name: str
    title: str
    authorize: str
    tokens: str
    scope: str
    redirect: str
    app: str
    leave: str
    revoke: str = ""
    device: str = ""
    more: tuple[tuple[str, str], ...] = ()
    has_pkce: bool = True
    has_secret: bool = False
    shows_code: bool = False
    single_use: bool = False

    @property
    def command(self) -> str:
        """What links an account; `kept.Place.named` adds which one."""
        return f"metasync auth {self.name}"

    @property
    def step(self) -> str:
        """What mends a login that ended, but for its account."""
        return f"Run: {self.command}"


PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider(
            "dropbox",
            "Dropbox",
            "https://www.dropbox.com/oauth2/authorize",
            "https://api.dropboxapi.com/oauth2/token",
            "account_info.read files.metadata.read files.metadata.write files.content.read files.content.write",
            "http://localhost:53117/",
            "https://www.dropbox.com/developers/apps",
            "https://www.dropbox.com/account/connected_apps",
            revoke="https://api.dropboxapi.com/2/auth/token/revoke",
            more=(("token_access_type", "offline"),),
            shows_code=True,
        ),
        Provider(
            "onedrive",
            "OneDrive",
            "https://login.microsoftonline.com/common/oauth2/v2.0/authorize",
            "https://login.microsoftonline.com/common/oauth2/v2.0/token",
            "Files.ReadWrite.AppFolder offline_access",
            "http://localhost:{port}",
            "https://entra.microsoft.com/#view/Microsoft_AAD_RegisteredApps/ApplicationsListBlade",
            "https://account.live.com/consent/Manage",
            device="https://login.microsoftonline.com/common/oauth2/v2.0/devicecode",
        ),
        Provider(
            "box",
            "Box",
            "https://account.box.com/api/oauth2/authorize",
            "https://api.box.com/oauth2/token",
            "",
            "http://localhost:53117/",
            "https://app.box.com/developers/console",
            "https://app.box.com/account/security",
            revoke="https://api.box.com/oauth2/revoke",
            has_pkce=False,
            has_secret=True,
            single_use=True,
        ),
        Provider(
            "gdrive",
            "Google Drive",
            "https://accounts.google.com/o/oauth2/v2/auth",
            "https://oauth2.googleapis.com/token",
            "https://www.googleapis.com/auth/drive.file",
            "http://127.0.0.1:{port}",
            "https://console.cloud.google.com/auth/clients",
            "https://myaccount.google.com/connections",
            revoke="https://oauth2.googleapis.com/revoke",
            more=(("access_type", "offline"), ("prompt", "consent")),
            has_secret=True,
        ),
    )
}


@dataclass(frozen=True)
class Tokens:
    """What a token endpoint gave. `refresh` is "" where the one before goes on. Times are seconds since 1970."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    ends_at: float
    renew_at: float


@dataclass(frozen=True)
class Client:
    """An app that is registered with a provider. `secret`: "" where it has none."""

    id: str
    secret: str = field(default="", repr=False)


class EndedError(RefusedError):
    """The provider does not take a login's refresh token any more (`invalid_grant`)."""


class NotYetError(RefusedError):
    """The provider waits for the user; `slower`: it wants to be asked less often."""

    def __init__(self, message: str, *, slower: bool = False) -> None:
        super().__init__(message)
        self.slower = slower


def endpoint_of(provider: str, environ: Mapping[str, str] = os.environ) -> str:
    """The address in the place of all of a provider's hosts that the environment names, without a / at its end; "".

    `RefusedError` where it has neither TLS nor is this machine.
    """
    variable = f"METASYNC_{provider.upper()}_ENDPOINT"
    base = environ.get(variable, "").rstrip("/")
    parts = urlsplit(base)
    if base and not (
        parts.netloc
        and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")))
        and not (parts.query or parts.fragment or parts.username or parts.password)
    ):
        raise RefusedError(
            f"{variable} is not the address of a server with TLS, or of one on this machine",
            next_step=f"Unset {variable}, or give https://host/ or http://127.0.0.1:port/.",
        )
    return base


def address(provider: Provider, url: str) -> str:
    """A provider's address, or its place at the stand-in that the environment names."""
    base = endpoint_of(provider.name)
    return base + urlsplit(url).path if base else url


def shipped_client(provider: str, environ: Mapping[str, str] = os.environ) -> Client | None:
    """The app of whoever packed this program, or of the environment; None: the user registers one of his own.

    A distributor puts `oauth_clients.json` beside this module: {"dropbox": {"id": "...", "secret": "..."}}.
    """
    name = f"METASYNC_{provider.upper()}_CLIENT"
    if own := environ.get(f"{name}_ID"):
        return Client(own, environ.get(f"{name}_SECRET", ""))
    try:
        with Path(__file__).with_name("oauth_clients.json").open("rb") as file:
            found = json.loads(file.read(_CLIENTS_BYTES_MAX)).get(provider)
        return None if found is None else Client(str(found["id"]), str(found.get("secret", "")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RefusedError(
            f"the apps that came with this program cannot be read ({type(error).__name__})",
            next_step="Install MetaSync anew, or tell whoever packed it.",
        ) from None


def authorize_url(provider: Provider, client: Client, redirect: str, state: str, challenge: str) -> str:
    """What a browser is to open. `redirect`: "" where the provider shows the code. `challenge`: of PKCE (S256)."""
    query = {"client_id": client.id, "response_type": "code", "state": state, **dict(provider.more)}
    if redirect:
        query["redirect_uri"] = redirect
    if provider.scope:
        query["scope"] = provider.scope
    if provider.has_pkce:
        query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
    return f"{address(provider, provider.authorize)}?{urlencode(query)}"


def exchanged(provider: Provider, client: Client, code: str, redirect: str, verifier: str) -> Tokens:
    """The tokens for a code. `RefusedError` where the provider gives none, or fewer rights than were asked for."""
    form = {"grant_type": "authorization_code", "code": code}
    if redirect:
        form["redirect_uri"] = redirect
    if provider.has_pkce:
        form["code_verifier"] = verifier
    return _first(provider, _answered(provider, client, form))


def renewed(provider: Provider, client: Client, refresh: str) -> Tokens:
    """The tokens for a refresh token. `EndedError` where it is not taken any more."""
    return _tokens(provider, _answered(provider, client, {"grant_type": "refresh_token", "refresh_token": refresh}))


@dataclass(frozen=True)
class DeviceCode:
    """What a user types at `url` on any machine; `code` is asked with meanwhile, every `every_s` until `ends_at`."""

    url: str
    shown: str
    code: str = field(repr=False)
    every_s: float
    ends_at: float


def device_code(provider: Provider, client: Client) -> DeviceCode:
    """A code for a browser on another machine (RFC 8628)."""
    form = {"client_id": client.id, "scope": provider.scope}
    found = _object(provider, _posted(provider, provider.device, form))
    url = found.get("verification_uri") or found.get("verification_url")
    texts = [url, found.get("user_code"), found.get("device_code")]
    if not all(isinstance(text, str) and 0 < len(text) <= CODE_CHARS_MAX for text in texts):
        raise _strange(provider)
    every_s = min(max(_seconds(found.get("interval"), 5.0), 1.0), 60.0)
    life_s = min(_seconds(found.get("expires_in"), 900.0), 3600.0)
    return DeviceCode(str(texts[0]), str(texts[1]), str(texts[2]), every_s, time.time() + life_s)


def of_device(provider: Provider, client: Client, code: str) -> Tokens:
    """The tokens for a device code. `NotYetError` until the user has typed it."""
    return _first(provider, _answered(provider, client, {"grant_type": DEVICE_GRANT, "device_code": code}))


def revoke(provider: Provider, client: Client, access: str, refresh: str) -> bool:
    """Has the provider forget a login. False where it has no way to be told.

    `UnreachableError` or `RefusedError` where it did not say that it did.
    """
    if not provider.revoke:
        return False
    if provider.name == "dropbox":  # the token of the request is the one that goes, with all of its login
        answer = _sent(provider, provider.revoke, {"authorization": f"Bearer {access}"}, b"")
    elif provider.name == "box":
        form = {"token": access, "client_id": client.id, "client_secret": client.secret}
        answer = _posted(provider, provider.revoke, form)
    else:
        answer = _posted(provider, provider.revoke, {"token": refresh})
    if answer.status not in (200, 204):
        raise _refused(provider, answer)
    return True


def _answered(provider: Provider, client: Client, form: Mapping[str, str]) -> dict[str, Any]:
    """What the token endpoint answers to a form, with what it says of the client beside it."""
    own = {**form, "client_id": client.id}
    if client.secret:
        own["client_secret"] = client.secret
    return _object(provider, _posted(provider, provider.tokens, own))


def _posted(provider: Provider, url: str, form: Mapping[str, str]) -> Answer:
    return _sent(provider, url, _FORM, urlencode(form).encode())


def _sent(provider: Provider, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer to one request, which is not repeated. `UnreachableError`."""
    parts = urlsplit(address(provider, url))
    attempt = f"cannot ask {provider.title} about the login ({parts.hostname})"
    wire = Wire(f"{parts.scheme}://{parts.netloc}", may_proxy=parts.scheme == "https")
    try:
        with wire.exchange("POST", parts.path, headers, body, attempt, within_s=TOKEN_TIMEOUT_S) as reply:
            answer = reply.answer(ANSWER_BYTES_MAX)
    finally:
        wire.close()
    if len(answer.body) == ANSWER_BYTES_MAX:
        raise _strange(provider)
    return answer


def _object(provider: Provider, answer: Answer) -> dict[str, Any]:
    if answer.status != 200:
        raise _refused(provider, answer)
    found = _json(answer)
    if not found:
        raise _strange(provider)
    return found


def _json(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refused(provider: Provider, answer: Answer) -> RefusedError | UnreachableError:
    """The error for an answer. It tells the provider's word for the error; the rest may quote a secret."""
    error = _json(answer).get("error")
    word = error if isinstance(error, str) and error.replace("_", "").isalnum() else ""
    word = word[:_ERROR_CHARS_MAX]
    if word in ("authorization_pending", "slow_down"):
        return NotYetError(f"{provider.title} waits for the code to be typed", slower=word == "slow_down")
    if answer.status in (408, 429) or answer.status >= 500 or not word:
        if 400 <= answer.status < 500 and answer.status not in (408, 429) and not answer.is_page:
            return RefusedError(f"{provider.title} refused the login ({answer.status})", next_step=provider.step)
        wait_s = retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))
        failed = UnreachableError(
            f"{provider.title} gives no token now: its server answered {answer.status}", next_step="Try again later."
        )
        failed.retry_after_s = wait_s
        return failed
    if word == "invalid_grant":
        return EndedError(f"the login to {provider.title} ended or was revoked", next_step=provider.step)
    if word in ("invalid_client", "unauthorized_client"):
        return RefusedError(
            f"{provider.title} does not know the app of this login, or its secret ({word})",
            next_step=f"{provider.step} --new-app",
        )
    if word in ("access_denied", "authorization_declined"):
        return RefusedError(f"the account was not linked: {provider.title} was told no", next_step=provider.step)
    if word in ("expired_token", "code_expired"):
        return RefusedError("the code was not typed in time", next_step=provider.step)
    return RefusedError(f"{provider.title} refused the login ({word})", next_step=provider.step)


def _strange(provider: Provider) -> UnreachableError:
    return UnreachableError(
        f"{provider.title} gives no token: the answer is of another kind", next_step="Check the network and the proxy."
    )


def _first(provider: Provider, found: Mapping[str, Any]) -> Tokens:
    """The tokens of a new login, which must be one that lasts, with the rights that were asked for."""
    given = found.get("scope")
    if isinstance(given, str) and given:
        have = {word.removeprefix(_GRAPH).lower() for word in given.split()}
        missing = [w for w in provider.scope.split() if w.lower() not in have and w != "offline_access"]
        if missing:
            raise RefusedError(
                f"{provider.title} gave fewer rights than are needed: {', '.join(missing)} is missing",
                next_step=f"Give the app these rights ({provider.app}), link again, and allow all that is asked for.",
            )
    tokens = _tokens(provider, found)
    if not tokens.refresh:
        raise RefusedError(
            f"{provider.title} gave a login that ends within hours: without a refresh token",
            next_step=f"Check the app's settings ({provider.app}), then link again.",
        )
    return tokens


def _tokens(provider: Provider, found: Mapping[str, Any]) -> Tokens:
    access, refresh = found.get("access_token"), found.get("refresh_token") or ""
    if not isinstance(access, str) or not isinstance(refresh, str):
        raise _strange(provider)
    life_s = min(max(_seconds(found.get("expires_in"), LIFE_S), 0.0), LIFE_S_MAX)
    ends_at = time.time() + life_s
    return Tokens(
        sendable(access, f"a token of {provider.title}"),
        sendable(refresh, f"a token of {provider.title}") if refresh else "",
        ends_at,
        ends_at - early_s(life_s),
    )


def early_s(life_s: float) -> float:
    """How long before its end a token is renewed: a quarter of its life, 15 minutes at most."""
    return min(900.0, life_s / 4)


def _seconds(value: object, otherwise: float) -> float:
    try:
        found = float(str(value))
    except ValueError:
        return otherwise
    return found if 0 <= found < 1e9 else otherwise  # of NaN nothing holds
