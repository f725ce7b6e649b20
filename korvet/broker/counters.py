"""Hooks at events of the broker, for counting and timing.

The phases of a request are *received* (the broker reads its bytes), *queued* (it waits for an earlier request, or for
memory), *handled* (its handler runs), *stored* (the store appends its records) and *sent* (its response is written).
The default implementation does nothing; metrics are a subclass, passed to the server when it starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.protocol.buffers import Buffer


class Counters:
    """The hooks, which do nothing. Subclasses must be quick and never raise: every request calls the hooks."""

    #: True if the hooks use their arguments. Callers do not measure times for a class that ignores them.
    is_counting: bool = False

    # --- Requests ---------------------------------------------------------------------------------------

    def received(self, api: str, size: int) -> None:
        """Count a request of `size` bytes that was read."""

    def answered(self, api: str, version: int, response: object) -> None:
        """Count a response that is about to be sent, or None for a request without one."""

    def sent(
        self,
        api: str,
        size: int,
        received_s: float,
        queued_s: float,
        handled_s: float,
        stored_s: float,
        sent_s: float,
    ) -> None:
        """Count a response of `size` bytes that was passed to the operating system, and the seconds of each phase."""

    # --- Records ----------------------------------------------------------------------------------------

    def stored(self, topic: str, records: int, size: int) -> None:
        """Count an appended batch, with the `size` of the batch in bytes."""

    async def fetched(self, topic: str, batches: Sequence[Buffer]) -> None:
        """Count record batches that a response contains. Each buffer has one or more whole batches."""

    # --- Connections ------------------------------------------------------------------------------------

    def opened(self, listener: str, connections: int) -> None:
        """Count a connection that was accepted; `connections` are open now."""

    def identified(self, listener: str, name: str, version: str) -> None:
        """Record the name and version of the software of a connection's client, before `closed`."""

    def closed(self, listener: str, software: tuple[str, str] | None, connections: int) -> None:
        """Count a connection that has ended; `software` is what `identified` was called with."""

    def aborted(self, reason: str) -> None:
        """Count a connection that the broker has closed, for one of ABORT_REASONS."""


#: The client violated the protocol; a request could only be answered by closing; an error in korvet; too slow or idle.
ABORT_REASONS = ("protocol", "refused", "internal", "overdue")
