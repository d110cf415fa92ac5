"""A folder on a WebDAV server: `webdav://anna@host/dav/folder` over TLS, `webdav+http://...` over a plain line.

Nothing that WebDAV can do creates a name for one of several racers alone, on all servers (PROVIDERS 1.4, 4). So a store
of this kind votes in block form: every device writes names of its own, and needs no more than that nobody sees a part
and that everybody sees what was written.

**Whole or not at all.** Most servers write a PUT in place, and a reader beside it gets a part. So an object is put to a
temporary name first and moved, which is two requests. Servers known to do that by themselves (`_WHOLE`) are asked once
and spared the second one.

**Replacing.** MOVE onto a taken name removes what is there first, on many servers: for a moment, or for good when the
server dies in between, there is nothing. So `put` moves onto a free name if it can, leaves an object alone that has
these very bytes, and replaces only what differs: names that MetaSync overwrites are conveniences. And a server looks at
a file before it opens it: a reader may be given the size of the old one and the beginning of the new (Apache: 1 of 160
reads beside 64 KiB that change all the time). So who reads an object again and sees that it changed a moment ago looks
whether it has changed since, and who is told that it is gone or out of order asks again for a moment.

**Missing.** 404 may mean that the object is not there, or that the whole folder is not. Unless something in the folder
was seen a moment ago it is looked for before anybody is told that an object is absent.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import ClassVar, Final, TypeVar
from urllib.parse import quote

from metasync.backends._base import BackendUrl, Listed, LogForm, Space
from metasync.backends._names import (
    TEMP_PREFIX,
    check_part,
    count_bytes,
    is_name,
    native_identity,
    split_folder,
    split_path,
)
from metasync.backends._webdav_answers import no_answer, not_the_server, refusal
from metasync.backends._webdav_http import SMALL_BYTES_MAX, Answer, Connection, NoAnswerError, cause
from metasync.backends._webdav_login import Showing, find_login, where_to_put_it
from metasync.backends._webdav_xml import Found, NotXmlError, below, read_multistatus
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError, UsageError

T = TypeVar("T")

ROOT_SEEN_S: Final = 2.0  # so long is a folder taken to be there in which something was seen
_LOOKS_AGAIN_S: Final = (0.0, 0.01, 0.05, 0.2)  # a server removes and renames in a few milliseconds
_CHANGING_S: Final = 3.0  # what was changed so short a time ago may be changing now; servers' times are whole seconds
_SEEN_MAX: Final = 1 << 12
_KNOWN_FOLDERS_MAX: Final = 1 << 14
_LIST_BYTES_MAX: Final = 1 << 28  # a million names with what servers tell of each
_SWEEP_DEPTH_MAX: Final = 16

_HOST = re.compile(r"(?:([^@\0-\x20]{1,200})@)?([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,60}\])(?::([0-9]{1,5}))?")
_PORTS = {"https": 443, "http": 80}
_PATH_SAFE = "/~!$&'()*+,;=:@-._"
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")

_XML = {"Content-Type": "application/xml; charset=utf-8"}
_LIST = b'<?xml version="1.0" encoding="utf-8"?><propfind xmlns="DAV:"><prop><resourcetype/><getcontentlength/></prop></propfind>'  # fmt: skip # noqa: E501
_QUOTA = b'<?xml version="1.0" encoding="utf-8"?><propfind xmlns="DAV:"><prop><quota-available-bytes/><quota-used-bytes/></prop></propfind>'  # fmt: skip # noqa: E501

_WHOLE: Final = (
    "<http://apache.org/dav/propset/fs/1>",  # mod_dav_fs: writes beside it and renames
    "nextcloud-checksum-update",  # Nextcloud: the same, and holds a lock (apps/dav/lib/Connector/Sabre/File.php)
)
"""What servers say of themselves (OPTIONS, header DAV) that let no reader of a PUT see a part."""


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
        self.caution = _caution(line, host)
        named = host if port in (None, _PORTS[line]) else f"{host}:{port}"
        login = find_login(named, user, os.environ)
        path = url.path.rstrip("/")
        self._root = quote(path, safe=_PATH_SAFE, errors="surrogateescape")
        self._server = f"{line}://{named}"
        self._where = f"{url.scheme}://{named}{path}"
        self._login_hint = where_to_put_it(named)
        if login is not None:
            self._login_hint = f"Check the name {login.user!r} and its password. {self._login_hint}"
        # A folder shared between accounts has another path for each, and one path may be another folder for each.
        self._identity = native_identity(f"{named}\0{login.user if login else ''}", path)
        self._http = Connection(self._server, Showing(login, unasked=line == "https" or _is_loopback(host)))
        self._lock = threading.Lock()
        self._known: set[tuple[str, ...]] = set()
        self._seen: set[str] = set()
        self._root_seen_at = float("-inf")
        self._writes_whole: bool | None = None

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

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> WebDavBackend:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        backend = cls(url)
        if create_root:
            backend._make_root()
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        parts = split_path(path)
        attempt = self._attempt("create", path)
        if self._is_whole(attempt):
            try:
                status = self._upload(attempt, parts, self._url(parts), data, {"If-None-Match": "*"})
            except UnreachableError:
                # A server may refuse before it has read all, and close: then there is no answer (as in `s3`).
                if len(data) > SMALL_BYTES_MAX and self._is_there(path):
                    return False
                raise
            created = status != 412
        else:
            with self._temporary(attempt, parts, data) as temp:
                created = self._move(attempt, temp, self._url(parts), overwrite=False)
                if not created:
                    self._discard(temp)
        return created

    def put(self, path: str, data: bytes) -> None:
        parts = split_path(path)
        attempt = self._attempt("put", path)
        if self._is_whole(attempt):
            self._upload(attempt, parts, self._url(parts), data)
        else:
            with self._temporary(attempt, parts, data) as temp:
                free = self._move(attempt, temp, self._url(parts), overwrite=False)
                if not free and not self._holds(path, data):
                    self._move(attempt, temp, self._url(parts), overwrite=True)
                elif not free:
                    self._discard(temp)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        parts = split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        return self._seen_again(path, lambda: self._get(parts, path, offset, length, max_bytes))

    def stat(self, path: str) -> int:
        parts = split_path(path)
        return self._seen_again(path, lambda: self._size(parts, path))

    def list(self, path: str) -> tuple[Listed, ...]:
        parts = split_folder(path)
        entries = (
            Listed(name, None if found.is_folder else found.size)
            for name, found in self._entries(self._attempt("list", path or "."), parts)
            if is_name(name) and (found.is_folder or found.size is not None)
        )
        return tuple(sorted(set(entries)))

    def delete(self, path: str) -> None:
        parts = split_path(path)
        self._forget(path)
        with contextlib.suppress(NotFoundError):
            self._remove(self._attempt("delete", path), self._url(parts))

    def identity(self) -> bytes:
        return self._identity

    def close(self) -> None:
        self._http.close()

    # Optional powers.

    def space(self) -> Space:
        attempt = self._attempt("measure", ".")
        found = next(iter(self._properties(attempt, (), "0", _QUOTA)), None)
        if found is None or found.free_bytes is None:
            return Space(None, None)
        return Space(found.free_bytes, None if found.used_bytes is None else found.free_bytes + found.used_bytes)

    def sweep(self, path: str) -> None:
        self._sweep(split_path(path), self._attempt("sweep", path))

    # Requests.

    def _ask(
        self,
        attempt: str,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
        down_bytes_max: int = 0,
    ) -> Answer:
        try:
            return self._http.ask(method, target, headers or {}, data, down_bytes_max)
        except NoAnswerError as error:
            raise no_answer(cause(error), attempt) from None  # what the library says may hold the proxy's password

    def _refusal(self, answer: Answer, attempt: str) -> BackendError:
        return refusal(answer.status, answer.headers, attempt, self._server, self._login_hint)

    def _absent(self, attempt: str) -> NotFoundError:
        """For a 404 that is an answer. Raises another error if it is not: the folder itself may be gone."""
        if time.monotonic() - self._root_seen_at > ROOT_SEEN_S:
            self._properties(attempt, (), "0", _LIST)
        return NotFoundError(f"{attempt}: it is not there")

    def _properties(
        self, attempt: str, folder: tuple[str, ...], depth: str, asked: bytes, *, end: str = "/"
    ) -> list[Found]:
        """What a PROPFIND tells of a folder. `NotFoundError` if it is not there, `UnreachableError` if that is the root.

        `end`: "" for an object; not all servers take a folder's name without a slash, or an object's with one.
        """
        url = self._url(folder) + end
        with self._ask(attempt, "PROPFIND", url, {"Depth": depth, **_XML}, asked, _LIST_BYTES_MAX) as answer:
            if answer.status == 404 and not folder:
                raise UnreachableError(
                    f"{attempt}: there is no such folder on the server",
                    next_step="Check the URL's path. Only init and `backend add` make a folder that is missing.",
                )
            if answer.status == 404:
                raise self._absent(attempt)
            if answer.status == 207:
                try:
                    found = read_multistatus(_bounded(answer), self._server + url)
                except NotXmlError:
                    raise not_the_server(attempt) from None
                except NoAnswerError as error:
                    raise no_answer(cause(error), attempt) from None
                self._root_seen_at = time.monotonic()
                return found
            if answer.status < 300:
                raise not_the_server(attempt)
            refused = self._refusal(answer, attempt)
        if folder and depth != "0" and answer.status == 400 and self._is_there("/".join(folder)):
            return []  # an object; Apache takes no slash behind its name
        raise refused

    def _entries(self, attempt: str, folder: tuple[str, ...]) -> list[tuple[str, Found]]:
        """All names directly below a folder, also those that no object can have."""
        try:
            found = self._properties(attempt, folder, "1", _LIST)
        except NotFoundError:
            return []
        return below(found, self._server + self._url(folder))

    def _get(self, parts: tuple[str, ...], path: str, offset: int, length: int | None, max_bytes: int) -> bytes:
        attempt = self._attempt("get", path)
        headers = {}
        if offset or length is not None:
            headers["Range"] = f"bytes={offset}-{offset + length - 1 if length is not None else ''}"
        most = max_bytes if length is None else min(length, max_bytes)
        with self._ask(attempt, "GET", self._url(parts), headers, None, most) as answer:
            if answer.status == 416 and headers:  # begins at or behind the end
                return b""
            self._check_object(answer, attempt, path)
            try:
                data = _part(answer, offset, length, max_bytes, attempt)
            except NoAnswerError as error:
                if path in self._seen:
                    raise _MayPassError from None
                raise no_answer(cause(error), attempt) from None
        if path in self._seen and _is_changing(answer):
            with self._ask(attempt, "HEAD", self._url(parts)) as now:
                if now.status != 200 or _version(now) != _version(answer):
                    raise _MayPassError
        return data

    def _size(self, parts: tuple[str, ...], path: str) -> int:
        attempt = self._attempt("stat", path)
        with self._ask(attempt, "HEAD", self._url(parts)) as answer:
            self._check_object(answer, attempt, path)
            if answer.size is not None:
                return answer.size
        for found in self._properties(attempt, parts, "0", _LIST, end=""):  # Apache keeps a length of 0 to itself
            if found.size is not None and not found.is_folder:
                return found.size
        raise BackendError(f"{attempt}: the server does not say how large it is", retryable=False)

    def _check_object(self, answer: Answer, attempt: str, path: str) -> None:
        """`NotFoundError`, or another, unless this is the answer to a request for an object."""
        if answer.status in {403, 404, 500} and path in self._seen:
            raise _MayPassError
        if answer.status == 404:
            raise self._absent(attempt)
        if answer.status not in {200, 206}:
            raise self._refusal(answer, attempt)
        if answer.is_page and not path.endswith(("html", "htm")):
            if not self._properties(attempt, (), "0", _LIST):
                raise not_the_server(attempt)
            raise RefusedError(f"{attempt}: it is no file")
        self._root_seen_at = time.monotonic()

    def _upload(
        self, attempt: str, parts: tuple[str, ...], url: str, data: bytes, headers: dict[str, str] | None = None
    ) -> int:
        """A PUT, and the folders it needs. -> its status, which is a success or 412."""
        folder = parts[:-1]
        if len(data) > SMALL_BYTES_MAX and folder not in self._known:  # rather than send a pack twice
            self._make_folder(attempt, folder)
        sent = {"Content-Type": "application/octet-stream", **(headers or {})}
        for made in (False, True):
            with self._ask(attempt, "PUT", url, sent, data) as answer:
                if answer.status in {201, 204, 412} or (answer.status == 200 and not answer.is_page):
                    self._root_seen_at = time.monotonic()
                    self._knows(folder)
                    return answer.status
                if answer.status == 200:
                    raise not_the_server(attempt)
                if answer.status not in {404, 409} or made:
                    raise self._refusal(answer, attempt) if answer.status != 404 else self._lost(attempt)
            self._make_folder(attempt, folder)
        raise AssertionError("not reached")

    @contextlib.contextmanager
    def _temporary(self, attempt: str, parts: tuple[str, ...], data: bytes) -> Iterator[str]:
        """An object under a temporary name beside its own. Removed if the server refuses what is done with it."""
        temp = self._url((*parts[:-1], TEMP_PREFIX + os.urandom(8).hex()))
        try:
            self._upload(attempt, parts, temp, data)
            yield temp
        except UnreachableError:
            raise  # nothing more is asked of a server that does not answer
        except BackendError:
            self._discard(temp)
            raise

    def _move(self, attempt: str, temp: str, url: str, *, overwrite: bool) -> bool:
        """Gives an object its name. False: it is taken; then the temporary one is removed, unless it may be needed."""
        headers = {"Destination": self._server + url, "Overwrite": "T" if overwrite else "F"}
        status = 0
        for destination in (self._server + url, url):
            headers["Destination"] = destination
            with self._ask(attempt, "MOVE", temp, headers) as answer:
                status = answer.status
                if status in {201, 204}:
                    return True
                if status == 412 and not overwrite:
                    return False
                if status != 502:
                    raise self._lost(attempt) if status == 404 else self._refusal(answer, attempt)
                # A server behind a proxy may not know itself by our name for it; and takes a path.
                failed = self._refusal(answer, attempt)
        raise failed

    def _discard(self, temp: str) -> None:
        with contextlib.suppress(BackendError):  # what is left over is listed nowhere
            self._remove("", temp)

    def _remove(self, attempt: str, url: str) -> None:
        # Depth 0: on a folder a server then refuses, in place of removing all that is in it.
        # Nextcloud would keep what is deleted, for weeks.
        with self._ask(attempt, "DELETE", url, {"Depth": "0", "X-NC-Skip-Trashbin": "true"}) as answer:
            if answer.status == 404:
                raise self._absent(attempt)
            if answer.status == 200 and answer.is_page:
                raise not_the_server(attempt)
            if answer.status not in {200, 202, 204}:
                raise self._refusal(answer, attempt)

    # What is known of the server.

    def _is_whole(self, attempt: str) -> bool:
        """Whether the server is one of those that write a PUT whole; asked once."""
        if self._writes_whole is None:
            with self._lock:
                if self._writes_whole is None:
                    with self._ask(attempt, "OPTIONS", self._root + "/") as answer:
                        if answer.status < 300:
                            self._writes_whole = any(sign in answer.headers.get("DAV", "") for sign in _WHOLE)
                        elif answer.status not in {405, 501}:
                            raise self._lost(attempt) if answer.status == 404 else self._refusal(answer, attempt)
                        else:
                            self._writes_whole = False
        return bool(self._writes_whole)

    def _make_folder(self, attempt: str, folder: tuple[str, ...]) -> None:
        """Makes a folder below the root, and those above it; never the root: that it is gone must show."""
        if not folder:
            raise self._lost(attempt)
        for above in (False, True):
            with self._ask(attempt, "MKCOL", self._url(folder) + "/") as answer:
                if answer.status in {201, 405} or (answer.status == 200 and not answer.is_page):
                    self._knows(folder)
                    return
                if answer.status not in {404, 409} or above:
                    refused = self._refusal(answer, attempt)
                    break
            self._make_folder(attempt, folder[:-1])
        # Somebody may have made it at the same moment: Apache answers 403 then.
        if answer.status not in {403, 423, 500}:
            raise refused
        with contextlib.suppress(NotFoundError):
            self._properties(attempt, folder, "0", _LIST)
            return self._knows(folder)
        raise refused

    def _make_root(self) -> None:
        attempt = self._attempt("make", ".")
        try:
            self._properties(attempt, (), "0", _LIST)
            return
        except UnreachableError:
            pass
        parts = self._root.split("/")[1:]
        missing = len(parts)
        while missing > 0:  # from the folder itself upwards, to the first that can be made
            with self._ask(attempt, "MKCOL", "/" + "/".join(parts[:missing]) + "/") as answer:
                if answer.status in {201, 405}:
                    break
                if answer.status not in {404, 409} or missing == 1:
                    raise self._refusal(answer, attempt)
            missing -= 1
        for count in range(missing + 1, len(parts) + 1):
            with self._ask(attempt, "MKCOL", "/" + "/".join(parts[:count]) + "/") as answer:
                if answer.status not in {201, 405}:
                    raise self._refusal(answer, attempt)

    def _lost(self, attempt: str) -> BackendError:
        """For a write that was told 404 or 409 where there is a folder. Raises another error if the root is gone."""
        self._properties(attempt, (), "0", _LIST)
        return BackendError(f"{attempt}: the folder it belongs into vanished", next_step="Try again.")

    def _sweep(self, folder: tuple[str, ...], attempt: str) -> bool:
        """-> whether the folder is gone, or was not there."""
        empty = True
        for name, found in self._entries(attempt, folder):
            if found.is_folder and is_name(name) and len(folder) < _SWEEP_DEPTH_MAX:
                empty = self._sweep((*folder, name), attempt) and empty
            elif not found.is_folder and name.startswith(TEMP_PREFIX) and "/" not in name:
                self._discard(self._url((*folder, name)))
            else:
                empty = False
        if empty:
            self._known.discard(folder)
            with self._ask(attempt, "DELETE", self._url(folder) + "/", {"X-NC-Skip-Trashbin": "true"}) as answer:
                return answer.status in {200, 204, 404}
        return False

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether an object has these very bytes."""
        try:
            return self.get(path, max_bytes=len(data)) == data
        except (NotFoundError, RefusedError):  # larger, or gone again
            return False

    def _is_there(self, path: str) -> bool:
        try:
            self.stat(path)
        except BackendError:
            return False
        return True

    # What this object remembers.

    def _seen_again(self, path: str, look: Callable[[], T]) -> T:
        """Looks for an object; several times if it was there before, since it may be about to be replaced."""
        for pause_s in _LOOKS_AGAIN_S:
            try:
                value = look()
                break
            except _MayPassError:
                time.sleep(pause_s)
        else:
            self._forget(path)
            value = look()
        if path not in self._seen:
            with self._lock:
                if len(self._seen) >= _SEEN_MAX:
                    self._seen.clear()
                self._seen.add(path)
        return value

    def _forget(self, path: str) -> None:
        with self._lock:
            self._seen.discard(path)

    def _knows(self, folder: tuple[str, ...]) -> None:
        if folder not in self._known:
            with self._lock:
                if len(self._known) >= _KNOWN_FOLDERS_MAX:
                    self._known.clear()
                self._known.add(folder)

    def _url(self, parts: tuple[str, ...]) -> str:
        return "/".join((self._root, *parts))

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


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "[::1]"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def _caution(line: str, host: str) -> str:
    if line == "https" or _is_loopback(host):
        return ""
    return "webdav+http has no TLS: whoever sees the line can read its password (what is stored is encrypted anyway)"


