"""Durations and sizes as users write them: 90s, 1h30m, P7D; 64MB, 1GB."""

from __future__ import annotations

import re

NUMBER = r"(\d+(?:\.\d+)?)"
DURATION = re.compile(
    rf"P?(?:{NUMBER}D)?T?(?:{NUMBER}H)?(?:{NUMBER}M)?(?:{NUMBER}S)?(?:{NUMBER}MS)?", re.IGNORECASE
)
DURATION_EXAMPLES = "PT1H30M, P7D, 90s, 1h30m, 500ms"
SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SIZE_EXAMPLES = "128MB, 1GB, 500kB, 1000000"


def duration_ms(text: str) -> int:
    """Parse a duration into milliseconds, in ISO 8601 (P1DT2H) or short (1d2h, 500ms). Raises ValueError."""
    match = DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration. Accepted: {DURATION_EXAMPLES}.")
    days, hours, minutes, seconds, milliseconds = (float(number or 0) for number in match.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds)


def size_bytes(text: str) -> int:
    """Parse a size above 0 into bytes. Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in SIZE_UNITS or not int(match[1]):
        raise ValueError(f"{text!r} is not a size; accepted: {SIZE_EXAMPLES}.")
    return int(match[1]) * SIZE_UNITS[match[2].upper()]
