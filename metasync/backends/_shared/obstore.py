"""The calls of Azure and Google Cloud Storage, by obstore; each provider gives its options and its `Dialect`.

obstore takes 0.16 ms of CPU a request, gives the GIL back while it waits, and retries nothing as set up here. An option
that is left open it reads from the environment. So a provider gives it every option that decides where a request goes,
how `create` is made safe, and which key signs.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, ClassVar

from metasync.backends._shared.object_store import is_readable
from metasync.backends._shared.obstore_errors import Dialect, backend_error, begins_behind, status_of
from metasync.backends._shared.race_probe import is_anothers, keeps_creates
from metasync.backends.api import Digest, DigestKind, Listed, LogForm
from metasync.backends.names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

_MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?')
# How much is hashed to see whether tags are MD5s: 10 microseconds of a request of 160, and all but packs are so small.
_TRIED_BYTES_MAX = 1 << 13

# The process in which obstore's threads run. A fork does not take them along, and a call there would wait for ever.
_process: list[int] = []


class ObjectStoreBackend:
    """A prefix of a bucket. It makes no request before the first call, and keeps its connections until `close`."""

    scheme: ClassVar[str]
    form: ClassVar[LogForm] = "log"
    dialect: ClassVar[Dialect]
    store: ClassVar[str]
    """The name of obstore's class."""

    def __init__(
        self, bucket: str, prefix: str, url: str, options: Mapping[str, Any], *, at: str, scope: str = ""
    ) -> None:
        """`url` is the server, `options` are of obstore's class, `at` names the server in errors. Imports obstore.

        `scope`: of the native identity, where that is not the server.
        """
        import obstore.store

        self._obstore: ModuleType = obstore
        self._failures = (obstore.exceptions.BaseError, OSError, NotImplementedError, ValueError)
        self._where = f"{self.scheme}://{bucket}{f'/{prefix}' if prefix else ''}{at}"
        self._identity = native_identity(scope or url.lower(), f"{bucket}/{prefix}")
        self._url = url
        self._options = {"prefix": prefix or None, **options}
        self._may_be_another = is_readable(url)
        self._stores: dict[bool, Any] = {}  # for large writes, for all else; each takes 4 ms and has its connections
        self._making = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    def create(self, path: str, data: bytes) -> bool:
        split_path(path)
        try:
            result = self._obstore.put(self._store(len(data)), path, data, mode="create", use_multipart=False)
        except self._failures as error:
            if self.dialect.is_taken(error):
                return False
            failed = self._error(error, "create", path)
            if isinstance(failed, UnreachableError) and len(data) > SMALL_BYTES_MAX and is_anothers(self, path, data):
                return False
            raise failed from error
        self._check_tag(result["e_tag"], "create", path)
        self._see(result["e_tag"], data)
        return True

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        try:
            # In parts would be three requests and more, and not durable before the last: a pack fits one.
            result = self._obstore.put(self._store(len(data)), path, data, mode="overwrite", use_multipart=False)
        except self._failures as error:
            raise self._error(error, "put", path) from error
        self._check_tag(result["e_tag"], "put", path)
        self._see(result["e_tag"], data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        what = f"{path} in {self._where}"
        try:
            # The answer's head comes first: what is too large is refused before its body is read.
            result = self._obstore.get(self._store(), path, options=_range(offset, length))
            self._check_no_page(result, what)
            start, end = result.range
            count = count_bytes(result.meta["size"], offset, length, max_bytes, what)
            data = _body(result, count) if (start, end - start) == (offset, count) else None
        except self._failures as error:
            if begins_behind(error):
                return b""
            raise self._error(error, "get", path) from error
        if data is None or len(data) != count:
            raise BackendError(f"cannot get {what}: the answer holds another part than was asked for")
        if offset == 0 and count == result.meta["size"]:
            self._see(result.meta["e_tag"], data)
        return data

    def stat(self, path: str) -> int:
        return int(self._head(path, "stat")["size"])

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        try:
            found = self._obstore.list_with_delimiter(self._store(), path or None)
        except self._failures as error:
            raise self._error(error, "list", path or ".") from error
        entries = [Listed(_last(prefix), None) for prefix in found["common_prefixes"]]
        entries += [Listed(_last(meta["path"]), meta["size"]) for meta in found["objects"]]
        return tuple(sorted((entry for entry in entries if is_name(entry.name)), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        split_path(path)
        try:
            self._obstore.delete(self._store(), path)
        except self._failures as error:
            failed = self._error(error, "delete", path)
            if not isinstance(failed, NotFoundError):
                raise failed from error

    def identity(self) -> bytes:
        return self._identity

    def close(self) -> None:
        self._closed = True
        self._stores.clear()

    def probe(self) -> LogForm:
        """The form, or "none" if the server broke `create`'s promise in a probe (`race_probe.keeps_creates`)."""
        try:
            return self.form if keeps_creates(self) else "none"
        except BackendError as error:
            if isinstance(error.__cause__, NotImplementedError) or status_of(error.__cause__) == 501:
                return "none"
            raise

    def _head(self, path: str, verb: str) -> Any:
        """What the store says of an object without its bytes."""
        split_path(path)
        try:
            return self._meta(self._obstore.get(self._store(), path, options={"head": True}), path)
        except self._failures as error:
            if not 400 <= (status_of(error) or 0) < 500:
                raise self._error(error, verb, path) from error
        try:
            # A refused HEAD has no body, and so does not say whether the object, the bucket or the key is wrong.
            return self._meta(self._obstore.get(self._store(), path), path)
        except self._failures as error:
            raise self._error(error, verb, path) from error

    def _meta(self, result: Any, path: str) -> Any:
        self._check_no_page(result, f"{path} in {self._where}")
        return result.meta

    def _check_no_page(self, result: Any, what: str) -> None:
        """A login page comes with status 200, and to an http:// endpoint it can come. Our objects are never HTML."""
        if str(result.attributes.get("Content-Type", "")).startswith("text/html"):
            raise self._other_server(f"cannot get {what}")

    def _check_tag(self, e_tag: str | None, verb: str, path: str) -> None:
        """A login page that obstore takes for success, because a write was redirected to it, has another kind of tag.

        Only a plain line beyond this machine can lead there.
        """
        if self._may_be_another and self.dialect.tag.fullmatch(e_tag or "") is None:
            raise self._other_server(f"cannot {verb} {path} in {self._where}")

    def _other_server(self, attempt: str) -> UnreachableError:
        said = f"{attempt}: what answered is not the {self.dialect.server} server"
        return UnreachableError(said, next_step="Log in to the network.")

    def _see(self, e_tag: str | None, data: bytes) -> None:
        """Notes a whole object and its tag. Here tags mean nothing."""

    def _store(self, up_bytes: int = 0) -> Any:
        """The store of obstore's: one for large writes, which may stay without an answer for long; one for all else.

        Small requests and large answers share connections, because a new one costs a round trip.
        """
        assert not self._closed, "the backend was closed"
        if _process and _process[0] != os.getpid():
            raise RefusedError(
                f"cannot use {self._where}: this process was forked from one that uses such a store itself",
                next_step='Start processes anew: multiprocessing.set_start_method("spawn").',
            )
        large = up_bytes > SMALL_BYTES_MAX
        with self._making:
            store = self._stores.get(large)
            if store is None:
                store = self._stores[large] = self._made(None if large else SMALL_TIMEOUT_S)
            return store

    def _made(self, silent_timeout_s: int | None) -> Any:
        _process[:] = _process or [os.getpid()]
        client_options = {
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=LARGE_TIMEOUT_S),
            "allow_http": self._url.startswith("http://"),
        }
        if silent_timeout_s is not None:
            client_options["read_timeout"] = timedelta(seconds=silent_timeout_s)
        retry_config = {"max_retries": 0, "retry_timeout": timedelta(seconds=LARGE_TIMEOUT_S)}
        try:
            kind = getattr(self._obstore.store, self.store)
            return kind(**self._options, client_options=client_options, retry_config=retry_config)
        except self._failures:
            # What it says of its settings may quote one, such as a key that is not in base64.
            raise RefusedError(
                f"cannot open {self._where}: a key, or another setting for it, is not in the right form",
                next_step=self.dialect.keys,
            ) from None

    def _error(self, error: BaseException, verb: str, path: str) -> BackendError:
        return backend_error(error, verb, path, self._where, self.dialect)


class TagsAreDigests(ObjectStoreBackend):
    """A store whose ETag is an object's MD5, unless the object was made of parts, or is encrypted with other keys.

    The tag of an encrypted object looks like an MD5, and obstore does not show the encryption. So tags count once one
    was seen to be the MD5 of bytes that passed through here, and never again after one was not. What a process reads
    first is small, so it has seen some tags before it asks for a digest.
    """

    digest_kind: ClassVar[DigestKind] = "md5"
    _seen_right = _seen_wrong = False

    def digest(self, path: str) -> Digest:
        meta = self._head(path, "digest")
        match = _MD5_TAG.fullmatch(meta["e_tag"] or "") if self._seen_right and not self._seen_wrong else None
        return Digest(int(meta["size"]), bytes.fromhex(match[1]) if match else None)

    def _see(self, e_tag: str | None, data: bytes) -> None:
        if self._seen_wrong or len(data) > _TRIED_BYTES_MAX:
            return
        match = _MD5_TAG.fullmatch(e_tag or "")
        if match is not None and match[1] == hashlib.md5(data, usedforsecurity=False).hexdigest():
            self._seen_right = True
        else:
            self._seen_wrong = True


def _range(offset: int, length: int | None) -> Any:
    if length is not None:
        return {"range": (offset, offset + length)}
    return {"range": {"offset": offset}} if offset else None


def _body(result: Any, count: int) -> bytes | None:
    """The body, None if it is longer than its head said. A server that goes on sending must not fill our memory."""
    data = b""
    for chunk in result.stream(min_chunk_size=max(1, count)):
        data = data + chunk if data else chunk
        if len(data) > count:
            return None
    return data


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
