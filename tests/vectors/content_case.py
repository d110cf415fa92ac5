"""A golden vector of content formats: what one file of `content/` holds."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from metasync.store import retention

OK, FORMAT, UPGRADE, INTEGRITY = "ok", "FormatError", "UpgradeError", "IntegrityError"
Case = dict[str, Any]
Cases = Iterator[tuple[str, Case]]


def plain(value: Any) -> Any:
    """A value as JSON shows it: bytes in hex, records by field, enums by name."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, retention.Keep):
        return str(value)
    if hasattr(value, "_asdict"):
        return {k: plain(v) for k, v in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {(k.hex() if isinstance(k, bytes) else k): plain(v) for k, v in value.items()}
    return value


def lines(data: bytes) -> list[str]:
    """Hex in lines of 32 bytes, so that a diff shows what changed."""
    return [data[i : i + 32].hex() for i in range(0, len(data), 32)]


def case(what: str, about: str, expect: str, data: bytes, **more: Any) -> Case:
    return {
        "what": what,
        "about": about,
        "expect": expect,
        **{k: plain(v) for k, v in more.items()},
        "hex": lines(data),
    }
