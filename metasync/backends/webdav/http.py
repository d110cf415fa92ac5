"""Requests to one WebDAV server, over `wire`: its login and its session; and what refusals mean."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from metasync.backends._shared.http import PROXY_STEP, SILENT_S, authorities, retry_after_s
from metasync.backends.webdav.login import Showing
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Reply

_QUOTED_CHARS_MAX: Final = 200

_AGAIN: Final = "Try again later."
_ADDRESS: Final = (
    "Check the URL. Nextcloud: webdav://HOST/remote.php/dav/files/NAME/FOLDER; ownCloud: the same;"
    " Koofr: webdav://app.koofr.net/dav/Koofr/FOLDER."
)
STEPS: Final = {
    "clock": "Check this machine's clock first, then the server's certificate.",
    "signer": "Name a file with the certificate of whoever signed it: REQUESTS_CA_BUNDLE=/path/ca.pem.",
    "name": "Check the host in the URL.",
    "tls": "Without TLS the URL begins with webdav+http://.",
    "network": "Check the URL and the network.",
}
"""What to do where there was no answer, for `no_answer`."""


def refusal(status: int, headers: Mapping[str, str], attempt: str, url: str, login_hint: str) -> BackendError:
    """The error of the contract for a failure other than 404. It never quotes a body, which may echo what was sent.

    `attempt`: "cannot put a/b in webdav://...".
    """
    said = f"{attempt}: the server answered {status}"
    if status == 401:
        return RefusedError(f"{attempt}: the server refused the login (401)", next_step=login_hint)
    if status == 403:
        return RefusedError(
            f"{said}: the login has no right to do this",
            next_step="Give it the right to write there (a shared folder may be read-only), or name another folder.",
        )
    if status < 300:  # 207 to a MOVE or DELETE: done in part
        return BackendError(f"{said}, which confirms nothing", next_step=_AGAIN)
    if status < 400:
        return _redirected(headers, attempt, url)
    if status == 407:
        return UnreachableError(f"{attempt}: the proxy asks for a login (407)", next_step=PROXY_STEP)
    if status in {405, 501}:
        return RefusedError(f"{said}: what is at this address is no WebDAV folder", next_step=_ADDRESS)
    if status in {413, 414}:
        return RefusedError(
            f"{said}: it takes no request of this size",
            next_step="Its administrator can raise the limit (nginx: client_max_body_size, Apache: LimitRequestBody,"
            " PHP: post_max_size); MetaSync sends up to 64 MiB in one request.",
        )
    if status == 423:
        return BackendError(f"{said}: somebody has it locked", next_step=_AGAIN, retry_after_s=_retry_after_s(headers))
    if status == 507:
        return no_room(attempt)
    if status in {429, 503}:
        why = "it is in maintenance" if headers.get("x-nextcloud-maintenance-mode") else "it asks for fewer requests"
        after_s = _retry_after_s(headers)
        return BackendError(f"{said}; {why}", next_step=_AGAIN, retry_after_s=SILENT_S if after_s is None else after_s)
    if status in {408, 409, 412, 425, 499} or status >= 500:
        return BackendError(said, next_step=_AGAIN, retry_after_s=_retry_after_s(headers))
    return BackendError(said, next_step=_ADDRESS, retryable=False)


def not_the_server(attempt: str) -> UnreachableError:
    """For a success that is none: a network's login page comes with status 200, over plain http at least."""
    return UnreachableError(
        f"{attempt}: what answered is not the WebDAV server", next_step=f"Log in to the network, if it asks. {_ADDRESS}"
    )


def no_room(attempt: str) -> FullError:
    return FullError(f"{attempt}: no space or quota is left", next_step="Free some space, or add a backend.")


def no_folder(attempt: str) -> RefusedError:
    """For an address at which there is something, but no folder."""
    return RefusedError(f"{attempt}: what is at this address is no folder, says the server", next_step=_ADDRESS)


def _redirected(headers: Mapping[str, str], attempt: str, url: str) -> BackendError:
    """Never followed: the login would go along. Told, as far as it is an address."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, headers.get("location", "")))
        host, same = there.hostname or "", (there.hostname or "") == here.hostname
        port = f":{there.port}" if there.port else ""
    except ValueError:
        host, same, port = "", False, ""
    shown = "".join(c if c.isprintable() else "?" for c in f"{host}{port}{there.path if same else ''}")
    shown = shown[:_QUOTED_CHARS_MAX]
    if same and shown:
        return RefusedError(
            f"{attempt}: the address is now {there.scheme}://{shown}, says the server",
            next_step="Give that address if it is the folder's: `metasync backend link NAME webdav://...`."
            " If it is a page to log in at, the URL is not that of a WebDAV folder.",
        )
    return UnreachableError(
        f"{attempt}: it was sent on to another host{f', {shown}' if shown else ''}, which is not followed",
        next_step=f"Log in to the network, if it asks. {_ADDRESS}",
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    return retry_after_s(headers.get("retry-after"), headers.get("date"))


_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_COOKIES_MAX: Final = 32  # Nextcloud sets six
_ALWAYS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}


class Connection:
    """Connections to one server, for one login. For several threads."""

    def __init__(self, server: str, showing: Showing) -> None:
        """`server`: scheme, host and port, as in https://host:8443."""
        from metasync.backends._shared.wire import Wire

        self._showing = showing
        self._wire = Wire(server, steps=STEPS, authorities=authorities(os.environ, _CA_VARIABLES))
        self._cookies: Mapping[str, str] = {}

    @contextlib.contextmanager
    def ask(
        self, attempt: str, method: str, target: str, headers: Mapping[str, str], data: bytes | None,
        *, within_s: int,
    ) -> Iterator[Reply]:  # fmt: skip
        """Makes one request for `target`, an encoded path; a second one only to show the login.

        `UnreachableError` if there is no answer; `BrokenOffError` if there is not all of it.
        """
        shown = self._showing.header(method, target)
        for last in (False, True):
            sent = {**_ALWAYS, **headers}
            if self._cookies:
                sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
            if shown is not None:
                sent["Authorization"] = shown
            with self._wire.exchange(method, target, sent, data or b"", attempt, within_s=within_s) as reply:
                self._keep_session(reply)
                asked = not last and reply.status == 401 and self._showing.asked(reply.each("www-authenticate"), shown)
                if not asked:
                    yield reply
                    return
            shown = self._showing.header(method, target)

    def close(self) -> None:
        self._wire.close()

    def _keep_session(self, reply: Reply) -> None:
        """Keeps the cookies that an answer sets: Nextcloud begins a session for each request that brings none."""
        values = reply.each("set-cookie")
        if not values:
            return
        from http.cookies import CookieError, SimpleCookie  # 3 ms, and most servers have no sessions

        cookies = dict(self._cookies)
        for value in values:
            found: SimpleCookie = SimpleCookie()
            with contextlib.suppress(CookieError):
                found.load(value)
            for name, cookie in found.items():
                if cookie["max-age"].startswith(("0", "-")):
                    cookies.pop(name, None)
                elif name in cookies or len(cookies) < _COOKIES_MAX:
                    cookies[name] = cookie.coded_value
        self._cookies = cookies  # whole: other threads read it meanwhile
