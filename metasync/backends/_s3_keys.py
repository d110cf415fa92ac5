"""The access key for an S3 store: from the AWS variables, the shared credentials file, the keyring, or the machine."""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from typing import Any

from metasync.backends._credentials import from_keyring
from metasync.backends._own_cloud import runs_in
from metasync.errors import RefusedError

_NEXT_STEP = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN for a temporary key), or name a profile of"
    " ~/.aws/credentials with AWS_PROFILE or &profile= in the URL. For a login of `aws sso` first run:"
    ' eval "$(aws configure export-credentials --format env)"'
)
# With one of these set the client asks the machine it runs on for a key: ECS, EKS, and where there is a web identity.
_GIVEN_BY_MACHINE = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


def read_keys(
    environ: Mapping[str, str],
    profile: str | None,
    host: str = "",
    *,
    in_cloud: Callable[[], bool] = lambda: runs_in("aws"),
) -> Any:
    """The key as obstore's `S3Credential`; None where the client is to ask the machine for one.

    A profile named in the URL wins over the environment, which wins over the file, which wins over the keyring, where
    the key for a server is kept under its `host`. `RefusedError` if none has a key: the client would otherwise look for
    a cloud machine's own service, and hang for a minute on any other machine.
    """
    if profile is None and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return _keys(environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], environ.get("AWS_SESSION_TOKEN"))
    name = profile or environ.get("AWS_PROFILE") or "default"
    path = environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
    section = {**_configured(environ, name), **_section(path, name)}
    if section.get("aws_access_key_id") and section.get("aws_secret_access_key"):
        return _keys(section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token"))
    if profile is None:
        kept = (from_keyring(f"s3:{host}", environ) or "").strip().split(":")
        if len(kept) in {2, 3} and all(kept):
            return _keys(kept[0], kept[1], kept[2] if len(kept) == 3 else None)
        disabled = environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        if any(environ.get(variable) for variable in _GIVEN_BY_MACHINE) or (not disabled and in_cloud()):
            return None
    raise RefusedError(
        f"no S3 credentials: neither the environment nor the profile {name} in {path} holds a key", next_step=_NEXT_STEP
    )


def _keys(access_key_id: str, secret_access_key: str, token: str | None) -> dict[str, str | None]:
    return {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": token or None,
        "expires_at": None,
    }


def read_region(environ: Mapping[str, str], profile: str | None) -> str:
    """The region that the environment names, or the profile; "" for none. A profile named in the URL wins."""
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if named and profile is None:
        return named
    return _configured(environ, profile or environ.get("AWS_PROFILE") or "default").get("region") or named


def _configured(environ: Mapping[str, str], name: str) -> Mapping[str, str]:
    """What the file of settings says of a profile. It may hold a key as well."""
    path = environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")
    return _section(path, name if name == "default" else f"profile {name}")


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
