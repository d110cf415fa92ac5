"""The gate of the page: who may ask, by which address, from which site, with how much.

Every process and every user of this machine can reach a port on loopback, and so can every page in the user's browser.
Four things keep them out:

1. A *token* of 256 random bits opens the page once. It stands behind the `#` of the address, which browsers send to
   nobody; the page shows it in the body of a request. A second use is refused.
2. What it buys is a cookie: HttpOnly, SameSite=Strict, and for a *path* that is random too. A cookie does not know of
   ports: another user's server on this host would be sent it, were the path not unknown there.
3. `Host` is the very address that was printed, so that no name that leads to loopback works (DNS rebinding).
4. `Origin` and `Sec-Fetch-Site`, where a browser sends them, say this page; whatever changes something must send them.

All answers forbid scripts, styles, frames and requests but the page's own (Content-Security-Policy).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST: Final = "127.0.0.1"
COOKIE: Final = "metasync"
BODY_BYTES_MAX: Final = 64 << 10  # of a request: names, a passphrase, a few words
SECRET_BYTES: Final = 32
ENTRY: Final = "/"  # where the browser is sent; it holds no data
SAFE: Final = frozenset({"GET", "HEAD"})

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)


class Refusal(NamedTuple):
    """Why a request is turned away."""

    status: int
    message: str


class Gate:
    """Lets one browser of one user through to `app`, below a path that nobody else knows. See the module.

    `port`: the server listens there. `doors`: paths that anybody on this machine may ask for; they hold no data.
    """

    def __init__(self, app: ASGIApp, port: int, doors: Iterable[str] = ()) -> None:
        self.origin = f"http://{HOST}:{port}"
        self.path = f"/p/{secrets.token_hex(16)}/"
        self._app, self._host, self._doors = app, f"{HOST}:{port}", frozenset(doors)
        self._token: str | None = secrets.token_urlsafe(SECRET_BYTES)
        self._cookie: str | None = None

    @property
    def url(self) -> str:
        """The address that opens the page, once."""
        return f"{self.origin}/#{self._token or ''}"

    @property
    def is_opened(self) -> bool:
        """Whether a browser has used the token."""
        return self._token is None

    def open(self, token: object) -> Response:
        """The answer to whoever shows a token: the cookie and the path, or a refusal. The token is void after it."""
        if self._token is None:
            return refused(Refusal(403, "This link was used already. Run `metasync ui` again for another one."))
        if not isinstance(token, str) or not compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return refused(Refusal(403, "This link is not the one that was printed last. Run `metasync ui` again."))
        self._token, self._cookie = None, secrets.token_urlsafe(SECRET_BYTES)
        response = JSONResponse({"path": self.path})
        response.set_cookie(COOKIE, self._cookie, path=self.path, httponly=True, samesite="strict")
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message.get("headers", ())}
                message["headers"] = [*message.get("headers", ()), *(h for h in HEADERS if h[0] not in own)]
            await send(message)

        headers = _headers(scope)
        refusal = None if headers is None else self._judged(scope["method"], scope["path"], headers)
        if headers is None:
            refusal = Refusal(400, "A header stands twice.")
        if refusal is not None:
            await refused(refusal)(scope, receive, told)
            return
        await self._app(scope, _bounded(receive), told)

    def _judged(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        if headers.get("host") != self._host:
            return Refusal(421, "This address is not the one that was printed.")
        if method not in SAFE and method != "POST":
            return Refusal(405, "This cannot be done here.")
        foreign = headers.get("origin", self.origin if method in SAFE else "") != self.origin
        is_entry = method in SAFE and path == ENTRY  # the file that opens the browser is another site
        site = headers.get("sec-fetch-site", "same-origin")
        if foreign or (site not in ("same-origin", "none") and not is_entry):
            return Refusal(403, "Another site asks.")
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return Refusal(415, "Only JSON is taken here.")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or len(length) > 12 or int(length) > BODY_BYTES_MAX:
            return Refusal(413, "That is too much.")
        if path in self._doors:
            return None
        if not path.startswith(self.path):
            return Refusal(404, "There is nothing here. Run `metasync ui` again.")
        if not self._is_known(headers.get("cookie", "")):
            return Refusal(403, "This browser has not opened the page. Run `metasync ui` again.")
        return None

    def _is_known(self, cookies: str) -> bool:
        if self._cookie is None:
            return False
        try:
            shown = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return False
        return shown is not None and compare_digest(shown.value.encode("utf-8", "replace"), self._cookie.encode())


class TooMuchError(Exception):
    """A body went on beyond BODY_BYTES_MAX."""


def refused(refusal: Refusal) -> Response:
    """An answer that says why nothing was done."""
    return JSONResponse(
        {"error": {"kind": "Refused", "message": refusal.message, "next_step": ""}}, status_code=refusal.status
    )


def _headers(scope: Scope) -> dict[str, str] | None:
    """The headers by name; None where one that is judged by stands twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in found and key in ("host", "origin", "sec-fetch-site", "content-type", "content-length", "cookie"):
            return None
        found[key] = value.decode("latin-1")
    return found


def _bounded(receive: Receive) -> Receive:
    """Receives a body up to its bound: one that comes in pieces need not tell its length."""
    left = BODY_BYTES_MAX

    async def received() -> Message:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooMuchError
        return message

    return received
