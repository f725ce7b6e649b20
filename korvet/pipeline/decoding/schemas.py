"""Columns and decoders of a specification, from schema files, DDL, or the registry's latest schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from korvet.lake.errors import WrongTable
from korvet.pipeline.decoding.buckets import can_have_buckets
from korvet.pipeline.decoding.columns import KEY, RESERVED
from korvet.pipeline.decoding.leaves import DECIMAL_DIGITS, LEAVES, Reading, SchemaFault, named
from korvet.pipeline.decoding.names import column_name, is_fit
from korvet.pipeline.decoding.record_keys import SINGLE, SINGLE_FORMATS, KeyReader, RecordKeys, SingleKeys
from korvet.pipeline.decoding.record_names import Selection
from korvet.pipeline.decoding.registry import NotRegistered, Registry, Schema
from korvet.pipeline.decoding.reshaping import flattened_fields, renamed_fields
from korvet.pipeline.decoding.row_decoding import Decoder, JsonValues
from korvet.pipeline.decoding.specification import PERIODS, Format, Specification
from korvet.pipeline.decoding.tables import plain


def decoder_of(specification: Specification) -> Decoder:
    """Return the decoder of a specification. It has no columns for JSON without a schema.

    DDL requires a running Spark. Raises SchemaFault, RegistryError, OSError.
    """
    made = attrs.evolve(
        DECODERS[specification.format](specification), record_keys=record_keys_of(specification)
    )
    refuse_unfit(made)
    return with_keys(attrs.evolve(made, selection=selection_of(specification)))


def with_keys(decoder: Decoder) -> Decoder:
    """Return the decoder, which can read the records' keys, as far as upsert needs them. Raises the same errors."""
    specification = decoder.specification
    is_framed = has_framed_keys(specification)
    made = attrs.evolve(decoder, has_framed_keys=is_framed)
    if not specification.key:
        return made
    return attrs.evolve(made, key_reader=key_reader_of(made))


def key_reader_of(decoder: Decoder) -> KeyReader:
    """Return the reader of keys: that of their columns, or else of keys in the format of the values."""
    specification, is_framed = decoder.specification, decoder.has_framed_keys
    if decoder.record_keys is not None:
        return decoder.record_keys.reader
    kind = specification.format
    if is_framed and kind != "json":
        registry, subject = specification.registry, specification.key_subject
        made = key_decoder(specification, kind, None, registry, subject)
        return KeyReader(made.values, is_framed, has_indexes=kind == "protobuf")
    return KeyReader(JsonValues(getattr(decoder.values, "as_written", True), is_framed), is_framed)


def key_decoder(
    specification: Specification, kind: Format, schema: str | None, registry: str | None, subject: str
) -> Decoder:
    """Return the decoder of the records' keys, as of values. Raises the errors of `decoder_of`."""
    of_keys = Specification(
        specification.topic,
        format=kind,
        schema=schema,
        registry=registry,
        subject=subject,
        timestamps=specification.timestamps,
        truncate_nanoseconds=specification.truncate_nanoseconds,
    )
    return avro_decoder(of_keys, single=SINGLE) if kind == "avro" else DECODERS[kind](of_keys)


def record_keys_of(specification: Specification) -> RecordKeys | None:
    """Return the decoding of keys to columns, None if they do not become columns. Raises the errors of `decoder_of`."""
    prefix = specification.key_prefix
    if specification.key_format is None:
        return None
    if specification.key_format in SINGLE_FORMATS:
        fields = [pa.field(prefix.rstrip("_") or SINGLE, SINGLE_FORMATS[specification.key_format][0])]
        reader = KeyReader(SingleKeys(specification.key_format))
        return RecordKeys(tuple(fields), (SINGLE,), reader, Reading())
    kind = cast("Format", specification.key_format)
    registry = None if specification.key_schema else specification.registry
    made = key_decoder(specification, kind, specification.key_schema, registry, specification.key_subject)
    is_single = getattr(made.values, "single", "")
    names = [prefix.rstrip("_") or SINGLE] if is_single else [f"{prefix}{one.name}" for one in made.fields]
    return RecordKeys(
        tuple(one.with_name(name) for one, name in zip(made.fields, names, strict=True)),
        tuple(one.name for one in made.fields),
        KeyReader(made.values, registry is not None, kind == "protobuf"),
        made.specification.reading,
    )


