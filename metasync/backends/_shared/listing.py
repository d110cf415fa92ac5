"""Reads a page of a listing as object stores write it in XML: Amazon's and Google's form, and Azure's.

Nobody vouches for the server. So a document type is refused (entities that grow, files that are named), only names,
sizes, tags, times and the mark of the next page are kept, and everything has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple
from xml.parsers import expat

from metasync.errors import FormatError

PAGE_BYTES_MAX: Final = 4 << 20  # a page has at most 1,000 names (Azure: 5,000) of 1,024 bytes, and 300 bytes beside
_TEXT_CHARS_MAX: Final = 1 << 14
_DEPTH_MAX: Final = 16
_SIZE_DIGITS_MAX: Final = 19
_ROOTS: Final = {"ListBucketResult", "EnumerationResults"}
_OBJECTS: Final = {"Contents", "Blob"}
_FOLDERS: Final = {"CommonPrefixes", "BlobPrefix"}
_NAMES: Final = {"Key", "Prefix", "Name"}
_SIZES: Final = {"Size", "Content-Length"}
_NEXT: Final = {"NextContinuationToken", "NextMarker"}
_TIMES: Final = {"LastModified", "Last-Modified"}
_MARK_CHARS_MAX: Final = 64  # of a tag or a time


class Entry(NamedTuple):
    """An object, or a folder (of no size), by its full name. `tag`: the ETag, `changed`: when; "" where not told."""

    name: str
    size: int | None
    tag: str = ""
    changed: str = ""


@dataclass
class Page:
    """One page. `following`: the mark of the next page, "" for none."""

    entries: list[Entry] = field(default_factory=list)
    following: str = ""


class _Reader:
    def __init__(self) -> None:
        self.page = Page()
        self._open: list[str] = []
        self._text: list[str] = []
        self._chars = 0
        self._name: str | None = None
        self._size: int | None = None
        self._tag = self._changed = ""

    def start(self, name: str, _attributes: object) -> None:
        self._open.append(name)
        if len(self._open) > _DEPTH_MAX or (len(self._open) == 1 and name not in _ROOTS):
            raise FormatError("not a listing")
        if name in _OBJECTS or name in _FOLDERS:
            self._name = self._size = None
            self._tag = self._changed = ""
        self._text, self._chars = [], 0

    def text(self, data: str) -> None:
        self._chars += len(data)
        if self._chars > _TEXT_CHARS_MAX:
            raise FormatError("not a listing")
        self._text.append(data)

    def end(self, name: str) -> None:
        self._open.pop()
        above = self._open[-1] if self._open else ""
        text = "".join(self._text)
        if name in _NAMES and above in _OBJECTS | _FOLDERS:
            self._name = text
        elif name in _SIZES and above in _OBJECTS | {"Properties"}:
            if not (text.isascii() and text.isdecimal() and len(text) <= _SIZE_DIGITS_MAX):
                raise FormatError("not a listing")
            self._size = int(text)
        elif name == "ETag" and above in _OBJECTS:
            self._tag = text[:_MARK_CHARS_MAX]
        elif name in _TIMES and above in _OBJECTS | {"Properties"}:
            self._changed = text[:_MARK_CHARS_MAX]
        elif name in _OBJECTS:
            if self._name is None or self._size is None:
                raise FormatError("not a listing")
            self.page.entries.append(Entry(self._name, self._size, self._tag, self._changed))
        elif name in _FOLDERS:
            if self._name is None:
                raise FormatError("not a listing")
            self.page.entries.append(Entry(self._name, None))
        elif name in _NEXT and len(self._open) == 1:
            self.page.following = text


def read_page(data: bytes) -> Page:
    """One page of a listing. `FormatError` for anything else."""
    reader = _Reader()

    def refuse(*_: object) -> None:
        raise FormatError("not a listing")

    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError:
        raise FormatError("not a listing") from None
    return reader.page
