"""Numbers, sizes and times as the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

from korvet.protocol.text import size_text

DASH = "–"


def count(number: int | None) -> str:
    """Return a number with separators, or a dash if it is unknown."""
    return DASH if number is None else f"{number:,}"


def data_size(number: int | None) -> str:
    """Return a number of bytes with a unit, or a dash if it is unknown."""
    return DASH if number is None or number < 0 else size_text(number)


def time_text(timestamp_ms: int) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC, or a dash if there is none."""
    if timestamp_ms < 0:
        return DASH
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return str(timestamp_ms)
