"""The login of a Swift: what the environment or the keyring says, and the request that turns it into a token.

There are three ways, as for every OpenStack client: Keystone v3 (`OS_*`, a password or an application credential),
TempAuth v1 (`ST_*`), or a storage URL with a token (`OS_STORAGE_URL`, `OS_AUTH_TOKEN`). Keystone is asked here, because
swiftclient's way through python-keystoneclient is nineteen packages and 0.15 s of CPU for one POST.

A secret of the environment counts only if its server and user are those that the URL names, if it names any.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from metasync.backends._shared.credentials import SERVICE
from metasync.backends._shared.urls import server_address
from metasync.backends.swift.http import answered, not_swift
from metasync.errors import BackendError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer

NEXT_STEP = (
    "Set OS_AUTH_URL, OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME (Keystone), or ST_AUTH, ST_USER and ST_KEY"
    " (TempAuth), or OS_STORAGE_URL and OS_AUTH_TOKEN; see docs/howto/swift.md."
)
_EARLY_S = 30.0  # a token is renewed so long before its end: a large put takes as long to begin with
_LIFE_S_MAX = 30 * 86400.0
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}")

Secrets = Callable[[str, Sequence[str]], str | None]
"""`_shared.credentials.secret`, or a test's."""


@dataclass(frozen=True, slots=True)
class Login:
    """What to log in with. `storage_url` "" is the one that the server tells."""

    kind: Literal["v1", "v3", "token"]
    auth_url: str = ""
    user: str = ""
    secret: str = field(default="", repr=False)
    scope: Mapping[str, Any] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict, repr=False)
    region: str = ""
    interface: str = "public"
    storage_url: str = ""
    said_by: str = ""

    @property
    def where(self) -> str:
        return self.auth_url or self.storage_url


Ask = Callable[[str, str, Mapping[str, str], bytes | None], "Answer"]
"""One request: (method, url, headers, body). Raises what the network makes of it."""


class Token(NamedTuple):
    """A way in. `ends_at`: by the monotonic clock; infinite where nobody said."""

    storage_url: str
    value: str
    ends_at: float

    def __repr__(self) -> str:
        return f"Token({self.storage_url})"


def read_login(environ: Mapping[str, str], params: Mapping[str, str], secrets: Secrets) -> Login:
    """The login for a URL with these parameters. `RefusedError` that names what is missing."""
    get = environ.get
    auth = params.get("auth", "")
    user = params.get("user", "")
    if not auth and not user and get("OS_STORAGE_URL") and get("OS_AUTH_TOKEN"):
        url = _base(environ["OS_STORAGE_URL"], "OS_STORAGE_URL")
        return Login("token", secret=environ["OS_AUTH_TOKEN"], storage_url=url, said_by="OS_AUTH_TOKEN")
    if auth:
        v1 = re.search(r"/v1(\.0)?/?$", urlsplit(auth).path) is not None
    else:
        v1 = bool(get("ST_AUTH")) and not get("OS_AUTH_URL")
        auth = get("ST_AUTH" if v1 else "OS_AUTH_URL") or ""
    if not auth:
        raise RefusedError(
            "no Swift credentials: neither the URL nor the environment names a server", next_step=NEXT_STEP
        )
    auth = _base(auth, "the address of the server to log in at")
    return (_v1 if v1 else _v3)(environ, params, secrets, auth)


def _v1(environ: Mapping[str, str], params: Mapping[str, str], secrets: Secrets, auth: str) -> Login:
    same = _same_server(auth, environ.get("ST_AUTH"))
    user = params.get("user") or (environ.get("ST_USER") or "" if same else "")
    if not user:
        raise _missing(auth, "ST_USER", "no user is named", environ)
    own = same and user == environ.get("ST_USER", user)
    key = secrets(f"{user}@{auth}", ("ST_KEY",) if own else ())
    if not key:
        raise _missing(auth, "ST_KEY", f"there is no key for the user {user[:80]!r}", environ, user)
    return Login("v1", auth, user, key, storage_url=_own_storage(environ if same else {}), said_by="ST_USER and ST_KEY")


