"""What an archive's rows look like: the columns of Spark's Kafka source, the raw timestamp, and the date.

    topic string, partition int, offset long,
    timestamp timestamp      null where the record's cannot be held by one: before year 1, after 9999
    timestamp_ms long        the number that was on the wire, whatever it is
    timestampType int        0 CreateTime, 1 LogAppendTime
    key binary, value binary, headers array<struct<key: string, value: binary>>  (null where there are none)
    date date                the day of `timestamp` (UTC); the table is partitioned by it

Never is something like 1970 made up for a time that is not there.
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
#: The columns inside the files: `date` is in their paths.
FILE_SCHEMA = pa.schema([field for field in ARCHIVE_SCHEMA if field.name != "date"])

# 0001-01-01 and the last millisecond of 9999: what Python, SQL and every reader agree on.
FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999
DAY_MS = 86_400_000

Int64s = npt.NDArray[np.int64]


def representable(timestamps_ms: Int64s) -> npt.NDArray[np.bool_]:
    """Which of these (ms since 1970) a timestamp can hold."""
    within: npt.NDArray[np.bool_] = (timestamps_ms >= FIRST_MS) & (timestamps_ms <= LAST_MS)
    return within


def timestamp_column(timestamps_ms: Int64s) -> pa.Array:
    """The column `timestamp` (µs, UTC) of raw timestamps."""
    held = representable(timestamps_ms)
    micros = np.where(held, timestamps_ms, 0) * 1000
    return pa.array(micros, pa.int64(), mask=~held).cast(pa.timestamp("us", "UTC"))


def days(timestamps_ms: Int64s) -> Int64s:
    """The days since 1970 of raw timestamps; NO_DAY where there is none."""
    return np.where(representable(timestamps_ms), timestamps_ms // DAY_MS, NO_DAY)


NO_DAY = int(np.iinfo(np.int64).min)


def date_text(day: int) -> str | None:
    """A day as Delta's log and the folders' names write it, YYYY-MM-DD; None for NO_DAY."""
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
    """Records of one partition as rows in FILE_SCHEMA, in the order they are given."""
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
