"""What every provider checks alike: object names, the part of an object asked for, and its native identity."""

from __future__ import annotations

import hashlib
import re

from metasync.errors import RefusedError

TEMP_PREFIX = ".tmp-"
"""Names that begin so are half-written objects: no object is called that, and no list shows one."""

# 200: HMAC and hash names are 64; the rest is room below the 255 bytes that file systems take for one name.
_PART = rf"(?!\.\.?(?:/|\Z))(?!{re.escape(TEMP_PREFIX)})[a-z0-9._-]{{1,200}}"
_NAME = re.compile(_PART)
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")


def split_path(path: str) -> tuple[str, ...]:
    """The parts of an object's path. `ValueError` if it is none: that is a mistake of ours, never the store's."""
    if _PATH.fullmatch(path) is None:
        raise ValueError(f"not a path in a backend: {path!r}")
    return tuple(path.split("/"))


def split_folder(path: str) -> tuple[str, ...]:
    """As `split_path`, for what is listed: "" is the root."""
    return split_path(path) if path else ()


def is_name(name: str) -> bool:
    """Whether an object can have this name; lists leave out all that cannot be asked for again."""
    return _NAME.fullmatch(name) is not None


def check_part(offset: int, length: int | None, max_bytes: int) -> None:
    """`ValueError` for a part of an object that cannot be."""
    if offset < 0 or max_bytes < 0 or (length is not None and length < 0):
        raise ValueError(f"not a part of an object: offset={offset} length={length} max_bytes={max_bytes}")


def count_bytes(size_bytes: int, offset: int, length: int | None, max_bytes: int, what: str) -> int:
    """How many bytes of an object of `size_bytes` are asked for. `RefusedError` if those are more than `max_bytes`."""
    count = max(0, size_bytes - offset)
    if length is not None:
        count = min(count, length)
    if count > max_bytes:
        raise RefusedError(f"{what} has {count} bytes where at most {max_bytes} were expected")
    return count


def native_identity(scope: str, place: str) -> bytes:
    """32 bytes: 16 for `scope`, in which places can be compared (a machine, an endpoint), 16 for the place in it.

    Equal in all 32: the same store. Equal scopes, unequal places: another store (a copy of the folder, say). Unequal
    scopes tell nothing: the same store may have been reached from another machine or under another name.
    """
    return _digest(scope) + _digest(f"{scope}\0{place}")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16]
