"""What an object store's refusal means, read from the text of obstore's exceptions.

Their classes would lie: obstore raises FileNotFoundError for every 404 (a deleted bucket, an unknown access key, a
captive portal) and AlreadyExistsError for every 409. Only the code in the server's XML may become "the object is not
there". What a code means stands in its provider's `Dialect`; statuses, redirects and lost connections stand here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from metasync.backends._shared.http import SILENT_S, retry_after_s
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer

Meaning = Literal[
    "absent",  # the object is not there; nothing else may be read as that
    "no place",  # the bucket or container is not there
    "key",  # it does not take the credentials
    "right",  # it takes them, and they do not allow this
    "clock",  # this machine's clock is wrong
    "elsewhere",  # another region or server has the bucket
    "full",
    "large",
    "slower",  # it asks for fewer requests
    "again",  # it failed, and may not the next time
    "never",  # it will not do this, however often it is asked
]


def by_code(words: Mapping[Meaning, str]) -> dict[str, Meaning]:
    """What each code means, from the codes of each meaning."""
    return {code: meaning for meaning, codes in words.items() for code in codes.split()}


@dataclass(frozen=True)
class Dialect:
    """How one provider answers."""

    server: str
    place: str  # what holds the objects: a bucket, a container
    keys: str  # what to check when it refuses the credentials
    codes: Mapping[str, Meaning]
    taken: tuple[int, str] = (412, "")  # a create of a taken name: the status, and the code where there are several
    elsewhere: str = "it sends us to another server, and credentials do not go there"
    elsewhere_step: str = "Check the endpoint, and whether the network asks for a login."
    place_gone: str = ""  # how it says without a code that the place is missing
    tag: re.Pattern[str] = re.compile(".*")  # the tags that it gives

    def is_taken(self, error: BaseException) -> bool:
        """Whether a create ended in this because the name is taken."""
        status, code = self.taken
        return status_of(error) == status and (not code or code_of(error) == code)


_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
# Where tokens come from is in the text ahead of the answer: what was asked, or which server.
_TOKEN = re.compile(
    r"[Tt]oken re(?:quest|sponse)|//169\.254\.|//metadata\.google|AssumeRoleWithWebIdentity|get-access-token"
)
_CLOCK = re.compile(r"date header too old|Request not valid yet")
_HEAD_CHARS = 1 << 14  # the answer's text; behind it obstore repeats all of it as a debug print

_CERTIFICATE = "its TLS certificate was not accepted"
_CERTIFICATE_STEP = "Check the endpoint's name. The certificate of an authority of your own goes into SSL_CERT_FILE."
_CAUSES = (
    ("dns error", "its name cannot be resolved"),
    ("ProxyAuthRequired", "the proxy asks for a login"),
    ("TunnelUnsuccessful", "the proxy let nothing through"),
    ("Connection refused", "connection refused"),
    ("kind: Timeout", "no answer in time"),
    ("TimedOut", "no answer in time"),
    ("ertificate", _CERTIFICATE),
    ("InvalidContentType", "it does not speak TLS"),
    ("tcp connect error", "no connection"),
    ("kind: Decode", "the answer is of another kind"),
)
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_BY_STATUS: dict[int, Meaning] = {
    401: "key",
    403: "right",
    408: "again",
    409: "again",
    413: "large",
    429: "slower",
    501: "never",
    503: "slower",
    507: "full",
}
_STATUS_DECIDES = {401, 413, 429, 503, 507}  # over a code that says no more than "again"
_NOT_THE_SERVER = {
    302: "a redirect",  # where S3 means another region it says 301 or 307
    303: "a redirect",
    404: "a 404 without a reason",
    407: "a proxy that asks for a login",
}


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status of the answer that led to this exception of obstore's; None if there was no answer."""
    match = _STATUS.search(_head(error)) if error is not None else None
    return int(match[1]) if match else None


def code_of(error: BaseException) -> str:
    """The server's own word for what is wrong; "" where it said none."""
    match = _CODE.search(_head(error))
    return match[1] if match else ""


def code_in(answer: Answer) -> str:
    """The server's own word for what is wrong; "" where it said none."""
    match = _CODE.search(answer.text)
    return answer.headers.get("x-ms-error-code", "")[:64] or (match[1] if match else "")


def refusal(answer: Answer, verb: str, path: str, where: str, dialect: Dialect) -> BackendError:
    """The error of the contract for an answer that is no success. It never quotes it: that may echo a signature."""
    attempt = f"cannot {verb} {path} in {where}"
    status, code, text = answer.status, code_in(answer), answer.text
    if status < 300:
        said = f"{attempt}: what answered is not the {dialect.server} server (a {status} where it has another answer)"
        return UnreachableError(said, next_step="Check the endpoint, and whether the network asks for a login.")
    meaning = _meaning_of(status, code, text, dialect)
    if meaning == "key" and _CLOCK.search(text):
        meaning = "clock"
    said = f"the server answered {status}{f' ({code})' if code else ''}"
    if meaning == "elsewhere":
        return _elsewhere(status, code, said, text, attempt, dialect)
    error = _refused(meaning, said, code or str(status), attempt, dialect)
    if meaning in {"slower", "again"}:
        asked_s = retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))
        error.retry_after_s = error.retry_after_s if asked_s is None else asked_s
    return error


def begins_behind(error: BaseException) -> bool:
    """Whether a part was asked for that begins at or behind the object's end."""
    return status_of(error) == 416 or "Wanted range starting at" in _head(error)