#: The registry's names of the formats of values.
KINDS = {"json": "JSON", "json-schema": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}


def selection_of(specification: Specification) -> Selection | None:
    """Return the values that the table takes, None if it takes all of the topic."""
    if specification.record is None or specification.registry is None:
        return None
    return Selection(
        Registry(specification.registry),
        specification.record,
        frozenset(specification.named_records) - {specification.record},
        specification.takes_the_rest,
        KINDS[specification.format] if specification.finds_records else None,
    )


def has_framed_keys(specification: Specification) -> bool:
    """Return True if upsert has to compare keys without their framing. Raises RegistryError."""
    if not (specification.upsert and specification.registry and specification.framing == "confluent"):
        return False
    try:
        Registry(specification.registry).latest(specification.key_subject)
    except NotRegistered:
        return False
    return True


def json_decoder(specification: Specification) -> Decoder:
    text = schema_text(specification)
    fields = [] if text is None else spark_fields(text)
    if specification.flatten:
        fields = list(flattened_fields(fields, specification.flatten))
    return Decoder.for_json(specification, [escaped(one) for one in fields])


def escaped(one: pa.Field) -> pa.Field:
    """Return the column for a JSON field of a schema: its name, and those inside, escaped."""
    return one.with_name(column_name(one.name)).with_type(escaped_type(one.type))


