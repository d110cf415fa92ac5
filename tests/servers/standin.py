"""What the stand-ins of the clouds share: a server on loopback for all hosts of a provider, its switches and its log.

A provider's stand-in answers requests from its state, in this process. The base takes requests apart, does what the
switches say before and after, and writes every exchange down. `METASYNC_<PROVIDER>_ENDPOINT` names its address; the
first part of a path is the host that was meant: `/api.dropboxapi.com/2/files/upload`; tokens are asked for without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from http_kit import Answer, Handler, listening

from metasync.backends._shared.logins import forget_open, kept
from metasync.backends._shared.logins.oauth import PROVIDERS
from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url


@dataclass(frozen=True)
class Request:
    """A request. `host` "" where none is named; `headers` by their names in small letters; `path` is below the host,
    unquoted; `target` is the same as it came."""

    method: str
    host: str
    path: str
    target: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True)
class Exchange:
    request: Request
    status: int
    answer_bytes: int


@dataclass
class Switches:
    """What goes wrong. Numbers count down with each request that they hit; `only` says which requests those are.

    only         a part of the paths that the numbers below are about; "" for all
    refused      the next requests are answered with this before anything happens: a status, and its Retry-After
    lost         so many answers get lost after the request took effect: the connection is closed
    dropped      so many requests are not heard at all: the connection is closed
    truncated    so many bodies are cut in the middle, and the connection closed
    torn         so many bodies are cut in the middle, and the head says so
    drip_s       the pause between the bytes of a body
    latency_s    the time that each request takes
    between      is called between a check and the write that follows it, outside of any lock
    stale        lists show what there was when this was set (`Standin.freeze`)
    hidden       names that lists leave out
    reordered    lists are in another order than they were
    doubled      lists show each name twice
    full         what is to be stored is refused for want of space
    ended        tokens that are not taken any more, because their time is over
    revoked      tokens that are not taken any more, because somebody took them back
    """

    only: str = ""
    refused: list[tuple[int, str | None]] = field(default_factory=list)
    lost: int = 0
    dropped: int = 0
    truncated: int = 0
    torn: int = 0
    drip_s: float = 0.0
    latency_s: float = 0.0
    between: Callable[[], None] | None = None
    stale: bool = False
    hidden: set[str] = field(default_factory=set)
    reordered: bool = False
    doubled: bool = False
    full: bool = False
    ended: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)


class Standin:
    """A provider. A subclass answers in `respond`, and says what a refusal looks like in `refusal`."""

    provider: ClassVar[str]  # the scheme of its URLs
    variable: ClassVar[str]  # of the environment: METASYNC_DROPBOX_ENDPOINT
    hosts: ClassVar[frozenset[str]]
    has_secret: ClassVar[bool] = False  # whether its apps have one
    life_s: ClassVar[int] = 3600  # of a token

    def __init__(self) -> None:
        self.switches = Switches()
        self.log: list[Exchange] = []
        self.wrong: list[str] = []  # what an oracle found wrong with an exchange; `running` raises it in the end
        self.port = 0
        self.is_away = False
        self.lock = threading.RLock()  # of the state
        self.renewals = 0

    @property
    def token(self) -> str:
        """The access token that was given out last."""
        raise NotImplementedError

    @property
    def refresh(self) -> str:
        """The refresh token that holds."""
        raise NotImplementedError

    def link(self, patch: pytest.MonkeyPatch, home: os.PathLike[str] | str, account: str = kept.DEFAULT) -> None:
        """Leaves what linking an account leaves: the environment names this stand-in, and `home` has a login to it.

        Processes that are started meanwhile have the account, too.
        """
        patch.setenv(self.variable, self.url)
        patch.setenv("XDG_CONFIG_HOME", str(home))
        patch.setenv("XDG_STATE_HOME", f"{home}-state")
        patch.setenv("METASYNC_KEYRING", "off")
        now = time.time()
        grant = kept.Grant(
            self.provider, account, "app", "secret" if self.has_secret else "", self.token, self.refresh,
            now + self.life_s, now + self.life_s - 900, now, endpoint=self.url,
        )  # fmt: skip
        place = kept.Place(PROVIDERS[self.provider], account)
        place.path.parent.mkdir(parents=True, exist_ok=True)
        place.write(grant)
        forget_open()

    def respond(self, request: Request) -> Answer:
        """Answers a request from the state, under no lock."""
        raise NotImplementedError

    def refusal(self, request: Request, status: int, retry_after: str | None) -> Answer:
        """What a 429 or a 5xx of this provider looks like."""
        return Answer(status, b"", {} if retry_after is None else {"Retry-After": retry_after})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take_log(self) -> list[Exchange]:
        """The exchanges since the last time, whose answers were sent or lost."""
        with self.lock:
            taken, self.log = self.log, []
            return taken

    def counted(self) -> Counter[str]:
        """The same as numbers by path."""
        return Counter(exchange.request.path for exchange in self.take_log())

    def handle(self, request: Request) -> Answer:
        """Does what the switches say, around `respond`."""
        switches = self.switches
        if self.is_away or self._hit(request, "dropped"):
            return Answer(hangs_up=True)
        if switches.latency_s:
            threading.Event().wait(switches.latency_s)
        with self.lock:
            hit = switches.refused and switches.only in request.path
            refused = switches.refused.pop(0) if hit else None
        answer = self.refusal(request, *refused) if refused is not None else self.respond(request)
        with self.lock:
            self.log.append(Exchange(request, answer.status, len(answer.body)))
        answer.drip_s = switches.drip_s if len(answer.body) > 1 and switches.only in request.path else 0.0
        if self._hit(request, "lost"):
            return Answer(hangs_up=True)
        if self._hit(request, "truncated"):
            answer.length, answer.body = len(answer.body), answer.body[: len(answer.body) // 2]
        if self._hit(request, "torn"):
            answer.body = answer.body[: len(answer.body) // 2]
        return answer

    def between(self) -> None:
        """For a subclass, between a check and the write that follows it, where the provider does not hold a lock."""
        if self.switches.between is not None:
            self.switches.between()

    def shown(self, names: list[str]) -> list[str]:
        """Names as a list shows them."""
        switches = self.switches
        out = [name for name in names if name not in switches.hidden]
        if switches.reordered:
            out = out[1::2] + out[::2][::-1]
        return [name for name in out for _ in range(2 if switches.doubled else 1)]

    def _hit(self, request: Request, name: str) -> bool:
        with self.lock:
            left: int = getattr(self.switches, name)
            hit = left > 0 and self.switches.only in request.path
            if hit:
                setattr(self.switches, name, left - 1)
            return hit


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """An answer as JSON; an underline in a header's name stands for a hyphen."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **named})


