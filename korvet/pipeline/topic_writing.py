"""Write rows to topics in tasks, and refuse rows that cannot be written.

A task writes as an idempotent producer: a batch whose response was lost is sent again and stored once. The rows of a
task are appended to a partition in their order. Writing is at least once, since Spark restarts a failed task from its
first row, and rows that a failed job has written remain. A stream with a transactional id writes exactly once; see
`korvet.pipeline.transactional_writing`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio
from attrs import define, field
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from korvet.client import Client
from korvet.client.cluster import error_about
from korvet.client.model import Topic, TopicPartition
from korvet.client.producer_ids import Producer, ProducerPool
from korvet.client.producing import PRODUCE
from korvet.client.transactional import Transaction
from korvet.lake.encoding import Rows, chunks, column_of, encode_batch, encode_headers
from korvet.lake.varints import Int64s
from korvet.pipeline.offsets import WrongOption
from korvet.pipeline.options import WriteOptions
from korvet.pipeline.partitioning import partitions_of
from korvet.pipeline.transactional_writing import (
    Amount,
    Task,
    check_repeated,
    current_task,
    last_mark,
    set_mark,
)
from korvet.protocol.errors import (
    DuplicateSequenceNumber,
    KafkaError,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.record_batch import HEADER_BYTES, NOBODY

# Rows are collected up to about this size in bytes, so that each partition gets a batch of reasonable size.
COLLECTED_BYTES = 8 * 1024 * 1024
CREATION_TIMEOUT_S = 3.0  # a new topic does not reach all brokers at the same time
FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0
POOL = ProducerPool()  # of this process, for all of its tasks
RETRY_TIMEOUT_S = 120.0  # as delivery.timeout.ms of Kafka's producers

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


class RowRefused(ValueError):  # noqa: N818  names the condition
    """A row cannot be written. The message contains the reason and the accepted values."""


class Written(WriterCommitMessage):
    """The commit message of a completed task, which is empty."""


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("korvet").mode("append").save()`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("korvet")`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise WrongOption unless the required columns exist and all columns have accepted types."""
    types = {column.name: column.dataType for column in schema.fields}
    if "value" not in types:
        raise WrongOption("there is no column value; accepted are value, and key, headers, topic, partition")
    if options.topic is None and "topic" not in types:
        raise WrongOption("no topic is named; accepted is an option topic, or a column topic")
    for name, accepted in COLUMNS.items():
        given = types.get(name)
        if given is None or (name == "topic" and options.topic is not None):
            continue
        if not any(_is(given, each) for each in accepted):
            names = " or ".join(each.simpleString() for each in accepted)
            raise WrongOption(f"column {name} is {given.simpleString()}; accepted is {names}")


def check_topic(options: WriteOptions) -> None:
    """Find or create the topic of the options before any task is started.

    Raises KafkaError, for example if no broker responds, or if the topic does not exist.
    """

    async def main() -> None:
        async with options.connecting.open() as client:
            if options.topic is not None:
                await find_or_create(client, options.topic)

    trio.run(main)


async def find_or_create(client: Client, name: str) -> Topic:
    """Return a topic. Raises UnknownTopicOrPartition if it does not exist and the broker does not create it."""
    # A Metadata request makes the broker create the topic, if it is configured so. The response does not say whether
    # it does, so poll until a timeout.
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    deadline = trio.current_time() + CREATION_TIMEOUT_S
    while True:
        try:
            return await client.topic(name)
        except UnknownTopicOrPartition:
            if trio.current_time() > deadline:
                message = f"There is no topic {name}, and the broker creates none; create it first."
                raise UnknownTopicOrPartition(message) from None
        await client.request(request, MetadataResponse)
        await trio.sleep(FIRST_BACKOFF_S)


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write all rows, and wait until the broker has acknowledged all of them. Raises RowRefused and KafkaError."""
    trio.run(_write, options, batches)
    return Written()


async def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> None:
    collected = _collected(batches)
    first = next(collected, None)
    if first is None:
        return
    tables = chain([first], collected)
    async with options.connecting.open() as client:
        if options.transactional_id is not None:
            await _write_once(client, options, current_task(), tables)
            return
        async with client.producer(POOL) if options.is_idempotent else nullcontext() as producer:
            await Sender(client, options, producer).write_all(tables)


async def _write_once(client: Client, options: WriteOptions, task: Task, tables: Iterator[pa.Table]) -> None:
    """Write the rows of a task in a transaction, unless an earlier attempt has committed one."""
    transactional_id = f"{options.transactional_id}-{task.partition}"
    async with client.transaction(transactional_id, timeout_ms=options.transaction_timeout_ms) as transaction:
        # The transaction has fenced all earlier attempts, so the last mark does not change any more.
        last = await last_mark(client, transactional_id)
        if last is not None and last.is_of(task):
            check_repeated(last, task, tables)
            return
        sender = Sender(client, options, transaction)
        amount = await sender.write_all(tables)
        if amount.rows:
            await set_mark(transaction, sender.any_partition(), task, amount)


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of about COLLECTED_BYTES."""
    collected: list[pa.RecordBatch] = []
    for batch in batches:
        collected.append(batch)
        if sum(each.nbytes for each in collected) >= COLLECTED_BYTES:
            yield pa.Table.from_batches(collected).combine_chunks()
            collected = []
    if collected:
        yield pa.Table.from_batches(collected).combine_chunks()


