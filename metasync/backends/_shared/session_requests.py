"""A `requests.Session` for providers' SDKs, whose requests go over `Wire`: bounded, and to known servers alone.

An SDK builds its requests and reads its answers as ever. Below it nothing of requests' own transport is left: no
redirect is followed, no cookie kept, no netrc read, nothing repeated, and an answer has a bound in bytes and in time.
What is no answer of the provider is an error of the contract, which goes through an SDK as it is, since an SDK catches
exceptions of requests alone. Proxies are `Wire`'s.

A call of ours may become several requests of an SDK. What holds for them stands in a `Bounds`, for this thread:

    with session.bounds("cannot get a in dropbox:/b", body_bytes_max=100) as bounds:
        sdk.files_download(...)
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from metasync.backends._shared.http import MOST_S, SILENT_S, retry_after_s
from metasync.backends._shared.wire import REFUSAL_BYTES_MAX, Wire
from metasync.errors import BackendError, RefusedError, UnreachableError

T = TypeVar("T")

JSON_BYTES_MAX: Final = 4 << 20  # of an answer that is no object: a page of 2,000 names has 1 MiB
_HOSTS_MAX: Final = 64  # servers that one session keeps lines to: downloads of OneDrive come from a few
_AGAIN: Final = "Try again later."
_STEPS: Final = "Check the network; what answered was something else, such as a login page."


@dataclass
class Bounds:
    """What holds for the requests of one call, and what their last answer said.

    attempt         begins the message of an error: "cannot get a in dropbox:/b"
    body_bytes_max  of an answer's body; a longer one is a `RefusedError`
    within_s        how long an answer may take, and the server be silent; None: as long as `Wire` waits
    """

    attempt: str
    body_bytes_max: int = JSON_BYTES_MAX
    within_s: int | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)  # by their names in small letters

    @property
    def retry_after_s(self) -> float | None:
        """For how long the server asks to be left alone; None if it did not say."""
        return retry_after_s(self.headers.get("retry-after"), self.headers.get("date"))


class Refusals(NamedTuple):
    """The errors of the contract for what providers refuse alike. `attempt` begins each message; no answer is quoted.

    rights  the next step where it refuses without a reason
    """

    provider: str
    rights: str

    def busy(self, attempt: str, bounds: Bounds, silent_s: float = SILENT_S) -> BackendError:
        """It asks for fewer requests. `silent_s`: how long it is left alone where it does not say."""
        said_s = bounds.retry_after_s
        return BackendError(
            f"{attempt}: {self.provider} asks for fewer requests",
            retry_after_s=min(silent_s if said_s is None else said_s, MOST_S),
            next_step=_AGAIN,
        )

    def of_status(self, attempt: str, bounds: Bounds) -> BackendError:
        """What an answer without a reason means."""
        status = bounds.status
        if status in {429, 503}:
            return self.busy(attempt, bounds)
        if status >= 500 and status != 511:
            return BackendError(f"{attempt}: {self.provider} has an error of its own ({status})", next_step=_AGAIN)
        if status in {407, 511} or status < 400:
            return UnreachableError(f"{attempt}: what answered is not {self.provider}", next_step=_STEPS)
        return RefusedError(f"{attempt}: {self.provider} refuses the request ({status})", next_step=self.rights)

    def other(self, attempt: str, bounds: Bounds) -> BackendError:
        """What an answer means that the library cannot read: something else answered, unless it is an error of 5xx."""
        if bounds.status >= 500:
            return self.of_status(attempt, bounds)
        return UnreachableError(f"{attempt}: what answered is not {self.provider}", next_step=_STEPS)


class Login(Protocol):
    """What is asked of a login (`_shared.logins.Login`)."""

    @property
    def step(self) -> str: ...

    def token(self) -> str: ...

    def renewed(self, refused: str) -> str: ...


class RenewableError(Exception):
    """The token is not taken any more; another one may be."""


def with_token(login: Login, provider: str, attempt: str, call: Callable[[str], T]) -> T:
    """What `call` makes of a token; where it raises `RenewableError`, once more with a new one, and then no more."""
    token = login.token()
    try:
        return call(token)
    except RenewableError:
        token = login.renewed(token)
    try:
        return call(token)
    except RenewableError:
        why = f"{attempt}: {provider} takes neither the login's token nor a new one"
        raise RefusedError(why, next_step=login.step) from None


_BOUNDS: ContextVar[Bounds | None] = ContextVar("bounds", default=None)


class BoundedSession(requests.Session):
    """Requests to some servers. Used by several threads; `close` it."""

    def __init__(
        self, hosts: Collection[str] | None, *, provider: str, stand_in: str = "", steps: Mapping[str, str]
    ) -> None:
        """`hosts`: those that may be asked, by https; None: any. `steps`: what to do where no answer comes (`Wire`).

        `stand_in`: the address of a server that answers for all of them (`oauth.endpoint_of`): their names are the
        first part of the paths there. No URL names one: a URL in an invitation must not send a login elsewhere.
        """
        super().__init__()
        self.trust_env = False
        self.adapters.clear()
        self._adapter = _Adapter(hosts, provider, stand_in, steps)
        self.mount("https://", self._adapter)
        self.mount("http://", self._adapter)
        self.headers.clear()
        self.headers["Accept-Encoding"] = "identity"  # a bound on packed bytes is none on what they unpack to

    @contextlib.contextmanager
    def bounds(
        self, attempt: str, *, body_bytes_max: int = JSON_BYTES_MAX, within_s: int | None = None
    ) -> Iterator[Bounds]:
        """Sets what holds for the requests of this thread meanwhile."""
        bounds = Bounds(attempt, body_bytes_max, within_s)
        token = _BOUNDS.set(bounds)
        try:
            yield bounds
        finally:
            _BOUNDS.reset(token)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """A redirect is an answer: whoever asked decides, and no login goes along."""


class _Adapter(BaseAdapter):
    def __init__(self, hosts: Collection[str] | None, provider: str, stand_in: str, steps: Mapping[str, str]) -> None:
        super().__init__()
        self._hosts = hosts
        self._provider = provider
        self._stand_in = urlsplit(stand_in) if stand_in else None
        self._steps = steps
        self._wires: dict[str, Wire] = {}
        self._lock = threading.Lock()

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """One request, and its whole answer."""
        bounds = _BOUNDS.get() or Bounds(f"cannot ask {self._provider}")
        parts = urlsplit(request.url or "")
        wire, above = self._wire(parts, bounds.attempt)
        target = f"{above}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")
        headers = {name: _text(value) for name, value in request.headers.items() if name.lower() not in _OURS}
        with wire.exchange(
            request.method or "GET", target, headers, _body(request), bounds.attempt, within_s=bounds.within_s
        ) as reply:
            most = bounds.body_bytes_max if reply.status < 300 else REFUSAL_BYTES_MAX
            bounds.status, bounds.headers = reply.status, reply.headers
            if reply.status < 300 and (
                reply.is_page or reply.headers.get("content-encoding", "identity") != "identity"
            ):
                raise UnreachableError(
                    f"{bounds.attempt}: what answered is not {self._provider}", next_step=_STEPS, retryable=True
                )
            too_long = reply.status < 300 and reply.size is not None and reply.size > most
            body = b"" if too_long or request.method == "HEAD" else reply.read(most + 1)
            if too_long or (reply.status < 300 and len(body) > most):
                raise RefusedError(
                    f"{bounds.attempt}: {self._provider} answers with more than the {most} bytes that were expected"
                )
        return _response(request, reply.status, reply.headers, body)

    def close(self) -> None:
        with self._lock:
            for wire in self._wires.values():
                wire.close()

    def _wire(self, parts: SplitResult, attempt: str) -> tuple[Wire, str]:
        """The line to a server, and what stands before the path there."""
        host, base = parts.hostname or "", f"{parts.scheme}://{parts.netloc}"
        stand_in = self._stand_in
        local = stand_in is not None and parts.netloc == stand_in.netloc  # an address that a stand-in gave out
        sound = parts.scheme == "https" and parts.port in (None, 443) and "@" not in parts.netloc
        if not local and not (sound and (self._hosts is None or host in self._hosts)):
            raise RefusedError(
                f"{attempt}: {self._provider} names a server that is none of its own, or that has no TLS: {base[:100]}",
            )
        above = ""
        if stand_in is not None:
            base = f"{stand_in.scheme}://{stand_in.netloc}"
            above = "" if local else f"{stand_in.path.rstrip('/')}/{host}"
        with self._lock:
            wire = self._wires.get(base)
            if wire is None:
                if len(self._wires) >= _HOSTS_MAX:
                    raise RefusedError(f"{attempt}: {self._provider} sends us to too many servers")
                wire = self._wires[base] = Wire(base, steps=self._steps)
        return wire, above


_OURS: Final = frozenset({"connection", "content-length", "host", "user-agent"})  # `Wire` says these itself


def _body(request: requests.PreparedRequest) -> bytes:
    body: Any = request.body
    if hasattr(body, "read"):  # what an SDK would send piece by piece
        body = body.read()
    return body.encode("utf-8") if isinstance(body, str) else cast(bytes, body or b"")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _response(
    request: requests.PreparedRequest, status: int, headers: Mapping[str, str], body: bytes
) -> requests.Response:
    """The answer as an SDK reads it, already in memory."""
    response = requests.Response()
    response.status_code = status
    response.headers = CaseInsensitiveDict(headers)
    response.url = request.url or ""
    response.request = request
    response.raw = io.BytesIO(body)
    response.encoding = "utf-8"
    vars(response).update(_content=body, _content_consumed=True)
    return response
