"""What an object store's refusal means.

A 404 alone says nothing: a deleted bucket, an unknown access key and a captive portal are 404s, too. Only the code in
the server's answer may become "the object is not there". What a code means stands in its provider's `Dialect`; what
statuses and redirects mean stands here.
"""

from __future__ import annotations

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
    tag: re.Pattern[str] = re.compile(".*")  # the tags that it gives


_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_CLOCK = re.compile(r"date header too old|Request not valid yet")
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
    meaning = _meaning_of(status, code, dialect)
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


def _meaning_of(status: int, code: str, dialect: Dialect) -> Meaning:
    said = dialect.codes.get(code)
    if said == "absent" and status != 404:
        said = None
    if said is not None and said != "again":
        return said
    if 300 <= status < 400 or status == 407:
        return "elsewhere"
    if status == 404:
        return "elsewhere"
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
