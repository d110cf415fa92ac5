"""What an S3 server's refusal means. obstore gives most of it in an exception's text, so that is what is read here.

Its classes alone would lie: it raises FileNotFoundError for every 404 (a deleted bucket, an unknown access key, a
captive portal) and AlreadyExistsError for every 409. Only the code in the server's own XML tells them apart, and only
`NoSuchKey` may ever become "the object is not there".
"""

from __future__ import annotations

import re

from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_HEAD_CHARS = 1 << 14  # the answer's text; behind it obstore repeats all of it as a debug print

_KEYS = (
    "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile in ~/.aws/credentials;"
    " and that they belong to this endpoint."
)
_REGION = "Name the bucket's region in the URL: &region=eu-central-1, say."
_BAD_KEY = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "XAdminUserNotFound",
    "InvalidSecurity",
    "NotSignedUp",
}
_FULL = {
    "QuotaExceeded",  # Ceph, versitygw: 403
    "StorageQuotaExceeded",
    "ObjectQuotaExceeded",  # NooBaa
    "XMinioAdminBucketQuotaExceeded",  # MinIO: 400
    "XMinioStorageFull",  # MinIO: 507, 500 in old ones
    "InsufficientStorage",
    "StorageFull",
}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_TOO_LARGE = {"EntityTooLarge", "KeyTooLongError", "MaxMessageLengthExceeded"}
_SLOWER = {"SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable", "TooManyRequests", "RequestLimitExceeded"}
# obstore keeps a Retry-After header to itself, and S3's own XML has no such field. Amazon's clients begin with as much.
THROTTLED_AFTER_S = 1.0
_AGAIN = {"RequestTimeout", "InternalError", "OperationAborted", "IncompleteBody"}
_CAUSES = (
    ("dns error", "its name cannot be resolved"),
    ("Connection refused", "connection refused"),
    ("kind: Timeout", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("ertificate", "its TLS certificate was not accepted"),
    ("InvalidContentType", "it does not speak TLS"),
    ("tcp connect error", "no connection"),
)


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status of the answer that led to this exception of obstore's; None if there was no answer."""
    match = _STATUS.search(str(error)[:_HEAD_CHARS]) if error is not None else None
    return int(match[1]) if match else None


def backend_error(error: BaseException, verb: str, path: str, where: str) -> BackendError:
    """The error of the contract for what obstore raised. It never quotes the answer: that may echo a signature."""
    text = str(error)
    status = status_of(error)
    attempt = f"cannot {verb} {path} in {where}"
    if status is None:
        return _without_answer(text, attempt)
    match = _CODE.search(text[:_HEAD_CHARS])
    return _answered(status, match[1] if match else "", attempt)


def _answered(status: int, code: str, attempt: str) -> BackendError:
    said = f"the server answered {status}{f' ({code})' if code else ''}"
    if code in _BAD_KEY or (status == 401):
        return RefusedError(f"{attempt}: the server refused the credentials ({code or status})", next_step=_KEYS)
    if code == "RequestTimeTooSkewed":
        return RefusedError(f"{attempt}: this machine's clock is wrong", next_step="Set the clock, then try again.")
    if code in _WRONG_REGION or 300 <= status < 400:
        return RefusedError(f"{attempt}: {said}; the bucket is in another region", next_step=_REGION)
    if code in _FULL or status == 507:
        return FullError(f"{attempt}: no space or quota is left", next_step="Free some space, or add a backend.")
    if code in _TOO_LARGE or status == 413:
        return RefusedError(f"{attempt}: {said}; it is too large for this server")
    if status == 404:
        return _missing(code, attempt)
    if code in _SLOWER or status in {429, 503}:
        return BackendError(
            f"{attempt}: {said}; it asks for fewer requests",
            next_step="Try again later.",
            retry_after_s=THROTTLED_AFTER_S,
        )
    if code in _AGAIN or status in {408, 409} or status >= 500:
        return BackendError(f"{attempt}: {said}", next_step="Try again later.")
    if status == 403:
        return RefusedError(f"{attempt}: {said}", next_step=f"The key needs the right to do this. {_KEYS}")
    return BackendError(f"{attempt}: {said}", retryable=False)


def _missing(code: str, attempt: str) -> BackendError:
    if code == "NoSuchKey":
        return NotFoundError(f"{attempt}: it is not there")
    if code == "NoSuchBucket":
        return UnreachableError(f"{attempt}: there is no such bucket", next_step="Check the bucket's name, or make it.")
    return UnreachableError(
        f"{attempt}: what answered is not the S3 server ({code or 'a 404 without a reason'})",
        next_step="Check the endpoint, and whether the network asks for a login.",
    )


def _without_answer(text: str, attempt: str) -> BackendError:
    if "without LOCATION" in text:
        return RefusedError(f"{attempt}: the bucket is in another region", next_step=_REGION)
    if "HTTP error" in text or "reqwest::Error" in text or "HttpError" in text:
        cause = next((words for sign, words in _CAUSES if sign in text), "the connection broke")
        return UnreachableError(f"{attempt}: {cause}", next_step="Check the endpoint and the network.")
    return BackendError(f"{attempt}: the server's answer is not one of S3", next_step="Check the endpoint.")
