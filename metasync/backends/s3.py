"""S3 and what speaks its language: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=...&profile=...`.

`create` is PutObject with If-None-Match: *. Only 412 means that the name is taken; a 409 means "in conflict right now,
ask again" (providers.md, section 2). The access key comes from the AWS variables, the shared credentials file, the
keyring, or the machine (`_shared.tokens`).
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from metasync.backends._shared.credentials import from_keyring, runs_in, sendable
from metasync.backends._shared.object_errors import Dialect, by_code
from metasync.backends._shared.object_store import Query, Request, TagsAreDigests, endpoint_of, is_own_host
from metasync.backends._shared.sigv4 import NOTHING, authorization, encoded_path, encoded_query
from metasync.backends._shared.urls import prefix_of
from metasync.backends.api import BackendUrl, LogForm
from metasync.errors import RefusedError, UsageError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
# Who vouches that of two racing creates only one wins (providers.md, section 2): Amazon and Cloudflare document the
# condition, MinIO and versitygw check and write under one lock and stood the races, Ceph documents it.
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
    codes=by_code(
        {
            "absent": "NoSuchKey",
            "no place": "NoSuchBucket",
            "key": "InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken InvalidToken TokenRefreshRequired"
            " XAdminUserNotFound InvalidSecurity NotSignedUp",
            "clock": "RequestTimeTooSkewed",
            "elsewhere": "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException",
            # Ceph and versitygw, 403; NooBaa; MinIO, 400, 507, and 500 in old ones
            "full": "QuotaExceeded StorageQuotaExceeded ObjectQuotaExceeded XMinioAdminBucketQuotaExceeded"
            " XMinioStorageFull InsufficientStorage StorageFull",
            "large": "EntityTooLarge KeyTooLongError MaxMessageLengthExceeded",
            "slower": "SlowDown SlowDownRead SlowDownWrite ServiceUnavailable TooManyRequests RequestLimitExceeded",
            # the last two: what arrived is not what was sent
            "again": "RequestTimeout InternalError OperationAborted IncompleteBody BadDigest XAmzContentSHA256Mismatch",
            "never": "InvalidObjectState",  # moved to an archive class
        }
    ),
)


class S3Backend(TagsAreDigests):
    """A prefix of a bucket, on a server whose `create` somebody vouches for."""

    scheme: ClassVar[str] = "s3"
    dialect: ClassVar[Dialect] = _DIALECT
    if_free: ClassVar[tuple[str, str]] = ("if-none-match", "*")
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
        url = endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
        server = url.replace("://", f"://{bucket}.", 1) if virtual else url
        at, scope = f" at {endpoint}" if endpoint else "", endpoint.lower() or "s3.amazonaws.com"
        self._checksum = _has_checksum(_host(url))
        self._region = region
        self._keys = provider(os.environ, profile, _host(url)[1:]) or _of_machine(region)
        parts = urlsplit(server)
        base = parts.path.rstrip("/")
        root = base if virtual else f"{base}/{bucket}"
        super().__init__(bucket, prefix, f"{parts.scheme}://{parts.netloc}", root, at=at, scope=scope)

    def signed(self, request: Request) -> tuple[str, Mapping[str, str]]:
        keys = self._keys()
        headers = {
            **request.headers,
            "host": self._wire.host,
            "x-amz-content-sha256": hashlib.sha256(request.body).hexdigest() if request.body else NOTHING,
            "x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
        }
        if keys["token"]:
            headers["x-amz-security-token"] = keys["token"]
        if self._checksum and request.method == "PUT":
            digest = base64.b64encode(bytes.fromhex(headers["x-amz-content-sha256"])).decode("ascii")
            headers["x-amz-checksum-sha256"] = digest
        path, query = encoded_path(request.path or "/"), encoded_query(request.query)
        who = {"key_id": keys["access_key_id"], "secret": keys["secret_access_key"], "region": self._region}
        headers["authorization"] = authorization(request.method, path, query, headers, **who)
        del headers["host"]  # the wire sends it
        return f"{path}?{query}" if query else path, headers

    def listing(self, prefix: str, following: str) -> Query:
        return (
            ("list-type", "2"), ("delimiter", "/"), ("prefix", prefix),
            *([("continuation-token", following)] if following else []),
        )  # fmt: skip

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


def _has_checksum(host: str) -> bool:
    """Whether a put says its SHA-256 to be kept with the object: to Amazon, and where AWS_CHECKSUM_ALGORITHM asks.

    The hash is made for the signature anyway. Elsewhere a server may refuse a header that it does not know.
    """
    asked = os.environ.get("AWS_CHECKSUM_ALGORITHM", "")
    if asked.lower() not in {"", "sha256"}:
        raise RefusedError(
            "AWS_CHECKSUM_ALGORITHM is not in the right form", next_step="Unset it, or set it to SHA256."
        )
    return bool(asked) or host.endswith(_AMAZON)


def _of_machine(region: str) -> Callable[[], Any]:
    from metasync.backends._shared.tokens import amazon_keys

    return amazon_keys(os.environ, region)


def _host(url: str) -> str:
    """The host of an address as `.host.name`, so that an ending of it can be told; "" for none."""
    host = urlsplit(url).hostname
    return f".{host}" if host else ""


_NEXT_STEP = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN for a temporary key), or name a profile of"
    " ~/.aws/credentials with AWS_PROFILE or &profile= in the URL. For a login of `aws sso` first run:"
    ' eval "$(aws configure export-credentials --format env)"'
)
_HALVES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
# With all of one of these set the client asks the machine it runs on for a key: ECS, EKS, and a web identity.
_GIVEN_BY_MACHINE = (
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
)
# What a profile says that gets its key from somewhere else.
_ROLE = "role_arn"
_LOGINS = (_ROLE, "sso_session", "sso_start_url", "credential_process", "web_identity_token_file")

# A key of a file is looked for so often, in case that it was renewed.
_KNOWN_FOR_S = 0.1


def provider(environ: Mapping[str, str], profile: str | None, host: str) -> Callable[[], Any] | None:
    """A function that gives the key; None if the machine is to be asked. `RefusedError` as `read_keys`.

    A key of a file is read anew when the file changes: a temporary one may be renewed during a push.
    """
    environ = dict(environ)
    source = _FromFiles(environ, lambda: read_keys(environ, profile, host))
    if source.keys is None:
        return None
    return (lambda: source.keys) if _says_environment(environ, profile, host) else source


def _says_environment(environ: Mapping[str, str], profile: str | None, host: str) -> bool:
    """Whether the key is that of the environment: no profile is named, and if an endpoint is, the key is for that."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    ours = not endpoint or not host or _host(endpoint)[1:] == host
    return profile is None and ours and all(environ.get(half) for half in _HALVES)


