"""Google Cloud Storage: `gcs://bucket/prefix?endpoint=...`.

The client speaks Google's XML API. `create` is a PUT with x-goog-if-generation-match: 0, and 412 means that the name is
taken. The ETag of an object that was stored in one piece is its MD5, as Google documents for this API; it counts as a
digest once that was seen to hold (`TagsAreDigests`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from metasync.backends._base import BackendUrl, LogForm
from metasync.backends._gcs_keys import KEYS_STEP, read_credentials
from metasync.backends._names import native_identity
from metasync.backends._object_answers import Dialect
from metasync.backends._object_store import TagsAreDigests, check_not_readable, endpoint_of, is_own_host, prefix_of
from metasync.errors import UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_URL = "https://storage.googleapis.com"
_GOOGLE = ".googleapis.com"

_DIALECT = Dialect(
    server="Google Cloud Storage",
    place="bucket",
    keys=KEYS_STEP,
    codes={
        "NoSuchKey": "absent",
        "NoSuchBucket": "no place",
        "AuthenticationRequired": "key",
        "ExpiredToken": "key",
        "InvalidSecurity": "key",
        "InvalidToken": "key",
        "SignatureDoesNotMatch": "key",
        "AccessDenied": "right",
        "AccountProblem": "right",
        "ObjectUnderActiveHold": "right",
        "RetentionPolicyNotMet": "right",
        "UserProjectMissing": "right",
        "RequestTimeTooSkewed": "clock",
        "EntityTooLarge": "large",
        "KeyTooLong": "large",
        "RateLimitExceeded": "slower",
        "ServiceUnavailable": "slower",
        "SlowDown": "slower",
        "BadDigest": "again",  # what arrived is not what was sent
        "IncompleteBody": "again",
        "InternalError": "again",
        "OperationAborted": "again",
        "RequestTimeout": "again",
    },
)


class GcsBackend(TagsAreDigests):
    """A prefix of a bucket."""

    scheme: ClassVar[str] = "gcs"
    dialect: ClassVar[Dialect] = _DIALECT
    url_params: ClassVar[frozenset[str]] = frozenset({"endpoint"})

    def __init__(self, bucket: str, prefix: str, *, endpoint: str, credentials: Mapping[str, str] | None) -> None:
        """`endpoint` "" is Google's own. `credentials` as of `read_credentials`; None: none are shown to the server."""
        where = f"gcs://{bucket}/{prefix}" if prefix else f"gcs://{bucket}"
        url = endpoint or _URL
        super().__init__(
            f"{where} at {endpoint}" if endpoint else where, native_identity(url.lower(), f"{bucket}/{prefix}"), url
        )
        self._options: dict[str, Any] = {"bucket": bucket, "prefix": prefix or None, "base_url": url}
        if credentials is None:
            # Without a provider it would look for credentials and send them, whatever `skip_signature` says.
            self._options |= {"skip_signature": True, "credential_provider": _nobody}
        else:
            self._options |= {"skip_signature": False, **credentials}

    def _new_store(self, client_options: Any, retry_config: Any) -> Any:
        from obstore.store import GCSStore

        return GCSStore(**self._options, client_options=client_options, retry_config=retry_config)

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
        """A prefix needs no making, and a bucket is not ours to make: `create_root` changes nothing.

        What opens Google's buckets opens much else at Google, so no other server gets to see it.
        """
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


def _nobody() -> dict[str, Any]:
    return {"token": "", "expires_at": None}