class _Handler(Handler):
    standin: Standin

    def respond(self, body: bytes) -> Answer:
        parts = urlsplit(self.path)
        _, host, *rest = parts.path.split("/", 2)
        if host not in self.standin.hosts:
            host, rest = "", [parts.path[1:]]
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = "/" + "/".join(rest)
        target = path + (f"?{parts.query}" if parts.query else "")
        return self.standin.handle(Request(self.command, host, unquote(path), target, query, headers, body))


S = TypeVar("S", bound=Standin)
B = TypeVar("B", bound=Backend)


@contextlib.contextmanager
def running(standin: S) -> Iterator[S]:
    """Serves until the end. Raises what an oracle found wrong meanwhile."""
    with listening(type("Standing", (_Handler,), {"standin": standin})) as standin.port:
        yield standin
    assert not standin.wrong, "\n".join(standin.wrong[:10])


@contextlib.contextmanager
def linked(standin: S, patch: pytest.MonkeyPatch, home: os.PathLike[str] | str) -> Iterator[S]:
    """The same, with an account that is linked (`Standin.link`)."""
    with running(standin):
        standin.link(patch, home)
        yield standin
        forget_open()


@contextlib.contextmanager
def opening(scheme: str, kind: type[B]) -> Iterator[Callable[..., B]]:
    """A function that opens a folder of the linked account, /top/ws unless another is named; all are closed."""
    made: list[B] = []

    def open_one(path: str = "/top/ws", *, create_root: bool = True) -> B:
        backend = open_backend(parse_url(f"{scheme}:{path}"), create_root=create_root)
        assert isinstance(backend, kind)
        made.append(backend)
        return backend

    yield open_one
    for backend in made:
        backend.close()
