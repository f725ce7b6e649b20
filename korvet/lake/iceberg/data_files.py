"""Describe the files of a Delta table as Iceberg's data files, from Delta's statistics. No file is read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from korvet.lake.iceberg.table_schema import SCHEMA, SPEC
from korvet.lake.table import LakeTable

EPOCH = date(1970, 1, 1)


def data_files(table: LakeTable) -> dict[str, DataFile]:
    """Return the data files of a snapshot by their URLs. Raises OSError."""
    found = {}
    for action in pa.table(table.delta.get_add_actions(flatten=True)).to_pylist():
        file = _data_file(table, action)
        found[file.file_path] = file
    return found


def _data_file(table: LakeTable, action: Mapping[str, Any]) -> DataFile:
    count = action.get("num_records")
    if count is None:  # another writer's file without statistics
        filesystem = table.location.filesystem()
        count = pq.read_metadata(f"{table.location.path}/{action['path']}", filesystem=filesystem).num_rows
    day = action.get("partition.date")
    nulls = {
        field.field_id: int(number)
        for field in SCHEMA.fields
        if (number := action.get(f"null_count.{field.name}")) is not None
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location.url}/{action['path']}",
        file_format=FileFormat.PARQUET,
        partition=Record(None if day is None else (day - EPOCH).days),
        record_count=count,
        file_size_in_bytes=action["size_bytes"],
        column_sizes={},
        value_counts=dict.fromkeys(nulls, count),
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=_bounds(action, "min"),
        upper_bounds=_bounds(action, "max"),
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=SPEC.spec_id,
    )


def _bounds(action: Mapping[str, Any], which: str) -> dict[int, bytes]:
    """Return the least or greatest values of the columns, in Iceberg's encoding by field id."""
    found = {}
    for field in SCHEMA.fields:
        value = action.get(f"{which}.{field.name}")
        if value is not None and isinstance(field.field_type, PrimitiveType):
            found[field.field_id] = to_bytes(field.field_type, _micros(value))
    return found


def _micros(value: Any) -> Any:
    """Return a timestamp as microseconds since 1970, other values unchanged."""
    if not isinstance(value, datetime):
        return value
    since = value - datetime(1970, 1, 1, tzinfo=value.tzinfo)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
