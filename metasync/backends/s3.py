"""S3 and what speaks its language: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=...&profile=...`.

`create` is PutObject with If-None-Match: *. 412 alone means that the name is taken; obstore raises the same exception
for every 409, which means "in conflict right now, ask again" (PROVIDERS 2).
"""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar
from urllib.parse import urlsplit

from metasync.backends._base import BackendUrl, LogForm
from metasync.backends._names import native_identity
from metasync.backends._object_answers import Dialect
from metasync.backends._object_store import TagsAreDigests, endpoint_of, is_own_host, prefix_of
from metasync.backends._s3_keys import provider, read_region
from metasync.errors import RefusedError, UsageError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
# Who vouches that of two racing creates only one wins (PROVIDERS 2): Amazon and Cloudflare document the condition,
# MinIO and versitygw check and write under one lock and stood the races, Ceph documents it.
_SOUND_HOSTS = (*_AMAZON, ".r2.cloudflarestorage.com")
_SOUND_SERVERS = frozenset({"minio", "ceph", "versitygw"})
_OTHER_SERVERS = frozenset({"b2", "garage", "seaweedfs", "other"})

_DIALECT = Dialect(
    server="S3",
    place="bucket",
    keys=(
        "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile in ~/.aws/credentials;"
        " and that they belong to this endpoint."
    ),
    tag=re.compile(r'"?[0-9A-Fa-f]{32}(-[0-9]+)?"?'),
    elsewhere="the bucket is in another region",
    elsewhere_step="Name the bucket's region in the URL: &region=eu-central-1, say.",
    codes={
        "NoSuchKey": "absent",
        "NoSuchBucket": "no place",
        "InvalidAccessKeyId": "key",
        "SignatureDoesNotMatch": "key",
        "ExpiredToken": "key",
        "InvalidToken": "key",
        "TokenRefreshRequired": "key",
        "XAdminUserNotFound": "key",
        "InvalidSecurity": "key",
        "NotSignedUp": "key",
        "RequestTimeTooSkewed": "clock",
        "PermanentRedirect": "elsewhere",
        "AuthorizationHeaderMalformed": "elsewhere",
        "IllegalLocationConstraintException": "elsewhere",
        "QuotaExceeded": "full",  # Ceph, versitygw: 403
        "StorageQuotaExceeded": "full",
        "ObjectQuotaExceeded": "full",  # NooBaa
        "XMinioAdminBucketQuotaExceeded": "full",  # MinIO: 400
        "XMinioStorageFull": "full",  # MinIO: 507, 500 in old ones
        "InsufficientStorage": "full",
        "StorageFull": "full",
        "EntityTooLarge": "large",
        "KeyTooLongError": "large",
        "MaxMessageLengthExceeded": "large",
        "SlowDown": "slower",
        "SlowDownRead": "slower",
        "SlowDownWrite": "slower",
        "ServiceUnavailable": "slower",
        "TooManyRequests": "slower",
        "RequestLimitExceeded": "slower",
        "RequestTimeout": "again",
        "InternalError": "again",
        "OperationAborted": "again",
        "IncompleteBody": "again",
        "InvalidObjectState": "never",  # moved to an archive class
        "BadDigest": "again",  # what arrived is not what was sent
        "XAmzContentSHA256Mismatch": "again",
    },
)


