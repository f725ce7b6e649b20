"""Hooks at the phases of a request, for counting and timing.

A request is *received* (the broker has read its bytes), *queued* (it waited for an earlier request, or for memory),
*handled* (its response is complete), *stored* (its records are appended) and *sent* (its response is written). The
default implementation does nothing; metrics are a subclass, passed to the server when it starts.
"""

from __future__ import annotations


class Counters:
    """The hooks, which do nothing. Subclasses must be quick and never raise: every request calls the hooks."""

    def received(self, api: str, size: int) -> None:
        """Count a request of `size` bytes that was read."""

    def queued(self, api: str, seconds: float) -> None:
        """Count a request whose handling begins, `seconds` after it was ready to be handled."""

    def handled(self, api: str) -> None:
        """Count a request whose response is complete."""

    def stored(self, records: int, size: int) -> None:
        """Count appended records, with the `size` of their batches in bytes."""

    def sent(self, api: str, size: int) -> None:
        """Count a response of `size` bytes that was passed to the operating system."""

    def connected(self, connections: int) -> None:
        """Record the number of open connections after one was opened or closed."""
