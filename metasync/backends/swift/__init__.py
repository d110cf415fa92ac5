"""OpenStack Swift: `swift://container/prefix?auth=https://host:5000/v3&region=...`.

GET and HEAD ask for `X-Newest`: without it the proxy takes the first copy that answers, which may lack the last write.

`create` is a PUT with If-None-Match: *. Of several racing writers more than one can win (178 of 200 names,
providers.md, section 4): an object server looks first and takes the body afterwards. So this store votes in block form.
docs/howto/swift.md says what that asks of the cluster.

A missing container answers an object's GET as a missing object does. So "not there" is said only if the container was
seen a moment before, or is found now.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import quote, urlsplit

from metasync.backends._shared.credentials import caution, secret
from metasync.backends._shared.http import timeout_s
from metasync.backends._shared.race_probe import create_by
from metasync.backends._shared.urls import byte_range, prefix_of, server_address
from metasync.backends.api import BackendUrl, Digest, DigestKind, Inventory, Item, Listed, LogForm, Space
from metasync.backends.names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.backends.swift.http import Wires, answered, not_swift, split_server
from metasync.backends.swift.login import Login, Tokens, read_login
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError, UsageError
from metasync.runtime.sizes import SMALL_TIMEOUT_S

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Reply

_SEEN_S = 2.0  # a container counts as there for so long after it was seen; saves a request for each missing object
_PAGE_NAMES = 5000  # of a listing; Swift gives at most 10,000 at once
_PAGE_BYTES_MAX = 16 << 20
_PAGES_MAX = 2000
_PREFIX_CHARS_MAX = 256  # Swift takes 1,024 bytes for a name, and ours have at most a few hundred
_CONTAINER_BYTES_MAX = 256
_TIME_CHARS_MAX = 64
_NEWEST = {"X-Newest": "true"}

_CONTAINER = re.compile(r"[^/\x00-\x1f\x7f]+")
_WORD = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

_PROBE_NAMES = 8
_PROBE_READS = 3


class SwiftBackend:
    """A prefix of a container. It makes no request before the first call, and keeps its connections until `close`."""

    scheme: ClassVar[str] = "swift"
    form: ClassVar[LogForm] = "block"
    form_reason: ClassVar[str] = (
        "Swift looks whether a name is free and takes the bytes afterwards, so that two writers can both be first"
    )
    digest_kind: ClassVar[DigestKind] = "md5"
    url_params: ClassVar[frozenset[str]] = frozenset({"auth", "user", "project", "domain", "region"})

    def __init__(self, container: str, prefix: str, login: Login, environ: Mapping[str, str]) -> None:
        self._container = container
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = f"/{quote(container, safe='')}"
        self._where = f"swift://{container}{f'/{prefix}' if prefix else ''} at {login.where}"
        self._wires = Wires(environ)
        self._tokens = Tokens(login, self._wires.ask)
        self._seen_at = float("-inf")
        parts = urlsplit(login.where)
        said = f"{login.where} has no TLS: whoever sees the line can read the login"
        self.caution = caution(parts.scheme, parts.hostname or "", said)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        size = len(url.host.encode("utf-8", "surrogateescape"))
        if not 1 <= size <= _CONTAINER_BYTES_MAX or url.host in (".", "..") or _CONTAINER.fullmatch(url.host) is None:
            raise UsageError(
                "a Swift URL begins with the name of a container", next_step="Write swift://container/prefix."
            )
        prefix_of(url, _PREFIX_CHARS_MAX)
        for name, value in url.params:
            if name == "auth":
                _check_auth(value)
            elif _WORD.fullmatch(value) is None:
                raise UsageError(
                    f"not a value for {name} in a Swift URL: {value[:40]!r}",
                    next_step=f"Write the {name} as the cloud's own tools are told it.",
                )

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> SwiftBackend:
        """`RefusedError` without credentials. `create_root` changes nothing: a container is not ours to make."""
        login = read_login(os.environ, dict(url.params), secret)
        return cls(url.host, url.path.strip("/"), login, os.environ)

    def create(self, path: str, data: bytes) -> bool:
        split_path(path)
        return create_by(lambda: self._put("create", path, data, {"If-None-Match": "*"}), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        self._put("put", path, data, {})

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        ranged = offset > 0 or length is not None
        headers = {**_NEWEST, "Range": byte_range(offset, length)} if ranged else _NEWEST
        within_s = timeout_s(max_bytes if length is None else min(length, max_bytes))
        with self._object("get", "GET", path, headers, within_s=within_s) as reply:
            if reply.status == 416:  # begins at or behind the end
                return b""
            what = f"{path} in {self._where}"
            self._expect(reply, "get", path, 200, 206)
            size, part = _size_and_part(reply)
            # The answer's head comes first: what is too large is refused before its body is read.
            count = count_bytes(size, offset, length, max_bytes, what)
            data = reply.read(count) if part == (offset, count) else None
        if data is None or len(data) != count:
            raise BackendError(f"cannot get {what}: the answer holds another part than was asked for")
        return data

    def stat(self, path: str) -> int:
        split_path(path)
        return self._head("stat", path)[0]

    def digest(self, path: str) -> Digest:
        """The MD5 in the ETag; None for an object in segments, whose ETag is the digest of a list."""
        split_path(path)
        size, headers = self._head("digest", path)
        found = _MD5.fullmatch(headers.get("etag", ""))
        whole = "x-object-manifest" not in headers and headers.get("x-static-large-object", "").lower() != "true"
        return Digest(size, bytes.fromhex(found[1]) if found is not None and whole else None)

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        folder = f"{self._prefix}{path}/" if path else self._prefix
        found: dict[str, int | None] = {}
        marker = ""
        for _ in range(_PAGES_MAX):
            page = self._page(path or ".", folder, marker)
            for full, size, _, _ in page:
                name = full[len(folder) :].rstrip("/") if full.startswith(folder) else ""
                if is_name(name):
                    found.setdefault(name, size)
            if len(page) < _PAGE_NAMES or page[-1].name <= marker:
                break
            marker = page[-1].name
        return tuple(Listed(name, found[name]) for name in sorted(found))

    def inventory(self, path: str, cursor: str) -> Inventory:
        """With the MD5 of each object, but of those in segments: for these a listing tells the size 0."""
        split_path(path)
        folder = f"{self._prefix}{path}/"
        page = self._page(path, folder, cursor, flat=True)
        items = tuple(
            Item(
                row.name.removeprefix(folder),
                row.size,
                _md5_of(row),
                row.changed,
            )
            for row in page
            if row.name.startswith(folder) and all(map(is_name, row.name.removeprefix(folder).split("/")))
        )
        more = len(page) == _PAGE_NAMES and page[-1].name > cursor
        return Inventory(items, page[-1].name if more else "", more)

    def delete(self, path: str) -> None:
        split_path(path)
        with contextlib.suppress(NotFoundError), self._object("delete", "DELETE", path, {}) as reply:
            self._expect(reply, "delete", path, 204)

    def identity(self) -> bytes:
        """Scope: the storage server. Place: account, container and prefix. Logs in, as only the server knows it."""
        parts = urlsplit(self._tokens.current().storage_url)
        return native_identity(parts.netloc.lower(), f"{parts.path}/{self._container}/{self._prefix.rstrip('/')}")

    def space(self) -> Space:
        """The tighter of the account's and the container's quota. What is used, Swift counts some seconds late."""
        attempt = f"cannot measure {self._where}"
        rooms = []
        for kind, path in (("account", ""), ("container", self._place)):
            with self._asked("HEAD", path, _NEWEST, None, attempt) as reply:
                if kind == "account" and reply.status in (403, 404):  # often not for a user of one container to see
                    continue
                if reply.status == 404:
                    raise self._no_container(attempt)
                answer = reply.answer()
            if answer.status not in (200, 204) or answer.is_page:
                raise answered(answer, attempt)
            rooms.append(_room(kind, answer.headers))
        return min((room for room in rooms if room.free_bytes is not None), default=Space(None, None))

    def probe(self) -> LogForm:
        """The form, or "none" if a put is not seen at once and for good, or a taken name is given away.

        It can only disprove: nobody sees from here what a cluster does while its machines fail.
        """
        from concurrent.futures import ThreadPoolExecutor

        names = [f"probe-{os.urandom(12).hex()}" for _ in range(_PROBE_NAMES)]
        try:
            with ThreadPoolExecutor(max_workers=_PROBE_NAMES) as pool:
                kept = all([*pool.map(self._keeps, names)])
        finally:
            for name in names:
                with contextlib.suppress(BackendError):  # what is left over is 24 bytes under a name of its own
                    self.delete(name)
        return self.form if kept else "none"

    def close(self) -> None:
        self._wires.close()

    def _keeps(self, name: str) -> bool:
        data = name.encode()
        try:
            self.get(name, max_bytes=64)
        except NotFoundError:
            self.put(name, data)
            try:
                seen = [self.get(name, max_bytes=64) for _ in range(_PROBE_READS)]
            except NotFoundError:
                return False
            return set(seen) == {data} and not self.create(name, b"") and self.get(name, max_bytes=64) == data
        return False

    def _put(self, verb: str, path: str, data: bytes, headers: Mapping[str, str]) -> bool:
        """False: taken. The server compares the digest with what arrives, and refuses what was damaged on the way."""
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        own = {**headers, "ETag": md5, "Content-Type": "application/octet-stream"}
        attempt = f"cannot {verb} {path} in {self._where}"
        within_s = timeout_s(len(data))
        with self._asked("PUT", self._path(path), own, data, attempt, within_s=within_s) as reply:
            answer = reply.answer()
        if answer.status == 412 and "If-None-Match" in headers:
            return False
        if answer.status == 404:
            raise self._no_container(attempt)
        if answer.status == 202:
            raise BackendError(
                f"{attempt}: the server holds another that is newer by its clock",
                next_step="Try again later; the clocks of the store's machines differ.",
            )
        if answer.status != 201:
            raise answered(answer, attempt)
        if answer.headers.get("etag", "").strip('"') != md5:
            raise not_swift(attempt, "a 201 without the digest of what was sent")
        self._seen_at = time.monotonic()
        return True

    def _head(self, verb: str, path: str) -> tuple[int, Mapping[str, str]]:
        with self._object(verb, "HEAD", path, _NEWEST) as reply:
            self._expect(reply, verb, path, 200)
            return _size_and_part(reply)[0], reply.headers

    def _page(self, path: str, folder: str, marker: str, *, flat: bool = False) -> tuple[_Row, ...]:
        form = "?format=json" if flat else "?format=json&delimiter=/"
        query = f"{form}&limit={_PAGE_NAMES}&prefix={quote(folder)}&marker={quote(marker)}"
        attempt = f"cannot list {path} in {self._where}"
        with self._asked("GET", self._place + query, _NEWEST, None, attempt) as reply:
            if reply.status == 404:
                raise self._no_container(attempt)
            if reply.status not in (200, 204):
                raise answered(reply.answer(), attempt)
            body = reply.read(_PAGE_BYTES_MAX)  # what is longer is cut, and so is none
        try:
            page = _rows(body)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise not_swift(attempt, "no listing") from None
        self._seen_at = time.monotonic()
        return page

    @contextlib.contextmanager
    def _object(
        self, verb: str, method: str, path: str, headers: Mapping[str, str], *, within_s: int = SMALL_TIMEOUT_S
    ) -> Iterator[Reply]:
        """A request on an object. `NotFoundError` if it is not there, and only if its container is."""
        began = time.monotonic()
        attempt = f"cannot {verb} {path} in {self._where}"
        with self._asked(method, self._path(path), headers, None, attempt, within_s=within_s) as reply:
            if reply.status != 404:
                yield reply
                return
            answer = reply.answer()
        if "x-trans-id" not in answer.headers and "x-openstack-request-id" not in answer.headers:
            raise not_swift(attempt, "a 404 that is not Swift's")
        if self._seen_at < began - _SEEN_S:
            self._look_for_container(attempt)
        raise answered(answer, attempt)

    def _look_for_container(self, attempt: str) -> None:
        with self._asked("HEAD", self._place, _NEWEST, None, attempt) as reply:
            if reply.status == 404:
                raise self._no_container(attempt)
            if reply.status not in (200, 204):
                raise answered(reply.answer(), attempt)
            if "x-container-object-count" not in reply.headers:
                raise not_swift(attempt, "no container")
        self._seen_at = time.monotonic()

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: str,
        *,
        within_s: int = SMALL_TIMEOUT_S,
    ) -> Iterator[Reply]:
        """One request with a token, and a second one with a new token if the first was refused for its token."""
        token = self._tokens.current()
        for last in (False, True):
            sent = {**headers, "X-Auth-Token": token.value}
            base, path_above = split_server(token.storage_url)
            with self._wires.exchange(method, base, path_above + path, sent, body, attempt, within_s=within_s) as reply:
                if reply.status != 401:
                    yield reply
                    return
            if last:
                break
            token = self._tokens.current(but=token)
        raise RefusedError(
            f"{attempt}: the server refused the credentials (401)",
            next_step=f"Check {self._tokens.login.said_by}, and that the user may use this account.",
        )

    def _expect(self, reply: Reply, verb: str, path: str, *statuses: int) -> None:
        """That this is what Swift answers. A network's login page comes with status 200, too."""
        attempt = f"cannot {verb} {path} in {self._where}"
        if reply.status not in statuses:
            raise answered(reply.answer(), attempt)
        if verb != "delete" and "x-timestamp" not in reply.headers:
            raise not_swift(attempt, f"a {reply.status} without a time stamp")
        self._seen_at = time.monotonic()

    def _path(self, path: str) -> str:
        return f"{self._place}/{quote(self._prefix)}{path}"

    def _no_container(self, attempt: str) -> UnreachableError:
        return UnreachableError(
            f"{attempt}: there is no container {self._container!r} in this account",
            next_step="Check the container's name, project and region; or make it.",
        )


