"""Timestamps of the scenarios' records: equal for all brokers, and recent, so that retention keeps the records."""

from __future__ import annotations

import time

HOUR_MS = 3_600_000

#: An hour before the program started, in milliseconds. Timestamps are shown relative to it.
T0 = (int(time.time()) - 3600) * 1000


def formatted(milliseconds: int) -> str:
    """Format a timestamp of a scenario's record as `T0+5`; any other number unchanged."""
    distance = milliseconds - T0
    return f"T0{distance:+d}" if abs(distance) < 100 * HOUR_MS else str(milliseconds)
