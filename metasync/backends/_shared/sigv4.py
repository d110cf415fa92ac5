"""Signature version 4 of Amazon's, for single requests to S3: the key signs the whole request, and is not sent.

Source: "Authenticating Requests: Using the Authorization Header" in Amazon's S3 API reference, whose examples the tests
compute anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

NOTHING: Final = hashlib.sha256(b"").hexdigest()
_PATH_SAFE: Final = "/-_.~"


def encoded_path(path: str) -> str:
    """A path as S3 has it sent and signed: each byte but the unreserved ones in percent form."""
    return quote(path, safe=_PATH_SAFE)


def encoded_query(query: Sequence[tuple[str, str]]) -> str:
    """A query as it is sent and signed: sorted."""
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def authorization(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    key_id: str,
    secret: str,
    region: str,
    service: str = "s3",
) -> str:
    """The value of `Authorization` for a request with exactly these headers, in small letters.

    `path`, `query`: encoded. Among `headers` are `host`, `x-amz-date` (20260102T030405Z) and `x-amz-content-sha256`.
    """
    stamp, body_hash = headers["x-amz-date"], headers["x-amz-content-sha256"]
    names = sorted(headers)
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in names)
    signed = ";".join(names)
    request = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{body_hash}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(_signing_key(secret, stamp[:8], region, service), text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={key_id}/{scope},SignedHeaders={signed},Signature={signature}"


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