def escaped_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([escaped(one) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(escaped_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, escaped_type(kind.item_type))
    return kind


def schema_text(specification: Specification) -> str | None:
    if specification.schema_file is None:
        return specification.schema
    try:
        return Path(specification.schema_file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SchemaFault(f"{specification.schema_file} is not UTF-8: {error}") from None


def spark_fields(text: str) -> list[pa.Field]:
    """Return columns for Spark's DDL or JSON schema. Raises SchemaFault."""
    try:
        if text.lstrip().startswith("{"):
            schema: DataType = StructType.fromJson(json.loads(text))
        else:
            schema = StructType.fromDDL(text)
    except (ValueError, KeyError, TypeError, PySparkException) as error:
        raise SchemaFault(f"The schema does not parse: {first_line(error)}") from None
    if not isinstance(schema, StructType):
        raise SchemaFault(
            f"The schema is {schema.simpleString()}, not one of columns like `id bigint, name string`."
        )
    return [spark_field(one, f"$.{one.name}") for one in schema.fields]


SPARK_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def spark_field(one: StructField, path: str) -> pa.Field:
    return pa.field(one.name, spark_type(one.dataType, path), one.nullable)


def spark_type(kind: DataType, path: str) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises SchemaFault."""
    if isinstance(kind, StructType):
        return pa.struct([spark_field(one, f"{path}.{one.name}") for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(spark_type(kind.elementType, f"{path}[]"))
    if isinstance(kind, MapType):
        return pa.map_(spark_type(kind.keyType, path), spark_type(kind.valueType, f"{path}.*"))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = SPARK_TYPES.get(kind.typeName())
    if found is None:
        raise SchemaFault(f"{path}: no column can be {kind.simpleString()}.")
    return found


def json_schema_decoder(specification: Specification) -> Decoder:
    from korvet.pipeline.decoding.json_schema_columns import json_schema_fields  # noqa: PLC0415  needs extra `decode`
    from korvet.pipeline.decoding.json_schema_documents import Documents, documents_of, validator_of  # noqa: PLC0415
    from korvet.pipeline.decoding.json_schema_values import JsonSchemaValues  # noqa: PLC0415

    registry = Registry(specification.registry) if specification.registry else None
    text = schema_text(specification)
    if text is not None:
        documents = Documents(text)
    else:
        with faults_of_subject(specification.subject):
            documents = documents_of(*newest(registry, specification.subject))
    validator_of(documents)  # raises SchemaFault, also for parts of the schema that make no column
    fields = [escaped(one) for one in reshaped_fields(specification, json_schema_fields(documents))]
    framed = registry if specification.framing == "confluent" else None
    return Decoder(specification, tuple(fields), JsonSchemaValues(documents, framed))


def avro_decoder(specification: Specification, *, single: str = "") -> Decoder:
    """Return the decoder of Avro. If `single` is given, the schema may be none of a record: it is of this column."""
    from korvet.pipeline.decoding.avro_references import whole_schema  # noqa: PLC0415  needs extra `decode`
    from korvet.pipeline.decoding.avro_values import AvroValues, avro_fields, is_record  # noqa: PLC0415

    registry = Registry(specification.registry) if specification.registry else None
    text = schema_text(specification)
    if text is None:
        with faults_of_subject(specification.subject):
            text = whole_schema(*newest(registry, specification.subject))
    single = "" if is_record(text) else single
    fields = reshaped_fields(specification, avro_fields(text, single))
    framed = registry if specification.framing == "confluent" else None
    return Decoder(specification, tuple(fields), AvroValues(text, framed, single))


def protobuf_decoder(specification: Specification) -> Decoder:
    from korvet.pipeline.decoding import protobuf_schemas as schemas  # noqa: PLC0415  needs extra `decode`
    from korvet.pipeline.decoding.protobuf_values import ProtobufValues  # noqa: PLC0415

    registry = Registry(specification.registry) if specification.registry else None
    if registry is None or specification.schema_file is not None:
        descriptors = schemas.descriptors_of_file(Path(str(specification.schema_file)))
    else:
        with faults_of_subject(specification.subject):
            descriptors = schemas.descriptors_of(*newest(registry, specification.subject))
    message = schemas.message_type(descriptors, specification.message)
    fields = reshaped_fields(specification, schemas.message_fields(message))
    framed = registry if specification.framing == "confluent" else None
    values = ProtobufValues(descriptors, message.full_name, framed, specification.truncate_nanoseconds)
    return Decoder(specification, tuple(fields), values)


DECODERS: Mapping[Format, Callable[[Specification], Decoder]] = {
    "json": json_decoder,
    "json-schema": json_schema_decoder,
    "avro": avro_decoder,
    "protobuf": protobuf_decoder,
}


def newest(registry: Registry | None, subject: str) -> tuple[Registry, Schema]:
    """Return the registry, and a subject's latest schema in it. Raises SchemaFault, RegistryError."""
    if registry is None:
        raise SchemaFault("There is neither a schema_file nor a registry.")
    try:
        return registry, registry.latest(subject)
    except NotRegistered as error:
        raise SchemaFault(f"{error}; give subject, or schema_file") from None


@contextmanager
def faults_of_subject(subject: str) -> Iterator[None]:
    """Name the subject in the faults of its schema. Raises SchemaFault."""
    try:
        yield
    except (NotRegistered, SchemaFault) as error:
        raise SchemaFault(f"subject {subject}: {error}") from None


def reshaped_fields(specification: Specification, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Return the columns of reshaped rows, from the columns of the values' schema."""
    found = list(fields)
    if specification.unwrap:
        found = next(
            (list(one.type) for one in fields if one.name == "after" and pa.types.is_struct(one.type)), []
        )
        if not found:
            raise SchemaFault("The schema is none of Debezium's envelope: it has no record `after`.")
    found = renamed_fields(found, specification.rename)
    return list(flattened_fields(found, specification.flatten)) if specification.flatten else found


def with_fields(decoder: Decoder, fields: Sequence[pa.Field]) -> Decoder:
    """Return the same decoder with other columns."""
    if decoder.specification.format == "json":
        made = Decoder.for_json(decoder.specification, fields)
        return attrs.evolve(decoder, fields=made.fields, values=made.values)
    return attrs.evolve(decoder, fields=tuple(fields))


def refuse_unfit(decoder: Decoder) -> None:
    """Raise SchemaFault if a table cannot have the decoder's columns."""
    seen: set[str] = set()
    for one in (*decoder.fields, *decoder.key_fields):
        if one.name.lower() in seen:
            hint = "; key_prefix gives another to that of the key" if one in decoder.key_fields else ""
            raise SchemaFault(
                f"$.{one.name}: there are two columns of this name, for case does not count{hint}."
            )
        seen.add(one.name.lower())
        if one.name.lower() in RESERVED:
            raise SchemaFault(
                f"$.{one.name} is a column of the table's own; give it another name with rename."
            )
        if not is_fit(one.name):
            raise SchemaFault(f"$.{one.name}: no column can have this name; give it another one with rename.")
        refuse_unfit_type(one.type, f"$.{one.name}")


def refuse_unfit_type(kind: pa.DataType, path: str) -> None:
    if pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            refuse_unfit_type(kind.field(index).type, f"{path}.{kind.field(index).name}")
    elif kind.id not in LEAVES:
        raise SchemaFault(f"{path}: no column can be {kind}.")


def refuse_keys(decoder: Decoder) -> None:
    """Raise SchemaFault if the columns of `key` cannot identify rows."""
    kinds = {one.name: one.type for one in (*decoder.fields, *decoder.key_fields)}
    for name in decoder.specification.key:
        if name not in kinds:
            raise SchemaFault(f"key: there is no column {name}; there are {', '.join(kinds)}.")
        if pa.types.is_nested(kinds[name]) or pa.types.is_floating(kinds[name]):
            raise SchemaFault(f"key: {name} is {named(kinds[name])}, which identifies no rows.")


def refuse_clustering(decoder: Decoder) -> None:
    """Raise SchemaFault if rows cannot be sorted by the columns of `cluster_by`."""
    kinds = {one.name: one.type for one in decoder.schema if one.name not in decoder.partition_columns()}
    for name in decoder.specification.cluster_by:
        if name not in kinds:
            raise SchemaFault(f"cluster_by: the files have no column {name}; they have {', '.join(kinds)}.")
        if pa.types.is_nested(kinds[name]):
            raise SchemaFault(f"cluster_by: {name} is {ddl_type(kinds[name])}, by which rows are not sorted.")


def refuse_partitioning(decoder: Decoder) -> None:
    """Raise SchemaFault if the table cannot be partitioned as specified."""
    kinds = {one.name: one.type for one in (*decoder.fields, *decoder.key_fields)}
    for name in decoder.specification.partition_by:
        if name in PERIODS:
            continue
        if name not in kinds:
            raise SchemaFault(
                f"partition_by: there is no column {name}; there are {', '.join(kinds)}, and {', '.join(PERIODS)}."
            )
        kind = kinds[name]
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind):
            raise SchemaFault(f"partition_by: {name} is {named(kind)}, which tables are not partitioned by.")
    if kinds and set(kinds) <= set(decoder.specification.partition_by):
        raise SchemaFault("partition_by: at least one column must remain.")
    refuse_buckets(decoder)


def refuse_buckets(decoder: Decoder) -> None:
    """Raise SchemaFault if rows cannot be partitioned by the hash of the column of `bucket_by`."""
    name = decoder.specification.bucket_by
    if name is None:
        return
    kinds = {one.name: one.type for one in decoder.schema if one.name not in RESERVED or one.name == KEY}
    if name not in kinds:
        raise SchemaFault(f"bucket_by: there is no column {name}; there are {', '.join(kinds)}.")
    if name in decoder.specification.partition_by:
        raise SchemaFault(f"bucket_by: {name} is in partition_by, which leaves one bucket in each partition.")
    if not can_have_buckets(kinds[name]):
        raise SchemaFault(
            f"bucket_by: {name} is {ddl_type(kinds[name])}, which has no buckets; "
            "whole numbers, strings, binaries, dates and timestamps have."
        )
    if name == KEY and decoder.has_framed_keys:
        raise SchemaFault(
            f"bucket_by: {name} has the ids of schemas, so equal keys could be in two buckets; set key and take one "
            "of its columns."
        )


Note = Callable[[str], None]


def united(decoder: Decoder, table: Sequence[pa.Field], note: Note) -> Decoder:
    """Return the decoder for an existing table: the schema's columns, and with inference those of the table.

    Without inference, columns that only the table has stay null. If a schema's number type is wider or narrower than
    the column's, the column keeps its type until it is widened; `note` is called for a narrower column. Raises
    WrongTable for a column of another type.
    """
    there = {one.name.lower(): one for one in table if one.name not in RESERVED}
    evolving = decoder.specification.unknown == "add" or not decoder.fields

    def known(one: pa.Field) -> pa.Field:
        found = there.pop(one.name.lower(), None)
        return one if found is None else same_column(one, found, note)

    fields = [known(one) for one in decoder.fields]
    if decoder.record_keys is not None:
        keys = decoder.record_keys.with_fields([known(one) for one in decoder.key_fields])
        decoder = attrs.evolve(decoder, record_keys=keys)
    return with_fields(decoder, [*fields, *there.values()] if evolving else fields)


def same_column(one: pa.Field, known: pa.Field, note: Note) -> pa.Field:
    """Return the schema's column, extended by nested fields that only the table's column has. Raises WrongTable."""
    if one.name != known.name:
        raise WrongTable(f"Column {one.name} is {known.name} in the table; case does not count: use rename.")
    return one.with_type(united_type(one.type, known.type, f"$.{one.name}", note))


def united_type(kind: pa.DataType, known: pa.DataType, path: str, note: Note) -> pa.DataType:
    if pa.types.is_struct(kind) and pa.types.is_struct(known):
        inside = {one.name: one for one in known}
        fields = []
        for one in kind:
            there = inside.pop(one.name, None)
            whole = (
                one.type if there is None else united_type(one.type, there.type, f"{path}.{one.name}", note)
            )
            fields.append(one.with_type(whole))
        return pa.struct([*fields, *inside.values()])
    if pa.types.is_list(kind) and pa.types.is_list(known):
        return pa.list_(united_type(kind.value_type, known.value_type, f"{path}[]", note))
    if are_both(kind, known, pa.types.is_signed_integer) or are_both(kind, known, pa.types.is_floating):
        if known.bit_width < kind.bit_width:
            note(narrower(path, known, kind, kind))
        return known
    if are_both(kind, known, pa.types.is_decimal):
        scale = max(kind.scale, known.scale)
        precision = max(kind.precision - kind.scale, known.precision - known.scale) + scale
        if (precision, scale) != (known.precision, known.scale):
            wide = pa.decimal128(precision, scale) if precision <= DECIMAL_DIGITS else None
            note(narrower(path, known, kind, wide))
        return known
    if plain_nullable(kind) != plain_nullable(known):
        raise WrongTable(
            f"{path} is {named(known)} in the table and {named(kind)} in the schema; tables do not change types: "
            "give the field another name with rename, or decode to another table."
        )
    return kind


def narrower(path: str, known: pa.DataType, kind: pa.DataType, wide: pa.DataType | None) -> str:
    """Return the note about a column that cannot hold all values of the schema's type; `wide` can."""
    remedy = (
        "decode to another table for all of them"
        if wide is None
        else f"korvet lake widen makes it {named(wide)}"
    )
    return (
        f"{path} is {named(known)} in the table and {named(kind)} in the schema: values that fit {named(known)} are "
        f"written, and others are bad rows; {remedy}"
    )


def are_both(one: pa.DataType, other: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    return is_kind(one) and is_kind(other)


def plain_nullable(kind: pa.DataType) -> str:
    """Return a text that is equal for types with equal values."""
    return str(plain(kind)).replace(" not null", "")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def ddl(fields: Sequence[pa.Field]) -> str:
    """Return columns as Spark DDL."""
    return ", ".join(f"{quoted(one.name)} {ddl_type(one.type)}" for one in fields)


def quoted(name: str) -> str:
    return name if name.replace("_", "a").isalnum() and name.isascii() else f"`{name.replace('`', '``')}`"


def ddl_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(one.name)}: {ddl_type(one.type)}' for one in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)}, {ddl_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    return named(kind)
