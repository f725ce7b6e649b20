"""Regular expressions in the requests of clients, by RE2, as in Kafka (RE2/J).

A match takes time linear in the text: Python's `re` backtracks, and a client could stop the broker by one pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from korvet.protocol.errors import InvalidRegularExpression

OPTIONS = re2.Options()
OPTIONS.max_mem = 1 << 20  # bytes of a compiled pattern and of the states that a match meets
OPTIONS.log_errors = False


def compiled(pattern: str) -> Callable[[str], bool]:
    """Return a function that is true for texts of which the whole matches. Raises InvalidRegularExpression."""
    try:
        found = re2.compile(pattern, OPTIONS)
    except re2.error as error:
        raise InvalidRegularExpression(
            f"{pattern!r} is not a regular expression: {_reason(error)}."
        ) from None
    return lambda text: found.fullmatch(text) is not None


def _reason(error: re2.error) -> str:
    (reason,) = error.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
