"""Consuming: partitions are read from given offsets on, without a group.

Every `poll` is one Fetch to each of the leaders, which wait for records as long as they are told. Where there are
several leaders, none may wait long, or records of one would be late because another has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Self

from attrs import define, field

from korvet.client.cluster import Cluster, raise_for, raise_worst
from korvet.client.connection import Address
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
# While others are waited for.
MAX_WAIT_AMONG_LEADERS_MS = 50
LAST_VERSION_WITH_NAMES = 12
MAX_OFFSET = 2**63 - 1


@define
class Consumer:
    """Reads on from `positions`. Iterate over it for records, or call `poll` for as many as one round brings.

        async for record in client.consume({TopicPartition("orders", 0): 0}, until=ends):

    With `until` the iteration ends when every partition has been read up to its offset there (which is not read);
    otherwise it goes on for ever. Raises OffsetOutOfRange at a position that is not in the log; `positions` may be
    changed, and reading resumed, after that or any other error. Nothing needs to be closed.
    """

    _cluster: Cluster
    positions: dict[TopicPartition, int]  # the next offset to be read, of each partition
    until: Mapping[TopicPartition, int] | None = None
    max_wait_ms: int = MAX_WAIT_MS
    min_bytes: int = 1
    #: What the last answers said the logs' ends were.
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
        """The partitions that are to be read further."""
        until = self.until
        if until is None:
            return list(self.positions)
        return [tp for tp, position in self.positions.items() if position < until.get(tp, position + 1)]

    async def poll(self) -> list[ConsumedRecord]:
        """What one round of Fetches brings, in each partition's order; nothing, where nothing came in time.

        Positions move on when it returns, not when it raises or is cancelled.
        """
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
                # Whatever it is, it will be met again when nothing else is left to be read.
                if not records:
                    moved.clear()
                    raise

        await self._cluster.retrying(attempt)
        # What was read goes to the end, or a broker that finds enough in the first would never get to the last.
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
            max_bytes=MAX_BYTES,
            topics=[
                FetchTopic(
                    topic=name,
                    topic_id=topic.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=tp.partition,
                            fetch_offset=self.positions[tp],
                            partition_max_bytes=MAX_PARTITION_BYTES,
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
        try:
            for batch in _batches_of(data):
                validate(batch)
                if not batch.is_control:
                    records += _records_within(tp, batch, position, end)
                position = max(position, batch.last_offset + 1)
        except KafkaError:
            # A batch that cannot be read does not take those before it along.
            if position == self.positions[tp]:
                raise
        if position > self.positions[tp]:
            moved[tp] = position
        return records


def _batches_of(data: PartitionData) -> list[RecordBatch]:
    return [batch for buffer in data.records or () for batch in parse_batches(buffer, truncated_end_ok=True)]


def _records_within(tp: TopicPartition, batch: RecordBatch, start: int, end: int) -> list[ConsumedRecord]:
    """The batch's records from offset `start` on: a batch may begin before the offset that was asked for."""
    base_offset = batch.base_offset
    return [
        ConsumedRecord(tp.topic, tp.partition, base_offset + delta, timestamp, key, value, headers)
        for delta, timestamp, key, value, headers in decode_records(batch)
        if start <= base_offset + delta < end
    ]


def _have_ids(topics: Mapping[str, Topic]) -> bool:
    return all(topic.topic_id != ZERO_UUID for topic in topics.values())
