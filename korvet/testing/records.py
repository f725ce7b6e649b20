"""Short helpers for batches to append and records to compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from korvet.protocol.compression import Codec
from korvet.protocol.encoded_batches import BatchHeader
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages import fetch
from korvet.protocol.messages.share_fetch import PartitionData
from korvet.protocol.record import Headers
from korvet.protocol.record_batch import RecordBatch, build_batch, decode_records, parse_batches
from korvet.storage.interface import (
    AbortedTransaction,
    AppendResult,
    AppendResults,
    IsolationLevel,
    PendingAppend,
    ReadRequest,
    ReadResult,
    Storage,
    TopicPartition,
)
from korvet.tiered.log import Tiers

#: Default timestamp of records in tests, in milliseconds.
T0 = 1_700_000_000_000
#: A byte limit above the size of any read in a test.
UNLIMITED = 2**30


class Record(NamedTuple):
    """A record as a producer sends it."""

    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = T0
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record as a consumer receives it."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = T0
    headers: Headers = ()


class Producer(NamedTuple):
    """The fields of an idempotent producer in a batch: its id and epoch, and the sequence of the first record."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0


def acquired_records(data: PartitionData) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the offset, delivery count and value of each acquired record, and pass over the others of its batch."""
    counts = {
        offset: run.delivery_count
        for run in data.acquired_records
        for offset in range(run.first_offset, run.last_offset + 1)
    }
    for batch in parse_batches(b"".join(data.records or ())):
        for delta, _, _, value, _ in decode_records(batch):
            offset = batch.base_offset + delta
            if offset in counts:
                yield offset, counts[offset], value


def numbered(count: int, *, first: int = 0, timestamp: int = T0) -> list[Record]:
    """Return records with the values first, first + 1, …"""
    return [Record(b"%d" % number, timestamp=timestamp) for number in range(first, first + count)]


def batch(
    records: Iterable[Record],
    *,
    codec: Codec = Codec.NONE,
    producer: Producer | None = None,
    is_transactional: bool = False,
) -> RecordBatch:
    """Return a valid batch in a new buffer, as from a Produce request."""
    raw = ((delta, each.timestamp, each.key, each.value, each.headers) for delta, each in enumerate(records))
    if producer is None:
        return RecordBatch(build_batch(raw, codec=codec))
    return RecordBatch(
        build_batch(
            raw,
            codec=codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            is_transactional=is_transactional,
        )
    )


def stored(records: Iterable[Record], base_offset: int) -> list[StoredRecord]:
    """Return the records that consumers must receive from a batch at `base_offset`."""
    return [StoredRecord(base_offset + delta, *each) for delta, each in enumerate(records)]


async def append(
    storage: Storage, tp: TopicPartition, records: Sequence[Record], *, producer: Producer | None = None
) -> AppendResult:
    """Append one batch to one partition. Raises the partition's error."""
    return await append_batch(storage, tp, batch(records, producer=producer))


async def append_batch(
    storage: Storage, tp: TopicPartition, appended: RecordBatch, *, acks: int = -1
) -> AppendResult:
    """Append an existing batch. Raises the partition's error."""
    (result,) = (await storage.append({tp: appended}, acks=acks)).values()
    if isinstance(result, KafkaError):
        raise result
    return result


async def results_of(appending: AppendResults | PendingAppend) -> AppendResults:
    """Return the results of an append that was begun."""
    return await appending.wait() if isinstance(appending, PendingAppend) else appending


async def read(
    storage: Storage | Tiers,
    tp: TopicPartition,
    offset: int,
    *,
    max_bytes: int = UNLIMITED,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> ReadResult:
    """Read one partition. Raises the partition's error."""
    (result,) = (
        await storage.read(
            {tp: ReadRequest(offset, max_bytes)}, max_bytes=max_bytes, isolation_level=isolation_level
        )
    ).values()
    if isinstance(result, KafkaError):
        raise result
    return result


def batches_of(result: ReadResult) -> list[RecordBatch]:
    """Return the batches in a result, after comparing them with the result's description of them."""
    data = result.batches.joined()
    batches = parse_batches(data)
    described = [
        BatchHeader(each.base_offset, each.last_offset, each.record_count, each.size) for each in batches
    ]

    assert described == list(result.batches.headers())
    assert len(data) == result.size
    return batches


def records_of(result: ReadResult, offset: int = 0) -> list[StoredRecord]:
    """Return the records in a result from `offset` on, as a consumer does."""
    return records_in(batches_of(result), offset)


def records_in(batches: Iterable[RecordBatch], offset: int = 0) -> list[StoredRecord]:
    """Return the records in batches from `offset` on, without markers."""
    return [
        StoredRecord(each.base_offset + delta, value, key, timestamp, headers)
        for each in batches
        if not each.is_control
        for delta, timestamp, key, value, headers in decode_records(each)
        if each.base_offset + delta >= offset
    ]


def consumed(
    batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction | fetch.AbortedTransaction]
) -> Iterator[RecordBatch]:
    """Yield the batches that a consumer passes on, by the rules of Kafka's clients: without aborted ones."""
    begins = sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    for each in batches:
        while begins and begins[0].first_offset <= each.last_offset:
            dropped.add(begins.pop(0).producer_id)
        if each.is_control:
            dropped.discard(each.producer_id)
        elif not (each.is_transactional and each.producer_id in dropped):
            yield each


async def records_from(
    storage: Storage | Tiers,
    tp: TopicPartition,
    offset: int | None = None,
    *,
    max_bytes: int = UNLIMITED,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[StoredRecord]:
    """Return all records from `offset`, or the log's start, to its end."""
    records: list[StoredRecord] = []
    position = (await storage.latest(tp)).log_start_offset if offset is None else offset
    while True:
        result = await read(storage, tp, position, max_bytes=max_bytes, isolation_level=isolation_level)
        batches = batches_of(result)
        if not batches:
            return records
        records += records_in(consumed(batches, result.aborted), position)
        position = batches[-1].last_offset + 1