def backend_error(error: BaseException, verb: str, path: str, where: str, dialect: Dialect) -> BackendError:
    """The error of the contract for what obstore raised. It never quotes the answer: that may echo a signature."""
    text = _head(error)
    attempt = f"cannot {verb} {path} in {where}"
    status = status_of(error)
    if _TOKEN.search(text.partition("status code: ")[0]):
        return _without_token(status, text, attempt, dialect)
    if status is None:
        return _without_answer(text, attempt, dialect)
    code = code_of(error)
    meaning = _meaning_of(status, code, text, dialect)
    if meaning == "key" and _CLOCK.search(text):
        meaning = "clock"
    said = f"the server answered {status}{f' ({code})' if code else ''}"
    if meaning == "elsewhere":
        return _elsewhere(status, code, said, text, attempt, dialect)
    return _refused(meaning, said, code or str(status), attempt, dialect)


def _meaning_of(status: int, code: str, text: str, dialect: Dialect) -> Meaning:
    said = dialect.codes.get(code)
    if said == "absent" and status != 404:
        said = None
    if said is not None and said != "again":
        return said
    if 300 <= status < 400 or status == 407:
        return "elsewhere"
    if status == 404:
        # One of several deletes in a request is refused by a line of text, without a code, in an answer of status 202.
        if not dialect.place_gone or "status code: " in text or "delete request failed for key" not in text:
            return "elsewhere"
        return "no place" if dialect.place_gone in text else "absent"
    if said is None or status in _STATUS_DECIDES:
        return _BY_STATUS.get(status) or ("again" if status >= 500 else "never")
    return said


_ERRORS: dict[Meaning, tuple[type[BackendError], str, str]] = {
    "absent": (NotFoundError, "it is not there", ""),
    "no place": (UnreachableError, "there is no such {place}", "Check the {place}'s name, or make it."),
    "key": (RefusedError, "the server refused the credentials ({word})", "{keys}"),
    "right": (RefusedError, "{said}", "The key needs the right to do this. {keys}"),
    "clock": (RefusedError, "this machine's clock is wrong", "Set the clock, then try again."),
    "full": (FullError, "no space or quota is left", "Free some space, or add a backend."),
    "large": (RefusedError, "{said}; it is too large for this server", ""),
    "slower": (BackendError, "{said}; it asks for fewer requests", "Try again later."),
    "again": (BackendError, "{said}", "Try again later."),
    "never": (BackendError, "{said}", ""),
}


def _refused(meaning: Meaning, said: str, word: str, attempt: str, dialect: Dialect) -> BackendError:
    kind, words, step = _ERRORS[meaning]
    fields = {"said": said, "word": word, "place": dialect.place, "keys": dialect.keys}
    error = kind(f"{attempt}: {words.format(**fields)}", next_step=step.format(**fields))
    if meaning == "slower":
        error.retry_after_s = SILENT_S
    elif meaning == "never":
        error.retryable = False
    return error


def _elsewhere(status: int, code: str, said: str, text: str, attempt: str, dialect: Dialect) -> BackendError:
    if status in _NOT_THE_SERVER:
        reason = code or _NOT_THE_SERVER[status]
        return UnreachableError(
            f"{attempt}: what answered is not the {dialect.server} server ({reason})",
            next_step="Check the endpoint and the proxy, and whether the network asks for a login.",
        )
    region = _REGION.search(text)
    if region is not None:
        message = f"{attempt}: {said}; the {dialect.place} is in the region {region[1]}"
        return RefusedError(message, next_step=f"Write &region={region[1]} in the URL.")
    return RefusedError(f"{attempt}: {said}; {dialect.elsewhere}", next_step=dialect.elsewhere_step)


def _without_token(status: int | None, text: str, attempt: str, dialect: Dialect) -> BackendError:
    """What gives out tokens is another server or program, and its refusal says nothing about an object."""
    refused = status is not None and 400 <= status < 500 and status not in {408, 429}
    if refused or "command failed" in text:
        reason = str(status) if status is not None else "its command failed"
        return RefusedError(f"{attempt}: no token was given for these credentials ({reason})", next_step=dialect.keys)
    cause = f"the server that gives them answered {status}" if status is not None else _cause(text)
    return UnreachableError(f"{attempt}: no token could be had: {cause}", next_step=dialect.keys)


def _without_answer(text: str, attempt: str, dialect: Dialect) -> BackendError:
    if "without LOCATION" in text:
        return RefusedError(f"{attempt}: {dialect.elsewhere}", next_step=dialect.elsewhere_step)
    if "HTTP error" in text or "reqwest::Error" in text or "HttpError" in text:
        cause = _cause(text)
        step = _CERTIFICATE_STEP if cause == _CERTIFICATE else "Check the endpoint and the network."
        if cause != _CERTIFICATE and any(os.environ.get(name) for name in _PROXY_VARIABLES):
            # Where the proxy is what refuses, nothing says so.
            step = "Check the endpoint, the network, and the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY."
        return UnreachableError(f"{attempt}: {cause}", next_step=step)
    message = f"{attempt}: the server's answer is not one of {dialect.server}"
    return BackendError(message, next_step="Check the endpoint.")


def _cause(text: str) -> str:
    return next((words for sign, words in _CAUSES if sign in text), "the connection broke")


def _head(error: BaseException) -> str:
    return str(error)[:_HEAD_CHARS]
