"""Text from clients: check its length, and quote it for log lines. And sizes, as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

# The name, or the version, of a client's software (KIP-511).
SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
LONGEST = 100
# The longest text with an int16 length, as in versions that are not flexible, so that all versions can return it.
LONGEST_ID_BYTES = 2**15 - 1
SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def quoted(text: str) -> str:
    """Return the text quoted, in one line and of limited length."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}… ({len(text)} characters)"


def quoted_list(texts: list[str], most: int = 5) -> str:
    """Return the first texts quoted, and the number of the others."""
    listed = ", ".join(map(quoted, texts[:most]))
    return listed if len(texts) <= most else f"{listed} and {len(texts) - most} more"


def size_text(count: float) -> str:
    """Return a number of bytes with a unit and up to three digits: 999 B, 1.5 kB, 128 MB."""
    size = float(count)
    for unit in SIZE_UNITS:
        if abs(size) < 999.5 or unit == SIZE_UNITS[-1]:
            break
        size /= 1000
    number = f"{size:,.0f}" if abs(size) >= 99.95 else f"{size:.1f}".removesuffix(".0")
    return f"{number} {unit}"


def time_text(timestamp_ms: int) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC, or its number beyond the year 9999."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


def duration_text(ms: int) -> str:
    """Return a time of the right size: 250 ms, 12 s, 5 min, 3 h, 2 d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.0f} {unit}"
    return f"{ms} ms"


def is_longer(text: str, limit: int) -> bool:
    """Return True if the text has more than `limit` bytes."""
    return len(text) > limit or len(text.encode()) > limit


def is_software(*texts: str) -> bool:
    """Return True if the texts may be the name and the version of a client's software."""
    return all(SOFTWARE.fullmatch(text) for text in texts)
