"""Consuming: read partitions from given offsets on, without a group.

Each `poll` sends one Fetch to each leader, which waits for records up to `max_wait_ms`. If there are several leaders,
the limit is shorter, because the records of one leader would otherwise wait for another one that has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Self

from attrs import define, field

from korvet.client.cluster import Cluster, raise_for, raise_worst
from korvet.client.connection import Address
from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED, Passing
from korvet.client.model import ConsumedRecord, Topic, TopicPartition
from korvet.protocol.errors import ErrorCode, KafkaError, OffsetOutOfRange
from korvet.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.record_batch import RecordBatch, decode_records, parse_batches, validate
from korvet.protocol.schema import MAX_VERSION, ZERO_UUID

MAX_BYTES = 8 * 1024 * 1024
MAX_PARTITION_BYTES = 1024 * 1024
MAX_WAIT_MS = 500
# The limit of a Fetch's wait if there are several leaders.
MAX_WAIT_AMONG_LEADERS_MS = 50
LAST_VERSION_WITH_NAMES = 12
MAX_OFFSET = 2**63 - 1


@define
class Consumer:
    """Reads partitions from `positions` on. Iterate over it for records, or call `poll` for those of one round.

        async for record in client.consume({TopicPartition("orders", 0): 0}, until=ends):

    With `until`, the iteration ends when every partition has been read up to, and without, its offset there; otherwise
    it is endless. Raises OffsetOutOfRange if a position is not in the log. After this or any other error, the caller
    may change `positions` and continue. A consumer needs no close.
    """

    _cluster: Cluster
    positions: dict[TopicPartition, int]  # the next offset of each partition to be read
    until: Mapping[TopicPartition, int] | None = None
    max_wait_ms: int = MAX_WAIT_MS
    min_bytes: int = 1
    #: Limits of the bytes that a Fetch requests, in all and of a partition.
    max_bytes: int = MAX_BYTES
    max_partition_bytes: int = MAX_PARTITION_BYTES
    #: `READ_COMMITTED` leaves out the records of aborted transactions, and waits for the end of open ones.
    isolation_level: int = READ_UNCOMMITTED
    #: High watermarks in the last responses.
    high_watermarks: dict[TopicPartition, int] = field(factory=dict, init=False)
    _polled: deque[ConsumedRecord] = field(factory=deque, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        while not self._polled:
            if not self.unfinished():
                raise StopAsyncIteration
            self._polled.extend(await self.poll())
        return self._polled.popleft()

    def unfinished(self) -> list[TopicPartition]:
        """Return the partitions that have not been read up to `until`."""
        until = self.until
        if until is None:
            return list(self.positions)
        return [tp for tp, position in self.positions.items() if position < until.get(tp, position + 1)]

    async def poll(self) -> list[ConsumedRecord]:
        """Return the records of one round of Fetches, in order within each partition; none if none came in time.

        Rounds in which consumers get nothing, since all batches are markers or of aborted transactions, are followed by
        the next one. The positions advance when this returns, not if it raises or is cancelled.
        """
        while True:
            before = self.positions
            records = await self._round()
            if records or before is self.positions or not self.unfinished():
                return records

    async def _round(self) -> list[ConsumedRecord]:
        records: list[ConsumedRecord] = []
        moved: dict[TopicPartition, int] = {}

        async def fetch(leader: Address, tps: list[TopicPartition]) -> None:
            answer = await self._fetch(leader, tps)
            errors = []
            for tp, data in answer:
                try:
                    records.extend(self._records_of(tp, data, moved))
                except KafkaError as error:
                    errors.append(error)
            raise_worst(errors)

        async def attempt() -> None:
            try:
                await self._cluster.each_leader(self.unfinished(), fetch)
            except KafkaError:
                # Return the records first. The error occurs again, and is raised when a round has no records.
                if not records:
                    moved.clear()
                    raise

        await self._cluster.retrying(attempt)
        # Move partitions with records to the end of the next request: a broker that fills its response from the first
        # partitions would otherwise never reach the last ones.
        if moved:
            rest = {tp: position for tp, position in self.positions.items() if tp not in moved}
            self.positions = rest | moved
        return records

    async def _fetch(
        self, leader: Address, tps: list[TopicPartition]
    ) -> list[tuple[TopicPartition, PartitionData]]:
        topics = {name: await self._cluster.topic(name) for name in dict.fromkeys(tp.topic for tp in tps)}
        max_wait_ms = self.max_wait_ms
        if len(tps) < len(self.unfinished()):
            max_wait_ms = min(max_wait_ms, MAX_WAIT_AMONG_LEADERS_MS)
        answer = await self._cluster.request(
            leader,
            self._request(tps, topics, max_wait_ms),
            FetchResponse,
            max_version=MAX_VERSION if _have_ids(topics) else LAST_VERSION_WITH_NAMES,
            wait_s=max_wait_ms / 1000,
        )
        raise_for(answer.error_code, leader)
        names = {topic.topic_id: name for name, topic in topics.items()}
        return [
            (TopicPartition(topic.topic or names.get(topic.topic_id, ""), data.partition_index), data)
            for topic in answer.responses
            for data in topic.partitions
        ]

    def _request(
        self, tps: list[TopicPartition], topics: Mapping[str, Topic], max_wait_ms: int
    ) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            topics=[
                FetchTopic(
                    topic=name,
                    topic_id=topic.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=tp.partition,
                            fetch_offset=self.positions[tp],
                            partition_max_bytes=self.max_partition_bytes,
                        )
                        for tp in tps
                        if tp.topic == name
                    ],
                )
                for name, topic in topics.items()
            ],
        )

    def _records_of(
        self, tp: TopicPartition, data: PartitionData, moved: dict[TopicPartition, int]
    ) -> list[ConsumedRecord]:
        position = self.positions[tp]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRange(f"{tp}: offset {position} is not in its log.")
        raise_for(data.error_code, tp)
        self.high_watermarks[tp] = data.high_watermark
        end = self.until.get(tp, MAX_OFFSET) if self.until else MAX_OFFSET
        records: list[ConsumedRecord] = []
        is_committed = self.isolation_level == READ_COMMITTED
        passing = Passing((data.aborted_transactions or ()) if is_committed else ())
        try:
            for batch in _batches_of(data):
                validate(batch)
                if passing.passes(batch):
                    records += _records_within(tp, batch, position, end)
                position = max(position, batch.last_offset + 1)
        except KafkaError:
            # Return the batches before an invalid one; the next round raises its error.
            if position == self.positions[tp]:
                raise
        if position > self.positions[tp]:
            moved[tp] = position
        return records


def _batches_of(data: PartitionData) -> list[RecordBatch]:
    return [batch for buffer in data.records or () for batch in parse_batches(buffer, truncated_end_ok=True)]


def _records_within(tp: TopicPartition, batch: RecordBatch, start: int, end: int) -> list[ConsumedRecord]:
    """Return the batch's records in [start, end). A batch may begin before the requested offset."""
    base_offset = batch.base_offset
    return [
        ConsumedRecord(tp.topic, tp.partition, base_offset + delta, timestamp, key, value, headers)
        for delta, timestamp, key, value, headers in decode_records(batch)
        if start <= base_offset + delta < end
    ]


def _have_ids(topics: Mapping[str, Topic]) -> bool:
    return all(topic.topic_id != ZERO_UUID for topic in topics.values())
