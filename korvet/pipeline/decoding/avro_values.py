"""Avro: the reader's schema becomes columns; values, each with its writer's schema, are resolved to it.

Resolution is Avro's: fields matched by name or alias, numbers widened, defaults filled in. Times of day stay numbers
(milliseconds or microseconds), because Delta has no type for them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import fastavro
import pyarrow as pa
from attrs import frozen
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from korvet.pipeline.decoding.avro_references import loaded, whole_schema
from korvet.pipeline.decoding.confluent import SchemaId, schema_id
from korvet.pipeline.decoding.leaves import Faults, Row, SchemaFault, Unfit, rows_of
from korvet.pipeline.decoding.registry import NotRegistered, Registry

UTC_MICROS = pa.timestamp("us", "UTC")

PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): UTC_MICROS,
    ("long", "timestamp-micros"): UTC_MICROS,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}
WIDER = [{"int", "long"}, {"float", "double"}, {"int", "long", "float", "double"}]
NO_AVRO = (
    SchemaResolutionError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


@frozen
class AvroValues:
    """Reader of values into rows of one schema. `registry` resolves schema ids; None if values have no framing.

    If `single` is given, values may be of any type, and are the only field of their rows, of this name.
    """

    schema: str
    registry: Registry | None = None
    single: str = ""

    def objects(self, values: Sequence[bytes | None], faults: Faults) -> list[Row | None]:
        """Return the record in each value; None for a null value and for a bad one, which is added to `faults`."""
        return rows_of(values, self.record, faults)

    def record(self, value: bytes) -> Row:
        """Decode one value. Raises Unfit, RegistryError."""
        writer, begin = self.schema, 0
        if self.registry is not None:
            number, begin = schema_id(value)
            writer = written_with(self.registry, number)
        source = io.BytesIO(value)
        source.seek(begin)
        try:
            row = fastavro.schemaless_reader(
                source, parsed(writer, self.single), parsed(self.schema, self.single)
            )
        except NO_AVRO as error:
            raise Unfit(f"is not Avro of its schema: {type(error).__name__}: {error}") from None
        if source.tell() != len(value):
            raise Unfit(f"goes on for {len(value) - source.tell()} bytes behind the record")
        if not isinstance(row, dict):
            raise Unfit("is not a record")
        return row


def written_with(registry: Registry, number: SchemaId) -> str:
    """Return the text of the writer's schema. Raises Unfit if the registry has none, or one that is not for Avro."""
    try:
        return whole_schema(registry, registry.written_with(number, "AVRO"))
    except (NotRegistered, SchemaFault) as error:
        raise Unfit(f"schema {number}: {error}") from None


@cache
def parsed(text: str, single: str = "") -> Any:
    """Parse a schema with fastavro, as that of the field `single` of a record if given. Raises SchemaFault."""
    try:
        schema = without_times(json.loads(text))
        if single:  # a record is encoded as its fields one after the other
            schema = {"type": "record", "name": "Single", "fields": [{"name": single, "type": schema}]}
        return fastavro.parse_schema(schema)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
        raise SchemaFault(f"The Avro schema does not parse: {type(error).__name__}: {error}") from None


def is_record(text: str) -> bool:
    """Return True if a schema is one of a record. Raises SchemaFault."""
    schema = loaded(text)
    return isinstance(schema, dict) and schema.get("type") == "record"


def without_times(schema: Any) -> Any:
    """Return the schema with times of day as plain numbers."""
    if isinstance(schema, list):
        return [without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_times(value) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
        if not (name == "logicalType" and value in ("time-millis", "time-micros"))
    }


def avro_fields(text: str, single: str = "") -> list[pa.Field]:
    """Return the columns for a reader's schema, or its only column `single`. Raises SchemaFault."""
    schema = parsed(text, single)
    names: dict[str, Any] = {}
    kind = arrow_type(schema, names, "$")
    if not pa.types.is_struct(kind):
        raise SchemaFault("The Avro schema is not one of a record.")
    return list(kind)


def arrow_type(schema: Any, names: dict[str, Any], path: str) -> pa.DataType:
    """Return the type for a schema without null. `names` maps the named types so far; None while one is being built."""
    if isinstance(schema, list):
        return union_type([each for each in schema if each != "null"], names, path)
    if isinstance(schema, str):
        return PRIMITIVES[schema] if schema in PRIMITIVES else named_type(schema, names, path)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return arrow_type(kind, names, path)
    logical = LOGICAL.get((kind, schema.get("logicalType", "")))
    if logical is not None:
        return logical
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return decimal_type(schema, path)
    if kind == "array":
        return pa.list_(arrow_type(schema["items"], names, f"{path}[]"))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], names, f"{path}.*"))
    if kind in ("enum", "fixed"):
        names[schema["name"]] = pa.string() if kind == "enum" else pa.binary()
        return names[schema["name"]]
    if kind == "record":
        return record_type(schema, names, path)
    return arrow_type(kind, names, path)


def record_type(schema: Mapping[str, Any], names: dict[str, Any], path: str) -> pa.DataType:
    names[schema["name"]] = None
    names[schema["name"]] = pa.struct(
        [
            (each["name"], arrow_type(each["type"], names, f"{path}.{each['name']}"))
            for each in schema["fields"]
        ]
    )
    return names[schema["name"]]


def named_type(name: str, names: Mapping[str, Any], path: str) -> pa.DataType:
    if name == "null":
        raise SchemaFault(f"{path}: one column cannot be null alone.")
    if names.get(name) is None:
        raise SchemaFault(f"{path}: {name} holds itself; a table's columns cannot.")
    return names[name]


def union_type(members: Sequence[Any], names: dict[str, Any], path: str) -> pa.DataType:
    if len(members) == 1:
        return arrow_type(members[0], names, path)
    plain = {each for each in members if isinstance(each, str)}
    for wider, kind in zip(WIDER, ("long", "double", "double"), strict=True):
        if len(plain) == len(members) and members and plain <= wider:
            return PRIMITIVES[kind]
    alternatives = ", ".join(
        each if isinstance(each, str) else str(each.get("name") or each["type"]) for each in members
    )
    raise SchemaFault(f"{path}: one column cannot be a union of {alternatives or 'null alone'}.")


def decimal_type(schema: Mapping[str, Any], path: str) -> pa.DataType:
    precision = schema["precision"]
    if precision > 38:
        raise SchemaFault(f"{path}: decimals have at most 38 digits, not {precision}.")
    return pa.decimal128(precision, schema.get("scale", 0))
