"""Links an account: the user allows it in a browser, and a code comes back, which is exchanged for a login.

Three ways bring the code (RFC 8252, RFC 8628). The browser is sent to this machine, where `Listener` waits for it. Or
the user pastes what the browser shows: the code, or the address that it was sent to and could not open. Or he types a
short code on any machine, and the provider is asked until he has (`oauth.device_code`).

What a browser or a user brings counts if it has this attempt's `state`, 256 random bits. With PKCE a code is worth
nothing to whoever saw it on the way; Box has no PKCE, and asks for the app's secret.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from metasync.backends._shared.logins import forget_open, oauth, open_login
from metasync.backends._shared.logins.kept import Grant, Place
from metasync.backends._shared.logins.oauth import CODE_CHARS_MAX, Client, DeviceCode, NotYetError, Provider, Tokens
from metasync.errors import BackendError, RefusedError, UsageError

LINK_S: Final = 600.0  # for the user to log in and to allow it
PASTE_PORT: Final = 53117  # in an address that nothing listens at: the user copies it
_REQUEST_S: Final = 10.0  # for a browser to send a request that it began
_CONNECTIONS_MAX: Final = 32  # other programs of this machine may come, too

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>MetaSync</title>'
    "<body><h1>MetaSync</h1><p>{}</p></body></html>"
)


@dataclass(frozen=True)
class Attempt:
    """One attempt at linking. `url` is what the user opens; `redirect` where the browser is sent, or ""."""

    provider: Provider
    client: Client
    redirect: str
    url: str
    state: str = field(repr=False)
    verifier: str = field(repr=False)

    def code_of(self, query: dict[str, list[str]]) -> str | None:
        """The code among the parameters that a browser brought; None for those of another attempt.

        `RefusedError` where the user said no, or the provider.
        """
        state = query.get("state", [""])[0]
        if not hmac.compare_digest(state.encode("utf-8", "replace"), self.state.encode()):
            return None
        if error := query.get("error", [""])[0]:
            said_no = error == "access_denied"
            word = error if error.replace("_", "").isalnum() and len(error) <= CODE_CHARS_MAX // 64 else "unknown"
            why = f"{self.provider.title} was told no" if said_no else f"{self.provider.title} refused it ({word})"
            raise RefusedError(f"the account was not linked: {why}", next_step=self.provider.step)
        code = query.get("code", [""])[0]
        return code if 0 < len(code) <= CODE_CHARS_MAX else None

    def pasted(self, text: str) -> str:
        """The code in what the user pasted: the address that the browser was sent to, or the code itself.

        `UsageError` for anything else, such as the address of an earlier attempt.
        """
        text = text.strip()
        if not self.redirect:
            if not text or len(text) > CODE_CHARS_MAX or "://" in text or not text.isprintable():
                raise UsageError("that is not the code", next_step="Copy the code that the page shows.")
            return text
        query = text[: 2 * CODE_CHARS_MAX].partition("?")[2].partition("#")[0]
        code = self.code_of(parse_qs(query)) if text.startswith(self.redirect) else None
        if code is None:
            raise UsageError(
                "that is not the address that the browser was sent to",
                next_step=f"Copy all of it, from {self.redirect} on, from the browser's address line.",
            )
        return code

    def tokens(self, code: str) -> Tokens:
        """The login for a code."""
        return oauth.exchanged(self.provider, self.client, code, self.redirect, self.verifier)


def begun(provider: Provider, client: Client, redirect: str) -> Attempt:
    """Begins an attempt. `redirect`: "" where the provider shows the code."""
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    url = oauth.authorize_url(provider, client, redirect, state, challenge)
    return Attempt(provider, client, redirect, url, state, verifier)


class Listener:
    """Waits on this machine, and no other, for a browser with the code of one attempt."""

    def __init__(self, server: _Server, attempt: Attempt) -> None:
        self.attempt = attempt
        self._server = server

    def code(self, timeout_s: float = LINK_S) -> str:
        """The code. `RefusedError`: the user said no, or nobody came in time."""
        if not self._server.came.wait(timeout_s):
            raise RefusedError(
                f"the account was not linked: no browser came back within {timeout_s / 60:.0f} minutes",
                next_step=f"{self.attempt.provider.step} --no-browser",
            )
        found = self._server.found
        if isinstance(found, BackendError):
            raise found
        return found


@contextlib.contextmanager
def listening(provider: Provider, client: Client) -> Iterator[Listener]:
    """Begins an attempt, with a listener on 127.0.0.1: at the port registered with the provider, or at any free one."""
    free = "{port}" in provider.redirect
    port = 0 if free else urlsplit(provider.redirect).port or 0
    try:
        server = _Server(("127.0.0.1", port), _Request)
    except OSError as error:
        raise RefusedError(
            f"cannot wait for the browser at {provider.redirect}: {error.strerror}",
            next_step=f"End what listens there, or {provider.step.lower()} --no-browser",
        ) from error
    server.attempt = begun(provider, client, provider.redirect.format(port=server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield Listener(server, server.attempt)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True  # an attempt a moment ago leaves the port in TIME_WAIT; two cannot listen there
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.attempt: Attempt | None = None
        self.came = threading.Event()
        self.found: str | BackendError = ""
        self.lock = threading.Lock()
        self._free = threading.Semaphore(_CONNECTIONS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread, of which there are so many at most."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of a browser that hangs up."""


