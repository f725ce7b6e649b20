"""Numbers, sizes and times as the pages show them."""

from __future__ import annotations

from korvet.protocol import text

DASH = "–"


def count(number: int | None) -> str:
    """Return a number with separators, or a dash if it is unknown."""
    return DASH if number is None else f"{number:,}"


def data_size(number: int | None) -> str:
    """Return a number of bytes with a unit, or a dash if it is unknown."""
    return DASH if number is None or number < 0 else text.size_text(number)


def duration(seconds: float | None) -> str:
    """Return a time in seconds with a unit, or a dash if it is unknown."""
    if seconds is None:
        return DASH
    return f"{seconds:.0f} s" if seconds < 60 else text.duration_text(round(seconds * 1000))


def time_text(timestamp_ms: int | None) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC, or a dash if there is none."""
    return DASH if timestamp_ms is None or timestamp_ms < 0 else text.time_text(timestamp_ms)
