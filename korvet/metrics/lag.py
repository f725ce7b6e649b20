"""The lag of groups, and of the archive, behind the ends of their topics.

If offsets count records, a lag is a difference of offsets. If they follow the clock (`offset.mapping=timestamp`), that
difference is a time, and records have to be read to be counted: at most COUNTED_RECORDS of a partition, and
COUNTED_IN_ALL in one scrape. A count is kept until the group commits or the log grows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attrs import define, field

from korvet.broker.broker import Broker
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import TimeSlices
from korvet.metrics import names
from korvet.metrics.samples import Labels, Samples, Value
from korvet.protocol.errors import KafkaError
from korvet.storage.interface import LogOffsets, ReadRequest, ReadResult, Topic, TopicPartition
from korvet.storage.offsets import TimestampOffsets, offset_mapper

COUNTED_RECORDS = 10_000
COUNTED_IN_ALL = 200_000
READ_BYTES = 256 * 1024
AT_ONCE = 10
BATCHES_BETWEEN_CHECKPOINTS = 500


@define(eq=False)
class Ends:
    """The bounds of logs, each read once in a scrape. A partition that cannot be read has none."""

    broker: Broker
    topics: Mapping[str, Topic]
    _found: dict[TopicPartition, LogOffsets | None] = field(factory=dict)

    async def read(self, tps: Iterable[TopicPartition]) -> None:
        """Read those that are not known yet."""
        await in_parallel(self._read, [tp for tp in tps if tp not in self._found], at_once=AT_ONCE)

    def get(self, tp: TopicPartition) -> LogOffsets | None:
        """Return what was read."""
        return self._found.get(tp)

    async def _read(self, tp: TopicPartition) -> None:
        self._found[tp] = None
        if tp.topic in self.topics:
            try:
                self._found[tp] = await self.broker.log.latest(tp)
            except KafkaError:
                return


@define(eq=False)
class LagReader:
    """Computes lags for one scrape after the other."""

    _counts: dict[tuple[str, TopicPartition], tuple[int, int, int]] = field(factory=dict)
    _left: int = 0  # records that this scrape may still count

    async def groups(self, ends: Ends, group_ids: Collection[str]) -> Samples:
        """Return the lags of groups by topic. Raises KafkaError."""
        self._left = COUNTED_IN_ALL
        records: dict[Labels, Value] = {}
        seconds: dict[Labels, Value] = {}
        known: set[tuple[str, TopicPartition]] = set()
        committed = await in_parallel(
            lambda group_id: ends.broker.groups.committed(group_id, None), [*group_ids], at_once=AT_ONCE
        )
        await ends.read({tp for offsets in committed for tp in offsets})
        for group_id, offsets in zip(group_ids, committed, strict=True):
            for tp, committed_offset in offsets.items():
                bounds = ends.get(tp)
                if bounds is None:
                    continue
                known.add((group_id, tp))
                labels = (group_id, tp.topic)
                start = max(committed_offset.offset, bounds.log_start_offset)
                mapper = offset_mapper(ends.topics[tp.topic].config)
                if isinstance(mapper, TimestampOffsets):
                    behind_s = seconds_between(start, bounds.high_watermark, mapper)
                    seconds[labels] = max(number(seconds.get(labels)), behind_s)
                    count = await self._counted(ends.broker, group_id, tp, start, bounds.high_watermark)
                else:
                    count = max(bounds.high_watermark - start, 0)
                records[labels] = number(records.get(labels)) + count
        self._counts = {key: count for key, count in self._counts.items() if key in known}
        return {names.GROUP_LAG_RECORDS: records, names.GROUP_LAG_SECONDS: seconds}

    async def _counted(self, broker: Broker, group_id: str, tp: TopicPartition, start: int, end: int) -> int:
        before = self._counts.get((group_id, tp))
        if before is not None and before[:2] == (start, end):
            return before[2]
        count = await count_records(broker, tp, start, end, min(COUNTED_RECORDS, self._left))
        self._left -= count
        self._counts[group_id, tp] = start, end, count
        return count


async def archive(ends: Ends) -> Samples:
    """Return by how much each tiered topic's archive is behind, as last read by this broker."""
    records: dict[Labels, Value] = {}
    seconds: dict[Labels, Value] = {}
    archived = ends.broker.log.archived_ends()
    for topic in ends.topics.values():
        if topic.topic_id not in archived:
            continue
        tps = [TopicPartition(topic.name, partition) for partition in range(topic.partitions)]
        await ends.read(tps)
        mapper = offset_mapper(topic.config)
        for tp in tps:
            bounds = ends.get(tp)
            if bounds is None:
                continue
            start = max(archived[topic.topic_id].get(tp.partition, 0), bounds.log_start_offset)
            end, labels = bounds.high_watermark, (topic.name,)
            if isinstance(mapper, TimestampOffsets):
                seconds[labels] = max(number(seconds.get(labels)), seconds_between(start, end, mapper))
            else:
                records[labels] = number(records.get(labels)) + max(end - start, 0)
    return {names.ARCHIVE_LAG_RECORDS: records, names.ARCHIVE_LAG_SECONDS: seconds}


def number(value: Value | None) -> float:
    """Return a value that is no histogram, or 0."""
    return value if isinstance(value, float | int) else 0


def seconds_between(offset: int, end: int, mapper: TimestampOffsets) -> float:
    """Return the time between the last record before `offset` and the last one before `end`; 0 if there is none."""
    if offset >= end:
        return 0
    first_ms, last_ms = mapper.pair(max(offset - 1, 0))[0], mapper.pair(end - 1)[0]
    return max(last_ms - first_ms, 1) / 1000 if offset else 0.001


async def count_records(broker: Broker, tp: TopicPartition, start: int, end: int, most: int) -> int:
    """Return the number of records in [start, end), or `most` if there are more."""
    count, offset = 0, start
    while offset < end and count < most:
        request = {tp: ReadRequest(offset, READ_BYTES)}
        result = (await broker.log.read(request, max_bytes=READ_BYTES))[tp]
        if not isinstance(result, ReadResult) or not result.size:
            break
        time_slices = TimeSlices()
        for number, header in enumerate(result.batches.headers()):
            # Offsets within a batch are consecutive, unless compaction removed some.
            count += max(min(header.records, header.last_offset + 1 - start, end - header.base_offset), 0)
            offset = header.last_offset + 1
            if not number % BATCHES_BETWEEN_CHECKPOINTS:
                await time_slices.next()
    return min(count, most)
