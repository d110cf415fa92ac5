"""What is said on the daemon's socket: one JSON document a line. Pure.

    {"id": 1, "do": "push", "directory": "/home/a/docs", ...}      a request; what it takes stands in REQUESTS
    {"id": 1, "event": {"progress": {...}}}                        while it is under way; of a transfer alone
    {"id": 1, "ok": {...}}                                         its answer
    {"id": 1, "error": {"kind", "message", "next_step", "exit_code"}}
    {"event": {"workspace": {...}}}                                after {"do": "events"}, until the line is closed

The answer of a transfer, or its error, has `travelled` beside it: what went to and from the backends for it.

Who sends a request is the user, but not always this program: it is bounded, and checked before anything is done. An
answer comes from the user's own daemon; its bound is there so that a wrong one does not fill the memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metasync import errors, events
from metasync.errors import FormatError, MetaSyncError
from metasync.events import Travelled
from metasync.service.wire import values

REQUEST_BYTES_MAX: Final = 64 << 10  # a message of a version is the longest part
ANSWER_BYTES_MAX: Final = 1 << 30  # a report names each path that changed: a million of them are 100 MB
ID_MOST: Final = 1 << 53  # what every JSON reader holds exactly
DIRECTORY_CHARS_MAX: Final = 4096
TEXT_CHARS_MAX: Final = 32 << 10
_LONG: Final = 200  # characters of a word that is refused

_TRANSFER: Final = {
    "directory": str, "message": str, "dry_run": bool, "force": bool, "durability": int | None, "version": str,
}  # fmt: skip
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "status": {},
    "push": _TRANSFER,
    "pull": _TRANSFER,
    "sync": _TRANSFER,
    "sync_now": {"directory": str},
    "pause": {"directory": str | None, "seconds": float | None},
    "resume": {"directory": str | None},
    "answer": {"directory": str, "key": str, "allow": bool},
    "add": {"directory": str},
    "remove": {"directory": str},
    "stop": {},
    "events": {},
    "metrics": {},
}
"""What can be asked, and what of: types by name. What may be None may be left out, and means all, or no end."""
OPTIONAL: Final[Mapping[str, Any]] = {"message": "", "dry_run": False, "force": False}


class UnservedError(MetaSyncError):
    """The daemon cannot do this now, or is of another version than the caller: a command does it by itself."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was understood. `args` are of the types of REQUESTS, all of them there."""

    id: int
    do: str
    args: Mapping[str, Any]


def line(document: Mapping[str, Any]) -> bytes:
    """A document as one line."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def document_of(data: bytes) -> dict[str, Any]:
    """The object on a line. `FormatError` for anything else."""
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        raise FormatError("a line that is no JSON document") from e
    if not isinstance(found, dict):
        raise FormatError("a line that is no JSON object")
    return found


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def read_request(data: bytes) -> Request:
    """The request on a line of at most REQUEST_BYTES_MAX. `FormatError` says what is wrong with it."""
    if len(data) > REQUEST_BYTES_MAX:
        raise FormatError(f"a request of more than {REQUEST_BYTES_MAX:,} bytes")
    found = document_of(data)
    do = found.pop("do", None)
    if not isinstance(do, str) or do not in REQUESTS:
        raise FormatError(f"no such request: {str(do)[:_LONG]!r}")
    number = found.pop("id", 0)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < ID_MOST:
        raise FormatError("an id that is no small number")
    wanted = REQUESTS[do]
    if unknown := set(found) - set(wanted):
        raise FormatError(f"{do} takes no {str(min(unknown))[:_LONG]!r}")
    args = {}
    for name, kind in wanted.items():
        given = found.get(name, OPTIONAL.get(name))
        try:
            args[name] = values.decode(kind, given)
        except FormatError as e:
            raise FormatError(f"{do}: {name} is {'missing' if name not in found else 'of the wrong kind'}") from e
        _check_text(do, name, args[name])
    return Request(number, do, args)


def _check_text(do: str, name: str, value: Any) -> None:
    if not isinstance(value, str):
        return
    if len(value) > (DIRECTORY_CHARS_MAX if name == "directory" else TEXT_CHARS_MAX):
        raise FormatError(f"{do}: {name} is too long")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise FormatError(f"{do}: {name} has a character that no text has") from e
    if name == "directory" and (not value.startswith("/") or "\0" in value):
        raise FormatError(f"{do}: {name} is no absolute path")


def request(number: int, do: str, args: Mapping[str, Any]) -> bytes:
    """The line of a request."""
    return line({"id": number, "do": do, **{k: values.encode(v) for k, v in args.items() if v is not None}})


def answer(number: int, value: Any, travelled: Travelled | None = None) -> bytes:
    """The line of an answer."""
    return line({"id": number, "ok": values.encode(value), **_moved(travelled)})


def _moved(travelled: Travelled | None) -> dict[str, Any]:
    return {} if travelled is None else {"travelled": values.encode(travelled)}


def travelled_of(found: Mapping[str, Any]) -> Travelled:
    """What travelled for the answer on a line. `FormatError` for nonsense."""
    return values.decode(Travelled, found["travelled"]) if "travelled" in found else Travelled()


def refusal(number: int, error: BaseException, travelled: Travelled | None = None) -> bytes:
    """The line that tells an error. One that is not MetaSync's own is told by its class and text."""
    if isinstance(error, MetaSyncError):
        told = {"message": error.message, "next_step": error.next_step, "exit_code": error.exit_code}
    else:
        step = "`metasync daemon log` tells more."
        told = {"message": f"an error in the daemon: {error!r}"[:TEXT_CHARS_MAX], "next_step": step, "exit_code": 1}
    return line({"id": number, "error": {"kind": type(error).__name__, **told}, **_moved(travelled)})


def error_of(told: Any) -> MetaSyncError:
    """The error that an answer tells, of its own class where there is one. `FormatError` if it tells none."""
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        raise FormatError("an error without a message")
    name = str(told.get("kind"))
    kind = UnservedError if name == UnservedError.__name__ else getattr(errors, name, MetaSyncError)
    if kind is errors.FormatError or not (isinstance(kind, type) and issubclass(kind, MetaSyncError)):
        kind = MetaSyncError
    step = told.get("next_step")
    error = kind(told["message"], next_step=step if isinstance(step, str) else "")
    code = told.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool) and 0 < code < 256:
        error.exit_code = code
    return error


_EVENTS: Final[Mapping[str, type]] = {
    "phase": events.Phase,
    "progress": events.Progress,
    "notice": events.Notice,
    "transferred": events.Transferred,
}


def told(event: events.Event) -> dict[str, Any]:
    """An event of the library as a value."""
    return {type(event).__name__.lower(): values.encode(event)}


def event_of(value: Any) -> events.Event | None:
    """The event that was told; None for one that this version does not know. `FormatError` for nonsense."""
    if not isinstance(value, dict):
        raise FormatError("an event that is no object")
    for name, kind in _EVENTS.items():
        if name in value:
            found: events.Event = values.decode(kind, value[name])
            return found
    return None
