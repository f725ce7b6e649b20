"""Typed tables and their dlq tables. Like the archive, these Delta tables record their own progress.

Each has its own decoded offsets, one `txn` action per partition, set by the commit that adds the rows:

    korvet/<topic id>/<partition>            decoded offset: everything below it in the topic was decoded
    korvet/<topic id>/<partition>/start      the offset at which it begins
    korvet/<topic id>/<partition>/compared   from this offset on, skipped records are counted (not with upsert)
    korvet/<topic id>/<partition>/skipped    their number: tombstones, and bad rows that are not kept
    korvet/<topic id>/record/<name>          a record type that was found in the topic; the number is its place
    korvet/<topic id>/dropped                rows whose timestamps (milliseconds) are before this were dropped

So the two tables need no common commit. A commit is based on the snapshot whose decoded offsets were read, and succeeds
only if each span begins at its decoded offset. So two writers never commit the same offsets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.column_reading import read_columns
from korvet.lake.delta_log import DeltaLog
from korvet.lake.erasing_decoded import PLACES
from korvet.lake.errors import CommitConflict, NewerFormat, OutOfOrder, WrongTable
from korvet.lake.location import Location
from korvet.lake.schema import BUCKET_BY, Int64s
from korvet.lake.snapshots import Snapshot
from korvet.lake.store_errors import store_errors
from korvet.lake.table import (
    CHECKPOINT_INTERVAL,
    KIND,
    TOPIC,
    TOPIC_ID,
    VERSION,
    LakeTable,
    refuse_other_things,
)
from korvet.pipeline.decoding.statistics import Statistics

FORMAT_VERSION = 1
TYPED, DLQ = "typed", "dlq"
RANGES, RECORDS = "korvet.ranges", "korvet.records"
#: The property with the columns that identify a row of an upsert table, as a JSON array.
KEYS = "korvet.key"
#: The same of the columns by which rows are sorted when files are joined.
CLUSTER_BY = "korvet.cluster_by"


@frozen(order=True)
class Span:
    """Offsets of a partition in [start, end)."""

    partition: int
    start: int
    end: int


@frozen
class Part:
    """A written file, not yet committed."""

    path: str  # inside the table
    size: int
    modified_ms: int
    count: int
    partition_values: dict[str, str | None]
    statistics: Statistics

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the `add` action. `data_change` is False if the rows were already in the table."""
        stats = {
            "numRecords": self.count,
            "minValues": self.statistics.least,
            "maxValues": self.statistics.greatest,
            "nullCount": self.statistics.nulls,
        }
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=self.partition_values,
            modification_time=self.modified_ms,
            data_change=data_change,
            stats=json.dumps(stats),
        )


@frozen
class DecodedFile:
    """A file of a snapshot. `least` and `greatest` are those of a row's partition and offset, if the log has them."""

    path: str  # as in the log: percent-encoded
    size: int
    modified_ms: int
    count: int | None
    partition_values: dict[str, str | None]
    least: dict[str, int]
    greatest: dict[str, int]

    def remove_action(self, *, data_change: bool) -> RemoveAction:
        """Return the `remove` action. `data_change` is False if the rows moved to other files."""
        now_ms = time.time_ns() // 1_000_000
        return RemoveAction(self.path, data_change, now_ms, self.size, self.partition_values)


