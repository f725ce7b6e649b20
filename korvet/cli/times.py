"""Points in time and durations as users write them: an ISO 8601 time, or milliseconds since 1970 as on the wire."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

from korvet.config import units
from korvet.config.units import DURATION_EXAMPLES, NUMBER

# Names of the special timestamps of ListOffsets.
NAMED = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
EXAMPLES = "2026-03-01, 2026-03-01T12:30:00+01:00 or milliseconds such as 1767225600000"


def parse_time(text: str) -> int:
    """Parse a time into milliseconds since 1970. A time without a zone is UTC, as in Kafka's tools."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time. Accepted: {EXAMPLES}.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return round(time.time() * 1000)


def parse_duration(text: str) -> int:
    """Parse a duration into milliseconds, in ISO 8601 (P1DT2H) or short (1d2h, 500ms)."""
    try:
        return units.duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def duration_ms(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Parse the duration of an option."""
    return parse_duration(text)


def interval_s(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Parse the interval of an option into seconds. It is more than 0, and in seconds if it has no unit."""
    if text is None:
        return None
    interval_ms = parse_duration(f"{text.strip()}s" if re.fullmatch(NUMBER, text.strip()) else text)
    if interval_ms == 0:
        raise click.BadParameter(f"{text!r} is not above 0. Accepted: {DURATION_EXAMPLES}.")
    return interval_ms / 1000


def parse_named_time(text: str) -> int:
    """Parse a timestamp for ListOffsets: a time, a name of `NAMED`, or its number as in GetOffsetShell."""
    if text in NAMED:
        return NAMED[text]
    if text in (str(number) for number in NAMED.values()):
        return int(text)
    try:
        return parse_time(text)
    except click.BadParameter:
        names = ", ".join(NAMED)
        raise click.BadParameter(
            f"{text!r} is neither {names}, nor the number of one of them, -1 to -6, nor a time."
            f" Times are written as {EXAMPLES}."
        ) from None


def format_time(timestamp_ms: int) -> str:
    """Format a time in milliseconds as ISO 8601 in UTC. Return a dash for a negative one."""
    if timestamp_ms < 0:
        return "-"
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
