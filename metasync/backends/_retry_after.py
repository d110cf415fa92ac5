"""What a server says in Retry-After: for how long it wants to be left alone (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

SILENT_S: Final = 1.0
"""Where a server that asks for fewer requests does not say when to come back."""
MOST_S: Final = 3600.0  # as `_allowance` has it: a server that asks for more is asked once an hour
_DATE_CHARS_MAX: Final = 64


def retry_after_s(said: str | None, date: str | None = None, now: datetime | None = None) -> float | None:
    """The seconds of a Retry-After: a number, or a date. None where there is none that can be read. Bounded.

    `date`: the answer's own Date, by which a date is counted: the server's clock and ours may differ by hours. `now`
    stands in for ours.
    """
    said = (said or "").strip()
    if re.fullmatch(r"[0-9]{1,10}", said):
        return min(float(said), MOST_S)
    until = _time(said)
    if until is None:
        return None
    began = _time(date or "") or now or datetime.now(UTC)
    return min(max(0.0, (until - began).total_seconds()), MOST_S)


def _time(text: str) -> datetime | None:
    if not text:
        return None
    import email.utils  # 4 ms, and a date is rare

    try:
        at = email.utils.parsedate_to_datetime(text[:_DATE_CHARS_MAX])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
