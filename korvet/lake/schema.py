"""The columns of an archive: those of Spark's Kafka source, the raw timestamp, and the date.

    topic string, partition int, offset long,
    timestamp timestamp      null if the record's timestamp is out of range: before year 1, after 9999
    timestamp_ms long        the record's timestamp from the wire, unchanged
    timestampType int        0 CreateTime, 1 LogAppendTime
    key binary, value binary, headers array<struct<key: string, value: binary>>  (null without headers)
    date date                the day of `timestamp` (UTC); the partition column of the table

A missing timestamp is null, never a placeholder such as 1970.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARCHIVE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ms", pa.int64()),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("date", pa.date32()),
    ]
)
#: The columns inside the files. `date` is in their paths.
FILE_SCHEMA = pa.schema([field for field in ARCHIVE_SCHEMA if field.name != "date"])

#: Partition columns of typed tables that are made of the record's timestamp: 2026-01-31-12 and 2026-01 (UTC).
HOUR, MONTH = "_hour", "_month"
BUCKET = "_bucket"
#: The property of a typed table with the source and the number of its buckets, as a JSON array.
BUCKET_BY = "korvet.bucket_by"

#: Iceberg's ids of the columns, in the order in which catalogues assign them (`korvet.lake.iceberg.table_schema`).
FIELD_IDS = {name: number for number, name in enumerate(FILE_SCHEMA.names, 1)}
ELEMENT_ID, HEADER_KEY_ID, HEADER_VALUE_ID = 10, 11, 12


def _with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(number)})


def _parquet_field(field: pa.Field) -> pa.Field:
    """Return a column with its id, and with those of its parts."""
    if field.name == "headers":
        key, value = field.type.value_type
        header = pa.struct([_with_id(key, HEADER_KEY_ID), _with_id(value, HEADER_VALUE_ID)])
        field = field.with_type(pa.list_(_with_id(pa.field("element", header), ELEMENT_ID)))
    return _with_id(field, FIELD_IDS[field.name])


#: FILE_SCHEMA with field ids, which the files carry for readers of Iceberg.
PARQUET_SCHEMA = pa.schema([_parquet_field(field) for field in FILE_SCHEMA])

# 0001-01-01 and the last millisecond of 9999: the range that Python, SQL and all readers share.
FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999
DAY_MS = 86_400_000

Int64s = npt.NDArray[np.int64]


def representable(timestamps_ms: Int64s) -> npt.NDArray[np.bool_]:
    """Return a mask of the timestamps (ms since 1970) that the column `timestamp` can hold."""
    within: npt.NDArray[np.bool_] = (timestamps_ms >= FIRST_MS) & (timestamps_ms <= LAST_MS)
    return within


def timestamp_column(timestamps_ms: Int64s) -> pa.Array:
    """Return the column `timestamp` (µs, UTC) for raw timestamps."""
    held = representable(timestamps_ms)
    micros = np.where(held, timestamps_ms, 0) * 1000
    return pa.array(micros, pa.int64(), mask=~held).cast(pa.timestamp("us", "UTC"))


def days(timestamps_ms: Int64s) -> Int64s:
    """Return the days since 1970 of raw timestamps; NO_DAY for those out of range."""
    return np.where(representable(timestamps_ms), timestamps_ms // DAY_MS, NO_DAY)


NO_DAY = int(np.iinfo(np.int64).min)


def date_text(day: int) -> str | None:
    """Return a day as YYYY-MM-DD, as in Delta's log and in folder names; None for NO_DAY."""
    return None if day == NO_DAY else str(np.datetime64(day, "D"))


def archive_table(
    topic: str,
    partition: int,
    offsets: Int64s,
    timestamps_ms: Int64s,
    timestamp_types: Any,
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array,
) -> pa.Table:
    """Return records of one partition as rows of FILE_SCHEMA, in the given order."""
    count = len(offsets)
    columns = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        timestamp_column(timestamps_ms),
        pa.array(timestamps_ms, pa.int64()),
        pa.array(timestamp_types, pa.int32()),
        keys,
        values,
        headers,
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)
