"""The time that scenarios' records bear: the same for all brokers, and recent, or retention would delete them."""

from __future__ import annotations

import time

HOUR_MS = 3_600_000

#: An hour before the judge began, in milliseconds. Answers tell times as distances from it.
T0 = (int(time.time()) - 3600) * 1000


def told(milliseconds: int) -> str:
    """A time of a scenario's record as `T0+5`; any other number as it is."""
    distance = milliseconds - T0
    return f"T0{distance:+d}" if abs(distance) < 100 * HOUR_MS else str(milliseconds)
