"""Where a provider's secret comes from: the environment, then the system's keyring. Never a URL, a config or a log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

SERVICE = "metasync"
"""What secrets in the keyring are filed under: `keyring set metasync ACCOUNT`."""


def secret(account: str, variables: Sequence[str]) -> str | None:
    """The first of the environment's `variables` that is set, else what the keyring has for the account, else None."""
    for name in variables:
        if value := os.environ.get(name):
            return value
    return from_keyring(account)


def from_keyring(account: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """What the system's keyring has for an account, if anything.

    `METASYNC_KEYRING=off` leaves the keyring alone, and so does a system without one or without the `keyring` package.
    """
    if environ.get("METASYNC_KEYRING", "").lower() == "off":
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        found = keyring.get_password(SERVICE, account)
    except (keyring.errors.KeyringError, RuntimeError):
        return None
    return found if isinstance(found, str) and found else None
