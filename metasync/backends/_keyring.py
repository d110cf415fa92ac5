"""Credentials of providers in the system's keyring: `keyring set metasync azure:ACCOUNT`, where `keyring` is there."""

from __future__ import annotations

from collections.abc import Mapping

_SERVICE = "metasync"


def ask_keyring(environ: Mapping[str, str], name: str) -> str | None:
    """The secret kept under `name`; None without one, without a keyring, and with METASYNC_KEYRING=off."""
    if environ.get("METASYNC_KEYRING", "").lower() == "off":
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        secret = keyring.get_password(_SERVICE, name)
    except (keyring.errors.KeyringError, RuntimeError):
        return None
    return secret if isinstance(secret, str) and secret else None
