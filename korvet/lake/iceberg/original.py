"""The original of a mirror: one version of a Delta table of korvet's, and how Iceberg describes it.

The schema of an archive is fixed (`table_schema`). That of a typed or dlq table is derived from Delta's, and follows it
when columns are added. Their bounds are those that Delta's log has: of `_partition` and `_offset`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import BucketTransform, HourTransform, IdentityTransform, MonthTransform, Transform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from korvet.lake.delta_log import DeltaLog
from korvet.lake.errors import LakeError, NewerFormat, WrongTable
from korvet.lake.iceberg.table_schema import SCHEMA, SPEC
from korvet.lake.location import Location
from korvet.lake.schema import BUCKET, BUCKET_BY, HOUR, MONTH
from korvet.lake.store_errors import store_errors
from korvet.lake.table import ARCHIVE, FORMAT_VERSION, KIND, VERSION
from korvet.lake.table_features import has_column_mapping, has_deletion_vectors

EPOCH = date(1970, 1, 1)
#: Names of Iceberg's metadata columns. Spark opens no table that has a column of such a name.
RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
FIRST_ID = 1000  # of partition fields
#: Transforms of the typed table's timestamp, by the names of Delta's partition columns.
PERIODS: Mapping[str, Transform[Any, Any]] = {HOUR: HourTransform(), MONTH: MonthTransform()}
TIMESTAMP = "_timestamp"


class NotMirrored(LakeError):  # noqa: N818  the name states the fault
    """Iceberg cannot describe the files of the Delta table."""


@define(slots=False, eq=False)
class Original:
    """One version of an archive, a typed table or a dlq table."""

    location: Location
    name: str
    #: deltalake's handle of this version; it must not be refreshed.
    delta: DeltaTable = field(repr=False)

    @classmethod
    def open(cls, lake: Location, name: str) -> Original:
        """Open the newest version. Raises NoTable, WrongTable, NewerFormat, Unreachable, NotMirrored."""
        location = lake.child(name)
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            properties: Mapping[str, str] = delta.metadata().configuration
        if KIND not in properties:
            raise WrongTable(
                f"{location} is a Delta table, but none of korvet's; name the topics with --topics."
            )
        number = properties.get(VERSION, "")
        if not number.isdecimal() or int(number) > FORMAT_VERSION:
            raise NewerFormat(
                f"{location} has format version {number}; this korvet reads up to {FORMAT_VERSION}. Update korvet."
            )
        if has_deletion_vectors(delta) or has_column_mapping(delta):
            raise NotMirrored(
                f"{location} has deletion vectors or renamed columns, which another writer made; "
                "Iceberg would not know of them."
            )
        return cls(location, name, delta)

    def reopened(self) -> Original:
        """Return the newest version of the same table."""
        with store_errors(self.location):
            delta = DeltaTable(self.location.url, storage_options=self.location.storage_options())
        return Original(self.location, self.name, delta)

    @cached_property
    def version(self) -> int:
        return self.delta.version()

    @cached_property
    def id(self) -> str:
        """Delta's id of the table, which a table that is created again does not share."""
        return str(self.delta.metadata().id)

    @cached_property
    def is_archive(self) -> bool:
        return bool(self.delta.metadata().configuration[KIND] == ARCHIVE)

    @cached_property
    def schema(self) -> Schema:
        """The schema for a new Iceberg table, with the field ids that every catalogue assigns. Raises NotMirrored."""
        if self.is_archive:
            return SCHEMA
        try:
            columns = [
                each for each in pa.schema(self.delta.schema().to_arrow()) if each.name not in self.derived
            ]
            renamed = pa.schema([each.with_name(iceberg_name(each.name)) for each in columns])
            without_ids = Catalog._convert_schema_if_needed(renamed)  # noqa: SLF001  as catalogues do
            return assign_fresh_schema_ids(without_ids)
        except TYPE_ERRORS as error:
            raise refused_types(self, error) from error

    @cached_property
    def schema_hash(self) -> str:
        """A hash of Delta's schema."""
        return hashlib.sha256(self.delta.schema().to_json().encode()).hexdigest()[:32]

    def moved_since(self, version: int) -> set[str] | None:
        """Return the URLs of the files to which commits after a version have moved rows.

        Return None if one of the commits removed rows, and for archives, whose files state their rows in their names.
        """
        if self.is_archive:
            return None
        with store_errors(self.location):
            paths = DeltaLog(self.location).moved(version + 1, self.version)
        return None if paths is None else {f"{self.location.url}/{path}" for path in paths}

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns by whose values a typed table is partitioned."""
        columns: Sequence[str] = () if self.is_archive else self.delta.metadata().partition_columns
        return columns

    @cached_property
    def derived(self) -> Mapping[str, tuple[str, Transform[Any, Any]]]:
        """The partition columns that are no columns in Iceberg, which derives them: their sources and transforms."""
        found = {name: (TIMESTAMP, PERIODS[name]) for name in self.columns if name in PERIODS}
        if BUCKET in self.columns:
            source, count = json.loads(self.delta.metadata().configuration[BUCKET_BY])
            found[BUCKET] = (iceberg_name(source), BucketTransform(count))
        return found

    @property
    def _transforms(self) -> list[tuple[str, Transform[Any, Any], str]]:
        """By partition field, its source, its transform and its name."""
        return [
            (*self.derived[name], name)
            if name in self.derived
            else (iceberg_name(name), IdentityTransform(), iceberg_name(name))
            for name in self.columns
        ]

    @property
    def spec(self) -> PartitionSpec:
        """The partitions of a new Iceberg table."""
        if self.is_archive:
            return SPEC
        # Files do not contain these columns. Iceberg's readers take the values of such columns from the partition.
        return PartitionSpec(
            *(
                PartitionField(self.schema.find_field(source).field_id, FIRST_ID + place, transform, name)
                for place, (source, transform, name) in enumerate(self._transforms)
            )
        )

    def is_partitioned_as(self, spec: PartitionSpec) -> bool:
        """Return True if the spec of an Iceberg table is that of this table."""
        if self.is_archive:
            return spec.fields == SPEC.fields
        return [(each.name, each.transform) for each in spec.fields] == [
            (name, transform) for _, transform, name in self._transforms
        ]

    def data_files(self, schema: Schema) -> dict[str, DataFile]:
        """Return the data files by their URLs, described in the Iceberg table's schema. Raises Unreachable."""
        found = {}
        with store_errors(self.location):
            for action in pa.table(self.delta.get_add_actions(flatten=True)).to_pylist():
                file = self._data_file(action, schema)
                found[file.file_path] = file
        return found

    def _data_file(self, action: Mapping[str, Any], schema: Schema) -> DataFile:
        count = action.get("num_records")
        if count is None:  # another writer's file without statistics
            path = f"{self.location.path}/{action['path']}"
            count = pq.read_metadata(path, filesystem=self.location.filesystem()).num_rows
        nulls = {
            each.field_id: int(number)
            for each in schema.fields
            if (number := action.get(f"null_count.{delta_name(each.name)}")) is not None
        }
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.location.url}/{action['path']}",
            file_format=FileFormat.PARQUET,
            partition=self._partition(action),
            record_count=count,
            file_size_in_bytes=action["size_bytes"],
            column_sizes={},
            value_counts=dict.fromkeys(nulls, count),
            null_value_counts=nulls,
            nan_value_counts={},
            lower_bounds=_bounds(action, "min", schema),
            upper_bounds=_bounds(action, "max", schema),
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=self.spec.spec_id,
        )

    def _partition(self, action: Mapping[str, Any]) -> Record:
        if self.is_archive:
            return Record(_days(action.get("partition.date")))
        values = {name: action[f"partition.{name}"] for name in self.columns}
        return Record(
            *(_period(value) if name in PERIODS else _days(_micros(value)) for name, value in values.items())
        )


