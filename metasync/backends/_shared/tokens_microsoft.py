"""Tokens of Entra for Azure's storage: of an application, a workload, the machine this runs on, or the program `az`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from metasync.backends._shared.tokens import Kept, Lent, as_object, asked, lent_token, text_of, word
from metasync.errors import RefusedError

_SCOPE: Final = "https://storage.azure.com/.default"
_RESOURCE: Final = "https://storage.azure.com/"
_AUTHORITY: Final = "https://login.microsoftonline.com"
_IMDS: Final = "http://169.254.169.254/metadata/identity/oauth2/token"
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_AZ_TIMEOUT_S: Final = 60


def microsoft_tokens(credentials: Mapping[str, str], environ: Mapping[str, str], step: str) -> Kept:
    """The token for a login as `azure.read_credentials` gives it, by its `credential_type`."""
    kind = credentials["credential_type"]
    if kind == "azure_cli":
        return Kept(lambda: _of_az(step))
    if kind == "managed_identity":
        return Kept(lambda: _of_machine(environ, step))
    authority = (environ.get("AZURE_AUTHORITY_HOST") or _AUTHORITY).rstrip("/")
    if "://" not in authority:
        authority = f"https://{authority}"
    url = f"{authority}/{quote(credentials['tenant_id'], safe='')}/oauth2/v2.0/token"
    form = {"grant_type": "client_credentials", "client_id": credentials["client_id"], "scope": _SCOPE}

    def fetch() -> Lent:
        if kind == "workload_identity":
            shown = {"client_assertion_type": _ASSERTION, "client_assertion": text_of(file, step)}
        else:
            shown = {"client_secret": credentials["client_secret"]}
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        return lent_token(
            as_object(asked("POST", url, headers, urlencode({**form, **shown}).encode(), step), step), step
        )

    file = credentials.get("federated_token_file", "")
    return Kept(fetch)


def _of_machine(environ: Mapping[str, str], step: str) -> Lent:
    """Of App Service and Functions, where IDENTITY_ENDPOINT and IDENTITY_HEADER are set, else of a virtual machine."""
    own = next(
        (environ[n] for n in ("IDENTITY_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT") if environ.get(n)),
        "",
    )
    query = {"api-version": "2019-08-01" if own else "2018-02-01", "resource": _RESOURCE}
    if environ.get("AZURE_CLIENT_ID"):
        query["client_id"] = environ["AZURE_CLIENT_ID"]
    headers = {"metadata": "true"}
    if environ.get("IDENTITY_HEADER"):
        headers["x-identity-header"] = environ["IDENTITY_HEADER"]
    url = f"{own or _IMDS}{'&' if '?' in own else '?'}{urlencode(query)}"
    return lent_token(as_object(asked("GET", url, headers, b"", step), step), step)


def _of_az(step: str) -> Lent:
    words = ["az", "account", "get-access-token", "--output", "json", "--resource", _RESOURCE]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_AZ_TIMEOUT_S, check=True)  # noqa: S603
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise RefusedError(
            "no token was given for these credentials: its command failed (az account get-access-token)", next_step=step
        ) from None
    ends_at = found.get("expires_on") if isinstance(found, dict) else None
    return Lent(word(found, "accessToken", step), float(ends_at) if isinstance(ends_at, int) else time.time() + 600)
