"""What a WebDAV server's refusal means, and what it means when there is no answer."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urljoin, urlsplit

from metasync.backends._shared.http import SILENT_S, retry_after_s
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError

_QUOTED_CHARS_MAX: Final = 200
_CHAIN_MAX: Final = 12  # causes of an exception

_AGAIN: Final = "Try again later."
_NETWORK: Final = "Check the URL and the network."
_ADDRESS: Final = (
    "Check the URL. Nextcloud: webdav://HOST/remote.php/dav/files/NAME/FOLDER; ownCloud: the same;"
    " Koofr: webdav://app.koofr.net/dav/Koofr/FOLDER."
)
_CERTIFICATE: Final = "Name a file with the certificate of whoever signed it: REQUESTS_CA_BUNDLE=/path/ca.pem."
_CLOCK: Final = "Check this machine's clock first, then the server's certificate."
_PROXY: Final = "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment."


def refusal(status: int, headers: Mapping[str, str], attempt: str, url: str, login_hint: str) -> BackendError:
    """The error of the contract for an answer that is no success. Not for 404: what is missing is to be found out.

    `attempt`: "cannot put a/b in webdav://...". The answer's body is never quoted: it may echo what was sent.
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
        return UnreachableError(f"{attempt}: the proxy asks for a login (407)", next_step=_PROXY)
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
        why = "it is in maintenance" if headers.get("X-Nextcloud-Maintenance-Mode") else "it asks for fewer requests"
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


def no_answer(error: BaseException, attempt: str) -> BackendError:
    """The error of the contract for what requests, urllib3, ssl or socket raised."""
    kinds = [type(item).__name__ for item in _chain(error)]
    for item in _chain(error):
        if isinstance(item, ssl.SSLCertVerificationError):
            return _certificate(item, attempt)
    if "ProxyError" in kinds:
        return UnreachableError(f"{attempt}: the proxy does not let it through", next_step=_PROXY)
    if any(isinstance(item, ssl.SSLError) for item in _chain(error)):
        text = "it does not speak TLS, or none that is safe"
        return UnreachableError(f"{attempt}: {text}", next_step="Without TLS the URL begins with webdav+http://.")
    for item in _chain(error):
        if isinstance(item, socket.gaierror) or type(item).__name__ == "NameResolutionError":
            return UnreachableError(f"{attempt}: its name cannot be resolved", next_step=_NETWORK)
    if any(isinstance(item, TimeoutError) or type(item).__name__.endswith("Timeout") for item in _chain(error)):
        return UnreachableError(f"{attempt}: no answer in time", next_step=_NETWORK)
    if any(isinstance(item, ConnectionRefusedError) for item in _chain(error)):
        return UnreachableError(f"{attempt}: connection refused", next_step=_NETWORK)
    return UnreachableError(f"{attempt}: the connection broke", next_step=_NETWORK)


def _certificate(error: ssl.SSLCertVerificationError, attempt: str) -> UnreachableError:
    why, step = {
        9: ("it is not valid yet", _CLOCK),
        10: ("it has expired", _CLOCK),
        18: ("it is signed by itself", _CERTIFICATE),
        19: ("it is signed by itself", _CERTIFICATE),
        62: ("it is for another name", "Check the host in the URL."),
        64: ("it is for another address", "Check the host in the URL."),
    }.get(error.verify_code, ("whoever signed it is not known here", _CERTIFICATE))
    return UnreachableError(f"{attempt}: its TLS certificate was not accepted: {why}", next_step=step)


def _redirected(headers: Mapping[str, str], attempt: str, url: str) -> BackendError:
    """Never followed: the login would go along. Told, as far as it is an address."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, headers.get("Location", "")))
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
    return retry_after_s(headers.get("Retry-After"), headers.get("Date"))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it holds, and what led to it: requests wraps what urllib3 wraps."""
    left, seen = [error], set[int]()
    while left and len(seen) < _CHAIN_MAX:
        item = left.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        inner = [*item.args[:2], getattr(item, "reason", None), item.__cause__, item.__context__]
        left += [other for other in inner if isinstance(other, BaseException)]
