"""What reports are put into words with: safe names, sizes, times, lists; and reports as JSON values. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from metasync.codec import amount, printable
from metasync.local.spill import Paths
from metasync.terminal.style import signed

NO_VALUES = frozenset({"error", "workspace"})  # fields of reports that hold live objects, for the library alone
RESOLVE = "Compare the two, then: metasync resolve PATH --keep ours|theirs|NAME|both"
EXAMPLES_MAX = 3  # in a line
CLOCKS_APART_S = 300  # another device's clock may be so far ahead
DAYS_COUNTED = 14  # of what is longer ago the date tells more
LISTED_MAX = 20  # paths shown per kind before "and N more"


def text(path: bytes) -> str:
    """A path for people and for JSON: UTF-8 where it is, what can't be shown as `\\xNN` or `\\uNNNN`.

    Each path has a text of its own: from `\\x80` on it is a byte that is no UTF-8, a character from U+0080 on is
    `\\u0080`, and a backslash is doubled.
    """
    line = path.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    return printable(line)


def sentence(text: str) -> str:
    """With a capital at its beginning, unless that is a command, or a name that the rest is said of (`nas: ...`)."""
    is_name = text.partition(" ")[0].endswith(":")
    return text if is_name or text.startswith("metasync ") else text[:1].upper() + text[1:]


def size(n: int) -> str:
    """Bytes in a unit that fits, powers of 1,024."""
    return amount(n)


def count(n: int, what: str, plural: str | None = None) -> str:
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


def when(time_ns: int) -> str:
    """Local time to the second, or the raw number when it is no date."""
    try:
        return dt.datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


def ago(then_ns: int, now_ns: int) -> str:
    """How long ago something was, in the largest unit; what lies far back, or in the future, by its day."""
    seconds = (now_ns - then_ns) / 1e9
    if -CLOCKS_APART_S < seconds < 60:
        return "just now"
    for unit_s, unit, units in ((60, "minute", 60), (3600, "hour", 24), (86400, "day", DAYS_COUNTED)):
        if 0 <= seconds < unit_s * units:
            return f"{count(int(seconds // unit_s), unit)} ago"
    return f"on {when(then_ns)[:10]}"


def since(then_ns: int, now_ns: int) -> str:
    """When something began that lasts: the time of today, the day of this week, else the date. Local time."""
    then, now = (_local(ns) for ns in (then_ns, now_ns))
    if then is None or now is None or not 0 <= (now.date() - then.date()).days < 7:
        return when(then_ns)[:10]
    return then.strftime("%H:%M" if then.date() == now.date() else "%A")


def _local(time_ns: int) -> dt.datetime | None:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return dt.datetime.fromtimestamp(time_ns / 1e9).astimezone()
    return None


def listed(sign: str, paths: Sequence[bytes], most: int = LISTED_MAX) -> list[str]:
    lines: list[str] = ["  " + signed(sign, text(p)) for p in paths[:most]]
    if len(paths) > most:
        lines.append("  " + signed(sign, f"... and {len(paths) - most:,} more"))
    return lines


def warnings(items: Sequence[str]) -> list[str]:
    return [f"warning: {w}" for w in items]


def value(x: Any) -> Any:
    """A JSON value of a report: dataclasses and named tuples as objects, paths as text, other bytes in hex."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: _field(f.name, getattr(x, f.name)) for f in dataclasses.fields(x) if f.name not in NO_VALUES}
    if isinstance(x, bytes):
        return text(x)
    if isinstance(x, Mapping):
        return {str(k): value(v) for k, v in x.items()}
    if isinstance(x, tuple | list | Paths):
        return [value(v) for v in x]
    return x


def _field(name: str, x: Any) -> Any:
    if isinstance(x, bytes) and name in ("snapshot", "pack"):
        return x.hex()
    if name == "lost":
        return [p.hex() for p in x]
    return value(x)
