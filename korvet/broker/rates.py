"""Rates and token buckets, which compute how long a client has to wait, as Apache Kafka computes it.

Times are in seconds, on any clock that does not go backwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from attrs import define, field, frozen


@frozen
class Window:
    """The time over which a rate is measured: a number of samples, of which the last one is incomplete."""

    samples: int
    sample_s: float

    @property
    def complete_s(self) -> float:
        """The time of the complete samples."""
        return (self.samples - 1) * self.sample_s

    @property
    def total_s(self) -> float:
        return self.samples * self.sample_s


class Meter(ABC):
    """The usage of a limit by one client."""

    @abstractmethod
    def record(self, amount: float, limit: float, now: float) -> None:
        """Add an amount. A negative one reverts an earlier one."""

    @abstractmethod
    def excess_s(self, limit: float, now: float) -> float:
        """Return the time after which the limit is kept again if nothing is added, 0 if it is kept now."""

    @abstractmethod
    def is_idle(self, now: float) -> bool:
        """Return True if the meter equals a new one."""


@define
class Sample:
    """Amounts that were added within one sample of the window."""

    began: float
    last: float
    amount: float = 0.0


@define(eq=False)
class Rate(Meter):
    """An amount per second over a window."""

    window: Window
    _samples: deque[Sample] = field(factory=deque)
    _earlier: float = 0.0  # the amounts of all samples but the last one

    def record(self, amount: float, limit: float, now: float) -> None:  # noqa: ARG002  of the interface
        samples = self._samples
        self._expire(now)
        if not samples or now - samples[-1].began >= self.window.sample_s:
            samples.append(Sample(now, now))
            if len(samples) > self.window.samples + 1:
                samples.popleft()
            self._add_earlier()
        last = samples[-1]
        last.amount += amount
        last.last = now

    def excess_s(self, limit: float, now: float) -> float:
        self._expire(now)
        samples = self._samples
        if not samples:
            return 0.0
        excess_s = (self._earlier + samples[-1].amount) / limit - self._measured_s(now)
        return max(0.0, excess_s)

    def is_idle(self, now: float) -> bool:
        self._expire(now)
        return not self._samples

    def _expire(self, now: float) -> None:
        samples = self._samples
        if not samples or now - samples[0].last < self.window.total_s:
            return
        while samples and now - samples[0].last >= self.window.total_s:
            samples.popleft()
        self._add_earlier()

    def _add_earlier(self) -> None:
        self._earlier = sum([sample.amount for sample in self._samples][:-1])

    def _measured_s(self, now: float) -> float:
        """Return the time over which the rate is measured: at least the complete samples of the window."""
        elapsed = now - self._samples[0].began
        missing = self.window.samples - 1 - int(elapsed / self.window.sample_s)
        return elapsed + max(0, missing) * self.window.sample_s or 0.001


@define(eq=False)
class TokenBucket(Meter):
    """Tokens that are refilled at the limit, up to the limit times the window. Their number may be negative."""

    window: Window
    _tokens: float = float("inf")
    _limit: float = 0.0
    _updated: float = 0.0

    def record(self, amount: float, limit: float, now: float) -> None:
        self._refill(limit, now)
        self._tokens = min(self._tokens - amount, limit * self.window.total_s)

    def excess_s(self, limit: float, now: float) -> float:
        self._refill(limit, now)
        return max(0.0, -self._tokens / limit)

    def is_idle(self, now: float) -> bool:
        self._refill(self._limit, now)
        return self._tokens >= self._limit * self.window.total_s

    def _refill(self, limit: float, now: float) -> None:
        refilled = self._tokens + limit * (now - self._updated)
        self._tokens = min(refilled, limit * self.window.total_s)
        self._limit, self._updated = limit, now
