"""Where a provider's secret comes from: the environment, then the system's keyring. Never a URL, a config or a log."""

from __future__ import annotations

import os
from collections.abc import Sequence

SERVICE = "metasync"
"""What secrets in the keyring are filed under: `keyring set metasync ACCOUNT`."""


def secret(service_account: str, variables: Sequence[str]) -> str | None:
    """The first of the environment's `variables` that is set, else what the keyring has for the account, else None.

    `METASYNC_KEYRING=off` leaves the keyring alone, and so does a system without one or without the `keyring` package.
    """
    for name in variables:
        if value := os.environ.get(name):
            return value
    if os.environ.get("METASYNC_KEYRING", "").lower() == "off":
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        return keyring.get_password(SERVICE, service_account) or None
    except (keyring.errors.KeyringError, RuntimeError):
        return None