def _v3(environ: Mapping[str, str], params: Mapping[str, str], secrets: Secrets, auth: str) -> Login:
    if re.search(r"/v2(\.0)?$", auth):
        raise RefusedError(
            f"{auth} is the address of Keystone v2, which nothing speaks any more", next_step="Name its /v3 address."
        )
    same = _same_server(auth, environ.get("OS_AUTH_URL"))
    env = environ if same else {}
    if not re.search(r"/v3$", auth):
        auth += "/v3"
    region = params.get("region") or env.get("OS_REGION_NAME") or ""
    interface = (env.get("OS_INTERFACE") or env.get("OS_ENDPOINT_TYPE") or "public").removesuffix("URL")
    common = {"region": region, "interface": interface, "storage_url": _own_storage(env)}
    credential = env.get("OS_APPLICATION_CREDENTIAL_ID") if "user" not in params else None
    if credential:
        value = secrets(f"{credential}@{auth}", ("OS_APPLICATION_CREDENTIAL_SECRET",))
        if not value:
            raise _missing(
                auth, "OS_APPLICATION_CREDENTIAL_SECRET", "the application credential has no secret", environ
            )
        identity = {
            "methods": ["application_credential"],
            "application_credential": {"id": credential, "secret": value},
        }
        said_by = "OS_APPLICATION_CREDENTIAL_ID and OS_APPLICATION_CREDENTIAL_SECRET"
        return Login("v3", auth, credential, value, None, identity, said_by=said_by, **common)
    by_id = "" if "user" in params else env.get("OS_USER_ID", "")
    user = params.get("user") or by_id or env.get("OS_USERNAME", "")
    if not user:
        raise _missing(auth, "OS_USERNAME", "no user is named", environ)
    own = same and user in (by_id, env.get("OS_USERNAME", user))
    value = secrets(f"{user}@{auth}", ("OS_PASSWORD",) if own else ())
    if not value:
        raise _missing(auth, "OS_PASSWORD", f"there is no password for the user {user[:80]!r}", environ, user)
    domain = _domain(env, "USER", params.get("domain"))
    who: dict[str, Any] = {"id": by_id} if by_id else {"name": user, "domain": domain}
    identity = {"methods": ["password"], "password": {"user": {**who, "password": value}}}
    scope = _scope(env, params)
    if scope is None:
        raise _missing(auth, "OS_PROJECT_NAME", "no project is named", environ)
    said_by = "OS_USERNAME, OS_PASSWORD, OS_PROJECT_NAME and OS_USER_DOMAIN_NAME"
    return Login("v3", auth, user, value, scope, identity, said_by=said_by, **common)


def _scope(env: Mapping[str, str], params: Mapping[str, str]) -> dict[str, Any] | None:
    by_id = env.get("OS_PROJECT_ID") or env.get("OS_TENANT_ID")
    if by_id and "project" not in params:
        return {"project": {"id": by_id}}
    name = params.get("project") or env.get("OS_PROJECT_NAME") or env.get("OS_TENANT_NAME")
    if not name:
        return None
    return {"project": {"name": name, "domain": _domain(env, "PROJECT", params.get("domain"))}}


def _domain(env: Mapping[str, str], whose: str, named: str | None) -> dict[str, str]:
    if named:
        return {"name": named}
    if by_id := env.get(f"OS_{whose}_DOMAIN_ID"):
        return {"id": by_id}
    name = env.get(f"OS_{whose}_DOMAIN_NAME") or env.get("OS_DOMAIN_NAME")
    return {"name": name} if name else {"id": env.get("OS_DEFAULT_DOMAIN") or "default"}