class _Request(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server_version = "MetaSync"
    sys_version = ""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        path, _, query = self.path.partition("?")
        attempt = server.attempt
        if attempt is None or path != (urlsplit(attempt.redirect).path or "/"):
            self._say(404, "There is nothing here.")
            return
        with server.lock:
            if server.came.is_set():
                self._say(404, "There is nothing here.")
                return
            try:
                found: str | BackendError | None = attempt.code_of(parse_qs(query))
            except RefusedError as error:
                found = error
            if found is None:
                self._say(404, "This is not the answer that MetaSync waits for.")
                return
            try:
                self._say(
                    200,
                    "The account was not linked. You may close this page."
                    if isinstance(found, BackendError)
                    else "MetaSync has what it needs and goes on in the terminal. You may close this page.",
                )
            finally:
                server.found = found
                server.came.set()

    def _say(self, status: int, text: str) -> None:
        page = _PAGE.format(text).encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(page))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),  # the address of this page holds the code
            ("Content-Security-Policy", "default-src 'none'"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Writes no log: the address holds the code."""


def await_device(
    provider: Provider, client: Client, code: DeviceCode, sleep: Callable[[float], None] = time.sleep
) -> Tokens:
    """The login for a device code, once the user has typed it. `RefusedError`: he said no, or was not in time."""
    every_s = code.every_s
    while time.time() < code.ends_at:
        sleep(every_s)
        try:
            return oauth.of_device(provider, client, code.code)
        except NotYetError as error:
            every_s += 5.0 if error.slower else 0.0  # RFC 8628, 3.5
    raise RefusedError("the account was not linked: the code was not typed in time", next_step=provider.step)


def keep(provider: Provider, account: str, client: Client, tokens: Tokens) -> Place:
    """Keeps a new login under a label, in the place of the one before. -> where it is."""
    place = Place(provider, account)
    grant = Grant(
        provider.name, account, client.id, client.secret, tokens.access, tokens.refresh, tokens.ends_at,
        tokens.renew_at, time.time(), endpoint=oauth.endpoint_of(provider.name),
    )  # fmt: skip
    try:
        with place.locked():
            place.write(grant)
    except OSError as error:
        raise RefusedError(
            f"the login to {provider.title} cannot be kept in {place.path.parent}: {error.strerror}",
            next_step="Free some space, or make the folder writable; then link the account again.",
        ) from error
    forget_open()
    return place


def unlink(place: Place) -> bool:
    """Forgets a login here, and has the provider forget it. False where the provider could not be told, or has no way
    to be told: the user removes the app there."""
    told = False
    with contextlib.suppress(BackendError):  # ended, or out of reach: forgotten here all the same
        grant = place.read()
        access = grant.access
        if place.provider.revoke:
            access = open_login(place.provider.name, place.account).token()
            grant = place.read()
        told = oauth.revoke(place.provider, grant.client, access, grant.refresh)
    with place.locked():
        place.remove()
    forget_open()
    return told
