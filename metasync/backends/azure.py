"""Azure Blob Storage: `azure://container/prefix?account=...&endpoint=...`.

Objects are block blobs. `create` is Put Blob with If-None-Match: *, and only 409 BlobAlreadyExists means that the name
is taken: a container that is being deleted is a 409 as well. This store tells no digests: its ETag says nothing of the
bytes, and the Content-MD5 is what the writer said.

Credentials are the account's key, a shared access signature, or a login of Entra, from the variables of Microsoft's own
tools. A key or signature counts only for the account that the variables or the connection string name, if they do.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from metasync.backends._shared.credentials import from_keyring, runs_in, sendable
from metasync.backends._shared.object_errors import Dialect, by_code
from metasync.backends._shared.object_store import (
    ObjectStoreBackend,
    Query,
    Request,
    check_not_readable,
    endpoint_of,
    is_own_host,
)
from metasync.backends._shared.urls import prefix_of
from metasync.backends.api import BackendUrl
from metasync.errors import RefusedError, UsageError

KEYS_STEP = (
    "Check AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_TENANT_ID,"
    " AZURE_CLIENT_ID and AZURE_CLIENT_SECRET: that they belong to this account and may read, write, list and delete."
)

_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*")
_ACCOUNT_NAME = re.compile(r"[a-z0-9]{3,24}")
_MICROSOFT = (
    ".core.windows.net",
    ".core.chinacloudapi.cn",
    ".core.usgovcloudapi.net",
    ".core.cloudapi.de",
    ".storage.azure.net",
)

_DIALECT = Dialect(
    server="Azure",
    place="container",
    keys=KEYS_STEP,
    tag=re.compile(r'"?0x[0-9A-Fa-f]+"?'),
    taken=(409, "BlobAlreadyExists"),
    codes=by_code(
        {
            "absent": "BlobNotFound",
            "no place": "ContainerNotFound ContainerBeingDeleted ContainerDisabled",
            # the second: also an account's firewall
            "key": "AuthenticationFailed AuthorizationFailure NoAuthenticationInformation InvalidAuthenticationInfo",
            "right": "AccountIsDisabled AuthorizationPermissionMismatch AuthorizationProtocolMismatch"
            " AuthorizationResourceTypeMismatch AuthorizationServiceMismatch AuthorizationSourceIPMismatch"
            " InsufficientAccountPermissions KeyBasedAuthenticationNotPermitted PublicAccessNotPermitted"
            " UnauthorizedBlobOverwrite",
            "large": "RequestBodyTooLarge",
            "slower": "ServerBusy TooManyRequests",
            # Md5Mismatch: what arrived is not what was sent
            "again": "AccountBeingCreated InternalError Md5Mismatch OperationTimedOut",
            "never": "BlobArchived BlobImmutableDueToPolicy InvalidBlobType",
        }
    ),
)


class AzureBackend(ObjectStoreBackend):
    """A prefix of a container."""

    scheme: ClassVar[str] = "azure"
    dialect: ClassVar[Dialect] = _DIALECT
    if_free: ClassVar[tuple[str, str]] = ("if-none-match", "*")
    url_params: ClassVar[frozenset[str]] = frozenset({"account", "endpoint"})

    def __init__(
        self, container: str, prefix: str, *, account: str, endpoint: str, credentials: Mapping[str, str]
    ) -> None:
        """`endpoint` "" is Azure's own. `credentials` as of `read_credentials`."""
        url = endpoint or f"https://{account}.blob.core.windows.net"
        at = f" of {account}" + (f" at {endpoint}" if endpoint else "")
        parts = urlsplit(url)
        self._account = account
        self._credentials = credentials
        self._token: Callable[[], Any] | None = None
        self._key: bytes | None = None
        base = parts.path.rstrip("/")
        server, root = f"{parts.scheme}://{parts.netloc}", f"{base}/{container}"
        super().__init__(container, prefix, server, root, at=at, scope=url.lower())

    def signed(self, request: Request) -> tuple[str, Mapping[str, str]]:
        headers = {**request.headers, "x-ms-date": _now(), "x-ms-version": _VERSION}
        if request.method == "PUT":
            headers["x-ms-blob-type"] = "BlockBlob"
        path = quote(request.path, safe="/-_.~")
        query = urlencode(request.query, quote_via=quote)
        kind = self._credentials["credential_type"]
        if kind == "access_key":
            text = string_to_sign(request.method, self._account, path, request.query, headers, len(request.body))
            signature = base64.b64encode(hmac.digest(self._access_key(), text.encode(), "sha256")).decode("ascii")
            headers["authorization"] = f"SharedKey {self._account}:{signature}"
        elif kind == "sas_token":
            query = "&".join(part for part in (query, self._sas()) if part)
        else:
            headers["authorization"] = f"Bearer {self._given()}"
        return f"{path}?{query}" if query else path, headers

    def listing(self, prefix: str, following: str) -> Query:
        pairs = {"restype": "container", "comp": "list", "delimiter": "/", "prefix": prefix, "marker": following}
        return [(name, value) for name, value in pairs.items() if value]

    def _see(self, e_tag: str | None, data: bytes) -> None:
        """A tag says nothing of the bytes."""

    def _access_key(self) -> bytes:
        if self._key is None:
            try:
                self._key = base64.b64decode(self._credentials["account_key"], validate=True)
            except (binascii.Error, ValueError):
                raise self._of_no_form() from None
        return self._key

    def _sas(self) -> str:
        pairs = parse_qsl(self._credentials["sas_key"].lstrip("?"), keep_blank_values=True)
        if "sig" not in dict(pairs):
            raise self._of_no_form() from None
        return urlencode(pairs, quote_via=quote, safe="")

    def _given(self) -> str:
        if self._credentials["credential_type"] == "bearer_token":
            return self._credentials["token"]
        if self._token is None:
            from metasync.backends._shared.tokens_microsoft import microsoft_tokens

            self._token = microsoft_tokens(self._credentials, os.environ, KEYS_STEP)
        return str(self._token())

    def _of_no_form(self) -> RefusedError:
        """What is wrong with it is not told: it may be quoted there."""
        return RefusedError(f"cannot open {self._where}: a key, or another setting for it, is not in the right form",
                            next_step=KEYS_STEP)  # fmt: skip

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        if _CONTAINER.fullmatch(url.host) is None:
            raise UsageError(
                "an Azure URL begins with the name of a container: 3 to 63 of a-z 0-9 and single -",
                next_step="Write azure://container/prefix?account=NAME.",
            )
        prefix_of(url)
        if _ACCOUNT_NAME.fullmatch(dict(url.params).get("account", "")) is None:
            raise UsageError(
                "an Azure URL names a storage account: 3 to 24 of a-z 0-9",
                next_step="Write azure://container/prefix?account=NAME.",
            )
        endpoint_of(url, "an Azure")

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> AzureBackend:
        """A prefix needs no making, and a container is not ours to make: `create_root` changes nothing."""
        account, endpoint = dict(url.params)["account"], endpoint_of(url, "an Azure")
        credentials = read_credentials(os.environ, account)
        if credentials["credential_type"] != "access_key":  # a key signs, and is not sent itself
            _check_not_a_strangers(endpoint)
        return cls(url.host, prefix_of(url), account=account, endpoint=endpoint, credentials=credentials)


