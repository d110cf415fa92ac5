"""S3 and what speaks its language: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=...&profile=...`.

The client is obstore: no retries of its own as set up here, 0.16 ms of CPU a request, and the GIL given back while it
waits. It reads `AWS_*` variables by itself wherever an option is left open, so all that decides where a request goes,
how `create` is made safe, and with which key, is given to it: an `AWS_CONDITIONAL_PUT=disabled` or a left-over
`AWS_SESSION_TOKEN` in the environment must not reach the store behind our back.

`create` is PutObject with If-None-Match: *. 412 alone means that the name is taken; obstore raises the same exception
for every 409, which means "in conflict right now, ask again" (PROVIDERS 2).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from metasync.backends._base import BackendUrl, Listed, LogForm
from metasync.backends._names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.backends._s3_answers import backend_error, status_of
from metasync.backends._s3_keys import read_keys
from metasync.errors import BackendError, NotFoundError, UnreachableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import S3Store

_CONNECT_TIMEOUT_S = 5
_SMALL_TIMEOUT_S = 60
# A whole pack of 16 MiB at 0.25 Mbit/s: slower lines than that are not waited for.
_LARGE_TIMEOUT_S = 600
_SMALL_BYTES_MAX = 1 << 18

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()~+=@,: -]+(/[A-Za-z0-9!_.*'()~+=@,: -]+)*")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
# Where nothing says that two racing creates cannot both win (PROVIDERS 2).
_STORAGE_ONLY_HOSTS = (".backblazeb2.com",)

_PROBE_NAMES = 4
_PROBE_WRITERS = 8


class S3Backend:
    """A prefix of a bucket. It makes no request before the first call, and keeps its connections until `close`."""

    scheme: ClassVar[str] = "s3"
    form: ClassVar[LogForm] = "log"
    url_params: ClassVar[frozenset[str]] = frozenset({"endpoint", "region", "profile"})

    def __init__(self, bucket: str, prefix: str, *, endpoint: str, region: str, profile: str | None = None) -> None:
        """`endpoint` "" is Amazon's own. `RefusedError` if there are no credentials for it."""
        import obstore
        from obstore.store import S3Store

        self._obstore: ModuleType = obstore
        self._failures = (obstore.exceptions.BaseError, OSError, NotImplementedError, ValueError)
        self._where = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        if endpoint:
            self._where += f" at {endpoint}"
        self._identity = native_identity(endpoint.lower() or "s3.amazonaws.com", f"{bucket}/{prefix}")
        keys = read_keys(os.environ, profile)
        url = endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"

        def store(timeout_s: int) -> S3Store:
            return S3Store(
                bucket,
                prefix=prefix or None,
                endpoint=url,
                aws_endpoint_url_s3=url,
                region=region,
                virtual_hosted_style_request=False,
                conditional_put="etag",
                skip_signature=False,
                disable_bulk_delete=True,  # one plain DELETE; not every store knows the other way
                client_options={
                    "allow_http": url.startswith("http://"),
                    "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
                    "timeout": timedelta(seconds=timeout_s),
                },
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
                credential_provider=None if keys is None else (lambda: keys),
            )

        self._new_store = store
        self._stores: dict[int, S3Store] = {}  # by time-out; each takes 4 ms to make, and many a process needs but one
        self._making = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        params = dict(url.params)
        prefix = url.path.strip("/")
        if _BUCKET.fullmatch(url.host) is None:
            raise UsageError("an S3 URL begins with the name of a bucket", next_step="Write s3://bucket/prefix.")
        if prefix and (_PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/"))):
            raise UsageError(
                f"not a prefix for objects: {prefix[:80]!r}", next_step="Write s3://bucket/prefix with a plain prefix."
            )
        if _REGION.fullmatch(params.get("region", "us-east-1")) is None:
            raise UsageError(f"not a region: {params['region'][:40]!r}", next_step="Write region=eu-central-1, say.")
        if "endpoint" in params:
            _check_endpoint(params["endpoint"])

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> S3Backend:
        """A prefix needs no making, and a bucket is not ours to make: `create_root` changes nothing."""
        params = dict(url.params)
        endpoint = params.get("endpoint", "").rstrip("/")
        host = (urlsplit(endpoint).hostname or "") if endpoint else ""
        kind = StorageOnlyS3Backend if f".{host}".endswith(_STORAGE_ONLY_HOSTS) else S3Backend
        region = params.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return kind(
            url.host,
            url.path.strip("/"),
            endpoint=endpoint,
            region=region or "us-east-1",
            profile=params.get("profile"),
        )

    def create(self, path: str, data: bytes) -> bool:
        split_path(path)
        try:
            self._obstore.put(self._store(len(data)), path, data, mode="create", use_multipart=False)
        except self._failures as error:
            if status_of(error) == 412:
                return False
            failed = self._error(error, "create", path)
            if isinstance(failed, UnreachableError) and len(data) > _SMALL_BYTES_MAX and self._is_there(path):
                return False
            raise failed from error
        return True

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        try:
            # In parts would be three requests and more, and not durable before the last: a pack fits one.
            self._obstore.put(self._store(len(data)), path, data, mode="overwrite", use_multipart=False)
        except self._failures as error:
            raise self._error(error, "put", path) from error

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        what = f"{path} in {self._where}"
        store = self._store(max_bytes if length is None else min(length, max_bytes))
        try:
            # The answer's head comes first: what is too large is refused before its body is read.
            result = self._obstore.get(store, path, options=_range(offset, length))
            _check_no_page(result, what)
            start, end = result.range
            count = count_bytes(result.meta["size"], offset, length, max_bytes, what)
            data = _body(result, count) if (start, end - start) == (offset, count) else None
        except self._failures as error:
            if status_of(error) == 416:  # begins at or behind the end
                return b""
            raise self._error(error, "get", path) from error
        if data is None or len(data) != count:
            raise BackendError(f"cannot get {what}: the answer holds another part than was asked for")
        return data

    def stat(self, path: str) -> int:
        split_path(path)
        try:
            return _size(self._obstore.get(self._store(0), path, options={"head": True}), f"{path} in {self._where}")
        except self._failures as error:
            if not 400 <= (status_of(error) or 0) < 500:
                raise self._error(error, "stat", path) from error
        return self._size_by_get(path)

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        try:
            found = self._obstore.list_with_delimiter(self._store(0), path or None)
        except self._failures as error:
            raise self._error(error, "list", path or ".") from error
        entries = [Listed(_last(prefix), None) for prefix in found["common_prefixes"]]
        entries += [Listed(_last(meta["path"]), meta["size"]) for meta in found["objects"]]
        return tuple(sorted((entry for entry in entries if is_name(entry.name)), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        split_path(path)
        try:
            self._obstore.delete(self._store(0), path)
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
        """Whether the server keeps `create`'s promise: "none" if it was seen to break it, else what is allowed anyway.

        Creates a scratch object twice, lets eight threads race for four more, and deletes them all. It can only
        disprove: nginx's MOVE stood 200 such races before it failed (PROVIDERS 1.4).
        """
        names = [f"probe-{os.urandom(12).hex()}" for _ in range(1 + _PROBE_NAMES)]
        try:
            kept = self.create(names[0], b"first") and not self.create(names[0], b"second")
            if not kept or self.get(names[0], max_bytes=64) != b"first":
                return "none"
            for name in names[1:]:
                if _winners(self.create, name) > 1:
                    return "none"
        except BackendError as error:
            if isinstance(error.__cause__, NotImplementedError) or status_of(error.__cause__) == 501:
                return "none"
            raise
        finally:
            for name in names:
                with contextlib.suppress(BackendError):  # what is left over is 25 bytes under a name of its own
                    self.delete(name)
        return self.form

    def _is_there(self, path: str) -> bool:
        """After a large create that broke off. A server may say 412 before the body is through and close: 18 to 30 of

        100 creates of 4 to 16 MiB over a taken name then end in "connection reset" (versitygw 1.8), and no answer.
        """
        try:
            self.stat(path)
        except BackendError:
            return False
        return True

    def _size_by_get(self, path: str) -> int:
        # A refused HEAD has no body, and so does not say whether the object, the bucket or the key is wrong.
        try:
            return _size(self._obstore.get(self._store(0), path), f"{path} in {self._where}")
        except self._failures as error:
            raise self._error(error, "stat", path) from error

    def _store(self, size_bytes: int) -> S3Store:
        assert not self._closed, "the backend was closed"
        timeout_s = _SMALL_TIMEOUT_S if size_bytes <= _SMALL_BYTES_MAX else _LARGE_TIMEOUT_S
        with self._making:
            store = self._stores.get(timeout_s)
            if store is None:
                store = self._stores[timeout_s] = self._new_store(timeout_s)
            return store

    def _error(self, error: BaseException, verb: str, path: str) -> BackendError:
        return backend_error(error, verb, path, self._where)


class StorageOnlyS3Backend(S3Backend):
    """A service whose conditional writes nobody vouches for."""

    form: ClassVar[LogForm] = "none"
    form_reason: ClassVar[str] = "nobody vouches that two racing creates cannot both win on this service"


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "the endpoint of an S3 URL is not the address of a server, or holds more than that",
            next_step="Write endpoint=https://host:port, without user, password or parameters.",
        )


def _range(offset: int, length: int | None) -> Any:
    if length is not None:
        return {"range": (offset, offset + length)}
    return {"range": {"offset": offset}} if offset else None


def _check_no_page(result: Any, what: str) -> None:
    """A network's login page comes with status 200, and to an http:// endpoint it can come. Ours are never HTML."""
    if str(result.attributes.get("Content-Type", "")).startswith("text/html"):
        raise UnreachableError(
            f"cannot get {what}: what answered is not the S3 server", next_step="Log in to the network."
        )


def _size(result: Any, what: str) -> int:
    _check_no_page(result, what)
    return int(result.meta["size"])


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


def _winners(create: Callable[[str, bytes], bool], name: str) -> int:
    together = threading.Barrier(_PROBE_WRITERS)
    outcomes: list[bool] = []

    def race(writer: int) -> None:
        together.wait()
        try:
            outcomes.append(create(name, bytes([writer])))
        except BackendError:  # unknown: it counts neither for nor against the server
            return

    writers = [threading.Thread(target=race, args=(number,)) for number in range(_PROBE_WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return sum(outcomes)
