"""What opens a Google Cloud Storage bucket: Google's application default credentials, found where Google's tools do.

Tokens are got and renewed by obstore. It reads these variables by itself, too, and in this order, so what it is told
here is what it would choose; the files are read here first for an error that says which of them is wrong, and how.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from metasync.backends._credentials import sendable
from metasync.backends._own_cloud import runs_in
from metasync.errors import RefusedError

KEYS_STEP = (
    "Check GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login` again; the account needs to"
    " read, write, list and delete objects of this bucket, and this machine's clock has to be right."
)
_TYPES = {"service_account", "authorized_user"}
_FILE_BYTES_MAX = 1 << 20


def read_credentials(
    environ: Mapping[str, str], *, in_cloud: Callable[[], bool] = lambda: runs_in("gcs")
) -> dict[str, str]:
    """Settings of obstore's that open buckets; empty where it is to ask the machine for tokens.

    `RefusedError` if there is nothing, or what there is cannot be used.
    """
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
