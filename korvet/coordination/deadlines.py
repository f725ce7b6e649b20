"""Deadlines of many things, the earliest first."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from attrs import define, field

K = TypeVar("K", bound=Hashable)

NEVER = float("inf")
# Entries of cleared deadlines that may stay in the heap before it is rebuilt.
SPARE = 64


@define(eq=False)
class Deadlines(Generic[K]):
    """One deadline for each key, in milliseconds.

    Postponing a deadline only notes the new time: the heap entry of the old time then leads to a new entry.
    """

    _ends: dict[K, float] = field(factory=dict)
    _queued: dict[K, float] = field(factory=dict)  # the time of each key's current heap entry
    _heap: list[tuple[float, int, K]] = field(factory=list)
    _entries: int = 0  # ever made; among equal times the older entry comes first

    @property
    def next_ms(self) -> float:
        """The earliest time at which `pop` may return a key."""
        return self._heap[0][0] if self._heap else NEVER

    def set(self, key: K, end_ms: float) -> None:
        """Set or replace the deadline of a key."""
        self._ends[key] = end_ms
        if end_ms < self._queued.get(key, NEVER):
            self._queue(key, end_ms)

    def is_set(self, key: K) -> bool:
        """Return True if the key has a deadline."""
        return key in self._ends

    def clear(self, key: K) -> None:
        """Remove the deadline of a key, if it has one."""
        self._ends.pop(key, None)
        if len(self._heap) > 2 * len(self._ends) + SPARE:
            self._queued = dict(self._ends)
            self._heap = [(end_ms, number, key) for number, (key, end_ms) in enumerate(self._ends.items())]
            heapify(self._heap)

    def pop(self, now_ms: float) -> K | None:
        """Remove and return the key with the earliest deadline that has passed; None if none has."""
        while self.next_ms <= now_ms:
            queued_ms, _, key = heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue
            del self._queued[key]
            end_ms = self._ends.get(key)
            if end_ms == queued_ms:
                del self._ends[key]
                return key
            if end_ms is not None:
                self._queue(key, end_ms)
        return None

    def _queue(self, key: K, end_ms: float) -> None:
        self._entries += 1
        self._queued[key] = end_ms
        heappush(self._heap, (end_ms, self._entries, key))