class _FromFiles:
    """A key that is read again when one of the files that may hold it is another."""

    def __init__(self, environ: Mapping[str, str], read: Callable[[], Any]) -> None:
        self._files = (_credentials_file(environ), _settings_file(environ))
        self._read = read
        self._seen = self._stamps()
        self._known_until = time.monotonic()
        self.keys = read()

    def __call__(self) -> Any:
        now = time.monotonic()
        if now > self._known_until:
            self._known_until = now + _KNOWN_FOR_S
            seen = self._stamps()
            if seen != self._seen:
                self._seen = seen
                with contextlib.suppress(RefusedError):  # half-written, say: then it will change again
                    self.keys = self._read() or self.keys
        return self.keys

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                found = os.stat(path)
                stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
            except OSError:
                stamps.append(None)
        return stamps


def read_keys(
    environ: Mapping[str, str],
    profile: str | None,
    host: str = "",
    *,
    in_cloud: Callable[[], bool] = lambda: runs_in("aws"),
) -> Any:
    """The key, its secret, and the token of a temporary one; None if the machine is to be asked for one.

    The order is: a profile of the URL, the environment, the file, the keyring (by the server's `host`). `RefusedError`
    if none has a key: whoever asks for a cloud machine's own service elsewhere hangs for a minute.
    """
    if _says_environment(environ, profile, host):
        return _keys(environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], environ.get("AWS_SESSION_TOKEN"))
    name = profile or environ.get("AWS_PROFILE") or "default"
    path = _credentials_file(environ)
    sections = (_section(path, name), _configured(environ, name))
    found = _from_profile(sections)
    if found is not None:
        return found
    missing = [half for half in _HALVES if not environ.get(half)]
    if profile is None:
        key_id, _, secret = (from_keyring(f"s3:{host}", environ) or "").strip().partition(":")
        if key_id and secret:
            return _keys(key_id, secret, None)
        if any(all(environ.get(variable) for variable in way) for way in _GIVEN_BY_MACHINE):
            return None
        disabled = environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        if not _login_of(sections) and not disabled and in_cloud():
            return None
    half = f"{missing[0]} is not set, and " if len(missing) == 1 and profile is None else ""
    if not missing and profile is None:
        half = "the key of the environment is for the server in AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, and "
    raise _no_key(name, path, half, _login_of(sections))