@define(slots=False)
class DecodedTable(Snapshot):
    """One snapshot of a typed or a dlq table. It needs no closing."""

    kind: str = field(kw_only=True)

    @classmethod
    def open(
        cls,
        location: Location,
        kind: str,
        topic: str,
        topic_id: UUID,
        *,
        previous: DecodedTable | None = None,
    ) -> Self:
        """Open the newest snapshot: `previous`, an earlier one of the same table, if that is the newest.

        Raises NoTable, WrongTable, NewerFormat, Unreachable.
        """
        if isinstance(previous, cls) and previous.is_newest():
            check(location, previous.delta, kind, topic, topic_id)
            return previous
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            check(location, delta, kind, topic, topic_id)
            transactions = DeltaLog(location).transactions(delta.version())
        return cls(location, topic, topic_id, delta, transactions, kind=kind)

    @classmethod
    def found(cls, location: Location) -> Self:
        """Open the newest snapshot of any typed or dlq table. Raises the errors of `open`."""
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            properties: Mapping[str, str] = delta.metadata().configuration
        if properties.get(KIND) not in PLACES or TOPIC not in properties or TOPIC_ID not in properties:
            raise WrongTable(f"{location} is a Delta table, but none of korvet's.")
        return cls.open(location, properties[KIND], properties[TOPIC], UUID(properties[TOPIC_ID]))

    @classmethod
    def create(
        cls,
        location: Location,
        kind: str,
        topic: str,
        topic_id: UUID,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        more_properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Create an empty table, or open the table that another writer just created.

        Raises NoTable and the errors of `open`.
        """
        refuse_other_things(location)
        properties = {KIND: kind, TOPIC: topic, TOPIC_ID: str(topic_id), VERSION: str(FORMAT_VERSION)}
        with store_errors(location):
            try:
                DeltaTable.create(
                    location.url,
                    Schema.from_arrow(schema),
                    mode="error",
                    partition_by=list(partition_by),
                    description=f"Topic {topic}, decoded by korvet ({kind}).",
                    configuration={
                        **properties,
                        **more_properties,
                        "delta.checkpointInterval": CHECKPOINT_INTERVAL,
                        # By default, readers look only at the statistics of the first 32 columns.
                        "delta.dataSkippingNumIndexedCols": "-1",
                    },
                    storage_options=location.storage_options(),
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                if not DeltaTable.is_deltatable(location.url, location.storage_options()):
                    raise
        return cls.open(location, kind, topic, topic_id)

    @cached_property
    def decoded_up_to(self) -> dict[int, int]:
        """The decoded offset of each partition: everything below it was decoded."""
        prefix = f"{self.app_id}/"
        found = {name.removeprefix(prefix): number for name, number in self.transactions.items()}
        return {int(name): number for name, number in sorted(found.items()) if name.isdecimal()}

    def start(self, partition: int) -> int:
        """Return the offset at which a partition begins, 0 if nothing of it was decoded."""
        return self.transactions.get(f"{self.app_id}/{partition}/start", 0)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row, if the table is one for upserts; `_key` is the record's key."""
        return self._names(KEYS)

    @property
    def cluster_by(self) -> tuple[str, ...]:
        """The columns by which rows are sorted when files are joined."""
        return self._names(CLUSTER_BY)

    @property
    def buckets(self) -> tuple[str, int] | None:
        """The column of whose values the table has buckets, and their number."""
        text = self.delta.metadata().configuration.get(BUCKET_BY)
        return None if text is None else tuple(json.loads(text))

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(json.loads(self.delta.metadata().configuration.get(name, "[]")))

    @property
    def row_count(self) -> int:
        """The number of rows, by the statistics of the log."""
        return sum(file.count or 0 for file in self.files)

    @property
    def schema(self) -> pa.Schema:
        return arrow_columns(self.delta.schema())

    @property
    def place(self) -> tuple[str, str]:
        """The columns with a row's partition and offset in the topic."""
        return PLACES[self.kind]

    @cached_property
    def files(self) -> list[DecodedFile]:
        """The files of this snapshot, the oldest first."""
        names, columns = self.place, self.delta.metadata().partition_columns
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        wanted = ["path", "size_bytes", "modification_time", "num_records"]
        wanted += [f"partition.{name}" for name in columns]
        wanted += [f"{which}.{name}" for name in names for which in ("min", "max")]
        found = [
            DecodedFile(
                each["path"],
                each["size_bytes"],
                each["modification_time"],
                each.get("num_records"),
                {name: partition_text(each[f"partition.{name}"]) for name in columns},
                {name: least for name in names if (least := each.get(f"min.{name}")) is not None},
                {name: greatest for name in names if (greatest := each.get(f"max.{name}")) is not None},
            )
            for each in actions.select([name for name in wanted if name in actions.column_names]).to_pylist()
        ]
        return sorted(found, key=lambda file: (file.modified_ms, file.path))

    def offsets(self, files: Iterable[DecodedFile] | None = None) -> dict[int, Int64s]:
        """Read the offsets of all rows, or of those in some files, by partition. Raises Unreachable.

        Files that are not there have none.
        """
        filesystem = self.location.filesystem()
        found: dict[int, list[Int64s]] = {}
        for file in self.files if files is None else files:
            inside = [name for name in self.place if name not in file.partition_values]
            with store_errors(self.location), suppress(FileNotFoundError):
                rows = read_columns(filesystem, self.absolute(file), inside)
                partitions, offsets = (
                    rows[name].to_numpy()
                    if name in inside
                    else np.full(rows.num_rows, int(file.partition_values[name] or 0))
                    for name in self.place
                )
                for partition in np.unique(partitions).tolist():
                    found.setdefault(partition, []).append(offsets[partitions == partition].astype(np.int64))
        return {partition: np.concatenate(several) for partition, several in found.items()}

    def reopened(self) -> Self:
        """Return the newest snapshot of the same table."""
        return type(self).open(self.location, self.kind, self.topic, self.topic_id, previous=self)

    def with_columns(self, fields: Sequence[pa.Field]) -> Self:
        """Add columns, which may be nested, in a commit of their own. Return the snapshot with them.

        Raises CommitConflict, Unreachable.
        """
        there = Schema.from_arrow(pa.schema(fields)).fields
        with store_errors(self.location):
            try:
                self.delta.alter.add_columns(there)
            except CommitFailedError as error:
                raise CommitConflict(f"{self.location}: {error}") from error
        return self.reopened()

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """Set properties in a commit of their own. Return the snapshot with them. Raises as `with_columns`."""
        with store_errors(self.location):
            try:
                self.delta.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
            except CommitFailedError as error:
                raise CommitConflict(f"{self.location}: {error}") from error
        return self.reopened()

    def commit(
        self, spans: Sequence[Span], parts: Sequence[Part], skipped: Mapping[int, int] | None = None
    ) -> Self:
        """Add files and advance the decoded offsets in one commit. Return the snapshot with this commit.

        `skipped` are the numbers of records by partition that have no row; None: they are not counted. Raises
        OutOfOrder, CommitConflict, Unreachable. Then nothing was committed, as far as can be determined.
        """
        numbers = self.next_numbers(spans)
        if skipped is not None:
            for span in spans:
                name = f"{self.app_id}/{span.partition}"
                compared, before = self.skipped(span.partition)
                numbers[f"{name}/compared"] = span.start if compared is None else compared
                numbers[f"{name}/skipped"] = before + skipped.get(span.partition, 0)
        return self.write([part.add_action() for part in parts], commit_info(spans), numbers)

    def skipped(self, partition: int) -> tuple[int | None, int]:
        """Return the offset from which skipped records are counted, None if they are not, and their number."""
        name = f"{self.app_id}/{partition}"
        return self.transactions.get(f"{name}/compared"), self.transactions.get(f"{name}/skipped", 0)

    @property
    def dropped_ms(self) -> int:
        """Rows whose timestamps in milliseconds are before this were dropped; 0 if none were."""
        return self.transactions.get(self.dropped_id, 0)

    @property
    def dropped_id(self) -> str:
        """The application id of `dropped_ms`."""
        return f"{self.app_id}/dropped"

    @property
    def records(self) -> list[str]:
        """The record types that were found in the topic, in this order, for the first one's table."""
        prefix = f"{self.app_id}/record/"
        found = [
            (place, name.removeprefix(prefix)) for name, place in self.transactions.items() if prefix in name
        ]
        return [name for _, name in sorted(found)]

    def with_records(self, names: Sequence[str]) -> Self:
        """Note found record types in a commit of their own. Raises CommitConflict, Unreachable."""
        first = len(self.records) + 1
        places = {f"{self.app_id}/record/{name}": first + place for place, name in enumerate(names)}
        return self.write([], {RECORDS: [*names]}, places)

    def append(self, parts: Sequence[Part]) -> Self:
        """Add files without advancing decoded offsets. Raises CommitConflict, Unreachable."""
        return self.commit((), parts)

    def next_numbers(self, spans: Sequence[Span]) -> dict[str, int]:
        """Return the `txn` versions to set in a commit of these spans. Raises OutOfOrder."""
        changed: dict[str, int] = {}
        for span in spans:
            name = f"{self.app_id}/{span.partition}"
            number = self.decoded_up_to.get(span.partition)
            if number is None:
                number = changed[f"{name}/start"] = span.start
            if span.start != number or span.end < span.start:
                raise OutOfOrder(
                    f"{self.location}: {self.topic}-{span.partition}: {span.start} to {span.end} "
                    f"does not begin at the table's number, {number}."
                )
            changed[name] = span.end
        return changed


def open_table(lake: Location, name: str) -> LakeTable | DecodedTable:
    """Open the archive, the typed table or the dlq table `name` in a lake. Raises the errors of `LakeTable.open`."""
    try:
        return LakeTable.open(lake, name)
    except WrongTable as error:
        try:
            return DecodedTable.found(lake.child(name))
        except WrongTable:
            raise error from None


def commit_info(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the entries of commitInfo for decoded spans."""
    return {RANGES: [[span.partition, span.start, span.end] for span in spans]}


def partition_text(value: Any) -> str | None:
    """Return a partition column's value in the format of Delta's log."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def arrow_columns(schema: Schema) -> pa.Schema:
    """Return the columns of Delta's schema, with types normalized by `plain`."""
    return pa.schema([one.with_type(plain(one.type)) for one in pa.schema(schema.to_arrow())])


def plain(kind: pa.DataType) -> pa.DataType:
    """Normalize a type: no views, large offsets, item names or time zone names, which do not affect values."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, plain(one.type), one.nullable) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC") if kind.tz else pa.timestamp("us")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def check(location: Location, delta: DeltaTable, kind: str, topic: str, topic_id: UUID) -> None:
    """Check that the table is of this kind, topic and format. Raises WrongTable, NewerFormat."""
    properties: Mapping[str, str] = delta.metadata().configuration
    if properties.get(KIND) != kind:
        what = properties.get(KIND)
        raise WrongTable(
            f"{location} is {f'a table of korvet, of kind {what}' if what else 'a Delta table not made by korvet'}; "
            f"choose another place for the {kind} table."
        )
    if not properties.get(VERSION, "").isdecimal() or int(properties[VERSION]) > FORMAT_VERSION:
        raise NewerFormat(f"{location} is of a newer format ({properties.get(VERSION)}); update korvet.")
    if properties.get(TOPIC) != topic:
        raise WrongTable(f"{location} is decoded from topic {properties.get(TOPIC)}, not from {topic}.")
    if properties.get(TOPIC_ID) != str(topic_id):
        raise WrongTable(
            f"{location} is decoded from an earlier topic {topic}, which was deleted and created again "
            f"(its id was {properties.get(TOPIC_ID)}, now it is {topic_id}); "
            "decode to another place, or move the table away."
        )
