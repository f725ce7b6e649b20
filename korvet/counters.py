"""Where a request's phases begin and end, for whoever wants to count or time them.

A request is *received* (its bytes are here), *queued* (it waited for its turn, or for memory), *handled* (its
answer is made), *stored* (what it appended is kept) and *sent* (its answer has left). Nothing is counted by
default; metrics are a subclass, given to the server when it starts.
"""

from __future__ import annotations


class Counters:
    """Does nothing. Called on every request, so implementations are quick and never raise."""

    def received(self, api: str, size: int) -> None:
        """A request of `size` bytes was read."""

    def queued(self, api: str, seconds: float) -> None:
        """A request began to be worked on, `seconds` after it could have been."""

    def handled(self, api: str) -> None:
        """The answer to a request is made."""

    def stored(self, records: int, size: int) -> None:
        """Records were appended, `size` bytes in batches."""

    def sent(self, api: str, size: int) -> None:
        """An answer of `size` bytes was handed to the system."""

    def connected(self, connections: int) -> None:
        """A connection began or ended; so many are open now."""
