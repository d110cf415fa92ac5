"""Google Cloud Storage: `gcs://bucket/prefix?endpoint=...`, by Google's XML API.

`create` is a PUT with x-goog-if-generation-match: 0, and 412 means that the name is taken. The ETag of an object that
was stored in one piece is its MD5, as Google documents for this API (`TagsAreDigests`).

Credentials are Google's application default credentials, from the variables and files of Google's own tools, in their
order (`_shared.tokens_google`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from metasync.backends._shared.credentials import runs_in, sendable
from metasync.backends._shared.object_errors import Dialect, by_code
from metasync.backends._shared.object_store import (
    Query,
    Request,
    TagsAreDigests,
    check_not_readable,
    endpoint_of,
    is_own_host,
)
from metasync.backends._shared.urls import prefix_of
from metasync.backends.api import BackendUrl, LogForm
from metasync.errors import RefusedError, UsageError

KEYS_STEP = (
    "Check GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login` again; the account needs to"
    " read, write, list and delete objects of this bucket, and this machine's clock has to be right."
)

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_URL = "https://storage.googleapis.com"
_GOOGLE = ".googleapis.com"

_DIALECT = Dialect(
    server="Google Cloud Storage",
    place="bucket",
    keys=KEYS_STEP,
    codes=by_code(
        {
            "absent": "NoSuchKey",
            "no place": "NoSuchBucket",
            "key": "AuthenticationRequired ExpiredToken InvalidSecurity InvalidToken SignatureDoesNotMatch",
            "right": "AccessDenied AccountProblem ObjectUnderActiveHold RetentionPolicyNotMet UserProjectMissing",
            "clock": "RequestTimeTooSkewed",
            "large": "EntityTooLarge KeyTooLong",
            "slower": "RateLimitExceeded ServiceUnavailable SlowDown",
            # the first: what arrived is not what was sent
            "again": "BadDigest IncompleteBody InternalError OperationAborted RequestTimeout",
        }
    ),
)


class GcsBackend(TagsAreDigests):
    """A prefix of a bucket."""

    scheme: ClassVar[str] = "gcs"
    if_free: ClassVar[tuple[str, str]] = ("x-goog-if-generation-match", "0")
    dialect: ClassVar[Dialect] = _DIALECT
    url_params: ClassVar[frozenset[str]] = frozenset({"endpoint"})

    def __init__(self, bucket: str, prefix: str, *, endpoint: str, credentials: Mapping[str, str] | None) -> None:
        """`endpoint` "" is Google's own. `credentials` as of `read_credentials`; None: none are shown to the server."""
        url = endpoint or _URL
        parts = urlsplit(url)
        self._token: Callable[[], Any] | None = None
        if credentials is not None:
            from metasync.backends._shared.tokens_google import google_tokens

            self._token = google_tokens(credentials, os.environ, KEYS_STEP)
        server, root = f"{parts.scheme}://{parts.netloc}", f"{parts.path.rstrip('/')}/{bucket}"
        super().__init__(bucket, prefix, server, root, at=f" at {endpoint}" if endpoint else "", scope=url.lower())

    def signed(self, request: Request) -> tuple[str, Mapping[str, str]]:
        path = quote(request.path, safe="/-_.~")
        query = urlencode(request.query, quote_via=quote)
        headers = dict(request.headers)
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token()}"
        return f"{path}?{query}" if query else path, headers

    def listing(self, prefix: str, following: str) -> Query:
        pairs = {"list-type": "2", "delimiter": "/", "prefix": prefix, "continuation-token": following}
        return [(name, value) for name, value in pairs.items() if value]

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        if _BUCKET.fullmatch(url.host) is None:
            raise UsageError(
                "a Google Cloud Storage URL begins with the name of a bucket", next_step="Write gcs://bucket/prefix."
            )
        prefix_of(url)
        endpoint_of(url, "a Google Cloud Storage")

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> GcsBackend:
        """Credentials of Google's open much else there, so no other server gets them. `create_root` changes nothing."""
        endpoint = endpoint_of(url, "a Google Cloud Storage")
        host = f".{urlsplit(endpoint or _URL).hostname}"
        credentials = None
        if host.endswith(_GOOGLE):
            check_not_readable(endpoint, "a token of Google's")
            credentials = read_credentials(os.environ)
        kind = GcsBackend if host.endswith(_GOOGLE) or is_own_host(host) else StorageOnlyGcsBackend
        return kind(url.host, prefix_of(url), endpoint=endpoint, credentials=credentials)


class StorageOnlyGcsBackend(GcsBackend):
    """A server of somebody's that speaks as Google does."""

    form: ClassVar[LogForm] = "none"
    form_reason: ClassVar[str] = (
        "nobody vouches that two racing creates cannot both win on a server other than Google's"
    )


_TYPES = {"service_account", "authorized_user"}
_FILE_BYTES_MAX = 1 << 20


def read_credentials(
    environ: Mapping[str, str], *, in_cloud: Callable[[], bool] = lambda: runs_in("gcs")
) -> dict[str, str]:
    """What opens buckets; empty if the machine is asked for a token. `RefusedError` if there is nothing that can."""
    if environ.get("GOOGLE_BEARER_TOKEN"):
        return {"bearer_token": sendable(environ["GOOGLE_BEARER_TOKEN"], "GOOGLE_BEARER_TOKEN")}
    account = environ.get("GOOGLE_SERVICE_ACCOUNT") or environ.get("GOOGLE_SERVICE_ACCOUNT_PATH")
    key = environ.get("GOOGLE_SERVICE_ACCOUNT_KEY")
    if account and key:
        raise RefusedError(
            "GOOGLE_SERVICE_ACCOUNT and GOOGLE_SERVICE_ACCOUNT_KEY are both set, and only one can count",
            next_step="Unset one of them.",
        )
    if key:
        _check_json(key, "GOOGLE_SERVICE_ACCOUNT_KEY", {"service_account"})
        return {"service_account_key": key}
    if account:
        _check_file(account, {"service_account"})
        return {"service_account": account}
    path = environ.get("GOOGLE_APPLICATION_CREDENTIALS") or _gclouds_file(environ)
    if path:
        _check_file(path, _TYPES)
        return {"application_credentials": path}
    if environ.get("GCE_METADATA_HOST") or environ.get("K_SERVICE") or in_cloud():
        return {}
    raise RefusedError(
        "no credentials for Google Cloud Storage",
        next_step=(
            "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key, or run"
            " `gcloud auth application-default login`."
        ),
    )


def _gclouds_file(environ: Mapping[str, str]) -> str:
    """Where `gcloud auth application-default login` leaves a login; "" without one."""
    folder = environ.get("CLOUDSDK_CONFIG") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".config/gcloud"
    )
    path = os.path.join(folder, "application_default_credentials.json")
    return path if os.path.isfile(path) else ""


def _check_file(path: str, types: set[str]) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RefusedError(f"cannot read Google's credentials in {path}: {why}", next_step=KEYS_STEP) from None
    _check_json(text, path, types)


def _check_json(text: str, where: str, types: set[str]) -> None:
    try:
        content = json.loads(text)
    except ValueError:  # its text would quote what it stumbled on, which may be the key
        content = None
    kind = content.get("type", "service_account") if isinstance(content, dict) else None
    if kind not in types:
        found = f"of the type {str(kind)[:40]!r}" if kind is not None else "not in JSON"
        raise RefusedError(
            f"Google's credentials in {where} are {found}, which cannot be used here",
            next_step="Use the key of a service account, or `gcloud auth application-default login`.",
        )