class Tokens:
    """The token in use; got when it is first asked for, and again when it ends. Used from several threads."""

    def __init__(self, login: Login, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self.login = login
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None

    def current(self, *, but: Token | None = None) -> Token:
        """A token; another one than `but`, which was refused. `RefusedError` where there is no other."""
        token = self._token
        if token is not None and token is not but and self._clock() < token.ends_at:
            return token
        with self._lock:  # one logs in, the others wait for what it gets
            token = self._token
            if token is None or token is but or self._clock() >= token.ends_at:
                token = self._token = self._log_in(again=but is not None)
            return token

    def _log_in(self, *, again: bool) -> Token:
        login, began = self.login, self._clock()
        if login.kind == "token":
            if again:
                raise RefusedError(
                    f"the token of OS_AUTH_TOKEN is not accepted at {login.where}",
                    next_step="Get a new one, or set what one can be got with: OS_AUTH_URL, OS_USERNAME, OS_PASSWORD.",
                )
            return Token(login.storage_url, login.secret, float("inf"))
        if login.kind == "v1":
            url, value, life_s = _ask_v1(login, self._ask)
        else:
            url, value, life_s = _ask_v3(login, self._ask)
        url = _checked_storage(login, login.storage_url or url)
        if self._token is not None and url != self._token.storage_url:
            raise UnreachableError(
                f"{login.auth_url} names another store than it did when this command began",
                next_step="Run the command again, and look whether it is the right store.",
            )
        if not re.fullmatch(r"[!-~]{1,32768}", value):
            raise not_swift(f"cannot log in at {login.auth_url}", "a token that is none")
        ends_at = began + max(0.0, min(life_s, _LIFE_S_MAX) - _EARLY_S)
        return Token(url, value, ends_at if life_s > 2 * _EARLY_S else began + life_s)


def _ask_v1(login: Login, ask: Ask) -> tuple[str, str, float]:
    answer = ask("GET", login.auth_url, {"X-Auth-User": login.user, "X-Auth-Key": login.secret}, None)
    if answer.status not in (200, 204):
        raise _refused(login, answer)
    found = answer.headers
    token = found.get("x-storage-token") or found.get("x-auth-token")
    if not token or not (login.storage_url or found.get("x-storage-url")):
        raise not_swift(f"cannot log in at {login.auth_url}", "no token and storage URL")
    return found.get("x-storage-url") or "", token, _seconds(found.get("x-auth-token-expires"))


def _ask_v3(login: Login, ask: Ask) -> tuple[str, str, float]:
    auth: dict[str, Any] = {"identity": dict(login.identity)}
    if login.scope is not None:
        auth["scope"] = dict(login.scope)
    body = json.dumps({"auth": auth}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    answer = ask("POST", f"{login.auth_url}/auth/tokens", headers, body)
    if answer.status not in (200, 201):
        raise _refused(login, answer)
    try:
        token = json.loads(answer.body)["token"]
        value = answer.headers["x-subject-token"]
        life_s = _life_s(token)
        url = login.storage_url or _endpoint(login, token.get("catalog") or [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise not_swift(f"cannot log in at {login.auth_url}", "no token of Keystone's") from None
    return url, value, life_s


def _endpoint(login: Login, catalog: list[Any]) -> str:
    """The object store's public URL in the region that is wanted."""
    stores = [e for service in catalog if service.get("type") == "object-store" for e in service["endpoints"]]
    of_kind = [e for e in stores if e.get("interface") == login.interface]
    regions = {str(e.get("region") or e.get("region_id") or "") for e in of_kind}
    if login.region:
        of_kind = [e for e in of_kind if login.region in (e.get("region"), e.get("region_id"))]
    known = ", ".join(sorted(r for r in regions if _REGION.fullmatch(r))[:8])
    if not of_kind:
        what = f" in the region {login.region[:64]}" if login.region else f" for the interface {login.interface[:16]}"
        raise RefusedError(
            f"{login.auth_url} accepts the credentials, but knows no object store{what}",
            next_step=f"Name a region in the URL: &region=NAME (there are: {known})." if known
            else "Check OS_PROJECT_NAME and OS_INTERFACE; the project may have no object store.",
        )  # fmt: skip
    if len(regions) > 1 and not login.region:
        raise RefusedError(
            f"{login.auth_url} has object stores in several regions, which are stores of their own",
            next_step=f"Name one in the URL: &region=NAME (there are: {known}).",
        )
    return str(of_kind[0]["url"])


def _life_s(token: Mapping[str, Any]) -> float:
    """How long a token lives, from the server's own clock alone: ours may be wrong."""
    expires, issued = token.get("expires_at"), token.get("issued_at")
    if not expires or not issued:
        return float("inf")
    return (datetime.fromisoformat(expires) - datetime.fromisoformat(issued)).total_seconds()


def _seconds(text: str | None) -> float:
    return float(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else float("inf")


def _refused(login: Login, answer: Answer) -> BackendError:
    attempt = f"cannot log in at {login.auth_url}"
    if answer.status in (401, 403):
        return RefusedError(f"{attempt}: the server refused the credentials ({answer.status})",
                            next_step=f"Check {login.said_by}, and that they belong to this server.")  # fmt: skip
    strange = answer.is_page and answer.status < 500 and answer.status != 429  # a busy server says so in a page as well
    if answer.status in (300, 404, 405) or strange or answer.status < 300:
        return UnreachableError(
            f"{attempt}: what answered is no {'Keystone v3' if login.kind == 'v3' else 'TempAuth'} ({answer.status})",
            next_step="Check the address to log in at (https://auth.example.org/v3, say), and the network's login.",
        )
    return answered(answer, attempt)


def _checked_storage(login: Login, url: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        sound = sound and re.fullmatch(r"[!-~]{1,2048}", url) is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:
        raise not_swift(f"cannot log in at {login.auth_url}", "no address of a store")
    if urlsplit(login.auth_url).scheme == "https" and parts.scheme == "http":
        raise RefusedError(
            f"{login.auth_url} names a store without TLS, where the token could be read on its way",
            next_step="Set OS_STORAGE_URL to the store's https:// address.",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _own_storage(environ: Mapping[str, str]) -> str:
    url = environ.get("OS_STORAGE_URL")
    return _base(url, "OS_STORAGE_URL") if url else ""


def _base(url: str, what: str) -> str:
    """An address without a trailing slash. `RefusedError` that does not quote it: it may hold a password."""
    parts = server_address(url.strip())
    if parts is None:
        raise RefusedError(
            f"{what} is not the address of a server, or holds more than that",
            next_step="Write https://host:port/path, without user, password or parameters.",
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _same_server(auth: str, of_environment: str | None) -> bool:
    """Whether what the environment holds may go to `auth`."""
    if not of_environment:
        return True
    return _base(auth, "the URL").removesuffix("/v3") == _base(of_environment, "OS_AUTH_URL or ST_AUTH").removesuffix(
        "/v3"
    )


def _missing(auth: str, variable: str, what: str, environ: Mapping[str, str], user: str = "") -> RefusedError:
    step = f"Set {variable}. {NEXT_STEP}"
    if environ.get(variable):
        kept = f", or keep it in the keyring: keyring set {SERVICE} '{user[:80]}@{auth}'" if user else ""
        step = f"The {variable} of the environment is for another server or user: set all of them for this one{kept}."
    return RefusedError(f"no Swift credentials for {auth}: {what}", next_step=step)