def _version(answer: Answer) -> tuple[str | None, ...]:
    return answer.headers.get("ETag"), answer.headers.get("Last-Modified")


def _is_changing(answer: Answer) -> bool:
    """Whether an object was changed a moment ago, by the server's own clock; also if it does not say."""
    try:
        changed, now = (parsedate_to_datetime(answer.headers[name]) for name in ("Last-Modified", "Date"))
        return (now - changed).total_seconds() <= _CHANGING_S
    except (KeyError, ValueError, TypeError):
        return True


def _bounded(answer: Answer) -> Iterator[bytes]:
    left = _LIST_BYTES_MAX
    for piece in answer.pieces():
        left -= len(piece)
        if left < 0:
            raise NotXmlError("too long")
        yield piece


def _part(answer: Answer, offset: int, length: int | None, max_bytes: int, attempt: str) -> bytes:
    """The part of an object that was asked for, from an answer that holds it, or all of the object."""
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity" or not answer.ends_for_sure:
        raise BackendError(f"{attempt}: the server sent it compressed, or does not say where it ends", retryable=False)
    first, size = 0, answer.size
    if answer.status == 206:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != offset:
            raise BackendError(f"{attempt}: the answer holds another part than was asked for")
        first, size = offset, int(match[3])
    count = None if size is None else count_bytes(size, offset, length, max_bytes, attempt)
    most = count if count is not None else min(max_bytes + 1, length if length is not None else max_bytes + 1)
    data = _cut(answer, offset - first, most)
    if count is None:
        count_bytes(offset + len(data), offset, length, max_bytes, attempt)
    elif len(data) != count:
        raise BackendError(f"{attempt}: the answer holds another part than was asked for")
    return data


def _cut(answer: Answer, skip: int, count: int) -> bytes:
    """`count` bytes of a body behind the first `skip`, and no more of it than that is read."""
    kept: list[bytes] = []
    for piece in answer.pieces():
        if skip >= len(piece):
            skip -= len(piece)
            continue
        taken = piece[skip : skip + count]
        skip, count = 0, count - len(taken)
        kept.append(taken)
        if not count:
            break
    return kept[0] if len(kept) == 1 else b"".join(kept)
