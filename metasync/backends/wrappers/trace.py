"""Writes one line per call on a backend, with all secrets struck out.

    seconds         backend  call  path                bytes     outcome                      ms     attempt
    8123.004512     disk-a   get   5f0c…/px/0/9b1e…    down=512  ok                           0.412  1
    8123.105112     s3       put   5f0c…/packs/0/3a/…  up=41220  UnreachableError: cannot …   60000  1

Tabs part the fields. The clock never goes back. A line is written when its call ends, or when the backend is closed
before that. The content of objects is never written. Credentials, tokens, signed query strings and userinfo are struck
out, in the text of errors too, and control characters are escaped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from metasync.backends.api import Backend, Change
from metasync.backends.registry import TRACE_VARIABLE
from metasync.backends.wrappers.wrapper import ATTEMPT, Call, T, Wrapper
from metasync.errors import MetaSyncError, UsageError

Sink: TypeAlias = Callable[[str], None]
"""Takes one line, without its end. Called from several threads at once."""

TEXT_CHARS_MAX: Final = 600  # of an error's text; the longest of ours have 300
_LOOKED_AT_CHARS_MAX: Final = 1 << 14  # of a text that somebody else's code made; what lies behind is dropped unread
STRUCK: Final = "***"
_SECRET_CHARS_MIN: Final = 6  # a shorter value of a variable is too likely to be part of an ordinary word

_NAMES: Final = (
    r"secret|passw|passphrase|token|credential|signature|authori[sz]ation|cookie|api.?key|access.?key|\bkey|sig\b"
)
_SECRET_VARIABLE: Final = re.compile(r"secret|passw|passphrase|token|credential|access_key|api_?key|private", re.I)
_NOT_SECRET_VARIABLE: Final = re.compile(r"(_FILE|_COMMAND|_PATH|_DIR|_URI)$", re.I)
_PATTERNS: Final = tuple(
    (re.compile(pattern, re.I if fold else 0), put)
    for pattern, put, fold in (
        (r"(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|\Z)", STRUCK, False),
        (r"(\b[a-z][a-z0-9+.-]*://)[^/?#\s'\"]*@", rf"\1{STRUCK}@", True),  # userinfo
        (r"(\b[a-z][a-z0-9+.-]*://[^?\s'\"<>]*)\?[^\s'\"<>]*", rf"\1?{STRUCK}", True),  # a query may be signed
        (r"\b(bearer|basic|digest|aws4-hmac-sha256)\s+[^\s'\"<>]+(,\s*\w+=[^\s'\"<>]+)*", rf"\1 {STRUCK}", True),
        (
            rf"([\w.-]*(?:{_NAMES})[\w.-]*['\"]?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;<>'\"]+)",
            rf"\1{STRUCK}",
            True,
        ),
        (r"<(\w*(?:Key|Token|Signature|StringToSign|Credential|CanonicalRequest)\w*)>[^<]*<", rf"<\1>{STRUCK}<", True),
        (r"\b(?:AKIA|ASIA|AROA)[A-Z0-9]{12,}\b", STRUCK, False),
        # What looks like a token: letters of both cases and digits, as no name of an object has them.
        (r"(?<![\w/+=.-])(?=[\w/+]*[a-z])(?=[\w/+]*[A-Z])(?=[\w/+]*[0-9])[A-Za-z0-9/+]{40}(?![\w/+=-])", STRUCK, False),
        (r"(?<![\w+=-])(?=[\w+=.-]*[a-z])(?=[\w+=.-]*[A-Z])(?=[\w+=.-]*[0-9])[\w+=.-]{20,}", STRUCK, False),
    )
)  # fmt: skip


def redacted(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """`text` without what could be a secret, in one printable line. Strikes out too much rather than too little."""
    text = text[:_LOOKED_AT_CHARS_MAX]
    for name, value in environ.items():
        if (
            len(value) >= _SECRET_CHARS_MIN
            and value in text
            and _SECRET_VARIABLE.search(name)
            and not _NOT_SECRET_VARIABLE.search(name)
        ):
            text = text.replace(value, STRUCK)
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Traced(Wrapper):
    """The same store; every call becomes one line in `sink` when it ends. An error of `sink` costs that line alone."""

    def __init__(
        self,
        inner: Backend,
        name: str,
        sink: Sink,
        *,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(inner)
        self._name = redacted(name, environ)
        self._sink = sink
        self._clock = clock
        self._environ = environ
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[float, Call, int]] = {}

    def around(self, call: Call, do: Callable[[], T]) -> T:
        began, attempt, number = self._clock(), ATTEMPT.get(), next(self._numbers)
        with self._lock:
            self._pending[number] = (began, call, attempt)
        outcome, down_bytes = "ok", 0
        try:
            value = do()
            if value is False:
                outcome = "taken"
            elif isinstance(value, bytes) and call.kind == "get":
                down_bytes = len(value)
            return value
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            with self._lock:
                told = self._pending.pop(number, None) is None
            if not told:
                self._tell(began, call, attempt, outcome, down_bytes)

    def _watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        return self.around(Call("watch", path), lambda: super(Traced, self)._watch(path, cursor, timeout_s))

    def close(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for began, call, attempt in pending.values():
            self._tell(began, call, attempt, "no answer yet", 0)
        self.inner.close()

    def _tell(self, began: float, call: Call, attempt: int, outcome: str, down_bytes: int) -> None:
        moved = f"up={call.up_bytes}" if call.up_bytes else f"down={down_bytes}" if down_bytes else "-"
        path = redacted(call.path, self._environ)[:TEXT_CHARS_MAX] or "-"
        said = redacted(outcome, self._environ)[:TEXT_CHARS_MAX]
        _write(self._sink, began, self._clock(), (self._name, call.kind, path, moved, said), attempt)


def traced(name: str, opening: Callable[[], Backend], sink: Sink) -> Backend:
    """Opens a backend under observation; the opening is a line as well."""
    began = time.monotonic()
    outcome = "ok"
    try:
        return Traced(opening(), name, sink)
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        _write(sink, began, time.monotonic(), (name, "open", "-", "-", redacted(outcome)[:TEXT_CHARS_MAX]), 1)


def _write(sink: Sink, began: float, ended: float, fields: tuple[str, ...], attempt: int) -> None:
    with contextlib.suppress(Exception):  # a trace that cannot be written is no reason to fail a push
        sink("\t".join((f"{began:.6f}", *fields, f"{1000 * (ended - began):.3f}", str(attempt))))


def _outcome(error: BaseException) -> str:
    text = error.message if isinstance(error, MetaSyncError) else str(error)
    return f"{type(error).__name__}: {text}"


def file_sink(path: str) -> Sink:
    """A sink that appends to a file, which only its owner can read. `UsageError` if it cannot be made.

    Each line is one open and one write, so that processes may share the file, and it may be moved away.
    """
    path = os.path.abspath(path)

    def write(line: str) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
        try:
            if stat.S_ISREG(mode := os.fstat(file).st_mode) and stat.S_IMODE(mode) & 0o077:
                os.fchmod(file, 0o600)
            if line:
                os.write(file, f"{line}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)

    try:
        write("")
    except OSError as error:
        raise UsageError(
            f"cannot write the trace to {path}: {error.strerror}",
            next_step=f"Name another file in {TRACE_VARIABLE}, or unset it.",
        ) from error
    return write
