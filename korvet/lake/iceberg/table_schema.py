"""The Iceberg schema of an archive: the columns of its files, partitioned by the day of `timestamp`.

Delta's partition column `date` is no column here: Iceberg derives it. A catalogue assigns field ids in the order of
the columns, nested ones last, so that the ids below are those of every catalogue; the files are matched by names
(`schema.name-mapping.default`): those of typed tables and older ones have no ids.
"""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

TIMESTAMP_ID = 4
HEADER = StructType(
    NestedField(11, "key", StringType(), required=False),
    NestedField(12, "value", BinaryType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "topic", StringType(), required=False),
    NestedField(2, "partition", IntegerType(), required=False),
    NestedField(3, "offset", LongType(), required=False),
    NestedField(TIMESTAMP_ID, "timestamp", TimestamptzType(), required=False),
    NestedField(5, "timestamp_ms", LongType(), required=False),
    NestedField(6, "timestampType", IntegerType(), required=False),
    NestedField(7, "key", BinaryType(), required=False),
    NestedField(8, "value", BinaryType(), required=False),
    NestedField(9, "headers", ListType(10, HEADER, element_required=False), required=False),
)
SPEC = PartitionSpec(PartitionField(TIMESTAMP_ID, 1000, DayTransform(), "date"))
