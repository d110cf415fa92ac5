"""Azure Blob Storage: `azure://container/prefix?account=...&endpoint=...`.

Objects are block blobs. `create` is Put Blob with If-None-Match: *, and 409 BlobAlreadyExists alone means that the name
is taken: a container that is being deleted, or a policy that forbids changes, is a 409 as well. Two things are other
than in S3: an ETag says nothing of the bytes, and the Content-MD5 that Azure keeps is not shown by obstore, so this
store tells no digests; and a delete goes as a batch of one, which needs no right besides that to delete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from metasync.backends._azure_keys import KEYS_STEP, read_credentials
from metasync.backends._base import BackendUrl
from metasync.backends._names import native_identity
from metasync.backends._object_answers import Dialect
from metasync.backends._object_store import (
    ObjectStoreBackend,
    check_not_readable,
    endpoint_of,
    is_own_host,
    prefix_of,
)
from metasync.errors import RefusedError, UsageError

_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
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
    place_gone="specified container does not exist",
    codes={
        "BlobNotFound": "absent",
        "ContainerNotFound": "no place",
        "ContainerBeingDeleted": "no place",
        "ContainerDisabled": "no place",
        "AuthenticationFailed": "key",
        "AuthorizationFailure": "key",  # also an account's firewall
        "NoAuthenticationInformation": "key",
        "InvalidAuthenticationInfo": "key",
        "AccountIsDisabled": "right",
        "AuthorizationPermissionMismatch": "right",
        "AuthorizationProtocolMismatch": "right",
        "AuthorizationResourceTypeMismatch": "right",
        "AuthorizationServiceMismatch": "right",
        "AuthorizationSourceIPMismatch": "right",
        "InsufficientAccountPermissions": "right",
        "KeyBasedAuthenticationNotPermitted": "right",
        "PublicAccessNotPermitted": "right",
        "UnauthorizedBlobOverwrite": "right",
        "RequestBodyTooLarge": "large",
        "ServerBusy": "slower",
        "TooManyRequests": "slower",
        "AccountBeingCreated": "again",
        "InternalError": "again",
        "Md5Mismatch": "again",  # what arrived is not what was sent
        "OperationTimedOut": "again",
        "BlobArchived": "never",
        "BlobImmutableDueToPolicy": "never",
        "InvalidBlobType": "never",
    },
)


class AzureBackend(ObjectStoreBackend):
    """A prefix of a container."""

    scheme: ClassVar[str] = "azure"
    dialect: ClassVar[Dialect] = _DIALECT
    url_params: ClassVar[frozenset[str]] = frozenset({"account", "endpoint"})

    def __init__(
        self, container: str, prefix: str, *, account: str, endpoint: str, credentials: Mapping[str, str]
    ) -> None:
        """`endpoint` "" is Azure's own. `credentials` are settings of obstore's, as `read_credentials` gives them."""
        where = f"azure://{container}/{prefix}" if prefix else f"azure://{container}"
        url = endpoint or f"https://{account}.blob.core.windows.net"
        super().__init__(
            f"{where} of {account}" + (f" at {endpoint}" if endpoint else ""),
            native_identity(url.lower(), f"{container}/{prefix}"),
            url,
        )
        self._options: dict[str, Any] = {
            "container_name": container,
            "prefix": prefix or None,
            "account_name": account,
            "endpoint": url,
            "use_emulator": False,
            "skip_signature": False,
            **credentials,
        }

    def _new_store(self, client_options: Any, retry_config: Any) -> Any:
        from obstore.store import AzureStore

        return AzureStore(**self._options, client_options=client_options, retry_config=retry_config)

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        if _CONTAINER.fullmatch(url.host) is None:
            raise UsageError(
                "an Azure URL begins with the name of a container: 3 to 63 of a-z 0-9 and single -",
                next_step="Write azure://container/prefix?account=NAME.",
            )
        prefix_of(url)
        if _ACCOUNT.fullmatch(dict(url.params).get("account", "")) is None:
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
