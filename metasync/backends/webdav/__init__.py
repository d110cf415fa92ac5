"""A folder on a WebDAV server: `webdav://anna@host/dav/folder` over TLS, `webdav+http://...` over a plain line.

No call of WebDAV creates a name for one of several racers alone on all servers (providers.md, sections 1.4 and 4). So
this store votes in block form: devices write names of their own, and need only that writes appear whole and to all.

**Whole writes.** Most servers write a PUT in place, and a reader beside it gets a part. So an object is put to a
temporary name and moved, which is two requests. Servers that say they write whole (`webdav.folder`) need only the PUT.

**Replacing.** On many servers MOVE onto a taken name first removes what is there. So `put` moves onto a free name if it
can, leaves an object alone that has the same bytes, and replaces the rest: names that MetaSync overwrites are
conveniences. A server also looks at a file before it opens it, so a reader may get the size of the old one and the
beginning of the new (Apache: 1 of 160 reads beside 64 KiB that change all the time). So a reader that saw the object
before, and is told that it changed just now, is gone or fails, looks again for a moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar
from urllib.parse import quote

from metasync.backends._shared.credentials import caution, is_loopback
from metasync.backends._shared.race_probe import create_by
from metasync.backends._shared.urls import byte_range, part_of
from metasync.backends.api import BackendUrl, Inventory, Listed, LogForm, Space
from metasync.backends.names import (
    TEMP_PREFIX,
    check_part,
    is_name,
    native_identity,
    split_folder,
    split_path,
)
from metasync.backends.webdav.folder import KIND_AND_SIZE, QUOTA, RemoteFolder
from metasync.backends.webdav.http import Connection, not_the_server
from metasync.backends.webdav.login import Showing, find_login, where_to_put_it
from metasync.errors import BackendError, NotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Reply

T = TypeVar("T")

_LOOKS_AGAIN_S: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # a server removes and renames in a few milliseconds
_CHANGING_S: Final = 3.0  # what was changed so short a time ago may be changing now; servers' times are whole seconds
_SEEN_MAX: Final = 1 << 12
_SWEEP_DEPTH_MAX: Final = 16
_LISTED_AT_ONCE: Final = 8  # folders; browsers have six connections to a server

_HOST = re.compile(r"(?:([^\0-\x20]{1,200})@)?([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,60}\])(?::([0-9]{1,5}))?")
_PORTS = {"https": 443, "http": 80}
_PATH_SAFE = "/~!$&'()*+,;=:@-._"
_TEMP = re.compile(rf"{re.escape(TEMP_PREFIX)}[0-9a-f]{{1,64}}")


class _MayPassError(Exception):
    """What a reader meets while an object is being replaced, and otherwise as well."""


class WebDavBackend:
    """A folder on a server. It makes no request before the first call, and keeps its connections until `close`."""

    scheme: ClassVar[str] = "webdav"
    form: ClassVar[LogForm] = "block"
    form_reason: ClassVar[str] = (
        "on WebDAV servers two of several who create one name at once can both be told that they were first"
    )
    url_params: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, url: BackendUrl) -> None:
        user, host, port = _host_of(url)
        line = "http" if url.scheme == "webdav+http" else "https"
        self.caution = caution(line, host, "webdav+http has no TLS: whoever sees the line can read its password")
        named = host if port in (None, _PORTS[line]) else f"{host}:{port}"
        login = find_login(named, user, os.environ)
        path = url.path.rstrip("/")
        self._where = f"{url.scheme}://{named}{path}"
        # A folder shared between accounts has another path for each, and one path may be another folder for each.
        self._identity = native_identity(f"{named}\0{login.user if login else ''}", path)
        hint = where_to_put_it(named)
        self._folder = RemoteFolder(
            f"{line}://{named}",
            quote(path, safe=_PATH_SAFE, errors="surrogateescape"),
            Connection(f"{line}://{named}", Showing(login, unasked=line == "https" or is_loopback(host))),
            hint if login is None else f"Check the name {login.user!r} and its password. {hint}",
        )
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # objects that were read, not those that were written: those are ours

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        _host_of(url)
        if not url.path.startswith("/") or {".", ".."} & set(url.path.split("/")) or "//" in url.path:
            raise UsageError(
                f"not the path of a folder on a server: {url.path[:80]!r}",
                next_step="Write webdav://host/path/of/folder, as the provider's help gives it.",
            )
        if set("?;") & set(url.path):
            # wsgidav, for one, cuts the target of a MOVE there: what was put into the folder would lie beside it.
            raise UsageError(
                f"a folder with ? or ; in its name, which WebDAV servers take apart: {url.path[:80]!r}",
                next_step="Name another folder, or rename this one.",
            )

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> WebDavBackend:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        backend = cls(url)
        if create_root:
            backend._folder.make_root(backend._attempt("make", "."))
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        parts = split_path(path)
        attempt = self._attempt("create", path)
        if self._folder.is_whole(attempt):
            target, free = self._folder.url(parts), {"If-None-Match": "*"}
            created = create_by(
                lambda: self._folder.upload(attempt, parts, target, data, free) != 412, self, path, data
            )
        else:
            with self._folder.temporary(attempt, parts, data) as temp:
                created = self._folder.move(attempt, temp, self._folder.url(parts), overwrite=False)
                if not created:
                    self._folder.discard(temp)
        return created

    def put(self, path: str, data: bytes) -> None:
        parts = split_path(path)
        attempt = self._attempt("put", path)
        if self._folder.is_whole(attempt):
            self._folder.upload(attempt, parts, self._folder.url(parts), data)
        else:
            with self._folder.temporary(attempt, parts, data) as temp:
                free = self._folder.move(attempt, temp, self._folder.url(parts), overwrite=False)
                if not free and not self._holds(path, data):
                    self._folder.move(attempt, temp, self._folder.url(parts), overwrite=True)
                elif not free:
                    self._folder.discard(temp)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        parts = split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        return self._seen_again(path, lambda again: self._get(parts, path, offset, length, max_bytes, again))

    def stat(self, path: str) -> int:
        parts = split_path(path)
        return self._seen_again(path, lambda again: self._size(parts, path, again))

    def list(self, path: str) -> tuple[Listed, ...]:
        parts = split_folder(path)
        entries = (
            Listed(name, None if found.is_folder else found.size)
            for name, found in self._folder.entries(self._attempt("list", path or "."), parts)
            if is_name(name) and (found.is_folder or found.size is not None)
        )
        return tuple(sorted(set(entries)))

    def delete(self, path: str) -> None:
        parts = split_path(path)
        self._forget(path)
        with contextlib.suppress(NotFoundError):
            self._folder.remove(self._attempt("delete", path), self._folder.url(parts))

    def identity(self) -> bytes:
        return self._identity

    def close(self) -> None:
        self._folder.close()

    # Optional powers.

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A request for each folder, some of them at a time. One for all of it (Depth: infinity) servers refuse."""
        from metasync.backends import walk
        from metasync.runtime.threads import Alone

        def listings(folders: Sequence[str]) -> dict[str, tuple[Listed, ...]]:
            out: dict[str, tuple[Listed, ...]] = {}
            for some in (folders[n : n + _LISTED_AT_ONCE] for n in range(0, len(folders), _LISTED_AT_ONCE)):
                calls = {folder: Alone("list", partial(self.list, folder)) for folder in some[1:]}
                for call in calls.values():
                    call.start()
                out[some[0]] = self.list(some[0])
                out.update((folder, call.outcome.result()) for folder, call in calls.items())
            return out

        return walk.inventory(path, cursor, listings)

    def space(self) -> Space:
        attempt = self._attempt("measure", ".")
        found = next(iter(self._folder.properties(attempt, (), "0", QUOTA)), None)
        if found is None or found.free_bytes is None:
            return Space(None, None)
        return Space(found.free_bytes, None if found.used_bytes is None else found.free_bytes + found.used_bytes)

    def sweep(self, path: str) -> None:
        self._sweep(split_path(path), self._attempt("sweep", path))

    def _get(
        self, parts: tuple[str, ...], path: str, offset: int, length: int | None, max_bytes: int, again: bool
    ) -> bytes:
        from metasync.backends._shared.wire import BrokenOffError

        attempt = self._attempt("get", path)
        headers = {}
        if offset or length is not None:
            headers["Range"] = byte_range(offset, length)
        most = max_bytes if length is None else min(length, max_bytes)
        try:
            with self._folder.ask(attempt, "GET", self._folder.url(parts), headers, None, most) as answer:
                if answer.status == 416 and headers:  # begins at or behind the end
                    return b""
                self._check_object(answer, attempt, path, again)
                data = part_of(answer, offset, length, max_bytes, attempt)
        except BrokenOffError:
            if again:
                raise _MayPassError from None
            raise
        if path in self._seen and _is_changing(answer):
            with self._folder.ask(attempt, "HEAD", self._folder.url(parts)) as now:
                if now.status != 200 or _version(now) != _version(answer):
                    if again:
                        raise _MayPassError
                    raise BackendError(f"{attempt}: it changes all the time", next_step="Try again later.")
        return data

    def _size(self, parts: tuple[str, ...], path: str, again: bool) -> int:
        attempt = self._attempt("stat", path)
        with self._folder.ask(attempt, "HEAD", self._folder.url(parts)) as answer:
            self._check_object(answer, attempt, path, again)
            if answer.size is not None:
                return answer.size
        # Apache keeps a length of 0 to itself.
        for found in self._folder.properties(attempt, parts, "0", KIND_AND_SIZE, end=""):
            if found.size is not None and not found.is_folder:
                return found.size
        raise BackendError(f"{attempt}: the server does not say how large it is", retryable=False)

    def _check_object(self, answer: Reply, attempt: str, path: str, again: bool) -> None:
        """`NotFoundError`, or another, unless this is the answer to a request for an object."""
        if answer.status in {403, 404, 500} and again:
            raise _MayPassError
        if answer.status == 404:
            raise self._folder.absent(attempt)
        if answer.status not in {200, 206}:
            raise self._folder.refusal(answer, attempt)
        if answer.is_page and not path.endswith(("html", "htm")):
            if not self._folder.properties(attempt, (), "0", KIND_AND_SIZE):
                raise not_the_server(attempt)
            raise RefusedError(f"{attempt}: it is no file")
        self._folder.saw()

    def _sweep(self, folder: tuple[str, ...], attempt: str) -> bool:
        """-> whether the folder is gone, or was not there."""
        empty = True
        for name, found in self._folder.entries(attempt, folder):
            if found.is_folder and is_name(name) and len(folder) < _SWEEP_DEPTH_MAX:
                empty = self._sweep((*folder, name), attempt) and empty
            elif not found.is_folder and _TEMP.fullmatch(name):
                self._folder.discard(self._folder.url((*folder, name)))
            else:
                empty = False
        if empty:
            with self._folder.ask(
                attempt, "DELETE", self._folder.url(folder) + "/", {"X-NC-Skip-Trashbin": "true"}
            ) as answer:
                return answer.status in {200, 204, 404}
        return False

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether an object has these very bytes."""
        try:
            return self.get(path, max_bytes=len(data)) == data
        except (NotFoundError, RefusedError):  # larger, or gone again
            return False

    # What this object remembers.

    def _seen_again(self, path: str, look: Callable[[bool], T]) -> T:
        """Looks for an object; several times if it was seen before, because it may be being replaced.

        `look` is told whether a failure may pass.
        """
        for pause_s in _LOOKS_AGAIN_S if path in self._seen else ():
            try:
                return look(True)
            except _MayPassError:
                time.sleep(pause_s)
        try:
            value = look(False)
        except NotFoundError:
            self._forget(path)
            raise
        with self._lock:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(path)
        return value

    def _forget(self, path: str) -> None:
        with self._lock:
            self._seen.discard(path)

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"


class PlainWebDavBackend(WebDavBackend):
    """The same without TLS."""

    scheme: ClassVar[str] = "webdav+http"


def _host_of(url: BackendUrl) -> tuple[str | None, str, int | None]:
    """User, host and port of a URL. `UsageError` if it has no such host."""
    match = _HOST.fullmatch(url.host)
    port = int(match[3]) if match and match[3] else None
    if match is None or port == 0 or (port or 0) > 65535:
        raise UsageError(
            "a WebDAV URL begins with the name of a server",
            next_step="Write webdav://host/path or webdav://user@host:port/path; umlauts in a host as xn--.",
        )
    return match[1], match[2].lower(), port


def _version(answer: Reply) -> tuple[str | int | None, ...]:
    """What an answer says of the object as a whole. wsgidav takes its parts from several looks at the file."""
    etag = answer.headers.get("etag", "").removeprefix("W/").strip('"')  # weak or strong: some differ by the method
    return etag, answer.headers.get("last-modified"), answer.part[2] if answer.part else answer.size or 0


def _is_changing(answer: Reply) -> bool:
    """Whether an object was changed a moment ago, by the server's own clock; also if it does not say."""
    try:
        changed, now = (parsedate_to_datetime(answer.headers[name]) for name in ("last-modified", "date"))
        return (now - changed).total_seconds() <= _CHANGING_S
    except (KeyError, ValueError, TypeError):
        return True
