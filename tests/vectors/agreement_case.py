"""A golden vector of the agreement's records: what one file of `agreement/` holds, and what was sealed at first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from metasync.keys.derive import Recipient, seal_to, sha256

KEPT = Path(__file__).resolve().parent / "sealed.json"  # what was sealed to devices: there the library draws chance
OK, FORMAT, UPGRADE, PASSPHRASE = "ok", "FormatError", "UpgradeError", "PassphraseError"
Case = dict[str, Any]
Cases = Iterator[tuple[str, Case]]


def plain(x: Any) -> Any:
    """A value as JSON shows it: bytes in hex, records by field, enums by name."""
    if isinstance(x, bytes):
        return x.hex()
    if isinstance(x, Enum):
        return x.name
    if hasattr(x, "_asdict"):
        return {k: plain(v) for k, v in x._asdict().items()}
    if is_dataclass(x) and not isinstance(x, type):
        return {"is": type(x).__name__, **{f.name: plain(getattr(x, f.name)) for f in fields(x)}}
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [plain(v) for v in x]
    return x


def case(what: str, about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
    return {
        "what": what,
        "about": about,
        "expect": expect,
        **{k: plain(v) for k, v in more.items()},
        "data": data.hex(),
    }


SEALED: dict[str, str] = json.loads(KEPT.read_text("utf-8"))
USED: set[str] = set()


def sealed_once(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
    """What `seal_to` gave the first time."""
    key = sha256(public.encode() + secret + label.encode() + salt).hex()
    USED.add(key)
    if key not in SEALED:
        SEALED[key] = seal_to(public, secret, label, salt).hex()
    return bytes.fromhex(SEALED[key])


def cut(data: bytes, at: int, put: bytes) -> bytes:
    """`data` with other bytes at a place."""
    return data[:at] + put + data[at + len(put) :]
