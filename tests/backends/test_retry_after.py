"""Retry-After, as servers write it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from metasync.backends._shared.http import MOST_S, retry_after_s

NOW = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("9999999999", MOST_S),
        ("Sat, 21 Nov 2026 08:00:09 GMT", 9.0),
        ("Saturday, 21-Nov-26 08:00:09 GMT", 9.0),
        ("Sat, 21 Nov 2026 08:00:09 -0000", 9.0),
        ("Sat, 21 Nov 2026 09:00:09 +0100", 9.0),
        ("Sat, 21 Nov 2026 07:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2099 08:00:00 GMT", MOST_S),
    ],
)
def test_a_number_or_a_date(said: str, seconds: float) -> None:
    assert retry_after_s(said, now=NOW) == seconds


@pytest.mark.parametrize(
    "said", [None, "", "-1", "1.5e9", "soon", "9" * 400, "\u0667", "Sat, 99 Nov 2026 08:00:09 GMT", "nan", "inf"]
)
def test_what_cannot_be_read_says_nothing(said: str | None) -> None:
    assert retry_after_s(said, now=NOW) is None


def test_a_date_is_counted_by_the_servers_clock() -> None:
    """A clock here that is an hour late must not make a wait of nine seconds one of an hour, nor none of it."""
    said, date = "Sat, 21 Nov 2026 08:00:09 GMT", "Sat, 21 Nov 2026 08:00:00 GMT"
    for hour in (7, 9):
        assert retry_after_s(said, date, now=NOW.replace(hour=hour)) == 9.0
    assert retry_after_s(said, "yesterday", now=NOW) == 9.0
    assert retry_after_s("9", date, now=NOW.replace(hour=7)) == 9.0