def iceberg_name(name: str) -> str:
    """Return the Iceberg table's name of a column: that of the Delta table, unless Iceberg reserves it."""
    return f"{name}_" if name in RESERVED else name


def delta_name(name: str) -> str:
    """Return the Delta table's name of a column of the Iceberg table."""
    return name.removesuffix("_") if name.removesuffix("_") in RESERVED else name


def refused_types(original: Original, error: Exception) -> NotMirrored:
    """Return the error for a table with a type that Iceberg does not have."""
    return NotMirrored(f"{original.location} has a column that Iceberg cannot describe: {error}")


#: PyIceberg's errors for such a table.
TYPE_ERRORS = (UnsupportedPyArrowTypeException, ValidationError)


def _period(text: str | None) -> int | None:
    """Return the months or hours since 1970 of 2026-01 or 2026-01-31-12."""
    if text is None:
        return None
    year, month, *rest = map(int, text.split("-"))
    if not rest:
        return (year - EPOCH.year) * 12 + month - 1
    day, hour = rest
    return (date(year, month, day) - EPOCH).days * 24 + hour


def _days(value: Any) -> Any:
    """Return a date as days since 1970, other values unchanged."""
    return (value - EPOCH).days if isinstance(value, date) else value


def _bounds(action: Mapping[str, Any], which: str, schema: Schema) -> dict[int, bytes]:
    """Return the least or greatest values of the columns, in Iceberg's encoding by field id."""
    found = {}
    for each in schema.fields:
        value = action.get(f"{which}.{delta_name(each.name)}")
        if value is not None and isinstance(each.field_type, PrimitiveType):
            found[each.field_id] = to_bytes(each.field_type, _micros(value))
    return found


def _micros(value: Any) -> Any:
    """Return a timestamp as microseconds since 1970, other values unchanged."""
    if not isinstance(value, datetime):
        return value
    since = value - datetime(1970, 1, 1, tzinfo=value.tzinfo)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
