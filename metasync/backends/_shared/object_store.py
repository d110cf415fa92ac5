"""The calls of S3, Azure and Google Cloud Storage over HTTP; each provider signs its requests and gives its `Dialect`.

No redirect is followed, and every answer is bounded (`wire`): a listing in pages, in their size and in their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from metasync.backends._shared.object_errors import Dialect, code_in, refusal
from metasync.backends._shared.race_probe import create_by, keeps_creates
from metasync.backends._shared.urls import byte_range, server_address
from metasync.backends.api import BackendUrl, Digest, DigestKind, Inventory, Item, Listed, LogForm
from metasync.backends.names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, FormatError, NotFoundError, RefusedError, UnreachableError, UsageError

if TYPE_CHECKING:
    from metasync.backends._shared.listing import Page
    from metasync.backends._shared.wire import Answer, Reply, Wire

# Of an endpoint. Other readers may take another host out of what no address holds.
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_ENDPOINT_PATH = re.compile(r"[A-Za-z0-9._~/-]*")
_NUMBER = re.compile(r"(0[Xx][0-9A-Fa-f]*|[0-9]+)")
_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')
# How much is hashed to see whether tags are MD5s: 10 microseconds of a request of 200, and all but packs are so small.
_TRIED_BYTES_MAX: Final = 1 << 13
NAMES_MAX: Final = 1 << 18  # below one folder of ours are at most some 10,000; more fill our memory
AHEAD: Final = 5  # connections: a look behind another's entry has three entries, a birth and what lies beyond at once
PAGES_MAX: Final = 1 << 12  # a server may send pages of few names, or of none

# Names that nobody can rent: what answers there is one's own, and what people run themselves is mostly MinIO or Ceph.
_OWN_NAMES = (".localhost", ".local", ".lan", ".internal", ".home.arpa")

Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it is signed. `path`: from the server's root, not encoded; `headers` in small letters."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes


class ObjectStoreBackend(ABC):
    """A prefix of a bucket. It makes no request before the first call, and keeps its connections until `close`."""

    scheme: ClassVar[str]
    form: ClassVar[LogForm] = "log"
    dialect: ClassVar[Dialect]
    if_free: ClassVar[tuple[str, str]]
    """The header of a put that is to fail where the name is taken."""

    def __init__(self, bucket: str, prefix: str, url: str, root: str, *, at: str, scope: str = "") -> None:
        """`url` is the server, `root` the path of the bucket there, `at` names the server in errors.

        `scope`: of the native identity, where that is not the server.
        """
        from metasync.backends._shared.wire import Wire  # 15 ms, and many a URL is only looked at

        self._where = f"{self.scheme}://{bucket}{f'/{prefix}' if prefix else ''}{at}"
        self._identity = native_identity(scope or url.lower(), f"{bucket}/{prefix}")
        self._root = root
        self._prefix = f"{prefix}/" if prefix else ""
        self._may_be_another = is_readable(url)
        self._wire: Wire = Wire(url, ahead=AHEAD)
        self._knows_no_such_call = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @abstractmethod
    def signed(self, request: Request) -> tuple[str, Mapping[str, str]]:
        """The target of a request, path and query as they are sent, and its headers, with what shows who asks."""

    @abstractmethod
    def listing(self, prefix: str, following: str) -> Query:
        """The query that asks for a page of the names that begin with `prefix`, up to the next slash."""

    def create(self, path: str, data: bytes) -> bool:
        return create_by(lambda: self._create(path, data), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        self._check_put(self._put("put", path, data, {}), "put", path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        headers = {"range": byte_range(offset, length)} if offset or length is not None else {}
        with self._exchange("get", path, "GET", headers) as reply:
            if reply.status == 416:  # begins at or behind the end
                return b""
            if reply.status not in (200, 206):
                raise self._refusal(reply.answer(), "get", path)
            self._check_no_page(reply.headers, "get", path)
            data, whole = self._body(reply, path, offset, length, max_bytes)
            tag = reply.headers.get("etag")
        if whole:
            self._see(tag, data)
        return data

    def _body(self, reply: Reply, path: str, offset: int, length: int | None, max_bytes: int) -> tuple[bytes, bool]:
        """What was asked for, and whether it is the whole object. The head is checked before the body is read."""
        what = f"{path} in {self._where}"
        part = reply.part if reply.status == 206 else None
        if part is not None:
            start, end, total = part
            if start >= total and start == offset:  # as Azurite has it of a part behind the end
                return b"", False
        elif reply.status == 206 or reply.size is None:
            raise BackendError(f"cannot get {what}: the answer does not say which part it holds")
        else:
            start, end, total = 0, reply.size, reply.size
        count = count_bytes(total, offset, length, max_bytes, what)
        if (start, end - start) != (offset, count) or reply.size not in (None, count):
            raise BackendError(f"cannot get {what}: the answer holds another part than was asked for")
        data = reply.read(count)
        if len(data) != count:
            raise UnreachableError(f"cannot get {what}: the connection broke", next_step="Check the network.")
        return data, count == total

    def stat(self, path: str) -> int:
        return self._head(path, "stat")[0]

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        top = f"{self._prefix}{path}/" if path else self._prefix
        found: dict[str, Listed] = {}
        following, pages = "", 0
        while pages == 0 or following:
            page = self._page(self.listing(top, following), path or ".")
            for name, size, _, _ in page.entries:
                last = name.removeprefix(top).rstrip("/")
                if name.startswith(top) and is_name(last):
                    found[last] = Listed(last, size)
            pages += 1
            if len(found) > NAMES_MAX or pages > PAGES_MAX or page.following == following != "":
                raise BackendError(
                    f"cannot list {path or '.'} in {self._where}: the listing has no end", retryable=False,
                    next_step="Check the endpoint, and what else lies under this prefix.",
                )  # fmt: skip
            following = page.following
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def inventory(self, path: str, cursor: str) -> Inventory:
        split_path(path)
        top = f"{self._prefix}{path}/"
        flat = [pair for pair in self.listing(top, cursor) if pair[0] != "delimiter"]
        page = self._page(flat, path)
        items = [
            Item(entry.name.removeprefix(top), entry.size, self._digest_in(entry.tag), entry.changed)
            for entry in page.entries
            if entry.name.startswith(top) and all(map(is_name, entry.name.removeprefix(top).split("/")))
        ]
        if page.following == cursor != "":
            raise BackendError(f"cannot list {path} in {self._where}: the listing has no end", retryable=False,
                               next_step="Check the endpoint, and what else lies under this prefix.")  # fmt: skip
        return Inventory(tuple(items), page.following, page.following != "")

    def _page(self, query: Query, path: str) -> Page:
        from metasync.backends._shared.listing import PAGE_BYTES_MAX, read_page

        with self._exchange("list", path, "GET", {}, query=query) as reply:
            if reply.status != 200:
                raise self._refusal(reply.answer(), "list", path)
            body = reply.read(PAGE_BYTES_MAX)
        try:
            return read_page(body)
        except FormatError:
            raise self._other_server("list", path) from None

    def _digest_in(self, _tag: str) -> bytes | None:
        """The digest of an object that its tag is; None where a tag is none."""
        return None

    def delete(self, path: str) -> None:
        split_path(path)
        with self._exchange("delete", path, "DELETE", {}) as reply:
            answer = reply.answer()
        if answer.status not in (200, 202, 204):
            failed = self._refusal(answer, "delete", path)
            if not isinstance(failed, NotFoundError):
                raise failed
        self._check_no_page(answer.headers, "delete", path)

    def identity(self) -> bytes:
        return self._identity

    def close(self) -> None:
        self._wire.close()

    def dial(self) -> None:
        """Begins to open the connections that calls soon to come will want. It waits for none, and fails for none."""
        self._wire.dial()

    def probe(self) -> LogForm:
        """The form, or "none" if the server broke `create`'s promise in a probe (`race_probe.keeps_creates`)."""
        try:
            return self.form if keeps_creates(self) else "none"
        except BackendError:
            if self._knows_no_such_call:
                return "none"
            raise

    def _create(self, path: str, data: bytes) -> bool:
        answer = self._put("create", path, data, dict([self.if_free]))
        if self._is_taken(answer):
            return False
        self._check_put(answer, "create", path, data)
        return True

    def _put(self, verb: str, path: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        split_path(path)
        with self._exchange(verb, path, "PUT", headers, body=data) as reply:
            return reply.answer()

    def _is_taken(self, answer: Answer) -> bool:
        status, code = self.dialect.taken
        return answer.status == status and (not code or code_in(answer) == code)

    def _check_put(self, answer: Answer, verb: str, path: str, data: bytes) -> None:
        """A login page comes with status 200, too: a write that counts has a tag of this kind of server's."""
        if answer.status not in (200, 201):
            raise self._refusal(answer, verb, path)
        tag = answer.headers.get("etag")
        if tag is None or (self._may_be_another and self.dialect.tag.fullmatch(tag) is None):
            raise self._other_server(verb, path)
        self._see(tag, data)

    def _head(self, path: str, verb: str) -> tuple[int, str | None]:
        """The size and the tag of an object."""
        split_path(path)
        for method in ("HEAD", "GET"):
            with self._exchange(verb, path, method, {}) as reply:
                if reply.status == 200 and reply.size is not None:
                    self._check_no_page(reply.headers, verb, path)
                    return reply.size, reply.headers.get("etag")
                # A refused HEAD has no body, and so does not say whether the object, the bucket or the key is wrong.
                answer = reply.answer()
                if method == "GET" or not 400 <= reply.status < 500 or code_in(answer):
                    raise self._refusal(answer, verb, path)
        raise AssertionError

    def _exchange(
        self, verb: str, path: str, method: str, headers: Mapping[str, str], *,
        body: bytes = b"", query: Query | None = None,
    ) -> contextlib.AbstractContextManager[Reply]:  # fmt: skip
        """A request about an object, or about the bucket where there is a query."""
        at = self._root if query is not None else f"{self._root}/{self._prefix}{path}"
        attempt = f"cannot {verb} {path} in {self._where}"
        target, signed = self.signed(Request(method, at, query or (), headers, body))
        return self._wire.exchange(method, target, signed, body, attempt)

    def _check_no_page(self, headers: Mapping[str, str], verb: str, path: str) -> None:
        """A login page comes with status 200, and to an http:// endpoint it can come. Our objects are never HTML."""
        if headers.get("content-type", "").startswith("text/html"):
            raise self._other_server(verb, path)

    def _other_server(self, verb: str, path: str) -> UnreachableError:
        said = f"cannot {verb} {path} in {self._where}: what answered is not the {self.dialect.server} server"
        return UnreachableError(said, next_step="Check the endpoint, or log in to the network.")

    def _refusal(self, answer: Answer, verb: str, path: str) -> BackendError:
        self._knows_no_such_call |= answer.status == 501
        return refusal(answer, verb, path, self._where, self.dialect)

    @abstractmethod
    def _see(self, e_tag: str | None, data: bytes) -> None:
        """Notes a whole object and its tag."""


class TagsAreDigests(ObjectStoreBackend):
    """A store whose ETag is an object's MD5, unless the object was made of parts, or is encrypted with other keys.

    The tag of an encrypted object looks like an MD5. So tags count once one was seen to be the MD5 of bytes that passed
    through here, and never again after one was not. What a process reads first is small, so it has seen some tags
    before it asks for a digest.
    """

    digest_kind: ClassVar[DigestKind] = "md5"
    _seen_right = _seen_wrong = False

    def digest(self, path: str) -> Digest:
        size, tag = self._head(path, "digest")
        return Digest(size, self._digest_in(tag or ""))

    def _digest_in(self, tag: str) -> bytes | None:
        match = _MD5_TAG.fullmatch(tag) if self._seen_right and not self._seen_wrong else None
        return bytes.fromhex(match[1]) if match else None

    def _see(self, e_tag: str | None, data: bytes) -> None:
        if self._seen_wrong or len(data) > _TRIED_BYTES_MAX:
            return
        match = _MD5_TAG.fullmatch(e_tag or "")
        if match is not None and match[1] == hashlib.md5(data, usedforsecurity=False).hexdigest():
            self._seen_right = True
        else:
            self._seen_wrong = True


def endpoint_of(url: BackendUrl, kind: str) -> str:
    """The server that a URL names, "" for the provider's own. `UsageError` if it is not an address alone."""
    endpoint = dict(url.params).get("endpoint", "").rstrip("/")
    if not endpoint:
        return ""
    parts = server_address(endpoint)
    if parts is None or not _HOST.fullmatch(parts.hostname or "") or not _ENDPOINT_PATH.fullmatch(parts.path):
        raise UsageError(
            f"the endpoint of {kind} URL is not the address of a server, or holds more than that",
            next_step="Write endpoint=https://host:port, without user, password or parameters.",
        )
    return endpoint


def is_own_host(host: str) -> bool:
    """Whether a server of this name or address can only be one's own."""
    import ipaddress  # 2 ms, and only some URLs name an endpoint

    try:
        return not ipaddress.ip_address(host.strip(".[]")).is_global
    except ValueError:
        name = host.strip(".")  # a number is an address, of whomever
        return ("." not in name and _NUMBER.fullmatch(name) is None) or host.endswith(_OWN_NAMES)


def check_not_readable(endpoint: str, what: str) -> None:
    """`RefusedError` for an endpoint to which a secret would go in plain text, over a network."""
    if is_readable(endpoint):
        raise RefusedError(
            f"{what} would go over the network in plain text to {endpoint}",
            next_step="Write endpoint=https://..., or use another kind of credentials.",
        )


def is_readable(url: str) -> bool:
    """Whether what goes there can be read, and answered, by the network between."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}