def _from_profile(sections: Sequence[Mapping[str, str]]) -> Any:
    """The key of a profile, whole out of one of its two files; None if it has none. A role comes before a key."""
    for section in sections if _login_of(sections) != _ROLE else ():
        if section.get("aws_access_key_id") and section.get("aws_secret_access_key"):
            return _keys(
                section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token")
            )
    return None


def _login_of(sections: Sequence[Mapping[str, str]]) -> str:
    """What a profile gets its key by, where that is not a key of its own; "" for nothing."""
    return next((word for word in _LOGINS for section in sections if section.get(word)), "")


def _no_key(name: str, path: str, half: str, login: str) -> RefusedError:
    if not login:
        return RefusedError(f"no S3 credentials: {half}the profile {name} in {path} holds no key", next_step=_NEXT_STEP)
    import shlex

    command = f"aws configure export-credentials --profile {shlex.quote(name)} --format env"
    return RefusedError(
        f"no S3 credentials: {half}the profile {name} gets its key by {login}, which only Amazon's own tools can",
        next_step=f'Run: eval "$({command})"; and leave the profile out of the URL.',
    )


def _keys(access_key_id: str, secret_access_key: str, token: str | None) -> dict[str, str | None]:
    return {
        "access_key_id": sendable(access_key_id, "the id of the S3 access key"),
        "secret_access_key": sendable(secret_access_key, "the S3 secret access key"),
        "token": sendable(token, "the S3 session token") if token else None,
    }


def read_region(environ: Mapping[str, str], profile: str | None) -> str:
    """The region that the environment names, or the profile; "" for none. A profile named in the URL wins."""
    named = (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "").strip()
    if named and profile is None:
        return named
    return _configured(environ, profile or environ.get("AWS_PROFILE") or "default").get("region") or named


def _configured(environ: Mapping[str, str], name: str) -> Mapping[str, str]:
    """What the file of settings says of a profile. It may hold a key as well."""
    return _section(_settings_file(environ), name if name == "default" else f"profile {name}")


def _credentials_file(environ: Mapping[str, str]) -> str:
    return os.path.expanduser(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")


def _settings_file(environ: Mapping[str, str]) -> str:
    return os.path.expanduser(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")


def _section(path: str, name: str) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_string(file.read(1 << 20))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error):
        # A parser's message quotes the line it stumbled on, which may be the secret.
        raise RefusedError(f"cannot read the S3 credentials in {path}", next_step=_NEXT_STEP) from None
    return parser[name] if parser.has_section(name) else {}
