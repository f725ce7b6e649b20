"""Producing: assign records to partitions, pack them into batches, and send one batch per partition at a time.

So the records of a partition are stored in order, also if a batch had to be sent again. With a producer id, a batch
whose response was lost is stored once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from attrs import asdict, define, field

from korvet.client.cluster import Cluster, error_about, raise_worst
from korvet.client.connection import Address
from korvet.client.model import Produced, Record, Topic, TopicPartition
from korvet.client.partitioner import Partitioner, partition_of_key
from korvet.client.producer_ids import Producer, new_producer
from korvet.client.transactional import Transaction
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.record import RawRecord
from korvet.protocol.record_batch import NOBODY, build_batch

# Below 1,048,588 bytes, the default of max.message.bytes in Kafka. A larger record gets its own batch.
MAX_BATCH_BYTES = 1_000_000
# Upper bounds of a record's size without key, value and headers, and of a header's without name and value.
RECORD_OVERHEAD_BYTES = 32
HEADER_OVERHEAD_BYTES = 10
# The last version with which a producer of a transaction adds its partitions itself.
PRODUCE = 11
# Errors of a broker that does not know the producer's earlier batches.
FORGOTTEN = (OutOfOrderSequenceNumber, UnknownProducerId)


@define
class Batch:
    """Records to be sent, and the indexes of their results."""

    records: list[RawRecord] = field(factory=list)
    indexes: list[int] = field(factory=list)
    size: int = 0

    def add(self, index: int, record: Record, now_ms: int, size: int) -> None:
        timestamp = now_ms if record.timestamp is None else record.timestamp
        self.records.append((len(self.records), timestamp, record.key, record.value, record.headers))
        self.indexes.append(index)
        self.size += size

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.records) // 2
        second: list[RawRecord] = [
            (delta - middle, timestamp, key, value, headers)
            for delta, timestamp, key, value, headers in self.records[middle:]
        ]
        return Batch(self.records[:middle], self.indexes[:middle]), Batch(second, self.indexes[middle:])


@define
class Production:
    """One call of `Client.produce`: the batches still to be sent, and the results so far."""

    cluster: Cluster
    topic: str
    acks: int
    codec: Codec
    transaction: Transaction | None = None
    producer: Producer | None = field(default=None, init=False)  # None: not idempotent
    queues: dict[TopicPartition, deque[Batch]] = field(factory=dict, init=False)
    results: list[Produced] = field(factory=list, init=False)
    # Partitions whose broker had forgotten the producer, for example since it was restarted without its data.
    _replaced: dict[TopicPartition, Producer] = field(factory=dict, init=False)
    _unanswered: set[TopicPartition] = field(factory=set, init=False)  # their first batch may be stored

    async def describe(self, *, create_topic: bool) -> Topic:
        """Return the topic, once at least one of its partitions has a leader."""

        async def attempt() -> Topic:
            topic = await self.cluster.topic(self.topic, allow_auto_topic_creation=create_topic)
            if all(partition.leader_id < 0 for partition in topic.partitions):
                raise LeaderNotAvailable(f"No partition of {self.topic} has a leader at the moment.")
            return topic

        return await self.cluster.retrying(attempt)

    def deal(self, records: Iterable[Record], topic: Topic, partitioner: Partitioner) -> None:
        """Assign every record to a batch of a partition."""
        count = len(topic.partitions)
        with_leader = [p.partition for p in topic.partitions if p.leader_id >= 0]
        now_ms = time.time_ns() // 1_000_000
        for index, record in enumerate(records):
            size = _size(record)
            partition = record.partition
            if partition is None and record.key is not None:
                partition = partition_of_key(record.key, count)
            if partition is None:
                partition = with_leader[partitioner.sticky(len(with_leader))]
                if self._is_full(partition, size):
                    partitioner.move_on()
                    partition = with_leader[partitioner.sticky(len(with_leader))]
            self._batch(partition, size).add(index, record, now_ms, size)
            self.results.append(Produced(partition, -1))
        partitioner.move_on()

    async def send(self) -> None:
        """Send the remaining batches, then raise the worst of their errors. It may be called again after an error."""
        while self.queues:
            await self.cluster.each_leader(list(self.queues), self._send_to)

    async def _send_to(self, leader: Address, tps: list[TopicPartition]) -> None:
        transaction = self.transaction
        request = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self.acks if transaction is None else -1,
            timeout_ms=int(self.cluster.request_timeout_s * 1000),
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    partition_data=[
                        PartitionProduceData(index=tp.partition, records=[self._next(tp)]) for tp in tps
                    ],
                )
            ],
        )
        if request.acks == 0:
            await self.cluster.send(leader, request, max_version=PRODUCE)
            for tp in tps:
                self._done(tp, -1)
            return
        repeated = self._unanswered.intersection(tps)
        self._unanswered.update(tps)
        answer = await self.cluster.request(leader, request, ProduceResponse, max_version=PRODUCE)
        errors = []
        for partition in (partition for topic in answer.responses for partition in topic.partition_responses):
            tp = TopicPartition(self.topic, partition.index)
            self._unanswered.discard(tp)
            error = self._settle(tp, partition)
            if isinstance(error, FORGOTTEN) and tp not in repeated and await self._replace_producer(tp):
                continue
            if error is not None:
                errors.append(error)
        raise_worst(errors)

    async def _replace_producer(self, tp: TopicPartition) -> bool:
        """Use a new producer id for the partition, in which no batch is outstanding; return False if it has one."""
        if self.producer is None or tp in self._replaced:
            return False
        self.producer.is_forgotten = True
        self._replaced[tp] = await new_producer(self.cluster)
        return True

    def _settle(self, tp: TopicPartition, answer: PartitionProduceResponse) -> KafkaError | None:
        if not answer.error_code:
            self._done(tp, answer.base_offset)
            return None
        error = error_about(answer.error_code, tp, answer.error_message)
        queue = self.queues[tp]
        if isinstance(error, MessageTooLarge) and len(queue[0].records) > 1:
            # The topic's max.message.bytes is smaller than MAX_BATCH_BYTES.
            queue.extendleft(reversed(queue.popleft().halves()))
            return None
        return error

    def _done(self, tp: TopicPartition, base_offset: int) -> None:
        queue = self.queues[tp]
        indexes = queue.popleft().indexes
        if (producer := self._producer_of(tp)) is not None:
            producer.acknowledged(tp, len(indexes))
        for delta, index in enumerate(indexes):
            self.results[index] = Produced(
                tp.partition, base_offset if base_offset < 0 else base_offset + delta
            )
        if not queue:
            del self.queues[tp]

    def _next(self, tp: TopicPartition) -> bytearray:
        producer = self._producer_of(tp)
        fields = NOBODY if producer is None else producer.next(tp)
        return build_batch(self.queues[tp][0].records, codec=self.codec, **asdict(fields))

    def _producer_of(self, tp: TopicPartition) -> Producer | None:
        return self.transaction or self._replaced.get(tp, self.producer)

    def _batch(self, partition: int, size: int) -> Batch:
        queue = self.queues.setdefault(TopicPartition(self.topic, partition), deque())
        if not queue or queue[-1].size + size > MAX_BATCH_BYTES:
            queue.append(Batch())
        return queue[-1]

    def _is_full(self, partition: int, size: int) -> bool:
        queue = self.queues.get(TopicPartition(self.topic, partition))
        return queue is not None and queue[-1].size + size > MAX_BATCH_BYTES


def _size(record: Record) -> int:
    """Return an upper bound of a record's bytes in a batch, before compression."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + 4 * len(name) + len(value or b"")
    return size
