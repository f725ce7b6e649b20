"""Convert rows of an archive to rows of a typed table, or of its dlq table if they cannot be decoded.

Tombstones (null values) are left out, or kept as rows without values; with upsert they delete rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, field, frozen

from korvet.lake.schema import BUCKET, FILE_SCHEMA, HOUR, MONTH
from korvet.pipeline.decoding.buckets import buckets_of
from korvet.pipeline.decoding.columns import (
    DATE,
    DELETED,
    DELETED_AT,
    KEY,
    OFFSET,
    OPERATION,
    PARTITION,
    RAW,
    TIMESTAMP,
    struct_columns,
)
from korvet.pipeline.decoding.confluent import (
    HEADER_BYTES,
    VALUE_HEADER,
    looks_framed,
    schema_id,
    with_ids_of_headers,
)
from korvet.pipeline.decoding.inference import Wanted, wanted
from korvet.pipeline.decoding.json_values import needs_numbers_as_written, objects
from korvet.pipeline.decoding.leaves import STRING_FROM_NUMBER, Faults, Row, Unfit
from korvet.pipeline.decoding.names import field_name
from korvet.pipeline.decoding.record_keys import KeyReader, RecordKeys
from korvet.pipeline.decoding.record_names import Selection
from korvet.pipeline.decoding.registry import Registry
from korvet.pipeline.decoding.reshaping import flatten, rename, unwrap
from korvet.pipeline.decoding.row_keys import Keys
from korvet.pipeline.decoding.specification import PERIODS, Specification

DELETE = "d"
FORMATS = {HOUR: "%Y-%m-%d-%H", MONTH: "%Y-%m"}
ERROR = pa.field("error", pa.string())
#: The dlq table: the columns of the archive's files, so that the same readers work, and the error.
DLQ_SCHEMA = FILE_SCHEMA.append(ERROR)


@frozen
class JsonValues:
    """Reader of JSON objects. With `as_written`, numbers keep their text.

    With `is_framed`, values have the framing of Confluent's clients. If there is a registry, it must know their ids.
    """

    as_written: bool = False
    is_framed: bool = False
    registry: Registry | None = None

    def objects(self, values: Sequence[bytes | None], faults: Faults) -> list[Row | None]:
        """Return the objects of values; see `json_values.objects`."""
        unframed = self.unframed if self.is_framed else None
        return objects(values, faults, as_written=self.as_written, unframed=unframed)

    def unframed(self, value: bytes) -> bytes:
        """Return the JSON in a framed value. Raises Unfit, RegistryError."""
        number, begin = schema_id(value)
        if self.registry is not None:
            self.registry.written_with(number, "JSON")
        return value[begin:]


@frozen
class Decoder:
    """The decoding of a topic's values to rows. It can be pickled, and works the same in every process.

    `values` reads them: JsonValues, JsonSchemaValues, AvroValues or ProtobufValues. `fields` are the columns for their
    contents.
    """

    specification: Specification
    fields: tuple[pa.Field, ...]
    values: Any
    #: True if keys have the framing of Confluent's clients. Only upsert reads keys.
    has_framed_keys: bool = False
    #: The values that the table takes, if the topic has several tables.
    selection: Selection | None = None
    #: The decoding of the records' keys, if they become columns.
    record_keys: RecordKeys | None = None
    #: Reads the keys of deletions if columns identify rows.
    key_reader: KeyReader | None = None

    @classmethod
    def for_json(cls, specification: Specification, fields: Sequence[pa.Field]) -> Decoder:
        exactly = (
            specification.numbers == "string"
            or STRING_FROM_NUMBER in specification.lenient
            or needs_numbers_as_written(fields)
        )
        registry = None if specification.registry is None else Registry(specification.registry)
        values = JsonValues(exactly, specification.framing == "confluent", registry)
        return cls(specification, tuple(fields), values)

    @property
    def schema(self) -> pa.Schema:
        """The typed table's columns: those of the values and the keys, followed by those about the record."""
        return pa.schema([*self.fields, *self.key_fields, *own_fields(self.specification)])

    @property
    def key_fields(self) -> tuple[pa.Field, ...]:
        """The columns for the records' keys."""
        return () if self.record_keys is None else self.record_keys.fields

    @property
    def keys(self) -> Keys:
        """The columns that identify a row of an upsert table."""
        if self.specification.key:
            return Keys(self.specification.key)
        return Keys((KEY,), HEADER_BYTES if self.has_framed_keys else 0)

    def partition_columns(self) -> tuple[str, ...]:
        """Return the names of the typed table's partition columns."""
        names = (PERIODS.get(name, name) for name in self.specification.partition_by)
        return (*names, *((BUCKET,) if self.specification.bucket_by else ()))