class S3Backend(TagsAreDigests):
    """A prefix of a bucket, on a server whose `create` somebody vouches for."""

    scheme: ClassVar[str] = "s3"
    dialect: ClassVar[Dialect] = _DIALECT
    url_params: ClassVar[frozenset[str]] = frozenset({"endpoint", "region", "profile", "server", "virtual"})

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        endpoint: str,
        region: str,
        profile: str | None = None,
        virtual: bool = False,
    ) -> None:
        """`endpoint` "" is Amazon's own. `virtual`: the bucket is part of the host's name.

        `RefusedError` if there are no credentials for it.
        """
        where = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        url = endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
        super().__init__(
            f"{where} at {endpoint}" if endpoint else where,
            native_identity(endpoint.lower() or "s3.amazonaws.com", f"{bucket}/{prefix}"),
            url.replace("://", f"://{bucket}.", 1) if virtual else url,
        )
        self._keys = provider(os.environ, profile, _host(url)[1:])
        self._options: dict[str, Any] = {
            "bucket": bucket,
            "prefix": prefix or None,
            "region": region,
            "endpoint": self._url,
            "aws_endpoint_url_s3": self._url,
            "virtual_hosted_style_request": virtual,
            "conditional_put": "etag",
            "skip_signature": False,
            "unsigned_payload": False,  # what arrives damaged is to be refused
            "s3_express": False,
            "disable_bulk_delete": True,  # one plain DELETE; not every store knows the other way
        }
        if _host(url).endswith(_AMAZON):
            # The hash is made for the signature anyway. Elsewhere a server may refuse what it does not know;
            # AWS_CHECKSUM_ALGORITHM asks for it all the same.
            self._options["checksum_algorithm"] = "SHA256"

    def _new_store(self, client_options: Any, retry_config: Any) -> Any:
        from obstore.store import S3Store

        return S3Store(
            **self._options, client_options=client_options, retry_config=retry_config, credential_provider=self._keys
        )

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        params = dict(url.params)
        if _BUCKET.fullmatch(url.host) is None:
            raise UsageError("an S3 URL begins with the name of a bucket", next_step="Write s3://bucket/prefix.")
        prefix_of(url)
        if _REGION.fullmatch(params.get("region", "us-east-1")) is None:
            raise UsageError(f"not a region: {params['region'][:40]!r}", next_step="Write region=eu-central-1, say.")
        if params.get("server", "other") not in _SOUND_SERVERS | _OTHER_SERVERS:
            raise UsageError(
                f"no S3 server is called {params['server'][:40]!r}",
                next_step=f"Known: {', '.join(sorted(_SOUND_SERVERS | _OTHER_SERVERS))}.",
            )
        if params.get("virtual", "1") not in {"0", "1"}:
            raise UsageError("virtual is 1 or 0", next_step="Write virtual=1 where the bucket belongs into the host.")
        endpoint_of(url, "an S3")

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> S3Backend:
        """A prefix needs no making, and a bucket is not ours to make: `create_root` changes nothing."""
        params = dict(url.params)
        endpoint = endpoint_of(url, "an S3")
        region = params.get("region") or read_region(os.environ, params.get("profile")) or "us-east-1"
        if _REGION.fullmatch(region) is None:
            raise RefusedError(
                f"what the environment or the S3 profile names is no region: {region[:40]!r}",
                next_step="Correct AWS_REGION, AWS_DEFAULT_REGION or the profile, or write &region= in the URL.",
            )
        return _kind(_host(endpoint), params.get("server"))(
            url.host,
            prefix_of(url),
            endpoint=endpoint,
            region=region,
            profile=params.get("profile"),
            virtual=params.get("virtual") == "1",
        )


class StorageOnlyS3Backend(S3Backend):
    """A service whose conditional writes nobody vouches for."""

    form: ClassVar[LogForm] = "none"
    form_reason: ClassVar[str] = (
        "nobody vouches that two racing creates cannot both win on this service; if MinIO, Ceph or versitygw answers at"
        " this address, say so in the URL: &server=minio, &server=ceph, &server=versitygw"
    )


def _kind(host: str, server: str | None) -> type[S3Backend]:
    if server is not None:
        return S3Backend if server in _SOUND_SERVERS else StorageOnlyS3Backend
    return S3Backend if not host or host.endswith(_SOUND_HOSTS) or is_own_host(host) else StorageOnlyS3Backend


def _host(url: str) -> str:
    """The host of an address as `.host.name`, so that an ending of it can be told; "" for none."""
    host = urlsplit(url).hostname
    return f".{host}" if host else ""
