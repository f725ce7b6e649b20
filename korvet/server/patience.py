"""Limits of the time that clients may keep the broker waiting, and a connection's progress measured against them."""

from __future__ import annotations

from time import monotonic

from attrs import define, field, frozen

from korvet.protocol.frames import LARGE_FRAME, FrameReader


@frozen
class Patience:
    """Limits of the time that clients may keep the broker waiting."""

    idle_s: float
    # An incomplete request must gain `min_rate` bytes a second, counted over spans of `progress_s`.
    progress_s: float
    min_rate: int
    # True if other requests wait for memory. Then a large request must be complete after `progress_s`.
    is_memory_scarce: bool = False
    login_s: float = 30.0  # until a client must have authenticated
    # True if other responses wait for memory. Then a client must read some of its response in each `progress_s`.
    is_answer_memory_scarce: bool = False


@define
class Arrival:
    """Progress of an incomplete request between calls of `overdue`. Times are those of `monotonic`."""

    number: int  # the request's number in its connection
    began: float
    span_began: float  # the start of the span in which its rate is counted
    span_bytes: int  # the number of bytes received before the span


@define(eq=False)
class Progress:
    """Progress of a connection, which the connection keeps up to date. Times are those of `monotonic`."""

    connected: float = field(factory=monotonic)
    # When a request was last read, or bytes of a response were last sent.
    active: float = field(factory=monotonic)
    taken: int = 0  # requests read
    answered: int = 0
    is_sending: bool = False  # the client must read some of a response before more of it can be sent
    is_waiting_for_room: bool = False  # an incomplete request waits for memory
    _arrival: Arrival | None = None

    def overdue(self, now: float, patience: Patience, frames: FrameReader) -> str:
        """Return why the client has kept the broker waiting for too long, or "". `now` is `monotonic()`.

        Call it often: the rate at which a request arrives is measured between calls.
        """
        is_working = self.taken != self.answered and not self.is_sending
        if is_working or self.is_waiting_for_room:
            # The broker does not read from the client in this state, so the time does not count.
            self._arrival = None
            return ""
        if now - self.active > patience.idle_s:
            return f"idle for {now - self.active:.0f} s"
        if self.is_sending and patience.is_answer_memory_scarce and now - self.active > patience.progress_s:
            return (
                f"nothing of its answer was read for {now - self.active:.0f} s while others waited for memory"
            )
        if frames.idle or self.is_sending:
            self._arrival = None
            return ""
        return self._too_slow(now, patience, frames.arrived)

    def resumed(self) -> None:
        """Count time from now on, after the broker did not read from the client."""
        self.active, self._arrival = monotonic(), None

    def _too_slow(self, now: float, patience: Patience, arrived: int) -> str:
        seen = self._arrival
        if seen is None or seen.number != self.taken:
            self._arrival = Arrival(self.taken, now, now, arrived)
            return ""
        if patience.is_memory_scarce and arrived > LARGE_FRAME and now - seen.began > patience.progress_s:
            return f"its request took {now - seen.began:.0f} s to arrive while others waited for memory"
        took = now - seen.span_began
        if took <= patience.progress_s:
            return ""
        count = arrived - seen.span_bytes
        if count < max(1, patience.min_rate * patience.progress_s):
            return f"{count} bytes of its request arrived in {took:.0f} s"
        seen.span_began, seen.span_bytes = now, arrived
        return ""