@define
class Sender:
    """The producer of a task: assigns rows to partitions and sends them. It caches the metadata of topics."""

    client: Client
    options: WriteOptions
    producer: Producer | None  # None without idempotence; a Transaction if the rows become part of one
    _topics: dict[str, Topic] = field(factory=dict, init=False)
    # Batches of rows without a key go to the partitions round-robin.
    _next: int = field(factory=lambda: time.time_ns() // 1000, init=False)

    async def write_all(self, tables: Iterable[pa.Table]) -> Amount:
        """Send the rows of all tables, and wait until they are acknowledged. Return how much that was."""
        amount = Amount()
        for table in tables:
            await self.write(table)
            amount = amount.plus(table)
        return amount

    def any_partition(self) -> TopicPartition:
        """Return a partition that exists, after rows were written."""
        return TopicPartition(next(iter(self._topics)), 0)

    async def write(self, table: pa.Table) -> None:
        """Send rows, and wait until all of them are acknowledged."""
        if not len(table):
            return
        rows = _rows(table)
        partitions = _column(table, "partition")
        queues: dict[TopicPartition, list[Rows]] = {}
        for name, indexes in _by_topic(table, self.options.topic):
            those = rows if indexes is None else rows.take(indexes)
            given = (
                partitions if indexes is None or partitions is None else partitions.take(pa.array(indexes))
            )
            topic = await self._topic(name)
            for partition, some in self._deal(those, given, topic):
                queues.setdefault(TopicPartition(name, partition), []).append(some)
        await self._send(queues)

    def _deal(self, rows: Rows, given: pa.Array | None, topic: Topic) -> Iterator[tuple[int, Rows]]:
        """Yield partitions and their rows, in order, in batches of at most the maximal size."""
        count = len(topic.partitions)
        limit = self.options.max_batch_bytes - HEADER_BYTES
        partitions = np.full(len(rows), -1, np.int64)
        if rows.keys.null_count < len(rows):
            keyed = np.asarray(rows.keys.is_valid())
            partitions[keyed] = partitions_of(rows.keys, count)[keyed]
        if given is not None and given.null_count < len(given):
            chosen = np.asarray(given.is_valid())
            partitions[chosen] = np.asarray(pc.fill_null(given, 0)).astype(np.int64)[chosen]
            wrong = (partitions >= count) | (chosen & (partitions < 0))
            if wrong.any():
                raise RowRefused(
                    f"There is no {topic.name}-{partitions[wrong][0]}; "
                    f"the topic's partitions are 0 to {count - 1}."
                )
        for partition in np.unique(partitions):
            indexes = np.flatnonzero(partitions == partition)
            some = rows if len(indexes) == len(rows) else rows.take(indexes)
            for start, end in chunks(some.sizes(), limit):
                yield self._any_of(count) if partition < 0 else int(partition), some.slice(start, end)

    def _any_of(self, count: int) -> int:
        self._next += 1
        return self._next % count

    async def _topic(self, name: str) -> Topic:
        if name not in self._topics:
            self._topics[name] = await find_or_create(self.client, name)
        return self._topics[name]

    # --- Sending ----------------------------------------------------------------------------------------

    async def _send(self, queues: dict[TopicPartition, list[Rows]]) -> None:
        """Send the batches of each queue in order, one per partition at a time, until all are acknowledged."""
        if isinstance(self.producer, Transaction):
            await self.producer.add(queues)
        timestamp = time.time_ns() // 1_000_000
        encoded: dict[TopicPartition, bytearray] = {}
        deadline, backoff_s = trio.current_time() + RETRY_TIMEOUT_S, FIRST_BACKOFF_S
        while queues:
            for tp, queue in queues.items():
                if tp not in encoded:
                    producing = NOBODY if self.producer is None else self.producer.next(tp)
                    encoded[tp] = encode_batch(
                        queue[0], timestamp=timestamp, codec=self.options.codec, producing=producing
                    )
            try:
                for leader, tps in (await self._by_leader(encoded)).items():
                    answer = await self.client.request(
                        self._request({tp: encoded[tp] for tp in tps}),
                        ProduceResponse,
                        node_id=leader,
                        max_version=PRODUCE,
                    )
                    self._settle(answer, queues, encoded)
                deadline, backoff_s = trio.current_time() + RETRY_TIMEOUT_S, FIRST_BACKOFF_S
            except KafkaError as error:
                if not error.retriable or trio.current_time() > deadline:
                    raise
                self._topics.clear()
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _by_leader(
        self, encoded: Mapping[TopicPartition, bytearray]
    ) -> dict[int, list[TopicPartition]]:
        led: dict[int, list[TopicPartition]] = {}
        for tp in encoded:
            topic = await self._topic(tp.topic)
            leader = next((p.leader_id for p in topic.partitions if p.partition == tp.partition), -1)
            if leader not in self.client.brokers:
                raise LeaderNotAvailable(f"{tp} has no leader at the moment.")
            led.setdefault(leader, []).append(tp)
        return led

    def _request(self, batches: Mapping[TopicPartition, bytearray]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for tp, batch in batches.items():
            topic = topics.setdefault(tp.topic, TopicProduceData(name=tp.topic, partition_data=[]))
            topic.partition_data.append(PartitionProduceData(index=tp.partition, records=[batch]))
        timeout_ms = int(self.options.connecting.request_timeout_s * 1000)
        transaction = self.producer if isinstance(self.producer, Transaction) else None
        return ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self.options.acks,
            timeout_ms=timeout_ms,
            topic_data=list(topics.values()),
        )

    def _settle(
        self,
        answer: ProduceResponse,
        queues: dict[TopicPartition, list[Rows]],
        encoded: dict[TopicPartition, bytearray],
    ) -> None:
        """Remove acknowledged batches from the queues. Raises an error of a batch, preferably one not retriable."""
        errors = []
        for topic in answer.responses:
            for partition in topic.partition_responses:
                tp = TopicPartition(topic.name, partition.index)
                # An earlier attempt has stored a duplicate.
                if partition.error_code not in (0, DuplicateSequenceNumber.error_code):
                    errors.append(_error(tp, partition, queues[tp][0]))
                    continue
                if self.producer is not None:
                    self.producer.acknowledged(tp, len(queues[tp][0]))
                del encoded[tp], queues[tp][0]
                if not queues[tp]:
                    del queues[tp]
        if errors:
            raise min(errors, key=lambda error: error.retriable)


def _error(tp: TopicPartition, answer: PartitionProduceResponse, rows: Rows) -> KafkaError:
    error = error_about(answer.error_code, tp, answer.error_message)
    reason = "" if len(rows) == 1 else "; kafka.max.request.size makes batches smaller"
    return type(error)(f"{error} ({len(rows)} rows{reason})")


def _rows(table: pa.Table) -> Rows:
    """Return the columns of the records: keys, values and headers."""
    headers = _column(table, "headers")
    return Rows(
        keys=_binary(_column(table, "key"), len(table)),
        values=_binary(_column(table, "value"), len(table)),
        headers=None if headers is None or headers.null_count == len(headers) else encode_headers(headers),
    )


def _binary(column: pa.Array | None, count: int) -> pa.BinaryArray:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _column(table: pa.Table, name: str) -> pa.Array | None:
    return column_of(table, name) if name in table.column_names else None


def _by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, Int64s | None]]:
    """Yield each topic and the indexes of its rows; None means all rows."""
    if topic is not None:
        yield topic, None
        return
    column = _column(table, "topic")
    if column is None or column.null_count:
        raise RowRefused("A row's topic is null; a name is accepted, or an option topic for all rows.")
    names = column.dictionary_encode()
    indexes = np.asarray(names.indices)
    if len(names.dictionary) == 1:
        yield names.dictionary[0].as_py(), None
        return
    for number, name in enumerate(names.dictionary.to_pylist()):
        yield name, np.flatnonzero(indexes == number)


def _is(given: DataType, accepted: DataType) -> bool:
    """Return True if two types are equal except for nullability."""
    return given.simpleString() == accepted.simpleString()
