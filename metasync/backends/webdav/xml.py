"""Reads the answer to a PROPFIND (RFC 4918, 14): what lies below a folder, and how much room there is.

Nobody vouches for the server. So a document type is refused (entities that grow, files that are named), only names and
numbers are kept, and everything has a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit
from xml.parsers import expat

_DAV = "DAV: "  # as expat writes the namespace before a name
_TEXT_CHARS_MAX = 1 << 14  # of one element; the longest path that servers take is 4096 bytes, three characters for each
_DEPTH_MAX = 64
_FOUND_MAX = 1 << 20  # names in one folder
_KEPT = ("href", "status", "getcontentlength", "quota-available-bytes", "quota-used-bytes")


class NotXmlError(Exception):
    """The answer is not what a PROPFIND is answered with."""


class Found(NamedTuple):
    """One resource. `path` is decoded and has no slash at its end; None where a property was not told."""

    path: str
    is_folder: bool
    size: int | None
    free_bytes: int | None
    used_bytes: int | None


class _Reader:
    """Takes the events of the parser, and keeps what is asked for."""

    def __init__(self, base: str) -> None:
        self.found: list[Found] = []
        self._base = base
        self._open: list[str] = []
        self._text: list[str] = []
        self._chars = 0
        self._kept: dict[str, str] = {}  # of the response, or of the propstat that is being read
        self._told: dict[str, str] = {}  # of the response's sound propstats
        self._href = ""

    def start(self, name: str, _attributes: Any) -> None:
        self._open.append(name)
        if len(self._open) > _DEPTH_MAX or (len(self._open) == 1 and name != f"{_DAV}multistatus"):
            raise NotXmlError("not a multistatus")
        if name == f"{_DAV}response":
            self._href, self._told, self._kept = "", {}, {}
        elif name == f"{_DAV}propstat":
            self._kept = {}
        elif name == f"{_DAV}collection" and self._open[-2:-1] == [f"{_DAV}resourcetype"]:
            self._kept["folder"] = "yes"
        self._text, self._chars = [], 0

    def text(self, data: str) -> None:
        self._chars += len(data)
        if self._chars > _TEXT_CHARS_MAX:
            raise NotXmlError("an element is too long")
        self._text.append(data)

    def end(self, name: str) -> None:
        self._open.pop()
        kept = name.removeprefix(_DAV)
        if kept == "href" and self._open[-1:] == [f"{_DAV}response"]:
            self._href = "".join(self._text).strip()
        elif kept in _KEPT:
            self._kept[kept] = "".join(self._text).strip()
        elif name == f"{_DAV}propstat":
            if " 200" in self._kept.get("status", " 200"):
                self._told.update(self._kept)
            self._kept = {}
        elif name == f"{_DAV}response" and self._href and " 404" not in self._kept.get("status", ""):
            if len(self.found) >= _FOUND_MAX:
                raise NotXmlError("too many names")
            told = self._told
            self.found.append(
                Found(
                    _path_of(self._href, self._base),
                    "folder" in told,
                    _number(told.get("getcontentlength")),
                    _number(told.get("quota-available-bytes")),
                    _number(told.get("quota-used-bytes")),
                )
            )
        self._text, self._chars = [], 0


def read_multistatus(pieces: Iterable[bytes], base: str) -> list[Found]:
    """All resources that an answer tells of. `base`: the address asked. `NotXmlError` for anything else."""
    reader = _Reader(base)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:
        for piece in pieces:
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise NotXmlError("not well-formed") from error
    return reader.found


def below(found: Iterable[Found], base: str) -> list[tuple[str, Found]]:
    """The names directly below the folder asked for, with what they stand for.

    A server behind a proxy may have another path for the folder: then it is the one above all others. Some servers
    leave the folder itself out: then it is what is above them.
    """
    items = list(found)
    own = _path_of(urlsplit(base).path, base)
    if not any(item.path == own or item.path.startswith(f"{own}/") for item in items):
        own = min((item.path for item in items), key=len, default=own)
        if not all(item.path == own or item.path.startswith(f"{own}/") for item in items):
            own = own.rpartition("/")[0]
    above = f"{own}/"
    return [
        (item.path[len(above) :], item)
        for item in items
        if item.path.startswith(above) and "/" not in item.path[len(above) :]
    ]


def _refuse(*_: Any) -> None:
    raise NotXmlError("it declares a document type")


def _path_of(href: str, base: str) -> str:
    try:
        path = href if href.startswith("/") and not href.startswith("//") else urlsplit(urljoin(base, href)).path
    except ValueError:
        raise NotXmlError("not an address") from None
    return unquote(path.partition("?")[0], errors="surrogateescape").rstrip("/")


def _number(text: str | None) -> int | None:
    """None too for what is negative: Nextcloud says -3 for "no limit", -2 for "unknown"."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None
