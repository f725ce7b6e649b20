"""The work of a read task: read a range of one partition, and pass it to Spark as Arrow record batches.

Fetching runs on Trio in a separate thread, so that the next response arrives while one is decoded. At most two wait.
The thread ends with the iterator.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from attrs import frozen
from pyspark.sql.datasource import InputPartition

from korvet.client.model import EARLIEST, TopicPartition
from korvet.pipeline.fetching import Fetched, Fetcher
from korvet.pipeline.options import ReadOptions
from korvet.pipeline.prefetch import Ahead
from korvet.pipeline.record_columns import HEADER_TYPE, Columns, decode
from korvet.protocol.errors import OffsetOutOfRange

# Prefetched responses that wait to be decoded.
AHEAD = 2
FIRST_BYTES = 1024 * 1024
# Consecutive responses without records, before the log's end, after which the rest is taken to be empty.
EMPTY_ANSWERS = 5
# The largest timestamp in ms that Spark's timestamps, in us, can hold.
LAST_TIMESTAMP_MS = (2**63 - 1) // 1000

FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
HEADERS_FIELD = pa.field("headers", pa.list_(HEADER_TYPE))
TIMESTAMP_MS_FIELD = pa.field("timestamp_ms", pa.int64())


class DataLost(Exception):  # noqa: N818  the name states what happened
    """Offsets to read are not in the log, or no longer."""


@frozen
class Range:
    """Offsets of one partition in [start, end)."""

    tp: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.tp} offsets {self.start} to {self.end}"


class RangePartition(InputPartition):
    """The input of a Spark task: one range, or None for nothing to read."""

    def __init__(self, wanted: Range | None) -> None:
        self.range = wanted


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """Return the requested columns."""
    fields = [*FIELDS]
    if options.include_headers:
        fields.append(HEADERS_FIELD)
    if options.include_timestamp_ms:
        fields.append(TIMESTAMP_MS_FIELD)
    return pa.schema(fields)


def read_batches(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range. Raises KafkaError, and DataLost if the options require it."""
    schema = arrow_schema(options)
    for columns in read_columns(options, wanted):
        yield to_arrow(columns, wanted.tp, schema)


def read_columns(options: ReadOptions, wanted: Range) -> Iterator[Columns]:
    """Yield the decoded records of a range, in the order of the log."""
    fetching: Ahead[Fetched] = Ahead(partial(fetch_range, options, wanted), AHEAD)
    fetching.start(f"fetching {wanted}")
    try:
        for fetched in iter(fetching.get, None):
            yield from decode(
                fetched.batches, start=fetched.offset, end=wanted.end, headers=options.include_headers
            )
    finally:
        fetching.stop()


async def fetch_range(options: ReadOptions, wanted: Range, answers: Ahead[Fetched]) -> None:
    """Fetch a range. Raises KafkaError, and DataLost if the options require it."""
    tp, position, end = wanted.tp, wanted.start, wanted.end
    empty = 0
    # The first Fetches are smaller: a task with a few records would otherwise fetch many of the next task.
    max_bytes = min(FIRST_BYTES, options.fetch_bytes)
    async with options.connecting.open() as client:
        fetcher = Fetcher(client, options.isolation_level)
        while position < end and not answers.is_stopped:
            try:
                fetched = await fetcher.fetch(tp, position, max_bytes=max_bytes)
            except OffsetOutOfRange:
                earliest = (await client.list_offsets({tp: EARLIEST}))[tp].offset
                refuse_loss(options, Range(tp, position, min(max(earliest, position), end)))
                if earliest <= position:
                    return  # the log ends before it
                position = earliest
                continue
            if fetched.next_offset > position:
                empty = 0
                position = fetched.next_offset
                max_bytes = min(2 * max_bytes, options.fetch_bytes)
                answers.put(fetched)
                continue
            empty += 1
            if empty < EMPTY_ANSWERS:
                continue
            if fetched.end_offset < end:
                refuse_loss(options, Range(tp, fetched.end_offset, end))
            return


def refuse_loss(options: ReadOptions, missing: Range) -> None:
    if options.fail_on_data_loss:
        raise DataLost(lost(missing))


def to_arrow(columns: Columns, tp: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    """Return Spark's columns for records: with topic and partition, and timestamps in us, null if out of range."""
    count = len(columns.offsets)
    topic = tp.topic.encode()
    arrays = [
        columns.keys,
        columns.values,
        pa.StringArray.from_buffers(
            count,
            pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(len(topic))),
            pa.py_buffer(topic * count),
        ),
        pa.array(np.full(count, tp.partition, np.int32)),
        pa.array(columns.offsets),
        timestamps_us(columns.timestamps),
        pa.array(columns.timestamp_types),
    ]
    if columns.headers is not None:
        arrays.append(columns.headers)
    if TIMESTAMP_MS_FIELD.name in schema.names:
        arrays.append(pa.array(columns.timestamps))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def timestamps_us(timestamps_ms: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return timestamps in Spark's type, null if out of range."""
    beyond = (timestamps_ms > LAST_TIMESTAMP_MS) | (timestamps_ms < -LAST_TIMESTAMP_MS)
    if not beyond.any():
        return pa.array(timestamps_ms * 1000).view(FIELDS[5].type)
    return pa.array(np.where(beyond, 0, timestamps_ms) * 1000, mask=beyond).view(FIELDS[5].type)


def lost(missing: Range) -> str:
    """Return the message about offsets that cannot be read."""
    return (
        f"{missing} cannot be read: they have been deleted, by retention or by hand, or the topic is a different one "
        "of the same name. Set failOnDataLoss=false to continue without them."
    )
