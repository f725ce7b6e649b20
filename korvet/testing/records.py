"""Batches to append and records to compare, short enough for tests to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from korvet.protocol.compression import Codec
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import Headers
from korvet.protocol.record_batch import RecordBatch, build_batch, decode_records, parse_batches
from korvet.storage.interface import AppendResult, ReadRequest, ReadResult, Storage, TopicPartition

#: When the tests' records say they were written, unless they say otherwise.
T0 = 1_700_000_000_000
#: More than anything a test reads at once.
UNLIMITED = 2**30


class Record(NamedTuple):
    """A record as a producer makes it."""

    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = T0
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = T0
    headers: Headers = ()


class Producer(NamedTuple):
    """What an idempotent producer writes into a batch: who it is, and the number of the first record."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0


def numbered(count: int, *, first: int = 0, timestamp: int = T0) -> list[Record]:
    """Records with the values 0, 1, 2, …"""
    return [Record(b"%d" % number, timestamp=timestamp) for number in range(first, first + count)]


def batch(
    records: Iterable[Record], *, codec: Codec = Codec.NONE, producer: Producer | None = None
) -> RecordBatch:
    """A batch as it comes out of a Produce request: valid, in a buffer of its own."""
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
        )
    )


def stored(records: Iterable[Record], base_offset: int) -> list[StoredRecord]:
    """What a batch of `records` that went to `base_offset` shall be read as."""
    return [StoredRecord(base_offset + delta, *each) for delta, each in enumerate(records)]


async def append(
    storage: Storage, tp: TopicPartition, records: Sequence[Record], *, producer: Producer | None = None
) -> AppendResult:
    """Append one batch to one partition; raises what went wrong."""
    return await append_batch(storage, tp, batch(records, producer=producer))


async def append_batch(
    storage: Storage, tp: TopicPartition, appended: RecordBatch, *, acks: int = -1
) -> AppendResult:
    """As `append`, a batch that is made already."""
    (result,) = (await storage.append({tp: appended}, acks=acks)).values()
    if isinstance(result, KafkaError):
        raise result
    return result


async def read(
    storage: Storage, tp: TopicPartition, offset: int, *, max_bytes: int = UNLIMITED
) -> ReadResult:
    """Read one partition; raises what went wrong."""
    (result,) = (await storage.read({tp: ReadRequest(offset, max_bytes)}, max_bytes=max_bytes)).values()
    if isinstance(result, KafkaError):
        raise result
    return result


def batches_of(result: ReadResult) -> list[RecordBatch]:
    """The batches in a result, whose buffers need not be cut where they are."""
    return parse_batches(b"".join(result.batches))


def records_of(result: ReadResult, offset: int = 0) -> list[StoredRecord]:
    """The records in a result, from `offset` on, as a consumer keeps them."""
    return [
        StoredRecord(each.base_offset + delta, value, key, timestamp, headers)
        for each in batches_of(result)
        for delta, timestamp, key, value, headers in decode_records(each)
        if each.base_offset + delta >= offset
    ]


async def records_from(
    storage: Storage, tp: TopicPartition, offset: int | None = None, *, max_bytes: int = UNLIMITED
) -> list[StoredRecord]:
    """Read on from `offset`, or the log's start, to its end."""
    records: list[StoredRecord] = []
    position = (await storage.latest(tp)).log_start_offset if offset is None else offset
    while True:
        found = records_of(await read(storage, tp, position, max_bytes=max_bytes), position)
        if not found:
            return records
        records += found
        position = found[-1].offset + 1
