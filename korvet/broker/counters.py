"""Hooks at events of the broker, for counting and timing.

The phases of a request are *received* (the broker reads its bytes), *queued* (it waits for an earlier request, or for
memory), *handled* (its handler runs), *stored* (the store appends its records) and *sent* (its response is written).
The default implementation does nothing; metrics are a subclass, passed to the server when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from korvet.broker.context import RequestContext
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.steps import Steps

if TYPE_CHECKING:
    from korvet.protocol.connection import Request


class TimedExchange(Protocol):
    """A request with the times of its phases, if the broker counts. Points in time are those of `monotonic`."""

    request: Request
    context: RequestContext
    began: float  # the request was complete
    received_s: float
    queued_s: float
    handled_at: float  # the handler has returned
    answered_at: float  # the response was ready to be sent

    @property
    def pending(self) -> object:
        """None if the handler has returned the response itself."""


class Counters:
    """The hooks, which do nothing. Subclasses must be quick and never raise: every request calls the hooks."""

    #: True if the hooks use their arguments. Callers do not measure times for a class that ignores them.
    is_counting: bool = False

    # --- Requests ---------------------------------------------------------------------------------------

    def received(self, api: str) -> None:
        """Count a request that was read."""

    def failed(self, api: str, response: object) -> None:
        """Count the error codes of a response that is about to be sent, if it has any. None is no response."""

    def answered(self, exchange: TimedExchange, size: int, sent_at: float) -> None:
        """Count a request whose response of `size` bytes was passed to the operating system at `sent_at`."""

    def left_over(self, api: str) -> None:
        """Count a request with bytes behind its last field, which the broker has ignored."""

    # --- Records ----------------------------------------------------------------------------------------

    def stored(self, topic: str, records: int, size: int) -> None:
        """Count an appended batch, with the `size` of the batch in bytes."""

    def fetched(self, topic: str, batches: EncodedBatches) -> Steps[None]:  # noqa: ARG002
        """Count record batches that a response contains."""
        yield from ()

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
