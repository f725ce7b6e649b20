"""The rates of topics and the lags of groups over the last hour, for plots.

Each visitor has a history of what the visitor's own client may see. Sampling begins with the visitor's first page, and
ends with the session or after an hour without a request. Samples are kept in memory only. No record is read for them:
the lag of a group is in seconds if the offsets of one of its topics follow the clock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from weakref import WeakKeyDictionary

import trio
from attrs import define, field, frozen

from korvet.client import LATEST, Client, OffsetAndMetadata, TopicPartition
from korvet.client.committed_offsets import clock_bits, time_between
from korvet.client.groups import list_groups
from korvet.protocol.errors import KafkaError
from korvet.web import catalogue
from korvet.web.sessions import Visitor

INTERVAL_S = 30.0
SHOWN_S = 3600.0
POINTS = int(SHOWN_S / INTERVAL_S) + 1
# Limits of a sample. Topics and groups beyond them have no plot.
MAX_PARTITIONS = 20_000
MAX_GROUPS = 200
SAMPLE_LIMIT_S = 20.0

logger = logging.getLogger(__name__)


@frozen
class Sample:
    """Next offsets and bytes by topic, and lags by group, at a time."""

    at_s: float
    ends: Mapping[str, int]
    sizes: Mapping[str, int]
    lags: Mapping[str, float]


@frozen
class Series:
    """Values over the last hour: (seconds ago, value or None), the oldest first, and their unit."""

    points: tuple[tuple[float, float | None], ...]
    unit: str


@define(eq=False)
class History:
    """The samples of one visitor."""

    clock: Callable[[], float] = time.monotonic
    used_at_s: float = field(default=0.0, init=False)
    is_followed: bool = field(default=False, init=False)
    _samples: deque[Sample] = field(factory=lambda: deque(maxlen=POINTS))
    #: For topics whose offsets follow the clock, the number of bits below the milliseconds; None for other topics.
    _bits: dict[str, int | None] = field(factory=dict)
    #: Groups whose lags are in seconds.
    _in_seconds: set[str] = field(factory=set)
    #: The next offsets of partitions at the last two samples, with their times.
    _partitions: deque[tuple[float, Mapping[TopicPartition, int]]] = field(factory=lambda: deque(maxlen=2))

    async def sample(self, client: Client) -> None:
        """Read and keep one sample. Raises KafkaError."""
        topics = await client.topics()
        tps = [
            TopicPartition(topic.name, each.partition)
            for topic in topics.values()
            for each in topic.partitions
            if each.leader_id >= 0
        ][:MAX_PARTITIONS]
        ends = {tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
        new = [name for name in topics if name not in self._bits]
        bits = await clock_bits(client, new)
        self._bits = {name: self._bits.get(name, bits.get(name)) for name in topics}
        totals: dict[str, int] = {}
        for tp, end in ends.items():
            totals[tp.topic] = totals.get(tp.topic, 0) + end
        found = await catalogue.sizes(client, None) or {}
        sizes = {name: sum(of_topic.values()) for name, of_topic in found.items()}
        lags = {}
        for group in (await list_groups(client))[:MAX_GROUPS]:
            lag = self._lag(group.group_id, await client.committed(group.group_id), ends)
            if lag is not None:
                lags[group.group_id] = lag
        now = self.clock()
        self._samples.append(Sample(now, totals, sizes, lags))
        self._partitions.append((now, ends))

    def _lag(
        self,
        group_id: str,
        committed: Mapping[TopicPartition, OffsetAndMetadata],
        ends: Mapping[TopicPartition, int],
    ) -> float | None:
        """Return the sum of the lags in records, or the longest lag in seconds; None if nothing is committed."""
        known = {tp: at.offset for tp, at in committed.items() if tp in ends}
        in_seconds = any(self._bits.get(tp.topic) is not None for tp in known)
        (self._in_seconds.add if in_seconds else self._in_seconds.discard)(group_id)
        if not known:
            return None
        if not in_seconds:
            return sum(max(ends[tp] - offset, 0) for tp, offset in known.items())
        return max(
            time_between(offset, ends[tp], self._bits.get(tp.topic) or 0) / 1000
            for tp, offset in known.items()
            if self._bits.get(tp.topic) is not None
        )

    def rate(self, topic: str) -> Series:
        """Return the records per second that were written to a topic, or the growth in bytes per second."""
        if self._bits.get(topic) is not None:
            return Series(self._rates(lambda sample: sample.sizes.get(topic)), "B/s")
        return Series(self._rates(lambda sample: sample.ends.get(topic)), "records/s")

    def lag(self, group_id: str) -> Series:
        """Return the lag of a group, in records or in seconds."""
        now = self.clock()
        points = tuple((now - each.at_s, each.lags.get(group_id)) for each in self._samples)
        return Series(points, "s" if group_id in self._in_seconds else "records")

    def partition_rates(self, topic: str) -> dict[int, float]:
        """Return the records per second of each partition between the last two samples, if offsets count records."""
        if len(self._partitions) < 2 or self._bits.get(topic) is not None:
            return {}
        (began, before), (ended, after) = self._partitions
        return {
            tp.partition: max(end - before[tp], 0) / max(ended - began, 1e-3)
            for tp, end in after.items()
            if tp.topic == topic and tp in before
        }

    def _rates(self, total: Callable[[Sample], int | None]) -> tuple[tuple[float, float | None], ...]:
        now = self.clock()
        points = []
        for before, after in pairwise(self._samples):
            first, last = total(before), total(after)
            # Retention and DeleteRecords make a topic smaller, and a topic may be created again.
            is_known = first is not None and last is not None and last >= first
            rate = (last - first) / max(after.at_s - before.at_s, 1e-3) if is_known else None  # type: ignore[operator]
            points.append((now - after.at_s, rate))
        return tuple(points)


@define(eq=False)
class Histories:
    """The histories of all visitors. Without a nursery nothing is sampled."""

    #: Returns False once the visitor's session has ended.
    is_here: Callable[[Visitor], bool]
    nursery: trio.Nursery | None = None
    _of: WeakKeyDictionary[Visitor, History] = field(factory=WeakKeyDictionary)

    def of(self, visitor: Visitor) -> History:
        """Return a visitor's history, and begin to sample for it."""
        history = self._of.get(visitor)
        if history is None:
            history = self._of[visitor] = History()
        history.used_at_s = trio.current_time()
        if self.nursery is not None and not history.is_followed:
            history.is_followed = True
            self.nursery.start_soon(self._follow, visitor, history)
        return history

    async def _follow(self, visitor: Visitor, history: History) -> None:
        while self.is_here(visitor) and trio.current_time() - history.used_at_s < SHOWN_S:
            try:
                with trio.move_on_after(SAMPLE_LIMIT_S):
                    await history.sample(visitor.client)
            except KafkaError as error:
                logger.debug("no sample for the plots: %(error)s", {"error": error})
            except Exception:  # the plots must not end the page
                logger.exception("no sample for the plots")
            await trio.sleep(INTERVAL_S)
        history.is_followed = False