def _check_auth(auth: str) -> None:
    if server_address(auth) is None:
        raise UsageError(
            "auth= in a Swift URL is not the address of a server, or holds more than that",
            next_step="Write auth=https://host:5000/v3 (Keystone) or auth=https://host/auth/v1.0 (TempAuth).",
        )


def _size_and_part(reply: Reply) -> tuple[int, tuple[int, int]]:
    """The object's size, and which part of it this answer says it holds: (-1, -1) where it says nothing one can use."""
    if reply.status == 206:
        if reply.part is None:
            return 0, (-1, -1)
        start, end, size = reply.part
        return size, (start, end - start)
    if reply.size is None:
        raise BackendError("cannot tell how large the object is: the server does not say")
    return reply.size, (0, reply.size)


class _Row(NamedTuple):
    """A row of a listing: the whole name, the size (None: a folder), the MD5 in hex and the time, "" where not told."""

    name: str
    size: int | None
    hash: str = ""
    changed: str = ""


def _md5_of(row: _Row) -> bytes | None:
    return bytes.fromhex(row.hash) if row.size and row.hash else None


def _rows(body: bytes) -> tuple[_Row, ...]:
    """The rows of a listing. `ValueError`, `KeyError` or `TypeError` for what is none."""
    rows = json.loads(body) if body else []
    if not isinstance(rows, list):
        raise TypeError
    return tuple(
        _Row(str(row["subdir"]), None)
        if "subdir" in row
        else _Row(
            str(row["name"]),
            int(row["bytes"]),
            found[1] if (found := _MD5.fullmatch(str(row.get("hash", "")))) else "",
            str(row.get("last_modified", ""))[:_TIME_CHARS_MAX],
        )
        for row in rows
    )


def _room(kind: str, headers: Mapping[str, str]) -> Space:
    quota, used = headers.get(f"x-{kind}-meta-quota-bytes", ""), headers.get(f"x-{kind}-bytes-used", "")
    if not re.fullmatch(r"[0-9]{1,18}", quota) or not re.fullmatch(r"[0-9]{1,18}", used):
        return Space(None, None)
    return Space(max(0, int(quota) - int(used)), int(quota))