_VERSION = "2023-11-03"
_SIGNED = ("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
           "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range")  # fmt: skip


def _now() -> str:
    """The time as HTTP has it, whatever the locale."""
    at = time.gmtime()
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[at.tm_wday]
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return f"{day}, {at.tm_mday:02} {months[at.tm_mon - 1]} {at.tm_year} {time.strftime('%H:%M:%S', at)} GMT"


def string_to_sign(
    method: str, account: str, path: str, query: Query, headers: Mapping[str, str], body_bytes: int
) -> str:
    """What an account's key signs ("Authorize with Shared Key" in Microsoft's reference). `path`: encoded."""
    known = {**headers, "content-length": str(body_bytes) if body_bytes else ""}
    own = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    asked = "".join(f"\n{name.lower()}:{value}" for name, value in sorted(query))
    return "\n".join([method, *(known.get(name, "") for name in _SIGNED), f"{own}/{account}{path}{asked}"])


def _check_not_a_strangers(endpoint: str) -> None:
    """`RefusedError` for an endpoint to which no secret may go that opens Azure for whoever has it."""
    what = "a signature or token of Azure's"
    check_not_readable(endpoint, what)
    host = f".{urlsplit(endpoint).hostname}" if endpoint else _MICROSOFT[0]
    if not host.endswith(_MICROSOFT) and not is_own_host(host):
        raise RefusedError(
            f"{what} would go to {endpoint}, which is not a server of Microsoft's",
            next_step="Leave the endpoint out, or use the account's key: it signs, and is not sent.",
        )


_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_KEY = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY")
_SAS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
# With one of these set the client asks the machine it runs on (App Service, Functions, Arc) for a token.
_GIVEN_BY_MACHINE = ("IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT")


