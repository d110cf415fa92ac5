"""Tokens for Google Cloud Storage: of a service account (signed here), of a user's login, or of this machine."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from metasync.backends._shared.tokens import Kept, Lent, as_object, asked, lent_token, text_of
from metasync.errors import RefusedError

_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.full_control"
_TOKENS: Final = "https://oauth2.googleapis.com/token"
_METADATA: Final = "metadata.google.internal"
_LIFE_S: Final = 3600


def google_tokens(credentials: Mapping[str, str], environ: Mapping[str, str], step: str) -> Kept:
    """The token for a login as `gcs.read_credentials` gives it."""
    if "bearer_token" in credentials:
        given = credentials["bearer_token"]
        return Kept(lambda: Lent(given, float("inf")))
    path = credentials.get("application_credentials") or credentials.get("service_account")
    if path or "service_account_key" in credentials:
        return Kept(lambda: _of_file(text_of(path, step) if path else credentials["service_account_key"], step))
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP") or _METADATA
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    return Kept(lambda: lent_token(as_object(asked("GET", url, {"metadata-flavor": "Google"}, b"", step), step), step))


def _of_file(text: str, step: str) -> Lent:
    try:
        login = json.loads(text)
        if login.get("type", "service_account") == "service_account":
            return _signed(login)
        form = {name: str(login[name]) for name in ("client_id", "client_secret", "refresh_token")}
    except (ValueError, TypeError, KeyError, AttributeError):
        # What it says of a setting may quote one.
        raise RefusedError("Google's credentials are not in the right form", next_step=step) from None
    body = urlencode({"grant_type": "refresh_token", **form}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return lent_token(as_object(asked("POST", _TOKENS, headers, body, step), step), step)


def _signed(login: Mapping[str, Any]) -> Lent:
    """A token that the account's own key signs (RFC 7519, RS256): Google takes it as it is, and nobody is asked."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    key = serialization.load_pem_private_key(login["private_key"].encode(), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("not a key of Google's")
    now = int(time.time())
    head = {"alg": "RS256", "typ": "JWT", "kid": login["private_key_id"]}
    who = login["client_email"]
    claims = {"iss": who, "sub": who, "scope": _SCOPE, "iat": now, "exp": now + _LIFE_S}
    text = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(claims).encode())}"
    return Lent(f"{text}.{_part(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}", now + _LIFE_S)


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