def own_fields(specification: Specification) -> list[pa.Field]:
    """Return the columns about the record: partition, offset and timestamp always, the others as specified."""
    fields = [
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
    if specification.keep_key or (specification.upsert and not specification.key):
        fields.append(pa.field(KEY, pa.binary()))
    if specification.unwrap:
        fields.append(pa.field(OPERATION, pa.string()))
    if specification.keep_raw:
        fields.append(pa.field(RAW, pa.binary()))
    periods = [PERIODS[name] for name in specification.partition_by if name in PERIODS]
    fields += [pa.field(name, pa.date32() if name == DATE else pa.string()) for name in periods]
    if specification.bucket_by:
        fields.append(pa.field(BUCKET, pa.int32()))
    if specification.deletes == "soft":
        fields += [pa.field(DELETED, pa.bool_()), pa.field(DELETED_AT, pa.timestamp("us", "UTC"))]
    return fields


@frozen
class Opened:
    """Rows read from values; None for tombstones and bad values."""

    values: Sequence[bytes | None]  # as archived
    rows: list[Row | None]
    operations: list[str | None]  # of Debezium's envelopes
    faults: Faults = field(factory=Faults)
    strangers: set[int] = field(factory=set)  # rows of other tables
    found: set[str] = field(factory=set)  # record types that get tables


@frozen
class Decoded:
    """Result of decoding some rows. With upsert, the column `_deleted` of `typed` marks deletions.

    If columns identify rows, deletions have at least these columns.
    """

    typed: pa.Table
    bad: pa.Table
    tombstones: int
    #: By partition, the number of rows that are in neither, nor in the dlq table already.
    skipped: Counter[int]
    #: The number of rows of the topic's other tables, which are among the skipped ones.
    strangers: int = 0
    #: Record types of such rows that have no tables yet.
    found: frozenset[str] = frozenset()

    @property
    def typed_count(self) -> int:
        """The number of typed rows, without those that delete."""
        if DELETED not in self.typed.column_names:
            return int(self.typed.num_rows)
        return int(self.typed.num_rows - (pc.sum(self.typed.column(DELETED)).as_py() or 0))


def open_values(decoder: Decoder, archived: pa.Table) -> Opened:
    """Read and reshape the values of rows of an archive, before they are fitted to columns."""
    specification = decoder.specification
    faults = Faults()
    values = framed = archived.column("value").to_pylist()
    if specification.framing == "confluent":
        has_indexes = specification.format == "protobuf"
        headers = archived.column("headers")
        framed = with_ids_of_headers(values, headers, VALUE_HEADER, faults, has_indexes=has_indexes)
    found: set[str] = set()
    strangers = decoder.selection.strangers(framed, faults, found) if decoder.selection is not None else set()
    if strangers:
        framed = [None if number in strangers else value for number, value in enumerate(framed)]
    rows = decoder.values.objects(framed, faults)
    operations: list[str | None] = [None] * len(rows)
    opened = Opened(values, rows, operations, faults, strangers, found)
    if not (specification.unwrap or specification.rename or specification.flatten):
        return opened
    maps = frozenset(field_name(one.name) for one in decoder.fields if pa.types.is_map(one.type))
    for number, row in enumerate(rows):
        if row is None:
            continue
        try:
            rows[number], operations[number] = reshape(row, specification, maps)
        except Unfit as fault:
            faults.add(number, "$", str(fault))
            rows[number] = None
    return opened


def reshape(row: Row, specification: Specification, maps: Collection[str]) -> tuple[Row | None, str | None]:
    """Reshape a row as specified. Return it with Debezium's operation, if any. Raises Unfit."""
    operation = None
    if specification.unwrap:
        change = unwrap(row)
        operation = change.operation
        if change.row is None:
            return None, operation
        row = change.row
    if specification.rename:
        rename(row, specification.rename)
    if specification.flatten:
        row = flatten(row, specification.flatten, maps)
    return row, operation


def infer_columns(decoder: Decoder, archived: pa.Table) -> Wanted:
    """Count the fields of these rows that have no column yet."""
    opened = open_values(decoder, archived)
    return wanted(opened.rows, decoder.fields)


def decode(decoder: Decoder, archived: pa.Table, known_bad: Collection[tuple[int, int]] = ()) -> Decoded:
    """Decode rows of an archive. `known_bad` are the (partition, offset) of rows that the dlq table has already.

    Those rows are in neither result. Raises RegistryError.
    """
    opened = open_values(decoder, archived)
    values, faults = opened.values, opened.faults
    specification = decoder.specification
    if specification.key:
        read_keys_of_deletions(decoder, archived, opened)
    arrays = fitted(decoder, opened)
    if specification.upsert and not specification.key:
        refuse_without_key(archived, faults)
        if decoder.has_framed_keys:
            refuse_unframed_keys(archived, faults)
    columns = dict(zip((one.name for one in decoder.fields), arrays, strict=True))
    if decoder.record_keys is not None:
        columns |= decoder.record_keys.columns(archived, faults)
    refuse_empty_partition_values(decoder, columns, faults)
    strangers = {*opened.strangers}
    if not specification.takes_the_rest:  # tombstones that no table can have are bad rows of one table
        strangers.update(number for number in faults.by_row if values[number] is None)
    bad = sorted(faults.by_row.keys() - strangers)
    deleted = [
        value is None or operation == DELETE
        for value, operation in zip(values, opened.operations, strict=True)
    ]
    tombstones = sum(value is None for value in values)
    left_out = {*bad, *already_bad(archived, known_bad)}
    keeps_tombstones = specification.upsert or (
        specification.tombstones == "keep" and specification.takes_the_rest
    )
    kept: list[int] = []
    skipped: list[int] = []
    for number, value in enumerate(values):
        if number not in left_out:
            is_kept = number not in strangers and (value is not None or keeps_tombstones)
            (kept if is_kept else skipped).append(number)
    columns |= own_columns(specification, archived, opened, pa.array(deleted, pa.bool_()))
    if specification.bucket_by:
        columns[BUCKET] = buckets_of(columns[specification.bucket_by], specification.buckets)
    typed = pa.Table.from_arrays(
        [columns[one.name] for one in decoder.schema], schema=nullable(decoder.schema)
    )
    if specification.upsert and specification.deletes == "hard":
        typed = typed.append_column(DELETED, columns[DELETED])
    new = [number for number in bad if number not in already_bad(archived, known_bad)]
    return Decoded(
        typed if len(kept) == len(values) else typed.take(pa.array(kept, pa.int64())),
        bad_rows(archived, new, faults),
        tombstones,
        Counter(archived.column("partition").take(pa.array(skipped, pa.int64())).to_pylist()),
        len(strangers),
        frozenset(opened.found),
    )


def fitted(decoder: Decoder, opened: Opened) -> list[pa.Array]:
    """Return the rows as columns."""
    opened.faults.may_lack.update(
        number for number, operation in enumerate(opened.operations) if operation == DELETE
    )
    rows = [
        None if row is None or number in opened.faults.by_row else row
        for number, row in enumerate(opened.rows)
    ]
    reading = decoder.specification.reading
    return struct_columns(rows, decoder.fields, range(len(rows)), opened.faults, reading)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns nullable."""
    # `struct_columns` checks required columns row by row; rows of deletions may lack them.
    return pa.schema([one.with_nullable(True) for one in schema])  # noqa: FBT003  pyarrow's signature


def own_columns(
    specification: Specification, archived: pa.Table, opened: Opened, deleted: pa.Array
) -> dict[str, Any]:
    timestamps = archived.column("timestamp")
    columns = {
        PARTITION: archived.column("partition"),
        OFFSET: archived.column("offset"),
        TIMESTAMP: timestamps,
        KEY: archived.column("key"),
        RAW: archived.column("value"),
        DELETED: deleted,
        DELETED_AT: pc.if_else(deleted, timestamps, pa.scalar(None, timestamps.type)),
    }
    if specification.unwrap:
        columns[OPERATION] = pa.array(opened.operations, pa.string())
    local = timestamps.cast(pa.timestamp("us"))
    for name in PERIODS.keys() & set(specification.partition_by):
        column = PERIODS[name]
        is_day = column == DATE
        columns[column] = (
            local.cast(pa.date32(), safe=False) if is_day else pc.strftime(local, format=FORMATS[column])
        )
    return columns


def read_keys_of_deletions(decoder: Decoder, archived: pa.Table, opened: Opened) -> None:
    """Put what the record's key states into the rows of deletions without values. Add a fault if it lacks a column."""
    specification, faults = decoder.specification, opened.faults
    others = {*faults.by_row, *opened.strangers}
    numbers = [number for number, row in enumerate(opened.rows) if row is None and number not in others]
    of_values = {one.name for one in decoder.fields}
    names = [
        field_name(each) if specification.reading.escaped_names else each
        for each in specification.key
        if each in of_values
    ]
    if not numbers or not names or decoder.key_reader is None:
        return
    found = Faults()
    deletions = archived.take(pa.array(numbers, pa.int64()))
    for place, row in enumerate(decoder.key_reader.rows(deletions, found)):
        number = numbers[place]
        try:
            if place in found.by_row:
                raise Unfit(found.by_row[place].removeprefix("$: "))
            opened.rows[number] = key_columns(row, names, specification)
            faults.may_lack.add(number)
        except Unfit as fault:
            reason = f"{fault}; by the fields {', '.join(names)} of the record's key a deletion finds its row"
            faults.add(number, "key", reason)


def key_columns(key: Row | None, names: Sequence[str], specification: Specification) -> Row:
    """Return these fields of a record's key. Raises Unfit."""
    if key is None:
        raise Unfit("is null")
    if key.keys() == {"schema", "payload"} and type(key["payload"]) is dict:  # of Connect's JSON converter
        key = key["payload"]
    row, _ = reshape(key, evolve(specification, unwrap=None), ())
    missing = [name for name in names if row is None or name not in row]
    if row is None or missing:
        raise Unfit(f"lacks {', '.join(missing)}")
    return {name: row[name] for name in names}


def refuse_without_key(archived: pa.Table, faults: Faults) -> None:
    for number, key in enumerate(archived.column("key").to_pylist()):
        if key is None:
            faults.add(number, "key", "is null, and upsert goes by it")


def refuse_unframed_keys(archived: pa.Table, faults: Faults) -> None:
    for number, key in enumerate(archived.column("key").to_pylist()):
        if key is not None and not looks_framed(key):
            faults.add(number, "key", "has no schema id, and the registry has a schema for the topic's keys")


def refuse_empty_partition_values(decoder: Decoder, columns: dict[str, pa.Array], faults: Faults) -> None:
    """Add a fault for each empty string in a partition column: Delta's log cannot distinguish it from null."""
    for name in decoder.specification.partition_by:
        if name not in PERIODS and pa.types.is_string(columns[name].type):
            for number, value in enumerate(columns[name].to_pylist()):
                if value == "":
                    faults.add(number, f"$.{name}", "is empty, and tables are not partitioned by that")


def already_bad(archived: pa.Table, known_bad: Collection[tuple[int, int]]) -> set[int]:
    """Return the indexes of the rows that are in the dlq table already."""
    if not known_bad:
        return set()
    places = zip(archived.column("partition").to_pylist(), archived.column("offset").to_pylist(), strict=True)
    return {number for number, place in enumerate(places) if place in known_bad}


def bad_rows(archived: pa.Table, numbers: Sequence[int], faults: Faults) -> pa.Table:
    rows = archived.select(FILE_SCHEMA.names).take(pa.array(numbers, pa.int64()))
    reasons = pa.array([faults.by_row[number] for number in numbers], pa.string())
    return rows.append_column(ERROR, reasons).cast(DLQ_SCHEMA)