def read_credentials(
    environ: Mapping[str, str], account: str, *, in_cloud: Callable[[], bool] = lambda: runs_in("azure")
) -> dict[str, str]:
    """What opens the account; `credential_type` says what it is.

    The connection string comes first, then key, signature and keyring, then Entra. `RefusedError` if there is nothing:
    the client would ask for a service of Azure's own machines, and hang on all others.
    """
    found = _from_string(environ, account) or _from_variables(environ, account) or _from_keyring(environ, account)
    found = found or _from_entra(environ)
    if found is not None:
        return found
    if any(environ.get(name) for name in _GIVEN_BY_MACHINE) or in_cloud():
        return {"credential_type": "managed_identity"}
    named = _first(environ, _ACCOUNT)
    other = f" (what is set is for {named[:40]!r})" if named and named != account else ""
    if environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        other = " (AZURE_STORAGE_CONNECTION_STRING holds none, or is another account's)"
    raise RefusedError(
        f"no credentials for the Azure storage account {account}{other}",
        next_step=(
            "Set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING; or"
            " AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET; or AZURE_CREDENTIAL_TYPE=azure_cli after"
            f" `az login`; or keep the key in the system's keyring: keyring set metasync azure:{account}"
        ),
    )


def _from_string(environ: Mapping[str, str], account: str) -> dict[str, str] | None:
    text = environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    return _opened_by(text, account) if text else None


def _from_variables(environ: Mapping[str, str], account: str) -> dict[str, str] | None:
    if (_first(environ, _ACCOUNT) or account) != account:
        return None
    key, sas = _first(environ, _KEY), _first(environ, _SAS)
    if key:
        return _key(key)
    return _sas(sas) if sas else None


def _from_keyring(environ: Mapping[str, str], account: str) -> dict[str, str] | None:
    """A key, a signature or a connection string."""
    secret = from_keyring(f"azure:{account}", environ)
    if not secret:
        return None
    if "AccountKey=" in secret or "SharedAccessSignature=" in secret:
        return _opened_by(secret, account)
    return _sas(secret) if "sig=" in secret else _key(secret)


def _from_entra(environ: Mapping[str, str]) -> dict[str, str] | None:
    if environ.get("AZURE_CLIENT_ID") and environ.get("AZURE_TENANT_ID"):
        login = {"client_id": environ["AZURE_CLIENT_ID"], "tenant_id": environ["AZURE_TENANT_ID"]}
        if environ.get("AZURE_CLIENT_SECRET"):
            secret = environ["AZURE_CLIENT_SECRET"]
            return {**login, "client_secret": secret, "credential_type": "client_secret"}
        if environ.get("AZURE_FEDERATED_TOKEN_FILE"):
            file = environ["AZURE_FEDERATED_TOKEN_FILE"]
            return {**login, "federated_token_file": file, "credential_type": "workload_identity"}
    if environ.get("AZURE_STORAGE_TOKEN"):
        token = sendable(environ["AZURE_STORAGE_TOKEN"], "AZURE_STORAGE_TOKEN")
        return {"token": token, "credential_type": "bearer_token"}
    asked = environ.get("AZURE_CREDENTIAL_TYPE", "").lower()
    if asked == "azure_cli" or environ.get("AZURE_USE_AZURE_CLI", "").lower() in {"1", "true"}:
        return {"credential_type": "azure_cli"}
    return {"credential_type": "managed_identity"} if asked == "managed_identity" else None


def _opened_by(text: str, account: str) -> dict[str, str] | None:
    """What a connection string opens; None if it is another account's, or holds neither key nor signature."""
    parts = dict(part.partition("=")[::2] for part in text.strip().split(";"))
    named = {parts["AccountName"]} if "AccountName" in parts else _accounts_of(parts.get("BlobEndpoint", ""))
    if named and account not in named:
        return None
    if parts.get("AccountKey"):
        return _key(parts["AccountKey"])
    return _sas(parts["SharedAccessSignature"]) if parts.get("SharedAccessSignature") else None


def _accounts_of(endpoint: str) -> set[str]:
    """What may be an account in an address: ACCOUNT.blob.core.windows.net, or 127.0.0.1:10000/ACCOUNT."""
    host, _, path = endpoint.partition("://")[2].partition("/")
    return {host.partition(".")[0], path.partition("/")[0]} - {""}


def _key(key: str) -> dict[str, str]:
    return {"account_key": sendable(key, "the key of the Azure storage account"), "credential_type": "access_key"}


def _sas(token: str) -> dict[str, str]:
    return {"sas_key": sendable(token, "the shared access signature"), "credential_type": "sas_token"}


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
