"""Text from clients: check its length, and quote it for log lines."""

from __future__ import annotations

import re

# The name, or the version, of a client's software (KIP-511).
SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
LONGEST = 100
# The longest text with an int16 length, as in versions that are not flexible, so that all versions can return it.
LONGEST_ID_BYTES = 2**15 - 1


def quoted(text: str) -> str:
    """Return the text quoted, in one line and of limited length."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}… ({len(text)} characters)"


def quoted_list(texts: list[str], most: int = 5) -> str:
    """Return the first texts quoted, and the number of the others."""
    listed = ", ".join(map(quoted, texts[:most]))
    return listed if len(texts) <= most else f"{listed} and {len(texts) - most} more"


def is_longer(text: str, limit: int) -> bool:
    """Return True if the text has more than `limit` bytes."""
    return len(text) > limit or len(text.encode()) > limit


def is_software(*texts: str) -> bool:
    """Return True if the texts may be the name and the version of a client's software."""
    return all(SOFTWARE.fullmatch(text) for text in texts)
